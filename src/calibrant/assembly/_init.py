"""Drafts of task files, whose columns, labels, splits and prompt come from a data file."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from calibrant.assembly._row_checks import GroupChecks, GroupCount, RowChecks
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import json_text, write_atomically
from calibrant.core._labels import label_text, normalise_label
from calibrant.core._reported import counted, listed
from calibrant.core._rows import SPLIT_NAMES, Columns, Row, answer_of, encodable_text, is_labelled, read_rows
from calibrant.core._splits import Shares, split_rule
from calibrant.core._table_files import ANY_CSV, CsvFormat, csv_spelling
from calibrant.core._task import SPLITS, read_task_file

TARGET: Final = 0.9  # what a search certifies; see `evaluation._learned.calibrate_search`
ACCURACIES: Final = (0.8, 0.9, 0.95)
TEST_ROWS: Final = (28, 30, 40, 60, 80, 120, 160, 200, 300, 400, 800, 1_600, 3_200)
# Mean share of rows that the certificate accepts, by accuracy, for each of `TEST_ROWS`; written by
# `python benchmarks/draw_outlook.py`, which says what it assumes about the confidence.
_KEPT: Final = {
    0.8: (0.00, 0.00, 0.01, 0.03, 0.04, 0.06, 0.08, 0.08, 0.13, 0.16, 0.28, 0.38, 0.44),
    0.9: (0.00, 0.06, 0.19, 0.29, 0.37, 0.48, 0.63, 0.71, 0.82, 0.87, 0.93, 0.96, 0.97),
    0.95: (0.00, 0.29, 0.54, 0.73, 0.84, 0.93, 0.98, 0.99, 1.00, 1.00, 1.00, 1.00, 1.00),
}


@dataclass(frozen=True, kw_only=True)
class PromiseOutlook:
    """Expected share of rows that a search's certificate accepts, under an assumed accuracy of the model.

    Attributes
    ----------
    accuracy : float
        Assumed accuracy of the model.
    kept : float
        Expected share of new rows that the certificate accepts, in [0, 1].
    labelled_rows_for_half : int or None
        About how many labelled rows in all, divided like these, would make it half; None if more than were computed.
    """

    accuracy: float
    kept: float
    labelled_rows_for_half: int | None


def promise_outlook(*, test_rows: int, labelled_rows: int) -> tuple[PromiseOutlook, ...]:
    """Return the outlook on a promise of `TARGET` for each of `ACCURACIES`.

    Shares are interpolated between the numbers of rows that were computed.

    Parameters
    ----------
    test_rows : int
        Rows to certify on, from 1.
    labelled_rows : int
        These, and the rows that teach.
    """
    found = []
    for accuracy in ACCURACIES:
        kept = _KEPT[accuracy]
        share = float(np.interp(test_rows, TEST_ROWS, kept))
        labels = None
        if kept[-1] >= 0.5:
            rows_for_half = float(np.interp(0.5, kept, TEST_ROWS))
            labels = 10 * math.ceil(rows_for_half * labelled_rows / test_rows / 10)
        found.append(PromiseOutlook(accuracy=accuracy, kept=share, labelled_rows_for_half=labels))
    return tuple(found)


_SAMPLE_ROWS: Final = 10_000
_TEST: Final = "test"  # split whose rows are certified
_SHARES: Final = (0.4, 0.2, 0.4)
_SMALL_FILE_ROWS: Final = 1_000  # rows up to which these shares are proposed
_VALIDATION_ROWS, _TEST_ROWS = 300, 400  # of larger files: more of them only cost calls
_LISTED_LABELS: Final = 50  # in the prompt
_MAX_LABELS: Final = 2_000
_EMBEDDED_BYTES: Final = 12_000  # fit into the embedded model's 4,096 tokens
_NOUNS: Final = ("message", "review", "comment", "question")  # names of columns that say what a text is
_NOUN: Final = re.compile(r"[^\W\d_]{3,}(?:[ _-][^\W\d_]+)?")  # one word or two
MOST_LABELS: Final = 200
"""Largest number of labels that are taken without being named."""
Ask: TypeAlias = Callable[[str, Sequence[str]], str]
"""Asks a question at a terminal and returns one of the answers, the first of which is proposed."""
_NUMBER: Final = re.compile(r"[-+]?[\d.,\s]*\d\s*[%€$£]?|[€$£]\s*[\d.,]*\d")
_DATE: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ]\d{1,2}:.*)?|\d{1,2}:\d{2}(:\d{2})?")
_ID: Final = re.compile(r"[\w/-]*\d[\w/-]*")
_ID_NAMES: Final = frozenset(["id", "nr", "no", "number", "key", "code", "ticket", "uuid"])
_CODE: Final = re.compile(r"\S*\d\S*")
_MOST_CODES: Final = 20  # more values with a digit and no space are ids
_TEXT_NAMES: Final = frozenset(
    ["text", "message", "body", "content", "input", "review", "comment", "description", "question"]
)
_LABEL_NAMES: Final = frozenset(
    (
        *("label", "labels", "category", "class", "topic", "answer", "intent"),
        *("sentiment", "target", "kind", "tag", "type"),
    )
)
_LABEL_SEPARATORS: Final = (";", "|", ",")  # between several labels in one cell
_ARRAY: Final = re.compile(r"\s*\[\s*[\"'].*[\"']\s*\]\s*")  # also as Python prints lists, which is refused
_MAX_SCORED_ROWS: Final = 1_000  # rows on which label columns are compared
_MAX_SCORES: Final = 50_000  # the same, times the number of labels


@dataclass(frozen=True, kw_only=True)
class TaskDraft:
    """Contents of a task file for a data file.

    Attributes
    ----------
    data : Path
        The data file.
    csv : CsvFormat
        Format to be written into the task file.
    separator, encoding : str or None
        Character between its columns, and Python's name of its encoding, if it is a CSV file.
    columns : FoundColumns
        Its columns of text and label.
    rows : int
        Its rows.
    labelled_rows : int
        Those with a text and an answer.
    labels : tuple of (str, int)
        Labels and their rows, the most frequent first.
    shares : (float, float, float)
        Shares of training, validation and test rows.
    splits : mapping of str to int
        Rows of each split; empty where a column tells them.
    test_rows : int
        Test rows, as a column tells them or as they are divided; of each group of near-duplicates one.
    outlook : tuple of PromiseOutlook
        What a search is likely to promise by these; empty without test rows.
    answer_separator : str or None
        Character between the labels of an answer that may hold several; None where it holds one.
    near_duplicates : GroupCount
        Near-duplicates that were put into one split with those they are like.
    notices : tuple of str
        Warnings about the data.
    """

    data: Path
    csv: CsvFormat
    separator: str | None
    encoding: str | None
    columns: FoundColumns
    rows: int
    labelled_rows: int
    labels: tuple[tuple[str, int], ...]
    shares: Shares
    splits: dict[str, int]
    test_rows: int
    outlook: tuple[PromiseOutlook, ...]
    answer_separator: str | None
    near_duplicates: GroupCount
    notices: tuple[str, ...]


def draft_task(
    data: Path,
    *,
    text: str | None,
    label: str | None,
    model: str | None,
    ask: Ask | None,
) -> TaskDraft:
    """Draft a task file for a data file: columns, labels, splits and prompt.

    Parameters
    ----------
    data : Path
        A file that `read_rows` reads.
    text, label : str or None
        Names of its columns; found by their content by default.
    model : str or None
        Name of the model; texts that are too long for the embedded one are warned of.
    ask : callable or None
        Asks the user where several columns fit.

    Raises
    ------
    DataError
        A row is broken, no column fits, there are fewer than two labels or too many, or the file's name is not UTF-8.
    """
    _check_path(data)
    is_csv = data.suffix.lower() in {".csv", ".tsv"}
    csv = ANY_CSV
    if is_csv:
        csv = _csv_format(data, {text, label} - {None})
    found = find_columns(_first_columns(data, csv), path=data, text=text, label=label, ask=ask)
    checks = RowChecks(longest=_EMBEDDED_BYTES if (model or "local/").startswith("local/") else None)
    columns = found.columns(csv)
    _count_rows(checks, data, columns)
    _check_labels(checks, found.label, data)
    if found.split is not None and checks.without_answer + checks.without_text:
        found = replace(found, split=None)  # a split column needs a text and an answer in every row
    labelled = checks.labelled
    spelling = csv_spelling(data, csv) if is_csv else None
    shares = _SHARES
    if labelled > _SMALL_FILE_ROWS:
        validation, test = (round(count / labelled, 4) for count in (_VALIDATION_ROWS, _TEST_ROWS))
        shares = (round(1 - validation - test, 4), validation, test)
    splits, groups, test_rows, learned = _splits_and_groups(data, columns, found.split, shares)
    has_split_column = found.split is not None
    split_notices = [*_unlearned_notices(checks, learned, found.split)]
    split_notices += groups.notices(has_split_column=has_split_column)
    return TaskDraft(
        data=data,
        csv=csv,
        separator=None if spelling is None else spelling.separator,
        encoding=None if spelling is None else spelling.encoding.removesuffix("-sig"),
        columns=found,
        rows=checks.rows,
        labelled_rows=labelled,
        labels=tuple(checks.label_counts()),
        shares=shares,
        splits={} if has_split_column else splits,
        test_rows=test_rows,
        outlook=promise_outlook(test_rows=test_rows, labelled_rows=labelled) if test_rows else (),
        answer_separator=found.answer_separator,
        near_duplicates=GroupCount() if has_split_column else groups.together,
        notices=(*found.notices, *checks.notices(), *split_notices),
    )


def _count_rows(checks: RowChecks, data: Path, columns: Columns) -> None:
    """Add the rows of a file to the checks, until there are too many labels."""
    for row in read_rows(data, csv=columns.csv):
        answer = answer_of(row, columns) if is_labelled(row, columns) else ""
        checks.add(row.line, _cell(row, columns.input), answer, _labels_of(answer, row, columns))
        if len(checks.labels) > _MAX_LABELS:
            break


def _check_path(data: Path) -> None:
    """Raise DataError if a task file, which is UTF-8, cannot name the data file."""
    try:
        str(data.resolve()).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"expected a path in UTF-8, which a task file can hold, got {str(data)!a:.80}: rename the file or "
            "its folder.",
            path=Path(data.name.encode("utf-8", "replace").decode()),
        ) from error


def _csv_format(data: Path, named: set[str | None]) -> CsvFormat:
    """Return the format of a CSV file: with a header, or without one if the first row is data."""
    headless = CsvFormat(header=False)
    first = next(read_rows(data, csv=headless)).values
    header = not lacks_header(first, _first_columns(data, headless, skip=1))
    if named and named <= {*first, *first.values()}:  # names of a header or of columns without one
        header = named <= set(first.values())
    return ANY_CSV if header else headless


def _first_columns(data: Path, csv: CsvFormat, *, skip: int = 0) -> list[Column]:
    """Return the columns of a file with the cells of its first rows."""
    return columns_of([row.values for row in islice(read_rows(data, csv=csv), skip, _SAMPLE_ROWS)])


def _labels_of(answer: str, row: Row, columns: Columns) -> list[str]:
    """Return the labels of an answer as it is read: itself, or those of a JSON array."""
    if not columns.multi_label or not answer:
        return [answer]
    labels = _json_labels(answer)
    if labels is None:
        separator = columns.separator
        remedy = f': write ["one", "two"] or one{separator}two'
        raise row.expected("a JSON array of labels", columns.answer, remedy)
    return labels


def _json_labels(text: str) -> list[str] | None:
    """Return the labels of a JSON array; None if the text is something else."""
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(labels, list) or not all(isinstance(label, str) and label.strip() for label in labels):
        return None
    return labels


def _cell(row: Row, name: str) -> str:
    value = row.values.get(name)
    if value is not None and not isinstance(value, str):
        raise row.expected("text", name)
    return encodable_text(value or "", row)


def _check_labels(checks: RowChecks, column: str, data: Path) -> None:
    """Raise DataError if there are fewer than two labels, or too many for the rows."""
    count = len(checks.labels)
    rows = checks.labelled
    if count < 2:
        got = "no answer at all"
        if count:
            got = repr(next(iter(checks.labels), ""))[:60]
        raise DataError(
            f"expected at least two labels in {column!r}, got {got}: add rows of others, or name another column "
            "by --label-column.",
            path=data,
        )
    if count > _MAX_LABELS or (count > MOST_LABELS and rows < 2 * count):
        more = f"more than {_MAX_LABELS:,}" if count > _MAX_LABELS else f"{count:,}"
        raise DataError(
            f"expected labels in {column!r}, got {more} different values: is it an id or free text? Name another "
            "column by --label-column, or write the task file by hand.",
            path=data,
        )


def _unlearned_notices(checks: RowChecks, learned: Collection[str], split: str | None) -> Iterator[str]:
    """Yield a warning of labels that only test rows have, by the column `split`."""
    unlearned = [label for label, _ in checks.label_counts() if normalise_label(label) not in learned]
    if split is not None and unlearned:
        yield f"{listed(unlearned)} in no row that is learned from: the column {split!r} has all of them in test."


def _splits_and_groups(
    data: Path, columns: Columns, split_column: str | None, shares: Shares
) -> tuple[dict[str, int], GroupChecks, int, set[str]]:
    """Return rows by split, near-duplicates, the test rows that differ, and the labels of rows in other splits."""

    def labelled() -> Iterator[tuple[Row, str, str]]:
        for row in read_rows(data, csv=columns.csv):
            if is_labelled(row, columns):
                yield row, _cell(row, columns.input), answer_of(row, columns)

    rule = split_rule(((text, answer) for _, text, answer in labelled()), shares)
    groups = GroupChecks(groups=rule.groups)
    sizes = Counter[str]()
    tested = set[int]()
    learned = set[str]()
    for row, text, answer in labelled():
        groups.add(row.line, text, answer)
        split: str = SPLITS[rule.part(text, answer)]
        sizes[split] += 1
        if split_column is not None:
            split = normalise_label(_cell(row, split_column))
        if split == _TEST:
            tested.add(rule.groups.key(text))
        else:
            learned.update(map(normalise_label, _labels_of(answer, row, columns)))
    return {split: sizes[split] for split in SPLITS}, groups, len(tested), learned


def new_task_path(out: Path) -> Path:
    """Return the path of a new task file in a directory.

    Raises
    ------
    ConfigurationError
        It exists, or the directory is a file.
    """
    path = out / "task.toml"
    if path.exists():
        raise ConfigurationError(
            f"{path}: expected no task file here yet, got one: name another directory by --out, or remove it."
        )
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"{out}: expected a directory, got a file: name another one by --out.")
    return path


def write_task(draft: TaskDraft, out: Path, *, models: Sequence[tuple[str, str | None, str]]) -> Path:
    """Write a task file, and return its path.

    Parameters
    ----------
    draft : TaskDraft
        Its contents.
    out : Path
        Its directory, which is made.
    models : sequence of (str, str or None, str)
        Name, address and origin of the task's model, and of others, which are written as comments.

    Raises
    ------
    ConfigurationError
        There is a task file in the directory.
    """
    path = new_task_path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "\n".join(_task_lines(draft, out, models)) + "\n")
    read_task_file(path)
    return path


def _task_lines(draft: TaskDraft, out: Path, models: Sequence[tuple[str, str | None, str]]) -> Iterator[str]:
    """Yield the lines of the task file."""
    yield f"name = {_toml(draft.data.stem)}"
    yield f"prompt = {_toml(prompt_of(draft))}  # calibrant optimize looks for a better one"
    if draft.answer_separator is None:
        yield 'field = "label"  # where the label stands in the answer: {"label": "..."}'
    else:
        yield "multi_label = true  # an answer holds any number of labels, or none"
    yield "labels = ["
    yield from (f"    {_toml(name)},  # {counted(count, 'row')}" for name, count in draft.labels)
    yield "]"
    yield from _data_lines(draft, out)
    yield ""
    (name, address, _), *others = models
    yield "[model]"
    yield f"name = {_toml(name)}"
    if address is not None:
        yield f"api_base = {_toml(address)}"
    if others:
        yield "# Other models that could be asked from here, instead of the one above:"
    for name, address, where in others:
        yield f"# name = {_toml(name)}  # {where}"
        if address is not None:
            yield f"# api_base = {_toml(address)}"


def _data_lines(draft: TaskDraft, out: Path) -> Iterator[str]:
    """Yield the lines on the data of the task file."""
    columns = draft.columns
    relative = os.path.relpath(draft.data.resolve(), out.resolve())
    file = Path(relative).as_posix()
    yield ""
    yield "[data]"
    yield f"file = {_toml(file)}  # relative to this file"
    yield f"input_column = {_toml(columns.text)}"
    yield f"answer_column = {_toml(columns.label)}"
    if draft.answer_separator is not None:
        yield f"answer_separator = {_toml(draft.answer_separator)}  # between the labels of an answer"
    if columns.row_id not in {None, "id"}:
        yield f"id_column = {_toml(str(columns.row_id))}  # reports name it"
    if columns.split is None:
        yield f"split = {list(draft.shares)}  # train, validation, test; near-duplicates stay together"
    else:
        yield f"split_column = {_toml(columns.split)}"
    if draft.separator is not None:
        if not draft.csv.header:
            yield "header = false  # columns are 1, 2 and so on"
        yield "# Found whenever a CSV file is read, unless they are given here:"
        yield f"# separator = {_toml(draft.separator)}"
        yield f"# encoding = {_toml(str(draft.encoding))}"


def prompt_of(draft: TaskDraft) -> str:
    """Return the first prompt of a task, made of the columns' names and the labels.

    It shows no label as an example of an answer, as small models would copy it.
    """
    text = draft.columns.text.strip().lower()
    label = draft.columns.label.strip()
    text = text if text in _NOUNS else "text"
    is_noun = _NOUN.fullmatch(label) and len(label) <= 40
    label = label.replace("_", " ").lower() if is_noun else "label"
    names = [name for name, _ in draft.labels]
    if any("," in name for name in names):  # else nobody could tell where one ends
        names = [json_text(name) for name in names]
    several = draft.answer_separator is not None
    choice = f"choose the {label} that fits it best."
    choices = f"The {label} is one of"
    if several:
        choice = "choose every label that fits it. There may be several, or none."
        choices = "The labels are"
    prompt = f"Classify the following {text}: {choice}"
    if len(names) <= _LISTED_LABELS:
        prompt += f" {choices}: {', '.join(names)}."
    return prompt


def _toml(text: str) -> str:
    """Return a text as a TOML string, which differs from JSON's in the character DEL alone."""
    return json_text(text).replace("\x7f", "\\u007f")


