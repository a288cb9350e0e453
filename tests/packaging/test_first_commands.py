"""Test of README's first commands, in an empty folder."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from clean_environments import ROOT

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(3600)]

BLOCKS = re.findall(
    r"^```console\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def test_the_first_commands_run(outside: Path) -> None:
    """README's first block runs as printed: clone, demo, and calibrant is a command of the shell."""
    folder = outside / "first commands"
    folder.mkdir()
    commands = BLOCKS[0].replace("URL", str(ROOT), 1)
    script = f"set -e\n{commands}\ncalibrant --help\n"
    ran = subprocess.run(  # noqa: S603
        ["bash", "-c", script],  # noqa: S607
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "Usage: calibrant" in ran.stdout
    assert (folder / "calibrant" / "runs" / "judged" / "metrics.json").is_file()
