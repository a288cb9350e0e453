"""One row on its way to a query, an output and a record for reflection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from calibrant.adapters._types import ConfidenceDataInst, ConfidenceRolloutOutput, ConfidenceTrajectory
from calibrant.core._answers import unknown_answer
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._labels import LabelSet, OpenLabels
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Query
from calibrant.core._rows import Example

USER_TEMPLATE = "user_template"
DEMONSTRATIONS = "demonstrations"
_AS_JSON = " Write a whole answer as its JSON text, as json.dumps does."

Candidate: TypeAlias = dict[str, str]


def checked_row(row: ConfidenceDataInst, labels: LabelSet) -> ConfidenceDataInst:
    """Return a copy of the row whose answer is spelled as in the label set.

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
    if answer is None and isinstance(labels, CompositeLabels):
        raise DataError(f"input {row['input']!r:.80}: {unknown_answer(row['answer'], labels)}")
    if answer is None and isinstance(labels, OpenLabels):
        raise DataError(
            f"Expected a label as the answer, got blank text for the input {row['input']!r:.80}: correct the row."
        )
    if answer is None:
        known = ", ".join(labels.labels[:8])
        raise DataError(
            f"Expected an answer among the {len(labels)} labels ({known}), got {row['answer']!r:.80} "
            f"for the input {row['input']!r:.80}: correct the row or add the label to the schema."
        )
    return {**row, "answer": answer}


def checked_context(context: object, row: object) -> Mapping[str, object] | str | None:
    """Return the additional context of a row.

    Raises
    ------
    DataError
        It is neither a mapping nor a text.
    """
    if context is not None and not isinstance(context, Mapping | str):
        raise DataError(
            f"Expected additional_context to be a mapping or a text, got {context!r:.80} in {row!r:.200}."
        )
    return context


def query_of(candidate: Candidate, row: ConfidenceDataInst) -> Query:
    """Return the query of a row: the first component with a name of its own is the prompt."""
    named = (USER_TEMPLATE, DEMONSTRATIONS)
    prompt = next((text for name, text in candidate.items() if name not in named), None)
    if prompt is None:
        raise ConfigurationError(
            f"Expected a candidate with a system prompt, got the components {list(candidate)}."
        )
    return Query(
        prompt=prompt,
        text=row["input"],
        user_template=candidate.get(USER_TEMPLATE),
        context=row.get("context"),
        demonstrations=candidate.get(DEMONSTRATIONS),
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


def output_of(prediction: Prediction) -> ConfidenceRolloutOutput:
    """Return the record of a prediction that GEPA keeps."""
    return {
        "full_assistant_response": prediction.text,
        "parsed_value": prediction.label,
        "logprob_score": prediction.log_confidence,
        "outcome": prediction.outcome.value,
        "reason": prediction.reason,
    }


def trajectory_of(
    row: ConfidenceDataInst, prediction: Prediction, *, score: float, feedback: str, alternatives: int
) -> ConfidenceTrajectory:
    """Return the record of a row for reflection, with a bounded number of alternatives."""
    distribution = prediction.distribution
    measured = [] if distribution is None else distribution.alternatives(limit=alternatives)
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
    """Return the texts about a row that a reflecting model reads."""
    prediction = trajectory["prediction"]
    generated = prediction.label or prediction.text or f"<{prediction.outcome.value}>"
    if prediction.label is not None and prediction.confidence is not None:
        generated += f" ({prediction.confidence:.1%} probability)"
    return {
        "Inputs": trajectory["data"]["input"],
        "Generated Outputs": generated,
        "Feedback": trajectory["feedback"],
    }
