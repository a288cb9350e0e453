"""Labelled rows and the files they come from: JSON Lines, CSV and Parquet."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import decoding_problem, without_doubles

MAX_ROW_BYTES = 1_000_000
"""Longest row accepted, in bytes: no model reads more, and it is usually a missing line break."""

MAX_RUN_ROW_BYTES = 64 * MAX_ROW_BYTES
"""Longest row of a file that calibrant wrote about such rows, in bytes.

JSON takes up to six bytes for one of the text (``\\u0001``); beside it stand the answer and a probability for each of
up to thousands of labels, so what was accepted and paid for is never refused here.
"""

_SPLITS = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}

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

    def __post_init__(self) -> None:
        if not isinstance(self.input, str):
            raise DataError(f"Expected the input of an example as text, got {self.input!r:.80}.")
        answer: object = self.answer
        if not isinstance(answer, str):
            remedy = (
                ": write its JSON text, as json.dumps does" if isinstance(answer, list | tuple | dict) else ""
            )
            raise DataError(f"Expected an answer as text, got {answer!r:.80}{remedy}.")

    @property
    def text(self) -> str | TextWithContext:
        """Input of the example, with its context if it has one."""
        return self.input if self.context is None else TextWithContext(self.input, self.context)


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
    """

    input: str = "input"
    answer: str = "answer"
    additional_context: str = "additional_context"
    split: str = "split"
    fields: tuple[tuple[str, str], ...] = ()
    multi_label: bool = False
    separator: str = ";"
    context: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """Raw record of a data file, with the line it starts on (one-based)."""

    values: Mapping[str, Any]
    path: Path
    line: int

    def error(self, message: str) -> DataError:
        """Return a `DataError` with the file and the line."""
        return DataError(message, path=self.path, line=self.line)

    def expected(self, what: str, column: str) -> DataError:
        """Return the error for a column with an unexpected value."""
        value = self.values.get(column)
        shown = "nothing" if value is None else "an empty text" if value == "" else f"{value!r:.60}"
        known = ", ".join(map(str, self.values)) or "none"
        return self.error(f"expected {what} in {column!r}, got {shown} (columns here: {known:.200}).")


