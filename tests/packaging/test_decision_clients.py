"""Tests of typed decisions with unchanged clients, in environments of their own: their versions exclude one another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clean_environments import HERE, Environment, Install, new_environment
from sparrow_server import SparrowServer

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

OPENAI_3 = (
    "openai==3.54.0",
    "typesafe-sdk==0.7.5",
    "langchain-openai==1.7.4",
    "langchain-typesafe==0.0.1a3",
    "jevcompat==0.1.1",
)
OPENAI_2 = ("dspy==3.4.1", "litellm==1.106.2", "typesafe-sdk==0.7.5")
TASK = """\
name = "letters"
labels = ["complaint", "praise"]
field = "kind"
prompt = "Which kind of letter is this?"
[data]
test = "test.jsonl"
[model]
name = "systemone/local"
api_base = "{address}"
"""


@pytest.fixture(scope="module")
def service(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a service, from the wheel, of a task that the decision model answers."""
    folder = tmp_path_factory.mktemp("served")
    model, environment = SparrowServer(), install("serve")
    (folder / "test.jsonl").write_text(json.dumps({"input": "Thanks!", "answer": "praise"}) + "\n")
    (folder / "task.toml").write_text(TASK.format(address=model.root))
    command = (environment.root / "bin" / "calibrant", "serve", folder / "task.toml", "--port", "0", "--json")
    with environment.serving(*command) as running:
        yield running["url"]
    model.stop()


def clients(outside: Path, name: str, packages: tuple[str, ...]) -> Environment:
    """Return an environment with packages of clients, and none of ours."""
    environment = new_environment(outside / name, python=HERE)
    environment.install("--prerelease", "if-necessary-or-explicit", *packages)
    return environment


@pytest.fixture(scope="module")
def openai_3(outside: Path) -> Environment:
    """Return an environment with the clients that take OpenAI's third version."""
    return clients(outside, "openai-3", OPENAI_3)


def test_clients_of_openai_typesafe_and_langchain(openai_3: Environment, service: str) -> None:
    """The clients of OpenAI and TypeSafe, and both of LangChain, read answers, models and errors."""
    openai_3.program("with_decision_clients", service)


def test_the_conformance_suite_passes(openai_3: Environment, service: str) -> None:
    """The suite of System One finds every requirement met that it tests, and the recommendations."""
    openai_3.run("jevcompat", "test", service, "--json", "found.json")
    summary = json.loads((openai_3.work / "found.json").read_text())["summary"]
    assert summary["verdict"] == "conformant"
    assert summary["MUST"]["failed"] == 0
    assert summary["SHOULD"]["passed"] >= 11


def test_dspy_and_litellm(outside: Path, service: str) -> None:
    """DSPy's decision module and litellm on both wires read the answers."""
    clients(outside, "openai-2", OPENAI_2).program("with_decision_libraries", service)
