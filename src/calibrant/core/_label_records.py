"""Conversion of label sets to JSON values and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.core._composite import Field, FieldLabels, MultiLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._structures import STRUCTURES


def described_labels(labels: LabelSet) -> dict[str, Any]:
    """Return ``{"label_set": record}``, or an empty dict for plain labels, whose names are enough."""
    record = labels.record()
    return {} if isinstance(record, list) else {"label_set": record}


def labels_from_record(record: object) -> LabelSet:
    """Return the label set written by `LabelSet.record`.

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
    kind = STRUCTURES.get(str(record.get("structure"))) if isinstance(record, Mapping) else None
    if kind is not None and isinstance(record, Mapping):
        labels = kind.from_record(record)
        if labels is not None:
            return labels
    match record:
        case {"fields": [*fields], **others} if not others:
            return FieldLabels([_field(field) for field in fields])
        case {"multi_label": True, "labels": [*names], **others} if not others:
            return MultiLabels(names)
    raise ConfigurationError(
        f"Expected a list of labels, or an object that says how answers are built, got {record!r:.80}: a kind of "
        "labels of your own is registered (register_labels) in the module that defines it: import that first."
    )


def _field(record: object) -> Field:
    if not isinstance(record, Mapping) or set(record) != {"name", "labels", "path"}:
        raise ConfigurationError(f"Expected a field with name, labels and path, got {record!r:.80}.")
    return Field(
        name=str(record["name"]), labels=labels_from_record(record["labels"]), path=str(record["path"])
    )
