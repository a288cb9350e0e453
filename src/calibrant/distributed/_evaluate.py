"""Evaluation of a classifier on labelled rows with several workers, without losing a row."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Protocol

from calibrant.core._errors import CalibrantError, StateError
from calibrant.core._label_records import described_labels
from calibrant.core._limits import Limits
from calibrant.core._predictor import Predictor, Stop
from calibrant.core._rows import Example
from calibrant.distributed._ray import (
    RemoteLedger,
    answered_blocks,
    connected,
    opened_ledger,
    require_ray,
)
from calibrant.distributed._settings import Cluster, is_file, share
from calibrant.distributed._worker import AnsweredBlock, Reader
from calibrant.evaluation._data import Dataset, checked, inspect
from calibrant.evaluation._evaluator import EvaluationResult
from calibrant.evaluation._progress import EvaluationProgress, EvaluationProgressListener
from calibrant.evaluation._tally import Tally
from calibrant.inference.doctor._records import public_description
from calibrant.metrics._intervals import wilson_interval
from calibrant.runs._directory import RunDirectory
from calibrant.runs._shards import Shards

_VERSION: Final = 1
_LOOK_SECONDS: Final = 0.2  # between two checks for a stop request


class Opening(Protocol):
    """Function that opens a classifier; pickled, and called once in each worker."""

    def __call__(self, *, limits: Limits) -> Predictor:
        """Return a classifier that keeps `limits`."""
        ...


def evaluate(  # noqa: PLR0913 (keyword-only options)
    dataset: Dataset,
    *,
    opening: Opening,
    out: str | Path,
    cluster: Cluster | None = None,
    limits: Limits | None = None,
    cache: str | None = None,
    about: Mapping[str, Any] | None = None,
    on_progress: EvaluationProgressListener | None = None,
    stop: Stop | None = None,
) -> EvaluationResult:
    """Evaluate a classifier with several workers on Ray Data.

    Rows are read on this machine as they are wanted, dealt out in blocks, answered by workers that each
    have a client of their own, and written here: a file for each block as it comes back, in the end
    ``predictions.jsonl`` in their place, with all rows in the order of the input; ``metrics.json`` and
    ``run.json`` are as `calibrant.evaluation.BatchEvaluator` writes them. At most a few
    blocks are in memory: a worker waits until its last block is taken. The block of a worker that dies is
    answered by another one. After an interruption, a kill included, the same call goes on where it was; rows
    that failed with a transport error are asked again.

    Parameters
    ----------
    dataset : Dataset
        The labelled rows.
    opening : callable
        Returns the classifier for the `limits` it is given, such as ``functools.partial(calibrant.load,
        "bundle")`` or ``functools.partial(calibrant.assembly.open_classifier, task)``. It travels to the
        workers with all it holds, keys in a task's options included.
    out : path
        Directory for the rows and numbers, on this machine.
    cluster : Cluster, optional
        Address of the cluster, number of workers, and rows per block.
    limits : Limits, optional
        Limits of all workers together, by default 64 calls in flight, which are shared out evenly. Rates and
        budgets are shared: other workers may use the part of a rate that one leaves, and rows that a worker had
        begun when it died count as paid, at the mean price. Budgets start anew when a run is resumed.
    cache : str, optional
        URL or file of finished predictions that every worker can open; a file on one machine only. Without one,
        the rows under way in a worker that dies are paid again.
    about : mapping, optional
        JSON values that belong to the run; see `calibrant.evaluation.BatchEvaluator.evaluate`.
    on_progress : callable, optional
        Called after each block.
    stop : Stop, optional
        Ends the run after the rows under way.

    Returns
    -------
    EvaluationResult
        Without predictions: they are in the files.

    Raises
    ------
    ConfigurationError
        Ray is missing, the cluster cannot be used, or there are fewer calls in flight than workers.
    DataError
        The dataset is empty, or a row is malformed or has an unknown label.
    ProviderError
        Every call would fail, or a long series of rows has failed; earlier answers are kept.
    StateError
        The directory holds another run, is in use or cannot be written, or the workers died again and again.
    CalibrantError
        The directory was moved or removed during the run; the message names the directory of later answers.
    """
    require_ray()
    cluster, limits = cluster or Cluster(), limits or Limits()
    own_share = share(limits, cluster.workers)
    classifier = opening(limits=own_share)
    try:
        labels, described = classifier.labels, classifier.describe()
        if limits.concurrency is None and classifier.in_process:  # each worker loads its own engine
            gates = classifier.with_limits(Limits()).gates
            own_share = replace(own_share, concurrency=min(gate.concurrency for gate in gates))
    finally:
        classifier.close()
    inspection = inspect(dataset, labels)
    about, stop = about or {}, stop or Stop()
    fingerprint = {
        "schema_version": _VERSION,
        "kind": "evaluation",
        "calibrant": metadata.version("calibrant"),
        "engine": {"name": "ray", "block_rows": cluster.block_rows},
        **about,
        **described,
        **described_labels(labels),
        "data": inspection.to_record(),
    }
    with RunDirectory.opened(Path(out), fingerprint, comparable=public_description) as directory:
        run = _ClusterRun(
            directory,
            Reader(dataset=dataset, labels=labels, block_rows=cluster.block_rows),
            expected=inspection.rows,
            about={**about, "model": described["model"]},
            on_progress=on_progress,
        )
        reader = run.recovered()
        if run.remaining:
            with (
                connected(cluster, shares_a_file=cache is not None and is_file(cache)),
                opened_ledger(limits, workers=cluster.workers) as ledger,
                closing(
                    answered_blocks(
                        reader, opening, cluster=cluster, limits=own_share, cache=cache, ledger=ledger
                    )
                ) as blocks,
                run.ended_by(stop, limits.run_seconds, ledger),
                run.kept_whatever_happens(),
            ):
                run.take(blocks, stop, ledger)
        return run.finish()


class _ClusterRun:
    """One evaluation on a cluster.

    Parameters
    ----------
    directory : RunDirectory
        Output directory.
    reader : Reader
        All its rows.
    expected : int
        Their number.
    about : mapping
        Further entries of ``metrics.json``.
    on_progress : callable or None
        Called after each block.

    Attributes
    ----------
    remaining : int
        Rows without a final prediction, counted by `recovered`.
    """

    def __init__(
        self,
        directory: RunDirectory,
        reader: Reader,
        *,
        expected: int,
        about: Mapping[str, Any],
        on_progress: EvaluationProgressListener | None,
    ) -> None:
        self._directory = directory
        self._reader = reader
        self._shards = Shards(directory.shards, reader.block_rows)
        self._tally = Tally(reader.labels)
        self._expected = expected
        self._about = about
        self._on_progress = on_progress
        self.remaining = expected
        self._answered = 0
        self._stopped = ""
        self._lost: CalibrantError | None = None
        self._started = time.perf_counter()

    def recovered(self) -> Reader:
        """Count the finished rows; return a reader of the others."""
        reader, directory = self._reader, self._directory
        if directory.predictions.exists():
            # All rows are in the file; remaining block files were left by a killed process.
            self._shards.remove()
            if self._shards.count_finished(directory.predictions, self._rows(), self._tally):
                self.remaining = 0
                return reader
            self._shards.split(directory.predictions)
            self._tally = Tally(reader.labels)
        found = self._shards.recover(self._rows(), self._tally)
        self.remaining = self._expected - found.rows
        for path in (directory.metrics, directory.predictions, directory.parquet):
            path.unlink(missing_ok=True)  # outdated: written for fewer rows, or with failed ones
        return replace(reader, done=frozenset(found.done), kept=found.kept)

    def _rows(self) -> Iterator[Example]:
        return checked(self._reader.dataset, self._reader.labels)

    @contextmanager
    def kept_whatever_happens(self) -> Iterator[None]:
        """Write the metrics so far if an exception ends the run."""
        try:
            yield
        except BaseException as error:
            self._stopped = str(error) or "interrupted"
            with suppress(Exception):  # the error under way matters more
                self.finish()
            raise

    @contextmanager
    def ended_by(self, stop: Stop, seconds: float | None, ledger: RemoteLedger) -> Iterator[None]:
        """Pass a stop request or the deadline on to the workers: they finish the rows under way and begin no others."""
        done = Event()
        self._started = time.perf_counter()

        def listen() -> None:
            while not stop.reason and not done.wait(_LOOK_SECONDS):
                if seconds is not None and time.perf_counter() - self._started >= seconds:
                    stop.request(f"The deadline of {seconds:g} seconds has passed")
            if stop.reason and not done.is_set():
                with suppress(StateError):  # `take` meets the same error and raises it
                    ledger.close(stop.reason, at_once=True)

        listener = Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield
        finally:
            done.set()
            listener.join()

    def take(self, blocks: Iterable[AnsweredBlock], stop: Stop, ledger: RemoteLedger) -> None:
        """Write blocks as they come; after a stop request, only those already begun."""
        fault: CalibrantError | None = None
        for found in blocks:
            fault = fault or found.raised()
            try:
                self._write(found)
            except CalibrantError as error:
                fault = fault or error
            reason = str(fault or found.stopped or stop.reason)
            if reason and not self._stopped:
                self._stopped = reason
                ledger.close(reason, at_once=not found.stopped)
        self._stopped = self._stopped or stop.reason
        if fault is not None:
            raise fault

    def _write(self, found: AnsweredBlock) -> None:
        lines = found.lines.splitlines(keepends=True)
        if not lines:
            return
        self._look_after_the_directory()
        try:
            # One atomic file per block: a block that Ray answers twice is overwritten, never appended.
            self._shards.add(found.block, found.lines)
        except StateError:
            if self._directory.in_place:
                raise
            self._look_after_the_directory()  # the directory vanished between the check and the write
            self._shards.add(found.block, found.lines)
        for line in lines:
            self._tally.add_record(json.loads(line))
            self._answered += 1
        self._report()
        if self._lost is not None:
            raise self._lost

    def _look_after_the_directory(self) -> None:
        """Switch to a rescue directory if the run's own was moved or removed."""
        if self._lost is None and not self._directory.in_place:
            rescue = self._directory.rescued()
            self._shards = Shards(rescue.shards, self._reader.block_rows)
            self._lost = self._directory.lost(rescue, "the rows answered since then are kept")

    def _report(self) -> None:
        if self._on_progress is None:
            return
        tally = self._tally
        self._on_progress(
            EvaluationProgress(
                rows=tally.rows,
                rows_expected=self._expected,
                session_rows=self._answered,
                remaining=self.remaining - self._answered,
                seconds=time.perf_counter() - self._started,
                accuracy_answered=wilson_interval(tally.correct, tally.answered) if tally.answered else None,
                errors=dict(tally.errors),
                cost=tally.cost if tally.priced else None,
            )
        )

    def finish(self) -> EvaluationResult:
        """Put the rows in order, once all are there, and return the numbers."""
        self._look_after_the_directory()
        if self._lost is not None:
            raise self._lost
        directory, tally = self._directory, self._tally
        joined = directory.predictions.exists()
        if not joined:
            # Counted again from the files, which also hold failed rows that were not asked again.
            tally = self._tally = Tally(self._reader.labels)
            for line in self._shards.lines():
                tally.add_record(json.loads(line))
        metrics = tally.metrics(
            expected=self._expected,
            stopped=self._stopped if self._answered < self.remaining else "",
            seconds=time.perf_counter() - self._started if self._answered else 0.0,
            session_rows=self._answered,
        )
        if not joined and metrics.complete:
            self._shards.join(directory.predictions)
            self._shards.remove()
        if self._answered or not directory.metrics.exists():
            directory.write_metrics({**metrics.to_record(), **self._about})
        return EvaluationResult(predictions=(), metrics=metrics, directory=directory.path)
