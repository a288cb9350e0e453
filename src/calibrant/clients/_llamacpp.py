"""Client for a model inside this process: llama.cpp, without a server or a key."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from calibrant.clients._calls import LoopValues
from calibrant.clients._constraint import (
    SAMPLING_OPTIONS,
    Constraint,
    Grammar,
    Sampler,
    best_value,
    constraint_for,
    json_grammar,
    token_record,
)
from calibrant.clients._engine import (
    LEAST_TOKENS,
    MOST_PLACES,
    MOST_TOKENS,
    Engine,
    EngineError,
    EnginePlace,
    EngineSettings,
    Job,
    Prompt,
    TooLongError,
    open_engine,
    release_engine,
)
from calibrant.clients._llama import engine_module
from calibrant.clients._weights import check_weights, file_digest, locate_weights
from calibrant.core._completion import CompletionRequest, NextTokens, TokenLogprobs, Vocabulary
from calibrant.core._errors import ConfigurationError, ContextLengthError, ProviderError
from calibrant.core._prediction import LogprobSpace, Usage
from calibrant.core._reported import without_none

_MAX_TOKENS = 512
_NEXT_TOKENS = 1000
_SHOWN_DIGITS = 12  # of a digest of weights
_MOST_THREADS = 512  # llama.cpp's own maximum; a million end the process

# Raw alternatives are headed by tokens the grammar forbids: a handful would leave most labels unmeasured.
_MIN_TOP_LOGPROBS = 100

_OPTIONS = SAMPLING_OPTIONS | {"max_tokens", "stop", "n"}


class LlamaCppClient:
    """Client for a GGUF file, run by llama.cpp inside this process.

    Labels are scored by next-token probabilities (`continuing`). The beginning of a prompt that rows share is computed
    once, and all pending beginnings of labels in one batch.

    `complete` writes text. A schema that leaves one choice (an enum, however deep in objects of one field) is decoded
    from the choice on: the JSON before it is given to the model as the beginning of its answer, so a label costs two
    to six tokens. The response looks like OpenAI's all the same; the JSON the model did not write is one token with
    log-probability 0 and no alternatives at either end, so that the joined bytes of the tokens are the content.
    Answers are greedy (temperature 0) unless the request's options say otherwise: ``temperature``, ``top_p``,
    ``seed``, ``max_tokens`` (default 512) and ``stop``.

    Parameters
    ----------
    path : str or Path
        The GGUF file.
    name : str, optional
        Shown in messages and results; by default ``llamacpp:PATH``.
    n_ctx : int, default 4096
        Longest prompt with its answer, in tokens, from 256 to ``16777216 // n_parallel``. Memory grows with
        ``n_ctx * n_parallel``.
    n_parallel : int, default 1
        Rows computed at the same time, from 1 to 64. Answers are reproducible to the last bit only with 1.
    n_threads : int, optional
        Threads that compute, from 1 to 512; by default one per available core.

    Attributes
    ----------
    n_parallel : int
        As given.
    in_process : bool
        Always True: its calls cost this machine's time and nothing else.
    default_tolerance : float
        Tolerance of exact scoring by default, as a total variation: a node costs no more than one token here.
    tokenisation : str
        How chats become tokens; with another way, earlier answers count as another model's.
    endpoint : str
        Digest of the weights, wherever their file is; for `local`, the name alone.
    weights : str or None
        Name of the file and digest of the weights, which its answers report: ``qwen.gguf@1f0c3a7be2d4``. None for
        `local`, whose name says which weights they are.

    Raises
    ------
    ConfigurationError
        A parameter is out of range, the engine is not installed, or the file is missing or not GGUF.
    """

    space = LogprobSpace.RAW
    in_process: ClassVar[bool] = True
    default_tolerance: ClassVar[float] = 0.1
    tokenisation: ClassVar[str] = "control tokens of the template alone"

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        n_ctx: int = 4096,
        n_parallel: int = 1,
        n_threads: int | None = None,
    ) -> None:
        # The cores this process may use; the first function is not on macOS and Windows.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = cores if n_threads is None else n_threads
        _check_range("n_parallel", n_parallel, 1, MOST_PLACES)
        _check_range("n_ctx", n_ctx, LEAST_TOKENS, MOST_TOKENS // n_parallel)
        _check_range("n_threads", threads, 1, _MOST_THREADS)
        engine_module()
        file = Path(path).expanduser()
        check_weights(file)
        self.name = name or f"llamacpp:{path}"
        self.n_parallel = n_parallel
        self._settings = EngineSettings(
            path=file.resolve(), n_ctx=n_ctx, n_parallel=n_parallel, n_threads=threads
        )
        self.endpoint = file_digest(file)
        self.weights: str | None = f"{file.name}@{self.endpoint[:_SHOWN_DIGITS]}"
        self._lock = threading.Lock()
        self._loading: LoopValues[asyncio.Lock] = LoopValues()
        self._engine: Engine | None = None
        self._closed = False

    @classmethod
    def local(cls, model: str = "local/smollm2-135m", **settings: int | None) -> Self:
        """Return a client for a named embedded model, after a check of its weights.

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
        client = cls(locate_weights(model), name=model, **settings)  # type: ignore[arg-type]
        client.endpoint = model  # whose weights' hash is pinned
        client.weights = None
        return client

    @property
    def reported(self) -> str:
        """Model that answers name."""
        return self.weights or self._settings.path.name

    async def complete(self, request: CompletionRequest) -> object:
        """Generate an answer and return it in the format of OpenAI's chat completions.

        The model is loaded by the first call (about half a second).

        Raises
        ------
        ProviderError
            The engine refused this request, such as a text longer than the context.
        ConfigurationError
            The schema cannot be enforced, an option is unknown, or the engine cannot load the file.
        """
        decoding = _Decoding.of(request)
        async with self.continuing(request) as row:
            return await self._decode(row, decoding)

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Raise ConfigurationError for a label that tokens cannot spell or the context cannot hold.

        Raises
        ------
        ConfigurationError
            A label holds a special token, has no tokens, or is longer than the context.
        """
        engine = await self._loaded()
        longest = max(labels, key=lambda label: len(label.encode()))
        # A token holds at least one byte.
        if len(longest.encode()) >= self._settings.n_ctx:
            size = len(engine.tokenize(longest))
            if size >= self._settings.n_ctx:
                raise ConfigurationError(
                    f"The label {longest[:40]!r}... has {size:,} tokens, the context {self._settings.n_ctx:,}: "
                    "shorten it, or raise n_ctx."
                )
        if not engine.spells("\n".join(labels)):
            wrong = next((label for label in labels if not engine.spells(label)), longest)
            raise ConfigurationError(
                f"The tokens of {self.name} do not spell the label {wrong!r:.80}: it holds a special token of the "
                "model, or characters it does not know. Rename the label."
            )

    @asynccontextmanager
    async def continuing(self, request: CompletionRequest) -> AsyncIterator[_EngineRow]:
        """Reserve memory of the engine for one row, and yield the session of the row."""
        engine = await self._loaded()
        messages = [dict(message) for message in request.messages]
        begun = ""
        if messages and messages[-1].get("role") == "assistant":
            begun = messages.pop()["content"]
        prompt = engine.prompt(messages)
        future = engine.enter()
        try:
            place = await asyncio.wrap_future(future)
            yield _EngineRow(self, engine, place, prompt, begun=begun, listed=request.top_logprobs)
        finally:
            if not future.cancel():  # also where a cancelled call got its place just before
                engine.leave(future.result())

    def close(self) -> None:
        """Free the model unless another client uses it; requests in flight may fail."""
        with self._lock:
            engine = self._engine
            self._engine = None
            self._closed = True
        if engine is not None:
            release_engine(engine, holder=self)

    async def _loaded(self) -> Engine:
        # Every row takes the lock, also when the engine is loaded: a lock keeps the order of its waiters.
        async with self._loading.here(asyncio.Lock):
            if self._engine is None:
                return await asyncio.to_thread(self._load)
            return self._engine

    def _load(self) -> Engine:
        with self._lock:
            if self._closed:
                raise ConfigurationError(f"{self.name}: expected an open client, got one that was closed.")
            if self._engine is None:
                self._engine = open_engine(self._settings, holder=self)
            return self._engine

    async def _decode(self, row: _EngineRow, decoding: _Decoding) -> dict[str, Any]:
        """Generate the answer of the model, as an OpenAI response."""
        grammar = None
        if decoding.grammar is not None:
            grammar = await asyncio.to_thread(self._grammar, row.engine, decoding.grammar)
        choice = decoding.choice
        prefix = "" if choice is None else choice.prefix
        begun = row.tokens(prefix)
        prompt_size = len(row.prompt.tokens) + len(begun)
        room = self._settings.n_ctx - prompt_size
        if room <= 0:
            raise self._failure(TooLongError(prompt_size))
        sampler = Sampler(decoding.options)
        if choice is not None and sampler.is_greedy:
            sampler.plan(await best_value(row, choice, begun))
        answer = _GeneratedAnswer((row.begun + prefix).encode(), begun)
        await answer.generate(row, decoding, sampler, grammar, limit=min(decoding.max_tokens, room))
        if choice is not None:
            answer.complete(choice)
        message = {"role": "assistant", "content": answer.data.decode("utf-8", "replace")}
        logprobs = {"content": answer.records} if decoding.alternatives else None
        completion_tokens = len(answer.tokens) - len(begun)
        return {
            "object": "chat.completion",
            "model": self.reported,
            "choices": [
                {"index": 0, "message": message, "finish_reason": answer.reason, "logprobs": logprobs}
            ],
            "usage": {
                "prompt_tokens": prompt_size,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_size + completion_tokens,
            },
        }

    def _grammar(self, engine: Engine, source: str) -> Grammar:
        try:
            return engine.grammars.compile(source)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{self.name}: llama.cpp cannot enforce this schema ({error}). Simplify it."
            ) from error

    def _failure(self, error: Exception) -> Exception:
        if isinstance(error, TooLongError):
            hint = (
                f"The prompt has {error.tokens} tokens, the context {self._settings.n_ctx}: "
                "shorten the text or the prompt, or raise n_ctx."
            )
            return ContextLengthError("The text is too long.", provider=self.name, status=400, hint=hint)
        if isinstance(error, EngineError):
            return ProviderError(f"llama.cpp refused the request: {error}", provider=self.name)
        return error


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigurationError(f"{name} must be from {least} to {most}, got {value}.")


@dataclass(frozen=True, kw_only=True)
class _Decoding:
    """Decoding parameters of a request.

    Attributes
    ----------
    choice : Constraint or None
        The one choice that the schema leaves.
    grammar : str or None
        Grammar of the generated text.
    alternatives : int
        Alternatives listed beside every generated token.
    """

    choice: Constraint | None
    grammar: str | None
    alternatives: int
    max_tokens: int
    stop: tuple[bytes, ...]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, request: CompletionRequest) -> Self:
        """Return the decoding parameters of a request.

        Raises
        ------
        ConfigurationError
            An option is unknown.
        """
        options = without_none(request.options)
        unknown = sorted(options.keys() - _OPTIONS)
        if unknown or options.get("n", 1) != 1:
            raise ConfigurationError(
                f"Expected options of the embedded model among {', '.join(sorted(_OPTIONS - {'n'}))}, got "
                f"{', '.join(unknown) or 'n'}: leave it out."
            )
        is_begun = bool(request.messages) and request.messages[-1].get("role") == "assistant"
        schema = None if is_begun else request.response_format
        choice = constraint_for(schema)
        stop = options.get("stop") or ()
        stops = (stop,) if isinstance(stop, str) else stop
        return cls(
            choice=choice,
            grammar=json_grammar(schema) if choice is None else choice.grammar(),
            alternatives=max(request.top_logprobs, _MIN_TOP_LOGPROBS) if request.top_logprobs > 0 else 0,
            max_tokens=int(options.get("max_tokens", _MAX_TOKENS)),
            stop=tuple(text.encode() for text in stops),
            options={name: options[name] for name in SAMPLING_OPTIONS & options.keys()},
        )


@dataclass(eq=False)
class _EngineRow:
    """Session of one row in the engine: its prompt and its reserved memory."""

    client: LlamaCppClient
    engine: Engine
    place: EnginePlace
    prompt: Prompt
    begun: str
    listed: int
    _scored_texts: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    serial: ClassVar[bool] = False  # texts are computed in one batch

    @property
    def usage(self) -> Usage:
        """Usage: the tokens of the prompt, and one completion token for each scored text."""
        return Usage(prompt_tokens=len(self.prompt.tokens), completion_tokens=self._scored_texts)

    @property
    def model(self) -> str:
        """File name of the weights, and their digest unless it is known beforehand."""
        return self.client.reported

    @property
    def vocabulary(self) -> Vocabulary:
        """Tokens of the model."""
        return self.engine.vocabulary

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of an answer prefix, as tokenised after the prompt."""
        return tuple(self.engine.tokenize(self.prompt.tail + self.begun + text))

    async def next_tokens(self, text: str, *, few: bool = False) -> NextTokens:  # noqa: ARG002 (all are known)
        """Return the most probable tokens after `text`."""
        tokens = self.tokens(text)
        (logprobs,) = await self.next_logprobs([tokens])
        return NextTokens(
            top=logprobs.most_probable(self.listed or _NEXT_TOKENS),
            usage=Usage(prompt_tokens=len(self.prompt.tokens) + len(tokens), completion_tokens=1),
            model=self.model,
        )

    async def next_logprobs(self, texts: Sequence[Sequence[int]]) -> list[TokenLogprobs]:
        """Return the log-probabilities of all tokens after each text, which is given as tokens.

        Raises
        ------
        ProviderError
            A text is too long, or llama.cpp could not compute it.
        """
        self._scored_texts += len(texts)
        async with self._turn:
            job = Job(self.place, self.prompt.tokens, [tuple(text) for text in texts])
            try:
                self.engine.submit(job)
                logits_by_text = await asyncio.wrap_future(job.future)
            except asyncio.CancelledError:
                self.engine.abandon(job)
                raise
            except (EngineError, TooLongError) as error:
                raise self.client._failure(error) from error  # noqa: SLF001
        return [TokenLogprobs(self.engine.vocabulary, logits) for logits in logits_by_text]


