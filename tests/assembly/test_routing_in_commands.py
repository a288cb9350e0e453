"""classify, evaluate and optimize on a task with [routing]: as on one model, and what each provider did."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from calibrant.assembly import open_classifier
from calibrant.cli import app
from calibrant.core import ConfigurationError, Task
from calibrant.inference import Classifier
from calibrant.testing import FaultServer

WriteTask = Callable[..., Path]

SECTION = """
[routing]
{keys}
[[routing.providers]]
name = "openai/first"
alias = "broken"
api_base = "{broken}"
options = {{ api_key = "k" }}
[[routing.providers]]
name = "openai/second"
alias = "healthy"
api_base = "{healthy}"
cost = 0.25
options = {{ api_key = "k" }}
"""
EMA = 'routing = "ema"\nrouter_reorder_interval = 1\nstate = "router.json"\n'
ROWS = [{"input": f"{number} a cat", "answer": "cat"} for number in range(12)]


def run(*arguments: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)))


def broken(_number: int, _body: object) -> str:
    """Answer nothing."""
    return "503"


@pytest.fixture
def servers() -> Iterator[tuple[FaultServer, FaultServer]]:
    """Return a server that always fails and one that never does."""
    with FaultServer(["cat", "dog"], faults=broken) as first, FaultServer(["cat", "dog"]) as second:
        yield first, second


Servers = tuple[FaultServer, FaultServer]


@pytest.fixture
def task(write_task: WriteTask, servers: Servers) -> Callable[..., Path]:
    """Return a function that writes a task that both servers may answer."""
    first, second = servers

    def write(keys: str = EMA, extra: str = "") -> Path:
        section = SECTION.format(keys=keys, broken=first.api_base, healthy=second.api_base)
        return write_task(extra=section + extra, test=ROWS)

    return write


WriteRouted = Callable[..., Path]


def table(result: Result) -> list[list[str]]:
    """Return the cells of all printed lines."""
    return [re.split(r" {2,}", line) for line in result.stdout.splitlines()]


# --- classify -----------------------------------------------------------------------------------


def test_classify_asks_who_answers(task: WriteRouted, servers: Servers, tmp_path: Path) -> None:
    """And writes down what was learnt before it ends."""
    result = run("classify", task(), "--text", "a cat", "--text", "a dog")
    assert result.exit_code == 0, result.stderr
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["cat", "dog"]
    assert all(server.requests for server in servers)
    record = json.loads((tmp_path / "router.json").read_text())
    assert "broken" in json.dumps(record)


def test_a_model_on_the_command_line_is_asked_alone(
    task: WriteRouted, servers: Servers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of all providers, which is said."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_BASE", servers[1].api_base)
    result = run("classify", task(), "--text", "a cat", "--model", "openai/x")
    assert result.exit_code == 0, result.stderr
    assert [len(server.requests) for server in servers] == [0, 1]
    (message,) = [record.message for record in caplog.records if "alone" in record.message]
    assert message == "openai/x alone is asked: the task's routing and its settings are not used."


def test_a_mistake_in_the_section_is_bad_input(task: WriteRouted, servers: Servers) -> None:
    """With its line, and before anybody is asked."""
    result = run("classify", task('routing = "cascade"\ncascade = { cost_tiers = ["nobody"] }'), "--text", "x")
    assert result.exit_code == 2
    assert "task.toml:13: routing.cascade.cost_tiers: Input should be one of the providers" in result.stderr
    assert [len(server.requests) for server in servers] == [0, 0]


@pytest.mark.parametrize("command", ["batch", "plan"])
def test_commands_that_ask_one_model_refuse_several(task: WriteRouted, tmp_path: Path, command: str) -> None:
    """By name, with what to do."""
    assert command == "batch" or command == "plan"
    with pytest.raises(ConfigurationError, match=r"got the \[routing\] of task 'animals': name one model"):
        Classifier.from_task(Task.from_file(task()))
    if command == "batch":
        result = run("batch", "submit", task(), "--out", tmp_path / "batch")
        assert result.exit_code == 2
        assert "Expected a task with one model, got the [routing] of task 'animals'" in result.stderr


# --- evaluate -----------------------------------------------------------------------------------


def test_evaluate_says_what_became_of_every_provider(
    task: WriteRouted, servers: Servers, tmp_path: Path
) -> None:
    """Calls, failures, time, tokens and cost; every row is answered all the same."""
    result = run("evaluate", task(), "--out", tmp_path / "out", "--no-cache", "--concurrency", "1")
    assert result.exit_code == 0, result.stderr
    lines = table(result)
    start = next(number for number, line in enumerate(lines) if line[0] == "provider")
    assert lines[start] == ["provider", "calls", "failed", "turned down", "mean latency", "tokens", "cost"]
    first, second = lines[start + 1], lines[start + 2]
    asked = [len(server.requests) for server in servers]
    assert first[:4] == ["broken", str(asked[0]), str(asked[0]), "0"]
    assert second[:4] == ["healthy", "12", "0", "0"]
    assert second[6] == "$3.0000"
    assert 1 <= asked[0] <= 3
    assert lines[1][:2] == ["accuracy, all rows", lines[1][1]]
    assert lines[1][1].startswith("1.000")


def test_evaluate_puts_the_providers_into_its_json(task: WriteRouted, tmp_path: Path) -> None:
    """Beside the numbers of the run."""
    result = run("evaluate", task(), "--out", tmp_path / "out", "--no-cache", "--json")
    record = json.loads(result.stdout)
    assert [one["provider"] for one in record["providers"]] == ["broken", "healthy"]
    assert record["providers"][1]["calls"] == 12
    assert record["model"] == "routed(broken, healthy)"


def test_the_state_is_the_owner_s_and_the_next_run_begins_with_it(
    task: WriteRouted, servers: Servers, tmp_path: Path
) -> None:
    """The provider that failed is not tried first again."""
    path = task()
    assert run("evaluate", path, "--out", tmp_path / "one", "--no-cache").exit_code == 0
    state = tmp_path / "router.json"
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    asked = len(servers[0].requests)
    assert asked >= 1
    assert run("evaluate", path, "--out", tmp_path / "two", "--no-cache").exit_code == 0
    assert len(servers[0].requests) == asked
    assert len(servers[1].requests) == 24
