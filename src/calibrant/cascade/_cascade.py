"""Cascade of models as one predictor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self, TypeVar

from calibrant.cascade._escalation import EscalationRule, Thresholds, open_policy
from calibrant.cascade._methods import check_evidence, check_models, method_named
from calibrant.cascade._protocol import (
    Calibrator,
    CascadeModel,
    ConfidenceMethod,
    EscalationOrder,
    escalation_places,
    with_names,
)
from calibrant.cascade._walk import CascadeBudget, CascadeMember, ContextOf, Judge, OnError, RowLimits, Walk
from calibrant.cascade.automix._several import CascadePolicy
from calibrant.core._completion import Client
from calibrant.core._errors import ConfigurationError
from calibrant.core._fingerprint import Fingerprint, asked_text, sha256_of
from calibrant.core._prediction import Journal, LogprobSpace
from calibrant.core._predictor import Limits, OnPrediction, Query, Stop
from calibrant.heads._head import Head
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier
from calibrant.inference._feed import Feed, Runner
from calibrant.inference._limits import Gate

_V = TypeVar("_V")


class Cascade(BasePredictor):
    """Predictor that asks models in order until one is confident enough.

    An answer whose confidence reaches the threshold is accepted. When all fall short the most confident
    answer is returned (of equals the later model's) with `Prediction.accepted` False, and an answer without
    evidence only where there is no other: its confidence is None. `Prediction.steps` lists the part of every
    model, `Prediction.confidence` is the method's, and usage and attempts count every call.

    Every member is asked under its own prompt and user template. Where a query has another prompt than the
    cascade's (a candidate of an optimiser, `with_prompt`), this takes the place of every member's; so does
    another template.

    Parameters
    ----------
    classifiers : sequence of Classifier or CascadeModel
        The models, over the same labels. The cascade works with copies and changes none of them.
    method : ConfidenceMethod or str
        Measures the confidence in an answer; its name stands for it with its defaults.
    threshold : float or sequence of float, optional
        Confidence in [0, 1] from which an answer is accepted; by default the method's. A sequence has one
        per model in the order in which they are asked; one less takes the last model's answer however
        sure it is.
    native_threshold : float or sequence of float, optional
        The same in the method's own unit, such as a mean natural log-probability; compared in that unit, so that
        one beyond the end of [0, 1] counts, too. Not with `calibrators`, which have no such unit.
    escalation_order : {"small_to_large", "size", "declared", "cost", "automix"}
        ``small_to_large`` and ``size`` go by the number of parameters, where need be as the model's name
        tells it; where no model has one, the order is as declared. ``cost`` goes by cost. ``automix`` sorts
        by ``(1 - t) * quality + t * expense``, both growing: with t = 1 the cheapest comes first, with
        t = 0 the weakest. Expense is the cost between the least and the greatest, in [0, 1]; quality, where
        it is not given, ``0.3 + 0.7 * min(billions / 70, 1)``, or 0.5 without a size. Equals stay as declared.
    cost_quality_tradeoff : float, default 0.3
        The t of ``automix``, in [0, 1].
    on_error : {"skip", "fail"}
        A model that fails, refuses, answers with no label, or without evidence, is passed over for
        the next one, or ends the row with the steps so far. A model that gives no log-probabilities at all
        raises `LogprobsUnsupportedError` either way, unless its answers count without.
    max_escalations, max_tokens, max_cost, deadline_seconds : number, optional
        Limits of one row, at least 0: answers passed over, tokens and US dollars of all its calls,
        seconds. They are looked at before a further model is asked; see `RowLimits`.
    meta_verifier : object with ``route``, sequence of them, or CascadePolicy, optional
        Decides instead of a threshold, as `EscalationRule` says; one per model but the last, whose
        answer is then taken. A single one decides for each of them; a `KeepRule` that splits ties has a key derived
        from its own for every model after the first. A policy of `plan_models` decides for all models at once, in the
        order in which they are asked: which one is first, whose answers are verified, and which one comes next, so that
        a row may go from the smallest straight to the largest. Where a model fails, or nothing says how sure it is, the
        next one is asked and believed.
    calibrators : sequence of (Calibrator or None), optional
        One per model as listed; applied to the method's confidence before anything is decided.
    verify_last : bool, optional
        Whether the method is asked about the last model's answer. By default only where that makes no call
        (`ConfidenceMethod.makes_calls`), or where the last model has a threshold of its own: no other model would
        be asked. An answer nobody verified is taken and accepted, with the model's own confidence. Without one, or
        where an earlier model failed or gave no evidence, it has no confidence and is not accepted.
    context_of : callable or str, optional
        Returns the context that the answer to a text should be grounded in, or None, for methods that use it; in keys
        of a journal it counts by its name. A text stands for all. A text that is asked about with a context of its
        own (`TextWithContext`, a row's `Example.context`) has that.
    limits : Limits, optional
        Budgets and deadline of whole runs. Rates, calls in flight and deadlines of calls are the
        members' own, where `with_limits` or this says nothing else. By default there is the members'
        greatest concurrency and their least deadline.
    journal : Journal, optional
        Finished predictions, of the members as well: another threshold asks no model again.
    owns_models : bool, default False
        Whether `close` closes the classifiers and the method that were given, too.

    Attributes
    ----------
    method : ConfidenceMethod
        Measures the confidence in an answer.

    Raises
    ------
    ConfigurationError
        Models and method do not fit together, or a setting is out of range or contradicts another.
    StateError
        A calibrator was fitted on another classifier.

    Examples
    --------
    >>> from calibrant.testing import FakeClient
    >>> small = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, default=("dog", 0.6), name="small-1b")
    >>> large = FakeClient(["cat", "dog"], {}, default=("cat", 0.95), name="large-8b")
    >>> models = [
    ...     Classifier(model=one, labels=["cat", "dog"], field="category") for one in (small, large)
    ... ]
    >>> cascade = Cascade(models, method="label_probability", threshold=0.8)
    >>> [step.model for step in cascade.classify("sits there").steps]
    ['small-1b', 'large-8b']
    """

    _owned: tuple[ConfidenceMethod | Classifier, ...]  # what `close` closes

    def __init__(  # noqa: PLR0913  (keyword-only options)
        self,
        classifiers: Sequence[Classifier | CascadeModel],
        *,
        method: ConfidenceMethod | str,
        threshold: Thresholds | None = None,
        native_threshold: Thresholds | None = None,
        escalation_order: EscalationOrder = "small_to_large",
        cost_quality_tradeoff: float = 0.3,
        on_error: OnError = "skip",
        max_escalations: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        deadline_seconds: float | None = None,
        meta_verifier: EscalationRule | Sequence[EscalationRule] | CascadePolicy | None = None,
        calibrators: Sequence[Calibrator | None] | None = None,
        verify_last: bool | None = None,
        context_of: ContextOf | None = None,
        limits: Limits | None = None,
        journal: Journal | None = None,
        owns_models: bool = False,
    ) -> None:
        models = with_names(classifiers)
        # Calibrators come as declared, everything else in the order in which models are asked.
        places, order = escalation_places(models, escalation_order, tradeoff=cost_quality_tradeoff)
        asked = [models[place] for place in places]
        members = [model.classifier for model in asked]
        self.method = method_named(method) if isinstance(method, str) else method
        check_models(asked, self.method)
        policy = open_policy(
            members,
            self.method,
            threshold=threshold,
            native_threshold=native_threshold,
            meta_verifier=meta_verifier,
            calibrators=_ordered_calibrators(calibrators, places),
            verify_last=verify_last,
        )
        # Without a rule of its own, the last model's answer is taken without evidence.
        check_evidence(asked if len(policy.rules) == len(asked) else asked[:-1], self.method)
        self.labels = members[0].labels
        self.field = members[0].field
        # An optimiser starts from the prompt and the template that all models share.
        self.prompt = _common_value([member.prompt for member in members], "")
        self.user_template = _common_value([member.user_template for member in members], None)
        self._owned = (*members, self.method) if owns_models else ()
        if isinstance(method, str) and not owns_models:
            self._owned = (self.method,)
        walk = Walk(
            name=f"cascade({' -> '.join(model.label for model in asked)})",
            members=tuple(_member(model, self.method, limits) for model in asked),
            judge=Judge(method=self.method, context_of=context_of),
            policy=policy,
            limits=RowLimits(
                max_escalations=max_escalations,
                max_tokens=max_tokens,
                max_cost=max_cost,
                deadline_seconds=deadline_seconds,
            ),
            on_error=on_error,
            prompt=self.prompt,
            user_template=self.user_template,
            order=order,
        )
        self._open(walk, limits or _combined_limits(members), journal)

    def _open(self, walk: Walk, limits: Limits, journal: Journal | None) -> None:
        # The budget counts rows and costs; the gates of the members let their calls through.
        meters = [member.classifier.meter for member in walk.members]
        walk.budget = CascadeBudget(limits, meters)
        self._walk = walk
        self._runner = Runner(gate=walk.budget)
        if journal is not None:
            self.use_journal(journal)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, in the order of calls."""
        return tuple(member.label for member in self._walk.members)

    @property
    def clients(self) -> tuple[Client, ...]:
        """Clients of the models, in the order of calls."""
        return tuple(member.classifier.client for member in self._walk.members)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Call meters (counts and limits) of the models, in the order of calls."""
        return tuple(gate for member in self._walk.members for gate in member.classifier.gates)

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Acceptance threshold of each model's confidence, in [0, 1]; None with meta-verifiers."""
        return self._walk.policy.thresholds

    @property
    def name(self) -> str:
        """Name of the cascade."""
        return self._walk.name

    @property
    def space(self) -> LogprobSpace:
        """Common log-probability space of the models; ``none`` if their spaces differ."""
        spaces = [member.classifier.space for member in self._walk.members]
        return _common_value(spaces, LogprobSpace.NONE)

    @property
    def row_model(self) -> Walk:
        """Walk through the models that the feed asks."""
        return self._walk

    @property
    def scoring(self) -> str:
        """Name of the method of a cascade."""
        return "cascade"

    @property
    def first_head(self) -> Head | None:
        """Head of the first model; None without one."""
        first = self._walk.first
        return None if first is None else first.classifier.head

    @property
    def in_process(self) -> bool:
        """True if a model runs in this Python process, so that concurrent rows wait for each other."""
        return any(member.classifier.in_process for member in self._walk.members)

    @property
    def is_free(self) -> bool:
        """True if every model runs in this Python process."""
        return all(member.classifier.in_process for member in self._walk.members)

    async def feed(
        self,
        queries: Iterable[Query],
        deliver: OnPrediction,
        *,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> str:
        """Answer a stream of queries in bounded memory; see `calibrant.core.Predictor.feed`."""
        feed = Feed(
            self._walk,
            self._runner,
            deliver,
            ahead=self._walk.vectors_ahead(),
            on_prediction=on_prediction,
            stop=stop,
        )
        return await feed.run(queries)

    def with_prompt(self, prompt: str, *, user_template: str | None = None) -> Self:
        """Return a copy with another prompt for every model; clients and journals are shared.

        Parameters
        ----------
        prompt : str
            The system prompt.
        user_template : str, optional
            By default each model's own.
        """
        other = copy(self)
        other.prompt = prompt
        if user_template is not None:
            other.user_template = user_template
        return other

    def with_limits(self, limits: Limits) -> Self:
        """Return a copy with other limits and a new meter; clients and journals are shared.

        Parameters
        ----------
        limits : Limits
            Budgets and the deadline of a run hold for the whole; calls in flight, rates and the deadline of
            a call for each model, whose own rates and deadline of a call stay where these name none, and
            whose `CascadeModel.concurrency` stays.
        """
        other = copy(self)
        other._owned = ()  # noqa: SLF001  (of its own kind)
        members = []
        for member in self._walk.members:
            own = member.classifier
            classifier = own.with_limits(_member_limits(own.limits, limits, member.concurrency))
            members.append(replace(member, classifier=classifier))
        # A judge of its own, so that a journal given to the copy is not the original's.
        walk = replace(self._walk, members=tuple(members), judge=replace(self._walk.judge))
        other._open(walk, limits, self.journal)  # noqa: SLF001
        return other

    def asked_as(self, described: Mapping[str, Any]) -> Self:
        """Return a copy that asks its models as the method in a description does, without finding out."""
        members = []
        for member, method in zip(self._walk.members, described.get("models", ()), strict=False):
            members.append(replace(member, classifier=member.classifier.asked_as(method["method"])))
        if len(members) != len(self._walk.members):
            return self
        other = copy(self)
        other._walk = replace(self._walk, members=tuple(members))  # noqa: SLF001 (of its own kind)
        other._walk.budget = self._walk.budget  # noqa: SLF001
        return other

    @property
    def journal(self) -> Journal | None:
        """Journal of finished predictions, which are not requested again; None without one."""
        return self._runner.journal

    def use_journal(self, journal: Journal | None) -> None:
        """Set the journal for the predictions of the cascade, its models and its verifier.

        Models that came with a journal of their own keep it.
        """
        self._runner.journal = self._walk.judge.journal = journal
        for member in self._walk.members:
            # A journal that a model came with may be shared with others.
            if not member.keeps_journal:
                member.classifier.use_journal(journal)

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of the cascade, which tells if a saved calibration belongs to it."""
        # Names of models alone do not tell cascades of other prompts and thresholds apart.
        settings = json.dumps(self.describe(), sort_keys=True, default=repr)
        return Fingerprint(
            prompt=asked_text(self.prompt, self.user_template),
            model=f"{self.name} {sha256_of(settings)[:16]}",
            space=self.space,
            labels=self.labels,
        )

    def describe(self) -> dict[str, Any]:
        """Return the settings that can change a prediction as JSON values, free of credentials."""
        return {
            "model": self.name,
            "endpoint": None,
            "options": {},
            "method": dict(self._walk.describe(self.prompt, self.user_template)),
            "response_format": None,
            "top_logprobs": 0,
            "prompt": self.prompt,
            "user_template": self.user_template,
            "label_prior": None,
        }

    def close(self) -> None:
        """Close the models that the cascade owns, and a confidence method that was given by name."""
        for owned in self._owned:
            owned.close()


def _ordered_calibrators(
    calibrators: Sequence[Calibrator | None] | None, places: Sequence[int]
) -> list[Calibrator | None]:
    """Return the calibrators of the models, in the order of calls."""
    if calibrators is None:
        return [None] * len(places)
    if len(calibrators) != len(places):
        raise ConfigurationError(
            f"Expected one calibrator (or None) per model, {len(places)}, got {len(calibrators)}."
        )
    return [calibrators[place] for place in places]


def _member(model: CascadeModel, method: ConfidenceMethod, limits: Limits | None) -> CascadeMember:
    """Return a copy of a model for the cascade, with the cascade's limits."""
    original = model.classifier
    # A copy, as the cascade sets limits, journal and tokens of its own.
    own_limits = _member_limits(original.limits, limits or original.limits, model.concurrency)
    classifier = original.unless_told().with_limits(own_limits)
    if method.needs_tokens:
        classifier = classifier.with_tokens(top_logprobs=method.top_logprobs)
    copied = {**vars(model), "classifier": classifier}
    return CascadeMember(**copied, keeps_journal=original.journal is not None)


def _member_limits(own: Limits, whole: Limits, concurrency: int | None) -> Limits:
    """Return the limits of one model: call limits of the cascade where set, else the model's own."""
    most = filter(None, (concurrency, whole.concurrency or own.concurrency))
    return replace(
        own,
        concurrency=min(most, default=None),
        requests_per_minute=whole.requests_per_minute or own.requests_per_minute,
        tokens_per_minute=whole.tokens_per_minute or own.tokens_per_minute,
        call_seconds=whole.call_seconds or own.call_seconds,
    )


def _combined_limits(classifiers: Sequence[Classifier]) -> Limits:
    """Return the cascade's limits, combined from the models' limits."""
    own = [classifier.limits for classifier in classifiers]
    deadlines = [limits.run_seconds for limits in own if limits.run_seconds is not None]
    most = max(classifier.meter.concurrency for classifier in classifiers)
    limited = any(limits.concurrency is not None for limits in own)
    return Limits(concurrency=most if limited else None, run_seconds=min(deadlines, default=None))


def _common_value(values: Sequence[_V], otherwise: _V) -> _V:
    if all(value == values[0] for value in values):
        return values[0]
    return otherwise
