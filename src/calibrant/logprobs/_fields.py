"""JSON answers: their fields, values and the tokens that spell them; schemas and response formats that ask for them."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Final, Literal

from calibrant.core._completion import Completion
from calibrant.core._errors import CalibrantError, ConfigurationError, LogprobsUnavailableError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import JsonObject, Token
from calibrant.core._schema import (
    FieldPath,
    SchemaNode,
    array_path,
    element_path,
    parse_path,
    plain_schema,
    schema_target,
    with_inner_schemas,
)
from calibrant.logprobs._completion import IMPOSSIBLE, TOLERANCE

_FENCE = re.compile(r"```[\w-]*\s*(.*?)\s*(?:```)?", re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
_DOCUMENT = re.compile(rb"[{\[]")
_DECODER: Final = json.JSONDecoder(strict=False)
# Longer answers are not cached.
_SHORT: Final = 512
# Documents in a token stream that are compared with the answer.
_MAX_ATTEMPTS: Final = 64


class UnparsedError(CalibrantError):
    """Error for an answer without a readable value: a fault of the model, not of the server.

    Parameters
    ----------
    message : str
        The expected form of the answer, and the actual one.
    kind : {"not_json", "missing", "ambiguous"}
        ``not_json``: the text is no JSON document. ``missing``: it is one, without the field. ``ambiguous``: an object
        in it has a key twice.
    """

    def __init__(self, message: str, *, kind: Literal["not_json", "missing", "ambiguous"]) -> None:
        self.kind = kind
        super().__init__(message)


def json_body(text: str) -> str:
    """Return `text` without surrounding space and Markdown code fence."""
    body = text.strip().removeprefix("\ufeff")
    match = None
    if body.startswith("```"):
        match = _FENCE.fullmatch(body)
    return body if match is None else match[1]


def field_value(answer: str, field_path: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the parsed value of a field of a JSON answer.

    Parameters
    ----------
    answer : str
        The answer's text. Surrounding space and a Markdown code fence are tolerated.
    field_path : str
        ``category``, ``result.category``, ``results[].category`` (the first element),
        ``results[1].category`` or ``[].category``.

    Returns
    -------
    object
        The field as `json.loads` returns it.

    Raises
    ------
    UnparsedError
        The text is not JSON (``kind="not_json"``), lacks the field (``kind="missing"``), or has a key twice in one
        object (``kind="ambiguous"``), so that its value is undefined.
    ConfigurationError
        `field_path` is malformed.
    """
    return answer_value(json_body(answer), parse_path(field_path), field_path)


def field_values(answer: str, field_path: str) -> list[Any]:
    """Return the value of the label in each element of an array of a JSON answer.

    Parameters
    ----------
    answer : str
        The answer's text. Surrounding space and a Markdown code fence are tolerated.
    field_path : str
        The array, whose elements are the values (``topics``), or the field in its elements
        (``results[].topic``, where the last ``[]`` stands for all elements).

    Raises
    ------
    UnparsedError
        The text is not JSON (``kind="not_json"``), or lacks the array, or an element of it the field
        (``kind="missing"``), or has a key twice in one object (``kind="ambiguous"``).
    ConfigurationError
        `field_path` is malformed.
    """
    array, inside = array_path(field_path)
    elements = answer_value(json_body(answer), array, field_path)
    if isinstance(elements, list):
        return [_descend(one, inside, element_path(field_path, index)) for index, one in enumerate(elements)]
    raise UnparsedError(
        f"Expected an array in the field {field_path!r}, got {_describe(elements)}.", kind="missing"
    )


def answer_value(body: str, path: FieldPath, name: str) -> Any:  # noqa: ANN401
    """Parse `body` and return the value at `path`; raise the errors of `field_value`."""
    # A label set has few answers: the same text comes again and again, so parsed texts are cached.
    cached = None
    if len(body) <= _SHORT:
        cached = _text_at(body, path)
    if cached is None:
        return _parsed(body, path, name)
    return cached


@lru_cache(maxsize=1024)
def _text_at(body: str, path: FieldPath) -> str | None:
    """Return the text at `path` of an answer, cached; None for any other value."""
    try:
        value = _parsed(body, path, "")
    except UnparsedError:
        return None
    return value if isinstance(value, str) else None


