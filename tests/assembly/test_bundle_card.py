"""The card of a bundle says what was measured, on which rows, and what the numbers mean."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrant.assembly import export, read_bundle
from calibrant.assembly._bundle_card import card
from calibrant.assembly._bundle_export import _history
from calibrant.assembly._bundle_figures import LABELS_ANSWERED, accepted_of, collapse_warning, figures_of
from calibrant.assembly._task_record import RunSettings, record_run, task_to_record
from calibrant.calibration._saved import read_predictions
from calibrant.cli._app import app
from calibrant.core import ConfigurationError, Example, LabelSet, Prediction, ProviderError, StateError, Task
from calibrant.evaluation import BatchEvaluator
from calibrant.inference import Classifier
from calibrant.metrics import wilson_interval
from calibrant.testing import FakeClient
from packed import packed

WriteTask = Callable[..., Path]
ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(60)]
LABELS = LabelSet(["cat", "dog"])
LETTERS = tuple(Example(input=f"{n} {label}", answer=label) for n in range(2) for label in "abcdefgh")
NOTHING = {"suggested": None, "no_suggestion": "", "certified": None, "certification": None}


def suggested(high: float, *warnings: str) -> dict[str, Any]:
    """Return thresholds without a certificate."""
    return {**NOTHING, "suggested": {"high": high, "low": 0.1, "n": 9, "warnings": list(warnings)}}


def written(*, labels: list[str], **changes: Any) -> str:
    """Return the card of a task of these labels."""
    task = Task(name=changes.pop("name", "animals"), labels=LabelSet(labels), prompt="Which?", field="x")
    settings = {
        "name": task.name,
        "labels": task.labels,
        "prompt": "Which?",
        "proposer": None,
        "figures": (),
        "thresholds": NOTHING,
        "fingerprint": {"model": "m", "space": "raw", "prompt_sha256": "0"},
        "measured_on": "nothing",
        "answered_by": {},
        "corrected": False,
        "head": None,
        "calibrator": False,
        **changes,
    }
    return card(RunSettings(tasks=(task_to_record(task),)), **settings)


def test_a_card_names_rows_models_and_what_confidence_means(tmp_path: Path) -> None:
    """As ``run.json`` and ``metrics.json`` have them."""
    bundle = packed(tmp_path, ROWS)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (
        f"on the 60 rows of the run (SHA-256 of texts and answers `{record['data']['sha256']}`)"
        in bundle.card
    )
    (model,) = json.loads((tmp_path / "run" / "metrics.json").read_text())["models"]
    assert f"- Answered by: `{model}` (60 rows), as the server said" in bundle.card
    assert "- Confidence: the probability of the label, as the model reports it after" in bundle.card
    assert "None: the run was not calibrated" in bundle.card


@pytest.mark.parametrize(
    ("space", "words"),
    [("raw", "share of the probability"), ("exact", "every label scored"), ("sampled", "answers agree")],
)
def test_every_space_is_explained(space: str, words: str) -> None:
    """What a confidence is differs from one to the other."""
    found = written(labels=["a", "b"], fingerprint={"model": "m", "space": space, "prompt_sha256": "0"})
    assert words in found.partition("- Confidence: ")[2].partition("\n")[0]


def test_names_and_labels_cannot_write_the_card() -> None:
    """They are one line of text, whatever is in them."""
    found = written(
        name="x\n# Accuracy 1.0\n<script>[a](http://b)",
        labels=["a`b", "``", "c\n\n## Certified", "<img src=x>"],
        answered_by={"m`\n# Big": 3},
    )
    assert re.findall("^#.*", found, flags=re.MULTILINE) == [
        r"# x # Accuracy 1.0 \<script>\[a](http://b)",
        "## Figures",
        "## Thresholds",
        "## What to know",
        "## Use",
    ]
    assert "`` a`b ``, ``` `` ```, `c ## Certified`, `<img src=x>`." in found
    assert "`` m` # Big `` (3 rows)" in found


def test_a_suggestion_comes_with_what_speaks_against_it() -> None:
    """It accepts answers, and guarantees nothing."""
    found = written(labels=["a", "b"], thresholds=suggested(0.3, "Far too low."))
    assert "high 0.3, low 0.1 (from 9 rows; no guarantee)" in found
    assert "Accepted are answers from the high one on" in found
    assert "Note: Far too low." in found


def predictions(*rows: tuple[float | None, bool | None]) -> Any:
    """Return saved predictions of these confidences, and whether they are right."""
    return read_predictions(
        [{"confidence": confidence, "correct": correct} for confidence, correct in rows], name="x"
    )


def test_what_would_have_been_accepted_is_counted() -> None:
    """From the threshold on; rows without a confidence are not, unlabelled ones have no say in the accuracy."""
    saved = predictions((0.9, True), (0.8, False), (0.8, None), (0.7999, True), (None, False))
    share, accuracy = accepted_of(saved, suggested(0.8))
    assert (share.estimate, share.rows) == (3 / 5, 5)
    assert (accuracy.estimate, accuracy.rows) == (1 / 2, 2)
    interval = wilson_interval(1, 2)
    assert (accuracy.lower, accuracy.upper, accuracy.level) == (interval.lower, interval.upper, 0.95)
    (nothing,) = accepted_of(saved, suggested(0.95))
    assert nothing.estimate == 0.0
    certified = {**suggested(0.95), "certification": {"n": 5}, "certified": {"threshold": 0.9}}
    assert next(iter(accepted_of(saved, certified))).estimate == 1 / 5
    assert list(accepted_of(saved, {**certified, "certified": None})) == []
    assert list(accepted_of(saved, NOTHING)) == []


def test_a_run_without_metrics_is_counted_from_its_rows() -> None:
    """A row that failed for the server's reasons counts among all rows, and not among the answered ones."""
    rows = [
        {"label": "a", "answer": "a"},
        {"label": "a", "answer": "b"},
        {"label": None, "answer": "b", "outcome": "error"},
        {"label": "a", "answer": None},
    ]
    both = figures_of(None, None, None, read_predictions(rows, name="x"))
    assert [(figure.name, figure.estimate, figure.rows) for figure in both] == [
        ("accuracy, all rows", 1 / 3, 3),
        ("accuracy, answered rows", 1 / 2, 2),
    ]
    assert figures_of(None, None, None, read_predictions(rows[3:], name="x")) == ()


