"""Embedded llama.cpp engine: a loaded model, its memory for rows and batches, and its compute thread.

It calls llama.cpp's C interface instead of its server: a row's prompt is computed once, and every beginning of a label
is a branch that shares the prompt's tokens.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from os.path import commonprefix
from pathlib import Path
from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.clients._chat_template import ChatTemplate, ControlTexts
from calibrant.clients._constraint import Grammars
from calibrant.clients._llama import llama
from calibrant.core._completion import Vocabulary
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import SingleArray

BATCH: Final = 256
"""Tokens of a batch. More are no faster on a CPU, and the memory for their results grows with them."""

SEQUENCES: Final = 256
"""Sequences of a context: llama.cpp's maximum."""

MOST_PLACES: Final = SEQUENCES // 4
"""Largest number of rows computed at the same time: each needs a few sequences for branches."""

LEAST_TOKENS: Final = BATCH
"""Smallest context, in tokens: llama.cpp ends the process where a batch does not fit."""

MOST_TOKENS: Final = 1 << 24
"""Largest context of all places together, in tokens. llama.cpp counts them with 32 bits, and keeps a record of each
before it finds that the model's memory is too small: a thousand million take all memory of the machine."""

_OUTPUTS: Final = 64  # tokens of a batch with logits, at most: 0.2 MB each for a vocabulary of 49,152


class TooLongError(Exception):
    """Error for a text that does not fit into the context."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


class Memory(Protocol):
    """Protocol of the engine's cache: the computed tokens of each sequence."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of one sequence into another."""

    def cut(self, sequence: int, tokens: int) -> None:
        """Remove all but the first `tokens` tokens of a sequence."""


@dataclass(eq=False)
class _Path:
    """Tokens from the beginning of a prompt on, and the sequence of the cache that holds them.

    Attributes
    ----------
    length : int
        Number of tokens.
    computed : int
        Number of computed tokens; the others are part of the next batch.
    own : int
        Position from which on the tokens belong to this path alone.
    """

    sequence: int
    length: int = 0
    computed: int = 0
    own: int = 0


@dataclass(eq=False)
class EnginePlace:
    """Part of the engine's memory that one row uses.

    Attributes
    ----------
    prompt : _Path
        Outlives the row: the next one may begin with the same tokens.
    free : list of int
        Sequences for branches.
    n_ctx : int
        Its capacity, in tokens.
    memory : Memory
        The cache that holds the computed tokens of each sequence.
    tokens : list of int
        Tokens of `prompt`.
    base : int
        Number of tokens before the row's texts.
    branches : list of _Path
        Computed continuations of the prompt, or of a beginning of it.
    is_begun : bool
        True once `prompt` belongs to the current row.
    """

    prompt: _Path
    free: list[int]
    n_ctx: int
    memory: Memory = field(repr=False)
    tokens: list[int] = field(default_factory=list)
    base: int = 0
    branches: list[_Path] = field(default_factory=list)
    is_begun: bool = False
    # The path that holds each beginning of a text.
    _holders: dict[tuple[int, ...], _Path] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, count: int, *, n_ctx: int, memory: Memory) -> Self:
        """Return part `number` of the memory, which is divided into `count` parts."""
        each = SEQUENCES // count
        first = number * each
        free = list(range(first + each - 1, first, -1))
        return cls(prompt=_Path(first), free=free, n_ctx=n_ctx, memory=memory)

    @property
    def cells(self) -> int:
        """Number of tokens that the row holds in memory."""
        return self.prompt.length + sum(path.length - path.own for path in self.branches)

    def begin(self, prompt: Sequence[int], text: Sequence[int]) -> None:
        """Begin a row, and keep the computed tokens of the last row up to the first difference.

        Parameters
        ----------
        prompt : sequence of int
            Tokens before the row's texts.
        text : sequence of int
            The row's first text.

        Raises
        ------
        TooLongError
            The tokens exceed the capacity.
        """
        tokens = [*prompt, *text]
        if len(tokens) >= self.n_ctx:
            raise TooLongError(len(tokens))
        self.drop_branches()
        kept = len(commonprefix([tokens, self.tokens[: self.prompt.computed]]))  # noqa: RUF071 (no paths)
        self.memory.cut(self.prompt.sequence, kept)
        self.tokens = tokens
        self.base = len(prompt)
        self.prompt.length = self.prompt.computed = kept
        self._holders = {tuple(text[:end]): self.prompt for end in range(1, kept - self.base + 1)}
        self.is_begun = True

    def drop_branches(self) -> None:
        """Delete the branches, and keep the prompt."""
        for path in reversed(self.branches):
            self.memory.cut(path.sequence, 0)
            self.free.append(path.sequence)
        self.branches = []
        self._holders = {text: path for text, path in self._holders.items() if path is self.prompt}

    def forget(self) -> None:
        """Delete all computed tokens of the row."""
        self.drop_branches()
        self.memory.cut(self.prompt.sequence, 0)
        self.tokens = []
        self.prompt.length = 0
        self.prompt.computed = 0
        self.is_begun = False

    def nearest(self, text: tuple[int, ...]) -> tuple[_Path, int]:
        """Return the path that shares most tokens with `text`, and their number with the prompt."""
        end = len(text)
        while end and text[:end] not in self._holders:
            end -= 1
        if end:
            return self._holders[text[:end]], self.base + end
        return self.prompt, min(self.base, self.prompt.length)

    def branch(self, path: _Path, shared: int) -> _Path:
        """Return a new path that shares the first `shared` tokens of another path."""
        computed = min(shared, path.computed)
        branch = _Path(self.free.pop(), shared, computed=computed, own=shared)
        self.memory.copy(path.sequence, branch.sequence, computed)
        self.branches.append(branch)
        return branch

    def extend(self, path: _Path, text: tuple[int, ...], end: int) -> None:
        """Add tokens of `text` to a path, up to the position `end`; they are computed later."""
        start = max(path.length - self.base, 0)
        for place in range(start, end - self.base):
            self._holders[text[: place + 1]] = path
        if path is self.prompt and end > self.base:
            self.tokens[self.base + start :] = text[start : end - self.base]
        path.length = end


