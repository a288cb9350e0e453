"""Tests of commands on a task with [routing], and of what they report of every provider."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from bundle_runs import run
from calibrant.core import ConfigurationError, Task
from calibrant.inference import Classifier
from fault_server import FaultServer

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
EMA = 'routing = "ema"\nrouter_reorder_interval = 1\nstate = "router.sqlite"\n'
ROWS = [{"input": f"{number} a cat", "answer": "cat"} for number in range(12)]


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


def test_classify_falls_back_and_learns(task: WriteRouted, servers: Servers, tmp_path: Path) -> None:
    """`classify` answers by the second provider, and saves that the first one failed."""
    result = run("classify", task(), "--text", "a cat", "--text", "a dog")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["cat", "dog"]
    assert all(server.requests for server in servers)
    shown = run("router", "stats", "--task", tmp_path / "task.toml", "--json")
    assert "broken" in [one["provider"] for one in json.loads(shown.stdout)["records"][0]["providers"]]


def test_commands_of_one_model_refuse_routing(task: WriteRouted, tmp_path: Path, servers: Servers) -> None:
    """Commands and classes for one model refuse a task with [routing], and make no request."""
    with pytest.raises(ConfigurationError, match=r"got the \[routing\] of task 'animals': name one model"):
        Classifier.from_task(Task.from_file(task()))
    result = run("batch", "submit", task(), "--out", tmp_path / "batch", code=2)
    assert "Expected a task with one model, got the [routing] of task 'animals'" in result.stderr
    assert [len(server.requests) for server in servers] == [0, 0]


# --- evaluate -----------------------------------------------------------------------------------


def test_evaluate_reports_every_provider(task: WriteRouted, servers: Servers, tmp_path: Path) -> None:
    """`evaluate` prints calls, failures, tokens and cost of every provider, and of all, our questions included."""
    result = run("evaluate", task(), "--out", tmp_path / "out", "--no-cache", "--concurrency", "1")
    lines = table(result)
    start = next(number for number, line in enumerate(lines) if line[0] == "provider")
    assert lines[start] == ["provider", "calls", "failed", "turned down", "mean latency", "tokens", "cost"]
    first, second = lines[start + 1], lines[start + 2]
    asked = [len(server.requests) for server in servers]
    # Each was asked one question of ours before, which the servers leave out of their requests.
    assert first[:4] == ["broken", str(asked[0] + 1), str(asked[0]), "0"]
    assert second[:4] == ["healthy", "13", "0", "0"]
    assert f"\n{asked[0] + 1 + 13} calls, 0 rows without a call" in result.stdout
    assert second[6] == "$3.2500"
    assert 1 <= asked[0] <= 3
    assert lines[1][:2] == ["accuracy, all rows", lines[1][1]]
    assert lines[1][1].startswith("1.000")


def test_evaluate_prints_providers_as_json(task: WriteRouted, tmp_path: Path) -> None:
    """`evaluate --json` has the calls of every provider under `routing`."""
    result = run("evaluate", task(), "--out", tmp_path / "out", "--no-cache", "--json")
    record = json.loads(result.stdout)
    routing = record["routing"]
    assert routing["strategy"] == "ema"
    assert [one["provider"] for one in routing["providers"]] == ["broken", "healthy"]
    assert routing["providers"][1]["calls"] == 13  # with the question of ours
    assert record["calls"] == sum(one["calls"] for one in routing["providers"])
    assert routing["helpers"] == {}
    assert record["model"] == "routed:ema(broken, healthy)"


def test_a_finished_run_has_no_such_table(task: WriteRouted, tmp_path: Path) -> None:
    """A second `evaluate` of a finished run prints no table of providers, and counts no call."""
    path = task()
    run("evaluate", path, "--out", tmp_path / "out", "--no-cache")
    again = run("evaluate", path, "--out", tmp_path / "out", "--no-cache")
    assert "mean latency" not in again.stdout
    record = json.loads(run("evaluate", path, "--out", tmp_path / "out", "--no-cache", "--json").stdout)
    assert [one["calls"] for one in record["routing"]["providers"]] == [0, 0]


def test_one_model_has_no_such_table(
    write_task: WriteTask, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evaluate` of one model shows no providers on the terminal or in the JSON."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    path = write_task(extra=f'\n[model]\nname = "openai/x"\napi_base = "{servers[1].api_base}"\n', test=ROWS)
    result = run("evaluate", path, "--out", tmp_path / "out", "--no-cache")
    assert "mean latency" not in result.stdout
    again = run("evaluate", path, "--out", tmp_path / "out", "--no-cache", "--json")
    assert "routing" not in json.loads(again.stdout)


def test_evaluate_names_judges_and_cooldowns(task: WriteRouted, servers: Servers, tmp_path: Path) -> None:
    """`evaluate` prints judges and providers in cooldown under the table."""
    keys = (
        'routing = "cascade"\nallowed_failures = 1\ncooldown_seconds = 100\n'
        'cascade = { classifier_mode = "judge", judge_provider = "healthy", cost_tiers = ["healthy", "broken"] }'
    )
    result = run("evaluate", task(keys), "--out", tmp_path / "out", "--no-cache", "--concurrency", "1")
    (judge,) = [line for line in result.stdout.splitlines() if line.startswith("judge: ")]
    assert re.fullmatch(
        r"judge: 12 calls, 0 failed, 12 replies of no use, [\d,]+ \+ \d+ tokens, \$3\.0000", judge
    )
    assert not servers[0].requests
    keys = "allowed_failures = 1\ncooldown_seconds = 100"
    result = run("evaluate", task(keys), "--out", tmp_path / "two", "--no-cache", "--concurrency", "1")
    assert re.search(r"^left out for failing: broken for \d+ s$", result.stdout, re.MULTILINE)
    assert len(servers[0].requests) == 1


# --- cascades -----------------------------------------------------------------------------------

MEMBERS = """
[cascade]
confidence_method = "label_probability"
threshold = 0.5
[[cascade.models]]
name = "routed"
alias = "many"
[[cascade.models]]
name = "openai/last"
api_base = "{healthy}"
options = {{ api_key = "k" }}
"""


def test_a_cascade_may_call_the_providers(task: WriteRouted, servers: Servers, tmp_path: Path) -> None:
    """`evaluate` of a cascade with a routed model prints models and providers."""
    path = task(extra=MEMBERS.format(healthy=servers[1].api_base))
    result = run("evaluate", path, "--out", tmp_path / "out", "--no-cache", "--concurrency", "1")
    lines = table(result)
    (many,) = [line for line in lines if line[0] == "many"]
    assert many[1:3] == ["12 (100.0 %)", "12 (100.0 %)"]
    (healthy,) = [line for line in lines if line[0] == "healthy"]
    assert healthy[1:3] == ["13", "0"]  # with the question of ours
    assert (tmp_path / "router.sqlite").exists()


# --- optimize -----------------------------------------------------------------------------------

BUDGET = ("--max-metric-calls", "60", "--minibatch-size", "2", "--seed", "0")


def test_optimize_improves_the_providers_prompt(task: WriteRouted, servers: Servers, tmp_path: Path) -> None:
    """`optimize` reports every provider, and a second start makes no request."""
    out = tmp_path / "out"
    result = run("optimize", task(), *BUDGET, "--out", out, "--json")
    record = json.loads(result.stdout)
    assert record["model"] == "routed:ema(broken, healthy)"
    asked = [len(server.requests) for server in servers]
    assert all(asked)
    # With the question of ours, which the servers leave out of their requests.
    assert [one["calls"] - 1 for one in record["routing"]["providers"]] == asked
    run("optimize", task(), *BUDGET, "--out", out, "--json")
    people = run("optimize", task(), *BUDGET)
    assert [row[0] for row in table(people) if row[0] in {"provider", "broken", "healthy"}] == [
        "provider", "broken", "healthy",
    ]  # fmt: skip
    asked = [len(server.requests) for server in servers]
    run("optimize", task(), *BUDGET, "--out", out)
    assert [len(server.requests) for server in servers] == asked


def test_optimize_refuses_the_providers_prior(task: WriteRouted, servers: Servers) -> None:
    """`optimize --prior-correction batch` on a task with [routing] exits with 2."""
    result = run("optimize", task(), "--prior-correction", "batch", code=2)
    assert "Expected no --prior-correction batch beside [routing]" in result.stderr
    assert [len(server.requests) for server in servers] == [0, 0]
