"""Tests of Platt, isotonic and temperature calibrators of one confidence per row."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from calibrant.calibration import (
    ConfidenceCalibrator,
    IdentityCalibrator,
    IsotonicCalibrator,
    PerLabelCalibrator,
    PlattCalibrator,
    TemperatureCalibrator,
    load_calibrator,
)
from calibrant.core import (
    ConfigurationError,
    Fingerprint,
    LogprobSpace,
    MultiLabels,
    NotFittedError,
    StateError,
)
from calibrant.metrics import brier_score, expected_calibration_error, log_loss

Array = NDArray[np.float64]
LEARNING = [PlattCalibrator, IsotonicCalibrator, TemperatureCalibrator]
ALL = [IdentityCalibrator, *LEARNING, PerLabelCalibrator]
FINGERPRINT = Fingerprint(prompt="Sort.", model="local/tiny", space=LogprobSpace.MASKED, labels=("a", "b"))


def rows(seed: int = 0, n: int = 400) -> tuple[Array, Array]:
    """Return rows of a model that is too sure: half at exactly 1, most others on a coarse grid."""
    rng = np.random.default_rng(seed)
    p = np.where(rng.random(n) < 0.5, 1.0, np.round(rng.beta(4, 1, n), 2))
    return p, (rng.random(n) < 0.2 + 0.6 * p**3).astype(float)


def labels(n: int) -> list[str]:
    """Return predicted labels, a and b in turn."""
    return ["a", "b"] * (n // 2) + ["a"] * (n % 2)


def log_odds(p: Any) -> Array:
    """Return the log-odds of confidences, clipped as in the definition."""
    q = np.clip(p, 1e-6, 1 - 1e-6)
    return np.log(q / (1 - q))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [20, 400])
def test_platt_is_the_logistic_curve_of_greatest_likelihood_for_platts_targets(seed: int, n: int) -> None:
    """Platt's coefficients equal those of scikit-learn's regression on weighted rows."""
    p, y = rows(seed, n)
    found = PlattCalibrator().fit(p, y)
    right, wrong = (y.sum() + 1) / (y.sum() + 2), 1 / ((1 - y).sum() + 2)
    targets = np.where(y == 1, right, wrong)
    peer = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12)
    z = np.tile(log_odds(p), 2)[:, None]
    peer.fit(z, np.repeat([1, 0], n), sample_weight=np.concatenate([targets, 1 - targets]))
    gap = found.predict(p) - targets
    assert gap.mean() == pytest.approx(0.0, abs=1e-8)
    if peer.coef_[0, 0] < 0.0:  # the order of answers is not turned round
        assert found.slope_ == 0.0
        return
    assert found.slope_ == pytest.approx(peer.coef_[0, 0], abs=1e-5)
    assert found.intercept_ == pytest.approx(peer.intercept_[0], abs=1e-5)
    assert np.mean(gap * log_odds(p)) == pytest.approx(0.0, abs=1e-7)
    grid = np.linspace(0, 1, 11)
    assert found.predict(grid) == pytest.approx(expit(found.slope_ * log_odds(grid) + found.intercept_))


def test_separable_rows_prove_no_certainty_to_platt() -> None:
    """Platt gives (0 + 1) / (5 + 2) and (5 + 1) / (5 + 2) for five wrong and five right rows."""
    found = PlattCalibrator().fit(np.repeat([0.5, 0.9], 5), np.repeat([0.0, 1.0], 5))
    assert found.predict([0.5, 0.9]) == pytest.approx([1 / 7, 6 / 7], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_isotonic_is_scikit_learns(seed: int) -> None:
    """The isotonic calibrator predicts what scikit-learn's does within Laplace's bounds, to 1e-12."""
    p, y = rows(seed)
    inside = (p > 0.3) & (p < 1.0)
    for use in (np.ones_like(inside), inside):
        least = 1 / (use.sum() + 2)
        peer = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(p[use], y[use])
        found = IsotonicCalibrator().fit(p[use], y[use])
        grid = np.concatenate([np.linspace(0, 1, 1001), p])
        assert found.predict(grid) == pytest.approx(peer.predict(grid), rel=0, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_temperature_has_the_greatest_likelihood(seed: int) -> None:
    """A general minimiser of the written-out likelihood finds the same temperature."""
    p, y = rows(seed)
    z = log_odds(p)
    t = TemperatureCalibrator().fit(p, y)

    def loss(log_t: Array) -> float:
        return float(np.mean(np.logaddexp(0.0, z / np.exp(log_t[0])) - y * z / np.exp(log_t[0])))

    reference = minimize(loss, [0.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-15})
    assert t.temperature_ == pytest.approx(math.exp(reference.x[0]), rel=1e-5)
    assert t.predict([0.5, 0.9]) == pytest.approx([0.5, expit(log_odds(0.9) / t.temperature_)])


def test_a_temperature_by_hand() -> None:
    """The temperature is 2 where log(9) / T = log(3), and 1 / 2 for sharper rows."""
    assert TemperatureCalibrator().fit([0.9] * 4, [1, 1, 1, 0]).temperature_ == pytest.approx(2.0)
    assert TemperatureCalibrator().fit([0.5, 0.5, 0.5], [1, 1, 0]).temperature_ == 1.0  # none changes 0.5
    sharp = TemperatureCalibrator().fit([0.75] * 10, [1] * 9 + [0])
    assert sharp.temperature_ == pytest.approx(0.5)


@pytest.mark.parametrize("kind", LEARNING)
def test_calibration_on_other_rows_helps_a_model_that_is_too_sure(kind: Any) -> None:
    """Brier score, log loss and calibration error of fresh rows fall, and equal the metrics."""
    p, y = rows(1, n=2_000)
    fresh, right = rows(2, n=2_000)
    fitted = kind().fit(p, y)
    found = fitted.evaluate(fresh, right)
    q = fitted.predict(fresh)
    assert found.n == 2_000
    assert (found.brier_before, found.brier) == (brier_score(fresh, right), brier_score(q, right))
    assert (found.log_loss_before, found.log_loss) == (log_loss(fresh, right), log_loss(q, right))
    before, after = (expected_calibration_error(values, right) for values in (fresh, q))
    assert (found.ece_before, found.ece) == (before, after)
    assert found.brier < found.brier_before - 0.02
    assert found.log_loss < found.log_loss_before
    assert found.ece < 0.5 * found.ece_before


def test_doing_nothing_does_nothing() -> None:
    """The identity calibrator only clips confidences, and takes rows that are all right."""
    fitted = IdentityCalibrator().fit([0.2, 1.0 + 1e-7], [1, 1])
    assert fitted.predict([0.25, 1.0 + 1e-7, -1e-7]).tolist() == [0.25, 1.0, 0.0]


# Rows that leave little to learn


@pytest.mark.parametrize("kind", LEARNING)
@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("n", [1, 30])
def test_rows_that_are_all_right_or_all_wrong_teach_nothing(kind: Any, value: int, n: int) -> None:
    """Rows that are all right or all wrong raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected right and wrong rows, got"):
        kind().fit(np.linspace(0.5, 1.0, n), [value] * n)


