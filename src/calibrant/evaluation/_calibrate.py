"""Calibration from saved predictions, fitted and measured on separate halves of the rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._calibrators import CalibratorSelection, ConfidenceCalibrator, select_calibrator
from calibrant.calibration._certify import (
    CertifiedThreshold,
    certificate_from_record,
    certify_threshold,
    with_best_promise,
)
from calibrant.calibration._thresholds import ThresholdSuggestion, suggest_thresholds
from calibrant.core._errors import ConfigurationError, DataError, StateError
from calibrant.core._files import SCHEMA_VERSION, read_run_record, write_atomically
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import Interval
from calibrant.heads._tuned import Tuned
from calibrant.metrics._confidence import auroc_interval, expected_calibration_error
from calibrant.metrics._intervals import bootstrap_interval, paired_mean_interval
from calibrant.runs._directory import CALIBRATION
from calibrant.runs._rows import UNKNOWN, SavedRows

_TARGET: Final = 0.9  # accuracy of accepted answers, where nobody names one
_DELTA: Final = 0.1  # probability that it is missed all the same
_FEWEST: Final = 20  # rows: 10 to fit and 10 to test
_RESAMPLES: Final = (200, 2000)  # fewest and most
_DRAWS: Final = 20_000_000  # rows drawn for an interval, about a second
_LEVEL: Final = 0.95

_Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LeftOutRows:
    """Number of excluded rows, by reason.

    Attributes
    ----------
    errors : int
        Rows that failed with a transport error.
    unlabelled : int
        Other rows whose true label is not known.
    without_confidence : int
        Rows on which the model refused, could not be read, or reported no log-probabilities.
    """

    errors: int
    unlabelled: int
    without_confidence: int


@dataclass(frozen=True, kw_only=True)
class HeldOutMeasures:
    """Quality of the confidence on held-out rows.

    Attributes
    ----------
    rows, correct : int
        Rows, and those of them that are right.
    ece_before, ece_after, brier_before, brier_after : Interval
        Calibration error and Brier score of the confidence as given and as calibrated, with 95 % bootstrap
        intervals. Calibration errors of few rows come out too high.
    brier_difference : Interval
        After minus before, paired; below 0 where calibration helps.
    """

    rows: int
    correct: int
    ece_before: Interval
    ece_after: Interval
    brier_before: Interval
    brier_after: Interval
    brier_difference: Interval


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """A calibrator with its figures on held-out rows, and thresholds.

    Attributes
    ----------
    source : str
        Directory or file of the predictions.
    rows : int
        All rows.
    left_out : LeftOutRows
        Rows that were not used.
    seed : int
        Seed of the halves.
    fit_rows : int
        Rows of the half that was fitted.
    selection : CalibratorSelection
        The calibrator, fitted on that half alone, and why it was chosen.
    held_out : HeldOutMeasures
        Its figures on the other half.
    thresholds : ThresholdSuggestion or str
        From all rows: nothing is measured on them; or the reason for their absence, such as too few right answers.
    certified : CertifiedThreshold or None
        From all rows, of the confidence as given: the guarantee holds on the rows it was found on. None
        where it was not asked for.
    kept : CertifiedThreshold or None
        Certificate of an earlier calibration in the output directory, which stays in force; see
        `keeping_certificate`.
    fingerprint : Fingerprint or None
        As `SavedRows`.
    auroc : Interval or None
        AUROC of the confidence for right against wrong rows, over all used rows, in [0, 1]: 0.5 is
        chance. None where all are right, or all wrong.
    rows_with_low_label_mass : int
        As `SavedRows`.
    """

    source: str
    rows: int
    left_out: LeftOutRows
    seed: int
    fit_rows: int
    selection: CalibratorSelection
    held_out: HeldOutMeasures
    thresholds: ThresholdSuggestion | str
    certified: CertifiedThreshold | None
    fingerprint: Fingerprint | None
    auroc: Interval | None = None
    rows_with_low_label_mass: int = 0
    kept: CertifiedThreshold | None = None

    @property
    def calibrator(self) -> ConfidenceCalibrator:
        """The calibrator."""
        return self.selection.calibrator

    @cached_property
    def tuned(self) -> Tuned:
        """The run's tuned classifier with this calibration and its thresholds; nothing is written.

        Raises
        ------
        DataError, StateError
            The predictions are not those of a finished run's directory; see `Tuned.from_run`.
        """
        return Tuned.from_run(self.source, calibration=self)

    @property
    def in_force(self) -> CertifiedThreshold | None:
        """Certificate that decides which answers are accepted: the earlier one, where it is kept."""
        return self.certified if self.kept is None else self.kept

    def keeping_certificate(self, out: str | Path) -> CalibrationResult:
        """Return the result with the certificate of an earlier calibration in a directory, where that stays in force.

        A certificate is replaced by a certificate only: neither by suggested thresholds nor by a target accuracy that
        these rows do not bear. Where nothing was certified then and nothing is asked for now, that answer is kept.

        Parameters
        ----------
        out : path
            The directory.

        Raises
        ------
        StateError
            The certificate in it is of other predictions, or its ``calibration.json`` is damaged.
        """
        record = _earlier(Path(out) / CALIBRATION)
        certified = self.certified
        if record is None or (certified is not None and certified.threshold is not None):
            return replace(self, kept=None)
        earlier = certificate_from_record(record["certification"])
        if earlier.threshold is None and certified is not None:
            return replace(self, kept=None)
        own = None if self.fingerprint is None else self.fingerprint.to_record()
        if record["fingerprint"] == own and (own is not None or record["source"] == self.source):
            return replace(self, kept=earlier)
        if earlier.threshold is None:
            return replace(self, kept=None)
        raise StateError(
            f"{out}: holds a certificate of other predictions ({record['source']}), which only a certificate may "
            "replace: choose another directory, or a target accuracy that these rows bear."
        )

    def to_record(self) -> dict[str, Any]:
        """Return the result as JSON values, as ``calibration.json`` holds them."""
        point = ("threshold", "coverage", "accuracy_lower_bound", "target_accuracy", "delta")
        selection = self.selection
        certified = self.in_force
        # The calibrator has a file of its own.
        numbers = asdict(replace(self, selection=None, fingerprint=None))  # type: ignore[arg-type]
        del numbers["selection"], numbers["kept"]
        is_certified = certified is not None and certified.threshold is not None
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "calibration",
            **numbers,
            "calibrator": {
                "name": selection.name,
                "reason": selection.reason,
                "cross_validated_brier": dict(selection.brier),
            },
            "thresholds": None if isinstance(self.thresholds, str) else numbers["thresholds"],
            "no_thresholds": self.thresholds if isinstance(self.thresholds, str) else "",
            "certified": {name: getattr(certified, name) for name in point} if is_certified else None,
            "certification": None if certified is None else asdict(certified),
            "requested": numbers["certified"],
            "fingerprint": None if self.fingerprint is None else self.fingerprint.to_record(),
        }

    def write(self, out: str | Path) -> list[Path]:
        """Write ``calibration.json``, and ``calibrator.json`` if the fingerprint is known.

        Each file is written whole or not at all; earlier ones are replaced, but for a certificate; see
        `keeping_certificate`.

        Parameters
        ----------
        out : path
            A directory; made where it does not exist.

        Returns
        -------
        list of Path
            The files.

        Raises
        ------
        StateError
            They cannot be written, or a certificate of other predictions is there.
        """
        directory = Path(out)
        record = directory / CALIBRATION
        own = directory / "calibrator.json"
        written = self.keeping_certificate(directory)
        text = json.dumps(written.to_record(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # A calibrator of earlier predictions must not stand beside these numbers.
            own.unlink(missing_ok=True)
            if self.fingerprint is not None:
                self.selection.calibrator.save(own, fingerprint=self.fingerprint)
            write_atomically(record, text)
        except OSError as error:
            raise StateError(
                f"{directory}: cannot be written ({error}): choose another directory."
            ) from error
        return [record] if self.fingerprint is None else [record, own]


def calibrate_predictions(
    predictions: SavedRows,
    *,
    target_accuracy: float | None = None,
    delta: float = 0.05,
    seed: int = 0,
) -> CalibrationResult:
    """Fit a calibrator on half of the rows, measure it on the other half, and find thresholds.

    Rows of equal text go to the same half, so that nothing is measured on what was fitted. Certified is the
    confidence as given, which nothing was fitted to; all rows count for it, as they do for the suggested thresholds.

    Parameters
    ----------
    predictions : SavedRows
        With a confidence and a known true label on at least 20 rows.
    target_accuracy : float in (0, 1), optional
        Certify a threshold above which answers are at least so accurate.
    delta : float in (0, 1), default 0.05
        Probability with which the certificate may be wrong.
    seed : int, default 0
        Seed of the halves, the cross-validation and the intervals.

    Raises
    ------
    ConfigurationError
        A parameter is out of range.
    DataError
        Too few rows.

    Examples
    --------
    A model that is always 90 % sure, and wrong on every second row:

    >>> import tempfile
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.runs import SavedRows
    >>> from calibrant.testing import FakeClient
    >>> from calibrant.evaluation import calibrate_predictions
    >>> classifier = Classifier(
    ...     model=FakeClient(["cat", "dog"], {"text": ("cat", 0.9)}), labels=["cat", "dog"], field="category"
    ... )
    >>> rows = [Example(input=f"text {n}", answer=("cat", "dog")[n % 2]) for n in range(40)]
    >>> out = tempfile.mkdtemp()
    >>> _ = BatchEvaluator(classifier).evaluate(rows, out=out)
    >>> held_out = calibrate_predictions(SavedRows.load(out)).held_out
    >>> held_out.rows, held_out.ece_before.estimate > held_out.ece_after.estimate
    (20, True)
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"Expected seed to be a whole number from 0, got {seed!r}.")
    rng = np.random.default_rng(seed)
    kept, left_out = _usable(predictions)
    p = predictions.confidence[kept]
    y = predictions.correct[kept].astype(np.float64)
    certified = None
    if target_accuracy is not None:
        certified = certify_threshold(p, y, target_accuracy=target_accuracy, delta=delta)
        certified = with_best_promise(certified, p, y)
    names, labels = [], []
    for row in kept.tolist():
        text = predictions.inputs[row]
        label = predictions.labels[row]
        names.append(f"row {row}" if text is None else text)
        if label is not None:
            labels.append(label)
    fit, test = _halves(names, rng)

    def of(rows: list[int]) -> dict[str, Any]:
        predicted = [labels[row] for row in rows] if len(labels) == len(names) else None
        return {"predicted": predicted, "ids": [names[row] for row in rows]}

    selection = select_calibrator(p[fit], y[fit], **of(fit), rng=rng)
    # Refuses rows that were fitted.
    selection.calibrator.evaluate(p[test], y[test], **of(test))
    after = selection.calibrator.predict(p[test], predicted=of(test)["predicted"])
    return CalibrationResult(
        source=predictions.name,
        rows=len(predictions),
        left_out=left_out,
        seed=seed,
        fit_rows=len(fit),
        selection=selection,
        held_out=_measures(p[test], after, y[test], rng),
        thresholds=_thresholds(p, y),
        certified=certified,
        fingerprint=predictions.fingerprint,
        auroc=auroc_interval(p, y) if 0 < y.sum() < len(y) else None,
        rows_with_low_label_mass=predictions.rows_with_low_label_mass,
    )


