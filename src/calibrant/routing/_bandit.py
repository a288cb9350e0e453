"""Bandit strategy: learned reward of each provider by request features and price (LinUCB)."""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, Self

import numpy as np
import pydantic

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._prediction import FloatArray, JsonObject, Record
from calibrant.core._settings import Amount, Count, Number
from calibrant.metrics._validation import RandomSource, as_numbers, check_count, check_number, check_values
from calibrant.routing._base import ProviderTally, TallyRouter, provider_names, provider_values
from calibrant.routing._protocol import Observation, RouterTraits, RoutingRequest, check_costs, unit_vector

# How far an arm's ridge may decay before it is put back.
LEAST_RIDGE = 0.5


class LinUCB:
    r"""Linear upper confidence bounds, one ridge regression per arm (Li et al. 2010, algorithm 1).

    With :math:`A = I` and :math:`b = 0` at the beginning, an arm's score for the context x is
    :math:`b^T A^{-1} x + \alpha \sqrt{x^T A^{-1} x}`. When any arm is told a reward, with
    :math:`g = d^{1/n}` for the decay d and n arms,

    1. every arm forgets: :math:`A \leftarrow g A`, :math:`b \leftarrow g b`;
    2. an arm whose share of the identity, which has decayed with the rest to some :math:`w \le 1`, is
       below 1/2, or that has learnt `dim` times since the last time, gets it back:
       :math:`A \leftarrow A + (1 - w) I`, and its inverse is computed afresh (Cholesky);
    3. the arm that was played learns: :math:`A \leftarrow A + x x^T`, :math:`b \leftarrow b + r x`.

    So with :math:`a_t` for how many rewards, of whichever arm, came after reward t,
    :math:`A = w I + \sum_t g^{a_t} x_t x_t^T` and :math:`b = \sum_t g^{a_t} r_t x_t`. Where w is 1 that
    is what :math:`A \leftarrow I + g (A - I)` leads to; between two refactorisations the
    ridge is smaller, by half at most, which errs on the side of trying. It makes forgetting a single
    factor per arm, which leaves :math:`A^{-1} b` alone and widens the bound: a reward costs one
    update of rank one, :math:`O(dim^2)`, where decay towards I would change the inverse in every
    direction. All arms forget together (as in Russac et al. 2019), or one that is no longer played
    would never be tried again; the n-th root makes one played as often as the average forget d per
    reward of its own.

    Parameters
    ----------
    arms : int
        Number of arms n, at least 1.
    dim : int
        Length of a context, at least 1.
    alpha : float
        Weight of the bound's width, at least 0.
    decay : float
        d in (0, 1]; 1 forgets nothing.

    Attributes
    ----------
    dim : int
        As given.
    ridge, updates, gram, response : ndarray of shape (arms, ...)
        State of every arm: w, rewards since the last refactorisation, A / w - I and b / w.
    inverse : ndarray of shape (arms, dim, dim)
        Inverse of I + gram; `invert` computes it.

    References
    ----------
    Li, Chu, Langford and Schapire (2010), A contextual-bandit approach to personalized news article
    recommendation. Russac, Vernade and Cappé (2019), Weighted linear bandits for non-stationary
    environments.
    """

    def __init__(self, *, arms: int, dim: int, alpha: float, decay: float) -> None:
        self.dim = dim
        self._alpha = alpha
        self._decay = decay ** (1.0 / arms)
        # A = ridge (I + gram) and b = ridge response: forgetting changes the ridge alone.
        self.ridge = np.ones(arms)
        self.gram = np.zeros((arms, dim, dim))
        self.response = np.zeros((arms, dim))
        self.inverse = np.tile(np.eye(dim), (arms, 1, 1))  # of I + gram
        self.updates = np.zeros(arms, dtype=np.int64)  # since the last refactorisation

    def scores(self, context: FloatArray) -> FloatArray:
        """Return the upper bounds of all arms, shape (arms,), for a context of length 1, shape (dim,)."""
        solved = self.inverse @ context
        means: FloatArray = np.einsum("ad,ad->a", self.response, solved)
        return means + self._alpha * np.sqrt((solved @ context) / self.ridge)

    def learn(self, arm: int, context: FloatArray, reward: float) -> None:
        """Update the regression of one arm with a reward for a context of length 1, shape (dim,)."""
        self.ridge *= self._decay
        is_due = (self.updates >= self.dim) | (self.ridge < LEAST_RIDGE)
        for due in np.flatnonzero(is_due).tolist():
            self._refactorise(due)
        ridge = float(self.ridge[arm])
        # Sherman-Morrison for I + gram + x x' / ridge; products of a vector with itself stay symmetric.
        scaled = context / math.sqrt(ridge)
        solved = self.inverse[arm] @ scaled
        step = solved / math.sqrt(1.0 + float(solved @ scaled))
        self.inverse[arm] -= np.outer(step, step)
        self.gram[arm] += np.outer(scaled, scaled)
        self.response[arm] += (reward / ridge) * context
        self.updates[arm] += 1

    def widths(self, squares: FloatArray) -> FloatArray:
        """Return alpha times the root mean square of the width over contexts, shape (arms,).

        Their entries are uncorrelated and have the mean squares `squares`, shape (dim,).
        """
        diagonals = np.diagonal(self.inverse, axis1=1, axis2=2)
        widths: FloatArray = self._alpha * np.sqrt(diagonals @ squares / self.ridge)
        return widths

    def invert(self, arm: int) -> None:
        """Recompute one arm's inverse of I + gram, symmetric to the last bit.

        Raises
        ------
        numpy.linalg.LinAlgError
            I + gram is not positive definite.
        """
        eye = np.eye(self.dim)
        root = np.linalg.cholesky(eye + self.gram[arm])
        half = np.linalg.solve(root, eye)
        self.inverse[arm] = half.T @ half

    def _refactorise(self, arm: int) -> None:
        self.gram[arm] *= self.ridge[arm]
        self.response[arm] *= self.ridge[arm]
        self.ridge[arm] = 1.0
        self.updates[arm] = 0
        self.invert(arm)


