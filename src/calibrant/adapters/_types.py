"""What goes into and comes out of `ConfidenceAdapter`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, Protocol, TypedDict, runtime_checkable

from calibrant.core import Prediction

__all__ = [
    "ConfidenceDataInst",
    "ConfidenceRolloutOutput",
    "ConfidenceTrajectory",
    "EvaluationObserver",
]


class ConfidenceDataInst(TypedDict):
    """One labelled row.

    Attributes
    ----------
    input : str
        The text to classify.
    answer : str
        Its true label; compared without regard to case and surrounding space.
    additional_context : mapping of str to str, optional
        Shown in the feedback of wrong answers.
    """

    input: str
    answer: str
    additional_context: NotRequired[Mapping[str, str]]


class ConfidenceRolloutOutput(TypedDict):
    """What GEPA keeps of one row; JSON values only.

    Attributes
    ----------
    full_assistant_response : str
        The raw completion.
    parsed_value : str or None
        The predicted label.
    logprob_score : float or None
        Natural logarithm of the confidence, <= 0.
    outcome : str
        ``ok``, ``error``, ``refusal`` or ``unparsed``.
    reason : str
        Why the row did not end well.
    """

    full_assistant_response: str
    parsed_value: str | None
    logprob_score: float | None
    outcome: str
    reason: str


class ConfidenceTrajectory(TypedDict):
    """Everything `ConfidenceAdapter.make_reflective_dataset` needs of one row."""

    data: ConfidenceDataInst
    prediction: Prediction
    score: float
    feedback: str


@runtime_checkable
class EvaluationObserver(Protocol):
    """Something that wants to hear of every evaluation, such as a proposer.

    Answers in `rows` are spelled as in the label set.
    """

    def observe(
        self,
        candidate: Mapping[str, str],
        rows: Sequence[ConfidenceDataInst],
        predictions: Sequence[Prediction],
    ) -> None:
        """Take note of one candidate's predictions on some rows."""
        ...
