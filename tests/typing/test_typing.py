"""Tests of the types in users' code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_user_code_passes_strict_checking() -> None:
    """`api.py` passes mypy's strict check, and its wrong lines are errors."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "tests/typing/api.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_ships_its_types() -> None:
    """The package holds the marker file py.typed."""
    import calibrant  # noqa: PLC0415

    assert (Path(calibrant.__file__).parent / "py.typed").is_file()
