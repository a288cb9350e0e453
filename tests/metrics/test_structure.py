"""Tests of metrics of scales and trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from calibrant.core import ConfigurationError, HierarchicalLabels, LabelSet, OrdinalLabels, Prediction
from calibrant.metrics import HierarchicalMetrics, OrdinalMetrics, mean_interval, wilson_interval
from evaluated import FAILED, evaluated
from evaluated import given as predicted

SCALE = OrdinalLabels(["1", "2", "3", "4", "5"])
TREE = HierarchicalLabels(["a", "a/b", "a/c/d", "a/c/e", "f/g"])

# (true, given) by place; place 5 is an answer that is no label.
rows_of_five = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=40)


def counted(labels: LabelSet, rows: list[tuple[int, int]]) -> Any:
    """Return the metrics of the structure of labels, on these rows."""
    legal = [*labels.labels, None]
    return evaluated(labels, [(labels[true], predicted(legal[label])) for true, label in rows]).structure


def credit(labels: LabelSet, true: int, label: int) -> float:
    """Return the adapter's credit of an answer."""
    if label == len(labels):
        return 0.0
    aspects = labels.aspects(Prediction(label=labels[label]), labels[true])
    return sum(aspect.is_correct for aspect in aspects) / len(aspects)


@given(rows_of_five)
def test_scales_are_counted_as_row_by_row(rows: list[tuple[int, int]]) -> None:
    """Metrics of a scale equal a count row by row, and kappa equals scikit-learn's."""
    found = counted(SCALE, rows)
    assert isinstance(found, OrdinalMetrics)
    placed = [(true, label) for true, label in rows if label < 5]
    assert (found.rows, found.labelled) == (len(rows), len(placed))
    assert found.credit.estimate == pytest.approx(np.mean([credit(SCALE, *row) for row in rows]))
    near = sum(abs(true - label) <= 1 for true, label in placed)
    assert found.within_one == wilson_interval(near, len(rows))
    if not placed:
        assert found.mean_absolute_error is None
        assert found.quadratic_kappa is None
        return
    assert found.mean_absolute_error is not None
    steps = [abs(true - label) for true, label in placed]
    assert found.mean_absolute_error.estimate == pytest.approx(np.mean(steps))
    share = mean_interval(np.array(steps) / 4, np.ones(len(steps), dtype=np.int64))
    assert found.mean_absolute_error.lower == pytest.approx(4 * share.lower)
    assert found.mean_absolute_error.upper == pytest.approx(4 * share.upper)
    if len({place for row in placed for place in row}) > 1:
        truth, given_labels = zip(*placed, strict=True)
        reference = cohen_kappa_score(truth, given_labels, labels=range(5), weights="quadratic")
        assert found.quadratic_kappa == pytest.approx(reference)
    else:
        assert found.quadratic_kappa is None


@given(rows_of_five)
def test_trees_are_counted_as_row_by_row(rows: list[tuple[int, int]]) -> None:
    """Metrics of a tree equal a count row by row over labels and all labels above them."""
    found = counted(TREE, rows)
    assert isinstance(found, HierarchicalMetrics)
    both = meant = said = 0
    for true, label in rows:
        truth, answer = above(TREE[true]), above(TREE[label]) if label < 5 else set()
        both, meant, said = both + len(truth & answer), meant + len(truth), said + len(answer)
    precision, recall = both / said if said else 0.0, both / meant
    assert found.precision == pytest.approx(precision)
    assert found.recall == pytest.approx(recall)
    assert found.f1 == pytest.approx(2 * both / (said + meant))
    assert found.credit.estimate == pytest.approx(np.mean([credit(TREE, *row) for row in rows]))
    for level in (1, 2, 3):
        right = sum(
            label < 5 and begun(TREE[true], level) == begun(TREE[label], level) for true, label in rows
        )
        assert found.levels[level - 1] == wilson_interval(right, len(rows))
    assert found.levels[2].estimate == pytest.approx(np.mean([true == label for true, label in rows]))


def above(label: str) -> set[str]:
    """Return a label and all labels above it."""
    parts = label.split("/")
    return {"/".join(parts[: n + 1]) for n in range(len(parts))}


def begun(label: str, level: int) -> str:
    """Return the beginning of a label down to a level."""
    return "/".join(label.split("/")[:level])


