"""Whether the correction is used at all, and what it does to one distribution."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.calibration import (
    LabelPriorCorrection,
    correct_distribution,
    correct_prediction,
    select_prior_correction,
)
from calibrant.core import (
    ConfigurationError,
    LabelDistribution,
    LogprobSpace,
    NotFittedError,
    Outcome,
    Prediction,
)
from calibrant.scoring import BrierScoring

Rows = NDArray[np.float64]
Answers = NDArray[np.intp]


def biased(seed: int, *, n: int = 200, n_labels: int = 5, size: float = 2.5) -> tuple[Rows, Answers]:
    """Return rows of a model with some skill and a taste for the first label; answers go round."""
    rng = np.random.default_rng(seed)
    answers = np.arange(n) % n_labels
    fair = np.log(rng.dirichlet(np.ones(n_labels), n) + 0.5 * np.eye(n_labels)[answers])
    fair[:, 0] += size
    return fair - np.log(np.exp(fair).sum(axis=1, keepdims=True)), answers


def honest(seed: int, n: int = 100) -> tuple[Rows, Answers]:
    """Return rows whose answers are drawn from them; the first label is truly more frequent."""
    rng = np.random.default_rng(seed)
    p = np.maximum(rng.dirichlet([3.0, 1.0, 0.5], n), 1e-9)
    return np.log(p), np.array([rng.choice(3, p=row / row.sum()) for row in p])


# The decision


def test_a_biased_model_is_corrected() -> None:
    """On, with the figures, fitted on all rows."""
    rows, answers = biased(0)
    found = select_prior_correction(rows, answers)
    assert found.helps
    assert found.log_loss_before == pytest.approx(
        np.mean([-row[y] for row, y in zip(rows, answers, strict=True)])
    )
    assert found.log_loss_after < 0.8 * found.log_loss_before
    assert found.brier_after < 0.8 * found.brier_before
    assert found.correction.n_rows_ == 200
    assert found.correction.prior_.tolist() == LabelPriorCorrection().fit(rows).prior_.tolist()
    assert 0.5 < found.correction.strength_ <= 2.0
    assert found.reason.startswith(f"On at strength {found.correction.strength_:.2f}: ")
    for figure in (found.log_loss_before, found.log_loss_after, found.brier_before, found.brier_after):
        assert f"{figure:.4f}" in found.reason


def test_an_honest_model_is_left_alone() -> None:
    """A preference that the answers share is no bias: on by chance in few of 100 draws."""
    selections = [select_prior_correction(*honest(seed)) for seed in range(100)]
    assert sum(found.helps for found in selections) <= 5
    for seed, found in enumerate(selections):
        if not found.helps:
            assert found.correction.strength_ == 0.0
            assert found.correction.transform(honest(seed)[0]) == pytest.approx(honest(seed)[0], abs=1e-6)
            assert found.reason.startswith("Off: log loss")


def test_held_out_figures_are_not_those_of_the_fit() -> None:
    """On noise the fit itself always looks good, held-out rows mostly do not."""
    worse = 0
    for seed in range(40):
        found = select_prior_correction(*honest(seed))
        worse += found.log_loss_after > found.log_loss_before
    assert worse >= 10


def test_the_brier_score_is_one_minus_that_of_the_scoring_rule() -> None:
    """Half the squared error over all labels."""
    rows, answers = biased(1)
    score = BrierScoring().score_many(
        np.ones(len(rows)), np.zeros(len(rows)), label_probabilities=np.exp(rows), answer_index=answers
    )
    found = select_prior_correction(rows, answers)
    assert found.brier_before == pytest.approx(1.0 - score.mean())


def test_two_rows_teach_each_other_the_strength_by_hand() -> None:
    """With a prior of 0.8 and 0.2, row 0 teaches row 1 strength 2, and row 1 teaches row 0 strength 0."""
    rows = np.log([[0.8, 0.2], [0.9, 0.1]])
    found = select_prior_correction(rows, [1, 0], prior_rows=np.log([[0.8, 0.2]]))
    # Row 1 becomes 0.9 / 0.64 against 0.1 / 0.04, that is 0.36; row 0 stays.
    assert found.log_loss_after == pytest.approx(-(math.log(0.2) + math.log(0.36)) / 2)
    assert found.brier_after == pytest.approx((0.8**2 + 0.64**2) / 2)
    assert not found.helps


def test_two_rows_teach_each_other_the_prior_by_hand() -> None:
    """Without other rows each is divided by the square of the other."""
    rows = np.log([[0.8, 0.2], [0.6, 0.4]])
    found = select_prior_correction(rows, [1, 1])
    first = (0.2 / 0.4**2) / (0.2 / 0.4**2 + 0.8 / 0.6**2)
    second = (0.4 / 0.2**2) / (0.4 / 0.2**2 + 0.6 / 0.8**2)
    assert found.log_loss_after == pytest.approx(-(math.log(first) + math.log(second)) / 2)
    assert found.correction.prior_ == pytest.approx([0.7, 0.3])


def test_the_prior_comes_from_the_unlabelled_rows_where_there_are_any() -> None:
    """Only the strength comes from the validation rows."""
    rows, answers = biased(2)
    unlabelled, _ = biased(3, n=50)
    found = select_prior_correction(rows, answers, prior_rows=unlabelled)
    assert found.correction.prior_.tolist() == LabelPriorCorrection().fit(unlabelled).prior_.tolist()
    assert found.correction.n_rows_ == 50
    assert found.helps
    contextual = select_prior_correction(rows, answers, prior_rows=unlabelled, method="contextual")
    assert contextual.correction.method == "contextual"
    assert contextual.log_loss_after == found.log_loss_after


def test_the_order_of_labels_among_the_rows_does_no_harm() -> None:
    """Five labels dealt out in turn, or sorted, fall into the same five folds, each with every label."""
    rows, answers = biased(4)
    order = np.argsort(answers, kind="stable")
    dealt, again = select_prior_correction(rows, answers), select_prior_correction(rows, answers)
    blocks = select_prior_correction(rows[order], answers[order])
    assert dealt.reason == again.reason
    assert blocks.log_loss_after == pytest.approx(dealt.log_loss_after, abs=1e-9)
    assert blocks.helps


def test_a_better_log_loss_does_not_excuse_a_worse_brier_score() -> None:
    """A few hopeless rows gain a lot of log loss, and all others pay for it: off."""
    answers = (np.arange(1000) % 10 == 0).astype(int)
    rows = np.log(np.where(answers[:, None] == 1, [[1 - 1e-4, 1e-4]], [[0.95, 0.05]]))
    found = select_prior_correction(rows, answers, prior_rows=np.log([[0.8, 0.2]]))
    assert found.log_loss_after < found.log_loss_before
    assert found.brier_after > found.brier_before
    assert not found.helps
    assert found.correction.strength_ == 0.0
    assert "but the Brier score" in found.reason
    assert "worse by more than its standard error" in found.reason


def test_a_selection_cannot_be_changed() -> None:
    """It is a record of a decision."""
    found = select_prior_correction(*biased(0, n=20))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.helps = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("rows", "answers", "options", "message"),
    [
        (np.zeros((1, 2)), [0], {}, "at least two rows"),
        (np.zeros((0, 2)), [], {}, "at least one row"),
        (np.zeros((2, 2)), [0, 2], {}, "got 2 in row 1"),
        (np.zeros((2, 2)), [0], {}, "answers of shape"),
        ([[0.0, math.nan], [0.0, 0.0]], [0, 1], {}, "row 0, label 1"),
        (np.zeros((2, 2)), [0, 1], {"prior_rows": np.zeros((2, 3))}, "prior_rows over 2 labels"),
        (np.zeros((2, 2)), [0, 1], {"prior_rows": np.zeros((0, 2))}, "prior_rows to hold at least one"),
        (np.zeros((2, 2)), [0, 1], {"method": "contextual"}, "content-free inputs"),
        (np.zeros((2, 2)), [0, 1], {"method": "domain"}, "'domain'"),
    ],
)
def test_bad_input_is_an_error(rows: Any, answers: Any, options: dict[str, Any], message: str) -> None:
    """It says which argument."""
    with pytest.raises(ConfigurationError, match=message):
        select_prior_correction(rows, answers, **options)


# One distribution


def distribution(**changes: Any) -> LabelDistribution:
    """Return a distribution that favours the first of two labels."""
    fields: dict[str, Any] = {
        "labels": ("cat", "dog"),
        "logprobs": np.log([0.6, 0.4]),
        "measured": np.array([True, False]),
        "joint_logprob": -0.25,
        "label_mass": 0.7,
        "unresolved_mass": 0.1,
        "space": LogprobSpace.MASKED,
        "emitted": "cat",
    }
    return LabelDistribution(**(fields | changes))


CORRECTION = LabelPriorCorrection().fit(np.log([[0.75, 0.25]]))


@pytest.mark.parametrize("emitted", ["cat", "dog", "", None])
def test_labels_masses_and_space_of_a_distribution_stay(emitted: str | None) -> None:
    """0.6 / 0.75 against 0.4 / 0.25 is 1 to 2; what the answer spelled and its bound are gone."""
    given = dataclasses.replace(distribution(emitted=emitted), error_bound=0.1)
    found = correct_distribution(given, CORRECTION)
    assert found.probabilities == pytest.approx([1 / 3, 2 / 3])
    assert (found.emitted, found.joint_logprob, found.error_bound) == ("dog", None, None)
    kept = {name: getattr(given, name) for name in ("logprobs", "emitted", "joint_logprob", "error_bound")}
    assert dataclasses.replace(found, **kept) == given


def test_the_confidence_of_a_corrected_distribution_is_its_probability() -> None:
    """In masked space too, where the written label's would be its joint probability."""
    found = correct_distribution(distribution(emitted="cat"), CORRECTION)
    assert found.confidence("cat") == pytest.approx(1 / 3)
    assert found.confidence("dog") == pytest.approx(2 / 3)


