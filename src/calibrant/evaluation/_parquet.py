"""Parquet export of ``predictions.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from calibrant.core._errors import ConfigurationError
from calibrant.core._files import atomic_bytes_writer, json_text
from calibrant.core._installation import install_command
from calibrant.core._prediction import JsonObject
from calibrant.core._reported import writable
from calibrant.runs._directory import while_writing
from calibrant.runs._rows import COLUMNS, row_lines

_GROUP: Final = 16_384  # rows in memory, and of a row group
# Columns of one value a row, by the type of the value.
WHOLE = ("index", "attempts", "prompt_tokens", "completion_tokens")
NUMBERS = ("confidence", "label_mass", "unresolved_mass", "latency_seconds", "cost")
TRUTHS = ("correct", "accepted")
_COLUMNS: Final = (*COLUMNS, "steps", "accepted", "parts", "source", "id")


def require_parquet() -> Any:  # noqa: ANN401 (an optional module)
    """Return the module pyarrow, with pyarrow.parquet.

    Raises
    ------
    ConfigurationError
        pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise ConfigurationError(
            f"Parquet files need pyarrow, which is not installed ({error}): run {install_command('data')}."
        ) from error
    return pyarrow


def write_parquet(predictions: Path, path: Path) -> None:
    """Write the rows of a finished run to a Parquet file, atomically.

    There is a column for every field of ``predictions.jsonl``. Texts, numbers and truth values have their types;
    what has several values (``probabilities``, ``steps``, ``parts``) is JSON in a text, as in the lines. A few thousand
    rows are in memory at a time.

    Parameters
    ----------
    predictions : Path
        The lines.
    path : Path
        The file to be written.

    Raises
    ------
    ConfigurationError
        pyarrow is missing.
    StateError
        The Parquet file cannot be written.
    """
    arrow = require_parquet()
    with (
        while_writing(path),
        atomic_bytes_writer(path) as file,
        arrow.parquet.ParquetWriter(file, _schema(arrow), compression="zstd") as writer,
    ):
        for rows in _groups(row_lines(predictions)):
            writer.write_table(arrow.Table.from_pylist(rows, schema=writer.schema))


def _schema(arrow: Any) -> Any:  # noqa: ANN401 (an optional module)
    types = {
        **dict.fromkeys(WHOLE, arrow.int64()),
        **dict.fromkeys(NUMBERS, arrow.float64()),
        **dict.fromkeys(TRUTHS, arrow.bool_()),
    }
    return arrow.schema([(name, types.get(name, arrow.string())) for name in _COLUMNS])


def _groups(lines: Iterator[bytes]) -> Iterator[list[JsonObject]]:
    while group := list(islice(lines, _GROUP)):
        rows = []
        for line in group:
            record = json.loads(line)
            rows.append({name: _value(value) for name, value in record.items()})
        yield rows


def _value(value: object) -> object:
    if isinstance(value, dict | list):
        value = json_text(value)
    # Half of a surrogate pair is no text in UTF-8, so Parquet cannot hold it.
    if isinstance(value, str):
        return writable(value)
    return value
