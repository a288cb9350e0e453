"""Tests of limits of one row of a cascade, and of a whole run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import Cascade, CascadeModel
from calibrant.core import (
    ConfigurationError,
    Example,
    LimitReachedError,
    Limits,
    Outcome,
    Prediction,
    ProviderError,
    Usage,
    Verdict,
)
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.testing import FakeClient, MemoryJournal

Build = Callable[..., Any]

DOWN = ProviderError("is down.", provider="x", retryable=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the times that the clock of rows shows; the last one stays."""

    def show(*seconds: float) -> None:
        times: Iterator[int] = count()
        monkeypatch.setattr(
            "calibrant.cascade._walk.perf_counter", lambda: seconds[min(next(times), len(seconds) - 1)]
        )

    return show


def stopped(prediction: Prediction) -> str:
    """Return the reason why no further model was asked."""
    *_, last = prediction.steps
    before, _, reason = last.reason.partition("the next model was not asked: ")
    assert reason, before
    return reason


@pytest.mark.parametrize(("most", "asked"), [(0, 1), (1, 2), (2, 3), (5, 3), (None, 3)])
def test_escalations_are_counted(build: Build, most: int | None, asked: int) -> None:
    """A row calls at most one model more than ``max_escalations``, and returns the best answer so far."""
    answers = [("cat", 0.55), ("dog", 0.65), ("cat", 0.6)]
    built = build(*answers, max_escalations=most)
    found = built.cascade.classify("t")
    assert built.calls == [1] * asked + [0] * (3 - asked)
    label, confidence = max(answers[:asked], key=lambda one: one[1])
    assert (found.label, found.confidence, found.accepted) == (label, confidence, False)
    if asked < 3:
        assert stopped(found) == f"max_escalations of {most} is reached"
    else:
        assert found.steps[-1].reason == ""


def test_models_that_fail_are_no_escalation(build: Build, refusal: Any) -> None:
    """A model that fails does not count as an escalation."""
    found = build(DOWN, refusal, ("cat", 0.9), max_escalations=0).cascade.classify("t")
    assert (found.label, found.accepted) == ("cat", True)


def test_missing_evidence_counts_as_escalation(build: Build, told: Any) -> None:
    """An answer without evidence counts as an escalation, and its reason is kept."""
    found = build("cat", "dog", max_escalations=0, method=told(lambda _: None)).cascade.classify("t")
    assert (found.label, found.confidence, found.accepted) == ("cat", None, False)
    assert found.steps[0].reason.startswith("nothing was told; the next model was not asked")


@pytest.mark.parametrize(("most", "asked"), [(0, 1), (309, 1), (310, 1), (311, 2)])
def test_tokens_of_verifiers_are_counted(build: Build, told: Any, say: Any, most: int, asked: int) -> None:
    """The limit on tokens counts the answer and its verification."""
    built = build(say("cat", 0.6, tokens=10), ("dog", 0.9), max_tokens=most, method=told(calls=3))
    found = built.cascade.classify("t")
    assert len(found.steps) == asked
    if asked == 1:
        assert stopped(found) == f"max_tokens of {most} is reached (310 tokens)"


@pytest.mark.parametrize(("most", "asked"), [(0.0, 1), (0.5, 1), (0.51, 2)])
def test_money_is_counted(build: Build, say: Any, most: float, asked: int) -> None:
    """The limit on cost counts US dollars that the provider reports."""
    built = build(say("cat", 0.6, cost=0.5), ("dog", 0.9), max_cost=most)
    found = built.cascade.classify("t")
    assert len(found.steps) == asked
    if asked == 1:
        assert stopped(found).startswith(f"max_cost of {most:g} US dollars is reached (0.5")


def test_unknown_prices_stop_a_row(build: Build, say: Any) -> None:
    """Without a known price no further model is called under a limit on cost."""
    answers = say("cat", 0.6, tokens=5), say("dog", 0.9, cost=1.0)
    found = build(*answers, max_cost=3.0).cascade.classify("t")
    assert stopped(found).startswith("no price is known for a, so max_cost cannot be kept")
    assert build(*answers, max_cost=3.0, models=[{"cost": 0}, {"cost": 1}]).cascade.classify("t").accepted


def test_no_model_is_asked_after_the_deadline(build: Build, clock: Callable[..., None]) -> None:
    """No further model is called after the deadline."""
    clock(100.0, 100.0, 105.0)
    found = build(("cat", 0.6), "dog", deadline_seconds=5.0).cascade.classify("t")
    assert (found.label, found.accepted) == ("cat", False)
    assert stopped(found) == "deadline_seconds of 5 has passed"


