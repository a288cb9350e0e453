"""Client for every provider that litellm knows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from calibrant.clients._callable import parse_space
from calibrant.clients._declined import advised, declined, refusal, without_access
from calibrant.clients._endpoint import litellm_endpoint, warn_of_plain_http
from calibrant.clients._first_call import FirstCall
from calibrant.clients._open_files import calls_that_fit, say_that_calls_wait
from calibrant.clients._redact import hide, secret_texts, spellings
from calibrant.clients._translate import translate
from calibrant.core._completion import CompletionRequest
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._installation import install_command

if TYPE_CHECKING:
    from types import ModuleType

# Default for concurrent calls per event loop; each has a socket.
_CALLS: Final = 256


class LiteLLMClient:
    """Client for every model name litellm understands.

    Parameters
    ----------
    model : str
        A litellm model name (``gpt-4.1-mini``, ``anthropic/...``, ``openai/...`` with ``api_base``).
    timeout : float, default 60
        Time limit of one call, in seconds.
    max_concurrency : int, optional
        Calls in flight at the same time, per event loop; by default 256. Fewer where the process may not open that
        many files.
    space : LogprobSpace or str, default "masked"
        Log-probability space of the provider.
    **options
        Handed to ``litellm.acompletion`` (``api_base``, ``api_key``, ``seed``, ...). Temperature is 0
        unless it is named here; None leaves it out.

    Attributes
    ----------
    endpoint : str or None
        The address of the server without credentials, where options or environment name one.

    Raises
    ------
    ConfigurationError
        A parameter is out of range.
    """

    def __init__(
        self,
        model: str,
        *,
        timeout: float = 60.0,
        max_concurrency: int | None = None,
        space: LogprobSpace | str = LogprobSpace.MASKED,
        **options: Any,  # noqa: ANN401 (litellm's own parameters)
    ) -> None:
        if not timeout > 0:
            msg = f"timeout must be above 0 seconds, got {timeout}."
            raise ConfigurationError(msg)
        if max_concurrency is not None and max_concurrency < 1:
            msg = f"max_concurrency must be at least 1, got {max_concurrency}."
            raise ConfigurationError(msg)
        self.name = model
        self.endpoint = litellm_endpoint(model, options)
        self.space = parse_space(space)
        self._timeout = timeout
        self._options = options
        self._limit = max_concurrency
        self._first = FirstCall()
        self._secrets = _secrets(options)
        warn_of_plain_http(self.endpoint or "", self._secrets)
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def complete(self, request: CompletionRequest) -> object:
        """Return litellm's response; a content-policy block comes back as a refusal.

        Raises
        ------
        ProviderError
            The call failed. Nothing is retried here, and no parameter is dropped silently.
        """
        return await self._first.then(partial(self._call, request))

    async def _call(self, request: CompletionRequest) -> object:
        litellm = _litellm()
        arguments = self._arguments(request)
        async with self._gate():
            try:
                return await litellm.acompletion(**arguments)
            except Exception as error:  # noqa: BLE001 (the seam: anything may come)
                failure = error
        translated = litellm_failure(failure, provider=self.name, options=self._options)
        if declined(failure, translated):
            return refusal(translated, self.name)
        raise translated from None  # the cause may hold a key

    def hidden(self, text: str) -> str:
        """Return a text of the provider without the client's secrets."""
        return hide(text, self._secrets)

    def close(self) -> None:
        """Nothing to free: litellm keeps its connections for the process."""

    def _arguments(self, request: CompletionRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "temperature": 0,
            "timeout": self._timeout,
            **self._options,
            **request.options,
            "model": self.name,
            "messages": [dict(message) for message in request.messages],
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": False,
        }
        if request.response_format is not None:
            arguments["response_format"] = dict(request.response_format)
        if request.top_logprobs > 0:
            arguments |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        return {name: value for name, value in arguments.items() if value is not None}

    def _gate(self) -> AbstractAsyncContextManager[object]:
        limit = self._limit or _CALLS
        calls = calls_that_fit(limit)
        gate = self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(calls))
        if calls < limit and gate.locked():
            say_that_calls_wait(calls)
        return gate


def litellm_failure(error: Exception, *, provider: str, options: Mapping[str, Any]) -> ProviderError:
    """Translate litellm's exception for a call with `options` into a `ProviderError` that shows no key."""
    failure = translate(error, provider=provider, secrets=_secrets(options))
    return advised(error, without_access(error, failure))


def _secrets(options: Mapping[str, Any]) -> list[str]:
    return [spelling for secret in secret_texts(options) for spelling in spellings(secret)]


def _litellm() -> ModuleType:
    # Importing litellm downloads a price list unless told not to.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm  # noqa: PLC0415 (two seconds to import)
    except ImportError as error:
        msg = f"litellm is needed for this model name: {install_command()} ({error})."
        raise ConfigurationError(msg) from error
    litellm.suppress_debug_info = True  # it prints advice to standard output otherwise
    module: ModuleType = litellm
    return module
