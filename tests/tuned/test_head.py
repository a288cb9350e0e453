"""Tests of heads in bundles: the loaded classifier answers as the exported one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import calibrant
from biased_model import LABELS, biased, biased_task, place, search
from bundle_runs import run
from calibrant.core import StateError
from calibrant.heads import Head
from calibrant.inference import Classifier
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned

TEXTS = [f"other {n}" for n in range(20)]


@pytest.fixture
def task(write_task: Callable[..., Path], use_model: Callable[..., Any]) -> Path:
    """Return a task of a model that prefers cats."""
    return biased_task(write_task, use_model)


@pytest.fixture
def searched(task: Path, tmp_path: Path) -> Path:
    """Return the directory of a search."""
    return search(task, tmp_path / "run")


@pytest.fixture
def evaluated(task: Path, searched: Path, tmp_path: Path) -> Path:
    """Return the directory of an evaluation with its head."""
    run("evaluate", task, "--run", searched, "--out", tmp_path / "evaluated", "--no-cache")
    return tmp_path / "evaluated"


def with_head(searched: Path) -> Classifier:
    """Return a classifier under the best prompt with the head that is beside it."""
    found = Classifier(
        model=FakeClient(LABELS, biased, name="local/smollm2-135m"),
        labels=LABELS,
        field="category",
        prompt=(searched / "best_prompt.txt").read_text(),
    )
    found.head = Head.load(searched / "head.json", fingerprint=found.fingerprint())
    return found


@pytest.mark.parametrize("kind", ["searched", "evaluated"])
def test_a_bundle_answers_as_the_run_did(
    kind: str, searched: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A loaded bundle answers as the classifier with the head, and holds the same head."""
    bundle = Tuned.from_run(request.getfixturevalue(kind)).save(tmp_path / "bundle")
    classifier = with_head(searched)
    assert bundle.head is not None
    assert classifier.head is not None
    assert bundle.head.digest == classifier.head.digest
    first = next(figure for figure in bundle.figures if "accuracy" in figure.name)
    assert first.estimate == 1.0
    better = "with the head" if kind == "searched" else "the model"
    names = " ".join(figure.name for figure in bundle.figures)
    assert f"accuracy, {better} minus TF-IDF" in names
    assert "macro F1, TF-IDF" in names
    with calibrant.load(tmp_path / "bundle") as loaded:
        assert isinstance(loaded, Classifier)
        found = loaded.classify_many(TEXTS)
    expected = classifier.classify_many(TEXTS)
    assert [(one.label, one.confidence) for one in found] == [(one.label, one.confidence) for one in expected]
    assert [one.label for one in found] == [LABELS[place(text)] for text in TEXTS]


def test_an_altered_head_is_refused(searched: Path, tmp_path: Path) -> None:
    """A changed head raises StateError, in the bundle and in the run."""
    Tuned.from_run(searched).save(tmp_path / "bundle")
    path = tmp_path / "bundle" / "head.json"
    text = path.read_text()
    for damage in (text[:50], text.replace("0.", "1.", 1), ""):
        path.write_text(damage)
        with pytest.raises(StateError, match=r"head\.json"):
            Tuned.load(tmp_path / "bundle")
    path.unlink()
    with pytest.raises(StateError, match=r"head\.json"):
        Tuned.load(tmp_path / "bundle")
    record = json.loads((searched / "head.json").read_text())
    del record["state"]["model"]
    (searched / "head.json").write_text(json.dumps(record))
    with pytest.raises(StateError, match=r"head.*damaged"):
        Tuned.from_run(searched).save(tmp_path / "again")


def test_a_run_without_its_head_is_refused(searched: Path, evaluated: Path, tmp_path: Path) -> None:
    """A run whose head.json is missing raises StateError on export."""
    for directory in (searched, evaluated):
        (directory / "head.json").unlink()
        with pytest.raises(StateError, match=r"expected head\.json"):
            Tuned.from_run(directory).save(tmp_path / "bundle")
