"""Quality of answers: judges, gates, heuristics and drift."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from calibrant.core._completion import Client, Completion, CompletionRequest, Message
from calibrant.core._errors import CalibrantError, ProviderError
from calibrant.core._prediction import Usage
from calibrant.inference._embeddings import CachedEmbedder
from calibrant.inference._methods import call_deadline
from calibrant.inference.routed._health import Breaker
from calibrant.inference.routed._provider import priced
from calibrant.logprobs._completion import read_completion
from calibrant.routing._cascade import CascadeRouter, Ladder
from calibrant.routing._coherence import CoherenceMonitor, QualityGate
from calibrant.routing._quality import answer_quality
from calibrant.routing._replies import JUDGE_FORMAT, judge_messages, read_judgement

_LOG = logging.getLogger("calibrant")

Quality: TypeAlias = Callable[[Completion], float | None]
"""Quality of an answer, in [0, 1]; None where that is not known."""

_CHARACTERS_PER_TOKEN: Final = 4
_MOST_TASKS: Final = 64  # answers whose drift is being looked at


@dataclass(frozen=True, kw_only=True)
class HelperStats:
    """Counts of the calls of a judge or a triage model.

    Attributes
    ----------
    calls : int
        Calls that ended.
    failures : int
        Calls that failed or timed out.
    unusable : int
        Calls with an unusable reply.
    usage : Usage
        Tokens and cost of its replies.
    """

    calls: int = 0
    failures: int = 0
    unusable: int = 0
    usage: Usage = Usage()


class Helper:
    """Auxiliary model, such as a judge; a failed call returns None.

    After three failures in a row it is left alone for a while, so that a model that is down does not cost every
    request its deadline.

    Parameters
    ----------
    client : Client
        The model.
    role : str
        Role of the model, for the log.
    seconds : float
        Time limit of a call, in seconds.
    clock : function, default time.monotonic
        Returns seconds.
    cost : float, optional
        US dollars a call costs where its reply carries no price.
    """

    def __init__(
        self,
        client: Client,
        *,
        role: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        cost: float | None = None,
    ) -> None:
        self.client = client
        self._role = role
        self._seconds = seconds
        self._breaker = Breaker(clock=clock)
        self._cost = cost
        self._lock = threading.Lock()
        self._calls = self._failures = self._unusable = 0
        self._usage = Usage()
        self._warned = False

    async def ask(
        self, messages: tuple[Message, ...], response_format: Mapping[str, Any], *, paid: list[Usage]
    ) -> str | None:
        """Return the reply, or None; the usage is appended to `paid`."""
        turn = self._breaker.begin()
        if turn is None:
            return None
        request = CompletionRequest(messages=messages, response_format=response_format, top_logprobs=0)
        try:
            async with call_deadline(self._seconds, self.client.name):
                response = await self.client.complete(request)
            completion = read_completion(response)
        except CalibrantError as error:  # a schema that the model cannot obey is no reason to fail either
            if not isinstance(error, ProviderError):
                error = ProviderError(str(error), provider=self.client.name)
            self._breaker.failed(turn, error)
            with self._lock:
                self._calls += 1
                self._failures += 1
            self._warn("failed", error)
            return None
        except BaseException:
            self._breaker.released(turn)
            raise
        self._breaker.succeeded(turn)
        usage = priced(completion.usage, self._cost)
        with self._lock:
            self._calls += 1
            self._usage += usage
        paid.append(usage)
        return completion.text

    def useless(self, reply: str) -> None:
        """Count an unusable reply."""
        with self._lock:
            self._unusable += 1
        self._warn("gave a reply that cannot be used", repr(reply[:80]))

    def stats(self) -> HelperStats:
        """Return the counts of its calls."""
        with self._lock:
            return HelperStats(
                calls=self._calls, failures=self._failures, unusable=self._unusable, usage=self._usage
            )

    def _warn(self, what: str, detail: object) -> None:
        """Log the first problem."""
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            _LOG.warning(
                "The %s model %s %s: %s. Requests go on without it.",
                self._role,
                self.client.name,
                what,
                detail,
            )


@dataclass(frozen=True, kw_only=True)
class Assessor:
    """Assessment of answers: a cascade, a gate, or a reward function for the strategy.

    Attributes
    ----------
    cascade : CascadeRouter or None
        Its settings and its heuristic.
    judge : Helper or None
        A model that grades answers for the cascade.
    gate : QualityGate or None
        Compares an answer with its question; not beside a cascade.
    embedder : CachedEmbedder or None
        Embedder for the gate.
    quality : callable or None
        The user's function; a cascade falls back on its heuristic.
    """

    cascade: CascadeRouter | None = None
    judge: Helper | None = None
    gate: QualityGate | None = None
    embedder: CachedEmbedder | None = None
    quality: Quality | None = None

    def ladder(self) -> Ladder | None:
        """Return the escalation judge of one request; None if the first answer is taken."""
        if self.cascade is not None:
            return self.cascade.ladder()
        return None if self.gate is None else self.gate.ladder()

    async def worth(
        self, request: CompletionRequest, completion: Completion, *, alone: bool, paid: list[Usage]
    ) -> float | None:
        """Return the quality of an answer; None if unknown.

        Parameters
        ----------
        request : CompletionRequest
            The request.
        completion : Completion
            The answer.
        alone : bool
            True if it is the only answer and stays so, and is taken in any case.
        paid : list of Usage
            The judge's usage is added to it.
        """
        if self.gate is not None and self.embedder is not None:
            if alone:
                return None
            texts = (text_of(request.messages), completion.text)
            return self.gate.similarity(*await asyncio.gather(*map(self.embedder.embed_one, texts)))
        worth = None
        if self.judge is not None and not alone and completion.text.strip():
            messages = judge_messages(_question_of(request.messages), completion.text)
            reply = await self.judge.ask(messages, JUDGE_FORMAT, paid=paid)
            worth = None if reply is None else read_judgement(reply)
            if reply is not None and worth is None:
                self.judge.useless(reply)
        if worth is None and self.quality is not None:
            worth = self.quality(completion)
        if worth is None and self.cascade is not None:
            worth = self.cascade.assess(
                completion.text, finish_reason=completion.finish_reason, refusal=completion.refusal
            ).score
        return worth


def heuristic(completion: Completion) -> float | None:
    """Return the heuristic quality of an answer, from its text."""
    return answer_quality(
        completion.text, finish_reason=completion.finish_reason, refusal=completion.refusal
    ).score


def guarded(quality: Quality) -> Quality:
    """Wrap the user's function: an exception leaves the answer unjudged."""
    warned = False

    def judged(completion: Completion) -> float | None:
        nonlocal warned
        try:
            score: object = quality(completion)
        except Exception as error:  # noqa: BLE001 (the user's function: anything may come)
            score = error
        if score is None:
            return None
        if isinstance(score, int | float) and not isinstance(score, bool) and 0.0 <= score <= 1.0:
            return float(score)
        if not warned:
            warned = True
            _LOG.warning(
                "Expected a number in [0, 1] or None of the quality function, got %r; such an answer is not judged.",
                score,
            )
        return None

    return judged


