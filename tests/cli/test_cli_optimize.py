"""Tests of ``calibrant optimize``: output, files and errors."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from calibrant import optimization
from calibrant.cli import _progress as progress_module
from calibrant.core import CompletionRequest
from calibrant.metrics import AnsweredLabels
from calibrant.optimization import OptimizationResult, Progress, PromptScore, ValidatedCandidate
from calibrant.testing import Answer, FakeClient
from command_line import command, done, refusal

run = command("optimize")

WriteTask = Callable[..., Path]

SEED = "Which animal?"
FILES = {"result.json", "best_prompt.txt", "predictions.jsonl", "report.html"}


def learns(text: str, prompt: str) -> Answer:
    """Answer cat to everything under the seed prompt, and rightly under any other."""
    if prompt == SEED:
        return ("cat", 0.6)
    return ("cat" if "meow" in text else "dog", 0.9)


def never_learns(_text: str, _prompt: str) -> Answer:
    """Answer cat to everything."""
    return ("cat", 0.6)


Fake = Callable[[Callable[[str, str], Answer]], FakeClient]


BUDGET = ("--max-metric-calls", 30, "--minibatch-size", 4)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder of the test's own, where searches without --out leave their directories."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def table(stdout: str) -> list[list[str]]:
    """Return the cells of the table that a search prints, row by row."""
    lines = stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.strip().startswith("accuracy"))
    rows = itertools.takewhile(lambda line: "  " in line, lines[head + 1 :])
    return [re.split(r"\s{2,}", row) for row in rows]


# --- what it does -------------------------------------------------------------------------------


def test_a_better_prompt_is_found_shown_and_kept(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A better prompt is printed with its difference from the seed, and its files are written."""
    client = fake(learns)
    out = tmp_path / "run"
    result = done(run(write_task(), "--out", out, *BUDGET))
    assert "animals: 4 test rows, fake" in result.stdout
    assert [row[:2] for row in table(result.stdout)] == [
        ["seed prompt", "0.500 (0.150 to 0.850)"],
        ["best prompt, no head", "1.000 (0.510 to 1.000)"],
        ["final: prompt + head", "1.000 (0.510 to 1.000)"],
        ["majority", "0.500 (0.150 to 0.850)"],
        ["TF-IDF", "1.000 (0.510 to 1.000)"],
    ]
    assert "the best prompt with its head and the seed prompt alone: +0.500 accuracy (" in result.stdout
    assert "Which answers to accept is not known: about 20 test rows with a confidence" in result.stdout
    assert f"Files in {out}: result.json, best_prompt.txt, predictions.jsonl, report.html" in result.stdout
    assert {path.name for path in out.iterdir()} >= FILES
    assert (out / "best_prompt.txt").read_text() != SEED
    assert json.loads((out / "result.json").read_text())["task"] == "animals"
    assert "<h1>animals: fake</h1>" in (out / "report.html").read_text()
    assert result.stderr.startswith(
        "At most 30 rows to search and 8 to test; 4 s or more if an answer takes a second.\n"
        f"Everything is kept in {out}: the same command goes on from there.\n"
        "search: "
    )
    assert re.search(
        r"\nBy the first answers, the model takes at most [\d mins]+; no price is known\.\n", result.stderr
    )
    assert "test: " in result.stderr
    assert client.closed


def test_json_is_the_result_and_nothing_else(write_task: WriteTask, fake: Fake) -> None:
    """With --json the result is printed, with the directory of the run."""
    fake(learns)
    result = done(run(write_task(), "--json", *BUDGET))
    record = json.loads(result.stdout)
    assert record["best_prompt"]["accuracy"]["estimate"] == 1.0
    assert record["seed_prompt"]["accuracy"]["estimate"] == 0.5
    assert record["directory"] == "runs/animals"
    assert "directory" not in json.loads(Path("runs/animals/result.json").read_text())


def test_a_search_without_out_is_kept_under_its_name(write_task: WriteTask, fake: Fake) -> None:
    """Without --out a run is named after its task; the same command goes on, another search gets a number."""
    client = fake(learns)
    task = write_task()
    first = done(run(task, *BUDGET))
    assert "Everything is kept in runs/animals: the same command goes on from there." in first.stderr
    assert "Files in runs/animals: result.json" in first.stdout
    asked = len(client.requests)
    done(run(task, *BUDGET))
    assert len(client.requests) == asked
    other = done(run(task, *BUDGET, "--seed", 1))
    assert "Files in runs/animals-2: result.json" in other.stdout
    Path("runs/animals-3").mkdir()
    Path("runs/animals-3/mine.txt").write_text("mine")
    done(command("evaluate")(task, "--out", "runs/animals-4"))
    more = done(run(task, *BUDGET, "--seed", 2))
    assert "Files in runs/animals-5: result.json" in more.stdout
    assert done(run(task, *BUDGET, "--seed", 1)).stdout.count("runs/animals-2") == 1


