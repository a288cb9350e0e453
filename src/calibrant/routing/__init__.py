"""Which provider to try first: pure strategies that learn from what they are told."""

from calibrant.routing._bandit import BanditRouter
from calibrant.routing._baselines import EpsilonGreedy, RoundRobin
from calibrant.routing._ema import EMARouter
from calibrant.routing._fixed import FixedRouter, TaskRouter
from calibrant.routing._ladder import Ladder
from calibrant.routing._protocol import Observation, Router, RoutingRequest, Standing
from calibrant.routing._recording import Recording
from calibrant.routing._scenario import Change, Scenario, SimulatedProvider
from calibrant.routing._simulation import Replay, RouterFactory, SimulatedRuns, replay, simulate
from calibrant.routing._thompson import ThompsonRouter

__all__ = [
    "BanditRouter",
    "Change",
    "EMARouter",
    "EpsilonGreedy",
    "FixedRouter",
    "Ladder",
    "Observation",
    "Recording",
    "Replay",
    "RoundRobin",
    "Router",
    "RouterFactory",
    "RoutingRequest",
    "Scenario",
    "SimulatedProvider",
    "SimulatedRuns",
    "Standing",
    "TaskRouter",
    "ThompsonRouter",
    "replay",
    "simulate",
]