def read_rows(path: Path, *, max_row_bytes: int = MAX_ROW_BYTES) -> Iterator[Row]:
    """Yield the records of `path` one by one, without loading the whole file.

    Parameters
    ----------
    path : Path
        ``.jsonl``/``.ndjson``, ``.csv`` or ``.parquet``.
    max_row_bytes : int, default `MAX_ROW_BYTES`
        Longest row accepted; `MAX_RUN_ROW_BYTES` for files of calibrant's own.

    Raises
    ------
    DataError
        The file is missing, empty, of an unknown kind or not UTF-8; a column or key is there twice; a row is broken
        or too long.
    """
    readers = {".jsonl": _read_jsonl, ".ndjson": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        msg = f"expected a file ending in {', '.join(readers)}, got {path.suffix or 'no ending'!r}."
        raise DataError(msg, path=path)
    if not path.is_file():
        raise DataError("no such file: check the path (those in a task file are relative to it).", path=path)
    empty = True
    for row in reader(path, max_row_bytes):
        empty = False
        yield row
    if empty:
        raise DataError("expected at least one row, got an empty file.", path=path)


def _read_jsonl(path: Path, most: int) -> Iterator[Row]:
    with path.open("rb") as file:
        for line, text in _lines(file, path, most):
            try:
                value = json.loads(text.strip(), object_pairs_hook=without_doubles)
            except (ValueError, RecursionError) as error:
                msg = f"expected one JSON object per line, got broken JSON ({error})."
                raise DataError(msg, path=path, line=line) from error
            if not isinstance(value, dict):
                msg = f'expected a JSON object, got {type(value).__name__}: write {{"input": ..., "answer": ...}}.'
                raise DataError(msg, path=path, line=line)
            yield Row(values=value, path=path, line=line)


def _lines(file: BinaryIO, path: Path, most: int) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines with their numbers, without line ends."""
    line = 0
    while data := file.readline(most + 1):
        line += 1
        _check_size(len(data), most, path, line)
        text = _decode(data, path, line).rstrip("\r\n")
        if text.strip():
            yield line, text


def _check_size(size: int, most: int, path: Path, line: int) -> None:
    if size > most:
        msg = f"expected a row of at most {most:,} bytes, got a longer one: split or shorten it."
        raise DataError(msg, path=path, line=line)


def _decode(data: bytes, path: Path, line: int) -> str:
    try:
        return data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        _, problem = decoding_problem(error)
        raise DataError(f"{problem}: save the file as UTF-8.", path=path, line=line) from error


def _read_csv(path: Path, most: int) -> Iterator[Row]:
    header: list[str] | None = None
    for line, record in _csv_records(path, most):
        if header is None:
            header = record
            _check_columns(header, path, line)
        elif len(record) != len(header):
            msg = f"expected {len(header)} columns as in the header, got {len(record)}: quote texts with commas."
            raise DataError(msg, path=path, line=line)
        else:
            yield Row(values=dict(zip(header, record, strict=True)), path=path, line=line)


def _check_columns(names: Sequence[str], path: Path, line: int | None) -> None:
    """Raise DataError if a column name is repeated; columns without a name are ignored."""
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice is not None:
        raise DataError(
            f"expected each column once, got {twice!r:.80} {Counter(names)[twice]} times: rename or remove one.",
            path=path,
            line=line,
        )


def _csv_records(path: Path, most: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank records, each with the number of the line it starts on."""
    # The module's own limit for a field, 131,072, is process-wide and below ours.
    csv.field_size_limit(max(csv.field_size_limit(), most))
    start = 1
    with path.open("rb") as file:

        def lines() -> Iterator[str]:
            number = size = 0
            while data := file.readline(most + 1):
                number += 1
                size = len(data) if number == start else size + len(data)
                _check_size(size, most, path, start)
                yield _decode(data, path, number)

        reader = csv.reader(lines(), strict=True)
        try:
            for record in reader:
                if record:
                    yield start, record
                start = reader.line_num + 1
        except csv.Error as error:
            msg = (
                f"broken CSV in the record that starts here: {error}: close its quotes, double those inside."
            )
            raise DataError(msg, path=path, line=start) from error


def _read_parquet(path: Path, most: int) -> Iterator[Row]:
    try:
        from pyarrow import parquet  # noqa: PLC0415  (optional)
    except ImportError as error:
        from calibrant.core._installation import install_command  # noqa: PLC0415 (only when it is missing)

        raise ConfigurationError(f"{path}: Parquet files need pyarrow: {install_command('data')}.") from error
    try:
        file = parquet.ParquetFile(path)
        _check_columns(file.schema_arrow.names, path, None)
        rows = (values for batch in file.iter_batches(batch_size=1024) for values in batch.to_pylist())
        for line, values in enumerate(rows, 1):
            _check_size(sum(len(v) for v in values.values() if isinstance(v, str)), most, path, line)
            yield Row(values=values, path=path, line=line)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"not a readable Parquet file ({error}): write it again.", path=path) from error


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
    path: Path, *, columns: Columns = Columns(), split: str | None = None
) -> Iterator[tuple[Example, int]]:
    """Yield the examples of `path` one by one with their line numbers.

    Parameters
    ----------
    path : Path
        The data file.
    columns : Columns
        Which columns hold what.
    split : {"train", "validation", "test"}, optional
        Keep only rows of this split; ``val`` and ``dev`` in the file mean ``validation``.

    Raises
    ------
    DataError
        A row lacks a text or an answer, its split is unknown, or as `read_rows`.
    """
    for row in read_rows(path):
        if split is not None and _split(row, columns.split) != split:
            continue
        example = Example(
            input=_text(row, columns.input),
            answer=_answer(row, columns),
            additional_context=_additional(row, columns.additional_context),
            context=_context(row, columns.context),
        )
        yield example, row.line


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

    def examples(self) -> Iterator[tuple[Example, int]]:
        """Yield the examples with their line numbers; see `iter_examples`."""
        return iter_examples(self.path, columns=self.columns, split=self.split)


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
        rows = [(_text(row, columns.input), _context(row, columns.context)) for row in read_rows(path)]
        return [text if context is None else TextWithContext(text, context) for text, context in rows]
    if columns.context is not None:
        raise DataError(
            f"expected a data file with a column {columns.context!r}, got lines of text.", path=path
        )
    if not path.is_file():
        raise DataError("no such file: check the path.", path=path)
    with path.open("rb") as file:
        found: list[str | TextWithContext] = [text for _, text in _lines(file, path, MAX_ROW_BYTES)]
    if not found:
        raise DataError("expected one text per line, got an empty file.", path=path)
    return found


