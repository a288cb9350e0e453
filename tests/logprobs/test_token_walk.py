"""Tests of token probabilities added up to a distribution over the labels."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.core import ConfigurationError, ContextLengthError, LabelDistribution, LogprobSpace
from calibrant.inference import Classifier
from distributions import distribution_of
from token_engine import Engine, Row

OPENING = '{"label": "'
PIECES = [b"", b"a", b"b", b"c", b"ab", b'"', b'"}', b'", ', b'"x', b'c"', b"d", *map(str.encode, "{le: ")]
A, B, C, AB, END, END_OBJECT, END_ITEM, C_END, D = 1, 2, 3, 4, 5, 6, 7, 9, 10
LABELS = ("ab", "abb", "ac", "b", "bd")
PATHS = ((AB, END), (AB, B, END), (A, C_END), (B, END), (B, D, END))
ENDS = {END: (END, END_OBJECT, END_ITEM), C_END: (C_END,)}


class Model(Engine):
    """Gives random next-token probabilities, which depend on the tokens before; others without a text, or none."""

    def __init__(self, seed: int, other: int | None, *, pieces: Sequence[bytes] = PIECES) -> None:
        super().__init__(pieces=pieces)
        self.seed, self.other = seed, other

    def row(self, text: str) -> Row:
        """Return the row of a text."""
        return ModelRow(self, text)

    def logits(self, seed: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after some tokens of the label, up to a constant."""
        rng = random.Random(f"{seed}/{tuple(tokens)}")
        found = [3.0 + math.log(rng.random() ** 3 + 1e-6) for _ in self.vocabulary.pieces]
        return np.array(found, dtype=np.float32)

    def truth(self) -> NDArray[np.float64]:
        """Return the probabilities of the labels: of their tokens, the last of them with any JSON behind it."""
        found = np.ones(len(PATHS))
        for label, path in enumerate(PATHS):
            for place, token in enumerate(path):
                weights = np.exp(self.logits(self.seed, path[:place]).astype(np.float64))
                ways = ENDS[token] if place == len(path) - 1 else (token,)
                found[label] *= weights[list(ways)].sum() / weights.sum()
        return found


class ModelRow(Row):
    """Row of a model."""

    engine: Model

    def after(self, text: tuple[int, ...]) -> np.ndarray:
        """Return the logits of the next token."""
        seed = self.engine.seed if self.text else self.engine.other
        if seed is None:
            raise ContextLengthError("Nothing is expected.", provider="test")
        return self.engine.logits(seed, text[len(self.tokens(OPENING)) :])


def scored(engine: Engine, tolerance: float = 0.0, labels: Sequence[str] = LABELS) -> LabelDistribution:
    """Return the distribution over the labels."""
    options = {"scoring": "exact", "field": "label", "tolerance": tolerance}
    return distribution_of(Classifier(model=engine, labels=labels, **options).classify("x"))  # type: ignore[arg-type]


def turns(engine: Engine) -> list[list[str]]:
    """Return the beginnings of labels that were asked about at once, turn by turn."""
    return [[text.removeprefix(OPENING) for text in texts] for texts in engine.rows[-1].asked]


def variation(found: LabelDistribution, model: Model) -> float:
    """Return the total variation to the truth."""
    truth = model.truth()
    return float(0.5 * np.abs(found.probabilities - truth / truth.sum()).sum())


@given(seed=st.integers(0, 10**6))
def test_full_walks_multiply_token_probabilities(seed: int) -> None:
    """A full walk gives the products of the token probabilities, with nothing unresolved."""
    model = Model(seed, None)
    found, expected = scored(model), model.truth()
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
    model = Model(seed, other)
    found = scored(model, tolerance)
    assert found.error_bound is not None
    assert found.error_bound <= tolerance + 1e-9
    assert variation(found, model) <= found.error_bound + 1e-5
    assert found.probabilities.sum() == pytest.approx(1.0)


@given(seed=st.integers(0, 10**6))
def test_right_expectations_make_short_walks_exact(seed: int) -> None:
    """With right expectations the result is exact after the root alone."""
    model = Model(seed, seed)
    found = scored(model, 1.0)
    assert turns(model) == [[""]]
    assert variation(found, model) < 1e-5


@given(seed=st.integers(0, 10**6), tolerance=st.sampled_from([0.05, 0.2, 0.5]))
def test_needed_nodes_are_queried_in_one_round(seed: int, tolerance: float) -> None:
    """With right expectations the first round of queries holds the nodes that a walk at 0.2 needs."""
    usual, model = Model(seed, seed), Model(seed, seed)
    scored(usual, 0.2)
    scored(model, tolerance)
    assert len(turns(usual)) == 1
    if tolerance < 0.2:
        assert turns(model)[0] == turns(usual)[0]
    else:
        assert turns(model) == [turns(model)[0]]


def test_chains_of_nodes_are_pending_together() -> None:
    """The nodes of a chain are pending together, up to where labels differ or end."""
    model = Model(1, None, pieces=[bytes([byte]) for byte in range(128)])
    scored(model, labels=("abc", "abcd", "d"))
    assert turns(model)[:2] == [[""], ["a", "d", "ab", "abc"]]


def test_unvisited_shared_mass_is_unresolved() -> None:
    """The mass of two labels after one unvisited token is unresolved."""

    class Sure(Model):
        def logits(self, seed: int, tokens: Sequence[int]) -> NDArray[np.float32]:
            del seed, tokens
            found = np.full(len(self.vocabulary), -np.inf, dtype=np.float32)
            found[[ord("a"), ord("d")]] = np.log([0.6, 0.4])
            return found

    model = Sure(0, None, pieces=[bytes([byte]) for byte in range(128)])
    found = scored(model, 1.0, labels=("ab", "ac", "d"))
    np.testing.assert_allclose(found.probabilities, [0.3, 0.3, 0.4], rtol=1e-6)
    assert (found.unresolved_mass, list(found.measured)) == (pytest.approx(0.6), [False, False, True])
    assert found.error_bound == 1.0


@pytest.mark.parametrize("tolerance", [-0.1, 1.1, math.nan])
def test_tolerances_out_of_range_are_errors(tolerance: float) -> None:
    """A tolerance is a total variation."""
    with pytest.raises(ConfigurationError, match=r"tolerance in \[0, 1\]"):
        scored(Engine(), tolerance)