@pytest.mark.parametrize("confidence", [0.0, 0.3, 0.9, 1.0])
def test_a_constant_confidence_becomes_the_accuracy(confidence: float) -> None:
    """A constant confidence becomes the accuracy, smoothed by Platt; temperature keeps its side of 0.5."""
    p, y = [confidence] * 8, [1, 1, 1, 0, 1, 1, 1, 0]
    assert IsotonicCalibrator().fit(p, y).predict([confidence]) == pytest.approx([0.75])
    smoothed = (6 * 7 / 8 + 2 * 1 / 4) / 8
    assert PlattCalibrator().fit(p, y).predict([confidence]) == pytest.approx([smoothed])
    expected = 0.75 if confidence > 0.5 else 0.5
    assert TemperatureCalibrator().fit(p, y).predict([confidence]) == pytest.approx([expected], abs=0.004)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1e-7, 0.3, 0.5, 0.9, 1 - 1e-7, 1.0]), st.integers(0, 1)), min_size=2
    )
)
def test_predictions_are_probabilities_or_the_rows_are_refused(drawn: list[tuple[float, int]]) -> None:
    """Predictions lie in [0, 1], isotonic ones keep the order, and rows of one kind are refused."""
    p, y = (np.array(column, dtype=float) for column in zip(*drawn, strict=True))
    for kind in LEARNING:
        if y.min() == y.max():
            with pytest.raises(ConfigurationError, match="right and wrong"):
                kind().fit(p, y)
            continue
        q = kind().fit(p, y).predict(np.linspace(0, 1, 21))
        assert ((q >= 0) & (q <= 1)).all()
        if kind is IsotonicCalibrator:
            assert (np.diff(q) >= 0).all()
            least = 1 / (len(y) + 2) - 1e-12
            assert ((q >= least) & (q <= 1 - least)).all()  # few rows make nothing certain


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("p", "y"), [([0.5, math.nan], [1, 0]), ([0.5, 0.6], [1, 2])])
def test_bad_rows_are_refused(kind: Any, p: Any, y: Any) -> None:
    """A NaN confidence, or a correctness of 2, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        kind().fit(p, y, predicted=labels(len(p)))


@pytest.mark.parametrize("kind", ALL)
def test_rounding_above_one_is_clipped_and_more_is_refused(kind: Any) -> None:
    """A confidence above 1 by rounding is clipped, and 1.1 raises ConfigurationError."""
    p, y = rows()
    names = labels(len(p))
    one, other = (
        kind().fit(given, y, predicted=names).predict([1.0 + 1e-7, 0.4], predicted=["a", "a"])
        for given in (p, np.where(p == 1.0, 1.0 + 1e-6, p))
    )
    assert one.tolist() == other.tolist()
    fitted = kind().fit(p, y, predicted=names)
    with pytest.raises(ConfigurationError, match="Expected"):
        fitted.predict([1.1], predicted=["a"])


@pytest.mark.parametrize("kind", ALL)
def test_nothing_is_predicted_before_fit(kind: Any, tmp_path: Path) -> None:
    """An unfitted calibrator raises NotFittedError in `predict`, `evaluate` and `save`."""
    for call in (
        lambda: kind().predict([0.5]),
        lambda: kind().evaluate([0.5], [1]),
        lambda: kind().save(tmp_path / "c.json", fingerprint=FINGERPRINT),
    ):
        with pytest.raises(NotFittedError, match=f"Expected a fitted {kind.__name__}"):
            call()
    assert not list(tmp_path.iterdir())


# Rows that were fitted


@pytest.mark.parametrize("kind", ALL)
def test_the_fitted_rows_are_refused_in_any_order(kind: Any, tmp_path: Path) -> None:
    """The fitted rows raise ConfigurationError in `evaluate`, in any order and after loading."""
    p, y = rows()
    names = labels(len(p))
    fitted = kind().fit(p, y, predicted=names)
    fitted.save(tmp_path / "c.json", fingerprint=FINGERPRINT)
    order = np.random.default_rng(0).permutation(len(p))
    for calibrator in (fitted, load_calibrator(tmp_path / "c.json", fingerprint=FINGERPRINT)):
        with pytest.raises(ConfigurationError, match="the same 400 rows"):
            calibrator.evaluate(p[order], y[order], predicted=names)
        assert calibrator.evaluate(p[1:], y[1:], predicted=names[1:]).n == 399


def test_named_rows_are_recognised_one_by_one(tmp_path: Path) -> None:
    """One shared id raises ConfigurationError in `evaluate`, and other ids are accepted."""
    p, y = rows()
    names = [f"text {i}" for i in range(400)]
    fitted = PlattCalibrator().fit(p, y, ids=names)
    fitted.save(tmp_path / "c.json", fingerprint=FINGERPRINT)
    for calibrator in (fitted, PlattCalibrator.load(tmp_path / "c.json", fingerprint=FINGERPRINT)):
        with pytest.raises(ConfigurationError, match="got 2 of 3 that were"):
            calibrator.evaluate([0.1, 0.2, 0.3], [0, 1, 0], ids=["text 7", "new", "text 399"])
        assert calibrator.evaluate(p, y, ids=[f"other {i}" for i in range(400)]).n == 400
        with pytest.raises(ConfigurationError, match="400 of 400 that were"):
            calibrator.evaluate(p, y, ids=np.array(names))
        with pytest.raises(ConfigurationError, match="the same 400 rows"):
            calibrator.evaluate(p, y)
    assert "text 7" not in (tmp_path / "c.json").read_text()
    with pytest.raises(ConfigurationError, match="one of ids per row, got 2 for 400"):
        PlattCalibrator().fit(p, y, ids=["a", "b"])


# One calibrator per label


def test_labels_with_rows_enough_have_their_own_calibrator() -> None:
    """Labels with enough rows get their own calibrator, and others use that of all rows."""
    p, y = rows(n=500)
    names = ["often"] * 300 + ["rare"] * 99 + ["surely right"] * 101
    y[399:] = 1.0
    found = PerLabelCalibrator("isotonic").fit(p, y, predicted=names)
    assert list(found.by_label_) == ["often"]
    own = IsotonicCalibrator().fit(p[:300], y[:300])
    pooled = IsotonicCalibrator().fit(p, y)
    grid = np.linspace(0, 1, 51)
    for label, expected in (("often", own), ("rare", pooled), ("surely right", pooled), ("new", pooled)):
        assert found.predict(grid, predicted=[label] * 51).tolist() == expected.predict(grid).tolist()
    both = found.predict([0.8, 0.8], predicted=["often", "rare"])
    assert both.tolist() == [own.predict([0.8])[0], pooled.predict([0.8])[0]]
    names[399] = "rare"
    y[300:350] = 0.0
    assert list(PerLabelCalibrator().fit(p, y, predicted=names).by_label_) == ["often", "rare"]


@pytest.mark.parametrize("names", [None, "ab", ["a"]])
def test_a_calibrator_per_label_needs_the_labels(names: Any) -> None:
    """Missing labels and an unknown base raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected one predicted label per row"):
        PerLabelCalibrator().fit([0.5, 0.6], [0, 1], predicted=names)
    with pytest.raises(ConfigurationError, match="Expected base as one of"):
        PerLabelCalibrator("per-label")  # type: ignore[arg-type]


