"""Tests of data frames, series and datasets as texts, rows and results."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import BatchEvaluator, Classifier, Task, optimize
from calibrant.cascade import Cascade
from calibrant.core import CalibrantError, ConfigurationError, DataError, Limits, StateError
from calibrant.core._frames import answering_model
from calibrant.testing import FakeClient

LABELS = ["cat", "dog"]
TEXTS = ["a meow", "a bark", "another meow"]
ANSWERS = ["cat", "dog", "cat"]
ADDED = ["label", "confidence", "decision", "outcome", "provider", "cost"]
ODD = ["z", "a", "z"]  # an index that repeats itself and is not sorted


def model() -> FakeClient:
    """Return a model that knows both animals."""
    return FakeClient(LABELS, {"meow": ("cat", 0.9), "bark": ("dog", 0.8)}, field="label")


def classifier() -> Classifier:
    """Return a classifier that knows both animals."""
    return Classifier(model=model(), labels=LABELS, field="label")


def pandas_frame(**columns: Any) -> Any:
    """Return a frame of pandas with an odd index."""
    pd = pytest.importorskip("pandas")

    return pd.DataFrame(columns or {"note": TEXTS, "label": ANSWERS}, index=ODD)


def polars_frame() -> Any:
    """Return a frame of polars."""
    pl = pytest.importorskip("polars")

    return pl.DataFrame({"note": TEXTS, "label": ANSWERS})


def dataset(**columns: Any) -> Any:
    """Return a Hugging Face dataset whose labels are numbers with names."""
    datasets = pytest.importorskip("datasets")

    names = datasets.Features({"note": datasets.Value("string"), "label": datasets.ClassLabel(names=LABELS)})
    return datasets.Dataset.from_dict(columns or {"note": TEXTS, "label": [0, 1, 0]}, features=names)


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": pandas_frame,
    "polars": polars_frame,
    "pyarrow": lambda: polars_frame().to_arrow(),
    "dataset": dataset,
}


def arrow_strings() -> Any:
    """Return a series of pandas over strings of pyarrow."""
    pd = pytest.importorskip("pandas")
    pa = pytest.importorskip("pyarrow")

    return pandas_frame()["note"].astype(pd.ArrowDtype(pa.string()))


def polars_enum() -> Any:
    """Return a series of polars over an enumeration."""
    pl = pytest.importorskip("polars")

    return pl.Series(TEXTS, dtype=pl.Enum(TEXTS))


@pytest.mark.parametrize(
    "texts",
    [
        lambda: np.array(TEXTS),
        lambda: np.array(TEXTS).reshape(-1, 1),
        lambda: pandas_frame()["note"],
        lambda: pandas_frame()["note"].astype("category"),
        lambda: pandas_frame()["note"].astype(object),
        lambda: pandas_frame()[["note"]],
        arrow_strings,
        polars_enum,
        lambda: polars_frame().to_arrow()["note"],
        lambda: dataset()["note"],
    ],
)
def test_texts_come_in_any_column(texts: Callable[[], Any]) -> None:
    """Arrays, series of every kind of text, and columns of a dataset are classified as a list is."""
    assert [one.label for one in classifier().classify_many(texts())] == ANSWERS


@pytest.mark.parametrize("kind", FRAMES)
def test_labelled_frames_are_of_the_same_kind(kind: str) -> None:
    """A frame comes back with its own columns and index, and the answers beside them, by position."""
    frame = FRAMES[kind]()
    labelled = classifier().classify_many(frame, text="note")
    assert type(labelled) is type(frame)
    names = getattr(labelled, "column_names", None) or list(labelled.columns)
    assert names == ["note", "label", "calibrant_label", *ADDED[1:]]
    column = labelled["calibrant_label"]
    assert list(column.to_pylist() if kind == "pyarrow" else column) == ANSWERS
    if kind == "pandas":
        assert list(labelled.index) == ODD
        assert labelled["confidence"].tolist() == pytest.approx([0.9, 0.8, 0.9])


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_are_evaluated_and_labelled(kind: str, tmp_path: Path) -> None:
    """An evaluator takes the columns of a frame; a missing text is not asked about, and files hold every column."""
    frame = FRAMES[kind]()
    evaluator = BatchEvaluator(classifier())
    evaluated = evaluator.evaluate(frame, text="note", label="label")
    assert evaluated.metrics.accuracy.estimate == 1
    assert type(evaluated.frame) is type(frame)
    result = evaluator.label(frame, text="note", out=tmp_path, file_format="csv")
    assert result.frame.shape[1] == 8
    assert (tmp_path / "labels.csv").read_text().startswith("note,label,calibrant_label,confidence")
    whole = evaluator.label(frame, text="note", distribution=True).frame["probabilities"]
    shares = [json.loads(text) for text in (whole.to_pylist() if kind == "pyarrow" else whole)]
    assert [max(found, key=found.get) for found in shares] == ANSWERS


def test_a_missing_text_is_not_asked_about(tmp_path: Path) -> None:
    """Of a frame to be labelled, a row without a text keeps its place and its index; missing values stay missing."""
    frame = pandas_frame(note=["a meow", None, "a bark"], price=[1.5, float("nan"), 2])
    labelled = BatchEvaluator(classifier()).label(frame, text="note", out=tmp_path).frame
    assert '{"note": null, "price": null, "label": null' in (tmp_path / "labels.jsonl").read_text()
    assert labelled["outcome"].tolist() == ["ok", "no text", "ok"]
    assert list(labelled.index) == ODD


@pytest.mark.parametrize("kind", FRAMES)
def test_rows_without_an_answer_are_null(kind: str) -> None:
    """A frame whose labelling ends early comes back whole."""
    evaluator = BatchEvaluator(classifier(), limits=Limits(max_requests=1, concurrency=1))
    column = evaluator.label(FRAMES[kind](), text="note").frame["calibrant_label"]
    found = column.to_pylist() if kind == "pyarrow" else list(column)
    assert [one if one == "cat" else None for one in found] == ["cat", None, None]


@pytest.mark.parametrize("out", [False, True], ids=["memory", "directory"])
def test_results_become_frames_of_pandas(out: bool, tmp_path: Path) -> None:
    """A result has a row for each that was answered, with the index of the frame, from memory or from files."""
    evaluator = BatchEvaluator(classifier())
    directory = tmp_path / "run" if out else None
    result = evaluator.evaluate(pandas_frame(), text="note", label="label", out=directory)
    rows = result.to_pandas(distribution=True)
    assert list(rows.index) == ODD
    assert rows["input"].tolist() == TEXTS
    assert rows["correct"].all()
    assert rows["probability_cat"].tolist() == pytest.approx([0.9, 0.2, 0.9])


def test_rows_that_are_gone_are_no_empty_frame(tmp_path: Path) -> None:
    """A result whose directory was moved raises StateError."""
    result = BatchEvaluator(classifier()).evaluate(
        pandas_frame(), text="note", label="label", out=tmp_path / "run"
    )
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(StateError, match="expected the run's rows, got none"):
        result.to_pandas()


def test_rows_are_paired_by_position() -> None:
    """A head is learned from series with different indexes as from lists."""
    texts, answers = TEXTS * 20, ANSWERS * 20
    pd = pytest.importorskip("pandas")

    given = pd.Series(texts, index=range(60, 0, -1)), pd.Series(answers, dtype="category")
    found = classifier().fit(*given).head
    wanted = classifier().fit(texts, answers).head
    assert found is not None
    assert wanted is not None
    assert found.describe() == wanted.describe()


def lazy() -> Any:
    """Return a lazy frame."""
    return polars_frame().lazy()


def all_splits() -> Any:
    """Return a dataset with its splits."""
    datasets = pytest.importorskip("datasets")

    return datasets.DatasetDict(train=dataset())


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "missing": (
        lambda: classifier().classify_many(pandas_frame(note=["a", None, float("nan")])["note"]),
        r"none in 2 of 3, first at position 1 \(index 'a'\), position 2 \(index 'z'\): drop",
    ),
    "whole numbers as an index": (
        lambda: classifier().classify_many(
            pandas_frame(note=["a", None, "b"], at=[5, 6, 7]).set_index("at")["note"]
        ),
        r"none in 1 of 3, first at position 1 \(index 6\): drop",
    ),
    "blank": (
        lambda: classifier().classify_many(pandas_frame(note=["a", " ", "b"]), text="note"),
        r"column 'note', got none in 1 of 3, first at position 1 \(index 'a'\)",
    ),
    "lists": (
        lambda: classifier().classify_many(pandas_frame(note=["a", ["b", "c"], "d"]), text="note"),
        r"got \['b', 'c'\] \(list\) at position 1 \(index 'a'\): write each value as JSON, as json.dumps does",
    ),
    "number": (
        lambda: Task.from_frame(pandas_frame(note=TEXTS, stars=[1, 2.5, 1]), text="note", label="stars"),
        r"column 'stars', got 2.5 \(float\) at position 1",
    ),
    "no such column": (
        lambda: classifier().classify_many(polars_frame(), text="text"),
        "Expected a column 'text', got a frame with the columns 'note', 'label'",
    ),
    "several columns": (
        lambda: classifier().classify_many(pandas_frame()),
        "Expected one column of texts, got a frame with the columns 'note', 'label'",
    ),
    "one text": (lambda: classifier().classify_many("a meow"), "got one text: pass a list"),
    "lazy": (lambda: classifier().classify_many(lazy(), text="note"), r"call its collect\(\) first"),
    "splits": (lambda: classifier().classify_many(all_splits(), text="note"), "got all: train"),
    "doubled names": (
        lambda: classifier().classify_many(pandas_frame().iloc[:, [0, 0]], text="note"),
        "distinct names of columns",
    ),
    "prefix taken": (
        lambda: classifier().classify_many(
            pandas_frame(note=TEXTS, label=TEXTS, calibrant_label=TEXTS), text="note"
        ),
        "'label' and 'calibrant_label' are both there",
    ),
    "file": (
        lambda: optimize("rows.csv", text="note", label="label", model=model()),
        r"a file of rows is a frame once it is read, as by pandas\.read_csv",
    ),
    "empty": (
        lambda: Task.from_frame(polars_frame().head(0), text="note", label="label"),
        "got an empty frame",
    ),
    "free text": (
        lambda: Task.from_frame(wide(40), text="note", label="id"),
        "40 different ones in 40 rows",
    ),
    "no columns": (lambda: optimize(pandas_frame()), "add text= and label="),
    "evaluated without columns": (
        lambda: BatchEvaluator(classifier()).evaluate(pandas_frame()),
        r"name the columns with text= and label=",
    ),
}


def wide(n: int) -> Any:
    """Return a frame of polars whose column ``id`` repeats nothing."""
    pl = pytest.importorskip("polars")

    return pl.DataFrame({"note": [f"meow {k}" for k in range(n)], "id": [f"row {k}" for k in range(n)]})


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_frames_are_refused(case: str) -> None:
    """A message names the column, the rows by position and index, and what to do."""
    call, message = REFUSED[case]
    with pytest.raises((ConfigurationError, DataError), match=message):
        call()


def test_a_frame_that_was_labelled_twice_costs_no_call() -> None:
    """Where the columns of the answers are taken, nothing is asked: their answers would be lost."""
    fake = FakeClient(["cat", "dog"], {})
    asked = Classifier(model=fake, labels=["cat", "dog"], field="category")
    frame = pandas_frame(note=TEXTS, label=ANSWERS, calibrant_label=ANSWERS)
    evaluator = BatchEvaluator(asked)
    for call in (
        lambda: asked.classify_many(frame, text="note"),
        lambda: evaluator.label(frame, text="note"),
        lambda: evaluator.evaluate(frame, text="note", label="label"),
    ):
        with pytest.raises(ConfigurationError, match="both there: rename one"):
            call()
    assert fake.requests == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas, a frame of it is refused with the command that installs it."""
    result = BatchEvaluator(classifier()).evaluate(dataset(), text="note", label="label")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CalibrantError, match="run pip install pandas"):
        result.to_pandas()


