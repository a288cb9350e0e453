"""Tests of ECE, Brier score, AUROC, AURC and selective accuracy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from calibrant.core import ConfigurationError
from calibrant.metrics import (
    aurc,
    auroc,
    auroc_interval,
    brier_score,
    excess_aurc,
    expected_calibration_error,
    log_loss,
    selective_accuracy,
)
from calibrant.reports import write_report


def _saturated(seed: int, n: int = 200) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rows with most confidences at exactly 1, and the others on a coarse grid."""
    rng = np.random.default_rng(seed)
    p = np.where(rng.random(n) < 0.6, 1.0, np.round(rng.beta(5, 1, n), 2))
    return p, (rng.random(n) < 0.3 + 0.6 * p).astype(float)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("value", [0.0, 0.2, 1.0])
def test_ece_of_a_constant_confidence_is_its_gap(strategy: Any, value: float) -> None:
    """The ECE of a constant confidence is its distance from the accuracy."""
    found = expected_calibration_error(confidence=[value] * 4, correct=[1, 0, 0, 0], strategy=strategy)
    assert found == pytest.approx(abs(value - 0.25))


def test_ece_defaults_to_fifteen_uniform_bins() -> None:
    """By default the ECE has fifteen uniform bins."""
    p, y = _saturated(3)
    explicit = expected_calibration_error(confidence=p, correct=y, n_bins=15, strategy="uniform")
    assert expected_calibration_error(confidence=p, correct=y) == explicit


@pytest.mark.parametrize("options", [{"strategy": "kmeans"}, {"n_bins": 0}])
def test_ece_rejects_unknown_bins(options: dict[str, Any]) -> None:
    """An unknown strategy, or no bin, raises ConfigurationError that names the option."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        expected_calibration_error(confidence=[0.5], correct=[1], **options)


@pytest.mark.parametrize(("correct", "what"), [([1, 1], "right"), ([0, 0], "wrong")])
def test_auroc_with_one_kind_of_row_is_undefined(correct: list[int], what: str) -> None:
    """The AUROC of rows that are all right or all wrong raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=f"undefined: all 2 rows are {what}"):
        auroc(confidence=[0.1, 0.2], correct=correct)


@pytest.mark.parametrize("is_fooled", [False, True])
def test_the_interval_of_auroc_solves_its_equation(is_fooled: bool) -> None:
    """Each end lies z standard errors from the estimate: its own, or those of all pairs of rows if they are larger."""
    p, y = _saturated(0, 60)
    if is_fooled:
        p = np.where(y == 1, 0.9, np.arange(60) % 2)
    found = auroc_interval(p, y)
    m, n = y.sum(), (1 - y).sum()
    assert found.estimate == auroc(p, y)
    assert auroc_interval(pl.Series(p), pl.Series(y)) == found
    pairs = np.sign(p[y == 1][:, None] - p[y == 0]) / 2 + 0.5
    of_pairs = pairs.mean(axis=1).var(ddof=1) / m + pairs.mean(axis=0).var(ddof=1) / n
    for end in (found.lower, found.upper):
        spread = 1 + ((m + n) / 2 - 1) * ((1 - end) / (2 - end) + end / (1 + end))
        own = end * (1 - end) * spread / (m * n)
        assert (found.estimate - end) ** 2 == pytest.approx(1.959964**2 * max(own, of_pairs))
    assert found.lower < found.estimate < found.upper


