"""Texts whose words have synonyms, and an embedding model that gives synonyms one vector."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

LABELS = ("cat", "dog")
_MEANINGS = {"purring": 0, "kitty": 0, "cat": 0, "barking": 1, "hound": 1, "dog": 1}
_FILLER = ("barn", "cart", "dune", "fern", "glen", "lamp", "moss", "pond")
_DIMENSION = 8


def texts(n: int, *, words: tuple[str, str], seed: int = 0) -> tuple[list[str], list[str]]:
    """Return texts with one word of either label, and their labels."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(np.arange(n) % 2)
    return [f"{' '.join(rng.choice(_FILLER, 3))} {words[at]}" for at in places], [LABELS[at] for at in places]


KNOWN = texts(40, words=("purring", "barking"))
UNSEEN = texts(40, words=("kitty", "hound"), seed=1)


class Synonyms:
    """Gives a text the mean vector of the words it knows.

    Attributes
    ----------
    name : str
        Its name.
    """

    def __init__(self, name: str = "model2vec:synonyms", *, seed: int = 0) -> None:
        self.name = name
        self.dim = _DIMENSION
        self._of_meanings = np.random.default_rng(seed).normal(size=(2, _DIMENSION))

    def vectors(self, texts: list[str]) -> NDArray[np.float64]:
        """Return the vectors, shape (n, 8)."""
        found = np.zeros((len(texts), _DIMENSION))
        for row, text in zip(found, texts, strict=True):
            known = [_MEANINGS[word] for word in text.replace(",", "").split() if word in _MEANINGS]
            if known:
                row[:] = self._of_meanings[known].mean(axis=0)
        return found

    def encode(self, texts: list[str], *, use_multiprocessing: bool) -> NDArray[np.float32]:
        """Return the vectors, as model2vec's models do."""
        assert not use_multiprocessing
        return self.vectors(texts).astype(np.float32)


def install_model2vec(monkeypatch: pytest.MonkeyPatch, seeds: Mapping[str, int]) -> None:
    """Make model2vec offer models of these names; equal numbers are equal models."""

    class StaticModel:
        @classmethod
        def from_pretrained(cls, name: str, *, force_download: bool) -> Synonyms:
            assert not force_download
            if name not in seeds:
                raise FileNotFoundError(name)
            return Synonyms(name, seed=seeds[name])

    module = types.ModuleType("model2vec")
    module.StaticModel = StaticModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "model2vec", module)


def without_model2vec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that model2vec is not installed."""
    monkeypatch.setitem(sys.modules, "model2vec", None)
