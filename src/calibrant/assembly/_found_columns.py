"""Text, label and split columns of a data file, found by what the columns hold."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from calibrant.core._errors import DataError
from calibrant.core._labels import label_text, normalise_label
from calibrant.core._rows import SPLIT_NAMES

MOST_LABELS: Final = 200
"""Largest number of labels that are taken without being named."""

Ask: TypeAlias = Callable[[str, Sequence[str]], str]
"""Asks a question at a terminal and returns one of the answers, the first of which is proposed."""

_NUMBER: Final = re.compile(r"[-+]?[\d.,\s]*\d\s*[%€$£]?|[€$£]\s*[\d.,]*\d")
_DATE: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ]\d{1,2}:.*)?|\d{1,2}:\d{2}(:\d{2})?")
_ID: Final = re.compile(r"[\w/-]*\d[\w/-]*")
_ID_NAMES: Final = frozenset(["id", "nr", "no", "number", "key", "code", "ticket", "uuid"])
_CODE: Final = re.compile(r"\S*\d\S*")
_MOST_CODES: Final = 20  # more values with a digit and no space are ids
_TEXT_NAMES: Final = frozenset(
    ["text", "message", "body", "content", "input", "review", "comment", "description", "question"]
)
_LABEL_NAMES: Final = frozenset(
    (
        *("label", "labels", "category", "class", "topic", "answer", "intent"),
        *("sentiment", "target", "kind", "tag", "type"),
    )
)
_MAX_SCORED_ROWS: Final = 1_000  # rows on which label columns are compared
_MAX_SCORES: Final = 50_000  # the same, times the number of labels


@dataclass(frozen=True)
class Column:
    """Column of a data file, with its first cells as text; labels may also be whole numbers."""

    name: str
    cells: tuple[str, ...]
    is_text: bool = True
    is_label: bool = True

    @cached_property
    def filled(self) -> list[str]:
        """Cells that are not blank."""
        return [cell for cell in self.cells if cell.strip()]

    @cached_property
    def counts(self) -> Counter[str]:
        """Number of cells by normalised value."""
        return Counter(map(normalise_label, self.filled))

    @cached_property
    def mean_length(self) -> float:
        """Mean number of characters of a filled cell."""
        return sum(map(len, self.filled)) / max(len(self.filled), 1)

    @cached_property
    def mean_words(self) -> float:
        """Mean number of words of a filled cell."""
        return sum(len(cell.split()) for cell in self.filled) / max(len(self.filled), 1)

    @cached_property
    def distinct_share(self) -> float:
        """Number of different values, as a share of the filled cells."""
        return len(self.counts) / max(len(self.filled), 1)

    def is_called(self, names: Collection[str]) -> bool:
        """Return True if the column's name is one of `names`."""
        return normalise_label(self.name) in names

    def holds(self, pattern: re.Pattern[str]) -> bool:
        """Return True if nearly all filled cells match a pattern."""
        matches = sum(pattern.fullmatch(cell.strip()) is not None for cell in self.filled)
        return matches >= 0.9 * max(len(self.filled), 1)

    @property
    def is_number(self) -> bool:
        """True if the column holds numbers."""
        return self.holds(_NUMBER)

    @property
    def is_value(self) -> bool:
        """True if the column holds numbers or dates."""
        return self.is_number or self.holds(_DATE)

    @property
    def could_be_text(self) -> bool:
        """True for mostly different texts of several words, or of 8 characters in scripts without spaces."""
        wide = not "".join(self.filled[:100]).isascii() and self.mean_length >= 8
        return not self.is_value and self.distinct_share > 0.3 and (self.mean_words >= 2 or wide)

    @property
    def could_be_label(self) -> bool:
        """True for a few short values that repeat."""
        few = 1 < len(self.counts) <= MOST_LABELS and len(self.filled) >= 2 * len(self.counts)
        is_id = len(self.counts) > _MOST_CODES and self.holds(_CODE)
        return few and self.mean_length <= 60 and not is_id and not self.holds(_DATE)

    @property
    def could_be_id(self) -> bool:
        """True for codes or whole numbers of which every row has its own."""
        distinct = len(set(self.cells)) == len(self.filled) == len(self.cells) > 1
        return distinct and all(map(_ID.fullmatch, self.cells)) and not self.holds(_DATE)


