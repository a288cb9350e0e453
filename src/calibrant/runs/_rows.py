"""Saved rows: the one format of ``predictions.jsonl``, its writer and its reader."""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import DataError, StateError
from calibrant.core._files import SCHEMA_VERSION
from calibrant.core._fingerprint import Fingerprint, asked_text, demonstrated
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import (
    BoolArray,
    FloatArray,
    HalfArray,
    IntegerArray,
    JsonObject,
    LabelDistribution,
    LogprobSpace,
    Outcome,
    Part,
    Prediction,
    Record,
    decode_half_floats,
    encode_half_floats,
    is_label_mass_low,
    step_to_record,
)
from calibrant.core._reported import without_none
from calibrant.core._rows import MAX_RUN_ROW_BYTES, Example, Row, read_rows
from calibrant.core._settings import DemonstrationSettings
from calibrant.core._structures import labels_from_record, part_of
from calibrant.runs._directory import (
    DEMONSTRATIONS,
    METRICS,
    PREDICTIONS,
    RESULT,
    damaged_origin,
    read_origin,
)

COLUMNS: Final = (
    *("index", "input", "answer", "label", "confidence", "correct", "outcome", "reason", "probabilities"),
    *("label_mass", "unresolved_mass", "space", "model", "attempts", "latency_seconds", "prompt_tokens"),
    *("completion_tokens", "cost"),
)
"""Fields that every row of a run has; see `row_record` for those that some rows have."""

STANDS_IN: Final = "stands_in"
"""Field of rows whose answer is a model's label, as the true one is not known."""

UNKNOWN: Final = -1
"""Correctness of a row whose true label is not known."""

SEED: Final = "seed"
"""First prompt of a search."""

BEST: Final = "best"
"""Best prompt of a search."""

FINAL: Final = "final"
"""Best prompt of a search, with the head that was learned under it."""

_EVALUATED: Final = ""  # prompt of the rows of anything but a search
_CHOSEN: Final = (FINAL, BEST, _EVALUATED)
_LONGEST_TEXT: Final = 500
_ROUNDING: Final = 1e-6  # exp of a sum may leave [0, 1] by this much
_SPACES: Final = frozenset(space.value for space in LogprobSpace)
_NUMBERS: Final = {
    "index": "q",
    "correct": "b",
    "confidence": "d",
    "cost": "d",
    "latency_seconds": "d",
    "called": "b",
}
_CORRECT: Final = {"true": 1, "1": 1, "1.0": 1, "false": 0, "0": 0, "0.0": 0}

# `json.dumps` makes an encoder for every call.
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False).encode

CountRow: TypeAlias = Callable[[Record], None]
"""Called with the record of a row that has its final prediction; raises KeyError, TypeError or ValueError otherwise."""


def row_record(index: int, example: Example, prediction: Prediction, *, prompt: str = "") -> JsonObject:
    """Return a saved row as JSON values.

    All rows have the fields `COLUMNS`. ``correct`` is None if the row failed with a transport error, or its true label
    is not known. ``attempts`` is 0 where the model's answer was known already, so that nothing was paid; tokens and
    cost are those of the answer. ``probabilities`` maps each label to its probability.

    Some rows have more: those of a search their ``prompt``; an answer that is no label its ``text``, 500 characters at
    most; a row with a context its ``context``; a row of a file its ``source`` and, where there is one, its ``id``; the
    answer of a cascade its ``steps`` and whether it was ``accepted``; an answer of a head that reads texts the
    ``sketch`` of what it read (base64 of numbers of two bytes); answers that hold several labels their ``parts``,
    and as ``label_mass`` the least of these.

    Parameters
    ----------
    index : int
        Position of the row in the input, from 0.
    example : Example
        The row; its answer is spelled as in the label set, or empty where it is not known.
    prediction : Prediction
        The classifier's answer.
    prompt : {"", "seed", "best", "final"}, default ""
        The prompt of a search that the row was asked under.
    """
    lowest = min(prediction.distributions, key=_most_label_mass, default=None)
    usage = prediction.usage
    unknown = not example.answer or prediction.outcome is Outcome.ERROR
    record = {
        "index": index,
        "input": example.input,
        "answer": example.answer or None,
        "label": prediction.label,
        "confidence": prediction.confidence,
        "correct": None if unknown else prediction.label == example.answer,
        "outcome": prediction.outcome.value,
        "reason": prediction.reason,
        "probabilities": probability_record(prediction.distribution),
        "label_mass": None if lowest is None else lowest.label_mass,
        "unresolved_mass": None if lowest is None else lowest.unresolved_mass,
        "space": None if lowest is None else lowest.space.value,
        "model": prediction.model,
        "attempts": prediction.attempts,
        "latency_seconds": prediction.latency_seconds,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost": usage.cost,
    }
    if prompt:
        record["prompt"] = prompt
    if prediction.outcome is Outcome.UNPARSED and prediction.text:
        record["text"] = prediction.text[:_LONGEST_TEXT]  # what the model wrote, as it is no label
    if example.context is not None:
        record["context"] = example.context
    record |= origin_record(example)
    record |= _steps_and_sketch(prediction)
    if prediction.parts:
        record["parts"] = [_part(part, None if unknown else example.answer) for part in prediction.parts]
    return record


