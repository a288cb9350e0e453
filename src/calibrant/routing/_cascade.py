"""The cheapest provider first; a dearer one where its answer is no good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, get_args

import numpy as np

from calibrant.core import ConfigurationError, StateError
from calibrant.routing._ladder import Ladder
from calibrant.routing._numbers import check_real, check_whole
from calibrant.routing._protocol import Observation, RoutingRequest, Standing, check_providers
from calibrant.routing._quality import AnswerQuality, answer_quality
from calibrant.routing._tallies import fresh_tallies, read_tallies, write_tallies

__all__ = ["CascadeRouter", "ClassifierMode"]

ClassifierMode = Literal["heuristic", "judge"]

# The least in which a trigram can come again.
_LEAST_WINDOW: Final = 4
_COUNTS: Final = ("calls", "judged", "quality")


class CascadeRouter:
    """Orders providers from cheap to dear; every request climbs until an answer is good enough.

    The order never changes by what is observed. Whoever makes the calls takes a `ladder` for each request,
    tells it what every answer is worth, and returns its best one. Failed calls are no answers: they use
    up no escalation.

    Parameters
    ----------
    providers : sequence of str
        Whom to order; each once.
    cost_tiers : sequence of str, optional
        Providers from cheap to dear. Those that are not listed follow as declared.
    costs : mapping of str to float, optional
        What a call costs, in any unit, finite and at least 0. Without `cost_tiers`, providers go by it,
        equal ones as declared, and those without a cost last: an unknown price may be any.
    quality_threshold : float, default 0.5
        In [0, 1]: quality from which an answer is taken. 0.5 tells degenerate answers from others.
    max_escalations : int, default 2
        Answers that may be turned down for one request.
    max_cascade_tokens : int, optional
        Tokens, at least 1, that all answers to one request may take before the best is taken.
    window_size : int, optional
        Words, at least 4, in which to look for repetition; the whole answer by default.
    classifier_mode : {"heuristic", "judge"}, default "heuristic"
        Who says what an answer is worth: `assess`, or a model (`judge_messages`, `read_judgement`), and
        `assess` where that gives nothing of use.
    rng : numpy.random.Generator, optional
        Not used: nothing here is random.

    Attributes
    ----------
    classifier_mode : {"heuristic", "judge"}
        As given.
    strategy : str
        ``cascade``.

    Raises
    ------
    ConfigurationError
        No provider or one twice; an unknown name or one twice in `cost_tiers` or `costs`; a number out of its
        range.

    Examples
    --------
    >>> router = CascadeRouter(["big", "small"], costs={"big": 5.0, "small": 0.1})
    >>> router.order()
    ['small', 'big']
    >>> ladder = router.ladder()
    >>> ladder.settles(router.assess("the the the the the the the the").score)
    False
    >>> ladder.settles(router.assess("Paris.").score), ladder.best
    (True, 1)
    """

    strategy: ClassVar[str] = "cascade"

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
        rng: np.random.Generator | None = None,
    ) -> None:
        del rng
        self.providers = check_providers(providers)
        self._cheapest_first = _cheapest_first(self.providers, cost_tiers, costs)
        self._threshold = check_real("quality_threshold", quality_threshold, high=1.0)
        self._escalations = check_whole("max_escalations", max_escalations, low=0)
        self._tokens = _optional("max_cascade_tokens", max_cascade_tokens, low=1)
        self._window = _optional("window_size", window_size, low=_LEAST_WINDOW)
        if classifier_mode not in get_args(ClassifierMode):
            raise ConfigurationError(
                f"Expected classifier_mode to be 'heuristic' or 'judge', got {classifier_mode!r:.80}."
            )
        self.classifier_mode = classifier_mode
        self._tallies = fresh_tallies(self.providers, _COUNTS)

    def order(self, request: RoutingRequest | None = None) -> list[str]:
        """Return all providers, the cheapest first; as declared for a request that offers tools."""
        return list(self.providers if request is not None and request.has_tools else self._cheapest_first)

    def ladder(self) -> Ladder:
        """Return what judges the answers to one request."""
        return Ladder(threshold=self._threshold, max_escalations=self._escalations, max_tokens=self._tokens)

    def assess(
        self, text: str, *, finish_reason: str | None = None, refusal: str | None = None
    ) -> AnswerQuality:
        """Return how sound an answer looks, as `answer_quality` does, in windows of `window_size`."""
        return answer_quality(text, finish_reason=finish_reason, refusal=refusal, window_size=self._window)

    def record(self, observation: Observation) -> None:
        """Count a call, and the quality of its answer where it is known.

        Raises
        ------
        ConfigurationError
            The provider is unknown.
        """
        tally = self._tallies.get(observation.provider)
        if tally is None:
            raise ConfigurationError(
                f"Expected one of the providers {', '.join(self.providers)}, got {observation.provider!r:.80}."
            )
        tally["calls"] += 1
        if observation.success and observation.quality is not None:
            tally["judged"] += 1
            tally["quality"] += observation.quality

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return write_tallies(self.strategy, self._tallies)

    def restore(self, snapshot: Mapping[str, Any] | None) -> None:
        """Take over counts; None begins at zero.

        Raises
        ------
        StateError
            They are damaged; nothing is changed.
        """
        found = read_tallies(snapshot, strategy=self.strategy, providers=self.providers, names=_COUNTS)
        for provider, tally in found.items():
            if not tally["quality"] <= tally["judged"] <= tally["calls"]:
                raise StateError(
                    f"Expected quality <= judged <= calls for {provider!r}, got {tally}: reset the state."
                )
        self._tallies = found

    def standings(self) -> tuple[Standing, ...]:
        """Return for every provider how many answers were judged (``judged``), and, if any, their ``mean_quality``."""
        return tuple(
            Standing(provider=name, observations=int(self._tallies[name]["calls"]), values=self._shown(name))
            for name in self.providers
        )

    def _shown(self, provider: str) -> dict[str, float]:
        tally = self._tallies[provider]
        judged = {"judged": tally["judged"]}
        return judged | {"mean_quality": tally["quality"] / tally["judged"]} if tally["judged"] else judged


def _cheapest_first(
    providers: tuple[str, ...], cost_tiers: Sequence[str] | None, costs: Mapping[str, float] | None
) -> tuple[str, ...]:
    prices = dict(costs or {})
    _check_known("costs", prices, providers)
    for name, cost in prices.items():
        check_real(f"the cost of {name!r}", cost)
    if not cost_tiers:
        return tuple(sorted(providers, key=lambda name: prices.get(name, np.inf)))
    tiers = check_providers(cost_tiers)
    _check_known("cost_tiers", tiers, providers)
    return tiers + tuple(name for name in providers if name not in tiers)


def _check_known(option: str, names: Mapping[str, float] | Sequence[str], providers: Sequence[str]) -> None:
    unknown = [str(name) for name in names if name not in providers]
    if unknown:
        raise ConfigurationError(
            f"Expected {option} to name some of the providers {', '.join(providers)}, got {', '.join(unknown)}."
        )


def _optional(name: str, value: object, *, low: int) -> int | None:
    return None if value is None else check_whole(name, value, low=low)
