"""Cost and accuracy of a policy on recorded rows, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from calibrant.cascade._checks import check_real
from calibrant.cascade.planning._recorded import PairedRuns
from calibrant.cascade.planning._rules import KeepPolicy, Route
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Interval
from calibrant.metrics._intervals import bootstrap_interval, wilson_interval
from calibrant.metrics._paired import paired_comparison

_RESAMPLES: Final = (200, 10_000)  # fewest and most
_DRAWS: Final = 20_000_000  # rows drawn for an interval whose values do not repeat, about a second

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Columns of rows for planning or pricing.

    Attributes
    ----------
    raw, calibrated, correct : ndarray of shape (m, n)
        Confidence as reported and as calibrated, NaN where there is none, and correctness of every model.
    ranks : ndarray of shape (m - 1, n)
        Ranks of the texts under each of `keys`.
    keys : tuple of str, length m - 1
        Keys of the first rule of a policy, the second one and so on; see `tie_keys`.
    """

    raw: _Floats
    calibrated: _Floats
    correct: _Floats
    ranks: _Floats
    keys: tuple[str, ...]

    def route(self, policy: KeepPolicy) -> Route:
        """Return the route of the rows under a policy, which uses the first of `keys`."""
        confidence = self.calibrated if policy.calibrated else self.raw
        return policy.follow(confidence, self.ranks[: len(policy.rules)])

    def losses(self, policy: KeepPolicy) -> tuple[int, int]:
        """Return the counts of rows only the last model, and only the policy, answers correctly."""
        answered = self.route(policy).answered
        difference = self.correct[-1] - self.correct[answered, np.arange(len(answered))]
        return int((difference == 1.0).sum()), int((difference == -1.0).sum())

    def take(self, rows: NDArray[np.intp]) -> Signals:
        """Return a subset of the rows."""
        return Signals(
            raw=self.raw[:, rows],
            calibrated=self.calibrated[:, rows],
            correct=self.correct[:, rows],
            ranks=self.ranks[:, rows],
            keys=self.keys,
        )


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Costs of answers, in one unit of any kind.

    Attributes
    ----------
    models : tuple of float, length m
        An answer of each model, at least 0.
    verifier : tuple of float, length m
        Finding out how sure an answer of each model is, at least 0; paid only where it is looked at.
    """

    models: tuple[float, ...]
    verifier: tuple[float, ...]

    @classmethod
    def of(
        cls, runs: PairedRuns, costs: Sequence[float | None], verifier_cost: float | Sequence[float]
    ) -> Self:
        """Return the prices given; by default the mean of the recorded costs.

        One price of the verifier stands for all models; the last model, which nobody verifies, may have none.

        Raises
        ------
        ConfigurationError
            A price is negative or no number, neither given nor recorded, or their numbers do not fit.
        """
        n = len(runs.names)
        if len(costs) != n:
            raise ConfigurationError(f"Expected a cost for each of {n} models, got {len(costs)}.")
        checks = list(verifier_cost) if isinstance(verifier_cost, Sequence) else [verifier_cost]
        if len(checks) == 1:
            checks *= n
        if len(checks) not in {n - 1, n}:
            raise ConfigurationError(
                f"Expected one price of the verifier, or one for each of {n} models, got {len(checks)}."
            )
        models = []
        for place, (name, cost, recorded) in enumerate(zip(runs.names, costs, runs.cost, strict=True), 1):
            if cost is None and np.isnan(recorded).all():
                raise ConfigurationError(
                    f"Expected the cost of an answer of {name}: its rows do not say, so give one for each such model "
                    "(small_cost, between_costs and large_cost of a plan, costs of a replay)."
                )
            known = np.nanmean(recorded) if cost is None else cost
            models.append(check_real(f"the cost of model {place}", known, low=0.0))
        if not models[-1]:
            raise ConfigurationError(
                "Expected a large model that costs more than 0: one that costs nothing needs no cascade. Give its "
                "price, its time per row, or 1 for equal costs."
            )
        checked = [check_real("the verifier's cost", one, low=0.0) for one in checks]
        return cls(models=tuple(models), verifier=(*checked, *[0.0] * (n - len(checked))))

    def under(self, policy: KeepPolicy) -> _Floats:
        """Return the price of calling each model under a policy, shape (m,): the last member is not verified."""
        price = np.array(self.models)
        for member in policy.members[:-1]:
            price[member] += self.verifier[member]
        return price

    def mean_cost(self, policy: KeepPolicy, route: Route) -> float:
        """Return the cost of a policy per row."""
        # Shares first, so that one model alone costs its price to the last bit.
        return float(route.asked.mean(axis=1) @ self.under(policy))


@dataclass(frozen=True, kw_only=True)
class PricedPolicy:
    """Cost and accuracy of a policy on recorded rows.

    Attributes
    ----------
    policy : KeepPolicy
        The policy that was priced.
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
        Share of the rows that each model answers (Wilson).
    held_out : bool
        True where nothing about the policy was chosen on these rows.
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
        """Share of rows answered by the first model."""
        return self.shares[0]

    def to_record(self) -> dict[str, Any]:
        """Return policy and figures as JSON values."""
        record: dict[str, Any] = TypeAdapter(PricedPolicy).dump_python(self, mode="json")
        return record


def price_policy(
    policy: KeepPolicy,
    rows: Signals,
    prices: Prices,
    *,
    held_out: bool,
    rng: np.random.Generator | int | None,
) -> PricedPolicy:
    """Return cost and accuracy of a policy on rows, with 95 % intervals.

    Parameters
    ----------
    policy : KeepPolicy
        The policy to price.
    rows : Signals
        Rows of all m models, the last one being the large one.
    prices : Prices
        Of the m models.
    held_out : bool
        True where nothing about the policy was chosen on these rows.
    rng : numpy Generator, int or None
        Of the bootstrap; None is seed 0.
    """
    m, n = rows.correct.shape
    route = rows.route(policy)
    right = rows.correct[route.answered, np.arange(n)]
    cost = prices.under(policy) @ route.asked
    repeated = len(np.unique(cost)) * 16 < n
    resamples = _RESAMPLES[1] if repeated else int(np.clip(_DRAWS // n, *_RESAMPLES))
    accuracy = wilson_interval(int(right.sum()), n)
    always_last = Interval(lower=0.0, upper=0.0, level=accuracy.level, estimate=0.0)  # the same, on any rows
    answered = np.bincount(route.answered, minlength=m)
    return PricedPolicy(
        policy=policy,
        n=n,
        accuracy=accuracy,
        difference=always_last
        if policy.members == (m - 1,)
        else paired_comparison(rows.correct[-1], right).interval,
        cost=bootstrap_interval(cost, n_resamples=resamples, rng=rng),
        shares=tuple(wilson_interval(int(count), n) for count in answered),
        held_out=held_out,
    )
