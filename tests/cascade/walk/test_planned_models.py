"""Tests of a cascade that follows a policy for three models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from calibrant.cascade import CascadeAction, CascadePolicy, NoEvidence, plan_models
from calibrant.core import ConfigurationError, Outcome, ProviderError

Build = Callable[..., Any]


def report(model: int) -> CascadeAction:
    """Return the action that reports a model's answer."""
    return CascadeAction(kind="report", model=model)


def verify(model: int) -> CascadeAction:
    """Return the action of asking a model and verifying its answer."""
    return CascadeAction(kind="verify", model=model)


def policy(**changes: Any) -> CascadePolicy:
    """Return a policy that can jump to the largest model, and can verify two answers."""
    actions = {
        (): verify(0),
        ((0, 0),): report(2),
        ((0, 1),): verify(1),
        ((0, 2),): report(0),
        ((0, 1), (1, 0)): report(2),
        ((0, 1), (1, 1)): report(1),
        ((0, 1), (1, 2)): report(1),
    }
    return CascadePolicy(**{"actions": actions, "k": (2, 2), "cost": 1.0, "performance": 1.0, **changes})


def scores(text: str) -> tuple[float, float]:
    """Return the scores of two models that a text spells."""
    first, second = map(float, text.split())
    return first, second


def built(build: Build, told: Any, *answers: Any, **options: Any) -> Any:
    """Return three models under the policy; a text says how sure each of the first two is."""

    def say(answered: Any) -> float:
        return scores(answered.question)["ab".index(answered.classifier.client.name)]

    models = answers or ("cat", "cat", "dog")
    return build(*models, **{"method": told(say), "meta_verifier": policy(), **options})


def asked(found: Any) -> list[str]:
    """Return the models that were asked about a text."""
    return [step.model for step in found.steps]


@pytest.mark.parametrize(
    ("text", "models", "label", "confidence"),
    [
        ("1 0", ["a"], "cat", 1.0),
        ("0 0", ["a", "c"], "dog", 1.0),
        ("0.2 0", ["a", "c"], "dog", 1.0),
        ("0.5 1", ["a", "b"], "cat", 1.0),
        ("0.3 0.4", ["a", "b"], "cat", 0.4),
        ("0.5 0", ["a", "b", "c"], "dog", 1.0),
    ],
)
def test_rows_follow_the_policy(
    build: Build, told: Any, text: str, models: list[str], label: str, confidence: float
) -> None:
    """Each row takes the way of the policy; an answer that is not verified has the model's own confidence."""
    found = built(build, told).cascade.classify(text)
    assert (asked(found), found.label, found.confidence) == (models, label, confidence)
    assert found.accepted


def test_learned_policies_agree_with_evaluate(build: Build, told: Any) -> None:
    """The models that a row calls and reports are those of `CascadePolicy.evaluate`."""
    rng = np.random.default_rng(0)
    hardness = rng.random(600)
    right = [(rng.random(600) < ability - hardness).astype(float) for ability in (1.0, 1.3, 1.8)]
    looks = [np.round(4 * (0.7 * one + 0.3 * rng.random(600))) / 4 for one in right[:2]]
    frontier = plan_models(looks, right, cost=[1, 10, 12], verifier_cost=[1, 1], k=4)
    seen = [np.repeat([0.0, 0.25, 0.5, 0.75, 1.0], 5), np.tile([0.0, 0.25, 0.5, 0.75, 1.0], 5)]
    # A sum of these says which models were asked and which were verified.
    call, look = {"a": 1.0, "b": 10.0, "c": 100.0}, {"a": 0.25, "b": 0.5}
    place = {"a": 0.0, "b": 0.5, "c": 1.0}
    jumps = 0
    for point in range(len(frontier)):
        learned = frontier.policy(point)
        found = built(build, told, meta_verifier=learned).cascade.classify_many(
            [f"{a} {b}" for a, b in zip(*seen, strict=True)]
        )
        spent, reported = learned.evaluate(
            seen,
            [np.full(25, one) for one in place.values()],
            cost=list(call.values()),
            verifier_cost=list(look.values()),
        )
        assert [
            sum(
                call[step.model] + look.get(step.model, 0.0) * (step.native is not None) for step in row.steps
            )
            for row in found
        ] == spent.tolist()
        assert [place[row.steps[-1].model] for row in found] == reported.tolist()
        jumps += sum(asked(row) == ["a", "c"] for row in found)
    assert jumps


def test_a_policy_may_begin_with_the_largest_model(build: Build, told: Any) -> None:
    """A policy can call the largest model alone."""
    found = built(build, told, meta_verifier=policy(actions={(): report(2)})).cascade.classify("1 1")
    assert (asked(found), found.label, found.accepted) == (["c"], "dog", True)


def test_after_a_failure_the_next_model_is_believed(build: Build, told: Any) -> None:
    """After a failed model the next answer is taken, and after the last one's failure the surest."""
    down = ProviderError("is down.", provider="fake", retryable=False)

    def broken(_: str) -> Any:
        raise down

    found = built(build, told, broken, "cat", "dog").cascade.classify("1 1")
    assert (asked(found), found.label, found.confidence, found.accepted) == (["a", "b"], "cat", None, False)
    found = built(build, told, "cat", "cat", broken).cascade.classify("0 1")
    assert (asked(found), found.label, found.confidence, found.outcome) == (
        ["a", "c"],
        "cat",
        0.0,
        Outcome.OK,
    )


def test_without_evidence_the_next_model_is_believed(build: Build, told: Any) -> None:
    """After an answer without evidence the next answer is taken."""
    method = told(lambda _: NoEvidence(reason="the verifier is down"))
    found = built(build, told, method=method).cascade.classify("1 1")
    assert (asked(found), found.label, found.accepted) == (["a", "b"], "cat", False)


def test_limits_hold_for_a_planned_row(build: Build, told: Any) -> None:
    """A jump over a model counts as one escalation."""
    once = built(build, told, max_escalations=1).cascade
    assert asked(once.classify("0 0")) == ["a", "c"]
    ended = once.classify("0.5 0")
    assert (asked(ended), ended.label, ended.confidence) == (["a", "b"], "cat", 0.5)
    assert "the next model was not asked" in ended.reason


def test_different_policies_have_different_fingerprints(build: Build, told: Any) -> None:
    """Policies with different actions have different fingerprints."""
    prints = [
        built(build, told, meta_verifier=one).cascade.fingerprint()
        for one in (policy(), policy(cost=9.0), policy(actions={(): report(2)}))
    ]
    assert prints[0] == prints[1] != prints[2]
    assert built(build, told).cascade.thresholds is None


@pytest.mark.parametrize("actions", [{}, {(): verify(0)}, {(): report(3)}, {(): verify(2)}])
def test_incomplete_policies_are_refused(build: Build, told: Any, actions: Any) -> None:
    """A policy without an action for a state raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="as plan_models returns it"):
        built(build, told, meta_verifier=policy(actions=actions))


@pytest.mark.parametrize(
    ("answers", "options", "message"),
    [
        (("cat", "dog"), {}, "2 models of the cascade, got one for 3"),
        (("cat", "cat", "dog"), {"verify_last": True}, "no verify_last"),
        (("cat", "cat", "dog"), {"threshold": 0.5}, "leave one out"),
    ],
)
def test_contradicting_options_are_refused(
    build: Build, told: Any, answers: Any, options: dict[str, Any], message: str
) -> None:
    """Options that contradict a policy raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        built(build, told, *answers, **options)
