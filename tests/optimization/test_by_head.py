"""Tests of the choice between a race's best two prompts by the heads of their answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import HeadSettings, ProviderError, ScoringSettings, Task
from calibrant.heads import Head
from calibrant.inference import Classifier
from calibrant.optimization import OptimizationResult, optimize
from calibrant.testing import FakeClient
from search_records import verdict_of
from small_tasks import LABELS, Interrupted, hidden_rows, interrupted, place, searched, task_of

USEFUL = "Say the other one."
SOBER = "Which animal?"
VALIDATION = 60


def told(text: str, prompt: str) -> dict[str, float]:
    """Answer three texts of four rightly, or all of them with swapped labels."""
    hard = hashlib.sha256(text.encode()).digest()[1] % 4 == 0
    right = 0.3 if prompt.startswith(USEFUL) or hard else 0.6
    return {LABELS[place(text)]: right, LABELS[1 - place(text)]: 1.0 - right}


def task(prompt: str = SOBER, other: str = USEFUL, **changes: Any) -> Task:
    """Return a task with two prompts."""
    return task_of(
        hidden_rows, 40, VALIDATION, 40, **{"prompt": prompt, "other_prompts": (other,), **changes}
    )


def nothing(*_: object) -> dict[str, str]:
    """Propose nothing."""
    return {}


def search(found: Task, client: FakeClient, *, budget: int = 400, **options: Any) -> OptimizationResult:
    """Race the prompts of a task, without proposals."""
    return optimize(
        found, model=client, proposer=nothing, max_metric_calls=budget, minibatch_size=4, **options
    )


def without_time(result: OptimizationResult) -> dict[str, Any]:
    """Return a result's record without its duration."""
    return {**result.to_record(), "seconds": None}


# --- which one ----------------------------------------------------------------------------------


def test_the_second_is_kept_for_its_head(tmp_path: Path) -> None:
    """The race's second prompt is chosen if its head is better, and the verdict says so."""
    client = FakeClient(LABELS, told)
    result = search(task(), client, out=tmp_path)
    assert result.by_head is not None
    assert (result.by_head.raced, result.by_head.other, result.chosen) == (0, 1, 1)
    assert result.by_head.rows == VALIDATION
    assert result.by_head.other_log_loss < result.by_head.raced_log_loss
    assert result.by_head.other_accuracy == 1.0
    hard = [told(row.input, SOBER)[row.answer] < 0.5 for row in task().validation]
    assert result.by_head.raced_accuracy == pytest.approx(1.0 - sum(hard) / len(hard), abs=0.06)
    assert result.best_prompt.prompt == USEFUL
    assert result.best_prompt.accuracy is not None
    assert result.best_prompt.accuracy.estimate == 0.0
    assert result.final is not None
    assert result.final.score.prompt == USEFUL
    assert result.final.score.accuracy is not None
    assert result.final.score.accuracy.estimate == 1.0
    assert result.final.head["n_rows"] == VALIDATION + 40
    assert result.improved
    assert (tmp_path / "best_prompt.txt").read_text() == USEFUL
    classifier = Classifier(model=client, labels=LABELS, field="category", prompt=USEFUL)
    classifier.head = Head.load(tmp_path / "head.json", fingerprint=classifier.fingerprint())
    assert classifier.classify("test 1").label == LABELS[place("test 1")]
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["by_head"]["other_log_loss"] == result.by_head.other_log_loss
    verdict = verdict_of(record)
    assert verdict.startswith(
        "The best prompt with its head is better than the seed prompt alone on the test rows: +"
    )
    assert (
        " rows. The best prompt (other prompt 1) was chosen for its head: on 60 validation rows accuracy 1.000, and "
    ) in verdict


def test_the_seed_prompt_is_kept_for_its_head() -> None:
    """The seed prompt is kept for its head although another prompt won the race."""
    result = search(task(prompt=USEFUL, other=SOBER), FakeClient(LABELS, told))
    assert result.by_head is not None
    assert (result.by_head.raced, result.chosen) == (1, 0)
    assert result.best_prompt == result.seed_prompt
    assert result.improved  # as what the user gets is the prompt with its head
    verdict = verdict_of(result.to_record())
    assert verdict.startswith("The seed prompt with its head is better than the seed prompt alone")
    assert (
        " rows. The seed prompt is kept for its head: on 60 validation rows accuracy 1.000, and " in verdict
    )


