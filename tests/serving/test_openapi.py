"""Tests of the service against its OpenAPI description, by schemathesis over a socket.

It runs as a process of its own: its tests are Hypothesis's, with settings that are not those of this suite.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calibrant.tuned import Tuned, load
from fault_server import FaultServer
from held import Held, app

COMMAND = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]
KEY = "sk-described"


def examine(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Compare a service with its own description, by all of schemathesis's checks."""
    return subprocess.run(  # noqa: S603 (our own words)
        [
            *COMMAND,
            f"{url}/openapi.json",
            *("--checks", "all", "--seed", "1", "--max-examples", "40", "--generation-database", "none"),
            *("--request-timeout", "30", "--no-color", "--header", f"Authorization: Bearer {KEY}"),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=folder,
        check=False,
    )


def test_the_service_fits_its_description(serve: Any, bundle: Tuned, tmp_path: Path) -> None:
    """The service passes all of schemathesis's checks."""
    with (
        FaultServer(["cat", "dog"]) as server,
        contextlib.closing(load(bundle, options={"api_base": server.api_base})) as classifier,
    ):
        running = serve(app(bundle, classifier, api_keys=(KEY,), most_texts=5))
        # Whether a model can answer a question is beyond a schema of it.
        typed = ("/v1/systemone", "/v1/decisions")
        questions = examine(
            running.url,
            tmp_path,
            *(word for path in typed for word in ("--include-path", path)),
            *("--exclude-checks", "positive_data_acceptance"),
        )
        done = examine(running.url, tmp_path, *(word for path in typed for word in ("--exclude-path", path)))
        asked = len(server.requests)
    assert questions.returncode == 0, questions.stdout + questions.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout, done.stdout  # operations
    assert asked > 10, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", ["status", "schema"], ids=["a status that is not described", "an answer of another shape"]
)
def test_a_deviating_service_is_detected(serve: Any, bundle: Tuned, tmp_path: Path, wrong: str) -> None:
    """Schemathesis finds a status that is not described, and an answer of another shape."""
    made = app(bundle, Held(held=False), api_keys=(KEY,))
    described = made.openapi()
    if wrong == "status":
        del described["paths"]["/v1/classify"]["post"]["responses"]["422"]
    else:
        described["components"]["schemas"]["Answer"]["required"].append("colour")
    done = examine(serve(made).url, tmp_path, "--include-path", "/v1/classify", "--phases", "coverage")
    assert done.returncode == 1, done.stdout + done.stderr
