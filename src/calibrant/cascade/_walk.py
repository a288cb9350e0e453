"""Prediction of one row by the models of a cascade in turn, with its limits and assessments."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from calibrant.cascade._escalation import Policy
from calibrant.cascade._methods import check_answer, task_section
from calibrant.cascade._protocol import (
    Answered,
    Assessment,
    CascadeModel,
    ConfidenceMethod,
    EscalationOrder,
    NoEvidence,
)
from calibrant.cascade.automix._several import Seen
from calibrant.core._errors import (
    ConfigurationError,
    LogprobsUnsupportedError,
    NotFittedError,
    ProviderError,
    ProviderTimeoutError,
)
from calibrant.core._fingerprint import sha256_of
from calibrant.core._prediction import (
    Journal,
    JsonObject,
    Outcome,
    Prediction,
    Record,
    Step,
    Usage,
    Verdict,
    failed_prediction,
)
from calibrant.core._predictor import Limits, Query
from calibrant.core._reported import counted
from calibrant.inference._classifier import Classifier
from calibrant.inference._feed import Ahead, QueryKeys, QueuedRow
from calibrant.inference._limits import Gate, resolve_waiter
from calibrant.metrics._validation import check_count, check_number

_LOG = logging.getLogger("calibrant")
ContextOf = Callable[[str], str | None] | str
OnError: TypeAlias = Literal["skip", "fail"]
_T = TypeVar("_T")
_UNVERIFIED: Final = "its answer is taken as it is"
_NOTHING: Final = Prediction(label=None, outcome=Outcome.ERROR)


@dataclass(frozen=True, kw_only=True)
class RowLimits:
    """Limits on one row of a cascade, checked before each escalation.

    The first model is always asked, and a limit that is reached ends the row with the best answer so far. 0 means
    zero: the first model alone.

    Attributes
    ----------
    max_escalations : int or None
        How often an answer may be passed over for the next model's. Models that fail are no
        escalation.
    max_tokens : int or None
        Tokens of all calls for the row, prompts included, after which no further model is asked.
    max_cost : float or None
        US dollars, alike; where a call's price is not known, the limit cannot be kept, and no further
        model is asked.
    deadline_seconds : float or None
        Seconds after which no further model is asked, and every call under way but the first
        model's answer is given up.

    Raises
    ------
    ConfigurationError
        A limit is no number of at least 0.
    """

    max_escalations: int | None
    max_tokens: int | None
    max_cost: float | None
    deadline_seconds: float | None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and name in {"max_escalations", "max_tokens"}:
                check_count(name, value, low=0)
            elif value is not None:
                check_number(name, value, "[0, inf)")

    def reached(self, *, escalations: int, usage: Usage, unpriced: str, seconds: float) -> str:
        """Return a description of the limit that is reached; an empty string if another model may be asked.

        Parameters
        ----------
        escalations : int
            Answers passed over so far, the last one included.
        usage : Usage
            Of all calls.
        unpriced : str
            A model whose price is not known; empty without one.
        seconds : float
            Since the row was begun.
        """
        if self.max_escalations is not None and escalations > self.max_escalations:
            return f"max_escalations of {self.max_escalations} is reached"
        tokens = usage.prompt_tokens + usage.completion_tokens
        cost = usage.cost or 0.0
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return f"max_tokens of {self.max_tokens:,} is reached ({counted(tokens, 'token')})"
        # A limit on money that cannot be kept must not look as if it were.
        if self.max_cost is not None and unpriced:
            return (
                f"no price is known for {unpriced}, so max_cost cannot be kept: set input_cost_per_token and "
                "output_cost_per_token among its options, or cost=0 where it is free"
            )
        if self.max_cost is not None and cost >= self.max_cost:
            return f"max_cost of {self.max_cost:g} US dollars is reached ({cost:g} US dollars)"
        if self.deadline_seconds is not None and seconds >= self.deadline_seconds:
            return f"deadline_seconds of {self.deadline_seconds:g} has passed"
        return ""


@dataclass
class _LaterSteps:
    """Steps of one model that were not the first of their rows: those under way, those paid for, and their price."""

    under_way: int = 0
    paid: int = 0
    cost: float = 0.0

    @property
    def mean(self) -> float:
        """US dollars of a step, on average; 0 before the first."""
        return self.cost / max(1, self.paid)


class CascadeBudget(Gate):
    """Budget meter of a cascade; each model's own meter limits its concurrency and call rate.

    A row's usage includes answers that a journal held; this meter is told call by call what is paid. With ``max_cost``,
    a later model is asked only if its mean price, and that of all its steps under way, can still be paid: rows under
    way could otherwise pass the budget many times over, all of them coming to a dear model at once.

    Parameters
    ----------
    limits : Limits
        Budgets and deadline of the whole; rates and calls in flight are kept by each member.
    members : sequence of Gate
        The members', whose own budgets end the run, too.
    """

    def __init__(self, limits: Limits, members: Sequence[Gate]) -> None:
        most = max(gate.concurrency for gate in members)
        super().__init__(limits, default_concurrency=most)
        self._members = tuple(members)
        self._later = [_LaterSteps() for _ in members]
        self._queue: deque[asyncio.Future[None]] = deque()
        self.refused = ""

    async def begin_step(self, position: int) -> str:
        """Wait until it is known whether a later model's step can be paid; return the reason if it cannot, else "".

        No more steps of a model are under way than were paid for, as nothing else tells what they cost.
        """
        most = math.inf if self.limits.max_cost is None else self.limits.max_cost
        own = self._later[position]
        while True:
            with self._lock:
                reserved = sum(steps.under_way * steps.mean for steps in self._later)
                if own.paid and self.cost + reserved + own.mean > most:
                    self.refused = (
                        self.refused or f"The budget max_cost of {counted(most, 'US dollar')} is used up"
                    )
                if self.refused:
                    self._let_on()
                    return self.refused
                if most == math.inf or own.under_way < max(1, own.paid):
                    own.under_way += 1
                    return ""
                waiter = asyncio.get_running_loop().create_future()
                self._queue.append(waiter)
            await waiter

    def end_step(self, position: int, *, cost: float | None) -> None:
        """Count a later model's step that has ended, and the US dollars paid for it; None if nothing was."""
        with self._lock:
            own = self._later[position]
            own.under_way -= 1
            if cost is not None:
                own.paid += 1
                own.cost += cost
            self._let_on()

    def _let_on(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            loop = waiter.get_loop()
            if not loop.is_closed():  # that of a run that was interrupted is
                loop.call_soon_threadsafe(resolve_waiter, waiter)

    def pay(self, usage: Usage, attempts: int, *, is_answered: bool) -> None:
        """Add the usage and the number of calls that were made."""
        self.charge(usage, is_answered=is_answered)
        with self._lock:
            self.requests += attempts

    def finish_row(self, prediction: Prediction) -> None:
        """Count a finished row; `pay` has already added the usage of its calls."""
        self.count_row(prediction)

    def used_up(self, under_way: int, *, calls: bool = True) -> str:
        """Describe the spent budget of the cascade or of a model; an empty string if none is spent."""
        is_unpriced = self.unpriced and not (self.uncounted or self.has_unpriced_vectors)
        if self.limits.max_cost is not None and is_unpriced:
            return (
                "No price is known for a model of this cascade, so max_cost cannot be kept: set input_cost_per_token "
                "and output_cost_per_token among the model's options, give cost=0 where it is free, or leave "
                "max_cost out"
            )
        if self.refused:
            return self.refused
        rows = max(1, self.rows)
        # Of the rows under way, the share that came to each member so far.
        theirs = (
            gate.used_up(math.ceil(under_way * gate.rows / rows), calls=calls) for gate in self._members
        )
        return super().used_up(under_way, calls=calls) or next(filter(None, theirs), "")


@dataclass(kw_only=True)
class Judge:
    """Confidence method with a journal, which stores the assessments that took paid calls.

    Attributes
    ----------
    method : ConfidenceMethod
        Measures the confidence in an answer.
    context_of : callable or str, optional
        Returns the text that an answer should be grounded in, or is that text for all; used where a query brings
        no context of its own.
    journal : Journal or None
        Keeps assessments that took calls, so that another threshold does not pay for them again.

    Raises
    ------
    ConfigurationError
        `context_of` cannot be called.
    """

    method: ConfidenceMethod
    context_of: ContextOf | None = None
    journal: Journal | None = None
    _warned: bool = field(default=False, init=False)
    _settings: dict[tuple[object, ...], str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        context = self.context_of
        if context is not None and not (callable(context) or isinstance(context, str)):
            raise ConfigurationError(
                f"Expected context_of to be a function from texts to texts, or one text for all, got {context!r}."
            )

    def describe(self) -> JsonObject:
        """Return the settings that can change an assessment as JSON values."""
        context = self.context_of
        return {
            "confidence": {"method": self.method.name, **self.method.describe()},
            "context": context and getattr(context, "__qualname__", str(context)),
        }

    async def assess(self, query: Query, answered: Answered, described: Record) -> Assessment | NoEvidence:
        """Return the confidence in an answer; `NoEvidence` if the method fails or its value is not in [0, 1].

        Parameters
        ----------
        query : Query
            The question.
        answered : Answered
            The answer.
        described : mapping
            Settings that can change an answer of the model.

        Raises
        ------
        ConfigurationError, NotFittedError
            The method cannot judge any answer.
        ProviderError
            The verifier did not answer.
        """
        context: object = query.context
        try:
            if context is None:
                context = self.context_of(query.text) if callable(self.context_of) else self.context_of
        except Exception as error:  # noqa: BLE001  (as in `_ask`)
            return self._missing_evidence("context_of", error)
        if context is not None and not isinstance(context, str):
            return NoEvidence(reason=f"expected a text or None of context_of, got {context!r:.80}")
        answered = replace(answered, context=context)
        # A method that reads tokens makes no call.
        journal = None if self.method.needs_tokens else self.journal
        if journal is None:
            return await self._ask(answered)
        key = self._key(query, answered, described)
        stored = journal.get_many([key]).get(key)
        if stored is not None and stored.confidence is not None:
            # Its text is the native value; it takes no calls this time.
            return Assessment(
                confidence=stored.confidence,
                native=float(stored.text),
                reason=stored.reason,
                usage=stored.usage,
            )
        assessed = await self._ask(answered)
        if isinstance(assessed, Assessment) and assessed.attempts:
            paid = Prediction(
                label=answered.prediction.label,
                confidence=assessed.confidence,
                text=repr(float(assessed.native)),
                reason=assessed.reason,
                usage=assessed.usage,
                attempts=assessed.attempts,
            )
            journal.put(key, paid)
        return assessed

    async def _ask(self, answered: Answered) -> Assessment | NoEvidence:
        try:
            assessed: object = await self.method.assess(answered)
        except (ConfigurationError, NotFittedError, ProviderError):
            raise  # every row would meet the first two; the last is for the caller
        except Exception as error:  # noqa: BLE001  (a method of the user's may raise anything)
            return self._missing_evidence(self.method.name, error)
        if isinstance(assessed, Assessment):
            return assessed.checked(self.method.name)
        if isinstance(assessed, NoEvidence):
            return assessed
        reason = f"expected an Assessment or NoEvidence of {self.method.name}, got {assessed!r:.80}"
        return NoEvidence(reason=reason)

    def _missing_evidence(self, what: str, error: Exception) -> NoEvidence:
        """Return `NoEvidence` for an exception of user code; log the first one with its traceback."""
        if not self._warned:
            self._warned = True
            _LOG.warning("%s failed; its answers have no evidence.", what, exc_info=error)
        return NoEvidence(reason=f"{what} failed: {type(error).__name__}: {error}")

    def _key(self, query: Query, answered: Answered, described: Record) -> str:
        """Return a digest of everything that can change the assessment."""
        asked = [query.prompt, query.user_template]
        about = (id(described), *asked)
        # Settings take longer to write than texts, and rarely change.
        if about not in self._settings:
            settings = ["assessment", dict(described), *asked, dict(self.method.describe())]
            self._settings[about] = json.dumps(settings, sort_keys=True, default=repr)
        given = answered.prediction
        texts = [query.text, given.text, given.label, answered.context]
        return sha256_of(self._settings[about] + json.dumps(texts))


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
    def described(self) -> Record:
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
    refused : str
        Why the run could not pay for the next model.
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
    refused: str = ""
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
        new = -1.0 if confidence is None else confidence
        kept = -1.0 if self.confidence is None else self.confidence
        if new >= kept:  # of equals the later is taken: that model is called because it is the better one
            self.take(prediction, confidence)

    def take(self, prediction: Prediction, confidence: float | None = None) -> None:
        """Keep an answer in place of the kept one."""
        self.answer = prediction
        self.confidence = confidence


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

    def describe(self, prompt: str, user_template: str | None) -> Record:
        """Return the settings that can change a prediction under a prompt and a user template."""
        asked = Query(prompt=prompt, text="", user_template=user_template)
        models = []
        for member in self.members:
            query = self._query_for(asked, member)
            own = {"prompt": query.prompt, "user_template": query.user_template, "name": member.label}
            models.append({**member.classifier.describe(), **own, "free": member.free})
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
        return sha256_of(f"{key}\0{query.context}")

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
        steps = prediction.steps
        if self.limits.deadline_seconds is not None and len(steps) < len(self.members):
            return False
        return not any(step.outcome is Outcome.ERROR or step.verdict is Verdict.NO_EVIDENCE for step in steps)

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
            own = self._query_for(query, self.members[position])
            if await self._paid_step(row, position, own):
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
            last = row.steps.pop()
            reasons = filter(None, (last.reason, row.stopped))
            row.steps.append(replace(last, reason="; ".join(reasons)))
        return bool(reason)

    def _query_for(self, query: Query, member: CascadeMember) -> Query:
        """Return the query with the prompt and user template for one model."""
        own = member.classifier
        template = query.user_template
        return replace(
            query,
            prompt=own.prompt if query.prompt == self.prompt else query.prompt,
            user_template=own.user_template if template == self.user_template else template,
        )

    async def _paid_step(self, row: _RowState, position: int, query: Query) -> bool:
        """Make a step, as `_step`, unless the budget of the run cannot pay for it: then the row is not answered."""
        if not row.steps:
            return await self._step(row, position, query)
        row.refused = await self.budget.begin_step(position)
        if row.refused:
            return True
        before = len(row.steps)
        try:
            return await self._step(row, position, query)
        finally:
            paid = [step.usage.cost or 0.0 for step in row.steps[before:] if step.attempts]
            self.budget.end_step(position, cost=sum(paid) if paid else None)

    async def _step(self, row: _RowState, position: int, query: Query) -> bool:
        """Ask one model and assess its answer; return True if no further model is asked."""
        member = self.members[position]
        answer = await self._ask(row, position, query)
        usage = self._pay(row, member, answer.usage, answer.attempts, is_answered=answer.is_answered)
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
        if row.decided:
            row.take(answer, assessed.confidence)
        else:
            row.offer(answer, assessed.confidence)
        return row.decided

    async def _ask(self, row: _RowState, position: int, query: Query) -> Prediction:
        member = self.members[position]
        classifier = member.classifier
        client = classifier.client
        call = classifier.answer(query)
        verified = self.policy.verifies(position, row.seen)
        try:
            # The first model's answer is waited for in any case: without it there is none.
            if row.steps:
                call = self._in_time(row, call)
            answer = await call
            if query.on_answer is not None and answer.attempts:  # paid for, whatever comes of it
                steps = (*row.steps, _step_of(member, Verdict.ESCALATED, answer, answer.usage))
                query.on_answer(replace(answer, attempts=row.attempts + answer.attempts, steps=steps))
            if verified and not self.policy.believes(position, row.seen):
                check_answer(classifier, self.judge.method, answer)
        except LogprobsUnsupportedError as error:
            name = client.name if member.label == client.name else f"{member.label}: {client.name}"
            raise error.under(task_section(client, self.judge.method), provider=name) from None
        except ProviderError as error:
            if error.systemic:
                row.systemic.append(error)
            return failed_prediction(error)
        return await classifier.finished_ahead(query, answer, charge=partial(self._charge, classifier))

    async def _assess(
        self, row: _RowState, position: int, query: Query, answer: Prediction
    ) -> Assessment | NoEvidence:
        member = self.members[position]
        classifier = member.classifier
        if (query.prompt, query.user_template) != (classifier.prompt, classifier.user_template):
            classifier = classifier.with_prompt(query.prompt, user_template=query.user_template)
        question = query.text if query.user_template is None else query.messages()[1]["content"]
        answered = Answered(question=question, prediction=answer, classifier=classifier)
        try:
            assessed = await self._in_time(row, self.judge.assess(query, answered, member.described))
        except ProviderError as error:
            return NoEvidence(reason=str(error), usage=error.usage or Usage(), attempts=error.attempts)
        if isinstance(assessed, NoEvidence):
            return assessed
        return self.policy.calibrate(position, assessed, answer.label)

    async def _in_time(self, row: _RowState, work: Awaitable[_T]) -> _T:
        """Await a call; raise ProviderTimeoutError at the row's deadline."""
        seconds = self.limits.deadline_seconds
        if seconds is None:
            return await work
        left = seconds - (perf_counter() - row.started)
        # This timeout of ours is told from one that the model raises.
        deadline = asyncio.timeout(max(0.0, left))
        try:
            async with deadline:
                return await work
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise ProviderTimeoutError(
                f"given up, as deadline_seconds of {seconds:g} has passed.", provider=self.name
            ) from error

    def _charge(self, classifier: Classifier, usage: Usage) -> None:
        """Add the usage of a call for vectors to the meters of its model and of the cascade."""
        classifier.meter.charge_vectors(usage)
        self.budget.charge_vectors(usage)

    @property
    def first(self) -> CascadeMember | None:
        """The model that is asked first; None if there is none to ask."""
        position = self.policy.next_model(None, ())
        return None if position is None else self.members[position]

    def vectors_ahead(self) -> Ahead | None:
        """Return the source of the vectors that the first model's head reads; None if it needs none by calls."""
        member = self.first
        if member is None or member.classifier.head is None or member.classifier.head.embedding is None:
            return None
        own = member.classifier
        from calibrant.inference._text_vectors import vectors_ahead  # noqa: PLC0415 (if a head has some)

        def needs(row: QueuedRow) -> bool:
            asked = self._query_for(row.query, member)
            is_own = (asked.prompt, asked.user_template) == (own.prompt, own.user_template)
            # What a journal holds came out of the head.
            return is_own and row.stored is None

        return vectors_ahead(
            member.classifier.head,
            needs=needs,
            charge=partial(self._charge, own),
            meter=self.budget,
            waits=False,
        )

    def _pay(
        self,
        row: _RowState,
        member: CascadeMember,
        usage: Usage,
        attempts: int,
        *,
        is_answered: bool = False,
    ) -> Usage:
        """Add calls to the budget meter; return their usage, with cost 0 if the model is free or runs here."""
        paid = usage
        if usage.cost is None:
            if member.free or member.classifier.in_process:
                paid = replace(usage, cost=0.0)
            elif is_answered or usage.prompt_tokens or usage.completion_tokens:
                row.unpriced = member.label
        # An answer from a journal made no attempts, and is not paid again.
        if attempts:
            self.budget.pay(paid, attempts, is_answered=is_answered)
        return paid

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
            faults = "; ".join(fault.summary for fault in row.systemic)
            statuses = {fault.status for fault in row.systemic}
            hints = dict.fromkeys(fault.hint for fault in row.systemic if fault.hint)
            failure = ProviderError(
                f"no model could be asked: {faults}",
                provider=self.name,
                status=statuses.pop() if len(statuses) == 1 else None,
                hint=" ".join(hints) or None,
                systemic=True,
            )
            failure.attempts = row.attempts
            failure.usage = row.usage
            raise failure
        answer = row.answer
        if row.refused:
            answer = replace(_NOTHING, usage=row.usage, attempts=row.attempts, steps=tuple(row.steps))
            return replace(answer, reason=f"{row.refused}, and the next model was not asked")
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
    different = dict.fromkeys(filter(None, reasons))
    more = "; ".join(different)
    return f"{doubt}: {more}" if more else doubt
