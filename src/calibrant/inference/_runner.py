"""The concurrent runner every job uses: queries in, predictions out, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from calibrant.core._errors import CalibrantError, ContextLengthError, ProviderError
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import INPUT_SLOT, OnPrediction, Query, Stop
from calibrant.core._records import Journal
from calibrant.inference._feed import Feed, Listeners
from calibrant.inference._limits import Gate

# Rows looked up in the journal at a time.
_BLOCK: Final = 256


class RowModel(Protocol):
    """Answers one query at a time: a model under prompts, or a cascade of them."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def prepare(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return queries as they are asked, and why one cannot be; empty where it can."""
        ...

    def key(self, query: Query) -> str:
        """Return a digest of everything that can change the prediction."""
        ...

    def richer_key(self, query: Query) -> str | None:
        """Return the key under which the same prediction is stored with more than is asked for."""
        ...

    async def predict(self, query: Query) -> Prediction:
        """Return the prediction; a failure raises a `ProviderError`."""
        ...

    def is_final(self, prediction: Prediction) -> bool:
        """Return whether asking again would bring nothing else, so that a journal may keep it."""
        ...

    def ends_run(self, error: ProviderError, *, answered: bool) -> bool:
        """Return whether no other row can be expected to be answered; `answered` if any was."""
        ...


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
    """Runs queries on one model, concurrently, and never loses a row.

    Attributes
    ----------
    model : RowModel
        Answers a query.
    gate : Gate
        What the rows may take; the model's calls go through it, or through gates of its own.
    journal : Journal or None
        Finished predictions; what it holds is not asked again. Errors are never stored.
    """

    model: RowModel
    gate: Gate = field(default_factory=Gate)
    journal: Journal | None = None
    _answered: bool = field(default=False, init=False, repr=False)
    # Rows under way, by event loop: whoever asks the same waits for the same answer.
    _flying: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[Prediction]]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    async def feed(
        self,
        queries: Iterable[Query],
        deliver: OnPrediction,
        *,
        finish: Callable[[Query, Prediction], Prediction] = lambda _, prediction: prediction,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> str:
        """Answer queries as `calibrant.core.Predictor.feed` says.

        Parameters
        ----------
        queries, deliver, on_prediction, stop
            As there.
        finish : callable, optional
            Returns what is handed over for a query and its prediction; the journal keeps the prediction as it came.

        Returns
        -------
        str
            Why it ended early; empty when every query was answered.

        Raises
        ------
        ProviderError
            A fault that every call would meet (bad key, unknown model) before any succeeded, or
            nothing but failures.
        """
        feed = Feed(
            self._rows(queries),
            self._answer,
            Listeners(
                finish=lambda row, prediction: finish(row.query, prediction),
                deliver=deliver,
                on_prediction=on_prediction,
                stop=stop or Stop(),
            ),
            gate=self.gate,
            provider=self.model.name,
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

    def _rows(self, queries: Iterable[Query]) -> Iterator[_Row]:
        waiting = iter(queries)
        while block := list(islice(waiting, _BLOCK)):
            prepared = self.model.prepare(block)
            asked = [query for query, _ in prepared]
            keys = [self.model.key(query) for query in asked]
            stored = self._stored(asked, keys)
            seen: set[str] = set()
            for (query, problem), key in zip(prepared, keys, strict=True):
                yield _Row(query, key, stored.get(key), key in seen, problem or _template_problem(query))
                seen.add(key)

    def _stored(self, queries: Sequence[Query], keys: Sequence[str]) -> dict[str, Prediction]:
        """Return what the journal holds, by key.

        A prediction that was stored with features answers the question without them as well.
        """
        if self.journal is None:
            return {}
        found = dict(self.journal.get_many(keys))
        richer = {
            other: key
            for query, key in zip(queries, keys, strict=True)
            if key not in found and (other := self.model.richer_key(query)) is not None
        }
        kept = self.journal.get_many(list(richer)) if richer else {}
        return found | {richer[key]: replace(one, features=None) for key, one in kept.items()}

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
            prediction = await self._ask(row.query)
            self.gate.charge(prediction.usage)
            if self.journal is not None and self.model.is_final(prediction):
                self.journal.put(row.key, prediction)
            future.set_result(prediction)
            return prediction
        finally:
            del flying[row.key]
            future.cancel()  # nothing came: whoever waits asks for itself

    async def _ask(self, query: Query) -> Prediction:
        """Return a prediction, a failure of this one row included."""
        start = time.perf_counter()
        try:
            prediction = await self.model.predict(query)
            self._answered = self._answered or prediction.outcome is not Outcome.ERROR
        except (SystemExit, KeyboardInterrupt) as error:
            # Either would end the event loop, and every later call would wait for ever.
            raise CalibrantError(f"{self.model.name}: the model raised {error!r}.") from error
        except ContextLengthError as error:
            return Prediction(
                label=None, outcome=Outcome.UNPARSED, reason=str(error), attempts=error.attempts
            )
        except ProviderError as error:
            if self.model.ends_run(error, answered=self._answered):
                raise
            prediction = Prediction(
                label=None, outcome=Outcome.ERROR, reason=str(error), attempts=error.attempts
            )
        return prediction.with_effort(latency_seconds=time.perf_counter() - start)


def _template_problem(query: Query) -> str:
    """Return why a query's template cannot be used; empty where it can."""
    if query.user_template is None or INPUT_SLOT in query.user_template:
        return ""
    return f"the user template lacks {INPUT_SLOT}, so the model never saw the text"
