"""HTTP service of a bundle's classifier, or of a model alone, for typed decisions."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from typing import Annotated, Any, Final, TypeAlias

from fastapi import FastAPI, HTTPException, Request, Security
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calibrant.core._errors import CalibrantError, ConfigurationError, ProviderError
from calibrant.core._prediction import JsonObject, Outcome, Prediction, Usage
from calibrant.core._predictor import Predictor, RetryCancelScope, concurrently
from calibrant.core._reported import counted
from calibrant.heads._tuned import Decision, PredictionHistory, Tuned
from calibrant.inference._base import ask_async
from calibrant.inference._classifier import Classifier
from calibrant.inference._limits import rate_limit_waits
from calibrant.metrics._validation import check_count, check_number
from calibrant.serving._answers import (
    Answers,
    Failure,
    ModelWatch,
    Refusal,
    answer_record,
    error_fields,
    failures_by_status,
    parse_request,
    request_schema,
    status_text,
)
from calibrant.serving._metrics import ServiceMetrics
from calibrant.serving._questions import Questions
from calibrant.serving._requests import bounded_body, plain_error, prepare_app, while_connected
from calibrant.serving._wires import WIRES, read_questions, wire_at

_LOG = logging.getLogger("calibrant.service")
_CLASSIFY: Final = "/v1/classify"
_MODELS: Final = "/v1/models"
_DECISION: Final = "X-Calibrant-Decision"
_PROBES: Final = ("/healthz", "/readyz", "/metrics")
_PROBE_TEXT: Final = "Are you there?"
_ALL_FAILED: Final = "The model failed for every text: ask again later."
_CALL_FAILED: Final = "A call of the model failed: ask again later."
_UNREACHABLE: Final = "The model's server refuses connections."
_PAUSED: Final = "The model's provider wants no call for longer than the deadline."
_FAILED: Final = "Nobody expected this; the log says why."
_FAILURES_IN_A_ROW: Final = 3
# Seconds from the end of a probe to the next one, doubled after each failure.
_FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 60.0
_Responses: TypeAlias = dict[int | str, JsonObject]
_REFUSALS: Final[Mapping[int | str, str]] = {
    400: "The body is not JSON in UTF-8.",
    401: "The key is missing or wrong.",
    408: "The body did not come in time.",
    413: "The body is too long.",
    415: "The body is not said to be JSON.",
    422: "The body holds something else, or too many texts.",
    429: "Too many texts are under way: ask again after Retry-After seconds.",
    500: _FAILED,
    503: "The model cannot be asked, or failed for every text, or the service is full; the log says why.",
    504: "The answer did not come in time.",
}
# Of typed decisions, whose errors have the forms of their wires.
_WIRE_RESPONSES: Final[_Responses] = {
    200: {},
    **{status: {"description": reason} for status, reason in _REFUSALS.items()},
}
_WIRE_RESPONSES[429]["headers"] = {
    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}
}
_RESPONSES: Final[_Responses] = {
    status: {"model": Refusal, **told} for status, told in _WIRE_RESPONSES.items()
}
_RESPONSES[200]["model"] = Answers
_RESPONSES[503]["model"] = Failure
_BEARER: Final = HTTPBearer(scheme_name="key", auto_error=False)


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Limits, keys and logs of a service.

    Clients that send their headers slowly or do not read their answers, and the number of connections, are the
    business of a proxy.

    Attributes
    ----------
    api_keys : tuple of str
        Keys that ``Authorization: Bearer`` must name one of; none by default, which answers every client.
    most_bytes : int, default 1 MiB
        The longest body that is read.
    most_texts : int, default 128
        Texts or questions of one request at most.
    most_rows : int, default 256
        Texts in progress at most, of all requests; beyond it, 429. At least `most_texts`.
    deadline_seconds : float, default 30
        Deadline of a request from the end of its body, at least 0.001; then 504.
    body_seconds : float, default 30
        Deadline of a request's body, at least 0; then 408.
    log_texts : bool, default False
        True to log texts and labels.
    only_task : bool, default False
        True to refuse typed questions whose options are not the task's labels.

    Raises
    ------
    ConfigurationError
        A setting is out of range, or a key is empty or cannot stand in a header.

    Examples
    --------
    >>> from calibrant.core import ConfigurationError
    >>> from calibrant.serving import ServiceSettings
    >>> ServiceSettings(api_keys=("key of the first client",), most_texts=10).most_rows
    256
    >>> try:
    ...     ServiceSettings(most_texts=1000)
    ... except ConfigurationError as error:
    ...     print(str(error).partition(": ")[0])
    Expected most_rows of at least most_texts, got 256 and 1000
    """

    api_keys: tuple[str, ...] = ()
    most_bytes: int = 2**20
    most_texts: int = 128
    most_rows: int = 256
    deadline_seconds: float = 30.0
    body_seconds: float = 30.0
    log_texts: bool = False
    only_task: bool = False

    def __post_init__(self) -> None:
        for name in ("most_bytes", "most_texts", "most_rows"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), low=1))
        check_number("deadline_seconds", self.deadline_seconds, "[0.001, inf)")
        check_number("body_seconds", self.body_seconds, "[0, inf)")
        if self.most_rows < self.most_texts:
            raise ConfigurationError(
                f"Expected most_rows of at least most_texts, got {self.most_rows} and {self.most_texts}: a full "
                "request would never be answered. Raise one or lower the other."
            )
        for key in self.api_keys:
            if not key or key != key.strip() or not key.isascii() or not key.isprintable():
                raise ConfigurationError(
                    "Expected API keys of printable ASCII characters without spaces at the ends, got another one: a "
                    "header cannot hold it."
                )

    @property
    def finish_seconds(self) -> int:
        """Longest time to finish a request in progress, in seconds, rounded up."""
        return math.ceil(self.body_seconds + self.deadline_seconds)


