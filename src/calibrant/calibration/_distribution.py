"""The label-prior correction of one distribution, and of the prediction it belongs to."""

from __future__ import annotations

from dataclasses import replace

from calibrant.calibration._prior import LabelPriorCorrection
from calibrant.core._distribution import LabelDistribution
from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.core._prediction import Prediction


def correct_distribution(
    distribution: LabelDistribution, correction: LabelPriorCorrection
) -> LabelDistribution:
    """Return `distribution` with corrected log-probabilities, `measured`, masses and space kept.

    `emitted` becomes the most probable label after the correction, and `joint_logprob` None: what
    the model reported for the label it wrote is no confidence in the corrected one.

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
        msg = (
            f"Expected a distribution over {len(correction.prior_)} labels, as the correction was fitted on, got "
            f"{len(distribution.labels)} {distribution.labels[:3]}: fit a correction for this label set."
        )
        raise ConfigurationError(msg)
    if correction.strength_ == 0:
        return distribution
    logprobs = correction.transform(distribution.logprobs)
    return replace(
        distribution,
        logprobs=logprobs,
        emitted=distribution.labels[int(logprobs.argmax())],
        joint_logprob=None,
        closing_logprob=None,
        error_bound=None,
    )


def correct_prediction(prediction: Prediction, correction: LabelPriorCorrection) -> Prediction:
    """Return `prediction` with the label and the confidence of its corrected distribution.

    One without a distribution, or without a label, is returned as it is. `text` stays what the model
    wrote.

    Raises
    ------
    NotFittedError
        The correction was not fitted.
    ConfigurationError
        It was fitted on another number of labels.
    """
    if prediction.distribution is None or prediction.label is None:
        return prediction
    distribution = correct_distribution(prediction.distribution, correction)
    if distribution is prediction.distribution:
        return prediction
    label = distribution.labels[int(distribution.logprobs.argmax())]
    return replace(
        prediction,
        label=label,
        confidence=distribution.confidence(label),
        distribution=distribution,
    )
