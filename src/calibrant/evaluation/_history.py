"""Evaluation history: scores of runs and answers in a database, with intervals of their means."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._files import Recorded, read_json_object, user_path
from calibrant.core._fingerprint import sha256_of
from calibrant.core._prediction import FloatArray, Interval, JsonObject, Outcome, Prediction
from calibrant.core._predictor import Predictor
from calibrant.core._reported import is_number
from calibrant.evaluation._drift import Drift, measure_drift
from calibrant.evaluation._metrics import EvaluationResult
from calibrant.metrics._intervals import bootstrap_interval, wilson_interval
from calibrant.metrics._validation import RandomSource
from calibrant.runs._directory import write_json
from calibrant.runs._rows import UNKNOWN
from calibrant.store._scores import Scope, ScopeSummary, Score

ScoreType = Literal["binary", "continuous"]
Strategy = Literal["none", "full-history"]

_LATEST: Final = 1_000
_LEAST: Final = 2
_ALWAYS: Final = "always"

SCORE_TYPES: Final[Mapping[str, ScoreType]] = MappingProxyType(
    {
        "custom": "binary",
        "exact-match": "binary",
        "metrics": "continuous",
        "phi": "binary",
        "pii": "binary",
        "retrieval-answer-relevance": "binary",
        "retrieval-context-relevance": "binary",
        "retrieval-context-sufficiency": "binary",
        "retrieval-hallucination": "binary",
        "toxicity": "continuous",
    }
)
"""Families of evaluators: binary ones say 0 (fail) or 1 (pass), continuous ones any number."""

_FILE: Final = "history.json"
_CONFIDENCE: Final = "/confidence"
_LOG = logging.getLogger("calibrant")
# A database that is away for hours must not fill the memory, and only the latest 1,000 scores ever count.
_MOST_WAITING: Final = 10_000
_SECONDS_TO_RETRY: Final = 5.0
_SECONDS_TO_CLOSE: Final = 10.0  # twice the time that a locked database is waited for


def default_history() -> str:
    """Return the URL or file of the user's history.

    ``$CALIBRANT_HISTORY`` (a SQLAlchemy URL or a file), or else ``history.sqlite`` in ``$CALIBRANT_HOME``,
    or else in ``calibrant`` in the user's folder for state (``$XDG_STATE_HOME``, ``~/.local/state``).
    """
    return os.environ.get("CALIBRANT_HISTORY") or str(user_path("history.sqlite", "state"))


@dataclass(frozen=True, kw_only=True)
class HistoryInterval:
    """Interval of an evaluator's mean score, from its history.

    Attributes
    ----------
    strategy : str
        ``none`` or ``full-history``.
    alpha : float
        The confidence level, in (0, 1).
    lower, median, upper : float or None
        Percentiles (1 - alpha) / 2, 1 / 2 and (1 + alpha) / 2 of resampled means; of binary scores,
        of the probability of a 1. All None under the strategy ``none``, and with fewer than two scores.
    scores : int
        Scores the interval is computed from; 0 under the strategy ``none``.
    score_type : {"binary", "continuous"} or None
        By the family, or, of evaluators without one, by the scores; None without scores.
    remark : str
        Why an interval of width 0 is no certainty, of binary scores with Wilson's interval; empty otherwise.

    Examples
    --------
    >>> HistoryInterval(strategy="full-history", alpha=0.95, scores=0, score_type=None).median is None
    True
    """

    strategy: str
    alpha: float
    lower: float | None = None
    median: float | None = None
    upper: float | None = None
    scores: int
    score_type: ScoreType | None
    remark: str = ""


class EvaluationHistory:
    """Database of evaluators' scores, with intervals over the latest ones.

    Scores of one account, evaluator and profile are a scope of their own; nothing computed from a
    scope depends on another. Several processes may record at once.

    Parameters
    ----------
    url : str or path, optional
        A SQLAlchemy URL, or the path of a SQLite file; by default `default_history`. Tested with
        SQLite and PostgreSQL (the extra ``postgres``). Credentials in it are never shown.
    busy_timeout : float, default 5.0
        Seconds to wait for the locks of other processes.
    create : bool, default True
        Make a missing file or table; if False, it is an error.

    Attributes
    ----------
    location : str
        The file, or the server and the database, without user, password and options.

    Raises
    ------
    ConfigurationError
        The URL cannot be read, names a database in memory or one whose driver is missing, or the
        timeout is out of range.
    StateError
        The database cannot be opened, is missing or damaged, or was written by another version.

    Examples
    --------
    >>> import tempfile
    >>> history = EvaluationHistory(tempfile.mkdtemp() + "/history.db")
    >>> scope = {"account_id": "acme", "evaluator_id": "judge", "profile_name": "strict"}
    >>> for score in [1, 1, 0, 1]:
    ...     stored = history.record(**scope, score_raw=score, family="custom")
    >>> history.interval(**scope).median
    0.75
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        busy_timeout: float = 5.0,
        create: bool = True,
    ) -> None:
        from calibrant.store._score_store import ScoreStore  # noqa: PLC0415 (loads the database's library)

        self._store = ScoreStore(
            default_history() if url is None else url, busy_timeout=busy_timeout, create=create
        )
        self.location = self._store.location

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    def record(  # noqa: PLR0913 (keyword-only)
        self,
        *,
        account_id: str,
        evaluator_id: str,
        profile_name: str,
        score_raw: float,
        passed: bool | None = None,
        family: str | None = None,
        capture: str = _ALWAYS,
    ) -> bool:
        """Record one result in one transaction.

        Parameters
        ----------
        account_id, evaluator_id, profile_name : str
            The scope, each of 1 to 255 bytes of printable UTF-8.
        score_raw : float
            Finite; 0 or 1 of a binary family.
        passed : bool, optional
            The pass flag. Of a binary family it equals the score, which is taken for it by default.
        family : str, optional
            One of `SCORE_TYPES`.
        capture : str, default "always"
            Single results enter the history under ``"always"`` alone; under any other one the result
            is checked and left out.

        Returns
        -------
        bool
            True if the result was stored.

        Raises
        ------
        ConfigurationError
            A name, the family or the score is not as above, or score and pass flag disagree.
        StateError
            The database cannot be written.
        """
        scope = Scope(account_id=account_id, evaluator_id=evaluator_id, profile_name=profile_name)
        if not isinstance(capture, str) or not capture:
            raise ConfigurationError(
                f"Expected capture 'always', or another word to leave it out, got {capture!r}."
            )
        number = _finite(score_raw, name="score_raw")
        if passed is not None and not isinstance(passed, bool | np.bool_):
            raise ConfigurationError(f"Expected passed to be True, False or None, got {passed!r:.100}.")
        [score] = _checked_scores([number], family, name="score_raw")
        if passed is not None and score.passed is not None and bool(passed) != score.passed:
            raise ConfigurationError(
                f"Expected passed to equal score_raw of the binary family {family!r}, got passed={bool(passed)} with "
                f"{number:g}: leave passed out, or correct one of them."
            )
        if passed is not None:
            score = replace(score, passed=bool(passed))
        if capture != _ALWAYS:
            return False
        self._store.add(scope, [score])
        return True

    def record_results(
        self,
        scores: ArrayLike,
        *,
        account_id: str,
        evaluator_id: str,
        profile_name: str,
        family: str | None = None,
    ) -> int:
        """Record several results in one transaction; see `record`.

        Parameters
        ----------
        scores : array-like of shape (n,)
            As `score_raw` of `record`.
        account_id, evaluator_id, profile_name : str
            The scope.
        family : str, optional
            One of `SCORE_TYPES`.

        Returns
        -------
        int
            Scores recorded.

        Raises
        ------
        ConfigurationError, StateError
            As `record`.
        """
        scope = Scope(account_id=account_id, evaluator_id=evaluator_id, profile_name=profile_name)
        results = _checked_scores(scores, family)
        self._store.add(scope, results)
        return len(results)

    def record_run(
        self,
        scores: ArrayLike,
        *,
        account_id: str,
        evaluator_id: str,
        profile_name: str,
        run_id: str,
        family: str | None = None,
    ) -> int:
        """Record the scores of an evaluation run in one transaction.

        A run that is recorded again takes the place of what it recorded in this scope before. Of more
        than 1,000 scores, 1,000 are recorded, evenly spread: more are never looked at, and the last
        ones of a sorted file would not stand for it.

        Parameters
        ----------
        scores : array-like of shape (n,)
            As `score_raw` of `record`; the pass flags of binary families follow from them.
        account_id, evaluator_id, profile_name : str
            The scope.
        run_id : str
            Tells the run from others, 1 to 255 characters.
        family : str, optional
            One of `SCORE_TYPES`.

        Returns
        -------
        int
            Scores recorded.

        Raises
        ------
        ConfigurationError, StateError
            As `record`.
        """
        scope = Scope(account_id=account_id, evaluator_id=evaluator_id, profile_name=profile_name)
        if not isinstance(run_id, str) or not run_id.isprintable() or not 0 < len(run_id) <= 255:
            raise ConfigurationError(
                f"Expected run_id of 1 to 255 printable characters, got {run_id!r:.300}."
            )
        results = _checked_scores(scores, family, spread=True)
        self._store.add(scope, results, run_id=run_id)
        return len(results)

    def interval(
        self,
        *,
        account_id: str,
        evaluator_id: str,
        profile_name: str,
        strategy: Strategy = "full-history",
        alpha: float = 0.95,
        rng: RandomSource = None,
    ) -> HistoryInterval:
        """Return the interval of the mean of the latest 1,000 scores of a scope.

        A percentile bootstrap of 10,000 resamples (`calibrant.metrics.bootstrap_interval`).

        Parameters
        ----------
        account_id, evaluator_id, profile_name : str
            The scope.
        strategy : {"full-history", "none"}, default "full-history"
            ``none`` computes no interval and reads nothing.
        alpha : float in (0, 1), default 0.95
            The confidence level (not the probability of an error).
        rng : numpy Generator, int or None, default None
            Source of randomness or its seed; None is seed 0, so that equal calls agree.

        Returns
        -------
        HistoryInterval
            Without ends where there are fewer than two scores.

        Raises
        ------
        ConfigurationError
            A parameter is out of range.
        StateError
            The database cannot be read.
        """
        scope = Scope(account_id=account_id, evaluator_id=evaluator_id, profile_name=profile_name)
        if strategy not in get_args(Strategy):
            raise ConfigurationError(
                f"Expected strategy to be one of {', '.join(get_args(Strategy))}, got {strategy!r}."
            )
        if not is_number(alpha) or not 0.0 < alpha < 1.0:
            raise ConfigurationError(
                f"Expected alpha, the confidence level, in (0, 1), got {alpha!r}: 0.95 is usual."
            )
        level = float(alpha)
        scores = []
        if strategy != "none":
            scores = self._store.latest(scope, limit=_LATEST)
        empty = HistoryInterval(
            strategy=strategy, alpha=level, scores=len(scores), score_type=_score_type(scores)
        )
        if len(scores) < _LEAST:
            return empty
        found = bootstrap_interval([score.score_raw for score in scores], level, rng=rng)
        remark = _width_remark(found, scores)
        return replace(empty, lower=found.lower, median=found.median, upper=found.upper, remark=remark)

    def drift(
        self,
        values: ArrayLike,
        *,
        account_id: str,
        evaluator_id: str,
        profile_name: str,
        without_run: str | None = None,
    ) -> Drift:
        """Compare new values with the latest 1,000 scores of a scope.

        Parameters
        ----------
        values : array-like of shape (n,)
            Finite; of more than 1,000 values, 1,000 are compared, evenly spread.
        account_id, evaluator_id, profile_name : str
            The scope.
        without_run : str, optional
            A run whose scores do not count, such as the one the values are of.

        Raises
        ------
        ConfigurationError
            A name or a value is not as above.
        StateError
            The database cannot be read.
        """
        scope = Scope(account_id=account_id, evaluator_id=evaluator_id, profile_name=profile_name)
        numbers = _finite_values(values, name="values[{}]")
        history = self._store.latest(scope, limit=_LATEST, without_run=without_run)
        return measure_drift(
            numbers[np.array(_spread_positions(len(numbers)), dtype=np.intp)],
            np.array([score.score_raw for score in history], dtype=np.float64),
        )

    def scopes(self, *, account_id: str | None = None) -> list[ScopeSummary]:
        """Return a summary of each recorded scope, of one account or of all.

        Raises
        ------
        StateError
            The database cannot be read.
        """
        return self._store.scopes(account_id=account_id)


