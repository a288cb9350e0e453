"""Tests of servers that refuse or ignore JSON schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from calibrant import Classifier
from calibrant.core import Outcome
from calibrant.inference import RetryPolicy
from stubborn_server import StubbornServer

TEXTS = ["a meow", "a bark", "another meow", "another bark"]
LABELS = ["cat", "dog", "cat", "dog"]
Serve = Callable[..., StubbornServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that stop with the test."""
    servers: list[StubbornServer] = []

    def start(**settings: Any) -> StubbornServer:
        servers.append(StubbornServer(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def opened(server: StubbornServer, **changes: Any) -> Classifier:
    """Return a classifier on the server."""
    arguments = {"labels": ["cat", "dog"], "prompt": "Which animal?", **changes}
    return Classifier(
        model="openai/pet",
        options={"api_base": server.api_base},
        retry=RetryPolicy(attempts=2, initial_seconds=0),
        concurrency=2,
        **arguments,
    )


@pytest.mark.parametrize("how", ["refused", "ignored"])
@pytest.mark.parametrize(
    ("formats", "form"), [(["json_schema"], "json_object"), (["json_schema", "json_object"], "text")]
)
@pytest.mark.parametrize("has_logprobs", [True, False])
def test_servers_without_schemas(
    serve: Serve,
    how: str,
    formats: list[str],
    form: str,
    has_logprobs: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The form that works is found out once, with the first row, and said once."""
    server = serve(**{how: formats}, has_logprobs=has_logprobs)
    with opened(server) as classifier:
        found = classifier.classify_many(TEXTS)
    assert [one.label for one in found] == LABELS
    asked = server.formats
    assert asked[: len(formats)] == formats
    assert set(asked[len(formats) :]) == {form}
    assert len(asked) == len(formats) + (4 if has_logprobs else 13)
    assert sum(one.attempts for one in found) == len(asked)
    with opened(server, prompt="Name the animal.") as classifier:
        classifier.classify_many(TEXTS)
    assert set(server.formats[len(asked) :]) == {form}
    assert sum("does not follow a JSON schema" in record.message for record in caplog.records) <= 1
    confidence = [one.confidence for one in found]
    assert confidence == pytest.approx([0.8] * 4) if has_logprobs else all(confidence)
