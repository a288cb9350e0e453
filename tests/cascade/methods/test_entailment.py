"""Tests of AutoMixEntailment with verifiers that are down, slow, broken or inconsistent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from calibrant.cascade import Answered, Assessment, AutoMixEntailment, NoEvidence, Verifier
from calibrant.core import ConfigurationError, ContextLengthError, Prediction, ProviderError, Usage
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeClient
from loopback import LoopbackServer

HONEST = {
    "confidence": 0.75,
    "should_escalate": False,
    "verified_count": 6,
    "total_samples": 8,
    "samples": ["correct"] * 6 + ["incorrect"] * 2,
    "threshold": 0.7,
}


class VerifierServer(LoopbackServer):
    """Server that answers with `reply`: a JSON value, a text, or the response of a handler."""

    def __init__(self) -> None:
        self.reply: Any = HONEST
        self.status = 200
        self.first: list[tuple[int, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.connections: set[Any] = set()
        super().__init__()

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        self.paths.append(f"{request.method} {request.path}")
        self.connections.add(request.transport)
        status, reply = self.first.pop(0) if self.first else (self.status, self.reply)
        if callable(reply):
            found: web.StreamResponse = await reply(request)
            return found
        text = reply if isinstance(reply, str) else json.dumps(reply)
        kind = "text/html" if isinstance(reply, str) else "application/json"
        return web.Response(text=text, status=status, content_type=kind)


@pytest.fixture
def server() -> Iterator[VerifierServer]:
    """Return a verifier that confirms 6 of 8 samples."""
    running = VerifierServer()
    yield running
    running.stop()


async def no_sleep(_: float) -> None:
    """Replace sleeping."""


QUICK = RetryPolicy(attempts=3, sleep=no_sleep)


def answered(*, prompt: str = "", context: str | None = None, template: str | None = None) -> Answered:
    """Return an answer to judge."""
    model = FakeClient(["cat", "dog"], {"purrs": "cat"})
    classifier = Classifier(
        model=model, labels=["cat", "dog"], field="category", prompt=prompt, user_template=template
    )
    return Answered(
        question="It purrs.",
        prediction=Prediction(label="cat", confidence=0.9),
        classifier=classifier,
        context=context,
    )


def assess(
    server: VerifierServer | str, what: Answered | None = None, **options: Any
) -> Assessment | NoEvidence:
    """Return the result of one assessment."""
    url = server if isinstance(server, str) else server.root
    method = AutoMixEntailment(url, **{"retry": QUICK, **options})

    async def once() -> Assessment | NoEvidence:
        try:
            return await method.assess(what or answered())
        finally:
            method.close()

    return asyncio.run(once())


def confirmed(server: VerifierServer, **options: Any) -> Assessment:
    """Return the assessment, or fail the test if there is no evidence."""
    found = assess(server, **options)
    assert isinstance(found, Assessment), found
    return found


def refused(server: VerifierServer | str, **options: Any) -> NoEvidence:
    """Return the reason why there is no evidence."""
    found = assess(server, **options)
    assert isinstance(found, NoEvidence)
    return found


def test_settings_are_kept() -> None:
    """A threshold of 0 is kept, and the description has the address."""
    method = AutoMixEntailment("http://127.0.0.1:8889", threshold=0)
    assert method.default_threshold == 0.0
    assert json.loads(json.dumps(method.describe()))["url"] == "http://127.0.0.1:8889/verify"


def test_the_verifiers_share_is_the_confidence(server: VerifierServer) -> None:
    """The share of confirming samples is the confidence after one call to /verify."""
    found = confirmed(server)
    assert (found.confidence, found.native, found.attempts) == (0.75, 0.75, 1)
    assert found.reason == "6 of 8 samples found the answer correct"
    assert server.paths == ["POST /verify"]
    assert server.asked == [{"question": "It purrs.", "answer": "cat", "threshold": 0.7}]


def test_context_and_task_are_sent(server: VerifierServer) -> None:
    """The request holds the task, the template and the context, where there are any."""
    what = answered(prompt="Which animal?", context="Cats purr.", template="Text: {input}")
    assess(server, what)
    assess(server, answered(context="Cats purr."), threshold=0.25)
    first, second = server.asked
    assert first["question"] == "Which animal?\n\nText: It purrs."
    assert second["question"] == "It purrs."
    assert first["context"] == second["context"] == "Cats purr."
    assert (first["threshold"], second["threshold"]) == (0.7, 0.25)


def test_addresses_may_end_with_the_route(server: VerifierServer) -> None:
    """A path before the route is kept, and /verify is added once."""
    assess(f"{server.root}/verify")
    assess(f"{server.root}/")
    assess(f"{server.root}/behind/proxy")
    assert server.paths == ["POST /verify", "POST /verify", "POST /behind/proxy/verify"]


def test_reported_usage_is_counted(server: VerifierServer) -> None:
    """Tokens of refused calls are added to those of the answer."""
    used = {"prompt_tokens": 100, "completion_tokens": 8, "cost": 0.25}
    server.first = [(503, {"error": "no verdict", "usage": used})]
    server.reply = {**HONEST, "usage": used}
    found = confirmed(server)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.cost) == (200, 16, 0.5)
    assert found.attempts == 2


@pytest.mark.parametrize(
    "used", [None, 7, {"prompt_tokens": -1, "completion_tokens": "8", "cost": float("nan")}, {"cost": -1}]
)
def test_senseless_usage_is_ignored(server: VerifierServer, used: object) -> None:
    """A reported usage that is no count counts as none, and the confidence stays."""
    server.reply = {**HONEST, "usage": used}
    assert confirmed(server).usage == Usage()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"confidence": 7}, "in [0, 1], got 7"),
        ({"confidence": float("nan")}, "in [0, 1], got nan"),
        ({"confidence": "x" * 100_000}, "in [0, 1], got 'xxx"),
        ({"verified_count": 5}, "contradict each other"),
        ({"confidence": 0.76}, "contradict each other"),
        ({"verified_count": 9}, "not below the first"),
        ({"verified_count": -6}, "whole numbers"),
        ({"total_samples": 0}, "whole numbers"),
    ],
)
def test_inconsistent_replies_are_no_evidence(
    server: VerifierServer, change: dict[str, Any], reason: str
) -> None:
    """A reply that contradicts itself gives a short reason after a single call."""
    server.reply = {**HONEST, **change}
    found = refused(server)
    assert reason in found.reason
    assert len(found.reason) < 300
    assert found.attempts == 1


@pytest.mark.parametrize(
    ("reply", "confidence"),
    [
        ({"confidence": 0.667, "verified_count": 2, "total_samples": 3}, 0.667),
        ({"confidence": 0.67, "verified_count": 2, "total_samples": 3}, 0.67),
        ({"confidence": 1, "verified_count": 8, "total_samples": 8}, 1.0),
        ({"confidence": 0.4}, 0.4),
    ],
)
def test_rounded_numbers_are_believed(server: VerifierServer, reply: Any, confidence: float) -> None:
    """A confidence that is rounded, or comes without counts, is accepted."""
    server.reply = reply
    assert confirmed(server).confidence == confidence


@pytest.mark.parametrize(("advice", "threshold", "told"), [(True, 0.7, "escalate"), (False, 0.8, "accept")])
def test_contradicting_advice_is_reported(
    server: VerifierServer, advice: bool, threshold: float, told: str
) -> None:
    """Advice against the service's own confidence is ignored, and the reason says so."""
    server.reply = {**HONEST, "should_escalate": advice, "threshold": threshold}
    found = confirmed(server)
    assert found.confidence == 0.75
    assert f"it says {told}, which contradicts" in found.reason


