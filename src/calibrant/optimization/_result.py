"""Result of a search with its uncertainty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from calibrant.calibration._thresholds import ThresholdSuggestion
from calibrant.core._files import SCHEMA_VERSION, Recorded
from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Interval, JsonObject, Outcome, Prediction, Usage
from calibrant.core._reported import escaped_line
from calibrant.core._rows import Example
from calibrant.core._task import Task
from calibrant.heads._compared import BaselineScore, compare_with_baselines
from calibrant.heads._head import Head
from calibrant.heads._tuned import Tuned
from calibrant.metrics._classification import AnsweredLabels
from calibrant.metrics._intervals import (
    PairedComparison,
    mean_interval,
    paired_comparison,
    paired_mean_interval,
    wilson_interval,
)
from calibrant.optimization._choice import (
    Choice,
    HeadChoice,
    ValidatedCandidate,
    answered_rows,
    credits_of,
    row_scores,
)
from calibrant.optimization._prompt_parts import COMPONENT, CandidateTexts
from calibrant.runs._journal import PredictionJournal
from calibrant.runs._rows import SavedRows

if TYPE_CHECKING:
    import pandas as pd

_NEARLY_ALL: Final = 0.9
_EXAMPLES: Final = 3
_EXAMPLE_LENGTH: Final = 120


@dataclass(frozen=True, kw_only=True)
class PromptScore:
    """Scores of one prompt on test rows.

    Attributes
    ----------
    prompt : str
        The system prompt.
    validation_score : float
        Mean score on the validation rows during the search, in [0, 1].
    rows : int
        Test rows, whatever their outcome.
    outcomes : mapping of str to int
        Rows by outcome.
    accuracy : Interval or None
        Share of right labels among the rows the model answered for, rightly or not (all but
        ``error``), with its Wilson interval; None when there is none.
    mean_probability : float or None
        Mean confidence in the predicted label, where known.
    credit : Interval or None
        Mean part of the answers that is right, on the rows of `accuracy`, where an answer can be nearly right: its
        labels have a structure, or it holds several. None elsewhere.
    macro_f1 : float or None
        Mean F1 over all labels, in [0, 1], on the rows of `accuracy`; None when there is none.
    answered_labels : AnsweredLabels or None
        Numbers of the labels that were answered on these rows; None without rows.
    unreadable_answers : tuple of str
        What the model wrote instead of a label, on three rows at most: one line each, shortened.
    failures : tuple of str
        Messages of failed calls, three at most.
    rows_with_low_label_mass : int
        Rows on which the model would rather have written something else than any label.

    Examples
    --------
    >>> PromptScore(
    ...     prompt="Sort the payment.", validation_score=0.8, rows=10, outcomes={"ok": 10}, accuracy=None,
    ...     mean_probability=None,
    ... ).validation_score
    0.8
    """

    prompt: str
    validation_score: float
    rows: int
    outcomes: Mapping[str, int]
    accuracy: Interval | None
    mean_probability: float | None
    credit: Interval | None = None
    macro_f1: float | None = None
    answered_labels: AnsweredLabels | None = None
    rows_with_low_label_mass: int = 0
    unreadable_answers: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def has_hardly_any_label(self) -> bool:
        """True if nine in ten of the rows failed, or have an answer that cannot be read."""
        useless = self.outcomes.get(Outcome.ERROR, 0) + self.outcomes.get(Outcome.UNPARSED, 0)
        return useless > 0 and useless >= _NEARLY_ALL * self.rows


@dataclass(frozen=True, kw_only=True)
class FinalScore:
    """Test figures of the best prompt with the head fitted on labelled rows.

    Attributes
    ----------
    score : PromptScore
        On the test rows.
    head : mapping
        `Head.describe`.
    against_seed, against_text, against_embeddings : PairedComparison or None
        Its accuracy less that of the seed prompt as it was scored, less that of TF-IDF, and less that of embeddings, on
        the same test rows.
    baselines : tuple of BaselineScore
        Fitted on all training and validation rows but those with the text of a test row, and judged on the test rows
        that were answered.
    verdict : str
        One sentence: what the language model adds.
    without_prior : PromptScore or None
        The seed prompt after its label prior was divided out as validation rows show it, without their answers; None
        where a score that somebody asked for decides.
    """

    score: PromptScore
    head: Mapping[str, Any]
    against_seed: PairedComparison | None
    against_text: PairedComparison | None
    baselines: tuple[BaselineScore, ...]
    verdict: str
    without_prior: PromptScore | None = None
    against_embeddings: PairedComparison | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizationResult(Recorded):
    """The outcome of `optimize`.

    Attributes
    ----------
    task, model : str
        Names.
    seed : int
        The seed of the search.
    proposer : str
        ``exemplar``, ``reflection`` or the name of the user's own.
    seed_prompt, best_prompt : PromptScore
        The prompt the search started from, and the one that the validation rows chose, by a race, by the heads of its
        best two (`by_head`), or by score, accuracy (credit, where an answer can be nearly right) and macro F1 at once.
        Equal where that is the seed prompt.
    best_candidate : mapping of str to str
        All component texts of the best prompt.
    improved : bool
        True if the test rows show that the final classifier is better than the seed prompt alone: the interval of the
        difference lies above 0. The final classifier is the best prompt with its head (`FinalScore.against_seed`), and
        the best prompt (`comparison`, `credit_difference`) where there is no head. No choice looks at test rows.
    comparison : PairedComparison or None
        Best minus seed on the test rows both were scored on.
    credit_difference : Interval or None
        Mean difference of their credit on the same rows, with its paired t interval; None where `credit` is.
    metric_calls : int
        Rows classified by the search; a row asked for again under the same prompt counts once.
    proposals, accepted : int
        Prompts tried on a minibatch of training rows, and those that GEPA accepted: they scored more there than the
        prompt they were made from, and went on to validation.
    completions, completions_without_logprobs : int
        Rows of the search that ended in a legal label, and those of them whose confidence is unknown.
    cost : float or None
        US dollars of the whole run, earlier sessions and reflection included; None where no price is known.
    unpriced_calls : int
        Calls whose price is not known: `cost` lacks them.
    in_process : bool
        True if all models run in this process, where calls cost nothing.
    vectors : Usage
        Tokens and cost of the vectors of texts that this session paid for; no part of `cost`.
    seconds : float
        Wall time of this session, in seconds.
    ended : str
        Why the search ended before its budget was used up, and how many better proposals were rejected, as they repeat
        rows; empty where neither is so.
    directory : Path or None
        Directory of the run; not part of ``result.json``.
    test_rows : mapping of str to SavedRows
        Test rows with their predictions, by prompt: ``seed``, ``best`` and, where a head was learned, ``final``. In a
        directory they are ``predictions.jsonl``.
    thresholds : ThresholdSuggestion or None
        The confidence thresholds the search found for itself; None where it was given them.
    validated : tuple of ValidatedCandidate
        All prompts that were asked about the validation rows, the seed prompt first.
    chosen : int
        Position of the best prompt among them; 0 is the seed prompt.
    by_head : HeadChoice or None
        Comparison of the race's best two prompts with their heads, which may have changed its choice; None if they
        were not compared.
    detectable_gain : float or None
        By how much accuracy, in [0, 1], a prompt must be better for the validation rows to show it, in four searches of
        five; None where a score that somebody asked for decides.
    final : FinalScore or None
        The best prompt with what labelled rows teach, beside baselines; None where answers hold several labels, several
        models answer, or no answer comes with a distribution.
    answers : PredictionJournal or None
        Every answer that was paid for, for `Predictor.use_journal`; not part of ``result.json``.
    tuned : Tuned or None
        The final classifier as a value, to open, to save as a bundle, and to decide with; not part of ``result.json``.

    Examples
    --------
    A model that is right under every prompt:

    >>> from calibrant import Example, Task, optimize
    >>> from calibrant.testing import FakeClient
    >>> names = ["cat", "dog"]
    >>> def rows(split):
    ...     return tuple(Example(input=f"{split} {name} {n}", answer=name) for n in range(6) for name in names)
    >>> data = {split: rows(split) for split in ("train", "validation", "test")}
    >>> task = Task(name="pets", labels=names, prompt="Which animal?", **data)
    >>> fake = FakeClient(names, {"cat": "cat", "dog": "dog"}, field="label")
    >>> result = optimize(task, model=fake, max_metric_calls=100)
    >>> result.improved, result.best_prompt.prompt, result.seed_prompt.accuracy.estimate
    (False, 'Which animal?', 1.0)
    """

    task: str
    model: str
    seed: int
    proposer: str
    seed_prompt: PromptScore
    best_prompt: PromptScore
    best_candidate: CandidateTexts
    improved: bool
    comparison: PairedComparison | None
    metric_calls: int
    proposals: int
    accepted: int
    completions: int
    completions_without_logprobs: int
    cost: float | None
    seconds: float
    unpriced_calls: int = 0
    in_process: bool = False
    vectors: Usage = field(default_factory=Usage)
    ended: str = ""
    # A folder may be moved, and rows have a file of their own: neither is compared or written.
    directory: Path | None = field(default=None, compare=False)
    test_rows: Mapping[str, SavedRows] = field(default_factory=dict, repr=False, compare=False)
    thresholds: ThresholdSuggestion | None = None
    credit_difference: Interval | None = None
    validated: tuple[ValidatedCandidate, ...] = ()
    chosen: int = 0
    by_head: HeadChoice | None = None
    detectable_gain: float | None = None
    final: FinalScore | None = None
    answers: PredictionJournal | None = field(default=None, repr=False, compare=False)
    tuned: Tuned | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a pickle, without `answers`, which may be an open file."""
        return {**vars(self), "answers": None}

    def to_record(self) -> JsonObject:
        """Return the result as JSON values, as ``result.json`` holds them."""
        record = {"schema_version": SCHEMA_VERSION, "kind": "optimization", **super().to_record()}
        if self.vectors == Usage():
            del record["vectors"]
        return record

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with one row for each prompt of `validated`.

        Columns: prompt, origin, score, rows, accuracy, macro_f1, credit, log_loss (all on validation rows), chosen and
        test_accuracy, which only the seed prompt and the best one have.

        Raises
        ------
        ConfigurationError
            pandas is not installed.
        """
        from calibrant.core._frames import pandas_frame  # noqa: PLC0415 (if a frame is wanted)

        tested = {score.prompt: score.accuracy for score in (self.seed_prompt, self.best_prompt)}
        prompts = [validated.candidate[COMPONENT] for validated in self.validated]
        columns: dict[str, list[Any]] = {"prompt": prompts}
        for name in ("origin", "score", "rows", "accuracy", "macro_f1", "credit", "log_loss"):
            columns[name] = [getattr(validated, name) for validated in self.validated]
        columns["chosen"] = [position == self.chosen for position in range(len(prompts))]
        columns["test_accuracy"] = [getattr(tested.get(prompt), "estimate", None) for prompt in prompts]
        return pandas_frame(columns)


def score_prompt(
    validated: ValidatedCandidate,
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    *,
    labels: LabelSet,
) -> PromptScore:
    """Return the score of a prompt, given its predictions on the test rows."""
    answered = answered_rows(examples, predictions)
    credit = np.array(credits_of(answered, labels))
    scores = row_scores(answered, labels=labels)
    right = sum(prediction.label == example.answer for example, prediction in answered)
    confidences = [p.confidence for p in predictions if p.confidence is not None]
    return PromptScore(
        prompt=validated.candidate[COMPONENT],
        validation_score=validated.score,
        rows=len(predictions),
        outcomes=dict(Counter(prediction.outcome.value for prediction in predictions)),
        accuracy=wilson_interval(right, len(answered)) if answered else None,
        mean_probability=sum(confidences) / len(confidences) if confidences else None,
        credit=mean_interval(credit, np.ones(len(credit), dtype=np.int64)) if len(credit) else None,
        macro_f1=scores.macro_f1,
        answered_labels=scores.answered_labels,
        rows_with_low_label_mass=sum(prediction.has_low_label_mass for prediction in predictions),
        unreadable_answers=_some(
            prediction.text for prediction in predictions if prediction.outcome is Outcome.UNPARSED
        ),
        failures=_some(
            prediction.reason for prediction in predictions if prediction.outcome is Outcome.ERROR
        ),
    )


def _some(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the first few different texts, each as one line to show."""
    lines = dict.fromkeys(escaped_line(text, limit=_EXAMPLE_LENGTH) for text in texts if text)
    return tuple(islice(lines, _EXAMPLES))


