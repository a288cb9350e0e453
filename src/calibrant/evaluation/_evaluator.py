"""Evaluator of a classifier on labelled rows, with resumable runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import SCHEMA_VERSION, user_path
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Journal, JsonObject, Prediction, Record
from calibrant.core._predictor import Limits, Predictor, Query, Stop
from calibrant.core._rows import Example, TextWithContext
from calibrant.core._structures import described_labels
from calibrant.evaluation._data import (
    Inspection,
    UnlabelledTexts,
    asked_as_before,
    checked,
    find_abilities,
    inspect,
    query_about,
)
from calibrant.evaluation._metrics import (
    EvaluationProgressListener,
    EvaluationResult,
    RunAccount,
    saved_vectors,
)
from calibrant.inference._base import BasePredictor, run_sync
from calibrant.inference._limits import rate_limit_waits
from calibrant.runs._directory import RunDirectory
from calibrant.runs._output import PaidRows, PredictionsFile
from calibrant.runs._rows import row_record

if TYPE_CHECKING:
    from calibrant.core._frames import Frame
    from calibrant.evaluation._label import Decide, LabelFile
    from calibrant.store._cache import PredictionCache

_LOG = logging.getLogger("calibrant")

MAX_BYTES: Final = 4 * 1024**3


def default_cache() -> str:
    """Return the URL or file of the user's cache.

    ``$CALIBRANT_CACHE`` (a SQLAlchemy URL or a file), or else ``predictions.sqlite`` in ``$CALIBRANT_HOME``,
    or else in ``calibrant`` in the user's cache folder (``$XDG_CACHE_HOME``, ``~/.cache``).
    """
    return os.environ.get("CALIBRANT_CACHE") or str(user_path("predictions.sqlite", "cache"))


@contextlib.contextmanager
def open_cache(
    place: str | Path, *, max_bytes: int | None = MAX_BYTES, recreate: bool = True
) -> Iterator[PredictionCache]:
    """Open a cache for the block; a failed save at its end is only a warning.

    Parameters
    ----------
    place : str or path
        A SQLAlchemy URL, or a SQLite file.
    max_bytes : int, optional
        Most bytes to keep; the oldest predictions go first. 4 GiB by default; None for no cap.
    recreate : bool, default True
        Make a SQLite file anew that is removed while it is in use.

    Raises
    ------
    ConfigurationError, StateError
        As `calibrant.store.PredictionCache`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant import Classifier
    >>> from calibrant.testing import FakeClient
    >>> from calibrant.evaluation import open_cache
    >>> fake = FakeClient(["cat", "dog"], {"purrs": "cat"})
    >>> with open_cache(Path(tempfile.mkdtemp()) / "predictions.sqlite") as cache:
    ...     classifier = Classifier(model=fake, labels=["cat", "dog"], field="category", journal=cache)
    ...     labels = [classifier.classify("purrs").label for _ in range(2)]
    >>> labels, len(fake.requests)  # the second answer comes from the cache
    (['cat', 'cat'], 1)
    """
    from calibrant.store._cache import PredictionCache  # noqa: PLC0415 (loads sqlalchemy)

    cache = PredictionCache(place, max_bytes=max_bytes, recreate=recreate)
    try:
        yield cache
    finally:
        try:
            cache.close()
        except StateError as error:
            _LOG.warning("%s", error)


_CONCURRENCY: Final = 64
_TICK: Final = 0.25  # seconds between reports


def run_fingerprint(
    labels: LabelSet,
    described: Record,
    inspection: Inspection | None,
    about: Record,
    *,
    kind: str,
    **engine: object,
) -> JsonObject:
    """Return the settings that determine an evaluation's rows, as in ``run.json``.

    Parameters
    ----------
    labels : LabelSet
        Labels of the classifier.
    described : mapping
        `Predictor.describe` of it.
    inspection : Inspection or None
        Number and digest of the rows.
    about : mapping
        Entries that the caller adds.
    kind : str
        Kind of the run; ``labels`` of rows without answers.
    **engine
        Entries of an engine that runs several workers.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "calibrant": metadata.version("calibrant"),
        **engine,
        **about,
        **described,
        **described_labels(labels),
        "data": None if inspection is None else asdict(inspection),
    }


