"""A scorer that learned on validation rows which answers are right: the baseline of FrugalGPT."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._state import read_state, write_state
from calibrant.cascade._checks import check_share, is_count
from calibrant.cascade._protocol import Answered, Assessment, NoEvidence
from calibrant.cascade.methods._features import CONFIDENCE_FEATURES, TextWeights, confidence_features
from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.core._files import damaged_record
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import Prediction

_KIND: Final = "learned scorer"
_VERSION: Final = 1
_STRENGTHS: Final = (0.01, 0.1, 1.0, 10.0, 100.0)  # inverse of the regularisation's, as scikit-learn's C
_FOLDS: Final = 5


class LearnedScorer:
    """The probability that an answer is right, learned from question, label and confidence.

    FrugalGPT [1]_ escalates when a learned score of question and answer is low. Here that score is a
    logistic regression, by scikit-learn, on the words of the question (unigrams and bigrams, hashed,
    TF-IDF [2]_), the predicted label, and, where predictions have them, the confidence's logarithm
    and log-odds, the margin between the two most probable labels, the entropy of the distribution
    and its label mass. The strength of the L2 penalty is chosen by log-loss in five-fold
    cross-validation. Assessing needs no scikit-learn.

    Fit it on validation rows of the models it will assess, never on those that thresholds are
    reported on. The native unit is the probability. The default threshold is 0.7, as for the other
    methods whose confidence reads as the chance of being right.

    Parameters
    ----------
    n_buckets : int, default 4096
        What words are hashed into, at least 2.

    Attributes
    ----------
    strength_ : float
        The chosen C of scikit-learn's `LogisticRegression`.
    uses_confidence_ : bool
        Whether the fitted predictions had confidences; then all that are assessed need one.

    Raises
    ------
    ConfigurationError
        `n_buckets` is no whole number of at least 2.

    References
    ----------
    .. [1] L. Chen, M. Zaharia, J. Zou, "FrugalGPT: How to Use Large Language Models While Reducing
       Cost and Improving Performance", 2023, arXiv 2305.05176.
    .. [2] K. Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009.
    """

    name: ClassVar[str] = "learned"
    default_threshold: ClassVar[float] = 0.7
    top_logprobs: ClassVar[int] = 0
    needs_tokens: ClassVar[bool] = False
    strength_: float
    uses_confidence_: bool
    _text: TextWeights
    _labels: dict[str, float]
    _dense: NDArray[np.float64]  # weights of the confidence features, shape (F,) or (0,)
    _centre: NDArray[np.float64]
    _intercept: float

    def __init__(self, *, n_buckets: int = 4096) -> None:
        if not is_count(n_buckets, low=2):
            raise ConfigurationError(
                f"Expected n_buckets to be a whole number of at least 2, got {n_buckets!r}."
            )
        self.n_buckets = n_buckets

    def fit(
        self,
        questions: Sequence[str],
        predictions: Sequence[Prediction],
        correct: ArrayLike,
        *,
        rng: np.random.Generator | int = 0,
    ) -> Self:
        """Learn which answers are right; forget what was learned before.

        Parameters
        ----------
        questions : sequence of str, length n
            The texts.
        predictions : sequence of Prediction, length n
            Their answers. All have a label; all have a confidence and a distribution, or none has.
        correct : array-like of 0/1, shape (n,)
            Whether each answer is right; both kinds must occur.
        rng : numpy Generator or int, default 0
            Draws the folds of the cross-validation.

        Raises
        ------
        ConfigurationError
            No rows, different lengths, answers without label, some of them without confidence, or all
            rows right or all wrong.
        """
        y = _check_rows(questions, predictions, correct)
        with_confidence = [confidence_features(one) is not None for one in predictions]
        if any(with_confidence) and not all(with_confidence):
            raise ConfigurationError(
                f"Expected all predictions with a confidence and a distribution, or none, got "
                f"{len(y) - sum(with_confidence)} of {len(y)} without: leave those rows out."
            )
        dense = np.array([confidence_features(one) or () for one in predictions], dtype=np.float64)
        centre = dense.mean(axis=0)
        scale = dense.std(axis=0)
        scale[scale < 1e-12] = 1.0
        text = TextWeights.of(questions, n_buckets=self.n_buckets)
        labels = sorted({str(one.label) for one in predictions})
        matrix = _design(text, questions, predictions, labels, (dense - centre) / scale)
        self.strength_ = _choose_strength(matrix, y, np.random.default_rng(rng))
        model = _regression(self.strength_).fit(matrix, y)
        weights = model.coef_[0]
        n_dense = dense.shape[1]
        self._dense = weights[:n_dense] / scale
        self._centre = centre
        self._labels = dict(zip(labels, weights[n_dense : n_dense + len(labels)].tolist(), strict=True))
        self._text = text.weighted(weights[n_dense + len(labels) :])
        self._intercept = float(model.intercept_[0])
        self.uses_confidence_ = n_dense > 0
        return self

    def predict(self, questions: Sequence[str], predictions: Sequence[Prediction]) -> NDArray[np.float64]:
        """Return the probability that each answer is right, in [0, 1], shape (n,).

        Parameters
        ----------
        questions : sequence of str, length n
            The texts.
        predictions : sequence of Prediction, length n
            Their answers.

        Raises
        ------
        NotFittedError
            Nothing was learned yet.
        ConfigurationError
            Different lengths, or an answer lacks its label or the confidence that the fitted ones had.
        """
        self._require_fitted("predict")
        _check_lengths(questions, predictions)
        found = [
            self._probability(question, one) for question, one in zip(questions, predictions, strict=True)
        ]
        missing = sum(value is None for value in found)
        if missing:
            raise ConfigurationError(
                f"Expected predictions with {self._needs()}, got {missing} of {len(found)} without: leave them out."
            )
        return np.array(found, dtype=np.float64)

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the probability that the answer is right; no evidence where what was fitted is missing.

        Raises
        ------
        NotFittedError
            Nothing was learned yet.
        """
        self._require_fitted("assess")
        probability = self._probability(answered.question, answered.prediction)
        if probability is None:
            return NoEvidence(
                reason=f"Expected a prediction with {self._needs()}, as those that were fitted, got one without: use "
                "a model that reports log-probabilities, or fit the scorer on predictions without."
            )
        return Assessment(confidence=probability, native=probability)

    def to_confidence(self, native: float) -> float:
        """Return a probability as it is.

        Raises
        ------
        ConfigurationError
            It is not in [0, 1].
        """
        return check_share("a probability", native)

    def describe(self) -> Mapping[str, Any]:
        """Return the method's name and a digest of what was learned; None where nothing was."""
        learned = None
        if self._is_fitted():
            learned = hashlib.sha256(json.dumps(self._to_record(), sort_keys=True).encode()).hexdigest()
        return {"method": self.name, "learned": learned}

    def close(self) -> None:
        """Nothing is held."""

    def save(self, path: str | Path, *, fingerprint: Fingerprint) -> None:
        """Write what was learned to one JSON file, atomically and at full precision.

        Parameters
        ----------
        path : str or Path
            Where to; an existing file is replaced. It holds weights of hashed words, no text but labels.
        fingerprint : Fingerprint
            What it was fitted on (`Classifier.fingerprint`); loading asks for the same.

        Raises
        ------
        NotFittedError
            There is nothing to save yet.
        StateError
            The file cannot be written.
        """
        self._require_fitted("save")
        write_state(path, kind=_KIND, version=_VERSION, fingerprint=fingerprint, state=self._to_record())

    @classmethod
    def load(cls, path: str | Path, *, fingerprint: Fingerprint) -> Self:
        """Return the scorer written by `save`.

        Raises
        ------
        StateError
            The file is missing or damaged, holds something else or another version, or was fitted on
            another prompt, model, log-probability space or label set; the message names which.
        """
        state = read_state(path, kind=_KIND, version=_VERSION, fingerprint=fingerprint)
        try:
            return cls._from_record(state)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged_record(path, error, make="fit and save it") from error

    def _probability(self, question: str, prediction: Prediction) -> float | None:
        if prediction.label is None:
            return None
        score = self._intercept + self._text.score(question) + self._labels.get(prediction.label, 0.0)
        if self.uses_confidence_:
            features = confidence_features(prediction)
            if features is None:
                return None
            score += float((np.array(features) - self._centre) @ self._dense)
        # Either form alone overflows at one end.
        return 1.0 / (1.0 + math.exp(-score)) if score >= 0.0 else math.exp(score) / (1.0 + math.exp(score))

    def _needs(self) -> str:
        return "a label, a confidence and a distribution" if self.uses_confidence_ else "a label"

    def _is_fitted(self) -> bool:
        return hasattr(self, "_intercept")

    def _require_fitted(self, what: str) -> None:
        if not self._is_fitted():
            raise NotFittedError(
                f"Expected a fitted LearnedScorer, got {what} before fit: call fit or load first."
            )

    def _to_record(self) -> dict[str, Any]:
        return {
            "strength": self.strength_,
            "intercept": self._intercept,
            "labels": self._labels,
            "confidence": {"weights": self._dense.tolist(), "centre": self._centre.tolist()},
            "text": self._text.to_record(),
        }

    @classmethod
    def _from_record(cls, record: Mapping[str, Any]) -> Self:
        text = TextWeights.from_record(record["text"])
        scorer = cls(n_buckets=text.n_buckets)
        scorer._text = text
        scorer.strength_ = _finite(record["strength"])
        scorer._labels = {str(label): _finite(weight) for label, weight in dict(record["labels"]).items()}
        scorer._dense, scorer._centre = (
            np.array([_finite(value) for value in record["confidence"][name]], dtype=np.float64)
            for name in ("weights", "centre")
        )
        if scorer._dense.shape != scorer._centre.shape or len(scorer._dense) not in (0, CONFIDENCE_FEATURES):
            raise ValueError(f"{len(scorer._dense)} and {len(scorer._centre)} confidence features")
        scorer.uses_confidence_ = len(scorer._dense) > 0
        scorer._intercept = _finite(record["intercept"])
        return scorer


