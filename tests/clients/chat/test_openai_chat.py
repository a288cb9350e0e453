"""Tests of OpenAIChatClient with a local server: faults, limits, keys, addresses, prices."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import re
import socket
import sys
import time
import tracemalloc
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from calibrant.clients import _calls
from calibrant.clients._failures import rate_state
from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.inference import open_client
from calibrant.logprobs import read_completion
from calibrant.testing import fake_response

KEY = "plain-key-123"
LEFT, RESET = "x-ratelimit-remaining", "x-ratelimit-reset"

BY_LITELLM = {"custom_llm_provider": "openai"}

Make = Callable[..., Any]


def request(text: str = "lunch", **options: Any) -> CompletionRequest:
    """Return a request with this text."""
    return CompletionRequest(
        messages=({"role": "system", "content": "Which?"}, {"role": "user", "content": text}), options=options
    )


def ask(client: Any, text: str = "lunch", **options: Any) -> Any:
    """Return the answer to a text."""
    return asyncio.run(client.complete(request(text, **options)))


def failure(client: Any, text: str = "lunch", **options: Any) -> ProviderError:
    """Return the error of a call, whose message must not hold the key."""
    with pytest.raises(ProviderError) as caught:
        ask(client, text, **options)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    return caught.value


def endpoint(model: str, **options: Any) -> Any:
    """Return the endpoint of a model's client."""
    client: Any = open_client(model, options=options)
    client.close()
    return client.endpoint


