"""Cost and accuracy of policies on recorded rows, and the candidate policies of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from calibrant.cascade.automix._frontier import routing_frontier
from calibrant.cascade.automix._pomdp import POMDPMetaVerifier
from calibrant.cascade.planning._recorded import PairedRuns
from calibrant.cascade.planning._rules import KeepPolicy, KeepRule, Route
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Interval
from calibrant.metrics._intervals import bootstrap_interval, wilson_interval
from calibrant.metrics._paired import paired_comparison
from calibrant.metrics._validation import check_number

_RESAMPLES: Final = (200, 10_000)  # fewest and most
_DRAWS: Final = 20_000_000  # rows drawn for an interval whose values do not repeat, about a second
_BINS: Final = 10  # of a confidence that need not be a threshold
_SAMPLES: Final = 8  # steps of confidence that a POMDP observes
_CELLS: Final = 8  # of each of them, for the form that interpolates
_FREE: Final = 1e-12  # what a model is taken to cost that costs nothing
_PRICES: Final = 60  # of accuracy in cost at which longer chains are planned
_LEAST_TIED: Final = 0.05  # share of the rows from which on a block of equal confidences is split
_SHARES: Final = tuple(step / 20 for step in range(1, 20))  # of a tied block that may be kept

_Floats = NDArray[np.float64]
_Places = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Confidences, correctness and tie ranks of rows, for planning or pricing.

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
        """Return the route of the rows under a policy."""
        confidence = self.calibrated if policy.calibrated else self.raw
        return policy.follow(confidence, self.ranks[: len(policy.rules)])

    def right(self, route: Route) -> _Floats:
        """Return the correctness of the answers that a route gives, shape (n,)."""
        given: _Floats = self.correct[route.answered, np.arange(len(route.answered))]
        return given

    def figures(self, policy: KeepPolicy, prices: Prices) -> tuple[float, float]:
        """Return cost and accuracy of a policy, per row."""
        route = self.route(policy)
        # Shares first, so that one model alone costs its price to the last bit.
        cost = float(route.asked.mean(axis=1) @ prices.under(policy))
        return cost, float(self.right(route).mean())

    def losses(self, policy: KeepPolicy) -> tuple[int, int]:
        """Return the number of rows that only the last model, and that only the policy, answers correctly."""
        difference = self.correct[-1] - self.right(self.route(policy))
        return int((difference == 1.0).sum()), int((difference == -1.0).sum())

    def take(self, rows: NDArray[np.intp]) -> Signals:
        """Return a subset of the rows."""
        columns = ("raw", "calibrated", "correct", "ranks")
        return replace(self, **{name: getattr(self, name)[:, rows] for name in columns})


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Cost of an answer and of its verification, per model, all in one unit.

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
        """Return the given prices; by default the mean recorded cost of each model.

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
            models.append(check_number(f"the cost of model {place}", known, "[0, inf)"))
        if not models[-1]:
            raise ConfigurationError(
                "Expected a large model that costs more than 0: one that costs nothing needs no cascade. Give its "
                "price, its time per row, or 1 for equal costs."
            )
        checked = [check_number("the verifier's cost", one, "[0, inf)") for one in checks]
        return cls(models=tuple(models), verifier=(*checked, *[0.0] * (n - len(checked))))

    def under(self, policy: KeepPolicy) -> _Floats:
        """Return the cost of calling each model under a policy, shape (m,), with verification if used."""
        price, verified = np.array(self.models), list(policy.members[:-1])
        price[verified] += np.array(self.verifier)[verified]
        return price


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
    right = rows.right(route)
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


class Candidates(NamedTuple):
    """Candidate policies of one kind, with cost and accuracy.

    Attributes
    ----------
    cost, accuracy : ndarray of shape (p,)
        Of each policy, per row, on the rows they were found on.
    policy : callable
        Returns the policy at a place of these.
    """

    cost: _Floats
    accuracy: _Floats
    policy: Callable[[int], KeepPolicy]


def candidate_policies(rows: Signals, prices: Prices) -> list[Candidates]:
    """Return the candidate policies by kind, simple kinds first.

    Every model alone; for every two models each threshold on the confidence of the smaller one, as reported
    and calibrated, each set of tenths of it that `routing_frontier` routes, what `POMDPMetaVerifier` does
    (its `ThresholdMetaVerifier` and `SelfConsistencyMetaVerifier` are thresholds as well), and shares, in
    twentieths, of what is tied at a confidence as reported; and, where there are more, thresholds for chains
    of models.

    Parameters
    ----------
    rows : Signals
        To plan on.
    prices : Prices
        Of the models.
    """
    m = len(rows.correct)

    def single(policy: KeepPolicy) -> Candidates:
        cost, accuracy = rows.figures(policy, prices)
        return Candidates(np.array([cost]), np.array([accuracy]), lambda _place: policy)

    found = [single(KeepPolicy.alone(model)) for model in range(m)]
    differs = not np.array_equal(rows.raw, rows.calibrated, equal_nan=True)
    for members in combinations(range(m), 2):
        for calibrated in (False, True) if differs else (False,):
            found += _of_two(rows, prices, members, calibrated=calibrated)
        found += map(single, _split(rows, members))
    return [*found, *map(single, _chains(rows, prices))]


