"""Clients, answers, routers and embedders for tests of routed clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from calibrant.core import CompletionRequest, LogprobSpace, ProviderError
from calibrant.inference import CachedEmbedder, Provider, RoutedClient, open_embedder
from calibrant.routing import FixedRouter, Observation, RouterTraits, RoutingRequest
from calibrant.testing import fake_response

LOOP = "the cat sat on " * 12
GOOD = "A cat purrs when it is content."
BETTER = "Cats purr, and so do some of their relatives."
DOWN = ProviderError("is down", provider="x", status=503, retryable=True)
REQUEST = CompletionRequest(
    messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "what purrs?"})
)
TOOLS = {"tools": [{"type": "function", "function": {"name": "look"}}]}


def providers(*given: Any) -> list[Provider]:
    """Return providers a, b, c, ... with these clients or scripts."""
    return [
        found
        if isinstance(found, Provider)
        else Provider(name, found if hasattr(found, "complete") else Scripted(found))
        for name, found in zip("abcdef", given, strict=False)
    ]


def vectors(table: dict[str, list[float]], **options: Any) -> CachedEmbedder:
    """Return an embedder that looks texts up, and raises an error for others."""
    return CachedEmbedder(open_embedder(lambda texts: [table[text] for text in texts]), **options)


class Watched:
    """Record of a router's observations."""

    def __init__(self, router: Any) -> None:
        self.seen: list[Observation] = []
        record = router.record

        def watched(observation: Observation) -> None:
            self.seen.append(observation)
            record(observation)

        router.record = watched


class Clock:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        """Move the clock."""
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
        """Number of calls."""
        return len(self.requests)

    async def complete(self, request: CompletionRequest) -> object:
        """Return the next result of the script."""
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
            return answered(done) if isinstance(done, str) else done
        finally:
            self.in_flight -= 1

    def close(self) -> None:
        """Count the calls of `close`."""
        self.closed += 1


def answered(text: str, *, cost: float | None = None, tokens: int = 3, **choice: Any) -> dict[str, Any]:
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
    """A router with the declared order that learns, and records its calls."""

    strategy = "recording"
    traits = RouterTraits()

    def __init__(self, providers: Sequence[str], **options: Any) -> None:
        super().__init__(providers, **options)
        self.seen: list[Observation] = []
        self.requests: list[RoutingRequest | None] = []

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return the declared order."""
        self.requests.append(request)
        return super().order(request)

    def record(self, observation: Observation) -> None:
        """Record an observation."""
        self.seen.append(observation)
        super().record(observation)


class Declared(Learner):
    """A router with the declared order that does not learn."""

    strategy = "none"
    traits = RouterTraits(learns_order=False, keeps_state=False)


def routed(*given: Any, kind: str = "learner", **options: Any) -> tuple[RoutedClient, Learner]:
    """Return a routed client of providers a, b, c, ... and its router."""
    found = providers(*given)
    router = (Declared if kind == "declared" else Learner)([provider.name for provider in found])
    return RoutedClient(found, router=router, **options), router


def down(name: str = "a", **options: Any) -> ProviderError:
    """Return a temporary failure of a provider."""
    return ProviderError("is down", provider=name, **({"status": 503, "retryable": True} | options))


async def hang(_request: CompletionRequest) -> str:
    """Sleep longer than every time limit."""
    await asyncio.sleep(60)
    return "too late"


def ask(client: Any, text: str = "what purrs?", **options: Any) -> str:
    """Return the text of a client's answer."""
    response = asyncio.run(client.complete(asking(text, **options)))
    return str(response.text if hasattr(response, "text") else response["choices"][0]["message"]["content"])
