"""Remaining rate limits of a provider, from the headers of its answers."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from calibrant.core._reported import reported_mapping


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

    remaining_requests: int | None = None
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
    plain = response.get(HIDDEN) if isinstance(response, dict) else None
    hidden = reported_mapping(plain or getattr(response, HIDDEN, None))
    headers = hidden.get("additional_headers")
    return reported_state(headers) if isinstance(headers, Mapping) else None


def reported_state(headers: Mapping[str, Any]) -> RateState | None:
    """Return the remaining rate limits in response headers, or None if none can be read.

    Parameters
    ----------
    headers : mapping
        Response headers, whose names may be written in any case.
    """
    remaining_requests, reset_requests = _least(headers, _REQUESTS)
    remaining_tokens, reset_tokens = _least(headers, _TOKENS)
    if remaining_requests is None and remaining_tokens is None:
        return None
    return RateState(
        remaining_requests=remaining_requests,
        reset_requests_seconds=reset_requests,
        remaining_tokens=remaining_tokens,
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
    return min(limits, key=lambda pair: (pair[0], -(pair[1] or 0.0)), default=(None, None))


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
