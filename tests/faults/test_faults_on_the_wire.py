"""Tests of every fault in the bytes that a server sends."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import time
from typing import Any

import pytest

from fault_server import Fault


def head_and_body(data: bytes) -> tuple[bytes, bytes]:
    """Return head and body of an HTTP answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


def length_of(head: bytes) -> int:
    """Return the content length in an answer's head."""
    return int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0])


class TestErrorAnswers:
    @pytest.mark.parametrize(
        ("status", "code"),
        [(401, "invalid_api_key"), (404, "model_not_found"), (429, "rate_limit_exceeded"), (503, None)],
    )
    def test_a_status_comes_with_an_error_object(
        self, serve: Any, ask: Any, status: int, code: str | None
    ) -> None:
        """A status fault sends OpenAI's error object, whose message can be set."""
        server = serve(faults=[str(status), Fault(str(status), message="of one's own")])
        found = ask(server)
        assert found.status == status
        assert found.json["error"]["code"] == code
        assert found.json["error"]["message"]
        assert "retry-after" not in found.headers
        assert ask(server).json["error"]["message"] == "of one's own"

    @pytest.mark.parametrize(("seconds", "sent"), [(None, "1"), (2, "2"), (0.25, "0.25")])
    def test_a_rate_limit_names_seconds(self, serve: Any, ask: Any, seconds: float | None, sent: str) -> None:
        """The header Retry-After holds the seconds."""
        found = ask(serve(faults=[Fault("rate_limit", seconds=seconds)]))
        assert (found.status, found.headers["retry-after"]) == (429, sent)

    def test_a_prompt_too_long_has_its_code(self, serve: Any, ask: Any) -> None:
        """The error for a long prompt has OpenAI's code and words."""
        found = ask(serve(faults=["context_length"]))
        assert (found.status, found.json["error"]["code"]) == (400, "context_length_exceeded")
        assert "maximum context length" in found.json["error"]["message"]

    @pytest.mark.parametrize(("status", "sent"), [(None, 502), (200, 200)])
    def test_a_proxy_answers_in_html(self, serve: Any, ask: Any, status: int | None, sent: int) -> None:
        """The fault "html" sends an HTML page with the given status."""
        found = ask(serve(faults=[Fault("html", status=status)]))
        assert (found.status, found.headers["content-type"]) == (sent, "text/html; charset=utf-8")
        assert found.body.startswith(b"<!DOCTYPE html>")


class TestConnections:
    def test_a_reset_before_headers_sends_nothing(self, serve: Any, raw_call: Any) -> None:
        """The connection is reset by RST before any byte."""
        with raw_call(serve(faults=["reset_before_headers"])) as line, pytest.raises(ConnectionResetError):
            line.recv(1)

    def test_late_resets_leave_half_a_body(self, serve: Any, raw_call: Any) -> None:
        """The connection is reset after half of the promised body."""
        data = b""
        with (
            raw_call(serve(faults=["reset_after_headers"])) as line,
            contextlib.suppress(ConnectionResetError),
        ):
            while piece := line.recv(65536):
                data += piece
            pytest.fail("The connection ended in good order.")
        head, body = head_and_body(data)
        assert head.startswith(b"HTTP/1.1 200")
        assert len(body) == length_of(head) // 2

    def test_hanging_ends_with_the_connection(self, serve: Any, raw_call: Any) -> None:
        """The server sends nothing for the given time and then closes the connection."""
        begun = time.monotonic()
        with raw_call(serve(faults=["hang:0.3"])) as line:
            assert line.recv(1) == b""
        assert time.monotonic() - begun > 0.29

    def test_endless_hanging_ends_with_the_client(
        self, serve: Any, ask: Any, raw_call: Any, in_flight: Any
    ) -> None:
        """The request is in flight until the client closes, and others are answered meanwhile."""
        server = serve(faults=["hang"])
        with raw_call(server) as line:
            line.settimeout(0.2)
            with pytest.raises(TimeoutError):
                line.recv(1)
            assert server.in_flight == 1
            assert ask(server).status == 200
        in_flight(server, 0)

    def test_slow_answers_come_in_pieces(self, serve: Any, ask: Any, raw_call: Any) -> None:
        """The pieces of a slow answer are spread over the given time."""
        server = serve(faults=["slow_drip:0.5"])
        data, pieces, begun = b"", 0, time.monotonic()
        with raw_call(server) as line:
            while not data or len(head_and_body(data)[1]) < length_of(data):
                data += line.recv(65536)
                pieces += 1
        assert time.monotonic() - begun > 0.45
        assert pieces > 10
        assert json.loads(head_and_body(data)[1])["choices"] == ask(server).json["choices"]

    def test_connections_survive_broken_bodies(self, serve: Any) -> None:
        """The connection stays open after a broken body."""
        server = serve(faults=["truncated", "500", "html", None])
        ports = set()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as line:
            for _ in range(4):
                line.request(
                    "POST", "/v1/chat/completions", b'{"model": "m", "messages": [{"role": "user"}]}'
                )
                ports.add(line.sock.getsockname()[1])
                line.getresponse().read()
        assert len(server.requests) == 4
        assert len(ports) == 1


