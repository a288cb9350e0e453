"""What labelled rows add to the best prompt, beside what needs no language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.core import CompositeLabels, Example, Interval, LabelSet, Outcome, Prediction, Task
from calibrant.heads import Head, TextBaseline
from calibrant.inference import one_line
from calibrant.metrics import PairedComparison, answer_summary, paired_comparison, wilson_interval
from calibrant.optimization._result import PromptScore, compare, score_prompt

__all__ = ["BaselineScore", "FinalScore", "final_score", "labelled_rows"]


@dataclass(frozen=True, kw_only=True)
class BaselineScore:
    """How something that needs no language model did on the test rows.

    Attributes
    ----------
    name : str
        ``majority`` (the most frequent label of the labelled rows), or ``TF-IDF`` (`TextBaseline`).
    accuracy : Interval
        Share of right labels, with its Wilson interval.
    macro_f1 : float
        Mean F1 over all labels, in [0, 1].
    """

    name: str
    accuracy: Interval
    macro_f1: float


@dataclass(frozen=True, kw_only=True)
class FinalScore:
    """The best prompt with the head that labelled rows support.

    Attributes
    ----------
    score : PromptScore
        On the test rows.
    head : mapping
        `Head.describe`.
    against_seed, against_text : PairedComparison or None
        Its accuracy less that of the seed prompt as it was scored, and less that of TF-IDF, on the same test rows.
    baselines : tuple of BaselineScore
        Fitted on all training and validation rows.
    verdict : str
        One sentence: what the language model adds.
    """

    score: PromptScore
    head: Mapping[str, Any]
    against_seed: PairedComparison | None
    against_text: PairedComparison | None
    baselines: tuple[BaselineScore, ...]
    verdict: str


def labelled_rows(task: Task, prompt: str) -> list[Example]:
    """Return the rows that a head may learn from: validation rows, then training rows that the prompt does not show.

    A row whose text is that of a test row is none of them.
    """
    if isinstance(task.labels, CompositeLabels):
        return []
    shown, tested = one_line(prompt), {example.input for example in task.test}
    validation = [one for one in task.validation if one.input not in tested]
    held_out = tested | {example.input for example in validation}
    return validation + [
        one for one in task.train if one_line(one.input) not in shown and one.input not in held_out
    ]


def final_score(
    task: Task,
    head: Head,
    prompt: str,
    validation_score: float,
    seed: Sequence[Prediction],
    final: Sequence[Prediction],
) -> FinalScore:
    """Put the figures together; `seed` and `final` are predictions for the test rows."""
    labelled = [*task.train, *task.validation]
    truth = [example.answer for example in task.test]
    guesses = {"majority": [Counter(one.answer for one in labelled).most_common(1)[0][0]] * len(truth)}
    baseline = TextBaseline().fit(
        [one.input for one in labelled],
        np.array([task.labels.labels.index(one.answer) for one in labelled]),
        labels=task.labels,
    )
    guesses["TF-IDF"] = baseline.predict([one.input for one in task.test])
    against_text = _against(truth, guesses["TF-IDF"], final)
    return FinalScore(
        score=score_prompt(prompt, validation_score, task.test, final, labels=task.labels),
        head=head.describe(),
        against_seed=compare(task.test, seed, final),
        against_text=against_text,
        baselines=tuple(_score(name, truth, found, task.labels) for name, found in guesses.items()),
        verdict=_verdict(against_text),
    )


def _score(name: str, truth: Sequence[str], guesses: Sequence[str], labels: LabelSet) -> BaselineScore:
    summary = answer_summary(labels, truth, guesses)
    right = sum(one == other for one, other in zip(truth, guesses, strict=True))
    return BaselineScore(
        name=name,
        accuracy=wilson_interval(right, len(truth)),
        macro_f1=0.0 if summary is None else summary.macro_f1,
    )


def _against(
    truth: Sequence[str], guesses: Sequence[str], final: Sequence[Prediction]
) -> PairedComparison | None:
    pairs = [
        (guess == answer, prediction.label == answer)
        for answer, guess, prediction in zip(truth, guesses, final, strict=True)
        if prediction.outcome is not Outcome.ERROR
    ]
    if not pairs:
        return None
    text, model = zip(*pairs, strict=True)
    return paired_comparison(text, model)


def _verdict(found: PairedComparison | None) -> str:
    if found is None:
        return "No test row was answered, so nothing can be said of what the model adds."
    interval = f"95 % interval {found.interval.lower:+.3f} to {found.interval.upper:+.3f}"
    if found.interval.lower > 0.0:
        return f"The model adds {found.difference:+.3f} accuracy to TF-IDF with logistic regression ({interval})."
    if found.interval.upper < 0.0:
        return (
            "On this task you do not need a language model: TF-IDF with logistic regression is better (model minus "
            f"TF-IDF {found.difference:+.3f}, {interval})."
        )
    return (
        "On these test rows the model adds nothing certain to TF-IDF with logistic regression (model minus TF-IDF "
        f"{found.difference:+.3f}, {interval})."
    )
