"""Limits of a run: calls in flight, rates, budgets, deadlines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from calibrant.clients._failures import RateState
from calibrant.core._completion import Client, ClientTraits
from calibrant.core._errors import ProviderError
from calibrant.core._prediction import Prediction, Usage
from calibrant.core._predictor import CallMeter, Limits, Pace, interruptible_sleep
from calibrant.core._reported import counted

DEFAULT_CONCURRENCY: Final = 10
# Rows of an engine in this process share its cores: more of them only finish later, each with a prompt of
# its own between the calls of the others.
_IN_PROCESS_CONCURRENCY: Final = 4

# Refusals that say "too much at once", as opposed to faults of a single call.
_OVERLOAD: Final = frozenset({429, 503, 529})
_REQUESTS: Final = "requests_per_minute"
_TOKENS: Final = "tokens_per_minute"
_MINUTE: Final = 60.0
_TRIES: Final = 3
# An allowance that comes back later than this is not waited for: the provider may as well say 429.
LONGEST_PAUSE: Final = 60.0
_UNCOUNTED: Final = (
    "The answers do not say how many tokens they took, so {name} cannot be kept: leave it out, and ask few rows at "
    "first (--max-rows, max_requests)"
)


class Bucket:
    """Token bucket of a rate limit; its balance may become negative.

    Parameters
    ----------
    per_minute : float
        Inflow.
    now : float
        The time, in seconds.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._rate = per_minute / _MINUTE
        # A second's worth may go at once, and at least one call.
        self._most = max(1.0, self._rate)
        self._level = self._most
        self._then = now

    def wait(self, now: float) -> float:
        """Return the seconds until the balance is positive; 0 if it is positive now."""
        self._level = min(self._most, self._level + (now - self._then) * self._rate)
        self._then = now
        if self._level > 0:
            return 0.0
        return -self._level / self._rate + 1e-3

    def take(self, amount: float) -> None:
        """Subtract `amount` tokens, even if the balance becomes negative."""
        self._level -= amount


