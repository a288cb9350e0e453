"""Drafts of task files, whose columns, labels, splits and prompt come from a data file."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from calibrant.assembly._found_columns import (
    MOST_LABELS,
    Ask,
    Column,
    FoundColumns,
    columns_of,
    find_columns,
    lacks_header,
)
from calibrant.assembly._row_checks import GroupChecks, GroupCount, RowChecks
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import write_atomically
from calibrant.core._labels import label_text
from calibrant.core._rows import Row, encodable_text, read_rows
from calibrant.core._splits import Shares, split_rule
from calibrant.core._table_files import ANY_CSV, CsvFormat, csv_spelling
from calibrant.core._task_file import SPLITS, read_task_file

_SAMPLE_ROWS: Final = 10_000
_SHARES: Final = (0.4, 0.2, 0.4)
_SMALL_FILE_ROWS: Final = 1_000  # rows up to which these shares are proposed
_VALIDATION_ROWS, _TEST_ROWS = 300, 400  # of larger files: more of them only cost calls
_LISTED_LABELS: Final = 50  # in the prompt
_MAX_LABELS: Final = 2_000
_EMBEDDED_BYTES: Final = 12_000  # fit into the embedded model's 4,096 tokens
_NOUNS: Final = ("message", "review", "comment", "question")  # names of columns that say what a text is
_NOUN: Final = re.compile(r"[^\W\d_]{3,}(?:[ _-][^\W\d_]+)?")  # one word or two


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
    labels : tuple of (str, int)
        Labels and their rows, the most frequent first.
    shares : (float, float, float)
        Shares of training, validation and test rows.
    splits : mapping of str to int
        Rows of each split; empty where a column tells them.
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
    labels: tuple[tuple[str, int], ...]
    shares: Shares
    splits: dict[str, int]
    near_duplicates: GroupCount
    notices: tuple[str, ...]


def draft_task(
    data: Path,
    *,
    text: str | None = None,
    label: str | None = None,
    model: str | None = None,
    ask: Ask | None = None,
) -> TaskDraft:
    """Draft a task file for a data file: columns, labels, splits and prompt.

    Parameters
    ----------
    data : Path
        A file that `read_rows` reads.
    text, label : str, optional
        Names of its columns; found by their content by default.
    model : str, optional
        Name of the model; texts that are too long for the embedded one are warned of.
    ask : callable, optional
        Asks the user where several columns fit.

    Raises
    ------
    DataError
        A row is broken, no column fits, there are fewer than two labels or too many, or the file's name is not UTF-8.
    """
    _check_path(data)
    is_csv = data.suffix.lower() in {".csv", ".tsv"}
    csv = _csv_format(data, {text, label} - {None}) if is_csv else ANY_CSV
    found = find_columns(_first_columns(data, csv), path=data, text=text, label=label, ask=ask)
    checks = RowChecks(longest=_EMBEDDED_BYTES if (model or "local/").startswith("local/") else None)
    for row in read_rows(data, csv=csv):
        checks.add(row.line, _cell(row, found.text), _label(row, found.label))
        if len(checks.labels) > _MAX_LABELS:
            break
    _check_labels(checks, found.label, data)
    if found.split is not None and checks.without_answer + checks.without_text:
        found = replace(found, split=None)  # a split column needs a text and an answer in every row
    labelled = checks.labels.total()
    spelling = csv_spelling(data, csv) if is_csv else None
    shares = _SHARES
    if labelled > _SMALL_FILE_ROWS:
        validation, test = (round(count / labelled, 4) for count in (_VALIDATION_ROWS, _TEST_ROWS))
        shares = (round(1 - validation - test, 4), validation, test)
    splits, groups = _splits_and_groups(data, csv, found, shares)
    has_split_column = found.split is not None
    group_notices = groups.notices(has_split_column=has_split_column)
    return TaskDraft(
        data=data,
        csv=csv,
        separator=None if spelling is None else spelling.separator,
        encoding=None if spelling is None else spelling.encoding.removesuffix("-sig"),
        columns=found,
        rows=checks.rows,
        labels=tuple(checks.label_counts()),
        shares=shares,
        splits={} if has_split_column else splits,
        near_duplicates=GroupCount() if has_split_column else groups.together,
        notices=(*found.notices, *checks.notices(), *group_notices),
    )


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


def _label(row: Row, name: str) -> str:
    value = label_text(row.values.get(name))
    return encodable_text(value, row) if isinstance(value, str) else _cell(row, name)


def _cell(row: Row, name: str) -> str:
    value = row.values.get(name)
    if value is not None and not isinstance(value, str):
        raise row.expected("text", name)
    return encodable_text(value or "", row)


def _check_labels(checks: RowChecks, column: str, data: Path) -> None:
    """Raise DataError if there are fewer than two labels, or too many for the rows."""
    count, rows = len(checks.labels), checks.labels.total()
    if count < 2:
        got = repr(next(iter(checks.labels), ""))[:60] if count else "no answer at all"
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


def _splits_and_groups(
    data: Path, csv: CsvFormat, found: FoundColumns, shares: Shares
) -> tuple[dict[str, int], GroupChecks]:
    """Return the rows of each split and the near-duplicates of a file."""

    def labelled() -> Iterator[tuple[int, str, str]]:
        for row in read_rows(data, csv=csv):
            text, answer = _cell(row, found.text), _label(row, found.label)
            if text.strip() and answer.strip():
                yield row.line, text, answer

    rule = split_rule(((text, answer) for _, text, answer in labelled()), shares)
    groups, sizes = GroupChecks(groups=rule.groups), Counter[int]()
    for line, text, answer in labelled():
        groups.add(line, text, answer)
        sizes[rule.part(text, answer)] += 1
    return {split: sizes[number] for number, split in enumerate(SPLITS)}, groups


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
    columns = draft.columns
    file = Path(os.path.relpath(draft.data.resolve(), out.resolve())).as_posix()
    yield f"name = {_toml(draft.data.stem)}"
    yield f"prompt = {_toml(prompt_of(draft))}  # calibrant optimize looks for a better one"
    yield 'field = "label"  # where the label stands in the answer: {"label": "..."}'
    yield "labels = ["
    yield from (f"    {_toml(name)},  # {count:,} rows" for name, count in draft.labels)
    yield "]"
    yield ""
    yield "[data]"
    yield f"file = {_toml(file)}  # relative to this file"
    yield f"input_column = {_toml(columns.text)}"
    yield f"answer_column = {_toml(columns.label)}"
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


def prompt_of(draft: TaskDraft) -> str:
    """Return the first prompt of a task, made of the columns' names and the labels.

    It shows no label as an example of an answer, as small models would copy it.
    """
    text, label = draft.columns.text.strip().lower(), draft.columns.label.strip()
    text = text if text in _NOUNS else "text"
    label = label.replace("_", " ").lower() if _NOUN.fullmatch(label) and len(label) <= 40 else "label"
    names = [name for name, _ in draft.labels]
    if any("," in name for name in names):  # else nobody could tell where one ends
        names = [json.dumps(name, ensure_ascii=False) for name in names]
    prompt = f"Classify the following {text}: choose the {label} that fits it best."
    if len(names) <= _LISTED_LABELS:
        prompt += f" The {label} is one of: {', '.join(names)}."
    return prompt


def _toml(text: str) -> str:
    """Return a text as a TOML string, which differs from JSON's in the character DEL alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
