"""Threads in place of a Ray cluster, with one ledger."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any

import pytest

from calibrant.core import Limits
from calibrant.distributed import Cluster, _evaluate
from calibrant.distributed._ledger import Ledger
from calibrant.distributed._ray import AnsweredBlock, Reader, Worker
from calibrant.inference import Classifier


class LocalBook:
    """A ledger that several threads may use."""

    def __init__(self, limits: Limits, workers: int, **options: Any) -> None:
        self.ledger = Ledger(limits, workers, **options)
        self._lock = Lock()

    def ask(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self._lock:
            return method(self.ledger, *args, **options)

    def tell(self, method: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(self.ask(method, *args, **options))
        return answer


@contextmanager
def opened_ledger(limits: Limits, *, workers: int) -> Iterator[LocalBook]:
    """Yield a ledger of this process."""
    book = LocalBook(limits, workers)
    try:
        yield book
    finally:
        book.ask(Ledger.close, "over", at_once=True)  # ends the workers' threads


@contextmanager
def connected(_cluster: Cluster, *, shares_a_file: bool = False) -> Iterator[None]:  # noqa: ARG001
    """Yield without connecting to a cluster."""
    yield


def answered_blocks(
    reader: Reader,
    opening: Callable[..., Classifier],
    *,
    cluster: Cluster,
    limits: Limits,
    cache: str | None,
    ledger: LocalBook,
) -> Iterator[AnsweredBlock]:
    """Answer the blocks, each worker one at a time, and yield them in the order of the input."""
    opened: list[Classifier] = []

    def remembered(*, limits: Limits) -> Classifier:
        opened.append(opening(limits=limits))
        return opened[-1]

    workers = [Worker(remembered, limits, cluster.workers, cache, ledger) for _ in range(cluster.workers)]
    under_way: deque[Future[Any]] = deque()
    try:
        with ThreadPoolExecutor(cluster.workers) as pool:
            for number, table in enumerate(replace(reader, book=ledger)(None)):
                if len(under_way) == cluster.workers:
                    yield from _taken(under_way.popleft())
                under_way.append(pool.submit(workers[number % cluster.workers], table))
            while under_way:
                yield from _taken(under_way.popleft())
    finally:
        for classifier in opened:
            classifier.close()


def _taken(found: Future[Any]) -> Iterator[AnsweredBlock]:
    yield from (AnsweredBlock(**row) for row in found.result().to_pylist())


def install(monkeypatch: pytest.MonkeyPatch, *, elsewhere: Callable[[], None] | None = None) -> None:
    """Replace Ray by threads in `calibrant.distributed.evaluate`.

    With `elsewhere` the workers are on another machine: the function that opens a classifier is pickled, and
    `elsewhere` takes away what they do not have.
    """

    def answered(
        reader: Reader, opening: Callable[..., Classifier], **options: Any
    ) -> Iterator[AnsweredBlock]:
        if elsewhere is not None:
            opening = pickle.loads(pickle.dumps(opening))  # noqa: S301 (our own)
            elsewhere()
        yield from answered_blocks(reader, opening, **options)

    monkeypatch.setattr(_evaluate, "require_ray", lambda: None)
    monkeypatch.setattr(_evaluate, "answered_blocks", answered)
    for function in (opened_ledger, connected):
        monkeypatch.setattr(_evaluate, function.__name__, function)