# The file


@pytest.mark.parametrize("kind", ALL)
def test_a_saved_calibrator_comes_back_exactly(kind: Any, tmp_path: Path) -> None:
    """A loaded calibrator predicts exactly as the saved one."""
    p, y = rows()
    original = kind().fit(p, y, predicted=labels(400))
    path = tmp_path / "calibrator.json"
    original.save(path, fingerprint=FINGERPRINT)
    grid = np.linspace(0, 1, 101)
    for loaded in (
        kind.load(path, fingerprint=FINGERPRINT),
        load_calibrator(str(path), fingerprint=FINGERPRINT),
    ):
        assert type(loaded) is kind
        expected = original.predict(grid, predicted=labels(101))
        assert loaded.predict(grid, predicted=labels(101)).tolist() == expected.tolist()
        assert loaded.to_record() == original.to_record()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": "Sort!"}, "prompt"),
        # A confidence in sets is another one.
        ({"labels": MultiLabels(FINGERPRINT.labels)}, "labels in an answer"),
    ],
)
@pytest.mark.parametrize("kind", [PlattCalibrator, PerLabelCalibrator])
def test_a_calibrator_of_something_else_is_refused(
    kind: Any, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    """A calibrator of another prompt, model or label set raises StateError with the difference."""
    p, y = rows()
    path = tmp_path / "calibrator.json"
    kind().fit(p, y, predicted=labels(400)).save(path, fingerprint=FINGERPRINT)
    other = dataclasses.replace(FINGERPRINT, **change)
    for load in (kind.load, load_calibrator):
        with pytest.raises(StateError, match=f"differs in {named}"):
            load(path, fingerprint=other)


def test_a_file_of_another_kind_of_calibrator_is_refused(tmp_path: Path) -> None:
    """A calibrator of another method, or a missing file, raises StateError."""
    p, y = rows()
    path = tmp_path / "calibrator.json"
    PlattCalibrator().fit(p, y).save(path, fingerprint=FINGERPRINT)
    with pytest.raises(StateError, match="'temperature', got 'platt'"):
        TemperatureCalibrator.load(path, fingerprint=FINGERPRINT)
    with pytest.raises(StateError, match="cannot be read"):
        PlattCalibrator.load(tmp_path / "none.json", fingerprint=FINGERPRINT)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (PlattCalibrator, {"slope": None}),
        (PlattCalibrator, {"intercept": 1e300}),
        (TemperatureCalibrator, {"temperature": 0}),
        (IsotonicCalibrator, {"x": [0.1, 0.1], "y": [0.2, 0.3]}),
        (PerLabelCalibrator, {"by_label": 3}),
    ],
)
def test_a_damaged_file_is_refused(
    kind: type[ConfidenceCalibrator], damage: dict[str, Any], tmp_path: Path
) -> None:
    """A file with numbers that no fit could give raises StateError."""
    p, y = rows()
    path = tmp_path / "calibrator.json"
    kind().fit(p, y, predicted=labels(400)).save(path, fingerprint=FINGERPRINT)
    record = json.loads(path.read_text())
    record["state"]["learned"].update(damage)
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match="damaged"):
        load_calibrator(path, fingerprint=FINGERPRINT)
    record["state"] = {}
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match="damaged"):
        kind.load(path, fingerprint=FINGERPRINT)


@pytest.mark.parametrize(
    ("kind", "printed"),
    [
        (IdentityCalibrator, "IdentityCalibrator()"),
        (TemperatureCalibrator, "TemperatureCalibrator(temperature=2)"),
        (IsotonicCalibrator, "IsotonicCalibrator(corners=1)"),
        (PerLabelCalibrator, "PerLabelCalibrator(base='platt', pooled=PlattCalibrator(slope=0, intercept="),
    ],
)
def test_calibrators_print_their_parameters(kind: Any, printed: str) -> None:
    """What a notebook shows of a calibrator is its name with what it learned, in short."""
    assert repr(kind().fit([0.9] * 4, [1, 1, 1, 0], predicted=["cat"] * 4)).startswith(printed)
