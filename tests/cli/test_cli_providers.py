"""Tests of the table of providers: columns, and dashes for unknown numbers."""

from __future__ import annotations

import json

from calibrant.cli._evaluation_table import RoutingStats
from calibrant.core import Usage
from calibrant.inference import HelperStats, ProviderStats

FOUND = RoutingStats(
    strategy="triage",
    providers=(
        ProviderStats(
            provider="small",
            calls=1200,
            failures=5,
            rate_limits=2,
            too_long=3,
            escalations=40,
            mean_latency_seconds=0.12345,
            prompt_tokens=9000,
            completion_tokens=800,
            cost=0.5,
            cooling_seconds=12.4,
        ),
        ProviderStats(provider="large"),
    ),
    helpers={
        "triage": HelperStats(
            calls=7, failures=1, unusable=2, usage=Usage(prompt_tokens=70, completion_tokens=7, cost=0.01)
        )
    },
)


def test_every_number_has_its_column() -> None:
    """Each number has its column; useless replies and providers in cooldown have a line."""
    assert FOUND.lines() == [
        "provider  calls  failed             turned down  mean latency  tokens       cost",
        "small     1,200  8 (2 rate limits)  40           0.123 s       9,000 + 800  $0.5000",
        "large     0      0                  0            -             0 + 0        -",
        "triage: 7 calls, 1 failed, 2 replies of no use, 70 + 7 tokens, $0.0100",
        "left out for failing: small for 12 s",
    ]


def test_without_calls_there_is_no_table() -> None:
    """Without calls there are no lines."""
    assert (
        RoutingStats(strategy="ema", providers=(ProviderStats(provider="small"),), helpers={}).lines() == []
    )


def test_the_record_is_json() -> None:
    """The record is JSON, and its keys are the attributes' names."""
    record = json.loads(json.dumps(FOUND.to_record()))
    assert (record["strategy"], record["providers"][0]["rate_limits"]) == ("triage", 2)
    assert record["helpers"]["triage"]["usage"]["cost"] == 0.01
