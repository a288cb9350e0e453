"""Quality of answers: judges, gates, heuristics and drift."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, TypeAlias, TypeVar

from calibrant.core._completion import Client, Completion, CompletionRequest, Message
from calibrant.core._errors import CalibrantError, ProviderError
from calibrant.core._prediction import Usage
from calibrant.core._reported import is_number
from calibrant.inference._embeddings import CachedEmbedder
from calibrant.inference._methods import call_deadline
from calibrant.inference.routed._provider import Breaker, priced
from calibrant.logprobs._completion import read_completion
from calibrant.routing._coherence import CoherenceMonitor
from calibrant.routing._quality import AnswerQuality, answer_quality

_LOG = logging.getLogger("calibrant")

Quality: TypeAlias = Callable[[Completion], float | None]
"""Quality of an answer, in [0, 1]; None where that is not known."""

_T = TypeVar("_T")

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

    Examples
    --------
    >>> HelperStats(calls=2, unusable=1).unusable
    1
    """

    calls: int = 0
    failures: int = 0
    unusable: int = 0
    usage: Usage = Usage()


@dataclass(eq=False)
class Helper:
    """Auxiliary model, such as a judge; a failed call gives None instead of an error.

    After three failures in a row it is left alone for a while, so that a model that is down does not cost every
    request its deadline.

    Attributes
    ----------
    client : Client
        The model.
    role : str
        Role of the model, for the log.
    seconds : float
        Time limit of a call, in seconds.
    clock : function
        Returns seconds.
    cost : float or None
        US dollars a call costs where its reply carries no price.
    """

    client: Client
    _: KW_ONLY
    role: str
    seconds: float
    clock: Callable[[], float]
    cost: float | None

    def __post_init__(self) -> None:
        self._breaker = Breaker(clock=self.clock)
        self._lock = threading.Lock()
        self.stats = HelperStats()
        self._warned = False

    async def ask(
        self,
        messages: tuple[Message, ...],
        response_format: Mapping[str, Any],
        read: Callable[[str], _T | None],
        *,
        paid: list[Usage],
    ) -> _T | None:
        """Return the reading of the reply, or None; the usage of the call, if there was one, is appended to `paid`."""
        turn = self._breaker.begin()
        if turn is None:
            return None
        request = CompletionRequest(messages=messages, response_format=response_format, top_logprobs=0)
        try:
            async with call_deadline(self.seconds, self.client.name):
                response = await self.client.complete(request)
            completion = read_completion(response)
        except CalibrantError as error:  # a schema that the model cannot obey is no reason to fail either
            if not isinstance(error, ProviderError):
                error = ProviderError(str(error), provider=self.client.name)
            self._breaker.failed(turn, error)
            self._count(Usage(), failures=1)
            paid.append(Usage())
            self._warn("failed", error)
            return None
        except BaseException:
            self._breaker.released(turn)
            raise
        self._breaker.succeeded(turn)
        usage = priced(completion.usage, self.cost)
        found = read(completion.text)
        self._count(usage, unusable=int(found is None))
        paid.append(usage)
        if found is None:
            self._warn("gave a reply that cannot be used", repr(completion.text[:80]))
        return found

    def _count(self, usage: Usage, *, failures: int = 0, unusable: int = 0) -> None:
        """Add one call to the counts."""
        with self._lock:
            old = self.stats
            self.stats = HelperStats(
                calls=old.calls + 1,
                failures=old.failures + failures,
                unusable=old.unusable + unusable,
                usage=old.usage + usage,
            )

    def _warn(self, what: str, detail: object) -> None:
        """Log a warning about the model's first problem; later problems are not logged."""
        with self._lock:
            first = not self._warned
            self._warned = True
        if first:
            _LOG.warning(
                "The %s model %s %s: %s. Requests go on without it.",
                self.role,
                self.client.name,
                what,
                detail,
            )


def heuristic(completion: Completion, assess: Callable[..., AnswerQuality] = answer_quality) -> float:
    """Return the heuristic quality of an answer, from its text."""
    return assess(completion.text, finish_reason=completion.finish_reason, refusal=completion.refusal).score


def guarded(quality: Quality) -> Quality:
    """Return the user's quality function, wrapped to give None for an exception or an invalid score."""
    warned = False

    def judged(completion: Completion) -> float | None:
        nonlocal warned
        try:
            score: object = quality(completion)
        except Exception as error:  # noqa: BLE001 (the user's function: anything may come)
            score = error
        if score is None:
            return None
        if is_number(score) and 0.0 <= score <= 1.0:
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
    """Background detection of drift; it sets a penalty for the provider's next observation.

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
        """Compare an answer with earlier ones in the background; ignore it if too many are queued."""
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
        """Return and reset the provider's penalty since its last observation, in [0, 1]."""
        with self._lock:
            return self._penalties.pop(provider, 0.0)

    def close(self) -> None:
        """Cancel pending comparisons."""
        with self._lock:
            self._closed = True
            tasks = self._tasks
            self._tasks = {}
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
    """Return the text of the last user message; empty if there is none."""
    return next((_content(found) for found in reversed(messages) if found.get("role") == "user"), "")


def question_of(messages: Sequence[Message]) -> str:
    """Return the texts of all messages, joined by blank lines."""
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
