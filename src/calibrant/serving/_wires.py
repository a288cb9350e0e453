"""Wires of typed decisions: questions read from request bodies, and answers and errors in the form of each wire."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

import numpy as np
from fastapi import HTTPException
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import Scope

from calibrant.core._completion import QuestionKind
from calibrant.core._files import json_text
from calibrant.core._prediction import FloatArray, JsonObject, Usage
from calibrant.core._reported import counted

SYSTEM_ONE: Final = "/v1/systemone"
DECISIONS: Final = "/v1/decisions"
_YES_NO: Final = ("no", "yes")
_MOST_PROBLEMS: Final = 20  # that an error lists
_MOST_OPTIONS: Final = 255
_TEXT_ONLY: Final = "Expected text, got another kind of content: this service reads text alone."


class BadQuestionError(HTTPException):
    """Refusal of a request body, with the places of its mistakes.

    Parameters
    ----------
    *problems : tuple of (sequence, str, str)
        Place in the body, message and kind of each mistake.
    """

    def __init__(self, *problems: tuple[Sequence[str | int], str, str]) -> None:
        super().__init__(422, problems[0][1])
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question of a request, in the terms of both wires.

    Attributes
    ----------
    name : str or None
        Name that its answer repeats.
    place : tuple
        Place in the body, for messages.
    kind : {"choice", "score", "yes_no"}
        One of several options; one of several levels, lowest first; or whether a statement holds.
    options : tuple of str, length n
        Texts of the options; of ``yes_no`` no and yes.
    values : tuple, length n
        The options as the answer repeats them.
    descriptions : tuple of str, length n
        What the options mean; empty texts where nothing is said.
    instructions : str
        What is asked; may be empty.
    """

    name: str | None
    place: tuple[str | int, ...]
    kind: QuestionKind
    options: tuple[str, ...]
    values: tuple[Any, ...]
    descriptions: tuple[str, ...]
    instructions: str


@dataclass(frozen=True, kw_only=True)
class QuestionAnswer:
    """Answer to a question.

    Attributes
    ----------
    probabilities : ndarray of shape (n,)
        In the order of the question's options; the sum is 1.
    best : int
        Index of the answer among the options.
    decision : str
        What became of it: accepted, review, undecided or uncalibrated.
    details : mapping
        Members that only System One has room for.
    """

    probabilities: FloatArray
    best: int
    decision: str
    details: Mapping[str, Any]

    @property
    def score(self) -> float:
        """Expected index of the level."""
        return float(self.probabilities @ np.arange(len(self.probabilities)))

    @property
    def peak(self) -> float:
        """Confidence in a choice, by the wires' reference: the top probability above an even chance, in [0, 1]."""
        even = 1.0 / len(self.probabilities)
        return max(0.0, (float(self.probabilities.max()) - even) / (1.0 - even))

    @property
    def closeness(self) -> float:
        """Confidence in a score, by the wires' reference: 1 less the mean distance from the top level, in [0, 1]."""
        levels = np.arange(len(self.probabilities))
        spread = float(self.probabilities @ np.abs(levels - self.best))
        even = float(np.abs(levels - levels.mean()).mean())
        return max(0.0, 1.0 - spread / even)


class Wire(ABC):
    """Form of requests, answers and errors.

    Attributes
    ----------
    title : str
        Its name.
    """

    title: ClassVar[str]

    @abstractmethod
    def schema(self, most: int) -> JsonObject:
        """Return an outline of the JSON schema of its bodies, with at most so many questions."""

    @abstractmethod
    def read(self, record: Any) -> tuple[str, list[Question]]:  # noqa: ANN401 (any JSON value)
        """Return the text and the questions in a body; raise ValidationError if it is another one."""

    @abstractmethod
    def body(
        self,
        model: str,
        questions: Sequence[Question],
        answers: Sequence[QuestionAnswer | None],
        usage: Usage,
    ) -> JsonObject:
        """Return the body with the answers; None stands for a question that the model declined."""

    @abstractmethod
    def error(self, error: AnyHTTPException) -> tuple[int, JsonObject]:
        """Return status and body of an error."""


def _question_schema(kinds: list[str]) -> JsonObject:
    return {"type": "object", "required": ["type"], "properties": {"type": {"enum": kinds}}}


def _body_schema(text: str, text_schema: JsonObject, questions: JsonObject) -> JsonObject:
    properties = {"model": {"type": "string"}, text: text_schema, "questions": questions}
    return {"type": "object", "required": [text, "questions"], "properties": properties}


