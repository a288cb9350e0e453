"""Tests of task files in TOML, and of the messages about their mistakes."""

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
from calibrant.scoring import BrierScoring, LinearBlendScoring, LogScoring, SigmoidScoring, ThresholdScoring

WriteTask = Callable[..., Path]

HEAD = 'name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\n'
FIELDS = """\
name = "n"
prompt = "p"
[[fields]]
name = "animal"
labels = ["cat", "dog"]
[[fields]]
name = "size"
labels = ["small", "large"]
"""
CAT = '{"input": "meow", "answer": "cat"}\n'
TABLE = """\
text,label,part
meow,CAT,train
woof,dog,train
meow meow,cat,{value}
woof woof,dog,test
"""


def toml(folder: Path, text: str, **files: str) -> Path:
    """Write a task file and the named files; ``_`` in a name stands for the dot."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    path = folder / "task.toml"
    path.write_text(text)
    return path


def error_of(path: Path) -> str:
    """Return the message of the error that a task file raises, with a shortened path."""
    with pytest.raises((ConfigurationError, DataError)) as caught:
        Task.from_file(path)
    return str(caught.value).replace(f"{path.parent}/", "")


# --- what is read -------------------------------------------------------------------------------


def test_values_of_fields_are_described_by_field(tmp_path: Path) -> None:
    """A description names field and value, as they are spelled or not."""
    words = '[label_descriptions]\n"Size=LARGE" = "A whale."\n'
    task = Task.from_file(toml(tmp_path, FIELDS + words))
    assert task.label_descriptions == {"size=large": "A whale."}


@pytest.mark.parametrize(
    ("lines", "labels"),
    [
        ("", LabelSet(["cat", "dog>puppy"])),
        ('structure = "ordinal"\n', OrdinalLabels(["cat", "dog>puppy"])),
        ('structure = "hierarchical"\nseparator = ">"\n', HierarchicalLabels(["cat", "dog>puppy"], ">")),
    ],
)
def test_labels_have_the_named_structure(tmp_path: Path, lines: str, labels: LabelSet) -> None:
    """Labels are flat unless the file names a structure; all other keys have defaults."""
    path = toml(tmp_path, f'name = "n"\nlabels = ["cat", "dog>puppy"]\nprompt = "p"\n{lines}')
    task = Task.from_file(str(path))
    assert task.labels == labels
    assert (task.field, task.user_template) == ("label", None)
    assert task.train == task.validation == task.test == ()
    assert task.model.name == "local/smollm2-135m"
    assert (task.scoring.strategy, task.scoring.high, task.scoring.low) == ("linear", 0.99, 0.9)


def test_task_files_describe_whole_tasks(write_task: WriteTask) -> None:
    """Every key of the file is in the task; data paths are relative to the file."""
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


def test_task_files_hold_prompts_and_descriptions(tmp_path: Path) -> None:
    """A task file holds prompts, user template and descriptions by label."""
    path = toml(tmp_path, HEAD + 'other_prompts = ["q", "r"]\n[label_descriptions]\nCAT = "It meows."\n')
    task = Task.from_file(path)
    assert (task.other_prompts, task.label_descriptions) == (("q", "r"), {"cat": "It meows."})


def test_head_files_are_beside_the_task(write_task: WriteTask) -> None:
    """A head's path is relative to the task file, and a search fits a head by default."""
    assert Task.from_file(write_task()).head.model_dump() == {"file": None, "fit": "auto", "embeddings": None}
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
        ('embeddings = ""', ":2: head.embeddings"),
        ('file = "h.json"\n[[cascade.models]]\nname = "a"', ":2: expected no head beside [cascade]"),
        (
            'file = "h.json"\n[[routing.providers]]\nname = "openai/a"',
            ":2: expected no head beside [routing]",
        ),
    ],
)
def test_head_mistakes_name_their_line(write_task: WriteTask, lines: str, said: str) -> None:
    """Mistakes in the section of a head are errors with their line."""
    path = write_task(extra=f"[head]\n{lines}\n")
    first = path.read_text().splitlines().index("[head]")
    number, _, message = said.removeprefix(":").partition(":")
    assert f"task.toml:{first + int(number)}:{message}" in error_of(path)


