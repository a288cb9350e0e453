"""Memory of the embedded engine: its parts for rows, shared beginnings of texts, and batches."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

BATCH: Final = 256
"""Tokens of a batch. More are no faster on a CPU, and the memory for their results grows with them."""

SEQUENCES: Final = 256
"""Sequences of a context: llama.cpp's maximum."""

MOST_PLACES: Final = SEQUENCES // 4
"""Largest number of rows computed at the same time: each needs a few sequences for branches."""

LEAST_TOKENS: Final = BATCH
"""Smallest context, in tokens: llama.cpp ends the process where a batch does not fit."""

MOST_TOKENS: Final = 1 << 24
"""Largest context of all places together, in tokens. llama.cpp counts them with 32 bits, and keeps a record of each
before it finds that the model's memory is too small: a thousand million take all memory of the machine."""

_OUTPUTS: Final = 64  # tokens of a batch with logits, at most: 0.2 MB each for a vocabulary of 49,152


class TooLongError(Exception):
    """Error for a text that does not fit into the context."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


class Memory(Protocol):
    """Protocol of the engine's cache: the computed tokens of each sequence."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` tokens of one sequence into another."""
        ...

    def cut(self, sequence: int, tokens: int) -> None:
        """Remove all but the first `tokens` tokens of a sequence."""
        ...


@dataclass(eq=False)
class _Path:
    """Tokens from the beginning of a prompt on, and the sequence of the cache that holds them.

    Attributes
    ----------
    length : int
        Number of tokens.
    computed : int
        Number of computed tokens; the others are part of the next batch.
    own : int
        Position from which on the tokens belong to this path alone.
    """

    sequence: int
    length: int = 0
    computed: int = 0
    own: int = 0


@dataclass(eq=False)
class EnginePlace:
    """Part of the engine's memory that one row uses.

    Attributes
    ----------
    prompt : _Path
        Outlives the row: the next one may begin with the same tokens.
    free : list of int
        Sequences for branches.
    n_ctx : int
        Its capacity, in tokens.
    tokens : list of int
        Tokens of `prompt`.
    base : int
        Number of tokens before the row's texts.
    branches : list of _Path
        Computed continuations of the prompt, or of a beginning of it.
    is_begun : bool
        True once `prompt` belongs to the current row.
    """

    prompt: _Path
    free: list[int]
    n_ctx: int
    tokens: list[int] = field(default_factory=list)
    base: int = 0
    branches: list[_Path] = field(default_factory=list)
    is_begun: bool = False
    # The path that holds each beginning of a text.
    _holders: dict[tuple[int, ...], _Path] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, count: int, *, n_ctx: int) -> Self:
        """Return part `number` of the memory, which is divided into `count` parts."""
        each = SEQUENCES // count
        first = number * each
        return cls(prompt=_Path(first), free=list(range(first + each - 1, first, -1)), n_ctx=n_ctx)

    @property
    def cells(self) -> int:
        """Number of tokens that the row holds in memory."""
        return self.prompt.length + sum(path.length - path.own for path in self.branches)

    def begin(self, prompt: Sequence[int], text: Sequence[int], *, memory: Memory) -> None:
        """Begin a row, and keep the computed tokens of the last row up to the first difference.

        Parameters
        ----------
        prompt : sequence of int
            Tokens before the row's texts.
        text : sequence of int
            The row's first text.

        Raises
        ------
        TooLongError
            The tokens exceed the capacity.
        """
        tokens = [*prompt, *text]
        if len(tokens) >= self.n_ctx:
            raise TooLongError(len(tokens))
        self.drop_branches(memory)
        kept = len(commonprefix([tokens, self.tokens[: self.prompt.computed]]))  # noqa: RUF071 (no paths)
        memory.cut(self.prompt.sequence, kept)
        self.tokens, self.base = tokens, len(prompt)
        self.prompt.length = self.prompt.computed = kept
        self._holders = {tuple(text[:end]): self.prompt for end in range(1, kept - self.base + 1)}
        self.is_begun = True

    def drop_branches(self, memory: Memory) -> None:
        """Delete the branches, and keep the prompt."""
        for path in reversed(self.branches):
            memory.cut(path.sequence, 0)
            self.free.append(path.sequence)
        self.branches = []
        self._holders = {text: path for text, path in self._holders.items() if path is self.prompt}

    def forget(self, memory: Memory) -> None:
        """Delete all computed tokens of the row."""
        self.drop_branches(memory)
        memory.cut(self.prompt.sequence, 0)
        self.tokens, self.prompt.length, self.prompt.computed = [], 0, 0
        self.is_begun = False

    def nearest(self, text: tuple[int, ...]) -> tuple[_Path, int]:
        """Return the path that shares most tokens with `text`, and their number with the prompt."""
        end = len(text)
        while end and text[:end] not in self._holders:
            end -= 1
        if end:
            return self._holders[text[:end]], self.base + end
        return self.prompt, min(self.base, self.prompt.length)

    def branch(self, path: _Path, shared: int, memory: Memory) -> _Path:
        """Return a new path that shares the first `shared` tokens of another path."""
        computed = min(shared, path.computed)
        branch = _Path(self.free.pop(), shared, computed=computed, own=shared)
        memory.copy(path.sequence, branch.sequence, computed)
        self.branches.append(branch)
        return branch

    def extend(self, path: _Path, text: tuple[int, ...], end: int) -> None:
        """Add tokens of `text` to a path, up to the position `end`; they are computed later."""
        start = max(path.length - self.base, 0)
        for place in range(start, end - self.base):
            self._holders[text[: place + 1]] = path
        if path is self.prompt and end > self.base:
            self.tokens[self.base + start :] = text[start : end - self.base]
        path.length = end


