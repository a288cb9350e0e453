"""Tokens of an answer with one label or several."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.core._composite import CompositeLabels, FieldLabels, MultiLabels
from calibrant.core._errors import ConfigurationError
from calibrant.testing._tokens import Split, frame_of, pieces_of

_MARK = re.compile("\ue000([0-9]+)\ue000")


@dataclass(frozen=True, kw_only=True)
class Written:
    """An answer as a row of tokens.

    Attributes
    ----------
    pieces : tuple of bytes
        The tokens: structure up to and including a label's opening quote, the label's own with its closing quote,
        and so on.
    starts : frozenset of int
        Where labels begin.
    structure : frozenset of int
        The tokens that are structure.
    """

    pieces: tuple[bytes, ...]
    starts: frozenset[int]
    structure: frozenset[int]


def written(answer: str, labels: Sequence[str] | None, *, field: str, tokens: Split) -> Written:
    """Return the tokens of an answer: a label, or the JSON of one with several, in the order it gives them.

    Raises
    ------
    ConfigurationError
        A whole answer is no JSON object or array of texts.
    """
    if isinstance(labels, CompositeLabels):
        frame, given = _composed(answer, labels, field)
    else:
        frame, given = list(frame_of(field)), [answer]
    pieces: list[bytes] = [frame[0].encode()]
    starts, structure = set(), {0}
    for label, after in zip(given, frame[1:], strict=True):
        starts.add(len(pieces))
        pieces += pieces_of(label, tokens)
        if len(after) > 1:
            structure.add(len(pieces))
            pieces.append(after[1:].encode())
    return Written(pieces=tuple(pieces), starts=frozenset(starts), structure=frozenset(structure))


def neighbours(answer: str, labels: CompositeLabels) -> Iterator[str]:
    """Yield the answers that differ from one in a single part.

    Raises
    ------
    ConfigurationError
        It is no legal answer.
    """
    known = labels.canonical(answer)
    if known is None:
        raise ConfigurationError(f"Expected a legal answer with a probability, got {answer!r}.")
    values = labels.values(known)
    for name, value in values.items():
        for other in labels.labels_of(name):
            if other != value:
                yield labels.answer_of({**values, name: other})


def _composed(answer: str, labels: CompositeLabels, field: str) -> tuple[list[str], list[str]]:
    """Return the structure before, between and behind an answer's labels, and the labels as the answer spells them."""
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    given: list[str] = []

    def mark(label: object) -> str:
        given.append(str(label))
        return f"\ue000{len(given) - 1}\ue000"

    document: Any
    if isinstance(labels, FieldLabels) and isinstance(found, dict):
        document = None
        for one in labels.fields:
            if one.name in found:
                document = _placed(document, _steps(one.path or one.name), mark(found[one.name]))
    elif isinstance(labels, MultiLabels) and isinstance(found, list):
        array, several, inside = field.rpartition("[]")
        path = _steps(inside.removeprefix(".")) if several and inside else []
        elements = [_placed(None, path, mark(label)) for label in found]
        where = _steps(array if several else field) if array or not several else []
        document = _placed(None, where, elements)
    else:
        kind = "object" if isinstance(labels, FieldLabels) else "array"
        raise ConfigurationError(f"Expected a whole answer as the text of a JSON {kind}, got {answer!r}.")
    text = _MARK.split(json.dumps(document, ensure_ascii=False))
    # In the order of the document, which is that of the fields only as far as their paths allow.
    return text[::2], [given[int(number)] for number in text[1::2]]


def _steps(path: str) -> list[str | None]:
    """Return the keys of a path; None is the first element of an array."""
    return [key if key != "[]" else None for key in re.findall(r"\[\]|[^.\[\]]+", path)]


def _placed(document: Any, path: Sequence[str | None], value: object) -> Any:  # noqa: ANN401
    """Return the document with a value put where the path says."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if key is None:
        return [_placed(document[0] if document else None, rest, value)]
    known = document or {}
    return {**known, key: _placed(known.get(key), rest, value)}
