"""What tests of other projects' servers share."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[2] / ".venv-tracking" / "bin"
# No server asks for anything from outside.
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PHOENIX_TELEMETRY_ENABLED": "false",
}


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def fetched(address: str, body: object = None) -> Any:
    """Return the JSON of an answer; with a body, of a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})  # noqa: S310 (on loopback)
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)
