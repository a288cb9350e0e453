"""Calibrators, heads and baselines that are learned from a finished evaluation, without calls."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from calibrant.calibration._calibrators import CalibratorSelection, ConfidenceCalibrator, select_calibrator
from calibrant.calibration._thresholds import (
    CertifiedThreshold,
    ThresholdSuggestion,
    certificate_from_record,
    suggest_thresholds,
)
from calibrant.core._errors import ConfigurationError, DataError, StateError
from calibrant.core._files import SCHEMA_VERSION, Recorded, as_record, read_run_record, write_atomically
from calibrant.core._fingerprint import NO_TEXTS, Fingerprint, TextDigests
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import FloatArray, HalfArray, IndexArray, Interval, JsonObject, Outcome, Usage
from calibrant.core._rows import Example
from calibrant.evaluation._looks import CertificateRequest, counted_certificate
from calibrant.heads._compared import BaselineComparison, compare_with_baselines
from calibrant.heads._head import Head
from calibrant.heads._tuned import Tuned
from calibrant.metrics._confidence import (
    auroc_interval,
    chance_calibration_errors,
    expected_calibration_error,
    resampled_calibration_errors,
)
from calibrant.metrics._intervals import mean_interval, paired_mean_interval, wilson_interval
from calibrant.runs._directory import (
    CALIBRATION,
    HEAD_TEXTS,
    KNOWN_TEXTS,
    METRICS,
    PREDICTIONS,
    RESULT,
    make_folder,
    read_origin,
    write_json,
)
from calibrant.runs._rows import UNKNOWN, SavedRows, read_row, row_lines

if TYPE_CHECKING:
    from calibrant.inference._limits import Gate
    from calibrant.inference._text_vectors import Embeddings


FEWEST: Final = 20  # rows: 10 to fit and 10 to test
_RESAMPLES: Final = (200, 2000)  # fewest and most
_DRAWS: Final = 20_000_000  # rows drawn for an interval, about a second
_LEVEL: Final = 0.95

_LEAST: Final = 1e-300  # a probability that was too small to be written
_RUN: Final = "Name the directory of `calibrant evaluate` or `calibrant batch`"
# 20,000 rows of 225 characters and 4 labels take 21 s of one core to learn from and 11 s to judge on; the interval of a
# difference on 5,000 rows is about 0.02 wide.
_LEARNED: Final = 10_000
_LEAST_LEARNED: Final = 1_000  # of many fields or labels: a second for each
_JUDGED: Final = 5_000
_READ: Final = 1_000  # whose vectors a baseline learns from: the embedded engine gives five a second
_CHARACTERS: Final = 500  # of a row, on average
_SEED: Final = 0
_Raw = TypeVar("_Raw")


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
        Calibration error and Brier score of the confidence as given and as calibrated, with 95 % intervals.
        Calibration errors of few rows come out too high, of a calibrated model by about 0.07 on 200 rows and
        0.03 on 1,000; their intervals are of the error without that noise.
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
class CalibrationResult(Recorded):
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
    replaced : CertifiedThreshold or None
        Such a certificate of a higher accuracy, which does not.
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
    replaced: CertifiedThreshold | None = None

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
        if record is None:
            return replace(self, kept=None)
        earlier = certificate_from_record(record["certification"])
        if certified is not None and certified.threshold is not None:
            is_higher = earlier.threshold is not None and earlier.target_accuracy > certified.target_accuracy
            return replace(self, kept=None, replaced=earlier if is_higher else None)
        own = as_record(self.fingerprint)
        is_same = record["fingerprint"] == own and (own is not None or record["source"] == self.source)
        if earlier.threshold is None and (certified is not None or not is_same):
            return replace(self, kept=None)
        if is_same:
            return replace(self, kept=earlier)
        raise StateError(
            f"{out}: holds a certificate of other predictions ({record['source']}), which only a certificate may "
            "replace: choose another directory, or a target accuracy that these rows bear."
        )

    def to_record(self) -> JsonObject:
        """Return the result as JSON values, as ``calibration.json`` holds them."""
        point = ("threshold", "coverage", "accuracy_lower_bound", "target_accuracy", "delta")
        selection = self.selection
        certified = self.in_force
        # The calibrator has a file of its own.
        numbers = super().to_record()
        del numbers["selection"], numbers["kept"], numbers["replaced"]
        is_certified = certified is not None and certified.threshold is not None
        no_thresholds = self.thresholds if isinstance(self.thresholds, str) else ""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "calibration",
            **numbers,
            "calibrator": {
                "name": selection.name,
                "reason": selection.reason,
                "cross_validated_brier": dict(selection.brier),
            },
            "thresholds": None if no_thresholds else numbers["thresholds"],
            "no_thresholds": no_thresholds,
            "certified": {name: getattr(certified, name) for name in point} if is_certified else None,
            "certification": as_record(certified),
            "requested": numbers["certified"],
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
        if self.fingerprint is None:
            return [record]
        return [record, own]


def calibrate_predictions(
    predictions: SavedRows,
    *,
    target_accuracy: float | None = None,
    delta: float = 0.05,
    looks: int = 1,
    seed: int = 0,
) -> CalibrationResult:
    """Fit a calibrator on half of the rows, measure it on the other half, and find thresholds.

    Rows of equal text go to the same half, so that nothing is measured on what was fitted. Certified is the
    confidence as given, which nothing was fitted to; all rows count for it, as they do for the suggested thresholds,
    but near-duplicates as one; see `certify_threshold`.

    Parameters
    ----------
    predictions : SavedRows
        With a confidence and a known true label on at least 20 rows.
    target_accuracy : float in (0, 1), optional
        Certify a threshold above which answers are at least so accurate.
    delta : float in (0, 1), default 0.05
        Probability with which the certificate may be wrong. Certificates that were asked of these rows before add
        theirs: a ledger remembers them in the user's folder for caches, and beside the task or the run.
    looks : int, default 1
        Number of certificates planned for these rows, of as many configurations or targets: each gets an equal share of
        `delta`.
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
    if type(seed) is not int or seed < 0:
        raise ConfigurationError(f"Expected seed to be a whole number from 0, got {seed!r}.")
    rng = np.random.default_rng(seed)
    kept, left_out = _usable(predictions)
    p = predictions.confidence[kept]
    y = predictions.correct[kept].astype(np.float64)
    certified = None
    if target_accuracy is not None:
        request = CertificateRequest(target_accuracy=target_accuracy, delta=delta, looks=looks)
        certified = counted_certificate(request, predictions, kept.tolist())
    names = []
    for row in kept.tolist():
        text = predictions.inputs[row]
        names.append(f"row {row}" if text is None else text)
    labels = [predictions.labels[row] for row in kept.tolist()]
    has_labels = None not in labels
    fit, test = _halves(names, rng)

    def of(rows: list[int]) -> JsonObject:
        predicted = [labels[row] for row in rows] if has_labels else None
        return {"predicted": predicted, "ids": [names[row] for row in rows]}

    selection = select_calibrator(p[fit], y[fit], **of(fit), rng=rng)
    calibrator = selection.calibrator
    tested = of(test)
    # Refuses rows that were fitted.
    calibrator.evaluate(p[test], y[test], **tested)
    after = calibrator.predict(p[test], predicted=tested["predicted"])
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


