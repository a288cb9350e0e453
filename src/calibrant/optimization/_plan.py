"""Plan of a search, checked before the first call, and reports on its progress."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from calibrant.adapters._gepa import ConfidenceAdapter
from calibrant.adapters._rows import example_row, query_of
from calibrant.adapters._state import THRESHOLD_ROWS, PriorCorrection, SearchSize, Thresholds
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import SCHEMA_VERSION
from calibrant.core._fingerprint import TextDigests, sha256_of
from calibrant.core._prediction import JsonObject, Prediction
from calibrant.core._predictor import CallMeter, Predictor, Query
from calibrant.core._rows import Example
from calibrant.core._settings import ScoringSettings
from calibrant.core._task import SPLITS, Task
from calibrant.inference._base import BasePredictor
from calibrant.inference._classifier import Classifier
from calibrant.inference._limits import Gate, rate_limit_waits
from calibrant.optimization._choice import FIRST, detectable_gain
from calibrant.optimization._prompt_parts import CandidateTexts, given_prompts, without_texts_of
from calibrant.optimization._proposers import ExemplarProposer, Reflection, name_of
from calibrant.runs._directory import KNOWN_TEXTS
from calibrant.scoring import (
    BrierScoring,
    LinearBlendScoring,
    LogScoring,
    ScoringStrategy,
    SigmoidScoring,
    ThresholdScoring,
)

if TYPE_CHECKING:
    from gepa.core.callbacks import CandidateAcceptedEvent, CandidateRejectedEvent, ValsetEvaluatedEvent

    from calibrant.inference._models import ModelLike


PERFECT = 1.0 - 1e-12

_ENOUGH_ROWS: Final = 10  # for an estimate of the time that is left
# Training rows that a proposal is tried on, by the name of the proposer; those of others are the fewest.
MINIBATCH = {"exemplar": 20, "reflection": 3}
RACE_MINIBATCH = {"exemplar": 4, "reflection": 12}
SCREENED = 16
"""Validation rows that every accepted prompt is asked about before a race; the others are the race's."""
Proposer: TypeAlias = Callable[..., dict[str, str]]
"""GEPA's proposal function."""

ProposerChoice: TypeAlias = Literal["exemplar", "reflection"] | Proposer | None
ReflectionModel: TypeAlias = str | Callable[[str], str] | None
"""Name of a reflection model, or a function that writes prompts."""


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
        test_rows: int,
        expected_cost: float | None,
    ) -> None:
        self.now = Progress(total=total, search_rows=total, test_rows=test_rows, expected_cost=expected_cost)
        self.unpriced_calls = 0
        self._listener = listener
        self._gates: tuple[CallMeter, ...] = ()
        self._lock = threading.RLock()
        self._since = time.perf_counter()

    def begin(self, predictor: Predictor, *, directory: Path | None = None) -> None:
        """Report the most rows of a search and their cost, before it asks anything, and the directory of its run."""
        slots = () if predictor.is_free else [gate.concurrency for gate in predictor.gates]
        with self._lock:
            self._since = time.perf_counter()
            self._update(
                in_process=predictor.is_free,
                concurrency=min(slots, default=None),
                directory=directory,
            )

    def watch(self, gates: Sequence[CallMeter]) -> None:
        """Report to the listener when calls at these meters wait for a rate limit."""
        self._gates = tuple(gates)
        for gate in self._gates:
            gate.on_pause = self._update

    def _update(self, **changes: object) -> None:
        with self._lock:
            self.now = replace(self.now, rate_limits=rate_limit_waits(self._gates), **changes)  # type: ignore[arg-type]
            if self._listener is not None:
                self._listener(self.now)

    def should_stop(self, state: object) -> bool:  # noqa: ARG002  (GEPA's stopper signature)
        """Return True, to end the search, if a prompt has a perfect validation score."""
        return self.now.best_score is not None and self.now.best_score >= PERFECT

    def start_test(self, total: int) -> None:
        """Report the begin of the test phase."""
        self._update(phase="test", calls=0, total=total)

    def on_prediction(self, prediction: Prediction) -> None:
        """Count one prediction and add its cost."""
        usage = prediction.usage
        tokens = usage.prompt_tokens + usage.completion_tokens
        is_paid = tokens > 0 or prediction.is_answered
        with self._lock:
            self.unpriced_calls += usage.cost is None and is_paid
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


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """Settings of a search.

    Attributes
    ----------
    name : str
        Name of the proposer.
    proposer : callable or None
        Proposes prompts; None leaves that to the reflection model.
    reflection_model : str, callable or None
        Writes prompts; None if `proposer` does.
    minibatch_size : int
        Training rows that a proposal is tried on first.
    seed : int
        Seed of every choice.
    prior_correction : str or None
        Method by which predictions are given out without their label prior; None gives them as they are.
    scoring : ScoringStrategy
        Scores the rows that GEPA sees.
    thresholds : str or None
        ``auto`` takes confidence thresholds from training rows.
    races : bool
        True if log-likelihoods on validation rows decide, not a score.
    screened_rows : int
        Validation rows that every accepted prompt is asked about.
    detectable_gain : float or None
        Accuracy gain over the seed prompt that can be detected, in [0, 1]; None without a race.
    """

    name: str
    proposer: Proposer | None
    reflection_model: ReflectionModel
    minibatch_size: int
    seed: int
    prior_correction: PriorCorrection | None
    scoring: ScoringStrategy
    thresholds: Thresholds | None
    races: bool
    screened_rows: int
    detectable_gain: float | None