def create_classifier_app(
    tuned: Tuned,
    classifier: Predictor,
    *,
    settings: ServiceSettings | None = None,
    on_predictions: Callable[[Sequence[Prediction]], None] | None = None,
) -> FastAPI:
    """Return the application that answers ``POST /v1/classify`` and typed decisions with a tuned classifier.

    It takes ``{"text": ...}`` or ``{"texts": [...]}`` and returns ``{"results": [...]}``, in order: ``label``,
    ``probabilities``, ``confidence``, ``calibrated``, ``decision`` (``accepted``, ``review`` or null), ``decided_by``
    (which of the two confidences, or the cascade), ``threshold``, ``outcome`` and ``reason``; an answer that holds
    several labels has ``parts``, with ``name``, ``label``, ``probabilities`` and ``confidence`` each. A failed call
    shows in the outcome of its text; the provider's message is logged if texts are. If every call failed, the
    status is 503, with ``error`` beside ``results``.
    ``POST /v1/systemone`` and ``POST /v1/decisions`` take typed questions about a text, on the wires of System One and
    of OpenAI's Decisions, whose clients need not be changed; see `create_decision_app`. A question whose options are
    the task's labels gets the tuned prediction: on System One's wire with ``x_decision``, ``x_confidence``
    (calibrated), ``x_compared`` with ``x_threshold``, ``x_certificate`` and ``x_calibrated``; on the other one the
    header ``X-Calibrant-Decision`` names the decision. Other questions are answered by the model alone, unless
    `settings` say otherwise. ``GET /v1/models`` names the service.
    ``GET /healthz`` is the liveness check, ``GET /readyz`` the readiness check (503 during shutdown and while the
    model fails), ``GET /metrics`` serves Prometheus, ``GET /openapi.json`` the description.
    Every other answer is ``{"error": ...}``.

    Parameters
    ----------
    tuned : Tuned
        The tuned classifier, as `Tuned.load` returns it.
    classifier : Predictor
        The same opened, as `Tuned.open` returns it; not closed.
    settings : ServiceSettings, optional
        Keys, limits and logs.
    on_predictions : callable, optional
        Called in the event loop with the predictions of every request, so it must not block; its errors are logged.

    Examples
    --------
    >>> import asyncio
    >>> import tempfile
    >>> from pathlib import Path
    >>> import httpx
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task
    >>> from calibrant.serving import create_classifier_app
    >>> from calibrant.testing import FakeClient, fake_model
    >>> from calibrant.tuned import Tuned
    >>> out = Path(tempfile.mkdtemp())
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     classifier = Classifier.from_task(task, model=name)
    ...     _ = BatchEvaluator(classifier).evaluate([Example(input="purrs", answer="cat")], out=out / "run")
    ...     app = create_classifier_app(Tuned.from_run(out / "run", task=task, model=name), classifier)
    >>> async def ask(body):
    ...     async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pets") as client:
    ...         return (await client.post("/v1/classify", json=body)).json()["results"][0]
    >>> answer = asyncio.run(ask({"text": "purrs"}))
    >>> answer["label"], round(answer["confidence"], 2), answer["outcome"]
    ('cat', 0.9, 'ok')
    """
    return _new_app(tuned, classifier, settings or ServiceSettings(), on_predictions)


