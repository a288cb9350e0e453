"""Tests of exact scoring by a server: faults, ranges, secrets and closing."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from calibrant.clients import _calls
from calibrant.clients._http import _proxy
from calibrant.core import (
    Client,
    CompletionRequest,
    ConfigurationError,
    ContextLengthError,
    LogprobSpace,
    Outcome,
    ProviderError,
)
from calibrant.inference import (
    Classifier,
    open_client,
)
from next_tokens import KEY, KINDS, ROUTES, ask, failure

Start = Callable[..., Any]
Make = Callable[..., Any]


def open_exact(model: str, *, space: str | None = None, **options: Any) -> Any:
    """Return a client for exact scoring."""
    return open_client(model, space=space, options=options, scoring="exact")


@pytest.mark.parametrize("kind", KINDS)
class TestFaults:
    @pytest.fixture
    def found(self, serve: Start, make: Make, kind: str) -> tuple[Any, Any]:
        """Return a server, and a client that has detected the server's kind."""
        server = serve(kind)
        client = make(server, api_key=KEY, timeout=20.0)
        asyncio.run(ask(client))
        return server, client

    def test_long_prompts_raise_context_length_errors(self, found: Any) -> None:
        """A prompt too long raises ContextLengthError, and the classifier's row is unparsed."""
        server, client = found
        server.context = 15
        error = failure(client)
        assert isinstance(error, ContextLengthError)
        assert not error.retryable
        assert "too long" in str(error) or "maximum context length is 15" in str(error)
        classifier = Classifier(model=client, labels=["Spa", "Bill"], scoring="exact")
        assert classifier.classify("x" * 99).outcome is Outcome.UNPARSED

    def test_cancelling_passes_the_seam(self, serve: Start, make: Make, kind: str) -> None:
        """A cancelled call raises CancelledError, and the next call works."""
        server = serve(kind, delay=0.3)
        client = make(server)

        async def cancelled() -> object:
            task = asyncio.create_task(ask(client))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            server.delay = 0.0
            return await ask(client)

        assert asyncio.run(cancelled())


def test_missing_logprobs_are_requested_again(serve: Start, make: Make) -> None:
    """A request without log-probabilities is repeated twice, and then raises a retryable error."""
    server = serve("llama.cpp")
    client = make(server)
    asyncio.run(ask(client))

    def without(answer: Any) -> Any:
        return {**answer, "completion_probabilities": []}

    before = len(server.bodies("/completion"))
    server.faults["/completion"] = [without, without]
    asyncio.run(ask(client))
    assert len(server.bodies("/completion")) == before + 3
    server.faults["/completion"] = [without, without, without]
    error = failure(client)
    assert error.retryable
    assert "3 times without log-probabilities" in str(error)


DENIED = (401, {"error": {"message": "no such key"}}, {})


