"""Tests of ordinal and hierarchical labels: aspects, credit, marginals and errors."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.core import (
    Aspect,
    ConfigurationError,
    Field,
    FieldLabels,
    HierarchicalLabels,
    LabelDistribution,
    LabelSet,
    LogprobSpace,
    OrdinalLabels,
    Part,
    Prediction,
    Task,
)

STARS = OrdinalLabels(["1 star", "2 stars", "3 stars", "4 stars", "5 stars"])
MONEY = HierarchicalLabels(
    ["Bills", "Bills/Gas", "Food/Out/Bar", "Food/Out/Café", "Food/In", "bills / Water"]
)

names = st.lists(
    st.text("abcdef", min_size=1, max_size=3).filter(str.strip), min_size=2, max_size=7, unique=True
)
# Paths of one to four levels; the last character keeps one of at least two levels in every list.
paths = st.lists(
    st.lists(st.sampled_from("xyz"), min_size=1, max_size=4).map("/".join),
    min_size=1,
    max_size=8,
    unique=True,
).map(lambda found: [*found, "w/v"])


def over(labels: LabelSet, probabilities: Any, *, measured: Any = None, **changes: Any) -> LabelDistribution:
    """Return a distribution over `labels`."""
    settings: dict[str, Any] = {
        "labels": labels.labels,
        "logprobs": np.log(np.maximum(np.asarray(probabilities, dtype=float), 1e-320)),
        "measured": np.ones(len(labels), dtype=bool) if measured is None else np.asarray(measured),
        "joint_logprob": None,
        "label_mass": 0.9,
        "unresolved_mass": 0.05,
        "space": LogprobSpace.EXACT,
        "error_bound": 0.03,
    }
    return LabelDistribution(**(settings | changes))


def answered(labels: LabelSet, label: str, probabilities: Any, **changes: Any) -> Prediction:
    """Return a prediction with a distribution; without a given confidence it has its probability."""
    own = float(np.asarray(probabilities)[labels.index(label)])
    return Prediction(
        label=label, distribution=over(labels, probabilities), **({"confidence": own} | changes)
    )


def credit(aspects: tuple[Aspect, ...]) -> float:
    """Return the share of questions that are answered correctly."""
    return sum(aspect.is_correct for aspect in aspects) / len(aspects)


def weights(size: int) -> st.SearchStrategy[NDArray[np.float64]]:
    """Return a strategy for distributions over this number of labels."""
    return st.lists(st.floats(0.001, 1.0), min_size=size, max_size=size).map(
        lambda found: np.array(found) / sum(found)
    )


# --- scales -------------------------------------------------------------------------------------


@given(names, st.data())
def test_scale_credit_falls_with_distance(labels: list[str], data: st.DataObject) -> None:
    """The credit on a scale is 1 - |i - j| / (L - 1), in both directions."""
    scale = OrdinalLabels(labels)
    i, j = (data.draw(st.integers(0, len(labels) - 1)) for _ in range(2))
    found = scale.aspects(Prediction(label=labels[i]), labels[j])
    assert len(found) == len({aspect.name for aspect in found}) == len(labels) - 1
    assert credit(found) == pytest.approx(1 - abs(i - j) / (len(labels) - 1))
    assert scale.rank(labels[i]) == i


def test_scale_questions_have_the_mass_beside() -> None:
    """The masses on both sides of each threshold equal those by hand for five labels."""
    prediction = answered(STARS, "3 stars", [0.1, 0.2, 0.3, 0.25, 0.15])
    found = STARS.aspects(prediction, "5 stars")
    assert [aspect.name for aspect in found] == [f"above {label}" for label in STARS.labels[:-1]]
    assert [aspect.predicted for aspect in found] == ["yes", "yes", "no", "no"]
    assert [aspect.expected for aspect in found] == ["yes"] * 4
    assert [aspect.confidence for aspect in found] == pytest.approx([0.9, 0.7, 0.6, 0.85])
    for aspect, yes in zip(found, [0.9, 0.7, 0.4, 0.15], strict=True):
        assert aspect.distribution is not None
        assert aspect.distribution.labels == ("no", "yes")
        assert aspect.distribution.probabilities.tolist() == pytest.approx([1 - yes, yes])


@given(st.integers(2, 6).flatmap(weights), st.data())
def test_side_confidence_exceeds_label_confidence(shares: NDArray[np.float64], data: st.DataObject) -> None:
    """The confidence in a side is its mass, and at least the prediction's confidence."""
    scale = OrdinalLabels([f"label {i}" for i in range(len(shares))])
    place = data.draw(st.integers(0, len(shares) - 1))
    own = data.draw(st.floats(0.0, 1.0))
    prediction = answered(scale, scale[place], shares, confidence=own)
    for rank, aspect in enumerate(scale.aspects(prediction, scale[0])):
        side = shares[rank + 1 :] if place > rank else shares[: rank + 1]
        assert aspect.confidence == pytest.approx(max(own, side.sum()))
        assert aspect.confidence is not None
        assert own <= aspect.confidence <= 1.0


