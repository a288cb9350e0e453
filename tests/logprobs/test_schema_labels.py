"""Tests of labels from schemas, and of schemas from labels."""

from __future__ import annotations

import copy
import enum
from typing import Any, Literal

import pydantic
import pytest

from calibrant.adapters import ConfidenceAdapter
from calibrant.core import ConfigurationError, Field, FieldLabels, LabelSet, MultiLabels
from calibrant.inference import Classifier
from calibrant.logprobs import labels_from_schema


def model(_messages: Any) -> str:
    """Answer nothing."""
    return ""


def as_response_format(schema: Any, field: str = "tone", **options: Any) -> Any:
    """Return the response format in which an adapter sends a schema."""
    adapter = ConfidenceAdapter(model=model, field_path=field, response_format=schema, **options)
    return copy.deepcopy(adapter.response_format)


def enum_schema(labels: Any, field: str) -> Any:
    """Return the response format in which a classifier asks for labels."""
    return Classifier(model=model, labels=labels, field=field).describe()["response_format"]


class Topic(enum.StrEnum):
    """Holds the labels as an enumeration."""

    WORLD = "World"
    SCI = "Sci/Tech"


class Item(pydantic.BaseModel):
    """Has one label."""

    category: Topic = pydantic.Field(description="the topic")
    score: float = 0.5


class Answer(pydantic.BaseModel):
    """Has a list of items."""

    results: list[Item]
    tone: Literal["kind", "rude"]
    maybe: Topic | None = None
    single: Literal["only"]


class Tree(pydantic.BaseModel):
    """Contains itself."""

    label: Literal["A", "B"]
    child: Tree | None = pydantic.Field(default=None, description="below")


@pytest.mark.parametrize("wrap", [lambda s: s, as_response_format, lambda s: s.model_json_schema()])
@pytest.mark.parametrize(
    ("path", "labels"),
    [
        ("results[].category", ("World", "Sci/Tech")),
        ("results[2].category", ("World", "Sci/Tech")),
        ("tone", ("kind", "rude")),
        ("maybe", ("World", "Sci/Tech")),
        ("single", ("only",)),
    ],
)
def test_labels_are_found_through_references_and_arrays(
    wrap: Any, path: str, labels: tuple[str, ...]
) -> None:
    """A class, its schema and its response format give the same labels at a path."""
    assert labels_from_schema(wrap(Answer), path) == labels


@pytest.mark.parametrize(
    ("field", "labels"),
    [
        ({"enum": ["A", "B", None]}, ("A", "B")),
        ({"const": "A"}, ("A",)),
        ({"anyOf": [{"const": "A"}, {"enum": ["B", "A"]}, {"type": "null"}]}, ("A", "B")),
        ({"oneOf": [{"const": "A", "title": "x"}, {"const": "B"}]}, ("A", "B")),
        ({"allOf": [{"enum": ["A", "B", "C"]}, {"enum": ["C", "B"]}]}, ("B", "C")),
        ({"$ref": "#/$defs/a~1b", "description": "x"}, ("A", "B")),
        ({"allOf": [{"$ref": "#/$defs/a~1b"}], "default": "A"}, ("A", "B")),
        ({"enum": ["A"], "anyOf": [{"type": "string"}]}, ("A",)),
    ],
)
def test_every_form_of_enum_is_read(field: dict[str, Any], labels: tuple[str, ...]) -> None:
    """Labels are read from every form of enum: combinations intersect, choices add up, null is left out."""
    schema = {"type": "object", "properties": {"c": field}, "$defs": {"a/b": {"enum": ["A", "B"]}}}
    before = copy.deepcopy(schema)
    assert sorted(labels_from_schema(schema, "c")) == sorted(labels)
    assert labels_from_schema({"schema": schema, "name": "x"}, "c") == labels_from_schema(schema, "c")
    assert schema == before


