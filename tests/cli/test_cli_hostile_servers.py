"""Tests of commands whose server sends hostile text: runs and their repetitions end well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from calibrant.testing import Answer, fake_response
from command_line import command, done
from fault_server import Fault, FaultServer

run = command()

WriteTask = Callable[..., Path]
Change = Callable[[dict[str, Any]], object]

LABELS = ["cat", "dog"]
WORDS = "m\ud800\x1b[2J\x1b]0;title\x07\x9b31m" + "x" * 5_000
ESCAPES = ("\x1b", "\x07", "\x9b", "\ud800")


def message_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the message of an answer."""
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


CHANGES: dict[str, Change] = {
    "prompt tokens": lambda answer: answer["usage"].update(prompt_tokens=10**400),
    "completion tokens": lambda answer: answer["usage"].update(completion_tokens=10**4000),
    "model": lambda answer: answer.update(model=WORDS),
    "refusal": lambda answer: message_of(answer).update(refusal=WORDS, content=None),
    "finish reason": lambda answer: answer["choices"][0].update(finish_reason=WORDS),
    "text": lambda answer: message_of(answer).update(content=WORDS),
    "label": lambda answer: message_of(answer).update(content=json.dumps({"category": WORDS})),
    "half a pair": lambda answer: message_of(answer).update(content='{"category": "\ud800"}'),
    "a key twice": lambda answer: message_of(answer).update(content='{"category": "cat", "category": "dog"}'),
}
HARMLESS = {"prompt tokens", "completion tokens", "model", "finish reason"}


def hostile(change: Change) -> Callable[[str], Answer]:
    """Return a rule that is right everywhere, but for what `change` does to every third answer."""

    def rule(text: str) -> Answer:
        label = "cat" if "meow" in text else "dog"
        answer = fake_response(label, LABELS, {label: 0.9, "dog" if label == "cat" else "cat": 0.1})
        if text.split()[-2].isdigit() and int(text.split()[-2]) % 3 == 0:
            change(answer)
        return answer

    return rule


def refusing(_number: int, body: dict[str, Any]) -> Fault | None:
    """Refuse every third row."""
    words = body["messages"][-1]["content"].split()
    return Fault("400", message=WORDS) if int(words[-2]) % 3 == 0 else None


@pytest.fixture(params=[*CHANGES, "error"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, FaultServer]]:
    """Serve answers of which every third one is hostile in one way."""
    change = CHANGES.get(request.param, lambda _: None)
    with FaultServer(LABELS, hostile(change), faults=refusing if request.param == "error" else ()) as running:
        yield request.param, running


@pytest.fixture
def task(write_task: WriteTask, server: tuple[str, FaultServer]) -> Path:
    """Write a task whose model is the server."""
    rows = {
        split: [
            {"input": f"{split} {n} {'meow' if n % 2 else 'woof'}", "answer": "cat" if n % 2 else "dog"}
            for n in range(9)
        ]
        for split in ("train", "validation", "test")
    }
    model = (
        f'[model]\nname = "openai/m"\napi_base = "{server[1].api_base}"\noptions = {{ api_key = "none" }}\n'
    )
    return write_task(extra=model, **rows)


def said(result: Result, *folders: Path) -> str:
    """Return the output of a command and the text of the files that it wrote."""
    files = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in {".json", ".jsonl", ".txt"}
    ]
    return result.stdout + result.stderr + "".join(path.read_text(encoding="utf-8") for path in files)


def test_an_evaluation_ends_well_and_so_does_its_repetition(task: Path, tmp_path: Path) -> None:
    """All other rows are right, and no escape sequence of a server reaches output or files."""
    out = tmp_path / "run"
    for _ in range(2):
        result = done(run("evaluate", task, "--out", out))
        rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
        assert [row["index"] for row in rows] == list(range(9))
        assert all(row["correct"] for row in rows if row["index"] % 3)
        assert [escape for escape in ESCAPES if escape in said(result, out)] == []
        assert max(map(len, (out / "predictions.jsonl").read_text().splitlines())) < 8_000
    usage = json.loads((out / "metrics.json").read_text())
    assert usage["prompt_tokens"] <= 9 * 2**53


def test_classified_texts_are_printed(task: Path, server: tuple[str, FaultServer]) -> None:
    """All texts have one line or JSON object, without escape sequences of the server."""
    texts = [f"--text={n} {'meow' if n % 2 else 'woof'}" for n in range(4)]
    for options in (["--json"], []):
        result = run("classify", task, *texts, *options)
        assert len(result.stdout.splitlines()) == 4, result.output
        assert [escape for escape in ESCAPES if escape in said(result)] == []
    records = [json.loads(line) for line in run("classify", task, *texts, "--json").stdout.splitlines()]
    if server[0] in HARMLESS:
        assert [record["label"] for record in records] == ["dog", "cat", "dog", "cat"]
    else:
        assert [record["label"] for record in records] == [None, "cat", "dog", None]
        assert len(records[0]["reason"]) <= 2_100


def test_a_search_ends_well_and_so_does_its_repetition(task: Path, tmp_path: Path) -> None:
    """A search and its repetition write result.json, and no escape sequence of a server."""
    out = tmp_path / "run"
    for _ in range(2):
        result = done(run("optimize", task, "--out", out, "--max-metric-calls", 30, "--minibatch-size", 3))
        assert (out / "result.json").is_file()
        assert [escape for escape in ESCAPES if escape in said(result, out)] == []
