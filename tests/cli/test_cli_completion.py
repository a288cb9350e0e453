"""Tests of shell completion, in a real shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
eval "$(calibrant --show-completion)"
typed() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _calibrant_completion calibrant; echo "${COMPREPLY[*]}"; }
typed calibrant eval
typed calibrant evaluate TASK.toml --max-r
typed calibrant evaluate TASK.toml --engine r
typed calibrant evaluate ''
complete -p calibrant
"""


def test_bash_completes_commands_and_options() -> None:
    """Bash completes commands, options and their values, and names of files in the place of a path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", "--norc", "-c", SCRIPT]
    done = subprocess.run(  # noqa: S603  (our own script)
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    *typed, registered = done.stdout.splitlines()
    assert typed == ["evaluate", "--max-rows", "ray", ""]
    assert "-o default" in registered
