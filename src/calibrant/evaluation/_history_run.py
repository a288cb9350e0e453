"""Recording of runs and service answers in the history."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from calibrant.core._errors import StateError
from calibrant.core._files import read_json_object
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import Predictor
from calibrant.evaluation._drift import Drift
from calibrant.evaluation._history import EvaluationHistory, HistoryInterval
from calibrant.evaluation._metrics import EvaluationResult
from calibrant.runs._directory import write_json
from calibrant.runs._rows import UNKNOWN
from calibrant.store._scores import Scope

_FILE: Final = "history.json"
_CONFIDENCE: Final = "/confidence"

_LOG = logging.getLogger("calibrant")
# A database that is away for hours must not fill the memory, and only the latest 1,000 scores ever count.
_MOST_WAITING: Final = 10_000
_SECONDS_TO_RETRY: Final = 5.0
_SECONDS_TO_CLOSE: Final = 10.0  # twice the time that a locked database is waited for


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """Run that was recorded in the history, with its interval and drift.

    Attributes
    ----------
    run_id : str
        Stays the same when the run is recorded again.
    recorded : int
        Rows recorded as right (1) or wrong (0), at most 1,000.
    interval : HistoryInterval
        Of the accuracy, over the latest 1,000 rows, this run included.
    drift : Drift
        Of the confidence, against the latest 1,000 of earlier runs.
    """

    run_id: str
    recorded: int
    interval: HistoryInterval
    drift: Drift

    def to_record(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return asdict(self)


class RunScope:
    """Names under which runs of a classifier on a task are recorded.

    Right and wrong rows belong to the evaluator named like the task (family ``exact-match``),
    confidences to the one named ``TASK/confidence`` (family ``metrics``).

    Parameters
    ----------
    account_id, task, profile_name : str
        Names as in `calibrant.store.Scope`.

    Attributes
    ----------
    confidence : dict of str to str
        Scope of the confidences.

    Raises
    ------
    ConfigurationError
        A name cannot be stored.
    """

    def __init__(self, *, account_id: str, task: str, profile_name: str) -> None:
        self._correct, self.confidence = (
            dict[str, Any](
                Scope(account_id=account_id, evaluator_id=evaluator, profile_name=profile_name).columns()
            )
            for evaluator in (task, task + _CONFIDENCE)
        )

    @classmethod
    def of(cls, classifier: Predictor, *, account_id: str, task: str, profile_name: str | None) -> RunScope:
        """Return the scope of a classifier; the default profile is a digest of its description."""
        if not profile_name:
            described = {**classifier.describe(), "labels": list(classifier.labels.labels)}
            text = json.dumps(described, sort_keys=True, default=repr)
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            profile_name = f"prompt-{digest[:16]}"
        return cls(account_id=account_id, task=task, profile_name=profile_name)

    def record(self, history: EvaluationHistory, result: EvaluationResult, directory: Path) -> HistoryEntry:
        """Record the run, replacing an earlier record of it; its name is kept in its directory.

        Rows that failed with a transport error are left out.

        Raises
        ------
        StateError
            The database or the directory cannot be read or written.
        """
        run_id = _run_id(directory / _FILE)
        correct = result.correct[result.correct != UNKNOWN]
        confidence = result.confidence[~np.isnan(result.confidence)]
        drift = history.drift(confidence, without_run=run_id, **self.confidence)
        recorded = history.record_run(correct, run_id=run_id, family="exact-match", **self._correct)
        history.record_run(confidence, run_id=run_id, family="metrics", **self.confidence)
        entry = HistoryEntry(
            run_id=run_id, recorded=recorded, interval=history.interval(**self._correct), drift=drift
        )
        write_json(directory / _FILE, entry.to_record())
        return entry


class AnswerRecorder:
    """Background thread that records the confidences of answers in a history.

    They are single results (``capture="always"``) of the evaluator ``TASK/confidence``, where `RunScope` records the
    confidences of runs. While the database cannot be written, the latest 10,000 wait, and it is tried again every five
    seconds.

    Parameters
    ----------
    history : EvaluationHistory
        The database.
    scope : RunScope
        Its names in the history.

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
        """Queue the confidences of answers without blocking.

        Answers without a label or a confidence, and calls that failed, have no score and are left out.
        """
        for prediction in predictions:
            if prediction.outcome is Outcome.OK and prediction.confidence is not None:
                self._waiting.append(prediction.confidence)
        self._work.set()

    def close(self) -> None:
        """Record the queued answers and end the thread; unrecorded answers are dropped and logged."""
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
        """Record the queued answers in one transaction; return False on failure."""
        scores = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            self._history.record_results(scores, family="metrics", **self._scope.confidence)
        except StateError as error:
            if not self._failing:
                _LOG.warning("Answers cannot be recorded in the history now: %s", error)
            self._failing = True
            # A full deque would throw away the latest answers for these.
            free = _MOST_WAITING - len(self._waiting)
            self._waiting.extendleft(reversed(scores[max(0, len(scores) - free) :]))
            return False
        self._failing = False
        return True


def _run_id(path: Path) -> str:
    """Return the run's identifier, which is stored on disk before the run is recorded."""
    if path.exists():
        remedy = "delete it; the run is then recorded as a new one"
        record = read_json_object(path, remedy=remedy)
        if "run_id" not in record:
            raise StateError(f"{path}: expected the name of the run, got {record!r:.100}: {remedy}.")
        return str(record["run_id"])
    run_id = uuid.uuid4().hex
    write_json(path, {"run_id": run_id})
    return run_id
