"""The built-in task of an examination: a few short questions, and how their answers are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from calibrant.core._completion import Message, Token
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import CalibrantError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Prediction
from calibrant.inference._reader import AnswerReader
from calibrant.inference.doctor._comparison import compare
from calibrant.logprobs._completion import reported_tokens
from calibrant.logprobs._distribution import OpeningMasses, opening_masses
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

OFF_TOPIC: Final[tuple[Message, ...]] = (
    {"role": "system", "content": 'Name the capital of the country, as JSON: {"topic": "CAPITAL"}.'},
    {"role": "user", "content": "Japan"},
)
"""A question no label answers: a model that is free to answer puts nearly nothing on labels."""

COUNTING: Final[tuple[Message, ...]] = (
    {"role": "system", "content": "Count to ten in words, separated by commas."},
    {"role": "user", "content": "Begin."},
    {"role": "assistant", "content": "one, two, three, four, five,"},
)
"""An answer that is begun: whoever continues it writes "six"."""

LOTTERY: Final[tuple[Message, ...]] = (
    {"role": "user", "content": "Write five random whole numbers between 1 and 10000, separated by commas."},
)
"""A question with very many answers."""

SCHEMA: Final = enum_schema(LABELS, _FIELD)

# How the distribution is read does not depend on the space; what is made of it does.
_READER: Final = AnswerReader(labels=LABELS, field=_FIELD, answer_field=_FIELD, space=LogprobSpace.RAW)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One answer to a question of the built-in task.

    Attributes
    ----------
    prediction : Prediction
        The answer as a classifier reads it, in raw space.
    tokens : tuple of Token
        What was reported, unchecked.
    opening : OpeningMasses or None
        What is listed where the label begins; None where that cannot be seen.
    disagreement : str or None
        How another reader of the same answer differs; see `compare`.
    """

    prediction: Prediction
    tokens: tuple[Token, ...]
    opening: OpeningMasses | None
    disagreement: str | None


def question(text: str) -> tuple[Message, ...]:
    """Return the messages that ask for the topic of `text`."""
    return ({"role": "system", "content": _PROMPT}, {"role": "user", "content": text})


def read(response: object) -> Reading:
    """Read an answer; whatever is wrong with it becomes part of the reading."""
    tokens: tuple[Token, ...] = ()
    opening = None
    try:
        tokens = reported_tokens(response)
        opening = opening_masses(response, LABELS, _FIELD)
    except CalibrantError:
        pass  # the prediction says what is wrong, or there is no evidence to read
    return Reading(
        prediction=_READER.read(response),
        tokens=tokens,
        opening=opening,
        disagreement=compare(response, _FIELD),
    )
