"""Optimise a classifier's prompt with DSPy: copy this script and make it yours.

    pip install ".[dspy,local]"
    python examples/dspy_transactions.py --out program.json

The task's own model is asked (the example's is embedded). Without --reflection-model the prompt is
edited by `ExemplarProposer`, which needs no second model; with one, DSPy's own proposer rewrites it.

Exit codes: 0 done, 1 failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import dspy

from calibrant.adapters.dspy import ConfidenceClassifier
from calibrant.core import CalibrantError, ConfigurationError, DataError, Task
from calibrant.inference import Classifier
from calibrant.optimization import ExemplarProposer

TASK = Path(__file__).parent / "transactions" / "task.toml"
DONE, FAILED, BAD_INPUT = 0, 1, 2


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Optimise a classifier's prompt with dspy.GEPA.")
    parser.add_argument("--task", type=Path, default=TASK, help="labels, prompt, model and data, as TOML")
    parser.add_argument("--max-metric-calls", type=int, default=400, help="rows to classify at most, about")
    parser.add_argument("--reflection-model", help="rewrites the prompt, such as openai/gpt-5")
    parser.add_argument("--threads", type=int, default=8, help="rows DSPy asks about at the same time")
    parser.add_argument("--out", type=Path, required=True, help="where the program is saved, as JSON")
    return parser.parse_args()


def proposer(options: argparse.Namespace, task: Task) -> dict[str, Any]:
    """Return who proposes prompts, as dspy.GEPA takes it."""
    if options.reflection_model:
        return {"reflection_lm": dspy.LM(options.reflection_model)}
    exemplars = ExemplarProposer(train=task.rows("train"))
    exemplars.prepare(labels=task.labels, field=task.field)
    return {"instruction_proposer": exemplars}


def optimise(options: argparse.Namespace, task: Task, classifier: Classifier) -> None:
    """Search, compare on the test rows, and save."""
    program = ConfidenceClassifier(classifier)
    metric = program.metric()
    search = dspy.GEPA(
        metric=metric,
        max_metric_calls=options.max_metric_calls,
        num_threads=options.threads,
        gepa_kwargs={"stop_callbacks": metric.stop},  # ends the search when the model cannot be asked
        **proposer(options, task),
    )
    best = search.compile(
        program,
        trainset=program.examples(task.rows("train")),
        valset=program.examples(task.rows("validation")),
    )
    evaluate = dspy.Evaluate(
        devset=program.examples(task.rows("test")), metric=metric, num_threads=options.threads
    )
    before, after = evaluate(program).score, evaluate(best).score
    metric.stop()  # raises what DSPy has only logged
    best.save(options.out)
    print(best.instructions)
    print(f"\ntest score {before:.1f} before, {after:.1f} after; saved to {options.out}")


def main() -> int:
    """Turn what goes wrong into a line and an exit code."""
    options = arguments()
    try:
        task = Task.from_file(options.task)
        classifier = Classifier.from_task(task)
        try:
            optimise(options, task, classifier)
        finally:
            classifier.close()
    except (ConfigurationError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except CalibrantError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return DONE


if __name__ == "__main__":
    sys.exit(main())
