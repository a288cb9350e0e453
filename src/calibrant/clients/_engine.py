"""Embedded llama.cpp engine: a loaded model, its cache of tokens, and its compute thread.

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
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np

from calibrant.clients._chat_template import ChatTemplate, ControlTexts
from calibrant.clients._generate import Grammars
from calibrant.clients._llama import llama
from calibrant.clients._places import BATCH, SEQUENCES, EnginePlace, Job, Segment, TooLongError
from calibrant.core._errors import ConfigurationError
from calibrant.core._tokens import Vocabulary

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
            EnginePlace.of(number, settings.n_parallel, n_ctx=settings.n_ctx)
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
                job.begin(memory=self)
                segments += job.next_segments(segments, memory=self)
            except TooLongError as error:  # the other rows go on
                self._fail([job], error)
        if not segments:
            return
        has_logits = np.zeros(sum(len(segment.tokens) for segment in segments), dtype=np.int8)
        ends = [end - 1 for end in accumulate(len(segment.tokens) for segment in segments)]
        has_logits[[end for end, segment in zip(ends, segments, strict=True) if segment.text is not None]] = 1
        code = self._llama.decode_tokens(
            self._context,
            np.concatenate([np.array(segment.tokens, dtype=np.int32) for segment in segments]),
            np.concatenate([segment.positions for segment in segments]),
            [sequences for segment in segments for sequences in segment.sequences],
            has_logits,
        )
        if code:
            raise EngineError(
                "the call was given up" if code == _ABORTED else f"llama_decode returned {code}"
            )
        for end, segment in zip(ends, segments, strict=True):
            logits = None
            if segment.text is not None:
                logits = self._llama.logits(self._context, end, len(self.vocabulary)).copy()
            segment.take(logits)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        for job in jobs:
            job.place.forget(memory=self)
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
_lock = threading.Lock()


def open_engine(settings: EngineSettings, *, holder: object) -> Engine:
    """Return the shared engine with these settings for `holder`; load the model if there is none."""
    with _lock:
        engine = _open.get(settings)
        if engine is None or not engine.is_usable:
            engine = _open[settings] = Engine(settings)
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
    for engine in list(_open.values()):
        engine.close()