@dataclass(frozen=True)
class Column:
    """Column of a data file, with its first cells as text; labels may also be whole numbers."""

    name: str
    cells: tuple[str, ...]
    is_text: bool = True
    is_label: bool = True

    @cached_property
    def filled(self) -> list[str]:
        """Cells that are not blank."""
        return [cell for cell in self.cells if cell.strip()]

    @cached_property
    def counts(self) -> Counter[str]:
        """Number of cells by normalised value."""
        return Counter(map(normalise_label, self.filled))

    @cached_property
    def answer_separator(self) -> str | None:
        """Character between several labels in a cell; None where cells hold one label each."""
        if any(map(_ARRAY.fullmatch, self.filled)):
            return _LABEL_SEPARATORS[0]
        for separator in _LABEL_SEPARATORS:
            answers = [cell.split(separator) for cell in self.counts]
            labels = {label.strip() for answer in answers for label in answer}
            numbers = {len(answer) for answer in answers}
            # One label that holds the character has as many parts as others do, or parts of its own.
            if len(numbers) > 1 and len(labels) < len(answers) and "" not in labels:
                return separator
        return None

    @cached_property
    def labels(self) -> Counter[str]:
        """Number of cells by normalised label; a cell may hold several."""
        if self.answer_separator is None:
            return self.counts
        found = Counter[str]()
        for cell in self.filled:
            array = _json_labels(cell)
            labels = cell.split(self.answer_separator) if array is None else array
            found.update(map(normalise_label, labels))
        return found

    @cached_property
    def mean_length(self) -> float:
        """Mean number of characters of a filled cell."""
        return _per_cell(sum(map(len, self.filled)), self)

    @cached_property
    def mean_words(self) -> float:
        """Mean number of words of a filled cell."""
        return _per_cell(sum(len(cell.split()) for cell in self.filled), self)

    @cached_property
    def distinct_share(self) -> float:
        """Number of different values, as a share of the filled cells."""
        return _per_cell(len(self.counts), self)

    def is_called(self, names: Collection[str]) -> bool:
        """Return True if the column's name is one of `names`."""
        return normalise_label(self.name) in names

    def holds(self, pattern: re.Pattern[str]) -> bool:
        """Return True if nearly all filled cells match a pattern."""
        matches = [cell for cell in self.filled if pattern.fullmatch(cell.strip())]
        return len(matches) >= 0.9 * max(len(self.filled), 1)

    @property
    def is_number(self) -> bool:
        """True if the column holds numbers."""
        return self.holds(_NUMBER)

    @property
    def is_value(self) -> bool:
        """True if the column holds numbers or dates."""
        return self.is_number or self.holds(_DATE)

    @property
    def could_be_text(self) -> bool:
        """True for mostly different texts of several words, or of 8 characters in scripts without spaces."""
        wide = not "".join(self.filled[:100]).isascii() and self.mean_length >= 8
        return not self.is_value and self.distinct_share > 0.3 and (self.mean_words >= 2 or wide)

    @property
    def could_be_label(self) -> bool:
        """True for a few short values that repeat."""
        few = 1 < len(self.labels) <= MOST_LABELS and len(self.filled) >= 2 * len(self.labels)
        is_id = len(self.counts) > _MOST_CODES and self.holds(_CODE)
        return few and self.mean_length <= 60 and not is_id and not self.holds(_DATE)

    @property
    def could_be_id(self) -> bool:
        """True for codes or whole numbers of which every row has its own."""
        distinct = len(set(self.cells)) == len(self.filled) == len(self.cells) > 1
        return distinct and all(map(_ID.fullmatch, self.cells)) and not self.holds(_DATE)


