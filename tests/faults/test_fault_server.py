"""Tests of FaultServer without faults: answers, limits, records, starting and stopping."""

from __future__ import annotations

import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from calibrant.core import ConfigurationError, StateError
from fault_server import FaultServer
from fault_server._limits import RateLimit

LABELS = ["Food", "Rent", "Sports"]


class TestHealthyAnswers:
    def test_an_answer_has_the_shape_of_openai(self, serve: Any, ask: Any) -> None:
        """A healthy answer repeats the model, counts tokens and has the rule's log-probabilities."""
        found = ask(serve({"lunch": ("Food", 0.8)}), "lunch with Ana", model="gpt-x")
        assert (found.status, found.headers["content-type"]) == (200, "application/json")
        assert (found.json["object"], found.json["model"]) == ("chat.completion", "gpt-x")
        assert json.loads(found.content) == {"category": "Food"}
        assert (found.choice["finish_reason"], found.choice["message"]["refusal"]) == ("stop", None)
        assert math.exp(found.reported[1]["logprob"]) == pytest.approx(0.8)
        assert found.json["usage"] == {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}

    def test_cached_answers_count_prompt_tokens(self, serve: Any, ask: Any) -> None:
        """`usage` counts the tokens of the request's own prompt, also where answers are equal."""
        server = serve(default="Food", answers={})
        used = [ask(server, "x" * length).json["usage"] for length in (4, 400)]
        assert used[1]["prompt_tokens"] - used[0]["prompt_tokens"] == 99
        assert all(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in used)

    @pytest.mark.parametrize(
        ("fields", "alternatives"),
        [
            ({"top_logprobs": 2}, 2),
            ({"top_logprobs": 0}, 0),
            ({"logprobs": None, "top_logprobs": None}, None),
        ],
    )
    def test_logprobs_follow_the_request(
        self, serve: Any, ask: Any, fields: Any, alternatives: int | None
    ) -> None:
        """The answer has no log-probabilities, the tokens' own, or as many alternatives as requested."""
        server = serve(lambda _: ("Food", 0.7))
        ask(server, top_logprobs=3)
        found = ask(server, **fields)
        if alternatives is None:
            assert found.choice["logprobs"] is None
        else:
            assert len(found.reported[1]["top_logprobs"]) == alternatives

    @pytest.mark.parametrize(
        ("outcome", "probability"), [("Food", 1.0), (("Food", 0.5), 0.5), ({"Food": 3, "Rent": 1}, 0.75)]
    )
    def test_a_rule_may_say_label_or_probabilities(
        self, serve: Any, ask: Any, outcome: Any, probability: float
    ) -> None:
        """A rule returns a label, a label with its probability, or probabilities."""
        found = ask(serve(lambda _text: outcome))
        assert math.exp(found.reported[1]["logprob"]) == pytest.approx(probability)

    def test_lists_answer_successive_requests(self, serve: Any, ask: Any) -> None:
        """A list of labels answers successive requests in turn, and an error answer takes no turn."""
        server = serve({"lunch": ["Food", "Rent"]}, faults=["500"])
        assert ask(server).status == 500
        assert ["Food" in ask(server).content for _ in range(3)] == [True, False, False]

    def test_ready_responses_are_sent_unchanged(self, serve: Any, ask: Any) -> None:
        """A complete response is sent unchanged."""
        response = {"choices": [{"message": {"content": "no JSON"}}], "odd": 1}
        assert ask(serve(lambda _: response)).json == response

    def test_the_default_rule_finds_labels_in_texts(self, serve: Any, ask: Any) -> None:
        """The default rule answers with the label in the text; other texts get one that stays the same."""
        server = serve()
        assert "Sports" in ask(server, "News about Sports").content
        texts = [f"row {number}" for number in range(30)]
        first = [ask(server, text).choice for text in texts]
        assert first == [ask(server, text).choice for text in texts]
        assert len({choice["message"]["content"] for choice in first}) == 3
        assert len({choice["logprobs"]["content"][1]["logprob"] for choice in first}) > 3

    def test_field_and_tokens_shape_the_answer(self, serve: Any, ask: Any) -> None:
        """The arguments `field` and `tokens` shape the answer."""
        found = ask(serve({"lunch": "Food"}, field="out.kind", tokens="characters"))
        assert json.loads(found.content) == {"out": {"kind": "Food"}}
        assert [token["token"] for token in found.reported[1:6]] == ["F", "o", "o", "d", '"']

    def test_text_may_come_in_parts(self, serve: Any, ask: Any) -> None:
        """A message whose text comes in parts is answered like one text."""
        server = serve({"lunch": "Food"})
        parts = [{"type": "text", "text": "lu"}, {"type": "text", "text": "nch"}]
        assert "Food" in ask(server, messages=[{"role": "user", "content": parts}]).content
        assert server.counts == {"lunch": 1}


