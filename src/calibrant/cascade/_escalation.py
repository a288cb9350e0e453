"""When an answer of a cascade is sure enough."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade._calibrator import Calibrator, applied, behaviour
from calibrant.cascade._checks import is_number
from calibrant.cascade._protocol import Assessment, ConfidenceMethod, NoEvidence
from calibrant.cascade._ties import tie_keys
from calibrant.cascade.automix._policy import bin_numbers
from calibrant.cascade.automix._several import CascadePolicy
from calibrant.cascade.automix._tree import CascadeAction, Seen
from calibrant.cascade.planning._rules import KeepRule
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._fingerprint import Fingerprint
from calibrant.inference._classifier import Classifier

Thresholds: TypeAlias = float | Sequence[float]


class EscalationRule(Protocol):
    """Decides from the verifier's confidence whether the next model is asked, as AutoMix learns it.

    One whose ``route`` has a parameter ``answers`` is told the labels as well, one with ``texts`` the texts.
    """

    def route(self, verifier_score: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether to ask the next model, bool, shape (n,), of confidences in [0, 1], shape (n,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Decides whether an answer is accepted; everything is in the order in which the models are asked.

    Attributes
    ----------
    thresholds : tuple of float
        On [0, 1]; one per model.
    native_thresholds : tuple of float
        The same in the method's own unit, or empty: used instead where they were given. Confidence has ends:
        mean log-probabilities of -4 and of -5 are both 0.
    meta_verifiers : tuple of callable
        Used instead: whether to ask the next model, of confidence, label and text; one per model but the last,
        or empty.
    calibrators : tuple of (Calibrator or None)
        What makes of a method's confidence the one that counts; one per model.
    description : mapping
        All of it as JSON values.
    final_last : bool
        Whether the last model's answer is taken however sure it is.
    verify_last : bool
        Whether the method is asked about the last model's answer.
    plan : CascadePolicy or None
        Decides instead of all that which model is asked next and which answer is verified.
    """

    thresholds: tuple[float, ...]
    native_thresholds: tuple[float, ...]
    meta_verifiers: tuple[Callable[[float, str | None, str], bool], ...]
    calibrators: tuple[Callable[[float, str | None], float] | None, ...]
    description: Mapping[str, Any]
    final_last: bool
    verify_last: bool
    plan: CascadePolicy | None = None

    def next_model(self, position: int | None, seen: Seen) -> int | None:
        """Return the place of the model to ask after this one (None: of the first); None where there is no other.

        `seen` holds the verified models of the row and their scores. After a failure, or an answer without evidence,
        no plan goes on: the next model is asked, and believed.
        """
        following = 0 if position is None else position + 1
        if self.plan is not None:
            following = max(following, self.plan.actions[seen].model)
        return following if following < len(self.thresholds) else None

    def verifies(self, position: int, seen: Seen) -> bool:
        """Return whether the method is asked about the answer of the model at this place."""
        if self.plan is not None:
            action = self.plan.actions[seen]
            return action.kind == "verify" and action.model == position
        return self.verify_last or position < len(self.thresholds) - 1

    def believes(self, position: int, seen: Seen) -> bool:
        """Return whether the answer of the model at this place ends the row whatever is known of it."""
        if self.plan is not None:
            return not self.verifies(position, seen)
        return self.final_last and position == len(self.thresholds) - 1

    def noted(self, seen: Seen, position: int, assessed: Assessment) -> Seen:
        """Return what has been seen with this assessment."""
        if self.plan is None:
            return seen
        found = bin_numbers(np.array([assessed.confidence]), self.plan.k[position])
        return (*seen, (position, int(found[0])))

    def calibrated(self, position: int, assessed: Assessment, label: str | None) -> Assessment | NoEvidence:
        """Return the assessment with the confidence that counts."""
        calibrate = self.calibrators[position]
        if calibrate is None:
            return assessed
        confidence = calibrate(assessed.confidence, label)
        if 0.0 <= confidence <= 1.0:
            return replace(assessed, confidence=confidence)
        return NoEvidence(
            reason=f"expected a confidence in [0, 1] of the calibrator, got {confidence!r}",
            usage=assessed.usage,
            attempts=assessed.attempts,
        )

    def accepts(self, position: int, assessed: Assessment, label: str | None, text: str, seen: Seen) -> bool:
        """Return whether the answer of the model at this place to this text is sure enough.

        `seen` holds the scores of the models so far, its own included.
        """
        if self.plan is not None:
            return self.plan.actions[seen] == CascadeAction(kind="report", model=position)
        if position < len(self.meta_verifiers):
            return not self.meta_verifiers[position](assessed.confidence, label, text)
        if position < len(self.native_thresholds):
            return assessed.native >= self.native_thresholds[position]
        return assessed.confidence >= self.thresholds[position]


