"""Fixtures with the built wheel and sdist, and clean environments to install them in."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from clean_environments import HERE, ROOT, Built, Environment, Install, new_environment, uv, write_task


@pytest.fixture(scope="session")
def outside() -> Iterator[Path]:
    """Return a folder outside the repository, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="calibrant-packaging-", ignore_cleanup_errors=True) as folder:
        path = Path(folder).resolve()
        assert ROOT not in path.parents
        yield path


@pytest.fixture(scope="session")
def built(outside: Path) -> Built:
    """Build wheel and sdist from the repository, and a wheel from the sdist."""
    direct, again = outside / "dist", outside / "again"
    uv("build", "--quiet", "--sdist", "--wheel", "--out-dir", direct, ROOT, cwd=outside)
    (sdist,), (wheel,) = direct.glob("*.tar.gz"), direct.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(outside / "sdist", filter="data")
    (unpacked,) = (outside / "sdist").iterdir()
    uv("build", "--quiet", "--wheel", "--out-dir", again, unpacked, cwd=outside)
    return Built(wheel=wheel, sdist=sdist, again=next(again.glob("*.whl")), unpacked=unpacked)


@pytest.fixture(scope="session")
def install(built: Built, outside: Path) -> Install:
    """Return a function that installs the wheel in an environment, with one extra or none."""

    @cache
    def installed(extra: str) -> Environment:
        environment = new_environment(outside / (extra or "base"), python=HERE)
        environment.install(f"calibrant{f'[{extra}]' if extra else ''} @ {built.wheel.as_uri()}")
        environment.check()
        return environment

    return lambda extra="": installed(extra)


@pytest.fixture(scope="session")
def lowest(built: Built, outside: Path) -> Environment:
    """Return an environment with every extra, and the lowest declared versions."""
    environment = new_environment(outside / "lowest", python=HERE)
    project = built.unpacked / "pyproject.toml"
    environment.install("--resolution", "lowest-direct", "--all-extras", "--requirements", project)
    environment.install("--no-deps", built.wheel)
    environment.check()
    return environment


@pytest.fixture(scope="session", params=["newest", "lowest"])
def extras(request: pytest.FixtureRequest, install: Install) -> Install:
    """Return functions that install one extra, and one with the lowest versions."""
    if request.param == "newest":
        return install
    environment: Environment = request.getfixturevalue("lowest")
    return lambda _extra: environment


@pytest.fixture(scope="session")
def address(install: Install) -> Iterator[str]:
    """Return the address of a fault server that runs on what the wheel has installed."""
    environment = install()
    program = ROOT / "tests" / "shared" / "serve_faults.py"
    command = (environment.python, "-E", "-s", program, "--labels", "cat", "dog")
    with environment.serving(*command) as server:
        yield server["api_base"]


@pytest.fixture
def task(address: str, tmp_path: Path) -> Path:
    """Return the file of a task that the model on loopback answers: 12 rows, one of them labelled wrongly."""
    return write_task(tmp_path, address)
