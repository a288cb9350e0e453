"""Tests of every strategy with three servers of different latency, price, errors and quality."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from calibrant.clients._openai_chat import OpenAIChatClient
from calibrant.core import CompletionRequest, RateLimitError
from calibrant.inference import (
    CachedEmbedder,
    Classifier,
    Provider,
    RetryPolicy,
    RoutedClient,
    SharedRouter,
    open_embedder,
)
from calibrant.inference._methods import ModelCalls
from calibrant.routing import BanditRouter, CascadeRouter, EMARouter, FixedRouter, Router, ThompsonRouter
from calibrant.store import PredictionCache, RouterState
from fault_server import FaultServer

LABELS = ["animals", "plants"]
NAMES = ["a", "b", "c"]
LOOP = "animals or plants or " * 15
GOOD = "A cat is an animal that purrs."
WRONG = "A cat is a plant that grows in the shade."


def saying(text: str) -> dict[str, Any]:
    """Return an answer with this text."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"choices": [choice], "usage": {"prompt_tokens": 20, "completion_tokens": 20}}


def asking(text: str, **options: Any) -> CompletionRequest:
    """Return a request about this text."""
    return CompletionRequest(messages=({"role": "user", "content": text},), top_logprobs=0, options=options)


class Servers:
    """Loopback servers, one per provider, and the clients that ask them."""

    def __init__(self, *profiles: dict[str, Any]) -> None:
        self.prices = [profile.pop("price", None) for profile in profiles]
        self.servers = [FaultServer(LABELS, **profile) for profile in profiles]
        self.clients: list[OpenAIChatClient] = []

    def open(self, server: FaultServer, price: float | None = None) -> OpenAIChatClient:
        """Return a client of one server."""
        prices = {} if price is None else {"input_cost_per_token": price, "output_cost_per_token": price}
        client = OpenAIChatClient("openai/m", api_base=server.api_base, api_key="k", timeout=2.0, **prices)
        self.clients.append(client)
        return client

    def routed(self, router: Router, *, concurrency: int | None = None, **options: Any) -> RoutedClient:
        """Return a routed client of the first three servers."""
        providers = [
            Provider(name, self.open(server, price), concurrency=concurrency)
            for name, server, price in zip(NAMES, self.servers, self.prices, strict=False)
        ]
        return RoutedClient(providers, router=router, **options)

    def stop(self) -> None:
        """Close all clients and stop all servers."""
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop()


@contextlib.contextmanager
def serving(*profiles: dict[str, Any]) -> Iterator[Servers]:
    """Run servers until the block ends."""
    servers = Servers(*profiles)
    try:
        for server in servers.servers:
            server.start()
        yield servers
    finally:
        servers.stop()


def text_of(response: Any) -> str:
    """Return an answer's text."""
    return str(getattr(response, "text", None) or response["choices"][0]["message"]["content"])


def answerers(client: RoutedClient, texts: Sequence[str], **options: Any) -> list[str]:
    """Return the provider that answered each text; failed requests are repeated."""
    found = []
    calls = ModelCalls(policy=RetryPolicy(initial_seconds=0.001))
    for text in texts:
        before = client.stats()
        asyncio.run(calls.complete(client, asking(text, **options)))
        after = client.stats()
        good = {
            name: (after[name].calls - after[name].failures) - (before[name].calls - before[name].failures)
            for name in after
        }
        found.append(max(good, key=lambda name: good[name]))
    return found


def texts(count: int) -> list[str]:
    """Return different texts."""
    return [f"text {number} about animals" for number in range(count)]


def share(found: Sequence[str], name: str, last: int = 20) -> float:
    """Return a provider's share of the last answers."""
    return Counter(found[-last:])[name] / last


# The first one fails half of the time, the second sometimes and is slow; the third is the right one.
UNEQUAL: tuple[dict[str, Any], ...] = (
    {"latency": 0.002, "faults": {"503": 0.5}, "seed": 1},
    {"latency": 0.025, "faults": {"500": 0.15}, "seed": 2},
    {"latency": 0.002},
)


