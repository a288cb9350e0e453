"""Files of rows, read record by record: JSON Lines, CSV with any separator and encoding, Parquet and Excel."""

from __future__ import annotations

import codecs
import contextlib
import csv
import datetime as dt
import functools
import io
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import decoding_problem, without_doubles
from calibrant.core._reported import counted

SEPARATORS: Final = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_NONE: Final = "\ud800"  # cuts nothing, as no decoded text holds it

_SURROGATE: Final = re.compile("[\ud800-\udfff]").search

_LOG = logging.getLogger("calibrant")
_SAMPLE_BYTES: Final = 65_536
_SAMPLE_RECORDS: Final = 20
_WINDOWS: Final = "windows-1252"
_EXCEL_LINE: Final = ["sep=", ""]  # a first line that names the separator for Excel, cut at this separator
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
# What ends the header in files of old Macs.
_BARE_RETURN: Final = re.compile(r'(?:[^"\r\n]|"[^"]*")*\r(?!\n)')


@dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """Format of a CSV file.

    Attributes
    ----------
    encoding : str or None
        Python's name of its encoding; None finds it: UTF-8, UTF-16, or else Windows-1252.
    separator : str or None
        What stands between columns; None finds it among comma, semicolon, tab and vertical bar.
    header : bool
        False if the first row is data; columns are then named ``1``, ``2`` and so on.

    Examples
    --------
    >>> CsvFormat(separator=";", header=False).separator
    ';'
    """

    encoding: str | None = None
    separator: str | None = None
    header: bool = True


ANY_CSV: Final = CsvFormat()
"""Format that is found by reading the file."""


@dataclass(frozen=True, kw_only=True)
class CsvSpelling:
    """Form in which a CSV file is written, so that the program of the input opens it.

    Attributes
    ----------
    separator : str, default ","
        What stands between columns.
    encoding : str, default "utf-8"
        Python's name of its encoding; ``utf-8-sig`` and ``utf-16`` begin with a byte-order mark.
    line_end : str
        What ends a row; a line feed by default.
    names_separator : bool, default False
        True if a first line such as ``sep=;`` names the separator for Excel.
    """

    separator: str = ","
    encoding: str = "utf-8"
    line_end: str = "\n"
    names_separator: bool = False


def csv_spelling(path: Path, form: CsvFormat = ANY_CSV, *, column: str | None = None) -> CsvSpelling:
    """Return the separator, encoding, byte-order mark and line end of a CSV file, as `read_csv` reads it.

    Parameters
    ----------
    path : Path
        The file, which is read once.
    form : CsvFormat
        What is known of its format.
    column : str, optional
        A column that its header should have; see `found_separator`.
    """
    encoding = form.encoding or _found_encoding(path)
    separator = form.separator or found_separator(path, encoding, column=column if form.header else None)
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        first = last = file.readline(_SAMPLE_BYTES).removeprefix("\ufeff")
        n_quotes = first.count('"')
        while n_quotes % 2 and last:  # a name in quotes may hold a line end
            last = file.readline(_SAMPLE_BYTES)
            n_quotes += last.count('"')
    with path.open("rb") as file:
        has_mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    if has_mark and codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"
    return CsvSpelling(
        separator="," if separator == _NONE else separator,
        encoding=encoding,
        line_end=_line_end(last or first),
        names_separator=first.startswith("sep="),
    )


def _line_end(line: str) -> str:
    for end in ("\r\n", "\r"):
        if line.endswith(end):
            return end
    return "\n"


def _found_encoding(path: Path) -> str:
    """Return the encoding in which a CSV file is read if none is named."""
    with path.open("rb") as file:
        _, wide, _ = _decoded_sample(file.read(_SAMPLE_BYTES), None)
        if wide is not None:
            return wide
        file.seek(0)
        for line in file:
            try:
                line.decode()
            except UnicodeDecodeError:
                return _WINDOWS
    return "utf-8"


def _wide_encoding(data: bytes) -> str | None:
    """Return the kind of UTF-16 that a file begins in; None of others."""
    if data.startswith(_UTF16_MARKS):
        return "utf-16"
    if data.startswith(b"\0"):
        return "utf-16-be"
    if data[1:2] == b"\0":
        return "utf-16-le"
    return None


def _decoded_sample(data: bytes, encoding: str | None) -> tuple[str, str | None, str]:
    """Return the beginning of a CSV file with line feeds as line ends, its encoding, and what does end its lines.

    An encoding that is not known is found where it is UTF-16, by its mark or by the zero beside an ASCII character.
    """
    if encoding is None:
        encoding = _wide_encoding(data)
    text = data.decode(encoding or "utf-8-sig", "replace")
    line_end = "\n"
    if _BARE_RETURN.match(text):
        line_end = "\r"
        text = text.replace("\r", "\n")
    if len(data) == _SAMPLE_BYTES:
        text = text[: text.rfind("\n") + 1]  # the last record is cut
    return text, encoding, line_end


