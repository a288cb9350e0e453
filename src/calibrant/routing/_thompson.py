"""Thompson sampling of the probability that a provider answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibrant.core._sections import Number
from calibrant.routing._base import ProviderTally, TallyRouter
from calibrant.routing._checks import check_share
from calibrant.routing._protocol import Observation, RoutingRequest

# Parameters are clipped to the range that can be sampled.
_LEAST: Final = 0.5
_MOST: Final = 1e9
_RATE_LIMIT_WEIGHT: Final = 2.0
_LEVEL: Final = 0.95


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
    """Orders providers by samples from the posterior of their success probability [1]_.

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

    def __init__(
        self,
        providers: Sequence[str],
        *,
        decay: float = 1.0,
        rng: np.random.Generator | int | None = None,
    ) -> None:
        super().__init__(providers, _BetaTally)
        self._decay = check_share("decay", decay)
        self._rng = np.random.default_rng(rng)

    def order(self, request: RoutingRequest | None = None) -> list[str]:  # noqa: ARG002
        """Return all providers by a sample of each, the highest first."""
        # One scalar sample after the other: arrays of a handful of numbers take longer to make than to fill.
        beta = self._rng.beta
        samples = {
            name: beta(tally.alpha, tally.beta)
            for name, tally in zip(self._providers, self._tallies, strict=True)
        }
        return sorted(samples, key=samples.__getitem__, reverse=True)

    def _learn(self, tally: _BetaTally, observation: Observation) -> None:
        decay = self._decay
        if decay < 1.0:
            for each in self._tallies:
                each.alpha = 1.0 + decay * (each.alpha - 1.0)
                each.beta = 1.0 + decay * (each.beta - 1.0)
        failure = _RATE_LIMIT_WEIGHT if observation.rate_limited else 1.0
        won, lost = (1.0, 0.0) if observation.success else (0.0, failure)
        tally.add(won, lost + observation.penalty)

    def _values(self, number: int) -> dict[str, float]:
        from scipy.special import betaincinv  # noqa: PLC0415 (slow to load, needed for display only)

        alpha, beta = self._tallies[number].alpha, self._tallies[number].beta
        tail = (1.0 - _LEVEL) / 2.0
        return {
            "alpha": alpha,
            "beta": beta,
            "mean": alpha / (alpha + beta),
            "lower": float(betaincinv(alpha, beta, tail)),
            "upper": float(betaincinv(alpha, beta, 1.0 - tail)),
        }
