"""Logistic regression for the probability of a correct answer, the baseline of FrugalGPT."""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
import pydantic
from numpy.typing import ArrayLike, NDArray

from calibrant.calibration._state import read_state, write_state
from calibrant.cascade._protocol import Answered, Assessment, BaseMethod, NoEvidence
from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.core._files import damaged_record
from calibrant.core._fingerprint import Fingerprint
from calibrant.core._prediction import Prediction
from calibrant.metrics._validation import check_binary, check_count

_KIND: Final = "learned scorer"
_VERSION: Final = 1
_STRENGTHS: Final = (0.01, 0.1, 1.0, 10.0, 100.0)  # inverse of the regularisation's, as scikit-learn's C
_FOLDS: Final = 5
_CONFIDENCE_FEATURES: Final = 5
_LEAST: Final = 1e-12
# Keeps the log-odds of certainty finite.
_CLIP: Final = 1e-6
_WORD: Final = re.compile(r"\w+")

_Positive = Annotated[float, pydantic.Field(gt=0)]


class _ConfidenceState(pydantic.BaseModel, frozen=True, allow_inf_nan=False):
    """Means and weights of the confidence features; empty lists if confidence is not used."""

    weights: list[float]
    centre: list[float]

    @pydantic.model_validator(mode="after")
    def _check_features(self) -> Self:
        if len(self.weights) != len(self.centre) or len(self.weights) not in (0, _CONFIDENCE_FEATURES):
            raise ValueError(f"{len(self.weights)} and {len(self.centre)} confidence features")
        return self


class _TextState(pydantic.BaseModel, frozen=True, allow_inf_nan=False):
    """Hashed TF-IDF of words and pairs of neighbouring words.

    With n texts, of which d hold something in a bucket, its inverse document frequency is
    ``ln((1 + n) / (1 + d)) + 1``; `rare` is that of a bucket that no text holds. Vectors have length 1.
    """

    n_buckets: Annotated[int, pydantic.Field(ge=2)]
    rare: _Positive
    buckets: list[tuple[int, _Positive, float]]  # number, frequency, weight


class _LearnedState(pydantic.BaseModel, frozen=True, allow_inf_nan=False):
    strength: float
    intercept: float
    labels: dict[str, float]
    confidence: _ConfidenceState
    text: _TextState


