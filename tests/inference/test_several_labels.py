"""Answers that hold several labels, from the model's response to the prediction."""

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
    MultiLabels,
    Outcome,
    Prediction,
)
from calibrant.core._prediction import LogprobSpace
from calibrant.core._records import prediction_from_record, prediction_to_record
from calibrant.inference import Classifier
from calibrant.inference._reader import AnswerReader
from calibrant.testing import FakeClient, FakeContinuingClient, MemoryJournal, fake_response
from distributions import distribution_of
from fault_server import FaultServer

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
    """Return the prediction for a text to which a fake model says this."""
    field = options.get("field", "topics")
    fake = FakeClient(
        labels,
        {"text": said},
        field=field,
        tokens=options.pop("tokens", "label"),
        space=options.pop("fake_space", "masked"),
    )
    return Classifier(model=fake, labels=labels, **{"field": field, **options}).classify("text")


@pytest.mark.parametrize("tokens", ["label", "characters", "bytes"])
def test_every_field_has_its_own_distribution_given_those_before(tokens: str) -> None:
    """The fields' confidences multiply to the probability of the whole answer."""
    found = classify(BOTH, JOINT, tokens=tokens)
    assert found.label == '{"category": "Bills", "urgency": "high"}'
    assert [(part.name, part.label) for part in found.parts] == [("category", "Bills"), ("urgency", "high")]
    category, urgency = map(distribution_of, found.parts)
    assert category.probabilities.tolist() == pytest.approx([0.6, 0.3, 0.1], abs=1e-6)
    assert urgency.probabilities.tolist() == pytest.approx([0.1 / 0.6, 0.5 / 0.6], abs=1e-6)
    assert found.confidence == pytest.approx(0.5)
    assert found.distribution is None


def test_fields_may_share_the_first_element_of_a_list() -> None:
    """Their paths begin alike; the answer holds one object with both."""
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
def test_a_field_that_is_missing_or_illegal_is_named(text: str, reason: str) -> None:
    """The answer is unparsed, and says which field is at fault."""
    reader = AnswerReader(labels=BOTH, field="label", answer_field="label", space=LogprobSpace.MASKED)
    found = reader.read(text)
    assert (found.outcome, found.label, found.parts) == (Outcome.UNPARSED, None, ())
    assert reason in found.reason


def test_labels_are_canonical_and_parts_keep_the_order_of_the_fields() -> None:
    """Case does not matter; the order of the answer's keys does not either."""
    reader = AnswerReader(labels=BOTH, field="label", answer_field="label", space=LogprobSpace.NONE)
    found = reader.read('```json\n{"meta": {"urgency": " HIGH"}, "category": "bills"}\n```')
    assert found.label == '{"category": "Bills", "urgency": "high"}'
    assert [part.name for part in found.parts] == ["category", "urgency"]


@pytest.mark.parametrize("field", ["topics", "results[].topic", "a.b[]", "[]", "[].topic"])
@pytest.mark.parametrize("tokens", ["label", "characters"])
def test_every_label_of_a_set_is_in_the_answer_or_not(field: str, tokens: str) -> None:
    """Parts are yes or no for every label, in the order of the label set."""
    said = {'["Food", "Bills"]': 0.6, '["Food"]': 0.3, '["Rent"]': 0.1}
    found = classify(TOPICS, said, field=field, tokens=tokens)
    assert found.label == '["Bills", "Food"]'
    assert {part.name: part.label for part in found.parts} == {"Bills": "yes", "Food": "yes", "Rent": "no"}
    known = {part.name: part.confidence for part in found.parts}
    # Food against Rent, then Bills against the end.
    assert known["Food"] == pytest.approx(0.9)
    assert known["Bills"] == pytest.approx(2 / 3)
    assert known["Rent"] == pytest.approx(0.9)
    assert found.confidence == pytest.approx(0.6)


