"""Tests of the quality gate and the drift watch: answers compared with questions and with answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError, ProviderError
from calibrant.inference import CachedEmbedder, RoutedClient, open_embedder
from calibrant.inference.routed._assess import DriftWatch
from calibrant.routing import (
    BanditRouter,
    CascadeRouter,
    CoherenceMonitor,
    EMARouter,
    FixedRouter,
    QualityGate,
)
from routed_answers import DOWN, REQUEST, Scripted, Watched, ask, providers, vectors

TABLE = {"what purrs?": [1.0, 0.0], "near": [0.9, 0.1], "far": [0.0, 1.0], "farther": [-1.0, 0.5]}


async def idle(watch: Any) -> None:
    """Wait until every answer has been compared."""
    while watch._tasks:  # noqa: ASYNC110 (a few turns of the loop)
        await asyncio.sleep(0.001)


async def watched(client: RoutedClient, times: int) -> None:
    """Make requests, and wait after each until its answer has been compared."""
    for _ in range(times):
        await client.complete(REQUEST)
        await idle(client._drift)


class TestGate:
    """Tests of the gate: an answer unlike its question goes on to the next provider."""

    def client(self, *clients: Any, kind: Any = FixedRouter, embedder: Any = None, **options: Any) -> Any:
        """Return a client with a gate of 0.75, and the list of observations its router gets."""
        router = kind(list("abcdef"[: len(clients)]), **options)
        watched = Watched(router)
        gate = QualityGate(0.75)
        whole = RoutedClient(
            providers(*clients), router=router, gate=gate, embedder=embedder or vectors(TABLE)
        )
        return whole, watched.seen

    @pytest.mark.parametrize("kind", [FixedRouter, EMARouter], ids=["none", "ema"])
    def test_the_next_provider_is_asked(self, kind: Any) -> None:
        """A rejected answer goes on to the next provider, but its call counts as a success."""
        client, seen = self.client("far", "near", kind=kind)
        assert ask(client) == "near"
        assert [observation.success for observation in seen] == [True, True]
        assert (seen[0].quality, seen[1].quality) == (0.0, pytest.approx(0.9 / np.hypot(0.9, 0.1)))
        assert client.stats()["a"].escalations == 1

    def test_most_similar_answer_is_returned(self) -> None:
        """After the last provider the most similar answer is returned, here the first one."""
        client, _ = self.client("far", "farther")
        assert ask(client) == "far"

    @pytest.mark.parametrize(
        "embedder",
        [
            vectors({}),
            vectors({"what purrs?": [1.0, 0.0], "far": [1.0, 0.0, 0.0]}),
            vectors({"what purrs?": [1.0, 0.0], "far": [float("nan"), 0.0]}),
            vectors({"what purrs?": [0.0, 0.0], "far": [0.0, 1.0]}),
            CachedEmbedder(open_embedder(lambda _texts: time.sleep(0.3) or [[1.0]]), timeout_seconds=0.01),
        ],
        ids=["fails", "other size", "not a number", "zeros", "late"],
    )
    def test_it_fails_open(self, embedder: CachedEmbedder) -> None:
        """An answer that cannot be compared passes the gate."""
        other = Scripted("near")
        client, seen = self.client("far", other, embedder=embedder)
        assert ask(client) == "far"
        assert (other.calls, seen[0].quality) == (0, None)

    def test_nothing_is_embedded_where_there_is_one_provider(self) -> None:
        """An answer is not embedded if its provider is the only one, or the only one left."""
        embedded: list[str] = []

        def embed(texts: list[str]) -> list[list[float]]:
            embedded.extend(texts)
            return [[1.0, 0.0]] * len(texts)

        for clients in ([Scripted("far")], [Scripted(DOWN), Scripted("far")]):
            client, seen = self.client(*clients, embedder=CachedEmbedder(open_embedder(embed)))
            assert ask(client) == "far"
            assert seen[-1].quality is None
        assert embedded == []

    def test_it_is_refused_where_answers_are_judged_otherwise(self) -> None:
        """A gate beside a cascade or bandit, or without an embedder, raises ConfigurationError."""
        for router in (CascadeRouter(["a"]), BanditRouter(["a"])):
            with pytest.raises(ConfigurationError, match="no gate with the strategy"):
                RoutedClient(
                    providers("an answer"), router=router, gate=QualityGate(0.5), embedder=vectors({})
                )
        with pytest.raises(ConfigurationError, match="embedder for gate"):
            RoutedClient(providers("an answer"), router=FixedRouter(["a"]), gate=QualityGate(0.5))


class TestCoherence:
    """Tests of the drift watch: an answer unlike earlier ones adds a penalty to the next observation."""

    def build(self, embedder: CachedEmbedder, *script: Any) -> Any:
        """Return a client that compares answers, and the list of observations its router gets."""
        router = EMARouter(["a"])
        watched = Watched(router)
        whole = RoutedClient(
            providers(Scripted(*script)), router=router, coherence=CoherenceMonitor(), embedder=embedder
        )
        return whole, watched.seen

    def test_the_penalty_comes_with_the_next_observation(self) -> None:
        """The penalty of a drifting answer is part of the next observation, and only of that one."""
        table = {"usual": [1.0, 0.0], "odd": [0.0, 1.0]}
        client, seen = self.build(vectors(table), "usual", "usual", "odd", "usual", DOWN)

        async def run() -> None:
            await watched(client, 4)
            with pytest.raises(ProviderError):
                await client.complete(REQUEST)

        asyncio.run(run())
        assert [observation.penalty for observation in seen] == [0.0, 0.0, 0.0, 0.3, 0.0]

    def test_of_several_penalties_the_highest_counts_once(self) -> None:
        """Of several penalties between two observations the highest is returned, and only once."""
        table = {"usual": [1.0, 0.0], "odd": [0.0, 1.0], "half": [1.0, 1.2]}
        watch = DriftWatch(CoherenceMonitor(coherence_threshold=1.0), vectors(table))

        async def run() -> None:
            for text in ("usual", "odd", " ", "usual", "half"):
                watch.look_at("a", text)
                await idle(watch)

        asyncio.run(run())
        assert watch.penalty("a") == pytest.approx(0.3)
        assert watch.penalty("a") == 0.0

    def test_requests_do_not_wait_for_embeddings(self) -> None:
        """At most 64 comparisons are pending, and closing cancels them."""
        begun = asyncio.Event()

        async def hang(texts: list[str]) -> list[list[float]]:
            begun.set()
            await asyncio.sleep(60)
            return [[1.0]] * len(texts)

        embedder = CachedEmbedder(open_embedder(hang), timeout_seconds=60)
        client, seen = self.build(embedder, *map(str, range(200)))

        async def run() -> None:
            for _ in range(100):
                await client.complete(REQUEST)
            assert len(client._drift._tasks) == 64
            await begun.wait()
            client.close()
            await asyncio.sleep(0.01)
            assert not client._drift._tasks
            await client.complete(REQUEST)  # late: nothing is looked at any more
            assert not client._drift._tasks

        asyncio.run(run())
        assert len(seen) == 101

    @pytest.mark.parametrize(
        "embedder",
        [vectors({}), vectors({"usual": [1.0, 0.0], "odd": [1.0, 0.0, 0.0]})],
        ids=["fails", "size"],
    )
    def test_useless_embedders_cost_no_penalty(self, embedder: Any) -> None:
        """A failing embedder causes no penalty and no error."""
        client, seen = self.build(embedder, "usual", "odd", "usual")
        asyncio.run(watched(client, 3))
        assert [observation.penalty for observation in seen] == [0.0] * 3

    def test_loops_that_end_leave_nothing_behind(self) -> None:
        """A closed event loop ends its own comparison tasks."""
        client, seen = self.build(vectors({"usual": [1.0, 0.0]}), "usual")
        for _ in range(3):
            ask(client)
        client.close()
        assert not client._drift._tasks
        assert len(seen) == 3
