"""A classification task: its labels, its prompt and its labelled rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pydantic

from calibrant.core._answers import unknown_answer
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._labels import LabelSet
from calibrant.core._predictor import INPUT_SLOT
from calibrant.core._rows import Columns, DataSource, Example
from calibrant.core._sections import (
    Problem,
    Section,
    SectionTable,
    describe_problem,
    line_of,
    parse_toml,
    refuse,
    wrong,
)
from calibrant.core._settings import (
    SCORING_PARAMETERS,
    CalibrationSettings,
    DemonstrationSettings,
    HeadSettings,
    ModelSettings,
    ScoringSettings,
)
from calibrant.core._structures import Structure
from calibrant.core._task_answers import (
    FIELD_REMEDY,
    FieldSection,
    answer_problems,
    is_path,
    labels_of,
)
from calibrant.core._task_prompts import given_problems

Split = Literal["train", "validation", "test"]

_SPLITS: tuple[Split, ...] = ("train", "validation", "test")
# Packages above read these: `calibrant.assembly` knows which.
_SECTIONS = ("cascade", "routing")


class _DataSection(Section):
    file: str | None = None
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    input_column: str = "input"
    answer_column: str = "answer"
    split_column: str = "split"
    context_column: str | None = pydantic.Field(default=None, min_length=1)
    answer_separator: str = pydantic.Field(default=";", min_length=1)

    def sources(self, directory: Path, columns: Columns) -> dict[Split, DataSource]:
        found = {}
        for split in _SPLITS:
            name: str | None = getattr(self, split)
            if name is not None:
                found[split] = DataSource(path=directory / name, columns=columns)
            elif self.file is not None:
                found[split] = DataSource(path=directory / self.file, columns=columns, split=split)
        return found


class _TaskFile(Section):
    name: str
    labels: list[Any] | None = None
    structure: Structure = "flat"
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

    @pydantic.field_validator("field")
    @classmethod
    def _check_field(cls, field: str | None) -> str | None:
        if field is not None and not is_path(field):
            raise wrong("Input should be a JSON path", FIELD_REMEDY)
        return field

    @pydantic.field_validator("user_template")
    @classmethod
    def _check_user_template(cls, template: str | None) -> str | None:
        if template is not None and INPUT_SLOT not in template:
            raise wrong(f"Input should hold {INPUT_SLOT}", "say where the text goes")
        return template

    @property
    def columns(self) -> Columns:
        data = self.data
        return Columns(
            input=data.input_column,
            answer=data.answer_column,
            split=data.split_column,
            fields=tuple((field.name, field.column or field.name) for field in self.fields or ()),
            multi_label=self.multi_label,
            separator=data.answer_separator,
            context=data.context_column,
        )


@dataclass(frozen=True, kw_only=True)
class Task:
    """A classification task.

    Attributes
    ----------
    name : str
        Short name, used in reports.
    labels : LabelSet
        The closed set of labels; a plain sequence is converted. `OrdinalLabels` and `HierarchicalLabels` earn an
        answer that is nearly right a part of the score; `MultiLabels` and `FieldLabels` say that an answer holds
        several labels.
    prompt : str
        The system prompt the search starts from.
    other_prompts : tuple of str
        System prompts that a search compares with `prompt` before it proposes any of its own.
    label_descriptions : mapping of str to str
        One sentence for each of some labels. A search tries `prompt` with the labels and their descriptions below it;
        nothing else shows them. Plain labels only.
    field : str
        JSON path of the label in the answer (``category``, ``classification.name``), or of the array of labels; the
        fields of `FieldLabels` have paths of their own.
    user_template : str or None
        Shapes the user message; holds ``{input}``. None sends the text alone.
    train, validation, test : tuple of Example
        Rows to learn from, to choose by, and to report on; answers are spelled as in `labels`.
    model : ModelSettings
        Which model answers by default.
    scoring : ScoringSettings
        How predictions are scored during the search.
    calibration : CalibrationSettings
        What is done to distributions before they are used.
    demonstrations : DemonstrationSettings or None
        Which training rows every prompt shows beside its text; None shows none.
    head : HeadSettings
        The head that makes the final distributions, and whether a search learns one.
    sections : mapping of str to SectionTable or Section
        What is asked instead of `model`: ``cascade``, models in turn, and ``routing``, providers, or both. From a file
        they are tables, which `calibrant.assembly.open_classifier` checks before the first call.
    columns : Columns
        Which columns of its data files hold what.
    sources : mapping of str to DataSource
        Where the rows of its splits are; empty unless it was read from a file.
    """

    name: str
    labels: LabelSet
    prompt: str
    other_prompts: tuple[str, ...] = ()
    label_descriptions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    field: str = "label"
    user_template: str | None = None
    train: tuple[Example, ...] = ()
    validation: tuple[Example, ...] = ()
    test: tuple[Example, ...] = ()
    model: ModelSettings = ModelSettings()
    scoring: ScoringSettings = ScoringSettings()
    calibration: CalibrationSettings = CalibrationSettings()
    demonstrations: DemonstrationSettings | None = None
    head: HeadSettings = HeadSettings()
    sections: Mapping[str, SectionTable | Section] = dataclasses.field(default_factory=dict)
    columns: Columns = Columns()
    sources: Mapping[Split, DataSource] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", LabelSet.of(self.labels))
        for name in self.sections:
            if name not in _SECTIONS:
                msg = f"Expected sections among {', '.join(_SECTIONS)}, got {name!r:.80}: correct the name."
                raise ConfigurationError(msg)
        for split in _SPLITS:
            rows = []
            for number, example in enumerate(getattr(self, split), 1):
                answer = self.labels.canonical(example.answer)
                if answer is None:
                    msg = f"task {self.name!r}, {split} row {number}: {unknown_answer(example.answer, self.labels)}"
                    raise DataError(msg)
                rows.append(replace(example, answer=answer))
            object.__setattr__(self, split, tuple(rows))
        if not is_path(self.field):
            msg = f"Expected field to be a JSON path, got {self.field!r:.80}: {FIELD_REMEDY}."
            raise ConfigurationError(msg)
        if self.user_template is not None and INPUT_SLOT not in self.user_template:
            msg = f"Expected user_template to hold {{input}}, got {self.user_template!r:.200}: say where the text goes."
            raise ConfigurationError(msg)
        for _, problem in given_problems(self, self.labels):
            raise ConfigurationError(problem[0].upper() + problem[1:])
        described = {self.labels.canonical(name): text for name, text in self.label_descriptions.items()}
        object.__setattr__(self, "label_descriptions", described)
        object.__setattr__(self, "other_prompts", tuple(self.other_prompts))

    def rows(self, split: Split) -> tuple[Example, ...]:
        """Return the rows of one split.

        Raises
        ------
        ConfigurationError
            The task has no such split, or it is empty.
        """
        found: tuple[Example, ...] = getattr(self, split) if split in _SPLITS else ()
        if not found:
            msg = f"Task {self.name!r} has no {split!r} rows: name a file for it under [data]."
            raise ConfigurationError(msg)
        return found

    def with_sections(self, **sections: Section | None) -> Task:
        """Return the task with some of its `sections` replaced; None removes one.

        Parameters
        ----------
        **sections : Section or None
            By name.
        """
        changed = {**self.sections, **sections}
        return replace(self, sections={name: own for name, own in changed.items() if own is not None})

    @classmethod
    def from_file(cls, path: str | Path, *, splits: Sequence[Split] = _SPLITS) -> Task:
        """Read a task from a TOML file; data paths are relative to it.

        Parameters
        ----------
        path : str or Path
            The task file.
        splits : sequence of {"train", "validation", "test"}
            The splits to read; by default all. Of the others, only the `sources` are kept.

        Raises
        ------
        ConfigurationError
            The file is not valid TOML or has an unknown or wrong key.
        DataError
            A data file or row is wrong; names file and line.
        """
        path = Path(path)
        text = _read_text(path)
        settings = _parse(text, path)
        _check_parameters(settings.scoring, text, path)
        refuse(
            [*answer_problems(settings), *_separator_problems(settings), *_head_problems(settings)],
            text,
            path,
        )
        labels = labels_of(settings)
        refuse(given_problems(settings, labels), text, path)
        sources = settings.data.sources(path.parent, settings.columns)
        rows: dict[str, tuple[Example, ...]] = {
            split: _load(sources[split], labels) for split in _SPLITS if split in splits and split in sources
        }
        if len(rows) > 1:
            from calibrant.core._leaks import warn_about_leaks  # noqa: PLC0415  (evaluations read one split)

            warn_about_leaks(rows, path)
        return cls(
            name=settings.name,
            labels=labels,
            prompt=settings.prompt,
            other_prompts=settings.other_prompts,
            label_descriptions=settings.label_descriptions,
            field=settings.field or ("labels" if settings.multi_label else "label"),
            user_template=settings.user_template,
            train=rows.get("train", ()),
            validation=rows.get("validation", ()),
            test=rows.get("test", ()),
            model=settings.model,
            scoring=settings.scoring,
            calibration=settings.calibration,
            demonstrations=settings.demonstrations,
            head=_beside(settings.head, path.parent),
            sections=_tables(settings, text, path),
            columns=settings.columns,
            sources=sources,
        )


def _read_text(path: Path) -> str:
    if not path.is_file():
        msg = f"{path}: no such task file: expected a TOML file with name, labels, prompt and [data]."
        raise ConfigurationError(msg)
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        msg = f"{path}:{line}: expected UTF-8 text, got the byte 0x{byte:02x}: save the file as UTF-8."
        raise ConfigurationError(msg) from error


def _parse(text: str, path: Path) -> _TaskFile:
    document = parse_toml(text, path)
    if "llm" in document:
        raise ConfigurationError(
            f"{path}:{line_of(text, ('llm',))}: unknown key 'llm', which belongs to a configuration of Zeph: save it "
            'as a file of its own, such as zeph.toml, and write [routing] with file = "zeph.toml".'
        )
    try:
        return _TaskFile.model_validate(document)
    except pydantic.ValidationError as error:
        problems = [
            f"{path}:{line_of(text, item['loc'])}: {describe_problem(dict(item), _TaskFile)}"
            for item in error.errors()
        ]
        raise ConfigurationError("\n".join(problems)) from error


def _tables(settings: _TaskFile, text: str, path: Path) -> dict[str, SectionTable]:
    """Return the sections that core does not know."""
    given = frozenset(settings.model_fields_set)
    return {
        name: SectionTable(values=getattr(settings, name), path=path, beside=given - {name}, text=text)
        for name in _SECTIONS
        if name in given
    }


def _check_parameters(scoring: ScoringSettings, text: str, path: Path) -> None:
    known = SCORING_PARAMETERS[scoring.strategy]
    takes = f"expected one of {', '.join(known)}" if known else "it takes none"
    problems = [
        f"{path}:{line_of(text, ('scoring', 'parameters', name))}: strategy {scoring.strategy!r} has no "
        f"parameter {name!r}: {takes}."
        for name in scoring.parameters
        if name not in known
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))


def _separator_problems(settings: _TaskFile) -> Iterator[Problem]:
    """Yield a separator that nobody would use."""
    if "answer_separator" in settings.data.model_fields_set and not settings.multi_label:
        problem = (
            "expected no 'answer_separator' without multi_label = true: an answer is not split; leave it out."
        )
        yield ("data", "answer_separator"), problem


def _head_problems(settings: _TaskFile) -> Iterator[Problem]:
    """Yield a head where answers are not those of one model over one label set."""
    if settings.head.file is None:
        return
    where = {
        "beside [cascade]: its answers come from several models": settings.cascade is not None,
        "beside [routing]: its answers come from several models": settings.routing is not None,
        "where an answer holds several labels: a head is one over one label set": settings.multi_label
        or settings.fields is not None,
    }
    for reason, applies in where.items():
        if applies:
            yield ("head", "file"), f"expected no head {reason}; leave it out."


def _beside(head: HeadSettings, directory: Path) -> HeadSettings:
    """Return the section with its file relative to the task's directory."""
    return head if head.file is None else head.model_copy(update={"file": directory / head.file})


def _load(source: DataSource, labels: LabelSet) -> tuple[Example, ...]:
    rows = []
    for example, line in source.examples():
        check_answer(example, labels, path=source.path, line=line)
        rows.append(example)
    return tuple(rows)


def check_answer(
    example: Example, labels: LabelSet, *, path: Path | None = None, line: int | None = None
) -> str:
    """Return the answer of `example` as `labels` spells it.

    Raises
    ------
    DataError
        It is not one of the labels.
    """
    answer = labels.canonical(example.answer)
    if answer is None:
        raise DataError(unknown_answer(example.answer, labels), path=path, line=line)
    return answer
