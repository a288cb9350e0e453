"""A progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from calibrant.optimization import Progress

__all__ = ["ProgressDisplay"]

SECONDS_BETWEEN_LINES = 10.0


class ProgressDisplay:
    """Shows `Progress` on standard error."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = (
            Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("calls"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._tasks: dict[str, int] = {}
        self._printed = -SECONDS_BETWEEN_LINES
        self._last: Progress | None = None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._last is not None:
            _print_line(self._last)

    def __call__(self, progress: Progress) -> None:
        """Show the newest state."""
        if self._bar is not None:
            self._update(self._bar, progress)
        elif (
            self._last is None
            or self._last.phase != progress.phase
            or time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES
        ):
            self._printed = time.monotonic()
            _print_line(progress)
        self._last = progress

    def _update(self, bar: Bar, progress: Progress) -> None:
        if progress.phase not in self._tasks:
            self._tasks[progress.phase] = bar.add_task(progress.phase, total=progress.total, note="")
        total = max(progress.total, progress.calls)
        bar.update(
            self._tasks[progress.phase],  # type: ignore[arg-type]
            completed=progress.calls,
            total=total,
            note=_note(progress),
        )


def _note(progress: Progress) -> str:
    parts = []
    if progress.best_score is not None:
        parts.append(f"best score {progress.best_score:.3f}")
    parts.append(f"{progress.accepted} of {progress.proposals} proposals accepted")
    if progress.cost is not None:
        parts.append(f"${progress.cost:.4f}")
    return ", ".join(parts)


def _print_line(progress: Progress) -> None:
    sys.stderr.write(f"{progress.phase}: {progress.calls}/{progress.total} calls, {_note(progress)}\n")
    sys.stderr.flush()
