"""A bundle over a real socket: what it answers, refuses, counts and logs."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import itertools
import json
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from calibrant.assembly import Bundle, BundleHistory, open_bundle
from calibrant.core import (
    ConfigurationError,
    MultiLabels,
    Outcome,
    Prediction,
    ProviderError,
    Step,
    Verdict,
)
from calibrant.inference import Classifier
from calibrant.serving import ServiceSettings, create_classifier_app, json_logs
from calibrant.serving._metrics import ServiceMetrics, ks_distance
from calibrant.serving._protocol import PatientProtocol
from calibrant.testing import FakeClient, FaultServer

PATH = "/v1/classify"
JSON = {"Content-Type": "application/json"}
SECONDS = 30


class Held:
    """A classifier that answers when it is let go, and knows what it was asked and what was given up."""

    def __init__(self, *, held: bool = True, answer: Callable[[str], Any] | None = None) -> None:
        self.asked: list[str] = []
        self.given_up = threading.Event()
        self.begun = threading.Semaphore(0)
        self._answer = answer or (lambda _: Prediction(label="cat", confidence=0.9))
        self._go = threading.Event()
        if not held:
            self._go.set()

    def let_go(self) -> None:
        self._go.set()

    async def aclassify(self, text: str) -> Prediction:
        self.asked.append(text)
        self.begun.release()
        try:
            while not self._go.is_set():  # noqa: ASYNC110 (let go from another thread)
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        found = self._answer(text)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Prediction)
        return found


def app(bundle: Bundle, classifier: Any, **settings: Any) -> Any:
    """Return the application."""
    return create_classifier_app(bundle, classifier, settings=ServiceSettings(**settings))


def ask(running: Any, body: Any, **headers: str) -> Any:
    """Return the reply to a classification."""
    return running.ask(body, path=PATH, **{**JSON, **headers})


def later(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Begin a call in a thread; returns it with where its result will be."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def counts(running: Any, **headers: str) -> dict[str, float]:
    """Return the metrics by name and values of labels."""
    text = running.ask(path="/metrics", method="GET", **headers).body.decode()
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def with_threshold(bundle: Bundle, high: float) -> Bundle:
    """Return the bundle with a suggested threshold."""
    return replace(bundle, thresholds={**bundle.thresholds, "suggested": {"high": high, "low": 0.2}})


def test_answers_are_those_of_the_bundles_classifier(serve: Any, bundle: Bundle) -> None:
    """In order, for one text and for many, with the decision of the bundle's threshold."""
    decided = with_threshold(bundle, 0.8)
    texts = ["a cat", "a dog", "something", *(f"number {n}" for n in range(20))]
    with FaultServer(["cat", "dog"]) as server:
        classifier = open_bundle(bundle, options={"api_base": server.api_base})
        expected = classifier.classify_many(texts)
        running = serve(app(decided, classifier))
        found = ask(running, {"texts": texts})
        single = ask(running, {"text": "a dog"})
        classifier.close()
    assert (found.status, single.status) == (200, 200)
    for prediction, answer in zip(expected, found.json["results"], strict=True):
        assert answer["label"] == prediction.label
        assert answer["confidence"] == pytest.approx(prediction.confidence)
        assert sum(answer["probabilities"].values()) == pytest.approx(1.0)
        assert set(answer["probabilities"]) == {"cat", "dog"}
        assert answer["decision"] == ("accepted" if answer["confidence"] >= 0.8 else "review")
        assert (answer["outcome"], answer["reason"], answer["calibrated"]) == ("ok", "", None)
    assert {answer["decision"] for answer in found.json["results"]} == {"accepted", "review"}
    assert single.json["results"] == [found.json["results"][1]]


