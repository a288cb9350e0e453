"""A small engine in this process that reports all tokens and has known probabilities."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np

from calibrant.core import CompletionRequest, ContextLengthError, LogprobSpace, NextTokens, Usage
from calibrant.core._completion import TokenLogprobs, Vocabulary

CHARACTERS = Vocabulary([bytes([byte]) for byte in range(32, 127)])


class Engine:
    """A model in this process whose tokens are characters by default."""

    name = "test/characters"
    space = LogprobSpace.EXACT
    in_process = True
    default_tolerance = 0.05

    def __init__(
        self, *, context: int = 10_000, vocabulary: Vocabulary = CHARACTERS, pieces: Sequence[bytes] = ()
    ) -> None:
        self.context, self.vocabulary = context, Vocabulary(pieces) if pieces else vocabulary
        self.rows: list[Row] = []

    async def complete(self, request: CompletionRequest) -> object:
        """Raise an error, as nothing must be decoded."""
        raise NotImplementedError(request)

    def close(self) -> None:
        """Close nothing."""

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Accept every label."""

    def row(self, text: str) -> Row:
        """Return the session of a text."""
        return Row(self, text)

    @asynccontextmanager
    async def continuing(self, request: CompletionRequest) -> AsyncIterator[Row]:
        """Open a session for a row."""
        row = self.row(str(request.messages[-1]["content"]))
        self.rows.append(row)
        yield row


class Row:
    """Session of a row that records its calls."""

    serial = False
    model = "characters"

    def __init__(self, engine: Engine, text: str) -> None:
        self.engine, self.text, self.vocabulary = engine, text, engine.vocabulary
        self.asked: list[list[str]] = []

    @property
    def usage(self) -> Usage:
        """One token for each scored text."""
        return Usage(prompt_tokens=1, completion_tokens=sum(map(len, self.asked)))

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text, always the longest one that fits."""
        number = {piece: token for token, piece in enumerate(self.vocabulary.pieces)}
        found, data = [], text.encode()
        while data:
            longest = next(data[:size] for size in range(8, 0, -1) if data[:size] in number)
            found.append(number[longest])
            data = data[len(longest) :]
        return tuple(found)

    def spelled(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens write."""
        return b"".join(self.vocabulary.pieces[token] for token in tokens).decode()

    async def next_tokens(self, text: str, *, few: bool = False) -> NextTokens:
        """Raise an error, as all tokens are known."""
        raise NotImplementedError(text, few)

    async def next_logprobs(self, texts: Sequence[Sequence[int]]) -> list[TokenLogprobs]:
        """Return the log-probabilities of all tokens after each text."""
        if len(self.text) > self.engine.context:
            raise ContextLengthError("The text is too long.", provider="characters")
        self.asked.append([self.spelled(text) for text in texts])
        await asyncio.sleep(0)
        return [TokenLogprobs(self.vocabulary, self.after(tuple(text))) for text in texts]

    def after(self, text: tuple[int, ...]) -> np.ndarray:
        """Return the logits after these tokens."""
        rng = random.Random(f"{self.text}/{text}")
        return np.array([6.0 * rng.random() for _ in self.vocabulary.pieces], dtype=np.float32)


class Telling(Engine):
    """Engine whose label tokens reveal nothing, while its other tokens reveal which of two labels a text has."""

    def __init__(self, place: Callable[[str], int]) -> None:
        super().__init__()
        self.place = place

    def row(self, text: str) -> Row:
        """Return the row of a text."""
        return TellingRow(self, text)


class TellingRow(Row):
    """Row of a `Telling` engine."""

    engine: Telling

    def after(self, text: tuple[int, ...]) -> np.ndarray:
        """Return the logits of the next token."""
        logits = super().after(text)
        capitals = slice(ord("A") - 32, ord("Z") - 31)
        logits[capitals] += 6.0 * self.engine.place(self.text)
        return logits
