"""Answers of a running service enter the history."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from calibrant.core._errors import StateError
from calibrant.core._prediction import Outcome, Prediction
from calibrant.evaluation._history import EvaluationHistory
from calibrant.evaluation._history_run import RunScope

_LOG = logging.getLogger("calibrant")
# A database that is away for hours must not fill the memory, and only the latest 1,000 scores ever count.
_MOST_WAITING: Final = 10_000
_SECONDS_TO_RETRY: Final = 5.0
_SECONDS_TO_CLOSE: Final = 10.0  # twice what a locked database is waited for


class AnswerRecorder:
    """Records the confidence of every answer in a history, in a thread of its own.

    They are single results (``capture="always"``) of the evaluator ``TASK/confidence``, where `RunScope` records the
    confidences of runs. While the database cannot be written, the latest 10,000 wait, and it is tried again every five
    seconds.

    Parameters
    ----------
    history : EvaluationHistory
        Where to record.
    scope : RunScope
        Under which names.

    Examples
    --------
    >>> import tempfile
    >>> history = EvaluationHistory(tempfile.mkdtemp() + "/history.db")
    >>> recorder = AnswerRecorder(history, RunScope(account_id="acme", task="reviews", profile_name="v1"))
    >>> recorder.add([Prediction(label="good", confidence=0.9)])
    >>> recorder.close()
    >>> history.scopes()[0].scores
    1
    """

    def __init__(self, history: EvaluationHistory, scope: RunScope) -> None:
        self._history = history
        self._scope = scope
        self._waiting: deque[float] = deque(maxlen=_MOST_WAITING)
        self._work = threading.Event()
        self._closing = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="calibrant-history", daemon=True)
        self._thread.start()

    def add(self, predictions: Iterable[Prediction]) -> None:
        """Note the confidences of answers, and return at once.

        Answers without a label or a confidence, and calls that failed, have no score and are left out.
        """
        for prediction in predictions:
            if prediction.outcome is Outcome.OK and prediction.confidence is not None:
                self._waiting.append(prediction.confidence)
        self._work.set()

    def close(self) -> None:
        """Record what waits and end the thread; what cannot be recorded now is lost, and logged."""
        self._closing.set()
        self._work.set()
        self._thread.join(_SECONDS_TO_CLOSE)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._work.wait()
            self._work.clear()
            while not self._write() and not self._closing.wait(_SECONDS_TO_RETRY):
                pass
        if not self._write():
            _LOG.error("%d answers were not recorded in the history.", len(self._waiting))

    def _write(self) -> bool:
        """Record what waits, in one transaction; return False where that fails."""
        scores = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            self._scope.record_answers(self._history, scores)
        except StateError as error:
            if not self._failing:
                _LOG.warning("Answers cannot be recorded in the history now: %s", error)
            self._failing = True
            # At most what is free: a full deque would throw away the latest ones for these.
            free = _MOST_WAITING - len(self._waiting)
            self._waiting.extendleft(reversed(scores[max(0, len(scores) - free) :]))
            return False
        self._failing = False
        return True
