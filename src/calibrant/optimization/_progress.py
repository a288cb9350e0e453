"""Progress reports of a search."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from calibrant.inference._limits import rate_limit_waits

if TYPE_CHECKING:
    from gepa.core.callbacks import CandidateAcceptedEvent, CandidateRejectedEvent, ValsetEvaluatedEvent

    from calibrant.core._prediction import Prediction
    from calibrant.core._predictor import CallMeter, Predictor


PERFECT = 1.0 - 1e-12

_ENOUGH_ROWS: Final = 10  # for an estimate of the time that is left


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a run at one moment.

    Attributes
    ----------
    phase : str
        ``search`` (with the rows that the head learns from) or ``test``.
    calls, total : int
        Rows classified in this phase, and at most; a search ends before a proposal that could
        exceed its budget.
    search_rows, test_rows : int
        Rows that the search and the test may ask at most, in both phases together.
    best_score : float or None
        Best mean validation score so far, in [0, 1].
    proposals, accepted : int
        Prompts proposed and tried on a minibatch, and those that went on to validation.
    cost : float or None
        US dollars so far; None where no price is known.
    expected_cost : float or None
        US dollars that all rows of search and test take, about, by the price of the model's tokens and the length of
        the texts; what a reflection model costs is left out. Known before anything is asked; None where no price is.
    concurrency : int or None
        Calls in flight at most; None in this process.
    in_process : bool
        True if the model runs in this process, where rows cost nothing.
    directory : Path or None
        Directory of the run, once it is known.
    session_rows : int
        Rows that this session has paid for, in both phases: an earlier one may have left some.
    session_cost : float or None
        US dollars of these rows; None where no price is known.
    seconds : float
        Seconds in which they were answered.
    rate_limits : mapping of str to float
        Seconds until calls may begin again, by the model whose rate limit is waited for; empty where none is.

    Examples
    --------
    >>> from calibrant import Example, Task, optimize
    >>> from calibrant.testing import FakeClient
    >>> names = ["cat", "dog"]
    >>> def rows(split):
    ...     return tuple(Example(input=f"{split} {name} {n}", answer=name) for n in range(6) for name in names)
    >>> data = {split: rows(split) for split in ("train", "validation", "test")}
    >>> task = Task(name="pets", labels=names, prompt="Which animal?", **data)
    >>> fake, moments = FakeClient(names, {"cat": "cat", "dog": "dog"}, field="label"), []
    >>> _ = optimize(task, model=fake, max_metric_calls=100, progress=moments.append)
    >>> moments[-1].phase, moments[-1].calls, moments[-1].total
    ('test', 12, 12)
    """

    phase: Literal["search", "test"] = "search"
    calls: int = 0
    total: int = 0
    search_rows: int = 0
    test_rows: int = 0
    best_score: float | None = None
    proposals: int = 0
    accepted: int = 0
    cost: float | None = None
    expected_cost: float | None = None
    concurrency: int | None = None
    in_process: bool = False
    directory: Path | None = None
    session_rows: int = 0
    session_cost: float | None = None
    seconds: float = 0.0
    rate_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows_left(self) -> int:
        """Rows that may still be asked, at most, those of the test included."""
        to_test = self.test_rows if self.phase == "search" else 0
        return max(0, self.total - self.calls) + to_test

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds until the last row, at most; None before ten rows are answered."""
        if self.session_rows < _ENOUGH_ROWS or self.seconds <= 0:
            return None
        return self.rows_left * self.seconds / self.session_rows

    @property
    def eta_cost(self) -> float | None:
        """Estimated US dollars of the rows to come, at most; None where no price is known."""
        if self.session_cost is None or not self.session_rows:
            return None
        return self.rows_left * self.session_cost / self.session_rows


ProgressListener: TypeAlias = Callable[[Progress], None]
"""Called with every change; may be called from another thread."""


class ProgressTracker:
    """Tracker that turns predictions and GEPA's events into `Progress`."""

    def __init__(
        self,
        listener: ProgressListener | None,
        *,
        total: int,
        test_rows: int = 0,
        expected_cost: float | None = None,
    ) -> None:
        self.now = Progress(total=total, search_rows=total, test_rows=test_rows, expected_cost=expected_cost)
        self.unpriced_calls = 0
        self._listener = listener
        self._gates: tuple[CallMeter, ...] = ()
        self._lock = threading.Lock()
        self._since = time.perf_counter()

    def begin(self, predictor: Predictor, *, directory: Path | None = None) -> None:
        """Report the most rows of a search and their cost, before it asks anything, and the directory of its run."""
        slots = () if predictor.in_process else [gate.concurrency for gate in predictor.gates]
        with self._lock:
            self._since = time.perf_counter()
            self._update(
                in_process=predictor.in_process,
                concurrency=min(slots, default=None),
                directory=directory,
            )

    def watch(self, gates: Sequence[CallMeter]) -> None:
        """Report to the listener when calls at these meters wait for a rate limit."""
        self._gates = tuple(gates)
        for gate in self._gates:
            gate.on_pause = self._on_pause

    def _on_pause(self) -> None:
        with self._lock:
            self._update()

    def _update(self, **changes: object) -> None:
        self.now = replace(self.now, rate_limits=rate_limit_waits(self._gates), **changes)  # type: ignore[arg-type]
        if self._listener is not None:
            self._listener(self.now)

    def should_stop(self, state: object) -> bool:  # noqa: ARG002  (GEPA's stopper signature)
        """Return True, to end the search, if a prompt has a perfect validation score."""
        return self.now.best_score is not None and self.now.best_score >= PERFECT

    def start_test(self, total: int) -> None:
        """Report the begin of the test phase."""
        with self._lock:
            self._update(phase="test", calls=0, total=total)

    def on_prediction(self, prediction: Prediction) -> None:
        """Count one prediction and add its cost."""
        usage = prediction.usage
        tokens = usage.prompt_tokens + usage.completion_tokens
        with self._lock:
            self.unpriced_calls += usage.cost is None and tokens > 0
            self._update(
                calls=self.now.calls + 1, cost=_sum(self.now.cost, usage.cost), **self._paid(prediction)
            )

    def _paid(self, prediction: Prediction) -> dict[str, object]:
        """Return the changed counts of this session; a row of an earlier one is no part of it."""
        now = time.perf_counter()
        if prediction.attempts == 0:
            if not self.now.session_rows:
                self._since = now  # the rows of an earlier session took no time
            return {}
        return {
            "session_rows": self.now.session_rows + 1,
            "session_cost": _sum(self.now.session_cost, prediction.usage.cost),
            "seconds": now - self._since,
        }

    def on_valset_evaluated(self, event: ValsetEvaluatedEvent) -> None:
        """Handle GEPA's event that a prompt was validated."""
        self.validated(event["average_score"])

    def validated(self, score: float) -> None:
        """Report a prompt's mean validation score, in [0, 1]."""
        with self._lock:
            self._update(best_score=max(self.now.best_score or 0.0, score))

    def on_candidate_accepted(self, event: CandidateAcceptedEvent) -> None:  # noqa: ARG002
        """Handle GEPA's event that a proposal was accepted."""
        with self._lock:
            self._update(proposals=self.now.proposals + 1, accepted=self.now.accepted + 1)

    def on_candidate_rejected(self, event: CandidateRejectedEvent) -> None:  # noqa: ARG002
        """Handle GEPA's event that a proposal was rejected."""
        with self._lock:
            self._update(proposals=self.now.proposals + 1)


def _sum(total: float | None, cost: float | None) -> float | None:
    """Return the sum of a cost and the cost so far; None while neither is known."""
    return total if cost is None else (total or 0.0) + cost
