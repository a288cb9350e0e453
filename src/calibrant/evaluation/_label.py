"""``labels.csv``, ``.jsonl``, ``.parquet`` or ``.xlsx``: the columns of an input with the label of every row."""

from __future__ import annotations

import codecs
import csv
import filecmp
import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeAlias, cast
from zipfile import ZipFile, is_zipfile

from calibrant.core._errors import CalibrantError, ConfigurationError, DataError, StateError
from calibrant.core._files import atomic_bytes_writer, atomic_writer, json_text, remove_leftovers
from calibrant.core._frames import (
    ANSWER_COLUMNS,
    DECISIONS,
    Frame,
    answer_names,
    column_names,
    frame_texts,
    frame_values,
    is_frame,
    model_of_steps,
    texts_of,
    with_answers,
)
from calibrant.core._prediction import Outcome, Prediction, Record
from calibrant.core._reported import counted, writable
from calibrant.core._rows import MAX_ROW_BYTES, Columns, Example, TextWithContext
from calibrant.core._splits import RepeatedTexts, text_hash
from calibrant.core._table_files import (
    CsvSpelling,
    csv_spelling,
    read_excel_cells,
    require_excel,
)
from calibrant.evaluation._data import NO_OTHERS, NO_TEXT, UnlabelledFile, UnlabelledTexts
from calibrant.evaluation._metrics import EvaluationResult, WrittenLabels, answered_lines
from calibrant.runs._directory import to_keep_answers, while_writing
from calibrant.runs._rows import record_line, sketch_of

_LOG = logging.getLogger("calibrant")

FORMATS: Final = ("csv", "tsv", "jsonl", "parquet", "xlsx")
_ENDINGS: Final = {f".{name}": name for name in FORMATS} | {".ndjson": "jsonl"}
_DISTRIBUTION: Final = "probabilities"
_PREFIX: Final = "calibrant_"
_BLOCK: Final = 1024  # rows in memory

_Inputs: TypeAlias = Sequence[Record]
_Added: TypeAlias = Sequence[tuple[Any, ...]]
_Write: TypeAlias = Callable[[_Inputs, _Added, Any], None]
MAX_ROWS: Final = 1_048_576  # of a sheet, its header included
_MAX_TEXT: Final = 32_767  # characters of a cell


class DecidedPrediction(Protocol):
    """Decision on a prediction; `calibrant.tuned.Decision` is one."""

    @property
    def name(self) -> str | None:
        """Return ``accepted``, ``review``, or None if no rule applies."""

    @property
    def final_confidence(self) -> float | None:
        """Return the calibrated confidence, or else the prediction's own."""


class _Outdated(Exception):  # noqa: N818 (no error: the rows are decided on once more)
    """Decisions that do not hold any more."""


Decide: TypeAlias = Callable[[Sequence[Prediction]], Sequence[DecidedPrediction]]
"""Returns the decisions on predictions, of which only what `_prediction` reads of a record is known."""


class UnlabelledFrame(UnlabelledTexts):
    """Rows of a frame as examples without answers.

    Parameters
    ----------
    frame : data frame, table or dataset
        The rows, in memory.
    text : str
        Column of the text. A row whose cell is empty becomes an empty text.

    Raises
    ------
    ConfigurationError
        It has no such column, or its rows are not in memory.
    DataError
        A row has something else than text.
    """

    def __init__(self, frame: Frame, *, text: str) -> None:
        super().__init__(frame_texts(frame, text, with_blanks=True))
        answer_names(frame)  # before a call is paid for
        self.frame = frame
        self.columns = dict.fromkeys(map(str, column_names(frame)))

    def __iter__(self) -> Iterator[Example]:
        return (example for _, example in super().records())  # without the other columns

    def records(self) -> Iterator[tuple[Record, Example]]:
        """Yield the columns of each row, and the row as an example."""
        rows = zip(*frame_values(self.frame), strict=True)
        for values, example in zip(rows, self, strict=True):
            yield dict(zip(self.columns, values, strict=True)), example


