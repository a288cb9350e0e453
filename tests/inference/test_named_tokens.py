"""Tests of heads on the log-probabilities of tokens that a server is asked for by name."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant import load
from calibrant.core import ConfigurationError, ProviderError
from calibrant.core._completion import named_features
from calibrant.heads import Head
from calibrant.inference import Classifier
from calibrant.testing import MemoryJournal
from echo_model import PREFIX
from naming_server import NamingServer, TellingModel, named_by, template_of

LABELS = ("Spa", "Bill")
TEXTS = [f"text {number}" for number in range(40)]
KINDS = ("vllm", "sglang", "llama.cpp")
Start = Callable[..., NamingServer]


@pytest.fixture
def serve() -> Iterator[Start]:
    """Return a function that starts a server of a kind, which names tokens or does not."""
    running: list[NamingServer] = []

    def start(kind: str, *, names_tokens: bool = True) -> NamingServer:
        running.append(NamingServer(kind, names_tokens=names_tokens))
        return running[-1]

    yield start
    for found in running:
        found.stop()


def classifier_of(server: NamingServer, **options: Any) -> Classifier:
    """Return a classifier that scores labels exactly on a server."""
    return Classifier(
        model=f"hosted_vllm/toy-{server.root.rpartition(':')[2]}",
        labels=LABELS,
        prompt="Which one?",
        scoring="exact",
        tolerance="exact",  # so that llama.cpp lists all tokens, named or not
        options={"api_base": server.root, **template_of(server.kind)},
        **options,
    )


def truth(server: NamingServer) -> list[str]:
    """Return labels that the next tokens tell."""
    return [LABELS[server.model.kind_after(server.tokens_before_label(text))] for text in TEXTS]


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_the_named_log_probabilities(serve: Start, kind: str) -> None:
    """Features are the centred log-probabilities of the named tokens where the label begins."""
    server = serve(kind)
    with classifier_of(server) as classifier:
        asking = classifier.with_features(TEXTS)
        tokens = asking.method.named_tokens
        assert len(set(tokens)) == len(tokens) == min(128 if kind == "vllm" else 256, 270)
        for text, found in zip(TEXTS[:3], asking.classify_many(TEXTS[:3]), strict=True):
            expected = server.model.after(server.tokens_before_label(text))[list(tokens)]
            assert found.features is not None
            np.testing.assert_allclose(found.features, expected - expected.mean(), atol=0.01)
        assert classifier.classify(TEXTS[0]).features is None


@pytest.mark.parametrize("kind", KINDS)
def test_labels_come_out_as_without_names(serve: Start, kind: str) -> None:
    """Naming tokens changes no distribution, and takes no further call but on SGLang."""
    server = serve(kind)
    with classifier_of(server) as classifier:
        asking = classifier.with_features(TEXTS)
        asking.classify(TEXTS[0])  # which finds out what the server can do
        before = len(server.asked)
        plain = classifier.classify(TEXTS[1])
        between = len(server.asked)
        named = asking.classify(TEXTS[1])
        extra = (len(server.asked) - between) - (between - before)
    assert extra == (1 if kind == "sglang" else 0)
    assert plain.distribution is not None
    assert named.distribution is not None
    np.testing.assert_allclose(named.distribution.logprobs, plain.distribution.logprobs, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_is_saved_with_what_its_client_was_set_up_with(
    serve: Start, kind: str, tmp_path: Path
) -> None:
    """A bundle holds the chat template that a server needs, and gives the answers of the classifier with its head."""
    server = serve(kind)
    with classifier_of(server).fit(TEXTS, truth(server), embeddings=False) as classifier:
        found = classifier.classify_many(TEXTS[:3])
        classifier.tuned.save(tmp_path / "bundle")
    with load(tmp_path / "bundle") as again:
        same = again.classify_many(TEXTS[:3])
    assert [(one.label, one.confidence) for one in same] == [(one.label, one.confidence) for one in found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_names_its_tokens_after_loading(serve: Start, kind: str, tmp_path: Path) -> None:
    """A head keeps the tokens in its file, and a classifier that loads it asks for the same ones."""
    server = serve(kind)
    with classifier_of(server) as classifier:
        head = classifier.fit(TEXTS, truth(server)).head
        assert head is not None
        assert head.uses_features
        tokens = head.named_tokens
        head.save(tmp_path / "head.json", fingerprint=classifier.fingerprint())
        expected = classifier.classify_many(TEXTS[:4])
    loaded = Head.load(tmp_path / "head.json", fingerprint=classifier.fingerprint())
    assert loaded.named_tokens == tokens
    assert loaded.digest == head.digest
    server.asked.clear()
    with classifier_of(server, head=loaded) as again:
        found = again.classify_many(TEXTS[:4])
    assert [one.label for one in found] == [one.label for one in expected]
    assert all(one.features is None for one in found)
    if kind != "llama.cpp":  # which lists the most probable tokens, whatever the names
        assert named_by(server) == {tokens}


def test_fit_learns_from_named_tokens(serve: Start) -> None:
    """`fit` chooses tokens, learns from them, and keeps them in the head."""
    server = serve("vllm")
    with classifier_of(server) as classifier:
        classifier.fit(TEXTS, truth(server))
        assert classifier.head is not None
        assert classifier.head.uses_features
        assert len(classifier.head.named_tokens) == 128
        right = [one.label for one in classifier.classify_many(TEXTS)]
    assert np.mean([a == b for a, b in zip(right, truth(server), strict=True)]) > 0.9


def test_a_journal_keeps_the_choice_and_the_features(serve: Start) -> None:
    """Another run with the same journal names the same tokens, and asks the server nothing."""
    server, journal = serve("vllm"), MemoryJournal()
    with classifier_of(server, journal=journal) as classifier:
        first = classifier.with_features(TEXTS)
        found = first.classify_many(TEXTS)
    asked = len(server.asked)
    with classifier_of(server, journal=journal) as classifier:
        second = classifier.with_features(TEXTS)
        again = second.classify_many(TEXTS)
    assert second.method.named_tokens == first.method.named_tokens
    assert len(server.asked) == asked
    for one, other in zip(found, again, strict=True):
        assert one.features is not None
        assert other.features is not None
        np.testing.assert_array_equal(one.features, other.features)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_servers_that_name_no_tokens_are_told_once(
    serve: Start, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that ignores the option leaves the model without features, which one warning says."""
    server = serve(kind, names_tokens=False)
    with caplog.at_level(logging.WARNING, "calibrant"), classifier_of(server) as classifier:
        for _ in range(2):
            asking = classifier.with_features(TEXTS)
            assert asking.method.named_tokens == ()
            assert asking.classify(TEXTS[0]).features is None
    said = [record.message for record in caplog.records if "named tokens" in record.message]
    assert len(said) == 1
    assert classifier.client.name in said[0]


