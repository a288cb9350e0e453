"""Tests of the confidence methods with a name, and of meta-verifiers, in a running cascade."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from calibrant.cascade import (
    AvgLogprob,
    BaseMethod,
    Hybrid,
    Margin,
    POMDPMetaVerifier,
    SelfConsistencyMetaVerifier,
    ThresholdMetaVerifier,
    register_method,
)
from calibrant.core import ConfigurationError

Build = Callable[..., Any]


def grading(label: str, probability: float, grade: float) -> Callable[[str], Any]:
    """Return a model that answers texts, and grades its answers on request."""

    def rule(text: str) -> Any:
        if text == "t":
            return label, probability
        content = json.dumps({"confidence": grade, "reason": "I know."})
        return {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}

    return rule


@pytest.mark.parametrize("name", ["avg_logprob", "margin", "hybrid", "self_verify", "label_probability"])
def test_a_method_is_known_by_its_name(build: Build, name: str) -> None:
    """Each named method passes an unsure small model over for a sure large one."""
    built = build(grading("cat", 0.501, 0.1), grading("dog", 0.99, 0.9), method=name, threshold=0.775)
    found = built.cascade.classify("t")
    assert built.cascade.method.name == name
    assert (found.label, found.accepted) == ("dog", True)
    assert [step.verdict.value for step in found.steps] == ["escalated", "accepted"]
    calls = 2 if name == "self_verify" else 1  # about the last answer, no call is made
    assert built.calls == [calls, 1]
    assert found.attempts == calls + 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("automix_entailment", "Expected the address of a verifier for automix_entailment, got None"),
        ("sure", "Expected a confidence method among avg_logprob, .*, got 'sure'"),
    ],
)
def test_names_that_do_not_suffice_are_refused(build: Build, name: str, message: str) -> None:
    """An unknown name, or that of a method that needs options, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        build("cat", "dog", method=name)


def test_a_method_without_defaults_needs_an_object(build: Build) -> None:
    """The name of a method that cannot be made without options raises ConfigurationError."""

    @register_method
    class Sized(BaseMethod):
        name = "sized"

        def __init__(self, size: int) -> None:
            self.size = size

        async def assess(self, _answered: Any) -> Any:
            """Measure nothing: no object of this class is made."""

    with pytest.raises(
        ConfigurationError, match=r"that needs no options, got 'sized' \(.*'size'\): make one"
    ):
        build("cat", "dog", method="sized")


@pytest.mark.parametrize("name", ["avg_logprob", "margin", "hybrid", "label_probability"])
def test_models_without_evidence_are_refused(build: Build, name: str) -> None:
    """A model without log-probabilities raises ConfigurationError unless its answer is taken as it is."""
    sure, silent = {}, {"space": "none"}
    with pytest.raises(ConfigurationError, match="'b' reports none"):
        build(("cat", 0.9), "dog", method=name, threshold=0.8, classifiers=[sure, silent])
    build(("cat", 0.9), "dog", method=name, threshold=[0.8], classifiers=[sure, silent])


@pytest.mark.parametrize("kind", [AvgLogprob, Margin, Hybrid])
def test_tool_call_filter_needs_arguments(build: Build, kind: Callable[..., Any]) -> None:
    """The filter for arguments raises ConfigurationError with answers that have none."""
    method = kind(token_filter="tool_call_args")
    with pytest.raises(ConfigurationError, match="hold no arguments of a tool call"):
        build(("cat", 0.9), ("dog", 0.9), method=method)
    build(("cat", 0.9), method=method, classifiers=[{"field": "arguments.category"}])


SCORES = [0.0, 0.25, 0.5, 0.75, 1.0]


def fitted(rule: Any, turn: float) -> Any:
    """Return the rule, fitted on rows that the small model answers well above a score."""
    scores = SCORES * 40
    small = [float(score > turn) for score in scores]
    rule.fit(scores, small, [1.0] * len(scores), small_cost=1.0, large_cost=2.0, verifier_cost=0.1)
    return rule


@pytest.mark.parametrize(
    "make",
    [ThresholdMetaVerifier, lambda: POMDPMetaVerifier(k=4), lambda: POMDPMetaVerifier(k=4, form="discrete")],
)
def test_a_fitted_meta_verifier_runs_live(build: Build, told: Any, make: Callable[[], Any]) -> None:
    """A fitted meta-verifier escalates live as it routes, and different fits have different fingerprints."""
    rule = fitted(make(), 0.5)
    built = build("cat", "dog", method=told(lambda answered: float(answered.question)), meta_verifier=rule)
    found = built.cascade.classify_many([str(score) for score in SCORES])
    assert [row.label for row in found] == ["dog" if large else "cat" for large in rule.route(SCORES)]
    assert all(row.accepted for row in found)
    same, other = (
        build("cat", "dog", method=told(), meta_verifier=fitted(make(), turn)) for turn in (0.5, 0.25)
    )
    assert same.cascade.fingerprint() == build("cat", "dog", meta_verifier=rule).cascade.fingerprint()
    assert other.cascade.fingerprint() != same.cascade.fingerprint()


def test_fixed_answers_escalate_live(build: Build, told: Any) -> None:
    """Fixed answers escalate at any confidence."""
    rules = [SelfConsistencyMetaVerifier(fixed_answers=answers) for answers in ([], ["cat"])]
    cascades = [build("cat", "dog", method=told(lambda _: 1.0), meta_verifier=rule).cascade for rule in rules]
    assert [cascade.classify("t").label for cascade in cascades] == ["cat", "dog"]
    assert cascades[0].fingerprint() != cascades[1].fingerprint()