def test_no_label_at_all_is_an_answer() -> None:
    """The empty list is legal, and as sure as the end was."""
    found = classify(TOPICS, {"[]": 0.7, '["Food"]': 0.3})
    assert (found.label, found.outcome) == ("[]", Outcome.OK)
    assert found.confidence == pytest.approx(0.7)
    assert [part.label for part in found.parts] == ["no"] * 3
    assert [part.confidence for part in found.parts] == pytest.approx([0.9] * 3)


def test_labels_given_twice_count_once() -> None:
    """A schema in strict mode cannot forbid them."""
    found = classify(TOPICS, '["Food", "food", "Food"]')
    assert found.label == '["Food"]'
    assert found.text == '{"topics": ["Food", "food", "Food"]}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"topics": ["Food", "Taxi"]}', "answered 'Taxi' at place 2 of the list"),
        ('{"topics": [["Food"]]}', "answered ['Food'] at place 1"),
        ('{"topics": "Food"}', "Expected an array in the field 'topics'"),
        ('{"topic": []}', "has no 'topics'"),
    ],
)
def test_what_is_no_list_of_labels_is_unparsed(text: str, reason: str) -> None:
    """The reason says what came."""
    reader = AnswerReader(labels=TOPICS, field="topics", answer_field="topics", space=LogprobSpace.MASKED)
    found = reader.read(text)
    assert found.outcome is Outcome.UNPARSED
    assert reason in found.reason


def test_an_element_without_its_key_is_unparsed() -> None:
    """The element is named by its place."""
    reader = AnswerReader(
        labels=TOPICS, field="results[].topic", answer_field="results[].topic", space=LogprobSpace.MASKED
    )
    found = reader.read('{"results": [{"topic": "Food"}, {}]}')
    assert "results[1].topic" in found.reason


@pytest.mark.parametrize(
    ("labels", "said"), [(BOTH, '{"category": "Food", "urgency": "low"}'), (TOPICS, '["Food"]')]
)
def test_without_log_probabilities_there_are_parts_without_confidence(labels: Any, said: str) -> None:
    """The labels are known all the same."""
    found = classify(labels, said, fake_space="none")
    assert found.outcome is Outcome.OK
    assert (found.confidence, found.distribution) == (None, None)
    assert all((part.confidence, part.distribution) == (None, None) for part in found.parts)
    assert len(found.parts) in {2, 3}


@pytest.mark.parametrize("labels", [BOTH, TOPICS])
def test_another_answer_field_is_refused(labels: Any) -> None:
    """Labels and their evidence are read from one place."""
    with pytest.raises(ConfigurationError, match="no answer_field"):
        Classifier(model=FakeClient(labels, {}), labels=labels, field="topics", answer_field="other")


def test_plain_labels_of_the_same_names_have_another_key() -> None:
    """A journal keeps one label, several fields and sets apart, and the paths of fields."""
    plain = ["category=Bills", "category=Food", "category=Rent", "urgency=low", "urgency=high"]
    moved = FieldLabels(
        [Field(name=one.name, labels=one.labels, path=f"x.{one.name}") for one in BOTH.fields]
    )
    known = [
        json.dumps(
            AnswerReader(labels=labels, field="f", answer_field="f", space=LogprobSpace.RAW).describe(),  # type: ignore[arg-type]
            sort_keys=True,
        )
        for labels in (
            Classifier(model=FakeClient(plain, {}), labels=plain).labels,
            BOTH,
            moved,
            MultiLabels(plain),
        )
    ]
    assert len(set(known)) == 4


@pytest.mark.parametrize(
    ("labels", "said"), [(BOTH, JOINT), (TOPICS, {'["Food", "Bills"]': 0.6, '["Rent"]': 0.4})]
)
def test_a_journal_gives_the_parts_back(labels: Any, said: Any) -> None:
    """A second run reads label, confidences and distributions as they were."""
    journal = MemoryJournal()
    fake = FakeClient(labels, {"text": said}, field="topics")
    first, second = (
        Classifier(model=fake, labels=labels, field="topics", journal=journal).classify("text")
        for _ in range(2)
    )
    assert len(fake.requests) == 1
    assert second.attempts == 0
    assert second.parts == first.parts
    assert prediction_from_record(json.loads(json.dumps(prediction_to_record(first)))).parts == first.parts


