"""HTTP service of AutoMix's verifier."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from calibrant.cascade.methods._verification import Verification, Verifier
from calibrant.core._errors import CalibrantError, ContextLengthError
from calibrant.metrics._validation import check_number
from calibrant.serving._requests import bounded_body, prepare_app, while_connected

_LOG = logging.getLogger("calibrant")
_MOST_BYTES: Final = 2**20
_BODY_SECONDS: Final = 30.0
# Question and answer are never cut, so they are bounded; a context has the rest of the body.
_MOST_CHARACTERS: Final = 50_000

# Fields of `calibrant.cascade.Verification` that an answer repeats.
_VERDICT: Final = ("confidence", "verified_count", "total_samples", "samples", "unreadable", "context_cut")
_EMPTY: Final = "Expected the field {field!r} to be a text that is not empty."
# Messages by pydantic's types of errors.
_PROBLEMS: Final = {
    "missing": "Expected the field {field!r}, which is missing: add it.",
    "extra_forbidden": "Expected question, answer, context and threshold only, got {field!r}: leave it out.",
    "string_too_short": _EMPTY,
    "string_pattern_mismatch": _EMPTY,
    "string_too_long": f"Expected the field {{field!r}} to have at most {_MOST_CHARACTERS:,} characters: shorten it.",
}

_Text = Annotated[str, StringConstraints(min_length=1, max_length=_MOST_CHARACTERS, pattern=r"\S")]


class _Question(BaseModel):
    """The body of ``POST /verify``."""

    model_config = ConfigDict(strict=True, extra="forbid")

    question: _Text
    answer: _Text
    context: str | None = None
    threshold: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None


def create_verifier_app(verifier: Verifier | None, *, threshold: float = 0.7) -> FastAPI:
    """Return the application that answers ``POST /verify`` and ``GET /health``.

    ``POST /verify`` takes ``{question, answer, context?, threshold?}`` and returns ``{confidence,
    should_escalate, verified_count, total_samples, samples, threshold}``, and with it ``unreadable``,
    ``context_cut``, ``usage`` and ``attempts``, as in `calibrant.cascade.Verification`. ``should_escalate``
    is ``confidence < threshold``. ``GET /health`` returns ``{status, model, num_samples, threshold}``.

    Every other response is ``{error}`` with a message: status 400 for an invalid body, 404, 405, 408 for a late body,
    413 for one that is too long for the service or the model, 503 without a verifier or a verdict (a confidence is
    never made up), 500 for an unexpected error. Responses never show internal errors; the log does.

    Parameters
    ----------
    verifier : Verifier or None
        The verifier, which is not closed; with None, every question is answered with 503.
    threshold : float, default 0.7
        Default threshold of a question, in [0, 1].

    Raises
    ------
    ConfigurationError
        The threshold is out of range.

    Examples
    --------
    >>> import asyncio
    >>> import json
    >>> import httpx
    >>> from calibrant.cascade import Verifier
    >>> from calibrant.serving import create_verifier_app
    >>> def judge(messages):
    ...     return {"choices": [{"message": {"content": json.dumps({"verdict": "correct"})}}]}
    >>> app = create_verifier_app(Verifier(judge, k=4), threshold=0.7)
    >>> async def ask(body):
    ...     async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://verifier") as client:
    ...         return (await client.post("/verify", json=body)).json()
    >>> found = asyncio.run(ask({"question": "2 + 2?", "answer": "4"}))
    >>> found["confidence"], found["total_samples"], found["should_escalate"]
    (1.0, 4, False)
    """
    check_number("threshold", threshold, "[0, 1]")
    app = FastAPI(title="calibrant verifier", docs_url=None, redoc_url=None, openapi_url=None)
    prepare_app(app, routes="POST /verify and GET /health")

    @app.post("/verify")
    async def verify(request: Request) -> JSONResponse:
        asked = _parse_question(await bounded_body(request, _MOST_BYTES, seconds=_BODY_SECONDS))
        if verifier is None:
            raise HTTPException(503, "The verifier has no model: start it with one.")
        verification = await while_connected(request, _verify_answer(verifier, asked))
        if verification.confidence is None:
            return _without_verdict(verification)
        least = threshold if asked.threshold is None else asked.threshold
        verdict = {name: getattr(verification, name) for name in _VERDICT}
        escalate = {"should_escalate": verification.confidence < least, "threshold": least}
        return JSONResponse({**verdict, **escalate, **_spent_record(verification)})

    @app.get("/health")
    async def health() -> JSONResponse:
        body = {
            "status": "no model" if verifier is None else "ok",
            "model": None if verifier is None else verifier.model,
            "num_samples": None if verifier is None else verifier.k,
            "threshold": threshold,
        }
        return JSONResponse(body, status_code=503 if verifier is None else 200)

    return app


def _parse_question(body: bytes) -> _Question:
    try:
        return _Question.model_validate_json(body)
    except ValidationError as error:
        messages = map(_problem_message, error.errors()[:3])
        raise HTTPException(400, "; ".join(messages)) from None


def _problem_message(problem: Any) -> str:  # noqa: ANN401 (pydantic's)
    """Return the message for an invalid body, without quoting its content."""
    if not problem["loc"]:
        return f"Expected a JSON object with question and answer: {problem['msg']}."
    template = _PROBLEMS.get(problem["type"], "The field {field!r} is wrong: {why}.")
    field = ".".join(map(str, problem["loc"]))
    return template.format(field=field[:40], why=problem["msg"])


async def _verify_answer(verifier: Verifier, asked: _Question) -> Verification:
    try:
        return await verifier.averify(asked.question, asked.answer, asked.context)
    except ContextLengthError as error:
        _LOG.warning("A question was refused: %s", error)
        message = "Expected question and answer to fit the verifier's model, which has no room for them: shorten them."
        raise HTTPException(413, message) from None
    except CalibrantError as error:
        _LOG.error("The verifier's model cannot be asked: %s", error)
        raise HTTPException(
            503, "The verifier's model cannot be asked; the service's log says why."
        ) from None


def _without_verdict(found: Verification) -> JSONResponse:
    _LOG.warning("No verdict: %s", found.reason)
    if found.total_samples and found.unreadable == found.total_samples:
        why = f"none of {found.total_samples} samples of its model can be read"
    else:
        why = "its model could not be asked"
    error = f"The verifier came to no verdict: {why}. Try again later; the service's log says more."
    return JSONResponse({"error": error, **_spent_record(found)}, status_code=503)


def _spent_record(found: Verification) -> dict[str, Any]:
    return {"usage": asdict(found.usage), "attempts": found.attempts}
