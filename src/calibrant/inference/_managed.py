"""What is closed when a ``with`` block ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Managed"]


class Managed(ABC):
    """A context manager, for ``with`` and ``async with``, around `close`."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        # In a thread: connections of this event loop are closed by the loop itself, which must go on.
        await asyncio.to_thread(self.close)
