"""Alignment of a field's value with the tokens that spell it, by bytes."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from calibrant.core._completion import Completion, Token
from calibrant.core._errors import LogprobsUnavailableError
from calibrant.logprobs._completion import IMPOSSIBLE, TOLERANCE
from calibrant.logprobs._fields import (
    FieldPath,
    UnparsedError,
    answer_value,
    json_body,
    parse_path,
    value_span,
)

_MAX_ATTEMPTS = 64
# Longer answers are not cached.
_SHORT = 512


@dataclass(frozen=True, slots=True)
class AlignedField:
    """Value of a field, with the tokens that spell it.

    Attributes
    ----------
    value : object
        The parsed value.
    tokens : tuple of Token
        All tokens of the answer.
    ends : list of int
        Byte offset behind each token in `stream`.
    stream : bytes
        The tokens' bytes, joined.
    begin, end : int
        Byte offsets of the value's content in `stream`; a string's quotes are left out.
    """

    value: object
    tokens: tuple[Token, ...]
    ends: list[int]
    stream: bytes
    begin: int
    end: int

    def holder(self, offset: int) -> int:
        """Return the index of the token that holds the byte at `offset`."""
        return bisect_right(self.ends, offset)

    def start(self, index: int) -> int:
        """Return the byte offset of the token at `index`."""
        return self.ends[index - 1] if index else 0

    def content(self) -> tuple[Token, ...]:
        """Return the tokens that hold content, in order, at least one.

        Tokens without bytes between them count: some servers report a cut character as an empty
        token first. An empty string has no content; its closing quote stands in.
        """
        first = self.holder(self.begin)
        while first and self.ends[first - 1] == self.begin == self.start(first - 1):
            first -= 1
        return self.tokens[first : self._last() + 1]

    def _last(self) -> int:
        """Return the index of the last token that holds content."""
        return self.holder(max(self.end - 1, self.begin))

    def closing(self) -> tuple[Token, ...]:
        """Return the tokens behind a text's content up to its closing quote; empty if the last one holds the quote."""
        return self.tokens[self._last() + 1 : self.holder(self.end) + 1]

    def joint_logprob(self) -> float:
        """Return the sum of the log-probabilities of the tokens that hold content, <= 0."""
        return sum(checked_logprob(token.logprob) for token in self.content())


def checked_logprob(logprob: float) -> float:
    """Return `logprob` clipped to [-9999, 0].

    Raises
    ------
    LogprobsUnavailableError
        It is NaN or above the rounding tolerance.
    """
    if not logprob <= TOLERANCE:  # also catches NaN
        msg = f"Expected a log-probability <= 0, got {logprob}: the answer's evidence cannot be used."
        raise LogprobsUnavailableError(msg)
    return min(max(logprob, IMPOSSIBLE), 0.0)


def joint_logprob(completion: Completion, field_path: str) -> float | None:
    """Return the sum of the log-probabilities of a field's tokens, for any JSON value.

    Parameters
    ----------
    completion : Completion
        The answer.
    field_path : str
        The field, as for `field_value`.

    Returns
    -------
    float or None
        Natural logarithm, <= 0. The quotes of a string do not count, but a token that holds
        content and a quote does. None where the answer has no usable log-probabilities, is
        not JSON, lacks the field, or cannot be aligned with its tokens.

    Raises
    ------
    ConfigurationError
        `field_path` is malformed.
    """
    parse_path(field_path)
    try:
        return align(completion, field_path).joint_logprob()
    except LogprobsUnavailableError:
        return None


def align(completion: Completion, field_path: str) -> AlignedField:
    """Find the tokens that spell the value of `field_path`.

    The tokens may hold more than the text: a code fence, an end-of-turn token, reasoning. So the
    answer's JSON is searched in the tokens' joined bytes, last occurrence first; where a server
    has rewritten the text, a JSON document with the same value at the same path is taken instead.

    Raises
    ------
    LogprobsUnavailableError
        The answer has no usable tokens, or the field cannot be found among them.
    ConfigurationError
        `field_path` is malformed.
    """
    return align_at(completion, parse_path(field_path), field_path)


def align_at(completion: Completion, path: FieldPath, name: str) -> AlignedField:
    """Find the tokens that spell the value at `path`, called `name` in messages; errors as `align`."""
    if not completion.tokens:
        raise LogprobsUnavailableError(
            "Expected token log-probabilities, got none that can be used "
            f"({completion.evidence_problem or 'none were reported'}): ask for them with logprobs=True and "
            "top_logprobs, of a server that reports them."
        )
    body = json_body(completion.text)
    try:
        value = answer_value(body, path, name)
    except UnparsedError as error:
        raise LogprobsUnavailableError(f"The tokens of {name!r} cannot be found: {error}") from error
    stream = b"".join([token.data for token in completion.tokens])
    quote = isinstance(value, str)
    locate = _cached_span if quote and len(stream) <= _SHORT else _span
    span = locate(stream, body, path, value)
    if span is None:
        raise LogprobsUnavailableError(
            f"The tokens do not spell the answer, so {name!r} cannot be aligned: "
            f"tokens {stream[:80]!r}, answer {body[:80]!r}."
        )
    ends = list(accumulate([len(token.data) for token in completion.tokens]))
    return AlignedField(value, completion.tokens, ends, stream, span[0] + quote, span[1] - quote)


def _span(stream: bytes, body: str, path: FieldPath, value: object) -> tuple[int, int] | None:
    """Return the byte offsets in the stream of the value at `path` of the document `body`, quotes included."""
    begin = stream.rfind(body.encode("utf-8", "surrogatepass"))
    try:
        return value_span(stream, begin, path) if begin >= 0 else _search(stream, path, value)
    except LookupError:
        return None


# A label set has few answers: the same text comes again and again, so its span is cached.
_cached_span = lru_cache(maxsize=1024)(_span)


def _search(stream: bytes, path: FieldPath, value: object) -> tuple[int, int] | None:
    """Return the span of `value` in the last document of the stream that has it at `path`."""
    span, position = None, 0
    for _ in range(_MAX_ATTEMPTS):
        starts = [at for at in (stream.find(b"{", position), stream.find(b"[", position)) if at >= 0]
        if not starts:
            break
        position = min(starts)
        try:
            begin, end = value_span(stream, position, ())
            if answer_value(stream[begin:end].decode("utf-8"), path, "") == value:
                span = value_span(stream, position, path)
            position = end
        except (LookupError, ValueError, UnparsedError):
            position += 1
    if span is None or json.loads(stream[slice(*span)]) != value:
        return None
    return span
