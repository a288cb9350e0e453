"""JSON Lines, CSV, Parquet and plain text: what is read, and how errors say where."""

from __future__ import annotations

import json
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from calibrant.core import ConfigurationError, DataError, Example, read_examples
from calibrant.core._installation import install_command
from calibrant.core._rows import MAX_RUN_ROW_BYTES, Columns, iter_examples, read_rows, read_texts

NEL = "\u0085"
SEPARATORS = f"one{NEL}two\u2028three\u2029four\x0bfive\x1csix"
BOM = b"\xef\xbb\xbf"


def write(directory: Path, name: str, content: str | bytes) -> Path:
    """Write a file byte by byte as given."""
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines_of(path: Path) -> list[int]:
    """Return the line every record is said to start on."""
    return [row.line for row in read_rows(path)]


# --- every kind ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.jsonl", b""), ("rows.ndjson", b"\n\n"), ("rows.csv", BOM), ("rows.csv", b"input,answer\n")],
)
def test_an_empty_file_is_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    """Nothing, blank lines or a byte order mark alone hold no row."""
    path = write(tmp_path, name, content)
    with pytest.raises(DataError, match=rf"{name}: expected at least one row, got an empty file"):
        list(read_rows(path))


@pytest.mark.parametrize(("name", "got"), [("rows.xlsx", "'.xlsx'"), ("rows", "'no ending'")])
def test_an_unknown_ending_names_the_known_ones(tmp_path: Path, name: str, got: str) -> None:
    """The user sees what would have been read."""
    path = write(tmp_path, name, "x")
    with pytest.raises(
        DataError, match=rf"ending in \.jsonl, \.ndjson, \.csv, \.parquet, got {got}"
    ) as caught:
        list(read_rows(path))
    assert (caught.value.path, caught.value.line) == (path, None)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    """So is a directory, which is no file either."""
    with pytest.raises(DataError, match=rf"{name}: no such file: check the path"):
        list(read_rows(tmp_path / name))
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="no such file"):
        list(read_rows(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "before", "bad"),
    [
        ("rows.jsonl", b'{"input": "x", "answer": "y"}\n' * 2, b'{"input": "caf\xe9", "answer": "y"}\n'),
        ("rows.csv", b"x,y\n" * 2, b"caf\xe9,y\n"),
        ("rows.csv", BOM, b"x,y\nx,y\nab\xe9d,y\n"),
    ],
)
def test_bytes_that_are_not_utf8_are_located(tmp_path: Path, name: str, before: bytes, bad: bytes) -> None:
    """File, line, the byte and the remedy stand in the message."""
    path = write(tmp_path, name, before + bad)
    with pytest.raises(DataError, match=rf"{name}:3: expected UTF-8 text, got the byte 0xe9: save the file"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("rows.jsonl", b'{"input": "a", "answer": "b"}\n{"input": "', b'", "answer": "b"}\n'),
        ("rows.csv", b'input,answer\n"', b'",b\n'),
    ],
)
def test_a_huge_row_is_refused_without_being_read(
    tmp_path: Path, name: str, before: bytes, after: bytes
) -> None:
    """10 MB in one row: named by line, and memory stays near the limit of 1 MB."""
    path = write(tmp_path, name, before + b"x" * 10_000_000 + after)
    tracemalloc.start()
    try:
        with pytest.raises(
            DataError, match=rf"{name}:2: expected a row of at most 1,000,000 bytes, got a longer"
        ):
            list(read_rows(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000


def test_rows_of_a_run_may_be_longer_than_rows_of_a_user(tmp_path: Path) -> None:
    """What was accepted as a text comes back with all that was written beside it."""
    path = write(tmp_path, "rows.jsonl", json.dumps({"input": "\x01" * 900_000}))
    with pytest.raises(DataError, match="at most 1,000,000 bytes"):
        list(read_rows(path))
    (row,) = read_rows(path, max_row_bytes=MAX_RUN_ROW_BYTES)
    assert len(row.values["input"]) == 900_000


@pytest.mark.parametrize(
    ("name", "content", "place", "what"),
    [
        (
            "rows.csv",
            "input,answer,answer\na,cat,dog\n",
            "rows.csv:1",
            "each column once, got 'answer' 2 times",
        ),
        (
            "rows.jsonl",
            '{"input": "a", "answer": "cat"}\n{"input": "b", "answer": "cat", "answer": "dog"}\n',
            "rows.jsonl:2",
            "the key 'answer' is there twice",
        ),
        (
            "rows.jsonl",
            '{"input": "a", "answer": "cat", "additional_context": {"who": "x", "who": "y"}}\n',
            "rows.jsonl:1",
            "the key 'who' is there twice",
        ),
    ],
)
def test_what_is_there_twice_is_refused(
    tmp_path: Path, name: str, content: str, place: str, what: str
) -> None:
    """Nobody knows which of the two counts."""
    with pytest.raises(DataError, match=f"{place}: .*{what}"):
        list(read_rows(write(tmp_path, name, content)))


def test_a_field_twice_in_the_text_of_an_answer_is_refused(tmp_path: Path) -> None:
    """The same in a cell that holds JSON."""
    cell = '"{""a"": ""x"", ""a"": ""y""}"'
    path = write(tmp_path, "rows.csv", f"input,answer\nmeow,{cell}\n")
    with pytest.raises(DataError, match=r"rows\.csv:2: 'answer': .*the key 'a' is there twice"):
        read_examples(path, columns=Columns(fields=(("a", "a"),)))


def test_columns_without_a_name_may_repeat(tmp_path: Path) -> None:
    """Spreadsheets leave empty columns behind, which nothing reads."""
    path = write(tmp_path, "rows.csv", "input,answer,,\nmeow,cat,,\n")
    assert read_examples(path) == [(Example(input="meow", answer="cat"), 2)]


def test_a_huge_csv_record_of_short_lines_is_refused_where_it_starts(tmp_path: Path) -> None:
    """A quote that is never closed makes one record of the rest of the file."""
    path = write(tmp_path, "rows.csv", 'input,answer\nfine,cat\n"open,dog\n' + "more,cat\n" * 200_000)
    with pytest.raises(DataError, match=r"rows\.csv:3: expected a row of at most 1,000,000 bytes"):
        list(read_rows(path))


def test_a_long_row_below_the_limit_is_read(tmp_path: Path) -> None:
    """The csv module's own limit of 131,072 characters a field does not apply."""
    text = "x" * 900_000
    (row,) = read_rows(write(tmp_path, "rows.csv", f"input,answer\n{text},y\n"))
    assert row.values == {"input": text, "answer": "y"}


# --- JSON Lines ---------------------------------------------------------------------------------


def test_json_lines_count_blank_lines(tmp_path: Path) -> None:
    """Line numbers are those an editor shows."""
    path = write(tmp_path, "rows.jsonl", '{"input": "a"}\n\n  \r\n{"input": "b"}\r\n{"input": "c"}')
    assert lines_of(path) == [1, 4, 5]
    assert [row.values["input"] for row in read_rows(path)] == ["a", "b", "c"]


def test_json_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    """Unicode's other line separators are text."""
    rows = [{"input": SEPARATORS}, {"input": "next"}]
    path = write(tmp_path, "rows.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    assert [dict(row.values) for row in read_rows(path)] == rows
    assert lines_of(path) == [1, 2]


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    """Editors on Windows write it, in JSON Lines and in CSV."""
    rows = write(tmp_path, "rows.jsonl", BOM + b'{"input": "a"}\n')
    table = write(tmp_path, "rows.csv", BOM + b"input,answer\na,b\n")
    assert [dict(row.values) for row in read_rows(rows)] == [{"input": "a"}]
    assert [dict(row.values) for row in read_rows(table)] == [{"input": "a", "answer": "b"}]


@pytest.mark.parametrize(
    "broken",
    [
        ('{"input": "a"'),
        ("[" * 100_000),
        ('{"input": ' + "1" * 5000 + "}"),
    ],
)
def test_broken_json_names_the_line(tmp_path: Path, broken: str) -> None:
    """Whatever the parser raises becomes one kind of error."""
    path = write(tmp_path, "rows.jsonl", '{"input": "a"}\n' + broken + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:2: expected one JSON object per line, got broken JSON"):
        list(read_rows(path))


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    """The message shows the shape of a row."""
    path = write(tmp_path, "rows.jsonl", '["a", "b"]')
    with pytest.raises(DataError, match=r'rows\.jsonl:1: expected a JSON object, got list: write {"input"'):
        list(read_rows(path))


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), min_size=1, max_size=5))
def test_any_json_objects_come_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    """Round trip, whatever characters the texts hold."""
    content = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = write(tmp_path_factory.mktemp("json"), "rows.jsonl", content)
    assert [dict(row.values) for row in read_rows(path)] == rows


# --- CSV ----------------------------------------------------------------------------------------


def test_a_csv_record_is_numbered_by_the_line_it_starts_on(tmp_path: Path) -> None:
    """Quoted line breaks, blank lines and a header of two lines do not shift the numbers."""
    content = '"in\nput",answer\n"a\nb\nc",cat\n\nd,dog\n\n\n"e\nf",cat\n'
    path = write(tmp_path, "rows.csv", content)
    assert [(row.line, row.values["in\nput"]) for row in read_rows(path)] == [
        (3, "a\nb\nc"),
        (7, "d"),
        (10, "e\nf"),
    ]


def test_csv_texts_keep_separators_quotes_and_commas(tmp_path: Path) -> None:
    """NEL and its kin end no line; doubled quotes are one quote."""
    path = write(tmp_path, "rows.csv", f'input,answer\r\n"{SEPARATORS}",cat\r\n"say ""hi"", Ana",dog\r\n')
    rows = list(read_rows(path))
    assert [row.values["input"] for row in rows] == [SEPARATORS, 'say "hi", Ana']
    assert [row.line for row in rows] == [2, 3]


@pytest.mark.parametrize(("record", "got"), [("a", 1), ('"c\nd",cat,"e\nf"', 3)])
def test_a_csv_row_with_another_number_of_columns_is_refused_where_it_starts(
    tmp_path: Path, record: str, got: int
) -> None:
    """A missing comma or an unquoted one must not move answers into texts."""
    path = write(tmp_path, "rows.csv", f'input,answer\n"a\nb",cat\n{record}\n')
    with pytest.raises(DataError, match=rf"rows\.csv:4: expected 2 columns as in the header, got {got}:"):
        list(read_rows(path))


@pytest.mark.parametrize("broken", ['"open,cat\nmore,dog\n', 'a"b"c,"x"y\n'])
def test_broken_csv_names_the_line_its_record_starts_on(tmp_path: Path, broken: str) -> None:
    """A quote left open is noticed at the end of the file, far from its cause."""
    path = write(tmp_path, "rows.csv", 'input,answer\n"a\nb",cat\n' + broken)
    with pytest.raises(DataError, match=r"rows\.csv:4: broken CSV .*: close its quotes"):
        list(read_rows(path))


# --- Parquet ------------------------------------------------------------------------------------


def test_parquet_without_pyarrow_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra fails with what installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, "rows.parquet", b"PAR1")
    with pytest.raises(ConfigurationError, match=r"rows\.parquet: .*: " + re.escape(install_command("data"))):
        list(read_rows(path))


