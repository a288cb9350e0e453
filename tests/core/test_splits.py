"""Tests of splits by shares: rows of one file are divided the same way wherever they stand."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from calibrant.calibration._thresholds import FilePromise
from calibrant.core import DataError, Task
from calibrant.core._splits import RepeatedTexts
from task_files import HEAD, mistakes, read

SPLITS = ("train", "validation", "test")

DATA = '[data]\nfile = "rows.csv"\nsplit = '
Rows = Sequence[tuple[str, str]]


def animals(count: int, first: int = 0) -> list[tuple[str, str]]:
    """Return so many texts of cats, and a quarter as many of dogs."""
    cats = [(f"meow {number}", "cat") for number in range(first, first + count)]
    return cats + [(f"woof {number}", "dog") for number in range(first, first + count // 4)]


def split(folder: Path, rows: Rows, shares: str = "[0.4, 0.2, 0.4]") -> Task:
    """Return a task that divides these rows by shares."""
    lines = "".join(f'"{text}",{answer}\n' for text, answer in rows)
    (folder / "rows.csv").write_text(f"input,answer\n{lines}")
    return read(folder, f"{HEAD}{DATA}{shares}\n")


def parts(task: Task) -> dict[str, str]:
    """Return the split of every text."""
    return {row.input: name for name in SPLITS for row in getattr(task, name)}


def test_shares_are_kept_for_every_answer(tmp_path: Path) -> None:
    """Every answer has its share of every split, and every row is in one."""
    task = split(tmp_path, animals(80))
    counts = [Counter(row.answer for row in getattr(task, name)) for name in SPLITS]
    assert counts == [{"cat": 32, "dog": 8}, {"cat": 16, "dog": 4}, {"cat": 32, "dog": 8}]
    assert len(parts(task)) == 100
    assert [row.input for row, _ in task.sources["test"].examples()] == [row.input for row in task.test]


@pytest.mark.parametrize("rows_a_label", [3, 4, 5])
def test_few_rows_of_every_label_fill_every_split(tmp_path: Path, rows_a_label: int) -> None:
    """What one label cannot give to a split, the next ones do; every label is learned from and tested."""
    labels = [f"label {place}" for place in range(20)]
    words = [f"{first}{second}{third}" for first in "bcdfgh" for second in "aeiou" for third in "klmnp"]
    rng = random.Random(0)
    lines = [f"{' '.join(rng.sample(words, 9))},{label}\n" for label in labels for _ in range(rows_a_label)]
    (tmp_path / "rows.csv").write_text(f"input,answer\n{''.join(lines)}")
    head = HEAD.replace('["cat", "dog"]', json.dumps(labels))
    task = read(tmp_path, f"{head}{DATA}[0.4, 0.2, 0.4]\n")
    sizes = [len(getattr(task, name)) for name in SPLITS]
    n_rows = 20 * rows_a_label
    assert sizes[1] >= 0.2 * n_rows - 2
    for name in ("train", "test"):
        assert {row.answer for row in getattr(task, name)} == set(labels)


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    """Shuffled rows are divided alike, and of some more rows few others move."""
    rows = animals(80)
    before = parts(split(tmp_path, rows))
    assert parts(split(tmp_path, random.Random(0).sample(rows, len(rows)))) == before
    after = parts(split(tmp_path, rows + animals(8, first=80)))
    assert sum(before[text] != after[text] for text in before) <= 10


def test_equal_texts_stay_together(tmp_path: Path) -> None:
    """Texts that differ in case and white space alone are in one split, whatever their answers."""
    known = animals(40)
    equal = [(f" {text.upper()}  ", answer) for text, answer in known[::2]]
    other = [(text, "dog" if answer == "cat" else "cat") for text, answer in known[1::2]]
    task = split(tmp_path, known + equal + other)
    places = [{" ".join(row.input.casefold().split()) for row in getattr(task, name)} for name in SPLITS]
    assert sum(map(len, places)) == 50
    assert min(map(len, places)) >= 8


def test_rows_without_an_answer_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows without text or answer are in no split, and their number is logged once."""
    task = split(tmp_path, [*animals(40), ("purr", ""), ("", "cat"), (" ", " ")])
    assert len(parts(task)) == 50
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'rows.csv'}: 3 of 53 rows have no text or no answer: no split has them."
    ]


