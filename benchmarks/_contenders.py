"""What the scoreboard compares: everything that turns recorded answers and labelled rows into distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from _decision_sets import Array, DecisionSet
from _peers import vectors_alone, vectors_and_words, words_alone
from bench_decisions import Places, reanchored, regressed, tempered

from calibrant.calibration import (
    ConfidenceCalibrator,
    IsotonicCalibrator,
    LabelPriorCorrection,
    PerLabelCalibrator,
    PlattCalibrator,
    TemperatureCalibrator,
    TemperatureScaling,
    VectorScaling,
    select_calibrator,
)
from calibrant.heads import EmbeddingModel, Head, TextBaseline, fit_head

RAW: Final = "as scored"
DEFAULT: Final = "default head"
WITH_VECTORS: Final = "default + vectors"
STANDARDISED_C: Final = 16.0

ANSWERS: Final = "answers"
TEXT: Final = "text"
VECTORS: Final = "vectors"
"""What a contender reads of a row: the distribution as scored; the text, by its words or by the embedded engine; the
text by a sentence encoder, which is no part of calibrant."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Answers of a contender to the test rows.

    Attributes
    ----------
    shares : ndarray of shape (n, L)
        Probabilities of the labels.
    labels : ndarray of int, shape (n,)
        Positions of the labels that it answers.
    confidence : ndarray of shape (n,)
        Confidence in these.
    """

    shares: Array
    labels: Places
    confidence: Array

    @classmethod
    def of(cls, shares: Array) -> Self:
        """Return the answers of the most probable labels."""
        return cls(shares=shares, labels=shares.argmax(axis=1), confidence=shares.max(axis=1))

    def with_confidence(self, confidence: Array) -> Self:
        """Return the same labels with another confidence; the other labels share the rest as before."""
        rows = np.arange(len(self.labels))
        shares = self.shares.copy()
        shares[rows, self.labels] = 0.0
        rest = shares.sum(axis=1, keepdims=True)
        evenly = 1.0 / max(shares.shape[1] - 1, 1)
        shares = np.where(rest > 0.0, shares / np.where(rest > 0.0, rest, 1.0), evenly)
        shares *= 1.0 - confidence[:, None]
        shares[rows, self.labels] = confidence
        return type(self)(shares=shares, labels=self.labels, confidence=confidence)


class Draw:
    """Labelled rows, and the test rows that are asked about.

    Parameters
    ----------
    found : DecisionSet
        The set.
    taught, asked : ndarray of int
        Places of labelled rows and of test rows.
    engine : EmbeddingModel or None
        Vectors of the texts by the embedded engine, for a set of a model that reports no features.
    encoder : EmbeddingModel or None
        Sentence vectors of the texts.
    """

    def __init__(
        self,
        found: DecisionSet,
        taught: Places,
        asked: Places,
        *,
        engine: EmbeddingModel | None,
        encoder: EmbeddingModel | None,
    ) -> None:
        self.found, self.taught, self.asked = found, taught, asked
        self.engine, self.encoder = engine, encoder
        self.x, self.y, self.z = found.logprobs[taught], found.answers[taught], found.logprobs[asked]
        self.labels = list(found.labels)
        self.heads: dict[str, str] = {}

    def texts(self, places: Places) -> list[str]:
        """Return the texts of some rows."""
        every = self.found.texts or ()
        return [every[place] for place in places]

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Labelled texts."""
        labels = [self.labels[answer] for answer in self.y]
        return list(zip(self.texts(self.taught), labels, strict=True))

    @cached_property
    def engine_columns(self) -> tuple[Array, Array]:
        """What the embedded engine makes of the texts, standardised by the labelled rows: theirs, and of test rows."""
        if self.found.features is not None:
            known, new = self.found.features[self.taught], self.found.features[self.asked]
        elif self.engine is not None:
            known, new = (
                np.asarray(self.engine.vectors(self.texts(places)), dtype=float)
                for places in (self.taught, self.asked)
            )
        else:
            raise ValueError(f"Expected a set with features or an engine, got {self.found.name}.")
        scale = (known.std(axis=0) + 1e-9) * known.shape[1] ** 0.5
        return (known - known.mean(axis=0)) / scale, (new - known.mean(axis=0)) / scale

    def head(
        self, name: str, *, words: bool, features: bool, embedding: EmbeddingModel | None = None
    ) -> Answered:
        """Return what a head says that reads some of what there is; its title is kept under a name."""
        every = self.found.features if features else None
        found: Head = fit_head(
            self.x,
            self.y,
            labels=self.labels,
            texts=self.texts(self.taught) if words else None,
            features=None if every is None else every[self.taught],
            embedding=embedding,
        )
        self.heads[name] = found.title
        final = found.transform(
            self.z,
            self.texts(self.asked) if words else None,
            features=every[self.asked] if every is not None and found.uses_features else None,
        )
        return Answered.of(np.exp(final))

    def calibrated(self, calibrator: ConfidenceCalibrator) -> Answered:
        """Return the answers as scored with the confidence of a calibrator."""
        known, new = Answered.of(np.exp(self.x)), Answered.of(np.exp(self.z))
        calibrator.fit(known.confidence, known.labels == self.y, predicted=self._named(known))
        return new.with_confidence(calibrator.predict(new.confidence, predicted=self._named(new)))

    def selected(self) -> Answered:
        """Return the answers as scored with the confidence of the calibrator that is selected for them."""
        known, new = Answered.of(np.exp(self.x)), Answered.of(np.exp(self.z))
        found = select_calibrator(known.confidence, known.labels == self.y, predicted=self._named(known))
        return new.with_confidence(found.calibrator.predict(new.confidence, predicted=self._named(new)))

    def _named(self, answered: Answered) -> list[str]:
        return [self.labels[place] for place in answered.labels]

    def scaled(self, scaling: TemperatureScaling | VectorScaling) -> Answered:
        """Return scaled distributions."""
        return Answered.of(np.exp(scaling.fit(self.x, self.y).transform(self.z)))

    def corrected(self, *, strength: float | None = None, with_answers: bool = False) -> Answered:
        """Return distributions with the label prior of the labelled rows divided out."""
        prior = LabelPriorCorrection("batch", strength=strength)
        prior.fit(self.x, self.y if with_answers else None)
        return Answered.of(np.exp(prior.transform(self.z)))

    def by_words(self) -> Answered:
        """Return what the words of the texts say."""
        baseline = TextBaseline().fit(self.texts(self.taught), self.y, labels=self.labels)
        return Answered.of(np.exp(baseline.predict_log_proba(self.texts(self.asked))))

    def regression(self, known: Array, new: Array, *, c: float = 1.0) -> Answered:
        """Return what logistic regression says of columns."""
        return Answered.of(regressed(known, self.y, new, n_labels=len(self.labels), c=c))


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way from labelled rows and answers to distributions.

    Attributes
    ----------
    answer : callable
        Takes a `Draw`.
    reads : tuple of str
        What it reads of a row.
    needs_text : bool
        False if it can do without a text.
    """

    answer: Callable[[Draw], Answered]
    reads: tuple[str, ...]
    needs_text: bool

    def can_read(self, found: DecisionSet) -> bool:
        """Return True if a set has what the contender needs."""
        return found.texts is not None or not self.needs_text


def _reading(answer: Callable[[Draw], Answered], *reads: str) -> Contender:
    return Contender(answer=answer, reads=reads or (ANSWERS,), needs_text=TEXT in reads)


def _default(draw: Draw, name: str = DEFAULT, embedding: EmbeddingModel | None = None) -> Answered:
    """Return what `Classifier.fit` makes of the answers: it hands the same to `fit_head`."""
    return draw.head(
        name, words=draw.found.texts is not None, features=True, embedding=embedding or draw.engine
    )


def _lr_on_engine(draw: Draw) -> Answered:
    return draw.regression(*draw.engine_columns, c=STANDARDISED_C)


def _lr_on_answers_and_engine(draw: Draw) -> Answered:
    known, new = draw.engine_columns
    return draw.regression(np.hstack([draw.x, known]), np.hstack([draw.z, new]))


def _lr_on_answers_and_vectors(draw: Draw) -> Answered:
    known, new = (_encoded(draw).vectors(draw.texts(places)) for places in (draw.taught, draw.asked))
    return draw.regression(np.hstack([draw.x, known]), np.hstack([draw.z, new]))


def _encoded(draw: Draw) -> Any:
    if draw.encoder is None:
        raise ValueError(f"Expected a set with sentence vectors, got {draw.found.name}.")
    return draw.encoder


CONTENDERS: Final[Mapping[str, Contender]] = {
    RAW: _reading(lambda draw: Answered.of(np.exp(draw.z))),
    "Platt": _reading(lambda draw: draw.calibrated(PlattCalibrator())),
    "isotonic": _reading(lambda draw: draw.calibrated(IsotonicCalibrator())),
    "confidence temp.": _reading(lambda draw: draw.calibrated(TemperatureCalibrator())),
    "Platt per label": _reading(lambda draw: draw.calibrated(PerLabelCalibrator("platt"))),
    "selected": _reading(Draw.selected),
    "temperature scaling": _reading(lambda draw: draw.scaled(TemperatureScaling())),
    "vector scaling": _reading(lambda draw: draw.scaled(VectorScaling())),
    "prior, in full": _reading(lambda draw: draw.corrected(strength=1.0)),
    "prior, guarded": _reading(Draw.corrected),
    "prior, learned": _reading(lambda draw: draw.corrected(with_answers=True)),
    "head on answers": _reading(lambda draw: draw.head("head on answers", words=False, features=False)),
    "head, words too": _reading(
        lambda draw: draw.head("head, words too", words=True, features=False), ANSWERS, TEXT
    ),
    DEFAULT: Contender(answer=_default, reads=(ANSWERS, TEXT), needs_text=False),
    WITH_VECTORS: _reading(lambda draw: _default(draw, WITH_VECTORS, _encoded(draw)), ANSWERS, TEXT, VECTORS),
    "TextBaseline": _reading(Draw.by_words, TEXT),
    "temperature": _reading(lambda draw: Answered.of(tempered(draw.x, draw.y, draw.z))),
    "ReAnchor": _reading(lambda draw: Answered.of(reanchored(draw.x, draw.y, draw.z, draw.labels))),
    "LR on answers": _reading(lambda draw: draw.regression(draw.x, draw.z)),
    "LR on words": _reading(
        lambda draw: Answered.of(words_alone(draw.pairs, draw.texts(draw.asked), draw.labels)), TEXT
    ),
    "LR on features": _reading(_lr_on_engine, TEXT),
    "LR, answers+features": _reading(_lr_on_answers_and_engine, ANSWERS, TEXT),
    "LR on vectors": _reading(
        lambda draw: Answered.of(
            vectors_alone(draw.pairs, draw.texts(draw.asked), draw.labels, _encoded(draw))
        ),
        TEXT,
        VECTORS,
    ),
    "LR, words+vectors": _reading(
        lambda draw: Answered.of(
            vectors_and_words(draw.pairs, draw.texts(draw.asked), draw.labels, _encoded(draw))
        ),
        TEXT,
        VECTORS,
    ),
    "LR, answers+vectors": _reading(_lr_on_answers_and_vectors, ANSWERS, TEXT, VECTORS),
}
"""By name, calibrant's own first."""
