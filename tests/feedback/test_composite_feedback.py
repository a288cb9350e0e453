"""Tests of feedback on answers that hold several labels."""

from __future__ import annotations

import pytest

from calibrant.core import (
    ConfigurationError,
    Field,
    FieldLabels,
    LabelSet,
    MultiLabels,
    OrdinalLabels,
    Outcome,
    Part,
    Prediction,
)
from calibrant.feedback import build_composite_feedback
from distributions import exact

TOPICS = MultiLabels(["Bills", "Food", "Travel", "Sport", "News"])
FIELDS = FieldLabels(
    [
        Field(name="category", labels=LabelSet(["Bills", "Food"])),
        Field(name="urgency", labels=OrdinalLabels(["low", "middle", "high"])),
    ]
)
SURE = 0.999


def topics(inside: dict[str, float], given: set[str], confidence: float | None = 0.31) -> Prediction:
    """Return a set of labels; `inside` has the probabilities that labels belong to it, 0.001 by default."""
    parts = []
    for label in TOPICS:
        share = inside.get(label, 1.0 - SURE)
        value = "yes" if label in given else "no"
        parts.append(Part(name=label, label=value, confidence=share if value == "yes" else 1.0 - share))
    return Prediction(label=TOPICS.answer_with(given), confidence=confidence, parts=tuple(parts))


def fields(category: tuple[str, float | None], urgency: tuple[str, float | None]) -> Prediction:
    """Return an answer with two fields."""
    values = {"category": category, "urgency": urgency}
    return Prediction(
        label=FIELDS.answer_of({name: label for name, (label, _) in values.items()}),
        confidence=0.5,
        parts=tuple(Part(name=name, label=label, confidence=sure) for name, (label, sure) in values.items()),
    )


def on_topics(prediction: Prediction, *truth: str, context: str = "") -> list[str]:
    """Return the lines about a set of labels."""
    answer = TOPICS.answer_with(truth)
    text = build_composite_feedback(prediction, answer, labels=TOPICS, additional_context=context)
    return text.split("\n")


def on_fields(prediction: Prediction, category: str, urgency: str) -> list[str]:
    """Return the lines about two fields."""
    answer = FIELDS.answer_of({"category": category, "urgency": urgency})
    return build_composite_feedback(prediction, answer, labels=FIELDS).split("\n")


def test_sure_right_parts_take_one_word() -> None:
    """A sure right answer gets only "Correct.", also where a part's confidence is unknown."""
    assert on_topics(topics({"Bills": SURE}, {"Bills"}), "Bills", context="note") == ["Correct."]
    assert on_fields(fields(("Food", 0.95), ("low", None)), "Food", "low") == ["Correct."]
    assert on_topics(topics({}, set()), context="note") == ["Correct."]


def test_missed_and_added_labels_show_probabilities() -> None:
    """Missed and added labels have a line each with their probability; right labels share the last line."""
    given = topics({"Bills": SURE, "Food": 0.12, "Travel": 0.81}, {"Bills", "Travel"})
    assert on_topics(given, "Bills", "Food", context="seen on a bill") == [
        "Wrong set of labels (31% probability). Expected 'Bills', 'Food', got 'Bills', 'Travel'.",
        "Missed 'Food' (12% probability): the prompt should say more clearly when it applies.",
        "Added 'Travel' (81% probability): the prompt should say more clearly when it does not apply.",
        "Right: 'Bills'; 2 labels left out.",
        "seen on a bill",
    ]


def test_a_sure_mistake_demands_a_rule() -> None:
    """A sure mistake is written in capitals and demands a rule, for missed and added labels."""
    lines = on_topics(topics({"Travel": SURE}, {"Travel"}, None), "Food")
    assert lines[0] == "Wrong set of labels (unknown confidence). Expected 'Food', got 'Travel'."
    assert lines[1].startswith("MISSED 'Food' (0.1% probability), and the model is sure of it: ")
    assert lines[1].endswith("give it an explicit rule on when 'Food' applies.")
    assert lines[2].startswith("ADDED 'Travel' (99.9% probability), and the model is sure of it: ")
    assert lines[2].endswith("give it an explicit rule on when 'Travel' does not apply.")


