"""Everything that is asked in an examination, and what came back; judged elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from calibrant.clients._constraint import Constraint, constraint_for
from calibrant.clients._openai_compatible import OpenAICompatibleClient
from calibrant.core._completion import (
    CompletionRequest,
    ContinuingClient,
    LabelContinuation,
    Message,
    NextTokens,
    Token,
)
from calibrant.core._distribution import LabelDistribution, LogprobSpace
from calibrant.core._errors import CalibrantError, ConfigurationError, LogprobsUnavailableError, ProviderError
from calibrant.inference.doctor._calls import Calls, Failed, Lacking
from calibrant.inference.doctor._task import (
    COUNTING,
    LABELS,
    LOTTERY,
    OFF_TOPIC,
    SCHEMA,
    TEXTS,
    Reading,
    question,
)
from calibrant.inference.doctor._units import unit_fault
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._distribution import whole_label_distribution
from calibrant.logprobs._walk import LabelWalk

_FIRST: Final = 5
_MORE: Final = (20, 100, 1000)
# As many alternatives as the rest of the examination asks for at most.
_ENOUGH: Final = 100
_REPEATS: Final = 3
_SEED: Final = 11


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """How many alternatives a token comes with.

    Attributes
    ----------
    asked : int
        The largest number that was asked for and answered with log-probabilities; 0 where none was.
    came : int
        Most that came back.
    refused : tuple of (int, str) or None
        A number that was refused, and why.
    """

    asked: int = 0
    came: int = 0
    refused: tuple[int, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One text, scored on next-token probabilities, or on those of whole labels.

    Attributes
    ----------
    next_tokens : NextTokens or None
        What was reported; None where it is about whole labels.
    distribution : LabelDistribution
        Over the labels, as far as one token tells them apart, or as a whole.
    """

    next_tokens: NextTokens | None
    distribution: LabelDistribution


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What came back from a model.

    Attributes
    ----------
    claimed : LogprobSpace
        What the setup takes its log-probabilities for.
    answers : tuple of Reading or Failed
        To the texts of the built-in task, in order; empty where the schema is refused.
    repeats : tuple of Reading or Failed
        To the first of them, asked again and again.
    off_topic : Reading or Failed
        To a question that no label answers.
    refused_schema, refused_logprobs : str
        Why an enum, or log-probabilities together with one, were refused; empty where they were not.
    alternatives : Alternatives
        How many come with a token.
    scored : tuple of Scored, Failed or None
        The texts scored exactly; None where the client cannot be asked that way.
    continued : str or Failed
        What followed an answer that was begun.
    drawn : tuple of (str or Failed)
        Answers to one question under one seed.
    seconds : tuple of float
        Wall time of the calls that were answered.
    calls : int
        Calls made.
    """

    claimed: LogprobSpace
    answers: tuple[Reading | Failed, ...]
    repeats: tuple[Reading | Failed, ...]
    off_topic: Reading | Failed
    refused_schema: str
    refused_logprobs: str
    alternatives: Alternatives
    scored: tuple[Scored, ...] | Failed | None
    continued: str | Failed
    drawn: tuple[str | Failed, ...]
    seconds: tuple[float, ...]
    calls: int

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Every answer under the schema."""
        return tuple(
            found for found in (*self.answers, *self.repeats, self.off_topic) if isinstance(found, Reading)
        )


async def gather(calls: Calls, claimed: LogprobSpace) -> Evidence:
    """Ask everything: at most 17 calls.

    Raises
    ------
    ProviderError
        No call was answered.
    """
    first, refused = await _begin(calls)
    refused_logprobs, refused_schema = (*refused, "", "")[:2]
    top = 0 if refused else _FIRST
    repeats: list[Reading | Failed] = [first]
    answers: list[Reading | Failed] = []
    alternatives = Alternatives()
    off_topic: Reading | Failed = Failed(refused_schema)
    if isinstance(first, Reading):
        repeats += [await _classify(calls, 0, top) for _ in range(_REPEATS - 1)]
        alternatives = await _alternatives(calls, first) if top else alternatives
        top = min(max(top, alternatives.asked), _ENOUGH) if top else 0
        answers = [first, *[await _classify(calls, number, top) for number in range(1, len(TEXTS))]]
        off_topic = await calls.classify(OFF_TOPIC, top_logprobs=top)
    scored = await _score(calls)
    continued = await _text(calls, COUNTING, {"max_tokens": 8})
    drawn = [await _draw(calls)]
    if not isinstance(drawn[0], Failed):
        drawn.append(await _draw(calls))
    if not calls.seconds and calls.first_error is not None:
        raise calls.first_error
    return Evidence(
        claimed=claimed,
        answers=tuple(answers),
        repeats=tuple(repeats),
        off_topic=off_topic,
        refused_schema=refused_schema,
        refused_logprobs=refused_logprobs,
        alternatives=alternatives,
        scored=scored,
        continued=continued,
        drawn=tuple(drawn),
        seconds=tuple(calls.seconds),
        calls=calls.made,
    )