def _as_text(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    """Return an object or array as its JSON text, and null as no text; anything else unchanged."""
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json_text(value)
    return value


_Structured: TypeAlias = Annotated[str, BeforeValidator(_as_text)]
_Level: TypeAlias = str | list[Any] | JsonObject
_Name: TypeAlias = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True)


class _NoulCriteria(_Body):
    no: _Structured = Field("", alias="false")
    yes: _Structured = Field("", alias="true")


class _Noul(_Body):
    type: Literal["noul"]
    instructions: _Structured = ""
    criteria: _NoulCriteria | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if not self.instructions.strip() and self.criteria is None:
            raise ValueError("expected instructions or criteria, got neither: say what is asked")
        return self

    def parts(self) -> JsonObject:
        told = ("", "") if self.criteria is None else (self.criteria.no, self.criteria.yes)
        return {"kind": "yes_no", "options": _YES_NO, "values": _YES_NO, "descriptions": told}


class _Choice(_Body):
    type: Literal["choice"]
    instructions: _Structured = ""
    criteria: dict[str, _Structured] = Field(min_length=2, max_length=_MOST_OPTIONS)

    def parts(self) -> JsonObject:
        options = tuple(self.criteria)
        told = tuple(self.criteria.values())
        return {"kind": "choice", "options": options, "values": options, "descriptions": told}


class _Score(_Body):
    type: Literal["score"]
    instructions: _Structured = ""
    criteria: list[_Level] = Field(min_length=2, max_length=_MOST_OPTIONS)

    def parts(self) -> JsonObject:
        options = tuple(map(_as_text, self.criteria))
        return {
            "kind": "score",
            "options": options,
            "values": tuple(self.criteria),
            "descriptions": ("",) * len(options),
        }


class _SystemOneRequest(_Body):
    model: str = ""
    state: str | list[Any] | JsonObject
    questions: dict[_Name, Annotated[_Noul | _Choice | _Score, Field(discriminator="type")]] = Field(
        min_length=1
    )
    assets: Any = None
    images: Any = None


class SystemOne(Wire):
    """System One: a state, and questions by name."""

    title = "System One"
    _KINDS: ClassVar = {401: "authentication_error", 429: "rate_limit_error"}

    def schema(self, most: int) -> JsonObject:
        """Return an outline of the JSON schema of its bodies, with at most so many questions."""
        questions = {
            "type": "object",
            "minProperties": 1,
            "maxProperties": most,
            "additionalProperties": _question_schema(["noul", "choice", "score"]),
        }
        return _body_schema("state", {"type": ["string", "object", "array"]}, questions)

    def read(self, record: Any) -> tuple[str, list[Question]]:  # noqa: ANN401 (any JSON value)
        """Return the text and the questions in a body."""
        asked = _SystemOneRequest.model_validate(record)
        for name in ("assets", "images"):
            if getattr(asked, name):
                raise BadQuestionError(((name,), _TEXT_ONLY, "text_only"))
        questions = [
            Question(name=name, place=("questions", name), instructions=one.instructions, **one.parts())
            for name, one in asked.questions.items()
        ]
        return _as_text(asked.state), questions

    def body(
        self,
        model: str,
        questions: Sequence[Question],
        answers: Sequence[QuestionAnswer | None],
        usage: Usage,
    ) -> JsonObject:
        """Return the body with the answers; a declined question fails the request, as this wire has no refusal."""
        found = {}
        for question, answer in zip(questions, answers, strict=True):
            if answer is None:
                declined = "The model declined to answer: ask otherwise."
                raise BadQuestionError((question.place, declined, "refusal"))
            found[question.name] = {**self._answer(question, answer), **answer.details}
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        return {"model": model, "answers": found, "usage": counts}

    @staticmethod
    def _answer(question: Question, answer: QuestionAnswer) -> JsonObject:
        shares = answer.probabilities.tolist()
        if question.kind == "yes_no":
            return {"type": "noul", "noul": shares[1]}
        if question.kind == "choice":
            by_option = dict(zip(question.options, shares, strict=True))
            best = question.options[answer.best]
            return {"type": "choice", "choice": best, "confidence": answer.peak, "probabilities": by_option}
        numbers = list(map(str, range(len(shares))))
        return {
            "type": "score",
            "score": answer.score,
            "confidence": answer.closeness,
            "legend": dict(zip(numbers, question.values, strict=True)),
            "probabilities": dict(zip(numbers, shares, strict=True)),
        }

    def error(self, error: AnyHTTPException) -> tuple[int, JsonObject]:
        """Return status and body of an error: a list of mistakes in the body, or else one message."""
        if isinstance(error, BadQuestionError):
            listed = [
                {"loc": ["body", *place], "msg": message, "type": kind}
                for place, message, kind in error.problems
            ]
            return error.status_code, {"detail": listed}
        is_own = error.status_code >= 500
        kind = self._KINDS.get(error.status_code, "api_error" if is_own else "invalid_request_error")
        return error.status_code, {"detail": {"error_type": kind, "message": error.detail}}


