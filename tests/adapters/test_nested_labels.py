"""Tests of labels of which one begins another."""

from __future__ import annotations

import math
from typing import Any

import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.inference import Classifier
from calibrant.scoring import LinearBlendScoring
from calibrant.testing import MemoryJournal

LABELS = ["Bills", "Bills/Gas"]
TOKENS: list[tuple[str, dict[str, float]]] = [
    ('{"category": "', {}),
    ("Bills", {"Bills": 0.98, "Other": 0.02}),
    ('"', {'"': 0.55, "/": 0.45}),
    ("}", {}),
]


def reported(text: str, probability: float) -> dict[str, Any]:
    """Return a token as OpenAI reports it."""
    return {"token": text, "bytes": list(text.encode()), "logprob": math.log(probability)}


def says_bills(_messages: object) -> dict[str, Any]:
    """Answer `Bills`, followed by a nearly equal chance of `Bills/Gas`."""
    content = [
        {**reported(text, top.get(text, 1.0)), "top_logprobs": [reported(*one) for one in top.items()]}
        for text, top in TOKENS
    ]
    message = {"role": "assistant", "content": "".join(text for text, _ in TOKENS)}
    return {"choices": [{"message": message, "finish_reason": "stop", "logprobs": {"content": content}}]}


def test_the_confidence_covers_the_whole_label() -> None:
    """The confidence covers the whole label with its end, also from a journal."""
    journal = MemoryJournal()
    for attempts in (1, 0):
        classifier = Classifier(model=says_bills, labels=LABELS, field="category", journal=journal)
        prediction = classifier.classify("t")
        assert prediction.attempts == attempts
        assert prediction.confidence == pytest.approx(0.98 * 0.55)
        assert prediction.distribution is not None
        assert prediction.distribution.joint_logprob == pytest.approx(math.log(0.98))
        assert prediction.distribution.probability("Bills") == pytest.approx(0.55)


def test_scores_use_the_whole_label() -> None:
    """Score and feedback use the confidence of the whole label, not of its first token."""
    adapter = ConfidenceAdapter(
        says_bills, "category", {"type": "object", "properties": {"category": {"enum": LABELS}}}
    )
    row = {"input": "t", "answer": "Bills", "additional_context": {}}
    found = adapter.evaluate([row], {"system_prompt": "Classify."}, capture_traces=True)
    confidence = 0.98 * 0.55
    expected = LinearBlendScoring(low_confidence_threshold=0.99).score(
        True,  # noqa: FBT003 (the protocol's own)
        math.log(confidence),
    )
    assert found.scores == [pytest.approx(expected)]
    assert found.objective_scores is not None
    assert found.objective_scores[0]["probability"] == pytest.approx(confidence)
    feedback = adapter.make_reflective_dataset({"system_prompt": "Classify."}, found, ["system_prompt"])
    assert "54%" in feedback["system_prompt"][0]["Feedback"]
    assert "'Bills/Gas' (45%)" in feedback["system_prompt"][0]["Feedback"]
    assert "98%" not in feedback["system_prompt"][0]["Feedback"]
