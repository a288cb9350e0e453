"""``calibrant classify``: texts in, one line each out."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from calibrant.cli._app import app
from calibrant.cli._classify import run_classify
from calibrant.core import CompletionRequest, LogprobsUnsupportedError, ProviderError
from calibrant.testing import FakeClient, fake_response

WriteTask = Callable[..., Path]
UseModel = Callable[..., Any]


@pytest.fixture
def model(use_model: UseModel, animals: FakeClient) -> FakeClient:
    """Answer for the task's model."""
    use_model(animals)
    return animals


def run(*arguments: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, ["classify", *map(str, arguments)])


def test_texts_are_answered_in_order(write_task: WriteTask, model: FakeClient) -> None:
    """Label, confidence and text, separated by tabs."""
    result = run(write_task(), "--text", "meow", "--text", "woof  \n woof")
    assert result.exit_code == 0
    assert result.stdout == "cat\t0.900\tmeow\ndog\t0.800\twoof woof\n"
    assert [request.messages[0]["content"] for request in model.requests] == ["Which animal?"] * 2
    assert model.closed


@pytest.mark.parametrize(
    ("space", "illegal", "remark"),
    [
        ("raw", 0.999, "\t(label mass 0.001: the model wanted to write something else)"),
        ("raw", 0.51, "\t(label mass 0.49: the model wanted to write something else)"),
        ("raw", 0.49, ""),
        ("masked", 0.999, ""),  # the grammar leaves nothing else
    ],
)
def test_a_low_label_mass_stands_beside_the_confidence(
    write_task: WriteTask, use_model: UseModel, space: str, illegal: float, remark: str
) -> None:
    """A share of next to nothing is no certainty."""
    fake = FakeClient(["cat", "dog"], {"meow": ("cat", 1.0)}, space=space, illegal_mass=illegal)
    use_model(fake)
    line = run(write_task(), "--text", "meow").stdout
    assert line.startswith("cat\t")
    assert line.endswith(f"\tmeow{remark}\n")


def test_a_reason_of_several_lines_is_printed_on_one(write_task: WriteTask, use_model: UseModel) -> None:
    """Every text has one line, as when a gateway refuses some of them."""
    refused = LogprobsUnsupportedError("no logprobs.", provider="x")
    use_model(FakeClient(["cat", "dog"], {"meow": ("cat", 0.9), "woof": refused}))
    shown = run(write_task(), "--text", "meow", "--text", "woof").stdout.splitlines()
    assert [line.partition("\t")[0] for line in shown] == ["cat", "error"]
    assert '[model] scoring = "sampled" or choose' in shown[1]


@pytest.mark.usefixtures("model")
def test_files_are_read_by_the_tasks_column_names(tmp_path: Path) -> None:
    """The column that holds the text in the labelled files holds it here too."""
    task = tmp_path / "task.toml"
    task.write_text(
        'name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\nfield = "category"\n[data]\ninput_column = "text"\n'
    )
    file = tmp_path / "new.jsonl"
    file.write_text('{"text": "meow", "input": "woof"}\n')
    assert run(task, "--file", file).stdout == "cat\t0.900\tmeow\n"


def test_a_long_text_is_shortened_in_the_listing(write_task: WriteTask, model: FakeClient) -> None:
    """The model sees all of it."""
    text = "meow " * 100
    result = run(write_task(), "--text", text)
    line = result.stdout.rstrip("\n").split("\t")[2]
    assert len(line) == 80
    assert line.endswith("…")
    assert model.requests[0].messages[1]["content"] == text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("texts.txt", "meow\n\nwoof\n"),
        ("texts.jsonl", '{"input": "meow"}\n{"input": "woof"}\n'),
        ("texts.csv", "id,input\n1,meow\n2,woof\n"),
    ],
)
@pytest.mark.usefixtures("model")
def test_texts_come_from_any_kind_of_file(
    write_task: WriteTask, tmp_path: Path, name: str, content: str
) -> None:
    """After those given by hand."""
    (tmp_path / name).write_text(content)
    result = run(write_task(), "--file", tmp_path / name, "--text", "woof 0")
    assert [line.split("\t")[::2] for line in result.stdout.splitlines()] == [
        ["dog", "woof 0"],
        ["cat", "meow"],
        ["dog", "woof"],
    ]


@pytest.mark.usefixtures("model")
def test_json_has_one_object_a_line(write_task: WriteTask) -> None:
    """With everything a program wants to know."""
    result = run(write_task(), "--text", "meow é", "--json")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert "é" in result.stdout
    assert record["confidence"] == pytest.approx(0.9)
    assert record["probabilities"] == pytest.approx({"cat": 0.9, "dog": 0.1})
    assert record["label_mass"] == pytest.approx(1.0)
    rest = {key: record[key] for key in ("input", "label", "outcome", "reason", "space", "model")}
    assert rest == {
        "input": "meow é",
        "label": "cat",
        "outcome": "ok",
        "reason": "",
        "space": "masked",
        "model": "fake",
    }


