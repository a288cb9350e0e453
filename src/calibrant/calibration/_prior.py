"""Label-prior correction, which removes a model's preference for labels whatever the text."""

from __future__ import annotations

from operator import index
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from calibrant.calibration._fit import SavedFit, log_losses, log_normalise, paired_gain
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray, IndexArray, Prediction, Record
from calibrant.metrics._validation import (
    as_numbers,
    as_rows,
    check_answers,
    check_log_probabilities,
    check_number,
)

PriorMethod = Literal["batch", "contextual"]
"""Which rows a prior is the mean of: real inputs, or content-free ones."""

CONTENT_FREE_INPUTS = (" ", "N/A", "[MASK]")
"""Texts that say nothing, for contextual calibration: those of Zhao et al. (2021).

A space stands in for their empty text, which some providers reject.
"""

# The least probability a label has in a distribution read from an answer.
_FLOOR = 1e-12
_MOST_LEARNED = 2.0
_STRENGTHS = "[0, 1e6]"
# How far the sum of shares may be from 1.
_SHARES_SUM = 1e-6
# A label with at least half its fair share of the rows, 1 / (2 L), is in use; unlabelled rows cannot show
# whether the others are rare or suppressed.
_IN_USE = 0.5
# A dominant label wins this many times the rows that the other labels in use win on average: of 64 rows that 4 labels
# win equally often, chance makes one dominant about 4 times in 100,000. Priors are floored at a third of a fair share.
_DOMINANT = 3.0
# Above this share of rows won by one label, no other label is left to compare it with.
_NEARLY_ALL = 0.95
# Sums of weights are exact up to rounding.
_ROUNDING = 1e-9


