"""Interpretation of refused calls: content-policy refusals, unsupported parameters, missing access."""

from __future__ import annotations

import re
from typing import Any

from calibrant.clients._translate import message_and_code
from calibrant.core._errors import LogprobsUnsupportedError, ProviderError

_REFUSALS = frozenset(
    {
        "ContentPolicyViolationError",
        "RejectedRequestError",
        "GuardrailRaisedException",
        "BlockedPiiEntityError",
    }
)
_BLOCKED = ("content_policy_violation", "content_filter", "responsibleaipolicyviolation")
# Not as a key of JSON: a server that quotes the whole request does not complain about log-probabilities.
_NAMES_LOGPROBS = re.compile(r"logprobs(?!\"\s*:)")
# litellm's own messages for a missing key or library, often with status 500.
_NO_ACCESS = re.compile(
    r"missing (?:\w+ )?api[ _]key|missing credentials|unable to locate credentials|no module named"
    r"|api[ _]key\w* (?:client option must be set|is not set|is required)"
    r"|(?:incorrect|invalid|no) (?:x-)?api[ _-]key|api key not valid",
    re.IGNORECASE,
)
_CHECK_ACCESS = "Set the provider's key, or install the library that the message names."
_NO_PARAMETER = "Leave out what the model does not accept: options={'temperature': None} sends none."


def declined(error: Exception, found: ProviderError) -> bool:
    """Return whether the provider's content policy blocked the call."""
    if type(error).__name__ in _REFUSALS:
        return True
    return found.status == 400 and any(word in message_and_code(error) for word in _BLOCKED)


def refusal(error: ProviderError, model: str) -> dict[str, Any]:
    """Return a content-policy block as an OpenAI-shaped refusal."""
    message = {"role": "assistant", "content": None, "refusal": str(error)}
    choice = {"index": 0, "finish_reason": "content_filter", "message": message, "logprobs": None}
    return {"object": "chat.completion", "model": model, "choices": [choice]}


def advised(error: Exception, found: ProviderError) -> ProviderError:
    """Return `found` with advice to the user, where it names a parameter the model does not accept.

    Missing support for log-probabilities is systemic: every other call would fail alike.
    """
    message = str(found)
    refused_by_litellm = (
        type(error).__name__ == "UnsupportedParamsError"
    )  # whatever the text: no call was made
    if _NAMES_LOGPROBS.search(message):
        if type(found) is ProviderError and not found.retryable:
            return LogprobsUnsupportedError(_words(found), provider=found.provider, status=found.status)
        return _with_hint(found, LogprobsUnsupportedError.remedy(), systemic=not found.retryable)
    if refused_by_litellm or "nsupported" in message:
        return _with_hint(found, _NO_PARAMETER, systemic=refused_by_litellm)
    return found


def without_access(error: Exception, found: ProviderError) -> ProviderError:
    """Return `found` as a systemic fault where litellm lacks a key or a library.

    litellm reports a missing key as a server error with status 500, which would be retried.
    """
    denied = type(error).__name__ in {"AuthenticationError", "PermissionDeniedError"}
    if not denied and _NO_ACCESS.search(str(found)) is None:
        return found
    return _with_hint(found, None if found.systemic else _CHECK_ACCESS, systemic=True)


def _with_hint(found: ProviderError, hint: str | None, *, systemic: bool) -> ProviderError:
    return type(found)(
        _words(found),
        provider=found.provider,
        status=found.status,
        retryable=found.retryable and not systemic,
        retry_after=found.retry_after,
        hint=hint,
        systemic=systemic or found.systemic,
    )


def _words(found: ProviderError) -> str:
    """Return an error's message without the provider, and without litellm's advice on its own settings."""
    message, _, _ = str(found).removeprefix(f"{found.provider}: ").partition(" To drop these, set `litellm")
    return message
