"""Tests of routed clients in classifiers, caches and cascades, and of their construction and closing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import AvgLogprob, Cascade
from calibrant.core import (
    CalibrantError,
    Client,
    CompletionRequest,
    ConfigurationError,
    Limits,
    LogprobSpace,
    ProviderError,
)
from calibrant.inference import Classifier, Provider, RetryPolicy, RoutedClient, SharedRouter
from calibrant.logprobs import read_completion
from calibrant.routing import FixedRouter, Router, ThompsonRouter
from calibrant.store import RouterState
from calibrant.testing import FakeClient, MemoryJournal
from routed_answers import Scripted, ask, down, providers, routed


class TestWhereverAClientIs:
    """Tests of routed clients in classifiers, caches and cascades."""

    LABELS = ("cat", "dog")

    @pytest.fixture
    def pair(self) -> Callable[..., tuple[RoutedClient, FakeClient, FakeClient]]:
        """Return a factory of routed clients whose first provider always fails."""

        def made(**options: Any) -> tuple[RoutedClient, FakeClient, FakeClient]:
            dead = FakeClient(self.LABELS, lambda _text: down("a"), name="a")
            rule = {"purr": ("cat", 0.9), "bark": ("dog", 0.8)}
            alive = FakeClient(self.LABELS, rule, name="b", **options)
            client, _ = routed(dead, alive)
            return client, dead, alive

        return made

    def test_it_is_a_client_and_no_more(self, pair: Any) -> None:
        """A routed client satisfies the protocol of clients, but offers no next tokens."""
        client, *_ = pair()
        assert isinstance(client, Client)
        assert not hasattr(client, "continuing")

    def test_rows_are_classified_with_their_confidence(self, pair: Any) -> None:
        """Labels and confidence equal those of the provider alone."""
        client, dead, alive = pair()
        texts = [f"{number} {sound}" for number in range(30) for sound in ("purr", "bark")]
        options: dict[str, Any] = {"labels": self.LABELS, "field": "category", "prompt": "Which?"}
        found = Classifier(model=client, concurrency=8, **options).classify_many(texts)
        alone = Classifier(model=alive, **options).classify_many(texts)
        assert [row.label for row in found] == [row.label for row in alone]
        assert [row.confidence for row in found] == [row.confidence for row in alone]
        assert len(dead.requests) < 20

    def test_stored_predictions_stay_valid(self, pair: Any) -> None:
        """Another routed client of the same providers gets the stored predictions without a call."""
        client, _, alive = pair()
        journal = MemoryJournal()
        options: dict[str, Any] = {"labels": self.LABELS, "field": "category", "journal": journal}
        first = Classifier(model=client, **options).classify_many(["a purr", "a bark"])
        calls = len(alive.requests)
        again, *_ = pair()
        second = Classifier(model=again, **options).classify_many(["a purr", "a bark"])
        assert [row.label for row in first] == [row.label for row in second]
        assert [row.attempts for row in second] == [0, 0]
        assert len(alive.requests) == calls

    def test_its_identity_holds_what_can_change_an_answer(self) -> None:
        """Models, addresses and options count; credentials, concurrency and price do not."""

        def identity(name: str = "gpt", address: str = "http://a/v1", **options: Any) -> tuple[str, str]:
            inner = Scripted(name=name)
            inner.endpoint = address
            client, _ = routed(Provider("a", inner, **options))
            return client.name, client.endpoint

        plain = identity()
        assert plain[0] == "routed:recording(a)"
        assert json.loads(plain[1]) == [["a", "gpt", "http://a/v1", {}]]
        assert identity() == plain
        assert identity(concurrency=3, cost=1.0, options={"api_key": "sk-secret"}) == plain
        others = {identity(name="other"), identity(address="http://b/v1"), identity(options={"seed": 1})}
        assert len({*others, plain}) == 4
        assert "secret" not in str(identity(address="http://me:secret@a/v1", options={"api_key": "secret"}))

    def test_it_is_a_member_of_a_cascade(self, pair: Any) -> None:
        """A routed client may be the first model of a cascade."""
        client, _, alive = pair()
        big = FakeClient(self.LABELS, lambda _text: ("dog", 0.99), name="big")
        members = [Classifier(model=model, labels=self.LABELS, field="category") for model in (client, big)]
        cascade = Cascade(members, method=AvgLogprob(), escalation_order="declared", native_threshold=-0.15)
        sure, unsure = cascade.classify_many(["a purr", "a bark"])
        assert (sure.label, len(sure.steps)) == ("cat", 1)
        assert (unsure.label, len(unsure.steps)) == ("dog", 2)
        assert len(alive.requests) == 2

    def test_rows_count_the_calls_of_all_providers(self, pair: Any) -> None:
        """A row's calls are those of the providers that failed and of the one that answered, in every retry."""
        options: dict[str, Any] = {"labels": self.LABELS, "field": "category"}
        client, dead, alive = pair()
        found = Classifier(model=client, **options).classify_many([f"{number} purr" for number in range(9)])
        asked = len(dead.requests) + len(alive.requests)
        assert len(dead.requests) >= 3
        assert sum(one.attempts for one in found) == asked
        assert sum(stats.calls for stats in client.stats().values()) == asked
        fakes = [FakeClient(self.LABELS, lambda _text: down("x")) for _ in range(2)]
        client, _ = routed(*fakes)
        retry = RetryPolicy(attempts=2, initial_seconds=0.0)
        failed = Classifier(model=client, retry=retry, **options).classify("purr")
        assert failed.attempts == sum(len(fake.requests) for fake in fakes) == 4

    def test_rows_fail_when_all_providers_fail(self) -> None:
        """Rows are retried by the policy, and systemic faults end the run."""
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
        """A cancelled call is not observed and leaves no call in flight."""
        slow = FakeClient(self.LABELS, lambda _text: "cat", latency=30.0)
        client, router = routed(Provider("a", slow, concurrency=1))
        limits: dict[str, Any] = {"limits": Limits(call_seconds=0.01), "retry": RetryPolicy(attempts=1)}
        classifier = Classifier(model=client, labels=self.LABELS, field="category", **limits)
        assert classifier.classify("a purr").outcome == "error"
        assert (router.seen, client.stats()["a"].in_flight) == ([], 0)

    def test_it_works_through_the_background_loop_and_others(self, pair: Any) -> None:
        """A routed client answers every call on every event loop."""
        client, *_ = pair()
        request = CompletionRequest(messages=({"role": "user", "content": "a purr"},))
        texts = []
        for _ in range(2):
            answer = asyncio.run(client.complete(request))
            texts.append(read_completion(answer).text)
            answer = asyncio.run(client.complete(request))
            texts.append(read_completion(answer).text)
        assert [json.loads(text) for text in texts] == [{"category": "cat"}] * 4
        stats = client.stats()
        assert stats["b"].calls == 4
        assert [each.in_flight for each in stats.values()] == [0, 0]