def _finite(value: Any, *, name: str) -> float:  # noqa: ANN401 (whatever it is, it is said)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str | bytes) or not math.isfinite(number):
        raise ConfigurationError(
            f"Expected {name} to be a finite number, got {value!r:.100}: leave out results without a score."
        )
    return number


def _finite_values(values: ArrayLike, *, name: str) -> FloatArray:
    """Return the values as an array of shape (n,); raise unless all are finite numbers."""
    array = np.asarray(values, dtype=None if hasattr(values, "dtype") else object).ravel()
    is_numeric = array.dtype.kind in "biuf"
    if not is_numeric or not np.isfinite(array).all():
        numbers = [_finite(value, name=name.format(row)) for row, value in enumerate(array.tolist())]
        array = np.array(numbers)
    return array.astype(np.float64)


def _checked_scores(
    values: ArrayLike, family: str | None, *, name: str = "scores[{}]", spread: bool = False
) -> list[Score]:
    """Return the results as scores, after a check; with `spread`, at most 1,000, evenly spaced."""
    if family is not None and family not in SCORE_TYPES:
        raise ConfigurationError(
            f"Expected family to be one of {', '.join(sorted(SCORE_TYPES))}, or none, got {family!r}."
        )
    numbers = _finite_values(values, name=name)
    is_binary = family is not None and SCORE_TYPES[family] == "binary"
    if is_binary:
        # Every result is checked, those that are not recorded included.
        for row in np.flatnonzero((numbers != 0.0) & (numbers != 1.0))[:1].tolist():
            raise ConfigurationError(
                f"Expected {name.format(row)} 0 or 1 of the binary family {family!r}, got {numbers[row]:g}: "
                "name a continuous family (metrics, toxicity), or none."
            )
    kept = numbers
    if spread:
        kept = numbers[list(_spread_positions(len(numbers)))]
    return [
        Score(score_raw=score, passed=bool(score) if is_binary else None, family=family)
        for score in kept.tolist()
    ]


