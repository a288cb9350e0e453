"""Many labels: what few labelled rows of each bring, and what a thousand labels cost.

    python benchmarks/bench_many_labels.py --data DIR_WITH_JSONL [--seeds 3] [--rows 200]

learned   banking77, 77 labels: `Classifier.fit` on 154 rows drawn from the training and validation rows (two of each
          label, on average) and on all 308 of them, against a text classifier on the same rows; same test rows.
scored    banking77 and 1,000 made-up labels: rows per second, tokens of labels that are asked about, the stated bound
          of the error, and the error against asking about all of them, by tolerance.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from bench_better import Memory, rows_of
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union

from calibrant.inference import Classifier

MODEL = "local/smollm2-135m"
TASK = "banking77"
# Labelled rows, and by how much the accuracy should at least be above that of the text alone.
BARS = {154: 0.03, 308: 0.0}
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


def naming(labels: Sequence[str]) -> str:
    """Return a prompt that names the labels."""
    return (
        f"Classify the text into exactly one of: {', '.join(labels)}. Answer as JSON with the key category."
    )


def text_alone(labelled: Sequence[tuple[str, str]], texts: Sequence[str]) -> list[str]:
    """Return what a classifier says that knows words only, and no names of labels."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    model = make_pipeline(make_union(words, pieces), LogisticRegression(C=10, max_iter=2000))
    model.fit([text for text, _ in labelled], [label for _, label in labelled])
    return [str(label) for label in model.predict(texts)]


def interval(gains: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over rows, shape (n,)."""
    rng = np.random.default_rng(0)
    low, high = np.quantile(
        gains[rng.integers(len(gains), size=(RESAMPLES, len(gains)))].mean(axis=1), [0.025, 0.975]
    )
    return float(low), float(high)


def learned(folder: Path | None, *, seeds: int, n_rows: int) -> None:
    """Hold what labelled rows bring against a text classifier."""
    teaching, test = rows_of(TASK, folder)
    test = test[:n_rows]
    texts, truth = [text for text, _ in test], np.array([label for _, label in test])
    labels = sorted({label for _, label in teaching})
    with Classifier(
        model=MODEL, labels=labels, field="category", prompt=naming(labels), journal=Memory()
    ) as classifier:
        for n, bar in BARS.items():
            gains = []
            for seed in range(seeds if n < len(teaching) else 1):
                drawn = np.random.default_rng(seed).permutation(len(teaching))[:n]
                labelled = [teaching[place] for place in drawn]
                classifier.fit([text for text, _ in labelled], [label for _, label in labelled])
                words = np.array(text_alone(labelled, texts)) == truth
                fitted = np.array([p.label for p in classifier.classify_many(texts)]) == truth
                gains.append(fitted.astype(float) - words.astype(float))
                rung = "" if classifier.head is None else classifier.head.rung
                print(
                    f"{n} rows, seed {seed}: text {words.mean():.3f}, fitted {fitted.mean():.3f}, {rung}, {n} calls",
                    flush=True,
                )
            low, high = interval(np.mean(gains, axis=0))
            print(
                f"{n} rows: fitted - text {np.mean(gains):+.3f} ({low:+.3f} to {high:+.3f}), bar {bar:+.3f}",
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
    parser.add_argument("--parts", nargs="+", default=["learned", "scored"], choices=["learned", "scored"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--scored-rows", type=int, default=4)
    options = parser.parse_args()
    if "learned" in options.parts:
        learned(options.data, seeds=options.seeds, n_rows=options.rows)
    if "scored" in options.parts:
        teaching, _ = rows_of(TASK, options.data)
        labels = sorted({label for _, label in teaching})
        texts = [text for text, _ in teaching[: options.scored_rows]]
        scored(TASK, labels, texts, naming(labels))
        scored("1,000 labels", *thousand(options.scored_rows))


if __name__ == "__main__":
    main()
