"""Tests of ``calibrant doctor``: findings, remedies, settings and exit codes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import ConfigurationError, ProviderError, Task
from calibrant.inference import Classifier, Examination
from calibrant.testing import FakeClient, FakeContinuingClient
from command_line import command, done

LABELS = ("Animals", "Food", "Music", "Weather")
WORDS = {"pasta": "Food", "rain": "Weather", "dog": "Animals", "guitar": "Music"}

run = command("doctor")

WriteTask = Callable[..., Path]


def answer(text: str) -> Mapping[str, float]:
    """Return the distribution of a model that knows the built-in texts."""
    for word, label in WORDS.items():
        if word in text:
            return dict.fromkeys(LABELS, 0.01) | {label: 0.97}
    return {"Animals": 0.2, "Food": 0.3, "Music": 0.4, "Weather": 0.1}


@pytest.fixture
def opened(use_model: Callable[..., Any]) -> list[dict[str, Any]]:
    """Record the opened models; a name with "raw" has answers without a mask."""
    calls: list[dict[str, Any]] = []

    def open_fake(model: str, **options: Any) -> FakeClient:
        calls.append({"model": model, **options})
        illegal = 0.4 if "raw" in model else 0.0
        space = options["space"] or "masked"
        return FakeClient(LABELS, answer, field="topic", illegal_mass=illegal, space=space, name=model)

    for name in ("openai/x", "openai/raw", "openai/[raw]", ODD):
        use_model(open_fake, name)
    return calls


@pytest.mark.usefixtures("opened")
def test_a_usable_model_is_plain_lines_and_settings(calibrant_home: Path) -> None:
    """A usable model has one line per finding, no remedies, settings, and the place of the record."""
    result = done(run("openai/x"))
    findings, settings, stored = result.stdout.split("\n\n", 1)[0], *result.stdout.rsplit("\n\n", 2)[1:]
    rows = [line.split("\t") for line in findings.splitlines()]
    assert [row[0] for row in rows] == ["enum", "space", "label_mass", "units", "alignment", "exact"]
    assert rows[0] == ["enum", "ok", "4 of 4 answers were a label, 4 the expected one."]
    assert all(len(row) == 3 for row in rows)
    assert "What to do" not in result.stdout
    assert "Recommended settings, after 6 calls:" in result.stdout
    assert settings == "[scoring]\nhigh = 0.95\nlow = 0.8"
    assert stored.startswith(f"Stored in {calibrant_home}")


@pytest.mark.usefixtures("opened")
def test_a_problem_comes_with_its_remedy_and_exit_code_1() -> None:
    """A problem has its remedy in the output, and exit code 1."""
    result = run("openai/raw")
    assert result.exit_code == 1
    assert "\nspace\tproblem\tRaw: " in result.stdout
    assert (
        '\nWhat to do:\n  space: Set space = "raw" under [model] (space="raw" in Python).\n'
    ) in result.stdout
    assert 'name = "openai/raw"\nspace = "raw"\nscoring = "decode"\n' in result.stdout
    done(run("openai/raw", "--space", "raw"))


@pytest.mark.usefixtures("opened")
def test_json_is_one_object(calibrant_home: Path) -> None:
    """The JSON equals the stored record, with the time of the examination."""
    before = datetime.now(UTC)
    result = run("openai/raw", "--json")
    assert (result.exit_code, result.stdout.count("\n")) == (1, 1)
    found = Examination.from_record(json.loads(result.stdout))
    assert found.model == "openai/raw"
    assert found.examined is not None
    assert before <= found.examined <= datetime.now(UTC)
    (stored,) = (path for path in calibrant_home.rglob("*") if path.is_file())
    assert found == Examination.from_record(json.loads(stored.read_text()))


@pytest.mark.usefixtures("opened")
def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows a table on standard output and progress on standard error."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    result = run("openai/[raw]")
    assert result.exit_code == 1
    for said in ("openai/[raw]", "┏", "problem", "What to do:"):
        assert said in result.stdout
    assert "examining openai/[raw]" in result.stderr
    assert "┏" not in result.stderr


@pytest.mark.usefixtures("opened")
def test_no_progress_is_shown_elsewhere() -> None:
    """Standard error stays empty if it is no terminal."""
    assert run("openai/x").stderr == ""


@pytest.mark.usefixtures("opened")
def test_what_is_stored_is_consulted() -> None:
    """Classifier raises ConfigurationError after a stored problem; with --no-save nothing is stored."""
    assert run("openai/raw", "--no-save").exit_code == 1
    Classifier(model="openai/raw", labels=LABELS)
    stored = run("openai/raw")
    assert "Stored in " in stored.stdout
    with pytest.raises(ConfigurationError, match="To examine the model again: calibrant doctor openai/raw"):
        Classifier(model="openai/raw", labels=LABELS)


@pytest.mark.usefixtures("opened")
def test_the_command_of_a_refusal_examines_the_same_setup() -> None:
    """The command in the error of a refusal repeats model, address and options of the classifier."""
    arguments = ["openai/raw", "--api-base", "http://h/v1", "--option", "seed=7", "--option", "user=a b"]
    run(*arguments)
    options = {"api_base": "http://h/v1", "seed": 7, "user": "a b"}
    with pytest.raises(ConfigurationError) as caught:
        Classifier(model="openai/raw", labels=LABELS, options=options)
    _, _, command = str(caught.value).partition("To examine the model again: ")
    assert shlex.split(command) == ["calibrant", "doctor", *arguments]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("seed=7", {"seed": 7}),
        ("temperature=null", {"temperature": None}),
        ("user=a=b", {"user": "a=b"}),
        ("user=", {"user": ""}),
        ('extra_body={"min_p": 0.1}', {"extra_body": {"min_p": 0.1}}),
    ],
)
def test_options_are_json_or_text(opened: list[dict[str, Any]], text: str, value: dict[str, Any]) -> None:
    """An option's value is read as JSON, or else as text."""
    done(run("openai/x", "--option", text, "--api-base", "http://h"))
    assert opened[0]["options"] == {**value, "api_base": "http://h"}


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["openai/x", "--option", "seed"], "Expected --option KEY=VALUE, got 'seed'"),
        (["openai/x", "--option", "=7"], "Expected --option KEY=VALUE, got '=7'"),
        (["openai/x", "--space", "cooked"], "'cooked': expected one of masked"),
        (["openai/x", "--space", "exact"], "Expected space 'masked' or 'raw'"),
        (
            ["openai/x", "--api-base", "http://a", "--option", "api_base=http://b"],
            "Expected one api_base, got 'http://a' and 'http://b'",
        ),
        ([], "Missing argument"),
        (["openai/x", "--spaces", "raw"], "No such option"),
    ],
)
def test_bad_usage_is_exit_code_2(arguments: list[str], message: str) -> None:
    """Bad usage exits with 2 and a message without a traceback."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_model_that_cannot_be_opened_is_exit_code_2() -> None:
    """A model that cannot be opened exits with 2 and an error."""
    result = run("local/huge")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_a_bad_key_is_one_line_and_exit_code_1(use_model: Callable[..., Any], calibrant_home: Path) -> None:
    """A refused key exits with 1 after one call; one line is printed and nothing is stored."""
    fault = ProviderError("no", provider="openai/x", status=401, hint="Check the API key.")
    client = FakeClient(LABELS, {}, default=fault)
    use_model(client, "openai/x")
    result = run("openai/x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: openai/x: no Check the API key.\n"
    assert len(client.requests) == 1
    assert client.closed
    assert not calibrant_home.exists()


@pytest.mark.usefixtures("opened")
def test_an_unwritable_folder_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An unwritable folder gives one warning, and the settings are printed."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CALIBRANT_HOME", str(tmp_path / "file"))
    result = done(run("openai/x"))
    assert result.stderr.startswith("warning: The examination cannot be stored")
    assert result.stderr.count("\n") == 1
    assert "Recommended settings" in result.stdout
    assert "Stored" not in result.stdout


def settings(*arguments: str) -> str:
    """Return the recommended settings that the command prints."""
    printed = run(*arguments).stdout.partition("\nRecommended settings, ")[2]
    return printed.partition(":\n\n")[2].partition("\nStored in")[0]


PLAIN = """\
[model]
name = "openai/x"
space = "masked"
scoring = "decode"

