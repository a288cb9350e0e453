"""Labels with a structure: scales, hierarchies, several labels in one answer; kinds by name, and as JSON values."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from calibrant.core._errors import ConfigurationError
from calibrant.core._files import json_text
from calibrant.core._labels import Aspect, LabelSet, label_in, normalise_label
from calibrant.core._prediction import BoolArray, FloatArray, IndexArray, LabelDistribution, Part, Prediction
from calibrant.core._reported import counted, listed
from calibrant.core._schema import (
    array_path,
    enum_node,
    merged_nodes,
    merged_values,
    parse_path,
    placed_value,
)
from calibrant.core._settings import register

SEPARATOR: Final = "/"
_ANSWERS: Final = ("no", "yes")
# A logarithm must stay finite where all members of a group underflow.
_TINY: Final = float(np.finfo(np.float64).tiny)
_SHOWN: Final = 8  # labels in a message
_REMEDY: Final = "correct the row or add the label"
YES: Final = "yes"
NO: Final = "no"
_INCLUDED: Final = LabelSet([NO, YES])


class OrdinalLabels(LabelSet):
    """Labels on a scale, from the lowest to the highest.

    An answer settles L - 1 questions, one for every label but the highest: does the text stand above it? The
    confidence in each is the probability of the labels on the answered side, so it is never below the label's own.

    With correctness alone the mean over the questions is ``1 - |i - j| / (L - 1)`` for the ranks i and j of the
    predicted and the true label. With `calibrant.scoring.BrierScoring` it is ``1 - RPS / (L - 1)``, where ``RPS =
    sum_k (F_k - O_k)^2`` is the ranked probability score over the L - 1 thresholds, F the cumulative distribution
    and O that of the true label (Epstein 1969, J. Appl. Meteorol. 8:985-987, in the form of Murphy 1971, ibid.
    10:155-156). It is strictly proper: every F_k is scored by a strictly proper score, and together they are the
    distribution.

    Parameters
    ----------
    labels : sequence of str
        The labels, lowest first.

    Examples
    --------
    >>> labels = OrdinalLabels(["bad", "fair", "good"])
    >>> [aspect.is_correct for aspect in labels.aspects(Prediction(label="fair"), "good")]
    [True, False]
    """

    structure: ClassVar[str] = "ordinal"

    def rank(self, label: str) -> int:
        """Return the rank of a canonical label, 0 for the lowest.

        Raises
        ------
        KeyError
            `label` is not in the label set.
        """
        return self._places[label]

    def aspects(self, prediction: Prediction, answer: str) -> tuple[Aspect, ...]:
        """Return one aspect for each label except the highest: whether the answer ranks above it."""
        predicted = self.rank(prediction.label or "")
        expected = self.rank(answer)
        found = []
        for rank, sides in enumerate(self._sides(prediction.distribution)):
            side = _ANSWERS[predicted > rank]
            found.append(
                Aspect(
                    name=f"above {self.labels[rank]}",
                    predicted=side,
                    expected=_ANSWERS[expected > rank],
                    confidence=_implied_confidence(prediction.confidence, sides, side),
                    distribution=sides,
                )
            )
        return tuple(found)

    def _sides(self, whole: LabelDistribution | None) -> Sequence[LabelDistribution | None]:
        """Return, for each label except the highest, the probabilities of both sides: up to it, above it."""
        if whole is None:
            return [None] * (len(self) - 1)
        shares = whole.probabilities
        known = whole.measured
        mass = np.empty((len(self) - 1, 2))
        measured = np.empty(mass.shape, dtype=np.bool_)
        # Each side is added up by itself: one minus the other loses what is far out.
        mass[:, 0] = shares.cumsum()[:-1]
        mass[:, 1] = shares[::-1].cumsum()[-2::-1]
        measured[:, 0] = np.logical_or.accumulate(known)[:-1]
        measured[:, 1] = np.logical_or.accumulate(known[::-1])[-2::-1]
        sides = zip(_log(mass), measured, strict=True)
        return [_marginal_distribution(whole, _ANSWERS, *side) for side in sides]


class _Level(NamedTuple):
    """Distinct path prefixes at one level, and for each label the index of its prefix."""

    values: tuple[str, ...]
    members: IndexArray  # (L,), indices into `values`


@dataclass(frozen=True)
class HierarchicalLabels(LabelSet):
    """Labels that are paths through a tree, such as ``Bills/Electricity``.

    An answer settles one question for each level of the tree, from 1 to the depth of the deepest label: how does the
    path begin, up to this level? A label that ends before a level stands there for itself, so ``Bills`` beside
    ``Bills/Electricity`` is right at level 1 and wrong at level 2 where the other is meant. The confidence in the
    whole label is the prediction's own, that in a beginning the probability of all labels that begin so.

    With correctness alone the mean over the levels is 1 for the right label and ``c / D`` for any other: c is how
    many levels both paths share, D the depth of the deepest label. Where all labels are as deep as that, c / D is
    the row's hierarchical precision, recall and F1 alike (Kiritchenko, Matwin and Famili 2005, without the root);
    elsewhere it is at most the smaller of the two. D is the same for every row on purpose: levels counted by the
    label that was predicted or meant would weight rows by their outcome, and proper scores would no longer be
    proper. With `calibrant.scoring.BrierScoring` the mean is strictly proper, as the last level is the label itself.

    Parameters
    ----------
    labels : sequence of str
        The labels.
    separator : str, default "/"
        What stands between the levels. Space around it does not count.

    Raises
    ------
    ConfigurationError
        No label holds the separator, a level of one is empty, or two labels are the same path.

    Examples
    --------
    >>> labels = HierarchicalLabels(["Bills/Gas", "Bills/Water", "Food"])
    >>> [(aspect.name, aspect.expected) for aspect in labels.aspects(Prediction(label="Food"), "Bills/Gas")]
    [('level 1', 'Bills'), ('level 2', 'Bills/Gas')]
    """

    structure: ClassVar[str] = "hierarchical"
    takes_separator: ClassVar[bool] = True
    separator: str = SEPARATOR

    def __init__(self, labels: Sequence[str], separator: str = SEPARATOR) -> None:
        super().__init__(labels)
        if not isinstance(separator, str) or not separator:
            raise ConfigurationError(
                f"Expected a separator of at least one character, got {separator!r}: name what stands between levels."
            )
        object.__setattr__(self, "separator", separator)
        self._check_paths()

    def _check_paths(self) -> None:
        paths: dict[tuple[str, ...], str] = {}
        for label in self.labels:
            path = self.path(label)
            if not all(path):
                raise ConfigurationError(
                    f"Expected every level of a label to hold text, got {label!r}: remove the separator "
                    f"{self.separator!r} that has nothing beside it, or name the level."
                )
            key = _key(path)
            if key in paths:
                raise ConfigurationError(
                    f"Expected distinct paths, got {label!r} and {paths[key]!r}, equal level by level: keep one of "
                    "them."
                )
            paths[key] = label
        if self.depth < 2:
            raise ConfigurationError(
                f"Expected hierarchical labels to hold the separator {self.separator!r}, got none that does, such as "
                f"{self.labels[0]!r}: name another separator, or leave the structure out."
            )

    def path(self, label: str) -> tuple[str, ...]:
        """Return the levels of a label, the outermost first."""
        return tuple(level.strip() for level in label.split(self.separator))

    def record(self) -> Any:  # noqa: ANN401
        """Return an object with the keys ``structure``, ``separator`` and ``labels``."""
        return {"structure": self.structure, "separator": self.separator, "labels": list(self.labels)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> LabelSet | None:
        """Return the labels of an object with these keys; None if it has others."""
        if set(record) != {"structure", "separator", "labels"}:
            return None
        return cls(record["labels"], record["separator"])

    @cached_property
    def depth(self) -> int:
        """Number of levels of the deepest label, at least 2."""
        return max(len(self.path(label)) for label in self.labels)

    def beginning(self, label: str, level: int) -> str:
        """Return the first `level` levels of a label; a label with fewer levels is returned whole.

        Raises
        ------
        KeyError
            `label` is not one of the labels, spelled as in the label set.
        """
        own = self._levels[level - 1]
        return own.values[int(own.members[self._places[label]])]

    def groups(self, level: int) -> IndexArray:
        """Return for each label the index of its first `level` levels, shape (L,)."""
        return self._levels[level - 1].members

    def aspects(self, prediction: Prediction, answer: str) -> tuple[Aspect, ...]:
        """Return one aspect per path prefix, level by level; the last is the label itself."""
        predicted = self._places[prediction.label or ""]
        expected = self._places[answer]
        found = []
        for number, (values, members) in enumerate(self._levels, 1):
            value = values[members[predicted]]
            groups = prediction.distribution
            confidence = prediction.confidence
            if number < self.depth:
                groups = _grouped_distribution(groups, values, members)
                confidence = _implied_confidence(confidence, groups, value)
            found.append(
                Aspect(
                    name=f"level {number}",
                    predicted=value,
                    expected=values[members[expected]],
                    confidence=confidence,
                    distribution=groups,
                )
            )
        return tuple(found)

    @cached_property
    def _levels(self) -> tuple[_Level, ...]:
        levels = [self._level(number) for number in range(1, self.depth)]
        levels.append(_Level(self.labels, np.arange(len(self))))
        return tuple(levels)

    def _level(self, number: int) -> _Level:
        seen: dict[tuple[str, ...], tuple[int, str]] = {}
        members = []
        for label in self.labels:
            path = self.path(label)
            spelled = label if len(path) <= number else self.separator.join(path[:number])
            place, _ = seen.setdefault(_key(path[:number]), (len(seen), spelled))
            members.append(place)
        spellings = tuple(spelled for _, spelled in seen.values())
        return _Level(spellings, np.array(members, dtype=np.intp))


def _key(path: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(normalise_label, path))


def _implied_confidence(own: float | None, marginal: LabelDistribution | None, value: str) -> float | None:
    """Return the confidence in a rank or path prefix: at least the confidence in the label."""
    if own is None or marginal is None:
        return own
    return min(max(own, marginal.probability(value)), 1.0)


def _grouped_distribution(
    whole: LabelDistribution | None, values: tuple[str, ...], members: IndexArray
) -> LabelDistribution | None:
    """Return the distribution over groups of labels; `members` holds each label's group index."""
    if whole is None:
        return None
    mass = np.asarray(np.bincount(members, weights=whole.probabilities), dtype=np.float64)
    measured = np.bincount(members, weights=whole.measured) > 0
    return _marginal_distribution(whole, values, _log(mass), measured)


