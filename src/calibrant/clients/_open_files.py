"""How many calls at a time the process's limit of open files leaves room for."""

from __future__ import annotations

import functools
import logging
import os
from typing import Final

__all__ = ["calls_that_fit", "say_that_calls_wait"]

_LOG = logging.getLogger("calibrant")
# Files beside the calls' sockets: caches and journals with what SQLite keeps beside them (6), run files (4), look-ups
# of names (4), modules imported late (2).
_RESERVED: Final = 16


def calls_that_fit(wanted: int, *, clients: int = 1) -> int:
    """Return how many calls one of several clients may make at a time, each with a socket of its own.

    Parameters
    ----------
    wanted : int
        Calls, at least 1; never more are returned.
    clients : int, default 1
        Clients that share what the process may open.

    Returns
    -------
    int
        At least 1: with less room than that, calls fail, and are tried again, one at a time.
    """
    limit = _limit()
    if limit is None:
        return wanted
    return max(1, min(wanted, _spare(limit) // max(1, clients)))


@functools.cache
def say_that_calls_wait(calls: int) -> None:
    """Warn once that calls wait for others, because the process may not open more files."""
    _LOG.warning(
        "This process may open only %d files (ulimit -n), so at most %d calls are made at a time and the others wait: "
        "raise the limit, such as with ulimit -n 1024, for more.",
        _limit(),
        calls,
    )


def _limit() -> int | None:
    """Return how many files the process may have open; None where nothing says so."""
    try:
        import resource  # noqa: PLC0415 (not on Windows)
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


@functools.cache
def _spare(limit: int) -> int:
    """Return how many sockets a limit leaves; counted once, before the first of them is there."""
    try:
        others = len(os.listdir("/dev/fd"))  # noqa: PTH208 (names only)
    except OSError:
        others = _RESERVED
    return limit - others - _RESERVED
