"""Tests of LabelWalk: next tokens added up to a distribution over the labels."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import ConfigurationError, LogprobSpace, LogprobsUnavailableError
from calibrant.logprobs._walk import LabelWalk

Model = Callable[[str], Mapping[bytes, float]]

NESTED = ("Bills", "Bills/Gas", "Bills/Power", "Food")


def walked(
    labels: Sequence[str], model: Model, *, tolerance: float = 0.0, top: int | None = None
) -> LabelWalk:
    """Return the finished walk on a model that maps a text to the probabilities of the next tokens."""
    walk = LabelWalk(labels, tolerance=tolerance)
    while texts := walk.pending():
        for text in texts:
            ranked = sorted(model(text).items(), key=lambda item: -item[1])[:top]
            walk.visit(text, [(data, math.log(p) if p > 0 else -9999.0) for data, p in ranked])
    return walk


def toy_model(labels: Sequence[str], seed: int) -> Model:
    """Return a model that, after any text, splits its probability over random tokens, legal or not.

    What it says depends on the text alone, so that a label's probability is a sum over token paths.
    """

    def model(text: str) -> dict[bytes, float]:
        rng = random.Random(f"{seed}/{text}")
        weights = {b"zzz": rng.random() + 0.05, b"": 0.1}
        for label in labels:
            rest = label.removeprefix(text) + '"' if label.startswith(text) else ""
            for length in range(1, len(rest) + 1):
                if length == len(rest) or rng.random() < 0.4:
                    weights[rest[:length].encode()] = rng.random() ** 2
        total = sum(weights.values())
        return {data: weight / total for data, weight in weights.items()}

    return model


def brute_force(labels: Sequence[str], model: Model) -> np.ndarray:
    """Return the probability that a text becomes each label: a sum over all its tokenisations."""

    def reaching(label: str, text: str) -> float:
        total = 0.0
        for data, probability in model(text).items():
            after = text + data.decode()
            if data and after == label + '"':
                total += probability
            elif data and label.startswith(after):
                total += probability * reaching(label, after)
        return total

    return np.array([reaching(label, "") for label in labels])


@pytest.mark.parametrize("labels", [("cat", "dog"), NESTED, ("Sci/Tech", "Sports", "World", "Business")])
@pytest.mark.parametrize("seed", range(3))
def test_full_walks_sum_over_tokenisations(labels: tuple[str, ...], seed: int) -> None:
    """At tolerance 0 the distribution equals brute force over all tokenisations."""
    model = toy_model(labels, seed)
    found = walked(labels, model).distribution()
    expected = brute_force(labels, model)
    assert (found.space, found.label_mass) == (LogprobSpace.EXACT, pytest.approx(expected.sum()))
    np.testing.assert_allclose(found.probabilities, expected / expected.sum(), rtol=1e-9)
    assert found.measured.all()
    assert found.error_bound == pytest.approx(0.0, abs=1e-9)
    assert found.unresolved_mass == pytest.approx(0.0, abs=1e-9)
    best = labels[int(expected.argmax())]
    assert (found.emitted, found.joint_logprob) == (best, pytest.approx(math.log(expected.max())))


@given(seed=st.integers(0, 10**6), tolerance=st.floats(0.0, 1.0), top=st.integers(1, 12))
def test_the_error_never_exceeds_the_bound(seed: int, tolerance: float, top: int) -> None:
    """The total variation to brute force never exceeds `error_bound`."""
    model = toy_model(NESTED, seed)
    found = walked(NESTED, model, tolerance=tolerance, top=top).distribution()
    truth = brute_force(NESTED, model)
    truth /= truth.sum()
    assert found.error_bound is not None
    assert 0.5 * np.abs(found.probabilities - truth).sum() <= found.error_bound + 1e-9
    assert found.probabilities.sum() == pytest.approx(1.0)
    assert 0.0 <= found.error_bound <= 1.0


@given(seed=st.integers(0, 10**6))
def test_smaller_tolerances_visit_more_nodes(seed: int) -> None:
    """A smaller tolerance visits at least as many nodes and has no larger bound."""
    walks = [walked(NESTED, toy_model(NESTED, seed), tolerance=t) for t in (0.5, 0.1, 0.0)]
    nodes = [walk.nodes for walk in walks]
    bounds = [walk.distribution().error_bound or 0.0 for walk in walks]
    assert nodes == sorted(nodes)
    assert bounds[0] >= bounds[1] - 1e-9
    assert bounds[1] >= bounds[2] - 1e-9


def test_only_branches_above_the_tolerance_are_visited() -> None:
    """The walk visits the root, and then the nodes above the tolerance's share of the label mass."""
    walk = LabelWalk(["cat", "cow", "dog"], tolerance=0.45)
    assert walk.pending() == [""]
    walk.visit("", [(b"c", math.log(0.30)), (b"dog", math.log(0.12)), (b"?", math.log(0.5))])
    assert walk.pending() == ["c"], "0.12 is below 0.45 of 0.30"
    walk.visit("c", [(b'at"', math.log(0.5)), (b"ow", math.log(0.5))])
    assert walk.pending() == ["cow"], "of 0.15 read to the end and 0.15 to read"
    walk.visit("cow", [(b'"', math.log(1.0))])
    assert walk.pending() == []
    found = walk.distribution()
    np.testing.assert_allclose(found.probabilities, np.array([0.15, 0.15, 0.12]) / 0.42)
    assert (found.label_mass, walk.nodes) == (pytest.approx(0.42), 3)


