"""Labelled rows and the files they come from: JSON Lines, CSV, Parquet and Excel."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from calibrant.core._errors import DataError
from calibrant.core._files import json_text, without_doubles
from calibrant.core._labels import label_text
from calibrant.core._table_files import (
    ANY_CSV,
    CsvFormat,
    read_csv,
    read_excel,
    read_json_lines,
    read_parquet,
    text_lines,
)

if TYPE_CHECKING:
    from calibrant.core._splits import SplitRule

_LOG = logging.getLogger("calibrant")

MAX_ROW_BYTES = 1_000_000
"""Longest row accepted, in bytes: no model reads more, and it is usually a missing line break."""

MAX_RUN_ROW_BYTES = 64 * MAX_ROW_BYTES
"""Longest row of a file that calibrant wrote about such rows, in bytes.

JSON takes up to six bytes for one of the text (``\\u0001``); beside it stand the answer and a probability for each of
up to thousands of labels, so what was accepted and paid for is never refused here.
"""

ENDINGS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".xlsx")
"""Endings of the files that `read_rows` reads."""

_SPLITS = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
SPLIT_NAMES = frozenset(_SPLITS)
"""What a split may be called in a file."""

_UNANSWERED = ": write answers, or name their column under [data]; calibrant label labels rows without any"
_EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class TextWithContext:
    """Text to classify, with its source context for the verifier of a cascade.

    Attributes
    ----------
    text : str
        The text.
    context : str or None
        Source text of the answer.

    Examples
    --------
    >>> from calibrant.core import Example
    >>> Example(input="Was the fee charged twice?", answer="yes", context="Statement: fee 4.50, fee 4.50").text
    TextWithContext(text='Was the fee charged twice?', context='Statement: fee 4.50, fee 4.50')
    """

    text: str
    context: str | None = None


@dataclass(frozen=True, kw_only=True)
class Example:
    """One labelled text.

    Attributes
    ----------
    input : str
        The text to classify.
    answer : str
        Its true label; the JSON text of a whole answer where it holds several.
    additional_context : mapping of str to str
        Explanation of the true answer; shown in feedback only.
    context : str or None
        Source text of the answer; shown to a cascade's verifier only.
    source : str or None
        File and line that the row comes from, such as ``rows.csv:77``; for reports alone, and not compared.
    row_id : str or None
        Identifier of the row in its file; for reports alone, and not compared.

    Raises
    ------
    DataError
        Text or answer is something else, such as a list of labels.

    Examples
    --------
    >>> from calibrant.core import Example
    >>> example = Example(input="lunch with Ana", answer="Food", additional_context={"amount": "12.50"})
    >>> example.text, example.answer
    ('lunch with Ana', 'Food')
    """

    input: str
    answer: str
    additional_context: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    context: str | None = None
    source: str | None = field(default=None, compare=False)
    row_id: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.input, str):
            raise DataError(f"Expected the input of an example as text, got {self.input!r:.80}.")
        answer: object = self.answer
        if not isinstance(answer, str):
            remedy = (
                ": write its JSON text, as json.dumps does" if isinstance(answer, list | tuple | dict) else ""
            )
            raise DataError(f"Expected an answer as text, got {answer!r:.80}{remedy}.")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a pickle, which cannot hold the read-only mapping of an example without context."""
        return {**vars(self), "additional_context": dict(self.additional_context)}

    @property
    def text(self) -> str | TextWithContext:
        """Input of the example, with its context if it has one."""
        if self.context is None:
            return self.input
        return TextWithContext(self.input, self.context)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns (CSV, Parquet) or keys (JSON Lines) that hold an example.

    Attributes
    ----------
    input, answer, additional_context, split : str
        The text, its true answer, what else is known of it, and the split it belongs to.
    fields : tuple of (str, str)
        Name and column of every field of an answer that has several; read where a row has them all, or has no column
        `answer`.
    multi_label : bool
        True if an answer holds any number of labels.
    separator : str
        What stands between such labels where they are not given as a JSON array.
    context : str or None
        Source text of the answer, for a cascade's verifier; a row may lack it.
    row_id : str
        Identifier of the row, which reports name; a row may lack it.
    csv : CsvFormat
        What is known of the format of CSV files.

    Examples
    --------
    >>> Columns(input="text", answer="category").answer
    'category'
    """

    input: str = "input"
    answer: str = "answer"
    additional_context: str = "additional_context"
    split: str = "split"
    fields: tuple[tuple[str, str], ...] = ()
    multi_label: bool = False
    separator: str = ";"
    context: str | None = None
    row_id: str = "id"
    csv: CsvFormat = ANY_CSV


@dataclass(frozen=True, kw_only=True)
class Row:
    """Raw record of a data file, with the line it starts on (one-based)."""

    values: Mapping[str, Any]
    path: Path
    line: int

    def error(self, message: str) -> DataError:
        """Return a `DataError` with the file and the line."""
        return DataError(message, path=self.path, line=self.line)

    def expected(self, what: str, column: str, remedy: str = "") -> DataError:
        """Return the error for a column with an unexpected value."""
        value = self.values.get(column)
        shown = "nothing" if value is None else "an empty text" if value == "" else f"{value!r:.60}"
        known = ", ".join(map(str, self.values)) or "none"
        return self.error(f"expected {what} in {column!r}, got {shown} (columns here: {known:.200}){remedy}.")


def read_rows(
    path: Path, *, max_row_bytes: int = MAX_ROW_BYTES, csv: CsvFormat = ANY_CSV, column: str | None = None
) -> Iterator[Row]:
    """Yield the records of `path` one by one, without loading the whole file.

    Parameters
    ----------
    path : Path
        ``.jsonl``/``.ndjson``, ``.csv``, ``.tsv``, ``.parquet`` or ``.xlsx``.
    max_row_bytes : int, default `MAX_ROW_BYTES`
        Longest row accepted; `MAX_RUN_ROW_BYTES` for files of calibrant's own.
    csv : CsvFormat
        What is known of the format of a CSV file; the rest is found.
    column : str, optional
        A column that is expected; a CSV file is read so that it has it, if possible.

    Raises
    ------
    DataError
        The file is missing, empty, of an unknown kind or of an unknown encoding; a column or key is there twice; a
        row is broken or too long.
    """
    suffix = path.suffix.lower()
    if suffix not in ENDINGS:
        raise DataError(
            f"expected a file ending in {', '.join(ENDINGS)}, got {path.suffix or 'no ending'!r}.", path=path
        )
    if not path.is_file():
        raise DataError("no such file: check the path (those in a task file are relative to it).", path=path)
    records: Iterator[tuple[int, Mapping[str, Any]]]
    if suffix in {".csv", ".tsv"}:
        records = read_csv(path, max_row_bytes, csv, column)
    elif suffix in {".jsonl", ".ndjson"}:
        records = read_json_lines(path, max_row_bytes)
    else:
        reader = read_parquet if suffix == ".parquet" else read_excel
        records = reader(path, max_row_bytes)
    empty = True
    for line, values in records:
        empty = False
        yield Row(values=values, path=path, line=line)
    if empty:
        raise DataError("expected at least one row, got an empty file.", path=path)


def read_examples(
    path: Path, *, columns: Columns = Columns(), split: str | None = None
) -> list[tuple[Example, int]]:
    """Read all examples of `path` with their line numbers; see `iter_examples`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.core import read_examples
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     for line in ("input,answer", "lunch,Food", "May rent,Rent"):
    ...         print(line, file=file, flush=True)
    ...     [(example.answer, line) for example, line in read_examples(Path(file.name))]
    [('Food', 2), ('Rent', 3)]
    """
    return list(iter_examples(path, columns=columns, split=split))


def iter_examples(
    path: Path,
    *,
    columns: Columns,
    split: str | None,
    shares: tuple[float, float, float] | None = None,
) -> Iterator[tuple[Example, int]]:
    """Yield the examples of `path` one by one with their line numbers.

    Parameters
    ----------
    path : Path
        The data file.
    columns : Columns
        Which columns hold what.
    split : {"train", "validation", "test"} or None
        Keep only rows of this split; ``val`` and ``dev`` in the file mean ``validation``.
    shares : (float, float, float), optional
        Shares of the three splits, which then need no column. Rows without text or answer are in none of them.

    Raises
    ------
    DataError
        A row lacks a text or an answer, its split is unknown, or as `read_rows`.
    """
    part = None
    if split is not None:
        part = _parts(path, columns, shares)
    for row in read_rows(path, csv=columns.csv, column=columns.input):
        if part is not None and part(row) != split:
            continue
        example = Example(
            input=_text(row, columns.input),
            answer=answer_of(row, columns),
            additional_context=_additional(row, columns.additional_context),
            context=_context(row, columns.context),
            source=f"{row.path.name}:{row.line}",
            row_id=row_id_of(row, columns.row_id),
        )
        yield example, row.line


def _parts(
    path: Path, columns: Columns, shares: tuple[float, float, float] | None
) -> Callable[[Row], str | None]:
    """Return a function that tells the split of a row, or None where it is in none."""
    if shares is None:
        return lambda row: _split(row, columns.split)
    version = None
    if path.is_file():
        version = (path.stat().st_size, path.stat().st_mtime_ns)
    rule = _split_rule(path, columns, shares, version)

    def part(row: Row) -> str | None:
        if not is_labelled(row, columns):
            return None
        number = rule.part(_text(row, columns.input), answer_of(row, columns))
        return ("train", "validation", "test")[number]

    return part


@functools.lru_cache(maxsize=8)
def _split_rule(
    path: Path,
    columns: Columns,
    shares: tuple[float, float, float],
    version: tuple[int, int] | None,  # noqa: ARG001 (part of the cache's key)
) -> SplitRule:
    """Return the rule that divides a file's rows by shares; say how many rows are left out."""
    from calibrant.core._splits import split_rule  # noqa: PLC0415 (few tasks have shares)

    left_out: list[Row] = []
    count = rows = 0

    def labelled() -> Iterator[tuple[str, str]]:
        nonlocal count, rows
        for row in read_rows(path, csv=columns.csv, column=columns.input):
            if is_labelled(row, columns):
                rows += 1
                yield _text(row, columns.input), answer_of(row, columns)
            else:
                count += 1
                left_out[:] = left_out or [row]

    rule = split_rule(labelled(), shares)
    if not rows:
        _text(left_out[0], columns.input)
        raise left_out[0].expected("text", columns.answer, _UNANSWERED)
    if count:
        _LOG.warning(
            "%s: %d of %d rows have no text or no answer: no split has them.",
            os.path.normpath(path),
            count,
            count + rows,
        )
    return rule


