"""Tests of the readers of JSON Lines, CSV, Parquet and plain text, and of places in their errors."""

from __future__ import annotations

import datetime as dt
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from calibrant.core import (
    Columns,
    ConfigurationError,
    CsvFormat,
    DataError,
    DataSource,
    Example,
    read_examples,
)
from calibrant.core._rows import read_rows, read_texts
from calibrant.runs import SavedRows

NEL = "\u0085"
SEPARATORS = f"one{NEL}two\u2028three\u2029four\x0bfive\x1csix"
BOM = b"\xef\xbb\xbf"


def write(directory: Path, name: str, content: str | bytes) -> Path:
    """Write a file with exactly these bytes."""
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines_of(path: Path) -> list[int]:
    """Return the line on which every record starts, as the reader reports."""
    return [row.line for row in read_rows(path)]


# --- every kind ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.jsonl", b""), ("rows.ndjson", b"\n\n"), ("rows.csv", BOM), ("rows.csv", b"input,answer\n")],
)
def test_empty_files_are_errors(tmp_path: Path, name: str, content: bytes) -> None:
    """A file with only blank lines, a byte order mark or a header raises DataError."""
    path = write(tmp_path, name, content)
    with pytest.raises(DataError, match=rf"{name}: expected at least one row, got an empty file"):
        list(read_rows(path))


@pytest.mark.parametrize(("name", "got"), [("rows.docx", "'.docx'"), ("rows", "'no ending'")])
def test_unknown_endings_list_the_known_ones(tmp_path: Path, name: str, got: str) -> None:
    """An unknown ending raises DataError with the endings that can be read."""
    path = write(tmp_path, name, "x")
    with pytest.raises(
        DataError, match=rf"ending in \.jsonl, \.ndjson, \.csv, \.tsv, \.parquet, \.xlsx, got {got}"
    ) as caught:
        list(read_rows(path))
    assert (caught.value.path, caught.value.line) == (path, None)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    """A missing file and a directory raise DataError with their name."""
    with pytest.raises(DataError, match=rf"{name}: no such file: check the path"):
        list(read_rows(tmp_path / name))
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="no such file"):
        list(read_rows(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "before", "bad"),
    [
        ("rows.jsonl", b'{"input": "x", "answer": "y"}\n' * 2, b'{"input": "caf\xe9", "answer": "y"}\n'),
        ("rows.csv", "x,é\n".encode() * 2, b"caf\xe9,y\n"),
        ("rows.csv", BOM, b"x,y\nx,y\nab\xe9d,y\n"),
    ],
)
def test_bytes_outside_utf8_are_located(tmp_path: Path, name: str, before: bytes, bad: bytes) -> None:
    """A byte outside UTF-8 raises DataError with file, line, byte and remedy."""
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
def test_huge_rows_are_not_read(tmp_path: Path, name: str, before: bytes, after: bytes) -> None:
    """A row of 10 MB raises DataError with its line, and memory stays below 5 MB."""
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


def test_run_rows_may_be_longer(tmp_path: Path) -> None:
    """A row beyond the limit is read with the limit for rows of runs."""
    row = {"input": "\x01" * 900_000, "label": "cat", "answer": "cat", "confidence": 0.5}
    path = write(tmp_path, "rows.jsonl", json.dumps(row))
    with pytest.raises(DataError, match="at most 1,000,000 bytes"):
        list(read_rows(path))
    assert SavedRows.load(path).confidence.tolist() == [0.5]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", "input,answer,answer\na,cat,dog\n", "1: .*each column once, got 'answer' 2 times"),
        (
            "rows.jsonl",
            '{"input": "a", "answer": "cat"}\n{"input": "b", "answer": "cat", "answer": "dog"}\n',
            "2: .*the key 'answer' is there twice",
        ),
        (
            "rows.jsonl",
            '{"input": "a", "answer": "cat", "additional_context": {"who": "x", "who": "y"}}\n',
            "1: .*the key 'who' is there twice",
        ),
    ],
)
def test_repeated_names_are_errors(tmp_path: Path, name: str, content: str, message: str) -> None:
    """A repeated column or key raises DataError with its place."""
    with pytest.raises(DataError, match=f"{name}:{message}"):
        list(read_rows(write(tmp_path, name, content)))


