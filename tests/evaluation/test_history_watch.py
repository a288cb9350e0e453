"""Tests of the drift of new predictions against a history."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations, zip_longest
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from calibrant.core import Fingerprint, LogprobSpace, MultiLabels, Prediction, Task
from calibrant.evaluation._drift import HistoryDrift, HistoryWatch
from calibrant.tuned import Measurements, PredictionHistory, RecordedTask, Sketches, Tuned

Drift = Callable[..., HistoryDrift]


@pytest.fixture
def drift() -> Drift:
    """Return a function that compares labels and confidences with a history."""
    task = Task(name="animals", labels=["cat", "dog"], prompt="Which animal?")
    asked = Fingerprint(prompt=task.prompt, model="small", space=LogprobSpace.MASKED, labels=task.labels)
    tuned = Tuned(tasks=(RecordedTask(task=task),), fingerprint=asked)

    def compare(
        then: Mapping[str, int],
        now: Mapping[str, int],
        confidences: tuple[Sequence[float], Sequence[float]] | None = None,
        block: int = 100,
        keys: Sequence[int] = (),
    ) -> HistoryDrift:
        labels = [label for label, count in now.items() for _ in range(count)]
        earlier, later = confidences or ([0.5] * sum(then.values()), [0.5] * len(labels))
        history = PredictionHistory(rows=sum(then.values()), labels=dict(then), confidence=tuple(earlier))
        watch = HistoryWatch(replace(tuned, measurements=Measurements(history=history)))
        answers = zip_longest(labels, later, keys)
        found = [Prediction(label=label, confidence=c, text_key=key) for label, c, key in answers]
        decided = [
            decision
            for start in range(0, len(found), block)
            for decision in watch.decide_many(found[start : start + block])
        ]
        assert decided == tuned.decide_many(found)
        drifted = watch.drift()
        assert drifted is not None
        return drifted

    return compare


def test_files_of_the_same_moment_have_numbers_of_their_own(calibrant_home: Path) -> None:
    """Of many files that are compared with a history at once, no two have the same number."""
    task = Task(name="animals", labels=["cat", "dog"], prompt="Which animal?")
    asked = Fingerprint(prompt=task.prompt, model="small", space=LogprobSpace.MASKED, labels=task.labels)
    history = PredictionHistory(rows=4, labels={"cat": 2, "dog": 2}, confidence=(0.5,) * 4)
    tuned = Tuned(
        tasks=(RecordedTask(task=task),), fingerprint=asked, measurements=Measurements(history=history)
    )
    together = Barrier(40)

    def look(number: int) -> int:
        watch = HistoryWatch(tuned, counts_files=True)
        watch.decide_many([Prediction(label="cat", confidence=0.5 + number / 100)])
        together.wait()
        found = watch.drift()
        return 0 if found is None else found.look

    with ThreadPoolExecutor(together.parties) as threads:
        looks = list(threads.map(look, range(together.parties)))
    assert sorted(looks) == list(range(1, 41))
    assert (calibrant_home / "drift.jsonl").read_text().count("\n") == 40


def test_the_p_value_is_that_of_all_permutations(drift: Drift) -> None:
    """The p-value of the labels is the share of all ways to divide the rows that are as far apart."""
    found = drift({"cat": 6, "dog": 2}, {"cat": 1, "dog": 4})
    is_dog = np.array([0] * 7 + [1] * 6)
    distances = [
        abs(is_dog[list(new)].mean() - np.delete(is_dog, list(new)).mean())
        for new in combinations(range(13), 5)
    ]
    assert found.label_distance == pytest.approx(0.55)
    exact = np.mean(np.array(distances) > 0.55 - 1e-9)
    assert found.label_p_value == pytest.approx(exact, abs=0.01)


def test_one_rare_label_is_no_drift(drift: Drift) -> None:
    """A label that the history has not shown, once among few rows, is no drift; many of them are."""
    assert not drift({"cat": 80}, {"cat": 2, "dog": 1}).labels_drifted
    assert drift({"cat": 80}, {"cat": 60, "dog": 20}).labels_drifted


def test_false_alarms_are_rare(drift: Drift) -> None:
    """Of comparisons of rows that are drawn alike about one in a hundred warns of each."""
    rng = np.random.default_rng(0)
    labels = confidence = 0
    for _ in range(60):
        dogs = rng.binomial([40, 30], 0.3)
        then, now = ({"cat": int(n - k), "dog": int(k)} for n, k in zip((40, 30), dogs, strict=True))
        found = drift(then, now, (list(rng.beta(5, 2, 40)), list(rng.beta(5, 2, 30))))
        labels += found.labels_drifted
        confidence += found.confidence_drifted
    assert labels <= 3
    assert confidence <= 3


def test_many_rows_are_sampled_evenly(drift: Drift) -> None:
    """Of more than 1,000 rows a sample is compared in which early and late rows have the same chance."""
    low, high = [0.2] * 3000, [0.8] * 3000
    found = drift({"cat": 1000}, {"cat": 6000}, ([0.8] * 1000, low + high), block=256)
    assert found.rows == 6000
    assert found.confidence.values == 1000
    assert found.confidence.mean == pytest.approx(0.5, abs=0.05)
    assert found.confidence_drifted


def test_large_files_with_small_distances_are_no_drift(drift: Drift) -> None:
    """A distance below 0.05 is no drift, however small its p-value is; one above it is."""
    small = drift({"cat": 50_000, "dog": 50_000}, {"cat": 5_200, "dog": 4_800})
    assert small.label_p_value < small.level
    assert not small.labels_drifted
    assert drift({"cat": 50_000, "dog": 50_000}, {"cat": 5_600, "dog": 4_400}).labels_drifted


# --- several labels a row -------------------------------------------------------------------------

Counts = Mapping[tuple[str, ...], int]


@pytest.fixture
def several() -> Drift:
    """Return a function that compares rows of several labels, given their numbers, with a history."""
    task = Task(name="pets", labels=MultiLabels(["cat", "dog", "owl", "pig"]), prompt="Which animals?")
    asked = Fingerprint(prompt=task.prompt, model="small", space=LogprobSpace.MASKED, labels=task.labels)
    tuned = Tuned(tasks=(RecordedTask(task=task),), fingerprint=asked)

    def answers(counts: Counts) -> list[str]:
        rows = [
            task.labels.canonical(json.dumps(labels))
            for labels, count in counts.items()
            for _ in range(count)
        ]
        return [row for row in rows if row is not None]

    def compare(then: Counts, now: Counts) -> HistoryDrift:
        earlier, later = answers(then), answers(now)
        history = PredictionHistory.of(earlier, np.full(len(earlier), 0.5), labels=task.labels)
        watch = HistoryWatch(replace(tuned, measurements=Measurements(history=history)))
        watch.decide_many([Prediction(label=label, confidence=0.5) for label in later])
        found = watch.drift()
        assert found is not None
        return found

    return compare


def test_labels_that_come_together_count_once(several: Drift) -> None:
    """Labels of one row are no independent evidence: the p-value is that of the rows, times the number of labels."""
    pairs = several({("cat", "dog"): 50, ("owl", "pig"): 50}, {("cat", "dog"): 32, ("owl", "pig"): 12})
    alone = several({("cat",): 50, ("owl",): 50}, {("cat",): 32, ("owl",): 12})
    assert (pairs.rows, pairs.history) == (44, 100)
    assert 0.005 < alone.label_p_value < 0.02
    assert pairs.label_p_value == pytest.approx(4 * alone.label_p_value)
    assert not pairs.labels_drifted


def test_more_labels_a_row_are_drift(several: Drift) -> None:
    """Rows with all labels where few had any are drift, although each label's share of the labels is the same."""
    every = ("cat", "dog", "owl", "pig")
    found = several({(): 80, every: 20}, {(): 20, every: 80})
    assert found.labels_drifted
    assert found.shares["cat"] == pytest.approx((0.2, 0.8))
    assert found.label_distance == pytest.approx(0.6)