def test_old_records_have_no_parts() -> None:
    """Records of one label look as they did."""
    record = prediction_to_record(Prediction(label="Food"))
    assert "parts" not in record
    assert prediction_from_record(record).parts == ()


def test_the_effort_changes_and_the_parts_stay() -> None:
    """Copies of a prediction hold what it holds."""
    found = classify(BOTH, JOINT)
    assert found.with_effort(attempts=3, latency_seconds=1.0).parts == found.parts


@pytest.mark.parametrize("labels", [BOTH, TOPICS])
def test_label_priors_are_refused(labels: Any) -> None:
    """They are about one label; the message says what to leave out."""
    fake = FakeClient(labels, {}, field="topics")
    classifier = Classifier(model=fake, labels=labels, field="topics")
    with pytest.raises(ConfigurationError, match="Leave prior_correction out"):
        classifier.prior_correction = object()  # type: ignore[assignment]
    assert classifier.with_prompt("Another").prior_correction is None


def continuing(labels: Any, said: Any, **options: Any) -> FakeContinuingClient:
    """Return a model that can be asked about beginnings of its answer."""
    return FakeContinuingClient(labels, {"text": said}, **options)


@pytest.mark.parametrize("tokens", ["label", "characters"])
@pytest.mark.parametrize("serial", [True, False])
def test_fields_are_scored_one_behind_the_other(tokens: str, serial: bool) -> None:
    """The second field is asked about behind the label chosen for the first, in the same row of the engine."""
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


def test_all_labels_of_all_fields_are_checked_once() -> None:
    """The engine is asked whether its tokens spell them."""
    fake = continuing(BOTH, JOINT)
    Classifier(model=fake, labels=BOTH).classify_many(["text", "text again"])
    assert fake.checked == [("Bills", "Food", "Rent", "low", "high")]


def test_fields_are_scored_in_the_order_of_the_schema() -> None:
    """Paths that belong together stand together in the answer; parts keep the order of the fields."""
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
    assert decoded.text == found.text
    assert decoded.confidence == pytest.approx(0.9)
    assert found.confidence == pytest.approx(0.9)


def test_a_field_without_any_likely_label_is_named() -> None:
    """What the model would write next leads to none of its labels."""
    said = '{"category": "Bills", "urgency": "whenever"}'
    fake = continuing(BOTH, said)
    found = Classifier(model=fake, labels=BOTH).classify("text")
    assert found.outcome is Outcome.UNPARSED
    assert "field 'urgency'" in found.reason


def test_exact_scores_of_sets_and_of_open_schemas_are_refused() -> None:
    """By default such answers are decoded; asked for, the reason is told."""
    topics = continuing(TOPICS, '["Food"]', field="topics")
    assert Classifier(model=topics, labels=TOPICS, field="topics").classify("text").label == '["Food"]'
    with pytest.raises(ConfigurationError, match="how many labels an answer holds"):
        Classifier(model=topics, labels=TOPICS, field="topics", scoring="exact")
    with pytest.raises(ConfigurationError, match="more than the labels of the fields open"):
        Classifier(model=continuing(IN_LIST, "{}"), labels=IN_LIST, scoring="exact")


def test_a_schema_with_other_choices_is_not_scored() -> None:
    """Which choice is which field must be clear, and every label must be legal there."""
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


def test_the_order_of_scoring_is_part_of_a_key() -> None:
    """Two classifiers whose fields have other labels, or another tolerance, do not share answers."""
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


