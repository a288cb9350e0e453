"""Tests of the ledger: budgets and rates of all workers, also when workers die or wait."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import Limits
from calibrant.distributed._ledger import BudgetLedger, Leased, Loan, Spending


def spent(
    rows: int, *, calls: int | None = None, tokens: int = 0, cost: float = 0.0, unpriced: int = 0
) -> Spending:
    """Return the spending of rows: one call each, unless `calls` is given."""
    return Spending(
        rows=rows, calls=rows if calls is None else calls, tokens=tokens, cost=cost, unpriced=unpriced
    )


def test_without_a_budget_a_block_is_lent_whole() -> None:
    """Without a budget a whole block is lent at once; a rate limit is no budget."""
    assert BudgetLedger(Limits(requests_per_minute=1), 2).lend(1024) == Loan(1024)


@pytest.mark.parametrize("budget", ["max_requests", "max_tokens", "max_cost"])
def test_no_more_rows_are_lent_than_were_settled(budget: str) -> None:
    """Only one row is lent before its price is known, then as many as told what others may cost."""
    ledger = BudgetLedger(Limits(**{budget: 10_000}), 2)
    for rows in (1, 1, 2, 4, 8, 16):
        assert ledger.lend(1024) == Loan(rows)
        assert ledger.lend(1024) == Loan(1), "another worker is not kept waiting"
        ledger.pay(1, spent(0))
        ledger.pay(rows, spent(rows, tokens=rows, cost=float(rows)))
    assert ledger.lend(10) == Loan(10)


@pytest.mark.parametrize(
    ("limits", "unit"),
    [
        (Limits(max_requests=100), "calls"),
        (Limits(max_tokens=1000), "tokens"),
        (Limits(max_cost=50), "US dollars"),
    ],
)
@given(seed=st.integers(0, 2**32), workers=st.integers(1, 8), deaths=st.floats(0, 0.3))
def test_crashes_keep_budgets(limits: Limits, unit: str, seed: int, workers: int, deaths: float) -> None:
    """Workers that die do not let a run exceed its budget by more than one row.

    A row takes 1 call, 10 tokens and half a dollar; workers take turns at random.
    """
    rng = np.random.default_rng(seed)
    ledger = BudgetLedger(limits, workers)
    borrowed = [0] * workers
    paid = lost = 0
    refused = ""
    while not refused:
        worker = int(rng.integers(workers))
        if borrowed[worker]:
            rows, borrowed[worker] = borrowed[worker], 0
            if rng.random() < deaths:
                paid += (done := int(rng.integers(0, rows + 1)))
                lost += rows - done
            else:
                paid += rows
                ledger.pay(rows, spent(rows, tokens=10 * rows, cost=0.5 * rows))
        else:
            borrowed[worker], refused = ledger.lend(64)
    assert refused.startswith("The budget max_")
    assert refused.endswith(f"{unit} is used up")
    assert 100 <= paid + lost + sum(borrowed) <= 101  # 69 * (1 + 31 / 69) is less than 100 to a computer


def test_dearer_rows_than_before_overrun_a_budget_by_little() -> None:
    """At most half of the budget left is lent, so a doubled price exceeds it by little."""
    ledger = BudgetLedger(Limits(max_cost=100), 2)
    paid, price = 0.0, 1.0
    while (loan := ledger.lend(1024)).rows:
        assert loan.rows * price <= max(price, 100 - paid)
        paid += loan.rows * price
        ledger.pay(loan.rows, spent(loan.rows, cost=loan.rows * price))
        price = 2.0
    assert 100 <= paid <= 102


def test_calls_a_row_are_counted_as_they_come() -> None:
    """Rows that take five calls each use five calls of the budget."""
    ledger = BudgetLedger(Limits(max_requests=100), 1)
    rows = 0
    while (loan := ledger.lend(1024)).rows:
        rows += loan.rows
        ledger.pay(loan.rows, spent(loan.rows, calls=5 * loan.rows))
    assert rows == 20


def test_rows_that_were_known_already_cost_nothing() -> None:
    """Rows that need no call give their share of the budget back."""
    ledger = BudgetLedger(Limits(max_requests=2), 1)
    for _ in range(10):
        assert ledger.lend(8) == Loan(1)
        ledger.pay(1, spent(0))


def test_dollars_cannot_be_kept_without_prices() -> None:
    """A budget in dollars is refused if a row has no price, and the reason says so."""
    ledger = BudgetLedger(Limits(max_cost=1), 2)
    ledger.lend(8)
    ledger.pay(1, spent(1, tokens=5, unpriced=1))
    assert "No price is known" in ledger.lend(8).refused


def test_returned_rows_are_lent_after_a_refusal() -> None:
    """A row that is returned unused is lent again, although a refusal came before."""
    ledger = BudgetLedger(Limits(max_requests=2), 2)
    assert (ledger.lend(8).rows, ledger.lend(8).rows, ledger.closed()) == (1, 1, "")
    refused = ledger.lend(8).refused
    assert "max_requests" in refused
    assert (ledger.closed(), ledger.stopped()) == (refused, "")
    ledger.pay(1, spent(0))  # it was known already
    assert ledger.lend(8) == Loan(1)
    ledger.close("another reason", at_once=False)
    assert (ledger.closed(), ledger.stopped()) == (refused, "")


def test_what_was_begun_and_never_ended_is_counted() -> None:
    """Each task's starts are counted, and an end resets its count."""
    ledger = BudgetLedger(Limits(), 2)
    assert [ledger.begin("block 1"), ledger.begin("block 1"), ledger.begin("block 2")] == [1, 2, 1]
    ledger.end("block 1")
    ledger.end("block 1")
    assert [ledger.begin("block 1"), ledger.begin("block 2")] == [1, 2]