def create_decision_app(classifier: Classifier, *, settings: ServiceSettings | None = None) -> FastAPI:
    """Return the application that answers typed decisions with a model alone.

    ``POST /v1/systemone`` and ``POST /v1/decisions`` take questions about a text (one of several options, one of
    several levels, or yes and no) and return the probability of every option, each question asked on its own. The
    body tells which of the two wires it is written for. Errors have the form of the wire. ``GET /v1/models`` names
    the model; the other routes are those of `create_classifier_app`.

    Parameters
    ----------
    classifier : Classifier
        Any classifier of the model, which scores labels; only its model, settings and limits are used. Not closed.
    settings : ServiceSettings, optional
        Keys, limits and logs.

    Examples
    --------
    >>> import asyncio
    >>> import httpx
    >>> from calibrant import Classifier
    >>> from calibrant.serving import create_decision_app
    >>> from calibrant.testing import fake_response
    >>> def model(messages):
    ...     return fake_response("yes", field="answer", probabilities={"yes": 0.9, "no": 0.1})
    >>> app = create_decision_app(Classifier(model=model, labels=["no", "yes"]))
    >>> async def ask(body):
    ...     async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://model") as client:
    ...         return (await client.post("/v1/systemone", json=body)).json()["answers"]
    >>> question = {"type": "noul", "instructions": "Does the text thank somebody?"}
    >>> asyncio.run(ask({"state": "Thank you!", "questions": {"thanks": question}}))
    {'thanks': {'type': 'noul', 'noul': 0.9, 'x_calibrated': False}}
    """
    return _new_app(None, classifier, settings or ServiceSettings(), None)


def _new_app(
    tuned: Tuned | None,
    classifier: Predictor,
    settings: ServiceSettings,
    on_predictions: Callable[[Sequence[Prediction]], None] | None,
) -> FastAPI:
    """Return the application of a tuned classifier, or of a model alone."""
    name = classifier.name if tuned is None else tuned.name
    version = metadata.version("calibrant") if tuned is None else tuned.calibrant
    app = FastAPI(title=f"calibrant: {name}", version=version, docs_url=None, redoc_url=None)
    posts = [*([] if tuned is None else [_CLASSIFY]), *WIRES]
    routes = f"POST {', '.join(posts)} and GET {', '.join((_MODELS, *_PROBES))} and /openapi.json"
    stopping = prepare_app(app, routes=routes, form=_error_form)
    service = _Service(name, tuned, classifier, settings, on_predictions, stopping)
    app.add_middleware(_Watch, service=service)
    keyed = []
    if settings.api_keys:
        keyed = [Security(service.check_key)]
    if tuned is not None:
        app.post(
            _CLASSIFY,
            summary="Classify one text or several",
            responses=_RESPONSES,
            openapi_extra=_described_body(request_schema(settings.most_texts)),
            dependencies=keyed,
        )(service.classify)
    _add_wires(app, service, settings.most_texts, keyed)
    no_key: _Responses = {}
    if keyed:
        no_key = {401: _RESPONSES[401]}
    app.get(_MODELS, summary="The name of the service's model", responses=no_key, dependencies=keyed)(
        service.models
    )
    app.get("/healthz", summary="Whether the process lives")(service.healthz)
    app.get(
        "/readyz",
        summary="Whether to send requests",
        responses={503: {"description": "Being stopped, or the model fails"}},
    )(service.readyz)
    app.get(
        "/metrics",
        summary="Counts for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **no_key},
        dependencies=keyed,
    )(service.prometheus)
    return app


