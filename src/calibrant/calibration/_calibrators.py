"""Confidence calibrators: Platt, isotonic, temperature and identity, one for all labels or each; their selection."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._fit import SavedFit, damaged, paired_gain, read_state, stratified_folds
from calibrant.core._errors import ConfigurationError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._labels import normalise_label
from calibrant.core._prediction import FloatArray, IndexArray, Record
from calibrant.metrics._confidence import brier_score, expected_calibration_error, log_loss
from calibrant.metrics._validation import as_numbers, check_confidence, check_confidence_correct

KIND = "confidence calibrator"
VERSION = 1
_Labels = Sequence[str] | None
_CLIP = 1e-6
_LEAST = 1e-3  # temperature, and its inverse
_MOST = 1e3
_COEFFICIENT = "[-1e100, 1e100]"
_ID_BYTES = 8  # one pair of a million rows collides with probability 3e-8
TEMPERATURE = {"temperature": f"[{_LEAST}, {_MOST}]"}
CalibratorMethod = Literal["temperature", "platt", "isotonic"]
"""How a confidence is calibrated, the simplest first; doing nothing is always a candidate."""
_FOLDS = 5
_MIN_ROWS = 100
_MIN_EACH = 10


@dataclass(frozen=True, kw_only=True)
class CalibrationEvaluation:
    """Brier score, calibration error and log loss before and after calibration, on other rows.

    Attributes
    ----------
    n : int
        Rows.
    brier_before, brier : float
        Mean squared gap to correctness, in [0, 1], of the given and of the calibrated confidence.
    ece_before, ece : float
        Expected calibration error over 15 bins of equal width, in [0, 1].
    log_loss_before, log_loss : float
        Negative log-likelihood in nats, probabilities clipped to [1e-6, 1 - 1e-6].
    """

    n: int
    brier_before: float
    brier: float
    ece_before: float
    ece: float
    log_loss_before: float
    log_loss: float


@dataclass(frozen=True, kw_only=True)
class FittedRows:
    """Digests of the rows of a fit, used to detect an evaluation on the same rows.

    Most rows of a language model have confidence 1, so a row cannot be recognised by its confidence;
    the whole set can, and so can rows that were named.

    Attributes
    ----------
    digest : str
        SHA-256 of confidence and correctness of all rows, whatever their order.
    ids : list of str
        Sorted digests of the names of the rows; empty where none were given.
    """

    digest: str
    ids: list[str]

    @classmethod
    def of(cls, p: FloatArray, y: FloatArray, ids: Sequence[object] | None) -> Self:
        """Return the digests of rows with confidence `p` and correctness `y`, both of shape (n,)."""
        if ids is not None and (isinstance(ids, str) or len(ids) != len(p)):
            raise ConfigurationError(f"Expected one of ids per row, got {len(ids)} for {len(p)} rows.")
        named = set()
        for name in () if ids is None else ids:
            data = str(name).encode("utf-8", "surrogatepass")
            named.add(hashlib.blake2b(data, digest_size=_ID_BYTES).hexdigest())
        order = np.lexsort((y, p))
        rows = np.stack([p[order] + 0.0, y[order]]).astype("<f8")
        return cls(digest=hashlib.sha256(rows.tobytes()).hexdigest(), ids=sorted(named))

    def refuse(self, p: FloatArray, y: FloatArray, ids: Sequence[object] | None) -> None:
        """Raise ConfigurationError if all rows, or with ids any of them, belong to the fit.

        Rows are compared by name if both the fit and this call name them; else as a whole set.
        """
        other = FittedRows.of(p, y, ids)
        if other.ids and self.ids:
            shared = len(set(other.ids) & set(self.ids))
            if shared:
                raise ConfigurationError(
                    f"Expected rows that were not fitted, got {shared} of {len(p)} that were: a calibrator looks "
                    "better on its own rows than it is; leave them out."
                )
        elif other.digest == self.digest:
            raise ConfigurationError(
                f"Expected rows that were not fitted, got the same {len(p)} rows: a calibrator looks better on its "
                "own rows than it is; evaluate it on others, or name the rows with ids if these are others."
            )


class ConfidenceCalibrator(SavedFit):
    """Base class of calibrators from one confidence per row to the probability of being right.

    Attributes
    ----------
    rows_ : FittedRows
        Digests of the fitted rows; `evaluate` refuses them.

    Examples
    --------
    >>> from calibrant.calibration import ConfidenceCalibrator, PlattCalibrator
    >>> issubclass(PlattCalibrator, ConfidenceCalibrator)
    True
    """

    method: ClassVar[str]
    rows_: FittedRows
    _kind = KIND
    _version = VERSION
    _fitted = "rows_"

    def fit(
        self,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        predicted: Sequence[str] | None = None,
        ids: Sequence[object] | None = None,
    ) -> Self:
        """Fit the probability of a right answer on its confidence; an earlier fit is discarded.

        Parameters
        ----------
        confidence : array-like of shape (n,)
            In [0, 1]; up to 1e-6 outside is clipped.
        correct : array-like of 0/1, shape (n,)
            1 if a row is right, else 0; both must occur, except for `IdentityCalibrator`.
        predicted : sequence of str, length n, optional
            Predicted labels; only `PerLabelCalibrator` looks at them, and needs them.
        ids : sequence of length n, optional
            Names of the rows, such as their texts, by which `evaluate` recognises each of them.

        Raises
        ------
        ConfigurationError
            No rows, NaN, values out of range, different lengths, or all rows right or all wrong.
        """
        p, y = check_confidence_correct(confidence, correct)
        rows = FittedRows.of(p, y, ids)
        self._learn(p, y, predicted)
        self.rows_ = rows
        return self

    def predict(self, confidence: ArrayLike, *, predicted: Sequence[str] | None = None) -> FloatArray:
        """Return calibrated confidence, in [0, 1], shape (n,).

        Parameters
        ----------
        confidence : array-like of shape (n,)
            In [0, 1]; up to 1e-6 outside is clipped.
        predicted : sequence of str, length n, optional
            Predicted labels, for `PerLabelCalibrator`.

        Raises
        ------
        NotFittedError
            `fit` was not called.
        ConfigurationError
            No rows, NaN, or values out of range.
        """
        self._require_fitted("predict")
        return np.clip(self._apply(check_confidence(confidence), predicted), 0.0, 1.0)

    def evaluate(
        self,
        confidence: ArrayLike,
        correct: ArrayLike,
        *,
        predicted: Sequence[str] | None = None,
        ids: Sequence[object] | None = None,
    ) -> CalibrationEvaluation:
        """Compare raw and calibrated confidence on rows that were not used in the fit.

        Raises
        ------
        NotFittedError
            `fit` was not called.
        ConfigurationError
            As `fit`; or a row was fitted: one of the `ids` is known from the fit or, without ids in
            either call, the rows equal the fitted ones in any order.
        """
        self._require_fitted("evaluate")
        p, y = check_confidence_correct(confidence, correct)
        self.rows_.refuse(p, y, ids)
        q = self.predict(p, predicted=predicted)
        return CalibrationEvaluation(
            n=len(p),
            brier_before=brier_score(p, y),
            brier=brier_score(q, y),
            ece_before=expected_calibration_error(p, y),
            ece=expected_calibration_error(q, y),
            log_loss_before=log_loss(p, y),
            log_loss=log_loss(q, y),
        )

    def to_record(self) -> dict[str, Any]:
        """Return the fitted parameters as JSON values."""
        return {"method": self.method, "learned": self._learned(), "rows": asdict(self.rows_)}

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Return the calibrator of a `to_record` record; KeyError, TypeError or ValueError if invalid."""
        cls._check_method(record, cls.method)
        calibrator = cls()
        calibrator._restore(record["learned"])
        rows = record["rows"]
        ids = list(map(str, rows["ids"]))
        calibrator.rows_ = FittedRows(digest=str(rows["digest"]), ids=ids)
        return calibrator

    def _state(self) -> dict[str, Any]:
        return self.to_record()

    @classmethod
    def _from_state(cls, state: Record, *, labels: tuple[str, ...]) -> Self:  # noqa: ARG003
        return cls.from_record(state)

    @abstractmethod
    def _learn(self, p: FloatArray, y: FloatArray, predicted: _Labels) -> None: ...

    @abstractmethod
    def _apply(self, p: FloatArray, predicted: _Labels) -> FloatArray: ...


