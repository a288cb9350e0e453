"""Processes of a cluster: a reader that distributes rows, and workers that answer them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from calibrant.core._errors import CalibrantError, ConfigurationError, ProviderError, StateError
from calibrant.core._labels import LabelSet
from calibrant.core._limits import Limits
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import Predictor, Stop
from calibrant.core._rows import Example
from calibrant.distributed._ledger import Leased, Ledger, Spent
from calibrant.evaluation._cache import MAX_BYTES
from calibrant.evaluation._data import Dataset, UnlabelledTexts, checked, query_about
from calibrant.inference._base import run_sync
from calibrant.runs._rows import row_line
from calibrant.runs._shards import FinishedRows, blocks_of
from calibrant.store._cache import PredictionCache

if TYPE_CHECKING:
    from calibrant.distributed._ray import RemoteLedger

_LOOK_SECONDS: Final = 0.5  # between two checks for a stop of the run
_FAILURES_IN_A_ROW: Final = 100
_DEATHS: Final = 5  # most crashes of workers at one block, or while they open
_SEE_LOG: Final = (
    "see Ray's log of the worker for the reason, such as too little memory or a crash in a library."
)
_DIED_OPENING: Final = f"Workers died again and again while they opened the classifier: {_SEE_LOG}"


class AnsweredBlock(NamedTuple):
    """Answers of one block, and the error that ended it.

    Attributes
    ----------
    block : int
        Number of the block.
    lines : bytes
        Rows as they stand in ``predictions.jsonl``, in the order of the input.
    stopped : str
        Reason that the other rows were not begun (a budget, the end of the run); empty otherwise.
    error : str
        Message of the error; empty otherwise.
    kind : str
        Name of that error's class.
    provider : str
        Provider of a `ProviderError`; empty otherwise.
    """

    block: int
    lines: bytes
    stopped: str
    error: str = ""
    kind: str = ""
    provider: str = ""

    @classmethod
    def fault(cls, block: int, lines: bytes, error: Exception) -> AnsweredBlock:
        """Return a failed block; its error is stored as texts, which can be sent between processes."""
        if isinstance(error, ProviderError):
            message = str(error).removeprefix(f"{error.provider}: ")
            return cls(block, lines, "", message, "ProviderError", error.provider)
        kind = "ConfigurationError" if isinstance(error, ConfigurationError) else "StateError"
        message = str(error) if isinstance(error, CalibrantError) else f"A worker failed: {error!r}."
        return cls(block, lines, "", message, kind)

    def raised(self) -> CalibrantError | None:
        """Return the error of the block; None if it has none."""
        if not self.error:
            return None
        if self.kind == "ProviderError":
            return ProviderError(self.error, provider=self.provider)
        return ConfigurationError(self.error) if self.kind == "ConfigurationError" else StateError(self.error)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reader that yields unfinished rows in blocks, each block as one Arrow row.

    Attributes
    ----------
    dataset : Dataset
        The rows.
    labels : LabelSet
        Legal labels of their answers.
    block_rows : int
        Rows of a block.
    finished : mapping of int to collection of int
        Places of the finished rows by block.
    book : RemoteLedger or None
        Tells when to stop reading.
    """

    dataset: Dataset | UnlabelledTexts
    labels: LabelSet
    block_rows: int
    finished: FinishedRows = field(default_factory=dict)
    book: RemoteLedger | None = None

    def __call__(self, _batch: object) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 (optional)

        for number, block in blocks_of(checked(self.dataset, self.labels), self.block_rows):
            finished = self.finished.get(number, ())
            rows = [
                (index, row.input, row.answer, row.context, row.source, row.row_id)
                for index, row in block
                if index not in finished
            ]
            if not rows:
                continue
            if self.book is not None and self.book.ask(Ledger.closed):
                return
            yield pa.table({"block": [number], "rows": [json.dumps(rows)]})


@contextmanager
def _unless_deadly(book: RemoteLedger, what: str, *, most: int, message: str) -> Iterator[None]:
    """Count a task's starts while it runs; raise a StateError once more than `most` workers died at it."""
    begun = book.ask(Ledger.begin, what)
    try:
        if begun > most:
            raise StateError(message)
        yield
    finally:
        book.tell(Ledger.end, what)


