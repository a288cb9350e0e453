"""Tests of servers that refuse or ignore JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant import BatchEvaluator, Cascade, Classifier, Example, Task
from calibrant.assembly import open_classifier
from calibrant.core import LogprobSpace, Outcome
from calibrant.inference import ModelAbilities, RetryPolicy
from calibrant.inference._abilities import AnswerForm
from distributions import distribution_of
from fault_server import FaultServer
from stubborn_server import StubbornServer

TEXTS = ["a meow", "a bark", "another meow", "another bark"]
LABELS = ["cat", "dog", "cat", "dog"]
ALL = ["json_schema", "json_object", "text"]
TASK = """\
name = "animals"
labels = ["cat", "dog"]
prompt = "Which animal?"

[data]
train = "train.jsonl"

"""
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
    """The form that works is found out once, with a question of its own in each form, and said once."""
    server = start_stubborn_server(**{how: formats}, has_logprobs=has_logprobs)
    with opened(server) as classifier:
        found = classifier.classify_many(TEXTS)
        assert classifier.meter.requests == len(server.formats)
    assert [one.label for one in found] == LABELS
    asked = server.formats
    assert asked[: len(formats)] == formats
    assert set(asked[len(formats) :]) == {form}
    rows = 4 if has_logprobs else 12
    assert sum(one.attempts for one in found) == rows
    assert len(asked) == len(formats) + 1 + rows
    with opened(server, prompt="Name the animal.") as classifier:
        classifier.classify_many(TEXTS)
    assert set(server.formats[len(asked) :]) == {form}
    assert sum("does not follow a JSON schema" in record.message for record in caplog.records) <= 1
    confidence = [one.confidence for one in found]
    assert confidence == pytest.approx([0.8] * 4) if has_logprobs else all(confidence)


def test_forms_are_part_of_the_key(start_stubborn_server: StartServer) -> None:
    """Answers by a schema, as an object and in plain text have different keys, and say so."""
    server, keys, forms = start_stubborn_server(), set(), []
    for form in AnswerForm:
        with opened(server, abilities=ModelAbilities(form=form)) as classifier:
            keys.add(classifier.row_model.key(classifier.query("a meow")))
            forms.append(classifier.describe()["method"].get("answer_form"))
    assert len(keys) == 3
    assert forms == [None, "json", "text"]


def test_known_abilities_ask_nothing_more(start_stubborn_server: StartServer) -> None:
    """With the abilities given, every request is a row's, in that form."""
    server = start_stubborn_server(refused=["json_schema"], has_logprobs=True)
    with opened(server, abilities=ModelAbilities(form=AnswerForm.JSON)) as classifier:
        assert [one.label for one in classifier.classify_many(TEXTS)] == LABELS
    assert server.formats == ["json_object"] * 4


def test_refused_requests_stay_refused(start_stubborn_server: StartServer) -> None:
    """Where every form is refused, rows fail with the server's words; nothing is kept, and the next one tries again."""
    server = start_stubborn_server(refused=["json_schema", "json_object", "text"], message="no such luck")
    for _ in range(2):
        with opened(server) as classifier:
            found = classifier.classify_many(TEXTS)
        assert {one.outcome for one in found} == {Outcome.ERROR}
        assert all("no such luck" in one.reason for one in found)
    assert server.formats == 2 * ["json_schema", "json_object", "text", *["json_schema"] * 4]


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
    assert server.formats == [*["json_schema"] * 4, *["json_object"] * 2]


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
    """The form is found before the first row, however confidence is computed."""
    server = start_stubborn_server(refused=["json_schema"], has_logprobs=True)
    with opened(server, scoring=scoring) as classifier:
        assert classifier.classify("a meow").label == "cat"
        calls = classifier.method.calls_a_row
    assert server.formats == ["json_schema", "json_object", *["json_object"] * calls]


@pytest.mark.parametrize(("formats", "form"), [(["json_schema"], "json"), (ALL[:2], "text")])
def test_models_of_a_cascade_find_their_forms(
    start_stubborn_server: StartServer, tmp_path: Path, formats: list[str], form: str
) -> None:
    """Each model of a cascade finds its own form before the first row, which a run's description names."""
    stubborn, plain = (
        start_stubborn_server(refused=formats, has_logprobs=True),
        start_stubborn_server(has_logprobs=True),
    )
    with opened(stubborn) as small, opened(plain) as large:
        cascade = Cascade([small, large], method="label_probability", threshold=0.9)
        rows = [Example(input=text, answer=label) for text, label in zip(TEXTS, LABELS, strict=True)]
        found = BatchEvaluator(cascade).evaluate(rows, out=tmp_path / "run")
        assert found.metrics.accuracy.estimate == 1.0
        asked = len(stubborn.formats), len(plain.formats)
        BatchEvaluator(cascade).evaluate([*rows, rows[0]], out=tmp_path / "run")
    assert asked == (len(formats) + 5, 5)
    assert set(stubborn.formats[len(formats) :]) == {"json_object" if form == "json" else "text"}
    assert set(plain.formats) == {"json_schema"}
    assert len(stubborn.formats) == asked[0] + 1
    models = json.loads((tmp_path / "run" / "run.json").read_text())["method"]["models"]
    assert [one["method"].get("answer_form") for one in models] == [form, None]


def test_a_member_that_refuses_leaves_the_others(start_stubborn_server: StartServer) -> None:
    """A cascade whose first model refuses the key goes on with the second."""
    with (
        FaultServer(["cat", "dog"], api_key="right") as refusing,
        opened(start_stubborn_server(has_logprobs=True)) as large,
    ):
        options = {"api_base": refusing.api_base, "api_key": "wrong"}
        with Classifier(model="openai/pet", labels=["cat", "dog"], options=options) as small:
            cascade = Cascade([small, large], method="label_probability", threshold=0.5)
            assert [one.label for one in cascade.classify_many(TEXTS)] == LABELS


ROUTING = """\
[routing]
routing = "none"

[[routing.providers]]
name = "openai/pet"
alias = "first"
api_base = "{first}"

[[routing.providers]]
name = "openai/pet"
alias = "second"
api_base = "{second}"
"""


@pytest.mark.parametrize("how", ["refused", "ignored"])
@pytest.mark.parametrize(
    ("formats", "form"), [(["json_schema"], "json_object"), (["json_schema", "json_object"], "text")]
)
def test_providers_find_their_forms(
    start_stubborn_server: StartServer,
    write_task: Callable[..., Path],
    how: str,
    formats: list[str],
    form: str,
) -> None:
    """A provider finds its form before its first request; its answers count as raw. One not needed is not asked."""
    stubborn, spare = (
        start_stubborn_server(**{how: formats}, has_logprobs=True),
        start_stubborn_server(has_logprobs=True),
    )
    task = Task.from_file(
        write_task(extra=ROUTING.format(first=stubborn.api_base, second=spare.api_base), toml=TASK)
    )
    calls = 0
    for _ in range(2):
        with open_classifier(task) as classifier:
            found = classifier.classify_many(TEXTS)
        assert [one.label for one in found] == LABELS
        assert [one.confidence for one in found] == pytest.approx([0.8] * 4)
        assert {distribution_of(one).space for one in found} == {LogprobSpace.RAW}
        calls += sum(one.attempts for one in found)
    assert stubborn.formats == [*formats, *[form] * 9]
    assert spare.formats == []
    # The answered questions, whose tokens the first row has, are calls of it.
    assert calls == len(stubborn.formats) - (len(formats) if how == "refused" else 0)
