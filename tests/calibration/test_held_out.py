"""Tests of `held_out_answer_probability`: improbable answers, judged by the other rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.calibration._scaling import held_out_answer_probability
from calibrant.core import ConfigurationError

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


def confused(n: int = 400, seed: int = 0) -> tuple[Floats, Places]:
    """Return predictions and answers of which label 2 is given as 1 every other time."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    given = np.where((truth == 2) & (rng.random(n) < 0.5), 1, truth)
    p = rng.uniform(0.8, 0.99, n)
    rows = np.repeat(((1 - p) / 2)[:, None], 3, axis=1)
    rows[np.arange(n), given] = p
    return np.log(rows), truth


def test_planted_errors_come_first() -> None:
    """Six planted errors have the lowest probabilities, below the classifier's own errors."""
    rows, truth = confused()
    answers = truth.copy()
    planted = np.flatnonzero((truth == 0) & (rows.argmax(axis=1) == 0))[:6]
    answers[planted] = 1
    found = held_out_answer_probability(rows, answers)
    assert set(np.argsort(found)[:6]) == set(planted)
    assert ((rows.argmax(axis=1) != answers).sum() - 6) > 60


def test_a_frequent_confusion_is_probable() -> None:
    """The mean probability of a frequent confusion is its observed share, within 0.05."""
    rows, truth = confused()
    found = held_out_answer_probability(rows, truth)
    taken_for_1 = (truth == 2) & (rows.argmax(axis=1) == 1)
    share = taken_for_1.sum() / (rows.argmax(axis=1) == 1).sum()
    assert found[taken_for_1].mean() == pytest.approx(share, abs=0.05)


def test_a_row_does_not_judge_itself() -> None:
    """Answers unrelated to the rows have lower log-probabilities than chance on average."""
    rng = np.random.default_rng(1)
    rows, answers = rng.normal(size=(60, 12)), rng.integers(0, 12, 60)
    found = held_out_answer_probability(rows, answers)
    assert np.log(found).mean() < np.log(1 / 12)


def test_a_preference_for_a_label_is_divided_out() -> None:
    """A constant added to one label's scores hardly changes the result."""
    rows, truth = confused()
    found = held_out_answer_probability(rows, truth)
    leaning = held_out_answer_probability(rows + np.array([3.0, 0.0, 0.0]), truth)
    assert np.corrcoef(np.log(found), np.log(leaning))[0, 1] > 0.95


def test_equal_calls_agree() -> None:
    """Equal calls give equal numbers, and another seed gives others."""
    rows, truth = confused(60)
    found = held_out_answer_probability(rows, truth)
    assert np.array_equal(found, held_out_answer_probability(rows, truth))
    assert not np.array_equal(found, held_out_answer_probability(rows, truth, rng=1))


@pytest.mark.parametrize("n", [2, 3, 7])
def test_few_rows_have_numbers(n: int) -> None:
    """Few rows have probabilities in (0, 1], and a single row raises ConfigurationError."""
    rows, _ = confused(n)
    found = held_out_answer_probability(rows, np.arange(n) % 3)
    assert ((found > 0) & (found <= 1)).all()
    with pytest.raises(ConfigurationError, match="Expected at least two rows"):
        held_out_answer_probability([[-1.0, -2.0]], [0])
