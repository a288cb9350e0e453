"""Tests of Ctrl-C as a signal to a process: exit code, saved rows, and the next run."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrant.cascade import KeepPolicy, KeepRule, plan_cascade
from calibrant.testing import FakeClient
from command_line import command, done, prediction_rows, process, wait_for
from fault_server import FaultServer

WriteTask = Callable[..., Path]
UseModel = Callable[..., Any]

LABELS = ["cat", "dog"]
INTERRUPTED = 130
SOON = 10.0  # seconds, with room for a busy machine; what is waited for otherwise takes half a minute or more
HOSTED = '[model]\nname = "openai/any"\napi_base = "{}"\n[model.options]\napi_key = "none"\n'

# The command line with a model that computes in its process, and notes in a file what it is asked. What it is told to
# wait for does not come before the process ends.
EMBEDDED = """
import asyncio, sys
from calibrant.cli import main
from calibrant.testing import FakeClient, fake_model

asked, waits_from = sys.argv.pop(1), int(sys.argv.pop(1))

def small(text):
    return "cat", 0.9 if "meow" in text else 0.6

class Embedded(FakeClient):
    in_process = True

    async def complete(self, request):
        text = request.messages[-1]["content"]
        with open(asked, "a") as file:
            print(text, file=file)
        if int(text.split()[0]) >= waits_from:
            await asyncio.Event().wait()
        return await super().complete(request)

with fake_model("fake/small", Embedded(["cat", "dog"], small, name="fake/small")):
    main()
"""

# The command line, interrupted while it imports what the command needs.
LOADING = """
import signal, sys
from calibrant.cli import main

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "calibrant.clients":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
main()
"""


def animals(count: int) -> list[dict[str, str]]:
    """Return rows that by turns meow and bark."""
    return [
        {"input": f"{n} {'woof' if n % 2 else 'meow'}", "answer": "dog" if n % 2 else "cat"}
        for n in range(count)
    ]


def answers(text: str) -> tuple[str, float]:
    """Know what meows and what barks."""
    return ("cat" if "meow" in text else "dog"), 0.9


def interrupted(running: subprocess.Popen[str]) -> str:
    """Send Ctrl-C once, and return the output of the process, which must end soon."""
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=SOON)
    assert running.returncode == INTERRUPTED, said
    return said


def test_ctrl_c_while_a_command_loads_is_one_line() -> None:
    """Ctrl-C during the imports prints "interrupted." alone, and exits with 130."""
    with process(LOADING, "models") as running:
        stdout, stderr = running.communicate(timeout=SOON)
    assert (running.returncode, stdout, stderr) == (INTERRUPTED, "", "interrupted.\n")


# --- a model in this process, and one elsewhere -------------------------------------------------


@pytest.fixture
def embedded_then_hosted(
    tmp_path: Path, write_task: WriteTask, use_model: UseModel
) -> Callable[[FaultServer], tuple[Path, ...]]:
    """Return a function that plans a cascade of an embedded and a hosted model."""

    def plan(server: FaultServer) -> tuple[Path, ...]:
        use_model(FakeClient(LABELS, answers, name="fake/small"), "fake/small")
        rows = animals(12)
        tasks = (
            write_task(extra='[model]\nname = "fake/small"\n', test=rows, directory=tmp_path / "small"),
            write_task(extra=HOSTED.format(server.api_base), test=rows, directory=tmp_path / "hosted"),
        )
        runs = []
        for task in tasks:
            out = task.parent / "run"
            done(command("evaluate")(task, "--no-cache", "--out", out))
            runs.append(out)
        policy = KeepPolicy(name="threshold 0.8", members=(0, 1), rules=(KeepRule.from_threshold(0.8),))
        replace(plan_cascade(*runs, small_cost=1, large_cost=50), policy=policy).save(tmp_path / "plan.json")
        return tmp_path / "plan.json", *tasks

    return plan


def test_a_mixed_cascade_ends_at_once(
    embedded_then_hosted: Callable[[FaultServer], tuple[Path, ...]], tmp_path: Path
) -> None:
    """Ctrl-C ends a mixed cascade, and the next run repeats no finished answer."""
    out, noted = tmp_path / "out", tmp_path / "asked"
    silent: set[str] = set()

    def faults(_number: int, body: Any) -> str | None:
        return "hang" if body["messages"][-1]["content"] in silent else None

    def small_asked() -> list[int]:
        texts = noted.read_text().splitlines() if noted.exists() else []
        return sorted(int(text.split()[0]) for text in texts)

    with FaultServer(LABELS, answers, faults=faults) as server:
        arguments = ("cascade", "run", *embedded_then_hosted(server), "--out", out, "--json")
        planned = server.counts
        silent.add("7 woof")
        with process(EMBEDDED, noted, 8, *arguments) as running:
            # Row 7 waits for the server, the three after it for the embedded model; no other one is begun.
            wait_for(lambda: server.count("7 woof") > planned["7 woof"] and len(small_asked()) == 11, running)
            said = interrupted(running)
        assert "the rows under way are given up; what was answered is kept" in said
        assert "7 of 12 rows are saved" in said
        assert [row["index"] for row in prediction_rows(out)] == list(range(7))
        assert json.loads((out / "metrics.json").read_text())["stopped"] == "interrupted"
        kept = prediction_rows(out)
        silent.clear()
        with process(EMBEDDED, noted, 12, *arguments) as running:
            stdout, stderr = running.communicate(timeout=60)
        assert running.returncode == 0, stderr
        hosted = {int(text.split()[0]): n - planned[text] for text, n in server.counts.items()}
    assert json.loads(stdout)["rows"] == 12
    assert prediction_rows(out)[:7] == kept
    assert [row["label"] for row in prediction_rows(out)] == ["cat", "dog"] * 6
    # The small model's answer about row 7 came, and is not asked for again either.
    assert small_asked() == sorted([*range(12), 8, 9, 10])
    assert hosted == {number: (number % 2) * (2 if number == 7 else 1) for number in range(12)}


# --- a model whose rate limit is waited for -----------------------------------------------------


def test_interrupts_end_rate_limit_waits(write_task: WriteTask, tmp_path: Path) -> None:
    """Ctrl-C ends a wait for a rate limit; the next run asks only the rows that are not saved."""
    limited, out = True, tmp_path / "out"

    def faults(_number: int, body: Any) -> str | None:
        number = int(body["messages"][-1]["content"].split()[0])
        if not limited or number < 8:
            return None
        return "slow_drip:1" if number == 8 else "rate_limit:30"

    with FaultServer(LABELS, answers, faults=faults) as server:
        task = write_task(extra=HOSTED.format(server.api_base), test=animals(20))
        arguments = ("evaluate", task, "--out", out, "--concurrency", 4, "--json")
        with process("from calibrant.cli import main; main()", *arguments) as running:
            wait_for(lambda: sum(server.counts.values()) >= 10 and server.count("8 meow") == 1, running)
            said = interrupted(running)
        assert "interrupted: finishing the rows under way" in said
        assert "9 of 20 rows are saved; run the same command again to go on" in said
        assert [row["index"] for row in prediction_rows(out)] == list(range(9))
        asked, limited = server.counts, False
        with process("from calibrant.cli import main; main()", *arguments) as running:
            stdout, stderr = running.communicate(timeout=60)
        assert running.returncode == 0, stderr
        again = {text for text, count in server.counts.items() if count > asked.get(text, 0)}
    assert again == {row["input"] for row in animals(20)[9:]}
    assert json.loads(stdout)["outcomes"]["ok"] == 20
