"""Tests of the dependencies' version bounds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("name", ["gepa", "xllamacpp"])
def test_fragile_dependencies_have_upper_bounds(name: str) -> None:
    """Libraries that change their interfaces have an upper bound."""
    declared = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["local"]]
    (found,) = [one for one in declared if re.match(r"[\w-]+", one)[0] == name]  # type: ignore[index]
    assert re.search(r">=[\d.]+,<\d", found)
