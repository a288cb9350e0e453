"""Abilities of a model: the form in which it answers, and whether it gives log-probabilities."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple, Self
from weakref import WeakKeyDictionary

from calibrant.core._completion import Client, Completion, CompletionRequest, Message
from calibrant.core._errors import (
    ContextLengthError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.core._files import json_text
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Prediction, Usage
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._fields import UnparsedError, enum_schema, field_value

_LOG = logging.getLogger("calibrant")
CUT_OFF: Final = frozenset({"length", "max_tokens"})
"""Finish reasons of answers that the length limit cut off."""

# Statuses of servers that do not understand a field of the request.
_NOT_UNDERSTOOD: Final = frozenset({400, 415, 422, 501})
# Servers have no code for a form of answer that they do not know.
_NAMES_FORMAT: Final = re.compile(r"response_format|json[_ ]schema|structured[_ ]output", re.IGNORECASE)
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


class AnswerForm(StrEnum):
    """Form in which a model is asked to answer.

    ``schema``
        A JSON schema restricts the answer to the labels.
    ``json``
        The server makes the answer a JSON object; the prompt names the labels.
    ``text``
        The prompt alone names the labels.

    Examples
    --------
    >>> from calibrant.inference import AnswerForm
    >>> [str(form) for form in AnswerForm]
    ['schema', 'json', 'text']
    """

    SCHEMA = "schema"
    JSON = "json"
    TEXT = "text"


def refuses_form(error: ProviderError) -> bool:
    """Return True if a failed call may succeed in another form of answer."""
    other = ContextLengthError | LogprobsUnsupportedError | ProviderTimeoutError | RateLimitError
    if isinstance(error, other):
        return False
    if _NAMES_FORMAT.search(str(error)):
        return (error.status or 0) < 500 or error.status == 501
    return error.status in _NOT_UNDERSTOOD and not error.systemic


@cache
def tell_form(model: str, form: AnswerForm) -> None:
    """Log one line that says in what form a model is asked, if it is no schema."""
    words = {
        AnswerForm.JSON: "is asked for a JSON object",
        AnswerForm.TEXT: "is asked for plain text",
    }
    if form in words:
        _LOG.warning(
            "%s does not follow a JSON schema: it %s, with the labels named in the prompt.",
            model,
            words[form],
        )


def shaped(request: CompletionRequest, form: AnswerForm, labels: LabelSet | None) -> CompletionRequest:
    """Return a request that asks for an answer in a form, of which the labels are one; None asks for JSON.

    Requests whose format is no JSON schema stay as they are.
    """
    response_format = request.response_format or {}
    if form is AnswerForm.SCHEMA or response_format.get("type") != "json_schema":
        return request
    schema = response_format.get("json_schema", {}).get("schema", {})
    if form is AnswerForm.JSON or labels is None or labels.holds_several:
        words = _json_words(schema)
    else:
        words = _text_words(schema, labels.labels)
    without_text = request.without_text
    return replace(
        request,
        messages=extended(request.messages, words),
        response_format={"type": "json_object"} if form is AnswerForm.JSON else None,
        without_text=None if without_text is None else extended(without_text, words),
    )


def extended(messages: Sequence[Message], words: str) -> tuple[Message, ...]:
    """Return the messages with a sentence at the end of the first one, the system message."""
    system, *others = messages
    content = f"{system['content']}\n\n{words}" if system["content"].strip() else words
    return ({**system, "content": content}, *others)


def _json_words(schema: Mapping[str, Any]) -> str:
    """Return the sentences that ask for JSON: the form and the values of a flat object, else the schema."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not all(map(_is_flat, properties.values())):
        written = json_text(schema)
        return f"Answer with one JSON document by this JSON schema, and nothing else: {written}"
    names = {name: json_text(name) for name in properties}
    pairs = []
    for name, node in properties.items():
        value = '"..."' if "enum" in node else "..."
        pairs.append(f"{names[name]}: {value}")
    lines = [f"Answer with one JSON object in this form, and nothing else: {{{', '.join(pairs)}}}"]
    for name, node in properties.items():
        if "enum" in node:
            values = json_text(node["enum"])[1:-1]
            lines.append(f"The value of {names[name]} is exactly one of these: {values}.")
    return "\n".join(lines)


def _is_flat(node: object) -> bool:
    if not isinstance(node, Mapping):
        return False
    return "enum" in node or node.get("type") in {"integer", "number"}


def _text_words(schema: Mapping[str, Any], labels: Sequence[str]) -> str:
    """Return the sentence that asks for a label, or for a label and a percentage, in plain text."""
    quoted = any("\n" in label for label in labels)
    names = labels
    if quoted:
        names = [json_text(label) for label in labels]
    properties = schema.get("properties") or {}
    with_percentage = any(
        isinstance(node, Mapping) and node.get("type") == "integer" for node in properties.values()
    )
    form = "one of these labels"
    if with_percentage:
        form += " and then the percentage, in one line"
    return f"Answer with exactly {form}, and nothing else:\n" + "\n".join(names)


class AskedLabels(NamedTuple):
    """Labels and field that a request's schema asks for.

    Attributes
    ----------
    field : str
        JSON path of the label, or of the first one.
    labels : LabelSet or None
        The labels; None where the answer holds several, or no list of labels.
    """

    field: str
    labels: LabelSet | None


def asked_labels(request: CompletionRequest) -> AskedLabels | None:
    """Return the first field that a request's JSON schema asks for; None without a schema or a field."""
    response_format = request.response_format or {}
    if response_format.get("type") != "json_schema":
        return None
    node = response_format.get("json_schema", {}).get("schema", {})
    names: list[str] = []
    is_alone = True
    while isinstance(node, Mapping) and node.get("properties"):
        properties = node["properties"]
        is_alone = is_alone and len(properties) == 1
        name, node = next(iter(properties.items()))
        names.append(name)
    if not names:
        return None
    values = node.get("enum", ()) if isinstance(node, Mapping) else ()
    labels = None
    if is_alone and len(values) > 1:
        labels = LabelSet(values)
    return AskedLabels(field=".".join(names), labels=labels)


def readable(
    completion: Completion, form: AnswerForm, labels: LabelSet | None, field_path: str
) -> Completion:
    """Return an answer as the JSON answer it stands for.

    Raises
    ------
    UnparsedError
        It is plain text that names no label, or several.
    """
    if form is AnswerForm.SCHEMA:
        return completion
    from calibrant.logprobs._plain_text import as_json_answer, with_json_text  # noqa: PLC0415 (most keep to schemas)

    if labels is None:
        return with_json_text(completion, field_path)
    if form is AnswerForm.JSON or labels.holds_several:
        return with_json_text(completion, labels.lead_path(field_path))
    return as_json_answer(completion, labels, field_path)


def is_begun_json(response: object) -> bool:
    """Return True for an answer that the length limit cut off where it was empty or JSON so far."""
    completion = read_completion(response)
    is_cut_off = completion.finish_reason in CUT_OFF
    return is_cut_off and completion.text.strip()[:1] in {"", "{", "["}


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
            if self.remember is not None:
                self.remember(result.abilities if result.is_certain else None)
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
