"""Cascade strategy: the cheapest provider first, a dearer one after a poor answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, get_args

import numpy as np

from calibrant.core._errors import ConfigurationError
from calibrant.core._settings import Amount, Count
from calibrant.metrics._validation import check_count, check_number
from calibrant.routing._base import ProviderTally, TallyRouter, provider_names, provider_values
from calibrant.routing._protocol import (
    Observation,
    RouterTraits,
    RoutingRequest,
    check_costs,
    check_known,
    check_providers,
)
from calibrant.routing._quality import AnswerQuality, answer_quality

ClassifierMode = Literal["heuristic", "judge"]

# The shortest window in which a trigram can repeat.
_LEAST_WINDOW: Final = 4


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
        rng: np.random.Generator | int | None = None,  # noqa: ARG002
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
    def from_settings(
        cls, settings: Mapping[str, Any], *, rng: np.random.Generator | int | None = None
    ) -> Self:
        """Return the strategy of a ``[routing]`` section: its own table, and the providers' costs."""
        own = {name: value for name, value in settings["cascade"].items() if name != "judge_provider"}
        costs = provider_values(settings, "cost")
        return cls(provider_names(settings), **own, costs=costs, rng=rng)

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
        mean = {"mean_quality": tally.quality / tally.judged} if tally.judged else {}
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
    return None if value is None else check_count(name, value, low=low)
