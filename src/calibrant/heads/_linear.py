"""Multinomial logistic regression on log-probabilities, features and words."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._losses import log_normalise
from calibrant.calibration._scaling import FLOOR
from calibrant.core._errors import ConfigurationError
from calibrant.core._reported import writable

Block = Literal["labels", "features", "text", "embeddings"]
_T = TypeVar("_T")

# scikit-learn's C, and how large a standardised column is beside a text, whose words have length 1: a column's
# penalty is that of C times the square. Found on rows of the shared tasks that no figure is reported on.
_C: Final = 10.0
_SCALE: Final = {"labels": 0.1, "features": 0.03}
_ITERATIONS: Final = 2000
# As many rows the name of a label is worth; found in the same way, as is that labels count alike.
_NAME: Final = 2.0
# Up to as many texts, their words are replaced by coordinates among the texts: the same regression, much faster.
_MOST_IN_SPAN: Final = 2000
_BETWEEN_WORDS: Final = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")


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

    logprobs: NDArray[np.float64]
    features: NDArray[np.float64] | None = None
    texts: tuple[str, ...] | None = None
    embeddings: NDArray[np.float64] | None = None
    name_embeddings: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls,
        logprobs: NDArray[np.float64],
        *,
        features: NDArray[np.float64] | None = None,
        texts: Sequence[str] | None = None,
    ) -> Self:
        """Return rows whose log-probabilities are normalised and bounded below."""
        bounded = np.maximum(log_normalise(logprobs), FLOOR)
        return cls(logprobs=bounded, features=features, texts=None if texts is None else tuple(texts))

    def __len__(self) -> int:
        return len(self.logprobs)

    def take(self, places: NDArray[np.intp]) -> HeadRows:
        """Return the rows at `places`."""
        return HeadRows(
            logprobs=self.logprobs[places],
            features=None if self.features is None else self.features[places],
            texts=None if self.texts is None else tuple(self.texts[place] for place in places),
            embeddings=None if self.embeddings is None else self.embeddings[places],
            name_embeddings=self.name_embeddings,
        )


def tempered(log_proba: NDArray[np.float64], *, temperature: float, n_rows: int) -> NDArray[np.float64]:
    """Return log-probabilities after temperature, and smoothing for `n_rows` rows, shape (n, L).

    Beside those rows stands one that holds every label equally: no label is ruled out that few rows have not seen.
    """
    found = np.exp(log_normalise(log_proba / temperature))
    smoothed: NDArray[np.float64] = np.log((n_rows * found + 1.0 / found.shape[1]) / (n_rows + 1.0))
    return smoothed


@dataclass(frozen=True, kw_only=True)
class _Column:
    """Mean, scale and coefficients of one block of dense columns."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    coefficients: NDArray[np.float64]


