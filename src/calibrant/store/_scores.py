"""Scores of evaluators, and the scopes that keep them apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from calibrant.core._errors import ConfigurationError

_MAX_BYTES = 255  # of a name; three fit into an index of PostgreSQL


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Account, evaluator and profile that a set of scores belongs to; scopes are isolated.

    Parameters
    ----------
    account_id, evaluator_id, profile_name : str
        Each of 1 to 255 bytes of printable UTF-8; upper and lower case differ.

    Raises
    ------
    ConfigurationError
        A name is not such a text.
    """

    account_id: str
    evaluator_id: str
    profile_name: str

    def __post_init__(self) -> None:
        for name, value in self.columns().items():  # what every database can store and compare
            is_text = isinstance(value, str) and value.isprintable()
            if not is_text or not 0 < len(value.encode()) <= _MAX_BYTES:
                raise ConfigurationError(
                    f"Expected {name} of 1 to {_MAX_BYTES} bytes of printable UTF-8, got {value!r:.300}."
                )

    def columns(self) -> dict[str, str]:
        """Return the names and values of the columns."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Score:
    """One score of an evaluator.

    Attributes
    ----------
    score_raw : float
        Finite.
    passed : bool or None
        The pass flag; None if the evaluator sets none.
    family : str or None
        Family of the evaluator.
    """

    score_raw: float
    passed: bool | None = None
    family: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScopeSummary:
    """Summary of the scores in a scope.

    Attributes
    ----------
    scope : Scope
        The scope.
    scores : int
        Number of scores.
    mean : float
        Mean of all scores.
    latest_seconds : float
        Time of the last score, in seconds since 1970 (UTC).
    """

    scope: Scope
    scores: int
    mean: float
    latest_seconds: float
