"""What a user gets without knowing any option: the default pipeline beside the model alone and beside no model.

    python benchmarks/bench_better.py --data DIR_WITH_JSONL [--tasks NAME ...] [--seeds 3] [--labelled 150] [--rows 300]

For every task and seed, `--labelled` rows are drawn at random from the training and validation rows, and
`Classifier.fit` learns from them; all three are judged on the same test rows, which nothing was chosen on:

exact   the embedded model's most probable label under the same prompt,
text    TF-IDF of words and pieces of words with logistic regression, written here with scikit-learn, on the same rows,
fitted  `Classifier.fit` and nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline, make_union

from calibrant import Classifier, Prediction, Task

EXAMPLES = Path(__file__).parent.parent / "examples"
# `reviews` was written so that words tell little: it runs by itself (`--tasks reviews`) and lifts no mean.
TASKS = ("ag_news", "emotion", "rotten_tomatoes", "sms_spam", "transactions")
RESAMPLES = 10_000


class Memory:
    """Answers of the model: every row is asked once, whatever the seeds."""

    def __init__(self) -> None:
        self._kept: dict[str, Prediction] = {}

    def get_many(self, keys: Sequence[str]) -> Mapping[str, Prediction]:
        """Return what is there."""
        return {key: self._kept[key] for key in keys if key in self._kept}

    def put(self, key: str, prediction: Prediction) -> None:
        """Keep an answer."""
        self._kept[key] = prediction


def rows_of(name: str, folder: Path | None) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the rows to learn from and the test rows, as pairs of text and label."""
    if name in ("reviews", "transactions"):
        task = Task.from_file(EXAMPLES / name / "task.toml")
        return [(e.input, e.answer) for e in (*task.train, *task.validation)], [
            (e.input, e.answer) for e in task.test
        ]
    path = None if folder is None else folder / f"{name}.jsonl"
    if path is None or not path.is_file():
        sys.exit(f"{name}: no file {path}: pass --data DIR.")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    pairs = [(record["input"], record["answer"], record["split"] == "test") for record in records]
    teaching = [(text, label) for text, label, is_test in pairs if not is_test]
    return teaching, [(text, label) for text, label, is_test in pairs if is_test]


def text_alone(labelled: Sequence[tuple[str, str]], texts: Sequence[str]) -> list[str]:
    """Return what a classifier says that knows words only."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    model = make_pipeline(make_union(words, pieces), LogisticRegression(C=10, max_iter=2000))
    model.fit([text for text, _ in labelled], [label for _, label in labelled])
    return [str(label) for label in model.predict(texts)]


def interval(differences: Sequence[NDArray[np.float64]], rng: np.random.Generator) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over tasks; rows of a task are drawn together over seeds."""
    means = np.zeros(RESAMPLES)
    for found in differences:  # (seeds, rows)
        each = found.mean(axis=0)
        drawn = rng.integers(len(each), size=(RESAMPLES, len(each)))
        means += each[drawn].mean(axis=1) / len(differences)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    """Run all tasks and seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labelled", type=int, default=150)
    parser.add_argument("--rows", type=int, default=300)
    options = parser.parse_args()
    against: dict[str, list[NDArray[np.float64]]] = {"exact": [], "text": []}
    for name in options.tasks:
        teaching, test = rows_of(name, options.data)
        test = test[: options.rows]
        texts, truth = [text for text, _ in test], np.array([label for _, label in test])
        labels = sorted({label for _, label in teaching})
        prompt = f"Classify the text into exactly one of: {', '.join(labels)}. Answer as JSON with the key category."
        found: dict[str, list[NDArray[np.bool_]]] = {"exact": [], "text": [], "fitted": []}
        with Classifier(
            model="local/smollm2-135m", labels=labels, field="category", prompt=prompt, journal=Memory()
        ) as classifier:
            start = time.perf_counter()
            plain = classifier.with_features().classify_many(texts)
            rate = len(texts) / (time.perf_counter() - start)
            for seed in range(options.seeds):
                drawn = np.random.default_rng(seed).permutation(len(teaching))[: options.labelled]
                labelled = [teaching[place] for place in drawn]
                classifier.fit([text for text, _ in labelled], [label for _, label in labelled])
                said = {
                    "exact": [p.label for p in plain],
                    "text": text_alone(labelled, texts),
                    "fitted": [p.label for p in classifier.classify_many(texts)],
                }
                figures = []
                for side, labels_said in said.items():
                    found[side].append(np.array(labels_said) == truth)
                    f1 = f1_score(truth, labels_said, labels=labels, average="macro", zero_division=0)
                    figures.append(f"{side} {found[side][-1].mean():.3f} (F1 {f1:.3f})")
                rung = "" if classifier.head is None else classifier.head.rung
                print(
                    f"{name:16} seed {seed}: {', '.join(figures)}, {rung}, {len(labelled)} calls", flush=True
                )
        right = {side: np.array(some, dtype=np.float64) for side, some in found.items()}
        for side, differences in against.items():
            differences.append(right["fitted"] - right[side])
            low, high = interval([differences[-1]], np.random.default_rng(0))
            print(
                f"{name:16} fitted - {side:5} {differences[-1].mean():+.3f} ({low:+.3f} to {high:+.3f})",
                flush=True,
            )
        print(f"{name:16} {rate:.1f} rows/s on {len(texts)} test rows", flush=True)
    for side, differences in against.items():
        low, high = interval(differences, np.random.default_rng(0))
        mean = np.mean([one.mean() for one in differences])
        print(f"all tasks        fitted - {side:5} {mean:+.3f} ({low:+.3f} to {high:+.3f})", flush=True)


if __name__ == "__main__":
    main()
