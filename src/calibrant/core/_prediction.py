"""The answer of a classifier to one text, and the steps of a cascade."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from calibrant.core._reported import clean_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from calibrant.core._completion import Token
    from calibrant.core._distribution import LabelDistribution


LONGEST_NAME: Final = 200
"""Characters kept of the name a server gives a model."""

_LONGEST_REASON: Final = 2000


class Outcome(StrEnum):
    """End of a row.

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


class Verdict(StrEnum):
    """Fate of one model's answer in a cascade.

    ``accepted``
        Sure enough: the cascade's answer.
    ``escalated``
        Not sure enough: the next model was asked, where there was one and the limits allowed it.
    ``no_evidence``
        It came without what its confidence is read from, so nothing says how sure it is.
    ``failed``
        There is no answer: see the step's outcome and reason.
    """

    ACCEPTED = "accepted"
    ESCALATED = "escalated"
    NO_EVIDENCE = "no_evidence"
    FAILED = "failed"


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

    def __add__(self, other: Usage) -> Usage:
        """Return the sum; a cost is unknown where both are."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=sum(costs) if costs else None,
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """Contribution of one model of a cascade to a row.

    Attributes
    ----------
    model : str
        The model, as the user named it.
    verdict : Verdict
        Fate of its answer.
    label : str or None
        Its answer; None where it has none.
    confidence : float or None
        In [0, 1], by the cascade's method; None where there was no evidence.
    native : float or None
        The same in the method's own unit.
    outcome : Outcome
        How the call ended.
    reason : str
        Why it failed, why there is no evidence, what the verifier said, or which limit ended the row here.
    usage : Usage
        Tokens and cost of its calls, those that verify its answer included.
    attempts : int
        Calls made for it, retries and verification included.
    """

    model: str
    verdict: Verdict
    label: str | None = None
    confidence: float | None = None
    native: float | None = None
    outcome: Outcome = Outcome.OK
    reason: str = ""
    usage: Usage = Usage()
    attempts: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", clean_line(self.reason, limit=_LONGEST_REASON))


@dataclass(frozen=True, kw_only=True)
class Part:
    """One label of an answer that holds several.

    Attributes
    ----------
    name : str
        The field, or, where any number of labels may be answered, the label that is in the answer or not.
    label : str
        The field's label; ``yes`` or ``no`` in the other case.
    confidence : float or None
        In [0, 1]; None where the answer carried no usable log-probabilities.
    distribution : LabelDistribution or None
        Over the values of this part; None where the answer carried no usable log-probabilities.
    """

    name: str
    label: str
    confidence: float | None = None
    distribution: LabelDistribution | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer of a classifier to one text.

    Attributes
    ----------
    label : str or None
        The label, spelled as in the label set, or the JSON text of an answer that holds several; None unless
        `outcome` is ``ok``.
    confidence : float or None
        In [0, 1]; None where the answer carried no usable log-probabilities.
    distribution : LabelDistribution or None
        Over all labels; None where the answer carried no usable log-probabilities, or holds several labels: their
        own are among `parts`.
    outcome : Outcome
        How the row ended.
    reason : str
        Why it did not end well, or why what was reported is no evidence; else empty. One line, 2,000 characters at
        most.
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
    tokens : tuple of Token or None
        The emitted tokens with their log-probabilities, where the classifier keeps them.
    steps : tuple of Step
        The models a cascade asked, in order; empty for a single model.
    accepted : bool or None
        Whether the confidence of a cascade's answer reached its threshold; None for a single model.
    parts : tuple of Part
        The labels of an answer that holds several; empty where it is one label.
    features : ndarray of float16, shape (d,), or None
        What the model made of the text (`TokenLogprobs.features`, where the label begins), where it is kept.
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
    tokens: tuple[Token, ...] | None = None
    steps: tuple[Step, ...] = ()
    accepted: bool | None = None
    parts: tuple[Part, ...] = ()
    features: NDArray[np.float16] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Stored rows of earlier versions, and values inside a model's JSON, hold what no file can.
        object.__setattr__(self, "reason", clean_line(self.reason, limit=_LONGEST_REASON))
        if self.model is not None:
            object.__setattr__(self, "model", clean_line(self.model, limit=LONGEST_NAME))

    @property
    def distributions(self) -> tuple[LabelDistribution, ...]:
        """The distribution of the answer, or those of its parts; empty where there is none."""
        if self.distribution is not None:
            return (self.distribution,)
        return tuple(part.distribution for part in self.parts if part.distribution is not None)

    @property
    def has_low_label_mass(self) -> bool:
        """True if the model preferred other texts to the answer, or to one of its parts."""
        return any(distribution.is_label_mass_low for distribution in self.distributions)

    def with_effort(self, *, attempts: int | None = None, latency_seconds: float | None = None) -> Prediction:
        """Return a copy that took so many calls, or so many seconds.

        Parameters
        ----------
        attempts : int, optional
            By default this one's; 0 makes it 0 for every step of a cascade as well.
        latency_seconds : float, optional
            By default this one's.
        """
        # `dataclasses.replace` runs the constructor on all fields, for every row: ten times slower.
        copy = object.__new__(Prediction)
        copy.__dict__.update(self.__dict__)
        if attempts is not None:
            copy.__dict__["attempts"] = attempts
            if attempts == 0 and self.steps:
                copy.__dict__["steps"] = tuple(replace(step, attempts=0) for step in self.steps)
        if latency_seconds is not None:
            copy.__dict__["latency_seconds"] = latency_seconds
        return copy

    @property
    def log_confidence(self) -> float | None:
        """Natural logarithm of `confidence`, <= 0; None where there is no confidence."""
        if self.confidence is None:
            return None
        return math.log(max(self.confidence, 1e-300))