async def _begin(calls: Calls) -> tuple[Reading | Failed, list[str]]:
    """Return the first answer, and why it had to be asked for with less."""
    refused: list[str] = []
    found: Reading | Failed = Failed("")
    for top in (_FIRST, 0):
        found = await _classify(calls, 0, top)
        if isinstance(found, Reading):
            break
        refused.append(found.reason)
    return found, refused


async def _classify(calls: Calls, number: int, top: int) -> Reading | Failed:
    return await calls.classify(question(TEXTS[number][0]), top_logprobs=top)


async def _alternatives(calls: Calls, first: Reading) -> Alternatives:
    found = Alternatives(asked=_FIRST, came=_listed(first))
    if not found.came:
        return Alternatives()
    for wanted in _MORE:
        if wanted <= found.came:
            continue
        more = await _classify(calls, 0, wanted)
        if isinstance(more, Failed):
            return Alternatives(asked=found.asked, came=found.came, refused=(wanted, more.reason))
        came = _listed(more)
        if came:
            found = Alternatives(asked=wanted, came=max(came, found.came))
        if came < wanted:
            break
    return found


def _listed(reading: Reading) -> int:
    return max((len(token.top) for token in reading.tokens), default=0)


async def _score(calls: Calls) -> tuple[Scored, ...] | Failed | None:
    client, constraint = calls.client, constraint_for(SCHEMA)
    if not isinstance(client, ContinuingClient) or constraint is None:
        return None
    # Names of servers are decoded by default.
    failed = Lacking if isinstance(client, OpenAICompatibleClient) else Failed
    found: list[Scored] = []
    try:
        await client.check_labels(constraint.values)
        for text, _ in TEXTS:
            scored = await _score_one(calls, client, constraint, text)
            if isinstance(scored, Failed):
                return failed(scored.reason)
            found.append(scored)
    except (ProviderError, ConfigurationError) as error:
        return failed(str(error))
    return tuple(found)


async def _score_one(
    calls: Calls, client: ContinuingClient, constraint: Constraint, text: str
) -> Scored | Failed:
    async with client.continuing(CompletionRequest(messages=question(text), top_logprobs=0)) as row:
        if isinstance(row, LabelContinuation):
            whole = await calls.label_logprobs(row, constraint.prefix, constraint.values)
            if isinstance(whole, Failed):
                return whole
            distribution = whole_label_distribution(LABELS, whole.logprobs)
            return Scored(next_tokens=None, distribution=distribution)
        found = await calls.next_tokens(row, constraint.prefix)
    if isinstance(found, Failed):
        return found
    walk = LabelWalk(LABELS, tolerance=1.0)  # one token tells the labels apart
    try:
        walk.visit("", found.top)
    except LogprobsUnavailableError as error:
        fault = unit_fault((Token(b"", 0.0, found.top),))
        return Failed(f"{error} ({fault})" if fault else str(error))
    return Scored(next_tokens=found, distribution=walk.distribution())


async def _text(calls: Calls, messages: tuple[Message, ...], options: Mapping[str, Any]) -> str | Failed:
    answer = await calls.ask(messages, extra=options)
    if isinstance(answer, Failed):
        return answer
    try:
        completion = read_completion(answer)
    except CalibrantError as error:
        return Failed(str(error))
    return completion.text if completion.text.strip() else Failed("the answer is empty")


async def _draw(calls: Calls) -> str | Failed:
    return await _text(calls, LOTTERY, {"temperature": 1, "seed": _SEED, "max_tokens": 32})
