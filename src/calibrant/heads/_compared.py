"""Baselines that need no language model, and the comparison of a classifier with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from calibrant.core._errors import ConfigurationError, NotFittedError
from calibrant.core._files import Recorded
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import FloatArray, IndexArray, Interval
from calibrant.core._rows import Example
from calibrant.heads._head import check_texts
from calibrant.heads._linear import MOST_IN_PRODUCTS, as_text, root_of_products, tempered, unit_rows
from calibrant.heads._words import Words
from calibrant.metrics._classification import AnsweredLabels, ClassificationSummary
from calibrant.metrics._intervals import PairedComparison, paired_comparison, wilson_interval
from calibrant.metrics._structure import CompositeMetrics, answer_summary
from calibrant.metrics._validation import check_answers

# Share of rows without a label above which an evaluation tells of a fault, not of the task.
_MOST_WITHOUT_LABEL: Final = 0.1
# scikit-learn's C and as many rows as the name of a label is worth, found on training rows of the shared tasks.
_C: Final = 10.0
_NAME: Final = 2.0
_ITERATIONS: Final = 2000

TFIDF: Final = "TF-IDF"
EMBEDDINGS: Final = "embeddings"
"""Name of the baseline that learns from vectors of the texts."""


class TextBaseline:
    """Classifier on the words of texts, TF-IDF and logistic regression, without a language model.

    Words and pairs of words, and pieces of words of two to four characters, both weighted as scikit-learn's
    `TfidfVectorizer` does with ``sublinear_tf=True``; `LogisticRegression` with ``C=10``. Labels count alike, whether
    they have many rows or few, and the name of each label is two more rows of it. A label that no row
    has keeps a small probability.

    Attributes
    ----------
    labels_ : LabelSet
        The labels.

    Examples
    --------
    >>> baseline = TextBaseline().fit(["good film", "bad film"], [1, 0], labels=["negative", "positive"])
    >>> baseline.predict(["a good one"])
    ['positive']
    """

    labels_: LabelSet

    def fit(self, texts: Sequence[str], answers: ArrayLike, *, labels: LabelSet | Sequence[str]) -> Self:
        """Fit the classifier on labelled texts.

        Parameters
        ----------
        texts : sequence of str, length n >= 1
            The texts.
        answers : array-like of int, shape (n,)
            Position of the true label of each text, in [0, L).
        labels : LabelSet or sequence of str, length L
            The labels.

        Raises
        ------
        ConfigurationError
            No texts, another number of answers, or a position out of range.
        """
        found = LabelSet.of(labels)
        check_texts(texts, len(texts))
        if len(texts) == 0:
            raise ConfigurationError(
                "Expected at least one row, got none: nothing can be learned from no texts."
            )
        truth = check_answers(answers, np.zeros((len(texts), len(found))))
        # The best that is known without a model: with 154 rows of 77 labels their names add 0.08 to 0.15 accuracy.
        self._words = Words()
        columns = self._words.learn([*texts, *map(as_text, found.labels)])
        targets = np.concatenate([truth, np.arange(len(found))])
        worth = np.repeat([1.0, _NAME], [len(truth), len(found)])
        totals = np.bincount(truth, minlength=len(found)) + _NAME
        weights = worth / totals[targets]
        self._coefficients, self._intercept = _regression(
            columns, targets, weights * (worth.sum() / weights.sum())
        )
        self.labels_ = found
        self._n_rows = len(truth)
        return self

    def predict_log_proba(self, texts: Sequence[str]) -> FloatArray:
        """Return log-probabilities of the labels, shape (n, L).

        Raises
        ------
        NotFittedError
            The baseline is not fitted.
        """
        if not hasattr(self, "labels_"):
            raise NotFittedError("Expected a fitted TextBaseline, got predict before fit: call fit first.")
        check_texts(texts, len(texts))
        scores = self._words.transform(texts) @ self._coefficients + self._intercept
        return tempered(scores, temperature=1.0, n_rows=self._n_rows)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Return the most probable label of each text."""
        best = self.predict_log_proba(texts).argmax(axis=1)
        return [self.labels_.labels[place] for place in best]


