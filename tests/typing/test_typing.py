"""Types in users' code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_user_code_passes_strict_checking() -> None:
    """The file `api.py` uses the public names as a user would; its wrong lines must stay wrong."""
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
    """The marker file makes type checkers read the annotations."""
    import calibrant  # noqa: PLC0415

    assert (Path(calibrant.__file__).parent / "py.typed").is_file()
