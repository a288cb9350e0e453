"""How one request becomes a prediction: decode an answer, score every label, or sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from calibrant.clients import RetryPolicy, with_retries
from calibrant.core import Client, CompletionRequest, LogprobSpace, Outcome, Prediction, ProviderError
from calibrant.inference._reader import AnswerReader

__all__ = ["Decoding", "Method"]


class Method(Protocol):
    """Turns a request into a prediction."""

    @property
    def space(self) -> LogprobSpace:
        """Space of the distributions it returns."""
        ...

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the prediction; its ``attempts`` counts the calls made.

        Raises
        ------
        ProviderError
            The model could not be asked, after retries; ``attempts`` counts the calls made.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return what can change a prediction, as JSON values: part of every cache key."""
        ...


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Lets the model write its answer, and reads the token log-probabilities it comes with.

    Attributes
    ----------
    client : Client
        Where the calls go.
    reader : AnswerReader
        How responses are read.
    retry : RetryPolicy
        How passing faults are retried.
    """

    client: Client
    reader: AnswerReader
    retry: RetryPolicy = RetryPolicy()

    @property
    def space(self) -> LogprobSpace:
        """The reader's."""
        return self.reader.space

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return what the model answered; a broken response is retried like a failed call."""

        async def ask() -> Prediction:
            prediction = self.reader.read(await self.client.complete(request))
            if prediction.outcome is Outcome.ERROR:
                raise ProviderError(prediction.reason, provider=self.client.name, retryable=True)
            return prediction

        prediction, attempts = await with_retries(ask, policy=self.retry)
        return replace(prediction, attempts=attempts)

    def describe(self) -> Mapping[str, Any]:
        """Return how answers are read."""
        return {
            "scoring": "decode",
            "space": self.reader.space.value,
            "labels": self.reader.labels.labels,
            "field": self.reader.field,
            "answer_field": self.reader.answer_field,
        }
