"""Automatic choice for models by name: decoding, or stated confidence where log-probabilities are hidden."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakKeyDictionary

from calibrant.core._completion import STAND_INS, Client, CompletionRequest
from calibrant.core._errors import CalibrantError, LogprobsUnsupportedError, ProviderError
from calibrant.core._prediction import LogprobSpace, Outcome, Prediction
from calibrant.inference._answer_forms import FirstResponse
from calibrant.inference._methods import Decoding
from calibrant.inference._reader import AnswerReader
from calibrant.inference.doctor._records import identity, known_logprobs, remember_logprobs
from calibrant.logprobs._completion import read_completion

if TYPE_CHECKING:
    from calibrant.inference._fused import Fused

_LOG = logging.getLogger("calibrant")
_SECONDS_BETWEEN_LOOKS: Final = 0.01


@dataclass(eq=False)
class LogprobProbe:
    """Finding whether a model gives log-probabilities, shared by all copies of a classifier.

    Attributes
    ----------
    gives : bool or None
        None until a first answer has shown it.
    remember : callable or None
        Keeps a new answer for other processes; None forgets it.
    """

    gives: bool | None = None
    remember: Callable[[bool | None], None] | None = None
    # The request that was asked first, and what came, for its row.
    first: tuple[CompletionRequest, Prediction | ProviderError] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def found(self, gives: bool | None) -> None:
        """Store a finding about the model, not one about a single answer."""
        self.gives = gives
        if self.remember is not None:
            self.remember(gives)

    def first_answer(self, request: CompletionRequest) -> Prediction | None:
        """Return the answer to the first request, once; raise the failure that came instead."""
        if self.first is None or self.first[0] != request:
            return None
        (_, came), self.first = self.first, None
        if isinstance(came, ProviderError):
            raise came
        return came

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[bool]:
        """Enter a block of which one runs at a time, in any thread; True if the answer is not known yet."""
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110 (the other may be in another loop)
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        try:
            yield self.gives is None
        finally:
            self._lock.release()


@dataclass(kw_only=True)
class AutoDecoding(Decoding):
    """Method that decodes, or asks for stated confidence if the model hides its log-probabilities.

    Until the first answer has shown which of them (`settle`), it is described as decoding.

    Attributes
    ----------
    probe : LogprobProbe
        What is known of the model, shared with all copies.
    options : mapping
        Handed to the provider with every call.
    is_chosen : bool
        True if ``auto`` was asked for, False where it is the default.
    samples, temperature
        Of `Fused`.
    """

    probe: LogprobProbe
    is_chosen: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    temperature: float | None = None

    @classmethod
    def of(cls, model: object, client: Client, reader: AnswerReader, **settings: Any) -> Self:  # noqa: ANN401
        """Return the method for a model as it was given, with what is known of it.

        Raises
        ------
        ConfigurationError
            A setting of `Fused` is out of range.
        """
        probe = probe_of(model, client, settings["options"])
        found = cls(client=client, reader=reader, probe=probe, **settings)
        if found.samples is not None or found.temperature is not None:
            found._fused()
        if found.is_fused:
            _tell_fused(client.name, found.calls_a_row)
        return found

    @property
    def unasked(self) -> Decoding:
        """Itself if ``auto`` was asked for and the answer is known; else a method that decodes, whatever is known."""
        if self.is_chosen and self.is_settled:
            return self
        decoding = Decoding(
            client=self.client, reader=self.reader, calls=self.calls, keep_features=self.keep_features
        )
        return decoding.unasked

    @property
    def is_fused(self) -> bool:
        """True if the model is known to hide its log-probabilities and no tokens are wanted."""
        return self.probe.gives is False and not self.reader.keep_tokens

    @property
    def is_settled(self) -> bool:
        """True if it is known how the model is asked."""
        is_known = self.probe.gives is not None or self.reader.keep_tokens
        return is_known and super().is_settled

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

    async def settle(self, request: CompletionRequest, stored: Prediction | None = None) -> None:
        """Find out in what form the model answers, and whether it gives log-probabilities, unless that is known.

        Both take one call where the model follows a schema. An answer that says neither, such as a refusal, counts as
        if it gave log-probabilities, until the program ends.

        Parameters
        ----------
        request : CompletionRequest
            Request of a row. Where the model gives log-probabilities, or the call fails, that was the row's call;
            else it counts as one more call of the row.
        stored : Prediction, optional
            Answer to it from a journal, which makes the call needless unless it is a label without a confidence.

        Raises
        ------
        ProviderError
            A fault that every call would meet.
        """
        was_unknown = self.probe.gives is None
        await super().settle(request, stored)
        if was_unknown and self.is_fused:
            self._count_first(request)
        async with self.probe.asking() as unknown:
            if not unknown or self.is_settled:
                pass
            elif stored is not None and (stored.confidence is not None or stored.outcome is not Outcome.OK):
                self.probe.gives = True
            else:
                await self._ask_first(request)
        if self.is_fused:
            _tell_fused(self.client.name, self.calls_a_row)

    def settle_as(self, scoring: str) -> None:
        """Decode or ask for stated confidence from now on, whatever is known of the model; others are ignored."""
        if scoring in {"decode", "fused"}:
            self.probe.gives = scoring == "decode"

    def first_request(self, request: CompletionRequest) -> CompletionRequest:
        """Return the first request about a row, as far as it is known how the model is asked."""
        return self._fused().first_request(request) if self.is_fused else request

    def can_do_without(self, error: ProviderError) -> bool:
        """Return True, and record it, if the error says that the model gives no log-probabilities."""
        is_about_them = isinstance(error, LogprobsUnsupportedError)
        if not is_about_them or self.reader.keep_tokens or self.probe.gives is False:
            return False
        self.probe.found(gives=False)
        return True

    def _count_first(self, request: CompletionRequest) -> None:
        """Count for their row the calls that showed that log-probabilities are refused."""
        first, self.reader.form.first = self.reader.form.first, None
        if first is not None:
            usage = first.usage
            if not isinstance(first.response, ProviderError):
                usage += read_completion(first.response).usage
            vain = Prediction(label=None, outcome=Outcome.ERROR, usage=usage, attempts=first.attempts)
            self.probe.first = request, vain

    async def _first_response(self, request: CompletionRequest) -> FirstResponse:
        """Return the response to the row's request, which may have come while the form was found out."""
        asked = self.reader.shaped(request)
        first = self.reader.form.take_first(asked)
        if first is not None:
            return first
        response, attempts = await self.calls.make(partial(self._once, asked), provider=self.client.name)
        return FirstResponse(request=asked, response=response, attempts=attempts)

    async def _ask_first(self, request: CompletionRequest) -> None:
        probe = self.probe
        try:
            first = await self._first_response(request)
        except LogprobsUnsupportedError as error:
            probe.found(gives=False)
            probe.first = request, Prediction(label=None, outcome=Outcome.ERROR, attempts=error.attempts)
        except ProviderError as error:
            if error.systemic:
                raise
            probe.gives, probe.first = True, (request, error)
        except (SystemExit, KeyboardInterrupt) as error:  # either would end the event loop
            raise CalibrantError(f"{self.client.name}: the model raised {error!r}.") from error
        else:
            prediction = self.reader.read(first.response)
            self._lacks_logprobs(prediction, first.response, again=False)
            # Tokens of plain text that show no other labels are as good as none.
            has_any = self._any_logprobs and not self.reader.is_unaligned(first.response, prediction)
            if has_any or prediction.outcome is Outcome.OK:
                probe.found(gives=has_any)
            else:
                probe.gives = True
            usage = prediction.usage + first.usage
            probe.first = request, replace(prediction, usage=usage, attempts=first.attempts)

    async def predict(self, request: CompletionRequest) -> Prediction:
        """Return the prediction from a decoded answer, or from answers that state their confidence."""
        first = self.probe.first_answer(request)
        if self.is_fused:
            found = await self._fused().predict(request)
            if first is None:
                return found
            usage = first.usage + found.usage  # the call in vain counts for its row
            return replace(found, usage=usage, attempts=first.attempts + found.attempts)
        try:
            return first or await super().predict(request)
        except LogprobsUnsupportedError:
            # What was known of the model holds no longer: the next run finds out anew.
            if not self.reader.keep_tokens and self.probe.remember is not None:
                self.probe.remember(None)
            raise

    def describe(self) -> Mapping[str, Any]:
        """Return the settings of the method in use, for cache keys."""
        return self._fused().describe() if self.is_fused else super().describe()


@cache
def _tell_fused(model: str, calls: int) -> None:
    """Log one line that says what a row costs on a model without log-probabilities."""
    _LOG.warning("%s gives no log-probabilities: %d calls a row, fused.", model, calls)


# Of models that have no name, or one that means something in this process alone.
_probes: WeakKeyDictionary[Client, LogprobProbe] = WeakKeyDictionary()


def probe_of(model: object, client: Client, options: Mapping[str, Any] | None) -> LogprobProbe:
    """Return the probe of a model: what is known on disk by its name, or in this process by its client."""
    if isinstance(model, str) and model not in STAND_INS:
        known = identity(model, options)
        return LogprobProbe(gives=known_logprobs(model, options), remember=partial(remember_logprobs, known))
    try:
        return _probes.setdefault(client, LogprobProbe())
    except TypeError:  # it has no hash, or no weak reference
        return LogprobProbe()