class LabelPriorCorrection(SavedFit):
    """Correction of label bias, which divides predicted distributions by the mean prediction.

    Small models prefer a label whatever the text. The mean predicted distribution, `prior_`, shows
    that preference without a single label, and ``p(y | x) / prior(y)^strength``, normalised, takes
    it out. Batch calibration (Zhou et al. 2023, "Batch Calibration", arXiv 2309.17249) averages
    over real inputs; contextual calibration (Zhao et al. 2021, "Calibrate Before Use", arXiv
    2102.09690) over content-free ones, such as `CONTENT_FREE_INPUTS`. The strength is the factor
    that Zhou et al. add where labels are at hand.

    Full division assumes that the labels are about equally frequent, which no unlabelled row can
    show. So by default batch calibration is guarded: it asks how many rows each label *wins* (has
    as its arg max) as scored, and

    - divides fully where one label wins at least 95 % of the rows. *Assumed: the texts are not
      nearly all of one class.*
    - corrects nothing (strength 0) unless the label with most rows wins at least three times as
      many as the other labels in use do on average; a label in use wins at least half its fair
      share, ``1 / (2 L)``.
    - else divides, but takes no label's prior for less than a third of its fair share,
      ``1 / (3 L)``: a label with so small a prior may be rare rather than suppressed. *Assumed: no
      class is three times as frequent as the others in use.*

    The guard ends where more is known: `frequencies`, a given `strength`, or answers. Where labels
    are known to be skewed, state their frequencies, learn the strength from answers
    (`fit_strength`), or let `calibrant.heads.fit_head` decide. Contextual calibration has no guard:
    its rows are no sample of the texts.

    Parameters
    ----------
    method : {"batch", "contextual"}, default "batch"
        Which rows `fit` and `partial_fit` are given; the mathematics is the same. ``batch``:
        predictions for real inputs, the more the better. ``contextual``: predictions for
        content-free inputs, which have no answers.
    strength : float in [0, 1e6], optional
        Exponent of the prior: 1 divides by all of it, 0 by nothing. Default: learned from answers
        if given, else 1, or 0 if the guard finds no bias.
    frequencies : array-like of shape (L,), optional
        Known share of each label among the texts, positive, summing to 1 within 1e-6. The mean
        corrected prediction then leans towards these shares rather than equal ones.

    Attributes
    ----------
    prior_ : ndarray of shape (L,)
        The (weighted) mean of the normalised probabilities, each at least 1e-12 so that logarithms
        stay finite; sums to 1 but for that floor.
    divisor_ : ndarray of shape (L,)
        The prior that is divided out: `prior_`, as the guard bounds it, or relative to
        `frequencies`.
    n_rows_ : int
        Number of rows in the mean.
    strength_ : float
        The strength in use: the given one, the learned one, in [0, 2], 1, or 0 where the guard
        finds no bias.

    Raises
    ------
    ConfigurationError
        An unknown method, a strength out of range, or invalid frequencies.

    Examples
    --------
    A model that always leans to the first label, and how it then tells the texts apart:

    >>> import numpy as np
    >>> rows = np.log([[0.9, 0.1], [0.6, 0.4]])
    >>> correction = LabelPriorCorrection().fit(rows)
    >>> correction.prior_.round(2).tolist()
    [0.75, 0.25]
    >>> np.exp(correction.transform(rows)).round(2).tolist()
    [[0.75, 0.25], [0.33, 0.67]]
    """

    prior_: FloatArray
    divisor_: FloatArray
    n_rows_: int
    strength_: float
    _mean: FloatArray  # prior_ before the floor
    _wins: FloatArray | None  # shares of rows won; None where nothing is guarded
    _weight: float  # sum of the weights of all rows
    _kind = "label-prior correction"
    _fitted = "prior_"

    def __init__(
        self,
        method: PriorMethod = "batch",
        *,
        strength: float | None = None,
        frequencies: ArrayLike | None = None,
    ) -> None:
        if method not in get_args(PriorMethod):
            raise ConfigurationError(f"Expected method 'batch' or 'contextual', got {method!r}.")
        self.method = method
        self.strength = None if strength is None else check_number("strength", strength, _STRENGTHS)
        self.frequencies = None if frequencies is None else _check_frequencies(frequencies)

    def __repr__(self) -> str:
        known = "" if self.frequencies is None else f", frequencies={list(self.frequencies)}"
        return f"LabelPriorCorrection({self.method!r}, strength={self.strength!r}{known})"

    def fit(
        self,
        log_probabilities: ArrayLike,
        answers: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
    ) -> Self:
        """Fit the prior and, if answers are given, the strength; an earlier fit is discarded.

        With answers, prior and strength come from the same rows. The prior sees no answer, so the
        bias is small, but rows other than those are the better judge: fit the prior on unlabelled
        rows, then call `fit_strength` on labelled ones. `calibrant.heads.fit_head` never lets a row
        judge what it has taught.

        Parameters
        ----------
        log_probabilities : array-like of shape (n, L)
            Natural logarithms, finite; rows are normalised first.
        answers : array-like of int, shape (n,), optional
            Position of the true label of each row, in [0, L). Only checked where the strength was
            given to the constructor. Content-free inputs have none.
        weights : array-like of shape (n,), optional
            Weight of each row in the prior, in (0, 1]. Default 1.

        Raises
        ------
        ConfigurationError
            Wrong shapes, no rows, NaN or infinity, a position or weight out of range, another
            number of labels than `frequencies`, or answers to content-free inputs.
        """
        n_labels = None
        if self.frequencies is not None:
            n_labels = len(self.frequencies)
        rows = check_log_probabilities(log_probabilities, n_labels=n_labels)
        if answers is not None and self.method == "contextual":
            raise ConfigurationError(
                "Expected no answers to content-free inputs (method='contextual'), got some: call fit without "
                "them, then fit_strength on labelled rows of real inputs."
            )
        positions = None if answers is None else check_answers(answers, rows)
        guarded = self.method == "batch" and self.strength is None and self.frequencies is None
        nothing = np.zeros(rows.shape[1])
        self.strength_ = 1.0 if self.strength is None else self.strength
        self._mean = nothing
        self._wins = nothing if guarded else None
        self._weight = 0.0
        self.n_rows_ = 0
        shares = np.ones(len(rows)) if weights is None else _check_weights(weights, rows)
        self._absorb(rows, shares)
        if positions is not None and self.strength is None:
            self._learn_strength(rows, positions)
        return self

    def partial_fit(self, log_probabilities: ArrayLike) -> Self:
        """Add rows to the running mean; a given or learned strength stays as it is.

        The correction equals that of `fit` on all rows at once, up to rounding, however they are
        split: the guard judges all rows anew.

        Parameters
        ----------
        log_probabilities : array-like of shape (n, L)
            As for `fit`, over the same labels as before.

        Raises
        ------
        ConfigurationError
            Wrong shapes, no rows, NaN or infinity.
        """
        if not hasattr(self, "prior_"):
            return self.fit(log_probabilities)
        rows = check_log_probabilities(log_probabilities, n_labels=len(self.prior_))
        self._absorb(rows, np.ones(len(rows)))
        return self

    def fit_strength(self, log_probabilities: ArrayLike, answers: ArrayLike) -> Self:
        """Learn the strength on labelled rows, and use it from now on; the prior stays as it is.

        It is the strength in [0, 2] of least mean log loss, or 0 where that gains no more over no
        correction than its own standard error (paired over rows; one row has none to show). To
        second order, where the best strength is small, that asks the loss to fall at strength 0
        with a slope of twice its standard error: it happens by chance about once in 44 times.

        Parameters
        ----------
        log_probabilities : array-like of shape (n, L)
            Natural logarithms, finite, uncorrected, for real inputs (validation rows).
        answers : array-like of int, shape (n,)
            Position of the true label of each row, in [0, L).

        Raises
        ------
        NotFittedError
            Neither `fit` nor `partial_fit` was called.
        ConfigurationError
            The strength was given to the constructor, or the input is wrong as for `fit`.
        """
        self._require_fitted("fit_strength")
        if self.strength is not None:
            raise ConfigurationError(
                f"Expected no strength where it is to be learned, got strength={self.strength!r} in the "
                "constructor: leave it out there, or do not call fit_strength."
            )
        rows = check_log_probabilities(log_probabilities, n_labels=len(self.prior_))
        self._learn_strength(rows, check_answers(answers, rows))
        return self

    def transform(self, log_probabilities: ArrayLike) -> FloatArray:
        """Return corrected log-probabilities, normalised and finite.

        Parameters
        ----------
        log_probabilities : array-like of shape (n, L) or (L,)
            Natural logarithms, finite; rows are normalised first.

        Returns
        -------
        ndarray of shape (n, L) or (L,)
            As given; the exponentials of every row sum to 1.

        Raises
        ------
        NotFittedError
            The correction is not fitted.
        ConfigurationError
            Wrong shapes, no rows, NaN or infinity.
        """
        self._require_fitted("transform")
        rows = as_rows(log_probabilities, n_labels=len(self.prior_))
        corrected = divided(log_normalise(rows), self.divisor_, self.strength_)
        return corrected.reshape(np.shape(log_probabilities))

    @property
    def n_labels_(self) -> int:
        """Number of labels."""
        return len(self.prior_)

    def _state(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "strength": self.strength,
            "learned_strength": self.strength_,
            "n_rows": self.n_rows_,
            "weight": self._weight,
            "mean": self._mean.tolist(),
            "wins": None if self._wins is None else self._wins.tolist(),
            "frequencies": None if self.frequencies is None else list(self.frequencies),
        }

    @classmethod
    def _from_state(cls, state: Record, *, labels: tuple[str, ...]) -> Self:
        n_labels = len(labels)
        restored = cls(state["method"], strength=state["strength"], frequencies=state["frequencies"])
        restored.n_rows_ = index(state["n_rows"])
        restored.strength_ = check_number("strength", state["learned_strength"], _STRENGTHS)
        restored._weight = check_number("weight", state["weight"], f"(0, {restored.n_rows_}]")
        restored._mean = _stored_shares(state["mean"], n_labels)
        wins = state["wins"]
        restored._wins = None if wins is None else _stored_shares(wins, n_labels)
        if len(restored.frequencies or restored._mean) != n_labels:
            raise ConfigurationError(f"Expected frequencies of {n_labels} labels.")
        restored._derive()
        return restored

    def _absorb(self, rows: FloatArray, weights: FloatArray) -> None:
        """Update the running means with weighted rows."""
        before = self._weight
        self._weight += float(weights.sum())
        sums = weights @ np.exp(log_normalise(rows))
        self._mean = (before * self._mean + sums) / self._weight
        if self._wins is not None:
            top = rows == rows.max(axis=1, keepdims=True)
            wins = weights @ (top / top.sum(axis=1, keepdims=True))  # ties are divided
            self._wins = (before * self._wins + wins) / self._weight
        self.n_rows_ += len(rows)
        self._derive()

    def _derive(self) -> None:
        """Compute prior and divisor from the running means, and the strength if it is guarded."""
        self.prior_ = np.maximum(self._mean, _FLOOR)
        self.divisor_ = self.prior_
        if self.frequencies is not None:
            ratio = self.prior_ / np.array(self.frequencies)
            self.divisor_ = ratio / ratio.sum()
        elif self._wins is not None:
            guarded = _guarded_prior(self.prior_, self._wins)
            self.strength_ = 0.0 if guarded is None else 1.0
            self.divisor_ = self.prior_ if guarded is None else guarded
        self.prior_.setflags(write=False)
        self.divisor_.setflags(write=False)

    def _learn_strength(self, rows: FloatArray, answers: IndexArray) -> None:
        # Answers tell rare labels from suppressed ones.
        self._wins = None
        self._derive()
        log_p = log_normalise(rows)
        strength = best_strength(log_p, answers, self.divisor_)
        before = log_losses(log_p, answers)
        after = log_losses(divided(log_p, self.divisor_, strength), answers)
        self.strength_ = strength if paired_gain(before, after).helps else 0.0