class TestRefusals:
    def test_a_missing_or_wrong_key_is_401(self, serve: Any, ask: Any) -> None:
        """A missing or wrong key is answered with 401, and no record holds the key."""
        server = serve(api_key="plain-key")
        wrong: list[dict[str, Any]] = [{}, {"headers": {"Authorization": "Bearer other-key"}}]
        answers = [ask(server, **call) for call in (*wrong, {"path": "/v1/models", "method": "GET"})]
        assert [answer.status for answer in answers] == [401] * 3
        assert answers[0].json["error"]["code"] == "invalid_api_key"
        right = {"Authorization": "Bearer plain-key", "X-Echo": "is plain-key", "X-Other": "kept"}
        assert ask(server, headers=right).status == 200
        assert server.refused == {401: 3}
        assert server.requests[0].headers["x-other"] == "kept"
        assert "plain-key" not in repr(server.requests) + repr(server.stats)
        assert b"key" not in answers[1].body.replace(b"API key", b"").replace(b"invalid_api_key", b"")

    def test_an_unknown_model_is_404(self, serve: Any, ask: Any) -> None:
        """A server that names its models answers 404 for others."""
        server = serve(models=["small"])
        assert ask(server, model="large").json["error"]["code"] == "model_not_found"
        assert ask(server, model="small").status == 200
        listed = ask(server, path="/v1/models", method="GET").json
        assert [model["id"] for model in listed["data"]] == ["small"]

    @pytest.mark.parametrize(
        "raw",
        [b"{", b"\xff", b'{"model": "m"}', b'{"model": "m", "messages": []}'],
    )
    def test_invalid_chat_requests_get_400(self, serve: Any, ask: Any, raw: bytes) -> None:
        """An invalid request gets 400 with what was expected, and is not counted."""
        server = serve()
        found = ask(server, raw=raw)
        assert (found.status, server.refused, server.requests) == (400, {400: 1}, [])
        assert "messages" in found.json["error"]["message"]

    def test_streams_are_refused(self, serve: Any, ask: Any) -> None:
        """A request for a stream gets an error that names the option."""
        assert "stream" in ask(serve(), stream=True).json["error"]["message"]

    def test_other_routes_get_404(self, serve: Any, ask: Any) -> None:
        """Other routes get 404 and are not counted, and /health answers 200."""
        server = serve()
        assert ask(server, path="/health", method="GET").status == 200
        assert ask(server, path="/v1/chat/completions", method="GET").status == 404
        assert ask(server, path="/v1/embeddings").status == 404
        assert server.stats["requests"] == 0

    def test_failing_rules_return_400(self, serve: Any, ask: Any) -> None:
        """A rule that raises an exception is answered with status 400."""
        found = ask(serve({"dinner": "Food"}), "lunch")
        assert (found.status, found.json["error"]["type"]) == (400, "test_error")
        assert "no answer to 'lunch'" in found.json["error"]["message"]


class TestLimits:
    def test_requests_above_the_rate_get_429(self, serve: Any, ask: Any) -> None:
        """A 429 names its wait in seconds and in milliseconds."""
        server = serve(requests_per_second=0.001)
        assert ask(server).status == 200
        refused = ask(server)
        assert server.refused == {429: 1}
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        seconds, milliseconds = (int(refused.headers[name]) for name in ("retry-after", "retry-after-ms"))
        assert 500 < seconds <= 1000
        assert 1000 * (seconds - 1) <= milliseconds <= 1000 * seconds

    def test_the_rate_refills(self) -> None:
        """One second's worth of requests may come at once, and a refused one succeeds after its wait."""
        limit = RateLimit(requests=20.0, tokens=None)
        assert all(limit.take(1, 5.0) <= 0 for _ in range(20))
        wait = limit.take(1, 5.0)
        assert wait == pytest.approx(0.05)
        assert limit.take(1, 5.0 + 0.9 * wait) > 0
        assert limit.take(1, 5.0 + 1.1 * wait) <= 0

    def test_rate_headers_announce_what_is_left(self, serve: Any, ask: Any) -> None:
        """Headers report the remaining requests and tokens, and when they are reset."""
        server = serve(requests_per_second=0.001, tokens_per_second=1000)
        headers = ask(server, "x" * 400).headers
        assert headers["x-ratelimit-limit-requests"] == "1"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"] == "16m40s"
        assert int(headers["x-ratelimit-remaining-tokens"]) == pytest.approx(896, abs=5)
        assert headers["x-ratelimit-reset-tokens"].endswith("ms")
        assert 500 < int(ask(server).headers["retry-after"]) <= 1000

    def test_tokens_are_limited_too(self, serve: Any, ask: Any) -> None:
        """A long prompt uses up the token limit, but passes once even above it."""
        server = serve(tokens_per_second=5)
        assert [ask(server, "x" * 4000).status for _ in range(2)] == [200, 429]
        assert int(ask(server, "x").headers["retry-after"]) > 100

    def test_headers_of_ones_own_are_sent(self, serve: Any, ask: Any) -> None:
        """Own headers are sent, also with errors, and may depend on the number of the request."""
        server = serve(
            headers=lambda number: {"x-ratelimit-remaining-requests": str(5 - number)}, faults=[None, "503"]
        )
        assert [ask(server).headers["x-ratelimit-remaining-requests"] for _ in range(2)] == ["5", "4"]
        assert ask(serve(headers={"x-own": "6m0s"})).headers["x-own"] == "6m0s"

    def test_too_many_requests_at_once_are_429(
        self, serve: Any, ask: Any, raw_call: Any, in_flight: Any
    ) -> None:
        """Requests above `max_concurrency` get 429 until another one ends."""
        server = serve(max_concurrency=2, faults=["hang", "hang"])
        with raw_call(server):
            with raw_call(server):
                in_flight(server, 2)
                refused = ask(server)
            in_flight(server, 1)
            assert ask(server).status == 200
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (server.max_in_flight, server.refused) == (2, {429: 1})


