"""JSON paths, documents and schemas of answers, and the reader of a schema: the values it allows at each path.

``$ref``, ``allOf``, ``anyOf``, ``oneOf``, ``enum`` and ``const`` are understood at every
level. Labels that a schema allows, and text that it leaves open, are read through a `SchemaNode` alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import JsonObject
from calibrant.core._reported import reported_mapping

FieldPath = tuple[str | int, ...]

_PATH_PART: Final = re.compile(r"([^.\[\]]*)((?:\[\d*\])*)")
_INDEX: Final = re.compile(r"\[(\d*)\]")
_MAX_DEPTH: Final = 64
_CHOICES: Final = ("anyOf", "oneOf")
# Under the first keys are values, which may look like schemas; under the second, schemas by name.
_NOT_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples"})
_BY_NAME: Final = frozenset({"properties", "$defs", "definitions"})


@lru_cache(maxsize=512)
def parse_path(field_path: str) -> FieldPath:
    """Split `field_path` into keys and array positions; ``[]`` is the first element.

    Raises
    ------
    ConfigurationError
        The path is empty or malformed.
    """
    parts: list[str | int] = []
    for number, part in enumerate(field_path.split(".")):
        match = _PATH_PART.fullmatch(part)
        # Only the root may be an array without a name: `[].category`, never `results.[]`.
        if match is None or not part or (not match[1] and number):
            raise ConfigurationError(
                f"Expected a field path such as 'category', 'result.category' or 'results[].category', "
                f"got {field_path!r}: name the keys, separated by dots."
            )
        if match[1]:
            parts.append(match[1])
        parts.extend(int(index or 0) for index in _INDEX.findall(match[2]))
    return tuple(parts)


def array_path(field_path: str) -> tuple[FieldPath, FieldPath]:
    """Return the path of an array of labels, and the path of the label inside each element.

    The last ``[]`` stands for all elements; without one `field_path` is that of the array, whose elements are labels.

    Raises
    ------
    ConfigurationError
        The path is malformed.
    """
    whole = parse_path(field_path)
    array, mark, inside = field_path.rpartition("[]")
    if not mark:
        return whole, ()
    outer = parse_path(array) if array else ()
    inner = parse_path(inside.removeprefix(".")) if inside else ()
    return outer, inner


def element_path(field_path: str, index: int) -> str:
    """Return the path of the label in one element of an array of labels."""
    array, mark, inside = field_path.rpartition("[]")
    return f"{array}[{index}]{inside}" if mark else f"{field_path}[{index}]"


def enum_node(labels: Iterable[str], path: FieldPath) -> JsonObject:
    """Return the schema of an answer that holds one of `labels` at `path`, and nothing else."""
    node: JsonObject = {"type": "string", "enum": list(labels)}
    for part in reversed(path):
        if isinstance(part, int):
            node = {"type": "array", "items": node}
        else:
            closed = {"required": [part], "additionalProperties": False}
            node = {"type": "object", "properties": {part: node}, **closed}
    return node


def merged_nodes(one: Mapping[str, Any], other: Mapping[str, Any], path: str) -> JsonObject:
    """Merge the schemas of two fields into one; error messages name `path`, that of the second."""
    kind = one["type"]
    if kind == "string" or kind != other["type"]:
        raise ConfigurationError(
            f"Expected fields whose paths fit into one answer, got {path!r}, where another field's path says "
            f"otherwise what is there ({kind} and {other['type']}): give one of them another path."
        )
    if kind == "array":
        return {**one, "items": merged_nodes(one["items"], other["items"], path)}
    properties = dict(one["properties"])
    for name, node in other["properties"].items():
        properties[name] = merged_nodes(properties[name], node, path) if name in properties else node
    return {**one, "properties": properties, "required": list(properties)}


def merged_values(one: Any, other: Any) -> Any:  # noqa: ANN401  (JSON)
    """Merge two JSON values recursively."""
    if isinstance(one, list) and isinstance(other, list):
        return [merged_values(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        merged = {**one, **other}
        for name in one.keys() & other.keys():
            merged[name] = merged_values(one[name], other[name])
        return merged
    return other


def placed_value(path: FieldPath, value: Any) -> Any:  # noqa: ANN401  (JSON)
    """Return the smallest JSON value that holds `value` at a path."""
    for part in reversed(path):
        value = [value] if isinstance(part, int) else {part: value}
    return value


def plain_schema(schema: object) -> JsonObject:
    """Return the JSON schema inside a response format, or of a Pydantic model class.

    Raises
    ------
    ConfigurationError
        `schema` is neither a mapping nor a class with ``model_json_schema``.
    """
    make = getattr(schema, "model_json_schema", None)
    node = make() if callable(make) else schema
    if isinstance(node, Mapping):
        for key in ("json_schema", "schema"):
            inner = node.get(key)
            if isinstance(inner, Mapping):
                node = inner
        return dict(node)
    raise ConfigurationError(
        f"Expected a JSON schema (mapping) or a Pydantic model class, got {type(schema).__name__}."
    )


def schema_target(reference: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema a ``$ref`` leads to.

    Raises
    ------
    ConfigurationError
        It leads out of the schema, or nowhere.
    """
    node: Any = root
    if isinstance(reference, str) and reference.startswith("#"):
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            node = node.get(key) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping):
            return node
    raise ConfigurationError(
        f"Expected a reference inside the schema, got {reference!r}: put its target under $defs."
    )


