"""Thompson sampling of the probability that a provider answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.routing._base import CountingRouter
from calibrant.routing._checks import check_share
from calibrant.routing._protocol import Observation, RoutingRequest

_START = {"alpha": 1.0, "beta": 1.0}
_LEAST, _MOST = 0.5, 1e9
_RATE_LIMIT_WEIGHT = 2.0
_LEVEL = 0.95


class ThompsonRouter(CountingRouter):
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
    """

    strategy = "thompson"

    def __init__(
        self,
        providers: Sequence[str],
        *,
        decay: float = 1.0,
        rng: np.random.Generator | int | None = None,
    ) -> None:
        super().__init__(providers)
        self._decay = check_share("decay", decay)
        self._rng = np.random.default_rng(rng)
        self._alpha: list[float]
        self._beta: list[float]
        self.restore(None)

    def order(self, request: RoutingRequest | None = None) -> list[str]:  # noqa: ARG002
        """Return all providers by a sample of each, the highest first."""
        # One scalar sample after the other: arrays of a handful of numbers take longer to make than to fill.
        samples = dict(zip(self._providers, map(self._rng.beta, self._alpha, self._beta), strict=True))
        return sorted(samples, key=samples.__getitem__, reverse=True)

    def record(self, observation: Observation) -> None:
        """Update the distribution of a call's provider, after the decay of all.

        Raises
        ------
        ConfigurationError
            The provider is unknown.
        """
        number, decay = self._count(observation), self._decay
        if decay < 1.0:
            self._alpha = [1.0 + decay * (alpha - 1.0) for alpha in self._alpha]
            self._beta = [1.0 + decay * (beta - 1.0) for beta in self._beta]
        if observation.success:
            self._alpha[number] = _within(self._alpha[number] + 1.0)
            lost = observation.penalty
        else:
            lost = observation.penalty + (_RATE_LIMIT_WEIGHT if observation.rate_limited else 1.0)
        self._beta[number] = _within(self._beta[number] + lost)

    def snapshot(self) -> dict[str, Any]:
        """Return the parameters of the distributions as JSON values."""
        return self._written({"alpha": self._alpha, "beta": self._beta})

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Restore the parameters of a snapshot, clipped to [0.5, 1e9]; None resets the state.

        Providers that are no longer there are left out, new ones begin without experience.

        Raises
        ------
        StateError
            A value is missing or not finite; nothing is changed.
        """
        stored = self._read(snapshot, tuple(_START))
        alphas, betas = self._begin(stored, _START)
        self._alpha, self._beta = list(map(_within, alphas)), list(map(_within, betas))

    def _values(self, number: int) -> dict[str, float]:
        from scipy.special import betaincinv  # noqa: PLC0415 (slow to load, needed for display only)

        alpha, beta = self._alpha[number], self._beta[number]
        tail = (1.0 - _LEVEL) / 2.0
        return {
            "alpha": alpha,
            "beta": beta,
            "mean": alpha / (alpha + beta),
            "lower": float(betaincinv(alpha, beta, tail)),
            "upper": float(betaincinv(alpha, beta, 1.0 - tail)),
        }


def _within(value: float) -> float:
    """Return a parameter clipped to the range that can be sampled."""
    return min(max(float(value), _LEAST), _MOST)
