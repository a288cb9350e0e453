"""Tests of heads that read texts through an embedding model beside their words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from calibrant.core import ConfigurationError, Fingerprint, LogprobSpace, StateError
from calibrant.heads import Head, fit_head
from head_rows import noise
from synonyms import KNOWN, LABELS, UNSEEN, Synonyms, texts

FINGERPRINT = Fingerprint(prompt="Which?", model="openai/a", space=LogprobSpace.RAW, labels=LABELS)


def unsure(n: int) -> NDArray[np.float64]:
    """Return the scores of a model that knows nothing."""
    return np.log(np.full((n, 2), 0.5))


def places(answers: Sequence[str]) -> list[int]:
    """Return the positions of the answers among the labels."""
    return [LABELS.index(answer) for answer in answers]


def fitted(**options: Any) -> Head:
    """Return a head that is fitted on the texts with known words."""
    given, answers = KNOWN
    return fit_head(unsure(len(given)), places(answers), labels=LABELS, texts=given, **options)


@pytest.fixture(scope="module")
def head() -> Head:
    """Return a head that reads with an embedding model."""
    return fitted(embedding=Synonyms())


def accuracy(head: Head) -> float:
    """Return a head's accuracy on texts whose words are in no labelled row."""
    found = head.transform(unsure(len(UNSEEN[0])), UNSEEN[0]).argmax(axis=1)
    return float((found == places(UNSEEN[1])).mean())


def test_a_word_never_seen_is_known_by_its_synonym(head: Head) -> None:
    """A head with an embedding model knows words of no labelled row by their synonyms."""
    assert head.uses_embedding
    assert (head.uses_text, list(head.strengths)[-1]) == (True, "embeddings")
    assert accuracy(head) == 1.0
    assert accuracy(fitted()) < 0.8


def test_the_vector_of_a_name_stands_for_a_label_without_rows() -> None:
    """A text with a synonym of a label's name makes that label likelier, though no row has it."""
    given = [f"{text} lamp" for text in texts(30, words=("purring", "moss"))[0]]
    answers = [0 if "purring" in text else 1 for text in given]
    options: dict[str, Any] = {"labels": ("cat", "moss", "dog"), "texts": given}
    scored = np.log(np.full((30, 3), 1 / 3))
    found = {}
    for name, embedding in (("words", None), ("both", Synonyms())):
        head = fit_head(scored, answers, embedding=embedding, **options)
        assert head.uses_embedding == (embedding is not None)
        found[name] = np.exp(head.transform(scored[:1], ["hound"]))[0, 2]
    assert found["both"] > 3.0 * found["words"]


def test_a_saved_head_names_its_model_and_waits_for_it(head: Head, tmp_path: Path) -> None:
    """A loaded head raises ConfigurationError until it gets a model with the same vectors."""
    path = tmp_path / "head.json"
    head.save(path, fingerprint=FINGERPRINT)
    loaded = Head.load(path, fingerprint=FINGERPRINT)
    assert loaded.describe()["embedding"] == "model2vec:synonyms"
    assert loaded.digest == head.digest
    with pytest.raises(ConfigurationError, match=r"'model2vec:synonyms' to be open.*with_embedding"):
        accuracy(loaded)
    assert accuracy(loaded.with_embedding(Synonyms("elsewhere"))) == 1.0


class Wider(Synonyms):
    """Embedding model whose vectors have one number more."""

    def vectors(self, texts: list[str]) -> NDArray[np.float64]:
        """Return the vectors, shape (n, 9)."""
        return np.hstack([super().vectors(texts), np.ones((len(texts), 1))])


@pytest.mark.parametrize("other", [Synonyms("other", seed=1), Wider("other")])
def test_another_model_is_refused(head: Head, other: Synonyms) -> None:
    """A model with other vectors raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"'model2vec:synonyms'.*got 'other'.*fit the head again"):
        head.with_embedding(other)


def test_a_head_sent_elsewhere_leaves_its_model_behind(head: Head) -> None:
    """A pickled head has no embedding model until it is given one."""
    sent = pickle.loads(pickle.dumps(head))  # noqa: S301 (its own)
    assert sent.embedding == head.embedding
    assert sent.embedding.model is None
    assert accuracy(sent.with_embedding(Synonyms())) == 1.0


def test_a_head_that_reads_no_text_needs_no_model() -> None:
    """A head that uses no text has no embedding model."""
    logprobs, answers = noise(60)
    head = fit_head(
        logprobs, answers, labels=("a", "b", "c"), texts=UNSEEN[0] + KNOWN[0][:20], embedding=Synonyms()
    )
    assert not head.uses_text
    assert head.embedding is None
    assert head.with_embedding(Synonyms()) is head
    assert "embedding" not in head.describe()


@pytest.mark.parametrize("broken", [np.zeros((1, 8)), np.zeros(40), np.full((40, 8), np.nan)])
def test_vectors_that_are_none_are_refused(broken: ArrayLike) -> None:
    """Vectors that are not one row of finite numbers for each text raise ConfigurationError."""

    class Broken(Synonyms):
        def vectors(self, texts: list[str]) -> Any:
            return super().vectors(texts) if len(texts) < 40 else broken

    with pytest.raises(ConfigurationError, match="a vector of finite numbers for each of 40 texts"):
        fitted(embedding=Broken())


def test_texts_that_have_no_bytes_are_read(head: Head) -> None:
    """A text with half a surrogate pair is read by the embedding model."""

    class Strict(Synonyms):
        def vectors(self, texts: list[str]) -> NDArray[np.float64]:
            [text.encode() for text in texts]
            return super().vectors(texts)

    found = head.with_embedding(Strict()).transform(unsure(1), ["\ud800 hound"])
    assert found.argmax() == 1


@pytest.mark.parametrize("damage", ["missing", "name", "probe"])
def test_a_damaged_file_is_refused(head: Head, tmp_path: Path, damage: str) -> None:
    """A file without a valid embedding model raises StateError."""
    path = tmp_path / "head.json"
    head.save(path, fingerprint=FINGERPRINT)
    record = json.loads(path.read_text())
    if damage == "missing":
        del record["state"]["embedding"]
    else:
        record["state"]["embedding"][damage] = {"name": 3, "probe": [[1.0]]}[damage]
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match="damaged"):
        Head.load(path, fingerprint=FINGERPRINT)