def test_advice_at_the_threshold_accepts(server: VerifierServer) -> None:
    """A confidence at the threshold agrees with the service's advice to accept."""
    server.reply = {**HONEST, "threshold": 0.75}
    assert "contradicts" not in confirmed(server).reason


@pytest.mark.parametrize("reply", ["<html>secret-page</html>", "[1, 2]", "", '{"confidence": 0.7', "7"])
def test_replies_without_object_are_no_evidence(server: VerifierServer, reply: str) -> None:
    """A reply that is no JSON object is counted in bytes and not shown."""
    server.reply = reply
    found = refused(server)
    assert "expected a JSON object" in found.reason
    assert f"{len(reply)} bytes" in found.reason
    assert "secret-page" not in found.reason
    assert found.attempts == 3


@pytest.mark.parametrize(
    ("status", "attempts"), [(500, 3), (503, 3), (429, 3), (400, 1), (404, 1), (413, 1), (302, 1)]
)
def test_statuses_are_reported_with_body_size(server: VerifierServer, status: int, attempts: int) -> None:
    """The reason has the status and the size of the page, and not its text."""
    server.status, server.reply = status, "sk-secret-key " * 10
    found = refused(server)
    assert f"status {status} and 140 bytes" in found.reason
    assert "secret" not in found.reason
    assert found.attempts == attempts == len(server.asked)


