"""Where rows stand in an engine's memory, and what of them is to be computed next."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["BATCH", "MOST_PLACES", "SEQUENCES", "Job", "Memory", "Place", "Segment", "TooLongError"]

BATCH: Final = 256
"""Tokens computed at once. More are no faster on a processor, and the memory for their results grows with them."""

SEQUENCES: Final = 256
"""Sequences of a context, the most that llama.cpp has."""

MOST_PLACES: Final = SEQUENCES // 4
"""Rows computed at the same time, at most: each needs a few sequences for branches."""

_OUTPUTS: Final = 64  # tokens of a batch whose logits are wanted: 0.2 MB each for 49,152 tokens
# What comes before the last message is computed in pieces of so many tokens: rows whose prompts begin alike share them.
_GRID: Final = 128


class TooLongError(Exception):
    """A text does not fit into the context."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


class Memory(Protocol):
    """An engine's memory of the tokens of sequences."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Let a sequence begin with the tokens of another."""
        ...

    def cut(self, sequence: int, tokens: int) -> None:
        """Keep the first tokens of a sequence."""
        ...


@dataclass(eq=False)
class _Path:
    """Tokens from the beginning of a prompt on, and the sequence that holds them.

    Attributes
    ----------
    tokens : list of int
        All of them.
    computed : int
        How many have been computed; the others are part of the next batch.
    own : int
        From which one on they belong to this path alone.
    """

    sequence: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    own: int = 0


@dataclass(eq=False)
class Place:
    """Room for one row.

    Attributes
    ----------
    prompt : _Path
        Outlives the row: the next one may begin with the same tokens.
    free : list of int
        Sequences for branches.
    n_ctx : int
        Tokens it has room for.
    pieces : list of int
        Where the pieces end in which the prompt is computed.
    branches : list of _Path
        What was computed behind the prompt, or behind a beginning of it.
    is_begun : bool
        Whether the prompt is that of the row that is here.
    """

    prompt: _Path
    free: list[int]
    n_ctx: int
    pieces: list[int] = field(default_factory=list)
    branches: list[_Path] = field(default_factory=list)
    is_begun: bool = False

    @classmethod
    def of(cls, number: int, count: int, *, n_ctx: int) -> Self:
        """Return one of `count` places."""
        each = SEQUENCES // count
        first = number * each
        return cls(prompt=_Path(first), free=list(range(first + each - 1, first, -1)), n_ctx=n_ctx)

    @property
    def cells(self) -> int:
        """Tokens it holds."""
        return len(self.prompt.tokens) + sum(len(path.tokens) - path.own for path in self.branches)

    def begin(self, tokens: Sequence[int], start: int, *, memory: Memory) -> None:
        """Take a row in.

        What was computed for the row before is kept as far as it would be computed in the same pieces now.

        Parameters
        ----------
        tokens : sequence of int
            The prompt.
        start : int
            Where its last message begins.

        Raises
        ------
        TooLongError
            There is no room for the prompt.
        """
        if len(tokens) >= self.n_ctx:
            raise TooLongError(len(tokens))
        self.drop_branches(memory)
        pieces = _pieces(len(tokens), start)
        shared = _shared(tokens, self.prompt.tokens[: self.prompt.computed])
        kept = 0
        for new, old in zip(pieces[:-1], self.pieces, strict=False):
            if new != old or new > shared:
                break
            kept = new
        memory.cut(self.prompt.sequence, kept)
        self.prompt.tokens, self.prompt.computed = list(tokens[:kept]), kept
        self.pieces = pieces
        self.is_begun = True

    def drop_branches(self, memory: Memory) -> None:
        """Forget what was computed behind the prompt."""
        for path in reversed(self.branches):
            memory.cut(path.sequence, 0)
            self.free.append(path.sequence)
        self.branches = []

    def forget(self, memory: Memory) -> None:
        """Forget all that was computed."""
        self.drop_branches(memory)
        memory.cut(self.prompt.sequence, 0)
        self.prompt.tokens, self.prompt.computed = [], 0
        self.is_begun = False

    def nearest(self, tokens: Sequence[int]) -> tuple[_Path, int]:
        """Return the path that shares most of a text's beginning, and how many tokens these are."""
        found, most = self.prompt, _shared(tokens, self.prompt.tokens)
        for path in self.branches:
            count = _shared(tokens, path.tokens)
            if count > most:
                found, most = path, count
        return found, most


