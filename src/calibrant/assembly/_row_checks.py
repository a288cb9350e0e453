"""Checks of labelled rows: rare labels, conflicting answers, equal texts and near-duplicates."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from calibrant.core._labels import normalise_label
from calibrant.core._reported import counted
from calibrant.core._splits import TextGroups, text_hash

_RARE: Final = 5  # labels with fewer rows may be missing in a split
_CHECKED_ROWS: Final = 100_000  # for equal texts
_SHOWN: Final = 5
_MANY_LABELS: Final = 200


@dataclass(kw_only=True)
class RowChecks:
    """Counts of labelled rows, taken one by one.

    Attributes
    ----------
    longest : int or None
        Longest text that certainly fits the model, in bytes.
    rows, without_text, without_answer : int
        All rows, those without a text, and those with a text but no answer.
    labelled : int
        Rows with a text and an answer.
    labels : Counter
        Rows by normalised label.
    spellings : mapping of str to Counter
        Rows of each spelling of a label.
    """

    longest: int | None
    rows: int = 0
    without_text: int = 0
    without_answer: int = 0
    labelled: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    spellings: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _first: dict[int, tuple[int, str]] = field(default_factory=dict)  # line and label by hash of the text
    _repeated: int = 0
    _conflicts: list[tuple[int, int, str, str]] = field(default_factory=list)
    _long: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, line: int, text: str, answer: str, labels: Sequence[str]) -> None:
        """Count a row; text or answer may be empty, and `labels` are those of the answer."""
        self.rows += 1
        if not text.strip():
            self.without_text += 1
            return
        if not answer.strip():
            self.without_answer += 1
            return
        self.labelled += 1
        for spelling in labels:
            self.labels[normalise_label(spelling)] += 1
            self.spellings[normalise_label(spelling)][spelling.strip()] += 1
        label = normalise_label(answer)
        if self.longest is not None and len(text.encode("utf-8", "replace")) > self.longest:
            self._long.append(line)
        words = " ".join(text.casefold().split())
        known = self._first.get(hash(words))
        if known is None:
            if len(self._first) < _CHECKED_ROWS:
                self._first[hash(words)] = (line, label)
        elif known[1] == label:
            self._repeated += 1
        else:
            self._conflicts.append((known[0], line, known[1], label))

    def label_counts(self) -> list[tuple[str, int]]:
        """Return the labels, in their most frequent spelling, and their rows; the most frequent first."""
        order = sorted(self.labels, key=lambda label: (-self.labels[label], label))
        counts = []
        for label in order:
            (spelling, _), *_ = self.spellings[label].most_common(1)
            counts.append((spelling, self.labels[label]))
        return counts

    def notices(self) -> Iterator[str]:
        """Yield a warning for each finding."""
        if self.without_answer:
            yield self._without_answer_notice()
        if self.without_text:
            count = self.without_text
            it = "it" if count == 1 else "them"
            yield f"{counted(count, 'row has', 'rows have')} no text: no split has {it}."
        if len(self.labels) > _MANY_LABELS:
            yield f"{len(self.labels):,} labels: is the column an id or free text? Then name another by --label-column."
        single = [name for name, count in self.label_counts() if count == 1]
        if single:
            verb = "occurs once" if len(single) == 1 else "occur once each"
            yield (
                f"{_listed(single)} {verb}: one row is either learned from or measured, never both; add rows, or "
                "merge labels."
            )
        rare = [name for name, count in self.label_counts() if 1 < count < _RARE]
        if rare:
            few = f"{_listed(rare)} in fewer than {_RARE} rows"
            yield f"{few}: too few to learn and to measure; add rows, or merge labels."
        spelled = [label for label, found in self.spellings.items() if len(found) > 1]
        if spelled:
            yield f"{_listed(sorted(spelled))} spelled in several ways: the most frequent one is taken."
        yield from self._text_notices()

    def _without_answer_notice(self) -> str:
        count = self.without_answer
        if count == 1:
            return "1 row has no answer: no split has it, `calibrant label` answers it."
        share = f" ({count / self.rows:.0%})" if count >= 0.01 * self.rows else ""
        return f"{count:,} rows{share} have no answer: no split has them, `calibrant label` answers them."

    def _text_notices(self) -> Iterator[str]:
        if self._conflicts:
            pairs = [f"{first} and {second} ({a}, {b})" for first, second, a, b in self._conflicts[:_SHOWN]]
            more = _more(len(self._conflicts))
            yield f"equal texts with different answers in lines {'; '.join(pairs)}{more}: correct one of the two."
        if self._repeated:
            rows = counted(self._repeated, "row repeats", "rows repeat")
            yield f"{rows} an earlier text: equal texts stay in one split."
        if self._long:
            texts = counted(len(self._long), "text")
            lines = "line " if len(self._long) == 1 else "lines "
            lines += ", ".join(map(str, self._long[:_SHOWN]))
            yield (
                f"{texts} of more than {self.longest:,} bytes may be too long for the model, in "
                f"{lines}{_more(len(self._long))}."
            )


@dataclass(kw_only=True)
class GroupCount:
    """Number of near-duplicates among rows, with the lines of two of them.

    Attributes
    ----------
    rows, groups : int
        Rows whose text is in a group with others, and these groups.
    lines : tuple of int
        Lines of two rows of one group, or of one row; empty without a group.
    """

    rows: int = 0
    groups: int = 0
    lines: tuple[int, ...] = ()


@dataclass(kw_only=True)
class GroupChecks:
    """Counts of near-duplicates among labelled rows, taken one by one.

    Attributes
    ----------
    groups : TextGroups
        Groups of the rows' texts.
    together, apart : GroupCount
        Near-duplicates that one split can hold, and those of groups too large for that.
    """

    groups: TextGroups
    together: GroupCount = field(default_factory=GroupCount)
    apart: GroupCount = field(default_factory=GroupCount)
    # Line, label and hash of the text, by key of the group.
    _first: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    _differing: dict[int, tuple[int, int]] = field(default_factory=dict)  # lines by key of the group

    def add(self, line: int, text: str, answer: str) -> None:
        """Count a row."""
        found = self.groups.find(text)
        if found is None:
            return
        key, in_one_split = found
        count = self.together if in_one_split else self.apart
        count.rows += 1
        label = normalise_label(answer)
        hashed = text_hash(text)
        if key not in self._first:
            self._first[key] = line, label, hashed
            count.groups += 1
            return
        first, known, first_hash = self._first[key]
        if hashed == first_hash:
            return
        count.lines = count.lines or (first, line)
        if known != label:
            self._differing.setdefault(key, (first, line))

    def notices(self, *, has_split_column: bool) -> Iterator[str]:
        """Yield a warning for each finding; `has_split_column` if a column says which split a row is in."""
        apart = self.apart
        if has_split_column:
            rows = self.together.rows + apart.rows
            groups = self.together.groups + apart.groups
            apart = GroupCount(rows=rows, groups=groups, lines=self.together.lines or apart.lines)
        if apart.rows:
            where = "they may stand" if has_split_column else "too large for one split, they stand"
            yield (
                f"{described_group(apart)}: {where} in several splits and make results look better. Test on rows of "
                "another day."
            )
        if self._differing:
            pairs = "; ".join(f"{a} and {b}" for a, b in list(self._differing.values())[:_SHOWN])
            yield (
                f"near-duplicates with different answers in lines {pairs}{_more(len(self._differing))}: is each right?"
            )


def described_group(count: GroupCount) -> str:
    """Return the numbers of near-duplicates and of their groups, with two lines, in words."""
    lines = " and ".join(map(str, count.lines))
    return f"{count.rows:,} near-duplicates in {counted(count.groups, 'group')}, such as lines {lines}"


def _more(count: int) -> str:
    return f" and {count - _SHOWN:,} more" if count > _SHOWN else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"{name!r:.60}" for name in names[:_SHOWN])
    return f"{shown}{_more(len(names))}"
