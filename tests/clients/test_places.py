"""Tests of places of an engine: each text is computed after its own beginning, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.clients._engine import EnginePlace, Job, TooLongError

Tokens = list[int]
BATCH = 256  # tokens at most


@dataclass
class Memory:
    """Holds sequences of tokens, as llama.cpp does."""

    held: dict[int, Tokens] = field(default_factory=dict)
    computed: int = 0

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Let a sequence begin with the tokens of another."""
        assert len(self.held.get(source, [])) >= tokens, "what is copied has been computed"
        assert not self.held.get(target), "the target is free"
        self.held[target] = self.held.get(source, [])[:tokens]

    def cut(self, sequence: int, tokens: int) -> None:
        """Keep the first tokens of a sequence."""
        self.held[sequence] = self.held.get(sequence, [])[:tokens]

    def compute(self, segments: Sequence[Any]) -> None:
        """Compute a batch, whose logits after a text hold that text's tokens."""
        assert 0 < sum(len(segment.tokens) for segment in segments) <= BATCH
        for segment in segments:
            self.computed += len(segment.tokens)
            for token, position, sequences in zip(
                segment.tokens, segment.positions.tolist(), segment.sequences, strict=True
            ):
                for sequence in sequences:
                    assert position == len(self.held.setdefault(sequence, [])), (
                        "a token follows the one before"
                    )
                    self.held[sequence].append(token)
            wanted = None if segment.text is None else self.held[segment.path.sequence]
            segment.take(None if wanted is None else np.array(wanted, dtype=np.float32))


def opened(count: int, *, n_ctx: int) -> tuple[EnginePlace, Memory]:
    """Return the first of `count` places, and its memory."""
    memory = Memory()
    return EnginePlace.of(0, count, n_ctx=n_ctx, memory=memory), memory


def ask(
    place: EnginePlace, memory: Memory, texts: list[Tokens], prompt: Tokens | None = None
) -> list[Tokens]:
    """Return the tokens from which the logits after each text were computed."""
    job = Job(place, prompt or [], [tuple(text) for text in texts])
    job.begin()
    while not job.is_done:
        memory.compute(job.next_segments([]))
    return [logits.astype(int).tolist() for logits in job.future.result(0)]


texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(
    asked=st.lists(texts, min_size=1, max_size=4),
    rows=st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=5)),
)
def test_every_text_follows_its_own_beginning(asked: list[list[Tokens]], rows: list[Tokens]) -> None:
    """The logits after a text follow from its own prompt, in any order of rows and texts."""
    place, memory = opened(32, n_ctx=40)
    for prompt in rows:
        place.is_begun = False
        for behind in asked:
            assert ask(place, memory, behind, prompt) == [prompt + text for text in behind]
        assert place.cells <= 40


def test_texts_that_begin_alike_share_their_beginning() -> None:
    """A longer text reuses the tokens of a shorter one that it begins with."""
    place, memory = opened(1, n_ctx=100)
    ask(place, memory, [[1, 2, 3]])
    ask(place, memory, [[1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [1, 2, 3, 7]])
    assert memory.computed == 3 + 3 + 1
    ask(place, memory, [[1, 2, 3, 4, 5, 6, 8]])
    assert memory.computed == 8


def test_prompt_and_texts_share_a_batch() -> None:
    """Prompt and texts with common beginnings are computed in one batch, each token once."""
    place, memory = opened(1, n_ctx=100)
    job = Job(place, [1, 2, 3], [(), (4,), (4, 5), (4, 5, 6), (4, 7), (8,)])
    job.begin()
    memory.compute(job.next_segments([]))
    assert job.is_done
    assert memory.computed == 3 + 5


def test_rows_reuse_common_prefixes() -> None:
    """A row reuses the previous row's computed tokens up to the first difference."""
    place, memory = opened(1, n_ctx=1000)
    rules = list(range(300))
    ask(place, memory, [[]], [*rules, 1, 2])
    place.is_begun = False
    ask(place, memory, [[]], [*rules, 3, 4])
    assert memory.computed == 302 + 2
    place.is_begun = False
    ask(place, memory, [[]], [*rules[:200], 7, 7, 1])
    assert memory.computed == 304 + 3


def test_many_texts_are_computed_in_turns() -> None:
    """Ten texts share four sequences, and each follows the prompt."""
    place, memory = opened(64, n_ctx=100)
    wanted = [[number] for number in range(10)]
    ask(place, memory, [[]], [1, 2, 3])
    assert ask(place, memory, wanted, [1, 2, 3]) == [[1, 2, 3, *text] for text in wanted]


@pytest.mark.parametrize("prompt", [[0] * 100, [0] * 5000])
def test_prompts_without_room_raise_an_error(prompt: Tokens) -> None:
    """A prompt without room raises TooLongError with its number of tokens."""
    place, _ = opened(1, n_ctx=100)
    with pytest.raises(TooLongError, match=str(len(prompt))):
        place.begin(prompt, [])


def test_texts_without_room_raise_an_error() -> None:
    """A text without room raises TooLongError, and the next text is computed."""
    place, memory = opened(1, n_ctx=10)
    ask(place, memory, [[1, 2]])
    with pytest.raises(TooLongError, match="11"):
        ask(place, memory, [list(range(11))])
    assert ask(place, memory, [[1, 2, 3]]) == [[1, 2, 3]]