def test_properties_of_combined_objects_are_merged() -> None:
    """The properties of all parts of `allOf` are read, and every place of a tuple."""
    base = {"properties": {"c": {"enum": ["A", "B"]}}}
    schema = {"allOf": [base, {"properties": {"d": {"enum": ["C", "D"]}}}]}
    assert labels_from_schema(schema, "c") == ("A", "B")
    assert labels_from_schema(schema, "d") == ("C", "D")
    pair = {"type": "array", "prefixItems": [{"enum": ["A"]}, {"enum": ["B"]}], "items": {"enum": ["C"]}}
    assert [labels_from_schema(pair, f"[{i}]") for i in range(3)] == [("A",), ("B",), ("C",)]


@pytest.mark.parametrize(
    ("schema", "path", "match"),
    [
        (Answer, "missing", "only .*results"),
        (Answer, "results[].score", "none"),
        (Answer, "tone.x", "'x'"),
        ({"properties": {"c": {"enum": [1, 2]}}}, "c", "texts"),
        ({"properties": {"c": {"$ref": "#/nowhere"}}}, "c", "reference"),
        ({"properties": {"c": {"$ref": "#/properties/c"}}}, "c", "back to itself"),
        ({"properties": {"c": {"allOf": [{"enum": ["A"]}, {"enum": ["B"]}]}}}, "c", "none"),
        (7, "c", "int"),
        (Answer, "a..b", "field path"),
    ],
)
def test_schemas_without_labels_raise_an_error(schema: Any, path: str, match: str) -> None:
    """A schema without labels at the path raises ConfigurationError with the reason."""
    with pytest.raises(ConfigurationError, match=match):
        labels_from_schema(schema, path)


def test_classes_become_strict_response_formats() -> None:
    """A class becomes a strict format: closed objects, required properties, references without siblings."""
    made = as_response_format(Answer)
    schema = made["json_schema"].pop("schema")
    assert made == {"type": "json_schema", "json_schema": {"name": "Answer", "strict": True}}
    item = schema["$defs"]["Item"]
    assert schema["additionalProperties"] is item["additionalProperties"] is False
    assert schema["required"] == ["results", "tone", "maybe", "single"]
    assert item["required"] == ["category", "score"]
    category = item["properties"]["category"]
    assert (category["enum"], category["description"]) == (["World", "Sci/Tech"], "the topic")
    assert "$ref" not in category


def test_a_plain_schema_is_copied_not_changed() -> None:
    """A plain schema is copied and not changed, also with fields named like keywords."""
    text = {"type": "string"}
    opened = {"type": "object", "additionalProperties": text, "default": {"type": "object"}}
    properties = {"properties": {**text, "enum": ["A", "B"]}, "open": opened}
    schema = {"type": "object", "properties": properties}
    before = copy.deepcopy(schema)
    made = as_response_format(schema, "properties")["json_schema"]
    assert made["name"] == "answer"
    found = made["schema"]
    assert list(found["properties"]) == ["properties", "open"]
    assert found["properties"]["properties"] == {"type": "string", "enum": ["A", "B"]}
    assert found["properties"]["open"] == {**opened, "required": []}
    found["properties"]["open"]["default"]["x"] = 1
    assert schema == before


def test_recursive_references_stay_references() -> None:
    """A recursive reference stays a reference."""
    schema = {"properties": {"c": {"enum": ["A", "B"]}, "below": {"$ref": "#", "description": "again"}}}
    below = as_response_format(schema, "c")["json_schema"]["schema"]["properties"]["below"]
    assert below["description"] == "again"
    assert below["properties"]["below"] == {"$ref": "#"}


SCHEMA = {"properties": {"tone": {"enum": ["A", "B"]}}}


@pytest.mark.parametrize(
    "wrapper",
    [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}],
)
def test_a_response_format_is_returned_unchanged(wrapper: dict[str, Any]) -> None:
    """A complete response format is returned unchanged."""
    assert as_response_format(wrapper, response_schema=SCHEMA) == wrapper