@dataclass(frozen=True, kw_only=True)
class FoundColumns:
    """Columns of a task, with the reasons why they were chosen.

    Attributes
    ----------
    text, label : str
        Names of the columns.
    text_reason, label_reason : str
        Reason for each, in a few words.
    split : str or None
        Name of a column that says train, validation or test.
    row_id : str or None
        Name of a column that identifies the rows.
    notices : tuple of str
        Warnings about other columns that fit.
    """

    text: str
    label: str
    text_reason: str
    label_reason: str
    split: str | None
    row_id: str | None
    notices: tuple[str, ...]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns of rows, without those that have no name."""
    names = dict.fromkeys(name for row in rows for name in row if name and name.strip())
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        labels = [label_text(value) for value in values]
        is_text, is_label = (
            all(value is None or isinstance(value, str) for value in found) for found in (values, labels)
        )
        cells = tuple("" if value is None else str(value) for value in labels)
        columns.append(Column(name, cells, is_text, is_label))
    return columns


def lacks_header(first: Mapping[str, str], others: Sequence[Column]) -> bool:
    """Return True if the first row of a CSV file is data.

    One of its cells is then a label of the rows below, or a number or date above others.

    Parameters
    ----------
    first : mapping of str to str
        The first row.
    others : sequence of Column
        The columns of the rows below.
    """
    for column in others:
        cell = first.get(column.name, "")
        if column.could_be_label and not column.is_value and normalise_label(cell) in column.counts:
            return True
        if column.is_value and (_NUMBER.fullmatch(cell.strip()) or _DATE.fullmatch(cell.strip())):
            return True
    return False


def find_columns(
    columns: Sequence[Column],
    *,
    path: Path,
    text: str | None = None,
    label: str | None = None,
    ask: Ask | None = None,
) -> FoundColumns:
    """Find the columns of text and label.

    Parameters
    ----------
    columns : sequence of Column
        The file's columns.
    path : Path
        The file, for messages.
    text, label : str, optional
        Names that the user gave.
    ask : callable, optional
        Asks where several columns are alike; without it the likeliest is taken.

    Raises
    ------
    DataError
        A name is wrong, or no column can be one of the two.
    """
    by_name = {column.name: column for column in columns}
    for option, name in (("--text-column", text), ("--label-column", label)):
        if name is not None and name not in by_name:
            raise DataError(
                f"expected {option} to name a column, got {name!r}: {_listed(by_name)}.", path=path
            )
    split = next((column.name for column in columns if _is_split(column)), None)
    free = [column for column in columns if column.name not in {text, label, split}]
    notices: list[str] = []
    texts = [by_name[text]] if text is not None else _possible_texts(free)
    if not texts:
        raise DataError(
            f"expected a column of texts, with several words and mostly distinct, got none: name it by --text-column; "
            f"{_listed(by_name)}.",
            path=path,
        )
    text_column = _choose(texts, "text", _TEXT_NAMES, ask, notices)
    others = [column for column in free if column != text_column]
    labels = [by_name[label]] if label is not None else _possible_labels(others, text_column)
    if not labels:
        raise DataError(_no_label(others, by_name), path=path)
    label_column = _choose(labels, "label", _LABEL_NAMES, ask, notices)
    if text_column == label_column:
        raise DataError(
            f"expected two columns, got {text_column.name!r} for both --text-column and --label-column.",
            path=path,
        )
    return FoundColumns(
        text=text_column.name,
        label=label_column.name,
        text_reason="named by --text-column" if text is not None else _text_reason(text_column),
        label_reason="named by --label-column" if label is not None else _label_reason(label_column),
        split=split,
        row_id=_row_id(
            [column for column in columns if column.name not in {text_column.name, label_column.name}]
        ),
        notices=tuple(notices),
    )


def _listed(names: Collection[str]) -> str:
    return f"the columns are {', '.join(map(repr, names)):.400}"


def _is_split(column: Column) -> bool:
    return {"train", "test"} <= set(column.counts) <= SPLIT_NAMES


def _row_id(columns: Sequence[Column]) -> str | None:
    """Return the name of the column that identifies the rows: the one so called, or else the first of the file."""
    codes = [column for column in columns if column.could_be_id]
    named = [column for column in codes if column.is_called(_ID_NAMES)]
    found = named or [column for column in codes if column is columns[0]]
    return found[0].name if found else None


def _possible_texts(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that may be the text, the likeliest first."""
    columns = [column for column in columns if column.is_text]
    found = [column for column in columns if column.could_be_text]
    if not found:  # single words, such as names of products
        named = [column for column in columns if column.is_called(_TEXT_NAMES)]
        found = [column for column in named if not column.is_value and column.distinct_share > 0.3]
    found.sort(key=lambda column: -column.mean_length * column.distinct_share * len(column.filled))
    return [one for one in found if one.mean_length * 2 >= found[0].mean_length or one.is_called(_TEXT_NAMES)]


