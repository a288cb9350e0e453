"""Whether the label-prior correction helps, judged on rows it has not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._losses import (
    PairedGain,
    brier_losses,
    log_losses,
    log_normalise,
    paired_gain,
)
from calibrant.calibration._prior import LabelPriorCorrection, PriorMethod, best_strength
from calibrant.calibration._validation import check_answers, check_log_probabilities
from calibrant.core import ConfigurationError

__all__ = ["PriorSelection", "select_prior_correction"]

_FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class PriorSelection:
    """A label-prior correction, and why it is on or off.

    Attributes
    ----------
    correction : LabelPriorCorrection
        Fitted on all rows; of strength 0, which changes nothing, where it does not help.
    helps : bool
        Whether it is on.
    reason : str
        One sentence with the figures.
    log_loss_before, log_loss_after : float
        Mean log loss of the validation rows, in nats, without and with correction. After: each
        row corrected by what the other folds teach, whether or not the correction is then on.
    brier_before, brier_after : float
        The same for half the squared error over all labels, in [0, 1].
    """

    correction: LabelPriorCorrection
    helps: bool
    reason: str
    log_loss_before: float
    log_loss_after: float
    brier_before: float
    brier_after: float


def select_prior_correction(
    log_probabilities: ArrayLike,
    answers: ArrayLike,
    *,
    prior_rows: ArrayLike | None = None,
    method: PriorMethod = "batch",
) -> PriorSelection:
    """Fit a label-prior correction and decide on held-out rows whether to use it.

    Each of five folds is corrected by a prior and a strength (in [0, 2], of least log loss) that
    the other folds teach, so no row judges what it has taught. The correction is on if that lowers
    the mean log loss by more than the standard error of the difference, paired over rows, and does
    not raise the mean Brier score by more than its. It is then fitted on all rows.

    Folds are interleaved within each label, in the order of the rows: equal calls agree, and rows
    sorted by label or dealt out label by label do no harm. Fewer than five rows make as many folds.

    Parameters
    ----------
    log_probabilities : array-like of shape (n, L)
        Natural logarithms for n >= 2 validation rows, finite; rows are normalised first.
    answers : array-like of int, shape (n,)
        Position of the true label of each row, in [0, L).
    prior_rows : array-like of shape (m, L), optional
        Log-probabilities of unlabelled rows, none of them among the validation rows. The prior
        comes from them, and only the strength from the validation rows.
    method : {"batch", "contextual"}, default "batch"
        What `prior_rows` are: predictions for real or for content-free inputs.

    Raises
    ------
    ConfigurationError
        Wrong shapes, fewer than two rows, NaN or infinity, a position out of range, an unknown
        method, or ``contextual`` without `prior_rows`.
    """
    rows = check_log_probabilities("log_probabilities", log_probabilities)
    positions = check_answers(answers, rows)
    if len(rows) < 2:
        raise ConfigurationError("Expected at least two rows to judge on, got 1: add validation rows.")
    if prior_rows is None and method == "contextual":
        msg = "Expected prior_rows with method='contextual', got none: pass the rows of content-free inputs."
        raise ConfigurationError(msg)
    unlabelled = None
    if prior_rows is not None:
        unlabelled = check_log_probabilities("prior_rows", prior_rows, n_labels=rows.shape[1])
    correction = _fitted(rows, positions, unlabelled, method)
    before, after = log_normalise(rows), _held_out(rows, positions, unlabelled, method)
    log_loss = paired_gain(log_losses(before, positions), log_losses(after, positions))
    brier = paired_gain(brier_losses(before, positions), brier_losses(after, positions))
    helps = log_loss.helps and not brier.hurts
    if not helps:
        correction.strength_ = 0.0
    return PriorSelection(
        correction=correction,
        helps=helps,
        reason=_reason(log_loss, brier, n=len(rows), strength=correction.strength_),
        log_loss_before=log_loss.before,
        log_loss_after=log_loss.after,
        brier_before=brier.before,
        brier_after=brier.after,
    )


def _fitted(
    rows: NDArray[np.float64],
    answers: NDArray[np.intp],
    unlabelled: NDArray[np.float64] | None,
    method: PriorMethod,
) -> LabelPriorCorrection:
    """Return a correction of the best strength, on trial: held-out rows decide, not these."""
    correction = LabelPriorCorrection(method).fit(rows if unlabelled is None else unlabelled)
    correction.strength_ = best_strength(log_normalise(rows), answers, correction.prior_)
    return correction


def _held_out(
    rows: NDArray[np.float64],
    answers: NDArray[np.intp],
    unlabelled: NDArray[np.float64] | None,
    method: PriorMethod,
) -> NDArray[np.float64]:
    """Return every row corrected by what the other folds teach, shape (n, L)."""
    n_folds = min(_FOLDS, len(rows))
    fold = np.empty(len(rows), dtype=np.intp)
    fold[np.argsort(answers, kind="stable")] = np.arange(len(rows)) % n_folds
    corrected = np.empty_like(rows)
    for k in range(n_folds):
        judged = fold == k
        correction = _fitted(rows[~judged], answers[~judged], unlabelled, method)
        corrected[judged] = correction.transform(rows[judged])
    return corrected


def _reason(log_loss: PairedGain, brier: PairedGain, *, n: int, strength: float) -> str:
    change = f"log loss goes from {log_loss.before:.4f} to {log_loss.after:.4f} over {n} held-out rows"
    gain = f"a gain of {log_loss.mean:z.4f} with a standard error of {log_loss.standard_error:.4f}"
    score = f"the Brier score from {brier.before:.4f} to {brier.after:.4f}"
    if not log_loss.helps:
        return f"Off: {change}, {gain}: too little to tell from chance ({score})."
    if brier.hurts:
        error = f"its standard error of {brier.standard_error:.4f}"
        return f"Off: {change}, {gain}, but {score}, worse by more than {error}."
    return f"On at strength {strength:.2f}: {change}, {gain}, and {score}."
