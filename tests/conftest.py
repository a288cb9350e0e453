"""What several folders of tests share."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from calibrant.testing import FakeClient

# No deadlines: the machines are shared. In CI a failure must come back when the job is run again.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

SPLITS = ("train", "validation", "test")
TASK = """\
name = "animals"
labels = ["cat", "dog"]
field = "category"
prompt = "Which animal?"

[data]
train = "train.jsonl"
validation = "validation.jsonl"
test = "test.jsonl"
"""

Rows = Sequence[Mapping[str, Any]] | str | bytes
WriteTask = Callable[..., Path]


def animal_rows(split: str, count: int = 4) -> list[dict[str, str]]:
    """Return rows whose answer is plain: what meows is a cat, what barks is a dog."""
    kinds = (("meow", "cat"), ("woof", "dog"))
    return [
        {"input": f"{split} {number} {kinds[number % 2][0]}", "answer": kinds[number % 2][1]}
        for number in range(count)
    ]


@pytest.fixture(autouse=True)
def calibrant_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep stored examinations of the machine out of the tests, and those of one test out of the next."""
    home = tmp_path_factory.getbasetemp() / "homes" / uuid.uuid4().hex  # made by whoever stores something
    monkeypatch.setenv("CALIBRANT_HOME", str(home))
    return home


@pytest.fixture(autouse=True)
def litellm_keeps_its_clients() -> None:
    """Let litellm keep every client it makes until the process ends.

    Each event loop of a test makes its own. Beyond 200 of them, or after ten minutes, litellm drops the oldest, whose
    loop is long gone: nobody can close it, and its sockets would be reported in whatever test runs at that moment.
    """
    litellm = sys.modules.get("litellm")
    cache = None if litellm is None else vars(litellm).get("in_memory_llm_clients_cache")
    if cache is not None:
        cache.max_size_in_memory, cache.default_ttl = 10**6, 10**6


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """Return a function that writes a task of two labels and four rows a split, and returns its path.

    ``toml`` replaces the task file, ``extra`` is appended to it; a split takes rows or raw content.
    """

    def write(
        *, toml: str | bytes = TASK, extra: str = "", directory: Path = tmp_path, **splits: Rows
    ) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            content = splits.get(split, animal_rows(split))
            if not isinstance(content, str | bytes):
                content = "".join(json.dumps(row) + "\n" for row in content)
            data = content.encode() if isinstance(content, str) else content
            (directory / f"{split}.jsonl").write_bytes(data)
        path = directory / "task.toml"
        path.write_bytes((toml.encode() if isinstance(toml, str) else toml) + extra.encode())
        return path

    return write


@pytest.fixture
def animals() -> FakeClient:
    """Return a model that knows what meows and what barks, with 0.9 and 0.8 probability."""
    return FakeClient(["cat", "dog"], {"meow": ("cat", 0.9), "woof": ("dog", 0.8)})
