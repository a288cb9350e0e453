"""Tests of embedders by name, and of the cache around them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.core import ConfigurationError, ProviderError
from calibrant.inference import CachedEmbedder, Embedder, open_embedder
from synonyms import Synonyms, install_model2vec, without_model2vec

Array = NDArray[np.float64]


def embed(embedder: Embedder, *texts: str) -> Array:
    """Return the vectors of some texts."""
    return asyncio.run(embedder.embed(texts))


def one(cached: CachedEmbedder, text: str) -> Array | None:
    """Return the vector of one text."""
    return asyncio.run(cached.embed_one(text))


class TestHashing:
    def test_satisfies_the_protocol(self) -> None:
        """The embedder that needs nothing satisfies the protocol of embedders."""
        embedder = open_embedder()
        assert isinstance(embedder, Embedder)
        assert embedder.dimension == 64
        assert embed(embedder, "a text", "another").shape == (2, 64)
        assert embed(embedder).shape == (0, 64)
        embedder.close()

    def test_vectors_are_square_roots_of_counts(self) -> None:
        """Squared vectors are the shares of words and pieces, counted by hand."""
        squares = embed(open_embedder(dim=4096), "ab AB cd")[0] ** 2
        # The word "ab" and the pieces " ab", "ab " and " ab " of it twice, and the same of "cd" once.
        np.testing.assert_allclose(sorted(squares[squares > 0]), [1 / 12] * 4 + [2 / 12] * 4)

    @given(st.text(st.characters() | st.just("\ud800"), min_size=1, max_size=200), st.integers(1, 100))
    def test_vectors_have_length_one_or_zero(self, text: str, dim: int) -> None:
        """Vectors are never negative and have length 1 or 0, also for halves of surrogate pairs."""
        embedder = open_embedder(dim=dim)
        vector = embed(embedder, text)[0]
        assert (vector >= 0.0).all()
        assert np.linalg.norm(vector) == pytest.approx(1.0) or not vector.any()
        if text.strip().isalnum():
            assert vector.any()
        embedder.close()

    def test_is_the_same_in_every_process(self) -> None:
        """Vectors do not depend on the seed of Python's own hashes."""
        code = (
            "import asyncio; from calibrant.inference import open_embedder;"
            "print(asyncio.run(open_embedder(dim=8).embed(['The same text']))[0].tolist())"
        )
        told = subprocess.run(  # noqa: S603 (our own code)
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "7"},
        ).stdout
        assert told.strip() == str(embed(open_embedder(dim=8), "The same text")[0].tolist())

    def test_dim_is_at_least_one(self) -> None:
        """A dimension below 1 raises ConfigurationError."""
        with pytest.raises(ConfigurationError, match="dim"):
            open_embedder(dim=0)


class TestModel2Vec:
    def test_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A missing model2vec raises ConfigurationError with the command that installs it."""
        without_model2vec(monkeypatch)
        with pytest.raises(ConfigurationError, match=r"pip install .*\[embeddings\]"):
            open_embedder("model2vec", dim=3)

    def test_gives_float64_and_knows_its_dimension(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Models open by the default name and by a path, and give float64 vectors."""
        install_model2vec(monkeypatch, {"minishlab/potion-base-8M": 0, "/models/mine": 1})
        for seed, name in enumerate(("model2vec", "model2vec:/models/mine")):
            embedder = open_embedder(name, dim=8)
            assert embedder.dimension == 8
            found = embed(embedder, "a kitty", "a hound")
            assert found.dtype == np.float64
            np.testing.assert_allclose(found, Synonyms(seed=seed).vectors(["a kitty", "a hound"]), rtol=1e-6)
            embedder.close()

    def test_missing_and_small_models_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Missing and too small models raise ConfigurationError when they are opened."""
        install_model2vec(monkeypatch, {"minishlab/potion-base-8M": 0})
        with pytest.raises(ConfigurationError, match="'typo'"):
            open_embedder("model2vec:typo")
        with pytest.raises(ConfigurationError, match=r"at least 64 numbers.*set dim to 8"):
            open_embedder("model2vec")


def lengths(texts: list[str]) -> list[list[float]]:
    """Return two numbers per text."""
    return [[float(len(text)), 1.0] for text in texts]


async def lengths_later(texts: list[str]) -> list[list[float]]:
    """Return two numbers per text after other tasks had their turn."""
    await asyncio.sleep(0)
    return lengths(texts)


class Lengths:
    """Embedder whose call is a coroutine."""

    async def __call__(self, texts: list[str]) -> list[list[float]]:
        """Return two numbers per text."""
        return lengths(texts)


class TestCallable:
    @pytest.mark.parametrize(
        "function",
        [lengths, lengths_later, Lengths(), partial(lengths_later)],
        ids=["function", "coroutine", "object", "partial"],
    )
    def test_functions_and_coroutines(self, function: Any) -> None:
        """Functions, coroutine functions and callable objects embed texts."""
        embedder = open_embedder(function)
        np.testing.assert_array_equal(embed(embedder, "abc", "de"), [[3.0, 1.0], [2.0, 1.0]])
        assert embedder.dimension is None
        embedder.close()

    def test_function_leaves_the_event_loop_free(self) -> None:
        """A blocking function runs in a thread, so the event loop goes on."""
        ready = threading.Event()

        def waits(texts: list[str]) -> list[list[float]]:
            assert ready.wait(5.0)
            return lengths(texts)

        async def both() -> Array:
            task = asyncio.create_task(open_embedder(waits).embed(["abc"]))
            await asyncio.sleep(0)
            ready.set()
            return await task

        np.testing.assert_array_equal(asyncio.run(both()), [[3.0, 1.0]])

    def test_one_vector_per_text_or_an_error(self) -> None:
        """A wrong number of vectors raises ProviderError with the function's name."""
        with pytest.raises(ProviderError, match=r"lengths: .*shape \(1, d\)"):
            embed(open_embedder(wrapped(lambda texts: [*lengths(texts), [0.0, 0.0]])), "abc")

    def test_exceptions_of_functions_pass(self) -> None:
        """A function's exception keeps its type, except that StopIteration becomes RuntimeError."""
        for error, kind in ((OSError("gone"), OSError), (StopIteration(), RuntimeError)):

            def raises(texts: list[str], error: Exception = error) -> list[list[float]]:
                del texts
                raise error

            with pytest.raises(kind):
                embed(open_embedder(raises), "abc")

    def test_must_be_callable(self) -> None:
        """An object that cannot be called raises ConfigurationError."""
        with pytest.raises(ConfigurationError, match="function"):
            open_embedder(3)  # type: ignore[arg-type]


