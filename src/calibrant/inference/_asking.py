"""Texts in, predictions out: what a classifier is asked."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from calibrant.core import Prediction, TextWithContext
from calibrant.inference._feed import OnPrediction, Stop
from calibrant.inference._loop import run_sync
from calibrant.inference._runner import Query, Runner, feed_finished

__all__ = ["Asking"]


class _Managed(ABC):
    """A context manager, for ``with`` and ``async with``, around `close`."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        # In a thread: connections of this event loop are closed by the loop itself, which must go on.
        await asyncio.to_thread(self.close)


class Asking(_Managed):
    """Classifies texts through a runner."""

    runner: Runner

    @abstractmethod
    def finished(self, prediction: Prediction, text: str) -> Prediction:
        """Return what the model said of a text as it is given to the user."""

    @abstractmethod
    def _query(self, text: str | TextWithContext) -> Query:
        """Return what is asked about a text."""

    def classify(self, text: str | TextWithContext) -> Prediction:
        """Classify one text; its context, if any, is for a cascade's verifier."""
        return self.classify_many([text])[0]

    def classify_many(
        self,
        texts: Sequence[str | TextWithContext],
        *,
        on_prediction: Callable[[int, Prediction], None] | None = None,
    ) -> list[Prediction]:
        """Classify texts concurrently.

        Parameters
        ----------
        texts : sequence of str or TextWithContext
            What to classify.
        on_prediction : callable, optional
            Called with the index and the prediction of each text as it is answered.

        Returns
        -------
        list of Prediction
            One per text, in order. A row that failed says so in its ``outcome``.

        Raises
        ------
        ProviderError
            A fault that every call would meet, such as a bad key.
        """
        return run_sync(self.aclassify_many(texts, on_prediction=on_prediction))

    async def aclassify(self, text: str | TextWithContext) -> Prediction:
        """Classify one text, for use inside an event loop."""
        return (await self.aclassify_many([text]))[0]

    async def aclassify_many(
        self,
        texts: Sequence[str | TextWithContext],
        *,
        on_prediction: Callable[[int, Prediction], None] | None = None,
    ) -> list[Prediction]:
        """Classify texts concurrently, for use inside an event loop; see `classify_many`."""
        queries = [self._query(text) for text in texts]
        listener = on_prediction and (
            lambda index, found: on_prediction(index, self.finished(found, queries[index].text))
        )
        predictions = await self.runner.arun(queries, on_prediction=listener)
        return [self.finished(found, query.text) for query, found in zip(queries, predictions, strict=True)]

    async def aclassify_each(
        self,
        texts: Iterable[str | TextWithContext],
        on_row: OnPrediction,
        *,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> str:
        """Classify texts as they come, however many, in bounded memory.

        Parameters
        ----------
        texts : iterable of str or TextWithContext
            Read as rows are begun, not ahead.
        on_row : callable
            Called with the index and the prediction of every text once, in the order of the texts.
        on_prediction : callable, optional
            Called with both as soon as a text is answered.
        stop : Stop, optional
            Ends the run after the rows under way.

        Returns
        -------
        str
            Why it ended early (a budget, a deadline, `stop`); empty when every text was answered.

        Raises
        ------
        ProviderError
            A fault that every call would meet, or nothing but failures.
        """
        return await feed_finished(
            self.runner,
            map(self._query, texts),
            self.finished,
            on_row,
            on_prediction=on_prediction,
            stop=stop,
        )
