"""Candidate policies, found on planning rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade.automix._frontier import routing_frontier
from calibrant.cascade.automix._pomdp import POMDPMetaVerifier
from calibrant.cascade.planning._priced import Prices, Signals
from calibrant.cascade.planning._rules import KeepPolicy, KeepRule

_BINS: Final = 10  # of a confidence that need not be a threshold
_SAMPLES: Final = 8  # steps of confidence that a POMDP observes
_CELLS: Final = 8  # of each of them, for the form that interpolates
_FREE: Final = 1e-12  # what a model is taken to cost that costs nothing
_PRICES: Final = 60  # of accuracy in cost at which longer chains are planned
_LEAST_TIED: Final = 0.05  # share of the rows from which on a block of equal confidences is split
_SHARES: Final = tuple(step / 20 for step in range(1, 20))  # of a tied block that may be kept

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _Fixed:
    """A single policy."""

    only: KeepPolicy

    def __len__(self) -> int:
        return 1

    def curve(self, rows: Signals, prices: Prices) -> tuple[_Floats, _Floats]:
        route = rows.route(self.only)
        right = rows.correct[route.answered, np.arange(rows.correct.shape[1])]
        return np.array([prices.mean_cost(self.only, route)]), np.array([right.mean()])

    def policy(self, place: int) -> KeepPolicy:  # noqa: ARG002  (there is one)
        return self.only


@dataclass(frozen=True, kw_only=True)
class _Prefixes:
    """Nested policies of two models, routing 0, 1, ..., all confidence bins."""

    name: str
    members: tuple[int, int]
    calibrated: bool
    lower: _Floats
    order: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.order) + 1

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


Candidates: TypeAlias = _Fixed | _Prefixes
"""Policies of one kind: their cost and accuracy per row as a curve, and each of them by its place there."""


def candidate_policies(rows: Signals, prices: Prices) -> list[Candidates]:
    """Return the candidate policies, the simplest first.

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
    """Return the two-model candidates: thresholds, bin sets and POMDP policies, in routing order."""
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
    plain = routing_frontier(*scores, **costs, thresholds_only=True)
    binned = routing_frontier(*scores, **costs, k=_BINS)
    kinds = [
        ("threshold", plain.bins.values, plain.order),
        (f"{_BINS + 1} bins", binned.bins.values - 0.5 / _BINS, binned.order),
    ]
    if len(np.unique(scores[1])) == 2:
        # What AutoMix's meta-verifier routes at any price, with confidence as the verifier's score.
        learned = POMDPMetaVerifier(k=_SAMPLES, price=0.0).fit(*scores, **costs)
        steps = _SAMPLES * _CELLS
        lower = np.arange(steps) / steps
        gain = learned.gain(lower + 0.5 / steps)
        kinds.append((f"POMDP, {learned.form_}", lower, np.argsort(-gain, kind="stable")))
    return [
        _Prefixes(name=name, members=(first, last), calibrated=calibrated, lower=lower, order=order)
        for name, lower, order in kinds
    ]


def _split(rows: Signals, members: tuple[int, ...]) -> list[Candidates]:
    """Return thresholds that split large blocks of tied answers."""
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


def _chains(rows: Signals, prices: Prices) -> list[KeepPolicy]:
    """Return thresholds for three and more models, from the most accurate policy to the cheapest.

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
    """Return the rule of every member but the last; None if a rule would keep no answer."""
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
