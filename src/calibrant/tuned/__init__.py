"""Tuned classifiers: read from runs and bundles, saved and opened."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.core._task import RecordedTask
    from calibrant.heads._tuned import Decision, Figure, Measurements, PredictionHistory, Tuned
    from calibrant.tuned._open import load
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibrant.core._task": "RecordedTask",
            "calibrant.heads._tuned": "Decision Figure Measurements PredictionHistory Tuned",
            "._open": "load",
        },
    )

__all__ = ["Decision", "Figure", "Measurements", "PredictionHistory", "RecordedTask", "Tuned", "load"]
