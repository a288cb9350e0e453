"""Classifiers as tuned values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from calibrant.calibration._calibrators import ConfidenceCalibrator
from calibrant.core._settings import ModelSettings
from calibrant.core._task import RecordedTask, Task
from calibrant.heads._tuned import (
    DESCRIBED,
    DESCRIBED_SOMETIMES,
    Measurements,
    Tuned,
    thresholds_of,
)

if TYPE_CHECKING:
    from calibrant.inference._classifier import Classifier

_SAMPLED: Final = frozenset({"sampled", "fused"})


def tuned_of(
    classifier: Classifier,
    task: Task,
    *,
    calibrator: ConfidenceCalibrator | None = None,
    thresholds: Mapping[str, Any] | None = None,
    measurements: Measurements | None = None,
) -> Tuned:
    """Return a classifier as a value, with what it has learned.

    Parameters
    ----------
    classifier : Classifier
        The classifier, with its head or label prior.
    task : Task
        The task it was opened from, with the prompt it asks under; its training rows are its demonstrations.
    calibrator : ConfidenceCalibrator, optional
        Of the confidence in its labels.
    thresholds : mapping, optional
        See `Tuned.thresholds`.
    measurements : Measurements, optional
        Of labelled rows, none of which taught the head or the calibrator of its own prediction.
    """
    described = classifier.describe()
    thresholds = thresholds_of(None) if thresholds is None else thresholds
    return Tuned(
        tasks=(RecordedTask(task=task),),
        description={
            name: described[name] for name in (*DESCRIBED, *DESCRIBED_SOMETIMES) if name in described
        },
        fingerprint=classifier.fingerprint(),
        head=classifier.head,
        prior_correction=classifier.prior_correction,
        calibrator=calibrator,
        thresholds=thresholds,
        measurements=measurements or Measurements(),
    )


def task_of(classifier: Classifier) -> Task:
    """Return the task of a classifier that was opened without one; its training rows are its demonstrations."""
    method, shown = classifier.method.describe(), classifier.demonstrations
    settings = None if shown is None else shown.settings
    scoring = method["scoring"]
    model = ModelSettings(
        name=classifier.name,
        api_base=getattr(classifier.client, "endpoint", None),
        scoring=scoring,
        tolerance=method.get("tolerance"),
        samples=method.get("samples") if scoring in _SAMPLED else None,
        options=dict(classifier.options),
    )
    return Task(
        name="classifier",
        labels=classifier.labels,
        prompt=classifier.prompt,
        field=classifier.field,
        user_template=classifier.user_template,
        model=model,
        demonstrations=settings,
        train=() if shown is None or settings is None else shown.index.examples(),
    )