@dataclass(eq=False)
class Segment:
    """Tokens to compute in one batch, at the end of a path.

    Attributes
    ----------
    start : int
        Position of the first one.
    text : int or None
        The text of the job that ends here, whose logits are needed.
    shared : dict of int to int
        Other sequences that share these tokens, with the end position of each.
    """

    job: Job
    path: _Path
    start: int
    tokens: list[int]
    text: int | None
    shared: dict[int, int] = field(default_factory=dict)

    @property
    def positions(self) -> NDArray[np.int32]:
        """Positions of the tokens in the text."""
        return np.arange(self.start, self.start + len(self.tokens), dtype=np.int32)

    @property
    def sequences(self) -> list[list[int]]:
        """Sequences that each token belongs to."""
        return [
            [self.path.sequence, *(one for one, end in self.shared.items() if position < end)]
            for position in range(self.start, self.start + len(self.tokens))
        ]

    def share(self, path: _Path, branch: _Path, end: int) -> None:
        """Assign the tokens of `path` before position `end` to the sequence of `branch` as well."""
        if path is self.path:
            end = min(end, self.start + len(self.tokens))
        else:
            end = min(end, self.shared.get(path.sequence, 0))
        if end > self.start:
            self.shared[branch.sequence] = end

    def take(self, logits: SingleArray | None) -> None:
        """Mark the tokens as computed, and pass the logits on to the job."""
        self.path.computed = self.start + len(self.tokens)
        if self.text is not None and logits is not None:
            self.job.take(self.text, logits)


