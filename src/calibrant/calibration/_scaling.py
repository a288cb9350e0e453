"""Calibrators of whole distributions: one temperature, or a weight and an offset per label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._calibrators import best_inverse_temperature
from calibrant.calibration._losses import log_normalise
from calibrant.calibration._state import check_label_count, damaged, read_state, write_state
from calibrant.calibration._validation import (
    as_numbers,
    check_answers,
    check_log_probabilities,
    check_number,
    require_fitted,
)
from calibrant.core._errors import ConfigurationError
from calibrant.core._fingerprint import Fingerprint

_KIND = "distribution scaling"
_VERSION = 1
# What is read from answers never falls below 1e-12; less than that is a bound and no measurement.
_FLOOR = float(np.log(1e-12))
_LEAST, _MOST = 1e-3, 1e3
_HUGE = 1e100


class DistributionScaling(ABC):
    """Base class of temperature and vector scaling.

    Rows are log-probabilities, normalised first; less than log(1e-12) counts as that.

    Attributes
    ----------
    n_labels_ : int
        L of the fitted rows.
    """

    method: ClassVar[str]
    n_labels_: int

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
        rows = check_log_probabilities("log_probabilities", log_probabilities)
        self._learn(_logits(rows), check_answers(answers, rows))
        self.n_labels_ = rows.shape[1]
        return self

    def transform(self, log_probabilities: ArrayLike) -> NDArray[np.float64]:
        """Return scaled log-probabilities, normalised and finite, of the shape given.

        Parameters
        ----------
        log_probabilities : array-like of shape (n, L) or (L,)
            Natural logarithms, finite.

        Raises
        ------
        NotFittedError
            Nothing was learned yet.
        ConfigurationError
            Wrong shapes, no rows, NaN or infinity.
        """
        require_fitted(self, "n_labels_", what="transform")
        given = as_numbers("log_probabilities", log_probabilities)
        rows = check_log_probabilities(
            "log_probabilities", given[None, :] if given.ndim == 1 else given, n_labels=self.n_labels_
        )
        scaled = log_normalise(self._scaled(_logits(rows)))
        return scaled[0] if given.ndim == 1 else scaled

    def save(self, path: str | Path, *, fingerprint: Fingerprint) -> None:
        """Write the fitted parameters to one JSON file, atomically and at full precision.

        Raises
        ------
        NotFittedError
            `fit` was not called.
        ConfigurationError
            The fingerprint has another number of labels.
        StateError
            The file cannot be written.
        """
        require_fitted(self, "n_labels_", what="save")
        check_label_count(fingerprint, self.n_labels_)
        state = {"method": self.method, **self._learned()}
        write_state(path, kind=_KIND, version=_VERSION, fingerprint=fingerprint, state=state)

    @classmethod
    def load(cls, path: str | Path, *, fingerprint: Fingerprint) -> Self:
        """Return the scaling of this class written by `save`.

        Raises
        ------
        StateError
            The file is missing or damaged, holds something else or another version, or was fitted
            on another prompt, model, log-probability space or label set; the message names which.
        """
        state = read_state(path, kind=_KIND, version=_VERSION, fingerprint=fingerprint)
        try:
            scaling = cls()
            if state["method"] != cls.method:
                raise ConfigurationError(f"Expected method {cls.method!r}, got {state['method']!r}.")
            scaling.n_labels_ = len(fingerprint.labels)
            scaling._restore(state)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, error) from error
        return scaling

    @abstractmethod
    def _learn(self, rows: NDArray[np.float64], answers: NDArray[np.intp]) -> None: ...

    @abstractmethod
    def _scaled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]: ...

    @abstractmethod
    def _learned(self) -> dict[str, Any]: ...

    @abstractmethod
    def _restore(self, learned: Mapping[str, Any]) -> None: ...


class TemperatureScaling(DistributionScaling):
    """Divides log-probabilities by one temperature (Guo et al. 2017, arXiv 1706.04599).

    T of least log loss in [0.001, 1000]. The most probable label stays what it was. Rows whose most
    probable label is always the answer are refused: they would be taken for certainty.

    Attributes
    ----------
    temperature_ : float
        T; above 1 where the model is too sure.
    """

    method = "temperature"
    temperature_: float

    def _learn(self, rows: NDArray[np.float64], answers: NDArray[np.intp]) -> None:
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

    def _scaled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return rows / self.temperature_

    def _learned(self) -> dict[str, Any]:
        return {"temperature": self.temperature_}

    def _restore(self, learned: Mapping[str, Any]) -> None:
        self.temperature_ = check_number("temperature", learned["temperature"], low=_LEAST, high=_MOST)


class VectorScaling(DistributionScaling):
    """A weight and an offset for each label's log-probability (Guo et al. 2017, arXiv 1706.04599).

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
    """

    method = "vector"
    weight_: NDArray[np.float64]
    offset_: NDArray[np.float64]

    def __init__(self, *, l2: float = 1.0) -> None:
        self.l2 = check_number("l2", l2, low=0.0, high=1e6, open_low=True)

    def _learn(self, rows: NDArray[np.float64], answers: NDArray[np.intp]) -> None:
        from scipy.optimize import minimize  # noqa: PLC0415 - `import calibrant` must not load scipy

        n, n_labels = rows.shape
        onehot = np.eye(n_labels)[answers]

        def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            moved = x.reshape(2, n_labels) - np.array([[1.0], [0.0]])
            log_p = log_normalise(rows * (moved[0] + 1.0) + moved[1])
            gap = (np.exp(log_p) - onehot) / n
            value = -float((log_p * onehot).sum()) / n + self.l2 * float((moved**2).sum()) / (2.0 * n)
            slope = np.stack([(gap * rows).sum(axis=0), gap.sum(axis=0)]) + self.l2 * moved / n
            return value, slope.ravel()

        start = np.concatenate([np.ones(n_labels), np.zeros(n_labels)])
        # Strictly convex, so one minimum.
        options = {"gtol": 1e-9, "ftol": 1e-14, "maxiter": 2000}
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x.reshape(2, n_labels)
        self.weight_, self.offset_ = found[0].copy(), found[1].copy()

    def _scaled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return rows * self.weight_ + self.offset_

    def _learned(self) -> dict[str, Any]:
        return {"l2": self.l2, "weight": self.weight_.tolist(), "offset": self.offset_.tolist()}

    def _restore(self, learned: Mapping[str, Any]) -> None:
        self.l2 = check_number("l2", learned["l2"], low=0.0, high=1e6, open_low=True)
        both = as_numbers("weight and offset", [learned["weight"], learned["offset"]])
        if both.shape != (2, self.n_labels_) or not (np.abs(both) <= _HUGE).all():
            raise ConfigurationError(
                f"Expected a weight and an offset for {self.n_labels_} labels, got {both.shape}."
            )
        self.weight_, self.offset_ = both[0].copy(), both[1].copy()


def _logits(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(log_normalise(rows), _FLOOR)
