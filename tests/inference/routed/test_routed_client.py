"""Who is asked, who steps in, what is learnt of it, and what is raised when nobody answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from calibrant.cascade import AvgLogprob, Cascade
from calibrant.core import (
    CalibrantError,
    Client,
    Completion,
    CompletionRequest,
    ConfigurationError,
    ContextLengthError,
    ContinuingClient,
    LogprobSpace,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.inference import (
    Classifier,
    LabelCodes,
    Limits,
    Provider,
    RetryPolicy,
    RoutedClient,
    SharedRouter,
    run_sync,
)
from calibrant.inference._runner import Runner
from calibrant.routing import FixedRouter, Observation, Router, RoutingRequest, TaskRouter
from calibrant.testing import FakeClient, MemoryJournal

REQUEST = CompletionRequest(messages=({"role": "user", "content": "what purrs?"},))


class Learner(FixedRouter):
    """Keeps the declared order but counts as a strategy that learns, and remembers what it is told."""

    strategy = "recording"

    def __init__(self, providers: Sequence[str], **options: Any) -> None:
        super().__init__(providers, **options)
        self.seen: list[Observation] = []
        self.requests: list[RoutingRequest | None] = []

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return the declared order."""
        self.requests.append(request)
        return super().order(request)

    def record(self, observation: Observation) -> None:
        """Remember."""
        self.seen.append(observation)
        super().record(observation)


class Declared(Learner):
    """The same, as an order that was declared."""

    strategy = "none"


def down(name: str = "a", **options: Any) -> ProviderError:
    """Return a passing failure."""
    return ProviderError("is down", provider=name, **({"status": 503, "retryable": True} | options))


def limited(seconds: float | None = None) -> RateLimitError:
    """Return a rate limit."""
    return RateLimitError("slow down", provider="a", status=429, retryable=True, retry_after=seconds)


def too_long(name: str = "a") -> ContextLengthError:
    """Return what a model says to a long text."""
    return ContextLengthError("too long", provider=name, status=400)


def routed(*clients: Any, kind: Callable[..., Any] = Learner, **options: Any) -> tuple[RoutedClient, Any]:
    """Return a routed client of providers a, b, c, ... and its router."""
    providers = [
        found if isinstance(found, Provider) else Provider(name, found)
        for name, found in zip("abcdef", clients, strict=False)
    ]
    router = kind([provider.name for provider in providers])
    return RoutedClient(providers, router=router, **options), router


