"""Tests of certificates on a file's rows: validity, the rows asked about, and early ends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from calibrant.calibration import certify
from calibrant.core import ConfigurationError

DELTA = 0.1

Metric = Literal["accuracy", "output", "recall"]


def right_always(_: int) -> bool:
    """Return True."""
    return True


def asker(right: np.ndarray[Any, Any], asked: list[int]) -> Callable[[int], bool]:
    """Return a source of labels that notes what it is asked."""

    def ask(row: int) -> bool:
        asked.append(row)
        return bool(right[row])

    return ask


@pytest.mark.parametrize("metric", ["accuracy", "output"])
@pytest.mark.parametrize("n_wrong", [6, 7, 9])
def test_a_promise_that_is_false_is_seldom_made(metric: str, n_wrong: int) -> None:
    """Of all the ways to place a wrong answer too many among 14 rows, at most delta end in a promise that is false."""
    n, target = 14, 0.6
    false, ways = 0, 0
    for wrong in combinations(range(n), n_wrong):
        right = np.ones(n)
        right[list(wrong)] = 0.0
        found = certify([0.9] * n, asker(right, []), target=target, delta=DELTA, metric=metric, budget=n)  # type: ignore[arg-type]
        allowed = (1.0 - target) * (n if metric == "output" else found.accepted.sum())
        false += (right[found.accepted] == 0.0).sum() > allowed + 1e-9
        ways += 1
    assert false / ways <= DELTA
    assert n_wrong > 6 or false > 0  # the test spends what it is allowed


def test_a_file_without_mistakes_costs_few_labels() -> None:
    """Accepting everything takes a tenth of the rows, and no row is asked about twice."""
    asked: list[int] = []
    found = certify(np.linspace(0.5, 1.0, 2000), asker(np.ones(2000), asked), target=0.95, budget=300)
    assert (found.certified, found.kept, found.threshold) == (True, 1.0, 0.5)
    assert found.labels_used == len(asked) == len(set(asked)) < 200


def test_labels_of_a_whole_set_decide_it_exactly() -> None:
    """With every row of a small file labelled, what is accepted has the accuracy promised, to the row."""
    right = np.r_[np.ones(36), np.zeros(4)]
    found = certify(np.full(40, 0.9), asker(right, []), target=0.9, delta=1e-9, budget=40)
    assert found.kept == 1.0
    worse = np.r_[np.ones(35), np.zeros(5)]
    assert not certify(np.full(40, 0.9), asker(worse, []), target=0.9, delta=1e-9, budget=40).certified


def test_the_first_labels_cost_what_the_likelihood_says() -> None:
    """All right, a set is accepted once the likelihood ratio of both hypotheses reaches 1/delta."""
    n, allowed = 500, 50
    ratio, labels = 1.0, 0
    while ratio < 1.0 / DELTA:
        missed = (allowed + 1) / (n - labels)
        ratio *= (1.0 - 0.3 * missed) / (1.0 - missed)
        labels += 1
    found = certify(np.full(n, 0.8), right_always, target=0.9, budget=labels)
    assert found.certified
    assert not certify(np.full(n, 0.8), right_always, target=0.9, budget=20).certified
    # No test that looks at these labels once can do with fewer: the chance of none wrong, one more than allowed there.
    assert hypergeom.cdf(0, n, allowed + 1, labels) < DELTA


def test_the_surest_rows_are_accepted_first() -> None:
    """Rows with mistakes below the accepted ones stay out, and those without a confidence always do."""
    confidence = np.r_[np.full(300, 0.95), np.full(300, 0.55), np.full(20, np.nan)]
    right = np.r_[np.ones(300), np.tile([1.0, 0.0], 150), np.ones(20)]
    found = certify(confidence, asker(right, []), target=0.9, budget=300)
    assert found.accepted[:300].sum() > 290
    assert 0.45 < found.kept < 0.65
    assert not found.accepted[600:].any()
    assert found.threshold is not None
    assert (confidence[found.accepted] >= found.threshold).all()


def test_the_rows_not_accepted_count_where_they_get_the_label() -> None:
    """The output as a whole keeps a target with more mistakes among the accepted rows than these alone may have."""
    right = np.tile([1.0, 1.0, 1.0, 1.0, 0.0], 200)
    ask = asker(right, [])
    confidence = np.linspace(1.0, 0.5, 1000)
    assert certify(confidence, ask, target=0.95, budget=300).kept == 0.0
    found = certify(confidence, ask, target=0.9, budget=300, metric="output")
    assert found.kept > 0.2
    assert (right[found.accepted] == 0.0).sum() <= 100


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 80),
    st.sampled_from([0.7, 0.9]),
    st.sampled_from(["accuracy", "recall"]),
)
def test_no_more_labels_are_asked_for_than_allowed(
    seed: int, budget: int, target: float, metric: Metric
) -> None:
    """Whatever the labels, the budget holds, rows are asked about once, and the same labels give the same result."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 120))
    confidence, right = rng.choice([0.2, 0.5, 0.9, np.nan], n), rng.random(n) < 0.8
    asked: list[int] = []
    found = certify(confidence, asker(right, asked), target=target, budget=budget, metric=metric)
    assert found.labels_used == len(asked) == len(set(asked)) <= budget
    again = certify(confidence, asker(right, []), target=target, budget=budget, metric=metric)
    assert (again.accepted == found.accepted).all()
    accepted = found.accepted
    assert found.certified == (not accepted.all() if metric == "recall" else accepted.any())


def test_what_cannot_be_shown_is_not_asked_for() -> None:
    """A budget that could not prove the promise asks for nothing and names what it takes; hopeless rows end early."""
    asked: list[int] = []
    found = certify(np.full(1000, 0.9), asker(np.ones(1000), asked), target=0.95, budget=30)
    assert (found.certified, asked) == (False, [])
    assert "at least 48 labels" in found.reason
    found = certify(np.full(1000, 0.9), asker(np.zeros(1000), asked), target=0.95, budget=900)
    assert not found.certified
    assert len(asked) < 30
    halves = np.tile([1.0, 0.0], 1000)
    assert certify(np.full(2000, 0.9), asker(halves, []), target=0.9, budget=1800).labels_used < 20


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"confidence": []}, "shape"),
        ({"confidence": [1.5]}, "confidences in"),
        ({"target": 1.0}, "target"),
        ({"delta": 0.0}, "delta"),
        ({"budget": 0}, "budget"),
        ({"budget": 2.5}, "budget"),
        ({"metric": "f1"}, "metric"),
        ({"inputs": ["a", "b"]}, "input for each"),
        ({"key": ""}, "key"),
        ({"ask": lambda _: "yes"}, "ask to return"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], named: str) -> None:
    """Values out of range are refused with their name."""
    values: dict[str, Any] = {
        "confidence": [0.9],
        "ask": right_always,
        "target": 0.5,
        "budget": 5,
        **given,
    }
    with pytest.raises(ConfigurationError, match=named):
        certify(values.pop("confidence"), values.pop("ask"), **values)
