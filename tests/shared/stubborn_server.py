"""A chat server on loopback that refuses or ignores formats of answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from aiohttp import web

from loopback import LoopbackServer

_TOPICS = {"pasta": "Food", "rain": "Weather", "cats": "Animals", "guitar": "Music", "Japan": "Tokyo"}
CHAT = "Well, it is hard to say what this is about."


def plain(label: str) -> str:
    """Return a label alone."""
    return label


class StubbornServer(LoopbackServer):
    """A server whose answer is "cat" for texts with "meow", and else "dog"; it knows the questions of the doctor.

    Parameters
    ----------
    refused : collection of str
        Types of ``response_format`` that get the status 400; "text" stands for none.
    ignored : collection of str
        Types under which it chats, as if nothing had been asked for.
    says : callable
        What it writes in plain text for a label.
    has_logprobs : bool
        True to report token log-probabilities: 0.8 for the label, 0.2 for the other one.
    hides_in : str
        Part of the texts whose answers another server gives, which reports none and writes the label alone; of none
        if empty.
    message : str
        Error message of refusals.
    """

    def __init__(
        self,
        *,
        refused: Collection[str] = (),
        ignored: Collection[str] = (),
        says: Callable[[str], str] = plain,
        has_logprobs: bool = False,
        hides_in: str = "",
        message: str = "response_format is not supported",
    ) -> None:
        self.refused, self.ignored, self.says = set(refused), set(ignored), says
        self.has_logprobs, self.hides_in, self.message = has_logprobs, hides_in, message
        self.bodies: list[dict[str, Any]] = []
        super().__init__()

    @property
    def api_base(self) -> str:
        """Address for clients."""
        return f"{self.root}/v1"

    @property
    def formats(self) -> list[str]:
        """Types of the formats asked for, in order."""
        return [_format(body) for body in self.bodies]

    def routed(self) -> web.Application:
        """Return the application."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        kind = _format(body)
        if kind in self.refused:
            return web.json_response({"error": {"message": self.message}}, status=400)
        label = _label(body)
        is_other = bool(self.hides_in) and self.hides_in in body["messages"][-1]["content"]
        pieces = [(label, "")] if is_other else self._pieces(label, kind, body)
        message = {"role": "assistant", "content": "".join(text for text, _ in pieces)}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
        if self.has_logprobs and body.get("logprobs") and not is_other:
            choice["logprobs"] = {"content": [_token(text, other) for text, other in pieces]}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        model = "other" if is_other else body["model"]
        return web.json_response({"model": model, "choices": [choice], "usage": usage})

    def _pieces(self, label: str, kind: str, body: dict[str, Any]) -> list[tuple[str, str]]:
        """Return the tokens of an answer, each with its alternative or an empty text."""
        if kind in self.ignored:
            return [(CHAT, "")]
        other = {"cat": "dog", "Food": "Music"}.get(label, "cat" if label == "dog" else "Food")
        if kind == "text":
            before, named, behind = self.says(label).partition(label)
            if not named:
                return [(before, "")]
            return [piece for piece in ((before, ""), (label, other), (behind, "")) if piece[0]]
        field = "topic" if label in _TOPICS.values() else "label"
        confidence = ', "confidence": 90' if "confidence" in body["messages"][0]["content"] else ""
        return [(f'{{"{field}": "', ""), (label, other), (f'"{confidence}}}', "")]


def _label(body: dict[str, Any]) -> str:
    """Return the animal that a text names, or its topic in an examination."""
    text = body["messages"][-1]["content"]
    if '"topic"' in body["messages"][0]["content"]:
        return next((topic for word, topic in _TOPICS.items() if word in text), "Tokyo")
    return "cat" if "meow" in text else "dog"


def _format(body: dict[str, Any]) -> str:
    return str((body.get("response_format") or {}).get("type", "text"))


def _token(text: str, other: str) -> dict[str, Any]:
    top = [{"token": text, "logprob": math.log(0.8) if other else 0.0}]
    if other:
        top.append({"token": other, "logprob": math.log(0.2)})
    return {"token": text, "logprob": top[0]["logprob"], "top_logprobs": top}