def test_an_empty_set_is_called_so() -> None:
    """An empty set is called "no label", whether it is expected or predicted."""
    assert on_topics(topics({}, set()), "Food")[0].endswith("Expected 'Food', got no label.")
    assert on_topics(topics({"Food": SURE}, {"Food"}))[0].endswith("Expected no label, got 'Food'.")


def test_a_right_set_may_be_uncertain() -> None:
    """An uncertain right set shows the uncertain labels and the three most probable left-out ones."""
    inside = {"Bills": 0.6, "Food": 0.2, "Travel": 0.4, "Sport": 0.3, "News": 0.25}
    assert on_topics(topics(inside, {"Bills"}), "Bills", context="note") == [
        "Correct but uncertain (31% probability).",
        "'Bills' (60% probability) is right but uncertain.",
        "'Travel' (40% probability) was rightly left out, but not surely.",
        "'Sport' (30% probability) was rightly left out, but not surely.",
        "'News' (25% probability) was rightly left out, but not surely.",
        "Right: 1 label left out.",
    ]


def test_without_probabilities_labels_are_named_alone() -> None:
    """Without probabilities the lines name only the missed and added labels."""
    given = Prediction(
        label='["Travel"]', parts=tuple(Part(name=n, label="yes" if n == "Travel" else "no") for n in TOPICS)
    )
    assert on_topics(given, "Food")[1:3] == [
        "Missed 'Food': the prompt should say more clearly when it applies.",
        "Added 'Travel': the prompt should say more clearly when it does not apply.",
    ]


def test_wrong_and_unsure_fields_have_own_lines() -> None:
    """Wrong and uncertain fields have a line each, and the other fields share one."""
    lines = on_fields(fields(("Bills", SURE), ("high", 0.7)), "Food", "high")
    assert lines[0] == "Wrong: 1 of 2 fields right (50% probability)."
    assert lines[1].startswith("category: WRONG with 99.9% certainty. Expected 'Food', got 'Bills'.")
    assert lines[2].startswith("urgency: Correct but uncertain (70% probability).")
    assert len(lines) == 3
    lines = on_fields(fields(("Food", 0.95), ("high", 0.7)), "Food", "low")
    assert "the answer is 2 steps too high" in lines[1]
    assert lines[2] == "Right: category."
    lines = on_fields(fields(("Food", 0.95), ("high", 0.7)), "Food", "high")
    assert lines[0] == "Correct but uncertain (50% probability)."


def test_alternatives_of_a_field_are_shown() -> None:
    """A field's line shows the alternatives of the field's own distribution."""
    known = exact(("Bills", "Food"), [0.7, 0.3])
    parts = (
        Part(name="category", label="Bills", confidence=0.7, distribution=known),
        Part(name="urgency", label="low"),
    )
    given = Prediction(label=FIELDS.answer_of({"category": "Bills", "urgency": "low"}), parts=parts)
    assert "Also considered: 'Food' (30%)." in on_fields(given, "Bills", "low")[1]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [(TOPICS, "a list of labels, which may be empty,"), (FIELDS, "one label for every field")],
)
def test_unreadable_answers_name_the_wanted_form(labels: MultiLabels | FieldLabels, wanted: str) -> None:
    """Feedback on an unparsed answer shows the wanted form; a failed call is not the prompt's fault."""
    answer = (
        TOPICS.answer_with(["Food"])
        if labels is TOPICS
        else FIELDS.answer_of({"category": "Food", "urgency": "low"})
    )
    broken = Prediction(label=None, outcome=Outcome.UNPARSED, reason="not JSON", text="well")
    assert wanted in build_composite_feedback(broken, answer, labels=labels)
    failed = Prediction(label=None, outcome=Outcome.ERROR, reason="HTTP 503")
    assert "says nothing about the prompt" in build_composite_feedback(failed, answer, labels=labels)


def test_thresholds_out_of_range_are_refused() -> None:
    """Thresholds with low above high raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match="thresholds"):
        build_composite_feedback(topics({}, set()), "[]", labels=TOPICS, high=0.5, low=0.9)
