"""The seam between a cascade and whatever says how sure an answer is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from calibrant.core._prediction import Prediction, Usage
from calibrant.inference._classifier import Classifier


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One model's answer to one text.

    Attributes
    ----------
    question : str
        The user's text, as the model read it.
    prediction : Prediction
        What it answered; its outcome is ``ok``. Holds its tokens where the method needs them.
    classifier : Classifier
        What answered.
    context : str or None
        What the answer should be grounded in, where there is something.
    """

    question: str
    prediction: Prediction
    classifier: Classifier
    context: str | None = None


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """How sure an answer is.

    Attributes
    ----------
    confidence : float
        In [0, 1].
    native : float
        The same in the method's own unit, such as a mean natural log-probability; the surer, the higher.
    reason : str
        What the verifier said, where one was asked.
    usage : Usage
        Tokens and cost of the calls that were made to find out.
    attempts : int
        Those calls, retries included.
    """

    confidence: float
    native: float
    reason: str = ""
    usage: Usage = Usage()
    attempts: int = 0


@dataclass(frozen=True, kw_only=True)
class NoEvidence:
    """Nothing says how sure an answer is.

    Attributes
    ----------
    reason : str
        What was expected, what came, what to do.
    usage : Usage
        Tokens and cost of the calls that were made in vain.
    attempts : int
        Those calls, retries included.
    """

    reason: str
    usage: Usage = Usage()
    attempts: int = 0


@runtime_checkable
class ConfidenceMethod(Protocol):
    """Says how sure an answer is.

    Attributes
    ----------
    name : str
        As the configuration spells it.
    default_threshold : float
        On [0, 1]: the confidence from which an answer is accepted.
    top_logprobs : int
        Alternatives it needs for every token; 0 for none.
    needs_tokens : bool
        Whether it reads `Prediction.tokens`.
    """

    @property
    def name(self) -> str: ...

    @property
    def default_threshold(self) -> float: ...

    @property
    def top_logprobs(self) -> int: ...

    @property
    def needs_tokens(self) -> bool: ...

    async def assess(self, answered: Answered) -> Assessment | NoEvidence:
        """Return how sure the answer is; whatever goes wrong on the way is `NoEvidence`."""
        ...

    def to_confidence(self, native: float) -> float:
        """Return where a value in the method's own unit lies on [0, 1].

        Raises
        ------
        ConfigurationError
            It is not in the unit's range.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return what can change an assessment as JSON values, free of credentials."""
        ...

    def close(self) -> None:
        """Free what the method holds."""
        ...
