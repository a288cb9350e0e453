"""The concurrent runner every job uses: queries in, predictions out, in order."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from calibrant.core import (
    CalibrantError,
    Client,
    CompletionRequest,
    ConfigurationError,
    ContextLengthError,
    Journal,
    LimitReachedError,
    Message,
    Outcome,
    Prediction,
    ProviderError,
)
from calibrant.inference._feed import Feed, Listeners, OnPrediction, Stop
from calibrant.inference._limits import Gate
from calibrant.inference._loop import run_sync
from calibrant.inference._methods import Method, keeping_features, might_keep_features

if TYPE_CHECKING:
    from calibrant.inference._demonstrations import Retrieval

__all__ = ["Query", "Runner", "feed_finished"]

INPUT_SLOT: Final = "{input}"

# Options that cannot change an answer.
_NOT_IN_KEY: Final = frozenset({"api_key", "timeout"})

# Rows looked up in the journal at a time.
_BLOCK: Final = 256

# Prompts whose digests are kept; those with demonstrations differ from row to row.
_PROMPTS: Final = 256


@dataclass(frozen=True, kw_only=True)
class Query:
    """One text under one prompt.

    Attributes
    ----------
    prompt : str
        The system prompt.
    text : str
        The text to classify.
    user_template : str or None
        Shapes the user message; every ``{input}`` in it becomes the text.
    context : str or None
        What the answer has to rest on; no part of the messages.
    demonstrations : str or None
        How those shown beside the text are chosen, as `DemonstrationSettings.to_text` writes it; blank shows none, and
        None leaves it to who is asked.
    shown : str
        The demonstrations themselves, below the prompt; the runner adds them.
    """

    prompt: str
    text: str
    user_template: str | None = None
    context: str | None = None
    demonstrations: str | None = None
    shown: str = ""

    def messages(self) -> tuple[Message, ...]:
        """Return the chat messages of this query."""
        user = self.text if self.user_template is None else self.user_template.replace(INPUT_SLOT, self.text)
        return ({"role": "system", "content": self.prompt + self.shown}, {"role": "user", "content": user})


class _Row(NamedTuple):
    """A query on its way.

    Attributes
    ----------
    query : Query
        What to ask.
    key : str
        Digest of everything that can change the prediction.
    stored : Prediction or None
        What the journal holds under the key.
    repeated : bool
        Whether a row shortly before has the same key.
    problem : str
        Why it cannot be asked; empty where it can.
    """

    query: Query
    key: str
    stored: Prediction | None
    repeated: bool
    problem: str


@dataclass(kw_only=True)
class Runner:
    """Runs queries on one client, concurrently, and never loses a row.

    Attributes
    ----------
    client : Client
        Where the calls go.
    method : Method
        How a request becomes a prediction.
    response_format : mapping or None
        JSON schema sent with every call.
    top_logprobs : int
        Alternatives asked for per token.
    options : mapping
        Handed to the provider with every call.
    gate : Gate
        What the calls may take; the method's calls go through it.
    journal : Journal or None
        Finished predictions; what it holds is not asked again. Errors are never stored.
    retrieval : Retrieval or None
        Which demonstrations prompts show.
    """

    client: Client
    method: Method
    response_format: Mapping[str, Any] | None = None
    top_logprobs: int = 5
    options: Mapping[str, Any] = field(default_factory=dict)
    gate: Gate = field(default_factory=Gate)
    journal: Journal | None = None
    retrieval: Retrieval | None = None
    _answered: bool = field(default=False, init=False, repr=False)
    _digests: dict[tuple[str, str | None, bool], Any] = field(default_factory=dict, init=False, repr=False)
    # Rows under way, by event loop: whoever asks the same waits for the same answer.
    _flying: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[Prediction]]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def run(self, queries: Sequence[Query], *, on_prediction: OnPrediction | None = None) -> list[Prediction]:
        """Answer every query; see `arun`."""
        return run_sync(self.arun(queries, on_prediction=on_prediction))

    async def arun(
        self, queries: Iterable[Query], *, on_prediction: OnPrediction | None = None
    ) -> list[Prediction]:
        """Answer every query.

        Parameters
        ----------
        queries : iterable of Query
            What to ask.
        on_prediction : callable, optional
            Called with the index and the prediction of each query as it is answered.

        Returns
        -------
        list of Prediction
            One per query, in order; a failed call has the outcome ``error``.

        Raises
        ------
        ProviderError
            A fault that every call would meet (bad key, unknown model) before any succeeded, or
            nothing but failures.
        LimitReachedError
            A budget or the deadline of the run was reached first.
        """
        found: list[Prediction] = []
        reason = await self.feed(queries, lambda _, row: found.append(row), on_prediction=on_prediction)
        if reason:
            raise LimitReachedError(f"{reason} ({len(found):,} rows are answered).")
        return found

    async def feed(
        self,
        queries: Iterable[Query],
        deliver: OnPrediction,
        *,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> str:
        """Answer queries as they come, however many, and hand every prediction over once, in order.

        Parameters
        ----------
        queries : iterable of Query
            Read as rows are begun, not ahead.
        deliver : callable
            Called with the index and the prediction of each query, in the order of the queries.
        on_prediction : callable, optional
            Called with both as soon as a query is answered.
        stop : Stop, optional
            Ends the run after the rows under way.

        Returns
        -------
        str
            Why it ended early; empty when every query was answered.

        Raises
        ------
        ProviderError
            As `arun`.
        """
        feed = Feed(
            self._rows(queries),
            self._answer,
            Listeners(deliver=deliver, on_prediction=on_prediction, stop=stop or Stop()),
            gate=self.gate,
            provider=self.client.name,
            answered=self._answered,
        )
        known = len(queries) if isinstance(queries, Sequence) else None
        return await feed.run(rows=known)

    async def answer(self, query: Query) -> Prediction:
        """Answer one query of a caller that looks after limits and failures itself.

        Raises
        ------
        ProviderError
            A fault that every call would meet, before any call has succeeded.
        """
        (row,) = self._rows([query])
        return await self._answer(row)

    def request(self, query: Query) -> CompletionRequest:
        """Return what the model is asked for a query.

        Raises
        ------
        ConfigurationError
            Its demonstrations cannot be shown.
        """
        ((shown, problem),) = self._shown([query])
        if problem:
            raise ConfigurationError(problem)
        return self._request(shown)

    def _rows(self, queries: Iterable[Query]) -> Iterator[_Row]:
        waiting = iter(queries)
        while block := list(islice(waiting, _BLOCK)):
            shown = self._shown(block)
            asked = [query for query, _ in shown]
            keys = [self._key(query) for query in asked]
            stored = self._stored(asked, keys)
            seen: set[str] = set()
            for (query, problem), key in zip(shown, keys, strict=True):
                yield _Row(query, key, stored.get(key), key in seen, problem or _template_problem(query))
                seen.add(key)

    def _shown(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return queries with their demonstrations, and why one has none that it should have."""
        retrieval = self.retrieval
        if retrieval is None:
            if any(query.demonstrations and query.demonstrations.strip() for query in queries):
                raise ConfigurationError(
                    "Expected labelled texts to show as demonstrations, got none: hand in a DemonstrationIndex of the "
                    "training rows (with_demonstrations), or leave the component demonstrations out."
                )
            return [(query, "") for query in queries]
        found = retrieval.render([(query.text, query.demonstrations) for query in queries])
        return [
            (replace(query, shown=own.text), own.problem) for query, own in zip(queries, found, strict=True)
        ]

    def _stored(self, queries: Sequence[Query], keys: Sequence[str]) -> dict[str, Prediction]:
        """Return what the journal holds, by key.

        A prediction that was stored with features answers the question without them as well.
        """
        if self.journal is None:
            return {}
        found = dict(self.journal.get_many(keys))
        if not might_keep_features(self.method):
            return found
        missing = {
            self._key(query, with_features=True): key
            for query, key in zip(queries, keys, strict=True)
            if key not in found
        }
        kept = self.journal.get_many(list(missing)) if missing else {}
        return found | {missing[key]: replace(one, features=None) for key, one in kept.items()}

    async def _answer(self, row: _Row) -> Prediction:
        if row.problem:
            return Prediction(label=None, outcome=Outcome.UNPARSED, reason=row.problem, attempts=0)
        stored = row.stored
        if stored is None and row.repeated and self.journal is not None:
            stored = self.journal.get_many([row.key]).get(row.key)
        if stored is not None:
            return stored.with_effort(attempts=0)
        flying = self._flying.setdefault(asyncio.get_running_loop(), {})
        while (other := flying.get(row.key)) is not None:
            await asyncio.wait([other])
            if not other.cancelled() and other.exception() is None:
                return other.result().with_effort(attempts=0)
        future = flying[row.key] = asyncio.get_running_loop().create_future()
        try:
            prediction = await self._ask_and_store(row)
            future.set_result(prediction)
            return prediction
        finally:
            del flying[row.key]
            future.cancel()  # nothing came: whoever waits asks for itself

    async def _ask_and_store(self, row: _Row) -> Prediction:
        prediction = await self._ask(row.query)
        self.gate.charge(prediction.usage)
        if self.journal is not None and self._is_final(prediction):
            self.journal.put(row.key, prediction)
        return prediction

    def _is_final(self, prediction: Prediction) -> bool:
        """Return whether asking again would bring nothing else, so that a journal may keep it."""
        return prediction.outcome is not Outcome.ERROR

    def _ends_run(self, error: ProviderError) -> bool:
        """Return whether no other row can be expected to be answered."""
        return error.systemic and not self._answered

    async def _predict(self, query: Query) -> Prediction:
        return await self.method.predict(self._request(query))

    def _request(self, query: Query) -> CompletionRequest:
        return CompletionRequest(
            messages=query.messages(),
            response_format=self.response_format,
            top_logprobs=self.top_logprobs,
            options=self.options,
            without_text=replace(query, text="", shown="").messages(),
        )

    async def _ask(self, query: Query) -> Prediction:
        start = time.perf_counter()
        try:
            prediction = await self._predict(query)
        except (SystemExit, KeyboardInterrupt) as error:
            # Either would end the event loop, and every later call would wait for ever.
            raise CalibrantError(f"{self.client.name}: the model raised {error!r}.") from error
        except ProviderError as error:
            if isinstance(error, ContextLengthError):
                return Prediction(
                    label=None, outcome=Outcome.UNPARSED, reason=str(error), attempts=error.attempts
                )
            if self._ends_run(error):
                raise
            prediction = Prediction(
                label=None, outcome=Outcome.ERROR, reason=str(error), attempts=error.attempts
            )
        else:
            self._answered = self._answered or prediction.outcome is not Outcome.ERROR
            prediction = _without_echoes(prediction, self.client)
        return prediction.with_effort(latency_seconds=time.perf_counter() - start)

    def _key(self, query: Query, *, with_features: bool = False) -> str:
        """Return a digest of everything that can change the prediction, or that of the same with features kept."""
        prompt = (query.prompt + query.shown, query.user_template, with_features)
        digest = self._digests.get(prompt)
        if digest is None:
            if len(self._digests) >= _PROMPTS:
                self._digests.clear()
            method = keeping_features(self.method) if with_features else self.method
            digest = self._digests[prompt] = hashlib.sha256(self._settings(query, method).encode())
        digest = digest.copy()
        digest.update(query.text.encode("utf-8", "surrogatepass"))
        return str(digest.hexdigest())

    def _settings(self, query: Query, method: Method) -> str:
        parts = [
            self.client.name,
            getattr(self.client, "endpoint", None),
            dict(method.describe()),
            query.prompt + query.shown,
            query.user_template,
            self.response_format,
            self.top_logprobs,
            {name: value for name, value in self.options.items() if name not in _NOT_IN_KEY},
        ]
        return json.dumps(parts, sort_keys=True, default=repr)


