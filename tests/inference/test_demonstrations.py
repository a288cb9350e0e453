"""Tests of retrieved demonstrations: prompts show the labelled texts nearest to a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.cascade import AvgLogprob, Cascade
from calibrant.core import (
    ConfigurationError,
    DemonstrationSettings,
    Example,
    Field,
    FieldLabels,
    LabelSet,
    Limits,
    MultiLabels,
    Query,
    Task,
)
from calibrant.inference import Classifier, DemonstrationIndex, RetryPolicy
from calibrant.testing import FakeClient, MemoryJournal
from synonyms import install_model2vec, without_model2vec

LABELS = ("cat", "dog", "cow")
ROWS = {
    "my kitten purrs on the sofa": "cat",
    "a kitten with stripes": "cat",
    "the kitten sleeps": "cat",
    "the puppy barks at night": "dog",
    "a brown puppy": "dog",
    "a calf in the meadow": "cow",
}
KITTEN = "where is the kitten?"


def index_of(rows: dict[str, str] = ROWS, **options: Any) -> DemonstrationIndex:
    """Return an index of labelled texts."""
    return DemonstrationIndex(list(rows), list(rows.values()), **{"labels": LABELS, **options})


def majority(_: str, system: str) -> str:
    """Answer with the label that the prompt shows most often."""
    return max(LABELS, key=lambda label: system.count(f'"{label}"'))


def make(client: Any = None, **options: Any) -> Classifier:
    """Return a classifier without demonstrations."""
    settings = {"labels": LABELS, "field": "category", "prompt": "Which animal?", **options}
    return Classifier(model=client or FakeClient(LABELS, majority), retry=RetryPolicy(attempts=1), **settings)


def systems(client: Any) -> list[str]:
    """Return the system prompts of a fake's requests."""
    return [request.messages[0]["content"] for request in client.requests]


def shown(index: DemonstrationIndex, text: str, **settings: Any) -> list[str]:
    """Return the texts that are shown with a text, in order."""
    (found,) = index.select([text], DemonstrationSettings.of(settings))
    return [one.text for one in found]


# --- what is shown ------------------------------------------------------------------------------


def test_nearest_texts_follow_the_instruction() -> None:
    """The system prompt shows the nearest text with its answer in the form the model must write."""
    client = FakeClient(LABELS, majority)
    classifier = make(client).with_demonstrations(index_of(), k=1)
    assert classifier.classify("which puppy barks at night?").label == "dog"
    system, user = (message["content"] for message in client.requests[0].messages)
    assert system == (
        'Which animal?\n\nExamples:\n\nText: the puppy barks at night\nAnswer: {"category": "dog"}'
    )
    assert user == "which puppy barks at night?"


def test_balanced_takes_each_label_in_turn() -> None:
    """``nearest`` shows the three nearest texts, and ``balanced`` the nearest text of each label."""
    index = index_of()
    kittens = {text for text, label in ROWS.items() if label == "cat"}
    assert set(shown(index, KITTEN, k=3)) == kittens
    (found,) = index.select([KITTEN], DemonstrationSettings(k=3, balance="balanced"))
    assert sorted(one.label for one in found) == ["cat", "cow", "dog"]
    (found,) = index.select([KITTEN], DemonstrationSettings(k=5, balance="balanced"))
    assert sorted(one.label for one in found) == ["cat", "cat", "cow", "dog", "dog"]
    assert "the kitten sleeps" in [one.text for one in found]


@pytest.mark.parametrize("text", ["the kitten sleeps", "  The  KITTEN\n sleeps "])
def test_a_text_never_sees_itself(text: str) -> None:
    """A text is not shown to itself, also in another case or with other white space."""
    found = shown(index_of(), text, k=6)
    assert sorted(found) == sorted(set(ROWS) - {"the kitten sleeps"})


def test_held_out_rows_are_never_shown() -> None:
    """Held-out rows are not part of the index."""
    index = index_of(held_out=["A brown  puppy"])
    assert len(index) == 5
    assert "a brown puppy" not in shown(index, "a puppy that is brown", k=5)