@pytest.mark.parametrize("value", ["validation", "val", "dev"])
def test_one_file_may_hold_all_splits(tmp_path: Path, value: str) -> None:
    """One file holds all splits by a column, under any usual name of validation."""
    columns = 'input_column = "text"\nanswer_column = "label"\nsplit_column = "part"\n'
    path = toml(tmp_path, f'{HEAD}[data]\nfile = "all.csv"\n{columns}', all_csv=TABLE.format(value=value))
    task = Task.from_file(path)
    assert task.train == (Example(input="meow", answer="cat"), Example(input="woof", answer="dog"))
    assert task.validation == (Example(input="meow meow", answer="cat"),)
    assert task.test == (Example(input="woof woof", answer="dog"),)
    assert [example.input for example, _ in task.sources["validation"].examples()] == ["meow meow"]


def test_own_files_win_over_common_ones(tmp_path: Path) -> None:
    """A split with its own file is not read from the common file."""
    path = toml(
        tmp_path,
        HEAD + '[data]\nfile = "all.csv"\ntest = "new.csv"\n',
        all_csv="input,answer,split\na,cat,train\nb,dog,test\n",
        new_csv="input,answer\nc,cat\n",
    )
    task = Task.from_file(path)
    rows = [[row.input for row in split] for split in (task.train, task.validation, task.test)]
    assert rows == [["a"], [], ["c"]]


def test_windows_files_are_read(write_task: WriteTask) -> None:
    """A byte order mark and Windows line ends are accepted."""
    plain = write_task()
    toml = b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n")
    assert Task.from_file(write_task(toml=toml)).name == "animals"


def test_the_example_task_is_valid() -> None:
    """The example has 8 labels and three splits that share no row."""
    task = Task.from_file(Path(__file__).parents[2] / "examples" / "transactions" / "task.toml")
    assert len(task.labels) == 8
    inputs = [row.input for row in (*task.train, *task.validation, *task.test)]
    assert len(inputs) >= 390
    assert len(set(inputs)) == len(inputs)


# --- bad task files -----------------------------------------------------------------------------

ROOT_KEYS = (
    "name, labels, structure, separator, multi_label, fields, prompt, other_prompts, label_descriptions, field, "
    "user_template, data, model, scoring, calibration, demonstrations, head, cascade, routing"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + 'promt = "q"\n', f"task.toml:4: unknown key 'promt': expected one of {ROOT_KEYS}."),
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
            FIELDS + '[label_descriptions]\n"size=tiny" = "A mouse."\n',
            "task.toml:9: expected label_descriptions of the labels 'animal=cat', 'animal=dog', 'size=small', "
            "'size=large', got one of 'size=tiny': correct it.",
        ),
        pytest.param(
            HEAD + 'data = { train = "t.jsonl", tset = "x" }\n',
            "task.toml:4: unknown key 'data.tset': expected one of file, train, validation, test, "
            "input_column, answer_column, split_column, context_column, id_column, answer_separator, split, encoding, "
            "separator, header.",
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
        (
            'name = "n"\nlabels = "cat"\nprompt = "p"\n',
            "task.toml:2: labels: Input should be a valid list, got 'cat'.",
        ),
        (
            HEAD + "[model]\n\nconcurrency = 0\n",
            "task.toml:6: model.concurrency: Input should be greater than or equal to 1, got 0.",
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
            HEAD + 'structure = "hierarchical"\nseparator = ""\n',
            "task.toml:5: Expected a separator of at least one character, got '': name what stands between levels.",
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
    ],
)
def test_wrong_keys_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    """Every wrong key is an error with its line and a remedy."""
    assert message in error_of(toml(tmp_path, text)).split("\n")


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
def test_strategies_take_their_own_parameters(tmp_path: Path, name: str, strategy: Any) -> None:
    """Parameters of strategies listed in core equal those of the strategies."""
    parameters = {field.name: field.default for field in dataclasses.fields(strategy)}
    lines = "".join(f"{key} = {value}\n" for key, value in parameters.items())
    path = toml(tmp_path, f'{HEAD}[scoring]\nstrategy = "{name}"\n[scoring.parameters]\n{lines}')
    assert Task.from_file(path).scoring.parameters == parameters
    path.write_text(f"{path.read_text()}other = 1\n")
    assert f"strategy '{name}' has no parameter 'other'" in error_of(path)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """The error has a line for each mistake."""
    path = toml(tmp_path, 'name = 5\nlabels = ["a", "b"]\nx = 1\n')
    assert [line.split(":")[1] for line in error_of(path).split("\n")] == ["1", "1", "3"]