def _guarded_prior(prior: FloatArray, wins: FloatArray) -> FloatArray | None:
    """Return the prior to divide by, or None if the rows show no bias towards a label.

    Parameters
    ----------
    prior : ndarray of shape (L,)
        Mean probability of each label, positive.
    wins : ndarray of shape (L,)
        Share of the rows on which each label is the most probable; sums to 1.
    """
    n_labels = len(prior)
    top = int(wins.argmax())
    if wins[top] >= _NEARLY_ALL - _ROUNDING:
        return prior
    others = np.delete(wins, top)
    others = others[others >= _IN_USE / n_labels - _ROUNDING]
    if not len(others) or wins[top] < _DOMINANT * others.mean() - _ROUNDING:
        return None
    return np.maximum(prior, 1.0 / (_DOMINANT * n_labels))


def _check_frequencies(frequencies: ArrayLike) -> tuple[float, ...]:
    given = as_numbers("frequencies", frequencies)
    is_positive = given.ndim == 1 and (given > 0.0).all()
    if not is_positive or not abs(given.sum() - 1.0) <= _SHARES_SUM:
        raise ConfigurationError(
            f"Expected frequencies to be one positive share for each label, summing to 1, got {frequencies!r}: "
            "give a label that is nearly never right a small share, such as 0.001."
        )
    return tuple(given.tolist())


