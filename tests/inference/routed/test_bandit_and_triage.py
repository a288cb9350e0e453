"""What is found out about a request before it is sent, and what is learnt of it, at once or later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from calibrant.core import (
    Completion,
    CompletionRequest,
    ConfigurationError,
)
from calibrant.inference import RoutedClient
from calibrant.inference._embeddings import CallableEmbedder, HashingEmbedder
from calibrant.inference.routed._rewards import Pending
from calibrant.routing import (
    BanditRouter,
    FixedRouter,
    Observation,
    TriageRouter,
)
from routed_answers import DOWN, GOOD, LOOP, REQUEST, TOOLS, Watched, providers, vectors

TABLE = {"what purrs?": [1.0, 0.0], "what barks?": [0.0, 1.0]}

TIERS = {"simple": "a", "complex": "b"}


class TestBandit:
    """The embedding that decided is what the outcome is learnt with."""

    def client(self, *clients: Any, embedder: Any = None, **options: Any) -> Any:
        """Return a bandit of two dimensions and what it is told."""
        router = BanditRouter(list("abcdef"[: len(clients)]), dim=2, alpha=0.3)
        watched = Watched(router)
        whole = RoutedClient(
            providers(*clients), router=router, embedder=embedder or vectors(TABLE, dim=2), **options
        )
        return whole, watched.seen

    def test_quality_cost_and_context_are_learnt(self, scripted: Any, ask: Any, answered: Any) -> None:
        """The heuristic says what an answer is worth, unless a function does."""
        client, seen = self.client(scripted(answered(LOOP, cost=0.5)))
        ask(client)
        assert seen[0].quality is not None
        assert seen[0].quality < 0.5
        assert seen[0].cost == 0.5
        assert seen[0].context is not None
        assert seen[0].context.tolist() == [1.0, 0.0]
        client, seen = self.client(scripted(LOOP), quality=lambda _completion: 0.75)
        ask(client)
        assert seen[0].quality == 0.75

    def test_it_learns_who_is_good_at_what(self, scripted: Any, ask: Any) -> None:
        """By the text, with failures counted as such."""

        def expert(word: str) -> Any:
            async def answer(request: CompletionRequest) -> str:
                return GOOD if word in request.messages[-1]["content"] else LOOP

            return answer

        client, _ = self.client(scripted(expert("purrs")), scripted(expert("barks")), scripted(DOWN))
        texts = ["what purrs?", "what barks?"] * 10
        answers = [ask(client, text) for text in texts]
        assert answers[-8:] == [GOOD] * 8

    @pytest.mark.parametrize(
        "embedder",
        [vectors({}, dim=2), vectors({"what purrs?": [1.0]}, dim=2)],
        ids=["fails", "too short"],
    )
    def test_a_request_that_cannot_be_embedded_trains_nothing(
        self, scripted: Any, ask: Any, embedder: Any
    ) -> None:
        """It is answered all the same."""
        client, seen = self.client(scripted(GOOD), embedder=embedder)
        assert ask(client) == GOOD
        assert seen[0].context is None
        assert client.router.standings()[0].observations == 0

    def test_an_embedder_is_wrapped_and_one_that_is_too_small_is_told(self, scripted: Any, ask: Any) -> None:
        """An embedder by itself is remembered and timed like any other."""
        client, seen = self.client(scripted(GOOD), embedder=HashingEmbedder(dim=8))
        assert ask(client) == GOOD
        assert seen[0].context is not None
        client.close()
        client, _ = self.client(scripted(GOOD), embedder=CallableEmbedder(lambda texts: [[1.0]] * len(texts)))
        with pytest.raises(ConfigurationError, match="at least 2 numbers"):
            ask(client)

    def test_it_needs_an_embedder(self, scripted: Any) -> None:
        """Without one every request would look alike."""
        with pytest.raises(ConfigurationError, match="embedder for the strategy 'bandit'"):
            RoutedClient(providers(scripted()), router=BanditRouter(["a"]))

    def test_a_quality_function_may_fail(
        self, scripted: Any, ask: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One warning; such an answer teaches nothing."""
        found = iter([ZeroDivisionError("oops"), float("nan"), 7, True, None, 0.5])

        def quality(_completion: Completion) -> Any:
            given = next(found)
            if isinstance(given, Exception):
                raise given
            return given

        client, seen = self.client(scripted(GOOD), quality=quality)
        for _ in range(6):
            assert ask(client) == GOOD
        assert [observation.quality for observation in seen] == [None] * 5 + [0.5]
        assert len(caplog.records) == 1

    def test_requests_with_tools_are_not_judged(self, scripted: Any) -> None:
        """An answer without text is none of their faults."""
        response = {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}
        client, seen = self.client(scripted(response))
        request = CompletionRequest(messages=REQUEST.messages, options=TOOLS)
        assert asyncio.run(client.complete(request)) is response
        assert seen[0].quality is None


