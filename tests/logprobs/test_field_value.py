"""Tests of reading a field of the answer's text."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.core import CalibrantError, Completion, ConfigurationError
from calibrant.logprobs._fields import UnparsedError, field_value, field_values


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ('{"c": "World"}', "c", "World"),
        (' \n{"c" : "Sci\\/Tech"}\n', "c", "Sci/Tech"),
        ('{"c": "Food \\u0026 \\"Drinks\\""}', "c", 'Food & "Drinks"'),
        ('{"c": "\\ud83d\\ude00"}', "c", "\U0001f600"),
        ('```json\n{"c": "A"}\n```', "c", "A"),
        ('```\n{"c": "A"}\n```\n', "c", "A"),
        ('```json\n{"c": "A"}', "c", "A"),
        ('{"c": "```"}', "c", "```"),
        ('\ufeff{"c": "A"}', "c", "A"),
        ('{"a": {"b c": {"d": 1e5}}}', "a.b c.d", 1e5),
        ('{"r": [{"c": "A"}, {"c": "B"}]}', "r[].c", "A"),
        ('{"r": [{"c": "A"}, {"c": "B"}]}', "r[1].c", "B"),
        ('[{"c": "A"}]', "[].c", "A"),
        ('[["x", ["y"]]]', "[0][1][]", "y"),
        ('{"c": null}', "c", None),
        ('{"c": {"d": [true]}}', "c", {"d": [True]}),
    ],
)
def test_the_value_is_read_with_escapes_undone(text: str, path: str, value: Any) -> None:
    """The value is read with escapes undone, despite spacing, nesting and code fences."""
    assert field_value(text, path) == value
    assert field_value(Completion(text=text), path) == value


@pytest.mark.parametrize(
    "text", ["", "World", '{"c": "Wor', "{'c': 'A'}", '{"c": "A"} and more', "[" * 100_000, '{"c": "a\nb"}']
)
def test_invalid_json_raises_not_json(text: str) -> None:
    """A text that is cut off, unquoted, too deep or followed by prose raises UnparsedError."""
    with pytest.raises(UnparsedError, match="JSON") as caught:
        field_value(text, "c")
    assert caught.value.kind == "not_json"
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"d": 1}', "c"),
        ('{"c": "A"}', "c.d"),
        ('{"c": []}', "c[].d"),
        ('{"c": {}}', "c[]"),
        ('["A"]', "c"),
        ("3", "c"),
        ('{"c": ["A"]}', "c[1]"),
    ],
)
def test_a_missing_field_is_named(text: str, path: str) -> None:
    """A missing field raises UnparsedError of the kind "missing"."""
    with pytest.raises(UnparsedError, match="Expected the field") as caught:
        field_value(text, path)
    assert caught.value.kind == "missing"
    assert isinstance(caught.value, CalibrantError)


@pytest.mark.parametrize(
    "text",
    [
        '{"c": "A", "c": "B"}',
        '{"c": "A", "c": "A"}',
        '{"c": "A", "\\u0063": "B"}',
        '{"c": "A", "d": {"e": 1, "e": 2}}',
        '[{"c": "A", "c": "B"}]',
    ],
)
def test_a_key_twice_is_ambiguous(text: str) -> None:
    """A repeated key raises UnparsedError, as its value is undefined."""
    with pytest.raises(UnparsedError, match=r"every key of an object once, got '[ce]' 2 times") as caught:
        field_value(text, "[].c" if text[0] == "[" else "c")
    assert caught.value.kind == "ambiguous"
    with pytest.raises(UnparsedError):
        field_values(text, "[].c")


def test_cut_off_answers_name_max_tokens() -> None:
    """Broken JSON with the finish reason "length" raises UnparsedError that names max_tokens."""
    with pytest.raises(UnparsedError, match="max_tokens"):
        field_value(Completion(text='{"c": "Wor', finish_reason="length"), "c")


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "a[", "a]b", "a[-1]", "a[b]", "a.[]", "a[0]b"])
def test_a_malformed_path_is_a_configuration_error(path: str) -> None:
    """A malformed path raises ConfigurationError, even if the answer is no JSON."""
    with pytest.raises(ConfigurationError, match="field path"):
        field_value("no JSON", path)
