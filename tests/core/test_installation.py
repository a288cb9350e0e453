"""Tests of the install command in the messages about what is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import calibrant
from calibrant.core import ConfigurationError, read_examples
from calibrant.inference import Classifier

REPOSITORY = {"vcs": "git", "commit_id": "c0ffee", "requested_revision": "main"}


def installed_from(monkeypatch: pytest.MonkeyPatch, record: Any) -> None:
    """Pretend that calibrant was installed with this record of its origin."""
    text = record if record is None or isinstance(record, str) else json.dumps(record)

    class Installed:
        def read_text(self, name: str) -> str | None:
            return text if name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda _: Installed())


@pytest.fixture
def excel_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], str]:
    """Return a function that reads an Excel file without openpyxl, and returns the command that the error names."""
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "rows.xlsx").touch()

    def command() -> str:
        with pytest.raises(ConfigurationError) as caught:
            list(read_examples(tmp_path / "rows.xlsx"))
        return str(caught.value).partition(" need openpyxl: ")[2].removesuffix(", or save the sheet as CSV.")

    return command


@pytest.mark.parametrize(
    ("record", "requirement"),
    [
        ({"url": "file:///home/ana/my%20clone", "dir_info": {}}, '"/home/ana/my clone[excel]"'),
        ({"url": "file:///home/ana/clone", "dir_info": {"editable": True}}, '-e "/home/ana/clone[excel]"'),
        (
            {"url": "https://example.org/calibrant-0.1.0-py3-none-any.whl", "archive_info": {}},
            '"calibrant[excel] @ https://example.org/calibrant-0.1.0-py3-none-any.whl"',
        ),
        (
            {"url": "https://example.org/calibrant.git", "vcs_info": REPOSITORY},
            '"calibrant[excel] @ git+https://example.org/calibrant.git@c0ffee"',
        ),
        (
            {"url": "https://example.org/all.git", "vcs_info": REPOSITORY, "subdirectory": "python"},
            '"calibrant[excel] @ git+https://example.org/all.git@c0ffee#subdirectory=python"',
        ),
        ({"url": "file:///home/$ana", "dir_info": {}}, "'/home/$ana[excel]'"),
        (None, '"calibrant[excel]"'),  # from an index
        ("no JSON", '"calibrant[excel]"'),
    ],
)
def test_the_command_names_the_origin(
    monkeypatch: pytest.MonkeyPatch, excel_command: Callable[[], str], record: Any, requirement: str
) -> None:
    """The command names a clone's path, the URL of an archive or repository, or the package."""
    installed_from(monkeypatch, record)
    assert excel_command() == f"pip install {requirement}"


def test_a_dependency_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing library that is no extra is installed with the package alone."""
    installed_from(monkeypatch, {"url": "file:///clone", "dir_info": {}})
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ConfigurationError, match='pip install "/clone" '):
        Classifier(model="mistral/any", labels=["a", "b"]).classify("text")


def test_clones_without_installation_are_named(
    monkeypatch: pytest.MonkeyPatch, excel_command: Callable[[], str]
) -> None:
    """A package imported from its clone is installed from that clone."""

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    clone = Path(calibrant.__file__).parents[2]
    is_clone = (clone / "pyproject.toml").is_file()  # these tests run against an installed wheel, too
    assert excel_command() == "pip install " + (f'-e "{clone}[excel]"' if is_clone else '"calibrant[excel]"')
