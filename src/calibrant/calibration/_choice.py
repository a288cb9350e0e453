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
from calibrant.calibration._losses import paired_gain
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
_FOLDS = 5
_MIN_ROWS = 100
_MIN_EACH = 10


class PerLabelCalibrator(ConfidenceCalibrator):
    """One calibrator per predicted label where its rows suffice, else one for all rows.

    Models are surer of some labels than they should be and less sure of others. A label has its own
    calibrator if at least `min_rows` rows were predicted as it, at least ten of them right and
    ten wrong; all others, unknown labels included, share the one fitted on all rows.

    Parameters
    ----------
    base : {"platt", "isotonic", "temperature"}, default "platt"
        The kind of every calibrator.
    min_rows : int, at least 20, default 100
        Least number of rows for a calibrator of its own.

    Attributes
    ----------
    pooled_ : ConfidenceCalibrator
        Fitted on all rows.
    by_label_ : dict of str to ConfidenceCalibrator
        Calibrators of the labels with enough rows.

    Raises
    ------
    ConfigurationError
        An unknown base, or `min_rows` below 20.
    """

    method = "per-label"
    pooled_: ConfidenceCalibrator
    by_label_: dict[str, ConfidenceCalibrator]

    def __init__(self, base: CalibratorMethod = "platt", *, min_rows: int = _MIN_ROWS) -> None:
        if base not in get_args(CalibratorMethod):
            raise ConfigurationError(f"Expected base as one of {get_args(CalibratorMethod)}, got {base!r}.")
        if isinstance(min_rows, bool) or not isinstance(min_rows, int) or min_rows < 2 * _MIN_EACH:
            raise ConfigurationError(
                f"Expected min_rows as a whole number of at least {2 * _MIN_EACH}, got {min_rows!r}."
            )
        self.base = base
        self.min_rows = min_rows

    def _learn(self, p: NDArray[np.float64], y: NDArray[np.float64], predicted: Sequence[str] | None) -> None:
        names = _checked_labels(predicted, len(p))
        self.pooled_ = _KINDS[self.base]().fit(p, y)
        self.by_label_ = {}
        for label in sorted(set(names)):
            rows = np.array([name == label for name in names])
            right = int(y[rows].sum())
            n = int(rows.sum())
            if n >= self.min_rows and min(right, n - right) >= _MIN_EACH:
                self.by_label_[label] = _KINDS[self.base]().fit(p[rows], y[rows])

    def _apply(self, p: NDArray[np.float64], predicted: Sequence[str] | None) -> NDArray[np.float64]:
        names = _checked_labels(predicted, len(p))
        result = self.pooled_.predict(p)
        for label, calibrator in self.by_label_.items():
            rows = np.array([name == label for name in names])
            if rows.any():
                result[rows] = calibrator.predict(p[rows])
        return result

    def _learned(self) -> dict[str, Any]:
        return {
            "base": self.base,
            "min_rows": self.min_rows,
            "pooled": self.pooled_.to_record(),
            "by_label": {label: found.to_record() for label, found in self.by_label_.items()},
        }

    def _restore(self, learned: Mapping[str, Any]) -> None:
        checked = PerLabelCalibrator(learned["base"], min_rows=learned["min_rows"])
        self.base, self.min_rows = checked.base, checked.min_rows
        kind = _KINDS[self.base]
        self.pooled_ = kind.from_record(learned["pooled"])
        self.by_label_ = {
            str(label): kind.from_record(record) for label, record in dict(learned["by_label"]).items()
        }


def load_calibrator(path: str | Path, *, fingerprint: Fingerprint) -> ConfidenceCalibrator:
    """Return the calibrator of any kind that `ConfidenceCalibrator.save` wrote.

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
    """
    state = read_state(path, kind=KIND, version=VERSION, fingerprint=fingerprint)
    try:
        return calibrator_from_record(state)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from error


def calibrator_from_record(record: Mapping[str, Any]) -> ConfidenceCalibrator:
    """Return the calibrator of any kind of a `to_record` record; for files that hold several.

    Raises
    ------
    KeyError, TypeError, ValueError
        The record is not one of a calibrator.
    """
    kinds: dict[str, type[ConfidenceCalibrator]] = {**_KINDS, PerLabelCalibrator.method: PerLabelCalibrator}
    return kinds[record["method"]].from_record(record)


