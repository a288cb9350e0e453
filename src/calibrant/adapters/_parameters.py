"""What `ConfidenceAdapter` checks before anything is paid for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from calibrant.core import CompositeLabels, ConfigurationError, LabelSet, LogprobSpace
from calibrant.logprobs import labels_from_schema

__all__ = [
    "Schema",
    "check_calls",
    "check_thresholds",
    "find_labels",
    "prepare_proposer",
    "refuse_several",
    "structure_of",
]

Schema: TypeAlias = Mapping[str, Any] | type
"""A JSON schema, an OpenAI-style ``response_format``, or a Pydantic model."""


def check_thresholds(high: float, low: float, failure_score: float) -> None:
    """Refuse thresholds and scores out of range."""
    for name, value in (
        ("high_confidence_threshold", high),
        ("low_confidence_threshold", low),
        ("failure_score", failure_score),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError(f"Expected {name} to be a number, got {value!r}.")
    for name, value in (("high_confidence_threshold", high), ("low_confidence_threshold", low)):
        if not 0.0 < value <= 1.0:
            raise ConfigurationError(f"Expected {name} in (0, 1], got {value!r}.")
    if low > high:
        raise ConfigurationError(
            f"Expected low_confidence_threshold <= high_confidence_threshold, got {low!r} > {high!r}: swap them."
        )
    if not 0.0 <= failure_score <= 1.0:
        raise ConfigurationError(f"Expected failure_score in [0, 1], got {failure_score!r}.")


def check_calls(top_logprobs: int, workers: int, space: LogprobSpace | str | None) -> None:
    """Refuse settings of the calls that no model understands."""
    for name, value in (("top_logprobs", top_logprobs), ("max_litellm_workers", workers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"Expected {name} to be a whole number of at least 1, got {value!r}.")
    if space is not None and space not in {LogprobSpace.MASKED, LogprobSpace.RAW}:
        raise ConfigurationError(f"Expected space 'masked' or 'raw', got {space!r}.")


def find_labels(
    model: object, field_path: str, response_format: Schema | None, response_schema: Schema | None
) -> tuple[str, ...]:
    """Return the labels of whichever schema holds an enum at `field_path`."""
    if isinstance(model, str) and response_format is None:
        raise ConfigurationError(
            "Expected response_format when the model is a name: pass a JSON schema, or a Pydantic model, "
            f"whose field {field_path!r} has an enum of the labels."
        )
    schemas = [schema for schema in (response_schema, response_format) if schema is not None]
    if not schemas:
        raise ConfigurationError(
            "Expected response_schema or response_format with an enum of the labels, got neither."
        )
    try:
        return labels_from_schema(schemas[0], field_path)
    except ConfigurationError:
        if len(schemas) == 1:
            raise
        return labels_from_schema(schemas[1], field_path)


def refuse_several(labels: LabelSet | None, remedy: str) -> None:
    """Refuse labels of which an answer holds several, where these cannot be used; `remedy` says what to do."""
    if isinstance(labels, CompositeLabels):
        raise ConfigurationError(
            f"Expected one label in an answer, got labels of which an answer holds several: {remedy}"
        )


def structure_of(labels: LabelSet | None, found: tuple[str, ...]) -> LabelSet:
    """Return the labels of the schema in the structure that was handed in, if any; its order is theirs."""
    if labels is None:
        return LabelSet(found)
    if not isinstance(labels, LabelSet):
        raise ConfigurationError(
            f"Expected labels as a LabelSet, such as OrdinalLabels([...]), got {labels!r:.80}."
        )
    differ = sorted({*labels.labels} ^ {*found})
    if differ:
        raise ConfigurationError(
            f"Expected labels to be those of the schema, got sets that differ in {differ[0]!r:.80}: make them equal, "
            "or leave labels out."
        )
    return labels


def prepare_proposer(proposer: object, labels: LabelSet, field: str) -> None:
    """Tell a proposer that wants to know what answers look like."""
    prepare = getattr(proposer, "prepare", None)
    if prepare is not None:
        prepare(labels=labels if isinstance(labels, CompositeLabels) else labels.labels, field=field)
