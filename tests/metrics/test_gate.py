"""Tests of the gate that may be looked at after every row."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from calibrant.core import ConfigurationError
from calibrant.metrics import PairedGate

BOTH, ONLY_A, ONLY_B = (True, True), (True, False), (False, True)


def seen(rows: list[tuple[bool, bool]], **settings: Any) -> PairedGate:
    """Return the gate after rows, one at a time."""
    gate = PairedGate(**settings)
    for right_a, right_b in rows:
        gate = gate.after(right_a, right_b)
    return gate


@pytest.mark.parametrize("least_gain", [-0.2, -0.02, 0.0, 0.1])
@pytest.mark.parametrize("only_a", [0.0, 0.1, 0.3])
def test_capital_is_one_on_average_without_the_gain(least_gain: float, only_a: float) -> None:
    """Over all sequences of rows with exactly the gain, the mean of the capital is 1 at every length."""
    only_b = only_a + least_gain
    if only_b < 0.0:
        only_a, only_b = -least_gain, 0.0
    chances = {BOTH: 1.0 - only_a - only_b, ONLY_A: only_a, ONLY_B: only_b}
    for length in range(1, 7):
        mean = sum(
            math.prod(chances[row] for row in rows) * seen(list(rows), least_gain=least_gain).capital
            for rows in itertools.product(chances, repeat=length)
        )
        assert mean == pytest.approx(1.0)


@pytest.mark.parametrize("margin", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("only_a", [0.0, 0.1, 0.3])
def test_capital_against_is_one_on_average_with_the_margin(margin: float, only_a: float) -> None:
    """Over all sequences of rows whose gain is the margin, the mean of the capital against it is 1."""
    chances = {BOTH: 1.0 - 2.0 * only_a - margin, ONLY_A: only_a, ONLY_B: only_a + margin}
    for length in range(1, 7):
        mean = sum(
            math.prod(chances[row] for row in rows) * seen(list(rows), margin=margin).capital_against
            for rows in itertools.product(chances, repeat=length)
        )
        assert mean == pytest.approx(1.0)


@pytest.mark.parametrize("only_b", [0.0, 0.2, 0.4])
def test_capital_shrinks_on_average_if_b_is_worse(only_b: float) -> None:
    """From wherever it stands, one more row of a b that is worse leaves less capital on average."""
    for n, a, b in [(0, 0, 0), (9, 0, 7), (30, 10, 5)]:
        gate = PairedGate(n=n, only_a=a, only_b=b)
        after = 0.5 * gate.after(*ONLY_A).capital + only_b * gate.after(*ONLY_B).capital
        assert after + (0.5 - only_b) * gate.after(*BOTH).capital < gate.capital


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.3])
def test_looking_after_every_row_accepts_equals_rarely(delta: float) -> None:
    """Of two equals, b is accepted at any of 300 differing rows with probability delta at most, worked out exactly."""
    open_states, accepted = Counter({0: 1.0}), 0.0
    for n in range(1, 301):
        after: Counter[int] = Counter()
        for wins, chance in open_states.items():
            for more in (0, 1):
                after[wins + more] += chance / 2.0
        for wins in list(after):
            gate = PairedGate(n=n, only_a=n - wins, only_b=wins, delta=delta)
            if gate.decision == "accepted":
                accepted += after.pop(wins)
        open_states = after
    assert delta / 4.0 < accepted <= delta


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (0, 7), (7, 0), (40, 70), (300, 250)])
def test_capital_is_a_mean_of_binomial_likelihood_ratios(only_a: int, only_b: int) -> None:
    """For a gain of 0 the capital equals the documented mean of likelihood ratios, by scipy's binomials."""
    shares = {0.05: 0.1, 0.12: 0.2, 0.25: 0.35, 0.45: 0.25, 0.8: 0.1}
    differing = only_a + only_b
    expected = sum(
        share * binom.pmf(only_b, differing, (1.0 + stake) / 2.0) / binom.pmf(only_b, differing, 0.5)
        for stake, share in shares.items()
    )
    found = PairedGate(n=differing + 20, only_a=only_a, only_b=only_b).capital
    assert found == pytest.approx(expected)


@given(st.lists(st.sampled_from([BOTH, ONLY_A, ONLY_B, (False, False)]), max_size=30), st.randoms())
def test_the_capital_does_not_depend_on_the_order(rows: list[tuple[bool, bool]], random: Any) -> None:
    """The capital after the rows in any order is the same, and the same as after all of them at once."""
    shuffled = random.sample(rows, len(rows))
    counts = Counter(rows)
    at_once = PairedGate().plus(n=len(rows), only_a=counts[ONLY_A], only_b=counts[ONLY_B])
    gates = [seen(rows), seen(shuffled), at_once]
    assert {(gate.n, gate.only_a, gate.only_b) for gate in gates} == {
        (len(rows), counts[ONLY_A], counts[ONLY_B])
    }
    assert len({(gate.capital, gate.capital_against) for gate in gates}) == 1


