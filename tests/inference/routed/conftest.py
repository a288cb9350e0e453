"""What the tests of routed clients share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from calibrant.core import CompletionRequest
from calibrant.core._prediction import LogprobSpace
from calibrant.inference import Provider, RoutedClient
from calibrant.routing import FixedRouter, Observation, RoutingRequest
from calibrant.testing import fake_response


class Clock:
    """A clock that goes when it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Scripted:
    """A client that does what it is told, call by call; the last thing stays.

    An exception is raised, a text is answered, anything else is returned; a coroutine function is awaited with the
    request and gives one of these.
    """

    def __init__(
        self, *script: Any, name: str = "scripted", clock: Clock | None = None, seconds: float = 0.0
    ) -> None:
        self.name = name
        self.space = LogprobSpace.MASKED
        self.script = list(script) or ["an answer"]
        self.requests: list[CompletionRequest] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.closed = 0
        self._clock = clock
        self._seconds = seconds

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return len(self.requests)

    async def complete(self, request: CompletionRequest) -> object:
        """Do the next thing."""
        turn = min(len(self.requests), len(self.script) - 1)
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            if self._clock is not None:
                self._clock.tick(self._seconds)
            done = self.script[turn]
            if asyncio.iscoroutinefunction(done):
                done = await done(request)
            if isinstance(done, BaseException):
                raise done
            return completion(done) if isinstance(done, str) else done
        finally:
            self.in_flight -= 1

    def close(self) -> None:
        """Count how often it is closed."""
        self.closed += 1


def completion(text: str, *, cost: float | None = None, tokens: int = 3, **choice: Any) -> dict[str, Any]:
    """Return an OpenAI-shaped answer."""
    body = fake_response("cat", top_logprobs=0)
    body["choices"][0]["message"]["content"] = text
    body["choices"][0] |= choice
    body["usage"] = {"prompt_tokens": 10, "completion_tokens": tokens}
    if cost is not None:
        body["_hidden_params"] = {"response_cost": cost}
    return body


def asking(text: str = "what purrs?", **options: Any) -> CompletionRequest:
    """Return a request."""
    messages = ({"role": "system", "content": "Which animal?"}, {"role": "user", "content": text})
    return CompletionRequest(messages=messages, options=options)


class Learner(FixedRouter):
    """Keeps the declared order but counts as a strategy that learns, and remembers what it is told."""

    strategy = "recording"

    def __init__(self, providers: Sequence[str], **options: Any) -> None:
        super().__init__(providers, **options)
        self.seen: list[Observation] = []
        self.requests: list[RoutingRequest | None] = []

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return the declared order."""
        self.requests.append(request)
        return super().order(request)

    def record(self, observation: Observation) -> None:
        """Remember."""
        self.seen.append(observation)
        super().record(observation)


class Declared(Learner):
    """The same, as an order that was declared."""

    strategy = "none"


def route(*clients: Any, kind: str = "learner", **options: Any) -> tuple[RoutedClient, Learner]:
    """Return a routed client of providers a, b, c, ... and its router."""
    providers = [
        found if isinstance(found, Provider) else Provider(name, found)
        for name, found in zip("abcdef", clients, strict=False)
    ]
    router = (Declared if kind == "declared" else Learner)([provider.name for provider in providers])
    return RoutedClient(providers, router=router, **options), router


@pytest.fixture
def routed() -> Callable[..., tuple[RoutedClient, Learner]]:
    """Return what makes routed clients and their routers, which remember all they are told."""
    return route


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands still."""
    return Clock()


@pytest.fixture
def scripted() -> Callable[..., Scripted]:
    """Return what makes clients that do as they are told."""
    return Scripted


@pytest.fixture
def answered() -> Callable[..., dict[str, Any]]:
    """Return what makes answers."""
    return completion


@pytest.fixture
def ask() -> Callable[..., str]:
    """Return a function that asks a client and returns the text of the answer."""

    def send(client: Any, text: str = "what purrs?", **options: Any) -> str:
        return read(asyncio.run(client.complete(asking(text, **options))))

    return send


def read(response: Any) -> str:
    """Return an answer's text."""
    if hasattr(response, "text"):
        return str(response.text)
    return str(response["choices"][0]["message"]["content"])
