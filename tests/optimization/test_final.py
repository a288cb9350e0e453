"""Tests of a search's final figures: the head on its best prompt, and the verdict."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.cascade import Cascade
from calibrant.core import Example, MultiLabels, Task
from calibrant.evaluation import calibrate_predictions
from calibrant.evaluation._learned import calibrate_search
from calibrant.heads import Head, compare_with_baselines
from calibrant.inference import Classifier
from calibrant.optimization import optimize
from calibrant.optimization._stages import labelled_rows
from calibrant.runs import SavedRows
from calibrant.testing import FakeClient
from command_line import recorded_rows, spelled, write_rows
from small_tasks import (
    LABELS,
    Interrupted,
    asked_about,
    hidden_rows,
    interrupted,
    place,
    searched,
    task_of,
)
from token_engine import Telling

BUDGET: dict[str, Any] = {"max_metric_calls": 120, "minibatch_size": 6}


def biased(text: str) -> dict[str, float]:
    """Give the right label the higher evidence, but prefer cats."""
    cat = 0.6 if place(text) else 0.9
    return {"cat": cat, "dog": 1.0 - cat}


def learner(text: str, prompt: str) -> dict[str, float]:
    """Prefer cats, less so under a longer prompt, and err on a third of the texts."""
    hard = hashlib.sha256(text.encode()).digest()[1] % 3 == 0
    cat = 0.9 if hard or not place(text) else max(0.3, 0.8 - len(prompt) / 250)
    return {"cat": cat, "dog": 1.0 - cat}


def hidden_task(**changes: Any) -> Task:
    """Return a task whose texts do not tell their labels."""
    return task_of(hidden_rows, 40, 30, 30, **changes)


# --- what it finds ------------------------------------------------------------------------------


def test_the_result_says_what_the_head_adds() -> None:
    """The final figures have the accuracy with the head, two baselines and the difference."""
    result = optimize(hidden_task(), model=FakeClient(LABELS, biased), **BUDGET)
    final = result.final
    assert final is not None
    assert final.score.accuracy is not None
    assert final.score.accuracy.estimate == 1.0
    assert final.score.prompt == result.best_prompt.prompt
    assert final.score.validation_score == result.best_prompt.validation_score
    assert final.head["kind"] != "as scored"
    assert final.head["n_rows"] >= 30
    assert final.head["gain"] > 0.0
    assert final.against_seed is not None
    assert final.against_text is not None
    assert result.seed_prompt.accuracy is not None
    assert final.against_seed.difference == pytest.approx(1.0 - result.seed_prompt.accuracy.estimate)
    majority, text = final.baselines
    assert (majority.name, text.name) == ("majority", "TF-IDF")
    labelled = [*hidden_task().train, *hidden_task().validation]
    most = max(LABELS, key=lambda label: sum(row.answer == label for row in labelled))
    share = np.mean([row.answer == most for row in hidden_task().test])
    assert majority.accuracy.estimate == pytest.approx(share)
    assert majority.macro_f1 == pytest.approx(share / (1.0 + share))
    assert final.against_text.difference == pytest.approx(1.0 - text.accuracy.estimate)
    assert final.verdict.startswith("The model adds +")


def test_features_of_the_model_are_a_baseline() -> None:
    """Regression on the features of a model that has some is a baseline, which the model adds nothing to."""
    model = Classifier(model=Telling(place), labels=LABELS, field="category", prompt="Which animal?")
    final = optimize(hidden_task(), model=model, **BUDGET).final
    assert final is not None
    assert [score.name for score in final.baselines] == ["majority", "TF-IDF", "embeddings"]
    assert final.baselines[2].accuracy.estimate >= 0.9
    assert final.against_embeddings is not None
    assert "adds nothing certain to embeddings" in final.verdict


def test_the_files_agree_with_the_result(tmp_path: Path) -> None:
    """`SavedRows.load` reads a search's predictions with the head, as result.json has them."""
    out, task = tmp_path / "run", hidden_task()
    result = optimize(task, model=FakeClient(LABELS, biased), out=out, **BUDGET)
    assert result.final is not None
    record = json.loads((out / "result.json").read_text())["final"]
    assert record == json.loads(json.dumps(result.to_record()["final"]))
    assert record["head"] == json.loads(json.dumps(dict(result.final.head)))
    assert record["verdict"] == result.final.verdict
    found = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    final = [row for row in found if row["prompt"] == "final"]
    assert [row["index"] for row in final] == list(range(30))
    assert all(row["correct"] and row["label"] == row["answer"] for row in final)
    assert not any("features" in row for row in found)
    classifier = Classifier(
        model=FakeClient(LABELS, biased),
        labels=LABELS,
        field="category",
        prompt=(out / "best_prompt.txt").read_text(),
    )
    classifier.head = Head.load(out / "head.json", fingerprint=classifier.fingerprint())
    assert classifier.head.describe() == result.final.head
    for row, prediction in zip(final, classifier.classify_many([row["input"] for row in final]), strict=True):
        assert (row["label"], row["confidence"]) == (prediction.label, prediction.confidence)
    saved = SavedRows.load(out)
    assert saved.labels == tuple(row["label"] for row in final)
    assert saved.confidence.tolist() == [row["confidence"] for row in final]
    assert saved.fingerprint == classifier.fingerprint()


