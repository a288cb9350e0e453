"""Interface of decision models: typed questions about a text, and the probability of every option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from calibrant.core._completion import Client
from calibrant.core._prediction import Usage

QuestionKind: TypeAlias = Literal["choice", "score", "yes_no"]


@dataclass(frozen=True, kw_only=True)
class DecisionQuestion:
    """Question with a fixed set of options.

    Attributes
    ----------
    kind : {"choice", "score", "yes_no"}
        One of several options; one of several levels, lowest first; or whether a statement holds.
    options : tuple of str, length n
        The options in the order in which they are sent; of ``yes_no`` the words for no and yes.
    instructions : str
        What is asked.
    descriptions : tuple of str or None
        Meaning of each option, None where nothing is said; empty without any.

    Examples
    --------
    >>> DecisionQuestion(kind="choice", options=("cat", "dog"), instructions="Which animal?").options
    ('cat', 'dog')
    """

    kind: QuestionKind
    options: tuple[str, ...]
    instructions: str
    descriptions: tuple[str | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DecisionAnswer:
    """Answer to one question, as it was reported.

    Attributes
    ----------
    probabilities : tuple of float, length n
        Probability of each option, in the order of the question.
    chosen : int or None
        Index of the option that the model names; None where it names none, or another one.

    Examples
    --------
    >>> DecisionAnswer(probabilities=(0.9, 0.1), chosen=0).chosen
    0
    """

    probabilities: tuple[float, ...]
    chosen: int | None = None


@dataclass(frozen=True, kw_only=True)
class DecisionResponse:
    """Response of a decision model: answers to the questions of one call.

    Attributes
    ----------
    answers : tuple of DecisionAnswer or None
        One for each question, in order; None for a question that the model refused.
    usage : Usage
        Tokens and cost of the call.
    model : str or None
        The model that really answered.

    Examples
    --------
    >>> DecisionResponse(answers=(DecisionAnswer(probabilities=(0.9, 0.1)), None)).usage.prompt_tokens
    0
    """

    answers: tuple[DecisionAnswer | None, ...]
    usage: Usage = Usage()
    model: str | None = None


@runtime_checkable
class DecisionClient(Client, Protocol):
    """Client of a model that answers typed questions with probabilities and writes no text.

    Examples
    --------
    >>> from calibrant import Classifier
    >>> from calibrant.core import DecisionAnswer, DecisionResponse
    >>> class CatLover:
    ...     name, space, endpoint = "cat-lover", "decision", None
    ...
    ...     async def complete(self, request):
    ...         raise NotImplementedError
    ...
    ...     async def decide(self, text, questions):
    ...         return DecisionResponse(answers=(DecisionAnswer(probabilities=(0.9, 0.1)),))
    ...
    ...     def close(self):
    ...         pass
    >>> Classifier(model=CatLover(), labels=["cat", "dog"]).classify("It purrs.").label
    'cat'
    """

    async def decide(self, text: str, questions: Sequence[DecisionQuestion]) -> DecisionResponse:
        """Return the answers to questions about a text.

        Raises
        ------
        ProviderError
            The call failed, or an answer does not fit its question.
        """
