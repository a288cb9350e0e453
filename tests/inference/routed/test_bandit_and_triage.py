"""Tests of routed clients with a bandit, which embeds requests, and with triage, which grades them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from calibrant.core import Completion, CompletionRequest, ConfigurationError
from calibrant.inference import RoutedClient, open_embedder
from calibrant.routing import BanditRouter, FixedRouter, TriageRouter
from routed_answers import (
    DOWN,
    GOOD,
    LOOP,
    REQUEST,
    TOOLS,
    Scripted,
    Watched,
    answered,
    ask,
    hang,
    providers,
    vectors,
)

TABLE = {"what purrs?": [1.0, 0.0], "what barks?": [0.0, 1.0]}

TIERS = {"simple": "a", "complex": "b"}


class TestBandit:
    """Tests of a bandit: the embedding that chose the provider is part of the observation."""

    def client(self, *clients: Any, embedder: Any = None, **options: Any) -> Any:
        """Return a client with a two-dimensional bandit, and the list of observations its router gets."""
        router = BanditRouter(list("abcdef"[: len(clients)]), dim=2, alpha=0.3)
        watched = Watched(router)
        whole = RoutedClient(
            providers(*clients), router=router, embedder=embedder or vectors(TABLE, dim=2), **options
        )
        return whole, watched.seen

    def test_quality_cost_and_context_are_learnt(self) -> None:
        """The observation holds cost, embedding and quality, from the heuristic or the user's function."""
        client, seen = self.client(answered(LOOP, cost=0.5))
        ask(client)
        assert seen[0].quality is not None
        assert seen[0].quality < 0.5
        assert seen[0].cost == 0.5
        assert seen[0].context is not None
        assert seen[0].context.tolist() == [1.0, 0.0]
        client, seen = self.client(LOOP, quality=lambda _completion: 0.75)
        ask(client)
        assert seen[0].quality == 0.75

    @pytest.mark.parametrize(
        "embedder",
        [vectors({}, dim=2), vectors({"what purrs?": [1.0]}, dim=2)],
        ids=["fails", "too short"],
    )
    def test_a_request_that_cannot_be_embedded_trains_nothing(self, embedder: Any) -> None:
        """A request whose embedding fails is answered, and the bandit learns nothing from it."""
        client, seen = self.client(GOOD, embedder=embedder)
        assert ask(client) == GOOD
        assert seen[0].context is None
        assert client.router.standings()[0].observations == 0

    def test_embedders_are_wrapped_and_checked(self) -> None:
        """A plain embedder gets a cache and a time limit; vectors that are too short raise ConfigurationError."""
        client, seen = self.client(GOOD, embedder=open_embedder(dim=8))
        assert ask(client) == GOOD
        assert seen[0].context is not None
        client.close()
        client, _ = self.client(GOOD, embedder=open_embedder(lambda texts: [[1.0]] * len(texts)))
        with pytest.raises(ConfigurationError, match="at least 2 numbers"):
            ask(client)

    def test_it_needs_an_embedder(self) -> None:
        """A bandit without an embedder raises ConfigurationError."""
        with pytest.raises(ConfigurationError, match="embedder for the strategy 'bandit'"):
            RoutedClient(providers("an answer"), router=BanditRouter(["a"]))

    def test_a_quality_function_may_fail(self, caplog: pytest.LogCaptureFixture) -> None:
        """A failing or invalid quality function logs one warning, and its answers get the quality None."""
        found = iter([ZeroDivisionError("oops"), float("nan"), 7, True, None, 0.5])

        def quality(_completion: Completion) -> Any:
            given = next(found)
            if isinstance(given, Exception):
                raise given
            return given

        client, seen = self.client(GOOD, quality=quality)
        for _ in range(6):
            assert ask(client) == GOOD
        assert [observation.quality for observation in seen] == [None] * 5 + [0.5]
        assert len(caplog.records) == 1


class TestTriage:
    """Tests of triage: a small model grades the difficulty of a request within a time limit."""

    def client(self, triage: Any, *clients: Any, **options: Any) -> Any:
        """Return a client of two tiers."""
        router = TriageRouter(["a", "b"], tiers=TIERS)
        return RoutedClient(providers(*clients), router=router, triage=triage, **options)

    @pytest.mark.parametrize(
        ("reply", "answer"),
        [('{"tier": "simple"}', "a"), ('{"tier": "medium"}', "b"), ("**expert**", "b"), ("no idea", "a")],
    )
    def test_requests_go_to_the_provider_of_their_tier(self, reply: str, answer: str) -> None:
        """A tier without a provider goes to the next harder tier, and an unknown tier to the easiest."""
        triage = Scripted(reply)
        client = self.client(triage, "a", "b")
        assert ask(client) == answer
        assert "what purrs?" in triage.requests[0].messages[-1]["content"]

    @pytest.mark.parametrize(
        "failure", [DOWN, ConfigurationError("no such schema"), {"choices": []}, "hang"], ids=str
    )
    def test_failing_triage_does_not_delay_requests(self, failure: Any) -> None:
        """After a failed triage a request goes to the easiest tier; three failures pause triage."""
        triage = Scripted(hang if failure == "hang" else failure)
        client = self.client(triage, "a", "b", helper_seconds=0.01)
        for _ in range(5):
            assert ask(client) == "a"
        assert (triage.calls, client.helper_stats()["triage"].failures) == (3, 3)
        standing = {found.provider: found.values for found in client.router.standings()}
        assert standing["a"]["untriaged"] == 5

    def test_what_it_takes_is_paid_for(self) -> None:
        """The answer's usage contains the cost of triage."""
        triage = Scripted(answered('{"tier": "simple"}', cost=0.25))
        client = self.client(triage, answered("a", cost=1.0), "an answer")
        found: Any = asyncio.run(client.complete(REQUEST))
        assert found.usage.cost == 1.25
        assert client.helper_stats()["triage"].usage.cost == 0.25

    def test_a_request_with_tools_keeps_its_response(self) -> None:
        """A request with tools returns the provider's response unchanged."""
        response = {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}
        client = self.client(Scripted(answered('{"tier": "simple"}', cost=0.25)), response, "an answer")
        request = CompletionRequest(messages=REQUEST.messages, options=TOOLS)
        assert asyncio.run(client.complete(request)) is response

    def test_an_empty_text_is_not_sorted(self) -> None:
        """An empty text causes no triage call."""
        triage = Scripted('{"tier": "complex"}')
        client = self.client(triage, "a", "b")
        assert ask(client, " ") == "a"
        assert triage.calls == 0

    def test_the_tiers_provider_has_fallbacks(self) -> None:
        """If the provider of a tier fails, a provider of another tier answers."""
        client = self.client(Scripted('{"tier": "complex"}'), "a", DOWN)
        assert ask(client) == "a"

    def test_helpers_exist_only_if_used(self) -> None:
        """A missing or an unused triage client raises ConfigurationError."""
        with pytest.raises(ConfigurationError, match="a client as triage"):
            self.client(None, "an answer", "an answer")
        with pytest.raises(ConfigurationError, match="no triage"):
            RoutedClient(providers("an answer"), router=FixedRouter(["a"]), triage=Scripted())

    def test_cancelled_triage_leaves_no_trace(self) -> None:
        """A cancelled triage call counts neither as a call nor as a failure."""
        client = self.client(Scripted(hang), "a", "b")

        async def run() -> None:
            for _ in range(5):
                task = asyncio.create_task(client.complete(REQUEST))
                await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(run())
        assert client.helper_stats()["triage"].calls == 0
