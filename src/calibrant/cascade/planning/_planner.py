"""Cascade planning and replay on recorded runs, without model calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

import numpy as np

from calibrant.calibration._calibrators import ConfidenceCalibrator, select_calibrator
from calibrant.cascade._methods import METHODS
from calibrant.cascade._rules import (
    KeepPolicy,
    KeepRule,
    rule_policy,
    threshold_policy,
)
from calibrant.cascade.automix._frontier import rising_hull
from calibrant.cascade.planning._guarantee import certify_cascade, count_passes, fewest_rows, loss_p_value
from calibrant.cascade.planning._plan import (
    Candidates,
    CascadePlan,
    FrontierPoint,
    Goal,
    PlanCertificate,
    PlannedModel,
    PlanningRows,
    PricedPolicy,
    Prices,
    Signals,
    calibrated,
    candidate_policies,
    price_policy,
)
from calibrant.cascade.planning._recorded import PairedRuns, RunSource, pair_runs
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import as_record
from calibrant.core._prediction import IndexArray, Interval
from calibrant.core._ranks import DEFAULT_KEY, tie_keys, tie_ranks
from calibrant.metrics._intervals import paired_comparison
from calibrant.metrics._validation import RandomSource, check_number

CertifyOn = Literal["all", "half"]
"""Rows that a certified plan is tested on."""

_HUNDREDTHS: Final = {i / 100 for i in range(101)}
# 1, 2 and 5 of the thousandths and less that are missing to 1.
_FINER: Final = {1.0 - i * 10.0**-d for d in range(3, 10) for i in (1, 2, 5)}
_COMMON: Final = sorted(_HUNDREDTHS | _FINER, reverse=True)
# Of a tied block. A step changes the share of every model: by twentieths, plans for three tied models cost 5 % more.
_COMMON_SHARES: Final = tuple(step / 100 for step in range(1, 100))
_ROUNDING: Final = 1e-12  # of sums of costs and accuracies


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
    key: str = DEFAULT_KEY,
    rng: RandomSource = None,
) -> CascadePlan:
    """Plan a cascade from one recorded run per model, with cost, accuracy and certificate.

    A random half of the rows (rows of equal text together) is for planning: calibrators are fitted and
    policies found there. They are priced on the other half, with 95 % intervals. Without a goal the policy is the
    cheapest that is certified: with probability ``1 - delta`` its accuracy is within epsilon of always using the large
    model.

    Parameters
    ----------
    small, large : RunSource
        Runs over the same rows: a `RecordedRun`, any object with ``confidence`` and ``correct``, a pair of these
        two, lines of ``predictions.jsonl``, such a file, or a run directory; see `recorded_run`. Paired by id, text
        or place. Rows that failed with a transport error in any run are left out and counted.
    small_cost, large_cost : float, optional
        Cost of an answer, at least 0 and above 0, in one unit of any kind; by default the mean of the recorded costs.
    epsilon, delta : float in (0, 1), default 0.02 and 0.1
        Accuracy that may be lost against the large model, and probability with which more may be lost.
    target_accuracy : float in [0, 1], optional
        Choose the cheapest policy that reaches it on the planning half.
    budget : float, optional
        Choose the most accurate policy of the planning half that costs no more per row on either half; the best model
        alone within the budget, where that is at least as accurate on the reporting half.
    verifier_cost : float or sequence of float, default 0
        Cost of finding out how sure an answer is; one number, or one for each model (but the last). The confidence of
        a recorded run came with its answers, so by default it costs nothing.
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
    other half. A policy chosen for a target or a budget is tested by itself on the reporting half; for a budget at
    ``delta / 2``, where these rows decided between it and a model alone.

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
    risk = check_number("epsilon", epsilon, "(0, 1)"), check_number("delta", delta, "(0, 1)")
    _check_settings(target_accuracy, budget, certify_on, method)
    middle = [None] * len(between) if between_costs is None else [*between_costs]
    if len(middle) != len(between):
        raise ConfigurationError(
            "Expected one of between_costs (--between-cost) for each model between the first and the last, "
            f"{len(between)}, got {len(middle)}."
        )
    runs = pair_runs([small, *between, large])
    if len(runs) < 2:
        raise DataError(f"Expected at least two rows that all models answered, got {len(runs)}: record more.")
    prices = Prices.of(runs, [small_cost, *middle, large_cost], verifier_cost)
    generator = np.random.default_rng(0 if rng is None else rng)
    planner = _Planner(runs, prices, generator, key=key)
    value = target_accuracy if budget is None else budget
    if value is None:
        policy, certificate, held_out = planner.certified(*risk, certify_on=certify_on)
        return planner.plan("certified", None, policy, certificate, held_out=held_out, method=method)
    if budget is None:
        policy = planner.for_target(float(value))
        tests = 1
    else:
        policy, tests = planner.within_budget(float(value))
    goal: Goal = "target_accuracy" if budget is None else "budget"
    certificate = _certificate(policy, planner.reporting, *risk, method="single test", tests=tests)
    return planner.plan(goal, float(value), policy, certificate, held_out=tests == 1, method=method)