class TestOneRequest:
    """What becomes of a single request."""

    def test_the_first_provider_is_asked_and_its_own_response_is_returned(self, scripted: Any) -> None:
        """Untouched, whatever shape it has."""
        response = {"choices": [{"message": {"content": "a cat"}}], "something": "else"}
        first, second = scripted(response), scripted()
        client, router = routed(first, second)
        assert asyncio.run(client.complete(REQUEST)) is response
        assert (first.calls, second.calls) == (1, 0)
        assert first.requests == [REQUEST]
        assert [seen.provider for seen in router.seen] == ["a"]

    @pytest.mark.parametrize(
        "failure",
        [
            down(),
            down(status=400, retryable=False),
            limited(1.0),
            ProviderError("wrong key", provider="a", status=401),
            ProviderTimeoutError("late", provider="a", retryable=True),
            {"error": {"message": "overloaded"}},
            {"choices": []},
            {"choices": [{"message": {"content": "  "}, "finish_reason": "stop"}]},
            None,
            17,
        ],
        ids=lambda failure: str(failure)[:30],
    )
    def test_what_fails_or_cannot_be_read_goes_on_to_the_next(
        self, scripted: Any, ask: Any, failure: Any
    ) -> None:
        """Both calls are learnt from, the first one as a failure."""
        client, router = routed(scripted(failure), scripted("b knows"))
        assert ask(client) == "b knows"
        assert [(seen.provider, seen.success) for seen in router.seen] == [("a", False), ("b", True)]
        assert router.seen[0].rate_limited is isinstance(failure, RateLimitError)
        assert client.stats()["a"].failures == 1

    @pytest.mark.parametrize(
        "choice",
        [
            {"message": {"content": None, "refusal": "I will not."}},
            {"message": {"content": ""}, "finish_reason": "length"},
            {"message": {"content": ""}, "finish_reason": "content_filter"},
        ],
        ids=["refusal", "cut off", "filtered"],
    )
    def test_an_answer_that_is_the_models_own_doing_is_one(self, scripted: Any, choice: Any) -> None:
        """Refused or cut off, it came: another provider is not asked."""
        other = scripted()
        client, router = routed(scripted({"choices": [choice]}), other)
        asyncio.run(client.complete(REQUEST))
        assert other.calls == 0
        assert router.seen[0].success

    def test_a_request_that_is_too_long_is_not_held_against_the_provider(
        self, scripted: Any, ask: Any
    ) -> None:
        """The next one is asked, nothing is learnt, and nobody is left out, however often it happens."""
        client, router = routed(scripted(too_long()), scripted("b knows"))
        for _ in range(5):
            assert ask(client) == "b knows"
        assert {seen.provider for seen in router.seen} == {"b"}
        stats = client.stats()["a"]
        assert (stats.calls, stats.failures, stats.too_long, stats.cooling_seconds) == (5, 0, 5, 0.0)

    def test_other_exceptions_pass_and_teach_nothing(self, scripted: Any) -> None:
        """A mistake in a program is not the provider's."""
        client, router = routed(scripted(ZeroDivisionError("oops")), scripted())
        with pytest.raises(ZeroDivisionError):
            asyncio.run(client.complete(REQUEST))
        assert router.seen == []
        assert client.stats()["a"].in_flight == 0

    def test_observations_hold_what_the_call_took(self, scripted: Any, clock: Any, answered: Any) -> None:
        """Latency by the clock, cost as reported, else as declared; the context only where it is used."""
        priced = scripted(answered("yes", cost=0.25), clock=clock, seconds=2.0)
        unpriced = scripted(answered("yes"), clock=clock, seconds=0.5)
        for client, cost, seconds in ((priced, 0.25, 2.0), (unpriced, 0.125, 0.5)):
            whole, router = routed(Provider("a", client, cost=0.125), clock=clock)
            asyncio.run(whole.complete(REQUEST))
            (seen,) = router.seen
            assert (seen.cost, seen.latency_seconds, seen.quality, seen.context) == (cost, seconds, None, None)
            assert whole.stats()["a"].cost == cost
            assert whole.stats()["a"].mean_latency_seconds == seconds

    def test_a_price_that_is_no_number_is_none(self, scripted: Any, answered: Any) -> None:
        """Infinity would be refused by every strategy."""
        client, router = routed(scripted(answered("yes", cost=float("inf"))))
        asyncio.run(client.complete(REQUEST))
        assert router.seen[0].cost is None
        assert client.stats()["a"].cost is None

    def test_a_strategy_is_told_of_the_request(self, scripted: Any) -> None:
        """Its task, its length in tokens, whether it offers tools; the provider's options go with the call."""
        inner = scripted()
        client, router = routed(
            Provider("a", inner, options={"seed": 1, "user": "me"}), task="animals", kind=Learner
        )
        messages = (
            {"role": "system", "content": "x" * 10},
            {"role": "user", "content": [{"type": "text", "text": "y" * 7}]},
        )
        request = CompletionRequest(messages=messages, options={"tools": [{"type": "function"}], "seed": 2})
        asyncio.run(client.complete(request))
        (seen,) = router.requests
        assert (seen.task, seen.tokens, seen.has_tools, seen.tier) == ("animals", 5, True, None)
        assert inner.requests[0].options == {"seed": 2, "user": "me", "tools": [{"type": "function"}]}

    def test_an_empty_text_is_a_request_like_any_other(self, scripted: Any) -> None:
        """No messages at all are one too: whether they make sense, the provider says."""
        client, router = routed(scripted())
        asyncio.run(client.complete(CompletionRequest(messages=())))
        assert router.requests[0].tokens == 0

    def test_an_answer_with_tools_may_be_without_text(self, scripted: Any) -> None:
        """A tool call has none; it is returned as it came."""
        response = {"choices": [{"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "stop"}]}
        client, _ = routed(scripted(response), scripted())
        request = CompletionRequest(messages=(), options={"tools": [{}]})
        assert asyncio.run(client.complete(request)) is response

    def test_a_provider_whose_window_is_too_small_is_asked_last(self, scripted: Any, ask: Any) -> None:
        """As far as the length can be estimated; one whose window is unknown keeps its turn."""
        client, _ = routed(
            Provider("a", scripted("a"), context_window=10), scripted("b"), Provider("c", scripted("c"))
        )
        assert ask(client, "short") == "a"
        assert ask(client, "long " * 20) == "b"

    def test_calls_that_take_too_long_go_on_to_the_next(self, scripted: Any, ask: Any) -> None:
        """With a deadline for each, which counts as a failure."""

        async def hang(_request: CompletionRequest) -> str:
            await asyncio.sleep(60)
            return "too late"

        client, router = routed(scripted(hang), scripted("b knows"), call_seconds=0.02)
        assert ask(client) == "b knows"
        assert [seen.success for seen in router.seen] == [False, True]

    def test_a_router_that_orders_strangers_is_told(self, scripted: Any) -> None:
        """Which name it was."""

        class Stray(Learner):
            def order(self, request: RoutingRequest | None = None) -> list[str]:
                return ["z"]

        client, _ = routed(scripted(), kind=Stray)
        with pytest.raises(ConfigurationError, match="'z'"):
            asyncio.run(client.complete(REQUEST))


class TestNobodyAnswers:
    """What is raised says most."""

    def raised(self, *clients: Any, times: int = 1, **options: Any) -> ProviderError:
        """Return what a client of these raises."""
        client, _ = routed(*clients, **options)
        for _ in range(times):
            with pytest.raises(ProviderError) as caught:
                asyncio.run(client.complete(REQUEST))
        return caught.value

    def test_one_provider_raises_what_it_raised(self, scripted: Any) -> None:
        """Kind, status and all."""
        error = limited(3.0)
        assert self.raised(scripted(error)) is error

    def test_the_message_names_every_provider_and_its_reason(self, scripted: Any) -> None:
        """In the order in which they were asked."""
        error = self.raised(scripted(down("gpt")), scripted(ProviderTimeoutError("was late", provider="b")))
        assert "no provider answered: a: gpt: is down; b: was late" in str(error)
        assert error.provider == "routed:recording(a, b)"

    def test_it_may_be_retried_if_any_may(self, scripted: Any) -> None:
        """A wrong key at one provider does not end a run."""
        wrong = ProviderError("wrong key", provider="a", status=401)
        error = self.raised(scripted(wrong), scripted(down("b")))
        assert error.retryable
        assert not error.systemic
        assert error.status is None

    def test_it_is_systemic_if_all_are(self, scripted: Any) -> None:
        """Whatever their status; one 404 and one 401 are."""
        error = self.raised(
            scripted(ProviderError("wrong key", provider="a", status=401)),
            scripted(ProviderError("no such model", provider="b", status=404)),
        )
        assert error.systemic
        assert not error.retryable

    def test_it_stays_systemic_while_providers_are_left_out_for_it(self, scripted: Any) -> None:
        """Rows that come later meet the same fault, though fewer providers are asked."""
        error = self.raised(
            scripted(ProviderError("wrong key", provider="a", status=401)),
            scripted(ProviderError("no such model", provider="b", status=404)),
            times=3,
        )
        assert error.systemic
        assert "left out for another" in str(error)

    @pytest.mark.parametrize(
        ("first", "second", "kind"),
        [
            (limited(2.0), limited(1.0), RateLimitError),
            (
                ProviderTimeoutError("late", provider="a", retryable=True),
                ProviderTimeoutError("late", provider="b", retryable=True),
                ProviderTimeoutError,
            ),
            (limited(2.0), down("b"), ProviderError),
            (too_long("a"), too_long("b"), ContextLengthError),
            (too_long("a"), down("b"), ProviderError),
        ],
        ids=["limits", "timeouts", "mixed", "too long", "too long for one"],
    )
    def test_a_kind_that_all_share_is_kept(
        self, scripted: Any, first: ProviderError, second: ProviderError, kind: type[ProviderError]
    ) -> None:
        """Rate limits, timeouts, and requests that are too long for everybody."""
        assert type(self.raised(scripted(first), scripted(second))) is kind

    def test_all_limits_say_when_the_first_one_ends(self, scripted: Any) -> None:
        """And a single one without a time says nothing."""
        assert self.raised(scripted(limited(5.0)), scripted(limited(2.0))).retry_after == 2.0
        assert self.raised(scripted(limited(5.0)), scripted(down("b"))).retry_after is None

    def test_too_long_for_who_was_asked_is_not_too_long_for_who_is_left_out(
        self, scripted: Any, clock: Any
    ) -> None:
        """The row may be asked again: it is no mistake of the prompt yet."""
        a, b = scripted(down("a"), down("a"), down("a"), "never"), scripted("one", "two", "three", too_long("b"))
        client, _ = routed(a, b, clock=clock)
        for _ in range(3):
            asyncio.run(client.complete(REQUEST))
        with pytest.raises(ProviderError) as caught:
            asyncio.run(client.complete(REQUEST))
        assert not isinstance(caught.value, ContextLengthError)
        assert caught.value.retryable

    def test_when_all_are_left_out_the_one_whose_time_ends_first_is_asked(
        self, scripted: Any, ask: Any, clock: Any
    ) -> None:
        """And nobody else; if it answers, it is back."""
        a = scripted(ProviderError("wrong key", provider="a", status=401), "a is back")
        b = scripted(down("b"), "b is back")
        client, router = routed(a, b, clock=clock, allowed_failures=1)
        with pytest.raises(ProviderError):
            ask(client)
        assert ask(client) == "b is back"
        assert (a.calls, b.calls) == (1, 2)
        assert router.seen[-1].recovered
        assert client.stats()["b"].cooling_seconds == 0.0

    def test_a_time_that_a_provider_named_is_kept(self, scripted: Any, ask: Any, clock: Any) -> None:
        """Nobody is asked before it; the error says how long to wait."""
        a, b = scripted(limited(9.0), "a is back"), scripted(limited(4.0), "b is back")
        client, _ = routed(a, b, clock=clock)
        with pytest.raises(RateLimitError):
            ask(client)
        clock.tick(1.0)
        with pytest.raises(RateLimitError, match="every provider is left out") as caught:
            ask(client)
        assert caught.value.retry_after == 3.0
        assert caught.value.retryable
        assert (a.calls, b.calls) == (1, 1)
        clock.tick(3.0)
        assert ask(client) == "b is back"


class TestComingBack:
    """A provider that was left out is taken back."""

    def test_under_a_strategy_that_learns_it_comes_first_once(
        self, scripted: Any, ask: Any, clock: Any
    ) -> None:
        """Whatever the order says, as the strategy may never ask it again by itself."""
        a, b = scripted("a"), scripted(down("b"), "b is back")
        a.script = [down("a"), "a"]
        client, router = routed(a, b, clock=clock, allowed_failures=1)
        with pytest.raises(ProviderError):
            ask(client)  # both fail
        clock.tick(5.0)
        assert ask(client) == "a"  # due like b, and earlier in the order
        assert ask(client) == "b is back"
        assert ask(client) == "a"
        assert [seen.recovered for seen in router.seen if seen.success] == [True, True, False]

    def test_a_failed_probe_costs_the_request_nothing_but_time(
        self, scripted: Any, ask: Any, clock: Any
    ) -> None:
        """Another provider answers, and the next probe is twice as far away."""
        a, b = scripted(down("a")), scripted("b")
        client, _ = routed(a, b, clock=clock, allowed_failures=1, cooldown_seconds=1.0)
        asked = []
        for _ in range(9):
            before = a.calls
            assert ask(client) == "b"
            asked.append(a.calls - before)
            clock.tick(1.0)
        assert asked == [1, 1, 0, 1, 0, 0, 0, 1, 0]

    def test_under_a_declared_order_it_is_asked_when_it_is_its_turn(
        self, scripted: Any, ask: Any, clock: Any
    ) -> None:
        """The first one at once; a fallback only when it is needed."""
        a, b = scripted("a"), scripted(down("b"), "b is back")
        a.script = [down("a"), "a is back", "a", down("a")]
        client, _ = routed(a, b, clock=clock, kind=Declared, allowed_failures=1)
        with pytest.raises(ProviderError):
            ask(client)
        clock.tick(5.0)
        assert ask(client) == "a is back"
        assert ask(client) == "a"
        assert b.calls == 1
        assert ask(client) == "b is back"

    def test_exactly_one_of_many_requests_finds_out(self, scripted: Any, clock: Any) -> None:
        """The others go where they went before."""
        gate = asyncio.Event()

        async def slow(_request: CompletionRequest) -> str:
            await gate.wait()
            return "a is back"

        a, b = scripted(down("a"), slow), scripted("b")
        client, _ = routed(a, b, clock=clock, allowed_failures=1)

        async def many() -> None:
            await client.complete(REQUEST)
            clock.tick(5.0)
            tasks = [asyncio.create_task(client.complete(REQUEST)) for _ in range(20)]
            while b.calls < 20:
                await asyncio.sleep(0)
            assert a.calls == 2
            gate.set()
            await asyncio.gather(*tasks)

        asyncio.run(many())

    def test_a_cancelled_probe_makes_room_for_another(self, scripted: Any, clock: Any) -> None:
        """Otherwise the provider would be lost."""

        async def hang(_request: CompletionRequest) -> str:
            await asyncio.sleep(60)
            return "never"

        a, b = scripted(down("a"), hang, "a is back"), scripted("b")
        client, router = routed(a, b, clock=clock, allowed_failures=1)

        async def run() -> Any:
            await client.complete(REQUEST)
            clock.tick(5.0)
            probe = asyncio.create_task(client.complete(REQUEST))
            while a.calls < 2:
                await asyncio.sleep(0)
            probe.cancel()
            with pytest.raises(asyncio.CancelledError):
                await probe
            return await client.complete(REQUEST)

        assert asyncio.run(run())["choices"][0]["message"]["content"] == "a is back"
        assert [(seen.provider, seen.success) for seen in router.seen] == [
            ("a", False),
            ("b", True),
            ("a", True),
        ]
        assert client.stats()["a"].in_flight == 0

    def test_a_used_up_allowance_is_respected_and_does_not_reach_the_caller(
        self, scripted: Any, ask: Any, clock: Any, answered: Any
    ) -> None:
        """It is one provider's own: the caller would stop asking the others too."""
        headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"}
        spent = answered("a", cost=0.5) | {"_hidden_params": {"additional_headers": headers, "response_cost": 0.5}}
        a, b = scripted(spent, "a again"), scripted("b")
        client, _ = routed(a, b, clock=clock)
        found: Any = asyncio.run(client.complete(REQUEST))
        assert isinstance(found, Completion)
        assert (found.text, found.usage.cost) == ("a", 0.5)
        assert client.stats()["a"].cooling_seconds == 20.0
        assert ask(client) == "b"
        clock.tick(20.0)
        assert ask(client) == "a again"


class TestConcurrency:
    """Providers take as many calls at a time as they are said to take."""

    async def together(self, client: RoutedClient, count: int) -> None:
        """Ask so often at once."""
        await asyncio.gather(*(client.complete(REQUEST) for _ in range(count)))

    def slow(self, scripted: Any, text: str) -> Any:
        """Return a client that takes a few turns of the loop."""

        async def answer(_request: CompletionRequest) -> str:
            await asyncio.sleep(0.005)
            return text

        return scripted(answer)

    def test_a_declared_order_waits_for_a_full_provider(self, scripted: Any) -> None:
        """Overflow would cost money that the order is there to save."""
        a, b = self.slow(scripted, "a"), self.slow(scripted, "b")
        client, _ = routed(Provider("a", a, concurrency=2), b, kind=Declared)
        asyncio.run(self.together(client, 8))
        assert (a.calls, a.most_in_flight, b.calls) == (8, 2, 0)

    def test_a_strategy_that_learns_passes_a_full_provider_over(self, scripted: Any) -> None:
        """Where all are full, the first one is waited for; only who is asked is learnt from."""
        a, b = self.slow(scripted, "a"), self.slow(scripted, "b")
        client, router = routed(Provider("a", a, concurrency=2), Provider("b", b, concurrency=3))
        asyncio.run(self.together(client, 9))
        assert (a.most_in_flight, b.most_in_flight) == (2, 3)
        assert a.calls == 6
        assert b.calls == 3
        assert len(router.seen) == 9

    def test_waiting_is_no_part_of_the_latency(self, scripted: Any, clock: Any) -> None:
        """A full provider is not a slow one."""
        a = scripted("a", clock=clock, seconds=1.0)
        client, router = routed(Provider("a", a, concurrency=1), clock=clock, kind=Declared)
        asyncio.run(self.together(client, 5))
        assert [seen.latency_seconds for seen in router.seen] == [1.0] * 5

    def test_who_waited_for_a_provider_that_fails_meanwhile_goes_elsewhere(
        self, scripted: Any, clock: Any
    ) -> None:
        """It is left out by then, and asking it would be in vain."""

        async def fails(_request: CompletionRequest) -> ProviderError:
            await asyncio.sleep(0.002)
            return down("a")

        a, b = scripted(fails), scripted("b")
        client, _ = routed(
            Provider("a", a, concurrency=1), b, kind=Declared, allowed_failures=2, clock=clock
        )
        asyncio.run(self.together(client, 6))
        assert (a.calls, b.calls) == (2, 6)

    def test_cancelled_requests_free_their_places(self, scripted: Any) -> None:
        """Those under way and those that wait."""

        async def hang(_request: CompletionRequest) -> str:
            await asyncio.sleep(60)
            return "never"

        a = scripted(hang, hang, "free")
        client, router = routed(Provider("a", a, concurrency=2), kind=Declared)

        async def run() -> None:
            tasks = [asyncio.create_task(client.complete(REQUEST)) for _ in range(5)]
            await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.together(client, 3)

        asyncio.run(run())
        assert a.calls == 5
        assert len(router.seen) == 3
        assert client.stats()["a"].in_flight == 0

    def test_an_overloaded_provider_is_asked_less_at_a_time(self, scripted: Any) -> None:
        """As elsewhere: halved for a status that says so."""
        client, _ = routed(
            Provider("a", scripted(down("a"), "fine"), concurrency=8), kind=Declared, allowed_failures=5
        )
        with pytest.raises(ProviderError):
            asyncio.run(client.complete(REQUEST))
        gate = client._members["a"]._gate
        assert gate is not None
        assert gate.allowed == 4.0

    def test_threads_with_loops_of_their_own_share_it(self, scripted: Any) -> None:
        """No place and no observation is lost."""
        a = self.slow(scripted, "a")
        client, router = routed(Provider("a", a, concurrency=3), self.slow(scripted, "b"), kind=Declared)
        threads = [
            threading.Thread(target=lambda: asyncio.run(self.together(client, 20))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(router.seen) == 80
        stats = client.stats()["a"]
        assert (stats.calls, stats.in_flight) == (80, 0)
        assert client._members["a"]._gate is not None
        assert client._members["a"]._gate._in_flight == 0


class TestWhereverAClientIs:
    """Classifiers, caches, label codes, samples and cascades take it as they take any other."""

    LABELS = ("cat", "dog")

    def pair(self, **options: Any) -> tuple[RoutedClient, FakeClient, FakeClient]:
        """Return a routed client whose first provider is down for good."""
        dead = FakeClient(self.LABELS, lambda _text: down("a"), name="a")
        alive = FakeClient(self.LABELS, {"purr": ("cat", 0.9), "bark": ("dog", 0.8)}, name="b", **options)
        client, _ = routed(dead, alive)
        return client, dead, alive

    def test_it_is_a_client_and_no_more(self) -> None:
        """It cannot be asked for next tokens, so nobody takes it for exact scores."""
        client, *_ = self.pair()
        assert isinstance(client, Client)
        assert not isinstance(client, ContinuingClient)

    def test_rows_are_classified_with_their_confidence(self) -> None:
        """Concurrently, and as if the provider that answered had been asked alone."""
        client, dead, alive = self.pair()
        texts = [f"{number} {sound}" for number in range(30) for sound in ("purr", "bark")]
        options: dict[str, Any] = {"labels": self.LABELS, "field": "category", "prompt": "Which?"}
        found = Classifier(model=client, concurrency=8, **options).classify_many(texts)
        alone = Classifier(model=alive, **options).classify_many(texts)
        assert [row.label for row in found] == [row.label for row in alone]
        assert [row.confidence for row in found] == [row.confidence for row in alone]
        assert len(dead.requests) < 20

    def test_label_codes_and_samples_go_through_it(self) -> None:
        """Every pass and every sample is a request of its own."""
        client, _, alive = self.pair()
        sampled = Classifier(
            model=client, labels=self.LABELS, field="category", scoring="sampled", samples=4
        ).classify("a purr")
        assert (sampled.label, sampled.attempts) == ("cat", 4)
        assert {request.options["temperature"] for request in alive.requests} == {1.0}
        coded = FakeClient(["A1", "B1"], lambda text: "A1")
        whole, _ = routed(coded)
        classifier = Classifier(
            model=whole, labels=self.LABELS, field="category", label_codes=LabelCodes(codes=["A1", "B1"])
        )
        assert classifier.classify("a purr").label in self.LABELS

    def test_stored_predictions_stay_valid_whatever_was_learnt(self) -> None:
        """The key depends on who the providers are, and changes with their addresses and options alone."""
        client, _, alive = self.pair()
        journal = MemoryJournal()
        options: dict[str, Any] = {"labels": self.LABELS, "field": "category", "journal": journal}
        first = Classifier(model=client, **options).classify_many(["a purr", "a bark"])
        calls = len(alive.requests)
        again, *_ = self.pair()
        second = Classifier(model=again, **options).classify_many(["a purr", "a bark"])
        assert [row.label for row in first] == [row.label for row in second]
        assert [row.attempts for row in second] == [0, 0]
        assert len(alive.requests) == calls

    def test_its_identity_holds_what_can_change_an_answer(self, scripted: Any) -> None:
        """Models, addresses and options, without credentials; not concurrency or price."""

        def identity(name: str = "gpt", address: str = "http://a/v1", **options: Any) -> tuple[str, str]:
            inner = scripted(name=name)
            inner.endpoint = address
            client, _ = routed(Provider("a", inner, **options))
            return client.name, client.endpoint

        plain = identity()
        assert plain[0] == "routed:recording(a)"
        assert json.loads(plain[1]) == [["a", "gpt", "http://a/v1", {}]]
        assert identity() == plain
        assert identity(concurrency=3, cost=1.0, options={"api_key": "sk-secret"}) == plain
        others = {
            identity(name="other"),
            identity(address="http://b/v1"),
            identity(options={"seed": 1}),
        }
        assert len({*others, plain}) == 4
        assert "secret" not in str(identity(address="http://me:secret@a/v1", options={"api_key": "secret"}))

    def test_it_is_a_member_of_a_cascade(self) -> None:
        """Like any model that costs something."""
        client, _, alive = self.pair()
        big = FakeClient(self.LABELS, lambda _text: ("dog", 0.99), name="big")
        members = [
            Classifier(model=model, labels=self.LABELS, field="category") for model in (client, big)
        ]
        cascade = Cascade(members, method=AvgLogprob(), escalation_order="declared", native_threshold=-0.15)
        sure, unsure = cascade.classify_many(["a purr", "a bark"])
        assert (sure.label, len(sure.steps)) == ("cat", 1)
        assert (unsure.label, len(unsure.steps)) == ("dog", 2)
        assert len(alive.requests) == 2

    def test_a_row_whose_providers_all_fail_is_a_row_that_failed(self) -> None:
        """Retried as its policy says, and systemic faults end the run as ever."""
        passing, _ = routed(*(FakeClient(self.LABELS, lambda _text: down("x")) for _ in range(2)))
        retry = RetryPolicy(attempts=3, initial_seconds=0.0)
        classifier = Classifier(model=passing, labels=self.LABELS, field="category", retry=retry)
        with pytest.raises(ProviderError, match="not asked"):
            classifier.classify_many([f"text {number}" for number in range(40)])
        wrong = ProviderError("wrong key", provider="x", status=401)
        systemic, _ = routed(*(FakeClient(self.LABELS, lambda _text: wrong) for _ in range(2)))
        with pytest.raises(ProviderError, match="no provider answered") as caught:
            Classifier(model=systemic, labels=self.LABELS, field="category").classify_many(["a"] * 5)
        assert caught.value.systemic

    def test_a_deadline_around_it_cancels_and_frees(self) -> None:
        """Nothing is learnt from who was given up on."""
        slow = FakeClient(self.LABELS, lambda _text: "cat", latency=30.0)
        client, router = routed(Provider("a", slow, concurrency=1))
        classifier = Classifier(
            model=client,
            labels=self.LABELS,
            field="category",
            limits=Limits(call_seconds=0.01),
            retry=RetryPolicy(attempts=1),
        )
        assert classifier.classify("a purr").outcome == "error"
        assert router.seen == []
        assert client.stats()["a"].in_flight == 0

    def test_it_works_through_the_background_loop_and_others(self) -> None:
        """One after the other."""
        client, *_ = self.pair()
        request = CompletionRequest(messages=({"role": "user", "content": "a purr"},))
        for _ in range(2):
            run_sync(client.complete(request))
            asyncio.run(client.complete(request))


class TestPuttingItTogether:
    """What does not fit is refused before any call."""

    def test_there_must_be_providers_each_once(self, scripted: Any) -> None:
        """None, doubles and what is no provider."""
        router = FixedRouter(["a"])
        with pytest.raises(ConfigurationError, match="at least one provider"):
            RoutedClient([], router=router)
        with pytest.raises(ConfigurationError, match="a more than once"):
            RoutedClient([Provider("a", scripted()), Provider("a", scripted())], router=router)
        with pytest.raises(ConfigurationError, match="Expected a Provider"):
            RoutedClient([scripted()], router=router)

    @pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], ["a", "c"]], ids=str)
    def test_the_router_must_know_the_same_names(self, scripted: Any, names: list[str]) -> None:
        """No more and no fewer; their order may differ."""
        providers = [Provider("a", scripted()), Provider("b", scripted())]
        RoutedClient(providers, router=FixedRouter(["b", "a"]))
        with pytest.raises(ConfigurationError, match="a router of the providers a, b, got one of"):
            RoutedClient(providers, router=FixedRouter(names))

    def test_providers_must_have_one_space(self, scripted: Any) -> None:
        """Confidence would mean something else from row to row; a client's own claim can be corrected."""
        raw = scripted()
        raw.space = LogprobSpace.RAW
        with pytest.raises(ConfigurationError, match=r"a \(masked\), b \(raw\)"):
            routed(scripted(), raw)
        client, _ = routed(scripted(), Provider("b", raw, space="masked"))
        assert client.space is LogprobSpace.MASKED
        client, _ = routed(raw)
        assert client.space is LogprobSpace.RAW

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"concurrency": 0}, "concurrency"),
            ({"concurrency": True}, "concurrency"),
            ({"context_window": 1.5}, "context_window"),
            ({"cost": -1.0}, "cost"),
            ({"cost": float("nan")}, "cost"),
            ({"options": ["seed"]}, "options"),
            ({"space": "odd"}, "odd"),
        ],
        ids=str,
    )
    def test_a_provider_says_what_is_wrong_with_it(self, scripted: Any, options: Any, told: str) -> None:
        """With its value."""
        with pytest.raises(ConfigurationError, match=told):
            Provider("a", scripted(), **options)

    def test_a_provider_needs_a_name_and_a_client(self, scripted: Any) -> None:
        """A model's name is no client."""
        with pytest.raises(ConfigurationError, match="name of a provider"):
            Provider(" ", scripted())
        with pytest.raises(ConfigurationError, match="open_client"):
            Provider("a", "gpt-4.1-mini")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "options",
        [
            {"call_seconds": 0.0},
            {"call_seconds": float("nan")},
            {"helper_seconds": -1.0},
            {"allowed_failures": 0},
            {"cooldown_seconds": 0},
            {"delayed": True},
        ],
        ids=str,
    )
    def test_numbers_out_of_range_are_refused(self, scripted: Any, options: dict[str, Any]) -> None:
        """And what would have no effect."""
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            routed(scripted(), **options)

    def test_a_task_goes_to_its_provider(self, scripted: Any, ask: Any) -> None:
        """The strategy is handed the name of the task."""
        providers = [Provider("a", scripted("a")), Provider("b", scripted("b"))]
        router = TaskRouter(["a", "b"], tasks={"animals": "b"})
        assert ask(RoutedClient(providers, router=router, task="animals")) == "b"
        assert ask(RoutedClient(providers, router=router)) == "a"


