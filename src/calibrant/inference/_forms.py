"""What an answer may look like: one label, a label in each of several fields, any number of labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from calibrant.core._completion import Completion
from calibrant.core._composite import CompositeLabels, FieldLabels, MultiLabels
from calibrant.core._distribution import LabelDistribution, LogprobSpace
from calibrant.core._errors import ConfigurationError, LogprobsUnavailableError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Part
from calibrant.logprobs._align import joint_logprob
from calibrant.logprobs._distribution import extract_distribution
from calibrant.logprobs._fields import UnparsedError, field_value, field_values

if TYPE_CHECKING:
    from calibrant.logprobs._sets import SetEvidence


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an answer says.

    Attributes
    ----------
    label : str
        The canonical answer.
    confidence : float or None
        In it, in [0, 1].
    distribution : LabelDistribution or None
        Over all labels, where the answer is one of them.
    parts : tuple of Part
        Its labels, where it holds several.
    """

    label: str
    confidence: float | None = None
    distribution: LabelDistribution | None = None
    parts: tuple[Part, ...] = ()


class Form(Protocol):
    """Reads what an answer says."""

    def read(self, completion: Completion, space: LogprobSpace) -> Reading | str:
        """Return what an answer says, or why it is no legal one; without evidence in space ``none``.

        Raises
        ------
        UnparsedError
            It is not JSON, or lacks what is read.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return, as JSON values, what tells this form from one label, for cache keys."""
        ...


def form_of(labels: LabelSet, *, field: str, answer_field: str) -> Form:
    """Return the form of answers with these labels.

    Raises
    ------
    ConfigurationError
        Answers of several labels are to be read from somewhere else than their log-probabilities, or in a way
        that is not known.
    """
    if not isinstance(labels, CompositeLabels):
        return _OneLabel(labels=labels, field=field, answer_field=answer_field)
    if answer_field != field:
        raise ConfigurationError(
            f"Expected no answer_field for answers that hold several labels, got {answer_field!r}: leave it out."
        )
    if isinstance(labels, FieldLabels):
        return _Fields(labels=labels)
    if isinstance(labels, MultiLabels):
        return _Set(labels=labels, field=field)
    raise ConfigurationError(f"Expected FieldLabels or MultiLabels, got {type(labels).__name__}.")


def joint_confidence(parts: Sequence[Part]) -> float | None:
    """Return the confidence that all parts are right, where each was read behind those before it; None if unknown."""
    known = [part.confidence for part in parts if part.confidence is not None]
    return math.prod(known) if len(known) == len(parts) else None


def parts_of_set(labels: MultiLabels, answer: str, evidence: SetEvidence | None) -> tuple[Part, ...]:
    """Return the parts of a set of labels: of each whether it is in the answer, and how sure that is, if known."""
    values = labels.values(answer)
    if evidence is None:
        return tuple(Part(name=name, label=value) for name, value in values.items())
    parts = []
    for place, (name, value) in enumerate(values.items()):
        no, yes = labels.labels_of(name)
        distribution = evidence.distribution(place, (no, yes))
        confidence = distribution.confidence(value)
        parts.append(Part(name=name, label=value, confidence=confidence, distribution=distribution))
    return tuple(parts)


@dataclass(frozen=True, kw_only=True)
class _OneLabel:
    labels: LabelSet
    field: str
    answer_field: str

    def read(self, completion: Completion, space: LogprobSpace) -> Reading | str:
        value = field_value(completion.text, self.answer_field)
        label = self.labels.canonical(value) if isinstance(value, str) else None
        if label is None:
            return f"answered {value!r:.80}, which is not one of the labels"
        distribution = _distribution(completion, self.labels, self.field, space)
        return Reading(
            label=label,
            confidence=None if distribution is None else distribution.confidence(label),
            distribution=distribution,
        )

    def describe(self) -> Mapping[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class _Fields:
    """Every field has a distribution of its own, given what the answer says before it.

    By the chain rule, the product of the fields' confidences is that of the whole answer.
    """

    labels: FieldLabels

    def read(self, completion: Completion, space: LogprobSpace) -> Reading | str:
        parts = []
        for field in self.labels.fields:
            path = field.path or field.name
            try:
                value = field_value(completion.text, path)
            except UnparsedError as error:
                raise UnparsedError(f"field {field.name!r}: {error}", kind=error.kind) from error
            label = field.labels.canonical(value) if isinstance(value, str) else None
            if label is None:
                return f"answered {value!r:.80} in the field {field.name!r}, which is not one of its labels"
            distribution = _distribution(completion, field.labels, path, space)
            confidence = None if distribution is None else distribution.confidence(label)
            parts.append(Part(name=field.name, label=label, confidence=confidence, distribution=distribution))
        return Reading(
            label=self.labels.answer_of({part.name: part.label for part in parts}),
            confidence=joint_confidence(parts),
            parts=tuple(parts),
        )

    def describe(self) -> Mapping[str, Any]:
        return {
            "fields": [[field.name, field.path, list(field.labels.labels)] for field in self.labels.fields]
        }


@dataclass(frozen=True, kw_only=True)
class _Set:
    """Every label is in the answer or not; see `extract_set` for how sure that is."""

    labels: MultiLabels
    field: str

    def read(self, completion: Completion, space: LogprobSpace) -> Reading | str:
        found = field_values(completion.text, self.field)
        given = []
        for number, value in enumerate(found, 1):
            label = self.labels.label_of(value) if isinstance(value, str) else None
            if label is None:
                return f"answered {value!r:.80} at place {number} of the list, which is not one of the labels"
            given.append(label)
        answer = self.labels.answer_with(given)
        evidence = None if space is LogprobSpace.NONE else self._evidence(completion, space)
        return Reading(
            label=answer,
            confidence=None if evidence is None else evidence.confidence,
            parts=parts_of_set(self.labels, answer, evidence),
        )

    def _evidence(self, completion: Completion, space: LogprobSpace) -> SetEvidence | None:
        try:
            from calibrant.logprobs._sets import extract_set  # noqa: PLC0415 (only for several labels)

            return extract_set(completion, self.labels.labels, self.field, space)
        except LogprobsUnavailableError:
            return None

    def describe(self) -> Mapping[str, Any]:
        return {"several": True}


def _distribution(
    completion: Completion, labels: LabelSet, field: str, space: LogprobSpace
) -> LabelDistribution | None:
    if space is LogprobSpace.NONE:
        return None
    names = labels.labels
    if len(names) == 1:
        return _over_one_label(completion, names, field, space)
    try:
        return extract_distribution(completion, names, field, space)
    except LogprobsUnavailableError:
        return None


def _over_one_label(
    completion: Completion, names: tuple[str, ...], field: str, space: LogprobSpace
) -> LabelDistribution | None:
    """Return a distribution over the first label of an open set, which has nothing to be compared with yet."""
    joint = joint_logprob(completion, field)
    if joint is None:
        return None
    return LabelDistribution(
        labels=names,
        logprobs=np.zeros(1),
        measured=np.ones(1, dtype=np.bool_),
        joint_logprob=joint,
        label_mass=math.exp(joint),
        unresolved_mass=0.0,
        space=space,
        emitted=names[0],
    )