def searched(**changes: Any) -> dict[str, Any]:
    """Return what a search on ten test rows, of which two failed, leaves in ``result.json``."""
    interval = {"estimate": 0.5, "lower": 0.2, "upper": 0.8, "level": 0.95}
    score = {"accuracy": interval, "rows": 10, "outcomes": {"ok": 8, "error": 2}}
    comparison = {"interval": {**interval, "estimate": 0.1}, "n": 7}
    return {"best_prompt": score, "seed_prompt": score, "improved": True, "comparison": comparison, **changes}


def test_figures_of_a_search_are_about_answered_rows() -> None:
    """And compare with the first prompt only where another one was found."""
    saved = predictions((0.9, True))
    best, first, difference = figures_of(None, searched(), None, saved)
    assert (best.rows, first.rows, difference.rows) == (8, 8, 7)
    assert len(figures_of(None, searched(improved=False), None, saved)) == 2
    assert len(figures_of(None, searched(comparison=None), None, saved)) == 2


def test_a_search_of_today_adds_macro_f1() -> None:
    """And a choice that the test rows refute is compared all the same."""
    record = searched(improved=False, chosen=1)
    record["best_prompt"] = record["seed_prompt"] = {**record["seed_prompt"], "macro_f1": 0.25}
    names = [figure.name for figure in figures_of(None, record, None, predictions((0.9, True)))]
    assert names == [
        "test accuracy, this prompt",
        "test macro F1, this prompt",
        "test accuracy, first prompt",
        "test macro F1, first prompt",
        "test accuracy, this minus first prompt",
    ]


def test_the_card_of_an_evaluation_has_its_baselines(
    write_task: WriteTask, use_model: Callable[..., Any], tmp_path: Path
) -> None:
    """Figures of both, the difference to words alone, and the verdict in a sentence."""
    answers = {"meow": ("cat", 0.9), "woof": ("dog", 0.8)}
    use_model(FakeClient(["cat", "dog"], answers, name="local/smollm2-135m"))
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["evaluate", str(write_task()), "--out", str(out)])
    assert done.exit_code == 0, done.output
    bundle = export(out, tmp_path / "bundle")
    beside = json.loads((out / "metrics.json").read_text())["baselines"]
    assert f"- {beside['verdict']}\n" in bundle.card
    found = {figure.name: figure for figure in bundle.figures}
    difference = found["accuracy, the model minus TF-IDF"]
    interval = beside["against_text"]["interval"]
    assert (difference.estimate, difference.lower) == (interval["estimate"], interval["lower"])
    for one in beside["scores"][1:]:
        name = one["name"]
        assert found[f"accuracy, {name}"].estimate == one["accuracy"]["estimate"]
        assert found[f"macro F1, {name}"].estimate == one["macro_f1"]
        assert found[f"{LABELS_ANSWERED}, {name}"].estimate == one["answered_labels"]["share"]
    assert found["macro F1, majority"].rows == 4


