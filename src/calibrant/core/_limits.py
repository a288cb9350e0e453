"""Limits on calls, and the protocol of the counter that enforces them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

from calibrant.core._errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the calls of one predictor.

    Budgets count what it has paid since it was made, journals and merged calls aside. They are looked at before a row
    is begun, with the expected cost of the rows under way counted in.

    Attributes
    ----------
    concurrency : int, optional
        Calls in flight at most, at least 1. Fewer while the provider says that it is overloaded. By default 10, and 4
        for an engine in this process (one for each of its slots, where it has more).
    requests_per_minute, tokens_per_minute : float, optional
        Rates that are kept without waiting for the provider to complain. Tokens are those of prompts
        and answers, charged when a row is answered.
    max_requests, max_tokens : int, optional
        Budgets of calls and of tokens.
    max_cost : float, optional
        Budget in US dollars.
    call_seconds : float, optional
        Deadline of one call; one that misses it has failed and may be tried again.
    run_seconds : float, optional
        Deadline of one run; rows under way are given up when it passes.

    Raises
    ------
    ConfigurationError
        A limit is not above 0.

    Examples
    --------
    >>> Limits(concurrency=8, max_cost=0.5).max_cost
    0.5
    """

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    call_seconds: float | None = None
    run_seconds: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if field.name == "concurrency" and not (number and value >= 1 and value == int(value)):
                raise ConfigurationError(f"Expected concurrency of at least 1, got {value!r}.")
            if not number or not 0 < value < math.inf:
                raise ConfigurationError(f"Expected {field.name} to be a number above 0, got {value!r}.")


class Pace(Protocol):
    """Token bucket of a rate limit, or the share of one process in it."""

    def wait(self, now: float) -> float:
        """Return the seconds from `now` until the bucket has tokens."""

    def take(self, amount: float) -> None:
        """Take `amount` tokens, even if that overdraws the bucket."""


class CallMeter(Protocol):
    """Counter of calls, tokens and cost that enforces the limits.

    Attributes
    ----------
    provider : str
        The model that the calls go to.
    limits : Limits
        Limits of the calls.
    concurrency : int
        Calls in flight at most.
    requests, successes, failures : int
        Calls begun, answered, and failed for the provider's reasons.
    rows, tokens : int
        Rows charged, and the tokens they took.
    cost : float
        US dollars they took, as far as prices are known.
    unpriced : int
        Rows whose price is not known.
    on_pause : callable or None
        Called, from whatever thread, when the provider wants no further call for a while.
    """

    provider: str
    limits: Limits
    concurrency: int
    requests: int
    successes: int
    failures: int
    rows: int
    tokens: int
    cost: float
    unpriced: int
    on_pause: Callable[[], None] | None

    @property
    def pause_seconds(self) -> float:
        """Seconds left of the pause that the provider asked for; 0 if it asked for none."""

    def pace(self, open_bucket: Callable[[str, float], Pace]) -> None:
        """Replace the token buckets of the rate limits, for example by ones that processes share.

        Parameters
        ----------
        open_bucket : callable
            Returns the bucket for a rate's name, as in `Limits`, and what flows in, per minute. It is
            asked for the rates that have a limit.
        """
