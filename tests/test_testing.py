"""Tests of the public fakes: probabilities, scripted failures, recorded calls."""

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
from calibrant.testing import FakeClient, FakeContinuingClient, fake_response

LABELS = ["Bills", "Bills/Gas", "Food", "Müll"]
PROBABILITIES = [0.4, 0.3, 0.2, 0.1]


def tokens_of(response: Any) -> Any:
    """Return the reported tokens."""
    return response["choices"][0]["logprobs"]["content"]


def text_of(response: Any) -> Any:
    """Return the text of a response."""
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
        """The tokens join to the content, however a label is split and wherever it stands."""
        response = fake_response(label, LABELS, PROBABILITIES, field=path, tokens=split)
        joined = b"".join(bytes(token["bytes"]) for token in tokens_of(response))
        assert joined.decode() == text_of(response)
        json.loads(text_of(response))

    @pytest.mark.parametrize("split", ["label", "characters", "bytes", by_threes])
    @pytest.mark.parametrize("label", LABELS)
    def test_token_probabilities_multiply_to_the_labels(self, split: Any, label: Any) -> None:
        """The product of the tokens is the label's probability."""
        response = fake_response(label, LABELS, PROBABILITIES, tokens=split)
        joint = math.fsum(token["logprob"] for token in tokens_of(response))
        assert math.exp(joint) == pytest.approx(PROBABILITIES[LABELS.index(label)])

    @pytest.mark.parametrize("split", ["label", "characters", "bytes", by_threes])
    def test_alternatives_sum_to_one(self, split: Any) -> None:
        """Untruncated alternatives are a distribution."""
        response = fake_response("Bills", LABELS, PROBABILITIES, tokens=split, top_logprobs=20)
        for token in tokens_of(response):
            assert math.fsum(math.exp(a["logprob"]) for a in token["top_logprobs"]) == pytest.approx(1.0)

    @pytest.mark.parametrize("label", ["Bills", "Food"])
    def test_the_reader_finds_the_given_distribution(self, label: Any) -> None:
        """Every probability is read back with whole labels."""
        response = fake_response(label, LABELS, PROBABILITIES)
        found = extract_distribution(response, LABELS, "category")
        assert found.probabilities == pytest.approx(PROBABILITIES)
        assert found.joint_logprob == pytest.approx(math.log(PROBABILITIES[LABELS.index(label)]))
        assert found.label_mass == pytest.approx(1.0)

    def test_shared_prefixes_part_where_their_tokens_part(self) -> None:
        """Labels with a shared prefix part where their tokens part."""
        content = tokens_of(fake_response("Bills", LABELS, PROBABILITIES, tokens="characters"))
        shares = {a["token"]: math.exp(a["logprob"]) for a in content[1]["top_logprobs"]}
        assert shares == pytest.approx({"B": 0.7, "F": 0.2, "M": 0.1})
        shares = {a["token"]: math.exp(a["logprob"]) for a in content[6]["top_logprobs"]}
        assert shares == pytest.approx({'"': 4 / 7, "/": 3 / 7})

    def test_alternatives_are_cut_and_sorted(self) -> None:
        """Only the most probable alternatives are listed, most probable first."""
        (_, value, _) = tokens_of(fake_response("Müll", LABELS, PROBABILITIES, top_logprobs=2))
        assert [a["token"] for a in value["top_logprobs"]] == ['Bills"', 'Bills/Gas"']
        assert math.exp(value["logprob"]) == pytest.approx(0.1)

    def test_illegal_mass_is_reported(self) -> None:
        """The labels share what the illegal mass leaves."""
        response = fake_response("Food", LABELS, PROBABILITIES, illegal_mass=0.9)
        assert math.exp(tokens_of(response)[1]["logprob"]) == pytest.approx(0.02)
        found = extract_distribution(response, LABELS, "category", space="raw")
        assert found.label_mass == pytest.approx(0.1)
        assert found.probabilities == pytest.approx(PROBABILITIES, abs=1e-6)

    def test_impossible_labels_have_openai_values(self) -> None:
        """An impossible label has -9999, as JSON has no minus infinity."""
        response = fake_response("Rent", LABELS, PROBABILITIES)
        assert tokens_of(response)[1]["logprob"] == -9999.0

    def test_labels_are_escaped_as_json(self) -> None:
        """Quotes and backslashes in a label do not break the answer."""
        response = fake_response('6" \\pipe', tokens="characters")
        assert json.loads(text_of(response)) == {"category": '6" \\pipe'}

    @pytest.mark.parametrize(
        "probabilities", [[0.5], [-0.1, 0.5, 0.3, 0.3], [0, 0, 0, 0], [float("nan"), 1, 0, 0]]
    )
    def test_wrong_distributions_are_errors(self, probabilities: Any) -> None:
        """A wrong length, negative values, zeros alone and NaN raise ConfigurationError."""
        with pytest.raises(ConfigurationError, match="probabilit"):
            fake_response("Food", LABELS, probabilities)

    @pytest.mark.parametrize("options", [{"illegal_mass": 1.0}, {"tokens": "words"}])
    def test_parameters_out_of_range_are_errors(self, options: Any) -> None:
        """The message names the parameter."""
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            fake_response("Food", LABELS, PROBABILITIES, **options)


