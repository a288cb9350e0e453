"""Base class of predictors, on top of `feed`."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Self

from calibrant.core._completion import Client
from calibrant.core._limits import Limits
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import Predictor, Query
from calibrant.core._rows import TextWithContext
from calibrant.inference._limits import Gate
from calibrant.inference._loop import ask_async, run_sync

_LABELS_SHOWN: Final = 5


class BasePredictor(Predictor):
    """A `calibrant.core.Predictor` that classifies texts, from synchronous and asynchronous code; a context manager."""

    @property
    @abstractmethod
    def clients(self) -> tuple[Client, ...]:
        """Clients of its models, in the order in which they are asked."""

    @property
    @abstractmethod
    def meter(self) -> Gate:
        """Meter of its rows: calls, tokens and cost so far."""

    @property
    def limits(self) -> Limits:
        """Limits of its calls."""
        return self.meter.limits

    def query(self, text: str | TextWithContext) -> Query:
        """Return the query that asks about a text, under the predictor's own prompt."""
        given = text if isinstance(text, TextWithContext) else TextWithContext(text)
        return Query(
            prompt=self.prompt, text=given.text, user_template=self.user_template, context=given.context
        )

    def classify(self, text: str | TextWithContext) -> Prediction:
        """Classify one text; a cascade's verifier also reads `context`."""
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
            Texts to classify.
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
        LimitReachedError
            A budget or the deadline of the run was reached first.
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
        return await ask_async(self, [self.query(text) for text in texts], on_prediction=on_prediction)

    def __repr__(self) -> str:
        labels = ", ".join(map(repr, self.labels.labels[:_LABELS_SHOWN]))
        more = f", ... {len(self.labels)} in all" if len(self.labels) > _LABELS_SHOWN else ""
        scoring = self.describe()["method"].get("scoring")
        return f"{type(self).__name__}(model={self.name!r}, labels=[{labels}{more}], scoring={scoring!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        # In a thread: connections of this event loop are closed by the loop itself, which must go on.
        await asyncio.to_thread(self.close)
