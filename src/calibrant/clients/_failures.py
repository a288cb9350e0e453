"""Failures of calls as `ProviderError`, content-policy blocks, and what is left of rate limits."""

from __future__ import annotations

import contextlib
import errno
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from calibrant.clients._endpoint import key_variable, redact
from calibrant.core._errors import (
    ContextLengthError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.core._reported import reported_mapping

# Names of base classes of one kind of failure, by the module that defines them. A module that nobody has loaded has
# raised nothing, and is not loaded for this.
_RATE_LIMITS = {"openai": "RateLimitError", "anthropic": "RateLimitError"}
_TIMEOUTS = {
    "openai": "APITimeoutError",
    "anthropic": "APITimeoutError",
    "httpx": "TimeoutException",
    "requests": "Timeout",
    "urllib3.exceptions": "TimeoutError",
    "botocore.exceptions": "ConnectTimeoutError ReadTimeoutError",
}
_TOO_LONG = {"litellm.exceptions": "ContextWindowExceededError"}
_CONNECTIONS = {
    "openai": "APIConnectionError",
    "anthropic": "APIConnectionError",
    "httpx": "TransportError",
    "aiohttp": "ClientConnectionError",
    "requests": "ConnectionError",
    "urllib3.exceptions": "NewConnectionError ProtocolError",
    "botocore.exceptions": "ConnectionError",
}
_REFUSALS = {
    "litellm.exceptions": (
        "ContentPolicyViolationError RejectedRequestError GuardrailRaisedException BlockedPiiEntityError"
    )
}
_UNREADABLE = {"pydantic_core": "ValidationError"}
_UNSUPPORTED = {"litellm.exceptions": "UnsupportedParamsError"}
_DENIED = {
    "litellm.exceptions": "AuthenticationError PermissionDeniedError",
    "openai": "AuthenticationError PermissionDeniedError",
    "anthropic": "AuthenticationError PermissionDeniedError",
}

_STATUS = re.compile("[0-9]{3}")
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
_MESSAGE_LIMIT = 500
_LONG_WAIT = 60.0  # seconds; shorter ones are waited for
_LONGEST_CHAIN = 10  # of exceptions; a library may close a circle
# What follows is looked for in codes and messages: status 429 means both too many requests and no more credit, status
# 400 anything, and servers that speak the same protocol give their code in the body, in the message, or not at all.
_OUT_OF_CREDIT = ("insufficient_quota", "exceeded your current quota", "credit balance is too low")
# Messages of status 400 for faults that most servers report with 401 or 404.
_WRONG_SETUP = ("model_not_found", "invalid_api_key", "api key not valid")
_HINTS = {
    401: "Check the API key.",
    402: "Check the account's credit.",
    403: "Check what the API key may use.",
    404: "Check the model's name and the address.",
}
_BLOCKED = ("content_policy_violation", "content_filter", "responsibleaipolicyviolation")
# Statuses below 500 that are about the account, the address or the moment, not about the request.
NOT_ABOUT_THE_REQUEST = frozenset({401, 402, 403, 404, 407, 408, 409, 425, 429})
# No server has a code for log-probabilities that it does not know.
# Not as a key of JSON: a server that quotes the whole request does not complain about log-probabilities.
_NAMES_LOGPROBS = re.compile(r"logprobs(?!\"\s*:)")
# litellm's own messages for a missing key or library, often with status 500: it has no type for either.
_NO_ACCESS = re.compile(
    r"missing (?:\w+ )?api[ _]key|missing credentials|unable to locate credentials|no module named"
    r"|api[ _]key\w* (?:client option must be set|is not set|is required)"
    r"|(?:incorrect|invalid|no) (?:x-)?api[ _-]key|api key not valid",
    re.IGNORECASE,
)
_CHECK_ACCESS = "Set the provider's key, or install the library that the message names."
_NO_PARAMETER = "Leave out what the model does not accept: options={'temperature': None} sends none."


def translate(error: BaseException, *, provider: str, secrets: Iterable[object] = ()) -> ProviderError:
    """Translate an exception into a `ProviderError`.

    HTTP status and ``Retry-After`` are read from the attributes that libraries share, the kind of failure (timeout,
    connection) from the type: a callable may raise the exceptions of Python itself, openai, anthropic, httpx,
    aiohttp, requests, urllib3, botocore and litellm, or its own with a status.

    Parameters
    ----------
    error : exception
        Exception of any library.
    provider : str
        Model or endpoint, as the user named it.
    secrets : iterable, default ()
        Values to hide in the message.
    """
    if isinstance(error, ProviderError):
        return error
    status = status_of(error)
    message = _message(error, secrets, status=status)
    if status == 429 or _is_one_of(error, _RATE_LIMITS):
        return _rate_limit(error, message, provider)
    if status in {408, 504} or isinstance(error, TimeoutError) or _is_one_of(error, _TIMEOUTS):
        return ProviderTimeoutError(message, provider=provider, status=status, retryable=True)
    if _is_one_of(error, _TOO_LONG) or "context_length_exceeded" in message_and_code(error):
        return ContextLengthError(message, provider=provider, status=status)
    is_passing = isinstance(error, ConnectionError) or _is_one_of(error, _CONNECTIONS)
    if status is not None:
        is_passing = status in _RETRYABLE_STATUS or status >= 500
    failure = ProviderError(
        message,
        provider=provider,
        status=status,
        retryable=is_passing,
        retry_after=retry_after_seconds(error),
        hint=_hint(status, provider),
        systemic=status == 400 and any(word in message_and_code(error) for word in _WRONG_SETUP),
    )
    failure.connection_refused = _is_connection_refused(error)
    return failure


def _hint(status: int | None, provider: str) -> str | None:
    """Return the advice for a status, with the variable of a refused key where that is known."""
    variable = key_variable(provider)
    if status == 401 and variable is not None:
        return f"Check the API key: {variable}, or the option api_key."
    return None if status is None else _HINTS.get(status)


def _is_one_of(error: BaseException, kinds: Mapping[str, str]) -> bool:
    """Return True if the error is of one of these types, given by module and names."""
    for module, names in kinds.items():
        library = sys.modules.get(module)
        types = [getattr(library, name, None) for name in names.split()]
        if isinstance(error, tuple(kind for kind in types if isinstance(kind, type))):
            return True
    return False


def _is_connection_refused(error: BaseException) -> bool:
    """Return whether the error, or one that it was raised for, says that nothing listens at an address."""
    return any(isinstance(link, OSError) and link.errno == errno.ECONNREFUSED for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return an error and those that it was raised for, the last one first."""
    link: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP error status that `error` carries, or None."""
    response = getattr(error, "response", None)
    for holder in (error, response):
        for attribute in ("status_code", "status", "http_status", "code"):
            value = as_status(getattr(holder, attribute, None))
            if value is not None:
                return value
    return None


def retry_after_seconds(error: object) -> float | None:
    """Return the seconds of the server's ``Retry-After`` header, or None without one."""
    for headers in _headers(error):
        by_name = {str(name).lower(): str(value) for name, value in headers.items()}
        milliseconds = by_name.get("retry-after-ms")
        seconds = seconds_until(f"{milliseconds}ms" if milliseconds else by_name.get("retry-after", ""))
        if seconds is not None:
            return seconds
    return None


def _headers(error: object) -> Iterator[Mapping[str, object]]:
    for holder in (getattr(error, "response", None), error):
        for attribute in ("headers", "litellm_response_headers"):
            headers = getattr(holder, attribute, None)
            if isinstance(headers, Mapping):
                yield headers


def message_and_code(error: BaseException) -> str:
    """Return the message and the error code in lower case; some libraries keep the code apart."""
    code = reported_mapping(getattr(error, "body", None)).get("code")
    return f"{error} {code or ''}".lower()


def as_status(value: object) -> int | None:
    """Return an HTTP error status, given as a number or as text; None for anything else."""
    if isinstance(value, str) and _STATUS.fullmatch(value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
        return int(value)
    return None


def _rate_limit(error: BaseException, message: str, provider: str) -> RateLimitError:
    out_of_credit = any(word in message_and_code(error) for word in _OUT_OF_CREDIT)
    retry_after = retry_after_seconds(error)
    state = next(filter(None, map(reported_state, _headers(error))), None)
    if retry_after is None and state is not None:
        retry_after = state.spent_seconds  # until an exhausted rate limit is reset
    hint = None
    if out_of_credit:
        hint = "Check the account's credit."
    elif retry_after is not None and retry_after > _LONG_WAIT:
        hint = f"The server asks to wait {math.ceil(retry_after / 60.0)} min: run this again then."
    return RateLimitError(
        message,
        provider=provider,
        status=429,
        retryable=not out_of_credit,
        retry_after=retry_after,
        hint=hint,
    )


def _message(error: BaseException, secrets: Iterable[object], *, status: int | None) -> str:
    words, _, _ = str(error).partition("Traceback (most recent call last)")
    text = " ".join(redact(words, secrets=secrets).split())
    if len(text) > _MESSAGE_LIMIT:
        text = text[:_MESSAGE_LIMIT] + "..."
    name = type(error).__name__
    # litellm leaves out the status; one of 500 may be its own, where nobody answered.
    if status is not None and status < 500 and re.search(rf"\b{status}\b", text) is None:
        name = f"{name} ({status})"
    return f"{name}: {text}" if text else name


def declined(error: Exception, found: ProviderError) -> bool:
    """Return whether the provider's content policy blocked the call."""
    if _is_one_of(error, _REFUSALS):
        return True
    return found.status == 400 and any(word in message_and_code(error) for word in _BLOCKED)


def refusal(error: ProviderError, model: str) -> dict[str, Any]:
    """Return a content-policy block as a refusal in OpenAI's format."""
    message = {"role": "assistant", "content": None, "refusal": str(error)}
    choice = {"index": 0, "finish_reason": "content_filter", "message": message, "logprobs": None}
    return {"object": "chat.completion", "model": model, "choices": [choice]}


def only_refuses(error: Exception) -> bool:
    """Return whether litellm could not read a decision model's response for the questions that it refuses alone.

    litellm knows no refusal on the wire of System One. What pydantic says of each member that it could not read is
    all that is left of the response.
    """
    for link in _chain(error):
        if _is_one_of(link, _UNREADABLE):
            members = [reported_mapping(found.get("input")) for found in link.errors()]  # type: ignore[attr-defined]
            return all(member.get("type") == "refusal" for member in members)
    return False


def advised(error: Exception, found: ProviderError) -> ProviderError:
    """Return the error, with advice if the model does not accept a parameter.

    Missing support for log-probabilities is systemic: every other call would fail alike.
    """
    message = str(found)
    # Whatever the text: no call was made.
    refused_by_litellm = _is_one_of(error, _UNSUPPORTED)
    if _NAMES_LOGPROBS.search(message):
        if type(found) is ProviderError and not found.retryable:
            return LogprobsUnsupportedError(_error_words(found), provider=found.provider, status=found.status)
        return with_hint(found, LogprobsUnsupportedError.remedy(), systemic=not found.retryable)
    # Servers refuse a parameter with status 400 and words alone.
    if refused_by_litellm or "nsupported" in message:
        return with_hint(found, _NO_PARAMETER, systemic=refused_by_litellm)
    return found


def without_access(error: Exception, found: ProviderError) -> ProviderError:
    """Return the error, marked as systemic if litellm lacks a key or a library.

    litellm reports a missing key as a server error with status 500, which would be retried.
    """
    if not _is_one_of(error, _DENIED) and _NO_ACCESS.search(str(found)) is None:
        return found
    return with_hint(found, None if found.systemic else _CHECK_ACCESS, systemic=True)


def with_hint(found: ProviderError, hint: str | None, *, systemic: bool) -> ProviderError:
    """Return an error with a hint; a systemic one is not retried."""
    return type(found)(
        _error_words(found),
        provider=found.provider,
        status=found.status,
        retryable=found.retryable and not systemic,
        retry_after=found.retry_after,
        hint=hint or found.hint,
        systemic=systemic or found.systemic,
    )


def _error_words(found: ProviderError) -> str:
    """Return the message of a litellm error, without the provider's name and litellm's own advice."""
    message, _, _ = found.summary.removeprefix(f"{found.provider}: ").partition(
        " To drop these, set `litellm"
    )
    return message


@dataclass(frozen=True, kw_only=True)
class RateState:
    """Remaining rate limits of a provider, as reported with an answer.

    Attributes
    ----------
    remaining_requests : int or None
        Remaining requests; None where the provider does not report them.
    reset_requests_seconds : float or None
        Seconds until the limit of requests is reset, 0 or more.
    remaining_tokens : int or None
        Remaining tokens; the smallest number, where several kinds are counted.
    reset_tokens_seconds : float or None
        Seconds until the limit of tokens is reset, 0 or more.
    """

    remaining_requests: int | None
    reset_requests_seconds: float | None = None
    remaining_tokens: int | None = None
    reset_tokens_seconds: float | None = None

    @property
    def spent_seconds(self) -> float | None:
        """Seconds until an exhausted limit is reset; None if no limit is exhausted."""
        waits = (
            (self.remaining_requests, self.reset_requests_seconds),
            (self.remaining_tokens, self.reset_tokens_seconds),
        )
        return max((seconds for left, seconds in waits if left == 0 and seconds is not None), default=None)


# Names of the remaining number and of its reset, in headers of OpenAI and compatible providers; of Anthropic; of
# servers that count requests only (two spellings).
_REQUESTS: Final = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
)
_TOKENS: Final = (
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
)
_KNOWN: Final = tuple(name for names in (*_REQUESTS, *_TOKENS) for name in names)
_REMAINING: Final = tuple(remaining for remaining, _ in (*_REQUESTS, *_TOKENS))

HIDDEN: Final = "_hidden_params"
_LITELLM: Final = "llm_provider-"
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|d|h|m|s))+", re.ASCII)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)", re.ASCII)
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Resets above this are points in time since 1970, not durations; above the second, in milliseconds.
_TIMES: Final = 1e9
_MILLISECONDS: Final = 1e11


