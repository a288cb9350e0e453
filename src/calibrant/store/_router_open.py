"""Opener of router state by path or URL."""

from __future__ import annotations

import os

from calibrant.core._router_state import RouterState


def open_router_state(
    place: str | os.PathLike[str], *, scope: str = "default", busy_timeout: float = 5.0
) -> RouterState:
    """Return the persistent state of routers, shared between processes.

    Parameters
    ----------
    place : str or path
        The path of a SQLite file, or a SQLAlchemy URL. Tested with SQLite and PostgreSQL. Credentials in it are
        never shown. A missing file and its folder are made with the first update; only the owner may read the
        file. A path ``NAME.json`` stands for the SQLite file ``NAME.json.sqlite``: where an earlier version left
        a JSON file of that name, the SQLite file begins with what it holds, and it is not read again.
    scope : str, default "default"
        Namespace of the records, for routers that share a place but not their providers. 1 to
        255 printable characters.
    busy_timeout : float, default 5.0
        Seconds in [0, 3600] to wait for the locks of other processes.

    Returns
    -------
    RouterState
        The state, opened lazily: an unreadable or unwritable place raises at each use.

    Raises
    ------
    ConfigurationError
        The URL cannot be read, names a database in memory or one whose driver is missing, or an option is out
        of range.
    """
    from calibrant.store._router_state import SqlRouterState  # noqa: PLC0415 (loads sqlalchemy)

    return SqlRouterState(place, scope=scope, busy_timeout=busy_timeout)