def wrapped(function: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    """Return the function with the name "lengths"."""
    function.__name__ = "lengths"
    return function


class TestOpen:
    def test_names_open_embedders(self) -> None:
        """An embedder opens by its name: hashing by default, and other names through litellm."""
        assert open_embedder().dimension == 64
        assert open_embedder("hashing", dim=16).dimension == 16
        remote = open_embedder("vectors", options={"api_base": "http://127.0.0.1:9/v1", "timeout": 3})
        assert remote.name == "vectors"

    def test_embedders_are_returned_unchanged(self) -> None:
        """A function is wrapped; an embedder is returned unchanged unless its vectors are too short."""
        assert embed(open_embedder(lengths), "abc").tolist() == [[3.0, 1.0]]
        embedder = open_embedder(dim=64)
        assert open_embedder(embedder) is embedder
        with pytest.raises(ConfigurationError, match="at least 65"):
            open_embedder(embedder, dim=65)

    def test_empty_name_is_refused(self) -> None:
        """An empty name raises ConfigurationError."""
        with pytest.raises(ConfigurationError, match="empty"):
            open_embedder("  ")

    @pytest.mark.parametrize("embedder", ["hashing", lengths])
    def test_options_without_provider_are_refused(self, embedder: Any) -> None:
        """Options for a local embedder or a function raise ConfigurationError."""
        with pytest.raises(ConfigurationError, match="api_key"):
            open_embedder(embedder, options={"api_key": "x"})


class Scripted:
    """Embedder that gives prepared answers and counts calls."""

    def __init__(self, *answers: Any, dimension: int | None = None) -> None:
        self.dimension = dimension
        self.texts: list[str] = []
        self.closed = False
        self._answers = answers

    async def embed(self, texts: Sequence[str]) -> Any:
        """Return the vectors of some texts."""
        answer = self._answers[min(len(self.texts), len(self._answers) - 1)]
        self.texts += texts
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            waited: Awaitable[Any] = answer()
            return await waited
        return answer

    def close(self) -> None:
        """Record that the embedder was closed."""
        self.closed = True


GOOD = [[1.0, 2.0]]


async def slow() -> Any:
    """Return a vector after a while."""
    await asyncio.sleep(0.02)
    return GOOD


class TestCache:
    def test_cached_text_is_embedded_once(self) -> None:
        """A cached text is embedded once, and its vector is read-only."""
        embedder = Scripted(GOOD)
        cached = CachedEmbedder(embedder)
        first, second = one(cached, "text"), one(cached, "text")
        np.testing.assert_array_equal(first, [1.0, 2.0])
        assert first is second
        assert first is not None
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 3.0
        assert embedder.texts == ["text"]
        cached.close()
        assert embedder.closed

    @pytest.mark.parametrize(("size", "texts", "embedded"), [(2, "abacab", "abcb"), (0, "aa", "aa")])
    def test_least_recent_text_is_forgotten(self, size: int, texts: str, embedded: str) -> None:
        """The cache forgets the least recently used text, and with size 0 it stores nothing."""
        embedder = Scripted(GOOD)
        cached = CachedEmbedder(embedder, cache_size=size)
        for text in texts:
            one(cached, text)
        assert embedder.texts == list(embedded)

    def test_failed_text_is_embedded_again(self) -> None:
        """A failure is not cached, within one event loop as well."""
        cached = CachedEmbedder(Scripted(OSError("gone"), GOOD))

        async def twice() -> tuple[Array | None, Array | None]:
            return await cached.embed_one("a"), await cached.embed_one("a")

        first, second = asyncio.run(twice())
        assert first is None
        assert second is not None

    def test_equal_concurrent_texts_share_a_call(self) -> None:
        """Equal texts at the same time share one call."""
        embedder = Scripted(slow)
        cached = CachedEmbedder(embedder, cache_size=0)

        async def together() -> list[Array | None]:
            return await asyncio.gather(*(cached.embed_one(text) for text in "aaabab"))

        found = asyncio.run(together())
        assert all(vector is not None for vector in found)
        assert sorted(embedder.texts) == ["a", "b"]

    def test_cancelled_caller_leaves_others_waiting(self) -> None:
        """A cancelled caller does not cancel the call that another one waits for."""
        cached = CachedEmbedder(Scripted(slow))

        async def together() -> Array | None:
            first = asyncio.create_task(cached.embed_one("a"))
            second = asyncio.create_task(cached.embed_one("a"))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            return await second

        np.testing.assert_array_equal(asyncio.run(together()), [1.0, 2.0])

    def test_serves_several_event_loops(self) -> None:
        """One cache serves several event loops in their threads."""
        cached = CachedEmbedder(Scripted(slow))
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda text: one(cached, text), "aaaa"))
        assert all(vector is not None for vector in found)


