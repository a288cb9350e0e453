"""Field paths: the value of a field in a JSON answer, and its byte range."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Final, Literal

from calibrant.core._completion import Completion
from calibrant.core._errors import CalibrantError, ConfigurationError

FieldPath = tuple[str | int, ...]

_PATH_PART = re.compile(r"([^.\[\]]*)((?:\[\d*\])*)")
_INDEX = re.compile(r"\[(\d*)\]")
_FENCE = re.compile(r"```[\w-]*\s*(.*?)\s*(?:```)?", re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder(strict=False)
# Longer answers are not cached.
_SHORT: Final = 512


class UnparsedError(CalibrantError):
    """Unreadable answer: the model's fault, not the server's.

    Parameters
    ----------
    message : str
        The expected form of the answer, and the actual one.
    kind : {"not_json", "missing", "ambiguous"}
        ``not_json``: the text is no JSON document. ``missing``: it is one, without the field. ``ambiguous``: an object
        in it has a key twice.
    """

    def __init__(self, message: str, *, kind: Literal["not_json", "missing", "ambiguous"]) -> None:
        self.kind = kind
        super().__init__(message)


@lru_cache(maxsize=512)
def parse_path(field_path: str) -> FieldPath:
    """Split `field_path` into keys and array positions; ``[]`` is the first element.

    Raises
    ------
    ConfigurationError
        The path is empty or malformed.
    """
    parts: list[str | int] = []
    for number, part in enumerate(field_path.split(".")):
        match = _PATH_PART.fullmatch(part)
        # Only the root may be an array without a name: `[].category`, never `results.[]`.
        if match is None or not part or (not match[1] and number):
            raise ConfigurationError(
                f"Expected a field path such as 'category', 'result.category' or 'results[].category', "
                f"got {field_path!r}: name the keys, separated by dots."
            )
        if match[1]:
            parts.append(match[1])
        parts.extend(int(index or 0) for index in _INDEX.findall(match[2]))
    return tuple(parts)


def array_path(field_path: str) -> tuple[FieldPath, FieldPath]:
    """Return the path of an array of labels, and the path of the label inside each element.

    The last ``[]`` stands for all elements; without one `field_path` is that of the array, whose elements are labels.

    Raises
    ------
    ConfigurationError
        The path is malformed.
    """
    whole = parse_path(field_path)
    array, mark, inside = field_path.rpartition("[]")
    if not mark:
        return whole, ()
    return (parse_path(array) if array else ()), (parse_path(inside.removeprefix(".")) if inside else ())


def element_path(field_path: str, index: int) -> str:
    """Return the path of the label in one element of an array of labels."""
    array, mark, inside = field_path.rpartition("[]")
    return f"{array}[{index}]{inside}" if mark else f"{field_path}[{index}]"


def json_body(text: str) -> str:
    """Return `text` without surrounding space and without a Markdown code fence."""
    body = text.strip().removeprefix("\ufeff")
    if body.startswith("```"):
        match = _FENCE.fullmatch(body)
        if match is not None:
            return match[1]
    return body


def field_value(answer: Completion | str, field_path: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a field of a JSON answer, with every escape undone.

    Parameters
    ----------
    answer : Completion or str
        The answer, or its text. Surrounding space and a Markdown code fence are tolerated.
    field_path : str
        ``category``, ``result.category``, ``results[].category`` (the first element),
        ``results[1].category`` or ``[].category``.

    Returns
    -------
    object
        The field as `json.loads` returns it.

    Raises
    ------
    UnparsedError
        The text is not JSON (``kind="not_json"``), lacks the field (``kind="missing"``), or has a key twice in one
        object (``kind="ambiguous"``), so that its value is undefined.
    ConfigurationError
        `field_path` is malformed.
    """
    path = parse_path(field_path)
    if isinstance(answer, str):
        return answer_value(json_body(answer), path, field_path)
    cut_off = answer.finish_reason == "length"
    return answer_value(json_body(answer.text), path, field_path, cut_off=cut_off)


def field_values(answer: str, field_path: str) -> list[Any]:
    """Return the values in all elements of an array of a JSON answer.

    Parameters
    ----------
    answer : str
        The answer's text. Surrounding space and a Markdown code fence are tolerated.
    field_path : str
        The array, whose elements are the values (``topics``), or the field in its elements
        (``results[].topic``, where the last ``[]`` stands for all elements).

    Raises
    ------
    UnparsedError
        The text is not JSON (``kind="not_json"``), or lacks the array, or an element of it the field
        (``kind="missing"``), or has a key twice in one object (``kind="ambiguous"``).
    ConfigurationError
        `field_path` is malformed.
    """
    array, inside = array_path(field_path)
    elements = answer_value(json_body(answer), array, field_path)
    if not isinstance(elements, list):
        msg = f"Expected an array in the field {field_path!r}, got {_describe(elements)}."
        raise UnparsedError(msg, kind="missing")
    return [
        _descend(element, inside, element_path(field_path, index)) for index, element in enumerate(elements)
    ]