def test_a_deadline_of_zero_calls_one_model(build: Build) -> None:
    """Under a deadline of 0 the first model alone answers."""
    built = build(("cat", 0.6), "dog", deadline_seconds=0, client={"latency": 0.001})
    assert built.cascade.classify("t").label == "cat"
    assert built.calls == [1, 0]


def test_late_models_are_given_up(build: Build, clock: Callable[..., None]) -> None:
    """A call under way is given up at the deadline, and its step says so."""
    clock(0.0, 0.0, 0.0, 4.999, 5.0)
    built = build(("cat", 0.6), "dog", ("dog", 0.9), deadline_seconds=5.0)
    forever(built.clients[1])
    found = built.cascade.classify("t")
    assert (found.label, found.accepted) == ("cat", False)
    failed = found.steps[1]
    assert (failed.verdict, failed.outcome) == (Verdict.FAILED, Outcome.ERROR)
    assert "deadline_seconds of 5 has passed" in failed.reason


def test_timeouts_do_not_end_a_run(build: Build, clock: Callable[..., None]) -> None:
    """A systemic fault beside a timeout is an error of the row."""
    clock(0.0, 0.0, 4.999, 5.0)
    built = build(ProviderError("no such key.", provider="x", status=401), "dog", deadline_seconds=5.0)
    forever(built.clients[1])
    found = built.cascade.classify("t")
    assert (found.outcome, len(found.steps)) == (Outcome.ERROR, 2)


def test_late_verifiers_give_no_evidence(build: Build, told: Any, clock: Callable[..., None]) -> None:
    """An answer whose verifier is too late has no evidence."""

    class Slow(told):  # type: ignore[misc]
        async def assess(self, _answered: Any) -> Any:
            await asyncio.Event().wait()

    clock(0.0, 4.999)
    found = build("cat", deadline_seconds=5.0, method=Slow()).cascade.classify("t")
    assert (found.label, found.confidence, found.accepted) == ("cat", None, False)
    assert found.steps[0].verdict is Verdict.NO_EVIDENCE
    assert "deadline_seconds" in found.steps[0].reason


def test_model_timeouts_are_not_the_deadline(build: Build, told: Any) -> None:
    """A TimeoutError of a method is its own fault and not the deadline's."""

    def broken(_: Any) -> Any:
        raise TimeoutError("mine")

    found = build("cat", deadline_seconds=60.0, method=told(broken)).cascade.classify("t")
    assert found.steps[0].reason == "told failed: TimeoutError: mine"


def forever(client: Any) -> None:
    """Make every call of the client wait forever."""

    async def complete(_request: Any) -> object:
        return await asyncio.Event().wait()

    client.complete = complete


@pytest.mark.parametrize(
    ("name", "limit"),
    [("max_escalations", -1), ("max_tokens", 1.5), ("max_cost", -1), ("deadline_seconds", -1)],
)
def test_wrong_row_limits_are_refused(build: Build, name: str, limit: Any) -> None:
    """A limit below zero, or half a token, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=f"Expected {name} .*got {limit}"):
        build("cat", **{name: limit})


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"max_requests": 25}, "max_requests of 25 calls"),
        ({"max_tokens": 2_500}, "max_tokens of 2,500 tokens"),
        ({"max_cost": 2.5}, "max_cost of 2.5 US dollars"),
    ],
)
def test_budgets_count_calls_of_all_models(
    build: Build, say: Any, budget: dict[str, Any], message: str
) -> None:
    """A budget of 25 calls ends a run of two calls a row after a dozen rows."""
    answers = say("cat", 0.6, tokens=100, cost=0.1), say("dog", 0.9, tokens=100, cost=0.1)
    built = build(*answers, limits=Limits(concurrency=1, **budget))
    with pytest.raises(LimitReachedError, match=message):
        built.cascade.classify_many([str(number) for number in range(100)])
    assert 20 <= sum(built.calls) <= 26


def test_totals_leave_out_what_a_journal_held_of_a_row(build: Build, say: Any) -> None:
    """Where the first model's answer was there already, calls, tokens and cost are those of the second."""
    journal = MemoryJournal()
    answers = say("cat", 0.6, tokens=70, cost=1.0), say("dog", 0.9, tokens=100, cost=5.0)
    rows = [Example(input=str(number), answer="dog") for number in range(5)]
    first = build(*answers, threshold=0.5)
    BatchEvaluator(first.cascade, cache=journal).evaluate(rows)
    again = build(*answers, threshold=0.8)
    found = BatchEvaluator(again.cascade, cache=journal).evaluate(rows).metrics
    assert (first.calls, again.calls) == ([5, 0], [0, 5])
    assert (found.calls, found.prompt_tokens, found.cost) == (5, 500, 25.0)
    assert found.cascade is not None
    assert found.cascade.cost == 25.0


