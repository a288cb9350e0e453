"""Gain of a head with the embedded model's features that is kept with the log-probabilities of few, named tokens.

    python benchmarks/bench_named_tokens.py [--data DIR_WITH_JSONL] [--tasks NAME ...] [--draws 5] [--labelled 150]
                                            [--test 200] [--keep DIR]

The embedded model, whose whole vocabulary is known, stands in for a server that is asked for tokens by name. For
every task, labelled rows are drawn at random from all rows that were asked, `--draws` times; the other rows judge. The
tokens are chosen on the labelled rows alone, by `tokens_of`: `named` from 1,024 tokens spread over the vocabulary, as
with vLLM; `listed` from the 1,000 most probable ones of each row, every other one being taken to be as probable as the
least of these, as with llama.cpp's server. All sides are heads of `fit_head`; `none` has no features, `all` the 1,024
that the embedded engine reports.

The share kept is (with named tokens - none) / (all - none), of the means over the draws.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from _data import available
from _tasks import MODEL, SHIPPED, labelled_rows, pairs_of, task_of
from numpy.typing import NDArray

from calibrant.core import Task
from calibrant.core._completion import FEATURES, TokenListing, TokenLogprobs, named_features
from calibrant.heads import fit_head
from calibrant.inference import Classifier
from calibrant.inference._heads import tokens_of

TASKS: Final = ("banking", "requests", "emotion", "ag_news")
COUNTS: Final = (128, 256)
LISTED: Final = 1000
KNOWN: Final = 32_000
"""Numbers that candidates are taken from, as with vLLM."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Rows of a task with what the model says of them.

    Attributes
    ----------
    texts : list of str, length n
        The texts.
    labels : list of str, length L
        The labels.
    answers : ndarray of shape (n,)
        Positions of the true labels.
    logprobs : ndarray of shape (n, L)
        Log-probabilities of the labels.
    tokens : ndarray of shape (n, V)
        Log-probabilities of all tokens where the label begins.
    """

    texts: list[str]
    labels: list[str]
    answers: NDArray[np.intp]
    logprobs: Floats
    tokens: NDArray[np.float32]


def asked_rows(task: Task, *, n_labelled: int, n_test: int, keep: Path) -> Asked:
    """Return the rows of a task, asked now or by an earlier run."""
    pairs = labelled_rows(task)[:n_labelled] + pairs_of(task.test)[:n_test]
    labels, texts = list(task.labels.labels), [text for text, _ in pairs]
    file = keep / f"named-{task.name}-{len(pairs)}.npz"
    if not file.is_file():
        TokenLogprobs.features = _all_tokens  # type: ignore[method-assign,assignment]
        with Classifier(model=MODEL, labels=task.labels, field=task.field, prompt=task.prompt) as classifier:
            found = classifier.with_features().classify_many(texts)
        logprobs = [one.distribution.logprobs for one in found if one.distribution is not None]
        np.savez(file, logprobs=np.array(logprobs), tokens=np.array([one.features for one in found]))
    with np.load(file) as stored:
        return Asked(
            texts=texts,
            labels=labels,
            answers=np.array([labels.index(label) for _, label in pairs]),
            logprobs=stored["logprobs"],
            tokens=stored["tokens"],
        )


def _all_tokens(logprobs: TokenLogprobs) -> NDArray[np.float32]:
    return (logprobs.logits - np.float32(logprobs.log_total)).astype(np.float32)


def spread(n_known: int) -> NDArray[np.intp]:
    """Return about 1,024 token numbers, evenly spread."""
    return np.arange(0, n_known, max(1, n_known // FEATURES))[:FEATURES]


def features_of(listings: list[TokenListing], numbers: tuple[int, ...]) -> Floats:
    """Return the features of rows, shape (n, named)."""
    return np.array([named_features(one.logprobs, numbers) for one in listings], dtype=np.float64)


def listings_of(rows: Asked, *, count: int, way: str) -> list[TokenListing]:
    """Return what a server tells of each row: candidates that are named, or the most probable tokens."""
    found = []
    for row in rows.tokens:
        numbers = spread(KNOWN) if way == "named" else np.argsort(-row)[:LISTED]
        logprobs = dict(zip(numbers.tolist(), row[numbers].tolist(), strict=True))
        found.append(TokenListing(logprobs=logprobs, most_named=count))
    return found


def judged(
    rows: Asked, taught: NDArray[np.intp], others: NDArray[np.intp], features: Floats | None
) -> tuple[float, float]:
    """Return accuracy and log loss, in nats, of a head on the rows that did not teach it."""
    head = fit_head(
        rows.logprobs[taught],
        rows.answers[taught],
        labels=rows.labels,
        texts=[rows.texts[place] for place in taught],
        features=None if features is None else features[taught],
    )
    asked = [rows.texts[place] for place in others]
    told = features[others] if features is not None and head.uses_features else None
    logprobs = head.transform(rows.logprobs[others], asked, features=told)
    truth = rows.answers[others]
    accuracy = float((logprobs.argmax(axis=1) == truth).mean())
    return accuracy, -float(logprobs[np.arange(len(truth)), truth].mean())


def sides_of(rows: Asked, *, n_draws: int, n_labelled: int) -> Mapping[str, Floats]:
    """Return accuracy and log loss of every side, shape (draws, 2)."""
    sides: dict[str, list[tuple[float, float]]] = {}
    whole = rows.tokens[:, spread(rows.tokens.shape[1])].astype(np.float64)
    whole -= whole.mean(axis=1, keepdims=True)
    ways = {
        (way, count): listings_of(rows, count=count, way=way)
        for way in ("named", "listed")
        for count in COUNTS
    }
    for seed in range(n_draws):
        places = np.random.default_rng(seed).permutation(len(rows.texts))
        taught, others = places[:n_labelled], places[n_labelled:]
        sides.setdefault("none", []).append(judged(rows, taught, others, None))
        sides.setdefault("all", []).append(judged(rows, taught, others, whole))
        for (way, count), listings in ways.items():
            numbers = tokens_of([listings[place] for place in taught])
            found = judged(rows, taught, others, features_of(listings, numbers))
            sides.setdefault(f"{count} {way}", []).append(found)
    return {side: np.array(found) for side, found in sides.items()}


def report(name: str, sides: Mapping[str, Floats]) -> None:
    """Print the figures of a task."""
    none, everything = sides["none"].mean(axis=0), sides["all"].mean(axis=0)
    print(f"\n{name}: {len(sides['none'])} draws")
    for side, draws in sides.items():
        accuracy, loss = draws.mean(axis=0)
        kept = (draws.mean(axis=0) - none) / (everything - none)
        print(
            f"  {side:12} accuracy {accuracy:.3f} (kept {kept[0]:.2f}), log loss {loss:.3f} (kept {kept[1]:.2f})",
            flush=True,
        )


def main() -> None:
    """Measure every task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--labelled", type=int, default=150)
    parser.add_argument("--test", type=int, default=200, help="test rows of a task, at most")
    parser.add_argument("--keep", type=Path, help="folder of the model's answers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        for name in available(options.data, options.tasks, without_file=SHIPPED):
            rows = asked_rows(
                task_of(name, options.data), n_labelled=options.labelled, n_test=options.test, keep=keep
            )
            report(name, sides_of(rows, n_draws=options.draws, n_labelled=options.labelled))


if __name__ == "__main__":
    main()
