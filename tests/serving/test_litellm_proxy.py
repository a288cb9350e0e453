"""Tests of litellm's proxy with a bundle: a process, its configuration file, and HTTP.

The proxy's requirements do not go together with those of the other tests; `make test-proxy` installs it into an
environment of its own and names it in ``LITELLM_PROXY``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant.tuned import Tuned, load
from fault_server import FaultServer

pytestmark = [pytest.mark.proxy, pytest.mark.timeout(300)]

SECONDS = 240
KEY = "sk-proxy-1"
CONFIG = f"""\
model_list:
  - model_name: calibrant/animals
    litellm_params:
      model: calibrant/animals
litellm_settings:
  custom_provider_map:
    - provider: calibrant
      custom_handler: bundles.provider
general_settings:
  master_key: {KEY}
"""
MODULE = """\
from calibrant.serving import BundleProvider

provider = BundleProvider({{"animals": {path!r}}}, options={{"animals": {{"api_base": {base!r}}}}})
"""


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    """Return the bundle's model, which declines to answer some texts."""

    def faults(_: int, body: Any) -> str | None:
        return "refusal" if "declined" in body["messages"][-1]["content"] else None

    with FaultServer(["cat", "dog"], faults=faults) as running:
        yield running


def ask(port: int, path: str, body: Any = None, key: str = KEY) -> tuple[int, Any]:
    """Return status and JSON, or the events of a stream."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as line:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        line.request(
            "GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers
        )
        response = line.getresponse()
        text = response.read().decode()
        if not text.startswith("data: "):
            return response.status, json.loads(text)
        events = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
        assert events.pop() == "[DONE]"
        return response.status, [json.loads(event) for event in events]


def chat(
    port: int, *messages: dict[str, Any], model: str = "calibrant/animals", **more: Any
) -> tuple[int, Any]:
    """Return status and JSON of a chat completion."""
    return ask(port, "/v1/chat/completions", {"model": model, "messages": messages, **more})


def user(text: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def proxy(bundle: Tuned, server: FaultServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a running proxy."""
    command = os.environ.get("LITELLM_PROXY")
    if not command:
        pytest.skip("LITELLM_PROXY names no litellm with its proxy; see `make test-proxy`")
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "bundles.py").write_text(MODULE.format(path=str(bundle.path), base=server.api_base))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 (named by whoever runs the tests)
            [command, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            stdout=out,
            stderr=out,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
    try:
        await_answer(process, port, log)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()


def await_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return once the proxy answers."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            if ask(port, "/health/liveliness")[0] == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"the proxy does not answer: {log.read_text()[-3000:]}")


def test_the_proxy_answers_with_the_bundle(proxy: int, bundle: Tuned, server: FaultServer) -> None:
    """The proxy returns the classifier's answer and its tokens, whole and as a stream."""
    with contextlib.closing(load(bundle, options={"api_base": server.api_base})) as classifier:
        expected = classifier.classify("one dog")
    status, found = chat(proxy, {"role": "system", "content": "Be brief."}, user("one dog"))
    assert status == 200, found
    told = json.loads(found["choices"][0]["message"]["content"])
    assert (told["label"], told["confidence"]) == ("dog", pytest.approx(expected.confidence))
    assert (told["outcome"], told["decision"]) == ("ok", None)
    assert found["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    status, events = chat(proxy, user([{"type": "text", "text": "one dog"}]), stream=True)
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert (status, json.loads("".join(pieces))) == (200, told)
    assert "calibrant/animals" in [own["id"] for own in ask(proxy, "/v1/models")[1]["data"]]


def test_the_proxy_passes_errors_on(proxy: int) -> None:
    """The proxy passes on the status and the message of an error."""
    for messages, status, words in (
        ([{"role": "system", "content": "a cat"}], 400, "user message"),
        ([user("declined")], 502, "refusal"),
    ):
        found = chat(proxy, *messages)
        assert (found[0], words in found[1]["error"]["message"]) == (status, True), found
    for name in ("calibrant/other", "calibrant/../animals"):
        assert chat(proxy, user("a cat"), model=name)[0] in {400, 404}
    assert ask(proxy, "/v1/models", key="sk-wrong")[0] in {400, 401}
