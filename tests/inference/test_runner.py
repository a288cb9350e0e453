"""The runner underneath every job: queries of any mix of prompts."""

from __future__ import annotations

from calibrant.core import LabelSet, LogprobSpace, Outcome
from calibrant.inference import AnswerReader, Decoding, Query, Runner
from calibrant.testing import FakeClient


def make(client: FakeClient) -> Runner:
    """Return an engine that reads cats and dogs."""
    reader = AnswerReader(
        labels=LabelSet(["cat", "dog"]), field="category", answer_field="category", space=LogprobSpace.MASKED
    )
    return Runner(client=client, method=Decoding(client=client, reader=reader))


def test_queries_of_several_prompts_run_together() -> None:
    """Prompt and template belong to the query, so a search evaluates its candidates in one go."""
    client = FakeClient(["cat", "dog"], lambda _text, prompt: prompt.removesuffix("!"))
    queries = [
        Query(prompt="cat", text="a"),
        Query(prompt="dog!", text="b", user_template="<{input}>"),
        Query(prompt="cow", text="c"),
        Query(prompt="cat", text="d", user_template="nothing"),
    ]
    heard: list[int] = []
    found = make(client).run(queries, on_prediction=lambda index, _: heard.append(index))
    assert [prediction.label for prediction in found] == ["cat", "dog", None, None]
    assert [prediction.outcome for prediction in found[2:]] == [Outcome.UNPARSED] * 2
    assert sorted(heard) == [0, 1, 2, 3]
    assert [request.messages[1]["content"] for request in client.requests] == ["a", "<b>", "c"]


def test_a_query_is_two_messages() -> None:
    """An empty prompt is sent as it is."""
    assert Query(prompt="", text="t").messages() == (
        {"role": "system", "content": ""},
        {"role": "user", "content": "t"},
    )


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    """Without a schema the request has none; five alternatives are the default."""
    client = FakeClient(["cat", "dog"], {}, default="cat")
    make(client).run([Query(prompt="", text="t")])
    (request,) = client.requests
    assert (request.response_format, request.top_logprobs, dict(request.options)) == (None, 5, {})
