"""Tests of answers with several labels, from the model's response to the prediction."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from calibrant.core import (
    CompletionRequest,
    ConfigurationError,
    Field,
    FieldLabels,
    LabelSet,
    LogprobSpace,
    MultiLabels,
    Outcome,
    Prediction,
)
from calibrant.inference import Classifier
from calibrant.testing import FakeClient, FakeContinuingClient, MemoryJournal, fake_response
from distributions import distribution_of
from fault_server import FaultServer
from saved_prediction import from_record, saved_and_read, to_record

BOTH = FieldLabels(
    [
        Field(name="category", labels=["Bills", "Food", "Rent"]),
        Field(name="urgency", labels=["low", "high"], path="meta.urgency"),
    ]
)
IN_LIST = FieldLabels(
    [
        Field(name="category", labels=["Bills", "Food"], path="results[].category"),
        Field(name="urgency", labels=["low", "high"], path="results[].urgency"),
    ]
)
TOPICS = MultiLabels(["Bills", "Food", "Rent"])
# The fields depend on each other: what is urgent is mostly a bill.
JOINT = {
    '{"category": "Bills", "urgency": "low"}': 0.1,
    '{"category": "Bills", "urgency": "high"}': 0.5,
    '{"category": "Food", "urgency": "low"}': 0.3,
    '{"category": "Rent", "urgency": "high"}': 0.1,
}


def classify(labels: Any, said: Any, **options: Any) -> Prediction:
    """Return the prediction of a text with this answer of a fake model."""
    field = options.get("field", "topics")
    fake = FakeClient(
        labels,
        {"text": said},
        field=field,
        tokens=options.pop("tokens", "label"),
        space=options.pop("fake_space", "masked"),
    )
    return Classifier(model=fake, labels=labels, **{"field": field, **options}).classify("text")


def read(labels: Any, text: str, field: str = "label") -> Prediction:
    """Return the prediction of an answer in this text, without log-probabilities."""
    return Classifier(model=lambda _: text, labels=labels, field=field).classify("text")


@pytest.mark.parametrize("tokens", ["label", "characters", "bytes"])
def test_fields_have_conditional_distributions(tokens: str) -> None:
    """The confidences of the fields multiply to the probability of the whole answer."""
    found = classify(BOTH, JOINT, tokens=tokens)
    assert found.label == '{"category": "Bills", "urgency": "high"}'
    assert [(part.name, part.label) for part in found.parts] == [("category", "Bills"), ("urgency", "high")]
    category, urgency = map(distribution_of, found.parts)
    assert category.probabilities.tolist() == pytest.approx([0.6, 0.3, 0.1], abs=1e-6)
    assert urgency.probabilities.tolist() == pytest.approx([0.1 / 0.6, 0.5 / 0.6], abs=1e-6)
    assert (found.confidence, found.distribution) == (pytest.approx(0.5), None)


def test_fields_share_a_list_element() -> None:
    """Fields whose paths begin alike stand in one object of the answer."""
    found = classify(IN_LIST, ('{"urgency": "high", "category": "Food"}', 0.8))
    assert json.loads(found.text) == {"results": [{"category": "Food", "urgency": "high"}]}
    assert found.label == '{"category": "Food", "urgency": "high"}'
    assert found.confidence == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"category": "Bills", "meta": {}}', "field 'urgency': Expected the field 'meta.urgency'"),
        ('{"meta": {"urgency": "low"}}', "field 'category': "),
        ('{"category": "Taxi", "meta": {"urgency": "low"}}', "answered 'Taxi' in the field 'category'"),
        ('{"category": "Bills", "meta": {"urgency": 3}}', "answered 3 in the field 'urgency'"),
        ("Bills, low", "Expected a JSON document"),
    ],
)
def test_bad_field_is_named(text: str, reason: str) -> None:
    """A missing or illegal field makes the answer unparsed, with the field's name."""
    found = read(BOTH, text)
    assert (found.outcome, found.label, found.parts) == (Outcome.UNPARSED, None, ())
    assert reason in found.reason