def test_answers_of_several_labels_have_parts_and_are_counted_by_what_they_hold(
    serve: Any, bundle: Bundle
) -> None:
    """Every label with its own confidence; answers of one label have no such key."""
    topics = MultiLabels(["cat", "dog", "bird"])
    fake = FakeClient(topics, {"both": ('["dog", "cat"]', 0.9), "none": "[]"}, field="animals")
    classifier = Classifier(model=fake, labels=topics, field="animals")
    expected = classifier.classify("both")
    running = serve(app(replace(bundle, labels=topics), classifier))
    both, none = ask(running, {"texts": ["both", "none"]}).json["results"]
    assert (both["label"], both["probabilities"]) == ('["cat", "dog"]', None)
    assert [(part["name"], part["label"]) for part in both["parts"]] == [
        ("cat", "yes"),
        ("dog", "yes"),
        ("bird", "no"),
    ]
    for part, known in zip(both["parts"], expected.parts, strict=True):
        assert part["confidence"] == pytest.approx(known.confidence)
        assert part["probabilities"][part["label"]] == pytest.approx(known.confidence)
    assert none["label"] == "[]"
    seen = counts(running)
    assert {name for name in seen if name.startswith("calibrant_labels_total")} == {
        "calibrant_labels_total cat",
        "calibrant_labels_total dog",
    }
    described = running.ask(path="/openapi.json", method="GET").json["components"]["schemas"]
    assert set(described["AnswerPart"]["properties"]) == {"name", "label", "probabilities", "confidence"}


def test_without_a_threshold_nothing_is_decided(serve: Any, bundle: Bundle) -> None:
    """Null, neither accepted nor to review; and what cannot be said in UTF-8 is replaced."""
    failed = Prediction(label=None, outcome=Outcome.ERROR, reason="\ud800")
    running = serve(
        app(bundle, Held(held=False, answer=lambda t: failed if t == "x" else Prediction(label="cat")))
    )
    first, second = ask(running, {"texts": ["a", "x"]}).json["results"]
    assert (first["decision"], first["probabilities"], first["confidence"]) == (None, None, None)
    assert (second["decision"], second["outcome"], second["label"], second["reason"]) == (
        "review",
        "error",
        None,
        "?",
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"text": "\xff\xfe"}', 400),
        (b'{"text": "\\ud800"}', 400),
        (b"[" * 100_000, 400),
        (b"[]", 422),
        (b"null", 422),
        (b"{}", 422),
        ({"text": ""}, 422),
        ({"text": 1}, 422),
        ({"text": None}, 422),
        ({"text": "a", "texts": ["a"]}, 422),
        ({"text": "a", "more": 1}, 422),
        ({"texts": []}, 422),
        ({"texts": "abc"}, 422),
        ({"texts": ["a", 1]}, 422),
        ({"texts": ["a", ""]}, 422),
        ({"texts": ["a"] * 6}, 422),
    ],
)
def test_bad_bodies_are_refused_and_the_service_stays_up(
    serve: Any, bundle: Bundle, body: Any, status: int
) -> None:
    """With a sentence, and without asking anything."""
    held = Held(held=False)
    running = serve(app(bundle, held, most_texts=5))
    found = ask(running, body)
    assert found.status == status
    assert found.json["error"].startswith("Expected")
    assert held.asked == []
    assert ask(running, {"text": "a"}).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_not_said_to_be_json_is_refused(serve: Any, bundle: Bundle, kind: str) -> None:
    """Browsers send no other kind across sites without asking."""
    running = serve(app(bundle, Held(held=False)))
    assert running.ask({"text": "a"}, path=PATH, **{"Content-Type": kind}).status == 415


def test_a_hundred_megabytes_are_refused_unread(serve: Any, bundle: Bundle) -> None:
    """Stated or in chunks: only a little more than the limit is taken from whoever sends it."""
    running = serve(app(bundle, Held(held=False)))
    sent = itertools.count()
    stated = ask(running, b"x", **{"Content-Length": "100000000"})
    pieces = (b"x" * 65536 for _ in range(1600) if next(sent) >= 0)
    chunked = ask(running, pieces)
    assert (stated.status, chunked.status) == (413, 413)
    assert next(sent) < 1000
    assert ask(running, {"text": "a"}).status == 200


