"""Tests of LinUCB against the closed form of its recursion, solved from all records at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.routing._bandit import LinUCB

Array = NDArray[np.float64]
LEAST_RIDGE = 0.5  # what forgetting leaves of the ridge


def unit_rows(rng: np.random.Generator, rows: int, dim: int) -> Array:
    """Return random unit vectors with a common direction, like embeddings."""
    found = rng.normal(size=(rows, dim)) + 1.0
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def ridges(arms: list[int], *, count: int, dim: int, decay: float) -> Array:
    """Return each arm's remaining share of the identity, computed record by record."""
    ridge, since = np.ones(count), np.zeros(count)
    for arm in arms:
        ridge = ridge * decay
        due = (ridge < 0.5) | (since >= dim)
        ridge[due], since[due] = 1.0, 0.0
        since[arm] += 1
    return ridge


def closed_form(
    contexts: Array, arms: list[int], rewards: Array, *, count: int, decay: float
) -> tuple[Array, Array]:
    """Return A and b of every arm from all records, with a recursion for the ridge only."""
    g = decay ** (1.0 / count)
    dim = contexts.shape[1]
    ages = np.arange(len(arms))[::-1]
    ridge = ridges(arms, count=count, dim=dim, decay=g)
    matrices, vectors = np.empty((count, dim, dim)), np.empty((count, dim))
    for arm in range(count):
        mine = np.array(arms) == arm
        weighted = contexts[mine] * (g ** ages[mine])[:, None]
        matrices[arm] = ridge[arm] * np.eye(dim) + weighted.T @ contexts[mine]
        vectors[arm] = weighted.T @ rewards[mine]
    return matrices, vectors


def played(
    records: int, *, dim: int, count: int, decay: float, seed: int, alpha: float = 1.0
) -> tuple[LinUCB, Array, Array, Array]:
    """Return a model that has chosen and learnt, a fresh direction, and the closed form's A and b."""
    rng = np.random.default_rng(seed)
    model = LinUCB(arms=count, dim=dim, alpha=alpha, decay=decay)
    contexts = unit_rows(rng, records + 1, dim)
    rewards = rng.uniform(-1.0, 1.0, records)
    arms: list[int] = []
    for context, reward in zip(contexts[:-1], rewards, strict=True):
        arm = int(np.argmax(model.scores(context))) if rng.random() < 0.8 else int(rng.integers(count))
        model.learn(arm, context, float(reward))
        arms.append(arm)
    matrices, vectors = closed_form(contexts[:-1], arms, rewards, count=count, decay=decay)
    return model, contexts[-1], matrices, vectors


def matrices_of(model: LinUCB) -> Array:
    """Return A of every arm, from the stored state."""
    return np.asarray(model.ridge[:, None, None] * (np.eye(model.dim) + model.gram))


def thetas(model: LinUCB) -> Array:
    """Return the coefficients of every arm: its scores without a bound, along the axes."""
    return np.einsum("ade,ae->ad", model.inverse, model.response)


def solved(matrices: Array, vectors: Array) -> Array:
    """Return the coefficients of every arm."""
    return np.asarray(np.linalg.solve(matrices, vectors[..., None])[..., 0])