def test_repeated_fields_in_cells_are_errors(tmp_path: Path) -> None:
    """A repeated key in the JSON of a cell raises DataError with its place."""
    cell = '"{""a"": ""x"", ""a"": ""y""}"'
    path = write(tmp_path, "rows.csv", f"input,answer\nmeow,{cell}\n")
    with pytest.raises(DataError, match=r"rows\.csv:2: 'answer': .*the key 'a' is there twice"):
        read_examples(path, columns=Columns(fields=(("a", "a"),)))


def test_nameless_columns_may_repeat(tmp_path: Path) -> None:
    """No cell of columns without a name is lost: after the first they are called by place."""
    path = write(tmp_path, "rows.csv", "input,answer,,\nmeow,cat,a,b\n")
    assert read_examples(path) == [(Example(input="meow", answer="cat"), 2)]
    (row,) = read_rows(path)
    assert row.values == {"input": "meow", "answer": "cat", "": "a", "column 4": "b"}


def test_unclosed_quotes_are_located(tmp_path: Path) -> None:
    """A quote that is never closed raises DataError with the line where its record starts."""
    path = write(tmp_path, "rows.csv", 'input,answer\nfine,cat\n"open,dog\n' + "more,cat\n" * 200_000)
    with pytest.raises(DataError, match=r"rows\.csv:3: expected a row of at most 1,000,000 bytes"):
        list(read_rows(path))


def test_long_rows_are_read(tmp_path: Path) -> None:
    """A field of 900,000 characters is read, in a row of just as many bytes as are accepted."""
    text = "x" * 900_000
    (row,) = read_rows(write(tmp_path, "rows.csv", f"input,answer\n{text},y\n"), max_row_bytes=len(text) + 3)
    assert row.values == {"input": text, "answer": "y"}


# --- JSON Lines ---------------------------------------------------------------------------------


def test_blank_lines_count(tmp_path: Path) -> None:
    """Blank lines of JSON Lines count in the line numbers."""
    path = write(tmp_path, "rows.jsonl", '{"input": "a"}\n\n  \r\n{"input": "b"}\r\n{"input": "c"}')
    assert lines_of(path) == [1, 4, 5]
    assert [row.values["input"] for row in read_rows(path)] == ["a", "b", "c"]


def test_json_lines_end_at_line_feeds(tmp_path: Path) -> None:
    """Unicode's line separators do not end a line of JSON Lines."""
    rows = [{"input": SEPARATORS}, {"input": "next"}]
    path = write(tmp_path, "rows.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    assert [dict(row.values) for row in read_rows(path)] == rows
    assert lines_of(path) == [1, 2]


def test_byte_order_marks_are_skipped(tmp_path: Path) -> None:
    """A byte order mark is dropped in JSON Lines and CSV."""
    rows = write(tmp_path, "rows.jsonl", BOM + b'{"input": "a"}\n')
    table = write(tmp_path, "rows.csv", BOM + b"input,answer\na,b\n")
    assert [dict(row.values) for row in read_rows(rows)] == [{"input": "a"}]
    assert [dict(row.values) for row in read_rows(table)] == [{"input": "a", "answer": "b"}]


@pytest.mark.parametrize("broken", [('{"input": "a"'), ("[" * 100_000), ('{"input": ' + "1" * 5000 + "}")])
def test_broken_json_names_the_line(tmp_path: Path, broken: str) -> None:
    """Broken JSON raises DataError with its line."""
    path = write(tmp_path, "rows.jsonl", '{"input": "a"}\n' + broken + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl:2: expected one JSON object per line, got broken JSON"):
        list(read_rows(path))


def test_json_rows_must_be_objects(tmp_path: Path) -> None:
    """A row that is no JSON object raises DataError that shows the shape of a row."""
    path = write(tmp_path, "rows.jsonl", '["a", "b"]')
    with pytest.raises(DataError, match=r'rows\.jsonl:1: expected a JSON object, got list: write {"input"'):
        list(read_rows(path))


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), min_size=1, max_size=5))
def test_json_objects_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    """JSON objects with any characters are read as they were written."""
    content = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = write(tmp_path_factory.mktemp("json"), "rows.jsonl", content)
    assert [dict(row.values) for row in read_rows(path)] == rows


