"""What the run of a cascade has paid, and what it may pay."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrant.core._limits import Limits
from calibrant.core._prediction import Usage
from calibrant.inference._limits import Gate


class Purse(Gate):
    """Keeps the budgets of a cascade; its members' own gates let the calls through.

    A row's usage says what its answers took, those that a journal held included; what is paid is told
    call by call instead.

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
        """Take note of calls that were made."""
        tokens = usage.prompt_tokens + usage.completion_tokens
        with self._lock:
            self.requests += attempts
            self.tokens += tokens
            self.cost += usage.cost or 0.0
            self.unpriced += usage.cost is None and tokens > 0

    def charge(self, usage: Usage, *, rows: int = 1) -> None:  # noqa: ARG002  (paid already)
        """Take note of a row."""
        with self._lock:
            self.rows += rows

    def used_up(self, under_way: int) -> str:
        """Return which budget is used up, the cascade's or a member's; else nothing."""
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
