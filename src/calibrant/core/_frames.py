"""Texts and examples from data frames, series and Hugging Face datasets, and answers as columns of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._labels import label_text
from calibrant.core._prediction import Prediction
from calibrant.core._rows import Example, TextWithContext

if TYPE_CHECKING:
    import pandas as pd


class _HasColumns(Protocol):
    """Data frame of pandas or polars, or a table of pyarrow."""

    @property
    def columns(self) -> Any:  # noqa: ANN401 (lists and indexes)
        ...


class _ColumnNames(Protocol):
    """Hugging Face dataset."""

    @property
    def column_names(self) -> Any:  # noqa: ANN401 (as above)
        ...


Frame: TypeAlias = _HasColumns | _ColumnNames
"""Data frame of pandas or polars, table of pyarrow, or Hugging Face dataset."""

FrameT = TypeVar("FrameT", bound=Frame)
_SHOWN: Final = 3  # rows that a message names
_NULLS: Final = frozenset({"NoneType", "NAType", "NaTType"})
# Methods that give the values of series and arrays as Python objects.
_TO_LIST: Final = ("to_list", "tolist", "to_pylist")
_NUMBERS: Final = ("confidence", "cost")
ANSWER_COLUMNS: Final = ("label", "confidence", "decision", "outcome", "provider", "cost")
"""Columns of a labelled frame, beside its own."""

DECISIONS: Final = {True: "accepted", False: "review", None: None}
"""Decisions by `Prediction.accepted`."""


@dataclass(frozen=True, kw_only=True)
class _TextColumn:
    """Values of a column, and the names of the column and its rows in messages."""

    name: str
    cells: list[Any]
    index: Any = None

    def missing(self) -> list[int]:
        """Return the positions of rows without a value, or with a blank text."""
        return [
            place
            for place, value in enumerate(self.cells)
            if _is_missing(value) or (isinstance(value, str) and not value.strip())
        ]

    def texts(self, *kinds: type, with_blanks: bool = False) -> list[Any]:
        """Return the values, which must be texts or of one of `kinds`; refuse missing ones, or replace them by ""."""
        allowed = (str, *kinds)
        if not with_blanks:
            self.refuse([place for place, value in enumerate(self.cells) if _is_missing(value)])
        texts = ["" if _is_missing(value) else value for value in self.cells]
        for place, value in enumerate(texts):
            if not isinstance(value, allowed):
                remedy = "convert the column to text first"
                if isinstance(value, list | tuple | dict | np.ndarray):
                    remedy = "write each value as JSON, as json.dumps does"
                raise DataError(
                    f"Expected text in every row of {self.name}, got {value!r:.60} ({type(value).__name__}) at "
                    f"{self.row(place)}: {remedy}."
                )
        return texts

    def refuse(self, missing: Sequence[int]) -> None:
        """Raise DataError if rows lack a text."""
        if missing:
            first = ", ".join(map(self.row, missing[:_SHOWN]))
            raise DataError(
                f"Expected text in every row of {self.name}, got none in {len(missing):,} of {len(self.cells):,}, "
                f"first at {first}: drop these rows, or fill them."
            )

    def row(self, place: int) -> str:
        """Return the name of a row: its position from 0, and its entry in the index, if there is one."""
        return f"position {place}" + (
            "" if self.index is None else f" (index {_plain(self.index[place])!r:.40})"
        )


def _plain(value: object) -> object:
    """Return a scalar of NumPy as Python's own, and any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def is_frame(value: object) -> bool:
    """Return True for a data frame, a table or a Hugging Face dataset; nothing is imported for it."""
    return any(hasattr(type(value), name) for name in ("columns", "column_names"))


def texts_of(
    values: Iterable[Any], *, what: str = "texts", with_blanks: bool = False, are_labels: bool = False
) -> list[Any]:
    """Return the texts of a list, array, series, column of a dataset, or frame with one column.

    Parameters
    ----------
    values : iterable
        The texts.
    what : str, default "texts"
        Names them in messages.
    with_blanks : bool, default False
        True to take missing values for empty texts.
    are_labels : bool, default False
        True to take whole numbers and truth values for texts.

    Raises
    ------
    ConfigurationError
        `values` is one text, a mapping, or a frame with several columns.
    DataError
        A row holds no text; names the first ones by position and index.
    """
    if isinstance(values, str | Mapping):
        kind = "one text" if isinstance(values, str) else "a mapping"
        raise ConfigurationError(f"Expected a list or a column of {what}, got {kind}: pass a list.")
    if is_frame(values):
        names = column_names(values)
        if len(names) != 1:
            raise ConfigurationError(
                f"Expected one column of {what}, got a frame with {_listed(names)}: name the column."
            )
        column = _frame_column(values, names[0])
    else:
        index = getattr(values, "index", None)
        index = None if callable(index) or not hasattr(index, "__getitem__") else index
        column = _TextColumn(name=f"the {what}", cells=values_of(values), index=index)
    if are_labels:
        column = replace(column, cells=list(map(label_text, column.cells)))
    return column.texts(TextWithContext, with_blanks=with_blanks)