def rate_headers(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers that `rate_state` reads, or None if none is present.

    Parameters
    ----------
    headers : mapping
        Response headers, whose names may be written in any case.
    """
    if not any(name in headers for name in _REMAINING):
        return None
    return {known: headers[known] for known in _KNOWN if known in headers}


def rate_state(response: object) -> RateState | None:
    """Return the provider's remaining rate limits from an answer.

    Parameters
    ----------
    response : object
        Response of `OpenAIChatClient.complete` or `LiteLLMClient.complete`; both carry the provider's
        headers under ``_hidden_params["additional_headers"]``.

    Returns
    -------
    RateState or None
        None without any readable header.
    """
    plain = None
    if isinstance(response, dict):
        plain = response.get(HIDDEN)
    hidden = reported_mapping(plain or getattr(response, HIDDEN, None))
    headers = hidden.get("additional_headers")
    if isinstance(headers, Mapping):
        return reported_state(headers)
    return None


def reported_state(headers: Mapping[str, Any]) -> RateState | None:
    """Return the remaining rate limits in response headers, or None if none can be read.

    Parameters
    ----------
    headers : mapping
        Response headers, whose names may be written in any case.
    """
    requests, reset_requests = _least(headers, _REQUESTS)
    tokens, reset_tokens = _least(headers, _TOKENS)
    if requests is None and tokens is None:
        return None
    return RateState(
        remaining_requests=requests,
        reset_requests_seconds=reset_requests,
        remaining_tokens=tokens,
        reset_tokens_seconds=reset_tokens,
    )


def _least(headers: Mapping[str, Any], known: tuple[tuple[str, str], ...]) -> tuple[int | None, float | None]:
    """Return the smallest remaining number and the seconds until its reset; None if not reported."""
    limits = []
    for remaining, reset in known:
        with contextlib.suppress(ValueError, OverflowError):  # no number, or infinity
            number = int(float(_value(headers, remaining)))
            if number >= 0:
                limits.append((number, seconds_until(_value(headers, reset))))
    return min(limits, key=lambda limit: (limit[0], -(limit[1] or 0.0)), default=(None, None))


def _value(headers: Mapping[str, Any], name: str) -> str:
    return str(headers.get(_LITELLM + name, headers.get(name, ""))).strip()


def seconds_until(text: str) -> float | None:
    """Return the seconds of a duration (``6m0s``, ``1.5``) or until a time; None if it is neither.

    None where the text is neither. Points in time are written as in ISO 8601 or HTTP, or as Unix time.
    """
    if _DURATION.fullmatch(text):
        return math.fsum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    try:
        value = float(text)
    except ValueError:
        return _until(text)
    if not 0 <= value < math.inf:
        return None
    if value < _TIMES:
        return value
    return max(0.0, (value / 1000 if value > _MILLISECONDS else value) - time.time())


def _until(text: str) -> float | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        with contextlib.suppress(ValueError):
            moment = read(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return max(0.0, moment.timestamp() - time.time())
    return None
