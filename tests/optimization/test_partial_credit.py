"""Tests of searches over labels with partial credit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import Example, LabelSet, OrdinalLabels, ScoringSettings, StateError, Task
from calibrant.optimization import OptimizationResult, optimize
from calibrant.testing import FakeClient
from small_tasks import task_of

SCALE = OrdinalLabels(["low", "medium", "high"])
BUDGET: dict[str, Any] = {"max_metric_calls": 60, "minibatch_size": 4}


def rows(prefix: str, count: int) -> tuple[Example, ...]:
    """Return rows whose label is high."""
    return tuple(Example(input=f"{prefix} {number}", answer="high") for number in range(count))


def task(labels: LabelSet = SCALE) -> Task:
    """Return a small task."""
    return task_of(rows, 6, 6, 8, labels=labels, prompt="Rate.", scoring=ScoringSettings(strategy="brier"))


def rule(_: str, prompt: str) -> tuple[str, float]:
    """Answer far off, or one step off if the prompt tells how to rate."""
    return ("medium", 0.9) if prompt.startswith("Rate higher") else ("low", 0.9)


def higher(*_: Any) -> dict[str, str]:
    """Propose the better prompt."""
    return {"system_prompt": "Rate higher."}


def search(labels: LabelSet, out: Path | None = None) -> OptimizationResult:
    """Search with a scripted model and proposer."""
    return optimize(task(labels), model=FakeClient(SCALE, rule), proposer=higher, out=out, **BUDGET)


def test_a_search_climbs_by_credit(tmp_path: Path) -> None:
    """A search over a scale takes the prompt with more credit, although no answer is right."""
    result = search(SCALE, tmp_path)
    assert result.improved
    assert result.comparison is not None
    assert result.comparison.difference == 0.0
    assert result.seed_prompt.credit is not None
    assert result.best_prompt.credit is not None
    assert (result.seed_prompt.credit.estimate, result.best_prompt.credit.estimate) == (0.0, 0.5)
    assert result.credit_difference is not None
    assert result.credit_difference.estimate == 0.5
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["best_prompt"]["credit"]["estimate"] == 0.5
    assert record["credit_difference"]["estimate"] == 0.5


def test_plain_labels_see_no_difference(tmp_path: Path) -> None:
    """With plain labels, neither result nor record has a credit."""
    result = search(LabelSet(SCALE), tmp_path)
    assert result.best_prompt.credit is None
    assert result.credit_difference is None
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["credit_difference"] is None
    assert record["best_prompt"]["credit"] is None


def test_another_structure_is_another_run(tmp_path: Path) -> None:
    """Another label structure in the same directory raises StateError."""
    search(SCALE, tmp_path)
    with pytest.raises(StateError, match="differs in task"):
        search(LabelSet(SCALE), tmp_path)
    search(SCALE, tmp_path)
