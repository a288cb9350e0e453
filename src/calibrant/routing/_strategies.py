"""Strategies that learn from each provider's answers: moving averages, Thompson sampling, cascade and triage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

import numpy as np

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Record
from calibrant.core._settings import Amount, Count, Number, Share
from calibrant.metrics._validation import RandomSource, check_count, check_number
from calibrant.routing._base import ProviderTally, TallyRouter, provider_names, provider_values
from calibrant.routing._protocol import (
    Observation,
    Router,
    RouterTraits,
    RoutingRequest,
    check_costs,
    check_known,
    check_providers,
    check_table,
)
from calibrant.routing._quality import AnswerQuality, answer_quality
from calibrant.routing._replies import TIERS, sorted_tiers

_FIRST_LATENCY: Final = 0.5  # seconds; a guess
_SECONDS_PER_SUCCESS: Final = 10.0  # so much latency weighs as much as failing always
# Parameters are clipped to the range that can be sampled.
_LEAST: Final = 0.5
_MOST: Final = 1e9
_RATE_LIMIT_WEIGHT: Final = 2.0
_DOUBTFUL: Final = 0.5  # share of answered calls: below it most of the latest ones failed
_LEVEL: Final = 0.95
ClassifierMode = Literal["heuristic", "judge"]
# The shortest window in which a trigram can repeat.
_LEAST_WINDOW: Final = 4
_FILL: Final = 0.8  # of a context window may be taken by the request


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
        rng: RandomSource = None,  # noqa: ARG002
    ) -> None:
        super().__init__(providers)
        self._alpha = check_number("alpha", alpha, "(0, 1]")
        self._interval = check_count("reorder_interval", reorder_interval, low=0)
        self._sort()

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the strategy of a ``[routing]`` section: its averages and its interval."""
        return cls(
            provider_names(settings),
            alpha=settings["router_ema_alpha"],
            reorder_interval=settings["router_reorder_interval"],
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
        alpha = self._alpha
        keep = 1.0 - self._alpha
        done = observation.success
        seconds = observation.latency_seconds
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

    def restore(self, snapshot: Record | None) -> None:
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


def doubtful(router: Router) -> list[str]:
    """Return the providers that failed when they were last asked, and that such a strategy may never ask again.

    Under moving averages: those whose success is below a half. Whoever left them out may have ended before they were
    back.
    """
    if not router.traits.tries_all_first:
        return []
    return [
        standing.provider
        for standing in router.standings()
        if standing.values.get("success", 1.0) < _DOUBTFUL
    ]


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
        rng: RandomSource = None,
    ) -> None:
        super().__init__(providers)
        self._decay = check_number("decay", decay, "(0, 1]")
        self._rng = np.random.default_rng(rng)

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the strategy of a ``[routing]`` section: its decay."""
        return cls(provider_names(settings), decay=settings["thompson_decay"])

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

        alpha = self._tallies[provider].alpha
        beta = self._tallies[provider].beta
        tail = (1.0 - _LEVEL) / 2.0
        return super()._values(provider) | {
            "mean": alpha / (alpha + beta),
            "lower": float(betaincinv(alpha, beta, tail)),
            "upper": float(betaincinv(alpha, beta, 1.0 - tail)),
        }


class Ladder:
    """Acceptance of the answers to one request, one after the other; it remembers the best.

    Failed calls are not passed to it: they count neither as escalations nor as answers.

    Parameters
    ----------
    threshold : float
        Quality from which an answer is accepted.
    max_escalations : int, optional
        Answers that may be turned down before the best one so far is taken.
    max_tokens : int, optional
        Tokens that all answers together may take before the best one so far is taken.

    Attributes
    ----------
    best : int or None
        Number (from 0, in the order in which they were judged) of the best answer; None without any.
    accepted : bool
        True if that answer reached the threshold, or could not be judged.
    """

    def __init__(
        self, *, threshold: float, max_escalations: int | None = None, max_tokens: int | None = None
    ) -> None:
        self._threshold = threshold
        self._left = math.inf if max_escalations is None else max_escalations
        self._budget = math.inf if max_tokens is None else max_tokens
        self._judged = 0
        self._best_score = -math.inf
        self.best: int | None = None
        self.accepted = False

    def ends_with(self, quality: float | None, *, tokens: int = 0) -> bool:
        """Record an answer; return True if the request ends with the best answer so far.

        Parameters
        ----------
        quality : float or None
            Quality on the threshold's scale: any finite number, higher is better. None if the answer could
            not be judged, which accepts it.
        tokens : int, default 0
            Tokens of the answer.
        """
        self.accepted = quality is None or quality >= self._threshold
        if self.accepted or quality is None or quality > self._best_score:
            self.best = self._judged
            self._best_score = math.inf if quality is None else quality
        self._judged += 1
        self._budget -= tokens
        if self.accepted or self._left <= 0 or self._budget <= 0:
            return True
        self._left -= 1
        return False


@dataclass
class _QualityTally(ProviderTally):
    """Number of judged answers of one provider, and the sum of their qualities."""

    judged: Count = 0
    quality: Amount = 0.0

    def __post_init__(self) -> None:
        if not self.quality <= self.judged <= self.observations:
            raise ValueError("expected quality <= judged <= observations")


class CascadeRouter(TallyRouter[_QualityTally]):
    """Strategy that escalates from cheap to dear providers until an answer is good enough.

    Observations never change the order. The caller takes a `ladder` for each request, passes it the quality
    of every answer and returns the best one. Failed calls are not answers: they use up no escalation.
    Standings hold the number of ``judged`` answers and, if any were judged, their ``mean_quality``.

    Parameters
    ----------
    providers : sequence of str
        Names of the providers, each once.
    cost_tiers : sequence of str, optional
        Providers from cheap to dear. Those that are not listed follow as declared.
    costs : mapping of str to float, optional
        Cost of a call, in any unit, finite and at least 0. Without `cost_tiers`, providers are sorted by it,
        ties as declared, and those without a cost last: an unknown price may be high.
    quality_threshold : float, default 0.5
        In [0, 1]: quality from which an answer is taken. 0.5 tells degenerate answers from others.
    max_escalations : int, default 2
        Answers that may be rejected for one request.
    max_cascade_tokens : int, optional
        Tokens, at least 1, that all answers to one request may take before the best is taken.
    window_size : int, optional
        Words, at least 4, in which to look for repetition; the whole answer by default.
    classifier_mode : {"heuristic", "judge"}, default "heuristic"
        Judge of answers: `assess`, or a model (`judge_messages`, `read_judgement`) with `assess` as the
        fallback for unreadable replies.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Attributes
    ----------
    classifier_mode : {"heuristic", "judge"}
        As given.
    strategy : str
        ``cascade``.

    Raises
    ------
    ConfigurationError
        No provider or a repeated one; an unknown or repeated name in `cost_tiers` or `costs`; a number out of its
        range.

    Examples
    --------
    >>> router = CascadeRouter(["big", "small"], costs={"big": 5.0, "small": 0.1})
    >>> router.order()
    ['small', 'big']
    >>> ladder = router.ladder()
    >>> ladder.ends_with(router.assess("the the the the the the the the").score)
    False
    >>> ladder.ends_with(router.assess("Paris.").score), ladder.best
    (True, 1)
    """

    strategy = "cascade"
    traits = RouterTraits(learns_order=False, judges_answers=True)
    tally_kind = _QualityTally

    def __init__(  # noqa: PLR0913 - the options of the strategy
        self,
        providers: Sequence[str],
        *,
        cost_tiers: Sequence[str] | None = None,
        costs: Mapping[str, float] | None = None,
        quality_threshold: float = 0.5,
        max_escalations: int = 2,
        max_cascade_tokens: int | None = None,
        window_size: int | None = None,
        classifier_mode: ClassifierMode = "heuristic",
        rng: RandomSource = None,  # noqa: ARG002
    ) -> None:
        super().__init__(providers)
        self._cheapest_first = _cheapest_first(self._providers, cost_tiers, costs)
        self._threshold = check_number("quality_threshold", quality_threshold, "[0, 1]")
        self._escalations = check_count("max_escalations", max_escalations, low=0)
        self._tokens = _optional("max_cascade_tokens", max_cascade_tokens, low=1)
        self._window = _optional("window_size", window_size, low=_LEAST_WINDOW)
        if classifier_mode not in get_args(ClassifierMode):
            raise ConfigurationError(
                f"Expected classifier_mode to be 'heuristic' or 'judge', got {classifier_mode!r:.80}."
            )
        self.classifier_mode = classifier_mode

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the strategy of a ``[routing]`` section: its own table, and the providers' costs."""
        own = {name: value for name, value in settings["cascade"].items() if name != "judge_provider"}
        costs = provider_values(settings, "cost")
        return cls(provider_names(settings), **own, costs=costs)

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the cheapest first; in declared order if the request offers tools."""
        return list(self._providers if request is not None and request.has_tools else self._cheapest_first)

    def ladder(self) -> Ladder:
        """Return a new `Ladder` for the answers to one request."""
        return Ladder(threshold=self._threshold, max_escalations=self._escalations, max_tokens=self._tokens)

    def assess(
        self, text: str, *, finish_reason: str | None = None, refusal: str | None = None
    ) -> AnswerQuality:
        """Return the quality of an answer by `answer_quality`, with the router's `window_size`."""
        return answer_quality(text, finish_reason=finish_reason, refusal=refusal, window_size=self._window)

    def _learn(self, tally: _QualityTally, observation: Observation) -> None:
        if observation.success and observation.quality is not None:
            tally.judged += 1
            tally.quality += observation.quality

    def _values(self, provider: str) -> dict[str, float]:
        tally = self._tallies[provider]
        mean = {}
        if tally.judged:
            mean = {"mean_quality": tally.quality / tally.judged}
        return {"judged": tally.judged} | mean


