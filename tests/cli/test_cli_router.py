"""``calibrant router``: what it prints, forgets, simulates and refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner, Result

from calibrant.cli import app
from calibrant.routing import (
    BanditRouter,
    CascadeRouter,
    EMARouter,
    FixedRouter,
    Observation,
    Router,
    ThompsonRouter,
    TriageRouter,
)
from calibrant.store import open_router_state

WriteTask = Callable[..., Path]
PLACES = ("state.json", "state.sqlite")

ROUTING = """
[routing]
routing = "thompson"
state = "learnt.json"

[[routing.providers]]
name = "a"

[[routing.providers]]
name = "b"
"""
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
    return CliRunner().invoke(app, ["router", *map(str, arguments)])


def run_json(*arguments: object) -> Any:
    """Run it with ``--json`` and return what it printed."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    """Run it, and return the error of exit code 2."""
    result = run(*arguments)
    assert result.exit_code == 2, result.stdout
    return result.stderr


def learn(router: Router, place: Path, *, scope: str = "default") -> None:
    """Teach a router and store what it learnt: `a` answered three times, `b` failed twice."""
    context = np.ones(64)
    for provider, success in (("a", True), ("b", False), ("a", True), ("b", False), ("a", True)):
        router.record(
            Observation(
                provider=provider,
                success=success,
                latency_seconds=0.2,
                quality=1.0 if success else None,
                context=context,
            )
        )
    open_router_state(place, scope=scope).update(router.strategy, lambda _: router.snapshot())


def standings(found: Any, place: int = 0) -> dict[str, Any]:
    """Return the numbers of one record by provider."""
    return {one.pop("provider"): one for one in found["records"][place]["providers"]}


# --- stats --------------------------------------------------------------------------------------


def test_a_bandit_s_exploration_and_decay_are_printed(tmp_path: Path) -> None:
    """As it was last written with, or as the task says; not known of older records."""
    learn(BanditRouter(["a", "b"], alpha=1.5, decay_factor=0.98), tmp_path / "state.json")
    found = run_json("stats", "--state", tmp_path / "state.json")
    assert found["records"][0]["parameters"] == {"alpha": 1.5, "decay_factor": 0.98}
    told = run("stats", "--state", tmp_path / "state.json").stdout
    assert "bandit, scope default: 5 observations, alpha 1.5, decay_factor 0.98" in told
    bandit = ROUTING.replace('"thompson"', '"bandit"') + "[routing.bandit]\nalpha = 3.0\n"
    (tmp_path / "task.toml").write_text(f'name = "default"\nlabels = ["a", "b"]\nprompt = "?"\n{bandit}')
    of_task = run_json("stats", "--state", tmp_path / "state.json", "--task", tmp_path / "task.toml")
    assert of_task["records"][0]["parameters"] == {"alpha": 3.0, "decay_factor": 0.99}
    wider = (standings(one)["a"]["uncertainty"] for one in (of_task, found))
    assert next(wider) == pytest.approx(2 * next(wider))
    state = open_router_state(tmp_path / "older.json", scope="default")
    older = BanditRouter(["a"]).snapshot()
    state.update(
        "bandit", lambda _: {key: older[key] for key in older if key not in ("alpha", "decay_factor")}
    )
    assert (
        "alpha not known, decay_factor not known" in run("stats", "--state", tmp_path / "older.json").stdout
    )
    learn(ThompsonRouter(["a", "b"]), tmp_path / "other.json")
    assert "parameters" not in run_json("stats", "--state", tmp_path / "other.json")["records"][0]


@pytest.mark.parametrize("name", PLACES)
def test_the_interval_of_thompson_is_that_of_the_beta_distribution(tmp_path: Path, name: str) -> None:
    """With alpha, beta and the mean success probability."""
    learn(ThompsonRouter(["a", "b"]), tmp_path / name)
    found = run_json("stats", "--state", tmp_path / name)
    assert found["location"] == str(tmp_path / name)
    assert (found["records"][0]["scope"], found["records"][0]["strategy"]) == ("default", "thompson")
    for provider, (alpha, beta) in {"a": (4.0, 1.0), "b": (1.0, 3.0)}.items():
        one = standings(json.loads(json.dumps(found)))[provider]
        assert (one["alpha"], one["beta"], one["mean"]) == (alpha, beta, alpha / (alpha + beta))
        lower, upper = stats.beta.interval(0.95, alpha, beta)
        assert one["lower"] == pytest.approx(lower)
        assert one["upper"] == pytest.approx(upper)
        assert one["observations"] == {"a": 3, "b": 2}[provider]


@pytest.mark.parametrize(
    ("router", "shown"),
    [
        (EMARouter(["a", "b"]), {"success", "latency_seconds", "score"}),
        (BanditRouter(["a", "b"], dim=8), {"reward", "uncertainty"}),
        (CascadeRouter(["a", "b"]), {"judged"}),
        (TriageRouter(["a", "b"], tiers={"simple": "a", "expert": "b"}), {"simple", "untriaged"}),
    ],
    ids=lambda value: value.strategy if hasattr(value, "strategy") else "",
)
def test_every_strategy_is_shown_as_it_stands(tmp_path: Path, router: Router, shown: set[str]) -> None:
    """What is read back is what the strategy itself says."""
    learn(router, tmp_path / "state.json")
    found = standings(run_json("stats", "--state", tmp_path / "state.json"))
    for standing in router.standings():
        one = found[standing.provider]
        assert one.pop("observations") == standing.observations
        assert one == pytest.approx(dict(standing.values))
        assert shown <= one.keys()


def test_people_get_a_table(tmp_path: Path) -> None:
    """Every strategy and scope one, with titles that say what the numbers are."""
    place = tmp_path / "state.json"
    learn(ThompsonRouter(["a", "b"]), place)
    learn(EMARouter(["a", "b"]), place)
    learn(FixedRouter(["a", "b"]), place, scope="other")
    text = run("stats", "--state", place).stdout
    assert (
        "thompson, scope default: 5 observations\nprovider  observations  alpha  beta  mean success" in text
    )
    assert "ema, scope default: 5 observations" in text
    assert "none, scope other: 0 observations\n" in text
    one = run("stats", "--state", place, "--strategy", "ema", "--scope", "default").stdout
    assert "thompson" not in one
    assert "95 % from" not in one
    assert one.endswith(f"\n\nKept in {place}\n")


def test_help_shows_brackets_as_they_are() -> None:
    """They are no markup."""
    for command in ("stats", "reset"):
        assert "its [routing]" in " ".join(run(command, "--help").stdout.replace("\u2502", " ").split())


def test_strategies_that_learn_nothing_are_said_to(write_task: WriteTask, tmp_path: Path) -> None:
    """There is nothing to wait for."""
    task = write_task(extra=ROUTING.replace("thompson", "none"))
    assert "got routing = 'none', which keeps nothing" in refused("stats", "--task", task)
    learn(FixedRouter(["a", "b"]), tmp_path / "learnt.json", scope="animals")
    assert run("stats", "--task", task).exit_code == 0


def test_the_task_names_state_and_scope(
    write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the environment does; of its database, all scopes are shown."""
    task = write_task(extra=ROUTING)
    learn(ThompsonRouter(["a", "b"]), tmp_path / "learnt.json", scope="animals")
    learn(ThompsonRouter(["c", "a", "b"]), tmp_path / "learnt.json", scope="others")
    (record,) = run_json("stats", "--task", task)["records"]
    assert record["scope"] == "animals"
    monkeypatch.setenv("CALIBRANT_ROUTER_STATE", str(tmp_path / "learnt.json"))
    assert [one["scope"] for one in run_json("stats")["records"]] == ["animals", "others"]
    assert "expected a [routing] section" in refused("stats", "--task", write_task())


