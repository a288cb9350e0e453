"""Conversion of label sets to JSON values and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.core._composite import Field, FieldLabels, MultiLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._structures import HierarchicalLabels, OrdinalLabels, structured_labels


def labels_to_record(labels: LabelSet) -> Any:  # noqa: ANN401 (any JSON value)
    """Return `labels` as JSON values: a list for plain labels, else an object that names the kind.

    Parameters
    ----------
    labels : LabelSet
        The legal answers of a task.
    """
    names = list(labels.labels)
    if isinstance(labels, FieldLabels):
        return {
            "fields": [
                {"name": field.name, "labels": labels_to_record(field.labels), "path": field.path}
                for field in labels.fields
            ]
        }
    if isinstance(labels, MultiLabels):
        return {"multi_label": True, "labels": names}
    if isinstance(labels, HierarchicalLabels):
        return {"structure": labels.structure, "separator": labels.separator, "labels": names}
    if isinstance(labels, OrdinalLabels):
        return {"structure": labels.structure, "labels": names}
    return names


def described_labels(labels: LabelSet) -> dict[str, Any]:
    """Return ``{"label_set": record}``, or an empty dict for plain labels, whose names are enough."""
    record = labels_to_record(labels)
    return {} if isinstance(record, list) else {"label_set": record}


def labels_from_record(record: object) -> LabelSet:
    """Return the label set written by `labels_to_record`.

    Parameters
    ----------
    record : list or mapping
        JSON values.

    Raises
    ------
    ConfigurationError
        They are something else, or no legal label set.
    """
    if isinstance(record, list | tuple):
        return LabelSet(record)
    match record:
        case {"fields": [*fields], **others} if not others:
            return FieldLabels([_field(field) for field in fields])
        case {"multi_label": True, "labels": [*names], **others} if not others:
            return MultiLabels(names)
        case {"structure": "hierarchical", "separator": separator, "labels": [*names], **others} if (
            not others
        ):
            return structured_labels(names, structure="hierarchical", separator=separator)
        case {"structure": "ordinal", "labels": [*names], **others} if not others:
            return OrdinalLabels(names)
    raise ConfigurationError(
        f"Expected a list of labels, or an object that says how answers are built, got {record!r:.80}."
    )


def _field(record: object) -> Field:
    if not isinstance(record, Mapping) or set(record) != {"name", "labels", "path"}:
        raise ConfigurationError(f"Expected a field with name, labels and path, got {record!r:.80}.")
    return Field(
        name=str(record["name"]), labels=labels_from_record(record["labels"]), path=str(record["path"])
    )
