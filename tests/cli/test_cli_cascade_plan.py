"""Tests of ``calibrant cascade``: plan, replay and run, with files, exit codes and bad input."""

from __future__ import annotations

import json
import re
import shutil
import signal
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrant.cascade import CascadePlan, KeepPolicy, KeepRule, plan_cascade
from calibrant.cli import app
from calibrant.testing import FakeClient
from command_line import command, done, recorded_rows, refusal, write_rows

N = 400


def write(path: Path, correct: Any, confidence: Any, **changes: Any) -> Path:
    """Write a run whose rows are right as given; None is a row that failed."""
    return write_rows(path, [{**row, **changes} for row in recorded_rows(correct, confidence)])


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Return runs of a model that knows when it is right, and of one that nearly always is."""
    rng = np.random.default_rng(0)
    confidence = rng.random(N) ** 0.3
    small: list[Any] = (rng.random(N) < confidence).tolist()
    small[7] = None
    large = (rng.random(N) < 0.97).tolist()
    return write(tmp_path / "small", small, confidence), write(tmp_path / "large", large, np.ones(N))


cascade = command("cascade")
COSTS = ("--small-cost", 1, "--large-cost", 50)


def test_a_plan_is_printed_and_written_with_its_picture(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """The plan is printed with its failed rows and written as JSON, SVG and a page without links."""
    out = tmp_path / "out" / "plan"
    result = done(cascade("plan", *runs, *COSTS, "--epsilon", 0.05, "--out", out))
    assert "Certified: its accuracy is within 0.05 of always using large" in result.stdout
    assert "1 failed with a transport error" in result.stdout
    plan = CascadePlan.load(out)
    assert plan.certified
    assert plan.rows.paired == N - 1
    svg = ET.fromstring((out / "plan.svg").read_text())  # noqa: S314  (our own file)
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    page = (out / "plan.html").read_text()
    assert plan.policy.name in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page


def test_a_plan_says_which_share_of_equally_sure_answers_it_keeps(tmp_path: Path) -> None:
    """The output, the page and a replay name the share of tied answers that the plan keeps."""
    right = [row % 10 != 0 for row in range(N)]
    runs = [write(tmp_path / "small", right, np.ones(N)), write(tmp_path / "large", [True] * N, np.ones(N))]
    out = tmp_path / "out"
    result = cascade("plan", *runs, *COSTS, "--epsilon", 0.05, "--key", "other", "--out", out)
    plan = CascadePlan.load(out)
    assert (plan.key, plan.threshold, plan.tied_confidence) == ("other", None, 1.0)
    assert f"threshold 1 ({plan.tied_share:.1%} of those tied at it)" in result.stdout
    told = f"Of the answers of small with confidence 1, {plan.tied_share:.1%} are kept"
    assert told in result.stdout
    assert told in (out / "plan.html").read_text()
    assert "Key of equal confidences" in (out / "plan.html").read_text()
    replayed = cascade("replay", out, *runs)
    assert f"({plan.tied_share:.1%} of those tied at it)" in replayed.stdout


def test_the_share_of_a_later_model_is_told_and_kept(tmp_path: Path) -> None:
    """Each model with tied answers has a sentence; its kept share is within four standard deviations."""
    rng = np.random.default_rng(1)
    small, middle = rng.random(N) < 0.88, rng.random(N) < 0.94
    tied = [np.where(rng.random(N) < share, 1.0, rng.uniform(0.5, 0.99, N)) for share in (0.7, 0.8)]
    runs = [
        write(tmp_path / "small", small.tolist(), tied[0]),
        write(tmp_path / "middle", middle.tolist(), tied[1]),
        write(tmp_path / "large", [True] * N, np.ones(N)),
    ]
    out = tmp_path / "out"
    result = cascade("plan", *runs, *COSTS, "--between-cost", 5, "--epsilon", 0.05, "--out", out)
    first, second = CascadePlan.load(out).policy.rules
    assert first.splits
    assert second.splits
    for name, rule in (("small", first), ("middle", second)):
        told = f"Of the answers of {name} with confidence 1, {rule.tied_share:.1%} are kept, chosen by "
        assert told in result.stdout
    ranks = CascadePlan.load(out).policy.ranks([f"text {row}" for row in range(N)])
    reaching = (tied[1] == 1.0) & ~first.accepts(tied[0], ranks[0])
    kept, share = second.accepts(tied[1], ranks[1])[reaching], second.tied_share
    assert abs(kept.sum() - reaching.sum() * share) < 4 * np.sqrt(reaching.sum() * share * (1 - share))


def test_json_holds_the_plan(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """The printed JSON equals plan.json without the file's kind and version."""
    result = cascade("plan", *runs, *COSTS, "--epsilon", 0.05, "--out", tmp_path / "out", "--json")
    printed = json.loads(result.stdout)
    stored = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert {**printed, "kind": "cascade plan", "version": 1} == stored


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--epsilon", 0.05), 0),
        (("--epsilon", 0.0001), 3),
        (("--budget", 30, "--epsilon", 0.0001), 3),
        (("--target-accuracy", 0.9), 3),
    ],
)
def test_a_missing_certificate_exits_with_3(
    runs: tuple[Path, Path], tmp_path: Path, options: tuple[object, ...], code: int
) -> None:
    """--require-certified exits with 3 if there is no certificate, and the plan is written."""
    out = tmp_path / "out"
    result = cascade("plan", *runs, *COSTS, *options, "--require-certified", "--out", out)
    assert result.exit_code == code, result.output
    assert ("--require-certified" in result.stderr) == (code == 3)
    assert (out / "plan.json").exists()
    done(cascade("plan", *runs, *COSTS, *options, "--out", out))


