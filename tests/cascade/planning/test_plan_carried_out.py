"""Tests of plans in use: a cascade does what the plan's replay says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrant.cascade import Cascade, CascadePlan, KeepPolicy, KeepRule, plan_cascade, replay
from calibrant.core import ConfigurationError, Example, StateError
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
from tied import tie_ranks

LABELS = ["cat", "dog"]
N = 200
Recorded = tuple[list[Classifier], list[Example], CascadePlan, list[Path]]


def model(name: str, known: Callable[[str], tuple[str, float]]) -> Classifier:
    """Return a model with this answer for each text."""
    client = FakeClient(LABELS, lambda text, _: known(text), name=name)
    return Classifier(model=client, labels=LABELS, field="category", prompt="Which?")


def evaluated(models: list[Classifier], rows: list[Example], folder: Path) -> list[Path]:
    """Return a run of every model over the rows."""
    runs = [folder / str(place) for place in range(len(models))]
    for one, out in zip(models, runs, strict=True):
        BatchEvaluator(one).evaluate(rows, out=out)
    return runs


def classifiers() -> tuple[list[Classifier], list[Example]]:
    """Return a small model that knows when it is right, a large one, and labelled rows."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, N)
    confidence = (0.5 + 0.5 * rng.random(N) ** 0.3).round(4)
    answers = [
        np.where(rng.random(N) < confidence, truth, 1 - truth),
        np.where(rng.random(N) < 0.97, truth, 1 - truth),
    ]
    sure = [confidence, np.full(N, 0.99)]
    rows = [Example(input=f"row-{row}.", answer=LABELS[truth[row]]) for row in range(N)]
    known = [
        {row.input: (LABELS[one], float(own)) for row, one, own in zip(rows, said, how, strict=True)}
        for said, how in zip(answers, sure, strict=True)
    ]
    return [model("small", known[0].__getitem__), model("large", known[1].__getitem__)], rows


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """Return classifiers, rows, a certified plan, and the runs it was made from."""
    models, rows = classifiers()
    runs = evaluated(models, rows, tmp_path)
    return models, rows, plan_cascade(*runs, small_cost=1, large_cost=50, epsilon=0.05), runs


@pytest.mark.parametrize(
    "rule",
    [None, KeepRule.from_threshold(0.0), KeepRule(edges=(0.6, 0.8, 0.95), keeps=(True, False, True, False))],
)
@pytest.mark.parametrize("calibrated", [False, True])
def test_live_answers_are_those_of_the_replay(
    recorded: Recorded, rule: KeepRule | None, calibrated: bool
) -> None:
    """A cascade of the plan keeps and answers the rows as its replay does."""
    models, rows, plan, runs = recorded
    if rule is not None:
        policy = KeepPolicy(name="any", members=(0, 1), rules=(rule,), calibrated=calibrated)
        plan = replace(plan, policy=policy)
    expected = replay(plan, *runs)
    answers = plan.cascade(models).classify_many([row.input for row in rows])
    right = np.mean([answer.label == row.answer for answer, row in zip(answers, rows, strict=True)])
    assert right == pytest.approx(expected.accuracy.estimate)
    kept = np.mean([len(answer.steps) == 1 for answer in answers])
    assert kept == pytest.approx(expected.share_small.estimate)


def tied() -> tuple[list[Classifier], list[Example]]:
    """Return a small model that is always sure and sometimes wrong, and one that is always right."""
    rows = [Example(input=f"row-{row % 150}.", answer=LABELS[row % 150 % 10 == 0]) for row in range(N)]
    truth = {row.input: (row.answer, 0.99) for row in rows}
    return [model("small", lambda _: ("cat", 1.0)), model("large", truth.__getitem__)], rows


def test_tied_blocks_are_split_live(tmp_path: Path) -> None:
    """A cascade keeps the same tied texts as the replay, and reports the large model's confidence."""
    models, rows = tied()
    runs = evaluated(models, rows, tmp_path)
    plan = plan_cascade(*runs, small_cost=1, large_cost=50, epsilon=0.08, key="other")
    assert plan.certified
    assert 0.2 < plan.tied_share < 0.9
    live = plan.cascade(models)
    texts = [row.input for row in rows]
    answers = live.classify_many(texts)
    kept = [len(answer.steps) == 1 for answer in answers]
    assert kept == (tie_ranks(texts, key="other") <= plan.tied_share).tolist()
    assert np.mean(kept) == pytest.approx(replay(plan, *runs).share_small.estimate)
    assert {answer.confidence for answer in answers} == {1.0, 0.99}
    assert all(answer.accepted for answer in answers)


