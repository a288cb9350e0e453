"""Tests of the label-prior correction: the division by the mean prediction, and its strength."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.calibration import LabelPriorCorrection
from calibrant.core import ConfigurationError, NotFittedError

Rows = NDArray[np.float64]
Answers = NDArray[np.intp]

TWO = np.log([[0.9, 0.1], [0.6, 0.4]])


def calibrated(
    seed: int, n: int = 100, n_labels: int = 3, bias: tuple[float, ...] = ()
) -> tuple[Rows, Answers]:
    """Return log-probabilities that are calibrated before `bias` is added."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.arange(1.0, n_labels + 1.0) / 2.0, size=n)
    answers = np.array([rng.choice(n_labels, p=row) for row in p])
    return np.log(np.maximum(p, 1e-6)) + (np.array(bias) if bias else 0.0), answers


def mean_loss(correction: LabelPriorCorrection, rows: Rows, answers: Answers) -> float:
    """Return the mean log loss through the public interface."""
    corrected = correction.transform(rows)
    return float(np.mean([-corrected[i, answer] for i, answer in enumerate(answers)]))


@st.composite
def tables(draw: st.DrawFn, n_labels: int | None = None) -> Rows:
    """Draw rows of unnormalised log-probabilities, extreme ones too."""
    width = draw(st.integers(2, 6)) if n_labels is None else n_labels
    value = st.one_of(st.floats(-30.0, 0.0), st.sampled_from([0.0, -1e6, -3.4e38, 50.0, 1e100, -1e100]))
    row = st.lists(value, min_size=width, max_size=width)
    return np.array(draw(st.lists(row, min_size=1, max_size=12)))


# The mathematics


def test_a_hand_made_example() -> None:
    """Two rows give the prior and the corrected probabilities that are worked out by hand."""
    correction = LabelPriorCorrection().fit(TWO)
    assert correction.prior_ == pytest.approx([0.75, 0.25])
    assert (correction.n_rows_, correction.strength_) == (2, 1.0)
    assert np.exp(correction.transform(TWO)) == pytest.approx(np.array([[0.75, 0.25], [1 / 3, 2 / 3]]))


def test_half_the_strength_divides_by_the_root() -> None:
    """At strength 0.5 a row is divided by the root of the prior."""
    found = np.exp(LabelPriorCorrection(strength=0.5).fit(TWO).transform(TWO[0]))
    first, second = 0.9 / math.sqrt(0.75), 0.2
    assert found == pytest.approx([first / (first + second), second / (first + second)])


def test_the_prior_is_the_mean_of_probabilities_not_of_logarithms() -> None:
    """The prior is the mean of normalised probabilities."""
    rows, _ = calibrated(0)
    p = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    expected = [math.fsum(column) / len(p) for column in p.T]
    shifted = rows + np.linspace(-5, 5, len(rows))[:, None]
    assert LabelPriorCorrection().fit(rows).prior_ == pytest.approx(expected)
    assert LabelPriorCorrection().fit(shifted).prior_ == pytest.approx(expected)


def test_a_uniform_prior_changes_nothing() -> None:
    """A uniform prior changes no row at any strength."""
    rows = np.log([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]])
    for strength in (0.5, 1.0, 7.0):
        assert LabelPriorCorrection(strength=strength).fit(rows).transform(rows) == pytest.approx(rows)


@given(tables())
def test_strength_zero_is_the_identity(rows: Rows) -> None:
    """Strength 0 only normalises the rows."""
    correction = LabelPriorCorrection(strength=0.0).fit(rows)
    top = rows.max(axis=1, keepdims=True)
    expected = rows - top - np.log(np.exp(rows - top).sum(axis=1, keepdims=True))
    assert correction.transform(rows) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("bias", [(0.0, 0.0, 0.0), (3.0, 0.0, 0.0), (0.0, -2.0, 1.0), (4.0, 4.0, 0.0)])
def test_full_strength_balances_a_biased_model(bias: tuple[float, ...]) -> None:
    """At strength 1, rows with equal evidence for each label are given to each equally often."""
    evidence = np.kron(np.eye(3), np.full((4, 1), 1.0))
    rows = evidence + np.array(bias)
    found = LabelPriorCorrection(strength=1.0).fit(rows).transform(rows).argmax(axis=1)
    assert found.tolist() == evidence.argmax(axis=1).tolist()
    if any(bias):
        assert len(set(rows.argmax(axis=1))) < 3


