"""Rows in, predictions out: side by side, in order, in bounded memory, until something says stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from calibrant.core._errors import ProviderError
from calibrant.core._patience import Patience
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import OnPrediction, Stop
from calibrant.inference._limits import Gate

# Rows answered behind one that is not: they wait in memory, and no further ones are begun.
_WINDOW: Final = 1024
# Rows between two turns of the event loop at most.
_BREATH: Final = 64
# Failures without any answer, and in a row, after which no row can be expected to succeed.
_FAILURES_AT_FIRST: Final = 20
_FAILURES_IN_A_ROW: Final = 100
# A row that waits longer than this between calls, once the run was told not to wait, is given up.
_GRACE_SECONDS: Final = 0.5


_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class Listeners(Generic[_R]):
    """What happens with predictions, and what may end the run; see `Runner.feed`."""

    finish: Callable[[_R, Prediction], Prediction]
    deliver: OnPrediction
    on_prediction: OnPrediction | None
    stop: Stop


class Feed(Generic[_R]):
    """One run over rows.

    Parameters
    ----------
    rows : iterator
        The rows; the next one is taken when there is room for it.
    answer : coroutine function
        Returns a row's prediction.
    listeners : Listeners
        Who is told.
    gate : Gate
        What the run may take.
    provider : str
        The model, for messages.
    answered : bool
        Whether the model ever answered a row.
    """

    def __init__(
        self,
        rows: Iterator[_R],
        answer: Callable[[_R], Awaitable[Prediction]],
        listeners: Listeners[_R],
        *,
        gate: Gate,
        provider: str,
        answered: bool,
    ) -> None:
        self._rows = rows
        self._answer = answer
        self._gate = gate
        self._provider = provider
        self._listeners = listeners
        self._stop = listeners.stop
        self._begun = 0
        self._delivered = 0
        self._under_way = 0
        self._finished: dict[int, Prediction] = {}
        self._room = asyncio.Event()
        self._patience: list[Patience] = []
        self._answered = answered
        self._failures = 0

    async def run(self, *, rows: int | None) -> str:
        """Answer the rows (their number, where it is known) and return why it ended early."""
        limits = self._gate.limits
        n_workers = self._gate.concurrency if rows is None else min(self._gate.concurrency, rows)
        deadline = asyncio.timeout(limits.run_seconds)
        loop = asyncio.get_running_loop()
        workers: list[asyncio.Task[None]] = []

        def give_up() -> None:
            if self._stop.at_once:
                for worker in workers:
                    worker.cancel()
            else:
                loop.call_later(_GRACE_SECONDS, self._end_waits)

        try:
            with self._stop.calling(partial(_in_loop, loop, give_up)):
                async with deadline, asyncio.TaskGroup() as group:
                    workers += [group.create_task(self._work()) for _ in range(n_workers)]
        except TimeoutError:
            if not deadline.expired():
                raise
            self._stop.request(f"The deadline of {limits.run_seconds:g} seconds has passed")
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return self._stop.reason

    def _end_waits(self) -> None:
        for patience in self._patience:
            patience.end()
        self._room.set()  # the row that others wait for may be one of those given up

    async def _work(self) -> None:
        patience = Patience()
        self._patience.append(patience)
        with patience.applied():
            while await self._may_begin():
                row = next(self._rows, None)
                if row is None:
                    return
                index = self._begun
                self._begun += 1
                self._under_way += 1
                try:
                    prediction = await self._answer(row)
                finally:
                    self._under_way -= 1
                self._finish(index, self._listeners.finish(row, prediction))
                if index % _BREATH == 0:
                    await asyncio.sleep(0)  # what a journal holds is answered without any wait

    async def _may_begin(self) -> bool:
        while not self._stop.reason and (self._begun - self._delivered >= _WINDOW or self._price_is_open()):
            self._room.clear()
            await self._room.wait()
        if not self._stop.reason:
            self._stop.request(self._gate.used_up(self._under_way))
        return not self._stop.reason

    def _price_is_open(self) -> bool:
        """Return whether the price of a row is not known yet, since the first one is still under way."""
        gate = self._gate
        return gate.limits.max_cost is not None and not gate.rows and self._under_way > 0

    def _finish(self, index: int, prediction: Prediction) -> None:
        listeners = self._listeners
        if listeners.on_prediction is not None:
            listeners.on_prediction(index, prediction)
        self._finished[index] = prediction
        while self._delivered in self._finished:
            ready = self._finished.pop(self._delivered)
            listeners.deliver(self._delivered, ready)
            self._delivered += 1
        self._room.set()
        self._watch(prediction)

    def _watch(self, prediction: Prediction) -> None:
        """Notice when nothing succeeds any more: no further row need fail."""
        if prediction.outcome is not Outcome.ERROR:
            self._failures = 0
            self._answered = True
            return
        self._failures += 1
        limit = _FAILURES_IN_A_ROW if self._answered else _FAILURES_AT_FIRST
        if self._failures >= limit and self._failures >= self._gate.concurrency:
            raise ProviderError(
                f"The last {self._failures} rows all failed, so the others were not asked. The last one: "
                f"{prediction.reason}",
                provider=self._provider,
            )


def _in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(function)