@dataclass(kw_only=True)
class SearchStage:
    """Base class of the stages of a search: the objects that all of them share.

    Attributes
    ----------
    task : Task
        Labels and rows.
    plan : SearchPlan
        Settings of the search.
    adapter : ConfidenceAdapter
        Asks the model, scores and counts.
    reflection : Reflection or None
        Writes prompts if no proposer does.
    tracker : ProgressTracker
        Told of every row and proposal.
    """

    task: Task
    plan: SearchPlan
    adapter: ConfidenceAdapter
    reflection: Reflection | None
    tracker: ProgressTracker

    @property
    def meter(self) -> Gate | None:
        """Counts calls to other models, too; None for a predictor of the user's own."""
        predictor = self.adapter.predictor
        return predictor.meter if isinstance(predictor, BasePredictor) else None


def queries_of(candidate: CandidateTexts, rows: Iterable[Example]) -> list[Query]:
    """Return the queries that ask a candidate's prompt about rows."""
    return [query_of(dict(candidate), example_row(row)) for row in rows]


def make_plan(  # noqa: PLR0913  (the options of a search)
    task: Task,
    model: ModelLike | Predictor | None,
    reflection_model: ReflectionModel,
    proposer: ProposerChoice,
    minibatch_size: int | None,
    seed: int,
    prior_correction: Literal["batch", "off"] | None,
    thresholds: Thresholds | None,
) -> SearchPlan:
    """Check the options of `optimize` and return the plan of the search."""
    for split in ("train", "validation", "test"):
        task.rows(split)
    if minibatch_size is not None and minibatch_size < 1:
        raise ConfigurationError(f"Expected minibatch_size >= 1, got {minibatch_size}.")
    chosen = _checked_proposer(proposer, reflection_model)
    wished = _wished_thresholds(task, thresholds)
    has_prompts = isinstance(model, Classifier) or not isinstance(model, Predictor)
    races = has_prompts and _races(task, wished)
    name = name_of(chosen)
    rows = RACE_MINIBATCH if races else MINIBATCH
    function = chosen if callable(chosen) else None
    if chosen == "exemplar":
        shown = without_texts_of(task.train, (*task.validation, *task.test))
        function = ExemplarProposer(train=shown, seed=seed, forms=races)
    n = len(task.validation)
    screened = SCREENED if races and n >= SCREENED + FIRST else n
    return SearchPlan(
        name=name,
        proposer=function,
        reflection_model=reflection_model if function is None else None,
        minibatch_size=minibatch_size or rows.get(name, MINIBATCH["reflection"]),
        seed=seed,
        prior_correction=_prior(task, prior_correction),
        scoring=LogScoring() if races else _scoring(task.scoring),
        thresholds=wished,
        races=races,
        screened_rows=screened,
        detectable_gain=detectable_gain(n - screened or n) if races else None,
    )


