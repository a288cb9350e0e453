"""Tests of providers with log-probabilities in different spaces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from calibrant.core import Completion, CompletionRequest, LogprobSpace, Prediction
from calibrant.inference import Classifier, Provider, RetryPolicy, RoutedClient
from calibrant.inference._examinations import refuse_misleading
from calibrant.logprobs import read_completion
from calibrant.routing import CascadeRouter, RoutingRequest, TriageRouter
from calibrant.testing import FakeClient, MemoryJournal, fake_response
from routed_answers import Scripted, answered, routed
from saved_prediction import saved_and_read

LABELS = ("cat", "dog")
TEXTS = [f"{number} {sound}" for number in range(10) for sound in ("purr", "bark")]
MASKED, RAW = LogprobSpace.MASKED, LogprobSpace.RAW


def fakes(**options: Any) -> tuple[FakeClient, FakeClient]:
    """Return a masked and a raw provider with different probabilities."""
    masked = FakeClient(
        LABELS, {"purr": ("cat", 0.9), "bark": ("dog", 0.8)}, space=MASKED, name="m", **options
    )
    raw = FakeClient(
        LABELS,
        {"purr": ("cat", 0.7), "bark": ("cat", 0.6)},
        space=RAW,
        name="r",
        illegal_mass=0.4,
        **options,
    )
    return masked, raw


@pytest.fixture
def by_turns() -> Callable[..., tuple[RoutedClient, FakeClient, FakeClient]]:
    """Return a factory of clients that call both providers in turn."""

    def made(**options: Any) -> tuple[RoutedClient, FakeClient, FakeClient]:
        masked, raw = fakes(**options)
        client, router = routed(masked, raw)
        turn = 0

        def order(_request: RoutingRequest | None = None) -> list[str]:
            nonlocal turn
            turn += 1
            return ["a", "b"] if turn % 2 else ["b", "a"]

        router.order = order
        return client, masked, raw

    return made


def classifier(model: Any, **options: Any) -> Classifier:
    """Return a classifier without concurrency."""
    return Classifier(
        **{"model": model, "labels": LABELS, "field": "category", "prompt": "Which?", "concurrency": 1}
        | options
    )


def same(found: Prediction, alone: Prediction) -> bool:
    """Return True if two predictions differ at most in their latency."""
    return replace(found, latency_seconds=0.0) == replace(alone, latency_seconds=0.0)


def spaces(found: Sequence[Prediction]) -> list[LogprobSpace | None]:
    """Return the spaces of distributions."""
    return [None if row.distribution is None else row.distribution.space for row in found]


def test_predictions_equal_those_of_one_provider(by_turns: Any) -> None:
    """Label, confidence, masses and space equal those of a classifier with that provider alone."""
    client, *_ = by_turns()
    assert client.space is LogprobSpace.MIXED
    found = classifier(client).classify_many(TEXTS)
    alone = [classifier(one).classify_many(TEXTS) for one in fakes()]
    assert all(same(row, alone[number % 2][number]) for number, row in enumerate(found))
    assert spaces(found) == [MASKED, RAW] * 10
    assert {row.confidence for row in alone[0]}.isdisjoint({row.confidence for row in alone[1]})


def test_cached_rows_keep_their_space(by_turns: Any) -> None:
    """Cached rows keep their space and need no call."""
    client, masked, raw = by_turns()
    journal = MemoryJournal()
    first = classifier(client, journal=journal).classify_many(TEXTS)
    calls = len(masked.requests) + len(raw.requests)
    for key, row in journal.items():  # as a database would give them back
        journal[key] = saved_and_read(row)
    again = classifier(client, journal=journal).classify_many(TEXTS)
    assert spaces(again) == spaces(first) == [MASKED, RAW] * 10
    assert [row.confidence for row in again] == [row.confidence for row in first]
    assert len(masked.requests) + len(raw.requests) == calls


def test_spaces_are_part_of_the_identity() -> None:
    """Spaces that differ change the client's identity."""

    def identity(*found: LogprobSpace) -> str:
        client, _ = routed(
            *(Provider(name, Scripted(), space=space) for name, space in zip("ab", found, strict=True))
        )
        return str(client.endpoint)

    assert identity(MASKED, RAW) != identity(RAW, MASKED)
    assert identity(MASKED, MASKED) == identity(RAW, RAW)  # the classifier's own key tells these


