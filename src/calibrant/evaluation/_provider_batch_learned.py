"""What was learned under a classifier's prompt, kept beside a batch job until its answers come."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrant.calibration._prior import LabelPriorCorrection, correct_prediction
from calibrant.core._errors import StateError
from calibrant.core._fingerprint import Fingerprint, asked_text
from calibrant.core._prediction import Prediction
from calibrant.evaluation._provider_batch_answers import labels_of_reading
from calibrant.evaluation._provider_batch_state import HEAD, LABEL_PRIOR, BatchState
from calibrant.heads._head import Head
from calibrant.inference._classifier import Classifier
from calibrant.inference._heads import apply_head, opened_head


def described(classifier: Classifier) -> dict[str, Any]:
    """Return the description of a classifier, as ``batch.json`` holds it."""
    found: dict[str, Any] = json.loads(json.dumps(classifier.describe(), default=repr))
    return found


def keep_learned(directory: Path, classifier: Classifier) -> None:
    """Write a classifier's head and label prior into the directory of its job.

    Raises
    ------
    StateError
        They cannot be written.
    """
    fingerprint = classifier.fingerprint()
    if classifier.head is not None:
        classifier.head.save(directory / HEAD, fingerprint=fingerprint)
    if classifier.prior_correction is not None:
        classifier.prior_correction.save(directory / LABEL_PRIOR, fingerprint=fingerprint)


def finisher(directory: Path, state: BatchState) -> Callable[[Prediction, str], Prediction]:
    """Return the function that turns an answer and its text into the prediction of a live call.

    Raises
    ------
    ConfigurationError
        The embedding model that the head reads texts with cannot be opened, or is another.
    StateError
        The head or the label prior that the job was submitted with is missing or damaged.
    """
    about = state.described or {}
    head, prior = None, None
    if about.get("head") is not None:
        head = Head.load(directory / HEAD, fingerprint=_fingerprint(state))
        if head.digest != about["head"]:
            raise StateError(
                f"{directory / HEAD}: expected the head that the job was submitted with, got another: restore it."
            )
        head = opened_head(head)
    if about.get("label_prior") is not None:
        prior = LabelPriorCorrection.load(directory / LABEL_PRIOR, fingerprint=_fingerprint(state))

    def finish(prediction: Prediction, text: str) -> Prediction:
        if prior is not None:
            prediction = correct_prediction(prediction, prior)
        return prediction if head is None else apply_head(head, prediction, text)

    return finish


def _fingerprint(state: BatchState) -> Fingerprint:
    about = state.described or {}
    return Fingerprint(
        prompt=asked_text(about["prompt"], about["user_template"], about.get("demonstrations")),
        model=state.connection["model"],
        space=state.reading["space"],
        labels=labels_of_reading(state.reading),
    )