def is_labelled(row: Row, columns: Columns) -> bool:
    """Return True if a row has a text and an answer, or a part of one."""
    names = (columns.answer, *(column for _, column in columns.fields))
    return not _is_blank(row, columns.input) and not all(_is_blank(row, name) for name in names)


def _is_blank(row: Row, column: str) -> bool:
    value = row.values.get(column)
    return value is None or (isinstance(value, str) and not value.strip())


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """File and columns of labelled rows.

    Attributes
    ----------
    path : Path
        The data file.
    columns : Columns
        Which columns hold what.
    split : str or None
        Only rows of this split count; None takes all.
    shares : (float, float, float) or None
        Shares of training, validation and test rows in the file; None reads the split from a column.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.core import DataSource
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     for line in ("input,answer,split", "lunch,Food,train", "May rent,Rent,test"):
    ...         print(line, file=file, flush=True)
    ...     [example.input for example, line in DataSource(path=Path(file.name), split="test").examples()]
    ['May rent']
    """

    path: Path
    columns: Columns = Columns()
    split: str | None = None
    shares: tuple[float, float, float] | None = None

    def examples(self) -> Iterator[tuple[Example, int]]:
        """Yield the examples with their line numbers; see `iter_examples`."""
        return iter_examples(self.path, columns=self.columns, split=self.split, shares=self.shares)


