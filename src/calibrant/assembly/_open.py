"""Classifiers of tasks: one model, several providers, or a cascade."""

from __future__ import annotations

import logging

from calibrant.assembly._sections import cascade_settings, routing_settings
from calibrant.core._limits import Limits
from calibrant.core._records import Journal
from calibrant.core._task import Task
from calibrant.inference._classifier import Classifier
from calibrant.inference._models import ModelLike
from calibrant.inference._predictor import BasePredictor

_LOG = logging.getLogger("calibrant")


def open_classifier(
    task: Task,
    *,
    model: ModelLike | None = None,
    journal: Journal | None = None,
    limits: Limits | None = None,
) -> BasePredictor:
    """Return the task's classifier: a `Cascade` if it has a ``[cascade]`` section, else a `Classifier`.

    Where it has a ``[routing]`` section, the classifier's client, or that of the cascade's model ``routed``,
    is the one that `open_routed_client` returns.

    Parameters
    ----------
    task : Task
        The task.
    model : str, Client or callable, optional
        Replaces the task's own model, all its providers, or its whole cascade.
    journal : Journal, optional
        Finished predictions.
    limits : Limits, optional
        Rates, budgets and deadlines of whole runs.

    Returns
    -------
    Classifier or Cascade
        Closing it releases its models and files.

    Raises
    ------
    ConfigurationError
        A setting is wrong, or contradicts another; see `Cascade` and `read_looper`.
    StateError
        The learned scorer's file cannot be used, or it was fitted on another model or prompt.

    Examples
    --------
    >>> from calibrant import Task
    >>> from calibrant.assembly import open_classifier
    >>> from calibrant.cascade import CascadeSettings
    >>> from calibrant.testing import FakeClient, fake_model
    >>> models = [{"name": "fake/small", "cost": 1}, {"name": "fake/large", "cost": 10}]
    >>> cascade = CascadeSettings(confidence_method="label_probability", threshold=0.8, models=models)
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?", sections={"cascade": cascade})
    >>> small = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.6)}, field="label", name="fake/small")
    >>> large = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.95)}, field="label", name="fake/large")
    >>> with fake_model("fake/small", small), fake_model("fake/large", large):
    ...     found = open_classifier(task).classify("purrs")
    >>> found.label, round(found.confidence, 2), [step.model for step in found.steps]
    ('cat', 0.95, ['fake/small', 'fake/large'])
    """
    # A wrong section is an error even if `model` replaces it.
    cascade, routing = cascade_settings(task), routing_settings(task)
    if model is None and cascade is not None:
        from calibrant.assembly._routing import open_cascade  # noqa: PLC0415 (few tasks have one)

        return open_cascade(task, cascade, routing, journal=journal, limits=limits)
    if model is None and routing is not None:
        from calibrant.assembly._routing import open_routed  # noqa: PLC0415 (few tasks have one)

        return open_routed(task, routing, journal=journal, limits=limits)
    if task.sections:
        _LOG.warning(
            "%s alone is asked: the task's %s and its settings are not used.",
            model if isinstance(model, str) else "Another model",
            "routing" if cascade is None else "cascade",
        )
    return Classifier.from_task(task, model=model, journal=journal, limits=limits)
