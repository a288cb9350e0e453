"""Predictor of one prompted model: its requests and journal keys."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from calibrant.core._completion import Client, Completion, CompletionRequest
from calibrant.core._errors import CalibrantError, ConfigurationError, ProviderError
from calibrant.core._files import read_json_object
from calibrant.core._prediction import LogprobSpace, Outcome, Prediction
from calibrant.core._predictor import OnPrediction, Query, Stop
from calibrant.core._records import Journal
from calibrant.inference._abilities import KnownAbilities, ModelAbilities
from calibrant.inference._base import BasePredictor
from calibrant.inference._feed import Feed, QueryKeys
from calibrant.inference._limits import Gate, is_in_process
from calibrant.inference._methods import Decoding, Method

if TYPE_CHECKING:
    from pathlib import Path

    from calibrant.calibration._prior import LabelPriorCorrection
    from calibrant.heads._head import Head
    from calibrant.inference._demonstrations import Retrieval

# Options that cannot change an answer.
_NOT_IN_KEY: Final = frozenset({"api_key", "timeout"})


@dataclass(frozen=True, kw_only=True)
class PromptedModel:
    """Model of a classifier for the row engine: a client with method, schema and options.

    Attributes
    ----------
    method : Method
        Turns a request into a prediction.
    response_format : mapping or None
        JSON schema sent with every call.
    top_logprobs : int
        Alternatives asked for per token.
    options : mapping
        Handed to the provider with every call.
    retrieval : Retrieval or None
        Chooses the demonstrations that prompts show.
    """

    method: Method
    response_format: Mapping[str, Any] | None = None
    top_logprobs: int = 5
    options: Mapping[str, Any] = field(default_factory=dict)
    retrieval: Retrieval | None = None
    _keys: QueryKeys = field(default_factory=QueryKeys, init=False, repr=False, compare=False)
    _richer_keys: QueryKeys = field(default_factory=QueryKeys, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The client's name."""
        return self.method.client.name

    def with_features(self) -> PromptedModel:
        """Return a copy whose predictions hold text features, if the model reports them."""
        return replace(self, method=self.method.with_features())

    def request(self, query: Query) -> CompletionRequest:
        """Return the request for a query whose demonstrations are rendered already."""
        return CompletionRequest(
            messages=query.messages(),
            response_format=self.response_format,
            top_logprobs=self.top_logprobs,
            options=self.options,
            without_text=replace(query, text="", shown="").messages(),
        )

    @property
    def knows_abilities(self) -> bool:
        """True if it is known how the model is asked, or nothing can tell before it is asked."""
        return self.method.knows_abilities

    async def find_abilities(self, first: Query, journal: Journal | None = None) -> None:
        """Find out how the model is asked; see `AutoDecoding.find_abilities`."""
        ((prepared, problem),) = self.prepare([first])
        if problem:
            prepared = first
        key = self.key(prepared)
        self._keys.clear()  # it may be another one from now on
        stored = None if journal is None else journal.get_many([key]).get(key)
        await self.method.find_abilities(self.request(prepared), stored)

    def prepare(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return queries with rendered demonstrations, each with an error text or an empty one."""
        if self.retrieval is not None:
            return self.retrieval.prepare(queries)
        if any(query.demonstrations and query.demonstrations.strip() for query in queries):
            raise ConfigurationError(
                "Expected labelled texts to show as demonstrations, got none: hand in a DemonstrationIndex of the "
                "training rows (with_demonstrations), or leave the component demonstrations out."
            )
        return [(query, "") for query in queries]

    async def predict(self, query: Query) -> Prediction:
        """Return the prediction of a query; client secrets echoed by the server are removed.

        Raises
        ------
        ProviderError
            The model could not be asked.
        """
        return _without_echoes(await self.method.predict(self.request(query)), self.method.client)

    def key(self, query: Query) -> str:
        """Return the journal key: a digest of the settings and texts that can change the prediction."""
        return self._keys.key(query, partial(self._settings, method=self.method))

    def richer_key(self, query: Query) -> str | None:
        """Return the journal key of the same query asked with text features; None if there is none."""
        if not self.method.might_keep_features:
            return None
        return self._richer_keys.key(query, partial(self._settings, method=self.method.with_features()))

    def is_final(self, prediction: Prediction) -> bool:
        """Return True if a retry could not change the prediction."""
        return prediction.outcome is not Outcome.ERROR

    def ends_run(self, error: ProviderError, *, answered: bool) -> bool:
        """Return True if every call would meet `error` and no row has succeeded so far."""
        return error.systemic and not answered

    def _settings(self, query: Query, *, method: Method) -> list[object]:
        tokenisation = getattr(self.method.client, "tokenisation", None)
        return [
            self.method.client.name,
            getattr(self.method.client, "endpoint", None),
            dict(method.describe()),
            query.prompt + query.shown,
            query.user_template,
            self.response_format,
            self.top_logprobs,
            {name: value for name, value in self.options.items() if name not in _NOT_IN_KEY},
            tokenisation,
        ]


def _without_echoes(prediction: Prediction, client: Client) -> Prediction:
    """Return a prediction without echoed client secrets; label and evidence stay."""
    hidden = getattr(client, "hidden", None)
    if hidden is None:
        return prediction
    texts = {"reason": prediction.reason, "text": prediction.text, "model": prediction.model}
    clean = {name: hidden(text) for name, text in texts.items() if text}
    changed = {name: text for name, text in clean.items() if text != texts[name]}
    return replace(prediction, **changed) if changed else prediction


class ModelPredictor(BasePredictor):
    """Base class of predictors that ask a single model."""

    _model: PromptedModel
    _head: Head | None = None
    _prior_correction: LabelPriorCorrection | None = None

    @property
    def answer_field(self) -> str:
        """JSON path of the label in the model's answer."""
        return self.method.reader.answer_field

    @property
    def client(self) -> Client:
        """Client that makes the predictor's model calls."""
        return self.method.client

    @property
    def clients(self) -> tuple[Client, ...]:
        """Tuple that holds the predictor's only client."""
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
    def row_model(self) -> PromptedModel:
        """Prompted model that the feed asks."""
        return self._model

    @property
    def abilities(self) -> ModelAbilities | None:
        """Known abilities of the model; None until they are found out."""
        return self.method.reader.abilities.known

    def with_abilities(self, abilities: ModelAbilities) -> Self:
        """Return a copy that asks the model as these abilities say, without finding out; either may be closed."""
        reader = replace(self.method.reader, abilities=KnownAbilities(abilities))
        return self._with_method(replace(self.method, reader=reader))

    def asked_as(self, described: Mapping[str, Any]) -> Self:
        """Return a copy that asks the model as the method in a description does, without finding out."""
        return self.with_abilities(ModelAbilities.of(described))

    def unless_told(self) -> Self:
        """Return a predictor that decodes, unless another scoring was asked for."""
        return self._with_method(self.method.unless_told)

    def asked_for(self, learned: Path) -> Self:
        """Return a predictor that asks the model in the space in which a head or a label prior was learned.

        Where the file leaves it open how, that is found out.

        Parameters
        ----------
        learned : Path
            File of the head or the label prior.

        Raises
        ------
        ProviderError
            It had to be found out, and the model cannot be asked.
        """
        space = None
        with contextlib.suppress(CalibrantError, LookupError, TypeError):  # whoever loads the file says more
            space = read_json_object(learned, remedy="")["fingerprint"]["space"]
        if space is None or not isinstance(self.method, Decoding):
            return self
        if space == LogprobSpace.MASKED:
            return self.with_abilities(ModelAbilities())
        if space != self.space:
            self.find_abilities()
        if self.abilities is None:
            return self
        return self.with_abilities(replace(self.abilities, gives_logprobs=space != LogprobSpace.FUSED))

    def _with_method(self, method: Method) -> Self:
        found = copy(self)
        found._model = replace(self._model, method=method)  # noqa: SLF001 (of its own kind)
        return found

    @property
    def scoring(self) -> str:
        """Name of the method, as far as it is known."""
        return str(self.method.describe()["scoring"])

    @property
    def space(self) -> LogprobSpace:
        """Log-probability space of the predictor's distributions."""
        return self.method.space

    @property
    def response_format(self) -> Mapping[str, Any] | None:
        """JSON schema sent with every call."""
        return self._model.response_format

    @property
    def top_logprobs(self) -> int:
        """Number of alternatives requested per token."""
        return self._model.top_logprobs

    @property
    def options(self) -> Mapping[str, Any]:
        """Options sent to the provider with every call."""
        return self._model.options

    @property
    def in_process(self) -> bool:
        """True if the model runs in this process, not on a server."""
        return is_in_process(self.client)

    @property
    def demonstrations(self) -> Retrieval | None:
        """Index and settings of the retrieved demonstrations; None without any."""
        return self._model.retrieval

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Tuple that holds the rate limiter of the model's calls."""
        return (self._runner.gate,)

    @property
    def journal(self) -> Journal | None:
        """Journal of finished predictions, which are not requested again; None without one."""
        return self._runner.journal

    def use_journal(self, journal: Journal | None) -> None:
        """Set the journal that stores predictions, also for copies that share the row engine."""
        self._runner.journal = journal

    def feed(
        self,
        queries: Iterable[Query],
        deliver: OnPrediction,
        *,
        on_prediction: OnPrediction | None = None,
        stop: Stop | None = None,
    ) -> Coroutine[Any, Any, str]:
        """Answer a stream of queries in bounded memory; see `calibrant.core.Predictor.feed`."""
        learned = self._head is not None or self._prior_correction is not None
        feed = Feed(
            self._model,
            self._runner,
            deliver,
            finish=self.finished if learned else None,
            on_prediction=on_prediction,
            stop=stop,
        )
        return feed.run(queries)

    async def answer(self, query: Query) -> Prediction:
        """Return the model's prediction of one query, before the label prior and head are applied.

        The caller checks the budgets and handles failures.

        Raises
        ------
        ProviderError
            A fault that every call would meet, before any call has succeeded.
        """
        (row,) = self._runner.rows(self._model, [query])
        return await self._runner.answer(self._model, row)

    def request(self, query: Query) -> CompletionRequest:
        """Return the request of a query, as sent.

        Raises
        ------
        ConfigurationError
            Its demonstrations cannot be shown.
        """
        ((prepared, problem),) = self._model.prepare([query])
        if problem:
            raise ConfigurationError(problem)
        return self.method.reader.shaped(self._model.request(prepared))

    async def acomplete(self, request: CompletionRequest) -> tuple[Completion, int]:
        """Return the model's answer to a request that is no classification, such as a check of an answer.

        Limits, retries and options are those of the classification; options of the request come before
        the latter.

        Parameters
        ----------
        request : CompletionRequest
            The request.

        Returns
        -------
        completion : Completion
            The answer.
        attempts : int
            Calls made.

        Raises
        ------
        ProviderError
            Every call failed, retries included; ``attempts`` counts the calls made.
        """
        options = {**self.options, **request.options}
        return await self.method.calls.complete(self.client, replace(request, options=options))

    @property
    def prior_correction(self) -> LabelPriorCorrection | None:
        """Label-prior correction of predictions under the predictor's own prompt; None without one."""
        return self._prior_correction

    @prior_correction.setter
    def prior_correction(self, correction: LabelPriorCorrection | None) -> None:
        if correction is not None and self.labels.holds_several:
            raise ConfigurationError(
                "Expected no label-prior correction of answers that hold several labels: it corrects one distribution "
                "over all labels. Leave prior_correction out."
            )
        self._prior_correction = correction

    @property
    def head(self) -> Head | None:
        """Head that computes the final distributions; None without a head."""
        return self._head

    @head.setter
    def head(self, head: Head | None) -> None:
        if head is not None:
            from calibrant.inference._heads import check_head, opened_head  # noqa: PLC0415 (if it has one)

            if head.uses_features:
                self._model = self._model.with_features()
            check_head(head, labels=self.labels, method=self.method)
            head = opened_head(head)
        self._head = head

    def save_learned(self, directory: Path) -> None:
        """Write the label prior and the head to ``label_prior.json`` and ``head.json``, if there are any."""
        for name, learned in (("label_prior", self.prior_correction), ("head", self.head)):
            if learned is not None:
                learned.save(directory / f"{name}.json", fingerprint=self.fingerprint())

    def finished(self, query: Query, prediction: Prediction) -> Prediction:
        """Return a prediction with label prior and head applied, if the query has the predictor's prompt."""
        own = (query.prompt, query.user_template) == (self.prompt, self.user_template)
        if not own or (self.prior_correction is None and self.head is None):
            return prediction
        from calibrant.calibration._prior import correct_prediction  # noqa: PLC0415  (if there is anything to apply)
        from calibrant.inference._heads import apply_head  # noqa: PLC0415

        if self.prior_correction is not None:
            prediction = correct_prediction(prediction, self.prior_correction)
        return prediction if self.head is None else apply_head(self.head, prediction, query.text)