class Worker:
    """Worker that answers blocks of rows with its own classifier.

    Parameters
    ----------
    opening : callable
        Returns a classifier that keeps the `limits` it is given.
    limits : Limits
        Its calls in flight; rates and budgets are those of all workers.
    workers : int
        Their number.
    cache : str or None
        URL or file of finished predictions.
    book : RemoteLedger
        Keeps the rates and budgets of all workers.
    """

    def __init__(
        self,
        opening: Callable[..., Predictor],
        limits: Limits,
        workers: int,
        cache: str | None,
        book: RemoteLedger,
    ) -> None:
        self._book = book
        self._failures = 0
        self._stop = Stop()
        self._broken: Exception | None = None
        try:
            # Every live worker may be opening at the same moment: their starts are no crashes.
            with _unless_deadly(book, "opening", most=workers + _DEATHS, message=_DIED_OPENING):
                self._open(opening, limits, workers, cache)
        except Exception as error:  # noqa: BLE001 (told with the first block: Ray would try it again and again)
            self._broken = error
        threading.Thread(target=self._listen, daemon=True).start()

    def _open(
        self, opening: Callable[..., Predictor], limits: Limits, workers: int, cache: str | None
    ) -> None:
        self._predictor = opening(limits=limits).with_limits(limits)
        for number, gate in enumerate(self._predictor.gates):
            gate.pace(lambda name, rate, own=number: self._shared_pace(f"{own} {name}", rate, workers))  # type: ignore[misc]
        self._cache = None if cache is None else PredictionCache(cache, max_bytes=MAX_BYTES)
        if self._cache is not None:
            self._predictor.use_journal(self._cache)

    def _shared_pace(self, name: str, per_minute: float, workers: int) -> Leased:
        return Leased(
            lambda used, wanted: self._book.tell(Ledger.take, name, per_minute, used, wanted),
            per_minute=per_minute,
            workers=workers,
        )

    def _listen(self) -> None:
        """Stop the current block once the run is stopped, as a block may take long."""
        with suppress(Exception):  # the ledger's process has ended, and with it the run
            while not (reason := self._book.ask(Ledger.stopped)):
                time.sleep(_LOOK_SECONDS)
            self._stop.request(reason)

    def __call__(self, batch: Any) -> Any:  # noqa: ANN401 (an Arrow table, whose types are not known here)
        """Return the answered blocks; errors are stored in them, as Ray would retry after an exception."""
        import pyarrow as pa  # noqa: PLC0415 (optional)

        blocks = [
            self.answer(number.as_py(), json.loads(rows.as_py()))
            for number, rows in zip(batch["block"], batch["rows"], strict=True)
        ]
        columns = zip(*blocks, strict=True)
        return pa.table(
            {name: list(column) for name, column in zip(AnsweredBlock._fields, columns, strict=True)}
        )

    def answer(self, number: int, rows: Sequence[Sequence[Any]]) -> AnsweredBlock:
        """Answer as many rows of a block as the budgets allow.

        A row is a sequence of place, text, answer, context, source and identifier.
        """
        lines: list[bytes] = []
        stopped = ""
        if self._broken is not None:
            return AnsweredBlock.fault(number, b"", self._broken)
        first, last = rows[0][0], rows[-1][0]
        died = f"{_DEATHS} workers died while they answered the rows {first} to {last} (counted from 0): {_SEE_LOG}"
        try:
            with _unless_deadly(self._book, f"block {number}", most=_DEATHS, message=died):
                while len(lines) < len(rows) and not stopped:
                    loan = self._book.ask(Ledger.lend, len(rows) - len(lines))
                    lent = rows[len(lines) : len(lines) + loan.rows]
                    stopped = loan.refused or self._answer(lent, lines)
                if self._cache is not None:
                    self._cache.flush()  # Ray ends workers without notice
        except Exception as error:  # noqa: BLE001 (Ray would ask for the rows again)
            return AnsweredBlock.fault(number, b"".join(lines), error)
        return AnsweredBlock(number, b"".join(lines), stopped)

    def _answer(self, rows: Sequence[Sequence[Any]], lines: list[bytes]) -> str:
        """Answer rows lent by the ledger; return the reason for an early end, or an empty text."""
        examples = [
            Example(input=text, answer=answer, context=context, source=source, row_id=row_id)
            for _, text, answer, context, source, row_id in rows
        ]

        def deliver(place: int, prediction: Prediction) -> None:
            lines.append(row_line(rows[place][0], examples[place], prediction))
            self._failures = self._failures + 1 if prediction.outcome is Outcome.ERROR else 0

        before = self._spent()
        try:
            stopped = run_sync(
                self._predictor.feed(
                    [query_about(self._predictor, row) for row in examples], deliver, stop=self._stop
                )
            )
        finally:
            self._book.tell(Ledger.pay, len(rows), self._spent().since(before))
        if self._failures >= max(_FAILURES_IN_A_ROW, self._predictor.meter.concurrency):
            raise ProviderError(  # counted across blocks, however small they are
                f"The last {self._failures} rows of a worker all failed, so the others were not asked. The last "
                f"one: {json.loads(lines[-1])['reason']}",
                provider=self._predictor.name,
            )
        return stopped

    def _spent(self) -> Spent:
        gate = self._predictor.meter
        return Spent(gate.rows, gate.requests, gate.tokens, gate.cost, gate.unpriced)
