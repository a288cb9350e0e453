"""A decision model in this process that knows animals as well as they are described to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibrant.core import (
    CompletionRequest,
    DecisionAnswer,
    DecisionQuestion,
    DecisionResponse,
    LogprobSpace,
)


class DecidingAnimals:
    """Decision model of two labels.

    Attributes
    ----------
    texts : list of str
        Texts that it was asked about.
    questions : list of DecisionQuestion
        The question about each.
    """

    name, space, endpoint = "animals", LogprobSpace.DECISION, None

    def __init__(self, knows: Callable[[str, str], tuple[str, float]]) -> None:
        """Answer as `knows` says: a label and its probability, by the text and all descriptions in one."""
        self._knows = knows
        self.texts: list[str] = []
        self.questions: list[DecisionQuestion] = []

    async def complete(self, request: CompletionRequest) -> object:
        raise NotImplementedError

    async def decide(self, text: str, questions: Sequence[DecisionQuestion]) -> DecisionResponse:
        (question,) = questions
        self.texts.append(text)
        self.questions.append(question)
        label, probability = self._knows(text, " ".join(filter(None, question.descriptions)))
        shares = [1.0 - probability, 1.0 - probability]
        shares[question.options.index(label)] = probability
        return DecisionResponse(answers=(DecisionAnswer(probabilities=(shares[0], shares[1])),))

    def close(self) -> None:
        """Do nothing."""
