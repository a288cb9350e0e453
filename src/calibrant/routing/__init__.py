"""Routing strategies: the order in which to try providers, learned from observations without I/O."""

from typing import TYPE_CHECKING

from calibrant.core import lazy_names

if TYPE_CHECKING:
    from calibrant.routing._bandit import BanditRouter
    from calibrant.routing._cascade import CascadeRouter
    from calibrant.routing._coherence import CoherenceMonitor
    from calibrant.routing._ema import EMARouter, unexplored
    from calibrant.routing._fixed import FixedRouter, TaskRouter
    from calibrant.routing._gate import QualityGate
    from calibrant.routing._judge import JUDGE_FORMAT, judge_messages, read_judgement
    from calibrant.routing._ladder import Ladder
    from calibrant.routing._protocol import Observation, Router, RoutingRequest, Standing
    from calibrant.routing._quality import AnswerQuality, answer_quality
    from calibrant.routing._settings import (
        BanditSettings,
        CascadeRoutingSettings,
        CoherenceSettings,
        RoutingProviderSettings,
        RoutingSettings,
        RoutingStrategy,
        TierSettings,
        TriageSettings,
    )
    from calibrant.routing._thompson import ThompsonRouter
    from calibrant.routing._triage import TRIAGE_FORMAT, TriageRouter, read_tier, triage_messages
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "._bandit": "BanditRouter",
            "._cascade": "CascadeRouter",
            "._coherence": "CoherenceMonitor",
            "._ema": "EMARouter unexplored",
            "._fixed": "FixedRouter TaskRouter",
            "._gate": "QualityGate",
            "._judge": "JUDGE_FORMAT judge_messages read_judgement",
            "._ladder": "Ladder",
            "._protocol": "Observation Router RoutingRequest Standing",
            "._quality": "AnswerQuality answer_quality",
            "._settings": (
                "BanditSettings CascadeRoutingSettings CoherenceSettings RoutingProviderSettings "
                "RoutingSettings RoutingStrategy TierSettings TriageSettings"
            ),
            "._thompson": "ThompsonRouter",
            "._triage": "TRIAGE_FORMAT TriageRouter read_tier triage_messages",
        },
    )

__all__ = [
    "JUDGE_FORMAT",
    "TRIAGE_FORMAT",
    "AnswerQuality",
    "BanditRouter",
    "BanditSettings",
    "CascadeRouter",
    "CascadeRoutingSettings",
    "CoherenceMonitor",
    "CoherenceSettings",
    "EMARouter",
    "FixedRouter",
    "Ladder",
    "Observation",
    "QualityGate",
    "Router",
    "RoutingProviderSettings",
    "RoutingRequest",
    "RoutingSettings",
    "RoutingStrategy",
    "Standing",
    "TaskRouter",
    "ThompsonRouter",
    "TierSettings",
    "TriageRouter",
    "TriageSettings",
    "answer_quality",
    "judge_messages",
    "read_judgement",
    "read_tier",
    "triage_messages",
    "unexplored",
]
