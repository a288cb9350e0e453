"""Limit of concurrent calls from the process's limit of open files."""

from __future__ import annotations

import functools
import logging
import os
from typing import Final

_LOG = logging.getLogger("calibrant")
# Files beside the calls' sockets: caches and journals with SQLite's own files (6), run files (4), DNS look-ups (4),
# modules imported late (2).
_RESERVED: Final = 16


def calls_that_fit(wanted: int, *, clients: int = 1) -> int:
    """Return the number of concurrent calls for one of several clients, each call with a socket of its own.

    Parameters
    ----------
    wanted : int
        Upper limit of the result, at least 1.
    clients : int, default 1
        Clients that share the process's limit of open files.

    Returns
    -------
    int
        At least 1: without room even for one socket, calls fail and are retried one at a time.
    """
    limit = _open_file_limit()
    if limit is None:
        return wanted
    return max(1, min(wanted, _free_sockets(limit) // max(1, clients)))


@functools.cache
def say_that_calls_wait(calls: int) -> None:
    """Warn once that calls wait because of the process's limit of open files."""
    _LOG.warning(
        "This process may open only %d files (ulimit -n), so at most %d calls are made at a time and the others wait: "
        "raise the limit, such as with ulimit -n 1024, for more.",
        _open_file_limit(),
        calls,
    )


def _open_file_limit() -> int | None:
    """Return the process's limit of open files; None where it is unknown or infinite."""
    try:
        import resource  # noqa: PLC0415 (not on Windows)
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


@functools.cache
def _free_sockets(limit: int) -> int:
    """Return the number of sockets under a limit; cached, so that open sockets are not counted as other files."""
    try:
        others = len(os.listdir("/dev/fd"))  # noqa: PTH208 (names only)
    except OSError:
        others = _RESERVED
    return limit - others - _RESERVED
