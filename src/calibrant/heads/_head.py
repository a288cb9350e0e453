"""Head: the step from the log-probabilities of the labels to the final distribution."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from calibrant.calibration._fit import SavedFit, log_normalise
from calibrant.core._errors import ConfigurationError
from calibrant.core._fingerprint import Fingerprint, sha256_of
from calibrant.core._prediction import FloatArray
from calibrant.heads._linear import (
    Block,
    EmbeddingModel,
    HeadEmbedding,
    HeadRows,
    LinearModel,
    ZeroLevel,
    as_numbers,
    tempered,
)
from calibrant.metrics._validation import HUGE, check_log_probabilities
from calibrant.metrics._validation import as_numbers as check_numbers

AS_SCORED: Final = "as scored"
TEMPERATURE: Final = "temperature"
FITTED: Final = "fitted"


@dataclass(frozen=True, kw_only=True)
class HeadFigures:
    """Held-out scores of one candidate.

    Strengths, pool and temperature of a fold's rows are those of the other folds. The kind is chosen by all rows: of
    few (below about 40) the scores are a little too good.

    Attributes
    ----------
    name : str
        ``as scored``, ``temperature`` or ``fitted``.
    log_loss : float
        Mean log loss, in nats.
    brier : float
        Mean Brier score over all labels, halved, in [0, 1].
    accuracy, macro_f1 : float
        In [0, 1].

    Examples
    --------
    >>> HeadFigures(name="fitted", log_loss=0.3, brier=0.1, accuracy=0.9, macro_f1=0.85).accuracy
    0.9
    """

    name: str
    log_loss: float
    brier: float
    accuracy: float
    macro_f1: float


@dataclass(frozen=True, kw_only=True)
class Head(SavedFit):
    """Model from the log-probabilities of labels, and the text where it helps, to the distribution.

    Made by `fit_head`; immutable.

    Attributes
    ----------
    labels : tuple of str, length L
        The labels, in the order of every column.
    kind : {"as scored", "temperature", "fitted"}
        What it does: nothing, scaling by a temperature, or a regression; see `fit_head`.
    model : LinearModel
        The regression; the identity if it is not ``fitted``.
    strengths : mapping of str to float
        Strength of every block of the regression that is used; at 0 only the weight that all labels share.
    figures : tuple of HeadFigures
        Held-out scores of all three kinds.
    n_rows : int
        Labelled rows it learned from.
    reason : str
        Reason for the kind, in one sentence or two.
    zeros : ZeroLevel or None
        What is put for log-probabilities that stand for zeros, first of all; None leaves them as they are.
    temperature : float or None
        Divisor of the final log-probabilities; None if it is ``as scored``.
    shift : tuple of float, length L, or None
        Offsets of the final log-probabilities, in nats, for an expected label mix that differs from that of the
        labelled rows.
    embedding : HeadEmbedding or None
        The embedding model it reads texts with, beside their words; None where it needs none.
    named_tokens : tuple of int
        Numbers of the tokens whose log-probabilities are its features, on a server that reports those of named tokens.
    held_out_losses : ndarray of shape (n_rows,) or None
        Held-out log loss of each labelled row, in nats; None if nothing was tried, or for a head read from a file.
    held_out_logprobs : ndarray of shape (n_rows, L) or None
        Held-out distributions of the labelled rows, as natural logarithms without `shift`; None in the same cases.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.heads import fit_head
    >>> answers = np.arange(100) % 2
    >>> logprobs = np.log([[0.6, 0.4], [0.9, 0.1]])[1 - answers]  # always says "no", less so where that is wrong
    >>> head = fit_head(logprobs, answers, labels=["no", "yes"])
    >>> head.title, head.n_rows, head.transform(logprobs[:2]).argmax(axis=1).tolist()
    ('labels', 100, [0, 1])
    """

    _kind: ClassVar[str] = "head"
    _fitted: ClassVar[str] = "labels"

    labels: tuple[str, ...]
    kind: str
    model: LinearModel = field(repr=False, compare=False)
    strengths: Mapping[Block, float] = field(default_factory=dict)
    zeros: ZeroLevel | None = None
    temperature: float | None = None
    shift: tuple[float, ...] | None = None
    embedding: HeadEmbedding | None = None
    named_tokens: tuple[int, ...] = ()
    figures: tuple[HeadFigures, ...] = field(default=(), repr=False)
    n_rows: int = 0
    reason: str = ""
    held_out_losses: FloatArray | None = field(default=None, repr=False, compare=False)
    held_out_logprobs: FloatArray | None = field(default=None, repr=False, compare=False)

    @property
    def changes_nothing(self) -> bool:
        """True if `transform` only normalises its input and sets a lower bound."""
        return self.kind == AS_SCORED and self.shift is None

    @property
    def title(self) -> str:
        """The kind, or of a regression the blocks that it uses, such as ``labels + text``."""
        if self.kind == FITTED:
            return " + ".join(self.model.blocks)
        return self.kind

    @property
    def uses_model(self) -> bool:
        """True if `transform` depends on what the language model says of a text."""
        return "labels" in self.model.blocks or self.uses_features

    @property
    def uses_text(self) -> bool:
        """True if `transform` needs the texts."""
        return "text" in self.model.blocks or self.uses_embedding

    @property
    def uses_features(self) -> bool:
        """True if `transform` needs the model's features of the texts."""
        return "features" in self.model.blocks

    @property
    def uses_embedding(self) -> bool:
        """True if `transform` needs vectors of the texts, which `embedding` gives."""
        return "embeddings" in self.model.blocks

    def with_embedding(self, model: EmbeddingModel) -> Head:
        """Return a copy that embeds texts with this model, or the head itself if it uses no embedding.

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
    def gain(self) -> float:
        """Decrease of the mean held-out log loss against the scored distributions, in nats."""
        by_name = {one.name: one.log_loss for one in self.figures}
        if self.figures:
            return by_name[AS_SCORED] - by_name[self.kind]
        return 0.0

    def transform(
        self, logprobs: ArrayLike, texts: Sequence[str] | None = None, *, features: ArrayLike | None = None
    ) -> FloatArray:
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
        return self.transform_rows(self.rows(logprobs, texts, features=features))

    def rows(
        self, logprobs: ArrayLike, texts: Sequence[str] | None = None, *, features: ArrayLike | None = None
    ) -> HeadRows:
        """Return checked inputs with the vectors of their texts; see `transform`."""
        rows = check_rows(logprobs, texts=texts, features=features, n_labels=len(self.labels), least=0)
        for name, needed, given in (
            ("texts", self.uses_text, texts),
            ("features", self.uses_features, features),
        ):
            if needed and given is None:
                raise ConfigurationError(f"Expected {name} for a head of {self.title}, got none: pass them.")
        if self.zeros is not None:
            rows = replace(rows, logprobs=self.zeros.lowered(rows.logprobs))
        if self.embedding is not None:
            rows = replace(rows, embeddings=self.embedding.vectors(rows.texts or ()))
        return rows

    def transform_rows(self, rows: HeadRows) -> FloatArray:
        """Return the final log-probabilities of checked inputs; see `transform`."""
        found = self.model.log_proba(rows)
        if self.temperature is None:
            found = log_normalise(found)
        else:
            found = tempered(found, temperature=self.temperature, n_rows=self.n_rows)
        if self.shift is None:
            return found
        return log_normalise(found + np.array(self.shift))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that determines the output, 64 hexadecimal digits."""
        state: list[Any] = [self.labels, self.temperature, self.n_rows, self.model.to_state()]
        state += [] if self.zeros is None else [vars(self.zeros)]
        state += [] if self.shift is None else [self.shift]
        state += [] if self.embedding is None else [self.embedding.identity]
        state += [self.named_tokens] if self.named_tokens else []
        return sha256_of(json.dumps(state, sort_keys=True))

    def describe(self) -> dict[str, Any]:
        """Return the kind, the blocks, the reason for them and all figures as JSON values."""
        return {
            "kind": self.kind,
            "title": self.title,
            "uses_model": self.uses_model,
            "strengths": dict(self.strengths),
            "reason": self.reason,
            "n_rows": self.n_rows,
            "gain": self.gain,
            "figures": [vars(one) for one in self.figures],
            **({} if self.embedding is None else {"embedding": self.embedding.name}),
        }

    def _state(self) -> dict[str, Any]:
        # A head that uses texts holds words of the texts that it learned from.
        return {
            "kind": self.kind,
            "strengths": dict(self.strengths),
            "reason": self.reason,
            "n_rows": self.n_rows,
            "temperature": self.temperature,
            "figures": [vars(one) for one in self.figures],
            "model": self.model.to_state(),
            **({} if self.zeros is None else {"zeros": vars(self.zeros)}),
            **({} if self.shift is None else {"shift": list(self.shift)}),
            **({} if self.embedding is None else {"embedding": self.embedding.to_state()}),
            **({"named_tokens": list(self.named_tokens)} if self.named_tokens else {}),
        }

    @classmethod
    def _from_state(cls, state: Mapping[str, Any], *, labels: tuple[str, ...]) -> Self:
        _check_state(state)
        shift = None
        if "shift" in state:
            shift = as_numbers(state["shift"], (len(labels),)).tolist()
        zeros = None
        if "zeros" in state:
            zeros = _stored_zeros(state["zeros"])
        embedding = None
        if "embedding" in state:
            embedding = HeadEmbedding.from_state(state["embedding"])
        model = LinearModel.from_state(state["model"], n_labels=len(labels))
        if ("embeddings" in model.blocks) != (embedding is not None):
            raise ValueError("the embedding model does not go with the columns")
        if state["kind"] == FITTED and tuple(state["strengths"]) != model.blocks:
            raise ValueError("the strengths do not go with the columns")
        if state["kind"] != FITTED and model.to_state() != LinearModel.as_scored(len(labels)).to_state():
            raise ValueError("the model does not go with the kind")
        return cls(
            labels=labels,
            kind=state["kind"],
            model=model,
            strengths=state["strengths"],
            embedding=embedding,
            named_tokens=tuple(map(operator.index, state.get("named_tokens", ()))),
            zeros=zeros,
            temperature=state["temperature"],
            shift=None if shift is None else tuple(shift),
            figures=tuple(HeadFigures(**one) for one in state["figures"]),
            n_rows=state["n_rows"],
            reason=state["reason"],
        )

    def _check_labels(self, fingerprint: Fingerprint) -> None:
        self.check(fingerprint)

    def check(self, fingerprint: Fingerprint) -> None:
        """Raise ConfigurationError unless the fingerprint has the same labels in the same order.

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


def _stored_zeros(stored: Mapping[str, Any]) -> ZeroLevel:
    at_most, drop = as_numbers([stored["at_most"], stored["drop"]], (2,)).tolist()
    if drop <= 0.0:
        raise ValueError("the level of zeros does not go down")
    return ZeroLevel(at_most=at_most, drop=drop)


def _check_state(state: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError unless `Head.save` can have written this state."""
    kind = state["kind"]
    temperature = state["temperature"]
    strengths = state["strengths"]
    names = [one["name"] for one in state["figures"]]
    for one in state["figures"]:
        as_numbers([one[name] for name in ("log_loss", "brier", "accuracy", "macro_f1")], (4,))
    if (
        not isinstance(state["figures"], list)
        or names not in ([], [AS_SCORED, TEMPERATURE, FITTED])
        or kind not in (names or [AS_SCORED])
    ):
        raise ValueError("figures of the kind are missing")
    if not isinstance(strengths, dict) or bool(strengths) != (kind == FITTED):
        raise ValueError("the strengths do not go with the kind")
    if (as_numbers(list(strengths.values()), (len(strengths),)) < 0.0).any():
        raise ValueError("a strength is below 0")
    if not isinstance(state["reason"], str) or type(state["n_rows"]) is not int or state["n_rows"] < 1:
        raise ValueError("the reason or the number of rows is missing")
    if (temperature is None) != (kind == AS_SCORED) or (
        temperature is not None and not (isinstance(temperature, float) and 0.0 < temperature < HUGE)
    ):
        raise ValueError("the temperature does not go with the kind")


