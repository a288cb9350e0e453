"""Clean environments outside the repository, made by uv."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "HERE",
    "PROGRAMS",
    "ROOT",
    "TEST_TOOLS",
    "Built",
    "Environment",
    "Install",
    "has_python",
    "new_environment",
    "uv",
    "write_task",
]

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "packaging" / "programs"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
TEST_TOOLS = (
    "hypothesis",
    "pytest",
    "pytest-cov",
    "pytest-randomly",
    "pytest-socket",
    "pytest-timeout",
    "pytest-xdist",
    "sparrow-decider",
)
# One is labelled wrongly.
_ROWS = [
    {"input": f"{n}: a {('cat', 'dog')[n % 2]}", "answer": ("cat", "dog")[n % 2 or not n]} for n in range(12)
]
_TASK = """\
name = "animals"
labels = ["cat", "dog"]
field = "category"
prompt = "Which animal?"
[data]
test = "test.jsonl"
[model]
name = "openai/any"
api_base = "{address}"
[model.options]
api_key = "none"
"""
# Of the environment that the tests run in; nothing of it may reach the clean ones.
_OURS = re.compile("PYTHON|PYTEST|VIRTUAL_ENV|COV_|COVERAGE|CALIBRANT_|PYENV_VERSION")


def outer(**more: str) -> dict[str, str]:
    """Return the environment variables of a user without this repository."""
    kept = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    return {"UV_HTTP_TIMEOUT": "120", **kept, "NO_COLOR": "1", "COLUMNS": "200", **more}


def uv(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """Run uv, with more environment variables, and return its output."""
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    done = subprocess.run(  # noqa: S603 (uv, with arguments of the tests)
        command, cwd=cwd, env=outer(**variables), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Built:
    """Distributions built from the repository: their paths."""

    wheel: Path
    sdist: Path
    again: Path  # the wheel built from the sdist
    unpacked: Path  # the sdist's content


@dataclass(frozen=True)
class Environment:
    """A virtual environment with a folder to work in."""

    root: Path

    @property
    def python(self) -> Path:
        """Path of the environment's interpreter."""
        return self.root / "bin" / "python"

    @property
    def work(self) -> Path:
        """Path of the folder, outside the repository."""
        return self.root.parent / f"{self.root.name}-work"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a shell that uses the environment, with its folder as home."""
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return outer(PATH=path, HOME=str(self.work), VIRTUAL_ENV=str(self.root))

    def install(self, *arguments: str | Path, cwd: Path | None = None) -> None:
        """Install packages like pip."""
        uv("pip", "install", "--quiet", "--python", self.python, *arguments, cwd=cwd or self.work)

    def check(self) -> None:
        """Fail if a package misses a dependency or has a version that it does not accept."""
        uv("pip", "check", "--python", self.python, cwd=self.work)

    def run(self, *command: str | Path, code: int = 0, cwd: Path | None = None) -> str:
        """Run a program of the environment, check its exit code, and return both outputs."""
        program, *rest = map(str, command)
        done = subprocess.run(  # noqa: S603 (our own environment)
            [str(self.root / "bin" / program), *rest],
            cwd=cwd or self.work,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
        )
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def serving(self, *command: str | Path) -> Iterator[dict[str, Any]]:
        """Yield the record that a server of the environment writes when it is ready; end it with the block."""
        with subprocess.Popen(  # noqa: S603 (our own words)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.variables,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())
            finally:
                process.terminate()

    def program(self, name: str, *arguments: str | Path) -> str:
        """Run a user's program, which can import only the installed packages."""
        return self.run("python", "-I", PROGRAMS / f"{name}.py", *arguments)


def new_environment(root: Path, *, python: str) -> Environment:
    """Return an empty environment for a version of Python, which uv fetches if necessary."""
    uv("venv", "--quiet", "--python", _interpreter(python), root, cwd=root.parent)
    environment = Environment(root)
    environment.work.mkdir()
    return environment


def has_python(version: str) -> bool:
    """Return whether the machine has this Python, or uv can fetch this version."""
    if Path(_interpreter(version)).is_absolute():
        return True
    command = [sys.executable, "-m", "uv", "python", "install", "--quiet", version]
    done = subprocess.run(command, env=outer(), capture_output=True, check=False)  # noqa: S603 (plain uv)
    return done.returncode == 0


def _interpreter(version: str) -> str:
    """Return the path of the machine's Python of this version, or the version for uv."""
    if version == HERE:
        return sys.executable
    command = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:  # pyenv's commands want to be told the version again
        done = subprocess.run(  # noqa: S603 (our own words)
            command, env=outer(PYENV_VERSION=version), capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return version
    return done.stdout.strip() if done.returncode == 0 else version


def write_task(folder: Path, address: str) -> Path:
    """Write a task for the model at this address, and return its file."""
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _ROWS))
    path = folder / "task.toml"
    path.write_text(_TASK.format(address=address))
    return path


Install = Callable[..., Environment]
