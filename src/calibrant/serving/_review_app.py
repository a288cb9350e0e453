"""HTTP application of the page on which one person decides on rows."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.concurrency import run_in_threadpool

from calibrant.core._errors import CalibrantError, ConfigurationError
from calibrant.evaluation._asked import NO_LABEL
from calibrant.reports._html import review_page
from calibrant.serving._requests import bounded_body, prepare_app
from calibrant.serving._review import Review

_MOST_BYTES: Final = 100_000
_BODY_SECONDS: Final = 30.0
_MOST_DETAILS: Final = 50
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LOCKED: Final = (
    "Expected the address that calibrant review printed, which opens the page once: go back to the window that it "
    "opened, or end the command with Ctrl-C and run it again."
)

_Rows = Annotated[list[int], Query(max_length=_MOST_DETAILS)]
_Next = Callable[[Request], Awaitable[Response]]


class _Decision(BaseModel):
    """The body of ``POST /api/answers``."""

    model_config = ConfigDict(strict=True, extra="forbid")

    row: int
    answer: str


class _Door:
    """Lets in the one browser that had the token first; compares in constant time.

    Parameters
    ----------
    token : str
        Part of the address that is printed; it opens once.
    """

    def __init__(self, token: str) -> None:
        self._token: str | None = token
        self._key = secrets.token_urlsafe(32)

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """Return status and message where a request may not pass: its host, origin, type or cookie is wrong."""
        port = request.scope["server"][1]
        host = request.headers.get("host", "")
        if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            remedy = _LOCKED[0].lower() + _LOCKED[1:]
            return 403, f"Expected the host 127.0.0.1:{port}, got another one: {remedy}"
        changes = request.method not in ("GET", "HEAD")
        origin = request.headers.get("origin")
        if origin != f"http://{host}" and (changes or origin is not None):
            return 403, f"Expected the origin http://{host}, got another one: use the page itself."
        kind = request.headers.get("content-type", "").partition(";")[0]
        if changes and kind.strip() != "application/json":
            return 415, "Expected a body of the type application/json, got another one."
        is_exchange = request.url.path == "/" and "token" in request.query_params
        if is_exchange or self.knows(request):
            return None
        return 403, _LOCKED

    def knows(self, request: Request) -> bool:
        """Return True if a request has the cookie."""
        given = request.cookies.get(_cookie(request), "")
        return hmac.compare_digest(given.encode(), self._key.encode())

    def opened(self, request: Request) -> Response:
        """Exchange the token of a request for the cookie, and take it out of the address."""
        answer = RedirectResponse("/", 303)
        if self.knows(request):
            return answer
        given = request.query_params["token"]
        if self._token is None or not hmac.compare_digest(given.encode(), self._token.encode()):
            return PlainTextResponse(_LOCKED, 403)
        self._token = None
        answer.set_cookie(_cookie(request), self._key, httponly=True, samesite="strict")
        return answer


def _cookie(request: Request) -> str:
    return f"calibrant-review-{request.scope['server'][1]}"  # cookies are shared by all ports of a host


def create_review_app(review: Review, *, token: str) -> FastAPI:
    """Return the application of a page for one person, at the loopback address alone.

    ``GET /?token=TOKEN`` sets a cookie, without which everything else is refused, and works once. ``GET /`` is the
    page; ``/api`` holds what it asks. A decision is answered when it is on disk. Errors are ``{error}`` with a message.

    Parameters
    ----------
    review : Review
        The rows and the answers.
    token : str
        Secret of the address.

    Examples
    --------
    >>> import asyncio
    >>> import tempfile
    >>> from pathlib import Path
    >>> import httpx
    >>> from calibrant.serving import Review, create_review_app
    >>> path = Path(tempfile.mkdtemp()) / "mine.jsonl"
    >>> _ = path.write_text('{"input": "purrs", "label": "cat", "answer": null, "confidence": 0.9}')
    >>> async def status(app, path):
    ...     transport = httpx.ASGITransport(app)
    ...     async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
    ...         return (await client.get(path)).status_code
    >>> with Review.opened(path) as review:
    ...     app = create_review_app(review, token="secret")
    ...     [asyncio.run(status(app, path)) for path in ("/", "/?token=guess", "/?token=secret", "/?token=secret")]
    [403, 403, 303, 403]
    """
    app = FastAPI(title="calibrant review", docs_url=None, redoc_url=None, openapi_url=None)
    prepare_app(app, routes="the page at /, and what it asks for")
    door, (page, policy), api = _Door(token), review_page(), _Api(review)

    @app.middleware("http")
    async def guard(request: Request, call_next: _Next) -> Response:
        refused = door.refusal(request)
        if refused is None:
            answer = await call_next(request)
        elif request.url.path == "/":
            answer = PlainTextResponse(refused[1], refused[0])
        else:
            answer = JSONResponse({"error": refused[1]}, refused[0])
        answer.headers.update({**_HEADERS, "Content-Security-Policy": policy})
        return answer

    @app.exception_handler(CalibrantError)
    async def explain(_: Request, error: CalibrantError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400 if isinstance(error, ConfigurationError) else 500)

    @app.get("/")
    async def show(request: Request) -> Response:
        if "token" in request.query_params:
            return door.opened(request)
        return HTMLResponse(page)

    for read in (api.rows, api.details, api.text, api.search, api.nearest, api.mislabelled, api.promise):
        app.get(f"/api/{read.__name__}")(read)
    for change in (api.decide, api.undo):
        app.post(f"/api/{change.__name__}")(change)
    return app


class _Api:
    """Requests of the page.

    Parameters
    ----------
    review : Review
        The rows and the answers.
    """

    def __init__(self, review: Review) -> None:
        self._review = review

    def rows(self) -> JSONResponse:
        review = self._review
        about = {"name": review.rows.name, "labels": review.labels, "none": NO_LABEL}
        return JSONResponse({**about, "certify": review.certifies, "columns": review.columns()})

    def details(self, row: _Rows) -> JSONResponse:
        return JSONResponse(self._review.details(row))

    def text(self, row: int) -> JSONResponse:
        return JSONResponse(self._review.text(row))

    def search(self, words: str) -> JSONResponse:
        return JSONResponse(self._review.search(words))

    def nearest(self, row: int) -> JSONResponse:
        return JSONResponse(self._review.nearest(row))

    def mislabelled(self) -> JSONResponse:
        return JSONResponse(self._review.mislabelled())

    def promise(self) -> JSONResponse:
        return JSONResponse(self._review.promise())

    async def decide(self, request: Request) -> JSONResponse:
        body = await bounded_body(request, _MOST_BYTES, seconds=_BODY_SECONDS)
        try:
            given = _Decision.model_validate_json(body)
        except ValidationError:
            raise HTTPException(
                400, "Expected a JSON object with row, a number, and answer, a label."
            ) from None
        await run_in_threadpool(self._review.decide, given.row, given.answer)
        return self._changed(given.row)

    async def undo(self) -> JSONResponse:
        return self._changed(await run_in_threadpool(self._review.undo))

    def _changed(self, row: int | None) -> JSONResponse:
        answers = self._review.answers()
        answer = None if row is None else answers.get(row)
        answered = sum(map(bool, answers.values()))
        return JSONResponse({"row": row, "answer": answer, "answered": answered})