def test_samples_agree_on_whole_answers_and_on_every_part() -> None:
    """The most frequent answer is taken; its parts have the frequencies of their own values."""
    said = [
        '{"category": "Bills", "urgency": "low"}',
        '{"category": "Bills", "urgency": "high"}',
        '{"category": "Food", "urgency": "high"}',
        '{"category": "Bills", "urgency": "high"}',
    ]
    fake = FakeClient(BOTH, {"text": list(said)}, space="none")
    found = Classifier(model=fake, labels=BOTH, scoring="sampled", samples=4, concurrency=1).classify("text")
    assert found.label == said[1]
    assert found.confidence == pytest.approx((2 + 1) / (4 + 2))
    category, urgency = found.parts
    assert (category.label, category.confidence) == ("Bills", pytest.approx((3 + 1) / (4 + 3)))
    assert (urgency.label, urgency.confidence) == ("high", pytest.approx((3 + 1) / (4 + 2)))
    assert distribution_of(category).space is LogprobSpace.SAMPLED
    assert found.attempts == 4


def test_samples_agree_on_every_label_of_a_set() -> None:
    """Sets in another order are the same answer; what cannot be read counts in no part."""
    said = ['["Food", "Bills"]', '["Bills", "Food"]', '["Food"]', '["Taxi"]']
    fake = FakeClient(TOPICS, {"text": list(said)}, field="topics", space="none")
    found = Classifier(
        model=fake, labels=TOPICS, field="topics", scoring="sampled", samples=4, concurrency=1
    ).classify("text")
    assert found.label == '["Bills", "Food"]'
    assert found.confidence == pytest.approx(3 / 5)
    assert [part.confidence for part in found.parts] == pytest.approx([3 / 5, 4 / 5, 4 / 5])
    assert distribution_of(found.parts[0]).label_mass == pytest.approx(3 / 4)


def test_answers_that_lost_their_log_probabilities_are_asked_again() -> None:
    """As with single labels: where others came with them, it is a failed call."""
    bare = fake_response('["Food"]', TOPICS, field="topics", top_logprobs=0)
    fake = FakeClient(TOPICS, {"one": '["Food"]', "two": [bare, ('["Food"]', 0.9)]}, field="topics")
    found = Classifier(model=fake, labels=TOPICS, field="topics", concurrency=1).classify_many(["one", "two"])
    assert found[1].attempts == 2
    assert found[1].confidence is not None


def test_a_server_that_speaks_openais_protocol_answers_with_several_labels() -> None:
    """From the request's schema to the parts, over loopback."""
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
    assert found.label == '["Food", "Rent"]'
    assert len(found.parts) == 3
    schema = sent["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["properties"]["topics"]["items"] == {"type": "string", "enum": list(TOPICS)}


def test_a_fake_answer_must_be_a_whole_one() -> None:
    """What is no JSON of the right kind, or not legal but to have a probability, is a mistake in a test."""
    for labels, said in ((TOPICS, "Food"), (TOPICS, "{}"), (BOTH, "[]"), (BOTH, "Food")):
        with pytest.raises(ConfigurationError, match="whole answer"):
            fake_response(said, labels)
    with pytest.raises(ConfigurationError, match="legal answer"):
        asyncio.run(_ask(FakeClient(TOPICS, {"": ('["Taxi"]', 0.5)})))


async def _ask(client: FakeClient) -> object:
    return await client.complete(CompletionRequest(messages=({"role": "user", "content": "x"},)))


def test_fake_tokens_spell_the_text_and_hold_the_probabilities() -> None:
    """The product of the emitted tokens' probabilities is that of the answer."""
    response = fake_response(
        '["Food", "Bills"]', TOPICS, {'["Food", "Bills"]': 0.6, '["Food"]': 0.4}, field="a.b"
    )
    choice = response["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in tokens).decode() == choice["message"]["content"]
    assert json.loads(choice["message"]["content"]) == {"a": {"b": ["Food", "Bills"]}}
    assert math.exp(sum(one["logprob"] for one in tokens)) == pytest.approx(0.6)
