"""Checks of labelled rows: rare labels, conflicting answers, equal and similar texts."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from calibrant.core._labels import normalise_label

_RARE: Final = 5  # labels with fewer rows may be missing in a split
_CHECKED_ROWS: Final = 100_000  # for equal texts
_SIMILAR_ROWS: Final = 2_000  # for similar texts
_SIMILAR: Final = 0.8  # share of the words of two texts that they have in common
_SHOWN: Final = 5
_MANY_LABELS: Final = 200
_WORD: Final = re.compile(r"\w+")


@dataclass(kw_only=True)
class RowChecks:
    """Counts of labelled rows, taken one by one.

    Attributes
    ----------
    longest : int or None
        Longest text that certainly fits the model, in bytes.
    rows, without_text, without_answer : int
        All rows, those without a text, and those with a text but no answer.
    labels : Counter
        Rows by normalised answer.
    spellings : mapping of str to Counter
        Rows of each spelling of an answer.
    """

    longest: int | None = None
    rows: int = 0
    without_text: int = 0
    without_answer: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    spellings: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _first: dict[int, tuple[int, str]] = field(default_factory=dict)  # line and label by hash of the text
    _repeated: int = 0
    _conflicts: list[tuple[int, int, str, str]] = field(default_factory=list)
    _long: array[int] = field(default_factory=lambda: array("Q"))
    _texts: list[tuple[int, frozenset[str], str]] = field(default_factory=list)

    def add(self, line: int, text: str, answer: str) -> None:
        """Count a row; text or answer may be empty."""
        self.rows += 1
        if not text.strip():
            self.without_text += 1
            return
        if not answer.strip():
            self.without_answer += 1
            return
        label = normalise_label(answer)
        self.labels[label] += 1
        self.spellings[label][answer.strip()] += 1
        if self.longest is not None and len(text.encode("utf-8", "replace")) > self.longest:
            self._long.append(line)
        words = " ".join(text.casefold().split())
        known = self._first.get(hash(words))
        if known is None:
            if len(self._first) < _CHECKED_ROWS:
                self._first[hash(words)] = (line, label)
            if len(self._texts) < _SIMILAR_ROWS:
                self._texts.append((line, frozenset(_WORD.findall(words)), label))
        elif known[1] == label:
            self._repeated += 1
        else:
            self._conflicts.append((known[0], line, known[1], label))

    def label_counts(self) -> list[tuple[str, int]]:
        """Return the labels, in their most frequent spelling, and their rows; the most frequent first."""
        order = sorted(self.labels, key=lambda label: (-self.labels[label], label))
        return [(self.spellings[label].most_common(1)[0][0], self.labels[label]) for label in order]

    def notices(self) -> Iterator[str]:
        """Yield a warning for each finding."""
        if self.without_answer:
            share = f"{self.without_answer:,} rows ({self.without_answer / self.rows:.0%})"
            yield f"{share} have no answer: no split has them, `calibrant label` answers them."
        if self.without_text:
            yield f"{self.without_text:,} rows have no text: no split has them."
        if len(self.labels) > _MANY_LABELS:
            yield f"{len(self.labels):,} labels: is the column an id or free text? Then name another by --label."
        rare = [name for name, count in self.label_counts() if count < _RARE]
        if rare:
            few = f"{_listed(rare)} in fewer than {_RARE} rows"
            yield f"{few}: too few to learn and to measure; add rows, or merge labels."
        spelled = [label for label, found in self.spellings.items() if len(found) > 1]
        if spelled:
            yield f"{_listed(sorted(spelled))} spelled in several ways: the most frequent one is taken."
        yield from self._text_notices()

    def _text_notices(self) -> Iterator[str]:
        if self._conflicts:
            pairs = [f"{first} and {second} ({a}, {b})" for first, second, a, b in self._conflicts[:_SHOWN]]
            more = _more(len(self._conflicts))
            yield f"equal texts with different answers in lines {'; '.join(pairs)}{more}: correct one of the two."
        if self._repeated:
            yield f"{self._repeated:,} row(s) repeat an earlier text: equal texts stay in one split."
        similar = list(_similar(self._texts))
        if similar:
            shown = ", ".join(f"{first} and {second}" for first, second, _ in similar[:_SHOWN])
            differing = sum(not same for *_, same in similar)
            answers = f", {differing:,} of them with different answers" if differing else ""
            yield (
                f"{len(similar):,} pair(s) of nearly equal texts{answers}, such as lines {shown}: they may stand in "
                "two splits and make results look better."
            )
        if self._long:
            lines = ", ".join(map(str, self._long[:_SHOWN]))
            yield (
                f"{len(self._long):,} texts of more than {self.longest:,} bytes may be too long for the model, in "
                f"lines {lines}{_more(len(self._long))}."
            )


def _more(count: int) -> str:
    return f" and {count - _SHOWN:,} more" if count > _SHOWN else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"{name!r:.60}" for name in names[:_SHOWN])
    return f"{shown}{_more(len(names))}"


def _similar(texts: Sequence[tuple[int, frozenset[str], str]]) -> Iterator[tuple[int, int, bool]]:
    """Yield pairs of lines whose texts share most of their words, and True if their answers are equal.

    Two such texts share one of their rarest words, so that few pairs are compared (prefix filter of similarity joins).
    """
    frequency = Counter(word for _, words, _ in texts for word in words)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for number, (line, words, label) in enumerate(texts):
        rarest = sorted(words, key=lambda word: (frequency[word], word))
        prefix = rarest[: len(rarest) - int(_SIMILAR * len(rarest) + 0.999) + 1]
        for other in sorted({other for word in prefix for other in seen[word]}):
            first, theirs, answer = texts[other]
            if len(words & theirs) >= _SIMILAR * len(words | theirs):
                yield first, line, answer == label
        for word in prefix:
            seen[word].append(number)
