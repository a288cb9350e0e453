"""Tuned classifiers: read from runs and bundles, saved and opened."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.core._task import RecordedTask
    from calibrant.heads._tuned import (
        Calibration,
        Decision,
        Figure,
        Measurements,
        OpenedPredictor,
        PredictionHistory,
        Sketches,
        Tuned,
    )
    from calibrant.tuned._distilled import Distilled, distill
    from calibrant.tuned._folder import BatchLabeller
    from calibrant.tuned._sources import load
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "BatchLabeller",
    "Calibration",
    "Decision",
    "Distilled",
    "Figure",
    "Measurements",
    "OpenedPredictor",
    "PredictionHistory",
    "RecordedTask",
    "Sketches",
    "Tuned",
    "distill",
    "load",
]
