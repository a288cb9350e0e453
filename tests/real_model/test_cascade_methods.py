"""Tests of confidence methods on the embedded model's own tokens."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest

from calibrant.cascade import (
    Answered,
    Assessment,
    AvgLogprob,
    ConfidenceMethod,
    Hybrid,
    LabelProbability,
    Margin,
    NoEvidence,
    SelfVerify,
)
from calibrant.core import LogprobSpace
from calibrant.inference import Classifier
from embedded import EMBEDDED

pytestmark = EMBEDDED

TEXTS = ("The striker scored twice.", "Shares fell on Monday.", "A new telescope was launched.")


@pytest.fixture(scope="module")
def classifier() -> Iterator[Classifier]:
    """Return a classifier on the embedded model that decodes and keeps tokens."""
    found = Classifier(
        model="local/smollm2-135m",
        labels=["Sports", "Business", "Science"],
        field="category",
        prompt="Which section of a newspaper?",
        scoring="decode",
    )
    yield found.with_tokens(top_logprobs=2)
    found.close()


@pytest.fixture(scope="module")
def answers(classifier: Classifier) -> list[Answered]:
    """Return the model's answers to a few texts."""
    predictions = classifier.classify_many(TEXTS)
    return [
        Answered(question=text, prediction=prediction, classifier=classifier)
        for text, prediction in zip(TEXTS, predictions, strict=True)
    ]


def assess(method: ConfidenceMethod, answered: Answered) -> Assessment | NoEvidence:
    """Return a method's assessment of an answer."""
    return asyncio.run(method.assess(answered))


@pytest.mark.parametrize("method", [AvgLogprob(), Margin(), Hybrid(), LabelProbability()])
def test_the_label_of_a_decoded_answer_is_assessed(method: ConfidenceMethod, answers: list[Answered]) -> None:
    """Every method assesses a decoded answer with a confidence in [0, 1]."""
    for answered in answers:
        found = assess(method, answered)
        assert isinstance(found, Assessment), found
        assert 0.0 <= found.confidence <= 1.0
        assert method.to_confidence(found.native) == pytest.approx(found.confidence)


def test_log_probabilities_are_those_of_the_unconstrained_model(answers: list[Answered]) -> None:
    """Mean token log-probabilities are those without the grammar, below those of the label."""
    for answered in answers:
        distribution = answered.prediction.distribution
        assert distribution is not None
        assert distribution.space is LogprobSpace.RAW
        written, chosen = assess(AvgLogprob(), answered), assess(LabelProbability(), answered)
        assert isinstance(written, Assessment)
        assert isinstance(chosen, Assessment)
        assert written.native < chosen.native
        assert chosen.confidence == pytest.approx(math.exp(chosen.native))


def test_text_that_was_given_counts_under_no_filter(answers: list[Answered]) -> None:
    """Text given to the model is left out of the mean, even with the filter "all"."""
    tokens = answers[0].prediction.tokens
    assert tokens is not None
    assert (tokens[0].logprob, tokens[0].top) == (0.0, ())
    chosen = [token.logprob for token in tokens if token.logprob < 0.0]
    found = assess(AvgLogprob(token_filter="all"), answers[0])
    assert isinstance(found, Assessment)
    assert found.native == pytest.approx(sum(chosen) / len(chosen))


def test_the_model_grades_its_answer(answers: list[Answered]) -> None:
    """Self-verification makes one call, and a grade it gives is in [0, 1]."""
    found = assess(SelfVerify(max_tokens=64), answers[0])
    assert found.attempts == 1
    assert found.usage.prompt_tokens > 100
    assert found.usage.completion_tokens > 1
    if isinstance(found, Assessment):
        assert 0.0 <= found.confidence <= 1.0
