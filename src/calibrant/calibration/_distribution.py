"""The label-prior correction of one distribution."""

from __future__ import annotations

from dataclasses import replace

from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.core import ConfigurationError, LabelDistribution, NotFittedError

__all__ = ["correct_distribution"]


def correct_distribution(
    distribution: LabelDistribution, correction: LabelPriorCorrection
) -> LabelDistribution:
    """Return `distribution` with corrected log-probabilities and everything else kept.

    Labels, `measured`, masses and space describe the answer and stay. So does `joint_logprob`: it
    is what the model reported for the label it wrote. In ``masked`` space the confidence in that
    label therefore stays ``exp(joint_logprob)``; for the corrected number ask `probability`. Where
    the written label is not known, the one most probable before the correction becomes `emitted`,
    so that `joint_logprob` does not pass to the one most probable after it.

    Raises
    ------
    NotFittedError
        The correction was not fitted.
    ConfigurationError
        It was fitted on another number of labels.
    """
    if not hasattr(correction, "prior_"):
        raise NotFittedError("Expected a fitted correction, got one before fit: call fit or load it first.")
    if len(correction.prior_) != len(distribution.labels):
        shown = ", ".join(map(repr, distribution.labels[:3])) + (
            ", ..." if len(distribution.labels) > 3 else ""
        )
        msg = (
            f"Expected a distribution over {len(correction.prior_)} labels, as the correction was fitted on, "
            f"got {len(distribution.labels)} ({shown}): fit a correction for this label set."
        )
        raise ConfigurationError(msg)
    emitted = distribution.emitted
    if emitted is None and distribution.joint_logprob is not None:
        emitted = distribution.labels[int(distribution.logprobs.argmax())]
    return replace(distribution, logprobs=correction.transform(distribution.logprobs), emitted=emitted)
