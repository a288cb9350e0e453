"""Labelled rows for tests of heads, with known sources of information."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from calibrant.heads import Head, fit_head

LABELS = ("north", "east", "south", "west")
_FILLER = ("barn", "cart", "dune", "fern", "glen", "lamp", "moss", "pond")


@dataclass(frozen=True, kw_only=True)
class HeadRows:
    """Rows over four labels; the answer is twice what the model knows plus what the text tells."""

    logprobs: NDArray[np.float64]
    answers: NDArray[np.intp]
    texts: list[str]
    features: NDArray[np.float64]

    def take(self, places: NDArray[np.intp]) -> HeadRows:
        """Return the rows with these numbers."""
        return HeadRows(
            logprobs=self.logprobs[places],
            answers=self.answers[places],
            texts=[self.texts[place] for place in places],
            features=self.features[places],
        )


def halves(n: int = 160, *, bias: float = 3.0, seed: int = 0) -> HeadRows:
    """Return rows whose model knows one bit; a word and a feature tell the other bit."""
    rng = np.random.default_rng(seed)
    answers = rng.integers(4, size=n)
    known, told = answers // 2, answers % 2
    logits = rng.normal(scale=0.5, size=(n, 4)) + 3.0 * (np.arange(4) // 2 == known[:, None])
    return HeadRows(
        logprobs=log_softmax(logits + bias * (np.arange(4) == 0), axis=1),
        answers=answers,
        texts=[f"{' '.join(rng.choice(_FILLER, 3))} {('rising', 'falling')[bit]}" for bit in told],
        features=hidden(told, seed=seed),
    )


def hidden(bits: NDArray[np.intp], *, seed: int = 0) -> NDArray[np.float64]:
    """Return hidden features of texts: noise, and one bit along a fixed direction."""
    direction = np.random.default_rng(99).normal(size=32)
    return np.random.default_rng(seed).normal(size=(len(bits), 32)) + (2.0 * bits[:, None] - 1.0) * direction


def filler(n: int, *, seed: int = 0) -> list[str]:
    """Return texts without information about the label."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(_FILLER, 4)) for _ in range(n)]


def knowing(n: int, *, n_labels: int = 3, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return log-probabilities of a model that is mostly right, and the answers."""
    rng = np.random.default_rng(seed)
    honest = log_softmax(rng.normal(scale=2.0, size=(n, n_labels)), axis=1)
    return honest, np.array([rng.choice(n_labels, p=p) for p in np.exp(honest)])


def noise(n: int = 100, *, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return random log-probabilities over three labels, and unrelated answers."""
    rng = np.random.default_rng(seed)
    return log_softmax(0.05 * rng.normal(size=(n, 3)), axis=1), rng.integers(3, size=n)


@cache
def heads() -> dict[str, Head]:
    """Return heads by their titles: of every kind, and of regressions on several blocks."""
    rows, (honest, answers) = halves(80), knowing(80, n_labels=4)
    quiet = 0.05 * np.random.default_rng(0).normal(size=(80, 4))
    vague = rows.features + np.random.default_rng(5).normal(scale=2.0, size=rows.features.shape)
    told = (rows.answers + (np.arange(80) % 7 == 0)) % 2
    found = [
        fit_head(honest[:5], answers[:5], labels=LABELS),
        fit_head(3.0 * honest, answers, labels=LABELS),
        fit_head(rows.logprobs, rows.answers, labels=LABELS),
        fit_head(quiet, told, labels=LABELS, texts=rows.texts),
        fit_head(rows.logprobs, rows.answers, labels=LABELS, features=rows.features),
        fit_head(**vars(rows) | {"features": vague}, labels=LABELS),
    ]
    return {head.title: head for head in found}
