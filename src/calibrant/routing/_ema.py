"""Exponential moving averages of success and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibrant.core._sections import Amount, Share
from calibrant.routing._base import ProviderTally, TallyRouter
from calibrant.routing._checks import check_share, check_whole
from calibrant.routing._protocol import Observation, Router, RoutingRequest

_FIRST_LATENCY: Final = 0.5  # seconds; a guess
_SECONDS_PER_SUCCESS: Final = 10.0  # so much latency weighs as much as failing always


@dataclass
class _EMATally(ProviderTally):
    """Moving averages of one provider."""

    success: Share = 1.0
    latency_seconds: Amount = _FIRST_LATENCY
    penalty: Share = 0.0

    @property
    def score(self) -> float:
        """Score to sort by; higher is better."""
        return self.success - self.latency_seconds / _SECONDS_PER_SUCCESS - self.penalty


class EMARouter(TallyRouter[_EMATally]):
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

    Examples
    --------
    >>> from calibrant.routing import EMARouter, Observation
    >>> router = EMARouter(["a", "b"], reorder_interval=1)
    >>> router.record(Observation(provider="a", success=False, latency_seconds=0.2))
    >>> router.order()
    ['b', 'a']
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
        super().__init__(providers, _EMATally)
        self._alpha = check_share("alpha", alpha)
        self._interval = check_whole("reorder_interval", reorder_interval, low=0)
        self._sort()

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
        super().record(observation)
        self._unsorted += 1
        if self._unsorted == self._interval:
            self._sort()

    def _learn(self, tally: _EMATally, observation: Observation) -> None:
        alpha, keep = self._alpha, 1.0 - self._alpha
        done, seconds = observation.success, observation.latency_seconds
        if observation.recovered and done:
            tally.success = 1.0
            tally.latency_seconds = min(tally.latency_seconds, _FIRST_LATENCY)
        tally.success = (alpha if done else 0.0) + keep * tally.success
        tally.penalty = alpha * observation.penalty + keep * tally.penalty
        if done and not tally.observations:
            tally.latency_seconds = seconds
        elif done or seconds > tally.latency_seconds:
            tally.latency_seconds = alpha * seconds + keep * tally.latency_seconds

    def _sort(self) -> None:
        """Order providers by score, unless the declared order holds for ever; the sort is stable."""
        self._order = list(self._providers)
        if self._interval:
            self._order.sort(key=lambda name: -self._tallies[self._numbers[name]].score)
        self._unsorted = 0

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Restore the averages of a snapshot and sort by them; None resets the state.

        Providers that are no longer there are left out, new ones begin without experience.

        Raises
        ------
        StateError
            A value is missing, not finite or out of its range; nothing is changed.
        """
        super().restore(snapshot)
        self._sort()

    def _values(self, number: int) -> dict[str, float]:
        tally = self._tallies[number]
        return {
            "success": tally.success,
            "latency_seconds": tally.latency_seconds,
            "penalty": tally.penalty,
            "score": tally.score,
        }


def unexplored(router: Router) -> list[str]:
    """Return the providers without observations. The caller must call each once: the strategy never explores.

    Under moving averages those without an observation; under every other strategy none.
    """
    if router.strategy != EMARouter.strategy:
        return []
    return [standing.provider for standing in router.standings() if not standing.observations]