class TestFakeClient:
    def test_the_fake_is_a_client(self) -> None:
        """The fake satisfies the Client protocol."""
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
    def test_answers_follow_the_rule(self, answer: Any, label: Any, probability: Any) -> None:
        """A rule gives a label, a label with its probability, or a distribution."""
        response = ask(FakeClient(LABELS, {"lunch": answer}), "lunch")
        assert json.loads(text_of(response)) == {"category": label}
        assert math.exp(tokens_of(response)[1]["logprob"]) == pytest.approx(probability)

    def test_the_rest_is_spread_evenly(self) -> None:
        """An answer (label, p) leaves (1 - p) / (L - 1) for each other label."""
        response = ask(FakeClient(LABELS, {"lunch": ("Food", 0.7)}), "lunch")
        found = extract_distribution(response, LABELS, "category")
        assert found.probabilities == pytest.approx([0.1, 0.1, 0.7, 0.1])

    def test_mappings_prefer_whole_messages(self) -> None:
        """The whole message comes first, then the first key it contains, then the default."""
        client = FakeClient(LABELS, {"gas": "Bills/Gas", "gas station snack": "Food"}, default="Müll")
        found = [text_of(ask(client, text)) for text in ("gas station snack", "the gas bill", "else")]
        assert [json.loads(text)["category"] for text in found] == ["Food", "Bills/Gas", "Müll"]

    def test_unknown_texts_are_errors(self) -> None:
        """A text without an answer and a default raises ConfigurationError."""
        with pytest.raises(ConfigurationError, match="no answer to 'else'"):
            ask(FakeClient(LABELS, {"gas": "Bills"}), "else")

    def test_rules_may_read_the_prompt(self) -> None:
        """A rule with a second parameter gets the system prompt."""
        client = FakeClient(LABELS, lambda _text, prompt: "Food" if "careful" in prompt else "Bills")
        messages = ({"role": "system", "content": "Be careful."}, {"role": "user", "content": "x"})
        assert "Food" in text_of(asyncio.run(client.complete(CompletionRequest(messages=messages))))
        assert "Bills" in text_of(ask(client, "x"))
        assert "Food" in text_of(ask(FakeClient(LABELS, lambda _text: "Food"), "x"))

    def test_failures_follow_the_call_number(self) -> None:
        """A failure for call 1 meets the second call, whatever its text."""
        client = FakeClient(LABELS, {}, default="Food", failures={1: ProviderError("down", provider="fake")})
        ask(client, "a")
        with pytest.raises(ProviderError, match="down"):
            ask(client, "b")
        ask(client, "c")

    def test_lists_answer_successive_calls(self) -> None:
        """A list gives one answer per call; its last answer is repeated, and other rows are not affected."""
        slow = ProviderTimeoutError("slow", provider="fake", retryable=True)
        client = FakeClient(LABELS, {"a": [slow, "Food", "Bills"], "b": "Müll"})
        with pytest.raises(ProviderTimeoutError):
            ask(client, "a")
        found = [text_of(ask(client, text)) for text in ("b", "a", "a", "a")]
        assert [json.loads(text)["category"] for text in found] == ["Müll", "Food", "Bills", "Bills"]

    def test_ready_responses_are_returned(self) -> None:
        """A ready response is returned unchanged."""
        broken = {"choices": []}
        assert ask(FakeClient(LABELS, {"a": broken}), "a") is broken

    def test_requests_choose_the_alternatives(self) -> None:
        """The request decides the number of alternatives reported, 0 included."""
        client = FakeClient(LABELS, {}, default=("Food", 0.7))
        assert len(tokens_of(ask(client, "a", top_logprobs=2))[1]["top_logprobs"]) == 2
        assert ask(client, "a", top_logprobs=0)["choices"][0]["logprobs"] is None

    def test_records_requests_and_concurrency(self) -> None:
        """The fake records its requests, and the largest number of calls at the same time."""
        client = FakeClient(LABELS, {}, default="Food", latency=0.02)

        async def three() -> Any:
            requests = [CompletionRequest(messages=({"role": "user", "content": t},)) for t in "abc"]
            await asyncio.gather(*map(client.complete, requests))
            return requests

        assert asyncio.run(three()) == client.requests
        assert client.max_in_flight == 3

    def test_functions_are_the_same_model(self) -> None:
        """The function made of a fake keeps rule, failures and records, from several threads."""
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

    def test_unknown_answers_are_errors(self) -> None:
        """An answer of an unknown form raises an error that lists the forms."""
        with pytest.raises(ConfigurationError, match="Expected a label"):
            ask(FakeClient(LABELS, lambda _text: 3), "a")