def test_a_bundle_repeats_that_its_classifier_has_collapsed(tmp_path: Path) -> None:
    """On the card, in the figures and when it is exported."""
    task = Task(name="letters", labels=LabelSet(list("abcdefgh")), prompt="Which?", field="x", test=LETTERS)
    with contextlib.closing(
        Classifier.from_task(task, model=FakeClient(task.labels, lambda _: "a", field="x"))
    ) as one:
        BatchEvaluator(one).evaluate(task.test, out=tmp_path / "run")
    record_run(tmp_path / "run", [(task, "fake")])
    bundle = export(tmp_path / "run", tmp_path / "bundle")
    (share,) = [figure for figure in bundle.figures if figure.name == LABELS_ANSWERED]
    assert (share.estimate, share.rows) == (1 / 8, 16)
    warning = "Collapsed: only 12% of the labels that occur in the rows were ever answered."
    assert collapse_warning(bundle.figures) == warning
    assert f"- **{warning}**" in bundle.card
    assert f"warning: {warning}" in said(tmp_path)


def test_a_bundle_repeats_that_its_model_wanted_to_write_something_else(tmp_path: Path) -> None:
    """On the card and when it is exported, with the rows it was so on; those that failed do not count."""
    task = Task(name="letters", labels=LabelSet(list("abcdefgh")), prompt="Which?", field="x", test=LETTERS)
    fake = FakeClient(
        task.labels,
        lambda text: text[-1],
        field="x",
        illegal_mass=0.9,
        space="raw",
        failures={0: ProviderError("down", provider="fake", retryable=False)},
    )
    with contextlib.closing(Classifier.from_task(task, model=fake)) as one:
        BatchEvaluator(one).evaluate(task.test, out=tmp_path / "run")
    record_run(tmp_path / "run", [(task, "fake")])
    warning = "The model wanted to write something else on 15 of 15 rows (label mass below 0.5)"
    assert f"- **{warning}" in export(tmp_path / "run", tmp_path / "bundle").card
    assert f"warning: {warning}" in said(tmp_path)


def said(folder: Path) -> str:
    """Return what `calibrant export` prints of the run in a folder."""
    done = CliRunner().invoke(app, ["export", str(folder / "run"), "--out", str(folder / "again")])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_history_keeps_a_thousand_confidences_at_even_distances() -> None:
    """The least and the greatest among them; of fewer rows, all."""
    values = [n / 4000 for n in range(4001)]
    record = _history(predictions(*((value, True) for value in reversed(values)), (None, False)), LABELS)
    kept = record["confidence"]
    assert record["rows"] == 4002
    assert (len(kept), kept[0], kept[-1]) == (1000, 0.0, 1.0)
    assert kept == sorted(kept)
    assert max(after - before for before, after in itertools.pairwise(kept)) < 0.0015
    assert (
        len(_history(predictions(*((value, True) for value in values[:1000])), LABELS)["confidence"]) == 1000
    )


def test_a_calibrator_without_its_report_is_refused(tmp_path: Path) -> None:
    """Nothing would say what it is from, and how good."""
    packed(tmp_path, ROWS[:6])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "calibrator.json").write_text("{}")
    with pytest.raises(StateError, match=r"expected calibration\.json beside calibrator\.json"):
        export(
            tmp_path / "run", tmp_path / "new", task=tmp_path / "task.toml", calibration=tmp_path / "other"
        )


def test_accepted_answers_are_those_that_the_bundle_accepts(tmp_path: Path) -> None:
    """The same rows, by the figures and by `decide`."""
    packed(
        tmp_path,
        [
            {"input": f"{n} {'cat' if n % 3 else 'dog'}", "answer": "cat" if n % 3 else "dog"}
            for n in range(60)
        ],
    )
    runner = CliRunner()
    args = ["calibrate", str(tmp_path / "run"), "--out", str(tmp_path / "run"), "--target-accuracy", "0.5"]
    assert runner.invoke(app, args).exit_code == 0
    bundle = export(tmp_path / "run", tmp_path / "calibrated", task=tmp_path / "task.toml")
    rows = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    accepted = [
        row
        for row in rows
        if bundle.decide(Prediction(label=row["label"], confidence=row["confidence"])).accepted
    ]
    figures = {figure.name: figure for figure in bundle.figures}
    assert figures["accepted answers, share of the rows"].estimate == len(accepted) / len(rows)
    right = sum(row["correct"] for row in accepted)
    assert figures["accepted answers, accuracy"].estimate == pytest.approx(right / len(accepted))
    assert read_bundle(tmp_path / "calibrated").figures == bundle.figures


@pytest.mark.parametrize("threshold", [-0.1, 1.1, 95, float("nan")])
def test_a_threshold_of_ones_own_is_a_share(tmp_path: Path, threshold: float) -> None:
    """Not a percentage."""
    bundle = packed(tmp_path, ROWS[:4])
    with pytest.raises(ConfigurationError, match=r"Expected a threshold in \[0, 1\]"):
        bundle.decide(Prediction(label="cat", confidence=0.9), threshold=threshold)
