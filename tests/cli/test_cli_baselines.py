"""Tests of ``calibrant evaluate`` with baselines, which need no language model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from calibrant.core import Field, FieldLabels, MultiLabels
from calibrant.testing import FakeClient
from command_line import command, done, knows
from small_tasks import place
from token_engine import Telling

WriteTask = Callable[..., Path]
UseModel = Callable[..., Any]
LABELS = ["cat", "dog"]


@pytest.fixture
def model(fake: Callable[..., FakeClient]) -> FakeClient:
    """Put a model that knows all animals in the place of every model."""
    return fake()


def run(*arguments: object) -> Result:
    """Run the command line in this process; it must succeed."""
    return done(command()(*arguments))


def animals(prefix: str, count: int) -> list[dict[str, str]]:
    """Return rows of both labels, which a word of the text tells."""
    return [
        {"input": f"{prefix} {n} {('meow', 'woof')[n % 2]}", "answer": LABELS[n % 2]} for n in range(count)
    ]


def riddles(prefix: str, count: int) -> list[dict[str, str]]:
    """Return rows of both labels, whose words do not tell the label."""
    texts = [f"{prefix} {n}" for n in range(count)]
    return [
        {"input": text, "answer": LABELS[hashlib.sha256(text.encode()).digest()[0] % 2]} for text in texts
    ]


def table(result: Result) -> list[list[str]]:
    """Return the cells of the output, line by line."""
    return [re.split(r" {2,}", line) for line in result.stdout.splitlines()]


def beside(result: Result) -> list[list[str]]:
    """Return the table of the baselines without its head, and the line below the table."""
    cells = table(result)
    start = next(
        place
        for place, line in enumerate(cells)
        if line[0].endswith("answered rows") and line[1:2] == ["accuracy"]
    )
    return cells[start + 1 : start + 5]


def rows_to_learn_from(directory: Path) -> int:
    """Return how many rows the baselines of a run learned from."""
    record = json.loads((directory / "metrics.json").read_text())
    count: int = record["baselines"]["labelled_rows"]
    return count


@pytest.mark.usefixtures("model")
def test_the_table_ends_with_baselines_and_a_verdict(write_task: WriteTask, tmp_path: Path) -> None:
    """Baselines learn from training and validation rows; the file holds the same numbers."""
    task = write_task(train=animals("a", 12), validation=animals("b", 8), test=animals("c", 10))
    result = run("evaluate", task, "--out", tmp_path / "out")
    assert ["on 10 answered rows", "accuracy", "macro F1", "labels"] in table(result)
    model, majority, text, (verdict,) = beside(result)
    assert model == ["model", "1.000 (0.722 to 1.000)", "1.000", "2 of 2"]
    assert majority == ["majority", "0.500 (0.237 to 0.763)", "0.333", "1 of 2"]
    assert text == ["TF-IDF", "1.000 (0.722 to 1.000)", "1.000", "2 of 2"]
    assert verdict.startswith("On these rows the model adds nothing certain to TF-IDF")
    assert verdict.endswith(" The baselines learned from 20 other labelled rows.")
    record = json.loads((tmp_path / "out" / "metrics.json").read_text())["baselines"]
    assert verdict.startswith(record["verdict"])
    assert [score["accuracy"]["estimate"] for score in record["scores"]] == [1.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("rows", "is_right", "said"),
    [(riddles, True, "The model adds +"), (animals, False, "On this task you do not need a language model")],
)
def test_the_verdict_says_what_the_model_is_for(
    write_task: WriteTask,
    use_model: UseModel,
    tmp_path: Path,
    rows: Callable[..., list[dict[str, str]]],
    is_right: bool,
    said: str,
) -> None:
    """The verdict states the model's gain where words tell nothing, and else that none is needed."""
    answers = {row["input"]: row["answer"] for row in rows("test", 40)}
    use_model(FakeClient(LABELS, lambda text, _: (answers[text] if is_right else "cat", 0.9)))
    task = write_task(**{name: rows(name, 40) for name in ("train", "validation", "test")})
    assert beside(run("evaluate", task, "--out", tmp_path / "out"))[-1][0].startswith(said)


