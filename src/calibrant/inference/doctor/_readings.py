"""Built-in task of an examination: short questions and readings of their answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from calibrant.core._completion import Completion, Message, Token
from calibrant.core._errors import CalibrantError, LogprobsUnavailableError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LogprobSpace, Outcome, Prediction
from calibrant.inference._answer_forms import AnswerForm, is_begun_json, readable
from calibrant.inference._reader import AnswerReader
from calibrant.logprobs._completion import IMPOSSIBLE, read_completion, reported_tokens
from calibrant.logprobs._distribution import OpeningMasses, opening_masses
from calibrant.logprobs._fields import align
from calibrant.logprobs._schema import enum_schema

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
    """

    prediction: Prediction
    tokens: tuple[Token, ...]
    opening: OpeningMasses | None
    disagreement: str | None
    is_unreadable: bool = False


def read_topic(response: object, *, form: AnswerForm = AnswerForm.SCHEMA) -> TopicReading:
    """Return the reading of an answer that was asked for in a form, including any fault."""
    reader = _READER.in_form(form)
    prediction = reader.read(response)
    if form is not AnswerForm.SCHEMA and prediction.outcome is Outcome.OK:
        response = readable(read_completion(response), form, LABELS, _FIELD)
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
    values = [value for token in tokens for value in (token.logprob, *(listed for _, listed in token.top))]
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
    if all(math.fsum(10.0**value for value in listed) <= 1.0 + _EXCESS for listed in lists):
        return f"logarithms to base 10 (read as natural ones, a token's alternatives sum to {largest:.2f})"
    return f"the probabilities listed for one token sum to {largest:.2f}, which is more than 1"


def _positive_fault(highest: float, lowest: float, lists: Sequence[Sequence[float]]) -> str:
    for unit, name in ((1.0, "probabilities"), (100.0, "percentages")):
        sums = [math.fsum(listed) / unit for listed in lists]
        whole = all(total <= 1.0 + _EXCESS for total in sums) and max(sums, default=0.0) >= _LEAST_SUM
        if lowest >= 0.0 and highest <= unit and whole:
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
    first, second = (f"nothing ({one})" if isinstance(one, str) else one for one in (ours, theirs))
    return f"calibrant: {first}; llm-structured-confidence: {second}. Why: {reason}" if reason else ""


def _our_label(completion: Completion) -> _LabelTokens | str:
    """Return the label as calibrant reads it, or the reason why it finds none."""
    try:
        aligned = align(completion, _FIELD)
        joint = aligned.joint_logprob()
    except LogprobsUnavailableError as error:
        return str(error).rstrip(".")
    tokens = aligned.content()
    texts = tuple(token.data.decode(errors="replace") for token in tokens)
    return _LabelTokens(aligned.value, texts, tuple(token.logprob for token in tokens), joint)


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
    logprobs = tuple(min(max(token.logprob, IMPOSSIBLE), 0.0) for token in label.tokens)
    return _LabelTokens(
        label.value, tuple(token.token for token in label.tokens), logprobs, label.joint_logprob
    )


def _difference(ours: _LabelTokens | str, theirs: _LabelTokens | str, completion: Completion) -> str:
    """Return the reason why two readings differ; empty where they do not."""
    if isinstance(ours, str):
        return "the library does not check that the tokens spell the answer."
    if isinstance(theirs, str):
        bare = completion.text.strip().startswith(("{", "["))
        return f"{'its parser takes fewer spellings of JSON' if bare else 'it takes bare JSON only'}."
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
        where = f"{before} bytes before the answer" if before > 0 else "otherwise than the answer"
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
    return {"choices": [{"message": {"content": completion.text}, "logprobs": {"content": content}}]}
