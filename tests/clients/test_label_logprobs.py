"""Tests of exact scoring with servers that echo prompts with token log-probabilities."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError, Field, FieldLabels, LogprobSpace, Outcome, ProviderError
from calibrant.inference import Classifier, RetryPolicy, examine
from echo_model import PREFIX
from next_tokens import KEY, PROMPT, REQUEST, TEMPLATE, ask, failure

ROUTE = "/v1/completions"
KINDS = ["vllm", "sglang"]
LABEL_SETS = {
    # A token holds the quote before some labels and their first letters.
    "merged": ("Sport", "Spa", "Bill", "Bill/Gas", "Rent"),
    "apart": ("Bill", "Bill/Gas", "Rent"),
    "nested": ("a", "aa", "aaa"),
    "common beginning": ("Transfer in", "Transfer out", "Transfer "),
    # Their tokens are shown alike.
    "letters of several tokens": ("é", "è", "ê", "çé"),
    "escapes": ('say "hi"', "back\\slash", "new\nline"),
}

Start = Callable[..., Any]
Make = Callable[..., Any]
Classify = Callable[..., Classifier]
Fault = Callable[[dict[str, Any]], dict[str, Any]]


def settings_for(kind: str) -> dict[str, Any]:
    """Return the settings of a client of such a server."""
    # SGLang does not tell its template, and puts the token that begins a text before the prompt.
    return {"chat_template": TEMPLATE} if kind == "sglang" else {}


def prompt_of(text: str) -> str:
    """Return the prompt and the JSON before a label."""
    return f"<s>[system]{PROMPT}\n[user]{text}\n[assistant]{PREFIX}"


def spelled(labels: Any) -> list[str]:
    """Return labels as JSON spells them."""
    return [json.dumps(label, ensure_ascii=False)[1:-1] for label in labels]


async def scored(client: Any, labels: Sequence[str]) -> Any:
    """Return the log-probabilities of labels."""
    async with client.continuing(REQUEST) as row:
        return (await row.label_logprobs(PREFIX, labels)).logprobs


def echoes(*lists: Sequence[tuple[str, float]]) -> Fault:
    """Return a fault that replaces the answer by these tokens and their log-probabilities."""
    logprobs = [
        {"tokens": [text for text, _ in tokens], "token_logprobs": [value for _, value in tokens]}
        for tokens in lists
    ]
    choices = [{"index": place, "logprobs": found} for place, found in enumerate(logprobs)]
    return lambda _: {"choices": choices, "usage": {"prompt_tokens": sum(map(len, lists))}}


def scoring_bodies(server: Any) -> list[Any]:
    """Return the requests after the first one, which detects the kind of server."""
    return list(server.bodies(ROUTE)[1:])


class TestDistribution:
    @pytest.mark.parametrize("labels", LABEL_SETS.values(), ids=LABEL_SETS)
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_that_of_the_whole_texts(
        self, serve: Start, classify: Classify, kind: str, labels: tuple[str, ...]
    ) -> None:
        """The distribution is that of the whole texts, from one request per row."""
        server = serve(kind)
        classifier = classify(server, labels=labels, **settings_for(kind))
        texts = ["a swim", "power", "déjà 鮎 \N{GRINNING FACE}"]
        for text, prediction in zip(texts, classifier.classify_many(texts), strict=True):
            truth = server.echoing.model.distribution(prompt_of(text), spelled(labels))
            found = prediction.distribution
            assert found is not None
            np.testing.assert_allclose(np.exp(found.logprobs), truth, atol=1e-9)
            assert prediction.label == labels[int(np.argmax(truth))]
            assert (found.space, found.error_bound) == (LogprobSpace.EXACT, 0.0)
            assert all(found.measured)
            assert prediction.attempts == 1
            assert prediction.model == "toy"
            assert prediction.usage.completion_tokens == len(labels) + 1
            tokens = [
                server.echoing.model.tokenize(f"{prompt_of(text)}{one}") for one in ("", *spelled(labels))
            ]
            assert prediction.usage.prompt_tokens == sum(map(len, tokens)) + len(labels)
        assert len(scoring_bodies(server)) == len(texts)

    @pytest.mark.parametrize("kind", KINDS)
    def test_its_mass_is_that_of_the_labels(self, serve: Start, classify: Classify, kind: str) -> None:
        """`label_mass` and `joint_logprob` equal the masses of the labels' texts."""
        labels = LABEL_SETS["apart"]
        server = serve(kind)
        found = classify(server, labels=labels, **settings_for(kind)).classify("x").distribution
        model, prompt = server.echoing.model, prompt_of("x")
        masses = [model.mass(prompt, f'{label}"') - model.mass(prompt, "") for label in labels]
        assert found is not None
        assert found.label_mass == pytest.approx(math.fsum(map(math.exp, masses)), rel=1e-9)
        assert found.joint_logprob == pytest.approx(max(masses), rel=1e-9)
        assert found.is_label_mass_low

    def test_tokens_across_the_quote_scale_the_mass(self, serve: Start, make: Make) -> None:
        """The mass of a label is relative to the opening quote's mass over all tokenisations seen."""
        server = serve("vllm")
        client = make(server)
        asyncio.run(ask(client))
        begun = (("x", 0.0), ('"', math.log(0.2)))
        continued = [
            (("x", 0.0), ('"S', math.log(0.3)), ('a"', math.log(0.5))),
            (("x", 0.0), ('"', math.log(0.2)), ('b"', math.log(0.9))),
        ]
        server.faults[ROUTE] = [echoes(begun, *continued)]
        found = asyncio.run(scored(client, ["Sa", "b"]))
        assert np.exp(found) == pytest.approx([0.15 / 0.35, 0.18 / 0.35])

    @pytest.mark.parametrize(
        ("logprobs", "shares"),
        [
            ([math.log(0.1), math.log(0.3), math.log(0.2)], [1 / 6, 1 / 2, 1 / 3]),
            ([-2001.0, -2000.0], [1 / (1 + math.e), math.e / (1 + math.e)]),
            ([-9999.0 * 9, -1.0], [1e-12, 1.0]),
        ],
        ids=["plain", "underflowing", "impossible"],
    )
    def test_probabilities_are_divided_by_their_sum(
        self, serve: Start, classify: Classify, logprobs: list[float], shares: list[float]
    ) -> None:
        """The probabilities are divided by their sum, which is `label_mass`; tiny ones keep their ratio."""
        server, begun = serve("vllm"), [("x", 0.0), ('"', 0.0)]
        labels = "abc"[: len(logprobs)]
        continued = [[*begun, (f'{label}"', value)] for label, value in zip(labels, logprobs, strict=True)]
        server.faults[ROUTE] = [None, echoes(begun, *continued)]
        found = classify(server, labels=tuple(labels)).classify("x").distribution
        assert found is not None
        np.testing.assert_allclose(found.probabilities, shares)
        assert (found.emitted, found.joint_logprob) == ("b", pytest.approx(logprobs[1]))
        assert found.label_mass == pytest.approx(sum(map(math.exp, logprobs)))
        assert found.unresolved_mass == 0.0

    @pytest.mark.parametrize("kind", KINDS)
    def test_150_labels_are_scored_exactly(self, serve: Start, classify: Classify, kind: str) -> None:
        """150 labels are scored exactly in two requests, although the server lists only 20 tokens."""
        labels = [f"Label {number} {'Bill' * (number % 3)}" for number in range(150)]
        server = serve(kind)
        assert server.echoing.max_logprobs == 20
        found = classify(server, labels=labels, **settings_for(kind)).classify("x").distribution
        truth = server.echoing.model.distribution(prompt_of("x"), labels)
        assert found is not None
        np.testing.assert_allclose(np.exp(found.logprobs), truth, atol=1e-9)
        assert sorted(len(body["prompt"]) for body in scoring_bodies(server)) == [23, 128]

    @pytest.mark.parametrize("kind", KINDS)
    def test_fields_are_scored_in_sequence(self, serve: Start, classify: Classify, kind: str) -> None:
        """Each field takes one request, which holds the label of the field before."""
        team, urgent = ("Spa", "Bill"), ("yes", "no")
        fields = FieldLabels(
            [Field(name="team", labels=list(team)), Field(name="urgent", labels=list(urgent))]
        )
        server = serve(kind)
        prediction = classify(server, labels=fields, **settings_for(kind)).classify("x")
        first, second = scoring_bodies(server)
        assert prediction.outcome is Outcome.OK
        assert prediction.attempts == 2
        bos = "" if kind == "vllm" else "<s>"
        for part, body, labels in zip(prediction.parts, (first, second), (team, urgent), strict=True):
            truth = server.echoing.model.distribution(bos + body["prompt"][0], labels)
            assert part.distribution is not None
            np.testing.assert_allclose(np.exp(part.distribution.logprobs), truth, atol=1e-9)
        assert f'"{prediction.parts[0].label}"' in second["prompt"][0]


