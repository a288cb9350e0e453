"""Event loops that stay in memory after they are closed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

LOOPS = 6


def loops_left(work: Callable[[], Awaitable[object]]) -> int:
    """Run `work` in six event loops, one after another; return how many of them stay in memory."""
    loops = []

    async def run() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await work()

    for _ in range(LOOPS):
        asyncio.run(run())
    gc.collect()
    return sum(loop() is not None for loop in loops)
