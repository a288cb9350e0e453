"""Fixtures: a server of scripted chat completions, and one of a small language model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from calibrant.core import (
    CompletionRequest,
    LabelSet,
)
from calibrant.inference import (
    Classifier,
    RetryPolicy,
    open_client,
)
from calibrant.testing import fake_response
from echo_model import Echoing
from loopback import LoopbackServer

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ChatServer(LoopbackServer):
    """Answers the last message of every POST with what `answers` holds for it, else with `default`.

    An answer is a body, (status, body, headers), or the name of one of `faults`.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.default: Any = fake_response("Food", ["Food", "Rent"])
        self.faults: dict[str, Fault] = {}
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.begun = threading.Event()
        self.absent: set[str] = set()
        self.delay = 0.0
        self.together = 0  # requests that have to be under way at once before any is answered
        self.running = self.peak = 0
        super().__init__()
        self.url = f"{self.root}/v1"

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        """Set the default answer; without a body it is an error object."""
        error = {"error": {"message": "scripted", "type": "scripted", "code": None}}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.default = (status, error if body is None else body, named)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests."""
        return [body for _, body, _ in self.asked]

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{route:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((str(request.rel_url), body, dict(request.headers)))
        self.begun.set()
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(self.delay)
            while self.peak < self.together:  # noqa: ASYNC110 (each request looks for itself)
                await asyncio.sleep(0.005)
        finally:
            self.running -= 1
        if request.path in self.absent:
            return web.json_response({"detail": "Not Found"}, status=404)
        messages = body.get("messages") or [{"content": ""}]
        answer = self.answers.get(messages[-1]["content"], self.default)
        if isinstance(answer, str):
            return await self.faults[answer](request)
        status, content, headers = answer if isinstance(answer, tuple) else (200, answer, {})
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        return web.Response(status=status, body=data, headers={"Content-Type": "application/json", **headers})


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """Return a running server of chat completions."""
    found = ChatServer()
    yield found
    found.stop()


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return litellm, which fetches no price list."""
    monkeypatch.setitem(os.environ, "LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm")


@pytest.fixture
def request_for_label() -> CompletionRequest:
    """Return a request for one of two labels."""
    return CompletionRequest(
        messages=({"role": "system", "content": "Classify."}, {"role": "user", "content": "lunch"}),
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "strict": True,
                "schema": LabelSet(["Food", "Rent"]).schema("category"),
            },
        },
    )


SPECIAL = "<|end|>"
VOCABULARY = [*'SpaortBil/GsTé"', "Sp", "ort", "Gas", '"}', SPECIAL]
PREFIX = '{"label": "'
TOY_LABELS = ["Spa", "Sport", "Bill", "Bill/Gas", "Té"]


