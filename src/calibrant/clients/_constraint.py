"""Turns a JSON schema into what llama.cpp decodes fastest: a fixed beginning and a small grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibrant.core import ConfigurationError

__all__ = [
    "MAX_ENUM_BYTES",
    "Choice",
    "Choices",
    "Constraint",
    "choices_for",
    "constraint_for",
    "json_grammar",
    "looks_like_json",
]

# 50,000 labels with 5,000,000 bytes were obeyed; what lies beyond was not measured.
MAX_ENUM_BYTES = 5_000_000


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

    def grammar(self, *, llguidance: bool) -> str:
        """Return the grammar of a value and its closing quote."""
        alternatives = " | ".join(json.dumps(value + '"', ensure_ascii=False) for value in self.values)
        if llguidance:
            # One terminal: as rules, 2,000 labels overflow a row of the parser, which then stops
            # constraining without a word in the answer.
            return f"%llguidance {{}}\nstart: VALUE\nVALUE: {alternatives}"
        return f"root ::= {alternatives}"

    def answer(self, value: str) -> str:
        """Return the JSON that gives `value`, as it is outside JSON."""
        return self.prefix + _inside(value) + self.suffix

    def answers(self) -> Iterator[str]:
        """Return every legal answer."""
        return (self.prefix + value + self.suffix for value in self.values)

    def allows(self, text: str, *, partial: bool = False) -> bool:
        """Return whether `text` is a legal answer, or (`partial`) the beginning of one."""
        if partial:
            return any(answer.startswith(text) for answer in self.answers())
        if not (text.startswith(self.prefix) and text.endswith(self.suffix)):
            return False
        return text[len(self.prefix) : len(text) - len(self.suffix)] in self.values


def constraint_for(response_format: Mapping[str, Any] | None) -> Constraint | None:
    """Return the single choice a ``json_schema`` format leaves, or None where it leaves more.

    Raises
    ------
    ConfigurationError
        The enum is larger than the engine was seen to obey.
    """
    found = choices_for(response_format)
    if found is None or len(found.choices) != 1:
        return None
    (only,) = found.choices
    return Constraint(prefix=only.before, values=only.values, suffix=found.behind)


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
    found = None if schema is None else _walk(schema, schema, ())
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


def json_grammar(response_format: Mapping[str, Any] | None) -> str | None:
    """Return a llguidance grammar of JSON on one line, or None where there is no schema.

    The engine's own conversion allows white space anywhere, which doubles the tokens. An array of enums without a
    limit gets one: a weak model may never end it.
    """
    schema = _schema(response_format)
    if schema is None:
        return None
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return f"%llguidance {{}}\nstart: %json {json.dumps({**_bounded(schema), 'x-guidance': style})}"


def looks_like_json(text: str, *, partial: bool) -> bool:
    """Return whether `text` is JSON, or (`partial`) may be the beginning of some."""
    if partial:
        return text.lstrip()[:1] in set('{["-0123456789tfn') | {""}
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _schema(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if response_format is None or response_format.get("type") != "json_schema":
        return None
    body = response_format.get("json_schema")
    schema = body.get("schema") if isinstance(body, Mapping) else None
    return schema if isinstance(schema, Mapping) else None


def _walk(node: Mapping[str, Any], root: Mapping[str, Any], path: tuple[str, ...]) -> Choices | None:
    if len(path) > 32:  # a schema may refer to itself
        return None
    node = _resolve(node, root)
    values = node.get("enum", [node["const"]] if "const" in node else None)
    if values is not None:
        inside = _quoted(values)
        return (
            None
            if inside is None
            else Choices(choices=(Choice(path=path, before='"', values=inside),), behind='"')
        )
    properties = node.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return None
    found: list[Choice] = []
    text = "{"
    for name, child in properties.items():
        inner = _walk(child, root, (*path, name)) if isinstance(child, Mapping) else None
        if inner is None:
            return None
        first, *others = inner.choices
        text += f"{', ' if found else ''}{json.dumps(name, ensure_ascii=False)}: "
        found += [replace(first, before=text + first.before), *others]
        text = inner.behind
    return Choices(choices=tuple(found), behind=text + "}")


# What stands under these keys are values, which may look like schemas, or schemas by name.
_NOT_SCHEMAS = frozenset({"enum", "const", "default", "examples"})
_BY_NAME = frozenset({"properties", "$defs", "definitions"})


def _bounded(node: Any) -> Any:  # noqa: ANN401 (any part of a schema)
    """Return the schema with a limit for every array of enums that has none: the values of its largest enum."""
    if isinstance(node, list):
        return [_bounded(part) for part in node]
    if not isinstance(node, Mapping):
        return node
    found = {
        name: part
        if name in _NOT_SCHEMAS
        else {key: _bounded(child) for key, child in part.items()}
        if name in _BY_NAME and isinstance(part, Mapping)
        else _bounded(part)
        for name, part in node.items()
    }
    if node.get("type") == "array" and "maxItems" not in node:
        most = _largest_enum(node.get("items"))
        if most:
            found["maxItems"] = most
    return found


def _largest_enum(node: Any) -> int:  # noqa: ANN401 (any part of a schema)
    """Return how many values the largest enum has; 0 where there is none."""
    if not isinstance(node, Mapping):
        return 0
    own = len(node["enum"]) if isinstance(node.get("enum"), list) else 0
    below = [node.get("items"), *(node.get("properties") or {}).values()]
    return max(own, *map(_largest_enum, below))


def _quoted(values: object) -> tuple[str, ...] | None:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        return None
    return tuple(dict.fromkeys(_inside(value) for value in values)) or None


def _inside(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _resolve(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow local references, as Pydantic writes them (``$ref``, or ``allOf`` with one)."""
    for _ in range(32):
        only = node.get("allOf")
        reference = node.get("$ref")
        if isinstance(only, list) and len(only) == 1 and isinstance(only[0], Mapping):
            node = only[0]
        elif isinstance(reference, str) and reference.startswith("#/"):
            node = _lookup(reference, root)
        else:
            break
    return node


def _lookup(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for part in reference[2:].split("/"):
        found = (
            found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, Mapping) else {}
        )
    return found if isinstance(found, Mapping) else {}
