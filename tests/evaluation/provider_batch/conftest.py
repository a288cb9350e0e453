"""Fixtures with a provider whose key is in the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batch_server import KEY, BatchServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchServer]:
    """Return a running provider, whose key is in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found = BatchServer()
    monkeypatch.setenv("OPENAI_BASE_URL", found.url)
    yield found
    found.stop()
