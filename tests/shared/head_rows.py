"""Labelled rows for tests of heads, with known sources of information."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

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
