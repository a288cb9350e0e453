"""Tests of meta-verifiers: they are optimal for a price, a budget or the lift."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.cascade import (
    MetaVerifier,
    POMDPMetaVerifier,
    SelfConsistencyMetaVerifier,
    ThresholdMetaVerifier,
    ibc_lift,
)
from calibrant.core import ConfigurationError, NotFittedError

Array = NDArray[np.float64]
COSTS = {"small_cost": 1.0, "large_cost": 50.0, "verifier_cost": 1.0}
FORMS = ["functional", "discrete", "continuous", "auto"]
Rows = tuple[Array, Array, Array]


def three_states(n: int, *, seed: int = 0, k: int = 8) -> Rows:
    """Return scores of n simple, complex or unsolvable questions; the verifier gives up on the hardest."""
    rng = np.random.default_rng(seed)
    state = rng.choice(3, n, p=[0.55, 0.25, 0.2])
    chance = np.array([0.85, 0.45, 0.15])[state]
    return rng.binomial(k, chance) / k, (state == 0).astype(float), (state < 2).astype(float)


def small_rows(seed: int, n: int = 40) -> Rows:
    """Return few rows of a few scores where the large model is better."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 2, n).astype(float)
    large = np.maximum(small * (rng.random(n) < 0.8), rng.random(n) < 0.7)
    large[0], small[0] = 1.0, 0.0
    return rng.integers(0, 5, n) / 4, small, np.where(large.mean() > small.mean(), large, 1.0)


def lift(routed: NDArray[np.bool_], rows: Rows) -> float:
    """Return the IBC lift of routing these rows."""
    _, small, large = rows
    return ibc_lift(
        performance=float(np.where(routed, large, small).mean()),
        cost=2.0 + 50.0 * routed.mean(),
        small_performance=small.mean(),
        small_cost=1.0,
        large_performance=large.mean(),
        large_cost=50.0,
    )


def all_sets(scores: Array) -> list[NDArray[np.bool_]]:
    """Return the rows that each set of distinct scores routes."""
    levels = np.unique(scores)
    return [np.isin(scores, levels[np.array(c)]) for c in product([False, True], repeat=len(levels))]


@pytest.mark.parametrize("seed", range(30))
def test_unsmoothed_discrete_beliefs_reach_the_best_lift(seed: int) -> None:
    """Unsmoothed beliefs reach the best lift of all sets of scores, and thresholds that of all thresholds."""
    rows = small_rows(seed)
    sets = all_sets(rows[0])
    fitted = POMDPMetaVerifier(form="discrete", k=4, smoothing=0.0).fit(*rows, **COSTS)
    assert lift(fitted.route(rows[0]), rows) == pytest.approx(max(lift(s, rows) for s in sets))
    cuts = [rows[0] < t for t in [*np.unique(rows[0]), 2.0]]
    threshold = ThresholdMetaVerifier().fit(*rows, **COSTS)
    assert lift(threshold.route(rows[0]), rows) == pytest.approx(max(lift(s, rows) for s in cuts))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("price", [0.0, 0.003, 0.01, 0.5])
def test_a_price_leads_to_the_policy_worth_most(seed: int, price: float) -> None:
    """Under a price, no other set of scores and no other threshold is worth more."""
    rows = small_rows(seed)

    def worth(routed: NDArray[np.bool_]) -> float:
        return float(np.where(routed, rows[2], rows[1]).mean() - price * 50.0 * routed.mean())

    for fitted, sets in [
        (POMDPMetaVerifier(form="discrete", k=4, smoothing=0.0, price=price), all_sets(rows[0])),
        (ThresholdMetaVerifier(price=price), [rows[0] < t for t in [*np.unique(rows[0]), 2.0]]),
    ]:
        fitted.fit(*rows, **COSTS)
        best = max(worth(s) for s in sets)
        assert worth(fitted.route(rows[0])) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("budget", [2.0, 9.0, 20.0, 60.0])
def test_budgets_are_met_by_the_best_prefix(seed: int, budget: float) -> None:
    """A budget is never overspent, and no affordable threshold does better."""
    rows = small_rows(seed)
    for fitted in (
        ThresholdMetaVerifier(budget=budget),
        POMDPMetaVerifier(form="discrete", k=4, budget=budget),
    ):
        routed = fitted.fit(*rows, **COSTS).route(rows[0])
        assert 2.0 + 50.0 * routed.mean() <= budget + 1e-9
    cut = ThresholdMetaVerifier(budget=budget).fit(*rows, **COSTS).route(rows[0])
    reachable = [rows[0] < t for t in [*np.unique(rows[0]), 2.0]]
    affordable = [np.where(s, rows[2], rows[1]).mean() for s in reachable if 2.0 + 50.0 * s.mean() <= budget]
    assert np.where(cut, rows[2], rows[1]).mean() == pytest.approx(max(affordable))