def read_texts(path: Path, *, columns: Columns = Columns()) -> list[str | TextWithContext]:
    """Read unlabelled texts: the non-blank lines of a ``.txt`` file, or a column of a data file.

    Parameters
    ----------
    path : Path
        ``.txt``, or a file `read_rows` reads.
    columns : Columns
        Which columns hold the text, and its context, if any.

    Raises
    ------
    DataError
        A row lacks a text, or as `read_rows`.
    """
    if path.suffix.lower() != ".txt":
        rows = [
            (_text(row, columns.input), _context(row, columns.context))
            for row in read_rows(path, csv=columns.csv, column=columns.input)
        ]
        return [text if context is None else TextWithContext(text, context) for text, context in rows]
    if columns.context is not None:
        raise DataError(
            f"expected a data file with a column {columns.context!r}, got lines of text.", path=path
        )
    if not path.is_file():
        raise DataError("no such file: check the path.", path=path)
    with path.open("rb") as file:
        found: list[str | TextWithContext] = [text for _, text in text_lines(file, path, MAX_ROW_BYTES)]
    if not found:
        raise DataError("expected one text per line, got an empty file.", path=path)
    return found


def _text(row: Row, column: str, remedy: str = ": name its column under [data]") -> str:
    value = row.values.get(column)
    if not isinstance(value, str) or not value.strip():
        raise row.expected("text", column, "" if column in row.values else remedy)
    return encodable_text(value, row)


