"""True answers as data files spell them, and what is wrong with those that are none."""

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
    """Return a composite answer as JSON text; None where it is neither text nor an array or object.

    Parameters
    ----------
    value : object
        A cell: JSON text, a native array or object, or labels with `separator` between them.
    separator : str or None
        What stands between the labels of a text that is no JSON array; None where only JSON is read.
    """
    if isinstance(value, str):
        text = value.strip()
        if separator is None or not text or text.startswith("["):
            _refuse_doubles(text)
            return text or None
        return json.dumps([label.strip() for label in text.split(separator)], ensure_ascii=False)
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, bytes)):
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"expected labels as text, got {value!r:.60} ({error}).") from error
    return None


def _refuse_doubles(text: str) -> None:
    """Refuse an object that names a field twice; what is no JSON is somebody else's to refuse."""
    try:
        json.loads(text, object_pairs_hook=without_doubles)
    except (json.JSONDecodeError, RecursionError):
        return
    except ValueError as error:
        raise DataError(f"expected each field once, but {error}: leave one out.") from error


def not_text(answer: object) -> str:
    """Return what to write instead of an answer that is no text."""
    if isinstance(answer, list | tuple | dict):
        return f"Expected an answer as text, got {answer!r:.80}: write its JSON text, as json.dumps does."
    return f"Expected an answer as text, got {answer!r:.80}."


def unknown_answer(answer: str, labels: LabelSet) -> str:
    """Return what is wrong with an answer that `labels` does not hold, and what to do.

    Parameters
    ----------
    answer : str
        As the data has it.
    labels : LabelSet
        The legal answers.
    """
    if not isinstance(labels, CompositeLabels):
        n, known = len(labels), _names(labels)
        return (
            f"answer {answer!r:.80} is not one of the {n} labels ({known}): correct the row or add the label."
        )
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = answer
    problems = list(
        _wrong_fields(found, labels) if isinstance(labels, FieldLabels) else _wrong_set(found, labels)
    )
    what = "; ".join(problems) or "does not fit the label set"
    return f"answer {answer!r:.80} {what}."


def _known(labels: LabelSet) -> str:
    return f"{len(labels)} labels ({_names(labels)})"


def _names(labels: LabelSet) -> str:
    return ", ".join(labels.labels[:_SHOWN]) + (", ..." if len(labels) > _SHOWN else "")


def _wrong_set(found: Any, labels: CompositeLabels) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
    if not isinstance(found, list):
        example = json.dumps(list(labels.labels[:2]), ensure_ascii=False)
        yield f"is no list of labels: write {example}, and [] where there is none"
        return
    known = LabelSet(labels.labels)
    wrong = [label for label in found if not isinstance(label, str) or known.canonical(label) is None]
    if wrong:
        yield f"holds {wrong[0]!r:.40}, which is not one of the {_known(labels)}: {_REMEDY}"


def _wrong_fields(found: Any, labels: FieldLabels) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
    names = [field.name for field in labels.fields]
    if not isinstance(found, dict):
        example = json.dumps({field.name: field.labels[0] for field in labels.fields}, ensure_ascii=False)
        yield f"is no object of fields: write {example}, or give every field a column"
        return
    extra = [name for name in found if name not in names]
    if extra:
        yield f"has the field {extra[0]!r:.40}, expected {', '.join(names)}: correct its name or leave it out"
    for field in labels.fields:
        value = found.get(field.name)
        if field.name not in found:
            yield f"lacks the field {field.name!r}: add it"
        elif not isinstance(value, str) or field.labels.canonical(value) is None:
            yield f"has {value!r:.40} in {field.name!r}, which is not one of the {_known(field.labels)}: {_REMEDY}"
