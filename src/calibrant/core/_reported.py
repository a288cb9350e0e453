"""Text that people read, and values that servers report: made printable, bounded and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, TypeGuard, TypeVar

_T = TypeVar("_T")
MOST_TOKENS: Final = 2**53
"""The largest count that is believed: every whole number up to it is exact as a float."""

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# What makes a terminal act, as a whole: a title or a link up to its end, a movement or a colour, a short command.
_ESCAPES: Final = re.compile(
    "(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"
    "|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"
    "|\x1b[ -/]*[0-~]"
)
_BREAKS: Final = re.compile("[\t\n\x0b\x0c\r\x1c-\x1f\x85\u2028\u2029]+")
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
# White space that JSON knows is layout; the rest has no place in an answer.
_UNWRITABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def one_line(text: str) -> str:
    """Return a text in one line, each run of white space as one space."""
    return " ".join(text.split())


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text in one line of at most so many characters."""
    line = one_line(text)
    if len(line) <= most:
        return line
    return line[: most - 1] + "…"


def without_none(values: Mapping[str, _T | None]) -> dict[str, _T]:
    """Return the values by name that are not None."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts and cost of one answer.

    Attributes
    ----------
    prompt_tokens, completion_tokens : int
        Token counts reported by the provider; 0 if missing.
    cost : float or None
        US dollars; None where no price is known.

    Examples
    --------
    >>> from calibrant.core import Usage
    >>> Usage(prompt_tokens=80, cost=0.01) + Usage(completion_tokens=5)
    Usage(prompt_tokens=80, completion_tokens=5, cost=0.01)
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of tokens and of known costs; the cost is None if both costs are unknown."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=sum(costs) if costs else None,
        )


def is_number(value: object) -> TypeGuard[float]:
    """Return True if `value` is a finite real number; bools do not count."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def bounded_count(value: object) -> int:
    """Return a reported count, clipped to [0, 2**53]; 0 if it is not an integer.

    Parameters
    ----------
    value : object
        Number of tokens as the server reported it.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return min(max(value, 0), MOST_TOKENS)


def reported_mapping(value: object) -> Mapping[str, Any]:
    """Return a reported JSON object; empty if the value is not an object.

    Parameters
    ----------
    value : object
        A part of a server's answer.
    """
    if isinstance(value, dict):  # as nearly all are; the next look takes ten times as long
        return value
    return value if isinstance(value, Mapping) else {}


def counted(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 row``, ``1,024 rows``.

    Parameters
    ----------
    count : int or float
        Number of things.
    noun : str
        Name of one thing, with its verb where that changes, too.
    plural : str, default ""
        Name of several, if it is not `noun` with an s.

    Examples
    --------
    >>> counted(1, "row"), counted(1024, "row"), counted(0, "row is", "rows are")
    ('1 row', '1,024 rows', '0 rows are')
    """
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], *, most: int = 20) -> str:
    """Return names in a line, divided by commas, and how many are left out.

    Parameters
    ----------
    names : sequence of str
        Labels, as a rule.
    most : int, default 20
        How many are named.

    Examples
    --------
    >>> listed(["cat", "dog"]), listed(["cat", "dog", "emu"], most=2)
    ('cat, dog', 'cat, dog and 1 more')
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def clean_line(text: str, *, limit: int) -> str:
    """Return a name or message as one line of printable characters, cut after `limit` characters.

    Terminal escapes and control characters are removed, breaks become spaces, half a surrogate pair becomes
    the replacement character.

    Parameters
    ----------
    text : str
        Text from a server.
    limit : int
        Characters that are kept; three dots stand for the rest.
    """
    if not text.isprintable():
        text = _SURROGATES.sub(_REPLACEMENT, text[: 8 * limit])
        text = _CONTROLS.sub("", _BREAKS.sub(" ", _ESCAPES.sub("", text)))
    if len(text) <= limit:
        return text
    return text[:limit] + "..."


def escaped_line(text: str, *, limit: int) -> str:
    """Return a text of a model as one line to show; control characters are escaped, as Python writes them.

    Parameters
    ----------
    text : str
        Text of any kind.
    limit : int
        Characters that are kept; three dots stand for the rest.
    """
    shown = text if len(text) <= limit else text[:limit] + "..."
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in shown)


def clean_text(text: str) -> str:
    """Replace lone surrogates, and control characters except tab and line ends, by U+FFFD.

    Tabs and line breaks stay. Nothing is removed, so that an illegal answer does not become a legal one.
    """
    if text.isprintable():
        return text
    return _UNWRITABLE.sub(_REPLACEMENT, text)


def writable(text: str) -> str:
    """Return a text that UTF-8 can encode: half a surrogate pair becomes a question mark."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()
