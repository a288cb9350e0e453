"""The model that answered when the artefacts in ``stored`` were made."""

from __future__ import annotations

import zlib
from pathlib import Path

from calibrant.core import Field, FieldLabels, LabelSet, OrdinalLabels
from calibrant.testing import FakeClient

STORED = Path(__file__).parent / "stored"
NAME, SMALL, LARGE, FIELDS = "fake/animals", "fake/small", "fake/large", "fake/fields"

FIELD_LABELS = FieldLabels(
    [
        Field(name="category", labels=LabelSet(["cat", "dog"])),
        Field(name="urgency", labels=OrdinalLabels(["low", "high"])),
    ]
)


def answer(text: str, prompt: str) -> tuple[str, float]:
    """Answer cats rightly, and dogs rightly with examples, or else in two of three texts."""
    number = zlib.crc32(text.encode())
    knows = "meow" in text or "Answer:" in prompt or number % 3
    return ("dog" if knows and "meow" not in text else "cat"), 0.55 + number % 45 / 100


def stored_model() -> FakeClient:
    """Return the stored model, without any request."""
    return FakeClient(["cat", "dog"], answer, name=NAME)


def small_answer(text: str) -> tuple[str, float]:
    """Answer two texts in three with certainty, one in seven of them wrongly."""
    number = zlib.crc32(text.encode())
    truth, other = ("cat", "dog") if "meow" in text else ("dog", "cat")
    if number % 3:
        return (truth if number % 7 else other), 1.0
    return (truth if number % 2 else other), 0.55 + number % 40 / 100


def large_answer(text: str) -> tuple[str, float]:
    """Answer both labels rightly, cats with higher confidence."""
    return ("cat", 0.99) if "meow" in text else ("dog", 0.97)


def stored_models() -> dict[str, FakeClient]:
    """Return all stored models by name, without any request."""
    return {
        NAME: stored_model(),
        SMALL: FakeClient(["cat", "dog"], small_answer, name=SMALL),
        LARGE: FakeClient(["cat", "dog"], large_answer, name=LARGE),
        FIELDS: FakeClient(FIELD_LABELS, field_answers, field="", name=FIELDS),
    }


def field_answers(text: str) -> tuple[str, float]:
    """Answer the category rightly, and call every third text urgent."""
    urgency = "high" if zlib.crc32(text.encode()) % 3 == 0 else "low"
    category = "cat" if "meow" in text else "dog"
    return f'{{"category": "{category}", "urgency": "{urgency}"}}', 0.81


def written_prompt(_prompt: str) -> str:
    """Write a prompt like a reflection model."""
    return "```\nSay which animal it is.\nAnswer: dog, or cat where it says meow.\n```"