class TestBodies:
    def test_truncated_json_looks_complete_to_http(self, serve: Any, ask: Any) -> None:
        """Half of the JSON is sent with status 200 and its own length."""
        server = serve(faults=["truncated"])
        broken, whole = ask(server), ask(server)
        assert broken.status == 200
        assert broken.body == whole.body[: len(whole.body) // 2]
        with pytest.raises(json.JSONDecodeError):
            json.loads(broken.body)

    def test_parts_of_an_answer_may_be_missing(self, serve: Any, ask: Any) -> None:
        """An answer without choices or log-probabilities keeps its other parts."""
        server = serve({"lunch": "Food"}, faults=["empty_choices", "no_logprobs"])
        empty, bare = ask(server), ask(server)
        assert (empty.status, empty.json["choices"], empty.json["model"]) == (200, [], "m")
        assert bare.choice["logprobs"] is None
        assert json.loads(bare.content) == {"category": "Food"}

    @pytest.mark.parametrize(("message", "start"), [(None, "I'm sorry"), ("No.", "No.")])
    def test_a_refusal_has_no_content(self, serve: Any, ask: Any, message: str | None, start: str) -> None:
        """The content of a refusal is null."""
        found = ask(serve(faults=[Fault("refusal", message=message)]))
        assert found.content is None
        assert found.choice["message"]["refusal"].startswith(start)

    @pytest.mark.parametrize("tokens", ["label", "characters"])
    @pytest.mark.parametrize("fields", [{}, {"logprobs": None}])
    def test_answers_are_cut_by_length(self, serve: Any, ask: Any, tokens: str, fields: Any) -> None:
        """A cut answer ends between two tokens, and its text, tokens and usage agree."""
        found = ask(serve({"lunch": "Food"}, faults=["length"], tokens=tokens), **fields)
        assert found.choice["finish_reason"] == "length"
        assert found.content == ('{"category": "' if tokens == "label" else '{"category": "Fo')
        assert found.json["usage"]["completion_tokens"] == (1 if tokens == "label" else 3)
        if fields:
            assert found.choice["logprobs"] is None
        else:
            assert "".join(token["token"] for token in found.reported) == found.content

    def test_logprobs_may_be_missing(self, serve: Any, ask: Any) -> None:
        """The answer has no log-probabilities, though the request wants them."""
        found = ask(serve({"lunch": "Food"}, faults=["no_logprobs"]))
        assert found.choice["logprobs"] is None
        assert json.loads(found.content) == {"category": "Food"}

    @pytest.mark.parametrize(
        ("kind", "wrong"), [("nan_logprobs", math.isnan), ("positive_logprobs", lambda value: value > 0)]
    )
    def test_logprobs_may_be_none_at_all(self, serve: Any, ask: Any, kind: str, wrong: Any) -> None:
        """Invalid log-probabilities replace those of tokens and alternatives alike."""
        found = ask(serve(lambda _: ("Food", 0.8), faults=[kind]))
        values = [
            reported["logprob"] for token in found.reported for reported in (token, *token["top_logprobs"])
        ]
        assert len(values) > 5
        assert all(wrong(value) for value in values)

    def test_a_ready_response_can_be_broken_too(self, serve: Any, ask: Any) -> None:
        """A fault changes a copy of a ready response, and the next answer is the original."""
        response = {"choices": [{"message": {"content": "abcd", "refusal": None}, "finish_reason": "stop"}]}
        server = serve(lambda _: response, faults=["length", "nan_logprobs"])
        assert (ask(server).content, ask(server).content) == ("ab", "abcd")
        assert ask(server).json == response
