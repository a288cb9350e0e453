"""Token filters of confidence methods."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Literal, TypeAlias

from calibrant.core._completion import Completion, Token
from calibrant.core._errors import LogprobsUnavailableError
from calibrant.logprobs._fields import align

TokenFilter: TypeAlias = Literal["all", "stop", "label", "tool_call_args"]
"""``all``: every token. ``label``: those that hold content of the label field's value. ``stop``: all
but special, stop and layout tokens. ``tool_call_args``: those that hold values of a tool call's arguments.
Under no filter count tokens that were given to the model or forced on it: probability 1, and no alternative.

Examples
--------
>>> from calibrant.cascade import AvgLogprob
>>> from calibrant.core import ConfigurationError
>>> dict(AvgLogprob(token_filter="stop").describe())
{'method': 'avg_logprob', 'token_filter': 'stop'}
>>> try:
...     AvgLogprob(token_filter="first")
... except ConfigurationError as error:
...     print(error)
Expected token_filter to be one of 'all', 'stop', 'label', 'tool_call_args', got 'first'.
"""

# A rounding error of a 32-bit float below probability 1.
_CERTAIN: Final = -1e-6

# JSON punctuation, quotes, the marks of a code fence, and white space.
_LAYOUT: Final = b'{}[]:,"` \t\r\n\v\f'
_SPECIAL = re.compile(
    rb"<[|\xef][^<>\s]*[|\x9c]>"  # <|im_end|>, and DeepSeek's with full-width bars
    rb"|</?s>|<(?:bos|eos|pad|unk|eot|eom|start_of_turn|end_of_turn|end_of_sentence|endoftext)>"
    rb"|\[/?INST\]"
)
_FENCE = re.compile(rb"\s*```[\w+-]*[ \t]*(?=\r?\n|$)")

# A quote behind a backslash is part of a string.
_ARGUMENTS: Final = re.compile(rb'(?<!\\)"arguments"[ \t\r\n]*:[ \t\r\n]*')
_DECODER: Final = json.JSONDecoder()
# Literals, and what may follow the digits of a number.
_CUT_OFF: Final = ("true", "false", "null", "NaN", "Infinity", "-Infinity", ".", "e+", "e-", "E+", "E-")
_MOST_FAILURES: Final = 256  # each takes time in proportion to the answer
_LONGEST: Final = max(map(len, _CUT_OFF))
# Only places are wanted, so that an escape that JSON does not know, or a raw line break, is no fault.
_UNSAFE: Final = re.compile(rb"\\.|[\x00-\x1f]", re.DOTALL)
# A string (its closing quote may be cut off), a mark, or a number or literal.
_LEXEME: Final = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)\\?("?)|([{}\[\]:,])|([^\s{}\[\]:,"]+)', re.DOTALL)
_STRING, _QUOTE, _MARK, _SCALAR = 1, 2, 3, 4  # its groups
_PARTNERS: Final = {b"}": b"{", b"]": b"["}
# Halves of a surrogate pair may stay apart: only places are wanted.
_UNIT: Final = re.compile(rb"\\u[0-9a-fA-F]{4}|\\.|[^\\]+", re.DOTALL)

Span: TypeAlias = tuple[int, int]


def kept_tokens(tokens: Sequence[Token], which: TokenFilter, *, text: str, field: str) -> tuple[Token, ...]:
    """Return the tokens that a filter selects, in order; raise if it selects none.

    A token is dropped by ``stop`` if all it holds is JSON punctuation (braces, brackets, colons,
    commas, quotes), backticks or white space, nothing at all, or one special token such as
    ``<|im_end|>`` or ``</s>``; the first line of a code fence is dropped as a whole. A token that
    holds anything else beside them counts.

    Parameters
    ----------
    tokens : sequence of Token
        All tokens of the answer.
    which : TokenFilter
        Which of them count.
    text : str
        The answer, as the model wrote it.
    field : str
        JSON path of the label, for ``label``.

    Raises
    ------
    LogprobsUnavailableError
        No token counts, or the label cannot be found among them.
    """
    if which == "label":
        return align(Completion(text=text, tokens=tuple(tokens)), field).content()
    if which == "tool_call_args":
        kept = _holding_arguments(tokens)
    elif which == "stop":
        kept = _holding_content(tokens)
    else:
        kept = tuple(tokens)
    if not kept:
        content = "values of a tool call's arguments" if which == "tool_call_args" else "content"
        raise LogprobsUnavailableError(
            f"Expected tokens that hold {content}, got none among {len(tokens)} tokens of {text[:80]!r}: use another "
            "token_filter, such as 'label' or 'all'."
        )
    return kept


def chosen_tokens(kept: Sequence[Token], tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Return the tokens at which the model had a choice, in order; raise if there is none.

    A token of probability 1 without an alternative was given to the model (the beginning of its answer) or forced
    on it by a grammar, and says nothing about how sure it is. Where a server lists no alternatives at all, that
    cannot be told, and every token counts.

    Parameters
    ----------
    kept : sequence of Token
        The tokens a filter kept.
    tokens : sequence of Token
        All tokens of the answer.

    Raises
    ------
    LogprobsUnavailableError
        The model had no choice at any of them.
    """
    if not any(token.top for token in tokens):
        return tuple(kept)
    chosen = tuple(
        token
        for token in kept
        if token.logprob < _CERTAIN or any(data != token.data for data, _ in token.top)
    )
    if not chosen:
        raise LogprobsUnavailableError(
            f"Expected a token at which the model had a choice, got {len(kept)} of probability 1 without an "
            "alternative, which were given to the model or forced on it: use another token_filter, such as 'label', "
            "or the method label_probability."
        )
    return chosen


