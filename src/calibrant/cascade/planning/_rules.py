"""Who is asked, and whose answer is kept: policies over recorded or live confidences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.cascade._checks import check_share
from calibrant.cascade._ties import DEFAULT_KEY, check_key, tie_ranks
from calibrant.core._errors import ConfigurationError

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
    tied_share : float, default 1
        Of the answers whose confidence is exactly the only edge, so many are kept, in [0, 1]: those whose text has a
        rank up to this (`tie_ranks`). Below 1 only in a rule that keeps what lies above one edge.
    key : str, default "calibrant"
        Of these ranks. Rules of one policy should have different keys: under the same key, the texts that an earlier
        rule passes on have the ranks above its share, and a later one keeps fewer of them than its own share.

    Raises
    ------
    ConfigurationError
        Edges do not ascend or are not finite, there is not one entry of `keeps` more, or a share is kept of something
        else than the answers at the edge of a threshold.
    """

    edges: tuple[float, ...]
    keeps: tuple[bool, ...]
    tied_share: float = 1.0
    key: str = DEFAULT_KEY

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        if len(self.keeps) != len(self.edges) + 1 or not rising or not all(map(math.isfinite, self.edges)):
            raise ConfigurationError(
                "Expected ascending, finite edges and one entry of keeps more than there are edges, got edges "
                f"{self.edges!r:.80} and {len(self.keeps)} entries."
            )
        check_key(self.key)
        if check_share("tied_share", self.tied_share) < 1.0 and self.keeps != (False, True):
            raise ConfigurationError(
                f"Expected tied_share below 1 only with keeps (False, True), got {self.tied_share!r} with "
                f"{self.keeps!r:.80}: only the block at a threshold is split."
            )

    @classmethod
    def from_threshold(cls, threshold: float, *, tied_share: float = 1.0, key: str = DEFAULT_KEY) -> Self:
        """Keep what is surer, and this share of what is exactly as sure."""
        return cls(edges=(float(threshold),), keeps=(False, True), tied_share=tied_share, key=key)

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
    def splits(self) -> bool:
        """True where answers of one confidence are kept in part."""
        return self.tied_share < 1.0

    @property
    def threshold(self) -> float | None:
        """The least confidence that is kept, where the rule is a threshold; 0 where all are kept.

        None where answers at the edge are kept in part: as a plain threshold it would keep too many.
        """
        if self.keeps == (True,):
            return 0.0
        return self.edges[0] if self.keeps == (False, True) and not self.splits else None

    @property
    def tied_confidence(self) -> float | None:
        """The confidence of the answers that are kept in part; None where none are."""
        return self.edges[0] if self.splits else None

    def accepts(self, confidence: ArrayLike, ranks: ArrayLike | None = None) -> _Bools:
        """Return which answers are kept, shape (n,); one without a confidence (NaN) never is.

        Parameters
        ----------
        confidence : array-like of shape (n,)
            In [0, 1], or NaN.
        ranks : array-like of shape (n,), optional
            Of their texts under `key`; needed where the rule `splits`.

        Raises
        ------
        ConfigurationError
            Ranks are needed and missing.
        """
        p = np.asarray(confidence, dtype=np.float64)
        found: _Bools = np.array(self.keeps)[np.searchsorted(self.edges, p, side="right")]
        kept: _Bools = found & ~np.isnan(p)
        if not self.splits:
            return kept
        if ranks is None:
            raise ConfigurationError(
                f"Expected the texts, or their ranks, of a rule that keeps {self.tied_share:.1%} of the answers at "
                f"{self.edges[0]:.6g}, got neither: hand in texts to route, ranks to accepts (tie_ranks) and to follow "
                "(KeepPolicy.ranks)."
            )
        chosen: _Bools = np.asarray(ranks, dtype=np.float64) <= self.tied_share
        kept &= chosen | (p != self.edges[0])
        return kept

    def route(self, verifier_score: ArrayLike, *, texts: Sequence[str | int] | None = None) -> _Bools:
        """Return which answers are passed on to the next model, shape (n,); see `accepts`.

        Parameters
        ----------
        verifier_score : array-like of shape (n,)
            Their confidence.
        texts : sequence of (str or int), length n, optional
            As for `tie_ranks`; needed where the rule `splits`.
        """
        ranks = None if texts is None or not self.splits else tie_ranks(texts, key=self.key)
        return ~self.accepts(verifier_score, ranks)

    def describe(self) -> str:
        """Return the threshold, and what is kept of the answers at it, in words."""
        edge = f"{self.edges[0] if self.edges else 0.0:.6g}"
        return f"{edge} ({self.tied_share:.1%} of those tied at it)" if self.splits else edge

    def to_record(self) -> dict[str, Any]:
        """Return the rule as JSON values.

        One that splits ties has a form of its own, so that versions which know none refuse it instead of keeping the
        whole block.
        """
        if self.splits:
            return {"threshold": self.edges[0], "tied_share": self.tied_share, "key": self.key}
        return {"edges": list(self.edges), "keeps": list(self.keeps)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return what `to_record` wrote; KeyError, TypeError or ValueError if it is something else."""
        if "tied_share" in record:
            return cls.from_threshold(
                record["threshold"], tied_share=float(record["tied_share"]), key=record["key"]
            )
        return cls(
            edges=tuple(float(edge) for edge in record["edges"]), keeps=tuple(map(bool, record["keeps"]))
        )


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

    @property
    def splits(self) -> bool:
        """True where a rule keeps answers of one confidence in part."""
        return any(rule.splits for rule in self.rules)

    def ranks(self, texts: Sequence[str | int]) -> _Floats | None:
        """Return the ranks of texts under the key of each rule, shape (len(rules), n); None where nothing is split."""
        if not self.splits:
            return None
        ranks = {key: tie_ranks(texts, key=key) for key in {rule.key for rule in self.rules}}
        return np.array([ranks[rule.key] for rule in self.rules])

    def follow(self, confidence: ArrayLike, ranks: ArrayLike | None = None) -> Route:
        """Return what becomes of rows.

        Parameters
        ----------
        confidence : array-like of shape (m, n)
            Of every model's answers, calibrated if the policy is; NaN where there is none.
        ranks : array-like of shape (len(rules), n), optional
            Of the rows' texts, as the method `ranks` returns them; needed where a rule splits ties.

        Raises
        ------
        ConfigurationError
            The policy has a model that is not there, or ranks are needed and missing or of another shape.
        """
        p = np.asarray(confidence, dtype=np.float64)
        if p.ndim != 2 or max(self.members) >= len(p):
            raise ConfigurationError(
                f"Expected confidences of at least {max(self.members) + 1} models for the policy {self.name!r}, got "
                f"shape {p.shape}."
            )
        u = self._ranks_of_rules(ranks, p.shape[1])
        asked, judged = np.zeros(p.shape, dtype=np.bool_), np.zeros(p.shape, dtype=np.bool_)
        answered = np.full(p.shape[1], self.members[-1], dtype=np.intp)
        reaching = np.ones(p.shape[1], dtype=np.bool_)
        for member, rule, own in zip(self.members, self.rules, u, strict=False):
            asked[member] = judged[member] = reaching
            kept = reaching & rule.accepts(p[member], own)
            answered[kept] = member
            reaching = reaching & ~kept
        asked[self.members[-1]] = reaching
        return Route(answered=answered, asked=asked, judged=judged)

    def _ranks_of_rules(self, ranks: ArrayLike | None, n: int) -> Sequence[_Floats | None]:
        """Return the ranks for each rule; None for each where there are none or none are needed."""
        if ranks is None or not self.splits:
            return [None] * len(self.rules)
        u = np.asarray(ranks, dtype=np.float64)
        if u.shape != (len(self.rules), n):
            raise ConfigurationError(
                f"Expected ranks of shape {(len(self.rules), n)}, one row for each rule of the policy {self.name!r}, "
                f"as KeepPolicy.ranks returns them, got {u.shape}."
            )
        return list(u)

    def to_record(self) -> dict[str, Any]:
        """Return the policy as JSON values."""
        return {
            "name": self.name,
            "members": list(self.members),
            "rules": [rule.to_record() for rule in self.rules],
            "calibrated": self.calibrated,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return what `to_record` wrote; KeyError, TypeError or ValueError if it is something else."""
        return cls(
            name=str(record["name"]),
            members=tuple(int(member) for member in record["members"]),
            rules=tuple(KeepRule.from_record(rule) for rule in record["rules"]),
            calibrated=bool(record["calibrated"]),
        )


def threshold_policy(thresholds: float | Sequence[float], n_models: int) -> KeepPolicy:
    """Return the policy of asking all models in order, each keeping what reaches its threshold.

    Raises
    ------
    ConfigurationError
        A threshold outside [0, 1], or not one for each model but the last; one number stands for all.
    """
    given = (
        [thresholds] * (n_models - 1) if isinstance(thresholds, int | float | np.number) else list(thresholds)
    )
    if len(given) != n_models - 1:
        raise ConfigurationError(
            f"Expected one threshold for each of {n_models} models but the last, got {len(given)}."
        )
    return rule_policy([KeepRule.from_threshold(check_share("a threshold", one)) for one in given])


def rule_policy(rules: Sequence[KeepRule]) -> KeepPolicy:
    """Return the policy of asking all models in order, each but the last under its rule, a threshold."""
    shown = ", ".join(rule.describe() for rule in rules)
    return KeepPolicy(
        name=f"threshold {shown}" if rules else "the only model",
        members=tuple(range(len(rules) + 1)),
        rules=tuple(rules),
    )
