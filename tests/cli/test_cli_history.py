"""``calibrant history`` and ``calibrant evaluate --history``: what they print, keep and refuse."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from calibrant.cli._app import app
from calibrant.core import ProviderError
from calibrant.evaluation import EvaluationHistory
from calibrant.testing import Answer, FakeClient

WriteTask = Callable[..., Path]
Install = Callable[..., FakeClient]

NAMES = ("--evaluator", "judge", "--profile", "strict")


def run(*arguments: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)))


def run_json(*arguments: object) -> Any:
    """Run it with ``--json`` and return what it printed."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return where a history may be."""
    return tmp_path / "history.db"


# --- the commands -------------------------------------------------------------------------------


def test_what_is_recorded_is_summed_up(database: Path) -> None:
    """By a later command, for programs and for people."""
    at = ("--history", database)
    for score in (1, 1, 0, 1):
        found = run_json("history", "record", *NAMES, "--score", score, "--family", "custom", *at)
        assert found == {"stored": True, "location": str(database)}
    found = run_json("history", "interval", *NAMES, *at)
    assert found == {
        "strategy": "full-history", "alpha": 0.95, "lower": 0.25, "median": 0.75, "upper": 1.0,
        "scores": 4, "score_type": "binary", "remark": "",
    }  # fmt: skip
    printed = run("history", "interval", *NAMES, *at, "--alpha", 0.5).stdout
    assert printed == "0.7500 (0.5000 to 1.0000), level 0.5, latest 4 binary scores\n"
    (scope,) = run_json("history", "list", *at)
    assert scope.pop("latest").endswith("+00:00")
    assert scope == {
        "account_id": "default", "evaluator_id": "judge", "profile_name": "strict", "scores": 4, "mean": 0.75,
    }  # fmt: skip
    lines = run("history", "list", *at).stdout.splitlines()
    assert lines[0] == "default  judge  strict"
    assert lines[1].startswith("    4 scores, mean 0.7500, 20")


@pytest.mark.parametrize(
    ("score", "family", "remark"),
    [
        (1, "custom", "Wilson's interval is 0.4385 to 1.0000"),
        (0, "custom", "Wilson's interval is 0.0000 to 0.5615"),
        (0.4, "toxicity", "it does not say that the next ones will be"),
    ],
)
def test_an_interval_of_width_0_says_why(database: Path, score: float, family: str, remark: str) -> None:
    """Beside it, for people and for programs: equal scores are no certainty."""
    at = ("--history", database)
    for _ in range(3):
        run("history", "record", *NAMES, "--score", score, "--family", family, *at)
    found = run_json("history", "interval", *NAMES, *at)
    assert (found["lower"], found["upper"]) == (score, score)
    said = f"width 0 because all 3 scores are {score:g}, so resampling cannot vary them; {remark}"
    assert found["remark"] == said
    printed = run("history", "interval", *NAMES, *at).stdout
    assert printed.endswith(f" scores ({said})\n")


def test_accounts_are_apart(database: Path) -> None:
    """In intervals and in lists."""
    at = ("--history", database)
    for account, score in (("a", 0), ("a", 0), ("b", 5), ("b", 5)):
        run_json("history", "record", *NAMES, "--account", account, "--score", score, *at)
    assert run_json("history", "interval", *NAMES, "--account", "a", *at)["upper"] == 0.0
    assert run_json("history", "interval", *NAMES, "--account", "b", *at)["lower"] == 5.0
    assert run_json("history", "interval", *NAMES, *at)["scores"] == 0
    assert [row["account_id"] for row in run_json("history", "list", "--account", "b", *at)] == ["b"]
    assert run("history", "list", "--account", "c", *at).stdout == "nothing is recorded.\n"


def test_the_strategy_and_too_few_scores_are_stated(database: Path) -> None:
    """With exit code 0: they are no errors."""
    at = ("--history", database)
    run_json("history", "record", *NAMES, "--score", 0.5, *at)
    few = run("history", "interval", *NAMES, *at)
    assert (few.exit_code, few.stdout) == (0, "no interval: expected at least 2 scores, found 1\n")
    option = "--confidence-interval-strategy"
    none = run("history", "interval", *NAMES, *at, option, "none")
    assert (none.exit_code, none.stdout) == (0, "no interval: the strategy is none\n")
    assert run_json("history", "interval", *NAMES, *at, option, "none")["lower"] is None


def test_what_is_not_captured_is_not_recorded(database: Path) -> None:
    """And the command says so."""
    at = ("--history", database, "--capture", "none")
    assert run_json("history", "record", *NAMES, "--score", 1, *at)["stored"] is False
    assert (
        "not recorded (capture is none, not always)"
        in run("history", "record", *NAMES, "--score", 1, *at).stdout
    )
    assert run_json("history", "list", "--history", database) == []


