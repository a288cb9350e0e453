"""Rows of an evaluation: their types, checks, queries, scores, feedback and records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import fsum
from typing import Any, Final, NotRequired, Protocol, TypeAlias, TypedDict, runtime_checkable

from gepa.core.adapter import EvaluationBatch

from calibrant.core._completion import Completion
from calibrant.core._errors import ConfigurationError, DataError, LogprobsUnavailableError
from calibrant.core._labels import LABEL_DESCRIPTIONS, Aspect, LabelSet
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import Query
from calibrant.core._rows import Example
from calibrant.core._structures import unknown_answer
from calibrant.logprobs._distribution import extract_distribution
from calibrant.metrics._validation import check_number
from calibrant.scoring import BrierScoring, LinearBlendScoring, ScoringStrategy

USER_TEMPLATE: Final = "user_template"
DEMONSTRATED: Final = "demonstrations"
OTHER_COMPONENTS: Final = (USER_TEMPLATE, DEMONSTRATED, LABEL_DESCRIPTIONS)
"""Components of a candidate that are no system prompt."""
_AS_JSON: Final = " Write a whole answer as its JSON text, as json.dumps does."
Candidate: TypeAlias = dict[str, str]
Objective: TypeAlias = Callable[[Prediction, str], float]
"""``(prediction, true label) -> [0, 1]``."""

# They need a distribution over whole answers.
_OF_ONE_LABEL: Final = frozenset({"answer_probability", "brier", "label_mass"})
_DEFAULT_OBJECTIVES = ("accuracy", "probability")


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


EvaluatedBatch: TypeAlias = EvaluationBatch[ConfidenceTrajectory, ConfidenceRolloutOutput]


def checked_row(row: ConfidenceDataInst, labels: LabelSet) -> ConfidenceDataInst:
    """Check a row; return a copy with the answer in the spelling of the label set.

    Raises
    ------
    DataError
        A field is no text, or the answer is not one of the labels.
    """
    for name in ("input", "answer"):
        if not isinstance(row.get(name), str):
            raise DataError(
                f"Expected text under {name!r} in every row, got {row.get(name)!r:.80} in {row!r:.200}."
                + (_AS_JSON if isinstance(row.get(name), list | Mapping) else "")
            )
    checked_context(row.get("additional_context"), row)
    answer = labels.canonical(row["answer"])
    if answer is None and labels.is_open:
        raise DataError(
            f"Expected a label as the answer, got blank text for the input {row['input']!r:.80}: correct the row."
        )
    if answer is None:
        raise DataError(f"input {row['input']!r:.80}: {unknown_answer(row['answer'], labels)}")
    return {**row, "answer": answer}


def checked_context(context: object, row: object) -> Mapping[str, object] | str | None:
    """Check and return the additional context of a row.

    Raises
    ------
    DataError
        The context is neither a mapping nor a text.
    """
    if context is not None and not isinstance(context, Mapping | str):
        raise DataError(
            f"Expected additional_context to be a mapping or a text, got {context!r:.80} in {row!r:.200}."
        )
    return context


def prompt_component(candidate: Mapping[str, str]) -> str:
    """Return the name of the component that is the system prompt: the first that is nothing else.

    Raises
    ------
    ConfigurationError
        There is none.
    """
    name = next((name for name in candidate if name not in OTHER_COMPONENTS), None)
    if name is None:
        raise ConfigurationError(
            f"Expected a candidate with a system prompt, got the components {list(candidate)}."
        )
    return name


def query_of(candidate: Candidate, row: ConfidenceDataInst) -> Query:
    """Return the query of a row under a candidate's prompt, template and demonstrations."""
    return Query(
        prompt=candidate[prompt_component(candidate)],
        text=row["input"],
        user_template=candidate.get(USER_TEMPLATE),
        context=row.get("context"),
        demonstrations=candidate.get(DEMONSTRATED),
    )


def example_row(example: Example) -> ConfidenceDataInst:
    """Return an example as GEPA's row."""
    row: ConfidenceDataInst = {
        "input": example.input,
        "answer": example.answer,
        "additional_context": dict(example.additional_context),
    }
    if example.context is not None:
        row["context"] = example.context
    return row


