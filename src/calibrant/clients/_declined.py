"""What a provider's refusal of a call means: an answer after all, or advice."""

from __future__ import annotations

from typing import Any

from calibrant.clients._translate import told
from calibrant.core import ProviderError

__all__ = ["advised", "declined", "refusal"]

_REFUSALS = frozenset(
    {
        "ContentPolicyViolationError",
        "RejectedRequestError",
        "GuardrailRaisedException",
        "BlockedPiiEntityError",
    }
)
_BLOCKED = ("content_policy_violation", "content_filter", "responsibleaipolicyviolation")
_NO_LOGPROBS = (
    "This model gives no token log-probabilities through this provider: set top_logprobs to 0 to "
    "classify without confidence, or choose a model that reports them."
)
_NO_PARAMETER = "Leave out what the model does not accept: options={'temperature': None} sends none."


def declined(error: Exception, found: ProviderError) -> bool:
    """Return whether the provider's content policy answered instead of the model."""
    if type(error).__name__ in _REFUSALS:
        return True
    return found.status == 400 and any(word in told(error) for word in _BLOCKED)


def refusal(error: ProviderError, model: str) -> dict[str, Any]:
    """Return the answer of a content policy in OpenAI's shape."""
    message = {"role": "assistant", "content": None, "refusal": str(error)}
    choice = {"index": 0, "finish_reason": "content_filter", "message": message, "logprobs": None}
    return {"object": "chat.completion", "model": model, "choices": [choice]}


def advised(error: Exception, found: ProviderError) -> ProviderError:
    """Return `found` with what the user can do, where it names a parameter the model does not accept."""
    message = str(found)
    unsupported = type(error).__name__ == "UnsupportedParamsError" or "nsupported" in message
    if "logprobs" in message:
        hint = _NO_LOGPROBS
    elif unsupported:
        hint = _NO_PARAMETER
    else:
        return found
    return type(found)(
        message.removeprefix(f"{found.provider}: "),
        provider=found.provider,
        status=found.status,
        retryable=found.retryable,
        retry_after=found.retry_after,
        hint=hint,
        systemic=found.systemic,
    )
