"""Turns a JSON schema into what llama.cpp decodes fastest: a fixed beginning and a small grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from calibrant.core import ConfigurationError, SchemaNode

__all__ = [
    "MAX_ENUM_BYTES",
    "Choice",
    "Choices",
    "Constraint",
    "LabelArray",
    "array_for",
    "choices_for",
    "constraint_for",
    "json_grammar",
]

# 50,000 labels with 5,000,000 bytes were obeyed; what lies beyond was not measured.
MAX_ENUM_BYTES = 5_000_000

_MAX_DEPTH = 32
# Elements of arrays are objects of a few enums; a schema that holds itself has no end.
_ENUM_DEPTH = 3


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A schema that leaves the model one choice.

    The answer is ``prefix + value + suffix``, with `value` from `values`.

    Attributes
    ----------
    prefix : str
        JSON up to and including the value's opening quote.
    values : tuple of str
        The legal values as they stand inside JSON quotes.
    suffix : str
        JSON from the value's closing quote on.
    """

    prefix: str
    values: tuple[str, ...]
    suffix: str

    def grammar(self) -> str:
        """Return the llguidance grammar of a value and its closing quote."""
        alternatives = " | ".join(json.dumps(value + '"', ensure_ascii=False) for value in self.values)
        # One terminal: as rules, 2,000 labels overflow a row of the parser.
        return f"%llguidance {{}}\nstart: VALUE\nVALUE: {alternatives}"

    def answer(self, value: str) -> str:
        """Return the JSON that gives `value`, as it is outside JSON."""
        return self.prefix + _inside(value) + self.suffix

    def answers(self) -> Iterator[str]:
        """Return every legal answer."""
        return (self.prefix + value + self.suffix for value in self.values)


def constraint_for(response_format: Mapping[str, Any] | None) -> Constraint | None:
    """Return the single choice a ``json_schema`` format leaves, or None where it leaves more.

    Raises
    ------
    ConfigurationError
        The enum is larger than the engine was seen to obey.
    """
    return _only(choices_for(response_format))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One text that a schema leaves open.

    Attributes
    ----------
    path : tuple of str
        The keys that lead to it.
    before : str
        JSON from the closing quote of the choice before, or from the beginning, up to and including this one's
        opening quote.
    values : tuple of str
        The legal values as they stand inside JSON quotes.
    """

    path: tuple[str, ...]
    before: str
    values: tuple[str, ...]

    def take(self, text: str, value: str) -> str:
        """Return an answer that has come as far as `text` with `value`, as it is outside JSON, as this choice."""
        return text + self.before + _inside(value)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A schema that leaves nothing open but some texts.

    Attributes
    ----------
    choices : tuple of Choice
        At least one, in the order they are written.
    behind : str
        JSON from the last one's closing quote on.
    """

    choices: tuple[Choice, ...]
    behind: str


def choices_for(response_format: Mapping[str, Any] | None) -> Choices | None:
    """Return the choices a ``json_schema`` format leaves, in order, or None where it leaves other things open.

    Raises
    ------
    ConfigurationError
        An enum is larger than the engine was seen to obey.
    """
    schema = _schema(response_format)
    found = None if schema is None else _choices(_pieces(schema))
    if found is None:
        return None
    for choice in found.choices:
        size = sum(len(value.encode()) for value in choice.values)
        if size > MAX_ENUM_BYTES:
            msg = (
                f"The label set has {len(choice.values):,} labels with {size:,} bytes. llama.cpp ignores a grammar "
                f"it cannot hold without saying so, and was measured to obey up to {MAX_ENUM_BYTES:,} bytes. "
                "Shorten the labels, or classify in two steps."
            )
            raise ConfigurationError(msg)
    return found


@dataclass(frozen=True, kw_only=True)
class LabelArray:
    """A schema that leaves nothing open but one array, of any length, whose elements hold one text each.

    Attributes
    ----------
    opening : str
        JSON up to and including the array's opening bracket.
    element : Constraint
        The JSON of every element.
    behind : str
        JSON from the array's closing bracket on.
    """

    opening: str
    element: Constraint
    behind: str

    def beginning(self, values: Sequence[str]) -> str:
        """Return the beginning of an answer that holds `values`, as they are outside JSON, up to the last element."""
        return self.opening + ", ".join(map(self.element.answer, values))

    def separator(self, values: Sequence[str]) -> str:
        """Return what follows such a beginning where another element does, up to its value's opening quote."""
        return f"{', ' if values else ''}{self.element.prefix}"


def array_for(response_format: Mapping[str, Any] | None) -> LabelArray | None:
    """Return the array that a ``json_schema`` format leaves open, or None where it leaves anything else open.

    An array with a least or a largest number of elements is None as well.
    """
    schema = _schema(response_format)
    parts = (None if schema is None else _pieces(schema)) or []
    arrays = [part for part in parts if isinstance(part, Constraint)]
    if len(arrays) != 1:
        return None
    (element,) = arrays
    place = parts.index(element)
    before, behind = _given(parts[:place]), _given(parts[place + 1 :])
    if before is None or behind is None:
        return None
    return LabelArray(opening=f"{before}[", element=element, behind=f"]{behind}")


