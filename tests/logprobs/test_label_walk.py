"""Tests of next tokens that are added up to a distribution over the labels."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import LabelDistribution, LogprobSpace, NextTokens, Outcome, Prediction
from calibrant.inference import Classifier, RetryPolicy
from calibrant.testing import FakeContinuingClient
from distributions import distribution_of

Model = Callable[[str], Mapping[bytes, float]]

NESTED = ("Bills", "Bills/Gas", "Bills/Power", "Food")


class Client(FakeContinuingClient):
    """A model that lists the next tokens after the beginning of a label."""

    def __init__(self, top: Callable[[str], Sequence[tuple[bytes, float]]]) -> None:
        super().__init__(NESTED, {})
        self.top, self.asked = top, list[str]()

    async def next_tokens(self, _request: object, text: str, *, few: bool = False) -> NextTokens:
        """Return the next tokens."""
        del few
        self.asked.append(text.removeprefix('{"label": "'))
        return NextTokens(top=tuple(self.top(self.asked[-1])))


def classified(client: Client, labels: Sequence[str], tolerance: float = 0.0) -> Prediction:
    """Return the prediction of a row."""
    options = {"scoring": "exact", "tolerance": tolerance, "retry": RetryPolicy(attempts=1)}
    return Classifier(model=client, labels=labels, **options).classify("x")  # type: ignore[arg-type]


def client_of(model: Model, top: int | None = None) -> Client:
    """Return a client of a model that maps a text to the probabilities of the next tokens."""

    def ranked(text: str) -> list[tuple[bytes, float]]:
        found = sorted(model(text).items(), key=lambda item: -item[1])[:top]
        return [(data, math.log(p) if p > 0 else -9999.0) for data, p in found]

    return Client(ranked)


def walked(labels: Sequence[str], model: Model, *, tolerance: float = 0.0) -> LabelDistribution:
    """Return the distribution of a finished walk on a model."""
    return distribution_of(classified(client_of(model), labels, tolerance))


def listed(
    labels: Sequence[str], listings: Mapping[str, Mapping[bytes, float]], tolerance: float = 0.0
) -> LabelDistribution:
    """Return the distribution of a walk on these listings, in whose order they are asked for."""
    client = client_of(lambda text: listings[text])
    found = distribution_of(classified(client, labels, tolerance))
    assert client.asked == list(listings)
    return found


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
    found = walked(labels, model)
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
    prediction = classified(client_of(model, top), NESTED, tolerance)
    if prediction.label is None:  # no label is listed
        return
    found = distribution_of(prediction)
    truth = brute_force(NESTED, model)
    truth /= truth.sum()
    assert found.error_bound is not None
    assert 0.5 * np.abs(found.probabilities - truth).sum() <= found.error_bound + 1e-9
    assert found.probabilities.sum() == pytest.approx(1.0)
    assert 0.0 <= found.error_bound <= 1.0


@given(seed=st.integers(0, 10**6))
def test_smaller_tolerances_visit_more_nodes(seed: int) -> None:
    """A smaller tolerance visits at least as many nodes and has no larger bound."""
    clients = [client_of(toy_model(NESTED, seed)) for _ in range(3)]
    found = [
        classified(client, NESTED, limit) for client, limit in zip(clients, (0.5, 0.1, 0.0), strict=True)
    ]
    nodes = [len(client.asked) for client in clients]
    bounds = [distribution_of(one).error_bound or 0.0 for one in found]
    assert nodes == sorted(nodes)
    assert bounds[0] >= bounds[1] - 1e-9
    assert bounds[1] >= bounds[2] - 1e-9


def test_only_branches_above_the_tolerance_are_visited() -> None:
    """The walk visits the root, and then the nodes above the tolerance's share of the label mass."""
    listings = {
        "": {b"c": 0.30, b"dog": 0.12, b"?": 0.5},  # 0.12 is below 0.45 of 0.30
        "c": {b'at"': 0.5, b"ow": 0.5},  # 0.15 read to the end and 0.15 to read
        "cow": {b'"': 1.0},
    }
    found = listed(["cat", "cow", "dog"], listings, 0.45)
    np.testing.assert_allclose(found.probabilities, np.array([0.15, 0.15, 0.12]) / 0.42)
    assert found.label_mass == pytest.approx(0.42)