class TestRecords:
    def test_requests_are_recorded_by_arrival(self, serve: Any, ask: Any) -> None:
        """Records have number, text, JSON, time and fault, and counts go by text."""
        server = serve(faults=[None, "500"])
        begun = time.monotonic()
        for text in ("a", "b", "a"):
            ask(server, text)
        found = server.requests
        assert [(request.number, request.text) for request in found] == [(0, "a"), (1, "b"), (2, "a")]
        assert [request.fault and request.fault.kind for request in found] == [None, "500", None]
        assert found[0].body["messages"][-1] == {"role": "user", "content": "a"}
        times = [begun, *(request.arrived for request in found), time.monotonic()]
        assert times == sorted(times)
        assert server.counts == {"a": 2, "b": 1}

    def test_concurrent_requests_are_all_counted(self, serve: Any, ask: Any) -> None:
        """All requests are counted while another thread reads the counts."""
        server = serve(latency=0.1)
        seen = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen.append((len(server.requests), sum(server.counts.values()), server.stats["requests"]))

        reader = threading.Thread(target=read)
        reader.start()
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda number: ask(server, f"row {number}"), range(60)))
        done.set()
        reader.join()
        assert len(server.requests) == sum(server.counts.values()) == 60
        assert 5 < server.max_in_flight <= 20
        assert all(list(column) == sorted(column) for column in zip(*seen, strict=True))

    def test_kept_requests_may_be_limited(self, serve: Any, ask: Any) -> None:
        """With a limit on kept requests the counts stay complete."""
        server = serve(keep_requests=2)
        for number in range(5):
            ask(server, f"row {number}")
        assert [request.number for request in server.requests] == [3, 4]
        assert len(server.counts) == 5

    def test_stats_are_served_over_http(self, serve: Any, ask: Any) -> None:
        """The route /stats returns the numbers of `stats`."""
        server = serve(faults=["500", "503", "500"], models=["m"])
        for text in ("a", "b", "b", "b"):
            ask(server, text)
        ask(server, model="unknown")
        found = ask(server, path="/stats", method="GET").json
        assert found == server.stats
        assert (found["requests"], found["healthy"]) == (4, 1)
        assert (found["texts"], found["most_of_one_text"]) == (2, 3)
        assert (found["faults"], found["refused"]) == ({"500": 2, "503": 1}, {"404": 1})


class TestLifetime:
    def test_stopped_servers_can_start_again(self, ask: Any) -> None:
        """A restarted server has the same port and its earlier records."""
        server = FaultServer(LABELS)
        with server:
            port = server.port
            ask(server)
        with pytest.raises(ConnectionRefusedError):
            ask(server)
        with server:
            assert (server.port, ask(server).status) == (port, 200)
        assert server.counts == {"lunch": 2}
        server.stop()

    def test_stopping_does_not_wait_for_requests(self, raw_call: Any, in_flight: Any) -> None:
        """Stopping does not wait even for a hanging request."""
        with FaultServer(LABELS, faults=["hang"]) as server, raw_call(server) as line:
            in_flight(server, 1)
            server.stop()  # the request hangs without end
            assert line.recv(100) == b""
        assert server.in_flight == 0

    def test_used_ports_are_errors(self, serve: Any) -> None:
        """A running server and a taken port raise errors that name the port."""
        server = serve()
        with pytest.raises(StateError, match=str(server.port)):
            server.start()
        with pytest.raises(ConfigurationError, match=f"Port {server.port}"):
            FaultServer(LABELS, port=server.port).start()

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("latency", math.nan),
            ("max_concurrency", 0),
            ("keep_requests", -1),
            ("requests_per_second", 0.0),
            ("tokens", "words"),
            ("illegal_mass", 1.0),
        ],
    )
    def test_parameters_out_of_range_raise_an_error(self, name: str, value: Any) -> None:
        """A parameter out of range raises ConfigurationError at construction."""
        with pytest.raises(ConfigurationError, match=name):
            FaultServer(LABELS, **{name: value})
