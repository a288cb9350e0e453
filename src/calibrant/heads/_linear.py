"""Linear model of a head on blocks of columns: log-probabilities, features, words, and an embedding model's vectors."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, Self, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._fit import FLOOR, log_losses, log_normalise
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import FloatArray, HalfArray, IndexArray, SingleArray
from calibrant.core._reported import writable
from calibrant.heads._words import Words

_PROBE: Final = "The quick brown fox jumps over 13 lazy dogs, and nobody asks why: "
_TOLERANCE: Final = 1e-3  # of a vector's length: the same model differs by less between machines
Block = Literal["labels", "features", "text", "embeddings"]
Strengths = Mapping[Block, float]
_T = TypeVar("_T")
BLOCKS: Final[tuple[Block, ...]] = get_args(Block)
# Words and pieces of words have length 1 each, so a text has the squared length 2; the other blocks have about 1.
_TEXT_SHARE: Final = 0.5
# A label counts as if it had so many rows more: one of a single row does not become as heavy as one of a hundred.
_MORE_ROWS: Final = 2.0
# Standard deviations of the Gaussian priors of an intercept, and of the weight of the scores around 1.
_INTERCEPT_SPREAD: Final = 3.0
_WEIGHT_SPREAD: Final = 10.0
_ITERATIONS: Final = 100
_ENOUGH: Final = 1e-6  # relative decrease of the loss
_SPREAD: Final = 1e-9  # relative; a column that varies less is constant
_RIDGE: Final = 1e-6  # relative
# So many features are put to length 1 in every row: the length of a long row tells outliers, and hardly a label. On
# labelled rows of seven tasks, features of 1,024 numbers: Brier score .2950 for .3036, log loss .593 for .617.
_MANY_FEATURES: Final = 32
# Up to as many rows, the regression is solved in products of rows: the same one, much faster than in words.
MOST_IN_PRODUCTS: Final = 2000
_SKETCH: Final = 64  # numbers of a sketch
_BETWEEN_WORDS: Final = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")


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

    def vectors(self, texts: Sequence[str]) -> FloatArray:
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


def unit_vectors(model: EmbeddingModel, texts: Sequence[str]) -> FloatArray:
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


def unit_rows(rows: FloatArray) -> FloatArray:
    """Return rows of length 1, shape (n, d); zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: FloatArray = rows / np.where(lengths > 0.0, lengths, 1.0)
    return units