@pytest.mark.parametrize("first_row", ["sure", "unsure"])
def test_a_budget_is_kept_whatever_the_first_row_took(build: Build, say: Any, first_row: str) -> None:
    """Rows are begun as fast as others were finished, so that a cheap first row does not begin them all."""

    def small(text: str) -> Any:
        return say("cat", 0.95 if text == first_row or text.startswith("easy") else 0.6, cost=0.002)

    answers = small, say("dog", 0.95, cost=0.02)
    names = ["easy" if row % 3 == 0 else "hard" for row in range(200)]
    texts = ["sure" if first_row == "sure" else "hard", *(f"{name} {row}" for row, name in enumerate(names))]
    wide = [{"limits": Limits(concurrency=64)}] * 2
    for budget in (0.1, 1.0):
        limits = Limits(concurrency=64, max_cost=budget)
        built = build(*answers, classifiers=wide, limits=limits, client={"latency": 0.002})
        with pytest.raises(LimitReachedError, match="max_cost of"):
            built.cascade.classify_many(texts)
        paid = 0.002 * built.calls[0] + 0.02 * built.calls[1]
        assert 0.5 * budget <= paid <= 1.3 * budget + 2 * 0.022


def test_a_dear_model_is_asked_no_more_than_a_budget_can_pay(build: Build, say: Any, tmp_path: Path) -> None:
    """Rows under way that come to it at once do not pass the budget; what was answered is not asked again."""

    def small(text: str) -> Any:
        return say("cat", 0.95 if text.startswith("sure") else 0.6, cost=0.001)

    rows = [Example(input=f"{'sure' if row < 150 else 'open'} {row}", answer="cat") for row in range(300)]
    answers = small, say("cat", 0.95, cost=0.25)
    wide = [{"limits": Limits(concurrency=64)}] * 2
    built = build(*answers, classifiers=wide, limits=Limits(max_cost=2.0), client={"latency": 0.002})
    first = BatchEvaluator(built.cascade, cache=tmp_path / "cache").evaluate(rows, out=tmp_path / "run")
    assert 1.2 <= 0.001 * built.calls[0] + 0.25 * built.calls[1] <= 2.0
    assert not first.metrics.complete
    again = build(*answers, classifiers=wide, client={"latency": 0.002})
    whole = (
        BatchEvaluator(again.cascade, cache=tmp_path / "cache").evaluate(rows, out=tmp_path / "run").metrics
    )
    assert whole.complete
    assert (whole.outcomes[Outcome.OK.value], built.calls[1] + again.calls[1]) == (300, 150)
    assert built.calls[0] + again.calls[0] == 300


def test_a_step_that_waited_in_an_interrupted_run_stops_no_later_one(build: Build) -> None:
    """A budget outlives the event loop of a run: who waited there is gone."""
    budget = build("cat", "dog", limits=Limits(max_cost=1.0)).cascade.meter

    async def interrupted() -> None:
        await budget.begin_step(1)
        waiting = asyncio.ensure_future(budget.begin_step(1))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(interrupted())
    budget.end_step(1, cost=0.25)
    assert asyncio.run(budget.begin_step(1)) == ""


def test_a_budget_of_one_model_ends_the_run(build: Build, say: Any) -> None:
    """The budget of one member raises LimitReachedError for the run."""
    built = build(
        say("cat", 0.6, cost=0.0),
        say("dog", 0.9, cost=1.0),
        classifiers=[{"concurrency": 1}, {"limits": Limits(concurrency=1, max_cost=3.0)}],
    )
    with pytest.raises(LimitReachedError, match="max_cost of 3"):
        built.cascade.classify_many([str(number) for number in range(50)])
    assert 2 <= built.calls[1] <= 3


def test_unknown_prices_end_runs_with_budgets(build: Build, say: Any) -> None:
    """Under a budget a model without a price raises LimitReachedError with advice."""
    answers = say("cat", 0.6, tokens=5), say("dog", 0.9, tokens=5, cost=1.0)
    built = build(*answers, limits=Limits(concurrency=1, max_cost=100.0))
    with pytest.raises(LimitReachedError, match="give cost=0 where it is free"):
        built.cascade.classify_many(["a", "b", "c"])
    free = build(*answers, limits=Limits(concurrency=1, max_cost=100.0), models=[{"cost": 0}, {"cost": 1}])
    assert len(free.cascade.classify_many(["a", "b", "c"])) == 3


