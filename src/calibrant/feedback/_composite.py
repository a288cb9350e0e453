"""Feedback on an answer that holds several labels.

The first line is about the whole answer. A line follows for every part that is wrong or unsure; one line sums up the
others. A label that is wrongly in a set or out of it is named with the probability that it belongs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibrant.core._labels import LabelSet
from calibrant.core._prediction import Outcome, Part, Prediction
from calibrant.feedback._label import (
    MAX_ALTERNATIVES,
    SLACK,
    build_feedback,
    check,
    context_lines,
    failed_call,
    no_label,
    percent,
    probability_words,
    quoted,
    small_percent,
)


def build_composite_feedback(
    prediction: Prediction,
    answer: str,
    *,
    labels: LabelSet,
    additional_context: Mapping[str, object] | str | None = None,
    high: float = 0.99,
    low: float = 0.90,
) -> str:
    """Return the feedback on an answer that holds several labels.

    Parameters
    ----------
    prediction : Prediction
        The answer, with its parts.
    answer : str
        The true answer, as `labels` spells it.
    labels : LabelSet
        The legal answers.
    additional_context, high, low
        As in `build_feedback`; the thresholds are about the confidence in each part.

    Returns
    -------
    str
        A line about the whole answer, one for every part that is wrong or unsure, one for the others, and the
        additional context. ``Correct.`` where every part is right and sure.

    Raises
    ------
    ConfigurationError
        A confidence is not in [0, 1], or not 0 <= low <= high <= 1.

    Examples
    --------
    >>> from calibrant.core import MultiLabels
    >>> from calibrant.feedback import build_composite_feedback
    >>> from calibrant.inference import Classifier
    >>> from calibrant.testing import FakeClient
    >>> fake = FakeClient(MultiLabels(["Bills", "Food"]), {"lunch": ('["Food"]', 0.9)}, field="topics")
    >>> prediction = Classifier(model=fake, labels=fake.labels, field="topics").classify("lunch")
    >>> print(build_composite_feedback(prediction, '["Bills", "Food"]', labels=fake.labels))
    Wrong set of labels (90% probability). Expected 'Bills', 'Food', got 'Food'.
    Missed 'Bills' (5% probability): the prompt should say more clearly when it applies.
    Right: 'Food'.
    """
    for part in prediction.parts:
        check(confidence=part.confidence, low=low, high=high)
    if prediction.outcome is Outcome.ERROR:
        return failed_call(prediction.reason)
    context = context_lines(additional_context)
    is_set = labels.is_set
    if prediction.outcome is not Outcome.OK or prediction.label is None:
        form = "a list of labels, which may be empty," if is_set else "one label for every field, each"
        text = no_label(
            expected=answer,
            got=prediction.text,
            outcome=prediction.outcome,
            reason=prediction.reason,
            form=form,
        )
        return text + context
    truth = labels.values(answer)
    by_name = {part.name: part for part in prediction.parts}
    parts = [by_name.get(n) or Part(name=n, label=v) for n, v in labels.values(prediction.label).items()]
    is_right = prediction.label == answer
    if is_right and not any(_is_unsure(part, low) for part in parts):
        return "Correct."
    if is_set:
        head = _set_head(prediction, answer, labels)
        lines = _set_lines(parts, truth, no=labels.labels_of("")[0], high=high, low=low)
    else:
        head = _field_head(parts, truth, prediction)
        lines = _field_lines(parts, truth, labels, high=high, low=low)
    return "\n".join([head, *lines]) + ("" if is_right else context)


def _is_unsure(part: Part, low: float) -> bool:
    return part.confidence is not None and part.confidence < low - SLACK


def _field_head(parts: Sequence[Part], truth: Mapping[str, str], prediction: Prediction) -> str:
    right = sum(part.label == truth[part.name] for part in parts)
    how_sure = "" if prediction.confidence is None else f" ({percent(prediction.confidence)} probability)"
    if right == len(parts):
        return f"Correct but uncertain{how_sure}."
    return f"Wrong: {right} of {len(parts)} fields right{how_sure}."


def _field_lines(
    parts: Sequence[Part], truth: Mapping[str, str], labels: LabelSet, *, high: float, low: float
) -> list[str]:
    """Return a line for each field that is wrong or unsure, and one line that lists the other fields."""
    lines, right = [], []
    for part in parts:
        is_right = part.label == truth[part.name]
        if is_right and not _is_unsure(part, low):
            right.append(part.name)
            continue
        text = build_feedback(
            is_correct=is_right,
            expected=truth[part.name],
            got=part.label,
            confidence=part.confidence,
            distribution=part.distribution,
            outcome=Outcome.OK,
            labels=labels.labels_of(part.name),
            high=high,
            low=low,
        )
        lines.append(f"{part.name}: {text}")
    return [*lines, f"Right: {', '.join(right)}."] if right else lines


def _set_head(prediction: Prediction, answer: str, labels: LabelSet) -> str:
    how_sure = probability_words(prediction.confidence)
    if prediction.label == answer:
        return f"Correct but uncertain ({how_sure})."
    expected, got = (_label_list(labels, text) for text in (answer, prediction.label or ""))
    return f"Wrong set of labels ({how_sure}). Expected {expected}, got {got}."


def _label_list(labels: LabelSet, answer: str) -> str:
    chosen = labels.decisions(answer)
    return ", ".join(quoted(label) for label in labels if label in chosen) or "no label"


def _set_lines(
    parts: Sequence[Part], truth: Mapping[str, str], *, no: str, high: float, low: float
) -> list[str]:
    """Return a line for each missed, added or unsure label, and one line about the other labels."""
    lines: dict[str, list[str]] = {"missed": [], "added": [], "unsure": [], "nearly": []}
    right_labels: list[str] = []
    absent = 0
    for part in sorted(parts, key=lambda part: -_inclusion(part, no)):
        inside, unsure = part.label != no, _is_unsure(part, low)
        if part.label != truth[part.name]:
            sure = part.confidence is not None and part.confidence >= high - SLACK
            lines["added" if inside else "missed"].append(_mistake(part, no, sure=sure))
        elif unsure and inside:
            lines["unsure"].append(f"{_with_inclusion(part, no)} is right but uncertain.")
        elif unsure and len(lines["nearly"]) < MAX_ALTERNATIVES:
            lines["nearly"].append(f"{_with_inclusion(part, no)} was rightly left out, but not surely.")
        elif inside:
            right_labels.append(part.name)
        else:
            absent += 1
    rest = [", ".join(map(quoted, right_labels))] if right_labels else []
    rest += [f"{absent} {'label' if absent == 1 else 'labels'} left out"] if absent else []
    shown = [line for kind in lines.values() for line in kind]
    return [*shown, f"Right: {'; '.join(rest)}."] if rest else shown


def _mistake(part: Part, no: str, *, sure: bool) -> str:
    """Return the line about a label that the model added or missed wrongly."""
    verb, rule = ("Missed", "applies") if part.label == no else ("Added", "does not apply")
    if not sure:
        return f"{verb} {_with_inclusion(part, no)}: the prompt should say more clearly when it {rule}."
    return (
        f"{verb.upper()} {_with_inclusion(part, no)}, and the model is sure of it: the prompt misleads the model here; "
        f"give it an explicit rule on when {quoted(part.name)} {rule}."
    )


def _inclusion(part: Part, no: str) -> float:
    """Return the probability that the label belongs to the set; 0 where it is unknown."""
    if part.confidence is None:
        return 0.0
    return 1.0 - part.confidence if part.label == no else part.confidence


def _with_inclusion(part: Part, no: str) -> str:
    if part.confidence is None:
        return quoted(part.name)
    return f"{quoted(part.name)} ({small_percent(_inclusion(part, no))} probability)"