def calibrate_search(predictions: SavedRows) -> CalibrationResult:
    """Calibrate the test rows of a search, and certify 90 % accuracy with probability 0.9 for accepted answers.

    Half of the 0.1 pays for testing whether all answers may be accepted: on few rows, one wrong answer among the most
    confident ones would end a sequence from the highest threshold at its first step. The other half is for that
    sequence. Where all may be accepted, the threshold is the lowest confidence of these rows: what is less sure than
    any of them was never tested.

    Raises
    ------
    DataError
        Too few rows.
    """
    result = calibrate_predictions(predictions)
    kept, _ = _usable(predictions)
    rows = predictions.confidence[kept], predictions.correct[kept]
    certified = certify_threshold(*rows, target_accuracy=_TARGET, delta=_DELTA / 2, start=0.0)
    if certified.threshold is not None:
        certified = replace(certified, threshold=math.floor(1000 * rows[0].min()) / 1000)
    else:
        certified = certify_threshold(*rows, target_accuracy=_TARGET, delta=_DELTA / 2)
    certified = with_best_promise(replace(certified, delta=_DELTA), *rows)
    return replace(result, certified=certified)


def _earlier(path: Path) -> dict[str, Any] | None:
    """Return an earlier calibration that was asked for a certificate; None without any."""
    if not path.exists():
        return None
    record = read_run_record(path, remedy="remove it, or choose another directory")
    if record.get("certification") is None:
        return None
    return record


