"""What a task file says of its answers: one label, any number of labels, or one for each of several fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pydantic

from calibrant.core._composite import Field, FieldLabels, MultiLabels
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._sections import Problem, Section, wrong
from calibrant.core._settings import CalibrationSettings
from calibrant.core._structures import Structure, structured_labels

FIELD_REMEDY = "name the keys, separated by dots, as in 'category', 'result.category' or 'results[].category'"

_PATH = re.compile(r"(?:\[\d*\]|[^.\[\]]+)(?:\[\d*\])*(?:\.[^.\[\]]+(?:\[\d*\])*)*")


def is_path(text: str) -> bool:
    """Return whether `text` is a JSON path of a label."""
    return _PATH.fullmatch(text) is not None


class FieldSection(Section):
    """One of the ``[[fields]]``: a label of its own in every answer.

    Attributes
    ----------
    name : str
        Short and unique.
    labels : list
        Its labels.
    structure : {"flat", "ordinal", "hierarchical"}
        What relation they stand in.
    separator : str or None
        What stands between the levels of hierarchical labels.
    path : str or None
        JSON path of the label in the model's answer; `name` by default.
    column : str or None
        Which column of the data files holds its true label; `name` by default.
    """

    name: str
    labels: list[Any]
    structure: Structure = "flat"
    separator: str | None = None
    path: str | None = None
    column: str | None = None

    @pydantic.field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.strip():
            raise wrong("Input should hold text", "name what the field says of a text")
        return name

    @pydantic.field_validator("path")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        if path is not None and not is_path(path):
            raise wrong("Input should be a JSON path", FIELD_REMEDY)
        return path


class AnswerSettings(Protocol):
    """The part of a task file that answers depend on."""

    @property
    def labels(self) -> list[Any] | None: ...
    @property
    def structure(self) -> Structure: ...
    @property
    def separator(self) -> str | None: ...
    @property
    def multi_label(self) -> bool: ...
    @property
    def fields(self) -> Sequence[FieldSection] | None: ...
    @property
    def calibration(self) -> CalibrationSettings: ...
    @property
    def model_fields_set(self) -> set[str]: ...


def answer_problems(settings: AnswerSettings) -> Iterator[Problem]:
    """Yield what is said twice, not at all, or does not fit answers that hold several labels."""
    fields = settings.fields
    if fields is None:
        if settings.labels is None:
            yield (
                ("labels",),
                "missing key 'labels': add it, or [[fields]] where an answer holds several labels.",
            )
        else:
            yield from _wrong_labels(settings, settings.labels, ())
        if settings.multi_label:
            if settings.structure != "flat":
                problem = "expected no structure beside multi_label: a label is in the set or not"
                yield ("structure",), f"{problem}; leave it out."
            yield from _unfit(settings)
        return
    for key, why in (
        ("labels", "every field has labels of its own"),
        ("structure", "every field has a structure of its own"),
        ("separator", "every field has a structure of its own"),
        ("field", "every field has a path of its own"),
        ("multi_label", "an answer holds either one label for each field, or any number of labels"),
    ):
        if key in settings.model_fields_set:
            yield (key,), f"expected no {key!r} beside [[fields]], as {why}: remove one of them."
    if len(fields) < 2:
        few = f"expected at least two [[fields]], got {len(fields)}"
        yield ("fields", 0), f"{few}: for a single label set labels and field at the top instead."
    for number, field in enumerate(fields):
        yield from _wrong_labels(field, field.labels, ("fields", number))
        if field.path is None and not is_path(field.name):
            problem = f"expected a path beside a name that is none, got {field.name!r:.80}: add it, or change the name."
            yield ("fields", number, "name"), problem
    yield from _twice(fields)
    yield from _unfit(settings)


def _twice(fields: Sequence[FieldSection]) -> Iterator[Problem]:
    """Yield names, paths and columns that two fields share, and paths that lead into another field's label."""
    own: dict[str, Callable[[FieldSection], str]] = {
        "name": lambda field: normalise_label(field.name),
        "path": lambda field: field.path or field.name,
        "column": lambda field: field.column or field.name,
    }
    for key, value_of in own.items():
        first: dict[str, str] = {}
        for number, field in enumerate(fields):
            value = value_of(field)
            if value in first:
                both = f"the fields {first[value]!r:.40} and {field.name!r:.40}"
                yield (
                    ("fields", number, key),
                    f"expected {key}s that differ, got {value!r:.80} for {both}: change one.",
                )
                return  # of a name that is there twice, the default path and column are, too
            first[value] = field.name
    paths = [field.path or field.name for field in fields]
    for number, path in enumerate(paths):
        inside = next((other for other in paths if path.startswith((f"{other}.", f"{other}["))), None)
        if inside is not None:
            problem = f"expected paths beside each other, got {path!r:.80} inside {inside!r:.80}: change one."
            yield ("fields", number, "path"), problem


def _unfit(settings: AnswerSettings) -> Iterator[Problem]:
    """Yield settings that hold for answers of one label alone."""
    if settings.calibration.prior_correction is not None:
        problem = (
            "expected no prior_correction where an answer holds several labels: it needs one distribution"
        )
        yield ("calibration", "prior_correction"), f"{problem} over one label set; leave it out."


def labels_of(settings: AnswerSettings) -> LabelSet:
    """Return the label set that a task file without `answer_problems` describes."""
    if settings.fields is None:
        labels = settings.labels or []
        return MultiLabels(labels) if settings.multi_label else _single(settings, labels)
    return FieldLabels(
        [
            Field(name=field.name, labels=_single(field, field.labels), path=field.path)
            for field in settings.fields
        ]
    )


def _single(said: AnswerSettings | FieldSection, labels: Sequence[Any]) -> LabelSet:
    return structured_labels(labels, structure=said.structure, separator=said.separator)


def _wrong_labels(
    said: AnswerSettings | FieldSection, labels: Sequence[Any], place: tuple[str | int, ...]
) -> Iterator[Problem]:
    try:
        _single(said, labels)
    except ConfigurationError as error:
        idle = said.separator is not None and said.structure != "hierarchical"
        key = "separator" if idle or said.separator == "" else "labels"
        yield (*place, key), str(error)