def over_all_labels(predictions: Sequence[Prediction], labels: LabelSet, field_path: str) -> list[Prediction]:
    """Extend predictions for open labels to all labels known now; return others unchanged.

    A prediction of an open set was read when fewer labels were known: by another row, by this one's own batch, or
    in the process that wrote it to a journal. Its tokens say what the later labels would have had.

    Parameters
    ----------
    predictions : sequence of Prediction
        With their tokens, where the set is open.
    labels : LabelSet
        The label set; an open one takes unknown labels from the predictions and their distributions, such as those
        that another process had seen.
    field_path : str
        JSON path of the label.
    """
    if not labels.is_open:
        return list(predictions)
    spelled = [None if p.label is None else labels.canonical(p.label) for p in predictions]
    for known in dict.fromkeys(p.distribution.labels for p in predictions if p.distribution is not None):
        for label in known:
            labels.canonical(label)
    return [_read_again(p, label, labels, field_path) for p, label in zip(predictions, spelled, strict=True)]


def _read_again(prediction: Prediction, label: str | None, labels: LabelSet, field_path: str) -> Prediction:
    known = prediction.distribution
    if label is None or known is None or known.labels == labels.labels:
        return prediction
    if len(labels) == len(known.labels) == 1:  # the same label in another spelling
        return replace(
            prediction, label=label, distribution=replace(known, labels=labels.labels, emitted=label)
        )
    answer = Completion(text=prediction.text, tokens=prediction.tokens)
    try:
        distribution = extract_distribution(answer, labels, field_path, known.space)
    except LogprobsUnavailableError:  # at `field_path` is no text: the label was read from somewhere else
        return prediction
    return replace(
        prediction, label=label, confidence=distribution.confidence(label), distribution=distribution
    )


def accuracy(prediction: Prediction, answer: str) -> float:
    """Return 1.0 if the label is right, else 0.0."""
    return float(prediction.label == answer)


def probability(prediction: Prediction, answer: str) -> float:  # noqa: ARG001
    """Return the confidence in the predicted label, right or wrong; 0.0 if unknown."""
    return prediction.confidence or 0.0


def answer_probability(prediction: Prediction, answer: str) -> float:
    """Return the probability of the true label; 0.0 without a distribution."""
    if prediction.distribution is None:
        return 0.0
    return prediction.distribution.probability(answer)


def brier(prediction: Prediction, answer: str) -> float:
    """Return the Brier score of the distribution, 1.0 the best; see `BrierScoring`."""
    if prediction.distribution is None:
        return 0.0
    return BrierScoring().score(
        prediction.label == answer,
        prediction.log_confidence,
        distribution=prediction.distribution,
        answer=answer,
    )


def label_mass(prediction: Prediction, answer: str) -> float:  # noqa: ARG001
    """Return the label mass: the total reported probability of all legal labels."""
    return 0.0 if prediction.distribution is None else prediction.distribution.label_mass


@dataclass(frozen=True)
class Credit:
    """Weighted mean correctness of an answer's aspects, regardless of confidence.

    Parameters
    ----------
    labels : LabelSet, optional
        Says which aspects an answer has. By default the labels of whoever is handed the objective; alone it is 1.0
        for the right label, else 0.0.
    """

    labels: LabelSet | None = None

    def __call__(self, prediction: Prediction, answer: str) -> float:
        """Return the credit in [0, 1]; 0.0 without a legal label."""
        if self.labels is None:
            return accuracy(prediction, answer)
        return self.labels.credit(prediction, answer)


OBJECTIVES: dict[str, Objective] = {
    "accuracy": accuracy,
    "probability": probability,
    "answer_probability": answer_probability,
    "brier": brier,
    "credit": Credit(),
    "label_mass": label_mass,
}
"""Objectives known by name."""


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
        Labels that `Credit` grades by where it names none itself.

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
        chosen = {**{name: OBJECTIVES[name] for name in _DEFAULT_OBJECTIVES}, **objectives}
    else:
        chosen = _named_objectives(tuple(_DEFAULT_OBJECTIVES if objectives is None else objectives), labels)
    return {
        name: Credit(labels) if objective == Credit() else objective for name, objective in chosen.items()
    }


