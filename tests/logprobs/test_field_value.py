"""Tests of reading a field of the answer's text."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from calibrant.core import (
    Completion,
    ConfigurationError,
    LabelSet,
    MultiLabels,
    Outcome,
    Prediction,
)
from calibrant.inference import Classifier


def read(answer: object, path: str, labels: LabelSet | None = None) -> Prediction:
    """Return the prediction of a model that always answers this."""
    options: dict[str, Any] = {"labels": labels or LabelSet(["A", "B"]), "field": path, "space": "none"}
    with closing(Classifier(model=lambda _messages: answer, scoring="decode", **options)) as classifier:
        return classifier.classify("a text")


@pytest.mark.parametrize(
    ("text", "path", "label"),
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
        ('{"a": {"b c": {"d": "x"}}}', "a.b c.d", "x"),
        ('{"r": [{"c": "A"}, {"c": "B"}]}', "r[].c", "A"),
        ('{"r": [{"c": "A"}, {"c": "B"}]}', "r[1].c", "B"),
        ('[{"c": "A"}]', "[].c", "A"),
        ('[["x", ["y"]]]', "[0][1][]", "y"),
    ],
)
def test_the_value_is_read_with_escapes_undone(text: str, path: str, label: str) -> None:
    """The value is read with escapes undone, despite spacing, nesting and code fences."""
    for answer in (text, Completion(text=text)):
        assert read(answer, path, LabelSet([label, "another label"])).label == label


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"c": null}', "None"), ('{"c": {"d": [true]}}', "{'d': [True]}"), ('{"c": 1.5}', "1.5")],
)
def test_other_values_are_named(text: str, value: str) -> None:
    """A value that is no text is no label, and the reason says what it is."""
    found = read(text, "c")
    assert found.outcome is Outcome.UNPARSED
    assert value in found.reason


@pytest.mark.parametrize(
    "text", ["World", '{"c": "Wor', "{'c': 'A'}", '{"c": "A"} and more', "[" * 100_000, '{"c": "a\nb"}']
)
def test_invalid_json_is_unparsed(text: str) -> None:
    """A text that is cut off, unquoted, too deep or followed by prose is unparsed, and the reason is short."""
    found = read(Completion(text=text), "c")
    assert (found.outcome, found.label) == (Outcome.UNPARSED, None)
    assert "JSON" in found.reason
    assert len(found.reason) < 400


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
    """An answer without the field is unparsed, and the reason names the field."""
    found = read(text, path)
    assert found.outcome is Outcome.UNPARSED
    assert "Expected the field" in found.reason


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
    """An answer with a repeated key is unparsed, as its value is undefined."""
    for labels in (LabelSet(["A", "B"]), MultiLabels(["A", "B"])):
        found = read(text, "[].c" if text[0] == "[" else "c", labels)
        assert found.outcome is Outcome.UNPARSED
        assert "every key of an object once" in found.reason


def test_cut_off_answers_name_max_tokens() -> None:
    """Broken JSON with the finish reason "length" is said to be cut off, and max_tokens to be the remedy."""
    text = '{"c": "Wor'
    cut = Completion(text=text, finish_reason="length")
    found = read(cut, "c")
    assert found.label is None
    assert found.reason.startswith("cut off by the length limit: ")
    assert found.reason.endswith("Raise max_tokens.")


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "a[", "a]b", "a[-1]", "a[b]", "a.[]", "a[0]b"])
def test_a_malformed_path_is_a_configuration_error(path: str) -> None:
    """A malformed path raises ConfigurationError before anything is asked."""
    with pytest.raises(ConfigurationError, match="path"):
        read("no JSON", path)
