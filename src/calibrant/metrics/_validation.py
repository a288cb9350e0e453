"""Checks of the arrays and numbers that metrics and estimators take."""

from __future__ import annotations

import math
from numbers import Real
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray

RandomSource: TypeAlias = np.random.Generator | int | None
"""Generator of random numbers, or the seed of a new one; None seeds it afresh."""

# Probabilities computed as exp of a sum may leave [0, 1] by this much; they are clipped.
ROUNDING = 1e-6
# Masked logits are often the least float32, about -3e38; beyond this, squares overflow.
HUGE = 1e100


def as_numbers(name: str, values: ArrayLike) -> FloatArray:
    """Return `values` as an array of floats; ConfigurationError if they are not numbers."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"Expected {name} to hold numbers, in rows of one length: {error}. Leave out rows without them."
        ) from error


def check_values(name: str, values: ArrayLike) -> FloatArray:
    """Check `values` and return them as finite floats of shape (n,), n >= 1.

    Raises
    ------
    ConfigurationError
        Not numbers, not one-dimensional, empty, NaN or infinite.
    """
    array = as_numbers(name, values)
    if array.ndim != 1:
        raise ConfigurationError(f"Expected {name} of shape (n,), got {array.shape}.")
    if array.size == 0:
        raise ConfigurationError(
            f"Expected {name} to hold at least one row, got none: nothing can be said about no data."
        )
    refuse_rows(~np.isfinite(array), array, f"{name} to be finite", "leave out rows without a value")
    return array


def refuse_rows(illegal: BoolArray, values: NDArray[Any], expected: str, remedy: str) -> None:
    """Raise ConfigurationError for the first row of the mask `illegal`, shape (n,), if there is one."""
    if illegal.any():
        row = int(np.argmax(illegal))
        raise ConfigurationError(f"Expected {expected}, got {values[row].tolist()} in row {row}: {remedy}.")


def check_binary(name: str, values: ArrayLike) -> FloatArray:
    """Check that `values` are 0 or 1, and return them as floats of shape (n,), n >= 1.

    Raises
    ------
    ConfigurationError
        As `check_values`, or an entry other than 0 and 1.
    """
    array = check_values(name, values)
    refuse_rows(
        (array != 0.0) & (array != 1.0), array, f"{name} to hold only 0 and 1", "pass 1 for right rows"
    )
    return array


def check_confidence_correct(confidence: ArrayLike, correct: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Check confidence and correctness, and return them as floats in [0, 1], both of shape (n,).

    Parameters
    ----------
    confidence : array-like of shape (n,), n >= 1
        In [0, 1]; up to 1e-6 outside is clipped.
    correct : array-like of 0/1, shape (n,)
        Whether each row is right.

    Raises
    ------
    ConfigurationError
        As `check_values` and `check_binary`, a confidence more than 1e-6 outside [0, 1], or
        different lengths.
    """
    p = check_confidence(confidence)
    y = check_binary("correct", correct)
    check_same_length(confidence=p, correct=y)
    return p, y


def check_confidence(confidence: ArrayLike) -> FloatArray:
    """Check confidence and return it clipped to [0, 1], shape (n,).

    Parameters
    ----------
    confidence : array-like of shape (n,), n >= 1
        In [0, 1]; up to 1e-6 outside is clipped.

    Raises
    ------
    ConfigurationError
        As `check_values`, or a confidence more than 1e-6 outside [0, 1].
    """
    return check_shares("confidence", confidence, remedy="pass probabilities, not logarithms")


def check_shares(name: str, values: ArrayLike, *, remedy: str) -> FloatArray:
    """Check shares and return them clipped to [0, 1], shape (n,); up to 1e-6 outside counts as rounding."""
    shares = check_values(name, values)
    illegal = (shares < -ROUNDING) | (shares > 1.0 + ROUNDING)
    refuse_rows(illegal, shares, f"{name} in [0, 1]", remedy)
    return np.clip(shares, 0.0, 1.0)


def check_same_length(**arrays: FloatArray) -> None:
    """Raise ConfigurationError unless all arrays have the same number of rows."""
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(array)}" for name, array in arrays.items())
        raise ConfigurationError(f"Expected arrays of the same length, but {lengths} rows.")