def test_equal_rows_count_once() -> None:
    """Equal rows count once, and rows of one text with different answers are both kept."""
    index = DemonstrationIndex(["a cat", "a  cat", " ", "a cat"], ["cat", "CAT", "dog", "dog"], labels=LABELS)
    assert [(row.text, row.label) for row in index.rows] == [("a cat", "cat"), ("a cat", "dog")]


def test_order_is_equal_for_equal_texts() -> None:
    """The order of demonstrations depends on the text and the seed, and is the same for equal texts."""
    index = index_of()
    texts = [f"the kitten sleeps {number}" for number in range(40)]
    settings = DemonstrationSettings(k=3)
    orders = index.select(texts, settings)
    assert orders == index.select(texts, settings)
    places = {[one.text for one in order].index("the kitten sleeps") for order in orders}
    assert places == {0, 1, 2}
    assert orders != index.select(texts, DemonstrationSettings(k=3, seed=1))


@pytest.mark.parametrize("text", ["", "  ", "?!", "\ud800", "völlig anders"])
def test_unknown_words_still_show_demonstrations(text: str) -> None:
    """A text without a known word gets as many demonstrations as any other text."""
    assert len(shown(index_of(), text, k=2)) == 2
    assert len(shown(index_of({"!": "cat", "?": "dog"}), text, k=1)) == 1


def test_several_fields_show_whole_answers() -> None:
    """Demonstrations of answers with several fields show the whole answer."""
    fields = FieldLabels([Field(name="a", labels=["x", "y"]), Field(name="b", labels=["1", "2"])])
    client = FakeClient(fields, {}, default='{"a": "x", "b": "2"}')
    index = DemonstrationIndex(["one"], ['{"b": "2", "a": "x"}'], labels=fields)
    Classifier(model=client, labels=fields).with_demonstrations(index, k=1).classify("two")
    assert systems(client)[0].endswith('Text: one\nAnswer: {"a": "x", "b": "2"}')


@pytest.mark.parametrize(
    ("labels", "field", "label", "answer"),
    [
        (LabelSet(LABELS), "a.b[].c", "cat", '{"a": {"b": [{"c": "cat"}]}}'),
        (MultiLabels(LABELS), "topics", '["cow", "cat"]', '{"topics": ["cat", "cow"]}'),
        (MultiLabels(LABELS), "a[].b", '["dog"]', '{"a": [{"b": "dog"}]}'),
        (MultiLabels(LABELS), "[].b", "[]", "[]"),
    ],
)
def test_format_writes_answers_at_any_path(labels: Any, field: str, label: str, answer: str) -> None:
    """A demonstration's answer is the JSON that the field's path describes."""
    client = FakeClient(labels, {}, default=label, field=field)
    index = DemonstrationIndex(["one"], [labels.canonical(label)], labels=labels)
    Classifier(model=client, labels=labels, field=field).with_demonstrations(index, k=1).classify("two")
    assert systems(client)[0].endswith(f"Text: one\nAnswer: {answer}")


def test_model2vec_retrieves_synonyms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model2vec retriever shows the nearest embedding; a missing extra raises ConfigurationError."""
    install_model2vec(monkeypatch, {"minishlab/potion-base-8M": 0})
    index = index_of({"purring": "cat", "barking": "dog", "grazing": "cow"})
    assert shown(index, "a hound", k=1, retriever="model2vec") == ["barking"]
    assert len(shown(index, "", k=2, retriever="model2vec")) == 2
    without_model2vec(monkeypatch)
    with pytest.raises(ConfigurationError, match="extra embeddings"):
        shown(index_of(), "x", k=1, retriever="model2vec")


# --- the classifier -----------------------------------------------------------------------------


def test_fit_queries_rows_without_themselves() -> None:
    """`fit` sends every labelled row once, without the row's own demonstration."""
    client = FakeClient(LABELS, majority)
    classifier = make(client).with_demonstrations(index_of(), k=5)
    classifier.fit(list(ROWS), list(ROWS.values()))
    assert len(client.requests) == len(ROWS)
    for request in client.requests:
        system, user = (message["content"] for message in request.messages)
        assert system.count("Text: ") == 5
        assert f"Text: {user}\n" not in system