class Gate:
    """Concurrency and rate limiter of the calls to one provider.

    The number of calls in flight follows TCP's rule [1]_: halved when the provider says that it is
    overloaded (status 429, 503 or 529), once for all calls that were in flight then; one more for
    every round of calls that succeeded, up to the limit. Where the provider names a time
    (``Retry-After``, or the reset of an allowance that is used up), no call is begun before it.

    One gate may be used from several event loops and threads. It also adds up what was paid.

    Parameters
    ----------
    limits : Limits, optional
        The limits.
    provider : str, default ""
        The model that the calls go to.
    default_concurrency : int, default 10
        Calls in flight at most, where the limits do not say.
    clock : function, default time.monotonic
        Returns seconds; tests replace it.
    sleep : coroutine function, default asyncio.sleep
        Sleep function that receives seconds; tests replace it.

    Attributes
    ----------
    concurrency : int
        Calls in flight at most.
    allowed : float
        Calls that may be in flight at the moment.
    requests, successes, failures : int
        Calls begun, answered, and failed with a `ProviderError`.
    rows, tokens : int
        Rows charged, and the tokens they took.
    cost : float
        US dollars they took, as far as prices are known.
    unpriced : int
        Rows whose price is not known.
    uncounted : int
        Rows that were answered without a word on their tokens.
    is_free : bool
        True if no call costs anything, as the model runs in this process.
    vectors : Usage
        What calls for vectors of texts took, which the totals include.
    provider : str
        The model of the calls.
    on_pause : callable or None
        Called, from whatever thread, when the provider wants no further call for a while; see `pause_seconds`.

    References
    ----------
    .. [1] V. Jacobson, "Congestion avoidance and control", SIGCOMM 1988.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        provider: str = "",
        default_concurrency: int = DEFAULT_CONCURRENCY,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.limits = limits = limits or Limits()
        self.provider = provider
        self.concurrency = limits.concurrency or default_concurrency
        self.on_pause: Callable[[], None] | None = None
        self.allowed = float(self.concurrency)
        self.requests = self.successes = self.failures = 0
        self.rows = self.tokens = self.unpriced = self.uncounted = 0
        self._calls_of_rows = 0  # that are finished
        self.is_free = False
        self.cost = 0.0
        self.vectors = Usage()
        self._clock = clock
        self._sleep = sleep
        self._in_flight = 0
        self._epoch = 0  # how often `allowed` was cut
        self._not_before = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()
        now = clock()
        self.pace(lambda _, per_minute: Bucket(per_minute, now))

    def pace(self, open_bucket: Callable[[str, float], Pace]) -> None:
        """Replace the rate-limit buckets, for example with buckets that several processes share.

        Parameters
        ----------
        open_bucket : callable
            Returns the bucket for a rate's name, as in `Limits`, and its inflow per minute. Called for the rates that
            have a limit.
        """
        rates = {name: getattr(self.limits, name) for name in (_REQUESTS, _TOKENS)}
        self._buckets = {name: open_bucket(name, rate) for name, rate in rates.items() if rate is not None}

    async def enter(self) -> int:
        """Wait until a call may begin; return its ticket for `leave`."""
        while True:
            with self._lock:
                waiter = None
                delay = self._delay()
                if delay <= 0.0:
                    if self._has_room():
                        return self._begin()
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiter)
            if waiter is None:
                await interruptible_sleep(delay, sleep=self._sleep)
            else:
                await self._turn(waiter)

    def try_enter(self) -> int | None:
        """Begin a call and return its ticket for `leave`; None if the call would have to wait."""
        with self._lock:
            if self._waiting or not self._has_room() or self._delay() > 0.0:
                return None
            return self._begin()

    def _has_room(self) -> bool:
        return self._in_flight < max(1, int(self.allowed))

    def _begin(self) -> int:
        self._in_flight += 1
        self.requests += 1
        if _REQUESTS in self._buckets:
            self._buckets[_REQUESTS].take(1.0)
        return self._epoch

    async def _turn(self, waiter: asyncio.Future[None]) -> None:
        try:
            await waiter
        except asyncio.CancelledError:
            with self._lock:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                else:
                    self._wake()  # it was this one's turn: the next one's, then
            raise

    def _delay(self) -> float:
        if not self._buckets and self._not_before <= 0.0:
            return 0.0
        now = self._clock()
        if self._not_before <= now:
            self._not_before = 0.0
        return max([self._not_before - now, *(bucket.wait(now) for bucket in self._buckets.values())])

    def leave(self, epoch: int, error: BaseException | None = None, *, pause: float | None = None) -> None:
        """Record the end of a call, and adapt the number of calls allowed in flight.

        Parameters
        ----------
        epoch : int
            Number that `enter` returned.
        error : Exception, optional
            Error of a failed call.
        pause : float, optional
            Seconds for which the provider wants no further call.
        """
        with self._lock:
            self._in_flight -= 1
            self.successes += error is None
            self.failures += isinstance(error, ProviderError)
            if pause is not None:
                self._not_before = max(self._not_before, self._clock() + pause)
            if isinstance(error, ProviderError) and error.status in _OVERLOAD:
                if epoch == self._epoch:
                    self._epoch += 1
                    self.allowed = max(1.0, self.allowed / 2.0)
            elif error is None and self.allowed < self.concurrency:
                self.allowed = min(float(self.concurrency), self.allowed + 1.0 / self.allowed)
            if self._waiting:
                for _ in range(max(1, int(self.allowed)) - self._in_flight):
                    self._wake()
        if pause:
            self._report_pause()

    def _wake(self) -> None:
        """Wake the caller that has waited longest, if any."""
        while self._waiting:
            waiter = self._waiting.popleft()
            loop = waiter.get_loop()
            if waiter.done() or loop.is_closed():
                continue
            loop.call_soon_threadsafe(resolve_waiter, waiter)
            return

    def heard(self, state: RateState | None) -> None:
        """Record a response's rate limits; pause calls, at most a minute, until an exhausted one resets."""
        pause = None if state is None else state.spent_seconds
        if pause:
            with self._lock:
                self._not_before = max(self._not_before, self._clock() + min(pause, LONGEST_PAUSE))
            self._report_pause()

    def _report_pause(self) -> None:
        if self.on_pause is not None:
            self.on_pause()

    @property
    def pause_seconds(self) -> float:
        """Seconds until the provider accepts calls again; 0 if it named no time or it has passed."""
        if self._not_before > 0.0:
            return max(0.0, self._not_before - self._clock())
        return 0.0

    @property
    def hopeless(self) -> bool:
        """True if no call ever succeeded and at least three failed per call allowed in flight."""
        return not self.successes and self.failures >= _TRIES * self.concurrency

    def finish_row(self, prediction: Prediction) -> None:
        """Count a finished row, its calls, and their usage."""
        self.charge(prediction.usage, is_answered=prediction.is_answered)
        self.count_row(prediction)

    def count_row(self, prediction: Prediction) -> None:
        """Count a finished row and its calls, whose usage is charged already."""
        with self._lock:
            self.rows += 1
            self._calls_of_rows += prediction.attempts

    def charge(self, usage: Usage, *, is_answered: bool = False) -> None:
        """Add the usage of calls to the totals; an answer was paid for even where nothing is said of its tokens."""
        tokens = usage.prompt_tokens + usage.completion_tokens
        with self._lock:
            self.tokens += tokens
            self.cost += usage.cost or 0.0
            self.uncounted += is_answered and tokens == 0
            self.unpriced += usage.cost is None and (is_answered or tokens > 0) and not self.is_free
            if _TOKENS in self._buckets:
                self._buckets[_TOKENS].take(tokens)

    def charge_vectors(self, usage: Usage) -> None:
        """Add the usage of a call for vectors of texts to the totals."""
        self.charge(usage)
        with self._lock:
            self.vectors += usage

    @property
    def limits_vectors(self) -> bool:
        """True if tokens or cost are limited, which vectors of texts count towards."""
        return (self.limits.max_tokens, self.limits.max_cost) != (None, None)

    def vectors_ahead(self, most: int) -> int:
        """Return for how many rows vectors of texts are computed at once, `most` unless a budget limits them.

        A budget is passed by no more than an eighth then.
        """
        return min(most, max(1, self.rows // 8)) if self.limits_vectors else most

    @property
    def has_unpriced_vectors(self) -> bool:
        """True if vectors of texts were paid for, and their price is not known."""
        return self.vectors.prompt_tokens > 0 and self.vectors.cost is None

    def used_up(self, under_way: int, *, calls: bool = True) -> str:
        """Return a message if a budget is used up or cannot be checked; otherwise an empty text.

        Parameters
        ----------
        under_way : int
            Rows that will be paid for.
        calls : bool, default True
            False to leave out the budget of calls, which vectors of texts do not count towards.
        """
        if not self.limits.has_budget:
            return ""
        limits = self.limits
        share = 1.0 + under_way / max(1, self.rows)
        unknown = self._unknown_amount()
        if unknown:
            return unknown
        for name, budget, used, unit in (
            ("max_requests", limits.max_requests, max(self.requests, self._calls_of_rows * share), "call"),
            ("max_tokens", limits.max_tokens, self.tokens * share, "token"),
            ("max_cost", limits.max_cost, self.cost * share, "US dollar"),
        ):
            if budget is not None and used >= budget and (calls or name != "max_requests"):
                return f"The budget {name} of {counted(budget, unit)} is used up"
        return ""

    def _unknown_amount(self) -> str:
        """Return a message if a budget is of something that nobody counts; otherwise an empty text."""
        limits = self.limits
        if limits.max_cost is not None and self.has_unpriced_vectors:
            return (
                "No price is known for the embedding model, so max_cost cannot be kept: leave max_cost out, or learn "
                "the head without vectors of the texts (embeddings=False or --no-embeddings)"
            )
        if limits.max_tokens is not None and self.uncounted:
            return _UNCOUNTED.format(name="max_tokens")
        if limits.max_cost is None or not self.unpriced:
            return ""
        if self.uncounted:
            return _UNCOUNTED.format(name="max_cost")
        return (
            "No price is known for this model, so max_cost cannot be kept: set input_cost_per_token and "
            "output_cost_per_token among the model's options, or leave max_cost out"
        )


def resolve_waiter(waiter: asyncio.Future[None]) -> None:
    """Let the owner of a future go on, unless it has given up."""
    if not waiter.done():
        waiter.set_result(None)


def client_gate(client: Client, limits: Limits) -> Gate:
    """Return a gate of the calls to a client, with its own default concurrency."""
    traits = ClientTraits.of(client)
    concurrency = DEFAULT_CONCURRENCY
    if traits.in_process:
        concurrency = max(_IN_PROCESS_CONCURRENCY, traits.n_parallel or 1)
    gate = Gate(limits, provider=client.name, default_concurrency=concurrency)
    gate.is_free = traits.in_process
    return gate


def rate_limit_waits(gates: Iterable[CallMeter]) -> dict[str, float]:
    """Return the seconds to wait for each provider whose calls are paused, by name."""
    waits: dict[str, float] = {}
    for gate in gates:
        if gate.pause_seconds > 0.0:
            waits[gate.provider] = max(gate.pause_seconds, waits.get(gate.provider, 0.0))
    return waits