class TestNeverFails:
    @pytest.mark.parametrize("text", ["", " \n\t"])
    def test_an_empty_text_has_no_vector(self, text: str, caplog: pytest.LogCaptureFixture) -> None:
        """For an empty text the cache gives None, makes no call and logs nothing."""
        embedder = Scripted(GOOD)
        assert one(CachedEmbedder(embedder), text) is None
        assert not embedder.texts
        assert not caplog.records

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(ProviderError("down", provider="p"), id="provider error"),
            pytest.param(RuntimeError("bug"), id="any error"),
            pytest.param([[1.0, float("inf")]], id="infinite"),
            pytest.param([[0.0, 0.0]], id="zero"),
            pytest.param([[1.0]], id="too short"),
            pytest.param([1.0, 2.0], id="no matrix"),
            pytest.param(None, id="nothing"),
        ],
    )
    def test_failures_give_no_vector_and_one_warning(
        self, answer: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A failed embedding gives None and logs one warning, and the next text may succeed."""
        embedder = Scripted(answer, answer, GOOD, dimension=2)
        cached = CachedEmbedder(embedder, dim=2)
        with caplog.at_level(logging.WARNING, logger="calibrant"):
            assert one(cached, "a") is None
            assert one(cached, "a") is None
            np.testing.assert_array_equal(one(cached, "a"), [1.0, 2.0])
        assert len(caplog.records) == 1
        assert "without an embedding" in caplog.text

    def test_vector_of_another_length_is_refused(self) -> None:
        """For a vector of another length than the first one the cache gives None."""
        cached = CachedEmbedder(Scripted(GOOD, [[1.0, 2.0, 3.0]]))
        assert one(cached, "a") is not None
        assert one(cached, "b") is None

    def test_slow_embedder_times_out(self, caplog: pytest.LogCaptureFixture) -> None:
        """A coroutine or blocking function that takes too long gives None."""
        release = threading.Event()

        def blocks(texts: list[str]) -> list[list[float]]:
            release.wait()
            return lengths(texts)

        async def never() -> Any:
            await asyncio.sleep(3600)

        blocked = open_embedder(blocks)
        for embedder in (Scripted(never), blocked):
            assert one(CachedEmbedder(embedder, timeout_seconds=0.05), "a") is None
        assert "0.05 s" in caplog.text
        release.set()
        blocked.close()

    def test_log_shows_no_key(self, caplog: pytest.LogCaptureFixture) -> None:
        """The warning about a failed provider does not show its key."""
        key = "sk-verysecretverysecret"
        options = {"api_base": "http://127.0.0.1:9/v1", "api_key": key}
        remote = open_embedder("vectors", options=options)
        assert one(CachedEmbedder(remote, timeout_seconds=0.2), "text") is None
        assert len(caplog.records) == 1
        assert key not in caplog.text


class TestSettings:
    @pytest.mark.parametrize(
        "settings",
        [{"cache_size": -1}, {"timeout_seconds": 0.0}, {"dim": 0}],
        ids=str,
    )
    def test_settings_out_of_range_are_refused(self, settings: dict[str, Any]) -> None:
        """A setting out of range raises ConfigurationError with its name."""
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            CachedEmbedder(Scripted(GOOD), **settings)

    def test_small_embedder_is_refused(self) -> None:
        """An embedder with too short vectors raises ConfigurationError before the first text."""
        with pytest.raises(ConfigurationError, match="set dim to 8"):
            CachedEmbedder(open_embedder(dim=8), dim=64)
