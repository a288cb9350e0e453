"""Fixtures with copies of the artefacts, and the models that answered when they were made."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from calibrant.testing import FakeClient, fake_model
from stored_model import NAME, STORED, stored_models


@pytest.fixture
def models() -> Iterator[dict[str, FakeClient]]:
    """Open the stored models by their names."""
    found = stored_models()
    with ExitStack() as opened:
        for name, client in found.items():
            opened.enter_context(fake_model(name, client))
        yield found


@pytest.fixture
def model(models: dict[str, FakeClient]) -> FakeClient:
    """Return the model of most artefacts."""
    return models[NAME]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the artefacts, as the current directory."""
    directory = shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def untouched() -> Path:
    """Return the artefacts themselves, for tests that only read them."""
    return STORED
