"""Heads of a race's best two prompts, and the choice between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from calibrant.core._composite import CompositeLabels
from calibrant.core._labels import normalise_label
from calibrant.core._prediction import Prediction
from calibrant.core._rows import Example
from calibrant.core._task import Task
from calibrant.heads._embedding import EmbeddingModel
from calibrant.heads._head import Head
from calibrant.inference._classifier import Classifier
from calibrant.inference._embeddings import open_embedding_model
from calibrant.inference._heads import head_of
from calibrant.optimization._choice import Choice, HeadChoice, ValidatedPrompt
from calibrant.optimization._plan import SCREENED, SearchStage, queries_of
from calibrant.optimization._progress import PERFECT
from calibrant.optimization._prompt_parts import COMPONENT, ShownTexts
from calibrant.optimization._race import BETTER, FIRST, PromptStanding, beats

_FEWEST: Final = SCREENED + FIRST  # validation rows that compare two heads; fewer make no race either


@dataclass(kw_only=True)
class HeadStage(SearchStage):
    """Search stage that learns a head from labelled rows.

    Parameters
    ----------
    embedding : EmbeddingModel or None
        Reads texts for heads, beside their words.
    max_metric_calls : int
        Upper bound of the adapter's calls, those of the search included; 0 where no row may be asked.
    """

    embedding: EmbeddingModel | None
    max_metric_calls: int

    def run(self, found: Choice) -> tuple[Choice, Head | None]:
        """Return the final choice of prompt and the head learned under it, if any.

        Validation rows come first, then training rows, as far as the budget goes.
        """
        if self.task.head.fit != "auto" or not isinstance(self.adapter.predictor, Classifier):
            return found, None
        # Where nothing is wrong there is nothing to learn that would be worth a call.
        worth = not self._is_perfect(found.best)
        found = self._compared(found) if worth else found
        candidate = found.best.candidate
        rows = labelled_rows(self.task, candidate[COMPONENT])
        asked = self.adapter.affordable(queries_of(candidate, rows), self._calls_left() if worth else 0)
        rows = [row for row, can_be_asked in zip(rows, asked, strict=True) if can_be_asked]
        predictions = self.adapter.ask(queries_of(candidate, rows))
        if not any(prediction.distribution is not None for prediction in predictions):
            return found, None
        return found, self._fit(rows, predictions)

    def _is_perfect(self, best: ValidatedPrompt) -> bool:
        enough = min(len(self.task.validation), _FEWEST)
        if best.rows is None:
            return best.score >= PERFECT
        return best.accuracy == 1.0 and best.rows >= enough

    def _compared(self, found: Choice) -> Choice:
        """Return the choice between the race's best two prompts, each with its head.

        A race compares prompts without their heads, which may make more of the one that came second. They are compared
        on validation rows, which the race has asked about for the most part: training rows are asked under one alone.
        """
        if found.runner_up is None or not self.max_metric_calls:
            return found
        pair = [found.validated[place].candidate for place in (found.chosen, found.runner_up)]
        rows = self._asked_under_both(pair)
        predictions = [self.adapter.ask(queries_of(candidate, rows)) for candidate in pair]
        known = [
            place
            for place, both in enumerate(zip(*predictions, strict=True))
            if all(one.distribution is not None for one in both)
        ]
        if len(known) < _FEWEST:
            return found
        kept = [rows[place] for place in known]
        raced, other = (_standing(self._fit(kept, [made[place] for place in known])) for made in predictions)
        choice = HeadChoice(
            raced=found.chosen,
            other=found.runner_up,
            rows=len(kept),
            raced_log_loss=raced.loss,
            other_log_loss=other.loss,
            raced_accuracy=raced.accuracy,
            other_accuracy=other.accuracy,
            chosen=found.runner_up if beats(other, raced, errors=BETTER) else found.chosen,
        )
        return replace(found, chosen=choice.chosen, by_head=choice)

    def _asked_under_both(self, pair: Sequence[Mapping[str, str]]) -> list[Example]:
        """Return the validation rows affordable under both prompts; empty if too few.

        Whichever of them is kept, all rows that teach its head are paid first.
        """
        held_out = {row.input for row in self.task.validation}
        every = [labelled_rows(self.task, candidate[COMPONENT]) for candidate in pair]
        found = [row for row in every[0] if row.input in held_out]  # the first rows of both
        for kept, other in ((0, 1), (1, 0)):
            own, n = queries_of(pair[kept], every[kept]), len(found)
            paid = self.adapter.affordable([*own, *queries_of(pair[other], found)], self._calls_left())
            found = [row for row, *both in zip(found, paid[:n], paid[len(own) :], strict=True) if all(both)]
        return found if len(found) >= _FEWEST else []

    def _calls_left(self) -> int:
        return self.max_metric_calls - self.adapter.metric_calls

    def _fit(self, rows: Sequence[Example], predictions: Sequence[Prediction]) -> Head:
        answers, texts = [row.answer for row in rows], [row.input for row in rows]
        return head_of(predictions, answers, texts, labels=self.task.labels, embedding=self.embedding)


def _standing(head: Head) -> PromptStanding:
    """Return the cross-validated standing of a head on its training rows."""
    assert head.held_out_losses is not None  # noqa: S101 (only of fewer rows than are ever compared)
    figures = next(one for one in head.figures if one.name == head.rung)
    return PromptStanding(losses=head.held_out_losses, accuracy=figures.accuracy, macro_f1=figures.macro_f1)


def embedding_model(task: Task) -> EmbeddingModel | None:
    """Return the embedding model of the search's head; None for a head on words alone.

    Raises
    ------
    ConfigurationError
        The task names a model that cannot be opened.
    """
    named = task.head.embeddings if task.head.fit == "auto" else None
    return None if named is None else open_embedding_model(named)


def labelled_rows(task: Task, prompt: str) -> list[Example]:
    """Return the training rows of a head: validation rows, then training rows outside the prompt.

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