def _finite(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number


def _check_lengths(questions: Sequence[str], predictions: Sequence[Prediction]) -> None:
    if isinstance(questions, str) or len(questions) != len(predictions):
        raise ConfigurationError(
            f"Expected one question per prediction, got {len(questions)} for {len(predictions)}."
        )


def _check_rows(
    questions: Sequence[str], predictions: Sequence[Prediction], correct: ArrayLike
) -> NDArray[np.int_]:
    _check_lengths(questions, predictions)
    y = np.asarray(correct)
    if y.shape != (len(predictions),) or not np.isin(y, (0, 1)).all():
        raise ConfigurationError(
            f"Expected correct to hold 0 or 1 for each of {len(predictions)} predictions, got shape {y.shape} and "
            f"values such as {y.ravel()[:3].tolist()}."
        )
    unanswered = sum(one.label is None for one in predictions)
    if unanswered:
        raise ConfigurationError(
            f"Expected predictions with a label, got {unanswered} of {len(y)} without: leave rows that failed out."
        )
    if len(set(y.tolist())) < 2:
        kind = "none" if not len(y) else "only right ones" if y[0] else "only wrong ones"
        raise ConfigurationError(
            f"Expected right and wrong answers, got {kind} among {len(y)} rows: nothing tells them apart. Fit on more "
            "rows, or on harder ones."
        )
    return y.astype(np.int_)


def _design(
    text: TextWeights,
    questions: Sequence[str],
    predictions: Sequence[Prediction],
    labels: Sequence[str],
    dense: NDArray[np.float64],
) -> Any:  # noqa: ANN401 (a scipy matrix)
    """Return the features of all rows: confidence, label, words."""
    from scipy.sparse import csr_array, hstack  # noqa: PLC0415 (heavy)

    n = len(questions)
    columns = {label: number for number, label in enumerate(labels)}
    rows = [text.features(question) for question in questions]
    words = csr_array(
        (
            np.array([value for row in rows for value in row.values()], dtype=np.float64),
            np.array([bucket for row in rows for bucket in row], dtype=np.int32),
            np.cumsum([0, *map(len, rows)]),
        ),
        shape=(n, text.n_buckets),
    )
    one_hot = csr_array(
        (np.ones(n), (np.arange(n), [columns[str(one.label)] for one in predictions])), shape=(n, len(labels))
    )
    return hstack([csr_array(dense), one_hot, words], format="csr")


def _regression(strength: float) -> Any:  # noqa: ANN401 (sklearn has no types)
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 (heavy)

    return LogisticRegression(C=strength, max_iter=5000)


def _choose_strength(matrix: Any, y: NDArray[np.int_], rng: np.random.Generator) -> float:  # noqa: ANN401
    """Return the C of least log-loss on held-out folds; 1 where there are too few rows for two folds."""
    folds = min(_FOLDS, int(np.bincount(y, minlength=2).min()))
    if folds < 2:
        return 1.0
    fold = np.zeros(len(y), dtype=np.int_)
    for kind in (0, 1):  # both kinds in every fold
        members = rng.permutation(np.flatnonzero(y == kind))
        fold[members] = np.arange(len(members)) % folds
    losses = [
        sum(_held_out_loss(matrix, y, fold == number, strength) for number in range(folds))
        for strength in _STRENGTHS
    ]
    return _STRENGTHS[int(np.argmin(losses))]


def _held_out_loss(matrix: Any, y: NDArray[np.int_], out: NDArray[np.bool_], strength: float) -> float:  # noqa: ANN401
    model = _regression(strength).fit(matrix[~out], y[~out])
    logprobs = model.predict_log_proba(matrix[out])
    return float(-np.maximum(logprobs[np.arange(out.sum()), y[out]], -100.0).sum())
