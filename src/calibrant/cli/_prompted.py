"""The prompt that a command names, with its head or label prior."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant import calibration, inference
from calibrant.assembly._open import open_classifier
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import write_atomically
from calibrant.core._settings import DemonstrationSettings, HeadSettings
from calibrant.core._task import Task
from calibrant.inference._classifier import as_classifier

if TYPE_CHECKING:
    from calibrant.core._limits import Limits
    from calibrant.inference._predictor import BasePredictor


def open_prompted(
    task: Task,
    *,
    model: str | None,
    prompt: Path | None,
    run: Path | None,
    label_prior: Path | None,
    limits: Limits | None = None,
) -> BasePredictor:
    """Open a task's classifier under a prompt, with the head or the label prior that belongs to it.

    Parameters
    ----------
    task : Task
        Its own head is used unless `run` or `label_prior` is named.
    model : str or None
        Replaces the task's model.
    prompt : Path or None
        File with a prompt.
    run : Path or None
        Directory of a search: its best prompt with its demonstrations, and its head or else its label prior.
    label_prior : Path or None
        File with a label-prior correction; comes before any head.
    limits : Limits, optional
        Rates, budgets and deadlines.

    Raises
    ------
    ConfigurationError
        Both a prompt and a run are named.
    DataError
        A file is missing, or not a regular file.
    StateError
        The head or the label prior belongs to another prompt, model or label set.
    """
    if run is not None and prompt is not None:
        raise ConfigurationError("Expected either --prompt or --run, got both.")
    classifier = open_classifier(without_head(task), model=model, limits=limits)
    with ExitStack() as opened:
        opened.callback(classifier.close)
        found = prompted(classifier, task.head, prompt=prompt, run=run, label_prior=label_prior)
        opened.pop_all()
    return found


def without_head(task: Task) -> Task:
    """Return the task without the head that it names."""
    return replace(task, head=task.head.model_copy(update={"file": None}))


def prompted(
    classifier: BasePredictor,
    settings: HeadSettings,
    *,
    prompt: Path | None,
    run: Path | None,
    label_prior: Path | None,
) -> BasePredictor:
    """Return a classifier under a prompt; the head in the file of `settings` is used as `open_prompted` says."""
    head = settings.file if run is None and label_prior is None else None
    if run is not None:
        best = _best_candidate(run / "result.json")
        template = best.get("user_template")
        classifier = classifier.with_prompt(
            read_prompt(run / "best_prompt.txt"), user_template=None if template is None else str(template)
        )
        from calibrant.calibration._saved import DEMONSTRATIONS

        classifier = _demonstrating(classifier, best.get("demonstrations"), run / DEMONSTRATIONS)
        if label_prior is None:
            head, label_prior = _existing(run / "head.json"), _existing(run / "label_prior.json")
    elif prompt is not None:
        classifier = classifier.with_prompt(read_prompt(prompt))
    if head is not None:
        from calibrant.heads._head import Head

        loaded = Head.load(head, fingerprint=classifier.fingerprint())
        from calibrant.inference._heads import opened_head

        as_classifier(classifier, to_use="head").head = opened_head(loaded, settings.embeddings)
    elif label_prior is not None:
        correction = calibration.LabelPriorCorrection.load(label_prior, fingerprint=classifier.fingerprint())
        as_classifier(classifier, to_use="label prior").prior_correction = correction
    return classifier


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


def _best_candidate(path: Path) -> dict[str, Any]:
    """Return the components that a search has chosen; empty if the result has none."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["best_candidate"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"expected the result of a search, got something else ({error!r}).", path=path
        ) from error


def _demonstrating(predictor: BasePredictor, chosen: str | None, rows: Path) -> BasePredictor:
    """Return a classifier with the demonstrations that a search chose; unchanged if the search chose none."""
    if chosen is None:
        return predictor
    classifier = as_classifier(predictor, to_use="demonstrations")
    if not chosen.strip():
        return classifier.with_demonstrations(None)
    index = inference.DemonstrationIndex.from_text(read_prompt(rows), labels=classifier.labels)
    return classifier.with_demonstrations(index, **DemonstrationSettings.from_text(chosen).model_dump())


def write_demonstrations(predictor: BasePredictor, directory: Path) -> None:
    """Write the demonstrations to a run's directory, if the classifier has any."""
    shown = predictor.demonstrations if isinstance(predictor, inference.Classifier) else None
    if shown is not None and shown.settings is not None:
        from calibrant.calibration._saved import DEMONSTRATIONS

        write_atomically(directory / DEMONSTRATIONS, shown.index.to_text())


def read_prompt(path: Path) -> str:
    """Return the prompt in a file.

    Raises
    ------
    DataError
        There is no such file, or it is not UTF-8.
    """
    if not path.is_file():
        raise DataError("no such prompt file.", path=path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        msg = f"expected UTF-8 text, got the byte 0x{error.object[error.start]:02x}: save the file as UTF-8."
        raise DataError(msg, path=path, line=line) from error