def test_the_environment_names_the_database(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no option does."""
    monkeypatch.setenv("CALIBRANT_HISTORY", f"sqlite:///{database}")
    assert run_json("history", "record", *NAMES, "--score", 1)["location"] == str(database)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("record", *NAMES, "--score", "nan"), "score_raw to be a finite number, got nan"),
        (("record", *NAMES, "--score", "0.5", "--family", "pii"), "0 or 1 of the binary family 'pii'"),
        (("record", *NAMES, "--score", "1", "--failed", "--family", "pii"), "passed to equal score_raw"),
        (("record", *NAMES, "--score", "1", "--family", "nosuch"), "family to be one of"),
        (("interval", *NAMES, "--alpha", "95"), "alpha, the confidence level, in (0, 1), got 95.0"),
        (("interval", *NAMES, "--strategy", "some"), "strategy to be one of"),
        (("interval", "--evaluator", "", "--profile", "x"), "evaluator_id of 1 to 255"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    database: Path, arguments: tuple[str, ...], message: str
) -> None:
    """Nothing is recorded."""
    EvaluationHistory(database)
    result = run("history", *arguments, "--history", database)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert run_json("history", "list", "--history", database) == []


@pytest.mark.parametrize("command", [("interval", *NAMES), ("list",)])
def test_reading_a_missing_database_is_an_error(database: Path, command: tuple[str, ...]) -> None:
    """A mistyped name makes no empty file."""
    result = run("history", *command, "--history", database)
    assert result.exit_code == 2
    assert f"{database}: holds no evaluation history" in result.stderr
    assert not database.exists()


def test_a_newer_database_is_an_error(database: Path) -> None:
    """With what to do."""
    EvaluationHistory(database)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE calibrant_versions SET version = 7")
    result = run("history", "list", "--history", database)
    assert result.exit_code == 2
    assert "got 7: install the newer calibrant" in result.stderr


# --- evaluation runs ----------------------------------------------------------------------------


def knows(text: str, _prompt: str) -> Answer:
    """Know what meows, more or less surely; take everything else for a dog."""
    number = int(text.split(maxsplit=1)[0])
    return ("cat", 0.9 + number * 1e-4) if "meow" in text else ("dog", 0.8 + number * 1e-4)


def unsure(text: str, _prompt: str) -> Answer:
    """Know as much, and be less sure."""
    label, _ = knows(text, "")  # type: ignore[misc]
    return label, 0.6


def rows(count: int) -> list[dict[str, str]]:
    """Return rows of which the model gets three in four right."""
    return [
        {"input": f"{n} {'meow' if n % 2 else 'woof'}", "answer": "cat" if n % 2 or n % 4 == 0 else "dog"}
        for n in range(count)
    ]


@pytest.fixture
def fake(use_model: Callable[..., Any]) -> Install:
    """Return a function that puts a fake in the place of every model."""

    def install(rule: Callable[[str, str], Answer] = knows, **options: Any) -> FakeClient:
        client = FakeClient(["cat", "dog"], rule, **options)
        use_model(client)
        return client

    return install


def evaluate(task: Path, out: Path, database: Path, *more: object) -> Any:
    """Evaluate without a cache, and return what is printed for programs."""
    return run_json("evaluate", task, "--out", out, "--history", database, "--no-cache", *more)


def test_a_run_enters_the_history(
    write_task: WriteTask, fake: Install, tmp_path: Path, database: Path
) -> None:
    """Its right and wrong rows and its confidences; the first one has nothing to be compared with."""
    fake()
    entry = evaluate(write_task(test=rows(40)), tmp_path / "one", database)["history"]
    assert entry["recorded"] == 40
    assert (entry["interval"]["median"], entry["interval"]["score_type"]) == (0.75, "binary")
    assert 0.5 < entry["interval"]["lower"] < 0.7
    assert 0.8 < entry["interval"]["upper"] < 0.95
    assert (entry["drift"]["values"], entry["drift"]["history"], entry["drift"]["p_value"]) == (40, 0, None)
    assert json.loads((tmp_path / "one" / "history.json").read_text()) == entry
    assert "history" not in json.loads((tmp_path / "one" / "metrics.json").read_text())
    listed = {row["evaluator_id"]: row for row in run_json("history", "list", "--history", database)}
    assert listed.keys() == {"animals", "animals/confidence"}
    assert (listed["animals"]["scores"], listed["animals"]["mean"]) == (40, 0.75)
    assert listed["animals/confidence"]["mean"] == pytest.approx(0.85195)
    assert listed["animals"]["account_id"] == "default"
    assert listed["animals"]["profile_name"].startswith("prompt-")


def test_drift_of_the_confidence_is_reported(
    write_task: WriteTask, fake: Install, tmp_path: Path, database: Path
) -> None:
    """None for the same answers, a small p-value when the model has become less sure."""
    task = write_task(test=rows(40))
    fake()
    evaluate(task, tmp_path / "one", database)
    same = evaluate(task, tmp_path / "two", database)["history"]
    assert (same["drift"]["statistic"], same["drift"]["p_value"]) == (0.0, 1.0)
    assert same["interval"]["scores"] == 80
    fake(unsure)
    arguments = ("--out", tmp_path / "three", "--history", database, "--no-cache")
    text = run("evaluate", task, *arguments).stdout
    assert "accuracy, history: 0.7500 (0.6" in text
    assert "confidence, 40 rows against 80 earlier: mean 0.600, was 0.852;" in text
    assert "distance 1.000, permutation p = 0.0001" in text


def test_a_run_started_again_counts_once(
    write_task: WriteTask, fake: Install, tmp_path: Path, database: Path
) -> None:
    """Rows that failed at first are added, the others are not counted twice."""

    def fails_once(text: str, prompt: str) -> Answer:
        return ProviderError("no route.", provider="fake") if text.startswith("7 ") else knows(text, prompt)

    task = write_task(test=rows(20))
    fake(fails_once)
    first = evaluate(task, tmp_path / "one", database)["history"]
    assert first["interval"]["scores"] == 19
    fake()
    second = evaluate(task, tmp_path / "one", database)["history"]
    assert second["run_id"] == first["run_id"]
    assert second["interval"]["scores"] == 20
    assert second["drift"]["history"] == 0
    assert evaluate(task, tmp_path / "one", database)["history"] == second


def test_another_prompt_is_another_profile(
    write_task: WriteTask, fake: Install, tmp_path: Path, database: Path
) -> None:
    """Unless a name is given; another account is apart in any case."""
    task = write_task(test=rows(8))
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Another prompt.")
    fake()
    for number, more in enumerate([(), ("--prompt", prompt)]):
        entry = evaluate(task, tmp_path / f"own-{number}", database, *more)["history"]
        assert entry["drift"]["history"] == 0
    named = ("--profile", "production")
    for number, more in enumerate([(), ("--prompt", prompt)]):
        entry = evaluate(task, tmp_path / f"named-{number}", database, *named, *more)["history"]
        assert entry["drift"]["history"] == 8 * number
    entry = evaluate(task, tmp_path / "other", database, *named, "--account", "other")["history"]
    assert entry["drift"]["history"] == 0


def test_a_run_cut_short_is_not_recorded(
    write_task: WriteTask, fake: Install, tmp_path: Path, database: Path
) -> None:
    """Its rows would not stand for the file."""
    fake(latency=0.05)
    result = run(
        "evaluate", write_task(test=rows(40)), "--out", tmp_path / "one", "--history", database,
        "--no-cache", "--concurrency", 2, "--deadline", 0.2, "--json",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "history" not in json.loads(result.stdout)
    assert run_json("history", "list", "--history", database) == []


def test_a_history_that_cannot_be_used_is_an_error_before_the_first_call(
    write_task: WriteTask, fake: Install, tmp_path: Path
) -> None:
    """Nothing is paid for."""
    client = fake()
    result = run("evaluate", write_task(), "--out", tmp_path / "one", "--history", tmp_path, "--no-cache")
    assert result.exit_code == 2
    assert "folder" in result.stderr
    assert client.closed
    assert not (tmp_path / "one").exists()


def test_a_history_that_fails_later_costs_no_results(
    write_task: WriteTask, fake: Install, tmp_path: Path, database: Path
) -> None:
    """The numbers are printed, the exit code says so, and the same command makes up for it."""
    EvaluationHistory(database)
    task = write_task(test=rows(8))

    def drops(text: str, prompt: str) -> Answer:
        with contextlib.closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("DROP TABLE IF EXISTS calibrant_scores")
        return knows(text, prompt)

    fake(drops)
    arguments = ("evaluate", task, "--out", tmp_path / "one", "--history", database, "--no-cache", "--json")
    result = run(*arguments)
    assert result.exit_code == 2
    assert json.loads(result.stdout)["correct"] == 6
    assert "run the same command again to add it to the history" in result.stderr
    assert "no such table" in result.stderr
    database.unlink()
    assert json.loads(run(*arguments).stdout)["history"]["recorded"] == 8


def test_a_misspelt_profile_is_noticed(database: Path) -> None:
    """An interval over nothing is no error, but it is seldom meant."""
    run("history", "record", "--evaluator", "e", "--profile", "p", "--score", "1", "--history", database)
    found = run("history", "interval", "--evaluator", "e", "--profile", "q", "--history", database)
    assert found.exit_code == 0
    assert "nothing is recorded for account 'default', evaluator 'e' and profile 'q'" in found.stderr
