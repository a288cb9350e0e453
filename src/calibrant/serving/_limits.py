"""Timeouts and connection limits of a server."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from calibrant.core._errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Timeouts of a server for its clients, and the number of connections it keeps.

    Attributes
    ----------
    seconds_for_headers : float, default 10
        For the headers of the next request; then the connection is closed.
    seconds_for_body : float, default 30
        For a request's body; then status 408.
    seconds_to_take : float, default 60
        For the client to read an answer; then the connection is closed.
    seconds_idle : float, default 2
        Idle time after which a connection may be closed to make room for another.
    seconds_to_speak : float, default 0.2
        At shutdown: for new connections to send a request.
    most_connections : int, default 512
        Connections that are served; half as many again are answered with 503, and others wait to be accepted. Each
        takes a file descriptor, of which a process often has 1,024.

    Raises
    ------
    ConfigurationError
        A number of seconds is negative or not finite, or `most_connections` is no whole number from 1.
    """

    seconds_for_headers: float = 10.0
    seconds_for_body: float = 30.0
    seconds_to_take: float = 60.0
    seconds_idle: float = 2.0
    seconds_to_speak: float = 0.2
    most_connections: int = 512

    def __post_init__(self) -> None:
        most = self.most_connections
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigurationError(f"Expected most_connections to be a whole number from 1, got {most!r}.")
        for name in (field.name for field in fields(self) if field.name.startswith("seconds_")):
            seconds = getattr(self, name)
            known = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not known or not 0 <= seconds < math.inf:
                raise ConfigurationError(f"Expected {name} to be a number from 0, got {seconds!r}.")
