"""Tests of heads that read vectors of texts, which a server computes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibrant.core import ConfigurationError, LimitReachedError, Limits, Outcome, ProviderError
from calibrant.heads import Head
from calibrant.inference import Classifier, open_embedding_model
from calibrant.sklearn import CalibrantClassifier
from calibrant.testing import FakeClient
from embedding_server import TOKENS, EmbeddingServer
from synonyms import KNOWN, LABELS, UNSEEN


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    """Return a server of embeddings."""
    found = EmbeddingServer()
    yield found
    found.stop()


def unsure() -> Classifier:
    """Return a classifier by a model that knows nothing."""
    fake = FakeClient(LABELS, lambda _: {"cat": 0.6, "dog": 0.4})
    return Classifier(model=fake, labels=LABELS, field="category")


def fitted(server: EmbeddingServer) -> Classifier:
    """Return a classifier with a head that reads vectors of the server."""
    classifier = unsure().fit(*KNOWN, embeddings=server.name)
    assert classifier.head is not None
    assert classifier.head.uses_embedding
    return classifier


def reloaded(classifier: Classifier, folder: Path) -> Classifier:
    """Return another classifier with the head as its file holds it."""
    assert classifier.head is not None
    classifier.head.save(folder / "head.json", fingerprint=classifier.fingerprint())
    other = unsure()
    other.head = Head.load(folder / "head.json", fingerprint=other.fingerprint())
    return other


def test_texts_share_calls_and_another_run_asks_for_one_fixed_text(
    server: EmbeddingServer, tmp_path: Path
) -> None:
    """Known texts are not asked for again, but one fixed text is."""
    first = fitted(server)
    assert len(server.calls) < 6
    asked = len(server.calls)
    expected = first.classify_many(KNOWN[0])
    other = reloaded(first, tmp_path)
    found = other.classify_many(KNOWN[0])
    assert [one.confidence for one in found] == [one.confidence for one in expected]
    assert len(server.texts) == len(set(server.texts)) + 1
    assert server.calls[asked:] == [[server.calls[0][0]]]


def test_sketches_are_of_the_vectors_that_the_head_read(server: EmbeddingServer) -> None:
    """Each answer of the head has a sketch, for which no vector is asked for again; equal texts have equal ones."""
    classifier = fitted(server)
    found = classifier.classify_many([*KNOWN[0], KNOWN[0][0]])
    sketches = [one.sketch for one in found if one.sketch is not None]
    assert [len(sketch) for sketch in sketches] == [64] * (len(KNOWN[0]) + 1)
    assert sketches[0].tolist() == sketches[-1].tolist()
    assert len({sketch.tobytes() for sketch in sketches}) > 1
    assert len(server.texts) == len(set(server.texts))
    assert [one.sketch for one in unsure().classify_many(KNOWN[0][:2])] == [None, None]


def test_the_history_of_an_estimator_holds_sketches(server: EmbeddingServer) -> None:
    """An estimator whose head reads vectors can be watched for topics; of words alone its rows are no measure."""
    fake = FakeClient(LABELS, lambda _: {"cat": 0.6, "dog": 0.4}, field="label")
    history = CalibrantClassifier(model=fake, embeddings=server.name).fit(*KNOWN).tuned_.history
    assert history.sketches is not None
    assert (len(history.sketches.labels), history.sketches.matrix.shape[1]) == (len(KNOWN[0]), 64)
    assert len(server.texts) == len(set(server.texts))
    words = CalibrantClassifier(model=fake, embeddings=False).fit(*KNOWN).tuned_
    assert words.head is not None
    assert words.head.uses_text
    assert words.history.sketches is None


def test_every_vector_is_charged(server: EmbeddingServer, tmp_path: Path) -> None:
    """The texts, the names of the labels and the texts that recognise the model count as tokens."""
    used = fitted(server)
    without = unsure().fit(*KNOWN, embeddings=False)
    assert used.meter.tokens - without.meter.tokens == TOKENS * len(server.texts)
    server.calls.clear()
    opened = reloaded(used, tmp_path)
    assert opened.meter.tokens == TOKENS * len(server.texts) > 0


def test_a_budget_of_calls_is_that_of_the_model(server: EmbeddingServer) -> None:
    """An estimator that may ask the model once about each text has its vectors all the same."""
    fake = FakeClient(LABELS, lambda _: {"cat": 0.6, "dog": 0.4}, field="label")
    n_texts = len(set(KNOWN[0]))
    estimator = CalibrantClassifier(model=fake, embeddings=server.name, max_calls=n_texts)
    assert estimator.fit(*KNOWN).predict(UNSEEN[0]).tolist() == UNSEEN[1]
    assert estimator.n_calls_ == n_texts


def test_a_spent_budget_ends_the_vectors_of_a_fit(server: EmbeddingServer) -> None:
    """It is looked at before each call, and the vectors that were paid for are there the next time."""
    known, answers = [f"{n} {text}" for n, text in enumerate(KNOWN[0] * 15)], KNOWN[1] * 15
    without = unsure().fit(known, answers, embeddings=False).meter.tokens
    fake = FakeClient(LABELS, lambda _: {"cat": 0.6, "dog": 0.4})
    limits = Limits(max_tokens=without + 300 * TOKENS)
    limited = Classifier(model=fake, labels=LABELS, field="category", limits=limits)
    with pytest.raises(LimitReachedError, match=r"max_tokens .* \(512 of 603 texts have their vectors\)"):
        limited.fit(known, answers, embeddings=server.name)
    paid = set(server.texts)
    assert len(paid) == 1 + 512
    server.calls.clear()
    unsure().fit(known, answers, embeddings=server.name)
    assert not paid & set(server.texts[1:])


def test_another_model_under_the_name_is_noticed(server: EmbeddingServer, tmp_path: Path) -> None:
    """A server with another model of the same dimension raises ConfigurationError, whatever is on disk."""
    first = fitted(server)
    server.change_model()
    with pytest.raises(ConfigurationError, match="fit the head again"):
        reloaded(first, tmp_path)


def test_vectors_of_another_model_are_not_used_for_a_fit(server: EmbeddingServer) -> None:
    """A fit after the server's model was changed asks for all texts again."""
    fitted(server)
    server.change_model()
    server.calls.clear()
    again = fitted(server)
    assert set(KNOWN[0]) <= set(server.texts)
    assert [one.label for one in again.classify_many(UNSEEN[0])] == UNSEEN[1]


