"""Embeddings by every provider that litellm knows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.clients._litellm import _litellm, litellm_failure
from calibrant.core._errors import ConfigurationError, ProviderError

_OPENAI: Final = "openai/"


class LiteLLMEmbedder:
    """Embedder of texts by a provider's embedding interface.

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
        if not timeout > 0:
            raise ConfigurationError(f"Expected timeout to be above 0 seconds, got {timeout!r}.")
        if options.get("base_url") and not options.get("api_base"):
            options["api_base"] = options.pop("base_url")
        self.name = model
        self._model = _litellm_name(model, options)
        self._timeout = timeout
        self._options = options
        if _keyless(self._model, options):
            self._options = options | {"api_key": "none"}  # the library behind litellm insists on one

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the vectors of some texts, shape (n, d).

        Raises
        ------
        ProviderError
            The call failed, or its answer is not one vector per text.
        """
        arguments = {"timeout": self._timeout, **self._options, "model": self._model, "input": list(texts)}
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
        """Nothing to free: litellm keeps its connections for the process."""


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
    """Return the name under which litellm knows the model; raise ConfigurationError if it knows none."""
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


def _keyless(model: str, options: Mapping[str, Any]) -> bool:
    own_server = model.startswith(_OPENAI) and bool(options.get("api_base"))
    return own_server and not options.get("api_key") and not os.environ.get("OPENAI_API_KEY")


def _vectors(response: object) -> list[Any] | None:
    """Return the vectors of a response in the order of the texts; None where there are none."""
    entries = getattr(response, "data", None)
    if not isinstance(entries, list):
        return None
    fields = [entry if isinstance(entry, Mapping) else vars(entry) for entry in entries]
    if all(isinstance(entry.get("index"), int) for entry in fields):
        fields.sort(key=lambda entry: int(entry["index"]))
    return [entry.get("embedding") for entry in fields]