# --- topics ---------------------------------------------------------------------------------------

LETTERS = list("abcdefghijklmnopqrstuvwxyz")
Labelled = tuple[Sequence[str], np.ndarray[tuple[int, int], np.dtype[np.float64]]]


@pytest.fixture
def topics() -> Drift:
    """Return a function that compares labelled sketches with earlier ones; all confidences are equal."""
    task = Task(name="animals", labels=["cat", "dog", *LETTERS], prompt="Which animal?")
    asked = Fingerprint(prompt=task.prompt, model="small", space=LogprobSpace.MASKED, labels=task.labels)
    tuned = Tuned(tasks=(RecordedTask(task=task),), fingerprint=asked)

    def compare(then: Labelled, now: Labelled, keys: Sequence[int] | None = None) -> HistoryDrift:
        labels, matrix = then
        history = PredictionHistory.of(
            labels,
            np.full(len(labels), 0.5),
            labels=task.labels,
            sketches=Sketches.of(labels, matrix.astype(np.float16)),
        )
        watch = HistoryWatch(replace(tuned, measurements=Measurements(history=history)))
        rows = zip(now[0], now[1].astype(np.float16), keys or [None] * len(now[0]), strict=True)
        watch.decide_many(
            [
                Prediction(label=label, confidence=0.5, sketch=sketch, text_key=key)
                for label, sketch, key in rows
            ]
        )
        found = watch.drift()
        assert found is not None
        return found

    return compare


def test_topics_change_where_labels_and_confidence_do_not(topics: Drift) -> None:
    """Texts that moved within one label are drift of that label, while labels and confidences are as before."""
    rng = np.random.default_rng(0)
    then, now = rng.standard_normal((200, 64)), rng.standard_normal((100, 64))
    now[::2] += 0.5 * (rng.random(64) < 0.5)
    found = topics((["cat", "dog"] * 100, then), (["cat", "dog"] * 50, now))
    assert found.topics_drifted
    assert found.has_drifted
    assert (found.labels_drifted, found.confidence_drifted) == (False, False)
    assert found.topics is not None
    assert (found.topics.label, found.topics.values, found.topics.history) == ("cat", 100, 200)


