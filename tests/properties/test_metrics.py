"""Tests of properties of the metrics, on drawn rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.metrics import (
    aurc,
    auroc,
    bootstrap_interval,
    brier_score,
    classification_summary,
    expected_calibration_error,
    paired_comparison,
    selective_accuracy,
    wilson_interval,
)

# Lazy imports and a busy machine make single examples slow.
unhurried = settings(deadline=None)

Rows = tuple[NDArray[np.float64], NDArray[np.float64]]

confidences = st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.5, 0.9, 1.0]))


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    """Draw confidences with many ties, and correctness."""
    pairs = draw(st.lists(st.tuples(confidences, st.booleans()), min_size=1, max_size=40))
    p, y = zip(*pairs, strict=True)
    return np.array(p), np.array(y, dtype=float)


@unhurried
@given(rows(), st.integers(1, 30), st.floats(1e-6, 1.0))
def test_metrics_ignore_the_order_of_rows(data: Rows, n_bins: int, coverage: float) -> None:
    """Metrics stay in [0, 1], and reversing the rows does not change them."""
    p, y = data
    for strategy in ("uniform", "quantile"):
        ece = expected_calibration_error(confidence=p, correct=y, n_bins=n_bins, strategy=strategy)
        reverse = expected_calibration_error(
            confidence=p[::-1], correct=y[::-1], n_bins=n_bins, strategy=strategy
        )
        assert 0.0 <= ece <= 1.0
        assert ece == pytest.approx(reverse)
        # The gap of the whole is at most the sum of the gaps of the parts.
        assert ece >= abs(p.mean() - y.mean()) - 1e-12
    for metric in (brier_score, aurc):
        value = metric(confidence=p, correct=y)
        assert -1e-12 <= value <= 1.0 + 1e-12
        assert value == pytest.approx(metric(confidence=p[::-1], correct=y[::-1]))
    assert selective_accuracy(confidence=p, correct=y, coverage=1.0) == pytest.approx(y.mean())
    kept = selective_accuracy(confidence=p, correct=y, coverage=coverage)
    assert -1e-12 <= kept <= 1.0 + 1e-12
    assert kept == pytest.approx(selective_accuracy(confidence=p[::-1], correct=y[::-1], coverage=coverage))


@unhurried
@given(rows())
def test_ranking_metrics_depend_on_order_alone(data: Rows) -> None:
    """AUROC and AURC stay the same under an increasing change of the confidences."""
    p, y = data
    _, rank = np.unique(p, return_inverse=True)
    stretched = (rank + 1.0) / (len(p) + 2.0)
    assert aurc(confidence=stretched, correct=y) == pytest.approx(aurc(confidence=p, correct=y))
    assume(0 < y.sum() < len(y))
    area = auroc(confidence=p, correct=y)
    assert auroc(confidence=stretched, correct=y) == pytest.approx(area)
    assert auroc(confidence=1.0 - stretched, correct=y) == pytest.approx(1.0 - area)


@unhurried
@given(rows())
def test_no_ranking_beats_right_rows_first(data: Rows) -> None:
    """Right rows first give the smallest AURC, and right rows last the largest."""
    p, y = data
    best, worst = aurc(confidence=y, correct=y), aurc(confidence=1.0 - y, correct=y)
    assert best - 1e-12 <= aurc(confidence=p, correct=y) <= worst + 1e-12


@unhurried
@given(st.integers(1, 10_000), st.data(), st.floats(0.01, 0.999))
def test_wilson_contains_the_estimate_and_mirrors(n: int, data: st.DataObject, level: float) -> None:
    """Wilson's interval contains the estimate, and is mirrored for failures."""
    successes = data.draw(st.integers(0, n))
    interval, mirror = wilson_interval(successes, n, level), wilson_interval(n - successes, n, level)
    assert 0.0 <= interval.lower <= interval.estimate <= interval.upper <= 1.0
    assert interval.lower == pytest.approx(1.0 - mirror.upper, abs=1e-12)


@unhurried
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.floats(0.1, 0.999))
def test_paired_comparison_is_antisymmetric(pairs: list[tuple[bool, bool]], level: float) -> None:
    """Swapping a and b mirrors the interval and keeps the p-value."""
    a, b = zip(*pairs, strict=True)
    forward, backward = paired_comparison(a, b, level), paired_comparison(b, a, level)
    assert -1.0 <= forward.interval.lower <= forward.difference <= forward.interval.upper <= 1.0
    assert forward.interval.lower == pytest.approx(-backward.interval.upper, abs=1e-12)
    assert 0.0 < forward.p_value == backward.p_value <= 1.0
    assert forward.difference == pytest.approx(np.mean(b) - np.mean(a))


@unhurried
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from(["percentile", "bca"]))
def test_bootstrap_intervals_stay_between_the_extremes(values: list[float], method: Any) -> None:
    """The bootstrap interval lies within the range of the values."""
    found = bootstrap_interval(values, method=method, n_resamples=200)
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert found.median is not None
    assert min(values) - slack <= found.lower <= found.upper <= max(values) + slack
    assert found.lower - slack <= found.median or method == "bca"


@unhurried
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.sampled_from("abcx"))),
        min_size=1,
        max_size=30,
    )
)
def test_confusion_counts_every_row_once(pairs: list[tuple[str, str | None]]) -> None:
    """Confusion counts, accuracy and supports equal those counted from the rows."""
    truth, predicted = zip(*pairs, strict=True)
    summary = classification_summary(truth, predicted, labels=["a", "b", "c"])
    assert summary.confusion.sum() + summary.other.sum() == len(pairs) == summary.n
    assert summary.accuracy == pytest.approx(np.mean([t == p for t, p in pairs]))
    assert [m.support for m in summary.per_label.values()] == [truth.count(label) for label in "abc"]
    for metrics in summary.per_label.values():
        if metrics.precision + metrics.recall > 0:
            harmonic = 2 * metrics.precision * metrics.recall / (metrics.precision + metrics.recall)
            assert metrics.f1 == pytest.approx(harmonic)
