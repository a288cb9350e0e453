"""Tests of `EvaluationHistory`: intervals over recorded scores, and drift of new values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrant.core import ConfigurationError, StateError
from calibrant.evaluation import EvaluationHistory
from calibrant.store._scores import Scope

SCOPE: Mapping[str, Any] = {"account_id": "acme", "evaluator_id": "judge", "profile_name": "strict"}


@pytest.fixture
def history(tmp_path: Path) -> EvaluationHistory:
    """Return an empty history in a file."""
    return EvaluationHistory(tmp_path / "history.db")


def resampled_percentiles(scores: list[float], level: float) -> tuple[float, float, float]:
    """Return the percentiles of 40,000 resampled means."""
    rng = np.random.default_rng(12)
    means = rng.choice(scores, size=(40_000, len(scores))).mean(axis=1)
    lower, median, upper = np.quantile(means, [(1 - level) / 2, 0.5, (1 + level) / 2])
    return float(lower), float(median), float(upper)


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_the_interval_is_that_of_resampled_means(history: EvaluationHistory, level: float) -> None:
    """The interval's ends are the percentiles of resampled means, within the sampling error."""
    scores = np.random.default_rng(3).gamma(2.0, size=60).tolist()
    for score in scores:
        history.record(**SCOPE, score_raw=score, family="toxicity")
    found = history.interval(**SCOPE, alpha=level, rng=5)
    lower, median, upper = resampled_percentiles(scores, level)
    assert found.lower == pytest.approx(lower, abs=0.02)
    assert found.median == pytest.approx(median, abs=0.02)
    assert found.upper == pytest.approx(upper, abs=0.02)
    assert (found.strategy, found.alpha, found.scores) == ("full-history", level, 60)
    assert found.score_type == "continuous"


def test_binary_scores_give_an_interval_of_a_probability(history: EvaluationHistory) -> None:
    """The interval of binary scores has the quantiles of a binomial share."""
    for number in range(50):
        history.record(**SCOPE, score_raw=float(number % 5 > 0), family="custom")
    found = history.interval(**SCOPE)
    assert (found.score_type, found.median) == ("binary", pytest.approx(0.8))
    assert found.lower == pytest.approx(stats.binom.ppf(0.025, 50, 0.8) / 50, abs=0.0201)
    assert found.upper == pytest.approx(stats.binom.ppf(0.975, 50, 0.8) / 50, abs=0.0201)


def test_only_the_latest_thousand_count(history: EvaluationHistory) -> None:
    """Only the latest 1,000 scores count."""
    history.record(**SCOPE, score_raw=1e6)
    history.record_run([2.0] * 999, **SCOPE, run_id="run")
    assert history.interval(**SCOPE).upper > 2.0
    history.record(**SCOPE, score_raw=2.0)
    found = history.interval(**SCOPE)
    assert (found.lower, found.median, found.upper, found.scores) == (2.0, 2.0, 2.0, 1000)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_scores_give_no_interval(history: EvaluationHistory, count: int) -> None:
    """Fewer than two scores give None for all ends, and their number."""
    for _ in range(count):
        history.record(**SCOPE, score_raw=0.5)
    found = history.interval(**SCOPE)
    assert (found.lower, found.median, found.upper) == (None, None, None)
    assert (found.strategy, found.alpha, found.scores) == ("full-history", 0.95, count)
    history.record(**SCOPE, score_raw=0.5)
    assert (history.interval(**SCOPE).lower is None) is (count == 0)


def test_the_strategy_none_computes_nothing(history: EvaluationHistory) -> None:
    """The strategy "none" gives None for all ends."""
    history.record_run([0.0, 1.0], **SCOPE, run_id="run")
    found = history.interval(**SCOPE, strategy="none", alpha=0.9)
    assert (found.strategy, found.alpha, found.lower, found.median, found.upper) == (
        "none", 0.9, None, None, None,
    )  # fmt: skip


def test_equal_calls_agree_and_seeds_differ(history: EvaluationHistory) -> None:
    """Equal calls give equal intervals, and other seeds give other ones."""
    history.record_run(np.random.default_rng(1).random(30), **SCOPE, run_id="run")
    assert history.interval(**SCOPE) == history.interval(**SCOPE)
    assert history.interval(**SCOPE, rng=1) != history.interval(**SCOPE, rng=2)
    assert history.interval(**SCOPE, rng=np.random.default_rng(1)) == history.interval(**SCOPE, rng=1)


@pytest.mark.parametrize("name", list(SCOPE))
def test_scopes_never_leak(history: EvaluationHistory, name: str) -> None:
    """Scopes that differ in one name share neither scores nor drift."""
    other = {**SCOPE, name: "another"}
    history.record_run([0.0, 0.25, 0.5], **SCOPE, run_id="run")
    before = history.interval(**SCOPE)
    history.record_run([9.0] * 50, **other, run_id="run")
    history.record(**other, score_raw=9.0)
    assert history.interval(**SCOPE) == before
    assert history.drift([0.0, 1.0], **SCOPE).history == 3
    assert history.interval(**other).lower == 9.0