OPENING = '{"category": "'

# Tokens of three labels of which each begins with "Bi", but only one with the token "Bi".
ODD_TOKENS = {
    'Bills"': ["Bi", 'lls"'],
    'Bills/Gas"': ["Bill", 's/Gas"'],
    'Bison"': ["B", "i", 'son"'],
    'Food"': ['Food"'],
}
ODD = {"Bills": 0.4, "Bills/Gas": 0.3, "Bison": 0.2, "Food": 0.1}


def next_tokens(client: Any, text: str, **fields: Any) -> Any:
    """Return the listed next tokens and their probabilities, in order."""

    async def asked() -> Any:
        request = CompletionRequest(
            messages=({"role": "user", "content": "a"},), **{"top_logprobs": 0, **fields}
        )
        async with client.continuing(request) as row:
            return await row.next_tokens(text)

    return {token.decode(): math.exp(logprob) for token, logprob in asyncio.run(asked()).top}


def walked(client: Any, labels: Any, *, opening: str = OPENING) -> list[float]:
    """Return the probability of each label: that of all ways to write it, by a walk to its end."""

    def share(rest: str, text: str = "") -> float:
        if not rest:
            return 1.0
        found = next_tokens(client, opening + text).items()
        return sum(p * share(rest[len(one) :], text + one) for one, p in found if rest.startswith(one))

    return [share(f'{label}"') for label in labels]