@pytest.mark.parametrize(
    ("text", "line"),
    [(HEAD + "field = \n", 4), (HEAD + 'name = "twice"\n', 4), ('name = "open\n', 1), ("a = [\n1,\n", 3)],
)
def test_broken_toml_names_the_line(tmp_path: Path, text: str, line: int) -> None:
    """Broken TOML raises an error with its line."""
    assert error_of(toml(tmp_path, text)).startswith(f"task.toml:{line}: not valid TOML: ")


def test_deeply_nested_toml_is_an_error(write_task: WriteTask) -> None:
    """TOML with hundreds of nested arrays raises ConfigurationError."""
    path = write_task(extra=f"x = {'[' * 5000}{']' * 5000}\n")
    assert "expected tables and arrays a few levels deep" in error_of(path)


def test_missing_task_files_are_explained(tmp_path: Path) -> None:
    """A missing file and a directory raise ConfigurationError."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(
            ConfigurationError, match="no such task file: expected a TOML file with name, labels"
        ):
            Task.from_file(path)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_task_files_must_be_utf8(tmp_path: Path, mark: bytes) -> None:
    """A task file outside UTF-8 raises an error with line, byte and remedy."""
    path = tmp_path / "task.toml"
    path.write_bytes(mark + b'name = "n"\nprompt = "caf\xe9"\n')
    assert error_of(path) == "task.toml:2: expected UTF-8 text, got the byte 0xe9: save the file as UTF-8."


# --- bad rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            '\n{"input": "moo", "answer": "cow", "split": "test"}',
            "2: answer 'cow' is not one of the 2 labels (cat, dog): correct the row or add the label.",
        ),
        ('{"input": "moo", "answer": "cat", "split": "rest"}', "1: expected 'split' to be one of train, "),
        (CAT, "1: expected text in 'split', got nothing (columns here: input, answer): write split = [0.4,"),
        ("", " expected at least one row, got an empty file."),
    ],
)
def test_wrong_rows_name_file_and_line(tmp_path: Path, rows: str, message: str) -> None:
    """A wrong answer, a wrong or missing split, and an empty file are errors with their place."""
    path = toml(tmp_path, HEAD + '[data]\nfile = "all.jsonl"\n', all_jsonl=rows)
    assert error_of(path).startswith(f"all.jsonl:{message}")


# --- rows in two splits -------------------------------------------------------------------------


def warnings_of(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of loading a task."""
    with caplog.at_level(logging.WARNING, logger="calibrant"):
        Task.from_file(path)
    return [record.getMessage().replace(f"{path.parent}/", "") for record in caplog.records]


def test_shared_rows_are_warned_of(write_task: WriteTask, caplog: pytest.LogCaptureFixture) -> None:
    """Rows shared by any two splits are warned of, whatever their case and spaces."""
    row = '{"input": " TRAIN 0 Meow", "answer": "cat"}\n'
    assert warnings_of(write_task(validation=row, test=row), caplog) == [
        f"task.toml: 1 {one} row is also among the {other} rows, for example 'train 0 meow': remove such rows "
        "from one of the two."
        for one, other in (("train", "test"), ("validation", "test"), ("train", "validation"))
    ]


def test_separate_splits_raise_no_warning(write_task: WriteTask, caplog: pytest.LogCaptureFixture) -> None:
    """Repeated rows within one split raise no warning."""
    assert warnings_of(write_task(train=CAT * 2), caplog) == []


def test_only_wanted_splits_are_read(write_task: WriteTask) -> None:
    """Splits that are not wanted are not read, and their sources are kept."""
    task = Task.from_file(write_task(train="not JSON\n"), splits=("test",))
    assert (len(task.train), len(task.validation), len(task.test)) == (0, 0, 4)
    assert [example.input for example, _ in task.sources["validation"].examples()] == [
        f"validation {number} {sound}" for number, sound in enumerate(["meow", "woof", "meow", "woof"])
    ]


def test_missing_data_files_are_named(write_task: WriteTask) -> None:
    """A missing data file raises an error that says paths are relative to the task file."""
    path = write_task()
    (path.parent / "test.jsonl").unlink()
    assert (
        error_of(path)
        == "test.jsonl: no such file: check the path (those in a task file are relative to it)."
    )