def frame_texts(frame: Frame, text: str, *, with_blanks: bool = False) -> list[str]:
    """Return the texts in a column of a frame.

    Parameters
    ----------
    frame : data frame, table or dataset
        The rows, in memory.
    text : str
        Name of the column.
    with_blanks : bool, default False
        True to take rows without a text for empty texts.

    Raises
    ------
    ConfigurationError
        It is no frame, its rows are not in memory, or it has no such column.
    DataError
        A row holds no text.
    """
    column = _frame_column(frame, text)
    if not with_blanks:
        column.refuse(column.missing())
    return column.texts(with_blanks=with_blanks)


def frame_values(frame: Frame) -> list[list[Any]]:
    """Return the values of all columns of a frame; missing ones (NaN, NaT, NA) are None."""
    return [values_or_none(_frame_column(frame, name).cells) for name in column_names(frame)]


def frame_examples(
    frame: Frame, *, text: str, label: str, on_unlabelled: Callable[[int], object] | None = None
) -> list[Example]:
    """Return the rows of a frame as examples.

    Parameters
    ----------
    frame : data frame, table or dataset
        The rows, in memory.
    text, label : str
        Names of the columns. Numbers of a dataset's `ClassLabel` become its names, other whole numbers texts.
    on_unlabelled : callable, optional
        Rows without a label are left out, and their number is handed to it; by default they are refused.

    Raises
    ------
    ConfigurationError
        As `frame_texts`.
    DataError
        There are no rows, or one lacks a text or a label.
    """
    inputs = _frame_column(frame, text)
    answers = _frame_column(frame, label)
    answers = replace(answers, cells=list(map(label_text, answers.cells)))
    if not inputs.cells:
        raise DataError("Expected at least one row, got an empty frame.")
    inputs.refuse(inputs.missing())
    unlabelled = answers.missing()
    if on_unlabelled is None or len(unlabelled) == len(answers.cells):
        answers.refuse(unlabelled)
    elif unlabelled:
        on_unlabelled(len(unlabelled))
    rows = zip(inputs.texts(), answers.texts(with_blanks=True), strict=True)
    return [Example(input=one, answer=answer) for one, answer in rows if answer.strip()]


def label_names(frame: Frame, label: str) -> Sequence[str] | None:
    """Return the names that a dataset declares for a column of labels, in its order; None if it declares none."""
    features = None
    if _is_dataset(frame):
        features = getattr(frame, "features", None)
    names: Sequence[str] | None = getattr((features or {}).get(label), "names", None)
    return names


def answering_model(prediction: Prediction) -> str | None:
    """Return the name of the model that answered; in a cascade, its name there."""
    steps = ((step.model, step.label, step.confidence) for step in prediction.steps)
    return model_of_steps(steps, prediction.label, prediction.confidence) or prediction.model


def model_of_steps(
    steps: Iterable[tuple[str, str | None, float | None]], label: str | None, confidence: float | None
) -> str | None:
    """Return the model of a cascade whose answer was taken; None if no step has that label.

    Of models that gave the same label, it is the last one of those with the confidence of the row.

    Parameters
    ----------
    steps : iterable of (str, str or None, float or None)
        Model, label and confidence of each step, in order.
    label, confidence
        Those of the row.
    """
    taken = agreeing = None
    for model, found, own in steps:
        if found != label:
            continue
        agreeing = model
        if own == confidence:
            taken = model
    return taken or agreeing


def answer_of(prediction: Prediction) -> tuple[Any, ...]:
    """Return the values of `ANSWER_COLUMNS`; in a cascade the provider is the model whose answer was taken."""
    return (
        prediction.label,
        prediction.confidence,
        DECISIONS[prediction.accepted],
        prediction.outcome.value,
        answering_model(prediction),
        prediction.usage.cost,
    )


def with_answers(
    frame: FrameT, answers: Iterable[Sequence[Any]], *, columns: Sequence[str] = ANSWER_COLUMNS
) -> FrameT:
    """Return a copy of a frame with the columns of the answers, of the same kind and with the same index.

    Parameters
    ----------
    frame : data frame, table or dataset
        The rows, in memory.
    answers : iterable of sequences
        Values of `columns`, in the order of the rows; those of the last rows may be missing, and are null then.
    columns : sequence of str
        Their names; one that the frame has already gets the prefix ``calibrant_``.

    Raises
    ------
    ConfigurationError
        A name with its prefix is taken, too, or as `frame_texts`.
    """
    rows = list(answers)
    rows += [(None,) * len(columns)] * (len(frame) - len(rows))  # type: ignore[arg-type]
    names = answer_names(frame, columns=columns)
    found = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    if _is_dataset(frame):
        import datasets  # noqa: PLC0415 (loaded by whoever made the frame)

        # One by one, its `add_column` takes five times as long.
        more = datasets.Dataset.from_dict(found)
        return datasets.concatenate_datasets([frame, more], axis=1)  # type: ignore[no-any-return]
    import narwhals as nw  # noqa: PLC0415 (only where there is a frame)

    opened = _opened(frame)
    kinds = [nw.Float64 if name in _NUMBERS else nw.String for name in columns]
    series = [
        nw.new_series(name, values, kind, backend=opened.implementation)
        for (name, values), kind in zip(found.items(), kinds, strict=True)
    ]
    return nw.to_native(opened.with_columns(*series))  # type: ignore[no-any-return]


