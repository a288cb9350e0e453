"""Ctrl-C: the first one ends a run in order, the second at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from calibrant.core._predictor import Stop

if TYPE_CHECKING:
    from types import FrameType

ENDED_BY_SIGNAL: Final = "interrupted"
_SIGNALS: Final = ("SIGINT", "SIGTERM")
_FINISHING: Final = "interrupted: finishing the rows under way; press Ctrl-C again to end at once."
_GIVING_UP: Final = "interrupted: the rows under way are given up; what was answered is kept."


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

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if stop.reason == ENDED_BY_SIGNAL:
            raise KeyboardInterrupt
        stop.reason = ENDED_BY_SIGNAL
        stop.request(ENDED_BY_SIGNAL, at_once=at_once, waits=True)
        with contextlib.suppress(OSError, RuntimeError):  # a closed pipe, or a write under way
            _say(_GIVING_UP if at_once else _FINISHING)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {name: signal.signal(getattr(signal, name), handle) for name in _SIGNALS}
    try:
        yield stop
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