@dataclass(eq=False)
class Job:
    """Computation for one row: texts, and the future of their logits.

    Attributes
    ----------
    place : EnginePlace
        The row's place.
    prompt : list of int
        Tokens before every text of the row.
    texts : list of tuple of int
        Tokens behind the prompt.
    future : Future of list of ndarray
        Gets the logits behind every text.
    is_abandoned : bool
        True once the caller has cancelled it.
    """

    place: EnginePlace
    prompt: list[int]
    texts: list[tuple[int, ...]]
    future: Future[list[SingleArray]] = field(default_factory=Future)
    is_abandoned: bool = False
    _logits: dict[int, SingleArray] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """True once the logits of every text are computed."""
        return len(self._logits) == len(self.texts)

    def begin(self) -> None:
        """Begin the row in its part of the memory, unless an earlier job did so.

        Raises
        ------
        TooLongError
            Its prompt exceeds the capacity.
        """
        if not self.place.is_begun:
            self.place.begin(self.prompt, self.texts[0])

    def take(self, text: int, logits: SingleArray) -> None:
        """Record the logits behind a text; the last ones complete the future."""
        self._logits[text] = logits
        if self.is_done:
            self.future.set_result([self._logits[place] for place in range(len(self.texts))])

    def next_segments(self, batch: Sequence[Segment]) -> list[Segment]:
        """Return the segments of this job that fit into a batch with segments of other jobs.

        Raises
        ------
        TooLongError
            A text exceeds the capacity.
        """
        room = BATCH - sum(len(segment.tokens) for segment in batch)
        outputs = _OUTPUTS - sum(segment.text is not None for segment in batch)
        segments: list[Segment] = []
        # Sorted, so that texts with a common prefix follow each other, the shorter ones first.
        for text in sorted(range(len(self.texts)), key=self.texts.__getitem__):
            if text in self._logits:
                continue
            segment = None
            if room and outputs:
                segment = self._segment(text, room, segments)
            if segment is None:
                break
            segments.append(segment)
            room -= len(segment.tokens)
            outputs -= segment.text is not None
        return segments

    def _segment(self, text: int, room: int, earlier: Sequence[Segment]) -> Segment | None:
        """Return the next segment of a text; None if it has to wait for the next batch."""
        tokens = self.texts[text]
        place = self.place
        length = place.base + len(tokens)
        if length > place.n_ctx:
            raise TooLongError(length)
        path, shared = place.nearest(tokens)
        shared = min(shared, length - 1)  # the last token is always computed, for its logits
        end = min(length, shared + room)
        is_tip = shared == path.length
        if place.cells + end - shared > place.n_ctx or not (is_tip or place.free):
            if earlier:
                return None
            if not place.branches:
                raise TooLongError(place.cells + end - shared)
            place.drop_branches()
            return self._segment(text, room, earlier)
        behind = tokens[max(shared - place.base, 0) : max(end - place.base, 0)]
        new = [*place.tokens[shared : min(end, place.base)], *behind]
        if not is_tip:
            origin = path
            path = place.branch(path, shared)
            for segment in earlier:
                segment.share(origin, path, shared)
        place.extend(path, tokens, end)
        return Segment(self, path, shared, new, text if end == length else None)


_CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ABORTED: Final = 2