def _of_two(rows: Signals, prices: Prices, members: tuple[int, int], *, calibrated: bool) -> list[Candidates]:
    """Return two-model candidates by threshold, bins and POMDP, ordered by share of rows escalated."""
    first, last = members
    signal = (rows.calibrated if calibrated else rows.raw)[first]
    sure = ~np.isnan(signal)
    if not sure.any():
        return []
    scores = signal[sure], rows.correct[first][sure], rows.correct[last][sure]
    costs: dict[str, Any] = {
        "small_cost": prices.models[first],
        "large_cost": max(prices.models[last], _FREE),
        "verifier_cost": prices.verifier[first],
    }
    levels = np.unique(scores[0])
    binned = routing_frontier(*scores, **costs, k=_BINS)
    kinds = [
        ("threshold", levels, np.arange(len(levels))),
        (f"{_BINS + 1} bins", binned.bins.values - 0.5 / _BINS, binned.order),
    ]
    if len(np.unique(scores[1])) == 2:
        # What AutoMix's meta-verifier routes at any price, with confidence as the verifier's score.
        learned = POMDPMetaVerifier(k=_SAMPLES, price=0.0).fit(*scores, **costs)
        steps = _SAMPLES * _CELLS
        lower = np.arange(steps) / steps
        gain = learned.gain(lower + 0.5 / steps)
        kinds.append((f"POMDP, {learned.form_}", lower, np.argsort(-gain, kind="stable")))
    candidates = []
    n, unsure = len(signal), (rows.correct[last] - rows.correct[first])[~sure].sum()
    for name, lower, order in kinds:
        own = np.searchsorted(lower[1:], scores[0], side="right")
        routed = np.bincount(own, minlength=len(lower))[order].cumsum()
        gained = np.bincount(own, weights=scores[2] - scores[1], minlength=len(lower))[order].cumsum()
        share = (np.concatenate(([0.0], routed)) + n - sure.sum()) / n
        cost = prices.models[first] + prices.verifier[first] + prices.models[last] * share
        accuracy = rows.correct[first].mean() + (np.concatenate(([0.0], gained)) + unsure) / n
        policy = partial(_bin_policy, name, members, lower, order, calibrated)
        candidates.append(Candidates(cost, accuracy, policy))
    return candidates


def _bin_policy(
    name: str, members: tuple[int, int], lower: _Floats, order: _Places, calibrated: bool, place: int
) -> KeepPolicy:
    """Return the policy that escalates the first `place` bins of `order`."""
    keeps = np.ones(len(lower), dtype=np.bool_)
    keeps[order[:place]] = False
    rule = KeepRule.from_bins(lower.tolist(), keeps.tolist())
    limit = rule.threshold
    detail = f"threshold {limit:.6g}" if limit is not None and name == "threshold" else name
    kind = f"{detail} on calibrated confidence" if calibrated else detail
    return KeepPolicy(name=kind, members=members, rules=(rule,), calibrated=calibrated)


def _split(rows: Signals, members: tuple[int, ...]) -> list[KeepPolicy]:
    """Return threshold policies that accept only a share of answers tied at the threshold."""
    first = rows.raw[members[0]]
    levels, count = np.unique(first[~np.isnan(first)], return_counts=True)
    rules = [
        KeepRule.from_threshold(level, tied_share=share, key=rows.keys[0])
        for level in levels[count >= _LEAST_TIED * len(first)].tolist()
        for share in _SHARES
    ]
    return [KeepPolicy(name=f"threshold {rule.describe()}", members=members, rules=(rule,)) for rule in rules]


def _chains(rows: Signals, prices: Prices) -> list[KeepPolicy]:
    """Return threshold policies over three or more models, for several weights of cost.

    At every price of accuracy in cost the thresholds are chosen backwards: what comes after a model is to
    it a single large model, whose cost differs from row to row.
    """
    m = len(rows.correct)
    scale = prices.models[-1] + sum(prices.models)
    worth = np.concatenate(([0.0], np.geomspace(1e-4, 1.0, _PRICES) / scale))
    chains = [members for size in range(m, 2, -1) for members in combinations(range(m), size)]
    policies: dict[tuple[object, ...], KeepPolicy] = {}
    for price, members in product(worth.tolist(), chains):
        rules = _backwards(rows, prices, members, price)
        if rules is not None:
            shown = ", ".join(rule.describe() for rule in rules)
            name = f"thresholds {shown} on calibrated confidence"
            policy = KeepPolicy(name=name, members=members, rules=tuple(rules), calibrated=True)
            policies.setdefault((members, policy.rules), policy)
    return list(policies.values())


def _backwards(rows: Signals, prices: Prices, members: Sequence[int], price: float) -> list[KeepRule] | None:
    """Return the rule of each model but the last; None if a rule would accept no answer."""
    score, cost = rows.correct[members[-1]], np.full(rows.correct.shape[1], prices.models[members[-1]])
    rules: list[KeepRule] = []
    for member in members[-2::-1]:
        signal = rows.calibrated[member]
        sure = ~np.isnan(signal)
        levels, own = np.unique(signal[sure], return_inverse=True)
        gain = (score - rows.correct[member] - price * cost)[sure]
        # Worth of routing none, the lowest level, the lowest two, ..., all; the lowest threshold of equals.
        routed = int(np.concatenate(([0.0], np.bincount(own, weights=gain, minlength=1).cumsum())).argmax())
        if routed >= len(levels):
            return None
        rule = KeepRule.from_threshold(levels[routed])
        rules.insert(0, rule)
        kept = rule.accepts(signal)
        score = np.where(kept, rows.correct[member], score)
        cost = prices.models[member] + prices.verifier[member] + np.where(kept, 0.0, cost)
    return rules
