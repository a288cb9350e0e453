"""How long to wait for a job at a provider's batch interface, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calibrant.core._errors import ConfigurationError
from calibrant.evaluation._provider_batch_state import BatchDirectory, BatchPart


@dataclass(frozen=True, kw_only=True)
class Polling:
    """How long and how often to ask whether a batch has ended.

    Attributes
    ----------
    seconds : float, default 10
        Between the first two looks; half as much again between the next two, and so on.
    maximum_seconds : float, default 300
        Between two looks at most.
    timeout_seconds : float or None, default None
        When to give up; None waits for ever.
    failures : int, default 10
        Looks in a row that may fail, each after retries of its own.

    Raises
    ------
    ConfigurationError
        A number is not above 0.
    """

    seconds: float = 10.0
    maximum_seconds: float = 300.0
    timeout_seconds: float | None = None
    failures: int = 10

    def __post_init__(self) -> None:
        for name in ("seconds", "maximum_seconds", "timeout_seconds", "failures"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"Expected {name} above 0, got {value}.")


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """Where a job stands.

    Attributes
    ----------
    path : Path
        Its directory.
    rows : int
        Rows of the job.
    parts : tuple of BatchPart
        Its batches.
    submitted : int
        Batches made by this call.
    outcomes : mapping of str to int
        Rows by outcome; empty until they are collected.
    prompt_tokens, completion_tokens : int
        Of the collected answers.
    broken, unknown, duplicates : int
        Lines of the provider that were no JSON, named no row of their batch, or a row a second time.
    """

    path: Path
    rows: int
    parts: tuple[BatchPart, ...]
    submitted: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    broken: int = 0
    unknown: int = 0
    duplicates: int = 0

    @property
    def ended(self) -> bool:
        """Whether the provider is done with every batch."""
        return all(part.ended for part in self.parts)

    @property
    def predictions(self) -> Path | None:
        """The file with all rows, where this call wrote it."""
        return BatchDirectory(self.path).predictions if self.outcomes else None