def calibrate_search(predictions: SavedRows, request: CertificateRequest | None = None) -> CalibrationResult:
    """Calibrate the test rows of a search, and certify accepted answers: by default 90 % accuracy, delta 0.1.

    Raises
    ------
    DataError
        Too few rows.
    StateError
        The ledger of certificates is damaged, or cannot be written.
    """
    asked = request or CertificateRequest()
    result = calibrate_predictions(predictions)
    kept, _ = _usable(predictions)
    certified = counted_certificate(asked, predictions, kept.tolist(), all_first=True)
    return replace(result, certified=certified)


def _earlier(path: Path) -> JsonObject | None:
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
    if len(test) < FEWEST // 4:
        raise DataError(
            f"Expected at least {FEWEST // 4} rows of other texts to test on, got {len(test)} of {len(names)}: rows "
            "of one text stay together; add rows of different texts."
        )
    return fit, test


def _usable(predictions: SavedRows) -> tuple[IndexArray, LeftOutRows]:
    """Return the positions of rows with a confidence and a true label, and counts of the other rows."""
    unlabelled = (predictions.correct == UNKNOWN) & ~predictions.failed
    unsure = np.isnan(predictions.confidence) & ~unlabelled & ~predictions.failed
    kept = np.flatnonzero(~(predictions.failed | unlabelled | unsure))
    left_out = LeftOutRows(
        errors=int(predictions.failed.sum()),
        unlabelled=int(unlabelled.sum()),
        without_confidence=int(unsure.sum()),
    )
    if len(kept) < FEWEST:
        raise DataError(
            f"{predictions.name}: expected at least {FEWEST} rows with a confidence and a true label, got "
            f"{len(kept)} of {len(predictions)} (left out: {left_out.errors} failed, {left_out.unlabelled} without a "
            f"true label, {left_out.without_confidence} without a confidence): label more rows."
        )
    return kept, left_out


