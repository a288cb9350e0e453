"""Tests of ties: equal confidences are split by a keyed hash of the texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.cascade import (
    CascadePlan,
    KeepPolicy,
    KeepRule,
    RecordedRun,
    certify_cascade,
    plan_cascade,
    replay,
)
from calibrant.core import ConfigurationError, StateError
from tied import tie_ranks

N = 1000
COSTS = {"small_cost": 1.0, "large_cost": 50.0}
TEXTS = [f"text {row}" for row in range(N)]
CONFIDENCE = np.repeat([1.0, 0.5], [700, 300])
RIGHT = np.arange(N) % 10 != 0  # a tenth is wrong, of the surest answers, too


def recorded(**changes: Any) -> tuple[RecordedRun, RecordedRun]:
    """Return a small model whose surest answers are tied, and one that is always right."""
    small = {"confidence": CONFIDENCE, "correct": RIGHT, "inputs": TEXTS, "name": "small", **changes}
    large = {**small, "confidence": np.ones(N), "correct": np.ones(N), "name": "large"}
    return RecordedRun(**small), RecordedRun(**large)


def planned(**options: Any) -> CascadePlan:
    """Return a plan that may lose 0.05, where the block at 1 loses 0.07."""
    return plan_cascade(*recorded(), **COSTS, epsilon=0.05, **options)


def changed(plan: CascadePlan, path: Path, rules: list[dict[str, Any]]) -> CascadePlan:
    """Return a plan that was saved and loaded, with other rules in its file."""
    plan.save(path)
    record = json.loads(path.read_text())
    record["policy"]["rules"] = rules
    path.write_text(json.dumps(record))
    return CascadePlan.load(path)


def test_ranks_are_the_same_on_every_machine() -> None:
    """A rank is the first eight bytes of BLAKE2b, and no place hashes like a text."""
    assert tie_ranks(["a film"]).tolist() == [0.6852110093903302]
    ranks = tie_ranks(["7", 7, "7"])
    assert ranks[0] == ranks[2] != ranks[1]
    assert tie_ranks(np.arange(3).tolist()).tolist() == tie_ranks(list(np.arange(3))).tolist()
    assert tie_ranks(["a film"], key="other") != tie_ranks(["a film"])


def test_ranks_are_spread_evenly() -> None:
    """Each tenth of the ranks holds a tenth of 20,000 texts, within four standard deviations."""
    counts = np.histogram(tie_ranks([f"{n}" for n in range(20_000)]), bins=10, range=(0, 1))[0]
    assert np.abs(counts - 2000).max() < 4 * np.sqrt(20_000 * 0.09)


@pytest.mark.parametrize("key", ["", "x" * 65, None])
def test_keys_that_key_no_hash_are_refused(key: Any) -> None:
    """A key outside 1 to 64 bytes raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected key as a text of 1 to 64 bytes"):
        KeepRule.from_threshold(1.0, tied_share=0.5, key=key)


