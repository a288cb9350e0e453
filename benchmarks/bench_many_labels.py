"""Many labels: what few labelled rows of each bring, and what a thousand labels cost.

    python benchmarks/bench_many_labels.py --data DIR_WITH_JSONL [--parts peers learned scored] [--seeds 3] [--rows 200]

peers     banking77, 77 labels: what needs no language model, on 154 rows drawn from the training and validation rows
          (two of each label, on average) and on all 308 of them: words (TF-IDF with logistic regression), words and the
          labels' names, sentence vectors (all-MiniLM-L6-v2), and these with the names.
learned   the same rows and test rows, and `Classifier.fit` beside words and names.
scored    banking77 and 1,000 made-up labels: rows per second, tokens of labels that are asked about, the stated bound
          of the error, and the error against asking about all of them, by tolerance.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from _data import available
from _minilm import MiniLM
from _peers import Shares, vectors_alone, vectors_and_names, vectors_and_words, words_alone
from _tasks import MODEL, Pair, pairs_of
from numpy.typing import NDArray

from calibrant.core import Prediction, read_examples
from calibrant.inference import Classifier

TASK = "banking77"
LABELLED = (154, 308)
TOLERANCES = (0.0, 0.02, 0.1, 0.3, 1.0)
THINGS = ("card", "cash", "loan", "phone", "train", "hotel", "school", "water", "garden", "film")
EVENTS = (
    "payment",
    "refund",
    "order",
    "delivery",
    "repair",
    "booking",
    "invoice",
    "upgrade",
    "insurance",
    "fee",
)
STATES = ("late", "wrong", "lost", "pending", "declined", "twice", "abroad", "broken", "missing", "stolen")
RESAMPLES = 10_000
PARTS = ("peers", "learned", "scored")


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


def rows_of(folder: Path | None) -> tuple[list[Pair], list[Pair]]:
    """Return the rows to learn from and the test rows, training before validation."""
    available(folder, [TASK])
    path = (folder or Path()) / f"{TASK}.jsonl"
    rows = {
        split: pairs_of([example for example, _ in read_examples(path, split=split)])
        for split in ("train", "validation", "test")
    }
    return rows["train"] + rows["validation"], rows["test"]


def naming(labels: Sequence[str]) -> str:
    """Return a prompt that names the labels."""
    return (
        f"Classify the text into exactly one of: {', '.join(labels)}. Answer as JSON with the key category."
    )


def drawn(teaching: Sequence[Pair], *, seeds: int) -> Iterator[tuple[int, list[list[Pair]]]]:
    """Yield numbers of labelled rows, with the draws of so many."""
    for n in LABELLED:
        n_draws = seeds if n < len(teaching) else 1
        places = [np.random.default_rng(seed).permutation(len(teaching))[:n] for seed in range(n_draws)]
        yield n, [[teaching[place] for place in some] for some in places]


def right_answers(shares: Shares, labels: Sequence[str], test: Sequence[Pair]) -> NDArray[np.bool_]:
    """Return which test rows the most probable label of is right."""
    said = np.array(labels)[shares.argmax(axis=1)]
    return np.asarray(said == np.array([label for _, label in test]))


def peers(teaching: Sequence[Pair], test: Sequence[Pair], *, seeds: int) -> None:
    """Print the accuracy of what needs no language model."""
    labels = sorted({label for _, label in teaching})
    texts, encoder = [text for text, _ in test], MiniLM()
    for n, draws in drawn(teaching, seeds=seeds):
        found: dict[str, list[str]] = {}
        for rows in draws:
            sides = {
                "words": words_alone(rows, texts, labels, with_names=False),
                "words and names": words_alone(rows, texts, labels),
                "vectors": vectors_alone(rows, texts, labels, encoder),
                "vectors and names": vectors_and_names(rows, texts, labels, encoder),
                "words, vectors and names": vectors_and_words(rows, texts, labels, encoder),
            }
            for side, shares in sides.items():
                accuracy = right_answers(shares, labels, test).mean()
                found.setdefault(side, []).append(f"{accuracy:.3f}")
        for side, accuracies in found.items():
            print(f"{n} rows, {side}: {', '.join(accuracies)}", flush=True)


def interval(gains: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over rows, shape (n,)."""
    rng = np.random.default_rng(0)
    low, high = np.quantile(
        gains[rng.integers(len(gains), size=(RESAMPLES, len(gains)))].mean(axis=1), [0.025, 0.975]
    )
    return float(low), float(high)


