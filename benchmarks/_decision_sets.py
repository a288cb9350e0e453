"""Distributions over labels as decision models answer them, with texts, sentence vectors and true answers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from _minilm import MiniLM
from _tasks import MODEL, TASKS, pairs_of, task_of
from numpy.typing import NDArray

from calibrant.inference import Classifier
from calibrant.store import PredictionCache

RECORDED: Final = ("ag_news", "emotion", "rotten_tomatoes")
MODEL_TASKS: Final = (*TASKS, "banking77")
OPTIONS: Final = (("Qwen-7B", "Qwen-72B"), ("Llama-2-7b-hf", "Llama-2-70b-hf"))
FLOOR: Final = 1e-6
DECIMALS: Final = 2
_TEST_ROWS: Final = 400

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DecisionSet:
    """Answers of one model to one set of rows.

    Attributes
    ----------
    name : str
        Name of the set.
    labels : tuple of str, length L
        The labels.
    logprobs : ndarray of shape (n, L)
        Log-probabilities of the labels as answered.
    answers : ndarray of int, shape (n,)
        Positions of the true labels.
    texts : tuple of str, length n, or None
        The texts.
    features : ndarray of shape (n, d), or None
        The model's features.
    vectors : ndarray of shape (n, 384), or None
        Sentence vectors of the texts.
    n_pool : int or None
        The first rows, which labelled rows are drawn from; None to draw from all rows and judge on the others.
    """

    name: str
    labels: tuple[str, ...]
    logprobs: Array
    answers: NDArray[np.intp]
    texts: tuple[str, ...] | None = None
    features: Array | None = None
    vectors: Array | None = None
    n_pool: int | None = None

    def draws(
        self, n_labelled: int, n_draws: int, *, n_test: int
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield the places of labelled rows and of at most `n_test` test rows."""
        for seed in range(n_draws):
            rng = np.random.default_rng(seed)
            n_pool = len(self.answers) if self.n_pool is None else self.n_pool
            order = rng.permutation(n_pool)
            rest = order[n_labelled:] if self.n_pool is None else np.arange(n_pool, len(self.answers))
            yield order[:n_labelled], rest[:n_test]

    def rounded(self) -> DecisionSet:
        """Return the set with probabilities of two decimals, and zeros as a client raises them."""
        shares = np.exp(self.logprobs).round(DECIMALS)
        shares = np.maximum(shares, 10.0**-DECIMALS / 4)
        return replace(
            self,
            name=f"{self.name}, two decimals",
            logprobs=np.log(shares / shares.sum(axis=1, keepdims=True)),
        )


class Vectors:
    """Embedding model that looks up the sentence vectors of a set's texts and labels."""

    name = "all-MiniLM-L6-v2"

    def __init__(self, found: DecisionSet, encoder: MiniLM) -> None:
        if found.texts is None or found.vectors is None:
            raise ValueError(f"Expected a set with texts and their vectors, got {found.name}.")
        self._known = dict(zip(found.texts, found.vectors, strict=True))
        self._encoder = encoder

    def vectors(self, texts: Sequence[str]) -> Array:
        """Return one vector per text, shape (n, 384)."""
        missing = [text for text in texts if text not in self._known]
        if missing:
            self._known.update(
                zip(missing, np.asarray(self._encoder.vectors(missing), dtype=float), strict=True)
            )
        return np.array([self._known[text] for text in texts])


def recorded_set(name: str, folder: Path, encoder: MiniLM, keep: Path) -> DecisionSet:
    """Return recorded answers to the prompt `default`: the reported label, its first alternative, and the rest evenly.

    Rows with an even number alone: the others served to develop the head.
    """
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            row for row in csv.DictReader(file) if row["prompt"] == "default" and int(row["row"]) % 2 == 0
        ]
    labels = tuple(sorted({row["expected"] for row in rows}))
    place = {label.casefold(): index for index, label in enumerate(labels)}
    shares = np.zeros((len(rows), len(labels)))
    for share, row in zip(shares, rows, strict=True):
        first, second = row["predicted"].casefold(), row["top_alternative"].casefold()
        share[place[first]] = float(row["probability"])
        if second in place and second != first:
            share[place[second]] = float(row["top_alternative_probability"])
        silent = share == 0.0
        share[silent] = max(0.0, 1.0 - share.sum()) / max(int(silent.sum()), 1)
    shares = np.maximum(shares, FLOOR)
    texts = tuple(row["text"] for row in rows)
    return DecisionSet(
        name=f"{name}, recorded",
        labels=labels,
        logprobs=np.log(shares / shares.sum(axis=1, keepdims=True)),
        answers=np.array([place[row["expected"].casefold()] for row in rows]),
        texts=texts,
        vectors=_kept_vectors(texts, encoder, keep / f"vectors-{name}.npy"),
    )


def _kept_vectors(texts: Sequence[str], encoder: MiniLM, file: Path) -> Array:
    if not file.is_file():
        np.save(file, encoder.vectors(texts))
    return np.asarray(np.load(file), dtype=np.float64)


def option_sets(folder: Path) -> list[DecisionSet]:
    """Return the answers of small models to multiple-choice questions; a large one has the true answers."""
    found = []
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as stored:
            for small, large in OPTIONS:
                logits = stored[small].astype(np.float64)
                found.append(
                    DecisionSet(
                        name=f"{file.stem}, {small}",
                        labels=tuple("ABCDEF"),
                        logprobs=logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)),
                        answers=stored[large].astype(np.float64).argmax(axis=1),
                    )
                )
    return found


def model_set(name: str, folder: Path, encoder: MiniLM, keep: Path) -> DecisionSet:
    """Return the answers of the embedded model to the labelled rows and 400 test rows of a task, kept in a folder."""
    file = keep / f"{name}.npz"
    if not file.is_file():
        _ask(name, folder, encoder, file)
    with np.load(file) as stored:
        return DecisionSet(
            name=name,
            labels=tuple(stored["labels"].tolist()),
            logprobs=stored["lp"],
            answers=stored["y"],
            texts=tuple(stored["texts"].tolist()),
            features=stored["features"].astype(np.float64),
            vectors=stored["vectors"].astype(np.float64),
            n_pool=int(stored["n_pool"]),
        )


def _ask(name: str, folder: Path, encoder: MiniLM, file: Path) -> None:
    task = task_of(name, folder)
    pool = pairs_of((*task.train, *task.validation))
    rows = pool + pairs_of(task.test)[:_TEST_ROWS]
    texts = [text for text, _ in rows]
    options = {"labels": task.labels, "field": task.field, "prompt": task.prompt}
    with (
        PredictionCache(file.parent / "answers.db") as journal,
        Classifier(model=MODEL, journal=journal, **options) as classifier,
    ):
        predictions = classifier.with_features().classify_many(texts)
    np.savez_compressed(
        file,
        lp=np.array([one.distribution.logprobs for one in predictions if one.distribution is not None]),
        features=np.array([one.features for one in predictions], dtype=np.float32),
        vectors=encoder.vectors(texts),
        y=np.array([task.labels.labels.index(label) for _, label in rows]),
        n_pool=len(pool),
        texts=np.array(texts),
        labels=np.array(task.labels.labels),
    )