class TestFakeContinuingClient:
    def test_only_continuing_fakes_continue(self) -> None:
        """The plain fake does not continue answers."""
        assert hasattr(FakeContinuingClient(LABELS, {}), "continuing")
        assert not hasattr(FakeClient(LABELS, {}), "continuing")

    def test_whole_requests_are_answered_alike(self) -> None:
        """The continuing fake answers whole requests like the plain fake."""
        options: dict[str, Any] = {"default": ("Food", 0.7), "tokens": "characters", "illegal_mass": 0.2}
        plain, continuing = FakeClient(LABELS, {}, **options), FakeContinuingClient(LABELS, {}, **options)
        assert ask(continuing, "lunch") == ask(plain, "lunch")

    def test_whole_labels_have_their_own_probabilities(self) -> None:
        """Each label is one token, most probable first, and impossible ones are not listed."""
        client = FakeContinuingClient(LABELS, {}, default={"Food": 1, "Bills": 3, "Bills/Gas": 0})
        found = next_tokens(client, OPENING)
        assert found == pytest.approx({'Bills"': 0.75, 'Food"': 0.25})
        assert list(found) == ['Bills"', 'Food"']

    def test_shared_prefixes_part_where_their_tokens_part(self) -> None:
        """Labels with a shared prefix part where their tokens part."""
        client = FakeContinuingClient(
            LABELS, {}, default=dict(zip(LABELS, PROBABILITIES, strict=True)), tokens="characters"
        )
        assert next_tokens(client, OPENING) == pytest.approx({"B": 0.7, "F": 0.2, "M": 0.1})
        assert next_tokens(client, OPENING + "Bill") == pytest.approx({"s": 1.0})
        assert next_tokens(client, OPENING + "Bills") == pytest.approx({'"': 4 / 7, "/": 3 / 7})

    @pytest.mark.parametrize("split", ["label", "characters", by_threes])
    @pytest.mark.parametrize("path", ["category", "classification.name", "results[].category"])
    def test_walks_return_the_probabilities(self, split: Any, path: Any) -> None:
        """A walk finds the probabilities, however labels are split and wherever they stand."""
        answer = dict(zip(LABELS, PROBABILITIES, strict=True))
        client = FakeContinuingClient(LABELS, {}, default=answer, tokens=split, field=path)
        opening = text_of(ask(client, "a")).partition("Bills")[0]
        assert walked(client, LABELS, opening=opening) == pytest.approx(PROBABILITIES)

    def test_walks_follow_labels_own_tokens(self) -> None:
        """Only labels that wrote the last token whole continue after it."""
        client = FakeContinuingClient(list(ODD), {}, default=ODD, tokens=ODD_TOKENS.__getitem__)
        assert next_tokens(client, OPENING) == pytest.approx({"Bi": 0.4, "Bill": 0.3, "B": 0.2, 'Food"': 0.1})
        assert next_tokens(client, OPENING + "Bi") == pytest.approx({'lls"': 2 / 3, 'son"': 1 / 3})
        assert next_tokens(client, OPENING + "Bill") == pytest.approx({'s/Gas"': 1.0})
        assert walked(client, list(ODD)) == pytest.approx(list(ODD.values()))

    def test_beginnings_continue_inside_tokens(self) -> None:
        """A beginning that ends inside tokens is continued by all labels with that beginning."""
        client = FakeContinuingClient(list(ODD), {}, default=ODD, tokens=ODD_TOKENS.__getitem__)
        assert next_tokens(client, OPENING + "Bil") == pytest.approx({'ls"': 4 / 7, "l": 3 / 7})
        assert next_tokens(client, OPENING + "Fo") == pytest.approx({'od"': 1.0})

    def test_json_around_labels_is_certain(self) -> None:
        """Every token before and after the label is certain."""
        client = FakeContinuingClient(LABELS, {}, default=("Food", 0.7))
        steps = ["", '{"cat', '{"category": "Food"', '{"category": "Food"}']
        found = [next_tokens(client, text) for text in steps]
        assert found == [{OPENING: 1.0}, {'egory": "': 1.0}, {"}": 1.0}, {"": 1.0}]

    @pytest.mark.parametrize("text", ["Well, ", OPENING + "Rent", '{"category": "Food"}!'])
    def test_unknown_beginnings_lead_to_no_label(self, text: Any) -> None:
        """A beginning of no answer is followed by a token that leads to no label."""
        client = FakeContinuingClient(LABELS, {}, default="Food")
        assert next_tokens(client, text) == {"\u2205": 1.0}

    def test_labels_outside_the_set_are_listed(self) -> None:
        """A label outside the set leads the listing, and a walk finds no label."""
        client = FakeContinuingClient(LABELS, {}, default="Rent")
        assert next_tokens(client, OPENING) == {'Rent"': 1.0}
        assert sum(walked(client, LABELS)) == 0

    def test_illegal_mass_is_at_the_start(self) -> None:
        """The illegal mass is at the label's first position only; later tokens belong to labels."""
        client = FakeContinuingClient(
            LABELS, {}, default={"Food": 3, "Bills": 1}, tokens="characters", illegal_mass=0.9
        )
        assert next_tokens(client, OPENING) == pytest.approx({"\u2205": 0.9, "F": 0.075, "B": 0.025})
        assert next_tokens(client, OPENING + "F") == {"o": 1.0}
        assert sum(walked(client, LABELS)) == pytest.approx(0.1)

    def test_labels_are_spelled_as_json(self) -> None:
        """Next tokens spell labels as JSON does."""
        client = FakeContinuingClient(['6" \\pipe', "rod"], {}, default='6" \\pipe')
        assert next_tokens(client, OPENING) == {'6\\" \\\\pipe"': 1.0}

    @pytest.mark.parametrize(("wanted", "listed"), [(0, 2), (1, 1), (3, 3)])
    def test_requests_choose_the_list_length(self, wanted: int, listed: int) -> None:
        """A request of 0 leaves the length of the list to the client."""
        client = FakeContinuingClient(LABELS, {}, default=("Food", 0.7), listed=2)
        assert len(next_tokens(client, OPENING, top_logprobs=wanted)) == listed

    def test_next_token_calls_are_calls(self) -> None:
        """Calls for next tokens and for whole answers are counted together."""
        down = ProviderError("down", provider="fake")
        client = FakeContinuingClient(LABELS, {}, default="Food", failures={1: down})
        ask(client, "a")
        with pytest.raises(ProviderError, match="down"):
            next_tokens(client, OPENING)
        next_tokens(client, OPENING + "F", top_logprobs=7)
        assert client.beginnings == [OPENING, OPENING + "F"]
        assert [request.top_logprobs for request in client.requests] == [5, 0, 7]

    def test_successive_answers_serve_next_tokens(self) -> None:
        """A list of answers serves calls for next tokens, so a row may fail first."""
        slow = ProviderTimeoutError("slow", provider="fake", retryable=True)
        client = FakeContinuingClient(LABELS, {"a": [slow, "Food", "Bills"]})
        with pytest.raises(ProviderTimeoutError):
            next_tokens(client, OPENING)
        assert [next(iter(next_tokens(client, OPENING))) for _ in range(2)] == ['Food"', 'Bills"']

    def test_concurrent_next_token_calls_count(self) -> None:
        """Calls for next tokens at the same time are counted."""
        client = FakeContinuingClient(LABELS, {}, default="Food", latency=0.02)
        request = CompletionRequest(messages=({"role": "user", "content": "a"},))

        async def three() -> None:
            async with client.continuing(request) as row:
                assert client.open_rows == 1
                await asyncio.gather(*(row.next_tokens(OPENING) for _ in range(3)))

        asyncio.run(three())
        assert (client.max_in_flight, client.open_rows) == (3, 0)

    def test_ended_rows_raise_errors(self) -> None:
        """A row used after its context raises ConfigurationError."""
        client = FakeContinuingClient(LABELS, {}, default="Food")

        async def late() -> None:
            with pytest.raises(LookupError):
                async with client.continuing(CompletionRequest(messages=())) as row:
                    raise LookupError
            assert client.open_rows == 0
            await row.next_tokens(OPENING)

        with pytest.raises(ConfigurationError, match="after its context had ended"):
            asyncio.run(late())

    def test_labels_are_recorded_and_checked(self) -> None:
        """Unscorable labels raise ConfigurationError, and every check is recorded."""
        client = FakeContinuingClient(LABELS, {}, unscorable=["Food"])
        asyncio.run(client.check_labels(["Bills", "Rent"]))
        with pytest.raises(ConfigurationError, match="'Food'"):
            asyncio.run(client.check_labels(LABELS))
        assert client.checked == [("Bills", "Rent"), tuple(LABELS)]

    def test_uncontinuable_answers_are_errors(self) -> None:
        """A ready response, an empty listing and an illegal mass of 1 raise ConfigurationError."""
        with pytest.raises(ConfigurationError, match="ready response"):
            next_tokens(FakeContinuingClient(LABELS, {}, default={"choices": []}), OPENING)
        with pytest.raises(ConfigurationError, match="listed must be at least 1, got 0"):
            FakeContinuingClient(LABELS, {}, listed=0)
        with pytest.raises(ConfigurationError, match="illegal_mass"):
            next_tokens(FakeContinuingClient(LABELS, {}, default="Food", illegal_mass=1.0), OPENING)
