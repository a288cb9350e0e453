"""One row through a cascade: model after model, until one is sure enough."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypeVar

from calibrant.cascade._escalation import Policy
from calibrant.cascade._evidence import check_answer, task_section
from calibrant.cascade._judge import Judge
from calibrant.cascade._limits import RowLimits
from calibrant.cascade._order import EscalationOrder
from calibrant.cascade._protocol import Answered, Assessment, NoEvidence
from calibrant.cascade._purse import Purse
from calibrant.cascade.automix._tree import Seen
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import LogprobsUnsupportedError, ProviderError, ProviderTimeoutError
from calibrant.core._prediction import Outcome, Prediction, Step, Usage, Verdict
from calibrant.core._predictor import Query
from calibrant.inference._classifier import Classifier
from calibrant.inference._prompted import QueryKeys

OnError: TypeAlias = Literal["skip", "fail"]

_T = TypeVar("_T")

_NOTHING: Final = Prediction(label=None, outcome=Outcome.ERROR)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One model in its place.

    Attributes
    ----------
    name : str
        What steps call it.
    classifier : Classifier
        The cascade's own copy.
    free : bool
        Whether its calls count as 0 dollars where nobody reports a price.
    keeps_journal : bool
        Whether it came with a journal of its own, which it keeps.
    described : mapping
        What can change its answers.
    concurrency : int or None
        Its calls in flight at most, whatever the limits of the whole.
    """

    name: str
    classifier: Classifier
    free: bool
    keeps_journal: bool
    described: Mapping[str, Any]
    concurrency: int | None = None


class _Row:
    """What is known of a row so far."""

    __slots__ = (
        "answer",
        "attempts",
        "best",
        "confidence",
        "decided",
        "escalations",
        "seen",
        "started",
        "steps",
        "stopped",
        "systemic",
        "unpriced",
        "usage",
    )

    def __init__(self) -> None:
        self.started = perf_counter()
        self.steps: list[Step] = []
        self.usage = Usage()
        self.attempts = 0
        self.escalations = 0
        self.unpriced = ""
        self.systemic: list[ProviderError] = []
        # The answer to give if no further model is asked, and how sure it is; -1 where nothing says so.
        self.answer = _NOTHING
        self.best = -1.0
        self.confidence: float | None = None
        self.decided = False  # whether the answer is sure enough
        self.stopped = ""  # why the next model was not asked
        self.seen: Seen = ()  # scores that a plan for all models has asked for

    def offer(self, prediction: Prediction, confidence: float | None) -> None:
        """Take an answer over what there is, if it is as sure at least; one without evidence is the least sure."""
        sure = -1.0 if confidence is None else confidence
        if sure >= self.best:
            self.take(prediction, confidence)

    def take(self, prediction: Prediction, confidence: float | None) -> None:
        """Take an answer over whatever there is."""
        self.answer, self.confidence = prediction, confidence
        self.best = -1.0 if confidence is None else confidence

    def pass_over(self, failed: Prediction) -> None:
        """Take a failure, where there is no answer."""
        if self.answer.outcome is not Outcome.OK:
            self.take(failed, None)

    def add(self, step: Step) -> None:
        """Take note of what a model contributed."""
        self.steps.append(step)
        self.usage += step.usage
        self.attempts += step.attempts
        self.escalations += step.verdict is not Verdict.FAILED


