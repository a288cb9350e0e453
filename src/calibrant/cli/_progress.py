"""Progress of a run, and Ctrl-C: the first one ends a run in order, the second at once."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from calibrant.cli._tables import dollars, number, say, with_interval
from calibrant.core._predictor import Stop

if TYPE_CHECKING:
    from calibrant.evaluation._metrics import EvaluationProgress
    from calibrant.optimization._progress import Progress

ENDED_BY_SIGNAL: Final = "interrupted"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_FINISHING: Final = "interrupted: finishing the rows under way; press Ctrl-C again to end at once."
_GIVING_UP: Final = "interrupted: the rows under way are given up; what was answered is kept."
_SECONDS_BETWEEN_LINES: Final = 10.0
_KINDS_SHOWN: Final = 3


class _Display:
    """Progress display on standard error."""

    unit: ClassVar[str]

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(self.unit),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last, self._printed = "", ""
        self._next_line = -math.inf  # seconds
        self._waits = False

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._bar.disable and self._last != self._printed:
            say(self._last)

    def _show(
        self, phase: str, done: int, total: int | None, note: str, rate_limits: Mapping[str, float]
    ) -> None:
        """Update the bar; without a terminal, print a line when a phase or a wait begins, or when due."""
        wait = _wait(rate_limits)
        is_new = phase not in self._tasks
        if is_new:
            self._tasks[phase] = self._bar.add_task(phase, total=total, note="")
        most = None if total is None else max(total, done)
        # The bar has room for one of both.
        self._bar.update(self._tasks[phase], completed=done, total=most, note=wait or note)
        notes = ", ".join(filter(None, (wait, note)))
        self._last = f"{phase}: {done}/{'?' if total is None else total} {self.unit}, {notes}"
        now = time.monotonic()
        is_due = is_new or (wait and not self._waits) or now >= self._next_line
        if self._bar.disable and is_due and self._last != self._printed:
            say(self._last)
            self._printed, self._next_line = self._last, now + _SECONDS_BETWEEN_LINES
        self._waits = bool(wait)


class ProgressDisplay(_Display):
    """Display of a prompt search's `Progress`."""

    unit = "calls"

    def __call__(self, progress: Progress) -> None:
        """Show the latest progress."""
        parts = [f"{progress.accepted} of {progress.proposals} proposals accepted"]
        if progress.best_score is not None:
            parts.insert(0, f"best score {number(progress.best_score)}")
        if progress.cost is not None:
            parts.append(dollars(progress.cost))
        self._show(progress.phase, progress.calls, progress.total, ", ".join(parts), progress.rate_limits)


class EvaluationDisplay(_Display):
    """Display of an evaluation's `EvaluationProgress`."""

    unit = "rows"

    def __init__(self, phase: str = "evaluate") -> None:
        super().__init__()
        self._phase = phase

    def __call__(self, progress: EvaluationProgress) -> None:
        """Show the latest progress."""
        parts = [f"{progress.rows_per_second:,.1f} rows/s"]
        if progress.accuracy_answered is not None:
            parts.append(f"accuracy {with_interval(progress.accuracy_answered)}")
        if progress.errors:
            kinds = sorted(progress.errors.items(), key=lambda item: -item[1])[:_KINDS_SHOWN]
            named = ", ".join(f"{count} x {kind}" for kind, count in kinds)
            parts.append(f"{sum(progress.errors.values())} failed ({named})")
        if progress.cost is not None:
            parts.append(dollars(progress.cost))
        if progress.eta_seconds and not progress.rate_limits:  # the estimate leaves out waits for rate limits
            parts.append(f"{_duration(progress.eta_seconds)} left")
        self._show(self._phase, progress.rows, progress.rows_expected, ", ".join(parts), progress.rate_limits)


def _wait(rate_limits: Mapping[str, float]) -> str:
    """Return the pending rate limits: model, seconds and end time of each."""
    now = time.time()
    return ", ".join(
        f"waiting for {model}'s rate limit, {math.ceil(seconds)} s (until "
        f"{time.strftime('%H:%M:%S', time.localtime(now + seconds))})"
        for model, seconds in rate_limits.items()
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextlib.contextmanager
def interruptible(*, at_once: bool = False) -> Iterator[Stop]:
    """Yield a `Stop` that the first Ctrl-C (or SIGTERM) requests; a second one ends the run at once.

    Calls in flight are finished; rows that wait for a rate limit or before another attempt are given up.

    Parameters
    ----------
    at_once : bool, default False
        Give up the rows under way instead of finishing them: on a model in this process they cost nothing to
        ask again.
    """
    stop = Stop()

    def handle(*_: object) -> None:
        if stop.reason == ENDED_BY_SIGNAL:
            raise KeyboardInterrupt
        stop.reason = ENDED_BY_SIGNAL
        stop.request(ENDED_BY_SIGNAL, at_once=at_once, waits=True)
        with contextlib.suppress(OSError, RuntimeError):  # a closed pipe, or a write under way
            say(_GIVING_UP if at_once else _FINISHING)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