@dataclass(frozen=True, kw_only=True)
class CalibratorSelection:
    """A calibrator, and why it was chosen.

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
    candidates: Sequence[CalibratorMethod] = ("temperature", "platt", "isotonic"),
    ids: Sequence[object] | None = None,
    rng: np.random.Generator | int | None = None,
) -> CalibratorSelection:
    """Choose a calibrator by its Brier score in five-fold cross-validation, or none.

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
    candidates : sequence of {"temperature", "platt", "isotonic"}, default all
        Methods to try; their order does not matter.
    ids : sequence of length n, optional
        Names of the rows, kept as digests; see `ConfidenceCalibrator.fit`.
    rng : numpy Generator, int or None, default None
        Draws the folds: a source of randomness or its seed; None is seed 0, so that equal calls
        agree.

    Raises
    ------
    ConfigurationError
        No rows, NaN, values out of range, different lengths, or an unknown candidate.
    """
    p, y = check_confidence_correct(confidence, correct)
    names = None if predicted is None else _checked_labels(predicted, len(p))
    makers = _makers(candidates, names, y)
    n_folds = min(_FOLDS, int(y.sum()), int(len(y) - y.sum()))
    if n_folds < 2:
        reason = (
            f"None: {int(y.sum())} of {len(y)} rows are right; a calibrator is judged on at least 2 right and 2 wrong "
            "rows."
        )
        losses = {"none": (p - y) ** 2}
        makers = {"none": IdentityCalibrator}
    else:
        fold = _folds(y, n_folds, np.random.default_rng(0 if rng is None else rng))
        losses = {name: (_held_out(make, p, y, names, fold) - y) ** 2 for name, make in makers.items()}
        reason = ""
    chosen = "none"
    for name, loss in losses.items():
        if paired_gain(losses[chosen], loss).helps:
            chosen = name
    return CalibratorSelection(
        calibrator=makers[chosen]().fit(p, y, predicted=names, ids=ids),
        name=chosen,
        brier={name: float(loss.mean()) for name, loss in losses.items()},
        reason=reason or _reason(chosen, losses),
    )


def _makers(
    candidates: Sequence[CalibratorMethod], names: Sequence[str] | None, y: NDArray[np.float64]
) -> dict[str, Callable[[], ConfidenceCalibrator]]:
    """Return factories of unfitted calibrators by method name, the identity first."""
    unknown = [name for name in candidates if name not in get_args(CalibratorMethod)]
    if isinstance(candidates, str) or unknown:
        raise ConfigurationError(
            f"Expected candidates among {get_args(CalibratorMethod)}, got {candidates!r}: pass a list of them."
        )
    makers: dict[str, Callable[[], ConfidenceCalibrator]] = {"none": IdentityCalibrator}
    simplest_first = [name for name in get_args(CalibratorMethod) if name in candidates]
    makers.update({name: _KINDS[name] for name in simplest_first})
    if names is not None and _any_suffices(names, y):
        makers.update({f"{name} per label": partial(PerLabelCalibrator, name) for name in simplest_first})
    return makers


def _any_suffices(names: Sequence[str], y: NDArray[np.float64]) -> bool:
    _, group = np.unique(np.asarray(names, dtype=object).astype(str), return_inverse=True)
    n, right = np.bincount(group), np.bincount(group, weights=y)
    return bool(((n >= _MIN_ROWS) & (right >= _MIN_EACH) & (n - right >= _MIN_EACH)).any())


def _folds(y: NDArray[np.float64], n_folds: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return a random fold for each row, stratified by right and wrong."""
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    fold = np.empty(len(y), dtype=np.intp)
    fold[order] = np.arange(len(y)) % n_folds
    return fold


def _held_out(
    make: Callable[[], ConfidenceCalibrator],
    p: NDArray[np.float64],
    y: NDArray[np.float64],
    names: Sequence[str] | None,
    fold: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Return out-of-fold calibrated confidence, shape (n,)."""
    result = np.empty_like(p)
    for k in range(int(fold.max()) + 1):
        judged = fold == k
        rest = None if names is None else [name for name, out in zip(names, judged, strict=True) if not out]
        own = None if names is None else [name for name, out in zip(names, judged, strict=True) if out]
        calibrator = make().fit(p[~judged], y[~judged], predicted=rest)
        result[judged] = calibrator.predict(p[judged], predicted=own)
    return result


def _reason(chosen: str, losses: Mapping[str, NDArray[np.float64]]) -> str:
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


def _checked_labels(predicted: Sequence[str] | None, n: int) -> list[str]:
    if predicted is None or isinstance(predicted, str) or len(predicted) != n:
        found = "none" if predicted is None else f"{len(predicted)}"
        raise ConfigurationError(
            f"Expected one predicted label per row, {n} in all, got {found}: pass predicted=."
        )
    return [str(label) for label in predicted]
