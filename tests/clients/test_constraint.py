"""Tests of constraints: from a JSON schema to a fixed beginning and a small grammar."""

from __future__ import annotations

import enum
import itertools
import json
from typing import Any, Literal

import pydantic
import pytest

from calibrant.clients._constraint import json_grammar
from calibrant.core import ConfigurationError, Field, FieldLabels, MultiLabels
from calibrant.inference import Classifier
from token_engine import Engine

BYTES = [bytes([value]) for value in range(256)]


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


def scoring(response_format: Any, labels: Any = ("a", "b"), field: str = "label") -> Classifier:
    """Return a classifier that scores the labels in answers of a schema."""
    return Classifier(
        model=Engine(pieces=BYTES),
        labels=labels,
        field=field,
        response_format=response_format,
        scoring="exact",
    )


def fixed(classifier: Classifier) -> dict[str, Any]:
    """Return what a classifier tells of the JSON around the labels."""
    found: dict[str, Any] = classifier.describe()["method"]
    return found


def answer(classifier: Classifier) -> Any:
    """Return an answer, parsed; its text is JSON as Python writes it."""
    text = classifier.classify("x").text
    assert text == json.dumps(json.loads(text), ensure_ascii=False)
    return json.loads(text)


def test_one_enum_field_leaves_one_choice() -> None:
    """A schema with one enum fixes all text up to the label's opening quote."""
    found = scoring(as_format(enum_object("category", ["Food", "Rent"])), ("Food", "Rent"))
    assert fixed(found)["prefix"] == '{"category": "'
    assert answer(found) in [{"category": "Food"}, {"category": "Rent"}]


@pytest.mark.parametrize(
    "label", ['6" pipe', "back\\slash", "Müll/日本", "a\nb", "</s>", "a|b", "\u2028a", "🎉"]
)
def test_labels_survive_json_escapes(label: str) -> None:
    """Labels with quotes, backslashes, control or non-ASCII characters are equal after JSON."""
    labels = [label, f"{label} x"]
    assert answer(scoring(as_format(enum_object("category", labels)), labels))["category"] in labels
    with pytest.raises(ConfigurationError, match="lacks some of the labels"):
        scoring(as_format(enum_object("category", [label, "x"])), labels)


def test_pydantic_enums_and_literals_are_followed() -> None:
    """The enum of a nested Pydantic model is found through $defs."""
    kind = enum.StrEnum("Kind", {"FOOD": "Food", "RENT": "Rent"})
    inner = pydantic.create_model("Inner", name=(kind, ...))
    outer = pydantic.create_model("Outer", classification=(inner, ...))
    found = scoring(as_format(outer.model_json_schema()), ("Food", "Rent"))
    assert answer(found) in [{"classification": {"name": "Food"}}, {"classification": {"name": "Rent"}}]


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
    found = scoring(as_format({"type": "object", "properties": properties}))
    assert fixed(found)["prefix"] == '{"version": 2, "kind": "to\\"pic", "in": {"category": "'
    assert answer(found) in [
        {"version": 2, "kind": 'to"pic', "in": {"category": label, "safe": True}, "note": None}
        for label in ("a", "b")
    ]


def test_alternatives_with_one_difference_leave_one_choice() -> None:
    """Alternatives that differ in one enum make one choice; other alternatives make none."""
    kind = {"const": "topic"}

    def either(*objects: Any) -> Any:
        return as_format({"anyOf": [{"type": "object", "properties": one} for one in objects]})

    same = either({"kind": kind, "category": LABELS}, {"kind": kind, "category": OTHERS})
    found = scoring(same, ("a", "b", "c"))
    assert fixed(found)["prefix"] == '{"kind": "topic", "category": "'
    assert answer(found) in [{"kind": "topic", "category": label} for label in "abc"]
    for others in (
        {"kind": {"const": "other"}, "category": OTHERS},
        {"category": OTHERS, "kind": kind},
        {"kind": kind},
        {"kind": kind, "category": LABELS, "why": LABELS},
    ):
        with pytest.raises(ConfigurationError, match="leaves more than the label open"):
            scoring(either({"kind": kind, "category": LABELS}, others))


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_object"},
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
    with pytest.raises(ConfigurationError, match="leaves more than the label open"):
        scoring(response_format)


