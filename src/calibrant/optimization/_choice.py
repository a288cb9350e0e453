"""Choice of the best prompt of a search, on the validation rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Interval, Outcome, Prediction
from calibrant.core._rows import Example
from calibrant.metrics._classification import AnsweredLabels
from calibrant.metrics._composite import answer_summary
from calibrant.metrics._paired import PairedComparison


@dataclass(frozen=True, kw_only=True)
class RowScores:
    """Accuracy and macro F1 of a prompt on the rows that did not fail.

    Attributes
    ----------
    accuracy, macro_f1 : float or None
        Share of right answers, and mean F1 over all labels, in [0, 1]; None without rows.
    credit : float or None
        Mean part of the answers that is right, in [0, 1], where an answer can be nearly right; None elsewhere.
    answered_labels : AnsweredLabels or None
        Numbers of the labels that were answered; None without rows.
    """

    accuracy: float | None
    macro_f1: float | None
    credit: float | None
    answered_labels: AnsweredLabels | None


@dataclass(frozen=True, kw_only=True)
class ValidatedPrompt(RowScores):
    """A validated prompt with its figures.

    Attributes
    ----------
    candidate : mapping of str to str
        Its component texts.
    score : float
        Mean score, in [0, 1]: what GEPA climbs.
    rows : int or None
        Validation rows that it was asked about; None where every prompt was asked about all.
    log_loss : float or None
        Loss that a race compares (`PromptStanding.losses`), mean over these rows, in nats; None without a race.
    screened_loss : float or None
        The same on the rows that every prompt was asked about, which chooses who enters the race; None without one.
    origin : str or None
        Which of the prompts that the task gives beside its own this is, such as ``other prompt 1``; None for the task's
        own and for proposals.
    """

    candidate: Mapping[str, str]
    score: float
    rows: int | None = None
    log_loss: float | None = None
    screened_loss: float | None = None
    origin: str | None = None


class ValidationLog:
    """Observer that stores the predictions on validation rows.

    Parameters
    ----------
    examples : sequence of Example
        The validation rows.
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        self._inputs = [example.input for example in examples]
        self._predictions: dict[frozenset[tuple[str, str]], Sequence[Prediction]] = {}

    def observe(
        self,
        candidate: Mapping[str, str],
        rows: Sequence[Mapping[str, object]],
        predictions: Sequence[Prediction],
    ) -> None:
        """Keep the predictions if they are about all validation rows."""
        if [row["input"] for row in rows] == self._inputs:
            self._predictions[frozenset(candidate.items())] = predictions

    def validated(self, candidate: Mapping[str, str], score: float, *, labels: LabelSet) -> ValidatedPrompt:
        """Return the figures of a candidate that GEPA has validated."""
        found = row_scores(self._examples, self._predictions[frozenset(candidate.items())], labels=labels)
        return ValidatedPrompt(candidate=dict(candidate), score=score, **vars(found))


def row_scores(
    examples: Sequence[Example], predictions: Sequence[Prediction], *, labels: LabelSet
) -> RowScores:
    """Score the rows that did not fail with a transport error."""
    pairs = [
        (example.answer, prediction.label)
        for example, prediction in zip(examples, predictions, strict=True)
        if prediction.outcome is not Outcome.ERROR
    ]
    summary = answer_summary(labels, [truth for truth, _ in pairs], [given for _, given in pairs])
    credit = [found for found in credits_of(examples, predictions, labels) if found is not None]
    return RowScores(
        accuracy=sum(truth == given for truth, given in pairs) / len(pairs) if pairs else None,
        macro_f1=None if summary is None else summary.macro_f1,
        credit=sum(credit) / len(credit) if credit else None,
        answered_labels=None if summary is None else summary.answered_labels,
    )


def credits_of(
    examples: Sequence[Example], predictions: Sequence[Prediction], labels: LabelSet
) -> list[float | None]:
    """Return the credit of every row; None for a failed row or plain labels."""
    plain = type(labels) is LabelSet
    return [
        None if plain or prediction.outcome is Outcome.ERROR else labels.credit(prediction, example.answer)
        for example, prediction in zip(examples, predictions, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class HeadChoice:
    """The best two prompts of a race, each with the head that validation rows teach under it.

    Attributes
    ----------
    raced, other : int
        Places of the race's winner and of its runner-up among the validated prompts.
    rows : int
        Validation rows that both heads learned from; each row is judged by a head that other rows taught.
    raced_log_loss, other_log_loss : float
        Mean log loss on these rows, in nats.
    raced_accuracy, other_accuracy : float
        On these rows, in [0, 1].
    chosen : int
        Place of the prompt that is kept: the runner-up, if with the heads it beats the winner as at the end of a race.
    """

    raced: int
    other: int
    rows: int
    raced_log_loss: float
    other_log_loss: float
    raced_accuracy: float
    other_accuracy: float
    chosen: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Validated prompts and the position of the best one.

    Attributes
    ----------
    validated : tuple of ValidatedPrompt
        The seed prompt first.
    chosen : int
        Place of the best one.
    runner_up : int or None
        Place of the one that came second in a race; None without one.
    by_head : HeadChoice or None
        Comparison of these two with their heads; None if they were not compared.
    """

    validated: tuple[ValidatedPrompt, ...]
    chosen: int
    runner_up: int | None = None
    by_head: HeadChoice | None = None

    @property
    def decided_by_head(self) -> bool:
        """True if the head changed the choice from the race's winner."""
        return self.by_head is not None and self.by_head.chosen != self.by_head.raced

    @property
    def seed(self) -> ValidatedPrompt:
        """The seed prompt."""
        return self.validated[0]

    @property
    def best(self) -> ValidatedPrompt:
        """The best prompt."""
        return self.validated[self.chosen]


def choose(validated: Sequence[ValidatedPrompt]) -> Choice:
    """Choose the best prompt; the seed prompt unless another one is an improvement.

    An improvement is better than the seed prompt in score, in accuracy and in macro F1: a higher score alone may come
    from more confidence in the same answers, and a higher accuracy from answering the most frequent label alone. Where
    an answer can be nearly right its credit takes the place of accuracy, and macro F1, which knows right answers only,
    must not fall. Of several improvements the one with the highest score is best.
    """
    seed = validated[0]
    better = [place for place, found in enumerate(validated) if _is_improvement(found, seed)]
    best = max(better, key=lambda place: (validated[place].score, -place), default=0)
    return Choice(validated=tuple(validated), chosen=best)


def _is_improvement(found: ValidatedPrompt, seed: ValidatedPrompt) -> bool:
    if found.accuracy is None or found.macro_f1 is None or found.score <= seed.score:
        return False
    if found.credit is None:
        return found.accuracy > (seed.accuracy or 0.0) and found.macro_f1 > (seed.macro_f1 or 0.0)
    return found.credit > (seed.credit or 0.0) and found.macro_f1 >= (seed.macro_f1 or 0.0)


def is_worse(comparison: PairedComparison | None, credit_difference: Interval | None) -> bool:
    """Return True if an interval of best minus seed on the test rows lies below 0."""
    intervals = [None if comparison is None else comparison.interval, credit_difference]
    return any(interval is not None and interval.upper < 0.0 for interval in intervals)