def test_files_without_answers_are_errors(tmp_path: Path) -> None:
    """A file without any answer raises DataError with the column."""
    with pytest.raises(
        DataError, match=r"rows\.csv:2: expected text in 'answer', got an empty text.*calibrant label"
    ):
        split(tmp_path, [("meow", ""), ("woof", "")])


@pytest.mark.parametrize(
    ("shares", "sizes"),
    [("[0.8, 0.2, 0]", (40, 10, 0)), ("[0.0, 0.0, 1.0]", (0, 0, 50)), ("[1, 0, 0]", (50, 0, 0))],
)
def test_shares_may_be_zero(tmp_path: Path, shares: str, sizes: tuple[int, int, int]) -> None:
    """A split with a share of 0 has no rows and no source; every answer has its share of the others."""
    task = split(tmp_path, animals(40), shares)
    assert tuple(len(getattr(task, name)) for name in SPLITS) == sizes
    assert [sum(row.answer == "dog" for row in getattr(task, name)) for name in SPLITS] == [
        n // 5 for n in sizes
    ]
    assert set(task.sources) == {name for name, size in zip(SPLITS, sizes, strict=True) if size}


@pytest.mark.parametrize(
    ("shares", "rows_a_label", "sizes"),
    [
        ("[0.4, 0.2, 0.4]", 1, [24, 12, 24]),
        ("[0.8, 0.1, 0.1]", 5, [240, 30, 30]),
        ("[0.5, 0.25, 0.25]", 2, [60, 30, 30]),
    ],
)
def test_rare_answers_are_divided_together(
    shares: str, rows_a_label: int, sizes: list[int], tmp_path: Path
) -> None:
    """Answers of which a split would get half a row at most do not all go to one split."""
    labels = [f"label {number}" for number in range(60)]
    rows = [f"{label} {number},{label}\n" for label in labels for number in range(rows_a_label)]
    (tmp_path / "rows.csv").write_text("input,answer\n" + "".join(rows))
    task = read(tmp_path, f'name = "n"\nlabels = {labels}\nprompt = "p"\n{DATA}{shares}\n')
    assert [len(getattr(task, name)) for name in SPLITS] == pytest.approx(sizes, abs=len(rows) // 100)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            'file = "a.csv"\nsplit = [0.4, 0.4]',
            "should be three shares that add up to 1, got [0.4, 0.4]: write [t",
        ),
        (
            'file = "a.csv"\nsplit = [0.5, 0.2, 0.4]',
            "three shares that add up to 1, got [0.5, 0.2, 0.4]: write [train,",
        ),
        ("split = [0.4, 0.2, 0.4]", "expected split beside the file that it divides"),
        ('file = "a.csv"\nsplit = [0.4, 0.2, 0.4]\nsplit_column = "s"', "either split or split_column"),
        ('file = "a.csv"\nsplit = [0.4, 0.2, 0.4]\ntest = "t.csv"', "expected a share of 0 for test rows"),
        ('file = "a.csv"\nencoding = "utf-9"', "data.encoding: Input should be an encoding, got 'utf-9'"),
        ('file = "a.csv"\nseparator = ";;"', "data.separator: Input should be one character, got ';;'"),
    ],
)
def test_mistakes_about_files_name_their_line(tmp_path: Path, data: str, message: str) -> None:
    """Wrong shares, encodings and separators are errors with their line."""
    (found,) = mistakes(tmp_path, f"{HEAD}[data]\n{data}\n")
    assert found.startswith("task.toml:")
    assert message in found