def _most_label_mass(distribution: LabelDistribution) -> float:
    return distribution.label_mass + distribution.unresolved_mass


def _steps_and_sketch(prediction: Prediction) -> JsonObject:
    record: JsonObject = {}
    if prediction.steps:
        record["steps"] = [step_to_record(step) for step in prediction.steps]
        record["accepted"] = prediction.accepted
    if prediction.sketch is not None:
        record["sketch"] = encode_half_floats(prediction.sketch)
    return record


def origin_record(example: Example) -> dict[str, str]:
    """Return the file, line and identifier of a row as JSON values, as far as they are known."""
    return without_none({"source": example.source, "id": example.row_id})


def _part(part: Part, answer: str | None) -> JsonObject:
    truth = None
    if answer is not None:
        truth = part_of(answer, part.name)
    return {
        "name": part.name,
        "label": part.label,
        "confidence": part.confidence,
        "probabilities": probability_record(part.distribution),
        "correct": None if truth is None else part.label == truth,
    }


def saved_parts(row: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a row's answer, as `row_record` wrote them; none where it is one label."""
    names = ("name", "label", "confidence")
    return [Part(**{name: part[name] for name in names}) for part in row.get("parts", ())]


def probability_record(distribution: LabelDistribution | None) -> dict[str, float] | None:
    """Return the probabilities by label as JSON; None without a distribution."""
    if distribution is None:
        return None
    return dict(zip(distribution.labels, distribution.probabilities.tolist(), strict=True))


def row_line(index: int, example: Example, prediction: Prediction) -> bytes:
    """Return the output line of a row; see `row_record`."""
    return record_line(row_record(index, example, prediction))


def record_line(record: Record, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return a record as one line of the file; `default` converts values that JSON lacks."""
    try:
        encode = _ENCODE
        if default is not None:
            encode = json.JSONEncoder(ensure_ascii=False, default=default).encode
        return encode(record).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which only the escaped form can hold
        return json.dumps(record, default=default).encode() + b"\n"


@dataclass(frozen=True, kw_only=True)
class StoredRow:
    """Line of an earlier session, compared with the input row at its position.

    Attributes
    ----------
    record : mapping
        The line.
    is_same : bool
        True if it is of that row: text, answer and context are equal.
    is_finished : bool
        True if the row has its final answer; one that failed with a transport error has not.
    """

    record: Record
    is_same: bool
    is_finished: bool

    @classmethod
    def read(cls, line: bytes, example: Example | None) -> StoredRow:
        """Read a line and compare it with an input row.

        Parameters
        ----------
        line : bytes
            One line of ``predictions.jsonl``, or of a shard.
        example : Example or None
            The row of the input today; None beyond its end.

        Raises
        ------
        KeyError, TypeError, ValueError, RecursionError
            The line does not hold a row.
        """
        record = json.loads(line)
        asked = record["input"], record["answer"] or "", record.get("context")
        return cls(
            record=record,
            is_same=example is not None and asked == (example.input, example.answer, example.context),
            is_finished=Outcome(record["outcome"]) is not Outcome.ERROR,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedRow:
    """Saved prediction with checked values.

    Attributes
    ----------
    values : mapping
        All of the row, as JSON values; see `row_record`.
    prompt : str
        The prompt of a search that the row belongs to; empty for rows of anything else.
    index : int or None
        Place of the row in the input, from 0; None where the row does not say.
    input, answer, label : str or None
        The text, its true label and the predicted one, where known.
    outcome : Outcome
        Outcome of the row; ``ok`` if the row has none.
    confidence : float
        Confidence in [0, 1]; NaN if missing.
    correct : int
        1 right, 0 wrong, -1 unknown: the row failed with a transport error, or its true label is not known.
    cost, latency_seconds : float
        US dollars and seconds, at least 0; NaN where unknown.
    called : bool
        False where the model's answer was known already.

    Examples
    --------
    >>> from calibrant.runs import SavedRow
    >>> row = SavedRow.checked({"label": "cat", "answer": "dog", "confidence": "0.9"})
    >>> row.correct, row.confidence, row.index
    (0, 0.9, None)
    """

    values: Record
    prompt: str
    index: int | None
    input: str | None
    answer: str | None
    label: str | None
    outcome: Outcome
    confidence: float
    correct: int
    cost: float
    latency_seconds: float
    called: bool

    @classmethod
    def checked(cls, values: Record) -> SavedRow:
        """Return a saved prediction from a raw row, after checks of its values.

        Parameters
        ----------
        values : mapping
            Has ``correct``, or ``label`` and ``answer``. Numbers may be texts, as in a CSV file.

        Raises
        ------
        ValueError
            A value is out of range or of another type; the message says which.
        """
        outcome = _outcome(values)
        prompt = values.get("prompt")
        return cls(
            values=values,
            prompt=prompt if prompt in (SEED, BEST, FINAL) else _EVALUATED,
            index=_index(values),
            input=_text(values, "input"),
            answer=_text(values, "answer"),
            label=_text(values, "label"),
            outcome=outcome,
            confidence=_confidence(values),
            correct=UNKNOWN if outcome is Outcome.ERROR else _correct(values),
            cost=_amount(values, "cost"),
            latency_seconds=_amount(values, "latency_seconds"),
            called=values.get("attempts", 1) != 0,
        )


def read_row(line: bytes) -> SavedRow:
    """Read one line of ``predictions.jsonl``.

    Raises
    ------
    ValueError
        The line is no JSON object, or holds no row.
    """
    return SavedRow.checked(_json_object(line))


def sketch_of(values: Record) -> HalfArray | None:
    """Return the sketch of a row's text; None if the row has none, or what it has is no sketch."""
    try:
        found = decode_half_floats(values["sketch"])
    except (KeyError, TypeError, ValueError):
        return None
    if len(found) and np.isfinite(found).all():
        return found
    return None


def has_low_label_mass(values: Record) -> bool:
    """Return True if the model would rather have written something else than any label, as far as a row says."""
    mass = values.get("label_mass")
    space = values.get("space")
    if mass is None or space is None:
        return False
    try:
        return is_label_mass_low(
            float(mass), float(values.get("unresolved_mass") or 0.0), LogprobSpace(space)
        )
    except (TypeError, ValueError):  # other people's columns may have these names
        return False


def row_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of ``predictions.jsonl``, without decoding them.

    Raises
    ------
    StateError
        The file is missing or cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise StateError(
            f"{path}: expected the predictions of a run ({error.strerror or error}): name the directory of a run, "
            "which `calibrant evaluate` or `calibrant optimize` writes."
        ) from error


@dataclass(kw_only=True)
class _RowFile:
    """File ``predictions.jsonl`` of a run.

    Attributes
    ----------
    path : Path
        The file.
    is_run : bool
        True if the directory has the manifest of a run, whose rows have all fields.
    is_torn : bool
        True once a reader came to a last line that was cut off. It is left out, unless the run ended.
    """

    path: Path
    is_run: bool
    is_torn: bool = False

    @property
    def is_finished(self) -> bool:
        """True if the run ended: its result or its metrics are beside the file."""
        return any(self.path.with_name(name).exists() for name in (RESULT, METRICS))

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """Yield the rows of the file, or those on the lines `wanted` alone, without decoding others.

        Raises
        ------
        DataError
            A line is broken, or is no row of this schema; the message names file and line.
        """
        for number, line in enumerate(row_lines(self.path), start=1):
            if wanted is not None and number not in wanted:
                continue
            try:
                values = _json_object(line, required=COLUMNS if self.is_run else ())
            except ValueError as error:
                if not self.is_finished and not line.endswith(b"\n"):
                    self.is_torn = True
                    return
                raise DataError(
                    f"expected the line of a row, got one that does not fit ({error}): restore the file, or run the "
                    "same command in a new directory.",
                    path=self.path,
                    line=number,
                ) from error
            yield Row(values=values, path=self.path, line=number)


@dataclass(kw_only=True)
class _Evidence:
    """Space and labels of the first rows that have them.

    Attributes
    ----------
    space : LogprobSpace or None
        Space of a row's log-probabilities.
    label_set : tuple of str or None
        Labels of a row's distribution.
    """

    space: LogprobSpace | None = None
    label_set: tuple[str, ...] | None = None

    def add(self, values: Record) -> None:
        """Note space and labels of a row, if no row before had them."""
        if self.space is None and values.get("space") in _SPACES:
            self.space = LogprobSpace(values["space"])
        if self.label_set is None and isinstance(values.get("probabilities"), dict):
            self.label_set = tuple(values["probabilities"])

    def fingerprint(self, origin: tuple[Path, JsonObject]) -> Fingerprint | None:
        """Return the fingerprint that a run's manifest or result records; None while too little is known."""
        source, record = origin
        if self.space is None:
            return None
        described = record.get("described") or record  # a batch job describes itself inside its state
        try:
            if "best_candidate" in record:
                prompt = _best_prompt(record["best_candidate"], source.parent)
            else:
                prompt = asked_text(
                    described["prompt"], described["user_template"], described.get("demonstrations")
                )
            # A run of answers with a structure writes its labels down itself.
            written = described.get("label_set")
            labels = self.label_set if written is None else labels_from_record(written)
            if labels is None:
                return None
            return Fingerprint(prompt=prompt, model=described["model"], space=self.space, labels=labels)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged_origin(source, error) from error


def read_fingerprint(directory: Path) -> Fingerprint | None:
    """Read the fingerprint of a run's predictions; of a search, of those under its best prompt.

    The first row with a distribution tells enough: those behind it are neither read nor checked.

    Returns
    -------
    Fingerprint or None
        None where no row has a distribution, or the directory does not say what was asked.

    Raises
    ------
    DataError
        There is no row, or one of the first ones is broken.
    StateError
        The manifest or result is damaged, or the rows cannot be read.
    """
    origin = read_origin(directory)
    prompt = _EVALUATED
    if origin is not None and "best_candidate" in origin[1]:
        prompt = BEST if origin[1].get("final") is None else FINAL
    path = directory / PREDICTIONS
    evidence = _Evidence()
    row = None
    for row in _RowFile(path=path, is_run=origin is not None).read():
        if origin is None:
            return None
        if row.values.get("prompt", _EVALUATED) == prompt:
            evidence.add(row.values)
            fingerprint = evidence.fingerprint(origin)
            if fingerprint is not None:
                return fingerprint
    if row is None:
        raise _no_rows(path)
    return None


def _json_object(line: bytes, *, required: Sequence[str] = ()) -> JsonObject:
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, got {record!r:.40}")  # noqa: TRY004 (one error for all lines)
    missing = [name for name in required if name not in record]
    if missing:
        raise ValueError(f"schema version {SCHEMA_VERSION} has {', '.join(missing)}, too")
    return record


@dataclass(frozen=True, kw_only=True)
class _OtherRows:
    """Rows in memory, or of a file that is not a run's."""

    path: Path | None = None
    rows: Sequence[Row] = ()
    is_run: bool = False
    is_torn: bool = False

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Row]:
        """Yield the rows, or those on the lines `wanted` alone."""
        rows: Iterable[Row] = self.rows
        if self.path is not None:
            # It may be a copy of ours, which holds more than the text that was asked about.
            rows = read_rows(self.path, max_row_bytes=MAX_RUN_ROW_BYTES)
        yield from (row for row in rows if wanted is None or row.line in wanted)


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedRows:
    """Rows with their predictions as columns, in the order of the file.

    Columns of numbers and labels are in memory; texts and all else are read again when they are asked for.

    Attributes
    ----------
    name : str
        Directory or file of the predictions.
    path : Path
        File of the rows.
    prompt : str
        The prompt of a search that they belong to; empty for rows of anything else.
    index : ndarray of int, shape (n,)
        Position of each row in the input it was read from; no two are equal.
    answers, labels : tuple of (str or None), length n
        The true label and the predicted one, where known.
    outcomes : tuple of Outcome, length n
        Outcome of each row.
    confidence : ndarray of float, shape (n,)
        In [0, 1]; NaN if missing.
    correct : ndarray of int, shape (n,)
        1 right, 0 wrong, -1 unknown: the row failed with a transport error (outcome ``error``), or its true
        label is not known.
    cost : ndarray of float, shape (n,)
        Cost of each answer in US dollars; NaN if no price is known.
    latency_seconds : ndarray of float, shape (n,)
        Duration of each answer; NaN if it is not known.
    called : ndarray of bool, shape (n,)
        False where the model's answer was known already.
    fields : frozenset of str
        Names of all fields that occur in the rows.
    label_set : tuple of str or None
        All labels, if a row lists them.
    space : LogprobSpace or None
        Log-probability space, if a row names it.
    fingerprint : Fingerprint or None
        Circumstances of the predictions, if the directory records them.
    rows_with_low_label_mass : int
        Rows on which the model would rather have written something else than any label, as far as rows say.
    models : frozenset of str
        Models that answered, as far as rows say.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant import BatchEvaluator, Classifier, Example
    >>> from calibrant.runs import SavedRows
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9), "barks": ("cat", 0.6)})
    >>> rows = [Example(input="purrs", answer="cat"), Example(input="barks", answer="dog")]
    >>> out = tempfile.mkdtemp()
    >>> _ = BatchEvaluator(Classifier(model=fake, labels=["cat", "dog"], field="category")).evaluate(rows, out=out)
    >>> saved = SavedRows.load(out)
    >>> saved.labels, saved.correct.tolist(), saved.confidence.round(2).tolist()
    (('cat', 'cat'), [1, 0], [0.9, 0.6])
    >>> [round(row.values["probabilities"]["dog"], 3) for row in saved.rows()]
    [0.1, 0.4]
    """

    name: str
    path: Path
    prompt: str
    index: IntegerArray
    answers: tuple[str | None, ...]
    labels: tuple[str | None, ...]
    outcomes: tuple[Outcome, ...]
    confidence: FloatArray
    correct: NDArray[np.int8]
    cost: FloatArray
    latency_seconds: FloatArray
    called: BoolArray
    fields: frozenset[str]
    label_set: tuple[str, ...] | None
    space: LogprobSpace | None
    fingerprint: Fingerprint | None
    rows_with_low_label_mass: int
    models: frozenset[str]
    _line: IntegerArray = field(repr=False)
    _source: _RowFile | _OtherRows = field(repr=False)

    @cached_property
    def legal_labels(self) -> LabelSet | None:
        """Labels that an answer may be, by the run or else by the rows; None where neither says it."""
        origin = read_origin(self.path.parent) if self.path.name == PREDICTIONS else None
        written = None if origin is None else origin[1].get("label_set")
        if written is not None:
            return labels_from_record(written)
        return None if self.label_set is None else LabelSet(self.label_set)

    def spelled(self, answer: str) -> str:
        """Return an answer as the rows spell it; itself if none of their labels is equal up to case and space."""
        return self._spellings.get(normalise_label(answer), answer)

    @cached_property
    def _spellings(self) -> dict[str, str]:
        different = dict.fromkeys((*self.labels, *self.answers))
        return {normalise_label(label): label for label in different if label is not None}

    @classmethod
    def load(cls, path: str | Path) -> SavedRows:
        """Read saved rows; of a search those under its best prompt, with its head if it has one.

        Parameters
        ----------
        path : path
            A directory of `calibrant evaluate`, `calibrant batch` or `calibrant optimize`, or a file of predictions:
            JSON Lines, CSV or Parquet. A row needs ``correct``, or ``label`` and ``answer``; it may have
            ``confidence``, ``cost``, ``latency_seconds``, ``input``, ``index`` (by default its place) and ``outcome``
            (by default ``ok``). Rows of a run have all of these, and more.

        Raises
        ------
        DataError
            The file is missing, or a row is invalid or of another schema; the message names file and line.
        StateError
            The directory's ``run.json`` or ``result.json`` is damaged.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from calibrant.runs import SavedRows
        >>> path = Path(tempfile.mkdtemp()) / "mine.jsonl"
        >>> _ = path.write_text('{"input": "purrs", "label": "cat", "answer": "dog", "confidence": 0.9}')
        >>> saved = SavedRows.load(path)
        >>> len(saved), saved.inputs, saved.correct.tolist(), saved.confidence.tolist()
        (1, ('purrs',), [0], [0.9])
        """
        found = cls.by_prompt(path)
        for prompt in _CHOSEN:
            if prompt in found:
                return found[prompt]
        raise DataError("expected rows of the best prompt, got none: choose another file.", path=Path(path))

    @classmethod
    def by_prompt(cls, path: str | Path) -> dict[str, SavedRows]:
        """Read the saved rows of every prompt; see `load`.

        Returns
        -------
        dict of str to SavedRows
            By prompt: ``seed``, ``best`` and, where a head was learned, ``final``; an empty text for rows of anything
            but a search.
        """
        place = Path(path)
        file = place / PREDICTIONS if place.is_dir() else place
        if not file.exists() and not place.is_dir():
            raise DataError("no such file or directory: check the path.", path=file)
        origin = read_origin(file.parent)
        source: _RowFile | _OtherRows = _OtherRows(path=file)
        if file.name == PREDICTIONS:
            source = _RowFile(path=file, is_run=origin is not None)
        found = _read_columns(source, name=str(path), path=file)
        if origin is None:
            return found
        for prompt, rows in found.items():
            if prompt != SEED:  # a result describes the best prompt
                evidence = _Evidence(space=rows.space, label_set=rows.label_set)
                found[prompt] = replace(rows, fingerprint=evidence.fingerprint(origin))
        return found

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        *,
        name: str = "predictions",
        fingerprint: Fingerprint | None = None,
    ) -> SavedRows:
        """Return rows in memory, all under one prompt, as checked columns; see `load`.

        Parameters
        ----------
        records : iterable of mapping
            Such as the lines of ``predictions.jsonl``. Where they have several prompts, those of the last one count.
        name : str, default "predictions"
            Name of the predictions, also in messages.
        fingerprint : Fingerprint, optional
            Circumstances that the predictions depend on.

        Raises
        ------
        DataError
            A row is invalid, or there is none; the message names its place, from 1.
        """
        path = Path(name)
        rows = [Row(values=record, path=path, line=line) for line, record in enumerate(records, start=1)]
        found = _read_columns(_OtherRows(rows=rows), name=name, path=path)
        *_, last = found.values()
        return replace(last, fingerprint=fingerprint)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.index)

    @cached_property
    def inputs(self) -> tuple[str | None, ...]:
        """The text of each row, where it is known."""
        return tuple(row.input for row in self.rows())

    @property
    def is_torn(self) -> bool:
        """True if the last line was cut off by a kill, and left out."""
        return self._source.is_torn

    @property
    def has_stand_ins(self) -> bool:
        """True if labels of a model stand in for true ones."""
        return STANDS_IN in self.fields

    @property
    def failed(self) -> BoolArray:
        """Mask of rows without an answer because of a transport error, shape (n,)."""
        return np.array([outcome is Outcome.ERROR for outcome in self.outcomes], dtype=np.bool_)

    def invalid(self, place: int, reason: str) -> DataError:
        """Return the error for the row at a place, with its file and line."""
        return _invalid_row(reason, self.path, line=int(self._line[place]))

    def rows(self, places: Iterable[int] | None = None) -> Iterator[SavedRow]:
        """Yield the rows, read again from the file, in its order.

        Parameters
        ----------
        places : iterable of int, optional
            Yield the rows at these places alone, from 0.

        Raises
        ------
        DataError
            The file has changed, and a row is invalid now.
        """
        wanted = None
        if places is not None:
            wanted = frozenset(self._line[list(places)].tolist())
        for row in self._source.read(wanted):
            checked = _checked(row)
            if checked.prompt == self.prompt:
                yield checked