def _per_cell(total: int, column: Column) -> float:
    return total / max(len(column.filled), 1)


@dataclass(frozen=True, kw_only=True)
class FoundColumns:
    """Columns of a task, with the reasons why they were chosen.

    Attributes
    ----------
    text, label : str
        Names of the columns.
    text_reason, label_reason : str
        Reason for each, in a few words.
    split : str or None
        Name of a column that says train, validation or test.
    row_id : str or None
        Name of a column that identifies the rows.
    answer_separator : str or None
        Character between several labels in one answer; None where an answer holds one.
    notices : tuple of str
        Warnings about other columns that fit.
    """

    text: str
    label: str
    text_reason: str
    label_reason: str
    split: str | None
    row_id: str | None
    answer_separator: str | None
    notices: tuple[str, ...]

    def columns(self, csv: CsvFormat) -> Columns:
        """Return the columns as rows are read by them."""
        if self.answer_separator is None:
            return Columns(input=self.text, answer=self.label, csv=csv)
        return Columns(
            input=self.text, answer=self.label, multi_label=True, separator=self.answer_separator, csv=csv
        )


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns of rows, without those that have no name."""
    names = dict.fromkeys(name for row in rows for name in row if name and name.strip())
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        labels = [json_text(value) if isinstance(value, list) else label_text(value) for value in values]
        cells = tuple("" if value is None else str(value) for value in labels)
        columns.append(Column(name, cells, _are_texts(values), _are_texts(labels)))
    return columns


def _are_texts(values: Sequence[object]) -> bool:
    return all(value is None or isinstance(value, str) for value in values)


def lacks_header(first: Mapping[str, str], others: Sequence[Column]) -> bool:
    """Return True if the first row of a CSV file is data.

    One of its cells is then a label of the rows below, or a number or date above others.

    Parameters
    ----------
    first : mapping of str to str
        The first row.
    others : sequence of Column
        The columns of the rows below.
    """
    for column in others:
        cell = first.get(column.name, "").strip()
        if column.is_value:
            if _NUMBER.fullmatch(cell) or _DATE.fullmatch(cell):
                return True
        elif column.could_be_label and normalise_label(cell) in column.counts:
            return True
    return False


def find_columns(
    columns: Sequence[Column],
    *,
    path: Path,
    text: str | None,
    label: str | None,
    ask: Ask | None,
) -> FoundColumns:
    """Find the columns of text and label.

    Parameters
    ----------
    columns : sequence of Column
        The file's columns.
    path : Path
        The file, for messages.
    text, label : str or None
        Names that the user gave.
    ask : callable or None
        Asks where several columns are alike; without it the likeliest is taken.

    Raises
    ------
    DataError
        A name is wrong, or no column can be one of the two.
    """
    by_name = {column.name: column for column in columns}
    for option, name in (("--text-column", text), ("--label-column", label)):
        if name is not None and name not in by_name:
            raise DataError(
                f"expected {option} to name a column, got {name!r}: {_listed(by_name)}.", path=path
            )
    split = next((column.name for column in columns if _is_split(column)), None)
    free = [column for column in columns if column.name not in {text, label, split}]
    notices: list[str] = []
    texts = [by_name[text]] if text is not None else _possible_texts(free)
    if not texts:
        raise DataError(
            f"expected a column of texts, with several words and mostly distinct, got none: name it by --text-column; "
            f"{_listed(by_name)}.",
            path=path,
        )
    text_column = _choose(texts, "text", _TEXT_NAMES, ask, notices)
    others = [column for column in free if column != text_column]
    labels = [by_name[label]] if label is not None else _possible_labels(others, text_column)
    if not labels:
        raise DataError(_no_label(others, by_name), path=path)
    label_column = _choose(labels, "label", _LABEL_NAMES, ask, notices)
    if text_column == label_column:
        raise DataError(
            f"expected two columns, got {text_column.name!r} for both --text-column and --label-column.",
            path=path,
        )
    return FoundColumns(
        text=text_column.name,
        label=label_column.name,
        text_reason="named by --text-column" if text is not None else _text_reason(text_column),
        label_reason="named by --label-column" if label is not None else _label_reason(label_column),
        split=split,
        row_id=_row_id(
            [column for column in columns if column.name not in {text_column.name, label_column.name}]
        ),
        answer_separator=label_column.answer_separator,
        notices=tuple(notices),
    )


def _listed(names: Collection[str]) -> str:
    return f"the columns are {', '.join(map(repr, names)):.400}"


def _is_split(column: Column) -> bool:
    return {"train", "test"} <= set(column.counts) <= SPLIT_NAMES


def _row_id(columns: Sequence[Column]) -> str | None:
    """Return the name of the column that identifies the rows: the one so called, or else the first of the file."""
    codes = [column for column in columns if column.could_be_id]
    named = [column for column in codes if column.is_called(_ID_NAMES)]
    found = named or [column for column in codes if column is columns[0]]
    return found[0].name if found else None


def _possible_texts(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may be the text, the likeliest first."""
    columns = [column for column in columns if column.is_text]
    found = [column for column in columns if column.could_be_text]
    if not found:  # single words, such as names of products
        named = [column for column in columns if column.is_called(_TEXT_NAMES)]
        found = [column for column in named if not column.is_value and column.distinct_share > 0.3]
    found.sort(key=lambda column: -column.mean_length * column.distinct_share * len(column.filled))
    return [one for one in found if one.mean_length * 2 >= found[0].mean_length or one.is_called(_TEXT_NAMES)]


