"""Tasks read from TOML: what a file may say, and how each mistake is reported."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import (
    ConfigurationError,
    DataError,
    Example,
    HierarchicalLabels,
    LabelSet,
    OrdinalLabels,
    Task,
)
from calibrant.core._settings import ModelSettings
from calibrant.scoring import (
    BrierScoring,
    LinearBlendScoring,
    LogScoring,
    SigmoidScoring,
    ThresholdScoring,
)

WriteTask = Callable[..., Path]

CAT = '{"input": "meow", "answer": "cat"}\n'
TABLE = """\
text,label,part
meow,CAT,train
woof,dog,train
meow meow,cat,{value}
woof woof,dog,test
"""


def error_of(path: Path) -> str:
    """Return the message of the error a task file raises, with the path made short."""
    with pytest.raises((ConfigurationError, DataError)) as caught:
        Task.from_file(path)
    return str(caught.value).replace(f"{path.parent}/", "")


# --- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "labels"),
    [
        ("", LabelSet(["cat", "dog>puppy"])),
        ('structure = "flat"\n', LabelSet(["cat", "dog>puppy"])),
        ('structure = "ordinal"\n', OrdinalLabels(["cat", "dog>puppy"])),
        (
            'structure = "hierarchical"\nseparator = ">"\n',
            HierarchicalLabels(["cat", "dog>puppy"], ">"),
        ),
    ],
)
def test_labels_have_the_structure_the_file_names(tmp_path: Path, lines: str, labels: LabelSet) -> None:
    """Plain ones unless it names one."""
    path = tmp_path / "task.toml"
    path.write_text(f'name = "n"\nlabels = ["cat", "dog>puppy"]\nprompt = "p"\n{lines}')
    assert Task.from_file(path).labels == labels


def test_a_task_file_says_everything_about_a_task(write_task: WriteTask) -> None:
    """Every key arrives where it belongs; data paths are relative to the file."""
    extra = """
[model]
name = "openai/small"
api_base = "http://localhost:1/v1"
space = "raw"
    scoring = "exact"
    tolerance = 0.25
concurrency = 3
[model.options]
max_tokens = 20

