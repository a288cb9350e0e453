"""From recorded runs to a plan, without a single call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.cascade._checks import check_real
from calibrant.cascade._ties import DEFAULT_KEY, check_key
from calibrant.cascade.planning._guarantee import certify_ranked, check_risk, fewest_rows, kept_in_order
from calibrant.cascade.planning._loss_test import loss_p_value
from calibrant.cascade.planning._plan import CascadePlan, Goal, PlanCertificate, PlanningRows
from calibrant.cascade.planning._planning import Planning
from calibrant.cascade.planning._priced import Prices
from calibrant.cascade.planning._recorded import RunSource, pair_runs, recorded_costs, recorded_run
from calibrant.cascade.planning._rules import KeepPolicy, KeepRule, rule_policy
from calibrant.core._errors import ConfigurationError, DataError

CertifyOn = Literal["all", "half"]
"""Which rows a certified plan is tested on."""

_Rows = NDArray[np.intp]

# Hundredths, and 1, 2 and 5 of the thousandths and less that are missing to 1.
_COMMON: Final = sorted(
    {i / 100 for i in range(101)} | {1.0 - i * 10.0**-d for d in range(3, 10) for i in (1, 2, 5)},
    reverse=True,
)
# Of a tied block. A step changes the share of every model: by twentieths, plans for three tied models cost 5 % more.
_COMMON_SHARES: Final = tuple(step / 100 for step in range(1, 100))


def plan_cascade(  # noqa: PLR0913  (keyword-only options)
    small: RunSource,
    large: RunSource,
    *,
    small_cost: float | None = None,
    large_cost: float | None = None,
    epsilon: float = 0.02,
    delta: float = 0.1,
    target_accuracy: float | None = None,
    budget: float | None = None,
    verifier_cost: float | Sequence[float] = 0.0,
    between: Sequence[RunSource] = (),
    between_costs: Sequence[float | None] | None = None,
    certify_on: CertifyOn = "all",
    method: str = "label_probability",
    level: float = 0.95,
    key: str = DEFAULT_KEY,
    rng: np.random.Generator | int | None = None,
) -> CascadePlan:
    """Choose which model answers which row, from one recorded run of each, and say what this is worth.

    A random half of the rows (rows of equal text together) is for planning: calibrators are fitted and
    policies found there. They are priced on the other half. Without a goal the policy is the cheapest that is
    certified: with probability ``1 - delta`` its accuracy is within epsilon of always using the large model.

    Parameters
    ----------
    small, large : RunSource
        Runs over the same rows: a `RecordedRun`, any object with ``confidence`` and ``correct``, a pair of these
        two, lines of ``predictions.jsonl``, such a file, or a run directory; see `recorded_run`. Paired by id, text
        or place. Rows that failed for the server's reasons in any run are left out and counted.
    small_cost, large_cost : float, optional
        Of an answer, at least 0 and above 0, in one unit of any kind; by default the mean of the recorded costs.
    epsilon, delta : float in (0, 1), default 0.02 and 0.1
        Accuracy that may be lost against the large model, and probability with which more may be lost.
    target_accuracy : float in [0, 1], optional
        Choose the cheapest policy that reaches it on the planning half.
    budget : float, optional
        Choose the most accurate policy that costs no more per row on the planning half.
    verifier_cost : float or sequence of float, default 0
        Of finding out how sure an answer is; one number, or one for each model (but the last). The confidence of a
        recorded run came with its answers, so by default it costs nothing.
    between : sequence of RunSource, default none
        Runs of further models, from small to large.
    between_costs : sequence of (float or None), optional
        Their costs.
    certify_on : {"all", "half"}, default "all"
        A threshold on confidence as reported is fitted to nothing, so that its guarantee holds on the very rows it
        was found on, and all of them count; the reporting half, which has its intervals like those of every policy, is
        then among them. With ``"half"`` it is found on the planning half alone, at the price of keeping fewer rows.
    method : str, default "label_probability"
        The confidence method the recorded confidences come from; kept for `CascadePlan.cascade`.
    level : float in (0, 1), default 0.95
        Of the intervals.
    key : str, default "calibrant"
        Orders equally sure answers by a keyed hash of their texts (`RecordedRun.inputs`), so that a policy may keep a
        share of them; see `tie_ranks`. The same text is always decided alike. It is the key of a policy's first
        rule; further rules have keys derived from it, so that each keeps its share of the tied answers that reach it.
    rng : numpy Generator, int or None, default None
        Draws halves, folds and resamples: a source of randomness or its seed; None is seed 0.

    Returns
    -------
    CascadePlan
        Save it with `CascadePlan.save`, carry it out with `CascadePlan.cascade`.

    Raises
    ------
    ConfigurationError
        A setting is out of range or contradicts another; the target or the budget cannot be reached.
    DataError
        The runs are not of the same rows, or fewer than two rows are left.

    Notes
    -----
    With two models the certified rule is that of `certify_cascade`. With more there are two sequences,
    each tested at ``delta / 2``: one threshold for all models, lowered step by step on all rows (what is tied at a step
    is taken in hundredths), and the corners of the planning half's frontier, from the dearest to the cheapest, on the
    other half. A policy chosen for a target or a budget is tested by itself on the reporting half.

    Examples
    --------
    >>> from calibrant.cascade import RecordedRun, plan_cascade
    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.random(2000)
    >>> small = RecordedRun(confidence=confidence, correct=rng.random(2000) < 0.5 + confidence / 2)
    >>> large = RecordedRun(confidence=np.ones(2000), correct=rng.random(2000) < 0.95)
    >>> plan = plan_cascade(small, large, small_cost=1, large_cost=50)
    >>> plan.certified, 0.6 < plan.threshold < 0.9
    (True, True)
    """
    eps, allowed = check_risk(epsilon, delta)
    _check_goal(target_accuracy, budget, certify_on)
    sources = [small, *between, large]
    runs = pair_runs([recorded_run(one, name=f"model {place}") for place, one in enumerate(sources, 1)])
    if len(runs) < 2:
        raise DataError(f"Expected at least two rows that all models answered, got {len(runs)}: record more.")
    given = [small_cost, *(between_costs or [None] * len(between)), large_cost]
    prices = Prices.of(recorded_costs(runs, given), verifier_cost)
    generator = np.random.default_rng(0 if rng is None else rng)
    desk = Planning.open(runs, prices, generator, level=level, key=check_key(key))
    if target_accuracy is None and budget is None:
        found = _certified(desk, eps, allowed, certify_on)
        return _plan(desk, "certified", None, found, method)
    chosen = desk.choose(target=target_accuracy, budget=budget)
    found = chosen, _single_test(desk, chosen, eps, allowed), True
    if budget is not None:
        return _plan(desk, "budget", float(budget), found, method)
    return _plan(desk, "target_accuracy", float(target_accuracy or 0.0), found, method)


def _plan(
    desk: Planning,
    goal: Goal,
    value: float | None,
    found: tuple[KeepPolicy, PlanCertificate, bool],
    method: str,
) -> CascadePlan:
    """Price what was chosen and everything beside it."""
    chosen, certificate, held_out = found
    runs, place = desk.runs, desk.reporting
    alone = [KeepPolicy.alone(model) for model in range(len(runs.names))]
    return CascadePlan(
        goal=goal,
        value=value,
        policy=chosen,
        certificate=certificate,
        report=desk.price(chosen, place, held_out=held_out),
        alone=tuple(desk.price(one, place, held_out=True) for one in alone),
        frontier=desk.frontier(),
        models=desk.models(),
        rows=PlanningRows(
            given=runs.given,
            paired=len(runs),
            failed=runs.failed,
            unlabelled=runs.unlabelled,
            planning=len(desk.planning),
            reporting=len(place),
        ),
        method=method,
        key=desk.signals.keys[0],
    )


def _certified(
    desk: Planning, epsilon: float, delta: float, certify_on: CertifyOn
) -> tuple[KeepPolicy, PlanCertificate, bool]:
    """Return the cheapest certified policy, and whether its report is on rows it was not found on."""
    last = len(desk.runs.names) - 1
    every = desk.planning if certify_on == "half" else np.arange(len(desk.runs))
    found = [(KeepPolicy.alone(last), every)]
    if last == 1:
        found += [(policy, every) for policy in _certified_thresholds(desk, every, epsilon, delta)]
    else:
        # Two sequences, each at half of the allowed error.
        found += [(policy, every) for policy in _certified_common(desk, every, epsilon, delta / 2.0)]
        own = desk.reporting
        found += [(policy, own) for policy in _certified_chains(desk, own, epsilon, delta / 2.0)]
    costs = [desk.mean_cost(policy, desk.planning) for policy, _ in found]
    chosen, rows = found[int(np.argmin(costs))]
    worse, better = desk.losses(chosen, rows)
    certificate = PlanCertificate(
        holds=True,
        epsilon=epsilon,
        delta=delta,
        p_value=0.0 if chosen.members == (last,) else loss_p_value(worse, better, len(rows), epsilon),
        loss=(worse - better) / len(rows),
        rows=len(rows),
        method="sequence",
        fewest_rows=fewest_rows(epsilon, delta if last == 1 else delta / 2.0),
    )
    return chosen, certificate, rows is desk.planning or chosen.members == (last,)


def _certified_thresholds(desk: Planning, rows: _Rows, epsilon: float, delta: float) -> list[KeepPolicy]:
    """Return the certified rule of two models that keeps the most; and the small one alone, where that is certified."""
    part = desk.signals.take(rows)
    small, large = part.correct
    (ranks,), (key,) = part.ranks, part.keys
    found = certify_ranked(part.raw[0], ranks, small, large, epsilon=epsilon, delta=delta, key=key)
    if found.rule is None:
        return []
    policies = [rule_policy([found.rule])]
    if found.threshold is not None and found.threshold <= np.nanmin(part.raw[0]):
        # All rules passed, so that the sequence goes on to keeping everything.
        alone = KeepPolicy.alone(0)
        worse, better = desk.losses(alone, rows)
        passed = kept_in_order(
            [worse], [better], len(rows), epsilon=epsilon, delta=delta, first_is_strict=False
        )
        policies += [alone] * passed
    return policies


def _certified_common(desk: Planning, rows: _Rows, epsilon: float, delta: float) -> list[KeepPolicy]:
    """Return the chain of all models with the lowest certified threshold that is the same for each."""
    found: list[KeepPolicy] = []
    part = desk.signals.take(rows)
    for policy in _common_policies(desk):
        worse, better = part.losses(policy)
        if not kept_in_order(
            [worse], [better], len(rows), epsilon=epsilon, delta=delta, first_is_strict=False
        ):
            break
        found = [policy]
    return found


def _common_policies(desk: Planning) -> Iterator[KeepPolicy]:
    """Yield the policies of a fixed sequence; shares of ties only where there are ties, else they change nothing."""
    confidence, keys = desk.signals.raw[:-1], desk.signals.keys
    for threshold in _COMMON:
        if (confidence == threshold).any():
            for share in _COMMON_SHARES:
                yield rule_policy(
                    [KeepRule.from_threshold(threshold, tied_share=share, key=key) for key in keys]
                )
        yield rule_policy([KeepRule.from_threshold(threshold)] * len(keys))


def _certified_chains(desk: Planning, rows: _Rows, epsilon: float, delta: float) -> list[KeepPolicy]:
    """Return those corners of the planning half's frontier that pass on other rows, the dearest first."""
    ceiling = desk.prices.models[-1]
    found = [point.policy for point in desk.frontier() if point.planned_cost < ceiling][::-1]
    counts = np.array([desk.losses(policy, rows) for policy in found], dtype=np.intp).reshape(-1, 2)
    passed = kept_in_order(
        counts[:, 0], counts[:, 1], len(rows), epsilon=epsilon, delta=delta, first_is_strict=False
    )
    return found[:passed]


