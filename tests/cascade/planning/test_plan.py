"""Tests of plans: their choice, certificate and figures, and the models they belong to."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.cascade import CascadePlan, Prices, RecordedRun, certify_cascade, plan_cascade, replay
from calibrant.cascade.planning._plan import Signals, candidate_policies
from calibrant.core import (
    CalibrantError,
    ConfigurationError,
    DataError,
    Fingerprint,
    LogprobSpace,
    StateError,
)
from tied import tie_ranks

COSTS = {"small_cost": 1.0, "large_cost": 50.0}
LABELS = ("cat", "dog")


def fingerprint(model: str, prompt: str = "Which animal?") -> Fingerprint:
    """Return the fingerprint of a recorded run."""
    return Fingerprint(prompt=prompt, model=model, space=LogprobSpace.MASKED, labels=LABELS)


def recorded(n: int = 600, seed: int = 0, **changes: Any) -> tuple[RecordedRun, RecordedRun]:
    """Return a small model that knows when it is right, and a large one."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(n) ** 0.4
    small = rng.random(n) < 0.3 + 0.68 * confidence
    large = rng.random(n) < 0.95
    rest = {"ids": range(n), "inputs": [f"text {row}" for row in range(n)], **changes}
    return (
        RecordedRun(
            confidence=confidence, correct=small, name="small", fingerprint=fingerprint("small"), **rest
        ),
        RecordedRun(
            confidence=rng.random(n), correct=large, name="large", fingerprint=fingerprint("large"), **rest
        ),
    )


def test_the_default_is_the_certified_threshold() -> None:
    """Without a goal a plan has threshold, loss and p-value of `certify_cascade` on all rows."""
    small, large = recorded()
    plan = plan_cascade(small, large, **COSTS, epsilon=0.05)
    expected = certify_cascade(small.confidence, small.correct, large.correct, epsilon=0.05)
    assert plan.goal == "certified"
    assert plan.certified
    assert plan.threshold == expected.threshold
    lost = expected.only_large - expected.only_small
    assert (expected.only_large, expected.only_small) == (40, 21)
    assert plan.certificate.p_value == pytest.approx(0.0896447937)  # of 40 lost and 21 won rows of 600
    assert plan.certificate.loss == pytest.approx(lost / 600)
    assert (plan.certificate.rows, plan.certificate.method) == (600, "sequence")
    assert not plan.report.held_out


def test_halves_may_certify_and_report() -> None:
    """With ``certify_on="half"`` the plan is reported on rows that nothing was chosen on."""
    plan = plan_cascade(*recorded(), **COSTS, epsilon=0.05, certify_on="half")
    assert (plan.certificate.rows, plan.report.n, plan.report.held_out) == (300, 300, True)


def brute_force(signals: Signals, prices: Prices) -> list[tuple[float, float]]:
    """Return cost and accuracy of both models and of every threshold, by loops."""
    small, large = signals.correct
    found = [(prices.models[0], float(small.mean())), (prices.models[1], float(large.mean()))]
    for threshold in [*np.unique(signals.raw[0]).tolist(), 2.0]:
        keeps = signals.raw[0] >= threshold
        cost = prices.models[0] + prices.verifier[0] + prices.models[1] * float((~keeps).mean())
        found.append((cost, float(np.where(keeps, small, large).mean())))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_candidates_include_every_threshold(seed: int) -> None:
    """Every model alone and every threshold is a candidate, at the cost and accuracy that a loop finds."""
    rng = np.random.default_rng(seed)
    n = 40
    raw = rng.random((2, n)).round(1)
    correct = rng.integers(0, 2, (2, n)).astype(float)
    signals = Signals(
        raw=raw, calibrated=raw, correct=correct, ranks=tie_ranks(range(n))[None], keys=("calibrant",)
    )
    prices = Prices(models=(1.0, 7.0), verifier=(0.5, 0.5))
    points = {
        (round(float(cost), 9), round(float(right), 9))
        for kind in candidate_policies(signals, prices)
        for cost, right in zip(kind.cost, kind.accuracy, strict=True)
    }
    assert {(round(cost, 9), round(right, 9)) for cost, right in brute_force(signals, prices)} <= points


