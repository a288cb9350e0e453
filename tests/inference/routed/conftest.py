"""Fixture for the tests of routed clients."""

from __future__ import annotations

import pytest

from routed_answers import Clock


@pytest.fixture
def clock() -> Clock:
    """Return a clock that moves only when the test moves it."""
    return Clock()