def _log(mass: FloatArray) -> FloatArray:
    found: FloatArray = np.log(np.maximum(mass, _TINY))
    return found


def _marginal_distribution(
    whole: LabelDistribution,
    values: tuple[str, ...],
    logprobs: FloatArray,
    measured: BoolArray,
) -> LabelDistribution:
    """Return a distribution over groups of labels, with the error bound of the original one."""
    return LabelDistribution(
        labels=values,
        logprobs=logprobs,
        measured=measured,
        joint_logprob=None,
        label_mass=whole.label_mass,
        unresolved_mass=whole.unresolved_mass,
        space=whole.space,
        error_bound=whole.error_bound,
    )


STRUCTURES: Final[dict[str, type[LabelSet]]] = {
    kind.structure: kind for kind in (LabelSet, OrdinalLabels, HierarchicalLabels)
}
"""Kinds of labels that task files and records name, by their `structure`."""


def register_labels(kind: type[LabelSet]) -> type[LabelSet]:
    """Make a kind of labels known to task files and saved records, under the name in its `structure`.

    Parameters
    ----------
    kind : type
        A subclass of `LabelSet` that is built from its labels. A task file names it with ``structure``.

    Returns
    -------
    type
        `kind`, so that this is a class decorator.

    Raises
    ------
    ConfigurationError
        Another kind has the name.

    Examples
    --------
    >>> from calibrant.core import LabelSet, register_labels
    >>> class Seasons(LabelSet):
    ...     structure = "ordinal"
    >>> try:
    ...     register_labels(Seasons)
    ... except ValueError as error:
    ...     print(str(error).partition(", got ")[2])
    'ordinal', which is that of OrdinalLabels: name another one.
    """
    register(kind, kind.structure, STRUCTURES)
    return kind


