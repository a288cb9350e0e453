"""Answers in plain text, rewritten as the JSON answers that they stand for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from calibrant.core._completion import Completion
from calibrant.core._files import json_text
from calibrant.core._labels import LabelSet, normalise_label
from calibrant.core._prediction import Token
from calibrant.core._schema import FieldPath, parse_path
from calibrant.logprobs._fields import UnparsedError, answer_value, json_body

_THOUGHT_END: Final = "</think>"
# What models put around a label: white space, quotes, emphasis.
_DECORATION: Final = " \t\r\n\"'`*"
_DECORATION_BYTES: Final = _DECORATION.encode()
_MOST_DOCUMENTS: Final = 64
_MOST_NAMED: Final = 4
_DECODER: Final = json.JSONDecoder(strict=False)


def with_json_text(completion: Completion, field_path: str) -> Completion:
    """Return an answer whose text is the JSON document in it; unchanged if none holds the field."""
    path = parse_path(field_path)
    for document in _documents(completion.text):
        try:
            answer_value(document, path, field_path)
        except UnparsedError:
            continue
        if document == completion.text:
            return completion
        return replace(completion, text=document)
    return completion


def _documents(text: str) -> Iterator[str]:
    """Yield the whole text without a code fence, then the JSON objects inside it."""
    yield json_body(text)
    position = 0
    for _ in range(_MOST_DOCUMENTS):
        position = text.find("{", position)
        if position < 0:
            return
        try:
            _, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        yield text[position:end]
        position = end


def as_json_answer(completion: Completion, labels: LabelSet, field_path: str) -> Completion:
    """Rewrite an answer in plain text as the JSON answer it stands for.

    The label is the one that the first line consists of, or else the only one that the text names as a whole word, or
    else the one that the last line consists of. What stands before ``</think>`` is left out. An answer that is JSON
    with the field is returned as `with_json_text` does.

    Log-probabilities are kept where the label begins the answer and no label begins with another one: only then are
    the alternatives to its tokens other labels. Before other labels the model has already said what it thinks.

    Parameters
    ----------
    completion : Completion
        The answer.
    labels : LabelSet
        The legal labels.
    field_path : str
        Path of the label in the JSON answer.

    Raises
    ------
    UnparsedError
        The text names no label, or several.
    """
    whole = with_json_text(completion, field_path)
    try:
        answer_value(json_body(whole.text), parse_path(field_path), field_path)
    except UnparsedError:
        pass
    else:
        return whole
    start, end = _named_span(completion.text, labels)
    named = completion.text[start:end]
    before, behind = _around(parse_path(field_path))
    tokens = _label_tokens(completion, start, end, labels)
    if tokens is not None:
        opening = Token(f'{before}"'.encode(), 0.0)
        tokens = (opening, *tokens, Token(f'"{behind}'.encode(), 0.0))
    text = before + json_text(named) + behind
    return replace(completion, text=text, tokens=tokens, evidence_problem="")


def _around(path: FieldPath) -> tuple[str, str]:
    """Return the JSON before and behind the value at a path."""
    before = behind = ""
    for part in path:
        if isinstance(part, str):
            before += "{" + json_text(part) + ": "
            behind = "}" + behind
        else:
            before += "[" + "null, " * part
            behind = "]" + behind
    return before, behind


def _named_span(text: str, labels: LabelSet) -> tuple[int, int]:
    """Return begin and end of the label in an answer; raise UnparsedError if it names none or several."""
    thought = text.rfind(_THOUGHT_END)
    begin = 0 if thought < 0 else thought + len(_THOUGHT_END)
    lines = [(begin + start, begin + end) for start, end in _lines(text[begin:])]
    first = _whole_line(text, lines[:1], labels)
    if first is not None:
        return first
    pattern = _label_pattern(labels.labels)
    spans = [match.span() for match in pattern.finditer(text, begin)]
    words = [text[start:end] for start, end in spans]
    named = list(dict.fromkeys(map(labels.canonical, words)))
    if len(named) == 1:
        return spans[0]
    last = _whole_line(text, lines[-1:], labels)
    if last is not None:
        return last
    if not named:
        raise UnparsedError(f"the answer names none of the labels: {text.strip()[:80]!r}", kind="missing")
    shown = ", ".join(map(repr, named[:_MOST_NAMED]))
    raise UnparsedError(f"the answer names several labels ({shown}): {text.strip()[:80]!r}", kind="ambiguous")


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each line that is not blank."""
    for match in re.finditer(r"[^\n]+", text):
        if match.group().strip():
            yield match.span()


