"""A server of embeddings on loopback, in the form of OpenAI's."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiohttp import web

from loopback import LoopbackServer
from synonyms import Synonyms

TOKENS = 3  # that a text is said to have


class EmbeddingServer(LoopbackServer):
    """Gives a text the vector of `model`, beside numbers that all texts share; `calls` holds the texts of each call.

    Of `most` calls the later ones get no answer. From `failing_from` texts on a call gets status 401; one with
    a text in `widened` gets longer vectors. Texts in `broken` get a vector of numbers that are too large, in
    `without` none at all.
    """

    def __init__(self) -> None:
        self.model, self.shared = Synonyms(), [1.0, 0.0]
        self.calls: list[list[str]] = []
        self.statuses: list[int] = []  # of the next calls, instead of an answer
        self.most: int | None = None
        self.failing_from = sys.maxsize
        self.widened: set[str] = set()
        self.broken: set[str] = set()
        self.number = 1e300  # more than the numbers that are kept can hold
        self.without: set[str] = set()
        super().__init__()
        self.name = f"openai/vectors@{self.root}/v1"

    @property
    def texts(self) -> list[str]:
        """Return the texts of all calls."""
        return [text for call in self.calls for text in call]

    def change_model(self) -> None:
        """Put another model of the same dimension under the name."""
        self.model, self.shared = Synonyms(seed=1), [0.0, 1.0]

    def routed(self) -> web.Application:
        """Return the application with its route."""
        app = web.Application()
        app.router.add_post("/v1/embeddings", self._embeddings)
        return app

    async def _embeddings(self, request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        self.calls.append(texts)
        if self.most is not None and len(self.calls) > self.most:
            await asyncio.Event().wait()
        if self.statuses:
            return web.json_response({"error": {"message": "scripted"}}, status=self.statuses.pop(0))
        if len(texts) >= self.failing_from:
            return web.json_response({"error": {"message": "scripted"}}, status=401)
        rows = self.model.vectors(texts).tolist()
        if self.widened & set(texts):
            rows = [[*row, 0.0] for row in rows]
        data: list[dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": [*self.shared, *row]}
            for index, (text, row) in enumerate(zip(texts, rows, strict=True))
            if text not in self.without
        ]
        for entry in data:
            if texts[entry["index"]] in self.broken:
                entry["embedding"][-1] = self.number
        usage = {"prompt_tokens": TOKENS * len(texts), "total_tokens": TOKENS * len(texts)}
        body = {"object": "list", "model": "vectors", "data": data[::-1], "usage": usage}
        return web.json_response(body)