def test_names_of_tasks_become_names_of_directories(write_task: WriteTask, fake: Fake) -> None:
    """A task's name with other characters than letters and digits makes a directory below runs/."""
    fake(learns)
    toml = write_task().read_text().replace('name = "animals"', 'name = "../a b: c"')
    result = done(run(write_task(toml=toml), *BUDGET))
    assert "Files in runs/a-b-c: result.json" in result.stdout


def test_tables_fit_80_columns(write_task: WriteTask, fake: Fake) -> None:
    """No line of the table is wider than 80 columns, however many labels there are."""
    fake(learns)
    stdout = done(run(write_task(), *BUDGET)).stdout
    lines = stdout.splitlines()
    assert max(map(len, lines[: len(table(stdout)) + 2])) <= 78
    assert "score" not in lines[1]


# --- limits -------------------------------------------------------------------------------------


class Priced(FakeClient):
    """Model of which every call costs a cent."""

    async def complete(self, request: CompletionRequest) -> object:
        response = await super().complete(request)
        return {**cast("dict[str, Any]", response), "_hidden_params": {"response_cost": 0.01}}


def test_a_budget_ends_a_search_which_then_goes_on(
    write_task: WriteTask, use_model: Callable[..., Any]
) -> None:
    """--max-cost ends a search with exit code 1 and keeps its answers; the same command goes on from there."""
    client = use_model(Priced(["cat", "dog"], learns))
    task = write_task()
    stopped = run(task, *BUDGET, "--max-cost", 0.05)
    assert (stopped.exit_code, stopped.stdout) == (1, "")
    last = stopped.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"stopped: The budget max_cost of 0\.05 US dollars is used up; \d+ answers are kept in runs/animals: run the "
        r"same command again to go on\.",
        last,
    )
    asked = len(client.requests)
    assert 5 <= asked < 12
    whole = done(run(task, *BUDGET))
    assert "cost: $" in whole.stdout
    texts = [(one.messages[0]["content"], one.messages[-1]["content"]) for one in client.requests]
    assert len(set(texts)) == len(texts) > asked


def test_a_budget_without_a_price_ends_at_once(write_task: WriteTask, fake: Fake) -> None:
    """--max-cost ends after the first row where no price is known, and says what to set."""
    client = fake(learns)
    stopped = run(write_task(), *BUDGET, "--max-cost", 1)
    assert stopped.exit_code == 1
    assert "No price is known for this model, so max_cost cannot be kept" in stopped.stderr
    assert len(client.requests) <= 2


def test_a_deadline_ends_a_search_which_then_goes_on(
    write_task: WriteTask, use_model: Callable[..., Any]
) -> None:
    """--deadline gives up the rows under way, and keeps the answers before."""

    class Hanging(FakeClient):
        hangs = True

        async def complete(self, request: CompletionRequest) -> object:
            if self.hangs and len(self.requests) >= 6:
                await asyncio.Event().wait()
            return await super().complete(request)

    client = use_model(Hanging(["cat", "dog"], learns))
    task = write_task()
    stopped = run(task, *BUDGET, "--deadline", 0.5)
    assert stopped.exit_code == 1
    assert "stopped: The deadline of 0.5 seconds has passed; " in stopped.stderr
    client.hangs = False
    done(run(task, *BUDGET))


