"""Tests of a bundle behind litellm's model name ``calibrant/NAME``, with the real litellm."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import litellm
import pytest

from calibrant.core import ConfigurationError, StateError
from calibrant.serving import BundleProvider
from calibrant.tuned import Tuned, load
from fault_server import FaultServer

NAME = "calibrant/animals"

pytestmark = [
    pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class"),  # litellm's own, once a process
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return the bundle's model, which declines to answer some texts."""

    def faults(_: int, body: Any) -> str | None:
        kinds = {"declined": "refusal", "locked": "401", "silent": "hang", "wrong": "400"}
        return kinds.get(body["messages"][-1]["content"])

    with FaultServer(["cat", "dog"], faults=faults) as running:
        yield running


@pytest.fixture
def provider(bundle: Tuned, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[BundleProvider]:
    """Return the provider, registered for one test."""
    for name in ("custom_provider_map", "provider_list", "_custom_providers"):
        monkeypatch.setattr(litellm, name, list(getattr(litellm, name)))
    options = {"animals": {"api_base": server.api_base}}
    with contextlib.closing(BundleProvider({"animals": bundle.path}, options=options)) as found:
        found.register()
        yield found


def user(text: Any) -> list[dict[str, Any]]:
    """Return messages whose last is the text, with some that do not matter."""
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a cat"},
        {"role": "assistant", "content": "{}"},
        {"role": "user", "content": text},
    ]


@pytest.mark.usefixtures("provider")
def test_litellm_answers_with_the_bundle(bundle: Tuned, server: FaultServer) -> None:
    """Litellm returns the service's answer; only the prompt and the last user message are sent."""
    with contextlib.closing(load(bundle, options={"api_base": server.api_base})) as classifier:
        expected = classifier.classify("one dog")
    found = litellm.completion(NAME, messages=user("one dog"))
    asked = server.requests[-1].body["messages"]
    awaited = asyncio.run(litellm.acompletion(NAME, messages=user([{"type": "text", "text": "one dog"}])))
    assert [message["content"] for message in asked] == ["Which animal?", "one dog"]
    for answer in (found, awaited):
        told = json.loads(answer.choices[0].message.content)
        assert (told["label"], told["confidence"]) == ("dog", pytest.approx(expected.confidence))
        assert (told["outcome"], told["decision"]) == ("ok", None)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.prompt_tokens == expected.usage.prompt_tokens > 0


@pytest.mark.usefixtures("provider")
def test_a_stream_has_the_same_content() -> None:
    """A stream of litellm has the same content as a whole answer, with and without an event loop."""
    whole = litellm.completion(NAME, messages=user("one dog")).choices[0].message.content

    async def stream() -> str:
        pieces = await litellm.acompletion(NAME, messages=user("one dog"), stream=True)
        return "".join([piece.choices[0].delta.content or "" async for piece in pieces])

    pieces = litellm.completion(NAME, messages=user("one dog"), stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole
    assert asyncio.run(stream()) == whole


@pytest.mark.usefixtures("provider")
def test_litellm_s_router_calls_the_bundle() -> None:
    """Litellm's Router calls the bundle under a name of the router's own."""
    router = litellm.Router([{"model_name": "mine", "litellm_params": {"model": NAME}}])
    found = asyncio.run(router.acompletion("mine", messages=user("one cat")))
    assert json.loads(found.choices[0].message.content)["label"] == "cat"


@pytest.mark.parametrize(
    ("model", "text", "status", "told"),
    [
        ("calibrant/other", "a cat", 404, "calibrant/animals"),
        ("calibrant/../animals", "a cat", 404, "calibrant/animals"),
        ("calibrant//etc/passwd", "a cat", 404, "calibrant/animals"),
        (NAME, "locked", 503, "Check the API key"),
        (NAME, "", 400, "user message"),
        (NAME, [{"type": "image_url", "image_url": {"url": "data:,"}}], 400, "user message"),
    ],
)
@pytest.mark.usefixtures("provider")
def test_bad_calls_are_litellm_s_errors(model: str, text: Any, status: int, told: str) -> None:
    """A bad call raises litellm's error with its status and with what was expected."""
    with pytest.raises(Exception, match=told) as found:
        litellm.completion(model, messages=user(text), num_retries=0)
    assert getattr(found.value, "status_code", None) == status


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("text", "error", "outcome"),
    [
        ("declined", litellm.exceptions.BadGatewayError, "refusal"),
        ("wrong", litellm.exceptions.ServiceUnavailableError, "error"),
    ],
)
def test_a_text_without_a_label_is_an_error(text: str, error: type[Exception], outcome: str) -> None:
    """A text that the model declines or answers wrongly raises litellm's error with the outcome."""
    litellm.completion(NAME, messages=user("a cat"))  # so the failure is one of the text, not of the set-up
    with pytest.raises(error, match=f"animals: {outcome}: "):
        litellm.completion(NAME, messages=user(text), num_retries=0)


@pytest.mark.usefixtures("provider")
def test_litellm_s_timeout_is_kept() -> None:
    """Litellm's timeout, in seconds, ends a call."""
    with pytest.raises(Exception, match=r"no answer within 0\.001s") as found:
        litellm.completion(NAME, messages=user("silent"), num_retries=0, timeout=0.001)
    assert getattr(found.value, "status_code", None) in {408, 504}


def test_wrong_bundles_are_refused(bundle: Tuned, tmp_path: Any) -> None:
    """Options for another bundle, no bundle, or a wrong folder raise an error in the constructor."""
    with pytest.raises(ConfigurationError, match="options for other"):
        BundleProvider({"animals": bundle.path}, options={"other": {}})
    with pytest.raises(ConfigurationError, match="bundles none"):
        BundleProvider({})
    with pytest.raises(StateError):
        BundleProvider({"animals": tmp_path})
