"""Tests of the drift of new predictions against a history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from calibrant.core import Prediction, Task
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import LogprobSpace
from calibrant.evaluation._drift import HistoryDrift, HistoryWatch
from calibrant.tuned import Measurements, PredictionHistory, RecordedTask, Tuned

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
    ) -> HistoryDrift:
        labels = [label for label, count in now.items() for _ in range(count)]
        earlier, later = confidences or ([0.5] * sum(then.values()), [0.5] * len(labels))
        history = PredictionHistory(rows=sum(then.values()), labels=dict(then), confidence=tuple(earlier))
        watch = HistoryWatch(replace(tuned, measurements=Measurements(history=history)))
        found = [Prediction(label=label, confidence=c) for label, c in zip(labels, later, strict=True)]
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