@dataclass(eq=False)
class Segment:
    """Tokens to compute in one batch, at the end of a path.

    Attributes
    ----------
    start : int
        Position of the first one.
    text : int or None
        The text of the job whose next tokens are wanted, where it ends here.
    """

    job: Job
    path: _Path
    start: int
    tokens: list[int]
    text: int | None

    @property
    def positions(self) -> NDArray[np.int32]:
        """Positions of the tokens."""
        return np.arange(self.start, self.start + len(self.tokens), dtype=np.int32)

    def take(self, logits: NDArray[np.float32] | None) -> None:
        """Note that the tokens were computed."""
        self.path.computed = self.start + len(self.tokens)
        if self.text is not None and logits is not None:
            self.job.take(self.text, logits)


@dataclass(eq=False)
class Job:
    """Texts of a row whose next tokens are wanted.

    Attributes
    ----------
    place : Place
        Where the row stands.
    texts : list of list of int
        Tokens from the beginning of the prompt on. The first time, the prompt comes first.
    start : int
        Where in it the last message begins.
    future : Future of list of ndarray
        Gets the logits behind every text.
    is_abandoned : bool
        Whether nobody waits for them any more.
    """

    place: Place
    texts: list[list[int]]
    start: int
    future: Future[list[NDArray[np.float32]]] = field(default_factory=Future)
    is_abandoned: bool = False
    _found: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether the logits of every text are there."""
        return len(self._found) == len(self.texts)

    def take(self, text: int, logits: NDArray[np.float32]) -> None:
        """Take the logits behind a text."""
        self._found[text] = logits
        if self.is_done:
            self.future.set_result([self._found[place] for place in range(len(self.texts))])

    def next_segments(self, batch: Sequence[Segment], *, memory: Memory) -> list[Segment]:
        """Return what of the job goes into a batch that holds some segments already.

        Raises
        ------
        TooLongError
            There is no room for a text.
        """
        room = BATCH - sum(len(segment.tokens) for segment in batch)
        piece = self._next_piece(room)
        if piece is not None:
            return piece
        outputs = _OUTPUTS - sum(segment.text is not None for segment in batch)
        found: list[Segment] = []
        # Texts that begin alike stand side by side, the shorter ones first.
        for text in sorted(self._left(), key=self.texts.__getitem__):
            if not (room and outputs):
                break
            segment = self._segment(text, room, memory, is_first=not found)
            if segment is None:
                continue
            found.append(segment)
            room -= len(segment.tokens)
            outputs -= segment.text is not None
        return found

    def _left(self) -> list[int]:
        return [text for text in range(len(self.texts)) if text not in self._found]

    def _next_piece(self, room: int) -> list[Segment] | None:
        """Return the next piece of the prompt, none where it does not fit; None where the prompt was computed."""
        prompt, pieces = self.place.prompt, self.place.pieces
        if prompt.computed >= pieces[-1]:
            return None
        end = next(end for end in pieces if end > prompt.computed)
        if end - prompt.computed > room:
            return []
        tokens = self.texts[0][prompt.computed : end]
        start = prompt.computed
        prompt.tokens = self.texts[0][:end]
        return [Segment(self, prompt, start, tokens, 0 if end == pieces[-1] else None)]

    def _segment(self, text: int, room: int, memory: Memory, *, is_first: bool) -> Segment | None:
        """Return what of a text comes next; None where it has to wait for the next batch."""
        tokens, place = self.texts[text], self.place
        if len(tokens) > place.n_ctx:
            raise TooLongError(len(tokens))
        path, shared = place.nearest(tokens)
        shared = min(shared, len(tokens) - 1)  # the last one is computed anyway: its logits are wanted
        is_tip = shared == len(path.tokens)
        if not is_tip and shared > path.computed:
            return None
        new = tokens[shared : shared + room]
        if place.cells + len(new) > place.n_ctx or not (is_tip or place.free):
            if not is_first:
                return None
            if not place.branches:
                raise TooLongError(place.cells + len(new))
            place.drop_branches(memory)
            return self._segment(text, room, memory, is_first=True)
        if not is_tip:
            branch = _Path(place.free.pop(), list(tokens[:shared]), computed=shared, own=shared)
            memory.copy(path.sequence, branch.sequence, shared)
            place.branches.append(branch)
            path = branch
        path.tokens.extend(new)
        return Segment(self, path, shared, new, text if shared + len(new) == len(tokens) else None)


def _pieces(count: int, start: int) -> list[int]:
    """Return where the pieces end in which a prompt of `count` tokens is computed; `start`: see `Place.begin`."""
    start = min(start, count - 1)
    ends = {*range(_GRID, start, _GRID), start, *range(start + BATCH, count, BATCH), count}
    return sorted(ends - {0})


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts have in common at their beginnings."""
    least = min(len(one), len(other))
    if one[:least] == other[:least]:
        return least
    return next(place for place in range(least) if one[place] != other[place])
