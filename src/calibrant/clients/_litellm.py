"""Clients for chat and for embeddings of every provider that litellm knows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.clients._endpoint import litellm_endpoint, warn_of_plain_http
from calibrant.clients._gates import CallGate, FirstCall, check_seconds
from calibrant.clients._redact import hide, secret_texts, spellings
from calibrant.clients._translate import advised, declined, refusal, translate, without_access
from calibrant.core._completion import CompletionRequest
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._installation import install_command
from calibrant.core._prediction import LogprobSpace

if TYPE_CHECKING:
    from types import ModuleType


_OPENAI: Final = "openai/"


class LiteLLMClient:
    """Client for every model name that litellm understands.

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
        check_seconds(timeout)
        self._gate = CallGate(max_concurrency)
        self.name = model
        self.endpoint = litellm_endpoint(model, options)
        self.space = LogprobSpace(space)
        self._options = {"temperature": 0, "timeout": timeout, **options}
        self._first = FirstCall()
        self._secrets = _secrets(options)
        warn_of_plain_http(self.endpoint or "", self._secrets)

    async def complete(self, request: CompletionRequest) -> object:
        """Return litellm's response; a content-policy block is returned as a refusal.

        Raises
        ------
        ProviderError
            The call failed. Nothing is retried here, and no parameter is dropped silently.
        """
        return await self._first.then(partial(self._call, request))

    async def _call(self, request: CompletionRequest) -> object:
        litellm = _litellm()
        arguments = self._arguments(request)
        async with self._gate.turn():
            try:
                return await litellm.acompletion(**arguments)
            except Exception as error:  # noqa: BLE001 (the seam: anything may come)
                failure = error
        translated = litellm_failure(failure, provider=self.name, options=self._options)
        if declined(failure, translated):
            return refusal(translated, self.name)
        raise translated from None  # the cause may hold a key

    def hidden(self, text: str) -> str:
        """Return a text of the provider with the client's secrets redacted."""
        return hide(text, self._secrets)

    def close(self) -> None:
        """Do nothing: litellm keeps its connections for the process."""

    def _arguments(self, request: CompletionRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
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


def litellm_failure(error: Exception, *, provider: str, options: Mapping[str, Any]) -> ProviderError:
    """Translate litellm's exception for a call with `options` into a `ProviderError` without secrets."""
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


class LiteLLMEmbedder:
    """Client for embeddings of texts, by any provider that litellm knows.

    Parameters
    ----------
    model : str
        A litellm model name (``text-embedding-3-small``, ``voyage/...``). With ``api_base``, a name without
        a provider that litellm knows means an OpenAI-compatible server, with or without ``openai/``; it
        needs no key.
    timeout : float, default 60
        Time limit of one attempt, in seconds; litellm makes three attempts with OpenAI-compatible servers.
    **options
        Handed to ``litellm.aembedding`` (``api_base``, ``api_key``, ``dimensions``, ...).

    Attributes
    ----------
    name : str
        The model, as it was named.
    dimension : int or None
        Length of a vector; None, since it is known only after a call.

    Raises
    ------
    ConfigurationError
        No provider is known for the name, or the timeout is out of range.
    """

    dimension: int | None = None

    def __init__(
        self,
        model: str,
        *,
        timeout: float = 60.0,
        **options: Any,  # noqa: ANN401 (litellm's own parameters)
    ) -> None:
        check_seconds(timeout)
        if options.get("base_url") and not options.get("api_base"):
            options["api_base"] = options.pop("base_url")
        self.name = model
        self._model = _litellm_name(model, options)
        own_server = self._model.startswith(_OPENAI) and options.get("api_base")
        if own_server and not options.get("api_key") and not os.environ.get("OPENAI_API_KEY"):
            options["api_key"] = "none"  # the library behind litellm insists on one
        self._options = {"timeout": timeout, **options}

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the vectors of some texts, shape (n, d).

        Raises
        ------
        ProviderError
            The call failed, or its answer is not one vector per text.
        """
        arguments = {**self._options, "model": self._model, "input": list(texts)}
        try:
            # Asked for no retries, litellm still tries OpenAI's interface three times.
            response = await _litellm().aembedding(**arguments, num_retries=0, max_retries=0)
        except Exception as error:  # noqa: BLE001 (the seam: anything may come)
            failure = error
        else:
            return embedding_matrix(_vectors(response), count=len(texts), provider=self.name)
        # The cause may hold a key.
        raise litellm_failure(failure, provider=self.name, options=self._options) from None

    def close(self) -> None:
        """Do nothing: litellm keeps its connections for the process."""


def embedding_matrix(rows: ArrayLike | None, *, count: int, provider: str) -> NDArray[np.float64]:
    """Return the vectors of an answer as a matrix, shape (`count`, d).

    Raises
    ------
    ProviderError
        The answer has another shape, or holds something else than numbers.
    """
    try:
        matrix = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise ProviderError(
            "Expected vectors of numbers, all of one length, got something else.", provider=provider
        ) from None
    if matrix.ndim != 2 or len(matrix) != count:
        raise ProviderError(
            f"Expected one vector per text, shape ({count}, d), got {matrix.shape}.", provider=provider
        )
    return matrix


def _litellm_name(model: str, options: Mapping[str, Any]) -> str:
    """Return litellm's name of a model; raise ConfigurationError if litellm does not know the model."""
    base = options.get("api_base")
    try:
        _litellm().get_llm_provider(
            model, custom_llm_provider=options.get("custom_llm_provider"), api_base=base
        )
    except Exception:  # noqa: BLE001 (litellm raises what a server would)
        if base and model.strip():
            return _OPENAI + model
        raise ConfigurationError(
            f"Expected a model of embeddings that litellm knows, got {model!r:.80}: write it with its provider "
            "(openai/text-embedding-3-small), or give the api_base of the server."
        ) from None
    return model


def _vectors(response: object) -> list[Any] | None:
    """Return the vectors of a response in the order of the texts; None if there are none."""
    entries = getattr(response, "data", None)
    if not isinstance(entries, list):
        return None
    fields = [entry if isinstance(entry, Mapping) else vars(entry) for entry in entries]
    if all(isinstance(entry.get("index"), int) for entry in fields):
        fields.sort(key=lambda entry: int(entry["index"]))
    return [entry.get("embedding") for entry in fields]