def test_plain_labels_and_no_rows_have_no_such_numbers() -> None:
    """Plain labels and rows without an answer give None."""
    assert counted(LabelSet(SCALE.labels), [(0, 0)]) is None
    for labels in (SCALE, TREE):
        assert evaluated(labels, [(labels[0], FAILED)]).structure is None


def test_numbers_stand_in_a_table_with_their_rows() -> None:
    """`figures` lists every metric with its name, and with its rows for a scale."""
    scale = counted(SCALE, [(0, 1), (4, 4), (2, 5)])
    assert [(figure.name, figure.rows) for figure in scale.figures()] == [
        ("credit", 3),
        ("within one step", 3),
        ("mean absolute error", 2),
        ("quadratic weighted kappa", 2),
    ]
    tree = counted(TREE, [(0, 1), (2, 3), (2, 5)])
    levels = [f"right down to level {level}" for level in (1, 2, 3)]
    assert [figure.name for figure in tree.figures()] == ["credit", *levels, "hierarchical F1"]
    assert [round(figure.value or 0.0, 3) for figure in tree.figures()] == [0.333, 0.667, 0.333, 0.0, 0.5]


@given(st.integers(0, 30), st.integers(0, 30))
def test_of_rows_right_or_wrong_the_interval_is_wilsons(wrong: int, right: int) -> None:
    """For values of 0 and 1, the interval of the mean equals Wilson's interval."""
    if wrong + right == 0:
        with pytest.raises(ConfigurationError, match="at least one row"):
            mean_interval(np.array([0.0, 1.0]), np.array([0, 0]))
        return
    found = mean_interval(np.array([0.0, 1.0]), np.array([wrong, right]))
    exact = wilson_interval(right, wrong + right)
    assert found.estimate == pytest.approx(exact.estimate)
    assert found.lower == pytest.approx(exact.lower, abs=1e-9)
    assert found.upper == pytest.approx(exact.upper, abs=1e-9)


@given(st.lists(st.integers(0, 20), min_size=5, max_size=5).filter(any))
def test_the_interval_of_a_mean_holds_it_and_is_no_wider_than_wilsons(counts: list[int]) -> None:
    """The interval of a mean holds the mean, and is no wider than Wilson's."""
    values, weights = np.linspace(0.0, 1.0, 5), np.array(counts)
    found = mean_interval(values, weights)
    assert 0.0 <= found.lower <= found.estimate + 1e-12
    assert found.estimate <= found.upper + 1e-12 <= 1.0 + 2e-12
    n = int(weights.sum())
    z2 = 1.959963984540054**2
    p = found.estimate
    widest = 2 * 1.959963984540054 / (1 + z2 / n) * np.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    assert found.upper - found.lower <= widest + 1e-9


@pytest.mark.parametrize("n", [30, 50, 100, 200])
def test_the_interval_of_a_mean_allows_for_large_mistakes_that_are_rare(n: int) -> None:
    """Where one answer in a hundred is far off, at least 93 % of the intervals hold the true mean."""
    credit = 1.0 - np.array([0, 1, 2, 60]) / 100
    shares = np.array([0.30, 0.30, 0.39, 0.01])
    drawn = np.random.default_rng(0).multinomial(n, shares, size=1000)
    found = [mean_interval(credit, counts) for counts in drawn]
    assert np.mean([one.lower <= credit @ shares <= one.upper for one in found]) >= 0.93


def test_in_large_samples_the_interval_of_a_mean_is_the_normal_one() -> None:
    """For 100,000 values, the interval of the mean has the normal interval's width."""
    found = mean_interval(np.array([0.75, 1.0]), np.array([50_000, 50_000]))
    assert found.upper - found.lower == pytest.approx(2 * 1.96 * 0.125 / np.sqrt(100_000), rel=0.01)


def test_the_interval_of_a_mean_keeps_its_promise() -> None:
    """At a level of 95 %, the interval covers the mean as often, within 3 standard errors."""
    rng = np.random.default_rng(0)
    values = np.linspace(0.0, 1.0, 5)
    for weights in ([0.05, 0.05, 0.1, 0.3, 0.5], [0.0, 0.0, 0.05, 0.15, 0.8], [0.2, 0.2, 0.2, 0.2, 0.2]):
        truth = float(np.dot(weights, values))
        covered = 0
        for counts in rng.multinomial(60, weights, size=2000):
            found = mean_interval(values, counts)
            covered += found.lower <= truth <= found.upper
        assert covered / 2000 >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 2000)