def test_parts_are_canonical_and_ordered() -> None:
    """Labels are canonical and parts keep the order of the fields, not that of the answer."""
    found = read(BOTH, '```json\n{"meta": {"urgency": " HIGH"}, "category": "bills"}\n```')
    assert found.label == '{"category": "Bills", "urgency": "high"}'
    assert [part.name for part in found.parts] == ["category", "urgency"]


@pytest.mark.parametrize("field", ["topics", "results[].topic", "a.b[]", "[]", "[].topic"])
@pytest.mark.parametrize("tokens", ["label", "characters"])
def test_set_has_a_part_per_label(field: str, tokens: str) -> None:
    """Every label of a set has a part with yes or no, in the order of the label set."""
    said = {'["Food", "Bills"]': 0.6, '["Food"]': 0.3, '["Rent"]': 0.1}
    found = classify(TOPICS, said, field=field, tokens=tokens)
    assert found.label == '["Bills", "Food"]'
    assert {part.name: part.label for part in found.parts} == {"Bills": "yes", "Food": "yes", "Rent": "no"}
    known = {part.name: part.confidence for part in found.parts}
    # Food against Rent, then Bills against the end.
    assert (known["Food"], known["Bills"]) == (pytest.approx(0.9), pytest.approx(2 / 3))
    assert known["Rent"] == pytest.approx(0.9)
    assert found.confidence == pytest.approx(0.6)


def test_empty_set_is_an_answer() -> None:
    """The empty list is a legal answer with the probability of the end."""
    found = classify(TOPICS, {"[]": 0.7, '["Food"]': 0.3})
    assert (found.label, found.outcome, found.confidence) == ("[]", Outcome.OK, pytest.approx(0.7))
    assert [part.label for part in found.parts] == ["no"] * 3
    assert [part.confidence for part in found.parts] == pytest.approx([0.9] * 3)


def test_repeated_labels_count_once() -> None:
    """A label that the answer holds twice counts once."""
    found = classify(TOPICS, '["Food", "food", "Food"]')
    assert (found.label, found.text) == ('["Food"]', '{"topics": ["Food", "food", "Food"]}')


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"topics": ["Food", "Taxi"]}', "answered 'Taxi' at place 2 of the list"),
        ('{"topics": [["Food"]]}', "answered ['Food'] at place 1"),
        ('{"topics": "Food"}', "Expected an array in the field 'topics'"),
        ('{"topic": []}', "has no 'topics'"),
    ],
)
def test_invalid_list_is_unparsed(text: str, reason: str) -> None:
    """An answer that is no list of labels is unparsed, with the reason."""
    found = read(TOPICS, text, "topics")
    assert found.outcome is Outcome.UNPARSED
    assert reason in found.reason


def test_element_without_key_is_named() -> None:
    """The reason names the place of a list's element without its key."""
    found = read(TOPICS, '{"results": [{"topic": "Food"}, {}]}', "results[].topic")
    assert "results[1].topic" in found.reason


@pytest.mark.parametrize(
    ("labels", "said"), [(BOTH, '{"category": "Food", "urgency": "low"}'), (TOPICS, '["Food"]')]
)
def test_missing_logprobs_leave_parts(labels: Any, said: str) -> None:
    """Without log-probabilities the parts have labels and no confidence."""
    found = classify(labels, said, fake_space="none")
    assert (found.outcome, found.confidence, found.distribution) == (Outcome.OK, None, None)
    assert all((part.confidence, part.distribution) == (None, None) for part in found.parts)
    assert len(found.parts) in {2, 3}


@pytest.mark.parametrize("labels", [BOTH, TOPICS])
def test_answer_field_is_refused(labels: Any) -> None:
    """`answer_field` raises ConfigurationError for composite answers."""
    with pytest.raises(ConfigurationError, match="no answer_field"):
        Classifier(model=FakeClient(labels, {}), labels=labels, field="topics", answer_field="other")