# --- CSV ----------------------------------------------------------------------------------------


def test_csv_records_have_their_first_line(tmp_path: Path) -> None:
    """A CSV record's line is its first one, after line breaks in quotes, blank lines and the header."""
    content = '"in\nput",answer\n"a\nb\nc",cat\n\nd,dog\n\n\n"e\nf",cat\n'
    path = write(tmp_path, "rows.csv", content)
    assert [(row.line, row.values["in\nput"]) for row in read_rows(path)] == [
        (3, "a\nb\nc"),
        (7, "d"),
        (10, "e\nf"),
    ]


def test_csv_texts_keep_separators_and_quotes(tmp_path: Path) -> None:
    """Unicode's line separators stay in a cell, and doubled quotes are read as one."""
    path = write(tmp_path, "rows.csv", f'input,answer\r\n"{SEPARATORS}",cat\r\n"say ""hi"", Ana",dog\r\n')
    rows = list(read_rows(path))
    assert [row.values["input"] for row in rows] == [SEPARATORS, 'say "hi", Ana']
    assert [row.line for row in rows] == [2, 3]


@pytest.mark.parametrize(("record", "got"), [("a", 1), ('"c\nd",cat,"e\nf"', 3)])
def test_wrong_column_counts_are_located(tmp_path: Path, record: str, got: int) -> None:
    """A row with a wrong number of columns raises DataError with its first line."""
    path = write(tmp_path, "rows.csv", f'input,answer\n"a\nb",cat\n{record}\n')
    with pytest.raises(DataError, match=rf"rows\.csv:4: expected 2 columns as in the header, got {got}:"):
        list(read_rows(path))


@pytest.mark.parametrize("broken", ['"open,cat\nmore,dog\n', 'a"b"c,"x"y\n'])
def test_broken_csv_names_its_first_line(tmp_path: Path, broken: str) -> None:
    """Broken CSV raises DataError with the line where the record starts."""
    path = write(tmp_path, "rows.csv", 'input,answer\n"a\nb",cat\n' + broken)
    with pytest.raises(DataError, match=r"rows\.csv:4: broken CSV .*: close its quotes"):
        list(read_rows(path))


# --- Parquet ------------------------------------------------------------------------------------


def test_missing_pyarrow_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing pyarrow raises ConfigurationError with the install command."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, "rows.parquet", b"PAR1")
    with pytest.raises(ConfigurationError, match=r"rows\.parquet: .*: pip install .*\[data\]"):
        list(read_rows(path))


def test_parquet_rows_are_numbered_across_batches(tmp_path: Path) -> None:
    """Rows of Parquet are numbered from 1, over several batches."""
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"input": [f"text {number}" for number in range(2000)]}), path)
    assert [row.line for row in read_rows(path)] == list(range(1, 2001))


def test_damaged_parquet_is_a_data_error(tmp_path: Path) -> None:
    """Damaged Parquet raises DataError after the rows before the damage."""
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