def replay(
    policy: CascadePlan | KeepPolicy | float | Sequence[float],
    *sources: RunSource,
    costs: Sequence[float] | None = None,
    verifier_cost: float | Sequence[float] | None = None,
    rng: RandomSource = None,
) -> PricedPolicy:
    """Return cost and accuracy of a policy on recorded runs, with 95 % intervals; no model is called.

    Parameters
    ----------
    policy : CascadePlan, KeepPolicy, float or sequence of float
        A plan (its calibrators are applied, its prices are the default), a policy, or thresholds on confidence
        as reported: one for each model but the last, or one for all. What splits ties does so by the texts of the
        runs, or by the place of a row whose text is not known.
    *sources : RunSource
        A run of each model over the same rows, from small to large; see `plan_cascade`.
    costs : sequence of float, optional
        Cost of an answer of each model; by default the plan's, else the mean of the recorded costs.
    verifier_cost : float or sequence of float, optional
        Cost of finding out how sure an answer is; by default the plan's, else 0.
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

    Examples
    --------
    >>> from calibrant.cascade import replay
    >>> small, large = ([0.9, 0.4], [1, 0]), ([0.9, 0.9], [1, 1])
    >>> found = replay(0.5, small, large, costs=[1, 50])
    >>> found.accuracy.estimate, found.cost.estimate
    (1.0, 26.0)
    """
    if not sources:
        raise ConfigurationError("Expected a recorded run of each model, got none.")
    runs = pair_runs(sources)
    confidence = runs.confidence
    own_costs: Sequence[float | None] = [None] * len(sources)
    own_checks: float | Sequence[float] = 0.0
    if isinstance(policy, CascadePlan):
        policy.check(runs.fingerprints)
        confidence = policy.confidence(confidence, runs.labels)
        own_costs = policy.prices.models
        own_checks = policy.prices.verifier
        policy = policy.policy
    elif not isinstance(policy, KeepPolicy):
        policy = threshold_policy(policy, len(sources))
    elif policy.calibrated:
        raise ConfigurationError(
            f"The policy {policy.name!r} is about calibrated confidence: hand in its plan, which has the calibrators."
        )
    prices = Prices.of(runs, costs or own_costs, own_checks if verifier_cost is None else verifier_cost)
    ranks = policy.ranks(runs.texts)
    if ranks is None:
        ranks = np.empty((len(policy.rules), len(runs)))
    rows = Signals(raw=confidence, calibrated=confidence, correct=runs.correct, ranks=ranks, keys=())
    return price_policy(policy, rows, prices, held_out=True, rng=rng)


def _check_settings(
    target_accuracy: float | None, budget: float | None, certify_on: str, method: str
) -> None:
    if target_accuracy is not None and budget is not None:
        raise ConfigurationError(
            f"Expected target_accuracy or budget, got both ({target_accuracy!r}, {budget!r}): leave one out."
        )
    if target_accuracy is not None:
        check_number("target_accuracy", target_accuracy, "[0, 1]")
    if budget is not None:
        check_number("budget", budget, "[0, inf)")
    choices = (("certify_on", certify_on, get_args(CertifyOn)), ("method", method, tuple(METHODS)))
    for name, value, allowed in choices:
        if value not in allowed:
            raise ConfigurationError(
                f"Expected {name} to be one of {', '.join(allowed)}, got {value!r}: choose one of them."
            )