def test_passing_faults_are_retried(server: VerifierServer) -> None:
    """The answer after two passing faults counts three calls."""
    server.first = [(500, "oops"), (200, "<html>")]
    found = confirmed(server)
    assert (found.confidence, found.attempts) == (0.75, 3)


def test_a_server_that_is_down_is_no_evidence() -> None:
    """A server that is down is retried, and the reason has its address."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as line:
        port = line.getsockname()[1]
    found = refused(f"http://127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in found.reason.replace(", ", ":")
    assert found.attempts == 3


def test_slow_servers_time_out(server: VerifierServer) -> None:
    """Every call has its own time limit."""

    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    server.reply = hang
    found = refused(server, timeout_seconds=0.05, retry=RetryPolicy(attempts=2, sleep=no_sleep))
    assert "no complete answer within 0.05 seconds" in found.reason
    assert found.attempts == 2


def test_three_calls_by_default_keep_retry_after(server: VerifierServer) -> None:
    """A row makes at most three calls by default, and waits as Retry-After says."""
    waited: list[float] = []

    async def note(seconds: float) -> None:
        waited.append(seconds)

    async def busy(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": "7"})

    assert AutoMixEntailment(server.root)._service._retry.attempts == 3
    server.first = [(0, busy)]
    confirmed(server, retry=RetryPolicy(sleep=note))
    assert waited == [7.0]


def test_zero_seconds_stand_for_sixty() -> None:
    """A timeout of 0 seconds means 60, as in the looper."""
    for given in (0, 60):
        method = AutoMixEntailment("http://h", timeout_seconds=given)
        assert method._service._http._timeout == 60.0


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        await response.write(b'{"confidence": 1, "samples": "')
        for _ in range(800):
            await response.write(b"x" * 2**16)
    return response


def test_fifty_megabytes_are_not_read(server: VerifierServer) -> None:
    """A reply of more than 1 MB is no evidence."""
    server.reply = _endless
    assert "at most 1 MB" in refused(server, retry=RetryPolicy(attempts=1)).reason


@pytest.mark.parametrize("url", ["", None])
def test_an_empty_address_is_refused(url: Any) -> None:
    """An empty address raises ConfigurationError that names the command to start a verifier."""
    with pytest.raises(ConfigurationError, match="calibrant verifier serve"):
        AutoMixEntailment(url)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8889",
        "ftp://host",
        "http://host:99999",
        "http://ho st",
        "http://host/\u200b",
        "http://user:hunter2@host",
        "http://host/?key=hunter2",
        "http://host/#hunter2",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    """Any other address raises ConfigurationError without showing credentials."""
    with pytest.raises(ConfigurationError, match="Expected the address of the verifier") as caught:
        AutoMixEntailment(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h", "https://verify.example:443/x", "http://[::1]:8889"])
def test_service_addresses_are_accepted(url: str) -> None:
    """Addresses with a port, a path or an IPv6 host are accepted."""
    assert AutoMixEntailment(url).url == f"{url}/verify"


@pytest.mark.parametrize("options", [{"threshold": 1.5}, {"timeout_seconds": -1}])
def test_settings_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """A setting out of range raises ConfigurationError with its name."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        AutoMixEntailment("http://h", **options)


