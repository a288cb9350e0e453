"""Tests of spans that commands send to a collector on loopback, by OTLP over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_server import FaultServer
from span_collector import SpanCollector, plain

WriteTask = Callable[..., Path]
Label = Callable[..., str]

COMMAND = "from calibrant.cli import main; main()"
MODULES = "import atexit, sys; atexit.register(lambda: print([m for m in sys.modules if 'telemetry' in m]))\n"
SERVED = '[model]\nname = "openai/any"\napi_base = "{}"\n[model.options]\napi_key = "none"\n'
LOST = "Spans are lost, the run is not"


@pytest.fixture
def label(write_task: WriteTask, tmp_path: Path) -> Iterator[Label]:
    """Return a function that labels 200 rows in a process of its own, and returns what it printed."""
    (tmp_path / "new.csv").write_text("input\n" + "".join(f"{n} cat\n" for n in range(200)))

    def run(environment: dict[str, str], *, command: str = COMMAND, timeout: float = 60) -> str:
        words = ["label", task, tmp_path / "new.csv", "--out", tmp_path / "out", "--no-cache"]
        done = subprocess.run(  # noqa: S603 (our own code)
            [sys.executable, "-c", command, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **environment},
        )
        assert done.returncode == 0, done.stdout
        assert "200 of 200 rows labelled" in done.stdout
        return done.stdout

    with FaultServer(["cat", "dog"]) as server:
        task = write_task(extra=SERVED.format(server.api_base))
        yield run


@pytest.fixture
def collector() -> Iterator[Callable[[Any], SpanCollector]]:
    """Return a function that starts a collector."""
    started: list[SpanCollector] = []

    def start(does: Any = "take") -> SpanCollector:
        started.append(SpanCollector(does))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def test_every_row_and_call_arrives(label: Label, collector: Callable[..., SpanCollector]) -> None:
    """Each row's span arrives with its label and confidence, and above its call."""
    receiver = collector()
    assert LOST not in label({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.root})
    found = receiver.spans
    rows = {one["spanId"]: one for one in found if one["name"] == "classify openai/any"}
    calls = [one for one in found if one.get("parentSpanId") in rows]
    assert (len(rows), len(calls)) == (200, 200)
    assert {one["name"] for one in calls} == {"chat any"}
    (event,) = next(iter(rows.values()))["events"]
    said = plain(event)
    assert event["name"] == "gen_ai.evaluation.result"
    assert said["gen_ai.evaluation.score.label"] == "cat"
    assert 0 < said["gen_ai.evaluation.score.value"] <= 1
    assert found[0]["resource"]["service.name"] == "calibrant"


def test_the_service_can_be_named(label: Label, collector: Callable[..., SpanCollector]) -> None:
    """The names in OpenTelemetry's own variables come before ours; the endpoint of traces is used as it is."""
    receiver = collector()
    label(
        {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.root}/v1/traces",
            "OTEL_SERVICE_NAME": "tickets",
            "OTEL_RESOURCE_ATTRIBUTES": "team=support",
        }
    )
    resource = receiver.spans[0]["resource"]
    assert (resource["service.name"], resource["team"]) == ("tickets", "support")


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_the_environment_switches_it_off(
    label: Label, collector: Callable[..., SpanCollector], off: dict[str, str]
) -> None:
    """A run that is not traced sends nothing and imports nothing of opentelemetry."""
    receiver = collector()
    said = label({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.root, **off}, command=MODULES + COMMAND)
    assert said.splitlines()[-1] == "[]"
    assert receiver.requests == 0


@pytest.mark.parametrize("does", ["refuse", "gone", "no address"])
def test_a_collector_that_takes_nothing_is_told_once(
    label: Label, collector: Callable[..., SpanCollector], does: str
) -> None:
    """The run ends well and one sentence says that spans are lost, whatever the collector answers."""
    address = {"refuse": collector("refuse").root, "gone": "http://127.0.0.1:1"}.get(does, does)
    said = label({"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50"})
    assert said.count(LOST) == 1
    assert "Traceback" not in said


def test_settings_that_are_none_are_told(label: Label) -> None:
    """A run goes on without spans where OpenTelemetry cannot read its own variables."""
    said = label({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"})
    assert said.count("Spans are not sent") == 1


def test_a_password_is_not_shown(label: Label) -> None:
    """The sentence about lost spans leaves a password out of the address."""
    said = label({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:secret@127.0.0.1:1"})
    assert said.count(LOST) == 1
    assert "secret" not in said


def test_a_collector_that_hangs_is_not_waited_for(
    label: Label, collector: Callable[..., SpanCollector]
) -> None:
    """A run ends long before the timeout of its exporter, and says that spans are lost."""
    receiver = collector("hang")
    said = label(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.root, "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}, timeout=30
    )
    assert said.count(LOST) == 1
    assert receiver.requests == 1


def test_a_missing_extra_is_told(label: Label) -> None:
    """One sentence names the extra, and the run goes on."""
    without = f"import sys; sys.modules['opentelemetry'] = None; {COMMAND}"
    said = label({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, command=without)
    (line,) = [line for line in said.splitlines() if "Spans" in line]
    assert "[otel]" in line
    assert json.dumps("OTEL_EXPORTER_OTLP_ENDPOINT")[1:-1] in line


def test_a_provider_that_is_there_already_is_kept(
    label: Label, collector: Callable[..., SpanCollector]
) -> None:
    """Under a program that has set a provider, as `opentelemetry-instrument` does, no second one is made."""
    receiver = collector()
    set_up = (
        "from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider; "
        "trace.set_tracer_provider(TracerProvider()); "
    )
    label({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.root}, command=set_up + COMMAND)
    assert receiver.requests == 0
