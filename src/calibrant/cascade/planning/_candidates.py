"""Policies worth considering, found on some rows and priced on any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade.automix._frontier import routing_frontier
from calibrant.cascade.automix._pomdp import POMDPMetaVerifier
from calibrant.cascade.planning._priced import Prices
from calibrant.cascade.planning._rules import KeepPolicy, KeepRule, Route

_BINS: Final = 10  # of a confidence that need not be a threshold
_SAMPLES: Final = 8  # steps of confidence that a POMDP observes
_CELLS: Final = 8  # of each of them, for the form that interpolates
_FREE: Final = 1e-12  # what a model is taken to cost that costs nothing
_PRICES: Final = 60  # of accuracy in cost at which longer chains are planned
_LEAST_TIED: Final = 0.05  # share of the rows from which on a block of equal confidences is split
_SHARES: Final = tuple(step / 20 for step in range(1, 20))  # of a tied block that may be kept

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Signals:
    """Rows to plan or to price on.

    Attributes
    ----------
    raw, calibrated, correct : ndarray of shape (m, n)
        Confidence as reported and as calibrated, NaN where there is none, and correctness of every model.
    ranks : ndarray of shape (m - 1, n)
        Of the texts under each of `keys`.
    keys : tuple of str, length m - 1
        Of the first rule of a policy, the second one and so on; see `tie_keys`.
    """

    raw: _Floats
    calibrated: _Floats
    correct: _Floats
    ranks: _Floats
    keys: tuple[str, ...]

    def of(self, policy: KeepPolicy) -> _Floats:
        """Return the confidences a policy is about."""
        return self.calibrated if policy.calibrated else self.raw

    def ranks_of(self, policy: KeepPolicy) -> _Floats:
        """Return the ranks for each rule of a policy, whose keys are the first of `keys`."""
        return self.ranks[: len(policy.rules)]

    def route(self, policy: KeepPolicy) -> Route:
        """Return what becomes of the rows under a policy."""
        return policy.follow(self.of(policy), self.ranks_of(policy))

    def losses(self, policy: KeepPolicy) -> tuple[int, int]:
        """Return on how many rows only the last model is right, and on how many only the policy."""
        answered = self.route(policy).answered
        difference = self.correct[-1] - self.correct[answered, np.arange(len(answered))]
        return int((difference == 1.0).sum()), int((difference == -1.0).sum())

    def take(self, rows: NDArray[np.intp]) -> Signals:
        """Return some of the rows."""
        return Signals(
            raw=self.raw[:, rows],
            calibrated=self.calibrated[:, rows],
            correct=self.correct[:, rows],
            ranks=self.ranks[:, rows],
            keys=self.keys,
        )


class Candidates(Protocol):
    """Some policies of one kind."""

    def curve(self, rows: Signals, prices: Prices) -> tuple[_Floats, _Floats]:
        """Return cost and accuracy per row of each of them."""
        ...

    def policy(self, place: int) -> KeepPolicy:
        """Return one of them."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Fixed:
    """A single policy."""

    only: KeepPolicy

    def curve(self, rows: Signals, prices: Prices) -> tuple[_Floats, _Floats]:
        route = rows.route(self.only)
        right = rows.correct[route.answered, np.arange(rows.correct.shape[1])]
        return np.array([prices.mean_of(route)]), np.array([right.mean()])

    def policy(self, place: int) -> KeepPolicy:  # noqa: ARG002  (there is one)
        return self.only


@dataclass(frozen=True, kw_only=True)
class _Prefixes:
    """Two models, and bins of confidence that are routed one after the other: none, one, two, ..., all."""

    name: str
    members: tuple[int, int]
    calibrated: bool
    lower: _Floats
    order: NDArray[np.intp]

    def curve(self, rows: Signals, prices: Prices) -> tuple[_Floats, _Floats]:
        first, last = self.members
        signal = (rows.calibrated if self.calibrated else rows.raw)[first]
        sure = ~np.isnan(signal)
        own = np.searchsorted(self.lower[1:], signal[sure], side="right")
        n, bins = len(signal), len(self.lower)
        gain = rows.correct[last] - rows.correct[first]
        routed = np.bincount(own, minlength=bins)[self.order].cumsum() / n
        gained = np.bincount(own, weights=gain[sure], minlength=bins)[self.order].cumsum() / n
        unsure = 1.0 - sure.mean()
        share = np.concatenate(([0.0], routed)) + unsure
        base = rows.correct[first].mean() + gain[~sure].sum() / n
        cost = prices.models[first] + prices.verifier[first] + prices.models[last] * share
        return cost, base + np.concatenate(([0.0], gained))

    def policy(self, place: int) -> KeepPolicy:
        keeps = np.ones(len(self.lower), dtype=np.bool_)
        keeps[self.order[:place]] = False
        rule = KeepRule.from_bins(self.lower.tolist(), keeps.tolist())
        limit = rule.threshold
        detail = f"threshold {limit:.6g}" if limit is not None and self.name == "threshold" else self.name
        kind = f"{detail} on calibrated confidence" if self.calibrated else detail
        return KeepPolicy(name=kind, members=self.members, rules=(rule,), calibrated=self.calibrated)


