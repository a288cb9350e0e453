"""Label distributions from the token log-probabilities of a DSPy program's answer.

DSPy's adapters let a model write each field in a form of their own: under a marker (``[[ ## label ## ]]``), in XML
tags, or as JSON. Distributions are read from JSON, so that the tokens of the other two are rewritten: what precedes the
value becomes one certain token, the value's tokens are escaped, and what ends the value becomes the closing quote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calibrant.core._errors import DataError, LogprobsUnavailableError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LabelDistribution, LogprobSpace
from calibrant.logprobs._distribution import extract_distribution

_CLOSING: Final = b'"}'
_BLANK: Final = b" \t\r\n"
# A field's marker, and what is written up to the next one.
_SECTION: Final = rb"^[ \t]*\[\[ ## %s ## \]\](.*?)(?=^[ \t]*\[\[ ## \w+ ## \]\]|\Z)"
# What a JSON string cannot hold as it is.
_ESCAPED: Final = {code: json.dumps(chr(code))[1:-1].encode() for code in (*range(0x20), ord('"'), ord("\\"))}

_Alternatives = list[tuple[bytes, float]]


@dataclass(frozen=True, kw_only=True)
class _Token:
    data: bytes
    logprob: float
    alternatives: _Alternatives


@dataclass(frozen=True, kw_only=True)
class _Value:
    """Place of a field's value in an answer: its bytes, and the byte that ends it."""

    start: int
    end: int
    terminator: bytes


def written_distribution(logprobs: object, labels: LabelSet, field: str) -> LabelDistribution:
    """Read a distribution over the labels from the log-probabilities of a ``dspy.Prediction``.

    The answers of DSPy's programs are seldom constrained, so that the distribution is in ``raw`` space: its confidence
    is the label's share among the labels.

    Parameters
    ----------
    logprobs : object
        What DSPy keeps under ``logprobs``: ``content``, a list of tokens as in OpenAI's protocol.
    labels : LabelSet
        The label set.
    field : str
        Name of the field that holds the label.

    Raises
    ------
    LogprobsUnavailableError
        There are no tokens, or the field is not found in them.
    """
    tokens = _tokens(logprobs)
    value = _value(b"".join(token.data for token in tokens), field)
    if value is not None:
        tokens = list(_as_json(tokens, value, field))
    try:
        return extract_distribution(_response(tokens), labels, field, LogprobSpace.RAW)
    except DataError as error:
        raise LogprobsUnavailableError(str(error)) from error


def _tokens(logprobs: object) -> list[_Token]:
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else getattr(logprobs, "content", None)
    if not isinstance(content, Sequence) or not content:
        raise LogprobsUnavailableError(
            f"Expected token log-probabilities under 'content', got {logprobs!r:.80}: ask for them with "
            "dspy.LM(..., logprobs=True, top_logprobs=5)."
        )
    try:
        return [_token(entry) for entry in content]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LogprobsUnavailableError(
            f"Expected tokens with 'token' and 'logprob', got {content[0]!r:.80}: {error!r}."
        ) from error


def _token(entry: Mapping[str, Any]) -> _Token:
    listed = entry.get("top_logprobs") or []
    alternatives = [(_data(one), float(one["logprob"])) for one in listed]
    return _Token(data=_data(entry), logprob=float(entry["logprob"]), alternatives=alternatives)


def _data(entry: Mapping[str, Any]) -> bytes:
    """Return the bytes of a token, which its text may show only in part."""
    reported = entry.get("bytes")
    if reported is not None:
        return bytes(reported)
    return str(entry["token"]).encode("utf-8", "surrogatepass")


def _value(text: bytes, field: str) -> _Value | None:
    """Return the place of the field's value behind a marker or in tags; None if the answer has neither."""
    name = re.escape(field.encode())
    multiline = re.MULTILINE | re.DOTALL
    # The first section of a name counts, as for DSPy.
    marked = re.search(_SECTION % name, text, multiline)
    tagged = re.search(rb"<%s>(.*?)</%s>" % (name, name), text, multiline)
    found, terminator = (marked, b"\n") if marked is not None else (tagged, b"<")
    if found is None:
        return None
    start, end = found.span(1)
    while start < end and text[start : start + 1] in _BLANK:
        start += 1
    while end > start and text[end - 1 : end] in _BLANK:
        end -= 1
    quote = text[start : start + 1]
    if quote in (b'"', b"'") and end - start > 1 and text[end - 1 : end] == quote:
        return _Value(start=start + 1, end=end - 1, terminator=quote)
    return _Value(start=start, end=end, terminator=terminator)


def _as_json(tokens: Sequence[_Token], value: _Value, field: str) -> Iterator[_Token]:
    """Yield the tokens of a JSON object that holds the value, with the log-probabilities of the written ones."""
    opening = b'{"%s": "' % field.encode()
    yield _Token(data=opening, logprob=0.0, alternatives=[])
    begin = 0
    for token in tokens:
        end = begin + len(token.data)
        if end > value.start:
            yield _part(token, value, begin)
        begin = end
        if end > value.end:
            return
    yield _Token(data=_CLOSING, logprob=0.0, alternatives=[])


def _part(token: _Token, value: _Value, begin: int) -> _Token:
    """Return the part of a token that belongs to the value, closed where the value ends in it."""
    before = max(0, value.start - begin)
    length = value.end - begin - before
    written = token.data[before:]
    ends = len(written) > length
    data = _escaped(written[:length]) + (_CLOSING if ends else b"")
    shared = token.data[:before]
    alternatives = [
        (_alternative(other[before:], value.terminator, is_first=begin + before == value.start), logprob)
        for other, logprob in token.alternatives
        if other != token.data and other.startswith(shared)
    ]
    if token.alternatives:
        alternatives.append((data, token.logprob))
    return _Token(data=data, logprob=token.logprob, alternatives=alternatives)


def _alternative(written: bytes, terminator: bytes, *, is_first: bool) -> bytes:
    """Return an alternative as JSON would hold it; a blank before the value changes no label."""
    if is_first and written.strip(_BLANK):
        written = written.lstrip(_BLANK)
    content, closes, _ = written.partition(terminator)
    return _escaped(content) + (_CLOSING if closes else b"")


def _escaped(data: bytes) -> bytes:
    return b"".join(_ESCAPED.get(code, bytes([code])) for code in data)


def _response(tokens: Sequence[_Token]) -> dict[str, Any]:
    text = b"".join(token.data for token in tokens).decode("utf-8", "replace")
    content = [
        {
            **_entry(token.data, token.logprob),
            "top_logprobs": [_entry(data, logprob) for data, logprob in token.alternatives],
        }
        for token in tokens
    ]
    return {"choices": [{"message": {"content": text}, "logprobs": {"content": content}}]}


def _entry(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}
