"""Tests of constraints: from a JSON schema to a fixed beginning and a small grammar."""

from __future__ import annotations

import enum
import json
from typing import Any, Literal

import pydantic
import pytest

from calibrant.clients._constraint import (
    MAX_ENUM_BYTES,
    Constraint,
    LabelArray,
    SchemaChoice,
    SchemaChoices,
    array_for,
    choices_for,
    constraint_for,
    json_grammar,
)
from calibrant.core import ConfigurationError
from calibrant.logprobs._fields import as_response_format


def as_format(schema: Any) -> Any:
    """Wrap a schema in OpenAI's response format."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def enum_object(name: Any, values: Any) -> Any:
    """Return the schema of an object with one enum."""
    return {"type": "object", "properties": {name: {"type": "string", "enum": values}}, "required": [name]}


def obj(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties}


def arr(items: Any, **keywords: Any) -> dict[str, Any]:
    """Return the schema of an array."""
    return {"type": "array", "items": items, **keywords}


def answers(constraint: Any) -> Any:
    """Return every answer that a constraint allows, parsed."""
    return [json.loads(constraint.prefix + value + constraint.suffix) for value in constraint.values]


def test_one_enum_field_leaves_one_choice() -> None:
    """A schema with one enum fixes all text up to the label's opening quote."""
    found = constraint_for(as_format(enum_object("category", ["Food", "Rent"])))
    assert found == Constraint(prefix='{"category": "', values=("Food", "Rent"), suffix='"}')


@pytest.mark.parametrize(
    "label", ['6" pipe', "back\\slash", "Müll/日本", "a\nb", "</s>", "a|b", "\u2028", "🎉"]
)
def test_labels_survive_json_and_grammar_escapes(label: Any) -> None:
    """Labels with quotes, backslashes, control or non-ASCII characters are equal after JSON."""
    found = constraint_for(as_format(enum_object("category", [label, "x"])))
    assert answers(found) == [{"category": label}, {"category": "x"}]
    terminal = found.grammar().split("VALUE: ")[1].split(" | ")[0] if "|" not in label else None
    if terminal is not None:
        assert json.loads(terminal) == json.dumps(label, ensure_ascii=False)[1:]


def test_pydantic_enums_and_literals_are_followed() -> None:
    """The enum of a nested Pydantic model is found through $defs."""
    kind = enum.StrEnum("Kind", {"FOOD": "Food", "RENT": "Rent"})
    inner = pydantic.create_model("Inner", name=(kind, ...))
    outer = pydantic.create_model("Outer", classification=(inner, ...))
    found = constraint_for(as_format(outer.model_json_schema()))
    assert answers(found) == [{"classification": {"name": "Food"}}, {"classification": {"name": "Rent"}}]


LABELS = {"enum": ["a", "b"]}
OTHERS = {"const": "c"}


def test_constants_beside_the_choice_are_given() -> None:
    """Constants beside the choice are part of the constraint's prefix and suffix."""
    properties = {
        "version": {"const": 2},
        "kind": {"const": 'to"pic'},
        "in": {"type": "object", "properties": {"category": LABELS, "safe": {"const": True}}},
        "note": {"enum": [None]},
    }
    found = constraint_for(as_format({"type": "object", "properties": properties}))
    assert found.prefix == '{"version": 2, "kind": "to\\"pic", "in": {"category": "'
    assert found.suffix == '", "safe": true}, "note": null}'
    assert answers(found) == [
        {"version": 2, "kind": 'to"pic', "in": {"category": label, "safe": True}, "note": None}
        for label in ("a", "b")
    ]


def test_alternatives_with_one_difference_leave_one_choice() -> None:
    """Alternatives that differ in one enum make one choice; other alternatives make none."""
    kind = {"const": "topic"}

    def either(*objects: Any) -> Any:
        return as_format({"anyOf": [{"type": "object", "properties": one} for one in objects]})

    same = either({"kind": kind, "category": LABELS}, {"kind": kind, "category": OTHERS})
    assert constraint_for(same) == Constraint(
        prefix='{"kind": "topic", "category": "', values=("a", "b", "c"), suffix='"}'
    )
    for others in (
        {"kind": {"const": "other"}, "category": OTHERS},
        {"category": OTHERS, "kind": kind},
        {"kind": kind},
        {"kind": kind, "category": LABELS, "why": LABELS},
    ):
        assert choices_for(either({"kind": kind, "category": LABELS}, others)) is None


@pytest.mark.parametrize(
    "response_format",
    [
        None,
        {"type": "json_schema"},
        as_format({"type": "object"}),
        as_format({"properties": {"category": {"type": "string"}}}),
        as_format({"properties": {"category": {"enum": []}}}),
        as_format({"properties": {"why": {"type": "string"}, "category": {"enum": ["a"]}}}),
        as_format({"properties": {"results": arr({"enum": ["a"]})}}),
        as_format({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}}),
        as_format({"properties": {"category": {"$ref": "#/nowhere/at/all"}}}),
    ],
)
def test_everything_else_is_left_to_the_engine(response_format: Any) -> None:
    """Schemas with several choices, none, or a cycle have no constraint."""
    assert constraint_for(response_format) is None


