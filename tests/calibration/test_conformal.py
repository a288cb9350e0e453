"""Tests of conformal prediction sets: they hold the true label as often as promised."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.calibration import ConformalSets
from calibrant.core import ConfigurationError, NotFittedError

pytest.importorskip("mapie")


def draw(seed: int, n: int, n_labels: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return log-probabilities of a model that is too sure of itself, and the true labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (n, n_labels))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    answers = (rng.random((n, 1)) > chances.cumsum(axis=1)).sum(axis=1)
    return 3.0 * logits, np.minimum(answers, n_labels - 1)


@pytest.mark.parametrize(("method", "n_labels"), [("lac", 2), ("lac", 5), ("aps", 5)])
def test_sets_hold_the_true_label_as_often_as_promised(method: Any, n_labels: int) -> None:
    """Sets hold the true label as often as the level says, for wrong probabilities too."""
    conformal = ConformalSets(method).fit(*draw(0, 2000, n_labels))
    rows, answers = draw(1, 4000, n_labels)
    for level in (0.8, 0.95):
        sets = conformal.predict(rows, level=level)
        assert sets.shape == rows.shape
        assert sets.dtype == bool
        covered = sets[np.arange(4000), answers].mean()
        assert covered >= level - 0.02  # two standard errors of both samples together
        if method == "lac":
            assert covered <= level + 0.02


def test_lac_is_one_threshold_on_the_probability_of_the_true_label() -> None:
    """LAC's sets equal those of the written-out quantile of 1 - p."""
    rows, answers = draw(2, 99, 4)
    p = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    quantile = np.sort(1.0 - p[np.arange(99), answers])[int(np.ceil(100 * 0.9)) - 1]
    new, _ = draw(3, 50, 4)
    q = np.exp(new) / np.exp(new).sum(axis=1, keepdims=True)
    expected = 1.0 - q <= quantile + 1e-9
    assert np.array_equal(ConformalSets().fit(rows, answers).predict(new), expected)


def test_a_higher_level_never_makes_a_set_smaller() -> None:
    """Every set at level 0.7 is part of the set at level 0.95."""
    conformal = ConformalSets().fit(*draw(4, 500, 4))
    rows, _ = draw(5, 100, 4)
    small, large = conformal.predict(rows, level=0.7), conformal.predict(rows, level=0.95)
    assert (small <= large).all()
    assert small.sum() < large.sum()


def test_too_few_rows_for_a_level_are_refused_with_how_many_are_needed() -> None:
    """At level 95 %, 20 rows are accepted and 19 raise ConfigurationError."""
    rows, answers = draw(6, 20, 3)
    assert ConformalSets().fit(rows, answers).predict(rows, level=0.95).any()
    with pytest.raises(ConfigurationError, match=r"at least 20 labelled rows at level 0\.95, got 19"):
        ConformalSets().fit(rows[:19], answers[:19]).predict(rows, level=0.95)


def test_bad_input_is_refused() -> None:
    """Bad arguments raise ConfigurationError, and an unfitted object raises NotFittedError."""
    rows, answers = draw(7, 50, 3)
    with pytest.raises(NotFittedError, match="call fit first"):
        ConformalSets().predict(rows)
    with pytest.raises(ConfigurationError, match="'lac' or 'aps'"):
        ConformalSets("raps")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="three labels"):
        ConformalSets("aps").fit(rows[:, :2], np.zeros(50, dtype=int))
    with pytest.raises(ConfigurationError, match="finite"):
        ConformalSets().fit(np.full((5, 3), np.nan), [0] * 5)
    conformal = ConformalSets().fit(rows, answers)
    with pytest.raises(ConfigurationError, match="over 3 labels"):
        conformal.predict(rows[:, :2])
    with pytest.raises(ConfigurationError, match="level"):
        conformal.predict(rows, level=1.0)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without mapie, the constructor raises ConfigurationError with the install command."""
    monkeypatch.setitem(sys.modules, "mapie.classification", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[conformal\]"):
        ConformalSets()