@pytest.mark.parametrize(
    ("kind", "route", "answered"),
    [
        ("llama.cpp", "/completion", 0),
        ("llama.cpp", "/completion", 1),
        ("llama.cpp", "/tokenize", 0),
        ("llama.cpp", "/apply-template", 0),
        ("vllm", "/v1/completions", 0),
        ("vllm", "/v1/completions", 1),
        ("vllm", "/tokenize", 0),
    ],
)
def test_systemic_faults_cost_one_call(
    serve: Start, classify: Any, kind: str, route: str, answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A systemic fault in any kind of request is raised after one such request."""
    monkeypatch.setattr(_calls, "_HEAD_START_SECONDS", 20.0)  # on a busy machine, too
    server = serve(kind, slots=64, delay=0.05)
    server.faults[route] = [None] * answered + [DENIED] * 1000
    classifier = classify(server, concurrency=64)
    with pytest.raises(ProviderError, match="no such key"):
        classifier.classify_many([f"text {number}" for number in range(64)])
    assert len(server.bodies(route)) == answered + 1


@pytest.mark.parametrize(("kind", "calls"), [("llama.cpp", 3), ("vllm", 1)])
def test_missing_logprobs_are_detected_once(serve: Start, classify: Any, kind: str, calls: int) -> None:
    """Missing log-probabilities raise ConfigurationError after the calls of one row."""
    server = serve(kind)
    server.faults[ROUTES[kind]] = [
        lambda answer: {**answer, "completion_probabilities": [], "choices": [{"text": "x"}]}
    ] * 1000
    with pytest.raises(ConfigurationError, match="reports no probabilities for exact scoring"):
        classify(server, concurrency=64).classify_many([f"text {number}" for number in range(64)])
    assert len(server.bodies(ROUTES[kind])) == calls


def test_labels_are_checked_once_for_all_rows(serve: Start, classify: Any) -> None:
    """Rows that begin together wait for the first one's check."""
    server = serve("llama.cpp", slots=16, delay=0.01)
    classify(server, concurrency=16).classify_many([f"text {number}" for number in range(32)])
    assert len(server.bodies("/detokenize")) == 1


class TestNumberOfTokens:
    def test_a_named_maximum_is_obeyed_and_remembered(self, serve: Start, make: Make) -> None:
        """The client keeps to the maximum that the server's message names, also in later calls."""
        server = serve("llama.cpp")
        client = make(server)
        server.faults["/completion"] = [(400, {"error": {"message": "n_probs: maximum is 7"}}, {})]
        for _ in range(2):
            asyncio.run(ask(client))
        assert [body["n_probs"] for body in server.bodies("/completion")] == [1000, 7, 7, 7]

    @pytest.mark.parametrize(
        ("message", "asked"),
        [
            ("max_n_probs (3) was exceeded", [20, 3]),
            ("n_probs: Input should be less than or equal to 5", [20, 5]),
            ("n_probs of 20 is too much", [20, 10]),
        ],
    )
    def test_the_maximum_is_read(self, serve: Start, make: Make, message: str, asked: list[int]) -> None:
        """The maximum is read from the message; without a number the client requests half as many."""
        server = serve("llama.cpp")
        server.faults["/completion"] = [(400, {"error": {"message": message}}, {})]
        asyncio.run(ask(make(server, next_tokens=20)))
        assert [body["n_probs"] for body in server.bodies("/completion")][:2] == asked

    def test_half_as_many_end_at_five(self, serve: Start, make: Make) -> None:
        """A server that refuses even five tokens raises ConfigurationError."""
        server = serve("llama.cpp")
        server.faults["/completion"] = [(400, {"error": {"message": "n_probs: too many"}}, {})] * 3
        failure(make(server, next_tokens=20), ConfigurationError)
        assert [body["n_probs"] for body in server.bodies("/completion")] == [20, 10, 5]


class TestKey:
    def test_is_never_shown(self, serve: Start, make: Make) -> None:
        """The key is neither in the client's repr nor in an error message."""
        server = serve("llama.cpp")
        server.absent.add("/apply-template")
        client = make(server, api_key=KEY)
        assert KEY not in repr(client)
        assert KEY not in repr(client.settings)
        message = str(failure(client, ConfigurationError))
        assert server.root in message
        with pytest.raises(ConfigurationError, match="Expected api_base") as caught:
            open_exact("openai/x", api_base="ftp://me:hidden-pw@host/v1")
        assert "hidden-pw" not in str(caught.value)


class TestConstruction:
    def test_satisfies_the_protocols(self, serve: Start, make: Make) -> None:
        """The client satisfies Client and continues answers."""
        client = make(serve("vllm"), space="raw")
        assert isinstance(client, Client)
        assert hasattr(client, "continuing")
        assert (client.name, client.space) == ("hosted_vllm/toy", LogprobSpace.RAW)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"timeout": 0}, "timeout to be a number of seconds above 0, got 0"),
            ({"next_tokens": 0}, "next_tokens to be a whole number of at least 1, got 0"),
            ({"chat_template": " "}, "chat_template to be the text of a Jinja template, got ' '"),
            ({"chat_template": "{% if %}"}, "chat_template to be a Jinja template, got one that is not"),
            ({"space": "nonsense"}, "expected one of"),
            ({"api_base": "localhost:8000"}, "api_base to be an address such as"),
            ({"api_base": "http://[::1"}, "api_base to be an address such as"),
        ],
    )
    def test_wrong_settings_raise_an_error(self, settings: dict[str, Any], message: str) -> None:
        """Wrong settings and a name without a model raise ConfigurationError at construction."""
        with pytest.raises(ConfigurationError, match=message):
            open_exact("openai/x", **{"api_base": "http://localhost:1", **settings})
        with pytest.raises(ConfigurationError, match="a model's name behind 'openai/'"):
            open_exact("openai/", api_base="http://localhost:1")

    @pytest.mark.parametrize(
        ("template", "reason"),
        [
            ("{{ raise_exception('only users') }}", "ValueError: only users"),
            ("{{ messages.append(1) }}", "SecurityError"),
            ("{{ missing.name }}", "UndefinedError"),
        ],
    )
    def test_failing_templates_raise(self, serve: Start, make: Make, template: str, reason: str) -> None:
        """A template that fails raises ConfigurationError with the reason."""
        client = make(serve("vllm"), chat_template=template)
        assert reason in str(failure(client, ConfigurationError))

    def test_templates_write_json_and_take_variables(self, serve: Start, make: Make) -> None:
        """A template may use the JSON filter and the variables of `chat_template_kwargs`."""
        server = serve("llama.cpp")
        client = make(server, chat_template="{{ messages[0] | tojson }}{{ mood }}")

        async def asked() -> None:
            request = CompletionRequest(
                messages=({"role": "user", "content": "<é>"},),
                options={"chat_template_kwargs": {"mood": "calm"}},
            )
            async with client.continuing(request) as row:
                await row.next_tokens("!")

        asyncio.run(asked())
        assert server.bodies("/completion")[-1]["prompt"] == '{"role": "user", "content": "<é>"}calm!'