def _possible_labels(columns: Sequence[Column], text: Column) -> list[Column]:
    """Return the columns that may be the label, the likeliest first."""
    found = [column for column in columns if column.could_be_label and column.is_label]
    words = [column for column in found if not column.is_number]
    found = words or [column for column in found if len(column.counts) <= 20]
    if len(found) < 2:
        return found
    return sorted(found, key=lambda column: -_gain(text.cells, column.cells))


def _no_label(columns: Sequence[Column], by_name: Collection[str]) -> str:
    remedy = f"name the column by --label-column; {_listed(by_name)}."
    single = next((one for one in columns if len(one.counts) == 1 and not one.is_value), None)
    if single is not None:
        got = f"{single.filled[0]!r:.60} alone in {single.name!r}"
        return f"expected at least two labels, got {got}: add rows of others, or {remedy}"
    other = next((column for column in columns if column.could_be_label), None)
    if other is not None:
        return f"expected labels as text, got other values in {other.name!r}: write them as text, or {remedy}"
    words = [column for column in columns if not column.is_value and not column.holds(_CODE)]
    many = max(words or columns, key=lambda column: len(column.filled) - len(column.counts), default=None)
    got = "" if many is None else f", got {len(many.counts):,} in {many.name!r} (an id, or free text?)"
    return (
        f"no column looks like labels, and `init` needs rows with answers: expected few values that are "
        f"repeated{got}: {remedy}"
    )