[scoring]
high = 0.95
low = 0.8
"""


@pytest.mark.usefixtures("opened")
def test_the_settings_of_a_plain_model() -> None:
    """The settings of a plain model are the expected TOML text."""
    assert settings("openai/x") == PLAIN


OPTIONS = {"seed": 7, "logprobs?": True, "stop": ["a", "b"], "extra_body": {"min_p": 0.1, "a b": {"c": []}}}
ODD = 'llamacpp:C:\\"ü🎉\n.gguf'


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        (["openai/x"], {"space": "masked", "scoring": "decode"}),
        (["openai/raw", "--space", "raw"], {"space": "raw", "scoring": "decode"}),
        (["openai/x", "--api-base", "http://h/v1"], {"api_base": "http://h/v1"}),
        ([ODD], {"name": ODD}),
        (
            ["openai/x", *(f"--option={name}={json.dumps(value)}" for name, value in OPTIONS.items())],
            {"options": OPTIONS},
        ),
        (["openai/x", "--option", "temperature=null", "--option", "seed=1"], {"options": {"seed": 1}}),
    ],
)
@pytest.mark.usefixtures("opened")
def test_tasks_take_settings(write_task: WriteTask, arguments: list[str], model: dict[str, Any]) -> None:
    """A task file with the printed settings has the examined model's values."""
    task = Task.from_file(write_task(extra=settings(*arguments)))
    assert task.model.model_dump() | model == task.model.model_dump()
    assert task.model.name == arguments[0]
    assert (task.scoring.high, task.scoring.low) == (0.95, 0.8)