def test_one_of_the_keys_is_wanted(serve: Any, bundle: Bundle) -> None:
    """For classifications and metrics; who asks whether the process lives needs none."""
    running = serve(app(bundle, Held(held=False), api_keys=("first", "second")))
    for wrong in (None, "Bearer", "Bearer wrong", "Bearer firs", "Basic first", "first", "Bearer \xff"):
        headers = {} if wrong is None else {"Authorization": wrong}
        found = ask(running, {"text": "a"}, **headers)
        assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer")
        assert running.ask(path="/metrics", method="GET", **headers).status == 401
    for right in ("Bearer first", "bearer second"):
        assert ask(running, {"text": "a"}, Authorization=right).status == 200
        assert running.ask(path="/metrics", method="GET", Authorization=right).status == 200
    assert running.ask(path="/healthz", method="GET").status == 200
    described = running.ask(path="/openapi.json", method="GET").json
    assert described["paths"][PATH]["post"]["security"] == [{"key": []}]
    assert described["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


def test_a_flood_is_turned_away_and_what_was_taken_is_answered(serve: Any, bundle: Bundle) -> None:
    """429 with when to ask again; rows count, not requests; and room is given back."""
    held = Held()
    running = serve(app(bundle, held, most_rows=5, most_texts=4))
    taken, found = later(lambda: ask(running, {"texts": list("abcd")}))
    for _ in range(4):
        assert held.begun.acquire(timeout=SECONDS)
    too_many = ask(running, {"texts": ["x", "y"]})
    assert (too_many.status, too_many.headers["retry-after"]) == (429, "1")
    fifth, also = later(lambda: ask(running, {"text": "e"}))
    assert held.begun.acquire(timeout=SECONDS)
    flood = [later(lambda: ask(running, {"text": "f"})) for _ in range(30)]
    for thread, _ in flood:
        thread.join(SECONDS)
    assert {reply.status for _, replies in flood for reply in replies} == {429}
    seen = counts(running)
    assert seen["calibrant_rows_in_flight"] == 5
    assert seen[f"calibrant_requests_total {PATH} 429"] == 31
    held.let_go()
    for thread in (taken, fifth):
        thread.join(SECONDS)
    assert (found[0].status, also[0].status) == (200, 200)
    assert sorted(held.asked) == list("abcde")
    assert ask(running, {"texts": list("abcd")}).status == 200
    assert counts(running)["calibrant_rows_in_flight"] == 0


def test_a_deadline_ends_a_request(serve: Any, bundle: Bundle) -> None:
    """504; what was asked is given up, and its room is given back."""
    held = Held()
    running = serve(app(bundle, held, deadline_seconds=0.1, most_rows=1, most_texts=1))
    assert ask(running, {"text": "a"}).status == 504
    assert held.given_up.wait(SECONDS)
    held.let_go()
    assert ask(running, {"text": "a"}).status == 200


def test_a_client_that_goes_is_not_worked_for(serve: Any, bundle: Bundle) -> None:
    """Its rows are given up."""
    held = Held()
    running = serve(app(bundle, held))
    with socket.create_connection(("127.0.0.1", running.port)) as line:
        body = b'{"text": "a"}'
        line.sendall(
            b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert held.begun.acquire(timeout=SECONDS)
    assert held.given_up.wait(SECONDS)


def test_a_model_that_cannot_be_asked_is_503_and_one_row_is_not(
    serve: Any, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, the answer does not; a crash is 500 and the service stays up."""
    wrong: dict[str, Exception] = {
        "key": ProviderError("the key is bad", provider="p"),
        "crash": RuntimeError("boom"),
    }
    held = Held(held=False, answer=lambda text: wrong.get(text, Prediction(label="cat", confidence=0.5)))
    running = serve(app(bundle, held))
    found = ask(running, {"texts": ["a", "key"]})
    assert found.status == 503
    assert "bad" not in found.body.decode()
    assert "the key is bad" in caplog.text
    crashed = ask(running, {"text": "crash"})
    assert crashed.status == 500
    assert "boom" not in crashed.body.decode()
    assert ask(running, {"text": "a"}).status == 200


def test_slow_headers_end_a_connection(serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that trickles, or says nothing, first or after an answer, is hung up on; others are served."""
    monkeypatch.setattr(PatientProtocol, "seconds_for_headers", 0.1)
    running = serve(app(bundle, Held(held=False)))
    begun = [b"", b"POST /v1/classify HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he"]
    with contextlib.ExitStack() as lines:
        slow = [lines.enter_context(socket.create_connection(("127.0.0.1", running.port))) for _ in begun]
        for line, start in zip(slow, begun, strict=True):
            line.settimeout(SECONDS)
            line.sendall(start)
        assert ask(running, {"text": "a"}).status == 200
        ends = [b"".join(iter(lambda own=line: own.recv(4096), b"")) for line in slow]
    assert ends[:2] == [b"", b""]
    assert ends[2].startswith(b"HTTP/1.1 200")


def test_a_slow_answer_outlives_the_time_for_headers(
    serve: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock runs for headers only."""
    monkeypatch.setattr(PatientProtocol, "seconds_for_headers", 0.02)
    held = Held()
    running = serve(app(bundle, held))
    thread, found = later(lambda: ask(running, {"text": "a"}))
    assert held.begun.acquire(timeout=SECONDS)
    threading.Timer(0.1, held.let_go).start()
    thread.join(SECONDS)
    assert found[0].status == 200


def test_unknown_paths_and_methods_say_what_there_is(serve: Any, bundle: Bundle) -> None:
    """And do not become series of their own."""
    running = serve(app(bundle, Held(held=False)))
    assert running.ask(path="/v1/other", method="GET").status == 404
    assert running.ask(path=PATH, method="GET").status == 405
    seen = counts(running)
    assert seen["calibrant_requests_total other 404"] == 1
    assert not any("/v1/other" in name for name in seen)


def test_metrics_count_outcomes_decisions_labels_and_escalations(serve: Any, bundle: Bundle) -> None:
    """Requests and seconds by path, too."""
    steps = (Step(model="s", verdict=Verdict.ESCALATED), Step(model="l", verdict=Verdict.ACCEPTED))
    answers = {
        "sure": Prediction(label="cat", confidence=0.93),
        "unsure": Prediction(label="dog", confidence=0.4, steps=steps, accepted=True),
        "lost": Prediction(label=None, outcome=Outcome.UNPARSED, reason="no JSON"),
    }
    running = serve(app(with_threshold(bundle, 0.8), Held(held=False, answer=answers.__getitem__)))
    assert ask(running, {"texts": list(answers)}).status == 200
    seen = counts(running)
    expected = {
        f"calibrant_requests_total {PATH} 200": 1,
        f"calibrant_request_seconds_count {PATH}": 1,
        "calibrant_rows_total ok": 2,
        "calibrant_rows_total unparsed": 1,
        "calibrant_labels_total cat": 1,
        "calibrant_labels_total dog": 1,
        "calibrant_decisions_total accepted": 1,
        "calibrant_decisions_total review": 2,
        "calibrant_confidence_count": 2,
        "calibrant_confidence_bucket 0.4": 1,
        "calibrant_confidence_bucket 0.95": 2,
        "calibrant_escalations_total": 1,
        "calibrant_steps_total s escalated": 1,
        "calibrant_steps_total l accepted": 1,
        "calibrant_drift_rows": 2,
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert math.isnan(seen["calibrant_confidence_drift"])


def test_drift_is_the_distance_of_a_sliding_window_from_the_history() -> None:
    """None worth telling at first; 0 for the like; 1 once only others are left in the window."""
    history = tuple(n / 500 for n in range(500))
    metrics = ServiceMetrics(BundleHistory(rows=500, labels={"cat": 500}, confidence=history))
    decision: Any = type("D", (), {"accepted": None})()

    def see(values: Any) -> None:
        for value in values:
            metrics.count(Prediction(label="cat", confidence=float(value)), decision)

    see(history[:29])
    assert math.isnan(metrics.drift())
    see(history[29:])
    assert metrics.drift() == 0.0
    see([1.0] * 500)
    assert metrics.drift() == pytest.approx(0.5)
    see([1.0] * 500)
    assert metrics.drift() == 1.0
    empty = ServiceMetrics(BundleHistory(rows=0, labels={}, confidence=()))
    for _ in range(40):
        empty.count(Prediction(label="cat", confidence=0.5), decision)
    assert math.isnan(empty.drift())


VALUES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=1, max_size=20)


@given(VALUES, VALUES)
def test_the_distance_is_the_largest_gap_of_the_distribution_functions(
    ours: list[float], theirs: list[float]
) -> None:
    """Counted point by point, ties included."""

    def share(values: list[float], point: float) -> Fraction:
        return Fraction(sum(value <= point for value in values), len(values))

    expected = max(abs(share(ours, point) - share(theirs, point)) for point in ours + theirs)
    assert ks_distance(np.sort(ours), np.sort(theirs)) == pytest.approx(float(expected))


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Return where the service's logs go."""
    stream = io.StringIO()
    with json_logs(stream):
        yield stream


@pytest.mark.parametrize("texts", [False, True])
def test_logs_are_json_lines_without_texts_unless_asked(
    serve: Any, bundle: Bundle, logged: io.StringIO, texts: bool
) -> None:
    """A line a request, with its number; a crash is told by kind and place, for its words may quote."""
    held = Held(
        held=False,
        answer=lambda text: (
            RuntimeError(text) if "crash" in text else Prediction(label="cat", confidence=0.5)
        ),
    )
    running = serve(app(bundle, held, log_texts=texts))
    found = ask(running, {"texts": ["a secret", "b secret"]})
    assert ask(running, {"text": "crash secret"}).status == 500
    assert ask(running, {"text": "", "secret": 1}).status == 422
    running.ask(path="/healthz", method="GET")
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["status"] for line in requests] == [200, 500, 422]
    assert requests[0]["id"] == found.headers["x-request-id"]
    assert (requests[0]["texts"], requests[0]["outcomes"], requests[0]["review"]) == (2, {"ok": 2}, 0)
    crashes = [line for line in lines if "error" in line]
    assert {line["error"] for line in crashes} == {"RuntimeError"}
    assert all(line["place"] for line in crashes)
    assert ("secret" in logged.getvalue()) is texts
    if texts:
        assert requests[0]["rows"][1] == {"text": "b secret", "label": "cat", "confidence": 0.5}


def test_logs_are_as_before_behind_the_block() -> None:
    """Neither handler nor level stays."""
    logger = logging.getLogger("calibrant")
    before = (list(logger.handlers), logger.level, logger.propagate)
    with json_logs(io.StringIO()):
        assert logger.handlers != before[0]
    assert (list(logger.handlers), logger.level, logger.propagate) == before


def test_it_says_ready_until_it_is_being_stopped(serve: Any, bundle: Bundle) -> None:
    """Then 503, while requests that come nevertheless are answered and their connections closed."""
    made = app(bundle, Held(held=False))
    running = serve(made)
    ready = running.ask(path="/readyz", method="GET")
    assert (ready.status, ready.json, ready.headers.get("connection")) == (200, {"status": "ready"}, None)
    made.state.stopping.set()
    stopping = running.ask(path="/readyz", method="GET")
    assert (stopping.status, stopping.json) == (503, {"status": "stopping"})
    assert running.ask(path="/healthz", method="GET").status == 200
    found = ask(running, {"text": "a"})
    assert (found.status, found.headers["connection"]) == (200, "close")


def test_the_description_holds_bodies_and_refusals(serve: Any, bundle: Bundle) -> None:
    """As OpenAPI."""
    running = serve(app(bundle, Held(held=False), most_texts=7))
    described = running.ask(path="/openapi.json", method="GET").json
    post = described["paths"][PATH]["post"]
    assert {"200", "400", "401", "413", "422", "429", "503", "504"} <= set(post["responses"])
    one, many = post["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
    assert one["required"] == ["text"]
    assert many["properties"]["texts"]["maxItems"] == 7


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"most_bytes": 0}, "most_bytes"),
        ({"most_texts": True}, "most_texts"),
        ({"most_rows": 10}, "most_rows of at least most_texts"),
        ({"deadline_seconds": math.inf}, "deadline_seconds"),
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"api_keys": ("",)}, "API keys"),
        ({"api_keys": ("a\nb",)}, "API keys"),
        ({"api_keys": ("ü",)}, "API keys"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    """When they are made."""
    with pytest.raises(ConfigurationError, match=told):
        ServiceSettings(**settings)


def test_one_connection_serves_many_requests(serve: Any, bundle: Bundle) -> None:
    """Kept alive."""
    running = serve(app(bundle, Held(held=False)))
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=SECONDS)) as line:
        for _ in range(5):
            line.request("POST", PATH, b'{"text": "a"}', JSON)
            own = line.sock
            assert line.getresponse().read()
            assert line.sock is own
