"""Tests of ``calibrant router``: statistics, resets and errors."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

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
from calibrant.store import RouterState
from command_line import command, json_of, refusal

run = command("router")

WriteTask = Callable[..., Path]

ROUTING = """
[routing]
routing = "thompson"
state = "learnt.sqlite"

[[routing.providers]]
name = "a"

[[routing.providers]]
name = "b"
"""


def learn(router: Router, place: Path, *, scope: str = "default") -> None:
    """Record three answers of `a` and two failures of `b` in a router, and store its state."""
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
    RouterState(place, scope=scope).update(router.strategy, lambda _: router.snapshot())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the file with the state of two strategies."""
    learn(ThompsonRouter(["a", "b"]), tmp_path / "state.sqlite")
    learn(EMARouter(["a", "b"]), tmp_path / "state.sqlite")
    return tmp_path / "state.sqlite"


def standings(found: Any, place: int = 0) -> dict[str, Any]:
    """Return the numbers of one record by provider."""
    return {one.pop("provider"): one for one in found["records"][place]["providers"]}


# --- stats --------------------------------------------------------------------------------------


def test_a_bandit_s_exploration_and_decay_are_printed(tmp_path: Path) -> None:
    """A bandit's parameters are those of the task or of the record; older records have none."""
    learn(BanditRouter(["a", "b"], alpha=1.5, decay_factor=0.98), tmp_path / "state.sqlite")
    found = json_of(run("stats", "--state", tmp_path / "state.sqlite", "--json"))
    assert found["records"][0]["parameters"] == {"alpha": 1.5, "decay_factor": 0.98}
    told = run("stats", "--state", tmp_path / "state.sqlite").stdout
    assert "bandit, scope default: 5 observations, alpha 1.5, decay_factor 0.98" in told
    bandit = ROUTING.replace('"thompson"', '"bandit"') + "[routing.bandit]\nalpha = 3.0\n"
    (tmp_path / "task.toml").write_text(f'name = "default"\nlabels = ["a", "b"]\nprompt = "?"\n{bandit}')
    of_task = json_of(
        run("stats", "--state", tmp_path / "state.sqlite", "--task", tmp_path / "task.toml", "--json")
    )
    assert of_task["records"][0]["parameters"] == {"alpha": 3.0, "decay_factor": 0.99}
    wider = (standings(one)["a"]["uncertainty"] for one in (of_task, found))
    assert next(wider) == pytest.approx(2 * next(wider))
    state = RouterState(tmp_path / "older.sqlite", scope="default")
    older = BanditRouter(["a"]).snapshot()
    state.update(
        "bandit", lambda _: {key: older[key] for key in older if key not in ("alpha", "decay_factor")}
    )
    told = run("stats", "--state", tmp_path / "older.sqlite").stdout
    assert "alpha not known, decay_factor not known" in told
    learn(ThompsonRouter(["a", "b"]), tmp_path / "other.sqlite")
    (other,) = json_of(run("stats", "--state", tmp_path / "other.sqlite", "--json"))["records"]
    assert "parameters" not in other


def test_the_interval_of_thompson_is_that_of_the_beta_distribution(tmp_path: Path) -> None:
    """Thompson's interval equals scipy's beta interval, with alpha, beta and mean."""
    learn(ThompsonRouter(["a", "b"]), tmp_path / "state.sqlite")
    found = json_of(run("stats", "--state", tmp_path / "state.sqlite", "--json"))
    assert found["location"] == str(tmp_path / "state.sqlite")
    assert (found["records"][0]["scope"], found["records"][0]["strategy"]) == ("default", "thompson")
    for provider, (alpha, beta) in {"a": (4.0, 1.0), "b": (1.0, 3.0)}.items():
        one = standings(json.loads(json.dumps(found)))[provider]
        assert (one["alpha"], one["beta"], one["mean"]) == (alpha, beta, alpha / (alpha + beta))
        lower, upper = stats.beta.interval(0.95, alpha, beta)
        assert (one["lower"], one["upper"]) == (pytest.approx(lower), pytest.approx(upper))
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
    """The printed values of every strategy equal the router's standings."""
    learn(router, tmp_path / "state.sqlite")
    found = standings(json_of(run("stats", "--state", tmp_path / "state.sqlite", "--json")))
    for standing in router.standings():
        one = found[standing.provider]
        assert one.pop("observations") == standing.observations
        assert one == pytest.approx(dict(standing.values))
        assert shown <= one.keys()


def test_people_get_a_table(place: Path) -> None:
    """Every strategy and scope has a table with titled columns."""
    learn(FixedRouter(["a", "b"]), place, scope="other")
    RouterState(place, scope="empty").update("none", lambda _: {})
    text = run("stats", "--state", place).stdout
    assert (
        "thompson, scope default: 5 observations\nprovider  observations  alpha  beta  mean success" in text
    )
    assert "ema, scope default: 5 observations" in text
    assert "none, scope other: 5 observations\n" in text
    assert "none, scope empty: 0 observations\n" in text
    one = run("stats", "--state", place, "--strategy", "ema", "--scope", "default").stdout
    assert "thompson" not in one
    assert "95 % from" not in one
    assert one.endswith(f"\n\nKept in {place}\n")


def test_help_shows_brackets_as_they_are() -> None:
    """Brackets in help texts are no markup."""
    for name in ("stats", "reset"):
        assert "whose [routing]" in " ".join(run(name, "--help").stdout.replace("\u2502", " ").split())


