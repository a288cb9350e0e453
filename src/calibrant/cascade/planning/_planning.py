"""The halves of the rows, and what is fitted, found and counted on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.calibration._choice import select_calibrator
from calibrant.cascade._ties import tie_keys, tie_ranks
from calibrant.cascade.automix._hull import rising_hull
from calibrant.cascade.planning._candidates import Candidates, Signals, candidate_policies
from calibrant.cascade.planning._plan import FrontierPoint, PlannedModel, calibrated
from calibrant.cascade.planning._priced import PricedPolicy, Prices, price_policy
from calibrant.cascade.planning._recorded import PairedRuns
from calibrant.cascade.planning._rules import KeepPolicy
from calibrant.core._errors import ConfigurationError

_Floats = NDArray[np.float64]
_Rows = NDArray[np.intp]
_ROUNDING: Final = 1e-12  # of sums of costs and accuracies


@dataclass(frozen=True, kw_only=True, eq=False)
class Planning:
    """Everything a plan is made from: rows, halves, calibrators, prices and candidates."""

    runs: PairedRuns
    signals: Signals
    prices: Prices
    planning: _Rows
    reporting: _Rows
    calibrators: tuple[tuple[str, ConfidenceCalibrator | None], ...]
    candidates: tuple[Candidates, ...]
    level: float
    generator: np.random.Generator

    @classmethod
    def open(
        cls, runs: PairedRuns, prices: Prices, generator: np.random.Generator, *, level: float, key: str
    ) -> Planning:
        """Split the rows, fit calibrators and find candidates on the planning half."""
        planning, reporting = _halves(runs.texts, generator)
        keys = tie_keys(key, len(runs.names) - 1)
        fitted = [_calibrator(runs.rows(planning), one, generator) for one in range(len(runs.names) - 1)]
        calibrators = (*fitted, ("none", None))
        signals = Signals(
            raw=runs.confidence,
            calibrated=np.array(
                [
                    calibrated(p, found, labels)
                    for p, (_, found), labels in zip(runs.confidence, calibrators, runs.labels, strict=True)
                ]
            ),
            correct=runs.correct,
            ranks=np.array([tie_ranks(runs.texts, key=one) for one in keys]),
            keys=keys,
        )
        return cls(
            runs=runs,
            signals=signals,
            prices=prices,
            planning=planning,
            reporting=reporting,
            calibrators=calibrators,
            candidates=tuple(candidate_policies(signals.take(planning), prices)),
            level=level,
            generator=generator,
        )

    def curve(self, rows: _Rows) -> tuple[_Floats, _Floats, NDArray[np.intp], NDArray[np.intp]]:
        """Return cost and accuracy of every candidate on rows, which kind it is of, and its place there."""
        part = self.signals.take(rows)
        curves = [kind.curve(part, self.prices) for kind in self.candidates]
        sizes = [len(cost) for cost, _ in curves]
        return (
            np.concatenate([cost for cost, _ in curves]),
            np.concatenate([accuracy for _, accuracy in curves]),
            np.repeat(np.arange(len(sizes)), sizes),
            np.concatenate([np.arange(size) for size in sizes]),
        )

    def choose(self, *, target: float | None, budget: float | None) -> KeepPolicy:
        """Return the policy for a goal, by the planning half."""
        cost, accuracy, kind, place = self.curve(self.planning)
        if budget is not None:
            possible = cost <= budget + _ROUNDING * max(1.0, budget)
            if not possible.any():
                raise ConfigurationError(
                    f"Expected a budget of at least {cost.min():.6g} per row, what the cheapest policy costs, got "
                    f"{budget:g}: raise it."
                )
            order = np.lexsort((cost, -np.where(possible, accuracy, -np.inf)))
        else:
            possible = accuracy >= float(target or 0.0) - _ROUNDING
            if not possible.any():
                raise ConfigurationError(
                    f"Expected a target that a policy reaches, got {target:g}: the most accurate has "
                    f"{accuracy.max():.4f} on the planning rows. Lower the target, or add a better model."
                )
            order = np.lexsort((-accuracy, np.where(possible, cost, np.inf)))
        best = int(order[0])
        return self._policy(int(kind[best]), int(place[best]))

    def _policy(self, kind: int, place: int) -> KeepPolicy:
        return self.candidates[kind].policy(place)

    def frontier(self) -> tuple[FrontierPoint, ...]:
        """Return the corners of the best trade on the planning half, priced on the other, too."""
        cost, accuracy, kind, place = self.curve(self.planning)
        other_cost, other_accuracy, _, _ = self.curve(self.reporting)
        return tuple(
            FrontierPoint(
                policy=self._policy(int(kind[one]), int(place[one])),
                planned_cost=float(cost[one]),
                planned_accuracy=float(accuracy[one]),
                cost=float(other_cost[one]),
                accuracy=float(other_accuracy[one]),
            )
            for one in rising_hull(cost, accuracy).tolist()
        )

    def price(self, policy: KeepPolicy, rows: _Rows, *, held_out: bool) -> PricedPolicy:
        """Return what a policy is worth on rows, with intervals."""
        part = self.signals.take(rows)
        return price_policy(
            policy,
            part.of(policy),
            part.correct,
            self.prices,
            ranks=part.ranks_of(policy),
            held_out=held_out,
            level=self.level,
            rng=self.generator,
        )

    def mean_cost(self, policy: KeepPolicy, rows: _Rows) -> float:
        """Return what a policy costs per row."""
        return self.prices.mean_of(self.signals.take(rows).route(policy))

    def losses(self, policy: KeepPolicy, rows: _Rows) -> tuple[int, int]:
        """Return on how many rows only the last model is right, and on how many only the policy."""
        return self.signals.take(rows).losses(policy)

    def models(self) -> tuple[PlannedModel, ...]:
        """Return the models as the plan keeps them."""
        return tuple(
            PlannedModel(
                name=name,
                cost=cost,
                verifier_cost=check,
                calibration=kind,
                calibrator=found,
                fingerprint=None if fingerprint is None else fingerprint.to_record(),
            )
            for name, cost, check, (kind, found), fingerprint in zip(
                self.runs.names,
                self.prices.models,
                self.prices.verifier,
                self.calibrators,
                self.runs.fingerprints,
                strict=True,
            )
        )


def _halves(texts: Sequence[str | int], generator: np.random.Generator) -> tuple[_Rows, _Rows]:
    """Return the rows of a random half and the others, equal texts together; neither is empty if two differ.

    The draw knows nothing of the hashes that split ties, so that either half has them evenly.
    """
    numbers: dict[str | int, int] = {}
    own = [numbers.setdefault(text, len(numbers)) for text in texts]
    rank = generator.permutation(len(numbers))[own]
    order = np.argsort(rank, kind="stable")
    cut = len(order) // 2
    # The group that the middle falls into goes to the first half, unless nothing would be left.
    while cut < len(order) - 1 and rank[order[cut]] == rank[order[cut - 1]]:
        cut += 1
    return np.sort(order[:cut]), np.sort(order[cut:])


def _calibrator(
    rows: PairedRuns, model: int, generator: np.random.Generator
) -> tuple[str, ConfidenceCalibrator | None]:
    """Return how a model's confidence is calibrated, if that helps."""
    sure = ~np.isnan(rows.confidence[model])
    if not sure.any():
        return "none", None
    labels = rows.labels[model]
    found = select_calibrator(
        rows.confidence[model][sure],
        rows.correct[model][sure],
        predicted=None if labels is None else [labels[row] for row in np.flatnonzero(sure).tolist()],
        rng=generator,
    )
    return found.name, None if found.name == "none" else found.calibrator