def structured_labels(labels: Sequence[str], *, structure: str, separator: str | None) -> LabelSet:
    """Return a label set of the given structure.

    Parameters
    ----------
    labels : sequence of str
        The labels; from lowest to highest where they are ordinal.
    structure : str
        What relation they stand in: ``flat``, ``ordinal``, ``hierarchical`` or a registered one.
    separator : str or None
        What stands between the levels of hierarchical labels, ``/`` by default; refused elsewhere.

    Raises
    ------
    ConfigurationError
        The structure does not fit the labels.
    """
    kind = STRUCTURES[structure]
    if separator is not None and not kind.takes_separator:
        raise ConfigurationError(
            f"Expected a separator only for hierarchical labels, got {separator!r} for {structure} ones: leave it out."
        )
    return kind(labels) if separator is None else kind(labels, separator)  # type: ignore[call-arg]  # it takes one


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
        predicted = self.values(prediction.label or "")
        expected = self.values(answer)
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

    def record(self) -> dict[str, Any]:
        """Return the field as JSON values."""
        return {"name": self.name, "labels": self.labels.record(), "path": self.path}


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
        names = {field.name for field in fields}
        paths = {field.path for field in fields}
        if len(fields) < 2 or len(names) < len(fields) or len(paths) < len(fields):
            given = ", ".join(f"{field.name} at {field.path}" for field in fields)
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
            label = label_in(found[field.name], field.labels)
            if label is None:
                return None
            values[field.name] = label
        return self.answer_of(values)

    def values(self, answer: str) -> dict[str, str]:
        """Return the label of every field."""
        return dict(json.loads(answer))

    def answer_of(self, values: Mapping[str, str]) -> str:
        """Return the canonical answer with these labels.

        Raises
        ------
        ConfigurationError
            A field has none.
        """
        missing = [field.name for field in self.fields if field.name not in values]
        if missing:
            raise ConfigurationError(f"Expected a label for every field, got none for {listed(missing)}.")
        return json_text({field.name: values[field.name] for field in self.fields})

    def labels_of(self, part: str) -> LabelSet:
        """Return the label set of a field."""
        return next(field.labels for field in self.fields if field.name == part)

    def problems(self, answer: Any) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
        """Yield the mistakes in the fields of an answer."""
        if not isinstance(answer, dict):
            example = json_text({field.name: field.labels[0] for field in self.fields})
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
        document: Any = None
        for own in self.fields:
            if own.name in value:
                placed = placed_value(parse_path(own.place), value[own.name])
                document = merged_values(document, placed)
        return document

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
        fields = [[own.name, own.path, list(own.labels)] for own in self.fields]
        return {"fields": fields}

    def record(self) -> Any:  # noqa: ANN401
        """Return an object with the key ``fields``."""
        return {"fields": [own.record() for own in self.fields]}


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
        if all(labels):
            return self.answer_with([label for label in labels if label])
        return None

    def answer_with(self, labels: Iterable[str]) -> str:
        """Return the canonical answer with exactly these labels, given in any order."""
        return self.answer_of(dict.fromkeys(labels, YES))

    def values(self, answer: str) -> dict[str, str]:
        """Return ``yes`` for each label in the answer and ``no`` for the others, by label."""
        held = set(json.loads(answer))
        return {label: YES if label in held else NO for label in self}

    def answer_of(self, values: Mapping[str, str]) -> str:
        """Return the canonical answer with all labels whose value is ``yes``."""
        return json_text([label for label in self if values.get(label) == YES])

    def labels_of(self, part: str) -> LabelSet:  # noqa: ARG002
        """Return the values of any part: ``no`` and ``yes``."""
        return _INCLUDED

    def problems(self, answer: Any) -> Iterator[str]:  # noqa: ANN401 (any JSON value)
        """Yield the reasons why a JSON value is not a legal array of labels."""
        if not isinstance(answer, list):
            example = json_text(list(self.labels[:2]))
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
    if isinstance(found, list) and name in found:
        return YES
    return NO


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
        n = len(labels)
        names = _names(labels)
        return (
            f"answer {answer!r:.80} is not one of the {n} labels ({names}): correct the row or add the label."
        )
    problems = "; ".join(labels.problems(_json(answer)))
    return f"answer {answer!r:.80} {problems or 'does not fit the label set'}."


def _label_list(labels: LabelSet) -> str:
    return f"{counted(len(labels), 'label')} ({_names(labels)})"


def _names(labels: LabelSet) -> str:
    shown = list(labels.labels[:_SHOWN])
    if len(labels) > _SHOWN:
        shown.append("...")
    return ", ".join(shown)


def _json(text: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def described_labels(labels: LabelSet) -> dict[str, Any]:
    """Return ``{"label_set": record}``, or an empty dict for plain labels, whose names are enough."""
    record = labels.record()
    if isinstance(record, list):
        return {}
    return {"label_set": record}


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
    if isinstance(record, Mapping) and str(record.get("structure")) in STRUCTURES:
        kind = STRUCTURES[str(record["structure"])]
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
    labels = labels_from_record(record["labels"])
    return Field(name=str(record["name"]), labels=labels, path=str(record["path"]))


def unordered_answer(answer: str) -> str:
    """Return an answer of several labels with its fields or labels sorted, so that a task's order makes no difference.

    Other answers are returned as they are.
    """
    if answer[:1] not in {"[", "{"}:
        return answer
    try:
        value = json.loads(answer)
    except ValueError:
        return answer
    if isinstance(value, list):
        value = sorted(value, key=json_text)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