@pytest.mark.parametrize(("capture", "stored"), [("always", True), ("none", False), ("fails-only", False)])
def test_capture_decides_on_storage(history: EvaluationHistory, capture: str, stored: bool) -> None:
    """A result is stored only if its capture says so."""
    assert history.record(**SCOPE, score_raw=0.0, passed=False, capture=capture) is stored
    assert [summary.scores for summary in history.scopes()] == [1] * stored


def test_results_that_are_not_captured_are_checked(history: EvaluationHistory) -> None:
    """A NaN score raises ConfigurationError even if it is not captured."""
    with pytest.raises(ConfigurationError, match="finite"):
        history.record(**SCOPE, score_raw=math.nan, capture="none")


BINARY = [
    "custom", "exact-match", "phi", "pii", "retrieval-hallucination", "retrieval-answer-relevance",
    "retrieval-context-relevance", "retrieval-context-sufficiency",
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "score_type"),
    [*((family, "binary") for family in BINARY), ("toxicity", "continuous"), ("metrics", "continuous")],
)
def test_families_have_the_published_score_types(
    history: EvaluationHistory, family: str, score_type: str
) -> None:
    """The families' score types are the published ones: two are continuous, the others binary."""
    history.record(**SCOPE, score_raw=1.0, family=family)
    assert history.interval(**SCOPE).score_type == score_type


@pytest.mark.parametrize("family", BINARY)
def test_a_binary_score_is_the_pass_flag(history: EvaluationHistory, family: str) -> None:
    """A binary score equals its pass flag; a contradiction raises ConfigurationError."""
    for passed in (None, True):
        history.record(**SCOPE, score_raw=1, passed=passed, family=family)
    history.record(**SCOPE, score_raw=0.0, passed=False, family=family)
    found = history._store.latest(Scope(**SCOPE), limit=9)
    assert [(score.score_raw, score.passed) for score in found] == [(0.0, False), (1.0, True), (1.0, True)]
    for score, passed in ((1, False), (0, True)):
        with pytest.raises(ConfigurationError, match=f"passed to equal score_raw .*'{family}'"):
            history.record(**SCOPE, score_raw=score, passed=passed, family=family)
    with pytest.raises(ConfigurationError, match=r"score_raw 0 or 1 of the binary family .* got 0\.5"):
        history.record(**SCOPE, score_raw=0.5, family=family)
    assert history.interval(**SCOPE).scores == 3


@pytest.mark.parametrize("family", ["toxicity", "metrics"])
def test_a_continuous_score_has_a_flag_of_its_own(history: EvaluationHistory, family: str) -> None:
    """A continuous score has its own pass flag, and scores of 0 and 1 stay continuous."""
    history.record(**SCOPE, score_raw=0.0, passed=True, family=family)
    history.record(**SCOPE, score_raw=1.0, passed=False, family=family)
    assert history.interval(**SCOPE).score_type == "continuous"


def test_without_a_family_the_scores_say_their_type(history: EvaluationHistory) -> None:
    """Without a family scores of 0 and 1 are binary, until one lies between them."""
    for score in (0.0, 1.0):
        history.record(**SCOPE, score_raw=score)
    assert history.interval(**SCOPE).score_type == "binary"
    history.record(**SCOPE, score_raw=0.5)
    assert history.interval(**SCOPE).score_type == "continuous"


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, "0.5", None, [1.0]])
def test_a_score_that_is_no_finite_number_is_refused(history: EvaluationHistory, score: Any) -> None:
    """A score that is not a finite number raises ConfigurationError, alone, in a run or in a drift."""
    with pytest.raises(ConfigurationError, match="Expected score_raw to be a finite number, got"):
        history.record(**SCOPE, score_raw=score)
    if not isinstance(score, list):
        with pytest.raises(ConfigurationError, match=r"Expected scores\[1\] to be a finite number"):
            history.record_run([1.0, score], **SCOPE, run_id="run")
        with pytest.raises(ConfigurationError, match=r"Expected values\[1\] to be a finite number"):
            history.drift([1.0, score], **SCOPE)
    assert history.scopes() == []