class EngineError(Exception):
    """Error for a computation that llama.cpp could not do, or that was aborted."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of an engine; clients with equal settings share one.

    Attributes
    ----------
    path : Path
        The weights file.
    n_ctx : int
        Longest prompt with its answer, in tokens.
    n_parallel : int
        Rows computed at the same time.
    n_threads : int
        Threads that compute.
    """

    path: Path
    n_ctx: int
    n_parallel: int
    n_threads: int


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Chat as tokens, with the text behind the last control token left as text.

    Attributes
    ----------
    tokens : list of int
        Tokens up to the last control token.
    tail : str
        The text behind it, where the answer begins.
    """

    tokens: list[int]
    tail: str


class Engine:
    """Loaded model with its compute thread.

    Rows take one of `n_parallel` places, first come, first served. One thread computes the pending texts of all rows in
    common batches. A row computed alone has the same results, to the last bit, whatever was computed before.
    (Measured with quantised weights; with 16 and 32 bits llama.cpp's matrix products depend on the batch.) Rows
    computed together may differ by rounding, as their tokens have another order in memory; that flips a few answers in
    a hundred, so `n_parallel` is 1 by default.

    Attributes
    ----------
    vocabulary : Vocabulary
        The model's tokens.
    holders : dict of int to weakref.finalize
        Finalizers of the clients that use it, by the client's identity.

    Parameters
    ----------
    settings : EngineSettings
        Weights file, context and threads.

    Raises
    ------
    ConfigurationError
        The engine is not installed or cannot load the file.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.holders: dict[int, weakref.finalize[..., object]] = {}
        self.settings = settings
        self._llama = llama()
        self._process = os.getpid()
        self._model, self._context = self._load()
        self._memory = self._llama.get_memory(self._context)
        self._tokens = self._llama.model_get_vocab(self._model)
        self.vocabulary = Vocabulary(self._llama.pieces(self._tokens))
        self._control_tokens = self._llama.control_tokens(self._tokens)
        self._control_texts = ControlTexts(self._control_tokens)
        source = self._llama.model_chat_template(self._model, None)
        self._template = ChatTemplate(source.decode() if source else _CHATML)
        bos = self._llama.vocab_bos(self._tokens)
        self._begin = [bos] if bos >= 0 and self._llama.vocab_get_add_bos(self._tokens) else []
        # The first place is taken first.
        self._idle = [
            EnginePlace.of(number, settings.n_parallel, n_ctx=settings.n_ctx, memory=self)
            for number in reversed(range(settings.n_parallel))
        ]
        self._waiting: deque[Future[EnginePlace]] = deque()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._running: list[Job] = []
        self._is_closed = False
        self._abort = self._llama.abortable(self._context)
        self._thread = threading.Thread(target=self._work, name="calibrant-llamacpp", daemon=True)
        self._thread.start()

    def _load(self) -> tuple[int, int]:
        settings = self.settings
        model = self._llama.load(settings.path)
        if model is None:
            raise ConfigurationError(
                f"{settings.path}: llama.cpp cannot load this model. The file may be damaged or too new."
            )
        decodes = self._llama.model_has_decoder(model) and not self._llama.model_has_encoder(model)
        if not decodes or self._llama.model_is_recurrent(model) or self._llama.model_is_hybrid(model):
            self._llama.model_free(model)
            raise ConfigurationError(
                f"{settings.path}: expected a model that reads from left to right by attention alone, got one of "
                "another kind, which cannot share the beginnings of texts: run it in a server of llama.cpp."
            )
        context = self._llama.context(
            model,
            n_ctx=settings.n_ctx * settings.n_parallel,
            n_batch=BATCH,
            n_seq_max=SEQUENCES,
            n_threads=settings.n_threads,
        )
        if context is None:
            self._llama.model_free(model)
            raise ConfigurationError(
                f"{settings.path}: expected memory for n_ctx={settings.n_ctx} x n_parallel={settings.n_parallel} "
                "tokens, got too little: lower them."
            )
        return model, context

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> Prompt:
        """Render a chat by the model's template, and tokenise it up to the template's last control token.

        Only the template's control tokens are recognised. A text between two of them is tokenised as a whole, the
        template's words together with a message, so an ordinary message has the tokens that the whole chat has.
        """
        *parts, tail = self._template.parts(messages, self._control_texts)
        tokens = list(self._begin)
        strips = False
        for text, control in zip(parts[::2], parts[1::2], strict=True):
            found = self._control_tokens[control.text]
            words = text.text.lstrip() if strips else text.text
            tokens += self.tokenize(words.rstrip() if found.strips_before else words)
            tokens.append(found.token)
            strips = found.strips_after
        return Prompt(tokens=tokens, tail=tail.text)

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Return the tokens of `text`; with `special`, control tokens in it are recognised."""
        return self._llama.tokens_of(self._tokens, text, special=special)

    def spells(self, text: str) -> bool:
        """Return whether `text` tokenises as ordinary text, without loss."""
        tokens = self.tokenize(text, special=True)
        spelled = b"".join(self.vocabulary.pieces[token] for token in tokens)
        return tokens == self.tokenize(text) and spelled.strip() == text.encode("utf-8", "replace").strip()

    def is_end(self, token: int) -> bool:
        """Return whether a token ends an answer."""
        return bool(self._llama.vocab_is_eog(self._tokens, token))

    def enter(self) -> Future[EnginePlace]:
        """Request memory for a row; return a future that resolves once some is free."""
        self._check_process()
        future: Future[EnginePlace] = Future()
        with self._lock:
            if self._idle:
                future.set_result(self._idle.pop())
            else:
                self._waiting.append(future)
        return future

    def leave(self, place: EnginePlace) -> None:
        """Release the memory of a row."""
        place.is_begun = False
        with self._lock:
            while self._waiting:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(place)
                    return
            self._idle.append(place)

    @cached_property
    def grammars(self) -> Grammars:
        """Compiler of grammars for this model's tokens."""
        end = self._llama.vocab_eos(self._tokens)
        ends = [token for token in range(len(self.vocabulary)) if self.is_end(token)]
        controls = [token for token, piece in enumerate(self.vocabulary.pieces) if not piece]
        return Grammars(
            self.vocabulary, end=end if end >= 0 else ends[0], controls=controls, tokenize=self.tokenize
        )

    @property
    def is_usable(self) -> bool:
        """True in the process that loaded the engine, until it is closed."""
        return os.getpid() == self._process and self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Queue a job; its future gets the result."""
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise EngineError("the model was closed")
            self._jobs.put(job)

    def abandon(self, job: Job) -> None:
        """Mark a job as cancelled; abort the running batch if all its jobs are cancelled."""
        job.is_abandoned = True
        with self._lock:
            if self._running and all(one.is_abandoned for one in self._running):
                self._abort.value = b"\1"

    def wake(self) -> None:
        """Wake the compute thread, which ends if no client holds the engine."""
        self._jobs.put(None)

    def close(self) -> None:
        """Free the model after the jobs submitted so far have ended."""
        if self.is_usable:
            with self._lock:
                self._is_closed = True
            self.wake()
            self._thread.join()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ConfigurationError(
                "Expected the embedded model in the process that loaded it, got a fork of that process, which has "
                "none of its threads: open the classifier in the new process, or start it with 'spawn'."
            )

    # The methods below run in the engine's thread.

    def _work(self) -> None:
        while True:
            taken = [self._jobs.get()]
            with suppress(queue.Empty):
                while len(taken) < self.settings.n_parallel and taken[-1] is not None:
                    taken.append(self._jobs.get_nowait())
            with self._lock:
                self._running = [
                    job for job in taken if job is not None and job.future.set_running_or_notify_cancel()
                ]
                self._abort.value = b""
            self._compute(self._running)
            with self._lock:
                self._running = []
            if taken[-1] is None and (self._is_closed or _retire(self)):
                break
        with self._lock:
            self._is_closed = True
        self._llama.free(self._context)
        self._llama.model_free(self._model)

    def _compute(self, jobs: Sequence[Job]) -> None:
        left = list(jobs)
        while left:
            try:
                self._step(left)
            except Exception as error:  # noqa: BLE001 (it is set on the futures of all jobs)
                self._fail(left, error)
                return
            left = [job for job in left if not job.future.done() and not job.is_abandoned]

    def _step(self, jobs: Sequence[Job]) -> None:
        """Compute one batch."""
        segments: list[Segment] = []
        for job in jobs:
            try:
                job.begin()
                segments += job.next_segments(segments)
            except TooLongError as error:  # the other rows go on
                self._fail([job], error)
        if not segments:
            return
        tokens = [token for segment in segments for token in segment.tokens]
        lasts = [end - 1 for end in accumulate(len(segment.tokens) for segment in segments)]
        has_logits = np.zeros(len(tokens), dtype=np.int8)
        for last, segment in zip(lasts, segments, strict=True):
            has_logits[last] = segment.text is not None
        code = self._llama.decode_tokens(
            self._context,
            np.array(tokens, dtype=np.int32),
            np.concatenate([segment.positions for segment in segments]),
            [sequences for segment in segments for sequences in segment.sequences],
            has_logits,
        )
        if code:
            raise EngineError(
                "the call was given up" if code == _ABORTED else f"llama_decode returned {code}"
            )
        for last, segment in zip(lasts, segments, strict=True):
            logits = None
            if segment.text is not None:
                logits = self._llama.logits(self._context, last, len(self.vocabulary)).copy()
            segment.take(logits)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        for job in jobs:
            job.place.forget()
            job.future.set_exception(error)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of one sequence into another."""
        if tokens:
            self._llama.memory_seq_cp(self._memory, source, target, 0, tokens)

    def cut(self, sequence: int, tokens: int) -> None:
        """Remove all but the first `tokens` tokens of a sequence."""
        self._llama.memory_seq_rm(self._memory, sequence, tokens, -1)


# Shared engines. Each is freed when its last client is closed or garbage-collected.
_open: dict[EngineSettings, Engine] = {}
# All of them, until their threads have ended: one that is cut off by the end of the process aborts it.
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_lock = threading.Lock()


def open_engine(settings: EngineSettings, *, holder: object) -> Engine:
    """Return the shared engine with these settings for `holder`; load the model if there is none."""
    with _lock:
        engine = _open.get(settings)
        if engine is None or not engine.is_usable:
            engine = _open[settings] = Engine(settings)
            _engines.add(engine)
        finalizer = engine.holders[id(holder)] = weakref.finalize(holder, _forget, engine, id(holder))
        finalizer.atexit = False
        return engine


def release_engine(engine: Engine, *, holder: object) -> None:
    """Unregister `holder` from `engine`, which is freed with its last holder."""
    finalizer = engine.holders.pop(id(holder), None)
    if finalizer is not None:
        finalizer.detach()
        if _retire(engine):
            engine.close()


def _forget(engine: Engine, holder: int) -> None:
    # A finalizer may run in any thread while that thread holds any lock: so this one takes no lock.
    engine.holders.pop(holder, None)
    engine.wake()


def _retire(engine: Engine) -> bool:
    """Remove `engine` from the shared engines and return True, or return False if a client holds it."""
    with _lock:
        if engine.holders:
            return False
        if _open.get(engine.settings) is engine:
            del _open[engine.settings]
        return True


@atexit.register
def _close_all() -> None:
    for engine in list(_engines):
        engine.close()