class IdentityCalibrator(ConfidenceCalibrator):
    """Calibrator that leaves confidence unchanged, the baseline when a calibrator is selected.

    Examples
    --------
    >>> from calibrant.calibration import IdentityCalibrator
    >>> calibrator = IdentityCalibrator().fit([0.9, 0.6], [1, 0])
    >>> calibrator.predict([0.9, 0.6]).tolist()
    [0.9, 0.6]
    >>> round(calibrator.evaluate([0.8] * 4, [1, 1, 0, 0]).ece, 6)
    0.3
    """

    method = "none"

    def _learn(self, p: FloatArray, y: FloatArray, predicted: _Labels) -> None:
        pass

    def _apply(self, p: FloatArray, predicted: _Labels) -> FloatArray:  # noqa: ARG002
        return p


class PlattCalibrator(ConfidenceCalibrator):
    """Calibrator with a logistic curve over the log-odds of the confidence (Platt 1999).

    ``sigmoid(a z + b)`` with ``z = ln(q / (1 - q))``, q the confidence clipped to [1e-6, 1 - 1e-6], a and b
    of greatest likelihood for Platt's smoothed targets: ``(r + 1) / (r + 2)`` instead of 1 for each of r right
    rows, ``1 / (w + 2)`` instead of 0 for each of w wrong ones. So a few separable rows do not yield
    certainty. A good choice for few rows. Where all confidences are equal, or wrong rows are the surer ones,
    a is 0 and the prediction the mean target.

    Attributes
    ----------
    slope_, intercept_ : float
        a and b.

    Examples
    --------
    >>> calibrator = PlattCalibrator().fit([0.9] * 4 + [0.6] * 4, [1, 1, 1, 0, 1, 0, 1, 0])
    >>> calibrator.predict([0.9, 0.6]).round(3).tolist()
    [0.693, 0.529]
    """

    method = "platt"
    _parameters = {"slope": _COEFFICIENT, "intercept": _COEFFICIENT}  # noqa: RUF012  (never changed)
    slope_: float
    intercept_: float

    def _learn(self, p: FloatArray, y: FloatArray, predicted: _Labels) -> None:  # noqa: ARG002
        _require_both(y)
        z = _log_odds(p)
        # Platt (1999), section 2.2: t+ = (N+ + 1) / (N+ + 2) and t- = 1 / (N- + 2), the posterior means of both
        # classes under a uniform prior; `right` is N+.
        right = float(y.sum())
        t_right = (right + 1.0) / (right + 2.0)
        t_wrong = 1.0 / (len(y) - right + 2.0)
        t = np.where(y == 1.0, t_right, t_wrong)
        if np.ptp(z) == 0.0:
            self.slope_ = 0.0
            self.intercept_ = float(_log_odds(t.mean(keepdims=True))[0])
            return
        # Standardised, so that the search takes equal steps in both directions.
        centre = float(z.mean())
        scale = float(z.std())
        slope, intercept = _logistic_fit((z - centre) / scale, t)
        if slope < 0.0:  # which would turn the order of answers round, by chance or not
            slope = 0.0
            intercept = float(_log_odds(t.mean(keepdims=True))[0])
        self.slope_ = slope / scale
        self.intercept_ = intercept - self.slope_ * centre

    def _apply(self, p: FloatArray, predicted: _Labels) -> FloatArray:  # noqa: ARG002
        return _sigmoid(self.slope_ * _log_odds(p) + self.intercept_)


