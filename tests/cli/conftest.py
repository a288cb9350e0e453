"""A fake in the place of every model that a command may open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calibrant.testing import Answer, FakeClient
from command_line import knows


@pytest.fixture
def fake(use_model: Callable[..., Any]) -> Callable[..., FakeClient]:
    """Return a function that puts a fake in the place of every model."""

    def install(rule: Callable[[str, str], Answer] = knows, **options: Any) -> FakeClient:
        client = FakeClient(["cat", "dog"], rule, **options)
        use_model(client)
        return client

    return install