class BatchEvaluator:
    """Evaluator that classifies rows concurrently and measures the answers, or writes them down.

    With ``out``, rows go to a directory as they are answered: ``predictions.jsonl`` (one JSON object a
    row, in the order of the input), ``metrics.json`` and ``run.json``. Memory then does not grow with the
    rows. After an interruption, a kill included, the same call goes on where it was: finished rows are
    read from the directory, and those answered but not yet written from the cache. Rows that failed with a
    transport error are asked again.

    Parameters
    ----------
    classifier : Predictor
        The classifier; it is not changed, and not closed.
    concurrency : int, optional
        Largest number of calls in flight; by default that of `limits` or of the classifier, else 64, and 4 for an
        embedded engine.
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

    def evaluate(  # noqa: PLR0913 (keyword-only options)
        self,
        examples: Iterable[Example] | Frame,
        *,
        text: str | None = None,
        label: str | None = None,
        out: str | Path | None = None,
        about: Record | None = None,
        on_progress: EvaluationProgressListener | None = None,
        stop: Stop | None = None,
    ) -> EvaluationResult:
        """Evaluate the classifier.

        Parameters
        ----------
        examples : iterable of Example, or a frame
            The rows, such as a list or a `Dataset`; or a data frame of pandas or polars, a table of pyarrow or a
            Hugging Face dataset. Rows that can be read twice are read once before the first call, so that a broken
            row costs nothing; an iterator is read as its rows are begun.
        text, label : str, optional
            Columns of a frame with the texts and their true labels.
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
        is_frame = text is not None or label is not None
        rows = cast("Iterable[Example]", examples)
        if is_frame:
            from calibrant.core._frames import answer_names, frame_examples  # noqa: PLC0415 (if there is a frame)

            rows = frame_examples(cast("Frame", examples), text=text or "input", label=label or "answer")
            answer_names(cast("Frame", examples))  # before a call is paid for
        result = self._run(rows, out=out, about=about, on_progress=on_progress, stop=stop)
        if not is_frame:
            return result
        from calibrant.evaluation._label import with_frame  # noqa: PLC0415 (as above)

        return with_frame(result, cast("Frame", examples))

    def label(  # noqa: PLR0913 (keyword-only options)
        self,
        texts: str | Path | Iterable[str | TextWithContext | None] | Frame | UnlabelledTexts,
        *,
        text: str = "input",
        out: str | Path | LabelFile | None = None,
        file_format: str | None = None,
        decide: Decide | None = None,
        distribution: bool = False,
        about: Record | None = None,
        on_progress: EvaluationProgressListener | None = None,
        stop: Stop | None = None,
    ) -> EvaluationResult:
        """Label texts whose true labels are not known; see `evaluate` for the other parameters and errors.

        Parameters
        ----------
        texts : path, frame, or iterable of str, TextWithContext or None
            A JSON Lines, CSV or Parquet file, a frame (see `evaluate`), or the texts. About one that is missing or
            blank no model is asked.
        text : str, default "input"
            Column of the file or frame that holds the texts.
        out : path, optional
            Directory that gets ``labels.csv``, ``.jsonl`` or ``.parquet`` too: the columns of the input and label,
            confidence, decision, outcome, provider and cost.
        file_format : {"csv", "jsonl", "parquet"}, optional
            By default that of the input.
        decide : callable, optional
            Returns the decisions on predictions, such as `calibrant.tuned.Tuned.decide_many`.
        distribution : bool, default False
            True to write the probabilities of all labels, too; to a frame as a column ``probabilities`` of JSON text.

        Examples
        --------
        >>> import tempfile
        >>> from calibrant import BatchEvaluator, Classifier
        >>> from calibrant.testing import FakeClient
        >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9), "barks": ("dog", 0.8)})
        >>> evaluator = BatchEvaluator(Classifier(model=fake, labels=["cat", "dog"], field="category"))
        >>> result = evaluator.label(["it purrs", None, "it barks"], out=tempfile.mkdtemp(), file_format="csv")
        >>> print(result.written.path.read_text().strip())
        input,label,confidence,decision,outcome,provider,cost
        it purrs,cat,0.9,,ok,fake,
        ,,,,no text,,
        it barks,dog,0.8,,ok,fake,
        """
        from calibrant.evaluation._label import (  # noqa: PLC0415 (evaluations do without)
            LabelFile,
            unlabelled,
            with_frame,
        )

        rows = unlabelled(texts, text=text)
        file = out if isinstance(out, LabelFile) else None
        if isinstance(out, str | Path):
            file = LabelFile(
                Path(out), rows, file_format=file_format, decide=decide, distribution=distribution
            )
        directory = None if file is None else file.directory
        result = self._run(rows, out=directory, about=about, on_progress=on_progress, stop=stop, file=file)
        if rows.frame is None:
            return result
        return with_frame(result, rows.frame, decide, distribution=distribution)

    def _run(
        self,
        examples: Iterable[Example],
        *,
        out: str | Path | None,
        about: Record | None,
        on_progress: EvaluationProgressListener | None,
        stop: Stop | None,
        file: LabelFile | None = None,
    ) -> EvaluationResult:
        inspection = self._inspection(examples, keeps_rows=out is not None)
        predictor = self._predictor.with_limits(self._limits)
        if out is not None:
            predictor = asked_as_before(predictor, out)
        run = _EvaluationRun(predictor, examples, inspection, on_progress, stop or Stop())
        if file is not None:
            file.prepare()
        with contextlib.ExitStack() as stack:
            cache = self._cache
            if isinstance(cache, str | Path):
                cache = stack.enter_context(open_cache(cache))
            if cache is not None:
                run.predictor.use_journal(cache)
            if inspection is not None:
                run.find_abilities(inspection.rows)
            if out is not None:
                about = about or {}
                kind = "evaluation" if file is None else "labels"
                described = predictor.describe()
                fingerprint = run_fingerprint(predictor.labels, described, inspection, about, kind=kind)
                directory = stack.enter_context(RunDirectory.opened(Path(out), fingerprint))
                run.write_to(directory, about)
                stack.push(run.forget_journal)
                if file is not None:
                    stack.enter_context(file.kept())
            if run.account.remaining != 0:
                self._keep_journal(run, stack)
                run.announce()
                run.answer()
            result = run.finish()
        if file is None:
            return result
        return replace(result, written=file.written)

    def _inspection(self, examples: Iterable[Example], *, keeps_rows: bool) -> Inspection | None:
        """Read and check the examples once; None for an iterator, which cannot be read again."""
        is_iterator = iter(examples) is examples
        if is_iterator and keeps_rows:
            raise ConfigurationError(
                "Expected examples that can be read twice when out is given, got an iterator: pass a list or "
                "a calibrant.evaluation.Dataset."
            )
        if keeps_rows and "<lambda>" in self._predictor.name:
            raise ConfigurationError(
                "Expected a function with a name of its own when out is given, got a lambda: what a run has paid "
                "for is kept under the name of its model."
            )
        if is_iterator:
            return None
        return inspect(examples, self._predictor.labels)

    @staticmethod
    def _keep_journal(run: _EvaluationRun, stack: contextlib.ExitStack) -> None:
        """Give a run without a cache a journal in its directory, until it is complete."""
        directory = run.directory
        if run.predictor.journal is not None or directory is None:
            return
        # Nothing is written under the name of a directory that is moved or removed, the journal included.
        run.predictor.use_journal(stack.enter_context(open_cache(directory.journal, recreate=False)))


