"""A model that is asked about a request or an answer, and must not hold either up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.core._completion import Client, CompletionRequest, Message
from calibrant.core._errors import CalibrantError, ProviderError
from calibrant.core._prediction import Usage
from calibrant.inference._methods import call_deadline
from calibrant.inference.routed._health import Breaker
from calibrant.inference.routed._provider import priced
from calibrant.logprobs._completion import read_completion

_LOG = logging.getLogger("calibrant")


@dataclass(frozen=True, kw_only=True)
class HelperStats:
    """What became of the calls of a judge or a triage model.

    Attributes
    ----------
    calls : int
        Calls that ended.
    failures : int
        Those that failed or took too long.
    unusable : int
        Those whose reply could not be used.
    usage : Usage
        Tokens and cost of its replies.
    """

    calls: int = 0
    failures: int = 0
    unusable: int = 0
    usage: Usage = Usage()


class Helper:
    """Asks a model something in passing: whatever goes wrong, there is just no answer.

    After three failures in a row it is left alone for a while, so that a model that is down does not cost every
    request its deadline.

    Parameters
    ----------
    client : Client
        The model.
    role : str
        What it is there for, for the log.
    seconds : float
        How long it may take.
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
        """Return its reply, or None; what it took is added to `paid`."""
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
            self._failed(error)
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
        """Note that a reply could not be used."""
        with self._lock:
            self._unusable += 1
        self._warn("gave a reply that cannot be used", repr(reply[:80]))

    def stats(self) -> HelperStats:
        """Return what became of its calls."""
        with self._lock:
            return HelperStats(
                calls=self._calls, failures=self._failures, unusable=self._unusable, usage=self._usage
            )

    def _failed(self, error: ProviderError) -> None:
        with self._lock:
            self._calls += 1
            self._failures += 1
        self._warn("failed", error)

    def _warn(self, what: str, detail: object) -> None:
        """Say once that something is wrong."""
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
