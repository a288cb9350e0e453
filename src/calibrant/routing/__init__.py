"""Routing strategies: the order in which to try providers, learned from observations without I/O."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.routing._bandit import BanditRouter
    from calibrant.routing._base import FixedRouter, TaskRouter
    from calibrant.routing._coherence import CoherenceMonitor, QualityGate
    from calibrant.routing._protocol import (
        Observation,
        ProviderStanding,
        Router,
        RouterTraits,
        RoutingRequest,
    )
    from calibrant.routing._quality import AnswerQuality
    from calibrant.routing._settings import RoutingSettings, register_strategy
    from calibrant.routing._strategies import CascadeRouter, EMARouter, Ladder, ThompsonRouter, TriageRouter
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "AnswerQuality",
    "BanditRouter",
    "CascadeRouter",
    "CoherenceMonitor",
    "EMARouter",
    "FixedRouter",
    "Ladder",
    "Observation",
    "ProviderStanding",
    "QualityGate",
    "Router",
    "RouterTraits",
    "RoutingRequest",
    "RoutingSettings",
    "TaskRouter",
    "ThompsonRouter",
    "TriageRouter",
    "register_strategy",
]