def _choose(
    columns: Sequence[Column], what: str, usual_names: Collection[str], ask: Ask | None, notices: list[str]
) -> Column:
    """Choose one of the possible columns, and add a notice about the others.

    It is the only one with a usual name, or the one that the user chooses, or the first.
    """
    named = [column for column in columns if column.is_called(usual_names)]
    chosen = named[0] if len(named) == 1 else columns[0]
    if len(columns) > 1 and len(named) != 1 and ask is not None:
        names = [column.name for column in columns]
        return columns[names.index(ask(f"Which column is the {what}?", names))]
    others = ", ".join(repr(column.name) for column in columns if column != chosen)
    if others:
        notices.append(
            f"{what} may also be {others}: name the column by --{what}-column if {chosen.name!r} is wrong."
        )
    return chosen


def _text_reason(column: Column) -> str:
    return f"{counted(round(column.mean_words), 'word')} on average, {column.distinct_share:.0%} of the texts differ"


def _label_reason(column: Column) -> str:
    labels = column.labels
    times = round(labels.total() / len(labels))
    repeated = f"repeated {counted(times, 'time')} on average"
    if column.answer_separator is None:
        return f"{counted(len(labels), 'value')}, {repeated}"
    return f"any number of {counted(len(labels), 'label')}, {repeated}"


