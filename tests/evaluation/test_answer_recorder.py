"""Tests of `AnswerRecorder`: a service's answers in the history, also when the database fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import Outcome, Prediction, StateError
from calibrant.evaluation import EvaluationHistory
from calibrant.evaluation._history import AnswerRecorder, RunScope

SCOPE = RunScope(account_id="acme", task="animals", profile_name="v1")
CONFIDENCE = {"account_id": "acme", "evaluator_id": "animals/confidence", "profile_name": "v1"}


def answers(*confidences: float | None) -> list[Prediction]:
    """Return labelled answers of these confidences."""
    return [Prediction(label="cat", confidence=one) for one in confidences]


def test_confidences_of_labelled_answers_are_recorded(tmp_path: Path) -> None:
    """Confidences of labelled answers are recorded; failures and missing confidences are left out."""
    history = EvaluationHistory(tmp_path / "history.sqlite")
    recorder = AnswerRecorder(history, SCOPE)
    recorder.add(answers(0.2, None, 0.4))
    recorder.add([Prediction(label=None, outcome=Outcome.ERROR, reason="x", confidence=None)])
    recorder.add(answers(0.9))
    recorder.close()
    (found,) = history.scopes()
    assert (found.scope.evaluator_id, found.scores) == ("animals/confidence", 3)
    assert found.mean == pytest.approx(0.5)
    interval = history.interval(**CONFIDENCE)
    assert (interval.scores, interval.score_type) == (3, "continuous")


class Locked(EvaluationHistory):
    """A history that raises an error until `locked` is set to False."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.tried = threading.Event()
        self.locked = True

    def record_results(self, *scores: Any, **scope: Any) -> int:
        if self.locked:
            self.tried.set()
            raise StateError("locked")
        return super().record_results(*scores, **scope)


def test_what_cannot_be_recorded_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Answers added while the history is locked are recorded later, and one warning is logged."""
    history = Locked(tmp_path / "history.sqlite")
    recorder = AnswerRecorder(history, SCOPE)
    recorder.add(answers(0.1))
    assert history.tried.wait(30)
    recorder.add(answers(0.2, 0.3))
    history.locked = False
    recorder.close()
    assert history.scopes()[0].scores == 3
    assert [record.message for record in caplog.records] == [
        "Answers cannot be recorded in the history now: locked"
    ]


def test_of_very_many_that_wait_the_latest_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At most 10,000 answers wait; those that are lost at the end are counted in the log."""
    history = Locked(tmp_path / "history.sqlite")
    recorder = AnswerRecorder(history, SCOPE)
    recorder.add(answers(*[0.0] * 9_000))
    assert history.tried.wait(30)
    recorder.add(answers(*[1.0] * 9_000))
    recorder.close()
    assert "10000 answers were not recorded in the history." in caplog.text
    history.locked = False
    again = AnswerRecorder(history, SCOPE)
    again.close()
    assert history.scopes() == []
