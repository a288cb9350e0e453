"""Tests of a bundle's figures: they are those of the measured rows."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle_runs import run
from calibrant.core import Example, LabelSet, Prediction, ProviderError, StateError, Task
from calibrant.evaluation import BatchEvaluator
from calibrant.evaluation._figures import measurements_of
from calibrant.inference import Classifier
from calibrant.metrics import wilson_interval
from calibrant.runs import SavedRows
from calibrant.testing import FakeClient
from calibrant.tuned import Figure, PredictionHistory, Tuned
from command_line import prediction_rows, spelled
from packed import packed

WriteTask = Callable[..., Path]
ROWS = [{"input": f"{n} {spelled(n)} {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(60)]
LABELS = LabelSet(["cat", "dog"])
LABELS_ANSWERED = "labels answered, share of those in the rows"
LETTERS = tuple(Example(input=f"{n} {label}", answer=label) for n in range(2) for label in "abcdefgh")
NOTHING = {"suggested": None, "no_suggestion": "", "certified": None, "certification": None}


def suggested(high: float) -> dict[str, Any]:
    """Return thresholds without a certificate."""
    return {**NOTHING, "suggested": {"high": high, "low": 0.1, "n": 9, "warnings": []}}


def predictions(*rows: tuple[float | None, bool | None]) -> SavedRows:
    """Return saved predictions of these confidences, and whether they are right."""
    return SavedRows.of(
        [{"confidence": confidence, "correct": correct} for confidence, correct in rows], name="x"
    )


def accepted(saved: SavedRows, thresholds: dict[str, Any], name: str = "accepted answers") -> list[Figure]:
    """Return the figures about accepted answers, or about others of that name."""
    figures = measurements_of(saved, LABELS, thresholds=thresholds).figures
    return [figure for figure in figures if figure.name.startswith(name)]


def test_accepted_rows_are_counted() -> None:
    """Rows without confidence are not accepted, unlabelled rows do not count in the accuracy; suggestions are named."""
    saved = predictions((0.9, True), (0.8, False), (0.8, None), (0.7999, True), (None, False))
    from_there = "answers from the suggested threshold on"
    assert accepted(saved, suggested(0.8)) == []
    share, accuracy = accepted(saved, suggested(0.8), from_there)
    assert (share.estimate, share.rows) == (3 / 5, 5)
    assert (accuracy.estimate, accuracy.rows) == (1 / 2, 2)
    interval = wilson_interval(1, 2)
    assert (accuracy.lower, accuracy.upper, accuracy.level) == (interval.lower, interval.upper, 0.95)
    (nothing,) = accepted(saved, suggested(0.95), from_there)
    assert nothing.estimate == 0.0
    certified = {**suggested(0.95), "certification": {"n": 5}, "certified": {"threshold": 0.9}}
    assert accepted(saved, certified)[0].estimate == 1 / 5
    assert accepted(saved, {**certified, "certified": None}) == []
    assert accepted(saved, NOTHING) == []


def test_a_run_without_metrics_is_counted() -> None:
    """A failed row counts among all rows, and not among the answered ones."""
    rows = [
        {"label": "a", "answer": "a"},
        {"label": "a", "answer": "b"},
        {"label": None, "answer": "b", "outcome": "error"},
        {"label": "a", "answer": None},
    ]
    labels = LabelSet(["a", "b"])
    figures = measurements_of(SavedRows.of(rows, name="x"), labels).figures
    assert [(figure.name, figure.estimate, figure.rows) for figure in figures] == [
        ("accuracy, all rows", 1 / 3, 3),
        ("accuracy, answered rows", 1 / 2, 2),
        (LABELS_ANSWERED, 1 / 2, 2),
    ]
    assert measurements_of(SavedRows.of(rows[3:], name="x"), labels).figures == ()


def searched(**changes: Any) -> dict[str, Any]:
    """Return the ``result.json`` of a search on ten test rows, of which two failed."""
    interval = {"estimate": 0.5, "lower": 0.2, "upper": 0.8, "level": 0.95}
    score = {"accuracy": interval, "macro_f1": None, "credit": None, "rows": 10}
    score["outcomes"] = {"ok": 8, "error": 2}
    comparison = {"interval": {**interval, "estimate": 0.1}, "n": 7}
    differences = {"comparison": comparison, "credit_difference": None}
    return {"best_prompt": score, "seed_prompt": score, "chosen": 1, "final": None, **differences, **changes}


def of_search(record: dict[str, Any]) -> tuple[Figure, ...]:
    """Return the figures of a search."""
    return measurements_of(predictions((0.9, True)), LABELS, search=record).figures


def test_search_figures_count_answered_rows() -> None:
    """The figures of a search count answered rows, and compare with the first prompt if another won."""
    best, first, difference = of_search(searched())
    assert (best.rows, first.rows, difference.rows) == (8, 8, 7)
    assert len(of_search(searched(chosen=0))) == 2
    assert len(of_search(searched(comparison=None))) == 2


def test_a_search_with_macro_f1_gives_it_for_both_prompts() -> None:
    """A result with macro F1 gives figures for both prompts."""
    record = searched()
    record["best_prompt"] = record["seed_prompt"] = {**record["seed_prompt"], "macro_f1": 0.25}
    assert [figure.name for figure in of_search(record)] == [
        "test accuracy, this prompt",
        "test macro F1, this prompt",
        "test accuracy, first prompt",
        "test macro F1, first prompt",
        "test accuracy, this minus first prompt",
    ]


def test_evaluation_figures_include_baselines(
    write_task: WriteTask, use_model: Callable[..., Any], tmp_path: Path
) -> None:
    """The figures hold accuracy and macro F1 of the baselines, and the difference to TF-IDF."""
    answers = {"meow": ("cat", 0.9), "woof": ("dog", 0.8)}
    use_model(FakeClient(["cat", "dog"], answers, name="local/smollm2-135m"))
    out = tmp_path / "out"
    run("evaluate", write_task(), "--out", out)
    bundle = Tuned.from_run(out).save(tmp_path / "bundle")
    beside = json.loads((out / "metrics.json").read_text())["baselines"]
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


def of_letters(folder: Path, answer: Callable[[str], str], **options: Any) -> str:
    """Evaluate a model that answers letters, and return what the command says that exports the run."""
    labels = LabelSet(list("abcdefgh"))
    task = Task(name="letters", labels=labels, prompt="Which?", field="x", test=LETTERS)
    with contextlib.closing(
        Classifier.from_task(task, model=FakeClient(labels, answer, field="x", **options))
    ) as one:
        BatchEvaluator(one).evaluate(task.test, out=folder / "run")
    (folder / "task.toml").write_text(
        f'name = "letters"\nlabels = {list(labels)}\nprompt = "Which?"\nfield = "x"\n'
    )
    args = ("--task", folder / "task.toml", "--model", "fake", "--out", folder / "bundle")
    return run("export", folder / "run", *args).stdout


def test_export_warns_of_a_collapsed_classifier(tmp_path: Path) -> None:
    """An export warns that a classifier collapsed which answers only one of eight labels."""
    told = of_letters(tmp_path, lambda _: "a")
    bundle = Tuned.load(tmp_path / "bundle")
    (share,) = [figure for figure in bundle.figures if figure.name == LABELS_ANSWERED]
    assert (share.estimate, share.rows) == (1 / 8, 16)
    warning = "Collapsed: only 12% of the labels that occur in the rows were ever answered."
    assert [line for line in told.splitlines() if line.startswith("warning: ")] == [f"warning: {warning}"]


def test_export_warns_of_low_label_mass(tmp_path: Path) -> None:
    """The warning about low label mass counts answered rows only."""
    down = {0: ProviderError("down", provider="fake", retryable=False)}
    told = of_letters(tmp_path, lambda text: text[-1], illegal_mass=0.9, space="raw", failures=down)
    warning = "The model wanted to write something else on 15 of 15 rows (label mass below 0.5)"
    assert f"warning: {warning}" in told


def test_a_history_keeps_a_thousand_confidences() -> None:
    """A history keeps at most 1,000 confidences, evenly spaced, with the lowest and the highest."""
    values = [n / 4000 for n in range(4001)]
    confidence = np.array([*reversed(values), np.nan])
    history = PredictionHistory.of(["dog"] * 4001 + [None], confidence, labels=LABELS)
    kept = history.confidence
    assert history.rows == 4002
    assert (len(kept), kept[0], kept[-1]) == (1000, 0.0, 1.0)
    assert list(kept) == sorted(kept)
    assert max(after - before for before, after in itertools.pairwise(kept)) < 0.0015
    few = PredictionHistory.of(["dog"] * 1000, confidence[:1000], labels=LABELS)
    assert len(few.confidence) == 1000


def test_a_calibrator_without_its_report_is_refused(tmp_path: Path) -> None:
    """A calibrator without calibration.json raises StateError."""
    packed(tmp_path, ROWS[:6])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "calibrator.json").write_text("{}")
    with pytest.raises(StateError, match=r"expected calibration\.json beside calibrator\.json"):
        Tuned.from_run(tmp_path / "run", task=tmp_path / "task.toml", calibration=tmp_path / "other").save(
            tmp_path / "new"
        )


def test_figures_count_what_the_bundle_accepts(tmp_path: Path) -> None:
    """The figures of a calibrated bundle count the rows that `decide` accepts."""
    packed(tmp_path, [{**row, "answer": "cat" if "cat" in row["input"] else "dog"} for row in ROWS])
    run("calibrate", tmp_path / "run", "--out", tmp_path / "run", "--target-accuracy", 0.5)
    bundle = Tuned.from_run(tmp_path / "run", task=tmp_path / "task.toml").save(tmp_path / "calibrated")
    rows = prediction_rows(tmp_path / "run")
    accepted = [
        row
        for row in rows
        if bundle.decide(Prediction(label=row["label"], confidence=row["confidence"])).accepted
    ]
    figures = {figure.name: figure for figure in bundle.figures}
    assert figures["accepted answers, share of the rows"].estimate == len(accepted) / len(rows)
    right = sum(row["correct"] for row in accepted)
    assert figures["accepted answers, accuracy"].estimate == pytest.approx(right / len(accepted))
    assert Tuned.load(tmp_path / "calibrated").figures == bundle.figures


def test_export_prints_what_it_made(tmp_path: Path) -> None:
    """The command prints the digest as text and as JSON."""
    digest = packed(tmp_path, ROWS[:6]).digest
    args = ("export", tmp_path / "run", "--task", tmp_path / "task.toml", "--out")
    assert f"SHA-256 of the bundle: {digest}" in run(*args, tmp_path / "one").stdout
    record = json.loads(run(*args, tmp_path / "two", "--json").stdout)
    assert record == {"bundle": str(tmp_path / "two"), "name": "animals", "sha256": digest}
    assert "got one that is taken" in run(*args, tmp_path / "two", code=2).stderr