def read_json_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file, each with the number of its line.

    Parameters
    ----------
    path : Path
        The file.
    max_bytes : int
        Longest line accepted, in bytes.

    Raises
    ------
    DataError
        A line is too long, not UTF-8, or not one JSON object.
    """
    with path.open("rb") as file:
        for line, text in text_lines(file, path, max_bytes):
            try:
                value = json.loads(text.strip(), object_pairs_hook=without_doubles)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"expected one JSON object per line, got broken JSON ({error}).", path=path, line=line
                ) from error
            if "\\u" in text:
                _check_names(value, path, line)
            if not isinstance(value, dict):
                raise DataError(
                    f'expected a JSON object, got {type(value).__name__}: write {{"input": ..., "answer": ...}}.',
                    path=path,
                    line=line,
                )
            yield line, value


def _check_names(value: object, path: Path, line: int) -> None:
    """Raise DataError for the name of a column that holds a lone surrogate, which no file and no terminal takes."""
    for name in value if isinstance(value, dict) else ():
        if _SURROGATE(name):
            raise DataError(
                f"expected characters in the name of a column, got half of a surrogate pair in {name!a:.80}: correct "
                "the name.",
                path=path,
                line=line,
            )


def text_lines(file: BinaryIO, path: Path, max_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of every non-blank line, without its line end."""
    line = 0
    while data := file.readline(max_bytes + 1):
        line += 1
        check_size(len(data), max_bytes, path, line)
        text = _decode(data, path, line).rstrip("\r\n")
        if text.strip():
            yield line, text


def _decode(data: bytes, path: Path, line: int) -> str:
    if line == 1 and _wide_encoding(data) is not None:
        raise DataError("expected UTF-8 text, got UTF-16: save the file as UTF-8.", path=path, line=line)
    try:
        return data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        _, problem = decoding_problem(error)
        raise DataError(f"{problem}: save the file as UTF-8.", path=path, line=line) from error


