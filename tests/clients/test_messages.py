"""Tests of redaction, and of the translation of foreign errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from calibrant.core import CompletionRequest, ProviderError
from calibrant.inference import Classifier, open_client

REQUEST = CompletionRequest(messages=({"role": "user", "content": "x"},))


def failure(raised: Exception) -> ProviderError:
    """Return the error of a model that is a function and raises an error."""

    def model(_messages: Any) -> None:
        raise raised

    with pytest.raises(ProviderError) as caught:
        asyncio.run(open_client(model).complete(REQUEST))
    return caught.value


def shown(text: str) -> str:
    """Return what is shown of the text of an error."""
    return str(failure(RuntimeError(text)))


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Incorrect API key provided: sk-abcdef1234567890.", "abcdef1234567890"),
        ("key sk-proj-Ab_9-xyz is wrong", "Ab_9"),
        ("Authorization: Bearer abc.def.ghi-jkl", "abc.def"),
        ('{"api_key": "0123456789"}', "0123456789"),
        ("GET https://host/v1?key=AIzaSyA1234567 failed", "AIzaSyA"),
        ("x-api-key: zzz-topsecret", "zzz-topsecret"),
        ("http://user:hunter2@proxy:3128 refused", "hunter2"),
        ("token hf_abcdefghijklm", "abcdefghijklm"),
    ],
)
def test_hides_what_looks_like_a_credential(text: Any, secret: Any) -> None:
    """Keys, bearer tokens, key parameters and passwords in URLs are removed from a message."""
    assert secret in text
    assert secret not in shown(text)
    assert "[redacted]" in shown(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("see https://h/v1?tok=abcdefgh.", "see https://h/v1?tok=[redacted]"),
        (
            "moved to http://h/a?x=1&nonce=abcd&api-version=2024-05-01",
            "moved to http://h/a?x=1&nonce=[redacted]&api-version=2024-05-01",
        ),
        ('{"url": "http://h/?t=abcdef"}', '{"url": "http://h/?t=[redacted]"}'),
    ],
)
def test_hides_parameters_of_addresses_whatever_their_name(text: str, left: str) -> None:
    """In an address only harmless parameters stay."""
    assert left in shown(text)


@pytest.mark.parametrize(
    ("address", "key", "warns"),
    [
        ("http://gpu-1.example:8000/v1", "a-real-key", True),
        ("http://gpu-2.example:8000/v1", "EMPTY", False),
        ("https://gpu-3.example/v1", "a-real-key", False),
        ("http://127.0.0.1:8000/v1", "a-real-key", False),
        ("http://localhost:8000/v1", "a-real-key", False),
        ("http://me:password@gpu-4.example/v1", "none", True),
        ("http://gpu-5.example/v1?tok=abcdefgh", "none", True),
    ],
)
@pytest.mark.parametrize("name", ["openai/any", "anthropic/any"])
def test_secrets_over_http_warn_once(
    caplog: Any, monkeypatch: pytest.MonkeyPatch, name: str, address: str, key: str, warns: bool
) -> None:
    """A secret that is sent over http to another machine logs one warning, without the secret."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    address = address.replace("example", f"{name.partition('/')[0]}.example")
    options = {"api_base": address, "api_key": key}
    for _ in range(2):
        Classifier(model=name, labels=["cat", "dog"], scoring="decode", options=options).close()
    said = [record.message for record in caplog.records if "plain http" in record.message]
    assert len(said) == warns
    assert not any(secret in line for line in said for secret in ("a-real-key", "password", "abcdefgh"))


@pytest.mark.parametrize(
    "text",
    [
        "The model gpt-4.1-mini does not exist",
        "http://127.0.0.1:8000/v1 refused the connection",
        "maximum context length is 8192 tokens; task-oriented risk-aware",
        "400: response_format.json_schema is invalid",
        "top_logprobs=5 is not supported",
    ],
)
def test_leaves_ordinary_messages_alone(text: Any) -> None:
    """Texts without credentials stay unchanged."""
    assert text in shown(text)


def test_hides_known_values_whatever_they_look_like(server: Any) -> None:
    """A client's key is redacted, even if it does not look like a key."""
    server.answer(400, {"error": {"message": "wrong: plainword123"}})
    client = open_client("openai/x", options={"api_base": server.url, "api_key": "plainword123"})
    with pytest.raises(ProviderError, match=r"wrong: \[redacted\]"):
        asyncio.run(client.complete(REQUEST))


@pytest.mark.parametrize(
    ("attributes", "status", "wait"),
    [
        ({"status_code": 503}, 503, None),
        ({"code": "429", "headers": {"Retry-After": "3"}}, 429, 3.0),
        ({"code": "E1"}, None, None),
        ({"status": 200}, None, None),
        ({}, None, None),
    ],
)
def test_status_and_wait_are_read_from_the_usual_places(attributes: Any, status: Any, wait: Any) -> None:
    """The status is read from several attributes, and only HTTP failure codes count; a wait from headers."""
    error = RuntimeError("x")
    vars(error).update(attributes)
    found = failure(error)
    assert (found.status, found.retry_after) == (status, wait)


@pytest.mark.parametrize(
    ("status", "text", "begins"),
    [
        (422, "too long", "RuntimeError (422): too long"),
        (400, "14000 tokens", "RuntimeError (400): 14000 tokens"),
        (400, "status 400: too long", "RuntimeError: status 400: too long"),
        (500, "no answer", "RuntimeError: no answer"),
    ],
)
def test_a_status_of_the_request_is_told(status: int, text: str, begins: str) -> None:
    """A status below 500 is in the message, once: by it commands tell a refused request from a passing fault."""
    error = RuntimeError(text)
    vars(error).update(status_code=status)
    assert begins in str(failure(error))


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Retry-After": "3600"}, "The server asks to wait 60 min: run this again then."),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2m"}, "asks to wait 2 min"),
        ({"Retry-After": "60"}, None),
    ],
)
def test_a_long_wait_that_a_server_asks_for_is_told(headers: Any, said: str | None) -> None:
    """A wait that no retry bridges is part of the message."""
    error = RuntimeError("slow down")
    vars(error).update(code="429", headers=headers)
    message = str(failure(error))
    assert (said or "slow down") in message
    assert ("asks to wait" in message) == (said is not None)


def test_messages_are_short_and_on_one_line() -> None:
    """The message of a translated error is short, on one line and without a traceback."""
    found = shown("a\n" * 1000 + "Traceback (most recent call last): ...")
    assert "\n" not in found
    assert len(found) < 600
    assert "Traceback" not in shown("no\nTraceback (most recent call last):\n x")


def test_a_provider_error_stays_itself() -> None:
    """A ProviderError is raised as it is, and not wrapped again."""
    error = ProviderError("x", provider="p")
    assert failure(error) is error


@pytest.mark.parametrize(
    "key", ["sk-1234567890abcdef1234567890abcdef", "AIzaSyA1234567890abcdefghijklmnopqrstuvw"]
)
def test_keys_in_harmless_parameters_are_hidden(key: str) -> None:
    """A key in a harmless parameter is redacted."""
    address = f"http://host/v1?model={key}&api-version=2"
    options = {"api_base": address, "api_key": "none"}
    found = Classifier(model="openai/x", labels=["cat", "dog"], options=options).describe()["endpoint"]
    assert key not in found
    assert found.startswith("http://host/v1?model=")
