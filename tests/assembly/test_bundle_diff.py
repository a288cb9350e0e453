"""What changed from one bundle to another, and what the command says of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from calibrant.assembly import export, read_bundle
from calibrant.assembly._bundle_diff import diff_bundles
from calibrant.cli._app import app
from fault_server import FaultServer

WriteTask = Callable[..., Path]

TASK = """\
name = "animals"
labels = [{labels}]
field = "category"
prompt = "{prompt}"
[data]
test = "test.jsonl"
[model]
name = "openai/{model}"
api_base = "{base}"
options = {{ {options} }}
"""
ROWS = [{"input": f"{n} a {'cat' if n % 3 else 'dog'}", "answer": "cat"} for n in range(60)]


def run(*arguments: object, code: int = 0) -> Result:
    """Run the command line in this process."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result


Make = Callable[..., Path]


@pytest.fixture
def make(write_task: WriteTask, tmp_path: Path) -> Iterator[Make]:
    """Return a function that runs a task under a name, and returns the run's directory."""
    with FaultServer(["cat", "dog"]) as server:

        def make_it(
            name: str,
            *,
            labels: str = '"cat", "dog"',
            prompt: str = "Which animal?",
            model: str = "one",
            options: str = "",
            rows: int = 60,
        ) -> Path:
            toml = TASK.format(
                labels=labels, prompt=prompt, model=model, options=options, base=server.api_base
            )
            task = write_task(toml=toml, test=ROWS[:rows], directory=tmp_path / name)
            run("evaluate", task, "--out", tmp_path / name / "run", "--no-cache")
            return tmp_path / name / "run"

        yield make_it


def test_a_bundle_does_not_differ_from_itself(make: Make, tmp_path: Path) -> None:
    """Nor from its copy, or the run it is from."""
    path = make("a")
    export(path, tmp_path / "bundle")
    shutil.copytree(tmp_path / "bundle", tmp_path / "copy")
    for other in (tmp_path / "copy", path):
        found = diff_bundles(tmp_path / "bundle", other)
        assert found.same
    result = run("diff", path, tmp_path / "bundle", "--require-same")
    assert result.stdout == "Nothing differs.\n"


def test_every_part_is_told_apart(make: Make) -> None:
    """Prompt, labels, model, options, thresholds and figures."""
    first = make("a", prompt="Which\\nanimal?", options="seed = 3, api_key = 'k'")
    second = make(
        "b",
        prompt="Which\\nbeast?",
        labels='"dog", "cow", "cat"',
        model="two",
        options="seed = 4, max_tokens = 9",
        rows=50,
    )
    run("calibrate", second, "--out", second)
    found = diff_bundles(first, second)
    assert not found.same
    assert found.prompt.splitlines()[-4:] == [
        "-animal?",
        "\\ No newline at end of file",
        "+beast?",
        "\\ No newline at end of file",
    ]
    assert (found.labels_added, found.labels_removed, found.labels_reordered) == (("cow",), (), True)
    changed = {change.name: (change.before, change.after) for change in found.settings}
    assert changed["model.name"] == ("openai/one", "openai/two")
    assert changed["model.options.seed"] == (3, 4)
    assert changed["model.options.max_tokens"] == (None, 9)
    assert changed["left_out.openai/one"] == (["api_key"], None)
    corrected = {change.name: (change.before, change.after) for change in found.corrections}
    suggested = json.loads((second / "calibration.json").read_text())["thresholds"]
    assert corrected["thresholds.suggested.high"] == (None, suggested["high"])
    assert corrected["calibrator.method"][0] is None
    assert not any(
        name.startswith("calibrator.rows") for name in corrected
    )  # digests, which tell nobody anything
    figures = {name: (old, new) for name, old, new in found.figures}
    old, new = figures["accuracy, all rows"]
    assert old is not None
    assert new is not None
    assert (old.rows, new.rows) == (60, 50)
    assert figures["ECE, calibrated, held out"][0] is None


def test_the_command_prints_it_and_exits_as_asked(make: Make, tmp_path: Path) -> None:
    """0 whatever differs, 3 where nothing had to; JSON holds the same."""
    first, second = make("a"), make("b", prompt="Which beast?", options="seed = 4")
    export(first, tmp_path / "one")
    export(second, tmp_path / "two")
    result = run("diff", tmp_path / "one", tmp_path / "two")
    assert "-Which animal?\n" in result.stdout
    assert "+Which beast?\n" in result.stdout
    assert "  model.options.seed: - -> 4\n" in result.stdout
    assert "figures:" not in result.stdout
    record = json.loads(run("diff", tmp_path / "one", tmp_path / "two", "--json").stdout)
    assert record["same"] is False
    assert record["settings"] == [{"name": "model.options.seed", "before": None, "after": 4}]
    result = run("diff", tmp_path / "one", tmp_path / "two", "--require-same", code=3)
    assert "--require-same: they differ." in result.stderr
    assert "`calibrant export`" in run("diff", tmp_path / "one", tmp_path / "nowhere", code=2).stderr


def test_exporting_says_what_it_made(make: Make, tmp_path: Path) -> None:
    """For people and for programs."""
    path = make("a")
    result = run("export", path, "--out", tmp_path / "one")
    digest = read_bundle(tmp_path / "one").digest
    assert f"SHA-256 of the bundle: {digest}" in result.stdout
    record = json.loads(run("export", path, "--out", tmp_path / "two", "--json").stdout)
    assert record == {"bundle": str(tmp_path / "two"), "name": "animals", "sha256": digest}
    assert "got one that is taken" in run("export", path, "--out", tmp_path / "two", code=2).stderr