def test_leaving_mass_does_not_mislead_the_walk() -> None:
    """A node whose text often becomes a label is visited before heavier nodes that rarely do."""
    labels = ["cat", "dog", *(f"x{number}" for number in range(9))]
    listing = {"": {b"c": 0.02, b"d": 0.01, **{f"x{n}".encode(): 0.1 for n in range(9)}}}

    def model(text: str) -> Mapping[bytes, float]:
        if text.startswith("x"):
            return {b'"': 1e-6, b"!": 1 - 1e-6}
        return listing.get(text) or {(labels["cd".index(text)][1:] + '"').encode(): 0.5, b"!": 0.5}

    assert walked(labels, model, tolerance=0.2).probability("cat") == pytest.approx(2 / 3, abs=1e-4)


def test_open_nodes_are_shared_among_labels() -> None:
    """Labels after an unvisited token share its mass, which counts as unresolved."""
    found = listed(["cat", "cow", "dog"], {"": {b"c": 0.4, b'dog"': 0.2, b"?": 0.4}}, 1.0)
    np.testing.assert_allclose(found.probabilities, [1 / 3, 1 / 3, 1 / 3])
    assert (found.unresolved_mass, list(found.measured)) == (pytest.approx(0.4), [False, False, True])
    assert found.error_bound == pytest.approx(0.4 / 0.6)


def test_mass_that_arrives_late_runs_on() -> None:
    """Mass that reaches a visited node later is passed on to the nodes after it."""
    listings = {
        "": {b"Bus": 0.8, b"B": 0.15},
        "Bus": {b'"': 0.2, b"!": 0.8},
        "B": {b"us": 0.5, b'ox"': 0.5},
    }
    found = listed(["Bus", "Box"], listings, 0.2)
    np.testing.assert_allclose(found.probabilities, np.array([0.175, 0.075]) / 0.25)
    assert found.label_mass == pytest.approx(0.25)


def test_closing_quotes_may_include_structure() -> None:
    """A token like ``"}`` ends a label and one like ``"s`` does not; several ending tokens add up."""
    root = {b'cat"}': 0.3, b'cat"': 0.2, b'dog"\n}': 0.25, b'dog"s': 0.24}
    np.testing.assert_allclose(listed(["cat", "dog"], {"": root}).probabilities, np.array([0.5, 0.25]) / 0.75)


def test_tokens_with_equal_bytes_add_up() -> None:
    """Two tokens with equal bytes add up."""
    root = [(b'a"', math.log(0.2)), (b'a"', math.log(0.3)), (b'b"', math.log(0.5))]
    found = distribution_of(classified(Client(lambda _: root), ["a", "b"]))
    np.testing.assert_allclose(found.probabilities, [0.5, 0.5])


def test_escaped_and_plain_spellings_are_one_label() -> None:
    r"""Escaped and plain spellings of a label add up."""
    listings = {
        "": {b"Gas ": 0.5, b'Gas\\/Oil"': 0.1, b'Gas/Oil"': 0.4},
        "Gas ": {rb"\u0026": 0.5, b'& Oil"': 0.5},
        r"Gas \u0026": {b' Oil"': 1.0},
    }
    np.testing.assert_allclose(listed(["Gas & Oil", "Gas/Oil"], listings).probabilities, [0.5, 0.5])


def test_cut_characters_stay_open() -> None:
    """A node inside a character is not visited, and its mass is shared and bounded."""
    found = listed(["é", "è", "a"], {"": {"é".encode()[:1]: 0.6, b'a"': 0.4}})
    np.testing.assert_allclose(found.probabilities, [0.3, 0.3, 0.4])
    assert found.error_bound == pytest.approx(0.6)


