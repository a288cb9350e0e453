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
    length : int
        How many.
    computed : int
        How many have been computed; the others are part of the next batch.
    own : int
        From which one on they belong to this path alone.
    """

    sequence: int
    length: int = 0
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
    tokens : list of int
        Those of `prompt`.
    base : int
        How many tokens come before the row's texts.
    branches : list of _Path
        What was computed behind the prompt, or behind a beginning of it.
    is_begun : bool
        Whether the prompt is that of the row that is here.
    """

    prompt: _Path
    free: list[int]
    n_ctx: int
    tokens: list[int] = field(default_factory=list)
    base: int = 0
    branches: list[_Path] = field(default_factory=list)
    is_begun: bool = False
    # Which path holds the beginnings of texts.
    _holders: dict[tuple[int, ...], _Path] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, count: int, *, n_ctx: int) -> Self:
        """Return one of `count` places."""
        each = SEQUENCES // count
        first = number * each
        return cls(prompt=_Path(first), free=list(range(first + each - 1, first, -1)), n_ctx=n_ctx)

    @property
    def cells(self) -> int:
        """Tokens it holds."""
        return self.prompt.length + sum(path.length - path.own for path in self.branches)

    def begin(self, prompt: Sequence[int], text: Sequence[int], *, memory: Memory) -> None:
        """Take a row in; what was computed for the row before is kept as far as this one begins alike.

        Parameters
        ----------
        prompt : sequence of int
            What comes before the row's texts.
        text : sequence of int
            The first of these.

        Raises
        ------
        TooLongError
            There is no room for them.
        """
        tokens = [*prompt, *text]
        if len(tokens) >= self.n_ctx:
            raise TooLongError(len(tokens))
        self.drop_branches(memory)
        kept = _shared(tokens, self.tokens[: self.prompt.computed])
        memory.cut(self.prompt.sequence, kept)
        self.tokens, self.base = tokens, len(prompt)
        self.prompt.length = self.prompt.computed = kept
        self._holders = {tuple(text[:end]): self.prompt for end in range(1, kept - self.base + 1)}
        self.is_begun = True

    def drop_branches(self, memory: Memory) -> None:
        """Forget what was computed behind the prompt."""
        for path in reversed(self.branches):
            memory.cut(path.sequence, 0)
            self.free.append(path.sequence)
        self.branches = []
        self._holders = {text: path for text, path in self._holders.items() if path is self.prompt}

    def forget(self, memory: Memory) -> None:
        """Forget all that was computed."""
        self.drop_branches(memory)
        memory.cut(self.prompt.sequence, 0)
        self.tokens, self.prompt.length, self.prompt.computed = [], 0, 0
        self.is_begun = False

    def nearest(self, text: tuple[int, ...]) -> tuple[_Path, int]:
        """Return the path that shares most of a text's beginning, and how many tokens it shares with its prompt."""
        end = len(text)
        while end and text[:end] not in self._holders:
            end -= 1
        if end:
            return self._holders[text[:end]], self.base + end
        return self.prompt, min(self.base, self.prompt.length)

    def branch(self, path: _Path, shared: int, memory: Memory) -> _Path:
        """Return a new path that begins with the first tokens of another."""
        computed = min(shared, path.computed)
        branch = _Path(self.free.pop(), shared, computed=computed, own=shared)
        memory.copy(path.sequence, branch.sequence, computed)
        self.branches.append(branch)
        return branch

    def extend(self, path: _Path, text: tuple[int, ...], end: int) -> None:
        """Note that a path goes on with a text, up to a position."""
        begun = max(path.length - self.base, 0)
        for place in range(begun, end - self.base):
            self._holders[text[: place + 1]] = path
        if path is self.prompt and end > self.base:
            self.tokens[self.base + begun :] = text[begun : end - self.base]
        path.length = end