class TestDelayedRewards:
    """What an answer was worth is told when it is known."""

    def client(self, scripted: Any, **options: Any) -> Any:
        """Return a bandit that waits for rewards, and what it is told."""
        router = BanditRouter(["a", "b"], dim=2)
        watched = Watched(router)
        table = {f"text {number}": [1.0, float(number)] for number in range(50)}
        whole = RoutedClient(
            providers(scripted(GOOD), scripted(GOOD), cost=0.5),
            router=router,
            embedder=vectors(table, dim=2),
            delayed=True,
            **options,
        )
        return whole, watched.seen

    def test_a_reward_is_learnt_with_the_context_of_its_request(self, scripted: Any, ask: Any) -> None:
        """By its text or its messages; until then nothing is learnt, afterwards it is forgotten."""
        client, seen = self.client(scripted)
        ask(client, "text 3")
        assert seen[0].quality is None
        assert sum(found.observations for found in client.router.standings()) == 0
        assert client.reward("text 3", 0.9) == 1
        assert (seen[1].quality, seen[1].cost, seen[1].provider) == (0.9, 0.5, seen[0].provider)
        assert seen[1].context is seen[0].context
        assert sum(found.observations for found in client.router.standings()) == 1
        assert client.reward("text 3", 0.9) == 0
        ask(client, "text 4")
        messages = ({"role": "system", "content": "x"}, {"role": "user", "content": "text 4"})
        assert client.reward(messages, 0.1) == 1

    def test_every_answer_to_a_text_is_rewarded(self, scripted: Any, ask: Any) -> None:
        """As when it is sampled."""
        client, _ = self.client(scripted)
        for _ in range(3):
            ask(client, "text 1")
        ask(client, "text 2")
        assert client.reward("text 1", 1.0) == 3
        assert client.reward("text 2", 1.0) == 1

    def test_the_oldest_texts_are_forgotten(self, scripted: Any, ask: Any) -> None:
        """Memory is bounded, by texts and by answers to each."""
        client, _ = self.client(scripted)
        client._pending._most = 2
        for number in (1, 2, 1, 3):
            ask(client, f"text {number}")
        assert [client.reward(f"text {number}", 1.0) for number in (1, 2, 3)] == [2, 0, 1]
        for _ in range(40):
            ask(client, "text 5")
        assert client.reward("text 5", 1.0) == 32

    def test_an_answer_that_was_not_embedded_waits_for_nothing(self, scripted: Any, ask: Any) -> None:
        """It could not be learnt from."""
        client, seen = self.client(scripted)
        ask(client, "a text that the embedder does not know")
        assert client.reward("a text that the embedder does not know", 1.0) == 0
        assert len(seen) == 1

    def test_what_comes_only_once_is_not_told_again_with_the_reward(self) -> None:
        """A recovery and a penalty were learnt with the answer."""
        pending = Pending()
        answer = Observation(provider="a", success=True, latency_seconds=1.0, penalty=0.2, recovered=True)
        pending.put("text", answer)
        (told,) = pending.take("text", 0.5)
        assert (told.quality, told.penalty, told.recovered) == (0.5, 0.0, False)

    @pytest.mark.parametrize("quality", [-0.1, 1.1, float("nan")])
    def test_a_reward_out_of_range_is_refused(self, scripted: Any, ask: Any, quality: float) -> None:
        """And can be told again."""
        client, _ = self.client(scripted)
        ask(client, "text 1")
        with pytest.raises(ConfigurationError, match=r"quality in \[0, 1\]"):
            client.reward("text 1", quality)
        assert client.reward("text 1", 0.5) == 1

    def test_only_a_bandit_that_waits_takes_rewards(self, scripted: Any) -> None:
        """Others have learnt already."""
        client = RoutedClient(providers(scripted()), router=FixedRouter(["a"]))
        with pytest.raises(ConfigurationError, match="delayed=True"):
            client.reward("text", 1.0)