def test_journal_answers_equal_prompts() -> None:
    """The journal answers equal texts with equal demonstrations, and no others."""
    client, journal = FakeClient(LABELS, majority), MemoryJournal()
    first = make(client, journal=journal).with_demonstrations(index_of(), k=3)
    first.classify_many([KITTEN, KITTEN, "a calf"])
    assert len(client.requests) == 2
    make(client, journal=journal).with_demonstrations(index_of(), k=3).classify(KITTEN)
    assert len(client.requests) == 2
    make(client, journal=journal).with_demonstrations(index_of(), k=2).classify(KITTEN)
    make(client, journal=journal).classify(KITTEN)
    assert len(client.requests) == 4


def test_distant_rows_change_no_prompt() -> None:
    """A stored answer stays valid if a row is added that its prompt does not show."""
    client, journal = FakeClient(LABELS, majority), MemoryJournal()
    make(client, journal=journal).with_demonstrations(index_of(), k=1).classify("the kitten sleeps!")
    more = index_of({**ROWS, "quite another thing": "cow"})
    make(client, journal=journal).with_demonstrations(more, k=1).classify("the kitten sleeps!")
    assert len(client.requests) == 1


def test_request_shows_the_same_demonstrations() -> None:
    """`request` shows the demonstrations of a call, and a k above the index raises ConfigurationError."""
    client = FakeClient(LABELS, majority)
    classifier = make(client).with_demonstrations(index_of(), k=2)
    classifier.classify(KITTEN)
    query = Query(prompt="Which animal?", text=KITTEN)
    assert classifier.request(query).messages == client.requests[0].messages
    with pytest.raises(ConfigurationError, match="k between 1 and 6"):
        classifier.request(replace(query, demonstrations='{"k": 7}'))


def test_without_text_has_no_demonstrations() -> None:
    """The messages without the text hold no demonstrations, so they are equal for all rows."""
    client = FakeClient(LABELS, majority)
    make(client).with_demonstrations(index_of(), k=2).classify_many([KITTEN, "a calf"])
    expected = ({"role": "system", "content": "Which animal?"}, {"role": "user", "content": ""})
    assert [request.without_text for request in client.requests] == [expected, expected]


def test_fingerprint_covers_settings_and_rows() -> None:
    """Fingerprint and description change with every setting and with the rows of the index."""
    plain = make()
    found = plain.with_demonstrations(index_of(), k=2).fingerprint()
    assert found == make().with_demonstrations(index_of(), k=2).fingerprint()
    assert plain.with_demonstrations(index_of(), k=2).with_demonstrations(None).fingerprint() == (
        plain.fingerprint()
    )
    others = [
        plain,
        plain.with_demonstrations(index_of(), k=3),
        plain.with_demonstrations(index_of(), k=2, balance="balanced"),
        plain.with_demonstrations(index_of(), k=2, seed=1),
        plain.with_demonstrations(index_of(held_out=["a brown puppy"]), k=2),
    ]
    assert found.digest() not in {other.fingerprint().digest() for other in others}
    assert len({json.dumps(other.describe()) for other in others}) == len(others)


def test_copies_keep_demonstrations_without_head() -> None:
    """Copies keep the demonstrations; a head learned without demonstrations is dropped."""
    client = FakeClient(LABELS, majority)
    fitted = make(client).fit(list(ROWS) * 5, list(ROWS.values()) * 5)
    classifier = fitted.with_demonstrations(index_of(), k=1)
    assert fitted.head is not None
    assert classifier.head is None
    for copy in (classifier.with_limits(Limits(concurrency=1)), classifier.with_prompt("What is it?")):
        copy.classify("the puppy barks at night!")
        assert "Text: the puppy barks at night\n" in systems(client)[-1]