def _add_wires(app: FastAPI, service: _Service, most: int, keyed: list[Any]) -> None:
    """Add the routes of typed questions."""
    for path, wire in WIRES.items():
        app.post(
            path,
            summary=f"Answer typed questions about a text: {wire.title}",
            responses=_WIRE_RESPONSES,
            openapi_extra=_described_body(wire.schema(most)),
            dependencies=keyed,
        )(service.decide)


def _described_body(schema: JsonObject) -> JsonObject:
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


def _error_form(scope: Scope, error: AnyHTTPException) -> tuple[int, JsonObject]:
    """Return status and body of an error, in the form of the request's wire if it has one."""
    wire = wire_at(scope)
    if wire is None:
        return plain_error(scope, error)
    return wire.error(error)


class _Service:
    """Request handlers of the service."""

    def __init__(
        self,
        name: str,
        tuned: Tuned | None,
        classifier: Predictor,
        settings: ServiceSettings,
        on_predictions: Callable[[Sequence[Prediction]], None] | None,
        stopping: threading.Event,
    ) -> None:
        self.stopping = stopping
        if tuned is None:
            self.metrics = ServiceMetrics(PredictionHistory())
        else:
            self.metrics = ServiceMetrics(tuned.history, tuned.labels)
        self._name = name
        self._questions = Questions(tuned, classifier, only_task=settings.only_task)
        self._readiness = _Readiness(self._probe, seconds=settings.deadline_seconds, stopping=stopping)
        self._on_predictions = on_predictions
        self._tuned = tuned
        self._predictor = classifier
        self._settings = settings
        self._keys = [_digest(key) for key in settings.api_keys]
        self._rows_in_flight = 0
        self._model_watch = None if tuned is None else ModelWatch(tuned)
        self._waiting: set[RetryCancelScope] = set()

    async def check_key(
        self, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
    ) -> None:
        """Raise 401 if a required key is missing or wrong."""
        given = _digest("" if credentials is None else credentials.credentials.strip())
        # All keys are compared, each in constant time, so that timing leaks nothing about them.
        if not any([hmac.compare_digest(given, key) for key in self._keys]):  # noqa: C419 (all of them)
            raise HTTPException(
                401,
                "Expected one of the service's keys in Authorization: Bearer, got none of them.",
                {"WWW-Authenticate": "Bearer"},
            )

    async def healthz(self) -> dict[str, str]:
        """Answer ``GET /healthz``."""
        return {"status": "ok"}

    async def readyz(self) -> JSONResponse:
        """Answer ``GET /readyz``."""
        status = self._readiness.look()
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    async def prometheus(self) -> Response:
        """Answer ``GET /metrics``."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def models(self) -> JsonObject:
        """Answer ``GET /v1/models``, in the forms of both wires at once."""
        described = {"name": self._name, "description": "Typed decisions by calibrant.", "release_date": ""}
        listed = {"id": self._name, "object": "model", "created": 0, "owned_by": "calibrant"}
        return {"object": "list", "data": [listed], "models": [described]}

    async def _answer(self, predictor: Predictor, text: str, retried: Counter[str]) -> Prediction:
        """Return the prediction of one text; a failed one instead of a wait that cannot end in time.

        Failed calls that are repeated are counted by status.
        """
        retries = RetryCancelScope(on_failure=partial(self._note_failed_call, retried))
        if self._is_wait_futile:
            retries.end()  # after the first failure
        self._waiting.add(retries)
        try:
            with retries.applied():
                return (await ask_async(predictor, [predictor.query(text)]))[0]
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not retries.is_cancelled or task is None or task.uncancel() > 0:
                raise
            reason = _UNREACHABLE if self._readiness.is_unreachable else _PAUSED
            return Prediction(label=None, outcome=Outcome.ERROR, reason=reason)
        finally:
            self._waiting.discard(retries)

    def _note_failed_call(self, retried: Counter[str], error: ProviderError) -> None:
        """Count a failed call; end the waits of all requests if none can end in time."""
        retried[status_text(error.status)] += 1
        if error.connection_refused:
            self._readiness.note_refused_connection()
        if self._is_wait_futile:
            for retries in tuple(self._waiting):
                retries.end()

    @property
    def _is_wait_futile(self) -> bool:
        """True if no model can be asked before a request's deadline: nothing listens, or providers want no call."""
        if self._readiness.is_unreachable:
            return True
        pauses = [gate.pause_seconds for gate in self._predictor.gates]
        return min(pauses, default=0.0) > self._settings.deadline_seconds

    def _retry_after(self) -> dict[str, str]:
        """Return the header that says when to ask again: after the pauses that providers want, or a second."""
        waits = rate_limit_waits(self._predictor.gates).values()
        return {"Retry-After": str(math.ceil(max(waits, default=1.0)))}

    async def classify(self, request: Request) -> JSONResponse:
        """Answer ``POST /v1/classify``."""
        texts = parse_request(await self._body(request), self._settings.most_texts)
        rows = [(self._predictor, text) for text in texts]
        predictions = await self._ask(request, rows)
        decisions = self._counted(request, rows, predictions)
        results = [
            answer_record(prediction, decision)
            for prediction, decision in zip(predictions, decisions, strict=True)
            if decision is not None
        ]
        if any(map(_is_answered, predictions)):
            return JSONResponse({"results": results})
        return JSONResponse({"error": _ALL_FAILED, "results": results}, 503, self._retry_after())

    async def decide(self, request: Request) -> JSONResponse:
        """Answer ``POST /v1/systemone`` and ``POST /v1/decisions``."""
        body = await self._body(request)
        wire, text, questions = read_questions(request.scope, body, most=self._settings.most_texts)
        predictors = [self._questions.predictor_of(question) for question in questions]
        # All questions of the task are answered by one prediction.
        rows = [(predictor, text) for predictor in dict.fromkeys(predictors)]
        predictions = await self._ask(request, rows)
        decisions = self._counted(request, rows, predictions)
        if not all(map(_is_answered, predictions)):
            raise HTTPException(503, _CALL_FAILED, self._retry_after())
        asked = [predictor for predictor, _ in rows]
        places = [asked.index(predictor) for predictor in predictors]
        answers = [
            self._questions.answer(question, predictions[place], decisions[place])
            for question, place in zip(questions, places, strict=True)
        ]
        usage = sum((prediction.usage for prediction in predictions), start=Usage())
        names = ["refused" if answer is None else answer.decision for answer in answers]
        answered = wire.body(self._name, questions, answers, usage)
        return JSONResponse(answered, headers={_DECISION: ", ".join(names)})

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request for answers, unless the service is full."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Pages in a browser cannot send this kind to a service on loopback without asking first.
            raise HTTPException(415, "Expected Content-Type: application/json, got another or none: set it.")
        self._refuse_flood(1)
        settings = self._settings
        return await bounded_body(request, settings.most_bytes, seconds=settings.body_seconds)

    async def _ask(self, request: Request, rows: Sequence[tuple[Predictor, str]]) -> list[Prediction]:
        """Return the predictions of texts, each by a predictor, within the service's limits."""
        self._refuse_flood(len(rows))
        self._rows_in_flight += len(rows)
        self.metrics.in_flight.set(self._rows_in_flight)
        seconds = self._settings.deadline_seconds
        try:
            async with asyncio.timeout(seconds):
                predictions = await while_connected(request, self._predict(request, rows))
        except TimeoutError:
            self._readiness.note(answered=False)
            advice = "send fewer texts" if len(rows) > 1 else "ask again later"
            raise HTTPException(
                504,
                f"The answer did not come within {counted(seconds, 'second')}: {advice}.",
                self._retry_after(),
            ) from None
        finally:
            self._rows_in_flight -= len(rows)
            self.metrics.in_flight.set(self._rows_in_flight)
        self._readiness.note(answered=any(map(_is_answered, predictions)))
        return predictions

    async def _probe(self) -> bool:
        """Return whether the model answers a short text; the call does not count as a request."""
        try:
            return _is_answered(await self._answer(self._predictor, _PROBE_TEXT, Counter()))
        except CalibrantError as error:
            _LOG.warning("The model cannot be asked.", extra={"fields": self._error_fields(error)})
            return False

    def _refuse_flood(self, rows: int) -> None:
        most = self._settings.most_rows
        if self._rows_in_flight + rows > most:
            under_way = counted(self._rows_in_flight, "is", "are")
            raise HTTPException(
                429,
                f"Expected at most {counted(most, 'text')} under way, and {under_way}: ask again later.",
                {"Retry-After": "1"},
            )

    async def _predict(self, request: Request, rows: Sequence[tuple[Predictor, str]]) -> list[Prediction]:
        """Return the predictions of texts; the rows of all requests share the classifier's limits."""
        retried = Counter[str]()
        request.state.log_fields = {"retried": retried}
        try:
            return await concurrently(self._answer(*row, retried) for row in rows)
        except CalibrantError as error:
            self._readiness.note(answered=False)
            fields = self._error_fields(error)
            _LOG.error("The model cannot be asked.", extra={"fields": fields})
            request.state.log_fields["upstream"] = fields
            raise HTTPException(503, "The model cannot be asked; the service's log says why.") from None

    def _error_fields(self, error: CalibrantError) -> JsonObject:
        """Return an error's fields for the log; its message only if texts may be logged."""
        words = str(error) if self._settings.log_texts else None
        return {**error_fields(error), "words": words}

    def _counted(
        self, request: Request, rows: Sequence[tuple[Predictor, str]], predictions: Sequence[Prediction]
    ) -> list[Decision | None]:
        """Count and log predictions; return the decision on each, None on those of the model alone."""
        decisions: list[Decision | None] = []
        own: list[Prediction] = []
        outcomes = Counter[str]()
        review = 0
        for (predictor, text), prediction in zip(rows, predictions, strict=True):
            decision = None
            if self._tuned is not None and predictor is self._predictor:
                decision = self._tuned.decide(prediction)
                if not text.strip():  # no text was ever measured
                    decision = replace(decision, accepted=decision.accepted and False)
                own.append(prediction)
                review += decision.name == "review"
            self.metrics.count(prediction, decision)
            outcomes[prediction.outcome.value] += 1
            decisions.append(decision)
        if self._model_watch is not None:
            self._model_watch.look_at(own)
        self._call_back(own)
        request.state.log_fields |= {"texts": len(rows), "outcomes": dict(outcomes), "review": review}
        failures = failures_by_status(predictions)
        if failures:
            request.state.log_fields["failures"] = failures
        if self._settings.log_texts:
            request.state.log_fields["rows"] = [
                {
                    "text": text,
                    "label": found.label,
                    "confidence": found.confidence,
                    "outcome": found.outcome.value,
                    "reason": found.reason,  # in the provider's words
                }
                for (_, text), found in zip(rows, predictions, strict=True)
            ]
        return decisions

    def _call_back(self, predictions: list[Prediction]) -> None:
        """Call the predictions callback; its errors are logged and never fail a request."""
        if self._on_predictions is None or not predictions:
            return
        try:
            self._on_predictions(predictions)
        except Exception:  # noqa: BLE001 (any error of the callable)
            _LOG.exception("Predictions could not be handed on.")