def check_count(name: str, value: object, *, low: int, high: int | None = None) -> int:
    """Check `value` and return it as an int in [low, high]; integral floats such as 3.0 are allowed.

    Raises
    ------
    ConfigurationError
        Not a whole number, or out of range.
    """
    whole = isinstance(value, (int, np.integer)) or (
        isinstance(value, (float, np.floating)) and float(value).is_integer()
    )
    number = int(value) if whole and not isinstance(value, bool) else None  # type: ignore[call-overload]
    if number is None or number < low or (high is not None and number > high):
        allowed = f"of at least {low}" if high is None else f"in [{low}, {high}]"
        raise ConfigurationError(f"Expected {name} to be a whole number {allowed}, got {value!r:.80}.")
    return int(number)


def check_number(name: str, value: object, interval: str) -> float:
    """Check `value` and return it as a float inside `interval`.

    Parameters
    ----------
    name : str
        The argument as the user wrote it, for the message.
    value : object
        The user's value; booleans are not numbers here.
    interval : str
        Two finite or infinite ends in mathematical notation, such as ``"(0, 1]"``.

    Raises
    ------
    ConfigurationError
        Not a number, NaN, or outside the interval.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise ConfigurationError(
            f"Expected {name} to be a number in {interval}, got {value!r:.80} ({type(value).__name__})."
        )
    try:
        number = float(value)
    except OverflowError:  # a whole number that no float holds
        number = math.inf
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    if not (above and below):
        raise ConfigurationError(
            f"Expected {name} in {interval}, got {value!r:.80}: choose a value in that range."
        )
    return number


def check_level(level: float) -> float:
    """Check that a confidence level is strictly between 0 and 1, and return it."""
    return check_number("level", level, "(0, 1)")


def normal_quantile(level: float) -> float:
    """Return z with P(|Z| <= z) = level for a standard normal Z; 1.959963984540054 at 0.95."""
    return NormalDist().inv_cdf((1.0 + check_level(level)) / 2.0)


def check_log_probabilities(
    values: ArrayLike, *, name: str = "log_probabilities", n_labels: int | None = None, least: int = 1
) -> FloatArray:
    """Check `values` and return them as finite floats of shape (n, L), L >= 2.

    Parameters
    ----------
    values : array-like of shape (n, L)
        Natural logarithms, at most 1e100 in size; rows need not be normalised.
    name : str, default "log_probabilities"
        The argument as the caller knows it, for the message.
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
        raise ConfigurationError(f"Expected {name} of shape (n, L), one row per text, got {rows.shape}.")
    if rows.shape[0] < least:
        raise ConfigurationError(
            f"Expected {name} to hold at least one row, got none: nothing can be learned from no data."
        )
    width = rows.shape[1]
    wanted = n_labels or "at least two"
    if width != (n_labels or max(width, 2)):
        raise ConfigurationError(
            f"Expected {name} over {wanted} labels, got {width}: use the same label set, or fit again."
        )
    usable = np.abs(rows) <= HUGE  # False for NaN
    if not usable.all():
        row, column = (int(i) for i in np.argwhere(~usable)[0])
        raise ConfigurationError(
            f"Expected {name} to be finite, got {rows[row, column]} in row {row}, label {column}: leave out "
            "rows without log-probabilities, and give an impossible label a small one, such as log(1e-12)."
        )
    return rows


def as_rows(values: ArrayLike, *, n_labels: int) -> FloatArray:
    """Return checked rows of shape (n, L), from log-probabilities of shape (n, L) or (L,)."""
    rows = np.atleast_2d(as_numbers("log_probabilities", values))
    return check_log_probabilities(rows, n_labels=n_labels)


def check_answers(answers: ArrayLike, rows: FloatArray) -> IndexArray:
    """Check the positions of the true labels of `rows` and return them, shape (n,), each in [0, L).

    Raises
    ------
    ConfigurationError
        Another length, not integers, or a position outside the L labels.
    """
    n, n_labels = rows.shape
    given = np.asarray(answers)
    if given.shape != (n,):
        raise ConfigurationError(f"Expected answers of shape ({n},), one per row, got {given.shape}.")
    if given.dtype.kind not in "iu":
        raise ConfigurationError(
            f"Expected answers to be positions of labels (whole numbers from 0), got {given.dtype} such as "
            f"{given[0]!r}: look each answer up in the label set."
        )
    illegal = (given < 0) | (given >= n_labels)
    refuse_rows(illegal, given, f"answers in [0, {n_labels})", "pass one position of a label per row")
    return given.astype(np.intp)