def test_the_interval_of_auroc_holds_with_wrong_rows_of_two_kinds() -> None:
    """Where wrong rows are the surest or the least sure of all, it covers the true value about as often as it says."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        y = (rng.random(300) < 0.85).astype(int)
        wrong = np.where(rng.random(300) < 0.5, 1.0, 0.6)
        found = auroc_interval(np.where(y == 1, 0.9, wrong), y)
        covered += found.lower <= 0.5 <= found.upper
    assert covered >= 0.91 * 400  # 0.78 without the variance of the ranks


def test_a_perfect_ranking_of_few_rows_is_uncertain() -> None:
    """The interval of a perfect AUROC of few rows reaches below 1, and that of 0 above 0."""
    best, worst = auroc_interval([0.9, 0.8, 0.7, 0.2], [1, 1, 1, 0]), auroc_interval([0.1, 0.9], [1, 0])
    assert (best.estimate, best.upper) == (1.0, 1.0)
    assert best.lower == pytest.approx(0.3216, abs=1e-4)
    assert (worst.estimate, worst.lower) == (0.0, 0.0)
    assert worst.upper == pytest.approx(0.7935, abs=1e-4)


def test_the_interval_of_auroc_covers_as_often_as_it_says() -> None:
    """At least 275 of 300 intervals hold the true AUROC of 0.760."""
    rng = np.random.default_rng(0)
    y = np.repeat([1, 0], [40, 15])
    held = 0
    for _ in range(300):
        found = auroc_interval(1 / (1 + np.exp(-rng.normal(y, 1.0))), y)
        held += found.lower <= 0.76025 <= found.upper
    assert 275 <= held <= 297


def remarks(folder: Path, confidence: list[float], correct: list[int], *, low: int = 0) -> list[str]:
    """Return the remarks in a report on rows, the first of which have a low label mass."""
    same = {"input": "purrs", "answer": "yes", "space": "raw"}
    rows = [
        {**same, "label": "yes" if y else "no", "confidence": p, "label_mass": 0.1 if place < low else 1.0}
        for place, (p, y) in enumerate(zip(confidence, correct, strict=True))
    ]
    (folder / "predictions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    page = write_report(folder).read_text(encoding="utf-8")
    found = re.findall(r'<p class="remark" role="note">([^<]*)</p>', page)
    return [remark for remark in found if "not finished" not in remark]


def test_a_ranking_worse_than_chance_gets_a_sentence(tmp_path: Path) -> None:
    """An AUROC below 0.5 gives a remark, a plainer one if its interval lies below 0.5."""
    (few,) = remarks(tmp_path, [0.9, 0.8, 0.7], [0, 1, 1])
    assert few.startswith("Confidence does not tell right from wrong answers here: in 100% of")
    low, many = remarks(tmp_path, [0.9] * 30 + [0.8] * 30, [0] * 30 + [1] * 30, low=7)
    assert low.startswith("The model wanted to write something else on 7 of 60 rows (label mass below 0.5)")
    assert many.startswith("Confidence ranks backwards: ")
    assert "AUROC 0.000, 95% interval 0.000 to " in many
    assert remarks(tmp_path, [0.5, 0.5], [0, 1]) == remarks(tmp_path, [0.5], [1]) == []


def test_a_coverage_that_is_whole_up_to_rounding_does_not_round_up() -> None:
    """A coverage of 0.07 accepts 7 of 100 rows, although 0.07 * 100 is above 7."""
    assert 0.07 * 100 > 7
    p = np.linspace(1.0, 0.0, 100)
    y = np.ones(100)
    y[7] = 0
    assert selective_accuracy(confidence=p, correct=y, coverage=0.07) == 1.0


def test_coverage_must_be_a_share() -> None:
    """A coverage of 0 raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"coverage in \(0, 1\], got 0.0"):
        selective_accuracy(confidence=[0.5], correct=[1], coverage=0.0)


def _selective(**rows: Any) -> float:
    return selective_accuracy(**rows, coverage=0.5)


METRICS = [expected_calibration_error, brier_score, auroc, aurc, excess_aurc, log_loss, _selective]


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([], [], "at least one row"),
        ([0.5, math.nan], [0, 1], "row 1"),
        ([0.5, "x"], [0, 1], "numbers"),
        ([0.5, 1.001], [0, 1], "row 1"),
        ([-0.001, 0.5], [0, 1], "row 0"),
        ([0.5, 0.5], [0, 2], "only 0 and 1"),
        ([0.5, 0.5, 0.5], [0, 1], "same length"),
        ([[0.5, 0.5]], [0, 1], "shape"),
    ],
)
def test_bad_rows_are_errors_that_say_where(confidence: Any, correct: Any, message: str) -> None:
    """Bad confidences or correctness raise ConfigurationError that names the row."""
    with pytest.raises(ConfigurationError, match=message):
        brier_score(confidence, correct)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_checks_its_rows(metric: Callable[..., float]) -> None:
    """NaN raises ConfigurationError with the row in every metric."""
    with pytest.raises(ConfigurationError, match="row 1"):
        metric(confidence=[0.5, math.nan], correct=[0, 1])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.0, r"coverage in \(0, 1\], got 0.0: choose a value in that range"),
        (math.nan, "got nan"),
        (10**400, "coverage in"),
        (True, "coverage to be a number"),
        ("1", "got '1' .str."),
    ],
)
def test_numbers_outside_of_their_interval_are_refused(value: Any, message: str) -> None:
    """A coverage outside its interval raises ConfigurationError that names it."""
    with pytest.raises(ConfigurationError, match=message):
        selective_accuracy(confidence=[0.5, 0.6], correct=[0, 1], coverage=value)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(0.5), np.int64(1)])
def test_numbers_of_any_real_type_are_taken(value: Any) -> None:
    """Every real type is taken, with the closed end of its interval."""
    found = selective_accuracy(confidence=[0.5, 0.6], correct=[0, 1], coverage=value)
    assert found == (1.0 if value < 1 else 0.5)


@pytest.mark.parametrize("metric", METRICS)
def test_probabilities_just_outside_the_range_are_clipped(metric: Callable[..., float]) -> None:
    """Confidences up to 1e-6 outside [0, 1] are clipped in every metric."""
    rounded = metric(confidence=[1.0 + 1e-6, 1.0, 0.5, -1e-7], correct=[0, 1, 1, 0])
    assert rounded == metric(confidence=[1.0, 1.0, 0.5, 0.0], correct=[0, 1, 1, 0])


@pytest.mark.parametrize("metric", METRICS)
def test_booleans_and_lists_are_welcome_and_nothing_is_changed(metric: Callable[..., float]) -> None:
    """Every metric takes arrays, lists and booleans, returns a float and changes no argument."""
    p, y = np.array([0.9, 1.0000001, 0.3]), np.array([True, False, True])
    found = metric(confidence=p, correct=y)
    assert type(found) is float
    assert p.tolist() == [0.9, 1.0000001, 0.3]
    assert metric(confidence=p.tolist(), correct=[1, 0, 1]) == found