def unlabelled(
    texts: str | Path | Iterable[str | TextWithContext | None] | Frame | UnlabelledTexts,
    *,
    text: str,
    columns: Columns = NO_OTHERS,
    limit: int | None = None,
) -> UnlabelledTexts:
    """Return a file, a frame or texts as examples without answers.

    Parameters
    ----------
    texts : path, frame, iterable of str, TextWithContext or None, or UnlabelledTexts
        The file, the frame, or the texts.
    text, columns, limit
        Of a file; see `UnlabelledFile`. Of a frame, `text` alone.

    Raises
    ------
    DataError
        A file cannot be read twice, as a pipe cannot.
    """
    if isinstance(texts, UnlabelledTexts):
        return texts
    if isinstance(texts, str | Path):
        path = Path(texts)
        if str(path) == "-" or (path.exists() and not path.is_file()):
            raise DataError(
                "expected a file, which can be read more than once, got a pipe or a directory: save the rows to a file "
                "first.",
                path=path,
            )
        return UnlabelledFile(path, text=text, columns=columns, limit=limit)
    if isinstance(texts, list | tuple):
        return UnlabelledTexts(texts)
    if is_frame(texts):
        return UnlabelledFrame(cast("Frame", texts), text=text)
    return UnlabelledTexts(texts_of(cast("Iterable[Any]", texts), with_blanks=True))


