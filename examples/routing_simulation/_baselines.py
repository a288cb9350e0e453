"""Simple strategies that simulations measure the others by; nobody should route with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.metrics._validation import check_number
from calibrant.routing._base import ProviderTally, TallyRouter
from calibrant.routing._protocol import Observation, RoutingRequest

__all__ = ["EpsilonGreedy", "RoundRobin"]


class RoundRobin(TallyRouter[ProviderTally]):
    """Asks providers in turn.

    Parameters
    ----------
    providers : sequence of str
        At least one, each once.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Raises
    ------
    ConfigurationError
        The providers cannot be used.
    """

    strategy = "round-robin"
    tally_kind = ProviderTally
    _next = 0  # whose turn it is

    def order(self, request: RoutingRequest | None = None) -> list[str]:  # noqa: ARG002
        """Return all providers, from the next one on."""
        first = self._next
        self._next = (first + 1) % len(self._providers)
        return [*self._providers[first:], *self._providers[:first]]


class EpsilonGreedy(TallyRouter[ProviderTally]):
    """Asks a random provider now and then, else the one with the highest share of answers so far.

    Providers that were never asked count as having answered always.

    Parameters
    ----------
    providers : sequence of str
        At least one, each once.
    epsilon : float, default 0.1
        Probability in [0, 1] of a random first provider.
    rng : Generator or int, optional
        Randomness; a fresh one by default.

    Raises
    ------
    ConfigurationError
        An argument is out of its range.
    """

    strategy = "epsilon-greedy"
    tally_kind = ProviderTally

    def __init__(
        self, providers: Sequence[str], *, epsilon: float = 0.1, rng: np.random.Generator | int | None = None
    ) -> None:
        super().__init__(providers)
        self._epsilon = check_number("epsilon", epsilon, "[0, 1]")
        self._rng = np.random.default_rng(rng)
        self._answers = dict.fromkeys(self._providers, 0)

    def order(self, request: RoutingRequest | None = None) -> list[str]:  # noqa: ARG002
        """Return all providers by their share of answers; now and then a random one first."""
        share = [
            self._answers[name] / tally.observations if tally.observations else 1.0
            for name, tally in self._tallies.items()
        ]
        numbers = sorted(range(len(share)), key=share.__getitem__, reverse=True)
        if self._rng.random() < self._epsilon:
            first = int(self._rng.integers(len(numbers)))
            numbers.sort(key=lambda number: number != first)
        return [self._providers[number] for number in numbers]

    def record(self, observation: Observation) -> None:
        """Count a call, and whether an answer came.

        Raises
        ------
        ConfigurationError
            The provider is unknown.
        """
        super().record(observation)
        self._answers[observation.provider] += observation.success
