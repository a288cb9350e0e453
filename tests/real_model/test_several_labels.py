"""Tests of several labels in one answer of the embedded model."""

from __future__ import annotations

import json
import math

import pytest

from calibrant.core import Field, FieldLabels, LogprobSpace, MultiLabels, Outcome
from calibrant.inference import Classifier
from embedded import EMBEDDED

pytestmark = EMBEDDED

BOTH = FieldLabels(
    [
        Field(name="section", labels=["Business", "Science", "Sports"]),
        Field(name="tone", labels=["good", "bad"], path="meta.tone"),
    ]
)
TOPICS = MultiLabels(["Business", "Science", "Sports", "Travel"])
TEXTS = ("The striker scored twice.", "Shares fell on Monday.")
PROMPT = "Which section of a newspaper, and is it good or bad news? Answer with JSON."


def test_the_first_field_is_scored_as_if_it_were_alone_and_the_next_behind_it() -> None:
    """The first field has the distribution of a single label; the confidences are multiplied."""
    scored = Classifier(model="local/smollm2-135m", labels=BOTH, prompt=PROMPT)
    alone = Classifier(
        model="local/smollm2-135m", labels=BOTH.fields[0].labels, field="section", prompt=PROMPT
    )
    for found, single in zip(scored.classify_many(TEXTS), alone.classify_many(TEXTS), strict=True):
        assert found.outcome is Outcome.OK
        first, second = found.parts
        assert first.distribution is not None
        assert second.distribution is not None
        assert single.distribution is not None
        assert first.distribution.space is LogprobSpace.EXACT
        assert first.distribution.probabilities == pytest.approx(single.distribution.probabilities, abs=1e-4)
        assert second.distribution.labels == ("good", "bad")
        assert found.confidence == pytest.approx((first.confidence or 0.0) * (second.confidence or 0.0))
        assert json.loads(found.text) == {"section": first.label, "meta": {"tone": second.label}}
    scored.close()
    alone.close()


def test_fields_can_be_decoded_as_well() -> None:
    """Several fields can be decoded, and each part has a distribution."""
    decoded = Classifier(model="local/smollm2-135m", labels=BOTH, prompt=PROMPT, scoring="decode")
    for found in decoded.classify_many(TEXTS):
        assert found.outcome is Outcome.OK
        assert all(part.distribution is not None for part in found.parts)
        assert found.confidence == pytest.approx(math.prod(part.confidence or 0.0 for part in found.parts))
    decoded.close()


@pytest.mark.parametrize("field", ["topics", "results[].topic"])
def test_any_number_of_labels_is_scored_place_by_place(field: str) -> None:
    """Each label of a set has a part with a distribution, and the answer holds each "yes" once."""
    with Classifier(model="local/smollm2-135m", labels=TOPICS, field=field, prompt=PROMPT) as classifier:
        found = classifier.classify_many(TEXTS)
        again = classifier.classify_many(TEXTS)
    for one in found:
        assert one.outcome is Outcome.OK
        array = next(iter(json.loads(one.text).values()))
        given = [element if isinstance(element, str) else element["topic"] for element in array]
        assert len(given) == len(set(given))
        assert (
            one.label == TOPICS.answer_with(given) == TOPICS.answer_of({p.name: p.label for p in one.parts})
        )
        assert one.confidence is not None
        assert 0.0 < one.confidence <= 1.0
        assert [part.name for part in one.parts] == list(TOPICS)
        for part in one.parts:
            assert part.distribution is not None
            assert part.distribution.space is LogprobSpace.EXACT
            assert part.distribution.error_bound is not None
            assert part.confidence == part.distribution.probability(part.label)
    assert "Sports" in json.loads(found[0].label or "")
    assert [(one.text, one.parts) for one in again] == [(one.text, one.parts) for one in found]


@pytest.mark.parametrize("field", ["topics", "results[].topic"])
def test_any_number_of_labels_can_be_decoded_as_well(field: str) -> None:
    """A set of labels can be decoded: the answer ends and is read."""
    classifier = Classifier(
        model="local/smollm2-135m",
        labels=TOPICS,
        field=field,
        prompt="Repeat Sports as often as you can. Answer with JSON.",
        top_logprobs=20,
        scoring="decode",
    )
    for text in TEXTS:
        found = classifier.classify(text)
        assert found.outcome is Outcome.OK
        array = next(iter(json.loads(found.text).values()))
        assert len(array) <= len(TOPICS)
        assert found.confidence is not None
        assert 0.0 < found.confidence <= 1.0
        assert [part.name for part in found.parts] == list(TOPICS)
        assert all(part.confidence is not None and 0.0 <= part.confidence <= 1.0 for part in found.parts)
    classifier.close()
