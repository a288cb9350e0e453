"""Classify a text with ``calibrant classify``, and count the spans that a collector on loopback is sent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

names: list[str] = []


class Collector(BaseHTTPRequestHandler):
    """Collector of the spans' names."""

    def do_POST(self) -> None:
        """Take spans."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names.extend(span.name for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


server = HTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
program = Path(sys.executable).with_name("calibrant")
subprocess.run([program, "classify", sys.argv[1], "--text", "a cat"], env=environment, check=True)
print(*sorted({name.split()[0] for name in names}))
