"""Settings of a service: limits, keys and logs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from calibrant.core._errors import ConfigurationError
from calibrant.serving._limits import ConnectionLimits


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
        Deadline of a request from the end of its body; then 504.
    log_texts : bool, default False
        True to log texts and labels.
    connections : ConnectionLimits
        Timeouts for clients, and the number of connections.

    Raises
    ------
    ConfigurationError
        A setting is out of range, or a key is empty or cannot stand in a header.
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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"Expected {name} to be a whole number from 1, got {value!r}.")
        seconds = self.deadline_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ConfigurationError(f"Expected deadline_seconds to be a number above 0, got {seconds!r}.")
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
        """Longest duration of a request in progress, in whole seconds."""
        return math.ceil(self.connections.seconds_for_body + self.deadline_seconds)