def test_too_large_label_sets_raise_an_error() -> None:
    """A too large label set raises ConfigurationError with the limit and the number of labels."""
    big = "x" * 1_000_000
    labels = [f"{index}{big}" for index in range(5)]
    with pytest.raises(ConfigurationError, match=r"5 labels with 5,000,005 bytes.*5,000,000 bytes.*Shorten"):
        scoring(as_format(enum_object("category", labels)), labels)


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


def fields(*paths: str) -> FieldLabels:
    """Return fields at these paths, with two labels each."""
    return FieldLabels(
        [Field(name=path, labels=[f"1{path[-1]}", f'2"{path[-1]}'], path=path) for path in paths]
    )


def test_several_enums_are_several_choices() -> None:
    """A schema with several enums has one choice per enum, and is not scored for one label."""
    labels = fields("a", "in.b", "in.c")
    a, b, c = ({"enum": list(one.labels.labels)} for one in labels.fields)
    schema = as_format(obj(**{"a": a, "in": obj(b=b, c=c)}))
    found = scoring(schema, labels)
    assert [before for _, before, _ in fixed(found)["fields"]] == ['{"a": "', '", "in": {"b": "', '", "c": "']
    assert answer(found) in [
        {"a": first, "in": {"b": second, "c": third}}
        for first, second, third in itertools.product(a["enum"], b["enum"], c["enum"])
    ]
    with pytest.raises(ConfigurationError, match="leaves more than the label open"):
        scoring(schema, a["enum"])


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
    labels = fields("a", "b")
    schema = as_format(obj(a={"enum": list(labels.labels_of("a"))}, b=other))
    with pytest.raises(ConfigurationError, match="leaves more than the labels of the fields open"):
        scoring(schema, labels)


TOPICS = MultiLabels(["A", 'b "c"'])
LABEL = {"type": "string", "enum": list(TOPICS)}


@pytest.mark.parametrize(
    ("schema", "field", "pieces"),
    [
        (arr(LABEL), "[]", ["[", '"', '"', "]"]),
        (obj(a={"const": 1}, b=arr(LABEL)), "b", ['{"a": 1, "b": [', '"', '"', "]}"]),
        (
            obj(b=arr(obj(x={"enum": ["y"]}, z=LABEL), uniqueItems=True), c={"enum": ["d"]}),
            "b[].z",
            ['{"b": [', '{"x": "y", "z": "', '"}', '], "c": "d"}'],
        ),
    ],
)
def test_label_arrays_are_written_in_pieces(schema: Any, field: str, pieces: list[str]) -> None:
    """An array of labels is written in pieces that join to one line of JSON, and holds no single label."""
    found = scoring(as_format(schema), TOPICS, field)
    opening, before, after, behind = pieces
    assert fixed(found)["array"] == pieces
    given = found.classify("x")
    labels = [json.dumps(label)[1:-1] for label in json.loads(given.label or "")]
    assert given.text == opening + ", ".join(f"{before}{label}{after}" for label in labels) + behind
    with pytest.raises(ConfigurationError, match="leaves more than the label open"):
        scoring(as_format(schema), TOPICS.labels)


def test_model_classes_with_lists_leave_arrays() -> None:
    """A model class with a list of labels gives the same array as a plain schema."""

    class Topics(pydantic.BaseModel):
        """A list of topics."""

        topics: list[Literal["A", "B"]] = pydantic.Field(description="What it is about.")

    found = scoring(as_format(Topics.model_json_schema()), MultiLabels(["A", "B"]), "topics")
    assert fixed(found)["array"] == ['{"topics": [', '"', '"', "]}"]


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
    with pytest.raises(ConfigurationError, match="leaves more open than one array"):
        scoring(as_format(schema), TOPICS)


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