def test_another_prompt_comes_from_a_file(write_task: WriteTask, model: FakeClient, tmp_path: Path) -> None:
    """Such as the best one of a search; the task's template stays."""
    prompt = tmp_path / "best_prompt.txt"
    prompt.write_bytes(b"\xef\xbb\xbfBetter.\nMuch b\xc3\xa9tter.")
    toml = write_task().read_text().replace("[data]", 'user_template = "<{input}>"\n[data]')
    assert run(write_task(toml=toml), "--text", "meow", "--prompt", prompt).exit_code == 0
    assert [message["content"] for message in model.requests[0].messages] == [
        "Better.\nMuch bétter.",
        "<meow>",
    ]


def test_a_row_that_failed_says_why(write_task: WriteTask, use_model: UseModel) -> None:
    """Others are printed all the same, and one good row is a success."""
    answers = {
        "meow": {"choices": [{"message": {"content": '{"category": "cat"}'}}]},
        "moo": "cow",
        "crash": ProviderError("broken", provider="fake", status=400),
    }
    use_model(FakeClient(["cat", "dog"], answers))
    result = run(write_task(), *(word for text in answers for word in ("--text", text)))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "cat\t-\tmeow",
        "unparsed\t-\tmoo\t(answered 'cow', which is not one of the labels)",
        "error\t-\tcrash\t(fake: broken)",
    ]
    result = run(write_task(), "--json", "--text", "moo")
    assert json.loads(result.stdout)["probabilities"] is None


def test_no_answer_at_all_is_a_failure(write_task: WriteTask, use_model: UseModel) -> None:
    """Exit code 1, with the rows printed."""
    fault = ProviderError("broken", provider="fake", status=400)
    use_model(FakeClient(["cat", "dog"], {}, default=fault))
    result = run(write_task(), "--text", "a", "--text", "b")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["error\t-\ta\t(fake: broken)", "error\t-\tb\t(fake: broken)"]


def test_one_row_that_is_no_error_is_no_failure(write_task: WriteTask, use_model: UseModel) -> None:
    """An answer outside the label set is the model's: the calls went through."""
    answers = {"moo": "cow", "crash": ProviderError("broken", provider="fake", status=400)}
    use_model(FakeClient(["cat", "dog"], answers))
    assert run(write_task(), "--text", "moo", "--text", "crash").exit_code == 0


class Output(io.StringIO):
    """Standard output that knows how much of it was flushed."""

    flushed = ""

    def flush(self) -> None:
        """Remember what a reader would have by now."""
        self.flushed = self.getvalue()


def classify(task: Path, texts: list[str]) -> None:
    """Run the command without the command line."""
    run_classify(task, texts=texts, file=None, prompt=None, model=None, as_json=False)


