"""The concurrent runner every job uses: queries in, predictions out, in order."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calibrant.core import (
    CalibrantError,
    Client,
    CompletionRequest,
    ContextLengthError,
    Journal,
    Message,
    Outcome,
    Prediction,
    ProviderError,
)
from calibrant.inference._loop import run_sync
from calibrant.inference._methods import Method

__all__ = ["Query", "Runner"]

INPUT_SLOT = "{input}"

# Options that cannot change an answer.
_NOT_IN_KEY = frozenset({"api_key", "timeout"})

OnPrediction = Callable[[int, Prediction], None]


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
    """

    prompt: str
    text: str
    user_template: str | None = None

    def messages(self) -> tuple[Message, ...]:
        """Return the chat messages of this query."""
        user = self.text if self.user_template is None else self.user_template.replace(INPUT_SLOT, self.text)
        return ({"role": "system", "content": self.prompt}, {"role": "user", "content": user})


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
    concurrency : int
        Calls in flight at most.
    options : mapping
        Handed to the provider with every call.
    journal : Journal or None
        Finished predictions; what it holds is not asked again. Errors are never stored.
    """

    client: Client
    method: Method
    response_format: Mapping[str, Any] | None = None
    top_logprobs: int = 5
    concurrency: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)
    journal: Journal | None = None
    _answered: bool = field(default=False, init=False, repr=False)

    def run(self, queries: Sequence[Query], *, on_prediction: OnPrediction | None = None) -> list[Prediction]:
        """Answer every query; see `arun`."""
        return run_sync(self.arun(queries, on_prediction=on_prediction))

    async def arun(
        self, queries: Sequence[Query], *, on_prediction: OnPrediction | None = None
    ) -> list[Prediction]:
        """Answer every query.

        Parameters
        ----------
        queries : sequence of Query
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
            A fault that every call would meet (bad key, unknown model) before any succeeded.
        """
        predictions: dict[int, Prediction] = {}
        pending = iter(enumerate(queries))

        async def worker(items: Iterator[tuple[int, Query]]) -> None:
            for index, query in items:
                predictions[index] = await self._answer(query)
                if on_prediction is not None:
                    on_prediction(index, predictions[index])

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.concurrency, len(queries))):
                    group.create_task(worker(pending))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [predictions[index] for index in range(len(queries))]

    async def _answer(self, query: Query) -> Prediction:
        if query.user_template is not None and INPUT_SLOT not in query.user_template:
            reason = f"the user template lacks {INPUT_SLOT}, so the model never saw the text"
            return Prediction(label=None, outcome=Outcome.UNPARSED, reason=reason, attempts=0)
        request = CompletionRequest(
            messages=query.messages(),
            response_format=self.response_format,
            top_logprobs=self.top_logprobs,
            options=self.options,
        )
        key = None if self.journal is None else self._key(request)
        if self.journal is not None and key is not None:
            stored = self.journal.get(key)
            if stored is not None:
                return replace(stored, attempts=0)
        prediction = await self._ask(request)
        if self.journal is not None and key is not None and prediction.outcome is not Outcome.ERROR:
            self.journal.put(key, prediction)
        return prediction

    async def _ask(self, request: CompletionRequest) -> Prediction:
        start = time.perf_counter()
        try:
            prediction = await self.method.predict(request)
        except (SystemExit, KeyboardInterrupt) as error:
            # Either would end the event loop, and every later call would wait for ever.
            raise CalibrantError(f"{self.client.name}: the model raised {error!r}.") from error
        except ProviderError as error:
            if isinstance(error, ContextLengthError):
                return Prediction(
                    label=None, outcome=Outcome.UNPARSED, reason=str(error), attempts=error.attempts
                )
            if error.systemic and not self._answered:
                raise
            prediction = Prediction(
                label=None, outcome=Outcome.ERROR, reason=str(error), attempts=error.attempts
            )
        else:
            self._answered = True
        return replace(prediction, latency_seconds=time.perf_counter() - start)

    def _key(self, request: CompletionRequest) -> str:
        """Return a digest of everything that can change the prediction."""
        parts = [
            self.client.name,
            dict(self.method.describe()),
            [dict(message) for message in request.messages],
            request.response_format,
            request.top_logprobs,
            {name: value for name, value in request.options.items() if name not in _NOT_IN_KEY},
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()
