"""Reader of answers in OpenAI's and Google's formats: text, tokens, finish reason, usage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, zip_longest
from math import exp
from typing import Any, Final

from calibrant.core._completion import Completion
from calibrant.core._errors import DataError
from calibrant.core._prediction import Token, Usage
from calibrant.core._reported import bounded_count, clean_line, clean_text

TOLERANCE: Final = 1e-6
"""A log-probability may exceed 0 by this much (rounding); it then counts as 0."""

IMPOSSIBLE: Final = -9999.0
"""OpenAI's log-probability for "practically impossible"; an alternative's -inf is read as this, to stay finite."""

MOST_MASS: Final = 1.05
"""The probabilities listed at one position may add up to this: rounding to one decimal of a logarithm adds 5 %."""

_LONGEST_NAME: Final = 200
_LONGEST_MESSAGE: Final = 1000

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
    """Error for a token whose log-probability is missing, not a number, or above 0."""


def contradiction(token: Token) -> str:
    """Return the contradiction in a token's log-probabilities as text, empty if there is none.

    An emitted token cannot have had the probability 0, and the probabilities listed at one position cannot
    add up to clearly more than 1. If a spelling is listed twice, the larger probability counts.
    """
    if token.logprob == -math.inf:
        shown = token.data[:40].decode(errors="replace")
        return f"the token {shown!r} was written, with the log-probability -Infinity"
    if not token.top:
        return ""
    mass = sum([exp(logprob) for _, logprob in token.top])
    if mass <= MOST_MASS and (
        mass + exp(token.logprob) <= MOST_MASS or (token.data, token.logprob) in token.top
    ):
        return ""
    # The slow path, for a list with repeated spellings or without the emitted token.
    listed = {token.data: token.logprob}
    for data, logprob in token.top:
        listed[data] = max(logprob, listed.get(data, logprob))
    mass = math.fsum([exp(logprob) for logprob in listed.values()])
    # A NaN mass passes: `read_completion` has refused NaN before.
    return f"the probabilities listed at one token add up to {mass:.2f}" if mass > MOST_MASS else ""


def read_completion(response: object) -> Completion:
    """Read the response of any supported provider into a `Completion`.

    Parameters
    ----------
    response : object
        An OpenAI or litellm response object; the same as a dict; a line of an OpenAI batch
        output file; a google-genai ``GenerateContentResponse``; a Vertex AI batch dict, alone or
        under ``response``; the answer's plain text; or a `Completion`, returned as it is
        where there is nothing to clean or to drop.

    Returns
    -------
    Completion
        ``tokens`` is None unless *every* reported log-probability, alternatives included, is a
        number <= 1e-6: evidence with holes (null, NaN) or above 0 is not repaired but dropped,
        because every number derived from it would be wrong without saying so. So is evidence that
        contradicts itself: an emitted token with ``-inf``, or probabilities at one position that
        add up to more than 1.05; ``evidence_problem`` describes it. Values in (0, 1e-6] are rounding
        and become 0; an alternative's ``-inf`` becomes -9999.0, which means the same.
        All fields from a server are cleaned and bounded here: counts at 2**53, the model's name at 200
        characters, a refusal at 1,000; control characters and terminal escapes are removed, and
        half a surrogate pair becomes the replacement character, as in the text.
        A token's bytes are the provider's, where it reports them, else its text in UTF-8.
        Google's finish reasons are translated to OpenAI's; a prompt or an answer blocked by
        a safety filter counts as a refusal.

    Raises
    ------
    DataError
        The shape is unknown, or the body holds an error or no answer: the server's fault.

    Examples
    --------
    >>> from calibrant.logprobs import read_completion
    >>> from calibrant.testing import fake_response
    >>> read_completion(fake_response("Food", probabilities={"Food": 0.75, "Rent": 0.25})).finish_reason
    'stop'
    """
    if isinstance(response, Completion):
        if response.evidence_problem is not None:
            return response
        return _cleaned(response)
    if isinstance(response, str):
        return Completion(text=clean_text(response), evidence_problem="")
    body = _unwrap(response)
    if _get(body, "choices") is not None:
        return _read_openai(body)
    if _get(body, "candidates") is not None or _first(body, "prompt_feedback", "promptFeedback") is not None:
        return _read_google(body)
    error = _get(body, "error")
    got = f"the error {_message(str(error))}" if error else _shape(body)
    raise DataError(f"Expected an answer with 'choices' (OpenAI) or 'candidates' (Google), got {got}.")


def _cleaned(completion: Completion) -> Completion:
    """Return a `Completion` made by a client, cleaned and checked; the same object if nothing changes."""
    problem = next(filter(None, map(contradiction, completion.tokens or ())), "")
    changes: dict[str, Any] = {
        "text": clean_text(completion.text),
        "tokens": None if problem else completion.tokens,
        "refusal": completion.refusal and _message(completion.refusal),
        "model": completion.model and _name(completion.model),
        "usage": Usage(
            prompt_tokens=bounded_count(completion.usage.prompt_tokens),
            completion_tokens=bounded_count(completion.usage.completion_tokens),
            cost=_cost(completion.usage.cost),
        ),
    }
    if all(getattr(completion, name) == value for name, value in changes.items()):
        return completion
    return replace(completion, **changes, evidence_problem=problem)


def _unwrap(response: object) -> object:
    """Return the response in a line of a batch result file; any other response unchanged."""
    if not isinstance(response, Mapping) or "response" not in response:
        return response
    inner = response["response"]
    if not isinstance(inner, Mapping):
        reason = _message(str(response.get("error") or response.get("status") or "no reason given"))
        raise DataError(f"Expected a batch line with an answer, got none ({reason}): send the row again.")
    status = inner.get("status_code", 200)
    if "body" in inner and status != 200:
        raise DataError(f"Expected a batch line with status 200, got {status}: {str(inner['body'])[:200]}")
    return inner.get("body", inner)


def _get(node: object, key: str) -> Any:  # noqa: ANN401 - foreign data
    # The exact type first: asking the abstract Mapping is slow, and this runs for every token.
    if type(node) is dict or isinstance(node, Mapping):
        return node.get(key)
    return getattr(node, key, None)


def _first(node: object, *keys: str) -> Any:  # noqa: ANN401 - foreign data
    """Return the value of the first of `keys` that is present, as SDKs and REST spell keys differently."""
    for key in keys:  # no generator: this runs for every token
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
    if isinstance(answers, list | tuple) and answers:
        return answers[0]
    raise DataError(
        f"Expected at least one answer under {key!r}, got {answers!r:.100}: the server sent none."
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _name(value: object) -> str | None:
    name = _text(value)
    if name is None:
        return None
    return clean_line(name, limit=_LONGEST_NAME)


def _message(text: str) -> str:
    return clean_line(text, limit=_LONGEST_MESSAGE)


def _finish_reason(value: object) -> str | None:
    """Return OpenAI's lower-case name of a finish reason, which is given as text or enum member."""
    name = (_name(getattr(value, "value", value)) or "").lower()
    return _FINISH_REASONS.get(name, name) or None


