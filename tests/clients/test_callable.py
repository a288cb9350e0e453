"""Tests of open_client with the user's own function as a client."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from typing import Any

import aiohttp
import httpx
import openai
import pytest

import requests
from calibrant.core import (
    Client,
    CompletionRequest,
    ConfigurationError,
    LogprobSpace,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.inference import open_client

REQUEST = CompletionRequest(messages=({"role": "user", "content": "lunch"},))


def ask(function: Any, **options: Any) -> Any:
    """Return the answer of a client around `function`."""
    client = open_client(function, **options)
    try:
        return asyncio.run(client.complete(REQUEST))
    finally:
        client.close()


class HttpError(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.response = type(
            "Response", (), {"headers": {k.replace("_", "-"): v for k, v in headers.items()}}
        )()


class ConnectTimeoutError(Exception):
    """Has a name of two kinds of failure, and is neither."""


def test_satisfies_the_client_protocol() -> None:
    """A function becomes a client that takes the function's name."""

    def my_model(_messages: Any) -> Any:
        return {}

    client = open_client(my_model)
    assert isinstance(client, Client)
    assert (client.name, client.space) == ("my_model", LogprobSpace.MASKED)
    assert open_client(functools.partial(my_model)).name == "partial"
    assert open_client(my_model, space="raw").space is LogprobSpace.RAW


def test_returns_the_response_unread() -> None:
    """The client returns the same object that the function returned."""
    response = object()
    assert ask(lambda _messages: response) is response


def test_the_function_cannot_change_the_request() -> None:
    """A function that changes its messages does not change the request."""

    def vandal(messages: Any) -> None:
        messages[0]["content"] = "changed"
        messages.clear()

    ask(vandal)
    assert REQUEST.messages[0]["content"] == "lunch"


class AsyncObject:
    async def __call__(self, messages: Any) -> Any:
        await asyncio.sleep(0)
        return messages[0]["content"]


async def async_function(messages: Any) -> Any:
    """Answer with the text itself."""
    await asyncio.sleep(0)
    return messages[0]["content"]


def returns_a_coroutine(messages: Any) -> Any:
    """Answer with a coroutine, without being a coroutine function."""
    return async_function(messages)


@pytest.mark.parametrize(
    "function", [async_function, AsyncObject(), functools.partial(async_function), returns_a_coroutine]
)
def test_coroutines_are_awaited(function: Any) -> None:
    """Coroutine functions, async callables, partials and returned coroutines are awaited."""
    assert ask(function) == "lunch"


def test_ordinary_functions_run_side_by_side() -> None:
    """Ordinary functions run at the same time: four calls that wait for each other finish."""
    barrier = threading.Barrier(4, timeout=10)

    def meet(_messages: Any) -> Any:
        return barrier.wait()

    async def four(client: Any) -> Any:
        return await asyncio.gather(*(client.complete(REQUEST) for _ in range(4)))

    assert sorted(asyncio.run(four(open_client(meet)))) == [0, 1, 2, 3]


def test_max_workers_bounds_the_calls() -> None:
    """No more than max_workers run at the same time."""
    running, peak, lock = 0, 0, threading.Lock()

    def count(_messages: Any) -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    async def eight(client: Any) -> None:
        await asyncio.gather(*(client.complete(REQUEST) for _ in range(8)))

    asyncio.run(eight(open_client(count, concurrency=3)))
    assert peak == 3


def test_context_variables_reach_the_thread() -> None:
    """Context variables of the caller are visible in the function's thread."""
    variable = contextvars.ContextVar("variable", default="lost")

    async def run() -> Any:
        variable.set("kept")
        return await open_client(lambda _messages: variable.get()).complete(REQUEST)

    assert asyncio.run(run()) == "kept"


@pytest.mark.parametrize(
    ("error", "kind", "status", "retryable"),
    [
        (ValueError("no"), ProviderError, None, False),
        (StopIteration(), ProviderError, None, False),
        (TimeoutError("slow"), ProviderTimeoutError, None, True),
        (openai.APITimeoutError(httpx.Request("POST", "http://a")), ProviderTimeoutError, None, True),
        (httpx.ReadTimeout("slow"), ProviderTimeoutError, None, True),
        (requests.Timeout("slow"), ProviderTimeoutError, None, True),
        (ConnectionResetError("gone"), ProviderError, None, True),
        (httpx.ConnectError("refused"), ProviderError, None, True),
        (aiohttp.ServerDisconnectedError(), ProviderError, None, True),
        (ConnectTimeoutError("of another kind"), ProviderError, None, False),
        (HttpError(409), ProviderError, 409, True),
        (HttpError(429, Retry_After="2.5"), RateLimitError, 429, True),
        (HttpError(504), ProviderTimeoutError, 504, True),
    ],
)
@pytest.mark.parametrize("kind_of_function", ["sync", "async"])
def test_exceptions_become_provider_errors(
    error: Any, kind: Any, status: Any, retryable: Any, kind_of_function: Any
) -> None:
    """An exception becomes a ProviderError with its cause, which is retryable if it is transient."""
    if kind_of_function == "async" and isinstance(error, StopIteration):
        pytest.skip("a coroutine cannot raise StopIteration")

    def mine(_messages: Any) -> None:
        raise error

    async def later(_messages: Any) -> None:
        raise error

    later.__name__ = "mine"

    with pytest.raises(ProviderError) as caught:
        ask(mine if kind_of_function == "sync" else later)
    found = caught.value
    assert type(found) is kind
    assert (found.status, found.retryable, found.provider) == (status, retryable, "mine")
    assert found.__cause__ is error
    if status == 429:
        assert found.retry_after == 2.5


def test_our_own_errors_pass_unchanged() -> None:
    """A ProviderError or ConfigurationError of the function passes unchanged."""
    for error in (RateLimitError("slow down", provider="x", retryable=True), ConfigurationError("wrong")):

        def raising(_messages: Any, error: Any = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            ask(raising)
        assert caught.value is error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_keyboard_interrupt_passes() -> None:
    """KeyboardInterrupt is raised unchanged."""

    def interrupted(_messages: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(interrupted)


@pytest.mark.parametrize(
    ("function", "options"), [(3, {}), (len, {"concurrency": 0}), (len, {"space": "logits"})]
)
def test_parameters_out_of_range_raise_an_error(function: Any, options: Any) -> None:
    """A parameter out of its range raises ConfigurationError before any call."""
    with pytest.raises(ConfigurationError):
        open_client(function, **options)