def test_a_run_knows_which_answers_to_accept(tmp_path: Path) -> None:
    """A search certifies 90 % accuracy on its test rows, unless the user asked for something else."""
    out, own = tmp_path / "run", tmp_path / "run" / "calibration.json"
    texts = [f"test {number} {spelled(number)}" for number in range(30)]
    task = hidden_task(test=tuple(Example(input=text, answer=LABELS[place(text)]) for text in texts))
    optimize(task, model=FakeClient(LABELS, biased), out=out, **BUDGET)
    certified = json.loads(own.read_text())["certified"]
    # All 30 are right: 0.9 ** 30 is below half of 0.1.
    lowest = SavedRows.load(out).confidence.min()
    assert certified["threshold"] == math.floor(1000 * lowest) / 1000
    assert (certified["coverage"], certified["target_accuracy"], certified["delta"]) == (1.0, 0.9, 0.1)
    assert (out / "calibrator.json").exists()
    calibrate_predictions(SavedRows.load(out), target_accuracy=0.6).write(out)
    kept = own.read_text()
    optimize(task, model=FakeClient(LABELS, biased), out=out, **BUDGET)
    assert own.read_text() == kept


def test_one_sure_mistake_ends_no_certificate(tmp_path: Path) -> None:
    """Half of the 0.1 goes to all answers at once, so that one mistake among the surest does not reject them."""
    sure = np.linspace(0.99, 0.6005, 46)
    rows = recorded_rows(sure < 0.99, sure)
    write_rows(tmp_path, [{**row, "input": f"{row['input']} {spelled(n)}"} for n, row in enumerate(rows)])
    certified = calibrate_search(SavedRows.load(tmp_path)).certified
    assert certified is not None
    assert (certified.threshold, certified.coverage) == (0.6, 1.0)
    again = calibrate_predictions(SavedRows.load(tmp_path), target_accuracy=0.9, delta=0.1).certified
    assert again == certified  # the same promise of the same answers is the same test, and counts once


def test_the_ledger_has_a_copy_beside_the_run(tmp_path: Path, calibrant_home: Path) -> None:
    """A lost folder for caches loses no count of certificates."""
    optimize(hidden_task(), model=FakeClient(LABELS, biased), out=tmp_path / "run", **BUDGET)
    beside = (tmp_path / "run" / "looks.jsonl").read_text()
    assert beside == (calibrant_home / "looks.jsonl").read_text()


