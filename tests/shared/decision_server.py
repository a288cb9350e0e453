"""A loopback server that answers decision requests on both wires, as it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from loopback import LoopbackServer


class DecisionServer(LoopbackServer):
    """Answers every question with the probabilities that are set.

    Attributes
    ----------
    probabilities : sequence of float
        In the order of the options of every question; of a yes/no question that of yes alone.
    changes : mapping
        Members that every answer gets in place of its own.
    failures : list of int
        Statuses of the next answers.
    message : str
        Their message.
    error_body : mapping or None
        Their body; None for one with the message.
    encoding : str or None
        Name of an encoding in which its answers claim to be, and are not.
    reverses : bool
        True to answer a list of questions from the last to the first.
    refused : set of str
        Names of the questions that are refused.
    asked, headers : list
        Bodies and headers of the requests.
    """

    def __init__(self, *probabilities: float, changes: Mapping[str, Any] | None = None) -> None:
        self.probabilities: Sequence[float] = probabilities
        self.changes = dict(changes or {})
        self.failures: list[int] = []
        self.message = "as told"
        self.error_body: Mapping[str, Any] | None = None
        self.encoding: str | None = None
        self.reverses = False
        self.refused: set[str] = set()
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        super().__init__()

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/systemone", self._system_one)
        app.router.add_post("/v1/decisions", self._decisions)
        return app

    async def _body(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.asked.append(body)
        self.headers.append(request.headers)
        if self.failures:
            status = self.failures.pop(0)
            error = {"error": {"code": status, "message": self.message, "type": "told"}}
            failure = type("Told", (web.HTTPException,), {"status_code": status})
            raise failure(text=json.dumps(self.error_body or error), content_type="application/json")
        return body

    async def _system_one(self, request: web.Request) -> web.Response:
        return self._s1_response(await self._body(request))

    def _s1_response(self, body: Mapping[str, Any]) -> web.Response:
        answers = {
            name: {"type": "refusal"} if name in self.refused else self._s1_answer(question)
            for name, question in body["questions"].items()
        }
        usage = {"input_tokens": 12, "output_tokens": 0}
        headers = {"Content-Encoding": self.encoding} if self.encoding else None
        return web.json_response({"model": "decider-1", "answers": answers, "usage": usage}, headers=headers)

    def _s1_answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        kind, options = question["type"], question.get("criteria")
        if kind == "noul":
            return {"type": "noul", "noul": self.probabilities[0], **self.changes}
        names = list(map(str, range(len(options)))) if kind == "score" else list(options)
        shares = dict(zip(names, self.probabilities, strict=False))
        answer: dict[str, Any] = {"type": kind, "confidence": 0.5, "probabilities": shares}
        if kind == "score":
            answer |= {"score": 1.0, "legend": dict(zip(names, options, strict=True))}
        else:
            answer["choice"] = max(shares, key=lambda name: shares[name] or 0.0)
        return {**answer, **self.changes}

    async def _decisions(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        if isinstance(body["questions"], dict):  # some providers speak System One under this address
            return self._s1_response(body)
        answers = [self._openai_answer(question) for question in body["questions"]]
        if self.reverses:
            answers.reverse()
        usage = {
            "input_tokens": 12,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        }
        return web.json_response({"model": "decider-1", "answers": answers, "usage": usage})

    def _openai_answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        common = {"type": question["type"], "name": question["name"]}
        if self.changes.get("type") == "refusal" or question["name"] in self.refused:
            return {"type": "refusal", "name": question["name"]}
        if question["type"] == "predicate":
            return {**common, "probability": self.probabilities[0], **self.changes}
        if question["type"] == "score":
            levels = [level["label"] for level in question["levels"]]
            listed = [
                {"value": place, "label": level, "probability": share}
                for place, (level, share) in enumerate(zip(levels, self.probabilities, strict=True))
            ]
            return {**common, "score": 1.0, "confidence": 0.5, "probabilities": listed, **self.changes}
        values = [choice["value"] for choice in question["choices"]]
        shares = dict(zip(values, self.probabilities, strict=True))
        listed = [{"value": value, "probability": share} for value, share in shares.items()]
        choice = max(shares, key=shares.__getitem__)
        return {**common, "choice": choice, "confidence": 0.5, "probabilities": listed, **self.changes}
