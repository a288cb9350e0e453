"""A routed client wherever a client is: classifiers, caches, samples, cascades; how it is put together and closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from calibrant.cascade import AvgLogprob, Cascade
from calibrant.core import CalibrantError, Client, CompletionRequest, ConfigurationError, ProviderError
from calibrant.core._completion import ContinuingClient
from calibrant.core._limits import Limits
from calibrant.core._prediction import LogprobSpace
from calibrant.inference import Classifier, Provider, RetryPolicy, RoutedClient
from calibrant.inference._loop import run_sync
from calibrant.inference._shared_router import SharedRouter
from calibrant.logprobs._completion import read_completion
from calibrant.routing import FixedRouter, Router, ThompsonRouter
from calibrant.testing import FakeClient, MemoryJournal


def down(name: str = "a", **options: Any) -> ProviderError:
    """Return a passing failure."""
    return ProviderError("is down", provider=name, **({"status": 503, "retryable": True} | options))


class TestWhereverAClientIs:
    """Classifiers, caches, samples and cascades take it as they take any other."""

    LABELS = ("cat", "dog")

    @pytest.fixture
    def pair(self, routed: Any) -> Callable[..., tuple[RoutedClient, FakeClient, FakeClient]]:
        """Return what makes a routed client whose first provider is down for good."""

        def made(**options: Any) -> tuple[RoutedClient, FakeClient, FakeClient]:
            dead = FakeClient(self.LABELS, lambda _text: down("a"), name="a")
            rule = {"purr": ("cat", 0.9), "bark": ("dog", 0.8)}
            alive = FakeClient(self.LABELS, rule, name="b", **options)
            client, _ = routed(dead, alive)
            return client, dead, alive

        return made

    def test_it_is_a_client_and_no_more(self, pair: Any) -> None:
        """It cannot be asked for next tokens, so nobody takes it for exact scores."""
        client, *_ = pair()
        assert isinstance(client, Client)
        assert not isinstance(client, ContinuingClient)

    def test_rows_are_classified_with_their_confidence(self, pair: Any) -> None:
        """Concurrently, and as if the provider that answered had been asked alone."""
        client, dead, alive = pair()
        texts = [f"{number} {sound}" for number in range(30) for sound in ("purr", "bark")]
        options: dict[str, Any] = {"labels": self.LABELS, "field": "category", "prompt": "Which?"}
        found = Classifier(model=client, concurrency=8, **options).classify_many(texts)
        alone = Classifier(model=alive, **options).classify_many(texts)
        assert [row.label for row in found] == [row.label for row in alone]
        assert [row.confidence for row in found] == [row.confidence for row in alone]
        assert len(dead.requests) < 20

    def test_samples_go_through_it(self, pair: Any) -> None:
        """Every sample is a request of its own."""
        client, _, alive = pair()
        sampled = Classifier(
            model=client, labels=self.LABELS, field="category", scoring="sampled", samples=4
        ).classify("a purr")
        assert (sampled.label, sampled.attempts) == ("cat", 4)
        assert {request.options["temperature"] for request in alive.requests} == {1.0}

    def test_stored_predictions_stay_valid_whatever_was_learnt(self, pair: Any) -> None:
        """The key depends on who the providers are, and changes with their addresses and options alone."""
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

    def test_its_identity_holds_what_can_change_an_answer(self, scripted: Any, routed: Any) -> None:
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

    def test_it_is_a_member_of_a_cascade(self, pair: Any) -> None:
        """Like any model that costs something."""
        client, _, alive = pair()
        big = FakeClient(self.LABELS, lambda _text: ("dog", 0.99), name="big")
        members = [Classifier(model=model, labels=self.LABELS, field="category") for model in (client, big)]
        cascade = Cascade(members, method=AvgLogprob(), escalation_order="declared", native_threshold=-0.15)
        sure, unsure = cascade.classify_many(["a purr", "a bark"])
        assert (sure.label, len(sure.steps)) == ("cat", 1)
        assert (unsure.label, len(unsure.steps)) == ("dog", 2)
        assert len(alive.requests) == 2

    def test_rows_fail_when_all_providers_fail(self, routed: Any) -> None:
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

    def test_a_deadline_around_it_cancels_and_frees(self, routed: Any) -> None:
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

    def test_it_works_through_the_background_loop_and_others(self, pair: Any) -> None:
        """One after the other: every call is answered, and none is left in flight."""
        client, *_ = pair()
        request = CompletionRequest(messages=({"role": "user", "content": "a purr"},))
        texts = []
        for _ in range(2):
            texts.append(read_completion(run_sync(client.complete(request))).text)
            texts.append(read_completion(asyncio.run(client.complete(request))).text)
        assert [json.loads(text) for text in texts] == [{"category": "cat"}] * 4
        stats = client.stats()
        assert stats["b"].calls == 4
        assert [each.in_flight for each in stats.values()] == [0, 0]


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

    def test_a_router_must_name_somebody(self, scripted: Any, ask: Any, routed: Any) -> None:
        """And nobody else."""
        client, router = routed(scripted())
        for order, told in (([], "to order a, got none"), (["b"], "to order a, got 'b'")):
            router.order = lambda _request=None, order=order: order
            with pytest.raises(ConfigurationError, match=told):
                ask(client)

    def test_keys_among_the_options_are_not_shown(self, scripted: Any) -> None:
        """In a traceback or a log."""
        assert "sk-1" not in repr(Provider("a", scripted(), options={"api_key": "sk-1"}))

    def test_its_space_is_that_of_all_providers(self, scripted: Any, routed: Any) -> None:
        """Or mixed; a client's own claim can be corrected."""
        raw = scripted()
        raw.space = LogprobSpace.RAW
        client, _ = routed(scripted(), raw)
        assert client.space is LogprobSpace.MIXED
        client, _ = routed(scripted(), Provider("b", raw, space="masked"))
        assert client.space is LogprobSpace.MASKED
        client, _ = routed(raw)
        assert client.space is LogprobSpace.RAW

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"concurrency": 0}, "concurrency"),
            ({"context_window": 1.5}, "context_window"),
            ({"cost": -1.0}, "cost"),
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
            {"helper_seconds": -1.0},
            {"allowed_failures": 0},
            {"cooldown_seconds": 0},
        ],
        ids=str,
    )
    def test_numbers_out_of_range_are_refused(
        self, scripted: Any, options: dict[str, Any], routed: Any
    ) -> None:
        """And what would have no effect."""
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            routed(scripted(), **options)


class TestClosing:
    """Who opened something closes it."""

    def test_only_owned_clients_are_closed(self, scripted: Any, routed: Any) -> None:
        """Each once, even if two providers share one."""
        shared = scripted()
        for owned, times in ((False, 0), (True, 1)):
            client, _ = routed(shared, shared, owned=owned)
            client.close()
            assert shared.closed == times

    def test_everything_is_closed_whatever_one_of_them_raises(self, scripted: Any, routed: Any) -> None:
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

        state = State()
        router = SharedRouter(ThompsonRouter(["a"], rng=0), state)
        assert isinstance(router, Router)
        client = RoutedClient([Provider("a", scripted("yes"))], router=router)
        for _ in range(3):
            ask(client)
        client.close()
        assert state.closed
        assert state.record["providers"]["a"]["alpha"] == 4.0
