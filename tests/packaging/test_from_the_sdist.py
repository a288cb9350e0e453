"""Tests of the sdist on every supported Python, and on the lowest versions of dependencies."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from clean_environments import (
    HERE,
    ROOT,
    TEST_TOOLS,
    Built,
    Environment,
    has_python,
    new_environment,
)

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [found[1] for line in PROJECT["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", line))]
# Data, prompts, numbers, a search, the commands: what differs between versions of Python shows here or nowhere.
QUICK = (
    "core",
    "scoring",
    "feedback",
    "metrics",
    "inference/test_classifier.py",
    "adapters/test_confidence_adapter.py",
    "optimization",
    "cli/test_cli_classify.py",
)
# What leans on one library each, beside what test_installed.py does with every extra.
THOROUGH = (
    *QUICK,
    "logprobs",
    "cli/test_cli_router.py",
    "clients/chat",
    "clients/test_litellm.py",
    "calibration/test_conformal.py",
    "calibration/test_calibrators.py",
    "store/test_files.py",
)
# Old releases use what their own neighbours, which are not old, have deprecated since.
NEIGHBOURS = ("-W", "ignore::DeprecationWarning")


def passed(environment: Environment, source: Path, *tests: str, options: tuple[str, ...] = ()) -> int:
    """Run the unpacked sdist's tests on the installed package; return how many passed."""
    copy = environment.work / "sdist"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("src"))
    paths = [f"tests/{name}" for name in tests]
    said = environment.run(
        "pytest", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider", *options, *paths, cwd=copy
    )
    told = re.search(r"(\d+) passed", said)
    assert told, said
    return int(told[1])


def test_the_oldest_supported_python_is_the_one_the_whole_suite_runs_on() -> None:
    """The oldest declared Python is the one that runs this test."""
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert PYTHONS[0] == HERE


@pytest.mark.parametrize("python", [version for version in PYTHONS if version != HERE])
def test_the_sdists_tests_pass_on_every_other_python(built: Built, outside: Path, python: str) -> None:
    """The sdist's tests pass on every other Python, and are skipped where it is missing."""
    if not has_python(python):
        pytest.skip(f"no Python {python} here, and none can be fetched")
    environment = new_environment(outside / f"python-{python}", python=python)
    environment.install(f"calibrant[data,local] @ {built.wheel.as_uri()}", *TEST_TOOLS)
    assert environment.run("python", "--version").startswith(f"Python {python}.")
    assert passed(environment, built.unpacked, *QUICK) > 100


def test_the_lowest_versions_are_those_that_are_declared(lowest: Environment) -> None:
    """The installed direct dependencies have the lowest declared versions."""
    assert higher_than_declared(lowest) == {}


def test_the_lowest_versions_of_all_dependencies_work(built: Built, lowest: Environment) -> None:
    """The sdist's tests pass with the lowest versions of all dependencies."""
    lowest.install(*TEST_TOOLS)
    assert passed(lowest, built.unpacked, *THOROUGH, options=NEIGHBOURS) > 100


def higher_than_declared(environment: Environment) -> dict[str, tuple[str, str]]:
    """Return the direct dependencies whose installed version is above the lowest declared one."""
    code = (
        "import json\n"
        "from importlib.metadata import distributions\n"
        "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in distributions()}))"
    )
    installed = json.loads(environment.run("python", "-I", "-c", code))
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    declared = dict(
        re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<[\d.]+)?", line).groups()
        for part in lists
        for line in part
    )
    return {
        name: (lowest, installed[name])
        for name, lowest in declared.items()
        if not f"{installed[name]}.".startswith(f"{lowest}.")
    }
