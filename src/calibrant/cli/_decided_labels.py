"""File of labels with a source's decisions, and what is printed of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from calibrant.cli._evaluation_table import counts_text
from calibrant.cli._tables import say
from calibrant.core._errors import CalibrantError, ConfigurationError
from calibrant.core._files import as_record, read_record, write_record
from calibrant.evaluation._data import UnlabelledTexts
from calibrant.evaluation._label import LabelFile
from calibrant.heads._tuned import Tuned, thresholds_of
from calibrant.runs._directory import PREDICTIONS
from calibrant.tuned._task_record import BUNDLE

if TYPE_CHECKING:
    from calibrant.calibration._thresholds import FilePromise
    from calibrant.evaluation._drift import HistoryDrift, HistoryWatch

_TARGET: Final = 0.9  # accuracy of accepted rows, where no certificate names one
NOTE: Final = "labels.json"
_KIND: Final = "labels of a batch job"
_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class LabelJob:
    """Source, data and output format of labels; a batch job keeps them until it is collected.

    Attributes
    ----------
    source : Path
        Bundle, task file or directory of a run, whose thresholds decide, as the user named it.
    data : Path
        File of the rows.
    text : str
        Its column of texts.
    limit : int or None
        Only so many rows.
    format : str or None
        csv, jsonl or parquet.
    distribution : bool
        True to write the probabilities of all labels, too.
    accept_suggested : bool
        True to accept by a suggested threshold.
    accept_drift : bool
        True to accept rows that are unlike those of the certificate.
    """

    source: Path
    data: Path
    text: str
    limit: int | None = None
    format: str | None = None
    distribution: bool = False
    accept_suggested: bool = False
    accept_drift: bool = False

    def save(self, directory: Path) -> None:
        """Write the record to the job's directory.

        Raises
        ------
        StateError
            It cannot be written.
        """
        record = asdict(self)
        for name in ("source", "data"):
            record[name] = str(record[name].resolve())
        write_record(directory / NOTE, record, kind=_KIND, version=_VERSION)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the record in a job's directory.

        Raises
        ------
        StateError
            It is damaged.
        """
        record = read_record(directory / NOTE, kind=_KIND, version=_VERSION, make="submit the job")
        del record["kind"], record["version"]
        for name in ("source", "data"):
            record[name] = Path(record[name])
        return cls(**record)