def learned(teaching: Sequence[Pair], test: Sequence[Pair], *, seeds: int) -> None:
    """Hold what `Classifier.fit` brings against words and names."""
    texts = [text for text, _ in test]
    labels = sorted({label for _, label in teaching})
    truth = np.array([label for _, label in test])
    with Classifier(
        model=MODEL, labels=labels, field="category", prompt=naming(labels), journal=Memory()
    ) as classifier:
        for n, draws in drawn(teaching, seeds=seeds):
            gains = []
            for seed, rows in enumerate(draws):
                classifier.fit([text for text, _ in rows], [label for _, label in rows])
                words = right_answers(words_alone(rows, texts, labels), labels, test)
                fitted = np.array([p.label for p in classifier.classify_many(texts)]) == truth
                gains.append(fitted.astype(float) - words.astype(float))
                rung = "" if classifier.head is None else classifier.head.title
                print(
                    f"{n} rows, seed {seed}: words and names {words.mean():.3f}, fit {fitted.mean():.3f}, {rung}, "
                    f"{n} calls",
                    flush=True,
                )
            low, high = interval(np.mean(gains, axis=0))
            print(
                f"{n} rows: fit - words and names {np.mean(gains):+.3f} ({low:+.3f} to {high:+.3f})",
                flush=True,
            )


def scored(name: str, labels: Sequence[str], texts: Sequence[str], prompt: str) -> None:
    """Hold every tolerance against asking about every token of every label."""
    full: NDArray[np.float64] | None = None
    for tolerance in TOLERANCES:
        with Classifier(
            model=MODEL, labels=labels, field="category", prompt=prompt, tolerance=tolerance
        ) as classifier:
            classifier.classify("Nothing.")
            start = time.perf_counter()
            given = [
                (p.distribution, p.usage.completion_tokens or 0) for p in classifier.classify_many(texts)
            ]
            rate = len(texts) / (time.perf_counter() - start)
        found = [(one, tokens) for one, tokens in given if one is not None]
        shares = np.exp([one.logprobs for one, _ in found])
        full = shares if full is None else full
        apart = 0.5 * np.abs(shares - full).sum(axis=1)
        bounds = np.array([one.error_bound for one, _ in found])
        same = (shares.argmax(axis=1) == full.argmax(axis=1)).mean()
        print(
            f"{name}, tolerance {tolerance}: {rate:.2f} rows/s, {np.mean([n for _, n in found]):.0f} tokens, bound "
            f"{bounds.mean():.3f} (kept on {(apart <= bounds + 1e-6).mean():.0%}), total variation {apart.mean():.3f} "
            f"({apart.max():.3f} at most), same label {same:.2f}",
            flush=True,
        )


def thousand(n_rows: int) -> tuple[list[str], list[str], str]:
    """Return a thousand labels of three words, texts that hold those of one, and a prompt that cannot name them."""
    labels = [f"{thing}_{event}_{state}" for thing, event, state in product(THINGS, EVENTS, STATES)]
    drawn = np.random.default_rng(0).integers(len(labels), size=n_rows)
    texts = []
    for place in drawn:
        thing, event, state = labels[place].split("_")
        texts.append(f"Hello, I write about my {thing}: the {event} is {state}. What should I do?")
    prompt = (
        "Say what the text is about: the thing, the event and its state, as thing_event_state. Answer as JSON with the "
        "key category."
    )
    return labels, texts, prompt


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--scored-rows", type=int, default=4)
    options = parser.parse_args()
    teaching, test = rows_of(options.data)
    if "peers" in options.parts:
        peers(teaching, test[: options.rows], seeds=options.seeds)
    if "learned" in options.parts:
        learned(teaching, test[: options.rows], seeds=options.seeds)
    if "scored" in options.parts:
        labels = sorted({label for _, label in teaching})
        texts = [text for text, _ in teaching[: options.scored_rows]]
        scored(TASK, labels, texts, naming(labels))
        scored("1,000 labels", *thousand(options.scored_rows))


if __name__ == "__main__":
    main()