def _gain(texts: Sequence[str], answers: Sequence[str]) -> float:
    """Return the share of the majority baseline's mistakes that naive Bayes on words avoids, leaving one row out."""
    n_labels = len({normalise_label(answer) for answer in answers if answer.strip()})
    most = min(_MAX_SCORED_ROWS, _MAX_SCORES // n_labels)
    rows: list[tuple[set[str], str]] = []
    for text, answer in zip(texts, answers, strict=True):
        if answer.strip() and len(rows) < most:
            words = set(text.casefold().split())
            rows.append((words, normalise_label(answer)))
    labels = Counter(answer for _, answer in rows)
    rows_with = {label: Counter[str]() for label in labels}  # rows of the label that hold a word
    for words, answer in rows:
        rows_with[answer].update(words)
    right = 0
    for words, answer in rows:
        scores = {}
        for label, count in labels.items():
            left_out = label == answer
            others = count - left_out
            rows_of = rows_with[label]
            shares = [(rows_of[word] - left_out + 0.5) / (others + 1) for word in words]
            scores[label] = math.log(others + 0.5) + sum(map(math.log, shares))
        right += max(scores, key=scores.__getitem__) == answer
    majority = labels.most_common(1)[0][1]
    return (right - majority) / max(len(rows) - majority, 1)
