"""Settings of a cluster, and the limits of each worker."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._limits import Limits

_CONCURRENCY: Final = 64


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Address, number of workers and block size of a Ray cluster.

    Attributes
    ----------
    address : str or None
        Address of a running Ray cluster that includes this machine, such as ``auto`` or ``10.0.0.1:6379``. None takes
        the cluster that this process is connected to, or the one that ``RAY_ADDRESS`` names, or else starts Ray on
        this machine for the run.
    workers : int, default 2
        Processes that ask, each with a client of its own and one CPU of the cluster; at least 1.
    block_rows : int, default 1024
        Rows per block, at least 1. At most one block is asked again when a worker dies.

    Raises
    ------
    ConfigurationError
        A number is below 1.
    """

    address: str | None = None
    workers: int = 2
    block_rows: int = 1024

    def __post_init__(self) -> None:
        for name in ("workers", "block_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"Expected {name} to be an integer of at least 1, got {value!r}.")


def share(limits: Limits, workers: int) -> Limits:
    """Return one worker's limits: its share of the calls in flight; a `Ledger` keeps rates and budgets.

    Without a limit of concurrency, all workers together have 64 calls in flight.

    Raises
    ------
    ConfigurationError
        There are fewer calls in flight than workers.
    """
    concurrency = limits.concurrency or _CONCURRENCY
    if concurrency < workers:
        raise ConfigurationError(
            f"Expected at least one call in flight for each of {workers} workers, got a concurrency of "
            f"{concurrency}: raise it, or take fewer workers."
        )
    # Rounded down, so that all workers together stay within the limit. The driver keeps the run's deadline.
    return replace(limits, concurrency=math.floor(concurrency / workers), run_seconds=None)


def is_file(cache: str) -> bool:
    """Return whether the URL or path of a cache names a SQLite file, which one machine has."""
    return "://" not in cache or cache.startswith("sqlite")
