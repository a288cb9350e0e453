"""Tests of a cascade of two prompts of the embedded model, with every confidence method."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calibrant.cascade import AutoMixEntailment, Cascade, CascadeModel, ConfidenceMethod, Verifier
from calibrant.core import LogprobSpace, Verdict
from calibrant.inference import Classifier
from embedded import EMBEDDED
from verifier_service import serving

pytestmark = EMBEDDED

LABELS = ("Business", "Science", "Sports")
TEXTS = ("The striker scored twice.", "Shares fell on Monday.", "A new telescope was launched.")
PROMPTS = (
    "Which section of a newspaper?",
    'Which section of a newspaper: Business, Science or Sports? Answer with JSON such as {"category": "Sports"}.',
)


@pytest.fixture(scope="module")
def models() -> Iterator[list[CascadeModel]]:
    """Return a short and a long prompt of one model, the more expensive one first."""
    classifiers = [
        Classifier(
            model="local/smollm2-135m", labels=LABELS, field="category", prompt=prompt, scoring="decode"
        )
        for prompt in PROMPTS
    ]
    yield [
        CascadeModel(classifier=classifiers[1], cost=2.0, name="long"),
        CascadeModel(classifier=classifiers[0], cost=1.0, name="short"),
    ]
    for classifier in classifiers:
        classifier.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the address of a verifier on the same model."""
    verifier = Verifier("local/smollm2-135m", k=3, options={"seed": 1})
    with serving(verifier) as address:
        yield address
    verifier.close()


@pytest.fixture(
    params=[
        "avg_logprob",
        "margin",
        "hybrid",
        pytest.param("self_verify", marks=pytest.mark.slow),
        pytest.param("automix_entailment", marks=pytest.mark.slow),
    ]
)
def method(request: pytest.FixtureRequest, url: str) -> ConfidenceMethod | str:
    """Return each confidence method."""
    return AutoMixEntailment(url) if request.param == "automix_entailment" else str(request.param)


def test_the_cheaper_prompt_is_asked_first_and_every_call_is_counted(
    models: list[CascadeModel], method: ConfidenceMethod | str
) -> None:
    """The cheaper prompt is asked first, every call is counted, and the surest answer is returned."""
    with_both = Cascade(models, method=method, threshold=1.0, escalation_order="cost", verify_last=True)
    assert with_both.models == ("short", "long")
    for prediction in with_both.classify_many(TEXTS):
        assert prediction.label in LABELS
        assert prediction.distribution is not None
        assert prediction.distribution.space is LogprobSpace.RAW
        steps = prediction.steps
        assert [step.model for step in steps] == ["short", "long"][: len(steps)]
        assert prediction.accepted == (steps[-1].verdict is Verdict.ACCEPTED)
        assert len(steps) == 2 or prediction.accepted
        known = [step.confidence for step in steps if step.confidence is not None]
        assert prediction.confidence == (max(known) if known else None)
        assert prediction.attempts == sum(step.attempts for step in steps) >= len(steps)
        assert prediction.usage.prompt_tokens == sum(step.usage.prompt_tokens for step in steps) > 0


def test_a_threshold_of_zero_accepts_every_answer_with_evidence(
    models: list[CascadeModel], method: ConfidenceMethod | str
) -> None:
    """At a threshold of 0 an answer is accepted if and only if it has a confidence."""
    found = Cascade(models, method=method, threshold=0.0, escalation_order="cost").classify(TEXTS[0])
    first = found.steps[0]
    assert (first.verdict is Verdict.ACCEPTED) == (first.confidence is not None)
    if first.verdict is Verdict.ACCEPTED:
        assert len(found.steps) == 1
        assert found.confidence == first.confidence