def test_a_plan_allows_for_earlier_certificates_of_its_rows(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """Another epsilon is another test of the same rows, and the same plan again is none."""
    told = []
    for epsilon in (0.05, 0.05, 0.04):
        result = done(cascade("plan", *runs, *COSTS, "--epsilon", epsilon, "--out", tmp_path / "out"))
        told.append(CascadePlan.load(tmp_path / "out").certificate.delta)
    assert told == pytest.approx([0.1, 0.1, 0.2])
    assert "Earlier certificates of these rows may be wrong with probability 0.1" in result.stdout


def test_plans_of_rows_that_were_asked_too_often_promise_nothing(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Where all certificates together would fail more often than not, a plan has none."""
    for epsilon in (0.05, 0.06):
        words = ("plan", *runs, *COSTS, "--delta", 0.3, "--epsilon", epsilon)
        result = done(cascade(*words, "--out", tmp_path / "out"))
    assert not CascadePlan.load(tmp_path / "out").certified
    told = "Not certified, as other certificates were asked of these rows before (observed loss"
    assert told in result.stdout
    assert "do not prove" not in result.stdout
    assert told in CascadePlan.load(tmp_path / "out").describe_certificate()
    assert "record runs of fresh rows" in result.stdout


def test_costs_come_from_the_runs_where_they_hold_them(tmp_path: Path) -> None:
    """Runs with recorded costs are planned without cost options."""
    small = write(tmp_path / "a", [True] * 20, [0.9] * 20, cost=0.001)
    large = write(tmp_path / "b", [True] * 20, [0.9] * 20, cost=0.02)
    done(cascade("plan", small, large, "--out", tmp_path / "out"))
    assert [model.cost for model in CascadePlan.load(tmp_path / "out").models] == pytest.approx([0.001, 0.02])


def test_a_replay_of_a_plan_is_its_price_on_these_rows(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """A replay of a plan gives the same accuracy and cost as its threshold and costs given by hand."""
    cascade("plan", *runs, *COSTS, "--epsilon", 0.05, "--out", tmp_path / "out")
    threshold = CascadePlan.load(tmp_path / "out").threshold
    by_plan = json.loads(cascade("replay", tmp_path / "out", *runs, "--json").stdout)
    costs = ("--cost", 1, "--cost", 50)
    by_hand = json.loads(cascade("replay", *runs, "--threshold", repr(threshold), *costs, "--json").stdout)
    assert (by_plan["accuracy"], by_plan["cost"]) == (by_hand["accuracy"], by_hand["cost"])
    text = done(cascade("replay", tmp_path / "out", *runs))
    assert "answered by small" in text.stdout
    assert "minus large alone" in text.stdout


def test_a_run_that_ended_early_is_planned_with_a_warning(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """The plan uses the rows of an unfinished run."""
    (runs[0] / "run.json").write_text(
        json.dumps({"schema_version": 1, "prompt": "p", "user_template": None, "model": "m"})
    )
    result = done(cascade("plan", *runs, *COSTS, "--out", tmp_path / "out"))
    assert "not finished" in result.stderr


def test_a_plan_with_a_threshold_beside_it_is_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """A plan together with --threshold is refused."""
    done(cascade("plan", *runs, *COSTS, "--out", tmp_path / "out"))
    assert "Expected a plan or --threshold, got both" in refusal(
        cascade("replay", tmp_path / "out", *runs, "--threshold", 0.5)
    )


def test_a_first_model_that_costs_more_is_warned_of(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """A first model that costs more gives a warning to name the runs from small to large."""
    wrong_way = ("--small-cost", 50, "--large-cost", 1)
    result = done(cascade("plan", *runs, *wrong_way, "--out", tmp_path / "out"))
    assert "name the runs from small to large" in result.stderr
    assert cascade("plan", *runs, *COSTS, "--out", tmp_path / "out").stderr == ""


def test_numbers_say_what_their_intervals_are(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """Output and page name the 95 % level; the last model minus itself is 0 with an interval of width 0."""
    result = cascade("plan", *runs, *COSTS, "--out", tmp_path / "out")
    assert "95 % intervals" in result.stdout
    assert "+0.0000 (+0.0000 to +0.0000)" in result.stdout.splitlines()[-2]
    assert "95 % interval" in (tmp_path / "out" / "plan.html").read_text()
    replay = cascade("replay", *runs, "--threshold", 0.5, "--cost", 1, "--cost", 2)
    assert "95 %" in replay.stdout


def test_three_runs_make_a_chain(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """The plan orders the models from small to large."""
    small, large = runs
    between = Path(shutil.copytree(small, tmp_path / "between"))
    options = (*COSTS, "--between-cost", 10, "--epsilon", 0.05, "--out", tmp_path / "out")
    done(cascade("plan", small, between, large, *options))
    assert len(CascadePlan.load(tmp_path / "out").models) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "SMALL", *COSTS, "--out", "OUT"), "at least two models"),
        (("plan", "SMALL", "LARGE", "--out", "OUT"), "cost of an answer"),
        (("plan", "SMALL", "OUT/none", *COSTS, "--out", "OUT"), "no such file"),
        (
            ("plan", "SMALL", "LARGE", *COSTS, "--certify-on", "none", "--out", "OUT"),
            "certify_on to be one of all, half, got 'none': choose one of them.",
        ),
        (
            ("replay", "--threshold", 3, "--cost", 1, "--cost", 2, "SMALL", "LARGE"),
            "a threshold in",
        ),
        (("replay", "OUT/plan.json", "SMALL", "LARGE"), "cannot be read"),
        (("replay", "SMALL", "LARGE"), "Expected a plan before the runs, or --threshold"),
        (("plan", "SMALL", "SMALL", *COSTS, "--out", "OUT"), "twice"),
        (("plan", "SMALL", "LARGE", *COSTS, "--between-cost", 3, "--out", "OUT"), "last, 0, got 1"),
        (("run", "OUT/plan.json", "task.toml", "--text", "x"), "cannot be read"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(
    runs: tuple[Path, Path],
    tmp_path: Path,
    arguments: tuple[object, ...],
    message: str,
) -> None:
    """Bad input exits with 2, and its message begins with "error: "."""
    places = {"SMALL": str(runs[0]), "LARGE": str(runs[1]), "OUT": str(tmp_path / "out")}
    result = cascade(
        *(re.sub("SMALL|LARGE|OUT", lambda found: places[found[0]], str(one)) for one in arguments)
    )
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("error: ")


def test_runs_of_other_rows_are_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """The message names the first row that differs."""
    short = write(tmp_path / "short", [True] * (N - 1), [0.9] * (N - 1))
    message = refusal(cascade("plan", runs[0], short, *COSTS, "--out", tmp_path / "out"))
    assert f"text {N - 1}" in message or f"'{N - 1}'" in message


def task(path: Path) -> Path:
    """Write a task file without rows."""
    path.write_text('name = "t"\nlabels = ["cat", "dog"]\nfield = "c"\nprompt = "Which?"\n')
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--text or --file to classify, or --out"),
        (("--text", "x", "--out", "o"), "got both"),
        (("--text", "x"), "a task file for each of the 2 models"),
        (("--text", "x", "--model", "a"), "--model once for each of the 2 models"),
    ],
)
def test_a_plan_is_run_with_all_its_models(
    runs: tuple[Path, Path], tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    """A missing task or model is named in the error."""
    cascade("plan", *runs, *COSTS, "--epsilon", 0.05, "--out", tmp_path / "out")
    assert message in refusal(cascade("run", tmp_path / "out", task(tmp_path / "task.toml"), *options))


@pytest.fixture
def planned(
    tmp_path: Path, use_model: Callable[..., Any], write_task: Callable[..., Path]
) -> tuple[Path, Path]:
    """Return a plan that keeps the small model's "cat" answers, and the task of both models."""
    labels = ["cat", "dog"]
    fakes = {
        "small": FakeClient(labels, {"meow": ("cat", 0.9), "woof": ("cat", 0.6)}, name="small"),
        "large": FakeClient(labels, {"meow": ("cat", 0.9), "woof": ("dog", 0.9)}, name="large"),
    }

    for name, fake in fakes.items():
        use_model(fake, name)
    path = write_task()
    runs = []
    for name in fakes:
        out = tmp_path / name
        found = CliRunner().invoke(
            app, ["evaluate", str(path), "--model", name, "--no-cache", "--out", str(out)]
        )
        assert found.exit_code == 0, found.output
        runs.append(out)
    plan = plan_cascade(*runs, small_cost=1, large_cost=50)
    rule = KeepRule.from_threshold(0.8)
    policy = KeepPolicy(name="threshold 0.8", members=(0, 1), rules=(rule,))
    replace(plan, policy=policy).save(tmp_path / "plan.json")
    return tmp_path / "plan.json", path


MODELS = ("--model", "small", "--model", "large")


def test_texts_are_classified_as_planned(planned: tuple[Path, Path]) -> None:
    """A sure answer of the small model is final; other texts are answered by the large one."""
    result = done(cascade("run", *planned, *MODELS, "--text", "meow", "--text", "woof"))
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(line[0], line[2]) for line in lines] == [("cat", "small"), ("dog", "large")]
    found = cascade("run", *planned, *MODELS, "--text", "meow", "--text", "woof", "--json")
    steps = [[step["model"] for step in json.loads(line)["steps"]] for line in found.stdout.splitlines()]
    assert steps == [["small"], ["small", "large"]]


def test_labelled_rows_are_evaluated_as_planned(planned: tuple[Path, Path], tmp_path: Path) -> None:
    """The run writes its rows, prints accuracy and escalations, and accepts a task for each model."""
    out = tmp_path / "evaluated"
    result = done(cascade("run", *planned, *MODELS, "--out", out))
    assert re.search(r"accuracy, all rows +1\.000 ", result.stdout)
    assert "escalated: 2 (50.0 %) of the rows" in result.stdout
    assert len((out / "predictions.jsonl").read_text().splitlines()) == 4
    plan, task_file = planned
    twice = cascade("run", plan, task_file, task_file, *MODELS, "--out", out, "--json")
    assert json.loads(twice.stdout)["rows"] == 4
    wrong = cascade("run", *planned, *MODELS, "--out", out, "--split", "all")
    assert (wrong.exit_code, "--split to be one of" in wrong.stderr) == (2, True)
    both = cascade("run", *planned, *MODELS, "--out", out, "--split", "test", "--file", task_file)
    assert (both.exit_code, "--split or --file, got both" in both.stderr) == (2, True)


def test_an_interrupted_run_is_kept_and_goes_on(
    planned: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C finishes the rows under way, and the same command answers the others."""
    healthy = FakeClient.complete

    async def pressing(self: FakeClient, request: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(FakeClient, "complete", healthy)
        return await healthy(self, request)

    monkeypatch.setattr(FakeClient, "complete", pressing)
    arguments = ("run", *planned, *MODELS, "--out", tmp_path / "out")
    first = cascade(*arguments)
    assert first.exit_code in {0, 130}, first.output
    assert "interrupted: finishing the rows under way" in first.stderr
    done(cascade(*arguments))
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 4


def test_only_the_first_rows_are_evaluated(planned: tuple[Path, Path], tmp_path: Path) -> None:
    """--max-rows limits the rows that are evaluated."""
    result = cascade("run", *planned, *MODELS, "--max-rows", 2, "--out", tmp_path / "out", "--json")
    assert json.loads(result.stdout)["rows"] == 2


def test_models_the_plan_was_not_made_for_are_refused(planned: tuple[Path, Path]) -> None:
    """Models in another order than the plan's are refused."""
    assert "This plan was made for something else" in refusal(
        cascade("run", *planned, "--model", "large", "--model", "small", "--text", "meow")
    )