class LearnedScorer(BaseMethod):
    """Classifier for the probability that an answer is right, given question, label and confidence.

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
        Number of buckets that words are hashed into, at least 2.

    Attributes
    ----------
    strength_ : float
        The chosen C of scikit-learn's `LogisticRegression`.
    uses_confidence_ : bool
        True if the fitted predictions had confidences; then all that are assessed need one.

    Raises
    ------
    ConfigurationError
        `n_buckets` is no whole number of at least 2.

    References
    ----------
    .. [1] L. Chen, M. Zaharia, J. Zou, "FrugalGPT: How to Use Large Language Models While Reducing
       Cost and Improving Performance", 2023, arXiv 2305.05176.
    .. [2] K. Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009.

    Examples
    --------
    >>> from calibrant.cascade import LearnedScorer
    >>> from calibrant.core import Prediction
    >>> questions = ["the gas bill", "an odd riddle"] * 20
    >>> answers = [Prediction(label="bills")] * 40
    >>> scorer = LearnedScorer(n_buckets=64).fit(questions, answers, [1, 0] * 20)
    >>> (scorer.predict(["a gas bill", "a riddle"], answers[:2]) > 0.5).tolist()
    [True, False]
    """

    name: ClassVar[str] = "learned"
    unit: ClassVar[str] = "a probability"
    strength_: float
    uses_confidence_: bool
    _state: _LearnedState | None = None
    _frequency: dict[int, float]  # inverse document frequency of a bucket
    _weights: dict[int, float]

    def __init__(self, *, n_buckets: int = 4096) -> None:
        self.n_buckets = check_count("n_buckets", n_buckets, low=2)

    def fit(
        self,
        questions: Sequence[str],
        predictions: Sequence[Prediction],
        correct: ArrayLike,
        *,
        rng: np.random.Generator | int = 0,
    ) -> Self:
        """Fit the scorer to answers known to be right or wrong; an earlier fit is lost.

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
        confidences = [confidence_features(one) for one in predictions]
        missing = confidences.count(None)
        if 0 < missing < len(y):
            raise ConfigurationError(
                f"Expected all predictions with a confidence and a distribution, or none, got "
                f"{missing} of {len(y)} without: leave those rows out."
            )
        dense = np.array([one or () for one in confidences], dtype=np.float64)
        centre, scale = dense.mean(axis=0), dense.std(axis=0)
        # A feature that never varies tells nothing, and must not be divided by 0.
        scale[scale < 1e-12] = 1.0
        rare, frequency = _frequencies(questions, self.n_buckets)
        rows: list[dict[str, float]] = []
        for question, one, values in zip(questions, predictions, (dense - centre) / scale, strict=True):
            words = _word_values(question, self.n_buckets, frequency, rare)
            rows.append({f"word {bucket}": value for bucket, value in words.items()})
            rows[-1] |= {f"confidence {place}": float(value) for place, value in enumerate(values)}
            rows[-1][f"label {one.label}"] = 1.0
        strength, intercept, weights = _regression(rows, y, np.random.default_rng(rng))
        self._use(
            _LearnedState(
                strength=strength,
                intercept=intercept,
                labels={
                    label: weights[f"label {label}"]
                    for label in sorted({str(one.label) for one in predictions})
                },
                confidence=_ConfidenceState(
                    weights=[weights[f"confidence {place}"] / one for place, one in enumerate(scale)],
                    centre=centre.tolist(),
                ),
                text=_TextState(
                    n_buckets=self.n_buckets,
                    rare=rare,
                    buckets=[(bucket, one, weights[f"word {bucket}"]) for bucket, one in frequency.items()],
                ),
            )
        )
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
            The scorer is not fitted.
        ConfigurationError
            Different lengths, or an answer lacks its label or the confidence that the fitted ones had.
        """
        state = self._fitted()
        _check_lengths(questions, predictions)
        values = [self._probability(state, *row) for row in zip(questions, predictions, strict=True)]
        missing = values.count(None)
        if missing:
            raise ConfigurationError(
                f"Expected predictions with {self._needs()}, got {missing} of {len(values)} without: leave them out."
            )
        return np.array(values, dtype=np.float64)

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return the probability that the answer is right; `NoEvidence` if a fitted feature is missing.

        Raises
        ------
        NotFittedError
            The scorer is not fitted.
        """
        probability = self._probability(self._fitted(), answered.question, answered.prediction)
        if probability is None:
            return NoEvidence(
                reason=f"Expected a prediction with {self._needs()}, as those that were fitted, got one without: use "
                "a model that reports log-probabilities, or fit the scorer on predictions without."
            )
        return Assessment(confidence=probability, native=probability)

    def describe(self) -> dict[str, Any]:
        """Return the method's name, and a digest of the fitted parameters (None before `fit`)."""
        learned = None
        if self._state is not None:
            record = json.dumps(self._state.model_dump(), sort_keys=True)
            learned = hashlib.sha256(record.encode()).hexdigest()
        return {**super().describe(), "learned": learned}

    def save(self, path: str | Path, *, fingerprint: Fingerprint) -> None:
        """Write the fit to one JSON file, atomically and at full precision.

        Parameters
        ----------
        path : str or Path
            Of the file; an existing one is replaced. It holds weights of hashed words, no text but labels.
        fingerprint : Fingerprint
            Of the classifier that it was fitted on (`Classifier.fingerprint`); loading asks for the same.

        Raises
        ------
        NotFittedError
            The scorer is not fitted.
        StateError
            The file cannot be written.
        """
        state = self._fitted().model_dump()
        write_state(path, kind=_KIND, version=_VERSION, fingerprint=fingerprint, state=state)

    @classmethod
    def load(cls, path: str | Path, *, fingerprint: Fingerprint) -> Self:
        """Return the scorer written by `save`.

        Raises
        ------
        StateError
            The file is missing or damaged, holds something else or another version, or was fitted on
            another prompt, model, log-probability space or label set; the message names which.
        """
        record = read_state(path, kind=_KIND, version=_VERSION, fingerprint=fingerprint)
        try:
            state = _LearnedState.model_validate(record)
        except ValueError as error:
            raise damaged_record(path, error, make="fit and save it") from error
        scorer = cls(n_buckets=state.text.n_buckets)
        scorer._use(state)
        return scorer

    def _use(self, state: _LearnedState) -> None:
        self._state = state
        self._frequency = {bucket: frequency for bucket, frequency, _ in state.text.buckets}
        self._weights = {bucket: weight for bucket, _, weight in state.text.buckets}
        self.strength_ = state.strength
        self.uses_confidence_ = bool(state.confidence.weights)

    def _fitted(self) -> _LearnedState:
        if self._state is None:
            raise NotFittedError(
                "Expected a fitted LearnedScorer, got one before fit: call fit or load first."
            )
        return self._state

    def _probability(self, state: _LearnedState, question: str, prediction: Prediction) -> float | None:
        if prediction.label is None:
            return None
        values = _word_values(question, self.n_buckets, self._frequency, state.text.rare)
        score = state.intercept + math.fsum(
            self._weights.get(bucket, 0.0) * value for bucket, value in values.items()
        )
        # A label that was not seen in the fit counts as an average one.
        score += state.labels.get(prediction.label, 0.0)
        if self.uses_confidence_:
            features = confidence_features(prediction)
            if features is None:
                return None
            score += float((np.array(features) - state.confidence.centre) @ state.confidence.weights)
        # Either form alone overflows at one end.
        return 1.0 / (1.0 + math.exp(-score)) if score >= 0.0 else math.exp(score) / (1.0 + math.exp(score))

    def _needs(self) -> str:
        return "a label, a confidence and a distribution" if self.uses_confidence_ else "a label"


