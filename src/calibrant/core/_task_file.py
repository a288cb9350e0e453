"""Task files: their keys and sections, and checks that concern several keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import pydantic
from pydantic_core import PydanticCustomError

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._predictor import INPUT_SLOT
from calibrant.core._rows import ENDINGS, Columns, DataSource
from calibrant.core._settings import (
    SCORING_PARAMETERS,
    CalibrationSettings,
    DemonstrationSettings,
    HeadSettings,
    ModelSettings,
    Problem,
    ScoringSettings,
    Section,
    Share,
    describe_problem,
    line_of,
    parse_toml,
    read_text,
    refuse,
    wrong,
)
from calibrant.core._structures import (
    STRUCTURES,
    Field,
    FieldLabels,
    MultiLabels,
    structure_names,
    structured_labels,
)
from calibrant.core._table_files import CsvFormat

Split: TypeAlias = Literal["train", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")
FIELD_REMEDY: Final = (
    "name the keys, separated by dots, as in 'category', 'result.category' or 'results[].category'"
)

_PATH: Final = re.compile(r"(?:\[\d*\]|[^.\[\]]+)(?:\[\d*\])*(?:\.[^.\[\]]+(?:\[\d*\])*)*")
_NOT_BESIDE_FIELDS: Final = {
    "labels": "every field has labels of its own",
    "structure": "every field has a structure of its own",
    "separator": "every field has a structure of its own",
    "field": "every field has a path of its own",
    "multi_label": "an answer holds either one label for each field, or any number of labels",
}


def is_path(text: str) -> bool:
    """Return True if `text` is a JSON path of a label."""
    return _PATH.fullmatch(text) is not None


def _checked_path(path: str | None) -> str | None:
    if path is not None and not is_path(path):
        raise wrong("Input should be a JSON path", FIELD_REMEDY)
    return path


def _checked_structure(structure: object) -> str:
    if not isinstance(structure, str) or structure not in STRUCTURES:
        raise PydanticCustomError("structure", f"Input should be {structure_names()}")
    return structure


_Structure = Annotated[str, pydantic.BeforeValidator(_checked_structure)]


class FieldSection(Section):
    """Table of the ``[[fields]]`` array: a field of every answer and its labels.

    Attributes
    ----------
    name : str
        Short and unique.
    labels : list
        Its labels.
    structure : str
        What relation they stand in: ``flat``, ``ordinal``, ``hierarchical``, or that of a registered kind.
    separator : str or None
        What stands between the levels of hierarchical labels.
    path : str or None
        JSON path of the label in the model's answer; `name` by default.
    column : str or None
        Which column of the data files holds its true label; `name` by default.
    """

    name: str
    labels: list[Any]
    structure: _Structure = "flat"
    separator: str | None = None
    path: str | None = None
    column: str | None = None

    _check_path = pydantic.field_validator("path")(_checked_path)

    @pydantic.field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.strip():
            raise wrong("Input should hold text", "name what the field says of a text")
        return name


class _DataSection(Section):
    file: str | None = None
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    input_column: str = "input"
    answer_column: str = "answer"
    split_column: str = "split"
    context_column: str | None = pydantic.Field(default=None, min_length=1)
    id_column: str = "id"
    answer_separator: str = pydantic.Field(default=";", min_length=1)
    split: tuple[Share, Share, Share] | None = None
    encoding: str | None = None
    separator: str | None = None
    header: bool = pydantic.Field(default=True, strict=True)

    @pydantic.field_validator("split", mode="wrap")
    @classmethod
    def _check_split(cls, given: Any, check: pydantic.ValidatorFunctionWrapHandler) -> Any:  # noqa: ANN401
        shares = check(given) if not isinstance(given, list) or len(given) == len(SPLITS) else ()
        if shares is not None and not math.isclose(sum(shares), 1, abs_tol=1e-6):
            message = "Input should be three shares that add up to 1"
            raise wrong(message, "write [train, validation, test], such as [0.4, 0.2, 0.4]")
        return shares

    @pydantic.field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str | None) -> str | None:
        try:
            "".encode(encoding or "utf-8")
        except LookupError:
            raise wrong("Input should be an encoding", "write utf-8, latin-1 or another one") from None
        return encoding

    @pydantic.field_validator("separator")
    @classmethod
    def _check_separator(cls, separator: str | None) -> str | None:
        if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
            raise wrong("Input should be one character", 'write ";" or "\\t", or leave it out')
        return separator


class TaskFile(Section):
    """Keys of a task file, as documented in `Task`."""

    name: str
    labels: list[Any] | None = None
    structure: _Structure = "flat"
    separator: str | None = None
    multi_label: bool = pydantic.Field(default=False, strict=True)
    fields: tuple[FieldSection, ...] | None = None
    prompt: str
    other_prompts: tuple[str, ...] = ()
    label_descriptions: dict[str, str] = pydantic.Field(default_factory=dict)
    field: str | None = None
    user_template: str | None = None
    data: _DataSection = _DataSection()
    model: ModelSettings = ModelSettings()
    scoring: ScoringSettings = ScoringSettings()
    calibration: CalibrationSettings = CalibrationSettings()
    demonstrations: DemonstrationSettings | None = None
    head: HeadSettings = HeadSettings()
    cascade: Any = None
    routing: Any = None

    _check_field = pydantic.field_validator("field")(_checked_path)

    @pydantic.field_validator("user_template")
    @classmethod
    def _check_user_template(cls, template: str | None) -> str | None:
        if template is not None and INPUT_SLOT not in template:
            raise wrong(f"Input should hold {INPUT_SLOT}", "say where the text goes")
        return template

    @property
    def columns(self) -> Columns:
        """Columns of the data files."""
        data = self.data
        return Columns(
            input=data.input_column,
            answer=data.answer_column,
            split=data.split_column,
            fields=tuple((field.name, field.column or field.name) for field in self.fields or ()),
            multi_label=self.multi_label,
            separator=data.answer_separator,
            context=data.context_column,
            row_id=data.id_column,
            csv=CsvFormat(encoding=data.encoding, separator=data.separator, header=data.header),
        )

    def sources(self, directory: Path) -> dict[Split, DataSource]:
        """Return the data source of each split."""
        sources = {}
        shares = self.data.split
        for number, split in enumerate(SPLITS):
            own: str | None = getattr(self.data, split)
            if own is not None:
                sources[split] = DataSource(path=directory / own, columns=self.columns)
            elif self.data.file is not None and (shares is None or shares[number] > 0):
                file = directory / self.data.file
                sources[split] = DataSource(path=file, columns=self.columns, split=split, shares=shares)
        return sources

    def label_set(self) -> LabelSet:
        """Return the label set of a valid file."""
        if self.fields is not None:
            return FieldLabels(
                [Field(name=field.name, labels=_labels(field), path=field.path) for field in self.fields]
            )
        return MultiLabels(self.labels or []) if self.multi_label else _labels(self)


def read_task_file(path: Path) -> tuple[TaskFile, str]:
    """Return the settings of a task file, and its text for line numbers in messages.

    Raises
    ------
    ConfigurationError
        The file is missing or no TOML, or has unknown or wrong keys; the message holds every one with its line.
    """
    if path.suffix.lower() in ENDINGS and path.is_file():
        raise ConfigurationError(
            f"{path}: expected a task file, got a file of rows: calibrant init {path} writes a task file for it."
        )
    text = read_text(
        path, f"{path}: no such task file: expected a TOML file with name, labels, prompt and [data]."
    )
    document = parse_toml(text, path)
    if "llm" in document:
        raise ConfigurationError(
            f"{path}:{line_of(text, ('llm',))}: unknown key 'llm', which belongs to a configuration of Zeph: save it "
            'as a file of its own, such as zeph.toml, and write [routing] with file = "zeph.toml".'
        )
    try:
        file = TaskFile.model_validate(document)
    except pydantic.ValidationError as error:
        refuse([(item["loc"], describe_problem(dict(item), TaskFile)) for item in error.errors()], text, path)
        raise  # pragma: no cover (an error has at least one problem)
    refuse(_problems(file), text, path)
    refuse(
        prompt_problems(file.prompt, file.other_prompts, file.label_descriptions, file.label_set()),
        text,
        path,
    )
    return file, text


def _problems(file: TaskFile) -> Iterator[Problem]:
    """Yield contradictions between keys, such as parameters unknown to the scoring strategy."""
    known = SCORING_PARAMETERS[file.scoring.strategy]
    takes = f"expected one of {', '.join(known)}" if known else "it takes none"
    for name in [name for name in file.scoring.parameters if name not in known]:
        problem = f"strategy {file.scoring.strategy!r} has no parameter {name!r}: {takes}."
        yield ("scoring", "parameters", name), problem
    if file.fields is None:
        yield from _label_problems(file, file.labels)
    else:
        yield from _field_problems(file, file.fields)
    if "answer_separator" in file.data.model_fields_set and not file.multi_label:
        problem = "expected no 'answer_separator' without multi_label = true: an answer is not split"
        yield ("data", "answer_separator"), f"{problem}; leave it out."
    yield from _split_problems(file.data)
    composite = file.multi_label or file.fields is not None
    if composite and file.calibration.prior_correction is not None:
        problem = (
            "expected no prior_correction where an answer holds several labels: it needs one distribution"
        )
        yield ("calibration", "prior_correction"), f"{problem} over one label set; leave it out."
    unfit = {
        "beside [cascade]: its answers come from several models": file.cascade is not None,
        "beside [routing]: its answers come from several models": file.routing is not None,
        "where an answer holds several labels: a head is one over one label set": composite,
    }
    for reason in [reason for reason, applies in unfit.items() if applies and file.head.file is not None]:
        yield ("head", "file"), f"expected no head {reason}; leave it out."


def _split_problems(data: _DataSection) -> Iterator[Problem]:
    if data.split is None:
        return
    place = ("data", "split")
    if data.file is None:
        yield (
            place,
            'expected split beside the file that it divides: add file = "rows.csv", or leave split out.',
        )
    if "split_column" in data.model_fields_set:
        yield place, "expected either split or split_column: leave one out."
    for share, name in zip(data.split, SPLITS, strict=True):
        if share and getattr(data, name) is not None:
            problem = f"expected a share of 0 for {name} rows, which have a file of their own, got {share:g}"
            yield place, f"{problem}: correct it."


def _label_problems(
    owner: TaskFile | FieldSection, labels: Sequence[Any] | None, *place: str | int
) -> Iterator[Problem]:
    if labels is None:
        yield (
            ("labels",),
            "missing key 'labels': add it, or [[fields]] where an answer holds several labels.",
        )
        return
    try:
        _labels(owner)
    except ConfigurationError as error:
        is_idle = owner.separator is not None and owner.structure != "hierarchical"
        yield (*place, "separator" if is_idle or owner.separator == "" else "labels"), str(error)
    if isinstance(owner, TaskFile) and owner.multi_label and owner.structure != "flat":
        problem = "expected no structure beside multi_label: a label is in the set or not"
        yield ("structure",), f"{problem}; leave it out."


def _labels(owner: TaskFile | FieldSection) -> LabelSet:
    return structured_labels(owner.labels or [], structure=owner.structure, separator=owner.separator)


def _field_problems(file: TaskFile, fields: Sequence[FieldSection]) -> Iterator[Problem]:
    for key, why in _NOT_BESIDE_FIELDS.items():
        if key in file.model_fields_set:
            yield (key,), f"expected no {key!r} beside [[fields]], as {why}: remove one of them."
    if len(fields) < 2:
        few = f"expected at least two [[fields]], got {len(fields)}"
        yield ("fields", 0), f"{few}: for a single label set labels and field at the top instead."
    for number, field in enumerate(fields):
        yield from _label_problems(field, field.labels, "fields", number)
        if field.path is None and not is_path(field.name):
            problem = f"expected a path beside a name that is none, got {field.name!r:.80}: add it, or change the name."
            yield ("fields", number, "name"), problem
    yield from _repeated(fields)


def _repeated(fields: Sequence[FieldSection]) -> Iterator[Problem]:
    """Yield problems of names, paths and columns that two fields share, and of nested paths."""
    paths = [field.path or field.name for field in fields]
    values = {
        "name": [normalise_label(field.name) for field in fields],
        "path": paths,
        "column": [field.column or field.name for field in fields],
    }
    for key, own in values.items():
        for number, value in enumerate(own):
            first = own.index(value)
            if first < number:
                both = f"the fields {fields[first].name!r:.40} and {fields[number].name!r:.40}"
                yield (
                    ("fields", number, key),
                    f"expected {key}s that differ, got {value!r:.80} for {both}: change one.",
                )
                return  # of a repeated name, the default path and column are repeated, too
    for number, path in enumerate(paths):
        inside = next((other for other in paths if path.startswith((f"{other}.", f"{other}["))), None)
        if inside is not None:
            problem = f"expected paths beside each other, got {path!r:.80} inside {inside!r:.80}: change one."
            yield ("fields", number, "path"), problem


def prompt_problems(
    prompt: str, others: Sequence[str], descriptions: Mapping[str, str], labels: LabelSet
) -> Iterator[Problem]:
    """Yield problems such as blank or repeated prompts, and descriptions of unknown labels.

    Parameters
    ----------
    prompt : str
        The task's own prompt.
    others : sequence of str
        The prompts that a search compares with it.
    descriptions : mapping of str to str
        Sentences about labels.
    labels : LabelSet
        The labels.
    """
    if isinstance(others, str):
        shown = f"{others!r:.80}"
        yield ("other_prompts",), f"expected a list of other_prompts, got {shown}: write [{shown}]."
        others = ()
    seen = {prompt.strip()}
    for number, other in enumerate(others):
        place = ("other_prompts", number)
        if not isinstance(other, str) or not other.strip():
            yield place, f"expected other_prompts with text, got {other!r:.80}: leave it out."
        elif other.strip() in seen:
            problem = (
                f"expected other_prompts that differ from the prompt and each other, got {other!r:.80} again"
            )
            yield place, f"{problem}: leave it out."
        else:
            seen.add(other.strip())
    if descriptions:
        yield from _description_problems(descriptions, labels)


def _description_problems(descriptions: Mapping[str, str], labels: LabelSet) -> Iterator[Problem]:
    if descriptions and not labels.is_plain:
        problem = "expected label_descriptions of plain labels alone, got some of labels with a structure or of answers"
        yield ("label_descriptions",), f"{problem} that hold several labels: leave them out."
        return
    seen = set()
    for name, text in descriptions.items():
        place, label = ("label_descriptions", name), labels.canonical(name)
        if label is None:
            names = ", ".join(map(repr, labels))
            problem = f"expected label_descriptions of the labels {names:.200}, got one of {name!r:.80}: correct it."
            yield place, problem
        elif label in seen:
            yield place, f"expected one description for each label, got two of {label!r:.80}: remove one."
        elif not isinstance(text, str) or not text.strip():
            problem = f"expected a sentence about the label {label!r:.80}, got {text!r:.80}"
            yield place, f"{problem}: add it, or leave it out."
        seen.add(label)