@pytest.mark.parametrize("seed", range(4))
def test_candidates_cost_what_their_policies_cost(seed: int) -> None:
    """Three models, some of whose answers have no confidence, are priced as the routes of their rows say."""
    rng = np.random.default_rng(seed)

    def signals(n: int) -> Signals:
        raw = rng.random((3, n)).round(2)
        raw[rng.random((3, n)) < 0.1] = np.nan
        raw[raw > 0.8] = 1.0
        correct = rng.integers(0, 2, (3, n)).astype(float)
        ranks = np.array([tie_ranks(range(n), key=key) for key in ("one", "two")])
        return Signals(raw=raw, calibrated=raw**2, correct=correct, ranks=ranks, keys=("one", "two"))

    prices = Prices(models=(1.0, 5.0, 50.0), verifier=(0.1, 0.2, 0.0))
    other = signals(60)
    for kind in candidate_policies(other, prices):
        for place in {0, len(kind.cost) // 2, len(kind.cost) - 1}:
            policy = kind.policy(place)
            confidence = other.calibrated if policy.calibrated else other.raw
            route = policy.follow(confidence, policy.ranks(range(60)))
            right = other.correct[route.answered, np.arange(60)].mean()
            verified = sum(prices.verifier[one] * route.asked[one] for one in policy.members[:-1])
            cost = (route.asked.T @ prices.models + verified).mean()
            assert kind.accuracy[place] == pytest.approx(right)
            assert kind.cost[place] == pytest.approx(cost)


def test_a_budget_buys_the_best_policy() -> None:
    """A budget takes the most accurate policy it pays for on the planning half, and reports on the other."""
    plan = plan_cascade(*recorded(), **COSTS, budget=20.0)
    affordable = [point for point in plan.frontier if point.planned_cost <= 20.0]
    assert plan.goal == "budget"
    assert plan.report.n == plan.rows.reporting
    assert plan.report.cost.estimate <= 20.0
    assert plan.report.accuracy.estimate > affordable[0].accuracy
    assert plan.certificate.method == "single test"
    assert plan.certificate.rows == plan.rows.reporting


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [2.0, 5.0, 20.0, 50.0])
def test_a_budget_is_kept_and_no_model_alone_is_better(seed: int, budget: float) -> None:
    """On few rows a plan costs at most its budget, and no model that the budget pays for is more accurate."""
    plan = plan_cascade(*recorded(120, seed), **COSTS, budget=budget, rng=seed)
    assert plan.report.cost.estimate <= budget
    affordable = [one for one in plan.alone if one.cost.estimate <= budget]
    best = max(one.accuracy.estimate for one in affordable)
    assert plan.report.accuracy.estimate >= best
    assert plan.gain is not None
    assert plan.gain.estimate == pytest.approx(plan.report.accuracy.estimate - best)
    text = " ".join(plan.describe())
    if len(plan.policy.members) == 1:
        assert f"No cascade for {budget:g} per row was more accurate" in text
    else:
        assert "the best single model for" in text
        assert ("do not show that it is higher" in text) is (plan.gain.lower <= 0.0)
        assert "also decided between the policy and one model alone" in text


def test_a_free_small_model_keeps_a_budget_of_nothing() -> None:
    """With a budget of 0 and a small model that costs nothing, that model answers every row."""
    small, large = recorded(200)
    plan = plan_cascade(small, large, small_cost=0.0, large_cost=50.0, budget=0.0)
    assert (plan.policy.members, plan.report.cost.estimate) == ((0,), 0.0)
    text = " ".join(plan.describe())
    assert "small answers every row." in text
    assert "No cascade for 0 per row was more accurate" in text