@dataclass(kw_only=True)
class Walk:
    """Asks the members of a cascade in order; the model of its runs over rows.

    Attributes
    ----------
    name : str
        The cascade's.
    members : tuple of Member
        In the order in which they are asked.
    judge : Judge
        Says how sure an answer is.
    policy : Policy
        Says whether that is enough.
    limits : RowLimits
        What one row may take.
    on_error : {"skip", "fail"}
        What happens when a model gives no answer, or none with evidence.
    prompt : str
        The cascade's own.
    user_template : str or None
        The cascade's own. Where a query has the same prompt, or template, each member is asked under its
        own; any other takes the place of every member's.
    order : str
        What the order of the members is.
    keep_tokens : bool, default False
        Whether predictions hold the tokens of the answer.
    purse : Purse
        Told what was paid.
    """

    name: str
    members: tuple[Member, ...]
    judge: Judge
    policy: Policy
    limits: RowLimits
    on_error: OnError
    prompt: str
    user_template: str | None
    order: EscalationOrder
    keep_tokens: bool = False
    purse: Purse = field(init=False)
    _keys: QueryKeys = field(default_factory=QueryKeys, init=False, repr=False)

    @property
    def space(self) -> LogprobSpace:
        """The members' where they agree, else ``none``."""
        spaces = {member.classifier.space for member in self.members}
        return spaces.pop() if len(spaces) == 1 else LogprobSpace.NONE

    def describe(self) -> Mapping[str, Any]:
        """Return what can change a prediction."""
        return self.describe_under(self.prompt, self.user_template)

    def describe_under(self, prompt: str, user_template: str | None) -> Mapping[str, Any]:
        """Return what can change a prediction under this prompt and template."""
        models = []
        for member in self.members:
            asked = self._under(Query(prompt=prompt, text="", user_template=user_template), member)
            own = {"prompt": asked.prompt, "user_template": asked.user_template}
            models.append({**member.described, **own, "name": member.name, "free": member.free})
        return {
            "scoring": "cascade",
            "labels": self.members[0].classifier.labels.labels,
            **self.judge.describe(),
            **self.policy.description,
            "escalation_order": self.order,
            "on_error": self.on_error,
            "limits": asdict(self.limits),
            "tokens": self.keep_tokens,
            "models": models,
        }

    def prepare(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return the queries as they are: the members show demonstrations of their own."""
        return [(query, "") for query in queries]

    def key(self, query: Query) -> str:
        """Return a digest of everything that can change the prediction, the verifier's context included."""
        key = self._keys.key(query, self._settings)
        if query.context is None:
            return key
        return hashlib.sha256(f"{key}\0{query.context}".encode("utf-8", "surrogatepass")).hexdigest()

    def _settings(self, query: Query) -> list[object]:
        """Return the settings in the places of a classifier's, so that keys of earlier versions are found again."""
        return [
            self.name,
            None,
            self.describe(),
            query.prompt + query.shown,
            query.user_template,
            None,
            5,
            {},
        ]

    def richer_key(self, query: Query) -> None:  # noqa: ARG002  (the Protocol's)
        """Return None: predictions of a cascade hold no features."""
        return

    def ends_run(self, error: ProviderError, *, answered: bool) -> bool:
        """Return whether a model can never be asked, or none can; answers of the others change nothing about it."""
        return isinstance(error, LogprobsUnsupportedError) or (error.systemic and not answered)

    def is_final(self, prediction: Prediction) -> bool:
        """Return whether no other answer may come when the row is asked again.

        What a model or a verifier that was down, or a deadline, kept from a row may come the next time; the
        members' journals then hold what was paid for.
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
        """Return the answer of the first model that is sure enough, or the best there is.

        Raises
        ------
        ProviderError
            Every model failed for a reason that every call would meet, and none has ever answered.
        LogprobsUnsupportedError
            A model gives no log-probabilities: it would be asked about every row in vain.
        """
        row = _Row()
        position = self.policy.next_model(None, row.seen)
        while position is not None:
            if row.steps and (reason := self._reached(row)):
                row.stopped = f"the next model was not asked: {reason}"
                row.steps[-1] = _with_reason(row.steps[-1], row.stopped)
                break
            if await self._step(row, position, self._under(query, self.members[position])):
                break
            position = self.policy.next_model(position, row.seen)
        return self._result(row)

    def _reached(self, row: _Row) -> str:
        return self.limits.reached(
            escalations=row.escalations,
            usage=row.usage,
            unpriced=row.unpriced,
            seconds=perf_counter() - row.started,
        )

    def _under(self, query: Query, member: Member) -> Query:
        """Return the query as the member is asked it."""
        own, template = member.classifier, query.user_template
        return replace(
            query,
            prompt=own.prompt if query.prompt == self.prompt else query.prompt,
            user_template=own.user_template if template == self.user_template else template,
        )

    async def _step(self, row: _Row, position: int, query: Query) -> bool:
        """Ask one member; returns whether the row ends with it."""
        member = self.members[position]
        found = await self._ask(row, position, query)
        usage = self._paid(row, member, found.usage, found.attempts)
        if found.outcome is not Outcome.OK:
            row.add(_step(member, Verdict.FAILED, found, usage))
            return self._failed(row, found)
        assessed = await self._assess(row, position, query, found)
        usage += self._paid(row, member, assessed.usage, assessed.attempts)
        if isinstance(assessed, NoEvidence):
            row.add(_step(member, Verdict.NO_EVIDENCE, found, usage, assessed))
            return self._without_evidence(row, position, found, assessed.reason)
        row.seen = self.policy.noted(row.seen, position, assessed)
        row.decided = self.policy.accepts(position, assessed, found.label, query.text, row.seen)
        verdict = Verdict.ACCEPTED if row.decided else Verdict.ESCALATED
        row.add(_step(member, verdict, found, usage, assessed))
        (row.take if row.decided else row.offer)(found, assessed.confidence)
        return row.decided

    async def _ask(self, row: _Row, position: int, query: Query) -> Prediction:
        classifier = self.members[position].classifier
        asked = classifier.answer(query)
        try:
            # The first model's answer is waited for in any case: without it there is none.
            found = await (self._in_time(row, asked) if row.steps else asked)
            if self._needs_evidence(row, position):
                check_answer(classifier, self.judge.method, found)
        except LogprobsUnsupportedError as error:
            raise self._unsupported(self.members[position], error) from None
        except ProviderError as error:
            if error.systemic:
                row.systemic.append(error)
            return Prediction(label=None, outcome=Outcome.ERROR, reason=str(error), attempts=error.attempts)
        return classifier.finished(query, found)

    def _needs_evidence(self, row: _Row, position: int) -> bool:
        """Return whether an answer that nobody can judge is of no use."""
        verified = self.policy.verifies(position, row.seen)
        return verified and not self.policy.believes(position, row.seen)

    def _unsupported(self, member: Member, error: LogprobsUnsupportedError) -> LogprobsUnsupportedError:
        """Return the error with the member's name, and with the lines of its section of the task file."""
        client = member.classifier.client
        name = client.name if member.name == client.name else f"{member.name}: {client.name}"
        return error.under(task_section(client, self.judge.method), provider=name)

    async def _assess(
        self, row: _Row, position: int, query: Query, found: Prediction
    ) -> Assessment | NoEvidence:
        if not self.policy.verifies(position, row.seen):
            return NoEvidence(reason="its answer is taken as it is")
        member = self.members[position]
        classifier = member.classifier
        if (query.prompt, query.user_template) != (classifier.prompt, classifier.user_template):
            classifier = classifier.with_prompt(query.prompt, user_template=query.user_template)
        answered = Answered(
            question=query.text if query.user_template is None else query.messages()[1]["content"],
            prediction=found,
            classifier=classifier,
        )
        try:
            assessed = await self._in_time(row, self.judge.assess(query, answered, member.described))
        except ProviderError as error:
            return NoEvidence(reason=str(error), attempts=error.attempts)
        if isinstance(assessed, NoEvidence):
            return assessed
        return self.policy.calibrated(position, assessed, found.label)

    async def _in_time(self, row: _Row, work: Awaitable[_T]) -> _T:
        """Wait for something as long as the row has time."""
        seconds = self.limits.deadline_seconds
        if seconds is None:
            return await work
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

    def _paid(self, row: _Row, member: Member, usage: Usage, attempts: int) -> Usage:
        """Take note of what calls took; returns it with a price where they are free."""
        if usage.cost is None:
            if member.free:
                usage = replace(usage, cost=0.0)
            elif usage.prompt_tokens or usage.completion_tokens:
                row.unpriced = member.name
        if attempts:
            self.purse.pay(usage, attempts)
        return usage

    def _failed(self, row: _Row, found: Prediction) -> bool:
        """Go on without an answer, or end the row; returns which."""
        if self.on_error == "fail":
            row.take(found, None)
            return True
        row.pass_over(found)
        return False

    def _without_evidence(self, row: _Row, position: int, found: Prediction, reason: str) -> bool:
        """Go on without evidence, or end the row; returns which."""
        if self.policy.believes(position, row.seen):
            row.take(found, None)
            return True
        if self.on_error == "fail":
            failed = Prediction(
                label=None, outcome=Outcome.ERROR, reason=reason, text=found.text, model=found.model
            )
            row.take(failed, None)
            return True
        row.offer(found, None)
        return False

    def _result(self, row: _Row) -> Prediction:
        if len(row.systemic) == len(row.steps):  # a model that has ever answered is not among them
            self._raise(row)
        found = row.answer
        reason = found.reason
        if found.outcome is not Outcome.OK:
            failed = [step for step in row.steps if step.outcome is not Outcome.OK or step.reason]
            reason = "; ".join(f"{step.model}: {step.reason}" for step in failed)
        elif not row.decided:
            reason = _why_not_accepted(row)
        return replace(
            found,
            confidence=row.confidence,
            reason=reason,
            usage=row.usage,
            attempts=row.attempts,
            steps=tuple(row.steps),
            accepted=row.decided,
            tokens=found.tokens if self.keep_tokens else None,
        )

    def _raise(self, row: _Row) -> NoReturn:
        failure = ProviderError(
            "no model could be asked: " + "; ".join(map(str, row.systemic)),
            provider=self.name,
            systemic=True,
        )
        failure.attempts = row.attempts
        raise failure


def _step(
    member: Member,
    verdict: Verdict,
    found: Prediction,
    usage: Usage,
    assessed: Assessment | NoEvidence | None = None,
) -> Step:
    """Return what a member contributed; a prediction that is no answer has no label."""
    sure = assessed if isinstance(assessed, Assessment) else None
    return Step(
        model=member.name,
        verdict=verdict,
        label=found.label,
        confidence=None if sure is None else sure.confidence,
        native=None if sure is None else sure.native,
        outcome=found.outcome,
        reason=found.reason if assessed is None else assessed.reason,
        usage=usage,
        attempts=found.attempts + (0 if assessed is None else assessed.attempts),
    )


def _why_not_accepted(row: _Row) -> str:
    """Return why no answer of a row was accepted: no model was sure enough, or nothing says how sure they are."""
    what = (
        "no model was sure enough" if row.confidence is not None else "nothing says how sure the models are"
    )
    # An escalated step's reason is the verifier's own, and belongs to that step alone.
    said = [row.stopped if step.verdict is Verdict.ESCALATED else step.reason for step in row.steps]
    told = "; ".join(dict.fromkeys(filter(None, said)))
    return f"{what}: {told}" if told else what


def _with_reason(step: Step, reason: str) -> Step:
    return replace(step, reason=f"{step.reason}; {reason}" if step.reason else reason)
