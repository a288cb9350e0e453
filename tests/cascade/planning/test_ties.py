"""Equal confidences are split by a keyed hash of the texts, alike in certificates, plans and replays."""

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
    tie_ranks,
)
from calibrant.core import ConfigurationError, StateError

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


def test_ranks_are_the_same_on_every_machine() -> None:
    """The first eight bytes of BLAKE2b, big-endian; places are no texts."""
    assert tie_ranks(["a film"]).tolist() == [0.6852110093903302]
    ranks = tie_ranks(["7", 7, "7"])
    assert ranks[0] == ranks[2] != ranks[1]
    assert tie_ranks(np.arange(3).tolist()).tolist() == tie_ranks(list(np.arange(3))).tolist()
    assert tie_ranks(["a film"], key="other") != tie_ranks(["a film"])


def test_ranks_are_spread_evenly() -> None:
    """Tenths of 20,000 texts hold a tenth of them each, within four standard deviations."""
    counts = np.histogram(tie_ranks([f"{n}" for n in range(20_000)]), bins=10, range=(0, 1))[0]
    assert np.abs(counts - 2000).max() < 4 * np.sqrt(20_000 * 0.09)


@pytest.mark.parametrize("key", ["", "x" * 65, None])
def test_keys_that_key_no_hash_are_refused(key: Any) -> None:
    """By plans before anything is read from the rows."""
    with pytest.raises(ConfigurationError, match="Expected key as a text of 1 to 64 bytes"):
        tie_ranks(["a"], key=key)
    with pytest.raises(ConfigurationError, match="Expected key as a text of 1 to 64 bytes"):
        planned(key=key)


def test_a_tied_block_is_kept_in_part() -> None:
    """As far as the exact test allows: the next tied answer that is wrong would be one too many."""
    found = certify_cascade(CONFIDENCE, RIGHT, np.ones(N), epsilon=0.05, inputs=TEXTS)
    assert found.threshold is None
    assert found.rule is not None
    assert found.rule.tied_confidence == 1.0
    ranks = tie_ranks(TEXTS)
    kept = (CONFIDENCE == 1.0) & (ranks <= found.rule.tied_share)
    assert found.rule.accepts(CONFIDENCE, ranks).tolist() == kept.tolist()
    assert found.share_small == kept.mean() > 0.3
    assert found.only_large == (kept & ~RIGHT).sum()
    assert found.p_value <= 0.1
    following = ranks[(CONFIDENCE == 1.0) & (ranks > found.rule.tied_share)].min()
    more = (CONFIDENCE == 1.0) & (ranks <= following)
    again = certify_cascade(np.where(more, 1.0, np.nan), RIGHT, np.ones(N), epsilon=0.05, inputs=TEXTS)
    assert again.share_small <= found.share_small


def test_without_texts_the_place_of_a_row_stands_in() -> None:
    """Of all rows, or of those that have none."""
    ranks = tie_ranks([*TEXTS[:-1], N - 1])
    for inputs, expected in ((None, tie_ranks(range(N))), ([*TEXTS[:-1], None], ranks)):
        found = certify_cascade(CONFIDENCE, RIGHT, np.ones(N), epsilon=0.05, inputs=inputs)
        assert found.rule is not None
        assert found.share_small == found.rule.accepts(CONFIDENCE, expected).mean()


def test_too_few_rows_certify_whole_blocks_or_nothing() -> None:
    """100 rows do not prove that keeping none loses less than 0.02, so no share of the surest block follows on it."""
    first = tie_ranks(range(100)) < 0.3
    for small, large, expected in ((np.ones(100), first, 1.0), (first, ~first, None)):
        found = certify_cascade(np.ones(100), small, large)
        assert found.threshold == expected
        assert found.rule == (None if expected is None else KeepRule.from_threshold(expected))


