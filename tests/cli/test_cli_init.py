"""Tests of ``calibrant init``: columns, labels, splits, warnings and the task file."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openpyxl
import pytest
import scipy.stats

from calibrant.calibration import certify_threshold
from calibrant.cli import app
from calibrant.clients._weights import SERVERS
from calibrant.core import Task
from calibrant.testing import FakeClient
from command_line import command, done, json_of, refusal, spelled
from fault_server import FaultServer

run = command("init")

APART = (
    "too large for one split, they stand in several splits and make results look better. "
    "Test on rows of another day."
)
THINGS = ("kettle", "lamp", "tent", "chair", "phone")
SAID = {"billing": "You charged too much for my {}", "delivery": "Where is the parcel with my {}"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_keys: None) -> Path:  # noqa: ARG001
    """Work in an empty folder, without keys in the environment."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Terminal(io.StringIO):
    """Text that takes itself for a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def messages(count: int = 60) -> list[dict[str, str]]:
    """Return rows with an id and a date, in odd columns."""
    rows = []
    for number in range(count):
        label = list(SAID)[number % 3 % 2]
        text = f"{SAID[label].format(THINGS[number % 5])}, order {number * 37} of {number} October"
        rows.append(
            {"No.": f"T{number // 2}", "came in": f"{number % 28 + 1}.10.2025", "said": text, "desk": label}
        )
    return rows


def write(
    rows: Sequence[dict[str, Any]], name: str = "mail.csv", *, header: bool = True, **options: Any
) -> Path:
    """Write rows as CSV with a separator and encoding."""
    encoding = options.pop("encoding", "utf-8")
    with Path(name).open("w", newline="", encoding=encoding) as file:
        lines = csv.DictWriter(file, list(rows[0]), **options)
        if header:
            lines.writeheader()
        lines.writerows(rows)
    return Path(name)


def test_a_task_file_is_written(here: Path) -> None:
    """Columns are found by what they hold, and the task file reads with the splits that were printed."""
    data = write(messages(), delimiter=";", encoding="utf-16")
    result = done(run(data))
    assert "  text   'said'  12 words on average, 100% of the texts differ" in result.stdout
    assert "  label  'desk'  2 values, repeated 30 times on average" in result.stdout
    assert "\n\n2 labels\n  billing   40  67%\n  delivery  20  33%\n\n" in result.stdout
    assert "Rows: train 24, validation 12, test 24" in result.stdout
    assert f"\nwarning: 60 near-duplicates in 2 groups, such as lines 2 and 4: {APART}\n" in result.stdout
    assert result.stdout.count("warning") == 1
    assert "\nNext:\n  calibrant optimize mail/task.toml --out mail/run\n" in result.stdout
    task = Task.from_file(here / "mail" / "task.toml")
    assert (list(task.labels), task.columns.input, task.columns.answer) == (
        ["billing", "delivery"],
        "said",
        "desk",
    )
    assert [len(task.train), len(task.validation), len(task.test)] == [24, 12, 24]
    assert task.prompt == (
        "Classify the following text: choose the desk that fits it best. The desk is one of: billing, delivery."
    )


def test_the_next_commands_run(fake: Callable[..., FakeClient]) -> None:
    """The printed command for a search runs as it stands, on the file as it was read."""
    fake(lambda text, _: ("billing" if "charged" in text else "delivery", 0.9), field="label")
    rows = [{"said": row["said"], "desk": row["desk"], "by": "Ana"} for row in messages(30)]
    data = write(rows, "own mail.csv", header=False, delimiter=";", encoding="latin-1")
    found = json_of(run(data, "--json"))
    assert found["next"][1] == "calibrant label 'own mail/run' NEW.csv --out 'own mail/labelled'"
    assert (found["header"], found["text"]["column"], found["label"]["column"]) == (False, "1", "2")
    words = shlex.split(found["next"][0])[1:]
    result = done(command()(*words, "--max-metric-calls", 20, "--minibatch-size", 3))
    assert "own mail: 12 test rows" in result.stdout
    record = json.loads(Path("own mail/run/task.json").read_text())
    assert record["tasks"][0]["columns"]["input"] == "1"


@pytest.mark.parametrize("name", ["mail.jsonl", "mail.xlsx"])
def test_other_files_are_taken(name: str) -> None:
    """JSON Lines and Excel files are read as they are."""
    rows = messages()
    if name.endswith("jsonl"):
        Path(name).write_text("\n".join(json.dumps({**row, "n": n + 0.5}) for n, row in enumerate(rows)))
    else:
        book = openpyxl.Workbook()
        for cells in (list(rows[0]), *(list(row.values()) for row in rows)):
            book.worksheets[0].append(cells)
        book.save(name)
    found = json_of(run(name, "--json"))
    assert (found["text"]["column"], found["label"]["column"], found["rows"]) == ("said", "desk", 60)
    assert len(Task.from_file("mail/task.toml").test) == 24
    if name.endswith("jsonl"):
        assert "expected text in 'n', got 0.5" in refusal(
            run(name, "--label-column", "n", "--out", "numbers")
        )


def test_numbers_in_json_are_labels() -> None:
    """Labels may be whole numbers, in the file and then in the task."""
    rows = [{"said": row["said"], "stars": len(row["desk"])} for row in messages()]
    Path("mail.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done(run("mail.jsonl"))
    task = Task.from_file("mail/task.toml")
    assert (list(task.labels), len(task.test)) == (["7", "8"], 24)


def test_odd_rows_are_warned_of() -> None:
    """Empty answers, conflicts, rare and oddly spelled labels, similar and long texts are named with their lines."""
    rows = messages(60)
    rows[5]["desk"] = rows[6]["desk"] = ""
    rows[7]["said"] = " "
    rows += [{**rows[0], "desk": "delivery"}, {**rows[3], "desk": "Billing"}, {**rows[9], "desk": "other"}]
    rows += [{**rows[1], "said": rows[1]["said"] + " four in five"}, {**rows[4], "said": "long " * 2_500}]
    rows[-3]["said"] = "Something else of no kind at all, with words of its own"
    found = json_of(run(write(rows), "--model", "local/smollm2-135m", "--json"))
    assert found["warnings"] == [
        "2 rows (3%) have no answer: no split has them, `calibrant label` answers them.",
        "1 row has no text: no split has it.",
        "'other' occurs once: one row is either learned from or measured, never both; add rows, or merge labels.",
        "'billing' spelled in several ways: the most frequent one is taken.",
        "equal texts with different answers in lines 2 and 62 (billing, delivery): correct one of the two.",
        "1 row repeats an earlier text: equal texts stay in one split.",
        "1 text of more than 12,000 bytes may be too long for the model, in line 66.",
        f"60 near-duplicates in 2 groups, such as lines 2 and 4: {APART}",
    ]
    assert found["labels"] == {"billing": 39, "delivery": 22, "other": 1}
    assert sum(found["splits"].values()) == 62


BILLED = (
    "The {} arrived with a broken lid",
    "Please send {} to my new address",
    "Who may return {} after a month",
    "Only half of {} was in that box",
    "We saw {} for less in another shop",
)
SENT = (
    "I never got {} that I paid for",
    "Is {} sold in green, too",
    "Nobody answers my mail on {} at all",
    "Your driver left {} at some neighbour's",
    "Could {} come on a Saturday instead",
)


def test_near_duplicates_are_counted() -> None:
    """Texts of one template go to one split: their number is printed, and lines with different answers are named."""
    rows = [
        {"said": text.format(f"{thing} no. {n}"), "desk": desk}
        for desk, texts in (("billing", BILLED), ("delivery", SENT))
        for n, thing in enumerate(THINGS)
        for text in texts
    ]
    rows[0]["desk"] = "delivery"
    lines = done(run(write(rows))).stdout.splitlines()
    assert "50 near-duplicates in 10 groups, such as lines 2 and 7: each group stays in one split" in lines
    assert "warning: near-duplicates with different answers in lines 2 and 7: is each right?" in lines
    task = Task.from_file("mail/task.toml")
    for text in (*BILLED, *SENT):
        end = text.split("{}")[1]
        assert sum(any(row.input.endswith(end) for row in split) for split in splits_of(task)) == 1


def splits_of(task: Task) -> list[Any]:
    """Return the rows of the three splits."""
    return [task.train, task.validation, task.test]


def with_columns(**more: Callable[[int], str]) -> list[dict[str, Any]]:
    """Return messages with further columns."""
    return [{**row, **{name: make(n) for name, make in more.items()}} for n, row in enumerate(messages())]


def test_ties_are_named() -> None:
    """Of several columns that fit, the likeliest is taken and the others are named with the option."""
    data = write(
        with_columns(
            channel=lambda n: ("web", "phone", "post")[n % 7 % 3],
            reply=lambda n: f"We are sorry about message {n} and answer you in {n + 3} days from now",
        )
    )
    found = json_of(run(data, "--json"))
    assert (found["text"]["column"], found["label"]["column"]) == ("reply", "desk")
    assert found["warnings"][:2] == [
        "text may also be 'said': name the column by --text-column if 'reply' is wrong.",
        "label may also be 'channel': name the column by --label-column if 'desk' is wrong.",
    ]


@pytest.mark.parametrize(("typed", "label"), [("1\n", "desk"), ("0\n4\n3\n", "by")])
def test_ties_are_asked_about(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, label: str
) -> None:
    """At a terminal, the user is asked which of several columns is meant, that best told by the words first."""
    data = write(
        with_columns(
            by=lambda n: ("Ana", "Ben")[n % 2] if n % 3 == 1 else "",
            channel=lambda n: ("web", "phone", "post")[n % 7 % 3],
        )
    )
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stdout", shown)
    app(["init", str(data)], standalone_mode=False)
    assert f"  label  '{label}'" in shown.getvalue()
    assert "  1  desk\n  2  channel\n  3  by\nWhich column is the label? 1 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "text"), [("said", "我的包裹在哪{}"), ("question", "lamp{}")])
def test_texts_without_spaces_are_found(name: str, text: str) -> None:
    """Texts of eight characters or more need no spaces in other scripts, and single words a usual name."""
    data = write([{"kind": ("a", "b")[n % 2], name: text.format(n)} for n in range(10, 50)])
    assert json_of(run(data, "--json"))["text"]["column"] == name


def test_columns_with_splits_are_used() -> None:
    """A column that says train, validation or test is used instead of shares."""
    data = write(with_columns(part=lambda n: ("train", "dev", "test", "train")[n % 4]))
    assert "Splits are those of the column 'part'" in done(run(data)).stdout
    assert len(Task.from_file("mail/task.toml").validation) == 15
    Path("mail/task.toml").unlink()
    assert (
        "such as lines 2 and 4: they may stand in several splits and make results" in done(run(data)).stdout
    )


def test_labels_that_only_test_rows_have_are_named() -> None:
    """Where a column says which split a row is in, a label may be in none that is learned from."""
    rows = with_columns(part=lambda n: ("train", "dev", "test", "train")[n % 4])
    apart = [{**row, "desk": "parking", "part": "Test"} for row in rows[:6]]
    told = done(run(write([*rows, *apart]))).stdout
    assert "parking in no row that is learned from: the column 'part' has all of them in test." in told
    Path("mail/task.toml").unlink()
    assert "learned from" not in done(run(write(rows))).stdout


def promise_of(*arguments: object) -> dict[str, Any]:
    """Return what `init` says of the promise that the test rows will bear, as JSON values."""
    found: dict[str, Any] = json_of(run(*arguments, "--json"))["promise"]
    return found


def unlike_messages(count: int) -> list[dict[str, str]]:
    """Return messages, none of them a near-duplicate of another, two in five of them for the test."""
    parts = ("train", "dev", "test", "train", "Test")
    return [
        {**row, "said": f"Dear {spelled(n)} of {spelled(3 * n)} street", "part": parts[n % 5]}
        for n, row in enumerate(messages(count))
    ]


def test_what_test_rows_promise_is_said() -> None:
    """A table says which share of new rows a promise accepts, and how many labelled rows accept half of them."""
    shown = done(run(write(unlike_messages(200)))).stdout
    assert shown[shown.index("A promise") :].splitlines()[:4] == [
        "A promise of 0.90 from 80 test rows that differ:",
        "  if the model is right in      80%       90%  95%",
        "  of new rows it accepts about  4%        37%  84%",
        "  labelled rows to accept half  too many  320  enough",
    ]


def test_few_test_rows_promise_nothing() -> None:
    """Fewer than 29 test rows cannot promise 0.90, even without a mistake; near-duplicates count as one."""
    few = promise_of(write(unlike_messages(60)))
    alike = promise_of(write(messages(200)), "--out", "alike")
    assert (few["test_rows"], alike["test_rows"]) == (24, 2)
    for found in (few, alike):
        assert [one["kept"] for one in found["outlook"]] == [0.0, 0.0, 0.0]


def test_the_promise_is_that_of_a_search() -> None:
    """The share that is said is that of certificates made as a search makes them, on a model without error."""
    found = promise_of(write(unlike_messages(200)))
    rng = np.random.default_rng(1)
    kept = []
    for _ in range(400):
        confidence = rng.beta(7.2, 0.8, found["test_rows"])
        correct = rng.random(len(confidence)) < confidence
        request = {"target_accuracy": found["target_accuracy"], "delta": 0.05}
        everything = certify_threshold(confidence, correct, start=0.0, **request)
        certified = certify_threshold(confidence, correct, **request)
        threshold = confidence.min() if everything.threshold is not None else certified.threshold
        kept.append(0.0 if threshold is None else scipy.stats.beta.sf(threshold, 7.2, 0.8))
    # A standard error of the mean is 0.019.
    assert found["outlook"][1]["accuracy"] == 0.9
    assert found["outlook"][1]["kept"] == pytest.approx(np.mean(kept), abs=0.06)


def test_large_files_keep_few_rows_for_measuring() -> None:
    """Of more than a thousand rows, a few hundred are for validation and test."""
    assert json_of(run(write(messages(1200)), "--json"))["split"] == [0.4167, 0.25, 0.3333]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {"desk": lambda n: "x" if n % 2 else " "},
            (),
            "expected at least two labels, got 'x' alone in 'desk': add rows of others, or",
        ),
        (
            {"desk": lambda n: f"label {n}"},
            (),
            "few values that are repeated, got 60 in 'desk' (an id, or free text?)",
        ),
        ({"desk": lambda n: f"label {n}"}, ("--label-column", "desk"), ""),
        ({"desk": lambda n: f"label {n // 2}"}, (), ""),
        (
            {"said": lambda n: str(n) if n % 10 else f"{'so many words ' * 4}{n}"},
            (),
            "expected a column of texts, with several words and mostly distinct, got n",
        ),
        (
            {},
            ("--text-column", "sayd"),
            "expected --text-column to name a column, got 'sayd': the columns are 'No.', 'came in', 's",
        ),
        (
            {},
            ("--text-column", "said", "--label-column", "said"),
            "expected two columns, got 'said' for both --text-column and --label-column",
        ),
        (
            {"desk": lambda _: ""},
            ("--label-column", "desk"),
            "expected at least two labels in 'desk', got no answer at all",
        ),
    ],
)
def test_files_that_fit_no_task_are_refused(
    change: dict[str, Callable[[int], str]], options: Sequence[str], message: str
) -> None:
    """One label, too many, no text and wrong names are errors that say what to do; nothing is written."""
    data = write(with_columns(**change))
    if not message:  # 60 labels of one row each may be meant, and few that are repeated are found
        assert "add rows, or merge labels" in done(run(data, *options)).stdout
        return
    assert message in refusal(run(data, *options))
    assert not Path("mail").exists()


def test_thousands_of_labels_are_refused() -> None:
    """A column of ids is no label, even if it is named."""
    data = write([{"text": f"some words {n}", "label": f"id{n}"} for n in range(2_500)])
    assert "got more than 2,000 different values: is it an id or free text?" in refusal(
        run(data, "--label-column", "label")
    )


def test_task_files_are_never_replaced() -> None:
    """An existing task file is kept, and another directory is advised."""
    data = write(messages())
    done(run(data))
    before = Path("mail/task.toml").read_text()
    assert "expected no task file here yet, got one: name another directory by --out" in refusal(run(data))
    assert Path("mail/task.toml").read_text() == before
    assert "mail.csv: expected a directory, got a file" in refusal(run(data, "--out", data))


def test_models_of_servers_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of a local server stands in the task file with its address: as the one named, or in a comment."""
    data = write(messages())
    with FaultServer(["billing", "delivery"]) as server:
        base = server.api_base
        monkeypatch.setitem(SERVERS, "Ollama", urlsplit(base).port)
        for name in ("openai/fake", "local/smollm2-135m"):
            done(run(data, "--model", name, "--out", Path(name).name))
    model = Task.from_file("fake/task.toml").model
    assert (model.name, model.api_base) == ("openai/fake", base)
    comment = f'# name = "openai/fake"  # Ollama at {base}\n# api_base = "{base}"\n'
    assert comment in Path("smollm2-135m/task.toml").read_text()


