"""Large language models as text classifiers whose confidence can be trusted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names, supply

if TYPE_CHECKING:
    from calibrant.adapters import ConfidenceAdapter
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
    from calibrant.tuned import load

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

_find, __dir__ = lazy_names(__name__)


def __getattr__(name: str) -> object:
    """Import a public name or package when it is first used, so that ``import calibrant`` stays light."""
    if name == "__version__":  # of what is installed: pyproject.toml is the only place it is written in
        from importlib.metadata import version  # noqa: PLC0415 (seldom asked for)

        return version("calibrant")
    try:
        return _find(name)
    except AttributeError:
        from importlib import import_module, util  # noqa: PLC0415 (seldom asked for)

        package = f"{__name__}.{name}"
        if name.startswith("_") or util.find_spec(package) is None:
            raise
        return import_module(package)


def _tuned_files() -> object:
    from calibrant.tuned import _folder, _open  # noqa: PLC0415 (seldom needed)

    return SimpleNamespace(
        read=_folder.read,
        save=_folder.save,
        from_run=_open.from_run,
        open_tuned=_open.open_tuned,
    )


# A `Tuned` is made far below the package that saves and opens it.
def _students() -> object:
    from calibrant.inference._student import open_student  # noqa: PLC0415 (few programs open one)

    return open_student


supply("tuned classifiers", _tuned_files)
supply("students", _students)
