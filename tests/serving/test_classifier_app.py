"""Tests of the bundle service over a real socket: answers, refusals, metrics and logs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from calibrant.calibration import IsotonicCalibrator
from calibrant.cli._serve import json_logs
from calibrant.core import ConfigurationError, MultiLabels, Outcome, Prediction, ProviderError
from calibrant.inference import Classifier
from calibrant.serving import ServiceSettings, create_classifier_app
from calibrant.testing import FakeClient
from calibrant.tuned import RecordedTask, Tuned, load
from fault_server import FaultServer
from held import JSON, PATH, SECONDS, Held, app, ask, counts, later, with_threshold

HEAD = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_answers_are_the_classifier_s(serve: Any, bundle: Tuned) -> None:
    """The service answers one text or many in order, and decides by the bundle's threshold."""
    decided = with_threshold(bundle, 0.8)
    texts = ["a cat", "a dog", "something", *(f"number {n}" for n in range(20))]
    with FaultServer(["cat", "dog"]) as server:
        classifier = load(bundle, options={"api_base": server.api_base})
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


def test_answers_of_several_labels_have_parts(serve: Any, bundle: Tuned) -> None:
    """An answer of several labels has parts with probabilities and confidence, and metrics count them."""
    topics = MultiLabels(["cat", "dog", "bird"])
    fake = FakeClient(topics, {"both": ('["dog", "cat"]', 0.9), "none": "[]"}, field="animals")
    classifier = Classifier(model=fake, labels=topics, field="animals")
    expected = classifier.classify("both")
    task = RecordedTask(task=replace(bundle.task, labels=topics, field="animals"))
    running = serve(app(replace(bundle, tasks=(task,)), classifier))
    both, none = ask(running, {"texts": ["both", "none"]}).json["results"]
    assert (both["label"], both["probabilities"]) == ('["cat", "dog"]', None)
    assert {part["name"]: part["label"] for part in both["parts"]} == {
        "cat": "yes",
        "dog": "yes",
        "bird": "no",
    }
    for part, known in zip(both["parts"], expected.parts, strict=True):
        assert part["confidence"] == pytest.approx(known.confidence)
        assert part["probabilities"][part["label"]] == pytest.approx(known.confidence)
    assert none["label"] == "[]"
    seen = counts(running)
    answered = {name for name in seen if name.startswith("calibrant_labels_total")}
    assert answered == {"calibrant_labels_total cat", "calibrant_labels_total dog"}
    described = running.ask(path="/openapi.json", method="GET").json["components"]["schemas"]
    assert set(described["AnswerPart"]["properties"]) == {"name", "label", "probabilities", "confidence"}


def test_an_answer_says_which_number_decided(serve: Any, bundle: Tuned) -> None:
    """The answer names the number that was compared with the threshold: calibrated or not."""
    calibrator = IsotonicCalibrator().fit([0.2, 0.2, 0.5, 0.5, 0.9, 0.9], [0, 0, 0, 1, 0, 1])
    suggested = replace(with_threshold(bundle, 0.35), calibrator=calibrator)
    certified = replace(
        suggested, thresholds={**suggested.thresholds, "certified": {"threshold": 0.35}, "certification": {}}
    )
    answer = Prediction(label="cat", confidence=0.41)
    for made, by, threshold in ((suggested, "calibrated", 0.3125), (certified, "confidence", 0.35)):
        running = serve(app(made, Held(held=False, answer=lambda _: answer)))
        (row,) = ask(running, {"text": "a"}).json["results"]
        assert (row["decision"], row["decided_by"]) == ("accepted", by)
        assert row["threshold"] == pytest.approx(threshold)
        assert (row["confidence"], row["calibrated"]) == (0.41, pytest.approx(0.3875))
        assert row[by] >= row["threshold"]


def test_without_a_threshold_nothing_is_decided(serve: Any, bundle: Tuned) -> None:
    """Without a certificate the decision is null; a text that UTF-8 cannot hold is replaced."""
    bundle = replace(with_threshold(bundle, 0.1), accept_suggested=False)
    failed = Prediction(label=None, outcome=Outcome.UNPARSED, reason="\ud800")
    running = serve(
        app(bundle, Held(held=False, answer=lambda t: failed if t == "x" else Prediction(label="cat")))
    )
    first, second = ask(running, {"texts": ["a", "x"]}).json["results"]
    assert (first["decision"], first["probabilities"], first["confidence"]) == (None, None, None)
    expected = {"decision": "review", "outcome": "unparsed", "label": None, "reason": "\ufffd"}
    assert expected.items() <= second.items()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"text": "\xff\xfe"}', 400),
        (b"[" * 100_000, 400),
        (b"[]", 422),
        (b"{}", 422),
        ({"text": ""}, 422),
        ({"text": " \n"}, 422),
        ({"texts": ["a", "\u3000"]}, 422),
        ({"text": "a", "texts": ["a"]}, 422),
        ({"text": "a", "more": 1}, 422),
        ({"texts": []}, 422),
        ({"texts": ["a", 1]}, 422),
        ({"texts": ["a"] * 6}, 422),
    ],
)
def test_bad_bodies_are_refused(serve: Any, bundle: Tuned, body: Any, status: int) -> None:
    """A bad body gets an error that begins with "Expected", and no model is called."""
    held = Held(held=False)
    running = serve(app(bundle, held, most_texts=5))
    found = ask(running, body)
    assert found.status == status
    assert found.json["error"].startswith("Expected")
    assert held.asked == []
    assert ask(running, {"text": "a"}).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_the_content_type_must_be_json(running: Any, kind: str) -> None:
    """A request whose content type is not JSON gets 415."""
    assert running.ask({"text": "a"}, path=PATH, **{"Content-Type": kind}).status == 415


