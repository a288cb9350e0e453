"""What a search for a better prompt adds, prompt and head apart: `optimize` end to end on tasks with 150 labelled rows.

    python benchmarks/bench_optimize.py --data DIR_WITH_JSONL [--tasks NAME ...] [--seeds 3] [--calls 300] [--rows 200]
                                        [--keep DIR]

A seed draws the labelled rows, 100 to learn from and 50 to choose by, and every choice of the search. Sides, all judged
on the same test rows:

seed        the prompt that the search begins with,
best        the prompt that it ends with,
seed+head   `Classifier.fit` under the first prompt, on all 150 rows; no search,
best+head   the same under the prompt that the search ends with,
result      what `optimize` hands to the user: the prompt it ends with, and the head that its calls have paid for,
words       TF-IDF with the labels' names and logistic regression, on the same 150 rows; no model.

Seeds run in turn over the tasks, so that a run that was stopped has whole rounds. With `--keep`, answers and finished
searches are read from DIR by the next run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from _better_figures import gain
from _data import available
from _peers import words_alone
from _tasks import MODEL, SHIPPED, drawn_rows, pairs_of, task_of
from numpy.typing import NDArray

from calibrant import optimize
from calibrant.core import Client, Example, Journal, Prediction, Task
from calibrant.inference import Classifier, open_client
from calibrant.store import PredictionCache

TASKS: Final = ("rotten_tomatoes", "emotion", "transactions", "banking", "requests")
LABELLED: Final = 150
TRAINING: Final = 100
SIDES: Final = ("seed", "best", "seed+head", "best+head", "result", "words")
COMPARISONS: Final = (
    ("best", "seed"),
    ("seed+head", "seed"),
    ("best+head", "seed+head"),
    ("result", "seed+head"),
    ("result", "words"),
)


@dataclass(frozen=True)
class JoinedJournal:
    """A journal that reads from two and writes to both: the one of a run, and one that runs share."""

    own: Journal
    shared: Journal

    def get_many(self, keys: Sequence[str]) -> Mapping[str, Prediction]:
        """Return what either holds."""
        return {**self.shared.get_many(keys), **self.own.get_many(keys)}

    def put(self, key: str, prediction: Prediction) -> None:
        """Keep a prediction in both."""
        self.own.put(key, prediction)
        self.shared.put(key, prediction)


class SharingClassifier(Classifier):
    """A classifier whose searches also find the answers of earlier ones."""

    shared: Journal

    def use_journal(self, journal: Journal | None) -> None:
        """Join a journal with the shared one."""
        super().use_journal(self.shared if journal is None else JoinedJournal(journal, self.shared))


def drawn_task(task: Task, *, seed: int, n_test: int) -> Task:
    """Return a task with drawn training and validation rows, and the first test rows."""
    rows = [Example(input=text, answer=label) for text, label in drawn_rows(task, n=LABELLED, seed=seed)]
    return replace(
        task, train=tuple(rows[:TRAINING]), validation=tuple(rows[TRAINING:]), test=task.test[:n_test]
    )


def searched(
    task: Task, client: Client, *, seed: int, calls: int, out: Path, shared: Journal
) -> dict[str, Any]:
    """Search once; return what every side has right of the test rows, and how the search went."""
    with SharingClassifier(
        model=client, labels=task.labels, field=task.field, prompt=task.prompt
    ) as classifier:
        classifier.shared = shared
        classifier.use_journal(None)
        result = optimize(task, model=classifier, max_metric_calls=calls, seed=seed, out=out)
        best = classifier.with_prompt(result.best_prompt.prompt)
        labelled = pairs_of((*task.train, *task.validation))
        texts = [text for text, _ in labelled]
        answers = [label for _, label in labelled]
        test = pairs_of(task.test)
        right = {
            "seed": right_answers(classifier, test),
            "best": right_answers(best, test),
            "seed+head": right_answers(classifier.with_prompt(task.prompt).fit(texts, answers), test),
            "best+head": right_answers(best.fit(texts, answers), test),
            "result": right_rows(out),
        }
    shares = words_alone(labelled, [text for text, _ in test], task.labels.labels)
    said = [task.labels.labels[place] for place in shares.argmax(axis=1)]
    right["words"] = [label == truth for label, (_, truth) in zip(said, test, strict=True)]
    return {
        "right": right,
        "prompt": result.best_prompt.prompt,
        "calls": result.metric_calls,
        "proposals": result.proposals,
        "is_other_prompt": result.best_prompt.prompt != task.prompt,
        "improved": result.improved,
    }


def right_answers(classifier: Classifier, test: Sequence[tuple[str, str]]) -> list[bool]:
    """Return which test rows a classifier has right."""
    predictions = classifier.classify_many([text for text, _ in test])
    return [prediction.label == label for prediction, (_, label) in zip(predictions, test, strict=True)]


def right_rows(out: Path) -> list[bool]:
    """Return which test rows the result of a search has right, from its run directory."""
    lines = (out / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    names = {record["prompt"] for record in records}
    wanted = "final" if "final" in names else "best"
    return [bool(record["correct"]) for record in records if record["prompt"] == wanted]


def kept_search(
    name: str, client: Client, options: argparse.Namespace, *, seed: int, keep: Path, shared: Journal
) -> dict[str, Any]:
    """Return a search that an earlier run left in a folder; else search and leave it there."""
    stem = f"{name}-{seed}-{options.calls}-{options.rows}"
    file = keep / f"{stem}.json"
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found
    task = drawn_task(task_of(name, options.data), seed=seed, n_test=options.rows)
    found = searched(task, client, seed=seed, calls=options.calls, out=keep / stem, shared=shared)
    file.write_text(json.dumps(found), encoding="utf-8")
    return found


def print_search(name: str, seed: int, found: Mapping[str, Any]) -> None:
    """Print one search."""
    right = ", ".join(f"{side} {np.mean(found['right'][side]):.3f}" for side in SIDES)
    prompt = "another prompt" if found["is_other_prompt"] else "the first prompt stays"
    print(
        f"{name}, seed {seed}: {right}; {found['calls']} calls, {found['proposals']} proposals, {prompt}",
        flush=True,
    )


def print_summary(searches: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print means over the seeds, and differences with intervals."""
    pooled: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for name, found in searches.items():
        right = {side: np.array([one["right"][side] for one in found], dtype=float) for side in SIDES}
        means = ", ".join(f"{side} {right[side].mean():.3f}" for side in SIDES)
        changed = sum(one["is_other_prompt"] for one in found)
        print(f"\n{name}, mean of {len(found)} searches: {means}; another prompt in {changed}")
        for first, other in COMPARISONS:
            figure = gain(right[first] - right[other], name)
            pooled.setdefault((first, other), []).append(figure)
            print(f"  {first} - {other}: {interval_text(figure)}")
    print("\nmean of the tasks")
    for (first, other), figures in pooled.items():
        print(f"  {first} - {other}: {interval_text(np.mean(figures, axis=0))}")


def interval_text(figure: NDArray[np.float64]) -> str:
    """Return a difference with its 95 % interval."""
    low, high = np.quantile(figure[1:], [0.025, 0.975])
    return f"{figure[0]:+.3f} ({low:+.3f} to {high:+.3f})"


def main() -> None:
    """Run all searches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=300, help="metric calls of a search")
    parser.add_argument("--rows", type=int, default=200, help="test rows of a task, at most")
    parser.add_argument("--threads", type=int, default=2, help="of the engine")
    parser.add_argument("--keep", type=Path, help="folder of answers and finished searches")
    options = parser.parse_args()
    names = available(options.data, options.tasks, without_file=SHIPPED)
    searches: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    client = open_client(MODEL, options={"n_threads": options.threads})
    with tempfile.TemporaryDirectory() as folder, closing(client):
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        with PredictionCache(keep / "answers.db") as shared:
            for seed in range(options.seeds):
                for name in names:
                    found = kept_search(name, client, options, seed=seed, keep=keep, shared=shared)
                    searches[name].append(found)
                    print_search(name, seed, found)
    print_summary(searches)


if __name__ == "__main__":
    main()
