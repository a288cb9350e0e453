"""A progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from calibrant.cli._tables import dollars

if TYPE_CHECKING:
    from calibrant.evaluation._metrics import EvaluationProgress
    from calibrant.optimization._progress import Progress

SECONDS_BETWEEN_LINES = 10.0
_KINDS_SHOWN = 3


class _State(NamedTuple):
    """Progress as displayed: ``phase: done/total unit, wait, note``; a bar has room for wait or note."""

    phase: str
    done: int
    total: int | None
    note: str
    wait: str = ""


class _Display:
    """Shows states on standard error.

    Parameters
    ----------
    unit : str
        Name of the counted items.
    """

    def __init__(self, unit: str) -> None:
        console = Console(stderr=True)
        self._unit = unit
        self._bar = (
            Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(unit),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._tasks: dict[str, int] = {}
        self._printed = -SECONDS_BETWEEN_LINES
        self._last: _State | None = None
        self._shown: _State | None = None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._last is not None and self._last is not self._shown:
            self._print_line(self._last)

    def _show(self, state: _State) -> None:
        if state == self._last:
            return
        if self._bar is not None:
            self._update(self._bar, state)
        elif (
            self._last is None
            or self._last.phase != state.phase
            or (state.wait and not self._last.wait)
            or time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES
        ):
            self._printed = time.monotonic()
            self._print_line(state)
        self._last = state

    def _update(self, bar: Bar, state: _State) -> None:
        if state.phase not in self._tasks:
            self._tasks[state.phase] = bar.add_task(state.phase, total=state.total, note="")
        bar.update(
            self._tasks[state.phase],  # type: ignore[arg-type]
            completed=state.done,
            total=None if state.total is None else max(state.total, state.done),
            note=state.wait or state.note,
        )

    def _print_line(self, state: _State) -> None:
        self._shown = state
        total = "?" if state.total is None else state.total
        notes = ", ".join(filter(None, (state.wait, state.note)))
        sys.stderr.write(f"{state.phase}: {state.done}/{total} {self._unit}, {notes}\n")
        sys.stderr.flush()


class ProgressDisplay(_Display):
    """Shows a search's `Progress`."""

    def __init__(self) -> None:
        super().__init__("calls")

    def __call__(self, progress: Progress) -> None:
        """Show the newest state."""
        note, wait = _search_note(progress), _wait(progress.rate_limits)
        self._show(_State(progress.phase, progress.calls, progress.total, note, wait))


class EvaluationDisplay(_Display):
    """Shows an evaluation's `EvaluationProgress`."""

    def __init__(self) -> None:
        super().__init__("rows")

    def __call__(self, progress: EvaluationProgress) -> None:
        """Show the newest state."""
        note, wait = _evaluation_note(progress), _wait(progress.rate_limits)
        self._show(_State("evaluate", progress.rows, progress.rows_expected, note, wait))


def _wait(rate_limits: Mapping[str, float]) -> str:
    """Return the pending rate limits: model, seconds and end time of each."""
    now = time.time()
    return ", ".join(
        f"waiting for {model}'s rate limit, {math.ceil(seconds)} s (until "
        f"{time.strftime('%H:%M:%S', time.localtime(now + seconds))})"
        for model, seconds in rate_limits.items()
    )


def _search_note(progress: Progress) -> str:
    parts = []
    if progress.best_score is not None:
        parts.append(f"best score {progress.best_score:.3f}")
    parts.append(f"{progress.accepted} of {progress.proposals} proposals accepted")
    if progress.cost is not None:
        parts.append(dollars(progress.cost))
    return ", ".join(parts)


def _evaluation_note(progress: EvaluationProgress) -> str:
    parts = [f"{progress.rows_per_second:,.1f} rows/s"]
    accuracy = progress.accuracy_answered
    if accuracy is not None:
        parts.append(f"accuracy {accuracy.estimate:.3f} ({accuracy.lower:.3f} to {accuracy.upper:.3f})")
    failed = sum(progress.errors.values())
    if failed:
        kinds = sorted(progress.errors.items(), key=lambda item: -item[1])[:_KINDS_SHOWN]
        parts.append(f"{failed} failed ({', '.join(f'{count} x {kind}' for kind, count in kinds)})")
    if progress.cost is not None:
        parts.append(dollars(progress.cost))
    if progress.eta_seconds and not progress.rate_limits:  # the estimate leaves out waits for rate limits
        parts.append(f"{_duration(progress.eta_seconds)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
