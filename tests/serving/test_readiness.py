"""Tests of readiness: a service with a failing model is not ready until the model answers again."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from calibrant.core import Outcome, Prediction, ProviderError
from calibrant.inference import Classifier, RetryPolicy
from calibrant.tuned import Tuned
from fault_server import Fault, FaultServer
from held import SECONDS, Held, app, ask, later

FAILED = Prediction(label=None, outcome=Outcome.ERROR, reason="no connection")
LABELLED = Prediction(label="cat", confidence=0.9)
UNPARSED = Prediction(label=None, outcome=Outcome.UNPARSED, reason="no label")


class Model:
    """A model that can be switched off and on."""

    def __init__(self, answer: Any = FAILED) -> None:
        self.answer = answer
        self.held = Held(held=False, answer=lambda text: LABELLED if text == "good" else self.answer)


def ready(running: Any) -> tuple[int, str]:
    """Return status and word of the readiness probe."""
    found = running.ask(path="/readyz", method="GET")
    return found.status, found.json["status"]


def failing(running: Any) -> None:
    """Let requests fail until the service is not ready."""
    for _ in range(3):
        assert ready(running) == (200, "ready")
        assert ask(running, {"text": "a"}).status == 503
    assert ready(running) == (503, "model failing")


def test_a_wholly_failed_request_is_503(serve: Any, bundle: Tuned) -> None:
    """A request whose texts all failed gets 503, and one answered or declined text makes it 200."""
    running = serve(app(bundle, Model().held))
    failed = ask(running, {"texts": ["a", "b"]})
    assert (failed.status, failed.headers["retry-after"]) == (503, "1")
    assert [row["outcome"] for row in failed.json["results"]] == ["error", "error"]
    assert failed.json["error"] == "The model failed for every text: ask again later."
    mixed = ask(running, {"texts": ["a", "good"]})
    assert (mixed.status, list(mixed.json)) == (200, ["results"])
    assert [row["outcome"] for row in mixed.json["results"]] == ["error", "ok"]
    assert ask(serve(app(bundle, Model(UNPARSED).held)), {"text": "a"}).status == 200


def test_three_failures_make_it_unready(serve: Any, bundle: Tuned) -> None:
    """Three failures in a row make the service not ready, and an answer makes it ready again."""
    running = serve(app(bundle, Model().held))
    for _ in range(2):
        ask(running, {"text": "a"})
    ask(running, {"text": "good"})
    failing(running)
    assert running.ask(path="/healthz", method="GET").status == 200
    assert ask(running, {"text": "good"}).status == 200
    assert ready(running) == (200, "ready")


@pytest.mark.parametrize(
    "failure", [FAILED, ProviderError("bad key", provider="p", status=401)], ids=["error", "wrong key"]
)
def test_readiness_checks_probe_the_model(serve: Any, bundle: Tuned, failure: Any) -> None:
    """Readiness checks probe a failing model, less and less often, and the probes count no rows."""
    model = Model(failure)
    running = serve(app(bundle, model.held))
    failing(running)
    asked = len(model.held.asked)
    for _ in range(5):
        assert ready(running) == (503, "model failing")
    assert len(model.held.asked) == asked  # it has failed just now
    for pause in (5.0, 10.0, 20.0):
        running.clock.advance(0.5 * pause)
        ready(running)
        assert len(model.held.asked) == asked
        running.clock.advance(0.6 * pause)
        assert ready(running) == (503, "model failing")
        asked += 1
        while len(model.held.asked) < asked:
            threading.Event().wait(0.005)
        running.clock.advance(0.0)  # so the probe's end has been noted
    model.answer = LABELLED
    running.clock.advance(41.0)
    assert ready(running)[0] == 503
    while ready(running) != (200, "ready"):
        threading.Event().wait(0.005)
    assert len(model.held.asked) == asked + 1
    text = running.ask(path="/metrics", method="GET").body.decode()
    assert 'calibrant_rows_total{outcome="ok"}' not in text


def test_a_hanging_probe_is_cancelled(serve: Any, bundle: Tuned) -> None:
    """A probe that hangs is cancelled at the deadline; requests past their deadline are failures."""
    held = Held()
    running = serve(app(bundle, held, deadline_seconds=60.0))
    for _ in range(3):
        thread, found = later(lambda: ask(running, {"text": "a"}))
        assert held.begun.acquire(timeout=SECONDS)
        running.clock.advance(60.0)
        thread.join(SECONDS)
        assert found[0].status == 504
    running.clock.advance(6.0)
    assert ready(running) == (503, "model failing")
    assert held.begun.acquire(timeout=SECONDS)
    held.given_up.clear()
    for _ in range(3):
        running.clock.advance(6.0)
        ready(running)
    assert not held.begun.acquire(blocking=False)  # one at a time
    running.clock.advance(60.0)
    assert held.given_up.wait(SECONDS)


@contextlib.contextmanager
def asking(server: FaultServer, policy: RetryPolicy | None = None) -> Iterator[Classifier]:
    """Yield a classifier whose model is a loopback server."""
    classifier = Classifier(
        model="openai/animal",
        labels=["cat", "dog"],
        field="category",
        options={"api_base": server.api_base},
        retry=policy,
    )
    with contextlib.closing(classifier):
        yield classifier


def test_a_refused_connection_makes_it_unready(serve: Any, bundle: Tuned) -> None:
    """One request whose connections are refused makes the service not ready, and an answer makes it ready."""
    with FaultServer(["cat", "dog"]) as server, asking(server) as classifier:
        running = serve(app(bundle, classifier))
        assert ask(running, {"text": "a cat"}).status == 200
        server.stop()
        failed = ask(running, {"texts": ["a cat", "a dog"]})
        assert (failed.status, failed.headers["retry-after"]) == (503, "1")
        assert [row["outcome"] for row in failed.json["results"]] == ["error", "error"]
        assert ready(running) == (503, "model failing")
        server.start()
        assert ask(running, {"text": "a cat"}).status == 200
        assert ready(running) == (200, "ready")


def test_requests_under_way_fail_with_the_server(serve: Any, bundle: Tuned) -> None:
    """Requests that the server holds when it dies get 503, and the service is not ready."""

    def fault(_: int, request: dict[str, Any]) -> Fault | None:
        return None if "cat" in request["messages"][-1]["content"] else Fault("hang")

    with FaultServer(["cat", "dog"], faults=fault) as server, asking(server) as classifier:
        running = serve(app(bundle, classifier))
        assert ask(running, {"text": "a cat"}).status == 200  # now it is known how the model is asked
        held = [later(lambda text=text: ask(running, {"text": text})) for text in ("a", "b")]
        while server.in_flight < len(held):
            threading.Event().wait(0.005)
        server.stop()
        for thread, found in held:
            thread.join(SECONDS)
            assert found[0].status == 503
        assert ready(running) == (503, "model failing")


def test_waits_end_when_connections_are_refused(serve: Any, bundle: Tuned) -> None:
    """Requests that wait to try again get 503 once connections are refused, however long they would wait."""
    policy = RetryPolicy(initial_seconds=600.0, maximum_seconds=600.0)
    with FaultServer(["cat", "dog"]) as server, asking(server, policy) as classifier:
        running = serve(app(bundle, classifier))
        assert ask(running, {"text": "a cat"}).status == 200
        server.stop()
        waiting = [later(lambda text=text: ask(running, {"text": text})) for text in "abc"]
        for thread, found in waiting:
            thread.join(SECONDS)
            assert found[0].status == 503
        assert ready(running) == (503, "model failing")


def test_a_provider_that_wants_no_call_is_not_waited_for(
    serve: Any, bundle: Tuned, service_log: io.StringIO
) -> None:
    """A longer pause than the deadline is answered with 503 and its length at once, and then without a call."""

    def fault(_: int, request: dict[str, Any]) -> Fault | None:
        return Fault("rate_limit", seconds=50.0) if "dog" in request["messages"][-1]["content"] else None

    with FaultServer(["cat", "dog"], faults=fault) as server, asking(server) as classifier:
        running = serve(app(bundle, classifier))
        assert ask(running, {"text": "a cat"}).status == 200
        for _ in range(2):
            found = ask(running, {"text": "a dog"})
            assert found.status == 503
            assert 30 < int(found.headers["retry-after"]) <= 50
        assert sum(request.fault is not None for request in server.requests) == 1
        assert ready(running) == (200, "ready")
        assert ask(running, {"text": "a cat"}).status == 503
        assert ready(running) == (503, "model failing")
    told = [json.loads(line) for line in service_log.getvalue().splitlines()]
    assert [line.get("retried") for line in told if line["event"] == "request"][:3] == [
        None,
        {"429": 1},
        None,
    ]