def test_a_frame_becomes_a_task(caplog: pytest.LogCaptureFixture) -> None:
    """Rows are divided by text, whatever their order, equal texts together, each label in the same shares."""
    pd = pytest.importorskip("pandas")

    texts = [f"{'meow' if n % 4 else 'bark'} {n // 2 * 2}" for n in range(400)]
    answers = [
        ("Cat", "cat ", "cat", "cat")[n % 4] if "meow" in text else "dog" for n, text in enumerate(texts)
    ]
    frame = pd.DataFrame({"note": [*texts, "a hiss"], "kind": [*answers, None]})
    task = Task.from_frame(frame, text="note", label="kind")
    assert task.labels.labels == ("cat", "dog")
    assert "1 row of the frame has no label and is left out" in caplog.text
    splits = task.train, task.validation, task.test
    found = [{row.input for row in rows} for rows in splits]
    assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]
    shares = [Counter(row.answer for row in rows) for rows in splits]
    for label, rows in Counter({"cat": 300, "dog": 100}).items():
        assert [count[label] / rows for count in shares] == pytest.approx([0.4, 0.2, 0.4], abs=0.05)
    again = Task.from_frame(frame.sample(frac=1, random_state=0), text="note", label="kind")
    assert {row.input for row in again.train} == found[0]


