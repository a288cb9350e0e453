"""The public fakes: exact probabilities, scripted failures, recorded calls."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from typing import Any

import pytest

from calibrant.core import (
    Client,
    CompletionRequest,
    ConfigurationError,
    LogprobSpace,
    ProviderError,
    ProviderTimeoutError,
)
from calibrant.logprobs import extract_distribution
from calibrant.testing import FakeClient, fake_response

LABELS = ["Bills", "Bills/Gas", "Food", "Müll"]
PROBABILITIES = [0.4, 0.3, 0.2, 0.1]


def tokens_of(response: Any) -> Any:
    """Return the reported tokens."""
    return response["choices"][0]["logprobs"]["content"]


def text_of(response: Any) -> Any:
    """Return what a response says."""
    return response["choices"][0]["message"]["content"]


def by_threes(text: Any) -> Any:
    """Split a text into pieces of three characters."""
    return [text[start : start + 3] for start in range(0, len(text), 3)]


def ask(client: Any, text: Any, **fields: Any) -> Any:
    """Return the response to a text."""
    request = CompletionRequest(messages=({"role": "user", "content": text},), **fields)
    return asyncio.run(client.complete(request))


class TestFakeResponse:
    @pytest.mark.parametrize("split", ["label", "characters", "bytes", by_threes])
    @pytest.mark.parametrize("path", ["category", "classification.name", "results[].category"])
    @pytest.mark.parametrize("label", LABELS)
    def test_tokens_join_to_the_content(self, split: Any, path: Any, label: Any) -> None:
        """However a label is split and wherever it stands."""
        response = fake_response(label, LABELS, PROBABILITIES, field=path, tokens=split)
        joined = b"".join(bytes(token["bytes"]) for token in tokens_of(response))
        assert joined.decode() == text_of(response)
        json.loads(text_of(response))

    @pytest.mark.parametrize("split", ["label", "characters", "bytes", by_threes])
    @pytest.mark.parametrize("label", LABELS)
    def test_token_probabilities_multiply_to_the_labels(self, split: Any, label: Any) -> None:
        """Along the trie the product is the label's probability."""
        response = fake_response(label, LABELS, PROBABILITIES, tokens=split)
        joint = math.fsum(token["logprob"] for token in tokens_of(response))
        assert math.exp(joint) == pytest.approx(PROBABILITIES[LABELS.index(label)])

    @pytest.mark.parametrize("split", ["label", "characters", "bytes", by_threes])
    def test_alternatives_sum_to_one_at_every_token(self, split: Any) -> None:
        """Untruncated alternatives are a distribution."""
        response = fake_response("Bills", LABELS, PROBABILITIES, tokens=split, top_logprobs=20)
        for token in tokens_of(response):
            assert math.fsum(math.exp(a["logprob"]) for a in token["top_logprobs"]) == pytest.approx(1.0)

    @pytest.mark.parametrize("label", ["Bills", "Food"])
    def test_the_reader_finds_the_distribution_that_was_put_in(self, label: Any) -> None:
        """With whole labels every probability comes back."""
        response = fake_response(label, LABELS, PROBABILITIES)
        found = extract_distribution(response, LABELS, "category")
        assert found.probabilities == pytest.approx(PROBABILITIES)
        assert found.joint_logprob == pytest.approx(math.log(PROBABILITIES[LABELS.index(label)]))
        assert found.label_mass == pytest.approx(1.0)

    def test_shared_prefixes_part_where_their_tokens_part(self) -> None:
        """Bills is Bills only once its quote is there."""
        content = tokens_of(fake_response("Bills", LABELS, PROBABILITIES, tokens="characters"))
        shares = {a["token"]: math.exp(a["logprob"]) for a in content[1]["top_logprobs"]}
        assert shares == pytest.approx({"B": 0.7, "F": 0.2, "M": 0.1})
        shares = {a["token"]: math.exp(a["logprob"]) for a in content[6]["top_logprobs"]}
        assert shares == pytest.approx({'"': 4 / 7, "/": 3 / 7})

    def test_alternatives_are_cut_and_sorted(self) -> None:
        """Only the most probable, most probable first."""
        (_, value, _) = tokens_of(fake_response("Müll", LABELS, PROBABILITIES, top_logprobs=2))
        assert [a["token"] for a in value["top_logprobs"]] == ['Bills"', 'Bills/Gas"']
        assert math.exp(value["logprob"]) == pytest.approx(0.1)

    def test_no_alternatives_wanted_means_no_logprobs(self) -> None:
        """As a provider that was not asked."""
        assert fake_response("Food", LABELS, top_logprobs=0)["choices"][0]["logprobs"] is None

    def test_illegal_mass_is_reported_as_raw_engines_do(self) -> None:
        """The labels share what is left."""
        response = fake_response("Food", LABELS, PROBABILITIES, illegal_mass=0.9)
        assert math.exp(tokens_of(response)[1]["logprob"]) == pytest.approx(0.02)
        found = extract_distribution(response, LABELS, "category", space="raw")
        assert found.label_mass == pytest.approx(0.1)
        assert found.probabilities == pytest.approx(PROBABILITIES, abs=1e-6)

    def test_an_impossible_label_has_the_value_openai_reports(self) -> None:
        """-9999, not minus infinity: JSON has none."""
        response = fake_response("Rent", LABELS, PROBABILITIES)
        assert tokens_of(response)[1]["logprob"] == -9999.0

    def test_labels_are_escaped_as_json(self) -> None:
        """Quotes and backslashes in a label do not break the answer."""
        response = fake_response('6" \\pipe', tokens="characters")
        assert json.loads(text_of(response)) == {"category": '6" \\pipe'}

    @pytest.mark.parametrize(
        "probabilities", [[0.5], [-0.1, 0.5, 0.3, 0.3], [0, 0, 0, 0], [float("nan"), 1, 0, 0]]
    )
    def test_refuses_what_is_no_distribution(self, probabilities: Any) -> None:
        """Wrong length, negative, all zero, not a number."""
        with pytest.raises(ConfigurationError, match="probabilit"):
            fake_response("Food", LABELS, probabilities)

    @pytest.mark.parametrize("options", [{"illegal_mass": 1.0}, {"tokens": "words"}])
    def test_refuses_parameters_out_of_range(self, options: Any) -> None:
        """The parameter is named."""
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            fake_response("Food", LABELS, PROBABILITIES, **options)


