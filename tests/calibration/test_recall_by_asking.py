"""Tests of certificates on the recall of a label in a file: validity, rows left out, and early ends."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.calibration import AskedCertificate, certify

DELTA = 0.1
KEYS = 400

Floats = NDArray[np.float64]


def certified(
    probability: Floats,
    has_label: Floats,
    *,
    target: float,
    budget: int,
    delta: float = DELTA,
    key: str = "a",
) -> AskedCertificate:
    """Return the certificate on the recall of a label that rows have where `has_label` is 1."""
    return certify(
        probability,
        lambda row: bool(has_label[row]),
        target=target,
        delta=delta,
        metric="recall",
        budget=budget,
        key=key,
    )


def recall(found: AskedCertificate, has_label: Floats) -> float:
    """Return the share of the label's rows that are accepted."""
    return float(has_label[found.accepted].sum() / has_label.sum())


def drawn_pile(n: int, *, seed: int) -> tuple[Floats, Floats]:
    """Return probabilities, and labels drawn from them."""
    rng = np.random.default_rng(seed)
    probability = 1.0 / (1.0 + np.exp(2.0 - 3.0 * rng.standard_normal(n)))
    return probability, (rng.random(n) < probability).astype(float)


@pytest.mark.parametrize(("target", "missed"), [(0.9, 6), (0.8, 13)])
def test_a_promise_that_is_false_is_seldom_made(target: float, missed: int) -> None:
    """Where the rows that the probabilities rule out hold one row too many, at most delta of the draws overlook it."""
    n, n_sure = 200, 50
    probability = np.r_[np.full(n_sure, 0.97), np.linspace(0.03, 0.01, n - n_sure)]
    has_label = np.r_[np.ones(n_sure), np.zeros(n - n_sure - missed), np.ones(missed)]
    results = [
        certified(probability, has_label, target=target, budget=120, key=f"key {number}")
        for number in range(KEYS)
    ]
    broken = np.mean([recall(found, has_label) < target - 1e-9 for found in results])
    assert broken <= DELTA + 2.0 * (DELTA * (1.0 - DELTA) / KEYS) ** 0.5
    assert broken > 0.03  # the tests spend what they are allowed


def test_rows_that_hold_nothing_are_left_out() -> None:
    """With probabilities that are right, 300 labels leave out four rows in ten, and few of the label's."""
    probability, has_label = drawn_pile(4000, seed=1)
    found = certified(probability, has_label, target=0.9, budget=300)
    assert found.certified
    assert found.kept < 0.6
    assert recall(found, has_label) >= 0.9
    assert found.threshold == probability[found.accepted].min()
    assert (probability[~found.accepted] <= found.threshold).all()
    assert found.labels_used == 300


def test_labels_of_all_rows_decide_exactly() -> None:
    """With every row labelled, no fewer rows than the target needs are accepted, and hardly more."""
    probability, has_label = drawn_pile(600, seed=2)
    found = certified(probability, has_label, target=0.9, budget=600, delta=1e-3)
    assert recall(found, has_label) >= 0.9
    surest = np.argsort(-probability)[: int(0.96 * found.accepted.sum())]
    assert has_label[surest].sum() < 0.9 * has_label.sum()


def test_wrong_probabilities_leave_out_less_and_promise_no_more() -> None:
    """Whatever the probabilities say, the promise holds; those that say nothing leave out a share of 1 - target."""
    _, has_label = drawn_pile(2000, seed=3)
    found = certified(np.full(2000, 0.3), has_label, target=0.8, budget=400)
    assert 0.8 < found.kept < 0.95
    assert recall(found, has_label) >= 0.8


def test_rows_without_a_probability_are_accepted() -> None:
    """A row that nothing is known of has to be looked at."""
    probability, has_label = drawn_pile(2000, seed=4)
    probability[:50] = np.nan
    found = certified(probability, has_label, target=0.9, budget=300)
    assert found.certified
    assert found.accepted[:50].all()


@pytest.mark.parametrize(("probability", "named"), [(0.02, "takes about"), (0.0, "nowhere")])
def test_what_cannot_be_shown_is_not_asked_for(probability: float, named: str) -> None:
    """Too small a budget, or a label that no row can have, asks for nothing, and all rows have to be looked at."""
    found = certified(np.full(3000, probability), np.zeros(3000), target=0.9, budget=30)
    assert named in found.reason
    assert (found.certified, found.labels_used) == (False, 0)
    assert (found.kept, found.threshold, bool(found.accepted.all())) == (1.0, None, True)


def test_more_labels_than_rows_are_not_asked_for() -> None:
    """Of a file that is too small, all rows are to be labelled, and no larger number is named."""
    found = certified(np.full(3, 0.5), np.zeros(3), target=0.9, budget=2)
    assert found.reason.endswith("as many labels as there are rows, 3: label them all, or promise less.")


def test_a_label_that_no_row_has_is_said() -> None:
    """The reason says that the label was never given."""
    found = certified(np.linspace(0.4, 0.2, 1000), np.zeros(1000), target=0.9, budget=200)
    assert found.reason == "None of 200 rows has the label."


def test_the_labels_that_it_takes_are_enough_where_probabilities_are_right() -> None:
    """A budget of as many labels as a refusal names leaves out rows."""
    probability, has_label = drawn_pile(3000, seed=5)
    refused = certified(probability, has_label, target=0.95, budget=5)
    budget = int(refused.reason.split("about ")[1].split(" labels")[0])
    results = [
        certified(probability, has_label, target=0.95, budget=2 * budget, key=f"{n}") for n in range(20)
    ]
    assert np.mean([found.certified for found in results]) > 0.8
