"""``calibrant cascade run``: a plan and its models in; answers, or an evaluation, out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from calibrant.assembly._task_record import record_run
from calibrant.cascade.planning._plan import CascadePlan
from calibrant.cli._baselines import baseline_lines
from calibrant.cli._classify import all_texts, print_predictions
from calibrant.cli._evaluate import exit_as, labelled_source
from calibrant.cli._evaluation_table import print_result
from calibrant.cli._interrupts import interruptible
from calibrant.cli._progress import EvaluationDisplay
from calibrant.cli._prompted import without_head
from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet
from calibrant.core._task import Task
from calibrant.evaluation._cache import default_cache, open_cache
from calibrant.evaluation._data import Dataset
from calibrant.evaluation._evaluator import BatchEvaluator
from calibrant.inference._classifier import Classifier
from calibrant.inference._predictor import BasePredictor


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of the command; see its help."""

    models: tuple[str, ...]
    texts: tuple[str, ...]
    file: Path | None
    split: str
    max_rows: int | None
    out: Path | None
    as_json: bool


def run_planned(plan_file: Path, task_files: Sequence[Path], options: RunOptions) -> None:
    """Open the models, check that the plan is theirs, and classify or evaluate."""
    plan = CascadePlan.load(plan_file)
    if options.out is None and not options.texts and options.file is None:
        raise ConfigurationError(
            "Expected --text or --file to classify, or --out to evaluate, got none of them."
        )
    if options.out is not None and options.texts:
        raise ConfigurationError("Expected --text or --out, got both: texts have no answers to evaluate.")
    tasks = _tasks(plan, task_files, options)
    with ExitStack() as opened:
        classifiers = []
        asked = list(zip(tasks, options.models or [None] * len(tasks), strict=True))
        for task, name in asked:
            # A plan's thresholds hold only for the scoring that they were chosen on.
            classifiers.append(Classifier.from_task(without_head(task), model=name))
            opened.callback(classifiers[-1].close)
        planned = plan.cascade(classifiers)
        if planned not in classifiers:
            opened.callback(planned.close)
        if options.out is not None:
            out = options.out
            _evaluate(planned, tasks[0], options, out, lambda: record_run(out, asked, plan=plan.to_record()))
        else:
            texts = all_texts(options.texts, options.file, tasks[0])
            print_predictions(planned, texts, as_json=options.as_json, with_model=True)


def _tasks(plan: CascadePlan, files: Sequence[Path], options: RunOptions) -> list[Task]:
    expected = len(plan.models)
    if options.models and len(options.models) != expected:
        raise ConfigurationError(
            f"Expected --model once for each of the {expected} models of the plan, got {len(options.models)}."
        )
    shared = len(files) == 1 and bool(options.models)
    if len(files) != expected and not shared:
        raise ConfigurationError(
            f"Expected a task file for each of the {expected} models of the plan "
            f"({', '.join(model.name for model in plan.models)}), got {len(files)}: add the others, or name the "
            "models with --model."
        )
    tasks = [Task.from_file(path, splits=()) for path in files]
    return tasks * expected if shared else tasks


def _evaluate(
    planned: BasePredictor, task: Task, options: RunOptions, out: Path, write_down: Callable[[], None]
) -> None:
    """Evaluate labelled rows into a directory, and print the numbers."""
    source = labelled_source(task, options.file, options.split)
    rows = Dataset(source=source, labels=LabelSet.of(task.labels), limit=options.max_rows)
    at_once = planned.in_process
    with (
        open_cache(default_cache()) as cache,
        interruptible(at_once=at_once) as stop,
        EvaluationDisplay() as display,
    ):
        result = BatchEvaluator(planned, cache=cache).evaluate(
            rows, out=out, about={"task": task.name}, on_progress=display, stop=stop
        )
    write_down()
    beside = baseline_lines(result, task, file=options.file, split=options.split)
    print_result(result, task, baselines=beside, as_json=options.as_json)
    exit_as(result.metrics, {}, stop=stop)
