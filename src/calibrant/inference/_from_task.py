"""Classifier arguments and head of a task."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from calibrant.core._completion import Client
from calibrant.core._errors import ConfigurationError
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._limits import Limits
from calibrant.core._task import Task
from calibrant.inference._models import ModelLike

if TYPE_CHECKING:
    from calibrant.heads._head import Head

_LOG = logging.getLogger("calibrant")


def task_arguments(
    task: Task, *, model: ModelLike | None, client: Client | None, limits: Limits | None
) -> dict[str, Any]:
    """Return the classifier arguments of a task, with its prompt.

    Parameters
    ----------
    task : Task
        The task.
    model : str, Client, callable or None
        Used instead of the task's own model.
    client : Client or None
        Stands for the task's own model.
    limits : Limits or None
        The concurrency in it comes before the task's.

    Raises
    ------
    ConfigurationError
        The task describes a cascade, or several providers.
    """
    if model is None and client is None:
        _refuse_several_models(task)
    own = task.model
    if model is not None and own.api_base is not None:
        _LOG.warning(
            "%s is asked instead of %s: the task's api_base and options belong to the latter and are not used.",
            model if isinstance(model, str) else "Another model",
            own.name,
        )
    options = dict(own.options) if model is None else {}
    if model is None and own.api_base is not None:
        options["api_base"] = own.api_base
    return {
        "model": (own.name if client is None else client) if model is None else model,
        "labels": task.labels,
        "field": task.field,
        "prompt": task.prompt,
        "user_template": task.user_template,
        "concurrency": own.concurrency if model is None and limits is None else None,
        "limits": limits,
        "space": own.space if model is None else None,
        "options": options,
        "scoring": own.scoring if model is None or own.scoring == "sampled" else None,
        "tolerance": own.tolerance if model is None else None,
        "samples": own.samples,
    }


def task_head(task: Task, fingerprint: Fingerprint) -> Head | None:
    """Return the head of a task, or None.

    Raises
    ------
    ConfigurationError
        The embedding model that it reads texts with cannot be opened, or is another.
    StateError
        The file is missing or damaged, or the head was fitted under another prompt or model.
    """
    if task.head.file is None:
        return None
    from calibrant.heads._head import Head  # noqa: PLC0415  (if it names one)
    from calibrant.inference._heads import opened_head  # noqa: PLC0415

    return opened_head(Head.load(task.head.file, fingerprint=fingerprint), task.head.embeddings)


def _refuse_several_models(task: Task) -> None:
    """Refuse a task with several models where one is expected."""
    titles = {"cascade": "cascade", "routing": "[routing]"}
    several = next((title for section, title in titles.items() if section in task.sections), None)
    if several is not None:
        raise ConfigurationError(
            f"Expected a task with one model, got the {several} of task {task.name!r}: name one model, or open all "
            "with calibrant.assembly.open_classifier(task)."
        )