def test_features_that_a_head_reads_are_a_baseline(
    write_task: WriteTask, use_model: UseModel, tmp_path: Path
) -> None:
    """Features that a run and the cache hold make a baseline of other rows as well; nothing is asked for one."""
    engine = Telling(place)
    use_model(engine)
    task = write_task(**{name: riddles(name, 40) for name in ("train", "validation", "test")})
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in riddles("new", 40)))
    run("optimize", task, "--max-metric-calls", 120, "--out", tmp_path / "run")
    asked = ("evaluate", task, "--run", tmp_path / "run", "--file", tmp_path / "new.jsonl")
    before = sum(bool(row.text) for row in engine.rows)
    *_, embeddings = beside(run(*asked, "--cache", tmp_path / "cache.sqlite", "--out", tmp_path / "new"))
    assert embeddings == ["embeddings", "1.000 (0.912 to 1.000)", "1.000", "2 of 2"]
    assert sum(bool(row.text) for row in engine.rows) == before + 40
    *_, verdict = beside(run(*asked, "--no-cache", "--out", tmp_path / "again"))
    assert verdict[0].startswith("The model adds +")


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("words", "count"), [(["--split", "train"], 3), (["--split", "validation"], 5), (["--file"], 12), ([], 8)]
)
def test_the_evaluated_split_teaches_nothing(
    write_task: WriteTask, tmp_path: Path, words: Sequence[str], count: int
) -> None:
    """Rows of the evaluated split, and texts of the evaluated file, are not learned from."""
    task = write_task(train=animals("a", 5), validation=animals("b", 3), test=animals("c", 4))
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in animals("d", 4)))
    run("evaluate", task, *words, *([other] if "--file" in words else []), "--out", tmp_path / "out")
    assert rows_to_learn_from(tmp_path / "out") == count
    run("evaluate", task, "--file", tmp_path / "train.jsonl", "--out", tmp_path / "same")
    assert rows_to_learn_from(tmp_path / "same") == 7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda task: task.write_text(re.sub("(train|validation) = .*\n", "", task.read_text())),
            "no train or validation rows to learn from",
        ),
        (lambda task: (task.parent / "train.jsonl").write_text("{}\n"), "train.jsonl:1: "),
        (lambda task: (task.parent / "validation.jsonl").unlink(), "validation.jsonl"),
    ],
    ids=["no other rows", "a broken row", "a missing file"],
)
def test_an_evaluation_without_baselines_says_why(
    write_task: WriteTask, model: FakeClient, tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    """An evaluation without baselines prints the reason after "No baselines:", and its metrics."""
    task = write_task()
    change(task)
    printed = run("evaluate", task, "--out", tmp_path / "out").stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("No baselines: ")]
    assert said in line
    assert "accuracy, all rows" in printed
    assert len(model.requests) == 4
    assert "baselines" not in json.loads((tmp_path / "out" / "metrics.json").read_text())


def test_partial_runs_have_no_baselines(write_task: WriteTask, use_model: UseModel, tmp_path: Path) -> None:
    """A run that a deadline stops has no baselines; the run that finishes the rows prints them."""
    use_model(FakeClient(LABELS, knows, latency=0.05))
    task = write_task(test=animals("c", 40))
    words = ["evaluate", task, "--out", tmp_path / "out", "--no-cache", "--concurrency", 2]
    stopped = command(*map(str, words))("--deadline", 0.3)
    assert stopped.exit_code == 1
    assert "baselines" not in stopped.output
    assert len(beside(run(*words))) == 4


SET = 'multi_label = true\nlabels = ["cat", "dog"]\n'
FIELDS = "".join(f'[[fields]]\nname = "{name}"\nlabels = ["no", "yes"]\n' for name in LABELS)


@pytest.mark.parametrize("is_set", [True, False])
def test_answers_with_several_labels_have_baselines(
    write_task: WriteTask, use_model: UseModel, tmp_path: Path, is_set: bool
) -> None:
    """Words tell every part of an answer; accuracy and macro F1 are those of the table above."""

    def answer(place: int) -> Any:
        held = {name: bool(place & bit) for name, bit in zip(LABELS, (1, 2), strict=True)}
        if is_set:
            return [name for name in LABELS if held[name]]
        return {name: "yes" if held[name] else "no" for name in LABELS}

    def rows(prefix: str, count: int) -> list[dict[str, Any]]:
        texts = ("silence", "meow", "woof", "meow woof")
        return [{"input": f"{prefix} {n} {texts[n % 4]}", "answer": answer(n % 4)} for n in range(count)]

    fields = [Field(name=name, labels=["no", "yes"]) for name in LABELS]
    labels = MultiLabels(LABELS) if is_set else FieldLabels(fields)
    use_model(FakeClient(labels, lambda *_: (json.dumps(answer(1)), 0.9), field="labels"))
    data = '[data]\ntrain = "train.jsonl"\ntest = "test.jsonl"\n'
    toml = f'name = "sounds"\nprompt = "Which?"\n{SET if is_set else FIELDS}{data}'
    task = write_task(toml=toml, train=rows("a", 24), test=rows("b", 8))
    result = run("evaluate", task, "--out", tmp_path / "out")
    model, majority, text, (verdict,) = beside(result)
    above = {line[0]: line[1] for line in table(result) if len(line) > 1}
    assert model[1:3] == [above["accuracy, answered rows"], above["macro F1"]]
    assert majority[1] == "0.250 (0.071 to 0.591)"
    assert text[1:3] == ["1.000 (0.676 to 1.000)", "1.000"]
    assert verdict.startswith("On this task you do not need a language model")


def test_a_cascade_is_compared_too(write_task: WriteTask, use_model: UseModel, tmp_path: Path) -> None:
    """The baselines' table shows the accuracy of the whole cascade, in the line "model"."""
    section = '\n[cascade]\nconfidence_method = "label_probability"\nthreshold = 0.85\n'
    models = [f'\n[[cascade.models]]\nname = "{name}"\n' for name in ("small", "large")]
    for name in ("small", "large"):
        use_model(FakeClient(LABELS, knows, name=name), name)
    task = write_task(extra=section + "".join(models), test=animals("c", 8))
    result = run("evaluate", task, "--out", tmp_path / "out", "--no-cache")
    assert beside(result)[0] == ["model", "1.000 (0.676 to 1.000)", "1.000", "2 of 2"]
