"""Tests of the simulation's command line: output and errors."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from routing_simulation._command import app

SCENARIO = """
name = "drift"
requests = 400

[[providers]]
name = "good"
success = 0.95
cost = 0.01

[[providers]]
name = "bad"
success = 0.2
cost = 0.001

[[changes]]
at = 200
provider = "good"
success = 0.5
"""


def run(*arguments: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def run_json(*arguments: object) -> Any:
    """Run the command with ``--json``, and return the printed object."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    """Run the command, and return the error; the exit code must be 2."""
    result = run(*arguments)
    assert result.exit_code == 2, result.stdout
    return result.stderr


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a scenario."""

    def write(text: str = SCENARIO) -> Path:
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return path

    return write


def predictions(directory: Path, name: str, right: float, **changes: Any) -> Path:
    """Write a run of evaluate with this share of right answers."""
    path = directory / f"{name}.jsonl"
    rng = np.random.default_rng(len(name))
    lines = [
        {
            "index": number,
            "input": f"text {number}",
            "answer": "cat",
            "label": "cat" if rng.random() < right else "dog",
            "outcome": "ok",
            "cost": 0.001 * len(name),
            "latency_seconds": 0.2,
            **changes,
        }
        for number in range(200)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_log(directory: Path, lines: list[Mapping[str, Any]]) -> Path:
    """Write a log of observations."""
    path = directory / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def uniform_log(count: int = 900) -> list[Mapping[str, Any]]:
    """Return calls of two providers drawn at random: `a` is right in 90 %, `b` in 30 %."""
    rng = np.random.default_rng(0)
    chances = {"a": 0.9, "b": 0.3}
    names = rng.choice(list(chances), size=count).tolist()
    return [
        {"provider": name, "success": bool(rng.random() < chances[name]), "latency_seconds": 0.1, "cost": 0.0}
        for name in names
    ]


def test_a_scenario_is_simulated(scenario: Callable[..., Path], tmp_path: Path) -> None:
    """The simulation prints regret with its interval, reward, cost and requests, and writes a page."""
    page = tmp_path / "regret.html"
    found = run_json(scenario(), "--seeds", 5, "--strategies", "thompson,round-robin", "--out", page)
    assert (found["kind"], found["source"], found["seeds"]) == ("scenario", "drift", 5)
    best, worst = found["strategies"]
    assert (best["name"], worst["name"]) == ("thompson", "round-robin")
    # Half of the requests, each 0.75 before the change and 0.3 after it.
    assert worst["regret"]["estimate"] == pytest.approx(100 * 0.75 + 100 * 0.3)
    assert best["regret"]["lower"] < best["regret"]["estimate"] < best["regret"]["upper"]
    assert best["regret"]["upper"] < worst["regret"]["lower"]
    assert worst["requests"] == {"good": 200.0, "bad": 200.0}
    assert worst["cost"] == pytest.approx(0.0055)
    text = page.read_text()
    assert "Strategies compared: drift" in text
    assert "<polyline" in text
    assert "Upright line: something changes." in text


def test_the_same_seed_gives_the_same_numbers(scenario: Callable[..., Path]) -> None:
    """The same seed gives the same figures, and another seed gives other ones."""
    options = ("--seeds", 2, "--strategies", "thompson,epsilon-greedy:epsilon=0.3")
    first = run_json(scenario(), *options)
    assert run_json(scenario(), *options) == first
    assert run_json(scenario(), *options, "--seed", 1)["strategies"] != first["strategies"]


def test_requests_and_the_weight_of_cost_may_be_set(scenario: Callable[..., Path]) -> None:
    """A high cost weight changes which provider is best, set by option or in the scenario file."""
    options = ("--seeds", 1, "--requests", 50, "--strategies", "none")
    (one,) = run_json(scenario(), *options)["strategies"]
    assert one["regret"] == {"estimate": 0.0, "lower": None, "upper": None}
    assert one["requests"]["good"] == 50.0
    (other,) = run_json(scenario(), *options, "--cost-weight", 100)["strategies"]
    assert other["regret"]["estimate"] == pytest.approx(50 * (0.2 - 0.1 - 0.95 + 1.0))
    (stated,) = run_json(scenario("cost_weight = 100\n" + SCENARIO), *options)["strategies"]
    assert stated["regret"] == other["regret"]


def test_kinds_of_requests_let_the_bandit_learn(scenario: Callable[..., Path]) -> None:
    """With kinds of requests the bandit has the lowest regret; without them it is refused."""
    text = """
    dim = 8
    noise = 0.1
    [[providers]]
    name = "a"
    success = [0.95, 0.05]
    [[providers]]
    name = "b"
    success = [0.05, 0.95]
    """
    found = run_json(scenario(text), "--seeds", 2, "--requests", 600, "--strategies",
                     "bandit:dim=8,thompson,ema")  # fmt: skip
    assert found["strategies"][0]["name"] == "bandit:dim=8"
    assert "for the strategy bandit" in refused(scenario(), "--strategies", "bandit")


def test_runs_of_evaluate_hold_full_information(tmp_path: Path) -> None:
    """From runs of evaluate, a strategy's reward is the share of its provider's right answers."""
    small, large = predictions(tmp_path, "small", 0.5), predictions(tmp_path, "largest", 0.9)
    options = ("--seeds", 3, "--strategies", "none,thompson,bandit")
    found = run_json(small, large, *options)
    by_name = {one["name"]: one for one in found["strategies"]}
    right = [json.loads(line)["label"] == "cat" for line in small.read_text().splitlines()]
    assert by_name["none"]["reward"]["estimate"] == pytest.approx(np.mean(right))
    assert by_name["none"]["requests"] == {"small": 200.0, "largest": 0.0}
    assert by_name["none"]["cost"] == pytest.approx(0.005)
    assert by_name["thompson"]["requests"]["largest"] > 120
    assert {"seconds", "$"} <= set(run(small, large, *options).stdout.split())


def test_unknown_costs_and_latencies_are_not_nothing(tmp_path: Path) -> None:
    """If one run has no costs, the output has none, and --cost-weight is refused."""
    known = predictions(tmp_path, "known", 0.5)
    free = predictions(tmp_path, "free", 0.5, cost=None, latency_seconds=None)
    options = ("--strategies", "none", "--seeds", 1)
    (one,) = run_json(known, free, *options)["strategies"]
    assert not {"cost", "latency_seconds"} & one.keys()
    assert run(known, free, *options).stdout.splitlines()[-1].split()[3:5] == ["-", "-"]
    message = refused(known, free, *options, "--cost-weight", 2)
    assert "got none of free: give it a cost" in message
    log = write_log(tmp_path, [{**line, "cost": None} for line in uniform_log(50)])
    assert "got none of" in refused(log, "--cost-weight", 2)


def test_rows_of_runs_come_in_another_order_with_every_seed(tmp_path: Path) -> None:
    """Rows of runs are shuffled for each seed, so the rewards of seeds differ."""
    runs = predictions(tmp_path, "small", 0.5), predictions(tmp_path, "largest", 0.9)
    (one,) = run_json(*runs, "--strategies", "none", "--requests", 20, "--seeds", 8)["strategies"]
    assert one["reward"]["lower"] < one["reward"]["estimate"] < one["reward"]["upper"]


def test_runs_over_other_rows_are_refused(tmp_path: Path) -> None:
    """Runs over other rows, and one run twice, are refused with the difference."""
    small = predictions(tmp_path, "small", 0.5)
    fewer = predictions(tmp_path, "fewer", 0.5)
    fewer.write_text("\n".join(fewer.read_text().splitlines()[:150]) + "\n")
    assert "50 rows that only one of them has, such as row 150" in refused(small, fewer)
    other = predictions(tmp_path, "other", 0.5, input="something else")
    assert "different texts in row 0" in refused(small, other)
    blind = predictions(tmp_path, "blind", 0.5, answer=None)
    assert "got none: add their true labels" in refused(small, blind)
    assert "got one of them twice" in refused(small, small)
    assert "runs of two or more providers" in refused(tmp_path)
    slow = predictions(tmp_path, "slow", 0.5, latency_seconds=-1)
    assert "slow.jsonl:1: expected latency_seconds to be a number of at least 0" in refused(small, slow)


def test_failed_rows_earn_nothing_and_are_failures(tmp_path: Path) -> None:
    """Rows that failed earn nothing, and the router moves to the other provider."""
    up = predictions(tmp_path, "up", 1.0)
    down = predictions(tmp_path, "down", 1.0, outcome="error", label=None)
    found = run_json(up, down, "--seeds", 1, "--strategies", "thompson")["strategies"][0]
    assert found["requests"]["up"] > 180
    assert found["reward"]["estimate"] == pytest.approx(found["requests"]["up"] / 200)


def test_a_log_is_replayed(tmp_path: Path) -> None:
    """A fixed choice on a log has its provider's mean reward, and thompson's is above 0.8."""
    lines = uniform_log()
    log, page = write_log(tmp_path, lines), tmp_path / "page.html"
    found = run_json(log, "--seeds", 3, "--strategies", "none,thompson", "--out", page)
    assert found["kind"] == "log"
    by_name = {one["name"]: one for one in found["strategies"]}
    first = lines[0]["provider"]
    own = [line["success"] for line in lines if line["provider"] == first]
    assert by_name["none"]["reward"]["estimate"] == pytest.approx(np.mean(own))
    assert by_name["none"]["matched"] == len(own)
    assert by_name["thompson"]["reward"]["estimate"] > 0.8
    assert "a alone" in page.read_text()
    assert "no --requests with a log" in refused(log, "--requests", 5)


def test_contexts_and_propensities_of_a_log_are_used(tmp_path: Path) -> None:
    """A log with contexts and propensities can be replayed with the bandit."""
    lines = [
        {**line, "context": [1.0, float(number % 2)], "quality": 1.0, "propensity": 0.5}
        for number, line in enumerate(uniform_log(300))
    ]
    found = run_json(write_log(tmp_path, lines), "--seeds", 1, "--strategies", "bandit:dim=2")
    assert found["strategies"][0]["matched"] > 50


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"success": True}, "provider to be a name"),
        ({"provider": "a", "success": 1}, "success to be true or false"),
        ({"provider": "a", "success": True, "latency_seconds": -1}, "finite number at least 0"),
        ({"provider": "a", "success": True, "quality": 1.5}, r"in [0, 1]"),
        ({"provider": "a", "success": True, "cost": True}, "cost"),
        ({"provider": "a", "success": True, "propensity": 0.5}, "propensity in every row or in none"),
        ({"provider": "a", "success": True, "context": [1.0]}, "context in every row or in none"),
        ({"provider": "a", "success": True, "speed": 3}, "got speed"),
    ],
)
def test_a_broken_line_of_a_log_is_named(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    """A broken line of a log is refused with its number."""
    lines = [*uniform_log(3), line, *uniform_log(2)]
    error = refused(write_log(tmp_path, lines))
    assert message in error
    if "every row" not in message:
        assert "log.jsonl:4: " in error


def test_numbers_that_are_none_are_refused_in_logs(tmp_path: Path) -> None:
    """NaN, infinities, wrong propensities and contexts, and logs without a choice are refused."""
    base: list[dict[str, Any]] = [{"provider": name, "success": True} for name in "ab"]
    for value in ("NaN", "Infinity", "-Infinity"):
        lines = [{**line, "latency_seconds": float(value)} for line in base]
        error = refused(write_log(tmp_path, lines))
        assert "log.jsonl:1: " in error
        assert "latency_seconds" in error or value.lstrip("-") in error
    for key, values in {"propensity": (0.5, 0.0), "context": ([1.0, 2.0], [1.0])}.items():
        lines = [{**line, key: value} for line, value in zip(base, values, strict=True)]
        assert f"expected {'a ' * (key == 'context')}{key}" in refused(write_log(tmp_path, lines))
    alone = [{"provider": "a", "success": True}] * 3
    assert "log of two or more providers" in refused(write_log(tmp_path, alone))
    assert "got an empty file" in refused(write_log(tmp_path, []))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("requests = 400", "requets = 400", "scenario.toml:3: unknown key 'requets'"),
        ("requests = 400", "requests = 0", "scenario.toml:3: requests"),
        ("success = 0.95", "success = 1.5", "scenario.toml:7: providers.success"),
        ("success = 0.95", "success = []", "scenario.toml:7: providers.success"),
        ("success = 0.95", "success = [0.1, 0.2]\n[[providers]]\nname='c'\nsuccess=[0.1, 0.2, 0.3]",
         "as many probabilities"),
        ("cost = 0.01", "speed = 0.01", "scenario.toml:8: unknown key 'providers.speed'"),
        ("cost = 0.01", "cost = -1", "scenario.toml:8: providers.cost"),
        ("cost = 0.01", "latency_seconds = inf", "scenario.toml:8: providers.latency_seconds"),
        ('name = "bad"', 'name = "good"', "every provider once, got good more than once"),
        ('provider = "good"', 'provider = "who"', "got 'who' at 200"),
        ("at = 200", "at = -1", "scenario.toml:16: changes.at"),
        ("[[changes]]", "[[changes", "not valid TOML"),
        ("cost = 0.01", f"cost = {'[' * 5000}{']' * 5000}", "a few levels deep"),
    ],
)  # fmt: skip
def test_a_wrong_scenario_is_refused_with_its_line(
    scenario: Callable[..., Path], old: str, new: str, message: str
) -> None:
    """A wrong scenario is refused with its line."""
    error = refused(scenario(SCENARIO.replace(old, new, 1)))
    assert message in error


