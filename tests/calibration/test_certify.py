"""Tests of certified thresholds: their promise, their coverage, and rows that are missing."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

from calibrant.calibration import certify_class_thresholds, certify_threshold
from calibrant.core import ConfigurationError

ROOT = Path(__file__).parents[2]
RECORDED = Path(os.environ.get("CALIBRANT_RECORDED", ROOT.parent / "shared" / "data" / "recorded"))
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def bench() -> Any:
    """Return the benchmark as a module."""
    spec = importlib.util.spec_from_file_location("bench_certify", ROOT / "benchmarks" / "bench_certify.py")
    if spec is None or spec.loader is None or not (ROOT / "benchmarks").is_dir():
        pytest.skip("benchmarks/ is not part of this installation")
    sys.path.insert(0, str(ROOT / "benchmarks"))  # for the module of its data sets
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_certify"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return calibrated confidences, two fifths of them exactly 1 (and right 19 times in 20)."""
    confidence = np.where(rng.random(n) < 0.4, 1.0, rng.beta(4, 2, n))
    return confidence, (rng.random(n) < np.minimum(confidence, 0.95)).astype(float)


def test_59_right_answers_prove_95_percent_and_58_do_not() -> None:
    """With 59 right answers an accuracy of 95 % is certified, and with 58 it is not."""
    found = certify_threshold([0.9] * 59, [1] * 59, target_accuracy=0.95)
    assert (found.threshold, found.coverage, found.accuracy) == (0.9, 1.0, 1.0)
    assert found.accuracy_lower_bound == pytest.approx(0.05 ** (1 / 59), rel=1e-12)
    short = certify_threshold([0.9] * 58, [1] * 58, target_accuracy=0.95)
    assert (short.threshold, short.coverage, short.accuracy) == (None, 0.0, None)
    assert short.additional_rows == 1
    assert certify_threshold([1.0], [1], target_accuracy=0.95).additional_rows == 58