def test_samples_are_counted_as_ever(by_turns: Any) -> None:
    """Sampled probabilities count the labels of all providers' answers."""
    client, *_ = by_turns()
    found = classifier(client, scoring="sampled", samples=4).classify("a bark")
    assert found.distribution is not None
    assert found.distribution.space is LogprobSpace.SAMPLED
    assert found.label == "cat"  # two of each: the first one
    assert found.distribution.probabilities.tolist() == pytest.approx([0.5, 0.5])


def test_models_without_evidence_get_one_call() -> None:
    """Rows of a provider with space "none" take one call each, and have no distribution."""
    masked, _ = fakes()
    plain = FakeClient(LABELS, lambda _text: fake_response("cat", top_logprobs=0), space="none", name="n")
    client, router = routed(masked, plain)
    orders = iter([["a", "b"], ["b", "a"]] * 5)
    router.order = lambda _request=None: next(orders)
    found = classifier(client).classify_many(TEXTS[:10])
    assert [row.attempts for row in found] == [1] * 10
    assert spaces(found) == [MASKED, None] * 5


def test_silent_models_are_known_by_name() -> None:
    """The first row without log-probabilities is repeated; later ones of that model are not."""

    def silent(_text: str) -> dict[str, Any]:
        return fake_response("cat", top_logprobs=0) | {"model": "silent"}

    masked, _ = fakes()
    plain = FakeClient(LABELS, silent, name="s")
    client, router = routed(masked, plain)
    # The fourth call repeats the third.
    orders = iter([["a", "b"], ["a", "b"], ["b", "a"], ["b", "a"], *[["b", "a"], ["a", "b"]] * 3])
    router.order = lambda _request=None: next(orders)
    retry = RetryPolicy(attempts=5, initial_seconds=0.0)
    found = classifier(client, retry=retry).classify_many(TEXTS[:9])
    assert [row.attempts for row in found] == [1, 1, 2, 1, 1, 1, 1, 1, 1]
    without = "".join("-" if row.confidence is None else "c" for row in found)
    assert without == "cc--c-c-c"


def test_silence_of_one_model_is_its_own() -> None:
    """The first row of each model without log-probabilities is repeated, and later ones are not."""

    def silent(name: str) -> FakeClient:
        return FakeClient(
            LABELS, lambda _text: fake_response("cat", top_logprobs=0) | {"model": name}, name=name
        )

    client, router = routed(silent("s"), silent("t"))
    orders = iter([["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"], ["b", "a"], ["a", "b"], ["b", "a"]])
    router.order = lambda _request=None: next(orders)
    retry = RetryPolicy(attempts=5, initial_seconds=0.0)
    found = classifier(client, retry=retry).classify_many(TEXTS[:4])
    assert [row.attempts for row in found] == [3, 2, 1, 1]


def test_answers_without_space_have_no_distribution(by_turns: Any) -> None:
    """An answer to a request with tools carries no space."""
    client, *_ = by_turns()
    found = classifier(client, options={"tools": [{"type": "function"}]}).classify_many(TEXTS)
    assert [row.label for row in found][:2] == ["cat", "cat"]
    assert [row.attempts for row in found] == [1] * 20
    assert spaces(found) == [None] * 20


def answers(client: RoutedClient, **options: Any) -> Any:
    """Return what a client answers to one question."""
    messages = ({"role": "user", "content": "a purr"},)
    return asyncio.run(client.complete(CompletionRequest(messages=messages, options=options)))


def test_equal_spaces_keep_the_response() -> None:
    """If all spaces are equal, or a request has tools, the provider's response is returned."""
    masked, raw = fakes()
    alike, _ = routed(Provider("a", masked, space="raw"), raw)
    assert (alike.space, type(answers(alike))) == (RAW, dict)
    differing, _ = routed(masked, raw)
    found = answers(differing)
    assert isinstance(found, Completion)
    assert found == replace(read_completion(answers(alike)), space=MASKED)
    assert isinstance(answers(differing, tools=[{"type": "function"}]), dict)


def test_the_users_space_comes_first(by_turns: Any) -> None:
    """A space set by the user holds for all providers."""
    client, *_ = by_turns()
    found = classifier(client, space="raw").classify_many(TEXTS)
    assert spaces(found) == [RAW] * 20