class _Readiness:
    """Circuit breaker that reports the service unready after three model failures in a row.

    A request that failed is one; so is a refused connection, on which the request would wait and try again.

    A load balancer sends nothing to a service that is not ready, so the service probes the model itself: with one
    short text, on a readiness check, one call at a time, with exponential backoff while calls fail. The first
    success, of a probe or a request, makes it ready again.

    Parameters
    ----------
    probe : callable
        Asks the model once; returns whether it answered.
    seconds : float
        Timeout of a probe.
    stopping : threading.Event
        Set when the service ends.
    """

    def __init__(
        self, probe: Callable[[], Awaitable[bool]], *, seconds: float, stopping: threading.Event
    ) -> None:
        self._probe = probe
        self._seconds = seconds
        self._stopping = stopping
        self._failures = 0
        self._refused_connections = 0
        self._pause = _FIRST_PAUSE
        self._next_probe = 0.0
        self._probing: asyncio.Task[None] | None = None

    @property
    def status(self) -> str:
        """Status of the service: ``ready``, ``model failing`` or ``stopping``."""
        if self._stopping.is_set():
            return "stopping"
        is_failing = self.is_unreachable or self._failures >= _FAILURES_IN_A_ROW
        return "model failing" if is_failing else "ready"

    @property
    def is_unreachable(self) -> bool:
        """True if connections to the model's server are refused."""
        return self._refused_connections >= _FAILURES_IN_A_ROW

    def note(self, *, answered: bool) -> None:
        """Count a request that failed because of the model, or reset the counts after an answer."""
        before = self.status
        self._failures = 0 if answered else self._failures + 1
        if answered:
            self._refused_connections = 0
        self._log_change(before)

    def note_refused_connection(self) -> None:
        """Count a connection that the model's server refused."""
        before = self.status
        self._refused_connections += 1
        self._log_change(before)

    def _log_change(self, before: str) -> None:
        """Log a change of the status; a failing model is probed after a pause."""
        if self.status == before:
            return
        if self.status == "ready":
            _LOG.warning("The model answers again: the service is ready.")
        elif self.status == "model failing":
            words = "refused" if self.is_unreachable else "failed"
            _LOG.error("The model %s %d times in a row: the service is not ready.", words, _FAILURES_IN_A_ROW)
            self._pause = _FIRST_PAUSE
            self._next_probe = asyncio.get_running_loop().time() + self._pause

    def look(self) -> str:
        """Return the status; while the model fails, start a probe when one is due."""
        idle = self._probing is None or self._probing.done()
        if self.status == "model failing" and idle and self._next_probe <= asyncio.get_running_loop().time():
            self._probing = asyncio.create_task(self._run_probe())
        return self.status

    async def _run_probe(self) -> None:
        """Probe the model once and set the earliest time of the next probe."""
        answered = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    answered = await self._probe()
            self.note(answered=answered)
        finally:
            self._pause = min(2.0 * self._pause, _LONGEST_PAUSE)
            self._next_probe = asyncio.get_running_loop().time() + self._pause


