"""Tests of declared orders, and of the table from task to provider."""

from __future__ import annotations

import pytest

from calibrant.routing import FixedRouter, Observation, RoutingRequest, TaskRouter

NAMES = ["a", "b", "c"]


def test_the_declared_order_stays_whatever_happens() -> None:
    """Failures are counted, and the declared order stays."""
    router = FixedRouter(NAMES)
    for _ in range(5):
        router.record(Observation(provider="a", success=False, latency_seconds=1.0))
    assert router.order(RoutingRequest(task="x")) == NAMES
    assert [(one.provider, one.observations, dict(one.values)) for one in router.standings()] == [
        ("a", 5, {}),
        ("b", 0, {}),
        ("c", 0, {}),
    ]


@pytest.mark.parametrize(
    ("task", "order"),
    [("t", ["c", "a", "b"]), ("u", ["a", "b", "c"]), ("other", NAMES), ("", NAMES), (None, NAMES)],
)
def test_tasks_provider_comes_first(task: str | None, order: list[str]) -> None:
    """The task's provider comes first; a missing or unknown task keeps the declared order."""
    router = TaskRouter(NAMES, tasks={"t": "c", "u": "a"})
    assert router.order(RoutingRequest(task=task)) == order
    assert router.order() == NAMES
