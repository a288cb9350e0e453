"""True answers as data files spell them, and messages about illegal ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from calibrant.core._composite import CompositeLabels, FieldLabels
from calibrant.core._errors import DataError
from calibrant.core._files import without_doubles
from calibrant.core._labels import LabelSet

_SHOWN = 8  # labels
_REMEDY = "correct the row or add the label"


def spelled_answer(value: object, *, separator: str | None) -> str | None:
    """Return a composite answer as JSON text; None if the value is not a string, array or object.

    Parameters
    ----------
    value : object
        A cell: JSON text, a native array or object, or labels with `separator` between them.
    separator : str or None
        The text between the labels of an answer that is no JSON array; None where only JSON is read.
    """
    if isinstance(value, str):
        text = value.strip()
        if separator is not None and text and not text.startswith("["):
            return json.dumps([label.strip() for label in text.split(separator)], ensure_ascii=False)
        try:
            json.loads(text, object_pairs_hook=without_doubles)
        except (json.JSONDecodeError, RecursionError):
            pass  # other checks refuse text that is no JSON
        except ValueError as error:
            raise DataError(f"expected each field once, but {error}: leave one out.") from error
        return text or None
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, bytes)):
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"expected labels as text, got {value!r:.60} ({error}).") from error
    return None


def unknown_answer(answer: str, labels: LabelSet) -> str:
    """Return an error message for an answer outside `labels`, with the remedy.

    Parameters
    ----------
    answer : str
        The answer as spelled in the data.
    labels : LabelSet
        The legal answers.
    """
    if not isinstance(labels, CompositeLabels):
        n, names = len(labels), _names(labels)
        return (
            f"answer {answer!r:.80} is not one of the {n} labels ({names}): correct the row or add the label."
        )
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        value = answer
    problems = (
        _field_problems(value, labels) if isinstance(labels, FieldLabels) else _set_problems(value, labels)
    )
    return f"answer {answer!r:.80} {'; '.join(problems) or 'does not fit the label set'}."


def _names(labels: LabelSet) -> str:
    return ", ".join(labels.labels[:_SHOWN]) + (", ..." if len(labels) > _SHOWN else "")


def _label_list(labels: LabelSet) -> str:
    return f"{len(labels)} labels ({_names(labels)})"


def _set_problems(value: Any, labels: CompositeLabels) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
    if not isinstance(value, list):
        example = json.dumps(list(labels.labels[:2]), ensure_ascii=False)
        yield f"is no list of labels: write {example}, and [] where there is none"
        return
    plain = LabelSet(labels.labels)
    wrong = [label for label in value if not isinstance(label, str) or plain.canonical(label) is None]
    if wrong:
        yield f"holds {wrong[0]!r:.40}, which is not one of the {_label_list(labels)}: {_REMEDY}"


def _field_problems(value: Any, labels: FieldLabels) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
    names = [field.name for field in labels.fields]
    if not isinstance(value, dict):
        example = json.dumps({field.name: field.labels[0] for field in labels.fields}, ensure_ascii=False)
        yield f"is no object of fields: write {example}, or give every field a column"
        return
    extra = [name for name in value if name not in names]
    if extra:
        yield f"has the field {extra[0]!r:.40}, expected {', '.join(names)}: correct its name or leave it out"
    for field in labels.fields:
        label = value.get(field.name)
        if field.name not in value:
            yield f"lacks the field {field.name!r}: add it"
        elif not isinstance(label, str) or field.labels.canonical(label) is None:
            yield f"has {label!r:.40} in {field.name!r}, which is not one of the {_label_list(field.labels)}: {_REMEDY}"