def in_order(
    calibrators: Sequence[Calibrator | None] | None, places: Sequence[int]
) -> list[Calibrator | None]:
    """Return the calibrators of the models at these places.

    Raises
    ------
    ConfigurationError
        There is not one per model.
    """
    if calibrators is None:
        return [None] * len(places)
    if len(calibrators) != len(places):
        raise ConfigurationError(
            f"Expected one calibrator (or None) per model, {len(places)}, got {len(calibrators)}."
        )
    return [calibrators[place] for place in places]


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
    """Return the policy that the settings of a cascade describe; see `Cascade`.

    Raises
    ------
    ConfigurationError
        Settings contradict each other, or a number or a count is out of range.
    StateError
        A calibrator belongs to another classifier.
    """
    count = len(classifiers)
    given = {
        "threshold": threshold,
        "native_threshold": native_threshold,
        "meta_verifier": meta_verifier,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigurationError(
            f"Expected one of {', '.join(given)}, got {' and '.join(named)}: leave one out."
        )
    for classifier, calibrator in zip(classifiers, calibrators, strict=True):
        _check_fingerprint(classifier, calibrator)
    if isinstance(meta_verifier, CascadePolicy):
        return _planned(meta_verifier, calibrators, verify_last=verify_last)
    routers = _routers(meta_verifier, count)
    # Without a threshold of its own the last model's answer is taken.
    native = () if native_threshold is None else _each(native_threshold, count, "native_threshold")
    if native and any(one is not None for one in calibrators):
        raise ConfigurationError(
            "Expected threshold with calibrators, got native_threshold: what a calibrator returns has no such unit."
        )
    thresholds = () if routers else _thresholds(threshold, native, method, count)
    return Policy(
        thresholds=(*thresholds, *[0.0] * (count - len(thresholds))),
        native_thresholds=(*native, *[-math.inf] * (count - len(native))) if native else (),
        meta_verifiers=tuple(_routed(router) for router in routers),
        calibrators=tuple(None if one is None else applied(one) for one in calibrators),
        final_last=len(thresholds) < count,
        verify_last=not routers if verify_last is None else verify_last,
        description={
            "thresholds": None if routers else list(thresholds),
            "native_thresholds": list(native),
            "meta_verifiers": [_routes(router, classifiers[0].labels.labels) for router in routers],
            "calibrators": [None if one is None else behaviour(one) for one in calibrators],
            "verify_last": not routers if verify_last is None else verify_last,
        },
    )


def _planned(
    plan: CascadePolicy, calibrators: Sequence[Calibrator | None], *, verify_last: bool | None
) -> Policy:
    """Return the policy that carries a plan for all models out."""
    count = len(calibrators)
    if len(plan.k) != count - 1:
        raise ConfigurationError(
            f"Expected a policy for the {count} models of the cascade, got one for {len(plan.k) + 1}: plan it from "
            "rows that these models answered."
        )
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
    actions = sorted((seen, action.kind, action.model) for seen, action in plan.actions.items())
    digest = hashlib.sha256(json.dumps([plan.k, actions]).encode()).hexdigest()
    return Policy(
        thresholds=(0.0,) * count,
        native_thresholds=(),
        meta_verifiers=(),
        calibrators=tuple(None if one is None else applied(one) for one in calibrators),
        final_last=True,
        verify_last=False,
        plan=plan,
        description={
            "plan": {"models": count, "sha256": digest},
            "calibrators": [None if one is None else behaviour(one) for one in calibrators],
        },
    )


def _is_complete(plan: CascadePolicy) -> bool:
    """Return whether a policy has an action, of one of its models, for everything its own actions lead to."""
    reached: list[Seen] = [()]
    for seen in reached:  # grows on the way
        action = plan.actions.get(seen)
        last = len(plan.k) - (0 if action is None or action.kind == "report" else 1)
        if action is None or not 0 <= action.model <= last:
            return False
        if action.kind == "verify":
            reached += [(*seen, (action.model, step)) for step in range(plan.k[action.model] + 1)]
    return True


def _thresholds(
    threshold: Thresholds | None, native: Sequence[float], method: ConfidenceMethod, count: int
) -> tuple[float, ...]:
    """Return one threshold on [0, 1] per model, or one less."""
    if native:
        wanted = [method.to_confidence(one) for one in native]
    else:
        wanted = _each(method.default_threshold if threshold is None else threshold, count, "threshold")
    for value in wanted:
        if not 0.0 <= value <= 1.0:
            raise ConfigurationError(
                f"Expected a threshold in [0, 1], got {value!r}: a value in the method's own unit is a "
                "native_threshold."
            )
    return tuple(wanted)


def _each(given: object, count: int, name: str) -> list[float]:
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str):
        return [_number(given)] * count
    if len(given) not in {count, count - 1}:
        raise ConfigurationError(
            f"Expected one {name}, or one per model in the order in which they are asked ({count}; {count - 1} take "
            f"the last model's answer however sure it is), got {len(given)}."
        )
    return [_number(one) for one in given]