@pytest.mark.parametrize(("name", "line"), [("rows.parquet", 2), ("rows.xlsx", 3)])
def test_rows_of_tables_obey_the_size_limit(tmp_path: Path, name: str, line: int) -> None:
    """A row of Parquet or Excel above the size limit raises DataError."""
    path = tmp_path / name
    rows = {f"column {number}": ["a", "x" * 30_000] for number in range(60)}
    if name.endswith("parquet"):
        parquet.write_table(pa.table(rows), path)
    else:
        book = pytest.importorskip("openpyxl").Workbook()
        for cells in (list(rows), *zip(*rows.values(), strict=True)):
            book.worksheets[0].append(cells)
        book.save(path)
    with pytest.raises(DataError, match=rf"{name}:{line}: expected a row of at most"):
        list(read_rows(path))


# --- examples -----------------------------------------------------------------------------------


def test_examples_come_with_their_lines(tmp_path: Path) -> None:
    """Examples come with their lines; texts are unchanged, and a context is text or an object."""
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


def test_whole_numbers_are_answers(tmp_path: Path) -> None:
    """Whole numbers and truth values are read as the texts that a CSV file would hold."""
    values = [3, True, -2]
    lines = (json.dumps({"input": "meow", "answer": value}) for value in values)
    read = [row.answer for row, _ in read_examples(write(tmp_path, "rows.jsonl", "\n".join(lines)))]
    assert read == ["3", "true", "-2"]
    parquet.write_table(pa.table({"input": ["meow"], "answer": [3.0]}), tmp_path / "rows.parquet")
    assert read_examples(tmp_path / "rows.parquet")[0][0].answer == "3"


