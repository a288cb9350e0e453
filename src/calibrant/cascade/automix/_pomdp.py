"""The meta-verifier that holds beliefs about questions: a POMDP of horizon one, solved exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from calibrant.cascade._checks import check_count, check_real
from calibrant.cascade.automix._beliefs import (
    BinnedRows,
    State,
    continuous_belief,
    discrete_belief,
    functional_belief,
    posterior_gain,
)
from calibrant.cascade.automix._meta import Goal, Paired, PricedRouting, prices_between
from calibrant.cascade.automix._policy import bin_numbers
from calibrant.cascade.automix._pomdp_file import PomdpSpecification
from calibrant.cascade.automix._routing_checks import Array, Bools, check_scores
from calibrant.core._errors import ConfigurationError

PomdpForm = Literal["functional", "discrete", "continuous", "auto"]
Rewards = Mapping[str, Mapping[str, float]]
"""Reward of ``"trust"`` and of ``"route"`` in the states ``"simple"``, ``"complex"`` and ``"unsolvable"``."""

_STATES = tuple(state.name.lower() for state in State)
_ACTIONS = ("trust", "route")
_BEFORE = ("START_SIMPLE", "START_COMPLEX", "START_UNSOLVABLE")
_AFTER = ("SIMPLE", "COMPLEX", "UNSOLVABLE")
_FILE_ACTIONS = ("Init", "Trust_SLM", "Invoke_LLM")


class POMDPMetaVerifier(PricedRouting):
    """Routes where the belief about the question, after the verifier's score, makes the large model worth its price.

    Questions are simple, complex or unsolvable; the verifier's score, one of k + 1 values, is the observation. As
    there is one decision and rewards are linear, the optimum at the price w is to route if and only if the
    posterior mean of the gain exceeds w times the cost of the large model: no solver is needed.

    Parameters
    ----------
    form : {"auto", "functional", "discrete", "continuous"}, default "auto"
        How P(observation | state) is described. ``"functional"``: a power of the score per state. ``"discrete"``:
        smoothed shares of the training rows. ``"continuous"``: states are the pairs of both models' scores, counts
        are smoothed, and scores between the k + 1 values are interpolated. ``"auto"``: the one that does best on
        held-out folds.
    k : int, default 8
        Samples of the verifier; scores are rounded to the nearest of 0, 1/k, ..., 1.
    price : float, optional
        Performance that one unit of cost must bring, at least 0.
    budget : float, optional
        Most that a row may cost on average, small model and verifier included; met on the training rows. With
        neither, the best IBC lift is chosen or, with `rewards`, price 0: rewards hold their own prices.
    rewards : mapping, optional
        `Rewards` of both actions in the three states, in the unit of performance. By default the mean scores of
        the models in each state. Not for ``"continuous"``.
    prior : mapping of str to float, optional
        Probabilities of the three states where the method is going to be used; by default their shares of the
        training rows. Not for ``"continuous"``.
    smoothing : float, default 1.0
        ``"discrete"``: rows like all rows together that are added to every bin.
    folds : int, default 5
        For ``"auto"``; drawn with `seed`.
    seed : int, default 0
        Of the folds.
    fixed_answers : sequence of str, optional
        Answers of the small model that always go on, compared whole after `normalised_answer`.

    Attributes
    ----------
    form_ : str
        The form in use.
    gain_ : ndarray of shape (k + 1,)
        Posterior mean of what the large model adds, by observation (with `rewards`, in their unit).
    prior_ : ndarray of shape (S,)
        Probabilities of the states: three, or (k + 1)^2 pairs of scores for ``"continuous"``.
    observation_ : ndarray of shape (S, k + 1)
        P(observation | state).
    state_gain_ : ndarray of shape (S,)
        Expected gain in each state.
    gamma_ : ndarray of shape (3,)
        Of ``"functional"`` alone.
    price_ : float
        The price in use.
    prices_ : ndarray of shape (m,)
        One price, falling, for each policy some price leads to: ``route(..., price=p)`` over them is the whole
        curve.
    large_cost_ : float
        Mean cost of the large model in training.
    form_values_ : dict of str to float
        ``"auto"`` alone: what each form reached on the held-out folds.

    References
    ----------
    Aggarwal, Madaan et al. (2023). AutoMix: Automatically Mixing Language Models. arXiv:2310.12963, appendix B.1.
    """

    form_: str
    gain_: Array
    prior_: Array
    observation_: Array
    state_gain_: Array
    gamma_: Array
    price_: float
    large_cost_: float
    form_values_: dict[str, float]

    def __init__(  # noqa: PLR0913  (keyword-only options)
        self,
        *,
        form: PomdpForm = "auto",
        k: int = 8,
        price: float | None = None,
        budget: float | None = None,
        rewards: Rewards | None = None,
        prior: Mapping[str, float] | None = None,
        smoothing: float = 1.0,
        folds: int = 5,
        seed: int = 0,
        fixed_answers: Sequence[str] = (),
    ) -> None:
        super().__init__(fixed_answers=fixed_answers)
        if form not in get_args(PomdpForm):
            msg = f"Expected form to be one of {', '.join(get_args(PomdpForm))}, got {form!r}."
            raise ConfigurationError(msg)
        if form == "continuous" and (rewards is not None or prior is not None):
            msg = (
                "form='continuous' has no simple, complex and unsolvable states: leave rewards and prior out."
            )
            raise ConfigurationError(msg)
        self.form, self.k = form, check_count("k", k)
        self.price, self.budget = price, budget
        self._goal = Goal(
            price=0.0 if rewards is not None and price is None and budget is None else price, budget=budget
        )
        self.rewards = rewards
        self._reward_gain = None if rewards is None else _reward_gain(rewards)
        self.prior = prior
        self._prior = None if prior is None else _check_prior(prior)
        self.smoothing = check_real("smoothing", smoothing, low=0.0)
        self.folds, self.seed = check_count("folds", folds, low=2), check_count("seed", seed, low=0)

    def _learn(self, rows: Paired) -> None:
        self.form_ = self._choose_form(rows) if self.form == "auto" else self.form
        self._describe(rows)
        self.large_cost_ = rows.large_cost
        levels, group = np.unique(-self._gain_at(rows.verifier), return_inverse=True)
        n = len(rows.verifier)
        weight = np.bincount(group) / n
        taken = self._goal.best_prefix(-levels * weight, weight, rows)
        self._set_prices(-levels, taken)

    def _set_prices(self, levels: Array, taken: int) -> None:
        worth = levels / self.large_cost_
        self.prices_ = prices_between(worth)
        if self._goal.price is not None:
            self.price_ = self._goal.price
        elif taken < len(worth):
            above = worth[taken - 1] if taken else 2.0 * max(worth[0], 0.0)
            self.price_ = float(max((above + worth[taken]) / 2.0, 0.0))
        else:
            self.price_ = float(max(worth[-1] / 2.0, 0.0))

    def _describe(self, rows: Paired) -> None:
        """Learn prior, observation table and gains in the form in use."""
        binned = BinnedRows.of(rows.verifier, rows.small, rows.large, k=self.k)
        if self.form_ == "continuous":
            self.prior_, self.observation_, self.state_gain_ = continuous_belief(binned)
            self.gain_ = posterior_gain(self.prior_, self.observation_, self.state_gain_)
            return
        counts = np.bincount(binned.state, minlength=3)
        self.prior_ = counts / counts.sum() if self._prior is None else self._prior
        learned = np.bincount(binned.state, weights=rows.gain, minlength=3) / np.maximum(counts, 1)
        self.state_gain_ = learned if self._reward_gain is None else self._reward_gain
        if self.form_ == "discrete":
            self.observation_, by_cell = discrete_belief(binned, smoothing=self.smoothing)
            gain = by_cell if self._reward_gain is None else self.state_gain_
        else:
            gain = self.state_gain_
            seen, gained = binned.sums().sum(axis=0), binned.sums(rows.gain).sum(axis=0)
            self.observation_, self.gamma_ = functional_belief(
                binned,
                value=lambda table: held_out_value(posterior_gain(self.prior_, table, gain), gained, seen),
            )
        self.gain_ = posterior_gain(self.prior_, self.observation_, gain)

    def _choose_form(self, rows: Paired) -> str:
        """Return the form whose policies do best on rows they were not learned from."""
        n = len(rows.verifier)
        forms = [
            f
            for f in ("discrete", "functional", "continuous")
            if f != "continuous" or self._three_states_free
        ]
        fold = np.random.default_rng(self.seed).permutation(n) % min(self.folds, n)
        self.form_values_ = dict.fromkeys(forms, 0.0)
        if n < 2:
            return forms[0]
        for form in forms:
            for held in range(int(fold.max()) + 1):
                trial = self._trial(form)
                trial._describe(rows.take(fold != held))  # noqa: SLF001  (of its own kind)
                seen = rows.take(fold == held)
                value = held_out_value(trial._gain_at(seen.verifier), seen.gain, np.ones(len(seen.gain)))  # noqa: SLF001
                self.form_values_[form] += value * len(seen.gain) / n
        return max(forms, key=lambda form: self.form_values_[form])

    @property
    def _three_states_free(self) -> bool:
        return self.rewards is None and self.prior is None

    def _trial(self, form: str) -> Self:
        trial = type(self)(k=self.k, rewards=self.rewards, prior=self.prior, smoothing=self.smoothing)
        trial.form_ = form
        return trial

    def _gain_at(self, scores: Array) -> Array:
        if self.form_ == "continuous":
            return np.interp(scores, np.arange(self.k + 1) / self.k, self.gain_)
        gains: Array = self.gain_[bin_numbers(scores, self.k)]
        return gains

    def gain(self, verifier_score: ArrayLike) -> Array:
        """Return the posterior mean of what the large model adds, shape (n,).

        Raises
        ------
        NotFittedError
            Before `fit`.
        ConfigurationError
            Scores outside [0, 1].
        """
        self._require_fitted()
        return self._gain_at(check_scores("verifier_score", verifier_score))

    def _routed(self, scores: Array, price: float | None) -> Bools:
        return self._gain_at(scores) > (self.price_ if price is None else price) * self.large_cost_

    def specification(self) -> PomdpSpecification:
        """Return the fitted POMDP in six states, as the paper writes it: three before the verifier, three after.

        The price of the large model is part of its rewards, so that the optimal policy of the file is this one.
        Not for ``form="continuous"``, whose states are pairs of scores; where the discrete form knows gains of
        single cells, the file holds those of the states.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ConfigurationError
            The form is ``"continuous"``.
        """
        self._require_fitted()
        if self.form_ == "continuous":
            msg = "The continuous form has no file: its states are pairs of scores."
            raise ConfigurationError(msg)
        moves = np.stack([np.eye(6)] * 3)
        moves[0] = np.vstack([np.hstack([np.zeros((3, 3)), np.eye(3)])] * 2)
        observation = np.vstack([np.full((3, self.k + 1), 1.0 / (self.k + 1)), self.observation_])
        reward = np.zeros((3, 6))
        reward[2, 3:] = self.state_gain_ - self.price_ * self.large_cost_
        return PomdpSpecification(
            states=_BEFORE + _AFTER,
            actions=_FILE_ACTIONS,
            observations=tuple(f"bin_{i}" for i in range(self.k + 1)),
            start=np.concatenate([self.prior_, np.zeros(3)]),
            transition=moves,
            observation=np.stack([observation] * 3),
            reward=np.broadcast_to(reward[:, :, None, None], (3, 6, 6, self.k + 1)),
        )

    @classmethod
    def from_specification(cls, specification: PomdpSpecification) -> Self:
        """Return a fitted meta-verifier that follows a POMDP file, in the shape `specification` writes.

        Its three actions are, in this order, to look, to trust and to route; what follows the first one is the
        observation, and the states it leads to are the ones believed in. Costs are part of the rewards, so the
        price is 0; ``price=`` of `route` is then an amount of reward that routing must bring.

        Raises
        ------
        ConfigurationError
            Another shape of POMDP.
        """
        spec = specification
        if len(spec.actions) != 3 or len(spec.observations) < 2:
            msg = (
                "Expected a POMDP with three actions (look, trust, route) and at least two observations, got "
                f"{len(spec.actions)} actions and {len(spec.observations)} observations."
            )
            raise ConfigurationError(msg)
        after = spec.start @ spec.transition[0]
        gains = _state_rewards(spec, 2) - _state_rewards(spec, 1)
        found = cls(form="discrete", k=len(spec.observations) - 1, price=0.0)
        found.form_, found.large_cost_ = "discrete", 1.0
        possible = after > 0.0
        found.prior_, found.observation_ = after[possible], spec.observation[0][possible]
        found.state_gain_ = gains[possible]
        found.gain_ = posterior_gain(found.prior_, found.observation_, found.state_gain_)
        found._set_prices(-np.unique(-found.gain_), 0)
        return found


def held_out_value(expected: Array, gained: Array, weight: Array) -> float:
    """Return the area under what is gained by routing groups of rows in the order of their expected gains.

    Parameters
    ----------
    expected, gained, weight : ndarray of shape (G,)
        The belief's gain of each group, the sum of what was really gained, and its number of rows.

    Returns
    -------
    float
        Mean, over all shares of rows routed, of the gain per row. Groups expected to gain nothing are not
        routed, and what lies beyond them counts as flat. Unlike the best lift of one policy it does not hang on
        a few rows, and it is defined where the large model is not better.
    """
    levels, group = np.unique(-expected, return_inverse=True)
    useful = levels < 0.0
    n = weight.sum()
    width = np.bincount(group, weights=weight)[useful] / n
    height = np.concatenate(([0.0], np.cumsum(np.bincount(group, weights=gained)[useful]) / n))
    area = float((width * (height[1:] + height[:-1]) / 2.0).sum())
    return area + float(height[-1]) * (1.0 - float(width.sum()))


def _reward_gain(rewards: Rewards) -> Array:
    if not isinstance(rewards, Mapping) or set(rewards) != set(_ACTIONS):
        msg = f"Expected rewards of the actions 'trust' and 'route', got {rewards!r}."
        raise ConfigurationError(msg)
    table: Array = np.array(
        [
            [
                check_real(f"reward of {action} in {state}", _of(rewards[action], state, "rewards"))
                for state in _STATES
            ]
            for action in _ACTIONS
        ]
    )
    gains: Array = table[1] - table[0]
    return gains


def _check_prior(prior: Mapping[str, float]) -> Array:
    shares: Array = np.array(
        [check_real(f"prior of {s}", _of(prior, s, "prior"), low=0.0, high=1.0) for s in _STATES]
    )
    if abs(shares.sum() - 1.0) > 1e-6:
        msg = f"Expected the prior to sum to 1, got {shares.sum():.6g}."
        raise ConfigurationError(msg)
    shares /= shares.sum()
    return shares


def _of(values: Mapping[str, float], state: str, name: str) -> float:
    if not isinstance(values, Mapping) or set(values) != set(_STATES):
        msg = f"Expected {name} for the states {', '.join(_STATES)}, got {values!r}."
        raise ConfigurationError(msg)
    return values[state]


def _state_rewards(spec: PomdpSpecification, action: int) -> Array:
    """Return the expected reward of an action in each state, shape (S,)."""
    reward: Array = np.einsum(
        "st,to,sto->s", spec.transition[action], spec.observation[action], spec.reward[action]
    )
    return reward
