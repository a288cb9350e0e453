"""Tests of ``calibrant classify``: output, prompts, failures and bad input."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrant.cli import main
from calibrant.core import CompletionRequest, LogprobsUnsupportedError, ProviderError
from calibrant.testing import FakeClient
from command_line import command, done, refusal
from fault_server import FaultServer

run = command("classify")

WriteTask = Callable[..., Path]
UseModel = Callable[..., Any]


@pytest.fixture
def model(use_model: UseModel, animals: FakeClient) -> FakeClient:
    """Answer for the task's model."""
    use_model(animals)
    return animals


def test_texts_are_answered_in_order(write_task: WriteTask, model: FakeClient) -> None:
    """Each line holds label, confidence and text, separated by tabs."""
    result = done(run(write_task(), "--text", "meow", "--text", "woof  \n woof"))
    assert result.stdout == "cat\t0.900\tmeow\ndog\t0.800\twoof woof\n"
    assert [request.messages[0]["content"] for request in model.requests] == ["Which animal?"] * 2
    assert model.closed


@pytest.mark.parametrize(
    ("space", "illegal", "remark"),
    [
        ("raw", 0.51, "\t(label mass 0.49: the model wanted to write something else)"),
        ("raw", 0.49, ""),
        ("masked", 0.999, ""),  # the grammar leaves nothing else
    ],
)
def test_a_low_label_mass_stands_beside_the_confidence(
    write_task: WriteTask, use_model: UseModel, space: str, illegal: float, remark: str
) -> None:
    """A label mass below one half is printed beside the confidence, unless a grammar masks the rest."""
    fake = FakeClient(["cat", "dog"], {"meow": ("cat", 1.0)}, space=space, illegal_mass=illegal)
    use_model(fake)
    line = run(write_task(), "--text", "meow").stdout
    assert line.startswith("cat\t")
    assert line.endswith(f"\tmeow{remark}\n")


def test_a_reason_of_several_lines_is_printed_on_one(write_task: WriteTask, use_model: UseModel) -> None:
    """A reason of several lines is printed on the one line of its text."""
    refused = LogprobsUnsupportedError("no logprobs.", provider="x")
    use_model(FakeClient(["cat", "dog"], {"meow": ("cat", 0.9), "woof": refused}))
    shown = run(write_task(), "--text", "meow", "--text", "woof").stdout.splitlines()
    assert [line.partition("\t")[0] for line in shown] == ["cat", "error"]
    assert '[model] scoring = "fused" or choose' in shown[1]


def test_a_long_text_is_shortened_in_the_listing(write_task: WriteTask, model: FakeClient) -> None:
    """A long text is shortened in the output, and sent to the model in full."""
    text = "meow " * 100
    result = run(write_task(), "--text", text)
    line = result.stdout.rstrip("\n").split("\t")[2]
    assert len(line) == 80
    assert line.endswith("…")
    assert model.requests[0].messages[1]["content"] == text


@pytest.mark.usefixtures("model")
def test_texts_of_a_file_come_after_those_given_by_hand(write_task: WriteTask, tmp_path: Path) -> None:
    """Texts of --text come before those of the file, which are read from the task's input column."""
    (tmp_path / "texts.csv").write_text("id,text\n1,meow\n2,woof\n")
    toml = 'name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\nfield = "category"\n[data]\ninput_column = "text"\n'
    task = write_task(toml=toml)
    result = run(task, "--file", tmp_path / "texts.csv", "--text", "woof 0")
    assert [line.split("\t")[::2] for line in result.stdout.splitlines()] == [
        ["dog", "woof 0"],
        ["cat", "meow"],
        ["dog", "woof"],
    ]


@pytest.mark.usefixtures("model")
def test_json_has_one_object_a_line(write_task: WriteTask) -> None:
    """The JSON object of a text holds answer, probabilities, label mass, space and model."""
    result = done(run(write_task(), "--text", "meow é", "--json"))
    record = json.loads(result.stdout)
    assert "é" in result.stdout
    assert record["confidence"] == pytest.approx(0.9)
    assert record["probabilities"] == pytest.approx({"cat": 0.9, "dog": 0.1})
    assert record["label_mass"] == pytest.approx(1.0)
    rest = [record[key] for key in ("input", "label", "outcome", "reason", "space", "model")]
    assert rest == ["meow é", "cat", "ok", "", "masked", "fake"]


