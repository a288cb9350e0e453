"""Tasks of the benchmarks that judge on test rows: their rows, prompts and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from _data import available

from calibrant.core import Example, LabelSet, Task, read_examples
from calibrant.core._settings import ModelSettings

EXAMPLES: Final = Path(__file__).parent.parent / "examples"
MODEL: Final = "local/smollm2-135m"
SHIPPED: Final = ("transactions", "banking", "requests")
"""Tasks whose rows are in the repository."""

# Written once, in the form of docs/tasks/classify.md, before anything was measured under them.
_ANSWER: Final = 'Answer with JSON such as {"category": "..."}.'
PROMPTS: Final = {
    "ag_news": f"Decide the topic of the news article: Business, Sci/Tech, Sports or World. {_ANSWER}",
    "emotion": f"Decide the emotion of the message: anger, fear, joy, love, sadness or surprise. {_ANSWER}",
    "rotten_tomatoes": f"Decide the sentiment of the movie review: negative or positive. {_ANSWER}",
    "banking77": f"Decide the intent of the message to the bank. {_ANSWER}",
    "sms_spam": f"Decide whether the text message is ham or spam. {_ANSWER}",
    "transactions": (
        "Decide the category of the bank transaction: Bills/Electricity, Bills/Gas & Oil, Food & Drinks/Groceries, "
        "Food & Drinks/Restaurants, Shopping/Electronics, Shopping/Video Games, Transport/Fuel or "
        f"Transport/Public Transit. {_ANSWER}"
    ),
}
"""Prompt of each task; the other tasks have theirs in a task file."""

TASKS: Final = ("ag_news", "emotion", "rotten_tomatoes", "sms_spam", *SHIPPED)

POOL: Final = 300
"""Labelled rows of a task, at most: the model is asked about each of them once."""

Pair = tuple[str, str]
"""A text and its label."""


def task_of(name: str, folder: Path | None) -> Task:
    """Return a task with all its rows.

    Parameters
    ----------
    name : str
        One of `TASKS`.
    folder : Path or None
        Holds the files of the tasks that are not in the repository, one ``NAME.jsonl`` each.
    """
    if name in SHIPPED:
        return _shipped_task(name)
    available(folder, [name])
    path = (folder or Path()) / f"{name}.jsonl"
    rows = {
        split: tuple(example for example, _ in read_examples(path, split=split))
        for split in ("train", "validation", "test")
    }
    return Task(
        name=name,
        labels=LabelSet(sorted({example.answer for example in rows["train"]})),
        prompt=PROMPTS[name],
        field="category",
        train=rows["train"],
        validation=rows["validation"],
        test=rows["test"],
        model=ModelSettings(name=MODEL),
    )


def _shipped_task(name: str) -> Task:
    task = Task.from_file(EXAMPLES / name / "task.toml")
    if name in PROMPTS:
        return replace(task, prompt=PROMPTS[name])
    folder = EXAMPLES / name
    labelled = tuple(example for example, _ in read_examples(folder / "labelled.jsonl"))
    test = tuple(example for example, _ in read_examples(folder / "test.jsonl"))
    return replace(task, train=labelled, validation=(), test=test)


def labelled_rows(task: Task) -> list[Pair]:
    """Return the rows to draw from: training, then validation, the first 300."""
    return pairs_of((*task.train, *task.validation))[:POOL]


def pairs_of(examples: Sequence[Example]) -> list[Pair]:
    """Return texts with their labels."""
    return [(example.input, example.answer) for example in examples]


def drawn_rows(task: Task, *, n: int, seed: int) -> list[Pair]:
    """Return n labelled rows in random order, without replacement; all of them where there are no more."""
    rows = labelled_rows(task)
    places = np.random.default_rng(seed).permutation(len(rows))[:n]
    return [rows[place] for place in places]