def test_a_refused_option_leaves_no_features(serve: Start) -> None:
    """A server that answers 400 to the unknown option has no features, and labels are scored all the same."""
    server = serve("vllm", names_tokens=False)
    server.refuses_names = True
    with classifier_of(server) as classifier:
        asking = classifier.with_features(TEXTS)
        assert asking.method.named_tokens == ()
        assert asking.classify(TEXTS[0]).label in LABELS


def test_a_head_of_another_server_fails_every_row(serve: Start) -> None:
    """A head whose tokens the server no longer reports ends the run with an error that says what to do."""
    server = serve("vllm")
    with classifier_of(server) as classifier:
        head = classifier.fit(TEXTS, truth(server)).head
    assert head is not None
    other = serve("vllm", names_tokens=False)
    with (
        classifier_of(other, head=head) as classifier,
        pytest.raises(
            ProviderError, match=r"Expected the log-probabilities of 128 named tokens, got 0: serve"
        ),
    ):
        classifier.classify(TEXTS[0])


def test_a_head_with_names_needs_exact_scoring(serve: Start) -> None:
    """A classifier that decodes takes no head on named tokens."""
    server = serve("vllm")
    with classifier_of(server) as classifier:
        head = classifier.fit(TEXTS, truth(server)).head
    with pytest.raises(ConfigurationError, match="the server that it was fitted on, with scoring='exact'"):
        Classifier(
            model="hosted_vllm/toy",
            labels=LABELS,
            scoring="decode",
            options={"api_base": server.root},
            head=head,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_that_differ_most_are_named(serve: Start, kind: str) -> None:
    """Tokens whose centred log-probabilities vary most are named; unlisted ones are as probable as the least."""
    server = serve(kind)
    with classifier_of(server) as classifier:
        tokens = classifier.with_features(TEXTS).method.named_tokens
    rows = np.array([server.model.after(server.tokens_before_label(text)) for text in TEXTS])
    listed = rows == rows.max(axis=1, keepdims=True)
    listed[:, : 250 if kind == "vllm" else None] = (
        True  # vLLM is asked about as many, and adds the best token
    )
    rows[~listed] = np.repeat(np.where(listed, rows, 0.0).min(axis=1), (~listed).sum(axis=1))
    spread = (rows - rows.mean(axis=1, where=listed.any(axis=0), keepdims=True)).var(axis=0)
    spread[~listed.any(axis=0)] = 0.0
    assert tokens == tuple(sorted(np.argsort(-spread)[: len(tokens)].tolist()))


class Flooring(TellingModel):
    """A model of which some tokens are impossible, as its server writes them."""

    def after(self, tokens: list[int]) -> NDArray[np.float64]:
        """Return the log-probabilities of the next token."""
        found = super().after(tokens).copy()
        found[200:220] = -9999.0
        return found


@pytest.mark.parametrize("kind", KINDS[1:])
def test_floors_of_servers_are_bounded(serve: Start, kind: str) -> None:
    """What a server writes for impossible tokens is at most 100 below the best."""
    server = serve(kind)
    server.model = server.echoing.model = Flooring()
    with classifier_of(server) as classifier:
        asking = classifier.with_features(TEXTS)
        tokens = list(asking.method.named_tokens)
        found = asking.classify(TEXTS[0]).features
    logprobs = server.model.after(server.tokens_before_label(TEXTS[0]))
    expected = np.maximum(logprobs, logprobs.max() - 100.0)[tokens]
    assert found is not None
    assert min(logprobs[tokens]) == -9999.0
    np.testing.assert_allclose(found, expected - expected.mean(), rtol=1e-3, atol=0.01)


def test_tokens_that_are_all_ruled_out_tell_nothing() -> None:
    """Log-probabilities without a finite one make features of zeros, not NaN."""
    found = named_features({1: -math.inf, 2: -math.inf}, (1, 2))
    np.testing.assert_array_equal(found, [0.0, 0.0])


def test_the_prefix_is_where_labels_begin(serve: Start) -> None:
    """All routes ask for the tokens behind the same text."""
    server = serve("vllm")
    assert server.prompt_of("x").endswith(PREFIX)
