"""Plan of a search, checked before the first call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from calibrant.adapters._calls import SearchSize
from calibrant.adapters._gepa import ConfidenceAdapter
from calibrant.adapters._learned import THRESHOLD_ROWS, PriorCorrection, Thresholds
from calibrant.adapters._rows import example_row, query_of
from calibrant.core._errors import ConfigurationError
from calibrant.core._files import SCHEMA_VERSION
from calibrant.core._labels import normalise_label
from calibrant.core._predictor import Predictor
from calibrant.core._rows import Example
from calibrant.core._task import Task
from calibrant.inference._base import BasePredictor
from calibrant.inference._limits import Gate
from calibrant.optimization._choice import FIRST, detectable_gain
from calibrant.optimization._exemplar import ExemplarProposer
from calibrant.optimization._progress import ProgressTracker
from calibrant.optimization._prompt_parts import given_prompts
from calibrant.optimization._reflection import Reflection, name_of

if TYPE_CHECKING:
    from calibrant.core._predictor import Query
    from calibrant.inference._models import ModelLike


EXEMPLAR_MINIBATCH = 20
REFLECTION_MINIBATCH = 3
RACE_MINIBATCH = {"exemplar": 4, "reflection": 12}

SCREENED = 16
"""Validation rows that every accepted prompt is asked about before a race; the others are the race's."""

Proposer: TypeAlias = Callable[..., dict[str, str]]
"""GEPA's proposal function."""


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
    reflection_model: str | Callable[[str], str] | None
    minibatch_size: int
    seed: int
    prior_correction: PriorCorrection | None
    thresholds: Thresholds | None
    races: bool
    screened_rows: int
    detectable_gain: float | None


@dataclass(kw_only=True)
class SearchParts:
    """Objects that all stages of a search share.

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


@dataclass(kw_only=True)
class SearchStage:
    """Base class of the stages of a search.

    Attributes
    ----------
    parts : SearchParts
        What it shares with the other stages.
    """

    parts: SearchParts

    @property
    def task(self) -> Task:
        """Labels and rows."""
        return self.parts.task

    @property
    def plan(self) -> SearchPlan:
        """Settings of the search."""
        return self.parts.plan

    @property
    def adapter(self) -> ConfidenceAdapter:
        """Adapter that asks the model, scores and counts."""
        return self.parts.adapter

    @property
    def meter(self) -> Gate | None:
        """Counts calls to other models, too; None for a predictor of the user's own."""
        predictor = self.adapter.predictor
        return predictor.meter if isinstance(predictor, BasePredictor) else None

    @property
    def reflection(self) -> Reflection | None:
        """Writer of prompts, if no proposer is."""
        return self.parts.reflection

    @property
    def tracker(self) -> ProgressTracker:
        """Listener of every row and proposal."""
        return self.parts.tracker


def queries_of(candidate: Mapping[str, str], rows: Iterable[Example]) -> list[Query]:
    """Return the queries that ask a candidate's prompt about rows."""
    return [query_of(dict(candidate), example_row(row)) for row in rows]


def _shown_rows(task: Task) -> list[Example]:
    """Return the training rows that prompts may show: none with the text of a validation or test row."""
    held_out = {normalise_label(row.input) for row in (*task.validation, *task.test)}
    return [row for row in task.train if normalise_label(row.input) not in held_out]


def make_plan(  # noqa: PLR0913  (the options of a search)
    task: Task,
    reflection_model: str | Callable[[str], str] | None,
    proposer: Literal["exemplar", "reflection"] | Proposer | None,
    minibatch_size: int | None,
    seed: int,
    prior_correction: Literal["batch", "off"] | None,
    thresholds: Thresholds | None,
    *,
    may_race: bool,
) -> SearchPlan:
    """Check the options of `optimize` and return the plan of the search."""
    for split in ("train", "validation", "test"):
        task.rows(split)
    if minibatch_size is not None and minibatch_size < 1:
        raise ConfigurationError(f"Expected minibatch_size >= 1, got {minibatch_size}.")
    if reflection_model is not None and not (proposer is None or proposer == "reflection"):
        raise ConfigurationError(
            "Expected either a reflection model or a proposer of another kind, got both: the model would not be asked."
        )
    if proposer is None:
        proposer = "exemplar" if reflection_model is None else "reflection"
    if proposer == "reflection" and reflection_model is None:
        raise ConfigurationError(
            "Expected a reflection model for proposer='reflection': pass reflection_model (--reflection-model), or use "
            "'exemplar'."
        )
    wished = _wished_thresholds(task, thresholds)
    races = may_race and _races(task, wished)
    if not (callable(proposer) or proposer in ("exemplar", "reflection")):
        raise ConfigurationError(
            f"Expected proposer 'exemplar', 'reflection' or a callable, got {proposer!r}."
        )
    name, rows = name_of(proposer), REFLECTION_MINIBATCH
    function = proposer if callable(proposer) else None
    if proposer == "exemplar":
        rows = EXEMPLAR_MINIBATCH
        function = ExemplarProposer(train=_shown_rows(task), seed=seed, forms=races)
    n = len(task.validation)
    screened = SCREENED if races and n >= SCREENED + FIRST else n
    return SearchPlan(
        name=name,
        proposer=function,
        reflection_model=reflection_model if function is None else None,
        minibatch_size=minibatch_size or (RACE_MINIBATCH.get(name, rows) if races else rows),
        seed=seed,
        prior_correction=_prior(task, prior_correction),
        thresholds=wished,
        races=races,
        screened_rows=screened,
        detectable_gain=detectable_gain(n - screened or n) if races else None,
    )


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


def search_fingerprint(task: Task, model: ModelLike | Predictor | None, plan: SearchPlan) -> dict[str, Any]:
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
        "embeddings": task.head.embeddings,
        "classifier": model.describe() if isinstance(model, Predictor) else None,
        "rows": [
            [(row.input, row.answer, dict(row.additional_context), row.context) for row in task.rows(split)]
            for split in ("train", "validation", "test")
        ],
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "task": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        "model": name_of(task.model.name if model is None else model),
        "proposer": plan.name,
        "reflection_model": None if plan.reflection_model is None else name_of(plan.reflection_model),
        "minibatch_size": plan.minibatch_size,
        "seed": plan.seed,
    }