def test_a_huge_body_is_refused_unread(running: Any) -> None:
    """A body above the limit gets 413 before most of it is read."""
    sent = itertools.count()
    stated = ask(running, b"x", **{"Content-Length": "100000000"})
    pieces = (b"x" * 65536 for _ in range(1600) if next(sent) >= 0)
    chunked = ask(running, pieces)
    assert (stated.status, chunked.status) == (413, 413)
    assert next(sent) < 1000
    assert ask(running, {"text": "a"}).status == 200


def test_a_client_that_sends_before_it_reads_gets_the_refusal(running: Any) -> None:
    """The connection stays open until a body of a few times the limit is read, and serves the next request."""

    async def ask_often() -> list[int]:
        url = f"http://127.0.0.1:{running.port}{PATH}"
        async with httpx.AsyncClient() as client:
            large = [client.post(url, content=b"x" * 5_000_000, headers=JSON) for _ in range(10)]
            found = [reply.status_code for reply in await asyncio.gather(*large)]
            return [*found, (await client.post(url, json={"text": "a"})).status_code]

    assert asyncio.run(ask_often()) == [413] * 10 + [200]


def test_requests_need_one_of_the_keys(serve: Any, bundle: Tuned) -> None:
    """Requests without one of the keys get 401, except at /healthz and /openapi.json."""
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


def test_too_many_texts_are_429(serve: Any, bundle: Tuned) -> None:
    """More rows in flight than allowed get 429, and finished rows free their room."""
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


def test_a_flood_is_refused_before_its_bodies(serve: Any, bundle: Tuned) -> None:
    """When all room is taken, late requests get 429, also one whose body was still being read."""
    held = Held()
    running = serve(app(bundle, held, most_rows=1, most_texts=1))
    with running.connected() as early:
        early.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 13\r\n\r\n")
        assert early.recv(4096).startswith(b"HTTP/1.1 100")
        thread, found = later(lambda: ask(running, {"text": "a"}))
        assert held.begun.acquire(timeout=SECONDS)
        with running.connected() as late:
            late.sendall(HEAD + b"Content-Length: 13\r\n\r\n")
            assert late.recv(4096).startswith(b"HTTP/1.1 429")
        early.sendall(b'{"text": "b"}')
        assert early.recv(4096).startswith(b"HTTP/1.1 429")
    held.let_go()
    thread.join(SECONDS)
    assert (found[0].status, held.asked) == (200, ["a"])


def test_a_deadline_ends_a_request(serve: Any, bundle: Tuned) -> None:
    """A request past its deadline gets 504, its call is cancelled, and its room is free again."""
    held = Held()
    running = serve(app(bundle, held, deadline_seconds=1.0, most_rows=1, most_texts=1))
    thread, found = later(lambda: ask(running, {"text": "a"}))
    assert held.begun.acquire(timeout=SECONDS)
    running.clock.advance(1.0)
    thread.join(SECONDS)
    assert found[0].status == 504
    assert b"did not come within 1 second: ask again later." in found[0].body
    assert b"at most 1 text, got 2" in ask(running, {"texts": ["a", "b"]}).body
    assert held.given_up.wait(SECONDS)
    held.let_go()
    assert ask(running, {"text": "a"}).status == 200


def test_a_lost_client_cancels_its_rows(serve: Any, bundle: Tuned) -> None:
    """The calls of a closed connection are cancelled."""
    held = Held()
    running = serve(app(bundle, held))
    with running.connected() as line:
        line.sendall(HEAD + b'Content-Length: 13\r\n\r\n{"text": "a"}')
        assert held.begun.acquire(timeout=SECONDS)
    assert held.given_up.wait(SECONDS)


