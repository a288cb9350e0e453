"""Fixtures for tests of `calibrant.assembly`: fake models behind names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.assembly import open_classifier
from calibrant.cascade import LearnedScorer
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


@pytest.fixture
def fit_scorer(open_task: Callable[..., Classifier], tmp_path: Path) -> Callable[[str], LearnedScorer]:
    """Return a function that fits a scorer on the answers of a model, and saves it as ``scorer.json``."""

    def fit(name: str) -> LearnedScorer:
        model = open_task(f'[model]\nname = "{name}"\n')
        texts = [f"{number} {'meow' if number % 2 else 'woof'}" for number in range(40)]
        scorer = LearnedScorer(n_buckets=64).fit(
            texts, model.classify_many(texts), [n % 2 for n in range(40)]
        )
        scorer.save(tmp_path / "scorer.json", fingerprint=model.fingerprint())
        return scorer

    return fit