class DriftWatch:
    """Drift detection in the background: a penalty for each provider's next observation.

    No request waits for it. While 64 answers are being embedded, further ones are not looked at.

    Parameters
    ----------
    monitor : CoherenceMonitor
        Compares answers.
    embedder : CachedEmbedder
        Embedder of the answers.
    """

    def __init__(self, monitor: CoherenceMonitor, embedder: CachedEmbedder) -> None:
        self._monitor = monitor
        self._embedder = embedder
        self._lock = threading.Lock()
        self._penalties: dict[str, float] = {}
        self._tasks: dict[asyncio.Task[None], asyncio.AbstractEventLoop] = {}
        self._closed = False

    def look_at(self, provider: str, text: str) -> None:
        """Queue an answer for comparison with earlier ones."""
        if not text.strip():
            return
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed or len(self._tasks) >= _MOST_TASKS:
                return
            task = loop.create_task(self._compare(provider, text))
            self._tasks[task] = loop
        task.add_done_callback(self._ended)

    def penalty(self, provider: str) -> float:
        """Pop the penalty since the provider's last observation, in [0, 1]."""
        with self._lock:
            return self._penalties.pop(provider, 0.0)

    def close(self) -> None:
        """Cancel pending comparisons."""
        with self._lock:
            self._closed = True
            tasks, self._tasks = self._tasks, {}
        for task, loop in tasks.items():
            with contextlib.suppress(RuntimeError):  # its loop is closed, and the task with it
                loop.call_soon_threadsafe(task.cancel)

    async def _compare(self, provider: str, text: str) -> None:
        vector = await self._embedder.embed_one(text)
        with self._lock:
            penalty = self._monitor.observe(provider, vector)
            if penalty > 0.0:
                self._penalties[provider] = max(penalty, self._penalties.get(provider, 0.0))

    def _ended(self, task: asyncio.Task[None]) -> None:
        with self._lock:
            self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # an embedder that raises has been told of; nobody else asks


def text_of(messages: Sequence[Message]) -> str:
    """Return the last user message; empty where there is none."""
    return next((_content(found) for found in reversed(messages) if found.get("role") == "user"), "")


def _question_of(messages: Sequence[Message]) -> str:
    """Return the texts of all messages, in order."""
    return "\n\n".join(filter(None, map(_content, messages)))


def tokens_of(messages: Sequence[Message]) -> int:
    """Return the estimated tokens of messages: a quarter of their characters, rounded up."""
    return -(-sum(len(_content(message)) for message in messages) // _CHARACTERS_PER_TOKEN)


def has_tools(request: CompletionRequest) -> bool:
    """Return True if a request offers tools, as ``tools`` or legacy ``functions``."""
    return bool(request.options.get("tools") or request.options.get("functions"))


def _content(message: Message) -> str:
    """Return a message's text, joining its parts if needed."""
    content: object = message.get("content")
    if isinstance(content, list | tuple):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)
