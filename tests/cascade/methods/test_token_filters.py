"""Tests of token filters: label content, values of arguments, or all but layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.cascade.methods._reported import argument_spans, kept_tokens
from calibrant.core import LogprobsUnavailableError, Token

FILTERS = ("all", "stop", "label", "tool_call_args")


def tokens_of(*pieces: str | bytes) -> tuple[Token, ...]:
    """Return tokens that hold these pieces; each has a log-probability of its own."""
    return tuple(
        Token(piece.encode() if isinstance(piece, str) else piece, -0.01 * number)
        for number, piece in enumerate(pieces)
    )


def kept(which: Any, *pieces: str | bytes, field: str = "category", text: str | None = None) -> list[bytes]:
    """Return the bytes of the tokens that count."""
    tokens = tokens_of(*pieces)
    joined = b"".join(token.data for token in tokens).decode(errors="replace")
    found = kept_tokens(tokens, which, text=joined if text is None else text, field=field)
    return [token.data for token in found]


def strings(pieces: Sequence[bytes]) -> list[str]:
    """Return pieces as text."""
    return [piece.decode() for piece in pieces]


# --- label ---------------------------------------------------------------------------------------


LABELS = {
    "one": (('{"category": "', "Sports", '"}'), ["Sports"]),
    "several": (('{"category": "', "Spo", "rts", '"', "}"), ["Spo", "rts"]),
    "quote shared": (('{"category": "', "Spo", 'rts"', "}"), ["Spo", 'rts"']),
    "quotes shared": (("{", '"category"', ":", ' "Spo', 'rts"}'), [' "Spo', 'rts"}']),
    "whole": (('{"category": "a"}',), ['{"category": "a"}']),
    "empty": (('{"category": "', '"', "}"), ['"']),
    "named before": (('{"why": "Sports", "category": "', "Sports", '"}'), ["Sports"]),
    "escaped": (('{"category": "', 'a\\"', "b", '"}'), ['a\\"', "b"]),
    "fenced": (("```json\n", '{"category": "', "a", '"}', "\n```"), ["a"]),
    "end": (('{"category": "', "a", '"}', "<|im_end|>"), ["a"]),
}


@pytest.mark.parametrize(("pieces", "expected"), LABELS.values(), ids=LABELS)
def test_label_keeps_tokens_of_the_value(pieces: Any, expected: Any) -> None:
    """A quote counts where it shares a token with content, and where the value is empty."""
    body = "".join(pieces).removesuffix("<|im_end|>")
    assert strings(kept("label", *pieces, text=body)) == expected


def test_label_counts_bytes_of_split_characters() -> None:
    """All tokens of a split character count, an empty one among them too."""
    pieces = ('{"category": "', b"", b"\xe6", b"\x97", b"\xa5", '"}')
    assert kept("label", *pieces, text='{"category": "日"}') == [b"", b"\xe6", b"\x97", b"\xa5"]


def test_a_missing_label_is_no_evidence() -> None:
    """Tokens that do not spell the label raise LogprobsUnavailableError."""
    with pytest.raises(LogprobsUnavailableError, match="category"):
        kept("label", '{"kind": "a"}')
    with pytest.raises(LogprobsUnavailableError, match="do not spell"):
        kept("label", "nothing", text='{"category": "a"}')


# --- stop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dropped",
    [
        "{", '{"', '":', ' "', '"}', "}\n", "[", "]", ",", "\n\n", "\t", " ", "", "```", '"}\n```', "<|im_end|>",
        "</s>", "<|eot_id|>", "<eos>", "<end_of_turn>", "<｜end▁of▁sentence｜>", "\n</s>", "<s>", "<|tool_call|>",
        "[/INST]",
    ],
)  # fmt: skip
def test_stop_drops_layout_and_special_tokens(dropped: str) -> None:
    """Layout and special tokens do not count under ``stop``."""
    assert strings(kept("stop", "yes", dropped)) == ["yes"]


@pytest.mark.parametrize(
    "content", ['a"', "1", "true", "-", ".", "<b>", "a</s>", "|", "\\n", "日", "<", "(", "’"]
)
def test_stop_keeps_everything_else(content: str) -> None:
    """One byte of content makes a token count under ``stop``."""
    assert strings(kept("stop", "yes", content)) == ["yes", content]


def test_stop_keeps_part_of_a_character() -> None:
    """A byte that is no character by itself is content."""
    assert kept("stop", '{"a": "', b"\xe6", b"\x97\xa5", '"}') == [b'{"a": "', b"\xe6", b"\x97\xa5"]


def test_stop_drops_a_fences_first_line() -> None:
    """The language of a code fence is layout, and the same word in the answer is not."""
    assert strings(kept("stop", "```", "json", "\n", "{", "json", "}", "\n", "```")) == ["json"]
    assert strings(kept("stop", "``", "`json\n{", "a", "}")) == ["`json\n{", "a"]


def test_empty_selections_are_no_evidence() -> None:
    """A filter that keeps no token raises LogprobsUnavailableError."""
    for which in ("stop", "tool_call_args"):
        with pytest.raises(LogprobsUnavailableError, match="use another token_filter"):
            kept(which, "{", "}", "</s>")


def test_all_keeps_all() -> None:
    """Empty and special tokens count under ``all``."""
    assert strings(kept("all", "{", "", "a", "</s>")) == ["{", "", "a", "</s>"]


# --- tool_call_args ------------------------------------------------------------------------------

ARGUMENTS = {
    "one call": ('{"name": "f", "arguments": {"city": "Paris"}}', ["Paris"]),
    "arguments first": ('{"arguments": {"city": "Paris"}, "name": "f"}', ["Paris"]),
    "arguments among arguments": ('{"arguments": {"arguments": {"a": "x"}, "b": "y"}}', ["x", "y"]),
    "several calls": ('[{"arguments": {"a": "x"}}, {"arguments": {"a": "y"}}]', ["x", "y"]),
    "tagged": (
        '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call><tool_call>{"arguments": {"a": 2}}',
        ["x", "2"],
    ),
    "prose around": ('I call {f} with "a": {"arguments": {"a": "x"}} [done', ["x"]),
    "encoded with escapes": (
        json.dumps({"arguments": json.dumps({"a": 'say "é"', "b": "日"})}),
        ['say \\\\\\"\\\\u00e9\\\\\\"', "\\\\u65e5"],
    ),
    "plain text arguments": ('{"arguments": "Paris, France"}', ["Paris, France"]),
    "text behind encoded JSON": ('{"arguments": "{\\"a\\": 1} or so"}', ['{\\"a\\": 1} or so']),
    "encoded raw, escaped outside": (
        json.dumps({"arguments": json.dumps({"a": "x😀", "b": 1}, ensure_ascii=False)}),
        ["x\\ud83d\\ude00", "1"],
    ),
    "a call in what is no JSON": ('{"a": {"arguments": {"b": "x"}} oops}', ["x"]),
    "a word for a value": ('{"arguments": {"a": hello}}', []),
    "text that begins like JSON": ('{"arguments": "{see page 2"}', ["{see page 2"]),
    "no escape of JSON in a value": ('{"arguments": {"a": "\\d+"}}', ["\\d+"]),
    "cut off in a value": ('{"name": "f", "arguments": {"a": "Pari', ["Pari"]),
    "cut off in a number": ('{"arguments": {"a": 12', ["12"]),
    "cut off in a literal": ('{"arguments": {"a": tr', ["tr"]),
    "cut off in a literal alone": ('{"name": "f", "arguments": fal', ["fal"]),
    "cut off in an exponent": ('{"arguments": {"a": 1e', ["1e"]),
    "a call cut off by another answer": ('{"arguments": [true I call', []),
    "cut off behind a minus": ('{"arguments": -', ["-"]),
    "cut off in a word": ('{"arguments": hel', []),
    "cut off behind a backslash": ('{"arguments": {"a": "x\\', ["x"]),
    "no calls": ('{"category": "a"}', []),
    "no arguments": ('{"name": "f", "arguments": {}}', []),
    "the word as a value": ('{"name": "arguments", "x": "y"}', []),
    "the word in a string": ('{"text": "\\"arguments\\": {\\"a\\": 1}"}', []),
    "not JSON": ("{arguments: {a: 1}}", []),
    "closing first": ('{"arguments": ]}', []),
    "no colon": ('{"arguments" {"a": 1}}', []),
    "no escape of JSON": ('{"arguments": "{\\q}"}', ["{\\q}"]),
    "unbalanced": ('{"arguments": {"a": "x"]', []),
    "string for a key": ('{"arguments": {1: "x"}}', []),
}


@pytest.mark.parametrize(("text", "expected"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_values_of_arguments_are_found(text: str, expected: list[str]) -> None:
    """The spans are those of values, without keys, punctuation and the rest of a call."""
    data = text.encode()
    assert [data[begin:end].decode() for begin, end in argument_spans(data)] == expected


def test_tokens_count_by_any_value_byte() -> None:
    """A token counts if any of its bytes belongs to a value."""
    pieces = ('{"name": "f", "arguments": {"city', '": "Pa', "ris", '", "n": ', "1", "}, ", '"id": 7}', "")
    assert strings(kept("tool_call_args", *pieces)) == ['": "Pa', "ris", "1"]


def test_empty_tokens_count_inside_a_value_only() -> None:
    """An empty token counts inside a value, and nowhere else."""
    pieces = (b"", b'{"arguments": {"a": "', b"", b"\xe6", b"", b"\x97\xa5", b'"}}', b"")
    assert kept("tool_call_args", *pieces) == [b"", b"\xe6", b"", b"\x97\xa5"]


def test_braces_in_front_of_a_call_are_passed_over() -> None:
    """Opening braces in front of a call do not change the spans of its values."""
    assert argument_spans(b"{" * 100_000) == []
    assert argument_spans(b"{x " * 300 + b'{"arguments": {"a": 1}}') == [(920, 921)]
    call = b'{"arguments": {"a": 1}}'
    assert len(argument_spans(b'"arguments": x ' * 255 + call)) == 1
    assert argument_spans(b'"arguments": x ' * 256 + call) == []
    assert argument_spans(b'{"arguments": "' + b"[" * 5_000 + b'"}') == [(15, 5_015)]
    nested = b'{"arguments": ' * 5_000
    assert argument_spans(nested + b"1") == [(70_000, 70_001)]


Piece = tuple[str, bool]
SCALARS = st.one_of(
    st.text('aé日😀"\\/{}[]:, \n\u2028', max_size=4),
    st.integers(-99, 99),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"é', max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def written(value: object, *, ascii_only: bool) -> Iterator[Piece]:
    """Return the JSON of a value in pieces, each with whether it is content of a value."""
    if isinstance(value, dict):
        yield "{", False
        for number, (key, child) in enumerate(value.items()):
            yield (", " if number else "") + json.dumps(key, ensure_ascii=ascii_only) + ": ", False
            yield from written(child, ascii_only=ascii_only)
        yield "}", False
    elif isinstance(value, list):
        yield "[", False
        for number, child in enumerate(value):
            yield "," * bool(number), False
            yield from written(child, ascii_only=ascii_only)
        yield "]", False
    elif isinstance(value, str):
        yield '"', False
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1], True
        yield '"', not value
    else:
        yield json.dumps(value), True


@st.composite
def calls(draw: st.DrawFn) -> tuple[bytes, list[bool]]:
    """Draw a tool call, and which of its bytes are values of arguments."""
    arguments = draw(
        st.dictionaries(st.text('ab"é', max_size=3), VALUES, max_size=3) | st.lists(VALUES, max_size=3)
    )
    ascii_only = draw(st.booleans())
    pieces = list(written(arguments, ascii_only=ascii_only))
    if draw(st.booleans()):
        pieces = [(json.dumps(piece, ensure_ascii=ascii_only)[1:-1], marked) for piece, marked in pieces]
        pieces = [('"', False), *pieces, ('"', False)]
    head, tail = (
        draw(st.sampled_from(['{"name": "f", ', "<tool_call>{"])),
        ', "id": "call", "n": [1, {"a": "b"}]}',
    )
    pieces = [(head + '"arguments": ', False), *pieces, (tail, False)]
    data = b"".join(piece.encode() for piece, _ in pieces)
    marks = [marked for piece, marked in pieces for _ in piece.encode()]
    return data, marks


@st.composite
def cuts(draw: st.DrawFn, length: int) -> list[int]:
    """Draw the ends of tokens."""
    inner = draw(st.lists(st.integers(0, length), max_size=20))
    return sorted({*inner, length})


@given(st.data(), calls())
def test_marked_bytes_are_those_a_writer_marks(data: st.DataObject, call: tuple[bytes, list[bool]]) -> None:
    """The spans of any written call are those of its values, however it is cut into tokens."""
    answer, marks = call
    found = [False] * len(answer)
    for begin, end in argument_spans(answer):
        found[begin:end] = [True] * (end - begin)
    assert found == marks
    ends = data.draw(cuts(len(answer)))
    starts = [0, *ends[:-1]]
    tokens = tokens_of(*(answer[start:end] for start, end in zip(starts, ends, strict=True)))
    expected = [
        token for token, start, end in zip(tokens, starts, ends, strict=True) if any(marks[start:end])
    ]
    if expected:
        assert list(kept_tokens(tokens, "tool_call_args", text="", field="x")) == expected


@given(
    st.lists(
        st.binary(max_size=6) | st.sampled_from(['{"', "arguments", '":', "}", '"', "a", "</s>"]), min_size=1
    )
)
def test_filters_keep_tokens_in_order(pieces: list[str | bytes]) -> None:
    """Every filter returns some of the tokens in order, or raises, for any bytes."""
    tokens = tokens_of(*pieces)
    for which in FILTERS:
        try:
            found = kept_tokens(tokens, which, text='{"category": "a"}', field="category")  # type: ignore[arg-type]
        except LogprobsUnavailableError:
            continue
        remaining = iter(tokens)
        assert found
        assert all(any(token is other for other in remaining) for token in found)
