"""Tests of exact scoring on the embedded model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from calibrant.clients._llama import Llama, engine_module
from calibrant.clients._weights import locate_weights
from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    LabelDistribution,
    LogprobSpace,
    Outcome,
    Prediction,
    Query,
)
from calibrant.core._completion import Vocabulary
from calibrant.inference import (
    Classifier,
    open_client,
)
from embedded import EMBEDDED

pytestmark = EMBEDDED

LABELS = ("Business", "Sci/Tech", "Sports", "World")
TEXTS = (
    "The striker scored twice.",
    "Shares fell on Monday.",
    "A new telescope was launched.",
    "Ministers met in Geneva.",
)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Return a client of the embedded model with the default context, which others share."""
    found: Any = open_client("local/smollm2-135m")
    yield found
    found.close()


def classifier(client: Any, labels: Sequence[str] = LABELS, **options: Any) -> Classifier:
    """Return a classifier of news."""
    settings = {"prompt": "Classify the news.", "field": "category", **options}
    return Classifier(model=client, labels=labels, **settings)


def distribution(prediction: Prediction) -> LabelDistribution:
    """Return a prediction's distribution, and fail if there is none."""
    assert prediction.outcome is Outcome.OK, prediction.reason
    assert prediction.distribution is not None
    return prediction.distribution


@pytest.mark.smoke
def test_the_embedded_engine_scores_exactly_by_default(client: Any) -> None:
    """The embedded model is scored exactly by default: space, label mass and error bound are there."""
    asked = classifier(client)
    assert asked.space is LogprobSpace.EXACT
    assert classifier(client, scoring="decode").space is LogprobSpace.RAW
    for prediction in asked.classify_many(TEXTS):
        found = distribution(prediction)
        assert found.space is LogprobSpace.EXACT
        assert 0.0 < found.label_mass <= 1.0
        assert found.error_bound is not None
        assert prediction.label == LABELS[int(found.logprobs.argmax())]
        assert prediction.confidence == pytest.approx(found.probabilities.max())
        assert prediction.text == f'{{"category": "{prediction.label}"}}'


@pytest.mark.slow
def test_pruning_stays_within_its_bound(client: Any) -> None:
    """The pruned distribution differs from the full one by at most its error bound."""
    full = classifier(client, tolerance=1e-4).classify_many(TEXTS)
    for tolerance in (0.2, "exact"):
        pruned = classifier(client, tolerance=tolerance).classify_many(TEXTS)
        for few, all_of_it in zip(map(distribution, pruned), map(distribution, full), strict=True):
            variation = 0.5 * np.abs(few.probabilities - all_of_it.probabilities).sum()
            assert few.error_bound is not None
            assert variation <= few.error_bound + 1e-6
            if tolerance == "exact":
                assert variation <= 0.01


def test_a_label_is_the_product_of_its_tokens(client: Any) -> None:
    """A label's probability equals the product of its tokens, each asked in a call of its own."""
    prefix = '{"category": "'

    async def products(text: str) -> list[float]:
        request = CompletionRequest(messages=Query(prompt="Classify the news.", text=text).messages())
        async with client.continuing(request) as row:
            found = []
            for label in reversed(LABELS):
                *path, _ = row.tokens(f'{prefix}{label}"')
                total = 0.0
                for end in range(len(row.tokens(prefix)), len(path) + 1):
                    (after,) = await row.next_logprobs([path[:end]])
                    asked = path[end : end + 1] or closing(row.vocabulary)
                    total += math.log(np.exp(after.at(np.array(asked))).sum())
                found.append(total)
        return found[::-1]

    for text, one in zip(TEXTS, classifier(client, tolerance=0.0).classify_many(TEXTS), strict=True):
        expected = np.exp(asyncio.run(products(text)))
        found = distribution(one)
        assert found.label_mass == pytest.approx(expected.sum(), rel=1e-5)
        np.testing.assert_allclose(found.probabilities, expected / expected.sum(), rtol=1e-5)


