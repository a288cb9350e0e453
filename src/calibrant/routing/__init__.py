"""Which provider to try first: pure strategies that learn from what they are told."""

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
from calibrant.routing._thompson import ThompsonRouter
from calibrant.routing._triage import TRIAGE_FORMAT, TriageRouter, read_tier, triage_messages

__all__ = [
    "JUDGE_FORMAT",
    "TRIAGE_FORMAT",
    "AnswerQuality",
    "BanditRouter",
    "CascadeRouter",
    "CoherenceMonitor",
    "EMARouter",
    "FixedRouter",
    "Ladder",
    "Observation",
    "QualityGate",
    "Router",
    "RoutingRequest",
    "Standing",
    "TaskRouter",
    "ThompsonRouter",
    "TriageRouter",
    "answer_quality",
    "judge_messages",
    "read_judgement",
    "read_tier",
    "triage_messages",
    "unexplored",
]