def test_another_prompt_comes_from_a_file(write_task: WriteTask, model: FakeClient, tmp_path: Path) -> None:
    """--prompt replaces the prompt, and the user template of the task stays."""
    prompt = tmp_path / "best_prompt.txt"
    prompt.write_bytes(b"\xef\xbb\xbfBetter.\nMuch b\xc3\xa9tter.")
    toml = write_task().read_text().replace("[data]", 'user_template = "<{input}>"\n[data]')
    done(run(write_task(toml=toml), "--text", "meow", "--prompt", prompt))
    assert [message["content"] for message in model.requests[0].messages] == [
        "Better.\nMuch bétter.",
        "<meow>",
    ]


def test_a_row_that_failed_says_why(write_task: WriteTask, use_model: UseModel) -> None:
    """A failed row has its reason on its line, and the other rows are printed; exit code 0 if one has a label."""
    answers = {
        "meow": {"choices": [{"message": {"content": '{"category": "cat"}'}}]},
        "moo": "cow",
        "crash": ProviderError("broken", provider="fake", status=400),
    }
    use_model(FakeClient(["cat", "dog"], answers))
    task = write_task(extra='[model]\nscoring = "decode"\n')
    result = done(run(task, *(word for text in answers for word in ("--text", text))))
    assert result.stdout.splitlines() == [
        "cat\t-\tmeow",
        "unparsed\t-\tmoo\t(answered 'cow', which is not one of the labels)",
        "error\t-\tcrash\t(fake: broken)",
    ]
    result = run(write_task(), "--json", "--text", "moo", "--text", "crash")
    assert result.exit_code == 1  # no text has a label
    assert json.loads(result.stdout.splitlines()[0])["probabilities"] is None


def test_no_answer_at_all_is_a_failure(write_task: WriteTask, use_model: UseModel) -> None:
    """If no text is answered, the rows are printed and the exit code is 1."""
    fault = ProviderError("broken", provider="fake", status=400)
    use_model(FakeClient(["cat", "dog"], {}, default=fault))
    result = run(write_task(), "--text", "a", "--text", "b")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["error\t-\ta\t(fake: broken)", "error\t-\tb\t(fake: broken)"]


class Output(io.StringIO):
    """Standard output that records the text that was flushed."""

    flushed = ""

    def flush(self) -> None:
        """Record all text written so far as flushed."""
        self.flushed = self.getvalue()