class _Columns:
    """Growing columns of one prompt's rows, before they become arrays."""

    def __init__(self) -> None:
        self.line = array("q")
        self.numbers: dict[str, array[Any]] = {name: array(kind) for name, kind in _NUMBERS.items()}
        self.answers: list[str | None] = []
        self.labels: list[str | None] = []
        self.outcomes: list[Outcome] = []
        self.fields: set[str] = set()
        self.evidence = _Evidence()
        self.low_label_mass = 0
        self.models: set[str] = set()

    def add(self, row: SavedRow, line: int) -> None:
        """Add a row; one that does not know its place has the next one."""
        values = row.values
        place = len(self.line)
        self.line.append(line)
        for name, column in self.numbers.items():
            number = getattr(row, name)
            column.append(place if number is None else number)
        # Millions of rows have few labels, and every line has a text of its own for its label.
        self.answers.append(row.answer and sys.intern(row.answer))
        self.labels.append(row.label and sys.intern(row.label))
        self.outcomes.append(row.outcome)
        self.fields.update(values)
        if row.outcome is not Outcome.ERROR:
            self.low_label_mass += has_low_label_mass(values)
            self.models.add(str(values.get("model") or ""))
        self.evidence.add(values)

    def spell_alike(self) -> None:
        """Spell labels that are equal up to case and surrounding space as the first of them, or as the label set."""
        texts = [*(self.evidence.label_set or ()), *self.labels, *self.answers]
        first: dict[str, str] = {}
        spelled: dict[str | None, str | None] = {None: None}
        for text in dict.fromkeys(texts):
            if text is not None:
                spelled[text] = first.setdefault(normalise_label(text), text.strip() or text)
        self.labels = [spelled[label] for label in self.labels]
        self.answers = [spelled[answer] for answer in self.answers]


