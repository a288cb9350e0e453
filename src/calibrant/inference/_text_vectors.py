"""Vectors of texts for heads: asked for in batches, kept on disk, computed here or by a provider."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from calibrant.clients._calls import LoopValues
from calibrant.clients._endpoint import public_address, server_address
from calibrant.clients._litellm import LiteLLMEmbedder
from calibrant.clients._weights import local_models, weights_digest
from calibrant.core._completion import CompletionRequest, ContinuingClient, Message, TokenContinuation
from calibrant.core._errors import ConfigurationError, LimitReachedError, ProviderError
from calibrant.core._files import user_path
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import FloatArray, HalfArray, Outcome, Prediction, SingleArray, Usage
from calibrant.core._predictor import Query
from calibrant.core._reported import writable
from calibrant.heads._head import Head
from calibrant.heads._linear import EmbeddingModel, is_same_vector, recognised_text, unit_vectors
from calibrant.inference._base import run_sync
from calibrant.inference._feed import QueuedRow
from calibrant.inference._limits import Gate
from calibrant.inference._methods import ModelCalls
from calibrant.inference._models import open_client
from calibrant.metrics._remarks import dollars, duration

_LOG = logging.getLogger("calibrant")

Embeddings: TypeAlias = str | EmbeddingModel | bool
"""Embedding model of a head: its name, an opened one, True for the default, False for none."""

_LOCAL: Final = "local/smollm2-135m"
_VARIABLE: Final = "CALIBRANT_EMBEDDINGS"
_NONE: Final = "none"
_GGUF: Final = "llamacpp:"
_EMBEDDED: Final = ("local/", _GGUF)
_QUESTION: Final = "Which of these labels fits the text best?"
_BEGUN: Final = '{"label": "'
_MOST_QUESTION: Final = 4_000  # characters of the labels' names: more are not shown
# Of a text, that the engine reads: about 500 tokens, 2 seconds. The beginning tells what a text is about.
_ENGINE_BYTES: Final = 2_000
_ENGINE_BATCH: Final = 8
# OpenAI takes 2,048 texts and 300,000 tokens a call, and a token has at least one byte. Fewer texts a call lose less
# in a kill, and keep rows that wait for their vectors moving.
_BATCH: Final = 256
_BATCH_BYTES: Final = 300_000
_IN_MEMORY: Final = 8_192
_ROWS_AHEAD: Final = 256
_FEWEST_ROWS: Final = 10  # of which a head learns anything
_TIMED: Final = 4  # texts that tell how long the others take
_CHARACTERS_PER_TOKEN: Final = 4  # about
# From here on, a run says beforehand what its vectors take.
_LONG_SECONDS: Final = 60.0
_MUCH_COST: Final = 0.01
# Statuses by which servers refuse a batch for its size, or for one of its texts.
_REFUSED: Final = frozenset({400, 413, 422})

# Numbers grow with time: the lowest ones are the oldest.
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS numbered_vectors "
    "(number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, vector BLOB NOT NULL)"
)
_REMOVE_OLDEST: Final = (
    "DELETE FROM numbered_vectors WHERE number <= "
    "(SELECT min(number) + (max(number) - min(number)) / 10 FROM numbered_vectors)"
)
_MAX_BYTES: Final = 1024**3
_LOCK_SECONDS: Final = 5.0  # to wait for the lock of another process
_KEYS_A_READ: Final = 500  # keys a statement; old SQLite takes 999 parameters
_NUMBER: Final = np.dtype("<f4")

Charge: TypeAlias = Callable[[Usage], None]
"""Receiver of the usage of each call."""
_Found: TypeAlias = dict[str, SingleArray]
_Failures: TypeAlias = dict[str, ProviderError]
_Call: TypeAlias = asyncio.Task[tuple[_Found, _Failures]]


def uncharged(usage: Usage) -> None:
    """Count no usage."""


class EngineEmbedder:
    """Embedder by an embedded model: the logits of its next token after the text.

    They are the features that predictions of the embedded model hold, under a fixed question that names the labels: one
    vector of a text does for every prompt of a task. What they have in common for all texts, which would hide how
    texts differ, is taken away: the vector of an empty text.

    Parameters
    ----------
    model : str
        ``local/NAME`` or ``llamacpp:PATH.gguf``.
    labels : sequence of str
        Names of the labels; none are shown where they are too long.

    Raises
    ------
    ConfigurationError
        Engine or weights are not installed, or the file is missing or not GGUF.
    """

    token_price = None

    def __init__(self, model: str, labels: Sequence[str]) -> None:
        client = open_client(model)
        assert isinstance(client, ContinuingClient)  # noqa: S101 (every embedded engine continues texts)
        self._client = client
        shown = "\n".join(f"- {label}" for label in labels)
        # Beside the text alone, with 120 labelled rows each: cross-validated log loss .15 for .19 on banking requests,
        # .94 for 1.04 on requests of ten domains (features standardised, words beside them).
        self._system = f"{_QUESTION}\n{shown}" if len(shown) <= _MOST_QUESTION else _QUESTION
        self._centre: FloatArray | None = None
        traits: Any = client
        weights = traits.endpoint if model.startswith(_GGUF) else weights_digest(model)
        self.identity = [weights, traits.tokenisation, self._system, _BEGUN, _ENGINE_BYTES]

    async def embed_priced(self, texts: Sequence[str]) -> tuple[FloatArray, Usage]:
        """Return one vector per text, shape (n, d); nothing is paid."""
        if self._centre is None:
            self._centre = (await self._features("")).astype(np.float64)
        found = np.array([await self._features(text) for text in texts], dtype=np.float64)
        return found - self._centre, Usage()

    async def _features(self, text: str) -> HalfArray:
        shown = text.encode()[:_ENGINE_BYTES].decode(errors="ignore")
        messages: tuple[Message, ...] = (
            {"role": "system", "content": self._system},
            {"role": "user", "content": shown},
        )
        async with self._client.continuing(CompletionRequest(messages=messages, top_logprobs=0)) as row:
            assert isinstance(row, TokenContinuation)  # noqa: S101 (an embedded engine knows its tokens)
            (found,) = await row.next_logprobs([row.tokens(_BEGUN)])
            return found.features()


class VectorStore:
    """Vectors by key, in a file that several processes may use at once.

    Each call opens the file for itself, so threads and forks share nothing. A file that cannot be read or written
    costs a warning, and the vectors are computed again.

    Parameters
    ----------
    path : Path
        The SQLite file, which only its owner may read; a missing one is created with its folders.
    max_bytes : int, default 1 GiB
        Most bytes in use; beyond it those written first are removed, a tenth at a time. The file does not shrink,
        but uses freed space again.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from calibrant.inference._text_vectors import VectorStore
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = VectorStore(Path(folder) / "vectors.sqlite")
    ...     store.put_many({"first": np.array([0.5, 2.0], dtype=np.float32)})
    ...     {key: vector.tolist() for key, vector in store.get_many(["first", "second"]).items()}
    {'first': [0.5, 2.0]}
    """

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._has_warned = False

    def get_many(self, keys: Sequence[str]) -> dict[str, SingleArray]:
        """Return the stored vectors by key; missing keys are left out."""
        found: dict[str, SingleArray] = {}
        if not keys or not self._path.exists():
            return found
        try:
            with closing(self._connection()) as connection:
                for start in range(0, len(keys), _KEYS_A_READ):
                    block = keys[start : start + _KEYS_A_READ]
                    marks = ", ".join("?" * len(block))
                    query = f"SELECT key, vector FROM numbered_vectors WHERE key IN ({marks})"  # noqa: S608 (marks alone)
                    rows = connection.execute(query, block).fetchall()
                    found |= {key: np.frombuffer(vector, dtype=_NUMBER) for key, vector in rows}
        except (sqlite3.Error, OSError, ValueError) as error:
            self._warn("read", error)
        return found

    def put_many(self, vectors: Mapping[str, SingleArray]) -> None:
        """Store vectors by key in one transaction."""
        rows = [(key, vector.astype(_NUMBER).tobytes()) for key, vector in vectors.items()]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            with closing(self._connection()) as connection, connection:
                connection.execute(_TABLE)
                insert = "INSERT OR REPLACE INTO numbered_vectors (key, vector) VALUES (?, ?)"
                connection.executemany(insert, rows)
                while _used_bytes(connection) > self._max_bytes:
                    if not connection.execute(_REMOVE_OLDEST).rowcount:
                        break
        except (sqlite3.Error, OSError) as error:
            self._warn("saved", error)

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_LOCK_SECONDS)

    def _warn(self, what: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "%s: vectors of texts cannot be %s (%s): they are computed again.", self._path, what, error
            )


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


@dataclass(kw_only=True)
class _Group:
    """Texts that share a call; `failures` by text, None until it has ended."""

    texts: list[str] = field(default_factory=list)
    failures: _Failures | None = None


@dataclass(kw_only=True)
class _Queue:
    """The group whose call comes next; the lock is held while one is under way."""

    group: _Group = field(default_factory=_Group)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class TextVectors:
    """Embedding model that asks for several texts a call, and for no text twice.

    Vectors are kept in ``vectors.sqlite`` of the user's cache folder as soon as their call has ended, so another run,
    or the same one after a kill, asks for the others alone. A server is asked for one fixed text anew whenever it is
    opened: if that vector has changed, another model has taken the name, and what was kept is not used. A text without
    characters has zeros.

    Parameters
    ----------
    name : str
        Name that opens the model again.
    embedder : EngineEmbedder or LiteLLMEmbedder
        Computes the vectors.
    identity : sequence
        Everything that determines a vector but the text, as JSON values.
    batch_size : int
        Texts a call.
    place : str
        Host or provider that gets the texts; empty if they stay on this machine.

    Attributes
    ----------
    seconds_per_text : float or None
        Seconds that a text takes on this machine; None if unknown.
    """

    def __init__(
        self,
        name: str,
        embedder: EngineEmbedder | LiteLLMEmbedder,
        *,
        identity: Sequence[Any],
        batch_size: int = _BATCH,
        place: str = "",
    ) -> None:
        self.name = name
        self.place = place
        self.batch_size = batch_size
        self._embedder = embedder
        self._calls = ModelCalls(gate=Gate(provider=name))
        self._store = VectorStore(user_path("vectors.sqlite", "cache"))
        self._digest = hashlib.sha256(json.dumps(list(identity)).encode())
        self._is_recognised = not place  # the identity of a model on this machine covers its weights
        self.seconds_per_text: float | None = None
        self._kept: OrderedDict[str, SingleArray] = OrderedDict()
        self._lock = threading.Lock()
        self._dimension: int | None = None
        # By event loop: the calls under way, by text, and the texts that wait for the next call.
        self._flying: LoopValues[dict[str, _Call]] = LoopValues()
        self._queues: LoopValues[_Queue] = LoopValues()

    def vectors(self, texts: list[str]) -> SingleArray:
        """Return one vector per text, shape (n, d).

        Raises
        ------
        ProviderError
            A call failed, retries included.
        """
        found = self._in_memory(texts)
        if len(found) < len(set(texts)):
            found, failures = run_sync(self._found(texts, uncharged))
            if failures:
                raise next(iter(failures.values()))
        rows = np.array([found[text] for text in texts], dtype=np.float32)
        return rows.reshape(len(texts), self._dimension or 1)

    async def prepare(self, texts: Sequence[str], *, charge: Charge = uncharged) -> _Failures:
        """Compute the vectors of texts that are to be asked for soon; return what failed, by text.

        Parameters
        ----------
        texts : sequence of str
            At most 8,192 are kept in memory, the last ones.
        charge : callable, optional
            Receives the usage of each call.
        """
        flying = self._flying.here(dict)
        wanted = list(dict.fromkeys(map(writable, texts)))
        others = {flying[text] for text in wanted if text in flying}
        own = [text for text in wanted if text not in flying]
        task = asyncio.create_task(self._found(own, charge))
        flying |= dict.fromkeys(own, task)
        # Not in the task: one that is cancelled before it has begun runs nothing.
        task.add_done_callback(lambda _: [flying.pop(text, None) for text in own])
        _, failures = await task
        failures = dict(failures)
        if others:
            await asyncio.wait(others)
        for other in others:
            if other.cancelled() or other.exception() is not None:
                return await self.prepare(wanted, charge=charge)
            failures |= other.result()[1]
        return {text: failures[text] for text in wanted if text in failures}

    async def prepare_shared(self, text: str, *, charge: Charge) -> ProviderError | None:
        """Compute the vector of a text, in one call with others that came while a call was under way.

        Returns
        -------
        ProviderError or None
            Why there is none.
        """
        queue = self._queues.here(_Queue)
        group = queue.group
        group.texts.append(text)
        async with queue.lock:
            if group.failures is None:
                queue.group = _Group()
                group.failures = await self.prepare(group.texts, charge=charge)
        return group.failures.get(text)

    async def recognise(self, *, charge: Charge) -> None:
        """Ask a server for one fixed text, and use the kept vectors only if its vector is as before.

        Raises
        ------
        ProviderError
            The call failed, retries included.
        """
        if self._is_recognised:
            return
        text = recognised_text(())
        key = self._key(text)
        (row,) = await self._called([text], charge)
        given = self._checked(row)
        known = self._store.get_many([key]).get(key)
        if known is None or not is_same_vector(given, known):
            self._store.put_many({key: given})
            known = given
        with self._lock:
            if not self._is_recognised:
                self._digest.update(known.tobytes())
                self._is_recognised = True

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Return the different texts whose vectors are neither in memory nor on disk; `recognise` comes before."""
        different = dict.fromkeys(text for text in map(writable, texts) if text.strip())
        left = [text for text in different if self._key(text) not in self._kept]
        stored = self._store.get_many([self._key(text) for text in left])
        return [text for text in left if self._key(text) not in stored]

    async def timed(self, texts: Sequence[str]) -> float:
        """Return the seconds that a text takes, of two or more that are computed anew; the first may load the model.

        Raises
        ------
        ProviderError
            A text could not be computed.
        """
        first, *others = dict.fromkeys(text for text in map(writable, texts) if text.strip())
        seconds = 0.0
        for part in ([first], others or [first]):
            start = time.perf_counter()
            _, failures = await self._ask(part, uncharged)
            seconds = (time.perf_counter() - start) / len(part)
            for error in failures.values():
                raise error
        return seconds

    @property
    def destination(self) -> str:
        """Clause on the place that gets the texts."""
        return f"they are sent to {self.place}" if self.place else "nothing leaves this machine"

    def effort(self, texts: int, characters: int) -> str:
        """Return the time or price of so many texts as the end of a clause; empty if nothing is known."""
        if not self.place:
            each = self.seconds_per_text
            return "" if each is None else f", about {duration(max(1.0, each * texts))}"
        cost = self.expected_cost(characters)
        return "" if cost is None else f", about {dollars(cost)} by the price of a token"

    def expected_cost(self, characters: int) -> float | None:
        """Return the US dollars of so many characters, about; None where no price is known."""
        price = self._embedder.token_price
        return None if price is None else price * characters / _CHARACTERS_PER_TOKEN

    def _key(self, text: str) -> str:
        digest = self._digest.copy()
        digest.update(text.encode())
        return digest.hexdigest()

    def _in_memory(self, texts: Sequence[str]) -> _Found:
        with self._lock:
            found = {text: self._kept[key] for text in set(texts) if (key := self._key(text)) in self._kept}
            blank = np.zeros(self._dimension or 1, dtype=np.float32)
        return found | {text: blank for text in set(texts) if not text.strip()}

    async def _found(self, texts: Sequence[str], charge: Charge) -> tuple[_Found, _Failures]:
        """Return vectors by text, and errors by text."""
        written = [text for text in dict.fromkeys(texts) if text.strip()]
        if written:
            try:
                await self.recognise(charge=charge)
            except ProviderError as error:
                return {}, dict.fromkeys(written, error)
        found = {text: self._checked(vector) for text, vector in self._stored(written).items()}
        failures: _Failures = {}
        left = [text for text in written if text not in found]
        asked = await asyncio.gather(*(self._ask(batch, charge) for batch in self._batches(left)))
        for vectors, errors in asked:
            found |= vectors
            failures |= errors
        self._keep(found)
        return found | self._in_memory([text for text in texts if not text.strip()]), failures

    def _stored(self, texts: Sequence[str]) -> _Found:
        """Return the vectors in memory and on disk, by text."""
        found = self._in_memory(texts)
        keys = {self._key(text): text for text in texts if text not in found}
        stored = self._store.get_many(list(keys))
        return found | {keys[key]: vector for key, vector in stored.items()}

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        size = 0
        for text in texts:
            more = len(text.encode())
            if batch and (len(batch) >= self.batch_size or size + more > _BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(text)
            size += more
        if batch:
            yield batch

    async def _ask(self, texts: list[str], charge: Charge) -> tuple[_Found, _Failures]:
        """Return the vectors of one call, or of two where a server that has answered refuses it as a whole."""
        try:
            rows = await self._called(texts, charge)
        except ProviderError as error:
            is_divisible = error.status in _REFUSED and len(texts) > 1 and self._dimension is not None
            if not is_divisible:
                return {}, dict.fromkeys(texts, error)
            middle = len(texts) // 2
            found, failures = await self._ask(texts[:middle], charge)
            others, other_failures = await self._ask(texts[middle:], charge)
            return found | others, failures | other_failures
        found = {}
        failures = {}
        for text, row in zip(texts, rows, strict=True):
            try:
                found[text] = self._checked(row)
            except ProviderError as error:
                failures[text] = error
        self._store.put_many({self._key(text): row for text, row in found.items()})
        return found, failures

    async def _called(self, texts: list[str], charge: Charge) -> SingleArray:
        call = partial(self._embedder.embed_priced, texts)
        (matrix, usage), _ = await self._calls.make(call, provider=self.name, operation="embeddings")
        charge(usage)  # whatever the vectors are worth
        with np.errstate(over="ignore"):  # a number that is too large is no finite one, which is checked
            return matrix.astype(np.float32)

    def _checked(self, vector: SingleArray) -> SingleArray:
        """Return a vector; raise ProviderError if it is not finite, or has another length than those before."""
        if not vector.size or not np.isfinite(vector).all():
            raise ProviderError(
                "Expected vectors of finite numbers, got others: use another embedding model.",
                provider=self.name,
            )
        with self._lock:
            self._dimension = self._dimension or vector.size
        if vector.size != self._dimension:
            raise ProviderError(
                f"Expected vectors of {self._dimension} numbers, as before, got {vector.size}: the server has another "
                "model under this name. Fit the head again, with the embeddings under another name.",
                provider=self.name,
            )
        return vector

    def _keep(self, vectors: _Found) -> None:
        with self._lock:
            for text, vector in vectors.items():
                self._kept[self._key(text)] = vector
                self._kept.move_to_end(self._key(text))
            while len(self._kept) > _IN_MEMORY:
                self._kept.popitem(last=False)


def open_embedding_model(model: str | EmbeddingModel, *, labels: Sequence[str] = ()) -> EmbeddingModel:
    """Return the embedding model of a head.

    Parameters
    ----------
    model : str or EmbeddingModel
        ``local/smollm2-135m`` or ``llamacpp:PATH.gguf``, the embedded engine; ``model2vec`` or ``model2vec:NAME``
        (extra ``embeddings``), NAME a folder or a model of the Hugging Face hub, which is downloaded once; or any name
        of litellm's (``openai/text-embedding-3-small``, ``ollama/NAME``), of an OpenAI-compatible server with its
        address: ``openai/NAME@http://HOST/v1``. A model of your own is returned unchanged.
    labels : sequence of str, default ()
        Names of the labels, which the embedded engine reads beside the text.

    Raises
    ------
    ConfigurationError
        No such model is known, or what it needs is not installed.

    Examples
    --------
    >>> from calibrant.inference import open_embedding_model
    >>> open_embedding_model("ollama/nomic-embed-text").name
    'ollama/nomic-embed-text'
    """
    if not isinstance(model, str):
        return model
    if not model.strip():
        raise ConfigurationError("Expected the name of an embedding model, got an empty text: leave it out.")
    kind, _, name = model.partition(":")
    if kind == "model2vec":
        from calibrant.inference._embeddings import Model2VecEmbedder  # noqa: PLC0415 (few name such a model)

        return Model2VecEmbedder(name) if name else Model2VecEmbedder()
    if model.startswith(_EMBEDDED):
        engine = EngineEmbedder(model, labels)
        return TextVectors(model, engine, identity=engine.identity, batch_size=_ENGINE_BATCH)
    return _open_remote(model)


def _open_remote(model: str) -> TextVectors:
    name, at, address = model.partition("@")
    if at and public_address(address) != address.rstrip("/"):
        raise ConfigurationError(
            f"Expected the address of an embedding server without credentials, got {name}@...: set the key in the "
            "environment, such as OPENAI_API_KEY."
        )
    options: dict[str, Any] = {}
    if at:
        options = {"api_base": address}
    embedder = LiteLLMEmbedder(name, **options)
    provider, slash, _ = name.partition("/")
    found = address or server_address(name)
    place = found or (provider if slash else "the provider of this model")
    return TextVectors(model, embedder, identity=[model, found], place=place)


def head_embedding(
    embeddings: Embeddings | None,
    texts: Sequence[str],
    *,
    labels: LabelSet | Sequence[str],
    reports_features: bool,
    meter: Gate | None = None,
) -> EmbeddingModel | None:
    """Return the embedding model to fit a head with; say which, where texts go, and how long it takes.

    Parameters
    ----------
    embeddings : str, EmbeddingModel, bool or None
        As `open_embedding_model` takes them. True or None is the default: what ``$CALIBRANT_EMBEDDINGS`` names
        (``none`` for nothing), or else the embedded model, where it is installed and `reports_features` is False.
        False is none.
    texts : sequence of str
        The texts that are read.
    labels : LabelSet or sequence of str
        The labels.
    reports_features : bool
        True if the model that is asked reports features of the texts, which tell as much.
    meter : Gate, optional
        Counts the calls.

    Raises
    ------
    ConfigurationError
        The model cannot be opened.
    ProviderError
        Its server cannot be asked.
    """
    named = embeddings
    if named is True or named is None:
        named = None if reports_features else _default()
    if named is None or named is False or len(texts) < _FEWEST_ROWS:
        return None
    model = open_embedding_model(named, labels=LabelSet.of(labels).labels)
    if isinstance(model, TextVectors):
        _tell(model, texts, meter)
    return model


def _default() -> str | None:
    """Return the name of the default model; None where it is not installed, or switched off."""
    named = os.environ.get(_VARIABLE, "").strip()
    if named:
        return None if named == _NONE else named
    if any(model.name == _LOCAL and model.installed for model in local_models()):
        return _LOCAL
    return None


def _tell(model: TextVectors, texts: Sequence[str], meter: Gate | None) -> None:
    """Log one line on the texts that are left to be embedded; a failing server raises before the model is asked."""
    run_sync(model.recognise(charge=_charge_of(meter)))
    left = model.missing(texts)
    if not model.place and any(text.strip() for text in texts):
        shown = left if len(left) > 1 else [text for text in texts if text.strip()][:2]
        model.seconds_per_text = run_sync(model.timed(shown[: _TIMED + 1]))
    effort = model.effort(len(left), sum(map(len, left)))
    count = (
        f"{len(left):,} of {len(texts):,} texts are left to read{effort}" if left else "all texts are known"
    )
    where = f"; {model.destination}" if left else ""
    _LOG.warning(
        "The head also reads vectors of the texts by %s: %s%s (embeddings=False or --no-embeddings does without).",
        model.name,
        count,
        where,
    )


def announce_vectors(head: Head, texts: Iterable[str], *, rows: int) -> None:
    """Log one line on the effort of vectors for a run's texts, where that is minutes or cents.

    Parameters
    ----------
    head : Head
        The head that reads them.
    texts : iterable of str
        The texts, of which the first ones tell how long they are.
    rows : int
        Their number.
    """
    model = vectors_of(head)
    if head.embedding is None or model is None:
        return
    if model.seconds_per_text is None and not model.place:
        model.seconds_per_text = head.embedding.seconds_per_text
    shown = list(islice(texts, _ROWS_AHEAD))
    characters = sum(map(len, shown)) * rows // max(1, len(shown))
    seconds = (model.seconds_per_text or 0.0) * rows
    cost = model.expected_cost(characters) or 0.0
    if seconds < _LONG_SECONDS and cost < _MUCH_COST:
        return
    _LOG.warning(
        "The head reads vectors of the texts by %s: %s rows take%s, less where texts are known; %s. A head that is "
        "learned with --no-embeddings (embeddings=False) does without.",
        model.name,
        f"{rows:,}",
        model.effort(rows, characters).lstrip(","),
        model.destination,
    )


def vectors_of(head: Head) -> TextVectors | None:
    """Return the embedding model of a head; None if it has none, or one that needs no calls."""
    model = None if head.embedding is None else head.embedding.model
    return model if isinstance(model, TextVectors) else None


def _charge_of(meter: Gate | None) -> Charge:
    return uncharged if meter is None else meter.charge_vectors


def timed_head(head: Head) -> Head:
    """Return a fitted head with the seconds that its embedding model takes for a text, where they are known."""
    model = vectors_of(head)
    if head.embedding is None or model is None:
        return head
    return replace(head, embedding=replace(head.embedding, seconds_per_text=model.seconds_per_text))


def prepare_vectors(model: EmbeddingModel | None, texts: Sequence[str], *, meter: Gate | None = None) -> None:
    """Compute the vectors of texts before a head asks for them one by one; do nothing for models that need no calls.

    Raises
    ------
    ProviderError
        A call failed, retries included.
    LimitReachedError
        A budget of `meter` is used up.
    """
    if not isinstance(model, TextVectors):
        return
    # A budget is looked at before each call.
    is_limited = meter is not None and meter.limits_vectors
    together = model.batch_size if is_limited else max(1, len(texts))
    for start in range(0, len(texts), together):
        block = texts[start : start + together]
        if meter is not None and (reason := meter.used_up(0, calls=False)) and model.missing(block):
            raise LimitReachedError(f"{reason} ({start:,} of {len(texts):,} texts have their vectors).")
        failures = run_sync(model.prepare(block, charge=_charge_of(meter)))
        if failures:
            raise next(iter(failures.values()))


def vectors_by_text(
    model: EmbeddingModel | None, texts: Sequence[str], *, meter: Gate | None = None
) -> Mapping[str, ArrayLike] | None:
    """Return vectors by text for a baseline; None without a model, and with a warning if it fails."""
    if model is None:
        return None
    different = list(dict.fromkeys(texts))
    try:
        prepare_vectors(model, different, meter=meter)
        return dict(zip(different, unit_vectors(model, different), strict=True))
    except Exception as error:  # noqa: BLE001 (a model of one's own may raise anything; the rest is complete)
        _LOG.warning("There is no baseline of embeddings, as %s failed: %s", model.name, error)
        return None


@dataclass(kw_only=True)
class VectorsAhead:
    """Vectors of a stream of texts, computed while the model answers.

    Attributes
    ----------
    model : TextVectors
        Computes them.
    needs : callable
        Returns True for rows whose text needs a vector.
    charge : callable
        Receives the usage of each call.
    meter : Gate
        Meter of the rows, whose budgets say how far ahead vectors are computed.
    waits : bool
        False where predictions are made with the vectors, as in a cascade, so that none has to wait for one.
    """

    model: TextVectors
    needs: Callable[[QueuedRow], bool]
    charge: Charge
    meter: Gate
    waits: bool
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _failures: _Failures = field(default_factory=dict, init=False)

    def over(self, rows: Iterable[QueuedRow]) -> Iterator[QueuedRow]:
        """Yield rows; the vectors of their texts are asked for a block at a time."""
        waiting = iter(rows)
        while block := list(islice(waiting, self.meter.vectors_ahead(_ROWS_AHEAD))):
            needed = [row.query.text for row in block if self.needs(row)]
            texts = [text for text in needed if text not in self._tasks]
            different = list(dict.fromkeys(texts))
            for start in range(0, len(different), self.model.batch_size):
                self._begin(different[start : start + self.model.batch_size])
            yield from block

    def _begin(self, texts: Sequence[str]) -> None:
        task = asyncio.get_running_loop().create_task(self._prepare(texts))
        self._tasks |= dict.fromkeys(texts, task)
        for text in texts:
            self._failures.pop(writable(text), None)

    async def _prepare(self, texts: Sequence[str]) -> None:
        try:
            self._failures |= await self.model.prepare(texts, charge=self.charge)
        finally:
            for text in texts:
                self._tasks.pop(text, None)

    async def checked(self, query: Query, prediction: Prediction) -> Prediction:
        """Wait for the vector of a query's text; return the prediction, or a failed one if the call failed."""
        if not self.waits:
            return prediction
        task = self._tasks.get(query.text)
        if task is not None:
            await asyncio.shield(task)
        return _unless_failed(prediction, self._failures.get(writable(query.text)))

    async def added(self, query: Query, prediction: Prediction) -> Prediction:
        """Ask for the vector of a query's text, with those that come meanwhile; return as `checked` does."""
        error = await self.model.prepare_shared(writable(query.text), charge=self.charge)
        return _unless_failed(prediction, error)


def vectors_ahead(
    head: Head,
    *,
    needs: Callable[[QueuedRow], bool],
    charge: Charge,
    meter: Gate,
    waits: bool = True,
) -> VectorsAhead | None:
    """Return the source of the vectors that a head reads, see `VectorsAhead`; None if it needs none by calls."""
    model = vectors_of(head)
    if model is None:
        return None
    return VectorsAhead(model=model, needs=needs, charge=charge, meter=meter, waits=waits)


def _unless_failed(prediction: Prediction, error: ProviderError | None) -> Prediction:
    """Return the prediction; a failed one with its effort if there is an error."""
    if error is None:
        return prediction
    failed = Prediction(label=None, outcome=Outcome.ERROR, reason=str(error), attempts=prediction.attempts)
    return replace(failed, usage=prediction.usage, latency_seconds=prediction.latency_seconds)
