"""Tests of embedding models that litellm asks, with a local server."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrant.core import ConfigurationError, ProviderError, RateLimitError
from calibrant.inference import open_embedder

KEY = "sk-verysecretverysecret"


def body(*vectors: Any, indices: Any = None) -> dict[str, Any]:
    """Return an answer in OpenAI's shape."""
    numbers = indices if indices is not None else range(len(vectors))
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in zip(numbers, vectors, strict=True)
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return {"object": "list", "model": "vectors", "data": data, "usage": usage}


def embed(server: Any, *texts: str, model: str = "openai/vectors", **options: Any) -> NDArray[np.float64]:
    """Return the vectors of some texts."""
    settings = {"api_base": server.url, "api_key": KEY, **options}
    embedder = open_embedder(model, dim=1, options=settings)
    return asyncio.run(embedder.embed(texts))


def failure(server: Any, **options: Any) -> ProviderError:
    """Return the error of a call, whose message must not hold the key."""
    with pytest.raises(ProviderError) as caught:
        embed(server, "text", **options)
    assert KEY not in str(caught.value)
    assert "openai/vectors" in str(caught.value)
    return caught.value


class TestAnswers:
    def test_vectors_follow_the_order_of_texts(self, server: Any) -> None:
        """Vectors are sorted by the reported index."""
        server.answer(200, body([3.0, 4.0], [1.0, 2.0], indices=[1, 0]))
        vectors = embed(server, "one", "two", encoding_format="float")
        assert vectors.dtype == np.float64
        np.testing.assert_array_equal(vectors, [[1.0, 2.0], [3.0, 4.0]])
        (sent,) = server.bodies
        assert (sent["model"], sent["input"], sent["encoding_format"]) == ("vectors", ["one", "two"], "float")

    @pytest.mark.parametrize("model", ["vectors", "openai/vectors"])
    def test_own_servers_need_no_key(self, server: Any, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
        """With an `api_base` no key is needed."""
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        server.answer(200, body([1.0]))
        np.testing.assert_array_equal(embed(server, "one", model=model, api_key=None), [[1.0]])
        assert server.bodies[0]["model"] == "vectors"

    def test_base_url_means_api_base(self, server: Any) -> None:
        """The option `base_url` is accepted as another name of `api_base`."""
        server.answer(200, body([1.0]))
        embedder = open_embedder("vectors", dim=1, options={"base_url": server.url, "api_key": KEY})
        assert asyncio.run(embedder.embed(["one"])).shape == (1, 1)
        embedder.close()
        assert embedder.dimension is None

    @pytest.mark.parametrize(
        "wrong",
        [
            (body([1.0], [2.0])),
            (body()),
            (body([["a", "b"]])),
            ({"object": "list", "model": "vectors"}),
            ({"data": [{"index": 0}]}),
        ],
    )
    def test_anything_else_is_a_provider_error(self, server: Any, wrong: dict[str, Any]) -> None:
        """A malformed answer raises ProviderError, which is not systemic."""
        server.answer(200, wrong)
        assert not failure(server).systemic


class TestFailures:
    def test_a_rate_limit_says_so(self, server: Any) -> None:
        """A rate limit raises RateLimitError with the seconds to wait."""
        server.answer(429, retry_after="0.01")
        error = failure(server)
        assert isinstance(error, RateLimitError)
        assert error.retry_after == 0.01


class TestSettings:
    @pytest.mark.parametrize("model", ["hashing ", "my-model", "no-such-provider/model"])
    def test_unknown_providers_need_an_address(self, model: str) -> None:
        """A name of an unknown provider raises ConfigurationError at construction."""
        with pytest.raises(ConfigurationError, match="api_base"):
            open_embedder(model)

    @pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
    def test_timeouts_are_above_zero(self, timeout: float) -> None:
        """A timeout that is not positive raises ConfigurationError."""
        with pytest.raises(ConfigurationError, match="timeout"):
            open_embedder("text-embedding-3-small", options={"timeout": timeout})


@pytest.mark.parametrize("rows", [None, [1.0, 2.0], [["a"]], [[1.0], [1.0, 2.0]], [[1.0], [2.0]], "text", {}])
def test_malformed_embeddings_raise_an_error(rows: Any) -> None:
    """Rows that are no matrix of vectors raise ProviderError with the provider's name."""

    def who(_texts: Any) -> Any:
        return rows

    with pytest.raises(ProviderError, match=r"who: .*vector"):
        asyncio.run(open_embedder(who).embed(["text"]))
