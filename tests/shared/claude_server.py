"""A server of Anthropic's messages, which come without log-probabilities."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from loopback import LoopbackServer
from probe_text import PROBE

KEY = "sk-ant-of-the-tests"


class AnthropicServer(LoopbackServer):
    """Answers every message with one label, as a tool call; `requests` holds the bodies.

    The question that shows what a model can do is answered, too, and is not among them.
    """

    def __init__(self, label: str, *, field: str = "category") -> None:
        self.requests: list[dict[str, Any]] = []
        self._answer = {field: label}
        super().__init__()

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/messages", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.Response:
        if request.headers.get("x-api-key") != KEY:
            error = {"type": "authentication_error", "message": "invalid x-api-key"}
            return web.json_response({"type": "error", "error": error}, status=401)
        body = await request.json()
        is_probe = PROBE in json.dumps(body)
        if not is_probe:
            self.requests.append(body)
        given = {"label": "dog"} if is_probe else self._answer
        content: dict[str, Any] = {"type": "text", "text": json.dumps(given)}
        if body.get("tools"):
            tool = body["tools"][0]["name"]
            content = {"type": "tool_use", "id": "t", "name": tool, "input": given}
        answer = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [content],
            "stop_reason": "tool_use" if body.get("tools") else "end_turn",
            "usage": {"input_tokens": 9, "output_tokens": 3},
        }
        return web.json_response(answer)