def _read_columns(source: _RowFile | _OtherRows, *, name: str, path: Path) -> dict[str, SavedRows]:
    """Read all rows once, and return their columns by prompt."""
    found: defaultdict[str, _Columns] = defaultdict(_Columns)
    for row in source.read():
        checked = _checked(row)
        found[checked.prompt].add(checked, row.line)
    if not found:
        raise _no_rows(path)
    rows = {}
    for prompt, columns in found.items():
        if not source.is_run:  # whose labels are spelled as in its task
            columns.spell_alike()
        arrays: dict[str, Any] = {}
        for column, values in columns.numbers.items():
            arrays[column] = np.array(values)
        arrays["called"] = arrays["called"] != 0
        rows[prompt] = SavedRows(
            name=name,
            path=path,
            prompt=prompt,
            **arrays,
            answers=tuple(columns.answers),
            labels=tuple(columns.labels),
            outcomes=tuple(columns.outcomes),
            fields=frozenset(columns.fields),
            label_set=columns.evidence.label_set,
            space=columns.evidence.space,
            fingerprint=None,
            rows_with_low_label_mass=columns.low_label_mass,
            models=frozenset(columns.models - {""}),
            _line=np.array(columns.line),
            _source=source,
        )
        _check_index(rows[prompt])
    return rows