def test_policies_by_ranges_name_their_ranges() -> None:
    """A policy that keeps some ranges of confidence says who answers where."""
    rng = np.random.default_rng(0)
    confidence = rng.random(2000)
    odd = (confidence < 0.3) | (confidence > 0.6)
    small = RecordedRun(
        confidence=confidence, correct=rng.random(2000) < np.where(odd, 0.99, 0.2), name="small"
    )
    large = RecordedRun(confidence=np.ones(2000), correct=rng.random(2000) < 0.9, name="large")
    first = plan_cascade(small, large, small_cost=1, large_cost=2, budget=1.6).describe()[0]
    assert re.fullmatch(
        r"small answers where its (calibrated )?confidence lies in one of these ranges, large in the others: "
        r"below 0\.\d+; 0\.\d+ and above\.",
        first,
    ), first


def test_a_target_is_reached_at_the_least_cost() -> None:
    """A higher target costs more, and an unreachable target or budget raises ConfigurationError."""
    small, large = recorded(2000)
    cheap, dear = (plan_cascade(small, large, **COSTS, target_accuracy=target) for target in (0.85, 0.93))
    assert cheap.report.cost.estimate < dear.report.cost.estimate
    assert cheap.report.accuracy.estimate > 0.8
    with pytest.raises(ConfigurationError, match=r"most accurate has .*lower the\s+target"):
        plan_cascade(small, large, **COSTS, target_accuracy=1.0)
    with pytest.raises(ConfigurationError, match="cheapest policy costs"):
        plan_cascade(small, large, **COSTS, budget=0.5)


def test_the_frontier_rises_and_holds_both_ends() -> None:
    """The frontier rises from the small model to the most accurate policy."""
    plan = plan_cascade(*recorded(), **COSTS)
    costs = [point.planned_cost for point in plan.frontier]
    right = [point.planned_accuracy for point in plan.frontier]
    assert costs == sorted(costs)
    assert right == sorted(right)
    assert plan.frontier[0].policy.members == (0,)
    alone = plan.alone[0]
    assert alone.cost.estimate == 1.0
    assert plan.frontier[0].accuracy == pytest.approx(alone.accuracy.estimate)


def test_equal_texts_stay_in_one_half() -> None:
    """The same seed gives the same plan, and rows of equal text are in one half."""
    small, large = recorded()
    assert plan_cascade(small, large, **COSTS, rng=3) == plan_cascade(small, large, **COSTS, rng=3)
    texts = ["a"] * 400 + ["b"] * 200
    found = plan_cascade(*recorded(inputs=texts), **COSTS)
    assert {found.rows.planning, found.rows.reporting} == {200, 400}


def test_useless_small_models_are_left_out() -> None:
    """A small model that is always wrong leaves a plan with the large model alone."""
    n = 500
    small = RecordedRun(confidence=np.ones(n), correct=np.zeros(n))
    large = RecordedRun(confidence=np.ones(n), correct=np.ones(n))
    plan = plan_cascade(small, large, **COSTS)
    assert (plan.policy.members, plan.threshold, plan.certified) == ((1,), None, False)
    assert plan.certificate.holds
    assert plan.report.cost.estimate == 50.0


@pytest.mark.parametrize(("small_right", "large_right"), [(1, 1), (0, 0), (1, 0)])
def test_equal_models_stay_with_the_small_one(small_right: int, large_right: int) -> None:
    """Rows stay with a small model that is never worse than the large one."""
    n = 400
    small = RecordedRun(confidence=np.full(n, 0.8), correct=np.full(n, small_right))
    large = RecordedRun(confidence=np.full(n, 0.8), correct=np.full(n, large_right))
    plan = plan_cascade(small, large, **COSTS, verifier_cost=2.0)
    assert plan.certified
    assert plan.policy.members == (0,)  # nobody needs to look at its answers
    assert plan.report.cost.estimate == 1.0
    free = plan_cascade(small, large, **COSTS)
    assert free.threshold == pytest.approx(0.8)