def _named_objectives(names: tuple[str, ...], labels: LabelSet) -> dict[str, Objective]:
    unknown = [name for name in names if name not in OBJECTIVES]
    if unknown:
        known = ", ".join(OBJECTIVES)
        raise ConfigurationError(
            f"Expected objectives among {known}, got {', '.join(map(repr, unknown))}: "
            "pass a mapping of names to functions for your own."
        )
    unfit = []
    if labels.holds_several:
        unfit = sorted(_OF_ONE_LABEL.intersection(names))
    if unfit:
        fit = ", ".join(name for name in OBJECTIVES if name not in _OF_ONE_LABEL)
        raise ConfigurationError(
            f"Expected objectives among {fit} where an answer holds several labels, got {unfit[0]!r}, which needs a "
            "distribution over whole answers: leave it out."
        )
    return {name: OBJECTIVES[name] for name in names}


class GradingOptions(TypedDict, total=False):
    """Options of a `ConfidenceGrader`."""

    scoring_strategy: ScoringStrategy | None
    high_confidence_threshold: float
    low_confidence_threshold: float
    failure_score: float
    objectives: Iterable[str] | Mapping[str, Objective] | None


class ConfidenceGrader:
    """Grader of predictions, shared by the GEPA and DSPy adapters: scores and feedback.

    Parameters
    ----------
    labels : LabelSet
        Labels that answers are compared in; they say which aspects an answer has, plain labels have one.
    scoring_strategy : ScoringStrategy, optional
        Scores each aspect, by correctness alone where the confidence is unknown. One written for gepa's adapter,
        whose ``score`` takes correctness and log-probability only, gets these. By default
        ``LinearBlendScoring(high_confidence_threshold)``.
    high_confidence_threshold : float, default 0.99
        Confidence, in (0, 1], from which an answer counts as certain in feedback.
    low_confidence_threshold : float, default 0.90
        Confidence, in (0, 1], below which an answer counts as uncertain in feedback.
    failure_score : float, default 0.0
        Score of a row without a legal label, in [0, 1].
    objectives : iterable of str, mapping of str to callable, or None
        See `resolve_objectives`.

    Raises
    ------
    ConfigurationError
        A number is out of range, or a strategy or objective is none.

    Examples
    --------
    >>> from calibrant.adapters import ConfidenceGrader
    >>> from calibrant.core import LabelSet, Prediction
    >>> grader = ConfidenceGrader(LabelSet(["cat", "dog"]))
    >>> [grader.score(Prediction(label="cat", confidence=1.0), answer) for answer in ("cat", "dog")]
    [1.0, 0.0]
    """

    def __init__(
        self,
        labels: LabelSet,
        *,
        scoring_strategy: ScoringStrategy | None = None,
        high_confidence_threshold: float = 0.99,
        low_confidence_threshold: float = 0.90,
        failure_score: float = 0.0,
        objectives: Iterable[str] | Mapping[str, Objective] | None = None,
    ) -> None:
        high = high_confidence_threshold
        low = low_confidence_threshold
        check_number("high_confidence_threshold", high, "(0, 1]")
        check_number("low_confidence_threshold", low, "(0, 1]")
        check_number("failure_score", failure_score, "[0, 1]")
        if low > high:
            raise ConfigurationError(
                f"Expected low_confidence_threshold <= high_confidence_threshold, got {low!r} > {high!r}: swap them."
            )
        if scoring_strategy is not None and not isinstance(scoring_strategy, ScoringStrategy):
            raise ConfigurationError(
                f"Expected a scoring strategy with score and describe, got {scoring_strategy!r}."
            )
        self.labels = labels
        self.scoring_strategy: ScoringStrategy = scoring_strategy or LinearBlendScoring(high)
        self.high_confidence_threshold = high
        self.low_confidence_threshold = low
        self.failure_score = failure_score
        self.objectives = resolve_objectives(objectives, labels=labels)

    def score(self, prediction: Prediction, answer: str) -> float:
        """Return the weighted mean score of a prediction's aspects; `failure_score` without a legal label."""
        if prediction.outcome is not Outcome.OK:
            return self.failure_score
        aspects = self.labels.aspects(prediction, answer)
        scores = [aspect.weight * _aspect_score(self.scoring_strategy, aspect) for aspect in aspects]
        return fsum(scores) / fsum(aspect.weight for aspect in aspects)

    def feedback(
        self, prediction: Prediction, answer: str, context: Mapping[str, object] | str | None
    ) -> str:
        """Return the feedback for reflection; see `build_feedback` and `build_composite_feedback`."""
        from calibrant.feedback import (  # noqa: PLC0415 (read by reflection models alone)
            build_composite_feedback,
            build_feedback,
        )

        thresholds = {"high": self.high_confidence_threshold, "low": self.low_confidence_threshold}
        if self.labels.holds_several:
            return build_composite_feedback(
                prediction, answer, labels=self.labels, additional_context=context, **thresholds
            )
        return build_feedback(
            is_correct=prediction.label == answer,
            expected=answer,
            got=prediction.label or prediction.text,
            confidence=prediction.confidence,
            distribution=prediction.distribution,
            outcome=prediction.outcome,
            labels=self.labels,
            reason=prediction.reason,
            additional_context=context,
            **thresholds,
        )

    def objective_scores(self, prediction: Prediction, answer: str) -> dict[str, float]:
        """Return the scores of a prediction as a mapping from objective names."""
        return {name: float(objective(prediction, answer)) for name, objective in self.objectives.items()}

    def graded(
        self,
        rows: Sequence[ConfidenceDataInst],
        predictions: Sequence[Prediction],
        *,
        alternatives: int | None,
    ) -> EvaluatedBatch:
        """Return the evaluation of a batch for GEPA, with trajectories unless `alternatives` is None."""
        pairs = list(zip(rows, predictions, strict=True))
        scores = [self.score(prediction, row["answer"]) for row, prediction in pairs]
        trajectories = None
        if alternatives is not None:
            trajectories = [
                _trajectory(
                    row,
                    prediction,
                    score=score,
                    feedback=self.feedback(prediction, row["answer"], row.get("additional_context")),
                    alternatives=alternatives,
                )
                for (row, prediction), score in zip(pairs, scores, strict=True)
            ]
        return EvaluationBatch(
            outputs=[_output(prediction) for prediction in predictions],
            scores=scores,
            trajectories=trajectories,
            objective_scores=[self.objective_scores(prediction, row["answer"]) for row, prediction in pairs],
        )