def test_a_row_is_printed_as_soon_as_it_is_known(
    write_task: WriteTask, use_model: UseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an interrupted run has printed is kept."""
    output = Output()
    seen: list[str] = []

    def answer(_: str) -> str:
        seen.append(output.flushed)
        return "cat"

    use_model(FakeClient(["cat", "dog"], answer))
    monkeypatch.setattr("sys.stdout", output)
    classify(write_task(extra="[model]\nconcurrency = 1\n"), ["a", "b", "c"])
    assert seen == ["", "cat\t1.000\ta\n", "cat\t1.000\ta\ncat\t1.000\tb\n"]
    assert output.flushed.count("\n") == 3


class Slow(FakeClient):
    """A model that answers some texts only after others."""

    async def complete(self, request: CompletionRequest) -> object:
        """Let what meows wait."""
        if "meow" in request.messages[-1]["content"]:
            await asyncio.sleep(0.1)
        return await super().complete(request)


def test_a_row_waits_for_those_before_it(write_task: WriteTask, use_model: UseModel) -> None:
    """Whatever the order of the answers, lines stand in the order of the texts."""
    client = Slow(["cat", "dog"], {"meow": "cat", "woof": "dog"})
    use_model(client)
    texts = ["woof 0", "meow 1", "woof 2", "woof 3", "meow 4"]
    result = run(write_task(), *(word for text in texts for word in ("--text", text)))
    assert [request.messages[-1]["content"] for request in client.requests][-1] == "meow 4"
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
    """As `head` does: no trace, no complaint of the interpreter, and no text is paid for in vain."""
    texts = tmp_path / "texts.txt"
    texts.write_text("meow\n" * 500)
    task = write_task(extra='[model]\nname = "fake/animals"\nconcurrency = 1\n')
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", GONE, "classify", str(task), "--file", str(texts)]
    done = subprocess.run(  # noqa: S603 (our own command)
        command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=100, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "1 True")


def test_a_bad_key_is_one_line(write_task: WriteTask, use_model: UseModel) -> None:
    """Exit code 1, no rows, the client closed."""
    fault = ProviderError("no", provider="fake", status=401, hint="Check the API key.")
    client = FakeClient(["cat", "dog"], {}, default=fault)
    use_model(client)
    result = run(write_task(), "--text", "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: fake: no Check the API key.\n"
    assert client.closed


BAD_INPUT: dict[str, tuple[dict[str, bytes], list[str], str]] = {
    "nothing to classify": ({}, [], "Expected --text or --file, got neither."),
    "missing file": ({}, ["--file", "x.jsonl"], "x.jsonl: no such file"),
    "missing text file": ({}, ["--file", "x.txt"], "x.txt: no such file"),
    "unknown kind": ({"x.pdf": b"x"}, ["--file", "x.pdf"], "x.pdf: expected a file ending in .jsonl"),
    "empty text file": (
        {"x.txt": b"\n"},
        ["--file", "x.txt"],
        "x.txt: expected one text per line, got an empty",
    ),
    "empty file": (
        {"x.csv": b""},
        ["--file", "x.csv"],
        "x.csv: expected at least one row, got an empty file",
    ),
    "no input column": ({"x.csv": b"a,b\n1,2\n"}, ["--file", "x.csv"], "x.csv:2: expected text in 'input'"),
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
    "10 MB row": (
        {"x.txt": b"x" * 10_000_000},
        ["--file", "x.txt"],
        "x.txt:1: expected a row of at most 1,000,000",
    ),
    "argument not UTF-8": ({}, ["--text", "caf\udce9"], "Expected --text in UTF-8, got 'caf\\udce9'"),
}


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(
    write_task: WriteTask,
    model: FakeClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Nothing is asked of a model before all input is known to be good."""
    files, arguments, message = BAD_INPUT[kind]
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    result = run(write_task(), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert model.requests == []


def test_an_unknown_task_file_is_bad_input(tmp_path: Path) -> None:
    """The first mistake everyone makes."""
    result = run(tmp_path / "none.toml", "--text", "meow")
    assert result.exit_code == 2
    assert "none.toml: no such task file" in result.stderr


# --- the whole way, over HTTP -------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run an OpenAI-compatible server on the loopback interface; yield its address and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({"path": self.path, "key": self.headers["Authorization"], **body})
            text = body["messages"][-1]["content"]
            label, share = ("cat", 0.9) if "meow" in text else ("dog", 0.75)
            shares = {label: share, ("dog" if label == "cat" else "cat"): 1 - share}
            answer = json.dumps(fake_response(label, ["cat", "dog"], shares)).encode()
            if "crash" in text:
                self.send_response(401)
                answer = b'{"error": {"message": "wrong key sk-secret", "code": "invalid_api_key"}}'
            else:
                self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/v1", asked
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def run_installed(write_task: WriteTask, address: str, *texts: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command on a task whose model is behind `address`."""
    task = write_task(extra=f'[model]\nname = "openai/small"\napi_base = "{address}"\n')
    command = [str(Path(sys.executable).parent / "calibrant"), "classify", str(task)]
    options = [word for text in texts for word in ("--text", text)]
    environment = {**os.environ, "OPENAI_API_KEY": "sk-secret", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(  # noqa: S603 (our own command)
        [*command, *options], env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_the_installed_command_talks_to_a_server(
    write_task: WriteTask, server: tuple[str, list[dict[str, Any]]]
) -> None:
    """Task file, HTTP, log-probabilities, confidence: nothing in between is replaced."""
    address, asked = server
    done = run_installed(write_task, address, "meow", "woof")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "cat\t0.900\tmeow\ndog\t0.750\twoof\n"
    assert {(request["path"], request["key"]) for request in asked} == {
        ("/v1/chat/completions", "Bearer sk-secret")
    }
    (first, _) = sorted(asked, key=lambda request: request["messages"][-1]["content"])
    assert first["model"] == "small"
    assert (first["logprobs"], first["top_logprobs"], first["temperature"]) == (True, 5, 0)
    assert first["messages"] == [
        {"role": "system", "content": "Which animal?"},
        {"role": "user", "content": "meow"},
    ]
    schema = first["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["category"]["enum"] == ["cat", "dog"]


@pytest.mark.slow
def test_the_installed_command_hides_the_key_it_was_refused_with(
    write_task: WriteTask, server: tuple[str, list[dict[str, Any]]]
) -> None:
    """One line, exit code 1, and one call only."""
    address, asked = server
    refused = run_installed(write_task, address, "crash")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: openai/small: ")
    assert refused.stderr.count("\n") == 1
    assert "sk-secret" not in refused.stderr
    assert "Check the API key." in refused.stderr
    assert len(asked) == 1
