"""Baselines in the output of `calibrant evaluate`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant import evaluation
from calibrant.cli._tables import aligned, number, say, with_interval
from calibrant.core._composite import CompositeLabels
from calibrant.core._errors import ConfigurationError, DataError, StateError
from calibrant.core._labels import LabelSet
from calibrant.core._task import Task

if TYPE_CHECKING:
    from calibrant.heads._compared import BaselineComparison


def baseline_lines(
    result: evaluation.EvaluationResult, task: Task, *, file: Path | None, split: str
) -> list[str]:
    """Compare a finished evaluation with baselines, and return the table and the verdict.

    Parameters
    ----------
    result : evaluation.EvaluationResult
        The evaluation; its ``metrics.json`` gets the comparison.
    task : Task
        Task with the baselines' training and validation rows.
    file : Path or None
        File of the evaluated rows, if they are not the task's.
    split : str
        Split of the evaluated rows, if they are the task's: no baseline learns from it.
    """
    if result.directory is None or not result.metrics.complete or isinstance(task.labels, CompositeLabels):
        return []
    sources = [
        source
        for name, source in task.sources.items()
        if name != "test" and (file is not None or name != split)
    ]
    if not sources:
        return ["No baselines: the task has no other labelled rows (train, validation) under [data]."]
    labels = LabelSet.of(task.labels)
    labelled = chain.from_iterable(evaluation.Dataset(source=source, labels=labels) for source in sources)
    from calibrant.evaluation._baselines import add_baselines  # loads the heads

    say("comparing with baselines")  # takes seconds, of many rows half a minute
    try:
        found = add_baselines(result.directory, labelled, labels=labels)
    except (ConfigurationError, DataError, StateError) as error:  # the evaluation is complete without them
        return [f"No baselines: {error}"]
    return [*_table(found, answered=result.metrics.answered), found.verdict]


def _table(found: BaselineComparison, *, answered: int) -> list[str]:
    """Return model and baselines in columns; empty without a comparison."""
    if not found.scores:
        return []
    rows = f"{found.rows:,}" if found.rows == answered else f"{found.rows:,} of {answered:,}"
    head = (f"on {rows} answered rows", "accuracy", "macro F1", "labels answered", "learned from")
    rows_of_baselines = f"{found.labelled_rows:,} labelled rows"
    scores = [
        (
            score.name,
            with_interval(score.accuracy),
            number(score.macro_f1),
            str(score.answered_labels),
            "" if score.name == "model" else rows_of_baselines,
        )
        for score in found.scores
    ]
    return aligned([head, *scores])
