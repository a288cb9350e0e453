"""Where the values of tool calls' arguments stand in an answer, found by bytes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

Span = tuple[int, int]

_ARGUMENTS: Final = "arguments"
# Text in front of a call may hold braces too; that many are tried.
_MAX_ATTEMPTS: Final = 256
# A string (its closing quote may be cut off), a mark, or a number or literal.
_LEXEME = re.compile(
    rb'[ \t\r\n]*(?:"([^"\\]*(?:\\.[^"\\]*)*)(\\?)("?)|([{}\[\]:,])|([^\s{}\[\]:,"]+))', re.DOTALL
)
_LITERAL = re.compile(rb"true|false|null|-?\d[\d.eE+-]*")
# Halves of a surrogate pair may stay apart: only places are wanted.
_UNIT = re.compile(rb"\\u[0-9a-fA-F]{4}|\\.|[^\\]+", re.DOTALL)


def argument_spans(data: bytes) -> list[Span]:
    """Return the byte ranges of all argument values, in order, without overlaps.

    A value is a number, a literal or the content of a string, at any depth below the key
    ``arguments`` of any object: keys, quotes and punctuation are not. Keys behind ``arguments`` in
    the same object belong to the call, not to its arguments. Arguments that are encoded as one
    string are read as the JSON they hold; where they hold none, their content is one value. The
    closing quote stands in for the content of an empty string. Whatever stands around the calls
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
        starts = [at for at in (data.find(b"{", position), data.find(b"[", position)) if at >= 0]
        if not starts:
            break
        reader = _Reader(data, min(starts))
        if reader.run():
            spans.extend(reader.spans)
            position = reader.position
        else:
            position = min(starts) + 1
    return spans


@dataclass(slots=True)
class _Container:
    """An object or array that is open.

    Attributes
    ----------
    is_object : bool
        Else an array.
    inside : bool
        Whether all its values are argument values.
    key : str or None
        The key whose value comes next; None where a key is expected.
    """

    is_object: bool
    inside: bool
    key: str | None = None


@dataclass(slots=True)
class _Reader:
    """Reads one document and marks argument values.

    Attributes
    ----------
    data : bytes
        Holds the document.
    position : int
        Where to go on; the document's beginning at first.
    inside : bool
        Whether the document as a whole is argument values.
    spans : list of (int, int)
        What was marked.
    """

    data: bytes
    position: int
    inside: bool = False
    spans: list[Span] = field(default_factory=list)
    _open: list[_Container] = field(default_factory=list)

    def run(self) -> bool:
        """Read to the document's end, or to that of the data; return whether it was JSON so far."""
        while match := _LEXEME.match(self.data, self.position):
            self.position = match.end()
            mark, scalar = match[4], match[5]
            if mark is not None:
                legal = self._mark(mark)
            elif scalar is not None:
                legal = self._scalar(match.span(5), scalar)
            else:
                legal = self._string(match.span(1), closed=bool(match[3]))
            if not legal:
                return False
            if not self._open:
                return True
        return not self.data[self.position :].strip()

    def _mark(self, mark: bytes) -> bool:
        container = self._open[-1] if self._open else None
        if mark in b"{[":
            if container is not None and container.is_object and container.key is None:
                return False
            self._open.append(_Container(mark == b"{", self._is_argument(container)))
        elif container is None:
            return False
        elif mark in b"}]":
            if container.is_object is not (mark == b"}"):
                return False
            self._open.pop()
        elif mark == b",":
            container.key = None
        else:
            return container.is_object and container.key is not None
        return True

    def _scalar(self, span: Span, text: bytes) -> bool:
        container = self._open[-1] if self._open else None
        if container is None or (container.is_object and container.key is None):
            return False
        cut_off = span[1] == len(self.data)
        if not cut_off and _LITERAL.fullmatch(text) is None:
            return False
        if self._is_argument(container):
            self.spans.append(span)
        return True

    def _string(self, span: Span, *, closed: bool) -> bool:
        container = self._open[-1] if self._open else None
        if container is None:
            return False
        if container.is_object and container.key is None:
            container.key = _key(self.data[slice(*span)]) if closed else None
            return container.key is not None or not closed
        if not self._is_argument(container):
            return True
        if not container.inside and (nested := _encoded(self.data, span)) is not None:
            self.spans.extend(nested)
        elif span[0] < span[1]:
            self.spans.append(span)
        elif closed:
            self.spans.append((span[1], span[1] + 1))
        return True

    def _is_argument(self, container: _Container | None) -> bool:
        if container is None:
            return self.inside
        return container.inside or (container.is_object and container.key == _ARGUMENTS)


def _key(raw: bytes) -> str | None:
    try:
        return str(json.loads(b'"' + raw + b'"', strict=False))
    except ValueError:
        return None


def _encoded(data: bytes, span: Span) -> list[Span] | None:
    """Return the values of the JSON document a string holds, or None where it holds none."""
    raw = data[slice(*span)]
    decoded = bytearray()
    origin: list[Span] = []  # of every decoded byte
    for match in _UNIT.finditer(raw):
        begin, end = match.start() + span[0], match.end() + span[0]
        unit = match[0]
        if unit[:1] != b"\\":
            decoded += unit
            origin += [(at, at + 1) for at in range(begin, end)]
            continue
        text = _key(unit)
        if text is None:
            return None
        found = text.encode("utf-8", "surrogatepass")
        decoded += found
        origin += [(begin, end)] * len(found)
    document = bytes(decoded)
    if document.lstrip()[:1] not in (b"{", b"["):
        return None
    reader = _Reader(document, 0, inside=True)
    if not reader.run() or document[reader.position :].strip():
        return None
    return [(origin[begin][0], origin[end - 1][1]) for begin, end in reader.spans]