def _no_rows(path: Path) -> DataError:
    return DataError(
        "expected at least one row, got none: wait for the first answers, or run again.", path=path
    )


def _check_index(rows: SavedRows) -> None:
    _, first = np.unique(rows.index, return_index=True)
    if len(first) < len(rows):
        again = int(np.setdiff1d(np.arange(len(rows)), first)[0])
        raise rows.invalid(again, f"expected every index once, got {rows.index[again]} again")


def _checked(row: Row) -> SavedRow:
    try:
        return SavedRow.checked(row.values)
    except ValueError as error:
        raise _invalid_row(str(error), row.path, line=row.line) from error


def _invalid_row(message: str, path: Path, *, line: int) -> DataError:
    return DataError(f"{message}: correct the row, or leave it out.", path=path, line=line)


def _best_prompt(best: Mapping[str, str], directory: Path) -> str:
    """Return the best prompt of a search, as it was asked."""
    shown = None
    if best.get("demonstrations", "").strip():
        rows = (directory / DEMONSTRATIONS).read_text(encoding="utf-8")
        shown = demonstrated(DemonstrationSettings.from_text(best["demonstrations"]), rows)
    return asked_text(best["system_prompt"], best.get("user_template"), shown)


def _index(values: Record) -> int | None:
    if "index" not in values:
        return None
    value = values["index"]
    if type(value) is int and value >= 0:
        return value
    text = str(value).strip()
    is_number = text.isascii() and text.isdigit() and len(text) < 19
    if isinstance(value, bool) or not is_number:
        raise ValueError(f"expected index to be a whole number from 0, got {value!r:.40}")
    return int(text)