def test_capital_rises_with_wins_and_falls_with_losses() -> None:
    """A win adds capital, a loss takes some, and a row on which both agree changes that of a gain of 0 by nothing."""
    gate = PairedGate(n=100, only_a=10, only_b=15)
    assert gate.after(*ONLY_A).capital < gate.capital < gate.after(*ONLY_B).capital
    assert gate.after(*ONLY_B).capital_against < gate.capital_against < gate.after(*ONLY_A).capital_against
    for row in (BOTH, (False, False)):
        assert gate.after(*row).capital == gate.capital
        assert gate.after(*row).capital_against > gate.capital_against


def test_evidence_is_the_highest_capital_so_far() -> None:
    """What was shown at some row stays shown, unless all rows together speak for the opposite."""
    shown = seen([ONLY_B] * 7)
    later = seen([ONLY_B] * 7 + [ONLY_A] * 6)
    assert later.evidence == shown.evidence == shown.capital > later.capital
    assert later.decision == "accepted"
    assert later.after(*ONLY_A).decision == "undecided"
    ruled_out = seen([ONLY_A] * 10)
    assert ruled_out.decision == "rejected"
    after_many = ruled_out.plus(n=10, only_a=0, only_b=10).after(*BOTH)
    assert after_many.evidence_against == ruled_out.capital_against
    assert after_many.decision == "rejected"
    assert after_many.plus(n=2, only_a=0, only_b=2).decision == "undecided"


def test_rows_that_agree_never_accept() -> None:
    """Without a row that differs nothing is accepted; many of them rule the margin out, and show b not worse."""
    assert PairedGate(n=10**6).evidence == 1.0
    assert PairedGate(n=20).decision == "undecided"
    assert PairedGate(n=10**6).decision == "rejected"
    assert PairedGate(n=1000, least_gain=-0.02).decision == "accepted"


def test_not_worse_is_the_other_side_of_not_better() -> None:
    """The capital of "b loses less than the margin" is that of "a gains less than the margin" with a and b swapped."""
    not_worse = PairedGate(n=200, only_a=11, only_b=17, least_gain=-0.04).capital
    assert not_worse == pytest.approx(PairedGate(n=200, only_a=17, only_b=11, margin=0.04).capital_against)


def test_delta_is_the_evidence_that_decides() -> None:
    """Seven wins in a row decide at a delta of 0.1 and not at 0.05; six do not."""
    assert [seen([ONLY_B] * n).decision for n in (6, 7)] == ["undecided", "accepted"]
    assert seen([ONLY_B] * 7, delta=0.05).decision == "undecided"
    assert seen([ONLY_A] * 12).decision == "rejected"


def test_a_small_gain_that_is_shown_is_accepted() -> None:
    """A gain that is above 0 and below the margin, both for certain, is accepted."""
    gate = PairedGate(n=100_000, only_a=4_000, only_b=5_000)
    assert gate.evidence_against > 10.0
    assert gate.decision == "accepted"


def test_it_forecasts_the_rows_that_would_decide() -> None:
    """So many further rows like those so far decide, and one fewer does not; without any row, none are named."""
    gate = PairedGate(n=40, only_a=1, only_b=3)
    further = gate.rows_to_decision
    assert further is not None
    for n, decision in ((39 + further, "undecided"), (40 + further, "accepted")):
        assert PairedGate(n=n, only_a=n // 40, only_b=3 * n // 40).decision == decision
    assert PairedGate(n=10).rows_to_decision == next(
        n for n in range(1, 200) if PairedGate(n=10 + n).decision == "rejected"
    )
    assert PairedGate().rows_to_decision is None
    assert seen([ONLY_B] * 7).rows_to_decision == 0


def test_evidence_of_many_rows_is_a_number() -> None:
    """Evidence beyond what a float holds is finite, and so is none."""
    record = PairedGate(n=10**7, only_b=10**7).to_record()
    assert all(np.isfinite(record[name]) for name in ("evidence", "evidence_against"))
    assert record["decision"] == "accepted"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n": -1}, "Expected n to be a whole number of at least 0, got -1"),
        ({"n": 3, "only_a": 2, "only_b": 2}, r"Expected only_b to be a whole number in \[0, 1\], got 2"),
        ({"delta": 0.0}, r"Expected delta in \(0, 1\), got 0"),
        ({"least_gain": 0.3}, r"Expected least_gain in \[-0.2, 0.2\], got 0.3"),
        ({"earlier_evidence": 0.5}, r"Expected earlier_evidence in \[1, inf\), got 0.5"),
        ({"earlier_evidence_against": 0}, r"Expected earlier_evidence_against in \[1, inf\), got 0"),
        ({"margin": 0.0}, r"Expected margin in \(0, 0.2\], got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], sentence: str) -> None:
    """Counts and settings out of range raise ConfigurationError, and the sentence says what is expected."""
    with pytest.raises(ConfigurationError, match=sentence):
        PairedGate(**settings)


def test_a_row_is_right_or_wrong() -> None:
    """A row that is neither right nor wrong is refused."""
    with pytest.raises(ConfigurationError, match="Expected right_b to be True or False, got None"):
        PairedGate().after(right_a=True, right_b=None)  # type: ignore[arg-type]
