"""A classification task: its labels, its prompt and its labelled rows; the keys and sections of its file."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import pydantic

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._predictor import INPUT_SLOT
from calibrant.core._reported import counted, without_none
from calibrant.core._rows import ENDINGS, Columns, DataSource, Example
from calibrant.core._settings import (
    SCORING_PARAMETERS,
    CalibrationSettings,
    DemonstrationSettings,
    HeadSettings,
    ModelSettings,
    Problem,
    ScoringSettings,
    Section,
    SectionTable,
    Share,
    describe_problem,
    known_name,
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
    structured_labels,
    unknown_answer,
)
from calibrant.core._table_files import CsvFormat

if TYPE_CHECKING:
    from calibrant.core._frames import Frame


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
_LOG = logging.getLogger("calibrant")
# Packages above read these: `calibrant.assembly` knows which.
_SECTIONS: Final = ("cascade", "routing")
_FEW_LABELS: Final = 10  # so many may each be there once
_LISTED_LABELS: Final = 50  # in a prompt


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
        One sentence for each of some labels. A search tries `prompt` with the labels and their descriptions below it,
        and a decision model gets them beside its options, unless its prompt has such a list; nothing else shows them.
        A reflection model rewrites them, unless answers hold several labels. A value of a field is ``field=value``.
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
        Scoring of predictions during the search.
    calibration : CalibrationSettings
        Corrections of distributions before use.
    demonstrations : DemonstrationSettings or None
        Which training rows every prompt shows beside its text; None shows none.
    head : HeadSettings
        The head that makes the final distributions, and whether a search learns one.
    sections : mapping of str to SectionTable or Section
        Sections that replace `model`: ``cascade``, models in turn, and ``routing``, providers, or both. From a file
        they are tables, which `calibrant.assembly.open_classifier` checks before the first call.
    columns : Columns
        Which columns of its data files hold what.
    sources : mapping of str to DataSource
        Where the rows of its splits are; empty unless it was read from a file.

    Examples
    --------
    >>> from calibrant.core import Example, Task
    >>> rows = (Example(input="lunch", answer="food"), Example(input="May", answer="Rent"))
    >>> task = Task(name="payments", labels=["Food", "Rent"], prompt="Sort the payment.", train=rows)
    >>> [row.answer for row in task.rows("train")], task.model.name
    (['Food', 'Rent'], 'local/smollm2-135m')
    """

    name: str
    labels: LabelSet
    prompt: str
    other_prompts: tuple[str, ...] = ()
    label_descriptions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    field: str = "label"
    user_template: str | None = None
    train: tuple[Example, ...] = dataclasses.field(default=(), repr=False)
    validation: tuple[Example, ...] = dataclasses.field(default=(), repr=False)
    test: tuple[Example, ...] = dataclasses.field(default=(), repr=False)
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
                raise ConfigurationError(
                    f"Expected sections among {', '.join(_SECTIONS)}, got {name!r:.80}: correct the name."
                )
        for split in SPLITS:
            rows = []
            for number, example in enumerate(getattr(self, split), 1):
                answer = self.labels.canonical(example.answer)
                if answer is None:
                    raise DataError(
                        f"task {self.name!r}, {split} row {number}: {unknown_answer(example.answer, self.labels)}"
                    )
                rows.append(replace(example, answer=answer))
            object.__setattr__(self, split, tuple(rows))
        if not is_path(self.field):
            raise ConfigurationError(
                f"Expected field to be a JSON path, got {self.field!r:.80}: {FIELD_REMEDY}."
            )
        if self.user_template is not None and INPUT_SLOT not in self.user_template:
            raise ConfigurationError(
                f"Expected user_template to hold {{input}}, got {self.user_template!r:.200}: say where the text goes."
            )
        for _, problem in prompt_problems(
            self.prompt, self.other_prompts, self.label_descriptions, self.labels
        ):
            raise ConfigurationError(problem[0].upper() + problem[1:])
        described = {self.labels.label_of(name): text for name, text in self.label_descriptions.items()}
        object.__setattr__(self, "label_descriptions", described)
        object.__setattr__(self, "other_prompts", tuple(self.other_prompts))

    def rows(self, split: Split) -> tuple[Example, ...]:
        """Return the rows of one split.

        Raises
        ------
        ConfigurationError
            The task has no such split, or it is empty.
        """
        found: tuple[Example, ...] = getattr(self, split) if split in SPLITS else ()
        if not found:
            raise ConfigurationError(
                f"Task {self.name!r} has no {split!r} rows: name a file for it under [data]; or add rows, if few were "
                "divided into splits."
            )
        return found

    def with_sections(self, **sections: Section | None) -> Task:
        """Return the task with some of its `sections` replaced; None removes one.

        Parameters
        ----------
        **sections : Section or None
            By name.
        """
        return replace(self, sections=without_none({**self.sections, **sections}))

    @classmethod
    def from_file(cls, path: str | Path, *, splits: Sequence[Split] = SPLITS) -> Task:
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
        settings, text = read_task_file(path)
        labels = settings.label_set()
        keys = frozenset(settings.model_fields_set)
        sources = settings.sources(path.parent)
        rows: dict[str, tuple[Example, ...]] = {}
        for split in SPLITS:
            if split in splits and split in sources:
                rows[split] = tuple(_checked_rows(sources[split], labels))
        _warn_about_leaks(rows, path)
        head = settings.head
        if head.file is not None:  # relative to the task file, as all its paths
            head = head.model_copy(update={"file": path.parent / head.file})
        sections = {}
        for name in _SECTIONS:
            if name in keys:
                raw = getattr(settings, name)
                sections[name] = SectionTable(values=raw, path=path, beside=keys - {name}, text=text)
        own_fields = {field.name for field in dataclasses.fields(cls)}
        same_keys = own_fields.intersection(TaskFile.model_fields)
        values: dict[str, Any] = {key: getattr(settings, key) for key in same_keys}
        values |= {
            "labels": labels,
            "field": settings.field or ("labels" if settings.multi_label else "label"),
            "head": head,
            "sections": sections,
            "columns": settings.columns,
            "sources": sources,
            **rows,
        }
        return cls(**values)

    @classmethod
    def from_frame(
        cls,
        frame: Frame,
        *,
        text: str,
        label: str,
        labels: LabelSet | Sequence[str] | None = None,
        prompt: str | None = None,
        split: Sequence[float] = (0.4, 0.2, 0.4),
    ) -> Task:
        """Make a task of a frame of pandas, polars or pyarrow, or of a Hugging Face dataset.

        Use `dataclasses.replace` to change more of it.

        Parameters
        ----------
        frame : data frame, table or dataset
            Labelled rows, in memory. Those without a label are left out.
        text, label : str
            Columns of the texts and of their true labels.
        labels : sequence of str, optional
            The labels, or a `LabelSet` with a structure. By default those of a dataset's `ClassLabel`, else all in the
            column, sorted.
        prompt : str, optional
            The system prompt to start from; by default one sentence with the labels.
        split : sequence of 3 floats, default (0.4, 0.2, 0.4)
            Shares of training, validation and test rows. The rows are stratified by label, near-duplicates stay
            together, and the order of the rows does not matter.

        Raises
        ------
        ConfigurationError
            A column is missing, the rows are not in memory, or there are fewer than two labels.
        DataError
            A row holds no text, or a label that is not among `labels`.

        Examples
        --------
        >>> import pandas as pd
        >>> from calibrant import Task
        >>> frame = pd.DataFrame({"note": [f"lunch {n}" for n in range(10)], "kind": ["Food", "Work"] * 5})
        >>> task = Task.from_frame(frame, text="note", label="kind")
        >>> len(task.train), len(task.validation), len(task.test), task.prompt
        (4, 2, 4, 'Classify the text: choose the label that fits it best. The label is one of: Food, Work.')
        """
        from calibrant.core._frames import frame_examples, label_names  # noqa: PLC0415 (if there is a frame)
        from calibrant.core._splits import split_rule  # noqa: PLC0415 (the same)

        rows = frame_examples(frame, text=text, label=label, on_unlabelled=_warn_about_unlabelled)
        known = LabelSet.of(labels or label_names(frame, label) or _labels_in(rows, label))
        shares = _checked_shares(split)
        rule = split_rule([(row.input, row.answer) for row in rows], shares)
        parts: tuple[list[Example], ...] = ([], [], [])
        for row in rows:
            parts[rule.part(row.input, row.answer)].append(row)
        listed = f" The label is one of: {', '.join(known)}." if len(known) <= _LISTED_LABELS else ""
        return cls(
            name=label,
            labels=known,
            prompt=prompt or f"Classify the text: choose the label that fits it best.{listed}",
            columns=Columns(input=text, answer=label),
            train=tuple(parts[0]),
            validation=tuple(parts[1]),
            test=tuple(parts[2]),
        )