def test_journal_answers_are_not_paid_again(build: Build, say: Any) -> None:
    """Answers from a journal count in usage, and not in the budgets."""
    journal = MemoryJournal()
    answers = say("cat", 0.6, tokens=100, cost=1.0), say("dog", 0.9, tokens=100, cost=1.0)
    texts = [str(number) for number in range(5)]
    build(*answers, journal=journal).cascade.classify_many(texts)
    again = build(*answers, journal=journal, threshold=0.8, limits=Limits(max_cost=0.5, max_requests=1))
    found = again.cascade.classify_many(texts)
    assert again.calls == [0, 0]
    assert [row.usage.cost for row in found] == [2.0] * 5
    assert {row.attempts for row in found} == {0}
    gate = again.cascade.meter
    assert (gate.requests, gate.tokens, gate.cost, gate.rows) == (0, 0, 0.0, 5)


def test_the_deadline_of_a_run_is_kept(build: Build) -> None:
    """The deadline of a run raises LimitReachedError."""
    built = build("cat", limits=Limits(run_seconds=0.01))
    forever(built.clients[0])
    with pytest.raises(LimitReachedError, match=r"deadline of 0\.01 seconds"):
        built.cascade.classify("t")


def test_limits_default_to_the_models(build: Build) -> None:
    """By default a cascade has its models' greatest concurrency and least deadline."""
    own = [
        {"limits": Limits(concurrency=3, run_seconds=20.0, call_seconds=2.0)},
        {"limits": Limits(concurrency=8, run_seconds=30.0, requests_per_minute=1000.0)},
    ]
    cascade = build("cat", "dog", classifiers=own).cascade
    assert cascade.limits == Limits(concurrency=8, run_seconds=20.0)
    held = [member.classifier.limits for member in cascade._walk.members]
    assert held == [one["limits"] for one in own]
    assert [gate.limits for gate in cascade.gates] == held
    assert cascade.meter not in cascade.gates


RATES = {"requests_per_minute": 50.0, "tokens_per_minute": 60.0, "call_seconds": 9.0}


@pytest.mark.parametrize("given", [{}, *({name: 7.0} for name in RATES)])
def test_limits_reach_every_model(build: Build, given: dict[str, float]) -> None:
    """Concurrency, rates and call deadlines of a cascade replace those of its models."""
    own = [{"limits": Limits(concurrency=1, max_requests=7, **RATES)}, {}]  # type: ignore[arg-type]
    built = build("cat", "dog", classifiers=own)
    limits = Limits(concurrency=5, max_tokens=1000, **given)  # type: ignore[arg-type]
    for cascade in (
        built.cascade.with_limits(limits),
        build("cat", "dog", classifiers=own, limits=limits).cascade,
    ):
        assert cascade.limits == limits
        first, second = (member.classifier.limits for member in cascade._walk.members)
        assert first == Limits(concurrency=5, max_requests=7, **{**RATES, **given})  # type: ignore[arg-type]
        assert second == Limits(concurrency=5, **given)  # type: ignore[arg-type]
    assert built.classifiers[0].limits == own[0]["limits"]


def test_member_budgets_count_rows_under_way(build: Build) -> None:
    """The budget of a member counts the expected cost of the rows that will reach it."""
    cascade = build("cat", classifiers=[{"limits": Limits(max_cost=3.0)}]).cascade
    (gate,) = cascade.gates
    gate.finish_row(Prediction(label="cat", usage=Usage(cost=1.0)))
    for _ in range(2):
        cascade.meter.finish_row(Prediction(label="cat"))
    assert cascade.meter.used_up(2) == ""
    assert "max_cost of 3" in cascade.meter.used_up(4)


def test_charges_beside_the_rows_count_towards_the_budget(build: Build) -> None:
    """The usage of a call that belongs to no row, such as a reflection model's, counts towards a cascade's budget."""
    budget = build("cat", limits=Limits(max_cost=3.0)).cascade.meter
    budget.charge(Usage(cost=2.0))
    assert budget.used_up(0) == ""
    budget.charge(Usage(cost=1.0))
    assert "max_cost of 3" in budget.used_up(0)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_concurrency_holds_for_each_model(build: Build, concurrency: int) -> None:
    """Each model gets as many calls at once as allowed."""
    built = build(("cat", 0.6), ("dog", 0.9), client={"latency": 0.002})
    limited = built.cascade.with_limits(Limits(concurrency=concurrency))
    limited.classify_many([str(number) for number in range(20)])
    assert max(client.max_in_flight for client in built.clients) == concurrency


