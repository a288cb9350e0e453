"""A loopback provider with files and batches that go through scripted states."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from calibrant.testing import fake_response
from loopback import LoopbackServer

KEY = "sk-planted-0123456789abcdef"


class BatchServer(LoopbackServer):
    """Keeps what it is sent; ``states`` is what the next batches go through, one step per look.

    ``answer`` turns the requests of a batch, which ended in a status, into lines of its answer and its
    error file; a line that is text is written as it is. ``faults[step]`` holds what goes wrong next at
    ``upload``, ``create``, ``list``, ``look`` or ``content``: a status, ``"reset"`` (nothing is done),
    ``"lost"`` (it is done, and the answer is lost), ``"cut"`` (half an answer comes), ``"broken"`` (an
    answer without its contents comes), or ``"kill"`` (as lost, and `victim` is killed).
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, bytes]] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.authorizations: set[str | None] = set()
        self.chats: list[dict[str, Any]] = []
        self.states = ["validating", "in_progress", "completed"]
        self.errors: list[dict[str, Any]] = []
        self.faults: dict[str, list[Any]] = {}
        self.victim = 0
        self.answer: Callable[[list[dict[str, Any]]], tuple[list[Any], list[Any]]] = lambda requests: (
            [self.right(request) for request in reversed(requests)],
            [],
        )
        self._left: dict[str, list[str]] = {}
        super().__init__()
        self.url = f"{self.root}/v1"

    def remember(self, job: Path) -> None:
        """Remember the requests of an earlier server for the job in this directory."""
        record = json.loads((job / "batch.json").read_text(encoding="utf-8"))
        for part in record["parts"]:
            number = part["number"]
            if part["file_id"] is not None:
                content = (job / f"batch-requests-{number:04d}.jsonl").read_bytes()
                self.files[part["file_id"]] = (part["file_id"], content)
            if part["asked"]:
                about = {"calibrant_run": record["run"], "calibrant_part": str(number)}
                self._begin(part["batch_id"] or f"lost-{number}", part["file_id"], about)

    @staticmethod
    def answered(request: dict[str, Any], status: int, body: Any) -> dict[str, Any]:
        """Return a line with a response."""
        response = {"status_code": status, "request_id": "r", "body": body}
        return {"id": "l", "custom_id": request["custom_id"], "response": response, "error": None}

    @staticmethod
    def failed(request: dict[str, Any], code: str, message: str) -> dict[str, Any]:
        """Return a line with an error."""
        error = {"code": code, "message": message}
        return {"id": "l", "custom_id": request["custom_id"], "response": None, "error": error}

    @classmethod
    def right(cls, request: dict[str, Any]) -> dict[str, Any]:
        """Return the line of a right answer: "meow" is a cat with 0.9, "bark" a dog with 0.8."""
        meows = "meow" in request["body"]["messages"][-1]["content"]
        shares = {"cat": 0.9, "dog": 0.1} if meows else {"cat": 0.2, "dog": 0.8}
        body = fake_response("cat" if meows else "dog", probabilities=shares)
        body["usage"] = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        return cls.answered(request, 200, body)

    def requests(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the requests of a batch."""
        return [json.loads(line) for line in self.files[batch["input_file_id"]][1].splitlines()]

    def routed(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/files", self._step("upload", self._upload))
        app.router.add_post("/v1/batches", self._step("create", self._create))
        app.router.add_get("/v1/batches", self._step("list", self._list))
        app.router.add_get("/v1/batches/{id}", self._step("look", self._look))
        app.router.add_get("/v1/files/{id}/content", self._step("content", self._content))
        app.router.add_post("/v1/chat/completions", self._step("chat", self._chat))
        return app

    def _step(self, name: str, handler: Any) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.calls.append(name)
            self.authorizations.add(request.headers.get("Authorization"))
            faults = self.faults.get(name) or [None]
            fault = faults.pop(0)
            if isinstance(fault, int):
                return web.json_response(
                    {"error": {"message": f"scripted, {KEY}", "code": None}}, status=fault
                )
            if fault == "reset":
                request.transport.abort()  # type: ignore[union-attr]
                return web.Response()
            response: web.StreamResponse = await handler(request)
            if fault == "cut":
                return await self._cut(request)
            if fault == "broken":
                return web.json_response({"object": "error"})
            if fault == "kill":
                os.kill(self.victim, signal.SIGKILL)
            if fault in {"lost", "kill"}:
                request.transport.abort()  # type: ignore[union-attr]
            return response

        return handle

    async def _cut(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"custom_id": "row-0"')
        request.transport.close()  # type: ignore[union-attr]
        return response

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        file = form["file"]
        assert form["purpose"] == "batch"
        assert isinstance(file, web.FileField)
        name = f"file-{len(self.files)}"
        self.files[name] = (file.filename, file.file.read())
        return web.json_response({"id": name, "object": "file", "purpose": "batch"})

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["endpoint"] == "/v1/chat/completions"
        assert body["completion_window"] == "24h"
        name = f"batch-{len(self.batches)}"
        self._begin(name, body["input_file_id"], body["metadata"])
        return web.json_response(self.batches[name])

    def _begin(self, name: str, file: str, metadata: dict[str, str]) -> None:
        self.batches[name] = {
            "id": name,
            "object": "batch",
            "status": "validating",
            "created_at": int(time.time()),
            "input_file_id": file,
            "metadata": metadata,
            "output_file_id": None,
            "error_file_id": None,
        }
        self._left[name] = list(self.states)

    async def _list(self, request: web.Request) -> web.Response:
        newest_first = list(reversed(self.batches.values()))
        after = request.query.get("after")
        names = [batch["id"] for batch in newest_first]
        start = names.index(after) + 1 if after else 0
        page = newest_first[start : start + 2]  # small pages, so that there are several
        more = start + 2 < len(newest_first)
        return web.json_response({"object": "list", "data": page, "has_more": more})

    async def _look(self, request: web.Request) -> web.Response:
        batch = self.batches[request.match_info["id"]]
        if self._left[batch["id"]]:
            batch["status"] = self._left[batch["id"]].pop(0)
            if batch["status"] in {"completed", "expired", "cancelled", "failed"}:
                self._finish(batch)
        return web.json_response(batch)

    def _finish(self, batch: dict[str, Any]) -> None:
        requests = self.requests(batch)
        if batch["status"] == "failed":
            batch["errors"] = {"object": "list", "data": self.errors}
            return
        good, bad = self.answer(requests)
        for kind, lines in (("output_file_id", good), ("error_file_id", bad)):
            if lines:
                name = f"file-{len(self.files)}"
                text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
                self.files[name] = (name, text.encode())
                batch[kind] = name
        batch["request_counts"] = {"total": len(requests), "completed": len(good), "failed": len(bad)}

    async def _content(self, request: web.Request) -> web.Response:
        found = self.files.get(request.match_info["id"])
        if found is None:
            return web.json_response({"error": {"message": "No such File object"}}, status=404)
        return web.Response(body=found[1], content_type="application/octet-stream")

    async def _chat(self, request: web.Request) -> web.Response:
        self.chats.append(await request.json())
        return web.json_response(self.right({"custom_id": "x", "body": self.chats[-1]})["response"]["body"])
