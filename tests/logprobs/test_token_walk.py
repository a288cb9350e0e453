"""Tests of TokenWalk: token probabilities added up to a distribution over the labels."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.core import ConfigurationError, LogprobSpace, LogprobsUnavailableError
from calibrant.core._completion import TokenLogprobs, Vocabulary
from calibrant.logprobs._walk import TokenTrie, TokenWalk

PIECES = [b"", b"a", b"b", b"c", b"ab", b'"', b'"}', b'", ', b'"x', b'c"', b"d"]
A, B, C, AB, END, END_OBJECT, END_ITEM, C_END, D = 1, 2, 3, 4, 5, 6, 7, 9, 10
VOCABULARY = Vocabulary(PIECES)
LABELS = ("ab", "abb", "ac", "b", "bd")
PATHS = ((AB, END), (AB, B, END), (A, C_END), (B, END), (B, D, END))
ENDS = {END: (END, END_OBJECT, END_ITEM), C_END: (C_END,)}


class Model:
    """Gives random next-token probabilities, which depend on the tokens before."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def after(self, tokens: Sequence[int]) -> TokenLogprobs:
        """Return the logits after some tokens, up to a constant."""
        rng = random.Random(f"{self._seed}/{tokens}")
        logits = [3.0 + math.log(rng.random() ** 3 + 1e-6) for _ in PIECES]
        return TokenLogprobs(VOCABULARY, np.array(logits, dtype=np.float32))

    def probability(self, path: Sequence[int]) -> float:
        """Return the probability of a label's tokens and any token that begins with the quote."""
        found = 1.0
        for place, token in enumerate(path):
            logits = self.after(tuple(path[:place])).logits.astype(np.float64)
            weights = np.exp(logits) / np.exp(logits).sum()
            found *= sum(weights[list(ENDS[token] if place == len(path) - 1 else (token,))])
        return found


def walked(model: Model, **options: object) -> tuple[TokenWalk, list[list[int]]]:
    """Return a finished walk, and the pending nodes of every round."""
    trie = TokenTrie(PATHS, VOCABULARY)
    walk = TokenWalk(trie, **{"tolerance": 0.0, **options})  # type: ignore[arg-type]
    turns = []
    while nodes := walk.pending():
        turns.append(nodes)
        for node in nodes:
            walk.visit(node, model.after(trie.nodes[node].tokens))
    return walk, turns


def truth(model: Model) -> NDArray[np.float64]:
    """Return the probabilities of the labels by brute force."""
    return np.array([model.probability(path) for path in PATHS])


def variation(walk: TokenWalk, model: Model) -> float:
    """Return the total variation to the truth."""
    expected = truth(model)
    return float(0.5 * np.abs(walk.distribution(LABELS).probabilities - expected / expected.sum()).sum())


@given(seed=st.integers(0, 10**6))
def test_full_walks_multiply_token_probabilities(seed: int) -> None:
    """A full walk gives the products of the token probabilities, with nothing unresolved."""
    model = Model(seed)
    found = walked(model)[0].distribution(LABELS)
    expected = truth(model)
    np.testing.assert_allclose(found.probabilities, expected / expected.sum(), rtol=1e-5)
    assert found.space is LogprobSpace.EXACT
    assert found.label_mass == pytest.approx(expected.sum(), rel=1e-5)
    assert found.emitted == LABELS[int(expected.argmax())]
    assert found.joint_logprob == pytest.approx(math.log(expected.max()), abs=1e-5)
    assert found.measured.all()
    assert found.error_bound == found.unresolved_mass == 0.0


