"""Tests of structured labels in task file, run, report and bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import calibrant
from bundle_runs import run
from calibrant.core import HierarchicalLabels, LabelSet, OrdinalLabels, StateError
from calibrant.reports import write_report
from calibrant.tuned import Tuned
from command_line import prediction_rows
from fault_server import FaultServer

WriteTask = Callable[..., Path]
Make = Callable[..., Path]

TASK = """\
name = "bills"
labels = ["Bills/Gas", "Bills/Power", "Food"]
field = "category"
prompt = "Classify."
{structure}
[data]
test = "test.jsonl"
[model]
name = "openai/one"
api_base = "{base}"
"""
# The server answers with the label that the text holds.
ROWS = [
    *({"input": f"{n} Bills/Gas", "answer": "Bills/Gas"} for n in range(6)),
    *({"input": f"{n} Bills/Gas too", "answer": "Bills/Power"} for n in range(3)),
    *({"input": f"{n} Food", "answer": "Bills/Gas"} for n in range(1)),
]
TREE = 'structure = "hierarchical"'
SCALE = 'structure = "ordinal"'
LASTING = ("label", "confidence", "probabilities")


@pytest.fixture
def make(write_task: WriteTask, tmp_path: Path) -> Iterator[Make]:
    """Return a function that evaluates the task under a name, and returns the run's directory."""
    with FaultServer(["Bills/Gas", "Bills/Power", "Food"]) as server:

        def make_it(name: str, structure: str = "", *options: str, code: int = 0) -> Path:
            toml = TASK.format(structure=structure, base=server.api_base)
            task = write_task(toml=toml, test=ROWS, directory=tmp_path / name)
            run("evaluate", task, "--out", tmp_path / name / "run", "--no-cache", *options, code=code)
            return tmp_path / name / "run"

        yield make_it


def test_a_tree_has_metrics_and_gates(make: Make) -> None:
    """A run over a tree has credit, levels and hierarchical F1, and --fail-under applies to them."""
    path = make("tree", TREE, "--fail-under", "credit=0.75", "--fail-under", "hierarchical_f1=0.75")
    found = json.loads((path / "metrics.json").read_text())["structure"]
    assert found["kind"] == "hierarchical"
    assert found["credit"]["estimate"] == pytest.approx(0.75)
    assert [level["estimate"] for level in found["levels"]] == pytest.approx([0.9, 0.6])
    # Of 20 true levels and 19 given ones, 15 are the same.
    assert found["f1"] == pytest.approx(2 * 15 / 39)
    make("tree", TREE, "--fail-under", "credit=0.76", code=3)


@pytest.mark.parametrize(
    ("structure", "metric"),
    [(TREE, "quadratic_kappa"), (TREE, "jaccard"), ("", "within_one_step"), ("", "hierarchical_f1")],
)
def test_an_unfit_gate_is_refused_at_once(make: Make, structure: str, metric: str) -> None:
    """A metric in --fail-under that the labels do not have exits with 2 and writes no run."""
    assert not make("other", structure, "--fail-under", f"{metric}=0.1", code=2).exists()


def test_credit_of_plain_labels_is_accuracy(make: Make) -> None:
    """The credit of plain labels is their accuracy, and metrics.json has no structure."""
    path = make("plain", "", "--fail-under", "credit=0.6")
    assert "structure" not in json.loads((path / "metrics.json").read_text())
    make("plain", "", "--fail-under", "credit=0.61", code=3)


def test_command_and_report_show_the_same(make: Make, tmp_path: Path) -> None:
    """`evaluate` and the report show the same figures of a scale, and those of a tree."""
    path = make("scale", SCALE)
    printed = run("evaluate", tmp_path / "scale" / "task.toml", "--out", path, "--no-cache").stdout
    page = write_report(path).read_text()
    for name in ("credit", "within one step", "mean absolute error", "quadratic weighted kappa"):
        assert f"\n{name} " in printed
        assert f'<th scope="row">{name}</th>' in page
    assert "hierarchical F1" not in page
    tree = write_report(make("tree", TREE)).read_text()
    assert '<th scope="row">right down to level 2</th>' in tree
    assert '<th scope="row">hierarchical F1</th>' in tree


def test_the_report_refuses_a_damaged_structure(make: Make) -> None:
    """A damaged label structure in run.json raises StateError in `write_report`."""
    path = make("tree", TREE)
    about = json.loads((path / "run.json").read_text())
    about["label_set"]["structure"] = "tree"
    (path / "run.json").write_text(json.dumps(about))
    with pytest.raises(StateError, match=r"run\.json"):
        write_report(path)


@pytest.mark.parametrize(
    ("structure", "labels"),
    [
        (TREE, HierarchicalLabels(["Bills/Gas", "Bills/Power", "Food"])),
        (f'{TREE}\nseparator = "s/"', HierarchicalLabels(["Bills/Gas", "Bills/Power", "Food"], "s/")),
        (SCALE, OrdinalLabels(["Bills/Gas", "Bills/Power", "Food"])),
        ("", LabelSet(["Bills/Gas", "Bills/Power", "Food"])),
    ],
)
def test_bundles_hold_the_structure(make: Make, tmp_path: Path, structure: str, labels: LabelSet) -> None:
    """A bundle and its loaded classifier have the run's label set with its structure."""
    path = make("run", structure)
    Tuned.from_run(path).save(tmp_path / "bundle")
    bundle = Tuned.load(tmp_path / "bundle")
    assert bundle.labels == labels
    names = [figure.name for figure in bundle.figures]
    assert ("credit" in names) is (structure != "")
    assert ("hierarchical F1" in names) is structure.startswith(TREE)
    assert ("mean absolute error, in steps" in names) is (structure == SCALE)
    classifier = calibrant.load(tmp_path / "bundle")
    try:
        assert classifier.labels == labels
        assert classifier.classify("some Food").label == "Food"
    finally:
        classifier.close()


def test_the_structure_changes_no_prediction(make: Make) -> None:
    """A tree of labels changes no label, confidence or probability."""
    plain, tree = make("a"), make("b", TREE)
    for one, other in zip(prediction_rows(plain), prediction_rows(tree), strict=True):
        assert {name: one[name] == other[name] for name in LASTING} == dict.fromkeys(LASTING, True)


def test_an_unknown_structure_of_a_run_is_refused(make: Make) -> None:
    """A run whose settings name an unknown label structure raises StateError."""
    out = make("a", TREE)
    settings = json.loads((out / "task.json").read_text())
    settings["tasks"][0]["labels"] = {"structure": "tree", "labels": ["a", "b"]}
    (out / "task.json").write_text(json.dumps(settings))
    with pytest.raises(StateError, match="damaged"):
        Tuned.from_run(out)