class TestRequests:
    @pytest.mark.parametrize("kind", KINDS)
    def test_hold_special_tokens_once(self, serve: Start, classify: Classify, kind: str) -> None:
        """Special tokens are in the prompt or added by the server, never both."""
        server = serve(kind)
        classify(server, **settings_for(kind)).classify("x")
        (body,) = scoring_bodies(server)
        own = kind == "vllm"
        assert ("add_special_tokens" in body) is own
        assert body.get("add_special_tokens", False) is False
        assert body["prompt"][0].startswith("<s>") is own

    def test_one_token_suits_older_servers(self, serve: Start, classify: Classify) -> None:
        """A server that cannot generate 0 tokens is asked for one, and scores the labels."""
        server = serve("vllm")
        server.echoing.writes_none = False
        assert classify(server).classify("x").label

    def test_servers_without_alternatives_get_logprobs_0(self, serve: Start, classify: Classify) -> None:
        """After a first call that lists no alternatives, later calls request none."""
        server = serve("vllm")
        server.echoing.max_logprobs = 0
        assert all(found.label for found in classify(server).classify_many(["x", "y"]))
        assert [body["logprobs"] for body in server.bodies(ROUTE)] == [1, 0, 0, 0]

    @pytest.mark.parametrize(
        ("labels", "sizes"),
        [
            (["x" * 100] * 299, [44, 128, 128]),
            (["é" * 1_950] * 99, [22, 39, 39]),
            (["x" * 10**6], [1, 1]),
        ],
        ids=["short", "long", "huge"],
    )
    def test_batches_stay_below_the_size_limit(
        self, serve: Start, make: Make, labels: list[str], sizes: list[int]
    ) -> None:
        """Long prompts are split into several requests, and a huge prompt is sent alone."""
        server = serve("vllm")
        client = make(server)
        asyncio.run(ask(client))
        server.faults[ROUTE] = [(500, {"error": "busy"}, {})] * 3
        with pytest.raises(ProviderError, match="busy"):
            asyncio.run(scored(client, labels))
        assert sorted(len(body["prompt"]) for body in server.bodies(ROUTE)[2:]) == sizes

    def test_sglang_needs_a_chat_template(self, serve: Start, make: Make) -> None:
        """With SGLang a missing chat_template raises ConfigurationError."""
        message = str(failure(make(serve("sglang")), ConfigurationError))
        assert "Set the model's option chat_template" in message