@given(seed=st.integers(0, 10**6), tolerance=st.floats(0.0, 1.0), other=st.none() | st.integers(0, 10**6))
def test_error_bound_and_tolerance_hold(seed: int, tolerance: float, other: int | None) -> None:
    """The error stays within the bound, and the bound within the tolerance, for any expectations."""
    model = Model(seed)
    expected = None if other is None else walked(Model(other))[0].shares()
    walk, _ = walked(model, tolerance=tolerance, expected=expected)
    found = walk.distribution(LABELS)
    assert found.error_bound is not None
    assert found.error_bound <= tolerance + 1e-9
    assert variation(walk, model) <= found.error_bound + 1e-5
    assert found.probabilities.sum() == pytest.approx(1.0)


@given(seed=st.integers(0, 10**6))
def test_right_expectations_make_short_walks_exact(seed: int) -> None:
    """With right expectations the result is exact after the root alone."""
    model = Model(seed)
    walk, turns = walked(model, tolerance=1.0, expected=walked(model)[0].shares())
    assert turns == [[0]]
    assert variation(walk, model) < 1e-5


@given(seed=st.integers(0, 10**6), tolerance=st.sampled_from([0.05, 0.2, 0.5]))
def test_needed_nodes_are_queried_in_one_round(seed: int, tolerance: float) -> None:
    """With right expectations one round of queries suffices, with the same result."""
    model = Model(seed)
    full, _ = walked(model)
    needed = full.needed(tolerance)
    several, turns = walked(model, tolerance=tolerance, expected=full.shares())
    once, single = walked(model, tolerance=tolerance, expected=full.shares(), at_once=needed)
    assert single == [[0, *needed]]
    assert sorted(node for nodes in turns for node in nodes) == [0, *needed]
    assert once.distribution(LABELS).error_bound == several.distribution(LABELS).error_bound


def test_chains_of_nodes_are_pending_together() -> None:
    """The nodes of a chain are pending together, up to where labels differ or end."""
    trie = TokenTrie([(A, B, C, END), (A, B, C, D, END), (D, END)], VOCABULARY)
    walk = TokenWalk(trie, tolerance=0.0)
    walk.visit(walk.pending()[0], Model(1).after(()))
    assert [trie.nodes[node].tokens for node in walk.pending()] == [(A,), (D,), (A, B), (A, B, C)]


def test_unvisited_shared_mass_is_unresolved() -> None:
    """The mass of two labels after one unvisited token is unresolved."""
    trie = TokenTrie([(A, B, END), (A, C, END), (D, END)], VOCABULARY)
    walk = TokenWalk(trie, tolerance=1.0)
    logits = np.full(len(PIECES), -np.inf, dtype=np.float32)
    logits[[A, D]] = np.log([0.6, 0.4])
    walk.visit(0, TokenLogprobs(VOCABULARY, logits))
    found = walk.distribution(["ab", "ac", "d"])
    np.testing.assert_allclose(found.probabilities, [0.3, 0.3, 0.4], rtol=1e-6)
    assert (found.unresolved_mass, list(found.measured)) == (pytest.approx(0.6), [False, False, True])
    assert found.error_bound == 1.0


def test_nan_log_probabilities_raise_an_error() -> None:
    """Log-probabilities of NaN raise LogprobsUnavailableError."""
    walk = TokenWalk(TokenTrie(PATHS, VOCABULARY), tolerance=0.0)
    with pytest.raises(LogprobsUnavailableError, match="not numbers"):
        walk.visit(0, TokenLogprobs(VOCABULARY, np.full(len(PIECES), np.nan, dtype=np.float32)))


@pytest.mark.parametrize("tolerance", [-0.1, 1.1, math.nan])
def test_tolerances_out_of_range_are_errors(tolerance: float) -> None:
    """A tolerance is a total variation, in a new search and in one repeated with another tolerance."""
    trie = TokenTrie(PATHS, VOCABULARY)
    with pytest.raises(ConfigurationError, match=r"tolerance in \[0, 1\], got"):
        TokenWalk(trie, tolerance=tolerance)
    with pytest.raises(ConfigurationError, match=r"tolerance in \[0, 1\], got"):
        TokenWalk(trie, tolerance=0.5).needed(tolerance)
