"""Tests of the recovery of providers after an outage, and of their concurrency limits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from calibrant.core import Completion, CompletionRequest, ContextLengthError, ProviderError, RateLimitError
from calibrant.inference import Provider, RoutedClient
from calibrant.routing import EMARouter, Observation
from routed_answers import REQUEST, Scripted, answered, ask, down, hang, routed


async def reached(client: Scripted, calls: int) -> None:
    """Wait until a client has had so many calls."""
    while client.calls < calls:  # noqa: ASYNC110 (a few turns of the loop)
        await asyncio.sleep(0)


async def fails(_request: CompletionRequest) -> ProviderError:
    """Raise an error after a few milliseconds."""
    await asyncio.sleep(0.002)
    return down("a")


class TestComingBack:
    """Tests of recovery: a provider that was left out is used again."""

    def test_learning_strategies_probe_first_once(self, clock: Any) -> None:
        """A provider whose cooldown is over is called first, once."""
        a, b = Scripted("a"), Scripted(down("b"), "b is back")
        a.script = [down("a"), "a"]
        client, router = routed(a, b, clock=clock, allowed_failures=1)
        with pytest.raises(ProviderError):
            ask(client)  # both fail
        clock.tick(5.0)
        assert ask(client) == "a"  # due like b, and earlier in the order
        assert ask(client) == "b is back"
        assert ask(client) == "a"
        assert [seen.recovered for seen in router.seen if seen.success] == [True, True, False]

    def test_a_failing_provider_of_an_earlier_process_is_tried_once(self) -> None:
        """Averages that were kept while it was down do not leave it out for ever: its answer begins them anew."""
        router = EMARouter(["a", "b"], reorder_interval=1)
        for _ in range(20):
            router.record(Observation(provider="a", success=False, latency_seconds=0.1))
            router.record(Observation(provider="b", success=True, latency_seconds=2.0))
        a, b = Scripted("a is back"), Scripted("b")
        client = RoutedClient([Provider("a", a), Provider("b", b)], router=router)
        assert [ask(client) for _ in range(3)] == ["a is back"] * 3
        assert router.standings()[0].values["success"] == 1.0

    def test_failed_probes_do_not_fail_requests(self, clock: Any) -> None:
        """If a probe fails, another provider answers, and the next cooldown is twice as long."""
        a, b = Scripted(down("a")), Scripted("b")
        client, _ = routed(a, b, clock=clock, allowed_failures=1, cooldown_seconds=1.0)
        asked = []
        for _ in range(9):
            before = a.calls
            assert ask(client) == "b"
            asked.append(a.calls - before)
            clock.tick(1.0)
        assert asked == [1, 1, 0, 1, 0, 0, 0, 1, 0]

    def test_declared_orders_probe_in_turn(self, clock: Any) -> None:
        """With a declared order the first provider is probed at once, a fallback only when it is needed."""
        a, b = Scripted("a"), Scripted(down("b"), "b is back")
        a.script = [down("a"), "a is back", "a", down("a")]
        client, _ = routed(a, b, clock=clock, kind="declared", allowed_failures=1)
        with pytest.raises(ProviderError):
            ask(client)
        clock.tick(5.0)
        assert ask(client) == "a is back"
        assert ask(client) == "a"
        assert b.calls == 1
        assert ask(client) == "b is back"

    def test_exactly_one_of_many_requests_finds_out(self, clock: Any) -> None:
        """One of many requests probes the provider, and the others use another provider."""
        gate = asyncio.Event()

        async def slow(_request: CompletionRequest) -> str:
            await gate.wait()
            return "a is back"

        a, b = Scripted(down("a"), slow), Scripted("b")
        client, _ = routed(a, b, clock=clock, allowed_failures=1)

        async def many() -> None:
            await client.complete(REQUEST)
            clock.tick(5.0)
            tasks = [asyncio.create_task(client.complete(REQUEST)) for _ in range(20)]
            await reached(b, 20)
            assert a.calls == 2
            gate.set()
            await asyncio.gather(*tasks)

        asyncio.run(many())

    def test_a_cancelled_probe_makes_room_for_another(self, clock: Any) -> None:
        """After a cancelled probe another call may probe."""
        a, b = Scripted(down("a"), hang, "a is back"), Scripted("b")
        client, router = routed(a, b, clock=clock, allowed_failures=1)

        async def run() -> Any:
            await client.complete(REQUEST)
            clock.tick(5.0)
            probe = asyncio.create_task(client.complete(REQUEST))
            await reached(a, 2)
            probe.cancel()
            with pytest.raises(asyncio.CancelledError):
                await probe
            return await client.complete(REQUEST)

        assert asyncio.run(run())["choices"][0]["message"]["content"] == "a is back"
        seen = [(one.provider, one.success) for one in router.seen]
        assert seen == [("a", False), ("b", True), ("a", True)]
        assert client.stats()["a"].in_flight == 0

    def test_too_long_probes_make_room_for_another(self, clock: Any) -> None:
        """A probe that fails because the text is too long lets the next request probe."""
        long = ContextLengthError("too long", provider="a")
        client, router = routed(Scripted(down("a"), long, "a is back"), "b", clock=clock, allowed_failures=1)
        assert ask(client) == "b"
        clock.tick(5.0)
        assert ask(client) == "b"
        assert ask(client) == "a is back"
        assert router.seen[-1].recovered

    def test_probes_without_place_make_room(self, clock: Any) -> None:
        """A provider with no free place after its cooldown is skipped, and probed once a place is free."""
        gate = asyncio.Event()

        async def slow(_request: CompletionRequest) -> str:
            await gate.wait()
            return "a, slowly"

        a, b = Scripted(slow, down("a"), "a is back"), Scripted("b")
        client, _ = routed(Provider("a", a, concurrency=2), b, clock=clock, allowed_failures=1)

        async def run() -> None:
            first = asyncio.create_task(client.complete(REQUEST))
            await reached(a, 1)
            await client.complete(REQUEST)  # fails, and halves the places
            clock.tick(5.0)
            await client.complete(REQUEST)
            assert (a.calls, b.calls) == (2, 2)
            gate.set()
            await first
            await client.complete(REQUEST)
            assert (a.calls, b.calls) == (3, 2)

        asyncio.run(run())
        assert client.stats()["a"].cooling_seconds == 0.0

    def test_used_up_allowance_stays_inside(self, clock: Any) -> None:
        """A used-up allowance pauses its provider, and is not part of the returned completion."""
        headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"}
        spent = answered("a", cost=0.5) | {
            "_hidden_params": {"additional_headers": headers, "response_cost": 0.5}
        }
        a, b = Scripted(spent, "a again"), Scripted("b")
        client, _ = routed(a, b, clock=clock)
        found: Any = asyncio.run(client.complete(REQUEST))
        assert isinstance(found, Completion)
        assert (found.text, found.usage.cost) == ("a", 0.5)
        assert client.stats()["a"].cooling_seconds == 20.0
        assert ask(client) == "b"
        clock.tick(20.0)
        assert ask(client) == "a again"


class TestConcurrency:
    """Tests of concurrency: no provider has more calls in flight than its limit."""

    async def together(self, client: RoutedClient, count: int) -> None:
        """Make so many requests at the same time."""
        await asyncio.gather(*(client.complete(REQUEST) for _ in range(count)))

    def slow(self, text: str) -> Any:
        """Return a client that takes a few milliseconds."""

        async def answer(_request: CompletionRequest) -> str:
            await asyncio.sleep(0.005)
            return text

        return Scripted(answer)

    def test_a_declared_order_waits_for_a_full_provider(self) -> None:
        """A declared order waits for its full first provider, and the second one gets no call."""
        a, b = self.slow("a"), self.slow("b")
        client, _ = routed(Provider("a", a, concurrency=2), b, kind="declared")
        asyncio.run(self.together(client, 8))
        assert (a.calls, a.most_in_flight, b.calls) == (8, 2, 0)

    def test_learning_strategies_skip_full_providers(self) -> None:
        """A learning strategy skips a full provider, and waits for the first one if all are full."""
        a, b = self.slow("a"), self.slow("b")
        client, router = routed(Provider("a", a, concurrency=2), Provider("b", b, concurrency=3))
        asyncio.run(self.together(client, 9))
        assert (a.most_in_flight, b.most_in_flight, a.calls) == (2, 3, 6)
        assert (b.calls, len(router.seen)) == (3, 9)

    @pytest.mark.parametrize("failures", [1, 100])
    def test_full_providers_are_fallbacks_too(self, failures: int) -> None:
        """A request that waits for a full provider, which then fails, goes on to the next full one."""
        b = self.slow("b")
        client, _ = routed(
            Provider("a", Scripted(fails), concurrency=1),
            Provider("b", b, concurrency=1),
            allowed_failures=failures,
        )
        asyncio.run(self.together(client, 6))
        assert b.calls == 6

    def test_waiting_is_no_part_of_the_latency(self, clock: Any) -> None:
        """The latency does not include the time that a request waits for a free place."""
        a = Scripted("a", clock=clock, seconds=1.0)
        client, router = routed(Provider("a", a, concurrency=1), clock=clock, kind="declared")
        asyncio.run(self.together(client, 5))
        assert [seen.latency_seconds for seen in router.seen] == [1.0] * 5

    @pytest.mark.parametrize(("own", "most"), [({}, 2), ({"concurrency": 3}, 3)])
    def test_engines_get_no_more_calls_than_slots(self, clock: Any, own: dict[str, int], most: int) -> None:
        """The limit is the engine's `n_parallel` unless the user sets another."""
        engine = Scripted("a", clock=clock, seconds=1.0)
        engine.n_parallel = 2
        client, router = routed(Provider("a", engine, **own), clock=clock, kind="declared")
        asyncio.run(self.together(client, 7))
        assert engine.most_in_flight == most
        assert max(seen.latency_seconds for seen in router.seen) <= most

    def test_waiting_calls_leave_a_failed_provider(self, clock: Any) -> None:
        """Waiting requests go on to the next provider when the breaker opens."""
        a, b = Scripted(fails), Scripted("b")
        client, _ = routed(
            Provider("a", a, concurrency=1), b, kind="declared", allowed_failures=2, clock=clock
        )
        asyncio.run(self.together(client, 6))
        assert (a.calls, b.calls) == (2, 6)

    def test_cancelled_requests_free_their_places(self) -> None:
        """Cancelled requests free their places, whether they were running or waiting."""
        a = Scripted(hang, hang, "free")
        client, router = routed(Provider("a", a, concurrency=2), kind="declared")

        async def run() -> None:
            tasks = [asyncio.create_task(client.complete(REQUEST)) for _ in range(5)]
            await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.together(client, 3)

        asyncio.run(run())
        assert (a.calls, len(router.seen), client.stats()["a"].in_flight) == (5, 3, 0)

    def test_giving_up_waiting_is_no_recovery(self, clock: Any) -> None:
        """A request that gives up waiting does not raise the limit that an overload lowered."""
        release = asyncio.Event()

        async def overloaded(_request: CompletionRequest) -> ProviderError:
            await release.wait()
            return RateLimitError("too fast", provider="a", status=429, retryable=True)

        a = Scripted(overloaded)
        client, _ = routed(
            Provider("a", a, concurrency=4), "b", kind="declared", allowed_failures=1, clock=clock
        )

        async def run() -> None:
            tasks = [asyncio.create_task(client.complete(REQUEST)) for _ in range(12)]
            await asyncio.sleep(0.01)
            release.set()
            await asyncio.gather(*tasks)

        asyncio.run(run())
        assert (a.calls, client._members["a"]._gate.allowed) == (4, 2.0)

    def test_threads_with_loops_of_their_own_share_it(self) -> None:
        """Four threads with event loops of their own lose neither a place nor an observation."""
        a = self.slow("a")
        client, router = routed(Provider("a", a, concurrency=3), self.slow("b"), kind="declared")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: asyncio.run(self.together(client, 20)), range(4)))
        assert len(router.seen) == 80
        stats = client.stats()["a"]
        assert (stats.calls, stats.in_flight) == (80, 0)
        assert client._members["a"]._gate is not None
        assert client._members["a"]._gate._in_flight == 0
