"""Tests of the comparison of a model with baselines on the same rows."""

from __future__ import annotations

import json

import pytest

from calibrant.core import Example, LabelSet
from calibrant.heads import TextBaseline, compare_with_baselines
from calibrant.metrics import paired_comparison, wilson_interval

LABELS = LabelSet(["cat", "dog", "cow"])
SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo"}


def rows(prefix: str, *answers: str) -> list[Example]:
    """Return rows whose text tells the answer."""
    return [
        Example(input=f"{prefix} {n} {SOUNDS[answer]}", answer=answer) for n, answer in enumerate(answers)
    ]


LABELLED = rows("seen", "dog", "dog", "dog", "cat", "cat", "cow")
ROWS = rows("new", "cat", "cat", "dog", "cow")


def test_all_are_judged_on_the_same_rows() -> None:
    """Model and baselines are judged on the same rows, with the scores counted by hand."""
    found = compare_with_baselines(ROWS, ["cat", "cat", "cow", None], LABELLED, labels=LABELS)
    assert (found.rows, found.labelled_rows) == (4, 6)
    model, majority, text = found.scores
    assert (model.name, majority.name, text.name) == ("model", "majority", "TF-IDF")
    assert model.accuracy == wilson_interval(2, 4)
    assert model.macro_f1 == pytest.approx(1 / 3)  # cats 1, dogs 0, cows 0
    assert str(model.answered_labels) == "2 of 3"
    assert majority.accuracy == wilson_interval(1, 4)
    assert majority.macro_f1 == pytest.approx(0.4 / 3)  # dogs: precision 1/4, recall 1
    assert str(majority.answered_labels) == "1 of 3"
    fitted = TextBaseline().fit([row.input for row in LABELLED], [1, 1, 1, 0, 0, 2], labels=LABELS)
    guesses = fitted.predict([row.input for row in ROWS])
    right = [guess == row.answer for guess, row in zip(guesses, ROWS, strict=True)]
    assert text.accuracy == wilson_interval(sum(right), 4)
    assert found.against_text == paired_comparison(right, [True, True, False, False])


def test_a_row_with_a_judged_text_teaches_nothing() -> None:
    """Labelled rows whose text is judged change nothing in the comparison."""
    copies = [Example(input=ROWS[0].input, answer="cow")] * 9
    found = compare_with_baselines(ROWS, ["cat"] * 4, [*copies, *LABELLED], labels=LABELS)
    assert found == compare_with_baselines(ROWS, ["cat"] * 4, LABELLED, labels=LABELS)


@pytest.mark.parametrize(
    ("labelled", "given", "said"),
    [
        (rows("seen", "cat", "cat", "cat"), "right", "The model adds +0.500 accuracy"),
        (LABELLED * 3, "right", "On these rows the model adds nothing certain to TF-IDF"),
        (
            LABELLED * 3,
            "cat",
            "On this task you do not need a language model: TF-IDF with logistic regression is",
        ),
    ],
)
def test_the_verdict_follows_the_paired_interval(labelled: list[Example], given: str, said: str) -> None:
    """The verdict follows the interval of the difference, and states it."""
    judged = rows("new", *["cat", "dog"] * 20)
    labels = [row.answer if given == "right" else given for row in judged]
    found = compare_with_baselines(judged, labels, labelled, labels=LABELS)
    assert found.verdict.startswith(said)
    assert found.against_text is not None
    interval = found.against_text.interval
    assert f"95 % interval {interval.lower:+.3f} to {interval.upper:+.3f}" in found.verdict


@pytest.mark.parametrize(
    ("labelled", "said"),
    [
        (rows("seen", "cat", "cat", "cat"), "The head, which reads the text alone, adds +0.500 accuracy"),
        (LABELLED * 3, "On these rows the head, which reads the text alone, adds nothing certain to TF-IDF"),
    ],
)
def test_a_head_on_text_alone_is_called_so(labelled: list[Example], said: str) -> None:
    """Of a head that uses no answer of the model, the verdict says nothing of what the model adds."""
    judged = rows("new", *["cat", "dog"] * 20)
    given = [row.answer for row in judged]
    found = compare_with_baselines(judged, given, labelled, labels=LABELS, uses_model=False)
    assert found.verdict.startswith(said)
    assert "model" not in found.verdict


@pytest.mark.parametrize(
    ("judged", "labelled", "said"),
    [
        ([], LABELLED, "No row was answered, so"),
        (ROWS, ROWS, "There is no labelled row with a text of its own to learn from, so"),
    ],
)
def test_nothing_is_compared_without_rows(judged: list[Example], labelled: list[Example], said: str) -> None:
    """Without rows nothing is compared, and the verdict says which are missing."""
    found = compare_with_baselines(judged, ["cat"] * len(judged), labelled, labels=LABELS)
    assert (found.scores, found.against_text) == ((), None)
    assert found.verdict.startswith(said)


def test_the_record_is_json() -> None:
    """The record is JSON with scores, verdict and the number of rows."""
    found = compare_with_baselines(ROWS, ["cat"] * 4, LABELLED, labels=LABELS)
    record = json.loads(json.dumps(found.to_record()))
    assert [score["name"] for score in record["scores"]] == ["model", "majority", "TF-IDF"]
    assert record["scores"][0]["answered_labels"] == found.scores[0].answered_labels.to_record()
    assert record["verdict"] == found.verdict
    assert record["rows"] == 4
