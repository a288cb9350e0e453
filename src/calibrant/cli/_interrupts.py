"""Ctrl-C: the first one ends a run in order, the second at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Final

from calibrant.cli._tables import say
from calibrant.core._predictor import Stop

ENDED_BY_SIGNAL: Final = "interrupted"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
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
