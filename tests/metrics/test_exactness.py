"""Tests of every metric against scikit-learn or its definition, to 1e-12."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as peer

from calibrant.core import ConfigurationError
from calibrant.metrics import (
    aurc,
    auroc,
    brier_score,
    excess_aurc,
    expected_calibration_error,
    holm,
    log_loss,
    multiclass_brier_score,
    multiclass_log_loss,
    selective_accuracy,
)
from calibrant.metrics._confidence import resampled_calibration_errors

Array = NDArray[np.float64]
EXACT = {"rel": 0.0, "abs": 1e-12}
KINDS = ("random", "tied", "saturated")


def rows(kind: str, seed: int, n: int = 301) -> tuple[Array, Array]:
    """Return confidence and correctness; the kind "saturated" has 70 % at exactly 1."""
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    if kind == "tied":
        p = np.round(p, 1)
    if kind == "saturated":
        p = np.where(rng.random(n) < 0.7, 1.0, p)
    return p, (rng.random(n) < 0.2 + 0.7 * p).astype(float)


def top_errors(p: Array, y: Array, k: int) -> float:
    """Return the expected errors among the k most confident rows, over all orders of ties."""
    errors, left = Fraction(0), k
    for value in sorted(set(p.tolist()), reverse=True):
        group = y[p == value]
        taken = min(left, len(group))
        errors += Fraction(int((1 - group).sum()) * taken, len(group))
        left -= taken
    return float(errors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_scikit_learn(kind: str, seed: int) -> None:
    """Brier score, AUROC and log loss equal scikit-learn's."""
    p, y = rows(kind, seed)
    assert brier_score(p, y) == pytest.approx(peer.brier_score_loss(y, p), **EXACT)
    assert auroc(p, y) == pytest.approx(peer.roc_auc_score(y, p), **EXACT)
    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    assert log_loss(p, y) == pytest.approx(peer.log_loss(y, clipped), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_ranking_metrics_equal_their_definitions(kind: str, seed: int) -> None:
    """AURC, excess AURC and selective accuracy equal their definitions, with expected ties."""
    p, y = rows(kind, seed, n=97)
    n, m = len(p), int((1 - y).sum())
    area = math.fsum(top_errors(p, y, k) / k for k in range(1, n + 1)) / n
    perfect = math.fsum(max(0, k - (n - m)) / k for k in range(1, n + 1)) / n
    assert aurc(p, y) == pytest.approx(area, **EXACT)
    assert excess_aurc(p, y) == pytest.approx(area - perfect, **EXACT)
    for coverage in (0.001, 0.1, 0.5, 0.93, 1.0):
        k = math.ceil(coverage * n - 1e-9)
        expected = 1 - top_errors(p, y, k) / k
        assert selective_accuracy(p, y, coverage=coverage) == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("n_bins", [1, 2, 15])
def test_calibration_error_equals_its_definition(kind: str, strategy: str, n_bins: int) -> None:
    """The ECE equals its definition with bins (lo, hi], uniform or between quantiles."""
    p, y = rows(kind, 4)
    p[:3] = [0.0, 0.2, 0.4]
    steps = np.linspace(0, 1, n_bins + 1)
    edges = steps if strategy == "uniform" else np.unique(np.quantile(p, steps))
    total = 0.0
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        inside = ((p > low) | ((i == 0) & (p == low))) & (p <= high)
        if inside.any():
            total += inside.sum() / len(p) * abs(p[inside].mean() - y[inside].mean())
    found = expected_calibration_error(p, y, n_bins=n_bins, strategy=strategy)  # type: ignore[arg-type]
    assert found == pytest.approx(total, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_samples_are_those_of_their_rows(kind: str) -> None:
    """The calibration error of each sample equals that of its rows handed in alone."""
    p, y = rows(kind, 4)
    rng = np.random.default_rng(7)
    samples = [rng.integers(0, len(p), size=size) for size in (1, 3, len(p), 2 * len(p))]
    alone = [expected_calibration_error(p[places], y[places], n_bins=7) for places in samples]
    assert resampled_calibration_errors(p, y, samples, n_bins=7) == pytest.approx(alone, **EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_distributions_equal_scikit_learn(seed: int) -> None:
    """The halved multiclass Brier score equals scikit-learn's, and log loss its definition."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.3] * 4, size=200)
    p[:20] = np.eye(4)[rng.integers(0, 4, 20)]
    answers = rng.integers(0, 4, 200)
    labels = range(4)
    halved = peer.brier_score_loss(answers, p, labels=labels, scale_by_half=True)
    assert multiclass_brier_score(p, answers) == pytest.approx(halved, **EXACT)
    written = np.mean(
        [-math.log(min(max(row[a], 1e-6), 1 - 1e-6)) for row, a in zip(p, answers, strict=True)]
    )
    assert multiclass_log_loss(p, answers) == pytest.approx(written, **EXACT)


def test_two_labels_give_the_brier_score_of_one() -> None:
    """The Brier score of two labels equals that of one confidence."""
    p, y = rows("saturated", 1)
    both = np.stack([1 - p, p], axis=1)
    assert multiclass_brier_score(both, y.astype(int)) == pytest.approx(brier_score(p, y), **EXACT)
    assert multiclass_brier_score([[1.0 + 9e-7, -9e-7]], [0]) == 0.0  # rounding is forgiven


@pytest.mark.parametrize("seed", range(5))
def test_holm_equals_its_definition(seed: int) -> None:
    """Holm's adjusted values equal their definition, with ties."""
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(9) ** 3, 2)
    adjusted = holm(p)
    m = len(p)
    for i, value in enumerate(p):
        smaller = sorted(p[p <= value])
        expected = min(1.0, max((m - j) * q for j, q in enumerate(smaller)))
        assert adjusted[i] == pytest.approx(expected, **EXACT)


def test_holm_of_one_changes_nothing_and_never_passes_one() -> None:
    """A single p-value is unchanged by Holm's method, and no adjusted value passes 1."""
    assert holm([0.03]).tolist() == [0.03]
    assert holm([0.5, 0.9, 1.0]).tolist() == [1.0, 1.0, 1.0]
    assert holm([0.0, 0.0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("values", [[math.nan], [0.1, -0.1], [1.1]])
def test_holm_rejects_what_is_no_list_of_p_values(values: list[float]) -> None:
    """NaN and p-values outside [0, 1] raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        holm(values)


@pytest.mark.parametrize(
    ("p", "answers"),
    [
        ([[1.0]], [0]),
        ([[0.5, 0.5], [1.0]], [0, 0]),
        ([[0.5, math.nan]], [0]),
        ([[0.5, 0.4]], [0]),
        ([[0.5, 0.5]], [2]),
        ([[0.5, 0.5]], [0.0]),
    ],
)
def test_bad_distributions_are_refused(p: Any, answers: Any) -> None:
    """Bad distributions or answers raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        multiclass_brier_score(p, answers)
    with pytest.raises(ConfigurationError, match="Expected"):
        multiclass_log_loss(p, answers)


def test_a_perfect_ranking_has_no_excess() -> None:
    """Perfect rankings, and rows that are all right or all wrong, have an excess AURC of 0."""
    p, y = rows("random", 0)
    assert excess_aurc(y, y) == pytest.approx(0.0, **EXACT)
    assert excess_aurc(p, np.ones_like(p)) == 0.0
    assert excess_aurc(p, np.zeros_like(p)) == pytest.approx(0.0, **EXACT)


@pytest.mark.parametrize("metric", [multiclass_brier_score, multiclass_log_loss])
def test_too_few_answers_are_counted(metric: Any) -> None:
    """The message speaks of rows: these are probabilities, and their logarithms elsewhere."""
    with pytest.raises(ConfigurationError, match=r"answers of shape \(2,\), one per row, got \(1,\)"):
        metric([[0.5, 0.5], [0.1, 0.9]], [0])
