"""LinUCB with disjoint arms and forgetting, independent of providers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# How far an arm's ridge may decay before it is put back.
LEAST_RIDGE = 0.5


class LinUCB:
    r"""Linear upper confidence bounds, one ridge regression per arm (Li et al. 2010, algorithm 1).

    With :math:`A = I` and :math:`b = 0` at the beginning, an arm's score for the context x is
    :math:`b^T A^{-1} x + \alpha \sqrt{x^T A^{-1} x}`. When any arm is told a reward, with
    :math:`g = d^{1/n}` for the decay d and n arms,

    1. every arm forgets: :math:`A \leftarrow g A`, :math:`b \leftarrow g b`;
    2. an arm whose share of the identity, which has decayed with the rest to some :math:`w \le 1`, is
       below 1/2, or that has learnt `dim` times since the last time, gets it back:
       :math:`A \leftarrow A + (1 - w) I`, and its inverse is computed afresh (Cholesky);
    3. the arm that was played learns: :math:`A \leftarrow A + x x^T`, :math:`b \leftarrow b + r x`.

    So with :math:`a_t` for how many rewards, of whichever arm, came after reward t,
    :math:`A = w I + \sum_t g^{a_t} x_t x_t^T` and :math:`b = \sum_t g^{a_t} r_t x_t`. Where w is 1 that
    is what :math:`A \leftarrow I + g (A - I)` leads to; between two refactorisations the
    ridge is smaller, by half at most, which errs on the side of trying. It makes forgetting a single
    factor per arm, which leaves :math:`A^{-1} b` alone and widens the bound: a reward costs one
    update of rank one, :math:`O(dim^2)`, where decay towards I would change the inverse in every
    direction. All arms forget together (as in Russac et al. 2019), or one that is no longer played
    would never be tried again; the n-th root makes one played as often as the average forget d per
    reward of its own.

    Parameters
    ----------
    arms : int
        Number of arms n, at least 1.
    dim : int
        Length of a context, at least 1.
    alpha : float
        Weight of the bound's width, at least 0.
    decay : float
        d in (0, 1]; 1 forgets nothing.

    Attributes
    ----------
    dim : int
        As given.
    ridge, updates, gram, response : ndarray of shape (arms, ...)
        State of every arm: w, rewards since the last refactorisation, A / w - I and b / w.
    inverse : ndarray of shape (arms, dim, dim)
        Inverse of I + gram; `invert` computes it.

    References
    ----------
    Li, Chu, Langford and Schapire (2010), A contextual-bandit approach to personalized news article
    recommendation. Russac, Vernade and Cappé (2019), Weighted linear bandits for non-stationary
    environments.
    """

    def __init__(self, *, arms: int, dim: int, alpha: float, decay: float) -> None:
        self.dim = dim
        self._alpha = alpha
        self._decay = decay ** (1.0 / arms)
        # A = ridge (I + gram) and b = ridge response: forgetting changes the ridge alone.
        self.ridge = np.ones(arms)
        self.gram = np.zeros((arms, dim, dim))
        self.response = np.zeros((arms, dim))
        self.inverse = np.tile(np.eye(dim), (arms, 1, 1))  # of I + gram
        self.updates = np.zeros(arms, dtype=np.int64)  # since the last refactorisation

    def scores(self, context: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the upper bounds of all arms, shape (arms,), for a context of length 1, shape (dim,)."""
        solved = self.inverse @ context
        means: NDArray[np.float64] = np.einsum("ad,ad->a", self.response, solved)
        return means + self._alpha * np.sqrt((solved @ context) / self.ridge)

    def learn(self, arm: int, context: NDArray[np.float64], reward: float) -> None:
        """Update the regression of one arm with a reward for a context of length 1, shape (dim,)."""
        self.ridge *= self._decay
        for due in np.flatnonzero((self.updates >= self.dim) | (self.ridge < LEAST_RIDGE)):
            self._refactorise(int(due))
        ridge = float(self.ridge[arm])
        # Sherman-Morrison for I + gram + x x' / ridge; products of a vector with itself stay symmetric.
        scaled = context / math.sqrt(ridge)
        solved = self.inverse[arm] @ scaled
        step = solved / math.sqrt(1.0 + float(solved @ scaled))
        self.inverse[arm] -= np.outer(step, step)
        self.gram[arm] += np.outer(scaled, scaled)
        self.response[arm] += (reward / ridge) * context
        self.updates[arm] += 1

    def widths(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return alpha times the root mean square of the width over contexts, shape (arms,).

        Their entries are uncorrelated and have the mean squares `squares`, shape (dim,).
        """
        diagonals = np.diagonal(self.inverse, axis1=1, axis2=2)
        widths: NDArray[np.float64] = self._alpha * np.sqrt(diagonals @ squares / self.ridge)
        return widths

    def invert(self, arm: int) -> None:
        """Recompute one arm's inverse of I + gram, symmetric to the last bit.

        Raises
        ------
        numpy.linalg.LinAlgError
            I + gram is not positive definite.
        """
        eye = np.eye(self.dim)
        half = np.linalg.solve(np.linalg.cholesky(eye + self.gram[arm]), eye)
        self.inverse[arm] = half.T @ half

    def _refactorise(self, arm: int) -> None:
        self.gram[arm] *= self.ridge[arm]
        self.response[arm] *= self.ridge[arm]
        self.ridge[arm] = 1.0
        self.updates[arm] = 0
        self.invert(arm)