def test_leaving_mass_does_not_mislead_the_walk() -> None:
    """A node whose text often becomes a label is visited before heavier nodes that rarely do."""
    labels = ["cat", "dog", *(f"x{number}" for number in range(9))]
    listing = {"": {b"c": 0.02, b"d": 0.01, **{f"x{n}".encode(): 0.1 for n in range(9)}}}

    def model(text: str) -> Mapping[bytes, float]:
        if text.startswith("x"):
            return {b'"': 1e-6, b"!": 1 - 1e-6}
        return listing.get(text) or {(labels["cd".index(text)][1:] + '"').encode(): 0.5, b"!": 0.5}

    walk = LabelWalk(labels, tolerance=0.2)
    while texts := walk.pending():
        for text in texts:
            walk.visit(text, [(data, math.log(p)) for data, p in model(text).items()])
    assert walk.distribution().probability("cat") == pytest.approx(2 / 3, abs=1e-4)


def test_open_nodes_are_shared_among_labels() -> None:
    """Labels after an unvisited token share its mass, which counts as unresolved."""
    walk = LabelWalk(["cat", "cow", "dog"], tolerance=1.0)
    walk.visit("", [(b"c", math.log(0.4)), (b'dog"', math.log(0.2)), (b"?", math.log(0.4))])
    found = walk.distribution()
    np.testing.assert_allclose(found.probabilities, [1 / 3, 1 / 3, 1 / 3])
    assert (found.unresolved_mass, list(found.measured)) == (pytest.approx(0.4), [False, False, True])
    assert found.error_bound == pytest.approx(0.4 / 0.6)


def test_mass_that_arrives_late_runs_on() -> None:
    """Mass that reaches a visited node later is passed on to the nodes after it."""
    walk = LabelWalk(["Bus", "Box"], tolerance=0.0)
    walk.visit("", [(b"Bus", math.log(0.2)), (b"B", math.log(0.8))])
    assert walk.pending() == ["B", "Bus"]
    walk.visit("Bus", [(b'"', math.log(0.5)), (b"!", math.log(0.5))])
    walk.visit("B", [(b"us", math.log(0.25)), (b'ox"', math.log(0.75))])
    found = walk.distribution()
    np.testing.assert_allclose(found.probabilities, np.array([0.2, 0.6]) / 0.8)
    assert found.label_mass == pytest.approx(0.8)


def test_closing_quotes_may_include_structure() -> None:
    """A token like ``"}`` ends a label and one like ``"s`` does not; several ending tokens add up."""
    walk = LabelWalk(["cat", "dog"], tolerance=0.0)
    walk.visit(
        "",
        [(b'cat"}', math.log(0.3)), (b'cat"', math.log(0.2)), (b'dog"\n}', math.log(0.25)), (b'dog"s', -1.4)],
    )
    assert walk.pending() == []
    np.testing.assert_allclose(walk.distribution().probabilities, np.array([0.5, 0.25]) / 0.75)


def test_tokens_with_equal_bytes_add_up() -> None:
    """Two tokens with equal bytes add up."""
    walk = LabelWalk(["a", "b"], tolerance=0.0)
    walk.visit("", [(b'a"', math.log(0.2)), (b'a"', math.log(0.3)), (b'b"', math.log(0.5))])
    np.testing.assert_allclose(walk.distribution().probabilities, [0.5, 0.5])


def test_escaped_and_plain_spellings_are_one_label() -> None:
    r"""Escaped and plain spellings of a label add up."""
    walk = LabelWalk(["Gas & Oil", "Gas/Oil"], tolerance=0.0)
    walk.visit("", [(b"Gas ", math.log(0.5)), (b'Gas\\/Oil"', math.log(0.1)), (b'Gas/Oil"', math.log(0.4))])
    assert walk.pending() == ["Gas "]
    walk.visit("Gas ", [(rb"\u0026", math.log(0.5)), (b'& Oil"', math.log(0.5))])
    assert walk.pending() == [r"Gas \u0026"]
    walk.visit(r"Gas \u0026", [(b' Oil"', math.log(1.0))])
    np.testing.assert_allclose(walk.distribution().probabilities, [0.5, 0.5])


def test_cut_characters_stay_open() -> None:
    """A node inside a character is not visited, and its mass is shared and bounded."""
    walk = LabelWalk(["é", "è", "a"], tolerance=0.0)
    walk.visit("", [("é".encode()[:1], math.log(0.6)), (b'a"', math.log(0.4))])
    assert walk.pending() == []
    found = walk.distribution()
    np.testing.assert_allclose(found.probabilities, [0.3, 0.3, 0.4])
    assert found.error_bound == pytest.approx(0.6)