def test_copies_are_no_further_evidence() -> None:
    """With 30 templates of six texts, right or wrong together, a promise is broken rarely if each counts as one."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(30), 6)
    n_broken = {"every row": 0, "one of each group": 0}
    for _ in range(400):
        right = rng.random(30)[groups] < 0.89
        confidence = rng.uniform(0.6, 0.99, 30)[groups] + rng.uniform(0.0, 0.001, 180)
        for name, known in (("every row", None), ("one of each group", groups)):
            # Every threshold is right in 0.89 alone, so that any certificate is wrong.
            found = certify_threshold(confidence, right, target_accuracy=0.9, groups=known)
            n_broken[name] += found.threshold is not None
    assert n_broken["every row"] > 0.3 * 400
    assert n_broken["one of each group"] <= 0.05 * 400


def test_large_groups_that_are_wrong_are_not_forgotten() -> None:
    """One row of each group may pass where all rows do not: then nothing is certified."""
    groups = [*range(60), *([60] * 30)]
    right = [1] * 60 + [0] * 30
    assert certify_threshold([0.9] * 61, right[:61], target_accuracy=0.9).threshold == 0.9
    found = certify_threshold([0.9] * 90, right, target_accuracy=0.9, groups=groups)
    assert found.threshold is None
    # Where the large group is unsure, the rows above it are accepted.
    sure = certify_threshold([0.9] * 60 + [0.5] * 30, right, target_accuracy=0.9, groups=groups)
    assert (sure.threshold, sure.n_accepted, sure.n_repeats) == (0.9, 60, 29)


def test_groups_have_a_number_for_each_row() -> None:
    """Groups of another length are refused."""
    with pytest.raises(ConfigurationError, match=r"groups of shape \(2,\), got \(3,\)"):
        certify_threshold([0.9] * 2, [1] * 2, target_accuracy=0.9, groups=[0, 1, 2])


@pytest.mark.parametrize(
    ("n", "target", "delta", "power"),
    [(1000, 0.9, 0.05, 0.907), (1500, 0.95, 0.1, 0.863), (1000, 0.8, 0.01, 0.903), (600, 0.85, 0.1, 0.859)],
)
def test_midway_accuracy_is_mostly_certified(n: int, target: float, delta: float, power: float) -> None:
    """Models midway between target and 1 are certified as often as the stated power."""
    rng = np.random.default_rng(0)
    confidence = np.linspace(0.5, 1.0, n)
    found = [
        certify_threshold(confidence, correct, target_accuracy=target, delta=delta).threshold
        for correct in rng.random((400, n)) < (1 + target) / 2
    ]
    certified = np.mean([threshold is not None for threshold in found])
    assert certified == pytest.approx(power, abs=0.06)


def test_wrong_answers_among_the_surest_do_not_end_the_sequence_before_it_begins() -> None:
    """A few wrong answers among the surest 250 rows do not stop certification."""
    correct = np.ones(1000)
    correct[:12] = 0.0
    correct[250:] = np.arange(750) % 2
    found = certify_threshold(np.linspace(1.0, 0.5, 1000), correct, target_accuracy=0.9)
    assert found.threshold is not None
    assert 230 <= found.n_accepted <= 270


def test_the_sequence_begins_within_the_surest_quarter() -> None:
    """The sequence begins at a quarter of the rows if fewer exist than its power needs (113)."""
    correct = np.repeat([1.0, 0.0], [30, 70])
    found = certify_threshold(np.linspace(1.0, 0.5, 100), correct, target_accuracy=0.85, delta=0.1)
    assert found.threshold is not None
    assert 25 <= found.n_accepted <= 35


def test_the_threshold_is_the_last_of_an_unbroken_row_of_passes() -> None:
    """The threshold is that of a written-out loop, which stops at the first failed test."""
    confidence, correct = draw(np.random.default_rng(1), 800)
    found = certify_threshold(confidence, correct, target_accuracy=0.85, delta=0.1)
    last = None
    for step in range(1000, -1, -1):
        accepted = confidence >= step / 1000
        n, k = int(accepted.sum()), int(correct[accepted].sum())
        if n < 112:  # recognises 0.925 against 0.85 nine times in ten at delta 0.1
            continue
        if binom.sf(k - 1, n, 0.85) > 0.1:
            break
        last = step / 1000
    assert last is not None
    assert found.threshold == pytest.approx(last, abs=0.002)
    assert found.coverage == np.mean(confidence >= found.threshold)
    assert 0.3 < found.coverage < 0.9


def test_a_wrong_answer_is_waited_for_until_one_more_is_allowed() -> None:
    """Of 27 to 37 rows none may be wrong, of 38 one; so the 28th may."""
    confidence = np.linspace(0.99, 0.6, 40)
    correct = np.ones(40)
    correct[27] = 0.0
    found = certify_threshold(confidence, correct, target_accuracy=0.9, delta=0.1)
    assert found.n_accepted == 40


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 60).map(lambda n: n / 60), st.sampled_from([True, True, True, False])),
        min_size=1,
        max_size=90,
    ),
    target=st.sampled_from([0.5, 0.7, 0.9]),
    delta=st.sampled_from([0.05, 0.2]),
)
def test_the_rows_are_tested_where_one_wrong_answer_more_is_allowed(
    rows: list[tuple[float, bool]], target: float, delta: float
) -> None:
    """The threshold is that of a written-out loop over distinct confidences and numbers of wrong answers."""
    confidence, correct = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    first = np.floor(confidence.max() * 1000) / 1000  # the highest threshold that accepts a row
    found = certify_threshold(confidence, correct, target_accuracy=target, delta=delta, start=first)

    def most_wrong(n: int) -> int:
        return max((m for m in range(n + 1) if binom.cdf(m, n, 1.0 - target) <= delta), default=-1)

    n_before, accepted = 0, 0
    for threshold in sorted(set(confidence), reverse=True):
        right = correct[confidence >= threshold]
        n = len(right)
        earlier = max(0, min(n_before, n - math.ceil(0.5 / (1.0 - target) - 1e-9)))
        if most_wrong(n) > most_wrong(earlier) or most_wrong(n) == most_wrong(len(rows)):
            if n - right.sum() > most_wrong(n):
                break
            accepted = n
        n_before = n
    assert found.n_accepted == accepted


def test_the_lower_bound_is_exact_and_never_below_the_target() -> None:
    """The lower bound solves the binomial equation at delta, and is at least the target."""
    confidence, correct = draw(np.random.default_rng(2), 600)
    found = certify_threshold(confidence, correct, target_accuracy=0.8, delta=0.05)
    right = round(found.accuracy * found.n_accepted)  # type: ignore[operator]
    assert binom.sf(right - 1, found.n_accepted, found.accuracy_lower_bound) == pytest.approx(0.05)
    assert 0.8 <= found.accuracy_lower_bound < found.accuracy  # type: ignore[operator]


def test_the_promise_holds_on_synthetic_data(bench: Any) -> None:
    """Of 1,000 samples, at most delta and its error accept too many errors."""
    confidence, correct = draw(np.random.default_rng(3), 4000)
    found = bench.simulate(
        confidence, correct, target=0.85, delta=0.1, draws=1000, rows=400, rng=np.random.default_rng(4)
    )
    assert found.wrong <= 0.1 + 2 * 0.0095
    assert found.coverage >= bench.hindsight(confidence, correct, 0.90)


@pytest.mark.slow
def test_the_promise_holds_where_accuracy_rises_as_confidence_falls(bench: Any) -> None:
    """The promise holds where the surest answers are worse than the target."""
    rng = np.random.default_rng(5)
    confidence = np.concatenate([rng.uniform(0.9, 1.0, 1100), rng.uniform(0.5, 0.9, 3000)])
    chance = np.where(confidence > 0.9, 0.78, np.where(confidence > 0.7, 0.88, 0.6))
    correct = (rng.random(len(confidence)) < chance).astype(float)
    for rows in (200, 450, 900):
        drawn = {"draws": 2000, "rows": rows, "rng": np.random.default_rng(rows)}
        found = bench.simulate(confidence, correct, target=0.85, delta=0.1, **drawn)
        assert found.wrong <= 0.1 + 2 * 0.007


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded answers are not here (CALIBRANT_RECORDED)")
@pytest.mark.parametrize("name", ["ag_news", "rotten_tomatoes", "emotion"])
def test_the_promise_holds_on_recorded_answers(bench: Any, name: str) -> None:
    """The promise holds on recorded answers, with nearly the coverage of hindsight."""
    populations = bench.read(RECORDED / f"{name}.csv")
    for target in bench.TARGETS[name]:
        for prompt, (confidence, correct) in populations.items():
            drawn = {"draws": 300, "rows": 1000, "rng": np.random.default_rng(0)}
            found = bench.simulate(confidence, correct, target=target, delta=0.1, **drawn)
            assert found.wrong <= 0.1 + 2 * 0.0173, (prompt, target)
            if prompt == "all":
                assert found.coverage >= found.hindsight - 0.005, target


def test_the_benchmark_counts_as_the_function_does(bench: Any) -> None:
    """The benchmark's coverage of one sample equals that of `certify_threshold`."""
    confidence, correct = draw(np.random.default_rng(6), 500)
    drawn = np.random.default_rng(7).integers(500, size=(1, 300))
    found = bench.simulate(
        confidence, correct, target=0.8, delta=0.1, draws=1, rows=300, rng=np.random.default_rng(7)
    )
    one = certify_threshold(confidence[drawn[0]], correct[drawn[0]], target_accuracy=0.8, delta=0.1)
    assert one.threshold is not None
    assert found.coverage == pytest.approx(np.mean(confidence >= one.threshold))