def test_parquet_rows_are_numbered_across_batches(tmp_path: Path) -> None:
    """Parquet has no lines, so rows are counted from one."""
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"input": [f"text {number}" for number in range(2000)]}), path)
    assert [row.line for row in read_rows(path)] == list(range(1, 2001))


def test_parquet_damage_behind_the_first_rows_is_a_data_error(tmp_path: Path) -> None:
    """Rows before it are read; no error of the library comes through."""
    path = tmp_path / "rows.parquet"
    texts = pa.table({"input": [f"text {number}" for number in range(4000)]})
    parquet.write_table(texts, path, row_group_size=1000, use_dictionary=False, compression="gzip")
    start = parquet.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    damaged = bytearray(path.read_bytes())
    damaged[start : start + 2000] = b"\xff" * 2000
    path.write_bytes(damaged)
    rows = read_rows(path)
    assert next(rows).line == 1
    with pytest.raises(DataError, match=r"rows\.parquet: not a readable Parquet file \("):
        list(rows)


def test_parquet_rows_obey_the_size_limit(tmp_path: Path) -> None:
    """The limit is about what a model can read, not about the kind of file."""
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"input": ["a", "x" * 2_000_000]}), path)
    with pytest.raises(DataError, match=r"rows\.parquet:2: expected a row of at most"):
        list(read_rows(path))