class TestFakeClient:
    def test_satisfies_the_client_protocol(self) -> None:
        """It can stand wherever a Client is asked for."""
        client = FakeClient(LABELS, {}, name="mine", space="raw")
        assert isinstance(client, Client)
        assert (client.name, client.space) == ("mine", LogprobSpace.RAW)
        assert not client.closed
        client.close()
        assert client.closed

    @pytest.mark.parametrize(
        ("answer", "label", "probability"),
        [
            ("Food", "Food", 1.0),
            (("Food", 0.7), "Food", 0.7),
            ({"Food": 3, "Bills": 1}, "Food", 0.75),
            (("Food", 0.1), "Food", 0.1),
        ],
    )
    def test_answers_as_told(self, answer: Any, label: Any, probability: Any) -> None:
        """A label, a label with its probability, or a distribution."""
        response = ask(FakeClient(LABELS, {"lunch": answer}), "lunch")
        assert json.loads(text_of(response)) == {"category": label}
        assert math.exp(tokens_of(response)[1]["logprob"]) == pytest.approx(probability)

    def test_the_rest_is_spread_evenly(self) -> None:
        """(label, p) leaves (1 - p) / (L - 1) for each other label."""
        response = ask(FakeClient(LABELS, {"lunch": ("Food", 0.7)}), "lunch")
        found = extract_distribution(response, LABELS, "category")
        assert found.probabilities == pytest.approx([0.1, 0.1, 0.7, 0.1])

    def test_a_mapping_prefers_the_whole_message(self) -> None:
        """Then the first key it contains, then the default."""
        client = FakeClient(LABELS, {"gas": "Bills/Gas", "gas station snack": "Food"}, default="Müll")
        found = [text_of(ask(client, text)) for text in ("gas station snack", "the gas bill", "else")]
        assert [json.loads(text)["category"] for text in found] == ["Food", "Bills/Gas", "Müll"]

    def test_an_unknown_text_without_default_is_an_error(self) -> None:
        """A test that asks something else should notice."""
        with pytest.raises(ConfigurationError, match="no answer to 'else'"):
            ask(FakeClient(LABELS, {"gas": "Bills"}), "else")

    def test_a_rule_may_look_at_the_prompt(self) -> None:
        """With a second parameter it receives the system prompt."""
        client = FakeClient(LABELS, lambda _text, prompt: "Food" if "careful" in prompt else "Bills")
        messages = ({"role": "system", "content": "Be careful."}, {"role": "user", "content": "x"})
        assert "Food" in text_of(asyncio.run(client.complete(CompletionRequest(messages=messages))))
        assert "Bills" in text_of(ask(client, "x"))
        assert "Food" in text_of(ask(FakeClient(LABELS, lambda _text: "Food"), "x"))

    def test_failures_strike_by_call_number(self) -> None:
        """The second call fails, whatever it asks."""
        client = FakeClient(LABELS, {}, default="Food", failures={1: ProviderError("down", provider="fake")})
        ask(client, "a")
        with pytest.raises(ProviderError, match="down"):
            ask(client, "b")
        ask(client, "c")

    def test_a_list_answers_successive_calls_of_a_row(self) -> None:
        """The last one stays; other rows are not affected."""
        slow = ProviderTimeoutError("slow", provider="fake", retryable=True)
        client = FakeClient(LABELS, {"a": [slow, "Food", "Bills"], "b": "Müll"})
        with pytest.raises(ProviderTimeoutError):
            ask(client, "a")
        found = [text_of(ask(client, text)) for text in ("b", "a", "a", "a")]
        assert [json.loads(text)["category"] for text in found] == ["Müll", "Food", "Bills", "Bills"]

    def test_a_ready_response_is_returned_as_it_is(self) -> None:
        """For answers no model should give."""
        broken = {"choices": []}
        assert ask(FakeClient(LABELS, {"a": broken}), "a") is broken

    def test_honours_the_wanted_alternatives(self) -> None:
        """top_logprobs of the request, 0 included."""
        client = FakeClient(LABELS, {}, default=("Food", 0.7))
        assert len(tokens_of(ask(client, "a", top_logprobs=2))[1]["top_logprobs"]) == 2
        assert ask(client, "a", top_logprobs=0)["choices"][0]["logprobs"] is None

    def test_records_requests_and_concurrency(self) -> None:
        """What was asked, and how many calls ran at the same time."""
        client = FakeClient(LABELS, {}, default="Food", latency=0.02)

        async def three() -> Any:
            requests = [CompletionRequest(messages=({"role": "user", "content": t},)) for t in "abc"]
            await asyncio.gather(*map(client.complete, requests))
            return requests

        assert asyncio.run(three()) == client.requests
        assert client.max_in_flight == 3

    def test_as_callable_is_the_same_model(self) -> None:
        """Rule, failures and recording hold for the function too, from several threads."""
        client = FakeClient(LABELS, {}, default="Food", latency=0.02, failures={0: ValueError("first")})
        function = client.as_callable(top_logprobs=1)
        with pytest.raises(ValueError, match="first"):
            function([{"role": "user", "content": "a"}])
        threads = [
            threading.Thread(target=function, args=([{"role": "user", "content": "b"}],)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(client.requests) == 5
        assert client.max_in_flight > 1
        assert client.requests[0].top_logprobs == 1

    def test_answers_are_deterministic(self) -> None:
        """Two runs give equal responses."""
        first, second = (
            [ask(FakeClient(LABELS, {}, default=("Food", 0.6), tokens="characters"), "a") for _ in range(2)]
            for _ in range(2)
        )
        assert first == second

    def test_refuses_an_answer_it_does_not_understand(self) -> None:
        """The forms it knows are listed."""
        with pytest.raises(ConfigurationError, match="Expected a label"):
            ask(FakeClient(LABELS, lambda _text: 3), "a")
