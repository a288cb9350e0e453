"""Tests of ``calibrant evaluate``: output, files, exit codes, kills and signals."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from rich.console import Console

from calibrant.calibration import LabelPriorCorrection
from calibrant.cli import _progress as progress_module
from calibrant.core import Interval, ProviderError
from calibrant.evaluation import EvaluationProgress
from calibrant.inference import Classifier
from calibrant.testing import Answer, FakeClient
from claude_server import KEY, AnthropicServer
from command_line import (
    animals,
    command,
    done,
    knows,
    lasting_rows,
    prediction_rows,
    process,
    refusal,
    wait_for,
)
from fault_server import FaultServer

run = command("evaluate")

WriteTask = Callable[..., Path]
Rule = Callable[[str, str], Answer]
Fake = Callable[..., FakeClient]

LABELS = ["cat", "dog"]


# --- what it does -------------------------------------------------------------------------------


def test_numbers_come_with_denominators(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Every metric is printed with its denominator; progress goes to standard error."""

    def rule(text: str, prompt: str) -> Answer:
        return ProviderError("no route.", provider="fake") if text.startswith("7") else knows(text, prompt)

    client = fake(rule)
    out = tmp_path / "out"
    result = done(run(write_task(test=animals(8)), "--out", out))
    table = [re.split(r" {2,}", line) for line in result.stdout.splitlines()]
    assert table[0] == ["animals: fake, 8 rows"]
    assert ["accuracy, all rows", "0.625 (0.306 to 0.863)", "5 of 8 rows"] in table
    assert [
        "accuracy, answered rows",
        "0.714 (0.359 to 0.918)",
        "5 of 7 rows whose outcome is not error",
    ] in table
    assert ["outcomes", "ok 7, error 1, refusal 0, unparsed 0"] in table
    assert ["failed", "1", "no route."] in table
    assert f"Files: {out}/predictions.jsonl, metrics.json, run.json" in result.stdout
    assert "evaluate: 8/8 rows" in result.stderr
    assert "1 row failed with a transport error; run the same command again to ask it again" in result.stderr
    assert client.closed