# --- OpenAI, litellm, llama.cpp, vLLM ---------------------------------------------------------


def _read_openai(body: object) -> Completion:
    choice = _head(body, "choices")
    message = _get(choice, "message")
    if message is None:
        raise DataError(
            f"Expected a chat answer with 'message', got {_shape(choice)}: use the chat endpoint."
        )
    usage = _get(body, "usage")
    content = _get(message, "content")
    if isinstance(content, list):  # some servers send the text in parts
        content = "".join(_text(_get(part, "text")) or "" for part in content)
    return Completion(
        text=clean_text(_text(content) or ""),
        **_evidence(_get(_get(choice, "logprobs"), "content"), _openai_tokens),
        finish_reason=_finish_reason(_get(choice, "finish_reason")),
        refusal=_refusal(message),
        model=_name(_get(body, "model")),
        usage=Usage(
            prompt_tokens=bounded_count(_get(usage, "prompt_tokens")),
            completion_tokens=bounded_count(_get(usage, "completion_tokens")),
            cost=_cost(_get(_get(body, "_hidden_params"), "response_cost")),
        ),
    )


def _refusal(message: object) -> str | None:
    """Return the refusal in a message; litellm puts it among the provider-specific fields."""
    refusal = _text(_get(message, "refusal")) or _text(
        _get(_get(message, "provider_specific_fields"), "refusal")
    )
    return None if refusal is None else _message(refusal)


def _cost(value: object) -> float | None:
    cost = _number(value)
    if cost is not None and 0.0 <= cost < math.inf:
        return cost
    return None


def _evidence(content: object, read: Any) -> dict[str, Any]:  # noqa: ANN401 - a local reader
    """Return `tokens` and `evidence_problem` of a `Completion`, from the reported tokens."""
    tokens = None
    problem = ""
    if isinstance(content, list | tuple) and content:
        try:
            tokens = tuple(read(content))
            problem = next(filter(None, map(contradiction, tokens)), "")
        except _UnusableEvidenceError:
            problem = "a log-probability is missing or is no number of at most 0"
        except TypeError:
            problem = "the reported tokens have an unknown shape"
    return {"tokens": None if problem else tokens, "evidence_problem": problem}


def _openai_tokens(items: Sequence[object]) -> Iterable[Token]:
    tops = [_get(item, "top_logprobs") or () for item in items]
    pairs = _openai_pairs([*items, *chain.from_iterable(tops)])
    begin = len(items)
    for item, (data, logprob), top in zip(items, pairs[:begin], tops, strict=True):
        end = begin + len(top)
        # Only an alternative's -inf may be clipped: for the emitted token it is a contradiction.
        if logprob == IMPOSSIBLE and _get(item, "logprob") == -math.inf:
            logprob = -math.inf  # noqa: PLW2901
        yield Token(data, logprob, pairs[begin:end])
        begin = end


