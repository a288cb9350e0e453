"""Tests of stated confidence: percentages beside labels, pooled over variants of the prompt."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calibrant.core import ConfigurationError, Field, FieldLabels, LabelSet, LogprobSpace, Outcome, Prediction
from calibrant.inference import AnswerForm, Classifier, ModelAbilities, RetryPolicy
from calibrant.testing import FakeClient
from distributions import distribution_of
from saved_prediction import saved_and_read

LABELS = ["cat", "dog", "cow"]


def said(label: object, *confidence: object, **fields: object) -> dict[str, Any]:
    """Return an answer with a label and, if there is one, a confidence."""
    answer = {"category": label, **({"confidence": confidence[0]} if confidence else {}), **fields}
    message = {"role": "assistant", "content": json.dumps(answer)}
    return {"choices": [{"finish_reason": "stop", "message": message}]}


def make(client: Any, **changes: Any) -> Classifier:
    """Return a classifier by stated confidence with some of its arguments replaced."""
    arguments = {
        "labels": LABELS,
        "field": "category",
        "prompt": "Which animal?",
        "scoring": "fused",
        **changes,
    }
    return Classifier(model=client, retry=RetryPolicy(attempts=1), **arguments)


def asked(*answers: Any, **changes: Any) -> Prediction:
    """Return the prediction from these answers, one per call."""
    client = FakeClient(LABELS, {"text": list(answers)})
    return make(client, **({"samples": len(answers)} | changes)).classify("text")


def test_answers_are_pooled() -> None:
    """The distribution is the mean of those that the single answers state."""
    found = asked(said("cat", 90), said("dog", 60), said("cat", 70))
    shares = [(90.5 / 101, 0), (60.5 / 101, 1), (70.5 / 101, 0)]
    each = [[p if place == own else (1 - p) / 2 for place in range(3)] for p, own in shares]
    assert distribution_of(found).probabilities == pytest.approx(np.mean(each, axis=0))
    assert (found.label, found.attempts) == ("cat", 3)
    assert found.confidence == pytest.approx(np.mean(each, axis=0)[0])
    assert distribution_of(found).space is LogprobSpace.FUSED
    assert distribution_of(found).measured.tolist() == [True, True, False]
    assert saved_and_read(found) == found


@pytest.mark.parametrize(
    ("stated", "percent"),
    [(85, 85), ("85%", 85), ("85 %", 85), (0.85, 85), ("0.85", 85), (99.5, 99.5), (1, 1), (100, 100), (0, 0)],
)
def test_percentages_are_read(stated: object, percent: float) -> None:
    """Numbers, texts and fractions are read as percentages; none goes against its own label."""
    found = asked(said("cat", stated), samples=None, scoring="verbalised")
    assert found.confidence == pytest.approx(max((percent + 0.5) / 101, 1 / 3))
    assert distribution_of(found).space is LogprobSpace.VERBALISED
    assert np.isfinite(distribution_of(found).logprobs).all()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "cat 33%",
            "cat 33",
            "Cat, 33",
            "cat,33%",
            "cat 33 per cent",
            "cat\n\nConfidence: 33",
            "cat (33/100)",
        ),
        *("cat: 0.33", "I am 33 percent sure: cat, 33%", "33% cat", "<think>dog: 20%?</think>cat 33%"),
        '<think>hm, 20%</think>\n{"category": "cat", "confidence": 33}',
    ],
)
def test_percentages_in_plain_text_are_read(text: str) -> None:
    """Models that were asked for a label and a percentage in one line leave out signs, and think aloud before it."""
    message = {"role": "assistant", "content": text}
    answer = {"choices": [{"finish_reason": "stop", "message": message}]}
    abilities = ModelAbilities(form=AnswerForm.TEXT, gives_logprobs=False)
    labels = [*LABELS, "ant"]
    found = asked(answer, scoring="verbalised", samples=None, labels=labels, abilities=abilities)
    assert (found.label, found.confidence) == ("cat", pytest.approx(33.5 / 101))


@pytest.mark.parametrize("text", ["cat", "cat 33 or 34", "cat 2024", "cat of 3 lives, 9 of 10"])
def test_numbers_that_are_no_percentage_say_nothing(text: str) -> None:
    """What is no number, or one of several, counts as a percentage that is missing."""
    message = {"role": "assistant", "content": text}
    answer = {"choices": [{"finish_reason": "stop", "message": message}]}
    abilities = ModelAbilities(form=AnswerForm.TEXT, gives_logprobs=False)
    found = asked(answer, scoring="verbalised", samples=None, abilities=abilities)
    assert (found.label, found.confidence) == ("cat", pytest.approx(100.5 / 101))


@pytest.mark.parametrize("absurd", [120, -5, "high", True, None, [80], float("nan"), float("inf")])
def test_absurd_percentages_count_as_the_others(absurd: object) -> None:
    """A number that cannot be one is replaced by the mean of the row's others."""
    found = asked(said("cat", absurd), said("dog", 70), said("cat", 90))
    plain = asked(said("cat", 80), said("dog", 70), said("cat", 90))
    assert distribution_of(found).probabilities == pytest.approx(distribution_of(plain).probabilities)


def test_without_percentages_agreement_decides() -> None:
    """Answers that state nothing count as sure: two of three are two thirds, nearly."""
    found = asked(said("cat"), said("dog"), said("cat"))
    assert found.label == "cat"
    assert found.confidence == pytest.approx((2 * 100.5 + 0.25) / 303)


def test_the_plain_prompt_breaks_ties() -> None:
    """Of equally probable labels, the one under the plain prompt is taken."""
    assert asked(said("dog", 80), said("cat", 80), said("cow", 80)).label == "dog"