def test_key_covers_kind_and_paths() -> None:
    """Plain labels, fields, sets and moved fields have different descriptions, and so different keys."""
    plain = ["category=Bills", "category=Food", "category=Rent", "urgency=low", "urgency=high"]
    moved = FieldLabels(
        [Field(name=one.name, labels=one.labels, path=f"x.{one.name}") for one in BOTH.fields]
    )
    known = [
        json.dumps(Classifier(model=FakeClient(labels, {}), labels=labels).describe()["method"])
        for labels in (LabelSet(plain), BOTH, moved, MultiLabels(plain))
    ]
    assert len(set(known)) == 4


@pytest.mark.parametrize(
    ("labels", "said"), [(BOTH, JOINT), (TOPICS, {'["Food", "Bills"]': 0.6, '["Rent"]': 0.4})]
)
def test_journal_returns_parts(labels: Any, said: Any) -> None:
    """Parts are equal after the journal and after a JSON record."""
    journal = MemoryJournal()
    fake = FakeClient(labels, {"text": said}, field="topics")
    first, second = (
        Classifier(model=fake, labels=labels, field="topics", journal=journal).classify("text")
        for _ in range(2)
    )
    assert (len(fake.requests), second.attempts, second.parts) == (1, 0, first.parts)
    assert saved_and_read(first).parts == first.parts


def test_records_without_parts_are_read() -> None:
    """A record of a single label has no `parts`, and reads back with none."""
    record = to_record(Prediction(label="Food"))
    assert "parts" not in record
    assert from_record(record).parts == ()


def test_with_effort_keeps_parts() -> None:
    """`with_effort` keeps the parts."""
    found = classify(BOTH, JOINT)
    assert found.with_effort(attempts=3, latency_seconds=1.0).parts == found.parts


@pytest.mark.parametrize("labels", [BOTH, TOPICS])
def test_label_prior_is_refused(labels: Any) -> None:
    """A label-prior correction raises ConfigurationError for composite answers."""
    fake = FakeClient(labels, {}, field="topics")
    classifier = Classifier(model=fake, labels=labels, field="topics")
    with pytest.raises(ConfigurationError, match="Leave prior_correction out"):
        classifier.prior_correction = object()  # type: ignore[assignment]
    assert classifier.with_prompt("Another").prior_correction is None


def continuing(labels: Any, said: Any, **options: Any) -> FakeContinuingClient:
    """Return a model that continues beginnings of its answer."""
    return FakeContinuingClient(labels, {"text": said}, **options)


@pytest.mark.parametrize("tokens", ["label", "characters"])
@pytest.mark.parametrize("serial", [True, False])
def test_fields_are_scored_in_sequence(tokens: str, serial: bool) -> None:
    """The second field is scored after the label chosen for the first, in the same session."""
    fake = continuing(BOTH, JOINT, tokens=tokens, serial=serial)
    found = Classifier(model=fake, labels=BOTH, tolerance="exact").classify("text")
    category, urgency = map(distribution_of, found.parts)
    assert category.space is LogprobSpace.EXACT
    assert category.probabilities.tolist() == pytest.approx([0.6, 0.3, 0.1], abs=1e-6)
    assert urgency.probabilities.tolist() == pytest.approx([0.1 / 0.6, 0.5 / 0.6], abs=1e-6)
    assert found.confidence == pytest.approx(0.5)
    assert found.text == '{"category": "Bills", "meta": {"urgency": "high"}}'
    assert found.label == '{"category": "Bills", "urgency": "high"}'
    assert fake.beginnings[0] == '{"category": "'
    assert '{"category": "Bills", "meta": {"urgency": "' in fake.beginnings
    assert found.attempts == len(fake.beginnings) == len(fake.requests)
    assert fake.open_rows == 0


def test_labels_of_fields_are_checked_once() -> None:
    """The client checks the labels of all fields once."""
    fake = continuing(BOTH, JOINT)
    Classifier(model=fake, labels=BOTH).classify_many(["text", "text again"])
    assert fake.checked == [("Bills", "Food", "Rent", "low", "high")]


