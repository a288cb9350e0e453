"""Tasks made in Python."""

from __future__ import annotations

from typing import cast

import pytest

from calibrant.core import ConfigurationError, DataError, Example, Task
from calibrant.core._task_file import Split
from calibrant.logprobs._fields import UnparsedError, field_value


def make(**changes: object) -> Task:
    """Return a task of two labels with some of its arguments replaced."""
    arguments = {"name": "animals", "labels": ["cat", "dog"], "prompt": "Which animal?", **changes}
    return Task(**arguments)  # type: ignore[arg-type]


def test_answers_are_spelled_as_in_the_label_set() -> None:
    """So that comparing with a prediction is plain equality, and nothing else of the row changes."""
    rows = (Example(input="meow", answer=" CAT ", additional_context={"why": "it meows"}),)
    task = make(train=rows, validation=rows, test=rows)
    expected = Example(input="meow", answer="cat", additional_context={"why": "it meows"})
    assert task.train == task.validation == task.test == (expected,)
    assert rows[0].answer == " CAT "  # the caller's row is not touched


def test_an_answer_that_is_no_label_names_split_and_row() -> None:
    """There is no file here, so the position in the split has to do."""
    rows = (Example(input="meow", answer="cat"), Example(input="moo", answer="cow"))
    with pytest.raises(
        DataError, match=r"'animals', validation row 2: answer 'cow' is not one of the 2 labels"
    ):
        make(validation=rows)


def test_a_long_label_set_is_not_printed_in_full() -> None:
    """The message shows eight labels and says that there are more."""
    labels = [f"label{number}" for number in range(100)]
    with pytest.raises(DataError, match=r"100 labels \(label0, .*, label7, \.\.\.\)"):
        make(labels=labels, test=(Example(input="x", answer="y"),))


def test_a_user_template_without_the_input_is_refused() -> None:
    """The model would never see the text."""
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
def test_prompts_that_a_search_cannot_try_are_refused(changes: dict[str, object], said: str) -> None:
    """In Python as in a file."""
    with pytest.raises(ConfigurationError, match=said):
        make(**changes)


@pytest.mark.parametrize("field", ["", "a..b", "a.", "a[x]", "a[0]b", "a.[]"])
def test_a_field_that_is_no_path_is_refused(field: str) -> None:
    """No answer could hold it, and the schema could not be built."""
    with pytest.raises(
        ConfigurationError, match=r"Expected field to be a JSON path, got .*separated by dots"
    ):
        make(field=field)
    with pytest.raises(ConfigurationError):
        field_value("null", field)


@pytest.mark.parametrize(
    "field", ["a", "a.b", "a[]", "results[].category", "a[1][].b", "[].a", "[2]", "two words.x-y", "ä"]
)
def test_a_field_may_be_any_path_that_can_be_read(field: str) -> None:
    """What the reader of answers accepts, no more and no less."""
    assert make(field=field).field == field
    with pytest.raises(UnparsedError):
        field_value("null", field)


def test_rows_of_a_missing_split_are_an_error_with_a_remedy() -> None:
    """Neither an empty split nor a misspelled one passes for no rows."""
    task = make(test=(Example(input="meow", answer="cat"),))
    assert [row.input for row in task.rows("test")] == ["meow"]
    with pytest.raises(ConfigurationError, match=r"no 'train' rows: name a file for it under \[data\]"):
        task.rows("train")
    with pytest.raises(ConfigurationError, match="no 'dev' rows"):
        task.rows(cast("Split", "dev"))
