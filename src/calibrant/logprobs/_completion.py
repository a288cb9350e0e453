"""One reading of every provider's answer: text, tokens, finish reason, usage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Final

from calibrant.core import Completion, DataError, Token, Usage

__all__ = ["IMPOSSIBLE", "TOLERANCE", "read_completion", "reported_tokens"]

TOLERANCE: Final = 1e-6
"""A log-probability may exceed 0 by this much (rounding); it then counts as 0."""

IMPOSSIBLE: Final = -9999.0
"""What OpenAI reports for "practically impossible"; -inf is read as this, to stay finite."""

# Google's names for the reasons OpenAI calls `length` and `content_filter`.
_FINISH_REASONS: Final = {
    "max_tokens": "length",
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
}


class _UnusableEvidenceError(Exception):
    """A token's log-probability is null, NaN, positive or no number."""


def read_completion(response: object) -> Completion:
    """Read an answer of any supported provider.

    Parameters
    ----------
    response : object
        An OpenAI or litellm response object; the same as a dict; a line of an OpenAI batch
        output file; a google-genai ``GenerateContentResponse``; a Vertex AI batch dict, alone or
        under ``response``; the answer's plain text; or a `Completion`, returned as it is.

    Returns
    -------
    Completion
        ``tokens`` is None unless *every* reported log-probability, alternatives included, is a
        number <= 1e-6: evidence with holes (null, NaN) or above 0 is not repaired but dropped,
        because every number derived from it would be wrong without saying so. Values in
        (0, 1e-6] are rounding and become 0; ``-inf`` becomes -9999.0, which means the same.
        A token's bytes are the provider's, where it reports them, else its text in UTF-8.
        Google's finish reasons are translated to OpenAI's; a prompt or an answer blocked by
        a safety filter counts as a refusal.

    Raises
    ------
    DataError
        The shape is unknown, or the body holds an error or no answer: the server's fault.
    """
    if isinstance(response, Completion):
        return response
    if isinstance(response, str):
        return Completion(text=response)
    body = _unwrap(response)
    if _get(body, "choices") is not None:
        return _read_openai(body)
    if _get(body, "candidates") is not None or _first(body, "prompt_feedback", "promptFeedback") is not None:
        return _read_google(body)
    error = _get(body, "error")
    got = f"the error {error}" if error else _shape(body)
    msg = f"Expected an answer with 'choices' (OpenAI) or 'candidates' (Google), got {got}."
    raise DataError(msg)


def _unwrap(response: object) -> object:
    """Take the body out of a batch file's line."""
    if not isinstance(response, Mapping) or "response" not in response:
        return response
    inner = response["response"]
    if not isinstance(inner, Mapping):
        reason = response.get("error") or response.get("status") or "no reason given"
        msg = f"Expected a batch line with an answer, got none ({reason}): send the row again."
        raise DataError(msg)
    if "body" not in inner:
        return inner
    status = inner.get("status_code", 200)
    if status != 200:
        msg = f"Expected a batch line with status 200, got {status}: {str(inner['body'])[:200]}"
        raise DataError(msg)
    return inner["body"]


def _get(node: object, key: str) -> Any:  # noqa: ANN401 - foreign data
    # The exact type first: asking the abstract Mapping is slow, and this runs for every token.
    if type(node) is dict:
        return node.get(key)
    if isinstance(node, Mapping):
        return node.get(key)
    return getattr(node, key, None)


def _first(node: object, *keys: str) -> Any:  # noqa: ANN401 - foreign data
    """Return the first of `keys` that is there: SDKs write snake_case, REST camelCase."""
    for key in keys:
        value = _get(node, key)
        if value is not None:
            return value
    return None


def _shape(node: object) -> str:
    if isinstance(node, Mapping):
        return f"a mapping with keys {list(node)[:10]}"
    return f"an object of type {type(node).__name__}"


def _head(node: object, key: str) -> object:
    """Return the first answer of a response."""
    answers = _get(node, key)
    if not isinstance(answers, list | tuple) or not answers:
        msg = f"Expected at least one answer under {key!r}, got {answers!r:.100}: the server sent none."
        raise DataError(msg)
    return answers[0]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _finish_reason(value: object) -> str | None:
    """Return OpenAI's lower-case name of a finish reason, whether it is text or an enum member."""
    name = _text(getattr(value, "value", value))
    if name is None:
        return None
    name = name.lower()
    return _FINISH_REASONS.get(name, name)


