"""Tasks and classifiers with the prompt, model and context that a command's options name."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibrant import assembly, calibration, inference
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._files import decoding_problem
from calibrant.core._settings import DemonstrationSettings, HeadSettings
from calibrant.core._task import Task
from calibrant.inference._classifier import as_classifier
from calibrant.runs._journal import JOURNAL, SavedAnswers
from calibrant.tuned._task_record import with_model_alone

if TYPE_CHECKING:
    from calibrant.cli._app import Submit
    from calibrant.cli._commands import Optimize, PromptedOptions
    from calibrant.core._predictor import Limits
    from calibrant.heads._tuned import Tuned
    from calibrant.inference._base import BasePredictor

_LOG: Final = logging.getLogger("calibrant")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Task and options that a command opens a classifier from.

    Attributes
    ----------
    task : Task
        The task; a bundle's has no rows.
    tuned : Tuned or None
        Of a bundle or a run; None of a task file.
    options : PromptedOptions
        Options of the command.
    """

    task: Task
    tuned: Tuned | None
    options: PromptedOptions

    def open(self, *, limits: Limits | None = None) -> BasePredictor:
        """Open the classifier; see `open_prompted` and `calibrant.load`."""
        if self.tuned is None:
            return open_prompted(self.task, self.options, limits=limits)
        from calibrant.tuned._open import open_tuned  # task files do without it

        base = self.options.api_base
        given = {} if base is None else {"api_base": base}
        return open_tuned(self.tuned, model=self.options.model, options=given, limits=limits)

    @property
    def saved_answers(self) -> SavedAnswers | None:
        """Answers that the run has paid for; None without the run of a search."""
        run = self.options.run if self.tuned is None else self.tuned.path
        if run is None or not (run / JOURNAL).is_file():
            return None
        return SavedAnswers(run / JOURNAL)


def source_of(path: Path, options: PromptedOptions) -> Source:
    """Return the source in a task file, a bundle or the directory of a run, without opening a model.

    Raises
    ------
    ConfigurationError
        The task file is wrong, or a prompt is named for a bundle or a run, which have their own.
    StateError
        The path holds none of the three, or is damaged.
    """
    from calibrant.tuned._sources import read_source  # searches read task files alone

    found = read_source(path)
    if isinstance(found, Task):
        task = asked_task(with_context(found, options), options)
        return Source(task=task, tuned=None, options=replace(options, model=None, api_base=None))
    own = {"--prompt": options.prompt, "--run": options.run, "--label-prior": options.label_prior}
    for name, value in own.items():
        if value is not None:
            raise ConfigurationError(
                f"Expected {name} with a task file, got {path}, which has its own prompt: leave it out, or name the "
                "task file."
            )
    if options.context is None and options.context_column is None:
        return Source(task=found.tasks[0].task, tuned=found, options=options)
    first, *others = found.tasks
    task = with_context(first.task, options)
    tuned = replace(found, tasks=(replace(first, task=task), *others))
    return Source(task=task, tuned=tuned, options=options)


def asked_task(task: Task, options: PromptedOptions | Optimize | Submit) -> Task:
    """Return the task with the model and the address that the options name instead of its own.

    Raises
    ------
    ConfigurationError
        A section of the task is wrong, even if the model replaces it, or an address is named for several models.
    """
    if options.model is not None and task.sections:
        cascade = assembly.cascade_settings(task)
        assembly.routing_settings(task)
        replaced = "routing" if cascade is None else "cascade"
        _LOG.warning(
            "%s alone is asked: the task's %s and its settings are not used.", options.model, replaced
        )
    return with_model_alone(task, options.model, api_base=options.api_base)


