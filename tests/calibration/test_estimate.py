"""Tests of estimates about a file's rows: unbiasedness, exactness, intervals, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from calibrant.calibration import certify, estimate, estimate_difference
from calibrant.core import ConfigurationError
from calibrant.metrics import wilson_interval

TRUTH = ["cat", "dog"] * 500


def unsure(seed: int, n: int, labels: str = "ab") -> tuple[list[str], list[str], list[float]]:
    """Return true and predicted labels, and confidences that tell something of them."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(list(labels), n).tolist()
    sure = rng.choice([0.6, 0.8, 0.99], n)
    predicted = np.where(rng.random(n) < sure, truth, rng.choice(list(labels), n)).tolist()
    return truth, predicted, sure.tolist()


def keys_of_all_samples(n: int, budget: int, count: int) -> list[str]:
    """Return a key for each set of rows that may be drawn."""
    found: dict[frozenset[int], str] = {}
    for number in range(100 * count):
        drawn: list[int] = []
        estimate(
            ["a"] * n, ask=lambda row, drawn=drawn: drawn.append(row) or "a", budget=budget, key=str(number)
        )  # type: ignore[misc]
        found.setdefault(frozenset(drawn), str(number))
        if len(found) == count:
            break
    return list(found.values())


def test_the_mean_over_all_samples_is_the_truth() -> None:
    """Over every sample of 6 of 9 rows the estimates average to the share in the pile, exactly."""
    truth = list("aabbabbab")
    p = np.array([0.9, 0.5, 0.2, 0.6, 0.7, 0.1, 0.4, 0.3, 0.5])
    keys = keys_of_all_samples(9, 6, 84)
    assert len(keys) == 84
    estimates, plain = [], []
    for key in keys:
        for by, found in ((np.column_stack([p, 1.0 - p]), estimates), (None, plain)):
            one = estimate(["a"] * 9, by, ask=truth.__getitem__, budget=6, labels=["a", "b"], key=key)
            found.append(one.shares["a"].interval.estimate)
    assert np.mean(estimates) == pytest.approx(4 / 9, abs=1e-12)
    assert np.std(estimates) < np.std(plain)  # the predictions are of use


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_all_rows_labelled_give_the_truth(seed: int, n: int) -> None:
    """With every row labelled all estimates are exact, and their intervals are points."""
    truth, predicted, sure = unsure(seed, n, "abc")
    found = estimate(predicted, sure, ask=truth.__getitem__, budget=n, labels=["a", "b", "c"])
    shares = {label: truth.count(label) / n for label in "abc"}
    accuracy = np.mean([one == other for one, other in zip(truth, predicted, strict=True)])
    f1 = [
        2
        * sum(t == p == label for t, p in zip(truth, predicted, strict=True))
        / max(truth.count(label) + predicted.count(label), 1)
        for label in "abc"
    ]
    exact = [*shares.values(), accuracy, np.mean(f1)]
    for one, value in zip([*found.shares.values(), found.accuracy, found.macro_f1], exact, strict=True):
        ends = (one.interval.lower, one.interval.estimate, one.interval.upper)
        assert ends == pytest.approx((value,) * 3, abs=1e-9)
        assert one.plain_labels == n


@given(st.integers(0, 2**32 - 1), st.integers(2, 39), st.booleans())
def test_intervals_hold_their_estimate_and_what_is_known(seed: int, budget: int, is_plain: bool) -> None:
    """Whatever the labels, an interval holds its estimate, has a width, and allows for the labels given."""
    truth, predicted, sure = unsure(seed, 40)
    asked: list[int] = []

    def ask(row: int) -> str:
        asked.append(row)
        return truth[row]

    by = None if is_plain else sure
    found = estimate(predicted, by, ask=ask, budget=budget, labels=["a", "b"])
    assert len(asked) == len(set(asked)) == found.labels_used == budget
    for one in (*found.shares.values(), found.accuracy, found.macro_f1):
        assert 0.0 <= one.interval.lower <= one.interval.estimate <= one.interval.upper <= 1.0
        assert one.interval.lower < one.interval.upper
    n_a = sum(truth[row] == "a" for row in asked)
    assert found.shares["a"].interval.lower >= n_a / 40
    assert found.shares["a"].interval.upper <= (n_a + 40 - budget) / 40


def test_useless_predictions_cost_nothing() -> None:
    """Where the predictions say nothing of a row, the interval is Wilson's, corrected for the size of the pile."""
    found = estimate(["cat"] * 1000, ask=TRUTH.__getitem__, budget=100, labels=["cat", "dog"])
    cats = round(found.shares["cat"].interval.estimate * 100)
    low, high = found.shares["cat"].interval.lower, found.shares["cat"].interval.upper
    plain = wilson_interval(cats, 100)
    assert plain.lower < low < cats / 100 < high < plain.upper
    assert (high - low) / (plain.upper - plain.lower) == pytest.approx((900 / 999) ** 0.5, rel=0.02)
    assert found.shares["cat"].plain_labels == 100


