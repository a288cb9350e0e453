"""Gate for changes: a paired test of two classifiers that may be looked at after every row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

from calibrant.core._errors import ConfigurationError
from calibrant.metrics._validation import check_count, check_number

GateDecision = Literal["accepted", "rejected", "undecided"]

# Share of the capital staked on a row, and how the first capital is split over these shares. The best stake is about
# the gain over the share of rows that differ, such as 0.05 / 0.2: more capital lies there. In simulations a uniform
# split over twenty stakes had 7 points less power at twice the rows of the fixed-sample test.
_STAKES: Final = ((0.05, 0.1), (0.12, 0.2), (0.25, 0.35), (0.45, 0.25), (0.8, 0.1))
_LARGEST: Final = 700.0  # of logarithms: beyond it a float overflows
_MOST_ROWS: Final = 10**7  # no forecast goes beyond it
_RECORDED: Final = (
    "n",
    "only_a",
    "only_b",
    "delta",
    "least_gain",
    "margin",
    "evidence",
    "evidence_against",
    "decision",
)


@dataclass(frozen=True, kw_only=True)
class PairedGate:
    """Evidence that b is more accurate than a on the same rows, valid after any number of rows.

    A bet on each row that b is right and a is wrong is fair, or loses on average, if b is not better. The capital of
    whoever began with 1 then exceeds ``1 / delta`` at any time with probability `delta` at most (Ville's inequality),
    so one may look after every row, stop as soon as the gate has decided, and add rows if it has not. A second bet, on
    b not being better by `margin`, ends the comparison where more rows would not help.

    The capital depends on the counts alone; the decision on the highest capital so far, and hence on the order of the
    rows. The promise holds for an order that has nothing to do with the answers: shuffle a sorted file first.

    Parameters
    ----------
    n : int, default 0
        Rows so far.
    only_a, only_b : int, default 0
        Rows that only a, or only b, has right.
    delta : float, default 0.1
        Probability of a wrong decision, in (0, 1): of accepting b though its gain is `least_gain` or less, and of
        rejecting it though its gain is ``least_gain + margin`` or more.
    least_gain : float, default 0.0
        Gain in accuracy that b must be shown to exceed, in [-0.2, 0.2]: 0 for better, -0.02 for not worse by 2 points.
    margin : float, default 0.05
        Gain beyond it that matters, in (0, 0.2].
    earlier_evidence, earlier_evidence_against : float, default 1.0
        Highest capitals before the last rows, at least 1; `after` and `plus` set them.

    Raises
    ------
    ConfigurationError
        A count is not whole or out of range, or a number out of range.

    Notes
    -----
    With x = 1 where only b is right, -1 where only a is, and 0 elsewhere, a bet multiplies its capital by
    ``1 + s (x - least_gain)``. Of the capital at the start a part goes to each stake s: 0.1 to 0.05, 0.2 to 0.12, 0.35
    to 0.25, 0.25 to 0.45 and 0.1 to 0.8.

    References
    ----------
    .. [1] A. Ramdas, P. Grünwald, V. Vovk, G. Shafer (2023), Game-theoretic statistics and safe anytime-valid
       inference. Statistical Science 38.
    .. [2] I. Waudby-Smith, A. Ramdas (2024), Estimating means of bounded random variables by betting. JRSS B 86.

    Examples
    --------
    >>> gate = PairedGate()
    >>> for right_before, right_after in [(True, True), *[(False, True)] * 7]:
    ...     gate = gate.after(right_before, right_after)
    >>> gate.decision, gate.n, round(gate.evidence, 1)
    ('accepted', 8, 11.7)
    """

    n: int = 0
    only_a: int = 0
    only_b: int = 0
    delta: float = 0.1
    least_gain: float = 0.0
    margin: float = 0.05
    earlier_evidence: float = 1.0
    earlier_evidence_against: float = 1.0

    def __post_init__(self) -> None:
        check_count("n", self.n, low=0)
        check_count("only_a", self.only_a, low=0, high=self.n)
        check_count("only_b", self.only_b, low=0, high=self.n - self.only_a)
        check_number("delta", self.delta, "(0, 1)")
        check_number("least_gain", self.least_gain, "[-0.2, 0.2]")
        check_number("margin", self.margin, "(0, 0.2]")
        check_number("earlier_evidence", self.earlier_evidence, "[1, inf)")
        check_number("earlier_evidence_against", self.earlier_evidence_against, "[1, inf)")

    def after(self, right_a: bool, right_b: bool) -> PairedGate:
        """Return the gate after one more row.

        Parameters
        ----------
        right_a, right_b : bool
            Whether a, and b, is right on it.

        Raises
        ------
        ConfigurationError
            Neither true nor false.
        """
        for name, right in (("right_a", right_a), ("right_b", right_b)):
            if right not in (True, False):
                raise ConfigurationError(
                    f"Expected {name} to be True or False, got {right!r:.40}: say if the answer is right."
                )
        return self.plus(n=1, only_a=int(right_a and not right_b), only_b=int(right_b and not right_a))

    def plus(self, *, n: int, only_a: int, only_b: int) -> PairedGate:
        """Return the gate after `n` more rows at once, of which only a has `only_a` right and only b `only_b`."""
        return replace(
            self,
            n=self.n + n,
            only_a=self.only_a + only_a,
            only_b=self.only_b + only_b,
            earlier_evidence=self.evidence,
            earlier_evidence_against=self.evidence_against,
        )

    @cached_property
    def capital(self) -> float:
        """Capital of the bet that the gain exceeds `least_gain`."""
        return self._capital(wins=self.only_b, losses=self.only_a, expected=self.least_gain)

    @cached_property
    def capital_against(self) -> float:
        """Capital of the bet that the gain is below ``least_gain + margin``."""
        return self._capital(wins=self.only_a, losses=self.only_b, expected=-(self.least_gain + self.margin))

    @property
    def evidence(self) -> float:
        """Highest `capital` so far, at least 1."""
        return max(self.earlier_evidence, self.capital)

    @property
    def evidence_against(self) -> float:
        """Highest `capital_against` so far, at least 1."""
        return max(self.earlier_evidence_against, self.capital_against)

    @property
    def decision(self) -> GateDecision:
        """Decision on the rows so far.

        It takes evidence of ``1 / delta``, and a gain on all rows so far that does not contradict it. A gain that is
        shown is accepted even if it is shown to be below the margin, too.
        """
        needed = 1.0 / self.delta
        gain = (self.only_b - self.only_a) / max(self.n, 1)
        if self.evidence >= needed and gain > self.least_gain:
            return "accepted"
        if self.evidence_against >= needed and gain < self.least_gain + self.margin:
            return "rejected"
        return "undecided"

    @property
    def rows_to_decision(self) -> int | None:
        """Further rows after which it decides, if only a and only b have as large a share of them right as so far.

        About: the shares of further rows are others. 0 if it has decided; None without a row, or beyond ten million.
        """
        if self.decision != "undecided":
            return 0
        if self.n == 0:
            return None
        short = self.n
        enough = 2 * self.n
        while self._grown_to(enough).decision == "undecided":
            short = enough
            enough = 2 * enough
            if short > _MOST_ROWS:
                return None
        while enough - short > 1:
            middle = (short + enough) // 2
            if self._grown_to(middle).decision == "undecided":
                short = middle
            else:
                enough = middle
        return enough - self.n

    def _grown_to(self, n: int) -> PairedGate:
        """Return the gate after `n` rows with the shares of those so far, rounded down."""
        return replace(self, n=n, only_a=self.only_a * n // self.n, only_b=self.only_b * n // self.n)

    def to_record(self) -> dict[str, Any]:
        """Return counts, settings, evidence and decision as JSON values."""
        return {name: getattr(self, name) for name in _RECORDED}

    def _capital(self, *, wins: int, losses: int, expected: float) -> float:
        """Return the capital of bets that wins minus losses, a row, exceed `expected`.

        A stake multiplies the capital of a row with x in {-1, 0, 1} by ``1 + stake (x - expected)``, whose mean is 1 at
        most where that of x is `expected` at most. Stakes up to 0.8 keep it positive for `expected` up to 0.25.
        """
        ties = self.n - wins - losses
        capitals = [
            math.log(share)
            + wins * math.log1p(stake * (1.0 - expected))
            + losses * math.log1p(-stake * (1.0 + expected))
            + ties * math.log1p(-stake * expected)
            for stake, share in _STAKES
        ]
        return sum(math.exp(min(capital, _LARGEST)) for capital in capitals)