def with_inner_schemas(node: Mapping[str, Any], change: Callable[[Any], Any]) -> JsonObject:
    """Return a copy of a schema with `change` applied to the schemas directly inside it.

    It gets other keywords than enums and constants, too: texts, numbers, and lists of schemas.
    """
    changed = dict(node)
    for key in node.keys() - _NOT_SCHEMAS:
        part = node[key]
        if key in _BY_NAME and isinstance(part, Mapping):
            changed[key] = {name: change(child) for name, child in part.items()}
        else:
            changed[key] = change(part)
    return changed


@dataclass(frozen=True)
class SchemaNode:
    """Values that a schema allows at one path of an answer.

    Attributes
    ----------
    alternatives : tuple of dict
        The schemas one of which the value there meets; none of them holds ``$ref``, ``allOf``, ``anyOf`` or ``oneOf``.
    root : dict
        The whole schema, which references lead into.
    """

    alternatives: tuple[JsonObject, ...]
    root: JsonObject

    @classmethod
    def of(cls, schema: object, root: JsonObject | None = None) -> Self:
        """Return the node of a whole schema, or of a part of `root`.

        Raises
        ------
        ConfigurationError
            `schema` is none, or one of its references leads back to itself or nowhere.
        """
        node = plain_schema(schema) if root is None else schema
        whole = plain_schema(schema) if root is None else root
        found = tuple(_alternatives(node, whole)) if isinstance(node, Mapping) else ()
        return cls(found, whole)

    @property
    def values(self) -> list[Any]:
        """Distinct values of the node's enums and constants, in the schema's order."""
        # JSON tells 1 from true, and values that cannot be hashed from each other.
        found: dict[Any, Any] = {}
        for node in self.alternatives:
            for value in _values(node):
                key = value
                if not isinstance(value, str):
                    key = (json.dumps(value),)
                found[key] = value
        return list(found.values())

    @property
    def is_closed(self) -> bool:
        """True if the schema allows no value beyond `values`."""
        if not self.alternatives:
            return False
        return all("const" in node or "enum" in node for node in self.alternatives)

    @property
    def names(self) -> tuple[str, ...]:
        """Property names of the allowed objects, in the schema's order."""
        return tuple(dict.fromkeys(name for node in self.alternatives for name in _properties(node)))

    @property
    def is_one_object(self) -> bool:
        """True if the schema allows only an object with independent properties.

        Of several alternatives with the same properties at most one property may differ: of two, not every
        combination would be allowed.
        """
        first, *others = [_properties(node) for node in self.alternatives] or [{}]
        if not first or self.is_closed or any(tuple(other) != tuple(first) for other in others):
            return False
        differing = [name for name, part in first.items() if any(other[name] != part for other in others)]
        return len(differing) <= 1

    def child(self, part: str | int) -> SchemaNode | None:
        """Return the node of a property or an array element; None if the schema has none."""
        below = [child for node in self.alternatives for child in _children(node, part)]
        if not below:
            return None
        return SchemaNode(
            tuple(found for child in below for found in _alternatives(child, self.root)), self.root
        )


def _alternatives(node: Mapping[str, Any], root: JsonObject, depth: int = 0) -> Iterator[JsonObject]:
    """Yield the alternatives of `node`, with $ref, allOf, anyOf and oneOf resolved."""
    if depth > _MAX_DEPTH:
        raise ConfigurationError(
            f"Expected a schema less than {_MAX_DEPTH} references deep: one of them leads back to itself."
        )
    rest = {key: value for key, value in node.items() if key not in ("$ref", "allOf", *_CHOICES)}
    merged = [rest]
    together = []
    if "$ref" in node:
        together = [schema_target(node["$ref"], root)]
    together += node.get("allOf") or []
    choices = [branch for key in _CHOICES for branch in node.get(key) or []]
    groups_of_all = [[part] for part in together]
    if choices:
        groups_of_all.append(choices)
    for groups in groups_of_all:
        merged = [
            _merge(left, right)
            for left in merged
            for part in groups
            for right in _alternatives(part, root, depth + 1)
        ]
    yield from merged


def _merge(left: JsonObject, right: JsonObject) -> JsonObject:
    """Merge two schemas that must both hold; two enums keep their common values."""
    merged = {**right, **left}
    if "properties" in left and "properties" in right:
        merged["properties"] = {**right["properties"], **left["properties"]}
    both = [side for side in (left, right) if "enum" in side or "const" in side]
    if len(both) == 2:
        merged.pop("const", None)
        merged["enum"] = [value for value in _values(left) if value in _values(right)]
    return merged


def _properties(node: JsonObject) -> Mapping[str, Any]:
    return reported_mapping(node.get("properties"))


def _children(node: JsonObject, part: str | int) -> list[Mapping[str, Any]]:
    if isinstance(part, str):
        child = _properties(node).get(part)
    else:
        first = node.get("prefixItems") or []
        child = first[part] if part < len(first) else node.get("items")
    return [child] if isinstance(child, Mapping) else []


def _values(node: JsonObject) -> list[Any]:
    if "const" in node:
        return [node["const"]]
    found = node.get("enum")
    if isinstance(found, list | tuple):
        return list(found)
    return []
