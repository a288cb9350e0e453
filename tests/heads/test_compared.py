"""Tests of the comparison of a model with baselines on the same rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

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


def vectors_of(examples: list[Example]) -> dict[str, list[float]]:
    """Return vectors by text which tell cows from the others, far from 0 all of them."""
    rng = np.random.default_rng(0)
    told = {"cat": 0.0, "dog": 0.3, "cow": 2.0}
    return {row.input: (5.0 + told[row.answer] + rng.normal(size=4)).tolist() for row in examples}


def test_texts_with_vectors_have_another_baseline() -> None:
    """It is scikit-learn's balanced regression on centred vectors of length 1, of the rows that have vectors."""
    labelled, judged = (
        rows("seen", *["cat", "dog", "cow", "dog"] * 8),
        rows("new", *["cat", "cow", "dog"] * 9),
    )
    vectors = vectors_of([*labelled[:-3], *judged])
    found = compare_with_baselines(judged, ["cat"] * 27, labelled, labels=LABELS, vectors=vectors)
    known, asked = (np.array([vectors[row.input] for row in part]) for part in (labelled[:-3], judged))
    mean = known.mean(axis=0)
    known, asked = (
        (part - mean) / np.linalg.norm(part - mean, axis=1, keepdims=True) for part in (known, asked)
    )
    peer = LogisticRegression(C=10.0, class_weight="balanced", max_iter=2000)
    guesses = peer.fit(known, [row.answer for row in labelled[:-3]]).predict(asked)
    right = [guess == row.answer for guess, row in zip(guesses, judged, strict=True)]
    assert 9 < sum(right) < 27
    assert found.scores[3].name == "embeddings"
    assert found.scores[3].accuracy == wilson_interval(sum(right), 27)
    model_right = [row.answer == "cat" for row in judged]
    assert found.against_embeddings == paired_comparison(right, model_right)


def test_a_judged_row_without_a_vector_leaves_the_baseline_out() -> None:
    """Baselines are judged on the same rows: one on vectors that some of them lack is left out."""
    found = compare_with_baselines(
        ROWS, ["cat"] * 4, LABELLED, labels=LABELS, vectors=vectors_of([*LABELLED, *ROWS[1:]])
    )
    assert found == compare_with_baselines(ROWS, ["cat"] * 4, LABELLED, labels=LABELS)


def test_the_verdict_is_on_the_better_baseline() -> None:
    """A model that knows more than words, and no more than vectors, adds nothing certain to the vectors."""
    labelled, judged = rows("seen", "cat", "cat", "cat"), rows("new", *["cat", "dog"] * 20)
    labelled = [*labelled, *(Example(input=f"other {n}", answer="dog") for n in range(3))]
    vectors = {row.input: [1.0, 0.0] if row.answer == "cat" else [0.0, 1.0] for row in (*labelled, *judged)}
    right = [row.answer for row in judged]
    found = compare_with_baselines(judged, right, labelled, labels=LABELS, vectors=vectors)
    assert found.against_text is not None
    assert found.against_text.interval.lower > 0.0
    assert found.verdict.startswith(
        "On these rows the model adds nothing certain to embeddings with logistic"
    )
    found = compare_with_baselines(judged, ["cat"] * 40, labelled, labels=LABELS, vectors=vectors)
    assert found.verdict.startswith(
        "On this task you do not need the model's answers: embeddings with logistic"
    )


def test_rows_without_labels_come_before_a_verdict() -> None:
    """Where many rows have no label, the verdict says what may be the reason, and nothing of the model."""
    found = compare_with_baselines(ROWS, [None] * 4, LABELLED, labels=LABELS)
    assert found.verdict.startswith(
        "4 of 4 rows have no label: their calls failed, the model declined, or its answers could not be read."
    )
    assert "the model adds" not in found.verdict


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
    """A head that uses no answer of the model is a row of its own; the verdict says nothing of what the model adds."""
    judged = rows("new", *["cat", "dog"] * 20)
    given = [row.answer for row in judged]
    found = compare_with_baselines(judged, given, labelled, labels=LABELS, uses_model=False)
    assert [score.name for score in found.scores] == ["head on the text alone", "majority", "TF-IDF"]
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
