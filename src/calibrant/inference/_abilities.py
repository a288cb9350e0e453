"""Abilities of a model: in what form it answers, and whether it gives log-probabilities."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from calibrant.core._completion import Client, Completion, CompletionRequest, Message
from calibrant.core._errors import LogprobsUnsupportedError, ProviderError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Prediction, Usage
from calibrant.inference._answer_forms import AnswerForm, is_begun_json, readable, refuses_form, shaped
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._fields import UnparsedError, field_value
from calibrant.logprobs._schema import enum_schema

_SECONDS_BETWEEN_LOOKS: Final = 0.01
_TOP_LOGPROBS: Final = 5
# The first letters differ, so that one token tells the labels apart, and nobody would dispute the answer.
_LABELS: Final = LabelSet(("cat", "dog"))
_FIELD: Final = "label"
_SCHEMA: Final = enum_schema(_LABELS, _FIELD)
PROBE: Final[tuple[Message, ...]] = (
    {"role": "system", "content": "Which animal does the text tell of, a cat or a dog?"},
    {"role": "user", "content": "He barked at the postman, and then he chewed my left shoe."},
)
"""Messages of the question that shows how a model can be asked."""

Complete = Callable[[CompletionRequest], Awaitable[tuple[object, int]]]


@dataclass(frozen=True, kw_only=True)
class ModelAbilities:
    """Abilities of a model that decide how it is asked.

    Attributes
    ----------
    form : AnswerForm
        Form in which it answers.
    gives_logprobs : bool
        False if its answers come without token log-probabilities.

    Examples
    --------
    >>> from calibrant.inference import Classifier, ModelAbilities
    >>> hides = ModelAbilities(gives_logprobs=False)
    >>> Classifier(model="openai/o", labels=["cat", "dog"], options={"api_key": "k"}, abilities=hides).scoring
    'fused'
    """

    form: AnswerForm = AnswerForm.SCHEMA
    gives_logprobs: bool = True

    @classmethod
    def of(cls, method: Mapping[str, Any]) -> Self:
        """Return the abilities that the description of a method says, as a run's manifest has it."""
        form = AnswerForm(method.get("answer_form", AnswerForm.SCHEMA))
        return cls(form=form, gives_logprobs=method.get("scoring") != "fused")


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Finding of a probe.

    Attributes
    ----------
    abilities : ModelAbilities
        How the model is asked from now on.
    is_certain : bool
        False if the probe decided nothing: its answer was refused, cut off, or could not be read in any form.
    usage : Usage
        Tokens and cost of its calls.
    """

    abilities: ModelAbilities
    is_certain: bool
    usage: Usage


@dataclass(eq=False)
class KnownAbilities:
    """Holder of the known abilities of one server and model, or of one client, which its classifiers share.

    Attributes
    ----------
    known : ModelAbilities or None
        None until it is found out.
    load : callable or None
        Returns what another process has found; None of a model that a question of ours says nothing about, such as a
        function, which is told by its first real answer.
    remember : callable or None
        Keeps what was found for other processes; None removes it.
    first : tuple or None
        The request that told, and its answer, which is that row's.
    """

    known: ModelAbilities | None = None
    load: Callable[[], ModelAbilities | None] | None = None
    remember: Callable[[ModelAbilities | None], None] | None = None
    first: tuple[CompletionRequest, Prediction] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def used(self) -> ModelAbilities:
        """Abilities by which the model is asked: schema and log-probabilities as long as nothing else is known."""
        return self.known or ModelAbilities()

    @property
    def is_to_probe(self) -> bool:
        """True if a probe is to be made before the model is asked."""
        return self.known is None and self.load is not None

    def forget(self) -> None:
        """Remove the finding kept for other processes, as it holds no longer: the next one finds out anew."""
        if self.remember is not None:
            self.remember(None)

    def take_first(self, request: CompletionRequest) -> Prediction | None:
        """Return the answer to the request that told, once."""
        if self.first is None or self.first[0] != request:
            return None
        prediction = self.first[1]
        self.first = None
        return prediction

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[bool]:
        """Enter a block of which one runs at a time, in any thread; True if nothing is known yet."""
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110 (the other may be in another loop)
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        try:
            yield self.known is None
        finally:
            self._lock.release()

    async def probe(
        self, complete: Complete, first: CompletionRequest, *, needs_logprobs: bool = False
    ) -> Usage:
        """Find out with a question of ours, unless it is known; return what that took.

        After a probe that decides nothing these classifiers ask by a schema and for log-probabilities, and nothing is
        kept: the next one opened tries again.

        Parameters
        ----------
        complete : callable
            Makes a call, and returns the response and the number of calls made.
        first : CompletionRequest
            Request of the first row, whose settings the question has.
        needs_logprobs : bool, default False
            True if there is no use for a model that refuses to be asked for log-probabilities.

        Raises
        ------
        ProviderError
            A fault that every call would meet.
        """
        if not self.is_to_probe or self.load is None:
            return Usage()
        async with self.asking() as is_unknown:
            if is_unknown:
                self.known = self.load()
            if self.known is not None:
                return Usage()
            question = replace(
                first,
                messages=PROBE,
                response_format=_SCHEMA,
                top_logprobs=first.top_logprobs or _TOP_LOGPROBS,
                without_text=None,
            )
            result = await _probed(complete, question, needs_logprobs=needs_logprobs)
            self.known = result.abilities
            if not result.is_certain:
                self.forget()
            elif self.remember is not None:
                self.remember(result.abilities)
            return result.usage


async def _probed(complete: Complete, request: CompletionRequest, *, needs_logprobs: bool) -> ProbeResult:
    """Ask in one form after the other, until an answer can be read.

    Raises
    ------
    ProviderError
        A fault that every call would meet.
    """
    usage = Usage()
    answered: AnswerForm | None = None
    for form in AnswerForm:
        asked = shaped(request, form, _LABELS)
        try:
            response, asked_for_logprobs = await _answer(complete, asked, needs_logprobs=needs_logprobs)
        except ProviderError as error:
            if refuses_form(error):
                continue
            if error.systemic:
                raise
            break
        completion = read_completion(response)
        usage += completion.usage
        answered = answered or form
        read = _readable(completion, form)
        if read is not None:
            gives_logprobs = read.tokens is not None or bool(read.evidence_problem)
            found = ModelAbilities(form=form, gives_logprobs=gives_logprobs and asked_for_logprobs)
            return ProbeResult(abilities=found, is_certain=True, usage=usage)
        if completion.refusal or not completion.text.strip() or is_begun_json(response):
            break
    # If no answer can be read, the first form that was not refused, or else the schema.
    undecided = ModelAbilities(form=answered or AnswerForm.SCHEMA)
    return ProbeResult(abilities=undecided, is_certain=False, usage=usage)


async def _answer(
    complete: Complete, request: CompletionRequest, *, needs_logprobs: bool
) -> tuple[object, bool]:
    """Return the answer to a request, and True if it was asked for with log-probabilities."""
    try:
        response, _ = await complete(request)
    except LogprobsUnsupportedError:
        if needs_logprobs:
            raise
        response, _ = await complete(replace(request, top_logprobs=0))
        return response, False
    return response, True


def _readable(completion: Completion, form: AnswerForm) -> Completion | None:
    """Return an answer to the probe as the JSON answer that it stands for; None if it names no label."""
    try:
        answer = readable(completion, form, _LABELS, _FIELD)
        value = field_value(answer.text, _FIELD)
    except UnparsedError:
        return None
    is_label = isinstance(value, str) and _LABELS.canonical(value) is not None
    return answer if is_label else None


# Of models that have no name, or one that means something in this process alone.
_by_client: WeakKeyDictionary[Client, KnownAbilities] = WeakKeyDictionary()


def abilities_of_client(client: Client) -> KnownAbilities:
    """Return the abilities known in this process of a client that a question of ours says nothing about."""
    try:
        return _by_client.setdefault(client, KnownAbilities())
    except TypeError:  # it has no hash, or no weak reference
        return KnownAbilities()