def test_whole_numbers_are_labels() -> None:
    """Whole numbers, also beside missing ones, and truth values are labels, as texts."""
    for values, labels in (([1, 10, None], ("1", "10")), ([True, False, True], ("false", "true"))):
        task = Task.from_frame(pandas_frame(note=TEXTS, stars=values), text="note", label="stars")
        assert task.labels.labels == labels


def test_a_frame_is_searched() -> None:
    """A search takes a dataset; the names of its labels stand in their own order, and rows without one are left out."""
    pytest.importorskip("pandas")
    given = dataset(
        note=[f"{TEXTS[n % 2]} {n}" for n in range(60)], label=[n % 2 if n else -1 for n in range(60)]
    )
    result = optimize(given, text="note", label="label", model=model(), max_metric_calls=100)
    assert result.seed_prompt.accuracy is not None
    assert result.seed_prompt.accuracy.estimate == 1
    assert "one of: cat, dog." in result.seed_prompt.prompt
    prompts = result.to_pandas()
    assert prompts["chosen"].sum() == 1
    assert prompts["test_accuracy"][0] == 1


def test_a_frame_is_searched_as_the_classifier_asks() -> None:
    """Labels in their order, prompt, field and template of a classifier are those of the search and of its result."""
    pl = pytest.importorskip("polars")

    rows = [(f"{TEXTS[n % 2]} {n}", ANSWERS[n % 2]) for n in range(60)]
    frame = pl.DataFrame(rows, schema=["note", "label"], orient="row")
    asked = Classifier(
        model=FakeClient(LABELS, {"meow": "cat", "bark": "dog"}, field="animal"),
        labels=LABELS[::-1],
        field="animal",
        prompt="Who speaks?",
        user_template="They say {input}.",
    )
    result = optimize(frame, text="note", label="label", model=asked, max_metric_calls=100)
    assert result.seed_prompt.prompt == "Who speaks?"
    assert result.seed_prompt.accuracy is not None
    assert result.seed_prompt.accuracy.estimate == 1
    assert result.tuned is not None
    assert (result.tuned.labels.labels, result.tuned.field) == (tuple(LABELS[::-1]), "animal")
    with pytest.raises(
        ConfigurationError, match=r"\['cat', 'dog'\], in their order, got one over \['dog', 'cat'\]"
    ):
        optimize(frame, text="note", label="label", labels=LABELS, model=asked)


def test_the_provider_is_the_model_whose_answer_was_taken() -> None:
    """Where two models of a cascade agree and neither is sure enough, the surer one is named."""
    clients = [
        FakeClient(LABELS, {}, default={"cat": sure, "dog": 1.0 - sure}, field="label", name=name)
        for name, sure in (("first", 0.8), ("second", 0.6))
    ]
    models = [Classifier(model=client, labels=LABELS, field="label") for client in clients]
    cascade = Cascade(models, method="label_probability", threshold=0.9)
    labelled = BatchEvaluator(cascade).label(pandas_frame(note=TEXTS), text="note")
    assert set(labelled.frame["provider"]) == {"first"}
    assert answering_model(cascade.classify("a meow")) == "first"