class ToyModel:
    """A language model of 20 tokens: how probable each is follows from the whole text before it."""

    def next(self, text: str) -> dict[str, float]:
        """Return the probability of every token after `text`, the most probable first."""
        weights = {
            token: math.exp(
                int.from_bytes(hashlib.blake2b(f"{token}|{text}".encode(), digest_size=2).digest()) / 16384
            )
            for token in VOCABULARY
        }
        total = math.fsum(weights.values())
        ranked = sorted(weights, key=weights.__getitem__, reverse=True)
        return {token: weights[token] / total for token in ranked}

    def mass(self, label: str, text: str, written: str = "") -> float:
        """Return the probability that the answer after `text` is `label`, over all its tokenisations."""
        found = []
        for token, probability in self.next(text + written).items():
            now = written + token
            if now.rstrip("}") == label + '"':
                found.append(probability)
            elif label.startswith(now):
                found.append(probability * self.mass(label, text, now))
        return math.fsum(found)

    def render(self, messages: Any) -> str:
        """Return the prompt of a chat."""
        chat = "".join(f"[{message['role']}]{message['content']}\n" for message in messages)
        return f"<s>{chat}[assistant]"

    def distribution(self, labels: Any, prompt: str, text: str) -> list[float]:
        """Return the probability of each label as the answer, by summing over all tokenisations."""
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
        masses = [self.mass(label, self.render(messages) + PREFIX) for label in labels]
        return [mass / math.fsum(masses) for mass in masses]

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Return token numbers; a character without a token becomes 1,000 plus its code point."""
        known = sorted((token for token in VOCABULARY if special or token != SPECIAL), key=len, reverse=True)
        found = []
        while text:
            token = next((token for token in known if text.startswith(token)), text[0])
            found.append(VOCABULARY.index(token) if token in VOCABULARY else 1000 + ord(token))
            text = text[len(token) :]
        return found

    def detokenize(self, tokens: list[int]) -> str:
        """Return the text of token numbers; the model knows no Greek."""
        pieces = [VOCABULARY[number] if number < 1000 else chr(number - 1000) for number in tokens]
        return "".join("?" if "α" <= piece <= "ω" else piece for piece in pieces)


class ToyServer(LoopbackServer):
    """Serves a toy model as llama.cpp, vLLM or SGLang does.

    ``faults[route]`` holds what goes wrong next there: a status with body and headers, or a function that changes the
    answer. ``absent`` are routes it does not have.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.model = ToyModel()
        self.calls: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.faults: dict[str, list[Any]] = defaultdict(list)
        self.absent: set[str] = set()
        self.slots, self.context = 2, 4096
        self.echoing = Echoing(kind)
        self.delay = 0.0
        super().__init__()

    def bodies(self, route: str) -> list[dict[str, Any]]:
        """Return the bodies of the requests to a route."""
        return [body for asked, body, _ in self.calls if asked == route]

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{route:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        self.calls.append((request.path, body, dict(request.headers)))
        await asyncio.sleep(self.delay)
        fault = self.faults[request.path].pop(0) if self.faults[request.path] else None
        if isinstance(fault, tuple):
            status, content, headers = fault
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            return web.Response(status=status, body=data, headers=headers)
        answer = self._answers().get(request.path)
        if answer is None or request.path in self.absent:
            return web.json_response({"detail": "Not Found"}, status=404)
        found = answer(body)
        status = found.pop("status", 200)
        return web.json_response(fault(found) if callable(fault) else found, status=status)

    def _answers(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        model, context = self.model, {"n_ctx": self.context}
        if self.kind == "llama.cpp":
            return {
                "/props": lambda _: {"total_slots": self.slots, "default_generation_settings": context},
                "/apply-template": lambda body: {"prompt": model.render(body["messages"])[len("<s>") :]},
                "/tokenize": lambda body: {
                    "tokens": model.tokenize(body["content"], special=body["parse_special"])
                },
                "/detokenize": lambda body: {"content": model.detokenize(body["tokens"])},
                "/completion": self._completion,
                "/v1/chat/completions": lambda _: fake_response("Spa", ["Spa", "Sport"]),
            }
        said = "prompt" if self.kind == "vllm" else "text"
        return {
            "/v1/models": lambda _: {"data": [{"id": "toy"}]},
            "/v1/completions": self._v1_completions,
            **({"/generate": self.echoing.generate} if self._generates else {}),
            "/v1/chat/completions": lambda _: fake_response("Spa", ["Spa", "Sport"]),
            "/tokenize": self._tokenize,
            "/detokenize": lambda body: {said: model.detokenize(body["tokens"])},
        }

    @property
    def _generates(self) -> bool:
        return self.kind == "sglang" and self.echoing.names_tokens

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.kind == "sglang" and "messages" in body:
            return {"status": 400, "message": "[{'loc': ('body', 'prompt'), 'msg': 'Field required'}]"}
        text = self.model.render(body["messages"]) if "messages" in body else body["prompt"]
        return {"tokens": self.model.tokenize(text), "max_model_len": self.context}

    def _too_long(self, text: str) -> bool:
        return len(self.model.tokenize(text)) > self.context

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        text = "<s>" + body["prompt"]
        if self._too_long(text):
            error = {"code": 400, "type": "exceed_context_size_error", "message": "too long", "n_ctx": 9}
            return {"status": 400, "error": error}
        listed = self._tokens(text, body["n_probs"])
        return {
            "model": "toy.gguf",
            "tokens_evaluated": len(self.model.tokenize(text)),
            "tokens_predicted": 1,
            "completion_probabilities": [{**listed[0], "top_logprobs": listed}],
        }

    def _v1_completions(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["model"] != "toy":
            message = f"The model `{body['model']}` does not exist."
            return {"status": 404, "error": {"message": message, "type": "NotFoundError"}}
        if any(self._too_long(prompt) for prompt in body["prompt"]):
            message = f"This model's maximum context length is {self.context} tokens. However, ..."
            return {"status": 400, "error": {"message": message, "type": "BadRequestError"}}
        return self.echoing.answer(body)

    def _tokens(self, text: str, count: int) -> list[dict[str, Any]]:
        found = list(self.model.next(text).items())[:count]
        return [
            {
                "id": VOCABULARY.index(token),
                "bytes": [] if token == SPECIAL else list(token.encode()),
                "logprob": math.log(probability),
            }
            for token, probability in found
        ]


@pytest.fixture
def serve() -> Iterator[Callable[..., ToyServer]]:
    """Return a function that starts a server of the toy model, of a kind."""
    running: list[ToyServer] = []

    def start(kind: str, **settings: Any) -> ToyServer:
        running.append(ToyServer(kind))
        for name, value in settings.items():
            setattr(running[-1], name, value)
        return running[-1]

    yield start
    for found in running:
        found.stop()


async def no_wait(_seconds: float) -> None:
    """Replace sleeping by returning at once."""


@pytest.fixture
def classify() -> Iterator[Callable[..., Classifier]]:
    """Return a function that makes a classifier on a server, with tolerance 0."""
    made: list[Classifier] = []

    def build(server: Any, **options: Any) -> Classifier:
        named = {name: options.pop(name) for name in ("concurrency", "retry", "labels") if name in options}
        usual = {"model": "hosted_vllm/toy", "labels": TOY_LABELS, "retry": RetryPolicy(sleep=no_wait)}
        options = {"api_base": server.root, **options}
        fixed = {"prompt": "Which one?", "scoring": "exact", "tolerance": 0, "options": options}
        made.append(Classifier(**{**usual, **named, **fixed}))
        return made[-1]

    yield build
    for classifier in made:
        classifier.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """Return a function that makes a client of a server, closed at the end."""
    made: list[Any] = []

    def build(server: Any, model: str = "hosted_vllm/toy", **settings: Any) -> Any:
        space, address = settings.pop("space", None), settings.pop("api_base", None) or server.root
        options = {"api_base": address, **settings}
        made.append(open_client(model, space=space, options=options, scoring="exact"))
        return made[-1]

    yield build
    for client in made:
        client.close()