def test_too_large_label_sets_raise_an_error() -> None:
    """A too large label set raises ConfigurationError with the limit and the number of labels."""
    big = "x" * 1_000_000
    labels = [f"{index}{big}" for index in range(MAX_ENUM_BYTES // 1_000_000)]
    with pytest.raises(ConfigurationError, match=r"5 labels with 5,000,005 bytes.*5,000,000 bytes.*Shorten"):
        constraint_for(as_format(enum_object("category", labels)))


def test_other_schemas_are_written_on_one_line() -> None:
    """The grammar fixes the separators and allows no other white space; the caller's schema is unchanged."""
    given = as_format({"properties": {"a": {"type": "string"}}})
    before = json.dumps(given)
    header, schema = json_grammar(given).split("start: %json ")
    assert header == "%llguidance {}\n"
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    assert json.loads(schema) == {"properties": {"a": {"type": "string"}}, "x-guidance": style}
    assert json.dumps(given) == before
    assert '{"type": "object"' in json_grammar({"type": "json_object"})
    assert json_grammar({"type": "text"}) is None


def test_several_enums_are_several_choices() -> None:
    """A schema with several enums has one choice per enum, and no constraint."""
    inner = obj(b={"enum": ["x", 'y"']}, c={"enum": ["z", "w"]})
    schema = as_format(obj(**{"a": {"enum": ["1", "2"]}, "in": inner}))
    found = choices_for(schema)
    assert found == SchemaChoices(
        choices=(
            SchemaChoice(path=("a",), before='{"a": "', values=("1", "2")),
            SchemaChoice(path=("in", "b"), before='", "in": {"b": "', values=("x", 'y\\"')),
            SchemaChoice(path=("in", "c"), before='", "c": "', values=("z", "w")),
        ),
        behind='"}}',
    )
    text = ""
    for choice, value in zip(found.choices, ("2", 'y"', "z"), strict=True):
        text = choice.take(text, value)
    assert json.loads(text + found.behind) == {"a": "2", "in": {"b": 'y"', "c": "z"}}
    assert constraint_for(schema) is None


@pytest.mark.parametrize(
    "other",
    [
        {"type": "string"},
        arr({"enum": ["a"]}),
        {"enum": []},
        {"anyOf": [{"enum": ["a", "b"]}, {"type": "string"}]},
        True,
    ],
)
def test_open_schemas_have_no_choices(other: Any) -> None:
    """A schema with a property that is no enum of texts has no choices."""
    schema = obj(a={"enum": ["1", "2"]}, b=other)
    assert choices_for(as_format(schema)) is None


LABEL = {"type": "string", "enum": ["A", 'b "c"']}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (arr(LABEL), r'["A", "b \"c\""]'),
        (obj(a={"const": 1}, b=arr(LABEL)), r'{"a": 1, "b": ["A", "b \"c\""]}'),
        (
            obj(b=arr(obj(x={"enum": ["y"]}, z=LABEL), uniqueItems=True), c={"enum": ["d"]}),
            r'{"b": [{"x": "y", "z": "A"}, {"x": "y", "z": "b \"c\""}], "c": "d"}',
        ),
    ],
)
def test_label_arrays_are_written_in_pieces(schema: Any, text: str) -> None:
    """An array of labels is written in pieces that join to one line of JSON, and has no choices."""
    found = array_for(as_format(schema))
    assert found is not None
    assert found.beginning(["A", 'b "c"']) + found.behind == text
    assert text.startswith(found.beginning(()) + found.separator(()) + 'A"')
    assert text.startswith(found.beginning(["A"]) + found.separator(["A"]) + r"b \"c\"" + '"')
    assert found.element.values == ("A", r"b \"c\"")
    assert choices_for(as_format(schema)) is None


def test_model_classes_with_lists_leave_arrays() -> None:
    """A model class with a list of labels gives the same array as a plain schema."""

    class Topics(pydantic.BaseModel):
        """A list of topics."""

        topics: list[Literal["A", "B"]] = pydantic.Field(description="What it is about.")

    found = array_for(as_response_format(Topics))
    assert found == LabelArray(
        opening='{"topics": [', element=Constraint(prefix='"', values=("A", "B"), suffix='"'), behind="]}"
    )


@pytest.mark.parametrize(
    "schema",
    [
        LABEL,
        arr({"type": "string"}),
        arr(LABEL, minItems=1),
        arr(LABEL, prefixItems=[LABEL]),
        {"anyOf": [arr(LABEL), {"type": "null"}]},
        arr(arr(LABEL)),
        arr(obj(a=LABEL, b=LABEL)),
        obj(a=arr(LABEL), b=arr(LABEL)),
        obj(a=arr(LABEL), b=LABEL),
        arr({"$ref": "#"}),
    ],
)
def test_other_schemas_have_no_open_array(schema: Any) -> None:
    """Arrays with limits, with other elements or beside another choice give no label array."""
    assert array_for(as_format(schema)) is None


def grammar_schema(schema: Any) -> Any:
    """Return the JSON schema inside a grammar."""
    grammar = json_grammar(as_format(schema))
    assert grammar is not None
    return json.loads(grammar.partition("%json ")[2])


def test_label_arrays_have_a_maximum_length() -> None:
    """Arrays of enums get a maximum of elements unless they have one; other arrays stay unbounded."""
    labels = {"type": "string", "enum": ["a", "b", "c"]}
    topics = arr(labels)
    rows = arr(obj(x=labels, y={"enum": ["a"]}))
    schema = obj(
        topics=topics,
        rows=rows,
        own={**topics, "maxItems": 7},
        free=arr({"type": "string"}),
        enum=topics,
        value={"enum": [arr(labels)]},
    )
    schema["properties"]["referred"] = arr({"$ref": "#/$defs/label"})
    schema["$defs"] = {"label": {"anyOf": [labels, {"const": "d"}]}}
    found = grammar_schema(schema)["properties"]
    wanted = {"topics": 3, "rows": 3, "own": 7, "free": None, "enum": 3, "value": None, "referred": 4}
    assert {name: node.get("maxItems") for name, node in found.items()} == wanted
    assert found["value"] == {"enum": [arr(labels)]}
    assert "maxItems" not in topics
