"""Protocol of a router's persistent state, which processes may share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class RouterState(Protocol):
    """Store of one JSON record per strategy; many processes may share it.

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
            The state cannot be read, or is damaged.
        """
        ...

    def update(
        self, strategy: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Replace a strategy's record by the result of `change`, in one transaction.

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
            The state cannot be written; the old record is kept.
        """
        ...

    def reset(self, strategy: str | None = None) -> list[str]:
        """Delete the record of one or all strategies; return the names of deleted ones.

        Raises
        ------
        StateError
            The state cannot be written.
        """
        ...

    def strategies(self) -> list[str]:
        """Return the strategies with a record, sorted.

        Raises
        ------
        StateError
            The state cannot be read, or is damaged.
        """
        ...

    def scopes(self) -> list[str]:
        """Return the scopes of all routers with a record in this store, sorted.

        Raises
        ------
        StateError
            The state cannot be read, or is damaged.
        """
        ...

    def close(self) -> None:
        """Close the store. Do not use it afterwards."""
        ...
