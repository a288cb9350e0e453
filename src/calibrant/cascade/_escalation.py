"""Escalation policies of a cascade."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from calibrant.cascade._protocol import (
    Assessment,
    Calibrator,
    ConfidenceMethod,
    NoEvidence,
    calibrator_record,
    class_record,
    for_one_row,
    is_share,
)
from calibrant.cascade._rules import KeepRule
from calibrant.cascade.automix._frontier import bin_numbers
from calibrant.cascade.automix._several import CascadeAction, CascadePolicy, Seen
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._fingerprint import Fingerprint, sha256_of
from calibrant.core._prediction import BoolArray, FloatArray, JsonObject
from calibrant.core._ranks import tie_keys
from calibrant.inference._classifier import Classifier
from calibrant.metrics._validation import check_number

Thresholds: TypeAlias = float | Sequence[float]
_Rule: TypeAlias = Callable[[Assessment, str | None, str], bool]


class EscalationRule(Protocol):
    """Protocol of learned rules that escalate rows by a verifier's confidence, as in AutoMix.

    One whose ``route`` has a parameter ``answers`` is given the labels as well, one with ``texts`` the texts.
    """

    def route(self, verifier_score: FloatArray) -> BoolArray:
        """Return the mask of escalated rows, bool, shape (n,), for confidences in [0, 1], shape (n,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Escalation policy over models, in calling order.

    Attributes
    ----------
    count : int
        Number of models.
    rules : tuple of callable
        Each returns whether to accept an answer, by its assessment, its label and the text. One per model, or one
        less where the last model's answer is taken however sure it is.
    thresholds : tuple of float or None
        Those of the rules on [0, 1], one per model; None where something else decides.
    calibrators : tuple of (callable or None)
        Each returns the confidence that counts, by the method's confidence and the label; one per model.
    verify_last : bool
        Whether the method is asked about the last model's answer.
    description : mapping
        All of it as JSON values.
    """

    count: int
    rules: tuple[_Rule, ...] = ()
    thresholds: tuple[float, ...] | None = None
    calibrators: tuple[Callable[..., Any] | None, ...]
    verify_last: bool = False
    description: Mapping[str, Any]

    def next_model(self, position: int | None, seen: Seen) -> int | None:  # noqa: ARG002  (for plans)
        """Return the position of the next model: the first for None, and None after the last.

        `seen` holds the scores of the row that a plan for all models has asked for.
        """
        following = 0 if position is None else position + 1
        return following if following < self.count else None

    def verifies(self, position: int, seen: Seen) -> bool:  # noqa: ARG002  (for plans)
        """Return True if the method assesses answers of the model at `position`."""
        return self.verify_last or position < self.count - 1

    def believes(self, position: int, seen: Seen) -> bool:  # noqa: ARG002  (for plans)
        """Return True if the answer of the model at `position` is accepted regardless of confidence."""
        return position >= len(self.rules)

    def with_score(self, seen: Seen, position: int, assessed: Assessment) -> Seen:  # noqa: ARG002  (for plans)
        """Return the scores seen for a row after an assessment; only a learned plan adds any."""
        return seen

    def accepts(self, position: int, assessed: Assessment, label: str | None, text: str, seen: Seen) -> bool:
        """Return True if the model's answer to the text is accepted.

        `seen` holds the scores of the models so far, its own included.
        """
        return self.believes(position, seen) or self.rules[position](assessed, label, text)

    def calibrate(self, position: int, assessed: Assessment, label: str | None) -> Assessment | NoEvidence:
        """Return the assessment with calibrated confidence."""
        calibrate = self.calibrators[position]
        if calibrate is None:
            return assessed
        confidence = float(calibrate(assessed.confidence, predicted=label))
        return replace(assessed, confidence=confidence).checked("the calibrator")


@dataclass(frozen=True, kw_only=True)
class _PlannedPolicy(Policy):
    """Policy of a learned plan, which has an action for each state that can be reached."""

    plan: CascadePolicy

    def next_model(self, position: int | None, seen: Seen) -> int | None:
        # No plan speaks of a failure, or of an answer without evidence: the next model is asked then, and believed.
        following = max(0 if position is None else position + 1, self.plan.actions[seen].model)
        return following if following < self.count else None

    def verifies(self, position: int, seen: Seen) -> bool:
        return self.plan.actions[seen] == CascadeAction(kind="verify", model=position)

    def believes(self, position: int, seen: Seen) -> bool:
        return not self.verifies(position, seen)

    def with_score(self, seen: Seen, position: int, assessed: Assessment) -> Seen:
        steps = self.plan.k[position]
        (number,) = bin_numbers([assessed.confidence], steps).tolist()
        return (*seen, (position, number))

    def accepts(self, position: int, assessed: Assessment, label: str | None, text: str, seen: Seen) -> bool:  # noqa: ARG002
        return self.plan.actions[seen] == CascadeAction(kind="report", model=position)


def open_policy(  # noqa: PLR0913  (keyword-only options)
    classifiers: Sequence[Classifier],
    method: ConfidenceMethod,
    *,
    threshold: Thresholds | None,
    native_threshold: Thresholds | None,
    meta_verifier: EscalationRule | Sequence[EscalationRule] | CascadePolicy | None,
    calibrators: Sequence[Calibrator | None],
    verify_last: bool | None,
) -> Policy:
    """Build the escalation policy from a cascade's settings; see `Cascade`.

    Raises
    ------
    ConfigurationError
        Settings contradict each other, or a number or a count is out of range.
    StateError
        A calibrator belongs to another classifier.
    """
    count = len(classifiers)
    _check_one_of(threshold=threshold, native_threshold=native_threshold, meta_verifier=meta_verifier)
    _check_fingerprints(classifiers, calibrators)
    fitted = [calibrator_record(calibrator) for calibrator in calibrators]
    apply = tuple(None if one is None else for_one_row(one.predict) for one in calibrators)
    if isinstance(meta_verifier, CascadePolicy):
        _check_plan(meta_verifier, count, verify_last)
        described = {"plan": _plan_record(meta_verifier), "calibrators": fitted}
        return _PlannedPolicy(count=count, calibrators=apply, description=described, plan=meta_verifier)
    routers = _routers(meta_verifier, count)
    native = [] if native_threshold is None else _each(native_threshold, count, "native_threshold")
    # A calibrated confidence cannot be compared with a log-probability.
    if native and any(fitted):
        raise ConfigurationError(
            "Expected threshold with calibrators, got native_threshold: what a calibrator returns has no such unit."
        )
    limits = [] if routers else _thresholds(threshold, native, method, count)
    if verify_last is None:
        given = threshold if native_threshold is None else native_threshold
        verify_last = _has_last_threshold(given, count) or not method.makes_calls
    # Nothing is compared with the last model's threshold where its answer is not verified.
    judged = count if verify_last else count - 1
    limits = limits[:judged]
    native = native[:judged]
    labels = classifiers[0].labels.labels
    # Without a threshold of its own the last model's answer is taken.
    missing = [0.0] * (count - len(limits))
    return Policy(
        count=count,
        rules=_rules(routers, native, limits),
        thresholds=None if routers else (*limits, *missing),
        calibrators=apply,
        verify_last=verify_last,
        description={
            "thresholds": None if routers else limits,
            "native_thresholds": native,
            "meta_verifiers": [_route_record(router, labels) for router in routers],
            "calibrators": fitted,
            "verify_last": verify_last,
        },
    )


def _rules(
    routers: Sequence[EscalationRule], native: Sequence[float], limits: Sequence[float]
) -> tuple[_Rule, ...]:
    """Return the acceptance rules: those of meta-verifiers, else of native thresholds, else of thresholds."""
    if routers:
        return tuple(_by_route(router) for router in routers)
    if native:
        # Confidence has ends: mean log-probabilities of -4 and of -5 are both 0, so these count as they are.
        return tuple(_at_least(limit, "native") for limit in native)
    return tuple(_at_least(limit, "confidence") for limit in limits)


def _has_last_threshold(threshold: Thresholds | None, count: int) -> bool:
    """Return True if the last model has a threshold of its own: one of several, or that of the only model."""
    return count == 1 or (isinstance(threshold, Sequence | np.ndarray) and len(threshold) == count)


def _check_one_of(**options: object) -> None:
    named = [name for name, value in options.items() if value is not None]
    if len(named) > 1:
        raise ConfigurationError(
            f"Expected one of {', '.join(options)}, got {' and '.join(named)}: leave one out."
        )


def _plan_record(plan: CascadePolicy) -> JsonObject:
    """Return the number of models and a digest of all actions."""
    actions = sorted((seen, action.kind, action.model) for seen, action in plan.actions.items())
    text = json.dumps([plan.k, actions])
    return {"models": len(plan.k) + 1, "sha256": sha256_of(text)}


def _at_least(limit: float, unit: str) -> _Rule:
    return lambda assessed, _label, _text: getattr(assessed, unit) >= limit


def _by_route(rule: EscalationRule) -> _Rule:
    route = for_one_row(rule.route)
    return lambda assessed, label, text: not route(assessed.confidence, answers=label, texts=text)


def _check_plan(plan: CascadePolicy, count: int, verify_last: bool | None) -> None:
    if len(plan.k) != count - 1:
        raise ConfigurationError(
            f"Expected a policy for the {count} models of the cascade, got one for {len(plan.k) + 1}: plan it from "
            "rows that these models answered."
        )
    # A gap would be met in the middle of a row that is paid for.
    if not _is_complete(plan):
        raise ConfigurationError(
            f"Expected a policy with an action for all that can be seen, as plan_models returns it, got {plan!r}: take "
            "one of its policies."
        )
    if verify_last is not None:
        raise ConfigurationError(
            f"Expected no verify_last with a policy of plan_models, which says whose answers are verified, got "
            f"{verify_last!r}: leave it out."
        )


def _is_complete(plan: CascadePolicy) -> bool:
    """Return True if a policy has a valid action for every state it can reach."""
    reached: list[Seen] = [()]
    for seen in reached:  # grows on the way
        action = plan.actions.get(seen)
        if action is None or not 0 <= action.model <= len(plan.k):
            return False
        if action.kind == "verify":
            if action.model == len(plan.k):  # nobody verifies the last model
                return False
            bins = range(plan.k[action.model] + 1)
            reached += [(*seen, (action.model, number)) for number in bins]
    return True


def _thresholds(
    threshold: Thresholds | None, native: Sequence[float], method: ConfidenceMethod, count: int
) -> list[float]:
    """Return the acceptance thresholds in [0, 1], one per model; the last model's may be missing."""
    limits = [method.to_confidence(value) for value in native]
    if not limits:
        limits = _each(method.default_threshold if threshold is None else threshold, count, "threshold")
    for limit in limits:
        if not is_share(limit):
            raise ConfigurationError(
                f"Expected a threshold in [0, 1], got {limit!r}: a value in the method's own unit is a "
                "native_threshold."
            )
    return limits


def _each(limits: object, count: int, name: str) -> list[float]:
    if not isinstance(limits, Sequence | np.ndarray) or isinstance(limits, str):
        limits = [limits] * count
    if len(limits) not in {count, count - 1}:
        raise ConfigurationError(
            f"Expected one {name}, or one per model in the order in which they are asked ({count}; {count - 1} take "
            f"the last model's answer however sure it is), got {len(limits)}."
        )
    return [check_number(name, limit, "(-inf, inf)") for limit in limits]


def _routers(
    rules: EscalationRule | Sequence[EscalationRule] | None, count: int
) -> tuple[EscalationRule, ...]:
    if rules is None:
        return ()
    judged = count - 1
    if isinstance(rules, KeepRule) and rules.splits:  # every model ranks the texts by itself
        rules = [replace(rules, key=key) for key in tie_keys(rules.key, judged)]
    routers = tuple(rules) if isinstance(rules, Sequence) else (rules,) * judged
    if len(routers) != judged or not routers:
        raise ConfigurationError(
            f"Expected one meta_verifier per model but the last, {judged}, got {len(routers)}."
        )
    for router in routers:
        if not callable(getattr(router, "route", None)):
            raise ConfigurationError(f"Expected a meta_verifier with a method route, got {router!r}.")
    return routers


def _check_fingerprints(classifiers: Sequence[Classifier], calibrators: Sequence[Calibrator | None]) -> None:
    for classifier, calibrator in zip(classifiers, calibrators, strict=True):
        fitted = getattr(calibrator, "fingerprint", None)
        if fitted is None:
            continue
        record = fitted
        if isinstance(fitted, Fingerprint):
            record = fitted.to_record()
        differences = classifier.fingerprint().differences(record)
        if differences:
            raise StateError(
                f"Expected a calibrator fitted on the predictions of {classifier.name}, got one with another "
                f"{', '.join(differences)}: fit it again on these."
            )


def _route_record(rule: EscalationRule, labels: Sequence[str]) -> JsonObject:
    """Return a rule's class and a digest of its decisions; the full rule if decisions depend on texts."""
    if isinstance(rule, KeepRule) and rule.splits:
        return {"class": type(rule).__qualname__, **rule.to_record()}
    route: Callable[..., BoolArray] = rule.route
    # A rule may be any object: its decisions on a grid tell it from others.
    scores = np.linspace(0.0, 1.0, 1001)
    if "answers" in inspect.signature(route).parameters:
        routed = [route(scores, answers=[label] * len(scores)) for label in labels]
    else:
        routed = [route(scores)]
    bits = np.packbits(np.asarray(routed, dtype=np.bool_))
    return class_record(rule, bits.tobytes())