def test_toml_holds_any_label() -> None:
    """Labels and names with quotes, backslashes and breaks are read back as they were."""
    odd = ['say "no"', "a\\b", "two\nlines", "\x7fé\U0001f600"]
    rows = [{'te"xt': f"some words {n} of a text", "la\\bel": odd[n % 4]} for n in range(40)]
    done(run(write(rows, "o'dd.csv")))
    task = Task.from_file("o'dd/task.toml")
    assert (sorted(task.labels), task.columns.input) == (sorted(odd), 'te"xt')


def test_labels_with_commas_are_quoted() -> None:
    """If a label holds a comma, the prompt quotes all labels; else none."""
    names = ["Gefühle, Stimmung", "Sport", 'der "Rest", sonst']
    rows = [{"text": f"some words {n} of a text", "label": names[n % 3]} for n in range(40)]
    found = json_of(run(write(rows), "--json"))
    assert found["prompt"].endswith(
        r'The label is one of: "Gefühle, Stimmung", "der \"Rest\", sonst", "Sport".'
    )


def test_a_label_of_one_row_is_said() -> None:
    """A label that occurs once has a warning of its own, and one without an answer is no zero per cent."""
    rows = messages(140)
    rows[3]["desk"], rows[5]["desk"] = "other", ""
    notices = json_of(run(write(rows), "--json"))["warnings"]
    assert notices[:2] == [
        "1 row has no answer: no split has it, `calibrant label` answers it.",
        "'other' occurs once: one row is either learned from or measured, never both; add rows, or merge labels.",
    ]


