"""Argument checks of strategies: names of providers, tables, vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_number


def check_providers(providers: Sequence[str]) -> tuple[str, ...]:
    """Return the checked names of providers as a tuple.

    Raises
    ------
    ConfigurationError
        `providers` is empty, holds a non-string or a blank name, or repeats a name.
    """
    if isinstance(providers, str):
        raise ConfigurationError(f"Expected a list of providers, got the text {providers!r:.80}.")
    names = tuple(providers)
    if not names:
        raise ConfigurationError("Expected at least one provider, got none: name those to choose from.")
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"Expected the name of a provider, got {name!r:.80}.")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigurationError(
            f"Expected every provider once, got {', '.join(doubled)} more than once: give them names of their own."
        )
    return names


def check_known(option: str, names: Iterable[str], providers: Sequence[str]) -> None:
    """Raise ConfigurationError for a name in an option that is not a provider.

    Raises
    ------
    ConfigurationError
        A name is unknown.
    """
    unknown = sorted({str(name) for name in names if name not in providers})
    if unknown:
        raise ConfigurationError(
            f"Expected {option} to name some of the providers {', '.join(providers)}, got "
            f"{', '.join(unknown):.80}: correct the name."
        )


def check_table(option: str, table: object) -> dict[str, Any]:
    """Return a table as a dict.

    Raises
    ------
    ConfigurationError
        `table` is not a mapping.
    """
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"Expected {option} to be a table, got {table!r:.80}.")
    return dict(table)


def check_costs(costs: Mapping[str, float] | None, providers: Sequence[str]) -> dict[str, float]:
    """Return checked costs by provider; empty if `costs` is None.

    Raises
    ------
    ConfigurationError
        `costs` is not a table, names an unknown provider, or holds a cost that is not a finite number of at least 0.
    """
    table = {} if costs is None else check_table("costs", costs)
    check_known("costs", table, providers)
    return {name: check_number(f"the cost of {name!r}", cost, "[0, inf)") for name, cost in table.items()}


def unit_vector(vector: ArrayLike | None) -> NDArray[np.float64] | None:
    """Return the vector scaled to length 1, or None if it has no direction.

    Parameters
    ----------
    vector : array-like of shape (d,), or None
        Anything else than d >= 1 finite numbers, not all 0, has no direction.

    Returns
    -------
    ndarray of shape (d,) or None
        The vector divided by its Euclidean length.
    """
    if vector is None:
        return None
    try:
        numbers = np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    if numbers.ndim != 1 or numbers.size == 0 or not np.isfinite(numbers).all():
        return None
    largest = np.abs(numbers).max()
    if largest == 0.0:
        return None
    scaled = numbers / largest  # squares of very large or small numbers would leave the range of floats
    found: NDArray[np.float64] = scaled / np.linalg.norm(scaled)
    return found
