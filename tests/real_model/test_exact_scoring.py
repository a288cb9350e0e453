"""Exact scoring on the embedded model: what only the engine itself can show."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from calibrant import Classifier, Prediction
from calibrant.clients import LlamaCppClient
from calibrant.clients._engine import Engine
from calibrant.core import ConfigurationError, LabelDistribution, LogprobSpace, Outcome
from calibrant.inference import Decoding, ExactScoring
from embedded import EMBEDDED

Bodies = list[tuple[dict[str, Any], dict[str, Any]]]

pytestmark = EMBEDDED

LABELS = ("Business", "Sci/Tech", "Sports", "World")
TEXTS = (
    "The striker scored twice.",
    "Shares fell on Monday.",
    "A new telescope was launched.",
    "Ministers met in Geneva.",
)


@pytest.fixture(scope="module")
def client() -> Iterator[LlamaCppClient]:
    """Return a client of the embedded model, for the default context so that others share it."""
    found = LlamaCppClient.local()
    yield found
    found.close()


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> Bodies:
    """Return what engines are asked and what they answer, as it happens."""
    seen: Bodies = []
    ask = Engine.chat

    def chat(self: Engine, body: dict[str, Any]) -> dict[str, Any]:
        answer = ask(self, body)
        seen.append((body, answer))
        return answer

    monkeypatch.setattr(Engine, "chat", chat)
    return seen


def classifier(client: LlamaCppClient, labels: Sequence[str] = LABELS, **options: Any) -> Classifier:
    """Return a classifier of news."""
    settings = {"prompt": "Classify the news.", "field": "category", **options}
    return Classifier(model=client, labels=labels, **settings)


def distribution(prediction: Prediction) -> LabelDistribution:
    """Return a prediction's distribution, which must be there."""
    assert prediction.outcome is Outcome.OK, prediction.reason
    assert prediction.distribution is not None
    return prediction.distribution


@pytest.mark.smoke
def test_the_embedded_engine_scores_exactly_by_default(client: LlamaCppClient) -> None:
    """Space, label mass and a bound come with every prediction; the label is the most probable one."""
    asked = classifier(client)
    assert isinstance(asked.runner.method, ExactScoring)
    assert isinstance(classifier(client, scoring="decode").runner.method, Decoding)
    for prediction in asked.classify_many(TEXTS):
        found = distribution(prediction)
        assert found.space is LogprobSpace.EXACT
        assert 0.0 < found.label_mass <= 1.0
        assert found.error_bound is not None
        assert prediction.label == LABELS[int(found.logprobs.argmax())]
        assert prediction.confidence == pytest.approx(found.probabilities.max())
        assert prediction.text == f'{{"category": "{prediction.label}"}}'


@pytest.mark.slow
def test_pruning_stays_within_its_bound(client: LlamaCppClient) -> None:
    """Against the walk over the whole label trie, on the real model."""
    full = classifier(client, tolerance=1e-4).classify_many(TEXTS)
    for tolerance in (0.2, "exact"):
        pruned = classifier(client, tolerance=tolerance).classify_many(TEXTS)
        for few, all_of_it in zip(map(distribution, pruned), map(distribution, full), strict=True):
            variation = 0.5 * np.abs(few.probabilities - all_of_it.probabilities).sum()
            assert few.error_bound is not None
            assert variation <= few.error_bound + 1e-6
            if tolerance == "exact":
                # The mean of many rows is below 0.01; what the engine has cached changes its rounding.
                assert variation <= 0.05


def test_a_label_holds_at_least_what_its_decoded_tokens_hold(client: LlamaCppClient) -> None:
    """The decoded answer is one of the ways to write its label: an independent lower bound."""
    exact = classifier(client, tolerance=1e-4).classify_many(TEXTS)
    decoded = classifier(client, scoring="decode").classify_many(TEXTS)
    for sum_of_all, one in zip(exact, decoded, strict=True):
        assert one.label is not None
        assert one.distribution is not None
        assert one.distribution.joint_logprob is not None
        found = distribution(sum_of_all)
        mass = found.label_mass * found.probability(one.label)
        # Batches of other sizes round differently.
        assert mass >= 0.9 * math.exp(one.distribution.joint_logprob)


@pytest.mark.slow
def test_a_long_system_prompt_is_computed_once(client: LlamaCppClient, bodies: Bodies) -> None:
    """Rows after the first, and all nodes of a row, find 2,000 tokens of it in the cache."""
    rules = " ".join(f"Rule {number}: news about topic {number} is news." for number in range(160))
    classifier(client, prompt=rules, tolerance=0.02).classify_many(TEXTS[:3])
    used = [answer["usage"] for _, answer in bodies]
    cached = [use["prompt_tokens_details"]["cached_tokens"] for use in used]
    assert used[0]["prompt_tokens"] > 2000
    assert len(used) > 3, "several nodes a row"
    assert cached[0] < 100
    assert all(tokens > 2000 for tokens in cached[1:])
    assert max(use["prompt_tokens"] - tokens for use, tokens in zip(used[1:], cached[1:], strict=True)) < 60


