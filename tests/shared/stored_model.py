"""The model that answered when the artefacts in ``stored`` were made, and where they are."""

from __future__ import annotations

import zlib
from pathlib import Path

from calibrant.testing import FakeClient

STORED = Path(__file__).parent / "stored"
NAME = "fake/animals"


def answer(text: str, prompt: str) -> tuple[str, float]:
    """Know cats; know dogs from examples, else two in three."""
    number = zlib.crc32(text.encode())
    knows = "meow" in text or "Answer:" in prompt or number % 3
    return ("dog" if knows and "meow" not in text else "cat"), 0.55 + number % 45 / 100


def stored_model() -> FakeClient:
    """Return the model, not asked anything yet."""
    return FakeClient(["cat", "dog"], answer, name=NAME)
