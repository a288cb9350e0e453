"""Conversion of a model's response to a prediction."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import singledispatch
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from calibrant.core._completion import Completion, CompletionRequest
from calibrant.core._errors import CalibrantError, ConfigurationError, LogprobsUnavailableError
from calibrant.core._labels import LabelSet, label_in
from calibrant.core._prediction import LabelDistribution, LogprobSpace, Outcome, Part, Prediction
from calibrant.core._structures import FieldLabels, MultiLabels
from calibrant.inference._abilities import (
    CUT_OFF,
    AnswerForm,
    KnownAbilities,
    ModelAbilities,
    readable,
    shaped,
)
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._distribution import extract_distribution
from calibrant.logprobs._fields import UnparsedError, field_value, field_values, joint_logprob

if TYPE_CHECKING:
    from calibrant.logprobs._sets import SetEvidence

_FILTERED = frozenset({"content_filter", "safety", "prohibited_content", "blocklist"})

Content: TypeAlias = dict[str, Any]
"""Fields of a prediction."""


@dataclass(frozen=True, kw_only=True)
class AnswerReader:
    """Reader of predictions from responses of any supported shape.

    Attributes
    ----------
    labels : LabelSet
        The legal labels; with `FieldLabels` or `MultiLabels` predictions have parts.
    field : str
        JSON path of the label whose token log-probabilities are read; of the array of `MultiLabels`, or of the
        label in its elements. Not used with `FieldLabels`, whose fields have paths of their own.
    answer_field : str
        JSON path the label itself is read from; usually the same.
    space : LogprobSpace
        Space of the log-probabilities; ``mixed`` leaves it to each answer.
    keep_tokens : bool
        True if predictions hold the tokens they were read from.
    abilities : KnownAbilities
        What is known of the model, which decides in what form it is asked to answer.

    Raises
    ------
    ConfigurationError
        `answer_field` is another field than `field`, and answers hold several labels.
    """

    labels: LabelSet
    field: str
    answer_field: str
    space: LogprobSpace
    keep_tokens: bool = False
    abilities: KnownAbilities = dataclass_field(default_factory=KnownAbilities, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.labels.holds_several and self.answer_field != self.field:
            raise ConfigurationError(
                f"Expected no answer_field for answers that hold several labels, got {self.answer_field!r}: leave it "
                "out."
            )

    @property
    def form(self) -> AnswerForm:
        """Form in which the model is asked to answer."""
        return self.abilities.used.form

    @property
    def evidence_space(self) -> LogprobSpace:
        """Space of the log-probabilities in the form of answer that is used: without a schema nothing is masked."""
        is_free = self.form is not AnswerForm.SCHEMA
        if is_free and self.space is LogprobSpace.MASKED:
            return LogprobSpace.RAW
        return self.space

    def shaped(self, request: CompletionRequest) -> CompletionRequest:
        """Return a request as it is sent, in the form of answer that is used."""
        return shaped(request, self.form, self.labels)

    def in_form(self, form: AnswerForm) -> AnswerReader:
        """Return a reader of answers in one form."""
        return replace(self, abilities=KnownAbilities(ModelAbilities(form=form)))

    def read(self, response: object) -> Prediction:
        """Return the prediction in `response`; a fault sets its outcome and reason."""
        try:
            completion = read_completion(response)
        except CalibrantError as error:
            return Prediction(label=None, outcome=Outcome.ERROR, reason=f"broken response: {error}")
        return Prediction(
            **self._content(completion),
            text=completion.text,
            usage=completion.usage,
            model=completion.model,
            attempts=completion.calls,
            tokens=completion.tokens if self.keep_tokens else None,
        )

    def is_unaligned(self, response: object, prediction: Prediction) -> bool:
        """Return True if an answer in plain text has log-probabilities, but none that show other labels."""
        if self.form is not AnswerForm.TEXT or prediction.confidence is not None:
            return False
        return read_completion(response).tokens is not None

    def describe(self) -> Mapping[str, Any]:
        """Return the legal answers and their JSON paths, as JSON values."""
        more = self.labels.reading_settings()
        if self.form is not AnswerForm.SCHEMA:
            more["answer_form"] = self.form.value
        return {
            "space": self.evidence_space.value,
            # The labels of an open set change no answer: a journal's keys must outlive its growth.
            "labels": None if self.labels.is_open else self.labels.labels,
            "field": self.field,
            "answer_field": self.answer_field,
            **more,
        }

    def space_of(self, response: object) -> LogprobSpace:
        """Return the space of an answer's log-probabilities; ``none`` if unknown."""
        own = response.space if isinstance(response, Completion) else None
        if self.space is LogprobSpace.MIXED:
            return LogprobSpace.NONE if own is None else own
        # One of several providers may follow no schema, without which nothing is masked.
        is_raw = own is LogprobSpace.RAW and self.space is LogprobSpace.MASKED
        return LogprobSpace.RAW if is_raw else self.evidence_space

    def _content(self, completion: Completion) -> Content:
        """Return label and evidence of an answer, or the outcome and reason of one without a label."""
        is_cut_off = completion.finish_reason in CUT_OFF
        if completion.refusal or completion.finish_reason in _FILTERED:
            refusal = completion.refusal or "stopped by the provider's content filter"
            return {"label": None, "outcome": Outcome.REFUSAL, "reason": refusal}
        if not completion.text.strip() and is_cut_off:
            return _unparsed("cut off by the length limit before the answer began")
        if not completion.text.strip():
            reason = "broken response: it holds no text and no refusal"
            return {"label": None, "outcome": Outcome.ERROR, "reason": reason}
        space = self.space_of(completion)
        try:
            content = self._evidence(completion, space)
        except UnparsedError as error:
            reason = f"cut off by the length limit: {error} Raise max_tokens." if is_cut_off else str(error)
            return _unparsed(reason)
        lost = "" if space is LogprobSpace.NONE else completion.evidence_problem
        return {"reason": f"no confidence: {lost}" if lost else "", **content}

    def _evidence(self, completion: Completion, space: LogprobSpace) -> Content:
        """Return label and evidence of an answer, or the outcome and reason of an illegal one."""
        completion = readable(completion, self.form, self.labels, self.answer_field)
        return _label_content(self.labels, self, completion, space)