def test_equal_and_zero_costs_are_allowed() -> None:
    """A small model of equal cost is left out; a free large model raises ConfigurationError."""
    small, large = recorded()
    equal = plan_cascade(small, large, small_cost=1, large_cost=1, epsilon=0.05)
    assert equal.policy.members == (1,)
    free = plan_cascade(small, large, small_cost=0, large_cost=1, epsilon=0.05)
    assert free.policy.members == (0, 1)
    with pytest.raises(ConfigurationError, match="more than 0"):
        plan_cascade(small, large, small_cost=1, large_cost=0)


def test_recorded_costs_are_the_default() -> None:
    """The costs of a plan are the recorded ones, and without any ConfigurationError is raised."""
    small, large = recorded(cost=np.full(600, 0.25))
    assert [model.cost for model in plan_cascade(small, large).models] == [0.25, 0.25]
    with pytest.raises(ConfigurationError, match="cost of an answer of small"):
        plan_cascade(*recorded())


def test_two_rows_are_enough_for_a_plan() -> None:
    """Two rows make a plan without a certificate, and fewer raise an error."""
    two = RecordedRun(confidence=[0.5, 0.9], correct=[1, 0])
    plan = plan_cascade(two, two, **COSTS)
    assert (plan.certified, plan.policy.members) == (False, (1,))
    assert plan.certificate.fewest_rows > 100
    one = RecordedRun(confidence=[0.5], correct=[1])
    with pytest.raises(DataError, match="at least two rows"):
        plan_cascade(one, one, **COSTS)
    with pytest.raises(CalibrantError, match="at least one row"):
        plan_cascade(RecordedRun(confidence=[], correct=[]), one, **COSTS)


def test_answers_without_confidence_are_passed_on() -> None:
    """The small model's answers without a confidence go to the large model."""
    small, large = recorded()
    confidence = np.array(small.confidence)
    confidence[:100] = np.nan
    plan = plan_cascade(replace(small, confidence=confidence), large, **COSTS, epsilon=0.05)
    assert plan.certified
    priced = replay(plan, replace(small, confidence=np.full(600, np.nan)), large)
    assert priced.share_small.estimate == 0.0
    none = plan_cascade(replace(small, confidence=np.full(600, np.nan)), large, **COSTS)
    assert none.policy.members == (1,)


@pytest.mark.parametrize("goal", [{}, {"budget": 20.0}, {"target_accuracy": 0.9}])
def test_a_plan_comes_back_from_its_file(tmp_path: Path, goal: dict[str, float]) -> None:
    """A loaded plan is equal to the saved one, and prices other rows alike."""
    small, large = recorded(labels=["cat"] * 600)
    plan = plan_cascade(small, large, **COSTS, verifier_cost=0.5, **goal)
    plan.save(tmp_path / "plan.json")
    for path in (tmp_path / "plan.json", tmp_path, str(tmp_path)):
        found = CascadePlan.load(path)
        assert found == plan
        other = recorded(seed=5, labels=["cat"] * 600)
        assert replay(found, *other) == replay(plan, *other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ("[]", "expected a cascade plan"),
        ('{"kind": "calibration"}', "expected a cascade plan"),
        ('{"kind": "cascade plan", "version": 99}', "version 1"),
        ('{"kind": "cascade plan", "version": 1}', "damaged"),
    ],
)
def test_files_that_hold_no_plan_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """A file that holds no plan raises StateError with the fault."""
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(StateError, match=message):
        CascadePlan.load(tmp_path)
    with pytest.raises(StateError, match="cannot be read"):
        CascadePlan.load(tmp_path / "nowhere.json")


