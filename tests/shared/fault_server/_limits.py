"""Rate limits as OpenAI enforces and announces them."""

from __future__ import annotations

import math

from calibrant.core import ConfigurationError

__all__ = ["RateLimit", "spell_seconds"]


class RateLimit:
    """Rate limit of requests and tokens per second.

    Each holds at most one second's worth and starts full.

    Parameters
    ----------
    requests, tokens : float, optional
        Allowed per second, above 0; unlimited by default.
    """

    def __init__(self, *, requests: float | None, tokens: float | None) -> None:
        self._buckets = {
            name: _Bucket(f"{name}_per_second", rate)
            for name, rate in (("requests", requests), ("tokens", tokens))
            if rate is not None
        }

    def take(self, tokens: int, now: float) -> float:
        """Take a request of so many tokens; return 0, or the seconds to wait if there is too little left."""
        costs = {"requests": 1, "tokens": tokens}
        wait = max((self._buckets[name].wait(costs[name], now) for name in self._buckets), default=0.0)
        if wait <= 0:
            for name, bucket in self._buckets.items():
                bucket.level -= costs[name]
        return wait

    def headers(self, now: float) -> dict[str, str]:
        """Return the headers that announce the limits."""
        found = {}
        for name, bucket in self._buckets.items():
            bucket.refill(now)
            found[f"x-ratelimit-limit-{name}"] = str(math.floor(bucket.capacity))
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level)))
            found[f"x-ratelimit-reset-{name}"] = spell_seconds((bucket.capacity - bucket.level) / bucket.rate)
        return found


class _Bucket:
    def __init__(self, name: str, rate: float) -> None:
        if not 0 < rate < math.inf:
            msg = f"{name} must be above 0, got {rate}."
            raise ConfigurationError(msg)
        self.rate = rate
        self.capacity = max(1.0, rate)
        self.level = self.capacity
        self._filled: float | None = None

    def refill(self, now: float) -> None:
        if self._filled is not None:
            self.level = min(self.capacity, self.level + (now - self._filled) * self.rate)
        self._filled = now

    def wait(self, cost: float, now: float) -> float:
        self.refill(now)
        # A request above the capacity passes when the bucket is full, and leaves a debt.
        return (min(cost, self.capacity) - self.level) / self.rate


def spell_seconds(seconds: float) -> str:
    """Return a time as rate headers spell it: ``20ms``, ``1s``, ``1.5s``, ``6m0s``, ``1h0m0s``."""
    milliseconds = math.ceil(seconds * 1000 - 1e-6)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    whole, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(whole, 60)
    spelled = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{spelled}"
    return f"{minutes}m{spelled}" if minutes else spelled