def test_small_tails_keep_their_digits() -> None:
    """A small tail keeps its digits, and its logarithm is finite even if the mass underflows."""
    found = STARS.aspects(answered(STARS, "1 star", [1.0, 1e-300, 0.0, 0.0, 1e-200]), "1 star")
    for aspect in found:
        assert aspect.distribution is not None
        assert math.isclose(aspect.distribution.probability("yes"), 1e-200, rel_tol=1e-9)
    nothing = over(STARS, np.ones(5), logprobs=np.array([0.0, -800.0, -900.0, -900.0, -900.0]))
    tree = HierarchicalLabels(["a", "b/c", "b/d", "e", "f"])
    spread = over(tree, np.ones(5), logprobs=nothing.logprobs)
    for labels, whole in ((STARS, nothing), (tree, spread)):
        for aspect in labels.aspects(
            Prediction(label=labels[0], confidence=1.0, distribution=whole), labels[0]
        ):
            assert aspect.distribution is not None
            assert np.isfinite(aspect.distribution.logprobs).all()


# --- trees --------------------------------------------------------------------------------------


def test_tree_questions_are_path_prefixes() -> None:
    """A shorter label repeats itself below its end; case and spaces of levels do not matter."""
    prediction = answered(MONEY, "Food/Out/Bar", [0.1, 0.2, 0.3, 0.25, 0.1, 0.05])
    found = MONEY.aspects(prediction, "bills / Water")
    assert [aspect.name for aspect in found] == ["level 1", "level 2", "level 3"]
    assert [aspect.predicted for aspect in found] == ["Food", "Food/Out", "Food/Out/Bar"]
    assert [aspect.expected for aspect in found] == ["Bills", "bills / Water", "bills / Water"]
    assert [aspect.confidence for aspect in found] == pytest.approx([0.65, 0.55, 0.3])
    first, second, last = (aspect.distribution for aspect in found)
    assert first is not None
    assert second is not None
    assert first.labels == ("Bills", "Food")
    assert first.probabilities.tolist() == pytest.approx([0.35, 0.65])
    assert second.labels == ("Bills", "Bills/Gas", "Food/Out", "Food/In", "bills / Water")
    assert last is prediction.distribution


@given(paths, st.data())
def test_tree_credit_counts_shared_levels(labels: list[str], data: st.DataObject) -> None:
    """The credit in a tree is the share of common levels, at most hP and hR."""
    tree = HierarchicalLabels(labels)
    answer, label = (data.draw(st.sampled_from(labels)) for _ in range(2))
    found = credit(tree.aspects(Prediction(label=label), answer))
    ours, true = label.split("/"), answer.split("/")
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, true, strict=False))))
    deepest = max(len(path.split("/")) for path in labels)
    if label == answer:
        assert found == 1.0
    else:
        assert found == pytest.approx(common / deepest)
        assert found <= min(common / len(ours), common / len(true)) + 1e-12  # Kiritchenko et al., one row
        assert found < 1.0
    if len(ours) == len(true) == deepest:
        assert found == pytest.approx(common / len(ours))


