"""`ConfidenceMetric`: calibrant's score and feedback as a metric of DSPy."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dspy

from calibrant.adapters._calls import Watch
from calibrant.adapters._parameters import refuse_several
from calibrant.adapters._rows import ConfidenceGrader, Objective, checked_context
from calibrant.core._errors import ConfigurationError, DataError
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import LabelDistribution, Outcome, Prediction
from calibrant.scoring._strategies import ScoringStrategy

_LOG = logging.getLogger("calibrant")

CONTEXT_FIELD = "additional_context"
INSTEAD_OF_DSPY = (
    "they are unknown here; use calibrant optimize, or ConfidenceAdapter.from_classifier with gepa."
)


class ConfidenceMetric(ConfidenceGrader):
    """Metric for ``dspy.GEPA`` that does not reward lucky guesses.

    Score and feedback are those of `ConfidenceAdapter`. The result is a ``dspy.Prediction`` of ``score``,
    ``feedback`` and ``objective_scores``; it adds up and converts to a float, so ``dspy.Evaluate`` and other
    optimisers take it as a number.

    For a `ConfidenceClassifier` make it with `ConfidenceClassifier.metric`. Other programs need a label under
    `label_field` in their predictions, and may add ``confidence``, ``distribution``, ``outcome``, ``reason``
    and ``completion`` as that module does; without a confidence, correctness alone is scored. Rows whose
    ``outcome`` is ``error`` score `failure_score`, as the adapter's do.

    DSPy goes on when a row raises, whatever it raises. Hand `stop` to the search, and it ends with the error:
    ``dspy.GEPA(metric=metric, gepa_kwargs={"stop_callbacks": metric.stop}, ...)``.

    Parameters
    ----------
    labels : sequence of str or LabelSet
        The closed set of labels; compared without regard to case and surrounding space. `OrdinalLabels` and
        `HierarchicalLabels` earn an answer that is nearly right a part of the score.
    label_field : str, default "label"
        Name of the label in examples and predictions. ``additional_context`` of an example, a mapping or
        text, is shown in the feedback of wrong answers.
    scoring_strategy : ScoringStrategy, optional
        By default ``LinearBlendScoring(high_confidence_threshold)``.
    high_confidence_threshold : float, default 0.99
        Confidence, in (0, 1], from which an answer counts as certain in feedback.
    low_confidence_threshold : float, default 0.90
        Confidence, in (0, 1], below which an answer counts as uncertain in feedback.
    failure_score : float, default 0.0
        Score of a row without a legal label, in [0, 1].
    objectives : iterable of str or mapping of str to callable, optional
        See `ConfidenceAdapter`.

    Raises
    ------
    ConfigurationError
        A threshold or score is out of range, or a strategy or objective is none.

    Examples
    --------
    >>> import dspy
    >>> from calibrant.adapters.dspy import ConfidenceMetric
    >>> metric = ConfidenceMetric(["cat", "dog"])
    >>> gold = dspy.Example(text="barks", label="dog")
    >>> found = metric(gold, dspy.Prediction(label="cat", confidence=0.8))
    >>> found.score, found.feedback.partition(". ")[0]
    (0.0, 'Wrong (80% probability)')
    >>> metric(gold, dspy.Prediction(label="dog", confidence=0.995)).score
    1.0
    """

    def __init__(  # noqa: PLR0913  (keyword-only options)
        self,
        labels: LabelSet | Sequence[str],
        *,
        label_field: str = "label",
        scoring_strategy: ScoringStrategy | None = None,
        high_confidence_threshold: float = 0.99,
        low_confidence_threshold: float = 0.90,
        failure_score: float = 0.0,
        objectives: Iterable[str] | Mapping[str, Objective] | None = None,
    ) -> None:
        super().__init__(
            LabelSet.of(labels),
            scoring_strategy=scoring_strategy,
            high_confidence_threshold=high_confidence_threshold,
            low_confidence_threshold=low_confidence_threshold,
            failure_score=failure_score,
            objectives=objectives,
        )
        refuse_several(self.labels, INSTEAD_OF_DSPY)
        self.label_field = label_field
        self.watch = Watch()
        self._warned = False

    def __call__(
        self,
        gold: dspy.Example,
        pred: dspy.Prediction,
        trace: object = None,  # noqa: ARG002  (DSPy's signature)
        pred_name: str | None = None,  # noqa: ARG002
        pred_trace: object = None,  # noqa: ARG002
    ) -> dspy.Prediction:
        """Score one prediction; the score is the same for every predictor.

        Parameters
        ----------
        gold : dspy.Example
            Holds the true label.
        pred : dspy.Prediction
            The output of the program.
        trace, pred_name, pred_trace
            DSPy's other arguments to a metric; not used.

        Returns
        -------
        dspy.Prediction
            ``score`` in [0, 1], ``feedback`` and ``objective_scores`` by name.

        Raises
        ------
        DataError
            The example has no label, or one that is not in the label set.
        ConfigurationError
            The prediction lacks the label's field, or holds no confidence, distribution or outcome under
            the names of these.
        """
        with self.watch.noting():
            answer, context = self._truth(gold)
            prediction = self._prediction(pred)
            graded = dspy.Prediction(
                score=self.score(prediction, answer),
                feedback=self.feedback(prediction, answer, context),
                objective_scores=self.objective_scores(prediction, answer),
            )
        self._warn_once(prediction)
        return graded

    def stop(self, state: object = None) -> bool:  # noqa: ARG002  (GEPA's signature)
        """Return True if the search must end; GEPA calls this once per iteration.

        Returns
        -------
        bool
            True after a budget or deadline of the classifier was reached.

        Raises
        ------
        ProviderError
            A fault that every call meets, or more than 20 % of the last 50 rows, and at least 5, failed.
        DataError, ConfigurationError
            An example or the program cannot be used: the first row that said so.
        """
        return self.watch.stop()

    def _truth(self, gold: dspy.Example) -> tuple[str, Mapping[str, object] | str | None]:
        if self.label_field not in gold:
            raise DataError(
                f"Expected the true label under {self.label_field!r} in every example, got the fields "
                f"{sorted(gold.keys())}: name it with label_field."
            )
        answer = gold[self.label_field]
        known = self.labels.canonical(answer) if isinstance(answer, str) else None
        if known is None:
            some = ", ".join(self.labels.labels[:8])
            raise DataError(
                f"Expected a true label among the {len(self.labels)} labels ({some}), got {answer!r:.80} "
                f"in {gold!r:.200}: correct the example or add the label to the label set."
            )
        return known, checked_context(gold.get(CONTEXT_FIELD), gold)

    def _prediction(self, pred: dspy.Prediction) -> Prediction:
        """Return a program's output as a prediction."""
        outcome = _outcome(pred.get("outcome", Outcome.OK))
        if self.label_field not in pred:
            raise ConfigurationError(
                f"Expected the label under {self.label_field!r} in the program's prediction, got the fields "
                f"{sorted(pred.keys())}: name it with label_field."
            )
        label, text = pred[self.label_field], str(pred.get("completion") or "")
        reason = str(pred.get("reason") or "")
        if outcome is not Outcome.OK:
            return Prediction(label=None, outcome=outcome, reason=reason, text=text)
        known = self.labels.canonical(label) if isinstance(label, str) else None
        if known is None:
            wrote = text or ("" if label is None else str(label))
            return Prediction(
                label=None, outcome=Outcome.UNPARSED, reason="it is not one of the labels", text=wrote
            )
        return Prediction(
            label=known,
            confidence=_confidence(pred.get("confidence")),
            distribution=_distribution(pred.get("distribution"), self.labels),
            text=text,
        )

    def _warn_once(self, prediction: Prediction) -> None:
        if prediction.outcome is Outcome.OK and prediction.confidence is None and not self._warned:
            self._warned = True
            _LOG.warning(
                "A prediction came without a confidence (no usable log-probabilities): such rows are scored by "
                "correctness alone."
            )


def _outcome(value: Any) -> Outcome:  # noqa: ANN401
    try:
        return Outcome(value)
    except ValueError:
        raise ConfigurationError(
            f"Expected the prediction's outcome to be one of {', '.join(Outcome)}, got {value!r:.80}."
        ) from None


def _confidence(value: Any) -> float | None:  # noqa: ANN401
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0.0 <= value <= 1.0 + 1e-6):
        raise ConfigurationError(
            f"Expected the prediction's confidence to be a number in [0, 1] or None, got {value!r:.80}."
        )
    return None if value is None else float(value)


def _distribution(value: object, labels: LabelSet) -> LabelDistribution | None:
    if value is None or (isinstance(value, LabelDistribution) and value.labels == labels.labels):
        return value
    got = f"one over {len(value.labels)} others" if isinstance(value, LabelDistribution) else repr(value)
    raise ConfigurationError(
        f"Expected the prediction's distribution to be a LabelDistribution over the {len(labels)} labels or None, "
        f"got {got:.80}."
    )