def _single_test(desk: Planning, policy: KeepPolicy, epsilon: float, delta: float) -> PlanCertificate:
    """Return what the reporting half says about a policy that was chosen without it."""
    rows = len(desk.reporting)
    worse, better = desk.losses(policy, desk.reporting)
    always_large = policy.members == (len(desk.runs.names) - 1,)
    p_value = 0.0 if always_large else loss_p_value(worse, better, rows, epsilon)
    return PlanCertificate(
        holds=p_value <= delta,
        epsilon=epsilon,
        delta=delta,
        p_value=p_value,
        loss=(worse - better) / rows,
        rows=rows,
        method="single test",
        fewest_rows=fewest_rows(epsilon, delta),
    )


def _check_goal(target_accuracy: float | None, budget: float | None, certify_on: str) -> None:
    if target_accuracy is not None and budget is not None:
        raise ConfigurationError(
            f"Expected target_accuracy or budget, got both ({target_accuracy!r}, {budget!r}): leave one out."
        )
    for name, value, most in (("target_accuracy", target_accuracy, 1.0), ("budget", budget, np.inf)):
        if value is not None:
            check_real(name, value, low=0.0, high=most)
    if certify_on not in get_args(CertifyOn):
        raise ConfigurationError(f"Expected certify_on as one of {get_args(CertifyOn)}, got {certify_on!r}.")
