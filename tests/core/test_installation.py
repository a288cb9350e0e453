"""Tests of the install command in messages."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import calibrant
from calibrant.core._installation import install_command

REPOSITORY = {"vcs": "git", "commit_id": "c0ffee", "requested_revision": "main"}


def installed_from(monkeypatch: pytest.MonkeyPatch, record: Any) -> None:
    """Pretend that calibrant was installed with this record of its origin."""
    text = record if record is None or isinstance(record, str) else json.dumps(record)

    class Installed:
        def read_text(self, name: str) -> str | None:
            return text if name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda _: Installed())


@pytest.mark.parametrize(
    ("record", "requirement"),
    [
        ({"url": "file:///home/ana/my%20clone", "dir_info": {}}, '"/home/ana/my clone[serve]"'),
        ({"url": "file:///home/ana/clone", "dir_info": {"editable": True}}, '-e "/home/ana/clone[serve]"'),
        (
            {"url": "https://example.org/calibrant-0.1.0-py3-none-any.whl", "archive_info": {}},
            '"calibrant[serve] @ https://example.org/calibrant-0.1.0-py3-none-any.whl"',
        ),
        (
            {"url": "https://example.org/calibrant.git", "vcs_info": REPOSITORY},
            '"calibrant[serve] @ git+https://example.org/calibrant.git@c0ffee"',
        ),
        (
            {"url": "https://example.org/all.git", "vcs_info": REPOSITORY, "subdirectory": "python"},
            '"calibrant[serve] @ git+https://example.org/all.git@c0ffee#subdirectory=python"',
        ),
        ({"url": "file:///home/$ana", "dir_info": {}}, "'/home/$ana[serve]'"),
        (None, '"calibrant[serve]"'),  # from an index
        ("no JSON", '"calibrant[serve]"'),
    ],
)
def test_the_command_names_the_origin(monkeypatch: pytest.MonkeyPatch, record: Any, requirement: str) -> None:
    """The command names a clone's path, the URL of an archive or repository, or the package."""
    installed_from(monkeypatch, record)
    assert install_command("serve") == f"pip install {requirement}"


def test_extras_share_one_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several extras are written in one requirement."""
    installed_from(monkeypatch, {"url": "file:///clone", "dir_info": {}})
    assert install_command() == 'pip install "/clone"'
    assert install_command("data", "serve") == 'pip install "/clone[data,serve]"'


def test_clones_without_installation_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package imported from its clone is installed from that clone."""

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    clone = Path(calibrant.__file__).parents[2]
    is_clone = (clone / "pyproject.toml").is_file()  # these tests run against an installed wheel, too
    assert install_command("serve") == "pip install " + (
        f'-e "{clone}[serve]"' if is_clone else '"calibrant[serve]"'
    )