@given(tables(n_labels=4), st.permutations(range(4)), st.floats(0.0, 3.0))
def test_permuting_the_labels_permutes_the_result(rows: Rows, order: list[int], strength: float) -> None:
    """Permuted labels give the permuted prior and result."""
    plain = LabelPriorCorrection(strength=strength).fit(rows)
    permuted = LabelPriorCorrection(strength=strength).fit(rows[:, order])
    assert permuted.prior_ == pytest.approx(plain.prior_[order])
    assert permuted.transform(rows[:, order]) == pytest.approx(plain.transform(rows)[:, order])


@given(tables(), st.floats(0.0, 1e6))
def test_results_are_normalised_and_finite(rows: Rows, strength: float) -> None:
    """Corrected rows are normalised and finite, and one row is corrected as in a table."""
    correction = LabelPriorCorrection(strength=strength).fit(rows)
    corrected = correction.transform(rows)
    assert corrected.shape == rows.shape
    assert np.isfinite(corrected).all()
    assert np.exp(corrected).sum(axis=1) == pytest.approx(np.ones(len(rows)))
    single = correction.transform(rows[0])
    assert single.shape == rows[0].shape
    assert single == pytest.approx(corrected[0])


def test_a_label_never_predicted_keeps_a_prior_above_zero() -> None:
    """The prior of a label that is never predicted is 1e-12, and not 0."""
    correction = LabelPriorCorrection().fit([[0.0, -1000.0]])
    assert correction.prior_.tolist() == [1.0, 1e-12]
    assert np.exp(correction.transform(np.log([0.5, 0.5])))[1] == pytest.approx(1.0)


# The strength


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bias", [(), (2.0, 0.0, 0.0), (0.0, 1.0, -1.0)])
def test_the_learned_strength_is_the_best_of_a_fine_grid(seed: int, bias: tuple[float, ...]) -> None:
    """The learned strength is the best of a fine grid, or 0 within its standard error."""
    rows, answers = calibrated(seed, bias=bias)
    learned = LabelPriorCorrection().fit(rows).fit_strength(rows, answers)
    grid = np.linspace(0.0, 2.0, 1001)
    losses = [mean_loss(LabelPriorCorrection(strength=s).fit(rows), rows, answers) for s in grid]
    best = int(np.argmin(losses))
    if learned.strength_ == 0.0:
        full = LabelPriorCorrection(strength=grid[best]).fit(rows)
        gain = (full.transform(rows) - rows_normalised(rows))[np.arange(len(rows)), answers]
        assert gain.mean() <= gain.std(ddof=1) / math.sqrt(len(rows)) + 1e-6
    else:
        assert learned.strength_ == pytest.approx(grid[best], abs=0.002)
        assert mean_loss(learned, rows, answers) <= losses[best] + 1e-12


def rows_normalised(rows: Rows) -> Rows:
    """Return the rows as log-probabilities."""
    return LabelPriorCorrection(strength=0.0).fit(rows).transform(rows)


def test_the_strength_may_be_either_end_of_its_range() -> None:
    """The learned strength can be exactly 0 or 2."""
    prior = LabelPriorCorrection().fit(np.log([[0.8, 0.2]]))
    row = np.log([[0.8, 0.2]] * 2)
    assert prior.fit_strength(row, [1, 1]).strength_ == 2.0
    assert prior.fit_strength(row, [0, 0]).strength_ == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_a_biased_model_is_switched_on_at_about_full_strength(seed: int) -> None:
    """A biased model gets a strength between 0.7 and 2, and a lower log loss."""
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, 3, 300)
    fair = np.log(rng.dirichlet([1.0, 1.0, 1.0], 300) + 0.6 * np.eye(3)[answers])
    rows = fair + np.array([2.5, 0.0, 0.0])
    learned = LabelPriorCorrection().fit(rows, answers)
    assert 0.7 < learned.strength_ < 2.0
    assert mean_loss(learned, rows, answers) < 0.7 * mean_loss(
        LabelPriorCorrection(strength=0).fit(rows), rows, answers
    )


def test_noise_rarely_switches_the_correction_on() -> None:
    """Fewer than 20 of 300 models without bias get a correction."""
    on = sum(LabelPriorCorrection().fit(*calibrated(seed)).strength_ > 0.0 for seed in range(300))
    assert 0 < on < 20


