"""A collector of spans on loopback, by OTLP over HTTP; alone: ``python tests/shared/span_collector.py``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Literal

from aiohttp import web
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loopback import LoopbackServer

__all__ = ["SpanCollector"]


class SpanCollector(LoopbackServer):
    """Keeps the spans that are sent to it.

    Parameters
    ----------
    does : "take", "refuse" or "hang"
        What it does with them: the last two answer 400, or nothing at all.
    """

    def __init__(self, does: Literal["take", "refuse", "hang"] = "take") -> None:
        self._does = does
        self._bodies: list[bytes] = []
        self.requests = 0
        super().__init__()

    def routed(self) -> web.Application:
        """Return the application."""
        application = web.Application(client_max_size=64 * 2**20)
        application.add_routes([web.post("/v1/traces", self._take), web.get("/count", self._count)])
        return application

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Spans that were taken, in the form of OTLP's JSON, with the attributes as one mapping."""
        sent = [ExportTraceServiceRequest.FromString(body) for body in self._bodies]
        resources = [one for request in sent for one in MessageToDict(request)["resourceSpans"]]
        return [
            {**span, "attributes": plain(span), "resource": plain(one["resource"])}
            for one in resources
            for scope in one["scopeSpans"]
            for span in scope["spans"]
        ]

    async def _take(self, request: web.Request) -> web.Response:
        self.requests += 1
        body = await request.read()
        if self._does == "hang":
            await asyncio.sleep(600)
        if self._does == "refuse":
            return web.Response(status=400)
        self._bodies.append(body)
        return web.Response(content_type="application/x-protobuf")

    async def _count(self, _request: web.Request) -> web.Response:
        return web.json_response(len(self.spans))


def plain(holder: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span, an event or a resource."""
    kinds = {"intValue": int, "doubleValue": float, "stringValue": str, "boolValue": bool}
    found = {}
    for attribute in holder.get("attributes", ()):
        ((kind, value),) = attribute["value"].items()
        found[attribute["key"]] = kinds[kind](value) if kind in kinds else value
    return found


if __name__ == "__main__":
    print(SpanCollector().root, flush=True)  # noqa: T201 (for the parent)
    sys.stdin.read()