def test_an_unreachable_model_is_503(serve: Any, bundle: Tuned) -> None:
    """A request with an unreachable model gets 503 without the reason, and the next one gets 200."""
    wrong = ProviderError("the key is bad", provider="p", status=401, hint="Mend it.")
    cat = Prediction(label="cat", confidence=0.5)
    running = serve(app(bundle, Held(held=False, answer=lambda text: wrong if text == "key" else cat)))
    found = ask(running, {"texts": ["a", "key"]})
    assert found.status == 503
    assert "bad" not in found.body.decode()
    assert ask(running, {"text": "a"}).status == 200


def test_unknown_paths_list_the_known_ones(running: Any) -> None:
    """Unknown paths get 404, and the metrics count them together as "other"."""
    assert running.ask(path="/v1/other", method="GET").status == 404
    assert running.ask(path=PATH, method="GET").status == 405
    seen = counts(running)
    assert seen["calibrant_requests_total other 404"] == 1
    assert not any("/v1/other" in name for name in seen)


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        ProviderError("no such model as secret", provider="p", status=404, hint="Mend it."),
        Prediction(label=None, outcome=Outcome.ERROR, reason="no connection to http://secret"),
        Prediction(label=None, outcome=Outcome.ERROR, reason="secret, room 500", status=429),
    ],
)
def test_provider_messages_are_logged_on_request(
    serve: Any, bundle: Tuned, service_log: io.StringIO, texts: bool, answer: Any
) -> None:
    """A provider's message is logged only with `log_texts`; error class, status and hint always are."""
    running = serve(app(bundle, Held(held=False, answer=lambda _: answer), log_texts=texts))
    found = ask(running, {"text": "a"})
    assert (found.status, b"secret" in found.body) == (503, False)
    running.ask(path="/healthz", method="GET")  # by then the first one is logged
    assert ("secret" in service_log.getvalue()) is texts
    lines = [json.loads(line) for line in service_log.getvalue().splitlines()]
    errors = [own for own in lines if own["level"] == "error"]
    (request,) = (own for own in lines if own["event"] == "request")
    if isinstance(answer, Prediction):
        assert request["failures"] == {str(answer.status or "no status"): 1}
        assert found.json["results"][0]["reason"] == "The call of the model failed: ask again later."
    else:
        logged_fields = {"error": "ProviderError", "status": 404, "hint": "Mend it."}
        assert logged_fields.items() <= errors[0].items()
        assert logged_fields.items() <= request["upstream"].items()


def test_a_version_that_was_not_measured_is_logged_once(
    serve: Any, bundle: Tuned, service_log: io.StringIO
) -> None:
    """The first answer of another model than the bundle's rows had is a warning; all of them are for review."""
    answers = {
        "same": Prediction(label="cat", confidence=0.9, model=bundle.history.models[0]),
        "lost": Prediction(label=None, outcome=Outcome.ERROR),
        "other": Prediction(label="cat", confidence=0.9, model="animal-2026-09"),
    }
    thresholds = {**bundle.thresholds, "certified": {"threshold": 0.35}, "certification": {}}
    bundle = replace(bundle, thresholds=thresholds)
    running = serve(app(bundle, Held(held=False, answer=answers.__getitem__)))
    replies = [ask(running, {"text": text}) for text in ("same", "lost", "other", "other")]
    decisions = [json.loads(reply.body)["results"][0]["decision"] for reply in replies]
    assert decisions == ["accepted", "review", "review", "review"]
    running.ask(path="/healthz", method="GET")  # by then the others are logged
    lines = [json.loads(line) for line in service_log.getvalue().splitlines()]
    (told,) = (own["event"] for own in lines if own["level"] == "warning")
    assert told.startswith(f"animal-2026-09 answered, but {bundle.history.models[0]} the labelled rows of ")


def test_asyncio_errors_are_logged_without_texts(service_log: io.StringIO) -> None:
    """Only the first line of a message of asyncio is logged."""
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: <Task 'secret'>")
    told = json.loads(service_log.getvalue())
    assert (told["level"], told["event"]) == ("error", "Task exception was never retrieved")