def test_the_most_probable_label_is_taken() -> None:
    """A sure answer under a variant outweighs a doubtful one under the plain prompt."""
    assert asked(said("cat", 40), said("dog", 90)).label == "dog"


def test_illegal_answers_lower_the_label_mass() -> None:
    """An answer that is no label counts in the label mass alone; without any legal one there is none."""
    found = asked(said("cat", 90), said("bird", 90), said("cat", 90))
    assert distribution_of(found).label_mass == pytest.approx(2 / 3)
    assert asked(said("bird", 90), said("bird", 90)).outcome is Outcome.UNPARSED


def test_prompts_vary_and_ask_for_percent() -> None:
    """Each call words the question otherwise, with another order of the labels; the first keeps that of the labels."""
    fake = FakeClient(LABELS, {"text": said("cat", 90)})
    make(fake, options={"seed": 5}).classify("text")
    systems = [request.messages[0]["content"] for request in fake.requests]
    schemas = [request.response_format["json_schema"]["schema"] for request in fake.requests]  # type: ignore[index]
    assert len(set(systems)) == 3
    assert all(text.startswith("Which animal?\n\n") and '"confidence"' in text for text in systems)
    orders = [tuple(schema["properties"]["category"]["enum"]) for schema in schemas]
    assert orders[0] == tuple(LABELS)
    assert len(set(orders)) == 3
    number = {"type": "integer", "minimum": 0, "maximum": 100}
    assert all(schema["properties"]["confidence"] == number for schema in schemas)
    assert all(schema["required"] == ["category", "confidence"] for schema in schemas)
    assert [request.options["seed"] for request in fake.requests] == [5, 6, 7]
    assert all(
        request.top_logprobs == 0 and request.messages[1]["content"] == "text" for request in fake.requests
    )


def test_formats_without_a_schema_stay() -> None:
    """Where answers are any JSON objects, the prompt alone asks for the percentage."""
    fake = FakeClient(LABELS, {"text": said("cat", 90)})
    assert make(fake, response_format={"type": "json_object"}).classify("text").label == "cat"
    assert [request.response_format for request in fake.requests] == [{"type": "json_object"}] * 3


def test_nested_and_taken_fields() -> None:
    """A nested label gets the percentage at the root; a field of that name gives it another."""
    message = {"role": "assistant", "content": '{"result": {"animal": "dog"}, "confidence": 70}'}
    fake = FakeClient(LABELS, {}, default={"choices": [{"finish_reason": "stop", "message": message}]})
    found = make(fake, field="result.animal").classify("text")
    assert (found.label, found.confidence) == ("dog", pytest.approx(70.5 / 101))
    content = '{"confidence": "cow", "confidence_percent": 70}'
    taken = FakeClient(LABELS, {}, default={"choices": [{"message": {"content": content}}]})
    found = make(taken, field="confidence").classify("text")
    assert (found.label, found.confidence) == ("cow", pytest.approx(70.5 / 101))


def test_several_fields_are_pooled_each() -> None:
    """The confidence is that of the whole answer; each field has the values of all answers."""
    kinds = {"animal": ["cat", "dog"], "mood": ["sad", "gay"]}
    labels = FieldLabels([Field(name=name, labels=LabelSet(own)) for name, own in kinds.items()])
    answers = [("cat", "sad", 90), ("cat", "gay", 80), ("cat", "sad", 70)]
    texts = [json.dumps({"animal": a, "mood": m, "confidence": c}) for a, m, c in answers]
    fake = FakeClient(LABELS, {"text": [{"choices": [{"message": {"content": text}}]} for text in texts]})
    found = make(fake, labels=labels).classify("text")
    assert labels.values(found.label or "") == {"animal": "cat", "mood": "sad"}
    assert found.confidence == pytest.approx((90.5 + 70.5) / 101 / 3)
    assert found.parts[0].confidence == pytest.approx((90.5 + 80.5 + 70.5) / 101 / 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 11}, r"samples to be a whole number in \[1, 10\], got 11"),
        ({"scoring": "auto", "samples": 11}, r"samples to be a whole number in \[1, 10\], got 11"),
        ({"samples": 1}, "at least 2 samples with scoring='fused'"),
        ({"scoring": "verbalised", "samples": 3}, "one call a row with scoring='verbalised', got samples=3"),
        ({"temperature": -1.0}, "temperature of at least 0, got -1.0"),
        ({"temperature": 1.0, "options": {"temperature": 0.5}}, "one temperature"),
        ({"options": {"seed": "x"}}, "seed to be a whole number"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    """Settings out of range are refused before a call."""
    fake = FakeClient(LABELS, {})
    with pytest.raises(ConfigurationError, match=message):
        make(fake, **changes)
    assert fake.requests == []


def test_a_head_mends_overconfidence() -> None:
    """A head that is fitted on labelled rows lowers percentages that are always too high."""
    rng = np.random.default_rng(0)
    truth = [LABELS[place] for place in rng.integers(3, size=80)]
    texts = [f"{number} {label}" for number, label in enumerate(truth)]

    def answer(text: str) -> Any:
        return said(text.split()[1] if rng.random() < 0.6 else LABELS[int(rng.integers(3))], 99)

    classifier = make(FakeClient(LABELS, answer), concurrency=1)
    classifier.fit(texts[:40], truth[:40])
    plain = make(FakeClient(LABELS, answer), concurrency=1).classify_many(texts[40:])
    found = classifier.classify_many(texts[40:])
    sure = np.mean([row.confidence for row in plain if row.confidence is not None])
    mended = np.mean([row.confidence for row in found if row.confidence is not None])
    right = np.mean([row.label == label for row, label in zip(found, truth[40:], strict=True)])
    assert abs(mended - right) < abs(sure - right)
