"""Selection of a calibrator by cross-validation, and calibrators per predicted label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._calibrators import (
    KIND,
    VERSION,
    ConfidenceCalibrator,
    IdentityCalibrator,
    IsotonicCalibrator,
    PlattCalibrator,
    TemperatureCalibrator,
)
from calibrant.calibration._losses import paired_gain, stratified_folds
from calibrant.calibration._state import damaged, read_state
from calibrant.core._errors import ConfigurationError
from calibrant.core._fingerprint import Fingerprint
from calibrant.metrics._validation import check_confidence_correct

CalibratorMethod = Literal["temperature", "platt", "isotonic"]
"""How a confidence is calibrated, the simplest first; doing nothing is always a candidate."""

_KINDS: Mapping[str, type[ConfidenceCalibrator]] = {
    kind.method: kind
    for kind in (IdentityCalibrator, PlattCalibrator, IsotonicCalibrator, TemperatureCalibrator)
}
_Floats = NDArray[np.float64]
_FOLDS = 5
_MIN_ROWS = 100
_MIN_EACH = 10


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

    def _learn(self, p: _Floats, y: _Floats, predicted: Sequence[str] | None) -> None:
        names, kind = _checked_labels(predicted, len(p)), _KINDS[self.base]
        self.pooled_ = kind().fit(p, y)
        self.by_label_ = {
            label: kind().fit(p[names == label], y[names == label]) for label in _sufficient_labels(names, y)
        }

    def _apply(self, p: _Floats, predicted: Sequence[str] | None) -> _Floats:
        names = _checked_labels(predicted, len(p))
        result = self.pooled_.predict(p)
        for label, calibrator in self.by_label_.items():
            rows = names == label
            if rows.any():
                result[rows] = calibrator.predict(p[rows])
        return result

    def _learned(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "pooled": self.pooled_.to_record(),
            "by_label": {label: found.to_record() for label, found in self.by_label_.items()},
        }

    def _restore(self, learned: Mapping[str, Any]) -> None:
        self.base = PerLabelCalibrator(learned["base"]).base
        kind = _KINDS[self.base]
        self.pooled_ = kind.from_record(learned["pooled"])
        self.by_label_ = {
            str(label): kind.from_record(record) for label, record in dict(learned["by_label"]).items()
        }


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


def calibrator_from_record(record: Mapping[str, Any]) -> ConfidenceCalibrator:
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
    below two nothing is done.

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
        Names of the rows, kept as digests; see `ConfidenceCalibrator.fit`.
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
    names = None if predicted is None else _checked_labels(predicted, len(p))
    right = int(y.sum())
    n_folds = min(_FOLDS, right, len(y) - right)
    makers: dict[str, Callable[[], ConfidenceCalibrator]] = {"none": IdentityCalibrator}
    losses, reason = {"none": (p - y) ** 2}, ""
    if n_folds < 2:
        few = f"{right} of {len(y)} rows are right"
        reason = f"None: {few}; a calibrator is judged on at least 2 right and 2 wrong rows."
    else:
        makers |= {name: _KINDS[name] for name in get_args(CalibratorMethod)}
        if names is not None and _sufficient_labels(names, y):
            makers |= {
                f"{name} per label": partial(PerLabelCalibrator, name) for name in get_args(CalibratorMethod)
            }
        fold = stratified_folds(y, n_folds, np.random.default_rng(0 if rng is None else rng))
        losses |= {name: (_held_out(make, p, y, names, fold) - y) ** 2 for name, make in makers.items()}
    chosen = "none"
    for name, loss in losses.items():
        if paired_gain(losses[chosen], loss).helps:
            chosen = name
    return CalibratorSelection(
        calibrator=makers[chosen]().fit(p, y, predicted=None if names is None else names.tolist(), ids=ids),
        name=chosen,
        brier={name: float(loss.mean()) for name, loss in losses.items()},
        reason=reason or _reason(chosen, losses),
    )


def _sufficient_labels(names: NDArray[np.object_], y: _Floats) -> list[str]:
    """Return the predicted labels with enough rows for a calibrator of their own, sorted."""
    labels, group = np.unique(names.astype(str), return_inverse=True)
    n, right = np.bincount(group), np.bincount(group, weights=y)
    enough = (n >= _MIN_ROWS) & (right >= _MIN_EACH) & (n - right >= _MIN_EACH)
    return [str(label) for label in labels[enough]]


def _held_out(
    make: Callable[[], ConfidenceCalibrator],
    p: _Floats,
    y: _Floats,
    names: NDArray[np.object_] | None,
    fold: NDArray[np.intp],
) -> _Floats:
    """Return the calibrated confidence of held-out rows in cross-validation, shape (n,)."""
    result = np.empty_like(p)
    for k in range(int(fold.max()) + 1):
        judged = fold == k
        rest, own = (None, None) if names is None else (names[~judged].tolist(), names[judged].tolist())
        result[judged] = make().fit(p[~judged], y[~judged], predicted=rest).predict(p[judged], predicted=own)
    return result


def _reason(chosen: str, losses: Mapping[str, _Floats]) -> str:
    best = chosen if chosen != "none" else min(losses, key=lambda name: float(losses[name].mean()))
    if best == "none":
        n = len(losses["none"])
        return f"None: no candidate lowers the Brier score of {losses['none'].mean():.4f} over {n} held-out rows."
    gain = paired_gain(losses["none"], losses[best])
    change = f"the Brier score goes from {gain.before:.4f} to {gain.after:.4f} over {len(losses[best])} held-out rows"
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
