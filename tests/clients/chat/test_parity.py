"""Tests of equal predictions, bodies and errors through litellm and without it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.clients._failures import rate_state
from calibrant.core import CompletionRequest, Outcome, Prediction, ProviderError, ProviderTimeoutError
from calibrant.inference import Classifier, RetryPolicy, open_client
from calibrant.testing import fake_response

LABELS = ["Food", "Food/Out", "Miete €", "日用品"]
SHARES = [0.1, 0.2, 0.3, 0.4]
KEY = "plain-key-123"


def answer(label: str = "Food", **changes: Any) -> dict[str, Any]:
    """Return an answer of a server, with parts of its choice replaced."""
    found = fake_response(label, LABELS, SHARES, tokens="bytes")
    found["choices"][0] |= changes
    found["usage"] = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    return found


def message(content: str | None, **more: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": "assistant", "content": content, **more}


ANSWERS: dict[str, Any] = {
    "plain": answer(),
    "shared prefix": answer("Food/Out"),
    "beyond ascii": answer("日用品"),
    "currency": answer("Miete €"),
    "another model": {**answer(), "model": "other-2025"},
    "no usage": {name: value for name, value in answer().items() if name != "usage"},
    "no logprobs": answer(logprobs=None),
    "refused": answer(message=message(None, refusal="I will not."), logprobs=None),
    "filtered": answer(message=message(""), finish_reason="content_filter", logprobs=None),
    "cut off": answer(message=message('{"categ'), finish_reason="length", logprobs=None),
    "nothing before the limit": answer(message=message(""), finish_reason="length", logprobs=None),
    "no label": answer(message=message('{"category": "Cars"}'), logprobs=None),
    "no json": answer(message=message("Food, I think"), logprobs=None),
    "fenced": answer(message=message('```json\n{"category": "Food"}\n```'), logprobs=None),
    "blocked": (400, {"error": {"message": "blocked", "code": "content_policy_violation"}}, {}),
    "too long": (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, {}),
}

STATUSES: dict[str, Any] = {
    f"status {status}": (status, {"error": {"message": "scripted", "type": "scripted", "code": None}}, {})
    for status in (400, 401, 403, 404, 408, 409, 422, 429, 500, 502, 503, 529)
} | {
    "wait": (429, {"error": {"message": "slow down"}}, {"Retry-After": "7"}),
    "no credit": (429, {"error": {"message": "x", "code": "insufficient_quota"}}, {}),
    "wrong model": (400, {"error": {"message": "no such model", "code": "model_not_found"}}, {}),
}


RETRYABLE = {*(f"status {status}" for status in (408, 409, 429, 500, 502, 503, 529)), "wait"}
SYSTEMIC = {"status 401", "status 403", "status 404", "wrong model"}

BY_LITELLM = {"custom_llm_provider": "openai"}


@pytest.fixture
def clients(server: Any) -> Iterator[tuple[Any, Any]]:
    """Return the two clients of one server."""
    options = {
        "api_base": server.url,
        "api_key": KEY,
        "input_cost_per_token": 2e-6,
        "output_cost_per_token": 8e-6,
    }
    direct = open_client("openai/fake", options=options)
    yield open_client("openai/fake", options=options | BY_LITELLM), direct
    direct.close()


def classified(client: Any, texts: list[str]) -> dict[str, Prediction]:
    """Return the predictions of texts, each from one attempt."""
    classifier = Classifier(
        model=client, labels=LABELS, field="category", prompt="Which — één?", retry=RetryPolicy(attempts=1)
    )
    return dict(zip(texts, classifier.classify_many(texts), strict=True))


def assert_same(name: str, found: Prediction, expected: Prediction) -> None:
    """Compare two predictions field by field, except latency and the words of an error."""
    for field in dataclasses.fields(Prediction):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "latency_seconds":
            continue
        worded = expected.outcome in {Outcome.ERROR, Outcome.REFUSAL} or name == "too long"
        if field.name == "reason" and worded:
            assert bool(ours) == bool(theirs), (name, field.name)
        elif field.name == "distribution" and theirs is not None:
            assert ours.labels == theirs.labels
            np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)
            np.testing.assert_array_equal(ours.measured, theirs.measured)
            assert (ours.joint_logprob, ours.label_mass) == (theirs.joint_logprob, theirs.label_mass)
        elif field.name == "usage":
            assert dataclasses.replace(ours, cost=None) == dataclasses.replace(theirs, cost=None), name
            assert ours.cost == pytest.approx(theirs.cost), name
        else:
            assert ours == theirs, (name, field.name)


def test_predictions_are_the_same_field_by_field(server: Any, clients: Any) -> None:
    """The direct client and litellm's give predictions that are equal in every field."""
    server.answers = ANSWERS
    expected, found = (classified(client, list(ANSWERS)) for client in clients)
    # litellm takes an answer that does not say what it took for one that took nothing.
    silent = found["no usage"]
    assert (silent.outcome, silent.usage.cost, expected["no usage"].usage.cost) == (Outcome.OK, None, 0.0)
    for name in ANSWERS.keys() - {"no usage"}:
        assert_same(name, found[name], expected[name])
    assert {prediction.outcome for prediction in found.values()} >= {
        Outcome.OK,
        Outcome.REFUSAL,
        Outcome.UNPARSED,
    }
    assert found["blocked"].outcome is Outcome.REFUSAL
    assert found["beyond ascii"].label == "日用品"
    assert found["beyond ascii"].confidence == pytest.approx(0.4)
    assert found["plain"].usage.cost == pytest.approx(20 * 2e-6 + 5 * 8e-6)