class LabelFile:
    """Writer of the file of labels in a run's directory.

    Parameters
    ----------
    directory : Path
        Directory of the run.
    rows : UnlabelledTexts
        The input.
    file_format : {"csv", "tsv", "jsonl", "parquet", "xlsx"}, optional
        By default that of the input; of texts ``jsonl``. A CSV file has the separator, encoding, byte-order mark and
        line ends of an input of the same ending; else commas, and tabs in ``.tsv``, in UTF-8.
    decide : callable, optional
        Returns the decisions on predictions; by default a cascade's own verdicts count.
    decides_anew : callable, optional
        Called when all answered rows are decided on, with `is_whole`; returns True if they are to be decided on once
        more, now otherwise.
    distribution : bool, default False
        True to write the probabilities of all labels, too.

    Attributes
    ----------
    directory : Path
        As above.
    path : Path
        The file.
    written : WrittenLabels
        The rows of the last `write`.
    accepted : RepeatedTexts
        Texts of the accepted rows of the last `write`, with their contexts.

    Raises
    ------
    ConfigurationError
        The format is unknown, pyarrow or openpyxl is missing, or the input lies in the directory.
    """

    def __init__(
        self,
        directory: Path,
        rows: UnlabelledTexts,
        *,
        file_format: str | None = None,
        decide: Decide | None = None,
        decides_anew: Callable[[bool], bool] | None = None,
        distribution: bool = False,
    ) -> None:
        source = rows.path if isinstance(rows, UnlabelledFile) else None
        if file_format is None:
            file_format = "jsonl"
            if source is not None:
                file_format = _ENDINGS.get(source.suffix.lower(), "csv")
        if file_format not in FORMATS:
            raise ConfigurationError(
                f"Expected the format to be one of {', '.join(FORMATS)}, got {file_format!r:.40}."
            )
        if file_format == "parquet":
            from calibrant.evaluation._parquet import require_parquet  # noqa: PLC0415 (of an optional package)

            require_parquet()
        if file_format == "xlsx":
            require_excel("--format xlsx")
        place = directory.resolve()
        if source is not None and place in (source.resolve(), source.resolve().parent):
            raise ConfigurationError(
                f"Expected an output directory apart from the input, got {directory} for {source}: choose another "
                "one, as its files are written anew."
            )
        self.directory = directory
        self._rows = rows
        self._format = file_format
        self._decide = decide
        self._decides_anew = decides_anew
        self._distribution = distribution
        self._names: dict[str, str] = {}
        self._has_unanswered = False
        self.path = directory / f"labels.{file_format}"
        self.written = WrittenLabels(path=self.path, rows=0)
        self.accepted = RepeatedTexts()

    @property
    def is_whole(self) -> bool:
        """True unless rows of the input were not answered yet at the last `write`."""
        return not self._has_unanswered

    def prepare(self) -> None:
        """Choose the names of the added columns; the columns of the input must be known by then.

        Raises
        ------
        ConfigurationError
            The input has the columns, with the prefix ``calibrant_`` too.
        """
        names = list(ANSWER_COLUMNS)
        if self._distribution:
            names.append(_DISTRIBUTION)
        for name in names:
            chosen = _PREFIX + name if name in self._rows.columns else name
            if chosen in self._rows.columns:
                raise ConfigurationError(
                    f"Expected an input without a column {chosen!r} beside {name!r}: rename one of them."
                )
            self._names[name] = chosen

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Write the file at the end of the block; after an error, with the rows answered so far."""
        try:
            yield
        except CalibrantError:
            with suppress(CalibrantError):
                self.write()
            raise
        self.write()

    def write(self) -> None:
        """Write the labels of all rows that are answered, from the first one on, atomically.

        Where rows are left, the file is ``labels.partial.csv``. Another ``labels.csv`` is renamed before.

        Raises
        ------
        StateError
            The file cannot be written, or the input has changed since the rows were answered.
        """
        with while_writing(self.path):
            remove_leftovers(self.path)  # of a killed writer
            former = self._set_aside()
            try:
                rows, labelled, decisions = self._write_answered()
            except BaseException:
                if former is not None:
                    former.replace(self.path)
                raise
            path = self._finished_file(former)
        self.written = WrittenLabels(path=path, rows=rows, labelled=labelled, decisions=dict(decisions))

    def _set_aside(self) -> Path | None:
        """Rename a file of labels that is there already; return its new path."""
        if not self.path.exists():
            return None
        names = (f"labels.former{number or ''}{self.path.suffix}" for number in count())
        former = next(path for path in map(self.path.with_name, names) if not path.exists())
        return self.path.rename(former)

    def _write_answered(self) -> tuple[int, int, Counter[str]]:
        """Write the file, twice where decisions do not hold for the rows as a whole.

        Rows, those of them with a label, and decisions are returned.
        """
        with suppress(_Outdated):
            return self._written_once()
        return self._written_once()

    def _written_once(self) -> tuple[int, int, Counter[str]]:
        rows = 0
        labelled = 0
        decisions = Counter[str]()
        self.accepted = RepeatedTexts()
        with self._writer() as write:
            for records, values, table in self._answered_blocks():
                added = self._added(records)
                decided = [decision for _, _, decision, *_ in added]
                decisions.update(decision for decision in decided if decision is not None)
                for record, decision in zip(records, decided, strict=True):
                    if decision == "accepted":
                        text = f"{record['input']} {record.get('context') or ''}"
                        self.accepted.add(text, record["label"])
                write(values, added, table)
                rows += len(added)
                labelled += sum(record["label"] is not None for record in records)
            anew = self._decides_anew
            if anew is not None and decisions["accepted"] and anew(self.is_whole):
                raise _Outdated  # the unfinished file is dropped
        return rows, labelled, decisions

    def _finished_file(self, former: Path | None) -> Path:
        """Return the path of the file just written, and keep a former one that differs."""
        partial = self.path.with_name(f"labels.partial{self.path.suffix}")
        if self._has_unanswered:
            self.path.replace(partial)
            if former is not None:
                former.replace(self.path)
            return partial
        partial.unlink(missing_ok=True)
        if former is not None and _have_same_rows(former, self.path):
            former.unlink()
        elif former is not None:
            _LOG.warning("%s: another file was there, which is kept as %s.", self.path, former)
        return self.path

    def _answered_blocks(self) -> Iterator[tuple[list[Any], list[Record], Any]]:
        """Yield blocks of answered rows: their records, their input, and its own form; see `_input_blocks`."""
        lines = answered_lines(self.directory)
        number = 0
        self._has_unanswered = False
        for block, table in self._input_blocks():
            records = [json.loads(line) for line in islice(lines, len(block))]
            for record, (_, example) in zip(records, block, strict=False):
                number += 1
                if (record["input"], record.get("context")) != (example.input, example.context):
                    raise StateError(
                        f"{self.path}: row {number} of the input has another text or context now than when it was "
                        f"labelled: {to_keep_answers(self.directory)}"
                    )
            answered = block[: len(records)]
            yield records, [values for values, _ in answered], table
            if len(records) < len(block):
                self._has_unanswered = True
                return

    def _input_blocks(self) -> Iterator[tuple[list[tuple[Record, Example]], Any]]:
        """Yield blocks of the input: values and example of each row, and the form that keeps their types.

        That is an Arrow table if a Parquet file becomes one, the cells of each row if an Excel file does, else None.
        """
        rows = self._rows
        if self._format == "parquet" and isinstance(rows, UnlabelledFile) and rows.is_parquet:
            from calibrant.evaluation._parquet import require_parquet  # noqa: PLC0415 (of an optional package)

            arrow = require_parquet()
            for batch in arrow.parquet.ParquetFile(rows.path).iter_batches(batch_size=_BLOCK):
                texts = batch.select(rows.read_columns).to_pylist()
                block = [(values, rows.example_of(values)) for values in texts]
                yield block, arrow.Table.from_batches([batch])
            return
        if self._format == "xlsx" and isinstance(rows, UnlabelledFile) and rows.is_excel:
            lines = read_excel_cells(rows.path, MAX_ROW_BYTES)
            while sheet_rows := list(islice(lines, _BLOCK)):
                block = [(values, rows.example_of(values, line=line)) for line, values, _ in sheet_rows]
                yield block, [cells for _, _, cells in sheet_rows]
            return
        records = rows.records()
        while block := list(islice(records, _BLOCK)):
            yield block, None

    def _added(self, records: Sequence[Record]) -> list[tuple[Any, ...]]:
        """Return the values of the added columns."""
        added = label_values(records, self._decide)
        if self._distribution:
            pairs = zip(added, records, strict=True)
            added = [(*values, _probabilities(record)) for values, record in pairs]
        return added

    def _writer(self) -> AbstractContextManager[_Write]:
        names = list(self._names.values())
        if self._format == "jsonl":
            return _json_lines_writer(self.path, names)
        if self._format == "parquet":
            return _parquet_writer(self.path, self._rows, names)
        columns = list(self._rows.columns)
        if self._format == "xlsx":
            return excel_writer(self.path, columns, names)
        return _csv_writer(self.path, columns, names, self._spelling())

    def _spelling(self) -> CsvSpelling:
        """Return the form of the CSV file: that of the input, if it has the same ending."""
        rows = self._rows
        if isinstance(rows, UnlabelledFile) and rows.path.suffix.lower() == self.path.suffix:
            return csv_spelling(rows.path, rows.csv, column=rows.text)
        return CsvSpelling(separator="\t" if self._format == "tsv" else ",")


def label_values(records: Sequence[Record], decide: Decide | None) -> list[tuple[Any, ...]]:
    """Return the values of `ANSWER_COLUMNS` of rows, given their records."""
    decided: Sequence[DecidedPrediction | None] = [None] * len(records)
    if decide is not None:
        decided = decide([_prediction(record) for record in records])
    rows = []
    for record, found in zip(records, decided, strict=True):
        confidence = record["confidence"] if found is None else found.final_confidence
        decision = DECISIONS[record.get("accepted")] if found is None else found.name
        outcome = record["outcome"]
        if record["reason"] == NO_TEXT:
            outcome = "no text"
            decision = None
        provider = answering_model(record)
        rows.append((record["label"], confidence, decision, outcome, provider, record["cost"]))
    return rows


def with_frame(
    result: EvaluationResult, frame: Frame, decide: Decide | None = None, *, distribution: bool = False
) -> EvaluationResult:
    """Return a result with a copy of its frame, to which the answers are added as columns.

    Parameters
    ----------
    result : EvaluationResult
        Result of the frame's rows.
    frame : data frame, table or dataset
        The frame.
    decide : callable or None
        Returns the decisions on predictions.
    distribution : bool, default False
        True to add the probabilities of all labels, as JSON text.
    """
    records = result.records()
    values = label_values(records, decide)
    if not distribution:
        return replace(result, frame=with_answers(frame, values))
    values = [(*row, json_text(_probabilities(record))) for row, record in zip(values, records, strict=True)]
    return replace(result, frame=with_answers(frame, values, columns=(*ANSWER_COLUMNS, _DISTRIBUTION)))


def answering_model(record: Record) -> str | None:
    """Return the name of the model that answered a row; in a cascade, its name there."""
    steps = ((step["model"], step["label"], step["confidence"]) for step in record.get("steps", ()))
    model: str | None = record["model"]
    return model_of_steps(steps, record["label"], record["confidence"]) or model


def _prediction(record: Record) -> Prediction:
    return Prediction(
        label=record["label"],
        confidence=record["confidence"],
        outcome=Outcome(record["outcome"]),
        accepted=record.get("accepted"),
        sketch=sketch_of(record),
        text_key=None if record["input"] is None else text_hash(record["input"]),
        model=record["model"],
    )


def _have_same_rows(one: Path, other: Path) -> bool:
    """Return True if two files of one format hold the same, whenever they were written."""
    if one.suffix == ".xlsx" and is_zipfile(one):
        return _sheet_checksums(one) == _sheet_checksums(other)
    return filecmp.cmp(one, other, shallow=False)


def _sheet_checksums(path: Path) -> list[tuple[str, int]]:
    with ZipFile(path) as archive:
        parts = archive.infolist()
    # The properties hold the time of writing.
    return [(part.filename, part.CRC) for part in parts if part.filename != "docProps/core.xml"]


def _probabilities(record: Record) -> Any:  # noqa: ANN401 (JSON values)
    parts = record.get("parts")
    if parts:
        return {part["name"]: part["probabilities"] for part in parts}
    return record["probabilities"]


@contextmanager
def _json_lines_writer(path: Path, names: Sequence[str]) -> Iterator[_Write]:
    with atomic_bytes_writer(path) as file:

        def write(values: _Inputs, added: _Added, _: object) -> None:
            for row, more in zip(values, added, strict=True):
                labels = zip(names, more, strict=True)
                # Dates of a Parquet file become texts.
                file.write(record_line({**row, **dict(labels)}, default=str))

        yield write


@contextmanager
def _csv_writer(
    path: Path, columns: Sequence[str], names: Sequence[str], spelling: CsvSpelling
) -> Iterator[_Write]:
    with _text_writer(path, spelling.encoding) as file:
        if spelling.names_separator:
            file.write(f"sep={spelling.separator}{spelling.line_end}")
        writer = csv.writer(file, delimiter=spelling.separator, lineterminator=spelling.line_end)
        writer.writerow([*map(_cell, columns), *names])

        def write(values: _Inputs, added: _Added, _: object) -> None:
            for row, more in zip(values, added, strict=True):
                given = [_cell(row.get(column)) for column in columns]
                writer.writerow(given + list(map(_cell, more)))

        yield write


@contextmanager
def _text_writer(path: Path, encoding: str) -> Iterator[IO[str]]:
    """Open a text file to write; if the encoding lacks a character, it is UTF-8 with a byte-order mark instead."""
    if codecs.lookup(encoding).name.startswith("utf"):
        with atomic_writer(path, encoding=encoding) as file:
            yield file
        return
    # Rows come once, and their last one may hold a character that the encoding lacks.
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="", dir=path.parent) as texts:
        yield texts
        try:
            _copy_texts(texts, path, encoding)
        except UnicodeEncodeError as error:
            _LOG.warning(
                "%s: %s, the encoding of the input, has no %r: written in UTF-8 with a byte-order mark, which Excel "
                "opens, too.",
                path,
                encoding,
                error.object[error.start],
            )
            _copy_texts(texts, path, "utf-8-sig")


def _copy_texts(texts: IO[str], path: Path, encoding: str) -> None:
    texts.seek(0)
    with atomic_writer(path, encoding=encoding) as file:
        shutil.copyfileobj(texts, file)


def _cell(value: object) -> str | None:
    """Return a value as a text of a CSV file; None is an empty cell."""
    if value is None:
        return None
    if isinstance(value, str):
        if value.isascii():
            return value
        return writable(value)
    if isinstance(value, bool | dict | list):
        return writable(json.dumps(value, ensure_ascii=False, default=str))
    return str(value)


@contextmanager
def _parquet_writer(path: Path, rows: UnlabelledTexts, names: Sequence[str]) -> Iterator[_Write]:
    """Open a writer that keeps the column types of a Parquet input; columns of other inputs are texts."""
    from calibrant.evaluation._parquet import NUMBERS, require_parquet  # noqa: PLC0415 (of an optional package)

    arrow = require_parquet()
    schema = texts = arrow.schema([(column, arrow.string()) for column in rows.columns])
    if isinstance(rows, UnlabelledFile) and rows.is_parquet:
        schema = arrow.parquet.ParquetFile(rows.path).schema_arrow
    added_columns = []
    for name in names:
        kind = arrow.float64() if name.removeprefix(_PREFIX) in NUMBERS else arrow.string()
        added_columns.append(arrow.field(name, kind))
        schema = schema.append(added_columns[-1])
    with (
        atomic_bytes_writer(path) as file,
        arrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):

        def write(values: _Inputs, added: _Added, table: Any) -> None:  # noqa: ANN401
            if table is None:
                columns = {name: [_cell(row.get(name)) for row in values] for name in texts.names}
                table = arrow.table(columns, texts)
            table = table.slice(0, len(added))
            for place, column in enumerate(added_columns):
                cells = [more[place] for more in added]
                if column.type != arrow.float64():
                    cells = list(map(_cell, cells))
                table = table.append_column(column, arrow.array(cells, column.type))
            writer.write_table(table)

        yield write


@contextmanager
def excel_writer(path: Path, columns: Sequence[str], names: Sequence[str]) -> Iterator[_Write]:
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
        sheet.append([sheet.cell(name) for name in (*columns, *names)], path)

        def write(values: _Inputs, added: _Added, cells: Sequence[Any] | None) -> None:
            for number, more in enumerate(added):
                if cells is None:
                    row = values[number]
                    row_cells = [sheet.cell(row.get(column)) for column in columns]
                else:
                    row_cells = sheet.copies(cells[number], len(columns))
                sheet.append([*row_cells, *map(sheet.cell, more)], path)

        yield write
        book.save(file)
    if sheet.cut:
        _LOG.warning(
            "%s: %s longer than the %s characters that an Excel cell holds: %s cut there.",
            path,
            counted(sheet.cut, "text is", "texts are"),
            f"{_MAX_TEXT:,}",
            "it is" if sheet.cut == 1 else "they are",
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
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        return self._text(text)

    def copies(self, cells: Sequence[Any], width: int) -> list[Any]:
        """Return copies of a row's cells, as many as there are columns."""
        copies = [self._copy(cell) for cell in cells[:width]]
        return copies + [None] * (width - len(copies))

    def _copy(self, cell: Any) -> Any:  # noqa: ANN401 (of an optional module)
        if cell.value is None:
            return None
        is_text = cell.data_type == "s"
        copy = self._text(cell.value) if is_text else self._new(self._sheet, value=cell.value)
        if cell.number_format != "General":
            copy.number_format = cell.number_format
        return copy

    def _text(self, text: str) -> Any:  # noqa: ANN401 (of an optional module)
        clean = self._forbidden.sub("\ufffd", text).encode("utf-8", "replace").decode()
        self.cut += len(clean) > _MAX_TEXT
        cell = self._new(self._sheet, value=clean[:_MAX_TEXT])
        cell.data_type = "s"  # also of a text such as "=1+1"
        return cell