class TestPuttingItTogether:
    """Tests of construction: parts that do not fit raise ConfigurationError before any call."""

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (routed, "at least one provider"),
            (lambda: RoutedClient([Scripted()], router=FixedRouter(["a"])), "Expected a Provider"),
            (
                lambda: RoutedClient(providers("an answer"), router=FixedRouter(["b"])),
                "a router of the providers a",
            ),
            (lambda: Provider("a", "gpt-4.1-mini"), "open_client"),  # type: ignore[arg-type]
            (lambda: routed("an answer", call_seconds=0.0), "call_seconds"),
            (lambda: routed("an answer", helper_seconds=-1.0), "helper_seconds"),
            (lambda: routed("an answer", allowed_failures=0), "allowed_failures"),
            (lambda: routed("an answer", cooldown_seconds=0), "cooldown_seconds"),
            (lambda: Provider(" ", Scripted()), "name of a provider"),
            (lambda: Provider("a", Scripted(), concurrency=0), "concurrency"),
            (lambda: Provider("a", Scripted(), context_window=1.5), "context_window"),  # type: ignore[arg-type]
            (lambda: Provider("a", Scripted(), cost=-1.0), "cost"),
            (lambda: Provider("a", Scripted(), options=["seed"]), "options"),  # type: ignore[arg-type]
            (lambda: Provider("a", Scripted(), space="odd"), "odd"),
        ],
    )
    def test_wrong_parts_are_refused(self, make: Callable[[], object], message: str) -> None:
        """A wrong part raises ConfigurationError with the part's name."""
        with pytest.raises(ConfigurationError, match=message):
            make()

    def test_provider_order_may_differ(self) -> None:
        """A router may name the providers in another order; a repeated one raises ConfigurationError."""
        RoutedClient(providers("an answer", "an answer"), router=FixedRouter(["b", "a"]))
        twice = [Provider("a", Scripted()), Provider("a", Scripted())]
        with pytest.raises(ConfigurationError, match="a more than once"):
            RoutedClient(twice, router=FixedRouter(["a"]))

    def test_orders_must_name_known_providers(self) -> None:
        """An order without providers or with an unknown one raises ConfigurationError."""
        client, router = routed("an answer")
        for order, told in (([], "to order a, got none"), (["b"], "to order a, got 'b'")):
            router.order = lambda _request=None, order=order: order
            with pytest.raises(ConfigurationError, match=told):
                ask(client)

    def test_keys_among_the_options_are_not_shown(self) -> None:
        """The repr of a provider omits its options."""
        assert "sk-1" not in repr(Provider("a", Scripted(), options={"api_key": "sk-1"}))

    def test_its_space_is_that_of_all_providers(self) -> None:
        """A routed client of different spaces is mixed; a declared space replaces the client's own."""
        raw = Scripted()
        raw.space = LogprobSpace.RAW
        client, _ = routed("an answer", raw)
        assert client.space is LogprobSpace.MIXED
        client, _ = routed("an answer", Provider("b", raw, space="masked"))
        assert client.space is LogprobSpace.MASKED
        client, _ = routed(raw)
        assert client.space is LogprobSpace.RAW


class TestClosing:
    """Tests of closing: a client closes what it owns."""

    def test_only_owned_clients_are_closed(self) -> None:
        """A client shared by two providers is closed once."""
        shared = Scripted()
        for owned, times in ((False, 0), (True, 1)):
            client, _ = routed(shared, shared, owned=owned)
            client.close()
            assert shared.closed == times

    def test_one_error_keeps_no_client_open(self) -> None:
        """The error of one client does not keep the others open."""
        bad, good = Scripted(), Scripted()

        def fail() -> None:
            raise CalibrantError("cannot close")

        bad.close = fail
        client, _ = routed(good, bad, good, owned=True)
        with pytest.raises(CalibrantError, match="cannot close"):
            client.close()
        assert good.closed == 1

    def test_a_shared_router_is_closed_with_it(self, tmp_path: Path) -> None:
        """Closing a routed client stores the learned state of its shared router."""
        place = tmp_path / "router.sqlite"
        router = SharedRouter(ThompsonRouter(["a"], rng=0), RouterState(place), flush_seconds=3600)
        assert isinstance(router, Router)
        client = RoutedClient([Provider("a", Scripted("yes"))], router=router)
        for _ in range(3):
            ask(client)
        client.close()
        with contextlib.closing(RouterState(place)) as state:
            assert (state.read("thompson") or {})["providers"]["a"]["alpha"] == 4.0
