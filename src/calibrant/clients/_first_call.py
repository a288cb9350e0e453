"""Head start for the first call of a client, so that a systemic fault fails one call and not all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from calibrant.core._errors import ProviderError

_T = TypeVar("_T")

# Time that other calls wait for the first one. A missing key or an unsupported parameter is noticed in milliseconds; 64
# calls at once would all fail, and litellm leaves unawaited coroutines behind when they are cancelled.
_HEAD_START_SECONDS: Final = 1.0


class FirstCall:
    """Gate that gives the first call of every event loop a head start of at most one second.

    If it fails with a systemic fault, the waiting calls fail with an equal error, and the next call is a first call
    again.
    """

    def __init__(self) -> None:
        # By event loop: the first call under way, whose result is its systemic fault, if any. None once it has ended.
        self._first: WeakKeyDictionary[
            asyncio.AbstractEventLoop, asyncio.Future[ProviderError | None] | None
        ] = WeakKeyDictionary()

    async def then(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Await `call` and return its result, after the head start of the first call.

        Raises
        ------
        ProviderError
            The call failed, or the first call failed with a systemic fault.
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
                del self._first[loop]  # the next call is a first call again
            first.set_result(failure)


def _like(error: ProviderError) -> ProviderError:
    """Return a copy of an error for another call: every caller sets `attempts` on its own."""
    copy = type(error).__new__(type(error), *error.args)
    vars(copy).update(vars(error), attempts=1)
    return copy