def test_scores_that_are_left_out_are_checked(history: EvaluationHistory) -> None:
    """A wrong score in a long run raises ConfigurationError even if it would be left out."""
    for scores in ([0.0] * 3000, np.zeros(3000), np.zeros(3000, dtype=np.float32)):
        scores[1] = 0.5
        with pytest.raises(
            ConfigurationError, match=r"scores\[1\] 0 or 1 of the binary family 'pii', got 0\.5"
        ):
            history.record_run(scores, **SCOPE, run_id="run", family="pii")
        scores[1] = math.inf
        with pytest.raises(ConfigurationError, match=r"scores\[1\] to be a finite number, got"):
            history.record_run(scores, **SCOPE, run_id="run")
    with pytest.raises(ConfigurationError, match=r"scores\[0\] to be a finite number"):
        history.record_run([[1.0, 2.0], [3.0]], **SCOPE, run_id="run")
    assert history.scopes() == []
    assert history.record_run(np.array([True, False]), **SCOPE, run_id="run", family="pii") == 2


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.5, 95, math.nan, True, "0.95"])
@pytest.mark.parametrize("strategy", ["none", "full-history"])
def test_alpha_is_a_level(history: EvaluationHistory, alpha: Any, strategy: Any) -> None:
    """An alpha outside (0, 1) raises ConfigurationError under every strategy."""
    with pytest.raises(ConfigurationError, match=r"Expected alpha, the confidence level, in \(0, 1\)"):
        history.interval(**SCOPE, alpha=alpha, strategy=strategy)


def test_other_parameters_are_checked(history: EvaluationHistory) -> None:
    """Every wrong parameter raises ConfigurationError with its name."""
    with pytest.raises(ConfigurationError, match="strategy to be one of none, full-history, got 'half'"):
        history.interval(**SCOPE, strategy="half")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"family to be one of custom, .*got 'Custom'"):
        history.record(**SCOPE, score_raw=1, family="Custom")
    with pytest.raises(ConfigurationError, match="passed to be True, False or None"):
        history.record(**SCOPE, score_raw=1, passed=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="capture"):
        history.record(**SCOPE, score_raw=1, capture=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="run_id"):
        history.record_run([1.0], **SCOPE, run_id="")
    with pytest.raises(ConfigurationError, match="account_id of 1 to 255 bytes"):
        history.interval(**{**SCOPE, "account_id": ""})
    assert history.scopes() == []


def test_a_long_run_is_recorded_evenly_spread(history: EvaluationHistory) -> None:
    """Of a long run 1,000 scores are recorded, evenly spread over its rows."""
    sorted_rows = [0.0] * 30_000 + [1.0] * 10_000
    assert history.record_run(sorted_rows, **SCOPE, run_id="run", family="exact-match") == 1000
    found = history.interval(**SCOPE)
    assert (found.scores, found.median) == (1000, 0.25)


def test_a_run_recorded_again_counts_once(history: EvaluationHistory) -> None:
    """A run recorded again replaces its old scores."""
    history.record_run([0.0] * 5, **SCOPE, run_id="run")
    history.record_run([1.0] * 4, **SCOPE, run_id="run")
    found = history.interval(**SCOPE)
    assert (found.scores, found.median) == (4, 1.0)


# --- drift --------------------------------------------------------------------------------------


@pytest.mark.parametrize("decimals", [12, 1])
def test_the_distance_is_that_of_scipy(history: EvaluationHistory, decimals: int) -> None:
    """The drift's statistic equals scipy's Kolmogorov-Smirnov distance, with and without ties."""
    rng = np.random.default_rng(decimals)
    before, now = rng.beta(5, 2, 80).round(decimals), rng.beta(4, 2, 50).round(decimals)
    history.record_run(before, **SCOPE, run_id="run")
    found = history.drift(now, **SCOPE)
    assert found.statistic == pytest.approx(stats.ks_2samp(now, before).statistic, abs=1e-12)
    assert (found.values, found.history, found.mean) == (50, 80, pytest.approx(now.mean()))
    assert found.history_mean == pytest.approx(before.mean())


@pytest.mark.parametrize("share", [0.95, 0.7, 0.2])
def test_without_ties_the_p_value_is_the_exact_one(history: EvaluationHistory, share: float) -> None:
    """Without ties the p-value equals scipy's exact one, however small it is."""
    rng = np.random.default_rng(8)
    before, now = rng.random(40), rng.random(30) * share
    history.record_run(before, **SCOPE, run_id="run")
    exact = stats.ks_2samp(now, before, method="exact").pvalue
    assert history.drift(now, **SCOPE).p_value == pytest.approx(exact, rel=1e-9)


def test_the_p_value_of_many_values_far_apart_is_the_exact_one(history: EvaluationHistory) -> None:
    """Rounding adds nothing to a p-value that is far smaller, and takes it not below 0."""
    rng = np.random.default_rng(8)
    before, now = rng.random(200) / 2 + 0.2, rng.random(300) / 2
    history.record_run(before, **SCOPE, run_id="run")
    exact = stats.ks_2samp(now, before, method="exact").pvalue
    assert history.drift(now, **SCOPE).p_value == pytest.approx(exact, rel=1e-9, abs=0.0)


