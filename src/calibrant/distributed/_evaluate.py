"""Evaluation of a classifier on labelled rows by several workers, on Ray Data."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from calibrant.core._errors import CalibrantError, ConfigurationError, StateError
from calibrant.core._predictor import Limits, Predictor, Stop
from calibrant.core._reported import counted
from calibrant.core._rows import Example
from calibrant.distributed._ledger import BudgetLedger
from calibrant.distributed._ray import (
    AnsweredBlock,
    Cluster,
    Reader,
    RemoteLedger,
    answered_blocks,
    connected,
    opened_ledger,
    require_ray,
)
from calibrant.evaluation._data import (
    Dataset,
    UnlabelledTexts,
    asked_as_before,
    checked,
    find_abilities,
    inspect,
)
from calibrant.evaluation._evaluator import run_fingerprint
from calibrant.evaluation._metrics import EvaluationProgressListener, EvaluationResult, RunAccount, Tally
from calibrant.inference._base import BasePredictor
from calibrant.runs._directory import RunDirectory
from calibrant.runs._shards import Shards

_LOOK_SECONDS: Final = 0.2  # between two checks for a stop request
_CONCURRENCY: Final = 64


def _in_process_share(limits: Limits, predictor: Predictor) -> Limits:
    """Return the limits of a worker, which loads an engine of its own where the model runs in its process."""
    if not predictor.in_process:
        return limits
    gates = predictor.with_limits(Limits()).gates
    return replace(limits, concurrency=min(gate.concurrency for gate in gates))


def evaluate(  # noqa: PLR0913 (keyword-only options)
    dataset: Dataset | UnlabelledTexts,
    *,
    opening: Callable[..., Predictor],
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
        The labelled rows; or rows without answers, as `calibrant label` reads them.
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
        The directory was moved or removed during the run.

    Examples
    --------
    It needs Ray (extra ``ray``), and here a bundle:

    >>> from functools import partial
    >>> from pathlib import Path
    >>> from calibrant import load
    >>> from calibrant.core import DataSource, LabelSet
    >>> from calibrant.distributed import Cluster, evaluate
    >>> from calibrant.evaluation import Dataset
    >>> rows = Dataset(source=DataSource(path=Path("rows.jsonl")), labels=LabelSet(["cat", "dog"]))
    >>> opening, cluster = partial(load, "bundle"), Cluster(workers=4)
    >>> evaluate(rows, opening=opening, out="run", cluster=cluster).metrics.rows  # doctest: +SKIP
    100000
    """
    require_ray()
    cluster, limits, about, stop = cluster or Cluster(), limits or Limits(), about or {}, stop or Stop()
    own_share = share(limits, cluster.workers)
    classifier = opening(limits=own_share)
    try:
        classifier = asked_as_before(classifier, out)
        find_abilities(classifier, dataset, stop=stop)  # workers do not
        labels, described = classifier.labels, classifier.describe()
        opening = partial(_opened_alike, opening, method=described["method"])
        if limits.concurrency is None:
            own_share = _in_process_share(own_share, classifier)
    finally:
        classifier.close()
    inspection = inspect(dataset, labels)
    kind = "labels" if isinstance(dataset, UnlabelledTexts) else "evaluation"
    engine = {"name": "ray", "block_rows": cluster.block_rows}
    fingerprint = run_fingerprint(labels, described, inspection, about, kind=kind, engine=engine)
    account = RunAccount(labels, expected=inspection.rows, on_progress=on_progress)
    with RunDirectory.opened(Path(out), fingerprint) as directory:
        run = _ClusterRun(
            directory=directory,
            reader=Reader(dataset=dataset, labels=labels, block_rows=cluster.block_rows),
            account=account,
            about={**about, "model": described["model"]},
        )
        reader = run.recovered()
        if account.remaining:
            with (
                connected(cluster, shares_a_file=cache is not None and is_file(cache)),
                opened_ledger(limits, workers=cluster.workers) as ledger,
                closing(
                    answered_blocks(
                        reader, opening, cluster=cluster, limits=own_share, cache=cache, ledger=ledger
                    )
                ) as blocks,
                run.ended_by(stop, limits.run_seconds, ledger),
                account.kept(run.finish),
            ):
                run.take(blocks, stop, ledger)
        return run.finish()


def _opened_alike(
    opening: Callable[..., Predictor], *, method: Mapping[str, Any], limits: Limits
) -> Predictor:
    """Open a classifier that asks its model as all others do, without finding out how."""
    predictor = opening(limits=limits)
    if isinstance(predictor, BasePredictor):
        return predictor.asked_as(method)
    return predictor


