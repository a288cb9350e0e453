"""Tests of `select_calibrator`, on generated and on recorded rows."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from calibrant.calibration import IdentityCalibrator, PerLabelCalibrator, select_calibrator
from calibrant.core import ConfigurationError
from calibrant.metrics import brier_score, expected_calibration_error

Array = NDArray[np.float64]


def calibrated(n: int, seed: int = 0) -> tuple[Array, Array]:
    """Return rows whose confidence is their probability to be right."""
    rng = np.random.default_rng(seed)
    p = rng.beta(4, 1, n)
    return p, (rng.random(n) < p).astype(float)


@pytest.mark.parametrize("seed", range(5))
def test_confidence_that_means_what_it_says_is_left_alone(seed: int) -> None:
    """Calibrated confidence gets the calibrator that does nothing, with a reason."""
    p, y = calibrated(600, seed)
    found = select_calibrator(p, y, rng=seed)
    assert isinstance(found.calibrator, IdentityCalibrator)
    assert found.name == "none"
    assert found.reason.startswith("None: ")
    assert set(found.brier) == {"none", "platt", "isotonic", "temperature"}
    assert found.brier["none"] == pytest.approx(brier_score(p, y))


def test_confidence_that_is_too_high_is_calibrated_on_all_rows() -> None:
    """Confidence that is too high gets a calibrator, which is fitted on all rows."""
    p, y = calibrated(600)
    sure = np.sqrt(p)
    found = select_calibrator(sure, y, rng=1)
    assert found.name != "none"
    assert found.brier[found.name] < found.brier["none"]
    assert found.reason.startswith(f"{found.name.capitalize()}: the Brier score goes from")
    again = type(found.calibrator)().fit(sure, y)
    assert found.calibrator.predict(sure).tolist() == again.predict(sure).tolist()


def test_a_flexible_curve_must_beat_a_simple_one_by_more_than_chance() -> None:
    """A temperature is chosen for sharpened rows, and another curve only where it fits better."""
    rng = np.random.default_rng(0)
    p, y = calibrated(1_000)
    sharpened = p**3 / (p**3 + (1 - p) ** 3)
    assert select_calibrator(sharpened, y, rng=1).name == "temperature"
    assert select_calibrator(sharpened, (rng.random(1_000) < 0.2).astype(float)).name == "platt"
    bent = (rng.random(1_000) < np.where((p > 0.6) & (p < 0.9), 0.2, 0.9)).astype(float)
    assert select_calibrator(p, bent).name == "isotonic"


def test_copies_of_a_text_judge_no_curve_that_they_taught() -> None:
    """Of 60 texts that come five times each, an honest confidence is left alone; without names a curve is taken."""
    rng = np.random.default_rng(1)
    p = np.repeat(rng.uniform(0.5, 1.0, 60), 5)
    y = np.repeat(rng.random(60) < p[::5], 5).astype(int)
    texts = [f"Text {place // 5}" if place % 2 else f"text  {place // 5} " for place in range(300)]
    assert select_calibrator(p, y).name == "isotonic"
    found = select_calibrator(p, y, ids=texts)
    assert found.name == "none"
    one_each = select_calibrator(p[::5], y[::5], ids=range(60))
    assert found.brier["none"] == pytest.approx(one_each.brier["none"])


def test_folds_come_from_the_generator() -> None:
    """Equal seeds give equal scores, and a seed equals its generator."""
    p, y = calibrated(200)
    p = np.sqrt(p)
    one = select_calibrator(p, y, rng=3)
    assert select_calibrator(p, y, rng=3).brier == one.brier
    assert select_calibrator(p, y, rng=np.random.default_rng(3)).brier == one.brier
    assert select_calibrator(p, y, rng=4).brier != one.brier
    assert select_calibrator(p, y).brier == select_calibrator(p, y, rng=0).brier


def test_held_out_scores_come_from_other_rows() -> None:
    """On noise, the isotonic Brier score is worse on held-out rows than on its own rows."""
    rng = np.random.default_rng(0)
    p, y = np.linspace(0.3, 0.7, 60), (rng.random(60) < 0.5).astype(float)
    curve = IsotonicRegression(out_of_bounds="clip").fit(p, y)
    assert brier_score(curve.predict(p), y) < brier_score(p, y)
    assert select_calibrator(p, y).brier["isotonic"] > brier_score(curve.predict(p), y) + 0.01


def test_labels_of_opposite_bias_have_their_own_calibrators() -> None:
    """Labels of opposite bias get a calibrator per label, if there are enough rows."""
    rng = np.random.default_rng(0)
    truth = rng.beta(3, 2, 1_000)
    y = (rng.random(1_000) < truth).astype(float)
    names = ["sure", "shy"] * 500
    p = np.where(np.array(names) == "sure", truth**0.3, truth**2.5)
    found = select_calibrator(p, y, predicted=names)
    assert found.name.endswith(" per label")
    assert isinstance(found.calibrator, PerLabelCalibrator)
    assert set(found.calibrator.by_label_) == {"sure", "shy"}
    few = select_calibrator(p[:90], y[:90], predicted=names[:90])
    assert not any("per label" in name for name in few.brier)


@pytest.mark.parametrize("y", [[1], [0], [1, 1, 1], [0, 0, 0], [1, 0, 0, 0], [1, 0]])
def test_rows_of_one_kind_are_left_alone(y: list[int]) -> None:
    """Fewer than two right or two wrong rows get no calibrator, and the reason says so."""
    p = np.linspace(0.9, 1.0, len(y))
    found = select_calibrator(p, y)
    assert found.name == "none"
    assert "at least 2 right and 2 wrong rows" in found.reason
    assert found.calibrator.predict(p).tolist() == p.tolist()
    assert found.brier == {"none": pytest.approx(brier_score(p, y))}


def test_constant_confidence_is_judged_like_any_other() -> None:
    """A constant confidence of 1 is calibrated to the accuracy."""
    y = [1] * 80 + [0] * 20
    found = select_calibrator([1.0] * 100, y)
    assert found.name != "none"
    assert found.calibrator.predict([1.0]) == pytest.approx([0.8])


def test_the_chosen_calibrator_refuses_its_rows() -> None:
    """The chosen calibrator raises ConfigurationError for the rows that it was chosen on."""
    p, y = calibrated(100)
    for given in (p, np.sqrt(p)):
        found = select_calibrator(given, y, ids=range(100))
        with pytest.raises(ConfigurationError, match="that were not fitted"):
            found.calibrator.evaluate(given, y)
        with pytest.raises(ConfigurationError, match="got 1 of 1 that were"):
            found.calibrator.evaluate([0.3], [1], ids=[99])


@pytest.mark.parametrize(
    ("p", "y", "options"), [([0.5, 1.1], [1, 0], {}), ([0.5, 0.5], [1, 0], {"predicted": ["a"]})]
)
def test_bad_input_is_refused(p: Any, y: Any, options: dict[str, Any]) -> None:
    """A confidence out of range, or labels of other rows, raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        select_calibrator(p, y, **options)