def test_with_two_rows_both_must_gain() -> None:
    """With two rows, a strength is learned only if both rows gain.

    Here the second row loses 0.14 where the first gains 1.39, which the divisor n would allow.
    """
    prior = LabelPriorCorrection().fit(np.log([[0.8, 0.2]]))
    assert prior.fit_strength(np.log([[0.8, 0.2], [0.99, 0.01]]), [1, 0]).strength_ == 0.0
    assert prior.fit_strength(np.log([[0.8, 0.2], [0.9, 0.1]]), [1, 1]).strength_ == 2.0
    # One row shows no error, and a gain of rounding errors is none.
    assert LabelPriorCorrection().fit(np.log([[0.9, 0.1]]), [1]).strength_ == 0.0
    rows = np.log([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]])
    assert LabelPriorCorrection().fit(rows, [0, 1, 2]).strength_ == 0.0


def test_prior_and_strength_may_come_from_different_rows() -> None:
    """`fit_strength` on other rows leaves the prior unchanged."""
    unlabelled, _ = calibrated(1, bias=(2.0, 0.0, 0.0))
    rows, answers = calibrated(2, bias=(2.0, 0.0, 0.0))
    correction = LabelPriorCorrection().fit(unlabelled)
    prior = correction.prior_.copy()
    assert correction.fit_strength(rows, answers) is correction
    assert correction.prior_.tolist() == prior.tolist()
    assert correction.n_rows_ == 100
    assert correction.strength_ not in {0.0, 1.0}


def test_a_given_strength_is_never_learned() -> None:
    """A given strength is kept by `fit`, and `fit_strength` raises ConfigurationError."""
    rows, answers = calibrated(0, bias=(2.0, 0.0, 0.0))
    correction = LabelPriorCorrection(strength=0.25).fit(rows, answers)
    assert correction.strength_ == 0.25
    with pytest.raises(ConfigurationError, match=r"strength=0\.25 in the constructor"):
        correction.fit_strength(rows, answers)
    with pytest.raises(ConfigurationError, match="answers"):
        correction.fit(rows, answers[1:])


# Streams


@given(tables(n_labels=3), st.lists(st.integers(0, 12), max_size=4))
def test_a_stream_may_be_split_anywhere(rows: Rows, cuts: list[int]) -> None:
    """`partial_fit` on parts gives the prior of one fit on all rows."""
    whole = LabelPriorCorrection().fit(rows)
    parts = [part for part in np.split(rows, sorted(min(cut, len(rows)) for cut in cuts)) if len(part)]
    stream = LabelPriorCorrection()
    for part in parts:
        assert stream.partial_fit(part) is stream
    assert stream.n_rows_ == whole.n_rows_ == len(rows)
    assert stream.prior_ == pytest.approx(whole.prior_, rel=1e-9, abs=1e-12)
    assert stream.transform(rows) == pytest.approx(whole.transform(rows), abs=1e-6)


def test_a_stream_keeps_the_strength_it_has() -> None:
    """`partial_fit` keeps a learned or given strength."""
    rows, answers = calibrated(0, bias=(2.0, 0.0, 0.0))
    learned = LabelPriorCorrection().fit(rows, answers)
    before = learned.strength_
    assert learned.partial_fit(rows[:10]).strength_ == before > 0.0
    assert LabelPriorCorrection(strength=0.3).partial_fit(rows).strength_ == 0.3


def test_fit_forgets_what_was_learned() -> None:
    """A second `fit` replaces prior, row count and strength."""
    rows, answers = calibrated(0, bias=(2.0, 0.0, 0.0))
    again = LabelPriorCorrection().fit(rows, answers).fit(TWO)
    assert (again.prior_.tolist(), again.n_rows_, again.strength_) == (
        LabelPriorCorrection().fit(TWO).prior_.tolist(),
        2,
        1.0,
    )


# Use and misuse


def test_contextual_calibration_is_the_same_division() -> None:
    """The contextual method divides as batch does, and takes answers only in `fit_strength`."""
    correction = LabelPriorCorrection("contextual").fit(TWO)
    assert (
        correction.transform(TWO).tolist() == LabelPriorCorrection("batch").fit(TWO).transform(TWO).tolist()
    )
    with pytest.raises(ConfigurationError, match="then fit_strength on labelled rows"):
        correction.fit(TWO, [0, 1])
    assert correction.fit_strength(np.log([[0.75, 0.25]] * 2), [1, 1]).strength_ == 2.0


