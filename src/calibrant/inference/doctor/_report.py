"""What an examination found, as data and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, get_args

from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import StateError

_VERSION: Final = 1

RecommendedScoring: TypeAlias = Literal["exact", "decode", "sampled"]


class Verdict(StrEnum):
    """What one probe says.

    ``ok``
        As it should be.
    ``warning``
        Absent or weak, but nothing misleads.
    ``problem``
        Confidence would mislead, or there would be none.
    ``unknown``
        It could not be found out.
    """

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one probe.

    Attributes
    ----------
    feature : str
        What was probed: ``enum``, ``logprobs``, ``space``, ``top_logprobs``, ``determinism``,
        ``label_mass``, ``units``, ``alignment``, ``exact``, ``prefill``, ``seed`` or ``latency``.
    verdict : Verdict
        What to think of it.
    detail : str
        What was observed.
    remedy : str
        What to do about it; empty where nothing needs doing.
    """

    feature: str
    verdict: Verdict
    detail: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Confidence thresholds of feedback, as ``[scoring]`` takes them.

    Attributes
    ----------
    high, low : float
        In (0, 1], `low` below `high`.
    """

    high: float
    low: float


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What a model's log-probabilities were found to mean, and how to use it.

    Attributes
    ----------
    model : str
        The model's name.
    api_base : str or None
        The endpoint, without credentials; None where the name alone decides.
    parameters : mapping
        The other options that matter, as JSON values: neither credentials nor timeouts.
    examined : datetime or None
        When, as the caller said; None where they did not.
    findings : tuple of Finding
        One per probe, in order.
    space : LogprobSpace
        How a decoded answer's log-probabilities are to be read: as they were found to be, or else as
        the client says; ``none`` where they cannot be used.
    scoring : {"exact", "decode", "sampled"}
        The method recommended.
    thresholds : Thresholds
        The family recommended for feedback.
    calls : int
        Calls made.
    top_logprobs : int
        Most alternatives a token came with; 0 where none were reported.
    label_mass : float or None
        Mean probability on the labels, in [0, 1]; None where it cannot be seen.
    """

    model: str
    api_base: str | None
    parameters: Mapping[str, Any]
    examined: datetime | None
    findings: tuple[Finding, ...]
    space: LogprobSpace
    scoring: RecommendedScoring
    thresholds: Thresholds
    calls: int
    top_logprobs: int
    label_mass: float | None

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that make confidence misleading or absent."""
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.PROBLEM)

    def finding(self, feature: str) -> Finding:
        """Return the finding of one probe.

        Raises
        ------
        KeyError
            There is none of that name.
        """
        for finding in self.findings:
            if finding.feature == feature:
                return finding
        raise KeyError(feature)

    def to_record(self) -> dict[str, Any]:
        """Return the examination as JSON values."""
        record = asdict(self)
        record["parameters"] = dict(self.parameters)
        record["examined"] = None if self.examined is None else self.examined.isoformat()
        return {"version": _VERSION, **record, "findings": [asdict(finding) for finding in self.findings]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Examination:
        """Return the examination written by `to_record`.

        Raises
        ------
        StateError
            The record is not one, or of another version.
        """
        try:
            version = record["version"]
            if version == _VERSION:
                return _from_fields(record)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"Expected the record of an examination, got one that does not fit ({error!r}). Examine again."
            raise StateError(msg) from error
        msg = f"Expected the record of an examination of version {_VERSION}, got {version!r}. Examine again."
        raise StateError(msg)


def _from_fields(record: Mapping[str, Any]) -> Examination:
    if record["scoring"] not in get_args(RecommendedScoring):
        raise ValueError(record["scoring"])
    label_mass = record["label_mass"]
    return Examination(
        model=record["model"],
        api_base=record["api_base"],
        parameters=dict(record["parameters"]),
        examined=None if record["examined"] is None else datetime.fromisoformat(record["examined"]),
        findings=tuple(
            Finding(**{**finding, "verdict": Verdict(finding["verdict"])}) for finding in record["findings"]
        ),
        space=LogprobSpace(record["space"]),
        scoring=record["scoring"],
        thresholds=Thresholds(
            high=float(record["thresholds"]["high"]), low=float(record["thresholds"]["low"])
        ),
        calls=int(record["calls"]),
        top_logprobs=int(record["top_logprobs"]),
        label_mass=None if label_mass is None else float(label_mass),
    )