def _parsed(body: str, path: FieldPath, name: str) -> Any:  # noqa: ANN401
    try:
        node = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        shown = body if len(body) <= 80 else body[:77] + "..."
        raise UnparsedError(
            f"Expected a JSON document with the field {name!r}, got {shown!r} ({error}).", kind="not_json"
        ) from error
    return _descend(node, path, name)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    node = dict(pairs)
    if len(node) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnparsedError(
            f"Expected every key of an object once, got {twice[:60]!r} {names.count(twice)} times.",
            kind="ambiguous",
        )
    return node


def _descend(node: Any, path: FieldPath, name: str) -> Any:  # noqa: ANN401
    for part in path:
        if isinstance(part, str):
            is_there = isinstance(node, dict) and part in node
        else:
            is_there = isinstance(node, list) and part < len(node)
        if not is_there:
            missing = repr(part) if isinstance(part, str) else f"element {part}"
            raise UnparsedError(
                f"Expected the field {name!r}; the answer has no {missing} in {_describe(node)}.",
                kind="missing",
            )
        node = node[part]
    return node


def _describe(node: object) -> str:
    if isinstance(node, dict):
        return f"the object with keys {list(node)[:10]}"
    if isinstance(node, list):
        return f"the array of length {len(node)}"
    return f"the value {str(node)[:60]!r}"


def value_span(data: bytes, start: int, path: FieldPath) -> tuple[int, int]:
    """Return the byte offsets of the value at `path`, quotes included.

    Parameters
    ----------
    data : bytes
        Bytes with one valid JSON document from `start` on, without duplicate keys; later bytes are ignored.
    start : int
        Byte offset of the document.
    path : tuple
        Keys and array positions; they must exist.

    Raises
    ------
    LookupError
        The path does not exist, or `data` is not JSON where it was read.
    """
    text = data.decode("latin-1")  # one character a byte, so that offsets stay those of bytes
    begin = _behind(_SPACE, text, start)
    for part in path:
        begin = _member(text, begin, part)
    return begin, _value_end(text, begin)


