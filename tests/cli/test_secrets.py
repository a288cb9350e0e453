"""Tests that no secret reaches a file or a stream, for every command and every place of a secret."""

from __future__ import annotations

import base64
import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.testing import fake_response
from calibrant.tuned import load
from loopback import LoopbackServer

WriteTask = Callable[..., Path]

LABELS = ["cat", "dog"]
SECRETS = {
    name: f"planted-{name}/8f3a 61c2"
    for name in ("environment", "bearer", "user", "password", "header", "body", "option", "parameter")
}
SECRETS["bearer"] = "planted-bearer-8f3a61c2"  # a header's words are parted by spaces
MODEL = f"""\
[model]
name = "openai/m"
api_base = "ADDRESS"
scoring = "decode"
[model.options]
nonce = "{SECRETS["option"]}"
[model.options.extra_headers]
Authorization = "Bearer {SECRETS["bearer"]}"
X-Custom = "{SECRETS["header"]}"
[model.options.extra_body]
deep = [{{nonce = "{SECRETS["body"]}"}}]
"""


class Echo(LoopbackServer):
    """Answers rightly, and repeats the whole request where the row's text says so."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        super().__init__()

    def routed(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        raw = await request.text()
        sent = "\n".join(
            [*(f"{name}: {value}" for name, value in request.headers.items()), str(request.url), raw]
        )
        login = request.headers.get("Authorization", "").rpartition(" ")[2]
        heard = (
            f"{sent} {base64.b64decode(login).decode() if login.endswith('=') else ''} {request.query_string}"
        )
        self.seen |= {
            name for name, secret in SECRETS.items() if any(text in heard for text in written(secret))
        }
        if not request.path.endswith("/chat/completions"):
            return web.json_response({"error": {"message": sent}}, status=400)
        return self._completion(sent, json.loads(raw)["messages"][-1]["content"])

    @staticmethod
    def _completion(sent: str, text: str) -> web.Response:
        if "refuse" in text:
            return web.json_response({"error": {"message": sent}}, status=400)
        label = "cat" if "meow" in text else "dog"
        body: dict[str, Any] = fake_response(
            label, {"cat": 0.9, "dog": 0.1} if label == "cat" else {"cat": 0.2, "dog": 0.8}
        )
        message = body["choices"][0]["message"]
        if "decline" in text:
            message |= {"content": None, "refusal": sent}
        if "babble" in text:
            message["content"] = sent
        if "model" in text:
            body["model"] = f"m {sent}"
        return web.json_response(body)


def written(secret: str) -> list[str]:
    """Return how a secret may look in a file."""
    encoded = base64.b64encode(f"{SECRETS['user']}:{SECRETS['password']}".encode()).decode()
    return [
        secret,
        quote(secret),
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        secret.replace(" ", "+"),
        encoded,
    ]


def animals(split: str, *kinds: str) -> list[dict[str, str]]:
    """Return plain rows, and one of each kind."""
    words = ["meow", "woof"] * 5
    plain = [{"input": f"{split} {n} {word}", "answer": LABELS[n % 2]} for n, word in enumerate(words)]
    return plain + [{"input": f"{split} {kind} meow", "answer": "cat"} for kind in kinds]


@pytest.fixture(scope="module")
def server() -> Iterator[Echo]:
    """Return a running server."""
    found = Echo()
    yield found
    found.stop()


@pytest.fixture(params=["headers", "address"])
def task(
    request: pytest.FixtureRequest,
    server: Echo,
    write_task: WriteTask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Return the file of a task with secrets in environment, headers, options, and perhaps the address."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRETS["environment"])
    address = f"{server.root}/v1"
    if request.param == "address":
        login = f"{quote(SECRETS['user'], safe='')}:{quote(SECRETS['password'], safe='')}"
        address = f"{address.replace('://', f'://{login}@')}?tok={quote(SECRETS['parameter'], safe='')}"
    kinds = ("refuse", "decline", "babble", "model")
    return write_task(
        extra=MODEL.replace("ADDRESS", address),
        directory=tmp_path / "task",
        train=animals("train", "babble", "model"),
        validation=animals("validation", "decline"),
        test=animals("test", *kinds),
    )


def planted_in(output: str, *folders: Path) -> list[str]:
    """Return the secrets that are in an output or a file, with their places."""
    texts = {"output": output.encode()}
    texts |= {
        str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()
    }
    return [
        f"{name} in {place}"
        for place, content in texts.items()
        for name, secret in SECRETS.items()
        if any(text.encode() in content for text in written(secret))
    ]


def run(*arguments: object, code: int = 0) -> str:
    """Run the command line in this process and return all it printed."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def test_no_secret_is_left_by_a_run(task: Path, tmp_path: Path, calibrant_home: Path) -> None:
    """Output and files of evaluate, report and export hold no secret."""
    runs = tmp_path / "runs"
    output = run("evaluate", task, "--out", runs / "a")
    output += run("evaluate", task, "--out", runs / "a")  # the refused row is asked again
    output += run("evaluate", task, "--out", runs / "b", "--no-cache", "--max-rows", "11", "--json")
    output += run("report", runs / "a", "--out", runs / "report.html")
    output += run("export", runs / "a", "--out", runs / "bundle")
    output += run("export", runs / "b", "--out", runs / "other")
    assert "Left out, as they may be credentials: nonce, extra_headers, extra_body" in output
    given = tomllib.loads(task.read_text())["model"]
    given = {"api_base": given["api_base"], **given["options"]}
    with closing(load(runs / "bundle", options=given)) as opened:
        assert opened.classify("meow").label == "cat"
    assert planted_in(output, runs, calibrant_home) == []


