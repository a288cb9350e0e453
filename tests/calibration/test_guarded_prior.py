"""Tests of the guard of batch calibration."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.calibration import LabelPriorCorrection
from calibrant.core import ConfigurationError

Rows = NDArray[np.float64]

DATA = Path(os.environ.get("CALIBRANT_DATA", Path(__file__).parents[3] / "shared" / "data"))
LARGE = {
    "Qwen-7B": "Qwen-72B",
    "Qwen-72B": "Qwen-72B",
    "Llama-2-7b-hf": "Llama-2-70b-hf",
    "Llama-2-70b-hf": "Llama-2-70b-hf",
}


def rows_won(*counts: int, sure: float = 0.7, rare: int = 0) -> Rows:
    """Return rows that label k wins `counts[k]` times; `rare` labels have 0.01 in each."""
    n_labels = len(counts)
    rest = (1.0 - sure - 0.01 * rare) / (n_labels - 1)
    p = np.repeat(np.full((n_labels, n_labels), rest) + (sure - rest) * np.eye(n_labels), counts, axis=0)
    return np.log(np.hstack([p, np.full((len(p), rare), 0.01)]))


def normalised(rows: Rows) -> Rows:
    """Return the rows as log-probabilities."""
    return LabelPriorCorrection(strength=0.0).fit(rows).transform(rows)


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    """Draw rows of log-probabilities in which one label may be preferred, and two may tie."""
    width = draw(st.integers(2, 6))
    row = st.lists(st.integers(-12, 0).map(lambda k: k / 2.0), min_size=width, max_size=width)
    rows = np.array(draw(st.lists(row, min_size=1, max_size=30)))
    rows[:, 0] += draw(st.sampled_from([0.0, 1.5, 4.0, 20.0]))
    return rows


# What is divided out


@pytest.mark.parametrize("counts", [(5, 5), (14, 6), (18, 2), (10, 5, 5), (6, 5, 5, 4), (11, 4, 4, 1)])
def test_rows_that_several_labels_win_are_left_alone(counts: tuple[int, ...]) -> None:
    """Rows without a dominant label are returned unchanged."""
    rows = rows_won(*counts)
    found = LabelPriorCorrection().fit(rows)
    assert found.strength_ == 0.0
    assert found.transform(rows).tolist() == normalised(rows).tolist()


@pytest.mark.parametrize("counts", [(19, 1), (20, 0), (0, 20, 0), (38, 1, 1)])
def test_one_label_on_nearly_all_rows_is_divided_out_fully(counts: tuple[int, ...]) -> None:
    """If one label wins 95 % of the rows, the whole prior is divided out."""
    rows = rows_won(*counts, rare=1)
    plain = LabelPriorCorrection(strength=1.0).fit(rows)
    found = LabelPriorCorrection().fit(rows)
    assert found.strength_ == 1.0
    assert found.transform(rows).tolist() == plain.transform(rows).tolist()


def test_a_dominant_label_is_divided_out_and_a_rare_one_bounded() -> None:
    """A dominant label is divided out, and a rare one counts as 1/12 instead of its mean of 0.01."""
    rows = rows_won(12, 2, 2, rare=1)
    found = LabelPriorCorrection().fit(rows)
    divisor = [0.56125, 0.214375, 0.214375, 1 / 12]
    assert found.prior_ == pytest.approx([*divisor[:3], 0.01])
    assert found.divisor_ == pytest.approx(divisor)
    ratio = np.array([0.4, 0.3, 0.2, 0.1]) / divisor
    assert np.exp(found.transform(np.log([0.4, 0.3, 0.2, 0.1]))) == pytest.approx(ratio / ratio.sum())


def test_three_times_as_many_rows_are_enough() -> None:
    """A label that wins three times as many rows as each other winner is divided out."""
    assert LabelPriorCorrection().fit(rows_won(15, 5, 5, rare=1)).strength_ == 1.0
    assert LabelPriorCorrection().fit(rows_won(14, 5, 5, rare=1)).strength_ == 0.0


def test_rows_on_which_labels_tie_count_for_each() -> None:
    """Rows that two labels share count as won by neither, and nothing is divided out."""
    assert LabelPriorCorrection().fit(np.log([[0.45, 0.45, 0.1]] * 8)).strength_ == 0.0


@given(tables())
def test_without_labels_of_a_small_prior_it_is_all_or_nothing(rows: Rows) -> None:
    """If no label's prior is below the floor, the result is plain batch calibration or no change."""
    found = LabelPriorCorrection().fit(rows)
    if found.prior_.min() >= 1.0 / (3.0 * rows.shape[1]):
        plain = LabelPriorCorrection(strength=found.strength_).fit(rows)
        assert found.strength_ in {0.0, 1.0}
        assert found.transform(rows).tolist() == plain.transform(rows).tolist()


