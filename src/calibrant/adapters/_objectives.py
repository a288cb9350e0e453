"""Per-row objectives for GEPA's Pareto front; higher is better, all in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Prediction
from calibrant.scoring._proper import BrierScoring

Objective: TypeAlias = Callable[[Prediction, str], float]
"""``(prediction, true label) -> [0, 1]``."""


def accuracy(prediction: Prediction, answer: str) -> float:
    """1.0 if the label is right, else 0.0."""
    return float(prediction.label == answer)


def probability(prediction: Prediction, answer: str) -> float:  # noqa: ARG001
    """Confidence in the predicted label, right or wrong; 0.0 where it is unknown."""
    return prediction.confidence or 0.0


def answer_probability(prediction: Prediction, answer: str) -> float:
    """Probability of the true label; 0.0 where there is no distribution."""
    return 0.0 if prediction.distribution is None else prediction.distribution.probability(answer)


def brier(prediction: Prediction, answer: str) -> float:
    """Brier score of the distribution turned so that 1.0 is perfect; see `BrierScoring`."""
    if prediction.distribution is None:
        return 0.0
    return BrierScoring().score(
        prediction.label == answer,
        prediction.log_confidence,
        distribution=prediction.distribution,
        answer=answer,
    )


def label_mass(prediction: Prediction, answer: str) -> float:  # noqa: ARG001
    """Return the reported probability on legal labels; low values say the model would rather answer otherwise."""
    return 0.0 if prediction.distribution is None else prediction.distribution.label_mass


@dataclass(frozen=True)
class Credit:
    """Mean correctness over the aspects of an answer: the part of it that is right, whatever its confidence.

    Parameters
    ----------
    labels : LabelSet, optional
        Says which aspects an answer has. By default the labels of whoever is handed the objective; alone it is 1.0
        for the right label, else 0.0.
    """

    labels: LabelSet | None = None

    def __call__(self, prediction: Prediction, answer: str) -> float:
        """Return the credit in [0, 1]; 0.0 where there is no legal label."""
        return accuracy(prediction, answer) if self.labels is None else self.labels.credit(prediction, answer)


OBJECTIVES: dict[str, Objective] = {
    "accuracy": accuracy,
    "probability": probability,
    "answer_probability": answer_probability,
    "brier": brier,
    "credit": Credit(),
    "label_mass": label_mass,
}
"""Objectives known by name."""

OF_ONE_LABEL = frozenset({"answer_probability", "brier", "label_mass"})
"""Those that need a distribution over whole answers."""

DEFAULT_OBJECTIVES = ("accuracy", "probability")


def resolve_objectives(
    objectives: Iterable[str] | Mapping[str, Objective] | None, *, labels: LabelSet
) -> dict[str, Objective]:
    """Return the objectives by name.

    Parameters
    ----------
    objectives : iterable of str, mapping of str to callable, or None
        Names replace the defaults ``accuracy`` and ``probability``; a mapping adds to or
        overrides them; None keeps them.
    labels : LabelSet
        What answers are graded by where an objective does not say so itself.

    Raises
    ------
    ConfigurationError
        A name is unknown, or does not apply where an answer holds several labels.
    """
    if isinstance(objectives, str):
        objectives = (objectives,)
    if isinstance(objectives, Mapping):
        wrong = [name for name, function in objectives.items() if not callable(function)]
        if wrong:
            raise ConfigurationError(
                f"Expected functions (prediction, true label) -> number, got others for {', '.join(wrong)}."
            )
        return _bound({**{name: OBJECTIVES[name] for name in DEFAULT_OBJECTIVES}, **objectives}, labels)
    names = tuple(DEFAULT_OBJECTIVES if objectives is None else objectives)
    unknown = [name for name in names if name not in OBJECTIVES]
    if unknown:
        known = ", ".join(OBJECTIVES)
        raise ConfigurationError(
            f"Expected objectives among {known}, got {', '.join(map(repr, unknown))}: "
            "pass a mapping of names to functions for your own."
        )
    unfit = sorted(OF_ONE_LABEL.intersection(names)) if isinstance(labels, CompositeLabels) else []
    if unfit:
        fit = ", ".join(name for name in OBJECTIVES if name not in OF_ONE_LABEL)
        raise ConfigurationError(
            f"Expected objectives among {fit} where an answer holds several labels, got {unfit[0]!r}, which needs a "
            "distribution over whole answers: leave it out."
        )
    return _bound({name: OBJECTIVES[name] for name in names}, labels)


def _bound(objectives: Mapping[str, Objective], labels: LabelSet) -> dict[str, Objective]:
    return {
        name: Credit(labels) if objective == Credit() else objective for name, objective in objectives.items()
    }