@pytest.mark.parametrize(
    ("members", "old_key"), [((0, 1, 2), False), ((0, 2), False), ((1, 2), False), ((0, 1, 2), True)]
)
def test_three_models_follow_the_plan(tmp_path: Path, members: tuple[int, ...], old_key: bool) -> None:
    """Every text is answered by the model that the plan's policy names, also after saving and loading."""
    texts = [f"row-{row}." for row in range(N)]
    rows = [Example(input=text, answer="cat") for text in texts]
    models = []
    for name, step in (("small", 10), ("middle", 11), ("large", N)):
        known = {text: (LABELS[row % step == 0], 1.0) for row, text in enumerate(texts)}
        models.append(model(name, known.__getitem__))
    runs = evaluated(models, rows, tmp_path)
    costs = {"small_cost": 1, "between_costs": [2], "large_cost": 50}
    plan = plan_cascade(runs[0], runs[2], between=[runs[1]], **costs, epsilon=0.09, key="other")
    assert plan.policy.members == (0, 1, 2)
    assert all(rule.splits for rule in plan.policy.rules)
    rules = tuple(plan.policy.rules[member] for member in members[:-1])
    if old_key:
        rules = tuple(KeepRule.from_threshold(1.0, tied_share=share, key="old") for share in (0.3, 0.8))
    plan = replace(plan, policy=KeepPolicy(name="three models", members=members, rules=rules))
    plan.save(tmp_path / "plan.json")
    plan = CascadePlan.load(tmp_path / "plan.json")
    expected = plan.policy.follow(np.ones((3, N)), plan.policy.ranks(texts))
    answered = plan.cascade(models).classify_many(texts)
    assert [len(answer.steps) for answer in answered] == expected.asked.sum(axis=0).tolist()
    assert [members[len(answer.steps) - 1] for answer in answered] == expected.answered.tolist()
    assert set(expected.answered.tolist()) == set(members)
    shares = [share.estimate for share in replay(plan, *runs).shares]
    assert shares == (np.bincount(expected.answered, minlength=3) / N).tolist()


def test_another_split_is_another_cascade() -> None:
    """Cascades with different shares or keys have different fingerprints."""
    models, _ = tied()
    rules = [
        KeepRule.from_threshold(1.0, tied_share=share, key=key)
        for share, key in ((0.5, "one"), (0.4, "one"), (0.5, "two"), (1.0, "one"))
    ]
    found = [Cascade(models, method="label_probability", meta_verifier=rule).fingerprint() for rule in rules]
    assert len({one.model for one in found}) == 4


def test_one_rule_gets_a_key_per_model() -> None:
    """A single rule that splits ties keeps its share of the answers that reach each model."""
    models = [model(name, lambda _: ("cat", 1.0)) for name in ("small", "middle", "large")]
    rule = KeepRule.from_threshold(1.0, tied_share=0.5, key="one")
    live = Cascade(models, method="label_probability", meta_verifier=rule, escalation_order="declared")
    texts = [f"row-{row}." for row in range(N)]
    asked = np.array([len(answer.steps) for answer in live.classify_many(texts)])
    assert ((asked == 1) == (tie_ranks(texts, key="one") <= 0.5)).all()
    assert abs((asked == 2).sum() - (asked > 1).sum() * 0.5) < 4 * np.sqrt((asked > 1).sum() * 0.25)


def test_a_model_alone_is_its_classifier(recorded: Recorded) -> None:
    """The cascade of a policy with one model is that classifier."""
    models, _, plan, _ = recorded
    for place, one in enumerate(models):
        assert replace(plan, policy=KeepPolicy.alone(place)).cascade(models) is one


def test_planned_options_are_refused(recorded: Recorded) -> None:
    """A plan of 100,000 rows covers all of them, and splits the block that it keeps in part."""
    models, _, plan, _ = recorded
    with pytest.raises(StateError, match=r"model 1 .*differs in model"):
        plan.cascade(models[::-1])
    with pytest.raises(StateError, match="differs in prompt"):
        plan.cascade([models[0].with_prompt("Quite another one."), models[1]])
    with pytest.raises(ConfigurationError, match="threshold"):
        plan.cascade(models, threshold=0.5)
