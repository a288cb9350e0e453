"""Tests of commands on a task with a cascade, and of what they report of every model."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from bundle_runs import run
from calibrant.assembly import cascade_settings, open_classifier
from calibrant.cascade import Cascade
from calibrant.core import CompletionRequest, ConfigurationError, Example, ProviderError, Task
from calibrant.inference import Classifier
from calibrant.metrics import wilson_interval
from calibrant.optimization import optimize
from calibrant.testing import FakeClient, fake_response
from command_line import prediction_rows
from named_models import LABELS, RULES

WriteTask = Callable[..., Path]
Opened = dict[str, list[FakeClient]]
pytestmark = pytest.mark.usefixtures("opened")

SECTION = """
[cascade]
confidence_method = "label_probability"
threshold = {threshold}
[[cascade.models]]
name = "small"
cost = 0
[[cascade.models]]
name = "large"
"""
PASSING = {"attempts", "latency_seconds"}
# The small model is sure of what meows, the large one of everything; the last row is mislabelled.
ROWS = [
    {"input": "1 meow", "answer": "cat"},
    {"input": "2 meow", "answer": "cat"},
    {"input": "3 woof", "answer": "dog"},
    {"input": "4 woof", "answer": "dog"},
    {"input": "5 meow", "answer": "dog"},
]


@pytest.fixture
def task(write_task: WriteTask, opened: Opened) -> Path:
    """Return a task with a cascade of two models."""
    assert opened == {}
    return write_task(extra=SECTION.format(threshold=0.9), test=ROWS)


def asked(opened: Opened) -> list[int]:
    """Return how many calls each model got, in all."""
    return [sum(len(fake.requests) for fake in opened.get(name, [])) for name in ("small", "large")]


def lasting(directory: Path) -> list[dict[str, Any]]:
    """Return the rows without what depends on the moment."""
    rows = prediction_rows(directory)
    for row in rows:
        row["steps"] = [{k: v for k, v in step.items() if k not in PASSING} for step in row["steps"]]
    return [{name: row[name] for name in row if name not in PASSING} for row in rows]


# --- classify -----------------------------------------------------------------------------------


def test_classify_prints_the_sure_answer(task: Path, opened: Opened) -> None:
    """`classify` prints one line for each text, with the answer of the model that was sure."""
    result = run("classify", task, "--text", "meow", "--text", "woof")
    assert result.stdout == "cat\t0.950\tmeow\ndog\t0.970\twoof\n"
    assert asked(opened) == [2, 1]
    assert all(fake.closed for fakes in opened.values() for fake in fakes)


def test_classify_prints_missing_evidence(write_task: WriteTask) -> None:
    """`classify` prints the address of a verifier that is down."""
    section = SECTION.replace("label_probability", "automix_entailment").format(threshold=0.5)
    verifier = (
        'verifier_server_url = "http://127.0.0.1:9"\nverifier_timeout_seconds = 1\n\n[[cascade.models]]'
    )
    task = write_task(extra=section.replace("[[cascade.models]]", verifier, 1))
    result = run("classify", task, "--text", "woof")
    assert "not accepted: nothing says how sure the models are: " in result.stdout
    assert "127.0.0.1:9" in result.stdout


GRADED = SECTION.replace("label_probability", "self_verify").format(threshold=0.0)


def shown(opened: Opened) -> list[str]:
    """Return the contexts that the small model was shown when it graded an answer, in order."""
    messages = [one.messages[-1]["content"] for fake in opened["small"] for one in fake.requests]
    return sorted(
        text.partition('"context": ')[2].partition(",\n")[0] for text in messages if '"context": ' in text
    )


@pytest.mark.parametrize(
    ("section", "options", "expected"),
    [
        ("", [], ["null", "null"]),
        ('context = "Cats purr."', [], ['"Cats purr."', '"Cats purr."']),
        ("", ["--context", "Dogs bark."], ['"Dogs bark."', '"Dogs bark."']),
        ("", ["--context-column", "passage"], ['"It hisses."', "null"]),
        (
            'context = "Cats purr."',
            ["--context-column", "passage", "--context", "Dogs bark."],
            ['"Dogs bark."', '"It hisses."'],
        ),
    ],
)
@pytest.mark.parametrize("command", ["classify", "evaluate"])
def test_answers_are_verified_with_their_context(
    write_task: WriteTask,
    opened: Opened,
    tmp_path: Path,
    command: str,
    section: str,
    options: list[str],
    expected: list[str],
) -> None:
    """A context comes from the rows' column, else from the command line, else from the task file."""
    rows = [
        {"input": "a meow", "answer": "cat", "passage": "It hisses."},
        {"input": "woof", "answer": "dog", "passage": ""},
    ]
    graded = GRADED.replace("[cascade]", f"[cascade]\n{section}", 1)
    task = write_task(extra=graded, test=rows)
    where = (
        ["--file", task.parent / "test.jsonl"]
        if command == "classify"
        else ["--out", tmp_path / "out", "--no-cache"]
    )
    run(command, task, *where, *options)
    assert shown(opened) == expected


