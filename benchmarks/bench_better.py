"""What a user gets without knowing any option: `Classifier.fit` beside what needs no language model, on equal terms.

    python benchmarks/bench_better.py --data DIR_WITH_JSONL [--tasks NAME ...] [--draws 10] [--labelled 150]
                                      [--rows 200] [--keep DIR]

For every task, `--labelled` rows are drawn at random from the training and validation rows, `--draws` times; all sides
learn from these, and are judged on the same test rows, which nothing was chosen on:

alone        the embedded model's most probable label under the prompt, which is printed,
words        TF-IDF of words, pairs and pieces of words, and the labels' names; logistic regression,
vectors      sentence vectors (all-MiniLM-L6-v2); logistic regression,
both         words, names and sentence vectors; logistic regression,
hosted       `fit` without the model's features, as with every model behind an interface,
fit          `Classifier.fit` and nothing else,
fit+vectors  `Classifier.fit` with the sentence vectors as its embedding model.

Labels weigh alike on all sides. The tasks of `examples/banking` and `examples/requests` have 150 labelled rows in all:
their draws differ in order only, so in the folds by which `fit` chooses. Intervals: 95 %, bootstrap over draws and test
rows. With `--keep`, answers of the model and what the sides said are read from DIR by the next run.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from _better_figures import METRICS, Draws, Figures, Shares, interval, show
from _data import available
from _minilm import MiniLM
from _peers import vectors_alone, vectors_and_words, words_alone
from _tasks import MODEL, SHIPPED, TASKS, Pair, drawn_rows, labelled_rows, pairs_of, task_of
from numpy.typing import NDArray

from calibrant.core import Prediction, Task
from calibrant.heads import fit_head
from calibrant.inference import Classifier
from calibrant.store import PredictionCache

SIDES: Final = ("alone", "words", "vectors", "both", "hosted", "fit", "fit+vectors")
PEERS: Final = ("alone", "words", "vectors", "both", "hosted")
COMPARISONS: Final = (
    *(("fit", peer) for peer in PEERS),
    ("fit+vectors", "vectors"),
    ("fit+vectors", "both"),
    ("fit+vectors", "fit"),
)
TEST_ROWS: Final = {"banking": 400, "requests": 400}
"""Test rows of tasks whose number does not depend on `--rows`."""

Difference = tuple[str, str, str]
"""A metric, a side, and the side that it is compared with."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers of the model to texts, as a head learns from them.

    Attributes
    ----------
    logprobs : ndarray of shape (texts, labels)
        Log-probabilities of the labels.
    features : ndarray of shape (texts, d)
        The model's features.
    """

    logprobs: NDArray[np.float64]
    features: NDArray[np.float64]

    @classmethod
    def of(cls, predictions: Sequence[Prediction]) -> Answers:
        """Read them from predictions that all have a distribution and features."""
        logprobs, features = [], []
        for prediction in predictions:
            if prediction.distribution is None or prediction.features is None:
                raise SystemExit(f"Expected a distribution and features on every row, got {prediction}.")
            logprobs.append(prediction.distribution.logprobs)
            features.append(prediction.features)
        return cls(logprobs=np.array(logprobs), features=np.array(features, dtype=float))


class Problem:
    """A task as every side gets it.

    Parameters
    ----------
    task : Task
        The task.
    n_labelled, n_draws, n_test : int
        Rows of a draw, draws, and test rows.
    """

    def __init__(self, task: Task, *, n_labelled: int, n_draws: int, n_test: int) -> None:
        self.task, self.labels = task, list(task.labels.labels)
        self.draws = [drawn_rows(task, n=n_labelled, seed=seed) for seed in range(n_draws)]
        test = pairs_of(task.test)[: TEST_ROWS.get(task.name, n_test)]
        self.texts = [text for text, _ in test]
        self.truth = self.positions(test)
        self.rungs: dict[str, list[str]] = {}

    def positions(self, rows: Sequence[Pair]) -> NDArray[np.intp]:
        """Return the places of true labels."""
        return np.array([self.labels.index(label) for _, label in rows])

    def sides(self, journal: PredictionCache, encoder: MiniLM) -> dict[str, Shares]:
        """Return what every side says of the test rows."""
        with Classifier(
            model=MODEL,
            labels=self.task.labels,
            field=self.task.field,
            prompt=self.task.prompt,
            journal=journal,
        ) as classifier:
            asking = classifier.with_features()
            asked = Answers.of(asking.classify_many(self.texts))
            by_draw = []
            for rows in self.draws:
                taught = Answers.of(asking.classify_many([text for text, _ in rows]))
                by_draw.append(self._of_draw(rows, taught, asked, encoder))
        return {side: np.array([said[side] for said in by_draw]) for side in SIDES}

    def _of_draw(
        self, rows: Sequence[Pair], taught: Answers, asked: Answers, encoder: MiniLM
    ) -> dict[str, NDArray[np.float64]]:
        hosted = self._fitted("hosted", rows, taught, asked)
        fit = self._fitted("fit", rows, taught, asked, with_features=True)
        fit_vectors = self._fitted("fit+vectors", rows, taught, asked, with_features=True, encoder=encoder)
        return {
            "alone": np.exp(asked.logprobs),
            "words": words_alone(rows, self.texts, self.labels),
            "vectors": vectors_alone(rows, self.texts, self.labels, encoder),
            "both": vectors_and_words(rows, self.texts, self.labels, encoder),
            "hosted": hosted,
            "fit": fit,
            "fit+vectors": fit_vectors,
        }

    def _fitted(
        self,
        side: str,
        rows: Sequence[Pair],
        taught: Answers,
        asked: Answers,
        *,
        with_features: bool = False,
        encoder: MiniLM | None = None,
    ) -> NDArray[np.float64]:
        """Return what `Classifier.fit` makes of the answers: it hands the same to `fit_head`."""
        head = fit_head(
            taught.logprobs,
            self.positions(rows),
            labels=self.labels,
            texts=[text for text, _ in rows],
            features=taught.features if with_features else None,
            embedding=encoder,
        )
        self.rungs.setdefault(side, []).append(head.title)
        features = asked.features if head.uses_features else None
        return np.exp(head.transform(asked.logprobs, self.texts, features=features))


def kept_sides(problem: Problem, keep: Path, encoder: MiniLM, journal: PredictionCache) -> dict[str, Shares]:
    """Return the sides of a task that an earlier run left in a folder; else make them and leave them there."""
    n_labelled = len(problem.draws[0])
    file = keep / f"{problem.task.name}-{len(problem.draws)}-{n_labelled}-{len(problem.texts)}.npz"
    if file.is_file():
        with np.load(file) as stored:
            problem.rungs = {
                name.removeprefix("rungs "): stored[name].tolist()
                for name in stored
                if name.startswith("rungs ")
            }
            return {side: stored[side] for side in SIDES}
    sides = problem.sides(journal, encoder)
    rungs = {f"rungs {side}": np.array(rungs) for side, rungs in problem.rungs.items()}
    np.savez_compressed(file, **sides, **rungs)
    return sides


def report(problem: Problem, sides: dict[str, Shares]) -> dict[Difference, Draws]:
    """Print a task; return the differences."""
    name = problem.task.name
    figures = Figures(name, problem.truth, n_labels=len(problem.labels), n_draws=len(problem.draws))
    print(
        f"\n{name}: {len(problem.draws)} draws of {len(problem.draws[0])} labelled rows out of "
        f"{len(labelled_rows(problem.task))}, {len(problem.texts)} test rows\n  prompt: {problem.task.prompt}"
    )
    for side, shares in sides.items():
        shown = ", ".join(f"{metric} {show(figures.of(shares, metric))}" for metric in METRICS)
        rungs = problem.rungs.get(side, [])
        counts = ", ".join(f"{rung} {rungs.count(rung)}" for rung in dict.fromkeys(rungs))
        print(f"  {side:12} {shown}" + (f"; {counts}" if counts else ""))
    found = {}
    for metric in METRICS:
        for first, other in COMPARISONS:
            found[metric, first, other] = figures.of(sides[first], metric) - figures.of(sides[other], metric)
    print_differences(found)
    for other in PEERS:
        gain = found["accuracy", "fit", other]
        if interval(gain)[0] <= 0.0:
            print(
                f"  On {name}, fit is not surely better than {other}: fit minus {other} {show(gain, sign='+')}",
                flush=True,
            )
    return found


def print_differences(found: Mapping[Difference, Draws]) -> None:
    """Print every difference on a line."""
    for (metric, first, other), figure in found.items():
        print(f"  {metric} of {first} - {other}: {show(figure, sign='+')}")


def main() -> None:
    """Run all tasks, then take the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--labelled", type=int, default=150)
    parser.add_argument("--rows", type=int, default=200, help="test rows of a task, at most")
    parser.add_argument("--keep", type=Path, help="folder of answers and finished tasks")
    options = parser.parse_args()
    names = available(options.data, options.tasks, without_file=SHIPPED)
    differences: dict[Difference, list[Draws]] = {}
    means: dict[tuple[str, str], list[float]] = {}
    encoder = MiniLM()
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        with PredictionCache(keep / "answers.db") as journal:
            for name in names:
                task = task_of(name, options.data)
                problem = Problem(
                    task, n_labelled=options.labelled, n_draws=options.draws, n_test=options.rows
                )
                sides = kept_sides(problem, keep, encoder, journal)
                for pair, figure in report(problem, sides).items():
                    differences.setdefault(pair, []).append(figure)
                figures = Figures(name, problem.truth, n_labels=len(problem.labels), n_draws=options.draws)
                for side, shares in sides.items():
                    for metric in METRICS:
                        means.setdefault((side, metric), []).append(figures.of(shares, metric)[0])
    print("\nmean of the tasks")
    for side in SIDES:
        print(
            f"  {side:12} " + ", ".join(f"{metric} {np.mean(means[side, metric]):.3f}" for metric in METRICS)
        )
    print_differences({key: np.mean(tasks, axis=0) for key, tasks in differences.items()})


if __name__ == "__main__":
    main()
