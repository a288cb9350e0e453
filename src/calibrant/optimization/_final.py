"""Final score: the best prompt with its head, beside baselines without a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.core._composite import CompositeLabels
from calibrant.core._labels import normalise_label
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._rows import Example
from calibrant.core._task import Task
from calibrant.heads._compared import BaselineScore, compare_with_baselines
from calibrant.heads._embedding import EmbeddingModel
from calibrant.heads._head import Head
from calibrant.inference._embeddings import open_embedding_model
from calibrant.metrics._paired import PairedComparison
from calibrant.optimization._choice import Choice, ValidatedPrompt
from calibrant.optimization._plan import COMPONENT
from calibrant.optimization._result import PromptScore, compare, score_prompt
from calibrant.optimization._shown import ShownTexts


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


def embedding_model(task: Task) -> EmbeddingModel | None:
    """Return the embedding model of the head that a search learns; None if it reads words alone.

    Raises
    ------
    ConfigurationError
        The task names a model that cannot be opened.
    """
    named = task.head.embeddings if task.head.fit == "auto" else None
    return None if named is None else open_embedding_model(named)


def labelled_rows(task: Task, prompt: str) -> list[Example]:
    """Return the rows that a head may learn from: validation rows, then training rows that the prompt does not show.

    A row whose text is that of a test row, but for case and white space, is none of them.
    """
    if isinstance(task.labels, CompositeLabels):
        return []
    shown, tested = ShownTexts(prompt, task), {normalise_label(one.input) for one in task.test}
    validation = [one for one in task.validation if normalise_label(one.input) not in tested]
    held_out = tested | {normalise_label(one.input) for one in validation}
    return validation + [
        one for one in task.train if one.input not in shown and normalise_label(one.input) not in held_out
    ]


def final_score(
    task: Task,
    head: Head,
    found: Choice,
    predictions: Mapping[str, Sequence[Prediction]],
) -> FinalScore:
    """Put the figures together; `predictions` are those for the test rows, by name."""
    seed, final = predictions["seed"], predictions["final"]
    answered = [
        (example, prediction.label)
        for example, prediction in zip(task.test, final, strict=True)
        if prediction.outcome is not Outcome.ERROR
    ]
    beside = compare_with_baselines(
        [example for example, _ in answered],
        [label for _, label in answered],
        [*task.train, *task.validation],
        labels=task.labels,
    )

    def score(one: ValidatedPrompt, made: Sequence[Prediction]) -> PromptScore:
        return score_prompt(one.candidate[COMPONENT], one.score, task.test, made, labels=task.labels)

    return FinalScore(
        score=score(found.best, final),
        head=head.describe(),
        against_seed=compare(task.test, seed, final),
        against_text=beside.against_text,
        baselines=beside.scores[1:],
        verdict=beside.verdict,
        without_prior=score(found.seed, predictions["prior"]) if "prior" in predictions else None,
    )
