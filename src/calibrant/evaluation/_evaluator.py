"""Evaluates a classifier on labelled rows, however many, and loses none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._label_records import described_labels
from calibrant.core._limits import Limits
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Predictor, Query, Stop
from calibrant.core._records import Journal
from calibrant.core._rows import Example
from calibrant.evaluation._cache import open_cache
from calibrant.evaluation._data import Inspection, checked, inspect
from calibrant.evaluation._metrics import EvaluationMetrics
from calibrant.evaluation._progress import EvaluationProgress, EvaluationProgressListener
from calibrant.evaluation._tally import Tally
from calibrant.inference._limits import rate_limit_waits
from calibrant.inference._loop import run_sync
from calibrant.inference.doctor._records import public_description
from calibrant.metrics._intervals import wilson_interval
from calibrant.runs._directory import RunDirectory
from calibrant.runs._output import PredictionsFile

_CONCURRENCY: Final = 64
_LOG = logging.getLogger("calibrant")
_TICK: Final = 0.25  # seconds between reports
_VERSION: Final = 1  # of run.json and predictions.jsonl


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """What an evaluation found.

    Attributes
    ----------
    predictions : tuple of Prediction
        One per row, in the order of the input; empty where they went to files.
    metrics : EvaluationMetrics
        The numbers.
    directory : Path or None
        Where the files are.
    """

    predictions: tuple[Prediction, ...]
    metrics: EvaluationMetrics
    directory: Path | None = None


class BatchEvaluator:
    """Runs labelled rows through a classifier, concurrently, and says how it fared.

    With ``out``, rows go to a directory as they are answered: ``predictions.jsonl`` (one JSON object a
    row, in the order of the input), ``metrics.json`` and ``run.json``. Memory then does not grow with the
    rows. After an interruption, a kill included, the same call goes on where it was: finished rows are
    read from the directory, and those answered but not yet written from the cache. Rows that failed for
    the server's reasons are asked again.

    Parameters
    ----------
    classifier : Predictor
        What is evaluated; it is not changed, and not closed.
    concurrency : int, optional
        Calls in flight at most; by default what `limits` or the classifier was told, else 64, and 4 for an embedded
        engine.
    cache : Journal, str or path, optional
        Finished predictions, or the SQLAlchemy URL or file of a `calibrant.store.PredictionCache`. By
        default the classifier's own journal; without one, a directory keeps a private journal until its
        run is complete.
    limits : Limits, optional
        Rates, budgets and deadlines of one evaluation; by default the classifier's. `concurrency` comes
        before the one in it.

    Raises
    ------
    ConfigurationError
        A limit is out of range.

    Examples
    --------
    >>> from calibrant.inference import Classifier
    >>> from calibrant.core import Example
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(labels=["cat", "dog"], answers={"purrs": "cat", "barks": "dog"})
    >>> classifier = Classifier(model=fake, labels=["cat", "dog"], field="category")
    >>> rows = [Example(input="purrs", answer="cat"), Example(input="barks", answer="cat")]
    >>> BatchEvaluator(classifier).evaluate(rows).metrics.accuracy.estimate
    0.5
    """

    def __init__(
        self,
        classifier: Predictor,
        *,
        concurrency: int | None = None,
        cache: Journal | str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._predictor = classifier
        self._cache = cache
        limits = limits or classifier.limits
        most = limits.concurrency if concurrency is None else concurrency
        if most is None:
            slowest = min(gate.concurrency for gate in classifier.gates)
            most = slowest if classifier.in_process else _CONCURRENCY
        self._limits = replace(limits, concurrency=most)

    def evaluate(
        self,
        examples: Iterable[Example],
        *,
        out: str | Path | None = None,
        about: Mapping[str, Any] | None = None,
        on_progress: EvaluationProgressListener | None = None,
        stop: Stop | None = None,
    ) -> EvaluationResult:
        """Evaluate the classifier.

        Parameters
        ----------
        examples : iterable of Example
            The rows, such as a list or a `Dataset`. What can be read twice is read once before the first
            call, so that a broken row costs nothing; an iterator is read as its rows are begun.
        out : path, optional
            Directory for the rows and numbers; needs examples that can be read twice.
        about : mapping, optional
            JSON values that belong to the run, such as the task's name: kept in ``run.json`` and
            ``metrics.json``; a run with other ones is not continued.
        on_progress : callable, optional
            Called with an `EvaluationProgress` four times a second, and at the end.
        stop : Stop, optional
            Ends the run after the rows under way.

        Returns
        -------
        EvaluationResult
            Its ``metrics.stopped`` says why a run ended early (a budget, a deadline, `stop`).

        Raises
        ------
        ConfigurationError
            `out` is given, and the examples are an iterator or the model is a function without a name.
        DataError
            There are no rows, or one is broken or has an unknown answer.
        ProviderError
            A fault that every call would meet, or nothing but failures; what was answered before is kept.
        StateError
            The directory holds another run, is in use by another process, or cannot be written.
        CalibrantError
            The directory was moved or removed during the run; the message says where its rows are kept.
        """
        if iter(examples) is examples:
            if out is not None:
                raise ConfigurationError(
                    "Expected examples that can be read twice when out is given, got an iterator: pass a list or "
                    "a calibrant.evaluation.Dataset."
                )
            inspection = None
        elif out is not None and "<lambda>" in self._predictor.name:
            raise ConfigurationError(
                "Expected a function with a name of its own when out is given, got a lambda: what a run has paid "
                "for is kept under the name of its model."
            )
        else:
            inspection = inspect(examples, self._predictor.labels)
        run = _Run(
            self._predictor.with_limits(self._limits), examples, inspection, on_progress, stop or Stop()
        )
        with ExitStack() as stack:
            if out is not None:
                directory = stack.enter_context(
                    RunDirectory.opened(
                        Path(out),
                        self._fingerprint(inspection, about or {}),
                        comparable=public_description,
                    )
                )
                run.write_to(directory, about or {})
            if run.anything_left():
                self._attach_cache(run, stack)
                run.answer()
            elif run.directory is not None:
                run.directory.remove_journal()  # left by a kill at the very end
            return run.finish()

    def _attach_cache(self, run: _Run, stack: ExitStack) -> None:
        cache = self._cache
        if cache is None and run.predictor.journal is None and run.directory is not None:
            directory = run.directory
            stack.callback(lambda: directory.remove_journal() if run.complete else None)
            # Nothing is written under the name of a directory that is moved or removed, the journal included.
            cache = stack.enter_context(open_cache(directory.journal, recreate=False))
        elif isinstance(cache, str | Path):
            cache = stack.enter_context(open_cache(cache))
        if cache is not None:
            run.predictor.use_journal(cache)

    def _fingerprint(self, inspection: Inspection | None, about: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "schema_version": _VERSION,
            "kind": "evaluation",
            "calibrant": metadata.version("calibrant"),
            **about,
            **self._predictor.describe(),
            **described_labels(self._predictor.labels),
            "data": None if inspection is None else inspection.to_record(),
        }


class _Run:
    """One evaluation.

    Parameters
    ----------
    predictor : Predictor
        Of this run alone.
    examples : iterable of Example
        The rows.
    inspection : Inspection or None
        What a first reading of them found.
    on_progress : callable or None
        Called now and then.
    stop : Stop
        Ends it early.
    """

    def __init__(
        self,
        predictor: Predictor,
        examples: Iterable[Example],
        inspection: Inspection | None,
        on_progress: EvaluationProgressListener | None,
        stop: Stop,
    ) -> None:
        self.predictor = predictor
        self.directory: RunDirectory | None = None
        self.complete = False
        self._examples = examples
        self._expected = None if inspection is None else inspection.rows
        self._on_progress = on_progress
        self._stop = stop
        self._tally = Tally(predictor.labels)
        self._about: Mapping[str, Any] = {}
        self._file: PredictionsFile | None = None
        self._predictions: list[Prediction] = []
        self._under_way: deque[tuple[int, Example]] = deque()
        self._todo = self._expected
        self._answered = self._rows_called = self._calls_of_rows = 0
        self._stopped = ""
        self._started = time.perf_counter()

    def write_to(self, directory: RunDirectory, about: Mapping[str, Any]) -> None:
        """Send the rows to files, and find out which of them are finished."""
        self.directory, self._about = directory, about
        self._file = PredictionsFile(directory, self._tally)
        self._file.recover(self._rows())
        if self._expected is not None:
            self._todo = self._expected - self._file.rows + len(self._file.failed)

    def anything_left(self) -> bool:
        """Whether there are rows to be asked."""
        return self._todo != 0

    def answer(self) -> None:
        """Answer what is left."""
        if self._file is not None and self.directory is not None:
            self._file.open()
            for path in (self.directory.metrics, self.directory.parquet):
                path.unlink(missing_ok=True)  # of fewer rows than there will be
        self._started = time.perf_counter()
        try:
            self._stopped = run_sync(self._answer())
        except BaseException as error:
            # Whatever it was, the rows that are answered are kept, and the directory says how far it came.
            self._stopped = str(error) or "interrupted"
            try:
                self.finish()
            except Exception as other:  # noqa: BLE001 (the error under way matters more)
                if other is not error:
                    _LOG.warning("%s", other)
            raise

    async def _answer(self) -> str:
        ticker = asyncio.create_task(self._tick())
        try:
            return await self.predictor.feed(self._queries(), self._deliver, stop=self._stop)
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)

    def _rows(self) -> Iterator[Example]:
        return checked(self._examples, self.predictor.labels)

    def _queries(self) -> Iterator[Query]:
        file = self._file
        for index, example in enumerate(self._rows()):
            if file is None or not file.is_finished(index):
                self._under_way.append((index, example))
                yield self.predictor.query(example.text)

    def _deliver(self, _number: int, prediction: Prediction) -> None:
        index, example = self._under_way.popleft()
        self._answered += 1
        self._rows_called += prediction.attempts > 0
        self._calls_of_rows += prediction.attempts
        if self._file is not None:
            self._file.add(index, example, prediction)
        else:
            self._tally.add(example, prediction)
            self._predictions.append(prediction)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            if self._file is not None:
                self._file.flush_when_due()
            self._report()

    def _report(self) -> None:
        if self._on_progress is None:
            return
        tally = self._tally
        answered = tally.answered
        gates = self.predictor.gates
        self._on_progress(
            EvaluationProgress(
                rows=tally.rows,
                rows_expected=self._expected,
                session_rows=self._answered,
                remaining=None if self._todo is None else self._todo - self._answered,
                seconds=time.perf_counter() - self._started,
                accuracy_answered=wilson_interval(tally.correct, answered) if answered else None,
                errors=dict(tally.errors),
                cost=tally.cost if tally.priced else None,
                calls=sum(gate.successes + gate.failures for gate in gates),
                calls_of_rows=self._calls_of_rows,
                rows_called=self._rows_called,
                rate_limits=rate_limit_waits(gates),
            )
        )

    def finish(self) -> EvaluationResult:
        """Close the files and return the numbers."""
        seconds = time.perf_counter() - self._started if self._answered else 0.0
        if self._file is not None:
            self._file.close()
        metrics = self._tally.metrics(
            expected=self._expected,
            stopped=self._stopped,
            seconds=seconds,
            session_rows=self._answered,
        )
        self.complete = metrics.complete
        directory = self.directory
        if directory is not None and (self._answered or not directory.metrics.exists()):
            directory.write_metrics(
                {**metrics.to_record(), **self._about, "model": self.predictor.describe()["model"]}
            )
        self._report()
        return EvaluationResult(
            predictions=tuple(self._predictions),
            metrics=metrics,
            directory=None if directory is None else directory.path,
        )