def _width_remark(interval: Interval, scores: Sequence[Score]) -> str:
    """Return the reason why an interval has width 0; empty for other intervals."""
    if interval.lower < interval.upper:
        return ""
    value = scores[0].score_raw
    remark = f"width 0 because all {len(scores):,} scores are {value:g}, so resampling cannot vary them"
    if _score_type(scores) != "binary":
        return f"{remark}; it does not say that the next ones will be"
    wilson = wilson_interval(int(value) * len(scores), len(scores), interval.level)
    return f"{remark}; Wilson's interval is {wilson.lower:.4f} to {wilson.upper:.4f}"


def _score_type(scores: Sequence[Score]) -> ScoreType | None:
    if not scores:
        return None
    binary = all(
        SCORE_TYPES.get(score.family) == "binary" if score.family else score.score_raw in {0.0, 1.0}
        for score in scores
    )
    return "binary" if binary else "continuous"


def _spread_positions(count: int) -> Sequence[int]:
    """Return the positions of at most 1,000 of `count` rows, evenly spaced, in order."""
    if count <= _LATEST:
        return range(count)
    return [(2 * place + 1) * count // (2 * _LATEST) for place in range(_LATEST)]


@dataclass(frozen=True, kw_only=True)
class HistoryEntry(Recorded):
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
        self._correct = _columns(account_id, task, profile_name)
        self.confidence = _columns(account_id, task + _CONFIDENCE, profile_name)

    @classmethod
    def of(cls, classifier: Predictor, *, account_id: str, task: str, profile_name: str | None) -> RunScope:
        """Return the scope of a classifier; the default profile is a digest of its description."""
        if not profile_name:
            described = {**classifier.describe(), "labels": list(classifier.labels.labels)}
            text = json.dumps(described, sort_keys=True, default=repr)
            profile_name = f"prompt-{sha256_of(text)[:16]}"
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


def _columns(account_id: str, evaluator_id: str, profile_name: str) -> JsonObject:
    """Return the columns of a scope; ConfigurationError for a name that cannot be stored."""
    scope = Scope(account_id=account_id, evaluator_id=evaluator_id, profile_name=profile_name)
    return dict(scope.columns())


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
            lost = len(self._waiting)
            answers = "answer was" if lost == 1 else "answers were"
            _LOG.error("%d %s not recorded in the history.", lost, answers)

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
