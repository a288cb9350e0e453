"""The model that answered when the artefacts in ``stored`` were made, and where they are."""

from __future__ import annotations

import zlib
from pathlib import Path

from calibrant.testing import FakeClient

STORED = Path(__file__).parent / "stored"
NAME, SMALL, LARGE = "fake/animals", "fake/small", "fake/large"


def answer(text: str, prompt: str) -> tuple[str, float]:
    """Know cats; know dogs from examples, else two in three."""
    number = zlib.crc32(text.encode())
    knows = "meow" in text or "Answer:" in prompt or number % 3
    return ("dog" if knows and "meow" not in text else "cat"), 0.55 + number % 45 / 100


def stored_model() -> FakeClient:
    """Return the model, not asked anything yet."""
    return FakeClient(["cat", "dog"], answer, name=NAME)


def small_answer(text: str) -> tuple[str, float]:
    """Be entirely sure of two texts in three; wrong about one in seven."""
    number = zlib.crc32(text.encode())
    truth = "cat" if "meow" in text else "dog"
    wrong = number % 7 == 0
    return ("cat" if (truth == "dog") == wrong else "dog"), 1.0 if number % 3 else 0.55 + number % 40 / 100


def large_answer(text: str) -> tuple[str, float]:
    """Know both, and be surer of cats."""
    return ("cat", 0.99) if "meow" in text else ("dog", 0.97)


def stored_models() -> dict[str, FakeClient]:
    """Return all models by name, none asked anything yet."""
    return {
        NAME: stored_model(),
        SMALL: FakeClient(["cat", "dog"], small_answer, name=SMALL),
        LARGE: FakeClient(["cat", "dog"], large_answer, name=LARGE),
    }