@dataclass(eq=False)
class Segment:
    """Tokens to compute in one batch, at the end of a path.

    Attributes
    ----------
    start : int
        Position of the first one.
    text : int or None
        The text of the job that ends here, whose logits are needed.
    shared : dict of int to int
        Other sequences that share these tokens, with the end position of each.
    """

    job: Job
    path: _Path
    start: int
    tokens: list[int]
    text: int | None
    shared: dict[int, int] = field(default_factory=dict)

    @property
    def positions(self) -> NDArray[np.int32]:
        """Positions of the tokens in the text."""
        return np.arange(self.start, self.start + len(self.tokens), dtype=np.int32)

    @property
    def sequences(self) -> list[list[int]]:
        """Sequences that each token belongs to."""
        return [
            [self.path.sequence, *(one for one, end in self.shared.items() if position < end)]
            for position in range(self.start, self.start + len(self.tokens))
        ]

    def share(self, path: _Path, branch: _Path, end: int) -> None:
        """Assign the tokens of `path` before position `end` to the sequence of `branch` as well."""
        path_end = self.start + len(self.tokens) if path is self.path else self.shared.get(path.sequence, 0)
        if min(path_end, end) > self.start:
            self.shared[branch.sequence] = min(path_end, end)

    def take(self, logits: NDArray[np.float32] | None) -> None:
        """Mark the tokens as computed, and pass the logits on to the job."""
        self.path.computed = self.start + len(self.tokens)
        if self.text is not None and logits is not None:
            self.job.take(self.text, logits)


@dataclass(eq=False)
class Job:
    """Computation for one row: texts, and the future of their logits.

    Attributes
    ----------
    place : EnginePlace
        The row's place.
    prompt : list of int
        Tokens before every text of the row.
    texts : list of tuple of int
        Tokens behind the prompt.
    future : Future of list of ndarray
        Gets the logits behind every text.
    is_abandoned : bool
        True once the caller has cancelled it.
    """

    place: EnginePlace
    prompt: list[int]
    texts: list[tuple[int, ...]]
    future: Future[list[NDArray[np.float32]]] = field(default_factory=Future)
    is_abandoned: bool = False
    _logits: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """True once the logits of every text are computed."""
        return len(self._logits) == len(self.texts)

    def begin(self, *, memory: Memory) -> None:
        """Begin the row in its part of the memory, unless an earlier job did so.

        Raises
        ------
        TooLongError
            Its prompt exceeds the capacity.
        """
        if not self.place.is_begun:
            self.place.begin(self.prompt, self.texts[0], memory=memory)

    def take(self, text: int, logits: NDArray[np.float32]) -> None:
        """Record the logits behind a text; the last ones complete the future."""
        self._logits[text] = logits
        if self.is_done:
            self.future.set_result([self._logits[place] for place in range(len(self.texts))])

    def next_segments(self, batch: Sequence[Segment], *, memory: Memory) -> list[Segment]:
        """Return the segments of this job that fit into a batch with segments of other jobs.

        Raises
        ------
        TooLongError
            A text exceeds the capacity.
        """
        room = BATCH - sum(len(segment.tokens) for segment in batch)
        outputs = _OUTPUTS - sum(segment.text is not None for segment in batch)
        segments: list[Segment] = []
        # Sorted, so that texts with a common prefix follow each other, the shorter ones first.
        for text in sorted(range(len(self.texts)), key=self.texts.__getitem__):
            if text in self._logits:
                continue
            segment = self._segment(text, room, memory, segments) if room and outputs else None
            if segment is None:
                break
            segments.append(segment)
            room -= len(segment.tokens)
            outputs -= segment.text is not None
        return segments

    def _segment(self, text: int, room: int, memory: Memory, earlier: Sequence[Segment]) -> Segment | None:
        """Return the next segment of a text; None if it has to wait for the next batch."""
        tokens, place = self.texts[text], self.place
        length = place.base + len(tokens)
        if length > place.n_ctx:
            raise TooLongError(length)
        path, shared = place.nearest(tokens)
        shared = min(shared, length - 1)  # the last token is always computed, for its logits
        end = min(length, shared + room)
        is_tip = shared == path.length
        if place.cells + end - shared > place.n_ctx or not (is_tip or place.free):
            if earlier:
                return None
            if not place.branches:
                raise TooLongError(place.cells + end - shared)
            place.drop_branches(memory)
            return self._segment(text, room, memory, earlier)
        behind = tokens[max(shared - place.base, 0) : max(end - place.base, 0)]
        new = [*place.tokens[shared : min(end, place.base)], *behind]
        if not is_tip:
            origin, path = path, place.branch(path, shared, memory)
            for segment in earlier:
                segment.share(origin, path, shared)
        place.extend(path, tokens, end)
        return Segment(self, path, shared, new, text if end == length else None)