def test_a_plan_refuses_a_bad_key() -> None:
    """A plan with an empty key raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected key as a text of 1 to 64 bytes"):
        planned(key="")


def test_a_tied_block_is_kept_in_part() -> None:
    """A tied block is kept as far as the exact test passes, and no answer further."""
    found = certify_cascade(CONFIDENCE, RIGHT, np.ones(N), epsilon=0.05, inputs=TEXTS)
    assert found.threshold is None
    assert found.rule is not None
    assert found.rule.tied_confidence == 1.0
    ranks = tie_ranks(TEXTS)
    kept = (CONFIDENCE == 1.0) & (ranks <= found.rule.tied_share)
    assert found.rule.accepts(CONFIDENCE, ranks).tolist() == kept.tolist()
    assert found.share_small == kept.mean() > 0.3
    assert found.only_large == (kept & ~RIGHT).sum()
    assert planned().certificate.p_value <= 0.1
    following = ranks[(CONFIDENCE == 1.0) & (ranks > found.rule.tied_share)].min()
    more = (CONFIDENCE == 1.0) & (ranks <= following)
    again = certify_cascade(np.where(more, 1.0, np.nan), RIGHT, np.ones(N), epsilon=0.05, inputs=TEXTS)
    assert again.share_small <= found.share_small


def test_places_stand_in_for_texts() -> None:
    """The place of a row is hashed where its text is not known."""
    ranks = tie_ranks([*TEXTS[:-1], N - 1])
    for inputs, expected in ((None, tie_ranks(range(N))), ([*TEXTS[:-1], None], ranks)):
        found = certify_cascade(CONFIDENCE, RIGHT, np.ones(N), epsilon=0.05, inputs=inputs)
        assert found.rule is not None
        assert found.share_small == found.rule.accepts(CONFIDENCE, expected).mean()


def test_too_few_rows_certify_whole_blocks_or_nothing() -> None:
    """Rows that cannot prove keeping none are certified as a whole block or not at all."""
    first = tie_ranks(range(100)) < 0.3
    for small, large, expected in ((np.ones(100), first, 1.0), (first, ~first, None)):
        found = certify_cascade(np.ones(100), small, large)
        assert found.threshold == expected
        assert found.rule == (None if expected is None else KeepRule.from_threshold(expected))


def test_small_blocks_are_taken_or_left_whole() -> None:
    """Blocks of two rows get a plain threshold."""
    rng = np.random.default_rng(0)
    confidence = np.repeat(np.linspace(0.5, 1.0, N // 2), 2)
    found = certify_cascade(confidence, rng.random(N) < confidence, np.ones(N), epsilon=0.05)
    assert found.rule is not None
    assert found.rule.threshold == found.threshold is not None


def test_splits_keep_their_promise() -> None:
    """The promise of a split fails in at most delta of 400 samples, up to the error of so many samples."""
    rng = np.random.default_rng(1)
    right = rng.random(N) < np.where(CONFIDENCE == 1.0, 0.9, 0.4)
    ranks, broken, kept = tie_ranks(TEXTS), 0, []
    for _ in range(400):
        own = rng.integers(N, size=400)
        inputs = [TEXTS[row] for row in own]
        found = certify_cascade(CONFIDENCE[own], right[own], np.ones(400), epsilon=0.05, inputs=inputs)
        keeps = np.zeros(N, dtype=bool) if found.rule is None else found.rule.accepts(CONFIDENCE, ranks)
        broken += float((keeps & ~right).mean()) > 0.05
        kept.append(keeps.mean())
    assert broken <= 400 * 0.1 + 2 * np.sqrt(400 * 0.09)
    assert np.mean(kept) > 0.2


def test_a_plan_says_which_share_it_keeps() -> None:
    """The kept share is in a plan's attributes, name and record, and there is no plain threshold."""
    plan = planned()
    found = certify_cascade(CONFIDENCE, RIGHT, np.ones(N), epsilon=0.05, inputs=TEXTS)
    assert found.rule is not None
    assert plan.certified
    assert plan.policy.rules == (found.rule,)
    assert (plan.threshold, plan.tied_confidence, plan.tied_share) == (None, 1.0, found.rule.tied_share)
    assert f"threshold 1 ({plan.tied_share:.1%} of those tied at it)" in repr(plan)
    assert replay(plan, *recorded()).share_small.estimate == found.share_small
    assert plan.to_record()["tied_share"] == plan.tied_share


def test_another_key_keeps_other_texts() -> None:
    """Plans with different keys keep different texts."""
    plans = [planned(), planned(key="other")]
    assert [plan.key for plan in plans] == ["calibrant", "other"]
    chosen = [
        plan.policy.rules[0].accepts(CONFIDENCE, plan.policy.ranks(TEXTS)[0]).tolist() for plan in plans
    ]
    assert chosen[0] != chosen[1]


def test_split_rules_have_a_record_of_their_own() -> None:
    """The record of a rule that splits ties has its threshold and share instead of edges."""
    rule = KeepRule.from_threshold(1.0, tied_share=0.25, key="other")
    assert KeepRule.from_record(rule.to_record()) == rule
    assert "edges" not in rule.to_record()