@pytest.mark.parametrize("fault", ["without", "broken"])
def test_a_text_without_a_usable_vector_fails_alone_or_with_its_call(
    server: EmbeddingServer, fault: str
) -> None:
    """A vector that is no number fails its row; an answer without a vector for each text fails its call."""
    classifier = fitted(server)
    getattr(server, fault).add("kitty here")
    found = classifier.classify_many(["kitty here", "hound there"])
    assert found[0].outcome is Outcome.ERROR
    assert "vector" in found[0].reason
    assert (found[1].label == "dog") == (fault == "broken")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_fails_its_row(server: EmbeddingServer, number: float) -> None:
    """NaN and infinity fail the row of their text alone, and another call may mend it."""
    classifier = fitted(server)
    server.number, server.broken = number, {"kitty here"}
    found = classifier.classify_many(["kitty here", "hound there"])
    assert [one.outcome for one in found] == [Outcome.ERROR, Outcome.OK]
    assert "finite numbers" in found[0].reason
    server.broken.clear()
    assert classifier.classify("kitty here").label == "cat"


def test_another_dimension_in_the_midst_fails_its_rows(server: EmbeddingServer) -> None:
    """Rows of a call with longer vectors fail with what was expected; the others keep their labels."""
    classifier = fitted(server)
    server.widened = {"0 kitty"}
    found = classifier.classify_many([f"{n} hound" for n in range(256)] + [f"{n} kitty" for n in range(9)])
    assert [one.label for one in found[:256]] == ["dog"] * 256
    assert {one.outcome for one in found[256:]} == {Outcome.ERROR}
    assert "Expected vectors of 10 numbers, as before, got 11" in found[-1].reason


def test_a_server_that_refuses_in_the_midst_ends_the_run_with_its_reason(server: EmbeddingServer) -> None:
    """Rows without vectors fail one after another until no other can be expected to succeed."""
    classifier = fitted(server)
    server.failing_from = 2
    with pytest.raises(ProviderError, match=r"rows all failed.*401"):
        classifier.classify_many([f"{n} hound" for n in range(300)])
    assert len(server.calls) < 9
    server.failing_from = 1_000
    server.calls.clear()
    assert classifier.classify("0 hound").label == "dog"


def test_blank_and_equal_texts_are_not_asked_for(server: EmbeddingServer) -> None:
    """A blank text has no vector to ask for, and equal texts share one."""
    classifier = fitted(server)
    server.calls.clear()
    found = classifier.classify_many(["hound", " ", "hound", "\n", "hound"])
    assert server.texts == ["hound"]
    assert {one.label for one in found[::2]} == {"dog"}


def test_long_texts_share_a_call_up_to_its_size(server: EmbeddingServer) -> None:
    """A call holds texts of at most 300,000 bytes: two of three long ones, after the fixed text."""
    lengths = {"a": 200_000, "b": 150_000, "c": 150_000}
    open_embedding_model(server.name).vectors([letter * length for letter, length in lengths.items()])
    assert sorted(map(len, server.calls)) == [1, 1, 2]


def test_a_classifier_serves_several_loops(server: EmbeddingServer) -> None:
    """Loops one after another, and synchronous calls between them and inside one, get equal answers."""
    classifier = fitted(server)

    async def asked(text: str) -> str | None:
        synchronous = classifier.classify(f"{text} again")
        awaited = await classifier.aclassify(text)
        assert synchronous.label == awaited.label
        return awaited.label

    assert [asyncio.run(asked(text)) for text in UNSEEN[0][:6]] == UNSEEN[1][:6]
    assert [one.label for one in classifier.classify_many(UNSEEN[0])] == UNSEEN[1]


def test_a_server_that_is_busy_is_asked_again(server: EmbeddingServer) -> None:
    """Statuses 429 and 500 are retried."""
    classifier = fitted(server)
    server.statuses = [429, 500]
    assert classifier.classify("hound").label == "dog"


def test_a_server_that_refuses_fails_the_fit_first(server: EmbeddingServer) -> None:
    """Status 401 raises ProviderError before the model is asked."""
    server.statuses = [401]
    fake = FakeClient(LABELS, lambda _: {"cat": 0.6, "dog": 0.4})
    classifier = Classifier(model=fake, labels=LABELS, field="category")
    with pytest.raises(ProviderError):
        classifier.fit(*KNOWN, embeddings=server.name)
    assert not fake.requests
