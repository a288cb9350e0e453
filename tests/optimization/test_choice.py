"""Tests of which prompt a search by a given score takes as the best and as an improvement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import Example, ScoringSettings, Task
from calibrant.optimization import OptimizationResult, optimize
from calibrant.testing import FakeClient

LABELS = ("a", "b", "c", "d")
SEED = "Seed."


def rows(prefix: str, answers: str) -> tuple[Example, ...]:
    """Return a row for each true label."""
    return tuple(Example(input=f"{prefix} {place}", answer=label) for place, label in enumerate(answers))


def task(validation: str, test: str) -> Task:
    """Return a task with these true labels."""
    return Task(
        name="letters",
        labels=LABELS,
        prompt=SEED,
        field="category",
        train=rows("train", "abcd" * 3),
        validation=rows("validation", validation),
        test=rows("test", test),
        scoring=ScoringSettings(strategy="linear"),
    )


def search(
    truth: dict[str, str], given: dict[str, dict[str, str]], sure: dict[str, float], out: Path | None = None
) -> OptimizationResult:
    """Search over scripted prompts.

    `truth` holds the true labels of validation and test rows, `given` what each prompt answers to them. Every prompt
    but the seed is right on all training rows, so that GEPA accepts it; how sure each is, `sure` says.
    """
    prompts = [prompt for prompt in given if prompt != SEED]

    def rule(text: str, prompt: str) -> tuple[str, float]:
        split, place = text.split()
        if split != "train":
            return given[prompt][split][int(place)], sure[prompt]
        return ("abcd"[int(place) % 4], sure[prompt]) if prompt != SEED else ("a", 0.5)

    left = list(prompts)

    def propose(*_: Any) -> dict[str, str]:
        return {"system_prompt": left.pop(0)} if left else {}

    return optimize(
        task(truth["validation"], truth["test"]),
        model=FakeClient(LABELS, rule),
        proposer=propose,
        minibatch_size=12,
        max_metric_calls=300,
        out=out,
    )


TRUTH = {"validation": "aabbccdd", "test": "aabbccdd" * 4}
POOR = {"validation": "aabbaaaa", "test": "aabbaaaa" * 4}  # 0.5 right
GOOD = {"validation": "aabbccdd", "test": "aabbccdd" * 4}


def test_more_confidence_in_the_same_answers_is_no_improvement() -> None:
    """A prompt that is only surer of the same answers is no improvement, and the seed is kept."""
    result = search(TRUTH, {SEED: POOR, "Sure.": POOR}, {SEED: 0.5, "Sure.": 0.99})
    assert (result.accepted, result.chosen, result.improved) == (1, 0, False)
    assert result.best_prompt == result.seed_prompt
    seed, sure = result.validated
    assert sure.score > seed.score
    assert (sure.accuracy, sure.macro_f1) == (seed.accuracy, seed.macro_f1)


@pytest.mark.parametrize(
    ("answers", "sure"),
    [
        ("abbacddc", 0.9),  # as many right, more evenly over the labels
        ("aabbccaa", 0.05),  # more right, and so unsure of it that the score falls
    ],
)
def test_an_improvement_is_one_in_score_and_accuracy_too(answers: str, sure: float) -> None:
    """A prompt with higher macro F1 but no higher score, or no higher accuracy, is not chosen."""
    other = {"validation": answers, "test": answers * 4}
    result = search(TRUTH, {SEED: POOR, "Other.": other}, {SEED: 0.6, "Other.": sure})
    assert (result.accepted, result.chosen) == (1, 0)
    seed, found = result.validated
    assert (found.macro_f1 or 0.0) > (seed.macro_f1 or 0.0)


def test_more_right_rows_of_fewer_labels_are_no_improvement() -> None:
    """A prompt with higher accuracy and lower macro F1 is no improvement."""
    truth = {"validation": "aaaaaabcd", "test": "aaaaaabcd" * 4}
    even = {"validation": "aabcddbcd", "test": "aabcddbcd" * 4}
    always = {"validation": "aaaaaaaaa", "test": "aaaaaaaaa" * 4}
    result = search(truth, {SEED: even, "Always a.": always}, {SEED: 0.5, "Always a.": 0.99})
    seed, other = result.validated
    assert other.accuracy is not None
    assert seed.accuracy is not None
    assert other.accuracy > seed.accuracy
    assert other.macro_f1 is not None
    assert seed.macro_f1 is not None
    assert other.macro_f1 < seed.macro_f1
    assert (result.chosen, result.improved) == (0, False)
    assert result.best_candidate == {"system_prompt": SEED}


def test_the_best_improvement_is_chosen(tmp_path: Path) -> None:
    """The best improvement is chosen although another prompt has the highest score."""
    fair = {"validation": "aabbccaa", "test": "aabbccaa" * 4}
    lower = {"validation": "aabbcaaa", "test": "aabbcaaa" * 4}
    given = {SEED: POOR, "Lower.": lower, "Fair.": fair, "Sure.": POOR}
    result = search(TRUTH, given, {SEED: 0.3, "Lower.": 0.4, "Fair.": 0.5, "Sure.": 0.999}, out=tmp_path)
    assert [one.candidate["system_prompt"] for one in result.validated][result.chosen] == "Fair."
    assert max(result.validated, key=lambda one: one.score).candidate["system_prompt"] == "Sure."
    assert result.improved
    assert (tmp_path / "best_prompt.txt").read_text() == "Fair."
    record = json.loads((tmp_path / "result.json").read_text())
    assert record["chosen"] == result.chosen
    counts = {"answered": 2, "total": 4, "present": 4, "found": 2}
    assert record["validated"][0]["answered_labels"] == {**counts, "share": 0.5, "collapsed": False}


def test_a_refuted_choice_is_no_improvement() -> None:
    """A choice that is worse on the test rows stays chosen, and `improved` is False."""
    given = {
        SEED: {"validation": POOR["validation"], "test": GOOD["test"]},
        "Other.": {"validation": GOOD["validation"], "test": POOR["test"]},
    }
    result = search(TRUTH, given, {SEED: 0.5, "Other.": 0.9})
    assert result.chosen == 1
    assert result.best_prompt.prompt == "Other."
    assert result.comparison is not None
    assert result.comparison.interval.upper < 0.0
    assert not result.improved


def test_test_rows_that_show_nothing_show_no_improvement() -> None:
    """A choice whose test rows show no difference stays chosen, and is not called an improvement."""
    given = {SEED: POOR, "Other.": {"validation": GOOD["validation"], "test": POOR["test"]}}
    result = search(TRUTH, given, {SEED: 0.5, "Other.": 0.9})
    assert (result.chosen, result.improved) == (1, False)


@pytest.mark.parametrize(("answer", "collapsed"), [("aaaaaaaa", True), ("aabbaaaa", False)])
def test_both_prompts_say_how_many_labels_they_answered(answer: str, *, collapsed: bool) -> None:
    """The result has the number of answered labels of both prompts on the test rows."""
    given = {SEED: {"validation": "aaaaaaaa", "test": answer * 4}, "Good.": GOOD}
    result = search(TRUTH, given, {SEED: 0.5, "Good.": 0.9})
    seed, best = result.seed_prompt, result.best_prompt
    assert seed.answered_labels is not None
    assert best.answered_labels is not None
    assert (seed.answered_labels.collapsed, best.answered_labels.collapsed) == (collapsed, False)
    assert (str(best.answered_labels), best.macro_f1) == ("4 of 4", 1.0)