def read_csv(
    path: Path, max_bytes: int, form: CsvFormat, column: str | None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the records of a CSV file, each with the number of the line it starts on.

    Parameters
    ----------
    path : Path
        The file.
    max_bytes : int
        Longest row accepted, in bytes.
    form : CsvFormat
        What is known of its format.
    column : str or None
        A column that its header should have; see `found_separator`.

    Raises
    ------
    DataError
        A record is broken, too long or of another width; a column is there twice; a byte cannot be decoded.
    """
    names: list[str] | None = None
    separator = form.separator or found_separator(path, form.encoding, column=column if form.header else None)
    for line, record in _csv_records(path, max_bytes, separator, form.encoding):
        if line == 1 and record == _EXCEL_LINE:
            continue
        if names is None:
            if form.header:
                names = named_columns(record, path, line)
                continue
            names = [str(number) for number, _ in enumerate(record, 1)]
        if len(record) != len(names):
            first = "the header" if form.header else "the first row"
            quoted = SEPARATORS.get(separator, repr(separator))
            raise DataError(
                f"expected {counted(len(names), 'column')} as in {first}, got {len(record)}: quote texts "
                f"with {quoted}.",
                path=path,
                line=line,
            )
        yield line, dict(zip(names, record, strict=True))


def named_columns(names: Sequence[str], path: Path, line: int | None) -> list[str]:
    """Return the names of the columns; nameless ones after the first are called by place, such as "column 3".

    Raises
    ------
    DataError
        A name is repeated.
    """
    first = names.index("") if "" in names else None
    named = [name if name or place == first else f"column {place + 1}" for place, name in enumerate(names)]
    check_columns(named, path, line)
    return named


def check_columns(names: Sequence[str], path: Path, line: int | None) -> None:
    """Raise DataError if a column name is repeated, other than an empty one."""
    for name, count in Counter(names).items():
        if name and count > 1:
            raise DataError(
                f"expected each column once, got {name!r:.80} {count} times: rename or remove one.",
                path=path,
                line=line,
            )


def check_size(size: int, max_bytes: int, path: Path, line: int) -> None:
    """Raise DataError if a row is longer than `max_bytes`."""
    if size > max_bytes:
        raise DataError(
            f"expected a row of at most {max_bytes:,} bytes, got a longer one: split or shorten it.",
            path=path,
            line=line,
        )


def found_separator(path: Path, encoding: str | None, *, column: str | None) -> str:
    """Return the separator that gives a file's first records the same number of columns.

    A first line such as ``sep=;``, which Excel writes and reads, decides. Else only those count under which the header
    has the named column, if there are any; it may be the only one.

    Parameters
    ----------
    path : Path
        The file; a tab comes before the comma where its name ends in ``.tsv``.
    encoding : str or None
        Its encoding, if that is known.
    column : str or None
        Name of a column.
    """
    with path.open("rb") as file:
        data = file.read(_SAMPLE_BYTES)
    text, _, _ = _decoded_sample(data, encoding)
    named = re.match(r"sep=(.)\r?\n", text)
    if named and named[1] in SEPARATORS:
        return named[1]
    order: Iterable[str] = SEPARATORS
    if path.suffix.lower() == ".tsv":
        order = sorted(SEPARATORS, key="\t,;|".index)
    records = {separator: _first_records(text, separator) for separator in (_NONE, *order)}
    headers = {separator: found[0] for separator, found in records.items() if found}
    possible = [separator for separator, header in headers.items() if column in header]
    if not possible:
        possible = [separator for separator, header in headers.items() if len(header) > 1]
    fitting = []
    for separator in possible:
        widths = set(map(len, records[separator]))
        if len(widths) == 1:
            fitting.append(separator)
    # Of several that cut all records alike, the others stand in texts.
    usual = possible[0] if possible else ","
    return max(fitting, key=lambda separator: len(headers[separator]), default=usual)


def _first_records(text: str, separator: str) -> list[list[str]]:
    """Return the first records, cut at `separator`; none if they are broken."""
    try:
        reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=separator)
        return list(islice(filter(None, reader), _SAMPLE_RECORDS))
    except csv.Error:
        return []


def _csv_records(
    path: Path, max_bytes: int, separator: str, encoding: str | None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-blank records, each with the number of the line it starts on."""
    # The module's own limit for a field, 131,072, is process-wide and below ours.
    csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
    start = 1
    with path.open("rb") as file:

        def lines() -> Iterator[str]:
            size = 0
            for number, (length, text) in enumerate(_csv_lines(file, path, max_bytes, encoding), 1):
                size = length if number == start else size + length
                check_size(size, max_bytes, path, start)
                yield text

        reader = csv.reader(lines(), delimiter=separator, strict=True)
        try:
            for record in reader:
                if record:
                    yield start, record
                start = reader.line_num + 1
        except csv.Error as error:
            problem = str(error).replace(f"'{_NONE}'", "the end of the line")
            raise DataError(
                f"broken CSV in the record that starts here: {problem}: close its quotes, double those inside.",
                path=path,
                line=start,
            ) from error


def _csv_lines(file: BinaryIO, path: Path, max_bytes: int, encoding: str | None) -> Iterator[tuple[int, str]]:
    """Yield every line's length in bytes and its text, which is empty if the line is too long.

    Bytes that are not UTF-8 mean Windows-1252 if nothing but ASCII came before, so that no line was read otherwise.
    """
    _, encoding, line_end = _decoded_sample(file.read(_SAMPLE_BYTES), encoding)
    file.seek(0)
    if encoding is not None and len("\n\n".encode(encoding)) > len("\n".encode(encoding)) + 1:
        yield from _wide_lines(file, path, max_bytes, encoding, line_end)
        return
    codec = encoding or "utf-8"
    is_ascii = True
    lines = iter(functools.partial(file.readline, max_bytes + 1), b"")
    if line_end == "\r":
        lines = _returned_lines(file, max_bytes)
    for number, data in enumerate(lines, 1):
        if len(data) > max_bytes:
            yield len(data), ""
        try:
            text = data.decode(codec)
        except UnicodeDecodeError as error:
            if encoding is not None or not is_ascii or not _is_windows(path):
                raise _undecodable(error, path, number, encoding) from error
            place = os.path.normpath(path)
            _say_once(
                f"{place}: not UTF-8: read as Windows-1252. If letters look wrong, set encoding under [data]."
            )
            codec = _WINDOWS
            text = data.decode(_WINDOWS)
        is_ascii = is_ascii and data.isascii()
        yield len(data), text.removeprefix("\ufeff") if number == 1 else text


def _returned_lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a file that carriage returns end; of one that is too long, its first part."""
    with io.TextIOWrapper(file, encoding="latin-1", newline="\r") as texts:  # a character is a byte
        while text := texts.readline(max_bytes + 1):
            yield text.encode("latin-1")


def _wide_lines(
    file: BinaryIO, path: Path, max_bytes: int, encoding: str, line_end: str
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file whose characters take two bytes or more."""
    number = 1
    with io.TextIOWrapper(file, encoding=encoding, newline=line_end) as texts:
        try:
            while text := texts.readline(max_bytes + 1):
                yield 2 * len(text), text.removeprefix("\ufeff") if number == 1 else text
                number += 1
        except UnicodeError as error:  # of a block of lines: the line is the first that may hold it
            raise _undecodable(error, path, number, encoding) from error


def _undecodable(error: UnicodeError, path: Path, line: int, encoding: str | None) -> DataError:
    if encoding is None and isinstance(error, UnicodeDecodeError):
        _, problem = decoding_problem(error)
        return DataError(
            f"{problem}: save the file as UTF-8, or name its encoding under [data].", path=path, line=line
        )
    return DataError(
        f"expected text in the encoding {encoding!r}, got other bytes ({error}): save the file as UTF-8.",
        path=path,
        line=line,
    )


def _is_windows(path: Path) -> bool:
    """Return True if a file is Windows-1252 and not damaged UTF-8.

    Its bytes are all valid in Windows-1252, and more of them are invalid in UTF-8 than make UTF-8 characters.
    """
    invalid = valid = 0
    with path.open("rb") as file:
        while data := file.readline(_SAMPLE_BYTES):
            if not data.isascii():
                text = data.decode("utf-8", "replace")
                n_replaced = text.count("\ufffd")
                n_ascii = len(text.encode("ascii", "ignore"))
                invalid += n_replaced
                valid += len(text) - n_replaced - n_ascii
                if "\ufffd" in data.decode(_WINDOWS, "replace"):
                    return False
    return invalid > valid


@functools.lru_cache(maxsize=256)
def _say_once(message: str) -> None:
    _LOG.warning("%s", message)


def read_parquet(path: Path, max_characters: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a Parquet file, each with its number.

    Parameters
    ----------
    path : Path
        The file.
    max_characters : int
        Longest row accepted, in characters.

    Raises
    ------
    ConfigurationError
        pyarrow is not installed.
    DataError
        The file cannot be read, a column is there twice, or a row is too long.
    """
    try:
        from pyarrow import parquet  # noqa: PLC0415  (optional)
    except ImportError as error:
        from calibrant.core._installation import install_command  # noqa: PLC0415 (only when it is missing)

        raise ConfigurationError(f"{path}: Parquet files need pyarrow: {install_command('data')}.") from error
    try:
        file = parquet.ParquetFile(path)
        check_columns(file.schema_arrow.names, path, None)
        blocks = (batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
        for line, values in enumerate(chain.from_iterable(blocks), 1):
            size = sum(len(value) for value in values.values() if isinstance(value, str))
            check_size(size, max_characters, path, line)
            yield line, values
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"not a readable Parquet file ({error}): write it again.", path=path) from error


def read_excel(path: Path, max_characters: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the non-blank rows of an Excel file's first sheet as texts, each with its number.

    Parameters
    ----------
    path : Path
        The file.
    max_characters : int
        Longest row accepted, in characters.

    Raises
    ------
    ConfigurationError
        openpyxl is not installed.
    DataError
        The file is not a readable workbook, a column is there twice, or a row is too long.
    """
    for line, values, _ in read_excel_cells(path, max_characters):
        yield line, values


def read_excel_cells(
    path: Path, max_characters: int
) -> Iterator[tuple[int, dict[str, str], tuple[Any, ...]]]:
    """Yield the rows of `read_excel`, each with its openpyxl cells.

    A formula's cell has the value that Excel computed last.
    """
    load_workbook = require_excel(str(path)).load_workbook
    with contextlib.ExitStack() as stack:
        try:
            # Opened here, so that it is closed here: old releases of openpyxl leave parts of it open.
            file = stack.enter_context(path.open("rb"))
            book = load_workbook(file, read_only=True, data_only=True)
        except Exception as error:
            problem = f"not a readable Excel file ({error}): save it again, or as CSV."
            raise DataError(problem, path=path) from error
        names: list[str] | None = None
        for line, cells in enumerate(book.worksheets[0].iter_rows(), 1):
            record = [_text(cell.value) for cell in cells]
            check_size(sum(map(len, record)), max_characters, path, line)
            if not any(record):
                continue
            if names is None:
                names = named_columns(record, path, line)
            else:
                padded = record + [""] * (len(names) - len(record))
                yield line, dict(zip(names, padded, strict=False)), cells


def require_excel(place: str) -> Any:  # noqa: ANN401 (an optional module)
    """Return the module openpyxl; `place` begins the message about its absence.

    Raises
    ------
    ConfigurationError
        openpyxl is not installed.
    """
    try:
        import openpyxl  # noqa: PLC0415 (optional)
    except ImportError as error:
        from calibrant.core._installation import install_command  # noqa: PLC0415 (only when it is missing)

        raise ConfigurationError(
            f"{place}: Excel files need openpyxl: {install_command('excel')}, or save the sheet as CSV."
        ) from error
    return openpyxl


def _text(cell: object) -> str:
    """Return a cell as text; empty if it holds nothing."""
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, dt.datetime | dt.date | dt.time):
        return cell.isoformat()
    return str(cell)
