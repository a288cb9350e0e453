"""Checks of the parameters of `ConfidenceAdapter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet, OpenLabels
from calibrant.core._prediction import LogprobSpace
from calibrant.logprobs._schema import labels_from_schema

Schema: TypeAlias = Mapping[str, Any] | type
"""A JSON schema, an OpenAI-style ``response_format``, or a Pydantic model."""


def check_calls(top_logprobs: int, workers: int, space: LogprobSpace | str | None) -> None:
    """Check top_logprobs, the number of workers and the log-probability space."""
    for name, value in (("top_logprobs", top_logprobs), ("max_litellm_workers", workers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigurationError(f"Expected {name} to be a whole number of at least 1, got {value!r}.")
    if space is not None and space not in {LogprobSpace.MASKED, LogprobSpace.RAW}:
        raise ConfigurationError(f"Expected space 'masked' or 'raw', got {space!r}.")


def labels_of(
    model: object,
    field_path: str,
    schemas: tuple[Schema | None, Schema | None],
    labels: LabelSet | None = None,
) -> LabelSet:
    """Return the label set of an adapter, from a schema or from `labels`.

    Parameters
    ----------
    model : object
        Model of the adapter; only a name needs a schema.
    field_path : str
        Path of the labels in the schemas.
    schemas : (response_schema, response_format)
        The labels are those of the first that has an enum at `field_path`.
    labels : LabelSet, optional
        Their structure; its order is theirs. Without a schema they are the labels.

    Returns
    -------
    LabelSet
        `OpenLabels` where neither a schema nor `labels` lists them.

    Raises
    ------
    ConfigurationError
        A name without a response format, schemas without an enum, or `labels` that differ from theirs or of which an
        answer holds several.
    """
    if isinstance(model, str) and schemas[1] is None:
        raise ConfigurationError(
            "Expected response_format when the model is a name: pass a JSON schema, or a Pydantic model, "
            f"whose field {field_path!r} has an enum of the labels."
        )
    if labels is not None and not isinstance(labels, LabelSet):
        raise ConfigurationError(
            f"Expected labels as a LabelSet, such as OrdinalLabels([...]), got {labels!r:.80}."
        )
    # A schema and a path say too little about them.
    refuse_several(labels, "use ConfidenceAdapter.from_classifier(Classifier(model=..., labels=...)).")
    given = [schema for schema in schemas if schema is not None]
    if not given:
        return OpenLabels() if labels is None else labels
    try:
        found = labels_from_schema(given[0], field_path)
    except ConfigurationError:
        if len(given) == 1:
            raise
        found = labels_from_schema(given[1], field_path)
    if labels is None:
        return LabelSet(found)
    if differ := sorted({*labels.labels} ^ {*found}):
        raise ConfigurationError(
            f"Expected labels to be those of the schema, got sets that differ in {differ[0]!r:.80}: make them equal, "
            "or leave labels out."
        )
    return labels


def refuse_several(labels: LabelSet | None, remedy: str) -> None:
    """Refuse composite labels; `remedy` is the end of the error message."""
    if labels is not None and labels.holds_several:
        raise ConfigurationError(
            f"Expected one label in an answer, got labels of which an answer holds several: {remedy}"
        )


def refuse_open(labels: LabelSet, **settings: object) -> None:
    """Refuse settings that need a closed label set, if the labels are open."""
    given = [f"{name}={value!r}" for name, value in settings.items() if value is not None]
    if given and labels.is_open:
        raise ConfigurationError(
            f"Expected a list of the labels with {given[0]}, got a callable without one: pass response_schema with an "
            "enum of the labels."
        )
