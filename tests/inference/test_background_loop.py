"""Tests of `run_sync`: coroutines run from synchronous code, and their end by Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from calibrant.core import CompletionRequest, LogprobSpace
from calibrant.inference import Classifier, _base
from calibrant.inference._base import run_sync


def test_run_sync_returns_the_result() -> None:
    """`run_sync` returns a coroutine's result with and without a running loop in the thread."""

    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def program() -> int:
        return run_sync(double(2))

    assert run_sync(double(1)) == 2
    assert asyncio.run(program()) == 4


def test_run_sync_raises_the_same_error() -> None:
    """`run_sync` raises the coroutine's own exception object."""
    error = LookupError("gone")

    async def fail() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        run_sync(fail())
    assert caught.value is error


def test_all_calls_share_one_loop() -> None:
    """Every call of `run_sync` runs on the same event loop."""

    async def current() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert run_sync(current()) is run_sync(current())


LIBRARY = """
import asyncio, atexit
from calibrant.inference._base import run_sync

ended, tasks = [], []

async def work():
    try:
        await asyncio.sleep(60)
    finally:
        ended.append("ended")

async def imports_a_library():
    atexit.register(lambda: print(ended))
    tasks.append(asyncio.create_task(work()))
    await asyncio.sleep(0)

async def nothing():
    pass

run_sync(nothing())
run_sync(imports_a_library())
"""


def test_loop_stops_before_libraries_clean_up() -> None:
    """At exit the loop's tasks end before atexit functions that the coroutine's imports registered."""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", LIBRARY], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("['ended']\n", "")


def test_stopped_loop_is_replaced() -> None:
    """A call after the loop was stopped, even twice, runs on a new loop."""

    async def current() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    first = run_sync(current())
    _base._stop()
    _base._stop()
    assert first.is_closed()
    assert run_sync(current()) is not first


class Endless:
    """Model that never answers, and takes a moment to stop."""

    name = "endless"
    space = LogprobSpace.MASKED

    def __init__(self) -> None:
        self.started = threading.Event()
        self.stopped: list[str] = []

    async def complete(self, request: CompletionRequest) -> object:
        """Wait until cancelled."""
        self.started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            self.stopped.append(request.messages[-1]["content"])
        return None

    def close(self) -> None:
        """Do nothing, as the model holds no resource."""


@pytest.fixture
def pressed() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, even if the test process ignores the signal."""
    if not hasattr(signal, "pthread_kill"):
        pytest.skip("needs POSIX signals")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("pressed")
def test_ctrl_c_stops_every_call_first() -> None:
    """KeyboardInterrupt is raised only after every call in flight has stopped."""
    model = Endless()
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        if model.started.wait(10):
            signal.pthread_kill(main, signal.SIGINT)

    classifier = Classifier(model=model, labels=["cat", "dog"], concurrency=3)
    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        classifier.classify_many(["a", "b", "c", "d"])
    assert sorted(model.stopped) == ["a", "b", "c"]


@pytest.mark.usefixtures("pressed")
def test_ctrl_c_in_another_thread_is_raised() -> None:
    """A signal that arrives in another thread raises KeyboardInterrupt in the waiting main thread."""
    finished: list[bool] = []

    async def work() -> None:
        await asyncio.sleep(0.2)  # by now the main thread waits; a signal before that proves nothing
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await asyncio.sleep(10)
        finished.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_sync(work())
    assert finished == []


@pytest.mark.usefixtures("pressed")
def test_ctrl_c_keeps_a_coroutine_from_starting() -> None:
    """A coroutine that has not started on the busy loop does not start after Ctrl-C."""
    main = threading.main_thread().ident
    assert main is not None
    began: list[bool] = []
    handled = threading.Event()

    def interrupt(*_: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def keep_busy() -> None:
        time.sleep(0.2)  # the main thread mostly waits by now
        signal.pthread_kill(main, signal.SIGINT)
        handled.wait()
        time.sleep(0.3)  # so the main thread has cancelled the coroutine

    async def work() -> None:
        began.append(True)

    def wait() -> None:
        _base._background_loop().call_soon_threadsafe(keep_busy)
        run_sync(work())

    signal.signal(signal.SIGINT, interrupt)
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert began == []
