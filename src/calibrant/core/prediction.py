"""What a classifier returns for one text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.core.distribution import LabelDistribution

__all__ = ["Outcome", "Prediction", "Usage"]


class Outcome(StrEnum):
    """How one row ended.

    ``ok``
        A legal label.
    ``error``
        The server's fault: transport, status, broken body. Says nothing about the prompt.
    ``refusal``
        The model declined to answer.
    ``unparsed``
        The model's fault: cut off by length, not JSON, or a label outside the label set.
    """

    OK = "ok"
    ERROR = "error"
    REFUSAL = "refusal"
    UNPARSED = "unparsed"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens and money one answer took.

    Attributes
    ----------
    prompt_tokens, completion_tokens : int
        As the provider counted them; 0 where it did not say.
    cost : float or None
        US dollars; None where no price is known.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer of a classifier to one text.

    Attributes
    ----------
    label : str or None
        The label, spelled as in the label set; None unless `outcome` is ``ok``.
    confidence : float or None
        In [0, 1]; None where the answer carried no usable log-probabilities.
    distribution : LabelDistribution or None
        Over all labels; None where the answer carried no usable log-probabilities.
    outcome : Outcome
        How the row ended.
    reason : str
        Why it did not end well; empty when `outcome` is ``ok``.
    text : str
        The raw completion.
    usage : Usage
        Tokens and cost.
    model : str or None
        The model that really answered, as the provider names it.
    attempts : int
        Calls made for this row, retries included; 0 when it was read from a journal.
    latency_seconds : float
        Wall time of the row in seconds, retries included.
    """

    label: str | None
    confidence: float | None = None
    distribution: LabelDistribution | None = None
    outcome: Outcome = Outcome.OK
    reason: str = ""
    text: str = ""
    usage: Usage = Usage()
    model: str | None = None
    attempts: int = 1
    latency_seconds: float = 0.0

    @property
    def log_confidence(self) -> float | None:
        """Natural logarithm of `confidence`, <= 0; None where there is no confidence."""
        if self.confidence is None:
            return None
        return math.log(max(self.confidence, 1e-300))