def _check_lengths(questions: Sequence[str], predictions: Sequence[Prediction]) -> None:
    if isinstance(questions, str) or len(questions) != len(predictions):
        raise ConfigurationError(
            f"Expected one question per prediction, got {len(questions)} for {len(predictions)}."
        )


def _check_rows(
    questions: Sequence[str], predictions: Sequence[Prediction], correct: ArrayLike
) -> NDArray[np.int_]:
    _check_lengths(questions, predictions)
    y = check_binary("correct", correct)
    if len(y) != len(predictions):
        raise ConfigurationError(
            f"Expected correct for each of {len(predictions)} predictions, got {len(y)}."
        )
    unanswered = sum(one.label is None for one in predictions)
    if unanswered:
        raise ConfigurationError(
            f"Expected predictions with a label, got {unanswered} of {len(y)} without: leave rows that failed out."
        )
    if len(np.unique(y)) < 2:
        kind = "only right ones" if y[0] else "only wrong ones"
        raise ConfigurationError(
            f"Expected right and wrong answers, got {kind} among {len(y)} rows: nothing tells them apart. Fit on more "
            "rows, or on harder ones."
        )
    return y.astype(np.int_)


def confidence_features(prediction: Prediction) -> tuple[float, ...] | None:
    """Return five features of confidence and distribution; None if a prediction lacks one of the two.

    Returns
    -------
    tuple of 5 float
        Natural logarithm and log-odds of the confidence (clipped at 1e-12, and at 1e-6 from either end),
        difference of the two highest probabilities, entropy in nats, label mass.
    """
    confidence, distribution = prediction.confidence, prediction.distribution
    if confidence is None or distribution is None:
        return None
    logprobs = distribution.logprobs
    probabilities = np.exp(logprobs)
    highest = np.sort(probabilities)[-2:]
    clipped = min(max(confidence, _CLIP), 1.0 - _CLIP)
    return (
        math.log(max(confidence, _LEAST)),
        math.log(clipped / (1.0 - clipped)),
        float(highest[-1] - highest[0]) if len(highest) == 2 else 1.0,
        float(-probabilities @ logprobs),
        distribution.label_mass,
    )


def _frequencies(texts: Sequence[str], n_buckets: int) -> tuple[float, dict[int, float]]:
    """Return the inverse document frequency of an unused hash bucket, and those of the used ones."""
    holding = Counter(bucket for text in texts for bucket in _counts(text, n_buckets))
    rare = math.log(1 + len(texts)) + 1.0
    return rare, {bucket: rare - math.log(1 + holding[bucket]) for bucket in sorted(holding)}


def _word_values(text: str, n_buckets: int, frequency: Mapping[int, float], rare: float) -> dict[int, float]:
    """Return the TF-IDF values of a text by hash bucket, scaled to unit Euclidean norm."""
    values = {
        bucket: count * frequency.get(bucket, rare) for bucket, count in _counts(text, n_buckets).items()
    }
    length = math.sqrt(math.fsum(value * value for value in values.values()))
    return {bucket: value / length for bucket, value in values.items()}


def _counts(text: str, n_buckets: int) -> Counter[int]:
    words = _WORD.findall(text.casefold())
    terms = words + [f"{one} {other}" for one, other in pairwise(words)]
    return Counter(zlib.crc32(term.encode("utf-8", "surrogatepass")) % n_buckets for term in terms)


def _regression(
    rows: Sequence[Mapping[str, float]], y: NDArray[np.int_], rng: np.random.Generator
) -> tuple[float, float, dict[str, float]]:
    """Fit a logistic regression; return C (chosen by cross-validated log-loss), intercept and weights.

    It is 1 where there are too few rows for two folds.
    """
    from sklearn.feature_extraction import DictVectorizer  # noqa: PLC0415 (heavy, and assessing needs none)
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.model_selection import GridSearchCV, PredefinedSplit  # noqa: PLC0415

    columns = DictVectorizer()
    matrix = columns.fit_transform(rows)
    model = LogisticRegression(C=1.0, max_iter=5000)
    folds = min(_FOLDS, int(np.bincount(y, minlength=2).min()))
    if folds >= 2:
        fold = np.zeros(len(y), dtype=np.int_)
        for kind in (0, 1):  # both kinds in every fold
            members = rng.permutation(np.flatnonzero(y == kind))
            fold[members] = np.arange(len(members)) % folds
        model = GridSearchCV(model, {"C": _STRENGTHS}, scoring="neg_log_loss", cv=PredefinedSplit(fold))
        model = model.fit(matrix, y).best_estimator_
    else:
        model.fit(matrix, y)
    weights = dict(zip(columns.feature_names_, model.coef_[0].tolist(), strict=True))
    return float(model.C), float(model.intercept_[0]), weights