def test_no_secret_is_left_by_a_search(task: Path, tmp_path: Path, calibrant_home: Path) -> None:
    """Output and files of a search, its report and its bundle hold no secret."""
    runs = tmp_path / "runs"
    output = run(
        "optimize", task, "--out", runs / "search", "--max-metric-calls", "90", "--minibatch-size", "12"
    )
    output += run("report", runs / "search", "--out", runs / "report.html")
    output += run("export", runs / "search", "--out", runs / "bundle", "--task", task)
    assert planted_in(output, runs, calibrant_home) == []


def test_no_secret_is_printed_with_labels(task: Path, tmp_path: Path, calibrant_home: Path) -> None:
    """Lines and JSON of classify hold no secret."""
    texts = [word for kind in ("refuse", "decline", "babble", "model") for word in ("--text", f"{kind} meow")]
    output = run("classify", task, "--text", "meow", *texts) + run(
        "classify", task, "--text", "meow", *texts, "--json"
    )
    assert planted_in(output, tmp_path / "nothing", calibrant_home) == []


def test_no_secret_is_left_by_an_examination(
    server: Echo, tmp_path: Path, calibrant_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and record of doctor hold no secret."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRETS["environment"])
    options = [f"nonce={SECRETS['option']}", "extra_body=" + json.dumps({"deep": SECRETS["body"]})]
    options.append("extra_headers=" + json.dumps({"X-Custom": SECRETS["header"]}))
    address = f"{server.root}/v1?tok={quote(SECRETS['parameter'], safe='')}"
    given = [word for option in options for word in ("--option", option)]
    result = CliRunner().invoke(app, ["doctor", "openai/m", "--api-base", address, *given])
    assert result.exit_code in {0, 1, 3}, result.output
    assert list(calibrant_home.rglob("*.json"))
    assert planted_in(result.output, tmp_path, calibrant_home) == []


def test_no_secret_is_left_by_a_job_at_a_provider(
    task: Path, server: Echo, write_task: WriteTask, tmp_path: Path, calibrant_home: Path
) -> None:
    """Output and files of `batch submit` hold no secret."""
    out = tmp_path / "job"
    output = run("batch", "submit", task, "--out", out, code=2)
    with_option = f'[model]\nname = "openai/m"\napi_base = "{server.root}/v1"\n[model.options]\n'
    for line in (f'nonce = "{SECRETS["option"]}"', "max_tokens = 5"):
        plain = write_task(extra=with_option + line + "\n", directory=tmp_path / "task")
        output += run("batch", "submit", plain, "--out", out, code=2 if "nonce" in line else 1)
    assert "[redacted]" in output
    assert list(out.iterdir())
    assert planted_in(output, out, calibrant_home) == []


def test_every_secret_was_sent(server: Echo, task: Path, tmp_path: Path) -> None:
    """The server received every secret that the other tests look for."""
    run("evaluate", task, "--out", tmp_path / "run", "--no-cache")
    run("evaluate", write_plain(task), "--out", tmp_path / "plain", "--no-cache")
    elsewhere = {"environment"} if "tok=" in task.read_text() else {"parameter", "user", "password"}
    assert set(SECRETS) - elsewhere <= server.seen


def write_plain(task: Path) -> Path:
    """Return a copy of the task without options; only the environment's or the address's key is sent."""
    plain = task.with_name("plain.toml")
    plain.write_text(task.read_text().partition("[model.options]")[0])
    return plain
