"""Progress of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from calibrant.core._prediction import Interval


@dataclass(frozen=True, kw_only=True)
class EvaluationProgress:
    """A moment of a run.

    Attributes
    ----------
    rows : int
        Rows that have a prediction, those of earlier sessions included.
    rows_expected : int or None
        Rows of the input, where their number is known.
    session_rows : int
        Rows this session answered, those that failed earlier included.
    remaining : int or None
        Rows this session has still to answer, where their number is known.
    seconds : float
        Seconds since this session began.
    accuracy_answered : Interval or None
        Share of right rows among those that did not fail, with Wilson's 95 % interval.
    errors : mapping of str to int
        Rows that failed, by kind.
    cost : float or None
        US dollars paid for these rows; None where no price is known.
    calls : int
        Calls of this session that have ended, those of rows under way included; 0 where they are not counted.
    calls_of_rows : int
        Those of them that belong to rows this session answered.
    rows_called : int
        Rows this session answered by calls, not from a cache.
    rate_limits : mapping of str to float
        Seconds until calls may begin again, by the model whose rate limit is waited for; empty where none is.
    """

    rows: int
    rows_expected: int | None = None
    session_rows: int = 0
    remaining: int | None = None
    seconds: float = 0.0
    accuracy_answered: Interval | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    cost: float | None = None
    calls: int = 0
    calls_of_rows: int = 0
    rows_called: int = 0
    rate_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        """Rows of this session a second."""
        return self.session_rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Seconds until the last row at this rate; None where that cannot be said.

        The rate is that of the calls, as far as they are counted: the first rows of many side by side end late,
        and together. The other rows are taken to need as many calls each as those that are answered.
        """
        if self.remaining is None or not self.rows_per_second:
            return None
        if not (self.calls and self.rows_called):
            return self.remaining / self.rows_per_second
        calls = max(self.calls, self.calls_of_rows)  # a cascade's verifier has limits of its own
        to_come = self.remaining * self.calls_of_rows / self.rows_called
        under_way = calls - self.calls_of_rows
        return max(0.0, to_come - under_way) * self.seconds / calls


EvaluationProgressListener: TypeAlias = Callable[[EvaluationProgress], None]
"""Called four times a second, and at the end; may be called from another thread."""