def test_gains_are_posterior_means_by_bayes() -> None:
    """The gain of every observation is the posterior mean under the reported prior and table."""
    rows = three_states(600)
    fitted = POMDPMetaVerifier(form="functional").fit(*rows, **COSTS)
    for seen in range(9):
        posterior = fitted.prior_ * fitted.observation_[:, seen]
        expected = float(posterior / posterior.sum() @ fitted.state_gain_)
        assert fitted.gain_[seen] == pytest.approx(expected)
    assert fitted.state_gain_.tolist() == [0.0, 1.0, 0.0]
    assert fitted.prior_ == pytest.approx(
        [np.mean(rows[1]), np.mean(rows[2] - rows[1]), 1 - np.mean(rows[2])]
    )


def test_the_functional_form_is_a_floored_power() -> None:
    """The table of the functional form is v^gamma / K, with half a step in place of v = 0."""
    fitted = POMDPMetaVerifier(form="functional").fit(*three_states(600), **COSTS)
    value = np.maximum(np.arange(9) / 8, 1 / 16)
    for state in range(3):
        table = fitted.observation_[state]
        assert table.sum() == pytest.approx(1.0)
        assert table / table[8] == pytest.approx(value ** fitted.gamma_[state])
        assert table[0] > 0.0
    assert (fitted.gamma_ >= 0.0).all()


def test_the_discrete_form_shrinks_bins_towards_all_rows() -> None:
    """A bin's gain is the mean of its rows and of `smoothing` average rows."""
    scores, small, large = [0.0, 0.0, 0.5], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]
    fitted = POMDPMetaVerifier(form="discrete", k=2, smoothing=2.0, price=0.0).fit(
        scores, small, large, **COSTS
    )
    assert fitted.gain_ == pytest.approx([(2 + 2 / 3) / 4, (-1 + 2 / 3) / 3, 1 / 3])
    assert fitted.observation_.sum(axis=1) == pytest.approx(np.ones(3))
    assert fitted.prior_ == pytest.approx([1 / 3, 2 / 3, 0])


def test_the_continuous_form_interpolates() -> None:
    """The gain is linear between two steps, and its average is the mean gain of the rows."""
    rng = np.random.default_rng(4)
    rows = (rng.integers(0, 9, 500) / 8, rng.random(500), rng.random(500))
    fitted = POMDPMetaVerifier(form="continuous", price=0.0).fit(*rows, **COSTS)
    middle = (fitted.gain_[3] + fitted.gain_[4]) / 2
    assert fitted.gain([3.5 / 8])[0] == pytest.approx(middle)
    seen = fitted.prior_ @ fitted.observation_
    assert seen @ fitted.gain_ == pytest.approx((rows[2] - rows[1]).mean())
    assert fitted.observation_.sum(axis=1) == pytest.approx(np.ones(81))


def test_the_continuous_form_row_by_row() -> None:
    """Prior and table of the continuous form equal sums over rows that loops compute."""
    rng = np.random.default_rng(8)
    rows = (rng.integers(0, 3, 12) / 2, rng.integers(0, 3, 12) / 2, rng.integers(0, 3, 12) / 2)
    fitted = POMDPMetaVerifier(form="continuous", k=2, price=0.0).fit(*rows, **COSTS)

    def spread(value: float) -> Array:
        near = np.exp(-0.5 * (np.arange(3) - 2 * value) ** 2)
        return near / near.sum()

    counts = sum(
        np.einsum("a,b,o->abo", spread(s), spread(g), spread(v)) for v, s, g in zip(*rows, strict=True)
    )
    observation = (counts / counts.sum(axis=2, keepdims=True)).reshape(9, 3)
    assert fitted.observation_ == pytest.approx(observation)
    prior = np.zeros((3, 3))
    np.add.at(prior, ((2 * rows[1]).astype(int), (2 * rows[2]).astype(int)), 1 / 12)
    assert fitted.prior_ == pytest.approx(prior.reshape(9))
    assert fitted.state_gain_.tolist() == [0, 0.5, 1, -0.5, 0, 0.5, -1, -0.5, 0]