def test_with_ties_the_p_value_is_that_of_all_permutations(history: EvaluationHistory) -> None:
    """With ties the p-value is the share of all ways to divide the values that are as far apart."""
    before, now = [0.5, 0.5, 0.7, 0.7, 0.7, 0.9], [0.7, 0.9, 0.9, 0.9, 0.9]
    history.record_run(before, **SCOPE, run_id="run")
    found = history.drift(now, **SCOPE)
    pooled = np.array(before + now)
    ends = np.array([0.5, 0.7])

    def distance(new: list[int]) -> float:
        ours, theirs = pooled[new], np.delete(pooled, new)
        return max(abs((ours <= end).mean() - (theirs <= end).mean()) for end in ends)

    distances = np.array([distance(list(new)) for new in combinations(range(11), 5)])
    assert found.p_value == pytest.approx(np.mean(distances > distance(list(range(6, 11))) - 1e-9), rel=1e-9)


@pytest.mark.slow
def test_the_p_value_holds_its_level_with_heavy_ties(history: EvaluationHistory) -> None:
    """With heavy ties about a fifth of the p-values are at most 0.2 if nothing changed."""
    rng = np.random.default_rng(4)

    def draw(count: int) -> Any:
        return rng.choice([1.0, 0.9, 0.5], p=[0.5, 0.3, 0.2], size=count)

    found = []
    for _ in range(60):
        history.record_run(draw(60), **SCOPE, run_id="run")
        found.append(history.drift(draw(40), **SCOPE).p_value)
    small = sum(p is not None and p <= 0.2 for p in found)
    assert 4 <= small <= 20  # 12 are expected of a p-value that is neither too large nor too small


def test_a_shift_is_found(history: EvaluationHistory) -> None:
    """A shift has a tiny p-value, and unchanged values one above 0.05."""
    rng = np.random.default_rng(6)
    history.record_run(rng.beta(8, 2, 400), **SCOPE, run_id="run")
    shifted = history.drift(rng.beta(4, 2, 300), **SCOPE).p_value
    assert shifted is not None
    assert shifted < 1e-15
    unchanged = history.drift(rng.beta(8, 2, 300), **SCOPE).p_value
    assert unchanged is not None
    assert unchanged > 0.05


def test_constant_values_do_not_drift(history: EvaluationHistory) -> None:
    """Equal values have the distance 0 and p = 1."""
    history.record_run([0.9] * 10, **SCOPE, run_id="run")
    found = history.drift([0.9] * 5, **SCOPE)
    assert (found.statistic, found.p_value) == (0.0, 1.0)


@pytest.mark.parametrize(("before", "now"), [(0, 5), (1, 5), (5, 1), (5, 0)])
def test_too_few_values_give_no_p_value(history: EvaluationHistory, before: int, now: int) -> None:
    """Too few values on either side give no p-value, and the counts."""
    history.record_run([0.5] * before, **SCOPE, run_id="run")
    found = history.drift([0.7] * now, **SCOPE)
    assert (found.statistic, found.p_value, found.values, found.history) == (None, None, now, before)


def test_a_run_is_not_compared_with_itself(history: EvaluationHistory) -> None:
    """The run named by `without_run` is left out of the comparison."""
    history.record_run([0.1, 0.2], **SCOPE, run_id="earlier")
    history.record_run([0.7, 0.8, 0.9], **SCOPE, run_id="now")
    assert history.drift([0.7, 0.8, 0.9], **SCOPE, without_run="now").history == 2


# --- where it is --------------------------------------------------------------------------------


def test_a_history_that_must_exist_is_missing(tmp_path: Path) -> None:
    """With create=False a missing file raises StateError, and no file is made."""
    with pytest.raises(StateError, match=r"none\.db: holds no evaluation history"):
        EvaluationHistory(tmp_path / "none.db", create=False)
    assert list(tmp_path.iterdir()) == []


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calibrant_home: Path) -> None:
    """The default place is named by CALIBRANT_HISTORY, or lies in the folder for state."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert EvaluationHistory().location == str(calibrant_home / "history.sqlite")
    monkeypatch.setenv("CALIBRANT_HISTORY", f"sqlite:///{tmp_path}/h.db")
    assert EvaluationHistory().location == str(tmp_path / "h.db")
    monkeypatch.delenv("CALIBRANT_HISTORY")
    monkeypatch.delenv("CALIBRANT_HOME")
    assert EvaluationHistory().location == str(tmp_path / ".local" / "state" / "calibrant" / "history.sqlite")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    assert EvaluationHistory().location == str(tmp_path / "s" / "calibrant" / "history.sqlite")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert EvaluationHistory().location == str(tmp_path / ".local" / "state" / "calibrant" / "history.sqlite")
