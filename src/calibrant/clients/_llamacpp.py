"""A model that runs inside this process: llama.cpp, without a server or a key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

from calibrant.clients._constraint import (
    Constraint,
    constraint_for,
    json_grammar,
    looks_like_json,
)
from calibrant.clients._continuing import FEW_TOKENS, MANY_TOKENS, WRITABLE
from calibrant.clients._engine import (
    Engine,
    EngineSettings,
    default_threads,
    engine_module,
    open_engine,
    release_engine,
)
from calibrant.clients._slots import Slots
from calibrant.clients._weights import check_weights, locate_weights
from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    ContextLengthError,
    Continuation,
    LogprobSpace,
    NextTokens,
    ProviderError,
    Usage,
)

__all__ = ["LlamaCppClient"]

_T = TypeVar("_T")

_MAX_TOKENS = 512

# Raw alternatives are headed by tokens the grammar forbids: a handful would leave most labels unmeasured.
_MIN_TOP_LOGPROBS = 100

# A call may come back without log-probabilities.
_REPEATS = 3


class LlamaCppClient:
    """A client for a GGUF file, run by llama.cpp inside this process.

    A schema that leaves one choice (an enum, however deep in objects of one field) is decoded from
    the choice on: the JSON before it is given to the model as the beginning of its answer, so a label
    costs two to six tokens. The response looks like OpenAI's all the same; the JSON the model did not
    write is one token with log-probability 0 and no alternatives at either end, so that the joined
    bytes of the tokens are the content. Answers are greedy (temperature 0) unless the request's
    options say otherwise.

    Parameters
    ----------
    path : str or Path
        The GGUF file.
    name : str, optional
        Shown in messages and results; by default ``llamacpp:PATH``.
    n_ctx : int, default 4096
        Longest prompt with its answer, in tokens. Memory grows with ``n_ctx * n_parallel``.
    n_parallel : int, default 1
        Calls computed at the same time. Answers are reproducible to the last bit only with 1.
    n_threads : int, optional
        Threads that compute; by default one per available core.

    Attributes
    ----------
    n_parallel : int
        As given.
    in_process : bool
        Always True: its calls cost this machine's time and nothing else.
    endpoint : str
        The file with its size and its time of change (nanoseconds since 1970); for `local`, the name
        alone.

    Raises
    ------
    ConfigurationError
        A parameter is out of range, the engine is not installed, or the file is missing or not GGUF.
    """

    space = LogprobSpace.RAW
    in_process: ClassVar[bool] = True

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        n_ctx: int = 4096,
        n_parallel: int = 1,
        n_threads: int | None = None,
    ) -> None:
        threads = default_threads() if n_threads is None else n_threads
        for key, value in (("n_ctx", n_ctx), ("n_parallel", n_parallel), ("n_threads", threads)):
            if value < 1:
                msg = f"{key} must be at least 1, got {value}."
                raise ConfigurationError(msg)
        engine_module()
        file = Path(path).expanduser()
        check_weights(file)
        self.name = name or f"llamacpp:{path}"
        self.n_parallel = n_parallel
        self._settings = EngineSettings(
            path=file.resolve(), n_ctx=n_ctx, n_parallel=n_parallel, n_threads=threads
        )
        known = file.stat()
        self.endpoint = f"{file.resolve()} ({known.st_size} bytes, {known.st_mtime_ns})"
        self._pool = ThreadPoolExecutor(n_parallel, thread_name_prefix="calibrant-llamacpp")
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, Slots] = WeakKeyDictionary()
        self._running: set[Future[Any]] = set()
        self._abandoned: set[Future[Any]] = set()

    @classmethod
    def local(cls, model: str = "local/smollm2-135m", **settings: int | None) -> Self:
        """Return a client for an embedded model, its weights located and verified.

        Parameters
        ----------
        model : str, default "local/smollm2-135m"
            A name `local_models` lists.
        **settings
            ``n_ctx``, ``n_parallel``, ``n_threads``.

        Raises
        ------
        ConfigurationError
            Engine or weights are not installed (the message holds the command), or damaged.
        """
        engine_module()
        found = cls(locate_weights(model), name=model, **settings)  # type: ignore[arg-type]
        found.endpoint = model  # the same weights wherever they are installed: their hash is pinned
        return found

    async def complete(self, request: CompletionRequest) -> object:
        """Return an OpenAI-shaped response.

        The model is loaded by the first call (about a second).

        Raises
        ------
        ProviderError
            The engine refused this request, for instance because the text is longer than the context.
        ConfigurationError
            The schema cannot be enforced, or the engine cannot load the file.
        """
        return await self._computed(self._answer, request)

    def check_schema(self, response_format: Mapping[str, Any]) -> None:
        """Refuse a schema the engine would not enforce.

        Raises
        ------
        ConfigurationError
            The label set is larger than the engine was seen to obey.
        """
        constraint_for(response_format)

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Refuse labels whose tokens do not spell them, or that the context cannot hold.

        Raises
        ------
        ConfigurationError
            A label holds a special token, has no tokens, or is longer than the context.
        """
        await self._computed(self._check_labels, tuple(labels))

    def continuing(self, request: CompletionRequest) -> AbstractAsyncContextManager[Continuation]:
        """Return a row's place in the engine: a slot of its own, until the context ends."""
        return self._continuing(request)

    @asynccontextmanager
    async def _continuing(self, request: CompletionRequest) -> AsyncIterator[Continuation]:
        loop = asyncio.get_running_loop()
        slots = self._slots.setdefault(loop, Slots(self._settings.n_parallel))
        async with slots.one() as slot:
            yield _Row(self, request, slot)

    async def next_tokens(
        self, request: CompletionRequest, text: str, slot: int, *, few: bool = False
    ) -> NextTokens:
        """Return what may follow `text`, computed in `slot`."""
        count = request.top_logprobs or (FEW_TOKENS if few else MANY_TOKENS)
        body = _next_body(request, text, count, slot)
        found = await self._computed(self._next_tokens, body)
        return replace(found, short=few and not request.top_logprobs)

    def close(self) -> None:
        """Wait for the calls that somebody waits for, then free the model unless another client uses it.

        A call whose caller has given up (Ctrl-C, a deadline) cannot be interrupted inside the engine. It is
        not waited for; the model is freed when it has ended and the client is gone.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(self._running - self._abandoned)
        if self._engine is not None:
            if not any(call.running() for call in self._abandoned):
                release_engine(self._engine, holder=self)
            self._engine = None

    async def _computed(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Return what `work` returns, computed in a thread of the engine's."""
        call = self._pool.submit(work, *arguments)
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            self._abandoned.add(call)
            call.add_done_callback(self._abandoned.discard)
            raise

    def _next_tokens(self, body: dict[str, Any]) -> NextTokens:
        engine = self._loaded()
        for _ in range(_REPEATS):
            answer = self._call(engine, body)
            if _has_logprobs(answer):
                return _read_next(answer)
        msg = f"llama.cpp answered {_REPEATS} times without log-probabilities."
        raise ProviderError(msg, provider=self.name, retryable=True, hint="Try again, or scoring='decode'.")

    def _check_labels(self, labels: Sequence[str]) -> None:
        engine = self._loaded()
        longest = max(labels, key=lambda label: len(label.encode()))
        # A token holds at least one byte.
        if len(longest.encode()) >= self._settings.n_ctx:
            size = len(engine.tokenize(longest, special=False))
            if size >= self._settings.n_ctx:
                msg = (
                    f"The label {longest[:40]!r}... has {size:,} tokens, the context {self._settings.n_ctx:,}: "
                    "shorten it, or raise n_ctx."
                )
                raise ConfigurationError(msg)
        if not _spelled(engine, "\n".join(labels)):
            wrong = next((label for label in labels if not _spelled(engine, label)), longest)
            msg = (
                f"The tokens of {self.name} do not spell the label {wrong!r:.80}: it holds a special token of the "
                "model, or characters it does not know. Rename the label."
            )
            raise ConfigurationError(msg)

    def _loaded(self) -> Engine:
        with self._lock:
            if self._engine is None:
                self._engine = open_engine(self._settings, holder=self)
            return self._engine

    def _answer(self, request: CompletionRequest) -> dict[str, Any]:
        engine = self._loaded()
        own = request.response_format is None or _continues(request)
        choice = None if own else constraint_for(request.response_format)
        body = _body(request, choice, llguidance=engine.llguidance)
        answer = self._call(engine, body)
        if request.top_logprobs > 0 and not _has_logprobs(answer):
            answer = self._call(engine, body)
        if not own:
            self._check(choice, answer)
        if choice is not None:
            _complete_json(choice, answer)
        return answer

    def _call(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = engine.chat(body)
        except (RuntimeError, ValueError) as error:
            raise ProviderError(f"llama.cpp refused the request: {error}", provider=self.name) from error
        if "model" in answer:
            answer["model"] = self._settings.path.name  # it reports the whole path
        failure = answer.get("error")
        if failure:
            raise self._failure(failure if isinstance(failure, Mapping) else {"message": str(failure)})
        return answer

    def _failure(self, error: Mapping[str, Any]) -> Exception:
        message, status = str(error.get("message", error)), error.get("code")
        if error.get("type") == "exceed_context_size_error":
            hint = (
                f"The prompt has {error.get('n_prompt_tokens')} tokens, the context {error.get('n_ctx')}: "
                "shorten the text or the prompt, or raise n_ctx."
            )
            return ContextLengthError("The text is too long.", provider=self.name, status=400, hint=hint)
        if "grammar" in message:
            msg = f"{self.name}: llama.cpp cannot enforce this schema ({message}). Simplify it."
            return ConfigurationError(msg)
        retryable = isinstance(status, int) and status >= 500
        return ProviderError(message, provider=self.name, status=status, retryable=retryable)

    def _check(self, choice: Constraint | None, answer: Mapping[str, Any]) -> None:
        """Notice a grammar that was ignored: llama.cpp answers with HTTP 200 all the same."""
        first = answer["choices"][0]
        text = first["message"].get("content") or ""
        partial = first.get("finish_reason") == "length"
        if choice is None:
            legal, what = looks_like_json(text, partial=partial), "the schema"
            remedy = "Leave out keywords it may not support (pattern, format, not, if, ...)."
        else:
            written = Constraint(prefix=choice.prefix, values=choice.values, suffix='"')
            legal, what = (
                written.allows(text, partial=partial),
                f"the grammar of {len(choice.values):,} labels",
            )
            remedy = "Use fewer or shorter labels, without special tokens of the model."
        if not legal:
            msg = f"{self.name}: llama.cpp ignored {what} and answered {text[-80:]!r}. {remedy}"
            raise ConfigurationError(msg)


@dataclass(frozen=True)
class _Row:
    """A row that holds a slot."""

    client: LlamaCppClient
    request: CompletionRequest
    slot: int

    @property
    def serial(self) -> bool:
        """A slot computes one call after the other."""
        return True

    async def next_tokens(self, text: str, *, few: bool = False) -> NextTokens:
        """Return what may follow `text`."""
        return await self.client.next_tokens(self.request, text, self.slot, few=few)


def _spelled(engine: Engine, text: str) -> bool:
    """Return whether the tokens of `text` are those of ordinary text, and spell it."""
    tokens = engine.tokenize(text, special=True)
    return (
        tokens == engine.tokenize(text, special=False) and engine.detokenize(tokens).strip() == text.strip()
    )


def _next_body(request: CompletionRequest, text: str, count: int, slot: int) -> dict[str, Any]:
    return {
        "messages": [*map(dict, request.messages), {"role": "assistant", "content": text}],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": count,
        "id_slot": slot,
        "logit_bias": WRITABLE,
    }


def _read_next(answer: Mapping[str, Any]) -> NextTokens:
    listed = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    used = answer.get("usage", {})
    return NextTokens(
        top=tuple((bytes(token["bytes"]), token["logprob"]) for token in listed),
        usage=Usage(
            prompt_tokens=used.get("prompt_tokens", 0), completion_tokens=used.get("completion_tokens", 0)
        ),
        model=answer.get("model"),
    )


def _continues(request: CompletionRequest) -> bool:
    """Return whether the caller began the answer, or brings a grammar of its own."""
    last = request.messages[-1].get("role") if request.messages else None
    return last == "assistant" or "grammar" in request.options


def _body(request: CompletionRequest, choice: Constraint | None, *, llguidance: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": [dict(message) for message in request.messages],
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
    }
    if request.top_logprobs > 0:
        body |= {"logprobs": True, "top_logprobs": max(request.top_logprobs, _MIN_TOP_LOGPROBS)}
    if choice is not None:
        body["messages"].append({"role": "assistant", "content": choice.prefix})
        body["grammar"] = choice.grammar(llguidance=llguidance)
    elif request.response_format is not None and not _continues(request):
        grammar = json_grammar(request.response_format) if llguidance else None
        extra = (
            {"response_format": dict(request.response_format)} if grammar is None else {"grammar": grammar}
        )
        body |= extra
    return {name: value for name, value in {**body, **request.options}.items() if value is not None}


def _has_logprobs(answer: Mapping[str, Any]) -> bool:
    reported = answer["choices"][0].get("logprobs")
    return bool(reported and reported.get("content"))


def _complete_json(choice: Constraint, answer: dict[str, Any]) -> None:
    """Put the JSON the model did not write around what it wrote."""
    first = answer["choices"][0]
    ended = first.get("finish_reason") != "length"
    tail = choice.suffix[1:] if ended else ""
    first["message"]["content"] += tail
    reported = first.get("logprobs")
    if reported and reported.get("content"):
        reported["content"] = [
            _given(choice.prefix),
            *(token for token in reported["content"] if token["bytes"]),
            *([_given(tail)] if tail else []),
        ]


def _given(text: str) -> dict[str, Any]:
    return {"token": text, "bytes": list(text.encode()), "logprob": 0.0, "top_logprobs": []}
