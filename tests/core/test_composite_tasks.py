"""Tests of task files and rows whose answers hold several labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from calibrant.core import (
    DataError,
    Example,
    Field,
    FieldLabels,
    Fingerprint,
    HierarchicalLabels,
    LabelSet,
    LogprobSpace,
    MultiLabels,
    OrdinalLabels,
    Prediction,
    StateError,
    Task,
)
from calibrant.testing import FakeClient
from calibrant.tuned import RecordedTask, Tuned
from command_line import command, done
from task_files import mistakes

MULTI = 'name = "n"\nlabels = ["Bills", "Food", "Travel"]\nmulti_label = true\nprompt = "p"\n'
FIELDS = """name = "n"
prompt = "p"

[[fields]]
name = "category"
labels = ["Bills", "Food"]

[[fields]]
name = "urgency"
labels = ["low", "high"]
path = "result.urgency"
column = "how urgent"
"""
WANTED = '{"category": "Bills", "urgency": "high"}'


def task_with(folder: Path, text: str, name: str, content: str | bytes) -> Path:
    """Write a task whose test rows are in the file `name`."""
    data = content if isinstance(content, bytes) else content.encode()
    (folder / name).write_bytes(data)
    path = folder / "task.toml"
    path.write_text(f'{text}\n[data]\ntest = "{name}"\n')
    return path


def answers(path: Path) -> list[str]:
    """Return the true answers of a task's test rows."""
    return [example.answer for example in Task.from_file(path).test]


def test_a_file_declares_several_labels(tmp_path: Path) -> None:
    """The path of the array is "labels" unless the file names another path."""
    (tmp_path / "task.toml").write_text(MULTI)
    task = Task.from_file(tmp_path / "task.toml")
    assert type(task.labels) is MultiLabels
    assert task.labels.labels == ("Bills", "Food", "Travel")
    assert task.field == "labels"
    (tmp_path / "task.toml").write_text('field = "results[].topics"\n' + MULTI)
    assert Task.from_file(tmp_path / "task.toml").field == "results[].topics"


def test_a_file_declares_several_fields(tmp_path: Path) -> None:
    """Each field has its own labels; its path is its name unless the file names another path."""
    (tmp_path / "task.toml").write_text(FIELDS)
    labels = Task.from_file(tmp_path / "task.toml").labels
    assert isinstance(labels, FieldLabels)
    assert [(field.name, field.path, field.labels.labels) for field in labels.fields] == [
        ("category", "category", ("Bills", "Food")),
        ("urgency", "result.urgency", ("low", "high")),
    ]


