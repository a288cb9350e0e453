"""What became of the calls to every provider of a task with routing, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from calibrant.cascade import Cascade
from calibrant.cli._tables import aligned, number
from calibrant.inference import RoutedClient

if TYPE_CHECKING:
    from calibrant.inference import Classifier, ProviderStats

__all__ = ["provider_lines", "provider_records", "provider_stats"]

_HEAD = ("provider", "calls", "failed", "turned down", "mean latency", "tokens", "cost")


def provider_stats(classifier: Classifier) -> list[ProviderStats]:
    """Return what became of the providers' calls since the classifier was opened; empty without routing."""
    clients = classifier.clients if isinstance(classifier, Cascade) else (classifier.client,)
    # Two prompts of a cascade may share one client.
    routed = {id(client): client for client in clients if isinstance(client, RoutedClient)}
    return [stats for client in routed.values() for stats in client.stats()]


def provider_records(found: Sequence[ProviderStats]) -> list[dict[str, Any]]:
    """Return the same as JSON values."""
    return [asdict(stats) for stats in found]


def provider_lines(found: Sequence[ProviderStats]) -> list[str]:
    """Return one line per provider, and who is left out at the moment; none without calls."""
    if not any(stats.calls for stats in found):
        return []
    table = [
        _HEAD,
        *(
            (
                stats.provider,
                f"{stats.calls:,}",
                _failed(stats),
                f"{stats.escalations:,}",
                number(stats.mean_latency_seconds) + ("" if stats.mean_latency_seconds is None else " s"),
                f"{stats.prompt_tokens:,} + {stats.completion_tokens:,}",
                "-" if stats.cost is None else f"${stats.cost:.4f}",
            )
            for stats in found
        ),
    ]
    lines = aligned(table)
    waiting = [
        f"{stats.provider} for {stats.cooling_seconds:.0f} s more" for stats in found if stats.cooling_seconds
    ]
    if waiting:
        lines.append(f"left out for failing: {', '.join(waiting)}")
    return lines


def _failed(stats: ProviderStats) -> str:
    limited = f" ({stats.rate_limits:,} rate limits)" if stats.rate_limits else ""
    return f"{stats.failures + stats.too_long:,}{limited}"
