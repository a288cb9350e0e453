"""The seam between calibrant and whatever answers: one request in, one response out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from calibrant.core.distribution import LogprobSpace
from calibrant.core.prediction import Usage

__all__ = ["Client", "Completion", "CompletionRequest", "Message", "Token"]


Message = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """One call to a model.

    Attributes
    ----------
    messages : tuple of mappings
        Chat messages with ``role`` and ``content``.
    response_format : mapping or None
        OpenAI-style ``{"type": "json_schema", ...}``.
    top_logprobs : int
        Alternatives wanted per token; 0 asks for none.
    options : mapping
        Anything else to hand to the provider (``temperature``, ``max_tokens``, ...).
    """

    messages: tuple[Message, ...]
    response_format: Mapping[str, Any] | None = None
    top_logprobs: int = 5
    options: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Client(Protocol):
    """Something that answers chat requests.

    Attributes
    ----------
    name : str
        The model's name, as the user gave it.
    space : LogprobSpace
        What this model's log-probabilities are probabilities of.
    """

    name: str
    space: LogprobSpace

    async def complete(self, request: CompletionRequest) -> object:
        """Return the provider's response, unread.

        Raises
        ------
        ProviderError
            The call failed; foreign exceptions never pass this seam.
        """
        ...

    def close(self) -> None:
        """Free what the client holds; it is not used afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token.

    Attributes
    ----------
    data : bytes
        The token's bytes; several tokens may share one UTF-8 character.
    logprob : float
        Natural logarithm of its probability.
    top : tuple of (bytes, float)
        Reported alternatives, usually with the token itself among them.
    """

    data: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One provider-independent answer.

    Attributes
    ----------
    text : str
        What the model wrote.
    tokens : tuple of Token or None
        The emitted tokens with their log-probabilities; None where none were reported.
    finish_reason : str or None
        ``stop``, ``length``, ... as OpenAI names them, lower case.
    refusal : str or None
        The model's refusal, where the provider reports one.
    model : str or None
        The model that really answered.
    usage : Usage
        Tokens and cost.
    """

    text: str
    tokens: tuple[Token, ...] | None = None
    finish_reason: str | None = None
    refusal: str | None = None
    model: str | None = None
    usage: Usage = Usage()
