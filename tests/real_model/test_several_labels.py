"""Several labels in one answer of the embedded model."""

from __future__ import annotations

import json
import math

import pytest

from calibrant import Classifier
from calibrant.clients import local_models
from calibrant.core import Field, FieldLabels, LogprobSpace, MultiLabels, Outcome

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(
        not local_models()[0].installed,
        reason=f"the embedded model is not installed: {local_models()[0].install_command}",
    ),
    pytest.mark.timeout(300),
]

BOTH = FieldLabels(
    [
        Field(name="section", labels=["Business", "Science", "Sports"]),
        Field(name="tone", labels=["good", "bad"], path="meta.tone"),
    ]
)
TOPICS = MultiLabels(["Business", "Science", "Sports", "Travel"])
TEXTS = ("The striker scored twice.", "Shares fell on Monday.")
PROMPT = "Which section of a newspaper, and is it good or bad news? Answer with JSON."


def test_fields_are_scored_and_decoded_alike() -> None:
    """Both ways read the same model: distributions of the first field, and of the second behind the same label."""
    scored = Classifier(model="local/smollm2-135m", labels=BOTH, prompt=PROMPT, tolerance="exact")
    decoded = Classifier(
        model="local/smollm2-135m", labels=BOTH, prompt=PROMPT, scoring="decode", top_logprobs=50
    )
    for text in TEXTS:
        exact, read = scored.classify(text), decoded.classify(text)
        assert exact.outcome is Outcome.OK
        assert exact.text == read.text
        assert exact.label == read.label
        assert exact.confidence == pytest.approx(read.confidence, abs=0.05)
        for one, other in zip(exact.parts, read.parts, strict=True):
            assert one.distribution is not None
            assert other.distribution is not None
            assert one.distribution.space is LogprobSpace.EXACT
            assert one.distribution.probabilities == pytest.approx(other.distribution.probabilities, abs=0.05)
        assert exact.confidence == pytest.approx(math.prod(part.confidence or 0.0 for part in exact.parts))
    scored.close()
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
