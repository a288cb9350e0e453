"""Does dividing the label prior out help? Seven tasks, one prompt each, the embedded model; and recorded options.

    python benchmarks/bench_prior.py --data DIR_WITH_JSONL [--prior-rows 64] [--validation-rows 60] [--test-rows 120]
                                     [--keep DIR]
    python benchmarks/bench_prior.py --options DIR_WITH_NPZ [--prior-rows 64] [--draws 20]

Every task's first labelled texts give the prior (without their answers), the next ones, with answers, decide whether
the correction is used, and its test rows are what the table is about: as the model answered, with the prior divided
out whether that helps or not, as the guard allows without labels, and as the rows with answers decided. With `--keep`,
answers are read from DIR, which may be that of bench_better.py: tasks and prompts are the same.

With `--options`: log-probabilities of six options, of which two are nearly never right, that four models gave to
10,000 questions each. The arg max of the large model of a family stands for the truth. Every draw takes some rows as
the unlabelled batch and measures all rows; all six options, and the first four alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from _data import OPTIONS, available
from _tasks import MODEL, SHIPPED, TASKS, labelled_rows, pairs_of, task_of
from numpy.typing import NDArray

from calibrant.calibration import LabelPriorCorrection
from calibrant.core import LabelSet, Prediction, Task
from calibrant.heads import fit_head
from calibrant.inference import Classifier
from calibrant.metrics import classification_summary, expected_calibration_error
from calibrant.store import PredictionCache

Array = NDArray[np.float64]


def log_probabilities(predictions: list[Prediction]) -> Array:
    """Return what was predicted, one row a text."""
    found = [p.distribution.logprobs for p in predictions if p.distribution is not None]
    if len(found) < len(predictions):
        sys.exit(f"{len(predictions) - len(found)} rows came without a distribution: {predictions[0].reason}")
    return np.array(found)


def figures(rows_of_logs: Array, answers: NDArray[np.intp], labels: LabelSet) -> str:
    """Return accuracy, macro-F1, Brier score and calibration error."""
    probabilities = np.exp(rows_of_logs)
    predicted = probabilities.argmax(axis=1)
    truth = np.eye(len(labels))[answers]
    brier = 0.5 * ((probabilities - truth) ** 2).sum(axis=1).mean()
    summary = classification_summary(
        [labels.labels[i] for i in answers], [labels.labels[i] for i in predicted]
    )
    error = expected_calibration_error(
        confidence=probabilities.max(axis=1), correct=(predicted == answers).astype(float)
    )
    return f"{(predicted == answers).mean():9.3f} {summary.macro_f1:9.3f} {brier:7.3f} {error:7.3f}"


def measure(task: Task, journal: PredictionCache, options: argparse.Namespace) -> None:
    """Print one task's figures."""
    labels, labelled = task.labels, labelled_rows(task)
    data = {
        "prior": labelled[: options.prior_rows],
        "validation": labelled[options.prior_rows :][: options.validation_rows],
        "test": pairs_of(task.test)[: options.test_rows],
    }
    with Classifier(
        model=MODEL, labels=labels, field=task.field, prompt=task.prompt, journal=journal
    ) as classifier:
        predicted = {
            name: classifier.classify_many([text for text, _ in found]) for name, found in data.items()
        }
    logs = {name: log_probabilities(found) for name, found in predicted.items()}
    answers = {
        name: np.array([labels.labels.index(label) for _, label in found]) for name, found in data.items()
    }
    mass = np.mean([p.distribution.label_mass for p in predicted["test"] if p.distribution is not None])
    head = fit_head(logs["validation"], answers["validation"], labels=labels)
    sides = {
        "as answered": logs["test"],
        "prior divided out": LabelPriorCorrection("batch", strength=1.0)
        .fit(logs["prior"])
        .transform(logs["test"]),
        "as the guard allows": LabelPriorCorrection("batch").fit(logs["prior"]).transform(logs["test"]),
        f"head ({head.title})": head.transform(logs["test"]),
    }
    print(f"\n{task.name}: {len(labels)} labels, {len(data['test'])} test rows, mean label mass {mass:.3f}")
    print(f"{'':24} {'accuracy':>9} {'macro-F1':>9} {'Brier':>7} {'ECE':>7}")
    for name, found in sides.items():
        print(f"{name:24}", figures(found, answers["test"], labels))
    print(f"decided on validation: {head.reason}", flush=True)


LARGE = {
    "Qwen-7B": "Qwen-72B",
    "Qwen-72B": "Qwen-72B",
    "Llama-2-7b-hf": "Llama-2-70b-hf",
    "Llama-2-70b-hf": "Llama-2-70b-hf",
}


def measure_options(path: Path, n_options: int, *, n_rows: int, draws: int) -> None:
    """Print accuracies of a file's four models: as scored, then the mean and the least over draws of each recipe."""
    recorded = np.load(path)
    print(f"\n{path.stem}, {n_options} options, {draws} batches of {n_rows} rows")
    print(f"{'':16} {'as scored':>9} {'plain (least)':>15} {'guarded (least)':>15}")
    for model, large in LARGE.items():
        logs = recorded[model].astype(np.float64)[:, :n_options]
        truth = recorded[large].astype(np.float64)[:, :n_options].argmax(axis=1)
        cells = []
        for strength in (1.0, None):
            rng = np.random.default_rng(0)
            found = []
            for _ in range(draws):
                batch = logs[rng.choice(len(logs), n_rows, replace=False)]
                correction = LabelPriorCorrection("batch", strength=strength).fit(batch)
                found.append((correction.transform(logs).argmax(axis=1) == truth).mean())
            cells.append(f"{np.mean(found):7.3f} ({min(found):.3f})")
        print(
            f"{model:16} {(logs.argmax(axis=1) == truth).mean():9.3f} {cells[0]:>15} {cells[1]:>15}",
            flush=True,
        )


def main() -> None:
    """Measure the tasks, or recorded options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--options", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--prior-rows", type=int, default=64)
    parser.add_argument("--validation-rows", type=int, default=60)
    parser.add_argument("--test-rows", type=int, default=120)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--keep", type=Path, help="folder of answers")
    options = parser.parse_args()
    if options.options is not None:
        files = sorted(options.options.glob("*.npz"))
        if not files:
            print(f"skipped the recorded options: no .npz file in {options.options}: {OPTIONS}.")
        for path in files:
            for n_options in (6, 4):
                measure_options(path, n_options, n_rows=options.prior_rows, draws=options.draws)
    if options.data is None:
        return
    names = available(options.data, options.tasks, without_file=SHIPPED)
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        with PredictionCache(keep / "answers.db") as journal:
            for name in names:
                measure(task_of(name, options.data), journal, options)


if __name__ == "__main__":
    main()