class TestTriage:
    """A small model says how hard a request is, and gets five seconds."""

    def client(self, triage: Any, *clients: Any, **options: Any) -> Any:
        """Return a client of two tiers."""
        router = TriageRouter(["a", "b"], tiers=TIERS)
        return RoutedClient(providers(*clients), router=router, triage=triage, **options)

    @pytest.mark.parametrize(
        ("reply", "answer"),
        [('{"tier": "simple"}', "a"), ('{"tier": "medium"}', "b"), ("**expert**", "b"), ("no idea", "a")],
    )
    def test_requests_go_to_the_provider_of_their_tier(
        self, scripted: Any, ask: Any, reply: str, answer: str
    ) -> None:
        """A tier without one to the next harder, an unknown one to the easiest."""
        triage = scripted(reply)
        client = self.client(triage, scripted("a"), scripted("b"))
        assert ask(client) == answer
        assert "what purrs?" in triage.requests[0].messages[-1]["content"]

    @pytest.mark.parametrize(
        "failure", [DOWN, ConfigurationError("no such schema"), {"choices": []}, "hang"], ids=str
    )
    def test_a_triage_model_that_fails_or_is_late_does_not_hold_requests_up(
        self, scripted: Any, ask: Any, failure: Any
    ) -> None:
        """They go to the easiest tier; after three failures it is left alone for a while."""

        async def hang(_request: CompletionRequest) -> str:
            await asyncio.sleep(60)
            return '{"tier": "expert"}'

        triage = scripted(hang if failure == "hang" else failure)
        client = self.client(triage, scripted("a"), scripted("b"), helper_seconds=0.01)
        for _ in range(5):
            assert ask(client) == "a"
        assert triage.calls == 3
        assert client.helper_stats()["triage"].failures == 3
        standing = {found.provider: found.values for found in client.router.standings()}
        assert standing["a"]["untriaged"] == 5

    def test_what_it_takes_is_paid_for(self, scripted: Any, answered: Any) -> None:
        """In the answer's usage."""
        triage = scripted(answered('{"tier": "simple"}', cost=0.25))
        client = self.client(triage, scripted(answered("a", cost=1.0)), scripted())
        found: Any = asyncio.run(client.complete(REQUEST))
        assert found.usage.cost == 1.25
        assert client.helper_stats()["triage"].usage.cost == 0.25

    def test_a_request_with_tools_keeps_its_response(self, scripted: Any, answered: Any) -> None:
        """A tool call would be lost otherwise."""
        response = {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}
        client = self.client(
            scripted(answered('{"tier": "simple"}', cost=0.25)), scripted(response), scripted()
        )
        request = CompletionRequest(messages=REQUEST.messages, options=TOOLS)
        assert asyncio.run(client.complete(request)) is response

    def test_an_empty_text_is_not_sorted(self, scripted: Any, ask: Any) -> None:
        """There is nothing to see."""
        triage = scripted('{"tier": "complex"}')
        client = self.client(triage, scripted("a"), scripted("b"))
        assert ask(client, " ") == "a"
        assert triage.calls == 0

    def test_the_tiers_provider_has_fallbacks(self, scripted: Any, ask: Any) -> None:
        """Those of the other tiers."""
        client = self.client(scripted('{"tier": "complex"}'), scripted("a"), scripted(DOWN))
        assert ask(client) == "a"

    def test_it_must_be_there_if_and_only_if_it_is_asked(self, scripted: Any) -> None:
        """As a judge."""
        with pytest.raises(ConfigurationError, match="a client as triage"):
            self.client(None, scripted(), scripted())
        with pytest.raises(ConfigurationError, match="no triage"):
            RoutedClient(providers(scripted()), router=FixedRouter(["a"]), triage=scripted())

    def test_cancelling_a_request_that_is_being_sorted_leaves_no_trace(self, scripted: Any) -> None:
        """Nor does it count against the model."""

        async def hang(_request: CompletionRequest) -> str:
            await asyncio.sleep(60)
            return "late"

        client = self.client(scripted(hang), scripted("a"), scripted("b"))

        async def run() -> None:
            for _ in range(5):
                task = asyncio.create_task(client.complete(REQUEST))
                await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(run())
        assert client.helper_stats()["triage"].calls == 0
