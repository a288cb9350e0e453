"""Circuit breaker of a provider: open for a cooldown after failures, then one probe call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from calibrant.core._errors import ProviderError, RateLimitError
from calibrant.inference._limits import LONGEST_PAUSE
from calibrant.metrics._validation import check_count, check_number

COOLDOWN_SECONDS: Final = 5.0
_LONGEST_COOLDOWN: Final = 300.0
# A server's own Retry-After counts in full, but for nonsense.
_LONGEST_RETRY_AFTER: Final = 3600.0
_MOST_DOUBLINGS: Final = 30  # beyond every longest cooldown, and no overflow


class Turn(NamedTuple):
    """Permission of a circuit breaker for one call.

    Attributes
    ----------
    epoch : int
        Number of cooldowns before the call began.
    probe : bool
        True for the probe call after a cooldown.
    """

    epoch: int
    probe: bool


class Breaker:
    """Circuit breaker of one provider.

    It is left out after `allowed_failures` failures in a row, after a rate limit, or after a fault that
    every call would meet (a wrong key, an unknown model, no credit). The cooldown is the time a rate limit names,
    at most an hour; 5 minutes for a fault that every call would meet; else `cooldown_seconds`, doubled every
    time in a row, up to 5 minutes (or `cooldown_seconds`, if that is longer). Then a single call is let through.
    If it succeeds the provider is back, if it fails it is left out again.

    Calls that were under way when the provider was left out neither bring it back nor prolong the time,
    unless the server names a longer one; nor do calls that were forced meanwhile prolong it, though their answers
    bring it back. Thread-safe.

    Parameters
    ----------
    allowed_failures : int, default 3
        Consecutive failures that open the breaker, at least 1.
    cooldown_seconds : float, default 5
        First cooldown in seconds, above 0.
    clock : function, default time.monotonic
        Returns seconds; tests replace it.

    Raises
    ------
    ConfigurationError
        A number is out of its range.
    """

    def __init__(
        self,
        *,
        allowed_failures: int = 3,
        cooldown_seconds: float = COOLDOWN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = check_count("allowed_failures", allowed_failures, low=1)
        self._seconds = check_number("cooldown_seconds", cooldown_seconds, "(0, inf)")
        self._longest = max(cooldown_seconds, _LONGEST_COOLDOWN)
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._doublings = 0
        self._epoch = 0
        self._open = False  # left out
        self._until = 0.0
        self._named = False  # whether the provider itself named that time
        self._probing = False
        self._paused_until = 0.0
        self._last: ProviderError | None = None

    @property
    def remaining(self) -> float:
        """Remaining cooldown or pause in seconds; 0 if it is over."""
        with self._lock:
            return self._remaining()

    @property
    def named_seconds(self) -> float | None:
        """Remaining wait in seconds that the provider named; None if it named none, or if it is over."""
        with self._lock:
            now = self._clock()
            if now < self._until and self._open and not self._named:
                return None
            return self._remaining() or None

    @property
    def admits(self) -> bool:
        """True if a call may begin."""
        with self._lock:
            return self._admits()

    @property
    def due(self) -> bool:
        """True if the breaker is open, its cooldown is over and no probe call is in flight."""
        with self._lock:
            return self._open and self._admits()

    @property
    def last_failure(self) -> ProviderError | None:
        """Latest failure since the last success; None without one."""
        with self._lock:
            return self._last

    def begin(self, *, forced: bool = False) -> Turn | None:
        """Return permission for a call; None if the breaker refuses and the call is not `forced`.

        The caller ends the call with `succeeded`, `failed` or `released`.
        """
        with self._lock:
            if not (forced or self._admits()):
                return None
            probe = self._open and not self._probing
            self._probing = self._probing or probe
            return Turn(self._epoch, probe)

    def succeeded(self, turn: Turn) -> bool:
        """Record a success; return True if it closes the breaker."""
        with self._lock:
            if turn.epoch != self._epoch:
                return False
            recovered = self._open
            self._open = self._probing = False
            self._failures = self._doublings = 0
            self._last = None
            return recovered

    def failed(self, turn: Turn, error: ProviderError) -> None:
        """Record a failure of the provider."""
        with self._lock:
            self._last = error
            current = turn.epoch == self._epoch
            if not current or (self._open and self._clock() < self._until):
                # Begun before the provider was left out, or forced since: it says no more than what led to that.
                self._probing = self._probing and not (current and turn.probe)
                if self._open and is_rate_limit(error) and error.retry_after is not None:
                    named = self._clock() + min(error.retry_after, _LONGEST_RETRY_AFTER)
                    if named > self._until:
                        self._until, self._named = named, True
                return
            self._failures += 1
            if self._open or is_rate_limit(error) or _is_lasting(error) or self._failures >= self._allowed:
                self._leave_out(error)

    def released(self, turn: Turn) -> None:
        """Release a call without evidence about the provider, such as a cancelled one."""
        with self._lock:
            if turn.probe and turn.epoch == self._epoch:
                self._probing = False

    def pause(self, seconds: float) -> None:
        """Pause calls for `seconds`, at most a minute, because a rate-limit allowance is exhausted."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + min(seconds, LONGEST_PAUSE))

    def _remaining(self) -> float:
        until = max(self._paused_until, self._until if self._open else 0.0)
        return max(0.0, until - self._clock())

    def _admits(self) -> bool:
        if not self._open and not self._paused_until:
            return True  # nearly always
        return self._remaining() <= 0.0 and not (self._open and self._probing)

    def _leave_out(self, error: ProviderError) -> None:
        own = min(self._longest, self._seconds * 2.0**self._doublings)
        self._doublings = min(self._doublings + 1, _MOST_DOUBLINGS)
        self._named = is_rate_limit(error) and error.retry_after is not None
        if _is_lasting(error):
            own = self._longest
        elif self._named and error.retry_after is not None:
            own = min(error.retry_after, _LONGEST_RETRY_AFTER)
        self._until = self._clock() + own
        self._open = True
        self._probing = False
        self._epoch += 1


def is_rate_limit(error: ProviderError) -> bool:
    """Return True for a temporary rate limit; False for an account without credit."""
    return isinstance(error, RateLimitError) and error.retryable


def _is_lasting(error: ProviderError) -> bool:
    return error.systemic or (isinstance(error, RateLimitError) and not error.retryable)