_LOG = logging.getLogger("calibrant")
_FAILED: Final = -0.5
_RATE_LIMITED: Final = -1.0
_MOST_DIMENSIONS: Final = 1024
# Length of an embedding, and size of the constant: together a context has length 1.
_PART: Final = math.sqrt(0.5)
# What rounding may add to a bound that holds exactly.
_ROUNDING: Final = 1e-6


class _Average(NamedTuple):
    """Exponentially weighted mean.

    Attributes
    ----------
    weight : float
        Sum of the weights of all values; 0 before the first.
    mean : float
        The mean; 0 before the first.
    """

    weight: Amount
    mean: Number

    def plus(self, value: float, *, decay: float) -> _Average:
        """Return the mean with one more value; earlier values lose the share 1 - `decay` of their weight."""
        weight = decay * self.weight + 1.0
        return _Average(weight, self.mean + (value - self.mean) / weight)


_NO_AVERAGE: Final = _Average(0.0, 0.0)


def _mean_within(low: float, high: float) -> pydantic.AfterValidator:
    def check(average: _Average) -> _Average:
        if not low <= average.mean <= high:
            raise ValueError(f"expected a mean in [{low:g}, {high:g}]")
        return average

    return pydantic.AfterValidator(check)


@dataclass
class _BanditTally(ProviderTally):
    """Counts and means of one provider, with its stored arm.

    Attributes
    ----------
    observations : int
        Rewards it has been told.
    unembedded : int
        Calls nothing was learnt from, because their requests could not be embedded.
    reward, quality, cost : Average
        The rewards; qualities of answers that came; US dollars per answer.
    ridge, updates, gram, response : float, int and str
        State of the arm at the last snapshot, arrays in base64.
    """

    unembedded: Count = 0
    reward: Annotated[_Average, _mean_within(-1.0, 1.0)] = _NO_AVERAGE
    quality: Annotated[_Average, _mean_within(0.0, 1.0)] = _NO_AVERAGE
    cost: Annotated[_Average, _mean_within(0.0, math.inf)] = _NO_AVERAGE
    ridge: Annotated[Number, pydantic.Field(ge=LEAST_RIDGE, le=1.0)] = 1.0
    updates: Count = 0
    gram: str = ""
    response: str = ""