def closing(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that close a label."""
    pieces = enumerate(vocabulary.pieces)
    return [token for token, piece in pieces if piece[:1] == b'"' and not piece[1:].strip(b" \t\r\n,}]")]


def test_a_long_system_prompt_is_computed_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system prompt is computed once: later rows compute few tokens."""
    batches: list[int] = []
    compute = Llama.decode_tokens

    def counted(self: Llama, context: int, tokens: Any, *rest: Any) -> int:
        batches.append(len(tokens))
        return compute(self, context, tokens, *rest)

    monkeypatch.setattr(Llama, "decode_tokens", counted)
    rules = " ".join(f"Rule {number}: news about topic {number} is news." for number in range(80))
    asked = classifier(client, prompt=rules, tolerance=0.02)
    asked.classify(TEXTS[0])
    first = sum(batches)
    batches.clear()
    asked.classify_many(TEXTS[1:3])
    assert first > 1000
    assert len(batches) > 2, "several batches a row"
    assert sum(batches) < 150


def test_a_row_is_the_same_to_the_last_bit_whatever_came_before(client: Any) -> None:
    """A row has the same bits whatever rows, prompts and scorings came before."""
    news = classifier(client, tolerance=0.02)
    forth = [distribution(found).logprobs for found in news.classify_many(TEXTS)]
    classifier(client, prompt="Classify the news. " * 30).classify(TEXTS[1])
    classifier(client, scoring="decode").classify(TEXTS[2])
    back = [distribution(found).logprobs for found in news.classify_many(TEXTS[::-1])]
    np.testing.assert_array_equal(forth, back[::-1])


def test_rows_computed_together_differ_by_rounding_alone(client: Any) -> None:
    """Rows computed together differ from single rows by rounding, at most 0.1 in total variation."""
    several: Any = open_client("local/smollm2-135m", options={"n_ctx": 1024, "n_parallel": 3})
    texts = [*TEXTS, *(f"{text} Again." for text in TEXTS)]
    together = classifier(several, tolerance=0.02).classify_many(texts)
    several.close()
    alone = classifier(client, tolerance=0.02).classify_many(texts)
    off = [
        0.5 * np.abs(one.probabilities - other.probabilities).sum()
        for one, other in zip(map(distribution, together), map(distribution, alone), strict=True)
    ]
    assert np.median(off) < 0.001
    assert max(off) < 0.1


@pytest.mark.parametrize("label", ["<|im_end|>", "end <|im_start|> of"])
def test_a_label_with_a_special_token_is_refused(client: Any, label: str) -> None:
    """A label with a special token raises ConfigurationError with the label."""
    with pytest.raises(ConfigurationError, match="do not spell the label") as refused:
        classifier(client, labels=["fine", label]).classify("a")
    assert repr(label) in str(refused.value)


def test_a_label_longer_than_the_context_is_refused() -> None:
    """A label longer than the context raises ConfigurationError that names n_ctx."""
    client = open_client("local/smollm2-135m", options={"n_ctx": 1024})
    with pytest.raises(ConfigurationError, match="raise n_ctx"):
        classifier(client, labels=["fine", "very " * 2000 + "long"]).classify("a")
    client.close()


@pytest.mark.parametrize("labels", [('6" pipe', "Müll/日本語", "back\\slash"), ("🎉", "a\nb", "tab\there")])
def test_labels_that_json_escapes_are_scored(client: Any, labels: tuple[str, ...]) -> None:
    """Labels that JSON escapes are scored and answered as the user spells them."""
    prompt = f"Answer with one of {', '.join(labels)}."
    prediction = classifier(client, labels=labels, prompt=prompt, tolerance=0.01).classify("Choose.")
    assert prediction.outcome is Outcome.OK
    assert prediction.label in labels


def test_a_thousand_labels_are_scored(client: Any) -> None:
    """A thousand labels are scored with fewer than 100 calls for the row."""
    labels = [f"group {i // 100}/item {i}" for i in range(1000)]
    prediction = classifier(client, labels=labels).classify("Item 412 of group 4.")
    assert prediction.outcome is Outcome.OK
    assert distribution(prediction).logprobs.shape == (1000,)
    assert prediction.attempts < 100


def test_cancelled_rows_give_their_place_back(client: Any) -> None:
    """A cancelled row frees its place, and the next row is answered."""
    asked = classifier(client)

    async def impatient() -> Prediction:
        waiting = asyncio.create_task(asked.aclassify(TEXTS[0]))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return await asyncio.wait_for(asked.aclassify(TEXTS[1]), timeout=60)

    assert asyncio.run(impatient()).outcome is Outcome.OK


def test_a_server_of_llama_cpp_answers_the_same_over_http(client: Any) -> None:
    """llama.cpp's own server gives nearly the same distribution over HTTP."""
    xllamacpp = engine_module()  # as calibrant imports it: its threads wait without spinning
    params = xllamacpp.CommonParams()
    params.model.path = str(locate_weights("local/smollm2-135m"))
    params.n_ctx, params.n_parallel, params.port, params.verbosity = 1024, 1, 0, -1
    server = xllamacpp.Server(params)
    remote = Classifier(
        model="openai/smollm2",
        labels=LABELS,
        field="category",
        prompt="Classify the news.",
        scoring="exact",
        tolerance=0.02,
        options={"api_base": server.listening_address},
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


def test_a_decoded_label_is_the_arg_max_of_exact_scoring(client: Any) -> None:
    """The decoded label is the most probable label of exact scoring."""
    exact = classifier(client, tolerance=0.0).classify_many(TEXTS)
    decoded = classifier(client, scoring="decode").classify_many(TEXTS)
    assert [one.label for one in decoded] == [one.label for one in exact]
