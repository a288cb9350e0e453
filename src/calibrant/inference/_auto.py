"""Automatic choice for models by name: decoding, or stated confidence where log-probabilities are hidden."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from calibrant.core._completion import Client, CompletionRequest
from calibrant.core._errors import LogprobsUnsupportedError, ProviderError
from calibrant.core._prediction import LogprobSpace, Outcome, Prediction
from calibrant.inference._abilities import ModelAbilities
from calibrant.inference._answer_forms import AnswerForm
from calibrant.inference._methods import Decoding
from calibrant.inference._reader import AnswerReader
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._plain_text import tells_apart

if TYPE_CHECKING:
    from calibrant.inference._fused import Fused

_LOG = logging.getLogger("calibrant")
_HIDES: Final = ModelAbilities(gives_logprobs=False)


@dataclass(kw_only=True)
class AutoDecoding(Decoding):
    """Method that decodes, or asks for stated confidence if the model hides its log-probabilities.

    Until it is known which of them (`find_abilities`), it is described as decoding.

    Attributes
    ----------
    is_chosen : bool
        True if ``auto`` was asked for, False where it is the default.
    options : mapping
        Handed to the provider with every call.
    samples, temperature
        Of `Fused`.
    """

    needs_logprobs: ClassVar[bool] = False
    is_chosen: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    temperature: float | None = None

    @classmethod
    def of(cls, client: Client, reader: AnswerReader, **settings: Any) -> Self:  # noqa: ANN401
        """Return the method for a model with what is known of it.

        Raises
        ------
        ConfigurationError
            A setting of `Fused` is out of range.
        """
        found = cls(client=client, reader=reader, **settings)
        if found.samples is not None or found.temperature is not None:
            found._fused()
        if found.is_fused:
            _tell_fused(client.name, found.calls_a_row)
        return found

    @property
    def unless_told(self) -> Decoding:
        """Itself if ``auto`` was asked for; else a method that decodes, whatever is known."""
        if self.is_chosen:
            return self
        return Decoding(
            client=self.client, reader=self.reader, calls=self.calls, keep_features=self.keep_features
        )

    @property
    def is_fused(self) -> bool:
        """True if the model is known to hide its log-probabilities and no tokens are wanted.

        Those of plain text show nothing where one label begins with another one.
        """
        if self.reader.keep_tokens:
            return False
        labels = self.reader.labels
        is_text = self.reader.form is AnswerForm.TEXT and not labels.holds_several
        is_hidden = is_text and not tells_apart(labels.labels)
        return is_hidden or not self.reader.abilities.used.gives_logprobs

    @property
    def knows_abilities(self) -> bool:
        """True if it is known how the model is asked, or no answer can change that."""
        abilities = self.reader.abilities
        return abilities.known is not None or (self.reader.keep_tokens and not abilities.is_to_probe)

    @property
    def space(self) -> LogprobSpace:
        """Log-probability space of the distributions."""
        return self._fused().space if self.is_fused else super().space

    @property
    def calls_a_row(self) -> int:
        """Number of calls about each row, retries aside."""
        return self._fused().calls_a_row if self.is_fused else 1

    def _fused(self) -> Fused:
        from calibrant.inference._fused import Fused  # noqa: PLC0415 (only for models without log-probabilities)

        return Fused.of(
            self.client,
            self.reader,
            calls=self.calls,
            options=self.options,
            samples=self.samples,
            temperature=self.temperature,
        )

    async def find_abilities(self, request: CompletionRequest, stored: Prediction | None = None) -> None:
        """Find out how the model is asked, unless that is known.

        A server is asked a question of ours. Any other model is told by its answer to the first row, which may be a
        stored one: without a confidence it is one more call of that row. An answer that is no label says nothing, and
        counts until the process ends as if there were log-probabilities.

        Parameters
        ----------
        request : CompletionRequest
            Request of the first row.
        stored : Prediction, optional
            Answer to it from a journal.

        Raises
        ------
        ProviderError
            A fault that every call would meet.
        """
        await super().find_abilities(request, stored)
        abilities = self.reader.abilities
        async with abilities.asking() as is_unknown:
            says_nothing = stored is None or (stored.outcome is Outcome.OK and stored.confidence is None)
            if is_unknown and says_nothing:
                abilities.known = await self._told_by(request)
            elif is_unknown:
                abilities.known = ModelAbilities()
        if self.is_fused:
            _tell_fused(self.client.name, self.calls_a_row)

    async def _told_by(self, request: CompletionRequest) -> ModelAbilities:
        """Ask about a row, and keep the answer for it."""
        abilities = self.reader.abilities
        try:
            response, attempts = await self.calls.respond(self.client, request)
        except LogprobsUnsupportedError as error:
            failed = Prediction(label=None, outcome=Outcome.ERROR, attempts=error.attempts)
            abilities.first = request, failed
            return _HIDES
        except ProviderError as error:
            if error.systemic:
                raise
            return ModelAbilities()
        prediction = self.reader.read(response)
        if prediction.outcome is Outcome.ERROR:  # the row is asked about again
            return ModelAbilities()
        abilities.first = request, replace(prediction, attempts=attempts)
        completion = read_completion(response)
        has_any = completion.tokens is not None or bool(completion.evidence_problem)
        is_silent = prediction.outcome is Outcome.OK and prediction.confidence is None and not has_any
        return _HIDES if is_silent else ModelAbilities()

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the prediction from a decoded answer, or from answers that state their confidence."""
        first = self.reader.abilities.take_first(request)
        if self.is_fused:
            found = await self._fused().predict(request)
            if first is None:
                return found
            usage = first.usage + found.usage  # the call in vain counts for its row
            return replace(found, usage=usage, attempts=first.attempts + found.attempts)
        return first or await super().predict(request)

    def describe(self) -> Mapping[str, Any]:
        """Return the settings of the method in use, for cache keys."""
        return self._fused().describe() if self.is_fused else super().describe()


@cache
def _tell_fused(model: str, calls: int) -> None:
    """Log one line that says what a row costs on a model without log-probabilities."""
    _LOG.warning("%s gives no log-probabilities: %d calls a row, fused.", model, calls)
