"""Tests of stored bundles: they predict what the runs they came from predicted.

All come from ``calibrant export``. ``bundle-with-plan`` is of ``planned``, a `calibrant cascade run` of ``plan`` with
its calibrator; ``bundle-of-cascade`` of ``cascade``, an evaluation of ``cascade.toml`` that was calibrated in place;
``bundle-with-scorer`` of the same task with a learned scorer, whose run is not kept; ``bundle-that-shows`` of
``shown``, with a label prior, a calibrator, a user template and demonstrations; ``bundle-of-fields`` of ``fields``,
answers of two fields; ``bundle-of-routed`` of ``routed``, two providers. A cascade takes neither head nor label prior,
so no bundle holds everything.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant.testing import FakeClient
from calibrant.tuned import Tuned
from stored_files import rows
from stored_model import LARGE, SMALL

Models = dict[str, FakeClient]
LARGE_ASKED = 25
ESCALATED = [0, 1, 14, 16, 18, 20, 27, 33, 34, 37]
SCORED = [0.5939379767328398, 0.750916179116792, 0.8624234435826624]
SHOWN = """Which animal?

Examples:

Text: train 2 woof
Answer: {"category": "dog"}

Text: train 0 woof
Answer: {"category": "cat"}"""
OF_RUNS = [
    ("bundle-with-plan", "planned"),
    ("bundle-of-cascade", "cascade"),
    ("bundle-that-shows", "shown"),
    ("bundle-of-fields", "fields"),
]


def walked(directory: Path) -> list[list[str]]:
    """Return the models that each row of a run asked."""
    lines = (directory / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    return [[step["model"] for step in json.loads(line).get("steps", [])] for line in lines]


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("bundle", "directory"), OF_RUNS)
def test_a_bundle_predicts_what_its_run_predicted(untouched: Path, bundle: str, directory: str) -> None:
    """The bundle gives the label, confidence and models of every row of its run."""
    expected = rows(untouched / directory)
    with calibrant.load(untouched / bundle) as classifier:
        found = classifier.classify_many([row["input"] for row in expected])
    assert [one.label for one in found] == [row["label"] for row in expected]
    assert [one.confidence for one in found] == pytest.approx([row["confidence"] for row in expected])
    assert [[step.model for step in one.steps] for one in found] == walked(untouched / directory)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("bundle", "directory"), OF_RUNS)
def test_a_run_is_exported_as_it_was(stored: Path, bundle: str, directory: str) -> None:
    """A stored run is exported with the same files as then; settings and fits are written in the present layout."""
    Tuned.from_run(stored / directory).save(stored / "again")
    names = {path.name for path in (stored / bundle).iterdir()} - {"card.md"}
    assert {path.name for path in (stored / "again").iterdir()} == names
    for name in sorted(
        names - {"manifest.json", "settings.json", "head.json", "label_prior.json", "calibrator.json"}
    ):
        assert (stored / "again" / name).read_text() == (stored / bundle / name).read_text(), name


def test_a_plan_in_a_bundle_splits_tied_answers(models: Models, stored: Path) -> None:
    """The small model is asked about all texts, the large one about those the plan escalates."""
    with calibrant.load(stored / "bundle-with-plan") as classifier:
        classifier.classify_many([row["input"] for row in rows(stored / "planned")])
    assert len(models[SMALL].requests) == 40
    assert (
        len(models[LARGE].requests)
        == sum(len(steps) == 2 for steps in walked(stored / "planned"))
        == LARGE_ASKED
    )


def test_a_learned_scorer_in_a_bundle_decides(models: Models, stored: Path) -> None:
    """The learned scorer sends the same ten of 40 answers to the large model."""
    with calibrant.load(stored / "bundle-with-scorer") as classifier:
        found = classifier.classify_many([row["input"] for row in rows(stored / "small")])
    assert [row for row, one in enumerate(found) if len(one.steps) == 2] == ESCALATED
    assert len(models[LARGE].requests) == len(ESCALATED)
    assert [one.steps[0].confidence for one in found[:3]] == pytest.approx(SCORED)


@pytest.mark.usefixtures("models")
def test_a_calibrator_in_a_bundle_gives_the_value_it_gave(untouched: Path) -> None:
    """The stored calibrators give values computed by hand."""
    expected = {
        "bundle-of-cascade": [1 / (1 + (1 / p - 1) ** (1 / 2.6744752839497887)) for p in (0.97, 0.99)],
        "bundle-with-plan": [0.8, 0.8],
    }
    for name, values in expected.items():
        bundle = Tuned.load(untouched / name)
        with calibrant.load(untouched / name) as classifier:
            found = classifier.classify_many(["test 0 woof", "test 1 meow"])
        assert [bundle.calibrated(one) for one in found] == pytest.approx(values)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("name", "accepted", "rule", "decided_by", "threshold"),
    [
        ("bundle-of-cascade", [True, True], "cascade", "cascade", None),
        ("bundle-that-shows", [True, True], "certified", "confidence", 0.524),
        ("bundle-with-plan", [False, False], "certified", "confidence", None),
        ("bundle-with-scorer", [True, True], "cascade", "cascade", None),
    ],
)
def test_a_bundle_accepts_what_it_accepted(
    untouched: Path, name: str, accepted: list[bool], rule: str, decided_by: str, threshold: float | None
) -> None:
    """The bundle accepts by its certificate or its cascade's thresholds, never by a suggestion."""
    bundle = Tuned.load(untouched / name)
    with calibrant.load(untouched / name) as classifier:
        found = [bundle.decide(one) for one in classifier.classify_many(["test 0 woof", "test 2 woof"])]
    assert [one.accepted for one in found] == accepted
    assert {(one.rule, one.decided_by) for one in found} == {(rule, decided_by)}
    assert [one.threshold for one in found] == [
        threshold if threshold is None else pytest.approx(threshold)
    ] * 2


def test_the_figures_of_a_bundle_are_those_of_its_run(untouched: Path) -> None:
    """The bundle's accuracy is that of the stored rows."""
    for name, directory in OF_RUNS:
        right = [row["label"] == row["answer"] for row in rows(untouched / directory)]
        figures = {figure.name: figure for figure in Tuned.load(untouched / name).figures}
        assert figures["accuracy, all rows"].estimate == pytest.approx(np.mean(right)), name
        assert figures["accuracy, all rows"].rows == len(right)


def test_demonstrations_in_a_bundle_are_shown(model: FakeClient, stored: Path) -> None:
    """The prompt shows the stored demonstrations, and the text is in the user template."""
    with calibrant.load(stored / "bundle-that-shows") as classifier:
        classifier.classify("test 0 woof")
    system, user = (message["content"] for message in model.requests[0].messages)
    assert user == "Text: test 0 woof"
    assert system == SHOWN


def test_a_bundle_of_providers_asks_the_one_that_its_state_puts_first(models: Models, stored: Path) -> None:
    """The provider with the better stored average is asked."""
    with calibrant.load(stored / "bundle-of-routed", router_state=str(stored / "routed.json")) as classifier:
        assert classifier.classify("test 1 meow").label == "cat"
    assert [len(models[name].requests) for name in (SMALL, LARGE)] == [1, 0]
