"""From one response to one prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.core._completion import Completion
from calibrant.core._distribution import LogprobSpace
from calibrant.core._errors import CalibrantError
from calibrant.core._labels import LabelSet, OpenLabels
from calibrant.core._prediction import Outcome, Prediction
from calibrant.inference._forms import Form, Reading, form_of
from calibrant.logprobs._completion import read_completion
from calibrant.logprobs._fields import UnparsedError

_FILTERED = frozenset({"content_filter", "safety", "prohibited_content", "blocklist"})
_CUT_OFF = frozenset({"length", "max_tokens"})


@dataclass(frozen=True, kw_only=True)
class AnswerReader:
    """Reads predictions from responses of any supported shape.

    Attributes
    ----------
    labels : LabelSet
        The legal labels; with `FieldLabels` or `MultiLabels` predictions have parts.
    field : str
        JSON path of the label whose token log-probabilities are read; of the array of `MultiLabels`, or of the
        label in its elements. Not used with `FieldLabels`, whose fields have paths of their own.
    answer_field : str
        JSON path the label itself is read from; usually the same.
    space : LogprobSpace
        What the log-probabilities are probabilities of; ``mixed`` leaves it to each answer.
    keep_tokens : bool
        Whether predictions hold the tokens they were read from.

    Raises
    ------
    ConfigurationError
        `answer_field` is another field than `field`, and answers hold several labels.
    """

    labels: LabelSet
    field: str
    answer_field: str
    space: LogprobSpace
    keep_tokens: bool = False
    _form: Form = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        form = form_of(self.labels, field=self.field, answer_field=self.answer_field)
        object.__setattr__(self, "_form", form)

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
        space = self.space_of(completion)
        try:
            found = self._form.read(completion, space)
        except UnparsedError as error:
            cut = "cut off by the length limit: " if completion.finish_reason in _CUT_OFF else ""
            return self._prediction(completion, outcome=Outcome.UNPARSED, reason=f"{cut}{error}")
        if isinstance(found, str):
            return self._prediction(completion, outcome=Outcome.UNPARSED, reason=found)
        lost = "" if space is LogprobSpace.NONE else completion.evidence_problem
        return self._prediction(completion, found, reason=f"no confidence: {lost}" if lost else "")

    def describe(self) -> Mapping[str, Any]:
        """Return what an answer may be and where it is read, as JSON values."""
        return {
            "space": self.space.value,
            # What an open set happens to hold changes no answer: a journal's keys must outlive its growth.
            "labels": None if isinstance(self.labels, OpenLabels) else self.labels.labels,
            "field": self.field,
            "answer_field": self.answer_field,
            **self._form.describe(),
        }

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

    def _prediction(
        self,
        completion: Completion,
        found: Reading | None = None,
        *,
        outcome: Outcome = Outcome.OK,
        reason: str = "",
    ) -> Prediction:
        return Prediction(
            label=None if found is None else found.label,
            confidence=None if found is None else found.confidence,
            distribution=None if found is None else found.distribution,
            parts=() if found is None else found.parts,
            outcome=outcome,
            reason=reason,
            text=completion.text,
            usage=completion.usage,
            model=completion.model,
            tokens=completion.tokens if self.keep_tokens else None,
        )
