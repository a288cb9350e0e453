"""Tests of README's code and commands."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrant import Task
from calibrant.cli import app
from calibrant.testing import FakeClient, fake_model
from embedded import EMBEDDED

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
COMMANDS = [
    shlex.split(line, comments=True)
    for language, block in BLOCKS
    if language == "console"
    for line in block.splitlines()
]
REVIEWS = Path(__file__).parent / "shared" / "reviews"
TASK = 'name = "tickets"\nlabels = ["billing", "delivery"]\nfield = "topic"\nprompt = "Which topic?"\n'


def reviews(source: str) -> list[dict[str, str]]:
    """Return the reviews of a file."""
    return [json.loads(line) for line in (REVIEWS / source).read_text(encoding="utf-8").splitlines()]


def write_table(path: Path, *, source: str, n: int, columns: list[str]) -> None:
    """Write the first reviews of a file as somebody's CSV file."""
    with path.open("w", encoding="utf-8", newline="") as out:
        table = csv.DictWriter(out, columns, extrasaction="ignore")
        table.writeheader()
        for number, row in enumerate(reviews(source)[:n]):
            table.writerow({"id": number, "message": row["input"], "kind": row["answer"]})


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    """README has blocks of commands, Python and TOML, and no other blocks."""
    assert {language for language, _ in BLOCKS} == {"console", "python", "toml"}


def test_commands_of_the_shell_are_known() -> None:
    """What README tells `make` to do is a target; the other commands are the shell's own and calibrant's."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    named = {name for words in COMMANDS if words[0] == "make" for name in words[1:]}
    assert named
    assert named <= targets
    assert {words[0] for words in COMMANDS} == {"git", "cd", "make", "source", "calibrant"}


def test_toml_blocks_are_read(tmp_path: Path) -> None:
    """README's lines of a task file are read as part of one."""
    for language, block in BLOCKS:
        if language == "toml":
            path = tmp_path / "task.toml"
            path.write_text(TASK + block, encoding="utf-8")
            assert Task.from_file(path).model.name in block


class TestOnTheModel:
    """Blocks that ask the embedded model."""

    pytestmark = EMBEDDED

    def test_python_blocks_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        """README's Python blocks run in order, in one namespace, and print their output."""
        namespace: dict[str, object] = {}
        for language, block in BLOCKS:
            if language == "python":
                exec(compile(block, str(README), "exec"), namespace)  # noqa: S102  (our own README)
        printed = capsys.readouterr().out
        assert re.search(r"^(negative|positive) 0\.\d+ \[", printed, re.MULTILINE)
        assert re.search(r"^On held-out rows log loss goes from 0\.\d+ to 0\.\d+", printed, re.MULTILINE)
        assert printed.rstrip().splitlines()[-1]

    @pytest.mark.slow
    def test_commands_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """README's commands run in order, as printed, on the model that they name by default."""
        monkeypatch.chdir(tmp_path)
        check_commands()


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README's commands run in order, as printed, where a fake answers for the embedded model."""
    monkeypatch.chdir(tmp_path)
    rows = [*reviews("train.jsonl"), *reviews("test.jsonl")]
    answers = {row["input"]: (row["answer"], 0.8) for row in rows}
    fake = FakeClient(["negative", "positive"], answers, field="label", name="local/smollm2-135m")
    with fake_model(fake.name, fake):
        check_commands()


def check_commands() -> None:
    """Run README's commands on a labelled table and a new one, and look at the files that they write."""
    write_table(Path("tickets.csv"), source="train.jsonl", n=60, columns=["id", "message", "kind"])
    write_table(Path("new_tickets.csv"), source="test.jsonl", n=10, columns=["id", "message"])
    for words in COMMANDS:
        if words[0] == "calibrant":
            done = CliRunner().invoke(app, words[1:], env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
            assert done.exit_code == 0, f"{words}: {done.output}"
    with Path("mine/labelled/labels.csv").open(encoding="utf-8", newline="") as file:
        labelled = list(csv.DictReader(file))
    assert [row["id"] for row in labelled] == [str(number) for number in range(10)]
    assert {row["decision"] for row in labelled} <= {"accepted", "review"}
    assert Path("mine/run/report.html").exists()
