"""Label sets as JSON values and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.core._composite import Field, FieldLabels, MultiLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._structures import record_of_structure, structure_of_record


def labels_to_record(labels: LabelSet) -> Any:  # noqa: ANN401 (any JSON value)
    """Return `labels` as JSON values: a list where an answer is one plain label, else an object that says what it is.

    Parameters
    ----------
    labels : LabelSet
        The legal answers of a task.
    """
    if isinstance(labels, FieldLabels):
        fields = [
            {"name": field.name, "labels": labels_to_record(field.labels), "path": field.path}
            for field in labels.fields
        ]
        return {"fields": fields}
    if isinstance(labels, MultiLabels):
        return {"multi_label": True, "labels": list(labels.labels)}
    return record_of_structure(labels)


def described_labels(labels: LabelSet) -> dict[str, Any]:
    """Return what a run says of its label set beside the names: ``label_set``; nothing where labels are plain."""
    record = labels_to_record(labels)
    return {} if isinstance(record, list) else {"label_set": record}


def labels_from_record(record: object) -> LabelSet:
    """Return what `labels_to_record` wrote.

    Parameters
    ----------
    record : list or mapping
        JSON values.

    Raises
    ------
    ConfigurationError
        They are something else, or no legal label set.
    """
    if not isinstance(record, Mapping) or not {"multi_label", "fields"} & set(record):
        return structure_of_record(record)
    if set(record) == {"multi_label", "labels"} and record["multi_label"] is True:
        return MultiLabels(_list(record["labels"]))
    if set(record) == {"fields"}:
        return FieldLabels([_field(entry) for entry in _list(record["fields"])])
    raise ConfigurationError(
        f"Expected a list of labels, or what says how answers are built, got {record!r:.80}."
    )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"Expected a list of labels or fields, got {value!r:.80}.")
    return list(value)


def _field(record: object) -> Field:
    if not isinstance(record, Mapping) or set(record) != {"name", "labels", "path"}:
        raise ConfigurationError(f"Expected a field with name, labels and path, got {record!r:.80}.")
    return Field(
        name=str(record["name"]), labels=labels_from_record(record["labels"]), path=str(record["path"])
    )
