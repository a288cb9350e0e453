"""Tests of answers in plain text that are read as the labels they name."""

from __future__ import annotations

import math

import pytest

from calibrant.core import Completion, LabelSet, Outcome, Prediction, Token
from calibrant.inference import AnswerForm, Classifier, ModelAbilities

LABELS = LabelSet(["positive", "negative", "very negative", "Bills/Gas & Oil"])


def read(answer: Completion, labels: LabelSet = LABELS, field: str = "label") -> Prediction:
    """Return the prediction of a model that answers in plain text."""
    classifier = Classifier(
        model=lambda _: answer,
        labels=labels,
        field=field,
        space="raw",
        abilities=ModelAbilities(form=AnswerForm.TEXT),
    )
    return classifier.classify("x")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("positive", "positive"),
        (" **Positive**.\n", "positive"),
        ("The text is very negative.", "very negative"),
        ("I say: Bills/Gas & Oil", "Bills/Gas & Oil"),
        ("<think>negative? positive?</think>\npositive", "positive"),
        ("positive\nIt is not negative at all.", "positive"),
        ("It is not negative, and not very negative.\n\npositive", "positive"),
        ('Sure! {"label": "negative"} Anything else?', "negative"),
        ("nonpositive, but positive", "positive"),
    ],
)
def test_one_label_is_found(text: str, label: str) -> None:
    """The label is a line of its own, or the only one named as a whole word."""
    assert read(Completion(text=text)).label == label


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("positive, not negative", "several labels ('positive', 'negative')"),
        ("positively negated", "none of the labels"),
        ("?", "none of the labels"),
    ],
)
def test_other_texts_are_unparsed(text: str, problem: str) -> None:
    """A text that names no label, or several, is no answer."""
    found = read(Completion(text=text))
    assert found.outcome is Outcome.UNPARSED
    assert problem in found.reason


def test_nested_fields_are_read() -> None:
    """The label is read wherever an answer in JSON would have it."""
    assert read(Completion(text="positive"), field="results[1].label").label == "positive"


def spelled(*tokens: tuple[str, dict[str, float]]) -> Completion:
    """Return an answer in plain text, whose tokens have these probabilities."""
    found = []
    for text, top in tokens:
        listed = tuple((data.encode(), math.log(p)) for data, p in top.items())
        found.append(Token(text.encode(), math.log(top.get(text, 1.0)), listed))
    return Completion(text="".join(text for text, _ in tokens), tokens=tuple(found), evidence_problem="")


def test_logprobs_of_the_label_are_kept() -> None:
    """Spellings with and without a space are one label; a token may hold the end of the sentence."""
    top = {" posi": 0.4, "posi": 0.2, "nega": 0.3, "neg": 0.1}
    answer = spelled((" posi", top), ("tive.", {"tive.": 1.0}))
    distribution = read(answer, LabelSet(["positive", "negative"])).distribution
    assert distribution is not None
    assert distribution.probabilities.tolist() == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        (["cat", "dog"], [("It is a ", {}), ("cat", {"cat": 0.9, "dog": 0.1})]),
        (["cat", "catfish"], [("cat", {"cat": 0.9, "dog": 0.1})]),
        (["cat", 'a "dog"'], [("cat", {"cat": 0.9, "dog": 0.1})]),
    ],
)
def test_logprobs_that_mean_something_else_are_left(
    labels: list[str], tokens: list[tuple[str, dict[str, float]]]
) -> None:
    """Behind other words, or where labels begin alike, the tokens do not show the other labels."""
    found = read(spelled(*tokens), LabelSet(labels))
    assert (found.label, found.distribution) == ("cat", None)
