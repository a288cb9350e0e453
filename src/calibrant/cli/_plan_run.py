"""``calibrant cascade run``: a plan and its models in; answers, or an evaluation, out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from calibrant.cascade import CascadePlan
from calibrant.cli._cascade import cascade_lines
from calibrant.cli._errors import FAILED, INTERRUPTED
from calibrant.cli._interrupts import ENDED_BY_SIGNAL, interruptible
from calibrant.cli._progress import EvaluationDisplay
from calibrant.cli._tables import with_interval
from calibrant.core import ConfigurationError, DataSource, Example, LabelSet, Outcome, Task, read_texts
from calibrant.evaluation import BatchEvaluator, Dataset, default_cache, open_cache, row_record
from calibrant.inference import Classifier

if TYPE_CHECKING:
    from calibrant.core import Prediction, Split
    from calibrant.evaluation import EvaluationMetrics

__all__ = ["RunOptions", "run_planned"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the command was told; see its help."""

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
    opened: list[Classifier] = []
    try:
        for task, name in zip(tasks, options.models or [None] * len(tasks), strict=True):
            opened.append(Classifier.from_task(task, model=name))
        planned = plan.cascade(opened)
        if options.out is None:
            _classify(planned, tasks[0], options)
        else:
            _evaluate(planned, tasks[0], options, options.out)
    finally:
        for classifier in opened:
            classifier.close()


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


def _classify(planned: Classifier, task: Task, options: RunOptions) -> None:
    """Print one line per text."""
    texts = [
        *options.texts,
        *([] if options.file is None else read_texts(options.file, columns=task.columns)),
    ]
    predictions = planned.classify_many(texts)
    for text, prediction in zip(texts, predictions, strict=True):
        sys.stdout.write(_line(text, prediction, as_json=options.as_json) + "\n")
    if all(prediction.outcome is Outcome.ERROR for prediction in predictions):
        raise SystemExit(FAILED)


def _line(text: str, prediction: Prediction, *, as_json: bool) -> str:
    if as_json:
        record = row_record(0, Example(input=text, answer=""), prediction)
        hidden = {"index", "answer", "correct"}
        return json.dumps(
            {name: value for name, value in record.items() if name not in hidden}, ensure_ascii=False
        )
    flat = " ".join(text.split())
    if prediction.outcome is not Outcome.OK:
        return f"{prediction.outcome.value}\t-\t-\t{flat:.80}\t({prediction.reason})"
    sure = "-" if prediction.confidence is None else f"{prediction.confidence:.3f}"
    return f"{prediction.label}\t{sure}\t{_answered_by(prediction)}\t{flat:.80}"


def _answered_by(prediction: Prediction) -> str:
    """Return the name of the cascade's model, which tells two prompts of one model apart."""
    answers = [step.model for step in prediction.steps if step.label == prediction.label]
    return answers[-1] if answers else prediction.model or "-"


def _evaluate(planned: Classifier, task: Task, options: RunOptions, out: Path) -> None:
    """Evaluate labelled rows into a directory, and print the numbers."""
    if options.file is not None:
        source = DataSource(path=options.file, columns=task.columns)
    else:
        found = task.sources.get(cast("Split", options.split))
        if found is None:
            raise ConfigurationError(
                f"Task {task.name!r} has no {options.split!r} rows: name a file for it under [data], or pass --file."
            )
        source = found
    rows = Dataset(source=source, labels=LabelSet.of(task.labels), limit=options.max_rows)
    with open_cache(default_cache()) as cache, interruptible() as stop, EvaluationDisplay() as display:
        result = BatchEvaluator(planned, cache=cache).evaluate(
            rows, out=out, about={"task": task.name}, on_progress=display, stop=stop
        )
    metrics = result.metrics
    _print(metrics, task, options, out)
    if not metrics.complete:
        sys.stderr.write(
            f"stopped ({metrics.stopped}): {metrics.rows:,} rows are saved; run the same command again to go on.\n"
        )
        raise SystemExit(INTERRUPTED if stop.reason == ENDED_BY_SIGNAL else FAILED)
    if metrics.answered == 0:
        raise SystemExit(FAILED)


def _print(metrics: EvaluationMetrics, task: Task, options: RunOptions, out: Path) -> None:
    if options.as_json:
        sys.stdout.write((out / "metrics.json").read_text(encoding="utf-8").strip() + "\n")
    else:
        cost = "" if metrics.cost is None else f", ${metrics.cost:.4f}"
        sys.stdout.write(
            f"{task.name}: {metrics.rows:,} rows, accuracy {with_interval(metrics.accuracy)}, {metrics.calls:,} calls, "
            f"{metrics.rows_from_cache:,} rows without a call{cost}\n"
        )
        lines = [] if metrics.cascade is None else cascade_lines(metrics.cascade)
        sys.stdout.write(
            "\n".join([*lines, f"Files: {out}/predictions.jsonl, metrics.json, run.json"]) + "\n"
        )
