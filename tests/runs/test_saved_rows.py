"""Tests of saved rows: one format for evaluations and searches, read back as columns."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import optimize
from calibrant.core import DataError, Example, Outcome, ProviderError, StateError
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.runs import SavedRow, SavedRows
from calibrant.testing import Answer, FakeClient
from small_tasks import hidden_rows, task_of

LABELS = ["cat", "dog"]
TEXTS = ("first", "zweite Zeile: größer", "third\nwith a break")


def classifier(rule: Any = None) -> Classifier:
    """Return a classifier whose model calls every text a cat, unless a rule says otherwise."""
    client = FakeClient(LABELS, rule or (lambda _text, _prompt: ("cat", 0.9)))
    return Classifier(model=client, labels=LABELS, field="category", prompt="Which?")


def evaluated(out: Path, *texts: str, rule: Any = None) -> Path:
    """Evaluate texts that are cats into a directory, and return it."""
    rows = [Example(input=text, answer="cat") for text in texts]
    BatchEvaluator(classifier(rule)).evaluate(rows, out=out)
    return out


def searched(out: Path, rule: Any = None) -> Path:
    """Search into a directory without budget, and return it."""
    optimize(task_of(hidden_rows, 6, 6, 6), model=classifier(rule).client, out=out, max_metric_calls=24)
    return out


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of a directory as they are written."""
    text = (directory / "predictions.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    """Write rows, or raw lines, and return the path."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


# --- what is written ----------------------------------------------------------------------------


def test_evaluations_and_searches_write_the_same_fields(tmp_path: Path) -> None:
    """A row of a search has the fields of an evaluated row, and its prompt."""
    (one,) = lines(evaluated(tmp_path / "evaluated", "meow"))
    rows = lines(searched(tmp_path / "searched"))
    assert {name for row in rows for name in row} == {*one, "prompt"}
    assert {row["prompt"] for row in rows} >= {"seed", "best"}
    assert one["probabilities"] == pytest.approx({"cat": 0.9, "dog": 0.1})
    best = [row for row in rows if row["prompt"] == "best"]
    assert [row["index"] for row in best] == list(range(6))
    assert best[0]["probabilities"] == pytest.approx({"cat": 0.9, "dog": 0.1})


def test_rows_of_another_format_are_refused(tmp_path: Path) -> None:
    """A run whose rows lack fields raises an error that names them and says what to do."""
    directory = evaluated(tmp_path, "meow")
    row = lines(directory)[0]
    row["row"], row["distribution"] = row.pop("index"), row.pop("probabilities")
    write(directory / "predictions.jsonl", row)
    with pytest.raises(DataError, match=r"predictions\.jsonl:1: expected the line of a row") as caught:
        SavedRows.load(directory)
    assert "(schema version 1 has index, probabilities, too): restore the file, or run" in str(caught.value)


# --- what is read -------------------------------------------------------------------------------


def test_an_evaluation_comes_back_with_its_fingerprint(tmp_path: Path) -> None:
    """The rows of an evaluation are read with its classifier's fingerprint."""

    def rule(text: str, _prompt: str) -> Answer:
        if text == "silence":
            return ProviderError("no route.", provider="fake")
        return ("cat", 0.9) if "meow" in text else ("dog", 0.8)

    found = SavedRows.load(evaluated(tmp_path / "run", "meow", "woof", "silence", rule=rule))
    assert found.inputs == ("meow", "woof", "silence")
    assert found.labels == ("cat", "dog", None)
    assert found.correct.tolist() == [1, 0, -1]
    assert found.failed.tolist() == [False, False, True]
    assert found.confidence[:2] == pytest.approx([0.9, 0.8])
    assert np.isnan(found.confidence[2])
    assert found.called.tolist() == [True] * 3
    assert found.label_set == ("cat", "dog")
    assert found.fingerprint == classifier().fingerprint()


def test_a_search_is_read_by_prompt(tmp_path: Path) -> None:
    """All prompts of a search are read; `load` takes the best one, which alone has a fingerprint."""
    directory = searched(tmp_path)
    found = SavedRows.by_prompt(directory)
    assert set(found) == {row["prompt"] for row in lines(directory)}
    assert [(prompt, rows.prompt, len(rows)) for prompt, rows in found.items()] == [
        (prompt, prompt, 6) for prompt in found
    ]
    chosen = SavedRows.load(directory)
    assert chosen.prompt == ("final" if "final" in found else "best")
    assert chosen.inputs == tuple(f"test {n}" for n in range(6))
    assert chosen.fingerprint is not None
    assert chosen.fingerprint.labels == ("cat", "dog")
    assert found["seed"].fingerprint is None
    write(directory / "predictions.jsonl", *(row for row in lines(directory) if row["prompt"] == "seed"))
    with pytest.raises(DataError, match="expected rows of the best prompt, got none"):
        SavedRows.load(directory)


def test_rows_are_read_again_when_asked_for(tmp_path: Path) -> None:
    """Rows are read whole, in the order of the file, or at some places alone."""
    saved = SavedRows.load(evaluated(tmp_path, *TEXTS))
    assert [(row.index, row.input) for row in saved.rows()] == list(enumerate(TEXTS))
    assert [row.input for row in saved.rows([2, 0])] == [TEXTS[0], TEXTS[2]]
    assert next(saved.rows([1])).values["probabilities"] == pytest.approx({"cat": 0.9, "dog": 0.1})


def test_whatever_was_accepted_as_a_text_comes_back(tmp_path: Path) -> None:
    """A line of more than 5 MB is read."""
    text = "meow " + "\x01" * 990_000
    saved = SavedRows.load(evaluated(tmp_path, text))
    assert (tmp_path / "predictions.jsonl").stat().st_size > 5_000_000
    assert saved.inputs == (text,)


def test_a_plain_file_needs_little(tmp_path: Path) -> None:
    """A file needs `correct`, or labels and answers, and may be CSV; its own column `prompt` is ignored."""
    stated = write(
        tmp_path / "a.jsonl", {"correct": True, "confidence": 0.9, "prompt": "Mine."}, {"correct": 0}
    )
    assert SavedRows.load(stated).correct.tolist() == [1, 0]
    assert SavedRows.load(stated).fingerprint is None
    data = tmp_path / "b.csv"
    data.write_text("label,answer,confidence\ncat,cat,1.0000004\ndog,cat,\ncat,,0.5\n")
    found = SavedRows.load(data)
    assert found.correct.tolist() == [1, 0, -1]
    assert found.confidence[0] == 1.0
    assert np.isnan(found.confidence[1])
    assert found.outcomes == (Outcome.OK,) * 3
    assert [row.label for row in found.rows([1])] == ["dog"]


def test_a_file_without_true_labels_needs_no_column_for_them(tmp_path: Path) -> None:
    """Where no true label is known, as before they are asked for, the column may be left out."""
    data = tmp_path / "labels.csv"
    data.write_text("input,label,confidence\na,cat,0.9\nb,dog,0.8\n")
    found = SavedRows.load(data)
    assert (found.correct.tolist(), found.answers) == ([-1, -1], (None, None))


def test_rows_in_memory_travel() -> None:
    """Rows in memory are checked like those of a file, and can be pickled."""
    saved = SavedRows.of([{"correct": True, "input": "a"}, {"correct": False, "input": "b"}], name="mine")
    copied = pickle.loads(pickle.dumps(saved))  # noqa: S301 (our own bytes)
    assert (copied.name, copied.inputs, copied.correct.tolist()) == ("mine", ("a", "b"), [1, 0])
    with pytest.raises(DataError, match=r"mine:2: expected label, and answer where"):
        SavedRows.of([{"correct": True}, {"input": "cat"}], name="mine")
    with pytest.raises(DataError, match="expected at least one row, got none"):
        SavedRows.of([])


def test_torn_lines_end_unfinished_runs(tmp_path: Path) -> None:
    """A torn last line ends an unfinished run, and raises an error in a finished one."""
    file = evaluated(tmp_path, *TEXTS) / "predictions.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"predictions\.jsonl:3: expected the line of a row"):
        SavedRows.load(tmp_path)
    (tmp_path / "metrics.json").unlink()
    found = SavedRows.load(tmp_path)
    assert (found.index.tolist(), found.is_torn) == ([0, 1], True)


@pytest.mark.parametrize("broken", [b"[]\n", b"\n", b"[" * 100_000 + b"\n", b"\xff\n"])
def test_broken_lines_are_located(tmp_path: Path, broken: bytes) -> None:
    """A broken line raises an error with file and line, also in an unfinished run."""
    file = evaluated(tmp_path, *TEXTS) / "predictions.jsonl"
    first, *others = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + broken + b"".join(others))
    (tmp_path / "metrics.json").unlink()
    with pytest.raises(DataError, match=r"predictions\.jsonl:2: expected the line of a row"):
        SavedRows.load(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"correct": true', "expected one JSON object per line"),
        ({"correct": True, "confidence": 1.1}, "confidence to be a probability in [0, 1] or null, got 1.1"),
        ({"input": "cat"}, "expected label, and answer where"),
        ({"correct": True, "index": 0}, "expected every index once, got 0 again"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, row: dict[str, Any] | str, message: str) -> None:
    """A broken row raises DataError with file, line and what was expected."""
    path = write(tmp_path / "p.jsonl", {"correct": True}, row)
    with pytest.raises(DataError) as caught:
        SavedRows.load(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    """A missing or empty file raises DataError, and a damaged run.json raises StateError."""
    with pytest.raises(DataError, match="no such file or directory"):
        SavedRows.load(tmp_path / "nowhere")
    with pytest.raises(StateError, match=r"predictions\.jsonl: expected the predictions of a run"):
        SavedRows.load(tmp_path)
    write(tmp_path / "predictions.jsonl")
    with pytest.raises(DataError, match="expected at least one row"):
        SavedRows.load(tmp_path)
    write(tmp_path / "predictions.jsonl", {"correct": True, "probabilities": {"a": 0.9, "b": 0.1}})
    assert SavedRows.load(tmp_path).label_set == ("a", "b")
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(StateError, match=r"run\.json: expected a JSON object, got \[\]: restore it"):
        SavedRows.load(tmp_path)


# --- values -------------------------------------------------------------------------------------


def test_texts_of_csv_files_are_parsed() -> None:
    """Numbers and truth values are read from texts, and an empty text is None."""
    row = SavedRow.checked({"index": " 7", "correct": "True", "confidence": "0.5", "cost": "", "label": ""})
    assert (row.index, row.correct, row.confidence, row.label) == (7, 1, 0.5, None)
    assert math.isnan(row.cost)


def test_correctness_follows_from_the_labels() -> None:
    """`correct` follows from the labels; a stated value wins, and that of a failed row is not known."""
    row = {"label": "cat", "answer": "cat"}
    assert SavedRow.checked(row).correct == 1
    assert SavedRow.checked({**row, "answer": "dog"}).correct == 0
    assert SavedRow.checked({**row, "answer": None}).correct == -1
    assert SavedRow.checked({**row, "correct": False}).correct == 0
    assert SavedRow.checked({**row, "outcome": "error"}).correct == -1


def test_labels_are_equal_up_to_case_and_space() -> None:
    """Of rows that no task has spelled, labels and true answers are spelled as the first of them."""
    rows = [{"label": "World", "answer": "world "}, {"label": " WORLD", "answer": None}, {"label": "Sports"}]
    saved = SavedRows.of(rows)
    assert saved.labels == ("World", "World", "Sports")
    assert saved.answers == ("World", None, None)
    assert saved.correct.tolist() == [1, -1, -1]
    assert (saved.spelled("SPORTS "), saved.spelled("Films")) == ("Sports", "Films")


def test_labels_are_spelled_as_those_with_probabilities() -> None:
    """Where rows have probabilities of labels, these are the spelling."""
    row = {"label": "cat", "answer": "CAT", "probabilities": {"Cat": 0.9, "Dog": 0.1}}
    assert SavedRows.of([row]).labels == SavedRows.of([row]).answers == ("Cat",)


def test_rounding_is_forgiven() -> None:
    """A confidence outside [0, 1] by a rounding error is read."""
    assert SavedRow.checked({"correct": 1, "confidence": 1.0 + 1e-9}).confidence == 1.0
    assert SavedRow.checked({"correct": 1, "confidence": -1e-9}).confidence == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "expected label, and answer where"),
        ({"answer": "cat"}, "answer where the true one is known, or correct, got only 'answer'"),
        ({"correct": "perhaps"}, "correct to be true, false or null, got 'perhaps'"),
        ({"correct": True, "index": None}, "index to be a whole number from 0, got None"),
        ({"correct": True, "index": True}, "index to be a whole number from 0, got True"),
        ({"correct": True, "confidence": math.inf}, r"a probability in \[0, 1\] or null, got inf"),
        ({"correct": True, "cost": -1}, "cost to be a number of at least 0 or null, got -1"),
        ({"correct": True, "latency_seconds": "soon"}, "latency_seconds to be a number of at least 0"),
        ({"correct": True, "label": 3}, "label to be text, got int"),
        ({"correct": True, "outcome": "lost"}, "outcome to be one of ok, error, refusal, unparsed"),
    ],
)
def test_broken_values_are_named(values: dict[str, Any], message: str) -> None:
    """A wrong value raises an error with its name and the expected type."""
    with pytest.raises(ValueError, match=message):
        SavedRow.checked(values)


def test_foreign_columns_are_ignored() -> None:
    """A label mass that is no number is ignored."""
    saved = SavedRows.of([{"correct": True, "label_mass": "heavy", "unresolved_mass": [], "space": "raw"}])
    assert saved.rows_with_low_label_mass == 0
    assert saved.outcomes == (Outcome.OK,)