def test_right_predictions_save_labels() -> None:
    """Where the predictions are right, many times the labels would be needed, but a few labels are not certainty."""
    found = estimate(TRUTH, ask=TRUTH.__getitem__, budget=50)
    share = found.shares["cat"]
    assert share.interval.estimate == pytest.approx(0.5, abs=0.01)
    assert 0.02 < share.interval.upper - share.interval.lower < 0.1
    assert share.plain_labels > 500


def test_a_label_that_was_not_seen_may_be_there() -> None:
    """A label that no labelled row has keeps an interval as wide as Wilson's of no hits."""
    found = estimate(
        ["cat"] * 990 + ["cow"] * 10, ask=lambda _: "cat", budget=50, labels=["cat", "cow", "dog"]
    )
    for label in ("cow", "dog"):
        interval = found.shares[label].interval
        assert (interval.lower, interval.estimate) == (0.0, 0.0)
        assert interval.upper == pytest.approx(wilson_interval(0, 50).upper, rel=0.06)
    assert found.shares["cat"].interval.upper == 1.0


@pytest.mark.parametrize("budget", [50, 150])
def test_intervals_cover(budget: int) -> None:
    """At 95 %, at least 91 % of 300 intervals hold the truth: shares, accuracy, macro F1."""
    truth, predicted, sure = unsure(1, 400, "abc")
    all_rows = estimate(predicted, sure, ask=truth.__getitem__, budget=400)
    exact = [
        one.interval.estimate for one in (*all_rows.shares.values(), all_rows.accuracy, all_rows.macro_f1)
    ]
    covered = np.zeros(5)
    for key in range(300):
        found = estimate(predicted, sure, ask=truth.__getitem__, budget=budget, key=str(key))
        intervals = [one.interval for one in (*found.shares.values(), found.accuracy, found.macro_f1)]
        covered += [one.lower <= value <= one.upper for one, value in zip(intervals, exact, strict=True)]
    assert (covered / 300 >= 0.91).all()