def _check_weights(weights: ArrayLike, rows: FloatArray) -> FloatArray:
    given = as_numbers("weights", weights)
    is_legal = (given > 0.0) & (given <= 1.0)
    if given.shape != (len(rows),) or not is_legal.all():
        raise ConfigurationError(
            f"Expected weights in (0, 1], one for each of {len(rows)} rows, got {weights!r}: leave other rows out."
        )
    return given


def _stored_shares(values: Any, n_labels: int) -> FloatArray:  # noqa: ANN401 - any JSON value
    """Return stored shares of the labels; raise an error if they are no distribution over them."""
    shares = np.array(values, dtype=np.float64)
    is_legal = shares.shape == (n_labels,) and (shares >= 0.0).all()
    if not is_legal or not abs(shares.sum() - 1.0) <= _SHARES_SUM:
        raise ConfigurationError(f"Expected a distribution over {n_labels} labels, got {values}.")
    return shares


def divided(log_p: FloatArray, prior: FloatArray, strength: float) -> FloatArray:
    """Return the logarithm of ``p / prior^strength``, rows normalised, shape (n, L)."""
    return log_normalise(log_p - strength * np.log(prior))


def best_strength(log_p: FloatArray, answers: IndexArray, prior: FloatArray) -> float:
    """Return the strength in [0, 2] with the least mean log loss.

    Parameters
    ----------
    log_p : ndarray of shape (n, L)
        Normalised log-probabilities.
    answers : ndarray of int, shape (n,)
        Positions of the true labels.
    prior : ndarray of shape (L,)
        Positive.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - `import calibrant` must not load scipy

    def loss(strength: float) -> float:
        return float(log_losses(divided(log_p, prior, strength), answers).mean())

    # Convex in s, so one minimum: a row's loss is log sum_j exp(log p_j - s log prior_j), a log-sum-exp
    # of functions affine in s, minus log p_y - s log prior_y, affine itself.
    inner = minimize_scalar(loss, bounds=(0.0, _MOST_LEARNED), method="bounded", options={"xatol": 1e-8})
    # The search stays inside the interval; the ends themselves may be the minimum.
    return min((0.0, float(inner.x), _MOST_LEARNED), key=loss)


def correct_prediction(prediction: Prediction, correction: LabelPriorCorrection) -> Prediction:
    """Return `prediction` with the label and the confidence of its corrected distribution.

    One without a distribution, or without a label, is returned as it is. `text` stays as the model wrote it.

    Raises
    ------
    NotFittedError
        The correction was not fitted.
    ConfigurationError
        It was fitted on another number of labels.
    """
    if prediction.distribution is None or prediction.label is None:
        return prediction
    correction._require_fitted("a distribution to correct")  # noqa: SLF001
    given = prediction.distribution
    if len(correction.prior_) != len(given.labels):
        raise ConfigurationError(
            f"Expected a distribution over {len(correction.prior_)} labels, as the correction was fitted on, got "
            f"{len(given.labels)} {given.labels[:3]}: fit a correction for this label set."
        )
    if correction.strength_ == 0:
        return prediction
    return prediction.with_logprobs(given, correction.transform(given.logprobs))