@dataclass(frozen=True, kw_only=True)
class HeadRows:
    """Inputs of a head for n rows: log-probabilities, features, texts and embeddings.

    Attributes
    ----------
    logprobs : ndarray of shape (n, L)
        Log-probabilities of the labels, normalised, at least log(1e-12).
    features : ndarray of shape (n, d), or None
        The model's features of each text.
    texts : tuple of str, length n, or None
        The texts.
    embeddings : ndarray of shape (n, e), or None
        Their vectors, each of length 1.
    name_embeddings : ndarray of shape (L, e), or None
        The vectors of the labels' names, used in the fit.
    """

    logprobs: FloatArray
    features: FloatArray | None = None
    texts: tuple[str, ...] | None = None
    embeddings: FloatArray | None = None
    name_embeddings: FloatArray | None = None

    @classmethod
    def of(
        cls,
        logprobs: FloatArray,
        *,
        features: FloatArray | None = None,
        texts: Sequence[str] | None = None,
    ) -> Self:
        """Return rows whose log-probabilities are normalised and bounded below."""
        bounded = np.maximum(log_normalise(logprobs), FLOOR)
        return cls(logprobs=bounded, features=features, texts=None if texts is None else tuple(texts))

    def __len__(self) -> int:
        return len(self.logprobs)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of columns that the rows have; equal log-probabilities of all labels are none beside others."""
        others = (self.features, self.texts, self.embeddings)
        is_even = any(given is not None for given in others) and bool(
            (np.ptp(self.logprobs, axis=1) == 0.0).all()
        )
        columns = (None if is_even else self.logprobs, *others)
        return tuple(block for block, given in zip(BLOCKS, columns, strict=True) if given is not None)

    def take(self, places: IndexArray) -> HeadRows:
        """Return the rows at `places`."""
        return HeadRows(
            logprobs=self.logprobs[places],
            features=None if self.features is None else self.features[places],
            texts=None if self.texts is None else tuple(self.texts[place] for place in places),
            embeddings=None if self.embeddings is None else self.embeddings[places],
            name_embeddings=self.name_embeddings,
        )


@dataclass(frozen=True, kw_only=True)
class ZeroLevel:
    """Level of the probabilities that were too small to be reported, learned from labelled rows.

    Attributes
    ----------
    at_most : float
        Log-probabilities up to this one stand for zeros.
    drop : float
        By how much they are lowered, in nats, above 0.

    Examples
    --------
    >>> zeros = ZeroLevel(at_most=np.log(0.004), drop=np.log(16.0))
    >>> np.exp(zeros.lowered(np.log([[0.9975, 0.0025], [0.9, 0.1]]))).round(5)
    array([[9.9984e-01, 1.6000e-04],
           [9.0000e-01, 1.0000e-01]])
    """

    at_most: float
    drop: float

    def lowered(self, logprobs: FloatArray) -> FloatArray:
        """Return normalised log-probabilities of labels with lower zeros, shape (n, L)."""
        return log_normalise(np.where(logprobs <= self.at_most, logprobs - self.drop, logprobs))


def tempered(log_proba: FloatArray, *, temperature: float, n_rows: int) -> FloatArray:
    """Return log-probabilities after temperature, and smoothing for `n_rows` rows, shape (n, L).

    Beside those rows stands one that holds every label equally: no label is ruled out that few rows have not seen.
    """
    found = np.exp(log_normalise(log_proba / temperature))
    even = 1.0 / found.shape[1]
    smoothed: FloatArray = np.log((n_rows * found + even) / (n_rows + 1.0))
    return smoothed


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Mean, scale and coefficients of one block of columns.

    Attributes
    ----------
    mean, scale : ndarray of shape (d,)
        A column less its mean, times its scale, is what the coefficients are for; many features are put to length 1
        in every row after that.
    coefficients : ndarray of shape (d, L)
        Coefficients of each label.

    Examples
    --------
    >>> Columns(mean=np.zeros(2), scale=np.ones(2), coefficients=np.eye(2)).coefficients.shape
    (2, 2)
    """

    mean: FloatArray
    scale: FloatArray
    coefficients: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearModel:
    """Multinomial logistic regression on one or several blocks of columns.

    Blocks: ``labels``, the log-probabilities of the labels; ``features``, what the model made of the text; ``text``,
    its words (`Words`); ``embeddings``, its vector.

    Attributes
    ----------
    intercept : ndarray of shape (L,)
        Intercept of each label.
    columns : mapping of str to Columns
        The blocks but ``text``.
    words : Words or None
        The words of the block ``text``; None without it.
    word_coefficients : ndarray of shape (words, L)
        Their coefficients.
    """

    intercept: FloatArray
    columns: Mapping[Block, Columns] = field(default_factory=dict)
    words: Words | None = None
    word_coefficients: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))

    @classmethod
    def as_scored(cls, n_labels: int) -> Self:
        """Return the model that returns the log-probabilities of L labels as they are."""
        return cls(intercept=np.zeros(n_labels)).with_scores(1.0)

    def with_scores(self, weight: float) -> Self:
        """Return the model that adds `weight` times the log-probabilities of the labels to its own."""
        n_labels = len(self.intercept)
        unused = Columns(
            mean=np.zeros(n_labels),
            scale=np.ones(n_labels),
            coefficients=np.zeros((n_labels, n_labels)),
        )
        labels = self.columns.get("labels", unused)
        coefficients = labels.coefficients + np.diag(weight / labels.scale)
        return replace(
            self,
            intercept=self.intercept + weight * labels.mean,
            columns={**self.columns, "labels": replace(labels, coefficients=coefficients)},
        )

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that it has coefficients for."""
        used: set[Block] = {*self.columns}
        used |= set() if self.words is None else {"text"}
        return tuple(block for block in BLOCKS if block in used)

    def log_proba(self, rows: HeadRows) -> FloatArray:
        """Return log-probabilities of the labels, shape (n, L)."""
        scores = np.tile(self.intercept, (len(rows), 1))
        for block, column in self.columns.items():
            given = _dense(rows, block)
            if given.shape[1] != len(column.mean):
                raise ConfigurationError(
                    f"Expected {block} of {len(column.mean)} columns, as fitted, got {given.shape[1]}: use that model."
                )
            standard = _standardised(given, block, column.mean, column.scale)
            # In this thread alone: an engine beside it needs the others.
            scores += np.einsum("nd,dl->nl", standard, column.coefficients)
        if self.words is not None:
            scores += self.words.scores(_required(rows.texts), self.word_coefficients)
        return log_normalise(scores)

    def sketch(self, rows: HeadRows) -> HalfArray | None:
        """Return a random projection of what is read of the texts, shape (n, 64); None if only labels are.

        Vectors come before features, and features before words.
        """
        read: Any = None
        for block in ("embeddings", "features"):
            column = self.columns.get(block)
            if read is None and column is not None:
                standard = _standardised(_dense(rows, block), block, column.mean, column.scale)
                read = unit_rows(standard)
        if read is None and self.words is not None:
            read = self.words.transform(_required(rows.texts))
        if read is None:
            return None
        sketch: HalfArray = (read @ _signs(read.shape[1])).astype(np.float16)
        return sketch

    def to_state(self) -> dict[str, Any]:
        """Return the fitted parameters as JSON values."""
        return {
            "intercept": self.intercept.tolist(),
            "columns": {
                block: {name: numbers.tolist() for name, numbers in vars(column).items()}
                for block, column in self.columns.items()
            },
            "words": None if self.words is None else self.words.to_state(),
            "word_coefficients": [[float(f"{x:.4g}") for x in row] for row in self.word_coefficients],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, n_labels: int) -> Self:
        """Return the model of a `to_state` record over L labels.

        Raises
        ------
        AttributeError, KeyError, TypeError or ValueError
            The record is invalid.
        """
        columns: dict[Block, Columns] = {}
        for block in BLOCKS:
            if block in state["columns"]:
                columns[block] = _stored_columns(state["columns"][block], block, n_labels=n_labels)
        if columns.keys() != state["columns"].keys() or "text" in columns:
            raise ValueError("columns of an unknown block")
        words = None
        if state["words"] is not None:
            words = Words.from_state(state["words"])
        n_words = 0
        if words is not None:
            n_words = words.transform([]).shape[1]
        return cls(
            intercept=as_numbers(state["intercept"], (n_labels,)),
            columns=columns,
            words=words,
            word_coefficients=as_numbers(state["word_coefficients"], (n_words, n_labels)),
        )


@lru_cache(maxsize=4)
def _signs(width: int) -> SingleArray:
    """Return a matrix of random signs, shape (width, 64), that keeps lengths and distances, about.

    Achlioptas (2003). The bits are those of a hash, which are the same with every version of NumPy: sketches of bundles
    are compared with those of later rows.
    """
    data = hashlib.shake_256(b"calibrant sketch").digest(width * _SKETCH // 8)
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8)).reshape(width, _SKETCH)
    signs: SingleArray = (2.0 * bits - 1.0).astype(np.float32) / np.float32(_SKETCH**0.5)
    return signs


@dataclass(frozen=True, kw_only=True)
class _Taught:
    """One block of labelled rows.

    Attributes
    ----------
    matrix : array of shape (n, d), dense or sparse
        Its columns, standardised.
    scores : ndarray of shape (n, L), or None
        A score of each label, which all labels share one weight for: its log-probability, or the likeness of the text
        to its name.
    per_score : array of shape (d, L), or None
        The coefficients of the columns that give these scores, but for a constant.
    mean, scale : ndarray of shape (d,)
        How the columns were standardised; empty for words.
    """

    matrix: Any
    scores: FloatArray | None
    per_score: Any
    mean: FloatArray
    scale: FloatArray


class Design:
    """Labelled rows, made ready to fit models of any strengths on.

    The score of label j is an intercept, and for each block a weight that all labels share times a score that the block
    gives to the label (its log-probability; the likeness of the text, or of its vector, to the label's name), and
    coefficients of its own for every column. Coefficients have a Gaussian prior with mean 0 and the variance that is
    the block's strength: at 0 there are none. Labels count alike, whether they have many rows or few, or rows do.

    Parameters
    ----------
    rows : HeadRows
        Inputs of n rows.
    answers : ndarray of shape (n,) or (n, L)
        Positions of their labels, or distributions over the labels, of which every row counts alike.
    label_names : sequence of str, length L
        The labels.
    """

    def __init__(self, rows: HeadRows, answers: NDArray[Any], *, label_names: Sequence[str]) -> None:
        n_labels = len(label_names)
        self._n_labels = n_labels
        self._truth = answers if answers.ndim == 2 else np.eye(n_labels)[answers]
        self._label_weights = _label_weights(answers, n_labels)
        self._blocks: dict[Block, _Taught] = {"labels": _taught_labels(rows.logprobs)}
        self._words = Words()
        if rows.features is not None:
            mean, scale = _standard(rows.features, constant=0.0)
            matrix = _standardised(rows.features, "features", mean, scale)
            self._blocks["features"] = _Taught(
                matrix=matrix, scores=None, per_score=None, mean=mean, scale=scale
            )
        if rows.texts is not None:
            self._blocks["text"] = self._taught_words(rows.texts, [as_text(name) for name in label_names])
        if rows.embeddings is not None:
            self._blocks["embeddings"] = _taught_vectors(rows.embeddings, _required(rows.name_embeddings))
        self._products: dict[Block, FloatArray] = {}

    def _taught_words(self, texts: Sequence[str], names: Sequence[str]) -> _Taught:
        together = self._words.learn([*texts, *names])
        matrix = together[: len(texts)] * _TEXT_SHARE**0.5
        per_score = together[len(texts) :].T * _TEXT_SHARE**0.5
        scores = (matrix @ per_score).toarray()
        return _Taught(matrix=matrix, scores=scores, per_score=per_score, mean=np.zeros(0), scale=np.zeros(0))

    def model(self, strengths: Strengths, *, by_label: bool = True, score_weight: float = 0.0) -> LinearModel:
        """Return the fitted model of the blocks that have a strength, the most probable one a posteriori.

        Labels count alike; unless `by_label`, rows do. `score_weight` times the log-probabilities as they were scored
        are added to its own.
        """
        row_weights = self._label_weights if by_label else np.ones(len(self._truth))
        on = {block: taught for block, taught in self._blocks.items() if block in strengths}
        scored = {block: taught.scores for block, taught in on.items() if taught.scores is not None}
        learned = {block: float(strengths[block]) for block in on if strengths[block] > 0.0}
        weights, intercept, coefficients = self._solved_blocks(list(scored.values()), learned, row_weights)
        shared = dict(zip(scored, weights, strict=True))
        columns: dict[Block, Columns] = {}
        word_coefficients = np.zeros((0, 0))
        for block, taught in on.items():
            found = coefficients.get(block, np.zeros((taught.matrix.shape[1], self._n_labels)))
            if taught.per_score is not None:
                found = found + shared[block] * _as_dense(taught.per_score)
            if block == "text":
                word_coefficients = _rounded(found * _TEXT_SHARE**0.5)
                continue
            if block == "labels":  # the scores are the columns before they were standardised
                intercept = intercept + shared[block] * taught.mean
            columns[block] = Columns(mean=taught.mean, scale=taught.scale, coefficients=found)
        fitted = LinearModel(
            intercept=intercept,
            columns=columns,
            words=self._words if "text" in on else None,
            word_coefficients=word_coefficients,
        )
        return fitted.with_scores(score_weight) if score_weight > 0.0 else fitted

    def _solved_blocks(
        self,
        scores: Sequence[FloatArray],
        strengths: Strengths,
        row_weights: FloatArray,
    ) -> tuple[FloatArray, FloatArray, dict[Block, FloatArray]]:
        """Return weights of the scores, intercepts and coefficients, solved in products of rows or in columns."""
        matrices = {
            block: self._blocks[block].matrix * strength**0.5 for block, strength in strengths.items()
        }
        if not strengths or len(self._truth) > MOST_IN_PRODUCTS:
            weights, intercept, found = self._solved(scores, [*matrices.values()], row_weights)
            pairs = zip(strengths.items(), found, strict=True)
            return weights, intercept, {block: part * strength**0.5 for (block, strength), part in pairs}
        from scipy.linalg import solve_triangular  # noqa: PLC0415

        products = [strength * self._products_of(block) for block, strength in strengths.items()]
        root = root_of_products(np.sum(products, axis=0))
        weights, intercept, (of_root,) = self._solved(scores, [root], row_weights)
        dual = solve_triangular(root.T, of_root, lower=False)
        parts = {block: strengths[block] ** 0.5 * (matrix.T @ dual) for block, matrix in matrices.items()}
        return weights, intercept, parts

    def _products_of(self, block: Block) -> FloatArray:
        if block not in self._products:
            matrix = self._blocks[block].matrix
            self._products[block] = _as_dense(matrix @ matrix.T)
        return self._products[block]

    def _solved(
        self,
        scores: Sequence[FloatArray],
        matrices: Sequence[Any],
        row_weights: FloatArray,
    ) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """Return weights of the scores, intercepts and the coefficients of matrices, under a unit penalty."""
        from scipy.optimize import minimize  # noqa: PLC0415

        n = len(self._truth)
        n_labels = self._n_labels
        n_scores = len(scores)
        widths = [matrix.shape[1] for matrix in matrices]
        # Scores of unit size, and a start at most there: from log-probabilities of ten and more, at weight 1, the first
        # step of the search may end at weight 0, with a slope so unlike those of the coefficients that it stops there.
        sizes = np.array([_size_of(score) for score in scores])
        stacked = np.array(scores).reshape(n_scores, n * n_labels) / sizes[:, None]
        ends = np.cumsum([n_scores, n_labels, *(width * n_labels for width in widths)])
        centre = np.zeros(ends[-1])
        centre[:n_scores] = sizes
        precision = np.ones(ends[-1])
        precision[:n_scores] = (_WEIGHT_SPREAD * sizes) ** -2
        precision[n_scores : ends[1]] = _INTERCEPT_SPREAD**-2
        start = np.minimum(centre, 1.0)

        def loss(parameters: FloatArray) -> tuple[float, FloatArray]:
            weights, intercept, *parts = np.split(parameters, ends[:-1])
            fitted = (weights @ stacked).reshape(n, n_labels) + intercept
            for matrix, part in zip(matrices, parts, strict=True):
                fitted += matrix @ part.reshape(-1, n_labels)
            log_p = log_normalise(fitted)
            errors = row_weights[:, None] * (np.exp(log_p) - self._truth)
            slopes = [stacked @ errors.ravel(), errors.sum(axis=0)]
            slopes += [(matrix.T @ errors).ravel() for matrix in matrices]
            away = parameters - centre
            value = float(row_weights @ log_losses(log_p, self._truth)) + 0.5 * float(precision @ away**2)
            return value, np.concatenate(slopes) + precision * away

        bounds = [(0.0, None)] * n_scores + [(None, None)] * (len(centre) - n_scores)
        options = {"maxiter": _ITERATIONS, "ftol": _ENOUGH}
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
        weights, intercept, *parts = np.split(found, ends[:-1])
        return weights / sizes, intercept, [part.reshape(-1, n_labels) for part in parts]


def _size_of(scores: FloatArray) -> float:
    """Return the root mean square of scores about the mean of their row; 1 where they do not differ."""
    about_mean = scores - scores.mean(axis=1, keepdims=True)
    return float(np.sqrt((about_mean**2).mean())) or 1.0


def _label_weights(answers: NDArray[Any], n_labels: int) -> FloatArray:
    """Return weights of rows by which labels count alike, n in all; of distributions every row counts alike."""
    if answers.ndim == 2:
        return np.ones(len(answers))
    counts = np.bincount(answers, minlength=n_labels) + _MORE_ROWS
    weights = 1.0 / counts[answers]
    alike: FloatArray = weights * (len(answers) / weights.sum())
    return alike


def root_of_products(products: FloatArray) -> FloatArray:
    """Return a lower triangle R with R R' = products of rows, shape (n, n).

    Regression on R is regression on the columns X, with the same penalty: its coefficients c become X' d, R' d = c.
    """
    n = len(products)
    ridge = _RIDGE * np.trace(products) / n + 1e-12  # like rows have a root, too
    root: FloatArray = np.linalg.cholesky(products + ridge * np.eye(n))
    return root


def _taught_labels(logprobs: FloatArray) -> _Taught:
    mean, scale = _standard(logprobs, constant=1.0)
    standard = (logprobs - mean) * scale
    return _Taught(matrix=standard, scores=logprobs, per_score=np.diag(1.0 / scale), mean=mean, scale=scale)


def _taught_vectors(vectors: FloatArray, names: FloatArray) -> _Taught:
    width = vectors.shape[1]
    return _Taught(
        matrix=vectors,
        scores=vectors @ names.T,
        per_score=names.T,
        mean=np.zeros(width),
        scale=np.ones(width),
    )


def _standard(given: FloatArray, *, constant: float) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the factor of each column, after which a row has the squared length 1 on average.

    A column that does not vary gets the factor `constant`.
    """
    mean = given.mean(axis=0)
    spread = given.std(axis=0)
    varies = spread > _SPREAD * np.maximum(1.0, np.abs(mean))
    scale = 1.0 / (np.where(varies, spread, 1.0) * max(given.shape[1], 1) ** 0.5)
    return mean, np.where(varies, scale, constant)


def _standardised(given: FloatArray, block: Block, mean: FloatArray, scale: FloatArray) -> FloatArray:
    standard: FloatArray = (given - mean) * scale
    if block == "features" and standard.shape[1] >= _MANY_FEATURES:
        return unit_rows(standard)
    return standard


def _as_dense(matrix: Any) -> FloatArray:  # noqa: ANN401 (a matrix, dense or sparse)
    found: FloatArray = matrix
    if not isinstance(matrix, np.ndarray):
        found = matrix.toarray()
    return found


def _stored_columns(stored: Mapping[str, Any], block: Block, *, n_labels: int) -> Columns:
    width = n_labels if block == "labels" else len(stored["mean"])
    shapes = {"mean": (width,), "scale": (width,), "coefficients": (width, n_labels)}
    return Columns(**{name: as_numbers(stored[name], shape) for name, shape in shapes.items()})


def _rounded(values: FloatArray) -> FloatArray:
    """Return values rounded to four significant digits, which makes files much smaller."""
    sizes = np.where(values == 0.0, 1.0, np.abs(values))
    scale = 10.0 ** (3.0 - np.floor(np.log10(sizes)))
    rounded: FloatArray = np.round(values * scale) / scale
    return rounded


def as_text(name: str) -> str:
    """Return a label's name with spaces between its words: `card_arrival` becomes `card arrival`."""
    return _BETWEEN_WORDS.sub(" ", name)


def as_numbers(stored: object, shape: tuple[int, ...]) -> FloatArray:
    """Return stored numbers as floats; TypeError or ValueError unless they are finite and of `shape`."""
    try:
        found = np.asarray(stored, dtype=np.float64)
    except OverflowError as error:  # a whole number that no float holds
        raise ValueError(str(error)) from error
    if 0 in shape and found.size == 0:
        found = found.reshape(shape)
    if found.shape != shape or not np.isfinite(found).all():
        raise ValueError(f"expected numbers of shape {shape}, got {found.shape}")
    return found


def _dense(rows: HeadRows, block: Block) -> FloatArray:
    if block == "labels":
        return rows.logprobs
    return _required(rows.features if block == "features" else rows.embeddings)


def _required(value: _T | None) -> _T:
    if value is None:
        raise TypeError("a block of columns is missing")
    return value