def check_rows(
    logprobs: ArrayLike,
    *,
    texts: Sequence[str] | None,
    features: ArrayLike | None,
    n_labels: int,
    least: int = 1,
) -> HeadRows:
    """Check the inputs of a head and return them, at least `least` rows.

    Raises
    ------
    ConfigurationError
        Wrong shapes or lengths, NaN or infinity.
    """
    rows = check_log_probabilities(logprobs, name="logprobs", n_labels=n_labels, least=least)
    check_texts(texts, len(rows))
    columns = None if features is None else check_numbers("features", features)
    is_table = columns is None or (columns.ndim == 2 and len(columns) == len(rows))
    if columns is not None and (not is_table or not (np.abs(columns) <= HUGE).all()):
        raise ConfigurationError(
            f"Expected features of shape ({len(rows)}, columns) without NaN or infinity, got {columns.shape}: leave "
            "out rows without them."
        )
    return HeadRows.of(rows, features=columns, texts=texts)


def check_texts(texts: Sequence[str] | None, n: int) -> None:
    """Raise ConfigurationError unless `texts` is None or a sequence of n strings."""
    if texts is None:
        return
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(
            "Expected texts as a sequence of strings, got something else: pass a list of them."
        )
    if len(texts) != n:
        raise ConfigurationError(f"Expected a text for each of {n} rows, got {len(texts)}.")