@pytest.mark.parametrize("name", PLACES)
def test_what_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    """Exit code 2, and no file is made."""
    place = tmp_path / name
    assert f"{place}: holds nothing that routers have learnt" in refused("stats", "--state", place)
    assert not place.exists()
    learn(ThompsonRouter(["a", "b"]), place)
    assert "holds nothing of the strategy ema" in refused("stats", "--state", place, "--strategy", "ema")
    assert "in the scope 'x'" in refused("stats", "--state", place, "--scope", "x")
    assert "Expected --strategy to be one of none, ema" in refused("stats", "--strategy", "best")


def damage(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what is stored under thompson."""
    state = open_router_state(place)
    record = state.read("thompson")
    assert record is not None
    change(record)
    state.update("thompson", lambda _: record)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: record.update(version=99), "version"),
        (lambda record: record.update(providers=[1]), "numbers by provider"),
        (lambda record: record["providers"]["a"].update(alpha="x"), "alpha"),
        (lambda record: record["providers"].update({"": {}}), "name of a provider"),
    ],
)
def test_a_damaged_record_is_an_error_that_says_what_to_do(
    tmp_path: Path, change: Callable[[Any], None], why: str
) -> None:
    """Exit code 1, after all that can be shown; resetting it helps."""
    place = tmp_path / "state.json"
    learn(ThompsonRouter(["a", "b"]), place)
    learn(EMARouter(["a", "b"]), place)
    damage(place, change)
    result = run("stats", "--state", place)
    assert result.exit_code == 1
    assert "ema, scope default" in result.stdout
    assert why in result.stderr
    assert "`calibrant router reset --strategy thompson` begins anew" in result.stderr
    assert run("reset", "--state", place, "--strategy", "thompson").exit_code == 0
    assert run("stats", "--state", place).exit_code == 0


@pytest.mark.parametrize(("content", "why"), [(b"{", "damaged"), (b"\xff\0", "damaged"), (b"[1]", "damaged")])
def test_a_damaged_file_is_an_error_and_can_be_reset(tmp_path: Path, content: bytes, why: str) -> None:
    """What was there is kept beside it."""
    place = tmp_path / "state.json"
    place.write_bytes(content)
    result = run("stats", "--state", place)
    assert result.exit_code == 1
    assert why in result.stderr
    assert "or delete it" in result.stderr
    again = run("reset", "--state", place)
    assert (again.exit_code, again.stdout) == (0, f"{place}: could not be read, and begins anew.\n")
    assert run("reset", "--state", place).stdout == f"{place}: nothing was there.\n"
    assert (tmp_path / "state.json.corrupt-1").read_bytes() == content


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    """Neither shown nor reset."""
    place = tmp_path / "state.json"
    learn(ThompsonRouter(["a", "b"]), place)
    content = place.read_text().replace('"version":1', '"version":7', 1)
    place.write_text(content)
    result = run("stats", "--state", place)
    assert result.exit_code == 1
    assert "install the newer calibrant" in result.stderr
    assert "install the newer calibrant" in refused("reset", "--state", place)
    assert place.read_text() == content


# --- reset --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLACES)
def test_only_what_was_named_is_forgotten(tmp_path: Path, name: str) -> None:
    """One strategy, then all; a second time there is nothing, which is no error."""
    place = tmp_path / name
    learn(ThompsonRouter(["a", "b"]), place)
    learn(EMARouter(["a", "b"]), place)
    found = run_json("reset", "--state", place, "--strategy", "ema")
    assert found == {"location": str(place), "scope": "default", "reset": ["ema"]}
    assert [one["strategy"] for one in run_json("stats", "--state", place)["records"]] == ["thompson"]
    text = run("reset", "--state", place).stdout
    assert text == f"{place}: forgot thompson of the scope 'default'.\n"
    again = run("reset", "--state", place)
    assert (again.exit_code, again.stdout) == (0, f"{place}: nothing was there.\n")
    assert run("reset", "--state", tmp_path / "none.json").exit_code == 0
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize("name", PLACES)
def test_others_who_share_the_place_keep_what_they_learnt(tmp_path: Path, name: str) -> None:
    """Whose records are to go has to be said where there are several."""
    place = tmp_path / name
    for scope in ("one", "two"):
        learn(ThompsonRouter(["a", "b"]), place, scope=scope)
    assert "several share this place: name one of 'one', 'two'" in refused("reset", "--state", place)
    assert run_json("reset", "--state", place, "--scope", "two")["reset"] == ["thompson"]
    assert [one["scope"] for one in run_json("stats", "--state", place)["records"]] == ["one"]
    assert run_json("reset", "--state", place)["scope"] == "one"


# --- simulate -----------------------------------------------------------------------------------


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a scenario."""

    def write(text: str = SCENARIO) -> Path:
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return path

    return write


def predictions(directory: Path, name: str, right: float, **changes: Any) -> Path:
    """Write a run of evaluate whose answers are right so often."""
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
    """Return calls of providers drawn at random: `a` answers nine times in ten, `b` three."""
    rng = np.random.default_rng(0)
    chances = {"a": 0.9, "b": 0.3}
    names = rng.choice(list(chances), size=count).tolist()
    return [
        {"provider": name, "success": bool(rng.random() < chances[name]), "latency_seconds": 0.1, "cost": 0.0}
        for name in names
    ]


def test_a_scenario_is_simulated(scenario: Callable[..., Path], tmp_path: Path) -> None:
    """Regret with its interval over seeds, reward, cost, and requests to each provider; and a page."""
    page = tmp_path / "regret.html"
    found = run_json(
        "simulate", scenario(), "--seeds", 5, "--strategies", "thompson,round-robin", "--out", page
    )
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
    """And another one gives others."""
    options = ("--seeds", 2, "--strategies", "thompson,epsilon-greedy:epsilon=0.3")
    first = run_json("simulate", scenario(), *options)
    assert run_json("simulate", scenario(), *options) == first
    assert run_json("simulate", scenario(), *options, "--seed", 1)["strategies"] != first["strategies"]


def test_requests_and_the_weight_of_cost_may_be_set(scenario: Callable[..., Path]) -> None:
    """A dollar that is worth much turns the order around."""
    options = ("--seeds", 1, "--requests", 50, "--strategies", "none")
    (one,) = run_json("simulate", scenario(), *options)["strategies"]
    assert one["regret"] == {"estimate": 0.0, "lower": None, "upper": None}
    assert one["requests"]["good"] == 50.0
    (other,) = run_json("simulate", scenario(), *options, "--cost-weight", 100)["strategies"]
    assert other["regret"]["estimate"] == pytest.approx(50 * (0.2 - 0.1 - 0.95 + 1.0))
    (stated,) = run_json("simulate", scenario("cost_weight = 100\n" + SCENARIO), *options)["strategies"]
    assert stated["regret"] == other["regret"]


def test_kinds_of_requests_let_the_bandit_learn(scenario: Callable[..., Path]) -> None:
    """It is among the strategies then, and the one with the lowest regret."""
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
    found = run_json("simulate", scenario(text), "--seeds", 2, "--requests", 600, "--strategies",
                     "bandit:dim=8,thompson,ema")  # fmt: skip
    assert found["strategies"][0]["name"] == "bandit:dim=8"
    assert "for the strategy bandit" in refused("simulate", scenario(), "--strategies", "bandit")


def test_runs_of_evaluate_hold_full_information(tmp_path: Path) -> None:
    """A right answer earns 1, whatever its confidence; strategies are told of wrong ones."""
    small, large = predictions(tmp_path, "small", 0.5), predictions(tmp_path, "largest", 0.9)
    options = ("--seeds", 3, "--strategies", "none,thompson,bandit")
    found = run_json("simulate", small, large, *options)
    by_name = {one["name"]: one for one in found["strategies"]}
    right = [json.loads(line)["label"] == "cat" for line in small.read_text().splitlines()]
    assert by_name["none"]["reward"]["estimate"] == pytest.approx(np.mean(right))
    assert by_name["none"]["requests"] == {"small": 200.0, "largest": 0.0}
    assert by_name["none"]["cost"] == pytest.approx(0.005)
    assert by_name["thompson"]["requests"]["largest"] > 120
    assert {"seconds", "$"} <= set(run("simulate", small, large, *options).stdout.split())


def test_unknown_costs_and_latencies_are_not_nothing(tmp_path: Path) -> None:
    """One run without prices is enough: the mean of the others says nothing; a weight on them is refused."""
    known = predictions(tmp_path, "known", 0.5)
    free = predictions(tmp_path, "free", 0.5, cost=None, latency_seconds=None)
    options = ("--strategies", "none", "--seeds", 1)
    (one,) = run_json("simulate", known, free, *options)["strategies"]
    assert not {"cost", "latency_seconds"} & one.keys()
    assert run("simulate", known, free, *options).stdout.splitlines()[-1].split()[3:5] == ["-", "-"]
    message = refused("simulate", known, free, *options, "--cost-weight", 2)
    assert "got none of free: give it a cost" in message
    log = write_log(tmp_path, [{**line, "cost": None} for line in uniform_log(50)])
    assert "got none of" in refused("simulate", log, "--cost-weight", 2)


def test_rows_of_runs_come_in_another_order_with_every_seed(tmp_path: Path) -> None:
    """They have none of their own."""
    runs = predictions(tmp_path, "small", 0.5), predictions(tmp_path, "largest", 0.9)
    (one,) = run_json("simulate", *runs, "--strategies", "none", "--requests", 20, "--seeds", 8)["strategies"]
    assert one["reward"]["lower"] < one["reward"]["estimate"] < one["reward"]["upper"]


def test_runs_over_other_rows_are_refused(tmp_path: Path) -> None:
    """With the row they differ in."""
    small = predictions(tmp_path, "small", 0.5)
    fewer = predictions(tmp_path, "fewer", 0.5)
    fewer.write_text("\n".join(fewer.read_text().splitlines()[:150]) + "\n")
    assert "50 rows that only one of them has, such as row 150" in refused("simulate", small, fewer)
    other = predictions(tmp_path, "other", 0.5, input="something else")
    assert "different texts in row 0" in refused("simulate", small, other)
    blind = predictions(tmp_path, "blind", 0.5, answer=None)
    assert "got none: add their true labels" in refused("simulate", small, blind)
    assert "got one of them twice" in refused("simulate", small, small)
    assert "runs of two or more providers" in refused("simulate", tmp_path)
    slow = predictions(tmp_path, "slow", 0.5, latency_seconds=-1)
    assert "slow.jsonl:1: expected latency_seconds to be a number of at least 0" in refused(
        "simulate", small, slow
    )


def test_failed_rows_earn_nothing_and_are_failures(tmp_path: Path) -> None:
    """Rows without a true label count for nobody."""
    up = predictions(tmp_path, "up", 1.0)
    down = predictions(tmp_path, "down", 1.0, outcome="error", label=None)
    found = run_json("simulate", up, down, "--seeds", 1, "--strategies", "thompson")["strategies"][0]
    assert found["requests"]["up"] > 180
    assert found["reward"]["estimate"] == pytest.approx(found["requests"]["up"] / 200)


def test_a_log_is_replayed(tmp_path: Path) -> None:
    """The mean reward of a fixed choice is that of its provider; whoever learns gets near the best."""
    lines = uniform_log()
    log, page = write_log(tmp_path, lines), tmp_path / "page.html"
    found = run_json("simulate", log, "--seeds", 3, "--strategies", "none,thompson", "--out", page)
    assert found["kind"] == "log"
    by_name = {one["name"]: one for one in found["strategies"]}
    first = lines[0]["provider"]
    own = [line["success"] for line in lines if line["provider"] == first]
    assert by_name["none"]["reward"]["estimate"] == pytest.approx(np.mean(own))
    assert by_name["none"]["matched"] == len(own)
    assert by_name["thompson"]["reward"]["estimate"] > 0.8
    assert "a alone" in page.read_text()
    assert "no --requests with a log" in refused("simulate", log, "--requests", 5)


def test_contexts_and_propensities_of_a_log_are_used(tmp_path: Path) -> None:
    """The bandit may take part then."""
    lines = [
        {**line, "context": [1.0, float(number % 2)], "quality": 1.0, "propensity": 0.5}
        for number, line in enumerate(uniform_log(300))
    ]
    found = run_json("simulate", write_log(tmp_path, lines), "--seeds", 1, "--strategies", "bandit:dim=2")
    assert found["strategies"][0]["matched"] > 50


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"success": True}, "provider to be a name"),
        ({"provider": "", "success": True}, "provider to be a name"),
        ({"provider": "a", "success": 1}, "success to be true or false"),
        ({"provider": "a", "success": True, "latency_seconds": -1}, "finite number at least 0"),
        ({"provider": "a", "success": True, "latency_seconds": "fast"}, "finite number at least 0"),
        ({"provider": "a", "success": True, "quality": 1.5}, r"in [0, 1]"),
        ({"provider": "a", "success": True, "cost": True}, "cost"),
        ({"provider": "a", "success": True, "propensity": 0.5}, "propensity in every row or in none"),
        ({"provider": "a", "success": True, "context": [1.0]}, "context in every row or in none"),
        ({"provider": "a", "success": True, "speed": 3}, "got speed"),
    ],
)
def test_a_broken_line_of_a_log_is_named(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    """With its number."""
    lines = [*uniform_log(3), line, *uniform_log(2)]
    error = refused("simulate", write_log(tmp_path, lines))
    assert message in error
    if "every row" not in message:
        assert "log.jsonl:4: " in error


def test_numbers_that_are_none_are_refused_in_logs(tmp_path: Path) -> None:
    """NaN, infinities, propensities of 0, contexts of different lengths; and logs without a choice."""
    for value in ("NaN", "Infinity", "-Infinity"):
        log = tmp_path / "log.jsonl"
        log.write_text(
            "".join(
                f'{{"provider": "{name}", "success": true, "latency_seconds": {value}}}\n' for name in "ab"
            )
        )
        error = refused("simulate", log)
        assert "log.jsonl:1: " in error
        assert "latency_seconds" in error or value.lstrip("-") in error
    base = [{"provider": name, "success": True} for name in "ab"]
    for key, values in {"propensity": (0.5, 0.0), "context": ([1.0, 2.0], [1.0])}.items():
        lines = [{**line, key: value} for line, value in zip(base, values, strict=True)]
        assert f"expected {'a ' * (key == 'context')}{key}" in refused("simulate", write_log(tmp_path, lines))
    alone = [{"provider": "a", "success": True}] * 3
    assert "log of two or more providers" in refused("simulate", write_log(tmp_path, alone))
    assert "got an empty file" in refused("simulate", write_log(tmp_path, []))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("requests = 400", "requets = 400", "scenario.toml:3: unknown key 'requets'"),
        ("requests = 400", "requests = 0", "scenario.toml:3: requests"),
        ("success = 0.95", "success = 1.5", "scenario.toml:7: providers.success"),
        ("success = 0.95", "success = -0.1", "scenario.toml:7: providers.success"),
        ("success = 0.95", "success = nan", "scenario.toml:7: providers.success"),
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
    """Unknown keys, numbers out of their range, providers twice or not there."""
    error = refused("simulate", scenario(SCENARIO.replace(old, new, 1)))
    assert message in error


def test_scenarios_without_providers_or_file_are_refused(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    """As are two of them."""
    assert "missing key 'providers'" in refused("simulate", scenario("requests = 5\n"))
    assert "at least one provider" in refused("simulate", scenario("providers = []\n"))
    assert "cannot be read" in refused("simulate", tmp_path / "none.toml")
    assert "one scenario and nothing else" in refused("simulate", scenario(), tmp_path / "log.jsonl")


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ("best", "to name some of none, round-robin"),
        ("", "to name some of none, round-robin"),
        (" , ", "to name some of none, round-robin"),
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
    """Before anything is simulated."""
    assert message in refused("simulate", scenario(), "--strategies", strategies)


def test_a_page_that_cannot_be_written_is_an_error(scenario: Callable[..., Path], tmp_path: Path) -> None:
    """It names the file."""
    page = tmp_path / "none" / "regret.html"
    error = refused("simulate", scenario(), "--seeds", 1, "--requests", 5, "--out", page)
    assert f"{page}: cannot be written" in error


def test_the_example_is_a_scenario_that_drifts() -> None:
    """Forgetting pays in it."""
    example = Path(__file__).parents[2] / "examples" / "routing" / "scenario.toml"
    options = ("--seeds", 5, "--strategies", "thompson,thompson:decay=0.99")
    best, other = run_json("simulate", example, *options)["strategies"]
    assert best["name"] == "thompson:decay=0.99"
    assert not math.isclose(best["regret"]["estimate"], other["regret"]["estimate"])