def test_one_row_is_singular(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Whatever is counted and there once has a noun in the singular."""
    fake(knows)
    result = done(run(write_task(train=animals(4, start=1), test=animals(1)), "--out", tmp_path / "out"))
    assert result.stdout.splitlines()[0] == "animals: fake, 1 row"
    assert "\non 1 answered row  accuracy" in result.stdout
    assert "1 row with a confidence" in result.stdout
    assert re.search("^1 call, 0 rows without a call, .*; 1 row in ", result.stdout, re.MULTILINE)


def test_broken_answers_are_told_from_transport_errors(
    write_task: WriteTask, fake: Fake, tmp_path: Path
) -> None:
    """A server whose answers do not fit will hardly answer better: the doctor is named beside another try."""

    def rule(text: str, prompt: str) -> Answer:
        if text.startswith("7"):
            return ProviderError("broken response: expected a probability, got nan.", provider="fake")
        return knows(text, prompt)

    fake(rule)
    result = done(run(write_task(test=animals(8)), "--out", tmp_path / "out"))
    assert (
        "1 row failed with a transport error or an empty or broken answer; run the same command again to ask it "
        "again, or calibrant doctor to examine the server." in result.stderr
    )


def test_useless_confidence_is_reported(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Low label mass and a reversed ranking are reported, also when a finished run is repeated."""
    fake(lambda text, _: ("cat", 0.95 if "woof" in text else 0.6), space="raw", illegal_mass=0.9)
    command = write_task(test=animals(8)), "--out", tmp_path / "out"
    for _ in range(2):
        said = run(*command).stdout
        assert "The model wanted to write something else on 8 of 8 rows (label mass below 0.5)" in said
        assert "Confidence does not tell right from wrong answers here: in 83% of all pairs" in said
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert (found["rows_with_low_label_mass"], found["auroc"]["estimate"]) == (8, pytest.approx(1 / 6))
    assert found["auroc"]["lower"] < 1 / 6 < found["auroc"]["upper"]


def test_rows_in_columns_are_written_where_wanted(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """--parquet writes predictions.parquet, and the output names the file."""
    fake()
    out = tmp_path / "out"
    result = done(run(write_task(test=animals(8)), "--out", out, "--parquet"))
    assert f"Files: {out}/predictions.jsonl, predictions.parquet, metrics.json, run.json" in result.stdout
    assert parquet.read_table(out / "predictions.parquet").num_rows == 8


def test_missing_pyarrow_ends_it_first(
    write_task: WriteTask, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pyarrow, --parquet fails with the install command before any call."""
    client = fake()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "[data]" in refusal(run(write_task(test=animals(8)), "--out", tmp_path / "out", "--parquet"))
    assert not client.requests


def test_json_is_the_content_of_the_metrics_file(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """With --json standard output equals metrics.json."""
    fake()
    result = done(run(write_task(), "--out", tmp_path / "out", "--json"))
    assert json.loads(result.stdout) == json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert json.loads(result.stdout)["task"] == "animals"


def test_only_the_rows_of_the_split_are_read(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A broken split that is not evaluated does no harm; unknown and missing splits are named."""
    client = fake()
    task = write_task(train="not JSON\n", validation=animals(3))
    done(run(task, "--split", "validation", "--out", tmp_path / "out"))
    assert len(client.requests) == 3
    unknown = refusal(run(task, "--split", "dev", "--out", tmp_path / "other"))
    assert "Expected --split to be one of train, validation, test, got 'dev'" in unknown
    task.write_text(task.read_text().replace('test = "test.jsonl"\n', ""))
    missing = refusal(run(task, "--out", tmp_path / "other"))
    assert "has no 'test' rows: name a file for it under [data], or pass --file" in missing


def test_another_file_and_its_first_rows(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """With --file only that file's rows are asked, and a second run continues after the saved rows."""
    client = fake()
    data = tmp_path / "more.csv"
    data.write_text("input,answer\n" + "".join(f"{row['input']},{row['answer']}\n" for row in animals(9)))
    arguments = (write_task(), "--file", data, "--out", tmp_path / "out")
    done(run(*arguments, "--max-rows", 4))
    assert [row["index"] for row in prediction_rows(tmp_path / "out")] == [0, 1, 2, 3]
    done(run(*arguments))
    assert [row["index"] for row in prediction_rows(tmp_path / "out")] == list(range(9))
    assert len(client.requests) == 9


def test_a_broken_row_costs_nothing(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A broken row exits with 2 and its file and line, before any call."""
    client = fake()
    task = write_task(test=[*animals(500), {"input": "meow", "answer": "horse"}])
    assert "test.jsonl:501: answer 'horse' is not one of the 2 labels" in refusal(
        run(task, "--out", tmp_path / "out")
    )
    assert client.requests == []


def test_prompts_come_from_a_file_or_from_a_search(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """--prompt takes a file; --run takes a search's prompt with its user template and label prior."""
    client = fake()
    task = write_task()
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Cat or dog?")
    done(run(task, "--prompt", prompt, "--out", tmp_path / "a"))
    assert client.requests[-1].messages[0]["content"] == "Cat or dog?"

    search = tmp_path / "search"
    search.mkdir()
    (search / "best_prompt.txt").write_text("Best.")
    (search / "result.json").write_text(
        json.dumps({"best_candidate": {"system_prompt": "Best.", "user_template": "It says: {input}"}})
    )
    best = Classifier(
        model=client, labels=LABELS, field="category", prompt="Best.", user_template="It says: {input}"
    )
    correction = LabelPriorCorrection("batch").fit([[-0.1, -2.4], [-0.2, -1.7]])
    correction.save(search / "label_prior.json", fingerprint=best.fingerprint())
    done(run(task, "--run", search, "--out", tmp_path / "b"))
    assert [message["content"] for message in client.requests[-1].messages] == [
        "Best.",
        "It says: test 3 woof",
    ]
    first = prediction_rows(tmp_path / "b")[0]
    assert first["confidence"] != pytest.approx(0.9)

    assert "either --prompt or --run, got both" in refusal(
        run(task, "--run", search, "--prompt", prompt, "--out", tmp_path / "c")
    )
    assert "no such prompt file" in refusal(run(task, "--run", tmp_path / "nothing", "--out", tmp_path / "c"))


# --- how it ends --------------------------------------------------------------------------------


def test_a_metric_below_its_bound_is_exit_code_3(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A metric below --fail-under exits with 3 and is named; a wrong bound is bad input."""
    client = fake()
    task = write_task(test=animals(8))
    done(run(task, "--out", tmp_path / "a", "--fail-under", "accuracy=0.75", "--fail-under", "ok=1"))
    missed = run(
        task, "--out", tmp_path / "a", "--fail-under", "accuracy=0.76", "--fail-under", "macro_f1=0.1"
    )
    assert missed.exit_code == 3
    assert "--fail-under: accuracy is 0.7500, below 0.76." in missed.stderr
    asked = len(client.requests)
    for wrong in ("acuracy=0.9", "accuracy=90", "accuracy", "accuracy=high"):
        assert "one of accuracy, accuracy_answered, answered, " in refusal(
            run(task, "--out", tmp_path / "b", "--fail-under", wrong)
        )
    assert len(client.requests) == asked


def test_a_model_that_is_gone_is_no_worse_model(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Where nothing was answered the command exits with 1, whatever --fail-under asks for."""
    fake(lambda _text: ProviderError("connection refused", provider="p"))
    task = write_task(test=animals(4))
    assert run(task, "--out", tmp_path / "a", "--fail-under", "accuracy=0.1").exit_code == 1


@pytest.mark.parametrize(("status", "is_refusal"), [(429, True), (503, False)])
def test_a_server_that_takes_no_calls_for_now_is_no_broken_transport(
    write_task: WriteTask, fake: Fake, tmp_path: Path, status: int, is_refusal: bool
) -> None:
    """Rows refused for too many calls, or no credit, are told from those that no answer came for."""
    refusal = ProviderError(f"{status} not now", provider="p", status=status)

    def rule(text: str, _prompt: str) -> Answer:
        return refusal if "woof" in text else "cat"

    fake(rule)
    result = run(write_task(test=animals(4)), "--out", tmp_path / "out")
    assert ("too many calls, or no credit" in result.stderr) is is_refusal
    assert "a transport error" in result.stderr


def test_a_deadline_exits_with_1(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A deadline exits with 1 and prints the metrics so far; the next run answers the other rows."""
    client = fake(latency=0.05)
    arguments = (write_task(test=animals(40)), "--out", tmp_path / "out", "--concurrency", 2)
    result = run(*arguments, "--deadline", 0.4)
    assert result.exit_code == 1
    assert re.search(
        r"stopped \(The deadline of 0\.4 seconds has passed\): \d+ of 40 rows are saved; "
        r"run the same command again to go on",
        result.stderr,
    )
    assert "accuracy, all rows" in result.stdout
    done(run(*arguments))
    assert [row["index"] for row in prediction_rows(tmp_path / "out")] == list(range(40))
    assert 40 <= len(client.requests) <= 42


def test_a_bad_key_is_one_message(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A refused key exits with 1 and one message after at most 64 calls."""
    refusal = ProviderError("HTTP 401.", provider="fake", status=401, hint="Check the API key.")
    client = fake(lambda *_: refusal)
    result = run(write_task(test=animals(500)), "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("Check the API key.")) == (1, 1)
    assert len(client.requests) <= 64


def test_a_lost_server_gives_one_message(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A lost server exits with 1, and the next run asks only the unanswered rows."""
    gone = [True]

    def rule(text: str, prompt: str) -> Answer:
        if gone[0] and int(text.split(maxsplit=1)[0]) >= 30:
            return ProviderError("no route to host.", provider="fake")
        return knows(text, prompt)

    client = fake(rule)
    arguments = (write_task(test=animals(400)), "--out", tmp_path / "out")
    result = run(*arguments)
    assert result.exit_code == 1
    assert "What was answered is kept in" in result.stderr
    assert "error: fake: The last 100 rows all failed" in result.stderr
    assert len(client.requests) < 250
    gone[0] = False
    done(run(*arguments))
    assert [row["index"] for row in prediction_rows(tmp_path / "out")] == list(range(400))
    assert all(row["outcome"] == "ok" for row in prediction_rows(tmp_path / "out"))
    texts = [request.messages[-1]["content"] for request in client.requests]
    assert all(texts.count(row["input"]) == 1 for row in animals(30))


def test_rows_that_all_failed_are_exit_code_1(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A run in which every row fails exits with 1."""
    fake(lambda *_: ProviderError("no route.", provider="fake"))
    assert run(write_task(), "--out", tmp_path / "out").exit_code == 1


def test_the_cache_spares_a_second_directory(
    write_task: WriteTask, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrant_home: Path
) -> None:
    """The user's cache answers a second directory; --cache and the environment name another cache."""
    client = fake()
    task = write_task()
    for number, (options, calls) in enumerate(
        [([], 4), ([], 4), (["--no-cache"], 8), (["--cache", tmp_path / "own.db"], 12)]
    ):
        done(run(task, "--out", tmp_path / str(number), *options))
        assert len(client.requests) == calls
    assert (calibrant_home / "predictions.sqlite").exists()
    monkeypatch.setenv("CALIBRANT_CACHE", f"sqlite:///{tmp_path}/own.db")
    done(run(task, "--out", tmp_path / "environment"))
    assert len(client.requests) == 12
    both = run(task, "--out", tmp_path / "both", "--cache", "x.db", "--no-cache")
    assert both.exit_code == 2


# --- progress -----------------------------------------------------------------------------------


def test_lines_show_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A progress line holds rate, accuracy with interval, failures by kind, cost and time left."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    with progress_module.EvaluationDisplay() as display:
        for second in range(1, 12):
            display(
                EvaluationProgress(
                    rows=100 * second,
                    rows_expected=9000,
                    session_rows=100 * second,
                    remaining=9000 - 100 * second,
                    seconds=float(second),
                    accuracy_answered=Interval(lower=0.8, upper=0.9, level=0.95, estimate=0.85),
                    errors={"HTTP 503": 2, "HTTP 500": 5},
                    cost=0.25,
                )
            )
            now[0] += 1
    note = "accuracy 0.850 (0.800 to 0.900), 7 failed (5 x HTTP 500, 2 x HTTP 503), $0.2500"
    assert capsys.readouterr().err.splitlines() == [
        f"evaluate: 100/9000 rows, 100.0 rows/s, {note}, 1 min 29 s left",
        f"evaluate: 1100/9000 rows, 100.0 rows/s, {note}, 1 min 19 s left",
    ]


def test_a_rate_limit_that_is_waited_for_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A wait for a rate limit is printed at once, on a line of its own."""
    with progress_module.EvaluationDisplay() as display:
        display(EvaluationProgress(rows=1, rows_expected=9))
        # Calls of the last seconds say nothing about a minute without any, so no time left is named.
        state = EvaluationProgress(rows=2, rows_expected=9, remaining=7, session_rows=2, seconds=1.0)
        display(replace(state, rate_limits={"openai/m": 57.2}))
        display(replace(state, rate_limits={"openai/m": 56.9}))
    first, second, last = capsys.readouterr().err.splitlines()
    assert first == "evaluate: 1/9 rows, 0.0 rows/s"
    assert re.fullmatch(
        r"evaluate: 2/9 rows, waiting for openai/m's rate limit, 58 s \(until \d\d:\d\d:\d\d\), 2\.0 rows/s",
        second,
    )
    assert "57 s" in last


def test_terminals_show_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal shows a bar, and brackets in a provider's message stay text."""
    monkeypatch.setattr(progress_module, "Console", partial(Console, force_terminal=True, width=160))
    with progress_module.EvaluationDisplay() as display:
        display(EvaluationProgress(rows=3, rows_expected=4, errors={"[bold]no[/nonsense]": 1}))
    text = capsys.readouterr().err
    assert "3/4" in text
    assert "[bold]no[/nonsense]" in text


# --- real processes and sockets -----------------------------------------------------------------

# The command line with the quickest client there is: what is tested is how processes end.
COMMAND = """
import json, sys, urllib.request
from calibrant.cli._app import main
from calibrant.clients._callable import CallableClient
from calibrant.testing import fake_model

ADDRESS = sys.argv.pop(1)

def loopback(messages):
    body = json.dumps({"model": "m", "logprobs": True, "top_logprobs": 5, "messages": messages})
    with urllib.request.urlopen(ADDRESS + "/chat/completions", body.encode(), timeout=20) as answer:
        return json.load(answer)

def opened(_, *, concurrency, **__):
    return CallableClient(loopback, max_workers=concurrency)

with fake_model("local/smollm2-135m", opened):
    main()
"""


@pytest.mark.parametrize(
    "options", [pytest.param((), marks=pytest.mark.slow), ("--no-cache",)], ids=["cache", "no-cache"]
)
def test_a_killed_run_goes_on(write_task: WriteTask, tmp_path: Path, options: tuple[str, ...]) -> None:
    """After three kills every row is there once, in order, and few calls are repeated."""
    rows, concurrency = 300, 8
    task = write_task(test=animals(rows))
    with FaultServer(LABELS, knows, latency=0.01) as server:
        whole, broken = tmp_path / "whole", tmp_path / "broken"
        arguments = ("--concurrency", concurrency, "--no-cache")
        with process(COMMAND, server.api_base, "evaluate", task, "--out", whole, *arguments) as running:
            assert running.wait(60) == 0, running.communicate()[1]
        assert sum(server.counts.values()) == rows
        arguments = ("--out", broken, "--concurrency", concurrency, *options)
        for asked in (70, 140, 220):
            with process(COMMAND, server.api_base, "evaluate", task, *arguments) as running:
                wait_for(lambda asked=asked: sum(server.counts.values()) >= rows + asked, running)
                running.send_signal(signal.SIGKILL)
                running.wait()
        with process(COMMAND, server.api_base, "evaluate", task, *arguments) as running:
            assert running.wait(60) == 0, running.communicate()[1]
        paid = sum(server.counts.values()) - rows
    assert lasting_rows(broken) == lasting_rows(whole)
    assert [row["index"] for row in prediction_rows(broken)] == list(range(rows))
    # Three kills: the calls in flight, and one transaction of at most 64 answers.
    assert rows <= paid <= rows + 3 * (concurrency + 64)
    first, last = (json.loads((where / "metrics.json").read_text()) for where in (whole, broken))
    totals = ("calls", "rows_from_cache", "prompt_tokens", "completion_tokens")
    for name in ("accuracy", "macro_f1", "outcomes", "rows", "complete", *totals):
        assert first[name] == last[name]
    assert first["prompt_tokens"] > 0
    files = {".lock", "predictions.jsonl", "metrics.json", "run.json", "task.json"}
    assert {path.name for path in broken.iterdir()} == files


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_finishes_begun_rows(write_task: WriteTask, tmp_path: Path, number: signal.Signals) -> None:
    """After a signal the rows under way are saved with exit code 130; the next run repeats no call."""
    out = tmp_path / "out"
    arguments = (write_task(test=animals(60)), "--out", out, "--concurrency", 4)
    with FaultServer(LABELS, knows, latency=0.05) as server:
        with process(COMMAND, server.api_base, "evaluate", *arguments) as running:
            wait_for(lambda: sum(server.counts.values()) >= 10, running)
            running.send_signal(number)
            stdout, stderr = running.communicate(timeout=30)
        assert running.returncode == 130, stderr
        saved = len(prediction_rows(out))
        assert sum(server.counts.values()) == saved < 60
        assert "interrupted: finishing the rows under way" in stderr
        assert f"{saved} of 60 rows are saved; run the same command again to go on" in stderr
        assert "accuracy, all rows" in stdout
        assert json.loads((out / "metrics.json").read_text())["stopped"] == "interrupted"
        with process(COMMAND, server.api_base, "evaluate", *arguments) as running:
            assert running.wait(60) == 0, running.communicate()[1]
        assert sum(server.counts.values()) == 60
    assert [row["index"] for row in prediction_rows(out)] == list(range(60))


def test_the_second_signal_ends_at_once(write_task: WriteTask, tmp_path: Path) -> None:
    """A second signal ends the run although the server hangs, and finished answers are kept."""
    out = tmp_path / "out"

    def hangs(_number: int, body: Any) -> str | None:
        return "hang" if int(body["messages"][-1]["content"].split()[0]) >= 8 else None

    arguments = (write_task(test=animals(60)), "--out", out, "--concurrency", 4)
    with (
        FaultServer(LABELS, knows, faults=hangs) as server,
        process(COMMAND, server.api_base, "evaluate", *arguments) as running,
    ):
        wait_for(lambda: sum(server.counts.values()) >= 12, running)
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        while "finishing the rows under way" not in running.stderr.readline():
            assert running.poll() is None
        time.sleep(0.3)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        wait_for((out / "metrics.json").exists, running)
        server.stop()  # threads that wait for an answer would hold the interpreter up
        _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130, stderr
    assert "run the same command again to go on" in stderr
    assert [row["index"] for row in prediction_rows(out)] == list(range(8))


def test_a_directory_that_goes_away_is_exit_code_1(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A moved directory exits with 1, and the run goes on from its new place."""
    out = tmp_path / "out"

    def rule(text: str, prompt: str) -> Answer:
        if text.startswith("5 "):
            out.rename(tmp_path / "elsewhere")
        return knows(text, prompt)

    fake(rule)
    task = write_task(test=animals(8))
    result = run(task, "--out", out)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{out}: its files were moved or removed during the run" in result.stderr
    assert not out.exists()
    done(run(task, "--out", tmp_path / "elsewhere"))


def test_a_damaged_metrics_file_is_one_message(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A damaged metrics.json exits with 2; without the file, the metrics are computed again."""
    fake()
    task, out = write_task(test=animals(8)), tmp_path / "out"
    whole = run(task, "--out", out, "--json").stdout
    (out / "metrics.json").write_text("{")
    result = run(task, "--out", out)
    assert (result.exit_code, "metrics.json: expected a JSON object" in result.stderr) == (2, True)
    (out / "metrics.json").unlink()
    again = json.loads(run(task, "--out", out, "--json").stdout)
    assert again["accuracy"] == json.loads(whole)["accuracy"]


@pytest.mark.parametrize("split", ["test", "train", "nonsense"])
def test_a_split_beside_a_file_is_refused(
    write_task: WriteTask, fake: Fake, tmp_path: Path, split: str
) -> None:
    """Rows of a file have no split: --split beside --file exits with 2, and nothing is asked."""
    client = fake()
    task = write_task()
    result = run(task, "--file", task.parent / "test.jsonl", "--split", split, "--out", tmp_path / "run")
    assert (result.exit_code, "Expected --split or --file, got both" in result.stderr) == (2, True)
    assert not client.requests


# --- engines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "spark"], "--engine to be one of local, ray, got 'spark'"),
        (["--ray-address", "auto"], "only with --engine ray"),
    ],
)
def test_wrong_engine_fails(write_task: WriteTask, tmp_path: Path, options: list[str], message: str) -> None:
    """An unknown --engine, and --ray-address without Ray, exit with 2."""
    result = run(write_task(), "--out", tmp_path / "run", *options)
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_collapsed_labels_are_reported(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """The output counts the labels answered, and warns of a collapse if no label was answered."""
    fake(lambda *_: ("dog", 0.9))
    result = run(write_task(), "--no-cache", "--out", tmp_path / "dogs")
    assert re.search(r"labels answered +1 of 2 +1 of the 2 that occur in these rows", result.stdout)
    assert "Collapsed" not in result.stdout
    fake(lambda *_: "cow")
    result = run(write_task(), "--no-cache", "--out", tmp_path / "cows")
    assert (
        "warning: Collapsed: of the 2 labels that occur in these rows only 0 were ever answered."
        in result.stdout
    )
    found = json.loads((tmp_path / "cows" / "metrics.json").read_text())["answered_labels"]
    assert (found["answered"], found["present"], found["collapsed"]) == (0, 2, True)


# A model in this process, of which some calls never end.
IN_PROCESS = """
import asyncio, sys
from calibrant.cli._app import main
from calibrant.testing import FakeClient, fake_model

STUCK = int(sys.argv.pop(1))

class Engine(FakeClient):
    in_process = True

    async def complete(self, request):
        if int(request.messages[-1]["content"].split()[0]) >= STUCK:
            await asyncio.Event().wait()
        return await super().complete(request)

engine = Engine(["cat", "dog"], lambda text: "cat" if "meow" in text else "dog")
with fake_model("local/smollm2-135m", engine):
    main()
"""


@pytest.mark.parametrize("name", ["evaluate", "classify"])
def test_embedded_models_stop_at_once(write_task: WriteTask, tmp_path: Path, name: str) -> None:
    """Ctrl-C gives up a call that never ends; answers are kept, and a rerun asks the other rows."""
    task, out, texts = write_task(test=animals(60)), tmp_path / "out", tmp_path / "texts.txt"
    texts.write_text("\n".join(row["input"] for row in animals(60)))
    options = {"evaluate": ("--out", out), "classify": ("--file", texts)}[name]
    with process(IN_PROCESS, 6, name, task, *options) as running:
        assert running.stdout is not None
        if name == "classify":
            printed = [running.stdout.readline() for _ in range(6)]
            assert all(line.startswith(("cat", "dog")) for line in printed)
        else:
            wait_for(lambda: out.exists() and len(safe_lines(out)) == 6, running)
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130, stderr
    if name == "evaluate":
        assert "interrupted: the rows under way are given up; what was answered is kept" in stderr
        assert "6 of 60 rows are saved; run the same command again to go on" in stderr
        assert json.loads((out / "metrics.json").read_text())["stopped"] == "interrupted"
        with process(IN_PROCESS, 60, name, task, *options, "--json") as again:
            assert json.loads(again.communicate(timeout=30)[0])["rows"] == 60
        assert [row["index"] for row in prediction_rows(out)] == list(range(60))


def safe_lines(directory: Path) -> list[str]:
    """Return the lines of ``predictions.jsonl`` so far."""
    path = directory / "predictions.jsonl"
    return path.read_text().splitlines() if path.exists() else []


# --- models without log-probabilities -------------------------------------------------------------


@pytest.fixture
def claude(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnthropicServer]:
    """Return the server that litellm asks for Anthropic's models."""
    server = AnthropicServer("cat")
    monkeypatch.setenv("ANTHROPIC_API_BASE", server.root)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    yield server
    server.stop()


@pytest.mark.parametrize("by_option", [True, False])
def test_advice_without_logprobs_works(
    write_task: WriteTask, tmp_path: Path, claude: AnthropicServer, by_option: bool
) -> None:
    """Without logprobs the error shows the lines for the task file, and these lines make the run work."""
    own = '[model]\nname = "anthropic/claude-haiku-4-5"\n'
    arguments = ("--out", tmp_path / "out", "--no-cache")
    first = run(write_task(extra=f'{own}scoring = "decode"\n'), *arguments)
    assert (first.exit_code, claude.requests) == (1, [])
    found = re.search(r'^\[model\]\nscoring = "fused"$', first.stderr, re.MULTILINE)
    assert found is not None, first.stderr
    lines_shown = found.group() if by_option else own + found.group().removeprefix("[model]\n")
    by_name = ("--model", "anthropic/claude-haiku-4-5") if by_option else ()
    done(run(write_task(extra=lines_shown + "\n"), *by_name, *arguments))
    assert len(claude.requests) == 4 * 3
    assert {row["label"] for row in prediction_rows(tmp_path / "out")} == {"cat"}


CASCADE = """
[cascade]
confidence_method = "avg_logprob"

[[cascade.models]]
name = "anthropic/claude-haiku-4-5"

[[cascade.models]]
name = "hosted_vllm/large"
options = {{ api_base = "{large}" }}
"""
ROUTING = """
[[routing.providers]]
name = "anthropic/claude-haiku-4-5"

[[routing.providers]]
name = "anthropic/claude-sonnet-4-5"
"""


@pytest.mark.parametrize("is_embedded", [True, False])
def test_only_a_cascade_of_embedded_models_costs_nothing(
    write_task: WriteTask, use_model: Callable[..., Any], tmp_path: Path, is_embedded: bool
) -> None:
    """Evaluating and labelling, the calls of a hosted model behind an embedded one are not told to be free."""
    for name, free in (("small", True), ("large", is_embedded)):
        client = FakeClient(LABELS, knows, name=name)
        client.in_process = free  # type: ignore[attr-defined]
        use_model(client, name)
    models = "".join(f'[[cascade.models]]\nname = "{name}"\n' for name in ("small", "large"))
    task = write_task(extra=f'[cascade]\nthreshold = 1.0\nconfidence_method = "label_probability"\n{models}')
    evaluated = done(run(task, "--no-cache", "--out", tmp_path / "out"))
    labelled = done(
        command("label")(task, tmp_path / "test.jsonl", "--no-cache", "--out", tmp_path / "labels")
    )
    for printed in (evaluated.stdout, labelled.stdout):
        assert ("at no cost" in printed) == is_embedded
        assert ("rows without a known price" in printed) != is_embedded


@pytest.mark.parametrize("extra", [CASCADE, ROUTING], ids=["cascade", "routing"])
def test_advice_for_several_models_works(
    write_task: WriteTask, tmp_path: Path, claude: AnthropicServer, extra: str
) -> None:
    """The lines shown for a cascade or for routing make the run work; no call is made before."""
    arguments = ("--out", tmp_path / "out", "--no-cache")
    with FaultServer(LABELS) as large:
        extra = extra.format(large=large.api_base)
        first = run(write_task(extra=extra), *arguments)
        assert (first.exit_code, claude.requests, large.counts) == (1, [], {})
        assert "anthropic/claude-haiku-4-5" in first.stderr
        found = re.search(
            r"^\[cascade\]\nconfidence_method.*\n\n\[\[cascade.models\]\]\nname.*\nscoring.*$",
            first.stderr,
            re.MULTILINE,
        )
        assert found is not None, first.stderr
        rest = extra.partition('haiku-4-5"\n')[2] if extra.startswith("\n[cascade]") else extra
        second = run(write_task(extra=f"{found.group()}\n{rest}"), *arguments)
    assert second.exit_code == 0, second.stderr
    assert len(claude.requests) == 4 * 3
    assert {row["label"] for row in prediction_rows(tmp_path / "out")} == {"cat"}
