"""Numbers per provider, as strategies keep and store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from calibrant.core import StateError
from calibrant.routing._numbers import is_number

__all__ = ["Tallies", "fresh_tallies", "read_numbers", "read_tallies", "write_tallies"]

_VERSION: Final = 1

Tallies = dict[str, dict[str, float]]


def fresh_tallies(providers: Sequence[str], names: Sequence[str]) -> Tallies:
    """Return zeros: one for every name, for every provider."""
    return {provider: dict.fromkeys(names, 0) for provider in providers}


def write_tallies(strategy: str, tallies: Tallies) -> dict[str, Any]:
    """Return the JSON values to store."""
    providers = {provider: dict(values) for provider, values in tallies.items()}
    return {"version": _VERSION, "strategy": strategy, "providers": providers}


def read_tallies(
    snapshot: Mapping[str, Any] | None, *, strategy: str, providers: Sequence[str], names: Sequence[str]
) -> Tallies:
    """Return what `write_tallies` made, for these providers; zeros for new ones, and for None.

    Raises
    ------
    StateError
        It is of another version or strategy, or a value is missing, not finite or below 0.
    """
    stored = read_numbers(snapshot, strategy=strategy, providers=providers, names=names)
    for provider, values in stored.items():
        if min(values.values()) < 0.0:
            raise StateError(
                f"Expected {', '.join(names)} of at least 0 for {provider!r}, got {values}: reset the state."
            )
    return fresh_tallies(providers, names) | stored


def read_numbers(
    snapshot: Mapping[str, Any] | None, *, strategy: str, providers: Sequence[str], names: Sequence[str]
) -> Tallies:
    """Return the finite numbers in a snapshot, for those of these providers that are in it.

    Raises
    ------
    StateError
        It is of another version or strategy, or a value is missing or not finite.
    """
    if snapshot is None or snapshot == {}:
        return {}
    if not isinstance(snapshot, Mapping):
        raise StateError(f"Expected the state of {strategy!r}, got {snapshot!r:.80}: reset it.")
    if snapshot.get("version") != _VERSION or snapshot.get("strategy") != strategy:
        raise StateError(
            f"Expected the state of {strategy!r}, version {_VERSION}, got {snapshot.get('strategy')!r:.80}, "
            f"version {snapshot.get('version')!r:.80}: reset it."
        )
    stored = snapshot.get("providers")
    if not isinstance(stored, Mapping):
        raise StateError(f"Expected numbers per provider in the state, got {stored!r:.80}: reset it.")
    return {
        provider: _numbers(provider, stored[provider], names) for provider in providers if provider in stored
    }


def _numbers(provider: str, stored: object, names: Sequence[str]) -> dict[str, float]:
    found = {name: stored.get(name) for name in names} if isinstance(stored, Mapping) else {}
    good = {name: value for name, value in found.items() if is_number(value)}
    if len(good) < len(names):
        missing = ", ".join(name for name in names if name not in good)
        raise StateError(
            f"Expected a finite number as {missing} of {provider!r}, got {stored!r:.200}: reset the state."
        )
    return good