class _EvaluationRun:
    """State of one call of `BatchEvaluator.evaluate`.

    Parameters
    ----------
    predictor : Predictor
        Of this run alone.
    examples : iterable of Example
        The rows.
    inspection : Inspection or None
        Result of a first reading; None for an iterator.
    on_progress : callable or None
        Called four times a second.
    stop : Stop
        Ends the run early.
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
        self._stop = stop
        expected = None if inspection is None else inspection.rows
        self.account = RunAccount(predictor.labels, expected=expected, on_progress=on_progress)
        self._about: Record = {}
        self._file: PredictionsFile | None = None
        self._paid: PaidRows | None = None
        self._predictions: list[Prediction] = []
        self._answered: list[Example] = []
        self._under_way: dict[int, tuple[int, Example]] = {}  # by the number of the query
        self._rows_called = self._calls_of_rows = 0

    def write_to(self, directory: RunDirectory, about: Record) -> None:
        """Open the output files, and count the finished rows in them."""
        self.directory = directory
        if directory.metrics.exists() and isinstance(self.predictor, BasePredictor):
            self.predictor.meter.vectors += saved_vectors(directory.metrics)
        self._about = {**about, "model": self.predictor.describe()["model"]}
        self._file = PredictionsFile(directory, self.account.tally.add)
        self._file.recover(self._rows())
        if self.account.remaining is not None:
            self.account.remaining += len(self._file.failed) - self._file.rows

    def forget_journal(self, fault: type[BaseException] | None, *_: object) -> None:
        """Remove the directory's own journal once the rows, and the labels if any, are all written."""
        if fault is None and self.complete and self.directory is not None:
            self.directory.remove_journal()

    def find_abilities(self, rows: int) -> None:
        """Find out how the model is asked, before the run is named after it, and log what `rows` rows cost."""
        find_abilities(self.predictor, self._rows(), rows=rows, stop=self._stop)

    def announce(self) -> None:
        """Log the effort of vectors for the remaining rows, if a head reads some."""
        head = None
        if isinstance(self.predictor, BasePredictor):
            head = self.predictor.first_head
        if head is not None and self.account.remaining is not None:
            from calibrant.inference._text_vectors import announce_vectors  # noqa: PLC0415 (if a head has some)

            announce_vectors(head, (row.input for row in self._rows()), rows=self.account.remaining)

    def answer(self) -> None:
        """Classify the remaining rows."""
        if self._file is not None and self.directory is not None:
            self._file.open()
            self._paid = PaidRows(self.directory.paid, is_finished=self._file.is_finished)
            for path in (self.directory.metrics, self.directory.parquet):
                path.unlink(missing_ok=True)  # of fewer rows than there will be
        self.account.started = time.perf_counter()
        try:
            with self.account.kept(self.finish):
                self.account.stopped = run_sync(self._answer())
        finally:
            if self._paid is not None:
                self._paid.close()

    async def _answer(self) -> str:
        ticker = asyncio.create_task(self._tick())
        try:
            return await self.predictor.feed(
                self._queries(), self._deliver, on_prediction=self._note, stop=self._stop
            )
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)

    def _rows(self) -> Iterator[Example]:
        return checked(self._examples, self.predictor.labels)

    def _queries(self) -> Iterator[Query]:
        file = self._file
        number = 0
        for index, example in enumerate(self._rows()):
            if file is None or not file.is_finished(index):
                self._under_way[number] = (index, example)
                number += 1
                query = query_about(self.predictor, example)
                if self._paid is not None:
                    query = replace(query, on_answer=partial(self._paid.add, index))
                yield query

    def _note(self, number: int, prediction: Prediction) -> None:
        """Count a row as answered, be it behind one that is not."""
        index, example = self._under_way[number]
        self._rows_called += prediction.attempts > 0
        self._calls_of_rows += prediction.attempts
        if self._paid is not None:
            prediction = self._paid.finished(index, prediction)
        self.account.ahead[number] = (example, prediction)

    def _deliver(self, number: int, _prediction: Prediction) -> None:
        """Write the next row in input order, as `_note` has it."""
        index, _ = self._under_way.pop(number)
        example, prediction = self.account.ahead.pop(number)
        self.account.answered += 1
        if self._file is not None:
            self._file.add(index, example, prediction)
        else:
            self.account.tally.add(row_record(index, example, prediction))
            self._predictions.append(prediction)
            self._answered.append(example)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            if self._file is not None:
                self._file.flush()
            self._report()

    def _report(self) -> None:
        gates = self.predictor.gates
        self.account.report(
            calls=sum(gate.successes + gate.failures for gate in gates),
            calls_of_rows=self._calls_of_rows,
            rows_called=self._rows_called,
            rate_limits=rate_limit_waits(gates),
        )

    def finish(self) -> EvaluationResult:
        """Close the files and return the metrics."""
        if self._file is not None:
            self._file.close()
        meter = None
        if isinstance(self.predictor, BasePredictor):
            meter = self.predictor.meter
        result = self.account.result(self.directory, self._about, self._predictions, meter=meter)
        self.complete = result.metrics.complete
        self._report()
        return replace(result, examples=tuple(self._answered))
