"""Tests of the acceptance criterion for ``gepa.optimize``."""

from __future__ import annotations

from typing import Any

import gepa
import pytest
from gepa.proposer.base import CandidateProposal
from gepa.strategies.acceptance import AcceptanceCriterion

from calibrant.adapters import ConfidenceAdapter, PairedAcceptance
from calibrant.core import ConfigurationError
from calibrant.testing import FakeClient

LABELS = ["negative", "positive"]
STATE: Any = None  # which the criterion does not look at


def proposal(
    before: list[float], after: list[float], *, first: int = 0, text: str = "Sort.", parent: int = 0
) -> CandidateProposal[int]:
    """Return a proposal judged on rows from `first` on."""
    return CandidateProposal(
        candidate={"system_prompt": text},
        parent_program_ids=[parent],
        subsample_indices=list(range(first, first + len(before))),
        subsample_scores_before=before,
        subsample_scores_after=after,
    )


def searched(teaches: str, minibatch: int) -> list[dict[str, str]]:
    """Return the candidates of a search with one proposal, which teaches the model or does not."""
    rows = [{"input": f"review {n}", "answer": LABELS[n % 2]} for n in range(20)]

    def answer(text: str, prompt: str) -> str:
        place = int(text.split()[1]) % 2
        return LABELS[place] if "positive" in prompt else LABELS[1 - place]

    field = {"type": "string", "enum": LABELS}
    found = gepa.optimize(
        seed_candidate={"system_prompt": "Decide."},
        trainset=rows,
        valset=rows,
        adapter=ConfidenceAdapter(
            FakeClient(LABELS, answer, field="sentiment"),
            "sentiment",
            {"type": "object", "properties": {"sentiment": field}},
        ),
        reflection_lm=lambda _prompt: f"```\n{teaches}\n```",
        reflection_minibatch_size=minibatch,
        acceptance_criterion=PairedAcceptance(),
        max_metric_calls=50,
    )
    return [dict(candidate) for candidate in found.candidates]


def test_a_search_takes_what_is_shown_to_be_better() -> None:
    """In a search by gepa a proposal that rights every row is accepted, one that changes nothing is not."""
    better = "Answer negative or positive."
    assert isinstance(PairedAcceptance(), AcceptanceCriterion)
    assert {"system_prompt": better} in searched(better, 10)
    assert searched("Decide the sentiment.", 10) == [{"system_prompt": "Decide."}]


def test_a_minibatch_that_could_accept_nothing_is_refused() -> None:
    """A search with gepa's minibatch of three rows ends with the size that is needed."""
    with pytest.raises(ConfigurationError, match=r"at least 7 different rows for delta=0\.1, got 3"):
        searched("Answer negative or positive.", 3)
    assert PairedAcceptance(delta=0.5).should_accept(proposal([0.0] * 3, [1.0] * 3), STATE)


def test_scores_count_by_their_direction() -> None:
    """A rise of the score counts as one win however small, and scores that are equal but for rounding as nothing."""
    rises = proposal([0.5] * 8 + [0.3] * 4, [0.50001] * 8 + [0.3] * 4)
    assert PairedAcceptance().should_accept(rises, STATE)
    rounded = proposal([0.1 + 0.2] * 8 + [0.5] * 4, [0.3] * 8 + [0.5 + 1e-15] * 4)
    criterion = PairedAcceptance()
    assert not criterion.should_accept(rounded, STATE)
    assert "0 rose and 0 fell" in criterion.reject_reason(rounded, STATE)
    one_great_rise = proposal([0.0] + [0.5] * 11, [1.0] + [0.49] * 11)
    criterion = PairedAcceptance()
    assert not criterion.should_accept(one_great_rise, STATE)
    reason = criterion.reject_reason(one_great_rise, STATE)
    assert reason == "not shown to be better: of 12 rows 1 rose and 11 fell, evidence 1.31 of 10"


def test_rows_add_up_for_one_text_and_one_parent() -> None:
    """A text proposed again is judged on new rows together with the old ones, and no row counts twice."""
    half = ([0.0] * 5 + [1.0] * 5, [1.0] * 5 + [1.0] * 5)
    criterion = PairedAcceptance()
    assert not criterion.should_accept(proposal(*half), STATE)
    assert not criterion.should_accept(proposal(*half), STATE)
    assert not criterion.should_accept(proposal(*half, first=10, text="Other."), STATE)
    assert not criterion.should_accept(proposal(*half, first=10, parent=1), STATE)
    assert criterion.should_accept(proposal(*half, first=10), STATE)


def test_proposals_without_a_score_for_each_row_are_refused() -> None:
    """A proposal whose scores are not those of its rows raises ConfigurationError."""
    merged = proposal([0.0] * 8, [1.0] * 8)
    merged.subsample_scores_before = [1.0, 2.0]
    with pytest.raises(ConfigurationError, match="got 2 and 8 for 8 rows"):
        PairedAcceptance().should_accept(merged, STATE)
