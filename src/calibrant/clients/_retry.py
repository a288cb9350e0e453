"""Retries of failed calls, with exponential backoff."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._predictor import interruptible_sleep

_T = TypeVar("_T")


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

    def wait_seconds(self, failures: int, error: BaseException | None = None) -> float:
        """Return the wait after the given number of failures, in seconds."""
        ceiling = min(self.maximum_seconds, self.initial_seconds * 2.0 ** (failures - 1))
        wait = ceiling * (0.5 + 0.5 * self.jitter())
        retry_after = error.retry_after if isinstance(error, ProviderError) else None
        return wait if retry_after is None else max(wait, retry_after)

    def worth_retrying(self, error: BaseException) -> bool:
        """Return True if the same call may succeed soon."""
        if not (isinstance(error, ProviderError) and error.retryable):
            return False
        return error.retry_after is None or error.retry_after <= self.maximum_retry_after_seconds

    async def next_attempt(self, error: ProviderError, attempts: int) -> bool:
        """Wait and return True if another attempt is allowed; otherwise return False at once.

        Parameters
        ----------
        error : ProviderError
            The last failure; its attribute ``attempts`` is set.
        attempts : int
            Calls made so far.
        """
        error.attempts = attempts
        if attempts >= self.attempts or not self.worth_retrying(error):
            return False
        await interruptible_sleep(self.wait_seconds(attempts, error), sleep=self.sleep, failure=error)
        return True


async def with_retries(
    call: Callable[[], Awaitable[_T]], *, policy: RetryPolicy | None = None
) -> tuple[_T, int]:
    """Repeat a call until it succeeds, no attempt is left, or a failure is not worth a retry.

    Parameters
    ----------
    call : coroutine function
        Makes one call.
    policy : RetryPolicy, optional
        By default ``RetryPolicy()``.

    Returns
    -------
    answer : object
        Result of the call.
    attempts : int
        Calls made.

    Raises
    ------
    ProviderError
        The last failure; its attribute ``attempts`` holds the number of calls made.
    """
    policy = policy or RetryPolicy()
    attempts = 0
    while True:
        attempts += 1
        try:
            return await call(), attempts
        except ProviderError as error:
            if not await policy.next_attempt(error, attempts):
                raise
