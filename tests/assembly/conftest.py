"""Fixtures for tests of `calibrant.assembly`: fake models behind names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bundle_runs import run
from calibrant.assembly import Bundle, export, open_classifier
from calibrant.core import Client, ConfigurationError, Task
from calibrant.inference import Classifier
from calibrant.testing import FakeClient

LABELS = ["cat", "dog"]
Opened = dict[str, list[FakeClient]]


def unsure(text: str) -> tuple[str, float]:
    """Answer cats rightly and surely, and everything else wrongly and unsurely."""
    return ("cat", 0.95) if "meow" in text else ("cat", 0.55)


def sure(text: str) -> tuple[str, float]:
    """Answer everything rightly and surely."""
    return ("cat", 0.99) if "meow" in text else ("dog", 0.97)


def certain(_text: str) -> tuple[str, float]:
    """Answer everything as surely as everything else."""
    return "cat", 1.0


RULES: dict[str, Callable[[str], tuple[str, float]]] = {"small": unsure, "large": sure, "certain": certain}


@pytest.fixture
def opened(use_model: Callable[..., Any]) -> Opened:
    """Put fakes in the place of models called small and large; returns them by name as they are opened."""
    found: Opened = {}

    def open_fake(model: str, **settings: Any) -> Client:
        fake = FakeClient(LABELS, RULES[model], name=model)
        fake.settings = settings  # type: ignore[attr-defined]
        found.setdefault(model, []).append(fake)
        return fake

    def refuse(model: str, **_: Any) -> Client:
        raise ConfigurationError(f"Expected a model that is there, got {model!r}.")

    for name in RULES:
        use_model(open_fake, name)
    use_model(refuse, "missing")
    return found


@pytest.fixture
def open_task(write_task: Callable[..., Path]) -> Callable[..., Classifier]:
    """Return a function that opens the task of two labels with these further sections."""

    def open_it(extra: str, **options: Any) -> Classifier:
        return open_classifier(Task.from_file(write_task(extra="\n" + extra), splits=()), **options)

    return open_it


@pytest.fixture
def export_plan(write_task: Callable[..., Path], opened: Opened, tmp_path: Path) -> Callable[..., Bundle]:
    """Return a function that plans with two models on rows, and exports the run of the plan as ``bundle``."""

    def make(small: str, rows: Sequence[Mapping[str, str]], *options: object) -> Bundle:
        tasks = [
            write_task(directory=tmp_path / name, extra=f'[model]\nname = "{name}"\n', test=rows)
            for name in (small, "large")
        ]
        for path in tasks:
            run("evaluate", path, "--out", tmp_path / f"run-{path.parent.name}", "--no-cache")
        runs = (tmp_path / f"run-{small}", tmp_path / "run-large")
        costs = ("--small-cost", 1, "--large-cost", 50)
        run("cascade", "plan", *runs, *costs, *options, "--out", tmp_path / "plan")
        run("cascade", "run", tmp_path / "plan", *tasks, "--out", tmp_path / "run")
        opened.clear()
        return export(tmp_path / "run", tmp_path / "bundle")

    return make
