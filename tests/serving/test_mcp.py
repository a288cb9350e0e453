"""Tools for agents, asked by the protocol's reference client."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from calibrant.core import Example, LabelSet, ProviderError, Task
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.serving import create_mcp_server
from calibrant.testing import FakeClient, fake_model
from calibrant.tuned import Tuned
from fault_server import FaultServer
from packed import packed

ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(40)]
MAIN = "from calibrant.cli import main; main()"
Ask = Callable[[Client], Awaitable[Any]]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return a loopback model server."""
    with FaultServer(["cat", "dog"]) as running:
        yield running


@pytest.fixture
def bundle(tmp_path: Path, server: FaultServer) -> Path:
    """Return the folder of a bundle of the model server."""
    packed(tmp_path, ROWS, server=server)
    return tmp_path / "bundle"


def over_stdio(bundle: Path, ask: Ask) -> Any:
    """Return what a client of ``calibrant mcp`` in a process of its own was told."""
    parameters = StdioServerParameters(
        command=sys.executable, args=["-c", MAIN, "mcp", str(bundle)], env=dict(os.environ)
    )

    async def run() -> Any:
        async with Client(stdio_client(parameters)) as client:
            return await ask(client)

    return asyncio.run(run())


def in_process(tuned: Tuned, classifier: Classifier, ask: Ask) -> Any:
    """Return what a client of the server in this process was told."""

    async def run() -> Any:
        async with Client(create_mcp_server(tuned, classifier)) as client:
            return await ask(client)

    return asyncio.run(run())


@pytest.fixture
def pets(tmp_path: Path) -> Iterator[tuple[Tuned, Classifier]]:
    """Return a tuned classifier and the same opened; its model fails on what barks."""

    def answer(text: str) -> str:
        if text == "barks":
            raise ProviderError("secret address", provider="p")
        if text == "meows":
            raise ProviderError("secret key", provider="p", status=401)
        return "cat"

    task = Task(name="pets", labels=LabelSet(["cat", "dog"]), prompt="Which animal?")
    fake = FakeClient(["cat", "dog"], answer, field="label", name="fake/pets")
    with fake_model("fake/pets", fake) as name, closing(Classifier.from_task(task, model=name)) as classifier:
        BatchEvaluator(classifier).evaluate([Example(input="purrs", answer="cat")], out=tmp_path / "run")
        yield Tuned.from_run(tmp_path / "run", task=task, model=name), classifier


def test_an_agent_classifies_one_text_or_many(bundle: Path) -> None:
    """Answers are those of the bundle, in the order of the texts."""

    async def ask(client: Client) -> Any:
        tools = (await client.list_tools()).tools
        one = await client.call_tool("classify", {"text": "a cat"})
        many = await client.call_tool("classify_many", {"texts": ["a dog", "a cat"]})
        return tools, one.structured_content, many.structured_content

    tools, one, many = over_stdio(bundle, ask)
    assert [tool.name for tool in tools] == ["classify", "classify_many"]
    assert all("cat, dog" in tool.description and tool.annotations.read_only_hint for tool in tools)
    with closing(Tuned.load(bundle).open()) as classifier:
        expected = [classifier.classify(text) for text in ("a cat", "a dog", "a cat")]
    answers = [one, *many["results"]]
    assert [answer["label"] for answer in answers] == [found.label for found in expected]
    assert [answer["confidence"] for answer in answers] == pytest.approx(
        [found.confidence for found in expected]
    )


def test_an_agent_asks_over_http(bundle: Path) -> None:
    """With a port the tools answer at 127.0.0.1, and no page of another host may call them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/mcp"
    words = [sys.executable, "-c", MAIN, "mcp", str(bundle), "--port", str(port)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 (our own program)
        assert process.stderr is not None
        try:
            assert "answers agents at" in process.stderr.readline()
            with httpx.Client(transport=httpx.HTTPTransport(retries=6)) as patient:  # until the port is open
                refused = patient.post(address, json={}, headers={"Origin": "http://evil.test"})

            async def ask() -> Any:
                async with Client(address) as client:
                    return (await client.call_tool("classify", {"text": "a cat"})).structured_content

            answer = asyncio.run(ask())
        finally:
            process.terminate()
            said = process.stderr.read()
    assert "INFO" not in said
    assert refused.status_code == 403
    assert answer["label"] == "cat"


def test_instructions_tell_the_promise(pets: tuple[Tuned, Classifier]) -> None:
    """Without a certificate, agents are told that nothing is promised."""

    async def ask(client: Client) -> Any:
        return client.instructions

    assert "No accuracy is promised" in in_process(*pets, ask)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"text": ""}, {"text": 7}, {"texts": []}, {"texts": ["a"] * 129}, {"texts": [""]}, {"text": " \n"}],
)
def test_wrong_arguments_are_refused(pets: tuple[Tuned, Classifier], arguments: dict[str, Any]) -> None:
    """No model is asked about them."""

    async def ask(client: Client) -> Any:
        name = "classify_many" if "texts" in arguments else "classify"
        return await client.call_tool(name, arguments)

    assert in_process(*pets, ask).is_error


def test_a_failed_call_is_an_answer(pets: tuple[Tuned, Classifier]) -> None:
    """A text that the model cannot answer has no label, and the others have theirs; messages stay here."""

    async def ask(client: Client) -> Any:
        return (await client.call_tool("classify_many", {"texts": ["purrs", "barks"]})).structured_content

    results = in_process(*pets, ask)["results"]
    assert [one["label"] for one in results] == ["cat", None]
    assert results[1]["outcome"] == "error"
    assert "secret" not in str(results)


def test_failed_calls_are_logged(pets: tuple[Tuned, Classifier], caplog: pytest.LogCaptureFixture) -> None:
    """The log has the failed calls by status, and of an error its status, but no message of the provider."""

    async def ask(client: Client) -> Any:
        await client.call_tool("classify", {"text": "meows"})
        await client.call_tool("classify_many", {"texts": ["purrs", "barks"]})
        await client.call_tool("classify_many", {"texts": ["purrs", "meows"]})

    in_process(*pets, ask)
    logged = [vars(record)["fields"] for record in caplog.records if record.name == "calibrant.service"]
    refused, *failed = logged
    assert (refused["error"], refused["provider"], refused["status"]) == ("ProviderError", "p", 401)
    assert failed == [
        {"texts": 2, "failures": {"no status": 1}},
        {"texts": 2, "failures": {"401": 1}},
    ]
    assert "secret" not in str(logged)


def test_a_wrong_key_is_an_error_without_it(pets: tuple[Tuned, Classifier]) -> None:
    """What every call would meet is told as an error of the tool, without the provider's message."""

    async def ask(client: Client) -> Any:
        return await client.call_tool("classify", {"text": "meows"})

    found = in_process(*pets, ask)
    assert found.is_error
    assert "A call of the model failed" in str(found.content)
    assert "secret" not in str(found.content)
