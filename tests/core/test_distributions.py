"""Tests of distributions and predictions: confidence, alternatives, equality."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from calibrant.core import ConfigurationError, LabelDistribution, LogprobSpace, Prediction
from calibrant.logprobs import extract_distribution
from calibrant.testing import fake_response


def distribution(
    space: LogprobSpace = LogprobSpace.MASKED, joint: float | None = math.log(0.4)
) -> LabelDistribution:
    """Return 0.2, 0.5, 0.2, 0.1 over four labels, the last of them not measured."""
    return LabelDistribution(
        labels=("a", "b", "c", "d"),
        logprobs=np.log([0.2, 0.5, 0.2, 0.1]),
        measured=np.array([True, True, True, False]),
        joint_logprob=joint,
        label_mass=0.8,
        unresolved_mass=0.1,
        space=space,
    )


def test_masked_confidence_is_the_joint_probability() -> None:
    """In masked space the confidence is the joint probability, at most 1."""
    assert distribution().confidence("b") == pytest.approx(0.4)
    assert distribution(joint=1e-7).confidence("b") == 1.0


@pytest.mark.parametrize("space", [space for space in LogprobSpace if space is not LogprobSpace.MASKED])
def test_confidence_elsewhere_is_the_share(space: LogprobSpace) -> None:
    """The confidence is the label's share in other spaces and without a joint log-probability."""
    assert distribution(space).confidence("b") == pytest.approx(0.5)
    assert distribution(joint=None).confidence("b") == pytest.approx(0.5)


def test_only_emitted_labels_have_the_joint() -> None:
    """Only the emitted label has the joint probability as confidence; the others have their share."""
    found = replace(distribution(joint=math.log(0.9)), emitted="a")
    assert found.confidence("a") == pytest.approx(0.9)
    assert found.confidence("b") == pytest.approx(0.5)
    assert found.confidence("d") == pytest.approx(0.1)
    nothing = replace(found, emitted="")
    assert [nothing.confidence(label) for label in "abcd"] == pytest.approx([0.2, 0.5, 0.2, 0.1])


def test_unknown_emitted_labels_are_the_likeliest() -> None:
    """Without a known emitted label, the most probable labels have the joint probability."""
    found = distribution(joint=math.log(0.9))
    assert found.emitted is None
    assert [found.confidence(label) for label in "abcd"] == pytest.approx([0.2, 0.9, 0.2, 0.1])
    tied = replace(found, logprobs=np.log([0.4, 0.4, 0.1, 0.1]))
    assert [tied.confidence(label) for label in "abcd"] == pytest.approx([0.9, 0.9, 0.1, 0.1])


@pytest.mark.parametrize("space", LogprobSpace)
@pytest.mark.parametrize("emitted", [None, "", "b", "e"])
def test_unknown_labels_raise_key_errors(space: LogprobSpace, emitted: str | None) -> None:
    """The confidence in an unknown label raises KeyError in every space."""
    with pytest.raises(KeyError, match="e"):
        replace(distribution(space), emitted=emitted).confidence("e")


@pytest.mark.parametrize(
    ("written", "emitted", "confidence"),
    [("cat", "cat", [0.6, 0.4]), (" CAT", "cat", [0.6, 0.4]), ("cow", "", [0.5, 0.5])],
)
def test_extraction_names_the_emitted_label(written: str, emitted: str, confidence: list[float]) -> None:
    """Extraction sets `emitted` to the label, or to "" if the answer is no label."""
    response = fake_response(written, ["cat", "dog"], {written: 0.6, "dog": 0.4} if emitted else None)
    found = extract_distribution(response, ["cat", "dog"], "category")
    assert found.emitted == emitted
    assert [found.confidence(label) for label in ("cat", "dog")] == pytest.approx(confidence)


def test_probabilities_are_by_label() -> None:
    """`probability` returns the share of a label, and raises KeyError for an unknown label."""
    assert distribution().probabilities == pytest.approx([0.2, 0.5, 0.2, 0.1])
    assert distribution().probability("d") == pytest.approx(0.1)
    with pytest.raises(KeyError, match="e"):
        distribution().probability("e")


def test_alternatives_are_sorted_measured_labels() -> None:
    """Alternatives are sorted by share; ties keep the label order, unmeasured labels are left out."""
    found = distribution().alternatives(limit=10)
    assert [label for label, _ in found] == ["b", "a", "c"]
    assert [share for _, share in found] == pytest.approx([0.5, 0.2, 0.2])
    assert [label for label, _ in distribution().alternatives(exclude="b", limit=1)] == ["a"]
    assert len(replace(distribution(), measured=np.ones(4, dtype=bool)).alternatives()) == 3


def test_distributions_are_immutable_values() -> None:
    """Distributions are equal by content, read-only, and not hashable."""
    one = distribution()
    assert one == distribution()
    assert one != distribution(LogprobSpace.RAW)
    assert one != replace(one, label_mass=0.7)
    assert one != replace(one, emitted="a")
    assert one != replace(one, logprobs=np.log([0.5, 0.2, 0.2, 0.1]))
    assert one != replace(one, measured=np.ones(4, dtype=bool))
    assert one != "distribution"
    with pytest.raises(ValueError, match="read-only"):
        one.logprobs[0] = 0.0
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_arrays_are_copied() -> None:
    """A distribution copies the arrays that it is given."""
    logprobs, measured = np.log([0.75, 0.25]), np.array([True, True])
    found = LabelDistribution(
        labels=("a", "b"),
        logprobs=logprobs,
        measured=measured,
        joint_logprob=None,
        label_mass=1.0,
        unresolved_mass=0.0,
        space=LogprobSpace.EXACT,
    )
    logprobs[0], measured[0] = -9.0, False
    assert found.probability("a") == pytest.approx(0.75)
    assert found.measured.tolist() == [True, True]


def test_unknown_spaces_are_errors() -> None:
    """An unknown space raises ConfigurationError with the known ones."""
    with pytest.raises(
        ConfigurationError,
        match="'cooked': expected one of masked, raw, exact, sampled, decision, verbalised, fused",
    ):
        LogprobSpace("cooked")


@pytest.mark.parametrize(("confidence", "log"), [(None, None), (0.5, math.log(0.5)), (0.0, math.log(1e-300))])
def test_log_confidence_is_the_logarithm(confidence: float | None, log: float | None) -> None:
    """log_confidence is the logarithm, and finite for a confidence of zero."""
    assert Prediction(label="a", confidence=confidence).log_confidence == log