class TemperatureCalibrator(ConfidenceCalibrator):
    """Calibrator with one temperature for the log-odds of the confidence (Guo et al. 2017).

    ``sigmoid(z / T)`` with ``z = ln(q / (1 - q))``, q the confidence clipped to [1e-6, 1 - 1e-6], T
    of greatest likelihood in [0.001, 1000]. It softens or sharpens, but leaves 0.5 where it is: a
    confidence that is wrong more often than right becomes 0.5 at best. Where every z is 0, T is 1.

    Attributes
    ----------
    temperature_ : float
        T; above 1 where the model is too sure.

    Examples
    --------
    >>> calibrator = TemperatureCalibrator().fit([0.9] * 4, [1, 1, 1, 0])
    >>> round(calibrator.temperature_, 6), calibrator.predict([0.9]).round(6).tolist()
    (2.0, [0.75])
    """

    method = "temperature"
    _parameters = TEMPERATURE
    temperature_: float

    def _learn(self, p: FloatArray, y: FloatArray, predicted: _Labels) -> None:  # noqa: ARG002
        _require_both(y)
        z = _log_odds(p)

        def slope(s: float) -> float:
            gap = _sigmoid(s * z) - y
            return float(np.mean(gap * z))

        self.temperature_ = 1.0 / best_inverse_temperature(slope)

    def _apply(self, p: FloatArray, predicted: _Labels) -> FloatArray:  # noqa: ARG002
        return _sigmoid(_log_odds(p) / self.temperature_)