def test_small_blocks_are_taken_or_left_whole() -> None:
    """Where a confidence is that of two rows, a plain threshold says it all."""
    rng = np.random.default_rng(0)
    confidence = np.repeat(np.linspace(0.5, 1.0, N // 2), 2)
    found = certify_cascade(confidence, rng.random(N) < confidence, np.ones(N), epsilon=0.05)
    assert found.rule is not None
    assert found.rule.threshold == found.threshold is not None


def test_a_split_keeps_its_promise_in_samples_of_a_population() -> None:
    """400 samples of 400 texts, whose rule meets all texts; the slack is for the number of samples alone."""
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
    """In its attributes, name and record; it has no plain threshold, which would keep too many."""
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
    """And is kept with the plan."""
    plans = [planned(), planned(key="other")]
    assert [plan.key for plan in plans] == ["calibrant", "other"]
    chosen = [plan.policy.rules[0].accepts(CONFIDENCE, plan.policy.ranks(TEXTS)).tolist() for plan in plans]
    assert chosen[0] != chosen[1]


def test_a_saved_plan_decides_every_text_as_before(tmp_path: Path) -> None:
    """To the last digit of its share."""
    plan = planned(key="other")
    plan.save(tmp_path / "plan.json")
    loaded = CascadePlan.load(tmp_path / "plan.json")
    assert (loaded.policy, loaded.key) == (plan.policy, "other")
    assert replay(loaded, *recorded()) == replay(plan, *recorded())


def test_a_plan_stored_without_a_key_takes_blocks_whole(tmp_path: Path) -> None:
    """As the version that wrote it did."""
    small, large = recorded(correct=np.arange(N) % 100 != 0)
    plan = plan_cascade(small, large, **COSTS, epsilon=0.05)
    plan.save(tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text())
    for later in ("key", "tied_confidence", "tied_share"):
        del record[later]
    (tmp_path / "plan.json").write_text(json.dumps(record))
    loaded = CascadePlan.load(tmp_path / "plan.json")
    assert (loaded.key, loaded.tied_share) == (None, None)
    policy = KeepPolicy(name="whole", members=(0, 1), rules=(KeepRule.from_threshold(1.0),))
    assert replay(replace(loaded, policy=policy), small, large).share_small.estimate == 0.7


def test_a_version_that_splits_nothing_cannot_misread_a_split() -> None:
    """It looks for edges, and finds none."""
    rule = KeepRule.from_threshold(1.0, tied_share=0.25, key="other")
    assert KeepRule.from_record(rule.to_record()) == rule
    assert "edges" not in rule.to_record()


@pytest.mark.parametrize("where", [0, 1])
def test_equal_texts_are_planned_in_one_half_whichever_run_has_them(where: int) -> None:
    """Two texts, of 60 and of 40 rows."""
    runs = list(recorded())
    texts = ["often"] * 600 + ["less often"] * 400
    for place in (0, 1):
        runs[place] = replace(runs[place], inputs=texts if place == where else None)
    plan = plan_cascade(*runs, **COSTS)
    assert {plan.rows.planning, plan.rows.reporting} == {600, 400}


def test_equal_texts_are_decided_alike() -> None:
    """A hundred texts ten times each."""
    texts = [f"text {row % 100}" for row in range(N)]
    confidence, right = np.ones(N), np.arange(N) // 100 != 4
    found = certify_cascade(confidence, right, np.ones(N), epsilon=0.05, inputs=texts)
    assert found.rule is not None
    kept = found.rule.accepts(confidence, tie_ranks(texts)).reshape(10, 100)
    assert 0 < kept[0].sum() < 100
    assert (kept == kept[0]).all()


def test_a_budget_buys_a_share_of_a_tied_block() -> None:
    """27 per row pay the large model for about half of the rows, be 70 % of them tied."""
    plan = plan_cascade(*recorded(), **COSTS, budget=27.0)
    assert plan.tied_share is not None
    assert 20.0 < plan.report.cost.estimate < 32.0
    assert plan.report.accuracy.estimate > 0.93


def test_three_models_share_one_split() -> None:
    """The certified sequence for chains takes what is tied in twentieths."""
    small, large = recorded()
    plan = plan_cascade(small, large, between=[small], between_costs=[5.0], **COSTS, epsilon=0.05)
    assert plan.certified
    assert plan.tied_share in {step / 20 for step in range(1, 20)}
    assert replay(plan, small, small, large).difference.estimate >= -0.05


def test_a_rule_that_splits_needs_the_texts() -> None:
    """Told to whoever uses it as a meta-verifier."""
    rule = KeepRule.from_threshold(0.9, tied_share=0.6)
    routed = rule.route([0.95, 0.9, 0.9, 0.8, np.nan], texts=["a film", "a film", "a poem", "x", "y"])
    assert tie_ranks(["a film", "a poem"]).round(2).tolist() == [0.69, 0.52]
    assert routed.tolist() == [False, True, False, True, True]
    with pytest.raises(ConfigurationError, match="Expected the texts, or their ranks"):
        rule.route([0.9])


@pytest.mark.parametrize(
    "bad",
    [
        lambda: KeepRule.from_threshold(0.5, tied_share=1.5),
        lambda: KeepRule.from_threshold(0.5, key=""),
        lambda: KeepRule(edges=(), keeps=(True,), tied_share=0.5),
        lambda: KeepRule(edges=(0.2, 0.4), keeps=(False, True, False), tied_share=0.5),
        lambda: KeepPolicy(
            name="two keys",
            members=(0, 1, 2),
            rules=tuple(KeepRule.from_threshold(0.5, tied_share=0.5, key=key) for key in "ab"),
        ),
    ],
)
def test_splits_that_make_no_sense_are_refused(bad: Any) -> None:
    """Only the block at a threshold is split, by one key."""
    with pytest.raises(ConfigurationError, match="Expected"):
        bad()


def test_a_damaged_split_is_refused(tmp_path: Path) -> None:
    """A share beyond 1, or a key that is none."""
    planned().save(tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text())
    for damage in ({"tied_share": 2.0}, {"key": 5}, {"threshold": None}):
        record["policy"]["rules"] = [{"threshold": 1.0, "tied_share": 0.5, "key": "x", **damage}]
        (tmp_path / "plan.json").write_text(json.dumps(record))
        with pytest.raises(StateError, match="damaged"):
            CascadePlan.load(tmp_path / "plan.json")