class TestFaults:
    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("reset", "isconnected|reset"),
            ("cut", "broke off"),
            ("garbage", "broken"),
            ("declared flood", "at most 16 MB"),
            ("flood", "at most 16 MB"),
            ("compressed flood", "at most 16 MB"),
            (b'{"choices": [{"mess', r"application/json, it begins '{\"choices\""),
            (b"", "broken response: expected a JSON object"),
            (b"[1, 2]", "broken response: expected a JSON object"),
            (b"[" * 200_000, "broken response: expected a JSON object"),
            ({"choices": []}, "no choices"),
            ({"choices": None}, "no choices"),
            ({"object": "chat.completion"}, "no choices"),
            ({"error": {"message": "upstream is busy"}}, "upstream is busy"),
            ((200, b"<html>Sorry</html>", {"Content-Type": "text/html"}), "text/html, it begins '<html>"),
            ((503, b"<html>Sorry</html>", {"Content-Type": "text/html"}), "Sorry"),
        ],
    )
    def test_broken_answers_are_retryable(self, server: Any, make: Make, fault: Any, message: str) -> None:
        """A broken answer raises a retryable error, and the next call on the same client succeeds."""
        server.answers["bad"] = fault
        client = make()
        error = failure(client, "bad")
        assert error.retryable
        assert not error.systemic
        assert re.search(message, str(error))
        assert len(server.asked) == 1
        assert ask(client)["choices"]

    @pytest.mark.parametrize("fault", ["hang", "drip"])
    @pytest.mark.parametrize("where", ["client", "request"])
    def test_the_timeout_covers_the_whole_call(self, server: Any, make: Make, fault: str, where: str) -> None:
        """The timeout covers the whole call, even if bytes still arrive; a request may set its own."""
        server.answers["slow"] = fault
        own, asked = ({"timeout": 0.3}, {}) if where == "client" else ({}, {"timeout": 0.3})
        error = failure(make(**own), "slow", **asked)
        assert isinstance(error, ProviderTimeoutError)
        assert error.retryable
        assert "within 0.3 seconds" in str(error)

    def test_a_flood_is_not_kept_in_memory(self, server: Any, make: Make) -> None:
        """A body above the size limit raises an error, and is never in memory as a whole."""
        client = make()
        ask(client)
        for fault in ("declared flood", "compressed flood"):
            server.answers["big"] = fault
            tracemalloc.start()
            failure(client, "big")
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 45 * 2**20

    def test_a_server_that_is_down_is_named(self, make: Make) -> None:
        """Where nothing listens, the error says so with the address, and may be retried."""
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{bound.getsockname()[1]}"
            error = failure(make(api_base=address))
        assert error.retryable
        assert f"Nothing listens at {address}: start the server" in str(error)

    def test_a_proxy_that_is_down_is_not_taken_for_the_server(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the proxy refuses connections, nothing is said of the server behind it."""
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{bound.getsockname()[1]}")
            error = failure(make(api_base="http://model.invalid"))
        assert error.retryable
        assert "127.0.0.1" in str(error)
        assert "Nothing listens" not in str(error)

    @pytest.mark.parametrize(
        ("model", "hint"),
        [
            ("openai/x", "Check the API key: OPENAI_API_KEY, or the option api_key."),
            ("hosted_vllm/x", "Check the API key: HOSTED_VLLM_API_KEY, or the option api_key."),
            ("x", "Check the API key."),
        ],
    )
    def test_the_variable_of_a_refused_key_is_named(
        self, server: Any, make: Make, model: str, hint: str
    ) -> None:
        """Where it is known, the hint names the environment variable that the key is read from."""
        server.default = (401, {"error": {"message": "no such key"}}, {})
        assert failure(make(model)).hint == hint

    def test_a_move_is_not_followed(self, server: Any, make: Make) -> None:
        """A redirect raises an error and is not followed, so the key is not sent along."""
        server.default = (307, {}, {"Location": "http://elsewhere.example/v1?api_key=hidden-123"})
        error = failure(make())
        assert not error.retryable
        assert "set api_base to the new address" in str(error)
        assert "hidden-123" not in str(error)

    @pytest.mark.parametrize(
        ("code", "kind", "retryable"),
        [(429, RateLimitError, True), ("503", ProviderError, True), (401, ProviderError, False)],
    )
    def test_gateways_put_the_status_into_bodies(
        self, server: Any, make: Make, code: Any, kind: type, retryable: bool
    ) -> None:
        """A status in the body of a 200 answer counts as the answer's status."""
        server.default = {"error": {"message": "from upstream", "code": code}}
        error = failure(make())
        assert isinstance(error, kind)
        assert (error.status, error.retryable) == (int(code), retryable)

    @pytest.mark.parametrize(
        ("headers", "lowest", "highest"),
        [
            ({"Retry-After": "7"}, 7.0, 7.0),
            ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5, 1.5),
            (
                {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)},
                8e4,
                86_400,
            ),
            ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0, 0.0),
            ({"retry-after-ms": "250"}, 0.25, 0.25),
            ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m2s"}, 62.0, 62.0),
        ],
    )
    def test_the_wait_is_read_in_every_form(
        self, server: Any, make: Make, headers: dict[str, str], lowest: float, highest: float
    ) -> None:
        """The wait is read from seconds, milliseconds, a date, or the reset of an exhausted limit."""
        server.default = (429, {"error": {"message": "slow down"}}, headers)
        error = failure(make())
        assert error.retry_after is not None
        assert lowest <= error.retry_after <= highest

    @pytest.mark.parametrize("headers", [{"Retry-After": "soon"}, {"Retry-After": "inf"}, {}])
    def test_unreadable_waits_are_unknown(self, server: Any, make: Make, headers: dict[str, str]) -> None:
        """A wait that is no number and no date is not known."""
        server.default = (429, {"error": {"message": "slow down"}}, headers)
        assert failure(make()).retry_after is None

    def test_unsupported_parameters_come_with_advice(self, server: Any, make: Make) -> None:
        """A refused temperature or log-probability raises an error with the setting to change."""
        server.default = (400, {"error": {"message": "Unsupported value: 'temperature'"}}, {})
        assert "options={'temperature': None}" in str(failure(make()))
        server.default = (400, {"error": {"message": "logprobs are not allowed"}}, {})
        error = failure(make())
        assert error.systemic
        assert '[model]\nscoring = "fused"' in str(error)


