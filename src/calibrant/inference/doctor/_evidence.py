"""Model calls of an examination, and the evidence that they collect."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

from calibrant.clients._constraint import Constraint, constraint_for
from calibrant.clients._openai_compatible import OpenAICompatibleClient
from calibrant.clients._translate import NOT_ABOUT_THE_REQUEST
from calibrant.core._completion import (
    Client,
    CompletionRequest,
    ContinuingClient,
    LabelContinuation,
    Message,
    Token,
)
from calibrant.core._errors import CalibrantError, ConfigurationError, LogprobsUnavailableError, ProviderError
from calibrant.core._prediction import LabelDistribution, LogprobSpace
from calibrant.inference._answer_forms import AnswerForm, shaped
from calibrant.inference.doctor import _readings as task
from calibrant.inference.doctor._readings import TopicReading, read_topic, unit_fault
from calibrant.logprobs._distribution import OpeningMasses, whole_label_distribution
from calibrant.logprobs._walk import LabelWalk

_T = TypeVar("_T")

_FIRST_TOP: Final = 5
_MORE_TOP: Final = (20, 100, 1000)
# As many alternatives as the rest of the examination asks for at most.
_ENOUGH_TOP: Final = 100
# More probability than this on texts that are no label, and the log-probabilities are not masked.
_ILLEGAL_MASS: Final = 0.01


@dataclass(frozen=True)
class FailedCall:
    """Failure of one call of an examination, with its message.

    Attributes
    ----------
    reason : str
        The provider's message.
    optional : bool
        True if the server is not asked this way by default.
    remedy : str
        What to do about it; empty where the kind of call says so.
    """

    reason: str
    optional: bool = False
    remedy: str = ""


class Alternatives(NamedTuple):
    """Numbers of alternatives per token: requested and received.

    Attributes
    ----------
    asked : int
        The largest number that was asked for and answered with log-probabilities; 0 where none was.
    came : int
        Most that came back.
    """

    asked: int = 0
    came: int = 0


class ScoredText(NamedTuple):
    """Label distribution of one text by exact scoring.

    Attributes
    ----------
    distribution : LabelDistribution
        Over the labels, as far as one token tells them apart, or as a whole.
    is_whole : bool
        True if whole labels were scored, False for next tokens.
    """

    distribution: LabelDistribution
    is_whole: bool


@dataclass(kw_only=True)
class Evidence:
    """Answers of a model, collected by `gather`.

    Attributes
    ----------
    claimed : LogprobSpace
        Space in which the setup reads its log-probabilities.
    answers : sequence of TopicReading or FailedCall
        To the texts of the built-in task, in order; empty where the schema is refused.
    off_topic : TopicReading or FailedCall
        To a question that no label answers.
    answer_form : AnswerForm or None
        Form of the answers; None if the server follows none.
    refused_schema, refused_logprobs : str
        Why a schema, or log-probabilities together with it, were refused; empty where they were not. Of a schema
        that is ignored, what came instead.
    alternatives : Alternatives
        Number that comes with a token.
    scored : sequence of ScoredText, FailedCall or None
        The texts scored exactly, or the sentence on why they are not; None where the client cannot be asked that way.
    """

    claimed: LogprobSpace
    answers: Sequence[TopicReading | FailedCall] = ()
    off_topic: TopicReading | FailedCall = FailedCall("")
    answer_form: AnswerForm | None = AnswerForm.SCHEMA
    refused_schema: str = ""
    refused_logprobs: str = ""
    alternatives: Alternatives = Alternatives()
    scored: Sequence[ScoredText] | FailedCall | None = None

    @cached_property
    def readings(self) -> tuple[TopicReading, ...]:
        """Readings of the answers received under the schema."""
        answers = (*self.answers, self.off_topic)
        return tuple(answer for answer in answers if isinstance(answer, TopicReading))

    @cached_property
    def answered(self) -> tuple[TopicReading, ...]:
        """Readings of the answers received to the texts of the built-in task."""
        return tuple(answer for answer in self.answers if isinstance(answer, TopicReading))

    @cached_property
    def openings(self) -> tuple[OpeningMasses, ...]:
        """Legal and illegal probability at the first token of the label, for each answer that reports it."""
        return tuple(reading.opening for reading in self.readings if reading.opening is not None)

    @cached_property
    def fault(self) -> str:
        """Fault in the units of the reported numbers; empty without one."""
        return next(filter(None, (unit_fault(reading.tokens) for reading in self.readings)), "")

    @cached_property
    def distributions(self) -> list[tuple[str | None, LabelDistribution]]:
        """Label and distribution of the answers to the texts whose log-probabilities can be read."""
        if self.fault:
            return []
        predictions = [reading.prediction for reading in self.answered]
        return [(one.label, one.distribution) for one in predictions if one.distribution is not None]

    @cached_property
    def shown_space(self) -> LogprobSpace | None:
        """Log-probability space implied by the reported alternatives; None if unclear."""
        listed = any(opening.listed > 1 for opening in self.openings)
        if self.claimed is LogprobSpace.NONE or self.fault or not listed:
            return None
        if max(opening.illegal for opening in self.openings) > _ILLEGAL_MASS:
            return LogprobSpace.RAW
        # On texts with plain answers a sure model without a mask looks the same.
        off_topic = isinstance(self.off_topic, TopicReading) and self.off_topic.opening is not None
        return LogprobSpace.MASKED if off_topic else None

    @property
    def exact_scores(self) -> Sequence[ScoredText]:
        """Texts with exact scores; empty if exact scoring fails."""
        return () if self.scored is None or isinstance(self.scored, FailedCall) else self.scored

    @cached_property
    def label_mass(self) -> float | None:
        """Mean probability on the labels, in [0, 1]; None if unknown."""
        if self.exact_scores:
            return statistics.fmean(one.distribution.label_mass for one in self.exact_scores)
        if self.shown_space is not LogprobSpace.RAW:
            return None
        masses = [reading.opening.legal for reading in self.answered if reading.opening is not None]
        return statistics.fmean(masses) if masses else None


class ExaminationCalls:
    """Sequential calls of an examination, counted, without retries.

    Parameters
    ----------
    client : Client
        The model under examination.
    options : mapping
        Sent with every call.
    on_call : callable, optional
        Called with the number of every call, from 1, before it is made.

    Attributes
    ----------
    made : int
        Calls made so far.
    form : AnswerForm
        Form in which questions of the built-in task are asked.
    answered : int
        Calls that were answered.
    first_error : ProviderError or None
        The first failure.
    """

    def __init__(
        self, client: Client, options: Mapping[str, Any], *, on_call: Callable[[int], None] | None = None
    ) -> None:
        self.client = client
        self.made = 0
        self.form = AnswerForm.SCHEMA
        self.answered = 0
        self.first_error: ProviderError | None = None
        # Greedy, whatever the user's own temperature; None says that the model takes none.
        temperature = {} if options.get("temperature", 0) is None else {"temperature": 0}
        self._options = {**options, **temperature}
        self._on_call = on_call

    async def classify(self, number: int, *, top: int) -> TopicReading | FailedCall:
        """Return the reading of an answer to a question of the built-in task, or the failed call."""
        request = CompletionRequest(
            messages=task.QUESTIONS[number],
            response_format=task.SCHEMA,
            top_logprobs=top,
            options=self._options,
        )
        asked = shaped(request, self.form, task.LABELS)
        answer = await self.make(lambda: self.client.complete(asked))
        return answer if isinstance(answer, FailedCall) else read_topic(answer, form=self.form)

    async def make(self, call: Callable[[], Awaitable[_T]]) -> _T | FailedCall:
        """Return the answer of one call, or the failed call, and count it.

        Raises
        ------
        ProviderError
            Nothing was answered so far, and the failure is not about what this request asks for: other
            requests would meet it too.
        """
        self.made += 1
        if self._on_call is not None:
            self._on_call(self.made)
        try:
            answer = await call()
        except (SystemExit, KeyboardInterrupt) as error:
            # Either would end the event loop, and every later call would wait for ever.
            raise CalibrantError(f"{self.client.name}: the model raised {error!r}.") from error
        except ProviderError as error:
            status = error.status or 0
            about_request = 400 <= status < 500 and status not in NOT_ABOUT_THE_REQUEST
            if not self.answered and not about_request:
                raise
            self.first_error = self.first_error or error
            return FailedCall(str(error).removeprefix(f"{error.provider}: "))
        self.answered += 1
        return answer


async def gather(calls: ExaminationCalls, claimed: LogprobSpace) -> Evidence:
    """Collect the evidence with at most 17 calls.

    Raises
    ------
    ProviderError
        No call was answered.
    """
    evidence = Evidence(claimed=claimed)
    evidence.answer_form = await _answer_form(calls, evidence)
    if evidence.answer_form in {AnswerForm.JSON, AnswerForm.TEXT} and claimed is LogprobSpace.MASKED:
        evidence.claimed = LogprobSpace.RAW  # without a schema nothing is masked
    evidence.scored = await _score(calls)
    if not calls.answered and calls.first_error is not None:
        raise calls.first_error
    return evidence


async def _answer_form(calls: ExaminationCalls, evidence: Evidence) -> AnswerForm | None:
    """Collect the answers in the first form that the server follows; return that form, or None if there is none."""
    ignores_schema = False
    for form in AnswerForm:
        calls.form = form
        first, top = await _first_answer(calls, evidence)
        if first is not None and not first.is_unreadable:
            await _classify_all(calls, evidence, first, top=top)
            return form
        ignores_schema = ignores_schema or (form is AnswerForm.SCHEMA and first is not None)
    calls.form = AnswerForm.SCHEMA
    if ignores_schema:  # what is reported is examined all the same
        first, top = await _first_answer(calls, evidence)
        if first is not None:
            await _classify_all(calls, evidence, first, top=top)
    return None


async def _first_answer(calls: ExaminationCalls, evidence: Evidence) -> tuple[TopicReading | None, int]:
    """Return the answer to the first question, and the alternatives asked for; None if it is refused."""
    top, refused_logprobs = _FIRST_TOP, ""
    first = await calls.classify(0, top=top)
    if isinstance(first, FailedCall):
        top, refused_logprobs = 0, first.reason
        first = await calls.classify(0, top=top)
    if isinstance(first, FailedCall):
        evidence.refused_schema = evidence.refused_schema or f"refused: {first.reason.rstrip('. ')}"
        return None, 0
    if first.is_unreadable:
        evidence.refused_schema = (
            evidence.refused_schema or f"ignored: {first.prediction.reason.rstrip('. ')}"
        )
    evidence.refused_logprobs = refused_logprobs
    return first, top


async def _classify_all(
    calls: ExaminationCalls, evidence: Evidence, first: TopicReading, *, top: int
) -> None:
    """Ask the questions of the built-in task in the form of its first answer."""
    if top:
        evidence.alternatives = await _alternatives(calls, first)
        top = min(max(top, evidence.alternatives.asked), _ENOUGH_TOP)
    others = [await calls.classify(number, top=top) for number in range(1, len(task.QUESTIONS))]
    evidence.answers, evidence.off_topic = [first, *others[:-1]], others[-1]


async def _alternatives(calls: ExaminationCalls, first: TopicReading) -> Alternatives:
    best = Alternatives(asked=_FIRST_TOP, came=_listed(first))
    if not best.came:
        return Alternatives()
    for wanted in _MORE_TOP:
        if wanted <= best.came:
            continue
        more = await calls.classify(0, top=wanted)
        if isinstance(more, FailedCall):
            return best
        came = _listed(more)
        if came:
            best = Alternatives(asked=wanted, came=max(came, best.came))
        if came < wanted:
            break
    return best


def _listed(reading: TopicReading) -> int:
    return max((len(token.top) for token in reading.tokens), default=0)


async def _score(calls: ExaminationCalls) -> list[ScoredText] | FailedCall | None:
    client, constraint = calls.client, constraint_for(task.SCHEMA)
    if not isinstance(client, ContinuingClient) or constraint is None:
        return None
    # Names of servers are decoded by default.
    optional = isinstance(client, OpenAICompatibleClient)
    scored: list[ScoredText] = []
    try:
        await client.check_labels(constraint.values)
        for messages in task.QUESTIONS[: len(task.TEXTS)]:
            one = await _score_text(calls, client, constraint, messages)
            if isinstance(one, FailedCall):
                return _unscored(one.reason, optional=optional)
            scored.append(one)
    except (ProviderError, ConfigurationError) as error:
        return _unscored(str(error), optional=optional)
    if not all(one.distribution.emitted for one in scored):
        return FailedCall(
            "No label is among the tokens the model would write next.",
            remedy='Use scoring = "decode": the model does not take the text before a label for a beginning.',
        )
    return scored


def _unscored(reason: str, *, optional: bool) -> FailedCall:
    return FailedCall(f"{'Not possible' if optional else 'It fails'}: {reason}", optional)


async def _score_text(
    calls: ExaminationCalls, client: ContinuingClient, constraint: Constraint, messages: tuple[Message, ...]
) -> ScoredText | FailedCall:
    async with client.continuing(CompletionRequest(messages=messages, top_logprobs=0)) as row:
        if isinstance(row, LabelContinuation):
            whole = await calls.make(lambda: row.label_logprobs(constraint.prefix, constraint.values))
            if isinstance(whole, FailedCall):
                return whole
            return ScoredText(whole_label_distribution(task.LABELS, whole.logprobs), is_whole=True)
        reported = await calls.make(lambda: row.next_tokens(constraint.prefix))
    if isinstance(reported, FailedCall):
        return reported
    fault = unit_fault((Token(b"", 0.0, reported.top),))
    walk = LabelWalk(task.LABELS, tolerance=1.0)  # one token tells the labels apart
    try:
        walk.visit("", reported.top)
    except LogprobsUnavailableError as error:
        return FailedCall(f"{error} ({fault})" if fault else str(error))
    if fault:
        return FailedCall(f"Not natural log-probabilities: {fault}.")
    return ScoredText(walk.distribution(), is_whole=False)
