"""A round trip through a Label Studio server, in an environment of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from clean_environments import HERE, Environment, Install, new_environment

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

TOKEN = "0123456789abcdef0123456789abcdef01234567"  # noqa: S105 (of this server)
LETTERS = str.maketrans("0123456789", "abcdefghij")
PATIENCE = 400  # seconds for the server's first start, which makes its tables


@pytest.fixture(scope="module")
def studio(outside: Path) -> Environment:
    """Return an environment with Label Studio, and none of ours."""
    environment = new_environment(outside / "label-studio", python=HERE)
    environment.install("label-studio==1.23.2", "label-studio-sdk==2.1.2")
    return environment


@pytest.fixture(scope="module")
def server(studio: Environment) -> Iterator[str]:
    """Return the address of a running server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = (
        "start --no-browser --internal-host 127.0.0.1 --enable-legacy-api-token --username me@example.com"
    )
    variables = {
        **studio.variables,
        "LABEL_STUDIO_BASE_DATA_DIR": str(studio.work / "data"),
        "COLLECT_ANALYTICS": "False",
        "LATEST_VERSION_CHECK": "False",
    }
    words = [*command.split(), "--password", "a-password-1", "--user-token", TOKEN, "--port", port]
    with subprocess.Popen(  # noqa: S603 (of the environment)
        [studio.root / "bin" / "label-studio", *words], env=variables, start_new_session=True
    ) as process:
        try:
            yield ready(f"http://127.0.0.1:{port}", process)
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def ready(address: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until the server answers, and return its address."""
    for _ in range(PATIENCE):
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=10):  # noqa: S310 (of this machine)
                return address
        except OSError:
            time.sleep(1)
    pytest.fail("the server did not start")


def test_annotations_in_a_server_lead_to_a_promise(
    studio: Environment, server: str, install: Install
) -> None:
    """Tasks are imported, annotated and exported until certify has its answers, and nothing of an export is lost."""
    rows = [
        {
            "index": n,
            "input": f'{"sure" if n < 60 else "odd"} text <{str(n).translate(LETTERS)}> & "quoted", in Kyōto 京都',
            "label": "cat & co",
            "answer": None,
            "confidence": 0.9 if n < 60 else 0.6,
            "probabilities": {"cat & co": 0.9, 'a "dog"': 0.1},
        }
        for n in range(120)
    ]
    (studio.work / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ours = install("serve").root / "bin" / "calibrant"
    said = studio.program("with_label_studio", server, TOKEN, ours)
    assert "120 rows; 72 labels given, 60 of them as predicted" in said
    assert "Certified: 66 rows (55.0%) are accepted" in said