def _whole_line(text: str, lines: Sequence[tuple[int, int]], labels: LabelSet) -> tuple[int, int] | None:
    """Return begin and end of the label in a line that holds nothing else; None without such a line."""
    for start, end in lines:
        line = text[start:end]
        inside = line.strip(_DECORATION)
        for word in (inside, inside.rstrip("." + _DECORATION)):
            if labels.canonical(word) is not None:
                begin = start + line.index(inside)
                return begin, begin + len(word)
    return None


@lru_cache(maxsize=64)
def _label_pattern(labels: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of a label as a whole word; of two with one beginning, the longer comes first."""
    spellings = sorted({label.strip() for label in labels}, key=len, reverse=True)
    words = map(re.escape, spellings)
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)


@lru_cache(maxsize=64)
def tells_apart(labels: tuple[str, ...]) -> bool:
    """Return True if no label begins with another one, and none needs an escape in JSON."""
    plain = all(json_text(label)[1:-1] == label for label in labels)
    ordered = sorted(map(normalise_label, labels))
    neighbours = pairwise(ordered)
    return plain and not any(after.startswith(before) for before, after in neighbours)


def _label_tokens(completion: Completion, start: int, end: int, labels: LabelSet) -> tuple[Token, ...] | None:
    """Return the tokens that spell the label; None if they do not show the alternatives to it."""
    text = completion.text
    if not completion.tokens or not tells_apart(labels.labels) or text[:start].strip(_DECORATION):
        return None
    word = text[start:end].encode("utf-8", "surrogatepass")
    stream = b"".join(token.data for token in completion.tokens)
    begin = len(stream) - len(stream.lstrip(_DECORATION_BYTES))
    if not stream.startswith(word, begin):
        return None
    found: list[Token] = []
    ends = list(accumulate(len(token.data) for token in completion.tokens))
    for token, behind in zip(completion.tokens, ends, strict=True):
        first = behind - len(token.data)
        if behind > begin and first < begin + len(word):
            data = stream[max(first, begin) : min(behind, begin + len(word))]
            found.append(_cut(token, data, labels, is_first=first <= begin))
    return tuple(found)


def _cut(token: Token, data: bytes, labels: LabelSet, *, is_first: bool) -> Token:
    """Return a token that holds only the label's bytes; equal alternatives are added up."""
    listed = dict(token.top)
    listed.setdefault(token.data, token.logprob)
    merged: dict[bytes, float] = {}
    for other, logprob in listed.items():
        spelled = data
        if other != token.data:
            spelled = _alternative(other, labels, is_first=is_first)
        merged[spelled] = _sum_of(merged.get(spelled, -math.inf), logprob)
    return Token(data, merged[data], tuple(merged.items()))


def _alternative(data: bytes, labels: LabelSet, *, is_first: bool) -> bytes:
    """Return an alternative to a token as a piece of a label: without decoration and what follows the label."""
    if not is_first:
        return data
    word = data.lstrip(_DECORATION_BYTES) or data
    for label in labels.labels:
        spelled = label.encode("utf-8", "surrogatepass")
        if word.startswith(spelled) and not word[len(spelled) : len(spelled) + 1].isalnum():
            return spelled
    return word


def _sum_of(one: float, other: float) -> float:
    """Return the logarithm of the sum of two probabilities, at most 0."""
    high = max(one, other)
    low = min(one, other)
    if low == -math.inf:
        return min(high, 0.0)
    return min(0.0, high + math.log1p(math.exp(low - high)))
