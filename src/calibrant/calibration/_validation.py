"""Argument checks shared by all estimators: log-probabilities of n rows, and their answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError

# Masked logits are often the least float32, about -3e38; beyond this, squares overflow.
_HUGE = 1e100


def as_numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return `values` as an array of floats; ConfigurationError if they are not numbers."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"Expected {name} to hold numbers, in rows of one length: {error}. Leave out rows without them."
        raise ConfigurationError(msg) from error


def check_log_probabilities(
    name: str, values: ArrayLike, *, n_labels: int | None = None, least: int = 1
) -> NDArray[np.float64]:
    """Return `values` as finite floats of shape (n, L), L >= 2.

    Parameters
    ----------
    name : str
        The argument as the caller knows it, for the message.
    values : array-like of shape (n, L)
        Natural logarithms, at most 1e100 in size; rows need not be normalised.
    n_labels : int, optional
        The L that is needed, where one is known.
    least : int, default 1
        Fewest rows; 0 where nothing is learned from them.

    Raises
    ------
    ConfigurationError
        Not numbers, another shape, no rows, NaN, infinite or larger than 1e100.
    """
    rows = as_numbers(name, values)
    if rows.ndim != 2:
        msg = f"Expected {name} of shape (n, L), one row per text, got {rows.shape}."
        raise ConfigurationError(msg)
    if rows.shape[0] < least:
        msg = f"Expected {name} to hold at least one row, got none: nothing can be learned from no data."
        raise ConfigurationError(msg)
    width, wanted = rows.shape[1], n_labels or "at least two"
    if width != (n_labels or max(width, 2)):
        msg = f"Expected {name} over {wanted} labels, got {width}: use the same label set, or fit again."
        raise ConfigurationError(msg)
    usable = np.abs(rows) <= _HUGE  # False for NaN
    if not usable.all():
        row, column = (int(i) for i in np.argwhere(~usable)[0])
        msg = (
            f"Expected {name} to be finite, got {rows[row, column]} in row {row}, label {column}: leave out "
            "rows without log-probabilities, and give an impossible label a small one, such as log(1e-12)."
        )
        raise ConfigurationError(msg)
    return rows


def as_rows(name: str, values: ArrayLike, *, n_labels: int) -> NDArray[np.float64]:
    """Return log-probabilities of shape (n, L), or (L,) for a single row, as checked rows of shape (n, L)."""
    return check_log_probabilities(name, np.atleast_2d(as_numbers(name, values)), n_labels=n_labels)


def check_answers(answers: ArrayLike, rows: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the positions of the true labels of `rows`, shape (n,), each in [0, L).

    Raises
    ------
    ConfigurationError
        Another length, not integers, or a position outside the L labels.
    """
    n, n_labels = rows.shape
    given = np.asarray(answers)
    if given.shape != (n,):
        msg = f"Expected answers of shape ({n},), one per row of log-probabilities, got {given.shape}."
        raise ConfigurationError(msg)
    if given.dtype.kind not in "iu":
        msg = (
            f"Expected answers to be positions of labels (whole numbers from 0), got {given.dtype} such as "
            f"{given[0]!r}: look each answer up in the label set."
        )
        raise ConfigurationError(msg)
    legal = (given >= 0) & (given < n_labels)
    if not legal.all():
        row = int(np.argmin(legal))
        msg = f"Expected answers in [0, {n_labels}), one position per label, got {given[row]} in row {row}."
        raise ConfigurationError(msg)
    return given.astype(np.intp)