class _Part(_Body):
    type: str = ""
    text: str | None = None


class _Item(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    role: str = ""
    content: str | list[_Part] | None = None

    def as_text(self) -> str:
        """Return the item's text, after its role where that is another one than the user's."""
        if self.content is None:  # a tool call or its output
            return json_text(self.model_extra)
        text = self.content if isinstance(self.content, str) else _joined(self.content)
        return text if self.role in {"", "user"} else f"{self.role}: {text}"


def _joined(parts: Sequence[_Part]) -> str:
    if any(part.text is None for part in parts):
        raise BadQuestionError((("input",), _TEXT_ONLY, "text_only"))
    return "\n\n".join(part.text or "" for part in parts)


class _Asked(_Body):
    name: str | None = None
    instructions: str | list[_Part]

    def asked_text(self) -> str:
        """Return the text of the instructions."""
        if isinstance(self.instructions, str):
            return self.instructions
        return _joined(self.instructions)


class _Predicate(_Asked):
    type: Literal["predicate"]

    def parts(self) -> JsonObject:
        return {"kind": "yes_no", "options": _YES_NO, "values": _YES_NO, "descriptions": ("", "")}


class _Described(_Body):
    description: str | None = None


class _Value(_Described):
    value: str | bool


class _LabelledLevel(_Described):
    label: str


class _Values(_Asked):
    type: Literal["choice"]
    choices: list[_Value] = Field(min_length=2, max_length=_MOST_OPTIONS)

    def parts(self) -> JsonObject:
        values = tuple(choice.value for choice in self.choices)
        options = tuple(value if isinstance(value, str) else json.dumps(value) for value in values)
        told = tuple(choice.description or "" for choice in self.choices)
        return {"kind": "choice", "options": options, "values": values, "descriptions": told}


class _Levels(_Asked):
    type: Literal["score"]
    levels: list[_LabelledLevel] = Field(min_length=2, max_length=_MOST_OPTIONS)

    def parts(self) -> JsonObject:
        labels = tuple(level.label for level in self.levels)
        told = tuple(level.description or "" for level in self.levels)
        return {"kind": "score", "options": labels, "values": labels, "descriptions": told}


class _DecisionsRequest(_Body):
    model: str = ""
    input: str | list[_Item]
    questions: list[Annotated[_Predicate | _Values | _Levels, Field(discriminator="type")]] = Field(
        min_length=1
    )


class Decisions(Wire):
    """OpenAI's Decisions: an input, and a list of questions."""

    title = "OpenAI's Decisions"

    def schema(self, most: int) -> JsonObject:
        """Return an outline of the JSON schema of its bodies, with at most so many questions."""
        questions = {
            "type": "array",
            "minItems": 1,
            "maxItems": most,
            "items": _question_schema(["predicate", "choice", "score"]),
        }
        return _body_schema("input", {"type": ["string", "array"]}, questions)

    def read(self, record: Any) -> tuple[str, list[Question]]:  # noqa: ANN401 (any JSON value)
        """Return the text and the questions in a body."""
        asked = _DecisionsRequest.model_validate(record)
        text = asked.input
        if not isinstance(text, str):
            text = "\n\n".join(item.as_text() for item in text)
        questions = [
            Question(name=one.name, place=("questions", place), instructions=one.asked_text(), **one.parts())
            for place, one in enumerate(asked.questions)
        ]
        return text, questions

    def body(
        self,
        model: str,
        questions: Sequence[Question],
        answers: Sequence[QuestionAnswer | None],
        usage: Usage,
    ) -> JsonObject:
        """Return the body with the answers, in the order of the questions."""
        listed = [self._answer(*pair) for pair in zip(questions, answers, strict=True)]
        counts = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return {"model": model, "answers": listed, "usage": counts}

    @staticmethod
    def _answer(question: Question, answer: QuestionAnswer | None) -> JsonObject:
        if answer is None:
            return {"type": "refusal", "name": question.name}
        shares = answer.probabilities.tolist()
        if question.kind == "yes_no":
            return {"type": "predicate", "name": question.name, "probability": shares[1]}
        if question.kind == "choice":
            by_value = [
                {"value": value, "probability": share}
                for value, share in zip(question.values, shares, strict=True)
            ]
            return {
                "type": "choice",
                "name": question.name,
                "choice": question.values[answer.best],
                "confidence": answer.peak,
                "probabilities": by_value,
            }
        by_level = [
            {"value": place, "label": question.values[place], "probability": share}
            for place, share in enumerate(shares)
        ]
        return {
            "type": "score",
            "name": question.name,
            "score": answer.score,
            "confidence": answer.closeness,
            "probabilities": by_level,
        }

    def error(self, error: AnyHTTPException) -> tuple[int, JsonObject]:
        """Return status and body of an error; a mistake in the body has the status 400 here."""
        status = error.status_code
        param = None
        code = None
        if isinstance(error, BadQuestionError):
            status = 400
            place, _, code = error.problems[0]
            steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in place]
            param = "".join(steps).removeprefix(".") or None
        elif status == 401:
            code = "invalid_api_key"
        elif status == 429:
            code = "rate_limit_exceeded"
        kind = "server_error" if status >= 500 else "invalid_request_error"
        told = {"message": error.detail, "type": kind, "param": param, "code": code}
        return status, {"error": told}