def test_nothing_given_is_changed_and_what_is_learned_cannot_be() -> None:
    """`fit` and `transform` leave their arguments unchanged, and the prior is read-only."""
    rows, answers = calibrated(0)
    before = rows.copy(), answers.copy()
    correction = LabelPriorCorrection().fit(rows, answers)
    correction.transform(rows)
    assert (rows == before[0]).all()
    assert (answers == before[1]).all()
    with pytest.raises(ValueError, match="read-only"):
        correction.prior_[0] = 1.0


@pytest.mark.parametrize(
    ("what", "arguments"), [("transform", (TWO,)), ("fit_strength", (TWO, [0, 1])), ("save", ("x.json",))]
)
def test_nothing_works_before_fit(what: str, arguments: tuple[Any, ...]) -> None:
    """An unfitted correction raises NotFittedError that names the method."""
    options = {"fingerprint": None} if what == "save" else {}
    with pytest.raises(NotFittedError, match=f"{what} before fit"):
        getattr(LabelPriorCorrection(), what)(*arguments, **options)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((0, 2)), "at least one row, got none"),
        (np.zeros((2, 2, 2)), r"got \(2, 2, 2\)"),
        (np.zeros((2, 1)), "two labels|over 2 labels"),
        ([[0.0, -1.0], [0.0, -math.inf]], r"got -inf in row 1, label 1.*1e-12"),
        ([[0.0, 1e101]], "finite"),
        ([[0.0, -1.0], [0.0]], "numbers"),
    ],
)
def test_bad_rows_are_errors_that_say_where(rows: Any, message: str) -> None:
    """Bad rows raise ConfigurationError in every method, and the prior stays."""
    fitted = LabelPriorCorrection().fit(TWO)
    before = fitted.prior_.tolist()
    for call in (fitted.fit, fitted.partial_fit, fitted.transform):
        with pytest.raises(ConfigurationError, match=message):
            call(rows)
    assert fitted.prior_.tolist() == before


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([0], r"shape \(2,\).*got \(1,\)"),
        ([0, 2], r"\[0, 2\).*got 2 in row 1"),
        ([0.0, 1.0], "float64.*look each answer up"),
    ],
)
def test_bad_answers_are_errors_that_say_where(answers: Any, message: str) -> None:
    """Bad answers raise ConfigurationError, and what was learned stays."""
    fitted = LabelPriorCorrection().fit(np.log([[0.6, 0.4]]))
    for call in (fitted.fit, fitted.fit_strength):
        with pytest.raises(ConfigurationError, match=message):
            call(TWO, answers)
    assert (fitted.n_rows_, fitted.strength_) == (1, 1.0)


def test_other_label_counts_are_errors() -> None:
    """Rows over other labels raise ConfigurationError, except in `fit`."""
    fitted = LabelPriorCorrection().fit(TWO)
    three = np.zeros((2, 3))
    for call in (fitted.transform, fitted.partial_fit, lambda rows: fitted.fit_strength(rows, [0, 1])):
        with pytest.raises(ConfigurationError, match="over 2 labels, got 3"):
            call(three)
    with pytest.raises(ConfigurationError, match="over 2 labels, got 3"):
        fitted.transform(three[0])
    assert len(fitted.fit(three).prior_) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "domain"}, "'batch' or 'contextual', got 'domain'"),
        ({"strength": -0.1}, r"strength in \[0, 1e6\], got -0\.1"),
    ],
)
def test_parameters_out_of_range_are_errors(options: dict[str, Any], message: str) -> None:
    """A parameter out of range raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=message):
        LabelPriorCorrection(**options)


def test_the_log_loss_is_convex_in_the_strength() -> None:
    """The log loss is convex in the strength on a grid."""
    rows, answers = calibrated(0, bias=(2.0, 0.0, -1.0))
    losses = [
        mean_loss(LabelPriorCorrection(strength=s).fit(rows), rows, answers)
        for s in np.linspace(0.0, 4.0, 81)
    ]
    assert np.diff(losses, n=2).min() > 0.0


def test_lists_and_small_floats_become_arrays() -> None:
    """Lists give the same result as arrays, and float32 rows give a prior of float64."""
    expected = LabelPriorCorrection().fit(TWO)
    assert LabelPriorCorrection().fit(TWO.tolist()).transform(TWO[0].tolist()).tolist() == (
        expected.transform(TWO[0]).tolist()
    )
    small = LabelPriorCorrection().fit(TWO.astype(np.float32), np.array([0, 1], dtype=np.uint8))
    assert small.prior_.dtype == np.float64
