"""Triage strategy: a small model grades the difficulty of a request; each grade has its provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from calibrant.core._errors import ConfigurationError
from calibrant.core._settings import Count
from calibrant.metrics._validation import check_count
from calibrant.routing._base import ProviderTally, TallyRouter, provider_names, provider_values
from calibrant.routing._protocol import Observation, RouterTraits, RoutingRequest, check_known, check_table
from calibrant.routing._replies import TIERS, sorted_tiers

_FILL: Final = 0.8  # of a context window may be taken by the request


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
        rng: np.random.Generator | int | None = None,  # noqa: ARG002
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
    def from_settings(
        cls, settings: Mapping[str, Any], *, rng: np.random.Generator | int | None = None
    ) -> Self:
        """Return the strategy of a ``[routing]`` section: its tiers, and the providers' context windows."""
        own = settings["triage"] or {"tiers": {}}
        tiers = {tier: name for tier, name in own["tiers"].items() if name is not None}
        windows = provider_values(settings, "context_window")
        return cls(provider_names(settings), tiers=tiers, context_windows=windows, rng=rng)

    @classmethod
    def for_snapshot(
        cls,
        snapshot: Mapping[str, Any],  # noqa: ARG003
        providers: Sequence[str],
        *,
        parameters: Mapping[str, Any],  # noqa: ARG003
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
        return sorted(self._chain(request.tier), key=lambda name: self._shortage(name, request.tokens))

    def _learn(self, tally: _TierTally, observation: Observation) -> None:
        request = observation.request
        if request is not None:
            first, wanted = self.order(request)[0], self._chain(request.tier)[0]
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
        upward = [self.tiers[name] for name in ranks[start:] if name in self.tiers]
        downward = [self.tiers[name] for name in reversed(ranks[:start]) if name in self.tiers]
        return list(dict.fromkeys([*upward, *downward, *self._providers]))

    def _shortage(self, provider: str, tokens: int | None) -> float:
        """Return 0 if a request fits the context window, else a number that falls as the window grows."""
        window = self._windows.get(provider)
        return 0.0 if tokens is None or window is None or tokens <= _FILL * window else 1.0 / window
