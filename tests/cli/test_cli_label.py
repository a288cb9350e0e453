"""Tests of ``calibrant label``: files, columns, sources, decisions, resuming and refusals."""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import io
import json
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.stats import binom

from calibrant import Classifier, MultiLabels, load
from calibrant.core import ProviderError
from calibrant.evaluation import BatchEvaluator
from calibrant.testing import Answer, FakeClient
from calibrant.tuned import Tuned
from command_line import (
    animals,
    command,
    done,
    json_of,
    knows,
    prediction_rows,
    process,
    refusal,
    spelled,
    unlike_animals,
    wait_for,
)
from fault_server import FaultServer

run = command("label")

WriteTask = Callable[..., Path]
Fake = Callable[..., FakeClient]

COMMAND = "from calibrant.cli import main; main()"
PRICES = "input_cost_per_token = 0.001\noutput_cost_per_token = 0.002\n"
SERVED = '[model]\nname = "openai/any"\napi_base = "{}"\n[model.options]\napi_key = "none"\n'


def write_csv(path: Path, texts: Sequence[str], **columns: Sequence[str]) -> Path:
    """Write texts with an id, and other columns, as a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "input", *columns])
        for number, (text, *more) in enumerate(zip(texts, *columns.values(), strict=True)):
            writer.writerow([f"{number:03d}", text, *more])
    return path


def labels(directory: Path, name: str = "labels.csv") -> list[dict[str, str]]:
    """Return the rows of a file of labels."""
    with (directory / name).open(newline="") as file:
        return list(csv.DictReader(file))


# --- columns and formats ------------------------------------------------------------------------


def test_columns_pass_unchanged(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Cells with breaks, quotes and leading zeros come back, in order; equal ids are both labelled."""
    fake(knows)
    data = tmp_path / "data.csv"
    data.write_text('id,input,label\n007,"a ""meow"",\nloud",x\n007,woof,y\n')
    result = done(run(write_task(), data, "--out", tmp_path / "out"))
    assert "2 of 2 rows labelled" in result.stdout
    assert (tmp_path / "out" / "labels.csv").read_text() == (
        "id,input,label,calibrant_label,confidence,decision,outcome,provider,cost\n"
        '007,"a ""meow"",\nloud",x,cat,0.9,,ok,fake,\n007,woof,y,dog,0.8,,ok,fake,\n'
    )


def test_one_row_is_singular(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """The effort of a file of one row counts one row and one call."""
    fake(knows)
    data = tmp_path / "data.csv"
    data.write_text("input\nmeow\n")
    result = done(run(write_task(), data, "--out", tmp_path / "out"))
    assert "1 of 1 rows labelled\n" in result.stdout
    assert "\n1 call, 0 rows without a call, " in result.stdout
    assert "; 1 row in " in result.stdout


def test_a_finished_run_is_not_said_to_be_paid_again(write_task: WriteTask, tmp_path: Path) -> None:
    """The effort of rows that were there already is told as what it was when they were asked."""
    data = write_csv(tmp_path / "data.csv", ["meow", "woof"])
    with FaultServer(["cat", "dog"], knows) as server:
        task = write_task(extra=SERVED.format(server.api_base) + PRICES)
        first, second = (done(run(task, data, "--out", tmp_path / "out")).stdout for _ in range(2))
    (effort,) = re.findall(r"^(2 calls, .* tokens, \$\d\.\d+); 2 rows in ", first, re.MULTILINE)
    then = f"{effort} when they were asked; every row was there already, nothing was asked now\n"
    assert then in second


def test_predictions_name_the_rows(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """The predictions beside the labels have the identifiers of the file, as those of labelled rows do."""
    fake(knows)
    data = tmp_path / "data.csv"
    data.write_text("id,input\n007,meow\n,woof\n")
    done(run(write_task(), data, "--out", tmp_path / "out"))
    lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line).get("id") for line in lines] == ["007", None]