def test_heads_that_agree_with_the_race_change_nothing() -> None:
    """Heads that agree with the race leave its choice, and the verdict says nothing of them."""

    def ignorant(text: str, prompt: str) -> dict[str, float]:
        return {"cat": 0.5, "dog": 0.5} if prompt.startswith(USEFUL) else told(text, prompt)

    result = search(task(), FakeClient(LABELS, ignorant))
    assert result.by_head is not None
    assert (result.chosen, result.best_prompt.prompt) == (0, SOBER)
    assert "for its head" not in verdict_of(result.to_record())


def test_a_less_accurate_head_is_not_taken() -> None:
    """A head with lower loss but lower accuracy does not change the race's choice."""

    def cautious(text: str, prompt: str) -> dict[str, float]:
        # Sure where it is right and wrong by a hair elsewhere, against right more often and never sure.
        second = hashlib.sha256(text.encode()).digest()[2]
        sure, unsure, share = (0.98, 0.49, 7) if prompt.startswith(USEFUL) else (0.55, 0.45, 8)
        right = sure if second % 10 < share else unsure
        return {LABELS[place(text)]: right, LABELS[1 - place(text)]: 1.0 - right}

    result = search(task(), FakeClient(LABELS, cautious))
    assert result.by_head is not None
    assert result.by_head.raced_accuracy > result.by_head.other_accuracy
    assert result.by_head.raced_log_loss > result.by_head.other_log_loss
    assert result.chosen == result.by_head.raced


def test_a_row_that_failed_under_one_prompt_compares_neither() -> None:
    """A row that failed under one prompt is left out of the comparison of heads."""

    def flaky(text: str, prompt: str) -> Any:
        if text == "validation 7" and prompt.startswith(USEFUL):
            return ProviderError("not now", provider="p", retryable=False)
        return told(text, prompt)

    result = search(task(), FakeClient(LABELS, flaky))
    assert result.by_head is not None
    assert result.by_head.rows == VALIDATION - 1
    assert result.chosen == 1


# --- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [60, 90, 120, 175, 176, 200, 400])
def test_the_budget_is_an_upper_bound(budget: int) -> None:
    """A search asks no more rows than its budget, and none twice, with heads too."""
    client = FakeClient(LABELS, told)
    result = search(task(), client, budget=budget)
    asked = searched(client)
    assert len(asked) == len(set(asked)) == result.metric_calls <= budget
    assert result.final is not None
    # All rows under the seed prompt, 36 of the others, and the training rows under the one that may be kept.
    assert (result.by_head is not None) is (budget >= VALIDATION + 40 + 36 + 40)
    assert (result.chosen == 1) is (result.by_head is not None)
    if result.by_head is not None:
        assert result.by_head.rows >= 36
        assert result.final.head["n_rows"] >= min(VALIDATION + 40, budget // 2)


@pytest.mark.parametrize("before", [30, 90, 130, 180])
def test_an_interrupted_run_comes_to_the_same_end(tmp_path: Path, before: int) -> None:
    """A search that was interrupted at any stage ends with the same result."""
    whole = search(task(), FakeClient(LABELS, told))

    with pytest.raises(Interrupted):
        search(task(), interrupted(told, before), out=tmp_path)
    found = search(task(), FakeClient(LABELS, told), out=tmp_path)
    assert without_time(found) == without_time(whole)
    idle = FakeClient(LABELS, told)
    assert without_time(search(task(), idle, out=tmp_path)) == without_time(whole)
    assert idle.requests == []


# --- where nothing is compared ------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"head": HeadSettings(fit="off")},
        {"validation": hidden_rows("validation", 30)},
        {"scoring": ScoringSettings(strategy="linear")},
        {"other_prompts": ()},
    ],
)
def test_heads_are_compared_only_after_a_race(changes: dict[str, Any]) -> None:
    """Heads are not compared where they are off or no race was held."""
    result = search(task(**changes), FakeClient(LABELS, told))
    assert result.by_head is None
    assert result.to_record()["by_head"] is None
    assert result.chosen == 0
