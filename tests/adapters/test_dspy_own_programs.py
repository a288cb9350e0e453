"""Tests of DSPy's own programs with the metric: label fields whose tokens come with log-probabilities."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pytest
from aiohttp import web

from calibrant.scoring import LinearBlendScoring
from loopback import LoopbackServer

dspy = pytest.importorskip("dspy", reason="the extra dspy is not installed")

from calibrant.adapters.dspy import ConfidenceMetric  # noqa: E402  (needs dspy)

Written = Sequence[tuple[str, dict[str, float]]]
Serve = Callable[..., Any]


class WritingServer(LoopbackServer):
    """OpenAI's protocol, with an answer in tokens: each has its probability and those of its alternatives."""

    def __init__(self, tokens: Written) -> None:
        self.tokens = tokens
        self.requests: list[dict[str, Any]] = []
        super().__init__()

    def routed(self) -> web.Application:
        """Return the application with its routes."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the tokens, and with as many alternatives as were asked for."""
        asked = await request.json()
        self.requests.append(asked)
        most = asked.get("top_logprobs", 0)
        content = [
            {
                **entry(text, top[text]),
                "top_logprobs": [entry(other, share) for other, share in top.items()][:most],
            }
            for text, top in self.tokens
        ]
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "".join(text for text, _ in self.tokens)},
            "logprobs": {"content": content} if asked.get("logprobs") else None,
        }
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "stub"}
        return web.json_response({**body, "choices": [choice], "usage": usage})


def entry(text: str, share: float) -> dict[str, Any]:
    """Return a token as OpenAI's protocol has it."""
    return {"token": text, "logprob": math.log(share), "bytes": list(text.encode())}


def sure(*texts: str) -> Written:
    """Return tokens that had no alternative."""
    return [(text, {text: 1.0}) for text in texts]


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep DSPy from fetching a price list, and restore its settings after the test."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with dspy.context():
        yield


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server and returns DSPy's model for it; all stop with the test."""
    running: list[WritingServer] = []

    def start(tokens: Written, **options: Any) -> Any:
        server = WritingServer(tokens)
        running.append(server)
        access = {"api_base": f"{server.root}/v1", "api_key": "k", "cache": False}
        return dspy.LM("openai/stub", **access, **options)

    yield start
    for server in running:
        server.stop()


class Sentiment(dspy.Signature):  # type: ignore[misc]
    """Decide the sentiment."""

    review: str = dspy.InputField()
    sentiment: Literal["negative", "positive", "mixed, though"] = dspy.OutputField()


class TwoFields(dspy.Signature):  # type: ignore[misc]
    """Decide topic and sentiment."""

    review: str = dspy.InputField()
    topic: Literal["film", "food"] = dspy.OutputField()
    sentiment: Literal["negative", "positive", "mixed, though"] = dspy.OutputField()


LABELS = ["negative", "positive", "mixed, though"]
GUESS = {"positive": 0.55, "negative": 0.45}
GOLD = dspy.Example(review="nice", sentiment="positive").with_inputs("review")
MARKED = [*sure("[[ ## sentiment ## ]]\n"), ("positive", GUESS), *sure("\n\n", "[[ ## completed ## ]]")]
FORMS: dict[str, tuple[Any, Written]] = {
    "markers": (dspy.ChatAdapter(), MARKED),
    "one token for the marker's end and the label": (
        dspy.ChatAdapter(),
        [
            *sure("[[ ## sentiment ##"),
            (" ]]\npositive", {" ]]\npositive": 0.55, " ]]\nnegative": 0.45}),
            *sure("\n\n[[ ## completed ## ]]"),
        ],
    ),
    "one token for the label and what ends it": (
        dspy.ChatAdapter(),
        [
            *sure("[[ ## sentiment ## ]]\n"),
            ("positive\n\n", {"positive\n\n": 0.55, "negative\n": 0.4, "negative": 0.05}),
            *sure("[[ ## completed ## ]]"),
        ],
    ),
    "nothing behind the label": (
        dspy.ChatAdapter(),
        [*sure("[[ ## sentiment ## ]]\n"), ("pos", {"pos": 0.55, "negative": 0.45}), *sure("itive")],
    ),
    "json": (dspy.JSONAdapter(), [*sure('{"sentiment"', ': "'), ("positive", GUESS), *sure('"}')]),
    "tags": (
        dspy.XMLAdapter(),
        [*sure("<sentiment>", "\n"), ("positive", GUESS), *sure("\n", "</sentiment>")],
    ),
}


def graded(model: Any, adapter: Any, *, signature: Any = Sentiment, gold: Any = GOLD) -> Any:
    """Return the program's prediction and its grade."""
    with dspy.context(lm=model, adapter=adapter):
        found = dspy.Predict(signature)(review="nice")
    return found, ConfidenceMetric(LABELS, label_field="sentiment")(gold, found)


