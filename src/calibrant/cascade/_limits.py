"""Limits on one row of a cascade, and the budget meter of a cascade's runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from calibrant.core._limits import Limits
from calibrant.core._prediction import Usage
from calibrant.inference._limits import Gate
from calibrant.metrics._validation import check_count, check_number


@dataclass(frozen=True, kw_only=True)
class RowLimits:
    """Limits on one row of a cascade, checked before each escalation.

    The first model is always asked, and a limit that is reached ends the row with the best answer so far. 0 means
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
        Seconds after which no further model is asked, and every call under way but the first
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
        for name, value in asdict(self).items():
            if value is not None and name in {"max_escalations", "max_tokens"}:
                check_count(name, value, low=0)
            elif value is not None:
                check_number(name, value, "[0, inf)")

    def reached(self, *, escalations: int, usage: Usage, unpriced: str, seconds: float) -> str:
        """Return a description of the limit that is reached; an empty string if another model may be asked.

        Parameters
        ----------
        escalations : int
            Answers passed over so far, the last one included.
        usage : Usage
            Of all calls.
        unpriced : str
            A model whose price is not known; empty without one.
        seconds : float
            Since the row was begun.
        """
        if self.max_escalations is not None and escalations > self.max_escalations:
            return f"max_escalations of {self.max_escalations} is reached"
        tokens, cost = usage.prompt_tokens + usage.completion_tokens, usage.cost or 0.0
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return f"max_tokens of {self.max_tokens:,} is reached ({tokens:,} tokens)"
        # A limit on money that cannot be kept must not look as if it were.
        if self.max_cost is not None and unpriced:
            return (
                f"no price is known for {unpriced}, so max_cost cannot be kept: set input_cost_per_token and "
                "output_cost_per_token among its options, or cost=0 where it is free"
            )
        if self.max_cost is not None and cost >= self.max_cost:
            return f"max_cost of {self.max_cost:g} US dollars is reached ({cost:g} US dollars)"
        if self.deadline_seconds is not None and seconds >= self.deadline_seconds:
            return f"deadline_seconds of {self.deadline_seconds:g} has passed"
        return ""


class CascadeBudget(Gate):
    """Budget meter of a cascade; each model's own meter limits its concurrency and call rate.

    A row's usage includes answers that a journal held; this meter is told call by call what is paid.

    Parameters
    ----------
    limits : Limits
        Budgets and deadline of the whole; rates and calls in flight are kept by each member.
    members : sequence of Gate
        The members', whose own budgets end the run, too.
    """

    def __init__(self, limits: Limits, members: Sequence[Gate]) -> None:
        most = max(gate.concurrency for gate in members)
        super().__init__(limits, default_concurrency=most)
        self._members = tuple(members)

    def pay(self, usage: Usage, attempts: int) -> None:
        """Add the usage and the number of calls that were made."""
        super().charge(usage, rows=0)
        with self._lock:
            self.requests += attempts

    def charge(self, usage: Usage, *, rows: int = 1) -> None:  # noqa: ARG002  (paid already)
        """Add finished rows; `pay` has already added the usage of their calls."""
        with self._lock:
            self.rows += rows

    def used_up(self, under_way: int) -> str:
        """Describe the spent budget of the cascade or of a model; an empty string if none is spent."""
        if self.limits.max_cost is not None and self.unpriced:
            return (
                "No price is known for a model of this cascade, so max_cost cannot be kept: set input_cost_per_token "
                "and output_cost_per_token among the model's options, give cost=0 where it is free, or leave "
                "max_cost out"
            )
        rows = max(1, self.rows)
        # Of the rows under way, the share that came to each member so far.
        theirs = (gate.used_up(math.ceil(under_way * gate.rows / rows)) for gate in self._members)
        return super().used_up(under_way) or next(filter(None, theirs), "")