class TestEveryStrategyFindsTheRightOne:
    """Tests of every strategy: most of the last requests go to the best provider."""

    def test_ema_finds_the_fast_and_reliable_one(self) -> None:
        """Moving averages settle on the fast and reliable provider."""
        with serving(*UNEQUAL) as servers:
            router = EMARouter(NAMES, alpha=0.2, reorder_interval=5)
            client = servers.routed(router, cooldown_seconds=0.02)
            assert share(answerers(client, texts(70)), "c") >= 0.9

    def test_ema_gets_to_know_every_provider(self) -> None:
        """Moving averages call every provider once, even if the first one always answers."""
        with serving({"latency": 0.6}, {"latency": 0.4}, {}) as servers:
            router = EMARouter(NAMES, reorder_interval=4)
            client = servers.routed(router)
            assert answerers(client, texts(12)) == ["a", "b", "c", "a"] + ["c"] * 8
            again = servers.routed(router)  # which knows them all
            assert answerers(again, texts(5)) == ["c"] * 5

    def test_thompson_finds_the_reliable_one(self) -> None:
        """Thompson sampling sends most of the last requests to the reliable provider."""
        with serving(*UNEQUAL) as servers:
            client = servers.routed(ThompsonRouter(NAMES, rng=3), cooldown_seconds=0.02)
            assert share(answerers(client, texts(120)), "c", 40) >= 0.7

    def test_a_cascade_finds_the_cheapest_good_one(self) -> None:
        """A cascade escalates the cheapest provider's bad answers to the cheapest good provider."""
        profiles = (
            {"price": 1e-3, "answers": lambda _: saying(GOOD)},
            {"price": 1e-5, "answers": lambda _: saying(LOOP)},
            {"price": 1e-4, "answers": lambda _: saying(GOOD)},
        )
        with serving(*profiles) as servers:
            costs = dict(zip(NAMES, servers.prices, strict=True))
            client = servers.routed(CascadeRouter(NAMES, costs=costs))
            found = [asyncio.run(client.complete(asking(text))) for text in texts(10)]
            stats = client.stats()
        assert {text_of(response) for response in found} == {GOOD}
        assert (stats["a"].calls, stats["b"].escalations, stats["c"].calls) == (0, 10, 10)
        assert stats["b"].cost == pytest.approx(10 * 40 * 1e-5)
        assert stats["c"].cost == pytest.approx(10 * 40 * 1e-4)
        paid: Any = found[0]
        assert paid.usage.cost == pytest.approx(40 * 1.1e-4)

    def test_a_bandit_finds_providers_by_kind(self) -> None:
        """The bandit learns which of two providers answers each of two kinds of texts well."""

        def good_at(word: str) -> Any:
            return lambda text: saying(GOOD if word in text else LOOP)

        profiles = (
            {"price": 1e-4, "answers": good_at("python")},
            {"price": 1e-4, "answers": good_at("garden")},
            {"price": 1e-3, "faults": {"500": 0.8}, "answers": lambda _: saying(GOOD)},
        )
        asked = [
            text
            for number in range(50)
            for text in (
                f"write python code function {number % 7} class",
                f"my garden has roses and tulips number {number % 5}",
            )
        ]
        with serving(*profiles) as servers:
            embedder = CachedEmbedder(open_embedder(dim=32), timeout_seconds=10.0)
            client = servers.routed(
                BanditRouter(NAMES, dim=32, alpha=0.3), embedder=embedder, cooldown_seconds=0.01
            )
            found = answerers(client, asked)
            client.close()
        right = [name == wanted for name, wanted in zip(found, itertools.cycle("ab"), strict=False)]
        assert sum(right[-40:]) >= 34


