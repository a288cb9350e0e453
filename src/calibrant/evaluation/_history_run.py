"""A finished run enters the history, and is compared with it."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrant.core._errors import StateError
from calibrant.core._prediction import Outcome
from calibrant.core._predictor import Predictor
from calibrant.core._run_rows import UNKNOWN
from calibrant.evaluation._drift import Drift
from calibrant.evaluation._history import EvaluationHistory, HistoryInterval
from calibrant.runs._directory import PREDICTIONS
from calibrant.runs._folder import write_json
from calibrant.runs._row_file import RowFile
from calibrant.store._scores import Scope

_FILE: Final = "history.json"
_CONFIDENCE: Final = "/confidence"


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """What the history says about a run that entered it.

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
    """Where runs of a classifier on a task are recorded.

    Right and wrong rows belong to the evaluator named like the task (family ``exact-match``),
    confidences to the one named ``TASK/confidence`` (family ``metrics``).

    Parameters
    ----------
    account_id, task, profile_name : str
        Names as in `calibrant.store.Scope`.

    Raises
    ------
    ConfigurationError
        A name cannot be stored.
    """

    def __init__(self, *, account_id: str, task: str, profile_name: str) -> None:
        self._correct, self._confidence = (
            dict[str, Any](
                Scope(account_id=account_id, evaluator_id=evaluator, profile_name=profile_name).columns()
            )
            for evaluator in (task, task + _CONFIDENCE)
        )

    @staticmethod
    def profile_of(classifier: Predictor) -> str:
        """Return a name that changes with all that can change a prediction: prompt, model, options, labels."""
        described = {**classifier.describe(), "labels": list(classifier.labels.labels)}
        text = json.dumps(described, sort_keys=True, default=repr)
        return f"prompt-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"

    def record(self, history: EvaluationHistory, directory: Path) -> HistoryEntry:
        """Record the run in `directory`; a second time, it takes the place of the first.

        Rows that failed for the server's reasons are left out.

        Raises
        ------
        StateError
            The database or the directory cannot be read or written.
        """
        run_id = _run_id(directory / _FILE)
        correct, confidence = _read(directory / PREDICTIONS)
        drift = history.drift(confidence, without_run=run_id, **self._confidence)
        recorded = history.record_run(correct, run_id=run_id, family="exact-match", **self._correct)
        history.record_run(confidence, run_id=run_id, family="metrics", **self._confidence)
        entry = HistoryEntry(
            run_id=run_id, recorded=recorded, interval=history.interval(**self._correct), drift=drift
        )
        write_json(directory / _FILE, entry.to_record())
        return entry

    def record_answers(self, history: EvaluationHistory, confidences: Sequence[float]) -> None:
        """Record confidences of answers that belong to no run, all or none.

        Raises
        ------
        StateError
            The database cannot be written.
        """
        history.record_results(confidences, family="metrics", **self._confidence)


def _run_id(path: Path) -> str:
    """Return the run's name, on disk before anything is recorded under it."""
    if path.exists():
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["run_id"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StateError(
                f"{path}: expected the name of the run, got something else ({error!r}): delete it; the "
                "run is then recorded as a new one."
            ) from error
    run_id = uuid.uuid4().hex
    write_json(path, {"run_id": run_id})
    return run_id


def _read(path: Path) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Return the correctness of the answered rows, and the confidences."""
    correct, confidence = array("b"), array("d")
    for _, row in RowFile(path).rows():
        if row.correct != UNKNOWN:
            correct.append(row.correct)
        if row.outcome is Outcome.OK and not math.isnan(row.confidence):
            confidence.append(row.confidence)
    return np.array(correct), np.array(confidence)