def test_a_single_column_stays_whole(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Semicolons cut neither the texts of the column that --text-column names, nor its name."""
    fake(knows)
    data = tmp_path / "data.csv"
    data.write_text("said; by whom\nmeow; Ana\nwoof; Ben\n")
    done(run(write_task(), data, "--out", tmp_path / "out", "--text-column", "said; by whom"))
    assert [row["said; by whom"] for row in labels(tmp_path / "out")] == ["meow; Ana", "woof; Ben"]


def test_json_values_stay_nested(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Rows of JSON Lines keep their values and keys, and get the probabilities on request."""
    fake(knows)
    rows = [{"input": "meow", "tags": ["a", {"b": 1}]}, {"input": "woof", "n": 2}]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done(run(write_task(), data, "--out", tmp_path / "out", "--distribution"))
    found = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert [
        {name: row[name] for name in row if name in given} for row, given in zip(found, rows, strict=True)
    ] == rows
    assert found[0]["probabilities"] == pytest.approx({"cat": 0.9, "dog": 0.1})


def test_parquet_keeps_types(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Columns of a Parquet file keep their types beside the labels; --text-column names that of the texts."""
    fake(knows)
    table = pa.table({"n": pa.array([1, 2], pa.int8()), "s": ["meow", None], "l": [[1], [2, 3]]})
    parquet.write_table(table, tmp_path / "data.parquet")
    done(run(write_task(), tmp_path / "data.parquet", "--out", tmp_path / "out", "--text-column", "s"))
    found = parquet.read_table(tmp_path / "out" / "labels.parquet")
    assert found.select(table.column_names).equals(table)
    assert found.column("label").to_pylist() == ["cat", None]
    assert found.column("outcome").to_pylist() == ["ok", "no text"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, read by others than calibrant."""
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return found
    if path.suffix == ".xlsx":
        names, *rows = openpyxl.load_workbook(path).worksheets[0].values
        return [dict(zip(names, row, strict=True)) for row in rows]
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    if path.suffix == ".jsonl":
        return list(map(json.loads, lines))
    return list(csv.DictReader(lines, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "xlsx"])
def test_format_can_be_chosen(write_task: WriteTask, fake: Fake, tmp_path: Path, ending: str) -> None:
    """--format writes rows of another kind of file."""
    fake(knows)
    data = tmp_path / "data.jsonl"
    data.write_text('{"input": "meow", "tags": [1]}\n')
    done(run(write_task(), data, "--out", tmp_path / "out", "--format", ending))
    path = tmp_path / "out" / f"labels.{ending}"
    assert path.exists()
    (row,) = rows_of(path)
    assert (row["tags"], row["label"]) == ([1] if ending == "jsonl" else "[1]", "cat")


FORMS = {
    "a German Excel": ("cp1252", b"", ";", "\r\n"),
    "UTF-8 for Excel": ("utf-8", codecs.BOM_UTF8, ";", "\r\n"),
    "UTF-16": ("utf-16-le", codecs.BOM_UTF16_LE, "\t", "\n"),
    "UTF-16 without a mark": ("utf-16-be", b"", ";", "\r\n"),
    "an old Mac": ("utf-8", b"", ",", "\r"),
    "named separator": ("utf-8", b"sep=;\n", ";", "\n"),
    "plain": ("utf-8", b"", ",", "\n"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_csv_files_come_back_as_they_were(
    write_task: WriteTask, fake: Fake, tmp_path: Path, form: tuple[str, bytes, str, str]
) -> None:
    """The labels have the separator, encoding, byte-order mark and line ends of the input."""
    encoding, begin, separator, end = form
    fake(knows)
    lines = [["id", "input"], ["007", "meow äh"], ["8", f"woof{separator} \u201e!\u201c"]]
    table = io.StringIO()
    csv.writer(table, delimiter=separator, lineterminator=end).writerows(lines)
    (tmp_path / "data.csv").write_bytes(begin + table.getvalue().encode(encoding))
    done(run(write_task(), tmp_path / "data.csv", "--out", tmp_path / "out"))
    found = (tmp_path / "out" / "labels.csv").read_bytes()
    assert found.startswith(begin)
    text = found[len(begin) :].decode(encoding)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    assert [row[:3] for row in rows] == [["id", "input", "label"], [*lines[1], "cat"], [*lines[2], "dog"]]
    assert text.count("\r\n") == (3 if end == "\r\n" else 0)
    assert text.count("\r") == (0 if end == "\n" else 3)


@pytest.mark.parametrize("name", ["Text\nof it", 'a 5" screen'])
def test_line_ends_come_back_whatever_is_in_the_header(
    write_task: WriteTask, fake: Fake, tmp_path: Path, name: str
) -> None:
    """A line feed within the name of a column is no line end, and a lone quote in one hides none."""
    fake(knows)
    header = f'"{name}"' if "\n" in name else name
    (tmp_path / "data.csv").write_bytes(f"{header},input\r\n7,meow\r\n8,woof\r\n".encode())
    done(run(write_task(), tmp_path / "data.csv", "--out", tmp_path / "out"))
    found = (tmp_path / "out" / "labels.csv").read_bytes().decode()
    assert found.count("\r\n") == 3
    assert next(csv.reader(io.StringIO(found, newline="")))[:2] == [name, "input"]


def test_labels_that_an_encoding_lacks_are_written_in_utf8(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A label that Windows-1252 lacks makes the file UTF-8 with a byte-order mark, which is said."""
    model = FakeClient(["dobrý č", "no"], {"meow": ("dobrý č", 0.9)}, field="answer")
    classifier = Classifier(model=model, labels=["dobrý č", "no"], field="answer")
    (tmp_path / "data.csv").write_bytes("id;input\n007;meow ä\n".encode("cp1252"))
    BatchEvaluator(classifier).label(tmp_path / "data.csv", out=tmp_path / "out")
    found = (tmp_path / "out" / "labels.csv").read_bytes()
    assert found.decode("utf-8-sig").splitlines()[1].startswith("007;meow ä;dobrý č;0.9;")
    assert found.startswith(codecs.BOM_UTF8)
    assert "windows-1252, the encoding of the input, has no 'č'" in caplog.text
    assert [path.name for path in (tmp_path / "out").glob(".labels*")] == []


def test_excel_comes_back_as_excel(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Cells keep values and number formats; a text that looks like a formula stays text; nothing is asked twice."""
    client = fake(knows)
    book = openpyxl.Workbook()
    book.active.append(["id", "input", "nr", "when"])
    book.active.append(["00417", "=meow", 417, dt.datetime(2026, 1, 2)])  # noqa: DTZ001 (Excel knows no zones)
    book.active.append([])
    book.active.append([18, "woof", 0.5, None])
    book.active["B2"].data_type = "s"
    book.active["C2"].number_format = "00000"
    book.save(tmp_path / "data.xlsx")
    for _ in range(2):
        done(run(write_task(), tmp_path / "data.xlsx", "--out", tmp_path / "out"))
    sheet = openpyxl.load_workbook(tmp_path / "out" / "labels.xlsx").active
    header, first, second = ([cell.value for cell in row] for row in sheet.iter_rows())
    assert header[:6] == ["id", "input", "nr", "when", "label", "confidence"]
    assert first[:6] == ["00417", "=meow", 417, dt.datetime(2026, 1, 2), "cat", 0.9]  # noqa: DTZ001
    assert second[:6] == [18, "woof", 0.5, None, "dog", 0.8]
    assert (sheet["A2"].data_type, sheet["B2"].data_type, sheet["C2"].number_format) == ("s", "s", "00000")
    assert len(client.requests) == 2


def test_texts_that_a_cell_cannot_hold_are_said(
    write_task: WriteTask, fake: Fake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In an Excel file control characters become a mark, and texts of more than 32,767 characters are cut."""
    fake(knows)
    data = write_csv(tmp_path / "data.csv", ["meow\x01", "woof" * 9_000])
    done(run(write_task(), data, "--out", tmp_path / "out", "--format", "xlsx"))
    sheet = openpyxl.load_workbook(tmp_path / "out" / "labels.xlsx").active
    assert (sheet["B2"].value, len(sheet["B3"].value)) == ("meow\ufffd", 32_767)
    assert "1 text is longer than the 32,767 characters" in caplog.text


@pytest.mark.parametrize("cached", [True, False])
def test_answers_outlive_a_change_of_the_data(
    write_task: WriteTask, fake: Fake, tmp_path: Path, *, cached: bool
) -> None:
    """If a row changes during a run, the command that the message names asks about that row alone."""
    data = write_csv(tmp_path / "data.csv", [f"{n} meow" for n in range(6)])

    def change(text: str, prompt: str) -> Answer:
        if text.startswith("5"):
            data.write_text(data.read_text().replace("2 meow", "2 woof"))
        return knows(text, prompt)

    client = fake(change)
    arguments = ("--concurrency", "1", *([] if cached else ["--no-cache"]))
    stopped = run(write_task(), data, "--out", tmp_path / "out", *arguments)
    said = stopped.stderr
    assert stopped.exit_code == 2
    assert "row 3 of the input has another text" in said
    again = refusal(run(write_task(), data, "--out", tmp_path / "out", *arguments))
    assert "than row 3 of the input has now" in again
    journal = tmp_path / "out" / "journal.sqlite"
    keeping = (
        "with a new --out: the cache has" if cached else f"and with --cache {journal} instead of --no-cache"
    )
    assert keeping in said
    assert keeping in again
    assert len(client.requests) == 6
    more = [] if cached else ["--cache", journal]
    done(run(write_task(), data, "--out", tmp_path / "new", *more))
    assert len(client.requests) == 7
    assert [row["label"] for row in labels(tmp_path / "new")] == ["cat", "cat", "dog", "cat", "cat", "cat"]


def test_a_shorter_file_needs_no_new_answers(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Rows that are gone are said, and a new directory takes the answers of the others from the cache."""
    client = fake(knows)
    data = write_csv(tmp_path / "data.csv", ["1 meow", "2 meow", "3 woof"])
    done(run(write_task(), data, "--out", tmp_path / "out"))
    write_csv(data, ["1 meow", "3 woof"])
    assert "with a new --out" in refusal(run(write_task(), data, "--out", tmp_path / "out"))
    done(run(write_task(), data, "--out", tmp_path / "new"))
    assert len(client.requests) == 3


def test_rows_without_text_are_not_asked(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """An empty cell is counted, has no label and costs no call, also when the run goes on."""
    client = fake(knows)
    data = write_csv(tmp_path / "data.csv", ["", "meow", "  ", "woof", ""])
    arguments = (write_task(), data, "--out", tmp_path / "out", "--no-cache")
    found = json_of(run(*arguments, "--json"))
    assert (found["rows"], found["rows_without_text"], found["labels"]) == (5, 3, {"cat": 1, "dog": 1})
    assert [row["label"] for row in labels(tmp_path / "out")] == ["", "cat", "", "dog", ""]
    assert [row["outcome"] for row in labels(tmp_path / "out")][:2] == ["no text", "ok"]
    done(run(*arguments))
    assert len(client.requests) == 2


def test_empty_rows_hide_no_failures(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A model that fails ends the run after so many rows, though rows without a text lie between them."""

    def fail(_text: str, _prompt: str) -> Answer:
        raise ProviderError("no route to it", provider="fake")

    fake(fail)
    data = write_csv(tmp_path / "data.csv", ["meow", ""] * 100)
    result = run(write_task(), data, "--out", tmp_path / "out", "--no-cache", "--concurrency", "1")
    assert result.exit_code == 1
    assert "The last 20 rows all failed" in result.stderr


def test_shares_of_several_labels_are_of_the_rows(
    write_task: WriteTask, tmp_path: Path, use_model: Callable[..., Any]
) -> None:
    """Each label's share is that of the rows that hold it, so that they may sum to more than all."""
    labels = MultiLabels(["cat", "dog"])
    answers = {"both": ('["cat", "dog"]', 0.9), "meow": ('["cat"]', 0.9)}
    use_model(FakeClient(labels, answers, field="labels"), "fake/sets")
    toml = 'name = "pets"\nprompt = "Which?"\nfield = "labels"\nmulti_label = true\nlabels = ["cat", "dog"]\n'
    task = write_task(toml=toml, extra='[model]\nname = "fake/sets"\n')
    data = write_csv(tmp_path / "data.csv", ["both", "meow", "both", "meow"])
    said = done(run(task, data, "--out", tmp_path / "out")).stdout
    assert "cat 4 (100.0 %), dog 2 (50.0 %)" in said


def test_rows_without_label_are_said(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """The first lines say how many rows have a label, and count empty cells as the file does."""
    fake(knows)
    data = write_csv(tmp_path / "data.csv", ["", "meow", "woof"])
    lines = done(run(write_task(), data, "--out", tmp_path / "out")).stdout.splitlines()
    assert lines[0] == "3 of 3 rows done, 2 of them with a label"
    assert lines[1].split(maxsplit=1)[1] == "ok 2, error 0, refusal 0, unparsed 0, no text 1"
    assert "labels           cat 1 (50.0 %), dog 1 (50.0 %)" in lines
    assert "answered by      fake 2" in lines
    assert f"  calibrant label RUN {data}" in lines


@pytest.mark.parametrize("of_run", [False, True])
def test_rows_that_all_failed_get_no_words_on_decisions(
    write_task: WriteTask, fake: Fake, tmp_path: Path, of_run: bool
) -> None:
    """Where no row has a label there is nothing to decide on, whether or not the source has a threshold."""

    def fail(_text: str, _prompt: str) -> Answer:
        return ProviderError("no route.", provider="fake")

    fake(unsure, name="local/smollm2-135m")
    source = evaluated(write_task, tmp_path) if of_run else write_task()
    fake(fail, name="local/smollm2-135m")
    data = write_csv(tmp_path / "data.csv", ["mew", "wuff"])
    result = run(source, data, "--out", tmp_path / "labelled", "--no-cache")
    assert result.exit_code == 1
    assert "2 of 2 rows done, 0 of them with a label" in result.stdout
    assert "decisions" not in result.stdout


def test_a_row_without_a_label_is_no_cascade(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Of a run that nobody certified, one row that failed does not hide how to ask for a promise."""

    def fails_once(text: str, prompt: str) -> Answer:
        return ProviderError("busy.", provider="fake") if text == "hush" else unsure(text, prompt)

    fake(unsure, name="local/smollm2-135m")
    done(command("evaluate")(write_task(test=unlike_animals(20)), "--out", tmp_path / "run"))
    fake(fails_once, name="local/smollm2-135m")
    data = write_csv(tmp_path / "data.csv", ["hush", "meow", "woof"])
    printed = run(tmp_path / "run", data, "--out", tmp_path / "labelled", "--no-cache").stdout
    assert "cascade" not in printed
    assert "No decisions, as no promise was asked for" in printed
    assert [row["decision"] for row in labels(tmp_path / "labelled")] == ["review", "", ""]


@pytest.mark.parametrize("form", ["csv", "parquet", "xlsx"])
def test_changed_file_is_kept(
    write_task: WriteTask, fake: Fake, tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    """A file of labels that was corrected by hand is renamed, once, before it is written anew."""
    fake(knows)
    data = write_csv(tmp_path / "data.csv", ["meow"])
    arguments = (write_task(), data, "--out", tmp_path / "out", "--format", form)
    for _ in range(2):
        done(run(*arguments))
    assert not caplog.records
    path = tmp_path / "out" / f"labels.{form}"
    assert list(path.parent.glob("labels.*")) == [path]
    beginning = path.read_bytes()[:4]
    for corrected in (b"corrected", b"again"):
        path.write_bytes(corrected)
        for _ in range(2):
            done(run(*arguments))
    assert path.read_bytes()[:4] == beginning
    kept = [path.with_name(f"labels.{name}.{form}").read_bytes() for name in ("former", "former1")]
    assert (kept, len(caplog.records)) == ([b"corrected", b"again"], 2)


def test_a_failed_write_keeps_the_former_file(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Where the input has changed, the labels of the former one stay as they are."""
    fake(knows)
    data = write_csv(tmp_path / "data.csv", ["meow", "woof"])
    arguments = (write_task(), data, "--out", tmp_path / "out")
    done(run(*arguments))
    path = tmp_path / "out" / "labels.csv"
    written = path.read_bytes()
    write_csv(data, ["meow", "another woof"])
    refusal(run(*arguments))
    assert (path.read_bytes(), list(path.parent.glob("labels.*"))) == (written, [path])


# --- sources ------------------------------------------------------------------------------------


def evaluated(write_task: WriteTask, tmp_path: Path, count: int = 60, target: float | None = 0.8) -> Path:
    """Return the directory of a calibrated run, with a certificate unless the target is None."""
    out = tmp_path / "run"
    done(command("evaluate")(write_task(test=unlike_animals(count)), "--out", out, "--no-cache"))
    wanted = () if target is None else ("--target-accuracy", target)
    done(command("calibrate")(out, *wanted, "--out", out))
    return out


def unsure(text: str, _prompt: str) -> Answer:
    """Answer as `knows`, less sure of some, and least sure where it is wrong."""
    is_doubtful = any(word.isdigit() and int(word) % 4 == 0 for word in text.split())
    sure = 0.6 if is_doubtful else 0.65 + 0.25 * ((sum(text.encode()) % 7) / 7)
    return ("cat" if "meow" in text else "dog"), sure


def test_run_labels_as_its_bundle(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A run gives the file that its bundle gives, and the decisions and confidence of the bundle."""
    fake(unsure, name="local/smollm2-135m")
    source = evaluated(write_task, tmp_path)
    done(command("export")(source, "--out", tmp_path / "bundle"))
    data = write_csv(tmp_path / "data.csv", [row["input"] for row in animals(12, start=50)])
    for name, of in (("one", source), ("two", tmp_path / "bundle")):
        result = done(run(of, data, "--out", tmp_path / name, "--no-cache"))
        assert ", as the model gives it, before calibration" in result.stdout
    found = labels(tmp_path / "one")
    assert found == labels(tmp_path / "two")
    assert {row["decision"] for row in found} == {"accepted", "review"}
    bundle = Tuned.load(tmp_path / "bundle")
    with load(bundle) as classifier:
        for row in found:
            decision = bundle.decide(classifier.classify(row["input"]))
            name = "accepted" if decision.accepted else "review"
            assert (row["decision"], float(row["confidence"])) == (name, decision.calibrated)


def test_suggestions_accept_nothing_unless_asked(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A suggested threshold decides nothing; --accept-suggested accepts by it, and says that nothing is promised."""
    fake(unsure, name="local/smollm2-135m")
    source = evaluated(write_task, tmp_path, target=None)
    done(command("export")(source, "--out", tmp_path / "bundle"))
    data = write_csv(tmp_path / "data.csv", [row["input"] for row in animals(12, start=50)])
    for of in (source, tmp_path / "bundle"):
        out = tmp_path / f"plain {of.name}"
        result = done(run(of, data, "--out", out, "--no-cache"))
        named = source if of is source else "RUN"
        assert (
            f"  calibrant calibrate {named} --target-accuracy 0.9 --out {named}" in result.stdout.splitlines()
        )
        assert "--accept-suggested would accept from the suggested threshold" in result.stdout
        assert {row["decision"] for row in labels(out)} == {""}
    result = done(run(source, data, "--out", tmp_path / "asked", "--no-cache", "--accept-suggested"))
    assert "as --accept-suggested says: nothing is promised)" in result.stdout
    assert {row["decision"] for row in labels(tmp_path / "asked")} == {"accepted", "review"}
    assert json_of(command("classify")(source, "--text", "meow", "--json"))["decision"] is None


def test_accepting_by_a_suggestion_needs_one(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """--accept-suggested is refused beside a certificate, which it would weaken, and with a task file."""
    fake(unsure, name="local/smollm2-135m")
    data = write_csv(tmp_path / "data.csv", ["meow"])
    asked = (data, "--out", tmp_path / "out", "--accept-suggested")
    assert "got a certified one, which decides" in refusal(run(evaluated(write_task, tmp_path), *asked))
    assert "got a task file, which has no thresholds" in refusal(run(write_task(), *asked))


def equally_sure(text: str, _prompt: str) -> Answer:
    """Answer as `knows`, right in three rows of four, with the same confidence everywhere."""
    return ("cat" if "meow" in text else "dog"), 0.6


def test_every_command_gives_the_same_reason(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Without a certificate, `calibrate`, `optimize` and `label` offer the same best promise."""
    fake(equally_sure, name="local/smollm2-135m")
    searched = tmp_path / "run"
    rows = {
        split: unlike_animals(60, start=start)
        for split, start in (("train", 0), ("validation", 60), ("test", 120))
    }
    budget = ("--max-metric-calls", 150, "--minibatch-size", 4)
    task = write_task(**rows, extra='[head]\nfit = "off"\n')
    result = done(command("optimize")(task, "--out", searched, *budget, "--prior-correction", "off"))
    first = next(line for line in result.stdout.splitlines() if line.startswith("Nothing certified: "))
    at = result.stdout.splitlines().index(first)
    reason = result.stdout.splitlines()[at : at + 3]
    assert reason[1].startswith("These rows do bear a promise of 0.")
    assert reason[2].startswith(f"  calibrant calibrate {searched} --target-accuracy 0.")
    data = write_csv(tmp_path / "data.csv", ["meow"])
    assert "\n".join(reason) in done(run(searched, data, "--out", tmp_path / "out")).stdout
    asked = command("calibrate")(searched, "--target-accuracy", 0.9, "--delta", 0.1, "--out", searched)
    again = done(asked).stdout  # another test of these rows, so that the promise is less certain
    assert reason[1].split(", with probability")[0] in again
    assert reason[2] in again


def test_other_commands_take_bundles(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """`classify` and `evaluate` open a run as `label` does; the text column of the task comes along."""
    fake(unsure, name="local/smollm2-135m")
    task = write_task(
        test=[{"message": row["input"], "answer": row["answer"]} for row in animals(8)],
        toml='name = "animals"\nlabels = ["cat", "dog"]\nfield = "category"\nprompt = "Which animal?"\n'
        '[data]\ninput_column = "message"\ntest = "test.jsonl"\n',
    )
    source = tmp_path / "run"
    done(command("evaluate")(task, "--out", source))
    assert done(command("classify")(source, "--text", "meow")).stdout.startswith("cat\t")
    asked = json_of(command("classify")(source, "--text", "meow", "--json"))
    assert (asked["label"], asked["decision"]) == ("cat", None)
    data = tmp_path / "test.jsonl"
    done(command("evaluate")(source, "--file", data, "--out", tmp_path / "again"))
    assert prediction_rows(source)[3]["label"] == prediction_rows(tmp_path / "again")[3]["label"]
    done(run(source, data, "--out", tmp_path / "out"))
    message = refusal(run(source, data, "--out", tmp_path / "other", "--prompt", data))
    assert "which has its own prompt" in message


def test_labels_are_no_source(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Labels without answers, which lost the thresholds, are refused; a folder with a task file names that."""
    fake(knows)
    data = write_csv(tmp_path / "data.csv", ["meow"])
    task = write_task()
    done(run(task, data, "--out", tmp_path / "out"))
    exported = command("export")(tmp_path / "out", "--out", tmp_path / "b")
    for refused in (run(tmp_path / "out", data, "--out", tmp_path / "b"), exported):
        assert "name what they were labelled with" in refusal(refused)
    assert f"name what is in it: {task}" in refusal(run(task.parent, data, "--out", tmp_path / "b"))


def test_rows_unlike_the_certificate_are_reviewed(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """After a warning of drift no row is accepted, unless --accept-drift says so; one file is written."""
    fake(unsure, name="local/smollm2-135m")
    source = evaluated(write_task, tmp_path)
    cats = write_csv(tmp_path / "cats.csv", [f"meow {number}" for number in range(60)])
    found = json_of(run(source, cats, "--out", tmp_path / "a", "--json"))
    assert (found["decisions"], found["file_promise"]) == ({"review": 60}, None)
    assert {row["decision"] for row in labels(tmp_path / "a")} == {"review"}
    assert [path.name for path in (tmp_path / "a").glob("labels*")] == ["labels.csv"]
    result = done(run(source, cats, "--out", tmp_path / "a"))
    assert "decisions: review 60" in result.stdout
    assert "(as they are unlike the rows of the certificate)" in result.stdout
    assert ": none is accepted (--accept-drift accepts them all the same)" in result.stdout
    accepted = json_of(run(source, cats, "--out", tmp_path / "b", "--accept-drift", "--json"))
    assert accepted["decisions"]["accepted"] > 0
    assert (accepted["drift"]["labels_drifted"], accepted["file_promise"]) == (True, None)
    shown = done(run(source, cats, "--out", tmp_path / "b", "--accept-drift")).stdout
    assert "which promises nothing of these rows)" in shown
    assert "with probability" not in shown


def test_the_promise_on_this_file_is_the_lower_one(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Of the accepted rows of a file, as many are right as chance lets a true certificate promise: 0.05 are not."""
    fake(unsure, name="local/smollm2-135m")
    source = evaluated(write_task, tmp_path)
    data = write_csv(tmp_path / "data.csv", [row["input"] for row in unlike_animals(60)])
    found = json_of(run(source, data, "--out", tmp_path / "out", "--json"))
    promise, accepted = found["file_promise"], found["decisions"]["accepted"]
    assert (promise["accepted"], promise["probability"]) == (accepted, pytest.approx(0.9))
    least = promise["least_right"]
    assert binom.cdf(least - 1, accepted, 0.8) <= 0.05 < binom.cdf(least, accepted, 0.8)
    line = f"Of the {accepted} accepted in this file, at least {least} ("
    assert line in done(run(source, data, "--out", tmp_path / "out")).stdout


def test_equal_texts_of_a_file_are_right_or_wrong_together(
    write_task: WriteTask, fake: Fake, tmp_path: Path
) -> None:
    """A file that holds every text three times promises no greater share than one that holds it once."""
    fake(unsure, name="local/smollm2-135m")
    source = evaluated(write_task, tmp_path)
    texts = [row["input"] for row in unlike_animals(60)]
    once = write_csv(tmp_path / "once.csv", texts)
    thrice = write_csv(tmp_path / "thrice.csv", [*texts, *texts, *(text.upper() for text in texts)])
    fewer = json_of(run(source, once, "--out", tmp_path / "a", "--json"))["file_promise"]
    more = json_of(run(source, thrice, "--out", tmp_path / "b", "--json"))["file_promise"]
    assert more == fewer | {"accepted": 3 * fewer["accepted"], "least_right": 3 * fewer["least_right"]}
    alike = f"{fewer['texts']} of which differ (equal texts and near-duplicates are one)"
    line = f"accepted in this file, {alike}, at least {more['least_right']} ("
    assert line in done(run(source, thrice, "--out", tmp_path / "b")).stdout


def test_near_duplicates_of_a_file_are_right_or_wrong_together(
    write_task: WriteTask, fake: Fake, tmp_path: Path
) -> None:
    """A file of thirty templates, each filled twenty times, promises no greater share than thirty rows do."""
    fake(unsure, name="local/smollm2-135m")
    source = evaluated(write_task, tmp_path)
    texts = [
        f"{row['input']} {' '.join(spelled(1000 + 10 * number + place) for place in range(8))}"
        for number, row in enumerate(unlike_animals(30))
    ]
    filled = [f"{text} {spelled(9000 + place)}" for text in texts for place in range(20)]
    data = write_csv(tmp_path / "filled.csv", filled)
    found = json_of(run(source, data, "--out", tmp_path / "out", "--json"))["file_promise"]
    assert found["accepted"] > 300
    assert found["texts"] <= 30
    assert found["least_right"] / found["accepted"] <= binom.ppf(0.05, 30, 0.8) / 30
    line = f" {found['texts']} of which differ (equal texts and near-duplicates are one), at least "
    assert line in done(run(source, data, "--out", tmp_path / "out")).stdout


def test_drift_is_warned_of(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Labels and confidence are compared with the run's: unlike rows are warned of, with numbers, like ones are not."""
    fake(unsure, name="local/smollm2-135m")
    source = evaluated(write_task, tmp_path)
    same = write_csv(tmp_path / "same.csv", [row["input"] for row in unlike_animals(60)])
    cats = write_csv(tmp_path / "cats.csv", [f"meow {number}" for number in range(60)])
    assert "drift of" not in done(run(source, same, "--out", tmp_path / "a")).stdout
    shown = done(run(source, same, "--out", tmp_path / "a", "--watch-drift")).stdout
    assert (
        "no drift of the labels against 60 of the run: distance 0.000, p = 1; cat 50.0 % after 50.0 %,"
        in shown
    )
    assert "no drift of the confidence: distance 0.000, p = 1; mean 0.718 after 0.718\n" in shown
    warned = done(run(source, cats, "--out", tmp_path / "b")).stdout
    assert "These rows are unlike" in warned
    assert f"  calibrant review {tmp_path / 'b'} --certify --target 0.8\n" in warned
    found = json_of(run(source, cats, "--out", tmp_path / "b", "--json"))["drift"]
    assert found["labels_drifted"]
    assert found["label_distance"] == pytest.approx(0.5)
    assert found["shares"]["cat"] == pytest.approx([0.5, 1.0])
    fake(lambda text, _: ("cat" if "meow" in text else "dog", 0.99), name="local/smollm2-135m")
    found = json_of(run(source, same, "--out", tmp_path / "c", "--watch-drift", "--no-cache", "--json"))[
        "drift"
    ]
    assert (found["labels_drifted"], found["confidence_drifted"]) == (False, True)
    fake(lambda *_: "bird", name="local/smollm2-135m")
    lost = run(source, cats, "--out", tmp_path / "lost", "--watch-drift", "--no-cache")
    assert "no drift of the labels against 60 of the run" in lost.stdout
    assert "no drift of the confidence: too few rows" in lost.stdout


def test_watching_needs_a_history(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """A task file has none: --watch-drift is refused before any call, and its JSON has no drift."""
    client = fake(knows)
    data = write_csv(tmp_path / "data.csv", ["meow"])
    assert "has no history" in refusal(run(write_task(), data, "--out", tmp_path / "a", "--watch-drift"))
    assert client.requests == []
    assert json_of(run(write_task(), data, "--out", tmp_path / "b", "--json"))["drift"] is None


# --- going on -----------------------------------------------------------------------------------


def test_appended_rows_are_labelled(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Rows that were appended are asked, earlier ones are not; a changed one ends the run by its number."""
    client = fake(knows)
    data, task = tmp_path / "data.csv", write_task()
    arguments = (task, data, "--out", tmp_path / "out", "--no-cache")
    done(run(*arguments[:1], write_csv(data, ["meow 1", "woof 2"]), *arguments[2:]))
    write_csv(data, ["meow 1", "woof 2", "meow 3"])
    done(run(*arguments))
    assert len(client.requests) == 3
    assert [row["label"] for row in labels(tmp_path / "out")] == ["cat", "dog", "cat"]
    write_csv(data, ["meow 1", "woof CHANGED", "meow 3"])
    assert "than row 2 of the input has now" in refusal(run(*arguments))
    assert [row["input"] for row in labels(tmp_path / "out")] == ["meow 1", "woof 2", "meow 3"]


def test_an_early_end_keeps_a_prefix(write_task: WriteTask, tmp_path: Path) -> None:
    """After Ctrl-C labels.partial.csv holds the first rows; the same command asks the others alone."""
    out, rows = tmp_path / "out", 60
    data = write_csv(tmp_path / "data.csv", [row["input"] for row in animals(rows)])
    with FaultServer(["cat", "dog"], knows, latency=0.05) as server:
        task = write_task(extra=SERVED.format(server.api_base))
        arguments = ("label", task, data, "--out", out, "--concurrency", 4, "--no-cache")
        with process(COMMAND, *arguments) as running:
            wait_for(lambda: sum(server.counts.values()) >= 10, running)
            running.send_signal(signal.SIGINT)
            stdout, stderr = running.communicate(timeout=30)
        assert running.returncode == 130, stderr
        saved = len(labels(out, "labels.partial.csv"))
        assert 0 < saved < rows
        assert f"{saved} of 60 rows labelled" in stdout
        with process(COMMAND, *arguments) as running:
            assert running.wait(60) == 0, running.communicate()[1]
        assert sum(server.counts.values()) == rows
    assert [row["id"] for row in labels(out)] == [f"{number:03d}" for number in range(rows)]
    assert not (out / "labels.partial.csv").exists()


def test_a_killed_run_labels_every_id_once(write_task: WriteTask, tmp_path: Path) -> None:
    """After two kills every id is there once, in order, and few calls are repeated."""
    out, rows = tmp_path / "out", 300
    data = write_csv(tmp_path / "data.csv", [row["input"] for row in animals(rows)])
    with FaultServer(["cat", "dog"], knows, latency=0.01) as server:
        task = write_task(extra=SERVED.format(server.api_base))
        arguments = ("label", task, data, "--out", out, "--concurrency", 8, "--no-cache")
        for asked in (80, 180):
            with process(COMMAND, *arguments) as running:
                wait_for(lambda asked=asked: sum(server.counts.values()) >= asked, running)
                running.kill()
                running.wait()
        with process(COMMAND, *arguments) as running:
            assert running.wait(60) == 0, running.communicate()[1]
        assert sum(server.counts.values()) <= rows + 2 * (8 + 64)
    assert [row["id"] for row in labels(out)] == [f"{number:03d}" for number in range(rows)]
    assert not list(out.glob(".labels*"))


@pytest.mark.parametrize("scoring", ["auto", "decode"])
def test_a_mended_key_needs_no_other_directory(write_task: WriteTask, tmp_path: Path, scoring: str) -> None:
    """After a refused key, which labels nothing, the same command with the right key labels all rows."""
    data = write_csv(tmp_path / "data.csv", ["meow", "woof"])
    with FaultServer(["cat", "dog"], knows, api_key="right") as server:
        settings = SERVED.format(server.api_base).replace("[model]", f'[model]\nscoring = "{scoring}"')
        refused = run(write_task(extra=settings), data, "--out", tmp_path / "out", "--no-cache")
        assert refused.exit_code == 1, refused.output
        assert "401" in refused.stderr
        mended = write_task(extra=settings.replace('"none"', '"right"'))
        done(run(mended, data, "--out", tmp_path / "out", "--no-cache"))
    assert [row["label"] for row in labels(tmp_path / "out")] == ["cat", "dog"]


def test_lost_output_leaves_no_traceback(write_task: WriteTask, tmp_path: Path) -> None:
    """Standard output that is closed early, or full, costs no row and no traceback; if full, the exit code is 1."""
    data = write_csv(tmp_path / "data.csv", ["meow", "woof"])
    with FaultServer(["cat", "dog"], knows) as server:
        task = write_task(extra=SERVED.format(server.api_base))
        with process(COMMAND, "label", task, data, "--out", tmp_path / "out") as running:
            running.stdout.close()  # type: ignore[union-attr]
            errors = running.stderr.read()  # type: ignore[union-attr]
            assert running.wait(30) == 0
        full = f"import sys; sys.stdout = open('/dev/full', 'w'); {COMMAND}"
        with process(full, "label", task, data, "--out", tmp_path / "full") as running:
            assert running.wait(30) == 1
            said = running.stderr.read().splitlines()  # type: ignore[union-attr]
    assert "Traceback" not in errors
    assert [line for line in said if not line.startswith("label: ")] == [
        "error: expected room for the output, got: No space left on device: make room, and run the same command again."
    ]
    assert len(labels(tmp_path / "out")) == len(labels(tmp_path / "full")) == 2


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("id,input\n1,meow\n", ("--out", "{folder}"), "an output directory apart from the input"),
        ("id,input\n1,meow\n", ("--out", "{out}", "--text-column", "body"), "got the columns id, input"),
        ("id,input\n1,\n", ("--out", "{out}"), "a text in at least one row"),
        ("input,label,calibrant_label\nmeow,1,2\n", ("--out", "{out}"), "without a column 'calibrant_label'"),
        (
            "id,input\n1,meow\n",
            ("--out", "{out}", "--format", "xml"),
            "one of csv, tsv, jsonl, parquet, xlsx",
        ),
        ("id,input\n1,meow\n", ("--out", "{out}", "--engine", "batch", "--max-cost", "1"), "no --max-cost"),
    ],
)
def test_bad_input_asks_nothing(
    write_task: WriteTask, fake: Fake, tmp_path: Path, content: str, arguments: Sequence[str], message: str
) -> None:
    """Bad input ends with exit code 2 and one line, before any call."""
    client = fake(knows)
    folder = tmp_path / "data"
    folder.mkdir()
    data = folder / "data.csv"
    data.write_text(content)
    given = [word.format(folder=folder, out=tmp_path / "out") for word in arguments]
    assert message in refusal(run(write_task(), data, *given))
    assert client.requests == []


def test_swapped_arguments_show_the_order(write_task: WriteTask, tmp_path: Path) -> None:
    """Rows in the source's place are named, with the command in the right order, or what makes a task file."""
    task, data = write_task(), write_csv(tmp_path / "data.csv", ["meow"])
    assert f"got the rows first: run calibrant label {task} {data} --out o" in refusal(
        run(data, task, "--out", "o")
    )
    assert f"calibrant init {data} writes a task file" in refusal(run(data, data, "--out", "o"))


def test_pipes_and_other_folders_are_refused(write_task: WriteTask, fake: Fake, tmp_path: Path) -> None:
    """Rows of a pipe cannot be read again, and a folder with neither bundle nor run is named."""
    fake(knows)
    data = write_csv(tmp_path / "data.csv", ["meow"])
    assert "got a pipe or a directory" in refusal(run(write_task(), "-", "--out", tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    assert "a bundle or the directory of a run" in refusal(
        run(tmp_path / "empty", data, "--out", tmp_path / "out")
    )


# --- from Python --------------------------------------------------------------------------------


def test_texts_are_labelled_in_memory() -> None:
    """Without a directory the predictions come back, one for each text."""
    fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)})
    found: Any = BatchEvaluator(Classifier(model=fake, labels=["cat", "dog"], field="category")).label(
        iter(["it purrs", None])
    )
    assert [prediction.label for prediction in found.predictions] == ["cat", None]
    assert (found.metrics.accuracy, found.metrics.labels) == (None, {"cat": 1})
    assert found.written is None
