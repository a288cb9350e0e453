"""How one request becomes a prediction: decode an answer, score every label, or sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, TypeAlias

from calibrant.clients._rates import rate_state
from calibrant.core._completion import Client, CompletionRequest, ContinuingClient
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._prediction import Outcome, Prediction
from calibrant.inference._calls import Calls
from calibrant.inference._reader import AnswerReader
from calibrant.logprobs._completion import read_completion

Tolerance: TypeAlias = float | Literal["exact"]
DEFAULT_TOLERANCE: Final = 0.2


def check_tolerance(tolerance: Tolerance) -> None:
    """Refuse what is no tolerance.

    Raises
    ------
    ConfigurationError
        It is neither ``"exact"`` nor a number in [0, 1].
    """
    if tolerance == "exact":
        return
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0.0 <= tolerance <= 1.0:
        raise ConfigurationError(f'Expected a tolerance in [0, 1] or "exact", got {tolerance!r}.')


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


@dataclass(kw_only=True)
class FeatureMethod(Method):
    """Base of methods whose predictions can hold what the model made of the text.

    Attributes
    ----------
    client : ContinuingClient
        Where the calls go.
    keep_features : bool
        Whether predictions hold it, where the engine tells it.
    """

    client: ContinuingClient
    keep_features: bool = False


def keeps_features(method: Method) -> bool:
    """Return whether predictions of a method hold what the model made of the text."""
    return isinstance(method, FeatureMethod) and method.keep_features


def might_keep_features(method: Method) -> bool:
    """Return whether predictions of a method could hold what the model made of the text, and do not."""
    return (
        isinstance(method, FeatureMethod)
        and not method.keep_features
        and bool(getattr(method.client, "in_process", False))
    )


def keeping_features(method: Method) -> Method:
    """Return a method whose predictions hold what the model made of the text, where its engine tells it."""
    if isinstance(method, FeatureMethod) and might_keep_features(method):
        return replace(method, keep_features=True)
    return method


@dataclass
class _Evidence:
    """Whether models' answers come with log-probabilities.

    Attributes
    ----------
    known : dict of str or None to bool
        By the model that really answered, which may be one of several; there once it gave an answer with them, or
        two to one row without.
    seen : bool
        Whether any answer came with some, be they unusable.
    """

    known: dict[str | None, bool] = field(default_factory=dict)
    seen: bool = False

    def missed(self, prediction: Prediction, response: object, *, again: bool) -> bool:
        """Take note of an answer; returns whether it lacks what another call may bring."""
        if prediction.confidence is not None:
            self.known[prediction.model] = self.seen = True
            return False
        if not self.seen:
            completion = read_completion(response)
            self.seen = completion.tokens is not None or bool(completion.evidence_problem)
        if again:
            self.known.setdefault(prediction.model, False)
        return self.known.get(prediction.model, True)


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Lets the model write its answer, and reads the token log-probabilities it comes with.

    Attributes
    ----------
    client : Client
        Where the calls go.
    reader : AnswerReader
        How responses are read.
    calls : Calls
        How calls are made.
    """

    client: Client
    reader: AnswerReader
    calls: Calls = field(default_factory=Calls)
    _evidence: _Evidence = field(default_factory=_Evidence, init=False, repr=False, compare=False)

    @property
    def space(self) -> LogprobSpace:
        """The reader's."""
        return self.reader.space

    @property
    def silent_models(self) -> int:
        """Number of models that answered a row twice without log-probabilities; 0 once any answer had some."""
        return 0 if self._evidence.seen else len(self._evidence.known)

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return what the model answered; a broken response is retried like a failed call.

        So is one without log-probabilities, where others came with them. Of those that never have any,
        each row is asked once.
        """
        silent: list[Prediction] = []

        async def ask() -> Prediction:
            response = await self.client.complete(request)
            self.calls.gate.heard(rate_state(response))
            prediction = self.reader.read(response)
            if prediction.outcome is Outcome.ERROR:
                raise ProviderError(prediction.reason, provider=self.client.name, retryable=True)
            if self._wants_evidence(request, response, prediction) and self._evidence.missed(
                prediction, response, again=any(earlier.model == prediction.model for earlier in silent)
            ):
                silent.append(prediction)
                raise ProviderError(
                    "the answer has no log-probabilities.", provider=self.client.name, retryable=True
                )
            return prediction

        try:
            prediction, attempts = await self.calls.make(ask, provider=self.client.name)
        except ProviderError as error:
            if not silent:
                raise
            prediction, attempts = silent[-1], error.attempts
        return prediction if attempts == prediction.attempts else prediction.with_effort(attempts=attempts)

    def _wants_evidence(self, request: CompletionRequest, response: object, prediction: Prediction) -> bool:
        asked = request.top_logprobs > 0 and self.reader.space_of(response) is not LogprobSpace.NONE
        return asked and prediction.outcome is Outcome.OK

    def describe(self) -> Mapping[str, Any]:
        """Return how answers are read."""
        kept = {"tokens": True} if self.reader.keep_tokens else {}
        return {**kept, "scoring": "decode", **self.reader.describe()}
