"""Wording shared by all feedback: probabilities, quotes, failed calls, missing labels, additional context."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from calibrant.core._errors import ConfigurationError
from calibrant.core._prediction import Outcome

SLACK = 1e-12  # of comparisons with a threshold: exp(log(0.99)) must count as 0.99
MAX_ALTERNATIVES = 3
_MAX_RAW_CHARACTERS = 80


def check(*, confidence: float | None, low: float, high: float) -> None:
    """Raise where a confidence or a threshold is out of range."""
    if not 0.0 <= low <= high <= 1.0 or high == 0.0:
        msg = f"Expected thresholds with 0 <= low <= high <= 1 and high above 0, got low={low!r}, high={high!r}."
        raise ConfigurationError(msg)
    if confidence is not None and not 0.0 <= confidence <= 1.0 + 1e-6:
        msg = f"Expected a confidence in [0, 1] or None, got {confidence!r}."
        raise ConfigurationError(msg)


def failed_call(reason: str) -> str:
    """Return the feedback on a row whose call failed."""
    cause = f" ({reason.strip().rstrip('.')})" if reason.strip() else ""
    return f"No verdict: the call to the model failed{cause}. This row says nothing about the prompt."


def no_label(
    *, expected: str, got: str | None, outcome: Outcome, reason: str, form: str = "exactly one label"
) -> str:
    """Return the feedback on an answer without a legal label; `form` names the form that is asked for."""
    action = (
        "declined to answer" if outcome is Outcome.REFUSAL else "gave no answer that can be read as a label"
    )
    cause = f": {reason.strip().rstrip('.')}" if reason.strip() else ""
    wrote = f" It wrote {quoted(_shorten(got))}." if got and got.strip() and not _quotes(reason, got) else ""
    return (
        f"No label: the model {action}{cause}.{wrote} Expected {quoted(expected)}. "
        f"The prompt must make the model answer every input with {form} of the label set."
    )


def _quotes(reason: str, text: str) -> bool:
    """Return whether `reason` already quotes the beginning of `text`, at its own beginning or in quotes."""
    beginning = re.escape(_one_line(text)[: _MAX_RAW_CHARACTERS // 2])
    return re.search(rf"(^|['\"]){beginning}", _one_line(reason)) is not None


def percent(probability: float, *, limits: tuple[float, ...] = ()) -> str:
    """Return whole percents, but never round up to 100%, down to 0%, or up to one of `limits`.

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
        if any(probability < limit - SLACK <= whole / 100.0 for limit in limits):
            whole = math.floor(share)
        return f"{whole}%"
    # The floor: 99.88% must not show as 99.9% when the next word is about thresholds.
    tenths = math.floor(share * 10.0 + 1e-6) / 10.0
    return f"{tenths:g}%"


def small_percent(probability: float) -> str:
    """Return percents as `percent` does, but with one significant digit below 1%: 0.03%."""
    share = 100.0 * probability
    if share >= 1.0 - 1e-9:
        return percent(probability)
    return f"{share:.1g}%" if share >= 0.01 - 1e-9 else "<0.01%"


def quoted(text: str) -> str:
    """Return `text` in quotes."""
    return f"'{text}'"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _shorten(text: str) -> str:
    line = _one_line(text)
    return line if len(line) <= _MAX_RAW_CHARACTERS else line[: _MAX_RAW_CHARACTERS - 1] + "…"


def context_lines(additional_context: Mapping[str, object] | str | None) -> str:
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
