"""Texts in, predictions out: what every predictor offers on top of `feed`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self

from calibrant.core._completion import Client
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import LimitReachedError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._labels import LabelSet
from calibrant.core._limits import Limits
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import OnPrediction, Predictor, Query, Stop
from calibrant.core._records import Journal
from calibrant.core._rows import TextWithContext
from calibrant.inference._limits import Gate
from calibrant.inference._loop import run_sync

_LABELS_SHOWN: Final = 5


class BasePredictor(ABC):
    """Classifies texts; a context manager.

    Attributes
    ----------
    labels, field, prompt, user_template
        As `calibrant.core.Predictor` has them.
    """

    labels: LabelSet
    field: str
    prompt: str
    user_template: str | None

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the model or cascade, for messages and records."""

    @property
    @abstractmethod
    def space(self) -> LogprobSpace:
        """Kind of its log-probabilities, as `LogprobSpace` names them."""

    @property
    @abstractmethod
    def in_process(self) -> bool:
        """True if rows are computed in this process, so that more of them at a time are no faster."""

    @property
    @abstractmethod
    def journal(self) -> Journal | None:
        """Finished predictions; what it holds is not asked again."""

    @property
    @abstractmethod
    def clients(self) -> tuple[Client, ...]:
        """The clients of its models, in the order in which they are asked."""

    @property
    def limits(self) -> Limits:
        """Limits of its calls."""
        return self.meter.limits

    @property
    @abstractmethod
    def meter(self) -> Gate:
        """Meter of its rows: calls, tokens and cost so far."""

    @property
    @abstractmethod
    def gates(self) -> tuple[Gate, ...]:
        """Meters of the calls to each of its models, with their rates."""

    @abstractmethod
    async def feed(
        self,
        queries: Iterable[Query],
        deliver: OnPrediction,
        *,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> str:
        """Answer queries as they come, however many, in bounded memory; see `calibrant.core.Predictor.feed`."""

    @abstractmethod
    def with_prompt(self, prompt: str, *, user_template: str | None = None) -> Self:
        """Return a copy under another prompt that shares clients and journal, without what was learned."""

    @abstractmethod
    def with_limits(self, limits: Limits) -> Self:
        """Return a copy under other limits that shares clients and journal; it has paid nothing yet."""

    @abstractmethod
    def use_journal(self, journal: Journal | None) -> None:
        """Look predictions up in `journal` from now on, and store them there."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint that a calibration of its predictions is bound to."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the settings that can change a prediction as JSON values, free of credentials."""

    @abstractmethod
    def close(self) -> None:
        """Close its clients and whatever else was opened for it."""

    def query(self, text: str | TextWithContext) -> Query:
        """Return the query that asks about a text, under the predictor's own prompt."""
        given = text if isinstance(text, TextWithContext) else TextWithContext(text)
        return Query(
            prompt=self.prompt, text=given.text, user_template=self.user_template, context=given.context
        )

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


def ask(
    predictor: Predictor, queries: Sequence[Query], *, on_prediction: OnPrediction | None = None
) -> list[Prediction]:
    """Answer queries and return their predictions, in order; see `ask_async`."""
    return run_sync(ask_async(predictor, queries, on_prediction=on_prediction))


async def ask_async(
    predictor: Predictor, queries: Sequence[Query], *, on_prediction: OnPrediction | None = None
) -> list[Prediction]:
    """Answer queries and return their predictions, in order.

    Parameters
    ----------
    predictor : Predictor
        Answers them.
    queries : sequence of Query
        What to ask.
    on_prediction : callable, optional
        Called with the index and the prediction of each query as it is answered.

    Returns
    -------
    list of Prediction
        One per query; a failed call has the outcome ``error``.

    Raises
    ------
    ProviderError
        A fault that every call would meet (bad key, unknown model) before any succeeded, or
        nothing but failures.
    LimitReachedError
        A budget or the deadline of the run was reached first.
    """
    found: list[Prediction] = []
    reason = await predictor.feed(queries, lambda _, row: found.append(row), on_prediction=on_prediction)
    if reason:
        raise LimitReachedError(f"{reason} ({len(found):,} rows are answered).")
    return found