@pytest.mark.parametrize("context", ["", None, {}])
def test_empty_contexts_are_none(tmp_path: Path, context: object) -> None:
    """An empty CSV cell, a null and an empty object mean no context."""
    row = {"input": "meow", "answer": "cat", "additional_context": context}
    ((example, _),) = read_examples(write(tmp_path, "rows.jsonl", json.dumps(row)))
    assert dict(example.additional_context) == {}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"answer": "cat"},
            r"in 'input', got nothing \(columns here: answer\): name its column under \[data\]\.$",
        ),
        ({"input": None, "answer": "cat"}, "text in 'input', got nothing"),
        ({"input": "", "answer": "cat"}, "text in 'input', got an empty text"),
        ({"input": " \n", "answer": "cat"}, r"text in 'input', got ' \\n'"),
        ({"input": 5, "answer": "cat"}, "text in 'input', got 5"),
        (
            {"input": "meow"},
            r"text in 'answer', got nothing \(columns here: input\).* calibrant label labels rows",
        ),
        ({"input": "meow", "answer": 2.5}, r"text in 'answer', got 2.5 \(columns here: input, answer\)\.$"),
        ({}, r"text in 'input', got nothing \(columns here: none\)"),
        ({"input": "meow", "answer": "cat", "additional_context": 5}, "to be text or an object, got int"),
        ({"input": "\ud83d", "answer": "cat"}, r"characters, got \\ud83d, half of a surrogate pair"),
        ({"input": "meow", "answer": "cat", "additional_context": {"a": "\udc00"}}, r"got \\udc00, half"),
    ],
)
def test_unusable_rows_say_what_is_missing(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """A row without text or answer raises DataError with file, line, column and value."""
    good = json.dumps({"input": "meow", "answer": "cat"})
    path = write(tmp_path, "rows.jsonl", f"{good}\n{json.dumps(row)}\n")
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: expected .*{message}"):
        read_examples(path)


def test_columns_and_split_choose_what_is_read(tmp_path: Path) -> None:
    """Columns may have other names, and only rows of the named split are read."""
    content = "text,label,part,note\na,cat,train,n1\nb,dog,test,n2\nc,cat,train,n3\n"
    columns = Columns(input="text", answer="label", split="part", additional_context="note")
    found = read_examples(write(tmp_path, "rows.csv", content), columns=columns, split="train")
    assert found == [
        (Example(input="a", answer="cat", additional_context={"context": "n1"}), 2),
        (Example(input="c", answer="cat", additional_context={"context": "n3"}), 4),
    ]


# --- texts --------------------------------------------------------------------------------------


def test_texts_are_lines(tmp_path: Path) -> None:
    """In plain text each line is a text; line ends and blank lines are dropped."""
    path = write(tmp_path, "texts.txt", BOM + f"  meow \r\n\n \nwo{NEL}of\n".encode())
    assert read_texts(path) == ["  meow ", f"wo{NEL}of"]


def test_texts_are_a_column(tmp_path: Path) -> None:
    """Texts are read from a data file without answers."""
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
def test_text_files_raise_the_same_errors(tmp_path: Path, content: bytes, message: str) -> None:
    """Empty, missing and badly encoded text files and long lines raise DataError."""
    with pytest.raises(DataError, match=message):
        read_texts(write(tmp_path, "texts.txt", content))
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        read_texts(tmp_path / "none.txt")


def test_examples_are_read_one_by_one(tmp_path: Path) -> None:
    """A broken row raises DataError when it is reached, after the rows before."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "a", "answer": "b"}\nnot JSON\n')
    found = DataSource(path=path).examples()
    assert next(found) == (Example(input="a", answer="b"), 1)
    with pytest.raises(DataError, match=r"rows\.jsonl:2: "):
        next(found)


def test_repeated_parquet_columns_are_errors(tmp_path: Path) -> None:
    """Two Parquet columns of one name raise DataError."""
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table([["meow"], ["cat"], ["dog"]], names=["input", "answer", "answer"]), path)
    with pytest.raises(DataError, match=r"rows\.parquet: expected each column once, got 'answer' 2 times"):
        list(read_rows(path))


# --- other formats of CSV, and Excel ------------------------------------------------------------

MEOW = {"text": "meow, says «Zoë»", "label": "cat"}


@pytest.mark.parametrize(
    ("name", "separator", "encoding"),
    [
        ("rows.csv", ";", "utf-8"),
        ("rows.csv", "|", "utf-8-sig"),
        ("rows.tsv", "\t", "utf-8"),
        ("rows.csv", "\t", "utf-16"),
        ("rows.csv", "\t", "utf-16-le"),
        ("rows.csv", ";", "utf-16-be"),
        ("rows.csv", ";", "windows-1252"),
        ("rows.csv", ",", "latin-1"),
    ],
)
def test_formats_of_csv_are_found(tmp_path: Path, name: str, separator: str, encoding: str) -> None:
    """The separator and the encoding of a CSV file are found; lines and quoted separators are as ever."""
    quoted = f'"{MEOW["text"]}"{separator}cat\r\n'
    content = f"text{separator}label\r\n{quoted}\r\n{quoted}"
    rows = list(read_rows(write(tmp_path, name, content.encode(encoding))))
    assert [(row.line, row.values) for row in rows] == [(2, MEOW), (4, MEOW)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be", "windows-1252"])
def test_bare_carriage_returns_end_rows(tmp_path: Path, encoding: str) -> None:
    """Where a carriage return alone ends the header, it ends all rows, in files of any size."""
    lines = ["text;label", '"meow\rZoë\nsays";cat', *[f"{'x' * 90};cat"] * 1_000, "purr;cat"]
    path = write(tmp_path, "rows.csv", "\r".join(lines).encode(encoding))
    first, second, *_, last = read_rows(path)
    assert first.values == {"text": "meow\rZoë\nsays", "label": "cat"}
    assert second.line == 4
    assert (last.line, last.values) == (1004, {"text": "purr", "label": "cat"})


def test_a_row_too_long_is_found_behind_carriage_returns(tmp_path: Path) -> None:
    """A row above the limit raises DataError, not the file as a whole."""
    path = write(tmp_path, "rows.csv", f"text\rmeow\r{'x' * 200}\r".encode())
    rows = read_rows(path, max_row_bytes=100)
    assert next(rows).values == {"text": "meow"}
    with pytest.raises(DataError, match=r"rows\.csv:3: expected a row of at most 100 bytes"):
        next(rows)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_json_lines_in_utf16_are_named(tmp_path: Path, encoding: str) -> None:
    """JSON Lines in UTF-16 raise DataError that says what the file is, and how to save it."""
    path = write(tmp_path, "rows.jsonl", '{"input": "meow"}\n'.encode(encoding))
    with pytest.raises(DataError, match=r"rows\.jsonl:1: expected UTF-8 text, got UTF-16: save the file as"):
        list(read_rows(path))


def test_taken_encodings_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reading a file as Windows-1252 is logged, once."""
    path = write(tmp_path, "rows.csv", "input,answer\ncafé,x\nthé,x\n".encode("latin-1"))
    assert [[row.values["input"] for row in read_rows(path)] for _ in range(2)] == [["café", "thé"]] * 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: not UTF-8: read as Windows-1252. If letters look wrong, set encoding under [data]."
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["café".encode(), b"caf\xe9", b"caf\xe9"],
        [b"caf\xe9", *["naïve café".encode()] * 3],
        [b"caf\x81"],
        [b"x" * 70_000, "é".encode(), b"\xe9"],
    ],
    ids=["after a character", "before characters", "not in Windows-1252", "late"],
)
def test_damaged_utf8_is_an_error(tmp_path: Path, lines: list[bytes]) -> None:
    """A file with UTF-8 characters before, or more of them than of other bytes, is damaged and no Windows-1252."""
    path = write(tmp_path, "rows.csv", b"input,answer\n" + b"".join(line + b",x\n" for line in lines))
    with pytest.raises(DataError, match=r"rows\.csv:\d: expected UTF-8 text, got the byte 0x(e9|81): save"):
        list(read_rows(path))


