"""Control of calls: retries, a head start for the first one, the limit of open files, check of timeouts."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._prediction import Usage
from calibrant.core._predictor import interruptible_sleep
from calibrant.core._reported import is_number

_T = TypeVar("_T")
Call: TypeAlias = Callable[[], Awaitable[_T]]
"""Function that makes one call."""

# Default for concurrent calls per event loop; the others wait before their timeout starts. Each call has a
# socket, of which a process may usually have 1,024.
_CALLS: Final = 256

# Time that other calls wait for the first one. A missing key or an unsupported parameter is noticed in milliseconds; 64
# calls at once would all fail, and litellm leaves unawaited coroutines behind when they are cancelled.
_HEAD_START_SECONDS: Final = 1.0
_LOG = logging.getLogger("calibrant")
# Files beside the calls' sockets: caches and journals with SQLite's own files (6), run files (4), DNS look-ups (4),
# modules imported late (2).
_RESERVED: Final = 16


class LoopValues(dict[asyncio.AbstractEventLoop, _T]):
    """One value for each event loop; those of closed loops are dropped when another loop asks for its own.

    Locks, semaphores and futures refer to their loop once somebody waits for them. With weak keys alone, such a value
    would keep its loop, and be kept, for as long as the dictionary lives.
    """

    def here(self, make: Callable[[], _T]) -> _T:
        """Return the value of the running event loop, from `make` if it has none yet."""
        loop = asyncio.get_running_loop()
        value = self.get(loop)
        if value is None:
            for other in tuple(self):
                if other.is_closed():
                    self.pop(other, None)
            value = self[loop] = make()
        return value


@dataclass(eq=False)
class _Start:
    """State of an event loop's first call.

    Attributes
    ----------
    first : Future or None
        Ends with the call, with its systemic fault if it had one; None unless the call is under way.
    has_ended : bool
        True once a first call ended without a systemic fault: no further call waits.
    """

    first: asyncio.Future[ProviderError | None] | None = None
    has_ended: bool = False


class FirstCall:
    """Gate that lets the first call of an event loop run alone for at most one second.

    If it fails with a systemic fault, the waiting calls fail with an equal error, and the next call is a first call
    again.
    """

    def __init__(self) -> None:
        self._starts: LoopValues[_Start] = LoopValues()

    def then(self, call: Call[_T]) -> Awaitable[_T]:
        """Wait at most one second for the loop's first call, then return the result of `call`.

        Raises
        ------
        ProviderError
            The call failed, or the first call failed with a systemic fault.
        """
        start = self._starts.here(_Start)
        if start.has_ended:
            return call()
        return self._after_first(start, call)

    async def _after_first(self, start: _Start, call: Call[_T]) -> _T:
        first = start.first
        if first is None:
            return await self._go_ahead(start, call)
        await asyncio.wait([first], timeout=_HEAD_START_SECONDS)
        failure = first.result() if first.done() else None
        if failure is not None:  # in a copy, as every caller sets its own effort
            copy = type(failure).__new__(type(failure), *failure.args)
            vars(copy).update(vars(failure), attempts=1, usage=None)
            raise copy
        return await call()

    async def _go_ahead(self, start: _Start, call: Call[_T]) -> _T:
        first = start.first = asyncio.get_running_loop().create_future()
        failure: ProviderError | None = None
        try:
            return await call()
        except ProviderError as error:
            failure = error if error.systemic else None
            raise
        finally:
            start.first = None
            start.has_ended = failure is None  # else the next call is a first call again
            first.set_result(failure)


class CallGate:
    """Limit of concurrent calls per event loop, lowered if the process may open fewer files.

    Parameters
    ----------
    calls : int, optional
        Concurrent calls at most, per event loop; by default 256.
    clients : callable, optional
        Returns the number of clients that share the limit of open files; by default 1.

    Attributes
    ----------
    calls : int
        Concurrent calls at most, without the limit of open files.

    Raises
    ------
    ConfigurationError
        `calls` is below 1.
    """

    def __init__(self, calls: int | None, *, clients: Callable[[], int] = lambda: 1) -> None:
        if calls is not None and calls < 1:
            raise ConfigurationError(f"Expected max_concurrency of at least 1, got {calls}.")
        self.calls = calls or _CALLS
        self._clients = clients
        self._gates: LoopValues[tuple[asyncio.Semaphore, int]] = LoopValues()

    def turn(self) -> asyncio.Semaphore:
        """Return the semaphore of the running event loop."""
        gate, calls = self._gates.here(self._opened)
        if calls < self.calls and gate.locked():
            _warn_of_waiting(calls)
        return gate

    def _opened(self) -> tuple[asyncio.Semaphore, int]:
        """Return a semaphore, and the number of calls that it allows."""
        limit = _open_file_limit()
        free = self.calls if limit is None else _free_sockets(limit) // self._clients()
        # At least 1: without room even for one socket, calls fail and are retried one at a time.
        calls = max(1, min(self.calls, free))
        return asyncio.Semaphore(calls), calls


@functools.cache
def _warn_of_waiting(calls: int) -> None:
    """Warn once that calls wait because of the process's limit of open files."""
    _LOG.warning(
        "This process may open only %d files (ulimit -n), so at most %d calls are made at a time and the others wait: "
        "raise the limit, such as with ulimit -n 1024, for more.",
        _open_file_limit(),
        calls,
    )


