"""Call budget and failure limits of a search."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calibrant.core._errors import ConfigurationError, LimitReachedError, ProviderError
from calibrant.core._prediction import Outcome, Prediction

if TYPE_CHECKING:
    from calibrant.core._predictor import Predictor, Query

_LOG = logging.getLogger("calibrant")

# Of the last rows, failed ones that stop a search: at least so many, and more than this share.
_WINDOW: Final = 50
_MIN_FAILURES: Final = 5
_MAX_SHARE: Final = 0.20


class CallCounter:
    """Counter of metric calls, and of answers without log-probabilities.

    Parameters
    ----------
    predictor : Predictor
        Predictor that is asked. With a journal, a row asked again under the same prompt is no new call.

    Attributes
    ----------
    metric_calls, completions, without_logprobs : int
        Rows asked; those answered with a legal label; those among them whose confidence is unknown.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._answered: set[Query] = set()
        self.metric_calls = 0
        self.completions = 0
        self.without_logprobs = 0

    def new(self, queries: Sequence[Query]) -> list[bool]:
        """Return one flag per query: True if it is a metric call. With a journal, repetitions are free.

        A query with a problem, about which no model is asked, is none either.
        """
        if self._predictor.journal is None:
            return [not query.problem for query in queries]
        seen = set(self._answered)
        is_new = []
        for query in queries:
            is_new.append(query not in seen and not query.problem)
            seen.add(query)
        return is_new

    def affordable(self, queries: Sequence[Query], calls: int) -> list[bool]:
        """Return one flag per query: True if `calls` metric calls pay for this query and those before."""
        left, is_affordable = calls, []
        for is_new in self.new(queries):
            is_affordable.append(not is_new or left > 0)
            left -= is_new
        return is_affordable

    def count(
        self, queries: Sequence[Query], predictions: Sequence[Prediction], new: Sequence[bool]
    ) -> list[Prediction]:
        """Count the answers to queries; return the predictions of the `new` ones."""
        first = self.without_logprobs == 0
        asked = [prediction for prediction, is_new in zip(predictions, new, strict=True) if is_new]
        answered = [prediction for prediction in asked if prediction.outcome is Outcome.OK]
        self.metric_calls += len(asked)
        self.completions += len(answered)
        self.without_logprobs += sum(prediction.confidence is None for prediction in answered)
        if first and self.without_logprobs:
            _LOG.warning(
                "%s: %d of %d answers came without usable log-probabilities; these are scored by correctness alone.",
                self._predictor.name,
                self.without_logprobs,
                self.completions,
            )
        if self._predictor.journal is not None:
            self._answered.update(
                query
                for query, prediction in zip(queries, predictions, strict=True)
                if prediction.outcome is not Outcome.ERROR
            )
        return asked


@dataclass(frozen=True, kw_only=True)
class SearchSize:
    """Row counts of a search, which give the maximum metric calls of its steps.

    Attributes
    ----------
    validation_rows : int
        Rows that every accepted prompt is asked about.
    minibatch_size : int
        Rows that every proposal is first tried on, and its parent too.
    threshold_rows : int, default 0
        Rows asked for ``thresholds="auto"``, once.
    other_prompts : int, default 0
        Prompts beside the first one that are asked about the validation rows before any proposal.
    """

    validation_rows: int
    minibatch_size: int
    threshold_rows: int = 0
    other_prompts: int = 0

    @property
    def proposal(self) -> int:
        """Maximum metric calls of one accepted proposal."""
        return 2 * self.minibatch_size + self.validation_rows

    @property
    def floor(self) -> int:
        """Maximum metric calls of the first validations and one accepted proposal."""
        return (1 + self.other_prompts) * self.validation_rows + self.threshold_rows + self.proposal

    def check(self, max_metric_calls: int) -> None:
        """Raise ConfigurationError if the budget cannot pay for one accepted prompt proposal.

        Raises
        ------
        ConfigurationError
            The budget is below `floor`.
        """
        if max_metric_calls >= self.floor:
            return
        sample = f" and {self.threshold_rows} training rows for thresholds" if self.threshold_rows else ""
        others = (
            f", and each of {self.other_prompts} other prompt(s) one pass more" if self.other_prompts else ""
        )
        raise ConfigurationError(
            f"Expected max_metric_calls (--max-metric-calls) >= {self.floor}, got {max_metric_calls}: one accepted "
            f"proposal takes two passes over {self.validation_rows} validation rows, two minibatches of "
            f"{self.minibatch_size}{sample}{others}."
        )