def test_a_damaged_plan_is_refused_in_one_line(tmp_path: Path) -> None:
    """A damaged plan raises StateError with the first wrong entry in one line."""
    plan_cascade(*recorded(), **COSTS, epsilon=0.05).save(tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text())
    falling = {**record["policy"], "rules": [{"edges": [0.9, 0.1], "keeps": [True, False, True]}]}
    damages = {r"policy\.rules": {"policy": falling}, "goal": {"goal": "x"}, r"rows\.given": {"rows": {}}}
    for named, damage in damages.items():
        (tmp_path / "plan.json").write_text(json.dumps({**record, **damage}))
        with pytest.raises(StateError, match=rf"^[^\n]*damaged [^\n]*{named}[^\n]*$"):
            CascadePlan.load(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (fingerprint("other"), "model 1 .small. differs in model"),
        (fingerprint("small", "Quite another prompt."), "differs in prompt"),
        (replace(fingerprint("small"), labels=("cat", "cow")), "label set"),
        (replace(fingerprint("small"), space=LogprobSpace.RAW), "space"),
    ],
)
def test_a_plan_refuses_other_models(changed: Fingerprint, message: str) -> None:
    """Another model, prompt, label set or space raises StateError that names it."""
    small, large = recorded()
    plan = plan_cascade(small, large, **COSTS)
    plan.check([fingerprint("small"), fingerprint("large")])
    plan.check([None, None])
    with pytest.raises(StateError, match=message):
        plan.check([changed, fingerprint("large")])
    with pytest.raises(StateError, match=message):
        replay(plan, replace(small, fingerprint=changed), large)
    with pytest.raises(StateError, match="Expected 2 models"):
        plan.check([None])


def test_three_models_are_chained_where_that_pays() -> None:
    """A certified chain of three models costs less than the best pair."""
    rng = np.random.default_rng(7)
    n = 3000
    hard = rng.random(n)
    confidence = [np.clip(1 - hard + rng.normal(0, 0.05, n), 0, 1) for _ in range(3)]
    small, medium, large = (
        RecordedRun(confidence=confidence[one], correct=hard < skill)
        for one, skill in enumerate((0.5, 0.8, 0.97))
    )
    plan = plan_cascade(small, large, between=[medium], between_costs=[10.0], **COSTS)
    assert plan.certified
    assert plan.policy.members == (0, 1, 2)
    assert plan.report.cost.estimate < 25
    assert plan.certificate.loss <= 0.02
    assert len(plan.alone) == len(plan.models) == 3
    two = plan_cascade(small, large, **COSTS)
    assert plan.report.cost.estimate < two.report.cost.estimate
    with pytest.raises(ConfigurationError, match="between the first and the last, 1, got 2"):
        plan_cascade(small, large, between=[medium], between_costs=[1.0, 2.0], **COSTS)