def _holding_content(tokens: Sequence[Token]) -> tuple[Token, ...]:
    fence = _FENCE.match(b"".join([token.data for token in tokens]))
    behind = 0 if fence is None else fence.end()
    ends = accumulate([len(token.data) for token in tokens])
    return tuple(
        token
        for token, end in zip(tokens, ends, strict=True)
        if end > behind and token.data.strip(_LAYOUT) and not _SPECIAL.fullmatch(token.data.strip())
    )


def _holding_arguments(tokens: Sequence[Token]) -> tuple[Token, ...]:
    spans = argument_spans(b"".join([token.data for token in tokens]))
    starts = accumulate([len(token.data) for token in tokens], initial=0)
    # An empty token counts where it stands in a value: some servers report a cut character so.
    return tuple(
        token
        for token, start in zip(tokens, starts, strict=False)
        if any(begin < start + max(1, len(token.data)) and start < end for begin, end in spans)
    )


def argument_spans(data: bytes) -> list[Span]:
    """Return the byte ranges of all argument values, in order, without overlaps.

    A value is a number, a literal or the content of a string, at any depth below the key
    ``arguments`` of any object: keys, quotes and punctuation are not. Keys behind ``arguments`` in
    the same object belong to the call, not to its arguments. Arguments that are encoded as one
    string are read as the JSON they hold; where they hold none, their content is one value. The
    closing quote stands in for the content of an empty string. Everything around the calls
    (``<tool_call>``, prose, a code fence) is passed over, and a call that was cut off counts as far
    as it goes. What follows 256 values that are no JSON is not read.

    Parameters
    ----------
    data : bytes
        The answer.
    """
    spans: list[Span] = []
    text, end, failures = _plain_text(data), 0, 0
    for key in _ARGUMENTS.finditer(data):
        begin = key.end()
        if begin < end:  # among the arguments of another call
            continue
        if failures == _MOST_FAILURES:
            break
        try:
            end = _value_end(text, begin)
        except RecursionError:  # a call inside may be read
            continue
        failures += end == begin
        string = _LEXEME.match(data, begin, end) if data[begin : begin + 1] == b'"' else None
        encoded = None if string is None else _encoded_spans(string[_STRING], begin + 1)
        spans += _content_spans(data, begin, end) if encoded is None else encoded
    return spans


def _plain_text(data: bytes) -> str:
    """Decode bytes one to one, with spaces in place of escapes and control characters."""
    return _UNSAFE.sub(lambda unsafe: b" " * len(unsafe[0]), data).decode("latin-1")


def _value_end(text: str, begin: int) -> int:
    """Return the end of the JSON value at `begin`: len(text) if cut off, `begin` if invalid."""
    try:
        return _DECODER.raw_decode(text, begin)[1]
    except json.JSONDecodeError as error:
        # The decoder stops where JSON ends, so that text after it, which may be long, is not read.
        rest = text[error.pos : error.pos + _LONGEST + 1]
        is_cut_off = error.msg.startswith("Unterminated string") or any(
            one.startswith(rest) for one in _CUT_OFF
        )
        return len(text) if is_cut_off else begin


def _content_spans(data: bytes, begin: int, end: int) -> list[Span]:
    """Return the byte ranges of all scalar values in a JSON document; [] if brackets do not match."""
    spans: list[Span] = []
    opened: list[bytes] = []
    last = b""
    for match in _LEXEME.finditer(data, begin, end):
        mark = match[_MARK] or b""
        if mark in _PARTNERS.values():
            opened.append(mark)
        elif mark in _PARTNERS and opened.pop() != _PARTNERS[mark]:
            return []
        elif match[_SCALAR]:
            spans.append(match.span(_SCALAR))
        elif not mark and not (opened[-1:] == [b"{"] and last in {b"{", b","}):  # no key
            start, stop = match.span(_STRING)
            spans += [(start, stop)] if start < stop else [match.span(_QUOTE)] * bool(match[_QUOTE])
        last = mark
    return spans


def _encoded_spans(raw: bytes, start: int) -> list[Span] | None:
    """Return the byte ranges of the values of JSON that a string holds; None if it holds no JSON."""
    decoded = bytearray()
    origin: list[Span] = []  # of every decoded byte
    for match in _UNIT.finditer(raw):
        begin, end = match.start() + start, match.end() + start
        if not match[0].startswith(b"\\"):
            decoded += match[0]
            origin += [(at, at + 1) for at in range(begin, end)]
            continue
        try:
            unit = json.loads(b'"' + match[0] + b'"').encode("utf-8", "surrogatepass")
        except ValueError:
            return None
        decoded += unit
        origin += [(begin, end)] * len(unit)
    document = bytes(decoded).rstrip()
    first = len(document) - len(document.lstrip())
    if document[first : first + 1] not in _PARTNERS.values():
        return None
    try:
        if _value_end(_plain_text(document), first) < len(document):
            return None
    except RecursionError:
        return None
    return [
        (origin[begin][0], origin[end - 1][1])
        for begin, end in _content_spans(document, first, len(document))
    ]
