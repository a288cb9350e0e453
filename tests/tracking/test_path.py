"""The page with the whole way runs as it is printed, with the embedded model, a tracking server and a person."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from review_page import Visitor
from tracking_servers import PROGRAMS, QUIET, fetched, free_port

pytestmark = [pytest.mark.tracking, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tasks" / "path.md"
STAYS = ("mlflow server", "calibrant review", "calibrant serve")
SECONDS = 120


class Terminal:
    """A shell in a folder that runs the page's commands, and keeps those that stay under way."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.output = ""
        self.variables = {
            **os.environ,
            **QUIET,
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "CALIBRANT_HOME": str(folder / "home"),
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }

    def run(self, command: str) -> None:
        """Run a command, and wait for its end unless it stays."""
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.variables[name] = value
        elif command.startswith(STAYS):
            self._start(command)
        else:
            done = subprocess.run(  # noqa: S603 (of our own page)
                ["/bin/bash", "-c", command],
                cwd=self.folder,
                env=self.variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout
            self.output += done.stdout

    def _start(self, command: str) -> None:
        place = self.folder / f"{len(list(self.folder.glob('*.out')))}.out"
        words = [*command.split(), *(["--no-open"] if "review" in command else [])]
        with place.open("w") as output:
            process = subprocess.Popen(  # noqa: S603 (of our own page)
                [PROGRAMS / words[0], *words[1:]],
                cwd=self.folder,
                env=self.variables,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.stack.callback(_end, process)
        ready = r"http://127\.0\.0\.1:\d+/\S*"
        address = _waited(place, process, r"Uvicorn running on" if "mlflow" in command else ready)
        if "review" in command:
            answer_all(address.rstrip(";"), self.folder)
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)
            self.output += place.read_text()


def _waited(place: Path, process: subprocess.Popen[bytes], pattern: str) -> str:
    """Return what a server says when it is ready."""
    end = time.monotonic() + SECONDS
    while (found := re.search(pattern, place.read_text())) is None:
        assert process.poll() is None, place.read_text()
        assert time.monotonic() < end, place.read_text()
        time.sleep(0.2)
    return found.group()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def answer_all(address: str, folder: Path) -> None:
    """Answer every row that the page asks for, as somebody who knows."""
    lines = (folder / "examples" / "banking" / "test.jsonl").read_text().splitlines()
    truth = [json.loads(line)["answer"] for line in lines]
    visitor = Visitor(address)
    while wanted := visitor.ask("/api/promise").json["wanted"]:
        visitor.decide(wanted[0], truth[wanted[0]])


def blocks(replaced: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield language and content of the page's blocks, with other ports."""
    text = PAGE.read_text(encoding="utf-8")
    for old, new in replaced.items():
        text = text.replace(old, new)
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def masked(text: str) -> list[str]:
    """Return lines with single spaces and without digits, which differ between machines."""
    return [" ".join(re.sub(r"[-+]?\d[\d.,e+-]*", "0", line).split()) for line in text.splitlines()]


def test_the_whole_way_runs_as_printed(tmp_path: Path) -> None:
    """Every step works after the one before it, and prints what the page shows."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    ports = {"5000": str(free_port()), "8890": str(free_port())}
    with contextlib.ExitStack() as stack:
        terminal = Terminal(tmp_path, stack)
        for language, content in blocks(ports):
            if language == "text":
                printed = masked(terminal.output)
                assert [line for line in masked(content) if line not in {"...", *printed}] == []
                continue
            terminal.output = ""
            if language == "python":
                (tmp_path / "tables.py").write_text(content)
            commands = "python tables.py" if language == "python" else content
            for command in commands.replace("\\\n", " ").strip().splitlines():
                terminal.run(command)
        answer = json.loads(terminal.output[terminal.output.index('{"results"') :])["results"][0]
        runs = fetched(
            f"http://127.0.0.1:{ports['5000']}/api/2.0/mlflow/runs/search", {"experiment_ids": ["0"]}
        )["runs"]
    assert answer["label"] == "compromised card"
    assert answer["decision"] in {"accepted", "review"}
    assert [run["info"]["run_name"] for run in runs] == ["run"]
    assert json.loads((tmp_path / "mine/labelled/certificate.json").read_text())["certified"]
