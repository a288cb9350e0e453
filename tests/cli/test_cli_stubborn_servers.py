"""Tests of commands on servers that refuse or ignore formats, and of models named on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from calibrant.cli import app
from command_line import command, done, refusal
from stubborn_server import StubbornServer

ALL = ["json_schema", "json_object", "text"]
StartServer = Callable[..., StubbornServer]

evaluate, label, classify = command("evaluate"), command("label"), command("classify")
optimize, doctor = command("optimize"), command("doctor")


def task_file(folder: Path, server: StubbornServer, *, model: str = "openai/pet", more: str = "") -> Path:
    """Write a task about animals on a server, with 24 rows in each split."""
    for number, split in enumerate(("train", "validation", "test")):
        rows = []
        for row in range(24):
            answer, sound = ("cat", "meow") if row % 2 else ("dog", "bark")
            rows.append(json.dumps({"input": f"{sound} {number} {row}", "answer": answer}))
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    lines = ['name = "pets"', 'labels = ["cat", "dog"]', 'prompt = "Which animal?"', "[data]"]
    lines += [f'{split} = "{split}.jsonl"' for split in ("train", "validation", "test")]
    lines += ["[model]", f'name = "{model}"', f'api_base = "{server.api_base}"', more]
    path = folder / "task.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_evaluate_finds_the_form(start_stubborn_server: StartServer, tmp_path: Path) -> None:
    """A question in two forms finds the one in which a server is evaluated; a second run knows it."""
    server = start_stubborn_server(ignored=["json_schema"], has_logprobs=True)
    task = task_file(tmp_path, server)
    found = done(evaluate(task, "--out", tmp_path / "run"))
    assert "ok 24, error 0" in found.stdout
    assert server.formats == ["json_schema", "json_object", *["json_object"] * 24]
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["method"]["answer_form"] == "json"
    done(label(task, tmp_path / "test.jsonl", "--text-column", "input", "--out", tmp_path / "labels"))
    assert "json_schema" not in server.formats[1:]


def test_unreadable_answers_are_shown(start_stubborn_server: StartServer, tmp_path: Path) -> None:
    """Unreadable answers end with exit code 1; some are shown, and no word is said against language models."""
    server = start_stubborn_server(ignored=["json_schema", "json_object"], says=lambda _: "Hm.\x1b[2J\nHm.")
    task = task_file(tmp_path, server)
    found = evaluate(task, "--out", tmp_path / "run")
    assert found.exit_code == 1
    assert "24 of 24 rows have no label" in found.stdout
    assert "do not need a language model" not in found.output
    assert "24 answers could not be read as a label" in found.stderr
    assert "Well, it is hard to say what this is about." in found.stderr
    assert "\x1b" not in found.output
    again = label(task, tmp_path / "test.jsonl", "--text-column", "input", "--out", tmp_path / "labels")
    assert again.exit_code == 1
    assert "24 answers could not be read" in again.stderr
    texts = classify(task, "--text", "a meow")
    assert texts.exit_code == 1
    assert "Well, it is hard to say" in texts.stdout
    search = optimize(task, "--max-metric-calls", 120, "--out", tmp_path / "search")
    assert search.exit_code == 1
    assert "could not be read as a label" in search.stdout


@pytest.mark.parametrize("refused", [[], ALL[:2]])
def test_servers_that_differ_behind_one_address_are_told(
    start_stubborn_server: StartServer, tmp_path: Path, refused: list[str]
) -> None:
    """Where some answers have log-probabilities and others are plain text without, commands say what to do."""
    server = start_stubborn_server(refused=refused, has_logprobs=True, hides_in="3")
    task = task_file(tmp_path, server)
    arguments = {evaluate: [task], label: [task, tmp_path / "test.jsonl", "--text-column", "input"]}
    for number, (ask, given) in enumerate(arguments.items()):
        found = ask(*given, "--out", tmp_path / f"run {number}")
        assert (
            "21 of 24 answers had usable log-probabilities, and the others none. If several" in found.stderr
        )
        assert 'scoring = "fused"' in found.stderr
    if refused:
        search = optimize(task, "--max-metric-calls", 120, "--no-embeddings", "--out", tmp_path / "search")
        assert (
            "without usable log-probabilities and were scored by correctness alone. If several"
            in search.stdout
        )


@pytest.mark.parametrize("has_logprobs", [True, False])
def test_servers_that_are_alike_get_no_advice(
    start_stubborn_server: StartServer, tmp_path: Path, has_logprobs: bool
) -> None:
    """Where all answers have log-probabilities, or none, nothing is said about several servers."""
    server = start_stubborn_server(has_logprobs=has_logprobs)
    task = task_file(tmp_path, server, more='scoring = "decode"')
    assert "several servers" not in evaluate(task, "--out", tmp_path / "run").output


def test_refusals_are_no_transport_errors(start_stubborn_server: StartServer, tmp_path: Path) -> None:
    """Rows that a server refuses will be refused again; its own words say why."""
    task = task_file(tmp_path, start_stubborn_server(refused=ALL, message="no such luck"))
    found = evaluate(task, "--out", tmp_path / "run")
    assert found.exit_code == 1
    assert "24 rows failed, as the server refused them" in found.stderr
    assert "400 no such luck" in found.stderr
    assert "refused again" in found.stderr
    assert "transport error" not in found.output


@pytest.mark.parametrize("how", ["refused", "ignored"])
@pytest.mark.parametrize(("formats", "form"), [(["json_schema"], "a JSON object"), (ALL[:2], "plain text")])
def test_the_doctor_finds_the_form(
    start_stubborn_server: StartServer, tmp_path: Path, how: str, formats: list[str], form: str
) -> None:
    """The doctor says what works instead of a schema, and later commands know it."""
    server = start_stubborn_server(**{how: formats}, has_logprobs=True)
    found = done(doctor("openai/pet", "--api-base", server.api_base))
    assert f"The schema is {how}: " in found.stdout
    assert (
        f"Asked for {form}, with the labels named in the prompt, 4 of 4 answers were a label" in found.stdout
    )
    assert 'space = "raw"\nscoring = "decode"' in found.stdout
    asked = len(server.formats)
    done(evaluate(task_file(tmp_path, server), "--out", tmp_path / "run"))
    assert len(set(server.formats[asked:])) == 1


def test_the_doctor_tells_where_log_probabilities_stand(start_stubborn_server: StartServer) -> None:
    """Those of an answer that does not begin with its label came, and say nothing about it."""
    server = start_stubborn_server(
        refused=["json_schema", "json_object"],
        has_logprobs=True,
        says=lambda label: f"It is {label.replace('Tokyo', 'Music')}.",
    )
    found = doctor("openai/pet", "--api-base", server.api_base)
    told = " ".join(found.stdout.split())
    assert "Log-probabilities came, but the answers do not begin with the label" in told
    assert "No log-probabilities came" not in told


def test_the_doctor_recommends_nothing_that_fails(start_stubborn_server: StartServer) -> None:
    """Where no answer can be read, there are no settings to recommend."""
    found = doctor("openai/pet", "--api-base", start_stubborn_server(ignored=ALL).api_base)
    assert found.exit_code == 1
    assert "No settings to recommend" in found.stdout


def test_a_model_keeps_its_server(
    start_stubborn_server: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """--model replaces the name: address and options stay where the provider is the same."""
    server = start_stubborn_server(has_logprobs=True)
    task = task_file(tmp_path, server, more="[model.options]\nseed = 7")
    done(evaluate(task, "--model", "openai/large", "--out", tmp_path / "run"))
    assert {(body["model"], body["seed"]) for body in server.bodies} == {("large", 7)}
    assert not [line for line in caplog.messages if "instead of" in line]
    export = command("export")
    done(export(tmp_path / "run", "--out", tmp_path / "bundle"))
    asked = len(server.bodies)
    done(classify(tmp_path / "bundle", "--text", "a meow"))
    assert {body["model"] for body in server.bodies[asked:]} == {"large"}


def test_another_provider_gets_nothing_unsaid(
    start_stubborn_server: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For another provider the address is dropped, which is said with the place where the texts go."""
    other = start_stubborn_server(has_logprobs=True)
    task = task_file(tmp_path, start_stubborn_server(), more="[model.options]\nseed = 7")
    done(evaluate(task, "--model", "hosted_vllm/m", "--api-base", other.api_base, "--out", tmp_path / "a"))
    assert {"seed" in body for body in other.bodies} == {False}
    words = f"without options.seed of the task, the texts go to {other.root.removeprefix('http://')}"
    assert [line for line in caplog.messages if words in line]


