"""Tests of the list of packages that a release carries."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clean_environments import ROOT, uv

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normal(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_sbom_names_every_package(outside: Path) -> None:
    """`make sbom` lists what calibrant with every extra has installed, and nothing of this machine."""
    folder, path = outside / "sbom", outside / "sbom.cdx.json"
    # What these tests run in is installed already.
    command = (
        "make",
        "--silent",
        "--old-file=.venv/.installed-dev",
        "sbom",
        f"VENV_SBOM={folder}",
        f"SBOM={path}",
    )
    python = f"PYTHON={sys.executable}"
    made = subprocess.run([*command, python], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert made.returncode == 0, made.stderr
    text = path.read_text()
    listed = json.loads(text)
    assert listed["bomFormat"] == "CycloneDX"
    found = {normal(part["name"]): part["version"] for part in listed["components"]}
    installed = json.loads(uv("pip", "list", "--format=json", "--quiet", "--python", folder, cwd=outside))
    assert found == {normal(package["name"]): package["version"] for package in installed}
    root = listed["metadata"]["component"]
    assert (root["name"], root["version"]) == ("calibrant", PROJECT["version"])
    (edges,) = (part["dependsOn"] for part in listed["dependencies"] if part["ref"] == root["bom-ref"])
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    names = {normal(re.split(r"[^\w-]", line)[0]) for part in lists for line in part}
    assert {normal(edge.partition("==")[0]) for edge in edges} == names
    assert str(outside) not in text
    assert str(ROOT) not in text
