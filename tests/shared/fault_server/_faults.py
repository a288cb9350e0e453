"""Faults and their scripts."""

from __future__ import annotations

import bisect
import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibrant.core import ConfigurationError

__all__ = ["Fault", "FaultScript", "script_of"]

_OPTIONS: dict[str, frozenset[str]] = {
    "rate_limit": frozenset({"seconds", "message"}),
    "context_length": frozenset({"message"}),
    "reset_before_headers": frozenset(),
    "reset_after_headers": frozenset(),
    "hang": frozenset({"seconds"}),
    "slow_drip": frozenset({"seconds"}),
    "truncated": frozenset(),
    "html": frozenset({"status"}),
    "empty_choices": frozenset(),
    "refusal": frozenset({"message"}),
    "length": frozenset(),
    "no_logprobs": frozenset(),
    "nan_logprobs": frozenset(),
    "positive_logprobs": frozenset(),
}
_RANGES = {"seconds": (0, 1e6), "status": (200, 600)}
_STATUS = re.compile("[45][0-9][0-9]")
_DEFAULTS: dict[str, dict[str, Any]] = {
    "rate_limit": {"seconds": 1.0},
    "slow_drip": {"seconds": 1.0},
    "html": {"status": 502},
}


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong with one request.

    Parameters
    ----------
    kind : str
        One of these; where nothing else is said, the status is 200 and the rest is a healthy answer.

        - ``"400"`` to ``"599"``: this status, with an error object as OpenAI words it (``"401"`` a wrong
          key, ``"404"`` an unknown model, ``"429"`` a rate limit that names no time).
        - ``"rate_limit"``: 429 whose Retry-After is `seconds`.
        - ``"context_length"``: 400, the prompt is too long for the model.
        - ``"reset_before_headers"``: a TCP reset and not one byte of an answer.
        - ``"reset_after_headers"``: headers, half of the body, then a TCP reset.
        - ``"hang"``: silence for `seconds`, then the connection is closed; by default until the client
          goes or the server stops.
        - ``"slow_drip"``: a healthy answer in 50 pieces that take `seconds` in all.
        - ``"truncated"``: half of the JSON, as if that were all.
        - ``"html"``: a proxy's error page with `status`.
        - ``"empty_choices"``: a list of choices without one.
        - ``"refusal"``: content null, and `message` as the refusal.
        - ``"length"``: cut off inside the label, finish reason ``length``.
        - ``"no_logprobs"``: without log-probabilities, though they were asked for.
        - ``"nan_logprobs"``, ``"positive_logprobs"``: values that are no log-probabilities.
    seconds : float, optional
        At least 0; by default 1 (``rate_limit``, ``slow_drip``) or without end (``hang``).
    status : int, default 502
        Of the HTML page.
    message : str, optional
        Text of the error, or of the refusal.

    Raises
    ------
    ConfigurationError
        An unknown kind, an option the kind does not take, or a value out of range.

    Examples
    --------
    >>> Fault("rate_limit", seconds=2).seconds
    2
    >>> Fault.parse("hang:0.5") == Fault("hang", seconds=0.5)
    True
    """

    kind: str
    seconds: float | None = field(default=None, kw_only=True)
    status: int | None = field(default=None, kw_only=True)
    message: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        taken = frozenset({"message"}) if _STATUS.fullmatch(self.kind) else _OPTIONS.get(self.kind)
        if taken is None:
            known = ", ".join(_OPTIONS)
            msg = f'A fault is a status ("400" to "599") or one of {known}; got {self.kind!r}.'
            raise ConfigurationError(msg)
        for name in ("seconds", "status", "message"):
            if getattr(self, name) is not None and name not in taken:
                options = ", ".join(sorted(taken)) or "no options"
                msg = f"{name} does not apply to the fault {self.kind!r}, which takes {options}."
                raise ConfigurationError(msg)
        for name, (least, end) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value < end:
                raise ConfigurationError(f"{name} must be in [{least:g}, {end:g}), got {value}.")
        for name, value in _DEFAULTS.get(self.kind, {}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault a text stands for: a kind, and seconds behind a colon where it takes them.

        Raises
        ------
        ConfigurationError
            Not ``KIND`` or ``KIND:SECONDS``.
        """
        kind, colon, seconds = text.partition(":")
        try:
            return cls(kind, seconds=float(seconds) if colon else None)
        except ConfigurationError:
            raise
        except ValueError:
            msg = f"Expected a number of seconds behind the colon, got {text!r}."
            raise ConfigurationError(msg) from None


FaultScript = (
    Sequence[Fault | str | None]
    | Mapping[Fault, float]
    | Mapping[str, float]
    | Callable[[int, dict[str, Any]], Fault | str | None]
)
"""Which request meets which fault; see `FaultServer`. A text stands for the fault it is parsed to."""


def script_of(faults: FaultScript, seed: int) -> Callable[[int, dict[str, Any]], Fault | None]:
    """Return the script as a function of the request's number and JSON; it is to be asked in order.

    Raises
    ------
    ConfigurationError
        A text that is no fault, or shares that are negative or add up to more than 1.
    """
    if isinstance(faults, Mapping):
        return _shares(faults, seed)
    if callable(faults):
        return lambda number, body: _fault(faults(number, body))
    row = [_fault(found) for found in faults]
    return lambda number, _body: row[number] if number < len(row) else None


def _shares(
    faults: Mapping[Fault, float] | Mapping[str, float], seed: int
) -> Callable[[int, dict[str, Any]], Fault | None]:
    shares = list(faults.values())
    # A sum of decimal shares may be a rounding error above 1.
    if not all(share >= 0 for share in shares) or sum(shares) > 1 + 1e-9:
        msg = f"Shares of faults must be at least 0 and add up to at most 1, got {shares}."
        raise ConfigurationError(msg)
    ends = list(itertools.accumulate(shares))
    found = [*(_fault(fault) for fault in faults), None]
    rng = random.Random(seed)
    return lambda _number, _body: found[bisect.bisect_right(ends, rng.random())]


def _fault(found: Fault | str | None) -> Fault | None:
    return Fault.parse(found) if isinstance(found, str) else found