@pytest.mark.parametrize(
    "path", ["category", "result.category", "results[].category", "a[1].b[].c", "[].x", "m[][]"]
)
def test_schemas_allow_exactly_the_labels(path: str) -> None:
    """Labels read from their own schema are equal and in order."""
    labels = LabelSet(["Sci/Tech", 'a "b"', "é"])
    assert labels_from_schema(enum_schema(labels, path), path) == labels.labels


def test_one_field_has_a_minimal_schema() -> None:
    """The schema of one field is an object with one required property."""
    properties = {"c": {"type": "string", "enum": ["A", "B"]}}
    schema = {"type": "object", "properties": properties, "required": ["c"], "additionalProperties": False}
    answer = {"name": "answer", "strict": True, "schema": schema}
    assert enum_schema(["A", "B"], "c") == {"type": "json_schema", "json_schema": answer}
    with pytest.raises(ConfigurationError):
        enum_schema(["A"], "c")


def fields(*paths: str) -> FieldLabels:
    """Return fields named a, b, ... at these paths; the labels of field a are A1 and A2."""
    named = zip("abc", paths, strict=False)
    return FieldLabels(
        [Field(name=name, labels=[f"{name.upper()}1", f"{name.upper()}2"], path=path) for name, path in named]
    )


def schema_of(labels: LabelSet, path: str = "label") -> Any:
    """Return the JSON schema inside a response format."""
    return enum_schema(labels, path)["json_schema"]["schema"]


def shape(node: Any) -> Any:
    """Return a schema as the object it describes: enums as lists, arrays with one element."""
    if node["type"] == "object":
        assert node["additionalProperties"] is False
        assert node["required"] == list(node["properties"])
        return {name: shape(child) for name, child in node["properties"].items()}
    if node["type"] == "array":
        assert set(node) == {"type", "items"}
        return ("array", shape(node["items"]))
    return node["enum"]


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        (("a", "b"), {"a": ["A1", "A2"], "b": ["B1", "B2"]}),
        (("x.a", "y", "x.b"), {"x": {"a": ["A1", "A2"], "b": ["C1", "C2"]}, "y": ["B1", "B2"]}),
        (("[].a", "[].b"), ("array", {"a": ["A1", "A2"], "b": ["B1", "B2"]})),
    ],
)
def test_fields_share_the_objects_their_paths_share(paths: tuple[str, ...], wanted: Any) -> None:
    """Fields whose paths begin alike stand in one object, and every field is required."""
    labels = fields(*paths)
    assert shape(schema_of(labels)) == wanted
    for one in labels.fields:
        assert labels_from_schema(enum_schema(labels, "label"), str(one.path)) == one.labels.labels


@pytest.mark.parametrize(
    "paths", [("a", "a.b"), ("a.b", "a"), ("a[]", "a.b"), ("x[].a", "x.b"), ("a[0]", "a[1]"), ("x.a", "x")]
)
def test_contradicting_field_paths_raise_an_error(paths: tuple[str, ...]) -> None:
    """A path that is a label and an object raises ConfigurationError with the path."""
    with pytest.raises(ConfigurationError, match=f"{paths[1]!r}".replace("[", r"\[").replace("]", r"\]")):
        enum_schema(fields(*paths), "label")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("topics", {"topics": ("array", ["A", "B"])}),
        ("topics[]", {"topics": ("array", ["A", "B"])}),
        ("x.topics", {"x": {"topics": ("array", ["A", "B"])}}),
        ("results[].topic", {"results": ("array", {"topic": ["A", "B"]})}),
        ("a[].b[].c", {"a": ("array", {"b": ("array", {"c": ["A", "B"]})})}),
        ("[]", ("array", ["A", "B"])),
    ],
)
def test_label_sets_are_arrays_of_enums(path: str, wanted: Any) -> None:
    """The schema of a label set is an array of enums, without unique items or a limit."""
    assert shape(schema_of(MultiLabels(["A", "B"]), path)) == wanted