def test_other_labels_are_no_other_topics(topics: Drift) -> None:
    """Texts are compared within labels: more cats, whose texts are unlike those on dogs, are no change of topic."""
    rng = np.random.default_rng(1)
    then, now = rng.standard_normal((200, 64)), rng.standard_normal((100, 64))
    then[:100] += 3.0
    now[:80] += 3.0
    found = topics((["cat"] * 100 + ["dog"] * 100, then), (["cat"] * 80 + ["dog"] * 20, now))
    assert (found.labels_drifted, found.topics_drifted) == (True, False)


def test_opposite_changes_of_two_labels_are_seen(topics: Drift) -> None:
    """Texts of two labels that move in opposite directions are seen, although their common mean is as before."""
    rng = np.random.default_rng(2)
    then, now = rng.standard_normal((200, 64)) + 5.0, rng.standard_normal((100, 64)) + 5.0
    now[::2] += 0.4
    now[1::2] -= 0.4
    labels = ["cat", "dog"]
    assert topics((labels * 100, then), (labels * 50, now)).topics_drifted


def test_a_small_change_of_many_labels_is_seen_together(topics: Drift) -> None:
    """Texts of many labels, few of each, that all move a little in one direction are compared together, too."""
    rng = np.random.default_rng(2)
    then, now = rng.standard_normal((104, 64)) + 5.0, rng.standard_normal((52, 64)) + 5.0
    same = topics((LETTERS * 4, then), (LETTERS * 2, now))
    moved = topics((LETTERS * 4, then), (LETTERS * 2, now + 0.16))
    assert (same.topics_drifted, moved.topics_drifted) == (False, True)


def test_the_p_value_of_topics_holds_its_level(topics: Drift) -> None:
    """If nothing changed, about one p-value in five is at most 0.2, with labels of unequal numbers."""
    rng = np.random.default_rng(3)
    small = 0
    for _ in range(50):
        then, now = rng.standard_normal((60, 8)) ** 3, rng.standard_normal((40, 8)) ** 3
        found = topics((["cat"] * 50 + ["dog"] * 10, then), (["cat"] * 33 + ["dog"] * 7, now)).topics
        assert found is not None
        small += found.p_value <= 0.2
    assert 1 <= small <= 17  # 10 are expected at most


def test_a_text_that_comes_again_counts_once(topics: Drift) -> None:
    """Copies of rows are no drift that the rows are not."""
    rng = np.random.default_rng(5)
    then, now = rng.standard_normal((60, 64)), rng.standard_normal((20, 64))
    labels = ["cat", "dog"]
    once = topics((labels * 30, then), (labels * 10, now))
    again = topics(
        (labels * 30, then), (labels * 20, np.repeat(now.reshape(10, 2, 64), 2, axis=0).reshape(40, 64))
    )
    assert again.topics == once.topics
    assert (again.rows, again.label_p_value) == (once.rows, once.label_p_value)


def test_different_texts_that_are_one_to_a_head_count_each(topics: Drift) -> None:
    """A file in a script that the head knows no word of has drifted, although it reads the same in all of its texts."""
    then = np.random.default_rng(6).standard_normal((200, 64))
    now = (["cat"] * 60, np.zeros((60, 64)))
    assert not topics((["cat", "dog"] * 100, then), now).has_drifted  # nobody knows that its texts differ
    found = topics((["cat", "dog"] * 100, then), now, keys=range(60))
    assert (found.rows, found.labels_drifted) == (60, True)


def test_equal_texts_count_once_where_no_head_reads_them(drift: Drift) -> None:
    """Their keys tell them, and without a key every prediction counts."""
    then = {"cat": 60, "dog": 40}
    once, again = (
        drift(then, {"cat": 3 * n, "dog": 7 * n}, keys=[*range(3)] * n + [*range(3, 10)] * n) for n in (1, 6)
    )
    assert (again.rows, again.label_p_value) == (once.rows, once.label_p_value)
    assert drift(then, {"cat": 18, "dog": 42}).label_p_value < 0.001 < once.label_p_value


def test_a_label_without_earlier_texts_is_left_out(topics: Drift) -> None:
    """Texts of a label that the history lacks are not compared, and nothing is if there is no other label."""
    rng = np.random.default_rng(4)
    then, now = rng.standard_normal((30, 64)), rng.standard_normal((30, 64))
    found = topics((["cat"] * 30, then), (["dog"] * 20 + ["cat"] * 10, now)).topics
    assert found is not None
    assert (found.values, found.history) == (10, 30)
    none = topics((["cat"] * 30, then), (["dog"] * 30, now + 9.0)).topics
    assert none is not None
    assert (none.values, none.p_value, none.label) == (0, 1.0, None)
