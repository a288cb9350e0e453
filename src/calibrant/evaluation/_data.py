"""Rows read one by one, labelled or not, and their check before the first call."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import write_atomically
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LogprobSpace, Record
from calibrant.core._predictor import Predictor, Query, Stop
from calibrant.core._rows import Columns, DataSource, Example, Row, TextWithContext, read_rows, row_id_of
from calibrant.core._task import check_answer
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier
from calibrant.runs._directory import DEMONSTRATIONS, method_of_rows

NO_OTHERS: Final = Columns()
NO_TEXT: Final = "no text: the model was not asked"
"""Reason of a row whose text is missing."""

_LOG = logging.getLogger("calibrant")
_P = TypeVar("_P", bound=Predictor)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Labelled rows of a file, read anew on every iteration.

    Attributes
    ----------
    source : DataSource
        File and columns of the rows.
    labels : LabelSet
        The label set their answers belong to.
    limit : int or None
        Only so many rows, from the beginning; at least 1.

    Raises
    ------
    ConfigurationError
        The limit is below 1.
    DataError
        On iteration: a row is broken, or its answer is not one of the labels; names file and line.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from calibrant.core import DataSource, LabelSet
    >>> from calibrant.evaluation import Dataset
    >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    >>> _ = path.write_text('{"input": "purrs", "answer": "CAT"}')
    >>> rows = Dataset(source=DataSource(path=path), labels=LabelSet(["cat", "dog"]))
    >>> [(row.input, row.answer) for row in rows]
    [('purrs', 'cat')]
    """

    source: DataSource
    labels: LabelSet
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigurationError(f"Expected a limit of at least 1 row, got {self.limit}.")

    def __iter__(self) -> Iterator[Example]:
        path = self.source.path
        for example, line in islice(self.source.examples(), self.limit):
            yield _with_answer(example, check_answer(example, self.labels, path=path, line=line))


class UnlabelledTexts:
    """Texts as examples without answers.

    Parameters
    ----------
    texts : sequence of str, TextWithContext or None
        The texts; one that is None, NaN or blank becomes an empty one, about which no model is asked.

    Attributes
    ----------
    columns : dict of str to None
        Names of the columns read so far, in order.
    frame : data frame, table, dataset or None
        The frame that holds the texts.
    """

    frame: Any = None

    def __init__(self, texts: Sequence[str | TextWithContext | None] = ()) -> None:
        self._texts = texts
        self.columns: dict[str, None] = {}

    def __iter__(self) -> Iterator[Example]:
        for values, example in self.records():
            self.columns.update(dict.fromkeys(values))
            yield example

    def records(self) -> Iterator[tuple[Record, Example]]:
        """Yield the columns of each row, and the row as an example."""
        for text in self._texts:
            given = text if isinstance(text, TextWithContext) else TextWithContext(text)  # type: ignore[arg-type]
            context = given.context
            values = {"input": given.text}
            if context is not None:
                values["context"] = context
            written = "" if _is_blank(given.text) else given.text
            yield values, Example(input=written, answer="", context=context)


class UnlabelledFile(UnlabelledTexts):
    """Rows of a file as examples without answers, read anew on every iteration.

    Parameters
    ----------
    path : Path
        JSON Lines, CSV, Parquet or Excel.
    text : str
        Column of the text. A row whose cell is empty becomes an empty text.
    columns : Columns
        Names of the columns of context and identifier, and the format of a CSV file; no others are read.
    limit : int or None
        Only so many rows, from the beginning; at least 1.

    Raises
    ------
    ConfigurationError
        The limit is below 1.
    DataError
        On iteration: a row is broken, or has something else than text; names file and line.
    """

    def __init__(
        self,
        path: Path,
        *,
        text: str,
        columns: Columns,
        limit: int | None,
    ) -> None:
        super().__init__()
        if limit is not None and limit < 1:
            raise ConfigurationError(f"Expected a limit of at least 1 row, got {limit}.")
        self.path = path
        self.text = text
        self.csv = columns.csv
        self._context = columns.context
        self._row_id = columns.row_id
        self._limit = limit

    @property
    def is_parquet(self) -> bool:
        """True if the columns have types."""
        return self.path.suffix.lower() == ".parquet"

    @property
    def is_excel(self) -> bool:
        """True if the cells have types and number formats."""
        return self.path.suffix.lower() == ".xlsx"

    @property
    def read_columns(self) -> list[str]:
        """Columns that an example is made of."""
        if self._context is None:
            return [self.text]
        return [self.text, self._context]

    def records(self) -> Iterator[tuple[Record, Example]]:
        """Yield the columns of each row, as they are in the file, and the row as an example."""
        rows = read_rows(self.path, csv=self.csv, column=self.text)
        for number, row in enumerate(islice(rows, self._limit)):
            for column in () if number else self.read_columns:
                if column not in row.values:
                    known = ", ".join(map(str, row.values)) or "none"
                    raise row.error(
                        f"expected a column {column!r}, got the columns {known:.200}: name that of the texts "
                        "(--text-column)."
                    )
            yield row.values, self._example(row)

    def example_of(self, values: Record, *, line: int = 0) -> Example:
        """Return the text and context of a row with these columns, without an answer."""
        return self._example(Row(values=values, path=self.path, line=line))

    def _example(self, row: Row) -> Example:
        context = None
        if self._context is not None:
            context = _text_or_nothing(row, self._context)
        return Example(
            input=_text_or_nothing(row, self.text),
            answer="",
            context=context or None,
            row_id=row_id_of(row, self._row_id),
        )


