"""Which provider to try first: pure strategies that learn from what they are told."""

from calibrant.routing._bandit import BanditRouter
from calibrant.routing._ladder import Ladder
from calibrant.routing._protocol import Observation, Router, RoutingRequest, Standing

__all__ = [
    "BanditRouter",
    "Ladder",
    "Observation",
    "Router",
    "RoutingRequest",
    "Standing",
]
