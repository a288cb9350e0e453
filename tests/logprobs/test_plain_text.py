"""Tests of answers in plain text that are read as the labels they name."""

from __future__ import annotations

import json
import math

import pytest

from calibrant.core import CalibrantError, Completion, LabelSet, Token
from calibrant.logprobs import extract_distribution
from calibrant.logprobs._plain_text import as_json_answer

LABELS = LabelSet(["positive", "negative", "very negative", "Bills/Gas & Oil"])


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("positive", "positive"),
        (" **Positive**.\n", "Positive"),
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
    found = as_json_answer(Completion(text=text), LABELS, "label")
    assert json.loads(found.text) == {"label": label}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("positive, not negative", "several labels \\('positive', 'negative'\\)"),
        ("positively negated", "none of the labels"),
        ("", "none of the labels"),
    ],
)
def test_other_texts_are_unparsed(text: str, problem: str) -> None:
    """A text that names no label, or several, is no answer."""
    with pytest.raises(CalibrantError, match=problem):
        as_json_answer(Completion(text=text), LABELS, "label")


def test_nested_fields_are_written() -> None:
    """The JSON answer has the label at the field's path."""
    found = as_json_answer(Completion(text="positive"), LABELS, "results[1].label")
    assert json.loads(found.text) == {"results": [None, {"label": "positive"}]}


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
    found = as_json_answer(answer, LabelSet(["positive", "negative"]), "label")
    distribution = extract_distribution(found, ["positive", "negative"], "label", "raw")
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
    assert as_json_answer(spelled(*tokens), LabelSet(labels), "label").tokens is None
