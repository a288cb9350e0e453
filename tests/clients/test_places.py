"""Places of an engine: every text is computed behind its own beginning, once, and rows do not mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.clients._places import BATCH, Job, Place, Segment, TooLongError

Tokens = list[int]


@dataclass
class Memory:
    """Sequences of tokens, as llama.cpp keeps them."""

    held: dict[int, Tokens] = field(default_factory=dict)
    computed: int = 0

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Let a sequence begin with the tokens of another."""
        assert len(self.held[source]) >= tokens, "what is copied has been computed"
        assert not self.held.get(target), "the target is free"
        self.held[target] = self.held[source][:tokens]

    def cut(self, sequence: int, tokens: int) -> None:
        """Keep the first tokens of a sequence."""
        self.held[sequence] = self.held.get(sequence, [])[:tokens]

    def compute(self, segments: Sequence[Segment]) -> None:
        """Compute a batch; the logits behind a text hold its tokens."""
        assert 0 < sum(len(segment.tokens) for segment in segments) <= BATCH
        for segment in segments:
            sequence = self.held.setdefault(segment.path.sequence, [])
            assert segment.positions[0] == len(sequence), "a token follows the one before"
            sequence += segment.tokens
            self.computed += len(segment.tokens)
            segment.take(np.array(sequence, dtype=np.float32) if segment.text is not None else None)


def ask(place: Place, memory: Memory, texts: list[Tokens], start: int = 1) -> list[Tokens]:
    """Return what the logits behind each text were computed from."""
    job = Job(place, texts, start)
    if not place.is_begun:
        place.begin(texts[0], start, memory=memory)
    while not job.is_done:
        memory.compute(job.next_segments([], memory=memory))
    return [logits.astype(int).tolist() for logits in job.future.result(0)]


texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(
    asked=st.lists(texts, min_size=1, max_size=4),
    rows=st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=5)),
)
def test_every_text_is_computed_behind_its_own_beginning(
    asked: list[list[Tokens]], rows: list[Tokens]
) -> None:
    """Whatever was computed before, for this row or another."""
    place, memory = Place.of(0, 64, n_ctx=40), Memory()
    for prompt in rows:
        place.is_begun = False
        assert ask(place, memory, [prompt]) == [prompt]
        for behind in asked:
            wanted = [prompt + text for text in behind]
            assert ask(place, memory, wanted) == wanted
        assert place.cells <= 40


def test_texts_that_begin_alike_share_their_beginning() -> None:
    """A longer text goes on where a shorter one ends."""
    place, memory = Place.of(0, 1, n_ctx=100), Memory()
    ask(place, memory, [[1, 2, 3]])
    ask(place, memory, [[1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [1, 2, 3, 7]])
    assert memory.computed == 3 + 3 + 1
    ask(place, memory, [[1, 2, 3, 4, 5, 6, 8]])
    assert memory.computed == 8


def test_a_row_keeps_what_the_one_before_began_with() -> None:
    """Up to where the last message begins; a row with other rules keeps whole pieces alone."""
    place, memory = Place.of(0, 1, n_ctx=1000), Memory()
    rules = list(range(300))
    ask(place, memory, [[*rules, 1, 2]], start=300)
    place.is_begun = False
    ask(place, memory, [[*rules, 3, 4]], start=300)
    assert memory.computed == 302 + 2
    place.is_begun = False
    ask(place, memory, [[*rules[:200], 7, 7, 1]], start=202)
    assert memory.computed == 304 + (203 - 128)


def test_the_prompt_is_computed_in_the_same_pieces_whatever_came_before() -> None:
    """Batches of other sizes round differently: a row's result must not depend on its neighbours."""
    prompts = [([*range(300), 1, 2], 300), ([*range(200), 7, 7, 1], 202), ([*range(300), 5], 300)]

    def pieces(before: int) -> list[tuple[int, int]]:
        place, memory = Place.of(0, 1, n_ctx=1000), Memory()
        for prompt, start in prompts[: before + 1]:
            place.is_begun = False
            place.begin(prompt, start, memory=memory)
            ask(place, memory, [prompt], start)
        return list(zip([0, *place.pieces], place.pieces, strict=False))

    alone = Place.of(0, 1, n_ctx=1000)
    for number, (prompt, start) in enumerate(prompts):
        alone.begin(prompt, start, memory=Memory())
        assert pieces(number) == list(zip([0, *alone.pieces], alone.pieces, strict=False))


def test_more_texts_than_sequences_are_computed_in_turns() -> None:
    """Four sequences, ten branches."""
    place, memory = Place.of(0, 64, n_ctx=100), Memory()
    wanted = [[1, 2, 3, number] for number in range(10)]
    ask(place, memory, [[1, 2, 3]])
    assert ask(place, memory, wanted) == wanted


@pytest.mark.parametrize("prompt", [[0] * 100, [0] * 5000])
def test_a_prompt_without_room_for_an_answer_is_refused(prompt: Tokens) -> None:
    """The number of its tokens is told."""
    with pytest.raises(TooLongError, match=str(len(prompt))):
        Place.of(0, 1, n_ctx=100).begin(prompt, 1, memory=Memory())


def test_a_text_without_room_is_refused() -> None:
    """The row itself goes on."""
    place, memory = Place.of(0, 1, n_ctx=10), Memory()
    ask(place, memory, [[1, 2]])
    with pytest.raises(TooLongError, match="11"):
        ask(place, memory, [list(range(11))])
    assert ask(place, memory, [[1, 2, 3]]) == [[1, 2, 3]]
