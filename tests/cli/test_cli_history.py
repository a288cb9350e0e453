"""Tests of ``calibrant history`` and ``calibrant evaluate --history``: output, stored scores and errors."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import ProviderError
from calibrant.evaluation import EvaluationHistory
from calibrant.testing import Answer, FakeClient
from command_line import animals, command, done, json_of, refusal

run = command()

WriteTask = Callable[..., Path]
Install = Callable[..., FakeClient]

NAMES = ("--evaluator", "judge", "--profile", "strict")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return where a history may be."""
    return tmp_path / "history.db"


# --- the commands -------------------------------------------------------------------------------


def test_what_is_recorded_is_summed_up(database: Path) -> None:
    """Recorded scores are printed as interval and list, as JSON and as text."""
    at = ("--history", database)
    for score in (1, 1, 0, 1):
        found = json_of(
            run("history", "record", *NAMES, "--score", score, "--family", "custom", *at, "--json")
        )
        assert found == {"stored": True, "location": str(database)}
    found = json_of(run("history", "interval", *NAMES, *at, "--json"))
    assert found == {
        "strategy": "full-history", "alpha": 0.95, "lower": 0.25, "median": 0.75, "upper": 1.0,
        "scores": 4, "score_type": "binary", "remark": "",
    }  # fmt: skip
    printed = run("history", "interval", *NAMES, *at, "--alpha", 0.5).stdout
    assert printed == "0.7500 (0.5000 to 1.0000), level 0.5, latest 4 binary scores\n"
    (scope,) = json_of(run("history", "list", *at, "--json"))
    assert scope.pop("latest").endswith("+00:00")
    assert scope == {
        "account_id": "default", "evaluator_id": "judge", "profile_name": "strict", "scores": 4, "mean": 0.75,
    }  # fmt: skip
    lines = run("history", "list", *at).stdout.splitlines()
    assert lines[0] == "default  judge  strict"
    assert lines[1].startswith("    4 scores, mean 0.7500, 20")


def test_an_interval_of_width_0_says_why(database: Path) -> None:
    """An interval of width 0 has a remark with Wilson's interval."""
    at = ("--history", database)
    for _ in range(3):
        run("history", "record", *NAMES, "--score", 1, "--family", "custom", *at)
    found = json_of(run("history", "interval", *NAMES, *at, "--json"))
    assert (found["lower"], found["upper"]) == (1, 1)
    said = "width 0 because all 3 scores are 1, so resampling cannot vary them; "
    said += "Wilson's interval is 0.4385 to 1.0000"
    assert found["remark"] == said
    printed = run("history", "interval", *NAMES, *at).stdout
    assert printed.endswith(f" scores ({said})\n")


def test_accounts_are_apart(database: Path) -> None:
    """Intervals and lists hold only the scores of the named account."""
    at = ("--history", database)
    for account, score in (("a", 0), ("a", 0), ("b", 5), ("b", 5)):
        json_of(run("history", "record", *NAMES, "--account", account, "--score", score, *at, "--json"))
    assert json_of(run("history", "interval", *NAMES, "--account", "a", *at, "--json"))["upper"] == 0.0
    assert json_of(run("history", "interval", *NAMES, "--account", "b", *at, "--json"))["lower"] == 5.0
    assert json_of(run("history", "interval", *NAMES, *at, "--json"))["scores"] == 0
    assert [
        row["account_id"] for row in json_of(run("history", "list", "--account", "b", *at, "--json"))
    ] == ["b"]
    assert run("history", "list", "--account", "c", *at).stdout == "nothing is recorded.\n"


def test_the_strategy_and_too_few_scores_are_stated(database: Path) -> None:
    """The strategy none, and fewer than two scores, are stated with exit code 0."""
    at = ("--history", database)
    json_of(run("history", "record", *NAMES, "--score", 0.5, *at, "--json"))
    few = run("history", "interval", *NAMES, *at)
    assert (few.exit_code, few.stdout) == (0, "no interval: expected at least 2 scores, found 1\n")
    option = "--confidence-interval-strategy"
    none = run("history", "interval", *NAMES, *at, option, "none")
    assert (none.exit_code, none.stdout) == (0, "no interval: the strategy is none\n")
    assert json_of(run("history", "interval", *NAMES, *at, option, "none", "--json"))["lower"] is None


