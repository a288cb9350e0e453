"""Tests of metrics for answers that hold several labels."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from calibrant.core import Field, FieldLabels, LabelSet, MultiLabels, OrdinalLabels, Part, Prediction
from calibrant.metrics import CompositeMetrics, brier_score, expected_calibration_error, wilson_interval
from evaluated import FAILED, evaluated
from evaluated import given as predicted

TOPICS = MultiLabels(["a", "b", "c", "d"])
FIELDS = FieldLabels(
    [
        Field(name="kind", labels=LabelSet(["x", "y", "z"])),
        Field(name="size", labels=LabelSet(["big", "small"])),
    ]
)

topic_sets = st.sets(st.sampled_from(TOPICS.labels)).map(TOPICS.answer_with)
field_answers = st.builds(
    lambda kind, size: FIELDS.answer_of({"kind": kind, "size": size}),
    st.sampled_from(["x", "y", "z"]),
    st.sampled_from(["big", "small"]),
)


def counted(labels: MultiLabels | FieldLabels, rows: list[tuple[str, str | None]]) -> CompositeMetrics:
    """Return the numbers of rows of (true, given) answers."""
    found = evaluated(labels, [(answer, predicted(label)) for answer, label in rows]).composite
    assert found is not None
    return found


def indicators(labels: MultiLabels | FieldLabels, answers: list[str | None]) -> np.ndarray:
    """Return one row of zeros and ones for each answer, all zeros if there is none."""
    held = [frozenset[str]() if answer is None else labels.decisions(answer) for answer in answers]
    return np.array([[name in one for name in labels] for one in held], dtype=int)


def f1(truth: np.ndarray, given: np.ndarray, average: str, absent: float) -> float:
    """Return scikit-learn's F1 without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(reference.f1_score(truth, given, average=average, zero_division=absent))


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(topic_sets, topic_sets), min_size=1, max_size=12))
def test_sets_of_labels_score_as_in_scikit_learn(rows: list[tuple[str, str]]) -> None:
    """Metrics of label sets equal scikit-learn's, where two empty sets count as equal."""
    found = counted(TOPICS, list(rows))
    truth, given_ = (indicators(TOPICS, [row[side] for row in rows]) for side in (0, 1))
    tables = reference.multilabel_confusion_matrix(truth, given_)
    for place, name in enumerate(TOPICS):
        own = found.per_label[name]
        assert (own.added, own.missed) == (tables[place][0, 1], tables[place][1, 0])
        assert own.support == truth[:, place].sum()
        assert round(own.recall * own.support) == tables[place][1, 1]
        assert found.parts[name].correct == (truth[:, place] == given_[:, place]).sum()
    assert found.micro_f1 == pytest.approx(f1(truth, given_, "micro", 0.0))
    assert found.macro_f1 == pytest.approx(f1(truth, given_, "macro", 0.0))
    assert found.samples_f1 == pytest.approx(f1(truth, given_, "samples", 1.0))
    assert found.hamming_loss == pytest.approx(reference.hamming_loss(truth, given_))
    jaccard = reference.jaccard_score(truth, given_, average="samples", zero_division=1.0)
    assert found.jaccard == pytest.approx(jaccard)
    earned = [TOPICS.credit(Prediction(label=label), answer) for answer, label in rows]
    assert found.credit == pytest.approx(sum(earned) / len(rows))


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(field_answers, st.none() | field_answers), min_size=1, max_size=12))
def test_fields_score_as_in_scikit_learn(rows: list[tuple[str, str | None]]) -> None:
    """F1 of fields equals scikit-learn's over the labels of all fields."""
    found = counted(FIELDS, rows)
    truth, given_ = (indicators(FIELDS, [row[side] for row in rows]) for side in (0, 1))
    assert found.micro_f1 == pytest.approx(f1(truth, given_, "micro", 0.0))
    assert found.macro_f1 == pytest.approx(f1(truth, given_, "macro", 0.0))
    for name in ("kind", "size"):
        right = sum(
            label is not None and FIELDS.values(label)[name] == FIELDS.values(answer)[name]
            for answer, label in rows
        )
        assert found.parts[name].accuracy == wilson_interval(right, len(rows))
    assert (found.hamming_loss, found.jaccard, found.samples_f1) == (None, None, None)


SCALE = FieldLabels(
    [
        Field(name="kind", labels=LabelSet(["x", "y"])),
        Field(name="size", labels=OrdinalLabels(["low", "middle", "high"])),
    ]
)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(*[st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["low", "middle", "high"]))] * 2),
        min_size=1,
        max_size=8,
    ),
    broken=st.integers(0, 2),
)
def test_credit_is_the_label_sets_own(
    rows: list[tuple[tuple[str, str], tuple[str, str]]], broken: int
) -> None:
    """The credit is the mean of the label set's credit, and 0 for a row without a legal answer."""
    answers = [tuple(SCALE.answer_of({"kind": k, "size": s}) for k, s in row) for row in rows]
    pairs: list[tuple[str, str | None]] = [(truth, label) for truth, label in answers]
    found = counted(SCALE, pairs + [(answers[0][0], None)] * broken)
    wanted = sum(SCALE.credit(Prediction(label=label), truth) for truth, label in answers) / (
        len(rows) + broken
    )
    assert found.credit == pytest.approx(wanted)
    assert found.parts["kind"].credit is None
    sizes = [(row[0][1], row[1][1]) for row in rows]
    own = sum(SCALE.labels_of("size").credit(Prediction(label=label), truth) for truth, label in sizes)
    assert found.parts["size"].credit == pytest.approx(own / (len(rows) + broken))


def test_a_row_without_a_legal_answer_is_wrong_in_every_part() -> None:
    """A row without a legal answer counts as wrong in every part."""
    found = counted(TOPICS, [('["a"]', None), ('["a"]', '["horse"]'), ("[]", None)])
    assert (found.hamming_loss, found.jaccard, found.samples_f1, found.micro_f1) == (1.0, 0.0, 0.0, 0.0)
    assert {part.correct for part in found.parts.values()} == {0}
    assert found.per_label["a"].missed == 2


@settings(max_examples=40, deadline=None)
@given(
    sure=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30),
    unknown=st.integers(0, 3),
)
def test_parts_have_confidence_metrics(sure: list[tuple[float, bool]], unknown: int) -> None:
    """ECE and Brier score of a part equal those of the functions on all rows."""
    rows = []
    for confidence, right in [*sure, *[(None, True)] * unknown]:
        kind = "x" if right else "y"
        part = Part(name="kind", label=kind, confidence=confidence)
        rows.append(Prediction(label=FIELDS.answer_of({"kind": kind, "size": "big"}), parts=(part,)))
    answer = FIELDS.answer_of({"kind": "x", "size": "big"})
    found = evaluated(FIELDS, [(answer, row) for row in rows]).composite
    assert found is not None
    kinds = found.parts["kind"]
    confidences, correct = zip(*sure, strict=True)
    assert kinds.rows_with_confidence == len(sure)
    assert kinds.ece == pytest.approx(expected_calibration_error(confidences, correct))
    assert kinds.brier == pytest.approx(brier_score(confidences, correct))
    assert found.parts["size"].ece is None


def test_there_are_no_numbers_without_rows() -> None:
    """Without an answered row the metrics are None."""
    assert evaluated(TOPICS, [("[]", FAILED)]).composite is None