@pytest.mark.parametrize(("space", "scoring"), [("masked", "exact"), ("none", "fused")])
def test_no_space_is_recommended_where_nothing_is_decoded(
    use_model: Callable[..., Any], space: str, scoring: str
) -> None:
    """Settings have no space where labels are scored, and where a model has no log-probabilities."""
    kind = FakeContinuingClient if scoring == "exact" else FakeClient
    use_model(kind(LABELS, answer, field="topic", space=space), "openai/own")
    text = settings("openai/own")
    assert f'scoring = "{scoring}"' in text
    assert "space" not in text


@pytest.mark.usefixtures("opened")
def test_credentials_are_printed_nowhere() -> None:
    """Neither the settings nor the record holds a credential."""
    secret = "s3cr3t-value"  # noqa: S105 (made up)
    arguments = ["openai/x", "--option", f"api_key={secret}", "--api-base", f"http://me:{secret}@h/v1"]
    for form in ([], ["--json"]):
        result = done(run(*arguments, *form))
        assert secret not in result.output
        assert "http://h/v1" in result.stdout


@pytest.mark.usefixtures("opened")
def test_a_credential_that_was_given_is_a_comment_in_the_settings(write_task: WriteTask) -> None:
    """A credential becomes a comment with its name, and the settings load as a task file."""
    secret = "s3cr3t-value"  # noqa: S105 (made up)
    result = run(
        "openai/x",
        *("--api-base", f"http://me:{secret}@h/v1?token={secret}&version=2&tenant={secret}"),
        *("--option", f"api_key={secret}", "--option", "seed=7"),
        *("--option", f'extra_body={{"token": "{secret}", "a b": {{"key": 1}}}}'),
        *("--option", f'metadata={{"token": "{secret}", "n": 1}}', "--option", "logit_bias={}"),
    )
    assert result.exit_code == 0
    assert secret not in result.output
    settings = result.stdout.partition("calls:\n\n")[2].partition("\nStored")[0]
    assert (
        settings
        == """\
[model]
name = "openai/x"
api_base = "http://h/v1?version=2"
space = "masked"
scoring = "decode"
# password of api_base: as it was, not shown as it may be a secret
# token of api_base: as it was, not shown as it may be a secret
# tenant of api_base: as it was, not shown as it may be a secret

[model.options]
seed = 7
metadata = {n = 1}
# api_key: as it was, not shown as it may be a secret
# extra_body.token: as it was, not shown as it may be a secret
# extra_body."a b".key: as it was, not shown as it may be a secret
# metadata.token: as it was, not shown as it may be a secret

[scoring]
high = 0.95
low = 0.8
"""
    )
    assert Task.from_file(write_task(extra=settings)).model.options == {"seed": 7, "metadata": {"n": 1}}


def test_help_explains_the_command() -> None:
    """`calibrant --help` lists doctor, and the command's own help names all its options."""
    assert "doctor" in command()("--help").stdout
    alone = " ".join(run("--help").stdout.replace("│", " ").split())
    for word in ("MODEL", "--api-base", "--option", "KEY=VALUE", "--space", "--json", "--no-save"):
        assert word in alone
    assert "Print one JSON object instead" in alone
