"""Prometheus metrics of a service."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from calibrant.core._labels import LabelSet, as_label_set
from calibrant.core._prediction import FloatArray, Prediction
from calibrant.heads._tuned import Decision, PredictionHistory

_WINDOW: Final = 1_000
_LEAST: Final = 30  # of fewer values the distance says next to nothing
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CONFIDENCES: Final = tuple(step / 20 for step in range(1, 21))


class ServiceMetrics:
    """Request and row counters, with drift of confidence against the bundle's run.

    Parameters
    ----------
    history : PredictionHistory
        History of the bundle.
    labels : LabelSet, optional
        Labels of the bundle. Answers of several labels are counted by label: their combinations would be too many.

    Notes
    -----
    ``calibrant_confidence_drift`` is the two-sample Kolmogorov-Smirnov distance in [0, 1] between the confidences of
    the last 1,000 rows and the bundle's history; NaN before 30 rows, or without a history. Of n such rows and m of the
    history, of the same kind, it is above ``1.63 * sqrt(1 / n + 1 / m)`` about once in a hundred times [1]_, with ties
    less often; n is ``calibrant_drift_rows``, m ``calibrant_history_rows``.

    References
    ----------
    .. [1] N. V. Smirnov, "Table for estimating the goodness of fit of empirical distributions", Annals of
       Mathematical Statistics 19, 1948.
    """

    def __init__(self, history: PredictionHistory, labels: LabelSet | None = None) -> None:
        self._labels = as_label_set(labels)
        self._history = np.sort(np.asarray(history.confidence, dtype=np.float64))
        self._window: deque[float] = deque(maxlen=_WINDOW)
        self._lock = threading.Lock()
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        requests = "Requests answered, by path and status; 429 are those refused as too many."
        self.requests = counter("calibrant_requests", requests, ["path", "status"])
        seconds = "Seconds from a request's headers to the end of its answer."
        self.seconds = histogram("calibrant_request_seconds", seconds, ["path"], buckets=_SECONDS)
        self.in_flight = gauge("calibrant_rows_in_flight", "Texts being classified.")
        self.rows = counter("calibrant_rows", "Texts classified, by outcome.", ["outcome"])
        self.open_questions = counter("calibrant_open_questions", "Rows answered by the model alone.")
        self.labels = counter("calibrant_labels", "Texts by predicted label.", ["label"])
        decisions = "Texts accepted, sent to review, or undecided for want of a threshold."
        self.decisions = counter("calibrant_decisions", decisions, ["decision"])
        confidence = "Confidences of predicted labels."
        self.confidence = histogram("calibrant_confidence", confidence, buckets=_CONFIDENCES)
        escalated = "Texts for which a cascade asked more than one model."
        self.escalated = counter("calibrant_escalations", escalated)
        steps = "Answers of a cascade's models, by what became of them."
        self.steps = counter("calibrant_steps", steps, ["model", "verdict"])
        gauge("calibrant_drift_rows", "Confidences in the window.").set_function(lambda: len(self._window))
        drift = "Kolmogorov-Smirnov distance of the window from the bundle's history."
        gauge("calibrant_confidence_drift", drift).set_function(self.drift)
        gauge("calibrant_history_rows", "Confidences in the bundle's history.").set(len(self._history))

    def count(self, prediction: Prediction, decision: Decision | None) -> None:
        """Count one answered text; None in place of a decision stands for another question than the task's."""
        self.rows.labels(prediction.outcome.value).inc()
        if decision is None:
            self.open_questions.inc()
            return
        self.decisions.labels(decision.name or "undecided").inc()
        if prediction.label is not None:
            for label in self._labels.decisions(prediction.label):
                self.labels.labels(label).inc()
        if prediction.confidence is not None:
            self.confidence.observe(prediction.confidence)
            with self._lock:
                self._window.append(prediction.confidence)
        if len(prediction.steps) > 1:
            self.escalated.inc()
        for step in prediction.steps:
            self.steps.labels(step.model, step.verdict.value).inc()

    def drift(self) -> float:
        """Return the Kolmogorov-Smirnov distance of recent confidences from the run's; NaN with few values."""
        with self._lock:
            values = np.sort(np.asarray(self._window, dtype=np.float64))
        if len(values) < _LEAST or not len(self._history):
            return float("nan")
        return ks_distance(values, self._history)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def ks_distance(values: FloatArray, history: Sequence[float] | FloatArray) -> float:
    """Return the largest difference of two empirical distribution functions, in [0, 1].

    Parameters
    ----------
    values, history : array of shape (n,) and (m,)
        Ascending; not empty.
    """
    points = np.concatenate([values, history])
    ours = np.searchsorted(values, points, side="right") / len(values)
    theirs = np.searchsorted(history, points, side="right") / len(history)
    return float(np.abs(ours - theirs).max())