def _unparsed(reason: str) -> Content:
    return {"label": None, "outcome": Outcome.UNPARSED, "reason": reason}


def label_content(label: str, distribution: LabelDistribution | None) -> Content:
    """Return one label as fields of a prediction, with the confidence that its distribution gives it."""
    confidence = None if distribution is None else distribution.confidence(label)
    return {"label": label, "confidence": confidence, "distribution": distribution}


def scored_part(name: str, label: str, distribution: LabelDistribution | None) -> Part:
    """Return a part of an answer, with the confidence that its distribution gives the label."""
    return Part(name=name, **label_content(label, distribution))


def parts_content(labels: LabelSet, parts: Sequence[Part]) -> Content:
    """Return all parts as fields of a prediction; the product of their confidences is None if one is unknown."""
    known = [part.confidence for part in parts if part.confidence is not None]
    return {
        "label": labels.answer_of({part.name: part.label for part in parts}),
        "confidence": math.prod(known) if len(known) == len(parts) else None,
        "parts": tuple(parts),
    }


def parts_of_set(labels: MultiLabels, answer: str, evidence: SetEvidence | None) -> tuple[Part, ...]:
    """Return one part per label: its membership in the answer, and the confidence in that, if known."""
    parts = []
    for place, (name, value) in enumerate(labels.values(answer).items()):
        no, yes = labels.labels_of(name)
        parts.append(
            scored_part(name, value, None if evidence is None else evidence.distribution(place, (no, yes)))
        )
    return tuple(parts)


@singledispatch
def _label_content(
    labels: LabelSet, reader: AnswerReader, completion: Completion, space: LogprobSpace
) -> Content:
    """Return the label of an answer with its distribution.

    A kind of labels whose answers are written in another way is registered here. This is no method of the label
    set, as `core` knows nothing of tokens.
    """
    value = field_value(completion.text, reader.answer_field)
    label = label_in(value, labels)
    if label is None:
        return _unparsed(f"answered {value!r:.80}, which is not one of the labels")
    return label_content(label, _distribution(completion, labels, reader.field, space))


@_label_content.register(FieldLabels)
def _fields_content(
    labels: FieldLabels,
    reader: AnswerReader,  # noqa: ARG001 (fields have paths of their own)
    completion: Completion,
    space: LogprobSpace,
) -> Content:
    """Return the label of every field with its distribution, given the fields before it.

    By the chain rule, the product of the fields' confidences is that of the whole answer.
    """
    parts = []
    for field in labels.fields:
        path = field.place
        try:
            value = field_value(completion.text, path)
        except UnparsedError as error:
            raise UnparsedError(f"field {field.name!r}: {error}", kind=error.kind) from error
        label = label_in(value, field.labels)
        if label is None:
            return _unparsed(
                f"answered {value!r:.80} in the field {field.name!r}, which is not one of its labels"
            )
        parts.append(scored_part(field.name, label, _distribution(completion, field.labels, path, space)))
    return parts_content(labels, parts)


@_label_content.register(MultiLabels)
def _set_content(
    labels: MultiLabels, reader: AnswerReader, completion: Completion, space: LogprobSpace
) -> Content:
    """Return the membership of every label in the answer; see `extract_set` for its confidence."""
    field = reader.field
    given = []
    for number, value in enumerate(field_values(completion.text, field), 1):
        label = None
        if isinstance(value, str):
            label = labels.label_of(value)
        if label is None:
            return _unparsed(
                f"answered {value!r:.80} at place {number} of the list, which is not one of the labels"
            )
        given.append(label)
    answer = labels.answer_with(given)
    evidence = None
    if space is not LogprobSpace.NONE:
        from calibrant.logprobs._sets import extract_set  # noqa: PLC0415 (only for several labels)

        with contextlib.suppress(LogprobsUnavailableError):
            evidence = extract_set(completion, labels.labels, field, space)
    confidence = None if evidence is None else evidence.confidence
    return {"label": answer, "confidence": confidence, "parts": parts_of_set(labels, answer, evidence)}


def _distribution(
    completion: Completion, labels: LabelSet, field: str, space: LogprobSpace
) -> LabelDistribution | None:
    if space is LogprobSpace.NONE:
        return None
    if len(labels) > 1:
        try:
            return extract_distribution(completion, labels, field, space)
        except LogprobsUnavailableError:
            return None
    joint = joint_logprob(completion, field)  # of the only label of an open set so far
    if joint is None:
        return None
    return LabelDistribution(
        labels=labels.labels,
        logprobs=np.zeros(1),
        measured=np.ones(1, dtype=np.bool_),
        joint_logprob=joint,
        label_mass=math.exp(joint),
        unresolved_mass=0.0,
        space=space,
        emitted=labels.labels[0],
    )
