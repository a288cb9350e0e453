"""Models that stand in for others under their names; `calibrant.testing.fake_model` puts them there."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import TypeAlias

from calibrant.core.completion import Client

__all__ = ["STAND_INS", "Opener"]

Opener: TypeAlias = Callable[..., Client]
"""A function ``(name, *, space, concurrency, options, scoring) -> Client``."""

STAND_INS: MutableMapping[str, Opener] = {}
"""By model name, for this process. A test registers here; production code only looks names up."""
