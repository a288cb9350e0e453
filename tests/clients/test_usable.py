"""Tests of the models that this machine could use now."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from aiohttp import web

from calibrant.clients._weights import usable_models
from loopback import LoopbackServer


def others(ports: dict[str, int]) -> list[tuple[str, str | None, str]]:
    """Return name, address and reason of the models that are not embedded."""
    found = [(model.name, model.api_base, model.where) for model in usable_models(ports)]
    return [model for model in found if model[2] != "embedded"]


class ModelServer(LoopbackServer):
    """Lists models, or whatever else it is told to answer."""

    def __init__(self, body: object) -> None:
        self.body = body
        super().__init__()

    def routed(self) -> web.Application:
        """Return the application with its routes."""
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models)])
        return app

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response(self.body)


@pytest.fixture
def serve() -> Iterator[Callable[[object], int]]:
    """Return a function that starts a server with an answer, and returns its port."""
    servers = []

    def start(body: object) -> int:
        servers.append(ModelServer(body))
        return int(servers[-1].root.rpartition(":")[2])

    yield start
    for server in servers:
        server.stop()


@pytest.mark.usefixtures("no_keys")
def test_models_of_local_servers_are_named(serve: Callable[[object], int]) -> None:
    """The models of a local server come with its address; those that only embed texts are left out."""
    port = serve({"data": [{"id": "llama3.2:3b"}, {"id": "nomic-embed-text"}, {"id": "\x1b[31m"}, {"id": 3}]})
    base = f"http://127.0.0.1:{port}/v1"
    assert others({"Ollama": port}) == [("openai/llama3.2:3b", base, f"Ollama at {base}")]


@pytest.mark.usefixtures("no_keys")
@pytest.mark.parametrize("body", [[], {"data": None}, {"data": [{}]}, "no"])
def test_other_servers_are_passed_over(serve: Callable[[object], int], body: object) -> None:
    """A server that lists no models is left out."""
    assert others({"Ollama": serve(body)}) == []


@pytest.mark.usefixtures("no_keys")
def test_silent_servers_are_passed_over() -> None:
    """A port that nobody listens on and a server that never answers are passed over."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert others({"a": silent.getsockname()[1], "b": closed.getsockname()[1]}) == []


@pytest.mark.usefixtures("no_keys")
def test_keys_are_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the environment is named with a model; its value stands nowhere."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("GEMINI_API_KEY", " ")
    assert others({}) == [("anthropic/claude-haiku-4-5", None, "ANTHROPIC_API_KEY is set")]
    assert "sk-secret" not in repr(usable_models({}))
