"""Fake models behind the names small, large, certain and missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calibrant.core import Client, ConfigurationError
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
