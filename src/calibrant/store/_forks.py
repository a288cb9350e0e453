"""Database connections across forks: SQLite would attribute an inherited connection's locks to the child."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None:
        """Close idle connections."""
        ...


class _Gate:
    """Lock between forks and the use of connections."""

    def __init__(self) -> None:
        self.condition = threading.Condition(threading.Lock())
        self.users: Counter[int] = Counter()  # connections in use, by thread
        self.forking = 0  # threads that fork, or wait until they may


_GATE = _Gate()
_OPEN: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_before_forks(database: _Closable) -> None:
    """Register a store, by weak reference, whose connections are closed before every fork."""
    with _GATE.condition:
        _OPEN.add(database)


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Hold off forks of other threads until the block ends."""
    gate, thread = _GATE, threading.get_ident()
    with gate.condition:
        while gate.forking and thread not in gate.users:
            gate.condition.wait()
        gate.users[thread] += 1
    try:
        yield
    finally:
        with gate.condition:
            gate.users[thread] -= 1
            if not gate.users[thread]:
                del gate.users[thread]
                gate.condition.notify_all()


def _before_fork() -> None:
    # Wait for other threads to leave the database, then close idle connections: the child must inherit none.
    _GATE.condition.acquire()
    _GATE.forking += 1
    this_thread = {threading.get_ident()}
    while not _GATE.users.keys() <= this_thread:
        _GATE.condition.wait()
    for database in list(_OPEN):
        database.close()


def _after_fork_in_parent() -> None:
    _GATE.forking -= 1
    _GATE.condition.notify_all()
    _GATE.condition.release()


def _after_fork_in_child() -> None:
    _GATE.forking = 0  # threads that waited to fork do not exist in the child
    _GATE.condition.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