def area(expected: np.ndarray, gained: np.ndarray) -> float:
    """Return the area under the gain per row over the share of rows routed, best first and ties at once."""
    reached = total = 0.0
    for level in sorted(set(expected.tolist()), reverse=True):
        tied = gained[expected == level]
        after = reached + (tied.sum() / len(gained) if level > 0 else 0.0)
        total += len(tied) / len(gained) * (reached + after) / 2
        reached = after
    return total


@pytest.mark.parametrize("form", FORMS)
def test_beliefs_beat_thresholds_on_hopeless_rows(form: Any) -> None:
    """Where low scores mean unsolvable questions, beliefs have a higher lift than thresholds."""
    train, test = three_states(2000, seed=1), three_states(20_000, seed=2)
    fitted = POMDPMetaVerifier(form=form).fit(*train, **COSTS)
    bound = ThresholdMetaVerifier().fit(*train, **COSTS)
    assert lift(fitted.route(test[0]), test) > lift(bound.route(test[0]), test) + 0.1
    assert fitted.form_ in FORMS[:3]


@pytest.mark.parametrize("share", [1.0, 0.85])
def test_the_form_is_chosen_on_held_out_rows(share: float) -> None:
    """The form with the largest held-out value is taken, also where the large model is often worse."""
    score, small, large = three_states(400, seed=5)
    rows = (score, small, share * large)
    fitted = POMDPMetaVerifier().fit(*rows, **COSTS)
    assert set(fitted.form_values_) == set(FORMS[:3])
    assert fitted.form_values_[fitted.form_] == max(fitted.form_values_.values())
    again = POMDPMetaVerifier().fit(*rows, **COSTS)
    assert again.form_values_ == fitted.form_values_
    fold = np.random.default_rng(0).permutation(400) % 5
    for form in ("discrete", "continuous"):
        total = 0.0
        for held in range(5):
            other = tuple(column[fold != held] for column in rows)
            gain = POMDPMetaVerifier(form=form, price=0.0).fit(*other, **COSTS).gain(rows[0][fold == held])  # type: ignore[arg-type]
            total += area(gain, (rows[2] - rows[1])[fold == held]) * 80 / 400
        assert fitted.form_values_[form] == pytest.approx(total)


@pytest.mark.parametrize("score", [0.0, 1.0 / 3.0, 0.49, 0.5, 0.501, 1.0])
def test_self_consistency_is_a_majority(score: float) -> None:
    """A score above 0.5 is trusted, 0.5 escalates, and nothing has to be learned."""
    plain = SelfConsistencyMetaVerifier()
    assert plain.route([score]).tolist() == [score <= 0.5]
    assert plain.fit([0.5], [0], [1], **COSTS) is plain
    same = ThresholdMetaVerifier(price=0.0).fit([0.5, 0.6], [0, 1], [1, 0], **COSTS)
    assert same.threshold_ == 0.6


@given(
    scores=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30),
    seed=st.integers(0, 5),
    form=st.sampled_from(FORMS[:3]),
    price=st.floats(0.0, 0.1),
)
@settings(max_examples=40, deadline=None)
def test_unseen_scores_take_the_nearest_step(scores: list[float], seed: int, form: Any, price: float) -> None:
    """Any score is routed like the nearest step, and a higher price never routes more."""
    rows = three_states(60, seed=seed)
    fitted, dearer = (
        POMDPMetaVerifier(form=form, price=one).fit(*rows, **COSTS) for one in (price, price + 0.01)
    )
    routed = fitted.route(scores)
    assert routed.shape == (len(scores),)
    assert routed.dtype == bool
    if form != "continuous":
        assert (fitted.route(np.floor(np.array(scores) * 8 + 0.5) / 8) == routed).all()
    assert (routed >= dearer.route(scores)).all()


def test_fixed_answers_are_always_routed() -> None:
    """A fixed answer is routed in any spelling, a longer answer is not, and neither is learned from."""
    fixed = ["Unanswerable."]
    for fitted in (
        ThresholdMetaVerifier(price=0.0, fixed_answers=fixed),
        POMDPMetaVerifier(form="discrete", smoothing=0.0, price=0.0, fixed_answers=fixed),
        SelfConsistencyMetaVerifier(fixed_answers=fixed),
    ):
        answers = ["unanswerable", "Paris", "Rome"]
        fitted.fit([1.0, 1.0, 0.2], [0, 1, 0], [1, 1, 1], answers=answers, **COSTS)
        routed = fitted.route([1, 1, 1], answers=["The UNANSWERABLE", "unanswerable question", "un"])
        assert routed.tolist() == [True, False, False]
        with pytest.raises(ConfigurationError, match="answers="):
            fitted.route([1.0])
        with pytest.raises(ConfigurationError, match="3 rows"):
            fitted.route([1.0, 1.0, 0.2], answers=["a"])
        with pytest.raises(ConfigurationError, match="Every row"):
            fitted.fit([1.0], [0], [1], answers=["unanswerable"], **COSTS)
        with pytest.raises(ConfigurationError, match="to be text"):
            fitted.route([1.0], answers=[None])
    text: Any = "unanswerable"
    with pytest.raises(ConfigurationError, match="list"):
        ThresholdMetaVerifier(fixed_answers=text)


