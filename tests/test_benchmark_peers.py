"""Tests of the peers of the benchmarks, and of intervals over labelled draws and test rows."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from _better_figures import Figures, interval
from _peers import vectors_and_names, words_alone
from _tasks import TASKS, drawn_rows, labelled_rows, task_of

LABELLED = [
    ("my parcel is late", "delivery"),
    ("the parcel came broken", "delivery"),
    ("pay me back", "refund"),
]


class LetterVectors:
    """Vectors of length 1 of how often each letter occurs in a text."""

    def vectors(self, texts: list[str]) -> np.ndarray:
        """Return shape (texts, 26)."""
        counts = np.array(
            [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        )
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)


def test_words_know_a_label_by_its_name_alone() -> None:
    """A label that no row has is found by the words of its name, and by nothing without the names."""
    labels = ["delivery", "refund", "opening_hours"]
    text = ["what are your opening hours"]
    assert words_alone(LABELLED, text, labels).argmax() == 2
    assert words_alone(LABELLED, text, labels, with_names=False)[0, 2] == 0.0


def test_vectors_know_a_label_by_its_name_alone() -> None:
    """The same for vectors, whose names are weighed alike."""
    labels = ["delivery", "refund", "zzzz"]
    assert vectors_and_names(LABELLED, ["zz zz"], labels, LetterVectors()).argmax() == 2


def test_frequent_labels_weigh_no_more() -> None:
    """A text that both labels have is as likely the rare one as the frequent one."""
    rows = [("hello there", "refund"), *[("hello there", "delivery")] * 30]
    found = words_alone(rows, ["hello there"], ["delivery", "refund"], with_names=False)
    assert np.allclose(found, 0.5, atol=1e-3)


def test_intervals_cover_the_labelled_draw() -> None:
    """Where draws differ and rows do not, the interval is that of the draws; and the other way round."""
    truth = np.zeros(50, dtype=np.intp)
    right, wrong = np.eye(2)[[0] * 50], np.eye(2)[[1] * 50]
    by_draw = np.array([right, wrong] * 5)
    low, high = interval(Figures("draws", truth, n_labels=2, n_draws=10).of(by_draw, "accuracy"))
    assert low < 0.3
    assert high > 0.7
    half = np.eye(2)[[0, 1] * 25]
    low, high = interval(Figures("rows", truth, n_labels=2, n_draws=10).of(np.array([half] * 10), "accuracy"))
    assert 0.3 < low < 0.45
    assert 0.55 < high < 0.7


def test_figures_are_those_of_the_answers() -> None:
    """Accuracy, macro F1 and Brier score of a side that is right three times in four."""
    truth = np.array([0, 0, 1, 1])
    shares = np.array([[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]]])
    figures = Figures("task", truth, n_labels=2, n_draws=1)
    assert figures.of(shares, "accuracy")[0] == 0.75
    assert np.isclose(figures.of(shares, "macro F1")[0], (0.8 + 2 / 3) / 2)
    assert np.isclose(figures.of(shares, "Brier")[0], np.mean([0.01, 0.16, 0.04, 0.49]))


def test_draws_share_no_row_with_the_test() -> None:
    """A shipped task's labelled rows are drawn by a seed, and none is among its test rows."""
    task = task_of("banking", None)
    rows = drawn_rows(task, n=150, seed=3)
    assert rows == drawn_rows(task, n=150, seed=3) != drawn_rows(task, n=150, seed=4)
    assert sorted(rows) == sorted(labelled_rows(task))
    assert not {text for text, _ in rows} & {example.input for example in task.test}
    assert len(task.test) == 400
    assert "reviews" not in TASKS
