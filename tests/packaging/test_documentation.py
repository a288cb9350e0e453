"""Tests of the published documentation: a folder for each version, with a menu of them and a search."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clean_environments import HERE, ROOT, Built, new_environment

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

COMMITTER = {
    f"GIT_{who}_{what}": "nobody@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def git(*words: str | Path, cwd: Path) -> str:
    """Run git, and return its output."""
    command = ["git", *map(str, words)]
    variables = {**os.environ, **COMMITTER}
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout


def test_versions_stand_side_by_side(built: Built, outside: Path) -> None:
    """`make publish-docs` adds a version to those before it, and the newest one opens first."""
    environment = new_environment(outside / "docs", python=HERE)
    environment.install(
        "--constraint", ROOT / "constraints.txt", "--group", f"{ROOT / 'pyproject.toml'}:docs", built.wheel
    )
    source, remote = environment.work / "source", environment.work / "remote"
    shutil.copytree(built.unpacked, source)
    git("init", "--quiet", "--bare", remote, cwd=environment.work)
    git("init", "--quiet", cwd=source)
    git("add", "--all", cwd=source)
    git("commit", "--quiet", "--message", "all", cwd=source)
    git("remote", "add", "origin", remote, cwd=source)
    command = ["make", "--old-file", f"{environment.root}/.installed-docs", "publish-docs"]
    for version in ("VERSION=0.0", f"VENV={environment.root}"):
        done = subprocess.run(  # noqa: S603 (our own words)
            [*command, f"VENV={environment.root}", version],
            cwd=source,
            env={**environment.variables, **COMMITTER},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def published(path: str) -> str:
        return git("show", f"gh-pages:{path}", cwd=remote)

    (minor,) = re.findall(r'^version = "(\d+\.\d+)\.', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    versions = {entry["version"]: entry["aliases"] for entry in json.loads(published("versions.json"))}
    assert versions == {minor: ["latest"], "0.0": []}
    assert 'content="1; url=latest/"' in published("index.html")
    page = published(f"{minor}/index.html")
    (settings,) = re.findall(r'<script id="__config" type="application/json">(.*?)</script>', page)
    assert json.loads(settings)["version"]["provider"] == "mike"
    found = json.loads(published(f"{minor}/search/search_index.json"))["docs"]
    assert any("certificate" in entry["text"] for entry in found)