@pytest.mark.parametrize("where", [0, 1])
def test_texts_of_any_run_keep_rows_together(where: int) -> None:
    """Rows of equal text are in one half, whichever run has the texts."""
    runs = list(recorded())
    texts = ["often"] * 600 + ["less often"] * 400
    for place in (0, 1):
        runs[place] = replace(runs[place], inputs=texts if place == where else None)
    plan = plan_cascade(*runs, **COSTS)
    assert {plan.rows.planning, plan.rows.reporting} == {600, 400}


def test_equal_texts_are_decided_alike() -> None:
    """All ten rows of a text are kept or routed together."""
    texts = [f"text {row % 100}" for row in range(N)]
    confidence, right = np.ones(N), np.arange(N) // 100 != 4
    found = certify_cascade(confidence, right, np.ones(N), epsilon=0.05, inputs=texts)
    assert found.rule is not None
    kept = found.rule.accepts(confidence, tie_ranks(texts)).reshape(10, 100)
    assert 0 < kept[0].sum() < 100
    assert (kept == kept[0]).all()


def test_a_budget_buys_a_share_of_a_tied_block() -> None:
    """A budget below the cost of a whole block keeps a share of it."""
    plan = plan_cascade(*recorded(), **COSTS, budget=27.0)
    assert plan.tied_share is not None
    assert 20.0 < plan.report.cost.estimate < 32.0
    assert plan.report.accuracy.estimate > 0.93


def three_runs() -> tuple[RecordedRun, RecordedRun, RecordedRun]:
    """Return models that say 1 on 2,000 texts; the last is always right, the others in 9 of 10."""
    rng = np.random.default_rng(0)
    texts = [f"text {row}" for row in range(2000)]
    right = [rng.random(2000) >= 0.1, rng.random(2000) >= 0.1, np.ones(2000)]
    small, middle, large = (
        RecordedRun(confidence=np.ones(2000), correct=one, inputs=texts, name=name)
        for one, name in zip(right, ("small", "middle", "large"), strict=True)
    )
    return small, middle, large


def planned_for_three(**options: Any) -> CascadePlan:
    """Return a plan for `three_runs` that asks all of them, and may lose 0.05."""
    small, middle, large = three_runs()
    plan = plan_cascade(small, large, between=[middle], between_costs=[2.0], **COSTS, epsilon=0.05, **options)
    assert plan.certified
    assert plan.policy.members == (0, 1, 2)
    assert all(rule.splits for rule in plan.policy.rules)
    return plan


def test_each_model_keeps_its_share_of_ties() -> None:
    """Each of three models keeps its share of the tied answers that reach it."""
    plan = planned_for_three()
    first, second = plan.policy.rules
    found = replay(plan, *three_runs())
    kept, later, rest = (round(2000 * share.estimate) for share in found.shares)
    for count, reaching, share in ((kept, 2000, first.tied_share), (later, later + rest, second.tied_share)):
        assert abs(count - reaching * share) < 4 * np.sqrt(reaching * share * (1 - share))
    assert found.difference.estimate >= -0.05


@pytest.mark.parametrize("key", ["calibrant", "x" * 64, "ä" * 32])
def test_every_rule_of_a_plan_has_a_key_of_its_own(key: str) -> None:
    """The first rule has the plan's key, and ranks under the second rule's key are independent of it."""
    plan = planned_for_three(key=key)
    first, second = plan.policy.rules
    assert (plan.key, first.key) == (key, key)
    assert second.key != key
    assert abs(np.corrcoef([tie_ranks(TEXTS, key=rule.key) for rule in (first, second)])[0, 1]) < 0.13
    assert planned_for_three(key=key).policy == plan.policy


def test_saved_plans_decide_as_before(tmp_path: Path) -> None:
    """A loaded plan has the same keys and shares, and another plan's key makes other keys."""
    plan = planned_for_three(key="other")
    assert plan.policy.rules[1].key != planned_for_three().policy.rules[1].key
    plan.save(tmp_path / "plan.json")
    loaded = CascadePlan.load(tmp_path / "plan.json")
    assert (loaded.policy, loaded.key) == (plan.policy, "other")
    assert replay(loaded, *three_runs()) == replay(plan, *three_runs())