def test_cost_is_in_words_where_no_price_is_known(
    write_task: WriteTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that runs in this process costs nothing, and no price is no zero."""
    assert "cost: no price is known." in shown(monkeypatch, write_task, result_of(cost=None))
    assert "cost: $0.0123, and 3 calls without a known price." in shown(
        monkeypatch, write_task, result_of(unpriced_calls=3)
    )
    here = result_of(cost=None, in_process=True)
    assert "cost: none, the model runs here." in shown(monkeypatch, write_task, here)


def test_it_says_so_when_nothing_was_better(write_task: WriteTask, fake: Fake) -> None:
    """If no prompt is better, the output says that the seed prompt is kept."""
    fake(never_learns)
    result = done(run(write_task(), *BUDGET))
    assert "on the validation rows: the seed prompt is kept." in result.stdout
    assert "With so few validation rows, a gain below 0.33 accuracy will often be missed." in result.stdout
    assert "best prompt" not in result.stdout


def test_leaking_rows_warn(write_task: WriteTask, fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    """A train row that is also a test row is named in a warning."""
    fake(never_learns)
    test = [{"input": "train 0 meow", "answer": "cat"}, {"input": "new woof", "answer": "dog"}]
    done(run(write_task(test=test), *BUDGET))
    leak, few = [record.getMessage() for record in caplog.records if record.name == "calibrant"]
    assert "1 train row is also among the test rows, for example 'train 0 meow'" in leak
    assert "With 4 validation rows only a prompt that is better by about 0.33 accuracy" in few


# --- what it refuses ----------------------------------------------------------------------------

HEAD = 'name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\n'

BAD_INPUT: dict[str, tuple[dict[str, Any], str]] = {
    "task": ({"toml": HEAD + 'promt = "q"\n'}, "task.toml:4: unknown key 'promt': expected one of name, "),
    "row": (
        {"validation": b'{"input": "moo", "answer": "cow"}\n'},
        "validation.jsonl:1: answer 'cow' is not one of the 2 labels (cat, dog): correct the row or add",
    ),
    "no test rows": (
        {"toml": HEAD + '[data]\ntrain = "train.jsonl"\nvalidation = "validation.jsonl"\n'},
        "Task 'n' has no 'test' rows: name a file for it under [data]; or add rows",
    ),
}


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_leaves_nothing(write_task: WriteTask, fake: Fake, tmp_path: Path, kind: str) -> None:
    """Bad input exits with 2; no directory is made and no model called."""
    client = fake(learns)
    changes, message = BAD_INPUT[kind]
    task = write_task(directory=tmp_path / "task", **changes)
    before = sorted(tmp_path.rglob("*"))
    result = run(task, "--out", tmp_path / "run", *BUDGET)
    assert message in refusal(result)
    assert (client.requests, sorted(tmp_path.rglob("*"))) == ([], before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--max-metric-calls", 5, "--minibatch-size", 12),
            "Expected max_metric_calls (--max-metric-calls) >= 32, got 5: one accepted proposal takes two",
        ),
        (("--proposer", "magic"), "Expected proposer 'exemplar', 'reflection' or a callable, got 'magic'."),
        (("--proposer", "reflection"), "Expected a reflection model for proposer='reflection'"),
    ],
)
def test_options_that_cannot_work_are_bad_input(
    write_task: WriteTask, fake: Fake, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    """Options out of range exit with 2, and no directory is made."""
    fake(learns)
    result = run(write_task(), *arguments, "--out", tmp_path / "run")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_file_for_out_is_kept(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """An --out that is a file or holds other files is refused, and the files stay."""
    fake(learns)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for name, message in (("file", "expected a directory"), ("full", "expected an empty directory")):
        assert message in refusal(run(write_task(), *BUDGET, "--out", tmp_path / name))
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("out", [True, False])
def test_ctrl_c_says_what_is_kept(
    write_task: WriteTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, out: bool
) -> None:
    """Ctrl-C exits with 130, and the message says that the same command goes on."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(optimization, "optimize", interrupt)
    result = run(write_task(), *(("--out", tmp_path / "run") if out else ()))
    said = "interrupted: run the same command again to go on.\n"
    assert (result.exit_code, result.stderr) == (130, said)


# --- the table ----------------------------------------------------------------------------------


def result_of(**changes: Any) -> OptimizationResult:
    """Return a result without known metrics."""
    score = PromptScore(
        prompt="p",
        validation_score=0.5,
        rows=3,
        outcomes={"error": 3},
        accuracy=None,
        mean_probability=None,
    )
    arguments: dict[str, Any] = {
        "task": "animals [/bold] [test]",
        "model": "fake",
        "seed": 0,
        "proposer": "exemplar",
        "seed_prompt": score,
        "best_prompt": score,
        "best_candidate": {"system_prompt": "p"},
        "improved": False,
        "comparison": None,
        "metric_calls": 12,
        "proposals": 2,
        "accepted": 0,
        "completions": 10,
        "completions_without_logprobs": 4,
        "cost": 0.01234,
        "seconds": 5.4,
        **changes,
    }
    return OptimizationResult(**arguments)


def shown(monkeypatch: pytest.MonkeyPatch, write_task: WriteTask, result: OptimizationResult) -> str:
    """Return what the command prints for a result."""

    def optimize(*_: object, **__: object) -> OptimizationResult:
        return result

    monkeypatch.setattr(optimization, "optimize", optimize)
    ended = run(write_task())
    assert ended.exit_code in {0, 1}, ended.output  # 1 where all test rows failed
    return ended.stdout


def test_what_is_not_known_is_not_invented(write_task: WriteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing numbers are dashes; failures, calls and cost are stated."""
    text = shown(monkeypatch, write_task, result_of())
    assert table(text) == [["seed prompt", "-", "-", "-", "-"]]
    assert "3 test answers failed and count neither way." in text
    empty = replace(
        result_of().seed_prompt, failures=("fake: broken response: it holds no text and no refusal",)
    )
    told = shown(monkeypatch, write_task, result_of(seed_prompt=empty, best_prompt=empty))
    assert (
        "3 test answers failed (fake: broken response: it holds no text and no refusal) and count neither way."
        in told
    )
    assert "4 of 10 completions of the search came without usable log-probabilities" in text
    assert (
        "12 rows asked in the search, 2 prompts proposed and 0 of them promising, 5 s; cost: $0.0123." in text
    )
    assert "Files" not in text


def test_a_collapsed_prompt_is_shown_as_such(write_task: WriteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collapsed prompt shows its macro F1 and labels, and a warning about what the user gets below the table."""
    few = AnsweredLabels(answered=2, total=8, present=8, found=2, share=0.25)
    score = replace(result_of().seed_prompt, macro_f1=0.07, answered_labels=few)
    validated = ValidatedCandidate(
        candidate={}, score=0.5, accuracy=0.2, macro_f1=0.07, credit=None, answered_labels=few
    )
    found = result_of(
        seed_prompt=score, best_prompt=score, validated=(validated, validated), chosen=1, accepted=1
    )
    text = shown(monkeypatch, write_task, found)
    assert table(text)[-1] == ["final: best prompt", "-", "0.070", "2 of 8", "-"]
    warning = "warning: Collapsed: of the 8 labels that occur in these rows only 2 were ever answered."
    assert text.count(warning) == 1


def test_low_label_mass_is_reported(write_task: WriteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remark on low label mass counts the test rows concerned."""
    result = result_of()
    best = replace(result.best_prompt, rows=9, rows_with_low_label_mass=5)
    figures: dict[str, Any] = dict.fromkeys(("accuracy", "macro_f1", "credit", "answered_labels"))
    prompt = ValidatedCandidate(candidate={"system_prompt": "p"}, score=0.5, **figures)
    found = replace(result, validated=(prompt, prompt), chosen=1, best_prompt=best)
    text = shown(monkeypatch, write_task, found)
    assert "The model wanted to write something else on 5 of 6 rows" in " ".join(text.split())


def test_brackets_in_names_are_not_markup(write_task: WriteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets in the task's name are printed as they are."""
    assert "animals [/bold] [test]: 3 test rows, fake" in shown(monkeypatch, write_task, result_of())


# --- progress -----------------------------------------------------------------------------------


def test_plain_progress_is_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress lines come at the start of a phase, every ten seconds and at the end."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    with progress_module.ProgressDisplay() as display:
        for calls in range(1, 25):
            display(Progress(calls=calls, total=20, best_score=0.5, cost=0.25))
            now[0] += 1
        display(Progress(phase="test", calls=1, total=4, proposals=3, accepted=1))
        display(Progress(phase="test", calls=4, total=4, proposals=3, accepted=1))
    assert capsys.readouterr().err.splitlines() == [
        *(f"search: {calls}/20 rows, $0.2500" for calls in (1, 11, 21)),
        "test: 1/4 rows",
        "test: 4/4 rows",
    ]


def test_progress_that_never_came_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A display without progress prints nothing."""
    with progress_module.ProgressDisplay():
        pass
    assert capsys.readouterr().err == ""


def test_each_phase_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase has a bar, and calls beyond the budget raise its total."""
    monkeypatch.setattr(progress_module, "Console", partial(Console, force_terminal=True, width=120))
    with progress_module.ProgressDisplay() as display:
        display(Progress(calls=22, total=20, best_score=0.5))
        display(Progress(phase="test", calls=3, total=4, best_score=0.5))
    text = capsys.readouterr().err
    for said in ("22/22", "3/4"):
        assert said in text


def test_a_search_shows_what_is_left_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 80 columns nothing of a bar is cut off: rows, elapsed time, the time left, and the note below."""
    monkeypatch.setattr(progress_module, "Console", partial(Console, force_terminal=True, width=80))
    known = Progress(total=600, search_rows=600, test_rows=800, directory=Path("runs/animals"))
    with progress_module.ProgressDisplay() as display:
        display(known)
        asked = replace(known, calls=100, proposals=12, accepted=3, cost=1.0)
        display(replace(asked, session_rows=100, session_cost=1.0, seconds=10.0))
    with progress_module.ProgressDisplay() as display:
        display(replace(asked, phase="test", calls=700, total=800, session_rows=1000, seconds=100.0))
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "At most 600 rows to search and 800 to test." in text
    assert "By the first answers, the model takes at most 2 min 10 s, and about $13.0000." in text
    assert re.search(r"100/600 rows 0:00:\d\d at most 2 min 10 s left\s", text)
    assert "  12 prompts proposed, 3 promising, $1.0000" in text
    assert re.search(r"700/800 rows 0:00:\d\d 10 s left\s", text)
    assert "…" not in text