def _outcome(values: Record) -> Outcome:
    value = values.get("outcome") or "ok"
    if value in ("ok", "error"):  # nearly all are, and a look-up in the enumeration takes longer
        return Outcome.OK if value == "ok" else Outcome.ERROR
    try:
        return Outcome(value)
    except ValueError as error:
        known = ", ".join(Outcome)
        raise ValueError(f"expected outcome to be one of {known}, got {value!r:.40}") from error


def _text(values: Record, name: str) -> str | None:
    value = values.get(name)
    if value is None or (isinstance(value, str) and (value or name == "input")):
        return value
    if value == "":
        return None  # a CSV file's way to say that there is none
    raise ValueError(f"expected {name} to be text, got {type(value).__name__}")


def _number(values: Record, name: str, expected: str, *, least: float, most: float) -> float:
    """Return a number of a row, NaN if missing; numeric strings are parsed, as in a CSV file."""
    value = values.get(name)
    if value is None or value == "":
        return math.nan
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most:
        raise ValueError(f"expected {name} to be {expected} or null, got {value!r:.40}")
    return number


def _confidence(values: Record) -> float:
    expected = "a probability in [0, 1]"
    number = _number(values, "confidence", expected, least=-_ROUNDING, most=1.0 + _ROUNDING)
    if math.isnan(number):
        return number
    return min(max(number, 0.0), 1.0)


def _amount(values: Record, name: str) -> float:
    return _number(values, name, "a number of at least 0", least=0.0, most=sys.float_info.max)


def _correct(values: Record) -> int:
    """Return 1 or 0 for the stored or computed correctness of a row, -1 if it is unknown."""
    if "correct" in values:
        value = values["correct"]
        if value is True or value is False:
            return int(value)
        if value is None or value == "":
            return UNKNOWN
        found = _CORRECT.get(str(value).strip().lower())
        if found is None:
            raise ValueError(f"expected correct to be true, false or null, got {value!r:.40}")
        return found
    if "label" not in values:
        raise ValueError(
            "expected label, and answer where the true one is known, or correct, got only "
            f"{', '.join(values)!r:.80}"
        )
    if values.get("answer") in (None, ""):
        return UNKNOWN
    label, answer = values["label"], values["answer"]
    if label == answer or not (isinstance(label, str) and isinstance(answer, str)):
        return int(label == answer)
    return int(normalise_label(label) == normalise_label(answer))