class _Planner:
    """State of a planning: halves of the rows, calibrators, prices and candidate policies.

    Calibrators are fitted and candidates found on the planning half, which is `drafting`.
    """

    def __init__(self, runs: PairedRuns, prices: Prices, generator: np.random.Generator, *, key: str) -> None:
        self.runs = runs
        self.prices = prices
        self.generator = generator
        self.last = len(runs.names) - 1
        keys = tie_keys(key, self.last)
        self.halves = _halves(runs.texts, generator)
        drafted, _ = self.halves
        self.calibrators = [_calibrator(runs, drafted, model, generator) for model in range(self.last)]
        self.calibrators.append(("none", None))
        calibrators = [calibrator for _, calibrator in self.calibrators]
        self.rows = Signals(
            raw=runs.confidence,
            calibrated=calibrated(runs.confidence, calibrators, runs.labels),
            correct=runs.correct,
            ranks=np.array([tie_ranks(runs.texts, key=own_key) for own_key in keys]),
            keys=keys,
        )
        self.drafting, self.reporting = map(self.rows.take, self.halves)
        curves = candidate_policies(self.drafting, prices)
        self._places: list[tuple[Candidates, int]] = []
        for kind in curves:
            self._places += [(kind, place) for place in range(len(kind.cost))]
        self._cost = np.concatenate([kind.cost for kind in curves])
        self._accuracy = np.concatenate([kind.accuracy for kind in curves])

    def _policy(self, place: int) -> KeepPolicy:
        """Return the candidate policy at a position of the cost and accuracy curves."""
        kind, own = self._places[place]
        return kind.policy(own)

    def for_target(self, target: float) -> KeepPolicy:
        """Choose the cheapest policy that reaches the target on the planning half."""
        reached = self._accuracy >= target - _ROUNDING
        if not reached.any():
            raise self._out_of_reach("target_accuracy", target)
        cost = np.where(reached, self._cost, np.inf)
        order = np.lexsort((-self._accuracy, cost))
        return self._policy(int(order[0]))

    def within_budget(self, budget: float) -> tuple[KeepPolicy, int]:
        """Choose the most accurate policy for a budget, and return the number of policies compared at the end.

        A choice among thousands of policies flatters the one chosen. So the reporting half decides between it and
        every model alone that the budget pays for; of equals the cheapest is taken.
        """
        most = _just_above(budget)
        if not (self._cost <= most).any():
            raise self._out_of_reach("budget", budget)
        candidates = [KeepPolicy.alone(model) for model in self._affordable_models(budget)]
        policy = self._affordable_policy(most)
        if policy is not None and len(policy.members) > 1:
            candidates.append(policy)
        figures = [self.reporting.figures(candidate, self.prices) for candidate in candidates]
        cost, accuracy = np.transpose(figures)
        order = np.lexsort((cost, -accuracy))
        return candidates[int(order[0])], len(candidates)

    def _affordable_models(self, budget: float) -> list[int]:
        """Return the models whose answers cost no more than a budget."""
        most = _just_above(budget)
        return [model for model, cost in enumerate(self.prices.models) if cost <= most]

    def _affordable_policy(self, most: float) -> KeepPolicy | None:
        """Return the policy of the highest planned accuracy that costs at most `most` on both halves."""
        limit = most
        while (possible := self._cost <= limit).any():
            accuracy = np.where(possible, self._accuracy, -np.inf)
            order = np.lexsort((self._cost, -accuracy))
            place = int(order[0])
            policy = self._policy(place)
            cost, _ = self.reporting.figures(policy, self.prices)
            if cost <= most:
                return policy
            # What costs that much less on the planning half is expected to fit on the other one, too; never the same.
            planned = float(self._cost[place])
            limit = min(planned * most / cost, float(np.nextafter(planned, -np.inf)))
        return None

    def _out_of_reach(self, goal: Goal, value: float) -> ConfigurationError:
        return ConfigurationError(
            f"Expected a {goal} that a policy meets on the planning rows, got {value:g}: the cheapest policy "
            f"costs {self._cost.min():.6g} per row, the most accurate has {self._accuracy.max():.4f}. Raise the "
            "budget, lower the target, or add a better model."
        )

    def frontier(self) -> tuple[FrontierPoint, ...]:
        """Return the frontier of the planning half, with cost and accuracy also on the reporting half."""
        points = []
        for corner in rising_hull(self._cost, self._accuracy).tolist():
            policy = self._policy(corner)
            cost, accuracy = self.reporting.figures(policy, self.prices)
            point = FrontierPoint(
                policy=policy,
                planned_cost=float(self._cost[corner]),
                planned_accuracy=float(self._accuracy[corner]),
                cost=cost,
                accuracy=accuracy,
            )
            points.append(point)
        return tuple(points)

    def plan(
        self,
        goal: Goal,
        value: float | None,
        policy: KeepPolicy,
        certificate: PlanCertificate,
        *,
        held_out: bool,
        method: str,
    ) -> CascadePlan:
        """Return the plan, with the chosen policy and each single model priced on the reporting half."""
        runs = self.runs
        prices = self.prices

        def price(priced: KeepPolicy, *, held_out: bool = True) -> PricedPolicy:
            return price_policy(priced, self.reporting, prices, held_out=held_out, rng=self.generator)

        gain = None if goal != "budget" or value is None else self._gain(policy, value)
        columns = (runs.names, prices.models, prices.verifier, self.calibrators, runs.fingerprints)
        models = [
            PlannedModel(
                name=name,
                cost=cost,
                verifier_cost=check,
                calibration=kind,
                calibrator=calibrator,
                fingerprint=as_record(fingerprint),
            )
            for name, cost, check, (kind, calibrator), fingerprint in zip(*columns, strict=True)
        ]
        drafted, reported = self.halves
        return CascadePlan(
            goal=goal,
            value=value,
            policy=policy,
            certificate=certificate,
            report=price(policy, held_out=held_out),
            gain=gain,
            alone=tuple(price(KeepPolicy.alone(model)) for model in range(self.last + 1)),
            frontier=self.frontier(),
            models=tuple(models),
            rows=PlanningRows(
                given=runs.given,
                paired=len(runs),
                failed=runs.failed,
                unlabelled=runs.unlabelled,
                planning=len(drafted),
                reporting=len(reported),
            ),
            method=method,
            key=self.rows.keys[0],
        )

    def _gain(self, policy: KeepPolicy, budget: float) -> Interval:
        """Return the accuracy of a policy minus that of the best model alone for a budget, on the reporting half."""
        correct = self.reporting.correct[self._affordable_models(budget)]
        best = correct[correct.mean(axis=1).argmax()]
        right = self.reporting.right(self.reporting.route(policy))
        return paired_comparison(best, right).interval

    def certified(
        self, epsilon: float, delta: float, *, certify_on: CertifyOn
    ) -> tuple[KeepPolicy, PlanCertificate, bool]:
        """Return the cheapest certified policy, its certificate, and whether its report is held out."""
        rows = self.rows
        texts = self.runs.texts
        if certify_on == "half":
            rows = self.drafting
            drafted, _ = self.halves
            texts = tuple(texts[row] for row in drafted.tolist())
        sequences = 1 if self.last == 1 else 2  # each tested at its part of the allowed error
        part = delta / sequences
        candidates = [KeepPolicy.alone(self.last)]
        passed: list[KeepPolicy] = []  # on the other half
        if sequences == 1:
            candidates += _certified_rules(rows, texts, epsilon, part)
        else:
            # One by one: the sequence is long, and most of it comes after the first failure.
            for common in _common_policies(rows):
                if not _passing(rows, [common], epsilon, part):
                    break
                candidates[1:] = [common]
            ceiling = self.prices.models[-1]
            corners = [point.policy for point in self.frontier() if point.planned_cost < ceiling]
            passed = _passing(self.reporting, corners[::-1], epsilon, part)
        certified = candidates + passed
        figures = [self.drafting.figures(policy, self.prices) for policy in certified]
        cheapest = int(np.argmin([cost for cost, _ in figures]))
        policy = certified[cheapest]
        tested = rows if cheapest < len(candidates) else self.reporting
        certificate = _certificate(policy, tested, epsilon, delta, method="sequence", tests=sequences)
        return policy, certificate, tested is self.drafting or policy.members == (self.last,)