@given(tables())
def test_two_labels_never_move_apart_by_more_than_the_floor_allows(rows: Rows) -> None:
    """If no label wins 95 % of the rows, odds of two labels change by a factor of 3 L at most."""
    found = LabelPriorCorrection().fit(rows)
    top = (rows == rows.max(axis=1, keepdims=True)).astype(float)
    if (top / top.sum(axis=1, keepdims=True)).mean(axis=0).max() < 0.95:
        change = found.transform(rows) - normalised(rows)
        assert np.ptp(change, axis=1).max() <= np.log(3.0 * rows.shape[1]) + 1e-9


@given(tables(), st.randoms(use_true_random=False))
def test_permuting_labels_or_rows_permutes_the_result(rows: Rows, random: object) -> None:
    """Permuted labels and rows give the permuted result."""
    generator = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    labels, order = generator.permutation(rows.shape[1]), generator.permutation(len(rows))
    plain = LabelPriorCorrection().fit(rows).transform(rows)
    permuted = LabelPriorCorrection().fit(rows[order][:, labels]).transform(rows[:, labels])
    assert permuted == pytest.approx(plain[:, labels], abs=1e-9)


@given(tables())
def test_weights_count_rows(rows: Rows) -> None:
    """Two copies of a row of weight one half count as one row."""
    doubled = LabelPriorCorrection().fit(np.vstack([rows, rows, rows[:3]]))
    weights = [1.0] * len(rows) + [0.5] * len(rows[:3])
    weighted = LabelPriorCorrection().fit(np.vstack([rows, rows[:3]]), weights=weights)
    assert weighted.prior_ == pytest.approx(doubled.prior_)
    assert weighted.strength_ == doubled.strength_
    assert weighted.transform(rows) == pytest.approx(doubled.transform(rows), abs=1e-9)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.5]])
