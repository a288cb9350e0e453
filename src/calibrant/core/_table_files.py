"""Rows of Parquet and Excel files, read by optional packages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._text_files import check_columns, check_size, named_columns


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
        rows = (values for batch in file.iter_batches(batch_size=1024) for values in batch.to_pylist())
        for line, values in enumerate(rows, 1):
            check_size(sum(len(v) for v in values.values() if isinstance(v, str)), max_characters, path, line)
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
    try:
        book = require_excel(str(path)).load_workbook(path, read_only=True, data_only=True)
    except ConfigurationError:
        raise
    except Exception as error:
        problem = f"not a readable Excel file ({error}): save it again, or as CSV."
        raise DataError(problem, path=path) from error
    try:
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
    finally:
        book.close()


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
