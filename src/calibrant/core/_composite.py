"""Label sets for answers with several labels: one for each field, or any number from one set."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import Aspect, LabelSet
from calibrant.core._prediction import Part, Prediction
from calibrant.core._schema import (
    array_path,
    enum_node,
    merged_nodes,
    merged_values,
    parse_path,
    placed_value,
)

_SHOWN: Final = 8  # labels in a message
_REMEDY: Final = "correct the row or add the label"

YES: Final = "yes"
NO: Final = "no"
_INCLUDED: Final = LabelSet([NO, YES])


class CompositeLabels(LabelSet, ABC):
    """Label set of a task whose answers have several parts.

    A whole answer is spelled as one JSON text, which `canonical` brings into its only form, so that it compares,
    is stored and is counted like a label. As a sequence it holds one name for every decision that an answer can make.
    """

    holds_several = True

    @property
    @abstractmethod
    def parts(self) -> tuple[str, ...]:
        """Names of all parts, in order."""

    @abstractmethod
    def values(self, answer: str) -> dict[str, str]:
        """Return the value of each part of a canonical answer, by part name and in order."""

    @abstractmethod
    def answer_of(self, values: Mapping[str, str]) -> str:
        """Return the canonical answer with these part values; inverse of `values`."""

    @abstractmethod
    def labels_of(self, part: str) -> LabelSet:
        """Return the legal values of a part."""

    @abstractmethod
    def decisions(self, answer: str) -> frozenset[str]:
        """Return the labels that a canonical answer assigns, as names such as ``field=label``."""

    @abstractmethod
    def document(self, value: Any, field: str) -> Any:  # noqa: ANN401
        """Return the smallest JSON document that holds an answer where the model writes it."""

    @abstractmethod
    def schema(self, field: str) -> dict[str, Any]:
        """Return the JSON schema of the documents that hold a legal answer and nothing else."""

    def json_value(self, answer: str) -> Any:  # noqa: ANN401
        """Return a canonical answer as a JSON object or array."""
        return json.loads(answer)

    @abstractmethod
    def problems(self, answer: Any) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
        """Yield the reasons why a JSON value is not a legal answer, each with a remedy."""

    def aspects(self, prediction: Prediction, answer: str) -> tuple[Aspect, ...]:
        """Return the aspects of all graded parts, as the label set of each part defines them."""
        predicted, expected = self.values(prediction.label or ""), self.values(answer)
        known = {part.name: part for part in prediction.parts}
        found: list[Aspect] = []
        for name in self._graded_parts(predicted, expected):
            part = known.get(name) or Part(name=name, label=predicted[name])
            alone = Prediction(label=part.label, confidence=part.confidence, distribution=part.distribution)
            own = self.labels_of(name).aspects(alone, expected[name])
            found += [
                replace(
                    aspect,
                    name=name if len(own) == 1 else f"{name}: {aspect.name}",
                    weight=aspect.weight / len(own),  # a long scale must not drown the other fields
                )
                for aspect in own
            ]
        return tuple(found)

    def _graded_parts(self, predicted: Mapping[str, str], expected: Mapping[str, str]) -> Sequence[str]:
        """Return the names of the parts to grade: here all parts."""
        return tuple(dict.fromkeys((*expected, *predicted)))


@dataclass(frozen=True, kw_only=True)
class Field:
    """Field of an answer: its name, its legal labels and its JSON path.

    Attributes
    ----------
    name : str
        Short and unique; the key of its value in a whole answer.
    labels : LabelSet
        Its legal labels; a plain sequence is converted. They may be ordinal or hierarchical.
    path : str or None
        JSON path of the label in the model's answer; `name` by default.

    Raises
    ------
    ConfigurationError
        The labels are composite themselves, or no legal label set.

    Examples
    --------
    >>> from calibrant.core import Field
    >>> urgency = Field(name="urgency", labels=["low", "high"], path="ticket.urgency")
    >>> urgency.labels.canonical("HIGH"), urgency.path
    ('high', 'ticket.urgency')
    """

    name: str
    labels: LabelSet
    path: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", LabelSet.of(self.labels))
        if self.labels.holds_several:
            raise ConfigurationError(
                f"Expected one label in the field {self.name!r}, got composite answers: make fields of its parts."
            )
        if self.path is None:
            object.__setattr__(self, "path", self.name)

    @property
    def place(self) -> str:
        """JSON path of the label; `name` where none was given."""
        return self.path or self.name


@dataclass(frozen=True)
class FieldLabels(CompositeLabels):
    """Label set of answers that hold one label for each of several fields.

    Whole answers are JSON objects, ``{"category": "Bills", "urgency": "low"}``, in the order of the fields; as a
    sequence it holds ``category=Bills`` and so on.

    Parameters
    ----------
    fields : sequence of Field
        At least two, with distinct names and paths.

    Raises
    ------
    ConfigurationError
        They are fewer, or share a name or a path.

    Examples
    --------
    >>> from calibrant.core import Field, FieldLabels
    >>> category = Field(name="category", labels=["Bills", "Food"])
    >>> labels = FieldLabels([category, Field(name="urgency", labels=["low", "high"])])
    >>> answer = labels.canonical('{"urgency": "LOW", "category": "Bills"}')
    >>> answer, labels.values(answer)["urgency"]
    ('{"category": "Bills", "urgency": "low"}', 'low')
    """

    structure = "fields"
    fields: tuple[Field, ...]

    def __init__(self, fields: Sequence[Field]) -> None:
        names = [field.name for field in fields]
        paths = [field.path for field in fields]
        if len(fields) < 2 or len(set(names)) < len(names) or len(set(paths)) < len(paths):
            given = ", ".join(f"{name} at {path}" for name, path in zip(names, paths, strict=True))
            raise ConfigurationError(
                f"Expected at least two fields with distinct names and paths, got {given or 'none'}."
            )
        super().__init__([f"{field.name}={label}" for field in fields for label in field.labels])
        object.__setattr__(self, "fields", tuple(fields))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(field.name for field in self.fields)

    def canonical(self, text: str) -> str | None:
        """Return the canonical form of a JSON object of labels; None if it is not a legal answer."""
        found = _json(text)
        if not isinstance(found, dict) or set(found) != {field.name for field in self.fields}:
            return None
        values = {}
        for field in self.fields:
            value = found[field.name]
            label = field.labels.canonical(value) if isinstance(value, str) else None
            if label is None:
                return None
            values[field.name] = label
        return self.answer_of(values)

    def values(self, answer: str) -> dict[str, str]:
        """Return the label of every field."""
        return dict(json.loads(answer))

    def answer_of(self, values: Mapping[str, str]) -> str:
        """Return the canonical answer with these labels."""
        return json.dumps({field.name: values[field.name] for field in self.fields}, ensure_ascii=False)

    def labels_of(self, part: str) -> LabelSet:
        """Return the label set of a field."""
        return next(field.labels for field in self.fields if field.name == part)

    def problems(self, answer: Any) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
        """Yield the mistakes in the fields of an answer."""
        if not isinstance(answer, dict):
            example = json.dumps({field.name: field.labels[0] for field in self.fields}, ensure_ascii=False)
            yield f"is no object of fields: write {example}, or give every field a column"
            return
        extra = [name for name in answer if name not in self.parts]
        if extra:
            names = ", ".join(self.parts)
            yield f"has the field {extra[0]!r:.40}, expected {names}: correct its name or leave it out"
        for field in self.fields:
            label = answer.get(field.name)
            if field.name not in answer:
                yield f"lacks the field {field.name!r}: add it"
            elif not isinstance(label, str) or field.labels.canonical(label) is None:
                known = _label_list(field.labels)
                yield f"has {label!r:.40} in {field.name!r}, which is not one of the {known}: {_REMEDY}"

    def decisions(self, answer: str) -> frozenset[str]:
        """Return ``field=label`` for every field."""
        return frozenset(f"{name}={label}" for name, label in self.values(answer).items())

    def document(self, value: Any, field: str) -> Any:  # noqa: ANN401, ARG002 (fields have paths of their own)
        """Return the document that holds the label of each field that `value`, a mapping, names."""
        placed = [
            placed_value(parse_path(own.place), value[own.name]) for own in self.fields if own.name in value
        ]
        return reduce(merged_values, placed, None)

    def schema(self, field: str) -> dict[str, Any]:  # noqa: ARG002
        """Return the schema with an enum at the path of every field."""
        first, *others = self.fields
        root = enum_node(first.labels, parse_path(first.place))
        for own in others:
            node = enum_node(own.labels, parse_path(own.place))
            root = merged_nodes(root, node, own.place)
        return root

    def lead_path(self, field: str) -> str:  # noqa: ARG002
        """Return the path of the first field."""
        return self.fields[0].place

    def reading_settings(self) -> dict[str, Any]:
        """Return name, path and labels of each field."""
        return {"fields": [[own.name, own.path, list(own.labels.labels)] for own in self.fields]}

    def record(self) -> Any:  # noqa: ANN401
        """Return an object with the key ``fields``."""
        return {
            "fields": [
                {"name": own.name, "labels": own.labels.record(), "path": own.path} for own in self.fields
            ]
        }


class MultiLabels(CompositeLabels):
    """Label set of answers that hold any number of its labels, also zero.

    Whole answers are JSON arrays, ``["Bills", "Food"]``, in the order of the label set. Every label is a part whose
    value is ``yes`` or ``no``.

    Parameters
    ----------
    labels : sequence of str
        The labels, distinct up to case and surrounding space.

    Raises
    ------
    ConfigurationError
        They are fewer than two, or not distinct.

    Examples
    --------
    >>> from calibrant.core import MultiLabels
    >>> labels = MultiLabels(["Bills", "Food", "Travel"])
    >>> answer = labels.canonical('["food", "Bills"]')
    >>> answer, labels.values(answer)
    ('["Bills", "Food"]', {'Bills': 'yes', 'Food': 'yes', 'Travel': 'no'})
    """

    structure = "multi_label"
    is_set = True

    @property
    def parts(self) -> tuple[str, ...]:
        """All labels; each is a part with the value ``yes`` or ``no``."""
        return self.labels

    def canonical(self, text: str) -> str | None:
        """Return the canonical form of a JSON array of labels; None if it is not a legal answer."""
        found = _json(text)
        if not isinstance(found, list) or not all(isinstance(label, str) for label in found):
            return None
        labels = [self.label_of(label) for label in found]
        return self.answer_with([label for label in labels if label]) if all(labels) else None

    def label_of(self, text: str) -> str | None:
        """Return the label that equals `text` up to case and surrounding space, or None."""
        return super().canonical(text)

    def answer_with(self, labels: Iterable[str]) -> str:
        """Return the canonical answer with exactly these labels, given in any order."""
        return self.answer_of(dict.fromkeys(labels, YES))

    def values(self, answer: str) -> dict[str, str]:
        """Return ``yes`` for each label in the answer and ``no`` for the others, by label."""
        held = set(json.loads(answer))
        return {label: YES if label in held else NO for label in self}

    def answer_of(self, values: Mapping[str, str]) -> str:
        """Return the canonical answer with all labels whose value is ``yes``."""
        return json.dumps([label for label in self if values.get(label) == YES], ensure_ascii=False)

    def labels_of(self, part: str) -> LabelSet:  # noqa: ARG002
        """Return the values of any part: ``no`` and ``yes``."""
        return _INCLUDED

    def problems(self, answer: Any) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
        """Yield the reasons why a JSON value is not a legal array of labels."""
        if not isinstance(answer, list):
            example = json.dumps(list(self.labels[:2]), ensure_ascii=False)
            yield f"is no list of labels: write {example}, and [] where there is none"
            return
        wrong = [label for label in answer if not isinstance(label, str) or self.label_of(label) is None]
        if wrong:
            yield f"holds {wrong[0]!r:.40}, which is not one of the {_label_list(self)}: {_REMEDY}"

    def decisions(self, answer: str) -> frozenset[str]:
        """Return the labels in a canonical answer."""
        return frozenset(json.loads(answer))

    def document(self, value: Any, field: str) -> Any:  # noqa: ANN401
        """Return the document that holds an array of labels, in the order of `value`, a sequence."""
        array, inside = array_path(field)
        return placed_value(array, [placed_value(inside, label) for label in value])

    def schema(self, field: str) -> dict[str, Any]:
        """Return the schema with an array of enums."""
        array, inside = array_path(field)
        return enum_node(self.labels, (*array, 0, *inside))

    def lead_path(self, field: str) -> str:
        """Return the path of the array."""
        array, mark, _ = field.rpartition("[]")
        return array if mark else field

    def reading_settings(self) -> dict[str, Any]:
        """Return that an answer holds any number of labels."""
        return {"several": True}

    def record(self) -> Any:  # noqa: ANN401
        """Return an object with the key ``multi_label``."""
        return {"multi_label": True, "labels": list(self.labels)}

    def _graded_parts(self, predicted: Mapping[str, str], expected: Mapping[str, str]) -> Sequence[str]:
        # As in the Jaccard index: that hundreds of labels are rightly left out would drown everything else.
        named = tuple(label for label in self if YES in (predicted[label], expected[label]))
        return named or tuple(self)


def part_of(answer: str, name: str) -> str | None:
    """Return the value of one part of a canonical answer; None for an unknown field.

    Parameters
    ----------
    answer : str
        A whole answer.
    name : str
        The field, or the label of a set, whose value is ``yes`` or ``no``.
    """
    found = _json(answer)
    if isinstance(found, dict):
        value = found.get(name)
        return value if isinstance(value, str) else None
    return YES if isinstance(found, list) and name in found else NO


def unknown_answer(answer: str, labels: LabelSet) -> str:
    """Return an error message for an answer outside `labels`, with the remedy.

    Parameters
    ----------
    answer : str
        The answer as spelled in the data.
    labels : LabelSet
        The legal answers.
    """
    if not isinstance(labels, CompositeLabels):  # `problems` reads the JSON of several labels
        n, names = len(labels), _names(labels)
        return (
            f"answer {answer!r:.80} is not one of the {n} labels ({names}): correct the row or add the label."
        )
    problems = "; ".join(labels.problems(_json(answer)))
    return f"answer {answer!r:.80} {problems or 'does not fit the label set'}."


def _label_list(labels: LabelSet) -> str:
    return f"{len(labels)} labels ({_names(labels)})"


def _names(labels: LabelSet) -> str:
    return ", ".join(labels.labels[:_SHOWN]) + (", ..." if len(labels) > _SHOWN else "")


def _json(text: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