def test_a_start_of_ones_own_is_the_first_threshold_tested() -> None:
    """`start` is the first threshold that is tested, and a failure there ends the sequence."""
    confidence = [0.99] * 100 + [0.8] * 900
    correct = [0] * 50 + [1] * 950
    low = certify_threshold(confidence, correct, target_accuracy=0.9, start=0.85)
    assert low.threshold is None
    assert certify_threshold(confidence, correct, target_accuracy=0.9, start=0.8).threshold == 0.8
    assert certify_threshold(confidence, correct, target_accuracy=0.9, start=1.0).threshold is None
    assert certify_threshold([0.99] * 100, [1] * 100, target_accuracy=0.9, start=0.85).threshold == 0.85


def test_what_is_missing_is_counted_from_what_was_observed() -> None:
    """`additional_rows` more rows of the same accuracy suffice, and half as many do not."""
    confidence, correct = np.full(100, 0.9), np.array([1] * 93 + [0] * 7)
    found = certify_threshold(confidence, correct, target_accuracy=0.9)
    assert found.threshold is None
    assert found.additional_rows is not None
    for rows, enough in ((100 + found.additional_rows, True), (100 + found.additional_rows // 2, False)):
        right = int(0.93 * rows)
        again = certify_threshold(np.full(rows, 0.9), np.arange(rows) < right, target_accuracy=0.9)
        assert (again.threshold is not None) is enough


@pytest.mark.parametrize("n", [1, 30, 200])
def test_no_number_of_rows_is_named_where_the_model_is_not_good_enough(n: int) -> None:
    """Where all rows are wrong, `additional_rows` is None."""
    found = certify_threshold(np.linspace(0, 1, n), np.zeros(n), target_accuracy=0.9)
    assert (found.threshold, found.additional_rows, found.n) == (None, None, n)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=120),
    target=st.floats(0.05, 0.99),
    seed=st.integers(0, 100),
)
def test_row_order_does_not_matter(rows: list[tuple[float, bool]], target: float, seed: int) -> None:
    """The result does not depend on the order of rows."""
    confidence, correct = np.array([p for p, _ in rows]), np.array([y for _, y in rows])
    found = certify_threshold(confidence, correct, target_accuracy=target)
    order = np.random.default_rng(seed).permutation(len(rows))
    assert certify_threshold(confidence[order], correct[order], target_accuracy=target) == found
    if found.threshold is None:
        assert found.coverage == 0
    else:
        assert found.n_accepted == np.sum(confidence >= found.threshold)


