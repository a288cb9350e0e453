"""How a method makes its calls: through the gate, with a deadline, again where that can help."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from calibrant.clients._rates import rate_state
from calibrant.clients._retry import RetryPolicy, with_retries
from calibrant.core._completion import Client, Completion, CompletionRequest
from calibrant.core._errors import CalibrantError, DataError, ProviderError, ProviderTimeoutError
from calibrant.core._prediction import Usage
from calibrant.inference._limits import Gate
from calibrant.logprobs._completion import read_completion

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Makes the calls of a method.

    Attributes
    ----------
    policy : RetryPolicy
        How passing faults are retried.
    gate : Gate
        Bounds the calls in flight; shared with the runner.
    """

    policy: RetryPolicy = RetryPolicy()
    gate: Gate = field(default_factory=Gate)

    async def make(self, call: Callable[[], Awaitable[_T]], *, provider: str) -> tuple[_T, int]:
        """Call until there is an answer, or until trying again makes no sense.

        Parameters
        ----------
        call : coroutine function
            Makes one call.
        provider : str
            The model, for messages.

        Returns
        -------
        answer : object
            What the call returned.
        attempts : int
            Calls made.

        Raises
        ------
        ProviderError
            The last failure; its attribute ``attempts`` holds the number of calls made.
        """
        return await with_retries(partial(self._once, call, provider), policy=self.policy)

    async def complete(self, client: Client, request: CompletionRequest) -> tuple[Completion, int]:
        """Return a client's answer to a request that is no classification, and the calls made.

        It counts towards the budgets. A broken response is retried like a failed call.

        Raises
        ------
        ProviderError
            As `make`.
        CalibrantError
            The model tried to end the program, which would end the event loop for all others.
        """

        async def ask() -> Completion:
            try:
                response = await client.complete(request)
            except (SystemExit, KeyboardInterrupt) as error:
                raise CalibrantError(f"{client.name}: the model raised {error!r}.") from error
            self.gate.heard(rate_state(response))
            try:
                return read_completion(response)
            except DataError as error:
                raise ProviderError(
                    f"broken response: {error}", provider=client.name, retryable=True
                ) from error

        completion, attempts = await self.make(ask, provider=client.name)
        self.gate.charge(completion.usage, rows=0)
        return completion, attempts

    async def _once(self, call: Callable[[], Awaitable[_T]], provider: str) -> _T:
        gate = self.gate
        epoch = await gate.enter()
        failure: BaseException | None = None
        pause = None
        try:
            if gate.limits.call_seconds is None:
                return await call()
            return await in_time(call, gate.limits.call_seconds, provider)
        except BaseException as error:
            failure = error
            if isinstance(error, ProviderError):
                if self.policy.worth_retrying(error):
                    pause = error.retry_after
                error.retryable = error.retryable and not gate.hopeless
            raise
        finally:
            gate.leave(epoch, failure, pause=pause)


async def in_time(call: Callable[[], Awaitable[_T]], seconds: float, provider: str) -> _T:
    """Make a call that may take so long.

    Raises
    ------
    ProviderTimeoutError
        It took longer.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await call()
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise ProviderTimeoutError(
            f"no complete answer within {seconds:g} seconds.", provider=provider, retryable=True
        ) from error


def total_usage(parts: Iterable[Usage]) -> Usage:
    """Return the sum; its cost is that of the parts whose cost is known, None where none is."""
    usages = tuple(parts)
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cost=math.fsum(costs) if costs else None,
    )
