"""Tests of the content and the metadata of wheel and sdist."""

from __future__ import annotations

import email
import re
import subprocess
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from clean_environments import ROOT, Built, uv

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_SHIPPED = {".gitignore"}  # hatchling adds it by itself
# A private key, and keys as their issuers really make them.
SECRET = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY|\bsk-[A-Za-z0-9_-]{40,}|\bAKIA[0-9A-Z]{16}\b|\bghp_[A-Za-z0-9]{36}|"
    + re.escape(f"{ROOT}/".encode())
)


def files_of(wheel: Path) -> dict[str, bytes]:
    """Return the content of every file in an archive."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_of(wheel: Path) -> Message:
    """Return the wheel's metadata."""
    (text,) = (text for name, text in files_of(wheel).items() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(text)


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    """Return every file of the repository that is not ignored."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository: this is an unpacked sdist")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603 (plain git)
    return {name for name in done.stdout.split("\n") if name and (ROOT / name).is_file()}


def test_the_sdist_builds_the_same_wheel(built: Built) -> None:
    """The wheel built from the sdist equals the wheel built from the repository, byte by byte."""
    direct, again = files_of(built.wheel), files_of(built.again)
    assert direct.keys() == again.keys()
    assert [name for name in direct if direct[name] != again[name]] == []


def test_the_wheel_holds_the_package_and_nothing_else(built: Built, tracked: set[str]) -> None:
    """The wheel holds every file of `src`, with py.typed, and nothing else."""
    found = {name for name in files_of(built.wheel) if ".dist-info/" not in name}
    assert found == {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    assert "calibrant/py.typed" in found
    assert {Path(name).suffix for name in found} == {".py", ".typed", ".html", ".css", ".js", ".txt"}


def test_the_sdist_holds_the_repository_and_nothing_else(built: Built, tracked: set[str]) -> None:
    """The sdist holds every tracked file as a plain file, and nothing else."""
    with tarfile.open(built.sdist) as archive:
        members = archive.getmembers()
    assert all(member.isfile() for member in members)
    found = {member.name.partition("/")[2] for member in members}
    assert found - {"PKG-INFO"} == tracked | NOT_SHIPPED


def test_nothing_secret_is_shipped(built: Built) -> None:
    """Wheel and sdist hold no key and no path of the folder they were built in."""
    with tarfile.open(built.sdist) as archive:
        texts = {m.name: file.read() for m in archive if (file := archive.extractfile(m)) is not None}
    found = {name: SECRET.findall(text) for name, text in (texts | files_of(built.wheel)).items()}
    assert {name: matches for name, matches in found.items() if matches} == {}


def test_notebooks_carry_their_figures(built: Built) -> None:
    """Every notebook in the sdist has figures."""
    notebooks = list((built.unpacked / "notebooks").glob("*.ipynb"))
    assert notebooks
    for path in notebooks:
        assert '"image/png"' in path.read_text()


def test_the_metadata_is_whole(built: Built) -> None:
    """The metadata has name, licence, Python version, every extra and the command."""
    about = metadata_of(built.wheel)
    assert about["Name"] == "calibrant"
    assert about["Requires-Python"] == PROJECT["requires-python"]
    assert (about["License-Expression"], about.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert set(about.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    files = files_of(built.wheel)
    named = {
        name.partition(".dist-info/")[2]: text.decode()
        for name, text in files.items()
        if ".dist-info/" in name
    }
    assert "calibrant = calibrant.cli:main" in named["entry_points.txt"]
    assert named["licenses/LICENSE"] == (ROOT / "LICENSE").read_text()


def test_a_registry_would_take_it(built: Built) -> None:
    """The strict check of twine passes for wheel and sdist."""
    said = uv("tool", "run", "twine", "check", "--strict", built.wheel, built.sdist, cwd=built.wheel.parent)
    assert said.count("PASSED") == 2


def test_the_version_is_written_in_one_place(built: Built) -> None:
    """The version stands in pyproject.toml, and beside it at most in the changelog."""
    version = PROJECT["version"]
    assert metadata_of(built.wheel)["Version"] == version
    written = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    looked_at = [
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*.md"),
        ROOT / "mkdocs.yml",
    ]
    places = {path.name for path in looked_at if written.search(path.read_text())}
    assert places <= {"CHANGELOG.md"}
    released = re.findall(r"^## \[?(\d[^\]\s]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[:1] in ([], [version])