@pytest.mark.parametrize(
    ("confidence", "correct", "options", "says"),
    [
        ([0.5], [2], {}, "only 0 and 1"),
        ([0.5], [1], {"target_accuracy": 1.0}, r"target_accuracy in \(0, 1\), got 1.0"),
        ([0.5], [1], {"delta": 0.0}, "delta"),
        ([0.5], [1], {"start": 1.5}, "start"),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(
    confidence: list[float], correct: list[int], options: dict[str, Any], says: str
) -> None:
    """A value out of range raises ConfigurationError with what was expected."""
    with pytest.raises(ConfigurationError, match=says):
        certify_threshold(confidence, correct, **{"target_accuracy": 0.9, **options})


def test_classes_share_the_allowed_error() -> None:
    """Each of three labels is tested at a third of delta, and only a proven one gets a threshold."""
    confidence = [0.9] * 100 + [0.8] * 100
    correct = [1] * 100 + [0] * 100
    predicted = ["a"] * 100 + ["b"] * 100
    found = certify_class_thresholds(
        confidence, correct, predicted, target_accuracy=0.9, delta=0.06, labels=["a", "b", "c"]
    )
    assert [t.threshold for t in found.thresholds.values()] == [0.9, None, None]
    assert {t.delta for t in found.thresholds.values()} == {0.02}
    assert found.thresholds["a"] == certify_threshold([0.9] * 100, [1] * 100, target_accuracy=0.9, delta=0.02)
    assert found.thresholds["c"].n == 0
    assert found.coverage == 0.5
    assert found.accepts([0.95, 0.89, 1.0, 1.0], ["a", "a", "b", "z"]).tolist() == [True, False, False, False]


def test_all_class_thresholds_hold_together() -> None:
    """The share of samples in which any label accepts too many errors is at most delta, up to error."""
    rng = np.random.default_rng(8)
    chance = {"a": (0.95, 0.84), "b": (0.9, 0.8), "c": (0.93, 0.849)}  # sure and unsure answers
    failed = 0
    for _ in range(200):
        predicted = rng.choice(list(chance), 600)
        sure = rng.random(600) < 0.5
        good = np.array([chance[label][0 if s else 1] for label, s in zip(predicted, sure, strict=True)])
        found = certify_class_thresholds(
            np.where(sure, 0.9, 0.6), rng.random(600) < good, list(predicted), target_accuracy=0.9, delta=0.2
        )
        failed += any(
            t.threshold is not None
            and (chance[label][0] if t.threshold > 0.6 else sum(chance[label]) / 2) < 0.9 - 1e-12
            for label, t in found.thresholds.items()
        )
    assert failed / 200 <= 0.2 + 2 * 0.0283
    assert failed > 0  # b accepts everything at 0.85 now and then: the check can see errors


def test_labels_outside_the_set_are_refused() -> None:
    """A label outside the set raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"among \['a'\], got \['b'\]"):
        certify_class_thresholds([0.5], [1], ["b"], target_accuracy=0.9, labels=["a"])
    with pytest.raises(ConfigurationError, match="one per row"):
        certify_class_thresholds([0.5], [1], ["a", "b"], target_accuracy=0.9)
