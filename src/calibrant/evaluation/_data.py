"""Labelled rows read one by one, and their check before the first call."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LogprobSpace
from calibrant.core._predictor import Predictor
from calibrant.core._rows import DataSource, Example
from calibrant.core._task import check_answer
from calibrant.inference._predictor import BasePredictor, ModelPredictor

_LOG = logging.getLogger("calibrant")


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
            answer = check_answer(example, self.labels, path=path, line=line)
            yield example if answer == example.answer else replace(example, answer=answer)


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

    Raises
    ------
    DataError
        An answer is not one of the labels; the message names the row, from 1.
    """
    for number, example in enumerate(examples, 1):
        try:
            answer = check_answer(example, labels)
        except DataError as error:
            raise DataError(f"row {number}: {error}") from error
        yield example if answer == example.answer else replace(example, answer=answer)


def inspect(examples: Iterable[Example], labels: LabelSet) -> Inspection:
    """Count, check and hash all rows, before the first call.

    Raises
    ------
    DataError
        There are no rows, or one is broken.
    """
    digest = hashlib.sha256()
    rows = 0
    for example in checked(examples, labels):
        rows += 1
        context = () if example.context is None else (example.context,)
        for text in (example.input, example.answer, *context):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
    if rows == 0:
        raise DataError("Expected at least one row to evaluate, got none: check the split and the file.")
    return Inspection(rows=rows, sha256=digest.hexdigest())


def settle(predictor: Predictor, examples: Iterable[Example], *, rows: int | None = None) -> None:
    """Find out how the model is asked, with the call of the first row.

    If it will be asked several times for stated confidence, log how many calls `rows` of them take.

    Raises
    ------
    ProviderError
        A fault that every call would meet.
    """
    if not isinstance(predictor, BasePredictor):
        return
    first = next(iter(examples), None)
    if first is not None:
        predictor.settle(predictor.query(first.text))
    if rows is not None and isinstance(predictor, ModelPredictor) and predictor.space is LogprobSpace.FUSED:
        calls = predictor.method.calls_a_row
        _LOG.warning(
            "%s: %d calls a row (fused), up to %s for %s rows.",
            predictor.name,
            calls,
            f"{calls * rows:,}",
            f"{rows:,}",
        )