WIRES: Final[Mapping[str, Wire]] = {SYSTEM_ONE: SystemOne(), DECISIONS: Decisions()}
"""Wires by the path that is theirs; a body of the other one is answered there, too."""


def wire_at(scope: Scope) -> Wire | None:
    """Return the wire of a request: that of its body, as far as it was read, or of its path; None elsewhere."""
    found: Wire | None = scope.get("state", {}).get("wire") or WIRES.get(scope["path"])
    return found


def read_questions(scope: Scope, body: bytes, *, most: int) -> tuple[Wire, str, list[Question]]:
    """Return the wire of a body, its text and its questions; note the wire in the request's state.

    Raises
    ------
    BadQuestionError
        The body is not JSON in UTF-8, its fields are wrong, or it has more than `most` questions.
    """
    try:
        record = from_json(body)
    except ValueError as error:
        message = f"Expected a body of JSON in UTF-8, got one that is not ({error})."
        raise BadQuestionError(((), message, "json_invalid")) from None
    wire = _wire_of(record) or WIRES[scope["path"]]
    scope["state"]["wire"] = wire
    try:
        text, questions = wire.read(record)
    except ValidationError as error:
        found = {_place(record, one): (_message(one), one["type"]) for one in reversed(error.errors())}
        # Of the forms that a value may have, the one that fits further tells what is wrong.
        inner = {place[:length] for place in found for length in range(len(place))}
        problems = [(place, *found[place]) for place in reversed(found) if place not in inner]
        raise BadQuestionError(*problems[:_MOST_PROBLEMS]) from None
    if len(questions) > most:
        message = (
            f"Expected at most {counted(most, 'question')}, got {len(questions):,}: send several requests."
        )
        raise BadQuestionError((("questions",), message, "too_long"))
    return wire, text, questions


def _message(problem: Mapping[str, Any]) -> str:
    """Return the message of a mistake, without names of classes."""
    if problem["type"] == "model_type":
        return "Input should be an object"
    return str(problem["msg"]).removeprefix("Value error, ")


def _place(record: Any, problem: Mapping[str, Any]) -> tuple[str | int, ...]:  # noqa: ANN401 (any JSON value)
    """Return the place of a mistake in a body, without the names of forms that pydantic puts between its steps."""
    place: tuple[str | int, ...] = ()
    for step in problem["loc"]:
        is_there = (isinstance(record, dict) and step in record) or (
            isinstance(record, list) and isinstance(step, int)
        )
        if is_there:
            record = record[step]
            place += (step,)
    if problem["type"] == "missing":
        return (*place, problem["loc"][-1])
    return place


def _wire_of(record: Any) -> Wire | None:  # noqa: ANN401 (any JSON value)
    """Return the wire that a body is written for; None if nothing tells."""
    fields = record if isinstance(record, dict) else {}
    questions = fields.get("questions")
    if isinstance(questions, list) or (questions is None and "input" in fields):
        return WIRES[DECISIONS]
    if isinstance(questions, dict) or "state" in fields:
        return WIRES[SYSTEM_ONE]
    return None
