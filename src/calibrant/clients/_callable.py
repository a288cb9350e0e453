"""Client for a function `messages -> response`."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from calibrant.clients._failures import translate
from calibrant.core._completion import CompletionRequest
from calibrant.core._errors import CalibrantError, ConfigurationError
from calibrant.core._prediction import LogprobSpace


class CallableClient:
    """Client that calls the user's own function.

    Parameters
    ----------
    function : callable
        Takes a list of message dicts, returns the provider's response (dict or SDK object).
        Coroutine functions are awaited; ordinary ones run side by side in threads, so they
        must be thread-safe.
    name : str, optional
        Shown in messages and results; by default the function's name.
    space : LogprobSpace or str, default "masked"
        Log-probability space of the responses.
    max_workers : int, default 10
        Calls of an ordinary function that run at the same time.

    Raises
    ------
    ConfigurationError
        `function` cannot be called, `space` is unknown or `max_workers` is below 1.
    """

    def __init__(
        self,
        function: Callable[[list[dict[str, str]]], object],
        *,
        name: str | None = None,
        space: LogprobSpace | str = LogprobSpace.MASKED,
        max_workers: int = 10,
    ) -> None:
        if not callable(function):
            raise ConfigurationError(f"Expected a function from messages to a response, got {function!r}.")
        if max_workers < 1:
            raise ConfigurationError(f"max_workers must be at least 1, got {max_workers}.")
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.space = LogprobSpace(space)
        self._function = function
        self._pool: ThreadPoolExecutor | None = None
        if not is_coroutine_function(function):
            self._pool = ThreadPoolExecutor(max_workers, thread_name_prefix="calibrant-call")

    async def complete(self, request: CompletionRequest) -> object:
        """Call the function with the request's messages and return its response.

        Raises
        ------
        ProviderError
            The function raised; ``retryable`` only for timeouts, connection errors and
            exceptions that carry HTTP status 408, 409, 425, 429 or 5xx.
        """
        messages = [dict(message) for message in request.messages]
        if self._pool is None:
            result = self._call(messages)
        else:
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._pool, context.run, self._call, messages)
        if not inspect.isawaitable(result):
            return result
        try:
            return await result
        except CalibrantError:
            raise
        except Exception as error:  # the seam: anything may come
            raise translate(error, provider=self.name) from error

    def close(self) -> None:
        """Wait for calls that run in threads, and cancel those in the queue."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _call(self, messages: list[dict[str, str]]) -> object:
        try:
            return self._function(messages)
        except CalibrantError:
            raise
        except Exception as error:  # in the thread: a future cannot carry StopIteration
            raise translate(error, provider=self.name) from error


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Return True if calling a function, or an object, returns a coroutine."""
    method = getattr(function, "__call__", None)  # noqa: B004 (asking what it is, not whether it exists)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)
