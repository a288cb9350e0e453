"""What a policy would have cost on recorded runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.cascade.planning._plan import CascadePlan
from calibrant.cascade.planning._priced import PricedPolicy, Prices, price_policy
from calibrant.cascade.planning._recorded import RunSource, pair_runs, recorded_costs, recorded_run
from calibrant.cascade.planning._rules import KeepPolicy, threshold_policy
from calibrant.core._errors import ConfigurationError


def replay(
    policy: CascadePlan | KeepPolicy | float | Sequence[float],
    *sources: RunSource,
    costs: Sequence[float] | None = None,
    verifier_cost: float | Sequence[float] | None = None,
    level: float = 0.95,
    rng: np.random.Generator | int | None = None,
) -> PricedPolicy:
    """Return what a policy costs and how good it is on recorded runs; no model is asked.

    Parameters
    ----------
    policy : CascadePlan, KeepPolicy, float or sequence of float
        A plan (its calibrators are applied, its prices are the default), a policy, or thresholds on confidence
        as reported: one for each model but the last, or one for all. What splits ties does so by the texts of the
        runs, or by the place of a row whose text is not known.
    *sources : RunSource
        A run of each model over the same rows, from small to large; see `plan_cascade`.
    costs : sequence of float, optional
        Of an answer of each model; by default the plan's, else the mean of the recorded costs.
    verifier_cost : float or sequence of float, optional
        Of finding out how sure an answer is; by default the plan's, else 0.
    level : float in (0, 1), default 0.95
        Of the intervals.
    rng : numpy Generator, int or None, default None
        Of the bootstrap; None is seed 0.

    Raises
    ------
    ConfigurationError
        A setting is out of range, or a policy needs calibrators that only its plan has.
    DataError
        The runs are not of the same rows.
    StateError
        The runs are of other models than the plan's, or recorded under other prompts.
    """
    if not sources:
        raise ConfigurationError("Expected a recorded run of each model, got none.")
    runs = pair_runs([recorded_run(one, name=f"model {place}") for place, one in enumerate(sources, 1)])
    confidence, given = runs.confidence, costs
    checks = 0.0 if verifier_cost is None else verifier_cost
    if isinstance(policy, CascadePlan):
        policy.check(runs.fingerprints)
        confidence, taken = policy.confidence(runs.confidence, runs.labels), policy.policy
        given = policy.prices.models if costs is None else costs
        checks = policy.prices.verifier if verifier_cost is None else verifier_cost
    elif isinstance(policy, KeepPolicy):
        if policy.calibrated:
            raise ConfigurationError(
                f"The policy {policy.name!r} is about calibrated confidence: hand in its plan, which has the "
                "calibrators."
            )
        taken = policy
    else:
        taken = threshold_policy(policy, len(sources))
    prices = Prices.of(recorded_costs(runs, given or [None] * len(sources)), checks)
    ranks = taken.ranks(runs.texts)
    return price_policy(
        taken, confidence, runs.correct, prices, ranks=ranks, held_out=True, level=level, rng=rng
    )