class TestClosing:
    """Who opened something closes it."""

    def test_clients_are_closed_only_if_they_belong_to_it(self, scripted: Any) -> None:
        """Each once, even if two providers share one."""
        shared = scripted()
        for owned, times in ((False, 0), (True, 1)):
            client, _ = routed(shared, shared, owned=owned)
            client.close()
            assert shared.closed == times

    def test_everything_is_closed_whatever_one_of_them_raises(self, scripted: Any) -> None:
        """The error is not lost."""
        bad, good = scripted(), scripted()

        def fail() -> None:
            raise CalibrantError("cannot close")

        bad.close = fail
        client, _ = routed(good, bad, good, owned=True)
        with pytest.raises(CalibrantError, match="cannot close"):
            client.close()
        assert good.closed == 1

    def test_a_shared_router_is_closed_with_it(self, scripted: Any, ask: Any) -> None:
        """So that what was learnt is written."""

        class State:
            location = "memory"

            def __init__(self) -> None:
                self.record: Any = None
                self.closed = False

            def read(self, _strategy: str) -> Any:
                return self.record

            def update(self, _strategy: str, change: Callable[[Any], Any]) -> Any:
                self.record = dict(change(self.record))
                return self.record

            def reset(self, strategy: str | None = None) -> list[str]:
                raise NotImplementedError

            def strategies(self) -> list[str]:
                raise NotImplementedError

            def close(self) -> None:
                self.closed = True

        from calibrant.routing import ThompsonRouter  # noqa: PLC0415

        state = State()
        router = SharedRouter(ThompsonRouter(["a"], rng=0), state)
        assert isinstance(router, Router)
        client = RoutedClient([Provider("a", scripted("yes"))], router=router)
        for _ in range(3):
            ask(client)
        client.close()
        assert state.closed
        assert state.record["providers"]["a"]["alpha"] == 4.0

    def test_a_client_of_clients_may_be_a_provider(self, scripted: Any, ask: Any) -> None:
        """Routing within routing is one more client."""
        inner, _ = routed(scripted(down("a")), scripted("b"))
        outer, router = routed(inner)
        assert ask(outer) == "b"
        assert router.seen[0].success


def test_the_runner_sees_an_endpoint(scripted: Any) -> None:
    """It is part of the key of a stored prediction."""
    client, _ = routed(scripted())
    classifier = Classifier(model=client, labels=["cat", "dog"])
    assert isinstance(classifier.runner, Runner)
    assert classifier.describe()["endpoint"]
