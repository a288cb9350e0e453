"""Saved predictions: lines of ``predictions.jsonl``, or rows of a file with the same columns."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from calibrant.core._prediction import Outcome
from calibrant.core._records import has_low_label_mass

UNKNOWN: Final = -1
"""Correctness of a row whose true label is not known."""

_ROUNDING: Final = 1e-6  # exp of a sum may leave [0, 1] by this much
_CORRECT: Final = {"true": 1, "1": 1, "1.0": 1, "false": 0, "0": 0, "0.0": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """Saved prediction with checked values.

    Attributes
    ----------
    values : mapping
        All of the row, as JSON values.
    prompt : str
        The prompt that the row belongs to, of a search ``seed``, ``best`` or ``final``; empty where it does not say.
    index : int or None
        Place of the row in the input, from 0; None where the row does not say.
    input, answer, label : str or None
        The text, its true label and the predicted one, where known.
    outcome : Outcome
        Outcome of the row; ``ok`` if the row has none.
    confidence : float
        Confidence in [0, 1]; NaN if missing.
    correct : int
        1 right, 0 wrong, -1 unknown: the row failed with a transport error, or its true label is not known.
    cost, latency_seconds : float
        US dollars and seconds, at least 0; NaN where unknown.
    has_low_label_mass : bool
        True if the model would rather have written something else than any label, as far as the row says.
    """

    values: Mapping[str, Any]
    prompt: str
    index: int | None
    input: str | None
    answer: str | None
    label: str | None
    outcome: Outcome
    confidence: float
    correct: int
    cost: float
    latency_seconds: float
    has_low_label_mass: bool

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> RunRow:
        """Return a saved prediction from a raw row, after checks of its values.

        Parameters
        ----------
        values : mapping
            Has ``correct``, or ``label`` and ``answer``. Numbers may be texts, as in a CSV file.

        Raises
        ------
        ValueError
            A value is out of range or of another type; the message says which.
        """
        outcome = _outcome(values)
        usage = values.get("usage")
        return cls(
            values=values,
            prompt=prompt if isinstance(prompt := values.get("prompt"), str) else "",
            index=_index(values),
            input=_text(values, "input"),
            answer=_text(values, "answer"),
            label=_text(values, "label"),
            outcome=outcome,
            confidence=_confidence(values),
            correct=UNKNOWN if outcome is Outcome.ERROR else _correct(values),
            cost=_amount(usage if isinstance(usage, Mapping) else values, "cost"),
            latency_seconds=_amount(values, "latency_seconds"),
            has_low_label_mass=outcome is not Outcome.ERROR and _is_low(values),
        )


def _index(values: Mapping[str, Any]) -> int | None:
    value = values.get("index", values.get("row"))
    if type(value) is int and value >= 0:
        return value
    if value is None and not {"index", "row"} & values.keys():
        return None
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"expected index to be a whole number from 0, got {value!r:.40}")
    return int(text)


def _outcome(values: Mapping[str, Any]) -> Outcome:
    value = values.get("outcome") or "ok"
    if value in ("ok", "error"):  # nearly all are, and a look-up in the enumeration takes longer
        return Outcome.OK if value == "ok" else Outcome.ERROR
    try:
        return Outcome(value)
    except ValueError as error:
        known = ", ".join(Outcome)
        raise ValueError(f"expected outcome to be one of {known}, got {value!r:.40}") from error


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is None or (isinstance(value, str) and (value or name == "input")):
        return value
    if value == "":
        return None  # a CSV file's way to say that there is none
    raise ValueError(f"expected {name} to be text, got {type(value).__name__}")


def _number(values: Mapping[str, Any], name: str, expected: str, *, least: float, most: float) -> float:
    """Return a number of a row, NaN if missing; numeric strings are parsed, as in a CSV file."""
    value = values.get(name)
    if value is None or value == "":
        return math.nan
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most:
        raise ValueError(f"expected {name} to be {expected} or null, got {value!r:.40}")
    return number


def _confidence(values: Mapping[str, Any]) -> float:
    expected = "a probability in [0, 1]"
    number = _number(values, "confidence", expected, least=-_ROUNDING, most=1.0 + _ROUNDING)
    return number if math.isnan(number) else min(max(number, 0.0), 1.0)


def _amount(values: Mapping[str, Any], name: str) -> float:
    return _number(values, name, "a number of at least 0", least=0.0, most=sys.float_info.max)


def _correct(values: Mapping[str, Any]) -> int:
    """Return 1 or 0 for the stored or computed correctness of a row, -1 if it is unknown."""
    if "correct" in values:
        value = values["correct"]
        if value is True or value is False:
            return int(value)
        if value is None or value == "":
            return UNKNOWN
        found = _CORRECT.get(str(value).strip().lower())
        if found is None:
            raise ValueError(f"expected correct to be true, false or null, got {value!r:.40}")
        return found
    if not {"label", "answer"} <= values.keys():
        raise ValueError(f"expected correct, or label and answer, got only {', '.join(values)!r:.80}")
    return UNKNOWN if values["answer"] in (None, "") else int(values["label"] == values["answer"])


def _is_low(values: Mapping[str, Any]) -> bool:
    try:
        return has_low_label_mass(values)
    except (TypeError, ValueError):  # other people's columns may have these names
        return False
