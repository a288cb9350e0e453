"""Fixtures for tests of `calibrant.assembly`: fake models behind names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.assembly import open_classifier
from calibrant.core import Task
from calibrant.inference import Classifier
from named_models import opened

__all__ = ["opened"]


@pytest.fixture
def open_task(write_task: Callable[..., Path]) -> Callable[..., Classifier]:
    """Return a function that opens the task of two labels with these further sections."""

    def open_it(extra: str, **options: Any) -> Classifier:
        return open_classifier(Task.from_file(write_task(extra="\n" + extra), splits=()), **options)

    return open_it