@dataclass(frozen=True, kw_only=True)
class DecidedLabels:
    """File of labels, what decides, and the comparison with its history.

    Attributes
    ----------
    job : LabelJob
        What was asked for.
    tuned : Tuned or None
        What decides; None of a task file.
    watch : HistoryWatch or None
        Compares with the history, if there is one; None of a task file.
    file : LabelFile
        Written with the decisions.
    """

    job: LabelJob
    tuned: Tuned | None
    watch: HistoryWatch | None
    file: LabelFile

    @classmethod
    def of(cls, job: LabelJob, tuned: Tuned | None, *, out: Path, rows: UnlabelledTexts) -> Self:
        """Return the file of labels in a directory; see `LabelFile`.

        Raises
        ------
        ConfigurationError
            The format is unknown, pyarrow is missing, the input lies in the directory, or there is no suggested
            threshold to accept by.
        """
        watch = None
        if tuned is not None:
            from calibrant.evaluation._drift import HistoryWatch

            if job.accept_suggested:
                tuned = tuned.accepting_suggested()
            if job.accept_drift:
                tuned = tuned.accepting_drift()
            watch = HistoryWatch(tuned, counts_files=True)
        elif job.accept_suggested:
            raise ConfigurationError(
                "Expected a bundle or a run for --accept-suggested, got a task file, which has no thresholds: leave it "
                "out."
            )
        file = LabelFile(
            out,
            rows,
            file_format=job.format,
            decide=None if watch is None else watch.decide_many,
            decides_anew=None if watch is None else watch.decides_anew,
            distribution=job.distribution,
        )
        return cls(job=job, tuned=tuned, watch=watch, file=file)

    @property
    def is_calibrated(self) -> bool:
        """True if the confidences in the file are calibrated, unlike those of the metrics."""
        return self.tuned is not None and self.tuned.calibrator is not None

    def require_watch(self) -> None:
        """Raise ConfigurationError if there is no history to compare with."""
        if self.tuned is None or not self.tuned.history.rows:
            raise ConfigurationError(
                "Expected a bundle or a run with predictions for --watch-drift, got a source without: a task file has "
                "no history."
            )

    def outcome(self, *, with_drift: bool = False) -> tuple[dict[str, Any], list[str]]:
        """Return decisions, drift and the written file, as JSON values and as lines of text.

        Parameters
        ----------
        with_drift : bool, default False
            True for the lines on drift even where there is none.
        """
        written = self.file.written
        drift = self._drift()
        accepts_others = self.job.accept_drift and self._has_unmeasured_rows()
        is_unlike = drift is not None and (drift.has_drifted or accepts_others)
        promise = None if is_unlike else self._file_promise()
        record = {
            "kind": "labels",
            "file": str(written.path),
            "rows_written": written.rows,
            "decisions": dict(written.decisions),
            "rule": self._rule[0],
            "certification": self._thresholds["certification"],
            "file_promise": as_record(promise),
            "drift": as_record(drift),
        }
        lines = list(self._decision_lines(is_unlike=is_unlike))
        if promise is not None:
            lines.append(promise.sentence())
        lines += self._drift_lines(drift, with_drift=with_drift)
        return record, [*lines, f"File: {written.path}"]

    def _drift(self) -> HistoryDrift | None:
        """Return the drift; None without a history, or if the rows of the run cannot be read."""
        if self.watch is None:
            return None
        try:
            found = self.watch.drift(is_whole=self.file.is_whole)
        except CalibrantError as error:  # the labels are written, and do not depend on it
            say(f"warning: not compared with the labelled rows of the run: {error}")
            return None
        self._warn_of_ledger(self.watch)
        self._warn_of_models(self.watch)
        return found

    def _drift_lines(self, drift: HistoryDrift | None, *, with_drift: bool) -> Iterator[str]:
        if drift is None:
            return
        yield from drift.lines(all_of_them=with_drift, is_whole=self.file.is_whole)
        if self.tuned is not None and drift.has_drifted:
            yield (
                "These rows are unlike the labelled ones of the run, so its accuracy and thresholds may not hold for "
                f"them{self._consequence()}."
            )
            yield from self._certify_lines("To measure them, and to accept the surest")

    def _warn_of_ledger(self, watch: HistoryWatch) -> None:
        """Print warnings of a ledger that cannot be read or written."""
        if watch.damage:
            say(
                "warning: compared as the first file of the run, as it is not known how many were before"
                f"{self._consequence()}. {watch.damage}"
            )
        if watch.unwritten:
            say(
                "warning: later files are compared as if this one had not been: false alarms are more frequent. "
                f"{watch.unwritten}"
            )

    def _warn_of_models(self, watch: HistoryWatch) -> None:
        """Print a warning of rows whose model answered none of those that were measured."""
        warning = watch.model_warning()
        if warning is None:
            return
        rule, least = self._rule
        if rule == "certified" and least is not None and not self.job.accept_drift:
            say(f"warning: {warning} --accept-drift accepts them.")
        elif self.file.written.decisions.get("accepted"):
            say(f"warning: {warning}")

    def _has_unmeasured_rows(self) -> bool:
        """Return whether there are rows whose model answered none of those that were measured."""
        return self.watch is not None and self.watch.model_warning() is not None

    def _certify_lines(self, purpose: str) -> Iterator[str]:
        """Yield the command that asks for labels of this file's rows; nothing while some are not answered yet."""
        if not self.file.is_whole:
            return
        certified = self._thresholds["certified"]
        target = _TARGET if certified is None else certified["target_accuracy"]
        words = ["calibrant", "review", str(self.file.directory), "--certify", "--target", f"{target:g}"]
        yield f"{purpose} with a promise about this file, from true labels of some of its rows:"
        yield f"  {shlex.join(words)}"

    def _consequence(self) -> str:
        if self.watch is None or not self.watch.reviews_all:
            return ""
        return ": none is accepted (--accept-drift accepts them all the same)"

    def _decision_lines(self, *, is_unlike: bool) -> Iterator[str]:
        """Yield lines on the decisions: their rule and, where nothing is accepted, the reason; none without a label."""
        written = self.file.written
        if not written.labelled:
            return
        decisions = written.decisions
        rule, least = self._rule
        # Rows without a label are for review whatever decides; a cascade decides on the others as well.
        if rule is None and sum(decisions.values()) <= written.rows - written.labelled:
            yield from self._no_decision_lines()
            return
        why = "by the cascade's own thresholds"
        if rule == "suggested":
            why = f"from the suggested threshold {least:.4g} on, as --accept-suggested says: nothing is promised"
        elif self.watch is not None and self.watch.reviews_all:
            why = "as they are unlike the rows of the certificate"
            if self.watch.damage:
                why = "as they cannot be compared with the rows of the certificate"
        elif self._has_unmeasured_rows() and not self.job.accept_drift and "accepted" not in decisions:
            why = "as their model answered no row of the certificate"
        elif least is not None:
            promise = ", which promises nothing of these rows" if is_unlike else self._promise()
            why = f"by the certified threshold {least:.4g} of {self._measured()}{promise}"
        elif rule is not None:
            why = "as nothing is certified"
        yield f"decisions: {counts_text(dict(sorted(decisions.items())))} ({why})"
        if rule == "certified":
            yield from self._certificate_lines()

    def _certificate_lines(self) -> Iterator[str]:
        """Yield lines on a certificate that was asked for: what it is about, or why there is none."""
        from calibrant.calibration._thresholds import AGREEMENT, certificate_from_record, certificate_lines

        found = certificate_from_record(self._thresholds["certification"])
        if found.threshold is None:
            yield from certificate_lines(found, run=self._run, out=self._run)
            yield from self._certify_lines("Or, to accept the surest rows")
        elif found.of_agreement:
            yield AGREEMENT

    def _file_promise(self) -> FilePromise | None:
        """Return the promise on the rows of this file; None without a certificate."""
        if not self.file.written.decisions.get("accepted") or self._rule[0] != "certified":
            return None
        from calibrant.calibration._thresholds import FilePromise

        accepted = self.file.accepted
        found = FilePromise.of(self._thresholds["certified"], accepted.counts(), compared=accepted.compared)
        return found if found.least_right else None  # so few rows promise nothing

    @property
    def _rule(self) -> tuple[str | None, float | None]:
        """Rule that accepts rows, and the lowest accepted confidence; see `Tuned.rule`."""
        if self.tuned is None:
            return None, None
        return self.tuned.rule

    @property
    def _thresholds(self) -> Mapping[str, Any]:
        if self.tuned is None:
            return thresholds_of(None)
        return self.tuned.thresholds

    @property
    def _run(self) -> str:
        """Directory to calibrate: the source, unless it is a bundle, which holds no rows, or a task file."""
        is_run = self.tuned is not None and not (self.job.source / BUNDLE).exists()
        if is_run:
            return str(self.job.source)
        return "RUN"

    def _too_few_rows(self) -> int | None:
        """Return the fewest rows that certify answers, if the run has fewer; else None."""
        from calibrant.evaluation._learned import FEWEST  # a run with a promise is not calibrated

        predictions = self.job.source / PREDICTIONS
        if not predictions.is_file():
            return None
        with predictions.open("rb") as lines:
            n_rows = sum(1 for _ in lines)
        return FEWEST if n_rows < FEWEST else None

    def _measured(self) -> str:
        """Return the name of what the threshold is compared with: the file holds calibrated values."""
        return "the confidence before calibration" if self.is_calibrated else "the model's confidence"

    def _promise(self) -> str:
        """Return the promise of the certified threshold, in a few words."""
        certified = self._thresholds["certified"]
        certain = 1 - certified["delta"]
        return f": accuracy of at least {certified['target_accuracy']:g} with probability {certain:g}"

    def _no_decision_lines(self) -> Iterator[str]:
        run = self._run
        if self.tuned is None:
            yield (
                "No decisions, as a task file holds no promise, with --run neither. A run that `calibrant optimize` or "
                "`calibrant calibrate` has certified decides:"
            )
            yield f"  {shlex.join(['calibrant', 'label', 'RUN', str(self.job.data)])}"
            return
        fewest = self._too_few_rows()
        if fewest is not None:
            review = shlex.join(["calibrant", "review", str(self.file.directory), "--certify"])
            yield (
                f"No decisions: {run} has fewer than {fewest} rows with a true label, too few for a promise. A promise "
                f"on this file, for labels of yours: {review}"
            )
            return
        yield (
            "No decisions, as no promise was asked for: on a run with labelled rows, `calibrant calibrate` certifies "
            "which answers to accept. Then label with that run:"
        )
        yield f"  {shlex.join(['calibrant', 'calibrate', run, '--target-accuracy', '0.9', '--out', run])}"
        suggested = self._thresholds["suggested"]
        if suggested is not None:
            high = suggested["high"]
            yield (
                f"--accept-suggested would accept from the suggested threshold {high:.4g} on, which promises nothing."
            )
