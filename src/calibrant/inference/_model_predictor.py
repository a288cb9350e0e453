"""One model behind a predictor: its client, how it is asked, and the runner of its rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibrant.core._completion import Client, Completion, CompletionRequest
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Prediction
from calibrant.core._predictor import OnPrediction, Query, Stop
from calibrant.core._records import Journal
from calibrant.inference._calls import Calls
from calibrant.inference._limits import Gate, is_in_process
from calibrant.inference._methods import Method
from calibrant.inference._predictor import BasePredictor
from calibrant.inference._prompted import PromptedModel
from calibrant.inference._reader import AnswerReader
from calibrant.inference._runner import Runner

if TYPE_CHECKING:
    from calibrant.inference._demonstrations import Retrieval


class ModelPredictor(BasePredictor):
    """A predictor that asks one model."""

    _calls: Calls
    _model: PromptedModel
    _reader: AnswerReader
    _runner: Runner

    @abstractmethod
    def finished(self, query: Query, prediction: Prediction) -> Prediction:
        """Return a prediction as it is given to the user, with the head and label prior of its own prompt applied."""

    @property
    def answer_field(self) -> str:
        """JSON path the label is read from."""
        return self._reader.answer_field

    @property
    def client(self) -> Client:
        """The client the calls go to."""
        return self._model.client

    @property
    def clients(self) -> tuple[Client, ...]:
        """The one client."""
        return (self.client,)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.client.name

    @property
    def method(self) -> Method:
        """Method that turns a request into a prediction."""
        return self._model.method

    @property
    def space(self) -> LogprobSpace:
        """Kind of its log-probabilities, as `LogprobSpace` names them."""
        return self.method.space

    @property
    def response_format(self) -> Mapping[str, Any] | None:
        """JSON schema sent with every call."""
        return self._model.response_format

    @property
    def top_logprobs(self) -> int:
        """Alternatives asked for per token."""
        return self._model.top_logprobs

    @property
    def options(self) -> Mapping[str, Any]:
        """Handed to the provider with every call."""
        return self._model.options

    @property
    def in_process(self) -> bool:
        """True if rows are computed in this process, so that more of them at a time are no faster."""
        return is_in_process(self.client)

    @property
    def demonstrations(self) -> Retrieval | None:
        """Labelled texts that prompts show beside the text they are about; None without any."""
        return self._model.retrieval

    @property
    def meter(self) -> Gate:
        """Meter of its rows: calls, tokens and cost so far."""
        return self._runner.gate

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Meter of the calls to its model, with their rates."""
        return (self._runner.gate,)

    @property
    def journal(self) -> Journal | None:
        """Finished predictions; what it holds is not asked again."""
        return self._runner.journal

    def use_journal(self, journal: Journal | None) -> None:
        """Look predictions up in `journal` from now on, and store them there; copies that share this one's do, too."""
        self._runner.journal = journal

    async def feed(
        self,
        queries: Iterable[Query],
        deliver: OnPrediction,
        *,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> str:
        """Answer queries as they come, however many, in bounded memory; see `calibrant.core.Predictor.feed`."""
        return await self._runner.feed(
            queries, deliver, finish=self.finished, on_prediction=on_prediction, stop=stop
        )

    async def answer(self, query: Query) -> Prediction:
        """Return the model's prediction of one query, for a caller that looks after limits and failures itself.

        Raises
        ------
        ProviderError
            A fault that every call would meet, before any call has succeeded.
        """
        return await self._runner.answer(query)

    def request(self, query: Query) -> CompletionRequest:
        """Return the request that is sent for a query.

        Raises
        ------
        ConfigurationError
            Its demonstrations cannot be shown.
        """
        ((prepared, problem),) = self._model.prepare([query])
        if problem:
            raise ConfigurationError(problem)
        return self._model.request(prepared)

    async def acomplete(self, request: CompletionRequest) -> tuple[Completion, int]:
        """Ask the model something else, such as what it thinks of its answer.

        Limits, retries and options are those of the classification; options of the request come before
        the latter.

        Parameters
        ----------
        request : CompletionRequest
            What to ask.

        Returns
        -------
        completion : Completion
            What it answered.
        attempts : int
            Calls made.

        Raises
        ------
        ProviderError
            There is no answer, after retries; ``attempts`` counts the calls made.
        """
        options = {**self.options, **request.options}
        return await self._calls.complete(self.client, replace(request, options=options))

    def _use(self, model: PromptedModel) -> None:
        """Ask in another way from now on, through the same gate."""
        self._model = model
        self._runner = replace(self._runner, model=model)