def _just_above(budget: float) -> float:
    """Return the most that a policy for a budget may cost, which leaves room for rounding."""
    return budget + _ROUNDING * max(1.0, budget)


def _halves(texts: Sequence[str | int], generator: np.random.Generator) -> tuple[IndexArray, IndexArray]:
    """Split the rows at random into two halves; rows of equal texts stay in one half.

    The draw knows nothing of the hashes that split ties, so that either half has them evenly.
    """
    numbers: dict[str | int, int] = {}
    own = [numbers.setdefault(text, len(numbers)) for text in texts]
    rank = generator.permutation(len(numbers))[own]
    order = np.argsort(rank, kind="stable")
    ranked = rank[order]
    cut = len(order) // 2
    # The group that the middle falls into goes to the first half, unless nothing would be left.
    while cut < len(order) - 1 and ranked[cut] == ranked[cut - 1]:
        cut += 1
    return np.sort(order[:cut]), np.sort(order[cut:])


def _calibrator(
    runs: PairedRuns, rows: IndexArray, model: int, generator: np.random.Generator
) -> tuple[str, ConfidenceCalibrator | None]:
    """Return a calibrator of a model's confidence and its name, or None if calibration does not help."""
    sure = rows[~np.isnan(runs.confidence[model, rows])]
    if not len(sure):
        return "none", None
    labels = runs.labels[model]
    selection = select_calibrator(
        runs.confidence[model, sure],
        runs.correct[model, sure],
        predicted=None if labels is None else [labels[row] for row in sure.tolist()],
        rng=generator,
    )
    return selection.name, None if selection.name == "none" else selection.calibrator


