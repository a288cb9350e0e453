"""Progress of a run, and Ctrl-C: the first one ends a run in order, the second at once."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from calibrant.cli._tables import say, with_interval
from calibrant.core._predictor import Stop
from calibrant.core._reported import counted
from calibrant.metrics._remarks import dollars, duration

if TYPE_CHECKING:
    from calibrant.evaluation._metrics import EvaluationProgress
    from calibrant.optimization._plan import Progress

ENDED_BY_SIGNAL: Final = "interrupted"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_FINISHING: Final = "interrupted: finishing the rows under way; press Ctrl-C again to end at once."
_GIVING_UP: Final = "interrupted: the rows under way are given up; what was answered is kept."
_SECONDS_BETWEEN_LINES: Final = 10.0
_KINDS_SHOWN: Final = 3
_BAR_WIDTH: Final = 20  # with rows in millions and the time left, a line of 80 columns is full
_INDENT: Final = 2


class _BarWithNotes(Bar):
    """Progress bars, each with its note on lines of their own: beside the bar, 80 columns would cut it off."""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar of each task, and its note."""
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if task.fields["note"]:
                yield Padding(Text(task.fields["note"]), (0, 0, 0, _INDENT))


class _Display:
    """Progress display on standard error."""

    def __init__(self, phase: str = "evaluate") -> None:
        console = Console(stderr=True)
        self._phase = phase
        self._bar = _BarWithNotes(
            TextColumn("{task.description}"),
            BarColumn(bar_width=_BAR_WIDTH),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("rows"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last = ""
        self._printed = ""
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
        self,
        phase: str,
        done: int,
        total: int | None,
        *,
        note: str,
        left: str,
        rate_limits: Mapping[str, float],
    ) -> None:
        """Update the bar; without a terminal, print a line when a phase or a wait begins, or when due."""
        wait = _wait(rate_limits)
        is_new = phase not in self._tasks
        if is_new:
            for finished in self._tasks.values():
                self._bar.stop_task(finished)
                self._bar.update(finished, left="")
            self._tasks[phase] = self._bar.add_task(phase, total=total, note="", left="")
        most = None if total is None else max(total, done)
        notes = ", ".join(filter(None, (wait, note)))
        self._bar.update(self._tasks[phase], completed=done, total=most, note=notes, left=left)
        rows = f"{done}/{'?' if total is None else total} rows"
        self._last = f"{phase}: {', '.join(filter(None, (rows, notes, left)))}"
        now = time.monotonic()
        is_due = is_new or (wait and not self._waits) or now >= self._next_line
        if self._bar.disable and is_due and self._last != self._printed:
            say(self._last)
            self._printed = self._last
            self._next_line = now + _SECONDS_BETWEEN_LINES
        self._waits = bool(wait)


class ProgressDisplay(_Display):
    """Display of a prompt search's `Progress`, which says beforehand what the search may ask."""

    def __init__(self) -> None:
        super().__init__()
        self._announced: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        """Show the latest progress."""
        for topic, sentence in _announcements(progress).items():
            if topic not in self._announced:
                self._announced.add(topic)
                say(sentence)
        if not progress.calls and progress.phase == "search":
            return
        parts = []
        if progress.phase == "search" and progress.proposals:
            proposed = counted(progress.proposals, "prompt")
            parts.append(f"{proposed} proposed, {progress.accepted:,} promising")
        if progress.cost is not None:
            parts.append(dollars(progress.cost))
        left = progress.eta_seconds
        is_waiting = bool(progress.rate_limits)
        most = "at most " if progress.phase == "search" else ""
        self._show(
            progress.phase,
            progress.calls,
            progress.total,
            note=", ".join(parts),
            left="" if left is None or is_waiting else f"{most}{duration(left)} left",
            rate_limits=progress.rate_limits,
        )


def _announcements(progress: Progress) -> dict[str, str]:
    """Return sentences about rows, time and cost of a search, by topic, as far as they are known."""
    found = {}
    if progress.search_rows:
        found["rows"] = (
            f"At most {counted(progress.search_rows, 'row')} to search and {progress.test_rows:,} to test"
            f"{_expected(progress)}."
        )
    if progress.directory is not None:
        found["directory"] = (
            f"Everything is kept in {progress.directory}: the same command goes on from there."
        )
    seconds = progress.eta_seconds
    if seconds is not None:
        found["time"] = (
            f"By the first answers, the model takes at most {duration(seconds)}{_price(progress)}."
        )
    return found


def _expected(progress: Progress) -> str:
    """Return the end of a sentence: what the rows take, as far as that is known before any is asked."""
    if progress.in_process:
        return "; the model runs here, at no cost"
    parts = []
    if progress.expected_cost is not None:
        parts.append(f"about {dollars(progress.expected_cost)} by the price of its tokens")
    if progress.concurrency:
        seconds = (progress.search_rows + progress.test_rows) / progress.concurrency
        parts.append(f"{duration(seconds)} or more if an answer takes a second")
    return "".join(f"; {part}" for part in parts)


def _price(progress: Progress) -> str:
    """Return the end of a sentence: what the rows to come cost, as far as the first answers show it."""
    if progress.in_process:
        return ""
    if progress.eta_cost is None:
        return "; no price is known"
    return f", and about {dollars(progress.eta_cost)}"


class EvaluationDisplay(_Display):
    """Display of an evaluation's `EvaluationProgress`."""

    def __call__(self, progress: EvaluationProgress) -> None:
        """Show the latest progress."""
        parts = [f"{progress.rows_per_second:,.1f} rows/s"]
        if progress.accuracy_answered is not None:
            parts.append(f"accuracy {with_interval(progress.accuracy_answered)}")
        if progress.errors:
            kinds = Counter(progress.errors).most_common(_KINDS_SHOWN)
            named = ", ".join(f"{count} x {kind}" for kind, count in kinds)
            parts.append(f"{sum(progress.errors.values())} failed ({named})")
        if progress.cost is not None:
            parts.append(dollars(progress.cost))
        left = ""
        if progress.eta_seconds and not progress.rate_limits:  # the estimate leaves out waits for rate limits
            left = f"{duration(progress.eta_seconds)} left"
        self._show(
            self._phase,
            progress.rows,
            progress.rows_expected,
            note=", ".join(parts),
            left=left,
            rate_limits=progress.rate_limits,
        )


def _wait(rate_limits: Mapping[str, float]) -> str:
    """Return the pending rate limits: model, seconds and end time of each."""
    now = time.time()
    return ", ".join(
        f"waiting for {model}'s rate limit, {math.ceil(seconds)} s (until "
        f"{time.strftime('%H:%M:%S', time.localtime(now + seconds))})"
        for model, seconds in rate_limits.items()
    )


@contextlib.contextmanager
def interruptible(*, at_once: bool) -> Iterator[Stop]:
    """Yield a `Stop` that the first Ctrl-C (or SIGTERM) requests; a second one ends the run at once.

    Calls in flight are finished; rows that wait for a rate limit or before another attempt are given up.

    Parameters
    ----------
    at_once : bool
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
