"""From one response to one prediction."""

from __future__ import annotations

from dataclasses import dataclass

from calibrant.core import (
    CalibrantError,
    Completion,
    LabelDistribution,
    LabelSet,
    LogprobSpace,
    LogprobsUnavailableError,
    Outcome,
    Prediction,
)
from calibrant.logprobs import UnparsedError, extract_distribution, field_value, read_completion

__all__ = ["AnswerReader"]

_FILTERED = frozenset({"content_filter", "safety", "prohibited_content", "blocklist"})
_CUT_OFF = frozenset({"length", "max_tokens"})


@dataclass(frozen=True, kw_only=True)
class AnswerReader:
    """Reads predictions from responses of any supported shape.

    Attributes
    ----------
    labels : LabelSet
        The legal labels.
    field : str
        JSON path of the label whose token log-probabilities are read.
    answer_field : str
        JSON path the label itself is read from; usually the same.
    space : LogprobSpace
        What the log-probabilities are probabilities of; ``mixed`` leaves it to each answer.
    keep_tokens : bool
        Whether predictions hold the tokens they were read from.
    """

    labels: LabelSet
    field: str
    answer_field: str
    space: LogprobSpace
    keep_tokens: bool = False

    def read(self, response: object) -> Prediction:
        """Return the prediction in `response`; whatever is wrong with it becomes its outcome."""
        try:
            completion = read_completion(response)
        except CalibrantError as error:
            return Prediction(label=None, outcome=Outcome.ERROR, reason=f"broken response: {error}")
        problem = self._problem(completion)
        if problem is not None:
            outcome, reason = problem
            return self._prediction(completion, outcome=outcome, reason=reason)
        try:
            value = field_value(completion.text, self.answer_field)
        except UnparsedError as error:
            cut = "cut off by the length limit: " if completion.finish_reason in _CUT_OFF else ""
            return self._prediction(completion, outcome=Outcome.UNPARSED, reason=f"{cut}{error}")
        label = self.labels.canonical(value) if isinstance(value, str) else None
        if label is None:
            reason = f"answered {value!r:.80}, which is not one of the labels"
            return self._prediction(completion, outcome=Outcome.UNPARSED, reason=reason)
        distribution = self._distribution(completion)
        return self._prediction(completion, label=label, distribution=distribution)

    def space_of(self, response: object) -> LogprobSpace:
        """Return what an answer's log-probabilities are probabilities of; ``none`` where it does not say."""
        if self.space is not LogprobSpace.MIXED:
            return self.space
        own = response.space if isinstance(response, Completion) else None
        return LogprobSpace.NONE if own is None else own

    def _problem(self, completion: Completion) -> tuple[Outcome, str] | None:
        if completion.refusal or completion.finish_reason in _FILTERED:
            return Outcome.REFUSAL, completion.refusal or "stopped by the provider's content filter"
        if completion.text.strip():
            return None
        if completion.finish_reason in _CUT_OFF:
            return Outcome.UNPARSED, "cut off by the length limit before the answer began"
        return Outcome.ERROR, "the response holds no text and no refusal"

    def _distribution(self, completion: Completion) -> LabelDistribution | None:
        space = self.space_of(completion)
        if space is LogprobSpace.NONE:
            return None
        try:
            return extract_distribution(completion, self.labels, self.field, space)
        except LogprobsUnavailableError:
            return None

    def _prediction(
        self,
        completion: Completion,
        *,
        label: str | None = None,
        distribution: LabelDistribution | None = None,
        outcome: Outcome = Outcome.OK,
        reason: str = "",
    ) -> Prediction:
        return Prediction(
            label=label,
            confidence=None if distribution is None or label is None else distribution.confidence(label),
            distribution=distribution,
            outcome=outcome,
            reason=reason,
            text=completion.text,
            usage=completion.usage,
            model=completion.model,
            tokens=completion.tokens if self.keep_tokens else None,
        )
