"""Budgets and rate limits that all workers of a run share."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, NamedTuple

from calibrant.core._predictor import Limits
from calibrant.inference._limits import Bucket, Gate

_MINUTE: Final = 60.0
_CHUNK_SECONDS: Final = 0.1  # of a rate limit: the most that all workers together hold unused
_SOON: Final = 0.005  # seconds between checks for the ledger's answer


class Spending(NamedTuple):
    """Rows, calls, tokens and cost spent so far.

    Attributes
    ----------
    rows, calls, tokens : int
        Rows paid for, calls made for them, and their tokens.
    cost : float
        US dollars, as far as prices are known.
    unpriced : int
        Rows of unknown price.
    uncounted : int
        Rows that were answered without a word on their tokens.
    """

    rows: int
    calls: int
    tokens: int
    cost: float
    unpriced: int
    uncounted: int = 0

    def since(self, then: Spending) -> Spending:
        """Return the amounts spent since the state `then`."""
        return Spending._make(now - before for now, before in zip(self, then, strict=True))


class Loan(NamedTuple):
    """Permission to begin a number of rows, or the reason for a refusal.

    Attributes
    ----------
    rows : int
        Rows that the worker may begin; 0 after a refusal.
    refused : str
        Reason for the refusal; empty otherwise.
    """

    rows: int
    refused: str = ""


class BudgetLedger:
    """Keeper of the budgets and rate limits of all workers; it counts crashes and ends the run.

    A worker borrows rows before it begins them; they count as paid at the mean price until they are settled.
    The rows of a worker that died are never settled and count for good, so budgets hold after crashes. At
    most half of the remaining budget is lent at a time, in ever smaller parts, so budgets are overrun by no more
    than on one machine: the excess of the last rows over the mean price.

    Parameters
    ----------
    limits : Limits
        Limits of all workers together.
    workers : int
        Their number.
    clock : function, default time.monotonic
        Returns seconds; tests replace it.
    """

    def __init__(self, limits: Limits, workers: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gate = Gate(limits)
        self._parts = 2 * workers
        self._clock = clock
        self._calls = 0
        self._lent = 0
        self._buckets: dict[str, Bucket] = {}
        self._begun: Counter[str] = Counter()
        self._closed = ""
        self._stopped = ""

    def lend(self, rows: int) -> Loan:
        """Permit a worker to begin one up to `rows` rows, or return the reason for a refusal."""
        if self._stopped:
            return Loan(0, self._stopped)
        refused = self._refusal_reason(self._lent)
        if refused:
            self._closed = self._closed or refused
            return Loan(0, refused)
        if (
            self._gate.limits.has_budget
        ):  # few settled rows tell little about the price of others, and none nothing
            rows = min(rows, max(1, self._gate.rows - self._lent))
        while rows > 1 and self._refusal_reason(self._lent + self._parts * rows):
            rows //= 2
        # Lent rows count as paid until settled: a crash can never overrun a budget.
        self._lent += rows
        return Loan(rows)

    def pay(self, rows: int, spent: Spending) -> None:
        """Record the spending of rows that were lent; cached rows and rows not begun cost nothing."""
        self._lent -= rows
        self._calls += spent.calls
        gate = self._gate
        gate.rows += spent.rows
        gate.tokens += spent.tokens
        gate.cost += spent.cost
        gate.unpriced += spent.unpriced
        gate.uncounted += spent.uncounted

    def _refusal_reason(self, under_way: int) -> str:
        """Return the budget that `under_way` more rows would exceed at the mean price, or an empty text."""
        gate = self._gate
        calls_per_row = max(1.0, self._calls / max(1, gate.rows))
        gate.requests = math.ceil(self._calls + under_way * calls_per_row)
        return gate.used_up(under_way)

    def take(self, name: str, per_minute: float, used: float, wanted: float) -> float:
        """Take tokens or calls from a rate limit.

        Parameters
        ----------
        name : str
            Name of the rate limit.
        per_minute : float
            Refill of the rate limit per minute.
        used : float
            Amount that was used already; it is always taken.
        wanted : float
            Further amount to take.

        Returns
        -------
        float
            0 if `wanted` was granted, else the seconds until a retry makes sense.
        """
        now = self._clock()
        bucket = self._buckets.setdefault(name, Bucket(per_minute, now))
        bucket.wait(now)  # refills the bucket up to now
        bucket.take(used)
        seconds = bucket.wait(now)
        if not seconds:
            bucket.take(wanted)
        return seconds

    def begin(self, what: str) -> int:
        """Count the start of a task; return the starts since it last ended, this one included.

        A worker that dies ends no task, so a high count names the task that kills workers.
        """
        self._begun[what] += 1
        return self._begun[what]

    def end(self, what: str) -> None:
        """Reset the count of a finished task: the next start counts as 1."""
        self._begun.pop(what, None)

    def close(self, reason: str, *, at_once: bool) -> None:
        """Stop reading blocks; with `at_once`, stop beginning rows, too."""
        self._closed = self._closed or reason
        if at_once:
            self._stopped = self._stopped or reason

    def closed(self) -> str:
        """Return the reason to read no further block (end of the run, or a spent budget), or an empty text."""
        return self._closed

    def stopped(self) -> str:
        """Return the reason to begin no further row, or an empty text."""
        return self._stopped


class Leased:
    """A worker's share of a rate limit, leased from the ledger for a tenth of a second at a time.

    An idle worker leases nothing, so a worker that waits or has died does not slow the others down.

    Parameters
    ----------
    ask : callable
        Called with the used and the wanted amount; returns the future of `BudgetLedger.take`.
    per_minute : float
        The rate of all workers together.
    workers : int
        Their number.
    """

    def __init__(
        self, ask: Callable[[float, float], Future[float]], *, per_minute: float, workers: int
    ) -> None:
        self._ask = ask
        self._chunk = max(1.0, per_minute / _MINUTE * _CHUNK_SECONDS / workers)
        self._level = 0.0
        self._pending_lease: Future[float] | None = None
        self._not_before = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until `take` may be called, or until the next check; 0 if ready."""
        if self._pending_lease is not None and self._pending_lease.done():
            seconds = self._pending_lease.result()
            self._pending_lease = None
            if seconds:
                self._not_before = now + seconds
            else:
                self._level += self._chunk
        if self._level > 0:
            return 0.0
        if self._pending_lease is None and now >= self._not_before:
            self._send()
        if self._pending_lease is not None:
            return _SOON
        return self._not_before - now

    def take(self, amount: float) -> None:
        """Take an amount; report a large overdraft to the ledger, so that other workers wait for it."""
        self._level -= amount
        if self._level <= -self._chunk and self._pending_lease is None:
            self._send()

    def _send(self) -> None:
        used = max(0.0, -self._level)
        self._level = max(0.0, self._level)
        self._pending_lease = self._ask(used, self._chunk)
