"""The runner underneath every job: queries of any mix of prompts."""

from __future__ import annotations

from calibrant.core import Outcome
from calibrant.core._predictor import Query
from calibrant.inference import Classifier
from calibrant.inference._loop import ask
from calibrant.testing import FakeClient


def make(client: FakeClient) -> Classifier:
    """Return a classifier of cats and dogs."""
    return Classifier(model=client, labels=["cat", "dog"], field="category")


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
    found = ask(make(client), queries, on_prediction=lambda index, _: heard.append(index))
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
    """Five alternatives are the default, and there are no options."""
    client = FakeClient(["cat", "dog"], {}, default="cat")
    ask(make(client), [Query(prompt="", text="t")])
    (request,) = client.requests
    assert (request.top_logprobs, dict(request.options)) == (5, {})