def test_pairs_of_three_models_use_the_plans_key() -> None:
    """A policy that leaves a model out splits ties under the plan's own key."""
    small, middle, large = three_runs()
    plan = plan_cascade(
        small, large, between=[middle], between_costs=[40.0], **COSTS, budget=27.0, key="other"
    )
    assert plan.policy.members == (0, 2)
    (rule,) = plan.policy.rules
    assert rule.splits
    assert rule.key == "other"
    ranks = tie_ranks([f"text {row}" for row in range(2000)], key="other")
    found = replay(plan, small, middle, large)
    assert found.share_small.estimate == (ranks <= rule.tied_share).mean()
    assert found.shares[1].estimate == 0.0


def test_a_policy_needs_ranks_for_each_of_its_rules() -> None:
    """Ranks of another shape, or missing ones, raise ConfigurationError."""
    rules = tuple(KeepRule.from_threshold(1.0, tied_share=0.5, key=key) for key in "ab")
    policy = KeepPolicy(name="two keys", members=(0, 1, 2), rules=rules)
    ranks = policy.ranks(TEXTS)
    assert ranks is not None
    assert ranks.tolist() == [tie_ranks(TEXTS, key=key).tolist() for key in "ab"]
    confidence = np.ones((3, N))
    assert np.bincount(policy.follow(confidence, ranks).answered).min() > 200
    for wrong in (ranks[0], ranks[:1], ranks[:, :5]):
        with pytest.raises(ConfigurationError, match=r"Expected ranks of shape \(2, 1000\)"):
            policy.follow(confidence, wrong)
    with pytest.raises(ConfigurationError, match="Expected the texts, or their ranks"):
        policy.follow(confidence)


def test_a_rule_that_splits_needs_the_texts() -> None:
    """A rule that splits ties routes by the texts, and raises ConfigurationError without them."""
    rule = KeepRule.from_threshold(0.9, tied_share=0.6)
    routed = rule.route([0.95, 0.9, 0.9, 0.8, np.nan], texts=["a film", "a film", "a poem", "x", "y"])
    assert tie_ranks(["a film", "a poem"]).round(2).tolist() == [0.69, 0.52]
    assert routed.tolist() == [False, True, False, True, True]
    with pytest.raises(ConfigurationError, match="Expected the texts, or their ranks"):
        rule.route([0.9])


@pytest.mark.parametrize(
    "bad", [{"tied_share": 1.5}, {"key": ""}, {"edges": (), "keeps": (True,), "tied_share": 0.5}]
)
def test_senseless_splits_are_refused(bad: dict[str, Any]) -> None:
    """A share or key out of range, or a split without a threshold, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="Expected"):
        KeepRule(**{"edges": (0.5,), "keeps": (False, True), **bad})


def test_a_damaged_split_is_refused(tmp_path: Path) -> None:
    """A stored split with a wrong share, key or threshold raises StateError."""
    for damage in ({"tied_share": 2.0}, {"key": 5}, {"threshold": None}):
        rule = {"threshold": 1.0, "tied_share": 0.5, "key": "x", **damage}
        with pytest.raises(StateError, match="damaged"):
            changed(planned(), tmp_path / "plan.json", [rule])


def test_stored_plans_with_one_key_decide_as_before(tmp_path: Path) -> None:
    """With one key for all models, the second model keeps the texts between both shares."""
    ranks = tie_ranks([f"text {row}" for row in range(2000)], key="old")
    for second in (0.3, 0.8):
        rules = [{"threshold": 1.0, "tied_share": share, "key": "old"} for share in (0.3, second)]
        loaded = changed(planned_for_three(), tmp_path / "plan.json", rules)
        policy = loaded.policy
        route = policy.follow(np.ones((3, 2000)), policy.ranks([f"text {row}" for row in range(2000)]))
        assert route.answered.tolist() == np.where(ranks <= 0.3, 0, np.where(ranks <= second, 1, 2)).tolist()
        assert replay(loaded, *three_runs()).shares[1].estimate == (route.answered == 1).mean()