def test_a_damaged_ledger_loses_no_search(calibrant_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where certificates cannot be counted, the result of a search comes without one, and says why."""
    calibrant_home.mkdir(parents=True)
    (calibrant_home / "looks.jsonl").write_text("{half a li")
    tuned = optimize(hidden_task(), model=FakeClient(LABELS, biased), **BUDGET).tuned
    assert tuned is not None
    assert tuned.calibrator is not None
    assert tuned.thresholds["certification"] is None
    assert "Nothing is certified: " in caplog.text
    assert "looks.jsonl, line 1" in caplog.text


def test_without_a_head_rows_of_the_best_prompt_count(tmp_path: Path) -> None:
    """Without predictions of a head, `SavedRows.load` reads those of the best prompt."""
    out = tmp_path / "run"
    optimize(hidden_task(), model=FakeClient(LABELS, biased), out=out, **BUDGET)
    path = out / "predictions.jsonl"
    lines = path.read_text().splitlines()
    with_head = SavedRows.load(out)
    path.write_text("\n".join(reversed(lines)) + "\n")
    assert SavedRows.load(out).labels == with_head.labels[::-1]
    path.write_text("\n".join(line for line in lines if '"prompt": "final"' not in line) + "\n")
    assert set(SavedRows.load(out).labels) == {"cat"}


# --- what it asks -------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [80, 90, 101, 140, 300])
@pytest.mark.parametrize("options", [{}, {"prior_correction": "batch"}, {"thresholds": "auto"}])
def test_rows_for_the_head_are_within_the_budget(budget: int, options: dict[str, Any]) -> None:
    """The rows for the head count in the budget, and no row is asked twice."""
    client = FakeClient(LABELS, learner)
    train = hidden_rows("train", 60)
    budget += len(train) if "thresholds" in options else 0
    settings: dict[str, Any] = {"max_metric_calls": budget, "minibatch_size": 6, **options}
    result = optimize(hidden_task(train=train), model=client, **settings)
    assert result.final is not None
    assert len(searched(client)) == result.metric_calls <= budget
    asked = asked_about(client)
    assert len(set(asked)) == len(asked)
    best = {text for prompt, text in asked if prompt == result.best_prompt.prompt}
    learned = sum(text.startswith(("train", "validation")) for text in best)
    assert result.final.head["n_rows"] <= learned


def test_a_perfect_model_is_asked_no_more_rows() -> None:
    """A model without errors is asked no further rows for its head."""
    client = FakeClient(LABELS, lambda text: (LABELS[place(text)], 0.99))
    result = optimize(hidden_task(), model=client, **BUDGET)
    assert result.final is not None
    assert len(searched(client)) == result.metric_calls < 70


def test_the_head_learns_from_unseen_rows() -> None:
    """Test rows, shown rows and repeated rows are left out of the head's rows."""
    train = (
        Example(input="a cat\n on  two lines", answer="cat"),
        Example(input="both 1", answer="cat"),
        Example(input="held out", answer="dog"),
        Example(input="new", answer="dog"),
    )
    validation = (Example(input="held out", answer="dog"), Example(input="both 2", answer="cat"))
    test = (Example(input="both 1", answer="cat"), Example(input="both 2", answer="cat"))
    task = hidden_task(train=train, validation=validation, test=test)
    for prompt, learned in (
        ("Which?", ["held out", "a cat\n on  two lines", "new"]),
        ("Text: a cat on two lines\nAnswer: cat", ["held out", "new"]),
    ):
        assert [row.input for row in labelled_rows(task, prompt)] == learned
    several = hidden_task(labels=MultiLabels(LABELS), train=(), validation=(), test=())
    assert labelled_rows(replace(several), "Which?") == []


def left(prompt: str, *texts: str) -> list[str]:
    """Return the texts that a head may learn from under a prompt."""
    train = tuple(Example(input=text, answer="cat") for text in texts)
    return [row.input for row in labelled_rows(hidden_task(train=train, validation=(), test=()), prompt)]


def test_a_demonstration_shows_its_text_and_no_other() -> None:
    """A text in a demonstration is left out of the head's rows, and its single words are not."""
    prompt = (
        'It is ok to say cat.\n\nNotes:\n- "dog": walks, barks\n\nExamples:\n\n'
        'Text: train 12\nAnswer: {"category": "cat"}\n\n'
        'Text: a long text that someone wrote, ok\nAnswer: {"category": "dog"}'
    )
    others = ["ok", "cat", "train 1", "a long text that", ""]
    assert left(prompt, "train 12", "a long text  that someone wrote, ok", *others) == others


@pytest.mark.parametrize(
    "prompt",
    [
        "Decide.\n- {}\n- another",
        "Decide.\nInput: {}\nOutput: cat",
        'Decide. "{}" is a cat.',
        "Decide. \u201c{}\u201d is a cat.",
        "Decide. '{}' is a cat; don't worry.",
        "Decide. `{}` is a cat.",
        "Decide.\n{}\nis a cat.",
    ],
)
def test_a_row_that_a_reflection_model_copied_is_shown(prompt: str) -> None:
    """A text copied into a prompt is left out of the head's rows, in every usual form."""
    for copied in ("meow!", "two cats\n on a mat at noon"):
        others = ["mat", "cats", "me"]
        assert left(prompt.format(" ".join(copied.split())), copied, *others) == others
    within = "Rows such as (two cats on a mat)? are cats, and two dogs on a mattress are not."
    others = ["two dogs on a mat"]
    assert left(within, "two cats on a mat", "(two cats on a mat)?", *others) == others


def test_training_rows_of_the_best_prompt_are_left_out() -> None:
    """Training rows that the best prompt shows are left out of the head's rows."""

    def imitator(text: str, prompt: str) -> dict[str, float]:
        if "Text: " not in prompt:
            return learner(text, prompt)
        said = place(text) if text != "validation 3" else 1 - place(text)
        return {LABELS[said]: 0.9, LABELS[1 - said]: 0.1}

    client = FakeClient(LABELS, imitator)
    result = optimize(hidden_task(), model=client, max_metric_calls=400, minibatch_size=6)
    best = result.best_prompt.prompt
    assert result.chosen
    shown = [row for row in hidden_task().train if f"Text: {row.input}\n" in best]
    assert shown
    assert result.final is not None
    free = [row for row in hidden_task().train if row not in shown]
    assert result.final.head["n_rows"] == len(hidden_task().validation) + len(free)
    assert all(row.input not in best for row in hidden_task().test)


# --- where there is none ------------------------------------------------------------------------


def test_several_labels_have_no_head(tmp_path: Path) -> None:
    """A search over several labels has no final figures and writes no head."""
    answers = ('["cat"]', '["dog"]')

    def several(split: str, count: int) -> tuple[Example, ...]:
        return tuple(replace(row, answer=answers[place(row.input)]) for row in hidden_rows(split, count))

    labels = MultiLabels(LABELS)
    task = hidden_task(
        labels=labels,
        train=several("train", 12),
        validation=several("validation", 8),
        test=several("test", 6),
    )
    client = FakeClient(labels, lambda text: (answers[0], 0.9 - 0.3 * place(text)))
    result = optimize(task, model=client, max_metric_calls=60, minibatch_size=3, out=tmp_path)
    assert result.final is None
    assert json.loads((tmp_path / "result.json").read_text())["final"] is None
    assert not (tmp_path / "head.json").exists()
    assert '"prompt": "final"' not in (tmp_path / "predictions.jsonl").read_text()


def test_a_cascade_has_no_head(tmp_path: Path) -> None:
    """A search over a cascade has no final figures and writes no head."""
    models = [
        Classifier(model=FakeClient(LABELS, biased, name=name), labels=LABELS, field="category", prompt="?")
        for name in ("small", "large")
    ]
    cascade = Cascade(models, method="label_probability", threshold=0.8)
    result = optimize(hidden_task(), model=cascade, out=tmp_path, **BUDGET)
    assert result.final is None
    assert not (tmp_path / "head.json").exists()


def test_a_model_without_distributions_has_no_head() -> None:
    """A search over a model without distributions has no final figures."""
    client = FakeClient(LABELS, biased, space="none")
    result = optimize(hidden_task(), model=client, **BUDGET)
    assert result.final is None


# --- the verdict --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "answers", "said"),
    [
        (False, LABELS, "The model adds +"),
        (True, LABELS, "On these rows the model adds nothing certain to TF-IDF"),
        (
            True,
            LABELS[::-1],
            "On this task you do not need a language model: TF-IDF with logistic regression is",
        ),
        (True, None, "No row was answered, so nothing can be said"),
    ],
)
def test_the_verdict_judges_the_model(told: bool, answers: tuple[str, str] | None, said: str) -> None:
    """The verdict follows the interval of the difference from TF-IDF, or says it is missing."""
    kinds = ("meow", "woof")

    def split(name: str, count: int) -> tuple[Example, ...]:
        plain = hidden_rows(name, count)
        return tuple(
            replace(row, input=f"{row.input} {kinds[LABELS.index(row.answer)]}") if told else row
            for row in plain
        )

    task = hidden_task(train=split("train", 40), validation=split("validation", 30), test=split("test", 30))
    answered = [] if answers is None else task.test
    found = compare_with_baselines(
        answered,
        [(answers or LABELS)[LABELS.index(row.answer)] for row in answered],
        [*task.train, *task.validation],
        labels=task.labels,
        failed=len(task.test) - len(answered),
    )
    assert found.verdict.startswith(said)
    assert (found.against_text is None) is (answers is None)
    assert ("95 % interval" in found.verdict) is (answers is not None)


@pytest.mark.parametrize("before", [20, 75, 100, 115])
def test_an_interrupted_run_goes_on_and_asks_nothing_twice(tmp_path: Path, before: int) -> None:
    """A search interrupted at any stage ends with the same result, and asks no text twice."""
    whole = optimize(hidden_task(), model=FakeClient(LABELS, learner), **BUDGET)

    client = interrupted(learner, before)
    with pytest.raises(Interrupted):
        optimize(hidden_task(), model=client, out=tmp_path, **BUDGET)
    resumed = FakeClient(LABELS, learner)
    found = optimize(hidden_task(), model=resumed, out=tmp_path, **BUDGET)
    assert {**found.to_record(), "seconds": None} == {**whole.to_record(), "seconds": None}
    answered = set(asked_about(client)[:before])
    assert len(set(asked_about(resumed))) == len(asked_about(resumed))
    assert len(answered & set(asked_about(resumed))) <= 10  # in flight when it ended
