"""Threads in place of a Ray cluster: a module `ray` whose actors and workers live in this process."""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock, local
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Died(BaseException):
    """Stands for the death of a worker's process."""


class Result(Future[Any]):
    """Future of a call, which is its own reference."""

    def future(self) -> Result:
        return self


class Actor:
    """An object that several threads may use, a call at a time."""

    def __init__(self, held: Any, call: Callable[..., Result]) -> None:
        self.held, self._call = held, call

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=partial(self._call, getattr(self.held, name)))


class Rows:
    """Tables of rows that functions and workers change, in the order of the input."""

    def __init__(self, ray: LocalRay, tables: Callable[[], Iterator[Any]]) -> None:
        self._ray, self._tables = ray, tables

    def map_batches(self, called: Any, **options: Any) -> Rows:
        if "compute" not in options:
            return Rows(self._ray, lambda: (found for table in self._tables() for found in called(table)))
        arguments, workers = options["fn_constructor_args"], options["compute"].size
        return Rows(
            self._ray, lambda: self._ray.answered(self._tables(), called, *arguments, workers=workers)
        )

    def iter_batches(self, **_: Any) -> Iterator[Any]:
        return self._tables()


class LocalRay(ModuleType):
    """The part of Ray that calibrant uses, in threads.

    Attributes
    ----------
    machines : int
        Number of machines.
    blocks : int
        Number of tables that were handed to workers.
    """

    def __init__(self, *, elsewhere: Callable[[], None] | None = None) -> None:
        super().__init__("ray")
        self.machines, self.blocks = 1, 0
        self._elsewhere, self._lock, self._thread, self._dying = elsewhere, Lock(), local(), False
        context = SimpleNamespace(target_max_block_size=0, enable_progress_bars=True)
        data = SimpleNamespace(
            DataContext=SimpleNamespace(get_current=lambda: context),
            ActorPoolStrategy=SimpleNamespace,
            from_items=lambda items: Rows(self, lambda: iter(items)),
        )
        vars(self).update(
            data=data,
            exceptions=SimpleNamespace(RayError=type("RayError", (RuntimeError,), {})),
            is_initialized=lambda: False,
            init=lambda **_: None,
            shutdown=lambda: None,
            cluster_resources=lambda: {"CPU": 8},
            get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "here"),
            get=Result.result,
            kill=lambda actor: setattr(actor, "held", None),  # what asks it afterwards fails
        )

    def nodes(self) -> list[dict[str, Any]]:
        node = {"Alive": True, "NodeID": "here", "NodeManagerAddress": "here", "Resources": {"CPU": 1}}
        return [node] * self.machines

    def remote(self, called: Callable[..., Any]) -> Any:
        def make(*args: Any, **options: Any) -> Actor:
            return Actor(called(*args, **options), self.call)

        found = SimpleNamespace(remote=make if isinstance(called, type) else partial(self.call, called))
        return SimpleNamespace(options=lambda **_: found)

    def call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Result:
        """Return the result of a call; those of a worker that dies are not heard."""
        result = Result()
        if self._dying and vars(self._thread):
            return result
        with self._lock:
            try:
                result.set_result(method(*args, **options))
            except Exception as error:  # noqa: BLE001 (raised where it is asked for)
                result.set_exception(error)
        return result

    def die(self) -> None:
        """End the only worker, which calls this on its way: another one takes its place."""
        self._dying = True
        raise Died

    def answered(
        self, tables: Iterator[Any], kind: Any, opening: Any, *args: Any, workers: int
    ) -> Iterator[Any]:
        """Yield the answers to tables in the order of the input; a worker answers one at a time."""
        if self._elsewhere is not None:
            opening = pickle.loads(pickle.dumps(opening))  # noqa: S301 (our own)
            self._elsewhere()
        opened: list[Any] = []
        living: list[Any] = [None] * workers

        def remembered(**options: Any) -> Any:
            opened.append(opening(**options))
            return opened[-1]

        def answer(number: int, table: Any) -> Any:
            self._thread.works = True
            while True:
                try:
                    living[number] = living[number] or kind(remembered, *args)
                    return living[number](table)
                except Died:
                    living[number], self._dying = None, False

        under_way: deque[Future[Any]] = deque()
        try:
            with ThreadPoolExecutor(workers) as pool:
                for table in tables:
                    if len(under_way) == workers:
                        yield under_way.popleft().result()
                    under_way.append(pool.submit(answer, self.blocks % workers, table))
                    self.blocks += 1
                while under_way:
                    yield under_way.popleft().result()
        finally:
            for classifier in opened:
                classifier.close()


def install(monkeypatch: pytest.MonkeyPatch, *, elsewhere: Callable[[], None] | None = None) -> LocalRay:
    """Put threads in the place of Ray for `calibrant.distributed.evaluate`, and return them.

    With `elsewhere` the workers are on another machine: the function that opens a classifier is pickled, and
    `elsewhere` takes away what they do not have.
    """
    ray = LocalRay(elsewhere=elsewhere)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", ray.data)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return ray