# --- examples -----------------------------------------------------------------------------------


def test_examples_come_with_their_lines(tmp_path: Path) -> None:
    """Texts are taken as they are, context as text or as an object."""
    rows = [
        {"input": "  meow ", "answer": "cat"},
        {"input": "woof", "answer": "dog", "additional_context": "it barks"},
        {"input": "purr", "answer": "cat", "additional_context": {"weight": 4}},
    ]
    path = write(tmp_path, "rows.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_examples(path) == [
        (Example(input="  meow ", answer="cat"), 1),
        (Example(input="woof", answer="dog", additional_context={"context": "it barks"}), 2),
        (Example(input="purr", answer="cat", additional_context={"weight": "4"}), 3),
    ]


@pytest.mark.parametrize("context", ["", None, {}])
def test_an_empty_context_is_none(tmp_path: Path, context: object) -> None:
    """A CSV column without text and a null mean the same."""
    row = {"input": "meow", "answer": "cat", "additional_context": context}
    ((example, _),) = read_examples(write(tmp_path, "rows.jsonl", json.dumps(row)))
    assert dict(example.additional_context) == {}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "cat"}, r"text in 'input', got nothing \(columns here: answer\)"),
        ({"input": None, "answer": "cat"}, "text in 'input', got nothing"),
        ({"input": "", "answer": "cat"}, "text in 'input', got an empty text"),
        ({"input": " \n", "answer": "cat"}, r"text in 'input', got ' \\n'"),
        ({"input": 5, "answer": "cat"}, "text in 'input', got 5"),
        ({"input": "meow"}, r"text in 'answer', got nothing \(columns here: input\)"),
        ({}, r"text in 'input', got nothing \(columns here: none\)"),
        ({"input": "meow", "answer": "cat", "additional_context": 5}, "to be text or an object, got int"),
        ({"input": "\ud83d", "answer": "cat"}, r"characters, got \\ud83d, half of a surrogate pair"),
        ({"input": "meow", "answer": "cat", "additional_context": {"a": "\udc00"}}, r"got \\udc00, half"),
    ],
)
def test_an_unusable_row_says_what_it_lacks(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """File, line, the column and what stands in it."""
    good = json.dumps({"input": "meow", "answer": "cat"})
    path = write(tmp_path, "rows.jsonl", f"{good}\n{json.dumps(row)}\n")
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: expected .*{message}"):
        read_examples(path)


def test_columns_and_split_choose_what_is_read(tmp_path: Path) -> None:
    """Other names than the default ones, and only the rows of one split, with their own lines."""
    content = "text,label,part,note\na,cat,train,n1\nb,dog,test,n2\nc,cat,train,n3\n"
    columns = Columns(input="text", answer="label", split="part", additional_context="note")
    found = read_examples(write(tmp_path, "rows.csv", content), columns=columns, split="train")
    assert found == [
        (Example(input="a", answer="cat", additional_context={"context": "n1"}), 2),
        (Example(input="c", answer="cat", additional_context={"context": "n3"}), 4),
    ]


# --- texts --------------------------------------------------------------------------------------


def test_texts_are_the_lines_of_a_text_file(tmp_path: Path) -> None:
    """Line ends and blank lines go, everything else stays."""
    path = write(tmp_path, "texts.txt", BOM + f"  meow \r\n\n \nwo{NEL}of\n".encode())
    assert read_texts(path) == ["  meow ", f"wo{NEL}of"]


def test_texts_are_a_column_of_a_data_file(tmp_path: Path) -> None:
    """Answers are not needed."""
    path = write(tmp_path, "rows.csv", "input,other\nmeow,1\nwoof,2\n")
    assert read_texts(path) == ["meow", "woof"]
    assert read_texts(path, columns=Columns(input="other")) == ["1", "2"]
    with pytest.raises(DataError, match=r"rows\.csv:2: expected text in 'text', got nothing"):
        read_texts(path, columns=Columns(input="text"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n\n", r"texts\.txt: expected one text per line, got an empty file"),
        (b"fine\ncaf\xe9\n", r"texts\.txt:2: expected UTF-8 text, got the byte 0xe9"),
        (b"fine\n\n" + b"x" * 2_000_000, r"texts\.txt:3: expected a row of at most"),
    ],
)
def test_a_text_file_meets_the_same_errors(tmp_path: Path, content: bytes, message: str) -> None:
    """Empty, not UTF-8, too long."""
    with pytest.raises(DataError, match=message):
        read_texts(write(tmp_path, "texts.txt", content))
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        read_texts(tmp_path / "none.txt")


def test_examples_are_read_one_by_one(tmp_path: Path) -> None:
    """What stands further down is not looked at before it is asked for."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "a", "answer": "b"}\nnot JSON\n')
    found = iter_examples(path)
    assert next(found) == (Example(input="a", answer="b"), 1)
    with pytest.raises(DataError, match=r"rows\.jsonl:2: "):
        next(found)


def test_a_parquet_column_twice_is_refused(tmp_path: Path) -> None:
    """Two columns of one name are refused as in every other kind of file."""
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table([["meow"], ["cat"], ["dog"]], names=["input", "answer", "answer"]), path)
    with pytest.raises(DataError, match=r"rows\.parquet: expected each column once, got 'answer' 2 times"):
        list(read_rows(path))
