"""Cascade plans: policy, cost, accuracy, certificate and models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from calibrant.calibration._calibrators import ConfidenceCalibrator, calibrator_from_record
from calibrant.cascade._rules import KeepPolicy, KeepRule, Route
from calibrant.cascade.automix._frontier import routing_frontier
from calibrant.cascade.automix._meta import POMDPMetaVerifier
from calibrant.cascade.planning._recorded import PairedRuns
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import damaged_record, read_record, write_record
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import FloatArray, IndexArray, Interval, JsonObject, Record
from calibrant.metrics._intervals import bootstrap_interval, paired_comparison, wilson_interval
from calibrant.metrics._validation import RandomSource, check_number

if TYPE_CHECKING:
    from calibrant.cascade._cascade import Cascade
    from calibrant.inference._classifier import Classifier


_RESAMPLES: Final = (200, 10_000)  # fewest and most
_DRAWS: Final = 20_000_000  # rows drawn for an interval whose values do not repeat, about a second
_BINS: Final = 10  # of a confidence that need not be a threshold
_SAMPLES: Final = 8  # steps of confidence that a POMDP observes
_CELLS: Final = 8  # of each of them, for the form that interpolates
_FREE: Final = 1e-12  # what a model is taken to cost that costs nothing
_PRICES: Final = 60  # of accuracy in cost at which longer chains are planned
_LEAST_TIED: Final = 0.05  # share of the rows from which on a block of equal confidences is split
_SHARES: Final = tuple(step / 20 for step in range(1, 20))  # of a tied block that may be kept


_KIND: Final = "cascade plan"
_VERSION: Final = 1
_MAKE: Final = "plan"
_FILE: Final = "plan.json"
_ROUNDING: Final = 1e-9  # of a sum of costs
Goal = Literal["certified", "target_accuracy", "budget"]
_StoredCalibrator = Annotated[
    ConfidenceCalibrator,
    PlainValidator(calibrator_from_record),
    PlainSerializer(lambda calibrator: calibrator.to_record()),
]


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

    raw: FloatArray
    calibrated: FloatArray
    correct: FloatArray
    ranks: FloatArray
    keys: tuple[str, ...]

    def route(self, policy: KeepPolicy) -> Route:
        """Return the route of the rows under a policy."""
        confidence = self.calibrated if policy.calibrated else self.raw
        return policy.follow(confidence, self.ranks[: len(policy.rules)])

    def right(self, route: Route) -> FloatArray:
        """Return the correctness of the answers that a route gives, shape (n,)."""
        given: FloatArray = self.correct[route.answered, np.arange(len(route.answered))]
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
        only_last = (difference == 1.0).sum()
        only_policy = (difference == -1.0).sum()
        return int(only_last), int(only_policy)

    def take(self, rows: IndexArray) -> Signals:
        """Return a subset of the rows."""
        return replace(
            self,
            raw=self.raw[:, rows],
            calibrated=self.calibrated[:, rows],
            correct=self.correct[:, rows],
            ranks=self.ranks[:, rows],
        )


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
        columns = zip(runs.names, costs, runs.cost, strict=True)
        for place, (name, cost, recorded) in enumerate(columns, 1):
            if cost is None and np.isnan(recorded).all():
                raise ConfigurationError(
                    f"Expected the cost of an answer of {name}: its rows do not say, so give one for each such model "
                    "(--small-cost, --between-cost and --large-cost, or --cost of a replay; in Python small_cost, "
                    "between_costs and large_cost, or costs)."
                )
            known = np.nanmean(recorded) if cost is None else cost
            models.append(check_number(f"the cost of model {place}", known, "[0, inf)"))
        if not models[-1]:
            raise ConfigurationError(
                "Expected a large model that costs more than 0: one that costs nothing needs no cascade. Give its "
                "price, its time per row, or 1 for equal costs."
            )
        checked = [check_number("the verifier's cost", check, "[0, inf)") for check in checks]
        free = [0.0] * (n - len(checked))
        return cls(models=tuple(models), verifier=(*checked, *free))

    def under(self, policy: KeepPolicy) -> FloatArray:
        """Return the cost of calling each model under a policy, shape (m,), with verification if used."""
        price = np.array(self.models)
        verified = list(policy.members[:-1])
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

    def to_record(self) -> JsonObject:
        """Return policy and figures as JSON values."""
        record: JsonObject = TypeAdapter(PricedPolicy).dump_python(self, mode="json")
        return record


def price_policy(
    policy: KeepPolicy,
    rows: Signals,
    prices: Prices,
    *,
    held_out: bool,
    rng: RandomSource,
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
    accuracy = wilson_interval(int(right.sum()), n)
    if policy.members == (m - 1,):  # the same answers, on any rows
        difference = Interval(lower=0.0, upper=0.0, level=accuracy.level, estimate=0.0)
    else:
        difference = paired_comparison(rows.correct[-1], right).interval
    cost = prices.under(policy) @ route.asked
    resamples = _RESAMPLES[1]
    if len(np.unique(cost)) * 16 >= n:
        resamples = int(np.clip(_DRAWS // n, *_RESAMPLES))
    answered = np.bincount(route.answered, minlength=m)
    return PricedPolicy(
        policy=policy,
        n=n,
        accuracy=accuracy,
        difference=difference,
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

    cost: FloatArray
    accuracy: FloatArray
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

    candidates = [single(KeepPolicy.alone(model)) for model in range(m)]
    differs = not np.array_equal(rows.raw, rows.calibrated, equal_nan=True)
    for members in combinations(range(m), 2):
        candidates += _of_two(rows, prices, members, calibrated=False)
        if differs:
            candidates += _of_two(rows, prices, members, calibrated=True)
        candidates += map(single, _split(rows, members))
    return [*candidates, *map(single, _chains(rows, prices))]


def _of_two(rows: Signals, prices: Prices, members: tuple[int, int], *, calibrated: bool) -> list[Candidates]:
    """Return two-model candidates by threshold, bins and POMDP, ordered by share of rows escalated."""
    first, last = members
    signals = rows.calibrated if calibrated else rows.raw
    signal = signals[first]
    sure = ~np.isnan(signal)
    if not sure.any():
        return []
    confidence = signal[sure]
    small = rows.correct[first][sure]
    large = rows.correct[last][sure]
    costs: dict[str, Any] = {
        "small_cost": prices.models[first],
        "verifier_cost": prices.verifier[first],
        "large_cost": max(prices.models[last], _FREE),
    }
    candidates = []
    n = len(signal)
    # Answers without a confidence are always escalated.
    n_unsure = n - sure.sum()
    gains = rows.correct[last] - rows.correct[first]
    unsure_gain = gains[~sure].sum()
    kept_cost = prices.models[first] + prices.verifier[first]
    for name, lower, order in _binnings(confidence, small, large, costs):
        bin_of = np.searchsorted(lower[1:], confidence, side="right")
        in_bin = np.bincount(bin_of, minlength=len(lower))
        gain_of_bin = np.bincount(bin_of, weights=large - small, minlength=len(lower))
        routed = np.append(0.0, in_bin[order].cumsum())
        gained = np.append(0.0, gain_of_bin[order].cumsum())
        cost = kept_cost + prices.models[last] * ((routed + n_unsure) / n)
        accuracy = rows.correct[first].mean() + (gained + unsure_gain) / n
        policy = partial(_bin_policy, name, members, lower, order, calibrated)
        candidates.append(Candidates(cost, accuracy, policy))
    return candidates


def _binnings(
    confidence: FloatArray, small: FloatArray, large: FloatArray, costs: dict[str, Any]
) -> Iterator[tuple[str, FloatArray, IndexArray]]:
    """Yield ways to divide confidence into bins: name, lower ends, and bins in the order of escalation."""
    levels = np.unique(confidence)
    yield "threshold", levels, np.arange(len(levels))
    binned = routing_frontier(confidence, small, large, **costs, k=_BINS)
    yield f"{_BINS + 1} bins", binned.bins.values - 0.5 / _BINS, binned.order
    if len(np.unique(small)) == 2:
        # What AutoMix's meta-verifier routes at any price, with confidence as the verifier's score.
        learned = POMDPMetaVerifier(k=_SAMPLES, price=0.0)
        learned.fit(confidence, small, large, **costs)
        steps = _SAMPLES * _CELLS
        lower = np.arange(steps) / steps
        gain = learned.gain(lower + 0.5 / steps)
        yield f"POMDP, {learned.form_}", lower, np.argsort(-gain, kind="stable")


def _bin_policy(
    name: str, members: tuple[int, int], lower: FloatArray, order: IndexArray, calibrated: bool, place: int
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
    tied = levels[count >= _LEAST_TIED * len(first)]
    policies = []
    for level, share in product(tied.tolist(), _SHARES):
        rule = KeepRule.from_threshold(level, tied_share=share, key=rows.keys[0])
        name = f"threshold {rule.describe()}"
        policies.append(KeepPolicy(name=name, members=members, rules=(rule,)))
    return policies


def _chains(rows: Signals, prices: Prices) -> list[KeepPolicy]:
    """Return threshold policies over three or more models, for several weights of cost.

    At every price of accuracy in cost the thresholds are chosen backwards: what comes after a model is to
    it a single large model, whose cost differs from row to row.
    """
    m = len(rows.correct)
    scale = prices.models[-1] + sum(prices.models)
    worth = np.append(0.0, np.geomspace(1e-4, 1.0, _PRICES) / scale)
    chains: list[tuple[int, ...]] = []
    for size in range(m, 2, -1):
        chains += combinations(range(m), size)
    policies: dict[tuple[object, ...], KeepPolicy] = {}
    for price, members in product(worth.tolist(), chains):
        rules = _backwards(rows, prices, members, price)
        if rules is not None:
            shown = ", ".join(rule.describe() for rule in rules)
            policy = KeepPolicy(
                name=f"thresholds {shown} on calibrated confidence",
                members=members,
                rules=tuple(rules),
                calibrated=True,
            )
            policies.setdefault((members, policy.rules), policy)
    return list(policies.values())


def _backwards(rows: Signals, prices: Prices, members: Sequence[int], price: float) -> list[KeepRule] | None:
    """Return the rule of each model but the last; None if a rule would accept no answer."""
    last = members[-1]
    score = rows.correct[last]
    cost = np.full(len(score), prices.models[last])
    rules: list[KeepRule] = []
    for member in members[-2::-1]:
        signal = rows.calibrated[member]
        sure = ~np.isnan(signal)
        levels, own = np.unique(signal[sure], return_inverse=True)
        gain = (score - rows.correct[member] - price * cost)[sure]
        # Worth of routing none, the lowest level, the lowest two, ..., all; the lowest threshold of equals.
        by_level = np.bincount(own, weights=gain, minlength=1)
        routed = int(np.append(0.0, by_level.cumsum()).argmax())
        if routed >= len(levels):
            return None
        rule = KeepRule.from_threshold(levels[routed])
        rules.insert(0, rule)
        kept = rule.accepts(signal)
        score = np.where(kept, rows.correct[member], score)
        asked = prices.models[member] + prices.verifier[member]
        cost = asked + np.where(kept, 0.0, cost)
    return rules


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """One of the models of a plan.

    Attributes
    ----------
    name : str
        Name of its run.
    cost, verifier_cost : float
        Cost of an answer, and of finding out how sure it is.
    calibration : str
        Calibration of its confidence: ``none``, or a method of `select_calibrator`.
    calibrator : ConfidenceCalibrator or None
        Fitted on the planning half; None for the last model, and where nothing was gained.
    fingerprint : mapping or None
        `Fingerprint.to_record` of the run, where it says.
    corrected : bool
        True if `calibrant cascade plan` found a head or a label prior in the run's directory.
    """

    name: str
    cost: float
    verifier_cost: float
    calibration: str = "none"
    calibrator: _StoredCalibrator | None = field(default=None, compare=False)
    fingerprint: Record | None = None
    corrected: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanningRows:
    """Row counts of a plan.

    Attributes
    ----------
    given, paired : int
        Rows of each run; those on which it is known of every model whether it is right.
    failed, unlabelled : int
        Rows left out because a model failed with a transport error; others because it is not known whether an answer
        is right.
    planning, reporting : int
        Paired rows of the half that policies were chosen on, and of the other.
    """

    given: int
    paired: int
    failed: int
    unlabelled: int
    planning: int
    reporting: int


@dataclass(frozen=True, kw_only=True)
class PlanCertificate:
    """Certificate of a policy's loss against always using the last model.

    Attributes
    ----------
    holds : bool
        True where, with probability ``1 - delta``, the policy loses less than epsilon.
    epsilon, delta : float
        As above.
    p_value : float
        Exact, of "it loses epsilon or more", for this policy by itself; 0 for the last model alone.
    loss : float
        Accuracy of the last model minus that of the policy on these rows.
    rows : int
        Rows of the test.
    method : {"sequence", "single test"}
        Thresholds were tested one after the other, from "route everything", on these rows; or one policy that was
        chosen on others.
    fewest_rows : int
        Rows needed where both are right on the same ones; fewer do where the policy is right more often.
    is_refused : bool
        True if earlier certificates of these rows left too little for this one, whatever its own test says.
    """

    holds: bool
    epsilon: float
    delta: float
    p_value: float
    loss: float
    rows: int
    method: Literal["sequence", "single test"]
    fewest_rows: int
    is_refused: bool = False


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """One corner of the cost-accuracy frontier.

    Attributes
    ----------
    policy : KeepPolicy
        Policy of this cost and accuracy.
    planned_cost, planned_accuracy : float
        Per row, on the half it was found on: too good by chance.
    cost, accuracy : float
        On the other half.
    """

    policy: KeepPolicy
    planned_cost: float
    planned_accuracy: float
    cost: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class CascadePlan:
    """Cascade plan: a policy with its figures, certificate and models.

    Attributes
    ----------
    goal : {"certified", "target_accuracy", "budget"}
        Goal the policy was chosen for.
    value : float or None
        The target or the budget.
    policy : KeepPolicy
        The chosen policy.
    certificate : PlanCertificate
        Certificate of its loss.
    report : PricedPolicy
        The policy on the reporting half, with intervals. ``held_out`` is False where it was certified on all rows.
    gain : Interval or None
        Accuracy of the policy minus that of the best model alone within the budget, on the same rows; None without a
        budget.
    alone : tuple of PricedPolicy, one per model
        Every model alone, on the reporting half.
    frontier : tuple of FrontierPoint
        From the cheapest to the most accurate.
    models : tuple of PlannedModel
        In the order of escalation.
    rows : PlanningRows
        Numbers of rows.
    method : str
        The confidence method the recorded confidences come from.
    key : str
        Key of the hash of texts by which equally sure answers are told apart (`tie_ranks`); each rule but the
        first has a key derived from it.

    Examples
    --------
    >>> from calibrant.cascade import RecordedRun, plan_cascade
    >>> small = RecordedRun(confidence=[0.9, 0.6] * 200, correct=[True, False] * 200)
    >>> large = RecordedRun(confidence=[1.0] * 400, correct=[True] * 400)
    >>> plan_cascade(small, large, small_cost=1, large_cost=50).goal
    'certified'
    """

    goal: Goal
    value: float | None
    policy: KeepPolicy
    certificate: PlanCertificate
    report: PricedPolicy
    alone: tuple[PricedPolicy, ...]
    frontier: tuple[FrontierPoint, ...]
    models: tuple[PlannedModel, ...]
    rows: PlanningRows
    method: str = "label_probability"
    key: str
    gain: Interval | None = None

    @property
    def certified(self) -> bool:
        """True if the certificate holds and the policy is not the last model alone."""
        return self.certificate.holds and self.policy.members != (len(self.models) - 1,)

    @property
    def threshold(self) -> float | None:
        """Acceptance threshold of the first model's confidence (calibrated if the policy uses that).

        None where the first model is not asked, its answers are not looked at, or what is kept is no threshold; that
        includes a share of the answers at one, which `tied_share` tells.
        """
        return None if self._first_rule is None else self._first_rule.threshold

    @property
    def tied_confidence(self) -> float | None:
        """Confidence of the first model at which only a share of the answers is accepted.

        None where no tied block is split.
        """
        return None if self._first_rule is None else self._first_rule.tied_confidence

    @property
    def tied_share(self) -> float | None:
        """Share of the answers at `tied_confidence` that is accepted; None if ties are not split."""
        rule = self._first_rule
        if rule is not None and rule.splits:
            return rule.tied_share
        return None

    @property
    def _first_rule(self) -> KeepRule | None:
        is_first = self.policy.members[0] == 0
        if is_first and self.policy.rules:
            return self.policy.rules[0]
        return None

    @property
    def names(self) -> list[str]:
        """Short names of the models."""
        return short_names([model.name for model in self.models])

    @property
    def calibrators(self) -> tuple[ConfidenceCalibrator | None, ...]:
        """Calibrator of each model; None for a policy on reported confidence."""
        return tuple(model.calibrator if self.policy.calibrated else None for model in self.models)

    @property
    def prices(self) -> Prices:
        """Prices of answers and of their verification."""
        return Prices(
            models=tuple(model.cost for model in self.models),
            verifier=tuple(model.verifier_cost for model in self.models),
        )

    def confidence(self, raw: FloatArray, labels: Sequence[Sequence[str] | None] | None = None) -> FloatArray:
        """Return the confidences that the policy compares, given the reported ones, shape (m, n)."""
        if labels is None:
            labels = [None] * len(raw)
        return calibrated(raw, self.calibrators, labels)

    def describe(self) -> list[str]:
        """Describe the plan in sentences: policy, certificate and rows."""
        rows = self.rows
        names = self.names
        policy = self.policy
        causes = {"failed with a transport error in a run": rows.failed, "unlabelled": rows.unlabelled}
        left_out = ", ".join(f"{count:,} {cause}" for cause, count in causes.items() if count)
        end = f" (left out: {left_out})." if left_out else "."
        seen = "the policy was not chosen on"
        if not self.report.held_out:
            seen = "were among those of the certificate"
            if self.goal == "budget":
                seen = "also decided between the policy and one model alone"
        numbers = (
            f"The numbers, with {100 * self.report.accuracy.level:g} % intervals, are from {rows.reporting:,} rows "
            f"that {seen}; {rows.planning:,} others were for planning{end}"
        )
        return [
            _describe_policy(policy, names),
            *(
                f"Of the answers of {names[member]} with confidence {rule.edges[0]:.6g}, {rule.tied_share:.1%} are "
                "kept, chosen by a keyed hash of their texts: the same text is always decided alike."
                for member, rule in zip(policy.members, policy.rules, strict=False)
                if rule.splits
            ),
            *self._describe_budget(),
            self.describe_certificate(),
            numbers,
        ]

    def _describe_budget(self) -> list[str]:
        """Describe the policy for a budget beside the best model alone that the budget allows."""
        if self.goal != "budget" or self.value is None:
            return []
        most = self.value * (1.0 + _ROUNDING)
        affordable = [priced for priced in self.alone if priced.cost.estimate <= most]
        best = max(affordable, key=lambda priced: priced.accuracy.estimate)
        name = self.names[best.policy.members[0]]
        if len(self.policy.members) == 1:
            return [
                f"No cascade for {self.value:g} per row was more accurate on the rows of the figures below."
            ]
        gain = self.gain
        if gain is None:
            return []
        ends = f"{gain.lower:+.4f} to {gain.upper:+.4f}"
        doubt = "" if gain.lower > 0.0 else "; these rows do not show that it is higher"
        best_alone = f"{name} alone, the best single model for {self.value:g} per row"
        return [f"Its accuracy minus that of {best_alone}, is {gain.estimate:+.4f} ({ends}){doubt}."]

    def describe_certificate(self) -> str:
        """Describe the certificate in a sentence, or say that there is none."""
        certificate = self.certificate
        last = self.names[-1]
        chance = f"{1 - certificate.delta:g}"
        promise = f"its accuracy is within {certificate.epsilon:g} of always using {last}, with probability {chance}"
        evidence = f"observed loss {certificate.loss:+.4f}{{}}, exact p = {certificate.p_value:.3g}"
        if self.certified:
            return f"Certified: {promise} ({evidence.format(f' on {certificate.rows:,} rows')})."
        if certificate.is_refused:
            return f"Not certified, as other certificates were asked of these rows before ({evidence.format('')})."
        if not certificate.holds:
            return f"Not certified: {certificate.rows:,} rows do not prove that {promise} ({evidence.format('')})."
        few = ""
        if certificate.rows < certificate.fewest_rows:
            few = f"; where the models agree on every row, {certificate.fewest_rows:,} are needed"
        proof = f"{certificate.rows:,} rows prove no cheaper policy within {certificate.epsilon:g}{few}"
        return f"Nothing certified but {last} alone: {proof}."

    def check(self, fingerprints: Sequence[Fingerprint | None]) -> None:
        """Raise StateError if models differ from those of the plan.

        Parameters
        ----------
        fingerprints : sequence of (Fingerprint or None), one per model
            Of the classifiers or runs, in the plan's order; None is not compared.

        Raises
        ------
        StateError
            A model, prompt, label set or log-probability space is another one; the message names which.
        """
        if len(fingerprints) != len(self.models):
            raise StateError(
                f"Expected {len(self.models)} models, as planned ({', '.join(self.names)}), got "
                f"{len(fingerprints)}: hand in one for each, in that order."
            )
        for place, (model, fingerprint) in enumerate(zip(self.models, fingerprints, strict=True), 1):
            if fingerprint is None or model.fingerprint is None:
                continue
            changed = fingerprint.differences(model.fingerprint)
            if changed:
                raise StateError(
                    f"This plan was made for something else: model {place} ({model.name}) differs in "
                    f"{'; '.join(changed)}. Record a run of it and plan again, or use the plan that belongs to it."
                )

    def cascade(self, classifiers: Sequence[Classifier], **options: object) -> Cascade | Classifier:
        """Return the cascade of the plan, or the classifier if one model answers every row.

        Parameters
        ----------
        classifiers : sequence of Classifier
            One per model of the plan, in its order.
        options
            Of `Cascade`: ``on_error``, limits, journal and the like.

        Raises
        ------
        ConfigurationError
            An option contradicts the plan.
        StateError
            A classifier is not the one that was planned with.
        """
        self.check([classifier.fingerprint() for classifier in classifiers])
        planned = {"threshold", "native_threshold", "meta_verifier", "calibrators", "escalation_order"}
        clash = planned.intersection(options)
        if clash:
            raise ConfigurationError(
                f"Expected options that the plan leaves open, got {sorted(clash)}: leave them out."
            )
        members = self.policy.members
        if len(members) == 1:
            return classifiers[members[0]]
        from calibrant.cascade._cascade import Cascade  # noqa: PLC0415  (not needed to plan)

        given: dict[str, Any] = {"method": self.method, "escalation_order": "declared"}
        if self.policy.thresholds is None:
            given["meta_verifier"] = self.policy.rules
        else:
            given["threshold"] = self.policy.thresholds
        if self.policy.calibrated:
            given["calibrators"] = [self.calibrators[member] for member in members]
        return Cascade([classifiers[member] for member in members], **{**given, **options})

    def to_record(self) -> JsonObject:
        """Return the plan as JSON values."""
        record: JsonObject = TypeAdapter(CascadePlan).dump_python(self, mode="json")
        for name in ("threshold", "tied_confidence", "tied_share", "certified"):  # for readers of the file
            record[name] = getattr(self, name)
        return record

    @classmethod
    def from_record(cls, record: Record) -> CascadePlan:
        """Return the plan from a record of `to_record`; ConfigurationError for a damaged record."""
        try:
            return TypeAdapter(CascadePlan).validate_python(dict(record))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]  # one line, whatever else is wrong
            place = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"Expected the record of a plan, got {place}: {first['msg']}."
            ) from error

    def save(self, path: str | Path) -> None:
        """Write the plan as one JSON file, atomically.

        Raises
        ------
        StateError
            The file cannot be written.
        """
        write_record(path, self.to_record(), kind=_KIND, version=_VERSION)

    @classmethod
    def load(cls, path: str | Path) -> CascadePlan:
        """Load a saved plan; a directory means its ``plan.json``.

        Raises
        ------
        StateError
            The file is missing, damaged, of another kind, or of another version.
        """
        file = Path(path)
        if file.is_dir():
            file /= _FILE
        record = read_record(file, kind=_KIND, version=_VERSION, make=_MAKE)
        try:
            return cls.from_record(record)
        except (AttributeError, ConfigurationError, KeyError, TypeError, ValueError) as error:
            raise damaged_record(file, error, make=_MAKE) from error


def short_names(names: Sequence[str]) -> list[str]:
    """Return the file stems of paths if they are distinct; otherwise the names."""
    short = [Path(name.removesuffix(".jsonl")).name or name for name in names]
    if len(set(short)) == len(short):
        return short
    return list(names)


def _describe_policy(policy: KeepPolicy, names: Sequence[str]) -> str:
    """Describe a policy: the models, and the confidences at which each one answers."""
    asked = [names[member] for member in policy.members]
    if len(asked) == 1:
        return f"{asked[0]} answers every row."
    rule = policy.rules[0]
    if len(asked) > 2 or rule.threshold is not None or rule.splits:
        return f"{' -> '.join(asked)}: {policy.name}."
    confidence = "calibrated confidence" if policy.calibrated else "confidence"
    ranges = "; ".join(_describe_range(*ends) for ends in rule.kept_ranges)
    if not ranges:
        return f"{asked[0]} is asked first, and {asked[1]} answers every row."
    return f"{asked[0]} answers where its {confidence} lies in one of these ranges, {asked[1]} in the others: {ranges}."


def _describe_range(low: float | None, high: float | None) -> str:
    """Describe a range of confidence that begins with `low` and ends before `high`."""
    if low is None:
        return f"below {high:.4g}"
    return f"{low:.4g} and above" if high is None else f"{low:.4g} to below {high:.4g}"


def calibrated(
    raw: FloatArray,
    calibrators: Sequence[ConfidenceCalibrator | None],
    labels: Sequence[Sequence[str] | None],
) -> FloatArray:
    """Return calibrated confidences, shape (m, n); NaN stays NaN."""
    result = raw.copy()
    for own, calibrator, predicted in zip(result, calibrators, labels, strict=True):
        sure = np.flatnonzero(~np.isnan(own))
        if calibrator is not None and len(sure):
            names = None
            if predicted is not None:
                names = [predicted[row] for row in sure.tolist()]
            own[sure] = calibrator.predict(own[sure], predicted=names)
    return result