def _behind(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _value_end(text: str, position: int) -> int:
    """Return the offset behind the JSON value that begins at `position`."""
    try:
        return _DECODER.raw_decode(text, position)[1]
    except (ValueError, RecursionError) as error:
        raise LookupError from error


def _member(text: str, position: int, part: str | int) -> int:
    """Return the offset of the value under a key of an object, or at a position of an array."""
    if text[position : position + 1] != ("{" if isinstance(part, str) else "["):
        raise LookupError
    position = _behind(_SPACE, text, position + 1)
    index = 0
    while text[position : position + 1] not in ("]", "}", ""):
        key: str | int = index
        if isinstance(part, str):
            name_end = _value_end(text, position)
            key = json.loads(text[position:name_end].encode("latin-1"))
            colon = _COLON.match(text, name_end)
            if colon is None:
                raise LookupError
            position = colon.end()
        if key == part:
            return position
        position = _behind(_COMMA, text, _value_end(text, position))
        index = index + 1
    raise LookupError


# --- the tokens of a field, found by bytes -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class AlignedField:
    """Value of a field, with the tokens that spell it.

    Attributes
    ----------
    value : object
        The parsed value.
    tokens : tuple of Token
        All tokens of the answer.
    ends : list of int
        Byte offset behind each token in `stream`.
    stream : bytes
        The tokens' bytes, joined.
    begin, end : int
        Byte offsets of the value's content in `stream`; a string's quotes are left out.
    """

    value: object
    tokens: tuple[Token, ...]
    ends: list[int]
    stream: bytes
    begin: int
    end: int

    def holder(self, offset: int) -> int:
        """Return the index of the token that holds the byte at `offset`."""
        return bisect_right(self.ends, offset)

    def start(self, index: int) -> int:
        """Return the byte offset of the token at `index`."""
        return self.ends[index - 1] if index else 0

    def content(self) -> tuple[Token, ...]:
        """Return the tokens of the field's content, in order; the closing quote if the field is empty.

        Tokens without bytes between them count: some servers report a cut character as an empty
        token first. An empty string has no content; its closing quote stands in.
        """
        first = self.holder(self.begin)
        while first and self.ends[first - 1] == self.begin == self.start(first - 1):
            first -= 1
        return self.tokens[first : self._last() + 1]

    def _last(self) -> int:
        """Return the index of the last token that holds content."""
        return self.holder(max(self.end - 1, self.begin))

    def closing(self) -> tuple[Token, ...]:
        """Return the tokens between the content and the closing quote, the one with the quote included."""
        return self.tokens[self._last() + 1 : self.holder(self.end) + 1]

    def joint_logprob(self) -> float:
        """Return the sum of the log-probabilities of the tokens that hold content, <= 0."""
        return sum(checked_logprob(token.logprob) for token in self.content())


def checked_logprob(logprob: float) -> float:
    """Return `logprob` clipped to [-9999, 0]; LogprobsUnavailableError if it is positive or NaN.

    Raises
    ------
    LogprobsUnavailableError
        It is NaN or above the rounding tolerance.
    """
    if not logprob <= TOLERANCE:  # also catches NaN
        raise LogprobsUnavailableError(
            f"Expected a log-probability <= 0, got {logprob}: the answer's evidence cannot be used."
        )
    return min(max(logprob, IMPOSSIBLE), 0.0)


def joint_logprob(completion: Completion, field_path: str) -> float | None:
    """Return the sum of the log-probabilities of a field's tokens, for any JSON value.

    Parameters
    ----------
    completion : Completion
        The answer.
    field_path : str
        The field, as for `field_value`.

    Returns
    -------
    float or None
        Natural logarithm, <= 0. The quotes of a string do not count, but a token that holds
        content and a quote does. None where the answer has no usable log-probabilities, is
        not JSON, lacks the field, or cannot be aligned with its tokens.

    Raises
    ------
    ConfigurationError
        `field_path` is malformed.
    """
    parse_path(field_path)
    try:
        return align(completion, field_path).joint_logprob()
    except LogprobsUnavailableError:
        return None


def align(completion: Completion, field_path: str, path: FieldPath | None = None) -> AlignedField:
    """Find the tokens that spell the value at `path`, by default the path in `field_path`.

    The tokens may hold more than the text: a code fence, an end-of-turn token, reasoning. So the
    answer's JSON is searched in the tokens' joined bytes, last occurrence first; where a server
    has rewritten the text, a JSON document with the same value at the same path is taken instead.

    Raises
    ------
    LogprobsUnavailableError
        The answer has no usable tokens, or the field cannot be found among them.
    ConfigurationError
        `field_path` is malformed.
    """
    path = parse_path(field_path) if path is None else path
    if not completion.tokens:
        raise LogprobsUnavailableError(
            "Expected token log-probabilities, got none that can be used "
            f"({completion.evidence_problem or 'none were reported'}): ask for them with logprobs=True and "
            "top_logprobs, of a server that reports them."
        )
    body = json_body(completion.text)
    try:
        value = answer_value(body, path, field_path)
    except UnparsedError as error:
        raise LogprobsUnavailableError(f"The tokens of {field_path!r} cannot be found: {error}") from error
    stream = b"".join([token.data for token in completion.tokens])
    quote = isinstance(value, str)
    locate = _cached_span if quote and len(stream) <= _SHORT else _span
    span = locate(stream, body, path, value)
    if span is None:
        raise LogprobsUnavailableError(
            f"The tokens do not spell the answer, so {field_path!r} cannot be aligned: "
            f"tokens {stream[:80]!r}, answer {body[:80]!r}."
        )
    ends = list(accumulate([len(token.data) for token in completion.tokens]))
    return AlignedField(value, completion.tokens, ends, stream, span[0] + quote, span[1] - quote)


def _span(stream: bytes, body: str, path: FieldPath, value: object) -> tuple[int, int] | None:
    """Return the byte offsets of the value at `path` in `stream`, quotes included; None if not found."""
    begin = stream.rfind(body.encode("utf-8", "surrogatepass"))
    try:
        if begin >= 0:
            return value_span(stream, begin, path)
        return _search(stream, path, value)
    except LookupError:
        return None


# A label set has few answers: the same text comes again and again, so its span is cached.
_cached_span = lru_cache(maxsize=1024)(_span)


def _search(stream: bytes, path: FieldPath, value: object) -> tuple[int, int] | None:
    """Return the span of `value` in the last JSON document of the stream with that value at `path`."""
    span = None
    position = 0
    for _ in range(_MAX_ATTEMPTS):
        start = _DOCUMENT.search(stream, position)
        if start is None:
            break
        position = start.start()
        try:
            begin, end = value_span(stream, position, ())
            if answer_value(stream[begin:end].decode("utf-8"), path, "") == value:
                span = value_span(stream, position, path)
            position = end
        except (LookupError, ValueError, UnparsedError):
            position += 1
    if span is None or json.loads(stream[slice(*span)]) != value:
        return None
    return span


def labels_from_schema(schema: object, field_path: str) -> tuple[str, ...]:
    """Return the labels a schema allows for a field, in the schema's order.

    Parameters
    ----------
    schema : mapping or Pydantic model class
        A JSON schema, an OpenAI response format holding one, or a class with
        ``model_json_schema``. ``$ref``, ``allOf``, ``anyOf``, ``oneOf`` and ``const`` are followed.
    field_path : str
        The field, as for `field_value`.

    Raises
    ------
    ConfigurationError
        The schema lacks the field, the field has no enum, or its enum holds something besides text
        (``null`` is skipped: it means the absence of a label).

    Examples
    --------
    >>> from calibrant.logprobs import labels_from_schema
    >>> schema = {"type": "object", "properties": {"category": {"enum": ["Food", "Rent"]}}}
    >>> labels_from_schema(schema, "category")
    ('Food', 'Rent')
    """
    node = SchemaNode.of(schema)
    for part in parse_path(field_path):
        below = node.child(part)
        if below is None:
            raise ConfigurationError(
                f"Expected the field {field_path!r} in the schema; it has no {part!r}, only {sorted(node.names)}."
            )
        node = below
    values = tuple(value for value in node.values if value is not None)
    if values and all(isinstance(value, str) for value in values):
        return values
    raise ConfigurationError(
        f"Expected an enum of texts at {field_path!r}, got {list(values) or 'none'}: list every label there, as text."
    )


def as_response_format(schema: object) -> dict[str, Any]:
    """Return an OpenAI ``response_format`` for a schema; the argument is never changed.

    Parameters
    ----------
    schema : mapping or Pydantic model class
        A response format (a mapping whose ``type`` is ``json_schema``, ``json_object`` or
        ``text``) is returned as it is. Else a strict one is built: objects that do not say so get
        ``additionalProperties: false``, every property is required, and a reference with other
        keywords beside it is replaced by its target, as strict mode demands.

    Raises
    ------
    ConfigurationError
        `schema` is neither a mapping nor a class with ``model_json_schema``.
    """
    if isinstance(schema, Mapping) and schema.get("type") in ("json_schema", "json_object", "text"):
        return deepcopy(dict(schema))
    root = plain_schema(schema)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", str(root.get("title") or "answer"))[:64]
    strict = deepcopy(_strict(root, root))  # enums are shared with the argument
    return _response_format(name, strict)


def _response_format(name: str, strict: JsonObject) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": strict}}


def enum_schema(labels: Sequence[str] | LabelSet, field_path: str) -> dict[str, Any]:
    """Return a response format that allows exactly `labels` at `field_path`.

    Parameters
    ----------
    labels : sequence of str or LabelSet
        The label set. `FieldLabels` become one object with an enum at the path of every field, in the order of
        the fields as far as their paths allow; `MultiLabels` an array of enums, which may repeat a label, as
        strict modes know no ``uniqueItems`` (and not all of them a number of elements).
    field_path : str
        The field; objects and arrays are nested along the path. For `MultiLabels` the path of the array (``topics``),
        or of the label in its elements (``results[].topic``, where the last ``[]`` stands for all of them). Ignored
        for `FieldLabels`, whose fields have paths of their own.

    Raises
    ------
    ConfigurationError
        `labels` or `field_path` is wrong, or the paths of two fields contradict each other.
    """
    # Schemas of label sets are strict as they are.
    return _response_format("answer", LabelSet.of(labels).schema(field_path))


def _strict(node: Any, root: JsonObject, inside: frozenset[str] = frozenset()) -> Any:  # noqa: ANN401
    """Return a strict copy of a schema node; `inside` holds the references that are being expanded."""
    if isinstance(node, list):
        return [_strict(item, root, inside) for item in node]
    if not isinstance(node, Mapping):
        return node
    reference = node.get("$ref")
    if reference is not None and len(node) > 1:
        if reference in inside:
            return {"$ref": reference}
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _strict({**schema_target(reference, root), **beside}, root, inside | {reference})
    result = with_inner_schemas(node, partial(_strict, root=root, inside=inside))
    if node.get("type") == "object" or "properties" in node:
        result.setdefault("additionalProperties", False)
        result["required"] = list(node.get("properties") or {})
    return result