def test_task_classifiers_show_training_rows() -> None:
    """A task's classifier shows training rows whose text is not a validation or test row."""
    client = FakeClient(LABELS, majority)
    train = tuple(Example(input=text, answer=answer) for text, answer in ROWS.items())
    task = Task(
        name="t",
        labels=LabelSet(LABELS),
        prompt="Which animal?",
        train=train,
        validation=(Example(input="A calf in the meadow", answer="cow"),),
        test=(Example(input="a brown puppy ", answer="dog"),),
        demonstrations=DemonstrationSettings(k=4),
    )
    with Classifier.from_task(task, client=client) as classifier:
        classifier.classify("everything")
    assert systems(client)[0].count("Text: ") == 4
    assert "calf" not in systems(client)[0]
    assert "brown" not in systems(client)[0]


def test_unread_rows_are_read_from_files(write_task: Callable[..., Path]) -> None:
    """Splits that were not read are read from the task's files, and held-out rows are left out."""
    rows = [{"input": text, "answer": answer} for text, answer in ROWS.items() if answer != "cow"]
    path = write_task(extra="[demonstrations]\nk = 2\n", train=rows, test=rows[:1])
    task = Task.from_file(path, splits=())
    index = DemonstrationIndex.from_task(task)
    assert {row.text for row in index.rows} == {row["input"] for row in rows[1:]}
    assert index.to_text() == DemonstrationIndex.from_task(Task.from_file(path)).to_text()


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "greater than or equal to 1"),
        ({"k": 7}, "k between 1 and 6"),
        ({"retriever": "bm25"}, "'tfidf' or 'model2vec'"),
        ({"balance": "even"}, "'nearest' or 'balanced'"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    """Settings out of range raise ConfigurationError before any call."""
    with pytest.raises(ConfigurationError, match=message):
        make().with_demonstrations(index_of(), **settings)


@pytest.mark.parametrize(
    ("texts", "answers", "message"),
    [
        ([], [], "none among 0"),
        (["a"], [], "an answer for each of 1"),
        (["a"], ["bird"], "bird"),
        (["held out"], ["cat"], "none among 1"),
    ],
)
def test_unusable_rows_are_refused(texts: list[str], answers: list[str], message: str) -> None:
    """Missing, unlabelled, illegal and held-out rows raise ConfigurationError with the reason."""
    with pytest.raises(ConfigurationError, match=message):
        DemonstrationIndex(texts, answers, labels=LABELS, held_out=["Held  out"])


def test_index_of_other_labels_is_refused() -> None:
    """An index with other labels, or the same in another order, raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"labels=classifier\.labels"):
        make().with_demonstrations(index_of(labels=LABELS[::-1]))


def test_task_without_training_rows_is_refused() -> None:
    """A task that shows demonstrations without training rows raises ConfigurationError."""
    task = Task(name="t", labels=LabelSet(LABELS), prompt="?", demonstrations=DemonstrationSettings())
    with pytest.raises(ConfigurationError, match="Expected training rows of task 't'"):
        Classifier.from_task(task, client=FakeClient(LABELS, majority))


def test_cascade_takes_no_demonstrations() -> None:
    """A cascade takes no demonstrations of its own, while its classifiers keep theirs."""
    client = FakeClient(LABELS, majority, name="small")
    small, large = make(client).with_demonstrations(index_of(), k=1), make(FakeClient(LABELS, majority))
    cascade = Cascade([small, large], method=AvgLogprob(), threshold=0.5)
    cascade.classify("a brown puppy!")
    assert "Text: a brown puppy\n" in systems(client)[0]
    with pytest.raises(ConfigurationError, match="no demonstrations for a whole cascade"):
        ConfidenceAdapter.from_classifier(cascade, demonstrations=index_of())


def test_from_text_reads_only_an_index() -> None:
    """`from_text` reads the text of `to_text`; other text raises ConfigurationError."""
    index = index_of()
    assert DemonstrationIndex.from_text(index.to_text(), labels=LabelSet(LABELS)).rows == index.rows
    for text in ("{", "[]\n", '{"input": 1, "answer": "cat"}\n', '{"answer": "cat"}\n'):
        with pytest.raises(ConfigurationError, match="JSON Lines"):
            DemonstrationIndex.from_text(text, labels=LabelSet(LABELS))
