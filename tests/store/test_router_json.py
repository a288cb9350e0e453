"""Tests of the import of the JSON file in which earlier versions kept router state."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calibrant.core import StateError
from calibrant.store._router_state import RouterState
from stores import at_once

DAMAGED = r"router\.json: .*damaged.*delete it"
SCOPES = {"default": {"ema": {"n": 1}, "thompson": {"text": "\u00e9", "n": 0.1}}, "other": {"ema": {"n": 5}}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a JSON file may be."""
    return tmp_path / "router.json"


def write(path: Path, scopes: Any = SCOPES) -> bytes:
    """Write a file as the earlier version did."""
    path.write_text(json.dumps({"kind": "router state", "version": 1, "scopes": scopes}))
    return path.read_bytes()


def count(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the record with its count raised by one."""
    return {"n": (0 if record is None else record["n"]) + 1}


def uses(state: RouterState) -> list[Callable[[], object]]:
    """Return every use of a state."""
    return [
        lambda: state.update("ema", count),
        lambda: state.read("ema"),
        state.reset,
        state.strategies,
        state.scopes,
    ]


@pytest.mark.parametrize("first", range(5))
def test_new_databases_import_the_json_file(path: Path, first: int, caplog: pytest.LogCaptureFixture) -> None:
    """The first use imports all scopes, and logs one warning with both files."""
    content = write(path)
    state, other = RouterState(path), RouterState(path, scope="other")
    assert state.location == f"{path}.sqlite"
    assert RouterState(path, scope="new").read("ema") is None
    uses(other)[first]()
    assert state.strategies() == ["ema", "thompson"]
    assert [state.read(name) for name in ("ema", "thompson")] == [{"n": 1}, {"text": "\u00e9", "n": 0.1}]
    assert other.read("ema") == [{"n": 6}, {"n": 5}, None, {"n": 5}, {"n": 5}][first]
    (warning,) = caplog.messages
    assert str(path) in warning
    assert f"{path}.sqlite" in warning
    assert path.read_bytes() == content


def test_the_file_is_read_once(path: Path) -> None:
    """The file is imported once: later content is ignored, and a reset is final."""
    write(path)
    assert RouterState(path).update("ema", count) == {"n": 2}
    write(path, {"default": {"ema": {"n": 70}}})
    assert RouterState(path).read("ema") == {"n": 2}
    assert RouterState(path).reset() == ["ema", "thompson"]
    assert RouterState(path).read("ema") is None
    path.unlink()
    assert RouterState(path).update("ema", count) == {"n": 1}


def test_reading_without_json_file_makes_nothing(path: Path) -> None:
    """Without a JSON file, reading makes no file; an update makes the database."""
    state = RouterState(path)
    assert (state.read("ema"), state.strategies(), state.scopes(), state.reset()) == (None, [], [], [])
    assert list(path.parent.iterdir()) == []
    state.update("ema", count)
    assert {file.name.removesuffix("-wal").removesuffix("-shm") for file in path.parent.iterdir()} == {
        "router.json.sqlite"
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", DAMAGED),
        (b"null", DAMAGED),
        (b'{"kind": "router state", "version": 1, "scopes": {"default": {"ema": {"n"', DAMAGED),
        (b'{"kind": "router state", "version": 1, "scopes": {"default": []}}', DAMAGED),
        (b'{"kind": "router state", "version": 1, "scopes": {"default": {"ema": {"n": NaN}}}}', DAMAGED),
        (b'{"kind": "router state", "version": true, "scopes": {}}', DAMAGED),
        (b"\xff\xfe\x00", DAMAGED),
        (b"{}", "expected a router state, got None: choose another file; this one was left as it is"),
        (b'{"kind": "router state", "version": 2}', "got 2: install the newer"),
    ],
)
def test_unusable_files_are_left_alone(path: Path, content: bytes, message: str) -> None:
    """An unusable JSON file raises StateError at every use, and stays as it is."""
    path.write_bytes(content)
    state = RouterState(path)
    for use in uses(state):
        with pytest.raises(StateError, match=message):
            use()
    assert path.read_bytes() == content
    path.unlink()
    assert state.update("ema", count) == {"n": 1}


def test_damaged_records_spare_the_others(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged record raises StateError when read, and the next update sets the record aside."""
    write(path, {"default": {"ema": 7, "thompson": {"n": 1}}})
    state = RouterState(path)
    assert state.read("thompson") == {"n": 1}
    with pytest.raises(StateError, match="expected an object"):
        state.read("ema")
    caplog.clear()
    assert state.update("ema", count) == {"n": 1}
    assert ["set aside" in message for message in caplog.messages] == [True]


@pytest.mark.timeout(20)
def test_pipes_are_not_read(path: Path) -> None:
    """A pipe in the place of the file is not read."""
    os.mkfifo(path)
    assert RouterState(path).update("ema", count) == {"n": 1}


def test_several_imports_happen_once(path: Path) -> None:
    """Several imports at once import the file once, and every update counts."""
    write(path)
    states = [RouterState(path, busy_timeout=60) for _ in range(8)]
    at_once(*(partial(state.update, "ema", count) for state in states))
    assert states[0].read("ema") == {"n": 9}
