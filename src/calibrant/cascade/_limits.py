"""What one row of a cascade may take."""

from __future__ import annotations

from dataclasses import dataclass, fields

from calibrant.cascade._checks import is_count, is_number
from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Usage


@dataclass(frozen=True, kw_only=True)
class RowLimits:
    """What one row of a cascade may take; looked at before a further model is asked.

    The first model is always asked, and what is reached ends the row with the best answer so far. 0 means
    zero: the first model alone.

    Attributes
    ----------
    max_escalations : int, optional
        How often an answer may be passed over for the next model's. Models that fail are no
        escalation.
    max_tokens : int, optional
        Tokens of all calls for the row, prompts included, after which no further model is asked.
    max_cost : float, optional
        US dollars, alike; where a call's price is not known, the limit cannot be kept, and no further
        model is asked.
    deadline_seconds : float, optional
        Seconds after which no further model is asked, and whatever is under way but the first
        model's answer is given up.

    Raises
    ------
    ConfigurationError
        A limit is no number of at least 0.
    """

    max_escalations: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    deadline_seconds: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            whole = field.name in {"max_escalations", "max_tokens"}
            if not (is_count(value, low=0) if whole else is_number(value) and value >= 0):
                kind = "a whole number" if whole else "a number"
                raise ConfigurationError(f"Expected {field.name} to be {kind} of at least 0, got {value!r}.")

    def reached(self, *, escalations: int, usage: Usage, unpriced: str, seconds: float) -> str:
        """Return which limit forbids to ask a further model; else nothing.

        Parameters
        ----------
        escalations : int
            Answers passed over so far, the last one included.
        usage : Usage
            What all calls took.
        unpriced : str
            A model whose price is not known; empty without one.
        seconds : float
            Since the row was begun.
        """
        if self.max_escalations is not None and escalations > self.max_escalations:
            return f"max_escalations of {self.max_escalations} is reached"
        tokens = usage.prompt_tokens + usage.completion_tokens
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return f"max_tokens of {self.max_tokens:,} is reached ({tokens:,} tokens)"
        if self.max_cost is not None:
            if unpriced:
                return (
                    f"no price is known for {unpriced}, so max_cost cannot be kept: set input_cost_per_token and "
                    "output_cost_per_token among its options, or cost=0 where it is free"
                )
            if (usage.cost or 0.0) >= self.max_cost:
                return (
                    f"max_cost of {self.max_cost:g} US dollars is reached ({usage.cost or 0.0:g} US dollars)"
                )
        if self.deadline_seconds is not None and seconds >= self.deadline_seconds:
            return f"deadline_seconds of {self.deadline_seconds:g} has passed"
        return ""