def _number(value: object) -> float:
    if not is_number(value):
        raise ConfigurationError(f"Expected a threshold as a finite number, got {value!r}.")
    return float(value)


def _routers(
    given: EscalationRule | Sequence[EscalationRule] | None, count: int
) -> tuple[EscalationRule, ...]:
    if given is None:
        return ()
    if isinstance(given, KeepRule) and given.splits:  # every model ranks the texts by itself
        given = [replace(given, key=key) for key in tie_keys(given.key, count - 1)]
    routers = tuple(given) if isinstance(given, Sequence) else (given,) * (count - 1)
    if len(routers) != count - 1 or not routers:
        raise ConfigurationError(
            f"Expected one meta_verifier per model but the last, {count - 1}, got {len(routers)}."
        )
    for router in routers:
        if not callable(getattr(router, "route", None)):
            raise ConfigurationError(f"Expected a meta_verifier with a method route, got {router!r}.")
    return routers


def _check_fingerprint(classifier: Classifier, calibrator: Calibrator | None) -> None:
    fitted = getattr(calibrator, "fingerprint", None)
    if fitted is None:
        return
    record = fitted.to_record() if isinstance(fitted, Fingerprint) else fitted
    differences = classifier.fingerprint().differences(record)
    if differences:
        raise StateError(
            f"Expected a calibrator fitted on the predictions of {classifier.name}, got one with another "
            f"{', '.join(differences)}: fit it again on these."
        )


def _routed(rule: EscalationRule) -> Callable[[float, str | None, str], bool]:
    route: Callable[..., NDArray[np.bool_]] = rule.route
    wanted = set(inspect.signature(route).parameters)

    def asks_next(confidence: float, label: str | None, text: str) -> bool:
        told = {"answers": [label], "texts": [text]}
        own = {name: value for name, value in told.items() if name in wanted}
        return bool(route(np.array([confidence]), **own)[0])

    return asks_next


def _routes(rule: EscalationRule, labels: Sequence[str]) -> dict[str, Any]:
    """Return what tells a rule from others: its class, and a digest of what it does, or the rule if texts count."""
    if isinstance(rule, KeepRule) and rule.splits:
        return {"class": type(rule).__qualname__, **rule.to_record()}
    route: Callable[..., NDArray[np.bool_]] = rule.route
    scores = np.linspace(0.0, 1.0, 1001)
    if "answers" in inspect.signature(route).parameters:
        found = [route(scores, answers=[label] * len(scores)) for label in labels]
    else:
        found = [route(scores)]
    digest = hashlib.sha256(np.packbits(np.asarray(found, dtype=np.bool_)).tobytes()).hexdigest()
    return {"class": type(rule).__qualname__, "sha256": digest}