def test_a_row_is_printed_as_soon_as_it_is_known(
    write_task: WriteTask, use_model: UseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is flushed before the next text is sent."""
    output = Output()
    seen: list[str] = []

    def answer(_: str) -> str:
        seen.append(output.flushed)
        return "cat"

    use_model(FakeClient(["cat", "dog"], answer))
    monkeypatch.setattr("sys.stdout", output)
    task = write_task(extra="[model]\nconcurrency = 1\n")
    words = ["classify", str(task), "--text", "a", "--text", "b", "--text", "c"]
    monkeypatch.setattr("sys.argv", ["calibrant", *words])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert seen == ["", "cat\t1.000\ta\n", "cat\t1.000\ta\ncat\t1.000\tb\n"]
    assert output.flushed.count("\n") == 3


class Slow(FakeClient):
    """A model that answers "meow" texts after all others."""

    async def complete(self, request: CompletionRequest) -> object:
        """Delay the answer to a text with "meow" until all others were answered."""
        while "meow" in request.messages[-1]["content"] and len(self.requests) < 3:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.001)
        return await super().complete(request)


def test_a_row_waits_for_those_before_it(write_task: WriteTask, use_model: UseModel) -> None:
    """Rows are printed in the order of the texts, even if the first answer comes last."""
    client = Slow(["cat", "dog"], {"meow": "cat", "woof": "dog"})
    use_model(client)
    texts = ["woof 0", "meow 1", "woof 2", "woof 3", "meow 4"]
    result = run(write_task(), *(word for text in texts for word in ("--text", text)))
    assert ["meow" in request.messages[-1]["content"] for request in client.requests] == [False] * 3 + [
        True
    ] * 2
    assert [line.split("\t")[2] for line in result.stdout.splitlines()] == texts


GONE = """
import sys
from calibrant.cli._app import main
from calibrant.testing import FakeClient, fake_model

client = FakeClient(["cat", "dog"], {}, default="cat")
try:
    with fake_model("fake/animals", client):
        main()
finally:
    sys.stderr.write(f"{len(client.requests)} {client.closed}")
"""


def test_a_reader_that_has_enough_ends_the_run(write_task: WriteTask, tmp_path: Path) -> None:
    """A closed pipe ends the command with exit code 0, without a traceback and without further calls."""
    texts = tmp_path / "texts.txt"
    texts.write_text("meow\n" * 500)
    task = write_task(extra='[model]\nname = "fake/animals"\nconcurrency = 1\n')
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", GONE, "classify", str(task), "--file", str(texts)]
    result = subprocess.run(  # noqa: S603 (our own command)
        command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=100, check=False
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, "1 True")


def test_a_bad_key_is_one_line(write_task: WriteTask, use_model: UseModel) -> None:
    """A refused key exits with 1 and one line; no row is printed and the client is closed."""
    fault = ProviderError("no", provider="fake", status=401, hint="Check the API key.")
    client = FakeClient(["cat", "dog"], {}, default=fault)
    use_model(client)
    result = run(write_task(), "--text", "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: fake: no Check the API key.\n"
    assert client.closed


BAD_INPUT: dict[str, tuple[dict[str, bytes], list[str], str]] = {
    "nothing to classify": ({}, [], "Expected --text or --file, got neither."),
    "blank text": ({}, ["--text", "meow", "--text", " "], "Expected a text to classify with --text, got ' '"),
    "missing file": ({}, ["--file", "x.jsonl"], "x.jsonl: no such file"),
    "text not UTF-8": (
        {"x.txt": b"fine\n\xff\n"},
        ["--file", "x.txt"],
        "x.txt:2: expected UTF-8 text, got the byte 0xff: save the file as UTF-8.",
    ),
    "prompt not UTF-8": (
        {"p.txt": b"fine\ncaf\xe9\n"},
        ["--text", "meow", "--prompt", "p.txt"],
        "p.txt:2: expected UTF-8 text, got the byte 0xe9: save the file as UTF-8.",
    ),
    "missing prompt": ({}, ["--text", "meow", "--prompt", "p.txt"], "p.txt: no such prompt file"),
    "argument not UTF-8": ({}, ["--text", "caf\udce9"], "Expected --text in UTF-8, got 'caf\\udce9'"),
}


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_exits_with_2(
    write_task: WriteTask,
    model: FakeClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Bad input exits with 2 before any call."""
    files, arguments, message = BAD_INPUT[kind]
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    result = run(write_task(), *arguments)
    assert message in refusal(result)
    assert model.requests == []


def test_an_unknown_task_file_is_bad_input(tmp_path: Path) -> None:
    """A missing task file is named in the error."""
    assert "none.toml: expected a task file, a bundle or the directory of a run, got nothing" in refusal(
        run(tmp_path / "none.toml", "--text", "meow")
    )


# --- the whole way, over HTTP -------------------------------------------------------------------


def test_the_installed_command_talks_to_a_server(write_task: WriteTask) -> None:
    """The command sends prompt, schema and logprobs to a server, and prints label and confidence."""
    answers = {"meow": ("cat", 0.9), "woof": ("dog", 0.75)}
    with FaultServer(["cat", "dog"], answers, api_key="sk-secret") as server:
        task = write_task(extra=f'[model]\nname = "openai/small"\napi_base = "{server.api_base}"\n')
        program = str(Path(sys.executable).parent / "calibrant")
        result = subprocess.run(  # noqa: S603 (our own command)
            [program, "classify", str(task), "--text", "meow", "--text", "woof"],
            env={**os.environ, "OPENAI_API_KEY": "sk-secret", "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "cat\t0.900\tmeow\ndog\t0.750\twoof\n"
    first = min(server.requests, key=lambda request: request.text).body
    assert first["model"] == "small"
    assert (first["logprobs"], first["top_logprobs"], first["temperature"]) == (True, 5, 0)
    assert first["messages"] == [
        {"role": "system", "content": "Which animal?"},
        {"role": "user", "content": "meow"},
    ]
    schema = first["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["category"]["enum"] == ["cat", "dog"]