@pytest.mark.parametrize(("n_wrong", "budget"), [(60, 50), (15, 200)])
def test_macro_f1_allows_for_mistakes_that_no_label_has_shown(n_wrong: int, budget: int) -> None:
    """Of a file with so few mistakes that a sample may show none, at least 91 % of 300 intervals hold the truth."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 2000)
    predicted = truth.copy()
    predicted[:n_wrong] = (truth[:n_wrong] + rng.integers(1, 4, n_wrong)) % 4
    labels = truth.astype(str).tolist()
    exact = f1_score(truth, predicted, average="macro")
    covered = 0
    for key in range(300):
        found = estimate(
            predicted.astype(str).tolist(),
            np.full(2000, 0.99),
            ask=labels.__getitem__,
            budget=budget,
            key=str(key),
        )
        interval = found.macro_f1.interval
        covered += interval.lower <= exact <= interval.upper
    assert covered >= 0.91 * 300


@pytest.mark.parametrize("budget", [20, 200])
def test_where_no_mistake_was_seen_macro_f1_is_1(budget: int) -> None:
    """Confidences that vary do not lower what every label drawn shows."""
    rng = np.random.default_rng(0)
    truth = rng.choice(["cat", "cow", "dog"], 500).tolist()
    found = estimate(
        truth, rng.uniform(0.4, 1.0, 500), ask=truth.__getitem__, budget=budget
    ).macro_f1.interval
    assert (found.estimate, found.upper) == (1.0, 1.0)
    assert found.lower > 0.8


def test_rows_that_were_all_refused_are_estimated() -> None:
    """Accuracy and macro F1 are 0, and the shares are those of the labels given."""
    found = estimate([None] * 50, ask=lambda _: "a", budget=20)
    assert (found.accuracy.interval.estimate, found.macro_f1.interval.estimate) == (0.0, 0.0)
    assert found.shares["a"].interval.estimate == 1.0


def test_rows_without_a_label_are_wrong() -> None:
    """A row without a prediction, or that no label fits, counts as wrong, and in no share."""
    truth: list[str | None] = ["cat", None, "cat", "dog"]
    found = estimate(["cat", "cat", None, None], ask=truth.__getitem__, budget=4, labels=["cat", "dog"])
    assert found.accuracy.interval.estimate == 0.25
    assert [one.interval.estimate for one in found.shares.values()] == [0.5, 0.25]
    assert found.predicted == {"cat": 2, "dog": 0}


def test_a_difference_asks_where_two_predictions_differ() -> None:
    """Rows that both predict alike are not asked about; the interval holds the difference and is narrower."""
    first = [*TRUTH[:900], *(["cat"] * 100)]
    second = [*(["dog"] * 200), *TRUTH[200:]]
    apart = [row for row in range(1000) if first[row] != second[row]]
    asked: list[int] = []

    def ask(row: int) -> str:
        asked.append(row)
        return TRUTH[row]

    found = estimate_difference(first, second, ask=ask, budget=60)
    assert set(asked) <= set(apart)
    assert (found.labels_used, found.rows_apart) == (60, 150)
    assert found.interval.lower <= 0.05 <= found.interval.upper
    assert found.interval.upper - found.interval.lower < 0.08
    assert found.plain_labels > 100
    swapped = estimate_difference(second, first, ask=ask, budget=60)
    assert swapped.interval.estimate == pytest.approx(-found.interval.estimate)
    whole = estimate_difference(first, second, ask=ask, budget=1000)
    assert (whole.interval.lower, whole.interval.estimate, whole.interval.upper) == pytest.approx((0.05,) * 3)
    same = estimate_difference(first, first, ask=ask, budget=10)
    assert (same.interval.lower, same.interval.upper, same.labels_used) == (0.0, 0.0, 0)


def test_rows_of_series_belong_together_by_position() -> None:
    """Predictions in series, whatever their index, give the figures of lists; NaN is a row without a label."""
    first = [None, *TRUTH[1:900], *(["cat"] * 100)]
    second = [None, *(["dog"] * 199), *TRUTH[200:]]
    for index in (range(1000, 2000), range(999, -1, -1)):
        one, other = pd.Series(first, index=index), pd.Series(second, index=index)
        found = estimate_difference(one, other, ask=TRUTH.__getitem__, budget=60)
        assert found == estimate_difference(first, second, ask=TRUTH.__getitem__, budget=60)
        assert found.rows_apart == 149
        assert estimate(one, ask=TRUTH.__getitem__, budget=60) == estimate(
            first, ask=TRUTH.__getitem__, budget=60
        )


def test_differences_cover() -> None:
    """At 95 %, at least 91 % of 300 intervals of a difference hold it, rows that neither has right included."""
    truth, first, sure = unsure(2, 400, "abc")
    _, second, also = unsure(3, 400, "abc")
    exact = float(np.mean([(a == t) - (b == t) for a, b, t in zip(first, second, truth, strict=True)]))
    found = [
        estimate_difference(
            first, second, ask=truth.__getitem__, budget=60, confidences=(sure, also), key=str(key)
        ).interval
        for key in range(300)
    ]
    assert np.mean([one.lower <= exact <= one.upper for one in found]) >= 0.91
    assert np.mean([one.estimate for one in found]) == pytest.approx(exact, abs=0.01)


def test_answers_to_certify_serve_an_estimate() -> None:
    """Where `certify` accepts all rows, it has asked about the first rows that `estimate` draws."""
    by_certify: list[int] = []
    by_estimate: list[int] = []
    found = certify([0.9] * 500, lambda row: by_certify.append(row) or True, target=0.9, budget=300)  # type: ignore[func-returns-value]
    estimate(["a"] * 500, ask=lambda row: by_estimate.append(row) or "a", budget=25)  # type: ignore[func-returns-value]
    assert found.kept == 1.0
    assert set(by_estimate) <= set(by_certify)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"budget": 1}, "from 2 to 3"),
        ({"budget": 4}, "from 2 to 3"),
        ({"budget": 2.0}, "budget"),
        ({"probabilities": [0.5, 0.5]}, r"each of 3 rows, got numbers of shape \(2,\)"),
        ({"probabilities": [0.5, 0.5, 1.5]}, r"\[0, 1\]"),
        ({"labels": ["a"]}, "got 'b'"),
        ({"labels": []}, "empty"),
        ({"ask": lambda _: "cow"}, "got 'cow'"),
        ({"level": 1.0}, "level"),
        ({"inputs": ["x"]}, "input for each"),
        ({"key": ""}, "key"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], named: str) -> None:
    """Values out of range and unknown labels are refused with their name, before a label is paid for."""
    asked: list[int] = []

    def ask(row: int) -> str:
        asked.append(row)
        return "a"

    values: dict[str, Any] = {"ask": ask, "budget": 2, "labels": ["a", "b"], **given}
    with pytest.raises(ConfigurationError, match=named):
        estimate(["a", "b", "a"], values.pop("probabilities", None), **values)
    assert not asked


def test_two_predictions_are_of_the_same_rows() -> None:
    """Predictions of other rows, and a budget out of range, are refused."""
    with pytest.raises(ConfigurationError, match="two predictions for each row, got 2 and 1"):
        estimate_difference(["a", "b"], ["a"], ask=lambda _: "a", budget=2)
    with pytest.raises(ConfigurationError, match="from 2 to 2"):
        estimate_difference(["a", "b"], ["a", "a"], ask=lambda _: "a", budget=5)
    with pytest.raises(ConfigurationError, match="shape"):
        estimate_difference(["a", "b"], ["a", "a"], ask=lambda _: "a", budget=2, confidences=([0.5], [0.5]))