@given(paths, st.data())
def test_prefix_mass_sums_its_labels(labels: list[str], data: st.DataObject) -> None:
    """Confidence never falls towards the root, and the last level has the prediction's own."""
    tree = HierarchicalLabels(labels)
    shares = data.draw(weights(len(labels)))
    label = data.draw(st.sampled_from(labels))
    prediction = answered(tree, label, shares)
    found = tree.aspects(prediction, labels[0])
    assert len(found) == tree.depth
    for number, aspect in enumerate(found, 1):
        begun = "/".join(label.split("/")[:number])
        mass = sum(
            share
            for share, other in zip(shares, labels, strict=True)
            if "/".join(other.split("/")[:number]) == begun
        )
        assert aspect.predicted == begun == tree.beginning(label, number)
        assert aspect.confidence == pytest.approx(mass)
        assert aspect.distribution is not None
        assert aspect.distribution.probability(begun) == pytest.approx(mass)
        assert aspect.distribution.probabilities.sum() == pytest.approx(1.0)
    sure = [aspect.confidence or 0.0 for aspect in found]
    assert all(outer >= inner - 1e-12 for outer, inner in itertools.pairwise(sure))
    assert sure[-1] == prediction.confidence


@pytest.mark.parametrize(
    ("labels", "separator", "message"),
    [
        (["a", "b"], "/", "hold the separator '/', got none that does, such as 'a'"),
        (["a/b", "c"], ">", "hold the separator '>', got none"),
        (["a/b", "c/"], "/", "level of a label to hold text, got 'c/'"),
        (["/a", "c/d"], "/", "level of a label to hold text, got '/a'"),
        (["a//b", "c/d"], "/", "level of a label to hold text, got 'a//b'"),
        (["a/ /b", "c/d"], "/", "level of a label to hold text, got 'a/ /b'"),
        (["a/b", "A / B"], "/", "distinct paths, got 'A / B' and 'a/b', equal level"),
        (["a/b", "c"], "", "separator of at least one character, got ''"),
        (["a/b"], "/", "at least two labels"),
    ],
)
def test_wrong_trees_are_errors(labels: list[str], separator: str, message: str) -> None:
    """A wrong tree raises an error with the label and the remedy."""
    with pytest.raises(ConfigurationError, match=message):
        HierarchicalLabels(labels, separator)


# --- both ---------------------------------------------------------------------------------------

STRUCTURED = [(STARS, "4 stars", "2 stars"), (MONEY, "Food/Out/Bar", "Food/In")]


@pytest.mark.parametrize(("labels", "label", "answer"), STRUCTURED)
def test_aspects_inherit_the_confidence(labels: LabelSet, label: str, answer: str) -> None:
    """Without a distribution every aspect has the prediction's confidence, or None."""
    for own in (0.6, None):
        for aspect in labels.aspects(Prediction(label=label, confidence=own), answer):
            assert aspect.confidence == own
            assert aspect.distribution is None


@pytest.mark.parametrize(("labels", "label", "answer"), STRUCTURED)
def test_marginals_keep_masses_and_bound(labels: LabelSet, label: str, answer: str) -> None:
    """Marginals keep masses, space and error bound, and drop the joint probability."""
    shares = np.full(len(labels), 1 / len(labels))
    measured = np.arange(len(labels)) == 0
    whole = over(labels, shares, measured=measured, joint_logprob=-0.5, emitted=label)
    found = labels.aspects(Prediction(label=label, confidence=0.9, distribution=whole), answer)
    for aspect in found:
        part = aspect.distribution
        assert part is not None
        if part is whole:
            continue
        assert (part.label_mass, part.unresolved_mass, part.error_bound) == (0.9, 0.05, 0.03)
        assert (part.space, part.joint_logprob, part.emitted) == (LogprobSpace.EXACT, None, None)
        # The first label alone was measured, which is below every threshold and in the first group.
        assert part.measured.tolist() == [True] + [False] * (len(part.labels) - 1)