def test_a_task_file_names_the_context_column(write_task: WriteTask, opened: Opened, tmp_path: Path) -> None:
    """A file without the context column, or with another context, exits with 2."""
    rows = [{"input": "a meow", "answer": "cat", "passage": "It hisses."}]
    task = write_task(extra=GRADED, test=rows)
    task.write_text(task.read_text().replace("[data]", '[data]\ncontext_column = "passage"'))
    run("evaluate", task, "--out", tmp_path / "out", "--no-cache")
    assert shown(opened) == ['"It hisses."']
    (task.parent / "test.jsonl").write_text('{"input": "a meow", "answer": "cat", "passage": "It spits."}\n')
    changed = run("evaluate", task, "--out", tmp_path / "out", "--no-cache", code=2)
    assert "another text, answer or context" in changed.stderr
    (task.parent / "test.jsonl").write_text('{"input": "a meow", "answer": "cat"}\n')
    found = run("evaluate", task, "--out", tmp_path / "other", "--no-cache", code=2)
    assert "expected text in 'passage'" in found.stderr


def test_an_unused_context_is_refused(write_task: WriteTask) -> None:
    """A context exits with 2 on the command line and in the task file if the method reads none."""
    task = write_task(extra=SECTION.format(threshold=0.9))
    result = run("classify", task, "--text", "woof", "--context", "Dogs bark.", code=2)
    assert "'label_probability': leave them out" in result.stderr
    task = write_task(extra=SECTION.format(threshold=0.9).replace("[cascade]", '[cascade]\ncontext = "x"', 1))
    result = run("classify", task, "--text", "woof", code=2)
    assert "cascade.context: Input should come with" in result.stderr


def test_classify_marks_unaccepted_answers(write_task: WriteTask) -> None:
    """`classify` marks an answer that no model was sure of as not accepted."""
    task = write_task(extra=SECTION.format(threshold=0.98))
    result = run("classify", task, "--text", "woof")
    assert result.stdout == "dog\t0.970\twoof\t(not accepted: no model was sure enough)\n"
    record = json.loads(run("classify", task, "--text", "woof", "--json").stdout)
    assert record["accepted"] is False
    assert [step["verdict"] for step in record["steps"]] == ["escalated", "escalated"]


def test_a_mistake_in_the_section_is_bad_input(write_task: WriteTask, opened: Opened) -> None:
    """A wrong key in [cascade] exits with 2 and its line before any model is opened."""
    result = run("classify", write_task(extra=SECTION.format(threshold=2)), "--text", "woof", code=2)
    assert re.search(
        r"task.toml:13: cascade.threshold: Input should be less than or equal to 1", result.stderr
    )
    assert opened == {}


def test_a_batch_takes_one_model(task: Path, tmp_path: Path, opened: Opened) -> None:
    """`batch submit` of a task with a cascade exits with 2."""
    result = run("batch", "submit", task, "--out", tmp_path / "batch", code=2)
    assert "Expected a task with one model, got the cascade of task 'animals'" in result.stderr
    assert opened == {}


# --- evaluate -----------------------------------------------------------------------------------


