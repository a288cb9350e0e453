"""Bandit strategy: learned reward of each provider by request features and price."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.routing._bandit_state import BanditTally, read_arm, write_arm
from calibrant.routing._base import TallyRouter
from calibrant.routing._checks import check_costs, check_real, check_share, check_whole, unit_vector
from calibrant.routing._linucb import LinUCB
from calibrant.routing._protocol import Observation, RoutingRequest

_LOG = logging.getLogger("calibrant")
_FAILED: Final = -0.5
_RATE_LIMITED: Final = -1.0
_MOST_DIMENSIONS: Final = 1024
# Length of an embedding, and size of the constant: together a context has length 1.
_PART: Final = math.sqrt(0.5)
# Magnitudes whose squares neither overflow nor lose digits; others take the slower way.
_PLAIN: Final = (1e-100, 1e100)


class BanditRouter(TallyRouter[BanditTally]):
    r"""LinUCB strategy: the provider with the highest upper confidence bound of reward comes first.

    A request is the first `dim` entries of its embedding, scaled to length 1, and the constant 1; both
    divided by :math:`\sqrt 2`, so that the whole has length 1. Every provider has a linear model of its
    reward with an upper confidence bound (`LinUCB` states the recursion); providers are ordered by that
    bound, ties as they were declared. One that was never asked has the widest bound, so no separate
    warm-up is needed. The constant, which the paper leaves to the features, is how a provider that
    is better for all requests is told from the others although their embeddings have nothing in common.

    **Reward.** An answer earns ``clamp(quality - cost_weight * cost_fraction, -1, 1)``; a failed call
    -0.5, a rate limit -1 (twice as much, as with Thompson sampling). `cost_fraction` in [0, 1] is what
    the call cost, divided by the highest mean cost per answer of any provider so far; a call without
    a price counts as the provider's mean, and while there is none as its share of the highest of
    `costs`, or as free. Cost is known only after a call, so it is part of the reward and of nothing
    else: what a provider costs lowers its score through what was learnt.

    **Delayed rewards.** An answer whose quality is None teaches nothing but its cost; an `Observation` of the
    same call with quality and context, whenever it comes, is learnt.

    **No embedding.** A request without an embedding, or with one that is empty or all zero, trains nothing
    and is only counted. Its providers are ordered by mean reward, ``sum / (n + 1)``, so that one
    never asked counts as 0: the declared order as long as nothing is learnt.

    **Standings.** ``reward`` is the mean reward, ``uncertainty`` alpha times the root mean square, over all
    directions of embeddings, of the width of the bound (`alpha` before the first record). ``quality`` and
    ``cost`` (US dollars) are means per answer and left out while unknown; later calls count more in all
    means. ``unembedded`` counts calls without an embedding.

    Penalties of coherence are left out of account, since quality is learnt here; `recovered` too, since a
    provider that is not asked is forgotten and tried again.

    Parameters
    ----------
    providers : sequence of str
        Names of the providers, at least one, each once.
    alpha : float, default 1.0
        Weight of the bound's width, at least 0; higher tries more.
    dim : int, default 64
        Entries of an embedding that are used, in [1, 1024], the constant not counted; time grows with
        its square.
    cost_weight : float, default 0.1
        Reward lost to the mean cost of the dearest provider, at least 0.
    decay_factor : float, default 0.99
        In (0, 1]. With n providers every record leaves ``decay_factor ** (1 / n)`` of what was learnt,
        so that a provider asked as often as average forgets this much per record of its own.
    costs : mapping of str to float, optional
        Relative costs of the providers, in any unit, at least 0, used until the price of a call
        is known.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Raises
    ------
    ConfigurationError
        An argument is out of its range, or `costs` names an unknown provider.

    References
    ----------
    Li, Chu, Langford and Schapire (2010), A contextual-bandit approach to personalized news article
    recommendation, WWW.

    Examples
    --------
    >>> from calibrant.routing import BanditRouter, Observation, RoutingRequest
    >>> router = BanditRouter(["coder", "talker"], dim=2)
    >>> for vector, best in [([1, 0], "coder"), ([0, 1], "talker")] * 10:
    ...     for name in router.providers:
    ...         known = {"quality": name == best, "context": np.array(vector)}
    ...         router.record(Observation(provider=name, success=True, latency_seconds=1.0, **known))
    >>> [router.order(RoutingRequest(embedding=np.array(vector)))[0] for vector in ([1, 0], [0, 1])]
    ['coder', 'talker']
    """

    strategy = "bandit"
    version = 2  # 1 had no constant

    def __init__(  # noqa: PLR0913 (keyword-only options)
        self,
        providers: Sequence[str],
        *,
        alpha: float = 1.0,
        dim: int = 64,
        cost_weight: float = 0.1,
        decay_factor: float = 0.99,
        costs: Mapping[str, float] | None = None,
        rng: np.random.Generator | int | None = None,  # noqa: ARG002
    ) -> None:
        super().__init__(providers, BanditTally)
        self._alpha = check_real("alpha", alpha)
        self._dim = check_whole("dim", dim, low=1)
        if self._dim > _MOST_DIMENSIONS:
            raise ConfigurationError(f"Expected dim in [1, {_MOST_DIMENSIONS}], got {dim!r}.")
        self._cost_weight = check_real("cost_weight", cost_weight)
        self._decay = check_share("decay_factor", decay_factor)
        self._declared = self._declared_shares(costs)
        self._model = self._fresh()

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the highest bound first.

        Raises
        ------
        ConfigurationError
            The embedding has fewer than `dim` entries, or one that is not finite.
        """
        context = self._context(None if request is None else request.embedding)
        if context is None:
            rewards = (tally.reward for tally in self._tallies)
            scores = np.array([reward.mean * reward.weight / (reward.weight + 1.0) for reward in rewards])
        else:
            scores = self._model.scores(context)
        return [self._providers[arm] for arm in np.argsort(-scores, kind="stable").tolist()]

    def record(self, observation: Observation) -> None:
        """Learn from a call.

        Raises
        ------
        ConfigurationError
            The provider is unknown; the context has fewer than `dim` entries, or one that is not finite.
        """
        arm = self._number(observation)
        context = self._context(observation.context)
        tally = self._tallies[arm]
        if context is None:
            tally.unembedded += 1
            return
        if observation.success and observation.cost is not None:
            tally.cost = tally.cost.plus(observation.cost, decay=self._decay)
        reward = self._reward(arm, observation)
        if reward is None:
            return
        tally.observations += 1
        tally.reward = tally.reward.plus(reward, decay=self._decay)
        if observation.success and observation.quality is not None:
            tally.quality = tally.quality.plus(observation.quality, decay=self._decay)
        self._model.learn(arm, context, reward)

    def snapshot(self) -> dict[str, Any]:
        """Return the learnt state and the settings as JSON values, about ``6 * dim ** 2`` bytes per provider.

        `alpha` and `decay_factor` are for inspection only; `restore` ignores them.
        """
        for arm, tally in enumerate(self._tallies):
            write_arm(self._model, arm, tally)
        settings = {"dim": self._dim, "alpha": self._alpha, "decay_factor": self._decay}
        return {**super().snapshot(), **settings}

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Restore a bandit's snapshot; None, or another `dim` (with a warning), resets the state.

        Providers that are no longer there are left out, new ones begin without experience.

        Raises
        ------
        StateError
            A value is missing, not finite or out of its range; nothing is changed.
        """
        stored = self._stored(snapshot)
        dim = snapshot.get("dim") if snapshot else self._dim
        if type(dim) is not int or dim < 0:
            raise StateError(
                f"Expected dim as a whole number in the state, got {dim!r:.80}: reset the state."
            )
        if dim != self._dim:
            _LOG.warning("The bandit's state has dim %d, not %d: it starts afresh.", dim, self._dim)
            stored = {}
        model = self._fresh()
        for name, tally in stored.items():
            try:
                read_arm(model, self._numbers[name], tally)
            except StateError as error:
                raise StateError(f"Provider {name!r:.80}: {error} Reset the state.") from None
        self._model = model
        self._tallies = [stored.get(name) or BanditTally() for name in self._providers]

    def _values(self, number: int) -> dict[str, float]:
        tally = self._tallies[number]
        embedding = np.full(self._dim, _PART**2 / self._dim)
        widths = self._model.widths(np.append(embedding, _PART**2))
        values = {"reward": tally.reward.mean, "uncertainty": float(widths[number])}
        if tally.quality.weight:
            values["quality"] = tally.quality.mean
        if tally.cost.weight:
            values["cost"] = tally.cost.mean
        return values | {"unembedded": float(tally.unembedded)}

    def _fresh(self) -> LinUCB:
        return LinUCB(arms=len(self._providers), dim=self._dim + 1, alpha=self._alpha, decay=self._decay)

    def _context(self, embedding: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Return the context vector: the truncated embedding and a constant, shape (dim + 1,), of length 1.

        None if the embedding is missing or has no direction.
        """
        if embedding is None:
            return None
        try:
            vector = np.asarray(embedding, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(f"Expected an embedding of numbers, got {embedding!r:.80}.") from error
        if vector.size == 0:
            return None
        if vector.ndim != 1 or vector.size < self._dim:
            raise ConfigurationError(
                f"Expected an embedding of at least {self._dim} numbers, got the shape {vector.shape}: "
                "choose a larger model of embeddings or a smaller dim."
            )
        context = np.empty(self._dim + 1)
        used, context[-1] = vector[: self._dim], _PART
        if _PLAIN[0] < np.abs(used).max() < _PLAIN[1]:
            context[:-1] = used * (_PART / math.sqrt(float(used @ used)))
            return context
        if not np.isfinite(used).all():
            raise ConfigurationError("Expected an embedding of finite numbers, got NaN or infinity.")
        direction = unit_vector(used)
        if direction is None:
            return None
        context[:-1] = _PART * direction
        return context

    def _reward(self, arm: int, observation: Observation) -> float | None:
        if not observation.success:
            return _RATE_LIMITED if observation.rate_limited else _FAILED
        if observation.quality is None:
            return None
        reward = observation.quality - self._cost_weight * self._cost_fraction(arm, observation.cost)
        return min(max(reward, -1.0), 1.0)

    def _cost_fraction(self, arm: int, cost: float | None) -> float:
        if cost is None:
            average = self._tallies[arm].cost
            if not average.weight:
                return self._declared[arm]
            cost = average.mean
        highest = max(tally.cost.mean for tally in self._tallies)
        return min(cost / highest, 1.0) if highest > 0.0 else 0.0

    def _declared_shares(self, costs: Mapping[str, float] | None) -> list[float]:
        known = check_costs(costs, self._providers)
        highest = max(known.values(), default=0.0)
        return [known.get(name, 0.0) / highest if highest > 0.0 else 0.0 for name in self._providers]