def test_a_correction_that_is_off_changes_nothing() -> None:
    """Strength 0 returns what it was given."""
    given = distribution(emitted="cat")
    off = LabelPriorCorrection(strength=0.0).fit(np.log([[0.75, 0.25]]))
    assert correct_distribution(given, off) is given
    prediction = Prediction(label="cat", confidence=0.7, distribution=given)
    assert correct_prediction(prediction, off) is prediction


def test_a_corrected_prediction_has_the_corrected_label_and_confidence() -> None:
    """Its text stays what the model wrote."""
    given = Prediction(label="cat", confidence=0.9, distribution=distribution(emitted="cat"), text="cat")
    found = correct_prediction(given, CORRECTION)
    assert (found.label, found.text) == ("dog", "cat")
    assert found.confidence == pytest.approx(2 / 3)
    nothing = Prediction(label=None, outcome=Outcome.UNPARSED, reason="not JSON")
    assert correct_prediction(nothing, CORRECTION) is nothing


def test_another_number_of_labels_is_an_error_that_names_both() -> None:
    """Two against three, with the labels."""
    other = LabelPriorCorrection().fit(np.zeros((1, 3)))
    with pytest.raises(ConfigurationError, match=r"over 3 labels.*got 2 \('cat', 'dog'\)"):
        correct_distribution(distribution(), other)


def test_an_unfitted_correction_corrects_no_distribution() -> None:
    """It asks for fit or load."""
    with pytest.raises(NotFittedError, match="fit"):
        correct_distribution(distribution(), LabelPriorCorrection())
