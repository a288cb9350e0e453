"""Tests of spans in a server of Phoenix."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracking_servers import fetched, free_port

pytestmark = [pytest.mark.tracking, pytest.mark.timeout(600)]

Run = Callable[..., str]
Serve = Callable[..., str]


@pytest.fixture(scope="module")
def phoenix(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a server with a database of its own."""
    port = free_port()
    return serve(
        "phoenix",
        "serve",
        port=port,
        ready="/healthz",
        PHOENIX_PORT=port,
        PHOENIX_HOST="127.0.0.1",
        PHOENIX_GRPC_PORT=free_port(),
        PHOENIX_WORKING_DIR=tmp_path_factory.mktemp("phoenix"),
    )


def arrived(phoenix: str, count: int) -> list[dict[str, Any]]:
    """Return the spans of the project, once so many are there: Phoenix writes them down a moment later."""
    for _ in range(300):
        projects = [project["name"] for project in fetched(f"{phoenix}/v1/projects")["data"]]
        if "animals" in projects:
            found: list[dict[str, Any]] = fetched(f"{phoenix}/v1/projects/animals/spans?limit=1000")["data"]
            if len(found) >= count:
                return found
        time.sleep(0.1)
    raise AssertionError("the spans never came")


def test_phoenix_shows_rows_calls_and_evaluations(run: Run, phoenix: str, task: Path, tmp_path: Path) -> None:
    """Phoenix has each row with its evaluation, and below it the call, which it takes for one of a model."""
    said = run(
        "label",
        task,
        tmp_path / "test.jsonl",
        "--out",
        tmp_path / "out",
        "--no-cache",
        OTEL_EXPORTER_OTLP_ENDPOINT=phoenix,
        OTEL_RESOURCE_ATTRIBUTES="openinference.project.name=animals",
        OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="true",
    )
    assert "Spans are lost" not in said
    found = arrived(phoenix, 40)
    rows = {one["context"]["span_id"]: one for one in found if one["name"] == "classify openai/any"}
    calls = [one for one in found if one["parent_id"] in rows]
    assert (len(rows), len(calls)) == (20, 20)
    labels = []
    for call in calls:
        assert (call["span_kind"], call["attributes"]["llm.model_name"]) == ("LLM", "any")
        assert call["attributes"]["llm.token_count.total"] > 0
        (event,) = rows[call["parent_id"]]["events"]
        assert event["name"] == "gen_ai.evaluation.result"
        label = event["attributes"]["gen_ai.evaluation.score.label"]
        labels.append(label)
        text = call["attributes"]["llm.input_messages.1.message.content"]
        assert ("woof" in text) == (label == "dog")
        assert 0 < event["attributes"]["gen_ai.evaluation.score.value"] <= 1
    assert sorted(labels) == ["cat"] * 10 + ["dog"] * 10
