"""Byte ranges of tool-call argument values in an answer."""

from __future__ import annotations

import json
import re
from typing import Final

Span = tuple[int, int]

_ARGUMENTS: Final = "arguments"
# Text in front of a call may hold braces too; that many are tried.
_MAX_ATTEMPTS: Final = 256
_OPENING: Final = re.compile(rb"[{\[]")
# A string (its closing quote may be cut off), a mark, or a number or literal.
_LEXEME: Final = re.compile(
    rb'[ \t\r\n]*(?:"([^"\\]*(?:\\.[^"\\]*)*)(?:\\?)("?)|([{}\[\]:,])|([^\s{}\[\]:,"]+))', re.DOTALL
)
_STRING, _QUOTE, _MARK, _SCALAR = 1, 2, 3, 4  # its groups
_LITERAL: Final = re.compile(rb"true|false|null|-?\d[\d.eE+-]*")
# Halves of a surrogate pair may stay apart: only places are wanted.
_UNIT: Final = re.compile(rb"\\u[0-9a-fA-F]{4}|\\.|[^\\]+", re.DOTALL)


def argument_spans(data: bytes) -> list[Span]:
    """Return the byte ranges of all argument values, in order, without overlaps.

    A value is a number, a literal or the content of a string, at any depth below the key
    ``arguments`` of any object: keys, quotes and punctuation are not. Keys behind ``arguments`` in
    the same object belong to the call, not to its arguments. Arguments that are encoded as one
    string are read as the JSON they hold; where they hold none, their content is one value. The
    closing quote stands in for the content of an empty string. Everything around the calls
    (``<tool_call>``, prose, a code fence) is passed over, and a call that was cut off counts as far
    as it goes.

    Parameters
    ----------
    data : bytes
        The answer.
    """
    spans: list[Span] = []
    position = 0
    for _ in range(_MAX_ATTEMPTS):
        opening = _OPENING.search(data, position)
        if opening is None:
            break
        reader = _CallReader(data, opening.start())
        if reader.read(inside=False):
            spans += reader.spans
            position = reader.position
        else:
            position = opening.end()
    return spans


class _CutOffError(Exception):
    """The data ended inside a document."""


class _CallReader:
    """Reader of one JSON document that marks argument values.

    Attributes
    ----------
    position : int
        End of the document, once it is read.
    spans : list of (int, int)
        The marked ranges.
    """

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position
        self.spans: list[Span] = []

    def read(self, *, inside: bool) -> bool:
        """Read to the end of the document or data; return True if it was valid JSON so far.

        `inside` says that the document as a whole is argument values.
        """
        try:
            self._value(self._next(), inside=inside)
        except _CutOffError:
            self.position = len(self.data)
        except (ValueError, RecursionError):
            return False
        return True

    def _next(self) -> re.Match[bytes]:
        match = _LEXEME.match(self.data, self.position)
        if match is None:
            if self.data[self.position :].strip():
                raise ValueError
            raise _CutOffError
        self.position = match.end()
        return match

    def _value(self, match: re.Match[bytes], *, inside: bool, may_be_encoded: bool = False) -> None:
        """Read the value that begins with this lexeme."""
        if match[_MARK] == b"{":
            self._object(inside=inside)
        elif match[_MARK] == b"[":
            while (item := self._next())[_MARK] != b"]":
                if item[_MARK] != b",":
                    self._value(item, inside=inside)
        elif match[_MARK]:
            raise ValueError
        elif match[_SCALAR]:
            cut_off = match.end() == len(self.data)
            if not cut_off and _LITERAL.fullmatch(match[_SCALAR]) is None:
                raise ValueError
            if inside:
                self.spans.append(match.span(_SCALAR))
        elif inside:
            self._string(match, may_be_encoded=may_be_encoded)

    def _object(self, *, inside: bool) -> None:
        while (match := self._next())[_MARK] != b"}":
            if match[_MARK] == b",":
                continue
            if match[_STRING] is None:
                raise ValueError
            if not match[_QUOTE]:
                raise _CutOffError
            key = json.loads(b'"' + match[_STRING] + b'"', strict=False)
            if self._next()[_MARK] != b":":
                raise ValueError
            begins = not inside and key == _ARGUMENTS
            self._value(self._next(), inside=inside or begins, may_be_encoded=begins)

    def _string(self, match: re.Match[bytes], *, may_be_encoded: bool) -> None:
        begin, end = match.span(_STRING)
        encoded = _encoded_spans(match[_STRING], begin) if may_be_encoded else None
        if encoded is not None:
            self.spans += encoded
        elif begin < end:
            self.spans.append((begin, end))
        elif match[_QUOTE]:
            self.spans.append((end, end + 1))


def _encoded_spans(raw: bytes, start: int) -> list[Span] | None:
    """Return the argument spans of JSON encoded in the string at `start`, or None."""
    decoded = bytearray()
    origin: list[Span] = []  # of every decoded byte
    for match in _UNIT.finditer(raw):
        begin, end = match.start() + start, match.end() + start
        if match[0].startswith(b"\\"):
            try:
                unit = json.loads(b'"' + match[0] + b'"').encode("utf-8", "surrogatepass")
            except ValueError:
                return None
            decoded += unit
            origin += [(begin, end)] * len(unit)
        else:
            decoded += match[0]
            origin += [(at, at + 1) for at in range(begin, end)]
    document = bytes(decoded)
    reader = _CallReader(document, 0)
    if _OPENING.match(document.lstrip()) is None or not reader.read(inside=True):
        return None
    if document[reader.position :].strip():
        return None
    return [(origin[begin][0], origin[end - 1][1]) for begin, end in reader.spans]