def compare(
    examples: Sequence[Example], seed: Sequence[Prediction], best: Sequence[Prediction], *, labels: LabelSet
) -> tuple[PairedComparison | None, Interval | None]:
    """Return the differences in accuracy and credit on rows that both prompts answered, or None."""
    rows = [
        (example.answer, a, b)
        for example, a, b in zip(examples, seed, best, strict=True)
        if Outcome.ERROR not in (a.outcome, b.outcome)
    ]
    if not rows:
        return None, None
    first = [a.label == truth for truth, a, _ in rows]
    second = [b.label == truth for truth, _, b in rows]
    comparison = paired_comparison(first, second)
    if labels.is_plain or len(rows) < 2:
        return comparison, None
    gains = [labels.credit(b, truth) - labels.credit(a, truth) for truth, a, b in rows]
    return comparison, paired_mean_interval(gains)


def final_score(
    task: Task,
    head: Head,
    choice: Choice,
    predictions: Mapping[str, Sequence[Prediction]],
    *,
    vectors: Mapping[str, ArrayLike] | None,
) -> FinalScore:
    """Return the test figures of the best prompt with its head, given predictions by name and vectors by text."""
    final = predictions["final"]
    labels = task.labels
    answered = answered_rows(task.test, final)
    beside = compare_with_baselines(
        [example for example, _ in answered],
        [prediction.label for _, prediction in answered],
        [*task.train, *task.validation],
        labels=labels,
        failed=len(final) - len(answered),
        uses_model=head.uses_model,
        vectors=vectors,
    )
    without_prior = None
    if "prior" in predictions:
        without_prior = score_prompt(choice.seed, task.test, predictions["prior"], labels=labels)
    return FinalScore(
        score=score_prompt(choice.best, task.test, final, labels=labels),
        head=head.describe(),
        against_seed=compare(task.test, predictions["seed"], final, labels=labels)[0],
        against_text=beside.against_text,
        against_embeddings=beside.against_embeddings,
        baselines=beside.scores[1:],
        verdict=beside.verdict,
        without_prior=without_prior,
    )
