"""Tests of the action for pull requests: its steps in bash, on a small stand-in for a runner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fault_server import FaultServer

ROOT = Path(__file__).parent.parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
OURS: Final = "owner/repository"
# A path that would run a command wherever it is not quoted.
FOLDER: Final = "a $(touch owned) `touch owned`; touch owned; 'task'"
FILE: Final = f"{FOLDER}/task.toml"
COMMAND: Final = "from calibrant.cli import app; app()"
# Of 40 rows the weak prompt gets half right.
STRONG = "Say cat or dog, with care."
WEAK = "Say cat or dog."
TASK = """
name = "animals"
labels = ["cat", "dog"]
field = "category"
prompt = "{prompt}"
[data]
test = "rows.csv"
[model]
name = "openai/any"
api_base = "{api_base}"
[model.options]
api_key = "none"
"""
ROWS = [
    f"{number} {'meow' if number % 2 else 'woof'},{'cat' if number % 2 else 'dog'}" for number in range(40)
]


def answers(text: str, prompt: str) -> tuple[str, float]:
    """Answer rightly to the strong prompt, and as many rows wrongly as rightly to the weak one."""
    label = "cat" if "meow" in text else "dog"
    if "with care" not in prompt and int(text.split(maxsplit=1)[0]) % 4 < 2:
        label = "dog" if label == "cat" else "cat"
    return label, 0.9


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a run of the action left.

    Attributes
    ----------
    succeeded : bool
        True if no step failed.
    log : str
        What its steps printed.
    summary : str
        The job's summary.
    result : str
        The output of that name.
    """

    succeeded: bool
    log: str
    summary: str
    result: str


