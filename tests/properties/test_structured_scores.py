"""Tests of scores for labels on a scale and in a tree, through the adapter's grading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.adapters import ConfidenceGrader
from calibrant.core import HierarchicalLabels, LabelSet, OrdinalLabels, Outcome, Prediction
from calibrant.scoring import (
    BrierScoring,
    LinearBlendScoring,
    LogScoring,
    ScoringStrategy,
    SigmoidScoring,
    ThresholdScoring,
)
from distributions import exact

unhurried = settings(deadline=None)

SCALE = OrdinalLabels(["1", "2", "3", "4", "5"])
# Unequal depths on purpose: levels that depended on the answer would break the propriety of the scores.
TREE = HierarchicalLabels(["a", "a/b", "a/c/d", "a/c/e", "f"])
LABEL_SETS = st.sampled_from([SCALE, TREE])
STRATEGIES: list[ScoringStrategy] = [
    LinearBlendScoring(),
    ThresholdScoring(),
    SigmoidScoring(),
    BrierScoring(),
    LogScoring(),
]

simplexes = st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5).map(lambda w: np.array(w) / sum(w))


def predicted(labels: LabelSet, shares: NDArray[np.float64], label: str | None = None) -> Prediction:
    """Return a prediction of the most probable label, or of the named one."""
    best = labels[int(shares.argmax())] if label is None else label
    distribution = exact(labels, shares)
    return Prediction(label=best, confidence=float(shares[labels.index(best)]), distribution=distribution)


def score(labels: LabelSet, prediction: Prediction, answer: str, strategy: ScoringStrategy) -> float:
    """Return the score of the adapter."""
    return ConfidenceGrader(labels, scoring_strategy=strategy).score(prediction, answer)


def expected(labels: LabelSet, said: Any, true: Any, strategy: ScoringStrategy) -> float:
    """Return the expected score of reporting one distribution where another is true."""
    prediction = predicted(labels, said)
    return sum(
        float(share) * score(labels, prediction, label, strategy)
        for share, label in zip(true, labels, strict=True)
    )


@unhurried
@given(simplexes, st.integers(0, 4))
def test_ordinal_brier_is_the_ranked_score(shares: NDArray[np.float64], true: int) -> None:
    """The score on a scale is 1 - RPS / (L - 1), with RPS computed in the test."""
    rps = 0.0
    for k in range(4):
        below = sum(float(shares[i]) for i in range(k + 1))
        happened = 1.0 if true <= k else 0.0
        rps += (below - happened) ** 2
    found = score(SCALE, predicted(SCALE, shares), SCALE[true], BrierScoring())
    assert found == pytest.approx(1.0 - rps / 4, abs=1e-12)


@unhurried
@given(simplexes, st.integers(0, 4))
def test_tree_brier_is_the_mean_over_levels(shares: NDArray[np.float64], true: int) -> None:
    """The score in a tree is the mean over levels, computed in the test from path prefixes."""
    answer, total = TREE[true], 0.0
    for level in (1, 2, 3):
        mass: dict[str, float] = {}
        for share, label in zip(shares, TREE, strict=True):
            begun = "/".join(label.split("/")[:level])
            mass[begun] = mass.get(begun, 0.0) + float(share)
        hit = "/".join(answer.split("/")[:level])
        total += 1.0 - 0.5 * sum((p - (begun == hit)) ** 2 for begun, p in mass.items())
    found = score(TREE, predicted(TREE, shares), answer, BrierScoring())
    assert found == pytest.approx(total / 3, abs=1e-12)


@unhurried
@given(LABEL_SETS, simplexes, simplexes, st.sampled_from([BrierScoring(), LogScoring(1e-4)]))
def test_proper_scores_are_strictly_proper(
    labels: LabelSet, true: NDArray[np.float64], other: NDArray[np.float64], strategy: ScoringStrategy
) -> None:
    """The true distribution has a higher expected score than any other."""
    gain = expected(labels, true, true, strategy) - expected(labels, other, true, strategy)
    assert gain >= -1e-12
    if np.abs(true - other).max() > 1e-3:
        assert gain > 0.0


@unhurried
@given(LABEL_SETS, simplexes, st.integers(0, 4), st.integers(0, 4), st.sampled_from(STRATEGIES))
def test_structured_scores_stay_in_the_interval(
    labels: LabelSet, shares: NDArray[np.float64], label: int, answer: int, strategy: ScoringStrategy
) -> None:
    """Scores stay in [0, 1] for every answer and confidence."""
    found = score(labels, predicted(labels, shares, labels[label]), labels[answer], strategy)
    assert 0.0 <= found <= 1.0


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_near_misses_earn_more(strategy: ScoringStrategy) -> None:
    """At the same confidence a near miss earns more than a far one, and less than the answer."""
    shares = np.array([0.02, 0.02, 0.02, 0.92, 0.02])
    prediction = predicted(SCALE, shares)
    found = [score(SCALE, prediction, answer, strategy) for answer in ("4", "3", "2", "1")]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4
    shares = np.array([0.02, 0.02, 0.92, 0.02, 0.02])
    prediction = predicted(TREE, shares)
    found = [score(TREE, prediction, answer, strategy) for answer in ("a/c/d", "a/c/e", "a/b", "f")]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4
    assert score(TREE, prediction, "a", strategy) == found[2]  # stops where the other branches off


@pytest.mark.parametrize("labels", [SCALE, TREE])
def test_missing_confidence_scores_correctness(labels: LabelSet) -> None:
    """Without a confidence an answer scores 1 or 0, and a refusal the failure score."""
    last = labels[4]
    for strategy in (LinearBlendScoring(), BrierScoring()):
        right = Prediction(label=last)
        assert score(labels, right, last, strategy) == 1.0
        assert score(labels, right, labels[0], strategy) == 0.0
    refused = Prediction(label=None, outcome=Outcome.REFUSAL)
    grader = ConfidenceGrader(labels, scoring_strategy=BrierScoring(), failure_score=0.25)
    assert grader.score(refused, last) == 0.25