def test_large_runs_are_planned_whole() -> None:
    """A plan of 100,000 rows accounts for all of them and splits the block that it can keep in part."""
    rng = np.random.default_rng(0)
    n = 100_000
    confidence = rng.integers(0, 9, n) / 8
    small = RecordedRun(confidence=confidence, correct=rng.random(n) < confidence)
    large = RecordedRun(confidence=np.ones(n), correct=rng.random(n) < 0.95)
    plan = plan_cascade(small, large, **COSTS)
    assert plan.rows.planning + plan.rows.reporting == n
    # 0.95 - 0.875 and -0.05 on a ninth of the rows each; all of 0.75 would lose 0.025.
    assert (plan.threshold, plan.tied_confidence) == (None, 0.75)
    assert 0.6 < plan.tied_share < 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_accuracy": 0.9, "budget": 5.0}, "got both"),
        ({"target_accuracy": 1.5}, "target_accuracy"),
        ({"budget": float("nan")}, "budget"),
        ({"budget": ""}, "budget to be a number"),
        ({"target_accuracy": False}, "target_accuracy to be a number"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"certify_on": "most"}, "certify_on to be one of all, half"),
        ({"method": "guess"}, "method to be one of"),
        ({"small_cost": -1.0}, "cost of model 1"),
        ({"large_cost": float("inf")}, "cost of model 2"),
        ({"verifier_cost": True}, "verifier"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    """A setting that is out of range, or contradicts another, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        plan_cascade(*recorded(60), **{**COSTS, **options})


def test_ties_go_to_the_cheapest_policy() -> None:
    """Of equally accurate policies the cheapest is taken under any budget."""
    run = RecordedRun(confidence=np.full(60, 0.8), correct=np.ones(60))
    plan = plan_cascade(run, run, **COSTS, verifier_cost=1.0, budget=1000.0)
    assert plan.policy.members == (0,)


def test_budget_policies_are_tested_on_held_out_rows() -> None:
    """A policy for a budget that fails the test on the other half is not certified."""
    rng = np.random.default_rng(0)
    small = RecordedRun(confidence=np.full(1000, 0.7), correct=rng.random(1000) < 0.7)
    large = RecordedRun(confidence=np.full(1000, 0.7), correct=rng.random(1000) < 0.95)
    plan = plan_cascade(small, large, **COSTS, budget=1.0)
    assert (plan.certified, plan.certificate.holds) == (False, False)
    assert plan.certificate.p_value > 0.9
    assert plan.certificate.loss == pytest.approx(-plan.report.difference.estimate)


def test_two_sequences_share_the_allowed_error() -> None:
    """130 equal rows are enough for one sequence of tests and too few for two."""
    run = RecordedRun(confidence=np.full(130, 0.9), correct=np.ones(130))
    assert plan_cascade(run, run, **COSTS).certified
    chained = plan_cascade(run, run, between=[run], between_costs=[5.0], **COSTS)
    assert not chained.certified
    assert chained.certificate.fewest_rows > 130


def test_calibrated_rules_use_calibrators() -> None:
    """Only rules on calibrated confidence apply the plan's calibrators."""
    rng = np.random.default_rng(0)
    confidence = rng.random(2000)
    small = RecordedRun(confidence=confidence, correct=rng.random(2000) < confidence**3)
    large = RecordedRun(confidence=np.ones(2000), correct=rng.random(2000) < 0.95)
    plan = plan_cascade(small, large, **COSTS, epsilon=0.05)
    calibrator = plan.models[0].calibrator
    assert calibrator is not None
    raw = np.array([[0.2, np.nan, 0.9], [1.0, 1.0, 1.0]])
    assert plan.confidence(raw) is not raw
    np.testing.assert_array_equal(plan.confidence(raw), raw)
    on_calibrated = replace(plan, policy=replace(plan.policy, calibrated=True))
    expected = calibrator.predict([0.2, 0.9])
    np.testing.assert_allclose(on_calibrated.confidence(raw)[0, [0, 2]], expected)
    assert np.isnan(on_calibrated.confidence(raw)[0, 1])
    assert expected[1] < 0.8


def test_the_last_model_has_no_difference() -> None:
    """The difference of the last model from itself is exactly 0."""
    plan = plan_cascade((P, Y), (P, Y), small_cost=1, large_cost=2)
    found = plan.alone[-1].difference
    assert (found.lower, found.estimate, found.upper) == (0.0, 0.0, 0.0)


def test_numpy_settings_are_accepted(tmp_path: Path) -> None:
    """Settings of NumPy's types are planned with and saved."""
    costs = {"small_cost": np.int64(1), "large_cost": np.float32(2.0), "verifier_cost": np.int64(0)}
    plan = plan_cascade((P, Y), (P, Y), budget=np.int64(2), epsilon=np.float32(0.25), **costs)
    path = tmp_path / "plan.json"
    plan.save(path)
    assert CascadePlan.load(path).to_record() == plan.to_record()
    again = plan_cascade((P, Y), (P, Y), target_accuracy=np.float32(0.5), **costs)
    again.save(path)
    assert CascadePlan.load(path).value == 0.5


P, Y = np.linspace(0.0, 1.0, 200), np.arange(200) % 2