def _text(row: Row, column: str) -> str:
    value = row.values.get(column)
    if not isinstance(value, str) or not value.strip():
        raise row.expected("text", column)
    return _encodable(value, row)


def _answer(row: Row, columns: Columns) -> str:
    """Return the true answer: a label, or JSON text for several labels."""
    if not columns.fields and not columns.multi_label:
        return _text(row, columns.answer)
    own = dict(columns.fields)
    whole = columns.answer in row.values and columns.answer not in own.values()
    if own and (not whole or all(row.values.get(column) is not None for column in own.values())):
        return json.dumps({name: _text(row, column) for name, column in own.items()}, ensure_ascii=False)
    value = row.values.get(columns.answer)
    if isinstance(value, str):
        answer = _answer_text(value.strip(), row, columns)
    else:
        try:
            answer = json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list) else ""
        except (TypeError, ValueError) as error:
            problem = f"expected labels as text, got {value!r:.60} ({error})."
            raise row.error(f"{columns.answer!r}: {problem}") from error
    if not answer:
        wanted = "labels, or [] where there are none," if columns.multi_label else "an object of labels"
        raise row.expected(wanted, columns.answer)
    return _encodable(answer, row)


def _answer_text(text: str, row: Row, columns: Columns) -> str:
    """Return the text of an answer with several labels as JSON; separated labels become an array."""
    if columns.multi_label and text and not text.startswith("["):
        return json.dumps([label.strip() for label in text.split(columns.separator)], ensure_ascii=False)
    try:
        json.loads(text, object_pairs_hook=without_doubles)
    except (json.JSONDecodeError, RecursionError):
        pass  # the check of the answer names what is expected
    except ValueError as error:
        problem = f"expected each field once, but {error}: leave one out."
        raise row.error(f"{columns.answer!r}: {problem}") from error
    return text


def _split(row: Row, column: str) -> str:
    value = _text(row, column)
    split = _SPLITS.get(value.strip().lower())
    if split is None:
        raise row.error(f"expected {column!r} to be one of {', '.join(_SPLITS)}, got {value!r:.40}.")
    return split


def _context(row: Row, column: str | None) -> str | None:
    """Return the context of a row, None if its cell is empty; the column itself must exist."""
    if column is None or (column in row.values and row.values[column] in (None, "")):
        return None
    return _text(row, column)


def _additional(row: Row, column: str) -> Mapping[str, str]:
    value = row.values.get(column)
    if value in (None, "", {}):
        return _EMPTY
    if isinstance(value, str):
        value = {"context": value}
    if not isinstance(value, Mapping):
        raise row.error(f"expected {column!r} to be text or an object, got {type(value).__name__}.")
    return {_encodable(str(key), row): _encodable(str(item), row) for key, item in value.items()}


def _encodable(text: str, row: Row) -> str:
    """Return `text`; raise DataError if it holds a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise row.error(
            f"expected characters, got \\u{ord(text[error.start]):04x}, half of a surrogate pair: correct the text."
        ) from error
    return text
