"""What runs on the cluster: one process reads rows and deals them out, others answer them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from calibrant.core import CalibrantError, ConfigurationError, Example, LabelSet, Prediction, ProviderError
from calibrant.evaluation import Dataset, checked, row_line
from calibrant.inference import Classifier, Limits, run_sync
from calibrant.store import PredictionCache

__all__ = ["Answered", "Reader", "Worker", "blocks_of"]

_MAX_CACHE_BYTES: Final = 4 * 1024**3


class Answered(NamedTuple):
    """What came back for a block.

    Attributes
    ----------
    block : int
        Number of the block.
    lines : bytes
        Rows as they stand in ``predictions.jsonl``, in the order of the input.
    error : str
        Why the others were not answered; empty otherwise.
    provider : str
        Whose fault that is; empty where it is nobody's.
    """

    block: int
    lines: bytes
    error: str
    provider: str


def blocks_of(examples: Iterable[Example], size: int) -> Iterator[tuple[int, list[tuple[int, Example]]]]:
    """Yield number and rows of one block after the other; every row with its place in the input."""
    rows = iter(enumerate(examples))
    number = 0
    while block := list(islice(rows, size)):
        yield number, block
        number += 1


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Yields the rows that are still to be asked, block by block, each block as one Arrow row.

    Attributes
    ----------
    dataset : Dataset
        The rows.
    labels : LabelSet
        What their answers are checked against.
    block_rows : int
        Rows of a block.
    done : frozenset of int
        Blocks that are finished.
    kept : mapping of int to frozenset of int
        Of blocks that are begun, the places of the rows that are finished.
    """

    dataset: Dataset
    labels: LabelSet
    block_rows: int
    done: frozenset[int] = frozenset()
    kept: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def __call__(self, _batch: object) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 (optional)

        for number, block in blocks_of(checked(self.dataset, self.labels), self.block_rows):
            if number in self.done:
                continue
            finished = self.kept.get(number, frozenset())
            rows = [(index, row.input, row.answer) for index, row in block if index not in finished]
            yield pa.table({"block": [number], "rows": [json.dumps(rows)]})


class Worker:
    """Answers blocks of rows with a classifier of its own.

    Parameters
    ----------
    opening : callable
        Returns a classifier that keeps the `limits` it is given.
    limits : Limits
        This worker's share.
    cache : str, optional
        URL or file of finished predictions.
    """

    def __init__(self, opening: Callable[..., Classifier], limits: Limits, cache: str | None) -> None:
        self._classifier = opening(limits=limits).with_limits(limits)
        self._cache = None if cache is None else PredictionCache(cache, max_bytes=_MAX_CACHE_BYTES)
        if self._cache is not None:
            self._classifier.use_journal(self._cache)

    def __call__(self, batch: Any) -> Any:  # noqa: ANN401 (an Arrow table, whose types are not known here)
        """Return the block with the lines of its rows; a fault is told, not raised: Ray would try it again."""
        import pyarrow as pa  # noqa: PLC0415 (optional)

        found = [
            self.answer(number.as_py(), json.loads(rows.as_py()))
            for number, rows in zip(batch["block"], batch["rows"], strict=True)
        ]
        columns = zip(*found, strict=True)
        return pa.table({name: list(column) for name, column in zip(Answered._fields, columns, strict=True)})

    def answer(self, number: int, rows: list[tuple[int, str, str]]) -> Answered:
        """Answer the rows of a block."""
        lines: list[bytes] = []

        def deliver(place: int, prediction: Prediction) -> None:
            index, text, answer = rows[place]
            lines.append(row_line(index, Example(input=text, answer=answer), prediction))

        error, provider = "", ""
        try:
            error = run_sync(self._classifier.aclassify_each([text for _, text, _ in rows], deliver))
            if self._cache is not None:
                self._cache.flush()  # a worker ends without a word
        except ProviderError as problem:
            provider = problem.provider
            error = str(problem).removeprefix(f"{provider}: ")
        except ConfigurationError:
            raise
        except CalibrantError as problem:
            error = str(problem)
        return Answered(number, b"".join(lines), error, provider)