def _open_file_limit() -> int | None:
    """Return the process's limit of open files; None if it is unknown or infinite."""
    try:
        import resource  # noqa: PLC0415 (not on Windows)
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


@functools.cache
def _free_sockets(limit: int) -> int:
    """Return the number of sockets that may still be opened under a limit of open files."""
    try:
        others = len(os.listdir("/dev/fd"))  # noqa: PTH208 (names only)
    except OSError:
        others = _RESERVED
    return limit - others - _RESERVED


def check_seconds(value: object, *, name: str = "timeout") -> None:
    """Check that a timeout is a number of seconds above 0.

    Raises
    ------
    ConfigurationError
        The timeout is no number, or not above 0.
    """
    if not is_number(value) or value <= 0:
        raise ConfigurationError(f"Expected {name} to be a number of seconds above 0, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Policy for retries: number of attempts, and waits between them.

    The wait before attempt k + 1 is drawn evenly from the upper half of
    ``min(maximum_seconds, initial_seconds * 2 ** (k - 1))``; where the server names a time
    (``Retry-After``), it is at least that.

    Attributes
    ----------
    attempts : int, default 6
        Calls in all, the first included.
    initial_seconds : float, default 0.5
        Longest wait after the first failure.
    maximum_seconds : float, default 20
        Longest wait without a ``Retry-After``.
    maximum_retry_after_seconds : float, default 60
        Longest ``Retry-After`` to wait for; a longer one ends the retries.
    sleep : coroutine function, default asyncio.sleep
        Function that waits some seconds; tests replace it.
    jitter : function, default random.random
        Function that returns a number in [0, 1); tests replace it.

    Raises
    ------
    ConfigurationError
        `attempts` below 1 or a negative time.

    Examples
    --------
    >>> from calibrant.core import ProviderError
    >>> from calibrant.inference import Classifier, RetryPolicy
    >>> from calibrant.testing import FakeClient
    >>> down = ProviderError("is down", provider="fake", retryable=True)
    >>> fake = FakeClient(["cat", "dog"], {"purrs": "cat"}, failures={0: down, 1: down})
    >>> policy = RetryPolicy(attempts=3, initial_seconds=0)
    >>> answered = Classifier(model=fake, labels=["cat", "dog"], field="category", retry=policy).classify("purrs")
    >>> answered.label, len(fake.requests)
    ('cat', 3)
    """

    attempts: int = 6
    initial_seconds: float = 0.5
    maximum_seconds: float = 20.0
    maximum_retry_after_seconds: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep, repr=False)
    jitter: Callable[[], float] = field(default=random.random, repr=False)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"attempts must be at least 1, got {self.attempts}.")
        for name in ("initial_seconds", "maximum_seconds", "maximum_retry_after_seconds"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(f"{name} must be 0 or more, got {getattr(self, name)}.")

    def wait_seconds(self, failures: int, error: ProviderError | None = None) -> float:
        """Return the wait after the given number of failures, in seconds."""
        ceiling = min(self.maximum_seconds, self.initial_seconds * 2.0 ** (failures - 1))
        wait = ceiling * (0.5 + 0.5 * self.jitter())
        retry_after = None if error is None else error.retry_after
        if retry_after is None:
            return wait
        return max(wait, retry_after)

    def worth_retrying(self, error: ProviderError) -> bool:
        """Return True if the same call may succeed soon."""
        return error.retryable and (error.retry_after or 0.0) <= self.maximum_retry_after_seconds

    async def repeat(self, call: Call[_T], *, paid: Sequence[Usage] = ()) -> tuple[_T, int]:
        """Repeat a call until it succeeds, no attempt is left, or a failure is not worth a retry.

        Parameters
        ----------
        call : coroutine function
            Makes one call.
        paid : sequence of Usage, optional
            What the answered calls took; `call` adds to it.

        Returns
        -------
        answer : object
            Result of the call.
        attempts : int
            Calls made, of which the last one counts as one.

        Raises
        ------
        ProviderError
            The last failure; its attribute ``attempts`` holds the number of calls made, and ``usage`` what they took.
        """
        attempts = failed_calls = 0
        while True:
            attempts += 1
            try:
                return await call(), failed_calls + 1
            except ProviderError as error:
                failed_calls += error.calls
                error.attempts = failed_calls
                error.usage = sum(paid, Usage())
                if attempts >= self.attempts or not self.worth_retrying(error):
                    raise
                seconds = self.wait_seconds(attempts, error)
                await interruptible_sleep(seconds, sleep=self.sleep, failure=error)
