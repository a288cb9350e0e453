"""A head: from the log-probabilities of the labels to the final distribution."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._losses import log_normalise
from calibrant.calibration._state import read_state, write_state
from calibrant.core._errors import ConfigurationError, StateError
from calibrant.core._fingerprint import Fingerprint
from calibrant.heads._embedding import EmbeddingModel, HeadEmbedding
from calibrant.heads._linear import HeadRows, LinearModel, as_numbers, tempered

_KIND: Final = "head"
_VERSION: Final = 1
_HUGE: Final = 1e100


class Model(Protocol):
    """Model that turns rows into log-probabilities of labels."""

    def log_proba(self, rows: HeadRows) -> NDArray[np.float64]:
        """Return log-probabilities of the labels, shape (n, L)."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return the fitted parameters as JSON values."""
        ...


@dataclass(frozen=True, kw_only=True)
class Affine:
    """Weighs every label's log-probability and adds an offset.

    Attributes
    ----------
    weight, offset : ndarray of shape (L,)
        Factor and offset of each label.
    """

    weight: NDArray[np.float64]
    offset: NDArray[np.float64]

    def log_proba(self, rows: HeadRows) -> NDArray[np.float64]:
        """Return log-probabilities of the labels, shape (n, L)."""
        return log_normalise(rows.logprobs * self.weight + self.offset)

    def to_state(self) -> dict[str, Any]:
        """Return the fitted parameters as JSON values."""
        return {"weight": self.weight.tolist(), "offset": self.offset.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, n_labels: int) -> Self:
        """Return the model of a `to_state` record over L labels; KeyError, TypeError or ValueError for any other."""
        weight, offset = (as_numbers(state[name], (n_labels,)) for name in ("weight", "offset"))
        return cls(weight=weight, offset=offset)


@dataclass(frozen=True, kw_only=True)
class RungFigures:
    """Held-out scores of one rung.

    Attributes
    ----------
    name : str
        The rung.
    log_loss : float
        Mean log loss, in nats.
    brier : float
        Mean Brier score over all labels, halved, in [0, 1].
    accuracy, macro_f1 : float
        In [0, 1].
    """

    name: str
    log_loss: float
    brier: float
    accuracy: float
    macro_f1: float


