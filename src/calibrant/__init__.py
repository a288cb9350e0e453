"""Large language models as text classifiers whose confidence can be trusted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.adapters import ConfidenceAdapter
    from calibrant.assembly import load
    from calibrant.cascade import Cascade
    from calibrant.core import (
        CalibrantError,
        Example,
        Field,
        FieldLabels,
        HierarchicalLabels,
        LabelDistribution,
        LabelSet,
        MultiLabels,
        OrdinalLabels,
        Prediction,
        Task,
    )
    from calibrant.evaluation import BatchEvaluator
    from calibrant.inference import Classifier
    from calibrant.optimization import optimize
    from calibrant.scoring import LinearBlendScoring, SigmoidScoring, ThresholdScoring

    __version__: str

__all__ = [
    "BatchEvaluator",
    "CalibrantError",
    "Cascade",
    "Classifier",
    "ConfidenceAdapter",
    "Example",
    "Field",
    "FieldLabels",
    "HierarchicalLabels",
    "LabelDistribution",
    "LabelSet",
    "LinearBlendScoring",
    "MultiLabels",
    "OrdinalLabels",
    "Prediction",
    "SigmoidScoring",
    "Task",
    "ThresholdScoring",
    "load",
    "optimize",
]

_HOMES = {
    "BatchEvaluator": "calibrant.evaluation",
    "CalibrantError": "calibrant.core",
    "Cascade": "calibrant.cascade",
    "Classifier": "calibrant.inference",
    "ConfidenceAdapter": "calibrant.adapters",
    "Example": "calibrant.core",
    "Field": "calibrant.core",
    "FieldLabels": "calibrant.core",
    "HierarchicalLabels": "calibrant.core",
    "LabelDistribution": "calibrant.core",
    "LabelSet": "calibrant.core",
    "LinearBlendScoring": "calibrant.scoring",
    "MultiLabels": "calibrant.core",
    "OrdinalLabels": "calibrant.core",
    "Prediction": "calibrant.core",
    "SigmoidScoring": "calibrant.scoring",
    "Task": "calibrant.core",
    "ThresholdScoring": "calibrant.scoring",
    "load": "calibrant.assembly",
    "optimize": "calibrant.optimization",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that ``import calibrant`` stays light."""
    if name == "__version__":  # of what is installed: pyproject.toml is the only place it is written in
        from importlib.metadata import version  # noqa: PLC0415 (seldom asked for)

        return version("calibrant")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