def with_context(task: Task, options: PromptedOptions) -> Task:
    """Return the task with the context for all rows, and the column of row contexts, from the options.

    Raises
    ------
    ConfigurationError
        The task has no verifier to read the context.
    """
    context = options.context
    column = options.context_column
    if context is None and column is None:
        return task
    from calibrant.assembly._foreign import read_looper
    from calibrant.cascade._methods import methods_with  # other commands do without cascades

    settings = assembly.cascade_settings(task)
    method = None
    if settings is not None:
        looper = settings
        if settings.file is not None:
            looper = read_looper(settings.file)
        method = looper.confidence_method
    verifying = methods_with("context")
    if settings is None or method not in verifying:
        known = " or ".join(map(repr, verifying))
        raise ConfigurationError(
            f"Expected a task with a [cascade] whose confidence_method is {known} for "
            f"--context and --context-column, got {method or 'one model'!r}: leave them out."
        )
    if context is not None:
        task = task.with_sections(cascade=settings.model_copy(update={"context": context or None}))
    if column is None:
        return task
    columns = replace(task.columns, context=column)
    sources = {split: replace(source, columns=columns) for split, source in task.sources.items()}
    return replace(task, columns=columns, sources=sources)


def without_head(task: Task) -> Task:
    """Return the task without the file of its head."""
    return replace(task, head=task.head.model_copy(update={"file": None}))


def open_prompted(task: Task, options: PromptedOptions, *, limits: Limits | None) -> BasePredictor:
    """Open a task's classifier under the model and the prompt that the options name; see `prompted`.

    Raises
    ------
    ConfigurationError
        Both a prompt and a run are named.
    DataError
        A file is missing, or not a regular file.
    StateError
        The head or the label prior belongs to another prompt, model or label set.
    """
    if options.run is not None and options.prompt is not None:
        raise ConfigurationError("Expected either --prompt or --run, got both.")
    classifier = assembly.open_classifier(without_head(task), model=options.model, limits=limits)
    with ExitStack() as opened:
        opened.callback(classifier.close)
        found = prompted(classifier, task.head, options)
        opened.pop_all()
    return found


def prompted(classifier: BasePredictor, settings: HeadSettings, options: PromptedOptions) -> BasePredictor:
    """Return the classifier with the prompt, head or label prior that the options name.

    A run gives its best prompt with its demonstrations, and its head or else its label prior. A label prior that is
    named comes before any head; the task's own head, in the file of `settings`, is used if neither is named.
    """
    run = options.run
    label_prior = options.label_prior
    head = settings.file if run is None and label_prior is None else None
    if run is not None:
        from calibrant.runs._directory import DEMONSTRATIONS

        best = _best_candidate(run / "result.json")
        template = best.get("user_template")
        classifier = classifier.with_prompt(
            read_prompt(run / "best_prompt.txt"), user_template=None if template is None else str(template)
        )
        classifier = _demonstrating(classifier, best.get("demonstrations"), run / DEMONSTRATIONS)
        if label_prior is None:
            head, label_prior = (
                path if path.exists() else None for path in (run / "head.json", run / "label_prior.json")
            )
    elif options.prompt is not None:
        classifier = classifier.with_prompt(read_prompt(options.prompt))
    learned = head or label_prior
    if learned is not None:
        classifier = classifier.asked_for(learned)
    if head is not None:
        from calibrant.heads._head import Head  # other prompts do without heads
        from calibrant.inference._heads import opened_head

        loaded = Head.load(head, fingerprint=classifier.fingerprint())
        owner = as_classifier(classifier, to_use="head")
        owner.head = opened_head(loaded, settings.embeddings or None, meter=owner.meter)
    elif label_prior is not None:
        correction = calibration.LabelPriorCorrection.load(label_prior, fingerprint=classifier.fingerprint())
        as_classifier(classifier, to_use="label prior").prior_correction = correction
    return classifier


def _best_candidate(path: Path) -> dict[str, Any]:
    """Return the components that a search has chosen; empty if there is no result file."""
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
        line, problem = decoding_problem(error)
        raise DataError(f"{problem}: save the file as UTF-8.", path=path, line=line) from error