def no_lists(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove the listed log-probabilities from an answer."""
    return {**answer, "choices": [{**choice, "logprobs": None} for choice in answer["choices"]]}


class TestAbility:
    @pytest.mark.parametrize(
        ("fault", "came"),
        [
            (None, "expected the log-probabilities of the prompt's tokens from /v1/completions with echo"),
            (no_lists, "with echo and logprobs, got none"),
            ((400, {"error": {"message": f"echo is not supported, {KEY}"}}, {}), "refuses them: echo is not"),
            (
                (422, {"detail": "Setting 'echo' and 'logprobs' at the same time is not supported"}, {}),
                "refuses them: Setting",
            ),
        ],
    )
    def test_missing_echo_is_detected(self, serve: Start, classify: Classify, fault: Any, came: str) -> None:
        """A missing echo raises ConfigurationError with the remedy, after one call."""
        server = serve("vllm")
        server.echoing.echo = fault is not None
        server.faults[ROUTE] = [fault] * 100
        classifier = classify(server, api_key=KEY, concurrency=16)
        with pytest.raises(ConfigurationError) as caught:
            classifier.classify_many([f"text {number}" for number in range(16)])
        message = str(caught.value)
        assert message.startswith(
            "This endpoint reports no probabilities for exact scoring: http://127.0.0.1:"
        )
        assert came in message
        assert "use scoring='decode' or 'sampled'" in message
        assert KEY not in message
        assert len(server.bodies(ROUTE)) == 1

    def test_transient_first_faults_are_retried(self, serve: Start, classify: Classify) -> None:
        """After two transient faults of the first call the row is repeated and gets a label."""
        server = serve("vllm")
        server.faults[ROUTE] = [(503, {"error": "busy"}, {}), lambda answer: {**answer, "choices": []}]
        assert classify(server).classify("x").label


def changed(place: int, value: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that changes a log-probability of the second choice."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        answer["choices"][1]["logprobs"]["token_logprobs"][place] = value
        return answer

    return change


def cut(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove one log-probability from an answer."""
    answer["choices"][0]["logprobs"]["token_logprobs"].pop()
    return answer


OTHER = {"tokens": ["x"], "token_logprobs": [None]}
BROKEN: dict[str, Fault] = {
    "a choice too few": lambda answer: {**answer, "choices": answer["choices"][1:]},
    "no choices": lambda answer: {**answer, "choices": None},
    "not a number": changed(-3, math.nan),
    "minus infinity": changed(-3, -math.inf),
    "positive": changed(-3, 0.5),
    "text": changed(-3, f"-1 {KEY}"),
    "lists of two lengths": cut,
    "no lists": no_lists,
    "tokens too few": lambda answer: {**answer, "usage": {"prompt_tokens": 10**400}},
    "no prompts": lambda answer: {"choices": [{**choice, "logprobs": OTHER} for choice in answer["choices"]]},
    "the same tokens": echoes(*[[("a", -1), ("b", -1)]] * 3),
    "no more tokens": echoes([("a", -1), ("b", -1)], [("a", -1), ("b", -1), ("c", -1)], [("a", -1)]),
    "other beginnings": echoes([("a", -1)], [("b", -1)], [("a", -1), ("b", -1)]),
}


class TestFaults:
    @pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
    def test_broken_answers_are_retryable(self, serve: Start, make: Make, fault: Fault) -> None:
        """A broken answer raises a retryable error, and the next call succeeds."""
        server = serve("vllm")
        client = make(server, api_key=KEY)
        asyncio.run(ask(client))
        server.faults[ROUTE] = [fault]
        error = failure(client)
        assert error.retryable
        assert "Expected the log-probabilities of the prompts' tokens, got " in str(error)
        assert len(str(error)) < 300
        asyncio.run(ask(client))

    def test_attempts_are_summed_over_fields(self, serve: Start, classify: Classify) -> None:
        """Calls for the fields before the failed one count, too."""
        fields = FieldLabels(
            [Field(name="team", labels=["Spa", "Bill"]), Field(name="to", labels=["a", "b"])]
        )
        server = serve("vllm")
        policy = RetryPolicy(attempts=2, sleep=lambda _: asyncio.sleep(0))
        classifier = classify(server, labels=fields, retry=policy)
        server.faults[ROUTE] = [None, None, *[(503, {"error": "busy"}, {})] * 9]
        prediction = classifier.classify("x")
        assert (prediction.outcome, prediction.attempts) == (Outcome.ERROR, 3)

    def test_one_failed_request_fails_the_row(self, serve: Start, make: Make) -> None:
        """If one of a row's requests fails, the row gets that request's error."""
        server = serve("vllm")
        client = make(server)
        asyncio.run(ask(client))
        server.faults[ROUTE] = [None, (500, {"error": "out of order"}, {})]
        with pytest.raises(ProviderError, match="out of order"):
            asyncio.run(scored(client, [f"label {number}" for number in range(200)]))


def without_generated(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove the generated token from each choice of an answer."""
    for choice in answer["choices"]:
        choice["logprobs"]["tokens"].pop()
        choice["logprobs"]["token_logprobs"].pop()
    return answer


class TestReading:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("fault", [None, without_generated])
    @pytest.mark.parametrize("counted", [True, False])
    def test_generated_tokens_are_cut_off(
        self, serve: Start, classify: Classify, kind: str, fault: Fault | None, *, counted: bool
    ) -> None:
        """Generated tokens are cut off, by the reported number of prompt tokens or by their text."""
        labels = LABEL_SETS["apart"]
        server = serve(kind)
        server.echoing.counted = counted
        server.faults[ROUTE] = [None, fault]
        found = classify(server, labels=labels, **settings_for(kind)).classify("x").distribution
        model, prompt = server.echoing.model, prompt_of("x")
        masses = [model.mass(prompt, f'{label}"') - model.mass(prompt, "") for label in labels]
        assert found is not None
        assert found.joint_logprob == pytest.approx(max(masses), rel=1e-12)


class TestDoctor:
    @pytest.mark.parametrize("kind", [*KINDS, "llama.cpp"])
    def test_the_doctor_names_the_scoring(self, serve: Start, kind: str) -> None:
        """The doctor reports scoring by next tokens or by whole labels."""
        server = serve(kind)
        options = {**settings_for(kind), "api_key": KEY}
        found = examine("openai/toy", api_base=server.root, options=options)
        way = "next-token probabilities" if kind == "llama.cpp" else "the probabilities of whole labels"
        expected = f"4 of 4 texts were scored on {way}."
        if kind == "llama.cpp":  # the toy model knows none of the doctor's labels
            expected = "No label is among the tokens the model would write next."
        assert found.finding("exact").detail == expected

    def test_the_doctor_warns_of_missing_echo(self, serve: Start) -> None:
        """The doctor warns about a server without echo, and does not recommend exact scoring."""
        server = serve("vllm")
        server.echoing.echo = False
        found = examine("openai/toy", api_base=server.root, options={"api_key": KEY})
        finding = found.finding("exact")
        assert finding.verdict == "warning"
        assert finding.detail.startswith(
            "Not possible: This endpoint reports no probabilities for exact scoring"
        )
        assert found.scoring != "exact"
