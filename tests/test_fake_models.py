"""Tests of `fake_model`: models opened by a name."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.core import ConfigurationError
from calibrant.inference import Classifier, open_client
from calibrant.testing import FakeClient, fake_model


def test_names_open_fakes_inside_the_block(animals: FakeClient) -> None:
    """A classifier opens the fake by its name and closes it; after the block the name is unknown."""
    with fake_model("fake/animals", animals) as name:
        assert open_client(name) is animals
        with pytest.raises(ConfigurationError, match="there are: fake/animals"):
            open_client("fake/plants")
        assert Classifier(model=name, labels=["cat", "dog"], field="category").classify("meow").label == "cat"
    with pytest.raises(ConfigurationError, match="there are: none"):
        open_client("fake/animals")


def test_functions_receive_the_opening_settings(animals: FakeClient) -> None:
    """The function is called with the model's name and the settings of `open_client`."""
    opened: list[tuple[str, dict[str, Any]]] = []

    def open_it(name: str, **settings: Any) -> FakeClient:
        opened.append((name, settings))
        return animals

    with fake_model("fake/animals", open_it):
        open_client("fake/animals", space="raw", concurrency=2, options={"seed": 1}, scoring="decode")
    settings = {"space": "raw", "concurrency": 2, "options": {"seed": 1}, "scoring": "decode"}
    assert opened == [("fake/animals", settings)]


def test_blocks_nest(animals: FakeClient) -> None:
    """In nested blocks the inner model is opened; after the inner block, the outer one again."""
    inner = FakeClient(["cat", "dog"], {}, default="dog")
    with fake_model("fake/animals", animals):
        with fake_model("fake/animals", inner):
            assert open_client("fake/animals") is inner
        assert open_client("fake/animals") is animals


def test_real_names_are_replaced(animals: FakeClient) -> None:
    """A fake replaces a real model's name in the block, and the real name works afterwards."""
    with fake_model("openai/gpt-4.1-mini", animals):
        assert open_client("openai/gpt-4.1-mini") is animals
    assert open_client("openai/gpt-4.1-mini", options={"api_key": "k"}) is not animals


def test_fakes_need_names(animals: FakeClient) -> None:
    """An empty name raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="such as fake/model"), fake_model(" ", animals):
        pass