def test_a_stopped_run_begins_no_row() -> None:
    """A closed ledger lends no row, and keeps the first reason."""
    ledger = BudgetLedger(Limits(), 2)
    assert ledger.lend(8) == Loan(8)
    ledger.close("enough", at_once=True)
    ledger.close("later", at_once=True)
    assert ledger.stopped() == ledger.closed() == "enough"
    assert ledger.lend(8) == Loan(0, "enough")


class World:
    """A clock, a ledger on this clock, and workers that ask for their share of the rate."""

    def __init__(self, per_minute: float, workers: int, *, delay: int = 1) -> None:
        self.now = 0.0
        self.ledger = BudgetLedger(Limits(), workers, clock=lambda: self.now)
        self._delay = delay
        self._answers: list[tuple[int, Future[float], tuple[float, float]]] = []
        self._rate = per_minute
        self.leased = [Leased(self._ask, per_minute=per_minute, workers=workers) for _ in range(workers)]

    def _ask(self, used: float, wanted: float) -> Future[float]:
        answer: Future[float] = Future()
        self._answers.append((self._delay, answer, (used, wanted)))
        return answer

    def tick(self, seconds: float) -> None:
        """Let time pass; answers come `delay` ticks after their requests."""
        self.now += seconds
        left = []
        for ticks, answer, amounts in self._answers:
            if ticks > 1:
                left.append((ticks - 1, answer, amounts))
            else:
                answer.set_result(self.ledger.take("rate", self._rate, *amounts))
        self._answers = left


@given(
    rate=st.floats(1, 500),
    workers=st.integers(1, 5),
    busy=st.integers(1, 5),
    amount=st.floats(0.5, 20),
    delay=st.integers(1, 3),
)
def test_workers_share_a_rate(rate: float, workers: int, busy: int, amount: float, delay: int) -> None:
    """Workers exceed the rate by no more than its first second and the calls in flight.

    Some workers alone use nearly the whole rate: an idle worker delays no other.
    """
    world = World(60 * rate, workers, delay=delay)
    asking = world.leased[: min(busy, workers)]
    taken = 0.0
    for _ in range(1000):
        world.tick(0.01)
        for leased in asking:
            while leased.wait(world.now) == 0.0:
                leased.take(amount)
                taken += amount
        most = max(1.0, rate) + rate * world.now
        assert taken <= most + workers * (amount + max(1.0, rate / 10 / workers))
    least = rate * (world.now - 0.1 * delay - 0.1) - workers * (amount + max(1.0, rate / 10 / workers))
    # A worker asks once per round trip, which bounds what one can get of a high rate.
    trips = len(asking) * world.now / (0.01 * (delay + 1)) * max(1.0, rate / 10 / workers)
    assert taken >= min(least, 0.8 * trips)


def test_an_overdraft_is_reported() -> None:
    """An overdraft of one worker makes another worker wait."""
    world = World(600, 2)
    first, second = world.leased
    assert first.wait(0.0) > 0
    world.tick(0.01)
    assert first.wait(world.now) == 0.0
    first.take(50)
    for _ in range(100):
        world.tick(0.01)
        assert second.wait(world.now) > 0  # 50 of 10 a second are gone


def test_rates_of_several_models_are_apart() -> None:
    """Rates under different names do not share their allowance."""
    ledger = BudgetLedger(Limits(), 1, clock=lambda: 0.0)
    assert ledger.take("0 requests_per_minute", 60, 0, 1) == 0
    assert ledger.take("0 requests_per_minute", 60, 0, 1) > 0
    assert ledger.take("1 requests_per_minute", 60, 0, 1) == 0
