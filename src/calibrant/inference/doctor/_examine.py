"""`examine`: ask a model a few cheap questions, and judge its log-probabilities by the answers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeVar

from calibrant.clients._calls import Call
from calibrant.clients._constraint import Constraint, constraint_for
from calibrant.clients._failures import NOT_ABOUT_THE_REQUEST
from calibrant.clients._openai_compatible import OpenAICompatibleClient
from calibrant.core._completion import (
    Client,
    Completion,
    CompletionRequest,
    ContinuingClient,
    DecisionClient,
    LabelContinuation,
    Message,
)
from calibrant.core._errors import CalibrantError, ConfigurationError, LogprobsUnavailableError, ProviderError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import (
    LOW_LABEL_MASS,
    LabelDistribution,
    LogprobSpace,
    Outcome,
    Prediction,
    Token,
)
from calibrant.core._reported import counted
from calibrant.inference._abilities import AnswerForm, is_begun_json, readable, shaped
from calibrant.inference._base import run_sync
from calibrant.inference._examinations import (
    Examination,
    RecommendedScoring,
    Thresholds,
    identity,
)
from calibrant.inference._models import ModelLike, call_options, open_client
from calibrant.inference._reader import AnswerReader
from calibrant.inference.doctor._decision import (
    DECISION_PROBES,
    DecisionExamination,
    Judgement,
    findings_of,
    ok,
    problem,
    unknown,
    warning,
)
from calibrant.logprobs._completion import IMPOSSIBLE, read_completion, reported_tokens
from calibrant.logprobs._distribution import OpeningMasses, opening_masses, whole_label_distribution
from calibrant.logprobs._fields import align, enum_schema
from calibrant.logprobs._walk import LabelWalk

# Their first letters differ, so that one token tells them apart.
LABELS: Final = LabelSet(("Animals", "Food", "Music", "Weather"))
_FIELD: Final = "topic"
_PROMPT: Final = (
    "Decide what the text is about: Animals, Food, Music or Weather. "
    'Answer with JSON that names one of these topics, such as {"topic": "..."}.'
)

TEXTS: Final = (
    ("Boil the pasta for nine minutes and drain it.\nServe it hot with tomato sauce and cheese.", "Food"),
    ("Heavy rain and strong wind are expected tonight.\nThe storm moves on by noon, then sun.", "Weather"),
    ("The dog chased two cats around the barn.\nA horse and a goat watched from the meadow.", "Animals"),
    ("She tuned her guitar and sang a slow ballad.\nThe drummer joined in at the chorus.", "Music"),
)
"""Texts with an answer nobody would dispute, and that answer."""

# No label answers the last one: a model that is free to answer puts nearly nothing on labels.
QUESTIONS: Final[tuple[tuple[Message, ...], ...]] = (
    *(({"role": "system", "content": _PROMPT}, {"role": "user", "content": text}) for text, _ in TEXTS),
    (
        {"role": "system", "content": 'Name the capital of the country, as JSON: {"topic": "CAPITAL"}.'},
        {"role": "user", "content": "Japan"},
    ),
)
"""The texts as questions, and one off the topic."""

SCHEMA: Final = enum_schema(LABELS, _FIELD)

# A log-probability may exceed 0 by this much: rounding.
_ROUNDING: Final = 1e-6
# The probabilities listed for one token may sum to this much more than 1: half precision.
_EXCESS: Final = 0.01
# Listed probabilities that sum to less are not taken for a nearly complete list.
_LEAST_SUM: Final = 0.5

# How the distribution is read does not depend on the space; what is made of it does.
_READER: Final = AnswerReader(labels=LABELS, field=_FIELD, answer_field=_FIELD, space=LogprobSpace.RAW)
_T = TypeVar("_T")
_FIRST_TOP: Final = 5
_MORE_TOP: Final = (20, 100, 1000)
# As many alternatives as the rest of the examination asks for at most.
_ENOUGH_TOP: Final = 100
# More probability than this on texts that are no label, and the log-probabilities are not masked.
_ILLEGAL_MASS: Final = 0.01
_FAMILIES: Final = (
    Thresholds(high=0.99, low=0.90),
    Thresholds(high=0.95, low=0.80),
    Thresholds(high=0.85, low=0.60),
)
_FUSED: Final = 'scoring = "fused" under [model], which needs none'


@dataclass(frozen=True, kw_only=True)
class TopicReading:
    """One answer to a question of the built-in task.

    Attributes
    ----------
    prediction : Prediction
        The answer as a classifier reads it, in raw space.
    tokens : tuple of Token
        The reported tokens, unchecked.
    opening : OpeningMasses or None
        Probabilities listed where the label begins; None where that cannot be seen.
    disagreement : str or None
        How llm-structured-confidence reads the same answer, and why it differs; empty where value, tokens and
        joint log-probability are the same, None where neither finds any.
    is_unreadable : bool
        True if the answer does not have the form that was asked for.
    is_elsewhere : bool
        True if tokens were reported, and none of them where a label begins the answer.
    """

    prediction: Prediction
    tokens: tuple[Token, ...]
    opening: OpeningMasses | None
    disagreement: str | None
    is_unreadable: bool = False
    is_elsewhere: bool = False


def read_topic(response: object, *, form: AnswerForm) -> TopicReading:
    """Return the reading of an answer that was asked for in a form, including any fault."""
    reader = _READER.in_form(form)
    prediction = reader.read(response)
    is_elsewhere = False
    if form is not AnswerForm.SCHEMA and prediction.outcome is Outcome.OK:
        completion = read_completion(response)
        response = readable(completion, form, LABELS, _FIELD)
        is_elsewhere = completion.tokens is not None and response.tokens is None
    tokens: tuple[Token, ...] = ()
    opening = None
    try:
        tokens = reported_tokens(response)
        opening = opening_masses(response, LABELS, _FIELD)
    except CalibrantError:
        pass  # the prediction names the problem, or there is no evidence to read
    return TopicReading(
        prediction=prediction,
        tokens=tokens,
        opening=opening,
        # Plain text is no JSON, which the other reader takes alone.
        disagreement=None if form is AnswerForm.TEXT else _disagreement(response),
        is_unreadable=prediction.outcome is Outcome.UNPARSED and not is_begun_json(response),
        is_elsewhere=is_elsewhere,
    )


# --- units --------------------------------------------------------------------------------------


def unit_fault(tokens: Sequence[Token]) -> str:
    """Name the fault in the numbers reported for `tokens`, or return an empty text.

    Natural logarithms of probabilities are expected; providers have been seen to report other units.

    Parameters
    ----------
    tokens : sequence of Token
        As reported, unchecked; for a list of alternatives alone, one token that has them.
    """
    values = _values_of(tokens)
    if any(math.isnan(value) for value in values):
        return "NaN, or no number, where a log-probability belongs"
    # Some servers list the emitted token twice.
    lists = [list(dict(token.top).values()) for token in tokens if token.top]
    highest = max(values, default=0.0)
    if highest > _ROUNDING:
        return _positive_fault(highest, min(values), lists)
    largest = max((math.fsum(map(math.exp, listed)) for listed in lists), default=0.0)
    if largest <= 1.0 + _EXCESS:
        return ""
    sums_to_base_10 = [math.fsum(10.0**value for value in listed) for listed in lists]
    if max(sums_to_base_10) <= 1.0 + _EXCESS:
        return f"logarithms to base 10 (read as natural ones, a token's alternatives sum to {largest:.2f})"
    return f"the probabilities listed for one token sum to {largest:.2f}, which is more than 1"


def _values_of(tokens: Sequence[Token]) -> list[float]:
    """Return the log-probabilities of tokens and of their alternatives."""
    values = []
    for token in tokens:
        values += [token.logprob, *(listed for _, listed in token.top)]
    return values


def _positive_fault(highest: float, lowest: float, lists: Sequence[Sequence[float]]) -> str:
    for unit, name in ((1.0, "probabilities"), (100.0, "percentages")):
        largest = max((math.fsum(listed) / unit for listed in lists), default=0.0)
        is_whole = _LEAST_SUM <= largest <= 1.0 + _EXCESS
        if lowest >= 0.0 and highest <= unit and is_whole:
            return f"{name} instead of their logarithms (up to {highest:.3g})"
    return f"values above 0 (up to {highest:.3g}), which no logarithm of a probability is"


# --- a second reader: llm-structured-confidence, which gepa's adapter is built on ----------------


class _LabelTokens(NamedTuple):
    """The label in an answer, as one reader sees it.

    Both readers take the clipped log-probabilities from one answer, so equal ones stand for the same tokens,
    however each reader decodes them.
    """

    value: object
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    joint: float

    def __str__(self) -> str:
        return f"{self.joint:.4g} for {self.value!r:.60} over {list(self.tokens)!r:.120}"


def _disagreement(response: object) -> str | None:
    try:
        completion = read_completion(response)
    except CalibrantError:
        return None
    if not completion.tokens:
        return None
    ours = _our_label(completion)
    theirs = _their_label(_as_body(completion) if isinstance(response, Completion) else response)
    if isinstance(ours, str) and isinstance(theirs, str):
        return None
    reason = _difference(ours, theirs, completion)
    if not reason:
        return ""
    first, second = (f"nothing ({one})" if isinstance(one, str) else one for one in (ours, theirs))
    return f"calibrant: {first}; llm-structured-confidence: {second}. Why: {reason}"


def _our_label(completion: Completion) -> _LabelTokens | str:
    """Return the label as calibrant reads it, or the reason why it finds none."""
    try:
        aligned = align(completion, _FIELD)
        joint = aligned.joint_logprob()
    except LogprobsUnavailableError as error:
        return str(error).rstrip(".")
    tokens = aligned.content()
    texts = tuple(token.data.decode(errors="replace") for token in tokens)
    logprobs = tuple(token.logprob for token in tokens)
    return _LabelTokens(aligned.value, texts, logprobs, joint)


def _their_label(response: object) -> _LabelTokens | str:
    """Return the label as the library reads it, or the reason why it finds none."""
    import llm_structured_confidence as library  # noqa: PLC0415 (brings a parser generator, for the doctor alone)

    try:
        entries = library.extract_logprobs(response, field_path=_FIELD)
    except Exception as error:  # noqa: BLE001 (its parser's errors, and KeyErrors of shapes it does not know)
        return " ".join(f"{type(error).__name__}: {error}".split())[:120].rstrip(".")
    if not entries:
        return "the field is missing"
    label = entries[0].field_logprob
    texts = tuple(token.token for token in label.tokens)
    logprobs = tuple(min(max(token.logprob, IMPOSSIBLE), 0.0) for token in label.tokens)
    return _LabelTokens(label.value, texts, logprobs, label.joint_logprob)


def _difference(ours: _LabelTokens | str, theirs: _LabelTokens | str, completion: Completion) -> str:
    """Return the reason why two readings differ; empty where they do not."""
    if isinstance(ours, str):
        return "the library does not check that the tokens spell the answer."
    if isinstance(theirs, str):
        if completion.text.strip().startswith(("{", "[")):
            return "its parser takes fewer spellings of JSON."
        return "it takes bare JSON only."
    if ours.logprobs != theirs.logprobs:
        return _token_difference(ours, theirs, completion)
    if ours.value != theirs.value:
        return "it leaves JSON escapes in the value."
    same = math.isclose(ours.joint, theirs.joint, abs_tol=1e-9)
    return "" if same else "calibrant clips log-probabilities to [-9999, 0]."


def _token_difference(ours: _LabelTokens, theirs: _LabelTokens, completion: Completion) -> str:
    data = [token.data for token in completion.tokens or ()]
    before = b"".join(data).find(completion.text.encode("utf-8", "surrogatepass"))
    if not theirs.tokens:
        return (
            "an empty value has no tokens, which it takes for certainty; calibrant takes the closing quote."
        )
    if before != 0:
        where = f"{counted(before, 'byte')} before the answer" if before > 0 else "otherwise than the answer"
        return f"the tokens begin {where}, and it counts from their beginning."
    if any("\ufffd" in one.decode(errors="replace") for one in data):
        return "tokens hold parts of characters, and it counts characters, calibrant bytes."
    if "" in ours.tokens:
        return "a token without text stands before the value, and calibrant counts it."
    return "unknown; please report it with the answer."


def _as_body(completion: Completion) -> dict[str, Any]:
    """Return a completion as a chat response body, for the library."""
    content = [
        {"token": token.data.decode(errors="replace"), "logprob": token.logprob}
        for token in completion.tokens or ()
    ]
    choice = {"message": {"content": completion.text}, "logprobs": {"content": content}}
    return {"choices": [choice]}


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
        return _readings((*self.answers, self.off_topic))

    @cached_property
    def answered(self) -> tuple[TopicReading, ...]:
        """Readings of the answers received to the texts of the built-in task."""
        return _readings(self.answers)

    @cached_property
    def openings(self) -> tuple[OpeningMasses, ...]:
        """Legal and illegal probability at the first token of the label, for each answer that reports it."""
        return tuple(reading.opening for reading in self.readings if reading.opening is not None)

    @cached_property
    def fault(self) -> str:
        """Fault in the units of the reported numbers; empty without one."""
        for reading in self.readings:
            fault = unit_fault(reading.tokens)
            if fault:
                return fault
        return ""

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
        if self.scored is None or isinstance(self.scored, FailedCall):
            return ()
        return self.scored

    @cached_property
    def label_mass(self) -> float | None:
        """Mean probability on the labels, in [0, 1]; None if unknown."""
        if self.exact_scores:
            return statistics.fmean(one.distribution.label_mass for one in self.exact_scores)
        if self.shown_space is not LogprobSpace.RAW:
            return None
        masses = [reading.opening.legal for reading in self.answered if reading.opening is not None]
        return statistics.fmean(masses) if masses else None


def _readings(answers: Sequence[TopicReading | FailedCall]) -> tuple[TopicReading, ...]:
    return tuple(answer for answer in answers if isinstance(answer, TopicReading))


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
        self, client: Client, options: Mapping[str, Any], *, on_call: Callable[[int], None] | None
    ) -> None:
        self.client = client
        self.made = 0
        self.form = AnswerForm.SCHEMA
        self.answered = 0
        self.first_error: ProviderError | None = None
        # Greedy, whatever the user's own temperature; None says that the model takes none.
        temperature = {}
        if options.get("temperature", 0) is not None:
            temperature = {"temperature": 0}
        self._options = {**options, **temperature}
        self._on_call = on_call

    async def classify(self, number: int, *, top: int) -> TopicReading | FailedCall:
        """Return the reading of an answer to a question of the built-in task, or the failed call."""
        request = CompletionRequest(
            messages=QUESTIONS[number],
            response_format=SCHEMA,
            top_logprobs=top,
            options=self._options,
        )
        asked = shaped(request, self.form, LABELS)
        answer = await self.make(lambda: self.client.complete(asked))
        if isinstance(answer, FailedCall):
            return answer
        return read_topic(answer, form=self.form)

    async def make(self, call: Call[_T]) -> _T | FailedCall:
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
        top = 0
        refused_logprobs = first.reason
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
    others = [await calls.classify(number, top=top) for number in range(1, len(QUESTIONS))]
    evidence.answers = [first, *others[:-1]]
    evidence.off_topic = others[-1]


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
    client = calls.client
    constraint = constraint_for(SCHEMA)
    if not isinstance(client, ContinuingClient) or constraint is None:
        return None
    # Names of servers are decoded by default.
    optional = isinstance(client, OpenAICompatibleClient)
    scored: list[ScoredText] = []
    try:
        await client.check_labels(constraint.values)
        for messages in QUESTIONS[: len(TEXTS)]:
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
            return ScoredText(whole_label_distribution(LABELS, whole.logprobs), is_whole=True)
        reported = await calls.make(lambda: row.next_tokens(constraint.prefix))
    if isinstance(reported, FailedCall):
        return reported
    fault = unit_fault((Token(b"", 0.0, reported.top),))
    walk = LabelWalk(LABELS, tolerance=1.0)  # one token tells the labels apart
    try:
        walk.visit("", reported.top)
    except LogprobsUnavailableError as error:
        return FailedCall(f"{error} ({fault})" if fault else str(error))
    if fault:
        return FailedCall(f"Not natural log-probabilities: {fault}.")
    return ScoredText(walk.distribution(), is_whole=False)


def examine(
    model: ModelLike,
    *,
    api_base: str | None = None,
    options: Mapping[str, Any] | None = None,
    space: LogprobSpace | str | None = None,
    now: datetime | None = None,
    on_call: Callable[[int], None] | None = None,
) -> Examination:
    """Ask a model a few cheap questions, and judge its log-probabilities by the answers.

    At most 17 calls, one after the other, none of them repeated when it fails. Nothing is stored, as
    ``calibrant doctor`` does.

    Parameters
    ----------
    model : str, Client or callable
        As `Classifier` takes it. Options do not reach a callable, so some probes of it say little.
    api_base : str, optional
        Endpoint of an OpenAI-compatible server.
    options : mapping, optional
        Handed to the provider with every call, as `Classifier` does. Temperature is 0 where a probe
        does not need another; ``{"temperature": None}`` sends none.
    space : {"masked", "raw"}, optional
        Space in which the setup reads the log-probabilities, where it is not the one the client names.
    now : datetime, optional
        Date of the examination; it is not read from a clock.
    on_call : callable, optional
        Called with the number of every call, from 1, before it is made.

    Returns
    -------
    Examination
        One finding per probe, and the settings recommended.

    Raises
    ------
    ProviderError
        The first call met a fault that every other call would meet (bad key, unknown model, no
        connection), or no call was answered.
    ConfigurationError
        A parameter is wrong, or the model cannot be opened.

    Examples
    --------
    >>> from calibrant.testing import FakeClient
    >>> sure = {"Animals": 0.97, "Food": 0.01, "Music": 0.01, "Weather": 0.01}
    >>> fake = FakeClient(["Animals", "Food", "Music", "Weather"], {}, default=sure, field="topic")
    >>> examine(fake).finding("space").detail
    'Masked: no probability is on texts that are no label, even off the topic.'
    """
    claimed = None if space is None else LogprobSpace(space)
    if claimed not in {None, LogprobSpace.MASKED, LogprobSpace.RAW}:
        raise ConfigurationError(f"Expected space 'masked' or 'raw', got {space!r}: others are not reported.")
    options = _with_api_base(options or {}, api_base)
    # A server that is named with its address may be able to score labels; it answers other calls as ever.
    client = open_client(model, space=claimed, options=options, scoring="exact")
    name, address, parameters = identity(model if isinstance(model, str) else client.name, options)
    examined = partial(Examination, model=name, api_base=address, parameters=parameters, examined=now)
    try:
        if isinstance(client, DecisionClient):
            return run_sync(_decision_examination(client, examined, on_call=on_call))
        calls = ExaminationCalls(client, call_options(options), on_call=on_call)
        evidence = run_sync(gather(calls, claimed or client.space))
    finally:
        if not isinstance(model, Client):
            client.close()
    scoring = _scoring(evidence)
    space = evidence.shown_space or (evidence.claimed if evidence.distributions else LogprobSpace.NONE)
    confidences = _confidences(evidence, scoring, space)
    scored_space = space if scoring == "decode" else LogprobSpace(scoring)
    return examined(
        findings=findings_of(_PROBES, evidence),
        space=space,
        scoring=scoring,
        thresholds=recommended_thresholds(confidences, scored_space),
        calls=calls.made,
        top_logprobs=evidence.alternatives.came,
        label_mass=evidence.label_mass,
        answer_form=evidence.answer_form,
    )


async def _decision_examination(
    client: DecisionClient, examined: partial[Examination], *, on_call: Callable[[int], None] | None
) -> Examination:
    """Return the examination of a model that reports the probability of every label itself."""
    calls = DecisionExamination(client, on_call=on_call)
    evidence = await calls.gather(TEXTS, LABELS.labels)
    confidences = [max(answer.probabilities) for answer in evidence.answers]
    return examined(
        findings=findings_of(DECISION_PROBES, evidence),
        space=LogprobSpace.DECISION,
        scoring=None,
        thresholds=recommended_thresholds(confidences, LogprobSpace.DECISION),
        calls=calls.made,
        top_logprobs=0,
        label_mass=None,
        answer_form=None,
    )


def _with_api_base(options: Mapping[str, Any], api_base: str | None) -> dict[str, Any]:
    if api_base is None:
        return dict(options)
    if options.get("api_base", api_base) != api_base:
        raise ConfigurationError(
            f"Expected one api_base, got {api_base!r} and {options['api_base']!r} in options: leave out one."
        )
    return {**options, "api_base": api_base}


def _scoring(evidence: Evidence) -> RecommendedScoring:
    if evidence.exact_scores:
        return "exact"
    usable = evidence.claimed is not LogprobSpace.NONE and evidence.distributions
    return "decode" if usable else "fused"


def _confidences(evidence: Evidence, scoring: RecommendedScoring, space: LogprobSpace) -> list[float]:
    if scoring == "exact":
        pairs = [(one.distribution.emitted, one.distribution) for one in evidence.exact_scores]
    else:
        pairs = [(label, replace(found, space=space)) for label, found in evidence.distributions]
    return [distribution.confidence(label) for label, distribution in pairs if label]


def recommended_thresholds(confidences: Sequence[float], space: LogprobSpace) -> Thresholds:
    """Return the family of thresholds that suits a model.

    There are three: 0.99 and 0.90, 0.95 and 0.80, 0.85 and 0.60. The built-in texts have plain
    answers, so a model's confidence in them is about the highest it has: the strictest family is taken
    whose `high` at least half of the texts reach, or else the last one. The first family is for
    ``masked`` space only: in ``raw`` and ``exact`` space a confidence is a share among the labels, and
    leaves out what the model would rather have written. Agreement among a few samples is too coarse for
    any but the last.

    Parameters
    ----------
    confidences : sequence of float
        One per text, in [0, 1]; may be empty.
    space : LogprobSpace
        Space of the log-probabilities that they come from.
    """
    strictest, middle, loosest = _FAMILIES
    usual = statistics.median(confidences) if confidences else 0.0
    if space is LogprobSpace.MASKED and usual >= strictest.high:
        return strictest
    is_logprobs = space in {LogprobSpace.MASKED, LogprobSpace.RAW, LogprobSpace.EXACT}
    return middle if is_logprobs and usual >= middle.high else loosest


# --- the probes, all of them pure ----------------------------------------------------------------


def _enum(evidence: Evidence) -> Judgement:
    readings = evidence.answered
    if evidence.answer_form is None:
        count = f"{len(readings)} of {len(readings)} answers were no label: " if readings else ""
        return problem(
            f"{count}The schema is {evidence.refused_schema}. Nor does the server give a JSON object, or plain text, "
            "that names a label.",
            "Use another model or server, or mend what the message names (--option).",
        )
    if evidence.answer_form is not AnswerForm.SCHEMA:
        right = sum(reading.prediction.outcome is Outcome.OK for reading in readings)
        form = "a JSON object" if evidence.answer_form is AnswerForm.JSON else "plain text"
        return warning(
            f"The schema is {evidence.refused_schema}. Asked for {form}, with the labels named in the prompt, {right} "
            f"of {len(readings)} answers were a label.",
            "Nothing to set: calibrant asks this server that way.",
        )
    wrong = [reading.prediction for reading in readings if reading.prediction.outcome is not Outcome.OK]
    if wrong:
        return problem(
            f"{len(wrong)} of {len(readings)} answers were no label: {wrong[0].reason}",
            "Use a model or server that enforces JSON schemas, or name the labels and the JSON in the prompt.",
        )
    right = sum(
        isinstance(answer, TopicReading) and answer.prediction.label == label
        for answer, (_, label) in zip(evidence.answers, TEXTS, strict=True)
    )
    detail = f"{len(readings)} of {len(readings)} answers were a label, {right} the expected one"
    free = evidence.off_topic
    if isinstance(free, TopicReading) and free.prediction.outcome is Outcome.UNPARSED:
        return warning(
            f"{detail}; but the schema is not enforced: off the topic, {free.prediction.reason}",
            "Name the labels and the JSON in the prompt: other answers count as unparsed.",
        )
    failed = [answer.reason for answer in evidence.answers if isinstance(answer, FailedCall)]
    if failed:
        return warning(f"{detail}; {counted(len(failed), 'call')} failed: {failed[0]}", "Examine again.")
    return ok(f"{detail}.")


def _space(evidence: Evidence) -> Judgement:
    claimed = evidence.claimed
    space = evidence.shown_space
    if space is None:
        missing = _missing_logprobs(evidence)
        if missing:
            verdict = warning if evidence.exact_scores else problem
            return verdict(missing, f"Use {_FUSED}; or another model.")
        return unknown(f"{_unknown_space(evidence)}; they are read as {claimed.value}.")
    illegal = max(opening.illegal for opening in evidence.openings)
    if space is LogprobSpace.RAW:
        detail = f"Raw: up to {illegal:.2f} of the probability is on texts that are no label"
    else:
        share = "no" if illegal == 0.0 else f"only {illegal:.2g} of the"
        detail = f"Masked: {share} probability is on texts that are no label, even off the topic"
    if space is claimed:
        return ok(f"{detail}.")
    setting = f'Set space = "{space.value}" under [model] (space="{space.value}" in Python)'
    if space is LogprobSpace.MASKED:
        detail = f"{detail}. They are read as {claimed.value}, which gives nearly the same confidence."
        return warning(detail, f"{setting}.")
    exact = ', or scoring = "exact"' if evidence.exact_scores else ""
    detail = f"{detail}. Read as {claimed.value}, confidence would be far too low on some rows."
    return problem(detail, f"{setting}{exact}.")


def _missing_logprobs(evidence: Evidence) -> str:
    """Return the way in which log-probabilities are missing; empty if they are not, or nothing was answered."""
    if not evidence.readings:
        return ""
    if evidence.refused_logprobs:
        return f"Log-probabilities are refused: {evidence.refused_logprobs}"
    reported = [reading for reading in evidence.readings if reading.tokens]
    if not reported and any(reading.is_elsewhere for reading in evidence.readings):
        return "Log-probabilities came, but the answers do not begin with the label: predictions carry no confidence."
    if not reported:
        return "No log-probabilities came with the answers: predictions carry no confidence."
    if not evidence.fault and not any(reading.prediction.distribution for reading in reported):
        return "The tokens of the log-probabilities do not spell the label: there is no confidence."
    return ""


def _unknown_space(evidence: Evidence) -> str:
    """Return the reason for an unknown space."""
    if evidence.claimed is LogprobSpace.NONE:
        return "The client says that it has no log-probabilities"
    if evidence.fault:
        return "The numbers reported cannot be used"
    if not evidence.openings:
        return "No log-probabilities were reported where a label begins"
    if not any(opening.listed > 1 for opening in evidence.openings):
        return "Only one alternative is reported, so what else the model may write cannot be seen"
    return "No text that is no label had any probability, but a question off the topic could not be read"


def _label_mass(evidence: Evidence) -> Judgement:
    mass = evidence.label_mass
    if mass is None:
        if evidence.shown_space is LogprobSpace.MASKED:
            return unknown("A mask hides what the model would rather have written.")
        return unknown("There are no log-probabilities that show it.")
    detail = f"Mean {mass:.3f} over {len(TEXTS)} texts"
    if mass < LOW_LABEL_MASS:
        return warning(
            f"{detail}, below {LOW_LABEL_MASS}: the prompt does not make the model answer with labels.",
            "Name the labels in the prompt and show the form of the answer with a placeholder; or use another model.",
        )
    return ok(f"{detail}.")


def _units(evidence: Evidence) -> Judgement:
    tokens = [token for reading in evidence.readings for token in reading.tokens]
    if not tokens:
        return unknown("No log-probabilities were reported.")
    if evidence.fault:
        return problem(
            f"Not natural log-probabilities: {evidence.fault}.", f"Use {_FUSED}; or another endpoint."
        )
    values = _values_of(tokens)
    impossible = sum(value <= IMPOSSIBLE for value in values)
    remark = ""
    if impossible:
        remark = f"; {impossible} of {len(values)} at or below {IMPOSSIBLE:.0f}, read as impossible"
    if all(value == 0.0 or value <= IMPOSSIBLE for value in values):
        return warning(
            f"Every value is 0 or impossible{remark}: they do not tell a sure answer from a doubtful one.",
            f"Where your own texts show the same, use {_FUSED}.",
        )
    return ok(f"Natural logarithms, none above 0{remark}.")


def _alignment(evidence: Evidence) -> Judgement:
    """Compare the label positions of our reader and of the library under gepa's adapter."""
    compared = [reading.disagreement for reading in evidence.readings if reading.disagreement is not None]
    if not compared:
        return unknown("No log-probabilities were reported that can be read.")
    differences = list(filter(None, compared))
    count = len(compared)
    if not differences:
        return ok(
            "llm-structured-confidence reads the same label, tokens and joint log-probability in "
            f"{count} of {count} answers."
        )
    return warning(
        f"llm-structured-confidence reads {len(differences)} of {count} answers otherwise: {differences[0]}",
        "Do not compare figures with programs that read this model through that library, gepa's own adapter among "
        "them.",
    )


def _exact(evidence: Evidence) -> Judgement:
    scored = evidence.scored
    if scored is None:
        return warning(
            "Not possible: no next-token probabilities after a beginning of an answer are to be had."
        )
    if isinstance(scored, FailedCall):
        if scored.optional:
            return warning(scored.reason)
        return problem(scored.reason, scored.remedy or 'Use scoring = "decode", or another engine.')
    basis = "the probabilities of whole labels" if scored[0].is_whole else "next-token probabilities"
    return ok(f"{len(scored)} of {len(scored)} texts were scored on {basis}.")


_PROBES: Final = (_enum, _space, _label_mass, _units, _alignment, _exact)