def answer_names(frame: Frame, *, columns: Sequence[str] = ANSWER_COLUMNS) -> list[str]:
    """Return the names of the columns of answers in a labelled frame.

    Raises
    ------
    ConfigurationError
        A name with its prefix is taken, too, or as `frame_texts`.
    """
    taken = column_names(frame)
    return [free_name(name, taken) for name in columns]


def free_name(name: str, taken: Collection[object]) -> str:
    """Return `name`, with the prefix ``calibrant_`` if it is among those taken.

    Raises
    ------
    ConfigurationError
        The name with its prefix is taken, too.
    """
    if name not in taken:
        return name
    other = f"calibrant_{name}"
    if other in taken:
        raise ConfigurationError(
            f"Expected a free name for the column {name!r}, but {name!r} and {other!r} are both there: rename one."
        )
    return other


def column_names(frame: Any) -> list[Any]:  # noqa: ANN401 (of a package that is not imported)
    """Return the names of a frame's columns.

    Raises
    ------
    ConfigurationError
        As `frame_texts`.
    """
    if _is_dataset(frame):
        names = frame.column_names
        if isinstance(names, Mapping):
            raise ConfigurationError(
                f"Expected one split of a dataset, got all: {', '.join(map(str, names))}: pass one of them."
            )
        if not hasattr(type(frame), "__len__"):
            raise ConfigurationError(
                "Expected a dataset whose rows can be read again, got one that is streamed: load it without streaming."
            )
        return list(names)
    return list(_opened(frame).columns)


def pandas_frame(columns: Mapping[str, Sequence[Any]], index: object = None) -> pd.DataFrame:
    """Return columns as a data frame of pandas.

    Parameters
    ----------
    columns : mapping of str to sequence
        Values by name.
    index : pandas.Index, optional
        Names of the rows; by default their positions.

    Raises
    ------
    ConfigurationError
        pandas is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise ConfigurationError(
            f"A data frame of pandas needs pandas, which is not installed ({error}): run pip install pandas."
        ) from error
    return pd.DataFrame(dict(columns), index=index)


def values_of(values: Iterable[Any]) -> list[Any]:
    """Return the values of a list, a series or an array with one column as Python objects."""
    if isinstance(values, list | tuple):
        return list(values)
    has_two_axes = getattr(values, "ndim", 1) == 2
    if has_two_axes and getattr(values, "shape", ())[1:] == (1,):
        values = values.reshape(-1)  # type: ignore[attr-defined]
    for method in _TO_LIST:
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def values_or_none(values: Iterable[Any]) -> list[Any]:
    """Return the values of a list, a series or an array by position; missing ones (NaN, NaT, NA) are None."""
    return [None if _is_missing(value) else value for value in values_of(values)]


def _is_missing(value: object) -> bool:
    return type(value).__name__ in _NULLS or (isinstance(value, float) and value != value)  # noqa: PLR0124 (NaN)


def _is_dataset(frame: Any) -> bool:  # noqa: ANN401 (as above)
    # A table of pyarrow has both.
    return hasattr(type(frame), "column_names") and not hasattr(type(frame), "columns")


def _frame_column(frame: Any, name: str) -> _TextColumn:  # noqa: ANN401 (as above)
    names = column_names(frame)
    if name not in names:
        raise ConfigurationError(f"Expected a column {name!r}, got a frame with {_listed(names)}.")
    what = f"column {name!r}"
    if not _is_dataset(frame):
        import narwhals as nw  # noqa: PLC0415 (only where there is a frame)

        series = _opened(frame).get_column(name)
        return _TextColumn(name=what, cells=series.to_list(), index=nw.maybe_get_index(series))
    values = values_of(frame[name][:])
    classes = label_names(frame, name)
    if classes is not None:  # -1 stands for a row without a label
        values = [
            classes[one] if isinstance(one, int) and 0 <= one < len(classes) else None for one in values
        ]
    return _TextColumn(name=what, cells=values)


def _opened(frame: object) -> Any:  # noqa: ANN401 (a frame of narwhals, over any of its packages)
    """Return the narwhals frame over a frame in memory."""
    import narwhals as nw  # noqa: PLC0415 (only where there is a frame)

    try:
        opened = nw.from_native(frame)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            "Expected a frame of pandas, polars or pyarrow with distinct names of columns, or a Hugging Face dataset, "
            f"got {type(frame).__name__} ({error!s:.200})."
        ) from error
    if isinstance(opened, nw.LazyFrame):
        raise ConfigurationError(
            f"Expected a frame whose rows are in memory, got a lazy {type(frame).__name__}: call its collect() first."
        )
    return opened


def _listed(names: Sequence[object]) -> str:
    return f"the columns {', '.join(map(repr, names)) or 'none'!s:.300}"