def test_evaluate_reports_every_model(task: Path, tmp_path: Path, opened: Opened) -> None:
    """`evaluate` shows the same figures of every model on the terminal and in the report."""
    out = tmp_path / "out"
    result = run("evaluate", task, "--out", out, "--no-cache")
    table = [re.split(r" {2,}", line) for line in result.stdout.splitlines()]
    assert table[0] == ["animals: cascade(small -> large), 5 rows"]
    start = table.index(["cascade", "asked", "accepted", "accuracy of accepted", "calls", "cost"])
    assert table[start + 1 : start + 5] == [
        ["small", "5 (100.0 %)", "3 (60.0 %)", "0.667 (0.208 to 0.939)", "5", "$0"],
        ["large", "2 (40.0 %)", "2 (40.0 %)", "1.000 (0.342 to 1.000)", "2", "-"],
        ["all models", "5 (100.0 %)", "5 (100.0 %)", "0.800 (0.376 to 0.964)", "7", "$0"],
        ["escalated: 2 (40.0 %) of the rows"],
    ]
    assert "not accepted, yet answered" not in result.stdout
    assert asked(opened) == [5, 2]

    found = json.loads((out / "metrics.json").read_text())["cascade"]
    wilson = wilson_interval(4, 5)
    assert found["accuracy"]["lower"] == pytest.approx(wilson.lower)
    counted = {"rows": 5, "accepted": 5, "correct": 4, "escalated": 2, "escalations": 2, "calls": 7}
    assert {key: found[key] for key in counted} == counted
    assert [model["model"] for model in found["models"]] == ["small", "large"]

    run("report", out)
    page = (out / "report.html").read_text()
    row = re.search(r'<tr><th scope="row" dir="auto">small</th>(.*?)</tr>', page)
    assert row is not None
    assert re.findall(r'<td class="number">(.*?)\s*</td>', row[1]) == [
        "5", "3", "0.600", "0.667", "0.208 to 0.939", "0", "0", "5", "$0.0000",
    ]  # fmt: skip
    assert "5 of 5 rows (100.0 %) have an answer that was sure enough" in page


@pytest.mark.parametrize(
    ("healthy", "broken"),
    [
        ('"verdict": "accepted"', '"verdict": "maybe"'),
        ('"attempts": 1}]', '"attempts": null}]'),
        ('"steps": [', '"steps": [null, '),
        ('"steps": [{', '"steps": "one", "others": [{'),
    ],
)
def test_a_broken_step_is_named_with_its_line(task: Path, tmp_path: Path, healthy: str, broken: str) -> None:
    """A broken step in predictions.jsonl makes `report` and `evaluate` exit with 2 and its line."""
    out = tmp_path / "out"
    run("evaluate", task, "--out", out, "--no-cache")
    path = out / "predictions.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert healthy in lines[1]
    path.write_text("".join([lines[0], lines[1].replace(healthy, broken), *lines[2:]]))
    reported = run("report", out, code=2)
    assert "predictions.jsonl:2: expected the steps or parts of an answer" in reported.stderr
    resumed = run("evaluate", task, "--out", out, "--no-cache", code=2)
    assert "predictions.jsonl:2: expected the line of a row, got one that does not fit" in resumed.stderr


def test_cached_rows_count_no_calls(task: Path, tmp_path: Path, opened: Opened) -> None:
    """Rows from the cache count as no call, in total and for each model."""
    cache = ("--cache", tmp_path / "cache.sqlite")
    run("evaluate", task, "--out", tmp_path / "first", *cache)
    result = run("evaluate", task, "--out", tmp_path / "second", *cache)
    assert asked(opened) == [5, 2]
    found = json.loads((tmp_path / "second" / "metrics.json").read_text())
    assert (found["calls"], found["cascade"]["calls"]) == (0, 0)
    assert "0 calls, 5 rows without a call" in result.stdout


def test_evaluate_counts_unaccepted_rows(write_task: WriteTask, tmp_path: Path) -> None:
    """`evaluate` shows the number and the accuracy of answered rows that were not accepted."""
    task = write_task(extra=SECTION.format(threshold=0.98), test=ROWS)
    out = tmp_path / "out"
    result = run("evaluate", task, "--out", out, "--no-cache")
    interval = wilson_interval(2, 2)
    assert (
        f"not accepted, yet answered: 2 (40.0 %) of the rows, accuracy 1.000 ({interval.lower:.3f} to 1.000)"
        in result.stdout.splitlines()
    )
    run("report", out)
    assert (
        "Of the 2 answered although no model was sure enough, 100.0 % are right (0.342 to 1.000)."
        in (out / "report.html").read_text()
    )


