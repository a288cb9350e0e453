"""Tests of the Brier and log scores of the whole distribution."""

# ruff: noqa: FBT003 - is_correct is positional in the protocol

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from calibrant.core import ConfigurationError, LabelDistribution
from calibrant.scoring import BrierScoring, LogScoring, ScoringStrategy
from distributions import exact

STRATEGIES = [BrierScoring(), LogScoring(), LogScoring(0.01)]
LABELS = ("Sports", "Sci/Tech", "World")


def distribution(probabilities: Sequence[float], labels: tuple[str, ...] = LABELS) -> LabelDistribution:
    """Return an exact distribution in which every label was measured."""
    return exact(labels, probabilities)


@pytest.mark.parametrize(
    ("answer", "expected"),
    # By hand, squared distance of (0.7, 0.2, 0.1) to each corner: 0.14, 1.14, 1.34.
    [("Sports", 0.93), ("Sci/Tech", 0.43), ("World", 0.33)],
)
def test_brier_is_one_minus_half_the_squared_distance(answer: str, expected: float) -> None:
    """The Brier score is one minus half of the squared distance to the true label."""
    score = BrierScoring().score(
        answer == "Sports", -0.35, distribution=distribution([0.7, 0.2, 0.1]), answer=answer
    )
    assert score == pytest.approx(expected)


@pytest.mark.parametrize(
    ("probability", "expected"), [(1.0, 1.0), (0.1, 0.75), (1e-2, 0.5), (1e-4, 0.0), (1e-9, 0.0), (0.0, 0.0)]
)
def test_log_score_is_linear_in_the_logarithm_down_to_its_floor(probability: float, expected: float) -> None:
    """The log score falls linearly with the logarithm; with the floor 1e-4 a factor of 10 costs 0.25."""
    rest = (1.0 - probability) / 2
    found = LogScoring(1e-4).score(
        True, None, distribution=distribution([probability, rest, rest]), answer="Sports"
    )
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_certainty_earns_one_when_right_and_zero_when_wrong(strategy: ScoringStrategy) -> None:
    """A certain answer scores 1 if it is right and 0 if it is wrong."""
    sure = distribution([1.0, 0.0, 0.0])
    assert strategy.score(True, 0.0, distribution=sure, answer="Sports") == 1.0
    assert strategy.score(False, 0.0, distribution=sure, answer="World") == 0.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_distribution_right_scores_one_and_wrong_zero(strategy: ScoringStrategy) -> None:
    """Without a distribution a right answer scores 1 and a wrong one 0."""
    assert strategy.score(True, -0.2) == 1.0
    assert strategy.score(False, None, answer="Sports") == 0.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_answer_is_matched_without_case_and_surrounding_space(strategy: ScoringStrategy) -> None:
    """The true label is found in the distribution in any case and with surrounding space."""
    found = distribution([0.7, 0.2, 0.1])
    exact = strategy.score(False, None, distribution=found, answer="Sci/Tech")
    assert strategy.score(False, None, distribution=found, answer="  sci/tech\n") == exact


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("answer", [None, "Weather", ""])
def test_a_distribution_needs_an_answer_among_its_labels(
    strategy: ScoringStrategy, answer: str | None
) -> None:
    """A distribution with a missing or unknown true label raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="label"):
        strategy.score(True, None, distribution=distribution([0.7, 0.2, 0.1]), answer=answer)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_invalid_log_probability_is_an_error_although_unused(strategy: BrierScoring) -> None:
    """A log-probability above 0 raises ConfigurationError, also beside a distribution."""
    with pytest.raises(ConfigurationError):
        strategy.score(True, 0.5, distribution=distribution([0.7, 0.2, 0.1]), answer="World")


def test_configuration_and_descriptions() -> None:
    """The fields and `describe` show the parameters, and every strategy satisfies `ScoringStrategy`."""
    assert dataclasses.asdict(LogScoring()) == {"min_probability": 1e-4}
    assert BrierScoring() == BrierScoring()
    assert "0.0001" in LogScoring().describe()
    assert "Brier" in BrierScoring().describe()
    assert all(isinstance(strategy, ScoringStrategy) for strategy in STRATEGIES)