def test_nested_routing_keeps_every_space(by_turns: Any) -> None:
    """The outer client keeps the space of every answer, even with a single provider."""
    inner, *_ = by_turns()
    outer, _ = routed(inner)
    assert outer.space is LogprobSpace.MIXED
    assert spaces(classifier(outer).classify_many(TEXTS)) == [MASKED, RAW] * 10
    beside, _ = routed(by_turns()[0], fakes()[0])
    assert spaces(classifier(beside).classify_many(TEXTS)) == [MASKED, RAW] * 10


def test_best_answer_keeps_its_own_space() -> None:
    """The completion's space is that of the returned answer, not of the last one."""
    first, second = Scripted("A whole and sensible answer."), Scripted("")
    second.space = RAW
    router = CascadeRouter(["a", "b"], cost_tiers=["a", "b"], quality_threshold=1.0)
    client = RoutedClient(
        [Provider("a", first, cost=0.0), Provider("b", second)], router=router, quality=lambda _: 0.5
    )
    found = answers(client)
    assert (found.text, found.space) == ("A whole and sensible answer.", MASKED)
    assert (first.calls, second.calls) == (1, 1)


def test_fingerprints_say_mixed(by_turns: Any) -> None:
    """The fingerprint of mixed spaces differs from that of one space."""
    client, *_ = by_turns()
    assert classifier(client).fingerprint().space is LogprobSpace.MIXED


class TestWhatIsPaid:
    """Tests of cost: a declared price counts where an answer names none."""

    @pytest.mark.parametrize(("declared", "total"), [(0.25, 5.0), (0.0, 0.0)])
    def test_a_runs_own_total_holds_it(self, declared: float, total: float) -> None:
        """The meter's cost is the sum of declared prices, also of a price of zero."""
        client, _ = routed(Provider("a", fakes()[0], cost=declared))
        asking = classifier(client)
        found = asking.classify_many(TEXTS)
        gate = asking.meter
        assert (gate.cost, gate.unpriced) == (pytest.approx(total), 0)
        assert {row.usage.cost for row in found} == {declared}
        assert client.stats()["a"].cost == pytest.approx(total)

    def test_unpriced_responses_count_as_unpriced(self) -> None:
        """Answers without any price add nothing to the meter's cost and count as `unpriced`."""
        client, _ = routed(fakes()[0])
        asking = classifier(client)
        asking.classify_many(TEXTS)
        assert (asking.meter.cost, asking.meter.unpriced) == (0.0, 20)

    @pytest.mark.parametrize("reported", [-1.0, float("nan"), float("inf")])
    def test_a_price_that_cannot_be_true_is_none(self, reported: float) -> None:
        """The declared price replaces an impossible one."""
        for declared in (None, 0.5):
            client, router = routed(Provider("a", Scripted(answered("yes", cost=reported)), cost=declared))
            assert read_completion(answers(client)).usage.cost == declared
            assert router.seen[0].cost == declared

    def test_a_reported_price_comes_first(self) -> None:
        """A reported price of zero replaces the declared price."""
        client, _ = routed(Provider("a", Scripted(answered("yes", cost=0.0)), cost=0.5))
        assert read_completion(answers(client)).usage.cost == 0.0

    def test_a_provider_that_helps_costs_what_it_costs(self) -> None:
        """A provider that also serves as a helper costs its declared price; another helper has no price."""
        small, big, stranger = (
            Scripted(answered('{"tier": "complex"}')),
            Scripted("an answer"),
            Scripted("{}"),
        )
        for helper, cost in ((small, 2.5), (stranger, 2.0)):
            router = TriageRouter(["a", "b"], tiers={"simple": "b", "complex": "b"})
            client = RoutedClient(
                [Provider("a", small, cost=0.5), Provider("b", big, cost=2.0)], router=router, triage=helper
            )
            assert answers(client, seed=1).usage.cost == cost
            assert client.helper_stats()["triage"].usage.cost == (0.5 if helper is small else None)


def test_a_stored_examination_speaks_of_each_providers_space(
    monkeypatch: pytest.MonkeyPatch, by_turns: Any
) -> None:
    """The stored examination is looked up only for a masked or raw space."""
    from calibrant.inference import _examinations  # noqa: PLC0415 (to stand in for what is stored)

    method = classifier(by_turns()[0]).method
    asked: list[str] = []
    monkeypatch.setattr(_examinations, "load_examination", lambda name, **_: asked.append(name))
    refuse_misleading("m", options={}, method=method)
    assert asked == []
    for space in LogprobSpace:
        refuse_misleading(space.value, options={}, method=method, space=space)
    assert asked == ["masked", "raw"]
