"""Fake models that are opened by name."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.core import ConfigurationError
from calibrant.inference import Classifier, open_client
from calibrant.testing import FakeClient, fake_model


def test_a_name_opens_the_fake_until_the_block_ends(animals: FakeClient) -> None:
    """In a classifier, too, which leaves closing it to nobody else."""
    with fake_model("fake/animals", animals) as name:
        assert open_client(name) is animals
        with pytest.raises(ConfigurationError, match="there are: fake/animals"):
            open_client("fake/plants")
        assert Classifier(model=name, labels=["cat", "dog"], field="category").classify("meow").label == "cat"
    with pytest.raises(ConfigurationError, match="there are: none"):
        open_client("fake/animals")


def test_a_function_is_told_how_the_model_is_opened(animals: FakeClient) -> None:
    """Name and settings, at every opening."""
    opened: list[tuple[str, dict[str, Any]]] = []

    def open_it(name: str, **settings: Any) -> FakeClient:
        opened.append((name, settings))
        return animals

    with fake_model("fake/animals", open_it):
        open_client("fake/animals", space="raw", concurrency=2, options={"seed": 1}, scoring="decode")
    settings = {"space": "raw", "concurrency": 2, "options": {"seed": 1}, "scoring": "decode"}
    assert opened == [("fake/animals", settings)]


def test_blocks_nest(animals: FakeClient) -> None:
    """The inner one counts, and gives the name back."""
    inner = FakeClient(["cat", "dog"], {}, default="dog")
    with fake_model("fake/animals", animals):
        with fake_model("fake/animals", inner):
            assert open_client("fake/animals") is inner
        assert open_client("fake/animals") is animals


def test_a_real_name_is_replaced(animals: FakeClient) -> None:
    """So that a task file can be tested as it stands; afterwards the name is what it was."""
    with fake_model("openai/gpt-4.1-mini", animals):
        assert open_client("openai/gpt-4.1-mini") is animals
    assert open_client("openai/gpt-4.1-mini", options={"api_key": "k"}) is not animals


def test_a_fake_needs_a_name(animals: FakeClient) -> None:
    """An empty one would never be opened."""
    with pytest.raises(ConfigurationError, match="such as fake/model"), fake_model(" ", animals):
        pass