@dataclass(frozen=True, kw_only=True)
class RecordedTask:
    """A task, and the options that were left out when it was written down.

    Attributes
    ----------
    task : Task
        Its settings; its training rows are the demonstrations of its prompts.
    left_out : mapping of str to tuple of str
        By model (its alias or name), the options that may hold credentials.
    state_left_out : bool
        True if the task's own place of router state is left out.

    Examples
    --------
    >>> from calibrant.core import Task
    >>> from calibrant.tuned import RecordedTask
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> RecordedTask(task=task, left_out={"openai/gpt-4.1-mini": ("api_key",)}).task.name
    'pets'
    """

    task: Task
    left_out: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    state_left_out: bool = False


def _checked_shares(shares: Sequence[float]) -> tuple[float, float, float]:
    is_complete = len(shares) == len(SPLITS) and min(shares) >= 0
    if not is_complete or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ConfigurationError(
            "Expected a split into shares of training, validation and test rows that add up to 1, such as "
            f"(0.4, 0.2, 0.4), got {shares!r:.80}."
        )
    return shares[0], shares[1], shares[2]


def _labels_in(rows: Sequence[Example], column: str) -> list[str]:
    """Return the labels of the rows, sorted, each in its most frequent spelling."""
    spellings: dict[str, str] = {}
    counts = Counter(row.answer.strip() for row in rows)
    for answer in sorted(counts, key=lambda one: (-counts[one], one)):
        spellings.setdefault(normalise_label(answer), answer)
    if len(spellings) > max(_FEW_LABELS, len(rows) // 2):
        raise ConfigurationError(
            f"Expected labels that repeat in the column {column!r}, got {len(spellings):,} different ones in "
            f"{len(rows):,} rows: name the column of the labels, or give the labels themselves."
        )
    return sorted(spellings.values())


def _warn_about_unlabelled(rows: int) -> None:
    none = counted(rows, "row of the frame has no label and is", "rows of the frame have no label and are")
    _LOG.warning("%s left out.", none)


def _checked_rows(source: DataSource, labels: LabelSet) -> Iterator[Example]:
    for example, line in source.examples():
        check_answer(example, labels, path=source.path, line=line)
        yield example


def _warn_about_leaks(splits: Mapping[str, Sequence[Example]], path: Path) -> None:
    """Log a warning if two splits share texts, which makes results look better than they are."""
    if len(splits) < 2:
        return
    texts = {split: {normalise_label(row.input) for row in rows} for split, rows in splits.items()}
    for first, second in (("train", "test"), ("validation", "test"), ("train", "validation")):
        shared = texts.get(first, set()) & texts.get(second, set())
        if shared:
            _LOG.warning(
                "%s: %s also among the %s rows, for example %.60r: remove such rows from one of the two.",
                path,
                counted(len(shared), f"{first} row is", f"{first} rows are"),
                second,
                min(shared),
            )


def check_answer(
    example: Example, labels: LabelSet, *, path: Path | None = None, line: int | None = None
) -> str:
    """Return the answer of `example` as spelled in `labels`; raise DataError if it is not legal.

    Raises
    ------
    DataError
        The answer is not in the label set.
    """
    answer = labels.canonical(example.answer)
    if answer is None:
        raise DataError(unknown_answer(example.answer, labels), path=path, line=line)
    return answer


def is_path(text: str) -> bool:
    """Return True if `text` is a JSON path of a label."""
    return _PATH.fullmatch(text) is not None


def _checked_path(path: str | None) -> str | None:
    if path is not None and not is_path(path):
        raise wrong("Input should be a JSON path", FIELD_REMEDY)
    return path


_Structure = Annotated[str, known_name(STRUCTURES)]


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
            raise wrong(
                "Input should be three shares that add up to 1",
                "write [train, validation, test], such as [0.4, 0.2, 0.4]",
            )
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
            fields = [Field(name=own.name, labels=_labels(own), path=own.path) for own in self.fields]
            return FieldLabels(fields)
        if self.multi_label:
            return MultiLabels(self.labels or [])
        return _labels(self)


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
        problems = [(item["loc"], describe_problem(dict(item), TaskFile)) for item in error.errors()]
        refuse(problems, text, path)
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
    for name in file.scoring.parameters:
        if name not in known:
            yield (
                ("scoring", "parameters", name),
                f"strategy {file.scoring.strategy!r} has no parameter {name!r}: {takes}.",
            )
    if file.fields is None:
        yield from _label_problems(file, file.labels)
    else:
        yield from _field_problems(file, file.fields)
    if "answer_separator" in file.data.model_fields_set and not file.multi_label:
        yield (
            ("data", "answer_separator"),
            "expected no 'answer_separator' without multi_label = true: an answer is not split; leave it out.",
        )
    yield from _split_problems(file.data)
    composite = file.multi_label or file.fields is not None
    if composite and file.calibration.prior_correction is not None:
        problem = (
            "expected no prior_correction where an answer holds several labels: it needs one distribution over one "
            "label set; leave it out."
        )
        yield ("calibration", "prior_correction"), problem
    unfit = {
        "beside [cascade]: its answers come from several models": file.cascade is not None,
        "beside [routing]: its answers come from several models": file.routing is not None,
        "where an answer holds several labels: a head is one over one label set": composite,
    }
    for reason, applies in unfit.items():
        if applies and file.head.file is not None:
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
            yield (
                place,
                f"expected a share of 0 for {name} rows, which have a file of their own, got {share:g}: correct it.",
            )


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
        yield (
            ("structure",),
            "expected no structure beside multi_label: a label is in the set or not; leave it out.",
        )


def _labels(owner: TaskFile | FieldSection) -> LabelSet:
    return structured_labels(owner.labels or [], structure=owner.structure, separator=owner.separator)


def _field_problems(file: TaskFile, fields: Sequence[FieldSection]) -> Iterator[Problem]:
    for key, why in _NOT_BESIDE_FIELDS.items():
        if key in file.model_fields_set:
            yield (key,), f"expected no {key!r} beside [[fields]], as {why}: remove one of them."
    if len(fields) < 2:
        problem = (
            f"expected at least two [[fields]], got {len(fields)}: for a single label set labels and field at the top "
            "instead."
        )
        yield ("fields", 0), problem
    for number, field in enumerate(fields):
        yield from _label_problems(field, field.labels, "fields", number)
        if field.path is None and not is_path(field.name):
            yield (
                ("fields", number, "name"),
                f"expected a path beside a name that is none, got {field.name!r:.80}: add it, or change the name.",
            )
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
            yield (
                ("fields", number, "path"),
                f"expected paths beside each other, got {path!r:.80} inside {inside!r:.80}: change one.",
            )


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
    given: object = prompt
    if not isinstance(given, str):
        yield ("prompt",), f"expected a prompt as text, got {given!r:.80}."
        return
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
                f"expected other_prompts that differ from the prompt and each other, got {other!r:.80} again: leave it "
                "out."
            )
            yield place, problem
        else:
            seen.add(other.strip())
    if descriptions:
        yield from _description_problems(descriptions, labels)


def _description_problems(descriptions: Mapping[str, str], labels: LabelSet) -> Iterator[Problem]:
    seen = set()
    for name, text in descriptions.items():
        place = ("label_descriptions", name)
        label = labels.label_of(name)
        if label is None:
            names = ", ".join(map(repr, labels))
            yield (
                place,
                f"expected label_descriptions of the labels {names:.200}, got one of {name!r:.80}: correct it.",
            )
        elif label in seen:
            yield place, f"expected one description for each label, got two of {label!r:.80}: remove one."
        elif not isinstance(text, str) or not text.strip():
            yield (
                place,
                f"expected a sentence about the label {label!r:.80}, got {text!r:.80}: add it, or leave it out.",
            )
        seen.add(label)