class TestClosedForm:
    @pytest.mark.parametrize("decay", [0.99, 1.0, 0.9, 0.3])
    @pytest.mark.parametrize(("dim", "count"), [(16, 5), (3, 2), (1, 1)])
    def test_recursion_equals_the_closed_form(self, dim: int, count: int, decay: float) -> None:
        """After 2,000 records, A, the coefficients and the scores equal the closed form to 1e-8."""
        model, x, matrices, vectors = played(2_000, dim=dim, count=count, decay=decay, seed=1)
        theta = solved(matrices, vectors)
        widths = np.sqrt([x @ np.linalg.solve(a, x) for a in matrices])
        np.testing.assert_allclose(matrices_of(model), matrices, rtol=0, atol=1e-8)
        np.testing.assert_allclose(thetas(model), theta, rtol=0, atol=1e-8)
        np.testing.assert_allclose(model.scores(x), theta @ x + widths, rtol=0, atol=1e-8)

    def test_ten_thousand_records_with_decay(self) -> None:
        """After 10,000 records at the defaults the coefficients are exact and A is well conditioned."""
        model, _, matrices, vectors = played(10_000, dim=64, count=5, decay=0.99, seed=2)
        np.testing.assert_allclose(thetas(model), solved(matrices, vectors), rtol=0, atol=1e-8)
        most = 1.0 / (1.0 - 0.99**0.2)  # the sum of all weights
        assert np.linalg.cond(matrices_of(model)).max() < 1.0 + most / LEAST_RIDGE

    @given(
        seed=st.integers(0, 2**32 - 1),
        dim=st.integers(1, 8),
        count=st.integers(1, 4),
        decay=st.floats(1e-6, 1.0),
        records=st.integers(0, 60),
    )
    def test_any_history(self, seed: int, dim: int, count: int, decay: float, records: int) -> None:
        """Any history of rewards, decays and refactorisations equals the closed form."""
        model, _, matrices, vectors = played(records, dim=dim, count=count, decay=decay, seed=seed)
        np.testing.assert_allclose(matrices_of(model), matrices, rtol=0, atol=1e-9)
        np.testing.assert_allclose(thetas(model), solved(matrices, vectors), rtol=0, atol=1e-9)

    def test_whole_ridge_decays_towards_the_identity(self) -> None:
        """After every second record, A = I + d (A - I) + x x' and b = d b + r x hold."""
        decay = 0.6  # below 1/2 after two
        model = LinUCB(arms=1, dim=4, alpha=1.0, decay=decay)
        a, b = np.eye(4), np.zeros(4)
        for number, context in enumerate(unit_rows(np.random.default_rng(0), 41, 4)):
            model.learn(0, context, 0.5)
            a = np.eye(4) + decay * (a - np.eye(4)) + np.outer(context, context)
            b = decay * b + 0.5 * context
            if number % 2 == 1:
                np.testing.assert_allclose(matrices_of(model)[0], a, atol=1e-12)
                np.testing.assert_allclose(thetas(model)[0], np.linalg.solve(a, b), atol=1e-12)


class TestForgetting:
    def test_never_takes_more_than_half_of_the_ridge(self) -> None:
        """The ridge never falls below one half, so no variance is overestimated more than twofold."""
        for decay, arm in itertools.product((0.99, 0.5, 1e-300), (0, 1)):
            model = LinUCB(arms=2, dim=3, alpha=1.0, decay=decay)
            for context in unit_rows(np.random.default_rng(3), 50, 3):
                model.learn(arm, context, 1.0)
                assert np.linalg.eigvalsh(matrices_of(model)).min() >= LEAST_RIDGE - 1e-12

    def test_idle_arms_regain_their_first_bound(self) -> None:
        """An idle arm's score rises, and after 5,000 other records it has its first bound again."""
        model = LinUCB(arms=2, dim=2, alpha=1.0, decay=0.99)
        x = np.array([1.0, 0.0])
        model.learn(0, x, 0.9)
        theta, score = thetas(model)[0].copy(), model.scores(x)[0]
        model.learn(1, x, 0.5)
        np.testing.assert_allclose(thetas(model)[0], theta, rtol=1e-12)
        assert model.scores(x)[0] > score
        for _ in range(5_000):
            model.learn(1, x, 0.5)
        np.testing.assert_allclose(thetas(model)[0], 0.0, atol=1e-8)
        assert model.scores(x)[0] >= 1.0 - 1e-8


class TestScores:
    def test_first_scores_are_alpha(self) -> None:
        """Without records, the score and the width of a unit vector are alpha."""
        model = LinUCB(arms=3, dim=5, alpha=0.7, decay=0.99)
        np.testing.assert_allclose(model.scores(unit_rows(np.random.default_rng(0), 1, 5)[0]), 0.7)
        np.testing.assert_allclose(model.widths(np.full(5, 0.2)), 0.7)

    def test_widths_are_the_root_mean_square_over_contexts(self) -> None:
        """The widths match those of many random directions, one of them longer than the others."""
        model, _, matrices, _ = played(100, dim=4, count=2, decay=0.95, seed=4, alpha=2.0)
        directions = np.random.default_rng(5).normal(size=(100_000, 4))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        directions[:, 2] *= 3.0
        mean_squares = np.array([1.0, 1.0, 9.0, 1.0]) / 4.0
        for width, a in zip(model.widths(mean_squares), matrices, strict=True):
            squares = 4.0 * np.einsum("nd,nd->n", directions @ np.linalg.inv(a), directions)
            assert width == pytest.approx(np.sqrt(squares.mean()), rel=0.01)