class CallBudget:
    """Stopper for ``gepa.optimize`` that ends a search before a proposal could exceed the budget.

    GEPA's own ``max_metric_calls`` ends it at the first opportunity after, and lacks rows that the adapter asks for
    thresholds and label prior. `ConfidenceAdapter.budget` makes one; hand it to ``stop_callbacks`` and leave
    ``max_metric_calls`` out.

    Parameters
    ----------
    counter : CallCounter
        Counts the calls of this search.
    size : SearchSize
        Metric calls of a proposal.
    max_metric_calls : int
        The budget.

    Raises
    ------
    ConfigurationError
        The budget pays for no proposal.
    """

    def __init__(self, counter: CallCounter, size: SearchSize, max_metric_calls: int) -> None:
        size.check(max_metric_calls)
        self._counter = counter
        self._size = size
        self._max_metric_calls = max_metric_calls
        self._seen = -1
        self._idle = 0

    def __call__(self, state: object) -> bool:  # noqa: ARG002  (GEPA's stopper signature)
        """Return True if one more proposal could exceed the budget."""
        calls = self._counter.metric_calls
        # Iterations that ask nothing new count as one call each, or a search that repeats itself would never end.
        self._idle += calls == self._seen
        self._seen = calls
        return calls + self._idle + self._size.proposal > self._max_metric_calls


class FailureMonitor:
    """Monitor that raises ProviderError when too many recent rows ended in ``error``.

    A search that goes on would optimise on noise: the run stops when more than 20 % of the
    last 50 rows (of the whole batch, when it is larger), and at least 5, failed.
    """

    def __init__(self) -> None:
        self._recent: deque[str | None] = deque(maxlen=_WINDOW)
        self._lock = threading.Lock()

    def record(self, predictions: Sequence[Prediction], *, provider: str) -> None:
        """Record a batch; raise ProviderError if too many rows of the batch or recent rows failed.

        Raises
        ------
        ProviderError
            Too many rows failed.
        """
        with self._lock:
            rows = [p.reason if p.outcome is Outcome.ERROR else None for p in predictions]
            self._recent.extend(rows)
            # The whole of a large batch, and its end: a server that dies halfway is noticed.
            window = next(filter(_fails_too_often, (rows, list(self._recent))), None)
            if window is None:
                return
            self._recent.clear()
        reasons = [reason for reason in window if reason is not None]
        common = max(sorted(set(reasons)), key=reasons.count)
        raise ProviderError(
            f"{len(reasons)} of the last {len(window)} rows failed for reasons that are not the prompt's, "
            f"most often: {common}",
            provider=provider,
            hint="The run stopped instead of optimising on noise; mend the connection and start it again.",
        )


def _fails_too_often(reasons: Sequence[str | None]) -> bool:
    failed = len(reasons) - reasons.count(None)
    return len(reasons) >= _WINDOW and failed >= _MIN_FAILURES and failed > _MAX_SHARE * len(reasons)


class Watch(FailureMonitor):
    """Store of the first fatal error of a search, until the search can be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._error: Exception | None = None

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Store the first exception raised inside the block; the exception is not suppressed."""
        try:
            yield
        except Exception as error:
            with self._lock:
                self._error = self._error or error
            raise

    def stop(self) -> bool:
        """Raise the stored error, or return True if the error is that a limit of the user was reached."""
        with self._lock:
            error = self._error
            self._error = None
        if error is None:
            return False
        if isinstance(error, LimitReachedError):
            _LOG.warning("The search ends early: %s", error)
            return True
        raise error
