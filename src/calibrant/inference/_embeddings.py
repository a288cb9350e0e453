"""Embedders of texts: hashing, static word vectors, a provider, or a function."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from calibrant.clients._callable import is_coroutine_function
from calibrant.clients._litellm import LiteLLMEmbedder, embedding_matrix
from calibrant.core._errors import ConfigurationError
from calibrant.core._installation import install_command
from calibrant.core._prediction import FloatArray
from calibrant.core._reported import writable
from calibrant.heads._linear import unit_rows
from calibrant.metrics._validation import check_count

_LOG = logging.getLogger("calibrant")
_HASHING: Final = "hashing"
_MODEL2VEC: Final = "model2vec"
_DEFAULT_MODEL2VEC: Final = "minishlab/potion-base-8M"


@runtime_checkable
class Embedder(Protocol):
    """Protocol of embedders: texts in, vectors out.

    Attributes
    ----------
    dimension : int or None
        Length of a vector; None where it is not known before a call.

    Examples
    --------
    >>> from calibrant.inference import Embedder, open_embedder
    >>> isinstance(open_embedder(), Embedder)
    True
    """

    @property
    def dimension(self) -> int | None: ...

    async def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return one vector per text, shape (n, d).

        Raises
        ------
        ProviderError
            The call failed.
        """
        ...

    def close(self) -> None:
        """Free resources. Do not use the embedder afterwards."""
        ...


EmbedderLike: TypeAlias = str | Embedder | Callable[[list[str]], ArrayLike | Awaitable[ArrayLike]]
"""A name, an embedder, or a function ``texts -> vectors``."""


class CallableEmbedder:
    """An embedder around the user's own function.

    Parameters
    ----------
    function : callable
        Takes a list of n texts, returns vectors of shape (n, d). Coroutine functions are awaited;
        ordinary ones run in threads, two at a time, so they must be thread-safe.

    Raises
    ------
    ConfigurationError
        `function` cannot be called.
    """

    dimension: int | None = None

    def __init__(self, function: Callable[[list[str]], ArrayLike | Awaitable[ArrayLike]]) -> None:
        if not callable(function):
            raise ConfigurationError(f"Expected a function from texts to vectors, got {function!r}.")
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._function = function
        waits = is_coroutine_function(function)
        # Two are enough to keep the event loop free; the work itself holds the interpreter for most of its time.
        self._pool = None if waits else ThreadPoolExecutor(2, thread_name_prefix="calibrant-embed")

    async def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return one vector per text, shape (n, d).

        Raises
        ------
        ProviderError
            The function returned something else than one vector per text. Its own exceptions pass.
        """
        vectors: Any
        if self._pool is None:
            vectors = self._function(list(texts))
        else:
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            vectors = await loop.run_in_executor(self._pool, context.run, self._call, list(texts))
        if inspect.isawaitable(vectors):
            vectors = await vectors
        return embedding_matrix(vectors, count=len(texts), provider=self.name)

    def _call(self, texts: list[str]) -> object:
        try:
            return self._function(texts)
        except StopIteration as error:  # no future can carry it: whoever waits would wait for ever
            raise RuntimeError("The function raised StopIteration.") from error

    def close(self) -> None:
        """Stop the threads without waiting for a running call."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class HashingEmbedder(CallableEmbedder):
    """Embedder by hashed counts of words and pieces of words; needs no model or download.

    Words, and runs of three to five characters within them, are counted in `dim` buckets; a vector is the
    square roots of the counts at length 1, so that the inner product of two is the Bhattacharyya
    coefficient of their counts. No count is negative: what all texts share takes the place of the
    constant that a linear model needs, and the cosine of two unrelated texts is well above 0. It tells
    topics and languages apart, not meanings.

    Parameters
    ----------
    dim : int, default 64
        Length of a vector, at least 1.

    Raises
    ------
    ConfigurationError
        `dim` is out of its range.
    """

    def __init__(self, *, dim: int = 64) -> None:
        super().__init__(self._vectors)
        self.name = _HASHING
        self.dimension = check_count("dim", dim, low=1)
        # Here, and not at the first text: the import takes longer than a text may.
        from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415

        counts = {"n_features": dim, "norm": None, "alternate_sign": False, "dtype": np.float64}
        self._views = (
            HashingVectorizer(token_pattern=r"(?u)\b\w+\b", **counts),
            HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), **counts),
        )

    def _vectors(self, texts: list[str]) -> FloatArray:
        if not texts:
            return np.zeros((0, self.dimension or 0))
        legal = list(map(writable, texts))  # a hash is one of bytes
        words, pieces = (view.transform(legal).toarray() for view in self._views)
        return unit_rows(np.sqrt(words + pieces))