[scoring]
strategy = "sigmoid"
high = 0.95
low = 0.6
parameters = { steepness = 50.0 }
thresholds = "auto"
"""
    task = Task.from_file(write_task(extra=extra))
    assert (task.name, task.field, task.prompt) == ("animals", "category", "Which animal?")
    assert task.labels.labels == ("cat", "dog")
    assert task.train[0] == Example(input="train 0 meow", answer="cat")
    assert [len(rows) for rows in (task.train, task.validation, task.test)] == [4, 4, 4]
    assert task.model.model_dump() == {
        "name": "openai/small",
        "api_base": "http://localhost:1/v1",
        "space": "raw",
        "scoring": "exact",
        "tolerance": 0.25,
        "samples": None,
        "concurrency": 3,
        "options": {"max_tokens": 20},
    }
    assert task.scoring.model_dump() == {
        "strategy": "sigmoid",
        "high": 0.95,
        "low": 0.6,
        "parameters": {"steepness": 50.0},
        "thresholds": "auto",
    }


def test_a_task_file_gives_a_search_more_to_try(tmp_path: Path) -> None:
    """Labels are spelled as in the label set."""
    path = tmp_path / "task.toml"
    path.write_text(HEAD + 'other_prompts = ["q", "r"]\n[label_descriptions]\nCAT = "It meows."\n')
    task = Task.from_file(path)
    assert (task.other_prompts, task.label_descriptions) == (("q", "r"), {"cat": "It meows."})


def test_a_head_is_beside_the_task_file(write_task: WriteTask) -> None:
    """By default there is none, and a search learns one."""
    assert Task.from_file(write_task()).head.model_dump() == {
        "file": None,
        "fit": "auto",
        "embeddings": None,
    }
    path = write_task(extra='[head]\nfile = "heads/one.json"\nfit = "off"\nembeddings = "model2vec:a/b"\n')
    assert Task.from_file(path).head.model_dump() == {
        "file": path.parent / "heads/one.json",
        "fit": "off",
        "embeddings": "model2vec:a/b",
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("fitt = 1", ":2: unknown key 'head.fitt'"),
        ('file = "h.json"\nfit = "on"', ":3: head.fit: Input should be 'auto' or 'off', got 'on'"),
        ("file = 3", ":2: head.file"),
        ('embeddings = "glove"', ":2: head.embeddings"),
        ('file = "h.json"\n[[cascade.models]]\nname = "a"', ":2: expected no head beside [cascade]"),
        (
            'file = "h.json"\n[[routing.providers]]\nname = "openai/a"',
            ":2: expected no head beside [routing]",
        ),
    ],
)
def test_a_mistake_in_the_section_of_a_head_is_named(write_task: WriteTask, lines: str, said: str) -> None:
    """With its line."""
    path = write_task(extra=f"[head]\n{lines}\n")
    first = path.read_text().splitlines().index("[head]")
    number, _, message = said.removeprefix(":").partition(":")
    assert f"task.toml:{first + int(number)}:{message}" in error_of(path)


def test_what_a_task_file_leaves_out_has_defaults(tmp_path: Path) -> None:
    """Name, labels and prompt are all it takes; there are no rows then."""
    path = tmp_path / "task.toml"
    path.write_text('name = "n"\nlabels = ["a", "b"]\nprompt = "p"\n')
    task = Task.from_file(str(path))
    assert (task.field, task.user_template) == ("label", None)
    assert task.train == task.validation == task.test == ()
    assert task.model.name == "local/smollm2-135m"
    assert (task.scoring.strategy, task.scoring.high, task.scoring.low) == ("linear", 0.99, 0.9)


@pytest.mark.parametrize("value", ["validation", "val", "dev"])
def test_one_file_may_hold_all_splits(tmp_path: Path, value: str) -> None:
    """The split column tells them apart, under any of the usual names of validation."""
    (tmp_path / "all.csv").write_text(TABLE.format(value=value))
    path = tmp_path / "task.toml"
    path.write_text(
        'name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\n[data]\nfile = "all.csv"\n'
        'input_column = "text"\nanswer_column = "label"\nsplit_column = "part"\n'
    )
    task = Task.from_file(path)
    assert task.train == (Example(input="meow", answer="cat"), Example(input="woof", answer="dog"))
    assert task.validation == (Example(input="meow meow", answer="cat"),)
    assert task.test == (Example(input="woof woof", answer="dog"),)


def test_an_unknown_split_is_an_error_with_its_line(tmp_path: Path) -> None:
    """A row is never left out in silence."""
    (tmp_path / "all.jsonl").write_text(
        '{"input": "a", "answer": "cat", "split": "train"}\n{"input": "b", "answer": "dog", "split": "holdout"}\n'
    )
    path = tmp_path / "task.toml"
    path.write_text('name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\n[data]\nfile = "all.jsonl"\n')
    with pytest.raises(DataError, match=r"all.jsonl:2: .*'holdout'"):
        Task.from_file(path)


def test_a_split_of_its_own_file_wins_over_the_common_one(tmp_path: Path) -> None:
    """So that a new test set can be tried without touching the data."""
    (tmp_path / "all.jsonl").write_text(
        '{"input": "a", "answer": "cat", "split": "train"}\n{"input": "b", "answer": "dog", "split": "test"}\n'
    )
    (tmp_path / "new.jsonl").write_text('{"input": "c", "answer": "cat"}\n')
    path = tmp_path / "task.toml"
    path.write_text(
        'name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\n[data]\nfile = "all.jsonl"\ntest = "new.jsonl"\n'
    )
    task = Task.from_file(path)
    assert [row.input for row in task.train] == ["a"]
    assert task.validation == ()
    assert [row.input for row in task.test] == ["c"]


def test_a_key_of_earlier_versions_may_stay_where_it_asks_for_nothing(tmp_path: Path) -> None:
    """Their records hold it, too."""
    path = tmp_path / "task.toml"
    path.write_text(HEAD + '[model]\nname = "x"\nlabel_codes = false\n')
    assert Task.from_file(path).model == ModelSettings(name="x")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(write_task: WriteTask) -> None:
    """Editors on Windows write both."""
    plain = write_task()
    toml = b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n")
    assert Task.from_file(write_task(toml=toml)).name == "animals"


def test_the_example_task_is_valid() -> None:
    """The one a new user starts with: 8 labels, three splits, no row in two of them."""
    task = Task.from_file(Path(__file__).parents[2] / "examples" / "transactions" / "task.toml")
    assert len(task.labels) == 8
    inputs = [row.input for row in (*task.train, *task.validation, *task.test)]
    assert len(inputs) >= 390
    assert len(set(inputs)) == len(inputs)


# --- bad task files -----------------------------------------------------------------------------

HEAD = 'name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\n'
ROOT_KEYS = (
    "name, labels, structure, separator, multi_label, fields, prompt, other_prompts, label_descriptions, field, "
    "user_template, data, model, scoring, calibration, demonstrations, head, cascade, routing"
)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (HEAD + 'promt = "q"\n', f"task.toml:4: unknown key 'promt': expected one of {ROOT_KEYS}."),
        (
            HEAD + 'other_prompts = "q"\n',
            "task.toml:4: other_prompts: Input should be a valid tuple, got 'q'.",
        ),
        pytest.param(
            HEAD + 'other_prompts = ["q", " p"]\n',
            "task.toml:4: expected other_prompts that differ from the prompt and each other, got ' p' again: leave it "
            "out.",
        ),
        (
            HEAD + '[label_descriptions]\ncat = "It meows."\ncow = "It moos."\n',
            "task.toml:6: expected label_descriptions of the labels 'cat', 'dog', got one of 'cow': correct it.",
        ),
        (
            HEAD + '[label_descriptions]\ndog = " "\n',
            "task.toml:5: expected a sentence about the label 'dog', got ' ': add it, or leave it out.",
        ),
        pytest.param(
            HEAD + 'structure = "ordinal"\nlabel_descriptions = { dog = "It barks." }\n',
            "task.toml:5: expected label_descriptions of plain labels alone, got some of labels with a structure or of "
            "answers that hold several labels: leave them out.",
        ),
        pytest.param(
            HEAD + 'data = { train = "t.jsonl", tset = "x" }\n',
            "task.toml:4: unknown key 'data.tset': expected one of file, train, validation, test, "
            "input_column, answer_column, split_column, context_column, answer_separator.",
        ),
        pytest.param(
            HEAD + 'model.nam = "x"\n',
            "task.toml:4: unknown key 'model.nam': expected one of name, api_base, space, "
            "scoring, tolerance, samples, concurrency, options.",
        ),
        (
            'labels = ["cat", "dog"]\nprompt = "p"\n[model]\nname = "x"\n',
            "task.toml:1: missing key 'name': add it.",
        ),
        ("", "task.toml:1: missing key 'name': add it."),
        (
            'name = "n"\nlabels = "cat"\nprompt = "p"\n',
            "task.toml:2: labels: Input should be a valid list, got 'cat'.",
        ),
        (
            HEAD + "[model]\n\nconcurrency = 0\n",
            "task.toml:6: model.concurrency: Input should be greater than or equal to 1, got 0.",
        ),
        pytest.param(
            HEAD + "[model]\nlabel_codes = 2\n",
            "task.toml:5: model.label_codes: Input should be left out, as labels are always shown as they are, got 2: "
            "remove it; prior correction and calibration correct a preference for a label.",
        ),
        (
            HEAD + "[scoring]\nhigh = 0.5\nlow = 0.9\n",
            "task.toml:6: scoring.low: Input should be at most high = 0.5, got 0.9: lower low or raise high.",
        ),
        (
            HEAD + "[scoring]\nhigh = 0.5\n",
            "task.toml:4: scoring.low: Input should be at most high = 0.5, got 0.9: lower low or raise high.",
        ),
        (
            HEAD + '[scoring]\nstrategy = "brier"\nparameters = { threshold = 0.5 }\n',
            "task.toml:6: strategy 'brier' has no parameter 'threshold': it takes none.",
        ),
        pytest.param(
            HEAD + 'field = "a..b"\n',
            "task.toml:4: field: Input should be a JSON path, got 'a..b': name the keys, separated by dots, "
            "as in 'category', 'result.category' or 'results[].category'.",
        ),
        (
            HEAD + 'user_template = "Text:"\n',
            "task.toml:4: user_template: Input should hold {input}, got 'Text:': say where the text goes.",
        ),
        pytest.param(
            HEAD + '[scoring.parameters]\nsteepness = "much"\n',
            "task.toml:5: scoring.parameters.steepness: Input should be a valid number, "
            "unable to parse string as a number, got 'much'.",
        ),
        pytest.param(
            HEAD + '[scoring.parameters]\nmidpoint = "half"\n[scoring]\nhigh = 0.9\n',
            "task.toml:5: scoring.parameters.midpoint: Input should be a valid number, "
            "unable to parse string as a number, got 'half'.",
        ),
        (
            HEAD + 'data = "train.jsonl"\n',
            "task.toml:4: data: expected a table, got 'train.jsonl': write [data] and its keys below.",
        ),
        (
            'name = "n"\nlabels = [\n  "cat",\n  "dog",\n  "cat",\n]\nprompt = "p"\n',
            "task.toml:2: Expected distinct labels, got 'cat' twice: keep one of them.",
        ),
        (
            HEAD + 'structure = "tree"\n',
            "task.toml:4: structure: Input should be 'flat', 'ordinal' or 'hierarchical', got 'tree'.",
        ),
        (
            HEAD + 'structure = "ordinal"\nseparator = "/"\n',
            "task.toml:5: Expected a separator only for hierarchical labels, got '/' for ordinal ones: leave it out.",
        ),
        pytest.param(
            HEAD + 'structure = "hierarchical"\n',
            "task.toml:2: Expected hierarchical labels to hold the separator '/', got none that does, such as 'cat': "
            "name another separator, or leave the structure out.",
        ),
        (
            HEAD + 'structure = "hierarchical"\nseparator = ""\n',
            "task.toml:5: Expected a separator of at least one character, got '': name what stands between levels.",
        ),
    ],
)
def test_a_wrong_key_names_file_line_and_remedy(tmp_path: Path, toml: str, message: str) -> None:
    """Tomllib keeps no positions, so they are found again in the text."""
    path = tmp_path / "task.toml"
    path.write_text(toml)
    assert message in error_of(path).split("\n")


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("linear", LinearBlendScoring),
        ("threshold", ThresholdScoring),
        ("sigmoid", SigmoidScoring),
        ("brier", BrierScoring),
        ("log", LogScoring),
    ],
)
def test_parameters_of_a_strategy_are_those_it_takes(tmp_path: Path, name: str, strategy: Any) -> None:
    """The names are repeated in core, which must not import the strategies."""
    parameters = {field.name: field.default for field in dataclasses.fields(strategy)}
    path = tmp_path / "task.toml"
    lines = "".join(f"{key} = {value}\n" for key, value in parameters.items())
    path.write_text(f'{HEAD}[scoring]\nstrategy = "{name}"\n[scoring.parameters]\n{lines}')
    assert Task.from_file(path).scoring.parameters == parameters
    path.write_text(f"{path.read_text()}other = 1\n")
    assert f"strategy '{name}' has no parameter 'other'" in error_of(path)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """One line each."""
    path = tmp_path / "task.toml"
    path.write_text('name = 5\nlabels = ["a", "b"]\nx = 1\n')
    assert [line.split(":")[1] for line in error_of(path).split("\n")] == ["1", "1", "3"]


@pytest.mark.parametrize(
    ("toml", "line"),
    [(HEAD + "field = \n", 4), (HEAD + 'name = "twice"\n', 4), ('name = "open\n', 1), ("a = [\n1,\n", 3)],
)
def test_broken_toml_names_the_line(tmp_path: Path, toml: str, line: int) -> None:
    """Wherever the parser says it stopped."""
    path = tmp_path / "task.toml"
    path.write_text(toml)
    assert error_of(path).startswith(f"task.toml:{line}: not valid TOML: ")


def test_toml_nested_too_deeply_is_refused(write_task: WriteTask) -> None:
    """Instead of a trace from inside the parser."""
    path = write_task(extra=f"x = {'[' * 5000}{']' * 5000}\n")
    assert "expected tables and arrays a few levels deep" in error_of(path)


def test_a_missing_task_file_says_what_one_is(tmp_path: Path) -> None:
    """A directory is no task file either."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(
            ConfigurationError, match="no such task file: expected a TOML file with name, labels"
        ):
            Task.from_file(path)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_task_file_that_is_not_utf8_names_the_line(tmp_path: Path, mark: bytes) -> None:
    """With the byte and the remedy."""
    path = tmp_path / "task.toml"
    path.write_bytes(mark + b'name = "n"\nprompt = "caf\xe9"\n')
    assert error_of(path) == "task.toml:2: expected UTF-8 text, got the byte 0xe9: save the file as UTF-8."