def candidate_policies(rows: Signals, prices: Prices) -> list[Candidates]:
    """Return the policies that are worth considering, the simplest first.

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
    found: list[Candidates] = [_Fixed(only=KeepPolicy.alone(model)) for model in range(m)]
    differs = not np.array_equal(rows.raw, rows.calibrated, equal_nan=True)
    for members in combinations(range(m), 2):
        for calibrated in (False, True) if differs else (False,):
            found += _of_two(rows, prices, members, calibrated=calibrated)
        found += _split(rows, members)
    if m > 2:
        found += [_Fixed(only=policy) for policy in _chains(rows, prices)]
    return found


def _of_two(rows: Signals, prices: Prices, members: tuple[int, ...], *, calibrated: bool) -> list[Candidates]:
    first, last = members
    signal = (rows.calibrated if calibrated else rows.raw)[first]
    sure = ~np.isnan(signal)
    if not sure.any():
        return []
    found: list[Candidates] = []
    for name, k in (("threshold", None), (f"{_BINS + 1} bins", _BINS)):
        frontier = routing_frontier(
            signal[sure],
            rows.correct[first][sure],
            rows.correct[last][sure],
            small_cost=prices.models[first],
            large_cost=max(prices.models[last], _FREE),
            verifier_cost=prices.verifier[first],
            k=k,
            thresholds_only=k is None,
        )
        found.append(
            _Prefixes(
                name=name,
                members=(first, last),
                calibrated=calibrated,
                lower=frontier.bins.values - (0.0 if k is None else 0.5 / k),
                order=frontier.order,
            )
        )
    if len(np.unique(rows.correct[first][sure])) == 2:
        found.append(_pomdp(rows, prices, (first, last), sure, calibrated=calibrated))
    return found


def _split(rows: Signals, members: tuple[int, ...]) -> list[Candidates]:
    """Return thresholds that keep a share of the answers at them, where these are many."""
    first = rows.raw[members[0]]
    levels, count = np.unique(first[~np.isnan(first)], return_counts=True)
    rules = [
        KeepRule.from_threshold(level, tied_share=share, key=rows.keys[0])
        for level in levels[count >= _LEAST_TIED * len(first)].tolist()
        for share in _SHARES
    ]
    return [
        _Fixed(only=KeepPolicy(name=f"threshold {rule.describe()}", members=members, rules=(rule,)))
        for rule in rules
    ]


def _pomdp(
    rows: Signals, prices: Prices, members: tuple[int, int], sure: NDArray[np.bool_], *, calibrated: bool
) -> _Prefixes:
    """Return what AutoMix's meta-verifier routes at any price, with confidence as the verifier's score."""
    first, last = members
    signal = (rows.calibrated if calibrated else rows.raw)[first]
    learned = POMDPMetaVerifier(k=_SAMPLES, price=0.0).fit(
        signal[sure],
        rows.correct[first][sure],
        rows.correct[last][sure],
        small_cost=prices.models[first],
        large_cost=max(prices.models[last], _FREE),
        verifier_cost=prices.verifier[first],
    )
    steps = _SAMPLES * _CELLS
    lower = np.arange(steps) / steps
    return _Prefixes(
        name=f"POMDP, {learned.form_}",
        members=members,
        calibrated=calibrated,
        lower=lower,
        order=np.argsort(-learned.gain(lower + 0.5 / steps), kind="stable"),
    )


def _chains(rows: Signals, prices: Prices) -> list[KeepPolicy]:
    """Return thresholds for three and more models, from the most accurate policy to the cheapest.

    At every price of accuracy in cost the thresholds are chosen backwards: what comes after a model is to
    it a single large model, whose cost differs from row to row.
    """
    m = len(rows.correct)
    scale = prices.models[-1] + sum(prices.models)
    worth = np.concatenate(([0.0], np.geomspace(1e-4, 1.0, _PRICES) / scale))
    found: dict[tuple[object, ...], KeepPolicy] = {}
    for price in worth.tolist():
        for size in range(m, 2, -1):
            for members in combinations(range(m), size):
                rules = _backwards(rows, prices, members, price)
                if rules is not None:
                    shown = ", ".join(rule.describe() for rule in rules)
                    policy = KeepPolicy(
                        name=f"thresholds {shown} on calibrated confidence",
                        members=members,
                        rules=tuple(rules),
                        calibrated=True,
                    )
                    found.setdefault((members, policy.rules), policy)
    return list(found.values())


def _backwards(rows: Signals, prices: Prices, members: Sequence[int], price: float) -> list[KeepRule] | None:
    """Return the rule of every member but the last; None where one would keep nothing."""
    score, cost = rows.correct[members[-1]], np.full(rows.correct.shape[1], prices.models[members[-1]])
    rules: list[KeepRule] = []
    for member in members[-2::-1]:
        signal = rows.calibrated[member]
        sure = ~np.isnan(signal)
        if not sure.any():
            return None
        rule = _best_threshold(signal[sure], (score - rows.correct[member])[sure], cost[sure], price)
        if rule.threshold is None:
            return None
        rules.insert(0, rule)
        kept = rule.accepts(signal)
        score = np.where(kept, rows.correct[member], score)
        cost = prices.models[member] + prices.verifier[member] + np.where(kept, 0.0, cost)
    return rules


def _best_threshold(signal: _Floats, gain: _Floats, cost: _Floats, price: float) -> KeepRule:
    """Return the threshold below which routing is worth the most; the lowest of equals."""
    levels, own = np.unique(signal, return_inverse=True)
    worth = np.concatenate(([0.0], np.bincount(own, weights=gain - price * cost).cumsum()))
    routed = int(worth.argmax())
    return KeepRule.from_bins(
        np.concatenate(([-1.0], levels)).tolist(), [False, *(np.arange(len(levels)) >= routed).tolist()]
    )
