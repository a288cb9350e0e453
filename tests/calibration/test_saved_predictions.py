"""Tests of saved predictions: they are read back, and broken rows are named by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.core import DataError, Example, Outcome, ProviderError, StateError
from calibrant.evaluation import BatchEvaluator, load_predictions
from calibrant.inference import Classifier
from calibrant.testing import Answer, FakeClient

LABELS = ["cat", "dog"]


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    """Write rows, or raw lines, and return the path."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_an_evaluation_comes_back_with_its_fingerprint(tmp_path: Path) -> None:
    """`load_predictions` reads an evaluation's rows and its classifier's fingerprint."""

    def rule(text: str, _prompt: str) -> Answer:
        if text == "silence":
            return ProviderError("no route.", provider="fake")
        return ("cat", 0.9) if "meow" in text else ("dog", 0.8)

    classifier = Classifier(model=FakeClient(LABELS, rule), labels=LABELS, field="category", prompt="Which?")
    texts = {"meow": "cat", "woof": "cat", "silence": "dog"}
    rows = [Example(input=text, answer=answer) for text, answer in texts.items()]
    BatchEvaluator(classifier).evaluate(rows, out=tmp_path / "run")
    found = load_predictions(tmp_path / "run")
    assert found.inputs == ("meow", "woof", "silence")
    assert found.labels == ("cat", "dog", None)
    assert found.correct.tolist() == [1, 0, -1]
    assert found.failed.tolist() == [False, False, True]
    assert found.confidence[:2] == pytest.approx([0.9, 0.8])
    assert np.isnan(found.confidence[2])
    assert found.fingerprint == classifier.fingerprint()


def test_whatever_was_accepted_as_a_text_comes_back(tmp_path: Path) -> None:
    """`load_predictions` reads a line of more than 5 MB."""
    rows = [Example(input="meow " + "\x01" * 990_000, answer="cat")]
    fake = FakeClient(LABELS, lambda _text, _prompt: ("cat", 0.9))
    BatchEvaluator(Classifier(model=fake, labels=LABELS, field="category")).evaluate(rows, out=tmp_path)
    assert (tmp_path / "predictions.jsonl").stat().st_size > 5_000_000
    assert load_predictions(tmp_path).inputs == (rows[0].input,)


def test_the_best_prompt_of_a_search_counts(tmp_path: Path) -> None:
    """`load_predictions` reads the best prompt's answers, with its user template."""
    plain = {"answer": "cat", "confidence": 0.7, "distribution": {"labels": LABELS, "space": "masked"}}
    kinds = {"seed": {"correct": False, "label": "dog"}, "best": {"correct": True, "label": "cat"}}
    rows = [
        {**plain, **kind, "row": row, "prompt": prompt, "input": f"text {row}", "outcome": "ok"}
        for prompt, kind in kinds.items()
        for row in range(3)
    ]
    # A search writes `correct` for failed rows, too.
    failed = {"row": 3, "prompt": "best", "input": "t", "answer": "cat", "correct": False, "outcome": "error"}
    write(tmp_path / "predictions.jsonl", *rows, failed)
    best = {"system_prompt": "Best.", "user_template": "It says: {input}"}
    (tmp_path / "result.json").write_text(
        json.dumps({"schema_version": 1, "best_candidate": best, "model": "m"})
    )
    found = load_predictions(tmp_path)
    assert found.correct.tolist() == [1, 1, 1, -1]
    assert found.fingerprint is not None
    assert found.fingerprint.prompt == "Best.\n\nIt says: {input}"
    assert found.fingerprint.model == "m"


def test_a_plain_file_needs_little(tmp_path: Path) -> None:
    """A file needs `correct`, or labels and answers, and may be CSV."""
    stated = write(tmp_path / "a.jsonl", {"correct": True, "confidence": 0.9}, {"correct": 0})
    assert load_predictions(stated).correct.tolist() == [1, 0]
    assert load_predictions(stated).fingerprint is None
    data = tmp_path / "b.csv"
    data.write_text("label,answer,confidence\ncat,cat,1.0000004\ndog,cat,\ncat,,0.5\n")
    found = load_predictions(data)
    assert found.correct.tolist() == [1, 0, -1]
    assert found.confidence[0] == 1.0
    assert np.isnan(found.confidence[1])
    assert found.outcomes == (Outcome.OK,) * 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"correct": true', "expected one JSON object per line"),
        ({"correct": True, "confidence": 1.1}, "confidence to be a probability in [0, 1] or null, got 1.1"),
        ({"correct": "maybe"}, "correct to be true, false or null, got 'maybe'"),
        ({"label": "cat"}, "expected correct, or label and answer"),
        ({"correct": True, "index": 0}, "expected every index once, got 0 again"),
        (
            {"correct": True, "outcome": "lost"},
            "outcome to be one of ok, error, refusal, unparsed, got 'lost'",
        ),
        ({"correct": True, "input": 7}, "input to be text, got int"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, row: dict[str, Any] | str, message: str) -> None:
    """A broken row raises DataError with file, line and what was expected."""
    path = write(tmp_path / "p.jsonl", {"correct": True}, row)
    with pytest.raises(DataError) as caught:
        load_predictions(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    """A missing or empty file raises DataError, and a damaged run.json raises StateError."""
    with pytest.raises(DataError, match="no such file or directory"):
        load_predictions(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"expected predictions\.jsonl in it"):
        load_predictions(tmp_path)
    write(tmp_path / "predictions.jsonl")
    with pytest.raises(DataError, match="expected at least one row"):
        load_predictions(tmp_path)
    write(
        tmp_path / "predictions.jsonl",
        {"correct": True, "probabilities": {"a": 0.9, "b": 0.1}, "space": "masked"},
    )
    assert load_predictions(tmp_path).label_set == ("a", "b")
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(StateError, match=r"run\.json: expected a JSON object, got \[\]: restore it"):
        load_predictions(tmp_path)