class Words:
    """TF-IDF features of words, of word pairs, and of two to four characters inside words.

    A word that occurs ``k`` times in a text weighs ``1 + log(k)`` times its inverse document frequency; each of the
    two kinds has length 1 in every text (scikit-learn's `TfidfVectorizer` with ``sublinear_tf=True``).
    """

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - takes half a second

        self._vectorizers = (
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True),
        )
        self._used: tuple[int, ...] = ()
        self._span: tuple[Any, NDArray[np.float64]] | None = None

    def learn(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Fit the TF-IDF features on `texts` and return them, shape (n, words)."""
        texts = [writable(text) for text in texts]
        used = []
        for place, vectorizer in enumerate(self._vectorizers):
            try:
                vectorizer.fit(texts)
            except ValueError:  # no text holds a word
                continue
            used.append(place)
        self._used = tuple(used)
        return self.transform(texts)

    def fit(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a matrix, dense or sparse)
        """Fit the TF-IDF features and return the matrix to fit a linear model on, shape (n, r).

        For few texts its columns are orthogonal directions in which the texts differ: a linear model with a quadratic
        penalty is the same in them as in the words themselves.
        """
        words = self.learn(texts)
        if not self._used or len(texts) > _MOST_IN_SPAN:
            return words
        gram = (words @ words.T).toarray()
        squares, directions = np.linalg.eigh(gram)
        kept = squares > 1e-9 * squares.max()
        lengths = np.sqrt(squares[kept])
        # The product is taken in `weights`: words times texts are too many numbers to keep.
        self._span = words, directions[:, kept] / lengths
        return directions[:, kept] * lengths

    def weights(self, fitted: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coefficients of the words, shape (words, L), from those of the columns of `fit`."""
        if self._span is None:
            return fitted
        (words, directions), self._span = self._span, None
        found: NDArray[np.float64] = words.T @ (directions @ fitted)
        return found

    def transform(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 (a sparse matrix)
        """Return the TF-IDF features of `texts`, shape (n, words)."""
        from scipy.sparse import csr_array, hstack  # noqa: PLC0415

        if not self._used or len(texts) == 0:
            return csr_array((len(texts), sum(len(self._vectorizers[place].idf_) for place in self._used)))
        texts = [writable(text) for text in texts]
        return hstack([self._vectorizers[place].transform(texts) for place in self._used], format="csr")

    def to_state(self) -> dict[str, Any]:
        """Return the words and their inverse document frequencies as JSON values."""
        return {
            str(place): {
                "words": self._vectorizers[place].get_feature_names_out().tolist(),
                "idf": self._vectorizers[place].idf_.tolist(),
            }
            for place in self._used
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the features of a `to_state` record; KeyError, TypeError or ValueError if invalid."""
        words = cls()
        if not set(state) <= {str(place) for place in range(len(words._vectorizers))}:
            raise ValueError("words of an unknown kind")
        words._used = tuple(sorted(map(int, state)))
        for place in words._used:
            vectorizer, stored = words._vectorizers[place], state[str(place)]
            idf = np.asarray(stored["idf"], dtype=np.float64)
            found = stored["words"]
            if not isinstance(found, list) or idf.shape != (len(found),) or not np.isfinite(idf).all():
                raise ValueError("a frequency for each word is missing")
            vectorizer.vocabulary = {str(word): column for column, word in enumerate(found)}
            vectorizer.idf_ = idf
        return words


class LinearModel:
    """Multinomial logistic regression on one or several blocks of columns.

    Blocks: ``labels``, the log-probabilities of the labels; ``features``, what the model made of the text; ``text``,
    its words (`Words`); ``embeddings``, its vector.

    Parameters
    ----------
    blocks : sequence of {"labels", "features", "text", "embeddings"}
        The columns.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = tuple(blocks)
        self._columns: dict[str, _Column] = {}
        self._words: Words | None = None
        self._word_coefficients = np.zeros((0, 0))
        self._intercept = np.zeros(0)
        self._seen_labels: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def fit(self, rows: HeadRows, answers: NDArray[np.intp], *, names: Sequence[str] | None = None) -> Self:
        """Fit the model on labelled rows, and on the names of the labels if they are given.

        Parameters
        ----------
        rows : HeadRows
            Inputs of n rows.
        answers : ndarray of int, shape (n,)
            Positions of their labels.
        names : sequence of str, length L, optional
            The labels. With them, labels count alike whether they have many rows or few, and a model that looks at the
            text takes the name of a label for one more text of it, of which nothing else is known.
        """
        from scipy.sparse import hstack, issparse  # noqa: PLC0415

        added = [] if names is None or "text" not in self.blocks else [as_text(name) for name in names]
        taught = np.concatenate([answers, np.arange(len(added))])
        self._seen_labels, targets = np.unique(taught, return_inverse=True)
        widths, matrices = [], []
        standard: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for block in self.blocks:
            if block == "text":
                self._words = Words()
                matrix = self._words.fit([*_required(rows.texts), *added])
            else:
                given = _dense(rows, block)
                mean, scale = standard[block] = _standard(given, block)
                names_too = np.tile(mean, (len(added), 1))  # as the mean row
                if added and block == "embeddings":
                    names_too = _required(rows.name_embeddings)
                matrix = (np.vstack([given, names_too]) - mean) * scale
            widths.append(matrix.shape[1])
            matrices.append(matrix)
        together = hstack(matrices, format="csr") if any(map(issparse, matrices)) else np.hstack(matrices)
        weights = np.ones(len(taught)) if names is None else _balanced(answers, targets, len(added))
        coefficients, self._intercept = _regression(together, targets, weights)
        parts = np.split(coefficients, np.cumsum(widths)[:-1])
        for block, part in zip(self.blocks, parts, strict=True):
            if block == "text":
                self._word_coefficients = _rounded(_required(self._words).weights(part))
            else:
                mean, scale = standard[block]
                self._columns[block] = _Column(mean=mean, scale=scale, coefficients=part)
        return self

    def log_proba(self, rows: HeadRows) -> NDArray[np.float64]:
        """Return log-probabilities of the labels, shape (n, L); -inf for labels absent from the fit."""
        scores = np.tile(self._intercept, (len(rows), 1))
        for block, column in self._columns.items():
            given = _dense(rows, block)
            if given.shape[1] != len(column.mean):
                raise ConfigurationError(
                    f"Expected {block} of {len(column.mean)} columns, as fitted, got {given.shape[1]}: use that model."
                )
            standard = (given - column.mean) * column.scale
            # In this thread alone: an engine beside it needs the others.
            scores += np.einsum("nd,dl->nl", standard, column.coefficients)
        if self._words is not None:
            scores += self._words.transform(_required(rows.texts)) @ self._word_coefficients
        found = np.full(rows.logprobs.shape, -np.inf)
        found[:, self._seen_labels] = log_normalise(scores)
        return found

    def to_state(self) -> dict[str, Any]:
        """Return the fitted parameters as JSON values."""
        return {
            "blocks": list(self.blocks),
            "seen": self._seen_labels.tolist(),
            "intercept": self._intercept.tolist(),
            "columns": {
                block: {name: numbers.tolist() for name, numbers in vars(column).items()}
                for block, column in self._columns.items()
            },
            "words": None if self._words is None else self._words.to_state(),
            "word_coefficients": [[float(f"{x:.4g}") for x in row] for row in self._word_coefficients],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, n_labels: int) -> Self:
        """Return the model of a `to_state` record over L labels.

        Raises
        ------
        AttributeError, KeyError, TypeError or ValueError
            The record is invalid.
        """
        model = cls(state["blocks"])
        dense = [block for block in model.blocks if block != "text"]
        if (
            sorted(dense) != sorted(state["columns"].keys())
            or not set(dense) <= {*_SCALE, "embeddings"}
            or len(set(model.blocks)) < len(model.blocks)
        ):
            raise ValueError("columns do not go with the blocks")
        seen = np.asarray(state["seen"])
        if seen.dtype.kind != "i" or not np.isin(seen, range(n_labels)).all() or (np.diff(seen) <= 0).any():
            raise ValueError("labels out of range or out of order")
        model._seen_labels, n_seen = seen.astype(np.intp), len(seen)
        model._intercept = as_numbers(state["intercept"], (n_seen,))
        for block in dense:
            stored = state["columns"][block]
            width = n_labels if block == "labels" else len(stored["mean"])
            shapes = {"mean": (width,), "scale": (width,), "coefficients": (width, n_seen)}
            columns = {name: as_numbers(stored[name], shape) for name, shape in shapes.items()}
            model._columns[block] = _Column(**columns)
        n_words = 0
        if ("text" in model.blocks) != (state["words"] is not None):
            raise ValueError("words do not go with the blocks")
        if state["words"] is not None:
            model._words = Words.from_state(state["words"])
            n_words = model._words.transform([]).shape[1]
        model._word_coefficients = as_numbers(state["word_coefficients"], (n_words, n_seen))
        return model


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values rounded to four significant digits, which makes files much smaller."""
    scale = 10.0 ** (3.0 - np.floor(np.log10(np.where(values == 0.0, 1.0, np.abs(values)))))
    rounded: NDArray[np.float64] = np.round(values * scale) / scale
    return rounded


def as_text(name: str) -> str:
    """Return a label's name with spaces between its words: `card_arrival` becomes `card arrival`."""
    return _BETWEEN_WORDS.sub(" ", name)


def _balanced(answers: NDArray[np.intp], targets: NDArray[np.intp], n_names: int) -> NDArray[np.float64]:
    """Return weights, of rows and then of label names, with the same sum for each label.

    Without names, each label counts as if it had more rows by as many as a name is worth: a label of one row does not
    become as heavy as one of a hundred.
    """
    weights = np.concatenate([np.ones(len(answers)), np.full(n_names, _NAME)])
    totals = np.bincount(targets[: len(answers)], minlength=int(targets.max()) + 1) + _NAME
    balanced = weights / totals[targets]
    found: NDArray[np.float64] = balanced * (weights.sum() / balanced.sum())
    return found


def _regression(
    columns: Any,  # noqa: ANN401 (a matrix, dense or sparse)
    targets: NDArray[np.intp],
    weights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit the regression; return coefficients (columns, seen labels) and intercepts (seen labels,)."""
    width, n_seen = columns.shape[1], int(targets.max()) + 1
    if n_seen < 2 or width == 0:
        counts = np.bincount(targets, weights=weights)
        return np.zeros((width, n_seen)), np.log(counts)
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    with warnings.catch_warnings():
        # Near the optimum is near enough, and labels may have one row each.
        warnings.simplefilter("ignore", UserWarning)
        found = LogisticRegression(C=_C, max_iter=_ITERATIONS).fit(columns, targets, sample_weight=weights)
    if n_seen == 2:  # one row of coefficients, of the second label against the first
        return np.vstack([0.0 * found.coef_, found.coef_]).T, np.array([0.0, float(found.intercept_[0])])
    return found.coef_.T.copy(), found.intercept_.copy()


def as_numbers(stored: object, shape: tuple[int, ...]) -> NDArray[np.float64]:
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


def _standard(given: NDArray[np.float64], block: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the factor that standardise each column of a block."""
    if block == "embeddings":
        # Of length 1, as the words and the pieces of words are; half of that and twice were no better on training rows.
        return np.zeros(given.shape[1]), np.ones(given.shape[1])
    spread = given.std(axis=0)
    return given.mean(axis=0), _SCALE[block] / np.where(spread > 1e-9, spread, np.inf)


def _dense(rows: HeadRows, block: str) -> NDArray[np.float64]:
    if block == "labels":
        return rows.logprobs
    return _required(rows.features if block == "features" else rows.embeddings)


def _required(value: _T | None) -> _T:
    if value is None:
        raise TypeError("a block of columns is missing")
    return value
