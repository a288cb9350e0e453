"""A what-if tool: routing strategies on invented or recorded requests; no model is asked.

A scenario draws the outcome of every provider on every request first; all strategies then meet the same table, so
differences are paired, and recorded runs and logs take the same path.

It is no part of the package and uses the package's private parts. ``python examples/routing_simulation --help``
"""

from routing_simulation._baselines import EpsilonGreedy, RoundRobin
from routing_simulation._recording import Recording
from routing_simulation._scenario import Change, Scenario, SimulatedProvider
from routing_simulation._simulation import Replay, RouterFactory, SimulatedRuns, replay, simulate

__all__ = [
    "Change",
    "EpsilonGreedy",
    "Recording",
    "Replay",
    "RoundRobin",
    "RouterFactory",
    "Scenario",
    "SimulatedProvider",
    "SimulatedRuns",
    "replay",
    "simulate",
]