def test_unreached_labels_get_an_upper_bound() -> None:
    """An unreached label gets at most the least listed probability and is not measured."""
    walk = LabelWalk(["cat", "dog"], tolerance=0.0)
    walk.visit("", [(b'cat"', math.log(0.6)), (b"?", math.log(0.05))])
    found = walk.distribution()
    np.testing.assert_allclose(found.probabilities, np.array([0.6, 0.05]) / 0.65)
    assert (list(found.measured), found.label_mass) == ([True, False], pytest.approx(0.6))
    # Five beginnings of labels at most could stand behind what was not listed (0.35 in all).
    assert found.error_bound == pytest.approx(0.35 / 0.95)


def test_unlisted_tokens_have_the_least_bound() -> None:
    """Each unlisted token that could begin a label gets the least listed probability as its bound."""
    walk = LabelWalk(["a", "b"], tolerance=0.0)
    walk.visit("", [(b'a"', math.log(0.9)), (b"?", math.log(0.01))])
    found = walk.distribution()
    assert found.error_bound == pytest.approx(0.03 / 0.93)
    assert found.unresolved_mass == pytest.approx(0.03)


def test_open_nodes_count_by_survival() -> None:
    """An unvisited node's mass counts by the share that became labels at the visited nodes."""
    walk = LabelWalk(["cat", "dog"], tolerance=0.5)
    walk.visit("", [(b"c", math.log(0.6)), (b"d", math.log(0.2)), (b"?", math.log(0.2))])
    walk.visit("c", [(b'at"', math.log(0.5)), (b"!", math.log(0.5))])
    assert walk.pending() == []
    found = walk.distribution()
    np.testing.assert_allclose(found.probabilities, [0.75, 0.25])
    assert found.label_mass == pytest.approx(0.4)
    assert found.error_bound == pytest.approx(0.2 / 0.5), "all of the 0.2 may turn out to be a label, or none"


def test_dead_ends_claim_nothing() -> None:
    """A walk without any label mass has no emitted label and an error bound of 1."""
    walk = LabelWalk(["cat", "dog"], tolerance=0.0)
    walk.visit("", [(b"?", math.log(1.0)), (b"", -9999.0)])
    found = walk.distribution()
    assert (found.emitted, found.joint_logprob) == ("", None)
    assert (found.label_mass, found.error_bound) == (0.0, 1.0)
    assert not found.measured.any()


@pytest.mark.parametrize("logprob", [0.5, math.nan])
def test_invalid_log_probabilities_raise_an_error(logprob: float) -> None:
    """Positive or NaN log-probabilities raise LogprobsUnavailableError."""
    with pytest.raises(LogprobsUnavailableError, match="log-probability <= 0"):
        LabelWalk(["a", "b"], tolerance=0.0).visit("", [(b"a", logprob)])


def test_probabilities_above_1_raise_an_error() -> None:
    """Listed probabilities above 1 in sum, beyond rounding, raise LogprobsUnavailableError."""
    half = math.log(0.55)
    with pytest.raises(LogprobsUnavailableError, match=r"add up to 1\.10"):
        LabelWalk(["a", "b"], tolerance=0.0).visit("", [(b"a", half), (b"b", half)])
    LabelWalk(["a", "b"], tolerance=0.0).visit("", [(b"a", math.log(0.52)), (b"b", math.log(0.52))])


@given(seed=st.integers(0, 10**6), order=st.permutations(range(len(NESTED))))
def test_the_order_of_labels_is_irrelevant(seed: int, order: list[int]) -> None:
    """A permutation of the labels permutes the result."""
    model = toy_model(NESTED, seed)
    plain = walked(NESTED, model, tolerance=0.05).distribution()
    permuted = walked([NESTED[i] for i in order], model, tolerance=0.05).distribution()
    np.testing.assert_allclose(permuted.probabilities, plain.probabilities[order], rtol=1e-9)
    assert permuted.error_bound == pytest.approx(plain.error_bound)


def test_a_thousand_labels_are_walked() -> None:
    """A walk over a thousand labels with common beginnings ends at the probable label."""
    labels = [f"group{i // 100}/item{i:03d}" for i in range(1000)]
    model = toy_model(labels, seed=1)

    def certain(text: str) -> Mapping[bytes, float]:
        rest = labels[321].removeprefix(text) + '"'
        return {rest[:4].encode(): 0.9, b"?": 0.1}

    found = walked(labels, certain).distribution()
    assert (found.emitted, found.probability(labels[321])) == (labels[321], pytest.approx(1.0))
    assert len(walked(labels, model, tolerance=0.2).distribution().logprobs) == 1000


@pytest.mark.parametrize("tolerance", [-0.1, 1.1, math.nan])
def test_tolerances_out_of_range_are_errors(tolerance: float) -> None:
    """A tolerance is a total variation."""
    with pytest.raises(ConfigurationError, match=r"tolerance in \[0, 1\], got"):
        LabelWalk(["a", "b"], tolerance=tolerance)