def test_the_task_names_ids_and_the_encoding_that_was_read() -> None:
    """The column of ids is found and named, and the comment on the encoding says how the file was read."""
    rows = [{"Ticket": f"K-{n:04d}", "said": f"Größe {n} und mehr", "desk": "ab"[n % 2]} for n in range(40)]
    result = done(run(write(rows, encoding="cp1252")))
    assert "  id     'Ticket'  reports name it\n" in result.stdout
    text = Path("mail/task.toml").read_text()
    assert 'id_column = "Ticket"' in text
    assert '# encoding = "windows-1252"' in text
    assert [row.row_id for row in Task.from_file("mail/task.toml").test][:1] != [None]


def test_values_are_no_labels() -> None:
    """Of a file without answers, the message asks for rows with answers, and takes no date for a label."""
    rows = [{"Datum": "12.04.2026", "Text": f"viele verschiedene Wörter {n}"} for n in range(40)]
    said = refusal(run(write(rows)))
    assert "no column looks like labels, and `init` needs rows with answers" in said


@pytest.mark.parametrize("column", ["said", "desk", "note\ud800"])
def test_halves_of_characters_are_refused(column: str) -> None:
    """Half a surrogate pair in a text, a label or a column's name is an error with its line."""
    rows = [{"said": row["said"], "desk": row["desk"]} for row in messages()]
    rows[1][column] = "\udc00 half"
    Path("mail.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = refusal(run("mail.jsonl"))
    assert said.startswith("error: mail.jsonl:2: expected characters")
    assert "half of a surrogate pair" in said


def test_a_path_that_is_no_text_is_refused() -> None:
    """A file whose name is not UTF-8, so that no task file can hold it, is to be renamed."""
    data = write(messages(), "mail\udcff.csv")
    assert "expected a path in UTF-8, which a task file can hold" in refusal(run(data, "--out", "mine"))


SEVERAL = ("billing", "delivery", "refund")


def several_labels(count: int = 60) -> list[tuple[str, list[str]]]:
    """Return texts with one to three labels each."""
    return [
        (
            f"{THINGS[number % 5]} in parcel {number * 37} is late",
            list(SEVERAL[number % 3 :][: 1 + number % 2]),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("separator", ["; ", "|", ", "])
def test_labels_joined_in_one_cell_make_a_task_of_several_labels(separator: str) -> None:
    """Labels and their rows are those of the joined ones, and the task reads its answers so."""
    write([{"text": text, "topics": separator.join(names)} for text, names in several_labels()])
    found = done(run("mail.csv", "--out", "new")).stdout
    task = Task.from_file("new/task.toml")
    assert sorted(task.labels) == sorted(SEVERAL)
    assert [json.loads(one.answer) for one in task.test]
    assert "3 labels, any number of them in an answer" in found
    counts = json_of(run("mail.csv", "--out", "other", "--json"))
    assert counts["labels"] == {"refund": 30, "delivery": 30, "billing": 20}


def test_arrays_of_labels_make_a_task_of_several_labels(here: Path) -> None:
    """A row without a label is a row, and the splits are those of the task."""
    lines = [
        json.dumps({"text": text, "topics": names}) for text, names in [*several_labels(), ("thanks", [])]
    ]
    (here / "mail.jsonl").write_text("\n".join(lines))
    counts = json_of(run("mail.jsonl", "--out", "new", "--json"))
    assert counts["multi_label"]
    task = Task.from_file("new/task.toml")
    rows = {"train": len(task.train), "validation": len(task.validation), "test": len(task.test)}
    assert counts["splits"] == rows
    assert sum(rows.values()) == 61


def test_a_label_that_holds_a_comma_stays_one_label() -> None:
    """Its parts are no labels of other rows."""
    names = ["Food, drinks", "Rent, gas and water", "Fun"]
    write([{"text": text, "topic": names[i % 3]} for i, (text, _) in enumerate(several_labels())])
    counts = json_of(run("mail.csv", "--out", "new", "--json"))
    assert not counts["multi_label"]
    assert set(counts["labels"]) == set(names)


def test_lists_that_are_not_json_are_told_from_labels() -> None:
    """The message shows what to write."""
    write([{"text": text, "topics": str(names)} for text, names in several_labels()])
    assert "expected a JSON array of labels in 'topics', got \"['billing']\"" in refusal(run("mail.csv"))