def test_the_native_unit_is_the_share() -> None:
    """A native value is a share, which is the confidence."""
    method = AutoMixEntailment("http://h")
    assert [method.to_confidence(value) for value in (0, 0.3, 1)] == [0.0, 0.3, 1.0]


def test_each_event_loop_has_one_session(server: VerifierServer) -> None:
    """Calls of one event loop share a connection."""
    method = AutoMixEntailment(server.root, retry=QUICK)

    async def twice() -> None:
        for _ in range(2):
            assert isinstance(await method.assess(answered()), Assessment)

    asyncio.run(twice())
    assert len(server.connections) == 1
    asyncio.run(twice())
    assert len(server.connections) == 2
    method.close()


# --- in this process -----------------------------------------------------------------------------

WORDS = ["correct", "incorrect"]


def in_process(
    *votes: str, failures: dict[int, Exception] | None = None
) -> tuple[AutoMixEntailment, FakeClient]:
    """Return a method whose verifier's samples say this, and the verifier's model."""
    left = iter(votes)
    model = FakeClient(WORDS, lambda _: next(left), field="verdict", failures=failures)
    verifier = Verifier(model, k=len(votes), retry=RetryPolicy(attempts=1))
    return AutoMixEntailment(verifier=verifier), model


def test_a_local_verifier_needs_no_service() -> None:
    """A verifier in this process gets the same texts as a server, and its calls are counted."""
    method, model = in_process("correct", "correct", "incorrect", "correct")
    found = asyncio.run(method.assess(answered(prompt="Which animal?", context="Cats purr.")))
    assert isinstance(found, Assessment)
    assert (found.confidence, found.native, found.attempts) == (0.75, 0.75, 4)
    assert found.reason == "3 of 4 samples found the answer correct"
    for said in ('"Which animal?\\n\\nIt purrs."', '"cat"', '"Cats purr."'):
        assert said in model.requests[0].messages[-1]["content"]
    assert method.url is None
    method.close()
    assert not model.closed


@pytest.mark.parametrize(
    "fault", [ProviderError("is down.", provider="fake"), ContextLengthError("too long.", provider="fake")]
)
def test_a_verifier_without_a_verdict_is_no_evidence(fault: Exception) -> None:
    """A verifier whose calls fail, or whose question does not fit, gives the fault as the reason."""
    method, _ = in_process("correct", "correct", failures={0: fault, 1: fault})
    found = asyncio.run(method.assess(answered()))
    assert isinstance(found, NoEvidence)
    assert str(fault) in found.reason


def test_verifiers_are_told_apart() -> None:
    """Two verifiers with different settings have different descriptions."""
    first, second = in_process("correct")[0], in_process("correct", "correct")[0]
    assert first.describe() != second.describe()
    assert "url" not in first.describe()


@pytest.mark.parametrize(
    "options", [{}, {"url": ""}, {"verifier": "small"}, {"url": "http://127.0.0.1:9", "verifier": "both"}]
)
def test_one_verifier_is_needed(options: dict[str, Any]) -> None:
    """Both an address and a `Verifier`, or neither, raise ConfigurationError."""
    if options.get("verifier") == "both":
        options = {**options, "verifier": in_process("correct")[0].verifier}
    with pytest.raises(ConfigurationError, match="verifier"):
        AutoMixEntailment(**options)


def test_many_questions_at_once_are_all_answered(server: VerifierServer) -> None:
    """Fifty concurrent questions get fifty answers."""
    method = AutoMixEntailment(server.root, retry=QUICK)

    async def all_of_them() -> list[Assessment | NoEvidence]:
        try:
            return await asyncio.gather(*(method.assess(answered()) for _ in range(50)))
        finally:
            method.close()

    assert all(isinstance(found, Assessment) for found in asyncio.run(all_of_them()))
    assert len(server.asked) == 50