# Recorded answers

RECORDED = Path(
    os.environ.get("CALIBRANT_RECORDED", Path(__file__).parents[3] / "shared" / "data" / "recorded")
)
SETS = [
    (name, prompt)
    for name in ("ag_news", "emotion", "rotten_tomatoes")
    for prompt in ("baseline", "default", "confidence")
]


def recorded(name: str, prompt: str) -> tuple[Array, Array, NDArray[Any]]:
    """Return recorded confidence, correctness and labels, or skip if the file is missing."""
    path = RECORDED / f"{name}.csv"
    if not path.is_file():
        pytest.skip(f"no recorded answers at {path}: name their folder in CALIBRANT_RECORDED")
    with path.open(newline="", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["prompt"] == prompt]
    return (
        np.array([float(row["probability"]) for row in found]),
        np.array([float(row["correct"] == "true") for row in found]),
        np.array([row["predicted"] for row in found]),
    )


@pytest.mark.parametrize(("name", "prompt"), SETS)
@pytest.mark.parametrize("by_label", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_recorded_confidence_is_calibrated(name: str, prompt: str, *, by_label: bool) -> None:
    """On recorded rows the Brier score never rises, and the ECE is within 0.02 of isotonic's."""
    p, y, names = recorded(name, prompt)
    behind = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(p))
        fit, test = order[: len(p) // 2], order[len(p) // 2 :]
        labels = (names[fit].tolist(), names[test].tolist()) if by_label else (None, None)
        chosen = select_calibrator(p[fit], y[fit], predicted=labels[0], rng=seed).calibrator
        q = chosen.predict(p[test], predicted=labels[1])
        peer = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(p[fit], y[fit])
        assert brier_score(q, y[test]) <= brier_score(p[test], y[test])
        isotonic = expected_calibration_error(peer.predict(p[test]), y[test])
        behind.append(expected_calibration_error(q, y[test]) - isotonic)
    assert np.mean(behind) <= 0.02