def _openai_pairs(items: Sequence[Any]) -> tuple[tuple[bytes, float], ...]:
    """Return bytes and log-probability of each token in OpenAI's format.

    This is the hot loop of reading (20 alternatives a token are common), so the usual case, bytes
    and in-range floats throughout, is read in bulk; anything else goes item by item.
    """
    if not items:
        return ()
    with suppress(TypeError, ValueError, LookupError, AttributeError):
        if type(items[0]) is dict:
            data = [bytes([*item["bytes"]]) for item in items]
            values = [item["logprob"] for item in items]
        else:
            data = [bytes([*item.bytes]) for item in items]
            values = [item.logprob for item in items]
        usual = {*map(type, values)} == {float} and min(values) >= IMPOSSIBLE and max(values) <= 0.0
        if usual and b"" not in data and not math.isnan(sum(values)):  # a NaN can hide from min and max
            return tuple(zip(data, values, strict=True))
    return tuple([_reported_pair(item) for item in items])


def _reported_pair(item: object) -> tuple[bytes, float]:
    """Return bytes and log-probability of a token in OpenAI's or Google's format."""
    return _data(_get(item, "token"), _get(item, "bytes")), _logprob(_reported_logprob(item))


def _reported_logprob(item: object) -> object:
    return _first(item, "logprob", "log_probability", "logProbability")


def _data(text: object, raw: object) -> bytes:
    """Return a token's bytes as reported, or else its text in UTF-8."""
    if raw and isinstance(raw, list | tuple | bytes):
        with suppress(TypeError, ValueError):
            return bytes(raw)
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
        "model": _name(_first(body, "model_version", "modelVersion")),
        "usage": Usage(
            prompt_tokens=bounded_count(_first(usage, "prompt_token_count", "promptTokenCount")),
            completion_tokens=bounded_count(_first(usage, "candidates_token_count", "candidatesTokenCount"))
            + bounded_count(_first(usage, "thoughts_token_count", "thoughtsTokenCount")),
        ),
    }
    blocked = _first(_first(body, "prompt_feedback", "promptFeedback"), "block_reason", "blockReason")
    if blocked is not None and not _get(body, "candidates"):
        refusal = _message(f"blocked: {getattr(blocked, 'value', blocked)}")
        return Completion(
            text="", finish_reason="content_filter", refusal=refusal, evidence_problem="", **common
        )
    candidate = _head(body, "candidates")
    # The model's thoughts are no part of the answer.
    parts = [part for part in _items(_get(_get(candidate, "content"), "parts")) if not _get(part, "thought")]
    text = "".join(_text(_get(part, "text")) or "" for part in parts)
    stop = _first(candidate, "finish_reason", "finishReason")
    finish_reason = _finish_reason(stop)
    filtered = finish_reason == "content_filter" and not text
    return Completion(
        text=text,
        **_google_evidence(_first(candidate, "logprobs_result", "logprobsResult")),
        finish_reason=finish_reason,
        refusal=_message(f"blocked: {getattr(stop, 'value', stop)}") if filtered else None,
        **common,
    )


def _google_evidence(result: object) -> dict[str, Any]:
    tops = _first(result, "top_candidates", "topCandidates") or ()

    def read(chosen: Iterable[object]) -> Iterable[Token]:
        for item, top in zip_longest(chosen, tops):
            # For a list longer than the answer `item` is None, which raises below: such evidence is unusable.
            data, logprob = _reported_pair(item)
            if _reported_logprob(item) == -math.inf:
                logprob = -math.inf
            yield Token(data, logprob, tuple(map(_reported_pair, _get(top, "candidates") or ())))

    return _evidence(_first(result, "chosen_candidates", "chosenCandidates"), read)


# --- reported tokens, usable or not ------------------------------------------------------------


def reported_tokens(response: object) -> tuple[Token, ...]:
    """Read an answer's tokens with their log-probabilities as reported, unchecked.

    This is for diagnosing a provider (`calibrant doctor`). For computations use `read_completion`.

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
        chosen = _items(_get(_get(_head(body, "choices"), "logprobs"), "content"))
        listed = [(item, _get(item, "top_logprobs")) for item in chosen]
    else:
        result = _first(_head(body, "candidates"), "logprobs_result", "logprobsResult")
        chosen = _items(_first(result, "chosen_candidates", "chosenCandidates"))
        tops = _items(_first(result, "top_candidates", "topCandidates"))
        listed = [(item, _get(top, "candidates")) for item, top in zip_longest(chosen, tops)]
    return tuple(
        [Token(*_unchecked_pair(item), tuple(map(_unchecked_pair, _items(top)))) for item, top in listed]
    )


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _unchecked_pair(item: object) -> tuple[bytes, float]:
    number = _number(_reported_logprob(item))
    data = b""
    with suppress(_UnusableEvidenceError):
        data = _data(_get(item, "token"), _get(item, "bytes"))
    return data, math.nan if number is None else number


def _number(value: object) -> float | None:
    """Return a number as a float; None for other types, and for integers too large for a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
