"""The calls of an examination: one after the other, counted and timed, never retried."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from calibrant.core._completion import (
    Client,
    CompletionRequest,
    Continuation,
    LabelContinuation,
    LabelLogprobs,
    Message,
    NextTokens,
)
from calibrant.core._errors import CalibrantError, ProviderError
from calibrant.inference.doctor._task import SCHEMA, Reading, read

_T = TypeVar("_T")

# Statuses below 500 that are about the account, the address or the moment, not about the request.
_NOT_ABOUT_THE_REQUEST: Final = frozenset({401, 402, 403, 404, 407, 408, 409, 425, 429})


@dataclass(frozen=True)
class Failed:
    """A call that brought no answer.

    Attributes
    ----------
    reason : str
        What the provider said.
    """

    reason: str


class Lacking(Failed):
    """What a server has no way for, and is not asked for by default."""


class Calls:
    """Makes calls and keeps count.

    Parameters
    ----------
    client : Client
        The model under examination.
    options : mapping
        Sent with every call.
    on_call : callable, optional
        Called with the number of every call, from 1, before it is made.

    Attributes
    ----------
    made : int
        Calls made so far.
    seconds : list of float
        Wall time of those that were answered, in seconds.
    first_error : ProviderError or None
        The first failure.
    """

    def __init__(
        self, client: Client, options: Mapping[str, Any], *, on_call: Callable[[int], None] | None = None
    ) -> None:
        self.client = client
        self.made = 0
        self.seconds: list[float] = []
        self.first_error: ProviderError | None = None
        # Greedy, whatever the user's own temperature; None says that the model takes none.
        temperature = {} if options.get("temperature", 0) is None else {"temperature": 0}
        self._options = {**options, **temperature}
        self._on_call = on_call

    async def classify(self, messages: tuple[Message, ...], *, top_logprobs: int) -> Reading | Failed:
        """Ask a question of the built-in task under its schema."""
        answer = await self.ask(messages, top_logprobs=top_logprobs, response_format=SCHEMA)
        return answer if isinstance(answer, Failed) else read(answer)

    async def ask(
        self,
        messages: tuple[Message, ...],
        *,
        top_logprobs: int = 0,
        response_format: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> object | Failed:
        """Return the response to one request, unread.

        Raises
        ------
        ProviderError
            Nothing was answered so far, and the failure is not about what this request asks for: other
            requests would meet it too.
        """
        request = CompletionRequest(
            messages=messages,
            response_format=response_format,
            top_logprobs=top_logprobs,
            options={**self._options, **(extra or {})},
        )
        return await self._made(lambda: self.client.complete(request))

    async def next_tokens(self, row: Continuation, text: str) -> NextTokens | Failed:
        """Return what may follow `text` in a row; errors as `ask`."""
        return await self._made(lambda: row.next_tokens(text))

    async def label_logprobs(
        self, row: LabelContinuation, text: str, values: Sequence[str]
    ) -> LabelLogprobs | Failed:
        """Return how probable each label is after `text` in a row; errors as `ask`."""
        return await self._made(lambda: row.label_logprobs(text, values))

    async def _made(self, call: Callable[[], Awaitable[_T]]) -> _T | Failed:
        self.made += 1
        if self._on_call is not None:
            self._on_call(self.made)
        start = time.perf_counter()
        try:
            answer = await call()
        except (SystemExit, KeyboardInterrupt) as error:
            # Either would end the event loop, and every later call would wait for ever.
            raise CalibrantError(f"{self.client.name}: the model raised {error!r}.") from error
        except ProviderError as error:
            if not self.seconds and not _about_the_request(error):
                raise
            self.first_error = self.first_error or error
            return Failed(str(error).removeprefix(f"{error.provider}: "))
        self.seconds.append(time.perf_counter() - start)
        return answer


def _about_the_request(error: ProviderError) -> bool:
    """Return whether the server refused what this request asks for, so that another may be answered."""
    return (
        error.status is not None and 400 <= error.status < 500 and error.status not in _NOT_ABOUT_THE_REQUEST
    )