def answer_value(body: str, path: FieldPath, name: str, *, cut_off: bool = False) -> Any:  # noqa: ANN401
    """Parse `body` and return the value at `path`; errors as `field_value`."""
    # A label set has few answers: the same text comes again and again, so parsed texts are cached.
    cached = _text_at(body, path) if len(body) <= _SHORT else None
    return _parsed(body, path, name, cut_off=cut_off) if cached is None else cached


@lru_cache(maxsize=1024)
def _text_at(body: str, path: FieldPath) -> str | None:
    """Return the text at `path`; None for any other value, as callers could change a cached list or dict."""
    try:
        value = _parsed(body, path, "")
    except UnparsedError:
        return None
    return value if isinstance(value, str) else None


def _parsed(body: str, path: FieldPath, name: str, *, cut_off: bool = False) -> Any:  # noqa: ANN401
    try:
        node = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        shown = body if len(body) <= 80 else body[:77] + "..."
        advice = " It was cut off by the token limit: raise max_tokens." if cut_off else ""
        msg = f"Expected a JSON document with the field {name!r}, got {shown!r} ({error}).{advice}"
        raise UnparsedError(msg, kind="not_json") from error
    return _descend(node, path, name)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    node = dict(pairs)
    if len(node) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"Expected every key of an object once, got {twice[:60]!r} {names.count(twice)} times."
        raise UnparsedError(msg, kind="ambiguous")
    return node


def _descend(node: Any, path: FieldPath, name: str) -> Any:  # noqa: ANN401
    for part in path:
        try:
            node = _child(node, part)
        except LookupError:
            missing = repr(part) if isinstance(part, str) else f"element {part}"
            msg = f"Expected the field {name!r}; the answer has no {missing} in {_describe(node)}."
            raise UnparsedError(msg, kind="missing") from None
    return node


def _child(node: object, part: str | int) -> object:
    if isinstance(part, str) and isinstance(node, dict):
        return node[part]
    if isinstance(part, int) and isinstance(node, list):
        return node[part]
    raise LookupError


def _describe(node: object) -> str:
    if isinstance(node, dict):
        return f"the object with keys {list(node)[:10]}"
    if isinstance(node, list):
        return f"the array of length {len(node)}"
    return f"the value {str(node)[:60]!r}"


def value_span(data: bytes, start: int, path: FieldPath) -> tuple[int, int]:
    """Return the byte offsets of the value at `path`, quotes included.

    Parameters
    ----------
    data : bytes
        Bytes with one valid JSON document from `start` on, without duplicate keys; later bytes are ignored.
    start : int
        Byte offset of the document.
    path : tuple
        Keys and array positions; they must exist.

    Raises
    ------
    LookupError
        The path does not exist, or `data` is not JSON where it was read.
    """
    text = data.decode("latin-1")  # one character a byte, so that offsets stay those of bytes
    begin = _behind(_SPACE, text, start)
    end = begin
    if not path:
        return begin, _value_end(text, begin)
    for part in path:
        begin, end = _in_object(text, begin, part) if isinstance(part, str) else _in_array(text, begin, part)
    return begin, end


def _behind(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _value_end(text: str, position: int) -> int:
    """Return the offset behind the value at `position`."""
    try:
        return _DECODER.raw_decode(text, position)[1]
    except (ValueError, RecursionError) as error:
        raise LookupError from error


def _in_object(text: str, position: int, key: str) -> tuple[int, int]:
    if text[position : position + 1] != "{":
        raise LookupError
    position = _behind(_SPACE, text, position + 1)
    while text[position : position + 1] == '"':
        name_end = _value_end(text, position)
        colon = _COLON.match(text, name_end)
        if colon is None:
            raise LookupError
        value_end = _value_end(text, colon.end())
        if json.loads(text[position:name_end].encode("latin-1")) == key:
            return colon.end(), value_end
        position = _behind(_COMMA, text, value_end)
    raise LookupError


def _in_array(text: str, position: int, index: int) -> tuple[int, int]:
    if text[position : position + 1] != "[":
        raise LookupError
    position = _behind(_SPACE, text, position + 1)
    while text[position : position + 1] not in ("]", ""):
        end = _value_end(text, position)
        if not index:
            return position, end
        index -= 1
        position = _behind(_COMMA, text, end)
    raise LookupError
