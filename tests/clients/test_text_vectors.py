"""Tests of vectors of texts that heads read, asked of a local server."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.core import ConfigurationError, ProviderError
from calibrant.inference import Classifier, open_embedding_model
from calibrant.testing import FakeClient
from token_engine import Engine

LABELS = ["cat", "dog"]
TEXTS = [f"it {verb} {number}" for number in range(10) for verb in ("purrs", "barks")]


def body(*vectors: Any) -> dict[str, Any]:
    """Return an answer in OpenAI's shape."""
    data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return {"object": "list", "model": "vectors", "data": data, "usage": usage}


def fit(client: Any, **options: Any) -> None:
    """Fit the head of a classifier."""
    Classifier(model=client, labels=LABELS, field="category").fit(TEXTS, ["cat", "dog"] * 10, **options)


def test_a_changed_dimension_is_an_error(server: Any) -> None:
    """A server whose vectors get another length raises ProviderError."""
    server.answer(200, body([3.0, 4.0]))
    model = open_embedding_model(f"openai/vectors@{server.url}")
    model.vectors(["one"])
    server.answer(200, body([3.0, 4.0, 5.0]))
    with pytest.raises(ProviderError, match="vectors of 2 numbers, as before, got 3"):
        model.vectors(["two"])


def test_an_address_with_credentials_is_refused() -> None:
    """The name of a model, which is saved with the head, holds no password."""
    with pytest.raises(ConfigurationError, match="without credentials") as caught:
        open_embedding_model("openai/vectors@http://user:verysecret@127.0.0.1:1/v1")
    assert "verysecret" not in str(caught.value)


def test_the_default_is_off_where_features_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is opened beside a model with features, for False, or where the variable says none."""
    monkeypatch.setenv("CALIBRANT_EMBEDDINGS", "llamacpp:nowhere.gguf")
    fake = FakeClient(LABELS, {"purrs": "cat", "barks": "dog"})
    fit(Engine())
    fit(fake, embeddings=False)
    with pytest.raises(ConfigurationError, match=r"nowhere\.gguf"):
        fit(fake)
    monkeypatch.setenv("CALIBRANT_EMBEDDINGS", "none")
    fit(fake)


def test_a_server_that_fails_is_an_error_before_the_model_is_asked(server: Any) -> None:
    """A fit with embeddings of a server that refuses raises ProviderError and asks the model nothing."""
    server.answer(401, {"error": {"message": "no"}})
    fake = FakeClient(LABELS, {"purrs": "cat", "barks": "dog"})
    with pytest.raises(ProviderError):
        fit(fake, embeddings=f"openai/vectors@{server.url}")
    assert not fake.requests
