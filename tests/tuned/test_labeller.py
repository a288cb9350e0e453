"""Tests of labelling a Hugging Face dataset by its ``map``."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import ConfigurationError, StateError
from calibrant.evaluation import calibrate_predictions
from calibrant.runs import SavedRows
from calibrant.tuned import BatchLabeller, Tuned
from fault_server import FaultServer
from packed import packed

datasets = pytest.importorskip("datasets")

ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(40)]
ADDED = ["label", "confidence", "decision", "outcome", "provider", "cost"]


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    """Return a server of a model that knows both animals."""
    with FaultServer(["cat", "dog"]) as running:
        yield running


@pytest.fixture
def bundle(server: FaultServer, tmp_path: Path) -> Path:
    """Return the bundle of a model that is reached by HTTP."""
    packed(tmp_path, ROWS, server=server)
    return tmp_path / "bundle"


def dataset(**columns: Any) -> Any:
    """Return a dataset of texts."""
    return datasets.Dataset.from_dict(columns or {"note": [row["input"] for row in ROWS]})


def test_a_dataset_gets_the_answers_of_its_texts(bundle: Path) -> None:
    """Columns are added, with the label and confidence that the bundle gives one text at a time."""
    labelled = dataset().map(BatchLabeller(bundle=bundle, text="note"), batched=True, batch_size=16)
    with Tuned.load(bundle).open() as classifier:
        alone = [classifier.classify(row["input"]) for row in ROWS]
    assert labelled.column_names == ["note", *ADDED]
    assert labelled["label"][:] == [found.label for found in alone]
    assert labelled["confidence"][:] == pytest.approx([found.confidence for found in alone])
    assert set(labelled["outcome"]) == {"ok"}


def test_several_processes_open_the_bundle_each(bundle: Path) -> None:
    """With two processes the answers are those of one."""
    program = (
        "import sys, datasets; from calibrant.tuned import BatchLabeller; "
        "rows = datasets.Dataset.from_dict({'note': [f'{n} a ' + ('cat' if n % 3 else 'dog') for n in range(40)]}); "
        "labeller = BatchLabeller(bundle=sys.argv[1], text='note'); "
        "print(' '.join(rows.map(labeller, batched=True, batch_size=8, num_proc=2)['label']))"
    )
    done = subprocess.run(  # noqa: S603 (our own code; its processes talk by sockets of a file)
        [sys.executable, "-c", program, str(bundle)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.split() == ["cat" if n % 3 else "dog" for n in range(40)], done.stderr


def test_a_stream_is_labelled(bundle: Path) -> None:
    """A streamed dataset gets the same columns."""
    streamed = dataset().to_iterable_dataset().map(BatchLabeller(bundle=bundle, text="note"), batched=True)
    first = next(iter(streamed))
    assert (first["label"], first["outcome"]) == ("dog", "ok")


def test_rows_without_a_text_are_not_asked_about(bundle: Path) -> None:
    """Missing and blank texts get no answer, and keep their place."""
    labelled = BatchLabeller(bundle=bundle, text="note")({"note": [None, "a cat", " "]})
    assert labelled["label"] == [None, "cat", None]
    assert labelled["outcome"] == [None, "ok", None]


def test_a_first_batch_without_answers_maps_with_features(bundle: Path) -> None:
    """With the features of the new columns, a first batch of blank texts does not decide their types."""
    rows = dataset(note=["", " ", "a cat", "a dog"], label=[1, 2, 3, 4])
    labeller = BatchLabeller(bundle=bundle, text="note")
    labelled = rows.map(labeller, batched=True, batch_size=2, features=labeller.features(rows))
    assert labelled["calibrant_label"][:] == [None, None, "cat", "dog"]
    assert labelled["label"][:] == [1, 2, 3, 4]
    assert labelled.features["confidence"].dtype == labelled.features["cost"].dtype == "float64"


def test_own_columns_stay(bundle: Path) -> None:
    """A name that is taken gets a prefix."""
    labelled = dataset(note=["a cat"], label=["mine"]).map(
        BatchLabeller(bundle=bundle, text="note"), batched=True
    )
    assert labelled[0]["label"] == "mine"
    assert labelled[0]["calibrant_label"] == "cat"


def test_decisions_are_those_of_the_bundle(server: FaultServer, tmp_path: Path) -> None:
    """With a certificate asked for, each row is accepted or for review, as the bundle decides."""
    packed(tmp_path, ROWS, server=server)
    run = tmp_path / "run"
    calibrate_predictions(SavedRows.load(run), target_accuracy=0.5, delta=0.2).write(run)
    bundle = tmp_path / "decides"
    tuned = Tuned.from_run(run, task=tmp_path / "task.toml").save(bundle)
    texts = [row["input"] for row in ROWS]
    with tuned.open() as classifier:
        decided = tuned.decide_many(classifier.classify_many(texts))
    found = BatchLabeller(bundle=bundle, text="note")({"note": texts})
    assert found["decision"] == [decision.name for decision in decided]
    assert None not in found["decision"]
    assert found["confidence"] == pytest.approx([decision.final_confidence for decision in decided])


def test_the_state_is_the_bundle_and_no_model(bundle: Path, server: FaultServer, tmp_path: Path) -> None:
    """It pickles alike before and after its first batch, and otherwise once the bundle has changed."""
    labeller = BatchLabeller(bundle=bundle, text="note")
    before = pickle.dumps(labeller)
    labeller({"note": ["a cat"]})
    assert pickle.dumps(labeller) == before
    shutil.rmtree(bundle)
    other = tmp_path / "other"
    other.mkdir()
    packed(other, ROWS[:20], server=server).save(bundle)
    assert pickle.dumps(BatchLabeller(bundle=bundle, text="note")) != before


def test_wrong_input_is_refused(bundle: Path, tmp_path: Path) -> None:
    """Another column, a single row and a folder that is no bundle are refused with a remedy."""
    labeller = BatchLabeller(bundle=bundle, text="note")
    with pytest.raises(ConfigurationError, match="Expected a column 'note', got 'text'"):
        labeller({"text": ["a cat"]})
    with pytest.raises(ConfigurationError, match="batched=True"):
        labeller({"note": "a cat"})
    with pytest.raises(StateError):
        BatchLabeller(bundle=tmp_path, text="note")