@dataclass
class _GeneratedAnswer:
    """Answer that is being generated: bytes, tokens, token records and finish reason."""

    data: bytes
    tokens: tuple[int, ...]
    records: list[dict[str, Any]] = field(default_factory=list)
    reason: str = "length"

    async def generate(
        self, row: _EngineRow, decoding: _Decoding, sampler: Sampler, grammar: Grammar | None, *, limit: int
    ) -> None:
        """Extend the answer by at most `limit` tokens, until the model, the grammar or a stop text ends it."""
        for _ in range(limit):
            if grammar is not None and grammar.is_over:
                self.reason = "stop"
                return
            allowed = None if grammar is None else grammar.allowed()
            (logprobs,) = await row.next_logprobs([self.tokens])
            token = sampler.draw(logprobs.logits, allowed)
            if row.engine.is_end(token):
                self.reason = "stop"
                return
            if grammar is not None:
                grammar.accept(token)
            piece = row.vocabulary.pieces[token]
            self.tokens = (*self.tokens, token)
            self.data += piece
            if decoding.alternatives:
                (logprob,) = logprobs.at(np.array([token])).tolist()
                top = logprobs.most_probable(decoding.alternatives)
                self.records.append(token_record(piece, logprob, top))
            cuts = [place for text in decoding.stop if (place := self.data.find(text)) >= 0]
            if cuts:
                self.data = self.data[: min(cuts)]
                self.reason = "stop"
                return

    def complete(self, choice: Constraint) -> None:
        """Add the fixed JSON around the generated value to the text and to its tokens."""
        tail = b""
        if self.reason != "length":
            tail = choice.suffix[1:].encode()
        self.data += tail
        if self.records:
            self.records = [
                token_record(choice.prefix.encode(), 0.0),
                *(token for token in self.records if token["bytes"]),
                *([token_record(tail, 0.0)] if tail else []),
            ]
