"""Tests of spans in programs that set a tracer provider, each in a process of its own: a process keeps its provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

TEXTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
SET_UP = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(memory))
trace.set_tracer_provider(provider)
"""
TELL = """
print(json.dumps([
    {
        "name": span.name,
        "id": span.context.span_id,
        "parent": span.parent and span.parent.span_id,
        "kind": span.kind.name,
        "status": span.status.status_code.name,
        "described": span.status.description,
        **span.attributes,
        "events": [{"name": event.name, **event.attributes} for event in span.events],
    }
    for span in memory.get_finished_spans()
]))
"""
PLAIN = """
from calibrant import Classifier
from calibrant.testing import FakeClient
fake = FakeClient(["cat", "dog"], {"meow": ("cat", 0.9)}, default="dog", name="openai/animals")
with Classifier(model=fake, labels=fake.labels, field="category", prompt="Which animal?") as classifier:
"""


def output(program: str, **environment: str) -> str:
    """Return what a program prints in a process of its own."""
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def spans(program: str, **environment: str) -> list[dict[str, Any]]:
    """Return the spans of a program, in the order in which they ended."""
    found: list[dict[str, Any]] = json.loads(output(SET_UP + program + TELL, **environment))
    return found


def children(found: list[dict[str, Any]], parent: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the spans right below a span."""
    return [one for one in found if one["parent"] == parent["id"]]


def test_a_row_and_its_call_are_spans() -> None:
    """A call is below its row, which is below the span of the program that asks, and holds the evaluation."""
    host = "with trace.get_tracer('host').start_as_current_span('host'):"
    program = f"{PLAIN}    {host}\n        classifier.classify('meow')\n"
    call, row, host = spans(program)
    assert (call["parent"], row["parent"], host["name"]) == (row["id"], host["id"], "host")
    assert (call["name"], call["kind"]) == ("chat animals", "CLIENT")
    assert call["gen_ai.operation.name"] == "chat"
    assert call["gen_ai.provider.name"] == "openai"
    assert call["gen_ai.request.model"] == "animals"
    assert call["gen_ai.response.model"] == "fake"
    assert call["gen_ai.usage.output_tokens"] == 3
    assert (row["name"], row["kind"], row["calibrant.outcome"]) == (
        "classify openai/animals",
        "INTERNAL",
        "ok",
    )
    assert row["events"] == [
        {
            "name": "gen_ai.evaluation.result",
            "gen_ai.evaluation.name": "confidence",
            "gen_ai.evaluation.score.value": pytest.approx(0.9),
            "gen_ai.evaluation.score.label": "cat",
        }
    ]


def test_texts_are_recorded_only_when_asked() -> None:
    """No span holds a text, the prompt or an answer, unless the environment wants them."""
    program = f"{PLAIN}    classifier.classify('a meow nobody may read')\n"
    silent = json.dumps(spans(program))
    assert "nobody" not in silent
    assert "Which animal" not in silent
    call = spans(program, **{TEXTS: "true"})[0]
    assert json.loads(call["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Which animal?"}]},
        {"role": "user", "parts": [{"type": "text", "content": "a meow nobody may read"}]},
    ]
    (message,) = json.loads(call["gen_ai.output.messages"])
    assert json.loads(message["parts"][0]["content"]) == {"category": "cat"}


def test_rows_at_the_same_time_keep_their_calls() -> None:
    """Of 300 rows, 64 at once, every call is below the row of its own text."""
    program = """
import asyncio
from calibrant import Classifier
from calibrant.core import Completion

class Slow:
    name, space = "slow", "none"
    async def complete(self, request):
        text = request.messages[-1]["content"]
        await asyncio.sleep(int(text.split()[1]) % 7 / 1000)
        return Completion(text=json.dumps({"label": text.split()[0]}))
    def close(self):
        pass

labels = [f"l{n}" for n in range(300)]
with Classifier(model=Slow(), labels=labels, scoring="decode") as classifier:
    classifier.classify_many([f"{label} {n}" for n, label in enumerate(labels)])
"""
    found = spans(program, **{TEXTS: "true"})
    rows = [one for one in found if one["name"] == "classify slow"]
    assert len(rows) == 300
    for row in rows:
        (call,) = children(found, row)
        label = row["events"][0]["gen_ai.evaluation.score.label"]
        assert json.loads(call["gen_ai.input.messages"])[-1]["parts"][0]["content"].startswith(f"{label} ")


def test_a_cascade_is_one_row_of_several_calls() -> None:
    """What two models of a cascade were asked stands below one row, which holds the decision."""
    program = """
from calibrant import Classifier
from calibrant.cascade import Cascade
from calibrant.testing import FakeClient

sure = {"small": 0.6, "large": 0.95}
fakes = [FakeClient(["cat", "dog"], {"meow": ("cat", p)}, name=name) for name, p in sure.items()]
models = [Classifier(model=fake, labels=fake.labels, field="category") for fake in fakes]
with Cascade(models, method="label_probability", threshold=0.9) as cascade:
    cascade.classify("meow")
"""
    found = spans(program)
    (row,) = [one for one in found if one["kind"] == "INTERNAL"]
    assert [one["name"] for one in children(found, row)] == ["chat small", "chat large"]
    assert row["events"][0]["calibrant.decision"] == "accepted"


def test_every_attempt_is_a_span() -> None:
    """A call that failed has the kind of its error, without the message, and the next attempt a span of its own."""
    program = """
from calibrant import Classifier
from calibrant.core import ProviderError
from calibrant.testing import FakeClient

answers = [ProviderError("meow? no", provider="fake", status=503, retryable=True), ("cat", 0.9)]
fake = FakeClient(["cat", "dog"], lambda text, prompt: answers.pop(0))
with Classifier(model=fake, labels=fake.labels, field="category") as classifier:
    classifier.classify("meow")
"""
    failed, second, row = spans(program)
    assert (failed["status"], failed["error.type"], failed["described"]) == ("ERROR", "503", None)
    assert (second["status"], row["status"], row["calibrant.calls"]) == ("UNSET", "UNSET", 2)


def test_a_row_that_failed_is_an_error() -> None:
    """A row without an answer has no evaluation, and the status of an error."""
    program = """
from calibrant import Classifier
from calibrant.core import ProviderError
from calibrant.testing import FakeClient

def answer(text, prompt):
    return ProviderError("no", provider="fake") if text == "bad" else ("cat", 0.9)

fake = FakeClient(["cat", "dog"], answer)
with Classifier(model=fake, labels=fake.labels, field="category") as classifier:
    classifier.classify_many(["good", "bad"])
"""
    rows = [one for one in spans(program) if one["kind"] == "INTERNAL"]
    assert [(row["status"], len(row["events"])) for row in rows] == [("UNSET", 1), ("ERROR", 0)]


def test_off_means_no_import() -> None:
    """Without a provider nothing of opentelemetry is loaded, and with its API alone nothing of ours is."""
    program = f"import sys{PLAIN}    classifier.classify('meow')\nprint([m for m in sys.modules if 'telemetry' in m])"
    assert output(program) == "[]\n"
    program = f"import opentelemetry.trace{PLAIN}    print(classifier.classify('meow').label)"
    assert output(program) == "cat\n"


def test_a_failing_processor_costs_no_answer() -> None:
    """What a program's own processor raises at the start or end of a span reaches neither the row nor its call."""
    breaks = """
from opentelemetry.sdk.trace import SpanProcessor
class Breaks(SpanProcessor):
    def on_start(self, span, parent_context=None):
        if span.name.startswith("chat"):
            raise RuntimeError("start")
    def on_end(self, span):
        raise RuntimeError("end")
provider.add_span_processor(Breaks())
"""
    said = output(SET_UP + breaks + PLAIN + "    print(classifier.classify('meow').label)\n")
    assert said.split() == ["cat"]
