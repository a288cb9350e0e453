"""Tests of LiteLLMClient with a local server."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from dataclasses import replace
from typing import Any

import httpx
import pytest

from calibrant.core import (
    Client,
    CompletionRequest,
    ConfigurationError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.inference import Classifier, open_client

KEY = "sk-verysecretverysecret"
# Of litellm's exceptions.
REFUSALS = "BlockedPiiEntityError ContentPolicyViolationError GuardrailRaisedException RejectedRequestError"
RETRYABLE = """
    APIConnectionError APIError APIResponseValidationError BadGatewayError InternalServerError MockException
    JSONSchemaValidationError MidStreamFallbackError RateLimitError ServiceUnavailableError Timeout
"""


def by_litellm(
    model: str = "openai/fake", *, space: Any = None, concurrency: int | None = None, **options: Any
) -> Client:
    """Return a client whose calls go through litellm."""
    provider = {"custom_llm_provider": "openai"} if model.startswith("openai/") else {}
    return open_client(model, space=space, concurrency=concurrency, options={**provider, **options})


def make_client(server: Any, **options: Any) -> Client:
    """Return a client of the loopback server."""
    return by_litellm(api_base=server.url, api_key=KEY, **options)


def ask(client: Client, request: CompletionRequest) -> Any:
    """Return the response to a request."""
    return asyncio.run(client.complete(request))


def failure(client: Client, request: CompletionRequest) -> ProviderError:
    """Return the error of a call, whose message must not hold the key."""
    with pytest.raises(ProviderError) as caught:
        ask(client, request)
    assert KEY not in str(caught.value)
    return caught.value


class TestRequest:
    def test_sends_schema_and_logprobs_and_is_greedy(self, server: Any, request_for_label: Any) -> None:
        """Messages, schema, log-probabilities and temperature 0 are sent to the server."""
        answer = ask(make_client(server), request_for_label)
        (body,) = server.bodies
        assert body["messages"] == [dict(message) for message in request_for_label.messages]
        assert body["response_format"] == request_for_label.response_format
        assert (body["logprobs"], body["top_logprobs"], body["temperature"]) == (True, 5, 0)
        assert answer.choices[0].message.content == '{"category": "Food"}'

    def test_options_override_the_defaults(self, server: Any, request_for_label: Any) -> None:
        """The client's options override the default temperature, and the request's override the client's."""
        ask(make_client(server, temperature=0.5, seed=3), request_for_label)
        assert (server.bodies[0]["temperature"], server.bodies[0]["seed"]) == (0.5, 3)
        request = CompletionRequest(messages=request_for_label.messages, options={"temperature": None})
        ask(make_client(server, temperature=0.5), request)
        assert "temperature" not in server.bodies[1]

    def test_unsupported_parameters_raise_an_error(self, server: Any, request_for_label: Any) -> None:
        """Log-probabilities that a provider lacks raise an error and are not silently dropped."""
        client = by_litellm("anthropic/claude-3-haiku-20240307", api_base=server.url, api_key=KEY)
        error = failure(client, request_for_label)
        assert "logprobs" in str(error)
        assert '[model]\nscoring = "fused"' in str(error)
        assert "drop_params" not in str(error)
        assert error.systemic
        assert not error.retryable
        assert server.bodies == []

    def test_limits_calls_in_flight(self, server: Any) -> None:
        """`concurrency` limits the number of requests that the server has at the same time."""
        server.delay = 0.05
        classifier = Classifier(
            model=make_client(server), labels=["Food", "Rent"], field="category", concurrency=2
        )
        classifier.classify_many([f"lunch {number}" for number in range(6)])
        assert server.peak == 2

    @pytest.mark.parametrize("options", [{"timeout": 0}, {"concurrency": 0}, {"space": "nonsense"}])
    def test_parameters_out_of_range_raise_an_error(self, options: Any) -> None:
        """A parameter out of its range raises ConfigurationError before any call."""
        with pytest.raises(ConfigurationError, match=r"Expected|expected one of"):
            by_litellm(**options)


class TestFailures:
    def test_a_key_of_any_shape_is_hidden(self, server: Any, request_for_label: Any) -> None:
        """The error hides the client's own key, even if it does not look like a key."""
        server.answer(401, {"error": {"message": "plainword123 is wrong", "code": "x"}})
        client = by_litellm(api_base=server.url, api_key="plainword123")
        with pytest.raises(ProviderError) as caught:
            ask(client, request_for_label)
        assert "plainword123" not in str(caught.value)

    def test_cancelling_is_not_a_provider_error(self, server: Any, request_for_label: Any) -> None:
        """A cancelled call raises CancelledError, not ProviderError."""
        server.delay = 20.0

        async def cancelled() -> None:
            task = asyncio.create_task(make_client(server).complete(request_for_label))
            await asyncio.to_thread(server.begun.wait, 30)
            task.cancel()
            await task

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())


def litellm_exceptions(litellm: Any) -> list[type[Exception]]:
    """Return every public exception class of litellm."""
    return [
        value
        for name, value in vars(litellm.exceptions).items()
        if inspect.isclass(value) and issubclass(value, Exception) and not name.startswith("_")
    ]


def build(cls: type[Exception]) -> Exception:
    """Return an exception of any of litellm's signatures."""
    response = httpx.Response(418, request=httpx.Request("POST", "http://127.0.0.1/"))
    texts = {"message": f"broken {KEY}", "raw_response": "{}", "schema": "{}"}
    numbers = {"status_code": 500, "current_cost": 2.0, "max_budget": 1.0, "status": 500}
    known: dict[str, Any] = {**texts, **numbers, "response": response, "request_data": {}, "failures": []}
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return cls(known["message"])
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    names = {*needed, *({"message"} & {p.name for p in parameters})}
    return cls(**{name: known.get(name, "text") for name in names})


