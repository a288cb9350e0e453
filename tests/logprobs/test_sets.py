"""Tests of sets of labels: evidence from an array's tokens, against models that are fully known."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core import Completion, LabelDistribution, LogprobSpace, LogprobsUnavailableError, Token
from calibrant.logprobs import extract_set
from calibrant.logprobs._sets import ArrayPlace, read_place, set_of_places
from token_engine import Engine, Row

LABELS = ("Bills", "Gas", "Food")
Given = tuple[str, ...]
Model = Callable[[Given], dict[str, float]]
END = ""


def any_model(seed: int) -> Model:
    """Return a random model that, after any labels, gives another label or ends."""

    def model(before: Given) -> dict[str, float]:
        rng = random.Random(f"{seed}/{before}")
        weights = {label: rng.random() + 0.02 for label in (*LABELS, END) if label not in before}
        total = sum(weights.values())
        return {label: weight / total for label, weight in weights.items()}

    return model


def answers(model: Model, before: Given = (), weight: float = 1.0) -> Iterator[tuple[Given, float]]:
    """Yield every answer of a model with its probability."""
    for label, probability in model(before).items():
        if label == END:
            yield before, weight * probability
        else:
            yield from answers(model, (*before, label), weight * probability)


def one_by_one(labels: Given) -> list[str]:
    """Split an answer into brackets, quotes, commas and labels."""
    inner = [token for n, label in enumerate(labels) for token in ([", "] * (n > 0) + ['"', label, '"'])]
    return ['{"topics": ', "[", *inner, "]", "}"]


def joined(labels: Given) -> list[str]:
    """Split an answer with quotes, commas and brackets in one token."""
    if not labels:
        return ['{"topics":', " []", "}"]
    inner = [token for n, label in enumerate(labels) for token in ([label] if n == 0 else ['","', label])]
    return ['{"topics":', ' ["', *inner, '"]', "}"]


def with_labels(labels: Given) -> list[str]:
    """Split an answer with tokens that reach from one label's end into the next label."""
    if not labels:
        return ['{"topics": []}']
    return [f'{{"topics": ["{labels[0]}', *(f'", "{label}' for label in labels[1:]), '"]}']


def characters(labels: Given) -> list[str]:
    """Split an answer into its characters."""
    return list(json.dumps({"topics": list(labels)}))


def spread(labels: Given) -> list[str]:
    """Split an answer that is written on many lines."""
    inner = [
        token for n, label in enumerate(labels) for token in ([","] * (n > 0) + ["\n ", '"' + label, '"'])
    ]
    return ['{\n"topics": ', "[", *inner, "\n" if labels else "", "]\n}"]


def objects(labels: Given) -> list[str]:
    """Split an answer in which every label stands in an object."""
    inner = [
        token
        for n, label in enumerate(labels)
        for token in ([", "] * (n > 0) + ['{"topic":', ' "', label, '"', "}"])
    ]
    return ['{"results": ', "[", *inner, "]}"]


def closed_objects(labels: Given) -> list[str]:
    """Split an answer with the quote, the brace and the text after them in one token."""
    if not labels:
        return ['{"results": []}']
    inner = [
        token for n, label in enumerate(labels) for token in ([label] if n == 0 else ['"},{"topic":"', label])
    ]
    return ['{"results": [{"topic":"', *inner, '"}]}']


ARRAYS = [one_by_one, joined, with_labels, characters, spread]
OBJECTS = [objects, closed_objects]
STYLES = [(style, "topics") for style in ARRAYS] + [(style, "results[].topic") for style in OBJECTS]


def written(model: Model, labels: Given, style: Any, *, top: int | None = None) -> Completion:
    """Return the model's answer with all alternatives or the most probable ones."""
    rivals = [([piece for piece in style(other) if piece], p) for other, p in answers(model)]
    tokens: list[Token] = []
    own = [piece for piece in style(labels) if piece]
    for depth, piece in enumerate(own):
        shares: dict[str, float] = {}
        for other, weight in rivals:
            if other[:depth] == own[:depth] and len(other) > depth:
                shares[other[depth]] = shares.get(other[depth], 0.0) + weight
        total = math.fsum(shares.values())
        ranked = sorted(shares.items(), key=lambda item: -item[1])[:top]
        tokens.append(
            Token(
                piece.encode(),
                min(0.0, math.log(shares[piece] / total)),
                tuple((text.encode(), min(0.0, math.log(share / total))) for text, share in ranked),
            )
        )
    return Completion(text="".join(own), tokens=tuple(tokens))


