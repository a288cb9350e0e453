"""Context options of the command line: the texts that answers have to rest on."""

from __future__ import annotations

from dataclasses import replace

from calibrant.core._errors import ConfigurationError
from calibrant.core._task import Task


def with_context(task: Task, *, context: str | None, column: str | None) -> Task:
    """Return the task with a context for all rows, and a column that holds a row's own.

    Parameters
    ----------
    task : Task
        Task whose cascade verifies answers.
    context : str or None
        For rows without one of their own; None leaves the task's.
    column : str or None
        Column of the data files; None leaves the task's.

    Raises
    ------
    ConfigurationError
        The task has no verifier to read the context.
    """
    if context is None and column is None:
        return task
    from calibrant.assembly._looper import read_looper
    from calibrant.assembly._sections import cascade_settings
    from calibrant.cascade._settings import VERIFYING_METHODS

    cascade = cascade_settings(task)
    file = None if cascade is None else cascade.file
    settings = cascade if file is None else read_looper(file)
    method = None if settings is None else settings.confidence_method
    if cascade is None or method not in VERIFYING_METHODS:
        raise ConfigurationError(
            "Expected a task with a [cascade] whose confidence_method is 'self_verify' or 'automix_entailment' for "
            f"--context and --context-column, got {method or 'one model'!r}: leave them out."
        )
    if context is not None:
        task = task.with_sections(cascade=cascade.model_copy(update={"context": context or None}))
    if column is None:
        return task
    columns = replace(task.columns, context=column)
    sources = {split: replace(source, columns=columns) for split, source in task.sources.items()}
    return replace(task, columns=columns, sources=sources)