class BanditRouter(TallyRouter[_BanditTally]):
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
    traits = RouterTraits(judges_answers=True, needs_embedding=True)
    tally_kind = _BanditTally

    def __init__(  # noqa: PLR0913 (keyword-only options)
        self,
        providers: Sequence[str],
        *,
        alpha: float = 1.0,
        dim: int = 64,
        cost_weight: float = 0.1,
        decay_factor: float = 0.99,
        costs: Mapping[str, float] | None = None,
        rng: RandomSource = None,  # noqa: ARG002
    ) -> None:
        super().__init__(providers)
        self._alpha = check_number("alpha", alpha, "[0, inf)")
        self._dim = check_count("dim", dim, low=1, high=_MOST_DIMENSIONS)
        self._cost_weight = check_number("cost_weight", cost_weight, "[0, inf)")
        self._decay = check_number("decay_factor", decay_factor, "(0, 1]")
        self._declared = self._declared_shares(costs)
        self._model = self._fresh()

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the strategy of a ``[routing]`` section: its own table, and the providers' costs."""
        names = ("alpha", "dim", "cost_weight", "decay_factor")
        own = {name: settings["bandit"][name] for name in names}
        return cls(provider_names(settings), **own, costs=provider_values(settings, "cost"))

    @classmethod
    def for_snapshot(cls, snapshot: Record, providers: Sequence[str], *, parameters: Record) -> Self:
        """Return a strategy of the snapshot's dimension, with the weight of uncertainty in `parameters`."""
        alpha = parameters["alpha"]
        dim: Any = snapshot.get("dim")  # checked by the constructor
        return cls(providers, dim=dim, alpha=1.0 if alpha is None else alpha)

    @classmethod
    def parameters(cls, snapshot: Record, settings: Record | None) -> dict[str, float | None]:
        """Return alpha and decay factor: those of the settings, or else those in the snapshot, if numbers."""
        source = snapshot if settings is None else settings["bandit"]
        values = {key: source.get(key) for key in ("alpha", "decay_factor")}
        return {key: value if isinstance(value, float | int) else None for key, value in values.items()}

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers by upper bound, the highest first; by mean reward without an embedding.

        Raises
        ------
        ConfigurationError
            The embedding has fewer than `dim` entries, or one that is not finite.
        """
        context = self._context(None if request is None else request.embedding)
        if context is None:
            rewards = (tally.reward for tally in self._tallies.values())
            scores = np.array([reward.mean * reward.weight / (reward.weight + 1.0) for reward in rewards])
        else:
            scores = self._model.scores(context)
        arms = np.argsort(-scores, kind="stable")
        return [self._providers[arm] for arm in arms.tolist()]

    def record(self, observation: Observation) -> None:
        """Update the provider's averages and its regression with the outcome of a call.

        Raises
        ------
        ConfigurationError
            The provider is unknown; the context has fewer than `dim` entries, or one that is not finite.
        """
        tally = self._tally(observation)
        context = self._context(observation.context)
        if context is None:
            tally.unembedded += 1
            return
        if observation.success and observation.cost is not None:
            tally.cost = tally.cost.plus(observation.cost, decay=self._decay)
        reward = self._reward(observation)
        if reward is None:
            return
        tally.observations += 1
        tally.reward = tally.reward.plus(reward, decay=self._decay)
        if observation.success and observation.quality is not None:
            tally.quality = tally.quality.plus(observation.quality, decay=self._decay)
        self._model.learn(self._providers.index(observation.provider), context, reward)

    def snapshot(self) -> JsonObject:
        """Return the learnt state and the settings as JSON values, about ``6 * dim ** 2`` bytes per provider.

        `alpha` and `decay_factor` are for inspection only; `restore` ignores them.
        """
        model = self._model
        upper = np.triu_indices(self._dim + 1)
        for arm, tally in enumerate(self._tallies.values()):
            tally.ridge = float(model.ridge[arm])
            tally.updates = int(model.updates[arm])
            tally.gram = _packed(model.gram[arm][upper])
            tally.response = _packed(model.response[arm])
        settings = {"dim": self._dim, "alpha": self._alpha, "decay_factor": self._decay}
        return {**super().snapshot(), **settings}

    def restore(self, snapshot: Record | None) -> None:
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
                _restore_arm(model, self._providers.index(name), tally)
            except StateError as error:
                raise StateError(f"Provider {name!r:.80}: {error} Reset the state.") from None
        self._model = model
        self._adopt(stored)

    def _values(self, provider: str) -> dict[str, float]:
        tally = self._tallies[provider]
        embedding = np.full(self._dim, _PART**2 / self._dim)
        widths = self._model.widths(np.append(embedding, _PART**2))
        width = float(widths[self._providers.index(provider)])
        values = {"reward": tally.reward.mean, "uncertainty": width}
        if tally.quality.weight:
            values["quality"] = tally.quality.mean
        if tally.cost.weight:
            values["cost"] = tally.cost.mean
        return values | {"unembedded": float(tally.unembedded)}

    def _fresh(self) -> LinUCB:
        return LinUCB(arms=len(self._providers), dim=self._dim + 1, alpha=self._alpha, decay=self._decay)

    def _context(self, embedding: FloatArray | None) -> FloatArray | None:
        """Return the context vector: the truncated embedding and a constant, shape (dim + 1,), of length 1.

        None if the embedding is missing or has no direction.
        """
        if embedding is None:
            return None
        numbers = as_numbers("the embedding", embedding)
        if numbers.size == 0:
            return None
        vector = check_values("the embedding", numbers[: self._dim] if numbers.ndim else numbers)
        if vector.size < self._dim:
            raise ConfigurationError(
                f"Expected an embedding of at least {self._dim} numbers, got {vector.size}: choose a larger model of "
                "embeddings or a smaller dim."
            )
        direction = unit_vector(vector)
        if direction is None:
            return None
        return np.append(_PART * direction, _PART)

    def _reward(self, observation: Observation) -> float | None:
        if not observation.success:
            return _RATE_LIMITED if observation.rate_limited else _FAILED
        if observation.quality is None:
            return None
        reward = observation.quality - self._cost_weight * self._cost_fraction(observation)
        return min(max(reward, -1.0), 1.0)

    def _cost_fraction(self, observation: Observation) -> float:
        cost = observation.cost
        if cost is None:
            average = self._tallies[observation.provider].cost
            if not average.weight:
                return self._declared[observation.provider]
            cost = average.mean
        highest = max(tally.cost.mean for tally in self._tallies.values())
        if highest > 0.0:
            return min(cost / highest, 1.0)
        return 0.0

    def _declared_shares(self, costs: Mapping[str, float] | None) -> dict[str, float]:
        known = check_costs(costs, self._providers)
        highest = max(known.values(), default=0.0) or 1.0
        return {name: known.get(name, 0.0) / highest for name in self._providers}


def _restore_arm(model: LinUCB, arm: int, tally: _BanditTally) -> None:
    """Restore one arm of `model` from its stored state.

    Raises
    ------
    StateError
        A value is not finite or of another size, or is nothing that so many contexts of length 1 with rewards
        in [-1, 1] can lead to.
    """
    dim = model.dim
    gram = np.zeros((dim, dim))
    rows, columns = np.triu_indices(dim)
    gram[rows, columns] = gram[columns, rows] = _unpacked(tally.gram, "gram", size=rows.size)
    response = _unpacked(tally.response, "response", size=dim)
    # The trace bounds every entry, and each observation adds at most 1 to it; only then may it be summed.
    most = (tally.observations * (1.0 + _ROUNDING) + _ROUNDING) / tally.ridge
    if np.abs(gram).max() > most or (trace := float(np.trace(gram))) > most:
        raise StateError(f"Expected a gram of {tally.observations} observations, got a larger one.")
    most = trace * (1.0 + _ROUNDING) + _ROUNDING
    if np.abs(response).max() > most:
        raise StateError("Expected a response to rewards in [-1, 1], got a larger one.")
    try:
        np.linalg.cholesky(gram + _ROUNDING * (1.0 + trace) * np.eye(dim))
        model.ridge[arm] = tally.ridge
        model.updates[arm] = tally.updates
        model.gram[arm] = gram
        model.response[arm] = response
        model.invert(arm)
    except np.linalg.LinAlgError:
        raise StateError("Expected a gram without negative eigenvalues, got one that has some.") from None


def _packed(values: FloatArray) -> str:
    data = np.ascontiguousarray(values, dtype="<f8").tobytes()
    return base64.b64encode(data).decode("ascii")


def _unpacked(text: str, key: str, *, size: int) -> FloatArray:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise StateError(f"Expected {key} to be numbers in base64, got {text!r:.80}.") from None
    if len(data) != 8 * size:
        raise StateError(f"Expected {key} to hold {size} numbers, got {len(data)} bytes.")
    values = np.frombuffer(data, dtype="<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise StateError(f"Expected {key} to hold finite numbers, got some that are not.")
    return values
