"""Texts and classes read from the X and y of scikit-learn."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from calibrant.core._errors import ConfigurationError

SHOWN: Final = 5  # values in a message


def stratified_order(codes: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the rows in a random order whose first k rows are stratified by class, for every k."""
    order = rng.permutation(len(codes))
    drawn = codes[order]
    rank = np.empty(len(codes))
    for code in np.unique(codes):
        of_class = np.flatnonzero(drawn == code)
        rank[of_class] = np.arange(len(of_class)) / len(of_class)
    return order[np.argsort(rank, kind="stable")]


def read_classes(
    y: Any,  # noqa: ANN401
    n_texts: int,
    labels: Sequence[Any] | Mapping[Any, str] | None,
) -> tuple[NDArray[Any], dict[Any, str], NDArray[np.intp]]:
    """Return the sorted classes, the label of every class, and the number of each row's class."""
    if y is None:
        raise ConfigurationError("CalibrantClassifier requires y to be passed, but the target y is None.")
    _refuse_single(y, "y", "classes")
    if isinstance(y, list | tuple):  # an array of texts would spell NaN out
        refuse_missing(np.array(y, dtype=object), "y", "a class")
    values = column_or_1d(y, warn=True)
    refuse_missing(values, "y", "a class")
    check_classification_targets(values)
    if len(values) != n_texts:
        raise ConfigurationError(
            f"Expected a class for each of {n_texts} texts, got {len(values)}: X and y belong together by position."
        )
    seen = np.unique(values)
    if len(seen) < 2:
        raise ConfigurationError(
            f"Expected at least two classes in y, got one class, {seen.tolist()[0]!r:.80}: there is nothing to tell "
            "apart."
        )
    if labels is None:
        names = {value: str(value) for value in seen.tolist()}
        if seen.dtype.kind in "iufb":
            warnings.warn(
                f"The model reads the classes as {', '.join(map(repr, list(names.values())[:SHOWN]))}: pass labels, a "
                "mapping from each to a name. (cross_val_predict numbers classes, in sorted order, for probabilities.)",
                stacklevel=3,
            )
    elif isinstance(labels, Mapping):
        names = dict(labels)
    else:
        names = {value: str(value) for value in np.asarray(labels).tolist()}
    if unknown := [value for value in seen.tolist() if value not in names]:
        raise ConfigurationError(
            f"Expected classes among labels, {list(names)[:SHOWN]} ({len(names)} in all), got {unknown[0]!r:.80}: add "
            "it, or correct y."
        )
    classes = np.unique(np.array(list(names), dtype=object if values.dtype == object else None))
    return classes, names, np.searchsorted(classes, values)


def text_column(X: Any) -> NDArray[Any] | None:  # noqa: ANN401, N803
    """Return a column of texts as an array of objects; None if X has other dimensions."""
    _refuse_single(X, "X", "texts")
    if getattr(X, "ndim", len(getattr(X, "shape", (0,)))) != 1:
        return None
    values = np.asarray(X if hasattr(X, "__array__") else list(X), dtype=object)
    return values if values.ndim == 1 else None


def _refuse_single(values: Any, name: str, what: str) -> None:  # noqa: ANN401
    """Raise ConfigurationError for one text, whose characters would count as rows, and for other single values."""
    has_rows = hasattr(values, "__iter__") or hasattr(values, "__array__")
    if isinstance(values, str | bytes) or not has_rows or getattr(values, "ndim", 1) == 0:
        raise ConfigurationError(
            f"Expected a list or a column of {what} as {name}, got {values!r:.60} ({type(values).__name__}): "
            "pass a list, of one element where there is one row."
        )


def checked_texts(values: NDArray[Any]) -> list[str]:
    if not len(values):
        raise ConfigurationError("Expected at least one text in X, got none: Found array with 0 sample(s).")
    refuse_missing(values, "X", "a text")
    for place, value in enumerate(values.tolist()):
        if not isinstance(value, str):
            raise ConfigurationError(
                f"Expected texts in X, got {value!r:.80} ({type(value).__name__}) in row {place}: convert it to text. "
                "Reshape your data with X.reshape(-1, 1) if X is a column of numbers."
            )
    return [str(value) for value in values]


def refuse_missing(values: NDArray[Any], name: str, what: str) -> None:
    """Raise ConfigurationError if rows hold None, NaN or infinity."""
    if values.dtype.kind in "iubSU":
        return
    missing = np.array([_is_missing(value) for value in values.ravel()], dtype=bool).reshape(values.shape)
    rows = np.flatnonzero(missing if missing.ndim == 1 else missing.any(axis=1)).tolist()
    if rows:
        shown = ", ".join(map(str, rows[:SHOWN])) + (", ..." if len(rows) > SHOWN else "")
        raise ConfigurationError(
            f"Expected {what} in every row of {name}, got None, NaN or inf in {len(rows)} of {len(values)} rows "
            f"(positions {shown}): fill them in, or leave these rows out of X and y."
        )


def _is_missing(value: object) -> bool:
    """Return True for None, NaN, infinity, and the missing values of pandas."""
    if isinstance(value, float | np.floating):
        return not math.isfinite(value)
    pandas = sys.modules.get("pandas")  # whoever has such a value has loaded it
    return value is None or (pandas is not None and (value is pandas.NA or value is pandas.NaT))