@pytest.mark.parametrize("form", FORMS)
def test_a_guess_of_a_literal_field_counts_as_unsure(
    serve: Serve, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    """A right guess at 55 % scores below 1 and is called uncertain, however the answer was written."""
    adapter, tokens = FORMS[form]
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        found, grade = graded(serve(tokens, logprobs=True, top_logprobs=5), adapter)
    assert found.sentiment == "positive"
    expected = LinearBlendScoring(0.99).score(is_correct=True, logprob_score=math.log(0.55))
    assert grade.score == pytest.approx(expected, abs=1e-6)
    assert grade.feedback.startswith(
        "Correct but uncertain (55% probability). Also considered: 'negative' (45%)."
    )
    assert caplog.records == []


def test_without_alternatives_the_label_s_own_probability_counts(serve: Serve) -> None:
    """With ``logprobs=True`` alone the confidence is the probability of the label's tokens."""
    _, grade = graded(serve(MARKED, logprobs=True), dspy.ChatAdapter())
    assert grade.feedback.startswith("Correct but uncertain (55% probability)")


def test_every_literal_field_has_its_own_confidence(serve: Serve) -> None:
    """Of an answer with two fields the tokens of the metric's field are read."""
    tokens = [
        *sure("[[ ## topic ## ]]\n"),
        ("food", {"food": 0.7, "film": 0.3}),
        *sure("\n\n", "[[ ## sentiment ## ]]\n"),
        ("positive", GUESS),
        *sure("\n\n", "[[ ## completed ## ]]"),
    ]
    gold = dspy.Example(review="nice", topic="film", sentiment="positive").with_inputs("review")
    model = serve(tokens, logprobs=True, top_logprobs=5)
    found, grade = graded(model, dspy.ChatAdapter(), signature=TwoFields, gold=gold)
    assert "(55% probability)" in grade.feedback
    other = ConfidenceMetric(["film", "food"], label_field="topic")(gold, found)
    assert other.feedback.startswith("Wrong (70% probability). Expected 'film', got 'food'.")


def test_labels_that_json_would_escape_are_read(serve: Serve) -> None:
    """A label with quotes, a backslash and a letter outside ASCII is read."""
    label = 'a "ü" \\'
    signature = dspy.Signature("review -> answer: str", "Answer.")
    tokens = [*sure("[[ ## answer ## ]]\n"), ('a "', {'a "': 0.6, "b": 0.4}), *sure('ü" \\', "\n")]
    with dspy.context(lm=serve(tokens, logprobs=True, top_logprobs=5), adapter=dspy.ChatAdapter()):
        found = dspy.Predict(signature)(review="nice")
    gold = dspy.Example(review="nice", answer=label)
    grade = ConfidenceMetric([label, "b"], label_field="answer")(gold, found)
    assert "(60% probability)" in grade.feedback


def test_missing_and_unreadable_tokens_are_told_apart(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """The warning says how to ask for log-probabilities, or why those that came cannot be read."""
    metric = ConfidenceMetric(LABELS, label_field="sentiment")
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        found, grade = graded(serve(MARKED), dspy.ChatAdapter())
    assert (grade.score, grade.feedback) == (1.0, "Correct.")
    assert "dspy.LM(..., logprobs=True, top_logprobs=5) asks for them" in caplog.messages[0]
    other = {"content": [{"token": "nothing like it", "logprob": -0.1}]}
    for logprobs in (other, {"content": []}, "none", {"content": [{"text": 1}]}):
        caplog.clear()
        metric = ConfidenceMetric(LABELS, label_field="sentiment")
        with caplog.at_level(logging.WARNING, logger="calibrant"):
            grade = metric(GOLD, dspy.Prediction(sentiment="positive", logprobs=logprobs))
        assert grade.feedback == "Correct."
        assert "token log-probabilities that cannot be read: " in caplog.messages[0]
    caplog.clear()
    with_tokens = json.loads(json.dumps({"content": [entry(text, top[text]) for text, top in MARKED]}))
    metric = ConfidenceMetric(LABELS, label_field="sentiment")
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        metric(GOLD, dspy.Prediction(sentiment="negative", logprobs=with_tokens))
    assert "they are of the answer 'positive', and the prediction is 'negative'" in caplog.messages[0]
    assert found.sentiment == "positive"


@pytest.mark.parametrize("logprobs", [{"content": []}, {"content": None}, {}, "none"])
def test_an_answer_without_tokens_says_how_to_ask_for_them(
    caplog: pytest.LogCaptureFixture, logprobs: object
) -> None:
    """The warning shows what came in the place of log-probabilities, and the option that asks for them."""
    metric = ConfidenceMetric(LABELS, label_field="sentiment")
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        grade = metric(GOLD, dspy.Prediction(sentiment="positive", logprobs=logprobs))
    assert (grade.score, grade.feedback) == (1.0, "Correct.")
    (message,) = caplog.messages
    assert f"Expected token log-probabilities under 'content', got {logprobs!r} (" in message
    assert (
        "): ask for them with dspy.LM(..., logprobs=True, top_logprobs=5). Such rows are scored by" in message
    )


def test_a_stated_confidence_comes_first() -> None:
    """A confidence in the prediction counts, whatever its tokens say."""
    logprobs = {"content": [entry(text, top[text]) for text, top in MARKED]}
    found = dspy.Prediction(sentiment="positive", confidence=0.8, logprobs=logprobs)
    grade = ConfidenceMetric(LABELS, label_field="sentiment")(GOLD, found)
    assert "(80% probability)" in grade.feedback