def test_what_is_not_captured_is_not_recorded(database: Path) -> None:
    """With --capture none nothing is stored, and the command says "not recorded"."""
    at = ("--history", database, "--capture", "none")
    assert json_of(run("history", "record", *NAMES, "--score", 1, *at, "--json"))["stored"] is False
    assert (
        "not recorded (capture is none, not always)"
        in run("history", "record", *NAMES, "--score", 1, *at).stdout
    )
    assert json_of(run("history", "list", "--history", database, "--json")) == []


def test_the_environment_names_the_database(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CALIBRANT_HISTORY names the database if no option is given."""
    monkeypatch.setenv("CALIBRANT_HISTORY", f"sqlite:///{database}")
    assert json_of(run("history", "record", *NAMES, "--score", 1, "--json"))["location"] == str(database)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("record", *NAMES, "--score", "nan"), "score_raw to be a finite number, got nan"),
        (("interval", *NAMES, "--alpha", "95"), "alpha, the confidence level, in (0, 1), got 95.0"),
    ],
)
def test_bad_input_exits_with_2(database: Path, arguments: tuple[str, ...], message: str) -> None:
    """Bad input exits with 2, and nothing is recorded."""
    EvaluationHistory(database)
    result = run("history", *arguments, "--history", database)
    assert message in refusal(result)
    assert json_of(run("history", "list", "--history", database, "--json")) == []


def test_reading_a_missing_database_is_an_error(database: Path) -> None:
    """Reading a missing database is an error, and makes no file."""
    assert f"{database}: holds no evaluation history" in refusal(
        run("history", "list", "--history", database)
    )
    assert not database.exists()


def test_a_database_of_another_version_is_an_error(database: Path) -> None:
    """A database of another schema version is an error that says what to use."""
    EvaluationHistory(database)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE calibrant_versions SET version = 7")
    assert "got 7: use the calibrant that wrote it" in refusal(run("history", "list", "--history", database))


# --- evaluation runs ----------------------------------------------------------------------------


def knows(text: str, _prompt: str) -> Answer:
    """Answer cat to "meow", more or less surely, and dog to everything else."""
    number = int(text.split(maxsplit=1)[0])
    return ("cat", 0.9 + number * 1e-4) if "meow" in text else ("dog", 0.8 + number * 1e-4)


def unsure(text: str, _prompt: str) -> Answer:
    """Answer like `knows`, with less confidence."""
    label, _ = knows(text, "")  # type: ignore[misc]
    return label, 0.6


def evaluate(task: Path, out: Path, database: Path, *more: object) -> Any:
    """Evaluate without a cache, and return the printed JSON."""
    return json_of(run("evaluate", task, "--out", out, "--history", database, "--no-cache", *more, "--json"))


def test_runs_enter_the_history(write_task: WriteTask, fake: Install, tmp_path: Path, database: Path) -> None:
    """A run records correctness and confidences; the first run has no drift."""
    fake(knows)
    entry = evaluate(write_task(test=animals(40)), tmp_path / "one", database)["history"]
    assert entry["recorded"] == 40
    assert (entry["interval"]["median"], entry["interval"]["score_type"]) == (0.75, "binary")
    assert 0.5 < entry["interval"]["lower"] < 0.7
    assert 0.8 < entry["interval"]["upper"] < 0.95
    assert (entry["drift"]["values"], entry["drift"]["history"], entry["drift"]["p_value"]) == (40, 0, None)
    assert json.loads((tmp_path / "one" / "history.json").read_text()) == entry
    assert "history" not in json.loads((tmp_path / "one" / "metrics.json").read_text())
    listed = {
        row["evaluator_id"]: row for row in json_of(run("history", "list", "--history", database, "--json"))
    }
    assert listed.keys() == {"animals", "animals/confidence"}
    assert (listed["animals"]["scores"], listed["animals"]["mean"]) == (40, 0.75)
    assert listed["animals/confidence"]["mean"] == pytest.approx(0.85195)
    assert listed["animals"]["account_id"] == "default"
    assert listed["animals"]["profile_name"].startswith("prompt-")


def test_drift_is_reported(write_task: WriteTask, fake: Install, tmp_path: Path, database: Path) -> None:
    """Equal confidences have p = 1, and lower ones a small p-value in the output."""
    task = write_task(test=animals(40))
    fake(knows)
    evaluate(task, tmp_path / "one", database)
    same = evaluate(task, tmp_path / "two", database)["history"]
    assert (same["drift"]["statistic"], same["drift"]["p_value"]) == (0.0, 1.0)
    assert same["interval"]["scores"] == 80
    fake(unsure)
    arguments = ("--out", tmp_path / "three", "--history", database, "--no-cache")
    text = run("evaluate", task, *arguments).stdout
    assert "accuracy, history: 0.7500 (0.6" in text
    assert "confidence, 40 rows against 80 earlier: mean 0.600, was 0.852;" in text
    assert re.search(r"distance 1\.000, p = \d(\.\d)?e-3\d\b", text)


def test_a_repeat_counts_once(write_task: WriteTask, fake: Install, tmp_path: Path, database: Path) -> None:
    """Repeating a run adds the rows that failed, and counts no row twice."""

    def fails_once(text: str, prompt: str) -> Answer:
        return ProviderError("no route.", provider="fake") if text.startswith("7 ") else knows(text, prompt)

    task = write_task(test=animals(20))
    fake(fails_once)
    first = evaluate(task, tmp_path / "one", database)["history"]
    assert first["interval"]["scores"] == 19
    fake(knows)
    second = evaluate(task, tmp_path / "one", database)["history"]
    assert (second["run_id"], second["interval"]["scores"]) == (first["run_id"], 20)
    assert second["drift"]["history"] == 0
    assert evaluate(task, tmp_path / "one", database)["history"] == second


def test_prompts_have_profiles(write_task: WriteTask, fake: Install, tmp_path: Path, database: Path) -> None:
    """Each prompt has a profile of its own; --profile joins runs, and accounts stay apart."""
    task = write_task(test=animals(8))
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Another prompt.")
    fake(knows)
    for number, more in enumerate([(), ("--prompt", prompt)]):
        entry = evaluate(task, tmp_path / f"own-{number}", database, *more)["history"]
        assert entry["drift"]["history"] == 0
    named = ("--profile", "production")
    for number, more in enumerate([(), ("--prompt", prompt)]):
        entry = evaluate(task, tmp_path / f"named-{number}", database, *named, *more)["history"]
        assert entry["drift"]["history"] == 8 * number
    entry = evaluate(task, tmp_path / "other", database, *named, "--account", "other")["history"]
    assert entry["drift"]["history"] == 0


def test_partial_runs_stay_out(write_task: WriteTask, fake: Install, tmp_path: Path, database: Path) -> None:
    """A run that a deadline stops is not recorded."""
    fake(latency=0.05)
    result = run(
        "evaluate", write_task(test=animals(40)), "--out", tmp_path / "one", "--history", database,
        "--no-cache", "--concurrency", 2, "--deadline", 0.2, "--json",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "history" not in json.loads(result.stdout)
    assert json_of(run("history", "list", "--history", database, "--json")) == []


def test_an_unusable_history_fails_first(write_task: WriteTask, fake: Install, tmp_path: Path) -> None:
    """An unusable history is refused, and no output directory is made."""
    client = fake(knows)
    assert "folder" in refusal(
        run("evaluate", write_task(), "--out", tmp_path / "one", "--history", tmp_path, "--no-cache")
    )
    assert client.closed
    assert not (tmp_path / "one").exists()


def test_late_faults_keep_rows(write_task: WriteTask, fake: Install, tmp_path: Path, database: Path) -> None:
    """A history that breaks during a run exits with 2; the rows are kept and recorded by a rerun."""
    EvaluationHistory(database)
    task = write_task(test=animals(8))

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
    """An interval without scores warns that nothing is recorded for these names."""
    run("history", "record", "--evaluator", "e", "--profile", "p", "--score", "1", "--history", database)
    found = done(run("history", "interval", "--evaluator", "e", "--profile", "q", "--history", database))
    assert "nothing is recorded for account 'default', evaluator 'e' and profile 'q'" in found.stderr
    assert "`calibrant history list --history " in found.stderr