def _regression(
    columns: Any,  # noqa: ANN401 (a sparse matrix)
    targets: IndexArray,
    weights: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return coefficients of the columns, shape (words, L), and intercepts; every label has a row."""
    from scipy.linalg import solve_triangular  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    n_labels = int(targets.max()) + 1
    if n_labels < 2 or columns.shape[1] == 0:
        shares = np.bincount(targets, weights=weights)
        return np.zeros((columns.shape[1], n_labels)), np.log(shares)
    model = LogisticRegression(C=_C, max_iter=_ITERATIONS)
    if len(targets) <= MOST_IN_PRODUCTS:
        products = columns @ columns.T
        root = root_of_products(products if isinstance(products, np.ndarray) else products.toarray())
        fitted = model.fit(root, targets, sample_weight=weights).coef_.T
        coefficients = columns.T @ solve_triangular(root.T, fitted, lower=False)
    else:
        coefficients = model.fit(columns, targets, sample_weight=weights).coef_.T
    if n_labels == 2:  # one column, of the second label against the first
        both = np.hstack([0.0 * coefficients, coefficients])
        return both, np.array([0.0, float(model.intercept_[0])])
    return coefficients, model.intercept_


def _by_words(known: Sequence[Example], rows: Sequence[Example], labels: LabelSet) -> list[str]:
    """Return the answers that a `TextBaseline` for each part of an answer gives to rows."""
    taught = [row.input for row in known]
    judged = [row.input for row in rows]
    values = [labels.values(row.answer) for row in known]
    found = {}
    for part in labels.parts:
        own = labels.labels_of(part)
        answers = [own.labels.index(value[part]) for value in values]
        found[part] = TextBaseline().fit(taught, answers, labels=own).predict(judged)
    return [labels.answer_of(dict(zip(found, row, strict=True))) for row in zip(*found.values(), strict=True)]


def _by_vectors(
    known: Sequence[Example], rows: Sequence[Example], labels: LabelSet, vectors: Mapping[str, ArrayLike]
) -> dict[str, list[str]]:
    """Return the labels that balanced logistic regression on vectors gives to rows, if all of them have one.

    What the vectors of known rows have in common is taken away, and each has length 1 after that.
    """
    taught = [row for row in known if row.input in vectors]
    if not taught or not all(row.input in vectors for row in rows):
        return {}
    given = np.array([vectors[row.input] for row in taught], dtype=np.float64)
    judged = np.array([vectors[row.input] for row in rows], dtype=np.float64)
    answers = [labels.labels.index(row.answer) for row in taught]
    present, targets, counts = np.unique(answers, return_inverse=True, return_counts=True)
    weights = len(taught) / (len(present) * counts[targets])
    mean = given.mean(axis=0)
    coefficients, intercept = _regression(unit_rows(given - mean), targets, weights)
    best = (unit_rows(judged - mean) @ coefficients + intercept).argmax(axis=1)
    return {EMBEDDINGS: [labels.labels[place] for place in present[best]]}


@dataclass(frozen=True, kw_only=True)
class BaselineScore(Recorded):
    """Scores of one classifier on the compared rows.

    Attributes
    ----------
    name : str
        ``model``, ``majority`` (the most frequent answer of the labelled rows), ``TF-IDF`` (`TextBaseline`, one for
        each field or label where an answer holds several) or
        ``embeddings`` (logistic regression on vectors of the texts).
    accuracy : Interval
        Share of right answers, with its Wilson interval; where they hold several labels, all of them are right.
    macro_f1 : float
        Mean F1 over all labels, in [0, 1].
    answered_labels : AnsweredLabels
        Count of the labels that it answered.
    """

    name: str
    accuracy: Interval
    macro_f1: float
    answered_labels: AnsweredLabels


@dataclass(frozen=True, kw_only=True)
class BaselineComparison(Recorded):
    """Comparison of a model with baselines that were fitted on labelled rows.

    Attributes
    ----------
    rows : int
        Rows that all of them were judged on.
    labelled_rows : int
        Rows that the baselines learned from; none has the text of a judged row.
    scores : tuple of BaselineScore
        Model, majority, TF-IDF and, where texts have vectors, embeddings; empty if there was nothing to judge or to
        learn from.
    against_text, against_embeddings : PairedComparison or None
        Accuracy of the model less that of TF-IDF, and less that of embeddings.
    verdict : str
        What the language model adds.
    """

    rows: int
    labelled_rows: int
    scores: tuple[BaselineScore, ...]
    against_text: PairedComparison | None
    against_embeddings: PairedComparison | None = None
    verdict: str


def compare_with_baselines(  # noqa: PLR0913  (keyword-only options)
    rows: Sequence[Example],
    given: Sequence[str | None],
    labelled: Sequence[Example],
    *,
    labels: LabelSet,
    failed: int = 0,
    uses_model: bool = True,
    vectors: Mapping[str, ArrayLike] | None = None,
) -> BaselineComparison:
    """Compare answers with the majority label, and with logistic regression on TF-IDF and on vectors of the texts.

    Parameters
    ----------
    rows : sequence of Example, length n
        Rows that the model answered; true answers are spelled as in `labels`.
    given : sequence of (str or None), length n
        The model's label for each; None is wrong.
    labelled : sequence of Example
        Rows to learn from. Those with the text of one of `rows` are left out.
    labels : LabelSet
        The labels; an answer is one of them.
    failed : int, default 0
        Rows beside `rows` whose call failed.
    uses_model : bool, default True
        False if `given` comes from a head that reads the text alone, which scores and verdict then name instead of the
        model.
    vectors : mapping of str to array-like of shape (d,), optional
        Vectors by text. There is a baseline on them if every judged row has one; it learns from the labelled rows that
        have one.

    Returns
    -------
    BaselineComparison
        Its `verdict` says why, where nothing could be compared, and where more than a tenth of the rows have no label:
        they show a fault of the setup, not what the model knows.

    Examples
    --------
    >>> from calibrant.core import Example, LabelSet
    >>> labelled = [Example(input="it purrs", answer="cat"), Example(input="it barks", answer="dog")]
    >>> rows = [Example(input="who barks", answer="dog"), Example(input="who purrs", answer="cat")]
    >>> found = compare_with_baselines(rows, ["dog", "dog"], labelled, labels=LabelSet(["cat", "dog"]))
    >>> [(score.name, score.accuracy.estimate) for score in found.scores]
    [('model', 0.5), ('majority', 0.5), ('TF-IDF', 1.0)]
    """
    judged = {normalise_label(row.input) for row in rows}
    known = [row for row in labelled if normalise_label(row.input) not in judged]
    if not rows or not known:
        missing = (
            "There is no labelled row with a text of its own to learn from" if rows else "No row was answered"
        )
        return BaselineComparison(
            rows=len(rows),
            labelled_rows=len(known),
            scores=(),
            against_text=None,
            verdict=f"{missing}, so nothing can be said of what the model adds.",
        )
    truth = [row.answer for row in rows]
    majority = Counter(row.answer for row in known).most_common(1)[0][0]
    by_text = {TFIDF: _by_words(known, rows, labels)}
    by_text |= {} if vectors is None else _by_vectors(known, rows, labels, vectors)
    guesses = {
        "model" if uses_model else "head on the text alone": given,
        "majority": [majority] * len(rows),
        **by_text,
    }
    right = _right(truth, given)
    against = {name: paired_comparison(_right(truth, found), right) for name, found in by_text.items()}
    without_label = failed + sum(label is None for label in given)
    verdict = _fault(without_label, len(rows) + failed) or _verdict(
        against, "model" if uses_model else "head, which reads the text alone,"
    )
    return BaselineComparison(
        rows=len(rows),
        labelled_rows=len(known),
        scores=tuple(_score(name, truth, found, labels) for name, found in guesses.items()),
        against_text=against[TFIDF],
        against_embeddings=against.get(EMBEDDINGS),
        verdict=verdict,
    )


def _fault(without_label: int, rows: int) -> str:
    """Return the verdict on rows of which many have no label; empty if they are few."""
    if without_label <= _MOST_WITHOUT_LABEL * rows:
        return ""
    return (
        f"{without_label:,} of {rows:,} rows have no label: their calls failed, the model declined, or its answers "
        "could not be read. Mend that first: the comparison does not say yet whether this task needs a language model."
    )


def _right(truth: Sequence[str], given: Sequence[str | None]) -> list[bool]:
    return [answer == label for answer, label in zip(truth, given, strict=True)]


def _score(name: str, truth: Sequence[str], given: Sequence[str | None], labels: LabelSet) -> BaselineScore:
    found = answer_summary(labels, truth, given)
    summary = cast("ClassificationSummary | CompositeMetrics", found)  # there are rows
    return BaselineScore(
        name=name,
        accuracy=wilson_interval(sum(_right(truth, given)), len(truth)),
        macro_f1=summary.macro_f1,
        answered_labels=summary.answered_labels,
    )


def _verdict(against: Mapping[str, PairedComparison], subject: str) -> str:
    """Return the verdict on a model or head beside the baseline on text that is the best of these rows."""
    name, found = min(against.items(), key=lambda pair: pair[1].difference)
    # Where another one is as good within its interval, the model adds nothing certain either.
    if found.interval.lower > 0.0:
        equal = [pair for pair in against.items() if pair[1].interval.lower <= 0.0]
        name, found = equal[0] if equal else (name, found)
    interval = f"95 % interval {found.interval.lower:+.3f} to {found.interval.upper:+.3f}"
    if found.interval.lower > 0.0:
        return f"The {subject} adds {found.difference:+.3f} accuracy to {name} with logistic regression ({interval})."
    if found.interval.upper < 0.0:
        needless, verb = ("a language model", "is") if name == TFIDF else ("the model's answers", "are")
        return (
            f"On this task you do not need {needless}: {name} with logistic regression {verb} better (model minus "
            f"{name} {found.difference:+.3f}, {interval})."
        )
    return (
        f"On these rows the {subject} adds nothing certain to {name} with logistic regression "
        f"({subject.partition(',')[0]} minus {name} {found.difference:+.3f}, {interval})."
    )