def test_bodies_are_the_same(server: Any, clients: Any) -> None:
    """The direct client and litellm's send the same body."""
    for client in clients:
        classified(client, ["plain"])
    theirs, ours = server.bodies
    assert ours == theirs


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 9, "seed": 3, "stop": ["x"]},
        {"temperature": 0.5},
        {"temperature": None},
        {"extra_body": {"guided_json": {"a": 1}, "min_p": 1}, "top_k": 2},
        {"extra_headers": {"X-Team": "blue"}, "organization": "org-1"},
        {"headers": {"X-Team": "red"}},
        {"num_retries": 3, "max_retries": 2, "drop_params": True, "timeout": 9},
    ],
)
def test_options_mean_the_same(server: Any, options: dict[str, Any]) -> None:
    """An option means the same in both clients, given to the client or to one request."""
    own = {"api_base": server.url, "api_key": KEY}
    sent = []
    for client_options, request_options in ((options, {}), ({}, options)):
        for client in (
            open_client("openai/fake", options=own | client_options | BY_LITELLM),
            open_client("openai/fake", options=own | client_options),
        ):
            request = CompletionRequest(messages=({"role": "user", "content": "é"},), options=request_options)
            asyncio.run(client.complete(request))
            _, body, headers = server.asked[-1]
            given = {name.lower(): value for name, value in headers.items()}
            named = {name: given.get(name) for name in ("x-team", "openai-organization", "authorization")}
            sent.append((body, named))
            client.close()
    assert sent == [sent[0]] * 4


@pytest.mark.parametrize("name", STATUSES)
def test_errors_are_the_same(server: Any, clients: Any, name: str) -> None:
    """The direct client and litellm's raise errors of the same type, status, retryability and wait."""
    server.answers = STATUSES
    request = CompletionRequest(messages=({"role": "user", "content": name},))
    seen = []
    for client in clients:
        with pytest.raises(ProviderError) as caught:
            asyncio.run(client.complete(request))
        error = caught.value
        seen.append((type(error), error.status, error.retry_after, str(error).partition("credit")[1]))
        assert (error.retryable, error.systemic) == (name in RETRYABLE, name in SYSTEMIC)
        assert KEY not in str(error)
    assert seen[0] == seen[1]
    assert (seen[0][0] is ProviderTimeoutError) == (name == "status 408")
    assert bool(seen[0][-1]) == (name == "no credit")
    assert len(server.bodies) == 2  # nothing is retried here


def test_rate_limits_are_the_same(server: Any, clients: Any) -> None:
    """The direct client and litellm's read the same rate limits from the headers."""
    headers = {
        "x-ratelimit-remaining-requests": "99",
        "x-ratelimit-reset-requests": "6m0s",
        "x-ratelimit-remaining-tokens": "5000",
        "x-ratelimit-reset-tokens": "20ms",
    }
    server.default = (200, answer(), headers)
    request = CompletionRequest(messages=({"role": "user", "content": "x"},))
    theirs, ours = (rate_state(asyncio.run(client.complete(request))) for client in clients)
    assert ours == theirs
    assert ours is not None
    assert (ours.remaining_requests, ours.reset_requests_seconds) == (99, 360.0)
    assert (ours.remaining_tokens, ours.reset_tokens_seconds) == (5000, 0.02)


def test_every_provider_litellm_knows_is_decided(litellm: Any) -> None:
    """Only the known prefixes bypass litellm, and every other provider of litellm does not."""
    listed = Path(str(litellm.__file__)).parent / "llms" / "openai_like" / "providers.json"
    known = {provider.value for provider in litellm.LlmProviders} | json.loads(listed.read_bytes()).keys()
    opened = {
        name: open_client(f"{name}/x", options={"api_base": "http://localhost:1", "api_key": KEY})
        for name in known
    }
    direct = {name for name, client in opened.items() if type(client) is type(opened["openai"])}
    assert direct == {"openai", "hosted_vllm", "llamafile", "lm_studio"}
