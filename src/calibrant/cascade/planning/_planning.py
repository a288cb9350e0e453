"""Planning and reporting halves of the rows, with calibrators and candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.calibration._choice import select_calibrator
from calibrant.cascade._ties import tie_keys, tie_ranks
from calibrant.cascade.automix._hull import rising_hull
from calibrant.cascade.planning._candidates import candidate_policies
from calibrant.cascade.planning._plan import FrontierPoint, Goal, PlannedModel, calibrated
from calibrant.cascade.planning._priced import PricedPolicy, Prices, Signals, price_policy
from calibrant.cascade.planning._recorded import PairedRuns
from calibrant.cascade.planning._rules import KeepPolicy
from calibrant.core._errors import ConfigurationError

_Floats = NDArray[np.float64]
_Rows = NDArray[np.intp]
_ROUNDING: Final = 1e-12  # of sums of costs and accuracies


class Planning:
    """Inputs of a plan: both halves of the rows, calibrators, prices and candidates.

    Calibrators are fitted and candidates found on the planning half, which is `drafting`.
    """

    def __init__(self, runs: PairedRuns, prices: Prices, generator: np.random.Generator, *, key: str) -> None:
        self.runs, self.prices, self._generator = runs, prices, generator
        self.halves = _halves(runs.texts, generator)
        keys = tie_keys(key, len(runs.names) - 1)
        fitted = [_calibrator(runs, self.halves[0], one, generator) for one in range(len(runs.names) - 1)]
        self._calibrators = [*fitted, ("none", None)]
        self.rows = Signals(
            raw=runs.confidence,
            calibrated=calibrated(runs.confidence, [found for _, found in self._calibrators], runs.labels),
            correct=runs.correct,
            ranks=np.array([tie_ranks(runs.texts, key=one) for one in keys]),
            keys=keys,
        )
        self.drafting, self.reporting = map(self.rows.take, self.halves)
        self._candidates = candidate_policies(self.drafting, prices)
        self._places = [(kind, place) for kind in self._candidates for place in range(len(kind))]

    def _curve(self, rows: Signals) -> tuple[_Floats, _Floats]:
        """Return cost and accuracy of every candidate on rows."""
        costs, accuracies = zip(*(kind.curve(rows, self.prices) for kind in self._candidates), strict=True)
        return np.concatenate(costs), np.concatenate(accuracies)

    def choose(self, goal: Goal, value: float) -> KeepPolicy:
        """Choose the policy for a budget or a target, on the planning half."""
        cost, accuracy = self._curve(self.drafting)
        if goal == "budget":
            possible = cost <= value + _ROUNDING * max(1.0, value)
            problem = (
                f"Expected a budget of at least {cost.min():.6g} per row, what the cheapest policy costs, got "
                f"{value:g}: raise it."
            )
            order = np.lexsort((cost, -np.where(possible, accuracy, -np.inf)))
        else:
            possible = accuracy >= value - _ROUNDING
            problem = (
                f"Expected a target that a policy reaches, got {value:g}: the most accurate has "
                f"{accuracy.max():.4f} on the planning rows. Lower the target, or add a better model."
            )
            order = np.lexsort((-accuracy, np.where(possible, cost, np.inf)))
        if not possible.any():
            raise ConfigurationError(problem)
        return self._policy(int(order[0]))

    def _policy(self, place: int) -> KeepPolicy:
        """Return the candidate at a position of the curves."""
        kind, own = self._places[place]
        return kind.policy(own)

    def frontier(self) -> tuple[FrontierPoint, ...]:
        """Return the frontier corners of the planning half, also priced on the reporting half."""
        cost, accuracy = self._curve(self.drafting)
        other_cost, other_accuracy = self._curve(self.reporting)
        return tuple(
            FrontierPoint(
                policy=self._policy(corner),
                planned_cost=float(cost[corner]),
                planned_accuracy=float(accuracy[corner]),
                cost=float(other_cost[corner]),
                accuracy=float(other_accuracy[corner]),
            )
            for corner in rising_hull(cost, accuracy).tolist()
        )

    def price(self, policy: KeepPolicy, *, held_out: bool) -> PricedPolicy:
        """Return cost and accuracy of a policy on the reporting half, with intervals."""
        return price_policy(policy, self.reporting, self.prices, held_out=held_out, rng=self._generator)

    def models(self) -> tuple[PlannedModel, ...]:
        """Return the records of the models for the plan."""
        columns = (self.runs.names, self.prices.models, self.prices.verifier, self._calibrators)
        return tuple(
            PlannedModel(
                name=name,
                cost=cost,
                verifier_cost=check,
                calibration=kind,
                calibrator=calibrator,
                fingerprint=None if fingerprint is None else fingerprint.to_record(),
            )
            for name, cost, check, (kind, calibrator), fingerprint in zip(
                *columns, self.runs.fingerprints, strict=True
            )
        )


def _halves(texts: Sequence[str | int], generator: np.random.Generator) -> tuple[_Rows, _Rows]:
    """Split the rows at random into halves, equal texts together; neither is empty if two texts differ.

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
    runs: PairedRuns, rows: _Rows, model: int, generator: np.random.Generator
) -> tuple[str, ConfidenceCalibrator | None]:
    """Return the calibrator of a model's confidence and its name, or None if none helps."""
    sure = rows[~np.isnan(runs.confidence[model, rows])]
    if not len(sure):
        return "none", None
    labels = runs.labels[model]
    found = select_calibrator(
        runs.confidence[model, sure],
        runs.correct[model, sure],
        predicted=None if labels is None else [labels[row] for row in sure.tolist()],
        rng=generator,
    )
    return found.name, None if found.name == "none" else found.calibrator