def _with_answer(example: Example, answer: str) -> Example:
    if answer == example.answer:
        return example
    return replace(example, answer=answer)


def _text_or_nothing(row: Row, column: str) -> str:
    """Return the text in a column; empty if the cell is blank, null or NaN."""
    value = row.values.get(column)
    if _is_blank(value):
        return ""
    if not isinstance(value, str):
        raise row.expected("text", column)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise row.error(
            f"{column!r}: expected characters, got half of a surrogate pair: correct it."
        ) from error
    return value


def _is_blank(value: object) -> bool:
    """Return True for None, NaN (as frames write missing texts) and white space."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())  # noqa: PLR0124


def query_about(predictor: Predictor, example: Example) -> Query:
    """Return the query about an example; about an unlabelled one without text, no model is asked."""
    query = predictor.query(example.text)
    if example.input or example.answer:
        return query
    return replace(query, problem=NO_TEXT)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Number of rows and digest of their content.

    Attributes
    ----------
    rows : int
        Rows.
    sha256 : str
        Digest of all inputs, answers and contexts, in order.
    """

    rows: int
    sha256: str


def checked(examples: Iterable[Example], labels: LabelSet) -> Iterator[Example]:
    """Yield the examples with answers spelled as in the label set; raise for unknown answers.

    `UnlabelledTexts` have no answers to check.

    Raises
    ------
    DataError
        An answer is not one of the labels; the message names the row, from 1.
    """
    if isinstance(examples, UnlabelledTexts):
        yield from examples
        return
    for number, example in enumerate(examples, 1):
        if not isinstance(example, Example):
            raise DataError(
                f"row {number}: expected an Example, got {example!r:.80} ({type(example).__name__}): write "
                "Example(input=TEXT, answer=LABEL); of a data frame, name the columns with text= and label=."
            )
        try:
            answer = check_answer(example, labels)
        except DataError as error:
            raise DataError(f"row {number}: {error}") from error
        yield _with_answer(example, answer)


def inspect(examples: Iterable[Example], labels: LabelSet) -> Inspection:
    """Count, check and hash all rows, before the first call.

    Raises
    ------
    DataError
        There are no rows, none has a text, or one is broken.
    """
    digest = hashlib.sha256()
    rows = 0
    has_text = False
    for example in checked(examples, labels):
        rows += 1
        has_text = has_text or bool(example.input)
        context = () if example.context is None else (example.context,)
        for text in (example.input, example.answer, *context):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
    if rows == 0:
        raise DataError("Expected at least one row to evaluate, got none: check the split and the file.")
    if not has_text and isinstance(examples, UnlabelledTexts):
        raise DataError(f"Expected a text in at least one row, got none in {rows:,}: check the column.")
    return Inspection(rows=rows, sha256=digest.hexdigest())


def write_demonstrations(predictor: Predictor, directory: Path) -> None:
    """Write the demonstrations to a run's directory, if the classifier has any."""
    shown = predictor.demonstrations if isinstance(predictor, Classifier) else None
    if shown is not None and shown.settings is not None:
        write_atomically(directory / DEMONSTRATIONS, shown.index.to_text())


def asked_as_before(predictor: _P, directory: str | Path) -> _P:
    """Return a predictor that asks its models as the rows in a run's directory were answered, if it holds any."""
    method = method_of_rows(Path(directory))
    if method is None or not isinstance(predictor, BasePredictor):
        return predictor
    with contextlib.suppress(LookupError, TypeError, ValueError):  # whoever opens the directory says more
        return predictor.asked_as(method)
    return predictor


def find_abilities(
    predictor: Predictor, examples: Iterable[Example], *, rows: int | None = None, stop: Stop | None = None
) -> None:
    """Find out how the model is asked, before the run is named after it.

    If it will be asked several times for stated confidence, log how many calls `rows` of them take.

    Parameters
    ----------
    predictor : Predictor
        Asks the model.
    examples : iterable of Example
        The rows.
    rows : int, optional
        Their number.
    stop : Stop, optional
        Ends it early, and has the reason where a limit did.

    Raises
    ------
    ProviderError
        A fault that every call would meet.
    """
    if not isinstance(predictor, BasePredictor):
        return
    queries = (predictor.query(example.text) for example in examples if example.input)
    predictor.find_abilities(next(queries, None), stop=stop)
    if rows is not None and isinstance(predictor, Classifier) and predictor.space is LogprobSpace.FUSED:
        calls = predictor.method.calls_a_row
        _LOG.warning(
            "%s: %d calls a row (fused), up to %s for %s rows.",
            predictor.name,
            calls,
            f"{calls * rows:,}",
            f"{rows:,}",
        )