def test_unreached_labels_get_an_upper_bound() -> None:
    """An unreached label gets at most the least listed probability and is not measured."""
    found = listed(["cat", "dog"], {"": {b'cat"': 0.6, b"?": 0.05}})
    np.testing.assert_allclose(found.probabilities, np.array([0.6, 0.05]) / 0.65)
    assert (list(found.measured), found.label_mass) == ([True, False], pytest.approx(0.6))
    # Five beginnings of labels at most could stand behind what was not listed (0.35 in all).
    assert found.error_bound == pytest.approx(0.35 / 0.95)


def test_unlisted_tokens_have_the_least_bound() -> None:
    """Each unlisted token that could begin a label gets the least listed probability as its bound."""
    found = listed(["a", "b"], {"": {b'a"': 0.9, b"?": 0.01}})
    assert found.error_bound == pytest.approx(0.03 / 0.93)
    assert found.unresolved_mass == pytest.approx(0.03)


def test_open_nodes_count_by_survival() -> None:
    """An unvisited node's mass counts by the share that became labels at the visited nodes."""
    listings = {"": {b"c": 0.6, b"d": 0.2, b"?": 0.2}, "c": {b'at"': 0.5, b"!": 0.5}}
    found = listed(["cat", "dog"], listings, 0.5)
    np.testing.assert_allclose(found.probabilities, [0.75, 0.25])
    assert found.label_mass == pytest.approx(0.4)
    assert found.error_bound == pytest.approx(0.2 / 0.5), "all of the 0.2 may turn out to be a label, or none"


def test_dead_ends_claim_nothing() -> None:
    """A walk without any label mass gives no label."""
    found = classified(client_of(lambda _: {b"?": 1.0, b"": 0.0}), ["cat", "dog"])
    assert (found.label, found.confidence, found.outcome) == (None, None, Outcome.UNPARSED)


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ([(b"a", 0.5)], "log-probability <= 0"),
        ([(b"a", math.nan)], "log-probability <= 0"),
        ([(b"a", math.log(0.55)), (b"b", math.log(0.55))], "add up to 1.10"),
    ],
)
def test_invalid_log_probabilities_fail_the_row(root: list[tuple[bytes, float]], message: str) -> None:
    """Positive or NaN log-probabilities, and probabilities above 1 in sum, make the row an error."""
    found = classified(Client(lambda _: root), ["a", "b"])
    assert found.outcome is Outcome.ERROR
    assert message in found.reason


def test_rounding_above_1_is_evidence() -> None:
    """Probabilities that add up to slightly more than 1 are accepted."""
    np.testing.assert_allclose(listed(["a", "b"], {"": {b'a"': 0.52, b'b"': 0.52}}).probabilities, 0.5)


@given(seed=st.integers(0, 10**6), order=st.permutations(range(len(NESTED))))
def test_the_order_of_labels_is_irrelevant(seed: int, order: list[int]) -> None:
    """A permutation of the labels permutes the result."""
    model = toy_model(NESTED, seed)
    plain = walked(NESTED, model, tolerance=0.05)
    permuted = walked([NESTED[i] for i in order], model, tolerance=0.05)
    np.testing.assert_allclose(permuted.probabilities, plain.probabilities[order], rtol=1e-9)
    assert permuted.error_bound == pytest.approx(plain.error_bound)


def test_a_thousand_labels_are_walked() -> None:
    """A walk over a thousand labels with common beginnings ends at the probable label."""
    labels = [f"group{i // 100}/item{i:03d}" for i in range(1000)]
    model = toy_model(labels, seed=1)

    def certain(text: str) -> Mapping[bytes, float]:
        rest = labels[321].removeprefix(text) + '"'
        return {rest[:4].encode(): 0.9, b"?": 0.1}

    found = walked(labels, certain)
    assert (found.emitted, found.probability(labels[321])) == (labels[321], pytest.approx(1.0))
    assert len(walked(labels, model, tolerance=0.2).logprobs) == 1000