def expected(model: Model, labels: Given) -> dict[str, float]:
    """Return the probability of each label by its definition, from the model itself."""
    steps = [model(labels[:k]) for k in range(len(labels) + 1)]
    outside = [label for label in LABELS if label not in labels]
    found = {}
    for place, label in enumerate(labels):
        step = steps[place]
        found[label] = step[label] / (step[label] + step[END] + sum(step[other] for other in outside))
    for label in outside:
        never = 1.0
        for step in steps[:-1]:
            never *= 1.0 - step[label]
        found[label] = 1.0 - never * (1.0 - (1.0 - steps[-1][END]) / len(outside))
    return found


ORDERS = [order for n in range(len(LABELS) + 1) for order in itertools.permutations(LABELS, n)]


@pytest.mark.parametrize(("style", "field"), STYLES)
@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), labels=st.sampled_from(ORDERS))
def test_every_spelling_gives_the_model_probabilities(
    style: Any, field: str, seed: int, labels: Given
) -> None:
    """Any tokenisation of the array gives the labels their defined probability."""
    model = any_model(seed)
    found = extract_set(written(model, labels, style), LABELS, field)
    wanted = expected(model, labels)
    assert dict(zip(LABELS, found.probabilities.tolist(), strict=True)) == pytest.approx(wanted, abs=1e-9)
    assert found.held.tolist() == [label in labels for label in LABELS]
    assert found.label_mass == pytest.approx(1.0)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), labels=st.sets(st.sampled_from(LABELS)), how=st.sampled_from(STYLES))
def test_mean_confidence_is_the_set_probability(seed: int, labels: set[str], how: Any) -> None:
    """The mean confidence over the orders of a set, weighted by their probability, is exact."""
    style, field = how
    model = any_model(seed)
    true = sum(p for answer, p in answers(model) if set(answer) == labels)
    mean = 0.0
    for order in itertools.permutations(sorted(labels)):
        drawn = 1.0
        for k, label in enumerate(order):
            step = model(order[:k])
            drawn *= step[label] / sum(step[other] for other in labels if other not in order[:k])
        mean += drawn * extract_set(written(model, order, style), LABELS, field).confidence
    assert mean == pytest.approx(true, rel=1e-6)


def in_order(inside: dict[str, float]) -> Model:
    """Return a model that takes each label independently, in the order of the labels."""

    def model(before: Given) -> dict[str, float]:
        start = 0 if not before else LABELS.index(before[-1]) + 1
        left, found = 1.0, {}
        for label in LABELS[start:]:
            found[label] = left * inside[label]
            left *= 1.0 - inside[label]
        return {**found, END: left}

    return model


@pytest.mark.parametrize("style", ARRAYS)
@settings(max_examples=25)
@given(
    shares=st.tuples(*[st.floats(0.02, 0.98)] * 3),
    labels=st.sampled_from([(), ("Bills",), ("Gas",), ("Food",)]),
)
def test_one_possible_order_gives_exact_confidence(
    style: Any, shares: tuple[float, float, float], labels: Given
) -> None:
    """Sets of at most one label have one order, so their confidence is exact."""
    model = in_order(dict(zip(LABELS, shares, strict=True)))
    true = dict(answers(model))[labels]
    found = extract_set(written(model, labels, style), LABELS, "topics")
    assert found.confidence == pytest.approx(true, rel=1e-6)


def test_order_does_not_lower_certain_labels() -> None:
    """The order of two certain labels does not lower their probability."""

    def model(before: Given) -> dict[str, float]:
        left = [label for label in ("Bills", "Food") if label not in before]
        return dict.fromkeys(left, 1.0 / len(left)) if left else {END: 1.0}

    found = extract_set(written(model, ("Food", "Bills"), joined), LABELS, "topics")
    assert found.probabilities.tolist() == pytest.approx([1.0, 0.0, 1.0], abs=1e-9)
    assert found.confidence == pytest.approx(1.0)