def _thresholds(p: FloatArray, y: FloatArray) -> ThresholdSuggestion | str:
    """Return suggested thresholds, or the reason for none."""
    try:
        return suggest_thresholds(p, y)
    except ConfigurationError as error:  # the values are checked: there are too few of a kind
        return str(error)


def _measures(
    before: FloatArray, after: FloatArray, y: FloatArray, rng: np.random.Generator
) -> HeldOutMeasures:
    """Return calibration error and Brier score before and after calibration, with intervals."""
    squares = [(p - y) ** 2 for p in (before, after)]
    n_resamples = int(np.clip(_DRAWS // len(y), *_RESAMPLES))
    each = np.ones(len(y), dtype=np.int64)
    brier = [mean_interval(values, each, _LEVEL) for values in squares]
    return HeldOutMeasures(
        rows=len(y),
        correct=int(y.sum()),
        ece_before=_ece_interval(before, y, n_resamples, rng),
        ece_after=_ece_interval(after, y, n_resamples, rng),
        brier_before=brier[0],
        brier_after=brier[1],
        brier_difference=paired_mean_interval(squares[1] - squares[0], level=_LEVEL),
    )


def _ece_interval(p: FloatArray, y: FloatArray, n_resamples: int, rng: np.random.Generator) -> Interval:
    """Return an interval of the calibration error over 15 bins of equal width.

    Noise in every bin counts as miscalibration: the estimate is too high, and errors of resampled rows are so twice.
    The upper end is the percentile of resampled errors, moved by their median's distance from the estimate. The lower
    end is 0 where a calibrated model shows as much by chance, or else as far below the estimate as resampled errors go
    above it. At 95 % these held the error without noise in 87 to 99 of 100 draws, of 50 to 1,000 rows of calibrated,
    overconfident and nearly always sure models; percentiles about the estimate in 0 to 96. The upper end is also no
    lower than the distance of the mean confidence from what the accuracy may be, which no calibration error is below:
    of few rows that are all right, all resampled ones are.
    """
    n = len(p)
    estimate = expected_calibration_error(p, y)
    draws = (rng.integers(0, n, size=n) for _ in range(n_resamples))
    values = resampled_calibration_errors(p, y, draws)
    shares = (0.5, (1.0 + _LEVEL) / 2.0)
    median, highest = np.quantile(values, shares).tolist()
    by_chance = float(np.quantile(chance_calibration_errors(p, n_resamples, rng), shares[-1]))
    least = 0.0 if estimate <= by_chance else max(0.0, 2.0 * estimate - highest)
    accuracy = wilson_interval(int(y.sum()), n, _LEVEL)
    mean = float(p.mean())
    apart = max(mean - accuracy.lower, accuracy.upper - mean)
    resampled = highest + estimate - median
    most = min(1.0, max(resampled, apart))
    return Interval(lower=least, upper=most, level=_LEVEL, estimate=estimate)


@dataclass(frozen=True, kw_only=True)
class LearnedHead:
    """A head with its training rows and fingerprint.

    Attributes
    ----------
    source : str
        The directory of the predictions.
    head : Head
        The best head that their rows support.
    fingerprint : Fingerprint
        Circumstances it belongs to.
    rows, left_out : int
        All rows, and those of them without a distribution or a true label.
    vectors : Usage
        Tokens and cost of the vectors of texts that were paid for.
    known_texts : TextDigests
        Digests of the texts it learned from.
    """

    source: str
    head: Head
    fingerprint: Fingerprint
    rows: int
    left_out: int
    vectors: Usage = field(default_factory=Usage)
    known_texts: TextDigests = NO_TEXTS

    def to_record(self) -> JsonObject:
        """Return the result as JSON values."""
        record: JsonObject = {
            "kind": "head",
            "source": self.source,
            "rows": self.rows,
            "left_out": self.left_out,
        }
        if self.vectors != Usage():
            record["vectors"] = as_record(self.vectors)
        return record | self.head.describe()

    def write(self, out: str | Path) -> Path:
        """Write ``head.json`` into a directory, created if needed, and digests of its texts beside it; return the file.

        Raises
        ------
        StateError
            The file cannot be written, or `directory` is that of the predictions.
        """
        directory = Path(out)
        if directory.resolve() == Path(self.source).resolve():
            raise StateError(
                f"{directory}: expected another directory than that of the predictions, which were made without this "
                "head and would be exported with it: choose another."
            )
        make_folder(directory)
        texts = {"schema_version": SCHEMA_VERSION, KNOWN_TEXTS: self.known_texts.to_record()}
        write_json(directory / HEAD_TEXTS, texts)
        self.head.save(directory / "head.json", fingerprint=self.fingerprint)
        return directory / "head.json"


def learn_head(path: str | Path, *, seed: int = 0, embeddings: Embeddings | None = None) -> LearnedHead:
    """Learn a head from stored predictions for labelled rows; see `calibrant.heads.fit_head`.

    Hidden features of the embedded model are not stored, so no candidate head uses them.

    Parameters
    ----------
    path : path
        Directory of `calibrant evaluate` or `calibrant batch`, of one model, without a head or a label prior.
    seed : int, default 0
        Of the folds.
    embeddings : str, EmbeddingModel or bool, optional
        Gives the head a vector of each text beside its words, as `Classifier.fit` takes it.

    Raises
    ------
    ConfigurationError
        There is no such embedding model.
    ProviderError
        Its server cannot be asked.
    DataError
        The predictions are of something else, or none has a distribution and a true label.
    StateError
        ``run.json`` is damaged.

    Examples
    --------
    A model that calls every animal a cat, but is less sure of dogs:

    >>> import tempfile
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.testing import FakeClient
    >>> from calibrant.evaluation import learn_head
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9), "barks": ("cat", 0.6)})
    >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
    >>> rows = [Example(input=f"{a} {n}", answer=b) for n in range(20) for a, b in (("purrs", "cat"), ("barks", "dog"))]
    >>> out = tempfile.mkdtemp()
    >>> _ = BatchEvaluator(classifier).evaluate(rows, out=out)
    >>> learned = learn_head(out)
    >>> learned.rows, learned.to_record()["reason"]
    (40, 'On held-out rows log loss goes from 0.511 to 0.012 and accuracy from 0.500 to 1.000.')
    """
    place = Path(path)
    if place.is_file():
        raise _refusal_error(place, "a directory, got a file, of which nobody knows what it belongs to")
    saved = SavedRows.load(place)
    fingerprint = _fingerprint(place, saved)
    if saved.fields & {"parts", "steps"}:
        raise _refusal_error(place, "predictions of one model with one label each, got others")
    labels = fingerprint.labels
    position = {label: number for number, label in enumerate(labels)}
    logprobs = []
    answers = []
    texts = []
    for row in saved.rows():
        probabilities = row.values.get("probabilities")
        if row.input is None or row.answer is None or row.outcome is Outcome.ERROR or probabilities is None:
            continue
        if row.answer not in position:
            raise _refusal_error(place, f"answers among the labels, got {row.answer!r:.80}")
        logprobs.append(_logprobs(probabilities, fingerprint, place))
        answers.append(position[row.answer])
        texts.append(row.input)
    if not logprobs:
        raise _refusal_error(place, "rows with a distribution and a true label, got none")
    # Baselines, which every evaluation has, do without both.
    from calibrant.heads._fit import fit_head  # noqa: PLC0415
    from calibrant.inference._heads import read_by_fits  # noqa: PLC0415
    from calibrant.inference._limits import Gate  # noqa: PLC0415
    from calibrant.inference._text_vectors import head_embedding, prepare_vectors, timed_head  # noqa: PLC0415

    meter = Gate()
    embedding = head_embedding(embeddings, texts, labels=labels, reports_features=False, meter=meter)
    prepare_vectors(embedding, [*texts, *read_by_fits(labels)], meter=meter)
    head = fit_head(np.array(logprobs), answers, labels=labels, texts=texts, embedding=embedding, rng=seed)
    return LearnedHead(
        source=str(path),
        head=timed_head(head),
        fingerprint=fingerprint,
        rows=len(saved),
        left_out=len(saved) - len(logprobs),
        vectors=meter.vectors,
        known_texts=TextDigests.of(texts),
    )


def _fingerprint(place: Path, saved: SavedRows) -> Fingerprint:
    """Return the fingerprint of a run's predictions; refuse those made with a head or a label prior."""
    origin = read_origin(place)
    if origin is not None and origin[0].name == RESULT:
        raise _refusal_error(place, "an evaluation, got a search, which has learned a head already")
    if origin is None or saved.fingerprint is None or saved.fingerprint.multi_label:
        raise _refusal_error(
            place, "the directory of a run with distributions over one label set, got something else"
        )
    about: Mapping[str, Any] = origin[1].get("described") or origin[1]
    for name, said in (("head", "a head"), ("label_prior", "a label prior")):
        if about.get(name) is not None:
            raise _refusal_error(
                place, f"predictions as the model scored them, got some made with {said}: evaluate without it"
            )
    return saved.fingerprint


def _logprobs(probabilities: object, fingerprint: Fingerprint, place: Path) -> list[float]:
    given = probabilities if isinstance(probabilities, dict) else {}
    try:
        values = np.array([given[label] for label in fingerprint.labels], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal_error(place, f"probabilities of every label, got {probabilities!r:.80}") from error
    return list(np.log(np.maximum(values, _LEAST)))


def _refusal_error(place: Path, what: str) -> DataError:
    return DataError(f"expected {what}. {_RUN}.", path=place)


class _DrawnRow(NamedTuple):
    """A sampled row with its predicted label."""

    example: Example
    label: str | None = None


def _vectors(head: Head, texts: Sequence[str], *, meter: Gate | None) -> Mapping[str, ArrayLike] | None:
    """Return vectors by text of a head's embedding model, and say what they take; None if it fails."""
    from calibrant.inference._text_vectors import TextVectors, announce_vectors, vectors_by_text  # noqa: PLC0415

    embedding = None if head.embedding is None else head.embedding.model
    if isinstance(embedding, TextVectors):
        left = embedding.missing(texts)
        announce_vectors(head, left, rows=len(left))
    return vectors_by_text(embedding, texts, meter=meter)


def add_baselines(
    directory: Path,
    labelled: Iterable[Example],
    *,
    labels: LabelSet,
    head: Head | None = None,
    known_features: Callable[[Sequence[str]], Mapping[str, HalfArray]] | None = None,
    meter: Gate | None = None,
) -> BaselineComparison:
    """Compare a finished evaluation with baselines, and store the comparison in ``metrics.json``.

    Of many rows some are drawn with a fixed seed: at most 10,000 to learn from and 5,000 to judge on, fewer where they
    are longer than 500 characters on average. Where an answer has several parts, each a field or a label of a set, the
    10,000 are divided by their number, down to 1,000.

    Parameters
    ----------
    directory : Path
        Output directory of the evaluation.
    labelled : iterable of Example
        Rows to learn from, answers spelled as in `labels`. Those with the text of a judged row are left out.
    labels : LabelSet
        The labels; an answer is one of them.
    head : Head, optional
        Head of the evaluated classifier. The vectors that it reads also make a baseline, of at most 1,000 rows to
        learn from.
    known_features : callable, optional
        Returns the features that are known of texts, by text, which make that baseline where the head reads no vectors.
    meter : Gate, optional
        Of the evaluation: counts the calls for vectors, too. Without budget there is no such baseline.

    Raises
    ------
    DataError
        A labelled row is broken.
    StateError
        A file of the directory is damaged or cannot be written.
    """
    predictions = directory / PREDICTIONS
    metrics = directory / METRICS
    record = read_run_record(
        metrics, remedy="delete it and run the same command again, which asks nothing twice"
    )
    try:
        judged = _drawn_rows(row_lines(predictions), _answered_row, most=_JUDGED)
    except (StateError, ValueError) as error:
        raise StateError(
            f"{predictions}: expected the rows of a finished run ({error}): restore the file."
        ) from error
    texts = {normalise_label(row.example.input) for row in judged}
    share = max(_LEAST_LEARNED, _LEARNED // len(labels.parts))
    learned = _drawn_rows(
        labelled,
        lambda example: None if normalise_label(example.input) in texts else _DrawnRow(example),
        most=min(_LEARNED, share),
    )
    taught = _drawn_rows((row.example for row in learned), _DrawnRow, most=_READ)
    read = [row.example.input for row in (*judged, *taught)]
    if head is not None and head.embedding is not None:
        vectors = _vectors(head, read, meter=meter)
    else:
        vectors = None if known_features is None else known_features(read)
    comparison = compare_with_baselines(
        [row.example for row in judged],
        [row.label for row in judged],
        [row.example for row in learned],
        labels=labels,
        failed=int(record["outcomes"][Outcome.ERROR.value]),
        uses_model=head is None or head.changes_nothing or head.uses_model,
        vectors=vectors,
    )
    if meter is not None and meter.vectors != Usage():
        record["vectors"] = as_record(meter.vectors)
    write_json(metrics, {**record, "baselines": comparison.to_record()})
    return comparison


def _answered_row(line: bytes) -> _DrawnRow | None:
    """Return the row in a line of the file; None if it failed with a transport error."""
    row = read_row(line)
    if row.outcome is Outcome.ERROR or row.input is None or row.answer is None:
        return None
    return _DrawnRow(Example(input=row.input, answer=row.answer), row.label)


def _drawn_rows(
    rows: Iterable[_Raw], read: Callable[[_Raw], _DrawnRow | None], *, most: int
) -> list[_DrawnRow]:
    """Return a random sample of the rows, in input order, read in one pass.

    Only rows that may stay are read.
    """
    rng = np.random.default_rng(_SEED)
    kept: list[tuple[float, int, _DrawnRow]] = []  # a heap; the largest random number, negated, comes first
    bound = 1.0
    characters = 0
    for place, raw in enumerate(rows):
        number = rng.random()
        if number >= bound or (row := read(raw)) is None:
            continue
        heapq.heappush(kept, (-number, place, row))
        characters += len(row.example.input)
        while len(kept) > most or characters > most * _CHARACTERS:
            largest, _, dropped = heapq.heappop(kept)
            bound = -largest
            characters -= len(dropped.example.input)
    kept.sort(key=lambda entry: entry[1])
    return [row for _, _, row in kept]
