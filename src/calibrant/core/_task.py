"""A classification task: its labels, its prompt and its labelled rows."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._predictor import INPUT_SLOT
from calibrant.core._rows import Columns, DataSource, Example
from calibrant.core._settings import (
    CalibrationSettings,
    DemonstrationSettings,
    HeadSettings,
    ModelSettings,
    ScoringSettings,
    Section,
    SectionTable,
)
from calibrant.core._structures import unknown_answer
from calibrant.core._task_file import (
    FIELD_REMEDY,
    SPLITS,
    Split,
    TaskFile,
    is_path,
    prompt_problems,
    read_task_file,
)

if TYPE_CHECKING:
    from calibrant.core._frames import Frame

__all__ = ["RecordedTask", "Split", "Task", "check_answer"]

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
        A reflection model rewrites them. Plain labels only.
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
        for split in SPLITS:
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
        for _, problem in prompt_problems(
            self.prompt, self.other_prompts, self.label_descriptions, self.labels
        ):
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
        found: tuple[Example, ...] = getattr(self, split) if split in SPLITS else ()
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
        labels, keys = settings.label_set(), frozenset(settings.model_fields_set)
        sources = settings.sources(path.parent)
        rows: dict[str, tuple[Example, ...]] = {
            split: tuple(_checked_rows(sources[split], labels))
            for split in SPLITS
            if split in splits and split in sources
        }
        _warn_about_leaks(rows, path)
        head = settings.head
        if head.file is not None:  # relative to the task file, as all its paths
            head = head.model_copy(update={"file": path.parent / head.file})
        same_keys = TaskFile.model_fields.keys() & {field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {key: getattr(settings, key) for key in same_keys}
        values |= {
            "labels": labels,
            "field": settings.field or ("labels" if settings.multi_label else "label"),
            "head": head,
            "sections": {
                name: SectionTable(values=getattr(settings, name), path=path, beside=keys - {name}, text=text)
                for name in _SECTIONS
                if name in keys
            },
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
    if len(shares) != len(SPLITS) or min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
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
    _LOG.warning("%d row(s) of the frame have no label and are left out.", rows)


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
                "%s: %d %s row(s) are also %s rows, for example %.60r: remove them from one of the two.",
                path,
                len(shared),
                first,
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
