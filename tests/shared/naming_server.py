"""A server of the echo model, as vLLM, SGLang or llama.cpp, that reports the log-probabilities of named tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from echo_model import PREFIX, Echoing, EchoModel
from loopback import LoopbackServer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
PROMPT = "Which one?"


def template_of(kind: str) -> dict[str, str]:
    """Return the option that a server needs which does not tell its chat template."""
    return {"chat_template": TEMPLATE} if kind == "sglang" else {}


def named_by(server: NamingServer) -> set[tuple[int, ...]]:
    """Return the tokens that requests to vLLM or SGLang named."""
    key = "logprob_token_ids" if server.kind == "vllm" else "token_ids_logprob"
    named = [tuple(body[key]) for _, body in server.asked if body.get(key)]
    return {tokens for tokens in named if len(tokens) > 3}  # not the question whether the server can


class TellingModel(EchoModel):
    """An echo model whose next tokens are of one of two kinds, which a head can learn to tell apart."""

    def kind_after(self, tokens: list[int]) -> int:
        """Return the kind of what comes after these tokens, 0 or 1."""
        logprobs = self.after(tokens)
        return int(logprobs[100:160].mean() > logprobs[160:220].mean() + 2.0)

    def _next(self, state: bytes) -> NDArray[np.float64]:
        found = super()._next(state).copy()
        found[100:160] += 4.0 * (state[-1:] > b"\x7f")
        found -= np.log(np.exp(found).sum())
        return found


class NamingServer(LoopbackServer):
    """Serves the echo model.

    Attributes
    ----------
    asked : list of (str, dict)
        Routes and bodies of the requests.
    refuses_names : bool
        True to answer 400 to a request that names tokens.
    """

    def __init__(self, kind: str, *, names_tokens: bool = True) -> None:
        self.kind = kind
        self.echoing = Echoing("vllm" if kind == "vllm" else "sglang")
        self.echoing.names_tokens = names_tokens
        self.model = self.echoing.model = TellingModel()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.refuses_names = False
        super().__init__()

    def prompt_of(self, text: str) -> str:
        """Return the prompt of a text up to the label, without the token that begins it."""
        return f"[system]{PROMPT}\n[user]{text}\n[assistant]{PREFIX}"

    def tokens_before_label(self, text: str) -> list[int]:
        """Return the tokens before the label."""
        return self.model.tokenize("<s>" + self.prompt_of(text))

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{route:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        self.asked.append((request.path, body))
        answer = self._routes().get(request.path)
        if answer is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.refuses_names and "logprob_token_ids" in body:
            return web.json_response({"error": {"message": "Extra inputs: logprob_token_ids"}}, status=400)
        found = answer(body)
        return web.json_response(found, status=found.pop("status", 200))

    def _routes(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        model = self.model
        if self.kind == "llama.cpp":
            return {
                "/props": lambda _: {"total_slots": 2, "default_generation_settings": {"n_ctx": 4096}},
                "/apply-template": lambda body: {"prompt": _rendered(body["messages"])},
                "/tokenize": lambda body: {"tokens": model.tokenize(body["content"])},
                "/detokenize": lambda body: {"content": self._written(body["tokens"])},
                "/completion": self._completion,
            }
        routes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "/v1/models": lambda _: {"data": [{"id": "toy"}]},
            "/v1/completions": self.echoing.answer,
        }
        if self.kind == "vllm":
            routes["/tokenize"] = self._tokenize
            routes["/detokenize"] = lambda body: {"prompt": self._written(body["tokens"])}
        elif self.echoing.names_tokens:
            routes["/generate"] = self.echoing.generate
        return routes

    def _written(self, tokens: list[int]) -> str:
        return b"".join(self.model.vocabulary[token] for token in tokens).decode("utf-8", "replace")

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        text = "<s>" + _rendered(body["messages"]) if "messages" in body else body["prompt"]
        return {"tokens": self.model.tokenize(text), "max_model_len": 4096}

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        logprobs = self.model.after(self.model.tokenize("<s>" + body["prompt"]))
        listed = [
            {"id": token, "bytes": list(self.model.vocabulary[token]), "logprob": float(logprobs[token])}
            for token in np.argsort(-logprobs)[: body["n_probs"]].tolist()
        ]
        return {"model": "toy.gguf", "completion_probabilities": [{**listed[0], "top_logprobs": listed}]}


def _rendered(messages: Any) -> str:
    chat = "".join(f"[{message['role']}]{message['content']}\n" for message in messages)
    return f"{chat}[assistant]"