@pytest.mark.parametrize(("labels", "label", "answer"), STRUCTURED)
def test_confidence_above_the_mass_is_kept(labels: LabelSet, label: str, answer: str) -> None:
    """In masked space a confidence above the label's mass is kept."""
    shares = np.full(len(labels), 1 / len(labels))
    prediction = answered(labels, label, shares, confidence=0.97)
    found = labels.aspects(prediction, answer)
    assert [aspect.confidence for aspect in found] == [0.97] * len(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (STARS, LabelSet(STARS.labels)),
        (STARS, OrdinalLabels(STARS.labels[::-1])),
        (MONEY, LabelSet(MONEY.labels)),
        (MONEY, OrdinalLabels(MONEY.labels)),
        (HierarchicalLabels(["a/b", "c>d"]), HierarchicalLabels(["a/b", "c>d"], ">")),
    ],
)
def test_structures_make_labels_differ(one: LabelSet, other: LabelSet) -> None:
    """Equal labels in another structure make unequal sets; copies are equal with equal hashes."""
    assert one != other
    assert other != one
    copied = pickle.loads(pickle.dumps(one))  # noqa: S301 (our own bytes)
    assert copied == one
    assert hash(copied) == hash(one)
    assert LabelSet.of(one) is one


def test_names_choose_the_structure(write_task: Callable[..., Path]) -> None:
    """A name chooses the structure, and a separator with another structure is an error."""

    def labels_of(labels: list[str], **settings: str) -> LabelSet:
        lines = "".join(f'{name} = "{value}"\n' for name, value in settings.items())
        toml = f'name = "n"\nlabels = {labels}\nfield = "f"\nprompt = "p"\n{lines}'
        return Task.from_file(write_task(toml=toml), splits=()).labels

    assert labels_of(["a", "b"]) == LabelSet(["a", "b"])
    assert labels_of(["a", "b"], structure="ordinal") == OrdinalLabels(["a", "b"])
    assert labels_of(["a/b", "b"], structure="hierarchical") == HierarchicalLabels(["a/b", "b"])
    found = labels_of(["a>b", "b"], structure="hierarchical", separator=">")
    assert found == HierarchicalLabels(["a>b", "b"], ">")
    for structure in ("flat", "ordinal"):
        with pytest.raises(
            ConfigurationError, match=f"only for hierarchical labels, got '/' for {structure}"
        ):
            labels_of(["a", "b"], structure=structure, separator="/")
    with pytest.raises(
        ConfigurationError, match="Input should be 'flat', 'ordinal' or 'hierarchical', got 'tree'"
    ):
        labels_of(["a", "b"], structure="tree")


def test_fields_keep_their_structure() -> None:
    """Each field has the aspects of its own labels, with its own confidence."""
    fields = FieldLabels([Field(name="stars", labels=STARS), Field(name="kind", labels=LabelSet(["a", "b"]))])
    shares = [0.1, 0.2, 0.3, 0.25, 0.15]
    part = Part(name="stars", label="3 stars", confidence=0.3, distribution=over(STARS, shares))
    whole = fields.answer_of({"stars": "3 stars", "kind": "a"})
    truth = fields.answer_of({"stars": "5 stars", "kind": "a"})
    found = fields.aspects(Prediction(label=whole, parts=(part,)), truth)
    thresholds = [f"stars: above {label}" for label in STARS.labels[:-1]]
    assert [aspect.name for aspect in found] == [*thresholds, "kind"]
    assert found[0].confidence == pytest.approx(0.9)
    assert math.isclose(credit(found), 3 / 5)
    with pytest.raises(ConfigurationError, match="a label for every field, got none for kind"):
        fields.answer_of({"stars": "3 stars"})


def test_field_structures_make_labels_differ() -> None:
    """Fields with equal names and other structures are unequal label sets."""
    kind = Field(name="kind", labels=LabelSet(["a", "b"]))
    first, second = (
        FieldLabels([Field(name="stars", labels=labels), kind]) for labels in (STARS, LabelSet(STARS))
    )
    assert first != second
    assert first == FieldLabels(first.fields)
    assert hash(first) == hash(FieldLabels(first.fields))
    assert pickle.loads(pickle.dumps(first)) == first  # noqa: S301 (our own bytes)