# --- OpenAI, litellm, llama.cpp, vLLM ---------------------------------------------------------


def _read_openai(body: object) -> Completion:
    choice = _head(body, "choices")
    message = _get(choice, "message")
    if message is None:
        msg = f"Expected a chat answer with 'message', got {_shape(choice)}: use the chat endpoint."
        raise DataError(msg)
    usage = _get(body, "usage")
    content = _get(_get(choice, "logprobs"), "content")
    return Completion(
        text=_content_text(_get(message, "content")),
        tokens=_usable(content, _openai_tokens),
        finish_reason=_finish_reason(_get(choice, "finish_reason")),
        refusal=_refusal(message),
        model=_text(_get(body, "model")),
        usage=Usage(
            prompt_tokens=_count(_get(usage, "prompt_tokens")),
            completion_tokens=_count(_get(usage, "completion_tokens")),
            cost=_cost(_get(_get(body, "_hidden_params"), "response_cost")),
        ),
    )


def _refusal(message: object) -> str | None:
    """Return a message's refusal, which litellm keeps among what it does not know."""
    return _text(_get(message, "refusal")) or _text(
        _get(_get(message, "provider_specific_fields"), "refusal")
    )


def _cost(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    return None


def _content_text(content: object) -> str:
    """Return a message's text, which some servers send in parts."""
    if isinstance(content, list):
        return "".join(_text(_get(part, "text")) or "" for part in content)
    return _text(content) or ""


def _usable(content: object, read: Any) -> tuple[Token, ...] | None:  # noqa: ANN401 - a local reader
    """Return the tokens, or None where they are missing or cannot be trusted."""
    if not isinstance(content, list | tuple) or not content:
        return None
    try:
        return tuple(read(content))
    except (_UnusableEvidenceError, TypeError):
        return None


def _openai_tokens(items: Sequence[object]) -> Iterable[Token]:
    tops = [_get(item, "top_logprobs") or () for item in items]
    pairs = _openai_pairs([*items, *chain.from_iterable(tops)])
    begin = len(items)
    for (data, logprob), top in zip(pairs[:begin], tops, strict=True):
        end = begin + len(top)
        yield Token(data, logprob, pairs[begin:end])
        begin = end


def _openai_pairs(items: Sequence[Any]) -> tuple[tuple[bytes, float], ...]:
    """Return bytes and log-probability of each item.

    This is the hot loop of reading (20 alternatives a token are common), so the usual case, bytes
    and in-range floats throughout, is read in bulk; anything else goes item by item.
    """
    if not items:
        return ()
    try:
        if type(items[0]) is dict:
            data = [bytes([*item["bytes"]]) for item in items]
            values = [item["logprob"] for item in items]
        else:
            data = [bytes([*item.bytes]) for item in items]
            values = [item.logprob for item in items]
    except (TypeError, ValueError, LookupError, AttributeError):
        return tuple([_openai_pair(item) for item in items])
    if (
        {*map(type, values)} == {float}
        and b"" not in data
        and min(values) >= IMPOSSIBLE
        and max(values) <= 0.0
        and not math.isnan(sum(values))  # a NaN can hide from min and max
    ):
        return tuple(zip(data, values, strict=True))
    return tuple([_openai_pair(item) for item in items])


def _openai_pair(item: object) -> tuple[bytes, float]:
    return _data(_get(item, "token"), _get(item, "bytes")), _logprob(_get(item, "logprob"))


def _data(text: object, raw: object) -> bytes:
    """Return a token's bytes; its text may stand for half a character and is second choice."""
    if raw and isinstance(raw, list | tuple | bytes):
        try:
            return bytes(raw)
        except (TypeError, ValueError):
            pass
    if not isinstance(text, str):
        raise _UnusableEvidenceError
    return text.encode("utf-8", "surrogatepass")


def _logprob(value: object) -> float:
    # `not <=` also catches NaN.
    if not isinstance(value, float | int) or isinstance(value, bool) or not value <= TOLERANCE:
        raise _UnusableEvidenceError
    if value > 0:
        return 0.0
    return float(value) if value > IMPOSSIBLE else IMPOSSIBLE


# --- google-genai and Vertex AI ---------------------------------------------------------------


def _read_google(body: object) -> Completion:
    usage = _first(body, "usage_metadata", "usageMetadata")
    common: dict[str, Any] = {
        "model": _text(_first(body, "model_version", "modelVersion")),
        "usage": Usage(
            prompt_tokens=_count(_first(usage, "prompt_token_count", "promptTokenCount")),
            completion_tokens=_count(_first(usage, "candidates_token_count", "candidatesTokenCount"))
            + _count(_first(usage, "thoughts_token_count", "thoughtsTokenCount")),
        ),
    }
    blocked = _first(_first(body, "prompt_feedback", "promptFeedback"), "block_reason", "blockReason")
    if blocked is not None and not _get(body, "candidates"):
        reason = str(getattr(blocked, "value", blocked))
        return Completion(text="", finish_reason="content_filter", refusal=f"blocked: {reason}", **common)
    candidate = _head(body, "candidates")
    text = _google_text(_get(_get(candidate, "content"), "parts"))
    stop = _first(candidate, "finish_reason", "finishReason")
    finish_reason = _finish_reason(stop)
    filtered = finish_reason == "content_filter" and not text
    return Completion(
        text=text,
        tokens=_google_tokens(_first(candidate, "logprobs_result", "logprobsResult")),
        finish_reason=finish_reason,
        refusal=f"blocked: {getattr(stop, 'value', stop)}" if filtered else None,
        **common,
    )


def _google_text(parts: object) -> str:
    """Join the parts of the answer, leaving out the model's thoughts."""
    if not isinstance(parts, list | tuple):
        return ""
    return "".join(_text(_get(part, "text")) or "" for part in parts if not _get(part, "thought"))


def _google_tokens(result: object) -> tuple[Token, ...] | None:
    tops = _first(result, "top_candidates", "topCandidates") or ()

    def read(chosen: Iterable[object]) -> Iterable[Token]:
        for item, top in zip_longest(chosen, tops):
            # A list longer than the answer would raise below: evidence that does not fit is none.
            data, logprob = _google_pair(item)
            others = _get(top, "candidates") or ()
            yield Token(data, logprob, tuple([_google_pair(other) for other in others]))

    return _usable(_first(result, "chosen_candidates", "chosenCandidates"), read)


def _google_pair(item: object) -> tuple[bytes, float]:
    logprob = _first(item, "log_probability", "logProbability")
    return _data(_get(item, "token"), None), _logprob(logprob)


# --- what was reported, usable or not ----------------------------------------------------------


def reported_tokens(response: object) -> tuple[Token, ...]:
    """Read an answer's tokens with their log-probabilities as they were reported, unchecked.

    This is for looking into what a provider reports. Nothing may be computed from it that others
    rely on: that is what `read_completion` is for.

    Parameters
    ----------
    response : object
        Anything `read_completion` takes.

    Returns
    -------
    tuple of Token
        Empty where none were reported. A log-probability that is missing or no number is NaN; others
        may be anything, positive ones included.

    Raises
    ------
    DataError
        The shape is unknown, or the body holds an error or no answer.
    """
    if isinstance(response, Completion):
        return response.tokens or ()
    if isinstance(response, str):
        return ()
    body = _unwrap(response)
    if _get(body, "choices") is not None:
        chosen = _listed_items(_get(_get(_head(body, "choices"), "logprobs"), "content"))
        return tuple([_unchecked(item, _get(item, "top_logprobs")) for item in chosen])
    result = _first(_head(body, "candidates"), "logprobs_result", "logprobsResult")
    chosen = _listed_items(_first(result, "chosen_candidates", "chosenCandidates"))
    tops = _listed_items(_first(result, "top_candidates", "topCandidates"))
    return tuple([_unchecked(item, _get(top, "candidates")) for item, top in zip_longest(chosen, tops)])


def _listed_items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _unchecked(item: object, others: object) -> Token:
    return Token(*_unchecked_pair(item), tuple([_unchecked_pair(other) for other in _listed_items(others)]))


def _unchecked_pair(item: object) -> tuple[bytes, float]:
    value = _first(item, "logprob", "log_probability", "logProbability")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        data = _data(_get(item, "token"), _get(item, "bytes"))
    except _UnusableEvidenceError:
        data = b""
    return data, float(value) if number else math.nan