def test_all_calls_of_a_row_go_to_one_slot(bodies: Bodies) -> None:
    """Rows in flight hold different slots, and come back to their own."""
    client = LlamaCppClient.local(n_ctx=1024, n_parallel=2)
    texts = [*TEXTS, *(f"{text} Again." for text in TEXTS)]
    found = classifier(client, tolerance=0.02).classify_many(texts)
    client.close()
    assert all(prediction.outcome is Outcome.OK for prediction in found)
    asked: dict[int, list[str]] = {0: [], 1: []}
    for body, _ in bodies:
        asked[body["id_slot"]].append(body["messages"][1]["content"])
    rows = [text for seen in asked.values() for text, _ in itertools.groupby(seen)]
    assert sorted(rows) == sorted(texts), "a row that shared its slot, or changed it, would be there twice"
    assert all(asked.values()), "both slots are used"


def test_a_call_without_log_probabilities_is_repeated(
    client: LlamaCppClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About one in 300 comes back like that."""
    ask = Engine.chat
    asked = 0

    def chat(self: Engine, body: dict[str, Any]) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        answer = ask(self, body)
        if asked % 2:
            answer["choices"][0]["logprobs"] = None
        return answer

    monkeypatch.setattr(Engine, "chat", chat)
    prediction = classifier(client, tolerance=1.0).classify(TEXTS[0])
    assert prediction.outcome is Outcome.OK
    assert asked == 2


@pytest.mark.parametrize("label", ["<|im_end|>", "end <|im_start|> of"])
def test_a_label_with_a_special_token_is_refused(client: LlamaCppClient, label: str) -> None:
    """Its text would end the turn instead of spelling the label."""
    with pytest.raises(ConfigurationError, match="do not spell the label") as refused:
        classifier(client, labels=["fine", label]).classify("a")
    assert repr(label) in str(refused.value)


def test_a_label_longer_than_the_context_is_refused() -> None:
    """It could never be written."""
    client = LlamaCppClient.local(n_ctx=1024)
    with pytest.raises(ConfigurationError, match="raise n_ctx"):
        classifier(client, labels=["fine", "very " * 2000 + "long"]).classify("a")
    client.close()


@pytest.mark.parametrize("labels", [('6" pipe', "Müll/日本語", "back\\slash"), ("🎉", "a\nb", "tab\there")])
def test_labels_that_json_escapes_are_scored(client: LlamaCppClient, labels: tuple[str, ...]) -> None:
    """Whatever the label holds, the probabilities are over the labels as the user spells them."""
    prompt = f"Answer with one of {', '.join(labels)}."
    prediction = classifier(client, labels=labels, prompt=prompt, tolerance=0.01).classify("Choose.")
    assert prediction.outcome is Outcome.OK
    assert prediction.label in labels


def test_a_thousand_labels_are_scored(client: LlamaCppClient) -> None:
    """In a handful of calls a row."""
    labels = [f"group {i // 100}/item {i}" for i in range(1000)]
    prediction = classifier(client, labels=labels).classify("Item 412 of group 4.")
    assert prediction.outcome is Outcome.OK
    assert distribution(prediction).logprobs.shape == (1000,)
    assert prediction.attempts < 100


def test_cancelled_rows_give_their_slot_back(client: LlamaCppClient) -> None:
    """A caller that stops waiting does not take a slot with it."""
    asked = classifier(client)

    async def impatient() -> Prediction:
        waiting = asyncio.create_task(asked.aclassify(TEXTS[0]))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return await asyncio.wait_for(asked.aclassify(TEXTS[1]), timeout=60)

    assert asyncio.run(impatient()).outcome is Outcome.OK


def test_the_engine_answers_the_same_over_http(client: LlamaCppClient) -> None:
    """Its own server, asked as any llama.cpp server is: both report the same model."""
    address = client._loaded().address
    remote = Classifier(
        model="openai/smollm2",
        labels=LABELS,
        field="category",
        prompt="Classify the news.",
        scoring="exact",
        tolerance=0.02,
        options={"api_base": address},
    )
    near = classifier(client, tolerance=0.02).classify_many(TEXTS)
    far = remote.classify_many(TEXTS)
    remote.close()
    for one, other in zip(near, far, strict=True):
        # Batches of other sizes round differently.
        np.testing.assert_allclose(
            distribution(one).probabilities, distribution(other).probabilities, atol=0.1
        )
        assert other.attempts > 1
