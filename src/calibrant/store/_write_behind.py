"""Base class of objects that write in a background thread."""

from __future__ import annotations

import abc
import atexit
import logging
import os
import threading
import time
import weakref
from typing import ClassVar, Self

from calibrant.core._errors import StateError

_LOG = logging.getLogger("calibrant")
_SHORTEST_RETRY, _LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts after a failed write


class WriteBehind(abc.ABC):
    """Object that writes queued data in a background thread, so that callers need not wait.

    The program's exit closes it, except in children of multiprocessing. A forked child starts with an empty
    queue: the parent writes the data that were queued.

    Parameters
    ----------
    pause : float
        Seconds between the first queued item and its write.

    Attributes
    ----------
    thread_name : str
        Name of the thread.
    rest : float
        Pause after a write, as a multiple of its duration: other processes want their turn, too.
    """

    thread_name: ClassVar[str]
    rest: ClassVar[float] = 0.0

    def __init__(self, *, pause: float) -> None:
        self._pause = pause
        self._closed = False
        self._reset()
        _OPEN.add(self)

    def _reset(self) -> None:
        """Create new locks, queue and thread, as a forked child may not share its parent's."""
        self._lock = threading.Lock()  # held for moments only, never during a write
        self._write_lock = threading.Lock()  # held while reading and writing the database
        self._failing = False
        self._dropped = 0
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    @abc.abstractmethod
    def _write_queue(self) -> bool:
        """Write the queue and log problems; return False to be called again soon."""

    @abc.abstractmethod
    def close(self) -> None:
        """Write the queue, end the thread and free the database; closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.close()
        except StateError as error:
            if kind is None:
                raise
            _LOG.warning("%s", error)  # the error under way matters more

    def _wake_up(self, *, hurry: bool = False) -> None:
        """Tell the thread to write the queue, after the pause or at once."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name=self.thread_name, daemon=True)
                    self._thread.start()
        if not self._wake.is_set():
            self._wake.set()
        if hurry:
            self._hurry.set()

    def _stop(self) -> bool:
        """End the thread after one more write; return False if that was done before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
        self._wake.set()
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()
        _OPEN.discard(self)
        return True

    def _run(self) -> None:
        pause = self._pause
        while not self._closed:
            self._wake.wait()
            self._hurry.wait(pause)
            self._wake.clear()
            self._hurry.clear()
            start = time.monotonic()
            if self._write_queue():
                pause = self.rest * (time.monotonic() - start)
            else:
                pause = 2 * max(pause, _SHORTEST_RETRY)
                self._wake.set()
            pause = max(self._pause, min(pause, _LONGEST_PAUSE))


_OPEN: weakref.WeakSet[WriteBehind] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_OPEN):
        writer._reset()  # noqa: SLF001 (this module's)


def _close_all() -> None:
    for writer in list(_OPEN):
        try:
            writer.close()
        except StateError as error:
            _LOG.warning("%s", error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