@dataclass(eq=False)
class _Watch:
    """Middleware that identifies, measures and logs requests, and closes connections during shutdown."""

    app: ASGIApp
    service: _Service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request: give it an identifier, measure its time and log it."""
        if scope["type"] != "http":  # other servers ask for a lifespan
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        number = uuid.uuid4().hex
        status = 0
        state = scope.setdefault("state", {})

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(b"x-request-id", number.encode())]
                if self.service.stopping.is_set():
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        try:
            await self.app(scope, receive, sent)
        except Exception:
            _LOG.exception("A request failed.", extra={"fields": {"id": number}})
            if status:  # half an answer is out
                raise
            failure, body = _error_form(scope, HTTPException(500, _FAILED))
            await JSONResponse(body, failure)(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - start
            self._note(scope["path"], status or 500, seconds, number, state.get("log_fields", {}))

    def _note(self, path: str, status: int, seconds: float, number: str, fields: JsonObject) -> None:
        metrics = self.service.metrics
        path = path if path in {_CLASSIFY, *WIRES, *_PROBES} else "other"
        metrics.requests.labels(path, str(status)).inc()
        metrics.seconds.labels(path).observe(seconds)
        if path not in _PROBES:
            timing = {"id": number, "path": path, "status": status, "seconds": round(seconds, 6)}
            told = {name: value for name, value in fields.items() if name != "retried" or value}
            _LOG.info("request", extra={"fields": {**timing, **told}})


def _is_answered(prediction: Prediction) -> bool:
    """Return whether the model answered, even if its answer is not a label."""
    return prediction.outcome is not Outcome.ERROR


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