def spelled(*tokens: tuple[str, float, dict[str, float]]) -> Completion:
    """Return an answer from (token, probability, alternatives) triples."""
    made = tuple(
        Token(text.encode(), math.log(p), tuple((other.encode(), math.log(q)) for other, q in top.items()))
        for text, p, top in tokens
    )
    return Completion(text="".join(text for text, _, _ in tokens), tokens=made)


OPENING = ('{"topics": ["', 1.0, {})
ARRAY = ('{"topics": [', 1.0, {})
FOOD = ("Food", 1.0, {"Food": 1.0})
CLOSING = ('"]}', 1.0, {})


def read(*tokens: tuple[str, float, dict[str, float]], space: str = "masked") -> Any:
    """Return what `extract_set` reads from an answer over two labels."""
    return extract_set(spelled(*tokens), ("Bills", "Food"), "topics", space)


def test_unlisted_ends_get_the_least_probability() -> None:
    """An unlisted end gets the least listed probability, and the label is unmeasured."""
    found = read(
        ARRAY,
        ('"', 0.7, {'"': 0.7, ' "': 0.2}),
        FOOD,
        ('"', 1.0, {'"': 1.0}),
        ("]", 0.8, {"]": 0.8, ",": 0.2}),
        ("}", 1.0, {}),
    )
    # "[]" may hold 0.1, which was not reported, beside 0.9 for the two quotes.
    assert (found.probabilities[1], found.unresolved[1]) == (pytest.approx(0.9), pytest.approx(0.1))
    assert (found.label_mass, found.confidence) == (pytest.approx(0.9), pytest.approx(0.9 * 0.8))


def test_unread_continuations_are_shared_and_unmeasured() -> None:
    """Without continuations the labels share the mass of going on, and are unmeasured."""
    answer = spelled(ARRAY, ("]", 0.6, {"]": 0.6, '"': 0.4}), ("}", 1.0, {}))
    found = extract_set(answer, ("Bills", "Food", "Rent", "Taxi"), "topics")
    assert found.probabilities.tolist() == pytest.approx([0.1] * 4)
    assert not found.measured.any()
    assert found.unresolved.tolist() == pytest.approx([0.1] * 4)
    assert found.confidence == pytest.approx(0.6)


def test_bounds_are_limited_by_path_mass() -> None:
    """After a quote of probability 0.5 the bound is at most that share of the unlisted mass."""
    found = read(
        OPENING, FOOD, ('"', 0.5, {'"': 0.5, '"]': 0.3}), ("]", 0.6, {"]": 0.6, "!": 0.2}), ("}", 1.0, {})
    )
    # The end: 0.3 and 0.5 * 0.6; another label: at most 0.5 * 0.2.
    assert found.confidence == pytest.approx(0.6 / 0.7)
    assert found.probabilities[0] == pytest.approx(0.1 / 0.7)


def test_alternatives_to_closing_quotes_may_decide() -> None:
    """An alternative of a quote and a comma in one token counts as going on."""
    found = read(OPENING, FOOD, ('"', 0.6, {'"': 0.6, '",': 0.4}), ("]}", 1.0, {"]}": 1.0}))
    assert (found.confidence, found.probabilities[0]) == (pytest.approx(0.6), pytest.approx(0.4))
    assert found.unresolved[1] == pytest.approx(0.0, abs=1e-9)


def test_repeated_labels_leave_the_answer() -> None:
    """A repeated label adds nothing to the confidence of the answer that was given."""
    found = read(OPENING, FOOD, ('", "', 1.0, {}), ("Bills", 0.7, {"Bills": 0.7, "Food": 0.3}), CLOSING)
    assert found.confidence == pytest.approx(0.7)


def test_label_mass_is_the_least_step() -> None:
    """`label_mass` is the least mass of all places of the array."""
    found = read(
        ARRAY,
        ('"', 0.5, {'"': 0.5, "]": 0.5}),
        ("Food", 0.6, {"Food": 0.6, "Taxi": 0.4}),
        CLOSING,
        space="raw",
    )
    assert found.label_mass == pytest.approx(0.6, abs=1e-6)
    assert found.distribution(1, ("no", "yes")).label_mass == found.label_mass