class Model2VecEmbedder(CallableEmbedder):
    """Embedder by the mean of static word vectors (model2vec); no neural network runs.

    Parameters
    ----------
    name : str, default "minishlab/potion-base-8M"
        A folder, or a model of the Hugging Face hub, which is downloaded once.

    Raises
    ------
    ConfigurationError
        model2vec is not installed, or there is no such model.
    """

    def __init__(self, name: str = _DEFAULT_MODEL2VEC) -> None:
        try:
            from model2vec import StaticModel  # noqa: PLC0415
        except ImportError:
            raise ConfigurationError(
                f"Embeddings by model2vec need the extra embeddings: {install_command('embeddings')}."
            ) from None
        try:
            self._model = StaticModel.from_pretrained(name, force_download=False)
        except Exception as error:
            raise ConfigurationError(
                f"Expected a model2vec model's folder or its name at the Hugging Face hub, got {name!r} "
                f"({type(error).__name__}: {error!s:.200})."
            ) from error
        super().__init__(self.vectors)
        self.name = f"{_MODEL2VEC}:{name}"
        self.dimension = int(self._model.dim)

    def vectors(self, texts: list[str]) -> ArrayLike:
        """Return one vector per text, shape (n, d), computed in this thread."""
        vectors: ArrayLike = self._model.encode(texts, use_multiprocessing=False)
        return vectors


class CachedEmbedder:
    """Embedder of single texts with an LRU cache; a failure returns None.

    Equal texts that are asked for at the same time in one event loop share a call. It may be used from several
    loops and threads.

    Parameters
    ----------
    embedder : Embedder
        The wrapped embedder; closed with this one.
    cache_size : int, default 256
        Texts to remember, those used last; 0 remembers none.
    timeout_seconds : float, default 0.5
        Seconds a text may take, above 0.
    dim : int, default 1
        Numbers a vector must have at least.

    Raises
    ------
    ConfigurationError
        A number is out of its range, or the embedder's vectors are known to be too short.

    Examples
    --------
    >>> from calibrant.inference import CachedEmbedder, open_embedder
    >>> CachedEmbedder(open_embedder(), cache_size=100).close()
    """

    def __init__(
        self, embedder: Embedder, *, cache_size: int = 256, timeout_seconds: float = 0.5, dim: int = 1
    ) -> None:
        if isinstance(timeout_seconds, bool) or not 0.0 < timeout_seconds < math.inf:
            raise ConfigurationError(
                f"Expected timeout_seconds to be a finite number above 0, got {timeout_seconds!r}."
            )
        self._least = check_count("dim", dim, low=1)
        _check_size(embedder, self._least)
        self._embedder = embedder
        self._size = embedder.dimension
        self._limit = check_count("cache_size", cache_size, low=0)
        self._timeout = timeout_seconds
        self._vectors: OrderedDict[str, FloatArray] = OrderedDict()
        self._tasks: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[FloatArray | None]] = {}
        self._lock = threading.Lock()
        self._warned = False

    async def embed_one(self, text: str) -> FloatArray | None:
        """Return the read-only vector of a text, shape (d,); None after a failure.

        That is so for an empty text, and where the embedder fails, takes too long, or returns a vector
        that is too short, of another length than before, not finite or all zero; the first time it is
        logged as a warning.
        """
        if not text.strip():
            return None
        with self._lock:
            if text in self._vectors:
                self._vectors.move_to_end(text)
                return self._vectors[text]
        loop = asyncio.get_running_loop()
        key = (loop, text)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = loop.create_task(self._ask(text))
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        # Whoever gives up waiting takes nothing from the others.
        return await asyncio.shield(task)

    def close(self) -> None:
        """Close the embedder."""
        self._embedder.close()

    async def _ask(self, text: str) -> FloatArray | None:
        try:
            rows = await asyncio.wait_for(self._embedder.embed([text]), self._timeout)
            name = type(self._embedder).__name__
            vector: FloatArray = embedding_matrix(rows, count=1, provider=name)[0].copy()
            self._check(vector)
        except TimeoutError:
            self._warn(f"it took more than {self._timeout:g} s")
            return None
        except Exception as error:  # noqa: BLE001 (whatever it is, the request goes on without an embedding)
            self._warn(f"{type(error).__name__}: {error}")
            return None
        vector.setflags(write=False)
        with self._lock:
            self._vectors[text] = vector
            while len(self._vectors) > self._limit:
                self._vectors.popitem(last=False)
        return vector

    def _check(self, vector: FloatArray) -> None:
        """Raise ValueError for an unusable vector."""
        if vector.size < self._least:
            raise ValueError(f"expected a vector of at least {self._least} numbers, got {vector.size}")
        if not np.isfinite(vector).all() or not vector.any():
            raise ValueError("expected a vector of finite numbers that are not all zero")
        with self._lock:
            self._size = self._size or vector.size
        if vector.size != self._size:
            raise ValueError(f"expected a vector of {self._size} numbers, got {vector.size}")

    def _warn(self, reason: str) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        _LOG.log(level, "A request goes on without an embedding, and so will others like it: %s.", reason)


