"""What a reflecting model reads about one row, graded by how bad the row is.

A confident right answer needs one word; a confident wrong one needs a rule. What the row costs is
said by how the text begins and by how much it holds:

===========================  ===============================================================
row                          text
===========================  ===============================================================
correct, sure or unknown     ``Correct.``
correct, in between          ``Correct (95% probability).`` and close alternatives
correct, unsure              ``Correct but uncertain (73% probability).``, alternatives, what it means
wrong, unsure or unknown     ``Wrong (60% probability).``, expected, got, that guidance could fix it
wrong, in between            ``Wrong (95% probability).``, expected, got, alternatives
wrong, sure                  ``WRONG``, how sure, expected, got, the true label's probability, the
                             demand for a rule
refusal, unparsed            what the model did, expected, that one label must be answered
error                        that the row says nothing about the prompt
===========================  ===============================================================

Where the labels have a structure, a sentence follows that says how near the answer came: how many steps on
a scale, or which levels of a path are right. It is left out where one word is enough.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from calibrant.core import (
    ConfigurationError,
    HierarchicalLabels,
    LabelDistribution,
    LabelSet,
    OrdinalLabels,
    Outcome,
    Prediction,
    normalise_label,
)

__all__ = ["build_feedback"]

# exp(log(0.99)) must count as 0.99.
_SLACK = 1e-12
_MAX_ALTERNATIVES = 3
# An alternative below one percent is noise to whoever rewrites a prompt.
_MIN_ALTERNATIVE = 0.01
_MAX_RAW_CHARACTERS = 80


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
    """Return the feedback on one row.

    Parameters
    ----------
    is_correct : bool
        Whether the predicted label is the true one.
    expected : str
        The true label.
    got : str or None
        The predicted label; with outcome ``refusal`` or ``unparsed`` what the model wrote, if
        anything.
    confidence : float or None
        Confidence in the predicted label, in [0, 1]; None where it is unknown.
    distribution : LabelDistribution or None
        Source of the alternatives (measured ones of at least 1%, at most three) and of the true
        label's probability.
    outcome : Outcome
        How the row ended. ``error`` is never presented as a wrong answer.
    labels : LabelSet, optional
        `OrdinalLabels` and `HierarchicalLabels` add how near the answer came; `expected` and `got` are
        then spelled as in them.
    reason : str, default ""
        Why the row did not end well.
    additional_context : mapping, str or None, default None
        What the data file adds to the row; appended, as ``key: value`` lines, unless the answer
        is right or the call failed.
    high : float in (0, 1], default 0.99
        At or above it the model is sure.
    low : float in [0, 1], default 0.90
        Below it the model is unsure.

    Returns
    -------
    str
        One paragraph, and the additional context below it.

    Raises
    ------
    ConfigurationError
        The confidence is not in [0, 1], or not 0 <= low <= high <= 1.
    """
    _check(confidence=confidence, low=low, high=high)
    if outcome is Outcome.ERROR:
        return _failed_call(reason)
    context = _context(additional_context)
    if outcome is not Outcome.OK or got is None:
        return _no_label(expected=expected, got=got, outcome=outcome, reason=reason) + context
    sure = confidence is not None and confidence >= high - _SLACK
    unsure = confidence is None or confidence < low - _SLACK
    shown = None if confidence is None else _percent(confidence, limits=(low, high))
    if is_correct and (sure or shown is None):
        return "Correct."
    near = _near(labels, Prediction(label=got, confidence=confidence, distribution=distribution), expected)
    if is_correct and shown is not None:
        return _correct(got, shown, distribution, unsure=unsure) + near
    if sure and shown is not None:
        return _wrong_and_sure(expected, got, shown, distribution) + near + context
    return _wrong(expected, got, shown, distribution, unsure=unsure) + near + context


def _check(*, confidence: float | None, low: float, high: float) -> None:
    if not 0.0 <= low <= high <= 1.0 or high == 0.0:
        msg = f"Expected thresholds with 0 <= low <= high <= 1 and high above 0, got low={low!r}, high={high!r}."
        raise ConfigurationError(msg)
    if confidence is not None and not 0.0 <= confidence <= 1.0 + 1e-6:
        msg = f"Expected a confidence in [0, 1] or None, got {confidence!r}."
        raise ConfigurationError(msg)


def _failed_call(reason: str) -> str:
    cause = f" ({reason.strip().rstrip('.')})" if reason.strip() else ""
    return f"No verdict: the call to the model failed{cause}. This row says nothing about the prompt."


def _no_label(*, expected: str, got: str | None, outcome: Outcome, reason: str) -> str:
    did = "declined to answer" if outcome is Outcome.REFUSAL else "gave no answer that can be read as a label"
    cause = f": {reason.strip().rstrip('.')}" if reason.strip() else ""
    wrote = f" It wrote {_quote(_shorten(got))}." if got and got.strip() and not _quotes(reason, got) else ""
    return (
        f"No label: the model {did}{cause}.{wrote} Expected {_quote(expected)}. "
        "The prompt must make the model answer every input with exactly one label of the label set."
    )


def _quotes(reason: str, text: str) -> bool:
    """Return whether `reason` shows how `text` begins: at its own beginning or in quotes."""
    beginning = re.escape(_one_line(text)[: _MAX_RAW_CHARACTERS // 2])
    return re.search(rf"(^|['\"]){beginning}", _one_line(reason)) is not None


def _correct(got: str, shown: str, distribution: LabelDistribution | None, *, unsure: bool) -> str:
    rivals = _alternatives(distribution, got)
    if not unsure:
        text = f"Correct ({shown} probability)."
        return f"{text} Close alternatives: {rivals}." if rivals else text
    text = f"Correct but uncertain ({shown} probability)."
    if not rivals:
        return f"{text} The prompt does not separate {_quote(got)} from the other labels."
    return f"{text} Also considered: {rivals}. The prompt does not separate {_quote(got)} from these labels."


def _wrong(
    expected: str,
    got: str,
    shown: str | None,
    distribution: LabelDistribution | None,
    *,
    unsure: bool,
) -> str:
    how_sure = "unknown confidence" if shown is None else f"{shown} probability"
    text = f"Wrong ({how_sure}). Expected {_quote(expected)}, got {_quote(got)}."
    if unsure:
        return f"{text} Clearer guidance in the prompt on when {_quote(expected)} applies could fix it."
    rivals = _alternatives(distribution, got)
    return f"{text} Alternatives to {_quote(got)}: {rivals}." if rivals else text


def _wrong_and_sure(expected: str, got: str, shown: str, distribution: LabelDistribution | None) -> str:
    return (
        f"WRONG with {shown} certainty. Expected {_quote(expected)}, got {_quote(got)}."
        f"{_true_probability(expected, distribution)} The prompt misleads the model here: give it an "
        f"explicit rule that separates {_quote(expected)} from {_quote(got)}."
    )


def _near(labels: LabelSet | None, prediction: Prediction, expected: str) -> str:
    """Return how near an answer came, beginning with a space; nothing where the labels have no structure."""
    if isinstance(labels, OrdinalLabels):
        return _steps(labels, prediction, expected)
    if isinstance(labels, HierarchicalLabels):
        return _levels(labels, prediction, expected)
    return ""


def _steps(labels: OrdinalLabels, prediction: Prediction, expected: str) -> str:
    """Say how far the answer is from the true label, and how much of the probability lies on that side of it."""
    got = prediction.label or ""
    rank, steps = labels.rank(expected), labels.rank(got) - labels.rank(expected)
    parts = []
    if steps:
        unit = "step" if abs(steps) == 1 else "steps"
        direction = "high" if steps > 0 else "low"
        parts.append(
            f"On the scale from {_quote(labels[0])} to {_quote(labels[-1])} the answer is {abs(steps)} {unit} too "
            f"{direction}, of {len(labels) - 1} possible."
        )
    if prediction.distribution is not None:
        shares = prediction.distribution.probabilities
        sides = ((float(shares[:rank].sum()), "below"), (float(shares[rank + 1 :].sum()), "above"))
        shown = [f"{_percent(mass)} {side}" for mass, side in sides if mass >= _MIN_ALTERNATIVE]
        if shown:
            parts.append(f"The probability adds up to {' and '.join(shown)} {_quote(expected)}.")
    return "".join(f" {part}" for part in parts)


def _levels(labels: HierarchicalLabels, prediction: Prediction, expected: str) -> str:
    """Say which levels of the answer are right, and at the first that is not, what it should be."""
    got = prediction.label or ""
    answered, true = labels.path(got), labels.path(expected)
    aspects = labels.aspects(prediction, expected)
    right = [aspect for aspect in aspects if aspect.is_correct]
    if len(right) == len(aspects):
        # The last is the answer itself, whose probability the text has.
        begun = [
            f"{_percent(aspect.confidence)} for {_quote(aspect.predicted)}"
            for aspect in aspects[: len(answered) - 1]
            if aspect.confidence is not None
        ]
        return f" By level: {', '.join(begun)}." if begun else ""
    if not right:
        first = aspects[0]
        return (
            f" By level: the answer is wrong from the first level on, which should be {_quote(true[0])} and is "
            f"{_with_probability(first.predicted, first.confidence)}."
        )
    shared = right[-1]
    begun_well = f" By level: {_with_probability(shared.predicted, shared.confidence)} is right"
    level = len(right)
    if len(answered) == level:
        return f"{begun_well}, but the answer stops there; {_quote(true[level])} belongs below it."
    if len(true) == level:
        return f"{begun_well} and is the whole label; {_quote(answered[level])} does not belong below it."
    return f"{begun_well}; below it, expected {_quote(true[level])}, got {_quote(answered[level])}."


def _with_probability(text: str, probability: float | None) -> str:
    return _quote(text) if probability is None else f"{_quote(text)} ({_percent(probability)})"


def _true_probability(expected: str, distribution: LabelDistribution | None) -> str:
    label = _canonical(distribution, expected)
    if distribution is None or label is None:
        return ""
    shown = _small_percent(distribution.probability(label))
    if distribution.measured[distribution.labels.index(label)]:
        return f" The true label's own probability is {shown}."
    return (
        f" The true label was not among the reported alternatives; an estimate of its probability is {shown}."
    )


def _alternatives(distribution: LabelDistribution | None, got: str) -> str:
    """Return ``'B' (24%), 'C' (2%)``, or nothing where no rival was measured."""
    if distribution is None:
        return ""
    found = distribution.alternatives(exclude=_canonical(distribution, got), limit=_MAX_ALTERNATIVES)
    return ", ".join(f"{_quote(label)} ({_percent(p)})" for label, p in found if p >= _MIN_ALTERNATIVE)


def _canonical(distribution: LabelDistribution | None, text: str) -> str | None:
    if distribution is None:
        return None
    wanted = normalise_label(text)
    return next((label for label in distribution.labels if normalise_label(label) == wanted), None)


def _percent(probability: float, *, limits: tuple[float, ...] = ()) -> str:
    """Return whole percents, but never round up to 100%, down to 0%, or up to one of `limits`.

    Above 98% one decimal is kept where it says something: 99.6% is not 100%, 98.7% not 99%.
    """
    percent = 100.0 * min(probability, 1.0)
    if percent < 1.0 - 1e-9:
        return "<1%"
    if percent > 99.9 + 1e-9:
        return "100%" if probability >= 1.0 - 1e-9 else ">99.9%"
    if percent <= 98.0:
        whole = round(percent)
        # 89.95% must not show as 90% where 90% is graded otherwise.
        if any(probability < limit - _SLACK <= whole / 100.0 for limit in limits):
            whole = math.floor(percent)
        return f"{whole}%"
    # The floor: 99.88% must not show as 99.9% when the next word is about thresholds.
    tenths = math.floor(percent * 10.0 + 1e-6) / 10.0
    return f"{tenths:g}%"


def _small_percent(probability: float) -> str:
    """Return percents as `_percent`, but with one significant digit below 1%: 0.03%."""
    percent = 100.0 * probability
    if percent >= 1.0 - 1e-9:
        return _percent(probability)
    return f"{percent:.1g}%" if percent >= 0.01 - 1e-9 else "<0.01%"


def _quote(text: str) -> str:
    return f"'{text}'"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _shorten(text: str) -> str:
    line = _one_line(text)
    return line if len(line) <= _MAX_RAW_CHARACTERS else line[: _MAX_RAW_CHARACTERS - 1] + "…"


def _context(additional_context: Mapping[str, object] | str | None) -> str:
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
