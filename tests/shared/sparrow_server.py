"""A server on loopback that answers System One with a real decision model of 2 MB."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from sparrow_decider import Decider

from loopback import LoopbackServer


class SparrowServer(LoopbackServer):
    """Answers System One with the model; counts the calls."""

    def __init__(self) -> None:
        self.model = Decider.load()
        self.calls = 0
        super().__init__()

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/systemone", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        self.calls += 1
        body: dict[str, Any] = await request.json()
        answers = self.model.ask(body["state"], body["questions"])
        return web.json_response(
            {"model": self.model.name, "answers": answers, "usage": {"input_tokens": 0, "output_tokens": 0}}
        )