def test_lifespan_events_are_answered(bundle: Tuned) -> None:
    """The application answers the lifespan events startup and shutdown."""
    made = app(bundle, Held())
    sent: list[str] = []

    async def events() -> Any:
        return {"type": "lifespan.shutdown" if sent else "lifespan.startup"}

    async def note(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(made({"type": "lifespan", "app": made}, events, note))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_crash_before_the_answer_is_500(bundle: Tuned, begun: bool) -> None:
    """A crash before the answer gives 500, and a later one is raised."""
    made = app(bundle, Held())
    sent: list[Any] = []

    async def crashes(_scope: Any, _receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("boom")

    async def note(message: Any) -> None:
        sent.append(message)

    (watch,) = made.user_middleware
    watched = watch.cls(crashes, **watch.kwargs)
    end = pytest.raises(RuntimeError, match="boom") if begun else contextlib.nullcontext()
    with end:
        asyncio.run(watched({"type": "http", "path": "/x", "method": "GET"}, note, note))
    assert [own.get("status") for own in sent] == ([200] if begun else [500, None])


@pytest.mark.parametrize("texts", [False, True])
def test_logs_hold_texts_on_request_only(
    serve: Any, bundle: Tuned, service_log: io.StringIO, texts: bool
) -> None:
    """Every request is one JSON line with its id, and texts are logged with `log_texts` only."""
    cat = Prediction(label="cat", confidence=0.5)
    held = Held(held=False, answer=lambda text: RuntimeError(text) if "crash" in text else cat)
    running = serve(app(bundle, held, log_texts=texts))
    found = ask(running, {"texts": ["a secret", "b secret"]})
    crashed = ask(running, {"text": "crash secret"})
    assert (crashed.status, b"secret" in crashed.body) == (500, False)
    assert ask(running, {"text": "", "secret": 1}).status == 422
    running.ask(path="/healthz", method="GET")
    lines = [json.loads(line) for line in service_log.getvalue().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["status"] for line in requests] == [200, 500, 422]
    assert requests[0]["id"] == found.headers["x-request-id"]
    assert (requests[0]["texts"], requests[0]["outcomes"], requests[0]["review"]) == (2, {"ok": 2}, 0)
    crashes = [line for line in lines if "error" in line]
    assert {line["error"] for line in crashes} == {"RuntimeError"}
    assert crashes[0]["id"] == crashed.headers["x-request-id"]
    assert all(line["place"] for line in crashes)
    assert ("secret" in service_log.getvalue()) is texts
    if texts:
        row = {"text": "b secret", "label": "cat", "confidence": 0.5, "outcome": "ok", "reason": ""}
        assert requests[0]["rows"][1] == row


def test_json_logs_restore_the_loggers() -> None:
    """Handlers and level of the logger are restored after `json_logs`."""
    logger = logging.getLogger("calibrant")
    before = (list(logger.handlers), logger.level, logger.propagate)
    with json_logs():
        assert logger.handlers != before[0]
    assert (list(logger.handlers), logger.level, logger.propagate) == before


def test_readyz_is_503_during_shutdown(serve: Any, bundle: Tuned) -> None:
    """During shutdown /readyz gives 503, and requests are answered and their connections closed."""
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


def test_openapi_describes_bodies_and_refusals(serve: Any, bundle: Tuned) -> None:
    """The OpenAPI document has the bodies, the limit on texts and every refusal's status."""
    running = serve(app(bundle, Held(held=False), most_texts=7))
    described = running.ask(path="/openapi.json", method="GET").json
    post = described["paths"][PATH]["post"]
    assert {"200", "400", "401", "413", "422", "429", "503", "504"} <= set(post["responses"])
    assert list(post["responses"]["429"]["headers"]) == ["Retry-After"]
    one, many = post["requestBody"]["content"]["application/json"]["schema"]["oneOf"]
    assert one["required"] == ["text"]
    assert many["properties"]["texts"]["maxItems"] == 7


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ServiceSettings, "most_bytes", 0),
        (ServiceSettings, "most_texts", True),
        (ServiceSettings, "most_rows", 10),
        (ServiceSettings, "deadline_seconds", math.inf),
        (ServiceSettings, "api_keys", ("",)),
        (ServiceSettings, "api_keys", ("ü",)),
        (ServiceSettings, "body_seconds", -1.0),
    ],
)
def test_bad_settings_are_refused(kind: type[Any], name: str, value: object) -> None:
    """A bad setting raises ConfigurationError that names it."""
    with pytest.raises(ConfigurationError, match="API keys" if name == "api_keys" else name):
        kind(**{name: value})


def test_the_callback_gets_all_predictions(
    serve: Any, bundle: Tuned, caplog: pytest.LogCaptureFixture
) -> None:
    """`on_predictions` gets all predictions; its error is logged, and the request gets 200."""
    seen: list[str | None] = []

    def note(predictions: Sequence[Prediction]) -> None:
        seen.extend(found.label for found in predictions)
        raise RuntimeError("full")

    running = serve(create_classifier_app(bundle, Held(held=False), on_predictions=note))  # type: ignore[arg-type]
    assert ask(running, {"texts": ["a", "b"]}).status == 200
    assert seen == ["cat", "cat"]
    assert "Predictions could not be handed on." in caplog.text


def test_finish_seconds_cover_body_and_deadline() -> None:
    """`finish_seconds` is the sum of the deadline and of `body_seconds`, rounded up."""
    assert ServiceSettings(deadline_seconds=1.5).finish_seconds == 32
    assert ServiceSettings(body_seconds=9.0).finish_seconds == 39
