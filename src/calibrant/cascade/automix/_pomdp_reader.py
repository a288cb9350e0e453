"""Reads the POMDP file format word by word, and knows the line of each word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import numpy as np

from calibrant.cascade.automix._routing_checks import Array
from calibrant.core._errors import DataError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*")
_HEAD = ("discount", "values", "states", "actions", "observations", "start")
_AXES = {
    "T": ("actions", "states", "states"),
    "O": ("actions", "states", "observations"),
    "R": ("actions", "states", "states", "observations"),
}
_WORDS = {*_HEAD, *_AXES, "identity", "uniform", "reward", "cost", "include", "exclude"}
_MOST_ENTRIES = 10_000_000


class PomdpReader:
    """Takes one text apart; `read` fills the attributes.

    Attributes
    ----------
    names : dict of str to tuple of str
        Of states, actions and observations.
    tables : dict of str to ndarray
        Of T, O and R, over actions first.
    start : ndarray of shape (S,)
    discount : float
    sign : float
        -1 where the file holds costs.
    """

    def __init__(self, text: str, *, path: Path | None = None) -> None:
        self._path = path
        self._words: list[tuple[str, int]] = []
        for number, line in enumerate(text.splitlines(), start=1):
            self._words += [(word, number) for word in line.split("#", 1)[0].replace(":", " : ").split()]
        self._at = 0
        self._last_line = max(len(text.splitlines()), 1)
        self.names: dict[str, tuple[str, ...]] = {}
        self.tables: dict[str, Array] = {}
        self._lines: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.intp]]] = {}
        self.start: Array = np.empty(0)
        self.discount = -1.0
        self.sign = 0.0

    @staticmethod
    def is_name(word: str) -> bool:
        """Whether a word can be the name of a state, an action or an observation."""
        return isinstance(word, str) and _NAME.fullmatch(word) is not None and word not in _WORDS

    def read(self) -> None:
        """Read everything, and check that nothing is missing and all probabilities sum to 1."""
        readers = {"discount": self._read_discount, "values": self._read_values, "start": self._read_start}
        seen: set[str] = set()
        while self._at < len(self._words):
            word, line = self._words[self._at]
            if word not in _HEAD and word not in _AXES:
                self._fail(f"Expected an entry such as 'T:' or 'states:', got {word!r}", line)
            if word in seen:
                self._fail(f"Expected {word!r} once, got it again", line)
            if word in _HEAD:
                seen.add(word)
            self._at += 1
            self._colon()
            if word in readers:
                readers[word]()
            elif word in _AXES:
                self._read_entry(word)
            else:
                self._read_names(word)
        self._finish(seen)

    # One entry each.

    def _read_discount(self) -> None:
        line = self._line()
        self.discount = self._number()
        if not 0.0 <= self.discount <= 1.0:
            self._fail(f"Expected discount in [0, 1], got {self.discount:g}", line)

    def _read_values(self) -> None:
        word, line = self._next("'reward' or 'cost'")
        if word not in {"reward", "cost"}:
            self._fail(f"Expected values to be 'reward' or 'cost', got {word!r}", line)
        self.sign = 1.0 if word == "reward" else -1.0

    def _read_names(self, kind: str) -> None:
        line = self._line()
        words = self._until_entry()
        if len(words) == 1 and words[0].isdigit():
            count = int(words[0])
            if not 1 <= count <= 10_000:
                self._fail(f"Expected 1 to 10000 {kind}, got {words[0]}", line)
            names = tuple(f"{kind[:-1]}{i}" for i in range(count))
        else:
            names = tuple(words)
        bad = [name for name in names if not self.is_name(name)]
        if not names or bad or len(set(names)) != len(names):
            self._fail(
                f"Expected {kind} to be different names, or their number, got {' '.join(words) or 'none'}",
                line,
            )
        self.names[kind] = names

    def _read_start(self) -> None:
        line = self._line()
        self._need("start", ("states",), line)
        states = self.names["states"]
        words = self._until_entry()
        self.start = np.zeros(len(states))
        if words == ["uniform"]:
            self.start[:] = 1.0 / len(states)
        elif words[:1] in (["include"], ["exclude"]):
            self._fail(
                "Expected probabilities, 'uniform' or one state after 'start:'; include and exclude are not read",
                line,
            )
        elif len(words) == 1 and words[0] in states:
            self.start[states.index(words[0])] = 1.0
        else:
            self._check_length("start", len(words), len(states), line)
            self.start[:] = [self._to_number(word, line) for word in words]
            self._check_row("start", self.start, line)

    def _read_entry(self, kind: str) -> None:
        axes = _AXES[kind]
        line = self._line()
        table = self._table(kind, line)
        where: list[slice | int] = [self._index(axes[0])]
        while len(where) < len(axes) and self._peek() == ":":
            self._at += 1
            where.append(self._index(axes[len(where)]))
        sizes = [len(self.names[axis]) for axis in axes[len(where) :]]
        if len(sizes) > 2:
            self._fail(f"Expected a state behind '{kind}: action :'", line)
        table[tuple(where)] = self._values(kind, sizes, line)
        if kind != "R":
            self._lines[kind][tuple(where[:2])] = line

    def _values(self, kind: str, sizes: list[int], line: int) -> Array:
        """Return the numbers of an entry: one, a row or a matrix."""
        word = self._peek()
        if word == "uniform" and sizes and kind != "R":
            self._at += 1
            return np.full(sizes, 1.0 / sizes[-1])
        if word == "identity" and kind == "T" and len(sizes) == 2:
            self._at += 1
            return np.eye(sizes[0])
        words = self._until_entry()
        self._check_length(kind, len(words), int(np.prod(sizes, dtype=int)), line)
        return np.array([self._to_number(word, line) for word in words]).reshape(sizes)

    # Checks at the end.

    def _finish(self, seen: set[str]) -> None:
        missing = [word for word in _HEAD[:5] if word not in seen]
        if missing:
            self._fail(f"Expected {' and '.join(missing)} before the end of the file", self._last_line)
        for kind in ("T", "O"):
            table = self._table(kind, self._last_line)
            for action, state in np.ndindex(*table.shape[:2]):
                name = f"{kind}: {self.names['actions'][action]} : {self.names['states'][state]}"
                line = int(self._lines[kind][action, state])
                if not line:
                    self._fail(f"Expected probabilities for '{name}', got none", self._last_line)
                self._check_row(name, table[action, state], line)
        self._table("R", self._last_line)
        if "start" not in seen:
            count = len(self.names["states"])
            self.start = np.full(count, 1.0 / count)

    def _check_row(self, name: str, row: Array, line: int) -> None:
        if (row < 0.0).any() or abs(float(row.sum()) - 1.0) > 1e-6:
            self._fail(
                f"Expected the probabilities of '{name}' to be at least 0 and sum to 1, got {row.tolist()}",
                line,
            )

    def _check_length(self, name: str, got: int, wanted: int, line: int) -> None:
        if got != wanted:
            self._fail(f"Expected {wanted} numbers for '{name}', got {got}", line)

    # Words.

    def _table(self, kind: str, line: int) -> Array:
        if kind not in self.tables:
            self._need(kind, ("states", "actions", "observations"), line)
            shape = tuple(len(self.names[axis]) for axis in _AXES[kind])
            if np.prod([float(n) for n in shape]) > _MOST_ENTRIES:
                self._fail(f"Expected at most {_MOST_ENTRIES} entries in '{kind}', got {shape}", line)
            self.tables[kind] = np.zeros(shape)
            self._lines[kind] = np.zeros(shape[:2], dtype=np.intp)
        return self.tables[kind]

    def _need(self, kind: str, before: tuple[str, ...], line: int) -> None:
        missing = [name for name in before if name not in self.names]
        if missing:
            self._fail(f"Expected {' and '.join(missing)} before '{kind}'", line)

    def _index(self, axis: str) -> slice | int:
        word, line = self._next(f"one of the {axis}")
        names = self.names[axis]
        if word == "*":
            return slice(None)
        if word in names:
            return names.index(word)
        if not word.isdigit() or int(word) >= len(names):
            self._fail(f"Expected one of the {axis} ({' '.join(names[:20])}) or '*', got {word!r}", line)
        return int(word)

    def _until_entry(self) -> list[str]:
        """Return the words up to the next entry, which is a known word with a colon behind it."""
        words = []
        while self._at < len(self._words):
            word, line = self._words[self._at]
            behind = self._words[self._at + 1][0] if self._at + 1 < len(self._words) else ""
            if behind == ":" and (word in _HEAD or word in _AXES):
                break
            if word == ":":
                self._fail("Expected a number or a name, got ':'", line)
            words.append(word)
            self._at += 1
        return words

    def _peek(self) -> str:
        return self._words[self._at][0] if self._at < len(self._words) else ""

    def _line(self) -> int:
        return self._words[min(self._at, len(self._words)) - 1][1]

    def _next(self, wanted: str) -> tuple[str, int]:
        if self._at >= len(self._words):
            self._fail(f"Expected {wanted}, got the end of the file", self._last_line)
        self._at += 1
        return self._words[self._at - 1]

    def _colon(self) -> None:
        word, line = self._next("':'")
        if word != ":":
            self._fail(f"Expected ':', got {word!r}", line)

    def _number(self) -> float:
        word, line = self._next("a number")
        return self._to_number(word, line)

    def _to_number(self, word: str, line: int) -> float:
        try:
            number = float(word)
        except ValueError:
            number = float("nan")
        if not np.isfinite(number):
            self._fail(f"Expected a finite number, got {word!r}", line)
        return number

    def _fail(self, message: str, line: int) -> NoReturn:
        raise DataError(
            f"{message}: correct the file." if self._path else f"Line {line}: {message}.",
            path=self._path,
            line=line,
        )