def test_a_cancelled_row_leaves_nothing_behind(build: Build) -> None:
    """After a cancelled row the next rows are answered."""
    built = build(("cat", 0.6), ("dog", 0.9), limits=Limits(concurrency=1))
    large = built.clients[1]
    working, asked = large.complete, asyncio.Event()

    async def hanging(_request: Any) -> object:
        asked.set()
        return await asyncio.Event().wait()

    async def give_up() -> list[Prediction]:
        large.complete = hanging
        row = asyncio.create_task(built.cascade.aclassify("t"))
        await asked.wait()
        row.cancel()
        with pytest.raises(asyncio.CancelledError):
            await row
        large.complete = working
        return await built.cascade.aclassify_many(["t", "u"])

    found = asyncio.run(give_up())
    assert [row.label for row in found] == ["dog", "dog"]


class InProcess(FakeClient):
    """A model that computes in this process."""

    in_process = True


def test_a_budget_in_dollars_is_kept_beside_an_embedded_model() -> None:
    """A model in this process costs nothing, so a budget in dollars is kept without a price for it."""
    small = InProcess(["cat", "dog"], {}, default=("cat", 0.6))
    classifier = Classifier(model=small, labels=["cat", "dog"], field="category")
    limits = Limits(max_cost=1.0)
    models = [CascadeModel(classifier=classifier, name=name) for name in ("a", "b")]
    cascade = Cascade(models, method="label_probability", threshold=0.8, limits=limits)
    for predictor in (classifier.with_limits(limits), cascade):
        assert len(predictor.classify_many(["t", "u", "v"])) == 3


@pytest.mark.parametrize(("price", "unpriced"), [(0.5, 0), (None, 1)])
def test_rows_of_an_embedded_model_have_a_price(say: Any, price: float | None, unpriced: int) -> None:
    """Rows that a model in this process answers cost 0; one that a hosted model answers has its price, or none."""
    sure = say("cat", 0.9, tokens=10)
    small = InProcess(["cat", "dog"], {"hard": say("cat", 0.6, tokens=10)}, default=sure)
    large = FakeClient(["cat", "dog"], {}, default=say("dog", 0.9, tokens=10, cost=price))
    models = [Classifier(model=client, labels=["cat", "dog"], field="category") for client in (small, large)]
    cascade = Cascade(models, method="label_probability", threshold=0.8, escalation_order="declared")
    texts = ("easy", "easier", "easiest", "hard")
    found = BatchEvaluator(cascade).evaluate([Example(input=text, answer="cat") for text in texts])
    assert (found.metrics.unpriced_rows, found.metrics.cost) == (unpriced, price or 0.0)


def test_a_cascade_needs_answers_that_name_their_tokens() -> None:
    """A budget in dollars ends a cascade after the first answer that does not say what it took."""

    class Silent(FakeClient):
        async def complete(self, request: Any) -> object:
            found: Any = await super().complete(request)
            return {name: value for name, value in dict(found).items() if name != "usage"}

    client = Silent(["cat", "dog"], {}, default=("cat", 0.9))
    classifier = Classifier(model=client, labels=["cat", "dog"], field="category")
    models = [CascadeModel(classifier=classifier, name=name) for name in ("a", "b")]
    cascade = Cascade(models, method="label_probability", threshold=0.8, limits=Limits(max_cost=1.0))
    with pytest.raises(LimitReachedError, match="do not say how many tokens"):
        cascade.classify_many(["t", "u", "v"])
    assert len(client.requests) == 1


def test_embedded_models_limit_rows_in_flight() -> None:
    """A model in this process limits the rows in flight."""
    small = InProcess(["cat", "dog"], {}, default=("cat", 0.6))
    large = FakeClient(["cat", "dog"], {}, default=("dog", 0.9), latency=0.001)
    models = [Classifier(model=client, labels=["cat", "dog"], field="category") for client in (small, large)]
    cascade = Cascade(models, method="label_probability", threshold=0.8, escalation_order="declared")
    found = BatchEvaluator(cascade).evaluate([Example(input=str(n), answer="dog") for n in range(30)])
    assert found.metrics.correct == 30
    assert large.max_in_flight <= 4