class TestEveryLitellmException:
    def test_is_translated(self, monkeypatch: Any, request_for_label: Any, litellm: Any) -> None:
        """Every public exception of litellm becomes a ProviderError without the key."""
        classes = litellm_exceptions(litellm)
        assert len(classes) > 25
        client = by_litellm("openai/fake", api_key=KEY)
        outcomes = {}
        for cls in classes:
            error = build(cls)

            async def broken(_error: Exception = error, **_arguments: Any) -> None:
                raise _error

            monkeypatch.setattr(litellm, "acompletion", broken)
            try:
                answer = ask(client, request_for_label)
            except ProviderError as found:
                outcomes[cls.__name__] = found
            else:
                assert KEY not in answer["choices"][0]["message"]["refusal"]
                outcomes[cls.__name__] = None
        assert not any(KEY in str(found) for found in outcomes.values())
        refusals = {name for name, found in outcomes.items() if found is None}
        assert refusals == set(REFUSALS.split())
        retryable = {name for name, found in outcomes.items() if found is not None and found.retryable}
        # Releases add kinds of those: which of a person's keys is limited, say.
        limits = {cls.__name__ for cls in classes if issubclass(cls, litellm.RateLimitError)}
        assert retryable == set(RETRYABLE.split()) | limits
        assert type(outcomes["Timeout"]) is ProviderTimeoutError
        assert type(outcomes["RateLimitError"]) is RateLimitError


class TestImport:
    def test_is_lazy_and_fetches_no_price_list(self) -> None:
        """A new client does not import litellm; the first use also sets LITELLM_LOCAL_MODEL_COST_MAP."""
        code = """
import asyncio, os, sys
from calibrant.core import CompletionRequest, ProviderError
from calibrant.inference import open_client
client = open_client("groq/x", options={"api_key": "k", "api_base": "http://127.0.0.1:1"})
assert not {"litellm", "tenacity", "xllamacpp"} & set(sys.modules)
try:
    asyncio.run(client.complete(CompletionRequest(messages=({"role": "user", "content": "x"},), top_logprobs=0)))
except ProviderError:
    print("litellm" in sys.modules, os.environ["LITELLM_LOCAL_MODEL_COST_MAP"])
"""
        done = subprocess.run(  # noqa: S603 (our own code)
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["True", "True"]

    def test_a_missing_litellm_names_the_command(self, monkeypatch: Any, request_for_label: Any) -> None:
        """A missing litellm raises ConfigurationError with the install command."""
        monkeypatch.setitem(sys.modules, "litellm", None)
        with pytest.raises(ConfigurationError, match="pip install"):
            ask(by_litellm(), request_for_label)


KEYS = "OPENAI AZURE AZURE_OPENAI ANTHROPIC GEMINI GOOGLE FIREWORKS FIREWORKS_AI PERPLEXITY"


@pytest.mark.parametrize(
    "model",
    [
        "openai/gpt-4.1-mini",
        "azure/gpt-4.1-mini",
        "anthropic/claude-haiku-4-5",
        "gemini/gemini-2.5-flash",
        "fireworks_ai/x",
        "perplexity/sonar",
    ],
)
def test_missing_keys_are_systemic(
    monkeypatch: pytest.MonkeyPatch, request_for_label: Any, model: str
) -> None:
    """A missing key raises a systemic error, although litellm reports some as status 500."""
    for name in KEYS.split():
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
    error = failure(by_litellm(model), replace(request_for_label, top_logprobs=0))
    assert error.systemic
    assert not error.retryable


@pytest.mark.parametrize(
    ("status", "words"), [(400, "API key not valid."), (500, "Invalid API key: x"), (401, "no")]
)
def test_wrong_keys_are_systemic(server: Any, request_for_label: Any, status: int, words: str) -> None:
    """A wrong key raises a systemic error with any status."""
    server.answer(status, {"error": {"message": words}})
    error = failure(make_client(server), request_for_label)
    assert error.systemic
    assert not error.retryable


def test_a_refused_key_is_named_with_its_variable(server: Any, request_for_label: Any) -> None:
    """The hint names where the key is read from, once."""
    server.answer(401, {"error": {"message": "no"}})
    found = by_litellm("mistral/mistral-small-latest", api_key=KEY, api_base=server.url)
    error = failure(found, replace(request_for_label, top_logprobs=0))
    assert error.hint == "Check the API key: MISTRAL_API_KEY, or the option api_key."
    assert str(error).count("Check the API key") == 1


def test_systemic_faults_cost_one_call(
    monkeypatch: pytest.MonkeyPatch, request_for_label: Any, litellm: Any
) -> None:
    """Of 64 concurrent calls with a systemic fault only one is sent, and all raise the error."""
    calls, made = litellm.acompletion, []

    async def counted(**arguments: Any) -> Any:
        made.append(arguments["model"])
        return await calls(**arguments)

    monkeypatch.setattr(litellm, "acompletion", counted)
    client = by_litellm("anthropic/claude-haiku-4-5", api_key=KEY)

    async def many() -> list[Any]:
        several = [client.complete(request_for_label) for _ in range(64)]
        return await asyncio.gather(*several, return_exceptions=True)

    for rounds in (1, 2):
        found = asyncio.run(many())
        assert len(made) == rounds
        assert all(isinstance(error, ProviderError) and error.systemic for error in found)
