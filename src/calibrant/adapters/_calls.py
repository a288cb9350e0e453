"""Metric calls: how many rows an adapter has asked, and when a search must stop for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Outcome, Prediction

if TYPE_CHECKING:
    from calibrant.core._predictor import Predictor, Query

_LOG = logging.getLogger("calibrant")


class CallCounter:
    """Counts the rows that were asked, and the answers among them that came without log-probabilities.

    Parameters
    ----------
    predictor : Predictor
        Who is asked. With a journal, a row asked again under the same prompt is no new call.

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

    @property
    def journalled(self) -> bool:
        """True if what was answered once is not asked again."""
        return self._predictor.journal is not None

    def new(self, queries: Sequence[Query]) -> list[bool]:
        """Return a flag for each query: True if it is a call, as it is not in the journal."""
        if not self.journalled:
            return [True] * len(queries)
        seen = set(self._answered)
        found = []
        for query in queries:
            found.append(query not in seen)
            seen.add(query)
        return found

    def affordable(self, queries: Sequence[Query], calls: int) -> list[bool]:
        """Return for each query, in their order, whether so many metric calls pay for it; shape (n,)."""
        left, found = calls, []
        for is_new in self.new(queries):
            found.append(not is_new or left > 0)
            left -= is_new
        return found

    def count(
        self, queries: Sequence[Query], predictions: Sequence[Prediction], new: Sequence[bool]
    ) -> list[Prediction]:
        """Count the answers to queries, and return the predictions of those that are `new`."""
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
        if self.journalled:
            self._answered.update(
                query
                for query, prediction in zip(queries, predictions, strict=True)
                if prediction.outcome is not Outcome.ERROR
            )
        return asked


@dataclass(frozen=True, kw_only=True)
class SearchSize:
    """Upper bounds of the metric calls of a search's steps.

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
        """Metric calls of one proposal that is accepted, at most."""
        return 2 * self.minibatch_size + self.validation_rows

    @property
    def floor(self) -> int:
        """Metric calls of the first validation, of other prompts too, and one accepted proposal, at most."""
        return (1 + self.other_prompts) * self.validation_rows + self.threshold_rows + self.proposal

    def check(self, max_metric_calls: int) -> None:
        """Refuse a budget that pays for no proposal.

        Raises
        ------
        ConfigurationError
            It is below `floor`.
        """
        if max_metric_calls >= self.floor:
            return
        sample = f" and {self.threshold_rows} training rows for thresholds" if self.threshold_rows else ""
        others = (
            f", and each of {self.other_prompts} other prompt(s) one pass more" if self.other_prompts else ""
        )
        raise ConfigurationError(
            f"Expected max_metric_calls >= {self.floor}, got {max_metric_calls}: one accepted proposal takes two "
            f"passes over {self.validation_rows} validation rows, two minibatches of {self.minibatch_size}{sample}"
            f"{others}."
        )


class CallBudget:
    """Stopper for ``gepa.optimize``: ends a search before a proposal that could exceed the budget.

    GEPA's own ``max_metric_calls`` ends it at the first opportunity after, and lacks rows that the adapter asks for
    thresholds and label prior. `ConfidenceAdapter.budget` makes one; hand it to ``stop_callbacks`` and leave
    ``max_metric_calls`` out.

    Parameters
    ----------
    counter : CallCounter
        Counts the calls of this search.
    size : SearchSize
        What a proposal takes.
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
        """Return whether one more proposal could exceed the budget."""
        calls = self._counter.metric_calls
        # Iterations that ask nothing new count as one call each, or a search that repeats itself would never end.
        self._idle += calls == self._seen
        self._seen = calls
        return calls + self._idle + self._size.proposal > self._max_metric_calls
