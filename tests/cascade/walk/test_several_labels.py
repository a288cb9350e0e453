"""Tests of cascades over answers that hold several labels."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.cascade import AvgLogprob, Cascade, CascadeModel, LabelProbability, SelfVerify
from calibrant.core import ConfigurationError, Field, FieldLabels, MultiLabels, Verdict
from calibrant.inference import Classifier
from calibrant.testing import FakeClient

TOPICS = MultiLabels(["cat", "dog", "bird"])


def models(*said: Any, labels: Any = TOPICS) -> list[CascadeModel]:
    """Return models with this answer to every text, the cheapest first."""
    return [
        CascadeModel(
            classifier=Classifier(
                model=FakeClient(labels, {}, default=one, field="animals", name="abc"[number]),
                labels=labels,
                field="animals",
            ),
            cost=number,
        )
        for number, one in enumerate(said)
    ]


def test_the_confidence_of_the_whole_answer_decides() -> None:
    """The confidence of the whole answer decides, and the answer keeps its parts."""
    unsure, sure = {'["cat", "dog"]': 0.5, '["bird"]': 0.5}, ('["dog"]', 0.9)
    cascade = Cascade(models(unsure, sure), method=LabelProbability(), threshold=0.8)
    found = cascade.classify("text")
    assert [step.verdict for step in found.steps] == [Verdict.ESCALATED, Verdict.ACCEPTED]
    assert found.steps[0].confidence == pytest.approx(0.5)
    assert found.label == '["dog"]'
    assert [part.label for part in found.parts] == ["no", "yes", "no"]
    assert found.parts[1].confidence == pytest.approx(0.9 / 0.9666667, abs=0.01)


def test_only_tokens_of_all_labels_are_read() -> None:
    """Token methods need ``token_filter="all"`` where an answer holds several labels."""
    with pytest.raises(ConfigurationError, match="token_filter='all'"):
        Cascade(models("[]", "[]"), method=AvgLogprob(), threshold=0.8)
    cascade = Cascade(models(('["cat"]', 0.9), "[]"), method=AvgLogprob(token_filter="all"), threshold=0.8)
    found = cascade.classify("text")
    assert found.steps[0].verdict is Verdict.ACCEPTED
    assert found.label == '["cat"]'


def test_the_whole_answer_is_graded() -> None:
    """The grading prompt has the answer as JSON, and all labels."""
    asked = models('["cat"]', "[]")
    client: Any = asked[0].classifier.client
    cascade = Cascade(asked, method=SelfVerify(), threshold=0.7)
    cascade.classify("text")
    message = client.requests[1].messages[-1]["content"]
    assert '[\\"cat\\"]' in message
    assert "bird" in message


def test_models_must_have_labels_of_one_kind() -> None:
    """Labels of another kind raise ConfigurationError."""
    one = Classifier(model=FakeClient(["cat", "dog", "bird"], {}), labels=["cat", "dog", "bird"])
    with pytest.raises(ConfigurationError, match="to have the labels of"):
        Cascade(
            [*models("[]"), CascadeModel(classifier=one, cost=2)], method=LabelProbability(), threshold=0.5
        )
    moved = FieldLabels([Field(name="a", labels=["x", "y"]), Field(name="b", labels=["x", "y"])])
    with pytest.raises(ConfigurationError, match="to have the labels of"):
        Cascade([*models("[]"), *models("{}", labels=moved)], method=LabelProbability(), threshold=0.5)
