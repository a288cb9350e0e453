"""Prediction of one row by the models of a cascade, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from calibrant.cascade._escalation import Policy
from calibrant.cascade._judge import Judge
from calibrant.cascade._limits import CascadeBudget, RowLimits
from calibrant.cascade._methods import check_answer, task_section
from calibrant.cascade._models import CascadeModel, EscalationOrder
from calibrant.cascade._protocol import Answered, Assessment, NoEvidence
from calibrant.cascade.automix._several import Seen
from calibrant.core._errors import (
    ConfigurationError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
)
from calibrant.core._prediction import Outcome, Prediction, Step, Usage, Verdict
from calibrant.core._predictor import Query
from calibrant.core._records import Journal
from calibrant.inference._feed import QueryKeys

OnError: TypeAlias = Literal["skip", "fail"]

_T = TypeVar("_T")

_UNVERIFIED: Final = "its answer is taken as it is"
_NOTHING: Final = Prediction(label=None, outcome=Outcome.ERROR)


@dataclass(frozen=True, kw_only=True)
class CascadeMember(CascadeModel):
    """Model of a cascade, with a copy of its classifier under the cascade's limits.

    Attributes
    ----------
    keeps_journal : bool
        Whether it came with a journal of its own, which it keeps.
    """

    keeps_journal: bool

    @property
    def free(self) -> bool:
        """True if calls without a reported price cost 0 dollars."""
        return self.cost == 0

    @cached_property
    def described(self) -> Mapping[str, Any]:
        """Settings that can change the answers of the model."""
        return self.classifier.describe()


@dataclass(kw_only=True)
class _RowState:
    """State of one row: its steps so far and its best answer.

    Attributes
    ----------
    confidence : float or None
        Of the answer; None where nothing says how sure it is.
    decided : bool
        Whether the answer is sure enough.
    stopped : str
        Why the next model was not asked.
    unpriced : str
        A model whose price is not known.
    systemic : list of ProviderError
        Faults that every call to a model would meet.
    seen : tuple
        Scores that a plan for all models has asked for.
    """

    started: float
    steps: list[Step] = field(default_factory=list)
    answer: Prediction = _NOTHING
    confidence: float | None = None
    decided: bool = False
    stopped: str = ""
    unpriced: str = ""
    systemic: list[ProviderError] = field(default_factory=list)
    seen: Seen = ()

    @property
    def usage(self) -> Usage:
        """Token counts and cost of all steps."""
        return sum((step.usage for step in self.steps), Usage())

    @property
    def attempts(self) -> int:
        """Number of calls of all steps."""
        return sum(step.attempts for step in self.steps)

    def offer(self, prediction: Prediction, confidence: float | None) -> None:
        """Keep an answer unless the kept one has a higher confidence; a missing confidence is lowest."""
        new, kept = (-1.0 if one is None else one for one in (confidence, self.confidence))
        if new >= kept:  # of equals the later is taken: that model is called because it is the better one
            self.take(prediction, confidence)

    def take(self, prediction: Prediction, confidence: float | None = None) -> None:
        """Keep an answer in place of the kept one."""
        self.answer, self.confidence = prediction, confidence


@dataclass(kw_only=True)
class Walk:
    """Row model of a cascade: asks the models in order until an answer is accepted.

    Attributes
    ----------
    name : str
        The cascade's.
    members : tuple of CascadeMember
        In the order in which they are asked.
    judge : Judge
        Measures the confidence in an answer.
    policy : Policy
        Decides whether that is enough.
    limits : RowLimits
        Of one row.
    on_error : {"skip", "fail"}
        What happens when a model gives no answer, or none with evidence.
    prompt : str
        The cascade's own.
    user_template : str or None
        The cascade's own. Where a query has the same prompt, or template, each member is asked under its
        own; any other takes the place of every member's.
    order : str
        The order of the members.
    budget : CascadeBudget
        Adds up every call that is paid.
    """

    name: str
    members: tuple[CascadeMember, ...]
    judge: Judge
    policy: Policy
    limits: RowLimits
    on_error: OnError
    prompt: str
    user_template: str | None
    order: EscalationOrder
    budget: CascadeBudget = field(init=False)
    _keys: QueryKeys = field(default_factory=QueryKeys, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ConfigurationError(f"Expected on_error 'skip' or 'fail', got {self.on_error!r}.")

    def describe(self, prompt: str, user_template: str | None) -> Mapping[str, Any]:
        """Return the settings that can change a prediction under a prompt and a user template."""
        models = []
        for member in self.members:
            query = self._query_for(Query(prompt=prompt, text="", user_template=user_template), member)
            own = {"prompt": query.prompt, "user_template": query.user_template}
            models.append({**member.classifier.describe(), **own, "name": member.label, "free": member.free})
        return {
            "scoring": "cascade",
            "labels": self.members[0].classifier.labels.labels,
            **self.judge.describe(),
            **self.policy.description,
            "escalation_order": self.order,
            "on_error": self.on_error,
            "limits": asdict(self.limits),
            "models": models,
        }

    @property
    def knows_abilities(self) -> bool:
        """True if it is known how every member is asked."""
        return all(member.classifier.row_model.knows_abilities for member in self.members)

    async def find_abilities(self, first: Query, journal: Journal | None = None) -> None:
        """Find out how the members are asked, before the first key; rows report what keeps one from being asked."""
        for member in self.members:
            model = member.classifier.row_model
            if not model.knows_abilities:
                with contextlib.suppress(ProviderError):
                    await model.find_abilities(self._query_for(first, member), journal)
        # Keys of answers and of assessments name the forms of answers.
        self.members = tuple(replace(member) for member in self.members)
        self.judge = replace(self.judge)
        self._keys.clear()

    def prepare(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return the queries unchanged, as each model adds its own demonstrations."""
        return [(query, "") for query in queries]

    def key(self, query: Query) -> str:
        """Return a digest of everything that can change the prediction, the verifier's context included."""
        key = self._keys.key(query, self._key_settings)
        if query.context is None:
            return key
        return hashlib.sha256(f"{key}\0{query.context}".encode("utf-8", "surrogatepass")).hexdigest()

    def _key_settings(self, query: Query) -> list[object]:
        """Return the settings and the prompt that can change a prediction."""
        described = self.describe(self.prompt, self.user_template)
        return [self.name, described, query.prompt + query.shown, query.user_template]

    def richer_key(self, query: Query) -> None:  # noqa: ARG002  (the Protocol's)
        """Return None, as predictions of a cascade hold no features."""
        return

    def ends_run(self, error: ProviderError, *, answered: bool) -> bool:
        """Return True if an error ends the run: no log-probabilities, or every model failed from the start."""
        return isinstance(error, LogprobsUnsupportedError) or (error.systemic and not answered)

    def is_final(self, prediction: Prediction) -> bool:
        """Return True if a retry of the row could not change its answer.

        A model or a verifier that was down, or a deadline, may leave a row without its best answer; the next time
        the members' journals hold the calls that were paid.
        """
        if prediction.outcome is Outcome.ERROR:
            return False
        if prediction.accepted:
            return True
        late = self.limits.deadline_seconds is not None and len(prediction.steps) < len(self.members)
        return not late and not any(
            step.outcome is Outcome.ERROR or step.verdict is Verdict.NO_EVIDENCE for step in prediction.steps
        )

    async def predict(self, query: Query) -> Prediction:
        """Return the first accepted answer, or else the answer with the highest confidence.

        Raises
        ------
        ProviderError
            Every model failed for a reason that every call would meet, and none has ever answered.
        LogprobsUnsupportedError
            A model gives no log-probabilities: it would be asked about every row in vain.
        """
        row = _RowState(started=perf_counter())
        position = self.policy.next_model(None, row.seen)
        while position is not None:
            # Limits are looked at between calls: one that is under way is paid for already.
            if row.steps and self._is_stopped(row):
                break
            if await self._step(row, position, self._query_for(query, self.members[position])):
                break
            position = self.policy.next_model(position, row.seen)
        return self._result(row)

    def _is_stopped(self, row: _RowState) -> bool:
        """Return True if a limit of the row is reached; add the reason to its last step."""
        reason = self.limits.reached(
            escalations=sum(step.verdict is not Verdict.FAILED for step in row.steps),
            usage=row.usage,
            unpriced=row.unpriced,
            seconds=perf_counter() - row.started,
        )
        if reason:
            row.stopped = f"the next model was not asked: {reason}"
            reasons = filter(None, (row.steps[-1].reason, row.stopped))
            row.steps[-1] = replace(row.steps[-1], reason="; ".join(reasons))
        return bool(reason)

    def _query_for(self, query: Query, member: CascadeMember) -> Query:
        """Return the query with the prompt and user template for one model."""
        own, template = member.classifier, query.user_template
        return replace(
            query,
            prompt=own.prompt if query.prompt == self.prompt else query.prompt,
            user_template=own.user_template if template == self.user_template else template,
        )

    async def _step(self, row: _RowState, position: int, query: Query) -> bool:
        """Ask one model and assess its answer; return True if no further model is asked."""
        member = self.members[position]
        answer = await self._ask(row, position, query)
        usage = self._pay(row, member, answer.usage, answer.attempts)
        if answer.outcome is not Outcome.OK:
            row.steps.append(_step_of(member, Verdict.FAILED, answer, usage))
            # A failure never takes the place of an answer, unless it ends the row.
            if self.on_error == "fail" or row.answer.outcome is not Outcome.OK:
                row.take(answer)
            return self.on_error == "fail"
        if not self.policy.verifies(position, row.seen):
            self._take_unverified(row, member, answer, usage)
            return True
        assessed = await self._assess(row, position, query, answer)
        usage += self._pay(row, member, assessed.usage, assessed.attempts)
        if isinstance(assessed, NoEvidence):
            row.steps.append(_step_of(member, Verdict.NO_EVIDENCE, answer, usage, assessed))
            return self._without_evidence(row, position, answer, assessed.reason)
        row.seen = self.policy.with_score(row.seen, position, assessed)
        row.decided = self.policy.accepts(position, assessed, answer.label, query.text, row.seen)
        verdict = Verdict.ACCEPTED if row.decided else Verdict.ESCALATED
        row.steps.append(_step_of(member, verdict, answer, usage, assessed))
        (row.take if row.decided else row.offer)(answer, assessed.confidence)
        return row.decided

    async def _ask(self, row: _RowState, position: int, query: Query) -> Prediction:
        member = self.members[position]
        classifier, client = member.classifier, member.classifier.client
        call = classifier.answer(query)
        verified = self.policy.verifies(position, row.seen)
        try:
            # The first model's answer is waited for in any case: without it there is none.
            answer = await (self._in_time(row, call) if row.steps else call)
            if verified and not self.policy.believes(position, row.seen):
                check_answer(classifier, self.judge.method, answer)
        except LogprobsUnsupportedError as error:
            name = client.name if member.label == client.name else f"{member.label}: {client.name}"
            raise error.under(task_section(client, self.judge.method), provider=name) from None
        except ProviderError as error:
            if error.systemic:
                row.systemic.append(error)
            return Prediction(label=None, outcome=Outcome.ERROR, reason=str(error), attempts=error.attempts)
        return classifier.finished(query, answer)

    async def _assess(
        self, row: _RowState, position: int, query: Query, answer: Prediction
    ) -> Assessment | NoEvidence:
        member = self.members[position]
        classifier = member.classifier
        if (query.prompt, query.user_template) != (classifier.prompt, classifier.user_template):
            classifier = classifier.with_prompt(query.prompt, user_template=query.user_template)
        answered = Answered(
            question=query.text if query.user_template is None else query.messages()[1]["content"],
            prediction=answer,
            classifier=classifier,
        )
        try:
            assessed = await self._in_time(row, self.judge.assess(query, answered, member.described))
        except ProviderError as error:
            return NoEvidence(reason=str(error), attempts=error.attempts)
        if isinstance(assessed, NoEvidence):
            return assessed
        return self.policy.calibrate(position, assessed, answer.label)

    async def _in_time(self, row: _RowState, work: Awaitable[_T]) -> _T:
        """Await a call; raise ProviderTimeoutError at the row's deadline."""
        seconds = self.limits.deadline_seconds
        if seconds is None:
            return await work
        # This timeout of ours is told from one that the model raises.
        deadline = asyncio.timeout(max(0.0, seconds - (perf_counter() - row.started)))
        try:
            async with deadline:
                return await work
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise ProviderTimeoutError(
                f"given up, as deadline_seconds of {seconds:g} has passed.", provider=self.name
            ) from error

    def _pay(self, row: _RowState, member: CascadeMember, usage: Usage, attempts: int) -> Usage:
        """Add calls to the budget meter; return their usage, with cost 0 if the model is free."""
        if usage.cost is None:
            if member.free:
                usage = replace(usage, cost=0.0)
            elif usage.prompt_tokens or usage.completion_tokens:
                row.unpriced = member.label
        # An answer from a journal made no attempts, and is not paid again.
        if attempts:
            self.budget.pay(usage, attempts)
        return usage

    @staticmethod
    def _take_unverified(row: _RowState, member: CascadeMember, answer: Prediction, usage: Usage) -> None:
        """Take an answer that the method is not asked about, with the model's own confidence."""
        # After a failure, or an answer without evidence, the row came here by accident, and is no final one.
        is_planned = all(step.verdict is Verdict.ESCALATED for step in row.steps)
        confidence = answer.confidence if is_planned else None
        row.take(answer, confidence)
        row.decided = confidence is not None
        verdict = Verdict.ACCEPTED if row.decided else Verdict.NO_EVIDENCE
        reason = "not verified; the confidence is the model's own" if row.decided else _UNVERIFIED
        step = _step_of(member, verdict, answer, usage)
        row.steps.append(replace(step, confidence=confidence, reason=reason))

    def _without_evidence(self, row: _RowState, position: int, answer: Prediction, reason: str) -> bool:
        """Handle an answer without a confidence; return True if no further model is asked."""
        if self.policy.believes(position, row.seen):
            row.take(answer)
            return True
        if self.on_error == "fail":
            row.take(replace(_NOTHING, reason=reason, text=answer.text, model=answer.model))
            return True
        row.offer(answer, None)
        return False

    def _result(self, row: _RowState) -> Prediction:
        if len(row.systemic) == len(row.steps):  # a model that has ever answered is not among them
            faults = "; ".join(map(str, row.systemic))
            failure = ProviderError(f"no model could be asked: {faults}", provider=self.name, systemic=True)
            failure.attempts = row.attempts
            raise failure
        answer = row.answer
        reason = answer.reason
        if answer.outcome is not Outcome.OK:
            failed = [step for step in row.steps if step.outcome is not Outcome.OK or step.reason]
            reason = "; ".join(f"{step.model}: {step.reason}" for step in failed)
        elif not row.decided:
            reason = _refusal(row)
        return replace(
            answer,
            confidence=row.confidence,
            reason=reason,
            usage=row.usage,
            attempts=row.attempts,
            steps=tuple(row.steps),
            accepted=row.decided,
            # They belong to one model's answer, and would make every stored row large.
            tokens=None,
        )


def _step_of(
    member: CascadeMember,
    verdict: Verdict,
    answer: Prediction,
    usage: Usage,
    assessed: Assessment | NoEvidence | None = None,
) -> Step:
    """Return the step of a model; its label is None unless the prediction is ``ok``."""
    sure = assessed if isinstance(assessed, Assessment) else None
    return Step(
        model=member.label,
        verdict=verdict,
        label=answer.label,
        confidence=None if sure is None else sure.confidence,
        native=None if sure is None else sure.native,
        outcome=answer.outcome,
        reason=answer.reason if assessed is None else assessed.reason,
        usage=usage,
        attempts=answer.attempts + (0 if assessed is None else assessed.attempts),
    )


def _refusal(row: _RowState) -> str:
    """Return the reason why no answer of a row was accepted."""
    doubt = (
        "no model was sure enough" if row.confidence is not None else "nothing says how sure the models are"
    )
    # An escalated step's reason is the verifier's own, and belongs to that step alone.
    reasons = [row.stopped if step.verdict is Verdict.ESCALATED else step.reason for step in row.steps]
    more = "; ".join(dict.fromkeys(filter(None, reasons)))
    return f"{doubt}: {more}" if more else doubt