def _label(row: Row, column: str) -> str:
    value = label_text(row.values.get(column))
    if not isinstance(value, str) or not value.strip():
        raise row.expected("text", column, _UNANSWERED if _is_blank(row, column) else "")
    return encodable_text(value, row)


def answer_of(row: Row, columns: Columns) -> str:
    """Return the true answer: a label, or JSON text for several labels.

    Raises
    ------
    DataError
        There is none, or it is something else.
    """
    if not columns.fields and not columns.multi_label:
        return _label(row, columns.answer)
    own = dict(columns.fields)
    whole = columns.answer in row.values and columns.answer not in own.values()
    has_all = all(row.values.get(column) is not None for column in own.values())
    if own and (has_all or not whole):
        return json_text({name: _label(row, column) for name, column in own.items()})
    value = row.values.get(columns.answer)
    if isinstance(value, str):
        answer = _answer_text(value.strip(), row, columns)
    else:
        try:
            answer = ""
            if isinstance(value, Mapping | list):
                answer = json_text(value)
        except (TypeError, ValueError) as error:
            problem = f"expected labels as text, got {value!r:.60} ({error})."
            raise row.error(f"{columns.answer!r}: {problem}") from error
    if not answer:
        wanted = "labels, or [] where there are none," if columns.multi_label else "an object of labels"
        raise row.expected(wanted, columns.answer, _UNANSWERED if _is_blank(row, columns.answer) else "")
    return encodable_text(answer, row)


def _answer_text(text: str, row: Row, columns: Columns) -> str:
    """Return the text of an answer with several labels as JSON; separated labels become an array."""
    if columns.multi_label and text and not text.startswith("["):
        return json_text([label.strip() for label in text.split(columns.separator)])
    try:
        json.loads(text, object_pairs_hook=without_doubles)
    except (json.JSONDecodeError, RecursionError):
        pass  # the check of the answer names what is expected
    except ValueError as error:
        problem = f"expected each field once, but {error}: leave one out."
        raise row.error(f"{columns.answer!r}: {problem}") from error
    return text


def _split(row: Row, column: str) -> str:
    value = _text(row, column, ": write split = [0.4, 0.2, 0.4] under [data], or its column as split_column")
    split = _SPLITS.get(value.strip().lower())
    if split is None:
        raise row.error(f"expected {column!r} to be one of {', '.join(_SPLITS)}, got {value!r:.40}.")
    return split


def _context(row: Row, column: str | None) -> str | None:
    """Return the context of a row, None if its cell is empty; the column itself must exist."""
    if column is None or (column in row.values and row.values[column] in (None, "")):
        return None
    return _text(row, column)


def row_id_of(row: Row, column: str) -> str | None:
    """Return the identifier of a row, None if there is none."""
    value = row.values.get(column)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value).strip() or None


def _additional(row: Row, column: str) -> Mapping[str, str]:
    value = row.values.get(column)
    if value in (None, "", {}):
        return _EMPTY
    if isinstance(value, str):
        value = {"context": value}
    if not isinstance(value, Mapping):
        raise row.error(f"expected {column!r} to be text or an object, got {type(value).__name__}.")
    texts = {str(key): str(item) for key, item in value.items()}
    return {encodable_text(key, row): encodable_text(item, row) for key, item in texts.items()}


def encodable_text(text: str, row: Row) -> str:
    """Return `text`; raise DataError if it holds a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise row.error(
            f"expected characters, got \\u{ord(text[error.start]):04x}, half of a surrogate pair: correct the text."
        ) from error
    return text