def sessions() -> list[aiohttp.ClientSession]:
    """Return the sessions that are still in memory."""
    return [one for one in gc.get_objects() if type(one) is aiohttp.ClientSession]


class TestClosing:
    @pytest.fixture(autouse=True)
    def earlier(self) -> None:
        """Close and forget the sessions of earlier tests."""
        gc.collect()
        self.earlier_sessions = [weakref.ref(one) for one in sessions()]

    def session(self) -> aiohttp.ClientSession:
        """Return the one session that this test has opened."""
        earlier = [reference() for reference in self.earlier_sessions]
        (own,) = (one for one in sessions() if all(one is not old for old in earlier))
        return own

    def test_ending_loops_close_their_sessions(self, serve: Start, make: Make) -> None:
        """An ending loop leaves no session open, whether the client is closed afterwards or not."""
        client = make(serve("vllm"))
        asyncio.run(ask(client))
        assert self.session().closed
        client.close()

    def test_closes_sessions_of_other_threads(self, serve: Start, make: Make) -> None:
        """The client closes sessions of a loop that runs in another thread."""
        client = make(serve("vllm"))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(ask(client), loop).result(30)
        session = self.session()
        assert not session.closed
        client.close()
        assert session.closed
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def test_closes_inside_the_loop_itself(self, serve: Start, make: Make) -> None:
        """Closing inside the loop does not block, and the client can be used again."""
        client = make(serve("vllm"))

        async def used() -> None:
            await ask(client)
            session = self.session()
            client.close()
            await ask(client)
            assert session.closed

        asyncio.run(used())

    def test_closes_sessions_of_a_loop_at_rest(self, serve: Start, make: Make) -> None:
        """The client closes sessions of a loop that is neither running nor closed."""
        client = make(serve("vllm"))
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask(client))
        session = self.session()
        client.close()
        assert session.closed
        loop.close()

    def test_garbage_collected_clients_close_sessions(self, serve: Start) -> None:
        """The sessions of a garbage-collected client are closed in their loop."""
        server = serve("vllm")

        async def used() -> Any:
            client = open_exact("openai/toy", api_base=server.root)
            await ask(client)
            return self.session()

        async def dropped() -> None:
            session = await used()
            gc.collect()
            for _ in range(10):
                await asyncio.sleep(0.01)
            assert session.closed

        asyncio.run(dropped())

    def test_unclosed_classifiers_end_without_warnings(self, serve: Start) -> None:
        """A program that never closes its classifier ends without a warning."""
        code = (
            "import sys; from calibrant.inference import Classifier\n"
            "found = Classifier(model='openai/toy', labels=['Spa', 'Bill'], scoring='exact',"
            " options={'api_base': sys.argv[1]}).classify('x')\n"
            "print(found.outcome.value)"
        )
        done = subprocess.run(  # noqa: S603 (our own code)
            [sys.executable, "-X", "dev", "-c", code, serve("vllm").root],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == "ok"
        assert "unclosed" not in done.stderr.lower()

    @pytest.mark.parametrize(
        ("address", "own"),
        [
            ("http://localhost:1", True),
            ("http://127.0.0.2:1", True),
            ("http://[::1]:1", True),
            ("http://localhost.example", False),
            ("https://10.0.0.1", False),
        ],
    )
    def test_loopback_needs_no_proxy(self, monkeypatch: pytest.MonkeyPatch, address: str, own: bool) -> None:
        """The environment's proxy is used for other addresses only, and NO_PROXY is respected."""
        monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
        monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
        assert _proxy(address) == (None if own else "http://proxy.example:3128")
        monkeypatch.setenv("NO_PROXY", "localhost.example,10.0.0.1")
        assert _proxy(address) is None
