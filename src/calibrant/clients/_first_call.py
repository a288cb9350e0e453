"""The first call of a client goes ahead of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from calibrant.core import ProviderError

__all__ = ["FirstCall"]

_T = TypeVar("_T")

# How long other calls wait for the first one. A missing key or a parameter that the model does not take is noticed in
# milliseconds; 64 calls at once would all fail, and litellm leaves coroutines behind that nobody awaits when they are
# cancelled.
_HEAD_START_SECONDS: Final = 1.0


class FirstCall:
    """Lets the first call of every event loop go ahead of the others, for a second at most.

    Where it fails as every call would, those that wait for it fail like it, and the next call goes ahead again.
    """

    def __init__(self) -> None:
        # While it is under way; its result is what every call would fail with. None once it has ended.
        self._first: WeakKeyDictionary[
            asyncio.AbstractEventLoop, asyncio.Future[ProviderError | None] | None
        ] = WeakKeyDictionary()

    async def then(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Return what `call` returns, made first or after the first one.

        Raises
        ------
        ProviderError
            The call failed, or the first one failed as every call would.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._first:
            return await self._go_ahead(call, loop)
        first = self._first[loop]
        if first is not None:
            await asyncio.wait([first], timeout=_HEAD_START_SECONDS)
            failure = first.result() if first.done() else None
            if failure is not None:
                raise _like(failure)
        return await call()

    async def _go_ahead(self, call: Callable[[], Awaitable[_T]], loop: asyncio.AbstractEventLoop) -> _T:
        first = self._first[loop] = loop.create_future()
        failure: ProviderError | None = None
        try:
            return await call()
        except ProviderError as error:
            failure = error if error.systemic else None
            raise
        finally:
            self._first[loop] = None
            if failure is not None:
                del self._first[loop]  # the next call finds out anew
            first.set_result(failure)


def _like(error: ProviderError) -> ProviderError:
    """Return an equal error for another call: callers write their number of attempts into theirs."""
    own = type(error).__new__(type(error), *error.args)
    vars(own).update(vars(error), attempts=1)
    return own
