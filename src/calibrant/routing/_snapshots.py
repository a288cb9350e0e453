"""Snapshots of strategies as JSON values, checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from calibrant.core._errors import StateError
from calibrant.routing._checks import is_number

_VERSION: Final = 1


def write_records(
    strategy: str, records: Mapping[str, Mapping[str, Any]], *, version: int = _VERSION
) -> dict[str, Any]:
    """Return the JSON values to store: a record of every provider."""
    return {"version": version, "strategy": strategy, "providers": records}


def read_records(
    snapshot: Mapping[str, Any] | None,
    *,
    strategy: str,
    providers: Sequence[str],
    version: int = _VERSION,
) -> dict[str, Mapping[str, Any]]:
    """Return the stored records of these providers, by name; empty for None and an empty snapshot.

    Raises
    ------
    StateError
        The snapshot is of another version or strategy, or a record is not an object.
    """
    if snapshot is None or snapshot == {}:
        return {}
    if not isinstance(snapshot, Mapping):
        raise StateError(f"Expected the state of {strategy!r}, got {snapshot!r:.80}: reset it.")
    if snapshot.get("version") != version or snapshot.get("strategy") != strategy:
        raise StateError(
            f"Expected the state of {strategy!r}, version {version}, got {snapshot.get('strategy')!r:.80}, "
            f"version {snapshot.get('version')!r:.80}: reset it."
        )
    stored = snapshot.get("providers")
    if not isinstance(stored, Mapping):
        raise StateError(f"Expected a record of every provider in the state, got {stored!r:.80}: reset it.")
    found = {provider: stored[provider] for provider in providers if provider in stored}
    for provider, record in found.items():
        if not isinstance(record, Mapping):
            raise StateError(f"Expected a record of {provider!r:.80}, got {record!r:.80}: reset the state.")
    return found


def read_count(record: Mapping[str, Any], name: str) -> int:
    """Return a checked count from a record.

    Raises
    ------
    StateError
        The count is missing, or not a whole number of at least 0.
    """
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StateError(f"Expected {name} to be a whole number of at least 0, got {value!r:.80}.")
    return value


def read_numbers(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Return checked numbers from a record.

    Raises
    ------
    StateError
        One is missing or not finite.
    """
    good = {name: value for name in names if is_number(value := record.get(name))}
    if len(good) < len(names):
        missing = ", ".join(name for name in names if name not in good)
        raise StateError(f"Expected {missing} to be finite, got {dict(record)!r:.200}.")
    return good