async def feed_finished(
    runner: Runner,
    queries: Iterable[Query],
    finish: Callable[[Prediction, str], Prediction],
    deliver: OnPrediction,
    *,
    on_prediction: OnPrediction | None,
    stop: Stop | None,
) -> str:
    """Run `Runner.feed`, and hand over what `finish` makes of each prediction and its text."""
    under_way: dict[int, str] = {}

    def noted() -> Iterator[Query]:
        for index, query in enumerate(queries):
            under_way[index] = query.text
            yield query

    return await runner.feed(
        noted(),
        lambda index, found: deliver(index, finish(found, under_way.pop(index))),
        on_prediction=on_prediction
        and (lambda index, found: on_prediction(index, finish(found, under_way[index]))),
        stop=stop,
    )


def _template_problem(query: Query) -> str:
    """Return why a query's template cannot be used; empty where it can."""
    if query.user_template is None or INPUT_SLOT in query.user_template:
        return ""
    return f"the user template lacks {INPUT_SLOT}, so the model never saw the text"


def _without_echoes(prediction: Prediction, client: Client) -> Prediction:
    """Return a prediction without secrets of the client's that its server repeated; label and evidence stay."""
    hidden = getattr(client, "hidden", None)
    if hidden is None:
        return prediction
    said = {"reason": prediction.reason, "text": prediction.text, "model": prediction.model}
    clean = {name: hidden(text) for name, text in said.items() if text}
    changed = {name: text for name, text in clean.items() if text != said[name]}
    return replace(prediction, **changed) if changed else prediction