def share(limits: Limits, workers: int) -> Limits:
    """Return the limits of one worker: its share of the concurrent calls, and no deadline.

    Without a limit of concurrency, all workers together have 64 calls in flight.

    Raises
    ------
    ConfigurationError
        There are fewer calls in flight than workers.
    """
    concurrency = limits.concurrency or _CONCURRENCY
    if concurrency < workers:
        raise ConfigurationError(
            f"Expected at least one call in flight for each of {workers} workers, got a concurrency of "
            f"{concurrency}: raise it, or take fewer workers."
        )
    # Rounded down, so that all workers together stay within the limit. The driver keeps the run's deadline.
    return replace(limits, concurrency=math.floor(concurrency / workers), run_seconds=None)


def is_file(cache: str) -> bool:
    """Return True if the URL or path of a cache names a SQLite file, which only one machine has."""
    return "://" not in cache or cache.startswith("sqlite")


@dataclass(eq=False, kw_only=True)
class _ClusterRun:
    """One evaluation on a cluster.

    Attributes
    ----------
    directory : RunDirectory
        Output directory.
    reader : Reader
        All its rows.
    account : RunAccount
        Its counts; `recovered` sets the remaining rows.
    about : mapping
        Further entries of ``metrics.json``.
    """

    directory: RunDirectory
    reader: Reader
    account: RunAccount
    about: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._shards = Shards(self.directory.shards, self.reader.block_rows)

    def recovered(self) -> Reader:
        """Count the finished rows; return a reader of the other rows."""
        reader = self.reader
        directory = self.directory
        account = self.account
        if directory.predictions.exists():
            # All rows are in the file; remaining block files were left by a killed process.
            self._shards.remove()
            if self._shards.count_finished(directory.predictions, self._rows(), account.tally.add):
                account.remaining = 0
                return reader
            self._shards.split(directory.predictions)
            account.tally = Tally(reader.labels)
        finished = self._shards.recover(self._rows(), account.tally.add)
        account.remaining = (account.expected or 0) - sum(map(len, finished.values()))
        for path in (directory.metrics, directory.predictions, directory.parquet):
            path.unlink(missing_ok=True)  # outdated: written for fewer rows, or with failed ones
        return replace(reader, finished=finished)

    def _rows(self) -> Iterator[Example]:
        return checked(self.reader.dataset, self.reader.labels)

    @contextmanager
    def ended_by(self, stop: Stop, seconds: float | None, ledger: RemoteLedger) -> Iterator[None]:
        """Pass a stop request or the deadline to the workers, which finish begun rows and begin no others."""
        done = Event()
        self.account.started = time.perf_counter()

        def listen() -> None:
            while not stop.reason and not done.wait(_LOOK_SECONDS):
                if seconds is not None and time.perf_counter() - self.account.started >= seconds:
                    stop.request(f"The deadline of {counted(seconds, 'second')} has passed")
            if stop.reason and not done.is_set():
                with suppress(StateError):  # `take` meets the same error and raises it
                    ledger.ask(BudgetLedger.close, stop.reason, at_once=True)

        listener = Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield
        finally:
            done.set()
            listener.join()

    def take(self, blocks: Iterable[AnsweredBlock], stop: Stop, ledger: RemoteLedger) -> None:
        """Write answered blocks as they arrive; after a failure or a stop request, end the run."""
        fault: CalibrantError | None = None
        for found in blocks:
            fault = fault or found.raised()
            try:
                self._write(found)
            except CalibrantError as error:
                fault = fault or error
            reason = str(fault or found.stopped or stop.reason)
            if reason and not self.account.stopped:
                self.account.stopped = reason
                ledger.ask(BudgetLedger.close, reason, at_once=not found.stopped)
        self.account.stopped = self.account.stopped or stop.reason
        if fault is not None:
            raise fault

    def _write(self, found: AnsweredBlock) -> None:
        lines = found.lines.splitlines(keepends=True)
        if not lines:
            return
        self._check_directory()
        try:
            # One atomic file per block: a block that Ray answers twice is overwritten, never appended.
            self._shards.add(found.block, found.lines)
        except StateError:
            self._check_directory()  # it may have vanished between the check and the write
            raise
        for line in lines:
            self.account.tally.add(json.loads(line))
            self.account.answered += 1
        self.account.report()

    def _check_directory(self) -> None:
        """Raise if the run's directory was moved or removed: it would be made anew with a part of the rows."""
        if not self.directory.in_place:
            raise self.directory.lost()

    def finish(self) -> EvaluationResult:
        """Merge the rows in input order, once all are there, and return the result."""
        self._check_directory()
        account = self.account
        joined = self.directory.predictions.exists()
        if not joined:
            # Counted again from the files, which also hold failed rows that were not asked again.
            account.tally = Tally(self.reader.labels)
            for line in self._shards.lines():
                account.tally.add(json.loads(line))
            if account.tally.rows >= (account.expected or 0):
                self._shards.join(self.directory.predictions)
                self._shards.remove()
        if account.answered >= (account.remaining or 0):
            account.stopped = ""
        return account.result(self.directory, self.about)
