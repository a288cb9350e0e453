"""Tests of `read_completion`: every provider's answer becomes the same completion."""

from __future__ import annotations

import copy
import enum
import json
import math
import os
import re
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from calibrant.core import Completion, DataError, Token, Usage
from calibrant.logprobs import read_completion

TEXT = '{"category": "é"}'
CUT = "é".encode()


def entry(token: str, raw: bytes | None, logprob: Any) -> dict[str, Any]:
    """Return one reported token."""
    return {"token": token, "bytes": None if raw is None else list(raw), "logprob": logprob}


def openai_body() -> dict[str, Any]:
    """Return an OpenAI answer whose label is cut inside a character."""
    content = [
        {**entry('{"category": "', b'{"category": "', 0.0), "top_logprobs": []},
        {
            **entry("\\xc3", CUT[:1], -0.5),
            "top_logprobs": [entry("\\xc3", CUT[:1], -0.5), entry("e", b"e", -1.0)],
        },
        {**entry("\\xa9", CUT[1:], 0.0), "top_logprobs": [entry("\\xa9", CUT[1:], 0.0)]},
        {**entry('"}', None, 0), "top_logprobs": None},
    ]
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    return {
        "model": "gpt-x-2026",
        "choices": [{"message": message, "logprobs": {"content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 4},
    }


def openai(**changes: Any) -> dict[str, Any]:
    """Return the OpenAI answer with other tokens (`content`), `logprobs`, `message` or parts of its body."""
    body = openai_body()
    choice = body["choices"][0]
    if "content" in changes:
        choice["logprobs"] = {"content": changes.pop("content")}
    choice |= {name: changes.pop(name) for name in ("logprobs", "finish_reason") if name in changes}
    choice["message"] |= changes.pop("message", {})
    return body | changes


def tokens_of(body: Any) -> list[Any]:
    """Return the reported tokens of an OpenAI answer."""
    found: list[Any] = body["choices"][0]["logprobs"]["content"]
    return found


def namespace(node: Any) -> Any:
    """Return `node` with attribute access."""
    if isinstance(node, dict):
        return SimpleNamespace(**{key: namespace(value) for key, value in node.items()})
    return [namespace(item) for item in node] if isinstance(node, list) else node


OPENAI = Completion(
    text=TEXT,
    tokens=(
        Token(b'{"category": "', 0.0),
        Token(CUT[:1], -0.5, ((CUT[:1], -0.5), (b"e", -1.0))),
        Token(CUT[1:], 0.0, ((CUT[1:], 0.0),)),
        Token(b'"}', 0.0),
    ),
    finish_reason="stop",
    model="gpt-x-2026",
    usage=Usage(prompt_tokens=12, completion_tokens=4),
)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda body: body,
        namespace,
        lambda body: {"custom_id": "1", "response": {"status_code": 200, "body": body}, "error": None},
        lambda body: {"response": body},
    ],
    ids=["dict", "object", "batch line", "wrapped"],
)
def test_every_openai_shape_reads_alike(wrap: Any) -> None:
    """Dicts, SDK objects and batch lines of OpenAI give equal completions."""
    assert read_completion(wrap(openai_body())) == OPENAI


def test_a_completion_is_returned_as_it_is() -> None:
    """A clean completion is returned as the same object."""
    assert read_completion(OPENAI) is OPENAI


def test_plain_text_has_no_tokens() -> None:
    """A plain text becomes a completion without tokens."""
    assert read_completion(TEXT) == Completion(text=TEXT)


def test_openai_sdk_objects_are_read() -> None:
    """An object of OpenAI's SDK gives the same completion as its dict."""
    body = openai_body() | {"id": "1", "created": 1, "object": "chat.completion"}
    body["choices"][0]["index"] = 0
    body["usage"]["total_tokens"] = 16
    for item in tokens_of(body):
        item["top_logprobs"] = item["top_logprobs"] or []
    assert read_completion(ChatCompletion.model_validate(body)) == OPENAI


@pytest.mark.filterwarnings("ignore")
def test_litellm_objects_are_read_with_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of a litellm response is read from its hidden parameters."""
    monkeypatch.setitem(os.environ, "LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    body = openai_body()
    for item in tokens_of(body):
        item["top_logprobs"] = item["top_logprobs"] or []
    response = litellm.ModelResponse(**body)
    response._hidden_params["response_cost"] = 0.25
    found = read_completion(response)
    assert found.tokens == OPENAI.tokens
    assert found.usage == Usage(prompt_tokens=12, completion_tokens=4, cost=0.25)


class FinishReason(enum.Enum):
    """Has the members of google-genai's finish reason."""

    STOP = "STOP"
    SAFETY = "SAFETY"


VERTEX = {
    "candidates": [
        {
            "content": {
                "parts": [{"text": "Let me think.", "thought": True}, {"text": '{"c": '}, {"text": '"A"}'}]
            },
            "finishReason": "STOP",
            "logprobsResult": {
                "chosenCandidates": [
                    {"token": '{"c": "', "logProbability": 0},
                    {"token": "A", "logProbability": -0.25},
                    {"token": '"}', "logProbability": -1e-9},
                ],
                "topCandidates": [{}, {"candidates": [{"token": "B", "logProbability": -1.5}]}],
            },
        }
    ],
    "modelVersion": "gemini-x",
    "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 7},
}
GOOGLE = Completion(
    text='{"c": "A"}',
    tokens=(Token(b'{"c": "', 0.0), Token(b"A", -0.25, ((b"B", -1.5),)), Token(b'"}', -1e-9)),
    finish_reason="stop",
    model="gemini-x",
    usage=Usage(prompt_tokens=5, completion_tokens=10),
)


def google_object() -> Any:
    """Return the answer as google-genai's object, with an enum member as the finish reason."""
    snake = re.sub(r'"\w+":', lambda key: re.sub("[A-Z]", r"_\g<0>", key[0]).lower(), json.dumps(VERTEX))
    found = namespace(json.loads(snake))
    found.candidates[0].finish_reason = FinishReason.STOP
    found.prompt_feedback = None
    return found


@pytest.mark.parametrize("response", [google_object(), VERTEX, {"response": VERTEX, "status": ""}])
def test_every_google_shape_reads_alike(response: Any) -> None:
    """SDK objects and Vertex batch dicts give equal completions, without the model's thoughts."""
    assert read_completion(response) == GOOGLE


def test_google_finish_reasons_get_openai_names() -> None:
    """Google's finish reasons become OpenAI's; a safety stop without text becomes a refusal."""
    cut = copy.deepcopy(VERTEX)
    cut["candidates"][0]["finishReason"] = "MAX_TOKENS"
    assert read_completion(cut).finish_reason == "length"
    stopped = {"candidates": [{"finishReason": "SAFETY"}]}
    found = read_completion(stopped)
    assert (found.text, found.finish_reason, found.refusal) == ("", "content_filter", "blocked: SAFETY")
    blocked = read_completion({"promptFeedback": {"blockReason": "OTHER"}})
    assert blocked.refusal == "blocked: OTHER"


def test_a_refusal_is_kept() -> None:
    """OpenAI's refusal is kept in the completion."""
    found = read_completion(openai(message={"content": None, "refusal": "I cannot do that."}))
    assert (found.refusal, found.text) == ("I cannot do that.", "")


def test_content_in_parts_is_joined() -> None:
    """Content in parts is joined to one text."""
    parts = [{"type": "text", "text": TEXT[:5]}, {"text": TEXT[5:]}]
    assert read_completion(openai(message={"content": parts})) == OPENAI


def test_without_bytes_the_text_is_encoded() -> None:
    """A token without bytes gets the UTF-8 of its text."""
    content = [{"token": TEXT, "logprob": -1}, {"token": "\ud83d", "logprob": 0.0}]
    assert read_completion(openai(content=content)).tokens == (
        Token(TEXT.encode(), -1.0),
        Token(b"\xed\xa0\xbd", 0.0),
    )


@pytest.mark.parametrize("raw", [[300], "text", [], ["a"], 7, {}])
def test_invalid_bytes_fall_back_to_text(raw: Any) -> None:
    """Invalid bytes are replaced by the text's UTF-8."""
    top = [{"token": "y", "bytes": raw, "logprob": -2.0}]
    item = {"token": "x", "bytes": raw, "logprob": -1.0, "top_logprobs": top}
    assert read_completion(openai(content=[item])).tokens == (Token(b"x", -1.0, ((b"y", -2.0),)),)


@pytest.mark.parametrize("logprobs", [None, {}, {"content": None}, {"content": []}, {"content": 7}, 7])
def test_missing_log_probabilities_leave_no_tokens(logprobs: Any) -> None:
    """An answer without log-probabilities keeps its text and has no tokens."""
    found = read_completion(openai(logprobs=logprobs))
    assert (found.tokens, found.text) == (None, TEXT)


@pytest.mark.parametrize("bad", [None, math.nan, 1e-3, math.inf, "-1", True, [1]])
@pytest.mark.parametrize("where", ["token", 0, 1])
@pytest.mark.parametrize("wrap", [lambda body: body, namespace], ids=["dict", "object"])
def test_one_unusable_log_probability_drops_the_evidence(bad: Any, where: str | int, wrap: Any) -> None:
    """A null, NaN, positive or non-numeric log-probability drops all tokens."""
    body = openai_body()
    item = tokens_of(body)[1]
    (item if isinstance(where, str) else item["top_logprobs"][where])["logprob"] = bad
    found = read_completion(wrap(body))
    assert (found.tokens, found.text) == (None, TEXT)


@pytest.mark.parametrize("items", [[None], ["x"], [{"logprob": -1.0}], [{"token": "x"}]])
def test_tokens_of_unknown_shape_drop_the_evidence(items: Any) -> None:
    """A token without text, bytes or number drops all tokens."""
    assert read_completion(openai(content=items)).tokens is None
    body = openai_body()
    tokens_of(body)[0]["top_logprobs"] = items
    assert read_completion(body).tokens is None


@pytest.mark.parametrize(
    ("given", "read"), [(-math.inf, -9999.0), (-9999.0, -9999.0), (-1e30, -9999.0), (-(10**400), -9999.0)]
)
def test_an_impossible_alternative_is_clipped(given: float, read: float) -> None:
    """An alternative of -inf becomes -9999, like one of -9999."""
    body = openai_body()
    tokens_of(body)[1]["top_logprobs"][1]["logprob"] = given
    tokens = read_completion(body).tokens
    assert tokens is not None
    assert tokens[1].top[1] == (b"e", read)


def test_rounding_above_zero_becomes_zero() -> None:
    """A log-probability of an alternative just above 0 becomes 0."""
    body = openai_body()
    tokens_of(body)[2]["top_logprobs"][0]["logprob"] = 1e-7
    tokens = read_completion(body).tokens
    assert tokens is not None
    assert tokens[2].top == ((CUT[1:], 0.0),)


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("wrap", [lambda body: body, namespace], ids=["dict", "object"])
def test_impossible_emitted_tokens_drop_evidence(place: int, wrap: Any) -> None:
    """A log-probability of -inf at any emitted token drops the evidence; -9999 does not."""
    body = openai_body()
    tokens_of(body)[place]["logprob"] = -math.inf
    found = read_completion(wrap(body))
    assert found.tokens is None
    assert "-Infinity" in found.evidence_problem
    assert found.text == TEXT
    tokens_of(body)[place]["logprob"] = -9999.0
    assert read_completion(wrap(body)).tokens is not None


@pytest.mark.parametrize("wrap", [lambda body: body, namespace], ids=["dict", "object"])
def test_probabilities_beyond_1_drop_the_evidence(wrap: Any) -> None:
    """Probabilities that add up to more than 1 at any token drop the evidence."""
    body = openai_body()
    tokens_of(body)[0]["top_logprobs"] = [entry(text, text.encode(), -0.01) for text in ("a", "b", "c", "d")]
    found = read_completion(wrap(body))
    assert found.tokens is None
    assert "add up to 4.96" in found.evidence_problem  # the emitted token is not among them


def test_google_evidence_that_contradicts_itself_is_dropped() -> None:
    """Google's contradictory log-probabilities drop all tokens."""
    impossible, beyond = copy.deepcopy(VERTEX), copy.deepcopy(VERTEX)
    impossible["candidates"][0]["logprobsResult"]["chosenCandidates"][1]["logProbability"] = -math.inf
    assert "-Infinity" in read_completion(impossible).evidence_problem
    beyond["candidates"][0]["logprobsResult"]["topCandidates"][1]["candidates"][0]["logProbability"] = -0.1
    found = read_completion(beyond)
    assert found.tokens is None
    assert "add up to 1.68" in found.evidence_problem


UNWRITABLE = "\x1b[2Jmodel\x1b]0;title\x07\ud800\x00\nname"


def test_server_texts_are_cleaned() -> None:
    """Control characters are removed from names and refusals, and invalid counts become usable numbers."""
    body = openai(
        model=UNWRITABLE,
        message={"refusal": UNWRITABLE},
        finish_reason="stop\x1b[31m",
        usage={"prompt_tokens": 10**400, "completion_tokens": -3},
        _hidden_params={"response_cost": 10**400},
    )
    found = read_completion(body)
    assert (found.model, found.refusal) == ("model\ufffd name", "model\ufffd name")
    assert found.finish_reason == "stop"
    assert found.usage == Usage(prompt_tokens=2**53, completion_tokens=0)


def test_long_names_and_refusals_are_cut() -> None:
    """Names are cut at 200 characters, refusals at 1,000."""
    found = read_completion(openai(model="m" * 1_000_000, message={"refusal": "r" * 1_000_000}))
    assert (found.model, found.refusal) == ("m" * 200 + "...", "r" * 1_000 + "...")


def test_the_text_keeps_its_layout() -> None:
    """The text keeps its white space, and its invalid characters become U+FFFD."""
    body = openai(message={"content": '{\n\t"category": "\x1b[31m\ud800é"}\r\n'})
    assert read_completion(body).text == '{\n\t"category": "\ufffd[31m\ufffdé"}\r\n'
    assert read_completion("\x00\ud800").text == "\ufffd\ufffd"


def test_completions_of_clients_are_cleaned() -> None:
    """A client's own completion is cleaned like a response."""
    made = Completion(text="\ud800", model=UNWRITABLE, refusal=UNWRITABLE, usage=Usage(prompt_tokens=10**400))
    assert read_completion(made) == Completion(
        text="\ufffd", model="model\ufffd name", refusal="model\ufffd name", usage=Usage(prompt_tokens=2**53)
    )


@pytest.mark.parametrize(
    "response", [{"error": "\x1b[2J" + "x" * 10**6}, {"response": None, "error": "\x1b[2J" + "x" * 10**6}]
)
def test_a_long_error_is_cut(response: Any) -> None:
    """A server's long error message is cut below 1,200 characters, without escapes."""
    with pytest.raises(DataError) as caught:
        read_completion(response)
    assert len(str(caught.value)) < 1_200
    assert "\x1b" not in str(caught.value)


def test_vertex_evidence_with_holes_is_dropped() -> None:
    """A missing log-probability in a Vertex answer drops all tokens."""
    holed = copy.deepcopy(VERTEX)
    del holed["candidates"][0]["logprobsResult"]["chosenCandidates"][1]["logProbability"]
    assert read_completion(holed).tokens is None
    long = copy.deepcopy(VERTEX)
    long["candidates"][0]["logprobsResult"]["topCandidates"] *= 3
    assert read_completion(long).tokens is None


@pytest.mark.parametrize(
    ("response", "match"),
    [
        (None, "NoneType"),
        (7, "int"),
        ({"category": "World"}, "category"),
        ({"error": {"message": "overloaded"}}, "overloaded"),
        ({"choices": []}, "at least one"),
        ({"choices": "x"}, "at least one"),
        ({"candidates": []}, "at least one"),
        ({"choices": [{"text": "legacy"}]}, "chat"),
        ({"response": None, "error": {"code": "expired"}}, "expired"),
        ({"response": {"status_code": 500, "body": {"error": "x"}}}, "500"),
        ({"response": {"status_code": 200, "body": {}}}, "choices"),
        (SimpleNamespace(choices=None), "SimpleNamespace"),
    ],
)
def test_unknown_answer_shapes_raise_data_errors(response: Any, match: str) -> None:
    """An unknown answer raises DataError with its shape or the server's own error."""
    with pytest.raises(DataError, match=match):
        read_completion(response)


def test_the_reason_for_unusable_evidence_is_kept() -> None:
    """The completion says why its tokens were dropped, and nothing where none were."""
    body = openai_body()
    assert read_completion(body).evidence_problem == ""
    tokens_of(body)[0]["logprob"] = None
    assert "missing" in read_completion(body).evidence_problem
    assert read_completion(openai(logprobs=None)).evidence_problem == ""


def test_invalid_usage_counts_as_zero() -> None:
    """Invalid counts and costs become an empty `Usage`."""
    usage = {"prompt_tokens": None, "completion_tokens": "4"}
    assert read_completion(openai(usage=usage, _hidden_params={"response_cost": True})).usage == Usage()
