"""Settings of a service: limits, keys and logs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_count, check_number


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

    Examples
    --------
    >>> from calibrant.serving import ConnectionLimits, ServiceSettings
    >>> settings = ServiceSettings(connections=ConnectionLimits(seconds_for_body=5, most_connections=64))
    >>> settings.connections.seconds_for_body, settings.connections.seconds_for_headers
    (5, 10.0)
    """

    seconds_for_headers: float = 10.0
    seconds_for_body: float = 30.0
    seconds_to_take: float = 60.0
    seconds_idle: float = 2.0
    seconds_to_speak: float = 0.2
    most_connections: int = 512

    def __post_init__(self) -> None:
        most = check_count("most_connections", self.most_connections, low=1)
        object.__setattr__(self, "most_connections", most)
        for name in (own.name for own in fields(self) if own.name.startswith("seconds_")):
            check_number(name, getattr(self, name), "[0, inf)")


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Limits, keys and logs of a service.

    Attributes
    ----------
    api_keys : tuple of str
        Keys that ``Authorization: Bearer`` must name one of; none by default, which answers every client.
    most_bytes : int, default 1 MiB
        The longest body that is read.
    most_texts : int, default 100
        Texts of one request at most.
    most_rows : int, default 256
        Texts in progress at most, of all requests; beyond it, 429. At least `most_texts`.
    deadline_seconds : float, default 30
        Deadline of a request from the end of its body, at least 0.001; then 504.
    log_texts : bool, default False
        True to log texts and labels.
    connections : ConnectionLimits
        Timeouts for clients, and the number of connections.

    Raises
    ------
    ConfigurationError
        A setting is out of range, or a key is empty or cannot stand in a header.

    Examples
    --------
    >>> from calibrant.core import ConfigurationError
    >>> from calibrant.serving import ServiceSettings
    >>> ServiceSettings(api_keys=("key of the first client",), most_texts=10).most_rows
    256
    >>> try:
    ...     ServiceSettings(most_texts=1000)
    ... except ConfigurationError as error:
    ...     print(str(error).partition(": ")[0])
    Expected most_rows of at least most_texts, got 256 and 1000
    """

    api_keys: tuple[str, ...] = ()
    most_bytes: int = 2**20
    most_texts: int = 100
    most_rows: int = 256
    deadline_seconds: float = 30.0
    log_texts: bool = False
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)

    def __post_init__(self) -> None:
        for name in ("most_bytes", "most_texts", "most_rows"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), low=1))
        check_number("deadline_seconds", self.deadline_seconds, "[0.001, inf)")
        if self.most_rows < self.most_texts:
            raise ConfigurationError(
                f"Expected most_rows of at least most_texts, got {self.most_rows} and {self.most_texts}: a full "
                "request would never be answered. Raise one or lower the other."
            )
        if not all(key.isascii() and key.isprintable() and key.strip() == key != "" for key in self.api_keys):
            raise ConfigurationError(
                "Expected API keys of printable ASCII characters without spaces at the ends, got another one: a "
                "header cannot hold it."
            )

    @property
    def finish_seconds(self) -> int:
        """Longest time to finish a request in progress, in seconds, rounded up."""
        return math.ceil(self.connections.seconds_for_body + self.deadline_seconds)
