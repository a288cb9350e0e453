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


class Remote:
    """A function or the class of an actor, to be called with `remote`."""

    def __init__(self, called: Callable[..., Any], ray: LocalRay) -> None:
        self.called, self._ray = called, ray

    def options(self, **_: Any) -> Remote:
        return self

    def remote(self, *args: Any, **options: Any) -> Any:
        if isinstance(self.called, type):
            return Actor(self.called(*args, **options), self._ray)
        return self._ray.call(self.called, *args, **options)


class Actor:
    """An object that several threads may use; it ends with `LocalRay.kill`."""

    def __init__(self, held: Any, ray: LocalRay) -> None:
        self.held, self._ray = held, ray

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.held, name) if self.held is not None else self._ray.refuse
        return SimpleNamespace(remote=partial(self._ray.call, method))


class Rows:
    """Tables of rows that functions and workers change, in the order of the input."""

    def __init__(self, ray: LocalRay, tables: Callable[[], Iterator[Any]]) -> None:
        self._ray, self._tables = ray, tables

    def map_batches(self, called: Any, **options: Any) -> Rows:
        if "compute" not in options:
            return Rows(self._ray, lambda: (found for table in self._tables() for found in called(table)))
        opening, *args = options["fn_constructor_args"]
        size = options["compute"].size
        return Rows(
            self._ray, lambda: self._ray.answered(self._tables(), called, opening, args, workers=size)
        )

    def iter_batches(self, **_: Any) -> Iterator[Any]:
        return self._tables()


class LocalRay(ModuleType):
    """The part of Ray that calibrant uses, in threads.

    Attributes
    ----------
    machines, cpus : int
        Number of machines, and of CPUs in all.
    blocks : int
        Number of tables that were handed to workers.
    """

    def __init__(self, *, elsewhere: Callable[[], None] | None = None) -> None:
        super().__init__("ray")
        self.machines, self.cpus, self.blocks = 1, 8, 0
        self._elsewhere, self._lock = elsewhere, Lock()
        self._thread, self._dying = local(), False
        self.exceptions = SimpleNamespace(RayError=type("RayError", (RuntimeError,), {}))
        self.data = ModuleType("ray.data")
        context = SimpleNamespace(target_max_block_size=0, enable_progress_bars=True)
        vars(self.data).update(
            DataContext=SimpleNamespace(get_current=lambda: context),
            ActorPoolStrategy=SimpleNamespace,
            from_items=lambda items: Rows(self, lambda: iter(items)),
        )

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: Any) -> None: ...

    def shutdown(self) -> None: ...

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def nodes(self) -> list[dict[str, Any]]:
        node = {"Alive": True, "NodeID": "here", "NodeManagerAddress": "here", "Resources": {"CPU": 1}}
        return [node] * self.machines

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")

    def remote(self, called: Callable[..., Any]) -> Remote:
        return Remote(called, self)

    def get(self, reference: Result) -> Any:
        return reference.result()

    def kill(self, actor: Actor) -> None:
        actor.held = None

    def refuse(self, *_: Any, **__: Any) -> None:
        raise self.exceptions.RayError("the actor is gone")

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
        self, tables: Iterator[Any], kind: Any, opening: Any, args: Any, *, workers: int
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
