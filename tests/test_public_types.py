"""Tests of public signatures: every type that they name is public, too."""

from __future__ import annotations

from public_types import exported, missing_from


def test_types_in_public_signatures_are_public() -> None:
    """Every class of calibrant in a public signature or a field of a public dataclass is public."""
    assert missing_from(exported()) == []


def test_the_check_can_fail() -> None:
    """A class that is not public is found in a field, in a union and behind an alias."""
    names = exported()
    del names["calibrant.core.Usage"]
    found = {message.partition(": ")[2] for message in missing_from(names)}
    assert {"Prediction.usage", "Assessment.usage"} <= found