def test_strategies_that_learn_nothing_are_said_to(write_task: WriteTask, tmp_path: Path) -> None:
    """A task with routing "none" and no stored record is refused."""
    task = write_task(extra=ROUTING.replace("thompson", "none"))
    assert "got routing = 'none', which keeps nothing" in refusal(run("stats", "--task", task))
    learn(FixedRouter(["a", "b"]), tmp_path / "learnt.sqlite", scope="animals")
    assert run("stats", "--task", task).exit_code == 0


def test_tasks_name_the_scope(write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--task shows the task's scope; CALIBRANT_ROUTER_STATE names the place without a task."""
    task = write_task(extra=ROUTING)
    learn(ThompsonRouter(["a", "b"]), tmp_path / "learnt.sqlite", scope="animals")
    learn(ThompsonRouter(["c", "a", "b"]), tmp_path / "learnt.sqlite", scope="others")
    (record,) = json_of(run("stats", "--task", task, "--json"))["records"]
    assert record["scope"] == "animals"
    monkeypatch.setenv("CALIBRANT_ROUTER_STATE", str(tmp_path / "learnt.sqlite"))
    assert [one["scope"] for one in json_of(run("stats", "--json"))["records"]] == ["animals", "others"]
    assert "expected a [routing] section" in refusal(run("stats", "--task", write_task()))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    """A missing file, strategy or scope exits with 2, and no file is made."""
    place = tmp_path / "state.sqlite"
    assert f"{place}: holds nothing that routers have learnt" in refusal(run("stats", "--state", place))
    assert not place.exists()
    learn(ThompsonRouter(["a", "b"]), place)
    assert "holds nothing of the strategy ema" in refusal(run("stats", "--state", place, "--strategy", "ema"))
    assert "in the scope 'x'" in refusal(run("stats", "--state", place, "--scope", "x"))
    assert "Expected --strategy to be one of none, ema" in refusal(run("stats", "--strategy", "best"))


def damage(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the stored record of thompson."""
    state = RouterState(place)
    record = state.read("thompson")
    assert record is not None
    change(record)
    state.update("thompson", lambda _: record)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: record.update(providers=[1]), "numbers by provider"),
        (lambda record: record["providers"]["a"].update(alpha="x"), "alpha"),
    ],
)
def test_a_damaged_record_is_refused(place: Path, change: Callable[[Any], None], why: str) -> None:
    """A damaged record exits with 1 after the readable ones, and a reset deletes it."""
    damage(place, change)
    result = run("stats", "--state", place)
    assert result.exit_code == 1
    assert "ema, scope default" in result.stdout
    assert why in result.stderr
    assert "`calibrant router reset --strategy thompson` begins anew" in result.stderr
    assert run("reset", "--state", place, "--strategy", "thompson").exit_code == 0
    assert run("stats", "--state", place).exit_code == 0


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """A damaged file is an error that says to delete it, and the file is not changed."""
    place = tmp_path / "state.sqlite"
    place.write_bytes(b"{" * 1000)
    result = run("stats", "--state", place)
    assert result.exit_code == 1
    assert "damaged or no SQLite database, and was left as it is: delete it" in result.stderr
    assert "left as it is: delete it" in refusal(run("reset", "--state", place))
    assert place.read_bytes() == b"{" * 1000


# --- reset --------------------------------------------------------------------------------------


def test_only_what_was_named_is_forgotten(place: Path, tmp_path: Path) -> None:
    """A reset forgets only the named strategy, and a second reset exits with 0."""
    found = json_of(run("reset", "--state", place, "--strategy", "ema", "--json"))
    assert found == {"location": str(place), "scope": "default", "reset": ["ema"]}
    assert [one["strategy"] for one in json_of(run("stats", "--state", place, "--json"))["records"]] == [
        "thompson"
    ]
    text = run("reset", "--state", place).stdout
    assert text == f"{place}: forgot thompson of the scope 'default'.\n"
    again = run("reset", "--state", place)
    assert (again.exit_code, again.stdout) == (0, f"{place}: nothing was there.\n")
    assert run("reset", "--state", tmp_path / "none.sqlite").exit_code == 0
    assert not (tmp_path / "none.sqlite").exists()


def test_others_who_share_the_place_keep_what_they_learnt(tmp_path: Path) -> None:
    """A reset without --scope is refused if several scopes share the place."""
    place = tmp_path / "state.sqlite"
    for scope in ("one", "two"):
        learn(ThompsonRouter(["a", "b"]), place, scope=scope)
    assert "several share this place: name one of 'one', 'two'" in refusal(run("reset", "--state", place))
    assert json_of(run("reset", "--state", place, "--scope", "two", "--json"))["reset"] == ["thompson"]
    assert [one["scope"] for one in json_of(run("stats", "--state", place, "--json"))["records"]] == ["one"]
    assert json_of(run("reset", "--state", place, "--json"))["scope"] == "one"


def test_a_file_of_another_version_is_left_alone(place: Path) -> None:
    """A file of another schema version is neither shown nor reset, and keeps its records."""
    with contextlib.closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("UPDATE calibrant_versions SET version = 7")
    result = run("stats", "--state", place)
    assert result.exit_code == 1
    assert "use the calibrant that wrote it" in result.stderr
    assert "use the calibrant that wrote it" in refusal(run("reset", "--state", place))
    with contextlib.closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("UPDATE calibrant_versions SET version = 1")
    assert run("stats", "--state", place).exit_code == 0
