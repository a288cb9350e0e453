"""Share of each model of a cascade in its answers, calls and cost, counted from the steps of its rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from calibrant.core._distribution import Interval
from calibrant.core._prediction import Verdict
from calibrant.metrics._intervals import wilson_interval


@dataclass(frozen=True, kw_only=True)
class CascadeModelMetrics:
    """Metrics of one model of a cascade.

    Attributes
    ----------
    model : str
        As the user named it.
    asked : int
        Rows it was asked about.
    accepted : int
        Rows whose final answer is its own, as it was sure enough.
    correct : int
        Right rows among those.
    no_evidence, failed : int
        Rows where its answer had no measure of confidence, and rows where it gave no answer.
    accuracy : Interval or None
        `correct` over the accepted rows whose true label is known, with Wilson's 95 % interval.
    calls : int
        Calls made for it, verification and retries included.
    prompt_tokens, completion_tokens : int
        Tokens paid for.
    cost : float or None
        US dollars paid; None where no price is known for any row.
    """

    model: str
    asked: int
    accepted: int
    correct: int
    no_evidence: int
    failed: int
    accuracy: Interval | None
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None


@dataclass(frozen=True, kw_only=True)
class CascadeMetrics:
    """Metrics of a cascade.

    Attributes
    ----------
    rows : int
        Rows that a cascade answered, or failed to.
    accepted : int
        Rows whose answer was sure enough.
    correct : int
        Right rows among those.
    accuracy : Interval or None
        `correct` over the accepted rows whose true label is known, with Wilson's 95 % interval.
    unaccepted_answered, unaccepted_correct : int
        Rows answered although no model was sure enough, and the right ones among them.
    unaccepted_accuracy : Interval or None
        The second over the first, with Wilson's 95 % interval.
    escalated : int
        Rows for which more than one model was asked.
    escalations : int
        Models asked beyond the first of each row.
    calls : int
        Calls of all models, verification and retries included.
    cost : float or None
        US dollars paid for all models; None where no price is known for any row.
    models : tuple of CascadeModelMetrics
        In the order in which they were first asked.
    """

    rows: int
    accepted: int
    correct: int
    accuracy: Interval | None
    unaccepted_answered: int
    unaccepted_correct: int
    unaccepted_accuracy: Interval | None
    escalated: int
    escalations: int
    calls: int
    cost: float | None
    models: tuple[CascadeModelMetrics, ...]


class _RightRows:
    """Counter of rows whose true label is known, and of the right ones among them."""

    def __init__(self) -> None:
        self.known = self.right = 0

    def add(self, correct: bool | None) -> None:
        self.known += correct is not None
        self.right += correct is True

    def share(self) -> Interval | None:
        return wilson_interval(self.right, self.known) if self.known else None


class _Step(NamedTuple):
    """Verdict, calls, tokens and cost of one step."""

    model: str
    verdict: Verdict
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> _Step:
        usage, attempts = record["usage"], int(record["attempts"])
        paid = (
            attempts > 0
        )  # no attempt: the answer came from the cache, and its tokens were paid for earlier
        cost = usage["cost"]
        return cls(
            model=str(record["model"]),
            verdict=Verdict(record["verdict"]),
            attempts=attempts,
            prompt_tokens=int(usage["prompt_tokens"]) * paid,
            completion_tokens=int(usage["completion_tokens"]) * paid,
            cost=float(cost) if paid and cost is not None else None,
        )


class _Model:
    """Counter of the steps of one model."""

    def __init__(self) -> None:
        self.verdicts: Counter[Verdict] = Counter()
        self.right = _RightRows()
        self.calls = self.prompt_tokens = self.completion_tokens = 0
        self.cost: float | None = None

    def add(self, step: _Step, *, correct: bool | None) -> None:
        self.verdicts[step.verdict] += 1
        if step.verdict is Verdict.ACCEPTED:
            self.right.add(correct)
        self.calls += step.attempts
        self.prompt_tokens += step.prompt_tokens
        self.completion_tokens += step.completion_tokens
        if step.cost is not None:
            self.cost = (self.cost or 0.0) + step.cost

    def metrics(self, name: str) -> CascadeModelMetrics:
        return CascadeModelMetrics(
            model=name,
            asked=self.verdicts.total(),
            accepted=self.verdicts[Verdict.ACCEPTED],
            correct=self.right.right,
            no_evidence=self.verdicts[Verdict.NO_EVIDENCE],
            failed=self.verdicts[Verdict.FAILED],
            accuracy=self.right.share(),
            calls=self.calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cost=self.cost,
        )


class CascadeTally:
    """Counter of a cascade's rows, filled row by row."""

    def __init__(self) -> None:
        self._rows = self._accepted = self._escalated = self._escalations = 0
        self._sure, self._unsure = _RightRows(), _RightRows()
        self._models: defaultdict[str, _Model] = defaultdict(_Model)

    def add(self, steps: Sequence[Mapping[str, Any]], *, accepted: bool | None, correct: bool | None) -> None:
        """Count a row.

        Parameters
        ----------
        steps : sequence of mappings
            As `calibrant.core.step_to_record` writes them.
        accepted : bool or None
            Whether the answer was sure enough.
        correct : bool or None
            Whether it is right; None where there is no answer, or its true label is not known.

        Raises
        ------
        KeyError, TypeError, ValueError
            A record is no step. The row is then not counted.
        """
        parsed = [_Step.read(step) for step in steps]  # all of them first, so that a bad one counts nothing
        for step in parsed:
            self._models[step.model].add(step, correct=correct)
        self._rows += 1
        self._accepted += bool(accepted)
        self._escalated += len(parsed) > 1
        self._escalations += max(0, len(parsed) - 1)
        (self._sure if accepted else self._unsure).add(correct)

    def metrics(self) -> CascadeMetrics | None:
        """Return the numbers so far; None without rows."""
        if not self._rows:
            return None
        models = tuple(model.metrics(name) for name, model in self._models.items())
        priced = [model.cost for model in models if model.cost is not None]
        return CascadeMetrics(
            rows=self._rows,
            accepted=self._accepted,
            correct=self._sure.right,
            accuracy=self._sure.share(),
            unaccepted_answered=self._unsure.known,
            unaccepted_correct=self._unsure.right,
            unaccepted_accuracy=self._unsure.share(),
            escalated=self._escalated,
            escalations=self._escalations,
            calls=sum(model.calls for model in models),
            cost=sum(priced) if priced else None,
            models=models,
        )