def _aspect_score(strategy: ScoringStrategy, aspect: Aspect) -> float:
    """Return the score of one aspect; keywords that a user's strategy does not take are left out."""
    facts = {"distribution": aspect.distribution, "answer": aspect.expected}
    accepted = _keywords(getattr(strategy.score, "__func__", strategy.score))
    keywords: dict[str, Any] = {
        name: value for name, value in facts.items() if accepted is None or name in accepted
    }
    return strategy.score(aspect.is_correct, aspect.log_confidence, **keywords)


@lru_cache(maxsize=64)
def _keywords(function: Callable[..., object]) -> frozenset[str] | None:
    """Return a function's parameter names; None if it takes any keyword or its signature is unknown."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


def _output(prediction: Prediction) -> ConfidenceRolloutOutput:
    """Return the rollout output of a prediction, for GEPA."""
    return {
        "full_assistant_response": prediction.text,
        "parsed_value": prediction.label,
        "logprob_score": prediction.log_confidence,
        "outcome": prediction.outcome.value,
        "reason": prediction.reason,
    }


def _trajectory(
    row: ConfidenceDataInst, prediction: Prediction, *, score: float, feedback: str, alternatives: int
) -> ConfidenceTrajectory:
    """Return the trajectory of a row for reflection, with a bounded number of alternatives."""
    distribution = prediction.distribution
    measured = []
    if distribution is not None:
        measured = distribution.alternatives(limit=alternatives)
    return {
        "data": row,
        "prediction": prediction,
        "score": score,
        "feedback": feedback,
        "full_assistant_response": prediction.text,
        "parsed_value": prediction.label,
        "logprob_score": prediction.log_confidence,
        "top_alternatives": [
            {"token": label, "probability": share, "resolved_value": label} for label, share in measured
        ],
        "is_correct": prediction.label == row["answer"],
    }


def record_of(trajectory: ConfidenceTrajectory) -> dict[str, str]:
    """Return the reflection record of a row, as texts."""
    prediction = trajectory["prediction"]
    return {
        "Inputs": trajectory["data"]["input"],
        # Without its confidence: a reflecting model takes a percentage here for the format of the answer.
        "Generated Outputs": prediction.label or prediction.text or f"<{prediction.outcome.value}>",
        "Feedback": trajectory["feedback"],
    }
