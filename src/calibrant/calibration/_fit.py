"""Parts of every fit: its JSON file with the fingerprint, losses per row and their comparison, stratified folds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError, NotFittedError, StateError
from calibrant.core._files import damaged_record, read_record, write_record
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import FloatArray, IndexArray, Record
from calibrant.metrics._validation import check_number

_MAKE: Final = "fit and save it"
# What is read from answers never falls below 1e-12; less than that is a bound and no measurement.
FLOOR: Final = float(np.log(1e-12))
# Differences of losses are right up to rounding only; less than this is no gain.
_ROUNDING = 1e-12


def read_state(path: str | Path, *, kind: str, version: int, fingerprint: Fingerprint) -> dict[str, Any]:
    """Return the state that `SavedFit.save` wrote, if the fingerprint is the same.

    Raises
    ------
    StateError
        The file is missing or damaged, holds something else or another version, or belongs to
        another prompt, model, log-probability space or label set; the message names which.
    """
    record = read_record(path, kind=kind, version=version, make=_MAKE)
    try:
        changed = fingerprint.differences(record["fingerprint"])
        state = dict(record["state"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from error
    if changed:
        raise StateError(
            f"{path}: this {kind} was fitted on something else, it differs in {'; '.join(changed)}: "
            "fit it again on present answers, or choose the file that belongs to them."
        )
    return state


def damaged(path: str | Path, error: Exception) -> StateError:
    """Return the error to raise for a damaged file."""
    return damaged_record(path, error, make=_MAKE)


class SavedFit(ABC):
    """Base class of estimators that are saved as one JSON file, with the fingerprint of the fit.

    Learned numbers are attributes with an underscore behind the name.
    """

    _kind: ClassVar[str]
    _version: ClassVar[int] = 1
    _fitted: ClassVar[str]  # attribute that only a fitted estimator has
    _parameters: ClassVar[Mapping[str, str]] = {}  # learned numbers, and the intervals they lie in

    def __repr__(self) -> str:
        shown = {}
        if hasattr(self, self._fitted):
            shown = self._shown()
        values = ", ".join(f"{name}={value}" for name, value in shown.items())
        return f"{type(self).__name__}({values})"

    def _shown(self) -> dict[str, Any]:
        """Return the printed values of a fit."""
        return {name: f"{value:.4g}" for name, value in self._learned().items()}

    def save(self, path: str | Path, *, fingerprint: Fingerprint) -> None:
        """Write the fitted parameters to one JSON file, atomically and at full precision.

        Parameters
        ----------
        path : str or Path
            Destination path. An existing file is replaced.
        fingerprint : Fingerprint
            Fingerprint of the fit; loading requires the same.

        Raises
        ------
        NotFittedError
            The estimator is not fitted.
        ConfigurationError
            The fingerprint has another number of labels than were fitted.
        StateError
            The file cannot be written.
        """
        record = self.saved_record(fingerprint)
        write_record(path, record, kind=self._kind, version=self._version)

    def saved_record(self, fingerprint: Fingerprint) -> dict[str, Any]:
        """Return the JSON values that `save` writes; raises what it raises."""
        self._require_fitted("save")
        self._check_labels(fingerprint)
        about = {"kind": self._kind, "version": self._version}
        return {**about, "fingerprint": fingerprint.to_record(), "state": self._state()}

    @classmethod
    def load(cls, path: str | Path, *, fingerprint: Fingerprint) -> Self:
        """Load an estimator of this class from a file that `save` wrote.

        Raises
        ------
        StateError
            The file is missing or damaged, holds something else or another version, or was fitted on another prompt,
            model, log-probability space or label set; the message names which.
        """
        state = read_state(path, kind=cls._kind, version=cls._version, fingerprint=fingerprint)
        try:
            return cls._from_state(state, labels=tuple(fingerprint.labels))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(path, error) from error

    def _require_fitted(self, action: str) -> None:
        if not hasattr(self, self._fitted):
            name = type(self).__name__
            raise NotFittedError(
                f"Expected a fitted {name}, got {action} before fit: call fit or load first."
            )

    def _check_labels(self, fingerprint: Fingerprint) -> None:
        n_labels = getattr(self, "n_labels_", None)  # of fits that depend on it
        if n_labels not in {None, len(fingerprint.labels)}:
            raise ConfigurationError(
                f"Expected a fingerprint of {n_labels} labels, as fitted, got {len(fingerprint.labels)}: pass the "
                "label set of the rows."
            )

    @abstractmethod
    def _state(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def _from_state(cls, state: Record, *, labels: tuple[str, ...]) -> Self: ...

    def _learned(self) -> dict[str, Any]:
        return {name: getattr(self, f"{name}_") for name in self._parameters}

    def _restore(self, learned: Record) -> None:
        for name, interval in self._parameters.items():
            setattr(self, f"{name}_", check_number(name, learned[name], interval))

    @classmethod
    def _check_method(cls, record: Record, method: str) -> None:
        if record["method"] != method:
            raise ConfigurationError(f"Expected method {method!r}, got {record['method']!r}.")


def log_normalise(rows: FloatArray) -> FloatArray:
    """Return `rows`, shape (n, L), shifted so that the exponentials of each row sum to 1."""
    shifted = rows - rows.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, keepdims=True)
    normalised: FloatArray = shifted - np.log(total)
    return normalised


def log_losses(log_p: FloatArray, answers: NDArray[Any]) -> FloatArray:
    """Return ``-log p(answer)`` of each normalised row, shape (n,), in nats, >= 0.

    Of distributions, shape (n, L), instead of positions, it is the cross-entropy.
    """
    rows = np.arange(len(log_p))
    found: FloatArray = log_p[rows, answers] if answers.ndim == 1 else (answers * log_p).sum(axis=1)
    return -found


@dataclass(frozen=True, kw_only=True)
class PairedGain:
    """Decrease of a mean loss on the same rows, with its standard error.

    Attributes
    ----------
    before, after : float
        Mean losses.
    mean : float
        Mean of before minus after, by row; above 0 where the loss falls.
    standard_error : float
        Standard error of that mean: the sample standard deviation (divisor n - 1) over sqrt(n); infinite for a
        single row, which cannot show its own error.
    """

    before: float
    after: float
    mean: float
    standard_error: float

    @property
    def helps(self) -> bool:
        """True if the loss falls by more than one standard error (and more than rounding)."""
        return self.mean > self.standard_error + _ROUNDING


def paired_gain(before: FloatArray, after: FloatArray) -> PairedGain:
    """Return the decrease of the mean loss over the same n rows, from losses of shape (n,)."""
    difference = before - after
    n = len(difference)
    error = math.inf
    if n > 1:
        error = float(difference.std(ddof=1)) / math.sqrt(n)
    return PairedGain(
        before=float(before.mean()),
        after=float(after.mean()),
        mean=float(difference.mean()),
        standard_error=error,
    )


def stratified_folds(groups: NDArray[Any], n_folds: int, rng: np.random.Generator) -> IndexArray:
    """Return a random fold for each row, shape (n,), with each group spread evenly over the folds."""
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    fold = np.empty(len(groups), dtype=np.intp)
    fold[order] = np.arange(len(groups)) % n_folds
    return fold