@dataclass(kw_only=True)
class Runner:
    """Runs the steps as a runner does: expressions replaced, conditions tested, bash on a file.

    Attributes
    ----------
    repository, temporary : Path
        The checkout, and a folder that is the job's own.
    github : dict
        Members of the context of that name.
    installs : bool
        False to take this environment's command instead of installing one.
    """

    repository: Path
    temporary: Path
    installs: bool = False
    github: dict[str, str] = field(
        default_factory=lambda: {
            "event_name": "pull_request",
            "repository": OURS,
            "event.pull_request.head.repo.full_name": OURS,
            "base_ref": "main",
        }
    )

    def run(self, **inputs: str) -> Ran:
        """Run the action with these inputs."""
        given = {
            name: str(self._filled(entry.get("default", ""), {})) for name, entry in ACTION["inputs"].items()
        }
        given |= {name.replace("_", "-"): text for name, text in inputs.items()}
        files = {name: self.temporary / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.write_text("")
        values = {f"inputs.{name}": text for name, text in given.items()}
        succeeded, log = True, ""
        for step in STEPS:
            if "uses" in step or not self._is_due(step, values, succeeded=succeeded):
                continue
            if "PACKAGE" in step["env"] and not self.installs:
                self._use_this_environment()
                continue
            files["GITHUB_OUTPUT"].write_text("")
            ran = self._bash(step, values, files)
            log += ran.stdout
            succeeded = succeeded and ran.returncode == 0
            for line in files["GITHUB_OUTPUT"].read_text().splitlines():
                name, _, text = line.partition("=")
                values[f"steps.{step['id']}.outputs.{name}"] = text
        result = self._filled(ACTION["outputs"]["result"]["value"], values)
        summary = files["GITHUB_STEP_SUMMARY"].read_text()
        return Ran(succeeded=succeeded, log=log, summary=summary, result=result)

    def _use_this_environment(self) -> None:
        command = self.temporary / "calibrant" / "bin" / "calibrant"
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{COMMAND}" "$@"\n')
        command.chmod(0o755)

    def _filled(self, text: str, values: Mapping[str, str]) -> str:
        """Replace expressions: names of values, or the first of some that is not empty."""
        known = {**values, **{f"github.{name}": value for name, value in self.github.items()}}

        def value(found: re.Match[str]) -> str:
            return next((known[name] for name in found[1].split(" || ") if known.get(name)), "")

        return re.sub(r"\$\{\{ (.*?) \}\}", value, text)

    def _is_due(self, step: Mapping[str, Any], values: Mapping[str, str], *, succeeded: bool) -> bool:
        condition = step.get("if", "")
        always, _, rest = condition.rpartition("always() && ")
        name, _, wanted = rest.partition(" == ")
        return (succeeded or bool(always)) and values.get(name, "") == wanted.strip("'")

    def _bash(
        self, step: Mapping[str, Any], values: Mapping[str, str], files: Mapping[str, Path]
    ) -> subprocess.CompletedProcess[str]:
        script = self.temporary / "script.sh"
        script.write_text(step["run"])
        variables = {name: self._filled(text, values) for name, text in step["env"].items()}
        paths = {name: str(file) for name, file in files.items()}
        own = {"RUNNER_TEMP": str(self.temporary), "GITHUB_ACTION_PATH": str(ROOT)}
        return subprocess.run(  # noqa: S603
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],  # noqa: S607
            cwd=self.repository,
            env={**os.environ, **own, **paths, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return a server of a model that reads its prompt."""
    with FaultServer(["cat", "dog"], answers) as running:
        yield running


Repository = Callable[..., Runner]


@pytest.fixture
def repository(tmp_path: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a function that commits a base and a head, and returns a runner on the head."""
    folder = tmp_path / "a repository"
    (folder / FOLDER).mkdir(parents=True)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "someone@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.delenv("GIT_DIR", raising=False)

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)  # noqa: S603, S607

    def commit(prompt: str | None, rows: list[str]) -> None:
        task = folder / FILE
        task.unlink(missing_ok=True)
        if prompt is not None:
            task.write_text(TASK.format(prompt=prompt, api_base=server.api_base))
        (task.parent / "rows.csv").write_text("\n".join(["input,answer", *rows]))
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", "a change")

    def make(base: str | None, head: str | None, *, head_rows: list[str] = ROWS) -> Runner:
        git("init", "--quiet", "--bare", "--initial-branch=main", "../origin")
        git("init", "--quiet", "--initial-branch=main")
        git("remote", "add", "origin", "../origin")
        commit(base, ROWS)
        git("push", "--quiet", "origin", "main")
        git("checkout", "--quiet", "-b", "change")
        commit(head, head_rows)
        # As after a checkout of one commit.
        git("branch", "-D", "main")
        git("update-ref", "-d", "refs/remotes/origin/main")
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        return Runner(repository=folder, temporary=temporary)

    return make


@pytest.mark.parametrize(
    ("base", "head", "result", "sentence"),
    [
        (STRONG, WEAK, "worse", "head: worse, shown to be less accurate than base"),
        (WEAK, STRONG, "passed", "head: not worse, a loss of 0.05 or more against base is ruled out"),
        (WEAK, WEAK, "passed", "head: undecided, which passes"),
    ],
)
def test_a_change_that_is_worse_fails(
    repository: Repository, base: str, head: str, result: str, sentence: str
) -> None:
    """A worse prompt fails the job, a better one and the same one pass, and the summary says why."""
    runner = repository(base, head)
    ran = runner.run(task=FILE)
    assert (ran.succeeded, ran.result) == (result != "worse", result), ran.log
    assert sentence in ran.summary
    assert ran.summary.count("<td>right → wrong</td>") == (20 if result == "worse" else 0)
    assert ("::error title=calibrant::The head is shown to be worse" in ran.log) == (result == "worse")
    assert list(runner.repository.parent.rglob("owned*")) == []
    # What commands print is no command to the runner: it stands between two lines that it cannot know.
    quiet = re.sub(r"::stop-commands::(\w{32})\n.*?\n::\1::\n", "", ran.log, flags=re.DOTALL)
    assert all(line.startswith("::error title=calibrant::") for line in quiet.splitlines())


def test_answers_are_asked_once(repository: Repository, server: FaultServer) -> None:
    """A second run of the action takes all answers from the folder that is kept."""
    runner = repository(STRONG, WEAK)
    first = runner.run(task=FILE)
    asked = sum(server.counts.values())
    assert asked >= 2 * len(ROWS)
    assert runner.run(task=FILE).summary == first.summary
    assert sum(server.counts.values()) - asked <= 2  # a question on what the server can do, for each run


def test_what_is_kept_is_what_the_cache_keeps() -> None:
    """The steps of the cache name the folder in which the answers are written, and keep it after a failure, too."""
    used = [step for step in STEPS if "uses" in step]
    assert [step["uses"].partition("@")[0] for step in used] == [
        "actions/cache/restore",
        "actions/cache/save",
    ]
    assert {step["with"]["path"] for step in used} == {"${{ runner.temp }}/calibrant-answers"}
    assert used[1]["if"].startswith("always() && ")
    (evaluate,) = [step for step in STEPS if step.get("id") == "evaluate"]
    assert "answers=$RUNNER_TEMP/calibrant-answers\n" in evaluate["run"]


def test_a_fork_ends_neutral(repository: Repository, server: FaultServer) -> None:
    """A pull request from a fork asks nothing and passes, with a sentence; so does one whose fork is gone."""
    runner = repository(STRONG, WEAK)
    for origin in ("stranger/repository", ""):
        runner.github["event.pull_request.head.repo.full_name"] = origin
        ran = runner.run(task=FILE)
        assert (ran.succeeded, ran.result) == (True, "skipped")
        assert "a pull request from a fork gets no secrets" in ran.summary
    assert not server.counts


@pytest.mark.parametrize("event", ["pull_request_target", "workflow_run", "issue_comment"])
def test_events_that_lend_secrets_to_strangers_are_refused(
    repository: Repository, server: FaultServer, event: str
) -> None:
    """An event whose checkout may be a stranger's while secrets are there fails before anything is read."""
    runner = repository(STRONG, WEAK)
    runner.github["event_name"] = event
    ran = runner.run(task=FILE)
    assert not ran.succeeded
    assert "Use on: pull_request." in ran.log
    assert not server.counts


def test_what_is_gone_is_told(repository: Repository) -> None:
    """A base without the task passes with a sentence; a base or a task of the head that is not there fails."""
    runner = repository(None, STRONG)
    ran = runner.run(task=FILE)
    assert (ran.succeeded, ran.result) == (True, "skipped")
    assert "the base has no such task file" in ran.summary
    for inputs, sentence in (
        ({"base_ref": "never-was"}, "The base is gone or not named."),
        ({"base_ref": ""}, "The base is gone or not named."),
        ({"base_ref": "--upload-pack=touch owned"}, "The base is gone or not named."),
        ({"head": "never-was"}, "The head is gone."),
        ({"task": "other.toml"}, "The head has no such task file."),
    ):
        ran = runner.run(**{"task": FILE, **inputs})
        assert not ran.succeeded
        assert f"::error title=calibrant::{sentence}" in ran.log


def test_a_named_head_is_checked(repository: Repository) -> None:
    """Another head than the checkout is compared where it is named."""
    runner = repository(STRONG, WEAK)
    ran = runner.run(task=FILE, head="main")
    assert ran.result == "passed", ran.log
    assert "no row has another answer" in ran.summary


def test_rows_that_one_side_lacks_are_told(repository: Repository) -> None:
    """Rows that are cut from the end, or added there, are left out of the difference, and the summary says so."""
    ran = repository(STRONG, WEAK, head_rows=ROWS[:30]).run(task=FILE)
    assert ran.result == "worse", ran.log
    assert "left out of the difference: 10 rows that one of the two has not answered yet" in ran.summary


def test_changed_rows_need_a_file(repository: Repository) -> None:
    """Where the labelled rows change, the failure says what to set; with it both answer the head's rows."""
    runner = repository(WEAK, STRONG, head_rows=ROWS[10:])
    ran = runner.run(task=FILE)
    assert not ran.succeeded
    assert "If the labelled rows changed, set file." in ran.log
    ran = runner.run(task=FILE, file=f"{FOLDER}/rows.csv")
    assert ran.result == "passed", ran.log
    assert "<td>30</td>" in ran.summary


@pytest.mark.parametrize(
    "names",
    [("base_ref",), ("head",), ("task",), ("file", "split", "model", "api_base", "max_cost"), ("delta",)],
    ids=" ".join,
)
def test_no_input_is_run(repository: Repository, names: tuple[str, ...]) -> None:
    """An input that holds a command, whatever the quotes around it, fails and runs nothing."""
    text = "x$(touch owned)`touch owned`\"; touch owned; '; touch owned;'\ntouch owned\n"
    runner = repository(STRONG, STRONG)
    ran = runner.run(**{"task": FILE, **dict.fromkeys(names, text)})
    assert not ran.succeeded
    assert list(runner.repository.parent.rglob("owned*")) == []


def test_bash_sees_no_expression() -> None:
    """No script holds an expression, which would be replaced before bash reads it; inputs come as variables."""
    scripts = [step["run"] for step in STEPS if "run" in step]
    assert scripts
    assert not any("${{" in script for script in scripts)
    assert all(step["shell"] == "bash" for step in STEPS if "run" in step)


def test_the_example_names_inputs_of_the_action() -> None:
    """The page's workflow gives inputs that exist, runs on pull requests alone, and the table names every input."""
    page = (ROOT / "docs" / "tasks" / "pull-requests.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    workflow = yaml.safe_load(example)
    assert workflow[True] == "pull_request"  # YAML reads the key `on` as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    (*_, step) = workflow["jobs"]["compare"]["steps"]
    assert step["with"].keys() <= ACTION["inputs"].keys()
    table = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \| ", page, re.MULTILINE)
    assert {name for names in table for name in re.findall(r"[a-z-]+", names)} == ACTION["inputs"].keys()


@pytest.mark.packaging
@pytest.mark.timeout(1800)
def test_the_action_installs_itself(repository: Repository) -> None:
    """Without a package named, the action's own version is installed, and compares."""
    runner = repository(STRONG, WEAK)
    runner.installs = True
    ran = runner.run(task=FILE)
    assert ran.result == "worse", ran.log