@dataclass(eq=False)
class Segment:
    """Tokens to compute in one batch, at the end of a path.

    Attributes
    ----------
    start : int
        Position of the first one.
    text : int or None
        The text of the job whose next tokens are wanted, where it ends here.
    shared : dict of int to int
        Other sequences that begin with these tokens, and up to which position.
    """

    job: Job
    path: _Path
    start: int
    tokens: list[int]
    text: int | None
    shared: dict[int, int] = field(default_factory=dict)

    @property
    def positions(self) -> NDArray[np.int32]:
        """Positions of the tokens."""
        return np.arange(self.start, self.start + len(self.tokens), dtype=np.int32)

    @property
    def sequences(self) -> list[list[int]]:
        """The sequences of every token."""
        return [
            [self.path.sequence, *(one for one, end in self.shared.items() if position < end)]
            for position in range(self.start, self.start + len(self.tokens))
        ]

    def share(self, path: _Path, branch: _Path, end: int) -> None:
        """Let the tokens before a position that belong to a path belong to a branch of it, too."""
        mine = self.start + len(self.tokens) if path is self.path else self.shared.get(path.sequence, 0)
        if min(mine, end) > self.start:
            self.shared[branch.sequence] = min(mine, end)

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
    prompt : list of int
        What comes before every text of the row.
    texts : list of tuple of int
        Tokens behind the prompt.
    future : Future of list of ndarray
        Gets the logits behind every text.
    is_abandoned : bool
        Whether nobody waits for them any more.
    """

    place: Place
    prompt: list[int]
    texts: list[tuple[int, ...]]
    future: Future[list[NDArray[np.float32]]] = field(default_factory=Future)
    is_abandoned: bool = False
    _found: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether the logits of every text are there."""
        return len(self._found) == len(self.texts)

    def begin(self, *, memory: Memory) -> None:
        """Take the row in, where it is not there yet.

        Raises
        ------
        TooLongError
            There is no room for its prompt.
        """
        if not self.place.is_begun:
            self.place.begin(self.prompt, self.texts[0], memory=memory)

    def take(self, text: int, logits: NDArray[np.float32]) -> None:
        """Take the logits behind a text."""
        self._found[text] = logits
        if self.is_done:
            self.future.set_result([self._found[place] for place in range(len(self.texts))])

    def next_segments(self, batch: Sequence[Segment], *, memory: Memory) -> list[Segment]:
        """Return what of the job goes into a batch that holds some segments of others already.

        Raises
        ------
        TooLongError
            There is no room for a text.
        """
        room = BATCH - sum(len(segment.tokens) for segment in batch)
        outputs = _OUTPUTS - sum(segment.text is not None for segment in batch)
        found: list[Segment] = []
        # Texts that begin alike stand side by side, the shorter ones first.
        for text in sorted(range(len(self.texts)), key=self.texts.__getitem__):
            if text in self._found:
                continue
            segment = self._segment(text, room, memory, found) if room and outputs else None
            if segment is None:
                break
            found.append(segment)
            room -= len(segment.tokens)
            outputs -= segment.text is not None
        return found

    def _segment(self, text: int, room: int, memory: Memory, found: Sequence[Segment]) -> Segment | None:
        """Return what of a text comes next; None where it has to wait for the next batch."""
        tokens, place = self.texts[text], self.place
        length = place.base + len(tokens)
        if length > place.n_ctx:
            raise TooLongError(length)
        path, shared = place.nearest(tokens)
        shared = min(shared, length - 1)  # the last one is computed anyway: its logits are wanted
        end = min(length, shared + room)
        is_tip = shared == path.length
        if place.cells + end - shared > place.n_ctx or not (is_tip or place.free):
            if found:
                return None
            if not place.branches:
                raise TooLongError(place.cells + end - shared)
            place.drop_branches(memory)
            return self._segment(text, room, memory, found)
        behind = tokens[max(shared - place.base, 0) : max(end - place.base, 0)]
        new = [*place.tokens[shared : min(end, place.base)], *behind]
        if not is_tip:
            origin, path = path, place.branch(path, shared, memory)
            for segment in found:
                segment.share(origin, path, shared)
        place.extend(path, tokens, end)
        return Segment(self, path, shared, new, text if end == length else None)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts have in common at their beginnings."""
    least = min(len(one), len(other))
    if one[:least] == other[:least]:
        return least
    return next(place for place in range(least) if one[place] != other[place])
