"""Tests of tasks made in Python."""

from __future__ import annotations

from typing import Any, cast

import pytest

from calibrant.core import ConfigurationError, DataError, Example, LogprobsUnavailableError, Task
from calibrant.logprobs import extract_distribution


def make(**changes: object) -> Task:
    """Return a task of two labels with some of its arguments replaced."""
    arguments = {"name": "animals", "labels": ["cat", "dog"], "prompt": "Which animal?", **changes}
    return Task(**arguments)  # type: ignore[arg-type]


def test_answers_take_the_labels_spelling() -> None:
    """Answers take the label set's spelling; the rest of the row stays."""
    rows = (Example(input="meow", answer=" CAT ", additional_context={"why": "it meows"}),)
    task = make(train=rows, validation=rows, test=rows)
    expected = Example(input="meow", answer="cat", additional_context={"why": "it meows"})
    assert task.train == task.validation == task.test == (expected,)
    assert rows[0].answer == " CAT "  # the caller's row is not touched


def test_unknown_answers_name_split_and_row() -> None:
    """An unknown answer raises an error with split and position."""
    rows = (Example(input="meow", answer="cat"), Example(input="moo", answer="cow"))
    with pytest.raises(
        DataError, match=r"'animals', validation row 2: answer 'cow' is not one of the 2 labels"
    ):
        make(validation=rows)


def test_long_label_sets_are_shortened() -> None:
    """The error shows eight labels of a longer label set."""
    labels = [f"label{number}" for number in range(100)]
    with pytest.raises(DataError, match=r"100 labels \(label0, .*, label7, \.\.\.\)"):
        make(labels=labels, test=(Example(input="x", answer="y"),))


def test_user_templates_need_the_input() -> None:
    """A user template without the input raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match=r"user_template to hold \{input\}, got 'Text:'"):
        make(user_template="Text:")
    assert make(user_template="Text: {input}").user_template == "Text: {input}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"other_prompts": "Cat?"}, r"Expected a list of other_prompts, got 'Cat\?': write \['Cat\?'\]"),
        (
            {"label_descriptions": {"cow": "It moos."}},
            "Expected label_descriptions of the labels 'cat', 'dog'",
        ),
    ],
)
def test_unusable_prompts_are_errors(changes: dict[str, object], said: str) -> None:
    """Wrong prompts and descriptions raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=said):
        make(**changes)


@pytest.mark.parametrize("field", ["", "a..b", "a.", "a[x]", "a[0]b", "a.[]"])
def test_wrong_field_paths_are_errors(field: str) -> None:
    """A field that is no JSON path raises ConfigurationError in task and reader."""
    with pytest.raises(
        ConfigurationError, match=r"Expected field to be a JSON path, got .*separated by dots"
    ):
        make(field=field)
    with pytest.raises(ConfigurationError):
        extract_distribution("null", ["cat", "dog"], field)


@pytest.mark.parametrize(
    "field", ["a", "a.b", "a[]", "results[].category", "a[1][].b", "[].a", "[2]", "two words.x-y", "ä"]
)
def test_readable_field_paths_are_accepted(field: str) -> None:
    """A task accepts every path that the reader of answers accepts."""
    assert make(field=field).field == field
    with pytest.raises(LogprobsUnavailableError):
        extract_distribution("null", ["cat", "dog"], field)


def test_missing_splits_are_errors() -> None:
    """An empty split and an unknown split raise ConfigurationError."""
    task = make(test=(Example(input="meow", answer="cat"),))
    assert [row.input for row in task.rows("test")] == ["meow"]
    with pytest.raises(ConfigurationError, match=r"no 'train' rows: name a file for it under \[data\]"):
        task.rows("train")
    with pytest.raises(ConfigurationError, match="no 'dev' rows"):
        task.rows(cast("Any", "dev"))


def test_a_prompt_that_is_no_text_is_refused() -> None:
    """Such as the missing value of a table of prompts."""
    missing: Any = float("nan")
    with pytest.raises(ConfigurationError, match="Expected a prompt as text, got nan"):
        Task(name="t", labels=["a", "b"], prompt=missing)
