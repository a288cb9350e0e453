"""Examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(importlib.import_module("calibrant").__file__ or "").parent
MODULES = sorted(
    "calibrant." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8") and path.parent != SOURCE
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of the module, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