def test_fields_have_structures_of_their_own(tmp_path: Path) -> None:
    """Each field has its own structure, and the weights of its aspects add up to 1."""
    text = FIELDS.replace('["low", "high"]', '["low", "middle", "high"]\nstructure = "ordinal"')
    text = text.replace(
        '["Bills", "Food"]', '["Bills:Gas", "Food"]\nstructure = "hierarchical"\nseparator = ":"'
    )
    (tmp_path / "task.toml").write_text(text)
    labels = Task.from_file(tmp_path / "task.toml").labels
    assert isinstance(labels, FieldLabels)
    assert [type(field.labels) for field in labels.fields] == [HierarchicalLabels, OrdinalLabels]
    answer = labels.answer_of({"category": "Food", "urgency": "low"})
    aspects = labels.aspects(
        Prediction(label=answer), labels.answer_of({"category": "Food", "urgency": "high"})
    )
    assert [(aspect.name, aspect.weight) for aspect in aspects if aspect.name.startswith("urgency: ")] == [
        ("urgency: above low", 0.5),
        ("urgency: above middle", 0.5),
    ]
    assert sum(aspect.weight for aspect in aspects) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'name = "n"\nprompt = "p"\n',
            "task.toml:1: missing key 'labels': add it, or [[fields]] where an answer holds several labels.",
        ),
        pytest.param(
            'labels = ["a", "b"]\n' + FIELDS,
            "task.toml:1: expected no 'labels' beside [[fields]], as every field has labels of its own: remove one "
            "of them.",
        ),
        pytest.param(
            "multi_label = true\n" + FIELDS,
            "task.toml:1: expected no 'multi_label' beside [[fields]], as an answer holds either one label for each "
            "field, or any number of labels: remove one of them.",
        ),
        pytest.param(
            FIELDS.partition('\n[[fields]]\nname = "urgency')[0],
            "task.toml:4: expected at least two [[fields]], got 1: for a single label set labels and field at the "
            "top instead.",
        ),
        pytest.param(
            FIELDS.replace('name = "urgency"', 'name = "Category"'),
            "task.toml:9: expected names that differ, got 'category' for the fields 'category' and 'Category': "
            "change one.",
        ),
        (
            FIELDS.replace('name = "category"', 'name = "kind [x]"'),
            "task.toml:5: expected a path beside a name that is none, got 'kind [x]': add it, or change the name.",
        ),
        pytest.param(
            FIELDS.replace("result.urgency", "category"),
            "task.toml:11: expected paths that differ, got 'category' for the fields 'category' and 'urgency': "
            "change one.",
        ),
        (
            FIELDS.replace("result.urgency", "category.urgency"),
            "task.toml:11: expected paths beside each other, got 'category.urgency' inside 'category': change one.",
        ),
        (
            'structure = "ordinal"\n' + MULTI,
            "task.toml:1: expected no structure beside multi_label: a label is in the set or not; leave it out.",
        ),
        (
            FIELDS.replace('path = "result.urgency"', 'separator = ":"'),
            "task.toml:11: Expected a separator only for hierarchical labels, got ':' for flat ones: leave it out.",
        ),
        pytest.param(
            FIELDS.replace("result.urgency", "a..b"),
            "task.toml:11: fields.path: Input should be a JSON path, got 'a..b': name the keys, separated by dots, "
            "as in 'category', 'result.category' or 'results[].category'.",
        ),
        pytest.param(
            FIELDS.replace("column =", "colum ="),
            "task.toml:12: unknown key 'fields.colum': expected one of name, labels, structure, separator, path, "
            "column.",
        ),
        pytest.param(
            MULTI + '[head]\nfile = "head.json"\n',
            "task.toml:6: expected no head where an answer holds several labels: a head is one over one label set; "
            "leave it out.",
        ),
        pytest.param(
            MULTI + '[calibration]\nprior_correction = "batch"\n',
            "task.toml:6: expected no prior_correction where an answer holds several labels: it needs one "
            "distribution over one label set; leave it out.",
        ),
        pytest.param(
            FIELDS + '[data]\nanswer_separator = "|"\n',
            "task.toml:14: expected no 'answer_separator' without multi_label = true: an answer is not split; leave "
            "it out.",
        ),
    ],
)
def test_wrong_keys_name_line_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    """Each contradiction of keys is an error with its line and a remedy."""
    assert message in mistakes(tmp_path, text)


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ('["food", " Bills "]', '["Bills", "Food"]'),
        ("Food; bills", '["Bills", "Food"]'),
        ("Food", '["Food"]'),
        ("[]", "[]"),
        ('["Food", "Food"]', '["Food"]'),
    ],
)
def test_a_cell_holds_several_labels(tmp_path: Path, cell: str, wanted: str) -> None:
    """Labels in a cell are JSON text or separated by a sign; order and spelling do not matter."""
    quoted = cell.replace('"', '""')
    content = f'input,answer\ntext,"{quoted}"\n'
    assert answers(task_with(tmp_path, MULTI, "rows.csv", content)) == [wanted]


def test_the_separator_is_configurable(tmp_path: Path) -> None:
    """The file chooses the separator between labels."""
    path = task_with(tmp_path, MULTI, "rows.csv", "input,answer\ntext,Food|Travel\n")
    path.write_text(path.read_text() + 'answer_separator = "|"\n')
    assert answers(path) == ['["Food", "Travel"]']


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            '""',
            "expected labels, or [] where there are none, in 'answer', got an empty text (columns here: input, ",
        ),
        (
            "5",
            "expected labels, or [] where there are none, in 'answer', got 5 (columns here: input, answer).",
        ),
        (
            '["Food", "Fod"]',
            "answer '[\"Food\", \"Fod\"]' holds 'Fod', which is not one of the 3 labels (Bills, Food, Travel): correct",
        ),
        (
            '{"Food": true}',
            'answer \'{"Food": true}\' is no list of labels: write ["Bills", "Food"], and [] where there is none.',
        ),
    ],
)
def test_wrong_label_sets_name_their_line(tmp_path: Path, value: str, message: str) -> None:
    """A cell that is no set of labels raises DataError with its line; [] is the empty set."""
    rows = f'{{"input": "a", "answer": []}}\n{{"input": "b", "answer": {value}}}\n'
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: .*{re.escape(message)}"):
        answers(task_with(tmp_path, MULTI, "rows.jsonl", rows))


@pytest.mark.parametrize(
    "row",
    [
        {"input": "a", "answer": {"urgency": "HIGH", "category": "bills"}},
        {"input": "a", "answer": WANTED},
        {"input": "a", "category": "Bills", "how urgent": "high"},
        {"input": "a", "category": "Bills", "how urgent": "high", "answer": "Dear customer, we are sorry."},
        {"input": "a", "category": "shops", "answer": WANTED},
        {"input": "a", "category": None, "how urgent": None, "answer": WANTED},
    ],
)
def test_fields_have_columns_or_share_one(tmp_path: Path, row: dict[str, object]) -> None:
    """Columns of fields are read if a row has them all, and otherwise the whole answer."""
    assert answers(task_with(tmp_path, FIELDS, "rows.jsonl", json.dumps(row) + "\n")) == [WANTED]


