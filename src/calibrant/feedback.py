"""Feedback on one row for the model that rewrites the prompt, graded by severity.

A confident right answer needs one word; a confident wrong one needs a rule. The worse the row, the stronger
the first words and the longer the text:

===========================  ===============================================================
row                          text
===========================  ===============================================================
correct, sure or unknown     ``Correct.``
correct, in between          ``Correct (95% probability).`` and close alternatives
correct, unsure              ``Correct but uncertain (73% probability).``, alternatives, what it means
wrong, unsure or unknown     ``Wrong (60% probability).``, expected, got, alternatives, the advice to add
                             guidance
wrong, in between            the same
wrong, sure                  ``WRONG``, how sure, expected, got, the true label's probability, other
                             alternatives however improbable, the demand for a rule
refusal, unparsed            the model's action, expected, the demand for exactly one label
error                        a note that the row says nothing about the prompt
===========================  ===============================================================

Labels that a reported token begins without telling them apart are one alternative, under that beginning:
``'Bills/...' (46%: 'Bills/Gas' or 'Bills/Water', not told apart)``.

Where the labels have a structure, a sentence follows about the distance to the true label: the steps on a
scale, or the levels of a path that are right. It is left out where one word is enough.

Of an answer that holds several labels, the first line is about the whole. A line follows for every part that is
wrong or unsure; one line sums up the others. A label that is wrongly in a set or out of it is named with the
probability that it belongs there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import singledispatch
from os.path import commonprefix

from calibrant.core._errors import ConfigurationError
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import LabelDistribution, Outcome, Part, Prediction
from calibrant.core._reported import one_line, shortened
from calibrant.core._structures import HierarchicalLabels, OrdinalLabels

__all__ = ["build_composite_feedback", "build_feedback"]


_SLACK = 1e-12  # of comparisons with a threshold: exp(log(0.99)) must count as 0.99
_MAX_ALTERNATIVES = 3
_MAX_RAW_CHARACTERS = 80
# An alternative below one percent is noise to a model that rewrites the prompt.
_MIN_ALTERNATIVE = 0.01
# Beside a sure mistake nothing else reaches that.
_MIN_BESIDE_SURE = 1e-4


def build_feedback(  # noqa: PLR0913 - one row has this many facets; all are keyword-only
    *,
    is_correct: bool,
    expected: str,
    got: str | None,
    confidence: float | None,
    distribution: LabelDistribution | None,
    outcome: Outcome,
    labels: LabelSet | None = None,
    reason: str = "",
    additional_context: Mapping[str, object] | str | None = None,
    high: float = 0.99,
    low: float = 0.90,
) -> str:
    """Return the feedback text on one row with a single label.

    Parameters
    ----------
    is_correct : bool
        Whether the predicted label is the true one.
    expected : str
        The true label.
    got : str or None
        The predicted label; with outcome ``refusal`` or ``unparsed`` the model's text, if there is
        any.
    confidence : float or None
        Confidence in the predicted label, in [0, 1]; None where it is unknown.
    distribution : LabelDistribution or None
        Source of the alternatives (measured ones of at least 1%, at most three) and of the true
        label's probability.
    outcome : Outcome
        How the row ended. ``error`` is never presented as a wrong answer.
    labels : LabelSet, optional
        `OrdinalLabels` and `HierarchicalLabels` add the distance to the true label; `expected` and `got`
        must then be spelled as in them.
    reason : str, default ""
        Reason for the outcome, if it is not ``ok``.
    additional_context : mapping, str or None, default None
        Further columns of the row in the data file; appended, as ``key: value`` lines, unless the
        answer is right or the call failed.
    high : float in (0, 1], default 0.99
        Confidence from which the model counts as sure.
    low : float in [0, 1], default 0.90
        Confidence below which the model counts as unsure.

    Returns
    -------
    str
        One paragraph, and the additional context below it.

    Raises
    ------
    ConfigurationError
        The confidence is not in [0, 1], or not 0 <= low <= high <= 1.

    Examples
    --------
    >>> from calibrant.core import Outcome
    >>> from calibrant.feedback import build_feedback
    >>> row = {"is_correct": False, "expected": "Rent", "got": "Food", "confidence": 0.95}
    >>> build_feedback(**row, distribution=None, outcome=Outcome.OK).split(". ")[:2]
    ['Wrong (95% probability)', "Expected 'Rent', got 'Food'"]
    """
    _check(confidence=confidence, low=low, high=high)
    if outcome is Outcome.ERROR:
        return _failed_call(reason)
    context = _context_lines(additional_context)
    if outcome is not Outcome.OK or got is None:
        return _no_label(expected=expected, got=got, outcome=outcome, reason=reason) + context
    sure = confidence is not None and confidence >= high - _SLACK
    unsure = confidence is None or confidence < low - _SLACK
    shown = ""
    if confidence is not None:
        shown = _percent(confidence, limits=(low, high))
    if is_correct and (sure or not shown):
        return "Correct."
    prediction = Prediction(label=got, confidence=confidence, distribution=distribution)
    distance = _distance(labels, prediction, expected)
    if is_correct:
        return _correct(got, shown, distribution, unsure=unsure) + distance
    return _wrong(expected, got, shown, distribution, sure=sure) + distance + context


def _correct(got: str, shown: str, distribution: LabelDistribution | None, *, unsure: bool) -> str:
    rivals = _alternatives(distribution, got)
    if not unsure:
        text = f"Correct ({shown} probability)."
        return f"{text} Close alternatives: {rivals}." if rivals else text
    text = f"Correct but uncertain ({shown} probability)."
    if not rivals:
        return f"{text} The prompt does not separate {_quoted(got)} from the other labels."
    return f"{text} Also considered: {rivals}. The prompt does not separate {_quoted(got)} from these labels."


def _wrong(expected: str, got: str, shown: str, distribution: LabelDistribution | None, *, sure: bool) -> str:
    labels = f"Expected {_quoted(expected)}, got {_quoted(got)}."
    if sure:
        others = _alternatives(distribution, got, expected, least=_MIN_BESIDE_SURE)
        also = f" Other alternatives: {others}." if others else ""
        return (
            f"WRONG with {shown} certainty. {labels}{_true_probability(expected, distribution)}{also} The prompt "
            f"misleads the model here: give it an explicit rule that separates {_quoted(expected)} from {_quoted(got)}."
        )
    text = f"Wrong ({f'{shown} probability' if shown else 'unknown confidence'}). {labels}"
    rivals = _alternatives(distribution, got)
    if rivals:
        text += f" Alternatives to {_quoted(got)}: {rivals}."
    return f"{text} Clearer guidance in the prompt on when {_quoted(expected)} applies could fix it."


@singledispatch
def _distance(labels: LabelSet | None, prediction: Prediction, expected: str) -> str:  # noqa: ARG001
    """Return the sentences on the distance to the true label; empty for labels without structure.

    A kind of labels with a distance of its own is registered here: the words are those of this package.
    """
    return ""


@_distance.register(OrdinalLabels)
def _steps(labels: OrdinalLabels, prediction: Prediction, expected: str) -> str:
    """Return sentences on the steps from the true label to the answer, and the probability on each side."""
    got = prediction.label or ""
    rank = labels.rank(expected)
    steps = labels.rank(got) - labels.rank(expected)
    parts = []
    if steps:
        unit = "step" if abs(steps) == 1 else "steps"
        direction = "high" if steps > 0 else "low"
        parts.append(
            f"On the scale from {_quoted(labels[0])} to {_quoted(labels[-1])} the answer is {abs(steps)} {unit} too "
            f"{direction}, of {len(labels) - 1} possible."
        )
    if prediction.distribution is not None:
        shares = prediction.distribution.probabilities
        sides = {"below": float(shares[:rank].sum()), "above": float(shares[rank + 1 :].sum())}
        shown = [f"{_percent(mass)} {side}" for side, mass in sides.items() if mass >= _MIN_ALTERNATIVE]
        if shown:
            parts.append(f"The probability adds up to {' and '.join(shown)} {_quoted(expected)}.")
    return "".join(f" {part}" for part in parts)


@_distance.register(HierarchicalLabels)
def _levels(labels: HierarchicalLabels, prediction: Prediction, expected: str) -> str:
    """Return a sentence on the levels of the answer: the deepest right one and the first wrong one."""
    got = prediction.label or ""
    answered = labels.path(got)
    true = labels.path(expected)
    aspects = labels.aspects(prediction, expected)
    right = [aspect for aspect in aspects if aspect.is_correct]
    if len(right) == len(aspects):
        # The last level is the answer itself; the text already shows its probability.
        upper = [
            f"{_percent(aspect.confidence)} for {_quoted(aspect.predicted)}"
            for aspect in aspects[: len(answered) - 1]
            if aspect.confidence is not None
        ]
        return f" By level: {', '.join(upper)}." if upper else ""
    if not right:
        first = aspects[0]
        return (
            f" By level: the answer is wrong from the first level on, which should be {_quoted(true[0])} and is "
            f"{_with_probability(first.predicted, first.confidence)}."
        )
    shared = right[-1]
    right_part = f" By level: {_with_probability(shared.predicted, shared.confidence)} is right"
    level = len(right)
    if len(answered) == level:
        return f"{right_part}, but the answer stops there; {_quoted(true[level])} belongs below it."
    if len(true) == level:
        return f"{right_part} and is the whole label; {_quoted(answered[level])} does not belong below it."
    return f"{right_part}; below it, expected {_quoted(true[level])}, got {_quoted(answered[level])}."


def _with_probability(text: str, probability: float | None) -> str:
    return _quoted(text) if probability is None else f"{_quoted(text)} ({_percent(probability)})"


def _true_probability(expected: str, distribution: LabelDistribution | None) -> str:
    label = _canonical(distribution, expected)
    if distribution is None or label is None:
        return ""
    shown = _small_percent(distribution.probability(label))
    if distribution.measured[distribution.labels.index(label)]:
        return f" The true label's own probability is {shown}."
    if any(label in labels for labels, _ in distribution.shared):
        return (
            f" The true label shares a reported token with others; an estimate of its probability is {shown}."
        )
    return (
        f" The true label was not among the reported alternatives; an estimate of its probability is {shown}."
    )


def _alternatives(
    distribution: LabelDistribution | None, *left_out: str, least: float = _MIN_ALTERNATIVE
) -> str:
    """Return the probable rivals as ``'B' (24%), 'C' (2%)``, without the labels in `left_out`.

    `left_out` begins with the predicted label: a group of labels with it is no rival.
    """
    if distribution is None:
        return ""
    excluded = [_canonical(distribution, label) for label in left_out]
    rivals = [
        (share, f"{_quoted(label)} ({_small_percent(share)})")
        for label, share in distribution.alternatives(limit=_MAX_ALTERNATIVES + len(left_out))
        if label not in excluded and share >= least
    ]
    for labels, share in distribution.shared:
        beginning = commonprefix(labels)  # noqa: RUF071 (no paths)
        if beginning and excluded[0] not in labels and share >= least:
            rivals.append((share, _shared_alternative(beginning, labels, share)))
    rivals.sort(key=lambda rival: -rival[0])
    return ", ".join(text for _, text in rivals[:_MAX_ALTERNATIVES])


def _shared_alternative(beginning: str, labels: Sequence[str], share: float) -> str:
    """Return labels of one beginning as ``'Bills/...' (46%: 'Bills/Gas' or 'Bills/Water', not told apart)``."""
    named = [_quoted(label) for label in labels[:_MAX_ALTERNATIVES]]
    if len(labels) > len(named):
        named.append(f"{len(labels) - len(named)} more")
    choice = f"{', '.join(named[:-1])} or {named[-1]}"
    return f"{_quoted(f'{beginning}...')} ({_small_percent(share)}: {choice}, not told apart)"


def _canonical(distribution: LabelDistribution | None, text: str) -> str | None:
    if distribution is None:
        return None
    normalised = normalise_label(text)
    return next((label for label in distribution.labels if normalise_label(label) == normalised), None)


# --- wording shared with answers of several labels ---------------------------------------------


def _check(*, confidence: float | None, low: float, high: float) -> None:
    """Raise ConfigurationError if a confidence or a threshold is out of range."""
    if not 0.0 <= low <= high <= 1.0 or high == 0.0:
        msg = f"Expected thresholds with 0 <= low <= high <= 1 and high above 0, got low={low!r}, high={high!r}."
        raise ConfigurationError(msg)
    if confidence is not None and not 0.0 <= confidence <= 1.0 + 1e-6:
        msg = f"Expected a confidence in [0, 1] or None, got {confidence!r}."
        raise ConfigurationError(msg)


def _failed_call(reason: str) -> str:
    """Return the feedback on a row whose call failed."""
    cause = f" ({reason.strip().rstrip('.')})" if reason.strip() else ""
    return f"No verdict: the call to the model failed{cause}. This row says nothing about the prompt."


def _no_label(
    *, expected: str, got: str | None, outcome: Outcome, reason: str, form: str = "exactly one label"
) -> str:
    """Return the feedback on an answer without a legal label; `form` describes the required answer."""
    action = (
        "declined to answer" if outcome is Outcome.REFUSAL else "gave no answer that can be read as a label"
    )
    cause = f": {reason.strip().rstrip('.')}" if reason.strip() else ""
    beginning = re.escape(one_line(got or "")[: _MAX_RAW_CHARACTERS // 2])
    # The reason may quote the text already, at its own beginning or in quotes.
    is_new = re.search(rf"(^|['\"]){beginning}", one_line(reason)) is None
    wrote = (
        f" It wrote {_quoted(shortened(got, _MAX_RAW_CHARACTERS))}." if got and got.strip() and is_new else ""
    )
    return (
        f"No label: the model {action}{cause}.{wrote} Expected {_quoted(expected)}. "
        f"The prompt must make the model answer every input with {form} of the label set."
    )


def _percent(probability: float, *, limits: tuple[float, ...] = ()) -> str:
    """Return a probability in percent, never rounded to 0%, to 100% or up to one of `limits`.

    Above 98% one decimal is kept where it says something: 99.6% is not 100%, 98.7% not 99%.
    """
    share = 100.0 * min(probability, 1.0)
    if share < 1.0 - 1e-9:
        return "<1%"
    if share > 99.9 + 1e-9:
        return "100%" if probability >= 1.0 - 1e-9 else ">99.9%"
    if share <= 98.0:
        whole = round(share)
        # 89.95% must not show as 90% where 90% is graded otherwise.
        if any(probability < limit - _SLACK <= whole / 100.0 for limit in limits):
            whole = math.floor(share)
        return f"{whole}%"
    # The floor: 99.88% must not show as 99.9% when the next word is about thresholds.
    tenths = math.floor(share * 10.0 + 1e-6) / 10.0
    return f"{tenths:g}%"


def _probability_words(probability: float | None) -> str:
    """Return the words on a probability, such as ``95% probability``."""
    return "unknown confidence" if probability is None else f"{_percent(probability)} probability"


def _small_percent(probability: float) -> str:
    """Return a probability as `_percent` does, but with one significant digit below 1%, such as 0.03%."""
    share = 100.0 * probability
    if share >= 1.0 - 1e-9:
        return _percent(probability)
    return f"{share:.1g}%" if share >= 0.01 - 1e-9 else "<0.01%"


def _quoted(text: str) -> str:
    """Return `text` in single quotes."""
    return f"'{text}'"


def _context_lines(additional_context: Mapping[str, object] | str | None) -> str:
    """Return the additional context of a row as lines of its own, each after a line break."""
    if not additional_context:
        return ""
    if isinstance(additional_context, str):
        text = additional_context.strip()
        return f"\n{text}" if text else ""
    return "".join(f"\n{key}: {_value(value)}" for key, value in additional_context.items())


def _value(value: object) -> str:
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


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
        _check(confidence=part.confidence, low=low, high=high)
    if prediction.outcome is Outcome.ERROR:
        return _failed_call(prediction.reason)
    context = _context_lines(additional_context)
    is_set = labels.is_set
    if prediction.outcome is not Outcome.OK or prediction.label is None:
        form = "a list of labels, which may be empty," if is_set else "one label for every field, each"
        text = _no_label(
            expected=answer,
            got=prediction.text,
            outcome=prediction.outcome,
            reason=prediction.reason,
            form=form,
        )
        return text + context
    truth = labels.values(answer)
    by_name = {part.name: part for part in prediction.parts}
    given = labels.values(prediction.label)
    parts = [by_name.get(name) or Part(name=name, label=label) for name, label in given.items()]
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
    return part.confidence is not None and part.confidence < low - _SLACK


def _field_head(parts: Sequence[Part], truth: Mapping[str, str], prediction: Prediction) -> str:
    right = sum(part.label == truth[part.name] for part in parts)
    how_sure = "" if prediction.confidence is None else f" ({_percent(prediction.confidence)} probability)"
    if right == len(parts):
        return f"Correct but uncertain{how_sure}."
    return f"Wrong: {right} of {len(parts)} fields right{how_sure}."


def _field_lines(
    parts: Sequence[Part], truth: Mapping[str, str], labels: LabelSet, *, high: float, low: float
) -> list[str]:
    """Return a line for each field that is wrong or unsure, and one line that lists the other fields."""
    lines = []
    right = []
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
    how_sure = _probability_words(prediction.confidence)
    if prediction.label == answer:
        return f"Correct but uncertain ({how_sure})."
    expected, got = (_label_list(labels, text) for text in (answer, prediction.label or ""))
    return f"Wrong set of labels ({how_sure}). Expected {expected}, got {got}."


def _label_list(labels: LabelSet, answer: str) -> str:
    chosen = labels.decisions(answer)
    return ", ".join(_quoted(label) for label in labels if label in chosen) or "no label"


def _set_lines(
    parts: Sequence[Part], truth: Mapping[str, str], *, no: str, high: float, low: float
) -> list[str]:
    """Return a line for each missed, added or unsure label, and one line about the other labels."""
    lines: dict[str, list[str]] = {"missed": [], "added": [], "unsure": [], "nearly": []}
    right_labels: list[str] = []
    absent = 0
    for part in sorted(parts, key=lambda part: -_inclusion(part, no)):
        inside = part.label != no
        unsure = _is_unsure(part, low)
        if part.label != truth[part.name]:
            sure = part.confidence is not None and part.confidence >= high - _SLACK
            lines["added" if inside else "missed"].append(_mistake(part, no, sure=sure))
        elif unsure and inside:
            lines["unsure"].append(f"{_with_inclusion(part, no)} is right but uncertain.")
        elif unsure and len(lines["nearly"]) < _MAX_ALTERNATIVES:
            lines["nearly"].append(f"{_with_inclusion(part, no)} was rightly left out, but not surely.")
        elif inside:
            right_labels.append(part.name)
        else:
            absent += 1
    rest = []
    if right_labels:
        rest = [", ".join(map(_quoted, right_labels))]
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
        f"give it an explicit rule on when {_quoted(part.name)} {rule}."
    )


def _inclusion(part: Part, no: str) -> float:
    """Return the probability that the label belongs to the set; 0 where it is unknown."""
    if part.confidence is None:
        return 0.0
    if part.label == no:
        return 1.0 - part.confidence
    return part.confidence


def _with_inclusion(part: Part, no: str) -> str:
    if part.confidence is None:
        return _quoted(part.name)
    return f"{_quoted(part.name)} ({_small_percent(_inclusion(part, no))} probability)"