@dataclass(frozen=True, kw_only=True)
class Head:
    """Turns the log-probabilities of labels, and the text where it helps, into the final distribution.

    Made by `fit_head`; immutable.

    Attributes
    ----------
    labels : tuple of str, length L
        The labels, in the order of every column.
    rung : str
        Name of the transformation: see `fit_head`.
    figures : tuple of RungFigures
        Held-out scores of every rung that was tried.
    n_rows : int
        Labelled rows it learned from.
    reason : str
        Reason for the rung, in one sentence.
    temperature : float or None
        Divisor of the final log-probabilities; None for the rung ``as scored``.
    shift : tuple of float, length L, or None
        Offsets of the final log-probabilities, in nats, for an expected label mix that differs from that of the
        labelled rows.
    embedding : HeadEmbedding or None
        The embedding model it reads texts with, beside their words; None where it needs none.
    held_out_losses : ndarray of shape (n_rows,) or None
        Held-out log loss of each labelled row, in nats; None if no rung was tried, or for a head read from a file.
    """

    labels: tuple[str, ...]
    rung: str
    model: Model = field(repr=False)
    temperature: float | None = None
    shift: tuple[float, ...] | None = None
    embedding: HeadEmbedding | None = None
    figures: tuple[RungFigures, ...] = field(default=(), repr=False)
    n_rows: int = 0
    reason: str = ""
    held_out_losses: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    @property
    def changes_nothing(self) -> bool:
        """True if `transform` returns its input unchanged."""
        return self.rung == "as scored" and self.shift is None

    @property
    def uses_text(self) -> bool:
        """True if `transform` needs the texts."""
        return "text" in self._blocks

    @property
    def uses_features(self) -> bool:
        """True if `transform` needs the model's features of the texts."""
        return "features" in self._blocks

    def with_embedding(self, model: EmbeddingModel) -> Head:
        """Return a copy that embeds texts with this model, or the head itself if it needs none.

        Parameters
        ----------
        model : EmbeddingModel
            The model that it was fitted with, as `embedding` names it.

        Raises
        ------
        ConfigurationError
            `model` is another model.
        """
        if self.embedding is None:
            return self
        return replace(self, embedding=self.embedding.opened(model, labels=self.labels))

    @property
    def _blocks(self) -> tuple[str, ...]:
        return self.model.blocks if isinstance(self.model, LinearModel) else ("labels",)

    @property
    def gain(self) -> float:
        """Decrease of the mean log loss from the scored distributions, in nats."""
        by_name = {one.name: one.log_loss for one in self.figures}
        return by_name["as scored"] - by_name[self.rung] if self.figures else 0.0

    def transform(
        self,
        logprobs: ArrayLike,
        texts: Sequence[str] | None = None,
        *,
        features: ArrayLike | None = None,
    ) -> NDArray[np.float64]:
        """Return the final log-probabilities, shape (n, L), normalised.

        Parameters
        ----------
        logprobs : array-like of shape (n, L)
            Natural logarithms; rows are normalised first.
        texts : sequence of str, length n, optional
            The texts; required if `uses_text`.
        features : array-like of shape (n, d), optional
            The model's features of the texts; required if `uses_features`.

        Raises
        ------
        ConfigurationError
            Wrong shapes, NaN or infinity, texts or features are missing, or the embedding model is not open.
        """
        rows = check_rows(logprobs, texts=texts, features=features, n_labels=len(self.labels))
        for name, needed, given in (
            ("texts", self.uses_text, texts),
            ("features", self.uses_features, features),
        ):
            if needed and given is None:
                raise ConfigurationError(
                    f"Expected {name} for a head of rung {self.rung!r}, got none: pass them."
                )
        if self.embedding is not None:
            rows = replace(rows, embeddings=self.embedding.vectors(rows.texts or ()))
        found = self.model.log_proba(rows)
        if self.temperature is None:
            found = log_normalise(found)
        else:
            found = tempered(found, temperature=self.temperature, n_rows=self.n_rows)
        return found if self.shift is None else log_normalise(found + np.array(self.shift))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that determines the output, 64 hexadecimal digits."""
        state: list[Any] = [self.labels, self.temperature, self.n_rows, self.model.to_state()]
        state += [] if self.shift is None else [self.shift]
        state += [] if self.embedding is None else [self.embedding.to_state()]
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return the rung, the reason for it and all figures as JSON values."""
        return {
            "rung": self.rung,
            "reason": self.reason,
            "n_rows": self.n_rows,
            "gain": self.gain,
            "figures": [vars(one) for one in self.figures],
            **({} if self.embedding is None else {"embedding": self.embedding.name}),
        }

    def save(self, path: str | Path, *, fingerprint: Fingerprint) -> None:
        """Write the head to one JSON file, atomically.

        One that uses texts holds words of the texts that it learned from.

        Parameters
        ----------
        path : str or Path
            Destination path. An existing file is replaced.
        fingerprint : Fingerprint
            Fingerprint of the fit; `load` requires the same.

        Raises
        ------
        ConfigurationError
            The fingerprint has other labels.
        StateError
            The file cannot be written.
        """
        self.check(fingerprint)
        state = {
            "rung": self.rung,
            "reason": self.reason,
            "n_rows": self.n_rows,
            "temperature": self.temperature,
            "figures": [vars(one) for one in self.figures],
            "kind": "linear" if isinstance(self.model, LinearModel) else "affine",
            "model": self.model.to_state(),
            **({} if self.shift is None else {"shift": list(self.shift)}),
            **({} if self.embedding is None else {"embedding": self.embedding.to_state()}),
        }
        write_state(path, kind=_KIND, version=_VERSION, fingerprint=fingerprint, state=state)

    @classmethod
    def load(cls, path: str | Path, *, fingerprint: Fingerprint) -> Self:
        """Return the head written by `save`.

        Raises
        ------
        StateError
            The file is missing or damaged, holds something else or another version, or was fitted on another prompt,
            model, log-probability space or label set; the message names which.
        """
        state = read_state(path, kind=_KIND, version=_VERSION, fingerprint=fingerprint)
        kinds: dict[str, type[LinearModel | Affine]] = {"linear": LinearModel, "affine": Affine}
        try:
            _check_state(state)
            n_labels, shift = len(fingerprint.labels), state.get("shift")
            embedding = HeadEmbedding.from_state(state["embedding"]) if "embedding" in state else None
            model = kinds[state["kind"]].from_state(state["model"], n_labels=n_labels)
            _check_embedding(embedding, model)
            return cls(
                labels=tuple(fingerprint.labels),
                rung=state["rung"],
                model=model,
                embedding=embedding,
                temperature=state["temperature"],
                shift=None if "shift" not in state else tuple(as_numbers(shift, (n_labels,)).tolist()),
                figures=tuple(RungFigures(**one) for one in state["figures"]),
                n_rows=state["n_rows"],
                reason=state["reason"],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path}: this head is damaged ({error!r}): fit and save it again.") from error

    def check(self, fingerprint: Fingerprint) -> None:
        """Refuse a classifier over other labels.

        Raises
        ------
        ConfigurationError
            The labels differ.
        """
        if tuple(fingerprint.labels) != self.labels:
            raise ConfigurationError(
                f"Expected a head for {len(fingerprint.labels)} labels {tuple(fingerprint.labels)[:3]}, got one for "
                f"{len(self.labels)} labels {self.labels[:3]}: fit it on this label set, in this order."
            )


