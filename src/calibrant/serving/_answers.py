"""Request and response bodies of ``POST /v1/classify``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import from_json

from calibrant.core._errors import CalibrantError
from calibrant.core._prediction import JsonObject, Outcome, Part, Prediction
from calibrant.core._reported import counted
from calibrant.heads._tuned import Decision, Tuned
from calibrant.runs._rows import probability_record

_LOG: Final = logging.getLogger("calibrant.service")
_FAILED = "The call of the model failed: ask again later."
_SHAPE = 'Expected {"text": "..."} or {"texts": ["...", ...]}'


_Text = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]


class _OneText(BaseModel):
    """Body of a request for one text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: _Text


class _SeveralTexts(BaseModel):
    """Body of a request for several texts."""

    model_config = ConfigDict(strict=True, extra="forbid")

    texts: Annotated[list[_Text], Field(min_length=1)]


class AnswerPart(BaseModel):
    """One label of an answer that has several."""

    name: str = Field(description="The field; or, where any number of labels may be answered, one of them.")
    label: str = Field(description="The field's label; yes or no in the other case.")
    probabilities: dict[str, float] | None = Field(description="By label; null where the model tells none.")
    confidence: float | None = Field(description="In this label, in [0, 1].", ge=0, le=1)


class Answer(BaseModel):
    """Classification of one text."""

    label: str | None = Field(
        description="The predicted label, or the JSON text of an answer that holds several; null where there is none."
    )
    probabilities: dict[str, float] | None = Field(description="By label; null where the model tells none.")
    confidence: float | None = Field(
        description="In the label, in [0, 1], as the model gives it.", ge=0, le=1
    )
    calibrated: float | None = Field(
        description="The share of such answers that is right, by the bundle's calibrator.", ge=0, le=1
    )
    decision: Literal["accepted", "review"] | None = Field(
        description="Whether the label may be used as it is; null where the bundle has no threshold."
    )
    decided_by: Literal["confidence", "calibrated", "cascade"] | None = Field(
        description="Which of the two numbers was compared with the threshold, or that the cascade's own thresholds "
        "decided; null where there was nothing to compare."
    )
    threshold: float | None = Field(
        description="From which value of that number labels are accepted; null where none is, or nothing was compared.",
        ge=0,
        le=1,
    )
    outcome: Literal["ok", "error", "refusal", "unparsed"]
    reason: str = Field(
        description="Why there is no label; empty where there is one. What went wrong with a call is not told."
    )
    parts: list[AnswerPart] | None = Field(
        default=None,
        description="The labels of an answer that holds several; left out where it is one label.",
    )


class Answers(BaseModel):
    """One answer per text, in order."""

    results: list[Answer]


class Refusal(BaseModel):
    """Body of an error response: the message."""

    error: str


class Failure(Refusal):
    """Body of a 503 response: the message and, if the model was asked, the answers."""

    results: list[Answer] | None = Field(
        default=None, description="One answer per text, where the model was asked about each of them."
    )


def answer_record(prediction: Prediction, decision: Decision) -> JsonObject:
    """Return an answer's JSON object."""
    # A provider's message may name internal addresses.
    reason = _FAILED if prediction.outcome is Outcome.ERROR else prediction.reason
    record: JsonObject = {
        **_label_fields(prediction),
        "calibrated": decision.calibrated,
        "decision": decision.name,
        "decided_by": decision.decided_by,
        "threshold": decision.threshold,
        "outcome": prediction.outcome.value,
        "reason": reason,
    }
    if prediction.parts:
        record["parts"] = [{"name": part.name, **_label_fields(part)} for part in prediction.parts]
    return record


def _label_fields(answer: Prediction | Part) -> JsonObject:
    """Return the JSON fields of label, probabilities and confidence."""
    probabilities = probability_record(answer.distribution)
    return {"label": answer.label, "probabilities": probabilities, "confidence": answer.confidence}


def request_schema(most_texts: int) -> JsonObject:
    """Return the JSON schema of a request's body."""
    one = _OneText.model_json_schema()
    several = _SeveralTexts.model_json_schema()
    several["properties"]["texts"]["maxItems"] = most_texts
    return {"oneOf": [one, several]}


def parse_request(body: bytes, most_texts: int) -> list[str]:
    """Return the texts in a request's body.

    Raises
    ------
    HTTPException
        400 if the body is not JSON in UTF-8, 422 if its fields are wrong or it has too many texts.
    """
    try:
        record = from_json(body)
    except ValueError as error:
        # Its message says where, and does not quote.
        raise HTTPException(
            400, f"Expected a body of JSON in UTF-8, got one that is not ({error})."
        ) from None
    several = isinstance(record, dict) and "texts" in record
    try:
        texts = (
            _SeveralTexts.model_validate(record).texts if several else [_OneText.model_validate(record).text]
        )
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))[:40] or "the body"
        message = "It holds no text" if problem["type"] == "string_pattern_mismatch" else problem["msg"]
        raise HTTPException(422, f"{_SHAPE}, got {place} otherwise: {message}.") from None
    if len(texts) > most_texts:
        raise HTTPException(
            422, f"Expected at most {counted(most_texts, 'text')}, got {len(texts):,}: send several requests."
        )
    return texts


def error_fields(error: CalibrantError) -> JsonObject:
    """Return an error's fields for the log, without its message, which may quote a text."""
    details = {name: getattr(error, name, None) for name in ("provider", "status", "hint")}
    return {"error": type(error).__name__, **details}


def failures_by_status(predictions: Iterable[Prediction]) -> dict[str, int]:
    """Return the number of failed calls by status: the provider's words may quote the text."""
    failed = [found for found in predictions if found.outcome is Outcome.ERROR]
    return dict(Counter(status_text(found.status) for found in failed))


def status_text(status: int | None) -> str:
    """Return the status of a failed call as a word of the log."""
    return str(status or "no status")


class ModelWatch:
    """Logs once that a model answers which no row was measured on.

    Parameters
    ----------
    tuned : Tuned
        Knows which models answered the measured rows.
    """

    def __init__(self, tuned: Tuned) -> None:
        self._tuned = tuned
        self._has_warned = False

    def look_at(self, predictions: Sequence[Prediction]) -> None:
        """Log `Tuned.model_warning` of the models that answered, at its first."""
        if self._has_warned:
            return
        warning = self._tuned.model_warning(found.model for found in predictions)
        if warning is not None:
            self._has_warned = True
            _LOG.warning("%s", warning)
