"""Exponential moving averages of success and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.core._errors import StateError
from calibrant.routing._base import CountingRouter
from calibrant.routing._checks import check_share, check_whole
from calibrant.routing._protocol import Observation, Router, RoutingRequest

_START = {"success": 1.0, "latency_seconds": 0.5, "penalty": 0.0}
_COLUMNS = tuple(_START)
_SECONDS_PER_SUCCESS = 10.0  # so much latency weighs as much as failing always


class EMARouter(CountingRouter):
    """Orders providers by moving averages of their success and latency, without ever exploring.

    Every average ``x`` takes in a value ``v`` as ``alpha v + (1 - alpha) x``. A provider's score is the average
    of its success, minus that of its latency over 10 seconds, minus that of its penalties; averages begin at 1,
    half a second and 0, so that a provider that was never asked scores 0.95. The half second is a guess: where the
    very first call succeeds, its latency takes the guess's place. Providers are sorted by score, equal ones as
    they were declared.

    Rate limits are failures. A call that failed raises the average of the latency where it took longer, as a
    timeout does, and never lowers it: failing fast is not being fast. The first answer after an outage
    (`Observation.recovered`) puts success back to where it began before it counts, and so latency where it
    was higher, as nothing else would bring the provider forward again.

    Parameters
    ----------
    providers : sequence of str
        At least one, each once.
    alpha : float, default 0.1
        Weight of a new value, in (0, 1].
    reorder_interval : int, default 10
        Observations after which providers are sorted anew, at least 0; 0 keeps the declared order for ever.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Raises
    ------
    ConfigurationError
        An argument is out of its range.
    """

    strategy = "ema"

    def __init__(
        self,
        providers: Sequence[str],
        *,
        alpha: float = 0.1,
        reorder_interval: int = 10,
        rng: np.random.Generator | int | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__(providers)
        self._alpha = check_share("alpha", alpha)
        self._interval = check_whole("reorder_interval", reorder_interval, low=0)
        self.restore(None)

    def order(self, request: RoutingRequest | None = None) -> list[str]:  # noqa: ARG002
        """Return all providers in the order of the last sort."""
        return self._order.copy()

    def record(self, observation: Observation) -> None:
        """Update the averages of a call's provider; sort when it is due.

        Raises
        ------
        ConfigurationError
            The provider is unknown.
        """
        number, alpha = self._count(observation), self._alpha
        keep = 1.0 - alpha
        done, seconds = observation.success, observation.latency_seconds
        if observation.recovered and done:
            self._success[number] = _START["success"]
            self._latency[number] = min(self._latency[number], _START["latency_seconds"])
        self._success[number] = (alpha if done else 0.0) + keep * self._success[number]
        self._penalty[number] = alpha * observation.penalty + keep * self._penalty[number]
        if done and self._counts[number] == 1:
            self._latency[number] = seconds
        elif done or seconds > self._latency[number]:
            self._latency[number] = alpha * seconds + keep * self._latency[number]
        self._unsorted += 1
        if self._unsorted == self._interval:
            self._sort()

    def _score(self, number: int) -> float:
        return self._success[number] - self._latency[number] / _SECONDS_PER_SUCCESS - self._penalty[number]

    def _sort(self) -> None:
        """Order providers by score; the sort is stable."""
        scores = [-self._score(number) for number in range(len(self._providers))]
        self._order = [
            self._providers[number] for number in sorted(range(len(scores)), key=scores.__getitem__)
        ]
        self._unsorted = 0

    def snapshot(self) -> dict[str, Any]:
        """Return the averages as JSON values."""
        averages = (self._success, self._latency, self._penalty)
        return self._written(dict(zip(_COLUMNS, averages, strict=True)))

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Restore the averages of a snapshot and sort by them; None resets the state.

        Providers that are no longer there are left out, new ones begin without experience.

        Raises
        ------
        StateError
            A value is missing, not finite or out of its range; nothing is changed.
        """
        stored = self._read(snapshot, _COLUMNS)
        for number, values in stored.items():
            success, latency, penalty = (values[name] for name in _COLUMNS)
            if not (0.0 <= success <= 1.0 and latency >= 0.0 and 0.0 <= penalty <= 1.0):
                raise StateError(
                    f"Expected success and penalty of {self._providers[number]!r} in [0, 1] and latency_seconds "
                    f"of at least 0, got {values}: reset the state."
                )
        self._success, self._latency, self._penalty = self._begin(stored, _START)
        self._order, self._unsorted = list(self._providers), 0
        if self._interval:
            self._sort()

    def _values(self, number: int) -> dict[str, float]:
        return {
            "success": self._success[number],
            "latency_seconds": self._latency[number],
            "penalty": self._penalty[number],
            "score": self._score(number),
        }


def unexplored(router: Router) -> list[str]:
    """Return the providers without observations, which the caller must ask once: the strategy never explores.

    Under moving averages those without an observation; under every other strategy none.
    """
    if router.strategy != EMARouter.strategy:
        return []
    return [standing.provider for standing in router.standings() if not standing.observations]