def test_labels_below_an_assumed_end_are_unmeasured() -> None:
    """A label is unmeasured if the unreported end may be more probable."""
    found = read(ARRAY, ('"', 0.1, {'"': 0.1, "x": 0.3}), FOOD, CLOSING, space="raw")
    assert (found.probabilities[1], found.unresolved[1]) == (pytest.approx(0.25), pytest.approx(0.75))
    assert not found.measured[1]


def test_a_repeated_label_counts_once() -> None:
    """A label that the answer holds twice counts once."""
    step = {"Food": 0.5, "Bills": 0.5}
    found = read(
        OPENING,
        ("Food", 0.5, step),
        ('", "', 0.9, {'", "': 0.9, '"]': 0.1}),
        ("Food", 0.5, step),
        ('"]', 1.0, {}),
        ("}", 1.0, {}),
    )
    assert found.held.tolist() == [False, True]
    assert found.probabilities.tolist() == pytest.approx([1.0 - 0.5 * 0.55, 0.5])
    assert found.confidence == pytest.approx(0.5 * 0.45)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('["Food"]', "[]"),
        ('[{"topic": "Food"}]', "[].topic"),
        ('{"a": {"b": ["Food"]}}', "a.b[]"),
        ('{"a": [{"b": ["Food"]}, {"b": ["Bills"]}]}', "a[].b[]"),
        ('{"a": [["Food"]]}', "a[][0]"),
        ('{"a": [{"b": {"c": "Food"}}]}', "a[].b.c"),
    ],
)
def test_the_last_brackets_mean_all_elements(text: str, field: str) -> None:
    """The array of labels is read at the root, nested, and with labels in objects or arrays."""
    answer = Completion(text=text, tokens=tuple(Token(c.encode(), 0.0, ((c.encode(), 0.0),)) for c in text))
    found = extract_set(answer, ("Bills", "Food"), field)
    assert found.held.tolist() == [False, True]
    assert found.probabilities.tolist() == pytest.approx([0.0, 1.0], abs=1e-9)


def test_a_label_has_a_binary_distribution() -> None:
    """Each label has a distribution over "not in the answer" and "in the answer"."""
    model = any_model(3)
    found = extract_set(written(model, ("Food",), joined), LABELS, "topics", LogprobSpace.RAW)
    one = found.distribution(2, ("no", "yes"))
    assert (one.labels, one.emitted, one.space) == (("no", "yes"), "yes", LogprobSpace.RAW)
    assert one.probability("yes") == pytest.approx(found.probabilities[2])
    assert one.probabilities.sum() == pytest.approx(1.0)
    assert found.distribution(0, ("no", "yes")).emitted == "no"


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ('{"topics": "Food"}', "topics", "Expected an array in the field 'topics'"),
        ('{"topics": ["Rent"]}', "topics", "got 'Rent'"),
        ('{"topics": [1]}', "topics", "Expected text"),
        ('{"other": []}', "topics", "has no 'topics'"),
        ('{"topics": ["Food"', "topics", "cannot be found"),
    ],
)
def test_other_fields_are_no_evidence(text: str, field: str, message: str) -> None:
    """A field that is no array of labels raises LogprobsUnavailableError."""
    answer = spelled((text, 1.0, {text: 1.0}))
    with pytest.raises(LogprobsUnavailableError, match=message):
        extract_set(answer, ("Bills", "Food"), field)


def test_impossible_tokens_decide_nothing() -> None:
    """Impossible tokens on both sides give probability one half, unmeasured."""
    tokens: Sequence[Token] = (
        Token(b'{"topics": [', 0.0),
        Token(b"]", -9999.0, ((b"]", -9999.0), (b'"', -9999.0))),
        Token(b"}", 0.0),
    )
    found = extract_set(Completion(text='{"topics": []}', tokens=tuple(tokens)), ("Bills", "Food"), "topics")
    assert found.confidence == pytest.approx(0.5)
    assert np.isfinite(found.probabilities).all()
    assert not found.measured.any()


