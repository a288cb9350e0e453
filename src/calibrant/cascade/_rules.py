"""Rules that keep or escalate answers of a cascade; ties are broken by a keyed hash of the text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import PlainSerializer, PlainValidator

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray
from calibrant.core._ranks import DEFAULT_KEY, check_key, tie_ranks
from calibrant.metrics._validation import check_number


@dataclass(frozen=True, kw_only=True)
class KeepRule:
    """Acceptance rule on the confidence of one model; `route` works as in a meta-verifier.

    Attributes
    ----------
    edges : tuple of float
        Ascending; confidences from one edge up to the next are treated alike.
    keeps : tuple of bool, one longer than `edges`
        True where answers below the first edge, and from each edge on, are kept.
    tied_share : float, default 1
        Share of the answers with a confidence of exactly the only edge that are kept, in [0, 1]: those whose text has
        a rank up to this (`tie_ranks`). Below 1 only in a rule that keeps what lies above one edge.
    key : str, default "calibrant"
        Key of these ranks. Rules of one policy should have different keys: under the same key, the texts that an
        earlier rule passes on have the ranks above its share, and a later one keeps fewer of them than its own share.

    Raises
    ------
    ConfigurationError
        Edges do not ascend or are not finite, `keeps` has not one entry more, or a share is kept of something else
        than the answers at the edge of a threshold.

    Examples
    --------
    >>> from calibrant.cascade import KeepRule
    >>> KeepRule.from_threshold(0.8).threshold
    0.8
    """

    edges: tuple[float, ...]
    keeps: tuple[bool, ...]
    tied_share: float = 1.0
    key: str = DEFAULT_KEY

    def __post_init__(self) -> None:
        is_rising = all(a < b for a, b in pairwise(self.edges))
        is_finite = all(map(math.isfinite, self.edges))
        if len(self.keeps) != len(self.edges) + 1 or not is_rising or not is_finite:
            raise ConfigurationError(
                "Expected ascending, finite edges and one entry of keeps more than there are edges, got edges "
                f"{self.edges!r:.80} and {len(self.keeps)} entries."
            )
        check_key(self.key)
        if check_number("tied_share", self.tied_share, "[0, 1]") < 1.0 and self.keeps != (False, True):
            raise ConfigurationError(
                f"Expected tied_share below 1 only with keeps (False, True), got {self.tied_share!r} with "
                f"{self.keeps!r:.80}: only the block at a threshold is split."
            )

    @classmethod
    def from_threshold(cls, threshold: float, *, tied_share: float = 1.0, key: str = DEFAULT_KEY) -> Self:
        """Return the rule of a threshold; it keeps `tied_share` of the answers equal to the threshold."""
        return cls(edges=(float(threshold),), keeps=(False, True), tied_share=tied_share, key=key)

    @classmethod
    def from_bins(cls, lower: Sequence[float], keeps: Sequence[bool]) -> Self:
        """Return the rule that keeps some bins of confidence; `lower` holds the lower ends of all bins."""
        edges = []
        kept = [bool(keeps[0])]
        for edge, keep in zip(lower, keeps, strict=True):
            if keep != kept[-1]:
                edges.append(float(edge))
                kept.append(bool(keep))
        return cls(edges=tuple(edges), keeps=tuple(kept))

    @property
    def splits(self) -> bool:
        """True if the rule keeps some of the answers tied at one confidence, and escalates the others."""
        return self.tied_share < 1.0

    @property
    def threshold(self) -> float | None:
        """Lowest confidence kept by a threshold rule (0 if all are kept); None for other rules.

        None where answers at the edge are kept in part: as a plain threshold it would keep too many.
        """
        if self.keeps == (True,):
            return 0.0
        if self.keeps == (False, True) and not self.splits:
            return self.edges[0]
        return None

    @property
    def kept_ranges(self) -> list[tuple[float | None, float | None]]:
        """Ranges of kept confidence, from the lower end up to below the upper one; None where there is no end."""
        lower: list[float | None] = [None, *self.edges]
        upper: list[float | None] = [*self.edges, None]
        ends = zip(lower, upper, self.keeps, strict=True)
        return [(low, high) for low, high, keeps in ends if keeps]

    @property
    def tied_confidence(self) -> float | None:
        """Confidence at which ties are split; None if no ties are split."""
        return self.edges[0] if self.splits else None

    def accepts(self, confidence: ArrayLike, ranks: ArrayLike | None = None) -> BoolArray:
        """Return the mask of kept answers, shape (n,); NaN confidence is never kept.

        Parameters
        ----------
        confidence : array-like of shape (n,)
            In [0, 1], or NaN.
        ranks : array-like of shape (n,), optional
            Ranks of their texts under `key`; needed where the rule `splits`.

        Raises
        ------
        ConfigurationError
            Ranks are needed and missing.
        """
        p = np.asarray(confidence, dtype=np.float64)
        places = np.searchsorted(self.edges, p, side="right")
        kept: BoolArray = np.array(self.keeps)[places] & ~np.isnan(p)
        if not self.splits:
            return kept
        if ranks is None:
            raise ConfigurationError(
                f"Expected the texts, or their ranks, of a rule that keeps {self.tied_share:.1%} of the answers at "
                f"{self.edges[0]:.6g}, got neither: hand in texts to route, ranks to accepts (tie_ranks) and to follow "
                "(KeepPolicy.ranks)."
            )
        is_early = np.asarray(ranks, dtype=np.float64) <= self.tied_share
        kept &= is_early | (p != self.edges[0])
        return kept

    def route(self, verifier_score: ArrayLike, *, texts: Sequence[str | int] | None = None) -> BoolArray:
        """Return the mask of answers escalated to the next model, shape (n,).

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
        """Describe the threshold and the kept share of ties in words."""
        edge = f"{self.edges[0] if self.edges else 0.0:.6g}"
        return f"{edge} ({self.tied_share:.1%} of those tied at it)" if self.splits else edge

    def to_record(self) -> dict[str, Any]:
        """Return the rule as JSON values, with a form of its own for a rule that splits ties."""
        if self.splits:
            return {"threshold": self.edges[0], "tied_share": self.tied_share, "key": self.key}
        return {"edges": list(self.edges), "keeps": list(self.keeps)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the rule from a record of `to_record`; KeyError, TypeError or ValueError if damaged."""
        if "tied_share" in record:
            share = float(record["tied_share"])
            return cls.from_threshold(record["threshold"], tied_share=share, key=record["key"])
        return cls(edges=tuple(map(float, record["edges"])), keeps=tuple(map(bool, record["keeps"])))


_StoredRule = Annotated[
    KeepRule, PlainValidator(KeepRule.from_record), PlainSerializer(lambda rule: rule.to_record())
]


class Route(NamedTuple):
    """Models called and answer chosen for each of n rows under a policy of m models.

    Attributes
    ----------
    answered : ndarray of int, shape (n,)
        The model whose answer is given.
    asked : ndarray of bool, shape (m, n)
        The models that were called.
    """

    answered: IndexArray
    asked: BoolArray


@dataclass(frozen=True, kw_only=True)
class KeepPolicy:
    """Cascade policy: models in the order of calls, with an acceptance rule for each but the last.

    Attributes
    ----------
    name : str
        Name for people.
    members : tuple of int
        The models that take part, in the order in which they are called; positions in the list of all models.
        A single one answers every row, and nobody looks at its answers.
    rules : tuple of KeepRule
        One for each member but the last, whose answer is always taken.
    calibrated : bool
        True where the rules are about calibrated confidence instead of confidence as the models report it.

    Raises
    ------
    ConfigurationError
        Members repeat, or there is not one rule less than members.

    Examples
    --------
    >>> from calibrant.cascade import KeepPolicy
    >>> KeepPolicy.alone(0).name
    'model 1 alone'
    """

    name: str
    members: tuple[int, ...]
    rules: tuple[_StoredRule, ...] = ()
    calibrated: bool = False

    def __post_init__(self) -> None:
        distinct = set(self.members)
        if not distinct or len(distinct) < len(self.members) or min(distinct) < 0:
            raise ConfigurationError(f"Expected one or more different models, from 0, got {self.members!r}.")
        if len(self.rules) != len(self.members) - 1:
            raise ConfigurationError(
                f"Expected a rule for each of {len(self.members)} models but the last, got {len(self.rules)}."
            )

    @classmethod
    def alone(cls, model: int) -> Self:
        """Return the policy that answers all rows with one model."""
        return cls(name=f"model {model + 1} alone", members=(model,))

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Thresholds of all models but the last; None if a rule is not a threshold."""
        thresholds = tuple(rule.threshold for rule in self.rules if rule.threshold is not None)
        if len(thresholds) == len(self.rules):
            return thresholds
        return None

    @property
    def splits(self) -> bool:
        """True if a rule keeps some of the answers tied at one confidence, and escalates the others."""
        return any(rule.splits for rule in self.rules)

    def ranks(self, texts: Sequence[str | int]) -> FloatArray | None:
        """Return the tie ranks of texts for each rule, shape (len(rules), n); None if no rule needs them."""
        if not self.splits:
            return None
        ranks = {key: tie_ranks(texts, key=key) for key in {rule.key for rule in self.rules}}
        return np.array([ranks[rule.key] for rule in self.rules])

    def follow(self, confidence: ArrayLike, ranks: ArrayLike | None = None) -> Route:
        """Return the route of rows through the models.

        Parameters
        ----------
        confidence : array-like of shape (m, n)
            Confidence of every model's answers, calibrated if the policy is; NaN where there is none.
        ranks : array-like of shape (len(rules), n), optional
            Ranks of the rows' texts, from the method `ranks`; needed where a rule splits ties.

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
        n = p.shape[1]
        by_rule: Sequence[FloatArray | None] = [None] * len(self.rules)
        if ranks is not None and self.splits:
            u = np.asarray(ranks, dtype=np.float64)
            if u.shape != (len(self.rules), n):
                raise ConfigurationError(
                    f"Expected ranks of shape {(len(self.rules), n)}, one row for each rule of the policy "
                    f"{self.name!r}, as KeepPolicy.ranks returns them, got {u.shape}."
                )
            by_rule = list(u)
        asked = np.zeros(p.shape, dtype=np.bool_)
        answered = np.full(n, self.members[-1], dtype=np.intp)
        reaching = np.ones(n, dtype=np.bool_)
        for member, rule, own in zip(self.members, self.rules, by_rule, strict=False):
            asked[member] = reaching
            kept = reaching & rule.accepts(p[member], own)
            answered[kept] = member
            reaching = reaching & ~kept
        asked[self.members[-1]] = reaching
        return Route(answered=answered, asked=asked)


def threshold_policy(thresholds: float | Sequence[float], n_models: int) -> KeepPolicy:
    """Return the policy that calls all models in order, with one threshold each.

    Raises
    ------
    ConfigurationError
        A threshold outside [0, 1], or not one for each model but the last; one number stands for all.
    """
    levels = list(thresholds) if isinstance(thresholds, Sequence | np.ndarray) else [thresholds]
    if len(levels) == 1:
        levels *= n_models - 1
    if len(levels) != n_models - 1:
        raise ConfigurationError(
            f"Expected one threshold for each of {n_models} models but the last, got {len(levels)}."
        )
    return rule_policy(
        [KeepRule.from_threshold(check_number("a threshold", level, "[0, 1]")) for level in levels]
    )


def rule_policy(rules: Sequence[KeepRule]) -> KeepPolicy:
    """Return the policy that calls all models in order, with one rule for each but the last."""
    shown = ", ".join(rule.describe() for rule in rules)
    return KeepPolicy(
        name=f"threshold {shown}" if rules else "the only model",
        members=tuple(range(len(rules) + 1)),
        rules=tuple(rules),
    )