def test_formats_can_be_given(tmp_path: Path) -> None:
    """A given encoding and separator are used, and columns without a header are numbered."""
    path = write(tmp_path, "rows.csv", "Привет, мир~cat\nмяу~cat\n".encode("cp1251"))
    form = CsvFormat(encoding="cp1251", separator="~", header=False)
    assert [row.values for row in read_rows(path, csv=form)] == [
        {"1": "Привет, мир", "2": "cat"},
        {"1": "мяу", "2": "cat"},
    ]
    marked = write(tmp_path, "marked.csv", "\ufeffmeow,cat\n\ufeffpurr,cat\n".encode("utf-16-le"))
    form = CsvFormat(encoding="utf-16-le", header=False)
    assert [row.values["1"] for row in read_rows(marked, csv=form)] == ["meow", "\ufeffpurr"]
    with pytest.raises(
        DataError, match=r"rows\.csv:1: expected text in the encoding 'ascii', got other bytes"
    ):
        list(read_rows(path, csv=CsvFormat(encoding="ascii")))


@pytest.mark.parametrize(
    "content", ["text;a,b\none, two;c\n", "text, a;b\n" + "x, " * 9_000 + ";c\n" + "y, " * 20_000 + ";c\n"]
)
def test_separators_fit_the_first_records(tmp_path: Path, content: str) -> None:
    """The separator is the one that cuts all first records alike, in files of any size."""
    assert len(next(read_rows(write(tmp_path, "rows.csv", content))).values) == 2


@pytest.mark.parametrize("separator", [";", ",", "\t"])
def test_excel_names_the_separator(tmp_path: Path, separator: str) -> None:
    """A first line such as ``sep=;`` names the separator and is no header."""
    content = f"sep={separator}\r\ntext{separator}label\r\na | b{separator}c | d\r\n"
    (row,) = read_rows(write(tmp_path, "rows.csv", content))
    assert (row.line, row.values) == (3, {"text": "a | b", "label": "c | d"})


