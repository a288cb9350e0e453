"""Settings of a service: limits, keys and logs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_count, check_number


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Limits, keys and logs of a service.

    Clients that send their headers slowly or do not read their answers, and the number of connections, are the
    business of a proxy.

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
    body_seconds : float, default 30
        Deadline of a request's body, at least 0; then 408.
    log_texts : bool, default False
        True to log texts and labels.

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
    body_seconds: float = 30.0
    log_texts: bool = False

    def __post_init__(self) -> None:
        for name in ("most_bytes", "most_texts", "most_rows"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), low=1))
        check_number("deadline_seconds", self.deadline_seconds, "[0.001, inf)")
        check_number("body_seconds", self.body_seconds, "[0, inf)")
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
        return math.ceil(self.body_seconds + self.deadline_seconds)