def _scoring(settings: ScoringSettings) -> ScoringStrategy:
    strategies: dict[str, Callable[..., ScoringStrategy]] = {
        "linear": LinearBlendScoring,
        "threshold": ThresholdScoring,
        "sigmoid": SigmoidScoring,
        "brier": BrierScoring,
        "log": LogScoring,
    }
    parameters: dict[str, float] = dict(settings.parameters)
    if settings.strategy == "linear":
        parameters.setdefault("low_confidence_threshold", settings.high)
    try:
        return strategies[settings.strategy](**parameters)
    except TypeError as error:
        raise ConfigurationError(
            f"[scoring] parameters do not fit strategy {settings.strategy!r}: {error}."
        ) from error


def _checked_proposer(
    proposer: ProposerChoice,
    reflection_model: ReflectionModel,
) -> str | Proposer:
    """Return the name of a proposer, or one of the user's own; by default the one that fits the reflection model."""
    if reflection_model is not None and not (proposer is None or proposer == "reflection"):
        raise ConfigurationError(
            "Expected either a reflection model or a proposer of another kind, got both: the model would not be asked."
        )
    if proposer is None:
        return "exemplar" if reflection_model is None else "reflection"
    if proposer == "reflection" and reflection_model is None:
        raise ConfigurationError(
            "Expected a reflection model for proposer='reflection': pass reflection_model (--reflection-model), or use "
            "'exemplar'."
        )
    if not (callable(proposer) or proposer in ("exemplar", "reflection")):
        raise ConfigurationError(
            f"Expected proposer 'exemplar', 'reflection' or a callable, got {proposer!r}."
        )
    return proposer


def _races(task: Task, thresholds: Thresholds | None) -> bool:
    """Return True if a race decides: plain labels, with no thresholds or scoring strategy set."""
    return task.labels.is_plain and thresholds is None and "strategy" not in task.scoring.model_fields_set


def _prior(task: Task, wished: Literal["batch", "off"] | None) -> PriorCorrection | None:
    if wished not in {None, "batch", "off"}:
        raise ConfigurationError(f"Expected prior_correction 'batch' or 'off', got {wished!r}.")
    method = wished or task.calibration.prior_correction
    return None if method == "off" else method


def _wished_thresholds(task: Task, wished: Thresholds | None) -> Thresholds | None:
    if wished not in {None, "auto"}:
        raise ConfigurationError(
            f"Expected thresholds 'auto', got {wished!r}: numbers belong in the task, as high and low under [scoring]."
        )
    return wished or task.scoring.thresholds


def search_size(task: Task, plan: SearchPlan) -> SearchSize:
    """Return the row counts that determine the metric calls of a search."""
    return SearchSize(
        validation_rows=plan.screened_rows,
        minibatch_size=plan.minibatch_size,
        threshold_rows=0 if plan.thresholds is None else min(THRESHOLD_ROWS, len(task.train)),
        other_prompts=len(given_prompts(task)),
    )


def known_texts(task: Task) -> TextDigests:
    """Return digests of the rows of a task, which a search's prompt and head owe something to."""
    return TextDigests.of(row.input for split in SPLITS for row in task.rows(split))


def search_fingerprint(task: Task, model: ModelLike | Predictor | None, plan: SearchPlan) -> JsonObject:
    """Return the settings that determine the answers of a search, as stored in ``run.json``."""
    content = {
        "labels": task.labels.record(),
        "prompt": task.prompt,
        "user_template": task.user_template,
        "field": task.field,
        "scoring": task.scoring.model_dump() | {"thresholds": plan.thresholds},
        "prior_correction": plan.prior_correction,
        "demonstrations": None if task.demonstrations is None else task.demonstrations.model_dump(),
        "settings": task.model.model_dump(exclude={"concurrency"}),
        "other_prompts": list(task.other_prompts),
        "label_descriptions": dict(task.label_descriptions),
        "head": task.head.fit,
        "classifier": model.describe() if isinstance(model, Predictor) else None,
        "rows": [
            [(row.input, row.answer, dict(row.additional_context), row.context) for row in task.rows(split)]
            for split in SPLITS
        ],
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "task": sha256_of(json.dumps(content, sort_keys=True)),
        "model": name_of(task.model.name if model is None else model),
        "proposer": plan.name,
        "reflection_model": None if plan.reflection_model is None else name_of(plan.reflection_model),
        "minibatch_size": plan.minibatch_size,
        "seed": plan.seed,
        "embeddings": task.head.embeddings,
        KNOWN_TEXTS: known_texts(task).to_record(),
    }
