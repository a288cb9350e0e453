"""Small tasks about two animals, and the questions that a scripted model got."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from calibrant.core import Example, Task
from calibrant.testing import FakeClient

LABELS = ("cat", "dog")


def rows(prefix: str, n: int) -> tuple[Example, ...]:
    """Return rows that meow or bark in turns."""
    kinds = (("meow", "cat"), ("woof", "dog"))
    return tuple(Example(input=f"{prefix} {i} {kinds[i % 2][0]}", answer=kinds[i % 2][1]) for i in range(n))


def place(text: str) -> int:
    """Return the place of the true label of a hidden row, which no word of the text tells."""
    return hashlib.sha256(text.encode()).digest()[0] % 2


def hidden_rows(split: str, n: int) -> tuple[Example, ...]:
    """Return rows of both labels whose texts do not tell the label."""
    texts = [f"{split} {i}" for i in range(n)]
    return tuple(Example(input=text, answer=LABELS[place(text)]) for text in texts)


def task_of(split: Callable[[str, int], tuple[Example, ...]], *sizes: int, **changes: Any) -> Task:
    """Return a task with so many rows for training, validation and test, made by a function."""
    settings: dict[str, Any] = {
        "name": "animals",
        "labels": LABELS,
        "prompt": "Which animal?",
        "field": "category",
        **{name: split(name, n) for name, n in zip(("train", "validation", "test"), sizes, strict=True)},
    }
    return Task(**{**settings, **changes})


def make_task(*, train: int = 12, **changes: Any) -> Task:
    """Return a small task."""
    return task_of(rows, train, 6, 8, **changes)


def asked_about(client: FakeClient) -> list[tuple[str, str]]:
    """Return every prompt and text that the model was asked about."""
    return [(one.messages[0]["content"], one.messages[-1]["content"]) for one in client.requests]


def searched(client: FakeClient) -> list[tuple[str, str]]:
    """Return every prompt and text that the model was asked about, test rows left out."""
    return [pair for pair in asked_about(client) if not pair[1].startswith("test")]


class Interrupted(Exception):  # noqa: N818 (nothing that the package knows)
    """Exception in place of a kill."""


def interrupted(rule: Callable[[str, str], Any], questions: int) -> FakeClient:
    """Return a model that raises `Interrupted` after so many questions."""

    def stops(text: str, prompt: str) -> Any:
        if len(client.requests) > questions:
            raise Interrupted
        return rule(text, prompt)

    client = FakeClient(LABELS, stops)
    return client