def _certificate(
    policy: KeepPolicy,
    rows: Signals,
    epsilon: float,
    delta: float,
    *,
    method: Literal["sequence", "single test"],
    tests: int,
) -> PlanCertificate:
    """Return the certificate of a policy; `tests` is the number of tests that share delta."""
    m, n = rows.correct.shape
    worse, better = rows.losses(policy)
    p_value = 0.0
    if policy.members != (m - 1,):
        p_value = loss_p_value(worse, better, n, epsilon)
    return PlanCertificate(
        holds=method == "sequence" or p_value <= delta / tests,
        epsilon=epsilon,
        delta=delta,
        p_value=p_value,
        loss=(worse - better) / n,
        rows=n,
        method=method,
        fewest_rows=fewest_rows(epsilon, delta / tests),
    )


def _certified_rules(
    rows: Signals, texts: Sequence[str | int], epsilon: float, delta: float
) -> list[KeepPolicy]:
    """Return the certified policies: two models at the highest coverage, the small model if certified."""
    small = rows.raw[0]
    key = rows.keys[0]
    certified = certify_cascade(small, *rows.correct, epsilon=epsilon, delta=delta, inputs=texts, key=key)
    if certified.rule is None:
        return []
    policies = [rule_policy([certified.rule])]
    if certified.threshold is not None and certified.threshold <= np.nanmin(small):
        # All rules passed, so that the sequence goes on to keeping everything.
        policies += _passing(rows, [KeepPolicy.alone(0)], epsilon, delta)
    return policies


def _common_policies(rows: Signals) -> Iterator[KeepPolicy]:
    """Yield policies with common thresholds in a fixed order, with shares of ties where ties exist."""
    for threshold in _COMMON:
        is_tied = (rows.raw[:-1] == threshold).any()
        for share in _COMMON_SHARES if is_tied else ():
            rules = [KeepRule.from_threshold(threshold, tied_share=share, key=key) for key in rows.keys]
            yield rule_policy(rules)
        yield rule_policy([KeepRule.from_threshold(threshold)] * len(rows.keys))


def _passing(rows: Signals, policies: list[KeepPolicy], epsilon: float, delta: float) -> list[KeepPolicy]:
    """Return the policies that pass their test, in the given order, before the first failure."""
    losses = [rows.losses(policy) for policy in policies]
    worse, better = np.array(losses, dtype=np.intp).reshape(-1, 2).T
    n = rows.correct.shape[1]
    passes = count_passes(worse, better, n, epsilon=epsilon, delta=delta)
    return policies[:passes]