def test_scenarios_without_providers_or_file_are_refused(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    """A scenario without providers, a missing file, and a scenario beside a log are refused."""
    assert "missing key 'providers'" in refused(scenario("requests = 5\n"))
    assert "at least one provider" in refused(scenario("providers = []\n"))
    assert "cannot be read" in refused(tmp_path / "none.toml")
    assert "one scenario and nothing else" in refused(scenario(), tmp_path / "log.jsonl")


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ("best", "to name some of none, round-robin"),
        ("", "to name some of none, round-robin"),
        ("ema,ema", "every strategy once"),
        ("ema:beta=1", "one of alpha, reorder_interval and a value"),
        ("ema:alpha", "one of alpha, reorder_interval and a value"),
        ("ema:alpha=2", "alpha in (0, 1], got 2"),
        ("ema:alpha=x", "alpha"),
        ("thompson:decay=[1]", "decay"),
        ("round-robin:x=1", "no setting"),
    ],
)
def test_wrong_strategies_are_refused(scenario: Callable[..., Path], strategies: str, message: str) -> None:
    """Wrong strategies are refused."""
    assert message in refused(scenario(), "--strategies", strategies)


def test_a_page_that_cannot_be_written_is_an_error(scenario: Callable[..., Path], tmp_path: Path) -> None:
    """A page that cannot be written is named in the error."""
    page = tmp_path / "none" / "regret.html"
    error = refused(scenario(), "--seeds", 1, "--requests", 5, "--out", page)
    assert f"{page}: cannot be written" in error


def test_the_example_is_a_scenario_that_drifts() -> None:
    """In the example's scenario thompson with decay has the lowest regret."""
    example = Path(__file__).parents[3] / "examples" / "routing_simulation" / "scenario.toml"
    options = ("--seeds", 5, "--strategies", "thompson,thompson:decay=0.99")
    best, other = run_json(example, *options)["strategies"]
    assert best["name"] == "thompson:decay=0.99"
    assert not math.isclose(best["regret"]["estimate"], other["regret"]["estimate"])


def test_it_runs_from_any_folder(tmp_path: Path) -> None:
    """The simulation runs as a program from any folder, and writes its page."""
    folder = Path(__file__).parents[3] / "examples" / "routing_simulation"
    options = ["--seeds", "2", "--requests", "50", "--out", "page.html"]
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, folder, folder / "scenario.toml", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.startswith("Lowest regret: ")
    assert "<polyline" in (tmp_path / "page.html").read_text()
