"""Reader and writer of the POMDP file format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade.automix._rows import Array, Bools
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.metrics._validation import check_number

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*")
_REQUIRED: Final = ("discount", "values", "states", "actions", "observations")
_AXES: Final = {
    "T": ("actions", "states", "states"),
    "O": ("actions", "states", "observations"),
    "R": ("actions", "states", "states", "observations"),
}
_ENTRIES: Final = {*_REQUIRED, "start", *_AXES}
_WORDS: Final = {*_ENTRIES, "identity", "uniform", "reward", "cost", "include", "exclude"}
_MOST_NAMES: Final = 10_000
# A few bytes of text may ask for tables of many gigabytes.
_MOST_NUMBERS: Final = 10_000_000


@dataclass(frozen=True, kw_only=True)
class PomdpSpecification:
    """POMDP with names and tables of S states, A actions and O observations.

    Attributes
    ----------
    states, actions, observations : tuple of str
        Their names, each once.
    start : ndarray of shape (S,)
        Probabilities of the states before anything is done.
    transition : ndarray of shape (A, S, S)
        P(next state | action, state).
    observation : ndarray of shape (A, S, O)
        P(observation | action, next state).
    reward : ndarray of shape (A, S, S, O)
        Of an action, by state, next state and observation.
    discount : float, default 0.99
        In [0, 1].

    Raises
    ------
    ConfigurationError
        Names that the file format does not allow, tables of another shape, probabilities that are not, numbers that
        are not finite.
    """

    states: tuple[str, ...]
    actions: tuple[str, ...]
    observations: tuple[str, ...]
    start: Array = field(compare=False)
    transition: Array = field(compare=False)
    observation: Array = field(compare=False)
    reward: Array = field(compare=False)
    discount: float = 0.99

    def __post_init__(self) -> None:
        for kind in ("states", "actions", "observations"):
            _check_names(kind, getattr(self, kind))
        s, a, o = len(self.states), len(self.actions), len(self.observations)
        shapes = {"start": (s,), "transition": (a, s, s), "observation": (a, s, o), "reward": (a, s, s, o)}
        for name, shape in shapes.items():
            table = np.asarray(getattr(self, name), dtype=np.float64)
            if table.shape != shape or not np.isfinite(table).all():
                raise ConfigurationError(
                    f"Expected {name} to hold finite numbers of shape {shape}, got shape {table.shape}."
                )
            if name != "reward" and not _are_probabilities(table).all():
                raise ConfigurationError(
                    f"Expected each row of {name} to hold probabilities that sum to 1, got sums {table.sum(axis=-1)}."
                )
        check_number("discount", self.discount, "[0, 1]")


def read_pomdp(path: str | Path) -> PomdpSpecification:
    """Read a POMDP from a file.

    Parameters
    ----------
    path : str or Path
        UTF-8 text in the format of Cassandra's pomdp-solve: ``discount``, ``values``, ``states``, ``actions``,
        ``observations``, ``start``, then ``T``, ``O`` and ``R`` entries: single numbers, rows or matrices, with ``*``
        for all, ``identity`` and ``uniform``. Later entries replace earlier ones. Costs become negative rewards;
        without ``start`` all states are equally likely.

    Raises
    ------
    DataError
        The file cannot be read or is not of the format, rows of probabilities do not sum to 1, names or numbers are
        missing or unknown; with the line.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant.cascade import POMDPMetaVerifier, read_pomdp
    >>> names = "states: easy hard actions: look trust route observations: low high"
    >>> tables = "T: * identity O: * 0.2 0.8 0.8 0.2 R: route : easy : * : * -0.2 R: route : hard : * : * 0.4"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "routing.pomdp")
    ...     _ = path.write_text(f"discount: 1 values: reward {names} {tables}", encoding="utf-8")
    ...     rule = POMDPMetaVerifier.from_specification(read_pomdp(path))
    >>> rule.gain_.round(2).tolist(), rule.route([0, 1]).tolist()
    ([0.28, -0.08], [True, False])
    """
    place = Path(path)
    reader = _PomdpReader()
    try:
        text = place.read_text(encoding="utf-8")
        return reader.read(text.splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"Expected a POMDP file of UTF-8 text that can be read: {error}.", path=place
        ) from error
    except ValueError as error:
        message = str(error).rstrip(".")
        raise DataError(f"{message}: correct the file.", path=place, line=reader.line) from error


def _check_names(kind: str, names: Sequence[str]) -> None:
    legal = all(isinstance(name, str) and _NAME.fullmatch(name) and name not in _WORDS for name in names)
    if not names or not legal or len(set(names)) != len(names):
        raise ConfigurationError(
            f"Expected {kind} to be different names of letters, digits, '_', '.' and '-', beginning with a letter and "
            f"none of the format's own words, got {names!r}."
        )


def _are_probabilities(table: Array) -> Bools:
    """Return a mask of the rows (along the last axis) that are at least 0 and sum to 1."""
    valid: Bools = (table >= 0.0).all(axis=-1) & (np.abs(table.sum(axis=-1) - 1.0) <= 1e-6)
    return valid


def _probabilities(name: str, row: Array) -> Array:
    """Return the row unchanged; ValueError if it is not a probability distribution."""
    if not _are_probabilities(row):
        raise ValueError(
            f"Expected the probabilities of '{name}' to be at least 0 and sum to 1, got {row.tolist()}"
        )
    return row


def _numbers(name: str, words: list[str], shape: tuple[int, ...]) -> Array:
    numbers = []
    for word in words:
        try:
            numbers.append(float(word))
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise ValueError(f"Expected a finite number, got {word!r}")
    if len(numbers) != math.prod(shape):
        raise ValueError(f"Expected {math.prod(shape)} numbers for '{name}', got {len(numbers)}")
    return np.array(numbers).reshape(shape)


class _PomdpReader:
    """Parser of POMDP files; raises ValueError for a syntax error or a wrong value.

    Attributes
    ----------
    line : int
        Line of the entry that was read last.
    """

    def __init__(self) -> None:
        self.line = 1
        self._given: dict[str, Any] = {}  # what the entries before the tables say, by their first word
        self._tables: dict[str, Array] = {}
        # The line that each row of probabilities is from; 0 where none gave it.
        self._lines: dict[str, NDArray[np.intp]] = {}

    def read(self, lines: Sequence[str]) -> PomdpSpecification:
        """Read the file, and check that nothing is missing and that all distributions sum to 1."""
        for head, words in self._entries(lines):
            if head in _AXES:
                self._read_table(head, words)
            elif head in self._given:
                raise ValueError(f"Expected {head!r} once, got it again")
            else:
                self._given[head] = self._read_head(head, words)
        self.line = max(len(lines), 1)
        self._need(_REQUIRED, "the end of the file")
        for kind in ("T", "O"):
            self._check_rows(kind)
        states = self._given["states"]
        return PomdpSpecification(
            states=states,
            actions=self._given["actions"],
            observations=self._given["observations"],
            start=self._given.get("start", np.full(len(states), 1.0 / len(states))),
            transition=self._tables["T"],
            observation=self._tables["O"],
            reward=self._table("R") * self._given["values"],
            discount=self._given["discount"],
        )

    def _entries(self, lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield the first word of each entry and the words after its colon; keep the line for messages."""
        words = [
            (word, number)
            for number, line in enumerate(lines, start=1)
            for word in line.split("#", 1)[0].replace(":", " : ").split()
        ]
        starts = [
            place
            for place, ((word, _), (mark, _)) in enumerate(pairwise(words))
            if word in _ENTRIES and mark == ":"
        ]
        if words and starts[:1] != [0]:
            first, self.line = words[0]
            raise ValueError(f"Expected an entry, a known word and ':', such as 'states: a b', got {first!r}")
        for begin, end in pairwise([*starts, len(words)]):
            head, self.line = words[begin]
            yield head, [word for word, _ in words[begin + 2 : end]]

    def _read_head(self, head: str, words: list[str]) -> object:
        if head == "discount":
            return check_number("discount", float(_numbers(head, words, ())[()]), "[0, 1]")
        if head == "values":
            if words not in (["reward"], ["cost"]):
                raise ValueError(f"Expected values to be 'reward' or 'cost', got {' '.join(words)!r}")
            return 1.0 if words == ["reward"] else -1.0
        if head == "start":
            return self._read_start(words)
        if len(words) == 1 and words[0].isdigit():
            if not 1 <= int(words[0]) <= _MOST_NAMES:
                raise ValueError(f"Expected 1 to {_MOST_NAMES} {head}, got {words[0]}")
            return tuple(f"{head[:-1]}{i}" for i in range(int(words[0])))
        _check_names(head, words)
        return tuple(words)

    def _read_start(self, words: list[str]) -> Array:
        self._need(("states",), "'start'")
        states = self._given["states"]
        if words == ["uniform"]:
            return np.full(len(states), 1.0 / len(states))
        if words[:1] in (["include"], ["exclude"]):
            raise ValueError(
                "Expected probabilities, 'uniform' or one state after 'start:'; include and exclude are not read"
            )
        if len(words) == 1 and words[0] in states:
            return np.array([float(state == words[0]) for state in states])
        return _probabilities("start", _numbers("start", words, (len(states),)))

    def _read_table(self, kind: str, words: list[str]) -> None:
        """Write an entry's numbers into the part of a table it names, such as ``T: action : state``."""
        table, axes = self._table(kind), _AXES[kind]
        where = [self._index(axes[0], words[:1])]
        rest = words[1:]
        while len(where) < len(axes) and rest[:1] == [":"]:
            where.append(self._index(axes[len(where)], rest[1:2]))
            rest = rest[2:]
        shape = table.shape[len(where) :]
        if len(shape) > 2:
            raise ValueError(f"Expected a state behind '{kind}: action :'")
        if rest == ["uniform"] and shape and kind != "R":
            table[tuple(where)] = 1.0 / shape[-1]
        elif rest == ["identity"] and len(shape) == 2 and kind == "T":
            table[tuple(where)] = np.eye(shape[0])
        else:
            table[tuple(where)] = _numbers(kind, rest, shape)
        self._lines[kind][tuple(where[:2])] = self.line

    def _table(self, kind: str) -> Array:
        """Return a table; create it with zeros at its first entry."""
        if kind not in self._tables:
            self._need(("states", "actions", "observations"), f"'{kind}'")
            shape = tuple(len(self._given[axis]) for axis in _AXES[kind])
            if math.prod(shape) > _MOST_NUMBERS:
                raise ValueError(f"Expected at most {_MOST_NUMBERS} entries in '{kind}', got {shape}")
            self._tables[kind] = np.zeros(shape)
            self._lines[kind] = np.zeros(shape[:2], dtype=np.intp)
        return self._tables[kind]

    def _check_rows(self, kind: str) -> None:
        table, lines = self._table(kind), self._lines[kind]
        for action, state in np.argwhere((lines == 0) | ~_are_probabilities(table)):
            name = f"{kind}: {self._given['actions'][action]} : {self._given['states'][state]}"
            if not lines[action, state]:
                raise ValueError(f"Expected probabilities for '{name}', got none")
            self.line = int(lines[action, state])
            _probabilities(name, table[action, state])

    def _index(self, axis: str, words: list[str]) -> slice | int:
        names: tuple[str, ...] = self._given[axis]
        word = words[0] if words else ""
        if word == "*":
            return slice(None)
        if word in names:
            return names.index(word)
        if not word.isdigit() or int(word) >= len(names):
            raise ValueError(f"Expected one of the {axis} ({' '.join(names[:20])}) or '*', got {word!r}")
        return int(word)

    def _need(self, names: Sequence[str], before: str) -> None:
        missing = [name for name in names if name not in self._given]
        if missing:
            raise ValueError(f"Expected {' and '.join(missing)} before {before}")