@pytest.mark.parametrize("name", ["a text", "question; with | all\tof them"])
def test_a_single_column_is_not_cut(tmp_path: Path, name: str) -> None:
    """A column that is expected, alone in the header, is the only one, whatever stands in it."""
    path = write(tmp_path, "rows.csv", f'{name}\na; b\nc; d, e\tf|g\x1f\n"h, ""i"""\n')
    assert [row.values for row in read_rows(path, column=name)] == [
        {name: text} for text in ("a; b", "c; d, e\tf|g\x1f", 'h, "i"')
    ]
    path = write(tmp_path, "broken.csv", f'{name}\n"a" b\n')
    with pytest.raises(DataError, match=r"broken\.csv:2: .* here: the end of the line expected after '\"'"):
        list(read_rows(path, column=name))
    path = write(tmp_path, "more.csv", "a;b,c\n1;2,3\n")
    assert [list(next(read_rows(path, column=name)).values) for name in ("a", "c", "a;b")] == [
        ["a", "b,c"],
        ["a;b", "c"],
        ["a;b", "c"],
    ]


def test_broken_utf16_is_an_error(tmp_path: Path) -> None:
    """UTF-16 that ends within a character raises DataError with its line."""
    path = write(tmp_path, "rows.csv", "input,answer\nmeow,cat\n".encode("utf-16")[:-1])
    with pytest.raises(
        DataError, match=r"rows\.csv:2: expected text in the encoding 'utf-16', got other bytes"
    ):
        list(read_rows(path))


def test_excel_files_are_read(tmp_path: Path) -> None:
    """Rows of the first sheet are read with their numbers, and every cell as text."""
    book = pytest.importorskip("openpyxl").Workbook()
    for cells in (["text", "label", "when"], ["meow", 3, dt.date(2025, 5, 1)], [], ["woof", 2.5, None]):
        book.worksheets[0].append(cells)
    book.save(tmp_path / "rows.xlsx")
    assert [(row.line, row.values) for row in read_rows(tmp_path / "rows.xlsx")] == [
        (2, {"text": "meow", "label": "3", "when": "2025-05-01T00:00:00"}),
        (4, {"text": "woof", "label": "2.5", "when": ""}),
    ]


def test_unreadable_excel_files_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no workbook raises DataError, and a missing openpyxl ConfigurationError with the command."""
    pytest.importorskip("openpyxl")
    path = write(tmp_path, "rows.xlsx", b"PK")
    with pytest.raises(DataError, match=r"rows\.xlsx: not a readable Excel file \("):
        list(read_rows(path))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    message = r"Excel files need openpyxl: pip install .*\[excel\](?: @ \S+)?\S*, or save the sheet as CSV"
    with pytest.raises(ConfigurationError, match=message):
        list(read_rows(path))


@pytest.mark.parametrize("row", ['{"\\ud800": "x", "input": "meow"}', '{"input": "meow", "a\\udc00b": "x"}'])
def test_halves_of_characters_are_no_names(tmp_path: Path, row: str) -> None:
    """Half a surrogate pair in the name of a column is an error with file and line."""
    path = write(tmp_path, "rows.jsonl", f'{{"input": "woof"}}\n{row}\n'.encode())
    with pytest.raises(
        DataError, match=r"rows\.jsonl:2: expected characters in the name of a column, got half"
    ):
        list(read_rows(path))


def test_examples_name_their_row(tmp_path: Path) -> None:
    """Examples have the file and line of their row, and its id; two of equal content are equal."""
    path = write(tmp_path, "rows.csv", b'id,nr,input,answer\n7,a,"me\now",x\n,b,woof,y\n')
    found = [(row.source, row.row_id) for row, _ in read_examples(path)]
    assert found == [("rows.csv:2", "7"), ("rows.csv:4", None)]
    other = read_examples(path, columns=Columns(row_id="nr"))
    assert [row.row_id for row, _ in other] == ["a", "b"]
    assert other == read_examples(path)
