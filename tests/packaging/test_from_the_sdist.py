"""Tests of the sdist against the wheel: on every supported Python, and on the lowest versions of what it needs."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from clean_environments import HERE, ROOT, TEST_TOOLS, Built, Environment, new_environment

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
# What leans on a library each.
THOROUGH = (
    *QUICK,
    "logprobs",
    "clients/chat",
    "clients/test_litellm.py",
    "calibration/test_conformal.py",
    "calibration/test_calibrators.py",
    "evaluation/test_batch_evaluator.py",
    "store/test_files.py",
    "store/test_scores.py",
    "assembly/test_bundle.py",
    "serving",
    "adapters/test_dspy.py",
    "adapters/test_litellm_routing.py",
    "distributed",
    "reports/test_html_report.py",
)
# Old releases use what their own neighbours, which are not old, have deprecated since.
NEIGHBOURS = ("-W", "ignore::DeprecationWarning")


def passes(environment: Environment, source: Path, *tests: str, options: tuple[str, ...] = ()) -> None:
    """Run tests of the unpacked sdist without its `src`: what they import is what is installed."""
    copy = environment.work / "sdist"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("src"))
    paths = [f"tests/{name}" for name in tests]
    said = environment.run(
        "pytest", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider", *options, *paths, cwd=copy
    )
    assert re.search(r"\d{3,} passed", said), said


@pytest.mark.parametrize("python", PYTHONS)
def test_the_sdists_tests_pass_on_every_supported_python(built: Built, outside: Path, python: str) -> None:
    """With the newest versions of everything; the classifiers claim what is tested here, and no more."""
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert HERE in PYTHONS
    environment = new_environment(outside / f"python-{python}", python=python)
    environment.install(f"calibrant[data] @ {built.wheel.as_uri()}", *TEST_TOOLS)
    assert environment.run("python", "--version").startswith(f"Python {python}.")
    passes(environment, built.unpacked, *QUICK)


def test_the_lowest_versions_of_all_dependencies_work(built: Built, outside: Path) -> None:
    """Those that pyproject.toml names are installed, extras included, and what leans on them passes."""
    environment = new_environment(outside / "lowest", python=PYTHONS[0])
    project = built.unpacked / "pyproject.toml"
    environment.install("--resolution", "lowest-direct", "--all-extras", "--requirements", project)
    environment.install("--no-deps", built.wheel)
    assert higher_than_declared(environment) == {}
    environment.install(*TEST_TOOLS)
    passes(environment, built.unpacked, *THOROUGH, options=NEIGHBOURS)


def higher_than_declared(environment: Environment) -> dict[str, tuple[str, str]]:
    """Return the direct dependencies of which a higher version came than the lowest one declared."""
    code = (
        "import json\n"
        "from importlib.metadata import distributions\n"
        "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in distributions()}))"
    )
    installed = json.loads(environment.run("python", "-I", "-c", code))
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    declared = dict(
        re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line).groups() for part in lists for line in part
    )
    return {
        name: (lowest, installed[name])
        for name, lowest in declared.items()
        if not f"{installed[name]}.".startswith(f"{lowest}.")
    }
