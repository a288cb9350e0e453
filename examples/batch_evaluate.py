"""Evaluate a classifier on a file of labelled rows: copy this script and make it yours.

    python examples/batch_evaluate.py rows.jsonl --task examples/transactions/task.toml --out runs/mine

A row is a JSON object with ``input`` and ``answer``. Kill the script at any moment and start it again with the
same arguments: finished rows are read from the directory, and nothing is paid for twice.

Exit codes: 0 done, 1 failed or ended early, 2 bad input, 3 below --min-accuracy, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from calibrant.core import (
    CalibrantError,
    ConfigurationError,
    DataError,
    DataSource,
    LabelSet,
    Limits,
    StateError,
    Stop,
    Task,
)
from calibrant.evaluation import BatchEvaluator, Dataset, EvaluationMetrics, EvaluationProgress
from calibrant.inference import Classifier

DONE, FAILED, BAD_INPUT, TOO_LOW, INTERRUPTED = 0, 1, 2, 3, 130


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Evaluate a classifier on a file of labelled rows.")
    parser.add_argument("data", type=Path, help="JSON Lines, CSV or Parquet with input and answer")
    parser.add_argument("--task", type=Path, required=True, help="labels, prompt and model, as TOML")
    parser.add_argument("--model", help="instead of the task's, such as openai/gpt-4.1-mini")
    parser.add_argument("--out", type=Path, required=True, help="directory for rows and numbers")
    parser.add_argument("--concurrency", type=int, default=64, help="calls in flight at most")
    parser.add_argument("--max-cost", type=float, help="budget in US dollars")
    parser.add_argument("--min-accuracy", type=float, default=0.0, help="exit with 3 below this")
    return parser.parse_args()


def show(progress: EvaluationProgress) -> None:
    """Keep one line on standard error up to date."""
    accuracy = progress.accuracy_answered
    shown = "-" if accuracy is None else f"{accuracy.estimate:.3f}"
    left = "" if progress.eta_seconds is None else f", {progress.eta_seconds:,.0f} s left"
    failed = sum(progress.errors.values())
    print(
        f"\r{progress.rows:,} of {progress.rows_expected:,} rows, accuracy {shown}, {failed:,} failed{left}    ",
        end="",
        file=sys.stderr,
        flush=True,
    )


def report(metrics: EvaluationMetrics) -> None:
    """Print what was found, with its uncertainty."""
    print()
    if metrics.accuracy is not None:
        found = metrics.accuracy
        print(f"accuracy   {found.estimate:.3f}, 95 % interval {found.lower:.3f} to {found.upper:.3f}")
    for name, value in (("macro F1", metrics.macro_f1), ("ECE", metrics.ece), ("Brier", metrics.brier)):
        print(f"{name:<10} {'-' if value is None else f'{value:.3f}'}")
    print(f"rows       {metrics.rows:,}, of which failed {metrics.rows - metrics.answered:,}")
    print(f"paid       {metrics.calls:,} calls, {'-' if metrics.cost is None else f'${metrics.cost:.4f}'}")


def evaluate(options: argparse.Namespace) -> int:
    """Run, and return the exit code."""
    task = Task.from_file(options.task, splits=())
    labels = LabelSet.of(task.labels)
    rows = Dataset(source=DataSource(path=options.data, columns=task.columns), labels=labels)
    limits = Limits(concurrency=options.concurrency, max_cost=options.max_cost)
    stop = Stop()  # Ctrl-C: the rows under way are finished and kept
    signal.signal(signal.SIGINT, lambda *_: stop.request("interrupted"))
    classifier = Classifier.from_task(task, model=options.model, limits=limits)
    try:
        result = BatchEvaluator(classifier, concurrency=options.concurrency, limits=limits).evaluate(
            rows, out=options.out, about={"task": task.name}, on_progress=show, stop=stop
        )
    finally:
        classifier.close()
    metrics = result.metrics
    report(metrics)
    if not metrics.complete:
        print(f"stopped ({metrics.stopped}): start again to go on.", file=sys.stderr)
        return INTERRUPTED if stop.reason else FAILED
    if metrics.answered < metrics.rows:
        print("some rows failed: start again to ask them again.", file=sys.stderr)
    if metrics.accuracy is None or metrics.accuracy.estimate < options.min_accuracy:
        return TOO_LOW
    return DONE


def main() -> int:
    """Turn what goes wrong into a line and an exit code."""
    try:
        return evaluate(arguments())
    except (ConfigurationError, DataError, StateError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return BAD_INPUT
    except CalibrantError as error:
        print(f"\nerror: {error}\nWhat was answered is kept: start again to go on.", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
