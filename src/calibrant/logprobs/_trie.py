"""Prefix trie of the labels: finds the labels still possible after some bytes of a JSON string.

The labels' UTF-8 bytes, sorted, serve as the prefix trie: the labels below a node are one run of
the sorted list, found by bisection. The closing quote is a step of its own, so that ``Bills`` and
``Bills/Gas`` part there. Bytes are decoded on the way down (`advance`), so every spelling of a label
meets at the same node: escaped or not, cut inside a character or inside an escape.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from functools import lru_cache
from os.path import commonprefix
from typing import Final, NamedTuple

from calibrant.core._labels import LabelSet

_HEX = rb"[0-9a-fA-F]"
_HIGH = rb"u[dD][89abAB]" + _HEX + rb"{2}"
# A piece of a string without any of these bytes needs neither decoding nor checking.
_SPECIAL = re.compile(rb'["\\\x00-\x1f]')
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
# One escape; a high surrogate only together with its low half.
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|'
    + _HIGH
    + rb"\\u[dD][c-fC-F]"
    + _HEX
    + rb"{2}|(?!"
    + _HIGH
    + rb")u"
    + _HEX
    + rb"{4})"
)
_CUT_ESCAPE = re.compile(
    rb"\\(?:u" + _HEX + rb"{0,3}|" + _HIGH + rb"(?:\\(?:u(?:[dD](?:[c-fC-F]" + _HEX + rb"?)?)?)?)?)?"
)
SPACES: Final = b" \t\r\n"
_AFTER_STRING = SPACES + b",}]"
_MEMORY: Final = 2048
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")


class StringState(NamedTuple):
    """Position in a JSON string that is being read.

    Attributes
    ----------
    prefix : bytes
        The decoded UTF-8 bytes so far; may end inside a character.
    pending : bytes
        The raw bytes of an incomplete escape.
    closed : bool
        Whether the closing quote has been read.
    """

    prefix: bytes
    pending: bytes = b""
    closed: bool = False


START: Final = StringState(b"")

Branch = tuple[StringState | None, tuple[int, ...]]
"""State after some bytes (None: no string continues so), and the positions of the labels still possible there."""


def advance(state: StringState, data: bytes) -> StringState | None:
    """Return the state after `data`, or None if `data` cannot continue a JSON string."""
    source = state.pending + data if state.pending else data
    prefix, position = state.prefix, 0
    if _SPECIAL.search(source) is None:
        return StringState(prefix + source)
    while position < len(source):
        if source[position] == _QUOTE:
            # Behind the string only structure may follow: `"}`, never `"s`.
            legal = position + 1 == len(source) or source[position + 1] in _AFTER_STRING
            return StringState(prefix, closed=True) if legal else None
        match = (_ESCAPE if source[position] == _BACKSLASH else _PLAIN).match(source, position)
        if match is None:
            cut = _CUT_ESCAPE.fullmatch(source, position)
            return StringState(prefix, source[position:]) if cut else None
        piece = match[0]
        if piece[0] == _BACKSLASH:
            piece = json.loads(b'"%b"' % piece).encode("utf-8", "surrogatepass")
        prefix += piece
        position = match.end()
    return StringState(prefix)


class LabelTrie:
    """Labels of a task, indexed for prefix look-ups.

    Parameters
    ----------
    labels : tuple of str, length L
        The labels; look-ups return their positions.
    aliases : tuple of (str, int)
        Other spellings of a label, with its position.
    """

    def __init__(self, labels: tuple[str, ...], aliases: tuple[tuple[str, int], ...] = ()) -> None:
        self.labels = labels
        self._repeats = bool(aliases)
        spellings = sorted(
            (label.encode("utf-8", "surrogatepass"), position)
            for label, position in (*zip(labels, range(len(labels)), strict=True), *aliases)
        )
        self._keys = [key for key, _ in spellings]
        self._positions = tuple(position for _, position in spellings)
        # Rows of one task list the same alternatives again and again, so the look-ups are cached.
        self.fitting = lru_cache(maxsize=_MEMORY)(self._fitting)
        self.step = lru_cache(maxsize=_MEMORY)(self._step)
        self.enter = lru_cache(maxsize=_MEMORY)(self._enter)
        self.follows = lru_cache(maxsize=_MEMORY)(self._follows)
        self.spellings = lru_cache(maxsize=_MEMORY)(self._spellings)

    def _step(self, state: StringState, data: bytes) -> Branch:
        """Return the state after `data` inside the string, and the labels that are still possible."""
        after = advance(state, data)
        return after, self.fitting(after)

    def _enter(self, structure: bytes, data: bytes) -> Branch:
        """Return state and labels after `data`, which must begin with `structure` and an opening quote.

        White space before the quote may differ from that of the emitted answer.
        """
        if not data.startswith(structure):
            return None, ()
        rest = data[len(structure) :].lstrip(SPACES)
        return self._step(START, rest[1:]) if rest[:1] == b'"' else (None, ())

    def _follows(self, state: StringState) -> frozenset[int] | None:
        """Return the bytes that may come next, or None inside an unfinished escape."""
        if state.pending:
            return None
        done = len(state.prefix)
        return frozenset(b'"\\') | {key[done] for key in self._keys_below(state) if len(key) > done}

    def _spellings(self, state: StringState) -> int:
        """Return the number of nodes below `state` in a trie of the labels' bytes, escapes left out.

        Nodes that labels share count once; the closing quote of every label is a node of its own.
        """
        done, before, count = len(state.prefix), b"", 0
        for key in self._keys_below(state):
            count += 1 + len(key) - max(done, len(commonprefix([before, key])))  # noqa: RUF071 (no paths)
            before = key
        return count

    def _keys_below(self, state: StringState) -> list[bytes]:
        low = bisect_left(self._keys, state.prefix)
        return self._keys[low : bisect_left(self._keys, state.prefix + b"\xff", low)]

    def _fitting(self, state: StringState | None) -> tuple[int, ...]:
        """Return the positions of the labels that are still possible at `state`, each once."""
        if state is None:
            return ()
        low = bisect_left(self._keys, state.prefix)
        if state.closed:
            exact = low < len(self._keys) and self._keys[low] == state.prefix
            return self._positions[low : low + 1] if exact else ()
        # UTF-8 never holds the byte 0xff: it sorts behind every continuation of the prefix.
        high = bisect_left(self._keys, state.prefix + b"\xff", low)
        positions = self._positions[low:high]
        if state.pending:
            done = len(state.prefix)
            positions = tuple(
                position
                for key, position in zip(self._keys[low:high], positions, strict=True)
                if _may_continue(key[done:], state.pending)
            )
        return tuple(dict.fromkeys(positions)) if self._repeats else positions


def _may_continue(rest: bytes, pending: bytes) -> bool:
    """Return whether an escape that begins with `pending` can spell the first character of `rest`."""
    try:
        character = rest.decode("utf-8", "surrogatepass")[:1]
    except UnicodeDecodeError:
        return False  # inside a character, where no escape can begin
    units = character.encode("utf-16-be", "surrogatepass").hex()
    spelled = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
    return spelled.startswith(pending.decode("ascii").lower())


@lru_cache(maxsize=256)
def trie_for(labels: tuple[str, ...], emitted: str) -> LabelTrie:
    """Return the trie of `labels`, with `emitted` as an alias if it is a label in another case."""
    trie, label_set = _plain_trie(labels)
    canonical = label_set.canonical(emitted)
    if canonical is None or canonical == emitted:
        return trie
    return LabelTrie(labels, ((emitted, labels.index(canonical)),))


@lru_cache(maxsize=64)
def _plain_trie(labels: tuple[str, ...]) -> tuple[LabelTrie, LabelSet]:
    label_set = LabelSet(labels)
    return LabelTrie(labels), label_set