def test_a_field_is_called_answer(tmp_path: Path) -> None:
    """The column "answer" belongs to a field of this name."""
    text = FIELDS.replace('name = "category"', 'name = "answer"')
    path = task_with(tmp_path, text, "rows.csv", "input,answer,how urgent\na,Bills,high\n")
    assert answers(path) == ['{"answer": "Bills", "urgency": "high"}']


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            '{"input": "a", "category": "Bills"}',
            "expected text in 'how urgent', got nothing (columns here: input, ",
        ),
        ('{"input": "a", "answer": {"category": "Bills"}}', "lacks the field 'urgency': add it."),
        (
            '{"input": "a", "answer": {"category": "Bills", "urgency": "hgh"}}',
            "has 'hgh' in 'urgency', which is not one of the 2 labels (low, high): correct the row or add the label.",
        ),
        (
            '{"input": "a", "answer": {"category": "Bills", "urgency": "low", "x": "y"}}',
            "has the field 'x', expected category, urgency: correct its name or leave it out.",
        ),
        (
            '{"input": "a", "answer": "Bills"}',
            'is no object of fields: write {"category": "Bills", "urgency": "low"}, or give every field a column.',
        ),
        ('{"input": "a", "answer": null}', "expected an object of labels in 'answer', got nothing"),
    ],
)
def test_wrong_fields_name_their_line(tmp_path: Path, row: str, message: str) -> None:
    """A wrong field raises DataError with line, field, and the expected and the given value."""
    with pytest.raises(DataError, match=rf"rows\.jsonl:1: .*{re.escape(message)}"):
        answers(task_with(tmp_path, FIELDS, "rows.jsonl", f"{row}\n"))


def test_parquet_holds_arrays_and_objects(tmp_path: Path) -> None:
    """Lists and structs of Parquet are read without JSON text."""
    fields = {"category": "Bills", "urgency": "high"}
    for text, cells, wanted in (
        (MULTI, [["Food", "Bills"], []], ['["Bills", "Food"]', "[]"]),
        (FIELDS, [fields], [WANTED]),
    ):
        rows = pa.table({"input": ["text"] * len(cells), "answer": cells})
        parquet.write_table(rows, tmp_path / "rows.parquet")
        content = (tmp_path / "rows.parquet").read_bytes()
        assert answers(task_with(tmp_path, text, "rows.parquet", content)) == wanted


def test_tasks_in_python_check_their_rows() -> None:
    """A task made in Python takes answers as JSON text, and other types raise DataError."""
    labels = MultiLabels(["Bills", "Food"])
    task = Task(name="n", labels=labels, prompt="p", test=[Example(input="a", answer='["food"]')])  # type: ignore[arg-type]
    assert task.test[0].answer == '["Food"]'
    with pytest.raises(DataError, match=r"got \['Food'\]: write its JSON text, as json.dumps does"):
        Example(input="a", answer=["Food"])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="an answer as text, got 3"):
        Example(input="a", answer=3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the input of an example as text, got None"):
        Example(input=None, answer="Food")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="test row 1: answer 'Food' is no list of labels"):
        Task(name="n", labels=labels, prompt="p", test=[Example(input="a", answer="Food")])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "labels",
    [
        LabelSet(["a", "b"]),
        MultiLabels(["a", "b", "c"]),
        FieldLabels(
            [
                Field(name="x", labels=LabelSet(["a", "b"])),
                Field(name="y", labels=LabelSet(["c", "d"]), path="r.y"),
            ]
        ),
    ],
)
def test_label_sets_survive_their_record(labels: LabelSet, tmp_path: Path) -> None:
    """A label set read from its record equals the first one, with type, order, names and paths."""
    task = Task(name="n", labels=labels, prompt="p")
    asked = Fingerprint(prompt="p", model="m", space=LogprobSpace.MASKED, labels=labels)
    again = Tuned(tasks=(RecordedTask(task=task),), fingerprint=asked).save(tmp_path / "bundle").labels
    assert type(again) is type(labels)
    assert again == labels
    assert again.record() == labels.record()


@pytest.mark.parametrize(
    "record",
    [
        None,
        {"multi_label": False, "labels": ["a", "b"]},
        {"fields": [{"name": "x"}]},
        {"structure": ["ordinal"], "labels": ["a", "b"]},
        {"structure": "ordinal", "labels": ["a", "b"], "separator": "/"},
        {"structure": "hierarchical", "labels": ["a/b", "b"]},
    ],
)
def test_altered_records_are_errors(record: object, write_task: Any, use_model: Any, tmp_path: Path) -> None:
    """A record that was altered by hand raises an error when the run is read."""
    use_model(FakeClient(["cat", "dog"], {}, default="cat"))
    done(command("evaluate")(write_task(), "--out", tmp_path / "run"))
    path = tmp_path / "run" / "task.json"
    settings = json.loads(path.read_text())
    settings["tasks"][0]["labels"] = record
    path.write_text(json.dumps(settings))
    with pytest.raises(StateError, match=r"task\.json: .*labels"):
        Tuned.from_run(tmp_path / "run")