OPENINGS = ("Hello,", "Dear team,", "To whom it may concern:", "")
CLOSINGS = ("Thanks a lot.", "", "I am waiting for your answer.", "Can you look into it?")
TEMPLATES = {
    "cat": (
        "My cat ate {} mice after dinner",
        "The kitten slept {} hours on a warm sofa",
        "A tabby climbed up {} trees behind our barn",
        "Its whiskers grew {} inches since last May",
        "She purrs whenever all {} bowls are filled",
        "Two paws scratched me {} times at night",
    ),
    "dog": (
        "Our dog fetched {} sticks from the river",
        "That puppy barked at {} postmen in one street",
        "He dug out {} old bones under my roses",
        "This collie guards {} sheep without any help",
        "Walking him takes {} minutes each morning",
        "Her leash was chewed into {} short pieces",
    ),
}


def letters() -> list[tuple[str, str]]:
    """Return four texts from each template, with a number, a greeting and a closing each."""
    return [
        (f"{OPENINGS[n]} {sentence.format(n * 7 + 3)}. {CLOSINGS[(n + place) % 4]}".strip(), answer)
        for answer, sentences in TEMPLATES.items()
        for place, sentence in enumerate(sentences)
        for n in range(4)
    ]


def test_near_duplicates_stay_together(tmp_path: Path) -> None:
    """Texts of one template are in one split, whatever greeting and closing they share with others."""
    task = split(tmp_path, letters())
    for sentences in TEMPLATES.values():
        for sentence in sentences:
            words = sentence.split(" {} ")[1]
            places = [name for text, name in parts(task).items() if words in text]
            assert (len(places), len(set(places))) == (4, 1)
    assert [len(getattr(task, name)) for name in SPLITS] == pytest.approx([19, 10, 19], abs=8)
    for name in SPLITS:
        assert {row.answer for row in getattr(task, name)} == {"cat", "dog"}


def test_rows_of_a_template_move_few_others(tmp_path: Path) -> None:
    """With near-duplicates, too, the order of the rows does not matter, and of some more rows few others move."""
    rows = letters()
    before = parts(split(tmp_path, rows))
    assert parts(split(tmp_path, random.Random(0).sample(rows, len(rows)))) == before
    more = [("Hey, my cat ate 99 mice after dinner. Bye.", "cat"), ("A new text of its own kind", "dog")]
    after = parts(split(tmp_path, rows + more))
    assert sum(before[text] != after[text] for text in before) <= 8


def test_groups_too_large_for_a_split_are_divided(tmp_path: Path) -> None:
    """Where one template makes all rows of an answer, every split has some of them."""
    rows = [(f"I ordered {n} kettles", "cat") for n in range(40)] + [
        (f"Send {n} lamps now", "dog") for n in range(20)
    ]
    task = split(tmp_path, rows)
    assert [len(getattr(task, name)) for name in SPLITS] == [24, 12, 24]


def test_near_duplicates_follow_the_answer_that_most_of_them_have(tmp_path: Path) -> None:
    """Texts of one template with several answers stay together where the most frequent one has room for them."""
    things = [
        "copper kettles",
        "garden chairs",
        "winter tyres",
        "silver spoons",
        "paper lanterns",
        "oak tables",
    ]
    template = "Please deliver {} of your {} to the old harbour before noon"
    rows = animals(120)[:120]
    for thing in things:
        rows += [(template.replace("old harbour", thing).format(n, thing), "cat") for n in range(5)]
        rows.append((template.replace("old harbour", thing).format(9, thing), "dog"))
    places = parts(split(tmp_path, rows))
    for thing in things:
        assert len({name for text, name in places.items() if thing in text}) == 1


def test_a_file_too_large_to_compare_counts_equal_texts_as_one() -> None:
    """Of more than 125,000 accepted texts near-duplicates count apart, and the promise on the file says so."""
    texts = RepeatedTexts()
    for number in range(62_500):
        texts.add(f"meow {number}", "cat")
        texts.add(f"MEOW {number}", "cat")
    assert texts.counts().tolist() == [125_000]
    texts.add("meow 0", "cat")
    assert sorted(texts.counts().tolist()) == [2] * 62_499 + [3]
    certified = {"target_accuracy": 0.9, "delta": 0.05}
    sentence = FilePromise.of(certified, texts.counts(), compared=texts.compared).sentence()
    assert " 62,500 of which differ (equal texts are one; so many are not compared further), at " in sentence