class IsotonicCalibrator(ConfidenceCalibrator):
    """Calibrator with the rising curve of least squared error (Zadrozny and Elkan 2002).

    Assumes no more than that higher confidence is not less often right; needs some hundred rows.
    Between fitted confidences it interpolates, outside them it stays level. Where all confidences
    are equal it predicts the accuracy. On n rows it is nowhere below 1 / (n + 2) or above
    (n + 1) / (n + 2), Laplace's estimates after n rows of one kind: the least squared error would call
    the surest rows certain, however few they are.

    Attributes
    ----------
    x_, y_ : ndarray of shape (k,)
        Corners of the curve: confidence, ascending, and the calibrated value.

    Examples
    --------
    >>> from calibrant.calibration import IsotonicCalibrator
    >>> calibrator = IsotonicCalibrator().fit([0.6] * 4 + [0.9] * 4, [1, 0, 0, 0, 1, 1, 1, 0])
    >>> calibrator.predict([0.5, 0.6, 0.75, 0.9]).round(6).tolist()
    [0.25, 0.25, 0.5, 0.75]
    """

    method = "isotonic"
    x_: FloatArray
    y_: FloatArray

    def _learn(self, p: FloatArray, y: FloatArray, predicted: _Labels) -> None:  # noqa: ARG002
        from sklearn.isotonic import IsotonicRegression  # noqa: PLC0415 - heavy, and needed only here

        _require_both(y)
        least = 1.0 / (len(y) + 2)
        curve = IsotonicRegression(y_min=least, y_max=1.0 - least, out_of_bounds="clip").fit(p, y)
        self.x_ = curve.X_thresholds_
        self.y_ = curve.y_thresholds_

    def _apply(self, p: FloatArray, predicted: _Labels) -> FloatArray:  # noqa: ARG002
        return np.interp(p, self.x_, self.y_)

    def _shown(self) -> dict[str, Any]:
        return {"corners": len(self.x_)}

    def _learned(self) -> dict[str, Any]:
        return {"x": self.x_.tolist(), "y": self.y_.tolist()}

    def _restore(self, learned: Record) -> None:
        x = as_numbers("x", learned["x"])
        y = as_numbers("y", learned["y"])
        both = np.stack([x, y])
        is_inside = (both >= 0.0).all() and (both <= 1.0).all()
        rises = (np.diff(x) > 0.0).all() and (np.diff(y) >= 0.0).all()
        if x.ndim != 1 or not x.size or not is_inside or not rises:
            raise ConfigurationError("Expected the corners of a rising curve in [0, 1], got something else.")
        self.x_ = x
        self.y_ = y


def best_inverse_temperature(slope: Callable[[float], float]) -> float:
    """Return the zero of the rising function `slope` of the inverse temperature, in [0.001, 1000].

    The nearer end if the slope has no zero, and 1 if it is 0 throughout.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 - `import calibrant` must not load scipy

    low = slope(_LEAST)
    high = slope(_MOST)
    if low == high == 0.0:
        return 1.0
    if low >= 0.0:
        return _LEAST
    if high <= 0.0:
        return _MOST
    return float(brentq(slope, _LEAST, _MOST, xtol=1e-15, rtol=1e-14))


def _logistic_fit(z: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return slope and intercept of the logistic curve that fits targets in [0, 1] best."""
    from scipy.optimize import minimize  # noqa: PLC0415 - `import calibrant` must not load scipy

    design = np.stack([z, np.ones_like(z)], axis=1)

    def loss(w: FloatArray) -> float:
        t = design @ w
        return float(np.mean(np.logaddexp(0.0, t) - y * t))

    def gradient(w: FloatArray) -> FloatArray:
        gap = _sigmoid(design @ w) - y
        return design.T @ gap / len(y)

    def hessian(w: FloatArray) -> FloatArray:
        p = _sigmoid(design @ w)
        weighted = design.T * (p * (1.0 - p))
        return weighted @ design / len(y)

    # Convex; targets strictly between 0 and 1 have a minimum.
    options = {"gtol": 1e-9, "maxiter": 500}
    found = minimize(loss, np.zeros(2), jac=gradient, hess=hessian, method="trust-exact", options=options)
    return float(found.x[0]), float(found.x[1])


