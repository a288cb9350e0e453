"""Labels of a JSON schema, and response formats for labels and schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._schema import SchemaNode, parse_path, plain_schema, schema_target, with_inner_schemas

_Node = dict[str, Any]


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


def _response_format(name: str, strict: _Node) -> dict[str, Any]:
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


def _strict(node: Any, root: _Node, inside: frozenset[str] = frozenset()) -> Any:  # noqa: ANN401
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
