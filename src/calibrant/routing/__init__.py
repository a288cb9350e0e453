"""Routing strategies: the order in which to try providers, learned from observations without I/O."""

from typing import TYPE_CHECKING

from calibrant.core._lazy import lazy_names

if TYPE_CHECKING:
    from calibrant.routing._bandit import BanditRouter
    from calibrant.routing._base import FixedRouter
    from calibrant.routing._cascade import CascadeRouter
    from calibrant.routing._coherence import CoherenceMonitor, QualityGate
    from calibrant.routing._protocol import Observation, ProviderStanding, Router, RoutingRequest
    from calibrant.routing._quality import AnswerQuality
    from calibrant.routing._reliability import EMARouter, ThompsonRouter
    from calibrant.routing._settings import RoutingSettings
    from calibrant.routing._triage import TriageRouter
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._bandit": "BanditRouter",
            "._base": "FixedRouter",
            "._cascade": "CascadeRouter",
            "._coherence": "CoherenceMonitor QualityGate",
            "._protocol": "Observation ProviderStanding Router RoutingRequest",
            "._quality": "AnswerQuality",
            "._reliability": "EMARouter ThompsonRouter",
            "._settings": "RoutingSettings",
            "._triage": "TriageRouter",
        },
    )

__all__ = [
    "AnswerQuality",
    "BanditRouter",
    "CascadeRouter",
    "CoherenceMonitor",
    "EMARouter",
    "FixedRouter",
    "Observation",
    "ProviderStanding",
    "QualityGate",
    "Router",
    "RoutingRequest",
    "RoutingSettings",
    "ThompsonRouter",
    "TriageRouter",
]
