"""The fault server: options, start and stop."""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from calibrant.core import ConfigurationError, StateError
from calibrant.testing import Answer, Rule, fake_response
from fault_server._answers import AnswerBook, ChatRequest, some_answer
from fault_server._faults import FaultScript, script_of
from fault_server._limits import RateLimit
from fault_server._records import Records

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["FaultServer"]

_SHUTDOWN_SECONDS = 0.05  # what still hangs then is cut
_BACKLOG = 1024


class FaultServer(Records):
    """An OpenAI-compatible server on the loopback interface, with scripted faults.

    It runs on an event loop in a thread of its own, from `start` to `stop` or inside ``with``, and knows
    ``POST /v1/chat/completions``, ``GET /v1/models``, ``GET /health`` and ``GET /stats`` (all counts). The
    prompt's tokens are taken to be a quarter of the characters of all messages. For measurements run it as a
    process of its own: ``python tests/shared/serve_faults.py --help``.

    Parameters
    ----------
    labels : sequence of str
        The label set.
    answers : mapping or callable, optional
        The rule for healthy answers, as in `FakeClient`. By default the label that the text contains
        (the longest one), or else one that only the text decides; the probability is between 0.6 and 0.95.
    default : Answer, optional
        For texts a mapping does not know; without one such a request is answered with status 400.
    faults : sequence, mapping or callable, optional
        Which request meets which `Fault`; a text stands for ``Fault.parse(text)``. A sequence: request n
        meets the n-th entry; None, and what is beyond the end, is healthy. A mapping: the share of requests,
        at random, that meets each fault. A callable: asked with the number and the JSON of each request,
        it returns a fault or None. Requests count from 0 when they got past the key and the limits. A
        retry is a request like any other.
    seed : int, default 0
        Of the shares: the same seed gives the same faults to the same numbers.
    latency : float, default 0
        Seconds before anything is answered, refusals aside.
    api_key : str, optional
        Where given, ``Authorization: Bearer`` with this key is required; otherwise 401.
    models : sequence of str, optional
        Where given, other models are refused with 404.
    requests_per_second, tokens_per_second : float, optional
        A real rate limit, above 0: beyond it, 429 with the wait in Retry-After and ``retry-after-ms``.
        One second's worth may come at once. Answers then carry ``x-ratelimit-limit-*``,
        ``x-ratelimit-remaining-*`` and ``x-ratelimit-reset-*``. Tokens are those of prompts.
    max_concurrency : int, optional
        Requests answered at the same time; beyond it, 429. At least 1.
    headers : mapping or callable, default {}
        More headers for answers, such as rate headers of your own; a callable is asked with the number of
        the request.
    keep_requests : int, optional
        How many of the latest requests to keep in `requests`; all by default. Counts are always complete.
    port : int, default 0
        0 takes a free one. A server that is started again keeps its port.
    hides_logprobs : bool, default False
        True to answer the question that shows what a model can do without log-probabilities. That question meets no
        fault and counts nowhere but in `probes`.
    on_probe : callable, optional
        Returns the status with which that question is refused, or None.
    field, tokens, illegal_mass
        As in `fake_response`.

    Raises
    ------
    ConfigurationError
        A parameter is out of range.

    Examples
    --------
    >>> import json, urllib.request
    >>> from fault_server import Fault, FaultServer
    >>> def ask(server, text):
    ...     chat = {"model": "m", "messages": [{"role": "user", "content": text}]}
    ...     with urllib.request.urlopen(f"{server.api_base}/chat/completions", json.dumps(chat).encode()) as got:
    ...         return json.load(got)["choices"][0]["message"]["content"]
    >>> with FaultServer(["Food", "Rent"], faults=[None, "503", Fault("hang", seconds=0.1)]) as server:
    ...     print(ask(server, "Rent for May"))
    ...     try:
    ...         ask(server, "Rent for May")
    ...     except OSError as error:
    ...         print(error)
    {"category": "Rent"}
    HTTP Error 503: Service Unavailable
    >>> server.counts, server.faults_sent
    ({'Rent for May': 2}, {'503': 1})

    The first request for every text fails, and the next one does not:

    >>> def first_fails(number, body):
    ...     text = body["messages"][-1]["content"]
    ...     return None if server.count(text) else "reset_before_headers"
    >>> server = FaultServer(["Food", "Rent"], faults=first_fails)
    """

    def __init__(
        self,
        labels: Sequence[str],
        answers: Mapping[str, Answer] | Callable[..., Answer] | None = None,
        *,
        default: Answer | None = None,
        faults: FaultScript = (),
        seed: int = 0,
        latency: float = 0.0,
        api_key: str | None = None,
        models: Sequence[str] | None = None,
        requests_per_second: float | None = None,
        tokens_per_second: float | None = None,
        max_concurrency: int | None = None,
        headers: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
        keep_requests: int | None = None,
        port: int = 0,
        hides_logprobs: bool = False,
        on_probe: Callable[[], int | None] | None = None,
        field: str = "category",
        tokens: str | Callable[[str], Sequence[str | bytes]] = "label",
        illegal_mass: float = 0.0,
    ) -> None:
        _check(latency=latency, max_concurrency=max_concurrency, keep_requests=keep_requests, port=port)
        super().__init__(keep_requests)
        self.port = port
        self.latency = latency
        self.api_key = api_key
        self.models = models
        self.max_concurrency = max_concurrency
        self.headers = headers or {}
        self.probes, self.on_probe, self._hides_logprobs = 0, on_probe, hides_logprobs
        rule = Rule(_said_or_drawn(labels) if answers is None else answers, default)
        style = {"field": field, "tokens": tokens, "illegal_mass": illegal_mass}
        self.book = AnswerBook(labels, rule, style)
        self.script = script_of(faults, seed)
        self.limit = RateLimit(requests=requests_per_second, tokens=tokens_per_second)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    def start(self) -> None:
        """Listen; return when requests can come.

        Raises
        ------
        StateError
            It is running already.
        ConfigurationError
            The port is taken.
        """
        if self._thread is not None:
            msg = f"The server runs already, on port {self.port}: stop it first."
            raise StateError(msg)
        listening: Future[int] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listening)), name="fault-server", daemon=True
        )
        thread.start()
        try:
            self.port = listening.result()
        except OSError as error:
            thread.join()
            msg = f"Port {self.port} cannot be listened on ({error.strerror}): take another, or 0 for a free one."
            raise ConfigurationError(msg) from error
        self._thread = thread

    def stop(self) -> None:
        """Cut all connections and stop; without effect where it does not run."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None

    def probe_answer(self, asked: ChatRequest) -> bytes:
        """Answer the question that shows what a model can do."""
        response: dict[str, Any] = fake_response("dog", field="label", probabilities={"dog": 0.9, "cat": 0.1})
        response |= {"model": asked.model, "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
        if self._hides_logprobs or not asked.body.get("logprobs"):
            response["choices"][0].pop("logprobs", None)
        return json.dumps(response).encode()

    @property
    def api_base(self) -> str:
        """Base URL for clients, ``/v1`` included."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, listening: Future[int]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), (stopping := asyncio.Event())
        try:
            runner = await self._listening_runner()
        except BaseException as error:  # noqa: BLE001 (raised where `start` waits)
            listening.set_exception(error)
            return
        listening.set_result(runner.addresses[0][1])
        await stopping.wait()
        await runner.cleanup()

    async def _listening_runner(self) -> web.ServerRunner:
        from aiohttp import web  # noqa: PLC0415 (heavy)

        from fault_server._handler import Handler  # noqa: PLC0415 (imports aiohttp)

        # A request whose client has gone ends at once.
        server = web.Server(Handler(self), handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, backlog=_BACKLOG).start()
        return runner


def _said_or_drawn(labels: Sequence[str]) -> Callable[[str], Answer]:
    def rule(text: str) -> Answer:
        draw = zlib.crc32(text.encode())
        return some_answer(labels, text, draw), 0.6 + 0.05 * (draw // 65536 % 8)

    return rule


def _check(*, latency: float, max_concurrency: int | None, keep_requests: int | None, port: int) -> None:
    for name, value, least in (
        ("latency", latency, 0),
        ("max_concurrency", max_concurrency, 1),
        ("keep_requests", keep_requests, 0),
        ("port", port, 0),
    ):
        if value is not None and not value >= least:
            msg = f"{name} must be at least {least}, got {value}."
            raise ConfigurationError(msg)
