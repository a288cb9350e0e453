"""Embedding model whose vectors of the texts a head uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core._errors import ConfigurationError
from calibrant.core._reported import writable

_PROBE: Final = "The quick brown fox jumps over 13 lazy dogs, and nobody asks why: "
_TOLERANCE: Final = 1e-3  # of a vector's length: the same model differs by less between machines


class EmbeddingModel(Protocol):
    """Protocol of embedding models; the same text must always give the same vector.

    Attributes
    ----------
    name : str
        Name that opens the model again.
    """

    @property
    def name(self) -> str: ...

    def vectors(self, texts: list[str]) -> ArrayLike:
        """Return one vector per text, shape (n, d)."""
        ...


@dataclass(frozen=True, kw_only=True)
class HeadEmbedding:
    """Embedding model of a head: its name, a test vector that identifies it, and the opened model.

    Attributes
    ----------
    name : str
        Name that opens the model.
    probe : tuple of float, length d
        The vector it gives to a fixed sentence followed by the labels' names; another model gives another.
    model : EmbeddingModel or None
        The model; None in a head that was read from a file.
    seconds_per_text : float or None
        Seconds that one text took where the head was fitted, on this machine; None if unknown, as of models that are
        asked over a network.
    """

    name: str
    probe: tuple[float, ...] = field(repr=False)
    seconds_per_text: float | None = field(default=None, compare=False)
    model: EmbeddingModel | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle without the model, which is opened again by name."""
        return {**self.__dict__, "model": None}

    @classmethod
    def of(cls, model: EmbeddingModel, *, labels: Sequence[str]) -> Self:
        """Return the embedding of a head over these labels, with an opened model.

        Raises
        ------
        ConfigurationError
            The model gives something else than vectors.
        """
        return cls(name=model.name, probe=_probe(model, labels), model=model)

    def opened(self, model: EmbeddingModel, *, labels: Sequence[str]) -> Self:
        """Return a copy with this model; ConfigurationError if its test vector differs.

        Raises
        ------
        ConfigurationError
            `model` is not the one that the head was fitted with.
        """
        if not is_same_vector(np.array(_probe(model, labels)), np.array(self.probe)):
            raise ConfigurationError(
                f"Expected the embedding model {self.name!r} that the head was fitted with, got {model.name!r} whose "
                "vectors are others: use that model, or fit the head again."
            )
        return replace(self, model=model)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return a vector of length 1 for each text, shape (n, d); zeros if it has no known word.

        Raises
        ------
        ConfigurationError
            The model is not open, or gives something else than vectors.
        """
        if self.model is None:
            raise ConfigurationError(
                f"Expected the embedding model {self.name!r} to be open, got a head as it was read from its file: use "
                "it in a Classifier, or hand the model over with Head.with_embedding."
            )
        found = unit_vectors(self.model, texts)
        if found.shape[1] != len(self.probe):
            raise ConfigurationError(
                f"Expected vectors of {len(self.probe)} numbers from {self.name!r}, got {found.shape[1]}: use the "
                "model that the head was fitted with."
            )
        return found

    @property
    def identity(self) -> dict[str, Any]:
        """The name and the test vector as JSON values."""
        return {"name": self.name, "probe": list(self.probe)}

    def to_state(self) -> dict[str, Any]:
        """Return the attributes but the model as JSON values."""
        if self.seconds_per_text is None:
            return self.identity
        return {**self.identity, "seconds_per_text": self.seconds_per_text}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Return the unopened embedding of a `to_state` record; raise an error if it is invalid."""
        probe = np.asarray(state["probe"], dtype=np.float64)
        if not isinstance(state["name"], str) or probe.ndim != 1 or not np.isfinite(probe).all():
            raise ValueError("the name or the probe of the embedding model is missing")
        seconds = state.get("seconds_per_text")
        if seconds is not None and not 0.0 <= float(seconds) < math.inf:
            raise ValueError("the seconds of a text are no number")
        return cls(
            name=state["name"],
            probe=tuple(probe.tolist()),
            seconds_per_text=None if seconds is None else float(seconds),
        )


def is_same_vector(given: NDArray[np.floating[Any]], expected: NDArray[np.floating[Any]]) -> bool:
    """Return True if two vectors of one text are those of one model."""
    if given.shape != expected.shape:
        return False
    return bool(np.linalg.norm(given - expected) <= _TOLERANCE * np.linalg.norm(expected))


def recognised_text(labels: Sequence[str]) -> str:
    """Return the text whose vector a head over these labels recognises its model by."""
    return _PROBE + ", ".join(labels)


def _probe(model: EmbeddingModel, labels: Sequence[str]) -> tuple[float, ...]:
    return tuple(np.round(unit_vectors(model, [recognised_text(labels)])[0], 6).tolist())


def unit_vectors(model: EmbeddingModel, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return a vector of length 1 for each text, shape (n, d).

    Raises
    ------
    ConfigurationError
        The model gives something else than vectors.
    """
    legal = list(map(writable, texts))  # tokenisers ask for bytes
    found = np.asarray(model.vectors(legal), dtype=np.float64)
    if found.ndim != 2 or len(found) != len(legal) or not np.isfinite(found).all():
        raise ConfigurationError(
            f"Expected {model.name!r} to give a vector of finite numbers for each of {len(legal)} texts, got shape "
            f"{found.shape}: use another embedding model."
        )
    return unit_rows(found)


def unit_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of length 1, shape (n, d); zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: NDArray[np.float64] = rows / np.where(lengths > 0.0, lengths, 1.0)
    return units