def test_scoring_follows_the_schema_order() -> None:
    """Fields are scored in the schema's order, and parts keep the order of the fields."""
    labels = FieldLabels(
        [
            Field(name="one", labels=["A", "B"], path="x.one"),
            Field(name="two", labels=["C", "D"]),
            Field(name="three", labels=["E", "F"], path="x.three"),
        ]
    )
    said = ('{"one": "A", "two": "D", "three": "F"}', 0.9)
    fake = continuing(labels, said)
    found = Classifier(model=fake, labels=labels).classify("text")
    assert found.text == '{"x": {"one": "A", "three": "F"}, "two": "D"}'
    assert [part.name for part in found.parts] == ["one", "two", "three"]
    decoded = Classifier(model=FakeClient(labels, {"text": said}), labels=labels).classify("text")
    assert (decoded.text, decoded.confidence) == (found.text, pytest.approx(0.9))
    assert found.confidence == pytest.approx(0.9)


def test_unlikely_field_is_named() -> None:
    """A field without any likely label makes the row unparsed, with the field's name."""
    said = '{"category": "Bills", "urgency": "whenever"}'
    fake = continuing(BOTH, said)
    found = Classifier(model=fake, labels=BOTH).classify("text")
    assert found.outcome is Outcome.UNPARSED
    assert "field 'urgency'" in found.reason


def test_exact_sets_need_an_engine() -> None:
    """Sets without an engine, and open schemas, raise ConfigurationError for exact scoring."""
    topics = continuing(TOPICS, '["Food"]', field="topics")
    assert Classifier(model=topics, labels=TOPICS, field="topics").classify("text").label == '["Food"]'
    with pytest.raises(ConfigurationError, match="how many labels an answer holds"):
        Classifier(model=topics, labels=TOPICS, field="topics", scoring="exact")
    with pytest.raises(ConfigurationError, match="more than the labels of the fields open"):
        Classifier(model=continuing(IN_LIST, "{}"), labels=IN_LIST, scoring="exact")


def test_schema_must_match_the_fields() -> None:
    """scoring="exact" raises where the schema's choices are not the fields or lack labels."""
    fake = continuing(BOTH, JOINT)
    enum = {"type": "string", "enum": ["Bills", "Food", "Rent"]}
    urgency = {"type": "object", "properties": {"urgency": {"type": "string", "enum": ["low", "none"]}}}
    for properties, reason in (
        ({"category": enum, "other": enum}, "are not the fields"),
        ({"category": enum}, "are not the fields"),
        ({"category": enum, "meta": urgency}, "lacks some of the labels of the field 'urgency'"),
    ):
        schema = {
            "type": "json_schema",
            "json_schema": {"schema": {"type": "object", "properties": properties}},
        }
        with pytest.raises(ConfigurationError, match=reason):
            Classifier(model=fake, labels=BOTH, response_format=schema, scoring="exact")


def test_key_covers_order_and_tolerance() -> None:
    """The order of fields, their spelling and the tolerance are part of the key."""
    fake = continuing(BOTH, JOINT)
    turned = FieldLabels(BOTH.fields[::-1])
    known = {
        json.dumps(Classifier(model=fake, labels=labels, tolerance=tolerance).describe()["method"])
        for labels in (BOTH, turned)
        for tolerance in (0.2, 0.1)
    }
    assert len(known) == 4
    fields = [
        Field(name=name, labels=["A", "B"], path=path)
        for name, path in (("one", "x.one"), ("two", "two"), ("three", "x.three"))
    ]
    # Scored in the same order, but spelled in another.
    grouped = [
        Classifier(model=fake, labels=FieldLabels(order)).describe()["method"]
        for order in (fields, [fields[0], fields[2], fields[1]])
    ]
    assert grouped[0] != grouped[1]