# --- bad rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_an_answer_that_is_no_label_names_file_and_line(write_task: WriteTask, split: str) -> None:
    """In every split, with the labels there are."""
    path = write_task(**{split: CAT + "\n" + '{"input": "moo", "answer": "cow"}\n'})
    assert error_of(path) == (
        f"{split}.jsonl:3: answer 'cow' is not one of the 2 labels (cat, dog): correct the row or add the label."
    )


def test_a_row_without_a_split_is_an_error(tmp_path: Path) -> None:
    """A typing error in the column's name must not empty the task silently."""
    (tmp_path / "all.jsonl").write_text(CAT)
    path = tmp_path / "task.toml"
    path.write_text(HEAD + '[data]\nfile = "all.jsonl"\n')
    assert error_of(path) == (
        "all.jsonl:1: expected text in 'split', got nothing (columns here: input, answer)."
    )


# --- rows in two splits -------------------------------------------------------------------------


def warnings_of(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what loading a task warns of."""
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        Task.from_file(path)
    return [record.getMessage().replace(f"{path.parent}/", "") for record in caplog.records]


def test_a_train_row_that_is_a_test_row_is_warned_of(
    write_task: WriteTask, caplog: pytest.LogCaptureFixture
) -> None:
    """Its number would flatter; case and surrounding space hide nothing."""
    test = [{"input": " TRAIN 0 Meow", "answer": "cat"}, {"input": "new", "answer": "dog"}]
    assert warnings_of(write_task(test=test), caplog) == [
        "task.toml: 1 train row(s) are also test rows, for example 'train 0 meow': remove them from one of the two."
    ]


def test_every_pair_of_splits_is_compared(write_task: WriteTask, caplog: pytest.LogCaptureFixture) -> None:
    """The same row everywhere makes three warnings."""
    path = write_task(train=CAT, validation=CAT, test=CAT)
    found = [message.split(":")[1].split(",")[0] for message in warnings_of(path, caplog)]
    assert found == [
        " 1 train row(s) are also test rows",
        " 1 validation row(s) are also test rows",
        " 1 train row(s) are also validation rows",
    ]


def test_separate_splits_are_not_warned_of(write_task: WriteTask, caplog: pytest.LogCaptureFixture) -> None:
    """Silence is the normal case, and repeated rows within a split are the user's business."""
    assert warnings_of(write_task(train=CAT * 2), caplog) == []


def test_only_the_splits_that_are_wanted_are_read(write_task: WriteTask) -> None:
    """Of the others it is known where they are; they may be huge, or broken."""
    task = Task.from_file(write_task(train="not JSON\n"), splits=("test",))
    assert (len(task.train), len(task.validation), len(task.test)) == (0, 0, 4)
    assert [example.input for example, _ in task.sources["validation"].examples()] == [
        f"validation {number} {sound}" for number, sound in enumerate(["meow", "woof", "meow", "woof"])
    ]


def test_rows_of_a_common_file_are_found_by_their_split(tmp_path: Path) -> None:
    """One source per split, the same file behind each."""
    (tmp_path / "all.csv").write_text("input,answer,split\nmeow,cat,dev\nwoof,dog,test\n")
    (tmp_path / "task.toml").write_text(
        'name = "animals"\nlabels = ["cat", "dog"]\nprompt = "?"\n[data]\nfile = "all.csv"\n'
    )
    sources = Task.from_file(tmp_path / "task.toml", splits=()).sources
    found = {split: [example.input for example, _ in source.examples()] for split, source in sources.items()}
    assert found == {"train": [], "validation": ["meow"], "test": ["woof"]}


def test_an_empty_data_file_is_named(write_task: WriteTask) -> None:
    """An empty split is a mistake, not a task without rows."""
    assert (
        error_of(write_task(validation=""))
        == "validation.jsonl: expected at least one row, got an empty file."
    )


def test_a_data_file_that_is_not_there_is_named(write_task: WriteTask) -> None:
    """The path is relative to the task file."""
    path = write_task()
    (path.parent / "test.jsonl").unlink()
    assert (
        error_of(path)
        == "test.jsonl: no such file: check the path (those in a task file are relative to it)."
    )