def test_weights_out_of_range_are_refused(weights: list[float]) -> None:
    """Weights of another length or above 1 raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="weights"):
        LabelPriorCorrection().fit(np.log([[0.9, 0.1], [0.6, 0.4]]), weights=weights)


def test_a_stream_is_judged_anew_with_every_row() -> None:
    """`partial_fit` switches the guard on and off as the share of a label changes."""
    stream = LabelPriorCorrection().fit(rows_won(20, 0))
    assert stream.strength_ == 1.0
    assert stream.partial_fit(rows_won(0, 20)).strength_ == 0.0
    assert stream.partial_fit(rows_won(0, 800)).strength_ == 1.0


# Where the guard ends


def test_answers_end_the_guard() -> None:
    """A strength learned from answers replaces the guard."""
    rng = np.random.default_rng(0)
    answers = rng.integers(0, 2, 400)
    rows = 3.0 * np.eye(2)[answers] + rng.normal(0, 1, (400, 2)) + np.array([1.5, 0.0])
    guarded = LabelPriorCorrection().fit(rows)
    assert guarded.strength_ == 0.0
    for learned in (LabelPriorCorrection().fit(rows, answers), guarded.fit_strength(rows, answers)):
        assert learned.strength_ > 0.5
        assert learned.divisor_.tolist() == learned.prior_.tolist()
        strength = learned.strength_
        assert learned.partial_fit(rows).strength_ == strength


@pytest.mark.parametrize(
    "correction", [LabelPriorCorrection(strength=1.0), LabelPriorCorrection("contextual")]
)
def test_other_corrections_divide_by_the_whole_prior(correction: LabelPriorCorrection) -> None:
    """A given strength, and the contextual method, divide by the whole prior without a guard."""
    found = correction.fit(rows_won(6, 5, 5, rare=1))
    assert (found.strength_, found.divisor_[3]) == (1.0, pytest.approx(0.01))


def test_known_frequencies_are_what_the_correction_leans_to() -> None:
    """With known frequencies the result equals the one that is worked out by hand."""
    rows = np.log([[0.9, 0.1], [0.6, 0.4]])
    found = LabelPriorCorrection(frequencies=[0.9, 0.1]).fit(rows)
    assert np.exp(found.transform(rows[0])) == pytest.approx([1.08 / 1.12, 0.04 / 1.12])
    assert "frequencies=[0.9, 0.1]" in repr(found)


@given(tables())
def test_equal_frequencies_are_plain_batch_calibration(rows: Rows) -> None:
    """Equal frequencies give plain batch calibration without the guard."""
    n_labels = rows.shape[1]
    known = LabelPriorCorrection(frequencies=np.full(n_labels, 1.0 / n_labels)).fit(rows)
    assert known.transform(rows) == pytest.approx(
        LabelPriorCorrection(strength=1.0).fit(rows).transform(rows), abs=1e-9
    )


@given(tables())
def test_frequencies_the_model_shows_already_change_nothing(rows: Rows) -> None:
    """Frequencies equal to the prior change no row."""
    prior = LabelPriorCorrection().fit(rows).prior_
    known = LabelPriorCorrection(frequencies=prior / prior.sum()).fit(rows)
    assert known.transform(rows) == pytest.approx(normalised(rows), abs=1e-9)


@pytest.mark.parametrize("frequencies", [[0.5, 0.6], [1.0, 0.0], [[0.5, 0.5]], ["a", "b"]])
def test_frequencies_that_are_none_are_refused(frequencies: list[object]) -> None:
    """Frequencies that are not positive, do not sum to 1, or fit other labels are refused."""
    with pytest.raises(ConfigurationError, match="frequencies"):
        LabelPriorCorrection(frequencies=frequencies)
    with pytest.raises(ConfigurationError, match="3 labels"):
        LabelPriorCorrection(frequencies=[0.2, 0.3, 0.5]).fit(np.log([[0.9, 0.1]]))


# Recorded log-probabilities of four models


@pytest.mark.parametrize("model", LARGE)
@pytest.mark.parametrize("name", ["cosmosqa", "hellaswag"])
@pytest.mark.parametrize("n_options", [4, 6])
@pytest.mark.parametrize("n_rows", [64, 256, 1000])
def test_recorded_options_are_not_made_worse(name: str, model: str, n_options: int, n_rows: int) -> None:
    """On recorded rows, agreement with the large model falls by 0.005 at most on average."""
    path = DATA / "option_logits" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no recorded log-probabilities at {path}: name the folder above in CALIBRANT_DATA")
    recorded = np.load(path)
    rows = recorded[model].astype(np.float64)[:, :n_options]
    truth = recorded[LARGE[model]].astype(np.float64)[:, :n_options].argmax(axis=1)
    rng = np.random.default_rng(0)
    accuracy = [
        (LabelPriorCorrection().fit(rng.choice(rows, n_rows)).transform(rows).argmax(axis=1) == truth).mean()
        for _ in range(10)
    ]
    assert np.mean(accuracy) >= (rows.argmax(axis=1) == truth).mean() - 0.005