def test_samples_agree_on_fields() -> None:
    """The most frequent whole answer wins; each part has the frequencies of its own values."""
    said = [
        '{"category": "Bills", "urgency": "low"}',
        '{"category": "Bills", "urgency": "high"}',
        '{"category": "Food", "urgency": "high"}',
        '{"category": "Bills", "urgency": "high"}',
    ]
    fake = FakeClient(BOTH, {"text": list(said)}, space="none")
    found = Classifier(model=fake, labels=BOTH, scoring="sampled", samples=4, concurrency=1).classify("text")
    assert (found.label, found.confidence) == (said[1], pytest.approx((2 + 1) / (4 + 2)))
    category, urgency = found.parts
    assert (category.label, category.confidence) == ("Bills", pytest.approx((3 + 1) / (4 + 3)))
    assert (urgency.label, urgency.confidence) == ("high", pytest.approx((3 + 1) / (4 + 2)))
    assert (distribution_of(category).space, found.attempts) == (LogprobSpace.SAMPLED, 4)


def test_samples_agree_on_sets() -> None:
    """Sets of equal labels in any order are one answer; an unparsed answer counts in no part."""
    said = ['["Food", "Bills"]', '["Bills", "Food"]', '["Food"]', '["Taxi"]']
    fake = FakeClient(TOPICS, {"text": list(said)}, field="topics", space="none")
    found = Classifier(
        model=fake, labels=TOPICS, field="topics", scoring="sampled", samples=4, concurrency=1
    ).classify("text")
    assert (found.label, found.confidence) == ('["Bills", "Food"]', pytest.approx(3 / 5))
    assert [part.confidence for part in found.parts] == pytest.approx([3 / 5, 4 / 5, 4 / 5])
    assert distribution_of(found.parts[0]).label_mass == pytest.approx(3 / 4)


def test_lost_logprobs_are_retried() -> None:
    """A set without log-probabilities is retried where other answers had some."""
    bare = fake_response('["Food"]', TOPICS, field="topics", top_logprobs=0)
    fake = FakeClient(TOPICS, {"one": '["Food"]', "two": [bare, ('["Food"]', 0.9)]}, field="topics")
    found = Classifier(model=fake, labels=TOPICS, field="topics", concurrency=1).classify_many(["one", "two"])
    assert found[1].attempts == 2
    assert found[1].confidence is not None


def test_openai_server_answers_with_a_set() -> None:
    """A server gets the schema of a set, and its answer becomes parts."""
    with FaultServer(TOPICS, {"text": ('["Food", "Rent"]', 0.8)}, field="topics", keep_requests=1) as server:
        classifier = Classifier(
            model="openai/gpt-x",
            labels=TOPICS,
            field="topics",
            options={"api_base": server.api_base, "api_key": "k"},
            top_logprobs=5,
        )
        found = classifier.classify("text")
        sent = server.requests[0].body
        classifier.close()
    assert (found.label, len(found.parts)) == ('["Food", "Rent"]', 3)
    schema = sent["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["properties"]["topics"]["items"] == {"type": "string", "enum": list(TOPICS)}


def test_fake_needs_whole_answers() -> None:
    """A fake raises ConfigurationError for an answer of the wrong kind or an illegal label."""
    for labels, said in ((TOPICS, "Food"), (TOPICS, "{}"), (BOTH, "[]"), (BOTH, "Food")):
        with pytest.raises(ConfigurationError, match="whole answer"):
            fake_response(said, labels)
    with pytest.raises(ConfigurationError, match="legal answer"):
        asyncio.run(_ask(FakeClient(TOPICS, {"": ('["Taxi"]', 0.5)})))


async def _ask(client: FakeClient) -> object:
    return await client.complete(CompletionRequest(messages=({"role": "user", "content": "x"},)))


def test_fake_tokens_hold_the_probabilities() -> None:
    """The tokens of a fake spell the text and multiply to the answer's probability."""
    response = fake_response(
        '["Food", "Bills"]', TOPICS, {'["Food", "Bills"]': 0.6, '["Food"]': 0.4}, field="a.b"
    )
    choice = response["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in tokens).decode() == choice["message"]["content"]
    assert json.loads(choice["message"]["content"]) == {"a": {"b": ["Food", "Bills"]}}
    assert math.exp(sum(one["logprob"] for one in tokens)) == pytest.approx(0.6)
