"""Metrics of a cascade: answers, calls and cost of each model, from the steps of its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.core._prediction import Interval, Verdict
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


class CascadeTally:
    """Running totals of the rows of a cascade."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._models: dict[str, Counter[str]] = {}
        self._costs: dict[str, float] = {}  # of models with a known price

    def add(self, steps: Sequence[Mapping[str, Any]], *, accepted: bool | None, correct: bool | None) -> None:
        """Count a row.

        Parameters
        ----------
        steps : sequence of mappings
            As `calibrant.core.step_to_record` writes them.
        accepted : bool or None
            True if the answer was sure enough.
        correct : bool or None
            True if it is right; None where there is no answer, or its true label is not known.

        Raises
        ------
        KeyError, TypeError, ValueError
            A record is no step. The row is then not counted.
        """
        parsed = [_parse_step(step) for step in steps]  # all of them first, so that a bad one counts nothing
        judged = {"known": int(correct is not None), "right": int(correct is True)}
        for model, verdict, counts, cost in parsed:
            own = self._models.setdefault(model, Counter())
            own.update({"asked": 1, verdict: 1, **counts})
            if verdict == Verdict.ACCEPTED.value:
                own.update(judged)
            if cost is not None:
                self._costs[model] = self._costs.get(model, 0.0) + cost
        side = "accepted" if accepted else "unaccepted"
        self._rows.update({"rows": 1, side: 1})
        self._rows.update({f"{side} {name}": count for name, count in judged.items()})
        self._rows["escalated"] += int(len(parsed) > 1)
        self._rows["escalations"] += max(0, len(parsed) - 1)

    def metrics(self) -> CascadeMetrics | None:
        """Return the metrics of the rows so far; None without rows."""
        if not self._rows:
            return None
        return CascadeMetrics(
            rows=self._rows["rows"],
            accepted=self._rows["accepted"],
            correct=self._rows["accepted right"],
            accuracy=_share(self._rows, "accepted "),
            unaccepted_answered=self._rows["unaccepted known"],
            unaccepted_correct=self._rows["unaccepted right"],
            unaccepted_accuracy=_share(self._rows, "unaccepted "),
            escalated=self._rows["escalated"],
            escalations=self._rows["escalations"],
            calls=sum(own["calls"] for own in self._models.values()),
            cost=sum(self._costs.values()) if self._costs else None,
            models=tuple(
                CascadeModelMetrics(
                    model=model,
                    accepted=own[Verdict.ACCEPTED.value],
                    correct=own["right"],
                    no_evidence=own[Verdict.NO_EVIDENCE.value],
                    failed=own[Verdict.FAILED.value],
                    accuracy=_share(own),
                    cost=self._costs.get(model),
                    **{name: own[name] for name in ("asked", "calls", "prompt_tokens", "completion_tokens")},
                )
                for model, own in self._models.items()
            ),
        )


def _parse_step(record: Mapping[str, Any]) -> tuple[str, str, dict[str, int], float | None]:
    """Return the model of a step, its verdict, its calls and tokens, and its cost."""
    usage = record["usage"]
    calls = int(record["attempts"])
    # Without a call the answer came from the cache, and its tokens were paid for earlier.
    counts = {name: int(usage[name]) * (calls > 0) for name in ("prompt_tokens", "completion_tokens")}
    cost = None
    if calls > 0 and usage["cost"] is not None:
        cost = float(usage["cost"])
    return str(record["model"]), Verdict(record["verdict"]).value, {"calls": calls, **counts}, cost


def _share(counts: Counter[str], prefix: str = "") -> Interval | None:
    known = counts[f"{prefix}known"]
    if known:
        return wilson_interval(counts[f"{prefix}right"], known)
    return None