def test_evaluate_names_models_without_an_answer(
    task: Path, tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evaluate` and `label` count failures for the model that failed."""

    async def babble(_self: FakeClient, request: Any) -> object:
        label, probability = ("dog", 0.97) if _self.name == "large" else ("horse", 0.99)
        opened[_self.name][0].requests.append(request)
        return fake_response(label, ["cat", "dog", "horse"], {label: probability}, top_logprobs=2)

    monkeypatch.setattr(FakeClient, "complete", babble)
    result = run("evaluate", task, "--out", tmp_path / "out", "--no-cache")
    assert (
        'not judged: small: 5 failed (why: "reason" in the steps of predictions.jsonl)'
        in result.stdout.splitlines()
    )
    data = tmp_path / "new.csv"
    data.write_text("input\nmeow\nwoof\n")
    labelled = run("label", task, data, "--out", tmp_path / "labels", "--no-cache")
    warning = "small failed on 2 of the 2 rows that it was asked about: where another model answered"
    assert warning in " ".join(labelled.stderr.split())


def test_a_failed_row_is_not_judged(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that failed is left out of the counts in metrics.json and the report."""
    healthy = FakeClient.complete

    async def sometimes(self: FakeClient, request: Any) -> object:
        if request.messages[1]["content"] == "3 woof":
            raise ProviderError("it is down.", provider=self.name, status=400)
        return await healthy(self, request)

    monkeypatch.setattr(FakeClient, "complete", sometimes)
    out = tmp_path / "out"
    result = run("evaluate", task, "--out", out, "--no-cache")
    assert "not accepted" not in result.stdout
    assert (
        'not judged: small: 1 failed; large: 1 failed (why: "reason" in the steps of predictions.jsonl)'
        in result.stdout.splitlines()
    )
    found = json.loads((out / "metrics.json").read_text())["cascade"]
    assert (found["rows"], found["accepted"], found["unaccepted_answered"]) == (5, 4, 0)
    run("report", out)
    page = (out / "report.html").read_text()
    assert "4 of 5 rows (80.0 %) have an answer that was sure enough" in page
    assert "answered although no model was sure enough" not in page


def test_one_model_has_no_such_table(write_task: WriteTask, tmp_path: Path) -> None:
    """The terminal, metrics.json and report of a task with one model do not mention a cascade."""
    out = tmp_path / "out"
    result = run("evaluate", write_task(extra='\n[model]\nname = "small"\n'), "--out", out, "--no-cache")
    assert "cascade" not in result.stdout
    assert "cascade" not in json.loads((out / "metrics.json").read_text())
    run("report", out)
    assert "cascade" not in (out / "report.html").read_text().lower()


def test_an_interrupted_evaluation_resumes(task: Path, tmp_path: Path, opened: Opened) -> None:
    """A resumed evaluation asks only the rows that are missing, and ends with the same rows."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    run("evaluate", task, "--out", whole, "--no-cache")
    opened.clear()
    run("evaluate", task, "--out", part, "--no-cache")
    lines = (part / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (part / "predictions.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    (part / "metrics.json").unlink()
    opened.clear()
    run("evaluate", task, "--out", part, "--no-cache")
    assert asked(opened) == [2, 1]
    assert lasting(part) == lasting(whole)
    numbers = [json.loads((path / "metrics.json").read_text())["cascade"] for path in (whole, part)]
    assert numbers[0] == numbers[1]


def test_another_threshold_is_another_run(write_task: WriteTask, tmp_path: Path, opened: Opened) -> None:
    """Another threshold in the same directory exits with 2, and the cache saves calls elsewhere."""
    out, cache = tmp_path / "out", tmp_path / "cache.db"
    task = write_task(extra=SECTION.format(threshold=0.9), test=ROWS)
    run("evaluate", task, "--out", out, "--cache", cache)
    task = write_task(extra=SECTION.format(threshold=0.96), test=ROWS)
    run("evaluate", task, "--out", out, "--cache", cache, code=2)
    opened.clear()
    run("evaluate", task, "--out", tmp_path / "other", "--cache", cache)
    assert asked(opened) == [0, 3]


# --- optimize -----------------------------------------------------------------------------------

BUDGET = ("--max-metric-calls", 30, "--minibatch-size", 4)


def test_optimize_improves_a_cascade_s_prompt(task: Path, tmp_path: Path, opened: Opened) -> None:
    """`optimize` asks every model with the candidate's prompt, and a second start makes no call."""
    out = tmp_path / "out"
    result = run("optimize", task, *BUDGET, "--out", out, "--json")
    record = json.loads(result.stdout)
    assert record["model"] == "cascade(small -> large)"
    assert record["seed_prompt"]["rows"] == 5
    calls = asked(opened)
    assert all(calls)
    assert all(fake.closed for fakes in opened.values() for fake in fakes)
    rows = prediction_rows(out)
    assert [len(row["steps"]) for row in rows[:5]] == [1, 1, 2, 2, 1]
    prompts = {
        name: {request.messages[0]["content"] for request in opened[name][0].requests}
        for name in ("small", "large")
    }
    assert len(prompts["small"]) > 1
    assert prompts["large"] <= prompts["small"]
    assert "Models of the cascade" in (out / "report.html").read_text()

    opened.clear()
    again = run("optimize", task, *BUDGET, "--out", out, "--json")
    assert asked(opened) == [0, 0]
    assert json.loads(again.stdout)["best_prompt"] == record["best_prompt"]


class Priced(FakeClient):
    """Model of which every call costs a cent."""

    async def complete(self, request: CompletionRequest) -> object:
        response = await super().complete(request)
        return {**cast("dict[str, Any]", response), "_hidden_params": {"response_cost": 0.01}}


def test_a_stopped_search_counts_the_answers_of_models(
    task: Path, tmp_path: Path, use_model: Callable[..., Any]
) -> None:
    """A search that its budget ends says how many answers of models it keeps, not how many rows they make."""
    models = [use_model(Priced(LABELS, RULES[name], name=name), name) for name in ("small", "large")]
    stopped = run("optimize", task, *BUDGET, "--max-cost", 0.2, "--out", tmp_path / "out", code=1)
    calls = [len(model.requests) for model in models]
    assert all(calls)
    assert f"{sum(calls)} answers are kept in" in stopped.stderr


def test_another_threshold_is_another_search(write_task: WriteTask, tmp_path: Path) -> None:
    """A search with another threshold in the same directory exits with 2."""
    out = tmp_path / "out"
    first = write_task(extra=SECTION.format(threshold=0.9), directory=tmp_path / "a")
    run("optimize", first, *BUDGET, "--out", out)
    second = write_task(extra=SECTION.format(threshold=0.5), directory=tmp_path / "b")
    refused = run("optimize", second, *BUDGET, "--out", out, code=2)
    assert str(out) in refused.stderr
    assert "another" in refused.stderr


def test_optimize_refuses_a_cascade_s_prior(task: Path, tmp_path: Path, opened: Opened) -> None:
    """`--prior-correction batch` exits with 2 for a cascade, and works with one model."""
    refused = run("optimize", task, *BUDGET, "--prior-correction", "batch", "--out", tmp_path / "out", code=2)
    assert "Expected no --prior-correction batch for a cascade" in refused.stderr
    assert opened == {}
    options = (*BUDGET, "--prior-correction", "batch", "--model", "large")
    run("optimize", task, *options, "--out", tmp_path / "out")


def test_evaluate_takes_the_searched_prompt(task: Path, tmp_path: Path, opened: Opened) -> None:
    """`evaluate --run` asks every model with the best prompt of the search."""
    search, out = tmp_path / "search", tmp_path / "out"
    run("optimize", task, *BUDGET, "--out", search)
    (search / "best_prompt.txt").write_text("Best.")
    opened.clear()
    run("evaluate", task, "--run", search, "--out", out, "--no-cache")
    for fakes in opened.values():
        assert {request.messages[0]["content"] for request in fakes[0].requests} == {"Best."}


def test_optimize_warns_of_unused_prompts(
    write_task: WriteTask, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """`optimize` warns that the prompts of single models are not used."""
    task = write_task(extra=SECTION.format(threshold=0.9) + 'prompt = "Look closely."\n')
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        run("optimize", task, *BUDGET, "--out", task.parent / "run")
    assert any("1 prompt of [[cascade.models]] is not used" in message for message in caplog.messages)
    assert all("Look closely." not in r.messages[0]["content"] for r in opened["large"][0].requests)


def test_a_search_keeps_its_classifier(task: Path, opened: Opened) -> None:
    """`optimize` leaves the given cascade without a journal, and closes none of its models."""
    loaded = Task.from_file(task)
    cascade = open_classifier(loaded)
    result = optimize(loaded, model=cascade, max_metric_calls=30, minibatch_size=4)
    assert result.model == "cascade(small -> large)"
    assert cascade.journal is None
    assert not any(fake.closed for fakes in opened.values() for fake in fakes)
    assert cascade.classify("woof").label == "dog"


def test_a_search_takes_a_classifier_as_a_model(write_task: WriteTask) -> None:
    """`optimize` gives the same result for a classifier as for its model."""
    task = Task.from_file(write_task())

    def fake() -> FakeClient:
        return FakeClient(["cat", "dog"], lambda text, _: ("cat" if "meow" in text else "dog", 0.8))

    one = optimize(task, model=fake(), max_metric_calls=30, minibatch_size=4)
    other = optimize(
        task, model=Classifier.from_task(task, model=fake()), max_metric_calls=30, minibatch_size=4
    )
    assert (one.seed_prompt, one.best_prompt) == (other.seed_prompt, other.best_prompt)


def test_a_search_refuses_unfit_models(task: Path, opened: Opened) -> None:
    """A cascade that is not opened, and a classifier over other labels, raise ConfigurationError."""
    loaded = Task.from_file(task)
    with pytest.raises(ConfigurationError, match=r"open all with calibrant\.assembly\.open_classifier"):
        optimize(loaded, max_metric_calls=30, minibatch_size=4)
    other = Classifier(model=FakeClient(["a", "b"], {}), labels=["a", "b"])
    with pytest.raises(ConfigurationError, match="over the labels of task 'animals'"):
        optimize(loaded, model=other, max_metric_calls=30, minibatch_size=4)
    assert opened == {}


def test_a_nameless_function_is_refused(write_task: WriteTask, tmp_path: Path) -> None:
    """A model that is a lambda raises ConfigurationError, and no directory is written."""
    loaded = Task.from_file(write_task())
    models = [
        Classifier(model=model, labels=["cat", "dog"], field="category") for model in (lambda _: "cat", named)
    ]
    cascade = Cascade(models, method="label_probability")
    with pytest.raises(ConfigurationError, match="a function with a name of its own"):
        optimize(loaded, model=cascade, out=tmp_path / "out", max_metric_calls=30, minibatch_size=4)
    assert not (tmp_path / "out").exists()


def named(_messages: object) -> str:
    """Answer for a model."""
    return '{"category": "cat"}'


def test_the_example_is_a_cascade_of_two_prompts(use_model: Callable[..., Any]) -> None:
    """The cascade example opens 144 test rows, and its prompts hold no held-out row."""
    path = Path(__file__).parents[2] / "examples" / "cascade" / "task.toml"
    task = Task.from_file(path)
    assert len(task.test) == 144
    shown = {row.input for row in (*task.validation, *task.test)}
    settings = cascade_settings(task)
    assert settings is not None
    labels = list(task.labels.labels)

    def rule(_text: str, prompt: str) -> tuple[str, float]:
        return (labels[0], 0.2) if "DOORDASH" not in prompt else (labels[1], 0.7)

    use_model(lambda *_, **__: FakeClient(labels, rule))
    cascade = open_classifier(task)
    found = cascade.classify(task.test[0].input)
    assert [step.model for step in found.steps] == ["four examples", "eight examples"]
    assert (found.label, found.accepted) == (labels[1], True)
    prompts = [task.prompt, *(model.prompt or "" for model in settings.models)]
    assert not any(text in prompt for text in shown for prompt in prompts)
    examples = [Example(input=row.input, answer=row.answer) for row in task.train]
    lines = {f'Text: {row.input}\nAnswer: {{"category": "{row.answer}"}}' for row in examples}
    assert sum(line in prompts[-1] for line in lines) == 8
