"""Tests of the reviews example: balanced, disjoint splits whose words tell little."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from calibrant.core import Example, Task
from calibrant.heads import TextBaseline

FOLDER = Path(__file__).parents[2] / "examples" / "reviews"
PER_CELL = {"train": 3, "validation": 3, "test": 9}


@pytest.fixture
def task(caplog: pytest.LogCaptureFixture) -> Task:
    """Return the task; its splits share no text."""
    found = Task.from_file(FOLDER / "task.toml")
    assert caplog.messages == []
    return found


def words(row: Example) -> list[str]:
    """Return the words of a review in lower case."""
    return re.findall(r"[\w']+", row.input.lower())


def test_every_domain_has_as_many_rows_of_each_label(task: Task) -> None:
    """Each of 10 domains has the same number of rows of each label, in every split."""
    for split, count in PER_CELL.items():
        cells = Counter((row.additional_context["domain"], row.answer) for row in getattr(task, split))
        domains = {domain for domain, _ in cells}
        assert len(domains) == 10
        assert cells == {(domain, label): count for domain in domains for label in task.labels}


def test_reviews_are_short_and_none_is_like_another(task: Task) -> None:
    """Reviews have 10 to 30 words, and two reviews share less than two fifths of their words."""
    rows = [*task.train, *task.validation, *task.test]
    assert all(10 <= len(row.input.split()) <= 30 for row in rows)
    bags = [frozenset(words(row)) for row in rows]
    assert max(len(one & other) / len(one | other) for one, other in combinations(bags, 2)) < 0.4


def test_neither_length_nor_first_word_gives_the_label_away(task: Task) -> None:
    """Reviews of both labels have similar lengths and first words."""
    rows = [*task.train, *task.validation, *task.test]
    of = {label: [words(row) for row in rows if row.answer == label] for label in task.labels}
    lengths = {label: sum(map(len, some)) / len(some) for label, some in of.items()}
    assert abs(lengths["positive"] - lengths["negative"]) < 2
    first = {label: Counter(some[0] for some in of[label]) for label in of}
    common = {word for word, n in (first["positive"] + first["negative"]).items() if n >= 10}
    assert {"the", "my", "i", "it"} <= common
    assert all(
        0.3 < first["positive"][word] / (first["positive"] + first["negative"])[word] < 0.7 for word in common
    )


def test_words_alone_tell_little(task: Task) -> None:
    """TF-IDF learned from the training rows is right on fewer than 65 % of the validation rows."""
    positions = [task.labels.index(row.answer) for row in task.train]
    baseline = TextBaseline().fit([row.input for row in task.train], positions, labels=task.labels)
    said = baseline.predict([row.input for row in task.validation])
    assert sum(a == row.answer for a, row in zip(said, task.validation, strict=True)) < 0.65 * len(said)


def test_the_readme_counts_the_rows(task: Task) -> None:
    """The README's numbers of rows equal those of the files."""
    table = re.findall(
        r"`(\w+)\.jsonl` \| (\d+) \| (\d+) \| (\d+) \|", (FOLDER / "README.md").read_text("utf-8")
    )
    counted = [
        (split, len(getattr(task, split)), Counter(row.answer for row in getattr(task, split))["positive"])
        for split in PER_CELL
    ]
    assert [(split, int(rows), int(label)) for split, rows, label, _ in table] == counted
    assert [int(domain) for *_, domain in table] == [rows // 10 for _, rows, _ in counted]