def test_an_address_keeps_no_credentials(
    start_stubborn_server: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """--api-base alone asks the same model elsewhere, without the key of the first server."""
    other = start_stubborn_server(has_logprobs=True)
    more = '[model.options]\nseed = 7\napi_key = "of-the-first-server"'
    first = start_stubborn_server()
    task = task_file(tmp_path, first, more=more)
    done(classify(task, "--api-base", other.api_base, "--text", "a meow"))
    assert [(body["model"], body["seed"]) for body in other.bodies] == [("pet", 7)] * len(other.bodies)
    (warning,) = [line for line in caplog.messages if "without options.api_key of the task" in line]
    assert f"is asked instead of the one at {first.root.removeprefix('http://')}:" in warning


def test_every_model_option_has_an_address() -> None:
    """Wherever a command takes --model, or a model's name, it takes --api-base."""
    waiting: list[Any] = [get_command(app)]
    found = []
    while waiting:
        one = waiting.pop()
        waiting += list(getattr(one, "commands", {}).values())
        names = {parameter.name for parameter in one.params}
        if "model" in names:
            found.append(one.name)
            assert "api_base" in names, one.name
    assert len(found) >= 8


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpt-4.1-mini", "openai/gpt-4.1-mini?"),
        ("gemini-2.5-flash", "gemini/gemini-2.5-flash?"),
        ("kw-small", "openai/kw-small with the address of a server (--api-base"),
    ],
)
def test_bare_names_are_refused_at_once(
    tmp_path: Path, start_stubborn_server: StartServer, name: str, meant: str
) -> None:
    """A name without its provider is answered with the one that was meant, before any request."""
    server = start_stubborn_server()
    task = task_file(tmp_path, server, model="anthropic/claude-x")
    assert meant in refusal(classify(task, "--model", name, "--text", "a meow"))
    assert server.bodies == []


@pytest.mark.parametrize("has_price", [True, False])
def test_a_search_estimates_cost_and_time_before_it_asks(
    start_stubborn_server: StartServer, tmp_path: Path, has_price: bool
) -> None:
    """Before it asks, a search says how long it takes and, where the task has prices, what it costs.

    A provider's list price says nothing about a server of one's own that has a model of the same name.
    """
    prices = "[model.options]\ninput_cost_per_token = 0.001\noutput_cost_per_token = 0.01"
    task = task_file(
        tmp_path, start_stubborn_server(), model="gpt-4.1-mini", more=prices if has_price else ""
    )
    result = command("optimize")(task, "--max-metric-calls", 90, "--out", tmp_path / "run")
    said = re.match(
        r"At most 90 rows to search and 48 to test(?:; about \$([\d.]+) by the price of its tokens)?; "
        r"14 s or more if an answer takes a second\.\n",
        result.stderr,
    )
    assert said is not None, (result.stderr, result.exception)
    assert (said[1] is not None) == has_price
    if has_price:  # some ten tokens of prompt, labels and text, and an answer of ten
        assert 138 * 0.1 < float(said[1]) < 138 * 0.13
