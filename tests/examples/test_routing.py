"""Tests of the routing example: its file, and its answers where only the embedded model runs."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from calibrant.assembly import open_classifier, routing_settings
from calibrant.core import Outcome, Task
from calibrant.inference import RoutedClient
from claude_server import KEY, AnthropicServer
from embedded import IS_MISSING
from fault_server import FaultServer

FILE = Path(__file__).parents[2] / "examples" / "routing" / "task.toml"
ADDRESS = "127.0.0.1:8642"


def test_the_example_names_two_providers_and_the_other_example_s_rows() -> None:
    """The file names two providers, and no example of its prompt is a validation or test row."""
    task = Task.from_file(FILE)
    routing = routing_settings(task)
    assert routing is not None
    assert routing.strategy == "thompson"
    assert routing.names == ("own server", "embedded")
    assert routing.providers[0].space == "raw"
    assert len(task.test) == 144
    assert not any(row.input in task.prompt for row in (*task.validation, *task.test))


@pytest.mark.real_model
@IS_MISSING
def test_the_embedded_model_answers_where_no_server_runs(tmp_path: Path) -> None:
    """Where no server runs, the embedded model answers all texts."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    text = FILE.read_text().replace(ADDRESS, f"127.0.0.1:{free}")
    assert text.count(str(free)) == 1
    path = tmp_path / "task.toml"
    path.write_text(text)
    task = Task.from_file(path, splits=())
    classifier = open_classifier(task)
    try:
        found = classifier.classify_many(["Esso diesel, A7", "Tram ticket", "Pizza at Luigi's"])
        client = classifier.client
        assert isinstance(client, RoutedClient)
        stats = client.stats()
    finally:
        classifier.close()
    assert [prediction.outcome for prediction in found] == [Outcome.OK] * 3
    assert all(prediction.confidence is not None for prediction in found)
    assert stats["embedded"].calls == 3
    assert stats["own server"].calls == stats["own server"].failures


def test_the_snippet_of_the_page_is_answered_by_both_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code on the page of routing is answered by both providers."""
    page = (Path(__file__).parents[2] / "docs" / "tasks" / "cascade.md").read_text(encoding="utf-8")
    (snippet,) = (
        found for found in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "RoutedClient" in found
    )
    claude = AnthropicServer("negative", field="sentiment")
    monkeypatch.setenv("ANTHROPIC_API_BASE", claude.root)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    labels = ["negative", "positive"]
    with FaultServer(labels, field="sentiment", answers=lambda _: "positive") as openai:
        monkeypatch.setenv("OPENAI_BASE_URL", openai.api_base)
        namespace: dict[str, Any] = {}
        lines = snippet.rstrip().splitlines()
        lines[-1] = "classifier = " + lines[-1]
        exec("\n".join(lines), namespace)  # noqa: S102 (our own page)
        found = namespace["classifier"].classify_many([f"text {n}" for n in range(4)])
    claude.stop()
    stats = namespace["model"].stats()
    assert all(one.calls and not one.failures for one in stats.values()), stats
    assert {prediction.outcome.value for prediction in found} == {"ok"}