def open_embedder(
    embedder: EmbedderLike = _HASHING, *, dim: int = 64, options: Mapping[str, Any] | None = None
) -> Embedder:
    """Return the embedder of a name, or of a function from texts to vectors.

    Parameters
    ----------
    embedder : str, Embedder or callable, default "hashing"
        ``hashing`` (local, no download), ``model2vec`` or ``model2vec:NAME`` (extra ``embeddings``), any
        litellm model of embeddings, a function ``texts -> vectors``, or an embedder, which is returned
        unchanged.
    dim : int, default 64
        Numbers a vector must have at least; hashing makes vectors of this length.
    options : mapping, optional
        Handed to the provider (``api_base``, ``api_key``, ``timeout``, ...); litellm's models take some.

    Raises
    ------
    ConfigurationError
        The name is empty or unknown, what it needs is not installed, its vectors are known to be too
        short, or there are options for something that takes none.

    Examples
    --------
    >>> import asyncio
    >>> from calibrant.inference import open_embedder
    >>> first, similar, other = asyncio.run(open_embedder().embed(["my gas bill", "a gas bill", "holiday photos"]))
    >>> first.shape, round(float(first @ similar), 2), round(float(first @ other), 2)
    ((64,), 0.91, 0.25)
    """
    dim = check_count("dim", dim, low=1)
    kind, _, name = embedder.partition(":") if isinstance(embedder, str) else ("", "", "")
    if isinstance(embedder, str) and not embedder.strip():
        raise ConfigurationError(
            "Expected the name of an embedder, got an empty text: hashing needs nothing."
        )
    if isinstance(embedder, str) and embedder != _HASHING and kind != _MODEL2VEC:
        return LiteLLMEmbedder(embedder, **(options or {}))
    if options:
        raise ConfigurationError(
            f"Expected no options for {embedder!r:.80}, got {', '.join(sorted(options))}: only models that "
            "litellm asks take some."
        )
    opened: Embedder
    if embedder == _HASHING:
        opened = HashingEmbedder(dim=dim)
    elif isinstance(embedder, str):
        opened = Model2VecEmbedder(name or _DEFAULT_MODEL2VEC)
    else:
        opened = embedder if isinstance(embedder, Embedder) else CallableEmbedder(embedder)
    _check_size(opened, dim)
    return opened


def _check_size(embedder: Embedder, dim: int) -> None:
    if embedder.dimension is not None and embedder.dimension < dim:
        raise ConfigurationError(
            f"Expected vectors of at least {dim} numbers, {type(embedder).__name__} makes some of "
            f"{embedder.dimension}: set dim to {embedder.dimension} or choose a larger model."
        )