def scored(given: Given, ends: float, shares: Sequence[float], *, error: float = 0.0) -> ArrayPlace:
    """Return a place where every label was scored, with a given error bound."""
    labels = LabelDistribution(
        labels=LABELS,
        logprobs=np.log(np.array(shares)),
        measured=np.ones(len(LABELS), dtype=np.bool_),
        joint_logprob=-1.0,
        label_mass=0.5,
        unresolved_mass=0.0,
        space=LogprobSpace.EXACT,
        emitted=LABELS[int(np.argmax(shares))],
        error_bound=error,
    )
    return ArrayPlace(given=given, ends=ends, mass=0.8, labels=labels)


@pytest.mark.parametrize("error", [0.05, 0.15])
def test_scored_places_stay_within_the_bound(error: float) -> None:
    """The error of each label stays within its bound, and reaches 60% of it in the worst case."""
    places = (((), 0.1, (0.7, 0.2, 0.1)), (("Bills",), 0.6, (0.3, 0.4, 0.3)))
    true = set_of_places(LABELS, [scored(*place) for place in places])
    assert true.held.tolist() == [True, False, False]
    apart = np.zeros(len(LABELS))
    for one, other in itertools.product(itertools.permutations(range(3), 2), repeat=2):
        near = []
        for (loses, gains), (before, ends, shares) in zip((one, other), places, strict=True):
            moved = [max(share, 1e-9) for share in shares]
            amount = min(error, moved[loses] - 1e-9)
            moved[loses] -= amount
            moved[gains] += amount
            near.append(scored(before, ends, moved, error=error))
        found = set_of_places(LABELS, near)
        assert found.bounds is not None
        off = np.abs(found.probabilities - true.probabilities)
        assert (off <= found.bounds + 1e-12).all()
        apart = np.maximum(apart, off / found.bounds)
    assert apart.min() > 0.6


def test_scored_places_report_the_least_mass() -> None:
    """`label_mass` of scored places is the least mass of all places."""
    found = set_of_places(
        LABELS, [scored((), 0.1, (0.7, 0.2, 0.1)), scored(("Bills",), 0.6, (0.3, 0.4, 0.3))]
    )
    assert found.label_mass == pytest.approx(0.8 * (0.1 + 0.9 * 0.5))
    assert (found.space, found.distribution(0, ("no", "yes")).emitted) == (LogprobSpace.EXACT, "yes")


def test_repeated_shares_are_unmeasured() -> None:
    """The unmeasured share of a repeated label is reported as `assumed`."""
    second = scored(("Bills",), 0.1, (0.8, 0.15, 0.05))
    loose = LabelDistribution(**{**vars(second.labels), "measured": np.array([False, True, True])})
    places = [
        scored((), 0.1, (0.7, 0.2, 0.1)),
        ArrayPlace(given=("Bills",), ends=0.1, mass=0.8, labels=loose),
    ]
    assert (places[0].assumed, places[1].assumed) == (0.0, pytest.approx(0.9 * 0.8))
    assert places[1].next_label is None
    assert places[1].moves.tolist() == pytest.approx([0.0, 0.9 * 0.15, 0.9 * 0.05])
    assert set_of_places(LABELS, places).measured.all()


@pytest.mark.parametrize(("given", "more", "ends"), [((), 0.4 + 0.06, 0.2), (("Bills",), 0.3, 0.2 + 0.06)])
def test_next_tokens_decide_whether_an_array_goes_on(given: Given, more: float, ends: float) -> None:
    """White space after an opening bracket counts as an element, and later as the end."""
    row = Row(Engine(pieces=[b'"', b', "', b"]", b"\n", b"x"]), "")
    row.after = lambda _: np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], dtype=np.float32))  # type: ignore[method-assign]
    labels = scored(given, 0.5, (0.7, 0.2, 0.1)).labels
    place = read_place((), asyncio.run(row.next_logprobs([()])), labels, given=given, element='"')
    assert (place.ends, place.mass) == (pytest.approx(ends / (more + ends)), pytest.approx(more + ends))