class TestCalls:
    def test_systemic_faults_cost_one_call(
        self, server: Any, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of concurrent calls with a systemic fault only the first is sent, and each raises its own error."""
        monkeypatch.setattr(_calls, "_HEAD_START_SECONDS", 20.0)  # on a busy machine, too
        server.default = (400, {"error": {"message": "logprobs are not allowed"}}, {})
        client = make()

        async def ask_all() -> list[Any]:
            calls = (client.complete(request("x")) for _ in range(64))
            return await asyncio.gather(*calls, return_exceptions=True)

        errors = asyncio.run(ask_all())
        assert len(server.bodies) == 1
        assert all(isinstance(error, ProviderError) and error.systemic for error in errors)
        assert len(set(map(id, errors))) == 64

    @pytest.mark.parametrize(("concurrency", "peak"), [(300, 300), (None, 256)])
    def test_concurrency_raises_the_default(
        self, server: Any, caplog: Any, concurrency: int | None, peak: int
    ) -> None:
        """`concurrency` raises the default of 256 concurrent calls."""
        options = {"api_base": server.url, "api_key": KEY}
        client = open_client("openai/fake", concurrency=concurrency, options=options)

        async def many() -> None:
            await client.complete(request())  # which goes ahead
            server.peak, server.together, server.delay = 0, peak, 0.01
            await asyncio.gather(*(client.complete(request()) for _ in range(300)))

        asyncio.run(many())
        client.close()
        assert server.peak == peak
        assert "ulimit" not in caplog.text

    def test_schemas_changed_in_place_are_sent_anew(self, server: Any, make: Make) -> None:
        """A schema that was changed in place is sent with its change."""
        client, schema, options = make(), {"type": "json_schema", "a": [1]}, {"seed": 1}
        asked = CompletionRequest(
            messages=({"role": "user", "content": "x"},), response_format=schema, options=options
        )
        asyncio.run(client.complete(asked))
        schema["a"].append(2)  # type: ignore[attr-defined]
        options["seed"] = True
        asyncio.run(client.complete(asked))
        assert [body["response_format"]["a"] for body in server.bodies] == [[1], [1, 2]]
        assert [body["seed"] for body in server.bodies] == [1, True]
        assert server.bodies[1]["seed"] is True

    def test_messages_arrive_whatever_they_hold(self, server: Any, make: Make) -> None:
        """Quotes, other scripts, emojis, several turns and extra keys reach the server unchanged."""
        messages = (
            {"role": "system", "content": 'say "é" \\ \n'},
            {"role": "user", "content": "日本 😀 \u2028"},
            {"role": "assistant", "content": "", "name": "me"},
            {"role": "user", "content": "lunch"},
        )
        client = make()
        for _ in range(2):
            asyncio.run(client.complete(CompletionRequest(messages=messages)))
        assert [body["messages"] for body in server.bodies] == [list(messages)] * 2

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"seed": object()}, "JSON values"),
            ({"seed": float("nan")}, "JSON values"),
            ({"extra_body": 3}, "extra_body to be a mapping, got int"),
            ({"timeout": -1}, "timeout to be a number"),
            ({"input_cost_per_token": -1, "output_cost_per_token": 1}, "US dollars"),
            ({"input_cost_per_token": 1}, "together"),
        ],
    )
    def test_wrong_options_raise_before_calls(
        self, server: Any, make: Make, options: dict[str, Any], message: str
    ) -> None:
        """An option out of range raises ConfigurationError, at construction and with a request."""
        with pytest.raises(ConfigurationError, match=message):
            make(**options)
        with pytest.raises(ConfigurationError, match=message):
            ask(make(), **options)
        assert server.asked == []


class TestAddress:
    @pytest.mark.parametrize(
        ("path", "asked"),
        [
            ("", ["/v1/chat/completions"]),
            ("/", ["/v1/chat/completions"]),
            ("/v1", ["/v1/chat/completions"]),
            ("/v1/", ["/v1/chat/completions"]),
            ("/v1/chat/completions", ["/v1/chat/completions"]),
            ("/api/v1beta/openai/", ["/api/v1beta/openai/chat/completions"]),
            ("/v1?version=2", ["/v1/chat/completions?version=2"]),
        ],
    )
    def test_is_taken_with_and_without_v1(self, server: Any, make: Make, path: str, asked: list[str]) -> None:
        """An address works with and without /v1, and keeps its query."""
        ask(make(api_base=server.root + path))
        assert [route for route, *_ in server.asked] == asked

    def test_the_other_address_is_tried_after_404(self, server: Any, make: Make) -> None:
        """After a 404 the client tries the other form of the address once, and keeps it if it works."""
        server.absent = {"/proxy/chat/completions"}
        client = make(api_base=server.root + "/proxy")
        for _ in range(2):
            ask(client)
        asked = [route for route, *_ in server.asked]
        assert asked == ["/proxy/chat/completions", *["/proxy/v1/chat/completions"] * 2]
        server.absent.add("/proxy/v1/chat/completions")
        assert failure(make(api_base=server.root + "/proxy")).systemic

    def test_two_endpoints_have_two_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Different addresses are different endpoints, and an endpoint holds no credentials."""
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        monkeypatch.delenv("OPENAI_API_BASE", raising=False)
        bases = ("a:1/v1", "me:pw-1@a:1/v1/", "a:1/v1?api_key=hidden", "a:2/v1")
        for by_litellm in ({}, BY_LITELLM):
            made = {endpoint("openai/x", api_base=f"http://{base}", **by_litellm) for base in bases}
            assert made == {"http://a:1/v1", "http://a:2/v1"}
        assert endpoint("gpt-4.1", **BY_LITELLM) is None
        monkeypatch.setenv("OPENAI_API_BASE", "http://me:pw@b:1/v1")
        assert endpoint("gpt-4.1", **BY_LITELLM) == endpoint("openai/x") == "http://b:1/v1"

    def test_changed_files_are_other_endpoints(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        """The endpoint of a model file changes with what is in it, at its end, too, and not with its place."""
        monkeypatch.setitem(sys.modules, "xllamacpp", types.ModuleType("xllamacpp"))
        weights = b"GGUF" + bytes(40_000_000)
        found = []
        for name, content in (
            ("a", weights),
            ("b", weights),
            ("a", weights[:-9000] + b"w" + weights[-8999:]),
        ):
            path = tmp_path / f"{name}.gguf"
            path.write_bytes(content)
            found.append(endpoint(f"llamacpp:{path}"))
        assert found[0] == found[1]
        assert found[0] != found[2]
        assert str(tmp_path) not in found[0]


class TestKey:
    def test_missing_keys_raise_before_calls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A missing key for OpenAI's server raises ConfigurationError; other addresses need none."""
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(
            ConfigurationError, match="key for openai/x: set OPENAI_API_KEY, or the option api_key"
        ):
            open_client("openai/x")
        with pytest.raises(ConfigurationError, match="key for x: set OPENAI_API_KEY"):
            open_client("x", options={"api_base": "https://eu.api.openai.com/v1"})
        assert endpoint("openai/x", api_key="k") == "https://api.openai.com/v1"
        assert endpoint("openai/x", api_base="http://localhost:1") == "http://localhost:1"

    def test_a_missing_address_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A missing address raises ConfigurationError with the environment variable to set."""
        monkeypatch.delenv("HOSTED_VLLM_API_BASE", raising=False)
        with pytest.raises(
            ConfigurationError, match="hosted_vllm/NAME: set the option api_base or HOSTED_VLLM_API_BASE"
        ):
            open_client("hosted_vllm/x")

    @pytest.mark.parametrize(
        ("model", "given", "sent"),
        [
            ("openai/toy", None, "Bearer from-openai"),
            ("toy", None, "Bearer from-openai"),
            ("hosted_vllm/toy", None, "Bearer from-vllm"),
            ("lm_studio/toy", None, None),
            ("hosted_vllm/toy", KEY, f"Bearer {KEY}"),
        ],
    )
    def test_comes_from_the_option_or_the_environment(
        self, server: Any, make: Make, monkeypatch: pytest.MonkeyPatch, model: str, given: Any, sent: Any
    ) -> None:
        """Each prefix reads key and address from its own options and environment variables."""
        monkeypatch.setenv("OPENAI_API_KEY", "from-openai")
        monkeypatch.setenv("HOSTED_VLLM_API_KEY", "from-vllm")
        ask(make(model, api_key=given))
        assert server.asked[0][2].get("Authorization") == sent
        assert server.bodies[0]["model"] == "toy"

    def test_secrets_a_server_echoes_are_hidden(self, server: Any, make: Make) -> None:
        """An error message holds neither the key nor the address's password nor headers with credentials."""
        token = base64.b64encode(b"me:pw-in-url").decode()
        address = server.url.replace("http://", "http://me:pw-in-url@")
        client = make(
            api_base=f"{address}?api_key=query-secret", extra_headers={"X-Api-Token": "header-secret"}
        )
        secrets = ["pw-in-url", token, "query-secret", "header-secret", "later-secret", KEY]
        for status in (200, 500):
            server.default = (status, f"<p>{' '.join(secrets)}</p>".encode(), {"Content-Type": "text/html"})
            error = failure(client, extra_headers={"Authorization": "Token later-secret"})
            assert not [secret for secret in secrets if secret in f"{error}{error!r}"]
        assert not [secret for secret in secrets if secret in client.endpoint + repr(client)]
        server.default = fake_response("Food", ["Food"])
        ask(client)
        assert server.asked[-1][2]["Authorization"] == f"Basic {token}"
        assert server.asked[-1][2]["X-Api-Token"] == "header-secret"


class TestCost:
    def test_options_set_the_price(self, server: Any, make: Make) -> None:
        """The request's prices override the client's, and neither is sent to the server."""
        answer = fake_response("Food", ["Food"])
        cached_tokens = {"prompt_tokens_details": {"cached_tokens": 40}}
        answer["usage"] = {"prompt_tokens": 100, "completion_tokens": 10, **cached_tokens}
        answer["_hidden_params"] = {"response_cost": 99.0}
        server.default = answer
        prices = {"input_cost_per_token": 0.5, "output_cost_per_token": 2.0}
        assert read_completion(ask(make(**prices))).usage.cost == 70.0
        cached = {**prices, "cache_read_input_token_cost": 0.25}
        assert read_completion(ask(make(**prices), **cached)).usage.cost == 60.0
        assert read_completion(ask(make())).usage.cost is None
        assert not any("cost" in name for body in server.bodies for name in body)

    def test_openais_prices_hold_at_openai_only(
        self, server: Any, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The known price of an OpenAI model is used at OpenAI's own address only."""
        answer = fake_response("Food", ["Food"])
        answer["usage"] = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
        server.default = answer
        assert read_completion(ask(make("openai/gpt-4o-mini"))).usage.cost is None
        for model, cost in (("gpt-4o-mini", 0.15), ("no-such-model", None)):
            own = open_client(f"openai/{model}", options={"api_key": KEY})
            monkeypatch.setattr(own, "_addresses", (f"{server.url}/chat/completions",))
            found = read_completion(ask(own)).usage.cost
            assert found == (None if cost is None else pytest.approx(cost))
            own.close()


class TestRates:
    def test_an_answer_without_rate_headers_says_nothing(self, make: Make) -> None:
        """An answer without rate headers has no rate state and no added keys."""
        answer = ask(make())
        assert rate_state(answer) is None
        assert "_hidden_params" not in answer

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({"X-RateLimit-Remaining-Requests": "9", f"{RESET}-requests": "1s"}, (9, 1.0, None, None)),
            ({f"{LEFT}-tokens": "8", f"{RESET}-tokens": "2m59.5s"}, (None, None, 8, 179.5)),
            ({f"{LEFT}-requests": "0", f"{RESET}-requests": "1h1m1s20ms"}, (0, 3661.02, None, None)),
            ({"ratelimit-remaining": "3", "ratelimit-reset": "12"}, (3, 12.0, None, None)),
            ({f"{LEFT}-requests": "3", f"{RESET}-requests": "soon"}, (3, None, None, None)),
            ({f"{LEFT}-requests": "many"}, None),
            (
                {
                    "anthropic-ratelimit-input-tokens-remaining": "70",
                    "anthropic-ratelimit-output-tokens-remaining": "50",
                    "anthropic-ratelimit-output-tokens-reset": "2015-01-01T00:00:00Z",
                },
                (None, None, 50, 0.0),
            ),
        ],
    )
    def test_headers_are_read(self, server: Any, make: Make, headers: dict[str, str], expected: Any) -> None:
        """Rate headers are read as durations, seconds or points in time; unreadable resets are None."""
        server.default = (200, fake_response("Food", ["Food"]), headers)
        found = rate_state(ask(make()))
        assert (None if found is None else dataclasses.astuple(found)) == pytest.approx(expected)

    @pytest.mark.parametrize("scale", [1, 1000])
    def test_points_in_time_count_from_now(self, server: Any, make: Make, scale: int) -> None:
        """A reset given as seconds or milliseconds since 1970 becomes the seconds from now."""
        reset = str(int((time.time() + 100) * scale))
        headers = {"x-ratelimit-remaining": "1", "x-ratelimit-reset": reset}
        server.default = (200, fake_response("Food", ["Food"]), headers)
        found = rate_state(ask(make()))
        assert found is not None
        assert found.reset_requests_seconds == pytest.approx(100, abs=5)

    @pytest.mark.parametrize(
        "response", [None, "text", {}, {"_hidden_params": 3}, {"_hidden_params": {}}, object()]
    )
    def test_other_answers_have_no_rate_state(self, response: object) -> None:
        """Answers of other clients have no rate state."""
        assert rate_state(response) is None
