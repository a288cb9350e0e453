"""Acceptance criterion for ``gepa.optimize``: proposals that are shown to be better than their parent."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

from calibrant.core._errors import ConfigurationError
from calibrant.metrics._gate import PairedGate
from calibrant.scoring import is_higher

if TYPE_CHECKING:
    from gepa.core.state import GEPAState
    from gepa.proposer.base import CandidateProposal

_Pair: TypeAlias = tuple[tuple[int, ...], frozenset[tuple[str, str]]]


class PairedAcceptance:
    """Acceptance criterion for ``gepa.optimize``: a proposal must be shown to be better than its parent.

    A row counts for the proposal where its score rises, against it where it falls, and not at all where it stays.
    Where a change of score is no likelier to be a rise than a fall, the proposal is accepted with probability `delta`
    at most (`PairedGate`). That is about each proposal: of a hundred that are no better, up to ``100 delta`` are
    accepted. If a search proposes a text again for the same parent, its new rows are added, and rows that were seen
    before are not counted twice; the promise holds however often that happens. Nothing is added up over different
    texts.

    The reflecting model has seen the rows of the minibatch that a proposal is first judged on. A text that repeats
    their answers wins there and nowhere else, and no test on these rows can tell.

    Few rows show little: with the default `delta` a proposal needs at least seven rises, and a true gain of 5 points
    takes hundreds of rows. Use large minibatches, and a larger `delta` where validation rows choose in the end. A
    merge of two candidates is judged by gepa itself.

    Parameters
    ----------
    delta : float, default 0.1
        Probability of accepting a proposal that is no better, in (0, 1).

    Raises
    ------
    ConfigurationError
        `delta` out of range; from `should_accept`, a minibatch too small for any proposal to be accepted.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from calibrant.adapters import PairedAcceptance
    >>> criterion = PairedAcceptance()  # gepa.optimize(..., acceptance_criterion=criterion)
    >>> proposal = SimpleNamespace(
    ...     candidate={"system_prompt": "Sort the payment."}, parent_program_ids=[0], subsample_indices=range(8),
    ...     subsample_scores_before=[0.0] * 8, subsample_scores_after=[1.0] * 7 + [0.0],
    ... )
    >>> criterion.should_accept(proposal, state=None)
    True
    """

    def __init__(self, *, delta: float = 0.1) -> None:
        self._start = PairedGate(delta=delta)
        self._gates: dict[_Pair, PairedGate] = {}
        self._seen: dict[_Pair, set[Hashable]] = {}

    def should_accept(
        self,
        proposal: CandidateProposal[Any],
        state: GEPAState[Any, Any],  # noqa: ARG002  (gepa's signature)
    ) -> bool:
        """Return True if the rows of this proposal so far show it to be better than its parent."""
        pair = _pair(proposal)
        gate = self._gates.get(pair, self._start)
        seen = self._seen.setdefault(pair, set())
        before = proposal.subsample_scores_before or []
        after = proposal.subsample_scores_after or []
        indices = proposal.subsample_indices
        if indices is None or not len(indices) == len(before) == len(after):
            rows = "none" if indices is None else len(indices)
            raise ConfigurationError(
                f"Expected a score before and after for each row of a proposal, got {len(before)} and {len(after)} "
                f"for {rows} rows: judge proposals of gepa's reflective mutation."
            )
        for index, old, new in zip(indices, before, after, strict=True):
            if index not in seen:
                seen.add(index)
                gate = gate.plus(n=1, only_a=is_higher(old, new), only_b=is_higher(new, old))
        self._check_size(gate)
        self._gates[pair] = gate
        return gate.decision == "accepted"

    def reject_reason(
        self,
        proposal: CandidateProposal[Any],
        state: GEPAState[Any, Any],  # noqa: ARG002  (gepa's signature)
    ) -> str:
        """Return the reason for a rejection, for gepa's log."""
        gate = self._gates[_pair(proposal)]
        return (
            f"not shown to be better: of {gate.n} rows {gate.only_b} rose and {gate.only_a} fell, evidence "
            f"{gate.evidence:.3g} of {1.0 / gate.delta:.3g}"
        )

    def _check_size(self, gate: PairedGate) -> None:
        """Raise ConfigurationError if so few rows accept nothing, whatever their scores are."""
        fewest = gate.n
        while self._start.plus(n=fewest, only_a=0, only_b=fewest).decision != "accepted":
            fewest += 1
        if fewest > gate.n:
            raise ConfigurationError(
                f"Expected minibatches of at least {fewest} different rows for delta={gate.delta:g}, got {gate.n}: set "
                "reflection_minibatch_size of gepa.optimize, or a larger delta."
            )


def _pair(proposal: CandidateProposal[Any]) -> _Pair:
    """Return the key of a comparison: the positions of the parents in the search, and the proposed texts."""
    return tuple(proposal.parent_program_ids), frozenset(proposal.candidate.items())