def makers() -> list[Any]:
    """Return one of each kind that learns."""
    return [ThresholdMetaVerifier, *[lambda f=f, **o: POMDPMetaVerifier(form=f, **o) for f in FORMS]]


@pytest.mark.parametrize("make", makers())
def test_undefined_lifts_are_refused(make: Any) -> None:
    """A large model that is no better or no dearer raises ConfigurationError unless there is a price."""
    rows = ([0.2, 0.9, 0.3], [1, 1, 0], [0, 1, 1])
    with pytest.raises(ConfigurationError, match="routing_frontier"):
        make().fit(*rows, **COSTS)
    with pytest.raises(ConfigurationError, match="dearer"):
        make().fit([0.2], [0], [1], small_cost=5, large_cost=5, verifier_cost=0)
    assert make(price=0.001).fit(*rows, **COSTS).route([0.3]).shape == (1,)


@pytest.mark.parametrize("make", [*makers(), SelfConsistencyMetaVerifier])
def test_scores_out_of_range_are_refused(make: Any) -> None:
    """A score outside [0, 1] raises ConfigurationError in training and in routing."""
    with pytest.raises(ConfigurationError, match="verifier_score"):
        make().fit([0.1, 7.0], [0, 1], [1, 1], **COSTS)
    fitted: MetaVerifier = make().fit([0.1, 0.9], [0, 1], [1, 1], **COSTS)
    with pytest.raises(ConfigurationError, match="verifier_score"):
        fitted.route([7.0])


@pytest.mark.parametrize("make", makers())
def test_nothing_is_routed_before_fit(make: Any) -> None:
    """Routing before `fit` raises NotFittedError."""
    with pytest.raises(NotFittedError, match="call fit first"):
        make().route([0.5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "linear"}, "form"),
        ({"k": 0}, "k to be"),
        ({"price": -1.0}, "price"),
        ({"price": 1.0, "budget": 2.0}, "price or budget"),
        ({"smoothing": -1.0}, "smoothing"),
    ],
)
def test_bad_options_are_refused_at_once(options: Any, message: str) -> None:
    """The constructor raises ConfigurationError for an option out of range."""
    with pytest.raises(ConfigurationError, match=message):
        POMDPMetaVerifier(**options)


def test_a_budget_below_the_verifier_is_refused() -> None:
    """A budget below the cost of the small model and its verifier raises ConfigurationError."""
    with pytest.raises(ConfigurationError, match="budget of at least 2"):
        ThresholdMetaVerifier(budget=1.5).fit([0.5], [0], [1], **COSTS)


def test_one_row_is_enough_to_fit() -> None:
    """A single row can be learned from, without a comparison of forms."""
    fitted = POMDPMetaVerifier().fit([0.5], [0], [1], **COSTS)
    assert fitted.route([0.5, 1.0]).tolist() == [True, True]


@pytest.mark.parametrize("make", [ThresholdMetaVerifier, lambda: POMDPMetaVerifier(form="functional")])
def test_undefined_lifts_show_the_frontier(make: Any) -> None:
    """The message lists the corners of the frontier, with dots for the middle of a long one."""
    scores, large = np.array([0.0, 0.5, 1.0, 1.0]), np.array([1.0, 0.0, 0.0, 0.0])
    with pytest.raises(ConfigurationError, match=r"reach 0\.5 for 1, 0\.75 for 4 \(see `routing_frontier`\)"):
        make().fit(scores, [0, 0, 1, 1], large, small_cost=1, large_cost=10, verifier_cost=0.5)
    many = np.linspace(0.0, 1.0, 21)
    costs = {"small_cost": 1, "large_cost": 2, "verifier_cost": 0}
    with pytest.raises(
        ConfigurationError, match=r"reach 0\.5 for 1, .*, \.\.\., [\d.]+ for [\d.]+ \(see"
    ) as caught:
        make().fit(many, np.full(21, 0.5), 0.9 - 0.8 * many, **costs)
    assert str(caught.value).count(" for ") == 6
