"""Tests of the workflows and of the contributors' hooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def parsed(path: Path) -> Any:
    """Return a YAML file's content."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_exists(path: Path) -> None:
    """Every command of a workflow is a target of the Makefile or a script of the repository."""
    workflow = parsed(path)
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    ours = [words for command in commands if (words := command.split())[0] != "sudo"]
    assert ours
    for words in ours:
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= TARGETS
        else:
            assert (ROOT / words[0]).exists(), words


def test_every_supported_python_is_tested() -> None:
    """The tested versions of Python are those of the classifiers, and one runs on macOS."""
    supported = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    matrix = parsed(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"][
        "include"
    ]
    assert {entry["python"] for entry in matrix if entry["os"] == "ubuntu-latest"} == set(supported)
    assert any(entry["os"].startswith("macos") for entry in matrix)


def test_a_release_needs_a_tag_and_publishes_without_a_password() -> None:
    """Only tags start a release, and only the job that publishes may sign; it runs no command and names no secret."""
    path = ROOT / ".github" / "workflows" / "release.yml"
    release = parsed(path)
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert release["permissions"] == {}
    granted = {name: job["permissions"] for name, job in release["jobs"].items()}
    assert granted == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write", "attestations": "write"},
    }
    assert not any("run" in step for step in release["jobs"]["publish"]["steps"])
    assert "secrets." not in path.read_text(encoding="utf-8")


def test_the_documentation_of_a_tag_is_published_beside_the_others() -> None:
    """Only tags publish documentation, with the right to push alone and all branches at hand."""
    docs = parsed(ROOT / ".github" / "workflows" / "docs.yml")
    assert docs[True] == {"push": {"tags": ["v*"]}}
    assert docs["permissions"] == {}
    assert docs["jobs"]["publish"]["permissions"] == {"contents": "write"}
    assert docs["jobs"]["publish"]["steps"][0]["with"] == {"fetch-depth": 0}


def test_a_release_is_audited_and_carries_its_packages() -> None:
    """A release stops at a known vulnerability, and the list of packages that is attested is the one it made."""
    jobs = parsed(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    commands = [step["run"].split()[:2] for step in jobs["build"]["steps"] if "run" in step]
    assert [command for command in commands if command[0] == "make"] == [["make", "dist"], ["make", "audit"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^audit: sbom$", makefile, re.MULTILINE)
    made = re.search(r"^SBOM := (\S+)$", makefile, re.MULTILINE)
    assert made
    (kept,) = (step["with"]["path"] for step in jobs["build"]["steps"] if "upload-artifact" in str(step))
    (attested,) = (
        step["with"]["sbom-path"] for step in jobs["publish"]["steps"] if "attest-sbom" in str(step)
    )
    assert attested == made[1]
    assert attested in kept.split()


def test_issue_forms_have_fields_of_their_own() -> None:
    """Every issue form has a name, a description and at least one field, whose ids are unique."""
    forms = set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    for path in forms - {ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"}:
        form = parsed(path)
        assert form["name"]
        assert form["description"]
        fields = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert fields
        assert len(set(fields)) == len(fields)


def test_hooks_are_tools_of_the_environment() -> None:
    """Every hook runs a tool of the environment."""
    repositories = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [entry["repo"] for entry in repositories] == ["local"]
    assert all(hook["entry"].startswith(".venv/bin/") for entry in repositories for hook in entry["hooks"])


def test_one_command_installs_all_hooks() -> None:
    """The configuration names every stage of its hooks."""
    config = parsed(ROOT / ".pre-commit-config.yaml")
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    stages = {stage for hook in hooks for stage in hook.get("stages", config["default_stages"])}
    assert stages == set(config["default_install_hook_types"])


def test_the_nightly_run_has_a_database() -> None:
    """The nightly workflow has a PostgreSQL database."""
    recipe = re.search(r"^test-nightly:.*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    assert re.search(r"\.ci/postgres \$\(MAKE\).* test-slow\b", recipe[0])


def test_constraints_are_plain_pins() -> None:
    """Each line is one `name==version`; names are unique, and every dependency has a line."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==\S+", line) for line in lines]
    assert all(pins)
    names = [pin[1].lower().replace("_", "-") for pin in pins if pin]
    assert len(set(names)) == len(names)
    assert {"gepa", "litellm", "numpy", "xllamacpp", "pytest"} <= set(names)
