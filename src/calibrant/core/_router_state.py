"""Storage of routers' experience, for one process or many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class RouterState(Protocol):
    """Keeps one record of JSON values for every strategy; many processes may share it.

    Attributes
    ----------
    location : str
        The file or database, without credentials.
    """

    location: str

    def read(self, strategy: str) -> dict[str, Any] | None:
        """Return a strategy's record; None where there is none.

        Raises
        ------
        StateError
            It cannot be read, or is damaged.
        """
        ...

    def update(
        self, strategy: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Replace a strategy's record by what `change` makes of it, in one transaction.

        A record that is damaged, or that `change` refuses with a `StateError`, is set aside with a
        warning, and `change` is called with None.

        Parameters
        ----------
        strategy : str
            The strategy.
        change : callable
            Takes the record as it is now, or None, and returns the new one.

        Returns
        -------
        dict
            The new record.

        Raises
        ------
        StateError
            It cannot be written; the old record stands.
        """
        ...

    def reset(self, strategy: str | None = None) -> list[str]:
        """Forget a strategy's record, or all; return the strategies that had one.

        Raises
        ------
        StateError
            It cannot be written.
        """
        ...

    def strategies(self) -> list[str]:
        """Return the strategies with a record, sorted.

        Raises
        ------
        StateError
            It cannot be read, or is damaged.
        """
        ...

    def scopes(self) -> list[str]:
        """Return all scopes of the place that have a record, sorted: this one and those of other routers.

        Raises
        ------
        StateError
            It cannot be read, or is damaged.
        """
        ...

    def close(self) -> None:
        """Close the storage; it is not used afterwards."""
        ...
