"""Tests of policies that are priced on recorded rows, against a loop over the rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from calibrant.cascade import KeepPolicy, KeepRule, RecordedRun, replay
from calibrant.core import ConfigurationError


def runs(m: int, n: int, seed: int) -> list[RecordedRun]:
    """Return random runs; some answers have no confidence."""
    rng = np.random.default_rng(seed)
    confidence = rng.random((m, n)).round(1)
    confidence[rng.random((m, n)) < 0.2] = np.nan
    correct = rng.integers(0, 2, (m, n))
    return [RecordedRun(confidence=confidence[one], correct=correct[one]) for one in range(m)]


def by_hand(
    policy: KeepPolicy, recorded: list[RecordedRun], costs: list[float], checks: list[float]
) -> tuple[list[int], list[float], list[float]]:
    """Return who answers each row, whether the answer is right, and its cost, row by row."""
    answered, right, spent = [], [], []
    for row in range(len(recorded[0])):
        cost = 0.0
        for place, member in enumerate(policy.members):
            cost += costs[member]
            last = place == len(policy.members) - 1
            if last:
                break
            cost += checks[member]
            confidence = float(np.asarray(recorded[member].confidence)[row])
            rule = policy.rules[place]
            if math.isnan(confidence):
                continue
            cell = sum(confidence >= edge for edge in rule.edges)
            if rule.keeps[cell]:
                break
        answered.append(member)
        right.append(float(np.asarray(recorded[member].correct)[row]))
        spent.append(cost)
    return answered, right, spent


@st.composite
def policies(draw: st.DrawFn) -> KeepPolicy:
    """Return any policy over three models."""
    members = draw(st.permutations(range(3)))[: draw(st.integers(1, 3))]
    rules = []
    for _ in members[1:]:
        edges = tuple(sorted(draw(st.sets(st.sampled_from([0.1, 0.25, 0.5, 0.7, 1.0]), max_size=3))))
        keeps = draw(st.lists(st.booleans(), min_size=len(edges) + 1, max_size=len(edges) + 1))
        rules.append(KeepRule(edges=edges, keeps=tuple(keeps)))
    return KeepPolicy(name="any", members=tuple(members), rules=tuple(rules))


@given(policy=policies(), seed=st.integers(0, 1000), n=st.integers(1, 30))
def test_a_replay_equals_a_loop_over_the_rows(policy: KeepPolicy, seed: int, n: int) -> None:
    """Accuracy, cost and shares of any policy equal those of a loop over the rows."""
    recorded, costs, checks = runs(3, n, seed), [1.0, 10.0, 50.0], [0.5, 2.0, 4.0]
    found = replay(policy, *recorded, costs=costs, verifier_cost=checks)
    answered, right, spent = by_hand(policy, recorded, costs, checks)
    assert found.accuracy.estimate == pytest.approx(np.mean(right))
    assert found.cost.estimate == pytest.approx(np.mean(spent))
    assert [share.estimate for share in found.shares] == pytest.approx(np.bincount(answered, minlength=3) / n)
    last = np.mean(np.asarray(recorded[-1].correct))
    assert found.difference.estimate == pytest.approx(np.mean(right) - last)
    assert found.cost.lower <= found.cost.estimate + 1e-9
    assert TypeAdapter(KeepPolicy).validate_python(found.to_record()["policy"]) == policy


def test_thresholds_stand_for_a_policy() -> None:
    """A threshold for all models, or one for each but the last, can be replayed."""
    recorded = runs(3, 40, 5)
    given_ = {"costs": [1.0, 2.0, 3.0]}
    one = replay(0.5, *recorded, **given_)
    assert one == replay([0.5], *recorded, **given_) == replay([0.5, 0.5], *recorded, **given_)
    assert replay([0.2, 1.0], *recorded, **given_) != one
    assert replay(0, *recorded, **given_).policy.thresholds == (0.0, 0.0)


def test_a_rule_is_a_meta_verifier() -> None:
    """A rule routes what it does not keep, and NaN."""
    rule = KeepRule(edges=(0.3, 0.6), keeps=(True, False, True))
    assert rule.route([0.0, 0.3, 0.59, 0.6, np.nan]).tolist() == [False, True, True, False, True]
    assert rule.threshold is None
    assert KeepRule.from_threshold(0.4).threshold == 0.4
    assert KeepRule.from_bins([0.0, 0.2, 0.4, 0.6], [False, False, True, True]) == KeepRule.from_threshold(
        0.4
    )


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (1.5, {}),
        ([0.5, 0.5], {}),
        (0.5, {"costs": [1.0]}),
        (0.5, {"costs": [1.0, 0.0]}),
        (0.5, {"verifier_cost": -1.0}),
        (0.5, {"verifier_cost": [1.0, 2.0, 3.0]}),
        (KeepPolicy(name="three", members=(0, 2), rules=(KeepRule.from_threshold(0.5),)), {}),
        (KeepPolicy(name="alone", members=(1,), calibrated=True), {}),
    ],
)
def test_wrong_replay_settings_are_refused(policy: Any, options: dict[str, Any]) -> None:
    """Prices, thresholds or policies that do not fit the runs raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"Expected|calibrat"):
        replay(policy, *runs(2, 10, 0), **{"costs": [1.0, 2.0], **options})


def test_no_runs_are_refused() -> None:
    """A replay without runs raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="got none"):
        replay(0.5)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: KeepRule(edges=(0.5, 0.4), keeps=(True, False, True)),
        lambda: KeepRule(edges=(0.5,), keeps=(True,)),
        lambda: KeepRule(edges=(float("inf"),), keeps=(True, False)),
        lambda: KeepPolicy(name="", members=()),
        lambda: KeepPolicy(name="", members=(0, 0), rules=(KeepRule.from_threshold(0.5),)),
        lambda: KeepPolicy(name="", members=(0, 1)),
    ],
)
def test_senseless_policies_are_refused(bad: Any) -> None:
    """Rules and policies that make no sense raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        bad()
