"""Labels as an Excel file, written row by row."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from calibrant.core._errors import DataError
from calibrant.core._files import atomic_bytes_writer
from calibrant.core._table_files import require_excel

MAX_ROWS: Final = 1_048_576  # of a sheet, its header included
_MAX_TEXT: Final = 32_767  # characters of a cell

_LOG = logging.getLogger("calibrant")


@contextmanager
def excel_writer(
    path: Path, columns: Sequence[str], names: Sequence[str]
) -> Iterator[Callable[[Sequence[Mapping[str, Any]], Sequence[tuple[Any, ...]], Any], None]]:
    """Open a writer of an Excel file of one sheet, which takes its place at the end of the block.

    Rows go to a temporary file as they come, so that memory does not grow with them.

    Parameters
    ----------
    path : Path
        The file.
    columns, names : sequence of str
        Columns of the input, and the added ones.

    Yields
    ------
    callable
        Takes rows as mappings, their added values, and, where the input is an Excel file, their openpyxl cells,
        which keep values and number formats.

    Raises
    ------
    ConfigurationError
        openpyxl is not installed.
    DataError
        There are more rows than a sheet holds.
    """
    excel = require_excel(str(path))
    book = excel.Workbook(write_only=True)
    sheet = _Sheet(book.create_sheet("labels"), excel)
    with atomic_bytes_writer(path) as file:
        sheet.append([*map(sheet.cell, columns), *map(sheet.cell, names)], path)

        def write(
            values: Sequence[Mapping[str, Any]], added: Sequence[tuple[Any, ...]], cells: Sequence[Any] | None
        ) -> None:
            for number, (row, more) in enumerate(zip(values, added, strict=True)):
                if cells is None:
                    found = [sheet.cell(row.get(column)) for column in columns]
                else:
                    found = sheet.copies(cells[number], len(columns))
                sheet.append([*found, *map(sheet.cell, more)], path)

        yield write
        book.save(file)
    if sheet.cut:
        _LOG.warning(
            "%s: %d texts are longer than the %s characters that an Excel cell holds: they are cut there.",
            path,
            sheet.cut,
            f"{_MAX_TEXT:,}",
        )


class _Sheet:
    """Sheet that takes values of any kind, and never reads a text as a formula."""

    def __init__(self, sheet: Any, excel: Any) -> None:  # noqa: ANN401 (of an optional module)
        self.cut = 0
        self._sheet = sheet
        self._new = excel.cell.WriteOnlyCell
        self._forbidden = excel.cell.cell.ILLEGAL_CHARACTERS_RE
        self._rows = 0

    def append(self, cells: list[Any], path: Path) -> None:
        """Add a row.

        Raises
        ------
        DataError
            The sheet is full.
        """
        self._rows += 1
        if self._rows > MAX_ROWS:
            raise DataError(
                f"expected at most {MAX_ROWS - 1:,} rows, which an Excel sheet holds, got more: pass --format csv.",
                path=path,
            )
        self._sheet.append(cells)

    def cell(self, value: object) -> Any:  # noqa: ANN401 (of an optional module)
        """Return a cell with a value; one that Excel has no type for becomes JSON text."""
        if value is None or isinstance(value, bool | int | float):
            return self._new(self._sheet, value=value)
        if isinstance(value, str):
            return self._text(value)
        return self._text(json.dumps(value, ensure_ascii=False, default=str))

    def copies(self, cells: Sequence[Any], width: int) -> list[Any]:
        """Return copies of a row's cells, as many as there are columns."""
        found = [self._copy(cell) for cell in cells[:width]]
        missing = width - len(found)
        return [*found, *([None] * missing)]

    def _copy(self, cell: Any) -> Any:  # noqa: ANN401 (of an optional module)
        if cell.value is None:
            return None
        copy = self._new(self._sheet, value=cell.value) if cell.data_type != "s" else self._text(cell.value)
        if cell.number_format != "General":
            copy.number_format = cell.number_format
        return copy

    def _text(self, text: str) -> Any:  # noqa: ANN401 (of an optional module)
        clean = self._forbidden.sub("\ufffd", text).encode("utf-8", "replace").decode()
        self.cut += len(clean) > _MAX_TEXT
        cell = self._new(self._sheet, value=clean[:_MAX_TEXT])
        cell.data_type = "s"  # also of a text such as "=1+1"
        return cell
