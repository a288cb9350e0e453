"""Types of the rows, outputs and trajectories of `ConfidenceAdapter`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, Protocol, TypedDict, runtime_checkable

from calibrant.core._prediction import Prediction


class ConfidenceDataInst(TypedDict):
    """Labelled row of a data set for GEPA.

    Attributes
    ----------
    input : str
        The text to classify.
    answer : str
        Its true label; compared without regard to case and surrounding space.
    additional_context : mapping of str to str, optional
        Shown in the feedback of wrong answers.
    context : str or None, optional
        What the answer has to rest on; shown to a cascade's verifier only.

    Examples
    --------
    >>> from calibrant.adapters import ConfidenceAdapter, ConfidenceDataInst
    >>> from calibrant.testing import FakeClient
    >>> row: ConfidenceDataInst = {"input": "purrs", "answer": "CAT"}
    >>> fake, schema = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.8)}), {"enum": ["cat", "dog"]}
    >>> adapter = ConfidenceAdapter(fake, "category", {"properties": {"category": schema}})
    >>> found = adapter.evaluate([row], {"system_prompt": "Which animal?"}, capture_traces=True)
    >>> found.trajectories[0]["data"]["answer"], found.trajectories[0]["is_correct"]
    ('cat', True)
    """

    input: str
    answer: str
    additional_context: NotRequired[Mapping[str, str]]
    context: NotRequired[str | None]


class ConfidenceRolloutOutput(TypedDict):
    """Rollout output of one row for GEPA; JSON values only.

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

    Examples
    --------
    >>> from calibrant.adapters import ConfidenceAdapter
    >>> from calibrant.testing import FakeClient
    >>> fake, schema = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.8)}), {"enum": ["cat", "dog"]}
    >>> adapter = ConfidenceAdapter(fake, "category", {"properties": {"category": schema}})
    >>> found = adapter.evaluate([{"input": "purrs", "answer": "cat"}], {"system_prompt": "Which animal?"})
    >>> found.outputs[0]["parsed_value"], round(found.outputs[0]["logprob_score"], 3)  # log(0.8)
    ('cat', -0.223)
    """

    full_assistant_response: str
    parsed_value: str | None
    logprob_score: float | None
    outcome: str
    reason: str


class ConfidenceTrajectory(TypedDict):
    """Trajectory of one row, for `ConfidenceAdapter.make_reflective_dataset`.

    Attributes
    ----------
    data : ConfidenceDataInst
        The row, its answer spelled as in the label set.
    prediction : Prediction
        The answer with its distribution; what follows, up to `is_correct`, is read from it for scripts written for
        gepa's adapter.
    full_assistant_response : str
        The raw completion.
    parsed_value : str or None
        The predicted label; None where the answer is no legal one.
    logprob_score : float or None
        Natural logarithm of the confidence, <= 0.
    top_alternatives : list of dict
        The measured labels, the predicted one among them, most probable first; at most as many as ``top_logprobs``.
        Each has ``token`` and ``resolved_value``, both the whole label, and its ``probability``. Empty without a
        distribution over whole answers.
    is_correct : bool
        Whether the predicted label is the true one.
    score : float
        Of the scoring strategy, in [0, 1]; ``failure_score`` without a legal label.
    feedback : str
        What a reflecting model reads.

    Examples
    --------
    >>> from calibrant.adapters import ConfidenceAdapter
    >>> from calibrant.testing import FakeClient
    >>> fake, schema = FakeClient(["cat", "dog"], {"barks": ("cat", 0.8)}), {"enum": ["cat", "dog"]}
    >>> adapter = ConfidenceAdapter(fake, "category", {"properties": {"category": schema}})
    >>> rows = [{"input": "barks", "answer": "dog"}]
    >>> found = adapter.evaluate(rows, {"system_prompt": "Which animal?"}, capture_traces=True)
    >>> found.trajectories[0]["score"], found.trajectories[0]["feedback"].partition(". Alt")[0]
    (0.0, "Wrong (80% probability). Expected 'dog', got 'cat'")
    """

    data: ConfidenceDataInst
    prediction: Prediction
    full_assistant_response: str
    parsed_value: str | None
    logprob_score: float | None
    top_alternatives: list[dict[str, Any]]
    is_correct: bool
    score: float
    feedback: str


@runtime_checkable
class EvaluationObserver(Protocol):
    """Protocol of observers of evaluations, such as a proposer.

    Answers in `rows` are spelled as in the label set.
    """

    def observe(
        self,
        candidate: Mapping[str, str],
        rows: Sequence[ConfidenceDataInst],
        predictions: Sequence[Prediction],
    ) -> None:
        """Record one candidate's predictions on rows."""
        ...
