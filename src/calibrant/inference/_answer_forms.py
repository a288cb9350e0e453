"""Forms of an answer: JSON by a schema, a JSON object, or plain text, as far as a server follows them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple

from calibrant.core._completion import Completion, CompletionRequest, Message
from calibrant.core._errors import (
    ContextLengthError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.core._labels import LabelSet
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._plain_text import as_json_answer, with_json_text

_LOG = logging.getLogger("calibrant")
CUT_OFF: Final = frozenset({"length", "max_tokens"})
"""Finish reasons of answers that the length limit cut off."""

# Statuses of servers that do not understand a field of the request.
_NOT_UNDERSTOOD: Final = frozenset({400, 415, 422, 501})
# Servers have no code for a form of answer that they do not know.
_NAMES_FORMAT: Final = re.compile(r"response_format|json[_ ]schema|structured[_ ]output", re.IGNORECASE)


class AnswerForm(StrEnum):
    """Form in which a model is asked to answer.

    ``schema``
        A JSON schema restricts the answer to the labels.
    ``json``
        The server makes the answer a JSON object; the prompt names the labels.
    ``text``
        The prompt alone names the labels.
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
        written = json.dumps(schema, ensure_ascii=False)
        return f"Answer with one JSON document by this JSON schema, and nothing else: {written}"
    names = {name: json.dumps(name, ensure_ascii=False) for name in properties}
    pairs = []
    for name, node in properties.items():
        value = '"..."' if "enum" in node else "..."
        pairs.append(f"{names[name]}: {value}")
    lines = [f"Answer with one JSON object in this form, and nothing else: {{{', '.join(pairs)}}}"]
    for name, node in properties.items():
        if "enum" in node:
            values = json.dumps(node["enum"], ensure_ascii=False)[1:-1]
            lines.append(f"The value of {names[name]} is exactly one of these: {values}.")
    return "\n".join(lines)


def _is_flat(node: object) -> bool:
    if not isinstance(node, Mapping):
        return False
    return "enum" in node or node.get("type") in {"integer", "number"}


def _text_words(schema: Mapping[str, Any], labels: Sequence[str]) -> str:
    """Return the sentence that asks for a label, or for a label and a percentage, in plain text."""
    quoted = any("\n" in label for label in labels)
    names = [json.dumps(label, ensure_ascii=False) for label in labels] if quoted else labels
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
    labels = LabelSet(values) if is_alone and len(values) > 1 else None
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