def _log_odds(p: FloatArray) -> FloatArray:
    q = np.clip(p, _CLIP, 1.0 - _CLIP)
    return np.log(q / (1.0 - q))


def _sigmoid(z: FloatArray) -> FloatArray:
    from scipy.special import expit  # noqa: PLC0415 - `import calibrant` must not load scipy

    return np.asarray(expit(z), dtype=np.float64)


def _require_both(y: FloatArray) -> None:
    if y.min() == y.max():
        what = "right" if y[0] == 1.0 else "wrong"
        raise ConfigurationError(
            f"Expected right and wrong rows, got {len(y)} that are all {what}: they would be taken for certainty. "
            "Add rows, or use IdentityCalibrator."
        )


_KINDS: Mapping[str, type[ConfidenceCalibrator]] = {
    kind.method: kind
    for kind in (IdentityCalibrator, PlattCalibrator, IsotonicCalibrator, TemperatureCalibrator)
}


class PerLabelCalibrator(ConfidenceCalibrator):
    """Calibrator per predicted label with enough rows, and a pooled one for the other labels.

    Models are surer of some labels than they should be and less sure of others. A label has its own
    calibrator if at least 100 rows were predicted as it, at least ten of them right and
    ten wrong; all others, unknown labels included, share the one fitted on all rows.

    Parameters
    ----------
    base : {"platt", "isotonic", "temperature"}, default "platt"
        The kind of every calibrator.

    Attributes
    ----------
    pooled_ : ConfidenceCalibrator
        Fitted on all rows.
    by_label_ : dict of str to ConfidenceCalibrator
        Calibrators of the labels with enough rows.

    Raises
    ------
    ConfigurationError
        An unknown base.

    Examples
    --------
    >>> from calibrant.calibration import PerLabelCalibrator
    >>> predicted = ["cat"] * 100 + ["dog"] * 100
    >>> correct = [1] * 90 + [0] * 10 + [1] * 60 + [0] * 40
    >>> calibrator = PerLabelCalibrator("temperature").fit([0.95] * 200, correct, predicted=predicted)
    >>> calibrator.predict([0.95] * 3, predicted=["cat", "dog", "fish"]).round(3).tolist()
    [0.9, 0.6, 0.75]
    """

    method = "per-label"
    pooled_: ConfidenceCalibrator
    by_label_: dict[str, ConfidenceCalibrator]

    def __init__(self, base: CalibratorMethod = "platt") -> None:
        if base not in get_args(CalibratorMethod):
            raise ConfigurationError(f"Expected base as one of {get_args(CalibratorMethod)}, got {base!r}.")
        self.base = base

    def _learn(self, p: FloatArray, y: FloatArray, predicted: Sequence[str] | None) -> None:
        names = _checked_labels(predicted, len(p))
        kind = _KINDS[self.base]
        self.pooled_ = kind().fit(p, y)
        self.by_label_ = {}
        for label in _sufficient_labels(names, y):
            rows = names == label
            self.by_label_[label] = kind().fit(p[rows], y[rows])

    def _apply(self, p: FloatArray, predicted: Sequence[str] | None) -> FloatArray:
        names = _checked_labels(predicted, len(p))
        result = self.pooled_.predict(p)
        for label, calibrator in self.by_label_.items():
            rows = names == label
            if rows.any():
                result[rows] = calibrator.predict(p[rows])
        return result

    def _shown(self) -> dict[str, Any]:
        return {"base": repr(self.base), "pooled": self.pooled_, "labels": len(self.by_label_)}

    def _learned(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "pooled": self.pooled_.to_record(),
            "by_label": {label: found.to_record() for label, found in self.by_label_.items()},
        }

    def _restore(self, learned: Record) -> None:
        self.base = PerLabelCalibrator(learned["base"]).base
        kind = _KINDS[self.base]
        self.pooled_ = kind.from_record(learned["pooled"])
        by_label = dict(learned["by_label"])
        self.by_label_ = {str(label): kind.from_record(record) for label, record in by_label.items()}


