"""Prediction sets that hold the true label with a stated probability."""

from __future__ import annotations

from math import ceil
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from calibrant.calibration._fit import log_normalise
from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.core._installation import install_command
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray
from calibrant.metrics._validation import check_answers, check_log_probabilities, check_number

ConformalMethod: TypeAlias = Literal["lac", "aps"]


class ConformalSets:
    """Prediction sets that hold the true label with a chosen probability (split conformal, MAPIE).

    The guarantee is marginal: over rows drawn like the labelled ones, whatever the model does. A set
    may be empty or hold every label. To know which single answers to accept, use
    `certify_threshold`; with two labels a set says little more than that.

    Needs the ``conformal`` extra.

    Parameters
    ----------
    method : {"lac", "aps"}, default "lac"
        ``lac``: every label above one probability, the smallest sets on average (Sadinle et al.
        2019). ``aps``: the most probable labels up to a total that holds (Romano et al. 2020), sets
        that grow where a row is harder; three labels or more.

    Attributes
    ----------
    n_labels_ : int
        L, learned by `fit`.

    Raises
    ------
    ConfigurationError
        Unknown method, or MAPIE is not installed.

    Examples
    --------
    >>> from calibrant.calibration import ConformalSets
    >>> labelled = np.log([[0.7, 0.2, 0.1]] * 20)
    >>> sets = ConformalSets().fit(labelled, [0] * 15 + [1] * 4 + [2])
    >>> new = np.log([[0.72, 0.25, 0.03]])
    >>> sets.predict(new, level=0.5).tolist(), sets.predict(new, level=0.9).tolist()
    ([[True, False, False]], [[True, True, False]])
    """

    n_labels_: int

    def __init__(self, method: ConformalMethod = "lac") -> None:
        if method not in {"lac", "aps"}:
            raise ConfigurationError(f"Expected method 'lac' or 'aps', got {method!r}.")
        self.method = method
        self._mapie = _open_mapie()
        self._rows: FloatArray | None = None
        self._answers: IndexArray | None = None

    def fit(self, log_probabilities: ArrayLike, answers: ArrayLike) -> Self:
        """Store the labelled rows that the prediction sets are calibrated on.

        Parameters
        ----------
        log_probabilities : array-like of shape (n, L)
            Natural logarithms, finite; rows are normalised first.
        answers : array-like of int, shape (n,)
            Position of the true label of each row, in [0, L).

        Raises
        ------
        ConfigurationError
            Wrong shapes, no rows, NaN, a position out of range, or ``aps`` with two labels.
        """
        rows = check_log_probabilities(log_probabilities)
        positions = check_answers(answers, rows)
        if self.method == "aps" and rows.shape[1] == 2:
            raise ConfigurationError("Expected three labels or more for method 'aps', got 2: use 'lac'.")
        self.n_labels_ = rows.shape[1]
        self._rows = np.exp(log_normalise(rows))
        self._answers = positions
        return self

    def predict(self, log_probabilities: ArrayLike, *, level: float = 0.9) -> BoolArray:
        """Return the prediction sets as a mask of labels, shape (m, L).

        Parameters
        ----------
        log_probabilities : array-like of shape (m, L)
            As for `fit`.
        level : float, default 0.9
            Probability that a set holds the true label, in (0, 1).

        Raises
        ------
        NotFittedError
            `fit` was not called.
        ConfigurationError
            Wrong shape, NaN, a level out of range, or too few labelled rows for it.
        """
        if self._rows is None or self._answers is None:
            raise NotFittedError("Expected labelled rows before sets can be predicted: call fit first.")
        wished = check_number("level", level, "(0, 1)")
        least = ceil(max(1.0 / wished, 1.0 / (1.0 - wished)))  # MAPIE's own limit
        if len(self._rows) < least:
            raise ConfigurationError(
                f"Expected at least {least} labelled rows at level {wished:g}, got {len(self._rows)}: "
                "add rows or lower the level."
            )
        rows = check_log_probabilities(log_probabilities, n_labels=self.n_labels_)
        conformal = self._mapie(
            _reported(self.n_labels_), confidence_level=wished, conformity_score=self.method, prefit=True
        ).conformalize(self._rows, self._answers)
        _, sets = conformal.predict_set(np.exp(log_normalise(rows)))
        result: BoolArray = np.asarray(sets[:, :, 0], dtype=bool)
        return result


def _open_mapie() -> Any:  # noqa: ANN401  (an optional library's class)
    try:
        from mapie.classification import SplitConformalClassifier  # noqa: PLC0415  (optional, heavy)
    except ImportError as error:
        raise ConfigurationError(
            f"Prediction sets need the conformal extra: {install_command('conformal')}."
        ) from error
    return SplitConformalClassifier


def _reported(n_labels: int) -> Any:  # noqa: ANN401  (a scikit-learn estimator)
    """Return a scikit-learn classifier whose features are its probabilities."""
    from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: PLC0415  (heavy)

    class Reported(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        def __init__(self) -> None:
            self.classes_ = np.arange(n_labels)

        def fit(self, rows: FloatArray, answers: object) -> Self:
            del rows, answers
            return self

        def predict_proba(self, rows: FloatArray) -> FloatArray:
            return np.asarray(rows)

        def predict(self, rows: FloatArray) -> IndexArray:
            found: IndexArray = np.asarray(rows).argmax(axis=1)
            return found

    return Reported()
