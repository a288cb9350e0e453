"""Tests of servers that refuse or ignore JSON schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calibrant import Classifier
from calibrant.core import Outcome
from calibrant.inference import RetryPolicy
from stubborn_server import StubbornServer

TEXTS = ["a meow", "a bark", "another meow", "another bark"]
LABELS = ["cat", "dog", "cat", "dog"]
StartServer = Callable[..., StubbornServer]


def opened(server: StubbornServer, **changes: Any) -> Classifier:
    """Return a classifier on the server."""
    arguments = {"labels": ["cat", "dog"], "prompt": "Which animal?", **changes}
    return Classifier(
        model="openai/pet",
        options={"api_base": server.api_base},
        retry=RetryPolicy(attempts=2, initial_seconds=0),
        concurrency=2,
        **arguments,
    )


@pytest.mark.parametrize("how", ["refused", "ignored"])
@pytest.mark.parametrize(
    ("formats", "form"), [(["json_schema"], "json_object"), (["json_schema", "json_object"], "text")]
)
@pytest.mark.parametrize("has_logprobs", [True, False])
def test_servers_without_schemas(
    start_stubborn_server: StartServer,
    how: str,
    formats: list[str],
    form: str,
    has_logprobs: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The form that works is found out once, with the first row, and said once."""
    server = start_stubborn_server(**{how: formats}, has_logprobs=has_logprobs)
    with opened(server) as classifier:
        found = classifier.classify_many(TEXTS)
    assert [one.label for one in found] == LABELS
    asked = server.formats
    assert asked[: len(formats)] == formats
    assert set(asked[len(formats) :]) == {form}
    assert len(asked) == len(formats) + (4 if has_logprobs else 13)
    assert sum(one.attempts for one in found) == len(asked)
    with opened(server, prompt="Name the animal.") as classifier:
        classifier.classify_many(TEXTS)
    assert set(server.formats[len(asked) :]) == {form}
    assert sum("does not follow a JSON schema" in record.message for record in caplog.records) <= 1
    confidence = [one.confidence for one in found]
    assert confidence == pytest.approx([0.8] * 4) if has_logprobs else all(confidence)


def test_forms_are_part_of_the_key(start_stubborn_server: StartServer) -> None:
    """Answers by a schema, as an object and in plain text have different keys, and say so."""
    with opened(start_stubborn_server()) as classifier:
        keys, forms = set(), []
        for form in ("schema", "json", "text"):
            classifier.settle_form(form)
            keys.add(classifier.row_model.key(classifier.query("a meow")))
            forms.append(classifier.describe()["method"].get("answer_form"))
    assert len(keys) == 3
    assert forms == [None, "json", "text"]


def test_refused_requests_stay_refused(start_stubborn_server: StartServer) -> None:
    """Where every form is refused, rows fail with the server's words, and nothing is kept."""
    server = start_stubborn_server(refused=["json_schema", "json_object", "text"], message="no such luck")
    for _ in range(2):
        with opened(server) as classifier:
            found = classifier.classify_many(TEXTS)
        assert {one.outcome for one in found} == {Outcome.ERROR}
        assert all("no such luck" in one.reason for one in found)
    assert server.formats == 2 * ["json_schema", "json_object", "text", *["json_schema"] * 3]


def test_servers_may_change(start_stubborn_server: StartServer) -> None:
    """A form that is refused later is found out anew by the next run."""
    server = start_stubborn_server(has_logprobs=True)
    with opened(server) as classifier:
        assert classifier.classify("a meow").label == "cat"
    server.refused = {"json_schema"}
    with opened(server) as classifier:
        assert classifier.classify("a bark").outcome is Outcome.ERROR
    with opened(server) as classifier:
        assert classifier.classify("a bark").label == "dog"
    assert server.formats == ["json_schema", "json_schema", "json_schema", "json_object"]


def test_sentences_have_no_logprobs(start_stubborn_server: StartServer) -> None:
    """A label at the end of a sentence is read; its confidence comes from three calls, as without log-probabilities."""
    formats = ["json_schema", "json_object"]
    server = start_stubborn_server(
        refused=formats, has_logprobs=True, says=lambda label: f"I am 80 % sure: a {label}."
    )
    with opened(server) as classifier:
        found = classifier.classify("a meow")
        assert (found.label, classifier.scoring) == ("cat", "fused")
    assert found.confidence == pytest.approx(80.5 / 101)
    assert server.formats == [*formats, *["text"] * 4]


@pytest.mark.parametrize("scoring", ["decode", "sampled", "fused", "verbalised"])
def test_every_scoring_finds_the_form(start_stubborn_server: StartServer, scoring: Any) -> None:
    """The first call of a row serves to find the form, however confidence is computed."""
    server = start_stubborn_server(refused=["json_schema"], has_logprobs=True)
    with opened(server, scoring=scoring) as classifier:
        assert classifier.classify("a meow").label == "cat"
        calls = classifier.method.calls_a_row
    assert server.formats == ["json_schema", *["json_object"] * calls]