def load_calibrator(path: str | Path, *, fingerprint: Fingerprint) -> ConfidenceCalibrator:
    """Load a calibrator of any kind from a file that `ConfidenceCalibrator.save` wrote.

    Parameters
    ----------
    path : str or Path
        The file.
    fingerprint : Fingerprint
        Fingerprint of the predictions to calibrate.

    Raises
    ------
    StateError
        The file is missing or damaged, holds something else or another version, or was fitted on
        another prompt, model, log-probability space or label set; the message names which.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant.calibration import PlattCalibrator, load_calibrator
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> fingerprint = Classifier(model=FakeClient(["cat", "dog"], {}), labels=["cat", "dog"]).fingerprint()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     PlattCalibrator().fit([0.9, 0.6], [1, 0]).save(f"{folder}/fit.json", fingerprint=fingerprint)
    ...     load_calibrator(f"{folder}/fit.json", fingerprint=fingerprint).method
    'platt'
    """
    state = read_state(path, kind=KIND, version=VERSION, fingerprint=fingerprint)
    try:
        return calibrator_from_record(state)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from error


def calibrator_from_record(record: Record) -> ConfidenceCalibrator:
    """Return a calibrator of any kind from its `to_record` record, for files that hold several.

    Raises
    ------
    KeyError, TypeError, ValueError
        The record is not one of a calibrator.
    """
    kinds: dict[str, type[ConfidenceCalibrator]] = {**_KINDS, PerLabelCalibrator.method: PerLabelCalibrator}
    return kinds[record["method"]].from_record(record)


@dataclass(frozen=True, kw_only=True)
class CalibratorSelection:
    """Chosen calibrator, with the reason for the choice.

    Attributes
    ----------
    calibrator : ConfidenceCalibrator
        Fitted on all rows.
    name : str
        Which: ``none``, a method, or ``... per label``.
    brier : mapping of str to float
        Mean Brier score on held-out rows, in [0, 1], of every candidate that could be fitted.
    reason : str
        One sentence with the figures.
    """

    calibrator: ConfidenceCalibrator
    name: str
    brier: Mapping[str, float]
    reason: str


def select_calibrator(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    predicted: Sequence[str] | None = None,
    ids: Sequence[object] | None = None,
    rng: np.random.Generator | int | None = None,
) -> CalibratorSelection:
    """Choose a calibrator, or none, by the Brier score in cross-validation.

    Candidates are tried from the simplest to the most flexible: nothing, temperature, Platt, isotonic, then
    the same per label. One takes the place of what was chosen before it if its Brier score on
    held-out rows is lower by more than the standard error of the difference, paired over rows. A
    flexible curve that is better by chance only does harm on new rows. Folds are drawn at random within
    right and wrong rows; where fewer than five are right, or wrong, there are as many folds, and
    below two nothing is done. Rows with equal `ids`, such as copies of a text, are in one fold, and
    count as one in the standard error.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        1 if a row is right, else 0.
    predicted : sequence of str, length n, optional
        Predicted labels. With them, every method is also tried with one calibrator per label
        (`PerLabelCalibrator`), if any label has rows enough.
    ids : sequence of length n, optional
        Names or texts of the rows, kept as digests; see `ConfidenceCalibrator.fit`. Texts that differ in case or
        white space alone are equal.
    rng : numpy Generator, int or None, default None
        Draws the folds: a source of randomness or its seed; None is seed 0, so that equal calls
        agree.

    Raises
    ------
    ConfigurationError
        No rows, NaN, values out of range, or different lengths.

    Examples
    --------
    >>> from calibrant.calibration import select_calibrator
    >>> found = select_calibrator([0.99] * 100 + [0.9] * 100, [1] * 80 + [0] * 20 + [1] * 65 + [0] * 35)
    >>> found.name, found.calibrator.predict([0.99, 0.9]).round(2).tolist()
    ('temperature', [0.8, 0.66])
    >>> {name: round(brier, 3) for name, brier in found.brier.items()}
    {'none': 0.243, 'temperature': 0.194, 'platt': 0.197, 'isotonic': 0.197}
    """
    p, y = check_confidence_correct(confidence, correct)
    names = None
    if predicted is not None:
        names = _checked_labels(predicted, len(p))
    groups, first = _groups(ids, len(p))
    right = int(y[first].sum())
    n_folds = min(_FOLDS, right, len(first) - right)
    makers: dict[str, Callable[[], ConfidenceCalibrator]] = {"none": IdentityCalibrator}
    losses = {"none": (p - y) ** 2}
    reason = ""
    if n_folds < 2:
        few = f"{int(y.sum())} of {len(y)} rows are right"
        reason = f"None: {few}; a calibrator is judged on at least 2 right and 2 wrong rows."
    else:
        methods = get_args(CalibratorMethod)
        makers |= {name: _KINDS[name] for name in methods}
        if names is not None and _sufficient_labels(names, y):
            makers |= {f"{name} per label": partial(PerLabelCalibrator, name) for name in methods}
        generator = np.random.default_rng(0 if rng is None else rng)
        fold = stratified_folds(y[first], n_folds, generator)[groups]
        for name, make in makers.items():
            calibrated = _held_out(make, p, y, names, fold)
            losses[name] = (calibrated - y) ** 2
    chosen = "none"
    by_group = {}
    for name, loss in losses.items():
        by_group[name] = np.bincount(groups, weights=loss) * len(first) / len(p)
        if paired_gain(by_group[chosen], by_group[name]).helps:
            chosen = name
    predicted = None if names is None else names.tolist()
    calibrator = makers[chosen]()
    return CalibratorSelection(
        calibrator=calibrator.fit(p, y, predicted=predicted, ids=ids),
        name=chosen,
        brier={name: float(loss.mean()) for name, loss in losses.items()},
        reason=reason or _reason(chosen, by_group, len(p)),
    )


