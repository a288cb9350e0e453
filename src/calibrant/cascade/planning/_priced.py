"""What a policy costs and how good it is on recorded rows, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade._checks import check_real
from calibrant.cascade.planning._rules import KeepPolicy, Route
from calibrant.core._distribution import Interval
from calibrant.core._errors import ConfigurationError
from calibrant.metrics._bootstrap import bootstrap_interval
from calibrant.metrics._intervals import wilson_interval
from calibrant.metrics._paired import paired_comparison

_RESAMPLES: Final = (200, 10_000)  # fewest and most
_DRAWS: Final = 20_000_000  # rows drawn for an interval whose values do not repeat, about a second

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What answers cost, in one unit of any kind.

    Attributes
    ----------
    models : tuple of float, length m
        An answer of each model, at least 0.
    verifier : tuple of float, length m
        Finding out how sure an answer of each model is, at least 0; paid only where it is looked at.
    """

    models: tuple[float, ...]
    verifier: tuple[float, ...]

    def mean_of(self, route: Route) -> float:
        """Return what a route costs per row."""
        # Shares first, so that one model alone costs what it costs to the last bit.
        models, checks = route.asked.mean(axis=1), route.judged.mean(axis=1)
        return float(models @ self.models + checks @ self.verifier)

    @classmethod
    def of(cls, models: Sequence[object], verifier: object = 0.0) -> Self:
        """Check prices; one price of the verifier stands for all models.

        Raises
        ------
        ConfigurationError
            A price is negative or no number, all are 0, or their numbers do not fit.
        """
        n = len(models)
        checks = list(verifier) if isinstance(verifier, Sequence) else [verifier] * n
        if len(checks) == n - 1:
            checks.append(0.0)
        if len(checks) != n:
            raise ConfigurationError(
                f"Expected one price of the verifier, or one for each of {n} models, got {len(checks)}."
            )
        found = cls(
            models=tuple(
                check_real(f"the cost of model {place}", one, low=0.0) for place, one in enumerate(models, 1)
            ),
            verifier=tuple(check_real("the verifier's cost", one, low=0.0) for one in checks),
        )
        if not found.models[-1]:
            raise ConfigurationError(
                "Expected a large model that costs more than 0: one that costs nothing needs no cascade. Give its "
                "price, its time per row, or 1 for equal costs."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class PricedPolicy:
    """A policy on recorded rows.

    Attributes
    ----------
    policy : KeepPolicy
        What was priced.
    n : int
        Rows.
    accuracy : Interval
        With its Wilson interval.
    difference : Interval
        Its accuracy minus that of always using the last model, on the same rows (Newcombe's paired interval; exactly
        0 for the last model alone).
    cost : Interval
        Per row, with its bootstrap interval.
    shares : tuple of Interval, one per model
        Of the rows that each model answers (Wilson).
    held_out : bool
        Whether nothing about the policy was chosen on these rows.
    """

    policy: KeepPolicy
    n: int
    accuracy: Interval
    difference: Interval
    cost: Interval
    shares: tuple[Interval, ...]
    held_out: bool

    @property
    def share_small(self) -> Interval:
        """Share of the rows that the first model answers."""
        return self.shares[0]

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        intervals = {name: asdict(getattr(self, name)) for name in ("accuracy", "difference", "cost")}
        return {
            "policy": self.policy.to_record(),
            "n": self.n,
            **intervals,
            "shares": [asdict(share) for share in self.shares],
            "held_out": self.held_out,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return what `to_record` wrote; KeyError, TypeError or ValueError if it is something else."""
        return cls(
            policy=KeepPolicy.from_record(record["policy"]),
            n=int(record["n"]),
            accuracy=Interval(**record["accuracy"]),
            difference=Interval(**record["difference"]),
            cost=Interval(**record["cost"]),
            shares=tuple(Interval(**share) for share in record["shares"]),
            held_out=bool(record["held_out"]),
        )


def price_policy(  # noqa: PLR0913  (keyword-only options)
    policy: KeepPolicy,
    confidence: _Floats,
    correct: _Floats,
    prices: Prices,
    *,
    ranks: _Floats | None = None,
    held_out: bool,
    level: float = 0.95,
    rng: np.random.Generator | int | None = None,
) -> PricedPolicy:
    """Return what a policy is worth on rows.

    Parameters
    ----------
    policy : KeepPolicy
        What to price.
    confidence, correct : ndarray of shape (m, n)
        Of every model, the last one being the large one; confidence calibrated if the policy is.
    prices : Prices
        Of the m models.
    ranks : ndarray of shape (len(policy.rules), n), optional
        Of the texts (`KeepPolicy.ranks`), where the policy splits ties.
    held_out : bool
        Whether nothing about the policy was chosen on these rows.
    level : float in (0, 1), default 0.95
        Of the intervals.
    rng : numpy Generator, int or None
        Of the bootstrap; None is seed 0.
    """
    m, n = correct.shape
    route = policy.follow(confidence, ranks)
    right = correct[route.answered, np.arange(n)]
    cost = np.array(prices.models) @ route.asked + np.array(prices.verifier) @ route.judged
    repeated = len(np.unique(cost)) * 16 < n
    resamples = _RESAMPLES[1] if repeated else int(np.clip(_DRAWS // n, *_RESAMPLES))
    return PricedPolicy(
        policy=policy,
        n=n,
        accuracy=wilson_interval(int(right.sum()), n, level),
        difference=(
            Interval(lower=0.0, upper=0.0, level=level, estimate=0.0)  # it is the same, on any rows
            if policy.members == (m - 1,)
            else paired_comparison(correct[-1], right, level).interval
        ),
        cost=bootstrap_interval(cost, level, n_resamples=resamples, rng=rng),
        shares=tuple(
            wilson_interval(int(count), n, level) for count in np.bincount(route.answered, minlength=m)
        ),
        held_out=held_out,
    )
