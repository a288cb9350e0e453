"""Who is asked, and whose answer is kept: policies over recorded or live confidences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.cascade._checks import check_share
from calibrant.core import ConfigurationError

__all__ = ["KeepPolicy", "KeepRule", "Route", "threshold_policy"]

_Floats = NDArray[np.float64]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class KeepRule:
    """Which answers of one model are kept, by their confidence. It is a meta-verifier: it has `route`.

    Attributes
    ----------
    edges : tuple of float
        Ascending; confidences from one edge up to the next are treated alike.
    keeps : tuple of bool, one longer than `edges`
        Whether answers below the first edge, from each edge, are kept.

    Raises
    ------
    ConfigurationError
        Edges do not ascend or are not finite, or there is not one entry of `keeps` more.
    """

    edges: tuple[float, ...]
    keeps: tuple[bool, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        if len(self.keeps) != len(self.edges) + 1 or not rising or not all(map(math.isfinite, self.edges)):
            raise ConfigurationError(
                "Expected ascending, finite edges and one entry of keeps more than there are edges, got edges "
                f"{self.edges!r:.80} and {len(self.keeps)} entries."
            )

    @classmethod
    def from_threshold(cls, threshold: float) -> Self:
        """Keep what is at least this sure."""
        return cls(edges=(float(threshold),), keeps=(False, True))

    @classmethod
    def from_bins(cls, lower: Sequence[float], keeps: Sequence[bool]) -> Self:
        """Keep some bins, each from its lower end to the next one's; the lowest bin has no lower end."""
        edges, kept = [], [bool(keeps[0])]
        for edge, keep in zip(lower[1:], keeps[1:], strict=True):
            if bool(keep) != kept[-1]:
                edges.append(float(edge))
                kept.append(bool(keep))
        return cls(edges=tuple(edges), keeps=tuple(kept))

    @property
    def threshold(self) -> float | None:
        """The least confidence that is kept, where the rule is a threshold; 0 where all are kept."""
        if self.keeps == (True,):
            return 0.0
        return self.edges[0] if self.keeps == (False, True) else None

    def accepts(self, confidence: ArrayLike) -> _Bools:
        """Return which answers are kept, shape (n,); one without a confidence (NaN) never is."""
        p = np.asarray(confidence, dtype=np.float64)
        kept: _Bools = np.array(self.keeps)[np.searchsorted(self.edges, p, side="right")]
        return kept & ~np.isnan(p)

    def route(self, verifier_score: ArrayLike) -> _Bools:
        """Return which answers are passed on to the next model, shape (n,)."""
        return ~self.accepts(verifier_score)


@dataclass(frozen=True, kw_only=True)
class Route:
    """What became of n rows under a policy over m models.

    Attributes
    ----------
    answered : ndarray of int, shape (n,)
        The model whose answer is given.
    asked, judged : ndarray of bool, shape (m, n)
        Which models were asked, and whose answer was looked at before it was kept or passed on.
    """

    answered: NDArray[np.intp]
    asked: _Bools
    judged: _Bools


@dataclass(frozen=True, kw_only=True)
class KeepPolicy:
    """Which models are asked, in which order, and when an answer is kept.

    Attributes
    ----------
    name : str
        What it is, for people.
    members : tuple of int
        The models that take part, in the order in which they are asked; positions in the list of all models.
        A single one answers every row, and nobody looks at its answers.
    rules : tuple of KeepRule
        One for each member but the last, whose answer is always taken.
    calibrated : bool
        Whether the rules are about calibrated confidence, or about confidence as the models report it.

    Raises
    ------
    ConfigurationError
        Members repeat, or there is not one rule less than members.
    """

    name: str
    members: tuple[int, ...]
    rules: tuple[KeepRule, ...] = ()
    calibrated: bool = False

    def __post_init__(self) -> None:
        if not self.members or len(set(self.members)) < len(self.members) or min(self.members) < 0:
            raise ConfigurationError(f"Expected one or more different models, from 0, got {self.members!r}.")
        if len(self.rules) != len(self.members) - 1:
            raise ConfigurationError(
                f"Expected a rule for each of {len(self.members)} models but the last, got {len(self.rules)}."
            )

    @classmethod
    def alone(cls, model: int) -> Self:
        """Ask one model, and take its answer."""
        return cls(name=f"model {model + 1} alone", members=(model,))

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """One per member but the last, where every rule is a threshold; None otherwise."""
        found = [rule.threshold for rule in self.rules]
        known = tuple(one for one in found if one is not None)
        return known if len(known) == len(found) else None

    def follow(self, confidence: ArrayLike) -> Route:
        """Return what becomes of rows.

        Parameters
        ----------
        confidence : array-like of shape (m, n)
            Of every model's answers, calibrated if the policy is; NaN where there is none.

        Raises
        ------
        ConfigurationError
            The policy has a model that is not there.
        """
        p = np.asarray(confidence, dtype=np.float64)
        if p.ndim != 2 or max(self.members) >= len(p):
            raise ConfigurationError(
                f"Expected confidences of at least {max(self.members) + 1} models for the policy {self.name!r}, got "
                f"shape {p.shape}."
            )
        asked, judged = np.zeros(p.shape, dtype=np.bool_), np.zeros(p.shape, dtype=np.bool_)
        answered = np.full(p.shape[1], self.members[-1], dtype=np.intp)
        reaching = np.ones(p.shape[1], dtype=np.bool_)
        for member, rule in zip(self.members, self.rules, strict=False):
            asked[member] = judged[member] = reaching
            kept = reaching & rule.accepts(p[member])
            answered[kept] = member
            reaching = reaching & ~kept
        asked[self.members[-1]] = reaching
        return Route(answered=answered, asked=asked, judged=judged)

    def to_record(self) -> dict[str, Any]:
        """Return the policy as JSON values."""
        return {
            "name": self.name,
            "members": list(self.members),
            "rules": [{"edges": list(rule.edges), "keeps": list(rule.keeps)} for rule in self.rules],
            "calibrated": self.calibrated,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return what `to_record` wrote; KeyError, TypeError or ValueError if it is something else."""
        return cls(
            name=str(record["name"]),
            members=tuple(int(member) for member in record["members"]),
            rules=tuple(
                KeepRule(
                    edges=tuple(float(edge) for edge in rule["edges"]), keeps=tuple(map(bool, rule["keeps"]))
                )
                for rule in record["rules"]
            ),
            calibrated=bool(record["calibrated"]),
        )


def threshold_policy(thresholds: float | Sequence[float], n_models: int) -> KeepPolicy:
    """Return the policy of asking all models in order, each keeping what reaches its threshold.

    Raises
    ------
    ConfigurationError
        A threshold outside [0, 1], or not one for each model but the last; one number stands for all.
    """
    given = [thresholds] * (n_models - 1) if isinstance(thresholds, int | float) else list(thresholds)
    if len(given) != n_models - 1:
        raise ConfigurationError(
            f"Expected one threshold for each of {n_models} models but the last, got {len(given)}."
        )
    given = [check_share("a threshold", one) for one in given]
    shown = ", ".join(f"{one:.6g}" for one in given)
    return KeepPolicy(
        name=f"threshold {shown}" if given else "the only model",
        members=tuple(range(n_models)),
        rules=tuple(KeepRule.from_threshold(one) for one in given),
    )