class TestAnOutage:
    """Tests of an outage: a stopped server gets no calls, and gets calls again after its restart."""

    @pytest.mark.parametrize(
        ("kind", "options"),
        [(EMARouter, {"reorder_interval": 1}), (ThompsonRouter, {"rng": 5})],
        ids=["ema", "thompson"],
    )
    def test_it_is_dropped_and_taken_back(self, kind: Any, options: dict[str, Any]) -> None:
        """A stopped provider answers nothing and gets few calls, and most requests after its restart."""
        flaky: dict[str, Any] = {
            "latency": 0.005,
            "faults": lambda number, _: (None, None, "503")[number % 3],
        }
        with serving({}, flaky, flaky) as servers:
            client = servers.routed(kind(NAMES, **options), cooldown_seconds=0.05)
            assert share(answerers(client, texts(50)), "a", 10) >= 0.6
            servers.servers[0].stop()
            before = client.stats()["a"].calls
            away = answerers(client, texts(25))
            asked_in_vain = client.stats()["a"].calls - before
            assert "a" not in away
            assert 3 <= asked_in_vain <= 15
            servers.servers[0].start()
            time.sleep(min(0.5, client.stats()["a"].cooling_seconds))
            back = answerers(client, texts(30))
            assert share(back, "a", 15) >= 0.6
            assert client.stats()["a"].cooling_seconds == 0.0

    def test_a_rate_limit_is_kept_to_the_second(self) -> None:
        """A rate-limited provider gets no call before its time is over, and then comes first again."""
        with serving({"faults": ["rate_limit:0.3"]}, {}, {}) as servers:
            client = servers.routed(FixedRouter(NAMES))
            found = answerers(client, ["animals"])
            while client.stats()["a"].cooling_seconds > 0.1:
                found += answerers(client, ["animals"])
            assert set(found) == {"b"}
            assert client.stats()["a"].calls == client.stats()["a"].rate_limits == 1
            while client.stats()["a"].cooling_seconds > 0.0:
                time.sleep(0.01)
            assert answerers(client, ["animals"]) == ["a"]

    def test_all_rate_limits_name_the_wait(self) -> None:
        """If all providers are rate limited, the error's `retry_after` lets a classifier keep every row."""
        limits: dict[str, Any] = {"faults": ["rate_limit:0.1"]}
        with serving(limits, limits, limits) as servers:
            client = servers.routed(ThompsonRouter(NAMES, rng=0))
            with pytest.raises(RateLimitError) as caught:
                asyncio.run(client.complete(asking("animals")))
            assert caught.value.retry_after == pytest.approx(0.1)
            classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=4)
            rows = classifier.classify_many(texts(12))
            assert {row.label for row in rows} == {"animals"}

    @pytest.mark.parametrize("fault", ["reset_after_headers", "truncated", "html", "empty_choices", "hang"])
    def test_broken_answers_of_every_kind_are_failures(self, fault: str) -> None:
        """Every kind of broken answer counts as a failure, and another provider answers."""
        with serving({"faults": [fault] * 50}, {}, {}) as servers:
            router = ThompsonRouter(NAMES, rng=2)
            client = servers.routed(router, call_seconds=0.5, allowed_failures=50)
            assert set(answerers(client, texts(12))) == {"b", "c"}
            standing = {found.provider: found.values for found in router.standings()}
        assert standing["a"]["alpha"] == 1.0
        assert standing["a"]["beta"] > 1.0


class TestThroughAClassifier:
    """Tests of routed clients in a classifier: concurrency, the cache and stored state."""

    def test_labels_survive_faults_and_concurrency(self) -> None:
        """Despite faults every row gets its label, and no server has more than 3 calls in flight."""
        unruly = ({"faults": {"503": 0.3, "truncated": 0.1}}, {"faults": {"rate_limit:0.01": 0.2}}, {})
        profiles: list[dict[str, Any]] = [
            {"latency": 0.003, "seed": number, **profile} for number, profile in enumerate(unruly)
        ]
        with serving(*profiles) as servers:
            client = servers.routed(ThompsonRouter(NAMES, rng=0), concurrency=3, cooldown_seconds=0.02)
            retry = RetryPolicy(initial_seconds=0.01)
            classifier = Classifier(model=client, labels=LABELS, field="category", concurrency=9, retry=retry)
            asked = [f"{number} {LABELS[number % 2]}" for number in range(150)]
            rows = classifier.classify_many(asked)
            assert [row.label for row in rows] == [LABELS[number % 2] for number in range(150)]
            assert all(server.max_in_flight <= 3 for server in servers.servers)
            assert sum(server.max_in_flight for server in servers.servers) > 3
            assert all(found.in_flight == 0 for found in client.stats().values())

    def test_a_cache_answers_the_second_run(self, tmp_path: Path) -> None:
        """A second client of the same providers answers all rows from the cache without a call."""
        place = f"sqlite:///{tmp_path / 'cache.sqlite'}"
        with serving({"faults": {"503": 0.5}}, {}, {}) as servers:
            first = []
            for number in range(2):
                client = servers.routed(ThompsonRouter(NAMES, rng=number), cooldown_seconds=0.01)
                cache = PredictionCache(place)
                classifier = Classifier(model=client, labels=LABELS, field="category", journal=cache)
                rows = classifier.classify_many(texts(20))
                cache.close()
                first.append([(row.label, row.confidence) for row in rows])
                asked = sum(found.calls for found in client.stats().values())
            assert first[0] == first[1]
            assert asked == 0

    def test_what_was_learnt_is_there_the_next_time(self, tmp_path: Path) -> None:
        """A second client begins with the stored state and calls the failing providers 3 times at most."""
        place = tmp_path / "router.sqlite"
        with serving({"faults": ["500"] * 1000}, {"faults": ["500"] * 1000}, {}) as servers:
            for rounds in (40, 10):
                router = SharedRouter(ThompsonRouter(NAMES, rng=1), RouterState(str(place)))
                client = servers.routed(router, allowed_failures=1000)
                answerers(client, texts(rounds))
                failures = client.stats()["a"].failures + client.stats()["b"].failures
                client.close()
        assert failures <= 3