def _possible_labels(columns: Sequence[Column], text: Column) -> list[Column]:
    """Return the columns that may be the label, the likeliest first."""
    found = [column for column in columns if column.could_be_label and column.is_label]
    words = [column for column in found if not column.is_number]
    found = words or [column for column in found if len(column.counts) <= 20]
    if len(found) < 2:
        return found
    return sorted(found, key=lambda column: -_gain(text.cells, column.cells))


def _no_label(columns: Sequence[Column], by_name: Collection[str]) -> str:
    remedy = f"name the column by --label-column; {_listed(by_name)}."
    single = next((one for one in columns if len(one.counts) == 1 and not one.is_value), None)
    if single is not None:
        got = f"{single.filled[0]!r:.60} alone in {single.name!r}"
        return f"expected at least two labels, got {got}: add rows of others, or {remedy}"
    other = next((column for column in columns if column.could_be_label), None)
    if other is not None:
        return f"expected labels as text, got other values in {other.name!r}: write them as text, or {remedy}"
    words = [column for column in columns if not column.is_value and not column.holds(_CODE)]
    many = max(words or columns, key=lambda column: len(column.filled) - len(column.counts), default=None)
    got = "" if many is None else f", got {len(many.counts):,} in {many.name!r} (an id, or free text?)"
    return (
        f"no column looks like labels, and `init` needs rows with answers: expected few values that are "
        f"repeated{got}: {remedy}"
    )


def _choose(
    columns: Sequence[Column], what: str, usual_names: Collection[str], ask: Ask | None, notices: list[str]
) -> Column:
    """Choose one of the possible columns, and add a notice about the others.

    It is the only one with a usual name, or the one that the user chooses, or the first.
    """
    named = [column for column in columns if column.is_called(usual_names)]
    chosen = named[0] if len(named) == 1 else columns[0]
    if len(columns) > 1 and len(named) != 1 and ask is not None:
        names = [column.name for column in columns]
        return columns[names.index(ask(f"Which column is the {what}?", names))]
    others = ", ".join(repr(column.name) for column in columns if column != chosen)
    if others:
        notices.append(
            f"{what} may also be {others}: name the column by --{what}-column if {chosen.name!r} is wrong."
        )
    return chosen


def _text_reason(column: Column) -> str:
    return f"{column.mean_words:.0f} words on average, {column.distinct_share:.0%} of the texts differ"


def _label_reason(column: Column) -> str:
    return f"{len(column.counts)} values, repeated {len(column.filled) / len(column.counts):.0f} times on average"


def _gain(texts: Sequence[str], answers: Sequence[str]) -> float:
    """Return the share of the majority baseline's mistakes that naive Bayes on words avoids, leaving one row out."""
    n_labels = len({normalise_label(answer) for answer in answers if answer.strip()})
    rows = [
        (set(text.casefold().split()), normalise_label(answer))
        for text, answer in zip(texts, answers, strict=True)
        if answer.strip()
    ][: min(_MAX_SCORED_ROWS, _MAX_SCORES // n_labels)]
    labels = Counter(answer for _, answer in rows)
    rows_with = {label: Counter[str]() for label in labels}  # rows of the label that hold a word
    for words, answer in rows:
        rows_with[answer].update(words)
    right = 0
    for words, answer in rows:
        scores = {}
        for label, count in labels.items():
            left_out = label == answer
            others = count - left_out
            scores[label] = math.log(others + 0.5) + sum(
                math.log((rows_with[label][word] - left_out + 0.5) / (others + 1)) for word in words
            )
        right += max(scores, key=scores.__getitem__) == answer
    most = labels.most_common(1)[0][1]
    return (right - most) / max(len(rows) - most, 1)