def _halves(names: Sequence[str], rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return the positions of two random halves of the rows; rows with the same text stay together."""
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        groups.setdefault(name, []).append(row)
    members = list(groups.values())
    fit = list[int]()
    test = list[int]()
    for place in rng.permutation(len(members)).tolist():
        half = fit if 2 * len(fit) < len(names) else test
        half.extend(members[place])
    if len(test) < _FEWEST // 4:
        raise DataError(
            f"Expected at least {_FEWEST // 4} rows of other texts to test on, got {len(test)} of {len(names)}: rows "
            "of one text stay together; add rows of different texts."
        )
    return fit, test


def _usable(predictions: SavedRows) -> tuple[NDArray[np.intp], LeftOutRows]:
    """Return the positions of rows with a confidence and a true label, and counts of the other rows."""
    unlabelled = (predictions.correct == UNKNOWN) & ~predictions.failed
    unsure = np.isnan(predictions.confidence) & ~unlabelled & ~predictions.failed
    kept = np.flatnonzero(~(predictions.failed | unlabelled | unsure))
    left_out = LeftOutRows(
        errors=int(predictions.failed.sum()),
        unlabelled=int(unlabelled.sum()),
        without_confidence=int(unsure.sum()),
    )
    if len(kept) < _FEWEST:
        raise DataError(
            f"{predictions.name}: expected at least {_FEWEST} rows with a confidence and a true label, got "
            f"{len(kept)} of {len(predictions)} (left out: {left_out.errors} failed, {left_out.unlabelled} without a "
            f"true label, {left_out.without_confidence} without a confidence): label more rows."
        )
    return kept, left_out


def _thresholds(p: _Floats, y: _Floats) -> ThresholdSuggestion | str:
    """Return suggested thresholds, or the reason for none."""
    try:
        return suggest_thresholds(p, y)
    except ConfigurationError as error:  # the values are checked: there are too few of a kind
        return str(error)


def _measures(before: _Floats, after: _Floats, y: _Floats, rng: np.random.Generator) -> HeldOutMeasures:
    """Return calibration error and Brier score before and after calibration, with intervals."""
    squares = [(p - y) ** 2 for p in (before, after)]
    n_resamples = int(np.clip(_DRAWS // len(y), *_RESAMPLES))
    brier = [bootstrap_interval(values, _LEVEL, n_resamples=n_resamples, rng=rng) for values in squares]
    return HeldOutMeasures(
        rows=len(y),
        correct=int(y.sum()),
        ece_before=_ece_interval(before, y, n_resamples, rng),
        ece_after=_ece_interval(after, y, n_resamples, rng),
        brier_before=brier[0],
        brier_after=brier[1],
        brier_difference=paired_mean_interval(squares[1] - squares[0], level=_LEVEL),
    )


def _ece_interval(p: _Floats, y: _Floats, n_resamples: int, rng: np.random.Generator) -> Interval:
    """Return the bootstrap interval of the calibration error over 15 bins of equal width.

    Resampling adds noise to every bin, which the error counts as miscalibration: resampled errors come out too
    high. The percentiles are moved by the median's distance from the estimate, so that they lie around it.
    """
    n = len(p)
    estimate = expected_calibration_error(p, y)
    draws = (rng.integers(0, n, size=n) for _ in range(n_resamples))
    values = [expected_calibration_error(p[rows], y[rows]) for rows in draws]
    lower, median, upper = np.quantile(values, ((1.0 - _LEVEL) / 2.0, 0.5, (1.0 + _LEVEL) / 2.0)).tolist()
    moved = estimate - median
    return Interval(
        lower=max(0.0, lower + moved), upper=min(1.0, upper + moved), level=_LEVEL, estimate=estimate
    )
