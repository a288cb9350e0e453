"""File of labels with a source's decisions, and what is printed of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from calibrant.cli._evaluation_table import counts_text
from calibrant.core._errors import ConfigurationError
from calibrant.evaluation._label import LabelFile

if TYPE_CHECKING:
    from calibrant.assembly._bundle import Bundle
    from calibrant.assembly._bundle_drift import BundleDrift, BundleWatch
    from calibrant.evaluation._data import UnlabelledTexts


@dataclass(frozen=True, kw_only=True)
class DecidedLabels:
    """File of labels, the bundle that decides, and the comparison with its history.

    Attributes
    ----------
    source : Path
        Bundle, task file or directory of a run, as the user named it.
    bundle : Bundle or None
        None of a task file.
    watch : BundleWatch or None
        None without a history.
    file : LabelFile
        Written with the decisions.
    """

    source: Path
    bundle: Bundle | None
    watch: BundleWatch | None
    file: LabelFile

    @classmethod
    def of(
        cls,
        source: Path,
        bundle: Bundle | None,
        *,
        out: Path,
        rows: UnlabelledTexts,
        file_format: str | None,
        distribution: bool,
    ) -> Self:
        """Return the file of labels in a directory; see `LabelFile`.

        Raises
        ------
        ConfigurationError
            The format is unknown, pyarrow is missing, or the input lies in the directory.
        """
        watch = None
        if bundle is not None and bundle.history.rows:
            from calibrant.assembly._bundle_drift import BundleWatch

            watch = BundleWatch(bundle)
        decide = watch or bundle
        file = LabelFile(
            out,
            rows,
            file_format=file_format,
            decide=None if decide is None else decide.decide_many,
            distribution=distribution,
        )
        return cls(source=source, bundle=bundle, watch=watch, file=file)

    def require_watch(self) -> None:
        """Raise ConfigurationError if there is no history to compare with."""
        if self.watch is None:
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
        drift = None if self.watch is None else self.watch.drift()
        record = {
            "kind": "labels",
            "file": str(written.path),
            "rows_written": written.rows,
            "decisions": dict(written.decisions),
            "drift": None if drift is None else drift.to_record(),
        }
        lines = [self._decision_line(), *self._drift_lines(drift, with_drift=with_drift)]
        return record, [*lines, f"File: {written.path}"]

    def _drift_lines(self, drift: BundleDrift | None, *, with_drift: bool) -> Iterator[str]:
        if drift is None:
            return
        if with_drift or drift.labels_drifted:
            yield drift.labels_line()
        if with_drift or drift.confidence_drifted:
            yield drift.confidence_line()
        if self.bundle is not None and (drift.labels_drifted or drift.confidence_drifted):
            answer = self.bundle.tasks[0].task.columns.answer
            yield (
                "These rows are unlike the labelled ones of the run, so its accuracy and thresholds may not hold for "
                "them. To measure it, copy some of the rows into a file, add their right answers as a column "
                f"{answer!r}, and run `calibrant evaluate {self.source} --file FILE --out DIR`."
            )

    def _decision_line(self) -> str:
        decisions = self.file.written.decisions
        rule, least = (None, None) if self.bundle is None else self.bundle.rule
        if rule is None and not decisions:
            run = self.source if self.bundle is not None else Path("RUN")
            return (
                "No decisions, as there are no thresholds: `calibrant calibrate` on a run with labelled rows gives "
                f"them, such as `calibrant calibrate {run} --out {run}`; then label with that run."
            )
        if rule is None:
            why = "the cascade's own thresholds"
        elif least is None:
            why = (
                f"{rule} threshold none, as too little is known to promise anything: every row is to be reviewed; "
                "`calibrant calibrate` says how many more labelled rows would do, or takes a lower --target-accuracy"
            )
        elif least == 0:
            why = f"{rule} threshold 0: every answer is accepted"
        else:
            why = f"{rule} threshold {least:.4g} of the model's confidence"
        return f"decisions: {counts_text(dict(sorted(decisions.items())))} ({why})"
