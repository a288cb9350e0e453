"""Records of router state: names, JSON text and replacement."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from calibrant.core._errors import ConfigurationError, StateError

Change: TypeAlias = Callable[[Mapping[str, Any] | None], Mapping[str, Any]]


def check_name(name: str, *, what: str, longest: int) -> str:
    """Return a checked name that every file and database can hold.

    Raises
    ------
    ConfigurationError
        The name is empty, too long, or has unprintable characters.
    """
    if not isinstance(name, str) or not 0 < len(name) <= longest or not name.isprintable():
        raise ConfigurationError(
            f"Expected {what} of 1 to {longest} printable characters, got {name!r:.300}."
        )
    return name


def parse(text: str | bytes) -> Any:  # noqa: ANN401 (JSON)
    """Read JSON whose numbers are all finite.

    Raises
    ------
    ValueError
        The text is not such JSON.
    """
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (TypeError, RecursionError) as error:  # a database may hold anything
        raise ValueError(str(error)) from None


def as_record(value: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    """Return `value`, a JSON object.

    Raises
    ------
    ValueError
        `value` is not a JSON object.
    """
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")  # noqa: TRY004 (a wrong value)
    return value


def as_text(value: Mapping[str, Any], *, location: str) -> str:
    """Return JSON in ASCII, which every database takes.

    Raises
    ------
    StateError
        A value is no JSON, or a number is not finite.
    """
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"{location}: expected JSON values with finite numbers, got: {error}; what was stored before stands."
        ) from error


def changed(
    read: Callable[[], dict[str, Any] | None], change: Change, *, set_aside: Callable[[str], None]
) -> dict[str, Any]:
    """Return the record after `change`, which gets None if the record is damaged or refused.

    Parameters
    ----------
    read : callable
        Returns the record, or None if it is missing; raises ValueError if it is damaged.
    change : callable
        See `RouterState.update`.
    set_aside : callable
        Keeps the record elsewhere; takes the reason.
    """
    try:
        record = read()
    except ValueError as error:
        reason = str(error)
    else:
        if record is None:
            return dict(change(None))
        try:
            return dict(change(record))
        except StateError as error:
            reason = str(error)
    set_aside(reason)
    return dict(change(None))


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is not a finite number")
    return number