def _groups(ids: Sequence[object] | None, n: int) -> tuple[IndexArray, IndexArray]:
    """Return the number of each row's group, of rows with equal ids, and the place of each group's first row."""
    if ids is None:
        return np.arange(n), np.arange(n)
    numbers: dict[object, int] = {}
    first = []
    groups = []
    for place, name in enumerate(ids):
        key = repr(name)
        if isinstance(name, str):
            key = normalise_label(name)
        if key not in numbers:
            numbers[key] = len(numbers)
            first.append(place)
        groups.append(numbers[key])
    return np.array(groups), np.array(first)


def _sufficient_labels(names: NDArray[np.object_], y: FloatArray) -> list[str]:
    """Return the predicted labels with enough rows for a calibrator of their own, sorted."""
    labels, group = np.unique(names.astype(str), return_inverse=True)
    n = np.bincount(group)
    right = np.bincount(group, weights=y)
    enough = (n >= _MIN_ROWS) & (right >= _MIN_EACH) & (n - right >= _MIN_EACH)
    return [str(label) for label in labels[enough]]


def _held_out(
    make: Callable[[], ConfidenceCalibrator],
    p: FloatArray,
    y: FloatArray,
    names: NDArray[np.object_] | None,
    fold: IndexArray,
) -> FloatArray:
    """Return the calibrated confidence of held-out rows in cross-validation, shape (n,)."""
    result = np.empty_like(p)
    for k in range(int(fold.max()) + 1):
        judged = fold == k
        taught = ~judged
        calibrator = make()
        calibrator.fit(p[taught], y[taught], predicted=None if names is None else names[taught].tolist())
        own = None
        if names is not None:
            own = names[judged].tolist()
        result[judged] = calibrator.predict(p[judged], predicted=own)
    return result


def _reason(chosen: str, losses: Mapping[str, FloatArray], n: int) -> str:
    best = chosen
    if chosen == "none":
        best = min(losses, key=lambda name: float(losses[name].mean()))
    rows = f"cross-validated on {n} rows"
    if best == "none":
        return f"None: no candidate lowers the Brier score of {losses['none'].mean():.4f}, {rows}."
    gain = paired_gain(losses["none"], losses[best])
    change = f"the Brier score goes from {gain.before:.4f} to {gain.after:.4f}, {rows}"
    error = f"a gain of {gain.mean:z.4f} with a standard error of {gain.standard_error:.4f}"
    if chosen == "none":
        return f"None: with {best} {change}, {error}: too little to tell from chance."
    return f"{chosen.capitalize()}: {change}, {error}."


def _checked_labels(predicted: Sequence[str] | None, n: int) -> NDArray[np.object_]:
    if predicted is None or isinstance(predicted, str) or len(predicted) != n:
        found = "none" if predicted is None else f"{len(predicted)}"
        raise ConfigurationError(
            f"Expected one predicted label per row, {n} in all, got {found}: pass predicted=."
        )
    return np.array([str(label) for label in predicted], dtype=object)
