"""Task files as tests write them, and the messages about their mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrant.assembly import cascade_settings, routing_settings
from calibrant.core import ConfigurationError, Task

HEAD = 'name = "n"\nlabels = ["cat", "dog"]\nprompt = "p"\n'


def read(directory: Path, toml: str) -> Task:
    """Return the task of a file with this content."""
    path = directory / "task.toml"
    path.write_text(toml)
    return Task.from_file(path)


def _read_whole(directory: Path, toml: str) -> None:
    task = read(directory, toml)
    cascade_settings(task)
    routing_settings(task)


def mistakes(directory: Path, toml: str) -> list[str]:
    """Return the lines of the error that a task file or one of its sections raises, with the path made short."""
    with pytest.raises(ConfigurationError) as caught:
        _read_whole(directory, toml)
    return str(caught.value).replace(f"{directory}/", "").split("\n")