def _cheapest_first(
    providers: tuple[str, ...], cost_tiers: Sequence[str] | None, costs: Mapping[str, float] | None
) -> tuple[str, ...]:
    prices = check_costs(costs, providers)
    if not cost_tiers:
        return tuple(sorted(providers, key=lambda name: prices.get(name, np.inf)))
    tiers = check_providers(cost_tiers)
    check_known("cost_tiers", tiers, providers)
    return tiers + tuple(name for name in providers if name not in tiers)


def _optional(name: str, value: object, *, low: int) -> int | None:
    if value is None:
        return None
    return check_count(name, value, low=low)


@dataclass
class _TierTally(ProviderTally):
    """Counts of one provider's calls by tier, and of calls moved to it for its larger context window."""

    simple: Count = 0
    medium: Count = 0
    complex: Count = 0
    expert: Count = 0
    untriaged: Count = 0
    larger_window: Count = 0


class TriageRouter(TallyRouter[_TierTally]):
    """Strategy that prefers the provider of the request's tier; the others are its fallbacks.

    Tiers are ``simple``, ``medium``, ``complex`` and ``expert``. A tier without a provider is served by
    the next higher one that has one, else by the next lower. A request whose tier is unknown (no answer,
    too late, unreadable) goes to the lowest tier with a provider. Fallbacks are the tiers above the chosen
    one, then those below, then providers without a tier as declared.

    Providers whose context window is known to be too small go to the end, the largest window first:
    a request may take 80 % of a window, the rest is for the answer. So a request that is too long for its
    tier goes to the first fallback that holds it.

    Standings count the calls of each tier by its name, calls without a known tier (``untriaged``), and calls
    sent elsewhere because the tier's context window was too small (``larger_window``).

    Parameters
    ----------
    providers : sequence of str
        Names of the providers, each once.
    tiers : mapping of str to str
        Provider of each tier; at least one. A provider may serve several.
    context_windows : mapping of str to int, optional
        Tokens, at least 1, that a provider takes. One without an entry is never taken to be too small.
    rng : Generator or int, optional
        Not used; every strategy takes it.

    Attributes
    ----------
    tiers : dict of str to str
        As given, from easy to hard.
    strategy : str
        ``triage``.

    Raises
    ------
    ConfigurationError
        No provider or a repeated one; no tiers; an unknown tier or provider; a window below 1.

    Examples
    --------
    >>> router = TriageRouter(["big", "small"], tiers={"simple": "small", "complex": "big"})
    >>> router.order(RoutingRequest(tier="medium"))
    ['big', 'small']
    >>> router.order()
    ['small', 'big']
    """

    strategy = "triage"
    traits = RouterTraits(learns_order=False)
    tally_kind = _TierTally

    def __init__(
        self,
        providers: Sequence[str],
        *,
        tiers: Mapping[str, str],
        context_windows: Mapping[str, int] | None = None,
        rng: RandomSource = None,  # noqa: ARG002
    ) -> None:
        super().__init__(providers)
        table = check_table("tiers", tiers)
        windows = {} if context_windows is None else check_table("context_windows", context_windows)
        if not table:
            raise ConfigurationError(
                f"Expected a provider for at least one of the tiers {', '.join(TIERS)}, got none."
            )
        self.tiers = {tier: table[tier] for tier in sorted_tiers(table)}
        check_known("tiers", self.tiers.values(), self._providers)
        check_known("context_windows", windows, self._providers)
        self._windows = {
            name: check_count(f"the context window of {name!r}", window, low=1)
            for name, window in windows.items()
        }

    @classmethod
    def from_settings(cls, settings: Record) -> Self:
        """Return the strategy of a ``[routing]`` section: its tiers, and the providers' context windows."""
        own = settings["triage"] or {"tiers": {}}
        tiers = {tier: name for tier, name in own["tiers"].items() if name is not None}
        windows = provider_values(settings, "context_window")
        return cls(provider_names(settings), tiers=tiers, context_windows=windows)

    @classmethod
    def for_snapshot(
        cls,
        snapshot: Record,  # noqa: ARG003
        providers: Sequence[str],
        *,
        parameters: Record,  # noqa: ARG003
    ) -> Self:
        """Return a strategy with one tier, as the standings do not depend on them."""
        return cls(providers, tiers={"simple": providers[0]})

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the one of the request's tier first unless its context window is too small.

        Raises
        ------
        ConfigurationError
            The tier is unknown; None is not.
        """
        request = request or RoutingRequest()
        chain = self._chain(request.tier)
        return sorted(chain, key=lambda name: self._shortage(name, request.tokens))

    def _learn(self, tally: _TierTally, observation: Observation) -> None:
        request = observation.request
        if request is not None:
            first = self.order(request)[0]
            wanted = self._chain(request.tier)[0]
            name = request.tier or "untriaged"
            setattr(tally, name, getattr(tally, name) + 1)
            tally.larger_window += observation.provider == first != wanted

    def _chain(self, tier: str | None) -> list[str]:
        """Return all providers: of the tier, of higher tiers, of lower tiers, then the rest."""
        if tier is not None and tier not in TIERS:
            raise ConfigurationError(
                f"Expected one of the tiers {', '.join(TIERS)}, or None, got {tier!r:.80}."
            )
        ranks = list(TIERS)
        start = 0 if tier is None else ranks.index(tier)
        # Higher tiers, then lower ones from the nearest down.
        ranks = ranks[start:] + ranks[:start][::-1]
        served = [self.tiers[name] for name in ranks if name in self.tiers]
        return list(dict.fromkeys([*served, *self._providers]))

    def _shortage(self, provider: str, tokens: int | None) -> float:
        """Return 0 if a request fits the context window, else a number that falls as the window grows."""
        window = self._windows.get(provider)
        if tokens is None or window is None or tokens <= _FILL * window:
            return 0.0
        return 1.0 / window
