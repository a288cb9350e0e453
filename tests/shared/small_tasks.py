"""A small task of meowing and barking."""

from __future__ import annotations

from typing import Any

from calibrant.core import Example, Task

LABELS = ("cat", "dog")


def rows(prefix: str, n: int) -> tuple[Example, ...]:
    """Return rows that meow or bark in turns."""
    kinds = (("meow", "cat"), ("woof", "dog"))
    return tuple(Example(input=f"{prefix} {i} {kinds[i % 2][0]}", answer=kinds[i % 2][1]) for i in range(n))


def make_task(*, train: int = 12, **changes: Any) -> Task:
    """Return a small task."""
    settings: dict[str, Any] = {
        "name": "animals",
        "labels": LABELS,
        "prompt": "Which animal?",
        "field": "category",
        "train": rows("train", train),
        "validation": rows("validation", 6),
        "test": rows("test", 8),
    }
    return Task(**{**settings, **changes})
