"""Fixtures for tests of `calibrant.tuned`: fake models behind names, and the run of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from bundle_runs import run
from calibrant.tuned import Tuned
from named_models import Opened, opened

__all__ = ["opened"]


@pytest.fixture
def export_plan(write_task: Callable[..., Path], opened: Opened, tmp_path: Path) -> Callable[..., Tuned]:
    """Return a function that plans with two models on rows, and exports the run of the plan as ``bundle``."""

    def make(small: str, rows: Sequence[Mapping[str, str]], *options: object) -> Tuned:
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
        return Tuned.from_run(tmp_path / "run").save(tmp_path / "bundle")

    return make
