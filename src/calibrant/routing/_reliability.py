"""Strategies that learn how reliably each provider answers: moving averages and Thompson sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from calibrant.core._settings import Amount, Number, Share
from calibrant.metrics._validation import check_count, check_number
from calibrant.routing._base import ProviderTally, TallyRouter, provider_names
from calibrant.routing._protocol import Observation, Router, RouterTraits, RoutingRequest

_FIRST_LATENCY: Final = 0.5  # seconds; a guess
_SECONDS_PER_SUCCESS: Final = 10.0  # so much latency weighs as much as failing always
# Parameters are clipped to the range that can be sampled.
_LEAST: Final = 0.5
_MOST: Final = 1e9
_RATE_LIMIT_WEIGHT: Final = 2.0
_LEVEL: Final = 0.95


@dataclass
class _EMATally(ProviderTally):
    """Moving averages of success, latency and penalty of one provider."""

    success: Share = 1.0
    latency_seconds: Amount = _FIRST_LATENCY
    penalty: Share = 0.0

    @property
    def score(self) -> float:
        """Score to sort by; higher is better."""
        return self.success - self.latency_seconds / _SECONDS_PER_SUCCESS - self.penalty


class EMARouter(TallyRouter[_EMATally]):
    """Strategy that orders providers by moving averages of success and latency, without exploring.

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
    traits = RouterTraits(tries_all_first=True)
    tally_kind = _EMATally

    def __init__(
        self,
        providers: Sequence[str],
        *,
        alpha: float = 0.1,
        reorder_interval: int = 10,
        rng: np.random.Generator | int | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__(providers)
        self._alpha = check_number("alpha", alpha, "(0, 1]")
        self._interval = check_count("reorder_interval", reorder_interval, low=0)
        self._sort()

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], *, rng: np.random.Generator | int | None = None
    ) -> Self:
        """Return the strategy of a ``[routing]`` section: its averages and its interval."""
        return cls(
            provider_names(settings),
            alpha=settings["router_ema_alpha"],
            reorder_interval=settings["router_reorder_interval"],
            rng=rng,
        )

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
        """Sort the providers by score; keep the declared order if `reorder_interval` is 0."""
        self._order = list(self._providers)
        if self._interval:
            self._order.sort(key=lambda name: -self._tallies[name].score)
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

    def _values(self, provider: str) -> dict[str, float]:
        return super()._values(provider) | {"score": self._tallies[provider].score}


def unexplored(router: Router) -> list[str]:
    """Return the providers that the caller must call once because the strategy never explores.

    Under moving averages: those without an observation. Under strategies that explore: none.
    """
    if not router.traits.tries_all_first:
        return []
    return [standing.provider for standing in router.standings() if not standing.observations]


@dataclass
class _BetaTally(ProviderTally):
    """Beta distribution of one provider's success probability."""

    alpha: Number = 1.0
    beta: Number = 1.0

    def __post_init__(self) -> None:
        self.add(0.0, 0.0)

    def add(self, successes: float, failures: float) -> None:
        """Add weights to the parameters, and clip them."""
        self.alpha = min(max(self.alpha + successes, _LEAST), _MOST)
        self.beta = min(max(self.beta + failures, _LEAST), _MOST)


class ThompsonRouter(TallyRouter[_BetaTally]):
    """Strategy that orders providers by samples from the posterior of their success probability [1]_.

    The success probability of a provider has a Beta distribution with the prior Beta(1, 1). A complete answer adds 1
    to its alpha, a failure 1 and a rate limit 2 to its beta, and a penalty adds itself to beta. Every order sorts
    one sample per provider, so that providers with few observations are tried now and then.

    With a decay ``d`` below 1 every observation first moves the alpha and the beta of all providers towards 1,
    ``1 + d (alpha - 1)`` [2]_: of idle providers, too, so that old observations fade and these
    providers are tried again; otherwise a recovered provider would go unnoticed. The memory is about
    ``1 / (1 - d)`` observations of all providers together.

    Parameters
    ----------
    providers : sequence of str
        At least one, each once.
    decay : float, default 1.0
        In (0, 1]; 1 forgets nothing.
    rng : Generator or int, optional
        Randomness of the samples; a fresh one by default.

    Raises
    ------
    ConfigurationError
        An argument is out of its range.

    References
    ----------
    .. [1] Russo, Van Roy, Kazerouni, Osband, Wen (2018), A tutorial on Thompson sampling,
       https://arxiv.org/abs/1707.02038, algorithm 3.2 and section 6.3.
    .. [2] Raj, Kalyani (2017), Taming non-stationary bandits: a Bayesian approach,
       https://arxiv.org/abs/1707.09727, algorithm 1.

    Examples
    --------
    >>> from calibrant.routing import Observation, ThompsonRouter
    >>> router = ThompsonRouter(["a", "b"], rng=0)
    >>> for _ in range(20):
    ...     router.record(Observation(provider="a", success=False, latency_seconds=1.0))
    >>> [round(one.values["mean"], 3) for one in router.standings()]
    [0.045, 0.5]
    >>> sum(router.order() == ["b", "a"] for _ in range(100)) > 80
    True
    """

    strategy = "thompson"
    tally_kind = _BetaTally

    def __init__(
        self,
        providers: Sequence[str],
        *,
        decay: float = 1.0,
        rng: np.random.Generator | int | None = None,
    ) -> None:
        super().__init__(providers)
        self._decay = check_number("decay", decay, "(0, 1]")
        self._rng = np.random.default_rng(rng)

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], *, rng: np.random.Generator | int | None = None
    ) -> Self:
        """Return the strategy of a ``[routing]`` section: its decay."""
        return cls(provider_names(settings), decay=settings["thompson_decay"], rng=rng)

    def order(self, request: RoutingRequest | None = None) -> list[str]:  # noqa: ARG002
        """Return all providers, sorted by a sample from each posterior, the highest first."""
        # One scalar sample after the other: arrays of a handful of numbers take longer to make than to fill.
        beta = self._rng.beta
        samples = {name: beta(tally.alpha, tally.beta) for name, tally in self._tallies.items()}
        return sorted(samples, key=samples.__getitem__, reverse=True)

    def _learn(self, tally: _BetaTally, observation: Observation) -> None:
        decay = self._decay
        if decay < 1.0:
            for each in self._tallies.values():
                each.alpha = 1.0 + decay * (each.alpha - 1.0)
                each.beta = 1.0 + decay * (each.beta - 1.0)
        failure = _RATE_LIMIT_WEIGHT if observation.rate_limited else 1.0
        won, lost = (1.0, 0.0) if observation.success else (0.0, failure)
        tally.add(won, lost + observation.penalty)

    def _values(self, provider: str) -> dict[str, float]:
        from scipy.special import betaincinv  # noqa: PLC0415 (slow to load, needed for display only)

        alpha, beta = self._tallies[provider].alpha, self._tallies[provider].beta
        tail = (1.0 - _LEVEL) / 2.0
        return super()._values(provider) | {
            "mean": alpha / (alpha + beta),
            "lower": float(betaincinv(alpha, beta, tail)),
            "upper": float(betaincinv(alpha, beta, 1.0 - tail)),
        }