def json_grammar(response_format: Mapping[str, Any] | None) -> str | None:
    """Return a llguidance grammar of JSON on one line, or None where there is no schema.

    White space anywhere would double the tokens. An array of enums without a
    limit gets one: a weak model may never end it.
    """
    schema = _schema(response_format)
    if schema is None and response_format is not None and response_format.get("type") == "json_object":
        schema = {"type": "object"}
    if schema is None:
        return None
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return f"%llguidance {{}}\nstart: %json {json.dumps({**_bounded(schema, dict(schema)), 'x-guidance': style})}"


def _schema(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if response_format is None or response_format.get("type") != "json_schema":
        return None
    body = response_format.get("json_schema")
    schema = body.get("schema") if isinstance(body, Mapping) else None
    return schema if isinstance(schema, Mapping) else None


@dataclass(frozen=True)
class _Open:
    """A text that a schema leaves open: the keys that lead to it, and what it may be."""

    path: tuple[str, ...]
    values: tuple[str, ...]


# The pieces of an answer: JSON as it is, a text, the elements of an array of any length.
_Parts: TypeAlias = list[str | _Open | Constraint]


def _given(parts: _Parts) -> str | None:
    """Return the JSON of pieces that leave nothing open; None where one of them does."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        elif isinstance(part, _Open) and len(part.values) == 1:
            text += part.values[0]
        else:
            return None
    return text


def _pieces(schema: Mapping[str, Any]) -> _Parts | None:
    """Return the pieces of the answers that a schema allows, or None where it leaves more open."""
    try:
        return _parts(SchemaNode.of(schema), ())
    except ConfigurationError:
        return None  # a schema that cannot be followed is left to the engine


def _choices(parts: _Parts | None) -> Choices | None:
    """Return the choices among the pieces of an answer, of which no array is one."""
    if parts is None:
        return None
    most = max((len(part.values) for part in parts if isinstance(part, _Open)), default=0)
    found: list[Choice] = []
    text = ""
    for part in parts:
        if isinstance(part, Constraint):
            return None
        if isinstance(part, str):
            text += part
        elif most > 1 and len(part.values) == 1:
            text += part.values[0]  # beside real choices, what is given is no choice
        else:
            found.append(Choice(path=part.path, before=text, values=part.values))
            text = ""
    return Choices(choices=tuple(found), behind=text) if found else None


def _only(choices: Choices | None) -> Constraint | None:
    """Return the only choice of some, or None where there are more."""
    if choices is None or len(choices.choices) != 1:
        return None
    (only,) = choices.choices
    return Constraint(prefix=only.before, values=only.values, suffix=choices.behind)


def _parts(node: SchemaNode, path: tuple[str, ...]) -> _Parts | None:
    """Return the JSON of the values a node allows, in pieces; None where it leaves more open than texts and arrays."""
    if len(path) > _MAX_DEPTH:  # a schema may hold itself
        return None
    if node.is_closed:
        values = node.values
        if values and all(isinstance(value, str) for value in values):
            return ['"', _Open(path, tuple(dict.fromkeys(map(_inside, values)))), '"']
        return [json.dumps(values[0], ensure_ascii=False)] if len(values) == 1 else None
    if not node.is_one_object:
        element = _element(node, path)
        return None if element is None else [element]
    found: _Parts = ["{"]
    for name in node.names:
        child = node.child(name)
        inner = None if child is None else _parts(child, (*path, name))
        if inner is None:
            return None
        comma = ", " if len(found) > 1 else ""
        found += [f"{comma}{json.dumps(name, ensure_ascii=False)}: ", *inner]
    return [*found, "}"]


# An array that says nothing else may have any length, and any elements of its kind.
_FREE_ARRAY = frozenset({"type", "items", "uniqueItems", "title", "description", "default", "examples"})


def _element(node: SchemaNode, path: tuple[str, ...]) -> Constraint | None:
    """Return what every element of an array of any length may be; None where a node is none, or leaves more open."""
    if len(node.alternatives) != 1:
        return None
    (only,) = node.alternatives
    items = node.child(0)
    if items is None or only.get("type") != "array" or not only.keys() <= _FREE_ARRAY:
        return None
    return _only(_choices(_parts(items, (*path, "[]"))))


# What stands under these keys are values, which may look like schemas, or schemas by name.
_NOT_SCHEMAS = frozenset({"enum", "const", "default", "examples"})
_BY_NAME = frozenset({"properties", "$defs", "definitions"})


def _bounded(node: Any, root: dict[str, Any]) -> Any:  # noqa: ANN401 (any part of a schema)
    """Return the schema with a limit for every array of enums that has none: the values of its largest enum."""
    if isinstance(node, list):
        return [_bounded(part, root) for part in node]
    if not isinstance(node, Mapping):
        return node
    found = {
        name: part
        if name in _NOT_SCHEMAS
        else {key: _bounded(child, root) for key, child in part.items()}
        if name in _BY_NAME and isinstance(part, Mapping)
        else _bounded(part, root)
        for name, part in node.items()
    }
    if node.get("type") == "array" and "maxItems" not in node:
        most = _largest_enum(SchemaNode.of(node.get("items"), root))
        if most:
            found["maxItems"] = most
    return found


def _largest_enum(node: SchemaNode, depth: int = 0) -> int:
    """Return how many values the largest enum has, in an element or a few objects down; 0 where there is none."""
    if depth == _ENUM_DEPTH:
        return len(node.values)
    below = [node.child(0), *map(node.child, node.names)]
    return max(len(node.values), *(_largest_enum(child, depth + 1) for child in below if child), 0)


def _inside(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]