def _check_embedding(embedding: HeadEmbedding | None, model: Model) -> None:
    """Raise ValueError for embedding columns without their model, or a model without its columns."""
    looks = model.blocks if isinstance(model, LinearModel) else ()
    if ("embeddings" in looks) != (embedding is not None):
        raise ValueError("the embedding model does not go with the columns")


def _check_state(state: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError unless `Head.save` can have written this state."""
    rung, temperature = state["rung"], state["temperature"]
    names = [one["name"] for one in state["figures"]]
    for one in state["figures"]:
        as_numbers([one[name] for name in ("log_loss", "brier", "accuracy", "macro_f1")], (4,))
    if len(set(names)) < len(names) or not {rung, "as scored"} <= set(names or ["as scored"]):
        raise ValueError("figures of the rung are missing")
    if not isinstance(state["reason"], str) or type(state["n_rows"]) is not int or state["n_rows"] < 1:
        raise ValueError("the reason or the number of rows is missing")
    if (temperature is None) != (rung == "as scored") or (
        temperature is not None and not (isinstance(temperature, float) and 0.0 < temperature < _HUGE)
    ):
        raise ValueError("the temperature does not go with the rung")


def check_rows(
    logprobs: ArrayLike,
    *,
    texts: Sequence[str] | None,
    features: ArrayLike | None,
    n_labels: int,
) -> HeadRows:
    """Return checked rows.

    Raises
    ------
    ConfigurationError
        Wrong shapes or lengths, NaN or infinity.
    """
    given = _numbers("logprobs", logprobs)
    if given.shape[1] != n_labels:
        raise ConfigurationError(
            f"Expected logprobs over {n_labels} labels, got {given.shape[1]}: use the same label set."
        )
    if texts is not None and (isinstance(texts, str) or not all(isinstance(text, str) for text in texts)):
        raise ConfigurationError(
            "Expected texts as a sequence of strings, got something else: pass a list of them."
        )
    if texts is not None and len(texts) != len(given):
        raise ConfigurationError(f"Expected a text for each of {len(given)} rows, got {len(texts)}.")
    found = None if features is None else _numbers("features", features)
    if found is not None and len(found) != len(given):
        raise ConfigurationError(f"Expected features of {len(given)} rows, got {len(found)}.")
    return HeadRows.of(given, features=found, texts=texts)


def _numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Expected {name} to hold numbers, in rows of one length: {error}."
        ) from error
    if found.ndim != 2 or not (np.abs(found) <= _HUGE).all():
        raise ConfigurationError(
            f"Expected {name} of shape (rows, columns) without NaN or infinity, got shape {found.shape}: leave out "
            "rows without log-probabilities."
        )
    return found
