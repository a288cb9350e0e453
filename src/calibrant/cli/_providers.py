"""Table of the calls to each provider of a task with routing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from calibrant.cli._tables import aligned, dollars
from calibrant.core._task import Task

if TYPE_CHECKING:
    from calibrant.inference._predictor import BasePredictor
    from calibrant.inference.routed._assess import HelperStats
    from calibrant.inference.routed._provider import ProviderStats

_HEAD = ("provider", "calls", "failed", "turned down", "mean latency", "tokens", "cost")


@dataclass(frozen=True, kw_only=True)
class RoutingStats:
    """Call statistics of a routed client since it was opened.

    Attributes
    ----------
    strategy : str
        Name of the strategy.
    providers : tuple of ProviderStats
        As they were declared.
    helpers : mapping of str to HelperStats
        Judge and triage, if the strategy has them.
    """

    strategy: str
    providers: tuple[ProviderStats, ...]
    helpers: Mapping[str, HelperStats]

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return one line per provider, then judge and triage, then the providers in cooldown."""
        if not any(stats.calls for stats in self.providers):
            return []
        lines = aligned([_HEAD, *map(_row, self.providers)])
        lines += [_helper_line(name, stats) for name, stats in self.helpers.items()]
        waiting = [
            f"{stats.provider} for {stats.cooling_seconds:.0f} s"
            for stats in self.providers
            if stats.cooling_seconds
        ]
        return [*lines, f"left out for failing: {', '.join(waiting)}"] if waiting else lines


def routing_stats(task: Task, predictor: BasePredictor) -> RoutingStats | None:
    """Return the call statistics of the task's providers; None without routing."""
    if "routing" not in task.sections:
        return None
    from calibrant.inference.routed._client import RoutedClient  # other tasks do without routing

    for client in predictor.clients:
        if isinstance(client, RoutedClient):
            return RoutingStats(
                strategy=client.router.strategy,
                providers=tuple(client.stats().values()),
                helpers=client.helper_stats(),
            )
    return None


def _row(stats: ProviderStats) -> tuple[str, ...]:
    limited = f" ({stats.rate_limits:,} rate limits)" if stats.rate_limits else ""
    latency = stats.mean_latency_seconds
    return (
        stats.provider,
        f"{stats.calls:,}",
        f"{stats.failures + stats.too_long:,}{limited}",
        f"{stats.escalations:,}",
        "-" if latency is None else f"{latency:.3f} s",
        f"{stats.prompt_tokens:,} + {stats.completion_tokens:,}",
        dollars(stats.cost),
    )


def _helper_line(name: str, stats: HelperStats) -> str:
    return (
        f"{name}: {stats.calls:,} calls, {stats.failures:,} failed, {stats.unusable:,} replies of no use, "
        f"{stats.usage.prompt_tokens:,} + {stats.usage.completion_tokens:,} tokens, {dollars(stats.usage.cost)}"
    )
