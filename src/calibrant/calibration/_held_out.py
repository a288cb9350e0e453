"""Held-out probabilities of labelled rows' answers, by cross-fitting."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._losses import log_normalise, stratified_folds
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_answers, check_log_probabilities

_FOLDS: Final = 5
# As calibrators clip probabilities: what a model says beyond one in a million is no measurement.
_FLOOR: Final = float(np.log(1e-6))
# Numbers that a fold is fitted on, at most. Of 77 labels these are 2,600 rows, some seconds in all.
_MOST_FITTED: Final = 200_000
_ITERATIONS: Final = 500


def held_out_answer_probability(
    log_probabilities: ArrayLike, answers: ArrayLike, *, rng: np.random.Generator | int | None = None
) -> NDArray[np.float64]:
    """Return the cross-fitted probability of each row's answer.

    The least probable answers are those to look at first: a wrong answer in the data, or the classifier's worst
    mistake. A row's own answer never moves its number: in five folds, even within every label, the label-prior
    correction and a matrix scaling (``softmax(W log p + b)``, Guo et al. 2017, pulled to doing nothing) are fitted on
    four and applied to the fifth. The matrix learns which label is taken for which, so that a frequent confusion
    looks less suspicious than a rare one.

    The ranking is as good as the classifier: where its confidence does not tell right from wrong rows, or where it
    answers few of the labels, the numbers mean nothing.

    Parameters
    ----------
    log_probabilities : array-like of shape (n, L), n >= 2
        Natural logarithms, finite; rows are normalised first. Predictions of rows that the model was not trained on.
    answers : array-like of int, shape (n,)
        Position of the given label of each row, in [0, L); some may be wrong.
    rng : numpy Generator, int or None, default None
        Draws the folds; None is seed 0, so that equal calls agree.

    Returns
    -------
    ndarray of shape (n,)
        In (0, 1].

    Raises
    ------
    ConfigurationError
        Wrong shapes, fewer than two rows, NaN or infinity, or a position out of range.
    """
    given = check_log_probabilities("log_probabilities", log_probabilities)
    truth = check_answers(answers, given)
    if len(given) < 2:
        raise ConfigurationError(
            "Expected at least two rows, one to learn from and one to judge, got 1: add rows."
        )
    rows = np.maximum(log_normalise(given), _FLOOR)
    generator = np.random.default_rng(0 if rng is None else rng)
    fold = stratified_folds(truth, min(_FOLDS, len(rows)), generator)
    order = generator.permutation(len(rows))
    found = np.empty(len(rows))
    for k in range(int(fold.max()) + 1):
        taught = order[fold[order] != k][: max(1, _MOST_FITTED // rows.shape[1])]
        judged = np.flatnonzero(fold == k)
        prior = LabelPriorCorrection().fit(rows[taught], truth[taught])
        weight, offset = _matrix_scaling(prior.transform(rows[taught]), truth[taught])
        scaled = log_normalise(prior.transform(rows[judged]) @ weight + offset)
        found[judged] = np.exp(scaled[np.arange(len(judged)), truth[judged]])
    # A probability that underflows still ranks last, and has a logarithm.
    return np.maximum(found, np.finfo(np.float64).tiny)


def _matrix_scaling(
    rows: NDArray[np.float64], answers: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return W (L, L) and b (L,) of least log loss plus ``(|W - I|^2 + |b|^2) / (2 n)``.

    The pull to doing nothing weighs as much as one row, as in `VectorScaling`: a label without rows is not ruled out.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - `import calibrant` must not load scipy

    n, n_labels = rows.shape
    identity = np.vstack([np.eye(n_labels), np.zeros(n_labels)])
    inputs = np.hstack([rows, np.ones((n, 1))])
    onehot = np.eye(n_labels)[answers]

    def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        moved = x.reshape(n_labels + 1, n_labels)
        log_p = log_normalise(inputs @ (identity + moved))
        value = -float((log_p * onehot).sum()) / n + float((moved**2).sum()) / (2.0 * n)
        return value, (inputs.T @ (np.exp(log_p) - onehot) / n + moved / n).ravel()

    start = np.zeros(identity.size)
    moved = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS}).x
    found = identity + moved.reshape(identity.shape)
    return found[:-1], found[-1]
