"""Several labels in one answer of the embedded model."""

from __future__ import annotations

import json
import math

import pytest

from calibrant import Classifier
from calibrant.core import Field, FieldLabels, LogprobSpace, MultiLabels, Outcome
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
    """A field's distribution is that of a single label; the whole answer's confidence is the product."""
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
    """The engine's grammar holds for an object of several enums."""
    decoded = Classifier(model="local/smollm2-135m", labels=BOTH, prompt=PROMPT, scoring="decode")
    for found in decoded.classify_many(TEXTS):
        assert found.outcome is Outcome.OK
        assert all(part.distribution is not None for part in found.parts)
        assert found.confidence == pytest.approx(math.prod(part.confidence or 0.0 for part in found.parts))
    decoded.close()


@pytest.mark.parametrize("field", ["topics", "results[].topic"])
def test_any_number_of_labels_comes_with_a_confidence_for_each(field: str) -> None:
    """The grammar is obeyed, the answer ends, and what it says is read."""
    classifier = Classifier(
        model="local/smollm2-135m",
        labels=TOPICS,
        field=field,
        prompt="Repeat Sports as often as you can. Answer with JSON.",
        top_logprobs=20,
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
