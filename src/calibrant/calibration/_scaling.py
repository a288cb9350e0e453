"""Calibrators of whole distributions: temperature, vector and matrix scaling."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from calibrant.calibration._calibrators import TEMPERATURE, best_inverse_temperature
from calibrant.calibration._fit import FLOOR, SavedFit, log_normalise, stratified_folds
from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray, IndexArray, Record
from calibrant.metrics._validation import (
    HUGE,
    as_numbers,
    as_rows,
    check_answers,
    check_log_probabilities,
    check_number,
)

_FOLDS: Final = 5
# As calibrators clip probabilities: what a model says beyond one in a million is no measurement.
_RANKED_FLOOR: Final = float(np.log(1e-6))
# Numbers that a fold is fitted on, at most. Of 77 labels these are 2,600 rows, some seconds in all.
_MOST_FITTED: Final = 200_000
_MATRIX_ITERATIONS: Final = 500


class DistributionScaling(SavedFit):
    """Base class of temperature and vector scaling.

    Rows are log-probabilities, normalised first; less than log(1e-12) counts as that.

    Attributes
    ----------
    n_labels_ : int
        L of the fitted rows.
    """

    method: ClassVar[str]
    n_labels_: int
    _kind = "distribution scaling"
    _fitted = "n_labels_"

    def fit(self, log_probabilities: ArrayLike, answers: ArrayLike) -> Self:
        """Fit on labelled rows; an earlier fit is discarded.

        Parameters
        ----------
        log_probabilities : array-like of shape (n, L)
            Natural logarithms, finite.
        answers : array-like of int, shape (n,)
            Position of the true label of each row, in [0, L).

        Raises
        ------
        ConfigurationError
            Wrong shapes, no rows, NaN or infinity, or a position out of range.
        """
        rows = check_log_probabilities(log_probabilities)
        self._learn(_logits(rows), check_answers(answers, rows))
        self.n_labels_ = rows.shape[1]
        return self

    def transform(self, log_probabilities: ArrayLike) -> FloatArray:
        """Return scaled log-probabilities, normalised and finite, of the shape given.

        Parameters
        ----------
        log_probabilities : array-like of shape (n, L) or (L,)
            Natural logarithms, finite.

        Raises
        ------
        NotFittedError
            The calibrator is not fitted.
        ConfigurationError
            Wrong shapes, no rows, NaN or infinity.
        """
        self._require_fitted("transform")
        rows = as_rows(log_probabilities, n_labels=self.n_labels_)
        scaled = self._scaled(_logits(rows))
        return log_normalise(scaled).reshape(np.shape(log_probabilities))

    def _state(self) -> dict[str, Any]:
        return {"method": self.method, **self._learned()}

    @classmethod
    def _from_state(cls, state: Record, *, labels: tuple[str, ...]) -> Self:
        cls._check_method(state, cls.method)
        scaling = cls()
        scaling.n_labels_ = len(labels)
        scaling._restore(state)
        return scaling

    @abstractmethod
    def _learn(self, rows: FloatArray, answers: IndexArray) -> None: ...

    @abstractmethod
    def _scaled(self, rows: FloatArray) -> FloatArray: ...


class TemperatureScaling(DistributionScaling):
    """Scaling of log-probabilities by one temperature (Guo et al. 2017, arXiv 1706.04599).

    T of least log loss in [0.001, 1000]. The most probable label stays what it was. Rows whose most
    probable label is always the answer are refused: they would be taken for certainty.

    Attributes
    ----------
    temperature_ : float
        T; above 1 where the model is too sure.

    Examples
    --------
    >>> from calibrant.calibration import TemperatureScaling
    >>> scaling = TemperatureScaling().fit(np.log([[0.9, 0.1]] * 4), [0, 0, 0, 1])
    >>> round(scaling.temperature_, 6)
    2.0
    >>> np.exp(scaling.transform(np.log([[0.9, 0.1]]))).round(6).tolist()
    [[0.75, 0.25]]
    """

    method = "temperature"
    _parameters = TEMPERATURE
    temperature_: float

    def _learn(self, rows: FloatArray, answers: IndexArray) -> None:
        truth = rows[np.arange(len(rows)), answers]
        if np.ptp(rows) > 0.0 and (truth >= rows.max(axis=1)).all():
            raise ConfigurationError(
                f"Expected right and wrong rows, got {len(rows)} whose most probable label is always the answer: "
                "they would be taken for certainty; add rows."
            )

        def slope(s: float) -> float:
            expected = (np.exp(log_normalise(s * rows)) * rows).sum(axis=1)
            return float(np.mean(expected - truth))

        self.temperature_ = 1.0 / best_inverse_temperature(slope)

    def _scaled(self, rows: FloatArray) -> FloatArray:
        return rows / self.temperature_


class VectorScaling(DistributionScaling):
    """Scaling with a weight and an offset for each label (Guo et al. 2017, arXiv 1706.04599).

    ``softmax(w * log p + b)`` of least log loss plus ``l2 (|w - 1|^2 + |b|^2) / (2 n)``: few rows
    change little, and a label without rows keeps finite numbers instead of being ruled out.
    Unlike one temperature it may change the most probable label.

    Parameters
    ----------
    l2 : float in (0, 1e6], default 1
        Strength of the pull to doing nothing, as that many rows.

    Attributes
    ----------
    weight_, offset_ : ndarray of shape (L,)
        w and b.

    Raises
    ------
    ConfigurationError
        `l2` out of range.

    Examples
    --------
    >>> from calibrant.calibration import VectorScaling
    >>> rows = np.log([[0.6, 0.4]] * 100)
    >>> scaling = VectorScaling().fit(rows, [0] * 30 + [1] * 70)
    >>> np.exp(scaling.transform(rows[:1])).round(2).tolist()
    [[0.3, 0.7]]
    """

    method = "vector"
    weight_: FloatArray
    offset_: FloatArray

    def __init__(self, *, l2: float = 1.0) -> None:
        self.l2 = check_number("l2", l2, "(0, 1e6]")

    def _learn(self, rows: FloatArray, answers: IndexArray) -> None:
        n_labels = rows.shape[1]
        start = np.stack([np.ones(n_labels), np.zeros(n_labels)])

        def slope(gap: FloatArray) -> FloatArray:
            by_weight = (gap * rows).sum(axis=0)
            return np.stack([by_weight, gap.sum(axis=0)])

        found = _penalised_fit(
            start,
            answers,
            logits=lambda x: rows * x[0] + x[1],
            slope=slope,
            l2=self.l2,
            options={"gtol": 1e-9, "ftol": 1e-14, "maxiter": 2000},
        )
        self.weight_ = found[0].copy()
        self.offset_ = found[1].copy()

    def _scaled(self, rows: FloatArray) -> FloatArray:
        return rows * self.weight_ + self.offset_

    def _shown(self) -> dict[str, Any]:
        return {"l2": self.l2, "labels": self.n_labels_}

    def _learned(self) -> dict[str, Any]:
        return {"l2": self.l2, "weight": self.weight_.tolist(), "offset": self.offset_.tolist()}

    def _restore(self, learned: Record) -> None:
        self.l2 = check_number("l2", learned["l2"], "(0, 1e6]")
        both = as_numbers("weight and offset", [learned["weight"], learned["offset"]])
        if both.shape != (2, self.n_labels_) or not (np.abs(both) <= HUGE).all():
            raise ConfigurationError(
                f"Expected a weight and an offset for {self.n_labels_} labels, got {both.shape}."
            )
        self.weight_ = both[0].copy()
        self.offset_ = both[1].copy()


def _logits(rows: FloatArray) -> FloatArray:
    return np.maximum(log_normalise(rows), FLOOR)


def held_out_answer_probability(
    log_probabilities: ArrayLike, answers: ArrayLike, *, rng: np.random.Generator | int | None = None
) -> FloatArray:
    """Return the cross-fitted probability of the true label of each row.

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
    given = check_log_probabilities(log_probabilities)
    truth = check_answers(answers, given)
    if len(given) < 2:
        raise ConfigurationError(
            "Expected at least two rows, one to learn from and one to judge, got 1: add rows."
        )
    rows = np.maximum(log_normalise(given), _RANKED_FLOOR)
    generator = np.random.default_rng(0 if rng is None else rng)
    fold = stratified_folds(truth, min(_FOLDS, len(rows)), generator)
    order = generator.permutation(len(rows))
    most = max(1, _MOST_FITTED // rows.shape[1])
    found = np.empty(len(rows))
    for k in range(int(fold.max()) + 1):
        taught = order[fold[order] != k][:most]
        judged = np.flatnonzero(fold == k)
        prior = LabelPriorCorrection().fit(rows[taught], truth[taught])
        weight, offset = _matrix_scaling(prior.transform(rows[taught]), truth[taught])
        scaled = log_normalise(prior.transform(rows[judged]) @ weight + offset)
        found[judged] = np.exp(scaled[np.arange(len(judged)), truth[judged]])
    # A probability that underflows still ranks last, and has a logarithm.
    return np.maximum(found, np.finfo(np.float64).tiny)


def _matrix_scaling(rows: FloatArray, answers: IndexArray) -> tuple[FloatArray, FloatArray]:
    """Return W (L, L) and b (L,) that minimise log loss plus ``(|W - I|^2 + |b|^2) / (2 n)``.

    The pull to doing nothing weighs as much as one row, as in `VectorScaling`: a label without rows is not ruled out.
    """
    n, n_labels = rows.shape
    inputs = np.hstack([rows, np.ones((n, 1))])
    found = _penalised_fit(
        np.vstack([np.eye(n_labels), np.zeros(n_labels)]),
        answers,
        logits=lambda x: inputs @ x,
        slope=lambda gap: inputs.T @ gap,
        options={"maxiter": _MATRIX_ITERATIONS},
    )
    return found[:-1], found[-1]


def _penalised_fit(
    start: FloatArray,
    answers: IndexArray,
    *,
    logits: Callable[[FloatArray], FloatArray],
    slope: Callable[[FloatArray], FloatArray],
    l2: float = 1.0,
    options: Mapping[str, float],
) -> FloatArray:
    """Return the parameters x, shape (k, L), that minimise log loss plus ``l2 |x - start|^2 / (2 n)``.

    `logits` makes logits of shape (n, L) of x, and `slope` the gradient of x of that of the logits. The loss is
    strictly convex, so that there is one minimum.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - `import calibrant` must not load scipy

    n = len(answers)
    onehot = np.eye(start.shape[1])[answers]

    def loss(x: FloatArray) -> tuple[float, FloatArray]:
        moved = x.reshape(start.shape)
        log_p = log_normalise(logits(start + moved))
        gap = (np.exp(log_p) - onehot) / n
        value = -float((log_p * onehot).sum()) / n
        penalty = l2 * float((moved**2).sum()) / (2.0 * n)
        return value + penalty, (slope(gap) + l2 * moved / n).ravel()

    found = minimize(loss, np.zeros(start.size), jac=True, method="L-BFGS-B", options=dict(options))
    moved: FloatArray = found.x.reshape(start.shape)
    return start + moved
