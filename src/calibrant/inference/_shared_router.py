"""Router with state shared between processes, written in the background."""

from __future__ import annotations

import copy
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._reported import counted
from calibrant.routing._protocol import Observation, ProviderStanding, Router, RouterTraits, RoutingRequest
from calibrant.store._database import WriteBehind

if TYPE_CHECKING:
    from calibrant.store._router_state import RouterState

_LOG = logging.getLogger("calibrant")

_BLOCK = 1000  # observations per update: more would keep other processes waiting
_MAX_WAITING = 10_000  # observations kept in memory while nothing can be written
_REFRESH = 1.0  # seconds after which an order makes the thread look at what other processes learnt


class SharedRouter(WriteBehind):
    """A `Router` whose learned state is stored in a `RouterState` that processes share.

    `record` teaches the router at once and notes the observation; a thread of its own adds what was noted to the
    stored record, in one transaction. The router then goes on from that record, so every process learns from all.
    Nothing is lost where two processes write at once, and strategies that forget or average see each observation
    once, in the order in which it was stored.

    While the state cannot be read or written, requests go on, one warning is logged, up to 10,000 observations
    are kept (then the oldest go) and it is tried again. So it is with a stored record that the strategy cannot
    use, such as a damaged one or one of another version: it is left as it is until somebody deletes it.

    Close it, or use it as a context manager; at the end of the program it is closed by itself, but not in
    children of multiprocessing. After a fork the child goes on with what its parent had learnt; what was
    not yet written is written by the parent. Processes that share a record should have the same providers: each
    forgets those that it does not know. Use another scope of the state for others.

    Parameters
    ----------
    router : Router
        The strategy, without observations. It belongs to this object from now on.
    state : RouterState
        Where to keep what it learns; closed with this object.
    flush_seconds : float, default 0.1
        Seconds in [0, 3600] in which observations are collected before they are written; what a kill may lose.
        Where an update takes more than a tenth of it, pauses grow accordingly.

    Raises
    ------
    ConfigurationError
        `flush_seconds` is out of its range, or the driver of the database is missing.

    Examples
    --------
    >>> import tempfile
    >>> from calibrant.inference import SharedRouter
    >>> from calibrant.routing import Observation, ThompsonRouter
    >>> from calibrant.store import RouterState
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = f"{folder}/router.sqlite"
    ...     with SharedRouter(ThompsonRouter(["a", "b"]), RouterState(place)) as router:
    ...         router.record(Observation(provider="a", success=True, latency_seconds=0.1))
    ...     with SharedRouter(ThompsonRouter(["a", "b"]), RouterState(place)) as router:
    ...         [standing.observations for standing in router.standings()]
    [1, 0]
    """

    thread_name = "calibrant-router"
    rest = 10.0

    def __init__(self, router: Router, state: RouterState, *, flush_seconds: float = 0.1) -> None:
        if not 0 <= flush_seconds <= 3600:
            raise ConfigurationError(f"Expected flush_seconds in [0, 3600], got {flush_seconds!r}.")
        self._router = router
        self._state = state
        # A transaction teaches a copy, so that requests need not wait for it.
        self._copy = copy.deepcopy(router)
        self._last_stored: Mapping[str, Any] | None = None
        self._has_news = False  # True if the stored record differs from what the router has learnt itself
        super().__init__(pause=flush_seconds)
        self._write_queue()

    def _reset(self) -> None:
        super()._reset()
        self._notes: deque[Observation] = deque()
        self._looked_at = -math.inf  # time of the last look at the state

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._router!r}, {self._state.location!r})"

    @property
    def router(self) -> Router:
        """The wrapped strategy, for its settings; another thread may change its learned state."""
        return self._router

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self._router.strategy

    @property
    def traits(self) -> RouterTraits:
        """Traits of the strategy."""
        return self._router.traits

    @property
    def providers(self) -> tuple[str, ...]:
        """Names of the providers, in declared order."""
        return self._router.providers

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the one to ask first at the front; see `Router`."""
        if time.monotonic() - self._looked_at > _REFRESH:
            self._wake_up()
        with self._lock:
            return self._router.order(request)

    def record(self, observation: Observation) -> None:
        """Learn from a call now, and queue it for the next write; see `Router`."""
        with self._lock:
            self._router.record(observation)
            if self._closed:  # a late answer: nobody writes any more
                return
            self._notes.append(observation)
            if self._failing:
                self._shorten()
        self._wake_up()

    def snapshot(self) -> dict[str, Any]:
        """Return the learnt state as JSON values; see `Router`."""
        with self._lock:
            return self._router.snapshot()

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Replace the learnt state, for this process and all others; see `Router`.

        Raises
        ------
        StateError
            The snapshot cannot be used, or the state cannot be written; nothing is changed.
        """
        with self._write_lock:
            self._copy.restore(snapshot)
            record = self._copy.snapshot()
            self._state.update(self.strategy, lambda _: record)
            with self._lock:
                self._notes.clear()
                self._router.restore(record)

    def standings(self) -> tuple[ProviderStanding, ...]:
        """Return the standing of every provider; see `Router`."""
        with self._lock:
            return self._router.standings()

    def flush(self) -> None:
        """Store everything recorded so far.

        Raises
        ------
        StateError
            The state cannot be written; the observations are kept and tried again.
        """
        try:
            with self._write_lock:
                self._save()
        except Exception as error:
            raise StateError(
                f"{counted(len(self._notes), 'observation')} could not be saved for now: {error}"
            ) from error

    def close(self) -> None:
        """Flush and close the state; a warning counts lost observations. Closing again does nothing."""
        if not self._stop():
            return
        if not self._failing:  # the thread just tried
            self._write_queue()
        lost = len(self._notes) + self._dropped
        if lost:
            _LOG.warning(
                "%s: %d observations of the router %s could not be saved and are lost.",
                self._state.location,
                lost,
                self.strategy,
            )
        self._state.close()

    def _write_queue(self) -> bool:
        """Write the queued observations; without any, load the state. Return False if some are left."""
        try:
            # Decided while nobody else writes: what a failed write put back is there again, and reading
            # alone does not pass for an end of the failure.
            with self._write_lock:
                if self._notes:
                    self._save()
                else:
                    self._refresh()
        except Exception as error:  # noqa: BLE001 (any error: requests go on and the write is retried)
            if not self._failing:
                _LOG.warning(
                    "What the router %s learns cannot be shared for now, and requests go on: %s",
                    self.strategy,
                    str(error) or type(error).__name__,
                )
            with self._lock:
                self._failing = True
                self._shorten()
            return not self._notes
        finally:
            self._looked_at = time.monotonic()
        if self._failing:
            _LOG.info("What the router %s learns is shared again.", self.strategy)
        self._failing = False
        return True

    def _shorten(self) -> None:
        while len(self._notes) > _MAX_WAITING:
            self._notes.popleft()
            self._dropped += 1
            self._has_news = True  # what is stored will lack it

    def _save(self) -> None:
        """Add the queued observations to the stored record, and go on from it."""
        for _ in range(0, len(self._notes), _BLOCK):
            with self._lock:
                batch = [self._notes.popleft() for _ in range(min(_BLOCK, len(self._notes)))]
            try:
                stored = self._state.update(self.strategy, functools.partial(self._learned, batch))
            except BaseException:
                with self._lock:
                    self._notes.extendleft(reversed(batch))
                raise
            if self._has_news:
                self._take_over(stored)
            self._last_stored = stored

    def _learned(
        self, observations: Sequence[Observation], stored: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Return a stored record updated by observations."""
        if stored != self._last_stored:
            self._has_news = True
        self._copy.restore(stored)
        for observation in observations:
            self._copy.record(observation)
        return self._copy.snapshot()

    def _refresh(self) -> None:
        """Go on from the stored record, if there is another than before."""
        stored = self._state.read(self.strategy)
        if stored is not None and stored != self._last_stored:
            self._take_over(stored)

    def _take_over(self, stored: Mapping[str, Any]) -> None:
        """Replace the state of the router by a stored record and the observations noted since."""
        with self._lock:
            self._router.restore(stored)
            for observation in self._notes:
                self._router.record(observation)
        self._has_news = False
        self._last_stored = stored
